//! Arguments → one subcommand; exit codes. Nothing else. The daemon also starts itself as its own children
//! (`sandbox::child`); those are no commands, and are looked for first.

use clap::Parser;
use std::ffi::OsString;
use std::process::ExitCode;
use stdiod::cli::{Args, run};
use stdiod::sandbox;

/// 0 done, 1 fault, 2 wrong use or configuration (clap's own code for a line it does not understand).
fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some(code) = sandbox::child(&args) {
        return ExitCode::from(u8::try_from(code).unwrap_or(1));
    }
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
