//! What carries a peer's conversation, and how it lives: a sandbox that the daemon hosts, or a link to an external server. Both
//! are told the same events and want the same actions done; nobody else asks which of them it is. Invariant: at most one
//! instance is current, and `state` says which.

use crate::core::hosting::lifecycle::{Action, Event, Lifecycle, State};
use crate::core::links::external::ExternalLife;
use crate::ids::InstanceId;
use crate::model::definition::Definition;
use crate::model::status::Status;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
pub enum Life {
    Hosted(Lifecycle),
    External(Box<ExternalLife>),
}

impl Life {
    pub fn state(&self) -> &State {
        match self {
            Life::Hosted(life) => life.state(),
            Life::External(life) => life.state(),
        }
    }

    pub fn instance(&self) -> Option<InstanceId> {
        self.state().instance()
    }

    /// The instance that calls go to.
    pub fn ready_instance(&self) -> Option<InstanceId> {
        self.state().ready_instance()
    }

    pub fn status(&self) -> Status {
        self.state().status()
    }

    /// How long until the next start, if one is certain.
    pub fn next_start_in(&self, def: &Definition, now_ms: u64) -> Option<u64> {
        match self {
            Life::Hosted(life) => life.next_start_in(def, now_ms),
            Life::External(life) => life.next_attempt_at_ms().map(|at_ms| at_ms.saturating_sub(now_ms)),
        }
    }

    /// A hosted server crashes in a loop; an external one has its circuit breaker instead.
    pub fn crash_level(&self) -> u32 {
        match self {
            Life::Hosted(life) => life.crash_level(),
            Life::External(_) => 0,
        }
    }

    pub fn handle(&mut self, event: Event, def: &Definition, now_ms: u64) -> Vec<Action> {
        match self {
            Life::Hosted(life) => life.handle(event, def, now_ms),
            Life::External(life) => life.handle(event, now_ms),
        }
    }

    /// Would a call make it come up?
    pub fn begins_with_use(&self) -> bool {
        match self {
            Life::Hosted(_) => false,
            Life::External(life) => life.begins_with_use(),
        }
    }
}
