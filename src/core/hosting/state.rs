//! Where a peer's life is: the states of `lifecycle.rs`, and what each of them means to everybody else. A link to an external
//! server is told in the same states. Only data and questions; what leads from one to the next is `lifecycle.rs`.

use crate::ids::InstanceId;
use crate::model::status::Status;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// No instance, and none is coming.
    Down,
    /// Its image is on its way, or being looked for.
    Pulling,
    /// An instance of its own fetches its packages.
    Installing {
        instance: InstanceId,
    },
    /// They could not be fetched; the next attempt is at `until_ms`.
    InstallDue {
        until_ms: u64,
    },
    /// May start as soon as there is a slot.
    Due,
    /// The runtime is at work.
    Launching {
        instance: InstanceId,
    },
    /// It runs; `initialize` is on its way.
    Greeting {
        instance: InstanceId,
    },
    Ready {
        instance: InstanceId,
        since_ms: u64,
    },
    /// It runs and answers nothing, not even a probe. Anything it says makes it `Ready` again, since the same time.
    Unresponsive {
        instance: InstanceId,
        since_ms: u64,
    },
    /// Its stdout is closed, so it can answer nothing; it has a moment to exit by itself.
    Mute {
        instance: InstanceId,
        ready_since_ms: Option<u64>,
    },
    /// It has been told to go, or will be as soon as it is there to be told.
    Stopping {
        instance: InstanceId,
        launched: bool,
        then: Then,
        killed: bool,
    },
    /// The next start is at `until_ms`.
    Waiting {
        until_ms: u64,
        looping: bool,
    },
    /// Nobody used it, and it was ended, or is not started before somebody does. The next request starts it.
    Asleep {
        since_ms: u64,
    },
    /// Given up; only a hand can start it again.
    Failed,
}

impl State {
    pub fn instance(&self) -> Option<InstanceId> {
        match *self {
            State::Installing { instance }
            | State::Launching { instance }
            | State::Greeting { instance }
            | State::Ready { instance, .. }
            | State::Unresponsive { instance, .. }
            | State::Mute { instance, .. }
            | State::Stopping { instance, .. } => Some(instance),
            State::Down
            | State::Pulling
            | State::InstallDue { .. }
            | State::Due
            | State::Waiting { .. }
            | State::Asleep { .. }
            | State::Failed => None,
        }
    }

    /// The instance that calls go to. One that is silent gets them too: it may only be slow.
    pub fn ready_instance(&self) -> Option<InstanceId> {
        match *self {
            State::Ready { instance, .. } | State::Unresponsive { instance, .. } => Some(instance),
            State::Down
            | State::Pulling
            | State::Installing { .. }
            | State::InstallDue { .. }
            | State::Due
            | State::Launching { .. }
            | State::Greeting { .. }
            | State::Mute { .. }
            | State::Stopping { .. }
            | State::Waiting { .. }
            | State::Asleep { .. }
            | State::Failed => None,
        }
    }

    /// At rest, or on its way there: whatever is asked of it is asked of the next instance.
    pub fn is_resting(&self) -> bool {
        matches!(self, State::Asleep { .. } | State::Stopping { then: Then::Sleep, .. })
    }

    pub fn status(&self) -> Status {
        match *self {
            State::Down => Status::Stopped,
            State::Installing { .. } | State::InstallDue { .. } => Status::Installing,
            State::Pulling | State::Due | State::Launching { .. } | State::Greeting { .. } => Status::Starting,
            State::Ready { .. } => Status::Ready,
            State::Unresponsive { .. } => Status::Unresponsive,
            State::Mute { .. } => Status::Restarting,
            State::Stopping { then, .. } => match then {
                Then::Down | Then::Sleep => Status::Stopping,
                Then::Wake => Status::Starting,
                Then::Install => Status::Installing,
                Then::Restart | Then::Crash { .. } => Status::Restarting,
            },
            State::Waiting { looping, .. } => match looping {
                true => Status::Backoff,
                false => Status::Restarting,
            },
            State::Asleep { .. } => Status::Asleep,
            State::Failed => Status::Failed,
        }
    }
}

/// What follows a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Then {
    Down,
    /// Nobody used it.
    Sleep,
    /// As above, and somebody has come meanwhile.
    Wake,
    /// A restart by hand.
    Restart,
    /// Its packages were not here in time: the next attempt, by the schedule, to fetch the rest of them.
    Install,
    /// It was put down for not answering: its death counts as a crash, after so long in `ready`.
    Crash {
        ready_for_ms: Option<u64>,
    },
}
