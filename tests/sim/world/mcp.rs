//! MCP clients with sessions: they post requests (with the same ids as everybody else), cancel them, lose their streams
//! and come back for the rest, listen, leave, and try the sessions of others. What must hold: a reply or a progress
//! reaches the session and the request it belongs to; a request ends once; one that ends without a reply was cancelled,
//! or its session is over and says so.

use super::{Question, World, whose};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use stdiod::api::request::{Ask, McpAsk, ServerRef, Takes};
use stdiod::api::response::{Answer, StreamEvent};
use stdiod::core::contract::Input;
use stdiod::ids::EventId;
use stdiod::ids::{ConnId, SessionId};
use stdiod::model::principal::Principal;
use stdiod::model::protocol::Version;
use stdiod::wire::json::JsonBuf;
use stdiod::wire::jsonrpc::{Message, Reply};

#[derive(Default)]
pub(super) struct Agents {
    minted: u64,
    sessions: BTreeMap<SessionId, Agent>,
    /// POSTs whose answer has become a stream.
    streams: BTreeMap<ConnId, Post>,
    /// Streams that were lost, for whoever comes back.
    lost: Vec<Post>,
    /// Open streams of what nobody asked for.
    get_stream: BTreeMap<ConnId, SessionId>,
    /// Where each session was opened, also of those that are over.
    pub(super) homes: BTreeMap<SessionId, &'static str>,
    /// Questions that a session was asked.
    asked: Vec<(SessionId, u64)>,
    /// Streams that somebody else has taken over.
    replaced: BTreeSet<ConnId>,
    /// Sessions that their clients have ended.
    left: BTreeSet<SessionId>,
    /// Sessions that must be over, because a request of theirs was never answered.
    over: BTreeSet<SessionId>,
}

struct Agent {
    server: &'static str,
    owner: &'static str,
    version: Version,
    /// Requests so far; the next one's id. Every session counts from one.
    asked: u64,
}

/// What an MCP client waits for.
#[derive(Debug)]
pub(super) enum Waiting {
    Hello {
        server: &'static str,
        owner: &'static str,
        version: Version,
    },
    Post(Post),
    Ears(SessionId),
    Farewell,
    Cancelled {
        session: SessionId,
        id: u64,
    },
    /// Something that is of no consequence here.
    Any,
    /// Into a session that is another's, or over.
    Refusal,
}

/// The requests of one POST that have no reply yet, by their ids.
#[derive(Debug)]
pub(super) struct Post {
    session: SessionId,
    due: BTreeMap<u64, Due>,
    /// The last event that came, to go on from.
    seen: Option<EventId>,
    /// The connection it had before its client came back for it, if that is still open.
    before: Option<ConnId>,
}

#[derive(Debug)]
struct Due {
    /// Unique in the world.
    token: String,
    progress: bool,
    cancelled: bool,
}

impl Agents {
    /// Nobody waits for an event but those who wait for ever.
    pub(super) fn are_silent(&self) -> bool {
        self.streams.is_empty() && self.over.is_empty()
    }

    pub(super) fn stop_listening(&mut self) -> Vec<ConnId> {
        std::mem::take(&mut self.get_stream).into_keys().collect()
    }
}

fn principal(owner: &str) -> Principal {
    Principal { name: owner.into(), ..Principal::anonymous() }
}

/// As their clients number them.
fn progress_token(id: u64) -> String {
    format!("p{id}")
}

impl World {
    pub(super) fn agent_step(&mut self) {
        self.check_ended_sessions();
        let sessions: Vec<SessionId> = self.agents.sessions.keys().copied().collect();
        let Some(session) = self.rng.pick(&sessions) else { return self.agent_hello() };
        match self.rng.below(20) {
            0..=1 => self.agent_hello(),
            2..=8 => self.agent_posts(session),
            9 => self.agent_cancels(session),
            10 => self.agent_loses_stream(),
            11..=12 => self.agent_resumes(),
            13 => self.mcp_ask(session, McpAsk::Listen { session, after: None }, Waiting::Ears(session)),
            14 => self.agent_intrudes(session),
            15 => self.agent_sets_level(session),
            16..=18 => self.agent_replies(),
            _ => {
                self.agents.left.insert(session);
                self.mcp_ask(session, McpAsk::End { session }, Waiting::Farewell);
                self.agents.sessions.remove(&session);
            }
        }
    }

    /// As the owner of a session, where it was opened.
    fn mcp_ask(&mut self, session: SessionId, ask: McpAsk<'_>, waiting: Waiting) {
        let agent = &self.agents.sessions[&session];
        let (who, server) = (principal(agent.owner), Some(ServerRef::Name(agent.server.to_string())));
        self.ask_as(who, Ask::Mcp { server, ask }, Question::Mcp(waiting));
    }

    fn takes(&mut self) -> Takes {
        [Takes::Json, Takes::Stream, Takes::Either][self.rng.below(3)]
    }

    // --- what they do -----------------------------------------------------------------------------------------------

    fn agent_hello(&mut self) {
        let (server, takes) = (self.name(), self.takes());
        let owner = ["one", "two"][self.rng.below(2)];
        let version = Version::ALL[1 + self.rng.below(3)];
        let params = json!({ "protocolVersion": version.wire(), "capabilities": { "elicitation": {} }, "clientInfo": { "name": owner } });
        let (id, params) = (raw("1"), raw(&params.to_string()));
        let messages = vec![Message::Request {
            id: id.as_json(),
            method: Cow::Borrowed("initialize"),
            params: Some(params.as_json()),
        }];
        let ask = McpAsk::Post { session: None, takes, batch: false, messages };
        let server_ref = Some(ServerRef::Name(server.to_string()));
        let waiting = Waiting::Hello { server, owner, version };
        self.ask_as(principal(owner), Ask::Mcp { server: server_ref, ask }, Question::Mcp(waiting));
    }

    fn agent_posts(&mut self, session: SessionId) {
        let (takes, several) = (self.takes(), 1 + self.rng.below(3));
        let agent = self.agents.sessions.get_mut(&session).expect("picked from there");
        let batch = agent.version.has_batches() && several > 1;
        let mut post = Post { session, due: BTreeMap::new(), seen: None, before: None };
        for _ in 0..if batch { several } else { 1 } {
            agent.asked += 1;
            self.agents.minted += 1;
            let token = format!("{}{}", whose::prefix(session), self.agents.minted);
            post.due.insert(agent.asked, Due { token, progress: self.rng.one_in(2), cancelled: false });
        }
        let texts: Vec<(JsonBuf, JsonBuf)> = post.due.iter().map(|(id, due)| due.request(*id)).collect();
        let method = || Cow::Borrowed("tools/call");
        let request = |(id, params)| Message::Request { id, method: method(), params: Some(params) };
        let messages = texts.iter().map(|(id, params)| request((id.as_json(), params.as_json()))).collect();
        let ask = McpAsk::Post { session: Some(session), takes, batch, messages };
        self.mcp_ask(session, ask, Waiting::Post(post));
    }

    fn agent_sets_level(&mut self, session: SessionId) {
        let (id, params) = (raw("0"), raw(r#"{"level":"info"}"#));
        let method = Cow::Borrowed("logging/setLevel");
        let messages = vec![Message::Request { id: id.as_json(), method, params: Some(params.as_json()) }];
        let ask = McpAsk::Post { session: Some(session), takes: Takes::Json, batch: false, messages };
        self.mcp_ask(session, ask, Waiting::Any);
    }

    /// To what some session was asked, whether that still waits for it or not.
    fn agent_replies(&mut self) {
        let Some((session, id)) = self.agents.asked.pop() else { return };
        if self.agents.sessions.contains_key(&session) {
            let result = raw("{}");
            let messages = vec![Message::Reply { id, body: Reply::Result(result.as_json()) }];
            let ask = McpAsk::Post { session: Some(session), takes: Takes::Either, batch: false, messages };
            self.mcp_ask(session, ask, Waiting::Any);
        }
    }

    /// One of its own requests, by the id that others use too.
    fn agent_cancels(&mut self, session: SessionId) {
        let ids: Vec<u64> = self.due_of(session).into_iter().map(|(id, _)| id).collect();
        let Some(id) = self.rng.pick(&ids) else { return };
        self.mark_cancelled(session, id, true);
        let params = raw(&json!({ "requestId": id }).to_string());
        let method = Cow::Borrowed("notifications/cancelled");
        let messages = vec![Message::Notification { method, params: Some(params.as_json()) }];
        let ask = McpAsk::Post { session: Some(session), takes: Takes::Either, batch: false, messages };
        self.mcp_ask(session, ask, Waiting::Cancelled { session, id });
    }

    fn mark_cancelled(&mut self, session: SessionId, id: u64, cancelled: bool) {
        for (_, due) in self.due_of(session).into_iter().filter(|(other, _)| *other == id) {
            due.cancelled = cancelled;
        }
    }

    /// The requests of a session whose client waits for a reply.
    fn due_of(&mut self, session: SessionId) -> Vec<(u64, &mut Due)> {
        let waiting = self.questions.values_mut().filter_map(|question| match question {
            Question::Mcp(Waiting::Post(post)) => Some(post),
            Question::Mcp(
                Waiting::Hello { .. }
                | Waiting::Ears(_)
                | Waiting::Any
                | Waiting::Farewell
                | Waiting::Cancelled { .. }
                | Waiting::Refusal,
            )
            | Question::Call { .. }
            | Question::Register
            | Question::Delete { .. }
            | Question::Stop { .. }
            | Question::Revoke { .. }
            | Question::Watch
            | Question::Other => None,
        });
        let posts = waiting.chain(self.agents.streams.values_mut()).filter(|post| post.session == session);
        posts.flat_map(|post| &mut post.due).map(|(id, due)| (*id, due)).collect()
    }

    fn agent_loses_stream(&mut self) {
        let open: Vec<ConnId> = self.agents.streams.keys().chain(self.agents.get_stream.keys()).copied().collect();
        let Some(conn) = self.rng.pick(&open) else { return };
        // Whoever has seen no event has nothing to come back with.
        self.agents.lost.extend(self.agents.streams.remove(&conn).filter(|post| post.seen.is_some()));
        self.agents.get_stream.remove(&conn);
        self.input(Input::ClientGone { conn });
    }

    /// Comes back for a stream that was lost, or that it only thinks is.
    fn agent_resumes(&mut self) {
        let post = match self.agents.lost.is_empty() {
            false => self.agents.lost.swap_remove(self.rng.below(self.agents.lost.len())),
            true => {
                let known = |post: &Post| post.seen.is_some() && self.agents.sessions.contains_key(&post.session);
                let open = self.agents.streams.iter().filter(|(_, post)| known(post));
                let open: Vec<ConnId> = open.map(|(conn, _)| *conn).collect();
                let Some(conn) = self.rng.pick(&open) else { return };
                self.agents.replaced.insert(conn);
                let post = self.agents.streams.remove(&conn).expect("picked from there");
                Post { before: Some(conn), ..post }
            }
        };
        let session = post.session;
        if self.agents.sessions.contains_key(&session) {
            let ask = McpAsk::Listen { session, after: post.seen };
            self.mcp_ask(session, ask, Waiting::Post(post));
        }
    }

    fn agent_intrudes(&mut self, session: SessionId) {
        let agent = &self.agents.sessions[&session];
        let elsewhere = if agent.server == "a" { "b" } else { "a" };
        let (who, server) = match self.rng.one_in(2) {
            true => (principal("three"), agent.server),
            false => (principal(agent.owner), elsewhere),
        };
        self.say_ping(who, server, session);
    }

    /// What is said to a session that is not there, or not for whoever asks, is refused.
    fn say_ping(&mut self, who: Principal, server: &'static str, session: SessionId) {
        let id = raw("1");
        let messages = vec![Message::Request { id: id.as_json(), method: Cow::Borrowed("ping"), params: None }];
        let ask = McpAsk::Post { session: Some(session), takes: Takes::Json, batch: false, messages };
        let server = Some(ServerRef::Name(server.to_string()));
        self.ask_as(who, Ask::Mcp { server, ask }, Question::Mcp(Waiting::Refusal));
    }

    pub(super) fn check_ended_sessions(&mut self) {
        for session in std::mem::take(&mut self.agents.over) {
            if let Some(agent) = self.agents.sessions.remove(&session) {
                self.say_ping(principal(agent.owner), agent.server, session);
            }
        }
    }

    // --- what they hear ---------------------------------------------------------------------------------------------

    pub(super) fn agent_answered(&mut self, conn: ConnId, waiting: Waiting, answer: Answer) {
        let answer = match answer {
            Answer::McpResult { before, result } => {
                let body = [before.as_bytes(), &result, b"}"].concat();
                Answer::Message { status: 200, session: None, body }
            }
            other => other,
        };
        match (waiting, answer) {
            (Waiting::Hello { server, owner, version }, Answer::Message { session: Some(session), body, .. }) => {
                assert_eq!(json_of(&body)["result"]["protocolVersion"], version.wire());
                self.agents.sessions.insert(session, Agent { server, owner, version, asked: 0 });
                self.agents.homes.insert(session, server);
            }
            (Waiting::Hello { server, owner, version }, Answer::Stream { session: Some(session), .. }) => {
                self.agents.sessions.insert(session, Agent { server, owner, version, asked: 0 });
                self.agents.homes.insert(session, server);
                self.agents.streams.insert(conn, Post { session, due: BTreeMap::new(), seen: None, before: None });
            }
            (Waiting::Hello { .. }, Answer::Message { session: None, body, .. }) => {
                assert!(json_of(&body)["error"].is_object());
            }
            // The session is over, or its server is on its way out; a stream that is still open goes on to its end.
            (Waiting::Post(post), Answer::Message { status: 404, .. }) => {
                self.agents.over.insert(post.session);
                if let Some(before) = post.before.filter(|before| self.agents.replaced.remove(before)) {
                    self.agents.streams.insert(before, Post { before: None, ..post });
                }
            }
            (Waiting::Post(mut post), Answer::Message { body, .. }) => {
                post.hear(&body);
                assert!(post.due.is_empty(), "one answer, one request: {post:?}");
            }
            (Waiting::Post(post), Answer::Accepted) => self.went_without(&post),
            (Waiting::Post(post), Answer::Stream { events, .. }) => {
                self.agents.streams.insert(conn, Post { before: None, ..post });
                for event in &events {
                    self.agent_read(conn, event);
                }
            }
            (Waiting::Ears(session), Answer::Stream { events, .. }) => {
                self.agents.get_stream.insert(conn, session);
                for event in &events {
                    self.agent_read(conn, event);
                }
            }
            (Waiting::Any, Answer::Message { .. } | Answer::Accepted) => {}
            (Waiting::Cancelled { session, id }, Answer::Message { status: 404, .. }) => {
                self.mark_cancelled(session, id, false);
            }
            (Waiting::Ears(_) | Waiting::Farewell, Answer::Message { status: 404, .. }) => {}
            (Waiting::Farewell, Answer::SessionEnded) | (Waiting::Cancelled { .. }, Answer::Accepted) => {}
            (Waiting::Refusal, Answer::Message { status: 404, body, .. }) => {
                assert!(json_of(&body)["error"].is_object());
            }
            (waiting, answer) => panic!("{waiting:?} was answered with {answer:?}"),
        }
    }

    /// An event just now. False: it is nobody's.
    pub(super) fn agent_heard(&mut self, conn: ConnId, event: &StreamEvent) -> bool {
        let post = self.agents.streams.get(&conn).map(|post| post.session);
        let Some(session) = post.or_else(|| self.agents.get_stream.get(&conn).copied()) else { return false };
        if let StreamEvent::Message { data, .. } = event {
            let message = json_of(data);
            self.check_whose_now(session, &message);
            if let (Some("elicitation/create"), Some(id)) = (message["method"].as_str(), message["id"].as_u64()) {
                self.agents.asked.push((session, id));
            }
        }
        self.agent_read(conn, event);
        true
    }

    /// An event of a stream, also one that was sent before.
    fn agent_read(&mut self, conn: ConnId, event: &StreamEvent) {
        let get_stream = self.agents.get_stream.get(&conn).copied();
        match (event, self.agents.streams.get_mut(&conn)) {
            (StreamEvent::Message { data, .. }, None) => {
                self.check_whose(get_stream.expect("a stream of somebody's"), &json_of(data));
            }
            (StreamEvent::Message { id, data }, Some(post)) => {
                post.advance(*id);
                post.hear(data);
                let session = post.session;
                self.check_whose(session, &json_of(data));
            }
            (StreamEvent::Prime { id }, Some(post)) => post.advance(Some(*id)),
            (StreamEvent::Prime { .. }, None) | (StreamEvent::KeepAlive, _) => {}
            (StreamEvent::Log(_) | StreamEvent::Endpoint(_), _) => panic!("not on this stream: {event:?}"),
        }
    }

    pub(super) fn agent_stream_ended(&mut self, conn: ConnId) -> bool {
        match self.agents.streams.remove(&conn) {
            Some(post) => {
                self.went_without(&post);
                true
            }
            None => self.agents.get_stream.remove(&conn).is_some() || self.agents.replaced.remove(&conn),
        }
    }

    /// No more will come. What is not answered then was cancelled, or has lost its session.
    fn went_without(&mut self, post: &Post) {
        let missed = post.due.values().any(|due| !due.cancelled);
        if missed && !self.agents.left.contains(&post.session) {
            self.agents.over.insert(post.session);
        }
    }
}

impl Due {
    fn request(&self, id: u64) -> (JsonBuf, JsonBuf) {
        let mut params = json!({ "token": self.token });
        if self.progress {
            params["_meta"] = json!({ "progressToken": progress_token(id) });
        }
        (raw(&id.to_string()), raw(&params.to_string()))
    }
}

impl Post {
    fn advance(&mut self, id: Option<EventId>) {
        assert!(self.seen.is_none_or(|seen| id.is_none_or(|id| id.stream == seen.stream && id.seq > seen.seq)));
        self.seen = id.or(self.seen);
    }

    /// A message on the way to this POST is about one of its requests, and about nothing else.
    fn hear(&mut self, message: &[u8]) {
        let message = json_of(message);
        if message["method"] == "notifications/progress" {
            let params = &message["params"];
            let is_it = |(id, due): (&u64, &Due)| {
                due.token == params["message"] && params["progressToken"] == progress_token(*id) && due.progress
            };
            assert!(self.due.iter().any(is_it), "somebody else's progress: {message}, {self:?}");
            return;
        }
        if message.get("method").is_some() {
            return;
        }
        let id = message["id"].as_u64().expect("the client's own id");
        let due = self.due.remove(&id).unwrap_or_else(|| panic!("never asked, or answered twice: {message}, {self:?}"));
        assert!(!due.cancelled, "it was cancelled: {message}");
        match message.get("result") {
            Some(result) => assert_eq!(result["token"], due.token, "somebody else's reply"),
            None => assert!(message["error"].is_object(), "{message}"),
        }
    }
}

fn raw(text: &str) -> JsonBuf {
    JsonBuf::of(text.to_string()).expect("valid JSON")
}

fn json_of(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).expect("messages are JSON")
}
