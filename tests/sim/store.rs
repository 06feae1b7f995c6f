//! A fake store: rows in a map, operations in a queue, and outages at any moment, also between commit and answer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use stdiod::ids::{ServerId, StoreSeq};
use stdiod::model::catalogue::Catalogue;
use stdiod::model::records::{Snapshot, StoreOp, StoreOutcome, StoredServer, Token};

#[derive(Default)]
pub struct FakeStore {
    pub up: bool,
    pub rows: BTreeMap<ServerId, StoredServer>,
    pub tokens: BTreeMap<String, Token>,
    pub catalogues: BTreeMap<ServerId, Catalogue>,
    pub volume_removals: BTreeMap<ServerId, String>,
    /// Rows that were there once.
    pub ever: BTreeSet<ServerId>,
    pub queue: VecDeque<(StoreSeq, StoreOp)>,
}

impl FakeStore {
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            servers: self.rows.values().cloned().collect(),
            unfit: Vec::new(),
            volume_removals: self.volume_removals.iter().map(|(id, name)| (*id, name.clone())).collect(),
            tokens: self.tokens.values().map(|token| (uuid::Uuid::nil(), token.clone())).collect(),
            catalogues: self.catalogues.iter().map(|(id, kept)| (*id, kept.clone())).collect(),
            ..Snapshot::default()
        }
    }

    /// The next operation is done, or not: an outage may come before or after the commit, and both look the same.
    pub fn step(&mut self, commits: bool, breaks: bool) -> Option<(StoreSeq, StoreOutcome)> {
        let (seq, op) = self.queue.pop_front()?;
        if !self.up {
            return Some((seq, StoreOutcome::Unknown("down".to_string())));
        }
        let committed = if commits || !breaks { self.apply(op) } else { Ok(()) };
        match (breaks, committed) {
            (true, _) => Some((seq, StoreOutcome::Unknown("broke".to_string()))),
            (false, Ok(())) => Some((seq, StoreOutcome::Committed)),
            (false, Err(why)) => Some((seq, StoreOutcome::Rejected(why))),
        }
    }

    /// The next operation is refused, for whatever reason; statuses are not worth one.
    pub fn refuse(&mut self) -> Option<(StoreSeq, StoreOutcome)> {
        let is_status =
            |(_, op): &&(StoreSeq, StoreOp)| matches!(op, StoreOp::SaveStatus { .. } | StoreOp::SaveCatalogue { .. });
        if !self.up || self.queue.front().filter(is_status).is_some() {
            return self.step(true, false);
        }
        let (seq, _) = self.queue.pop_front()?;
        Some((seq, StoreOutcome::Rejected("no".to_string())))
    }

    fn apply(&mut self, op: StoreOp) -> Result<(), String> {
        match op {
            StoreOp::InsertServer(row) => {
                let name = &row.definition.name;
                if self.rows.values().any(|other| other.definition.name == *name && other.id != row.id) {
                    return Err(format!("duplicate name {name}"));
                }
                self.ever.insert(row.id);
                self.volume_removals.retain(|id, other| *id != row.id && other != name);
                self.rows.insert(row.id, *row);
            }
            StoreOp::UpdateServer { id, definition, desired_up } => {
                let row = self.rows.get_mut(&id).ok_or("no such row")?;
                row.definition = (*definition).clone();
                row.desired_up = desired_up;
            }
            StoreOp::SetDesired { id, up } => {
                if let Some(row) = self.rows.get_mut(&id) {
                    row.desired_up = up;
                }
            }
            StoreOp::DeleteServer { id, volumes } => {
                self.rows.remove(&id);
                self.catalogues.remove(&id);
                match volumes {
                    Some(name) => _ = self.volume_removals.insert(id, name),
                    None => _ = self.volume_removals.remove(&id),
                }
            }
            StoreOp::SaveStatus { id, status } => {
                if let Some(row) = self.rows.get_mut(&id) {
                    row.status = *status;
                }
            }
            StoreOp::SaveCatalogue { id, catalogue } => {
                if self.rows.contains_key(&id) {
                    self.catalogues.insert(id, *catalogue);
                }
            }
            StoreOp::InsertToken { token, .. } => _ = self.tokens.insert(token.name.clone(), token),
            StoreOp::DeleteToken { name } => _ = self.tokens.remove(&name),
            StoreOp::RotateKey | StoreOp::DeleteCallsBefore { .. } | StoreOp::InsertCalls(_) => {}
            StoreOp::PutExternal(_)
            | StoreOp::DeleteExternal { .. }
            | StoreOp::ReplaceProduct { .. }
            | StoreOp::Import { .. }
            | StoreOp::PutSecret(_)
            | StoreOp::DeleteSecret { .. }
            | StoreOp::ReadCalls { .. } => return Err("this world has no projects".to_string()),
        }
        Ok(())
    }
}
