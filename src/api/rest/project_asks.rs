//! From a request to what it asks of a project, one function for each row of the routes of projects. Whoever sends the
//! request may use the project.

use crate::api::definition::strict_json;
use crate::api::projects::{bodies, fields};
use crate::api::request::{Ask, Change, ExternalRef, ProjectAsk};
use crate::api::rest::Interpreted;
use crate::api::rest::asks::Incoming;
use crate::model::external::{CallFilter, ProjectId};
use crate::model::fault::Fault;

type Asked<'a> = Result<Interpreted<'a>, Fault>;

impl<'a> Incoming<'_, 'a> {
    fn asks_of(self, project: ProjectId, ask: ProjectAsk<'a>) -> Asked<'a> {
        self.asks(Ask::Project { project, ask })
    }
}

// --- servers ----------------------------------------------------------------------------------------------------------

pub fn all<'a>(incoming: Incoming<'_, 'a>) -> Asked<'a> {
    incoming.asks(Ask::Projects)
}

pub fn servers<'a>(project: ProjectId, incoming: Incoming<'_, 'a>) -> Asked<'a> {
    incoming.asks_of(project, ProjectAsk::Servers)
}

pub fn create<'a>(project: ProjectId, incoming: Incoming<'_, 'a>) -> Asked<'a> {
    let spec = Box::new(fields::from_fields(strict_json::object(incoming.body()?)?)?);
    incoming.asks_of(project, ProjectAsk::Create { spec })
}

pub fn server<'a>(project: ProjectId, server: ExternalRef, incoming: Incoming<'_, 'a>) -> Asked<'a> {
    incoming.asks_of(project, ProjectAsk::Server { server })
}

pub fn patch<'a>(project: ProjectId, server: ExternalRef, incoming: Incoming<'_, 'a>) -> Asked<'a> {
    let change = Box::new(Change { fields: strict_json::object(incoming.body()?)? });
    incoming.asks_of(project, ProjectAsk::Patch { server, change })
}

pub fn delete<'a>(project: ProjectId, server: ExternalRef, incoming: Incoming<'_, 'a>) -> Asked<'a> {
    incoming.asks_of(project, ProjectAsk::Delete { server })
}

pub fn connect<'a>(project: ProjectId, server: ExternalRef, incoming: Incoming<'_, 'a>) -> Asked<'a> {
    incoming.asks_of(project, ProjectAsk::Connect { server })
}

pub fn disconnect<'a>(project: ProjectId, server: ExternalRef, incoming: Incoming<'_, 'a>) -> Asked<'a> {
    incoming.asks_of(project, ProjectAsk::Disconnect { server })
}

pub fn unload<'a>(project: ProjectId, incoming: Incoming<'_, 'a>) -> Asked<'a> {
    incoming.asks_of(project, ProjectAsk::Unload)
}

pub fn manifest<'a>(project: ProjectId, product: String, incoming: Incoming<'_, 'a>) -> Asked<'a> {
    let servers = fields::manifest(strict_json::object(incoming.body()?)?)?;
    incoming.asks_of(project, ProjectAsk::Manifest { product, servers })
}

// --- secrets ----------------------------------------------------------------------------------------------------------

pub fn secrets<'a>(project: ProjectId, incoming: Incoming<'_, 'a>) -> Asked<'a> {
    incoming.asks_of(project, ProjectAsk::Secrets)
}

pub fn secret_put<'a>(project: ProjectId, name: String, incoming: Incoming<'_, 'a>) -> Asked<'a> {
    let value = bodies::secret_value(incoming.body()?)?;
    incoming.asks_of(project, ProjectAsk::SecretPut { name, value })
}

pub fn secret_delete<'a>(project: ProjectId, name: String, incoming: Incoming<'_, 'a>) -> Asked<'a> {
    incoming.asks_of(project, ProjectAsk::SecretDelete { name })
}

// --- tools ------------------------------------------------------------------------------------------------------------

pub fn tools<'a>(project: ProjectId, incoming: Incoming<'_, 'a>) -> Asked<'a> {
    incoming.asks_of(project, ProjectAsk::Tools)
}

pub fn call_tool<'a>(project: ProjectId, incoming: Incoming<'_, 'a>) -> Asked<'a> {
    let call = Box::new(bodies::tool_call(incoming.body()?)?);
    incoming.asks_of(project, ProjectAsk::CallTool(call))
}

pub fn calls<'a>(project: ProjectId, mut incoming: Incoming<'_, 'a>) -> Asked<'a> {
    let query = &mut incoming.query;
    let filter = CallFilter {
        server: query.text("server"),
        tool: query.text("tool"),
        run_id: query.text("run_id"),
        since_unix_ms: query.time("since")?,
        limit: query.count("limit")?,
    };
    incoming.asks_of(project, ProjectAsk::Calls(filter))
}
