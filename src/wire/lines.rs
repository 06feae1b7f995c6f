//! Lines from a server's stdout. Owns the bytes between two newlines; never holds more than `LINE_MAX` of them, and
//! touches each byte a constant number of times however the reads are split.

use crate::limits::{LINE_HEAD_KEPT, LINE_MAX, LINE_TAIL_KEPT};
use memchr::memchr;

/// What stands between two newlines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line<'a> {
    Whole(&'a [u8]),
    /// Longer than the limit, and discarded: its first and last bytes, which tell whose answer it was.
    TooLong {
        head: &'a [u8],
        tail: &'a [u8],
    },
}

/// Cuts a byte stream into lines. `feed` takes what was read; `next` is called until it gives nothing more.
pub struct Lines {
    max: usize,
    buf: Vec<u8>,
    /// Where the unread part of `buf` starts, and how far it has been searched for a newline.
    start: usize,
    searched: usize,
    discarding: Option<Discarded>,
}

struct Discarded {
    head: Vec<u8>,
    tail: Vec<u8>,
    complete: bool,
}

impl Default for Lines {
    fn default() -> Lines {
        Lines::with_max(LINE_MAX)
    }
}

impl Lines {
    pub fn with_max(max: usize) -> Lines {
        Lines { max, buf: Vec::new(), start: 0, searched: 0, discarding: None }
    }

    pub fn feed(&mut self, bytes: &[u8]) {
        self.forget_consumed();
        self.buf.extend_from_slice(bytes);
    }

    /// The next line without its newline (and without a `\r` before it); empty lines are skipped.
    pub fn next_line(&mut self) -> Option<Line<'_>> {
        loop {
            if self.discarding.as_ref().is_some_and(|d| d.complete) {
                self.discarding = None;
            }
            let Some(at) = memchr(b'\n', &self.buf[self.searched..]) else {
                self.searched = self.buf.len();
                if self.discarding.is_some() || self.searched - self.start > self.max {
                    self.discard_to(self.searched, false);
                }
                return None;
            };
            let end = self.searched + at;
            self.searched = end + 1;
            if self.discarding.is_some() || end - self.start > self.max {
                self.discard_to(end, true);
                self.start = end + 1;
                let gone = self.discarding.as_ref().expect("just discarded");
                return Some(Line::TooLong { head: &gone.head, tail: &gone.tail });
            }
            let begin = std::mem::replace(&mut self.start, end + 1);
            let line = self.buf[begin..end].strip_suffix(b"\r").unwrap_or(&self.buf[begin..end]);
            if !line.is_empty() {
                // Borrowed again because the loop may not keep the first borrow across its next turn.
                let len = line.len();
                return Some(Line::Whole(&self.buf[begin..begin + len]));
            }
        }
    }

    /// Bytes of a line that has not ended yet.
    pub fn pending(&self) -> usize {
        self.buf.len() - self.start
    }

    /// Moves `start..end` out of the buffer into the head and tail of the line being discarded.
    fn discard_to(&mut self, end: usize, complete: bool) {
        let gone = &self.buf[self.start..end];
        let line =
            self.discarding.get_or_insert_with(|| Discarded { head: Vec::new(), tail: Vec::new(), complete: false });
        let into_head = gone.len().min(LINE_HEAD_KEPT.saturating_sub(line.head.len()));
        line.head.extend_from_slice(&gone[..into_head]);
        let into_tail = gone.len().min(LINE_TAIL_KEPT);
        line.tail.extend_from_slice(&gone[gone.len() - into_tail..]);
        let excess = line.tail.len().saturating_sub(LINE_TAIL_KEPT);
        line.tail.drain(..excess);
        line.complete = complete;
        self.start = end;
    }

    fn forget_consumed(&mut self) {
        if self.start == self.buf.len() {
            self.buf.clear();
            // One huge answer must not keep its memory for the rest of the server's life.
            if self.buf.capacity() > 1 << 20 {
                self.buf = Vec::new();
            }
        } else {
            self.buf.drain(..self.start);
        }
        self.searched -= self.start;
        self.start = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(lines: &mut Lines, out: &mut Vec<(bool, Vec<u8>)>) {
        while let Some(line) = lines.next_line() {
            out.push(match line {
                Line::Whole(bytes) => (true, bytes.to_vec()),
                Line::TooLong { head, tail } => (false, [head, b"..", tail].concat()),
            });
        }
    }

    #[test]
    fn lines_do_not_depend_on_where_the_bytes_are_split() {
        let max = 5000;
        let long = [vec![b'a'; 4000], vec![b'b'; 3000]].concat();
        let text = [b"one\r\n\n\ntwo\n".as_slice(), &long, b"\nthree\n", &vec![b'c'; max], b"\n\r\nlast"].concat();
        let mut whole = Vec::new();
        let mut lines = Lines::with_max(max);
        lines.feed(&text);
        all(&mut lines, &mut whole);
        assert_eq!(whole.len(), 5);
        assert!(!whole[2].0 && whole[4].1.len() == max);
        assert_eq!(lines.pending(), 4);
        for step in [1, 2, 3, 7, 100, 4096, 4999] {
            let mut split = Vec::new();
            let mut lines = Lines::with_max(max);
            for piece in text.chunks(step) {
                lines.feed(piece);
                all(&mut lines, &mut split);
                assert!(lines.pending() <= max, "a discarded line is not kept");
            }
            assert!(split == whole, "split by {step}");
        }
    }

    #[test]
    fn a_line_that_never_ends_costs_bounded_memory() {
        let mut lines = Lines::with_max(10_000);
        for _ in 0..1000 {
            lines.feed(&[b'x'; 4096]);
            assert_eq!(lines.next_line(), None);
            assert!(lines.buf.capacity() < 64 * 1024);
        }
        lines.feed(b"\nnext\n");
        assert!(matches!(lines.next_line(), Some(Line::TooLong { .. })));
        assert_eq!(lines.next_line(), Some(Line::Whole(b"next")));
    }
}
