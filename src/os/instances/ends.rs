//! How an instance is made to end: by the signals that the core wants, or because it takes what others need. Only sends them; that
//! it has ended is seen by the reaper. Invariant: nobody is signalled while it is frozen.

use crate::core::contract::Now;
use crate::ids::InstanceId;
use crate::limits::STDIN_BEHIND_MAX;
use crate::model::instance::StopSignal;
use crate::os::instances::{Instances, Process};
use crate::sandbox::container::signal;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

impl Instances {
    pub fn signal(&mut self, instance: InstanceId, signal: StopSignal) {
        let Some(hosted) = self.map.get_mut(&instance) else { return };
        // Frozen, it would neither hear of it nor end.
        hosted.doze.end(instance, &mut self.woken);
        let sent = match (&hosted.process, signal) {
            (Process::Dead { .. } | Process::Ended, _) | (Process::Launching { .. }, StopSignal::Term) => Ok(()),
            // Its end without a report is a launch that failed; the clean-up finds whatever it had begun.
            (Process::Launching { pid, .. }, StopSignal::Kill) => kill(Pid::from_raw(*pid), Signal::SIGKILL),
            (Process::Running { pid }, signal) => signal::send(hosted.kind, *pid, signal),
        };
        // ESRCH: it has just ended, and the reaper will say so.
        if let Err(e) = sent
            && e != Errno::ESRCH
        {
            log::warn!("instance={instance} cannot be signalled: {e}");
        }
    }

    /// It writes, and the disk is nearly full. Killed, it is a crash like any other; the launcher of the next one looks
    /// whether there is room again.
    pub fn end_greedy(&mut self, instance: InstanceId, free_bytes: u64) {
        log::error!("instance={instance} is killed: it writes, and {free_bytes} bytes of the disk are left");
        self.signal(instance, StopSignal::Kill);
    }

    /// There is no room for what waits for servers. The one that holds most of it has had its time to read; killed, it is a
    /// crash like any other.
    pub(super) fn end_furthest_behind(&mut self, now: Now) {
        let most = self.map.iter().max_by_key(|(_, hosted)| hosted.pipes.share.unread());
        let Some((&instance, hosted)) = most else { return };
        if hosted.pipes.share.behind_ms(now.mono_ms) >= STDIN_BEHIND_MAX.as_millis() as u64 {
            let unread = hosted.pipes.share.unread();
            log::error!("instance={instance} is killed: {unread} bytes wait for it, and there is no room for more");
            self.signal(instance, StopSignal::Kill);
        }
    }
}
