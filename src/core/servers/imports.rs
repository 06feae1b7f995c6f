//! All servers of a document at once: what each entry would do, and one operation of the store for those that are new.
//! Invariant: whatever is wrong with one of them, none is registered; names are held while the store is asked.

use crate::api::import::Entry;
use crate::api::import::Read;
use crate::api::import::body::Candidate;
use crate::api::response::{ImportAction, ImportedEntry};
use crate::core::mcp::endpoint::Offers;
use crate::core::servers::server::Origin;
use crate::ids::ServerId;
use crate::limits::SERVERS_MAX;
use crate::model::definition::{Definition, PortMapping};
use crate::model::external::{ExternalServer, ExternalSpec, ProjectId};
use crate::model::fault::{Code, Fault};
use crate::model::principal::Principal;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What the store is asked for.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Imported {
    pub servers: Vec<(ServerId, Arc<Definition>)>,
    pub rows: Vec<Arc<ExternalServer>>,
    pub entries: Vec<ImportedEntry>,
}

impl Offers<'_> {
    /// What each entry would do; or what keeps all of them from being done.
    pub fn judge_import(
        self,
        who: &Principal,
        project: Option<&ProjectId>,
        candidates: &[Candidate],
        dry_run: bool,
    ) -> Result<Vec<ImportAction>, Fault> {
        let mut actions = Vec::new();
        for candidate in candidates {
            let action = self.import_action(who, project, candidate);
            actions.push(action.map_err(|fault| of_entry(&candidate.entry, fault))?);
        }
        self.check_ports_of_import(who, candidates, &actions)?;
        if !dry_run {
            refuse_taken(candidates, &actions)?;
            refuse_missing(candidates, &actions)?;
        }
        if !dry_run && actions.contains(&ImportAction::Create) {
            self.check_room(project, candidates, &actions)?;
            self.servers.check_store()?;
        }
        Ok(actions)
    }

    fn import_action(
        self,
        who: &Principal,
        project: Option<&ProjectId>,
        candidate: &Candidate,
    ) -> Result<ImportAction, Fault> {
        if candidate.entry.disabled {
            return Ok(ImportAction::Disabled);
        }
        match &candidate.read {
            Read::Hosted(wanted) => {
                who.may_place_in(wanted.project.as_ref())?;
                if !who.may_see(wanted) {
                    return Err(who.forbid("a server of this name is not among those it is limited to"));
                }
                match self.servers.names.get(&wanted.name) {
                    Some(id) if self.is_same_server(*id, wanted, &candidate.entry) => Ok(ImportAction::Unchanged),
                    Some(_) => Ok(ImportAction::Taken),
                    None => {
                        self.settings.check_ceilings(who, None, wanted)?;
                        self.settings.check_place(wanted)?;
                        candidate.missing.clone().map_or(Ok(ImportAction::Create), Err)
                    }
                }
            }
            Read::External(wanted) => {
                let project = project.expect("without a project there are no such entries");
                let known = self.projects.named(project, &wanted.name);
                if known.is_none() {
                    self.settings.check_row_ceiling(who, None, wanted)?;
                }
                Ok(match known {
                    None => ImportAction::Create,
                    Some((_, Some(row))) if is_same_row(&row.spec, wanted, &candidate.entry) => ImportAction::Unchanged,
                    Some(_) => ImportAction::Taken,
                })
            }
        }
    }

    /// A variable whose value is not given keeps the one it has.
    fn is_same_server(self, id: ServerId, wanted: &Definition, entry: &Entry) -> bool {
        let Some(server) = self.servers.known.get(&id).filter(|server| server.origin == Origin::Registered) else {
            return false;
        };
        let is = &server.definition;
        if server.removing.is_some() || server.refused.is_some() {
            return false;
        }
        let mut wanted = wanted.clone();
        for name in unknown(entry, "environment") {
            let Some(value) = is.environment.get(name) else { return false };
            wanted.environment.insert(name.to_string(), value.clone());
        }
        wanted.managed_by.clone_from(&is.managed_by);
        wanted == **is
    }

    /// Nor may two of one document want the same port.
    fn check_ports_of_import(
        self,
        who: &Principal,
        candidates: &[Candidate],
        actions: &[ImportAction],
    ) -> Result<(), Fault> {
        let mut taken: Vec<&PortMapping> = Vec::new();
        for (candidate, action) in candidates.iter().zip(actions) {
            let (Read::Hosted(wanted), ImportAction::Create) = (&candidate.read, action) else { continue };
            self.servers.check_ports(wanted, who, None).map_err(|fault| of_entry(&candidate.entry, fault))?;
            if let Some(port) = wanted.ports.iter().find(|port| taken.iter().any(|other| other.collides_with(port))) {
                let message = format!("port {} of this host is wanted by another entry too", port.host);
                return Err(of_entry(&candidate.entry, Fault::new(Code::PortTaken, message)));
            }
            taken.extend(&wanted.ports);
        }
        Ok(())
    }

    fn check_room(
        self,
        project: Option<&ProjectId>,
        candidates: &[Candidate],
        actions: &[ImportAction],
    ) -> Result<(), Fault> {
        let new = || candidates.iter().zip(actions).filter(|(_, action)| **action == ImportAction::Create);
        let hosted = new().filter(|(candidate, _)| matches!(candidate.read, Read::Hosted(_))).count();
        if self.servers.names.len() + hosted > SERVERS_MAX {
            let message = format!("this daemon hosts at most {SERVERS_MAX} servers");
            return Err(Fault::new(Code::Unavailable, message));
        }
        match project {
            Some(project) => self.projects.check_row_count(project, new().count() - hosted),
            None => Ok(()),
        }
    }
}

/// Headers and variables whose values are not given keep those they have.
fn is_same_row(is: &ExternalSpec, wanted: &ExternalSpec, entry: &Entry) -> bool {
    let mut wanted = wanted.clone();
    wanted.keep_values_of(is, unknown(entry, "headers").chain(unknown(entry, "env")));
    wanted == *is
}

/// The names in a map of the definition that have no value yet.
fn unknown<'e>(entry: &'e Entry, key: &str) -> impl Iterator<Item = &'e str> {
    let values = entry.definition.get(key).and_then(serde_json::Value::as_object);
    values.into_iter().flatten().filter(|(_, value)| value.is_null()).map(|(name, _)| name.as_str())
}

/// The same fault, of one entry of the document.
fn of_entry(entry: &Entry, fault: Fault) -> Fault {
    let message = format!("`{}`: {}", entry.from, fault.message);
    Fault { message, ..fault }.with("from", entry.from.clone())
}

fn refuse_taken(candidates: &[Candidate], actions: &[ImportAction]) -> Result<(), Fault> {
    let taken = candidates.iter().zip(actions).filter(|(_, action)| **action == ImportAction::Taken);
    let taken: Vec<String> = taken.map(|(candidate, _)| candidate.entry.name.clone()).collect();
    match taken.is_empty() {
        true => Ok(()),
        false => {
            let message = format!(
                "nothing was registered: there is another server called {}; remove it first, or leave the entry out",
                taken.join(", ")
            );
            Err(Fault::new(Code::NameTaken, message).with("servers", taken))
        }
    }
}

fn refuse_missing(candidates: &[Candidate], actions: &[ImportAction]) -> Result<(), Fault> {
    let new = candidates.iter().zip(actions).filter(|(_, action)| **action == ImportAction::Create);
    let needs = new.flat_map(|(candidate, _)| candidate.entry.needs.iter().map(|need| (&candidate.entry, need)));
    let (mut lines, mut missing) = (Vec::new(), Vec::new());
    for (entry, need) in needs {
        let about = need.description.as_ref().map(|text| format!(" ({text})")).unwrap_or_default();
        lines.push(format!("{}{about}, for {}", need.name, entry.name));
        missing.push(need.name.clone());
    }
    match lines.is_empty() {
        true => Ok(()),
        false => {
            let message = format!("nothing was registered: these values are missing: {}", lines.join("; "));
            Err(Fault::new(Code::SecretMissing, message).with("missing", missing))
        }
    }
}
