//! Instances that belong to one session: of servers with `shared: false`. Like a companion, such an instance is a server
//! of its own to the rest of the core, with the definition of its parent; it is never listed and never stored. Invariant:
//! it has one session, is known in it, and goes with it.

use crate::api::fault::{Code, Fault};
use crate::core::Core;
use crate::core::lifecycle::Event;
use crate::core::server::{Kin, Server};
use crate::ids::{ServerId, SessionId};
use crate::limits::PRIVATE_INSTANCES_MAX;
use std::sync::Arc;

impl Core {
    /// What serves a session's requests to a server: an instance of its own, where the server is not shared.
    pub(super) fn serving(&mut self, session: SessionId, server: ServerId) -> Result<ServerId, Fault> {
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
        self.make_private_room(session)?;
        let id = ServerId(self.entropy.uuid());
        let known = &self.servers[&parent];
        let mut definition = (*known.definition).clone();
        // The ports are the first instance's.
        definition.ports.clear();
        log::info!("server={} an instance is started for one session", definition.name);
        let mut own = Server::new(id, Arc::new(definition), true, self.now.unix_ms);
        own.kin = Kin::Private { of: parent, session };
        // It will say the same of itself; until then this is what can be told to its client.
        (own.face, own.dialect) = (known.face.clone(), known.dialect);
        self.servers.insert(id, own);
        self.sessions.get_mut(session).expect("it asks").private.insert(parent, id);
        self.advance(id, Event::Start);
        Ok(id)
    }

    fn make_private_room(&mut self, asking: SessionId) -> Result<(), Fault> {
        if self.private_instances().filter(|server| server.removing.is_none()).count() >= PRIVATE_INSTANCES_MAX
            && let Some(idlest) = self.sessions.idlest(|session| session.private.len(), Some(asking))
        {
            self.end_session(idlest, "its instance made room for another's");
        }
        let staying = self.private_instances().filter(|server| server.removing.is_none()).count();
        // Those on their way out take their time, and their place with them.
        match staying < PRIVATE_INSTANCES_MAX && self.private_instances().count() < 2 * PRIVATE_INSTANCES_MAX {
            true => Ok(()),
            false => {
                let message = format!("{PRIVATE_INSTANCES_MAX} instances run for single sessions already");
                Err(Fault::new(Code::Unavailable, message).retry_after_ms(10_000))
            }
        }
    }

    fn private_instances(&self) -> impl Iterator<Item = &Server> {
        self.servers.values().filter(|server| matches!(server.kin, Kin::Private { .. }))
    }

    /// The parent's life changes: whoever has an instance of the old one begins anew.
    pub(super) fn retire_private(&mut self, parent: ServerId) {
        let of_it = |server: &&Server| matches!(server.kin, Kin::Private { of, .. } if of == parent);
        let mut own: Vec<ServerId> = self.servers.values().filter(of_it).map(|server| server.id).collect();
        own.sort();
        for id in own {
            self.release_private(id, "its server was stopped or changed");
        }
    }

    pub(super) fn release_private(&mut self, id: ServerId, why: &str) {
        let Some(Kin::Private { of, session }) = self.servers.get(&id).map(|server| server.kin) else { return };
        match self.sessions.get_mut(session) {
            Some(known) if known.server == Some(id) => self.end_session(session, why),
            // At the endpoint of all servers the session has others, and may start this one again.
            Some(known) => {
                known.private.remove(&of);
                known.subscriptions.retain(|(server, _)| *server != id);
                self.dismiss(id);
            }
            None => self.dismiss(id),
        }
    }
}
