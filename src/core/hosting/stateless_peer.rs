//! Servers that speak the version without sessions. One that speaks both eras has a second instance for clients without
//! sessions, started when the first of them comes: a peer in the role `Stateless`, which ends with the main one's present
//! life. One that speaks no other version needs none. Also how peers besides the main one come to an end.

use crate::api::response::Answer;
use crate::core::Core;
use crate::core::hosting::lifecycle::{Event, State};
use crate::core::mcp::era::stateless::Support;
use crate::core::peers::calls::Caller;
use crate::core::peers::peer::{Dialect, Opening, Peer, Role};
use crate::ids::{CallId, PeerId, ServerId};
use crate::limits::DISCOVER_TIMEOUT;
use crate::model::fault::Fault;
use crate::model::protocol::STATELESS;
use std::sync::Arc;

impl Core {
    pub(in crate::core) fn start_stateless_peer(&mut self, server: ServerId) {
        let id = self.peers.mint();
        let known = self.servers.known.get_mut(&server).expect("found");
        known.support = Support::Asked(id);
        let mut definition = (*known.definition).clone();
        // The ports are the main peer's; and whoever waits for this one has waited for that already.
        definition.ports.clear();
        definition.startup_timeout_ms = definition.startup_timeout_ms.min(DISCOVER_TIMEOUT.as_millis() as u64);
        log::info!("server={} a second instance is started for clients without sessions", definition.name);
        let mut peer = Peer::new(id, server, Role::Stateless, Arc::new(definition));
        peer.dialect = Dialect::Stateless;
        self.peers.known.insert(id, peer);
        self.advance(id, Event::Start);
    }

    /// The life of the main peer changes: other peers of the old one have no place in the new.
    pub(in crate::core) fn retire_further_peers(&mut self, server: ServerId) {
        self.retire_session_peers(server);
        let Some(known) = self.servers.known.get_mut(&server) else { return };
        match std::mem::take(&mut known.support) {
            Support::Yes(own) if own == known.main => known.support = Support::Yes(own),
            Support::Yes(peer) => self.dismiss(peer),
            Support::Asked(peer) => {
                // Not asked again at once: this server is about to go down itself.
                self.refuse_held(server);
                self.dismiss(peer);
            }
            Support::Unknown | Support::No => {}
        }
    }

    /// A peer besides the main one has ended without anybody having asked for that, and nothing will start it again.
    pub(in crate::core) fn further_peer_over(&mut self, id: PeerId) {
        let Some(peer) = self.peers.known.get(&id) else { return };
        if !matches!(peer.life.state(), State::Down | State::Failed) || peer.leaving {
            return;
        }
        let server = peer.server;
        match peer.role {
            Role::Main => {}
            Role::Session(_) => self.release_session_peer(id, "its own instance has ended"),
            // The next client has another.
            Role::Stateless => {
                if let Some(known) =
                    self.servers.known.get_mut(&server).filter(|known| known.support == Support::Yes(id))
                {
                    known.support = Support::Unknown;
                }
                self.not_spoken(id, server);
                self.dismiss(id);
            }
        }
    }

    /// Nobody needs it any more.
    pub(in crate::core) fn dismiss(&mut self, id: PeerId) {
        if let Some(peer) = self.peers.known.get_mut(&id) {
            peer.leaving = true;
            self.advance(id, Event::Stop);
        }
    }

    /// One that was dismissed is forgotten as soon as it is down.
    pub(in crate::core) fn forget_if_left(&mut self, id: PeerId) {
        let left = |peer: &&Peer| peer.leaving && *peer.life.state() == State::Down;
        if self.peers.known.get(&id).filter(left).is_some() {
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
        let Some(peer) = self.peers.known.get_mut(&id) else { return };
        match peer.opening {
            Opening::DiscoverFirst { .. } | Opening::DiscoverAfter(_) => self.handshake_unanswered(id),
            Opening::Initialize | Opening::InitializeAfter => {
                self.advance(id, Event::HandshakeRefused(fault.message));
            }
        }
    }

    /// It does not speak that version, so nobody needs this peer.
    pub(in crate::core) fn not_spoken(&mut self, id: PeerId, server: ServerId) {
        let Some(known) = self.servers.known.get(&server).filter(|known| known.support == Support::Asked(id)) else {
            return;
        };
        let main = known.main;
        log::info!("server={} does not speak {STATELESS}: its clients are translated", known.definition.name);
        self.support_decided(server, Support::No);
        self.reapply(main);
        self.dismiss(id);
    }

    /// One that is not greeted in time, or dies before, does not speak the version either.
    pub(in crate::core) fn stateless_peer_failed(&mut self, id: PeerId) {
        let Some(peer) = self.peers.known.get(&id).filter(|peer| peer.role == Role::Stateless) else { return };
        if !matches!(peer.life.state(), State::Ready { .. }) {
            self.not_spoken(id, peer.server);
        }
    }
}
