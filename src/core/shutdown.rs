//! The life of the daemon, phase by phase. At its end calls in flight may finish, every container is told to stop, what is known is
//! written, and then it leaves. A second signal skips the patience. Owns no more than which phase it is: what a step asks of the
//! rooms is done by `Core`. Invariant: each phase of the end ends by itself or by its deadline, so a shutdown always ends.

use crate::core::effects::{Effects, Timer};
use crate::core::hosting::lifecycle::Event;
use crate::limits::{DRAIN_GRACE, STORE_WAIT};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::core) enum Phase {
    Booting {
        swept: bool,
    },
    Running,
    /// Calls in flight may finish; nothing new is taken.
    Draining,
    /// Every server has been told to stop.
    Stopping,
    /// All are down; what is known is being written.
    Flushing,
    Over,
}

/// What the next phase asks of the rooms.
#[derive(Debug, PartialEq)]
pub(in crate::core) enum Step {
    Nothing,
    /// Calls that wait are looked at: they will not be sent.
    ReviewQueues,
    /// Every peer is told.
    Tell(Event),
    Write,
    Leave,
}

impl Phase {
    /// Does this daemon still take new connections?
    pub fn is_accepting(self) -> bool {
        matches!(self, Phase::Booting { .. } | Phase::Running)
    }

    pub fn shutdown_asked(&mut self, effects: &mut Effects) -> Step {
        match self {
            Phase::Booting { .. } | Phase::Running => {
                *self = Phase::Draining;
                effects.deadlines.set(Timer::Shutdown, effects.now.mono_ms + DRAIN_GRACE.as_millis() as u64);
                Step::ReviewQueues
            }
            Phase::Draining | Phase::Stopping => {
                log::warn!("second signal: killing every container now");
                *self = Phase::Stopping;
                Step::Tell(Event::KillNow)
            }
            Phase::Flushing | Phase::Over => self.leave(),
        }
    }

    /// Another daemon has the database, and starts what this one runs, or has done so: nothing may go on here, not even until
    /// the calls in flight have ended. Nothing is written any more either, and what had to be is the other's to know.
    pub fn store_denied(&mut self) -> Step {
        match self {
            Phase::Booting { .. } | Phase::Running | Phase::Draining | Phase::Stopping => {
                *self = Phase::Stopping;
                Step::Tell(Event::KillNow)
            }
            Phase::Flushing => self.leave(),
            Phase::Over => Step::Nothing,
        }
    }

    /// The patience of the present phase is over, or it has nothing left to wait for.
    pub fn elapsed(&mut self) -> Step {
        match self {
            Phase::Draining => {
                *self = Phase::Stopping;
                Step::Tell(Event::Shutdown)
            }
            Phase::Flushing => self.leave(),
            Phase::Booting { .. } | Phase::Running | Phase::Stopping | Phase::Over => Step::Nothing,
        }
    }

    /// Nothing runs any more.
    pub fn stopped(&mut self, effects: &mut Effects) -> Step {
        *self = Phase::Flushing;
        effects.deadlines.set(Timer::Shutdown, effects.now.mono_ms + STORE_WAIT.as_millis() as u64);
        Step::Write
    }

    pub fn leave(&mut self) -> Step {
        match std::mem::replace(self, Phase::Over) {
            Phase::Over => Step::Nothing,
            _other => Step::Leave,
        }
    }
}
