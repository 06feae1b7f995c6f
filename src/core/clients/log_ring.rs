//! The last stderr lines and lifecycle events of one server. Owns the cutting of stderr into lines, and which of them are
//! kept; never holds more than `LOG_LINES_KEPT` lines or `LOG_BYTES_KEPT` bytes, and never takes more of a server's lines
//! than `SERVER_LOG` says, however chatty the server is. Others are counted, and the last of them are known at its end.

use crate::allowance::Allowance;
use crate::core::contract::Now;
use crate::ids::{IdMap, InstanceId};
use crate::limits::{CRASH_TAIL_LINES, LOG_BYTES_KEPT, LOG_LINE_MAX, LOG_LINES_KEPT, SERVER_LOG};
use crate::model::log::{LogEntry, LogSource};
use memchr::memchr;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

#[derive(Serialize, Deserialize)]
pub struct LogRing {
    entries: VecDeque<LogEntry>,
    bytes: usize,
    /// How many of them are of an earlier daemon, whose instances had the same numbers.
    restored: usize,
    /// Stderr that has not seen its newline yet, of each instance that has such.
    torn: IdMap<InstanceId, Vec<u8>>,
    /// Lines that may be kept.
    room: Allowance,
    unkept: Unkept,
}

/// Lines for which there was no room, since that was last told.
#[derive(Default, Serialize, Deserialize)]
struct Unkept {
    count: u64,
    /// Somebody knows that it will have to be told.
    is_known: bool,
    /// The last ones of stderr: if the server ends now, they say why.
    last: VecDeque<(InstanceId, Vec<u8>)>,
}

impl Default for LogRing {
    fn default() -> LogRing {
        LogRing {
            entries: VecDeque::new(),
            bytes: 0,
            restored: 0,
            torn: IdMap::default(),
            room: Allowance::full(SERVER_LOG),
            unkept: Unkept::default(),
        }
    }
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
        let mut torn = self.torn.remove(&instance).unwrap_or_default();
        while !bytes.is_empty() {
            let most = bytes.len().min(LOG_LINE_MAX - torn.len());
            let newline = memchr(b'\n', &bytes[..most]);
            let (piece, rest) = bytes.split_at(newline.unwrap_or(most));
            bytes = &rest[usize::from(newline.is_some())..];
            let is_whole = newline.is_some() || torn.len() + piece.len() == LOG_LINE_MAX;
            if is_whole && torn.is_empty() {
                fresh.extend(self.said(instance, LogSource::Stderr, piece, now));
                continue;
            }
            torn.extend_from_slice(piece);
            if is_whole {
                fresh.extend(self.said(instance, LogSource::Stderr, &torn, now));
                torn.clear();
            }
        }
        if !torn.is_empty() {
            self.torn.insert(instance, torn);
        }
        fresh
    }

    /// One line that a server wrote: kept, or counted if there is no room for it.
    pub fn said(&mut self, instance: InstanceId, source: LogSource, line: &[u8], now: Now) -> Option<LogEntry> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            return None;
        }
        if self.room.wait_until(now.mono_ms).is_some() {
            self.unkept.add(instance, source, line);
            return None;
        }
        self.room.spend(1);
        Some(self.keep(LogEntry { at_unix_ms: now.unix_ms, instance: Some(instance), source, text: printable(line) }))
    }

    fn keep(&mut self, entry: LogEntry) -> LogEntry {
        self.push(entry.clone());
        entry
    }

    /// True once, after the first line that was not kept: `tell_unkept` is owed.
    pub fn begins_to_skip(&mut self) -> bool {
        self.unkept.count > 0 && !std::mem::replace(&mut self.unkept.is_known, true)
    }

    /// How many lines were not kept.
    pub fn tell_unkept(&mut self, now: Now) -> Option<LogEntry> {
        let Unkept { count, .. } = std::mem::take(&mut self.unkept);
        self.unkept_entry(count, now)
    }

    fn unkept_entry(&mut self, count: u64, now: Now) -> Option<LogEntry> {
        if count == 0 {
            return None;
        }
        let text = format!("{count} lines were not kept: of one server it is {} a second", 1000 * SERVER_LOG.per_ms);
        Some(self.keep(LogEntry { at_unix_ms: now.unix_ms, instance: None, source: LogSource::Lifecycle, text }))
    }

    /// An instance is over: its last words, whole or torn, room or none.
    pub fn end_stderr(&mut self, instance: InstanceId, now: Now) -> Vec<LogEntry> {
        let torn = self.torn.remove(&instance).unwrap_or_default();
        let torn = self.said(instance, LogSource::Stderr, &torn, now);
        let Unkept { count, last, .. } = std::mem::take(&mut self.unkept);
        let last = last.into_iter().filter(|(of, _)| *of == instance);
        let last: Vec<String> = last.map(|(_, line)| printable(&line)).collect();
        let mut fresh: Vec<LogEntry> = self.unkept_entry(count - last.len() as u64, now).into_iter().collect();
        for text in last {
            let (at_unix_ms, source) = (now.unix_ms, LogSource::Stderr);
            fresh.push(self.keep(LogEntry { at_unix_ms, instance: Some(instance), source, text }));
        }
        fresh.extend(torn);
        fresh
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

impl Unkept {
    fn add(&mut self, instance: InstanceId, source: LogSource, line: &[u8]) {
        self.count += 1;
        if source != LogSource::Stderr {
            return;
        }
        // The buffer of the one that goes is taken for the one that comes: a flood costs no memory's work.
        let oldest = if self.last.len() == CRASH_TAIL_LINES { self.last.pop_front() } else { None };
        let mut buffer = oldest.map_or_else(Vec::new, |(_, buffer)| buffer);
        buffer.clear();
        buffer.extend_from_slice(line);
        self.last.push_back((instance, buffer));
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
        assert_eq!(ring.end_stderr(one, now)[0].text, "wor\u{fffd}[2J\u{fffd}ld");
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
        let (one, mut ring, mut now) = (InstanceId(1), LogRing::default(), Now::default());
        for _ in 0..500 {
            ring.stderr(one, &[b'x'; 10_000], now);
            assert!(ring.bytes <= LOG_BYTES_KEPT && ring.torn.len() < LOG_LINE_MAX);
        }
        let mut kept = ring.tail(usize::MAX, 0).len();
        for _ in 0..100_000 {
            kept += ring.stderr(one, b"a\n", now).len();
        }
        assert!(kept <= SERVER_LOG.most as usize, "{kept}");
        assert_eq!(ring.tail(usize::MAX, 0).len(), LOG_LINES_KEPT);
        now.mono_ms += 500;
        let later: usize = (0..10_000).map(|_| ring.stderr(one, b"a\n", now).len()).sum();
        assert!(later <= 500, "{later}");
    }

    #[test]
    fn lines_that_are_not_kept_are_counted_and_the_last_ones_are_known_at_the_end() {
        let (one, mut ring, now) = (InstanceId(1), LogRing::default(), Now::default());
        let most = SERVER_LOG.most as usize;
        for n in 0..most {
            assert_eq!(ring.stderr(one, format!("{n}\n").as_bytes(), now).len(), 1);
            assert!(!ring.begins_to_skip());
        }
        ring.stderr(one, b"lost\n", now);
        assert!(ring.begins_to_skip() && !ring.begins_to_skip());
        ring.said(one, LogSource::Noise, b"lost too", now);
        let told = ring.tell_unkept(now).expect("lines were lost");
        assert!(told.text.starts_with("2 lines were not kept"), "{}", told.text);
        assert_eq!(ring.tell_unkept(now), None);
        for n in 0..100 {
            ring.stderr(one, format!("line {n}\n").as_bytes(), now);
        }
        ring.stderr(one, b"the reason", now);
        let last: Vec<String> = ring.end_stderr(one, now).into_iter().map(|entry| entry.text).collect();
        assert!(last[0].starts_with("81 lines were not kept"), "{}", last[0]);
        assert_eq!((last.len(), &*last[1], &*last[20]), (21, "line 81", "the reason"));
        assert_eq!(ring.crash_tail(one).last().map(String::as_str), Some("the reason"));
    }
}
