//! How often somebody may ask: a bucket that holds `burst` and gets `per_second` back. Pure: whole numbers, and the time as
//! it is told. Invariant: in any span of time nobody gets more than `burst` and what that span brings, rounded up.

use crate::limits::RATE_MAX;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateLimit {
    pub per_second: u32,
    pub burst: u32,
}

impl RateLimit {
    /// The error: which of the two, and the rule.
    pub fn new(per_second: u32, burst: u32) -> Result<RateLimit, (&'static str, String)> {
        let rule = format!("expected an integer from 1 to {RATE_MAX}");
        match (1..=RATE_MAX).contains(&per_second) {
            true if (1..=RATE_MAX).contains(&burst) => Ok(RateLimit { per_second, burst }),
            true => Err(("burst", rule)),
            false => Err(("per_second", rule)),
        }
    }
}

/// A thousandth of one ask, so that a millisecond brings a whole number of them whatever the rate is.
const ONE: u64 = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// In thousandths.
    level: u64,
    at_ms: u64,
}

impl Bucket {
    /// As of somebody who has been quiet for long.
    pub fn full(limit: RateLimit, now_ms: u64) -> Bucket {
        Bucket { level: u64::from(limit.burst) * ONE, at_ms: now_ms }
    }

    /// So many asks, all or none; or in how many milliseconds they may come. What is refused costs nothing. More than a
    /// burst at once counts as a burst: it could never come otherwise.
    pub fn take(&mut self, limit: RateLimit, asks: u32, now_ms: u64) -> Result<(), u64> {
        self.fill(limit, now_ms);
        let wanted = u64::from(asks.min(limit.burst)) * ONE;
        match self.level.checked_sub(wanted) {
            Some(left) => {
                self.level = left;
                Ok(())
            }
            None => Err((wanted - self.level).div_ceil(u64::from(limit.per_second))),
        }
    }

    /// It says nothing that a new one would not say.
    pub fn is_full(&mut self, limit: RateLimit, now_ms: u64) -> bool {
        self.fill(limit, now_ms);
        self.level == u64::from(limit.burst) * ONE
    }

    /// A limit that was changed meanwhile holds from here on.
    fn fill(&mut self, limit: RateLimit, now_ms: u64) {
        let passed_ms = now_ms.saturating_sub(self.at_ms);
        self.at_ms = self.at_ms.max(now_ms);
        let brought = passed_ms.saturating_mul(u64::from(limit.per_second));
        self.level = self.level.saturating_add(brought).min(u64::from(limit.burst) * ONE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: RateLimit = RateLimit { per_second: 10, burst: 3 };

    #[test]
    fn a_burst_goes_through_and_then_as_many_as_the_rate_says() {
        let mut bucket = Bucket::full(LIMIT, 5_000);
        for _ in 0..3 {
            assert_eq!(bucket.take(LIMIT, 1, 5_000), Ok(()));
        }
        assert_eq!(bucket.take(LIMIT, 1, 5_000), Err(100));
        assert_eq!(bucket.take(LIMIT, 1, 5_040), Err(60), "who asks too early loses nothing by it");
        assert_eq!(bucket.take(LIMIT, 1, 5_099), Err(1));
        assert_eq!(bucket.take(LIMIT, 1, 5_100), Ok(()));
        assert_eq!(bucket.take(LIMIT, 1, 5_100), Err(100));
    }

    #[test]
    fn over_a_long_time_nobody_gets_more_than_the_rate_and_one_burst() {
        for per_second in [1, 3, 7, 999, 1000, 1001, 50_000] {
            let limit = RateLimit { per_second, burst: 5 };
            let mut bucket = Bucket::full(limit, 0);
            let granted = (0..10_000u64).flat_map(|ms| [ms; 8]).filter(|ms| bucket.take(limit, 1, *ms).is_ok()).count();
            let most = 5 + 10 * per_second as usize;
            assert!(granted <= most, "{per_second}: {granted}");
            assert!(granted >= (most - 6).min(49_000), "{per_second}: {granted}");
        }
    }

    #[test]
    fn the_wait_that_is_told_is_the_shortest_that_helps() {
        for per_second in [1, 3, 7, 999, 1000, 1001] {
            let limit = RateLimit { per_second, burst: 1 };
            let mut bucket = Bucket::full(limit, 0);
            assert_eq!(bucket.take(limit, 1, 0), Ok(()));
            let wait_ms = bucket.take(limit, 1, 0).unwrap_err();
            assert!(wait_ms == 1 || bucket.take(limit, 1, wait_ms - 1).is_err(), "{per_second}");
            assert_eq!(bucket.take(limit, 1, wait_ms), Ok(()), "{per_second}");
        }
    }

    #[test]
    fn a_clock_that_stands_still_or_goes_back_gives_nothing_away() {
        let mut bucket = Bucket::full(LIMIT, 1_000);
        assert!(bucket.is_full(LIMIT, 1_000));
        (0..3).for_each(|_| bucket.take(LIMIT, 1, 1_000).unwrap());
        assert!(bucket.take(LIMIT, 1, 0).is_err() && bucket.take(LIMIT, 1, 1_050).is_err());
        assert!(bucket.take(LIMIT, 1, u64::MAX).is_ok() && !bucket.is_full(LIMIT, u64::MAX));
    }

    #[test]
    fn several_at_once_go_through_together_or_not_at_all() {
        let mut bucket = Bucket::full(LIMIT, 0);
        assert_eq!(bucket.take(LIMIT, 2, 0), Ok(()));
        assert_eq!(bucket.take(LIMIT, 2, 0), Err(100));
        assert_eq!(bucket.take(LIMIT, 1, 0), Ok(()), "nothing was taken of it");
        assert_eq!(bucket.take(LIMIT, 1_000, 300), Ok(()), "as much as there ever is");
    }

    #[test]
    fn rates_have_bounds() {
        assert_eq!(RateLimit::new(1, RATE_MAX), Ok(RateLimit { per_second: 1, burst: RATE_MAX }));
        assert_eq!(RateLimit::new(0, 1).unwrap_err().0, "per_second");
        assert_eq!(RateLimit::new(RATE_MAX + 1, 1).unwrap_err().0, "per_second");
        assert_eq!(RateLimit::new(1, 0).unwrap_err().0, "burst");
        assert_eq!(RateLimit::new(1, u32::MAX).unwrap_err().0, "burst");
    }
}
