//! What went over a session's streams, kept for a client that comes back with `Last-Event-ID`. Bounded in events and
//! bytes, but the newest stays whatever its size: it may be the answer somebody waits for. Never knows who reads it.

use crate::ids::EventId;
use crate::limits::{EVENT_LOG_BYTES, EVENT_LOG_COUNT};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::Arc;

#[derive(Default, Serialize, Deserialize)]
pub struct EventLog {
    events: VecDeque<(EventId, Arc<[u8]>)>,
    bytes: usize,
    seq: u64,
}

impl EventLog {
    /// A place in a stream without a message.
    pub fn mark(&mut self, stream: u32) -> EventId {
        self.seq += 1;
        EventId { stream, seq: self.seq }
    }

    /// `room`: what its owner may still have.
    pub fn push(&mut self, stream: u32, data: Arc<[u8]>, room: usize) -> EventId {
        let id = self.mark(stream);
        let size = data.len();
        let within = self.bytes + room;
        self.bytes += size;
        self.events.push_back((id, data));
        let most = EVENT_LOG_BYTES.min(within);
        // The newest stays, however long it is, unless it does not even fit what its owner may have.
        let least = usize::from(size <= within);
        while self.events.len() > least && (self.bytes > most || self.events.len() > EVENT_LOG_COUNT) {
            let (_, gone) = self.events.pop_front().expect("more than the least");
            self.bytes -= gone.len();
        }
        id
    }

    pub fn after(&self, id: EventId) -> impl Iterator<Item = (EventId, Arc<[u8]>)> {
        let later = move |(at, _): &&(EventId, Arc<[u8]>)| at.stream == id.stream && at.seq > id.seq;
        self.events.iter().filter(later).cloned()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(bytes: usize) -> Arc<[u8]> {
        vec![b'x'; bytes].into()
    }

    #[test]
    fn an_event_is_replayed_to_its_own_stream_only() {
        let mut log = EventLog::default();
        let first = log.mark(1);
        log.push(1, data(1), usize::MAX >> 1);
        log.push(2, data(2), usize::MAX >> 1);
        let last = log.push(1, data(3), usize::MAX >> 1);
        let sizes: Vec<usize> = log.after(first).map(|(_, data)| data.len()).collect();
        assert_eq!(sizes, [1, 3]);
        assert_eq!(log.after(last).count(), 0);
        assert_eq!(last.to_string().parse(), Ok(last));
        for bad in ["", "-", "1", "1-", "x-1", "1-x", "-1-1", "99999999999-1"] {
            assert!(bad.parse::<EventId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_flood_leaves_the_newest_and_a_bounded_rest() {
        let mut log = EventLog::default();
        for _ in 0..10_000 {
            log.push(0, data(1000), usize::MAX >> 1);
            assert!(log.bytes() <= EVENT_LOG_BYTES);
        }
        let id = log.push(0, data(4 * EVENT_LOG_BYTES), usize::MAX >> 1);
        assert_eq!(log.bytes(), 4 * EVENT_LOG_BYTES, "the newest stays, whatever its size");
        assert_eq!(log.after(EventId { seq: id.seq - 1, ..id }).count(), 1);
        log.push(0, data(10), 0);
        assert_eq!(log.bytes(), 10, "with no room left it keeps only the newest");
        log.push(0, data(11), 0);
        assert_eq!(log.bytes(), 0, "and not even that if it is too large for what its owner may have");
    }
}
