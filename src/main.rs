//! Arguments → one subcommand; exit codes. Nothing else. The daemon also starts itself as its own children
//! (`sandbox::child`); those are no commands, and are looked for first.

use clap::Parser;
use std::ffi::OsString;
use std::process::ExitCode;
use stdiod::cli::{Args, run};
use stdiod::os::upgrade::{self, Started, check};
use stdiod::sandbox;

/// 0 done, 1 fault, 2 wrong use or configuration (clap's own code for a line it does not understand).
fn main() -> ExitCode {
    let mut words = std::env::args_os();
    let name = words.next().unwrap_or_else(|| "stdiod".into());
    let args: Vec<OsString> = words.collect();
    if let Some(code) = check::child(&args).or_else(|| sandbox::child(&args)) {
        return ExitCode::from(u8::try_from(code).unwrap_or(1));
    }
    let (args, state) = upgrade::taken_over(args);
    let started = Started::of_this_process(args.clone());
    match run(&Args::parse_from(std::iter::once(name).chain(args)), started, state) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            if let Some(message) = error.message() {
                eprintln!("stdiod: {message}");
            }
            ExitCode::from(error.exit_code())
        }
    }
}
