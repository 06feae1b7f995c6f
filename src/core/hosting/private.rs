//! Instances that belong to one session: of servers with `shared: false`. Like a companion, such an instance is a server
//! of its own to the rest of the core, with the definition of its parent; it is never listed and never stored. Invariant:
//! it has one session, is known in it, and goes with it.

use crate::core::Core;
use crate::core::hosting::lifecycle::Event;
use crate::core::mcp::sessions::Session;
use crate::core::servers::server::{Kin, Server};
use crate::ids::{ServerId, SessionId};
use crate::limits::PRIVATE_INSTANCES_MAX;
use crate::model::fault::{Code, Fault};
use crate::shares::{Owner, Resource, Short};
use std::sync::Arc;

impl Core {
    /// What serves a session's requests to a server: an instance of its own, where the server is not shared.
    pub(in crate::core) fn serving(&mut self, session: SessionId, server: ServerId) -> Result<ServerId, Fault> {
        if self.servers[&server].definition.shared {
            return Ok(server);
        }
        match self.sessions.get(session).and_then(|session| session.private.get(&server)) {
            Some(own) => Ok(*own),
            None => self.start_private(session, server),
        }
    }

    fn start_private(&mut self, session: SessionId, parent: ServerId) -> Result<ServerId, Fault> {
        let known = &self.servers[&parent];
        known.admits(self.now.mono_ms + known.definition.request_timeout_ms, self.now)?;
        self.make_private_room(session, parent)?;
        let id = ServerId(self.entropy.uuid());
        let known = &self.servers[&parent];
        let mut definition = (*known.definition).clone();
        // The ports are the first instance's.
        definition.ports.clear();
        log::info!("server={} an instance is started for one session", definition.name);
        let mut own = Server::new(id, Arc::new(definition), true, self.now.unix_ms);
        own.kin = Kin::Private { of: parent, session };
        // It will say the same of itself; until then this is what can be told to its client.
        (own.advertised, own.dialect) = (known.advertised.clone(), known.dialect);
        self.servers.insert(id, own);
        self.sessions.get_mut(session).expect("it asks").private.insert(parent, id);
        self.advance(id, Event::Start);
        Ok(id)
    }

    /// A place for one more instance, of the session's owner and of the server. Those on their way out take their time and
    /// a place beside it, so there may be twice as many for a while.
    fn make_private_room(&mut self, asking: SessionId, parent: ServerId) -> Result<(), Fault> {
        let full = |what: &str| {
            Err(Fault::new(Code::Unavailable, format!("{what} instances for single sessions run already"))
                .retry_after_ms(10_000))
        };
        if self.private_instances().count() >= 2 * PRIVATE_INSTANCES_MAX {
            return full("all the");
        }
        let name = Arc::clone(&self.sessions.get(asking).expect("it asks").owner);
        let owners = [Owner::Principal(Arc::clone(&name)), Owner::Server(parent)];
        let has = |session: &Session| session.private.len();
        let has_one_of_it = |session: &Session| usize::from(session.private.contains_key(&parent));
        loop {
            let (idlest, what) = match self.shares.take_for(&owners, Resource::PrivateInstances, 1) {
                Ok(()) => return Ok(()),
                Err((0, Short::Owner)) => (self.sessions.idlest_of(&name, has, Some(asking)), "as many of your"),
                Err((_, Short::Owner)) => {
                    (self.sessions.idlest(has_one_of_it, Some(asking)), "as many of this server's")
                }
                Err((_, Short::Whole)) => (self.sessions.idlest(has, Some(asking)), "all the"),
            };
            let Some(idlest) = idlest else { return full(what) };
            self.end_session(idlest, "its instance made room for another's");
        }
    }

    pub(in crate::core) fn give_private_back(&mut self, owner: &Arc<str>, parent: ServerId) {
        let owners = [Owner::Principal(Arc::clone(owner)), Owner::Server(parent)];
        self.shares.give_back_for(&owners, Resource::PrivateInstances, 1);
    }

    fn private_instances(&self) -> impl Iterator<Item = &Server> {
        self.servers.values().filter(|server| matches!(server.kin, Kin::Private { .. }))
    }

    /// The parent's life changes: whoever has an instance of the old one begins anew.
    pub(in crate::core) fn retire_private(&mut self, parent: ServerId) {
        let of_it = |server: &&Server| matches!(server.kin, Kin::Private { of, .. } if of == parent);
        let mut own: Vec<ServerId> = self.servers.values().filter(of_it).map(|server| server.id).collect();
        own.sort();
        for id in own {
            self.release_private(id, "its server was stopped or changed");
        }
    }

    pub(in crate::core) fn release_private(&mut self, id: ServerId, why: &str) {
        let Some(Kin::Private { of, session }) = self.servers.get(&id).map(|server| server.kin) else { return };
        match self.sessions.get_mut(session) {
            Some(known) if known.server == Some(id) => self.end_session(session, why),
            // At the endpoint of all servers the session has others, and may start this one again.
            Some(known) => {
                known.private.remove(&of);
                let owner = Arc::clone(&known.owner);
                known.subscriptions.retain(|(server, _)| *server != id);
                self.give_private_back(&owner, of);
                self.dismiss(id);
            }
            None => self.dismiss(id),
        }
    }
}
