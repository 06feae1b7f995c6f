//! What the loop says of itself when it begins, when it is asked, and how it ends.

use super::{Exit, Reactor};
use crate::core::contract::Now;

impl Reactor {
    pub(super) fn announce(&mut self, now: Now) {
        if !self.announced && self.core.is_running() {
            self.announced = true;
            for listener in &self.listeners {
                log::info!("listening on {}", listener.address());
            }
            self.notify.ready(&self.core.status_line(), now.mono_ms);
        }
    }

    /// The core is done. The last answers go out, the clean-ups end, and the database stops after its last write.
    pub(super) fn follow_exit(&mut self, now: Now) {
        if self.exit == Exit::Leaving
            && self.instances.is_at_rest()
            && self.links.is_at_rest()
            && self.pulls.is_at_rest()
            && self.probes.is_idle()
            && self.held_answers.is_empty()
            && (self.clients.unanswered() == 0 || self.leave_by_ms.is_none_or(|at| at <= now.mono_ms))
            && self.database.stop(&mut self.children, now)
        {
            self.exit = Exit::Over;
        }
    }

    /// For SIGUSR1: everything an operator may want to know, and nothing that is secret.
    pub(super) fn summarise(&self) {
        log::info!("summary: {}", self.core.status_line());
        let fds = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        let (clients, children) = (self.clients.len(), self.children.len());
        let (dropped, held_back) = (self.logs.dropped(), self.instances.held_back());
        log::info!("summary: {clients} clients, {children} children, {fds} descriptors, {dropped} log entries dropped");
        log::info!("summary: {held_back} outputs of servers are held back");
        for line in self.shares.summary().into_iter().chain(self.core.summary()) {
            log::info!("summary: {line}");
        }
    }
}
