//! The new program reads the state before it is trusted with it: in a child, which says yes or why not. Owns that child and
//! what it says, within a bound of time and bytes; never waits for it.

use crate::limits::{UPGRADE_CHECK_SAID_MAX, UPGRADE_CHECK_WAIT};
use crate::model::instance::ExitCause;
use crate::os::upgrade::state::{self, Memory};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, pipe2};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Hidden: the state is its stdin, and a `Reading` its stdout.
pub const SUBCOMMAND: &str = "check-state";

/// What the new program says of the state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    pub version: String,
    /// Why it cannot go on from it.
    pub refused: Option<String>,
}

pub struct Check {
    pub pid: i32,
    pub until_ms: u64,
    said: OwnedFd,
}

impl Check {
    pub fn begin(program: &Path, state: &Memory, now_ms: u64) -> io::Result<Check> {
        is_ours(program)?;
        let (said, far) = pipe2(OFlag::O_CLOEXEC)?;
        fcntl(&said, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let mut command = Command::new(program);
        command.arg0("stdiod").arg(SUBCOMMAND).process_group(0);
        command.stdin(state.file().try_clone()?).stdout(far).stderr(Stdio::null());
        let pid = command.spawn()?.id() as i32;
        Ok(Check { pid, until_ms: now_ms + UPGRADE_CHECK_WAIT.as_millis() as u64, said })
    }

    pub fn kill(&self) {
        // ESRCH: it has just ended, and the reaper will say so.
        _ = kill(Pid::from_raw(self.pid), Signal::SIGKILL);
    }

    /// It has ended. The version that it has, or why it must not take over.
    pub fn ended(self, cause: ExitCause) -> Result<String, String> {
        let mut said = Vec::new();
        // WouldBlock: somebody else has its end of the pipe, but what it said is here.
        _ = File::from(self.said).take(UPGRADE_CHECK_SAID_MAX as u64).read_to_end(&mut said);
        match (cause, serde_json::from_slice::<Reading>(&said)) {
            (ExitCause::Code(0), Ok(Reading { version, refused: None })) => Ok(version),
            (_, Ok(Reading { version, refused: Some(why) })) => Err(format!("version {version} cannot go on: {why}")),
            (ExitCause::Signal(signal), _) => Err(format!("it was killed by signal {signal} when it read the state")),
            (ExitCause::Code(code), _) => Err(format!("it does not read the state (exit status {code})")),
        }
    }
}

/// It will run as the daemon, with all that the daemon knows: nobody else may have written it.
fn is_ours(program: &Path) -> io::Result<()> {
    let file = std::fs::metadata(program)?;
    let owner_is_trusted = file.uid() == 0 || file.uid() == nix::unistd::geteuid().as_raw();
    match owner_is_trusted && file.mode() & 0o022 == 0 {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::PermissionDenied, "others may write to it")),
    }
}

/// If the arguments are those of such a child: its life, and its exit code.
pub fn child(args: &[OsString]) -> Option<i32> {
    let [only] = args else { return None };
    (only == SUBCOMMAND).then(|| {
        let stdin = io::stdin();
        let read = nix::unistd::dup(&stdin).map_err(|e| e.to_string()).and_then(|state| state::read(state.into()));
        let refused = read.err();
        let code = i32::from(refused.is_some());
        let reading = Reading { version: env!("CARGO_PKG_VERSION").to_string(), refused };
        let text = serde_json::to_vec(&reading).expect("strings into memory");
        match io::stdout().write_all(&text) {
            Ok(()) => code,
            Err(_) => 1,
        }
    })
}
