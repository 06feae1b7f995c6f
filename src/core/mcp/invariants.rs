//! What must be true of sessions, their requests and their streams, whatever has happened; only debug builds look.

use crate::core::clients::Clients;
use crate::core::clients::parked::WaitOn;
use crate::core::effects::{Effects, Timer};
use crate::core::mcp::Mcp;
use crate::core::mcp::sessions::{ForwardedRequest, NOBODY, PendingPost, Session};
use crate::core::peers::Peers;
use crate::core::peers::calls::Caller;
use crate::ids::{CallId, ConnId, PostId};

impl Mcp {
    pub fn check(&self, peers: &Peers, clients: &Clients, effects: &Effects) {
        self.forwarded.iter().for_each(|(id, request)| self.request_is_whole(*id, request, peers, effects));
        self.posts.iter().for_each(|(id, post)| self.post_is_whole(*id, post, clients));
        self.sessions.iter().for_each(|session| self.session_is_whole(session, peers, clients, effects));
        for conn in self.greetings.keys() {
            let on = clients.waits_on(*conn);
            assert!(matches!(on, Some(WaitOn::Advertised(_))), "{conn} is to be introduced, and waits: {on:?}");
        }
        self.questions_are_of_requests(peers);
    }

    /// It is a call, or waits for the input of its next one; and it is known to its post and its session.
    fn request_is_whole(&self, id: CallId, request: &ForwardedRequest, peers: &Peers, effects: &Effects) {
        assert!(peers.known.contains_key(&request.peer), "request {id} is of a peer that is gone");
        match peers.calls.get(id) {
            Some(call) => assert_eq!((call.caller, call.peer), (Caller::Mcp, request.peer), "request {id}"),
            None => {
                let between_rounds = request.rounds.is_some() && effects.deadlines.at(Timer::Call(id)).is_some();
                assert!(between_rounds, "request {id} is no call, and nothing ends it");
            }
        }
        if request.post != NOBODY {
            let post = self.posts.get(&request.post);
            assert!(post.is_some_and(|post| post.calls.contains(&id)), "request {id} is not known to its post");
        }
        if let Some(session) = request.session {
            let session = self.sessions.get(session);
            assert!(session.is_some_and(|session| session.calls.contains(&id)), "request {id} is of no session");
        }
    }

    fn post_is_whole(&self, id: PostId, post: &PendingPost, clients: &Clients) {
        assert!(post.due >= post.calls.len(), "{id} owes less than it asks for");
        for call in &post.calls {
            let request = self.forwarded.get(call);
            assert!(request.is_some_and(|request| request.post == id), "{call} is not of {id}");
        }
        match post.conn {
            Some(conn) => assert_eq!(clients.waits_on(conn), Some(WaitOn::Post(id)), "the client of {id}"),
            None => assert!(post.session.is_some(), "nobody can come back for {id}"),
        }
        if let Some(session) = post.session {
            let session = self.sessions.get(session);
            let session = session.unwrap_or_else(|| panic!("{id} is of a session that is over"));
            if let Some(stream) = post.stream {
                assert_eq!(session.streams.get(&stream), Some(&id), "the stream of {id}");
            }
        }
    }

    fn session_is_whole(&self, session: &Session, peers: &Peers, clients: &Clients, effects: &Effects) {
        let id = session.id;
        assert!(effects.deadlines.at(Timer::Session(id)).is_some(), "session {id} never ends");
        for (at, call) in session.calls.iter().enumerate() {
            assert!(!session.calls[..at].contains(call), "session {id} has {call} twice");
            let request = self.forwarded.get(call);
            assert!(request.is_some_and(|request| request.session == Some(id)), "{call} is not of session {id}");
        }
        for (stream, post) in &session.streams {
            let known = self.posts.get(post);
            assert!(known.is_some_and(|post| post.stream == Some(*stream)), "stream {stream} of session {id}");
        }
        if let Some(conn) = session.get_stream {
            assert_eq!(clients.waits_on(conn), Some(WaitOn::GetStream(id)), "who listens in session {id}");
        }
        let own = session.peer.iter().chain(session.private.values());
        let subscribed = session.subscriptions.iter().map(|(peer, _)| peer);
        for peer in own.chain(subscribed) {
            assert!(peers.known.contains_key(peer), "{peer:?} of session {id} is gone");
        }
    }

    fn questions_are_of_requests(&self, peers: &Peers) {
        for (number, question) in &self.questions {
            let peer = peers.known.get(&question.peer);
            let instance = peer.and_then(|peer| peer.life.instance());
            assert_eq!(instance, Some(question.instance), "question {number} is of an instance that is gone");
            if let Some(call) = question.call {
                assert!(self.forwarded.contains_key(&call), "question {number} is about a request that is over");
            }
            if let Some(session) = question.session {
                assert!(self.sessions.get(session).is_some(), "question {number} is for a session that is over");
            }
        }
    }

    /// Is this a request of an MCP client, under way or between two rounds?
    pub fn is_forwarded(&self, id: CallId) -> bool {
        self.forwarded.contains_key(&id)
    }

    /// Is it what this room owes this client that it waits for?
    pub fn owes(&self, conn: ConnId, on: WaitOn) -> bool {
        match on {
            WaitOn::Post(id) => self.posts.get(&id).is_some_and(|post| post.conn == Some(conn)),
            WaitOn::GetStream(id) => self.session(id).is_some_and(|session| session.get_stream == Some(conn)),
            WaitOn::Advertised(_) => self.greetings.contains_key(&conn),
            WaitOn::Reply(_)
            | WaitOn::Stored(_)
            | WaitOn::Revoked
            | WaitOn::Ready { .. }
            | WaitOn::Down(_)
            | WaitOn::Gone(_)
            | WaitOn::Log(_)
            | WaitOn::News
            | WaitOn::Project => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::entropy::Seal;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn is_whole(mcp: &Mcp) -> bool {
        let check = || mcp.check(&Peers::default(), &Clients::default(), &Effects::new([0; 32]));
        catch_unwind(AssertUnwindSafe(check)).is_ok()
    }

    #[test]
    fn a_post_without_a_client_is_of_a_session_that_is_there() {
        let mut mcp = Mcp::new(Seal::new([0; 32]));
        assert!(is_whole(&mcp));
        let post = PendingPost {
            conn: None,
            session: None,
            takes_stream: false,
            stream: None,
            due: 1,
            calls: Vec::new(),
            listening: None,
        };
        mcp.posts.insert(PostId(1), post);
        assert!(!is_whole(&mcp));
    }
}
