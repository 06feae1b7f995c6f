//! The one clock, read once per turn. Monotonic milliseconds count from the daemon's start.

use crate::core::contract::Now;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

pub struct Clock {
    start: Instant,
}

impl Clock {
    pub fn start() -> Clock {
        Clock { start: Instant::now() }
    }

    pub fn now(&self) -> Now {
        Now {
            mono_ms: self.start.elapsed().as_millis() as u64,
            // A clock before 1970 is shown as 1970: times are only shown, never waited for.
            unix_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64),
        }
    }
}
