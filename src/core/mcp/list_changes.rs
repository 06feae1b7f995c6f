//! Who hears that a list of a server has changed, and how often. Those who use one server hear of each list that was fetched
//! and is different (`listings.rs` fetches them no more often than is good for anybody); those who see several servers at once
//! hear of the first change at once and of all that follow once in a while. Invariant: nobody hears of a server that it does
//! not see, and whoever sees one hears of its last change.

use crate::core::effects::Timer;
use crate::core::links::link::Status;
use crate::core::mcp::endpoint::{McpEndpoint, Offers};
use crate::core::mcp::era::stateless::Support;
use crate::core::mcp::responses::Replies;
use crate::core::mcp::sessions::Listening;
use crate::core::peers::life::Life;
use crate::core::peers::listings::Listing;
use crate::core::peers::peer::Role;
use crate::core::servers::server::Origin;
use crate::ids::{PeerId, ServerId};
use crate::limits::LIST_PAUSE;
use crate::model::external::ProjectId;
use crate::model::principal::Limits;
use crate::wire::jsonrpc;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What those who see several servers at once have not been told yet.
#[derive(Default, Serialize, Deserialize)]
pub(in crate::core) struct JointNews {
    tools: Untold,
    prompts: Untold,
    resources: Untold,
}

#[derive(Default, Serialize, Deserialize)]
struct Untold {
    /// Nobody hears more before.
    quiet_until_ms: u64,
    /// The servers whose list has changed meanwhile.
    servers: BTreeSet<Changed>,
}

/// As far as it decides who hears of it.
#[derive(PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(in crate::core) struct Changed {
    name: String,
    project: Option<ProjectId>,
    origin: Origin,
}

impl Changed {
    fn concerns(&self, at: &McpEndpoint, sees: &Limits) -> bool {
        match (at, self.origin) {
            (McpEndpoint::Server(_), _) | (McpEndpoint::All, Origin::Project(_)) => false,
            (McpEndpoint::All, Origin::Registered) => sees.allow_server(&self.name, self.project.as_ref()),
            (McpEndpoint::Project(project), _) => self.project.as_ref() == Some(project) && sees.allow_project(project),
        }
    }
}

impl JointNews {
    fn of(&mut self, list: Listing) -> &mut Untold {
        match list {
            Listing::Tools => &mut self.tools,
            Listing::Prompts => &mut self.prompts,
            Listing::Resources | Listing::Templates => &mut self.resources,
        }
    }
}

impl Replies<'_> {
    /// Those who use a server by this peer hear of a list of it that has changed. `at`: the server, if those without sessions
    /// hear of it by this peer, too.
    pub fn list_changed(&mut self, peer: PeerId, list: Listing, at: Option<ServerId>) {
        self.effects.charge_search(self.mcp.everybody());
        for session in self.mcp.sessions.of_peer(peer) {
            self.tell_session(session, jsonrpc::message(list.changed(), None));
        }
        if let Some(of) = at {
            self.tell_listeners(list, |listening| listening.at == McpEndpoint::Server(of));
        }
    }

    /// For those who see several servers at once.
    pub fn joint_changed(&mut self, list: Listing, changed: Changed) {
        let untold = self.mcp.joint_news.of(list);
        untold.servers.insert(changed);
        match untold.quiet_until_ms {
            until_ms if until_ms > self.effects.now.mono_ms => {
                self.effects.deadlines.set(Timer::JointList(list.told_as()), until_ms);
            }
            _ => self.tell_joint(list),
        }
    }

    /// All that has changed since the last time.
    pub fn tell_joint(&mut self, list: Listing) {
        let untold = self.mcp.joint_news.of(list);
        let servers = std::mem::take(&mut untold.servers);
        if servers.is_empty() {
            return;
        }
        untold.quiet_until_ms = self.effects.now.mono_ms + LIST_PAUSE.as_millis() as u64;
        let sees_one = |at: &McpEndpoint, sees: &Limits| servers.iter().any(|changed| changed.concerns(at, sees));
        for session in self.mcp.sessions.sorted(|session| sees_one(&session.endpoint, &session.sees)) {
            self.tell_session(session, jsonrpc::message(list.changed(), None));
        }
        self.tell_listeners(list, |listening| sees_one(&listening.at, &listening.sees));
    }

    fn tell_listeners(&mut self, list: Listing, is: impl Fn(&Listening) -> bool) {
        let wants = |listening: &Listening| match list {
            Listing::Tools => listening.tools,
            Listing::Prompts => listening.prompts,
            Listing::Resources | Listing::Templates => listening.resources,
        };
        for (post, subscription) in self.mcp.listeners(|listening| is(listening) && wants(listening)) {
            let params = crate::core::mcp::notifications::tagged(&subscription, None);
            self.emit(post, jsonrpc::message(list.changed(), Some(&params)));
        }
    }
}

impl Offers<'_> {
    /// The server of a main peer, as far as it decides who hears of its lists: several servers are offered by their main peers.
    pub fn changed(self, peer: PeerId) -> Option<Changed> {
        let main = self.peers.known.get(&peer).filter(|peer| peer.role == Role::Main)?;
        let server = self.servers.known.get(&main.server)?;
        let (name, project) = (main.definition.name.clone(), self.project_of(server.id).cloned());
        Some(Changed { name, project, origin: server.origin })
    }

    /// The server whose clients without sessions hear of its lists by this peer: the one that serves them.
    pub fn told_by(self, peer: PeerId) -> Option<ServerId> {
        let peer = self.peers.known.get(&peer)?;
        let server = self.servers.known.get(&peer.server)?;
        match peer.role {
            Role::Main => {
                Some(server.id).filter(|_| !matches!(server.support, Support::Yes(other) if other != peer.id))
            }
            Role::Stateless => Some(server.id),
            Role::Session(_) => None,
        }
    }

    /// Does a link to an external server stand in lists? None: it is being connected, and is as it was, so that whoever asks for a
    /// list that it is not in hears of nothing.
    pub fn is_offered(self, id: ServerId) -> Option<bool> {
        let (_, main) = self.with_main(id)?;
        let Life::External(life) = &main.life else { return None };
        match life.link_status() {
            Status::Idle | Status::Connected | Status::Reconnecting => Some(true),
            Status::CircuitOpen | Status::Failed | Status::Disabled => Some(false),
            Status::Connecting => None,
        }
    }
}
