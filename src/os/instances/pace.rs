//! How fast large answers move while small calls are about. A large answer is work for three processes: its server, its
//! client and this one. The more of it at once, the longer everybody else waits, for the loop or for a CPU. So while others
//! are being answered it moves in small pieces, one in each turn of the loop that has an answer of theirs; when they are
//! quiet, or slow, in large ones. Others are those who call servers: what the daemon answers by itself is not waited for.
//! Invariant: within three milliseconds there is a turn in which a large answer may move.

use crate::ids::InstanceId;
use crate::limits::{HOLD, PIECE_ALONE, PIECE_AMONG_OTHERS};

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

impl Pace {
    /// A server was asked whose answers are small.
    pub fn asked(&mut self, instance: InstanceId, now_ms: u64) {
        self.asked = Some((instance, now_ms));
    }

    /// A server has said something.
    pub fn heard(&mut self, instance: InstanceId) {
        self.asked = self.asked.filter(|(asked, _)| *asked != instance);
    }

    /// What it said is a whole answer, and a small one.
    pub fn answered(&mut self, now_ms: u64) {
        (self.answered_ms, self.answered_now) = (Some(now_ms), true);
    }

    /// Large answers wait for a small one: it was asked for just now, or its client is about to ask for the next.
    pub fn is_held(&self, now_ms: u64) -> bool {
        let is_recent = |at_ms: u64| now_ms <= at_ms + HOLD.as_millis() as u64;
        let waits = self.answered_ms.is_some_and(is_recent) || self.asked.is_some_and(|(_, at_ms)| is_recent(at_ms));
        waits && is_recent(self.moved_ms)
    }

    /// How much of a large answer moves at the end of this turn: a piece of one comes in, and one of the same or another
    /// goes out.
    pub fn portion(&mut self, now_ms: u64) -> Option<usize> {
        let piece = match std::mem::take(&mut self.answered_now) {
            true => PIECE_AMONG_OTHERS,
            false if self.is_held(now_ms) => return None,
            false => PIECE_ALONE,
        };
        self.moved_ms = now_ms;
        Some(piece)
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
            pace.heard(LARGE);
            assert!(!pace.is_held(at_ms));
            assert_eq!(pace.portion(at_ms), Some(PIECE_ALONE));
        }
    }

    #[test]
    fn among_others_it_moves_a_piece_for_each_of_their_answers() {
        let mut pace = Pace::default();
        assert_eq!(pace.portion(4), Some(PIECE_ALONE));
        for at_ms in 5..50 {
            pace.asked(QUICK, at_ms);
            assert_eq!(pace.portion(at_ms), None);
            pace.heard(LARGE);
            assert_eq!(pace.portion(at_ms), None, "its own words are no reason to go on");
            pace.heard(QUICK);
            pace.answered(at_ms);
            assert_eq!(pace.portion(at_ms), Some(PIECE_AMONG_OTHERS));
            assert_eq!(pace.portion(at_ms), None, "the client will ask again");
        }
    }

    #[test]
    fn it_moves_again_and_again_whoever_is_asked() {
        let mut pace = Pace::default();
        pace.portion(5);
        let moved = (6..1000).filter(|now_ms| {
            pace.asked(QUICK, *now_ms);
            let held = pace.is_held(*now_ms);
            assert_eq!(pace.portion(*now_ms).is_none(), held);
            !held
        });
        assert_eq!(moved.count(), 497);
        pace.answered(1000);
        assert_eq!(pace.portion(1000), Some(PIECE_AMONG_OTHERS));
        assert!(pace.is_held(1001) && !pace.is_held(1002));
    }
}
