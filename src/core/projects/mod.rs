//! Projects: their external servers, their secrets, and what clients ask of both. An external server is a server like any other
//! to whoever calls it; what is its own is where it comes from (a row of a project) and how its peer lives
//! (`links/external.rs`). Owns the rows and secrets as they are in the store. Invariant: a row that is known has a server of
//! the same id, and that server's peer has a link.

pub mod asks;
pub mod carriers;
pub mod rows;
pub mod tools;

use crate::api::projects::fill;
use crate::core::projects::tools::{ToolCalls, ToolWait};
use crate::ids::{ConnId, ServerId};
use crate::model::external::{ExternalId, ExternalServer, ProjectId, Secrets, StoredSecret};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

#[derive(Default)]
pub(in crate::core) struct Projects {
    pub rows: BTreeMap<ExternalId, Arc<ExternalServer>>,
    /// Also of rows that are not durable yet.
    pub names: BTreeMap<(ProjectId, String), ExternalId>,
    pub secrets: BTreeMap<(ProjectId, String), StoredSecret>,
    /// Rows with a change on its way to the store.
    pub changing: BTreeSet<ExternalId>,
    pub waits: BTreeMap<ConnId, ToolWait>,
    pub calls: ToolCalls,
}

impl Projects {
    /// By name.
    pub fn of<'p>(&'p self, project: &'p ProjectId) -> impl Iterator<Item = &'p Arc<ExternalServer>> {
        let from = (project.clone(), String::new());
        let own = self.names.range(from..).take_while(move |((of, _), _)| of == project);
        own.filter_map(|(_, id)| self.rows.get(id))
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
