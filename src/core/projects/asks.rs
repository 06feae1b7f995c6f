//! What clients ask of a project, one function per `ProjectAsk`. Questions are answered at once; a change is done to the core
//! once the store has it, and its client is told after that. An outcome that is unknown is told as a failure and then made one.

use crate::api::projects::fields;
use crate::api::request::{Change, ExternalRef, ProjectAsk};
use crate::api::response::{Answer, ManifestAction, ManifestEntry};
use crate::core::Core;
use crate::core::contract::Output;
use crate::core::hosting::lifecycle::Event;
use crate::core::mcp::endpoint::McpEndpoint;
use crate::core::projects::checks::new_row;
use crate::core::projects::server_of;
use crate::core::servers::outbox::Pending;
use crate::ids::{ConnId, StoreSeq};
use crate::limits::{SECRETS_MAX, SECRETS_PER_PROJECT};
use crate::model::external::{
    CallFilter, ExternalId, ExternalServer, ExternalSpec, ProjectId, Secret, SecretValue, SecretView, StoredSecret,
    ToolCallRecord,
};
use crate::model::fault::{Code, Fault};
use crate::model::principal::Principal;
use crate::model::records::StoreOp;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What a project has asked of the store.
#[derive(Debug, Serialize, Deserialize)]
pub enum ProjectChange {
    Create(Arc<ExternalServer>),
    Update(Arc<ExternalServer>),
    Delete(ExternalId),
    Replace {
        project: ProjectId,
        product: String,
        rows: Vec<Arc<ExternalServer>>,
        gone: Vec<ExternalId>,
        entries: Vec<ManifestEntry>,
    },
    PutSecret(StoredSecret),
    DeleteSecret {
        project: ProjectId,
        name: String,
    },
    ReadCalls,
}

impl Core {
    /// An answer now, none yet (the client is parked), or a refusal.
    pub(in crate::core) fn project_asked(
        &mut self,
        conn: ConnId,
        who: &Principal,
        project: &ProjectId,
        ask: ProjectAsk<'_>,
    ) -> Result<Option<Answer>, Fault> {
        self.projects.check_row_ceilings(who, project, &ask, &self.settings)?;
        match ask {
            ProjectAsk::Servers => {
                let views = self.projects.of(project).map(|row| self.offers().external_view(row)).collect();
                Ok(Some(Answer::Externals(views)))
            }
            ProjectAsk::Server { server } => {
                let row = self.projects.find_row(project, &server)?;
                Ok(Some(Answer::External(Box::new(self.offers().external_view(&row)))))
            }
            ProjectAsk::Create { spec } => self.create_row(conn, project, *spec),
            ProjectAsk::Patch { server, change } => self.patch_row(conn, project, &server, &change),
            ProjectAsk::Delete { server } => self.delete_row(conn, project, &server),
            ProjectAsk::Connect { server } => {
                let row = self.projects.find_row(project, &server)?;
                self.connect_row(conn, &row)
            }
            ProjectAsk::Disconnect { server } => {
                let row = self.projects.find_row(project, &server)?;
                self.advance_main(server_of(row.id), Event::Stop);
                Ok(Some(Answer::External(Box::new(self.offers().external_view(&row)))))
            }
            ProjectAsk::Unload => Ok(Some(Answer::Unloaded { links: self.unload(project) })),
            ProjectAsk::SecretPut { name, value } => self.store_secret(conn, project, name, value),
            ProjectAsk::SecretDelete { name } => self.remove_secret(conn, project, name),
            ProjectAsk::Secrets => {
                let own = self.projects.secrets.values().filter(|secret| secret.project == *project);
                Ok(Some(Answer::Secrets(own.map(SecretView::from).collect())))
            }
            ProjectAsk::Manifest { product, servers } => self.import_manifest(conn, project, product, servers),
            ProjectAsk::Tools => self.project_tools(conn, project),
            ProjectAsk::CallTool(call) => self.project_call(conn, who, project, *call),
            ProjectAsk::Calls(filter) => self.read_calls(conn, project, filter),
            ProjectAsk::Mcp(ask) => {
                self.mcp_at(conn, who, McpEndpoint::Project(project.clone()), ask);
                Ok(None)
            }
        }
    }

    /// By project and name.
    pub(in crate::core) fn all_externals(&self, who: &Principal) -> Answer {
        let own = self.projects.names.iter().filter(|((project, _), _)| who.may_use(project));
        let rows = own.filter_map(|(_, id)| self.projects.rows.get(id));
        Answer::Externals(rows.map(|row| self.offers().external_view(row)).collect())
    }

    // --- rows -------------------------------------------------------------------------------------------------------

    fn create_row(&mut self, conn: ConnId, project: &ProjectId, spec: ExternalSpec) -> Result<Option<Answer>, Fault> {
        self.projects.check_name(project, &spec.name, None, &self.servers)?;
        self.projects.check_row_count(project, 1)?;
        self.servers.check_store()?;
        let row = new_row(project, None, spec, &mut self.effects);
        self.projects.names.insert((project.clone(), row.spec.name.clone()), row.id);
        let op = StoreOp::PutExternal(Box::new((*row).clone()));
        self.store(conn, Pending::Project { conn, change: ProjectChange::Create(row) }, op);
        Ok(None)
    }

    fn patch_row(
        &mut self,
        conn: ConnId,
        project: &ProjectId,
        server: &ExternalRef,
        change: &Change,
    ) -> Result<Option<Answer>, Fault> {
        let row = self.projects.find_row(project, server)?;
        self.projects.check_settled(row.id)?;
        let spec = fields::merge(&row.spec, &change.fields)?;
        self.projects.check_name(project, &spec.name, Some(row.id), &self.servers)?;
        self.servers.check_store()?;
        let new = Arc::new(ExternalServer { spec, updated_unix_ms: self.effects.now.unix_ms, ..(*row).clone() });
        self.projects.changing.insert(row.id);
        self.projects.names.insert((project.clone(), new.spec.name.clone()), row.id);
        let op = StoreOp::PutExternal(Box::new((*new).clone()));
        self.store(conn, Pending::Project { conn, change: ProjectChange::Update(new) }, op);
        Ok(None)
    }

    fn delete_row(&mut self, conn: ConnId, project: &ProjectId, server: &ExternalRef) -> Result<Option<Answer>, Fault> {
        let id = self.projects.find_row(project, server)?.id;
        self.projects.check_settled(id)?;
        self.servers.check_store()?;
        self.projects.changing.insert(id);
        let op = StoreOp::DeleteExternal { id };
        self.store(conn, Pending::Project { conn, change: ProjectChange::Delete(id) }, op);
        Ok(None)
    }

    /// All or nothing; what the product had before and does not name any more goes.
    fn import_manifest(
        &mut self,
        conn: ConnId,
        project: &ProjectId,
        product: String,
        servers: Vec<ExternalSpec>,
    ) -> Result<Option<Answer>, Fault> {
        let of_product = |row: &&Arc<ExternalServer>| row.product.as_ref() == Some(&product);
        let old: Vec<Arc<ExternalServer>> = self.projects.of(project).filter(of_product).cloned().collect();
        for row in &old {
            self.projects.check_settled(row.id)?;
        }
        let added = servers.iter().filter(|spec| !old.iter().any(|row| row.spec.name == spec.name)).count();
        self.projects.check_row_count(project, added)?;
        let (mut rows, mut entries) = (Vec::new(), Vec::new());
        for spec in servers {
            let known = old.iter().find(|row| row.spec.name == spec.name);
            self.projects.check_name(project, &spec.name, known.map(|row| row.id), &self.servers)?;
            let action = match known {
                None => ManifestAction::Created,
                Some(row) if row.spec == spec => ManifestAction::Unchanged,
                Some(_) => ManifestAction::Changed,
            };
            entries.push(ManifestEntry { name: spec.name.clone(), action });
            rows.push(match (known, action) {
                (Some(row), ManifestAction::Unchanged) => Arc::clone(row),
                (Some(row), _) => {
                    let updated_unix_ms = self.effects.now.unix_ms;
                    Arc::new(ExternalServer { spec, updated_unix_ms, ..(**row).clone() })
                }
                (None, _) => new_row(project, Some(product.clone()), spec, &mut self.effects),
            });
        }
        let leaves = |row: &&Arc<ExternalServer>| !rows.iter().any(|kept| kept.id == row.id);
        let gone: Vec<Arc<ExternalServer>> = old.iter().filter(leaves).cloned().collect();
        let removed =
            |row: &Arc<ExternalServer>| ManifestEntry { name: row.spec.name.clone(), action: ManifestAction::Removed };
        entries.extend(gone.iter().map(removed));
        let gone = gone.iter().map(|row| row.id).collect();
        self.servers.check_store()?;
        self.store_manifest(conn, project, product, rows, gone, entries);
        Ok(None)
    }

    fn store_manifest(
        &mut self,
        conn: ConnId,
        project: &ProjectId,
        product: String,
        rows: Vec<Arc<ExternalServer>>,
        gone: Vec<ExternalId>,
        entries: Vec<ManifestEntry>,
    ) {
        for row in &rows {
            self.projects.names.insert((project.clone(), row.spec.name.clone()), row.id);
        }
        self.projects.changing.extend(rows.iter().map(|row| row.id).chain(gone.iter().copied()));
        let servers = rows.iter().map(|row| (**row).clone()).collect();
        let op = StoreOp::ReplaceProduct { project: project.clone(), product: product.clone(), servers };
        let change = ProjectChange::Replace { project: project.clone(), product, rows, gone, entries };
        self.store(conn, Pending::Project { conn, change }, op);
    }

    /// Ends every link of the project; they come back with their next use.
    fn unload(&mut self, project: &ProjectId) -> usize {
        let rows: Vec<ExternalId> = self.projects.of(project).map(|row| row.id).collect();
        let mut ended = 0;
        for id in rows {
            let main = self.servers.known[&server_of(id)].main;
            ended += usize::from(self.peers.known[&main].life.instance().is_some());
            self.advance(main, Event::Stop);
        }
        ended
    }

    // --- secrets ----------------------------------------------------------------------------------------------------

    fn store_secret(
        &mut self,
        conn: ConnId,
        project: &ProjectId,
        name: String,
        value: Secret,
    ) -> Result<Option<Answer>, Fault> {
        let known = self.projects.secrets.get(&(project.clone(), name.clone()));
        let own = self.projects.secrets.keys().filter(|(of, _)| of == project).count();
        if known.is_none() && (own >= SECRETS_PER_PROJECT || self.projects.secrets.len() >= SECRETS_MAX) {
            let message =
                format!("a project has at most {SECRETS_PER_PROJECT} secrets, and all together {SECRETS_MAX}");
            return Err(Fault::new(Code::Unavailable, message));
        }
        self.servers.check_store()?;
        let now = self.effects.now.unix_ms;
        let created_unix_ms = known.map_or(now, |known| known.created_unix_ms);
        let value = SecretValue::Open(value);
        let secret = StoredSecret { project: project.clone(), name, value, created_unix_ms, updated_unix_ms: now };
        let op = StoreOp::PutSecret(secret.clone());
        self.store(conn, Pending::Project { conn, change: ProjectChange::PutSecret(secret) }, op);
        Ok(None)
    }

    fn remove_secret(&mut self, conn: ConnId, project: &ProjectId, name: String) -> Result<Option<Answer>, Fault> {
        if !self.projects.secrets.contains_key(&(project.clone(), name.clone())) {
            return Err(Fault::new(Code::NotFound, format!("project {project} has no secret {name}")));
        }
        self.servers.check_store()?;
        let op = StoreOp::DeleteSecret { project: project.clone(), name: name.clone() };
        let change = ProjectChange::DeleteSecret { project: project.clone(), name };
        self.store(conn, Pending::Project { conn, change }, op);
        Ok(None)
    }

    // --- records ----------------------------------------------------------------------------------------------------

    fn read_calls(&mut self, conn: ConnId, project: &ProjectId, filter: CallFilter) -> Result<Option<Answer>, Fault> {
        self.servers.check_store()?;
        let op = StoreOp::ReadCalls { project: project.clone(), filter };
        self.store(conn, Pending::Project { conn, change: ProjectChange::ReadCalls }, op);
        Ok(None)
    }

    pub(in crate::core) fn calls_read(&mut self, seq: StoreSeq, calls: Vec<ToolCallRecord>) {
        if let Some(Pending::Project { conn, .. }) = self.servers.outbox.done(seq) {
            self.answer(conn, Answer::Calls(calls));
        }
    }

    // --- what became of a change --------------------------------------------------------------------------------------

    pub(in crate::core) fn project_changed(&mut self, conn: ConnId, change: ProjectChange) {
        self.projects.settle_rows(&change);
        let answer = match change {
            ProjectChange::Create(row) => {
                self.put_row(Arc::clone(&row));
                Answer::ExternalCreated(Box::new(self.offers().external_view(&row)))
            }
            ProjectChange::Update(row) => {
                self.put_row(Arc::clone(&row));
                Answer::External(Box::new(self.offers().external_view(&row)))
            }
            ProjectChange::Delete(id) => {
                self.drop_row(id);
                Answer::Deleted
            }
            ProjectChange::Replace { project, product, rows, gone, entries } => {
                gone.into_iter().for_each(|id| self.drop_row(id));
                rows.into_iter().for_each(|row| self.put_row(row));
                Answer::Manifest { project, product, entries }
            }
            ProjectChange::PutSecret(secret) => {
                let view = SecretView::from(&secret);
                self.put_secret(secret);
                Answer::SecretStored(view)
            }
            ProjectChange::DeleteSecret { project, name } => {
                self.drop_secret(&project, &name);
                Answer::SecretDeleted
            }
            ProjectChange::ReadCalls => return,
        };
        self.answer(conn, answer);
    }

    /// Nothing came of it: names that were to be taken are free again.
    pub(in crate::core) fn project_undone(&mut self, conn: ConnId, change: &ProjectChange, fault: Fault) {
        self.projects.settle_rows(change);
        let proposed: Vec<&Arc<ExternalServer>> = match change {
            ProjectChange::Create(row) | ProjectChange::Update(row) => vec![row],
            ProjectChange::Replace { rows, .. } => rows.iter().collect(),
            ProjectChange::Delete(_)
            | ProjectChange::PutSecret(_)
            | ProjectChange::DeleteSecret { .. }
            | ProjectChange::ReadCalls => Vec::new(),
        };
        for row in proposed {
            let stays = self.projects.rows.get(&row.id).is_some_and(|known| known.spec.name == row.spec.name);
            if !stays {
                self.projects.names.remove(&(row.project.clone(), row.spec.name.clone()));
            }
        }
        self.refuse(conn, fault);
    }

    /// Rows and secrets whose last change has an unknown outcome are made to agree with what is known here.
    pub(in crate::core) fn flush_projects(&mut self) {
        let (rows, secrets) = self.servers.outbox.take_projects();
        for id in rows {
            let op = match self.projects.rows.get(&id) {
                Some(row) => StoreOp::PutExternal(Box::new((**row).clone())),
                None => StoreOp::DeleteExternal { id },
            };
            let seq = self.servers.outbox.issue(Pending::ReconcileRow { id });
            self.effects.outputs.push_back(Output::Store { seq, op });
        }
        for key in secrets {
            let op = match self.projects.secrets.get(&key) {
                Some(secret) => StoreOp::PutSecret(secret.clone()),
                None => StoreOp::DeleteSecret { project: key.0.clone(), name: key.1.clone() },
            };
            let seq = self.servers.outbox.issue(Pending::ReconcileSecret { key });
            self.effects.outputs.push_back(Output::Store { seq, op });
        }
    }
}

impl ProjectChange {
    /// The rows that may not say what is true if its outcome is unknown.
    pub fn rows(&self) -> Vec<ExternalId> {
        match self {
            ProjectChange::Create(row) | ProjectChange::Update(row) => vec![row.id],
            ProjectChange::Delete(id) => vec![*id],
            ProjectChange::Replace { rows, gone, .. } => {
                rows.iter().map(|row| row.id).chain(gone.iter().copied()).collect()
            }
            ProjectChange::PutSecret(_) | ProjectChange::DeleteSecret { .. } | ProjectChange::ReadCalls => Vec::new(),
        }
    }

    /// The same of a secret.
    pub fn secret(&self) -> Option<(ProjectId, String)> {
        match self {
            ProjectChange::PutSecret(secret) => Some((secret.project.clone(), secret.name.clone())),
            ProjectChange::DeleteSecret { project, name } => Some((project.clone(), name.clone())),
            ProjectChange::Create(_)
            | ProjectChange::Update(_)
            | ProjectChange::Delete(_)
            | ProjectChange::Replace { .. }
            | ProjectChange::ReadCalls => None,
        }
    }
}
