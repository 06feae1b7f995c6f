//! Calls between their arrival and their one end. Owns the table of all calls and their minted ids;
//! per server a FIFO of what is not yet sent, the set of what is, and what ended without the server's answer. Invariant: a call leaves the table exactly
//! once, by `take`, and whoever takes it owes its caller an answer.

use crate::core::peers::listings::Listing;
use crate::core::peers::unanswered::Unanswered;
use crate::ids::{CallId, ConnId, IdMap, InstanceId, PeerId, ServerId};
use crate::limits::{LINE_MAX, OVERLOAD_RETRY};
use crate::model::external::CallOutcome;
use crate::model::fault::{Code, Fault, Outcome};
use crate::model::tally::MethodClass;
use crate::shares::{Owner, Short};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

#[derive(Debug, Serialize, Deserialize)]
pub struct Call {
    pub peer: PeerId,
    /// The one that the peer is of.
    pub server: ServerId,
    pub caller: Caller,
    pub deadline_ms: u64,
    pub stage: Stage,
    /// What it is for, and when it came.
    pub method: MethodClass,
    pub began_ms: u64,
}

/// Who gets the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Caller {
    Client(ConnId),
    /// As above, of a project's tool.
    Tool(ConnId),
    /// An MCP client; `Mcp::forwarded` knows which.
    Mcp,
    /// Nobody: the daemon's own, and nothing depends on the answer.
    Own,
    /// The daemon's own `initialize`.
    Handshake,
    /// The daemon's own question for a list.
    List(Listing),
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Stage {
    /// `by`: the principal who asked; none for the daemon itself.
    Queued {
        line: Vec<u8>,
        by: Option<Arc<str>>,
    },
    Sent {
        instance: InstanceId,
    },
}

#[derive(Default, Serialize, Deserialize)]
pub struct Calls {
    table: IdMap<CallId, Call>,
    minted: u64,
}

impl Calls {
    /// The id of the next call, on the wire too. Never given twice.
    pub fn mint(&mut self) -> CallId {
        self.minted += 1;
        CallId(self.minted)
    }

    pub fn insert(&mut self, id: CallId, call: Call) {
        let before = self.table.insert(id, call);
        assert!(before.is_none(), "call ids are minted once");
    }

    pub fn get(&self, id: CallId) -> Option<&Call> {
        self.table.get(&id)
    }

    /// In no order.
    #[cfg(debug_assertions)]
    pub fn iter(&self) -> impl Iterator<Item = (&CallId, &Call)> {
        self.table.iter()
    }

    /// False: it has ended.
    pub fn postpone(&mut self, id: CallId, deadline_ms: u64) -> bool {
        let Some(call) = self.table.get_mut(&id) else { return false };
        call.deadline_ms = deadline_ms;
        true
    }

    /// Hands out the line of a queued call, which is `Sent` from here on.
    pub fn send(&mut self, id: CallId, instance: InstanceId) -> Vec<u8> {
        let call = self.table.get_mut(&id).expect("only a queued call is sent");
        match std::mem::replace(&mut call.stage, Stage::Sent { instance }) {
            Stage::Queued { line, .. } => line,
            Stage::Sent { .. } => unreachable!("a call is sent once"),
        }
    }

    pub fn take(&mut self, id: CallId) -> Option<Call> {
        self.table.remove(&id)
    }

    /// Who asked for a call that waits.
    fn queued_by(&self, id: CallId) -> Option<&Arc<str>> {
        self.table.get(&id).and_then(Call::queued_by)
    }

    /// What is known of a call whose client leaves now.
    pub fn outcome_of_leaving(&self, id: CallId) -> CallOutcome {
        match self.get(id).map(|call| &call.stage) {
            Some(Stage::Sent { .. }) => CallOutcome::SentUnknown,
            Some(Stage::Queued { .. }) | None => CallOutcome::NotSent,
        }
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
}

impl Call {
    /// What it counts for while it waits; the daemon's own are small, and not counted.
    pub fn waiting_bytes(&self) -> usize {
        match &self.stage {
            Stage::Queued { line, by: Some(_) } => line.len(),
            Stage::Queued { by: None, .. } | Stage::Sent { .. } => 0,
        }
    }

    /// Whose memory it takes while it waits: the server's, and that of whoever asks.
    pub fn waits_for(&self, server: ServerId) -> Option<[Owner; 2]> {
        let by = self.queued_by()?;
        Some([Owner::Server(server), Owner::Principal(Arc::clone(by))])
    }

    pub fn queued_by(&self) -> Option<&Arc<str>> {
        match &self.stage {
            Stage::Queued { by, .. } => by.as_ref(),
            Stage::Sent { .. } => None,
        }
    }
}

/// One server's side of the calls: who is next, who is out.
#[derive(Default, Serialize, Deserialize)]
pub struct Lane {
    /// In order of arrival. Calls that ended while they waited are dropped when they come to the front.
    queue: VecDeque<CallId>,
    waiting: usize,
    /// The same by principal; the daemon's own calls are nobody's.
    waiting_by: HashMap<Arc<str>, Places>,
    in_flight: Vec<CallId>,
    extended: Vec<Extended>,
    pub unanswered: Unanswered,
}

/// What one principal has of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Places {
    count: usize,
    bytes: usize,
}

/// A call whose client gives it more time than the server's definition does. It has it as long as nobody else waits.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Extended {
    pub call: CallId,
    pub by: Arc<str>,
    /// When it would have had to be answered by the definition.
    pub due_ms: u64,
}

impl Lane {
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    pub fn in_flight(&self) -> &[CallId] {
        &self.in_flight
    }

    pub fn enqueue(&mut self, id: CallId, call: &Call) {
        self.queue.push_back(id);
        self.waiting += 1;
        if let Some(by) = call.queued_by() {
            let places = self.waiting_by.entry(Arc::clone(by)).or_default();
            places.count += 1;
            places.bytes += call.waiting_bytes();
        }
    }

    /// The next call that still waits; it is in flight from here on.
    pub fn dequeue(&mut self, calls: &Calls) -> Option<CallId> {
        loop {
            let id = self.queue.pop_front()?;
            if let Some(call) = calls.get(id) {
                self.left_queue(call);
                self.in_flight.push(id);
                return Some(id);
            }
        }
    }

    /// A call that never was in the queue.
    pub fn sent(&mut self, id: CallId) {
        self.in_flight.push(id);
    }

    /// The call has ended and left `calls`; true if it was in flight, so that its slot is free now.
    pub fn ended(&mut self, id: CallId, call: &Call, calls: &Calls) -> bool {
        if !self.extended.is_empty() {
            self.extended.retain(|other| other.call != id);
        }
        if let Some(at) = self.in_flight.iter().position(|other| *other == id) {
            self.in_flight.swap_remove(at);
            return true;
        }
        self.left_queue(call);
        // Ended calls stay until they come to the front, but a queue may not come to consist of them.
        if self.queue.len() > 2 * self.waiting + 16 {
            self.queue.retain(|id| calls.get(*id).is_some());
        }
        false
    }

    fn left_queue(&mut self, call: &Call) {
        self.waiting -= 1;
        if let Some(by) = call.queued_by()
            && let Some(places) = self.waiting_by.get_mut(by)
        {
            places.count -= 1;
            places.bytes -= call.waiting_bytes();
            if places.count == 0 {
                self.waiting_by.remove(by);
            }
        }
    }

    pub fn queued(&self) -> Vec<CallId> {
        self.queue.iter().copied().collect()
    }

    /// The queue is full, and somebody wants a place in it. Whoever has the most places there gives the last one up, if
    /// it has more than the newcomer would then have.
    pub fn gives_way_to(&self, newcomer: &Arc<str>, calls: &Calls) -> Option<CallId> {
        let own = self.waiting_by.get(newcomer).map_or(0, |places| places.count);
        let most = self.waiting_by.iter().max_by_key(|(name, places)| (places.count, Reverse(*name)));
        let (greediest, _) = most.filter(|(_, places)| places.count > own + 1)?;
        self.queue.iter().rev().copied().find(|id| calls.queued_by(*id) == Some(greediest))
    }

    /// As above, where the calls that wait are too large together: so many of the last ones of whoever has the most bytes
    /// there that these fit. None, if it has no more than the newcomer would then have.
    pub fn give_room_to(&self, newcomer: &Arc<str>, bytes: usize, calls: &Calls) -> Vec<CallId> {
        let own = self.waiting_by.get(newcomer).map_or(0, |places| places.bytes);
        let most = self.waiting_by.iter().max_by_key(|(name, places)| (places.bytes, Reverse(*name)));
        let Some((greediest, _)) = most.filter(|(_, places)| places.bytes > own + bytes) else { return Vec::new() };
        let (mut found, mut freed) = (Vec::new(), 0);
        for id in self.queue.iter().rev() {
            if freed >= bytes {
                break;
            }
            if let Some(call) = calls.get(*id).filter(|call| call.queued_by() == Some(greediest)) {
                found.push(*id);
                freed += call.waiting_bytes();
            }
        }
        found
    }

    pub fn extend(&mut self, extended: Extended) {
        self.extended.push(extended);
    }

    /// Calls that hold the server for longer than its definition says, while somebody else waits for it.
    pub fn contended(&self) -> impl Iterator<Item = &Extended> {
        let others_wait = |extended: &Extended| self.waiting_by.keys().any(|name| *name != extended.by);
        self.extended.iter().filter(move |e| self.in_flight.contains(&e.call) && others_wait(e))
    }
}

#[cfg(debug_assertions)]
impl Lane {
    /// The counts are those of the calls that wait, and what holds the server for longer is under way.
    pub fn check(&self, calls: &Calls) {
        let waiting = || self.queue.iter().filter_map(|id| calls.get(*id));
        assert_eq!(self.waiting, waiting().count(), "how many wait");
        let mut by: HashMap<Arc<str>, Places> = HashMap::new();
        for call in waiting() {
            let Some(name) = call.queued_by() else { continue };
            let places = by.entry(Arc::clone(name)).or_default();
            (places.count, places.bytes) = (places.count + 1, places.bytes + call.waiting_bytes());
        }
        assert_eq!(self.waiting_by, by, "how many wait, by principal");
        for extended in &self.extended {
            assert!(calls.get(extended.call).is_some(), "{} has ended, and has more time", extended.call);
        }
    }
}

/// An answer that is one line over the limit.
pub fn too_long() -> Fault {
    let message = format!("the answer is one line of more than {LINE_MAX} bytes (line_max)");
    Fault::new(Code::ResponseTooLarge, message).with("line_max", LINE_MAX).outcome(Outcome::SentUnknown)
}

/// An answer for which there was no memory.
pub fn no_room() -> Fault {
    let message = "the answer is large, and servers say so much at once that there was no memory for it";
    let fault = Fault::new(Code::Overloaded, message).outcome(Outcome::SentUnknown);
    fault.retry_after_ms(OVERLOAD_RETRY.as_millis() as u64)
}

/// What came back for a call is no answer.
pub fn bad_output(message: &str) -> Fault {
    Fault::new(Code::BadServerOutput, message).outcome(Outcome::SentUnknown)
}

/// A call that found no room on its way to the server of this name.
pub fn unwritten(name: &str, short: Short) -> Fault {
    let fault = match short {
        Short::Owner => {
            let message = format!("{name} does not read: as much as may wait for it does so already");
            Fault::new(Code::QueueFull, message).retry_after_ms(1_000)
        }
        Short::Whole => {
            let message = format!("{name}: the call is large, and too much waits for servers that do not read");
            Fault::new(Code::Overloaded, message).retry_after_ms(OVERLOAD_RETRY.as_millis() as u64)
        }
    };
    fault.outcome(Outcome::NotSent)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(name: &str, bytes: usize) -> Call {
        let stage = Stage::Queued { line: vec![0; bytes], by: Some(Arc::from(name)) };
        let (peer, server, method) = (PeerId(1), ServerId(crate::ids::Uuid::nil()), MethodClass::Other);
        Call { peer, server, caller: Caller::Mcp, deadline_ms: 0, stage, method, began_ms: 0 }
    }

    /// A queue with one call of ten bytes for each name.
    fn queue(names: &[&str]) -> (Lane, Calls, Vec<CallId>) {
        let (mut lane, mut calls) = (Lane::default(), Calls::default());
        let ids = names.iter().map(|name| {
            let id = calls.mint();
            let call = waiting(name, 10);
            lane.enqueue(id, &call);
            calls.insert(id, call);
            id
        });
        let ids = ids.collect();
        (lane, calls, ids)
    }

    #[test]
    fn in_a_full_queue_whoever_has_the_most_places_gives_one_up() {
        let (lane, calls, ids) = queue(&["a", "b", "a", "a", "b"]);
        assert_eq!(lane.gives_way_to(&"c".into(), &calls), Some(ids[3]), "the last of the greediest");
        assert_eq!(lane.gives_way_to(&"b".into(), &calls), None, "they would only change places");
        assert_eq!(lane.gives_way_to(&"a".into(), &calls), None);
        let (lane, calls, _) = queue(&["a", "b"]);
        assert_eq!(lane.gives_way_to(&"c".into(), &calls), None, "nobody has more than one");
    }

    #[test]
    fn where_bytes_are_short_whoever_has_the_most_of_them_gives_up_as_many_as_are_needed() {
        let (lane, calls, ids) = queue(&["a", "b", "a", "a", "a", "b"]);
        assert_eq!(lane.give_room_to(&"c".into(), 1, &calls), [ids[4]], "the last of the greediest");
        assert_eq!(lane.give_room_to(&"c".into(), 25, &calls), [ids[4], ids[3], ids[2]]);
        assert_eq!(lane.give_room_to(&"c".into(), 40, &calls), [], "then the newcomer would have the most");
        assert_eq!(lane.give_room_to(&"b".into(), 15, &calls), [ids[4], ids[3]]);
        assert_eq!(lane.give_room_to(&"b".into(), 20, &calls), [], "they would only change places");
        assert_eq!(lane.give_room_to(&"a".into(), 1, &calls), [], "nobody makes way for itself");
    }

    #[test]
    fn places_are_counted_whichever_way_a_call_leaves_the_queue() {
        let (mut lane, mut calls, ids) = queue(&["a", "b", "a"]);
        assert_eq!(lane.dequeue(&calls), Some(ids[0]));
        calls.send(ids[0], InstanceId(1));
        let ended = calls.take(ids[2]).unwrap();
        assert!(!lane.ended(ids[2], &ended, &calls));
        assert_eq!((lane.waiting(), lane.waiting_by.len()), (1, 1));
        let ended = calls.take(ids[0]).unwrap();
        assert!(lane.ended(ids[0], &ended, &calls), "it was in flight");
        assert_eq!(lane.dequeue(&calls), Some(ids[1]));
        assert!(lane.waiting_by.is_empty() && lane.waiting() == 0);
    }

    #[test]
    fn more_time_than_the_definition_gives_is_for_those_whom_nobody_waits_behind() {
        let (mut lane, mut calls, ids) = queue(&["a", "a"]);
        lane.dequeue(&calls);
        calls.send(ids[0], InstanceId(1));
        lane.extend(Extended { call: ids[0], by: "a".into(), due_ms: 5 });
        assert_eq!(lane.contended().count(), 0, "only its own principal waits");
        lane.enqueue(CallId(99), &waiting("b", 10));
        assert_eq!(lane.contended().map(|e| e.call).collect::<Vec<_>>(), [ids[0]]);
        let ended = calls.take(ids[0]).unwrap();
        lane.ended(ids[0], &ended, &calls);
        assert_eq!(lane.contended().count(), 0);
    }
}
