//! Clients that wait. Exactly one entry per waiting client, and four ends: answered, failed, timed out, gone. Whoever
//! wants to answer must first `release` the client; a second answer finds nobody to give it to.

use crate::ids::{CallId, ConnId, IdMap, PostId, ServerId, SessionId, StoreSeq};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WaitOn {
    /// The reply to a call; the call's own deadline holds.
    Reply(CallId),
    /// Durability of a change.
    Stored(StoreSeq),
    /// The same of a token's end.
    Revoked,
    /// A server to be ready, or to show that it will not be.
    Ready { server: ServerId, after: Hand },
    /// A server to be down.
    Down(ServerId),
    /// A server to be down and forgotten.
    Gone(ServerId),
    /// Nothing more: it follows a log until it leaves.
    Log(ServerId),
    /// As above, for the lifecycle of all servers.
    News,
    /// The answers to what an MCP client has posted.
    Post(PostId),
    /// Nothing more: it hears what comes to its session.
    GetStream(SessionId),
    /// A server to tell who it is.
    Advertised(ServerId),
    /// Servers of a project to come up, or to show that they will not.
    Project,
}

impl WaitOn {
    /// Does a deadline of the client's own end it? Else what it waits for has one, or nothing ends it but the client.
    pub fn has_deadline(self) -> bool {
        match self {
            WaitOn::Stored(_)
            | WaitOn::Ready { .. }
            | WaitOn::Down(_)
            | WaitOn::Gone(_)
            | WaitOn::Advertised(_)
            | WaitOn::Project => true,
            WaitOn::Reply(_)
            | WaitOn::Revoked
            | WaitOn::Log(_)
            | WaitOn::News
            | WaitOn::Post(_)
            | WaitOn::GetStream(_) => false,
        }
    }
}

/// What a client has done to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hand {
    Registered,
    /// Also if it was changed.
    Started,
    Restarted,
}

#[derive(Default, Serialize, Deserialize)]
pub struct Parked {
    clients: IdMap<ConnId, WaitOn>,
}

impl Parked {
    pub fn park(&mut self, conn: ConnId, on: WaitOn) {
        let before = self.clients.insert(conn, on);
        assert!(before.is_none(), "a client waits for one thing");
    }

    pub fn release(&mut self, conn: ConnId) -> Option<WaitOn> {
        self.clients.remove(&conn)
    }

    pub fn get(&self, conn: ConnId) -> Option<WaitOn> {
        self.clients.get(&conn).copied()
    }

    /// In no order.
    #[cfg(debug_assertions)]
    pub fn iter(&self) -> impl Iterator<Item = (&ConnId, &WaitOn)> {
        self.clients.iter()
    }

    /// Everyone who waits for this server itself (not for a reply of it).
    pub fn on_server(&self, server: ServerId) -> Vec<(ConnId, WaitOn)> {
        let of_it = |on: &WaitOn| match on {
            WaitOn::Ready { server: s, .. } | WaitOn::Down(s) | WaitOn::Gone(s) | WaitOn::Advertised(s) => *s == server,
            WaitOn::Reply(_)
            | WaitOn::Stored(_)
            | WaitOn::Revoked
            | WaitOn::Log(_)
            | WaitOn::News
            | WaitOn::Post(_)
            | WaitOn::GetStream(_)
            | WaitOn::Project => false,
        };
        let mut found: Vec<_> = self.clients.iter().filter(|(_, on)| of_it(on)).map(|(c, on)| (*c, *on)).collect();
        found.sort_by_key(|(conn, _)| *conn);
        found
    }

    pub fn len(&self) -> usize {
        self.clients.len()
    }

    pub fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }
}
