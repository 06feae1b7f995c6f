//! Where MCP clients come in: at one server, at all servers at once, or at all of a project. Owns which servers each of these
//! offers, and to whom. Invariant: external servers are offered by their project alone, and nobody is offered a server that
//! they may not see.

use crate::core::Settings;
use crate::core::contract::Now;
use crate::core::hosting::lifecycle::State;
use crate::core::peers::Peers;
use crate::core::peers::life::Life;
use crate::core::peers::listings::Listing;
use crate::core::peers::peer::Peer;
use crate::core::projects::Projects;
use crate::core::projects::server_of;
use crate::core::servers::Servers;
use crate::core::servers::server::{Origin, Server};
use crate::ids::ServerId;
use crate::model::external::ProjectId;
use crate::model::principal::Limits;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

/// What is offered where: servers, the projects they belong to and the peers that speak for them, side by side. A look, and
/// nothing that could be changed.
#[derive(Clone, Copy)]
pub(in crate::core) struct Offers<'a> {
    pub servers: &'a Servers,
    pub projects: &'a Projects,
    pub peers: &'a Peers,
    pub settings: &'a Settings,
    pub now: Now,
}

impl<'a> Offers<'a> {
    /// Of a server that is known: it, and the conversation that everybody shares.
    pub fn with_main(self, id: ServerId) -> Option<(&'a Server, &'a Peer)> {
        let server = self.servers.known.get(&id)?;
        Some((server, &self.peers.known[&server.main]))
    }

    /// By name. A hosted server that is stopped is not among them, nor an external one that is disabled; one that is not up
    /// just now is.
    pub fn visible(self, at: &McpEndpoint, sees: &Limits) -> Vec<&'a Server> {
        match at {
            McpEndpoint::Server(server) => self.servers.known.get(server).into_iter().collect(),
            McpEndpoint::All => self.visible_hosted(sees),
            McpEndpoint::Project(project) if sees.allow_project(project) => self.members(project),
            McpEndpoint::Project(_) => Vec::new(),
        }
    }

    fn visible_hosted(self, sees: &Limits) -> Vec<&'a Server> {
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
    pub fn members(self, project: &ProjectId) -> Vec<&'a Server> {
        let enabled = self.projects.of(project).filter(|row| row.spec.enabled);
        let external = enabled.filter_map(|row| self.servers.known.get(&server_of(row.id)));
        let hosted = self.projects.hosted_of(project).filter_map(|id| self.servers.known.get(&id)).filter(is_up);
        let mut all: Vec<&'a Server> = external.chain(hosted).collect();
        all.sort_by(|a, b| a.definition.name.cmp(&b.definition.name));
        all
    }

    /// The project that a server is offered in.
    pub fn project_of(self, server: ServerId) -> Option<&'a ProjectId> {
        let server = self.servers.known.get(&server)?;
        match server.origin {
            Origin::Registered => server.definition.project.as_ref(),
            Origin::Project(row) => self.projects.row(row).map(|row| &row.project),
        }
    }

    /// Its link is on the way up for those who use it first.
    pub fn is_coming(self, server: ServerId) -> bool {
        let Some((_, main)) = self.with_main(server) else { return false };
        matches!(main.life, Life::External(_))
            && main.life.ready_instance().is_none()
            && main.admits(u64::MAX, self.now).is_ok()
    }

    /// It has not told its list, but may in a moment.
    pub fn is_awaited(self, server: &Server, list: Listing) -> bool {
        let main = &self.peers.known[&server.main];
        let known = main.list(list).text.is_some();
        // Everybody is asked for tools first, and for the rest when that is on its way.
        let is_asked = main.list(Listing::Tools).is_asked() || main.list(list).is_asked();
        let told = main.life.ready_instance().is_some() && (known || !is_asked);
        match main.life {
            Life::External(_) => !told && main.admits(u64::MAX, self.now).is_ok(),
            Life::Hosted(_) => {
                let is_starting = matches!(
                    main.life.state(),
                    State::Pulling
                        | State::Due
                        | State::Launching { .. }
                        | State::Greeting { .. }
                        | State::Ready { .. }
                );
                main.definition.stdio_bridge && is_starting && !known && !told
            }
        }
    }
}

fn is_up(server: &&Server) -> bool {
    server.removing.is_none() && server.desired_up
}
