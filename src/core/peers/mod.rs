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
use crate::core::peers::peer::Peer;
use crate::ids::{IdMap, PeerId};
use serde::{Deserialize, Serialize};

#[derive(Default, Serialize, Deserialize)]
pub(in crate::core) struct Peers {
    pub known: IdMap<PeerId, Peer>,
    minted: u64,
    pub calls: Calls,
}

impl Peers {
    /// Never given twice.
    pub fn mint(&mut self) -> PeerId {
        self.minted += 1;
        PeerId(self.minted)
    }
}
