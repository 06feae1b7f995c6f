//! Conversations with servers: calls and their order, health, and what each server offers.

pub mod bridge;
pub mod calls;
pub mod handshake;
pub mod health;
pub mod hello;
pub mod life;
pub mod listings;
pub mod peer;
pub mod queue_room;
pub mod unanswered;

use crate::core::peers::calls::Calls;
use crate::core::peers::peer::{Peer, Role};
use crate::ids::{IdMap, PeerId, ServerId, SessionId};
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

    /// Never given twice.
    pub fn mint(&mut self) -> PeerId {
        self.minted += 1;
        PeerId(self.minted)
    }
}
