//! The one clock, read once per turn. Monotonic milliseconds count from the daemon's start; the time of day, which is
//! only shown, is counted on from them and set right every second.

use crate::core::contract::Now;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub struct Clock {
    start: Instant,
    set: Now,
    /// When `now` was last asked for.
    read: Instant,
}

const SET_EVERY_MS: u64 = 1_000;

impl Clock {
    pub fn start() -> Clock {
        let start = Instant::now();
        Clock { start, set: Now { mono_ms: 0, unix_ms: unix_ms() }, read: start }
    }

    /// Goes on where the clock of the process before this one was, which is this very process: `mono_ms` when the kernel's
    /// own clock said `kernels`.
    pub fn go_on(mono_ms: u64, kernels: Duration) -> Clock {
        let passed = kernels_clock().saturating_sub(kernels);
        let since = Duration::from_millis(mono_ms) + passed;
        let read = Instant::now();
        // The daemon was started after the machine was, so there is such a moment.
        let start = read.checked_sub(since).unwrap_or(read);
        let mono_ms = since.as_millis() as u64;
        Clock { start, set: Now { mono_ms, unix_ms: unix_ms() }, read }
    }

    pub fn now(&mut self) -> Now {
        self.read = Instant::now();
        let since = self.read.duration_since(self.start);
        let mono_ms = since.as_secs() * 1_000 + u64::from(since.subsec_millis());
        if mono_ms - self.set.mono_ms >= SET_EVERY_MS {
            let (told, counted) = (unix_ms(), self.set.unix_ms + (mono_ms - self.set.mono_ms));
            // Both are cut to whole milliseconds: one apart is the same time, and what is shown of a moment stays as it is.
            let unix_ms = if told.abs_diff(counted) <= 1 { counted } else { told };
            self.set = Now { mono_ms, unix_ms };
        }
        Now { mono_ms, unix_ms: self.set.unix_ms + (mono_ms - self.set.mono_ms) }
    }

    /// How long ago `now` was asked for.
    pub fn since_now_us(&self) -> u64 {
        let took = self.read.elapsed();
        took.as_secs() * 1_000_000 + u64::from(took.subsec_micros())
    }
}

/// What `Instant` counts on, as a number that outlives a program.
pub fn kernels_clock() -> Duration {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from)
}

/// A clock before 1970 is shown as 1970: times are only shown, never waited for.
fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}
