//! How much work one peer may cause: so much at once, and over time so much a millisecond. Who has used up its own waits
//! until there is some again, and nobody else waits for it. Pure: counts units and takes the time as it is told.
//! Invariant: over any time a peer spends no more than twice `most`, what that time has brought, and its last step.

use serde::{Deserialize, Serialize};

/// What one peer may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    pub per_ms: u32,
    /// What a peer that has been quiet may have kept.
    pub most: u32,
    /// In one turn; and who has waited goes on when it has so much, so that it is not woken for every unit.
    pub at_once: u32,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Allowance {
    rate: Rate,
    /// Below zero: the last step cost more than there was, and it is paid back first.
    left: i64,
    refilled_ms: u64,
}

impl Allowance {
    /// As of a peer that has been quiet for long.
    pub fn full(rate: Rate) -> Allowance {
        Allowance { rate, left: i64::from(rate.most), refilled_ms: 0 }
    }

    pub fn at_once(&self) -> usize {
        self.rate.at_once as usize
    }

    pub fn has_some(&self) -> bool {
        self.left > 0
    }

    pub fn spend(&mut self, work: usize) {
        self.left = self.left.saturating_sub_unsigned(work as u64);
    }

    /// Somebody else has paid for it.
    pub fn grant(&mut self, work: u32) {
        self.left = (self.left + i64::from(work)).min(i64::from(self.rate.most));
    }

    /// When it may go on; none: now. Looks at the time only if all is spent, so that a quiet peer costs a comparison.
    pub fn wait_until(&mut self, now_ms: u64) -> Option<u64> {
        if self.left > 0 {
            return None;
        }
        let passed_ms = now_ms.saturating_sub(std::mem::replace(&mut self.refilled_ms, now_ms));
        let most = i64::from(self.rate.most);
        let brought = passed_ms.saturating_mul(u64::from(self.rate.per_ms));
        self.left = self.left.saturating_add_unsigned(brought).min(most);
        let missing = u64::try_from(i64::from(self.rate.at_once).saturating_sub(self.left)).unwrap_or(0);
        (missing > 0).then(|| now_ms.saturating_add(missing.div_ceil(u64::from(self.rate.per_ms))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate { per_ms: 10, most: 1000, at_once: 40 };

    #[test]
    fn a_quiet_peer_never_waits() {
        let mut allowance = Allowance::full(RATE);
        for at_ms in (0..100_000).step_by(10) {
            assert_eq!(allowance.wait_until(at_ms), None);
            allowance.spend(99);
        }
    }

    #[test]
    fn a_loud_peer_has_what_it_kept_and_then_its_rate_and_no_more() {
        let (mut allowance, mut now_ms, mut spent, mut waits) = (Allowance::full(RATE), 5, 0, 0);
        while now_ms < 10_005 {
            match allowance.wait_until(now_ms) {
                Some(due_ms) => {
                    assert!(due_ms > now_ms && due_ms <= now_ms + 8, "{due_ms} at {now_ms}");
                    (now_ms, waits) = (due_ms, waits + 1);
                }
                None => {
                    allowance.spend(40);
                    spent += 40;
                }
            }
        }
        assert!((100_000..=100_000 + 2 * 1000 + 40).contains(&spent), "{spent}");
        assert!(waits <= 10_000 / 4 + 1, "{waits}: it waits for a turn's worth, not for a unit");
    }

    #[test]
    fn one_large_step_is_paid_back_before_the_next() {
        let mut allowance = Allowance::full(RATE);
        allowance.wait_until(100);
        allowance.spend(1000 + 5000);
        allowance.wait_until(100);
        assert_eq!(allowance.wait_until(200), Some(200 + 304));
        assert_eq!(allowance.wait_until(504), None);
        allowance.spend(usize::MAX);
        assert!(allowance.wait_until(505).is_some_and(|due_ms| due_ms > 1 << 40), "and no number overflows");
    }

    #[test]
    fn what_somebody_else_pays_for_costs_it_nothing() {
        let mut allowance = Allowance::full(RATE);
        for _ in 0..100_000 {
            allowance.grant(64);
            allowance.spend(64);
            assert_eq!(allowance.wait_until(0), None);
        }
        allowance.grant(u32::MAX);
        allowance.spend(1000);
        assert!(allowance.wait_until(0).is_some(), "nobody can save more than the most");
    }
}
