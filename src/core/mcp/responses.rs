//! Answers on their way to MCP clients. A post is one POST that waits: it answers as plain JSON if nothing comes before
//! the answer, and becomes a stream of events if something does. Owns that choice and the event ids; never what is said.
//! Invariant: each request is answered once, on its own post, or its post is gone.

use crate::api::response::{Answer, StreamEvent};
use crate::core::clients::Clients;
use crate::core::clients::parked::WaitOn;
use crate::core::contract::Output;
use crate::core::effects::{Effects, Timer};
use crate::core::mcp::Mcp;
use crate::core::mcp::sessions::PendingPost;
use crate::ids::{CallId, ConnId, PostId, SessionId};
use crate::limits::KEEP_ALIVE;
use crate::shares::{Owner, Resource};
use crate::wire::backlog::Shared;
use crate::wire::jsonrpc;
use std::borrow::Cow;
use std::sync::Arc;

/// What answers need: the requests they are to, and the connections they go out on.
pub(in crate::core) struct Replies<'a> {
    pub mcp: &'a mut Mcp,
    pub clients: &'a mut Clients,
    pub effects: &'a mut Effects,
}

impl Replies<'_> {
    pub fn open_post(
        &mut self,
        conn: Option<ConnId>,
        session: Option<SessionId>,
        takes_stream: bool,
        due: usize,
    ) -> PostId {
        self.mcp.posts_minted += 1;
        let id = PostId(self.mcp.posts_minted);
        if let Some(conn) = conn {
            self.clients.park(conn, WaitOn::Post(id));
        }
        let post = PendingPost { conn, session, takes_stream, stream: None, due, calls: Vec::new(), listening: None };
        self.mcp.posts.insert(id, post);
        id
    }

    /// The last word to one request.
    pub fn finish(&mut self, id: PostId, call: Option<CallId>, status: u16, message: Vec<u8>) {
        let Some(post) = self.mcp.posts.get_mut(&id) else { return };
        post.calls.retain(|other| Some(*other) != call);
        post.due -= 1;
        let due = post.due;
        if post.stream.is_some() {
            self.say(id, message);
            if due == 0 {
                self.hang_up(id);
            }
            return;
        }
        assert!(due == 0, "several answers are a stream");
        let post = self.mcp.posts.remove(&id).expect("just seen");
        if let Some(conn) = post.conn {
            self.effects.deadlines.cancel(Timer::Stream(conn));
            self.clients.answer(conn, Answer::Message { status, session: None, body: message }, self.effects);
        }
    }

    /// As above, with a result of the server's. Where nothing came before it the payload is copied as it is, and not into a
    /// message: a few bytes before it would put a large one out of step with the memory that it is copied from and to.
    pub fn finish_with(&mut self, id: PostId, call: CallId, request: &str, result: Cow<'_, [u8]>) {
        if self.mcp.posts.get(&id).is_none_or(|post| post.stream.is_some() || post.due > 1) {
            return self.finish(id, Some(call), 200, jsonrpc::result(request, &result));
        }
        let post = self.mcp.posts.remove(&id).expect("just seen");
        if let Some(conn) = post.conn {
            self.effects.deadlines.cancel(Timer::Stream(conn));
            let before = [r#"{"jsonrpc":"2.0","id":"#, request, r#","result":"#].concat();
            self.clients.answer(conn, Answer::McpResult { before, result: result.into_owned() }, self.effects);
        }
    }

    /// Is its answer one of several, or no more than a part of what it says?
    pub fn is_streamed(&self, id: PostId) -> bool {
        self.mcp.posts.get(&id).is_none_or(|post| post.stream.is_some() || post.due > 1)
    }

    /// As above, with a result that other clients get, too.
    pub fn finish_shared(&mut self, id: PostId, before: String, items: Vec<Shared>, behind: String) {
        if self.is_streamed(id) {
            let mut message = before.into_bytes();
            items.iter().for_each(|item| message.extend_from_slice(item));
            message.extend_from_slice(behind.as_bytes());
            return self.finish(id, None, 200, message);
        }
        let post = self.mcp.posts.remove(&id).expect("just seen");
        if let Some(conn) = post.conn {
            self.effects.deadlines.cancel(Timer::Stream(conn));
            self.clients.answer(conn, Answer::McpList { before, items, behind }, self.effects);
        }
    }

    /// A request that was cancelled gets no answer, but the connection that carried it must be told that none comes.
    pub fn unanswered(&mut self, id: PostId, call: Option<CallId>) {
        let Some(post) = self.mcp.posts.get_mut(&id) else { return };
        post.calls.retain(|other| Some(*other) != call);
        post.due -= 1;
        if post.due > 0 {
            return;
        }
        if post.stream.is_none() && post.takes_stream {
            self.open_stream(id);
        }
        self.hang_up(id);
    }

    /// Something that comes before the answer. False: this client takes no stream, and it was not said.
    pub fn emit(&mut self, id: PostId, message: Vec<u8>) -> bool {
        let Some(post) = self.mcp.posts.get(&id) else { return false };
        if post.stream.is_none() {
            if !post.takes_stream {
                return false;
            }
            self.open_stream(id);
        }
        self.say(id, message);
        true
    }

    pub fn open_stream(&mut self, id: PostId) {
        let Some(post) = self.mcp.posts.get_mut(&id) else { return };
        assert!(post.stream.is_none(), "a stream is opened once");
        let mut events = Vec::new();
        match post.session.and_then(|session| self.mcp.sessions.get_mut(session)) {
            Some(session) => {
                session.streams_minted += 1;
                let stream = session.streams_minted;
                session.streams.insert(stream, id);
                post.stream = Some(stream);
                if session.version.knows_priming() {
                    events.push(StreamEvent::Prime { id: session.log.mark(stream) });
                }
            }
            None => post.stream = Some(0),
        }
        if let Some(conn) = post.conn {
            self.effects.outputs.push_back(Output::Answer { conn, answer: Answer::Stream { session: None, events } });
            self.effects.deadlines.set(Timer::Stream(conn), self.effects.now.mono_ms + KEEP_ALIVE.as_millis() as u64);
        }
    }

    fn say(&mut self, id: PostId, message: Vec<u8>) {
        let post = &self.mcp.posts[&id];
        let (conn, session, stream) = (post.conn, post.session, post.stream.expect("it is a stream"));
        match session {
            Some(session) if self.mcp.sessions.get(session).is_some_and(|session| session.old_stream) => {
                self.tell_session(session, message);
            }
            Some(session) => {
                let data: Arc<[u8]> = message.into();
                let id = self.log_event(session, stream, &data);
                self.send(conn, StreamEvent::Message { id, data });
            }
            None => self.send(conn, StreamEvent::Message { id: None, data: message.into() }),
        }
    }

    fn send(&mut self, conn: Option<ConnId>, event: StreamEvent) {
        if let Some(conn) = conn {
            self.effects.outputs.push_back(Output::Event { conn, event });
        }
    }

    /// What no request of the session asked for.
    pub fn tell_session(&mut self, id: SessionId, message: Vec<u8>) {
        let data: Arc<[u8]> = message.into();
        let Some(session) = self.mcp.sessions.get(id) else { return };
        let (conn, old) = (session.get_stream, session.old_stream);
        let event = match old {
            true => None,
            false => self.log_event(id, 0, &data),
        };
        if let (Some(_), Some(event)) = (conn, event) {
            self.mcp.sessions.get_mut(id).expect("just seen").heard = event.seq;
        }
        self.send(conn, StreamEvent::Message { id: event, data });
    }

    fn log_event(&mut self, session: SessionId, stream: u32, data: &Arc<[u8]>) -> Option<crate::ids::EventId> {
        let session = self.mcp.sessions.get_mut(session)?;
        let owner = Owner::Principal(Arc::clone(&session.owner));
        let room = self.effects.shares.room(&owner, Resource::Memory);
        let before = session.log.bytes();
        let id = session.log.push(stream, Arc::clone(data), room);
        let after = session.log.bytes();
        self.effects.shares.give_back(&owner, Resource::Memory, before.saturating_sub(after));
        self.effects.shares.put(&owner, Resource::Memory, after.saturating_sub(before));
        Some(id)
    }

    // --- ends -----------------------------------------------------------------------------------------------------------

    /// Ends a post, whatever it still owed.
    pub fn hang_up(&mut self, id: PostId) {
        let Some(post) = self.mcp.posts.remove(&id) else { return };
        if let (Some(stream), Some(session)) = (post.stream, post.session)
            && let Some(session) = self.mcp.sessions.get_mut(session)
        {
            session.streams.remove(&stream);
        }
        match (post.conn, post.stream) {
            (Some(conn), Some(_)) => self.clients.close(conn, self.effects),
            (Some(conn), None) => {
                self.effects.deadlines.cancel(Timer::Stream(conn));
                self.clients.answer(conn, Answer::Accepted, self.effects);
            }
            (None, _) => {}
        }
    }

    /// A quiet connection: time to become a stream, or to show that it lives.
    pub fn stream_elapsed(&mut self, conn: ConnId) {
        let open = match self.clients.waits_on(conn) {
            Some(WaitOn::Post(id)) => match self.mcp.posts.get(&id) {
                Some(post) if post.stream.is_none() && post.takes_stream => return self.open_stream(id),
                Some(post) => post.stream.is_some(),
                None => false,
            },
            Some(WaitOn::GetStream(_) | WaitOn::Log(_) | WaitOn::News) => true,
            Some(
                WaitOn::Reply(_)
                | WaitOn::Stored(_)
                | WaitOn::Revoked
                | WaitOn::Ready { .. }
                | WaitOn::Down(_)
                | WaitOn::Gone(_)
                | WaitOn::Advertised(_)
                | WaitOn::Project,
            )
            | None => false,
        };
        if open {
            self.effects.outputs.push_back(Output::Event { conn, event: StreamEvent::KeepAlive });
            self.effects.deadlines.set(Timer::Stream(conn), self.effects.now.mono_ms + KEEP_ALIVE.as_millis() as u64);
        }
    }
}

impl Mcp {
    pub fn posts_of(&self, session: SessionId) -> Vec<PostId> {
        let mut found: Vec<PostId> =
            self.posts.iter().filter(|(_, post)| post.session == Some(session)).map(|(id, _)| *id).collect();
        found.sort();
        found
    }

    /// The client of a post has left. What it can come back for goes on; the rest is nobody's, and given here.
    pub fn post_lost(&mut self, id: PostId, conn: ConnId, effects: &mut Effects) -> Option<PendingPost> {
        effects.deadlines.cancel(Timer::Stream(conn));
        let post = self.posts.get_mut(&id).filter(|post| post.conn == Some(conn))?;
        post.conn = None;
        if post.session.is_some() && post.stream.is_some() {
            return None;
        }
        self.posts.remove(&id)
    }

    /// True: the session has ended with it.
    pub fn get_stream_lost(&mut self, session: SessionId, conn: ConnId, effects: &mut Effects) -> bool {
        effects.deadlines.cancel(Timer::Stream(conn));
        let known = self.sessions.get_mut(session).filter(|session| session.get_stream == Some(conn));
        let Some(known) = known else { return false };
        known.get_stream = None;
        known.used_ms = effects.now.mono_ms;
        known.old_stream
    }
}
