//! Projects: their external servers, their secrets, and what clients ask of both. An external server is a server like any other
//! to whoever calls it; what is its own is where it comes from (a row of a project) and how its peer lives
//! (`links/external.rs`). Owns the rows and secrets as they are in the store. Invariant: a row that is known has a server of
//! the same id, and that server's peer has a link.

pub mod asks;
pub mod carriers;
pub mod checks;
#[cfg(debug_assertions)]
mod invariants;
pub mod records;
pub mod rows;
pub mod sources;
pub mod tools;
pub mod waits;

use crate::api::projects::fill;
use crate::core::projects::asks::ProjectChange;
use crate::core::projects::tools::{ToolCalls, ToolWait};
use crate::core::projects::waits::McpWait;
use crate::core::servers::call_records::CallRecords;
use crate::ids::{ConnId, ServerId, Uuid};
use crate::model::external::{
    ExternalId, ExternalServer, ProjectId, SecretView, Secrets, StoredSecret, ToolCallRecord,
};
use crate::model::principal::Principal;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

#[derive(Default, Serialize, Deserialize)]
pub(in crate::core) struct Projects {
    rows: BTreeMap<ExternalId, Arc<ExternalServer>>,
    /// Also of rows that are not durable yet.
    names: BTreeMap<(ProjectId, String), ExternalId>,
    secrets: BTreeMap<(ProjectId, String), StoredSecret>,
    /// The hosted servers that belong to a project.
    hosted: BTreeSet<(ProjectId, ServerId)>,
    /// Rows with a change on its way to the store.
    changing: BTreeSet<ExternalId>,
    waits: BTreeMap<ConnId, ToolWait>,
    /// Requests of MCP clients that wait for links.
    mcp_waits: BTreeMap<u64, McpWait>,
    mcp_waits_minted: u64,
    calls: ToolCalls,
    records: CallRecords,
}

impl Projects {
    /// By name.
    pub fn of<'p>(&'p self, project: &'p ProjectId) -> impl Iterator<Item = &'p Arc<ExternalServer>> {
        let from = (project.clone(), String::new());
        let own = self.names.range(from..).take_while(move |((of, _), _)| of == project);
        own.filter_map(|(_, id)| self.rows.get(id))
    }

    /// A hosted server belongs to this project from here on, and not to that any more.
    pub fn place(&mut self, server: ServerId, before: Option<&ProjectId>, now: Option<&ProjectId>) {
        if let Some(before) = before {
            self.hosted.remove(&(before.clone(), server));
        }
        if let Some(now) = now {
            self.hosted.insert((now.clone(), server));
        }
    }

    pub fn row(&self, id: ExternalId) -> Option<&Arc<ExternalServer>> {
        self.rows.get(&id)
    }

    /// By name: who has it, and the row if the store has it already.
    pub fn named(&self, project: &ProjectId, name: &str) -> Option<(ExternalId, Option<&Arc<ExternalServer>>)> {
        let id = *self.names.get(&(project.clone(), name.to_string()))?;
        Some((id, self.rows.get(&id)))
    }

    /// Of all projects that this caller may use, by project and name.
    pub fn used_by(&self, who: &Principal) -> impl Iterator<Item = &Arc<ExternalServer>> {
        let own = self.names.iter().filter(|((project, _), _)| who.may_use(project));
        own.filter_map(|(_, id)| self.rows.get(id))
    }

    /// Nobody else gets the name of a row that is on its way to the store.
    pub fn hold_name(&mut self, row: &ExternalServer) {
        self.names.insert((row.project.clone(), row.spec.name.clone()), row.id);
    }

    pub fn free_name(&mut self, row: &ExternalServer) {
        self.names.remove(&(row.project.clone(), row.spec.name.clone()));
    }

    pub fn secret_views(&self, project: &ProjectId) -> Vec<SecretView> {
        self.secrets.values().filter(|secret| secret.project == *project).map(SecretView::from).collect()
    }

    /// Those that wait for the store.
    pub fn records(&self) -> &CallRecords {
        &self.records
    }

    /// The next batch of records, unless one is out.
    pub fn take_records(&mut self) -> Option<Vec<ToolCallRecord>> {
        self.records.take_batch()
    }

    /// Records have waited for others to come.
    pub fn records_have_waited(&mut self) {
        self.records.end_pause();
    }

    /// The hosted servers that belong to it.
    pub fn hosted_of<'p>(&'p self, project: &'p ProjectId) -> impl Iterator<Item = ServerId> {
        let from = (project.clone(), ServerId(Uuid::nil()));
        self.hosted.range(from..).take_while(move |(of, _)| of == project).map(|(_, server)| *server)
    }

    /// The change has an outcome.
    pub fn settle_rows(&mut self, change: &ProjectChange) {
        for id in change.rows() {
            self.changing.remove(&id);
        }
    }

    pub fn secrets_of(&self, project: &ProjectId) -> Secrets {
        let from = (project.clone(), String::new());
        let own = self.secrets.range(from..).take_while(|((of, _), _)| of == project);
        Secrets(own.map(|((_, name), secret)| (name.clone(), secret.value.clone())).collect())
    }

    /// Rows that mention a secret.
    pub fn using(&self, project: &ProjectId, name: &str) -> Vec<Arc<ExternalServer>> {
        self.of(project).filter(|row| fill::mentioned(&row.spec).contains(name)).cloned().collect()
    }
}

/// An external server is known under the same id as its row.
pub(in crate::core) fn server_of(id: ExternalId) -> ServerId {
    ServerId(id.0)
}
