//! Instances of hosted servers: their lives, the schedule of restarts, and images they wait for.
//! Owns whose each instance is, and who may start when. Invariant: no more instances hold a start slot than may.

pub mod backoff;
pub mod idle;
#[cfg(debug_assertions)]
mod invariants;
pub mod lifecycle;
pub mod pulls;
pub mod state;

use crate::core::hosting::pulls::Pulls;
use crate::ids::{IdMap, IdSet, InstanceId, PeerId};
use crate::limits::{RESTARTS_AT_ONCE, STARTS_AT_ONCE};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

#[derive(Default, Serialize, Deserialize)]
pub(in crate::core) struct Hosting {
    instances: IdMap<InstanceId, PeerId>,
    /// How many instances there have been.
    lives: u64,
    /// Peers that wait for a start slot.
    start_queue: VecDeque<PeerId>,
    /// As above, for those that ran and died.
    restart_queue: VecDeque<PeerId>,
    /// The instances that hold a slot.
    #[serde(serialize_with = "crate::model::frozen::sorted")]
    launching: IdSet<InstanceId>,
    pulls: Pulls,
}

impl Hosting {
    /// Never given twice.
    pub fn mint_instance(&mut self) -> InstanceId {
        self.lives += 1;
        InstanceId(self.lives)
    }

    /// Whose instance it is.
    pub fn peer_of(&self, instance: InstanceId) -> Option<PeerId> {
        self.instances.get(&instance).copied()
    }

    /// An instance that is carried by a connection, and takes no slot.
    pub fn connected(&mut self, instance: InstanceId, id: PeerId) {
        self.instances.insert(instance, id);
    }

    /// It holds a slot until it is launched, or not.
    pub fn launching(&mut self, instance: InstanceId, id: PeerId) {
        self.instances.insert(instance, id);
        self.launching.insert(instance);
    }

    pub fn launched(&mut self, instance: InstanceId) {
        self.launching.remove(&instance);
    }

    /// It is over. True: it was there.
    pub fn ended(&mut self, instance: InstanceId) -> bool {
        self.launching.remove(&instance);
        self.instances.remove(&instance).is_some()
    }

    /// A peer waits for a slot.
    pub fn queue(&mut self, id: PeerId, restart: bool) {
        match restart {
            true => self.restart_queue.push_back(id),
            false => self.start_queue.push_back(id),
        }
    }

    /// The next that has waited, if a slot is free for it.
    pub fn next_slot(&mut self) -> Option<PeerId> {
        let launching = self.launching.len();
        let restart = self.restart_queue.front().filter(|_| launching < RESTARTS_AT_ONCE).is_some();
        match (restart, launching < STARTS_AT_ONCE) {
            (true, _) => self.restart_queue.pop_front(),
            (false, true) => self.start_queue.pop_front(),
            (false, false) => None,
        }
    }
}
