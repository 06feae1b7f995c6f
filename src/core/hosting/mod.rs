//! Instances of hosted servers: their lives, the schedule of restarts, images they wait for, and peers of their own for some clients.

pub mod backoff;
pub mod installs;
pub mod lifecycle;
pub mod pulls;
pub mod session_peers;
pub mod state;
pub mod stateless_peer;

use crate::core::hosting::pulls::Pulls;
use crate::ids::{IdMap, IdSet, InstanceId, PeerId};
use std::collections::VecDeque;

#[derive(Default)]
pub(in crate::core) struct Hosting {
    pub instances: IdMap<InstanceId, PeerId>,
    /// How many instances there have been.
    pub lives: u64,
    /// Peers that wait for a start slot.
    pub start_queue: VecDeque<PeerId>,
    /// As above, for those that ran and died.
    pub restart_queue: VecDeque<PeerId>,
    /// The instances that hold a slot.
    pub launching: IdSet<InstanceId>,
    pub pulls: Pulls,
}

impl Hosting {
    /// Never given twice.
    pub fn mint_instance(&mut self) -> InstanceId {
        self.lives += 1;
        InstanceId(self.lives)
    }
}
