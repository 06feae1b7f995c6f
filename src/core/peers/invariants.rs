//! What must be true of peers and their calls, whatever has happened; only debug builds look.

use crate::core::effects::{Effects, Timer};
use crate::core::peers::Peers;
use crate::core::peers::calls::{Call, Stage};
use crate::core::peers::peer::Peer;
use crate::ids::CallId;

impl Peers {
    pub fn check(&self, effects: &Effects) {
        self.calls.iter().for_each(|(id, call)| self.call_is_whole(*id, call, effects));
        self.known.values().for_each(|peer| self.peer_is_whole(peer));
    }

    /// It has one peer, one place in that peer's lane, and one deadline.
    fn call_is_whole(&self, id: CallId, call: &Call, effects: &Effects) {
        let peer = self.known.get(&call.peer);
        let peer = peer.unwrap_or_else(|| panic!("call {id} is of a peer that is gone"));
        assert_eq!(peer.server, call.server, "call {id} is of another server than its peer");
        let flights = peer.lane.in_flight().iter().filter(|other| **other == id).count();
        let places = peer.lane.queued().iter().filter(|other| **other == id).count();
        match &call.stage {
            Stage::Sent { instance } => {
                assert_eq!((flights, places), (1, 0), "call {id} was sent");
                assert_eq!(peer.life.instance(), Some(*instance), "call {id} was sent to an instance that is gone");
            }
            Stage::Queued { .. } => assert_eq!((flights, places), (0, 1), "call {id} waits"),
        }
        let due = Some(call.deadline_ms).filter(|at| *at != u64::MAX);
        assert_eq!(effects.deadlines.at(Timer::Call(id)), due, "the deadline of call {id}");
    }

    fn peer_is_whole(&self, peer: &Peer) {
        let (id, lane) = (peer.id, &peer.lane);
        for call in lane.in_flight() {
            let is_out = |call: &Call| call.peer == id && matches!(call.stage, Stage::Sent { .. });
            assert!(self.calls.get(*call).is_some_and(is_out), "{call} is not in flight to {id:?}");
        }
        for call in lane.queued() {
            let waits = |call: &Call| call.peer == id && matches!(call.stage, Stage::Queued { .. });
            assert!(self.calls.get(call).is_none_or(waits), "{call} does not wait for {id:?}");
        }
        lane.check(&self.calls);
    }
}
