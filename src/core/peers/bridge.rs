//! Calls over the pipes: from the client's question to the server's line. Owns the order in which lines are
//! written and whose answer a line is; never looks into `params` or `result`. Invariant: every call that enters ends
//! once, and an answer reaches the client that asked, or nobody.

use crate::core::contract::{Now, Output};
use crate::core::effects::{Effects, Timer};
use crate::core::events::RoomEvent;
use crate::core::hosting::idle::is_quiet;
use crate::core::links::external::Carrier;
use crate::core::mcp::era::params::in_newer_era;
use crate::core::mcp::wording::minted_token;
use crate::core::peers::Peers;
use crate::core::peers::calls::{Call, Caller, Extended, Stage};
use crate::core::peers::life::Life;
use crate::core::peers::peer::Dialect;
use crate::core::peers::queue_room;
use crate::ids::{CallId, InstanceId, PeerId, ServerId, SessionId};
use crate::limits::{CONTENDED_CALL_GRACE, REQUEST_TIMEOUT_MAX, TOOL_LIST_TIMEOUT};
use crate::model::fault::{Code, Fault, Outcome};
use crate::model::principal::Principal;
use crate::model::tally::MethodClass;
use crate::wire::json::{Json, JsonBuf};
use crate::wire::jsonrpc::{self, Torn};
use std::borrow::Cow;
use std::sync::Arc;

impl Peers {
    /// A call as a client of the REST API makes it.
    #[allow(clippy::too_many_arguments)] // one call, named by its parts
    pub fn send_call(
        &mut self,
        caller: Caller,
        who: &Principal,
        id: PeerId,
        method: Json<'_>,
        params: Option<Json<'_>>,
        timeout_ms: Option<u64>,
        effects: &mut Effects,
    ) -> Result<CallId, Fault> {
        let newer = self.known[&id].dialect == Dialect::Stateless;
        let class = MethodClass::quoted(method.get());
        let line = |call| {
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
        };
        let used_ms = self.used_before(id, method.get().trim_matches('"'));
        let (call_id, _) = self.submit(id, Some(&who.name), timeout_ms, (caller, class), line, effects)?;
        self.was_no_use(id, used_ms);
        Ok(call_id)
    }

    /// When it was last used, if this is no use of it.
    pub fn used_before(&self, id: PeerId, method: &str) -> Option<u64> {
        if is_quiet(method) { self.known.get(&id).map(|peer| peer.rest.used_ms) } else { None }
    }

    /// As above: it was used last when it was before.
    pub fn was_no_use(&mut self, id: PeerId, before_ms: Option<u64>) {
        if let (Some(used_ms), Some(peer)) = (before_ms, self.known.get_mut(&id)) {
            peer.rest.used_ms = used_ms;
        }
    }

    /// Sends a call, or queues it; gives its id and the time it has. `line` makes the message for an id; `by` is the
    /// principal who asks.
    pub fn submit(
        &mut self,
        id: PeerId,
        by: Option<&Arc<str>>,
        timeout_ms: Option<u64>,
        (caller, method): (Caller, MethodClass),
        line: impl FnOnce(u64) -> Vec<u8>,
        effects: &mut Effects,
    ) -> Result<(CallId, u64), Fault> {
        let sent = self.admit_call(id, by, timeout_ms, (caller, method), line, effects);
        if sent.is_err()
            && let Some(peer) = self.known.get(&id)
        {
            effects.raise(RoomEvent::CallRefused { server: peer.server, caller, method });
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
        effects: &mut Effects,
    ) -> Result<(CallId, u64), Fault> {
        let now = effects.now;
        let Some(peer) = self.known.get_mut(&id) else {
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
                self.make_place(id, by, effects)?;
                self.known.get_mut(&id).expect("just seen")
            }
            false => peer,
        };
        let (server, began_ms) = (peer.server, now.mono_ms);
        let call_id = self.calls.mint();
        let line = line(call_id.0);
        let peer = match ready {
            Some(instance) => {
                let stage = Stage::Sent { instance };
                self.calls.insert(call_id, Call { peer: id, server, caller, deadline_ms, stage, method, began_ms });
                peer.lane.sent(call_id);
                effects.outputs.push_back(Output::Write { instance, bytes: line, call: Some(call_id) });
                peer
            }
            None => {
                let stage = Stage::Queued { line, by: by.cloned() };
                let call = Call { peer: id, server, caller, deadline_ms, stage, method, began_ms };
                self.make_room(id, &call, effects)?;
                let peer = self.known.get_mut(&id).expect("just seen");
                peer.lane.enqueue(call_id, &call);
                self.calls.insert(call_id, call);
                peer
            }
        };
        if let Some(by) = by.filter(|_| deadline_ms > due_ms) {
            peer.lane.extend(Extended { call: call_id, by: Arc::clone(by), due_ms });
        }
        if bounded {
            peer.rest.used_ms = began_ms;
        }
        if bounded && peer.is_used(now.unix_ms) {
            effects.raise(RoomEvent::Used(server));
        }
        let queued = ready.is_none();
        effects.deadlines.set(Timer::Call(call_id), deadline_ms);
        if queued {
            effects.raise(RoomEvent::CallWaits(id));
            self.hurry_extended(id, effects);
        }
        Ok((call_id, timeout_ms))
    }

    /// Somebody else waits: calls that hold the server for longer than its definition says end when that says so.
    fn hurry_extended(&mut self, id: PeerId, effects: &mut Effects) {
        let least_ms = effects.now.mono_ms + CONTENDED_CALL_GRACE.as_millis() as u64;
        let contended = self.known[&id].lane.contended().map(|extended| (extended.call, extended.due_ms.max(least_ms)));
        for (call, due_ms) in contended.collect::<Vec<_>>() {
            if self.calls.get(call).is_some_and(|call| call.deadline_ms > due_ms) {
                self.calls.postpone(call, due_ms);
                effects.deadlines.set(Timer::Call(call), due_ms);
            }
        }
    }

    /// Writes as many waiting calls as the server takes at once.
    pub fn pump(&mut self, id: PeerId, effects: &mut Effects) {
        let Some(peer) = self.known.get_mut(&id) else { return };
        let Some(instance) = peer.life.ready_instance() else { return };
        let mut sent = false;
        while peer.lane.in_flight().len() < peer.definition.max_in_flight as usize {
            let Some(call) = peer.lane.dequeue(&self.calls) else { break };
            if let Some(waited) = self.calls.get(call) {
                queue_room::give_back(&mut effects.shares, peer.server, waited);
            }
            let bytes = self.calls.send(call, instance);
            effects.outputs.push_back(Output::Write { instance, bytes, call: Some(call) });
            sent = true;
        }
        if sent && peer.lane.waiting() > 0 {
            self.hurry_extended(id, effects);
        }
    }

    pub fn own_call(
        &mut self,
        id: PeerId,
        instance: InstanceId,
        caller: Caller,
        (method, params): (&str, &str),
        timeout_ms: Option<u64>,
        effects: &mut Effects,
    ) {
        let call_id = self.calls.mint();
        let deadline_ms = timeout_ms.map_or(u64::MAX, |ms| effects.now.mono_ms + ms);
        let (stage, class, began_ms) = (Stage::Sent { instance }, MethodClass::Other, effects.now.mono_ms);
        let peer = self.known.get_mut(&id).expect("its instance lives");
        let call = Call { peer: id, server: peer.server, caller, deadline_ms, stage, method: class, began_ms };
        peer.lane.sent(call_id);
        self.calls.insert(call_id, call);
        if timeout_ms.is_some() {
            effects.deadlines.set(Timer::Call(call_id), deadline_ms);
        }
        let bytes = jsonrpc::own_request(call_id.0, method, params);
        effects.outputs.push_back(Output::Write { instance, bytes, call: Some(call_id) });
    }

    /// Takes a call out of everything that knows it, and lets the next one go.
    pub fn take_call(&mut self, call_id: CallId, effects: &mut Effects) -> Option<Call> {
        let call = self.calls.take(call_id)?;
        effects.deadlines.cancel(Timer::Call(call_id));
        let peer = self.known.get_mut(&call.peer)?;
        queue_room::give_back(&mut effects.shares, peer.server, &call);
        if peer.lane.ended(call_id, &call, &self.calls) {
            self.pump(call.peer, effects);
        }
        Some(call)
    }

    /// Somebody makes way. Its client is told as soon as this is done.
    pub fn end_call(&mut self, call_id: CallId, fault: Fault, effects: &mut Effects) {
        if let Some(call) = self.take_call(call_id, effects) {
            effects.raise(RoomEvent::CallEnded { call_id, call: Box::new(call), fault: Box::new(fault) });
        }
    }

    /// Of the calls that wait for a server, those which it will not be there for in time: they fail now, not at their deadline.
    pub fn lost_in_queue(&self, id: PeerId, draining: bool, now: Now) -> Vec<(CallId, Fault)> {
        let Some(peer) = self.known.get(&id).filter(|peer| peer.lane.waiting() > 0) else { return Vec::new() };
        let verdict = |deadline_ms| match draining {
            true => Err(Fault::new(Code::Unavailable, "the daemon is shutting down").outcome(Outcome::NotSent)),
            false => peer.admits(deadline_ms, now),
        };
        let queued = peer.lane.queued().into_iter().filter_map(|call| Some((call, self.calls.get(call)?.deadline_ms)));
        queued.filter_map(|(call, deadline_ms)| Some((call, verdict(deadline_ms).err()?))).collect()
    }

    /// Whose answer has come; none: nobody waits for it any more.
    pub fn awaited(&mut self, id: PeerId, instance: InstanceId, call_id: CallId) -> Option<Caller> {
        let current = |call: &&Call| match call.stage {
            Stage::Sent { instance: to } => call.peer == id && to == instance,
            Stage::Queued { .. } => false,
        };
        if let Some(call) = self.calls.get(call_id).filter(current) {
            return Some(call.caller);
        }
        let peer = self.known.get_mut(&id)?;
        peer.lane.unanswered.came_late(call_id);
        let to_probe = peer.pulse.as_mut().is_some_and(|pulse| pulse.takes(call_id));
        peer.said.late += u64::from(!to_probe);
        None
    }

    /// An answer to a question of the daemon's own, whatever it says.
    pub fn answered(&mut self, id: PeerId) {
        if let Some(pulse) = self.known.get_mut(&id).and_then(|peer| peer.pulse.as_mut()) {
            pulse.answered();
        }
    }

    /// Of a line only its ends are left. The call that it answers, if it can be told, and whether that is a guess.
    pub fn torn(&mut self, id: PeerId, (head, tail): (&[u8], &[u8])) -> Option<(CallId, bool)> {
        let peer = self.known.get_mut(&id)?;
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
        call.map(|call| (call, torn == Torn::Unknown))
    }

    /// Stdout that is nobody's answer is counted. Gives the server whose it is.
    pub fn noise(&mut self, id: PeerId, bytes: &[u8], now_ms: u64) -> Option<ServerId> {
        let peer = self.known.get_mut(&id)?;
        peer.said.noise_lines += 1;
        if let Some(pulse) = &mut peer.pulse {
            pulse.babbled(now_ms);
        }
        peer.said.content_length |= bytes.len() > 15 && bytes[..15].eq_ignore_ascii_case(b"content-length:");
        Some(peer.server)
    }

    /// The server is told that nobody waits for a call any more. False: it has not been sent.
    pub fn tell_cancelled(&self, call_id: CallId, why: &str, effects: &mut Effects) -> bool {
        let Some(Call { stage: Stage::Sent { instance }, .. }) = self.calls.get(call_id) else { return false };
        let bytes = jsonrpc::cancelled(call_id.0, why);
        effects.outputs.push_back(Output::Write { instance: *instance, bytes, call: None });
        true
    }

    /// Somebody is at work on it: its time begins anew.
    pub fn postpone(&mut self, call: CallId, by_ms: u64, effects: &mut Effects) {
        let deadline_ms = effects.now.mono_ms + by_ms;
        if self.calls.postpone(call, deadline_ms) {
            effects.deadlines.set(Timer::Call(call), deadline_ms);
        }
    }

    pub fn name_of(&self, id: PeerId) -> &str {
        self.known.get(&id).map_or("-", |peer| &peer.definition.name)
    }

    /// The version that was agreed on is in the headers of what follows.
    pub fn tell_version(&self, id: PeerId, instance: InstanceId, effects: &mut Effects) {
        let peer = &self.known[&id];
        let remote = matches!(&peer.life, Life::External(life) if life.carrier() == Carrier::Network);
        let version = peer.hello.as_ref().and_then(|hello| hello.protocol_version.clone());
        if let Some(version) = version.filter(|_| remote) {
            effects.outputs.push_back(Output::Negotiated { instance, version });
        }
    }

    /// A request of the daemon's own whose answer changes nothing.
    pub fn tell_server(&mut self, id: PeerId, method: &str, params: &str, effects: &mut Effects) {
        if self.known.get(&id).is_none_or(|peer| peer.life.ready_instance().is_none()) {
            return;
        }
        let timeout_ms = Some(TOOL_LIST_TIMEOUT.as_millis() as u64);
        let line = |call| jsonrpc::own_request(call, method, params);
        let own = (Caller::Own, MethodClass::Other);
        let sent = self.submit(id, None, timeout_ms, own, line, effects);
        if let Err(fault) = sent {
            log::debug!("{method} could not be sent: {}", fault.message);
        }
    }

    /// A call that was sent ends without the server's answer: until that comes, what the server says may be about it.
    pub fn gave_up(&mut self, call_id: CallId, session: Option<SessionId>) {
        let Some(call) = self.calls.get(call_id) else { return };
        match call.caller {
            Caller::Client(_) | Caller::Tool(_) | Caller::Mcp => {
                let peer = self.known.get_mut(&call.peer).expect("it was sent there");
                peer.lane.unanswered.gave_up(call_id, session);
            }
            // Nothing of a client's is in them.
            Caller::Own | Caller::Handshake | Caller::List(_) => {}
        }
    }
}
