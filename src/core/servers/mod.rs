//! What is registered: definitions, what the operator wants, and how changes become durable.

pub mod call_records;
pub mod catalogues;
pub mod changes;
pub mod checks;
pub mod decisions;
pub mod imports;
pub mod logs;
pub mod metrics;
pub mod outbox;
pub mod progress;
pub mod rows;
pub mod server;
pub mod support;
pub mod tokens;

use crate::api::auth::Tokens;
use crate::core::Settings;
use crate::core::contract::Output;
use crate::core::effects::{Effects, Timer};
use crate::core::mcp::era::stateless::Support;
use crate::core::peers::peer::{LAST_USED_STEP_MS, Peer, Role};
use crate::core::servers::decisions::Decisions;
use crate::core::servers::outbox::{Outbox, Pending};
use crate::core::servers::server::{Origin, Server};
use crate::ids::{IdMap, PeerId, ServerId, StoreSeq};
use crate::limits::RECORDS_CLEAN_PAUSE;
use crate::model::principal::Principal;
use crate::model::records::StoreOp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Serialize, Deserialize)]
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

    /// By name: those that this caller may see, but for those that go.
    pub fn seen_by(&self, who: &Principal) -> Vec<&Server> {
        let seen = |server: &&Server| server.removing.is_none() && who.may_see(&server.definition);
        let mut found: Vec<&Server> = self.registered().filter(seen).collect();
        found.sort_by(|a, b| a.definition.name.cmp(&b.definition.name));
        found
    }

    /// Under which peer clients have subscribed to what this one tells of. Those without sessions subscribe at the main one,
    /// whoever serves them.
    pub fn subscribed_at(&self, peer: &Peer) -> PeerId {
        match peer.role {
            Role::Main | Role::Session(_) => peer.id,
            Role::Stateless => self.known.get(&peer.server).map_or(peer.id, |server| server.main),
        }
    }

    /// It was of the era without sessions in its last life, and served those clients itself: not any more.
    pub fn greeted_with_sessions(&mut self, id: ServerId, peer: PeerId) {
        if let Some(server) = self.known.get_mut(&id).filter(|server| server.support == Support::Yes(peer)) {
            server.support = server.support_at_first();
        }
    }

    /// Somebody has a use for this server. True: its row is to say so.
    pub fn used(&mut self, id: ServerId, now_unix_ms: u64) -> bool {
        let registered = |server: &&mut Server| server.origin == Origin::Registered;
        let Some(server) = self.known.get_mut(&id).filter(registered) else { return false };
        let is_due = server.last_used_unix_ms.is_none_or(|at| now_unix_ms.saturating_sub(at) > LAST_USED_STEP_MS);
        if is_due {
            server.last_used_unix_ms = Some(now_unix_ms);
            self.outbox.mark(id);
        }
        is_due
    }

    /// May anything be written now?
    pub fn is_storing(&self) -> bool {
        self.outbox.available() && self.loaded
    }

    /// Asks the store for something, and remembers what for.
    pub fn issue(&mut self, pending: Pending, op: StoreOp, effects: &mut Effects) -> StoreSeq {
        let seq = self.outbox.issue(pending);
        effects.outputs.push_back(Output::Store { seq, op: Box::new(op) });
        seq
    }

    /// Records of calls that are older than they are kept go, now and from time to time.
    pub fn clean_records(&mut self, settings: &Settings, effects: &mut Effects) {
        let again_ms = effects.now.mono_ms + RECORDS_CLEAN_PAUSE.as_millis() as u64;
        effects.deadlines.set(Timer::OldRecords, again_ms);
        if self.outbox.available() && settings.records_keep_days > 0 {
            let kept_ms = u64::from(settings.records_keep_days) * 24 * 60 * 60 * 1000;
            let unix_ms = effects.now.unix_ms.saturating_sub(kept_ms);
            self.issue(Pending::OldRecords, StoreOp::DeleteCallsBefore { unix_ms }, effects);
        }
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
