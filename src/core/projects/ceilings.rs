//! What those who are limited may write into the rows of their projects: no more than the configuration lets them give a
//! server. Owns no state; `model::ceilings` has the rules.

use crate::api::projects::fields;
use crate::api::request::ProjectAsk;
use crate::core::Core;
use crate::core::clients::asks::too_much;
use crate::model::external::{ExternalSpec, ProjectId};
use crate::model::fault::Fault;
use crate::model::principal::Principal;

impl Core {
    /// `old`: what the row says now.
    pub(in crate::core) fn check_row_ceiling(
        &self,
        who: &Principal,
        old: Option<&ExternalSpec>,
        new: &ExternalSpec,
    ) -> Result<(), Fault> {
        match who.is_limited() {
            true => self.settings.ceilings.admit_row(old, new).map_err(|beyond| too_much(who, beyond)),
            false => Ok(()),
        }
    }

    pub(in crate::core) fn check_row_ceilings(
        &self,
        who: &Principal,
        project: &ProjectId,
        ask: &ProjectAsk<'_>,
    ) -> Result<(), Fault> {
        if !who.is_limited() {
            return Ok(());
        }
        let admit = |old: Option<&ExternalSpec>, new: &ExternalSpec| self.check_row_ceiling(who, old, new);
        match ask {
            ProjectAsk::Create { spec } => admit(None, spec),
            ProjectAsk::Patch { server, change } => {
                let row = self.find_row(project, server)?;
                admit(Some(&row.spec), &fields::merge(&row.spec, &change.fields)?)
            }
            ProjectAsk::Manifest { servers, product: _ } => servers.iter().try_for_each(|spec| {
                let id = self.projects.names.get(&(project.clone(), spec.name.clone()));
                admit(id.and_then(|id| self.projects.rows.get(id)).map(|row| &row.spec), spec)
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
