//! What is registered: definitions, what the operator wants, and how changes become durable.

pub mod call_records;
pub mod changes;
pub mod decisions;
pub mod imports;
pub mod outbox;
pub mod rows;
pub mod server;
pub mod tokens;

use crate::api::auth::Tokens;
use crate::core::servers::decisions::Decisions;
use crate::core::servers::outbox::Outbox;
use crate::core::servers::server::{Origin, Server};
use crate::ids::{IdMap, ServerId};
use std::collections::BTreeMap;

pub(in crate::core) struct Servers {
    /// The store has been read.
    pub loaded: bool,
    /// Another daemon works on the database, and this one waits.
    pub stands_by: bool,
    pub known: IdMap<ServerId, Server>,
    /// Also names whose registration is not durable yet.
    pub names: BTreeMap<String, ServerId>,
    pub outbox: Outbox,
    pub decisions: Decisions,
    pub tokens: Tokens,
}

impl Servers {
    /// Those that are hosted here; rows of projects are not among them.
    pub fn registered(&self) -> impl Iterator<Item = &Server> {
        self.known.values().filter(|server| server.origin == Origin::Registered)
    }

    pub fn is_registered(&self, id: ServerId) -> bool {
        self.known.get(&id).is_some_and(|server| server.origin == Origin::Registered)
    }
}

impl Default for Servers {
    fn default() -> Servers {
        Servers {
            loaded: false,
            stands_by: false,
            known: IdMap::default(),
            names: BTreeMap::new(),
            outbox: Outbox::default(),
            decisions: Decisions::default(),
            tokens: Tokens::unread(),
        }
    }
}
