//! Peers that belong to one session: of servers with `shared: false`. Such a one has an instance of its own, with the
//! definition of its server. Invariant: it has one session, is known in it, and goes with it.

use crate::core::Core;
use crate::core::hosting::lifecycle::Event;
use crate::core::mcp::sessions::Session;
use crate::core::peers::peer::{Peer, Role};
use crate::ids::{PeerId, ServerId, SessionId};
use crate::limits::PRIVATE_INSTANCES_MAX;
use crate::model::fault::{Code, Fault};
use crate::shares::{Owner, Resource, Short};
use std::sync::Arc;

impl Core {
    /// Who serves a session's requests to a server: the main peer, or one of its own where the server is not shared.
    pub(in crate::core) fn serving(&mut self, session: SessionId, server: ServerId) -> Result<PeerId, Fault> {
        let known = &self.servers.known[&server];
        if known.definition.shared {
            return Ok(known.main);
        }
        match self.mcp.sessions.get(session).and_then(|session| session.private.get(&server)) {
            Some(own) => Ok(*own),
            None => self.start_session_peer(session, server),
        }
    }

    fn start_session_peer(&mut self, session: SessionId, server: ServerId) -> Result<PeerId, Fault> {
        let main = self.main_of(server);
        main.admits(self.effects.now.mono_ms + main.definition.request_timeout_ms, self.effects.now)?;
        self.make_private_room(session, server)?;
        let id = self.peers.mint();
        let main = self.main_of(server);
        let mut definition = (*main.definition).clone();
        // The ports are the main peer's.
        definition.ports.clear();
        log::info!("server={} an instance is started for one session", definition.name);
        let mut own = Peer::new(id, server, Role::Session(session), Arc::new(definition));
        // It will say the same of itself; until then this is what can be told to its client.
        (own.advertised, own.dialect) = (main.advertised.clone(), main.dialect);
        self.peers.known.insert(id, own);
        self.mcp.sessions.get_mut(session).expect("it asks").private.insert(server, id);
        self.advance(id, Event::Start);
        Ok(id)
    }

    /// A place for one more instance, of the session's owner and of the server. Those on their way out take their time and
    /// a place beside it, so there may be twice as many for a while.
    fn make_private_room(&mut self, asking: SessionId, server: ServerId) -> Result<(), Fault> {
        let full = |what: &str| {
            Err(Fault::new(Code::Unavailable, format!("{what} instances for single sessions run already"))
                .retry_after_ms(10_000))
        };
        let private = self.peers.known.values().filter(|peer| matches!(peer.role, Role::Session(_)));
        if private.count() >= 2 * PRIVATE_INSTANCES_MAX {
            return full("all the");
        }
        let name = Arc::clone(&self.mcp.sessions.get(asking).expect("it asks").owner);
        let owners = [Owner::Principal(Arc::clone(&name)), Owner::Server(server)];
        let has = |session: &Session| session.private.len();
        let has_one_of_it = |session: &Session| usize::from(session.private.contains_key(&server));
        loop {
            let (idlest, what) = match self.effects.shares.take_for(&owners, Resource::PrivateInstances, 1) {
                Ok(()) => return Ok(()),
                Err((0, Short::Owner)) => (self.mcp.sessions.idlest_of(&name, has, Some(asking)), "as many of your"),
                Err((_, Short::Owner)) => {
                    (self.mcp.sessions.idlest(has_one_of_it, Some(asking)), "as many of this server's")
                }
                Err((_, Short::Whole)) => (self.mcp.sessions.idlest(has, Some(asking)), "all the"),
            };
            let Some(idlest) = idlest else { return full(what) };
            self.end_session(idlest, "its instance made room for another's");
        }
    }

    pub(in crate::core) fn give_private_back(&mut self, owner: &Arc<str>, server: ServerId) {
        let owners = [Owner::Principal(Arc::clone(owner)), Owner::Server(server)];
        self.effects.shares.give_back_for(&owners, Resource::PrivateInstances, 1);
    }

    /// The life of the main peer changes: whoever has an instance of the old one begins anew.
    pub(in crate::core) fn retire_session_peers(&mut self, server: ServerId) {
        let of_it = |peer: &&Peer| peer.server == server && matches!(peer.role, Role::Session(_));
        let mut own: Vec<PeerId> = self.peers.known.values().filter(of_it).map(|peer| peer.id).collect();
        own.sort();
        for id in own {
            self.release_session_peer(id, "its server was stopped or changed");
        }
    }

    pub(in crate::core) fn release_session_peer(&mut self, id: PeerId, why: &str) {
        let Some(peer) = self.peers.known.get(&id) else { return };
        let Role::Session(session) = peer.role else { return };
        let server = peer.server;
        match self.mcp.sessions.get_mut(session) {
            Some(known) if known.peer == Some(id) => self.end_session(session, why),
            // At the endpoint of all servers the session has others, and may start this one again.
            Some(known) => {
                known.private.remove(&server);
                let owner = Arc::clone(&known.owner);
                known.subscriptions.retain(|(peer, _)| *peer != id);
                self.give_private_back(&owner, server);
                self.dismiss(id);
            }
            None => self.dismiss(id),
        }
    }
}
