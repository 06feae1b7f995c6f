//! The subcommands with which the daemon starts itself as a child. They are no interface: hidden, and their arguments
//! change with the daemon that gives them.

use crate::sandbox;

#[derive(clap::Args)]
pub struct Launch {
    /// Holds the `LaunchPlan`.
    plan_fd: i32,
    /// Takes the `Report`.
    report_fd: i32,
}

#[derive(clap::Args)]
pub struct Words {
    #[arg(allow_hyphen_values = true)]
    words: Vec<String>,
}

pub fn launch(args: &Launch) -> u8 {
    sandbox::launch::main(args.plan_fd, args.report_fd)
}

pub fn discard(args: &Words) -> u8 {
    sandbox::discard::main(&args.words)
}

pub fn sweep(args: &Words) -> u8 {
    sandbox::sweep::main(&args.words)
}
