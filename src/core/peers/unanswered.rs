//! Calls of clients that were sent to the present instance of a server and have ended here without its answer: they timed
//! out, or their client has left. The server may still be at work on them, and what it says meanwhile, without naming a call,
//! may be meant for those who made them. Owns that account; they take no place in the lane. Invariant: a call that was given
//! up counts until its answer comes or the instance ends, and the account is bounded.

use crate::ids::{CallId, SessionId};
use crate::limits::UNANSWERED_MAX;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
pub enum Unanswered {
    /// Each with the session whose it was; none: it belongs to nobody who could be told from others.
    Known(Vec<(CallId, Option<SessionId>)>),
    /// Of an instance that leaves so many without an answer no account is kept.
    TooMany,
}

impl Default for Unanswered {
    fn default() -> Unanswered {
        Unanswered::Known(Vec::new())
    }
}

impl Unanswered {
    /// A client's call, which was sent, ends without an answer.
    pub fn gave_up(&mut self, id: CallId, session: Option<SessionId>) {
        match self {
            Unanswered::Known(known) if known.len() < UNANSWERED_MAX => known.push((id, session)),
            Unanswered::Known(_) => *self = Unanswered::TooMany,
            Unanswered::TooMany => {}
        }
    }

    /// An answer to a call that is not in flight.
    pub fn came_late(&mut self, id: CallId) {
        match self {
            Unanswered::Known(known) => known.retain(|(other, _)| *other != id),
            Unanswered::TooMany => {}
        }
    }

    /// Are all of them this session's? Of no session none is.
    pub fn are_all_of(&self, session: Option<SessionId>) -> bool {
        match self {
            Unanswered::Known(known) => known.iter().all(|(_, whose)| whose.is_some() && *whose == session),
            Unanswered::TooMany => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Uuid;

    #[test]
    fn a_server_that_never_answers_costs_a_bounded_account_and_is_not_trusted_again() {
        let (one, two) = (SessionId(Uuid::nil()), SessionId(Uuid::max()));
        let mut unanswered = Unanswered::default();
        assert!(unanswered.are_all_of(None) && unanswered.are_all_of(Some(one)));
        unanswered.gave_up(CallId(1), Some(one));
        assert!(unanswered.are_all_of(Some(one)), "its own");
        assert!(!unanswered.are_all_of(Some(two)) && !unanswered.are_all_of(None));
        unanswered.gave_up(CallId(2), None);
        assert!(!unanswered.are_all_of(Some(one)) && !unanswered.are_all_of(None), "nobody's own");
        unanswered.came_late(CallId(2));
        unanswered.came_late(CallId(1));
        assert!(unanswered.are_all_of(Some(two)) && unanswered.are_all_of(None));

        for call in 0..=UNANSWERED_MAX as u64 {
            assert!(unanswered.are_all_of(Some(one)));
            unanswered.gave_up(CallId(call), Some(one));
        }
        (0..=UNANSWERED_MAX as u64).for_each(|call| unanswered.came_late(CallId(call)));
        assert!(!unanswered.are_all_of(Some(one)), "it is not known any more which of them it owes");
    }
}
