//! The last stderr lines and lifecycle events of one server. Owns the cutting of stderr into lines; never holds more
//! than `LOG_LINES_KEPT` lines or `LOG_BYTES_KEPT` bytes, however chatty the server is.

use crate::core::contract::{LogEntry, LogSource, Now};
use crate::ids::{IdMap, InstanceId};
use crate::limits::{CRASH_TAIL_LINES, LOG_BYTES_KEPT, LOG_LINE_MAX, LOG_LINES_KEPT};
use memchr::memchr;
use std::collections::VecDeque;

#[derive(Default)]
pub struct LogRing {
    entries: VecDeque<LogEntry>,
    bytes: usize,
    /// How many of them are of an earlier daemon, whose instances had the same numbers.
    restored: usize,
    /// Stderr that has not seen its newline yet, of each instance that has such.
    torn: IdMap<InstanceId, Vec<u8>>,
}

impl LogRing {
    pub fn push(&mut self, entry: LogEntry) {
        self.bytes += entry.text.len();
        self.entries.push_back(entry);
        while self.bytes > LOG_BYTES_KEPT || self.entries.len() > LOG_LINES_KEPT {
            let old = self.entries.pop_front().expect("over a bound, so not empty");
            self.bytes -= old.text.len();
            self.restored = self.restored.saturating_sub(1);
        }
    }

    /// What an earlier daemon kept: before everything else, as far as there is room.
    pub fn restore(&mut self, entries: Vec<LogEntry>) {
        for entry in entries.into_iter().rev() {
            if self.entries.len() == LOG_LINES_KEPT || self.bytes + entry.text.len() > LOG_BYTES_KEPT {
                return;
            }
            self.bytes += entry.text.len();
            self.entries.push_front(entry);
            self.restored += 1;
        }
    }

    /// Takes stderr bytes as they come and gives the entries they complete.
    pub fn stderr(&mut self, instance: InstanceId, mut bytes: &[u8], now: Now) -> Vec<LogEntry> {
        let mut fresh = Vec::new();
        while !bytes.is_empty() {
            let torn = self.torn.entry(instance).or_default();
            let room = LOG_LINE_MAX - torn.len();
            let newline = memchr(b'\n', &bytes[..bytes.len().min(room)]);
            let taken = newline.unwrap_or(bytes.len().min(room));
            torn.extend_from_slice(&bytes[..taken]);
            bytes = &bytes[taken + usize::from(newline.is_some())..];
            if newline.is_some() || torn.len() == LOG_LINE_MAX {
                fresh.extend(self.end_stderr(instance, now));
            }
        }
        fresh
    }

    /// Ends the torn line, if there is one: its newline came, or its writer is gone.
    pub fn end_stderr(&mut self, instance: InstanceId, now: Now) -> Option<LogEntry> {
        let line = self.torn.remove(&instance)?;
        let line = line.strip_suffix(b"\r").unwrap_or(&line);
        if line.is_empty() {
            return None;
        }
        let entry = LogEntry {
            at_unix_ms: now.unix_ms,
            instance: Some(instance),
            source: LogSource::Stderr,
            text: printable(line),
        };
        self.push(entry.clone());
        Some(entry)
    }

    /// The last so many that are not older than `since_unix_ms`.
    pub fn tail(&self, count: usize, since_unix_ms: u64) -> Vec<LogEntry> {
        let mut tail: Vec<LogEntry> =
            self.entries.iter().rev().filter(|e| e.at_unix_ms >= since_unix_ms).take(count).cloned().collect();
        tail.reverse();
        tail
    }

    /// What a dead instance said last.
    pub fn crash_tail(&self, instance: InstanceId) -> Vec<String> {
        let of_it = |e: &&LogEntry| e.source == LogSource::Stderr && e.instance == Some(instance);
        let mut tail: Vec<String> = self
            .entries
            .iter()
            .skip(self.restored)
            .rev()
            .filter(of_it)
            .take(CRASH_TAIL_LINES)
            .map(|e| e.text.clone())
            .collect();
        tail.reverse();
        tail
    }
}

/// Text of a hostile server, safe on a terminal: no control characters but tab.
pub fn printable(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().map(|c| if c.is_control() && c != '\t' { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn torn_stderr_becomes_whole_lines() {
        let mut ring = LogRing::default();
        let now = Now::default();
        let one = InstanceId(1);
        assert_eq!(ring.stderr(one, b"hel", now).len(), 0);
        let lines: Vec<_> = ring.stderr(one, b"lo\r\n\nwor\x1b[2J\xffld", now).into_iter().map(|e| e.text).collect();
        assert_eq!(lines, ["hello"]);
        assert_eq!(ring.end_stderr(one, now).expect("torn").text, "wor\u{fffd}[2J\u{fffd}ld");
        assert_eq!(ring.crash_tail(one).len(), 2);
        assert_eq!(ring.crash_tail(InstanceId(2)).len(), 0);
    }

    #[test]
    fn what_is_restored_comes_first_and_is_no_instance_of_ours() {
        let (one, mut ring) = (InstanceId(1), LogRing::default());
        let at = |at_unix_ms, text: &str| LogEntry {
            at_unix_ms,
            instance: Some(one),
            source: LogSource::Stderr,
            text: text.to_string(),
        };
        ring.push(at(30, "new"));
        ring.restore(vec![at(10, "older"), at(20, "old")]);
        let texts = |count, since| ring.tail(count, since).into_iter().map(|e| e.text).collect::<Vec<_>>();
        assert_eq!(texts(9, 0), ["older", "old", "new"]);
        assert_eq!(texts(9, 20), ["old", "new"]);
        assert_eq!(texts(1, 0), ["new"]);
        assert_eq!(ring.crash_tail(one), ["new"]);
    }

    #[test]
    fn a_flood_stays_within_its_bounds() {
        let mut ring = LogRing::default();
        for _ in 0..500 {
            ring.stderr(InstanceId(1), &[b'x'; 10_000], Now::default());
            assert!(ring.bytes <= LOG_BYTES_KEPT && ring.torn.len() < LOG_LINE_MAX);
        }
        for _ in 0..5_000 {
            ring.stderr(InstanceId(1), b"a\n", Now::default());
        }
        assert_eq!(ring.tail(usize::MAX, 0).len(), LOG_LINES_KEPT);
    }
}
