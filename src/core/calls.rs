//! Calls between their arrival and their one end. Owns the table of all calls, their minted ids and the bytes that
//! wait; per server a FIFO of what is not yet sent and the set of what is. Invariant: a call leaves the table exactly
//! once, by `take`, and whoever takes it owes its caller an answer.

use crate::core::listings::Listing;
use crate::ids::{CallId, ConnId, IdMap, InstanceId, ServerId};
use std::collections::VecDeque;

#[derive(Debug)]
pub struct Call {
    pub server: ServerId,
    pub caller: Caller,
    pub deadline_ms: u64,
    pub stage: Stage,
}

/// Who gets the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    Client(ConnId),
    /// An MCP client; `Core::errands` knows which.
    Mcp,
    /// Nobody: the daemon's own, and nothing depends on the answer.
    Own,
    /// The daemon's own `initialize`.
    Handshake,
    /// The daemon's own question for a list.
    List(Listing),
}

#[derive(Debug)]
pub enum Stage {
    Queued { line: Vec<u8> },
    Sent { instance: InstanceId },
}

#[derive(Default)]
pub struct Calls {
    table: IdMap<CallId, Call>,
    minted: u64,
    queued_bytes: usize,
}

impl Calls {
    /// The id of the next call, on the wire too. Never given twice.
    pub fn mint(&mut self) -> CallId {
        self.minted += 1;
        CallId(self.minted)
    }

    pub fn insert(&mut self, id: CallId, call: Call) {
        self.queued_bytes += call.waiting_bytes();
        let before = self.table.insert(id, call);
        assert!(before.is_none(), "call ids are minted once");
    }

    pub fn get(&self, id: CallId) -> Option<&Call> {
        self.table.get(&id)
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
        self.queued_bytes -= call.waiting_bytes();
        match std::mem::replace(&mut call.stage, Stage::Sent { instance }) {
            Stage::Queued { line } => line,
            Stage::Sent { .. } => unreachable!("a call is sent once"),
        }
    }

    pub fn take(&mut self, id: CallId) -> Option<Call> {
        let call = self.table.remove(&id)?;
        self.queued_bytes -= call.waiting_bytes();
        Some(call)
    }

    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
}

impl Call {
    fn waiting_bytes(&self) -> usize {
        match &self.stage {
            Stage::Queued { line } => line.len(),
            Stage::Sent { .. } => 0,
        }
    }
}

/// One server's side of the calls: who is next, who is out.
#[derive(Default)]
pub struct Lane {
    /// In order of arrival. Calls that ended while they waited are dropped when they come to the front.
    queue: VecDeque<CallId>,
    waiting: usize,
    in_flight: Vec<CallId>,
}

impl Lane {
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    pub fn in_flight(&self) -> &[CallId] {
        &self.in_flight
    }

    pub fn enqueue(&mut self, id: CallId) {
        self.queue.push_back(id);
        self.waiting += 1;
    }

    /// The next call that still waits; it is in flight from here on.
    pub fn dequeue(&mut self, calls: &Calls) -> Option<CallId> {
        loop {
            let id = self.queue.pop_front()?;
            if calls.get(id).is_some() {
                self.waiting -= 1;
                self.in_flight.push(id);
                return Some(id);
            }
        }
    }

    /// A call that never was in the queue: the daemon's own.
    pub fn sent(&mut self, id: CallId) {
        self.in_flight.push(id);
    }

    /// The call has ended and left `calls`; true if it was in flight, so that its slot is free now.
    pub fn ended(&mut self, id: CallId, calls: &Calls) -> bool {
        if let Some(at) = self.in_flight.iter().position(|other| *other == id) {
            self.in_flight.swap_remove(at);
            return true;
        }
        self.waiting -= 1;
        // Ended calls stay until they come to the front, but a queue may not come to consist of them.
        if self.queue.len() > 2 * self.waiting + 16 {
            self.queue.retain(|id| calls.get(*id).is_some());
        }
        false
    }

    pub fn queued(&self) -> Vec<CallId> {
        self.queue.iter().copied().collect()
    }
}
