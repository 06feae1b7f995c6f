//! Deaths of one server → the delay before its next life, and whether this is a crash loop. Knows nothing of why it
//! died. Invariant: the level never falls but after `stable_ms` in `ready`, or by hand: a window shorter than the
//! delays cannot reset it.

use crate::model::definition::CrashLoop;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// The delays of deaths that are no loop yet: at once, then 1 s, then 2 s.
const QUICK_MS: [u64; 3] = [0, 1_000, 2_000];

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Backoff {
    /// Deaths within the window, oldest first; never more than `threshold + 1`.
    deaths: VecDeque<u64>,
    level: u32,
    /// Restarts since it was last stable.
    attempts: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Restart { delay_ms: u64, looping: bool },
    GiveUp,
}

impl Backoff {
    /// `ready_for_ms`: how long the dead instance had been ready.
    pub fn death(&mut self, rules: &CrashLoop, now_ms: u64, ready_for_ms: Option<u64>) -> Verdict {
        if ready_for_ms.is_some_and(|ms| ms >= rules.stable_ms) {
            self.reset();
        }
        self.deaths.push_back(now_ms);
        while self.deaths.front().is_some_and(|at| now_ms - at > rules.window_ms)
            || self.deaths.len() > rules.threshold as usize + 1
        {
            self.deaths.pop_front();
        }
        if rules.max_attempts.is_some_and(|max| self.attempts >= max) {
            return Verdict::GiveUp;
        }
        self.attempts += 1;
        let looping = rules.relentless || self.level > 0 || self.deaths.len() > rules.threshold as usize;
        let delay_ms = if looping {
            let step = (self.level as usize).min(rules.schedule_ms.len() - 1);
            self.level = self.level.saturating_add(1);
            rules.schedule_ms[step]
        } else {
            QUICK_MS[(self.deaths.len() - 1).min(QUICK_MS.len() - 1)]
        };
        Verdict::Restart { delay_ms, looping }
    }

    /// By hand, or after a stable life.
    pub fn reset(&mut self) {
        *self = Backoff::default();
    }

    pub fn level(&self) -> u32 {
        self.level
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delays(rules: &CrashLoop, gap_ms: u64, count: usize) -> Vec<(u64, bool)> {
        let (mut backoff, mut now) = (Backoff::default(), 0);
        (0..count)
            .map(|_| match backoff.death(rules, now, Some(0)) {
                Verdict::Restart { delay_ms, looping } => {
                    now += delay_ms + gap_ms;
                    (delay_ms, looping)
                }
                Verdict::GiveUp => (u64::MAX, true),
            })
            .collect()
    }

    #[test]
    fn the_first_three_deaths_are_quick_and_the_fourth_is_a_loop() {
        let got = delays(&CrashLoop::default(), 10, 10);
        let want = [0, 1, 2, 5, 15, 45, 120, 300, 300, 300].map(|s| s * 1000);
        assert_eq!(got.iter().map(|d| d.0).collect::<Vec<_>>(), want);
        assert_eq!(got.iter().position(|d| d.1), Some(3));
    }

    #[test]
    fn rare_deaths_are_never_a_loop() {
        assert!(delays(&CrashLoop::default(), 61_000, 50).iter().all(|d| *d == (0, false)));
    }

    #[test]
    fn a_delay_longer_than_the_window_does_not_reset_the_level() {
        let rules = CrashLoop { window_ms: 1_000, ..CrashLoop::default() };
        let mut backoff = Backoff::default();
        let mut now = 0;
        for _ in 0..3 {
            backoff.death(&rules, now, None);
            now += 100;
        }
        for want in [5_000, 15_000, 45_000] {
            assert_eq!(backoff.death(&rules, now, Some(500)), Verdict::Restart { delay_ms: want, looping: true });
            now += want + 500;
        }
        assert_eq!(backoff.death(&rules, now, Some(60_000)), Verdict::Restart { delay_ms: 0, looping: false });
    }

    #[test]
    fn relentless_follows_its_schedule_from_the_first_death_without_end() {
        let got = delays(&CrashLoop::relentless(), 5, 9);
        assert_eq!(got.iter().map(|d| d.0 / 1000).collect::<Vec<_>>(), [0, 1, 2, 5, 10, 30, 60, 60, 60]);
    }

    #[test]
    fn max_attempts_gives_up() {
        let rules = CrashLoop { max_attempts: Some(2), ..CrashLoop::default() };
        assert_eq!(delays(&rules, 0, 3)[2], (u64::MAX, true));
    }
}
