//! How fast large answers move while small calls are about. A large answer is work for three processes: its server, its
//! client and this one. The more of it at once, the longer everybody else waits, for the loop or for a CPU. So while others
//! are being answered it moves in small pieces, one for each of their answers; when they are quiet, in large ones without
//! a pause. Invariant: one of the large answers moves at least once within any two milliseconds.

use crate::ids::InstanceId;
use crate::limits::{PIECE_ALONE, PIECE_AMONG_OTHERS};

/// A small call holds the large ones up for this long: to the end of the next of the clock's steps.
const HOLD_MS: u64 = 1;

#[derive(Default)]
pub struct Pace {
    /// When there was the last small answer, and whether it came in this turn.
    answered_ms: Option<u64>,
    answered_now: bool,
    /// Who was asked last, and when, as long as it has not said a word: what it is about to say may be large, and must
    /// not wait for itself.
    asked: Option<(InstanceId, u64)>,
    /// When a large answer could last move.
    moved_ms: u64,
}

/// How much of the large answers moves in one turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    Nothing,
    /// A piece of this size, in or out.
    Piece(usize),
    /// A piece of this size in, and one out.
    PieceEachWay(usize),
}

impl Pace {
    pub fn asked(&mut self, instance: InstanceId, now_ms: u64) {
        self.asked = Some((instance, now_ms));
    }

    /// A server has said something; a whole message, and not a large one?
    pub fn heard(&mut self, instance: InstanceId, small: bool, now_ms: u64) {
        self.asked = self.asked.filter(|(asked, _)| *asked != instance);
        if small {
            (self.answered_ms, self.answered_now) = (Some(now_ms), true);
        }
    }

    /// Large answers wait for a small one: it was asked for just now, or its client is about to ask for the next.
    pub fn is_held(&self, now_ms: u64) -> bool {
        let is_recent = |at_ms: u64| now_ms <= at_ms + HOLD_MS;
        let waits = self.answered_ms.is_some_and(is_recent) || self.asked.is_some_and(|(_, at_ms)| is_recent(at_ms));
        waits && is_recent(self.moved_ms)
    }

    /// For the turn that ends.
    pub fn share(&mut self, now_ms: u64) -> Share {
        let share = match std::mem::take(&mut self.answered_now) {
            true => Share::Piece(PIECE_AMONG_OTHERS),
            false if self.is_held(now_ms) => return Share::Nothing,
            false => Share::PieceEachWay(PIECE_ALONE),
        };
        self.moved_ms = now_ms;
        share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: InstanceId = InstanceId(1);
    const LARGE: InstanceId = InstanceId(2);

    #[test]
    fn alone_a_large_answer_never_waits() {
        let mut pace = Pace::default();
        for at_ms in 5..50 {
            pace.asked(LARGE, at_ms);
            pace.heard(LARGE, false, at_ms);
            assert!(!pace.is_held(at_ms));
            assert_eq!(pace.share(at_ms), Share::PieceEachWay(PIECE_ALONE));
        }
    }

    #[test]
    fn among_others_it_moves_a_piece_for_each_of_their_answers() {
        let mut pace = Pace::default();
        assert_eq!(pace.share(4), Share::PieceEachWay(PIECE_ALONE));
        for at_ms in 5..50 {
            pace.asked(QUICK, at_ms);
            assert_eq!(pace.share(at_ms), Share::Nothing);
            pace.heard(LARGE, false, at_ms);
            assert_eq!(pace.share(at_ms), Share::Nothing, "its own words are no reason to go on");
            pace.heard(QUICK, true, at_ms);
            assert_eq!(pace.share(at_ms), Share::Piece(PIECE_AMONG_OTHERS));
            assert_eq!(pace.share(at_ms), Share::Nothing, "the client will ask again");
        }
    }

    #[test]
    fn it_waits_no_longer_than_two_milliseconds_whoever_is_asked() {
        let mut pace = Pace::default();
        pace.share(5);
        let moved = (6..1000).filter(|now_ms| {
            pace.asked(QUICK, *now_ms);
            let held = pace.is_held(*now_ms);
            assert_eq!(pace.share(*now_ms) == Share::Nothing, held);
            !held
        });
        assert_eq!(moved.count(), 497);
        pace.heard(QUICK, true, 1000);
        assert_eq!(pace.share(1000), Share::Piece(PIECE_AMONG_OTHERS));
        assert!(pace.is_held(1001) && !pace.is_held(1002));
    }
}
