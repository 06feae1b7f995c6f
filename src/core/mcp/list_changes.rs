//! Who hears that a list of a server has changed, and how often. Those who use one server hear of each list that was fetched
//! and is different (`listings.rs` fetches them no more often than is good for anybody); those who see several servers at once
//! hear of the first change at once and of all that follow once in a while. Invariant: nobody hears of a server that it does
//! not see, and whoever sees one hears of its last change.

use crate::core::Core;
use crate::core::effects::Timer;
use crate::core::links::link::Status;
use crate::core::mcp::endpoint::McpEndpoint;
use crate::core::mcp::era::stateless::Support;
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
struct Changed {
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

impl Core {
    /// Those who use a server hear of a list of it that has changed.
    pub(in crate::core) fn list_changed(&mut self, id: PeerId, list: Listing) {
        let Some(peer) = self.peers.known.get(&id) else { return };
        let Some(server) = self.servers.known.get(&peer.server) else { return };
        // Clients without sessions hear the peer that serves them.
        let listeners_of = match peer.role {
            Role::Main => Some(server.id).filter(|_| !matches!(server.support, Support::Yes(other) if other != id)),
            Role::Stateless => Some(server.id),
            Role::Session(_) => None,
        };
        self.effects.charge_search(self.mcp.everybody());
        for session in self.mcp.sessions.of_peer(id) {
            self.tell_session(session, jsonrpc::message(list.changed(), None));
        }
        self.aggregate_changed(id, list);
        if let Some(of) = listeners_of {
            self.tell_listeners(list, |listening| listening.at == McpEndpoint::Server(of));
        }
    }

    /// For those who see several servers at once: they are offered what the main peers have.
    pub(in crate::core) fn aggregate_changed(&mut self, id: PeerId, list: Listing) {
        let Some(main) = self.peers.known.get(&id).filter(|peer| peer.role == Role::Main) else { return };
        let Some(server) = self.servers.known.get(&main.server) else { return };
        let (name, project) = (main.definition.name.clone(), self.offers().project_of(server.id).cloned());
        let changed = Changed { name, project, origin: server.origin };
        let untold = self.mcp.joint_news.of(list);
        untold.servers.insert(changed);
        match untold.quiet_until_ms {
            until_ms if until_ms > self.effects.now.mono_ms => {
                self.effects.deadlines.set(Timer::JointList(list.told_as()), until_ms)
            }
            _ => self.tell_joint(list),
        }
    }

    /// All that has changed since the last time.
    pub(in crate::core) fn tell_joint(&mut self, list: Listing) {
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

    /// The link to an external server is up, or given up: what it offers comes or goes with it. One that is being connected
    /// is as it was, so that whoever asks for a list that it is not in hears of nothing.
    pub(in crate::core) fn follow_offer(&mut self, id: ServerId) {
        let Some((server, main)) = self.with_main(id) else { return };
        let Life::External(life) = &main.life else { return };
        let offered = match life.link_status() {
            Status::Idle | Status::Connected | Status::Reconnecting => true,
            Status::CircuitOpen | Status::Failed | Status::Disabled => false,
            Status::Connecting => return,
        };
        if server.offered != offered {
            self.servers.known.get_mut(&id).expect("just seen").offered = offered;
            self.offer_changed(id);
        }
    }

    /// A server has come or gone: all it offers has, too.
    pub(in crate::core) fn offer_changed(&mut self, id: ServerId) {
        for list in [Listing::Tools, Listing::Prompts, Listing::Resources] {
            if let Some((_, main)) = self.with_main(id).filter(|(_, main)| main.list(list).text.is_some()) {
                self.aggregate_changed(main.id, list);
            }
        }
    }

    fn tell_listeners(&mut self, list: Listing, is: impl Fn(&Listening) -> bool) {
        let wants = |listening: &Listening| match list {
            Listing::Tools => listening.tools,
            Listing::Prompts => listening.prompts,
            Listing::Resources | Listing::Templates => listening.resources,
        };
        for (post, subscription) in self.listeners(|listening| is(listening) && wants(listening)) {
            let params = crate::core::mcp::notifications::tagged(&subscription, None);
            self.emit(post, jsonrpc::message(list.changed(), Some(&params)));
        }
    }
}
