//! Answers that wait for one last thing: what their server uses just now, which the look-up thread has been asked. They do
//! not wait for long: then the meter's last look must do. Invariant: each of them leaves once.

use crate::api::response::Answer;
use crate::ids::ConnId;
use crate::limits::USAGE_WAIT;
use std::collections::{HashMap, VecDeque};

#[derive(Default)]
pub struct HeldAnswers {
    map: HashMap<ConnId, Answer>,
    /// The first one first: all of them wait equally long.
    due: VecDeque<(u64, ConnId)>,
}

impl HeldAnswers {
    pub fn hold(&mut self, conn: ConnId, answer: Answer, now_ms: u64) {
        self.map.insert(conn, answer);
        self.due.push_back((now_ms + USAGE_WAIT.as_millis() as u64, conn));
    }

    pub fn release(&mut self, conn: ConnId) -> Option<Answer> {
        let answer = self.map.remove(&conn)?;
        self.due.retain(|(_, other)| *other != conn);
        Some(answer)
    }

    /// Who has waited long enough.
    pub fn overdue(&self, now_ms: u64) -> Option<ConnId> {
        self.due.front().filter(|(at_ms, _)| *at_ms <= now_ms).map(|(_, conn)| *conn)
    }

    pub fn next_deadline(&self) -> Option<u64> {
        self.due.front().map(|(at_ms, _)| *at_ms)
    }

    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_waits_for_its_look_or_for_its_time_and_leaves_once() {
        let mut held = HeldAnswers::default();
        let wait_ms = USAGE_WAIT.as_millis() as u64;
        held.hold(ConnId(1), Answer::Accepted, 0);
        held.hold(ConnId(2), Answer::Deleted, 5);
        assert_eq!((held.next_deadline(), held.overdue(wait_ms - 1)), (Some(wait_ms), None));
        assert_eq!(held.release(ConnId(1)), Some(Answer::Accepted));
        assert_eq!(held.release(ConnId(1)), None);
        assert_eq!((held.overdue(wait_ms), held.overdue(wait_ms + 5)), (None, Some(ConnId(2))));
        assert_eq!(held.release(ConnId(2)), Some(Answer::Deleted));
        assert!(held.is_empty() && held.next_deadline().is_none());
    }
}
