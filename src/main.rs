//! Arguments → one subcommand; exit codes. Nothing else.

use clap::Parser;
use std::process::ExitCode;
use stdiod::cli::{Args, run};

/// 0 done, 1 fault, 2 wrong use or configuration (clap's own code for a line it does not understand).
fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            if let Some(message) = error.message() {
                eprintln!("stdiod: {message}");
            }
            ExitCode::from(error.exit_code())
        }
    }
}
