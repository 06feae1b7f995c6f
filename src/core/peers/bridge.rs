//! Calls over the pipes: from the client's question to the server's line and back. Owns the order in which lines are
//! written and whose answer a line is; never looks into `params` or `result`. Invariant: every call that enters ends
//! once, and an answer reaches the client that asked, or nobody.

use crate::api::response::Answer;
use crate::core::clients::log_ring::printable;
use crate::core::clients::parked::WaitOn;
use crate::core::contract::Output;
use crate::core::effects::Timer;
use crate::core::hosting::lifecycle::Event;
use crate::core::mcp::era::params::in_newer_era;
use crate::core::mcp::era::stateless::Support;
use crate::core::mcp::wording::minted_token;
use crate::core::peers::calls::{self, Call, Caller, Extended, Stage};
use crate::core::peers::hello::parse_hello;
use crate::core::peers::peer::{Advertised, Dialect, Hello, Opening, Refusal, Role};
use crate::core::peers::queue_room;
use crate::core::servers::metrics::{outcome_of, outcome_of_reply};
use crate::core::servers::server::{Origin, Server};
use crate::core::{Core, Phase};
use crate::ids::{CallId, ConnId, InstanceId, PeerId, ServerId, SessionId};
use crate::limits::{CONTENDED_CALL_GRACE, LINE_MAX, LOG_LINE_MAX, REQUEST_TIMEOUT_MAX};
use crate::model::fault::{Code, Fault, Outcome};
use crate::model::log::LogSource;
use crate::model::principal::Principal;
use crate::model::tally::{CallOutcome, MethodClass};
use crate::shares::Short;
use crate::wire::json::{Json, JsonBuf};
use crate::wire::jsonrpc::{self, Message, Reply, Torn};
use crate::wire::lines::Line;
use std::borrow::Cow;
use std::sync::Arc;

/// What the daemon says of itself to every server: the newest version that has a handshake, and whatever any of its
/// clients might be able to do. What a client did not declare is refused in its name (`questions.rs`).
const INITIALIZE: &str = concat!(
    r#"{"protocolVersion":"2025-11-25","capabilities":{"roots":{"listChanged":true},"sampling":{"tools":{},"context":{}},"#,
    r#""elicitation":{"form":{},"url":{}}},"clientInfo":{"name":"stdiod","version":""#,
    env!("CARGO_PKG_VERSION"),
    r#""}}"#
);
/// `last_used_at` is written at most this often.
const LAST_USED_STEP_MS: u64 = 30_000;
const METHOD_NOT_FOUND: i64 = -32601;

impl Core {
    // --- in ---------------------------------------------------------------------------------------------------------

    pub(in crate::core) fn call(
        &mut self,
        conn: ConnId,
        who: &Principal,
        id: PeerId,
        method: Json<'_>,
        params: Option<Json<'_>>,
        timeout_ms: Option<u64>,
    ) -> Result<(), Fault> {
        let call_id = self.send_call(Caller::Client(conn), who, id, method, params, timeout_ms)?;
        self.clients.park(conn, WaitOn::Reply(call_id));
        Ok(())
    }

    /// The client is not parked yet.
    pub(in crate::core) fn send_call(
        &mut self,
        caller: Caller,
        who: &Principal,
        id: PeerId,
        method: Json<'_>,
        params: Option<Json<'_>>,
        timeout_ms: Option<u64>,
    ) -> Result<CallId, Fault> {
        let newer = self.peers.known[&id].dialect == Dialect::Stateless;
        let class = MethodClass::quoted(method.get());
        let (call_id, _) = self.submit(id, Some(&who.name), timeout_ms, (caller, class), |call| {
            // The client's own progress token might be another client's call.
            let ours = match newer {
                true => Some(in_newer_era(params, call)),
                false => {
                    minted_token(params, call).0.filter(|params| matches!(params, Cow::Owned(_))).map(Cow::into_owned)
                }
            };
            match ours.map(JsonBuf::of) {
                Some(Ok(params)) => jsonrpc::request(call, method, Some(params.as_json())),
                Some(Err(_)) | None => jsonrpc::request(call, method, params),
            }
        })?;
        Ok(call_id)
    }

    /// Sends a call, or queues it; gives its id and the time it has. `line` makes the message for an id; `by` is the
    /// principal who asks.
    pub(in crate::core) fn submit(
        &mut self,
        id: PeerId,
        by: Option<&Arc<str>>,
        timeout_ms: Option<u64>,
        (caller, method): (Caller, MethodClass),
        line: impl FnOnce(u64) -> Vec<u8>,
    ) -> Result<(CallId, u64), Fault> {
        let sent = self.admit_call(id, by, timeout_ms, (caller, method), line);
        if sent.is_err() {
            self.count_refused(id, caller, method);
        }
        sent
    }

    // Inlined: what it returns is large, and every call would copy it.
    #[inline(always)]
    fn admit_call(
        &mut self,
        id: PeerId,
        by: Option<&Arc<str>>,
        timeout_ms: Option<u64>,
        (caller, method): (Caller, MethodClass),
        line: impl FnOnce(u64) -> Vec<u8>,
    ) -> Result<(CallId, u64), Fault> {
        let now = self.effects.now;
        let Some(peer) = self.peers.known.get_mut(&id) else {
            return Err(Fault::new(Code::NotFound, "the server is gone").outcome(Outcome::NotSent));
        };
        let def = &peer.definition;
        if !def.stdio_bridge {
            let message = format!("{} has no stdio bridge; call it on its own port", def.name);
            return Err(Fault::new(Code::BridgeDisabled, message).outcome(Outcome::NotSent));
        }
        let timeout_ms = timeout_ms.unwrap_or(def.request_timeout_ms).min(REQUEST_TIMEOUT_MAX.as_millis() as u64);
        let (deadline_ms, due_ms) = (now.mono_ms + timeout_ms, now.mono_ms + def.request_timeout_ms);
        peer.admits(deadline_ms, now)?;
        let free = peer.lane.waiting() == 0 && peer.lane.in_flight().len() < def.max_in_flight as usize;
        let ready = peer.life.ready_instance().filter(|_| free);
        let full = ready.is_none() && peer.lane.waiting() >= def.queue_max as usize;
        let bounded = matches!(caller, Caller::Client(_) | Caller::Tool(_) | Caller::Mcp);
        let peer = match full && bounded {
            true => {
                self.make_place(id, by)?;
                self.peers.known.get_mut(&id).expect("just seen")
            }
            false => peer,
        };
        let (server, began_ms) = (peer.server, now.mono_ms);
        let call_id = self.peers.calls.mint();
        let line = line(call_id.0);
        let peer = match ready {
            Some(instance) => {
                let stage = Stage::Sent { instance };
                self.peers
                    .calls
                    .insert(call_id, Call { peer: id, server, caller, deadline_ms, stage, method, began_ms });
                peer.lane.sent(call_id);
                self.effects.outputs.push_back(Output::Write { instance, bytes: line, call: Some(call_id) });
                peer
            }
            None => {
                let stage = Stage::Queued { line, by: by.cloned() };
                let call = Call { peer: id, server, caller, deadline_ms, stage, method, began_ms };
                self.make_room(id, &call)?;
                let peer = self.peers.known.get_mut(&id).expect("just seen");
                peer.lane.enqueue(call_id, &call);
                self.peers.calls.insert(call_id, call);
                peer
            }
        };
        if let Some(by) = by.filter(|_| deadline_ms > due_ms) {
            peer.lane.extend(Extended { call: call_id, by: Arc::clone(by), due_ms });
        }
        if bounded {
            self.used(server);
        }
        let queued = ready.is_none();
        self.effects.deadlines.set(Timer::Call(call_id), deadline_ms);
        if queued {
            self.hurry_suspended(id);
            self.hurry_extended(id);
        }
        Ok((call_id, timeout_ms))
    }

    /// Somebody has a use for this server.
    fn used(&mut self, id: ServerId) {
        let now = self.effects.now.unix_ms;
        let registered = |server: &&mut Server| server.origin == Origin::Registered;
        let Some(server) = self.servers.known.get_mut(&id).filter(registered) else { return };
        if server.last_used_unix_ms.is_none_or(|at| now.saturating_sub(at) > LAST_USED_STEP_MS) {
            server.last_used_unix_ms = Some(now);
            self.servers.outbox.mark(id);
            self.schedule_flush();
        }
    }

    /// Somebody else waits: calls that hold the server for longer than its definition says end when that says so.
    fn hurry_extended(&mut self, id: PeerId) {
        let least_ms = self.effects.now.mono_ms + CONTENDED_CALL_GRACE.as_millis() as u64;
        let contended =
            self.peers.known[&id].lane.contended().map(|extended| (extended.call, extended.due_ms.max(least_ms)));
        for (call, due_ms) in contended.collect::<Vec<_>>() {
            if self.peers.calls.get(call).is_some_and(|call| call.deadline_ms > due_ms) {
                self.peers.calls.postpone(call, due_ms);
                self.effects.deadlines.set(Timer::Call(call), due_ms);
            }
        }
    }

    /// Writes as many waiting calls as the server takes at once.
    pub(in crate::core) fn pump(&mut self, id: PeerId) {
        let Some(peer) = self.peers.known.get_mut(&id) else { return };
        let Some(instance) = peer.life.ready_instance() else { return };
        let mut sent = false;
        while peer.lane.in_flight().len() < peer.definition.max_in_flight as usize {
            let Some(call) = peer.lane.dequeue(&self.peers.calls) else { break };
            if let Some(waited) = self.peers.calls.get(call) {
                queue_room::give_back(&mut self.effects.shares, peer.server, waited);
            }
            let bytes = self.peers.calls.send(call, instance);
            self.effects.outputs.push_back(Output::Write { instance, bytes, call: Some(call) });
            sent = true;
        }
        if sent && peer.lane.waiting() > 0 {
            self.hurry_extended(id);
        }
    }

    /// Calls that wait for a server which will not be there in time fail now, not at their deadline.
    pub(in crate::core) fn review_queue(&mut self, id: PeerId) {
        let Some(peer) = self.peers.known.get(&id) else { return };
        if peer.lane.waiting() == 0 {
            return;
        }
        let draining = !matches!(self.phase, Phase::Running | Phase::Booting { .. });
        let mut lost = Vec::new();
        for call in peer.lane.queued() {
            let Some(deadline_ms) = self.peers.calls.get(call).map(|call| call.deadline_ms) else { continue };
            let verdict = match draining {
                true => Err(Fault::new(Code::Unavailable, "the daemon is shutting down").outcome(Outcome::NotSent)),
                false => peer.admits(deadline_ms, self.effects.now),
            };
            if let Err(fault) = verdict {
                lost.push((call, fault));
            }
        }
        for (call, fault) in lost {
            self.end_call(call, Answer::Refused(fault));
        }
    }

    // --- the daemon's own calls ---------------------------------------------------------------------------------

    pub(in crate::core) fn greet(&mut self, id: PeerId, instance: InstanceId) {
        // No deadline of its own: the state's holds.
        match self.peers.known[&id].role {
            Role::Stateless => self.discover(id, instance, None),
            Role::Main | Role::Session(_) if self.offers().asks_era_first(id) => {
                self.discover_first(id, instance, false)
            }
            Role::Main | Role::Session(_) => self.ask_initialize(id, instance),
        }
    }

    pub(in crate::core) fn ask_initialize(&mut self, id: PeerId, instance: InstanceId) {
        self.own_call(id, instance, Caller::Handshake, "initialize", INITIALIZE, None);
    }

    pub(in crate::core) fn own_call(
        &mut self,
        id: PeerId,
        instance: InstanceId,
        caller: Caller,
        method: &str,
        params: &str,
        timeout_ms: Option<u64>,
    ) {
        let call_id = self.peers.calls.mint();
        let deadline_ms = timeout_ms.map_or(u64::MAX, |ms| self.effects.now.mono_ms + ms);
        let (stage, class, began_ms) = (Stage::Sent { instance }, MethodClass::Other, self.effects.now.mono_ms);
        let peer = self.peers.known.get_mut(&id).expect("its instance lives");
        let call = Call { peer: id, server: peer.server, caller, deadline_ms, stage, method: class, began_ms };
        peer.lane.sent(call_id);
        self.peers.calls.insert(call_id, call);
        if timeout_ms.is_some() {
            self.effects.deadlines.set(Timer::Call(call_id), deadline_ms);
        }
        let bytes = jsonrpc::own_request(call_id.0, method, params);
        self.effects.outputs.push_back(Output::Write { instance, bytes, call: Some(call_id) });
    }

    fn greeted(&mut self, id: PeerId, instance: InstanceId, hello: Hello, advertised: Option<Advertised>) {
        let peer = self.peers.known.get_mut(&id).expect("its instance lives");
        let is_mcp = advertised.is_some();
        peer.advertised = Some(advertised.unwrap_or_else(|| Advertised::of_plain_server(&peer.definition.name)));
        (peer.hello, peer.dialect) = (Some(hello), Dialect::Sessions);
        // It was of the other era in its last life, and served those clients itself.
        if let Some(server) =
            self.servers.known.get_mut(&peer.server).filter(|server| server.support == Support::Yes(id))
        {
            server.support = server.support_at_first();
        }
        if is_mcp {
            let bytes = jsonrpc::notification("notifications/initialized", None);
            self.effects.outputs.push_back(Output::Write { instance, bytes, call: None });
        }
        // First in the lane, so that clients which wait already do not overtake it.
        self.tell_version(id, instance);
        self.first_tools(id, instance);
        self.advance(id, Event::Greeted);
        self.fetch_rest(id);
        if is_mcp {
            self.reapply(id);
        }
    }

    fn handshake_ended(&mut self, id: PeerId, instance: InstanceId, reply: Reply<'_>) {
        let Some(peer) = self.peers.known.get_mut(&id) else { return };
        if peer.role == Role::Stateless {
            return self.stateless_peer_discovered(id, instance, &reply);
        }
        let opening = std::mem::take(&mut peer.opening);
        let was_asked = match opening {
            Opening::Initialize => false,
            Opening::InitializeAfter => true,
            Opening::DiscoverFirst { again } => return self.discovered_first(id, instance, again, &reply),
            Opening::DiscoverAfter(refusal) => return self.discovered(id, instance, refusal, &reply),
        };
        match reply {
            Reply::Result(result) => match parse_hello(result) {
                Some((hello, advertised)) => self.greeted(id, instance, hello, Some(advertised)),
                None => self.advance(id, Event::HandshakeRefused("its answer to initialize is no object".to_string())),
            },
            Reply::Error { code, raw } => {
                let said = printable(&raw.get().as_bytes()[..raw.get().len().min(512)]);
                let refusal = Refusal { code, said };
                match was_asked {
                    true => self.undiscovered(id, instance, refusal),
                    false => self.initialize_refused(id, instance, refusal),
                }
            }
            Reply::Neither => {
                let message = "its answer to initialize has neither a result nor an error".to_string();
                self.advance(id, Event::HandshakeRefused(message));
            }
        }
    }

    /// It knows neither handshake.
    pub(in crate::core) fn undiscovered(&mut self, id: PeerId, instance: InstanceId, refusal: Refusal) {
        match refusal {
            // The small servers of the hosting guide know none; they are plain JSON-RPC and welcome.
            Refusal { code: METHOD_NOT_FOUND, .. } => self.greeted(id, instance, Hello::default(), None),
            Refusal { code, said } => {
                self.advance(id, Event::HandshakeRefused(format!("it refused initialize with {code}: {said}")));
            }
        }
    }

    // --- back -------------------------------------------------------------------------------------------------------

    pub(in crate::core) fn line_read(&mut self, instance: InstanceId, line: Line<'_>) {
        self.effects.work = 0;
        let before = self.effects.outputs.len();
        let (bytes, is_awaited) = match (self.hosting.peer_of(instance), line) {
            (None, Line::Whole(bytes)) => (bytes.len(), false),
            (None, Line::TooLong { .. } | Line::NoRoom { .. }) => (0, false),
            (Some(id), Line::Whole(bytes)) => (bytes.len(), self.whole_line_read(id, instance, bytes)),
            (Some(id), Line::TooLong { head, tail }) => {
                let what = format!("a line of more than {LINE_MAX} bytes was discarded");
                self.discarded(id, instance, (head, tail), &what, calls::too_long());
                (0, false)
            }
            (Some(id), Line::NoRoom { head, tail }) => {
                let what = "a large line was discarded: there was no memory for it";
                self.discarded(id, instance, (head, tail), what, calls::no_room());
                (0, false)
            }
        };
        match is_awaited {
            // The client's request has paid for it.
            true => self.effects.work = 0,
            false => self.effects.charge(1, bytes, before),
        }
    }

    /// True: a client waits for it.
    fn whole_line_read(&mut self, id: PeerId, instance: InstanceId, bytes: &[u8]) -> bool {
        if self.peers.known.get(&id).is_some_and(|peer| peer.is_installing(instance)) {
            self.noise(id, instance, bytes);
            return false;
        }
        match jsonrpc::parse(bytes) {
            Some(Message::Reply { id: wire_id, body }) => {
                self.heard(id);
                return self.replied(id, instance, CallId(wire_id), body);
            }
            Some(Message::Request { id: asked, method, params }) => {
                self.heard(id);
                self.asked_by_server(id, instance, asked, &method, params);
            }
            Some(Message::Notification { method, params }) => {
                self.heard(id);
                self.notified(id, instance, &method, params);
            }
            Some(Message::Stray) | None => self.noise(id, instance, bytes),
        }
        false
    }

    /// True: a client waits for it, or the daemon for a handshake.
    fn replied(&mut self, id: PeerId, instance: InstanceId, call_id: CallId, reply: Reply<'_>) -> bool {
        let current = |call: &Call| match call.stage {
            Stage::Sent { instance: to } => call.peer == id && to == instance,
            Stage::Queued { .. } => false,
        };
        let Some(call) = self.peers.calls.get(call_id).filter(|call| current(call)) else {
            let Some(peer) = self.peers.known.get_mut(&id) else { return false };
            peer.lane.unanswered.came_late(call_id);
            let to_probe = peer.pulse.as_mut().is_some_and(|pulse| pulse.takes(call_id));
            peer.said.late += u64::from(!to_probe);
            return false;
        };
        let caller = call.caller;
        match caller {
            Caller::Client(_) | Caller::Tool(_) => {
                let answer = match reply {
                    Reply::Result(raw) => Answer::Result(raw.get().as_bytes().to_vec()),
                    Reply::Error { code, raw } => Answer::ServerError { code, error: raw.get().as_bytes().to_vec() },
                    Reply::Neither => {
                        Answer::Refused(calls::bad_output("the reply has neither a valid result nor an error"))
                    }
                };
                self.end_call(call_id, answer);
            }
            Caller::Handshake => {
                self.take_call(call_id);
                self.handshake_ended(id, instance, reply);
            }
            Caller::List(list) => {
                if let Some(pulse) = &mut self.peers.known.get_mut(&id).expect("it replied").pulse {
                    pulse.answered();
                }
                self.take_call(call_id);
                self.listed(id, list, &reply);
            }
            Caller::Mcp => {
                if let Some(call) = self.take_call(call_id) {
                    self.count_call(&call, outcome_of_reply(call.method, &reply));
                }
                self.request_replied(call_id, &reply);
            }
            Caller::Own => _ = self.take_call(call_id),
        }
        match caller {
            Caller::Client(_) | Caller::Tool(_) | Caller::Mcp | Caller::Handshake => true,
            // A server has its list asked for whenever it says that it has changed.
            Caller::List(_) | Caller::Own => false,
        }
    }

    /// Of a line only its ends are left. Whoever waits for it is told by this fault.
    fn discarded(&mut self, id: PeerId, instance: InstanceId, (head, tail): (&[u8], &[u8]), what: &str, fault: Fault) {
        let Some(peer) = self.peers.known.get_mut(&id) else { return };
        let torn = jsonrpc::reply_id_of_torn(head, tail);
        if let Torn::ReplyTo(wire_id) = torn {
            peer.lane.unanswered.came_late(CallId(wire_id));
        }
        let in_flight = peer.lane.in_flight();
        let call = match torn {
            Torn::ReplyTo(wire_id) => Some(CallId(wire_id)).filter(|call| in_flight.contains(call)),
            Torn::NotAReply => None,
            // With one call out there is hardly a doubt whose answer it was; but it may have been no answer.
            Torn::Unknown => in_flight.first().copied().filter(|_| in_flight.len() == 1),
        };
        self.noise(id, instance, what.as_bytes());
        if let Some(call) = call {
            if torn == Torn::Unknown {
                self.gave_up(call, self.mcp.session_of_call(call));
            }
            self.end_call(call, Answer::Refused(fault));
        }
    }

    /// Stdout that is nobody's answer: counted, kept in the log, skipped.
    fn noise(&mut self, id: PeerId, instance: InstanceId, bytes: &[u8]) {
        let Some(peer) = self.peers.known.get_mut(&id) else { return };
        peer.said.noise_lines += 1;
        if let Some(pulse) = &mut peer.pulse {
            pulse.babbled(self.effects.now.mono_ms);
        }
        peer.said.content_length |= bytes.len() > 15 && bytes[..15].eq_ignore_ascii_case(b"content-length:");
        let id = peer.server;
        let Some(server) = self.servers.known.get_mut(&id) else { return };
        server.tally.noise_lines += 1;
        let said = &bytes[..bytes.len().min(LOG_LINE_MAX)];
        let entry = server.log.said(instance, LogSource::Noise, said, self.effects.now);
        self.servers.stream_said(id, entry, &mut self.effects);
    }

    // --- ends -------------------------------------------------------------------------------------------------------

    /// Takes a call out of everything that knows it, and lets the next one go.
    pub(in crate::core) fn take_call(&mut self, call_id: CallId) -> Option<Call> {
        let call = self.peers.calls.take(call_id)?;
        self.effects.deadlines.cancel(Timer::Call(call_id));
        let peer = self.peers.known.get_mut(&call.peer)?;
        queue_room::give_back(&mut self.effects.shares, peer.server, &call);
        if peer.lane.ended(call_id, &call, &self.peers.calls) {
            self.pump(call.peer);
        }
        Some(call)
    }

    pub(in crate::core) fn end_call(&mut self, call_id: CallId, answer: Answer) {
        let Some(call) = self.take_call(call_id) else { return };
        self.count_call(&call, outcome_of(call.method, &answer));
        match (call.caller, &answer) {
            (Caller::Client(conn), _) => self.answer(conn, answer),
            (Caller::Tool(conn), _) => self.tool_answered(conn, call_id, answer),
            (Caller::Mcp, Answer::Refused(fault)) => self.request_failed(call_id, fault),
            (Caller::Mcp, _) => unreachable!("replies to MCP clients go another way"),
            (Caller::List(list), _) => self.list_ended(call.peer, list),
            (Caller::Handshake | Caller::Own, _) => {}
        }
    }

    /// It was to be sent, but the server has not read what was sent before.
    pub(in crate::core) fn unwritten(&mut self, call_id: CallId, short: Short) {
        let Some(call) = self.peers.calls.get(call_id) else { return };
        let name = self.name_of(call.peer);
        let fault = calls::unwritten(name, short);
        self.end_call(call_id, Answer::Refused(fault));
    }

    pub(in crate::core) fn call_timed_out(&mut self, call_id: CallId) {
        let Some(call) = self.peers.calls.get(call_id) else { return self.round_timed_out(call_id) };
        let (id, caller) = (call.peer, call.caller);
        let outcome = match &call.stage {
            Stage::Queued { .. } => Outcome::NotSent,
            Stage::Sent { instance } => {
                let bytes = jsonrpc::cancelled(call_id.0, "the client's deadline has passed");
                self.effects.outputs.push_back(Output::Write { instance: *instance, bytes, call: None });
                self.gave_up(call_id, self.mcp.session_of_call(call_id));
                Outcome::SentUnknown
            }
        };
        let peer = &self.peers.known[&id];
        log::info!("server={} call={call_id} timed out, {}", peer.definition.name, outcome.wire());
        let message = match outcome {
            Outcome::NotSent => "the deadline passed before the call could be sent",
            Outcome::SentUnknown => "the server did not answer before the deadline; it may still be at work",
        };
        self.end_call(call_id, Answer::Refused(Fault::new(Code::CallTimeout, message).outcome(outcome)));
        match (caller, outcome) {
            (Caller::Handshake, _) => self.handshake_unanswered(id),
            (
                Caller::Client(_) | Caller::Tool(_) | Caller::Mcp | Caller::Own | Caller::List(_),
                Outcome::SentUnknown,
            ) => self.suspect(id),
            (Caller::List(list), Outcome::NotSent) => self.list_put_off(id, list),
            (Caller::Client(_) | Caller::Tool(_) | Caller::Mcp | Caller::Own, Outcome::NotSent) => {}
        }
    }

    /// The client has left, one of this session if it had any: the server is told, and the slot is free.
    pub(in crate::core) fn abandon_call(&mut self, call_id: CallId, session: Option<SessionId>, why: &str) {
        if let Some(Call { stage: Stage::Sent { instance }, .. }) = self.peers.calls.get(call_id) {
            let bytes = jsonrpc::cancelled(call_id.0, why);
            self.effects.outputs.push_back(Output::Write { instance: *instance, bytes, call: None });
            self.gave_up(call_id, session);
        }
        if let Some(call) = self.take_call(call_id) {
            self.count_call(&call, CallOutcome::Cancelled);
        }
    }

    /// A call that was sent ends without the server's answer: until that comes, what the server says may be about it.
    fn gave_up(&mut self, call_id: CallId, session: Option<SessionId>) {
        let Some(call) = self.peers.calls.get(call_id) else { return };
        match call.caller {
            Caller::Client(_) | Caller::Tool(_) | Caller::Mcp => {
                let peer = self.peers.known.get_mut(&call.peer).expect("it was sent there");
                peer.lane.unanswered.gave_up(call_id, session);
            }
            // Nothing of a client's is in them.
            Caller::Own | Caller::Handshake | Caller::List(_) => {}
        }
    }

    /// No answer will be taken any more: what is in flight fails at once. An instance that is still on its way out may go on
    /// to speak of it.
    pub(in crate::core) fn fail_in_flight(&mut self, id: PeerId, fault: &Fault) {
        for call in self.peers.known[&id].lane.in_flight().to_vec() {
            self.gave_up(call, self.mcp.session_of_call(call));
            self.end_call(call, Answer::Refused(fault.clone().outcome(Outcome::SentUnknown)));
        }
    }
}
