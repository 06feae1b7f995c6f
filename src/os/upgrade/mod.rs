//! A daemon that replaces itself by `execve`: the same process with the same children and connections, and another program.
//! Owns how far an upgrade has come, the state that is handed over, and the child in which the new program reads it first.
//! Decides nothing of what is carried: each part of the shell says that itself (`carried.rs` beside it). Invariant: until
//! `execve` has worked nothing is given away, so whatever fails before it changes nothing.

pub mod carrying;
pub mod check;
pub mod state;

use crate::ids::ConnId;
use crate::os::upgrade::check::Check;
use crate::os::upgrade::state::Memory;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::PathBuf;

/// What this program is started by when it takes over; its next argument is the number of the state's descriptor.
pub const TAKES_OVER: &str = "take-over";

/// The arguments without what says that this program takes over, and the number of the state if it does.
pub fn taken_over(mut args: Vec<OsString>) -> (Vec<OsString>, Option<RawFd>) {
    let number = |args: &[OsString]| args.get(1)?.to_str()?.parse().ok();
    match number(&args).filter(|_| args[0] == TAKES_OVER) {
        Some(number) => (args.split_off(2), Some(number)),
        None => (args, None),
    }
}

/// How this very process was started, to be started so again.
#[derive(Clone, Debug)]
pub struct Started {
    /// Where its program was found, whatever is there by now.
    pub program: PathBuf,
    /// Without what says that it took over.
    pub args: Vec<OsString>,
}

impl Started {
    pub fn of_this_process(args: Vec<OsString>) -> Started {
        let program = std::env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into());
        // What was replaced on disk is called so; its name without that is the new one.
        let name = program.to_string_lossy();
        let program = name.strip_suffix(" (deleted)").map_or(program.clone(), PathBuf::from);
        Started { program, args }
    }
}

/// Who has asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    Signal,
    Client(ConnId),
}

/// How far an upgrade has come.
pub enum Upgrade {
    None,
    /// Asked for, and not begun.
    Wanted {
        asker: Asker,
        program: PathBuf,
    },
    /// The new program reads the state in a child.
    Checking {
        asker: Asker,
        program: PathBuf,
        check: Check,
        shapes: BTreeSet<u32>,
    },
    /// It can go on from these shapes. What cannot be handed over comes to rest.
    Quieting {
        asker: Asker,
        program: PathBuf,
        shapes: BTreeSet<u32>,
        until_ms: u64,
    },
}

impl Upgrade {
    pub fn asker(&self) -> Option<Asker> {
        match self {
            Upgrade::None => None,
            Upgrade::Wanted { asker, .. } | Upgrade::Checking { asker, .. } | Upgrade::Quieting { asker, .. } => {
                Some(*asker)
            }
        }
    }

    pub fn next_deadline(&self) -> Option<u64> {
        match self {
            Upgrade::None | Upgrade::Wanted { .. } => None,
            Upgrade::Checking { check, .. } => Some(check.until_ms),
            Upgrade::Quieting { until_ms, .. } => Some(*until_ms),
        }
    }

    pub fn is_quieting(&self) -> bool {
        matches!(self, Upgrade::Quieting { .. })
    }
}

/// The state as the new program gets it.
pub struct Sealed {
    pub memory: Memory,
    pub shapes: BTreeSet<u32>,
    /// Open descriptors that are named in it.
    pub descriptors: Vec<i32>,
}
