//! Places and memory for calls that wait for a server, and who makes way for whom when there are no more. Never touches a
//! call that was sent. Invariant: a call that waits is counted for its server and for whoever asks, until it is sent or ends.

use crate::core::effects::Effects;
use crate::core::peers::Peers;
use crate::core::peers::calls::Call;
use crate::ids::{PeerId, ServerId};
use crate::model::fault::{Code, Fault, Outcome};
use crate::shares::{Resource, Shares, Short};
use std::sync::Arc;

impl Peers {
    /// The queue is full. Whoever fills it makes way for somebody who has less of it.
    pub fn make_place(&mut self, id: PeerId, newcomer: Option<&Arc<str>>, effects: &mut Effects) -> Result<(), Fault> {
        let peer = &self.known[&id];
        let full = |what: &str| {
            let message = format!("{}: {} calls wait already{what}", peer.definition.name, peer.lane.waiting());
            Fault::new(Code::QueueFull, message).outcome(Outcome::NotSent).retry_after_ms(1_000)
        };
        let gives_way = newcomer.and_then(|newcomer| peer.lane.gives_way_to(newcomer, &self.calls));
        let call = gives_way.ok_or_else(|| full(""))?;
        let fault = full(", most of them yours, and somebody else wants a place");
        self.end_call(call, fault, effects);
        Ok(())
    }

    /// Memory for a call that is to wait. Whoever fills what there is for the server makes way for somebody who has less.
    pub fn make_room(&mut self, id: PeerId, call: &Call, effects: &mut Effects) -> Result<(), Fault> {
        let peer = &self.known[&id];
        let (Some(by), Some(owners)) = (call.queued_by(), call.waits_for(peer.server)) else { return Ok(()) };
        let bytes = call.waiting_bytes();
        let too_large = calls_too_large(&peer.definition.name);
        let give_way = match effects.shares.take_for(&owners, Resource::Memory, bytes) {
            Ok(()) => return Ok(()),
            Err((0, Short::Owner)) => peer.lane.give_room_to(by, bytes, &self.calls),
            Err((_, Short::Owner | Short::Whole)) => Vec::new(),
        };
        for call in give_way {
            let what = ", most of them yours, and somebody else wants room";
            let fault = Fault { message: format!("{}{what}", too_large.message), ..too_large.clone() };
            self.end_call(call, fault, effects);
        }
        effects.shares.take_for(&owners, Resource::Memory, bytes).map_err(|_| too_large)
    }
}

/// It waits no longer.
pub(in crate::core) fn give_back(shares: &mut Shares, server: ServerId, call: &Call) {
    if let Some(owners) = call.waits_for(server) {
        shares.give_back_for(&owners, Resource::Memory, call.waiting_bytes());
    }
}

fn calls_too_large(name: &str) -> Fault {
    let message = format!("{name}: the calls that wait are too large together");
    Fault::new(Code::QueueFull, message).outcome(Outcome::NotSent).retry_after_ms(1_000)
}
