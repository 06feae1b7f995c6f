//! Who hears that a list of a server has changed, and how often. Those who use one server hear of each list that was fetched
//! and is different (`listings.rs` fetches them no more often than is good for anybody); those who see all servers at once
//! hear of the first change at once and of all that follow once in a while. Invariant: nobody hears of a server that it does
//! not see, and whoever sees one hears of its last change.

use crate::core::Core;
use crate::core::effects::Timer;
use crate::core::mcp::era::stateless::Support;
use crate::core::mcp::sessions::Listening;
use crate::core::peers::listings::Listing;
use crate::core::peers::peer::Role;
use crate::ids::{PeerId, ServerId};
use crate::limits::LIST_PAUSE;
use crate::wire::jsonrpc;
use std::collections::BTreeSet;

/// What those who see all servers at once have not been told yet.
#[derive(Default)]
pub(in crate::core) struct JointNews {
    tools: Untold,
    prompts: Untold,
    resources: Untold,
}

#[derive(Default)]
struct Untold {
    /// Nobody hears more before.
    quiet_until_ms: u64,
    /// The names of the servers whose list has changed meanwhile.
    servers: BTreeSet<String>,
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
        self.charge_search();
        for session in self.mcp.sessions.of_peer(id) {
            self.tell_session(session, jsonrpc::message(list.changed(), None));
        }
        self.aggregate_changed(id, list);
        if let Some(of) = listeners_of {
            self.tell_listeners(list, |listening| listening.server == Some(of));
        }
    }

    /// For those who see all servers at once: they are offered what the main peers have.
    pub(in crate::core) fn aggregate_changed(&mut self, id: PeerId, list: Listing) {
        let Some(main) = self.peers.known.get(&id).filter(|peer| peer.role == Role::Main) else { return };
        let untold = self.mcp.joint_news.of(list);
        untold.servers.insert(main.definition.name.clone());
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
        let sees_one = |sees: &[String]| sees.is_empty() || sees.iter().any(|name| servers.contains(name));
        for session in self.mcp.sessions.sorted(|session| session.endpoint.is_none() && sees_one(&session.sees)) {
            self.tell_session(session, jsonrpc::message(list.changed(), None));
        }
        self.tell_listeners(list, |listening| listening.server.is_none() && sees_one(&listening.sees));
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
