//! Signals to a container, by the pid its launcher reported. PURE but for the kill itself and one look at `/proc`.
//!
//! Both kinds take a plain kill(2): runsc's sandbox process passes SIGTERM on to the program, and SIGKILL of it ends
//! everything inside. A native container's pid is the init of its pid namespace, and the kernel drops a signal that
//! an init has no handler for. Elsewhere the same program would have died of it, so here it gets the one that works.

use crate::model::instance::StopSignal;
use crate::sandbox::container::plan::RuntimeKind;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// `pid` must not have been reaped yet.
pub fn send(kind: RuntimeKind, pid: i32, signal: StopSignal) -> nix::Result<()> {
    let signal = match (signal, kind) {
        (StopSignal::Kill, _) => Signal::SIGKILL,
        (StopSignal::Term, RuntimeKind::Gvisor | RuntimeKind::Plain) => Signal::SIGTERM,
        (StopSignal::Term, RuntimeKind::Native) => {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            if leaves_to_default(&status, Signal::SIGTERM) { Signal::SIGKILL } else { Signal::SIGTERM }
        }
    };
    kill(Pid::from_raw(pid), signal)
}

/// Neither caught nor ignored, by the text of `/proc/PID/status`. In doubt: no.
fn leaves_to_default(status: &str, signal: Signal) -> bool {
    let bit = 1_u64 << (signal as i32 - 1);
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        u64::from_str_radix(line.trim(), 16).ok()
    };
    match (mask("SigIgn:"), mask("SigCgt:")) {
        (Some(ignored), Some(caught)) => (ignored | caught) & bit == 0,
        (_, _) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_killed_only_if_it_leaves_sigterm_to_the_kernel() {
        let status = |ignored: &str, caught: &str| {
            format!("Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t{ignored}\nSigCgt:\t{caught}\nCapInh:\t0\n")
        };
        let default = |ignored, caught| leaves_to_default(&status(ignored, caught), Signal::SIGTERM);
        assert!(default("0000000001001000", "0000000000000002"));
        assert!(!default("0000000000000000", "0000000180004202"));
        assert!(!default("0000000000004000", "0000000000000000"));
        assert!(!leaves_to_default("", Signal::SIGTERM));
    }
}
