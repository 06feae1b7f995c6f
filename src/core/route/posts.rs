//! What MCP clients post, on its way to whom it is for. What a message means and how it is answered is known to `mcp/posts.rs` and
//! its neighbours; here it is passed on. Invariant: a client reaches a session only if it is the one that opened it, at the
//! endpoint where it did.

use crate::api::mcp::forwarding::kept_back;
use crate::api::request::{McpAsk, ServerRef, Takes};
use crate::api::response::Answer;
use crate::core::Core;
use crate::core::contract::Output;
use crate::core::effects::{Effects, Timer};
use crate::core::hosting::idle::is_quiet;
use crate::core::mcp::aggregate::Patience;
use crate::core::mcp::endpoint::McpEndpoint;
use crate::core::mcp::posts::done;
use crate::core::mcp::responses::Replies;
use crate::core::mcp::sessions::RequestKind;
use crate::core::mcp::wording::{INVALID_REQUEST, METHOD_NOT_FOUND, rpc_error};
use crate::core::peers::peer::{Peer, Role};
use crate::core::projects::records::{CallDraft, CallEnd};
use crate::ids::{CallId, ConnId, PeerId, PostId, SessionId};
use crate::limits::STREAM_AFTER;
use crate::model::fault::{Code, Fault};
use crate::model::principal::Principal;
use crate::wire::json::Json;
use crate::wire::jsonrpc::{self, Message, Reply};
use serde::Deserialize;

impl Core {
    pub(in crate::core) fn mcp(&mut self, conn: ConnId, who: &Principal, server: Option<&ServerRef>, ask: McpAsk<'_>) {
        let Some(server) = server else { return self.mcp_at(conn, who, McpEndpoint::All, ask) };
        let id = match self.servers.find(server, who) {
            Ok(id) => id,
            Err(fault) => return self.replies().refuse_message(conn, None, &fault),
        };
        if !self.servers.known[&id].definition.stdio_bridge {
            let message =
                format!("{} has no stdio bridge; call it on its own port", self.servers.known[&id].definition.name);
            return self.replies().refuse_message(conn, None, &Fault::new(Code::BridgeDisabled, message));
        }
        self.mcp_at(conn, who, McpEndpoint::Server(id), ask);
    }

    pub(in crate::core) fn mcp_at(&mut self, conn: ConnId, who: &Principal, target: McpEndpoint, ask: McpAsk<'_>) {
        let now_ms = self.effects.now.mono_ms;
        match ask {
            McpAsk::Post { session: None, takes, messages, .. } => match messages.first() {
                Some(Message::Request { id, method, params }) if method == "initialize" && messages.len() == 1 => {
                    self.initialize(conn, who, target, *id, *params, takes);
                }
                Some(_) | None => {
                    let message = "Mcp-Session-Id: is missing; send the one that the answer to initialize brought";
                    self.replies().refuse_message(
                        conn,
                        first_id(&messages),
                        &Fault::new(Code::InvalidRequest, message),
                    );
                }
            },
            McpAsk::Post { session: Some(session), takes, batch, messages } => {
                match self.mcp.session_of(session, who, &target, now_ms) {
                    Ok(version) if batch && !version.has_batches() => {
                        let message = format!("{} has no batches: send one message at a time", version.wire());
                        self.replies().refuse_message(conn, None, &Fault::new(Code::InvalidRequest, message));
                    }
                    Ok(_) => self.post(conn, session, takes, batch, messages),
                    Err(fault) => self.replies().refuse_message(conn, first_id(&messages), &fault),
                }
            }
            McpAsk::Stateless { request, takes } => self.stateless(conn, who, target, &request, takes),
            McpAsk::Listen { session, after } => match self.mcp.session_of(session, who, &target, now_ms) {
                Ok(_) => self.replies().listen(conn, session, after),
                Err(fault) => self.replies().refuse_message(conn, None, &fault),
            },
            McpAsk::End { session } => match self.mcp.session_of(session, who, &target, now_ms) {
                Ok(_) => {
                    self.end_session(session, "its client has ended it");
                    self.effects.outputs.push_back(Output::Answer { conn, answer: Answer::SessionEnded });
                }
                Err(fault) => self.replies().refuse_message(conn, None, &fault),
            },
            McpAsk::OldStream { post_to } => self.open_old_stream(conn, who, target, &post_to),
            McpAsk::OldPost { session, message } => match self.mcp.session_of(session, who, &target, now_ms) {
                Ok(_) => self.old_post(conn, session, message),
                Err(fault) => self.replies().refuse_message(conn, None, &fault),
            },
        }
    }

    fn post(&mut self, conn: ConnId, session: SessionId, takes: Takes, batch: bool, messages: Vec<Message<'_>>) {
        let due = messages.iter().filter(|message| matches!(message, Message::Request { .. })).count();
        if due == 0 {
            for message in messages {
                self.told(session, message);
            }
            self.effects.outputs.push_back(Output::Answer { conn, answer: Answer::Accepted });
            return;
        }
        let post = self.replies().open_post(Some(conn), Some(session), takes != Takes::Json, due);
        if batch || takes == Takes::Stream {
            self.replies().open_stream(post);
        }
        for message in messages {
            match message {
                Message::Request { id, method, params } => self.requested(post, session, id, &method, params),
                Message::Notification { .. } | Message::Reply { .. } | Message::Stray => self.told(session, message),
            }
        }
        // A call that takes its time goes over a stream, which can be kept alive and resumed.
        if self.mcp.is_plain(post) {
            self.effects.deadlines.set(Timer::Stream(conn), self.effects.now.mono_ms + STREAM_AFTER.as_millis() as u64);
        }
    }

    pub(in crate::core) fn requested(
        &mut self,
        post: PostId,
        session: SessionId,
        id: Json<'_>,
        method: &str,
        params: Option<Json<'_>>,
    ) {
        let Some(peer) = self.mcp.session(session).map(|session| session.peer) else { return };
        match (method, peer) {
            ("ping", _) => self.replies().finish(post, None, 200, jsonrpc::result(id.get(), b"{}")),
            ("initialize", _) => {
                let message = "this session is initialized; initialize without Mcp-Session-Id for another";
                self.replies().finish(post, None, 200, rpc_error(id.get(), INVALID_REQUEST, message));
            }
            ("logging/setLevel", _) => {
                let Core { mcp, clients, effects, peers, .. } = self;
                Replies { mcp, clients, effects }.set_level(peers, post, session, id, params);
            }
            _ if is_kept_back(method, peer.and_then(|peer| self.peers.known.get(&peer))) => {
                let message = format!("Method not found: {method}");
                self.replies().finish(post, None, 200, rpc_error(id.get(), METHOD_NOT_FOUND, &message));
            }
            (_, Some(peer)) if is_quiet(method) && self.is_told_at_rest(post, peer, id, method, params) => {}
            (_, None) => self.aggregate_request(post, session, id, method, params, Patience::Left),
            ("resources/subscribe" | "resources/unsubscribe", Some(peer)) => {
                self.subscription(post, session, peer, id, method, params);
            }
            (_, Some(peer)) => self.forward(post, session, peer, id, method, params, RequestKind::Plain),
        }
    }

    /// It is known while the server rests, and not worth waking it for.
    fn is_told_at_rest(
        &mut self,
        post: PostId,
        peer: PeerId,
        id: Json<'_>,
        method: &str,
        params: Option<Json<'_>>,
    ) -> bool {
        let message = self.message_at_rest(peer, id, method, params);
        let is_told = message.is_some();
        if let Some(message) = message {
            self.replies().finish(post, None, 200, message);
        }
        is_told
    }

    /// Sends a session's request to a server.
    #[allow(clippy::too_many_arguments)] // one call, named by its parts
    pub(in crate::core) fn forward(
        &mut self,
        post: PostId,
        session: SessionId,
        peer: PeerId,
        id: Json<'_>,
        method: &str,
        params: Option<Json<'_>>,
        kind: RequestKind,
    ) {
        let Core { mcp, clients, effects, peers, projects, settings, .. } = self;
        let recorded = mcp.recorded_at(session, method);
        let record = |effects: &mut Effects| {
            let (project, owner) = recorded?;
            projects.draft_params((&project, &owner), params, settings.record_arguments, effects.now).map(Box::new)
        };
        let mut replies = Replies { mcp, clients, effects };
        replies.forward(peers, (post, session), peer, id, method, params, kind, record);
    }

    /// Calls of a project are recorded.
    pub(in crate::core) fn draft_of_session(
        &mut self,
        session: SessionId,
        method: &str,
        params: Option<Json<'_>>,
    ) -> Option<Box<CallDraft>> {
        let (project, owner) = self.mcp.recorded_at(session, method)?;
        self.draft_params(&project, &owner, params).map(Box::new)
    }

    /// Notifications of a client, and its answers to questions.
    pub(in crate::core) fn told(&mut self, session: SessionId, message: Message<'_>) {
        match message {
            Message::Reply { id, body } => self.pass_answer(Some(session), id, &body),
            Message::Notification { method, params } => match &*method {
                "notifications/initialized" => {}
                "notifications/cancelled" => self.cancelled_by_client(session, params),
                "notifications/progress" => self.mcp.question_progressed(session, params, &mut self.effects),
                "notifications/roots/list_changed" => self.mcp.roots_changed(session, &self.peers, &mut self.effects),
                // What is not known here cannot be kept to its session, and the process is not its alone.
                _ => {}
            },
            Message::Request { .. } | Message::Stray => {}
        }
    }

    /// Only a request of the same session can be meant, whatever id others use.
    fn cancelled_by_client(&mut self, session: SessionId, params: Option<Json<'_>>) {
        #[derive(Deserialize)]
        struct Wire<'a> {
            #[serde(rename = "requestId", borrow)]
            request_id: Json<'a>,
        }
        let Some(wire) = params.and_then(|raw| serde_json::from_str::<Wire<'_>>(raw.get()).ok()) else { return };
        let Some((call, post)) = self.mcp.call_of(session, wire.request_id) else {
            return self.cancel_waiting(session, wire.request_id);
        };
        self.drop_forwarded(call, "the client has cancelled it");
        self.replies().unanswered(post, Some(call));
    }

    /// The server has answered, or will not: the client hears it under its own id.
    pub(in crate::core) fn request_replied(&mut self, call: CallId, reply: &Reply<'_>) {
        let Core { mcp, clients, effects, peers, .. } = self;
        Replies { mcp, clients, effects }.request_replied(peers, call, reply);
    }

    pub(in crate::core) fn request_failed(&mut self, call: CallId, fault: &Fault) {
        let Core { mcp, clients, effects, peers, .. } = self;
        Replies { mcp, clients, effects }.request_failed(peers, call, fault);
    }

    pub(in crate::core) fn input_given(&mut self, round: CallId, key: &str, reply: &Reply<'_>) {
        let Core { mcp, clients, effects, peers, .. } = self;
        Replies { mcp, clients, effects }.input_given(peers, round, key, reply);
    }

    /// A peer is gone.
    pub(in crate::core) fn fail_rounds(&mut self, peer: PeerId) {
        // Calls that have just made way are none of them.
        self.settle();
        let fault = Fault::new(Code::NotFound, "the server has gone away meanwhile");
        for round in self.mcp.rounds_of(peer, &self.peers) {
            self.request_failed(round, &fault);
        }
    }

    /// Nobody has answered in time.
    pub(in crate::core) fn round_timed_out(&mut self, round: CallId) {
        let message = "the client did not give the input that the server needs";
        self.request_failed(round, &Fault::new(Code::CallTimeout, message));
    }

    /// Nobody waits for it any more: the server is told, and the slot is free.
    pub(in crate::core) fn drop_forwarded(&mut self, call: CallId, why: &str) {
        let outcome = self.peers.calls.outcome_of_leaving(call);
        let mut forwarded = self.mcp.take_forwarded(call, &self.peers, &mut self.effects);
        if let Some(forwarded) = &mut forwarded {
            done(forwarded, CallEnd::Left(outcome), &mut self.effects);
        }
        let session = forwarded.and_then(|forwarded| forwarded.session);
        self.abandon_call(call, session, why);
    }
}

/// Is this a request that would reach beyond its session? An instance of its own has nothing beyond it.
fn is_kept_back(method: &str, peer: Option<&Peer>) -> bool {
    match method {
        // They are set per session (`preferences.rs`).
        "resources/subscribe" | "resources/unsubscribe" => false,
        "tasks/list" => !matches!(peer.map(|peer| peer.role), Some(Role::Session(_))),
        _ => kept_back(method).is_some(),
    }
}

fn first_id<'a>(messages: &[Message<'a>]) -> Option<Json<'a>> {
    match messages.first() {
        Some(Message::Request { id, .. }) => Some(*id),
        Some(Message::Notification { .. } | Message::Reply { .. } | Message::Stray) | None => None,
    }
}
