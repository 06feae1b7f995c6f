//! Changes of projects before the store has them: whether they may be made, what is held for them meanwhile, and what the store is
//! asked. They are done once it has them (`rows.rs`). Invariant: a name is held until its change has an outcome.

use crate::api::projects::fields;
use crate::api::request::{Change, ExternalRef};
use crate::api::response::{ManifestAction, ManifestEntry};
use crate::core::contract::Now;
use crate::core::effects::Effects;
use crate::core::projects::Projects;
use crate::core::projects::checks::new_row;
use crate::core::servers::Servers;
use crate::limits::{SECRETS_MAX, SECRETS_PER_PROJECT};
use crate::model::external::{ExternalId, ExternalServer, ExternalSpec, ProjectId, Secret, SecretValue, StoredSecret};
use crate::model::fault::{Code, Fault};
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

/// A change, and what the store is asked for it.
pub(in crate::core) struct Wanted {
    pub change: ProjectChange,
    pub op: StoreOp,
}

impl Projects {
    pub fn create_row(
        &mut self,
        project: &ProjectId,
        spec: ExternalSpec,
        servers: &Servers,
        effects: &mut Effects,
    ) -> Result<Wanted, Fault> {
        self.check_name(project, &spec.name, None, servers)?;
        self.check_row_count(project, 1)?;
        servers.check_store()?;
        let row = new_row(project, None, spec, effects);
        self.names.insert((project.clone(), row.spec.name.clone()), row.id);
        let op = StoreOp::PutExternal(Box::new((*row).clone()));
        Ok(Wanted { change: ProjectChange::Create(row), op })
    }

    pub fn patch_row(
        &mut self,
        project: &ProjectId,
        server: &ExternalRef,
        change: &Change,
        servers: &Servers,
        now: Now,
    ) -> Result<Wanted, Fault> {
        let row = self.find_row(project, server)?;
        self.check_settled(row.id)?;
        let spec = fields::merge(&row.spec, &change.fields)?;
        self.check_name(project, &spec.name, Some(row.id), servers)?;
        servers.check_store()?;
        let new = Arc::new(ExternalServer { spec, updated_unix_ms: now.unix_ms, ..(*row).clone() });
        self.changing.insert(row.id);
        self.names.insert((project.clone(), new.spec.name.clone()), row.id);
        let op = StoreOp::PutExternal(Box::new((*new).clone()));
        Ok(Wanted { change: ProjectChange::Update(new), op })
    }

    pub fn delete_row(
        &mut self,
        project: &ProjectId,
        server: &ExternalRef,
        servers: &Servers,
    ) -> Result<Wanted, Fault> {
        let id = self.find_row(project, server)?.id;
        self.check_settled(id)?;
        servers.check_store()?;
        self.changing.insert(id);
        let op = StoreOp::DeleteExternal { id };
        Ok(Wanted { change: ProjectChange::Delete(id), op })
    }

    /// All or nothing; what the product had before and does not name any more goes.
    pub fn import_manifest(
        &mut self,
        project: &ProjectId,
        product: String,
        specs: Vec<ExternalSpec>,
        servers: &Servers,
        effects: &mut Effects,
    ) -> Result<Wanted, Fault> {
        let of_product = |row: &&Arc<ExternalServer>| row.product.as_ref() == Some(&product);
        let old: Vec<Arc<ExternalServer>> = self.of(project).filter(of_product).cloned().collect();
        for row in &old {
            self.check_settled(row.id)?;
        }
        let added = specs.iter().filter(|spec| !old.iter().any(|row| row.spec.name == spec.name)).count();
        self.check_row_count(project, added)?;
        let (mut rows, mut entries) = (Vec::new(), Vec::new());
        for spec in specs {
            let known = old.iter().find(|row| row.spec.name == spec.name);
            self.check_name(project, &spec.name, known.map(|row| row.id), servers)?;
            let action = match known {
                None => ManifestAction::Created,
                Some(row) if row.spec == spec => ManifestAction::Unchanged,
                Some(_) => ManifestAction::Changed,
            };
            entries.push(ManifestEntry { name: spec.name.clone(), action });
            rows.push(match (known, action) {
                (Some(row), ManifestAction::Unchanged) => Arc::clone(row),
                (Some(row), _) => {
                    let updated_unix_ms = effects.now.unix_ms;
                    Arc::new(ExternalServer { spec, updated_unix_ms, ..(**row).clone() })
                }
                (None, _) => new_row(project, Some(product.clone()), spec, effects),
            });
        }
        let leaves = |row: &&Arc<ExternalServer>| !rows.iter().any(|kept| kept.id == row.id);
        let gone: Vec<Arc<ExternalServer>> = old.iter().filter(leaves).cloned().collect();
        let removed =
            |row: &Arc<ExternalServer>| ManifestEntry { name: row.spec.name.clone(), action: ManifestAction::Removed };
        entries.extend(gone.iter().map(removed));
        let gone = gone.iter().map(|row| row.id).collect();
        servers.check_store()?;
        Ok(self.manifest_wanted(project, product, rows, gone, entries))
    }

    fn manifest_wanted(
        &mut self,
        project: &ProjectId,
        product: String,
        rows: Vec<Arc<ExternalServer>>,
        gone: Vec<ExternalId>,
        entries: Vec<ManifestEntry>,
    ) -> Wanted {
        for row in &rows {
            self.names.insert((project.clone(), row.spec.name.clone()), row.id);
        }
        self.changing.extend(rows.iter().map(|row| row.id).chain(gone.iter().copied()));
        let servers = rows.iter().map(|row| (**row).clone()).collect();
        let op = StoreOp::ReplaceProduct { project: project.clone(), product: product.clone(), servers };
        let change = ProjectChange::Replace { project: project.clone(), product, rows, gone, entries };
        Wanted { change, op }
    }

    pub fn store_secret(
        &self,
        project: &ProjectId,
        name: String,
        value: Secret,
        servers: &Servers,
        now: Now,
    ) -> Result<Wanted, Fault> {
        let known = self.secrets.get(&(project.clone(), name.clone()));
        let own = self.secrets.keys().filter(|(of, _)| of == project).count();
        if known.is_none() && (own >= SECRETS_PER_PROJECT || self.secrets.len() >= SECRETS_MAX) {
            let message =
                format!("a project has at most {SECRETS_PER_PROJECT} secrets, and all together {SECRETS_MAX}");
            return Err(Fault::new(Code::Unavailable, message));
        }
        servers.check_store()?;
        let now = now.unix_ms;
        let created_unix_ms = known.map_or(now, |known| known.created_unix_ms);
        let value = SecretValue::Open(value);
        let secret = StoredSecret { project: project.clone(), name, value, created_unix_ms, updated_unix_ms: now };
        let op = StoreOp::PutSecret(secret.clone());
        Ok(Wanted { change: ProjectChange::PutSecret(secret), op })
    }

    pub fn remove_secret(&self, project: &ProjectId, name: String, servers: &Servers) -> Result<Wanted, Fault> {
        if !self.secrets.contains_key(&(project.clone(), name.clone())) {
            return Err(Fault::new(Code::NotFound, format!("project {project} has no secret {name}")));
        }
        servers.check_store()?;
        let op = StoreOp::DeleteSecret { project: project.clone(), name: name.clone() };
        let change = ProjectChange::DeleteSecret { project: project.clone(), name };
        Ok(Wanted { change, op })
    }

    /// Nothing came of it: names that were to be taken are free again.
    pub fn project_undone(&mut self, change: &ProjectChange) {
        self.settle_rows(change);
        let proposed: Vec<&Arc<ExternalServer>> = match change {
            ProjectChange::Create(row) | ProjectChange::Update(row) => vec![row],
            ProjectChange::Replace { rows, .. } => rows.iter().collect(),
            ProjectChange::Delete(_)
            | ProjectChange::PutSecret(_)
            | ProjectChange::DeleteSecret { .. }
            | ProjectChange::ReadCalls => Vec::new(),
        };
        for row in proposed {
            let stays = self.rows.get(&row.id).is_some_and(|known| known.spec.name == row.spec.name);
            if !stays {
                self.names.remove(&(row.project.clone(), row.spec.name.clone()));
            }
        }
    }

    /// What the store is to have of a row or a secret whose last change has an unknown outcome: what is known here.
    pub fn row_as_known(&self, id: ExternalId) -> StoreOp {
        match self.rows.get(&id) {
            Some(row) => StoreOp::PutExternal(Box::new((**row).clone())),
            None => StoreOp::DeleteExternal { id },
        }
    }

    pub fn secret_as_known(&self, key: &(ProjectId, String)) -> StoreOp {
        match self.secrets.get(key) {
            Some(secret) => StoreOp::PutSecret(secret.clone()),
            None => StoreOp::DeleteSecret { project: key.0.clone(), name: key.1.clone() },
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
