//! What must be true of instances and their slots, whatever has happened; only debug builds look.

use crate::core::hosting::Hosting;
use crate::core::hosting::lifecycle::State;
use crate::core::peers::Peers;
use crate::core::peers::peer::Peer;
use crate::limits::{RESTARTS_AT_ONCE, STARTS_AT_ONCE};

impl Hosting {
    /// Every instance is what its peer lives in now, only instances hold slots, and whoever is due waits for one.
    pub fn check(&self, peers: &Peers) {
        for (instance, peer) in &self.instances {
            let current = peers.known.get(peer).and_then(|peer| peer.life.instance());
            assert_eq!(current, Some(*instance), "{instance} is not what {peer:?} lives in");
        }
        for instance in &self.launching {
            assert!(self.instances.contains_key(instance), "{instance} is gone and holds a slot");
        }
        assert!(self.launching.len() <= RESTARTS_AT_ONCE.max(STARTS_AT_ONCE), "more hold a slot than may");
        peers.known.values().for_each(|peer| self.peer_is_known(peer));
    }

    fn peer_is_known(&self, peer: &Peer) {
        if let Some(instance) = peer.life.instance() {
            assert_eq!(self.peer_of(instance), Some(peer.id), "{:?} lives in an instance that is gone", peer.id);
        }
        if *peer.life.state() == State::Due {
            let queued = self.start_queue.contains(&peer.id) || self.restart_queue.contains(&peer.id);
            assert!(queued, "{:?} is due to start, and waits for no slot", peer.id);
        }
    }
}
