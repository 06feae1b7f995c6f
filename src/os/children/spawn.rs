//! Starts children that are this same binary: launchers, pulls, probes, clean-ups. Whatever takes time (mounts, a runtime's
//! start, the removal of a container) happens in one of them, and the loop only sees it end. Never waits for any.

use crate::os::instances::pipes::FarEnds;
use crate::sandbox::container::launch;
use crate::sandbox::container::plan::{LaunchPlan, Report};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::unistd::pipe2;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Starts a launcher. It gets the container's ends of the pipes as its own stdio, and a socket for its one report, over
/// which it is told when to begin.
pub fn launcher(plan: &LaunchPlan, far: FarEnds) -> io::Result<(i32, OwnedFd)> {
    let (report, report_far) = socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?;
    fcntl(&report, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    let mut launcher = launch::command(plan, report_far)?;
    let child = launcher.command.stdin(far.stdin).stdout(far.stdout).stderr(far.stderr).spawn()?;
    Ok((child.id() as i32, report))
}

/// It is this launcher's turn. One that has ended meanwhile will be seen to.
pub fn give_the_word(report: &OwnedFd) {
    _ = nix::unistd::write(report, b"!");
}

/// What a launcher that has ended had to say. The report is smaller than what a socket holds, so it is all there.
pub fn read_report(report: OwnedFd) -> Option<Report> {
    let mut text = Vec::new();
    // WouldBlock: somebody still holds the other end, but what was said is in `text`.
    _ = File::from(report).take(crate::limits::REPORT_MAX as u64).read_to_end(&mut text);
    serde_json::from_slice(&text).ok()
}

/// This binary with other arguments, and nothing on its stdio but our stderr.
pub fn own_child(args: &[OsString]) -> io::Result<i32> {
    let mut command = this_binary();
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null());
    Ok(command.spawn()?.id() as i32)
}

/// As `own_child`, with its stdout on a pipe; our end does not block.
pub fn own_child_heard(args: &[OsString]) -> io::Result<(i32, OwnedFd)> {
    let (ours, theirs) = pipe2(OFlag::O_CLOEXEC)?;
    fcntl(&ours, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    let mut command = this_binary();
    command.args(args).stdin(Stdio::null()).stdout(theirs);
    Ok((command.spawn()?.id() as i32, ours))
}

fn this_binary() -> Command {
    let mut command = Command::new(crate::sandbox::this_program());
    // A terminal's Ctrl-C is for the daemon, which then ends its children in order.
    command.arg0("stdiod").process_group(0);
    command
}
