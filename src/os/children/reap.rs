//! The table of children: who each pid is, and how it ended. The reactor owns it; whoever starts a child writes it down here.
//! The daemon is subreaper and reaps everything it inherits, also what it never started (a sandbox's helpers). A container
//! may die before its launcher has said which pid it is; such exits are kept until the last launcher is done.

use crate::ids::{InstanceId, PullId};
use crate::model::instance::ExitCause;
use crate::os::children::chores::Chore;
use nix::errno::Errno;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    Launcher(InstanceId),
    Container(InstanceId),
    /// Removes what is left of an instance, or of a server.
    Chore(Chore),
    /// Removes what was in volumes that were taken away.
    Emptying,
    Pull(PullId),
    Sweep,
    /// Of what another daemon has left, whose database this was.
    SweepBefore,
    /// A trivial container of one provider.
    Probe,
    InitDb,
    Postgres,
    /// Another program, which reads the daemon's state.
    Check,
}

/// How much nicer than the loop its launchers are.
const LOOP_NICENESS: i32 = 10;

#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Children {
    /// The niceness that the loop was started with, while it has a better one.
    ordinary: Option<i32>,
    /// This thread goes before everybody else just now.
    hurries: bool,
    roles: HashMap<i32, Role>,
    /// Launchers whose report has not been dealt with.
    unsettled: usize,
    /// Exits of pids that nobody has claimed yet.
    unclaimed: HashMap<i32, ExitCause>,
}

impl Children {
    /// Puts this thread before the launchers, as long as there are any: fifty of them at once must not keep the loop from
    /// the fifty-first. Not for longer: a thread of a better niceness takes the CPU from whoever has just written to it,
    /// in the middle of the write, and every call would pay for two more switches. Without the right to do so everything
    /// is as it was.
    fn rise(&mut self) {
        // SAFETY: both take plain numbers; 0 is this thread.
        let ordinary = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        if unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, ordinary - LOOP_NICENESS) } == 0 {
            self.ordinary = Some(ordinary);
        }
    }

    fn sink(&mut self) {
        if let Some(ordinary) = self.ordinary.take() {
            // SAFETY: as above.
            unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, ordinary) };
        }
    }

    /// Puts this thread before everybody else until `calm`, which must not be far: for as many deaths as have come, and no
    /// longer. The kernel takes dead sandboxes down on the very CPUs on which the next ones are to be launched, and with
    /// each of fifty launches the loop waits for its child's exec; niceness does not help against the kernel's threads, nor
    /// against other sessions. Without the right to do so everything is as it was.
    pub fn hurry(&mut self) {
        // An operator's choice of another policy stays.
        // SAFETY: takes a plain number.
        let ordinary = unsafe { libc::sched_getscheduler(0) } == libc::SCHED_OTHER;
        self.hurries = ordinary && schedule(0, libc::SCHED_RR, 1);
    }

    pub fn calm(&mut self) {
        if std::mem::take(&mut self.hurries) {
            schedule(0, libc::SCHED_OTHER, 0);
        }
    }

    pub fn add(&mut self, pid: i32, role: Role) {
        if let Some(ordinary) = self.ordinary {
            // SAFETY: takes plain numbers. It is our child and not reaped yet, so the pid is nobody else's.
            unsafe { libc::setpriority(libc::PRIO_PROCESS, pid as libc::id_t, ordinary) };
        }
        // What it inherited was for its exec; no launcher has the word yet, so no container has any of it.
        if self.hurries {
            schedule(pid, libc::SCHED_OTHER, 0);
        }
        if matches!(role, Role::Launcher(_)) {
            if self.unsettled == 0 {
                self.rise();
            }
            self.unsettled += 1;
        }
        self.roles.insert(pid, role);
    }

    /// A launcher says that this pid is its container. If it is dead already, here is how it ended.
    pub fn claim(&mut self, pid: i32, instance: InstanceId) -> Option<ExitCause> {
        match self.unclaimed.remove(&pid) {
            Some(cause) => Some(cause),
            None => {
                self.roles.insert(pid, Role::Container(instance));
                None
            }
        }
    }

    /// Everyone who has ended since the last call. Ours come with their role.
    pub fn reap(&mut self) -> Vec<(i32, Role, ExitCause)> {
        let mut ended = Vec::new();
        loop {
            let mut status = 0;
            // By hand: nix knows no real-time signals, and a child that one of them ended would be reaped unseen.
            // SAFETY: takes a pointer to a live int.
            let pid = match unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) } {
                pid @ 1.. => pid,
                0 => break,
                _ if Errno::last() == Errno::EINTR => continue,
                _ => break,
            };
            let cause = if libc::WIFEXITED(status) {
                ExitCause::Code(libc::WEXITSTATUS(status))
            } else if libc::WIFSIGNALED(status) {
                ExitCause::Signal(libc::WTERMSIG(status))
            } else {
                continue;
            };
            match self.roles.remove(&pid) {
                Some(role) => ended.push((pid, role, cause)),
                None if self.unsettled > 0 => _ = self.unclaimed.insert(pid, cause),
                None => {}
            }
        }
        ended
    }

    /// A launcher's report has been dealt with; after the last one no unclaimed pid can be anybody's.
    pub fn settle(&mut self) {
        self.unsettled -= 1;
        if self.unsettled == 0 {
            self.unclaimed.clear();
            self.sink();
        }
    }

    pub fn count(&self, role: &Role) -> usize {
        self.roles.values().filter(|other| *other == role).count()
    }

    pub fn len(&self) -> usize {
        self.roles.len()
    }

    pub fn is_empty(&self) -> bool {
        self.roles.is_empty()
    }

    pub fn pid_of(&self, role: &Role) -> Option<i32> {
        self.roles.iter().find(|(_, other)| *other == role).map(|(pid, _)| *pid)
    }
}

/// True: so it is. 0 is this thread; any other pid is a child of ours that is not reaped yet, so it is nobody else's.
fn schedule(pid: i32, policy: libc::c_int, priority: libc::c_int) -> bool {
    let wanted = libc::sched_param { sched_priority: priority };
    // SAFETY: takes plain numbers, and a struct that it only reads.
    unsafe { libc::sched_setscheduler(pid, policy, &wanted) == 0 }
}
