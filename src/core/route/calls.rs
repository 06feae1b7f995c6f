//! A call's way between the rooms: from its client to the peer that has it, and from the server's line back to whoever waits for
//! it. What a call is and when it is sent is known to `peers/`; here its client is parked, counted, recorded and answered.

use crate::api::response::Answer;
use crate::core::Core;
use crate::core::clients::parked::WaitOn;
use crate::core::peers::calls::{self, Call, Caller};
use crate::core::servers::metrics::{outcome_of, outcome_of_reply};
use crate::core::shutdown::Phase;
use crate::ids::{CallId, ConnId, InstanceId, PeerId, SessionId};
use crate::limits::LINE_MAX;
use crate::model::fault::{Code, Fault, Outcome};
use crate::model::principal::Principal;
use crate::model::tally::CallOutcome;
use crate::shares::Short;
use crate::wire::json::Json;
use crate::wire::jsonrpc::{self, Message, Reply};
use crate::wire::lines::Line;

impl Core {
    pub(in crate::core) fn call(
        &mut self,
        conn: ConnId,
        who: &Principal,
        id: PeerId,
        method: Json<'_>,
        params: Option<Json<'_>>,
        timeout_ms: Option<u64>,
    ) -> Result<(), Fault> {
        let caller = Caller::Client(conn);
        let call_id = self.peers.send_call(caller, who, id, method, params, timeout_ms, &mut self.effects)?;
        self.clients.park(conn, WaitOn::Reply(call_id));
        Ok(())
    }

    /// Calls that wait for a server which will not be there in time fail now, not at their deadline.
    pub(in crate::core) fn review_queue(&mut self, id: PeerId) {
        let draining = !matches!(self.phase, Phase::Running | Phase::Booting { .. });
        for (call, fault) in self.peers.lost_in_queue(id, draining, self.effects.now) {
            self.end_call(call, Answer::Refused(fault));
        }
    }

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
            false => {
                // Whatever follows from it is to be paid for, too.
                self.settle();
                self.effects.charge(1, bytes, before);
            }
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
        let Some(caller) = self.peers.awaited(id, instance, call_id) else { return false };
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
                self.peers.take_call(call_id, &mut self.effects);
                self.handshake_ended(id, instance, reply);
            }
            Caller::List(list) => {
                self.peers.answered(id);
                self.peers.take_call(call_id, &mut self.effects);
                self.peers.listed(id, list, &reply, &self.settings.separator, &mut self.effects);
            }
            Caller::Mcp => {
                if let Some(call) = self.peers.take_call(call_id, &mut self.effects) {
                    self.count_call(&call, outcome_of_reply(call.method, &reply));
                }
                self.request_replied(call_id, &reply);
            }
            Caller::Own => _ = self.peers.take_call(call_id, &mut self.effects),
        }
        match caller {
            Caller::Client(_) | Caller::Tool(_) | Caller::Mcp | Caller::Handshake => true,
            // A server has its list asked for whenever it says that it has changed.
            Caller::List(_) | Caller::Own => false,
        }
    }

    /// Of a line only its ends are left. Whoever waits for it is told by this fault.
    fn discarded(&mut self, id: PeerId, instance: InstanceId, ends: (&[u8], &[u8]), what: &str, fault: Fault) {
        let call = self.peers.torn(id, ends);
        self.noise(id, instance, what.as_bytes());
        if let Some((call, is_guessed)) = call {
            if is_guessed {
                self.peers.gave_up(call, self.mcp.session_of_call(call));
            }
            self.end_call(call, Answer::Refused(fault));
        }
    }

    /// Stdout that is nobody's answer: counted, kept in the log, skipped.
    fn noise(&mut self, id: PeerId, instance: InstanceId, bytes: &[u8]) {
        if let Some(server) = self.peers.noise(id, bytes, self.effects.now.mono_ms) {
            self.servers.noise(server, instance, bytes, &mut self.effects);
        }
    }

    // --- ends -------------------------------------------------------------------------------------------------------

    pub(in crate::core) fn end_call(&mut self, call_id: CallId, answer: Answer) {
        if let Some(call) = self.peers.take_call(call_id, &mut self.effects) {
            self.call_ended(call_id, &call, answer);
        }
    }

    /// It is in no table any more: whoever waits for it hears how it has ended.
    pub(in crate::core) fn call_ended(&mut self, call_id: CallId, call: &Call, answer: Answer) {
        self.count_call(call, outcome_of(call.method, &answer));
        match (call.caller, &answer) {
            (Caller::Client(conn), _) => self.answer(conn, answer),
            (Caller::Tool(conn), _) => self.tool_answered(conn, call_id, answer),
            (Caller::Mcp, Answer::Refused(fault)) => self.request_failed(call_id, fault),
            (Caller::Mcp, _) => unreachable!("replies to MCP clients go another way"),
            (Caller::List(list), _) => self.peers.list_ended(call.peer, list, &mut self.effects),
            (Caller::Handshake | Caller::Own, _) => {}
        }
    }

    /// It was to be sent, but the server has not read what was sent before.
    pub(in crate::core) fn unwritten(&mut self, call_id: CallId, short: Short) {
        let Some(call) = self.peers.calls.get(call_id) else { return };
        let fault = calls::unwritten(self.peers.name_of(call.peer), short);
        self.end_call(call_id, Answer::Refused(fault));
    }

    pub(in crate::core) fn call_timed_out(&mut self, call_id: CallId) {
        let Some(call) = self.peers.calls.get(call_id) else { return self.round_timed_out(call_id) };
        let (id, caller) = (call.peer, call.caller);
        let outcome = match self.peers.tell_cancelled(call_id, "the client's deadline has passed", &mut self.effects) {
            false => Outcome::NotSent,
            true => {
                self.peers.gave_up(call_id, self.mcp.session_of_call(call_id));
                Outcome::SentUnknown
            }
        };
        log::info!("server={} call={call_id} timed out, {}", self.peers.name_of(id), outcome.wire());
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
            (Caller::List(list), Outcome::NotSent) => self.peers.list_put_off(id, list, &mut self.effects),
            (Caller::Client(_) | Caller::Tool(_) | Caller::Mcp | Caller::Own, Outcome::NotSent) => {}
        }
    }

    /// The client has left, one of this session if it had any: the server is told, and the slot is free.
    pub(in crate::core) fn abandon_call(&mut self, call_id: CallId, session: Option<SessionId>, why: &str) {
        if self.peers.tell_cancelled(call_id, why, &mut self.effects) {
            self.peers.gave_up(call_id, session);
        }
        if let Some(call) = self.peers.take_call(call_id, &mut self.effects) {
            self.count_call(&call, CallOutcome::Cancelled);
        }
    }

    /// No answer will be taken any more: what is in flight fails at once. An instance that is still on its way out may go on
    /// to speak of it.
    pub(in crate::core) fn fail_in_flight(&mut self, id: PeerId, fault: &Fault) {
        for call in self.peers.known[&id].lane.in_flight().to_vec() {
            self.peers.gave_up(call, self.mcp.session_of_call(call));
            self.end_call(call, Answer::Refused(fault.clone().outcome(Outcome::SentUnknown)));
        }
    }
}
