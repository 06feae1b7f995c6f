//! What systemd is told: that the daemon is ready, how it is, that it still turns, that it stops. One datagram each, never
//! waited for; without `NOTIFY_SOCKET` nothing is ever sent.

use crate::limits::NOTIFY_EVERY;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

pub struct Notify {
    to: Option<(UnixDatagram, SocketAddr)>,
    /// How often the watchdog must hear of us, halved.
    every_ms: u64,
    watchdog: bool,
    next_ms: Option<u64>,
}

impl Notify {
    /// From the variables that systemd sets.
    pub fn from_environment() -> Notify {
        let variable = |name: &str| std::env::var(name).ok();
        let to = variable("NOTIFY_SOCKET").and_then(|name| {
            let address = address(&name)?;
            let socket = UnixDatagram::unbound().ok()?;
            socket.set_nonblocking(true).ok()?;
            Some((socket, address))
        });
        let ours = variable("WATCHDOG_PID").is_none_or(|pid| pid == std::process::id().to_string());
        let watchdog = variable("WATCHDOG_USEC").filter(|_| ours).and_then(|text| watchdog_interval(&text));
        let every = watchdog.unwrap_or(NOTIFY_EVERY).min(NOTIFY_EVERY);
        Notify { to, every_ms: every.as_millis() as u64, watchdog: watchdog.is_some(), next_ms: None }
    }

    pub fn ready(&mut self, status: &str, now_ms: u64) {
        self.send(&[("READY", "1"), ("STATUS", status)]);
        self.next_ms = self.to.is_some().then_some(now_ms + self.every_ms);
    }

    pub fn reloading(&self) {
        self.send(&[("RELOADING", "1")]);
    }

    pub fn reloaded(&self) {
        self.send(&[("READY", "1")]);
    }

    pub fn stopping(&self, status: &str) {
        self.send(&[("STOPPING", "1"), ("STATUS", status)]);
    }

    pub fn next_deadline(&self) -> Option<u64> {
        self.next_ms
    }

    /// The loop has come round: that is what the watchdog wants to know.
    pub fn tick(&mut self, status: impl FnOnce() -> String, now_ms: u64) {
        if self.next_ms.is_none_or(|at| now_ms < at) {
            return;
        }
        self.next_ms = Some(now_ms + self.every_ms);
        let status = status();
        match self.watchdog {
            true => self.send(&[("WATCHDOG", "1"), ("STATUS", &status)]),
            false => self.send(&[("STATUS", &status)]),
        }
    }

    fn send(&self, fields: &[(&str, &str)]) {
        if let Some((socket, address)) = &self.to {
            // Lost if its buffer is full: there will be another.
            _ = socket.send_to_addr(message(fields).as_bytes(), address);
        }
    }
}

/// `@name` is an abstract address.
fn address(name: &str) -> Option<SocketAddr> {
    match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name).ok(),
        None if name.starts_with('/') => SocketAddr::from_pathname(name).ok(),
        None => None,
    }
}

/// Half of what it allows, so that one late turn is no death.
fn watchdog_interval(usec: &str) -> Option<Duration> {
    let usec: u64 = usec.parse().ok().filter(|usec| *usec > 0)?;
    Some(Duration::from_micros(usec / 2).max(Duration::from_millis(1)))
}

/// A line a field; no value has more than one.
fn message(fields: &[(&str, &str)]) -> String {
    fields.iter().map(|(key, value)| format!("{key}={}\n", value.replace('\n', " "))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_a_line_a_field() {
        assert_eq!(message(&[("READY", "1"), ("STATUS", "two\nlines")]), "READY=1\nSTATUS=two lines\n");
    }

    #[test]
    fn both_kinds_of_address_are_reached() {
        let path = std::env::temp_dir().join(format!("stdiod-notify-{}", std::process::id()));
        let abstract_name = format!("stdiod-notify-{}", std::process::id());
        let by_path = UnixDatagram::bind(&path).unwrap();
        let by_name = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&abstract_name).unwrap()).unwrap();
        for (name, socket) in [(path.to_str().unwrap().to_string(), by_path), (format!("@{abstract_name}"), by_name)] {
            let to = Some((UnixDatagram::unbound().unwrap(), address(&name).unwrap()));
            let mut notify = Notify { to, every_ms: 10, watchdog: true, next_ms: None };
            notify.tick(|| unreachable!("not ready yet"), 5);
            notify.ready("up", 0);
            notify.tick(|| unreachable!("not due"), 9);
            notify.tick(|| "well".to_string(), 10);
            for expected in ["READY=1\nSTATUS=up\n", "WATCHDOG=1\nSTATUS=well\n"] {
                let mut bytes = [0; 64];
                let read = socket.recv(&mut bytes).unwrap();
                assert_eq!(String::from_utf8_lossy(&bytes[..read]), expected);
            }
        }
        std::fs::remove_file(&path).unwrap();
        assert!(address("relative").is_none());
    }

    #[test]
    fn the_watchdog_hears_of_us_twice_as_often_as_it_must() {
        assert_eq!(watchdog_interval("30000000"), Some(Duration::from_secs(15)));
        assert_eq!((watchdog_interval("0"), watchdog_interval("x")), (None, None));
    }
}
