//! Between projects and everybody else: what is asked of them, what the store has made of it, and what a change of a row or a secret
//! means to its server, its peer and its clients. What a project has and may have is known to `projects/`.

use crate::api::request::ProjectAsk;
use crate::api::response::Answer;
use crate::core::Core;
use crate::core::hosting::lifecycle::Event;
use crate::core::mcp::endpoint::McpEndpoint;
use crate::core::projects::asks::{ProjectChange, Wanted};
use crate::core::projects::server_of;
use crate::core::servers::outbox::Pending;
use crate::ids::{ConnId, StoreSeq};
use crate::model::external::{ExternalId, ProjectId, SecretView, ToolCallRecord};
use crate::model::fault::Fault;
use crate::model::principal::Principal;
use crate::model::records::StoreOp;
use std::sync::Arc;

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
            ProjectAsk::Create { spec } => {
                let wanted = self.projects.create_row(project, *spec, &self.servers, &mut self.effects)?;
                Ok(self.store_change(conn, wanted))
            }
            ProjectAsk::Patch { server, change } => {
                let now = self.effects.now;
                let wanted = self.projects.patch_row(project, &server, &change, &self.servers, now)?;
                Ok(self.store_change(conn, wanted))
            }
            ProjectAsk::Delete { server } => {
                let wanted = self.projects.delete_row(project, &server, &self.servers)?;
                Ok(self.store_change(conn, wanted))
            }
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
            ProjectAsk::SecretPut { name, value } => {
                let wanted = self.projects.store_secret(project, name, value, &self.servers, self.effects.now)?;
                Ok(self.store_change(conn, wanted))
            }
            ProjectAsk::SecretDelete { name } => {
                let wanted = self.projects.remove_secret(project, name, &self.servers)?;
                Ok(self.store_change(conn, wanted))
            }
            ProjectAsk::Secrets => Ok(Some(Answer::Secrets(self.projects.secret_views(project)))),
            ProjectAsk::Manifest { product, servers } => {
                let (known, effects) = (&self.servers, &mut self.effects);
                let wanted = self.projects.import_manifest(project, product, servers, known, effects)?;
                Ok(self.store_change(conn, wanted))
            }
            ProjectAsk::Tools => self.project_tools(conn, project),
            ProjectAsk::CallTool(call) => self.project_call(conn, who, project, *call),
            ProjectAsk::Calls(filter) => {
                self.servers.check_store()?;
                let op = StoreOp::ReadCalls { project: project.clone(), filter };
                Ok(self.store_change(conn, Wanted { change: ProjectChange::ReadCalls, op }))
            }
            ProjectAsk::Mcp(ask) => {
                self.mcp_at(conn, who, McpEndpoint::Project(project.clone()), ask);
                Ok(None)
            }
        }
    }

    /// The client waits until the store has it.
    fn store_change(&mut self, conn: ConnId, Wanted { change, op }: Wanted) -> Option<Answer> {
        self.store(conn, Pending::Project { conn, change }, op);
        None
    }

    /// By project and name.
    pub(in crate::core) fn all_externals(&self, who: &Principal) -> Answer {
        let rows = self.projects.used_by(who);
        Answer::Externals(rows.map(|row| self.offers().external_view(row)).collect())
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

    pub(in crate::core) fn calls_read(&mut self, seq: StoreSeq, calls: Vec<ToolCallRecord>) {
        if let Some(Pending::Project { conn, .. }) = self.servers.outbox.done(seq) {
            self.answer(conn, Answer::Calls(calls));
        }
    }

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

    /// Rows and secrets whose last change has an unknown outcome are made to agree with what is known here.
    pub(in crate::core) fn flush_projects(&mut self) {
        let (rows, secrets) = self.servers.outbox.take_projects();
        for id in rows {
            let op = self.projects.row_as_known(id);
            self.servers.issue(Pending::ReconcileRow { id }, op, &mut self.effects);
        }
        for key in secrets {
            let op = self.projects.secret_as_known(&key);
            self.servers.issue(Pending::ReconcileSecret { key }, op, &mut self.effects);
        }
    }
}
