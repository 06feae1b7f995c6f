//! Peers besides the main one: for clients without sessions, and for single sessions. How they come, and how they come to an end.
//! Which there are is known to `servers/support.rs` and `mcp/private.rs`.

use crate::api::response::Answer;
use crate::core::Core;
use crate::core::hosting::lifecycle::{Event, State};
use crate::core::mcp::era::stateless::{Held, Support};
use crate::core::mcp::wording::fault_message;
use crate::core::peers::calls::Caller;
use crate::core::peers::peer::{Opening, Role};
use crate::ids::{CallId, PeerId, ServerId};
use crate::model::fault::Fault;

impl Core {
    pub(in crate::core) fn start_stateless_peer(&mut self, server: ServerId) {
        let id = self.peers.adopt_stateless(server, &self.servers.known[&server].definition);
        self.servers.asks_support(server, id);
        self.advance(id, Event::Start);
    }

    /// The life of the main peer changes: other peers of the old one have no place in the new.
    pub(in crate::core) fn retire_further_peers(&mut self, server: ServerId) {
        self.retire_session_peers(server);
        if let Some(peer) = self.servers.retire_support(server) {
            // Not asked again at once: this server is about to go down itself.
            self.refuse_held(server);
            self.dismiss(peer);
        }
    }

    pub(in crate::core) fn further_peer_over(&mut self, id: PeerId) {
        match self.peers.is_over(id) {
            None | Some((Role::Main, _)) => {}
            Some((Role::Session(_), _)) => self.release_session_peer(id, "its own instance has ended"),
            Some((Role::Stateless, server)) => {
                self.servers.support_over(server, id);
                self.not_spoken(id, server);
                self.dismiss(id);
            }
        }
    }

    pub(in crate::core) fn dismiss(&mut self, id: PeerId) {
        if self.peers.leaves(id) {
            self.advance(id, Event::Stop);
        }
    }

    pub(in crate::core) fn forget_if_left(&mut self, id: PeerId) {
        if self.peers.has_left(id) {
            self.forget_peer(id);
        }
    }

    /// The last of a peer: nothing of it runs.
    pub(in crate::core) fn forget_peer(&mut self, id: PeerId) {
        self.fail_rounds(id);
        self.peers.forget(id, &mut self.effects);
    }

    /// A link could not deliver it, or lost its answer.
    pub(in crate::core) fn undelivered(&mut self, call_id: CallId, fault: Fault) {
        let handshake = self.peers.calls.get(call_id).filter(|call| call.caller == Caller::Handshake);
        let Some(id) = handshake.map(|call| call.peer) else { return self.end_call(call_id, Answer::Refused(fault)) };
        self.peers.take_call(call_id, &mut self.effects);
        match self.peers.known.get(&id).map(|peer| &peer.opening) {
            Some(Opening::DiscoverFirst { .. } | Opening::DiscoverAfter(_)) => self.handshake_unanswered(id),
            Some(Opening::Initialize | Opening::InitializeAfter) => {
                self.advance(id, Event::HandshakeRefused(fault.message));
            }
            None => {}
        }
    }

    /// It does not speak that version, so nobody needs this peer.
    pub(in crate::core) fn not_spoken(&mut self, id: PeerId, server: ServerId) {
        if let Some(main) = self.servers.not_spoken(server, id) {
            self.support_decided(server, Support::No);
            self.reapply(main);
            self.dismiss(id);
        }
    }

    /// One that is not greeted in time, or dies before, does not speak the version either.
    pub(in crate::core) fn stateless_peer_failed(&mut self, id: PeerId) {
        let Some(peer) = self.peers.known.get(&id).filter(|peer| peer.role == Role::Stateless) else { return };
        if !matches!(peer.life.state(), State::Ready { .. }) {
            self.not_spoken(id, peer.server);
        }
    }

    // --- requests that wait for one -----------------------------------------------------------------------------------

    pub(in crate::core) fn hold(&mut self, server: ServerId, held: Held) {
        if let Err((fault, held)) = self.servers.hold(server, held, &mut self.effects.shares) {
            let message = fault_message(held.request.id.get(), &fault);
            self.replies().finish(held.post, None, 200, message);
        }
    }

    fn refuse_held(&mut self, server: ServerId) {
        let Some((fault, held)) = self.servers.support_unknown(server, &mut self.effects.shares) else { return };
        for Held { post, request } in held {
            self.replies().finish(post, None, 200, fault_message(request.id.get(), &fault));
        }
    }

    /// It is known now how this server is to be served.
    pub(in crate::core) fn support_decided(&mut self, server: ServerId, support: Support) {
        for Held { post, request } in self.servers.support_decided(server, support, &mut self.effects.shares) {
            if self.mcp.is_open(post) {
                self.serve_stateless(server, post, request);
            }
        }
        if let Support::Yes(peer) = support
            && self.servers.known.contains_key(&server)
        {
            self.listen_to(peer);
        }
    }
}
