//! Peers that belong to one session: of servers with `shared: false`. Such a one has an instance of its own, with the
//! definition of its server. Owns which session has which. Invariant: it has one session, is known in it, and goes with it.

use crate::core::mcp::Mcp;
use crate::core::mcp::sessions::Session;
use crate::ids::{PeerId, ServerId, SessionId};
use crate::shares::{Owner, Resource, Shares, Short};
use std::sync::Arc;

/// There is no place for one more instance.
pub(in crate::core) struct NoPlace {
    /// The session that has been idle for longest of those that may go for it.
    pub idlest: Option<SessionId>,
    /// Whose places are taken.
    pub what: &'static str,
}

/// Whose a peer was that is to go.
pub(in crate::core) enum Released {
    /// The session is of its server alone, and goes with it.
    Session(SessionId),
    /// The session has others, and may start this one again.
    One(Arc<str>),
    Nobodys,
}

impl Mcp {
    pub fn private_peer(&self, session: SessionId, server: ServerId) -> Option<PeerId> {
        self.sessions.get(session)?.private.get(&server).copied()
    }

    pub fn has_private(&mut self, session: SessionId, server: ServerId, peer: PeerId) {
        self.sessions.get_mut(session).expect("it asks").private.insert(server, peer);
    }

    /// A place for one more instance, of the session's owner and of the server.
    pub fn take_private(&self, asking: SessionId, server: ServerId, shares: &mut Shares) -> Result<(), NoPlace> {
        let name = &self.sessions.get(asking).expect("it asks").owner;
        let owners = [Owner::Principal(Arc::clone(name)), Owner::Server(server)];
        let has = |session: &Session| session.private.len();
        let has_one_of_it = |session: &Session| usize::from(session.private.contains_key(&server));
        let (idlest, what) = match shares.take_for(&owners, Resource::PrivateInstances, 1) {
            Ok(()) => return Ok(()),
            Err((0, Short::Owner)) => (self.sessions.idlest_of(name, has, Some(asking)), "as many of your"),
            Err((_, Short::Owner)) => (self.sessions.idlest(has_one_of_it, Some(asking)), "as many of this server's"),
            Err((_, Short::Whole)) => (self.sessions.idlest(has, Some(asking)), "all the"),
        };
        Err(NoPlace { idlest, what })
    }

    pub fn release_private(&mut self, session: SessionId, peer: PeerId, server: ServerId) -> Released {
        match self.sessions.get_mut(session) {
            Some(known) if known.peer == Some(peer) => Released::Session(session),
            Some(known) => {
                known.private.remove(&server);
                known.subscriptions.retain(|(of, _)| *of != peer);
                Released::One(Arc::clone(&known.owner))
            }
            None => Released::Nobodys,
        }
    }
}

pub(in crate::core) fn give_private_back(shares: &mut Shares, owner: &Arc<str>, server: ServerId) {
    let owners = [Owner::Principal(Arc::clone(owner)), Owner::Server(server)];
    shares.give_back_for(&owners, Resource::PrivateInstances, 1);
}
