//! MCP clients with a session (`admission.rs`): what they post, and the streams they open. Owns the meaning of their
//! messages; what a server says back is routed in `fanout.rs` and `questions.rs`, and leaves through `posts.rs`.
//! Invariant: a client reaches a session only if it is the one that opened it, at the endpoint where it did.

use crate::api::mcp::forwarding::kept_back;
use crate::api::request::{McpAsk, ServerRef, Takes};
use crate::api::response::{Answer, StreamEvent};
use crate::core::Core;
use crate::core::clients::parked::WaitOn;
use crate::core::contract::Output;
use crate::core::effects::Timer;
use crate::core::mcp::aggregate::Patience;
use crate::core::mcp::endpoint::McpEndpoint;
use crate::core::mcp::era::params::{Newer, older_result};
use crate::core::mcp::sessions::{Era, ForwardedRequest, InputRounds, NOBODY, RequestKind};
use crate::core::mcp::wording::{
    Body, INVALID_REQUEST, METHOD_NOT_FOUND, Settled, fault_message, minted_token, rpc_error, stateless_error,
    stateless_status,
};
use crate::core::peers::calls::Caller;
use crate::core::peers::peer::{Dialect, Role};
use crate::core::projects::records::{CallDraft, CallEnd, no_answer};
use crate::ids::EventId;
use crate::ids::{CallId, ConnId, PeerId, PostId, SessionId};
use crate::limits::{KEEP_ALIVE, SESSION_CALLS_MAX, STREAM_AFTER};
use crate::model::fault::{Code, Fault};
use crate::model::principal::Principal;
use crate::model::protocol::Version;
use crate::model::tally::MethodClass;
use crate::shares::{Owner, Resource};
use crate::wire::json::Json;
use crate::wire::jsonrpc::{self, Message, Reply};
use serde::Deserialize;
use std::sync::Arc;

impl Core {
    pub(in crate::core) fn mcp(&mut self, conn: ConnId, who: &Principal, server: Option<&ServerRef>, ask: McpAsk<'_>) {
        let Some(server) = server else { return self.mcp_at(conn, who, McpEndpoint::All, ask) };
        let id = match self.servers.find(server, who) {
            Ok(id) => id,
            Err(fault) => return self.refuse_message(conn, None, &fault),
        };
        if !self.servers.known[&id].definition.stdio_bridge {
            let message =
                format!("{} has no stdio bridge; call it on its own port", self.servers.known[&id].definition.name);
            return self.refuse_message(conn, None, &Fault::new(Code::BridgeDisabled, message));
        }
        self.mcp_at(conn, who, McpEndpoint::Server(id), ask);
    }

    pub(in crate::core) fn mcp_at(&mut self, conn: ConnId, who: &Principal, target: McpEndpoint, ask: McpAsk<'_>) {
        match ask {
            McpAsk::Post { session: None, takes, messages, .. } => match messages.first() {
                Some(Message::Request { id, method, params }) if method == "initialize" && messages.len() == 1 => {
                    self.initialize(conn, who, target, *id, *params, takes);
                }
                Some(_) | None => {
                    let message = "Mcp-Session-Id: is missing; send the one that the answer to initialize brought";
                    self.refuse_message(conn, first_id(&messages), &Fault::new(Code::InvalidRequest, message));
                }
            },
            McpAsk::Post { session: Some(session), takes, batch, messages } => {
                match self.session_of(session, who, &target) {
                    Ok(version) if batch && !version.has_batches() => {
                        let message = format!("{} has no batches: send one message at a time", version.wire());
                        self.refuse_message(conn, None, &Fault::new(Code::InvalidRequest, message));
                    }
                    Ok(_) => self.post(conn, session, takes, batch, messages),
                    Err(fault) => self.refuse_message(conn, first_id(&messages), &fault),
                }
            }
            McpAsk::Stateless { request, takes } => self.stateless(conn, who, target, &request, takes),
            McpAsk::Listen { session, after } => match self.session_of(session, who, &target) {
                Ok(_) => self.listen(conn, session, after),
                Err(fault) => self.refuse_message(conn, None, &fault),
            },
            McpAsk::End { session } => match self.session_of(session, who, &target) {
                Ok(_) => {
                    self.end_session(session, "its client has ended it");
                    self.effects.outputs.push_back(Output::Answer { conn, answer: Answer::SessionEnded });
                }
                Err(fault) => self.refuse_message(conn, None, &fault),
            },
            McpAsk::OldStream { post_to } => self.open_old_stream(conn, who, target, &post_to),
            McpAsk::OldPost { session, message } => match self.session_of(session, who, &target) {
                Ok(_) => self.old_post(conn, session, message),
                Err(fault) => self.refuse_message(conn, None, &fault),
            },
        }
    }

    fn session_of(&mut self, id: SessionId, who: &Principal, target: &McpEndpoint) -> Result<Version, Fault> {
        let now_ms = self.effects.now.mono_ms;
        let session =
            self.mcp.sessions.get_mut(id).filter(|session| session.owner == who.name && session.endpoint == *target);
        let gone = || Fault::new(Code::NotFound, "there is no such session (any more): initialize again");
        let session = session.ok_or_else(gone)?;
        session.used_ms = now_ms;
        Ok(session.version)
    }

    // --- what a client posts ------------------------------------------------------------------------------------------

    fn post(&mut self, conn: ConnId, session: SessionId, takes: Takes, batch: bool, messages: Vec<Message<'_>>) {
        let due = messages.iter().filter(|message| matches!(message, Message::Request { .. })).count();
        if due == 0 {
            for message in messages {
                self.told(session, message);
            }
            self.effects.outputs.push_back(Output::Answer { conn, answer: Answer::Accepted });
            return;
        }
        let post = self.open_post(Some(conn), Some(session), takes != Takes::Json, due);
        if batch || takes == Takes::Stream {
            self.open_stream(post);
        }
        for message in messages {
            match message {
                Message::Request { id, method, params } => self.requested(post, session, id, &method, params),
                Message::Notification { .. } | Message::Reply { .. } | Message::Stray => self.told(session, message),
            }
        }
        // A call that takes its time goes over a stream, which can be kept alive and resumed.
        if self.mcp.posts.get(&post).is_some_and(|post| post.stream.is_none()) {
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
        let Some(peer) = self.mcp.sessions.get(session).map(|session| session.peer) else { return };
        match (method, peer) {
            ("ping", _) => self.finish(post, None, 200, jsonrpc::result(id.get(), b"{}")),
            ("initialize", _) => {
                let message = "this session is initialized; initialize without Mcp-Session-Id for another";
                self.finish(post, None, 200, rpc_error(id.get(), INVALID_REQUEST, message));
            }
            ("logging/setLevel", _) => self.set_level(post, session, id, params),
            _ if self.is_kept_back(method, peer) => {
                let message = format!("Method not found: {method}");
                self.finish(post, None, 200, rpc_error(id.get(), METHOD_NOT_FOUND, &message));
            }
            (_, None) => self.aggregate_request(post, session, id, method, params, Patience::Left),
            ("resources/subscribe" | "resources/unsubscribe", Some(peer)) => {
                self.subscription(post, session, peer, id, method, params);
            }
            (_, Some(peer)) => self.forward(post, session, peer, id, method, params, RequestKind::Plain),
        }
    }

    /// Is this a request that would reach beyond its session? An instance of its own has nothing beyond it.
    fn is_kept_back(&self, method: &str, peer: Option<PeerId>) -> bool {
        match method {
            // They are set per session (`wishes.rs`).
            "resources/subscribe" | "resources/unsubscribe" => false,
            "tasks/list" => {
                let role = peer.and_then(|peer| self.peers.known.get(&peer)).map(|peer| peer.role);
                !matches!(role, Some(Role::Session(_)))
            }
            _ => kept_back(method).is_some(),
        }
    }

    /// Sends a session's request to a server, under an id and a progress token of ours.
    #[allow(clippy::too_many_arguments)] // one call, named by its parts
    pub(in crate::core) fn forward(
        &mut self,
        post: PostId,
        session_id: SessionId,
        peer: PeerId,
        id: Json<'_>,
        method: &str,
        params: Option<Json<'_>>,
        kind: RequestKind,
    ) {
        let Some(session) = self.mcp.sessions.get(session_id) else { return };
        if session.calls.len() >= SESSION_CALLS_MAX {
            let message = format!("{SESSION_CALLS_MAX} requests of this session wait already");
            return self.finish(post, None, 200, fault_message(id.get(), &Fault::new(Code::QueueFull, message)));
        }
        let (abilities, level, owner) = (session.abilities, session.level, Arc::clone(&session.owner));
        let newer = self.peers.known.get(&peer).is_some_and(|peer| peer.dialect == Dialect::Stateless);
        let rounds = newer.then(|| Box::new(InputRounds::first(method, params)));
        let kept = rounds.as_ref().map_or(0, |rounds| rounds.kept_bytes());
        if kept > 0 && kept > self.effects.shares.room(&Owner::Principal(Arc::clone(&owner)), Resource::Memory) {
            let fault = Fault::new(Code::QueueFull, "your requests that wait are too large together");
            return self.finish(post, None, 200, fault_message(id.get(), &fault.retry_after_ms(1_000)));
        }
        let record = self.draft_of_session(session_id, method, params);
        let sent = match &rounds {
            Some(rounds) => self.submit_newer(peer, &owner, &Newer { abilities: &abilities, level }, rounds),
            None => {
                let mut token = None;
                let sent = self.submit(peer, Some(&owner), None, (Caller::Mcp, MethodClass::of(method)), |call| {
                    let (params, own) = minted_token(params, call);
                    token = own;
                    jsonrpc::forwarded(call, method, params.as_deref())
                });
                sent.map(|(call, timeout_ms)| (call, timeout_ms, token))
            }
        };
        match sent {
            Ok((call, timeout_ms, token)) => {
                let forwarded = ForwardedRequest {
                    peer,
                    post,
                    session: Some(session_id),
                    id: id.kept(),
                    token,
                    kind,
                    abilities,
                    level: None,
                    era: if newer { Era::SessionOverStateless } else { Era::Same },
                    timeout_ms,
                    owner,
                    rounds,
                    record,
                };
                self.insert_forwarded(call, forwarded);
                self.mcp.sessions.get_mut(session_id).expect("just seen").calls.push(call);
                self.mcp.posts.get_mut(&post).expect("it asks").calls.push(call);
            }
            Err(fault) => {
                if let Some(draft) = record {
                    let server = self.peers.known.get(&peer).map(|peer| peer.server);
                    self.record_call(*draft, server, CallEnd::Fault(&fault));
                }
                self.finish(post, None, 200, fault_message(id.get(), &fault));
            }
        }
    }

    /// Calls of a project are recorded.
    pub(in crate::core) fn draft_of_session(
        &mut self,
        session: SessionId,
        method: &str,
        params: Option<Json<'_>>,
    ) -> Option<Box<CallDraft>> {
        let session = self.mcp.sessions.get(session).filter(|_| method == "tools/call")?;
        let McpEndpoint::Project(project) = &session.endpoint else { return None };
        let (project, owner) = (project.clone(), Arc::clone(&session.owner));
        self.draft_params(&project, &owner, params).map(Box::new)
    }

    /// Notifications of a client, and its answers to questions.
    pub(in crate::core) fn told(&mut self, session: SessionId, message: Message<'_>) {
        match message {
            Message::Reply { id, body } => self.question_answered(session, id, &body),
            Message::Notification { method, params } => match &*method {
                "notifications/initialized" => {}
                "notifications/cancelled" => self.cancelled_by_client(session, params),
                "notifications/progress" => self.question_progressed(session, params),
                "notifications/roots/list_changed" => self.roots_changed(session),
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
        let Some(known) = self.mcp.sessions.get(session) else { return };
        let is_it = |call: &&CallId| self.mcp.forwarded.get(call).is_some_and(|e| e.id.get() == wire.request_id.get());
        let Some(call) = known.calls.iter().find(is_it).copied() else {
            return self.cancel_waiting(session, wire.request_id);
        };
        let post = self.mcp.forwarded[&call].post;
        self.drop_forwarded(call, "the client has cancelled it");
        self.unanswered(post, Some(call));
    }

    // --- streams that a client opens ----------------------------------------------------------------------------------

    fn listen(&mut self, conn: ConnId, id: SessionId, after: Option<EventId>) {
        let session = self.mcp.sessions.get_mut(id).expect("looked up before");
        if let Some(after) = after.filter(|after| after.stream != 0) {
            return self.resume(conn, id, after);
        }
        let since = after.map_or(session.heard, |after| after.seq);
        let mut events = Vec::new();
        if session.version.knows_priming() {
            events.push(StreamEvent::Prime { id: session.log.mark(0) });
        }
        for (id, data) in session.log.after(EventId { stream: 0, seq: since }) {
            session.heard = id.seq;
            events.push(StreamEvent::Message { id: Some(id), data });
        }
        // The newest wins: the other may be a connection whose end nobody has noticed yet.
        let before = session.get_stream.replace(conn);
        self.clients.park(conn, WaitOn::GetStream(id));
        self.effects.outputs.push_back(Output::Answer { conn, answer: Answer::Stream { session: None, events } });
        self.effects.deadlines.set(Timer::Stream(conn), self.effects.now.mono_ms + KEEP_ALIVE.as_millis() as u64);
        if let Some(before) = before {
            self.close_conn(before);
        }
    }

    /// The rest of a request's stream, and what is still to come on it.
    fn resume(&mut self, conn: ConnId, id: SessionId, after: EventId) {
        let session = self.mcp.sessions.get(id).expect("looked up before");
        let replay = session.log.after(after);
        let events = replay.map(|(id, data)| StreamEvent::Message { id: Some(id), data }).collect();
        let post = session.streams.get(&after.stream).copied();
        self.effects.outputs.push_back(Output::Answer { conn, answer: Answer::Stream { session: None, events } });
        match post.and_then(|post| Some((post, self.mcp.posts.get_mut(&post)?))) {
            Some((post, open)) => {
                let before = open.conn.replace(conn);
                self.clients.park(conn, WaitOn::Post(post));
                self.effects
                    .deadlines
                    .set(Timer::Stream(conn), self.effects.now.mono_ms + KEEP_ALIVE.as_millis() as u64);
                if let Some(before) = before {
                    self.close_conn(before);
                }
            }
            None => self.effects.outputs.push_back(Output::EndStream { conn }),
        }
    }

    // --- answers --------------------------------------------------------------------------------------------------------

    /// The server has answered, or will not: the client hears it under its own id.
    pub(in crate::core) fn request_replied(&mut self, call: CallId, reply: &Reply<'_>) {
        let mut forwarded = self.take_forwarded(call);
        if let (Some(ForwardedRequest { era: Era::SessionOverStateless, .. }), Reply::Result(raw)) = (&forwarded, reply)
            && self.asks_for_input(call, &mut forwarded, *raw)
        {
            return;
        }
        let Some(mut forwarded) = forwarded else { return };
        if forwarded.record.is_some() {
            self.record_forwarded(&mut forwarded, CallEnd::of_reply(reply, &no_answer()));
        }
        let (status, body) = match (forwarded.era, reply) {
            (Era::Same, Reply::Result(raw)) => {
                self.settle_subscription(&forwarded);
                (200, Body::Result(raw.get().as_bytes().into()))
            }
            (Era::SessionOverStateless, Reply::Result(raw)) => (200, Body::Result(older_result(*raw).into())),
            (Era::Same | Era::SessionOverStateless, Reply::Error { raw, .. }) => {
                (200, Body::Error(raw.get().as_bytes().into()))
            }
            (Era::Stateless | Era::StatelessOverSessions, Reply::Result(raw)) => {
                (200, Body::Result(self.stateless_result(&forwarded, call, *raw).into()))
            }
            (Era::Stateless | Era::StatelessOverSessions, Reply::Error { code, raw }) => {
                let (code, raw) = stateless_error(&forwarded, *code, raw.get());
                (stateless_status(code), Body::Error(raw.into_owned().into_bytes().into()))
            }
            (_, Reply::Neither) => {
                let fault = Fault::new(Code::BadServerOutput, "the reply has neither a valid result nor an error");
                return self.settled(call, &forwarded, Settled::fault(&fault));
            }
        };
        self.settled(call, &forwarded, Settled { status, body });
    }

    pub(in crate::core) fn request_failed(&mut self, call: CallId, fault: &Fault) {
        let Some(mut forwarded) = self.take_forwarded(call) else { return };
        let fault = forwarded.after_rounds(fault.clone());
        self.record_forwarded(&mut forwarded, CallEnd::Fault(&fault));
        self.settled(call, &forwarded, Settled::fault(&fault));
    }

    fn settled(&mut self, call: CallId, forwarded: &ForwardedRequest, answer: Settled<'_>) {
        match (forwarded.post, answer) {
            (NOBODY, answer) => self.keep_answer(call, forwarded, answer),
            (post, Settled { status: 200, body: Body::Result(result) }) => {
                self.finish_with(post, call, forwarded.id.get(), result);
            }
            (post, answer) => self.finish(post, Some(call), answer.status, answer.message(forwarded.id.get())),
        }
    }

    fn settle_subscription(&mut self, forwarded: &ForwardedRequest) {
        let Some(session) = forwarded.session.and_then(|id| self.mcp.sessions.get_mut(id)) else { return };
        match &forwarded.kind {
            RequestKind::Subscribe(uri) => _ = session.subscriptions.insert((forwarded.peer, uri.clone())),
            // InputRounds: the answer to a subscription may have come after it was given up.
            RequestKind::Unsubscribe(uri) => _ = session.subscriptions.remove(&(forwarded.peer, uri.clone())),
            RequestKind::Plain | RequestKind::Cacheable | RequestKind::ReadResource => {}
        }
    }

    pub(in crate::core) fn insert_forwarded(&mut self, call: CallId, forwarded: ForwardedRequest) {
        if let Some(rounds) = &forwarded.rounds {
            self.effects.shares.put(
                &Owner::Principal(Arc::clone(&forwarded.owner)),
                Resource::Memory,
                rounds.kept_bytes(),
            );
        }
        self.mcp.forwarded.insert(call, forwarded);
    }

    pub(in crate::core) fn take_forwarded(&mut self, call: CallId) -> Option<ForwardedRequest> {
        let forwarded = self.mcp.forwarded.remove(&call)?;
        if let Some(rounds) = &forwarded.rounds {
            self.effects.shares.give_back(
                &Owner::Principal(Arc::clone(&forwarded.owner)),
                Resource::Memory,
                rounds.kept_bytes(),
            );
        }
        self.effects.deadlines.cancel(Timer::Call(call));
        if let Some(session) = forwarded.session.and_then(|id| self.mcp.sessions.get_mut(id)) {
            session.calls.retain(|other| *other != call);
            session.used_ms = self.effects.now.mono_ms;
        }
        self.withdraw_questions(call);
        Some(forwarded)
    }

    /// Nobody waits for it any more: the server is told, and the slot is free.
    pub(in crate::core) fn drop_forwarded(&mut self, call: CallId, why: &str) {
        let outcome = self.peers.calls.outcome_of_leaving(call);
        let mut forwarded = self.take_forwarded(call);
        if let Some(forwarded) = &mut forwarded {
            self.record_forwarded(forwarded, CallEnd::Left(outcome));
        }
        let session = forwarded.and_then(|forwarded| forwarded.session);
        self.abandon_call(call, session, why);
    }

    pub(in crate::core) fn message(&mut self, conn: ConnId, status: u16, session: Option<SessionId>, body: Vec<u8>) {
        self.effects.outputs.push_back(Output::Answer { conn, answer: Answer::Message { status, session, body } });
    }

    /// A refusal of the transport's, before any session or call is touched.
    pub(in crate::core) fn refuse_message(&mut self, conn: ConnId, id: Option<Json<'_>>, fault: &Fault) {
        let body = fault_message(id.map_or("null", Json::get), fault);
        self.message(conn, fault.code.status(), None, body);
    }
}

fn first_id<'a>(messages: &[Message<'a>]) -> Option<Json<'a>> {
    match messages.first() {
        Some(Message::Request { id, .. }) => Some(*id),
        Some(Message::Notification { .. } | Message::Reply { .. } | Message::Stray) | None => None,
    }
}
