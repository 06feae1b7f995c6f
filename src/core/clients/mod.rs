//! Who waits for what: clients that are parked, and those who watch all servers. Owns both, and gives each client that waits its
//! one answer; never decides what that is. Invariant: a client waits for one thing.

pub mod asks;
#[cfg(debug_assertions)]
mod invariants;
pub mod log_ring;
pub mod news;
pub mod parked;
pub mod waiting;

use crate::core::clients::news::Watcher;
use crate::core::clients::parked::Parked;
use serde::{Deserialize, Serialize};

#[derive(Default, Serialize, Deserialize)]
pub(in crate::core) struct Clients {
    parked: Parked,
    watchers: Vec<Watcher>,
}

impl Clients {
    /// Nobody waits for an answer.
    pub fn is_idle(&self) -> bool {
        self.parked.len() == self.watchers.len()
    }
}
