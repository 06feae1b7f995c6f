//! Which servers of a project a client needs, and what it is told of them: a look at what is offered, and never a change.

use super::{KeptCall, ToolWait, Want};
use crate::api::response::{Answer, ProjectTool, UnavailableServer};
use crate::core::mcp::aggregate::Patience;
use crate::core::mcp::endpoint::Offers;
use crate::core::peers::life::Life;
use crate::core::peers::listings::Listing;
use crate::core::projects::server_of;
use crate::core::servers::server::{Origin, Server};
use crate::ids::{ServerId, Uuid};
use crate::limits::LIST_ITEMS_MAX;
use crate::model::external::{ExternalId, ExternalServer, ProjectId};
use crate::model::fault::{Code, Fault};
use crate::model::status::Status;
use crate::wire::backlog::Shared;
use crate::wire::json;
use std::sync::Arc;

impl<'a> Offers<'a> {
    /// Whose links are made for it.
    pub(super) fn needed(self, wait: &ToolWait) -> Vec<ServerId> {
        match &wait.want {
            Want::Tools => self.members(&wait.project).iter().map(|server| server.id).collect(),
            Want::Link(id) => vec![server_of(*id)],
            Want::Call(call) => match self.tool_server(&wait.project, call, Patience::Left) {
                Ok(Some(server)) => vec![server],
                Ok(None) => self.untold(&wait.project, &call.tool),
                Err(_) => Vec::new(),
            },
        }
    }

    /// Of those, whoever is not there yet but may be in a moment.
    pub(super) fn open(self, wait: &ToolWait) -> Vec<ServerId> {
        let mut needed = self.needed(wait);
        needed.retain(|id| match &wait.want {
            Want::Call(call) if call.server.is_some() => self.is_coming(*id),
            Want::Tools | Want::Call(_) | Want::Link(_) => {
                self.servers.known.get(id).is_some_and(|server| self.is_awaited(server, Listing::Tools))
            }
        });
        needed
    }

    pub(super) fn link_answer(self, id: ExternalId) -> Answer {
        let Some(row) = self.projects.rows.get(&id) else {
            return Answer::Refused(Fault::new(Code::NotFound, "the server was removed meanwhile"));
        };
        let (_, main) = self.with_main(server_of(id)).expect("every row has a server");
        match main.admits(u64::MAX, self.now) {
            Ok(()) => Answer::External(Box::new(self.external_view(row))),
            Err(fault) => Answer::Refused(fault),
        }
    }

    pub(super) fn tools_answer(self, project: &ProjectId) -> Answer {
        let (mut tools, mut unavailable) = (Vec::new(), Vec::new());
        // A server without a bridge has no tools to be known.
        for server in self.members(project).into_iter().filter(|server| server.definition.stdio_bridge) {
            let main = &self.peers.known[&server.main];
            let name = &server.definition.name;
            let admits = main.admits(self.now.mono_ms + main.definition.request_timeout_ms, self.now);
            let up = main.life.ready_instance().is_some();
            // A hosted server that is coming back has what it had: calls wait for it.
            let offered = match main.life {
                Life::External(_) => up,
                Life::Hosted(_) => admits.is_ok(),
            };
            match main.list(Listing::Tools).text.as_ref().filter(|_| offered) {
                Some(text) => {
                    let server: Arc<str> = name.as_str().into();
                    let items = json::named_items(text, "tools", "name", LIST_ITEMS_MAX).unwrap_or_default();
                    tools.extend(items.iter().map(|item| ProjectTool {
                        server: Arc::clone(&server),
                        tool: Shared { bytes: item.whole.get().as_bytes().into(), from: 0 },
                    }));
                }
                // It answers, and has none.
                None if up && !self.is_awaited(server, Listing::Tools) => {}
                None => {
                    let why = admits.err().unwrap_or_else(|| {
                        Fault::new(Code::UpstreamUnavailable, format!("{name} has not come up in time"))
                    });
                    unavailable.push(UnavailableServer { server: name.clone(), why });
                }
            }
        }
        Answer::ProjectTools { tools, unavailable }
    }

    /// The server that has the tool; none: somebody who has not told yet may have it. Once there is no patience left there is
    /// one, or a reason why not.
    pub(super) fn tool_server(
        self,
        project: &ProjectId,
        call: &KeptCall,
        patience: Patience,
    ) -> Result<Option<ServerId>, Fault> {
        if let Some(named) = &call.server {
            let missing = || Fault::new(Code::NotFound, format!("project {project} has no server {named}"));
            return self.member_named(project, named).map(Some).ok_or_else(missing);
        }
        if patience == Patience::Left && !self.untold(project, &call.tool).is_empty() {
            return Ok(None);
        }
        match self.having(project, &call.tool).as_slice() {
            [server] => Ok(Some(server.id)),
            [] => Err(self.without_tool(project, &call.tool)),
            several => {
                let names: Vec<String> = several.iter().map(|server| server.definition.name.clone()).collect();
                let message = format!(
                    "{} servers have the tool {}: {}; say which by `server`",
                    names.len(),
                    call.tool,
                    names.join(", ")
                );
                Err(Fault::new(Code::AmbiguousTool, message).with("servers", names))
            }
        }
    }

    /// Nobody is known to have the tool. As long as a server cannot be asked it may be that one's, and its trouble is the answer.
    pub(super) fn without_tool(self, project: &ProjectId, tool: &str) -> Fault {
        let untold = self.members(project).into_iter();
        let untold: Vec<&'a Server> =
            untold.filter(|server| server.definition.stdio_bridge && self.tools_of(server).is_none()).collect();
        let trouble = untold.iter().find_map(|server| {
            let main = &self.peers.known[&server.main];
            main.admits(self.now.mono_ms + main.definition.request_timeout_ms, self.now).err()
        });
        let names: Vec<String> = untold.iter().map(|server| server.definition.name.clone()).collect();
        let missing = || {
            let message = format!("no server of project {project} has the tool {tool}");
            Fault::new(Code::ToolNotFound, message)
        };
        trouble.unwrap_or_else(missing).with("unavailable", names)
    }

    /// By name or id, also one that is stopped or disabled: the call says so.
    pub(super) fn member_named(self, project: &ProjectId, named: &str) -> Option<ServerId> {
        let is_it = |row: &&Arc<ExternalServer>| row.spec.name == *named || row.id.to_string() == *named;
        if let Some(row) = self.projects.of(project).find(is_it) {
            return Some(server_of(row.id));
        }
        let by_id = Uuid::try_parse(named).ok().map(ServerId);
        let hosted = by_id.or_else(|| self.servers.names.get(named).copied())?;
        let server = self.servers.known.get(&hosted).filter(|server| server.removing.is_none())?;
        let belongs = server.origin == Origin::Registered && server.definition.project.as_ref() == Some(project);
        belongs.then_some(hosted)
    }

    pub(super) fn tools_of(self, server: &Server) -> Option<&'a Arc<[u8]>> {
        self.peers.known[&server.main].list(Listing::Tools).text.as_ref()
    }

    pub(super) fn having(self, project: &ProjectId, tool: &str) -> Vec<&'a Server> {
        let has_it = |server: &&Server| self.peers.known[&server.main].tool_names.contains(tool);
        self.members(project).into_iter().filter(has_it).collect()
    }

    /// Those that may have the tool, but have not told theirs: to be connected, or on their way up. One that was given up is
    /// tried again only if nobody else is known to have it.
    pub(super) fn untold(self, project: &ProjectId, tool: &str) -> Vec<ServerId> {
        let is_given_up = |server: &Server| self.peers.known[&server.main].life.status() == Status::Failed;
        let may_come = |server: &Server| {
            let begins = self.peers.known[&server.main].life.begins_with_use();
            self.tools_of(server).is_none() && (begins || self.is_awaited(server, Listing::Tools))
        };
        let members = self.members(project);
        let untold: Vec<&'a Server> = members.into_iter().filter(|server| may_come(server)).collect();
        let fresh: Vec<ServerId> =
            untold.iter().filter(|server| !is_given_up(server)).map(|server| server.id).collect();
        match fresh.is_empty() && self.having(project, tool).is_empty() {
            true => untold.into_iter().map(|server| server.id).collect(),
            false => fresh,
        }
    }
}
