//! `completions` and `man`: what the command line itself knows, for shells and for people. Asks no daemon.

use super::Args;
use super::error::Error;
use clap::{CommandFactory, ValueEnum};
use std::io::Write;
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  stdiod completions bash > /etc/bash_completion.d/stdiod
  stdiod completions zsh > ~/.zfunc/_stdiod
  stdiod completions fish > ~/.config/fish/completions/stdiod.fish")]
pub struct Completions {
    /// For which shell
    shell: Shell,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

#[derive(clap::Args)]
#[command(after_help = "Examples:
  stdiod man | man -l -
  stdiod man --dir /usr/local/share/man/man1")]
pub struct Man {
    /// Write a page for every subcommand too, into this directory
    #[arg(long)]
    dir: Option<PathBuf>,
}

pub fn completions(args: &Completions) -> Result<(), Error> {
    let shell = match args.shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    // The generator takes a failing writer for a bug; a reader that has seen enough is none.
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "stdiod", &mut text);
    Ok(std::io::stdout().write_all(&text)?)
}

pub fn man(args: &Man) -> Result<(), Error> {
    let command = Args::command();
    match &args.dir {
        Some(dir) => clap_mangen::generate_to(command, dir)
            .map_err(|why| Error::Fault(format!("cannot write to {}: {why}", dir.display()))),
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(command).render(&mut page)?;
            Ok(std::io::stdout().write_all(&page)?)
        }
    }
}
