//! MCP clients with a session (`admission.rs`): how what they post goes to a server, and how its answer comes back under their own
//! id. What a server says without being asked is `notifications.rs`'s and `questions.rs`'s; all of it leaves through `responses.rs`.
//! Invariant: a client reaches a session only if it is the one that opened it, at the endpoint where it did.

use crate::api::response::{Answer, StreamEvent};
use crate::core::clients::parked::WaitOn;
use crate::core::contract::Output;
use crate::core::effects::Effects;
use crate::core::effects::Timer;
use crate::core::events::RoomEvent;
use crate::core::mcp::Mcp;
use crate::core::mcp::endpoint::McpEndpoint;
use crate::core::mcp::era::params::{Newer, older_result};
use crate::core::mcp::era::rounds::submit_newer;
use crate::core::mcp::era::stateless::stateless_result;
use crate::core::mcp::responses::Replies;
use crate::core::mcp::sessions::{Era, ForwardedRequest, InputRounds, NOBODY, RequestKind};
use crate::core::mcp::wording::{Body, Settled, fault_message, minted_token, stateless_error, stateless_status};
use crate::core::peers::Peers;
use crate::core::peers::calls::Caller;
use crate::core::peers::peer::Dialect;
use crate::core::projects::records::{CallDraft, CallEnd, no_answer};
use crate::ids::EventId;
use crate::ids::{CallId, ConnId, PeerId, PostId, SessionId};
use crate::limits::{KEEP_ALIVE, SESSION_CALLS_MAX};
use crate::model::fault::{Code, Fault};
use crate::model::principal::Principal;
use crate::model::protocol::Version;
use crate::model::tally::MethodClass;
use crate::shares::{Owner, Resource};
use crate::wire::json::Json;
use crate::wire::jsonrpc::{self, Reply};
use std::sync::Arc;

impl Replies<'_> {
    /// Sends a session's request to a server, under an id and a progress token of ours.
    #[allow(clippy::too_many_arguments)] // one call, named by its parts
    pub fn forward(
        &mut self,
        peers: &mut Peers,
        (post, session_id): (PostId, SessionId),
        peer: PeerId,
        id: Json<'_>,
        method: &str,
        params: Option<Json<'_>>,
        kind: RequestKind,
        record: impl FnOnce(&mut Effects) -> Option<Box<CallDraft>>,
    ) {
        let Some(session) = self.mcp.sessions.get(session_id) else { return };
        if session.calls.len() >= SESSION_CALLS_MAX {
            let message = format!("{SESSION_CALLS_MAX} requests of this session wait already");
            return self.finish(post, None, 200, fault_message(id.get(), &Fault::new(Code::QueueFull, message)));
        }
        let (abilities, level, owner) = (session.abilities, session.level, Arc::clone(&session.owner));
        let newer = peers.known.get(&peer).is_some_and(|peer| peer.dialect == Dialect::Stateless);
        let rounds = newer.then(|| Box::new(InputRounds::first(method, params)));
        let kept = rounds.as_ref().map_or(0, |rounds| rounds.kept_bytes());
        if kept > 0 && kept > self.effects.shares.room(&Owner::Principal(Arc::clone(&owner)), Resource::Memory) {
            let fault = Fault::new(Code::QueueFull, "your requests that wait are too large together");
            return self.finish(post, None, 200, fault_message(id.get(), &fault.retry_after_ms(1_000)));
        }
        let record = record(self.effects);
        let used_ms = peers.used_before(peer, method);
        let sent = match &rounds {
            Some(rounds) => {
                submit_newer(peers, peer, &owner, &Newer { abilities: &abilities, level }, rounds, self.effects)
            }
            None => {
                let mut token = None;
                let line = |call| {
                    let (params, own) = minted_token(params, call);
                    token = own;
                    jsonrpc::forwarded(call, method, params.as_deref())
                };
                let kind = (Caller::Mcp, MethodClass::of(method));
                let sent = peers.submit(peer, Some(&owner), None, kind, line, self.effects);
                sent.map(|(call, timeout_ms)| (call, timeout_ms, token))
            }
        };
        peers.was_no_use(peer, used_ms);
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
                self.mcp.insert_forwarded(call, forwarded, self.effects);
                self.mcp.sessions.get_mut(session_id).expect("just seen").calls.push(call);
                self.mcp.posts.get_mut(&post).expect("it asks").calls.push(call);
            }
            Err(fault) => {
                if let Some(draft) = record {
                    let done = Box::new(CallEnd::Fault(&fault).into());
                    self.effects.raise(RoomEvent::ToolCallDone { draft, peer, done });
                }
                self.finish(post, None, 200, fault_message(id.get(), &fault));
            }
        }
    }

    pub fn listen(&mut self, conn: ConnId, id: SessionId, after: Option<EventId>) {
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
            self.clients.close(before, self.effects);
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
                    self.clients.close(before, self.effects);
                }
            }
            None => self.effects.outputs.push_back(Output::EndStream { conn }),
        }
    }

    /// The server has answered, or will not: the client hears it under its own id.
    pub fn request_replied(&mut self, peers: &mut Peers, call: CallId, reply: &Reply<'_>) {
        let mut forwarded = self.mcp.take_forwarded(call, peers, self.effects);
        if let (Some(ForwardedRequest { era: Era::SessionOverStateless, .. }), Reply::Result(raw)) = (&forwarded, reply)
            && self.asks_for_input(peers, call, &mut forwarded, *raw)
        {
            return;
        }
        let Some(mut forwarded) = forwarded else { return };
        if forwarded.record.is_some() {
            done(&mut forwarded, CallEnd::of_reply(reply, &no_answer()), self.effects);
        }
        let (status, body) = match (forwarded.era, reply) {
            (Era::Same, Reply::Result(raw)) => {
                self.mcp.settle_subscription(&forwarded);
                (200, Body::Result(raw.get().as_bytes().into()))
            }
            (Era::SessionOverStateless, Reply::Result(raw)) => (200, Body::Result(older_result(*raw).into())),
            (Era::Same | Era::SessionOverStateless, Reply::Error { raw, .. }) => {
                (200, Body::Error(raw.get().as_bytes().into()))
            }
            (Era::Stateless | Era::StatelessOverSessions, Reply::Result(raw)) => {
                (200, Body::Result(stateless_result(&forwarded, call, *raw).into()))
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

    pub fn request_failed(&mut self, peers: &Peers, call: CallId, fault: &Fault) {
        let Some(mut forwarded) = self.mcp.take_forwarded(call, peers, self.effects) else { return };
        let fault = forwarded.after_rounds(fault.clone());
        done(&mut forwarded, CallEnd::Fault(&fault), self.effects);
        self.settled(call, &forwarded, Settled::fault(&fault));
    }

    fn settled(&mut self, call: CallId, forwarded: &ForwardedRequest, answer: Settled<'_>) {
        match (forwarded.post, answer) {
            (NOBODY, answer) => self.mcp.keep_answer(call, forwarded, answer, self.effects.now.mono_ms),
            (post, Settled { status: 200, body: Body::Result(result) }) => {
                self.finish_with(post, call, forwarded.id.get(), result);
            }
            (post, answer) => self.finish(post, Some(call), answer.status, answer.message(forwarded.id.get())),
        }
    }

    pub fn message(&mut self, conn: ConnId, status: u16, session: Option<SessionId>, body: Vec<u8>) {
        self.effects.outputs.push_back(Output::Answer { conn, answer: Answer::Message { status, session, body } });
    }

    /// A refusal of the transport's, before any session or call is touched.
    pub fn refuse_message(&mut self, conn: ConnId, id: Option<Json<'_>>, fault: &Fault) {
        let body = fault_message(id.map_or("null", Json::get), fault);
        self.message(conn, fault.code.status(), None, body);
    }
}

impl Mcp {
    pub fn session_of(
        &mut self,
        id: SessionId,
        who: &Principal,
        target: &McpEndpoint,
        now_ms: u64,
    ) -> Result<Version, Fault> {
        let session =
            self.sessions.get_mut(id).filter(|session| session.owner == who.name && session.endpoint == *target);
        let gone = || Fault::new(Code::NotFound, "there is no such session (any more): initialize again");
        let session = session.ok_or_else(gone)?;
        session.used_ms = now_ms;
        Ok(session.version)
    }

    fn settle_subscription(&mut self, forwarded: &ForwardedRequest) {
        let Some(session) = forwarded.session.and_then(|id| self.sessions.get_mut(id)) else { return };
        match &forwarded.kind {
            RequestKind::Subscribe(uri) => _ = session.subscriptions.insert((forwarded.peer, uri.clone())),
            // InputRounds: the answer to a subscription may have come after it was given up.
            RequestKind::Unsubscribe(uri) => _ = session.subscriptions.remove(&(forwarded.peer, uri.clone())),
            RequestKind::Plain | RequestKind::Cacheable | RequestKind::ReadResource => {}
        }
    }

    pub fn insert_forwarded(&mut self, call: CallId, forwarded: ForwardedRequest, effects: &mut Effects) {
        if let Some(rounds) = &forwarded.rounds {
            effects.shares.put(&Owner::Principal(Arc::clone(&forwarded.owner)), Resource::Memory, rounds.kept_bytes());
        }
        self.forwarded.insert(call, forwarded);
    }

    pub fn take_forwarded(&mut self, call: CallId, peers: &Peers, effects: &mut Effects) -> Option<ForwardedRequest> {
        let forwarded = self.forwarded.remove(&call)?;
        if let Some(rounds) = &forwarded.rounds {
            effects.shares.give_back(
                &Owner::Principal(Arc::clone(&forwarded.owner)),
                Resource::Memory,
                rounds.kept_bytes(),
            );
            // Between two rounds it has one without being a call.
            effects.deadlines.cancel(Timer::Call(call));
        }
        if let Some(session) = forwarded.session.and_then(|id| self.sessions.get_mut(id)) {
            session.calls.retain(|other| *other != call);
            session.used_ms = effects.now.mono_ms;
        }
        self.withdraw_questions(call, peers, effects);
        Some(forwarded)
    }
}

/// What is recorded of a call has an end; of any other request there is nothing.
pub(in crate::core) fn done(forwarded: &mut ForwardedRequest, end: CallEnd<'_>, effects: &mut Effects) {
    if let Some(draft) = forwarded.record.take() {
        effects.raise(RoomEvent::ToolCallDone { draft, peer: forwarded.peer, done: Box::new(end.into()) });
    }
}
