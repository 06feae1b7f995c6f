//! Where MCP clients come in: at one server, at all servers at once, or at all of a project. Owns which servers each of these
//! offers, and to whom. Invariant: external servers are offered by their project alone, and nobody is offered a server that
//! they may not see.

use crate::core::Core;
use crate::core::projects::server_of;
use crate::core::servers::server::{Origin, Server};
use crate::ids::ServerId;
use crate::model::external::ProjectId;
use crate::model::principal::Limits;
use std::collections::BTreeSet;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum McpEndpoint {
    Server(ServerId),
    /// All hosted servers.
    All,
    /// The external servers of a project, and the hosted ones that belong to it.
    Project(ProjectId),
}

impl McpEndpoint {
    pub fn server(&self) -> Option<ServerId> {
        match self {
            McpEndpoint::Server(server) => Some(*server),
            McpEndpoint::All | McpEndpoint::Project(_) => None,
        }
    }

    /// Are several servers offered here under longer names?
    pub fn is_joint(&self) -> bool {
        self.server().is_none()
    }
}

impl Core {
    /// By name. A hosted server that is stopped is not among them, nor an external one that is disabled; one that is not up
    /// just now is.
    pub(in crate::core) fn visible(&self, at: &McpEndpoint, sees: &Limits) -> Vec<&Server> {
        match at {
            McpEndpoint::Server(server) => self.servers.known.get(server).into_iter().collect(),
            McpEndpoint::All => self.visible_hosted(sees),
            McpEndpoint::Project(project) if sees.allow_project(project) => self.members(project),
            McpEndpoint::Project(_) => Vec::new(),
        }
    }

    fn visible_hosted(&self, sees: &Limits) -> Vec<&Server> {
        let found = |id: &ServerId| self.servers.known.get(id).filter(is_up);
        if !sees.is_none() && sees.projects.is_empty() {
            // Few names among many servers: those are looked up, and no other is looked at.
            let names: BTreeSet<&String> = sees.servers.iter().collect();
            return names.into_iter().filter_map(|name| self.servers.names.get(name)).filter_map(found).collect();
        }
        let allowed = |server: &&Server| sees.allow_server(&server.definition.name, server.definition.project.as_ref());
        self.servers.names.values().filter_map(found).filter(allowed).collect()
    }

    /// The servers of a project, by name.
    pub(in crate::core) fn members(&self, project: &ProjectId) -> Vec<&Server> {
        let enabled = self.projects.of(project).filter(|row| row.spec.enabled);
        let external = enabled.filter_map(|row| self.servers.known.get(&server_of(row.id)));
        let hosted = self.projects.hosted_of(project).filter_map(|id| self.servers.known.get(&id)).filter(is_up);
        let mut all: Vec<&Server> = external.chain(hosted).collect();
        all.sort_by(|a, b| a.definition.name.cmp(&b.definition.name));
        all
    }

    /// The project that a server is offered in.
    pub(in crate::core) fn project_of(&self, server: ServerId) -> Option<&ProjectId> {
        let server = self.servers.known.get(&server)?;
        match server.origin {
            Origin::Registered => server.definition.project.as_ref(),
            Origin::Project(row) => self.projects.rows.get(&row).map(|row| &row.project),
        }
    }
}

fn is_up(server: &&Server) -> bool {
    server.removing.is_none() && server.desired_up
}
