//! How often each principal may ask: a bucket for each who has a limit and has asked of late. Owns the buckets and nothing
//! else. Invariant: one principal's asks never cost another's.

use crate::limits::TOKENS_MAX;
use crate::model::fault::{Code, Fault};
use crate::model::principal::Principal;
use crate::model::rate::{Bucket, RateLimit};
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Default)]
pub struct Rates {
    /// For those who have none of their own.
    everybodys: Option<RateLimit>,
    buckets: HashMap<Arc<str>, Bucket>,
}

impl Rates {
    pub fn new(everybodys: Option<RateLimit>) -> Rates {
        Rates { everybodys, buckets: HashMap::new() }
    }

    /// So many asks at once. Who has no limit costs nothing.
    pub fn take(&mut self, who: &Principal, asks: u32, now_ms: u64) -> Result<(), Fault> {
        let Some(limit) = who.rate_limit.or(self.everybodys).filter(|_| asks > 0) else { return Ok(()) };
        if self.buckets.len() > 2 * TOKENS_MAX {
            // Of limits that are not known here; a bucket that is full by this one is soon full by any.
            self.buckets.retain(|_, bucket| !bucket.is_full(limit, now_ms));
        }
        let bucket = match self.buckets.get_mut(&who.name) {
            Some(bucket) => bucket,
            None => self.buckets.entry(Arc::clone(&who.name)).or_insert_with(|| Bucket::full(limit, now_ms)),
        };
        bucket.take(limit, asks, now_ms).map_err(|wait_ms| {
            let RateLimit { per_second, burst } = limit;
            let why = format!("`{}` may ask {per_second} times a second, and {burst} times at once", who.name);
            Fault::new(Code::RateLimited, why).with("retry_after_ms", wait_ms).retry_after_ms(wait_ms)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(name: &str, rate_limit: Option<RateLimit>) -> Principal {
        Principal { name: name.into(), rate_limit, ..Principal::anonymous() }
    }

    #[test]
    fn everybody_has_a_bucket_and_a_limit_of_ones_own_comes_first() {
        let mut rates = Rates::new(Some(RateLimit { per_second: 1, burst: 2 }));
        let (a, b) = (who("a", None), who("b", None));
        let quick = who("quick", Some(RateLimit { per_second: 100, burst: 50 }));
        assert!(rates.take(&a, 2, 0).is_ok());
        let refused = rates.take(&a, 1, 500).unwrap_err();
        assert_eq!((refused.code, refused.retry_after_s), (Code::RateLimited, Some(1)));
        assert!(rates.take(&b, 1, 500).is_ok(), "others do not notice");
        assert!(rates.take(&quick, 50, 0).is_ok() && rates.take(&quick, 1, 0).is_err());
        assert!(rates.take(&a, 0, 500).is_ok(), "what does not count");
        assert!(rates.take(&a, 1, 1_000).is_ok());
        assert!(Rates::new(None).take(&a, 1_000, 0).is_ok());
    }
}
