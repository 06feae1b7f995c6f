//! The subcommands with which the daemon starts itself as a child. They are no interface: hidden, and their arguments
//! change with the daemon that gives them.

use crate::sandbox;
use std::ffi::OsString;

/// Arguments of a child, which only the module that makes them reads.
#[derive(clap::Args)]
pub struct Words {
    #[arg(allow_hyphen_values = true)]
    words: Vec<OsString>,
}

pub fn launch(args: &Words) -> u8 {
    exit_code(sandbox::launch::main(&args.words))
}

pub fn discard(args: &Words) -> u8 {
    exit_code(sandbox::discard::main(&args.words))
}

pub fn sweep(args: &Words) -> u8 {
    exit_code(sandbox::sweep::main(&args.words))
}

fn exit_code(code: i32) -> u8 {
    u8::try_from(code).unwrap_or(1)
}
