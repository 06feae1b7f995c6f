//! The end of the daemon, phase by phase: calls in flight may finish, every container is told to stop, what is known is
//! written, and then it leaves. A second signal skips the patience. Invariant: each phase ends by itself or by its
//! deadline, so a shutdown always ends.

use crate::core::contract::Output;
use crate::core::effects::Timer;
use crate::core::hosting::lifecycle::Event;
use crate::core::{Core, Phase};
use crate::limits::{DRAIN_GRACE, STORE_WAIT};

impl Core {
    pub(in crate::core) fn shutdown_asked(&mut self) {
        match self.phase {
            Phase::Booting { .. } | Phase::Running => {
                log::info!("shutting down: no new calls, {} in flight or waiting", self.peers.calls.len());
                self.phase = Phase::Draining;
                self.effects.deadlines.set(Timer::Shutdown, self.effects.now.mono_ms + DRAIN_GRACE.as_millis() as u64);
                for id in self.peer_ids() {
                    self.review_queue(id);
                }
            }
            Phase::Draining | Phase::Stopping => {
                log::warn!("second signal: killing every container now");
                self.phase = Phase::Stopping;
                for id in self.peer_ids() {
                    self.advance(id, Event::KillNow);
                }
            }
            Phase::Flushing | Phase::Over => self.leave(),
        }
    }

    /// Another daemon has the database, and starts what this one runs, or has done so: nothing may go on here, not even until
    /// the calls in flight have ended. Nothing is written any more either, and what had to be is the other's to know.
    pub(in crate::core) fn store_denied(&mut self, why: &str) {
        log::error!("this daemon ends: {why}");
        self.servers.outbox.lost();
        match self.phase {
            Phase::Booting { .. } | Phase::Running | Phase::Draining | Phase::Stopping => {
                self.phase = Phase::Stopping;
                for id in self.peer_ids() {
                    self.advance(id, Event::KillNow);
                }
            }
            Phase::Flushing => self.leave(),
            Phase::Over => {}
        }
    }

    /// Moves the shutdown on as soon as its present phase has nothing left to wait for.
    pub(in crate::core) fn follow_shutdown(&mut self) {
        if self.phase == Phase::Draining && self.peers.known.values().all(|peer| peer.lane.in_flight().is_empty()) {
            self.shutdown_elapsed();
        }
        if self.phase == Phase::Stopping && self.peers.known.values().all(|peer| peer.life.instance().is_none()) {
            self.phase = Phase::Flushing;
            self.effects.deadlines.set(Timer::Shutdown, self.effects.now.mono_ms + STORE_WAIT.as_millis() as u64);
            self.flush();
        }
        let is_written = self.servers.outbox.is_clean() && self.projects.records.is_empty();
        if self.phase == Phase::Flushing && (is_written || !self.servers.outbox.available()) {
            self.leave();
        }
    }

    pub(in crate::core) fn shutdown_elapsed(&mut self) {
        match self.phase {
            Phase::Draining => {
                self.phase = Phase::Stopping;
                for id in self.peer_ids() {
                    self.advance(id, Event::Shutdown);
                }
            }
            Phase::Flushing => self.leave(),
            Phase::Booting { .. } | Phase::Running | Phase::Stopping | Phase::Over => {}
        }
    }

    fn leave(&mut self) {
        if self.phase != Phase::Over {
            self.phase = Phase::Over;
            self.servers.leave_decisions(&mut self.effects);
            self.settle();
            self.effects.outputs.push_back(Output::Exit);
        }
    }
}
