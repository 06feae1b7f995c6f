//! What must still be written, and who waits for it. Owns the numbering of store operations and what each of them
//! means; status is coalesced per server and written behind. Invariant: every operation handed out has one entry here
//! until its outcome is known, and an unknown outcome is never forgotten: the row is made to agree with the core again.

use crate::core::projects::asks::ProjectChange;
use crate::core::servers::imports::Imported;
use crate::ids::{ConnId, ServerId, StoreSeq, Uuid};
use crate::model::definition::Definition;
use crate::model::external::{ExternalId, ProjectId};
use crate::model::records::Token;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// What an operation was for.
#[derive(Debug, Serialize, Deserialize)]
pub enum Pending {
    Register {
        server: ServerId,
        definition: Arc<Definition>,
        conn: ConnId,
        wait: bool,
    },
    /// A new definition, or a new desired state, or both.
    Change {
        server: ServerId,
        definition: Arc<Definition>,
        up: bool,
        /// Whoever waits for it: several may ask for the same at once.
        conns: Vec<ConnId>,
        kind: ChangeKind,
        /// What it does besides what was asked for.
        warning: Option<String>,
    },
    TokenInsert {
        id: Uuid,
        token: Box<Token>,
        secret: String,
        conn: ConnId,
        /// The hash that it takes the place of.
        rotates: Option<[u8; 32]>,
    },
    Status {
        server: ServerId,
    },
    /// What it offers.
    Catalogue {
        server: ServerId,
    },
    /// The row, or its absence, as the core knows it.
    Reconcile {
        server: ServerId,
    },
    ReconcileToken {
        name: String,
    },
    /// The token of `admin.token`, which must be there whatever else is.
    AdminToken,
    /// All servers of a document.
    Import {
        conn: ConnId,
        imported: Box<Imported>,
    },
    /// Of a project.
    Project {
        conn: ConnId,
        change: ProjectChange,
    },
    /// Everything that is sealed, with another key.
    KeyRotation {
        conn: ConnId,
    },
    ReconcileRow {
        id: ExternalId,
    },
    ReconcileSecret {
        key: (ProjectId, String),
    },
    /// A batch of records of tool calls.
    Records,
    /// Those that are too old.
    OldRecords,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangeKind {
    Patch,
    Start,
}

#[derive(Default, Serialize, Deserialize)]
pub struct Outbox {
    connected: bool,
    /// An operation has been out for longer than a client would wait: the database hangs.
    stalled: bool,
    issued: u64,
    /// Operations that the store has and has not answered, also those that nobody waits for any more.
    out: usize,
    pending: HashMap<StoreSeq, Pending>,
    /// Servers whose status has changed since it was last handed out.
    dirty: BTreeSet<ServerId>,
    /// Servers with a status on its way.
    saving: BTreeSet<ServerId>,
    /// Servers that may offer something else than the store knows, and those of which that is on its way.
    #[serde(default)]
    catalogues: BTreeSet<ServerId>,
    #[serde(default)]
    catalogues_out: BTreeSet<ServerId>,
    reconcile: BTreeSet<ServerId>,
    reconcile_tokens: BTreeSet<String>,
    /// As the two above, of which the store has refused the last attempt: not tried again at once.
    refused: BTreeSet<ServerId>,
    refused_tokens: BTreeSet<String>,
    /// External servers and secrets whose rows may not say what is true.
    reconcile_rows: BTreeSet<ExternalId>,
    reconcile_secrets: BTreeSet<(ProjectId, String)>,
}

impl Outbox {
    /// May a change be asked of the store now?
    pub fn available(&self) -> bool {
        self.connected && !self.stalled
    }

    /// Writes that the store does not have yet.
    pub fn waiting(&self) -> usize {
        self.pending.len()
            + self.dirty.len()
            + self.catalogues.len()
            + self.reconcile.len()
            + self.reconcile_tokens.len()
    }

    pub fn opened(&mut self) {
        self.connected = true;
        self.stalled = false;
    }

    pub fn lost(&mut self) {
        self.connected = false;
    }

    /// Somebody has waited too long. With nothing out the database has nothing to answer: whatever this one waited for was
    /// refused, or is not asked yet, and nothing would ever end the stall.
    pub fn stall(&mut self) {
        self.stalled = self.out > 0;
    }

    pub fn issue(&mut self, pending: Pending) -> StoreSeq {
        self.issued += 1;
        self.out += 1;
        let seq = StoreSeq(self.issued);
        match &pending {
            Pending::Status { server } => _ = self.saving.insert(*server),
            Pending::Catalogue { server } => _ = self.catalogues_out.insert(*server),
            _other => {}
        }
        self.pending.insert(seq, pending);
        seq
    }

    /// The operation has an outcome: the database answers again.
    pub fn done(&mut self, seq: StoreSeq) -> Option<Pending> {
        self.stalled = false;
        self.out -= 1;
        let pending = self.pending.remove(&seq)?;
        match &pending {
            Pending::Status { server } => _ = self.saving.remove(server),
            Pending::Catalogue { server } => _ = self.catalogues_out.remove(server),
            _other => {}
        }
        Some(pending)
    }

    /// The client of this operation has been told that it failed. Its late outcome must be undone.
    pub fn abandon(&mut self, seq: StoreSeq) -> Option<Pending> {
        let pending = self.pending.remove(&seq)?;
        self.disown(&pending);
        Some(pending)
    }

    /// Whatever became of this operation, the row must agree with the core.
    pub fn disown(&mut self, pending: &Pending) {
        match pending {
            Pending::Register { server, .. } | Pending::Change { server, .. } | Pending::Reconcile { server } => {
                self.reconcile.insert(*server);
            }
            Pending::Status { server } => {
                self.dirty.insert(*server);
            }
            Pending::Catalogue { server } => _ = self.catalogues.insert(*server),
            Pending::TokenInsert { token, .. } => _ = self.reconcile_tokens.insert(token.name.clone()),
            Pending::ReconcileToken { name } => _ = self.reconcile_tokens.insert(name.clone()),
            Pending::Import { imported, .. } => {
                self.reconcile.extend(imported.servers.iter().map(|(id, _)| *id));
                self.reconcile_rows.extend(imported.rows.iter().map(|row| row.id));
            }
            Pending::Project { change, .. } => {
                self.reconcile_rows.extend(change.rows());
                self.reconcile_secrets.extend(change.secret());
            }
            Pending::ReconcileRow { id } => _ = self.reconcile_rows.insert(*id),
            Pending::ReconcileSecret { key } => _ = self.reconcile_secrets.insert(key.clone()),
            // The store finishes by itself what it has begun; and records are looked after where they wait.
            Pending::KeyRotation { .. } | Pending::AdminToken | Pending::Records | Pending::OldRecords => {}
        }
    }

    /// One more client for a start that is on its way already, if it is; no PATCH is another's.
    pub fn join_start(&mut self, server: ServerId, conn: ConnId) -> Option<StoreSeq> {
        self.pending.iter_mut().find_map(|(seq, pending)| match pending {
            Pending::Change { server: whose, conns, kind: ChangeKind::Start, up: true, .. } if *whose == server => {
                conns.push(conn);
                Some(*seq)
            }
            Pending::Register { .. }
            | Pending::Change { .. }
            | Pending::TokenInsert { .. }
            | Pending::Status { .. }
            | Pending::Catalogue { .. }
            | Pending::Reconcile { .. }
            | Pending::ReconcileToken { .. }
            | Pending::Import { .. }
            | Pending::Project { .. }
            | Pending::KeyRotation { .. }
            | Pending::ReconcileRow { .. }
            | Pending::ReconcileSecret { .. }
            | Pending::Records
            | Pending::OldRecords
            | Pending::AdminToken => None,
        })
    }

    /// Whatever change of this server is on its way, it does not bring it up any more.
    pub fn keep_down(&mut self, server: ServerId) {
        for pending in self.pending.values_mut() {
            if let Pending::Change { server: whose, up, .. } = pending
                && *whose == server
            {
                *up = false;
            }
        }
    }

    /// Definitions on their way, and whose they are.
    pub fn proposed(&self) -> impl Iterator<Item = (ServerId, &Definition)> {
        let alone = self.pending.values().filter_map(|pending| match pending {
            Pending::Register { server, definition, .. } | Pending::Change { server, definition, .. } => {
                Some((*server, &**definition))
            }
            _other => None,
        });
        let together = self.pending.values().filter_map(|pending| match pending {
            Pending::Import { imported, .. } => Some(&imported.servers),
            _other => None,
        });
        alone.chain(together.flatten().map(|(server, definition)| (*server, &**definition)))
    }

    /// A token of this name is on its way.
    pub fn is_inserting_token(&self, name: &str) -> bool {
        self.pending.values().any(|pending| matches!(pending, Pending::TokenInsert { token, .. } if token.name == name))
    }

    pub fn mark(&mut self, server: ServerId) {
        self.dirty.insert(server);
    }

    pub fn mark_catalogue(&mut self, server: ServerId) {
        self.catalogues.insert(server);
    }

    /// Those with nothing of the kind on its way: an older one may never overtake a newer one.
    pub fn take_catalogues(&mut self) -> Vec<ServerId> {
        let ready: Vec<ServerId> = self.catalogues.difference(&self.catalogues_out).copied().collect();
        ready.iter().for_each(|server| _ = self.catalogues.remove(server));
        ready
    }

    pub fn reconcile(&mut self, server: ServerId) {
        self.reconcile.insert(server);
    }

    pub fn reconcile_token(&mut self, name: String) {
        self.reconcile_tokens.insert(name);
    }

    /// The store will not have it, and may think otherwise later.
    pub fn refuse(&mut self, pending: &Pending) {
        match pending {
            Pending::Reconcile { server } => _ = self.refused.insert(*server),
            Pending::ReconcileToken { name } => _ = self.refused_tokens.insert(name.clone()),
            Pending::Register { .. }
            | Pending::Change { .. }
            | Pending::TokenInsert { .. }
            | Pending::Status { .. }
            | Pending::Catalogue { .. }
            | Pending::Import { .. }
            | Pending::Project { .. }
            | Pending::KeyRotation { .. }
            | Pending::ReconcileRow { .. }
            | Pending::ReconcileSecret { .. }
            | Pending::Records
            | Pending::OldRecords
            | Pending::AdminToken => {}
        }
    }

    pub fn has_refused(&self) -> bool {
        !(self.refused.is_empty() && self.refused_tokens.is_empty())
    }

    pub fn try_refused_again(&mut self) {
        self.reconcile.append(&mut self.refused);
        self.reconcile_tokens.append(&mut self.refused_tokens);
    }

    /// The row of this server is not known to say what is true.
    pub fn owes(&self, server: ServerId) -> bool {
        let is_on_its_way = |pending: &Pending| matches!(pending, Pending::Reconcile { server: on } if *on == server);
        self.reconcile.contains(&server) || self.refused.contains(&server) || self.pending.values().any(is_on_its_way)
    }

    pub fn owes_token(&self, name: &str) -> bool {
        let is_on_its_way = |pending: &Pending| matches!(pending, Pending::ReconcileToken { name: on } if on == name);
        self.reconcile_tokens.contains(name)
            || self.refused_tokens.contains(name)
            || self.pending.values().any(is_on_its_way)
    }

    pub fn forget(&mut self, server: ServerId) {
        self.dirty.remove(&server);
        self.catalogues.remove(&server);
    }

    pub fn take_reconcile(&mut self) -> (BTreeSet<ServerId>, BTreeSet<String>) {
        (std::mem::take(&mut self.reconcile), std::mem::take(&mut self.reconcile_tokens))
    }

    pub fn take_projects(&mut self) -> (BTreeSet<ExternalId>, BTreeSet<(ProjectId, String)>) {
        (std::mem::take(&mut self.reconcile_rows), std::mem::take(&mut self.reconcile_secrets))
    }

    /// Dirty servers that have no status on its way: an older one may never overtake a newer one.
    pub fn take_dirty(&mut self) -> Vec<ServerId> {
        let ready: Vec<ServerId> = self.dirty.difference(&self.saving).copied().collect();
        for server in &ready {
            self.dirty.remove(server);
        }
        ready
    }

    /// Nothing is waiting and nothing is out.
    pub fn is_clean(&self) -> bool {
        self.pending.is_empty()
            && self.dirty.is_empty()
            && self.catalogues.is_empty()
            && self.reconcile.is_empty()
            && self.reconcile_tokens.is_empty()
            && self.reconcile_rows.is_empty()
            && self.reconcile_secrets.is_empty()
            && !self.has_refused()
    }

    pub fn has_unsent(&self) -> bool {
        !(self.dirty.is_empty()
            && self.catalogues.is_empty()
            && self.reconcile.is_empty()
            && self.reconcile_tokens.is_empty()
            && self.reconcile_rows.is_empty()
            && self.reconcile_secrets.is_empty())
    }
}
