//! A fake store: rows in a map, operations in a queue, and outages at any moment, also between commit and answer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use stdiod::core::contract::{Snapshot, StoreOp, StoreOutcome, StoredServer, Token};
use stdiod::ids::{ServerId, StoreSeq};

#[derive(Default)]
pub struct FakeStore {
    pub up: bool,
    pub rows: BTreeMap<ServerId, StoredServer>,
    pub tokens: BTreeMap<String, Token>,
    /// Rows that were there once.
    pub ever: BTreeSet<ServerId>,
    pub queue: VecDeque<(StoreSeq, StoreOp)>,
}

impl FakeStore {
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            servers: self.rows.values().cloned().collect(),
            tokens: self.tokens.values().map(|token| (uuid::Uuid::nil(), token.clone())).collect(),
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

    fn apply(&mut self, op: StoreOp) -> Result<(), String> {
        match op {
            StoreOp::InsertServer(row) => {
                let name = &row.definition.name;
                if self.rows.values().any(|other| other.definition.name == *name && other.id != row.id) {
                    return Err(format!("duplicate name {name}"));
                }
                self.ever.insert(row.id);
                self.rows.insert(row.id, *row);
            }
            StoreOp::UpdateServer { id, definition, desired_up } => {
                let row = self.rows.get_mut(&id).ok_or("no such row")?;
                row.definition = (*definition).clone();
                row.desired_up = desired_up;
            }
            StoreOp::DeleteServer { id } => _ = self.rows.remove(&id),
            StoreOp::SaveStatus { id, status } => {
                if let Some(row) = self.rows.get_mut(&id) {
                    row.status = *status;
                }
            }
            StoreOp::InsertToken { token, .. } => _ = self.tokens.insert(token.name.clone(), token),
            StoreOp::DeleteToken { name } => _ = self.tokens.remove(&name),
        }
        Ok(())
    }
}
