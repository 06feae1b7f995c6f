//! Questions to the rows of projects: which is meant, and what keeps a change of it from being made: names, numbers, a change that
//! is on its way already, and what the configuration lets those who are limited write into a row (`model::ceilings` has these
//! rules). Owns nothing, changes nothing.

use crate::api::projects::fields;
use crate::api::request::{ExternalRef, ProjectAsk};
use crate::core::Settings;
use crate::core::effects::Effects;
use crate::core::projects::Projects;
use crate::core::servers::Servers;
use crate::limits::{EXTERNALS_MAX, EXTERNALS_PER_PROJECT};
use crate::model::definition::Definition;
use crate::model::external::{ExternalId, ExternalServer, ExternalSpec, ProjectId};
use crate::model::fault::{Code, Fault};
use crate::model::principal::Principal;
use std::sync::Arc;

impl Projects {
    /// By name, or by id within the project.
    pub fn find_row(&self, project: &ProjectId, server: &ExternalRef) -> Result<Arc<ExternalServer>, Fault> {
        let id = match server {
            ExternalRef::Id(id) => Some(*id),
            ExternalRef::Name(name) => self.names.get(&(project.clone(), name.clone())).copied(),
        };
        let row = id.and_then(|id| self.rows.get(&id)).filter(|row| row.project == *project);
        row.cloned().ok_or_else(|| {
            let asked = match server {
                ExternalRef::Id(id) => id.to_string(),
                ExternalRef::Name(name) => name.clone(),
            };
            Fault::new(Code::NotFound, format!("project {project} has no server {asked}"))
        })
    }

    pub fn check_name(
        &self,
        project: &ProjectId,
        name: &str,
        own: Option<ExternalId>,
        servers: &Servers,
    ) -> Result<(), Fault> {
        match self.names.get(&(project.clone(), name.to_string())) {
            Some(taken) if Some(*taken) != own => {
                let message = format!("name: project {project} has a server named {name} already");
                Err(Fault::new(Code::NameTaken, message).with("field", "name"))
            }
            Some(_) | None => self.check_member_name(project, name, servers),
        }
    }

    /// No hosted server of the project may have it, or be about to: both stand in one list.
    fn check_member_name(&self, project: &ProjectId, name: &str, servers: &Servers) -> Result<(), Fault> {
        let is_it = |definition: &Definition| definition.name == name && definition.project.as_ref() == Some(project);
        let mut hosted = self.hosted_of(project).filter_map(|id| servers.known.get(&id));
        let taken = hosted.any(|server| server.removing.is_none() && is_it(&server.definition));
        match taken || servers.outbox.proposed().any(|(_, definition)| is_it(definition)) {
            false => Ok(()),
            true => {
                let message = format!("name: a hosted server named {name} belongs to project {project}");
                Err(Fault::new(Code::NameTaken, message).with("field", "name"))
            }
        }
    }

    /// The same from the other side.
    pub fn check_external_name(&self, definition: &Definition) -> Result<(), Fault> {
        let Some(project) = &definition.project else { return Ok(()) };
        match self.names.contains_key(&(project.clone(), definition.name.clone())) {
            false => Ok(()),
            true => {
                let message = format!("name: project {project} has an external server named {}", definition.name);
                Err(Fault::new(Code::NameTaken, message).with("field", "name"))
            }
        }
    }

    pub fn check_row_count(&self, project: &ProjectId, more: usize) -> Result<(), Fault> {
        let own = self.of(project).count() + more;
        let message = match (own > EXTERNALS_PER_PROJECT, self.names.len() + more > EXTERNALS_MAX) {
            (true, _) => format!("a project has at most {EXTERNALS_PER_PROJECT} external servers"),
            (false, true) => format!("this daemon knows at most {EXTERNALS_MAX} external servers"),
            (false, false) => return Ok(()),
        };
        Err(Fault::new(Code::Unavailable, message))
    }

    /// One change at a time: the next must see the outcome of the last.
    pub fn check_settled(&self, id: ExternalId) -> Result<(), Fault> {
        match self.changing.contains(&id) {
            false => Ok(()),
            true => {
                let message = "another change of this server is being stored";
                Err(Fault::new(Code::Unavailable, message).retry_after_ms(1_000))
            }
        }
    }

    pub fn check_row_ceilings(
        &self,
        who: &Principal,
        project: &ProjectId,
        ask: &ProjectAsk<'_>,
        settings: &Settings,
    ) -> Result<(), Fault> {
        if !who.is_limited() {
            return Ok(());
        }
        let admit = |old: Option<&ExternalSpec>, new: &ExternalSpec| settings.check_row_ceiling(who, old, new);
        match ask {
            ProjectAsk::Create { spec } => admit(None, spec),
            ProjectAsk::Patch { server, change } => {
                let row = self.find_row(project, server)?;
                admit(Some(&row.spec), &fields::merge(&row.spec, &change.fields)?)
            }
            ProjectAsk::Manifest { servers, product: _ } => servers.iter().try_for_each(|spec| {
                let id = self.names.get(&(project.clone(), spec.name.clone()));
                admit(id.and_then(|id| self.rows.get(id)).map(|row| &row.spec), spec)
            }),
            ProjectAsk::Servers
            | ProjectAsk::Server { .. }
            | ProjectAsk::Delete { .. }
            | ProjectAsk::Connect { .. }
            | ProjectAsk::Disconnect { .. }
            | ProjectAsk::Unload
            | ProjectAsk::SecretPut { .. }
            | ProjectAsk::SecretDelete { .. }
            | ProjectAsk::Secrets
            | ProjectAsk::Tools
            | ProjectAsk::CallTool(_)
            | ProjectAsk::Calls(_)
            | ProjectAsk::Mcp(_) => Ok(()),
        }
    }
}

/// A row that is new here.
pub(in crate::core) fn new_row(
    project: &ProjectId,
    product: Option<String>,
    spec: ExternalSpec,
    effects: &mut Effects,
) -> Arc<ExternalServer> {
    let (id, now) = (ExternalId(effects.entropy.uuid()), effects.now.unix_ms);
    let project = project.clone();
    Arc::new(ExternalServer { id, project, product, spec, created_unix_ms: now, updated_unix_ms: now })
}
