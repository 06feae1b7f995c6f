//! Conversations with servers: handshakes, calls and their order, health, and what each server offers. Owns every peer and every
//! call; never starts or stops a server.

pub mod bridge;
pub mod calls;
pub mod handshake;
pub mod health;
pub mod hello;
#[cfg(debug_assertions)]
mod invariants;
pub mod life;
pub mod listings;
pub mod peer;
pub mod queue_room;
pub mod unanswered;

use crate::core::hosting::lifecycle::State;
use crate::core::peers::calls::Calls;
use crate::core::peers::peer::{Dialect, Peer, Role};
use crate::ids::{IdMap, PeerId, ServerId, SessionId};
use crate::limits::DISCOVER_TIMEOUT;
use crate::model::definition::Definition;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

#[derive(Default, Serialize, Deserialize)]
pub(in crate::core) struct Peers {
    pub known: IdMap<PeerId, Peer>,
    minted: u64,
    pub calls: Calls,
}

impl Peers {
    /// Those of single sessions, of all servers or of this one.
    pub fn of_sessions(&self, server: Option<ServerId>) -> Vec<PeerId> {
        let is_one = |peer: &&Peer| matches!(peer.role, Role::Session(_)) && server.is_none_or(|of| peer.server == of);
        let mut found: Vec<PeerId> = self.known.values().filter(is_one).map(|peer| peer.id).collect();
        found.sort();
        found
    }

    /// One for a session alone, as its server's main peer is but for the ports, which are that one's.
    pub fn adopt_for(&mut self, session: SessionId, main: PeerId) -> PeerId {
        let id = self.mint();
        let main = &self.known[&main];
        let mut definition = (*main.definition).clone();
        definition.ports.clear();
        log::info!("server={} an instance is started for one session", definition.name);
        let mut own = Peer::new(id, main.server, Role::Session(session), Arc::new(definition));
        // It will say the same of itself; until then this is what can be told to its client.
        (own.advertised, own.dialect) = (main.advertised.clone(), main.dialect);
        self.known.insert(id, own);
        id
    }

    /// One for clients without sessions, beside the main one of the server that this is the definition of.
    pub fn adopt_stateless(&mut self, server: ServerId, definition: &Definition) -> PeerId {
        let id = self.mint();
        let mut definition = definition.clone();
        // The ports are the main peer's; and whoever waits for this one has waited for that already.
        definition.ports.clear();
        definition.startup_timeout_ms = definition.startup_timeout_ms.min(DISCOVER_TIMEOUT.as_millis() as u64);
        log::info!("server={} a second instance is started for clients without sessions", definition.name);
        let mut peer = Peer::new(id, server, Role::Stateless, Arc::new(definition));
        peer.dialect = Dialect::Stateless;
        self.known.insert(id, peer);
        id
    }

    /// Whose it is, of one that has ended without anybody having asked for that, and that nothing will start again.
    pub fn is_over(&self, id: PeerId) -> Option<(Role, ServerId)> {
        let peer = self.known.get(&id).filter(|peer| !peer.leaving)?;
        matches!(peer.life.state(), State::Down | State::Failed).then_some((peer.role, peer.server))
    }

    /// Nobody needs it any more. False: it is gone already.
    pub fn leaves(&mut self, id: PeerId) -> bool {
        let Some(peer) = self.known.get_mut(&id) else { return false };
        peer.leaving = true;
        true
    }

    /// One that nobody needs is forgotten as soon as it is down.
    pub fn has_left(&self, id: PeerId) -> bool {
        self.known.get(&id).is_some_and(|peer| peer.leaving && *peer.life.state() == State::Down)
    }

    /// Never given twice.
    pub fn mint(&mut self) -> PeerId {
        self.minted += 1;
        PeerId(self.minted)
    }
}
