//! When the loop has to wake though nothing happens. A timer of the kernel's that is set only when the next deadline comes
//! earlier than it: in the course of calls it hardly ever is, and a wait without a limit is cheaper than one with.

use crate::limits::SLEEP_MAX;
use crate::os::event_loop::token::EventSource;
use mio::unix::SourceFd;
use mio::{Interest, Registry};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

pub struct Alarm {
    timer: TimerFd,
    /// It will not ring later than this.
    set_ms: Option<u64>,
}

impl Alarm {
    pub fn new(registry: &Registry) -> io::Result<Alarm> {
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)?;
        let fd = timer.as_fd().as_raw_fd();
        registry.register(&mut SourceFd(&fd), EventSource::Alarm.token(), Interest::READABLE)?;
        Ok(Alarm { timer, set_ms: None })
    }

    /// Rings when `due_ms` has passed, or earlier.
    pub fn set(&mut self, due_ms: u64, now_ms: u64) -> io::Result<()> {
        let due_ms = due_ms.min(now_ms + SLEEP_MAX.as_millis() as u64);
        if self.set_ms.is_some_and(|set_ms| set_ms <= due_ms) {
            return Ok(());
        }
        // One more: it may be late, but one that rang just before its time would ring again and again.
        let wait = Duration::from_millis(due_ms.saturating_sub(now_ms) + 1);
        self.timer.set(Expiration::OneShot(TimeSpec::from_duration(wait)), TimerSetTimeFlags::empty())?;
        self.set_ms = Some(due_ms);
        Ok(())
    }

    /// It has rung. Nothing is read from it: to set it again clears it.
    pub fn rang(&mut self) {
        self.set_ms = None;
    }
}
