//! All servers of a document at once: hosted ones and rows of projects, by one operation of the store. Which of them may come is
//! judged in `servers/imports.rs`.

use crate::api::import::Read;
use crate::api::import::body::Candidate;
use crate::api::response::{Answer, ImportAction, ImportedEntry};
use crate::core::Core;
use crate::core::projects::checks::new_row;
use crate::core::servers::imports::Imported;
use crate::core::servers::outbox::Pending;
use crate::ids::{ConnId, ServerId};
use crate::model::definition::Definition;
use crate::model::external::ProjectId;
use crate::model::fault::Fault;
use crate::model::principal::Principal;
use crate::model::records::{StoreOp, StoredServer};
use std::sync::Arc;

impl Core {
    /// An answer now, none yet (the store is asked), or a refusal.
    pub(in crate::core) fn import(
        &mut self,
        conn: ConnId,
        who: &Principal,
        project: Option<&ProjectId>,
        candidates: Vec<Candidate>,
        dry_run: bool,
    ) -> Result<Option<Answer>, Fault> {
        let actions = self.offers().judge_import(who, project, &candidates, dry_run)?;
        if dry_run || !actions.contains(&ImportAction::Create) {
            let entries = candidates.into_iter().zip(actions);
            let entries = entries.map(|(candidate, action)| ImportedEntry { entry: candidate.entry, action }).collect();
            return Ok(Some(Answer::Imported { dry_run, entries }));
        }
        self.store_import(conn, project, candidates, actions);
        Ok(None)
    }

    fn store_import(
        &mut self,
        conn: ConnId,
        project: Option<&ProjectId>,
        candidates: Vec<Candidate>,
        actions: Vec<ImportAction>,
    ) {
        let mut imported = Imported::default();
        for (Candidate { entry, read, missing: _ }, action) in candidates.into_iter().zip(actions) {
            match (action, read, project) {
                (ImportAction::Create, Read::Hosted(definition), _) => {
                    let id = ServerId(self.effects.entropy.uuid());
                    self.servers.names.insert(definition.name.clone(), id);
                    imported.servers.push((id, Arc::from(definition)));
                }
                (ImportAction::Create, Read::External(spec), Some(project)) => {
                    let row = new_row(project, None, *spec, &mut self.effects);
                    self.projects.hold_name(&row);
                    imported.rows.push(row);
                }
                (_, _, _) => {}
            }
            imported.entries.push(ImportedEntry { entry, action });
        }
        let now = self.effects.now.unix_ms;
        let stored =
            |(id, definition): &(ServerId, Arc<Definition>)| StoredServer::new(*id, (**definition).clone(), now);
        let servers = imported.servers.iter().map(stored).collect();
        let externals = imported.rows.iter().map(|row| (**row).clone()).collect();
        let op = StoreOp::Import { servers, externals };
        self.store(conn, Pending::Import { conn, imported: Box::new(imported) }, op);
    }

    pub(in crate::core) fn import_stored(&mut self, conn: ConnId, imported: Imported) {
        for row in imported.rows {
            self.put_row(row);
        }
        for (id, definition) in imported.servers {
            self.begin(id, definition);
        }
        self.answer(conn, Answer::Imported { dry_run: false, entries: imported.entries });
    }

    pub(in crate::core) fn import_undone(&mut self, conn: ConnId, imported: &Imported, fault: Fault) {
        for (_, definition) in &imported.servers {
            self.servers.names.remove(&definition.name);
        }
        for row in &imported.rows {
            self.projects.free_name(row);
        }
        self.refuse(conn, fault);
    }
}
