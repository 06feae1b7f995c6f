//! Messages from a server's stdout: lines, or blocks behind a `Content-Length` header. Owns the bytes of one message; never
//! holds more than `LINE_MAX` of them, and touches each byte a constant number of times however the reads are split.

use crate::limits::{
    BYTES_AT_ONCE, FRAME_FIELDS_MAX, FRAME_HEAD_MAX, LINE_BUFFER_KEPT, LINE_BUFFER_ROOMY_MAX, LINE_HEAD_KEPT, LINE_MAX,
    LINE_TAIL_KEPT,
};
use crate::model::definition::Framing;
use memchr::memchr;
use serde::{Deserialize, Serialize};
use std::ops::Range;

const LENGTH: &[u8] = b"content-length:";
/// What both fields of a head begin with.
const FIELD: &[u8] = b"content-";

/// What stands between two newlines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line<'a> {
    Whole(&'a [u8]),
    /// Longer than the limit, and discarded: its first and last bytes, which tell whose answer it was.
    TooLong {
        head: &'a [u8],
        tail: &'a [u8],
    },
    /// As above: it was within the limit, but there was no memory for it.
    NoRoom {
        head: &'a [u8],
        tail: &'a [u8],
    },
}

/// Cuts a byte stream into lines. `feed` takes what was read; `next` is called until it gives nothing more.
#[derive(Clone, Serialize, Deserialize)]
pub struct Lines {
    max: usize,
    framing: Framing,
    /// The length of a block whose head has been read: it is not read again with every byte of the block.
    block: Option<usize>,
    /// Bytes of a block that is too large and not yet there.
    to_discard: usize,
    /// Longer than what is in it: bytes that were read before need not be made again to be read into.
    buf: Vec<u8>,
    have: usize,
    /// How often in a row little of a large `buf` was needed.
    roomy: u8,
    /// Where the unread part of `buf` starts, and how far it has been searched for a newline.
    start: usize,
    searched: usize,
    discarding: Option<Discarded>,
}

/// What is at the beginning of the bytes where a block should be.
enum Begun {
    Block(usize),
    /// A line that is no head; where it stands.
    Noise(Range<usize>),
}

#[derive(Clone, Default, Serialize, Deserialize)]
struct Discarded {
    head: Vec<u8>,
    tail: Vec<u8>,
    complete: bool,
    why: Excess,
}

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
enum Excess {
    #[default]
    Length,
    Memory,
}

impl Discarded {
    fn line(&self) -> Line<'_> {
        let (head, tail) = (self.head.as_slice(), self.tail.as_slice());
        match self.why {
            Excess::Length => Line::TooLong { head, tail },
            Excess::Memory => Line::NoRoom { head, tail },
        }
    }
}

impl Default for Lines {
    fn default() -> Lines {
        Lines::with_max(LINE_MAX)
    }
}

/// The same messages behind `Content-Length` headers; `lines` are whole.
pub fn framed(lines: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(lines.len() + 32);
    for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        out.extend_from_slice(format!("Content-Length: {}\r\n\r\n", line.len()).as_bytes());
        out.extend_from_slice(line);
    }
    out
}

impl Lines {
    pub fn with_max(max: usize) -> Lines {
        Lines {
            max,
            framing: Framing::Newline,
            block: None,
            to_discard: 0,
            buf: Vec::new(),
            have: 0,
            roomy: 0,
            start: 0,
            searched: 0,
            discarding: None,
        }
    }

    /// `Auto`: the first bytes decide.
    pub fn with_framing(framing: Framing) -> Lines {
        Lines { framing, ..Lines::default() }
    }

    /// Does the server speak in blocks, and so want to be spoken to?
    pub fn is_in_blocks(&self) -> bool {
        self.framing == Framing::ContentLength
    }

    pub fn feed(&mut self, bytes: &[u8]) {
        self.room(bytes.len())[..bytes.len()].copy_from_slice(bytes);
        self.fed(bytes.len());
    }

    /// At least this much, to read into; `fed` says how much of it was used.
    pub fn room(&mut self, least: usize) -> &mut [u8] {
        self.forget_consumed();
        let needed = self.have + least;
        if self.buf.len() < needed {
            // Twice as much each time, but no more than the longest line needs.
            let size = needed.max((2 * self.buf.len()).min(self.max + BYTES_AT_ONCE));
            self.buf.reserve_exact(size - self.buf.len());
            self.buf.resize(size, 0);
        }
        &mut self.buf[self.have..]
    }

    pub fn fed(&mut self, count: usize) {
        self.have += count;
    }

    /// The next line without its newline (and without a `\r` before it); empty lines are skipped.
    pub fn next_line(&mut self) -> Option<Line<'_>> {
        if self.framing == Framing::Auto {
            self.framing = self.recognised()?;
        }
        match self.framing {
            Framing::ContentLength => self.next_block(),
            Framing::Newline | Framing::Auto => self.next_newline(),
        }
    }

    /// None: too few bytes to tell.
    fn recognised(&mut self) -> Option<Framing> {
        self.skip_space();
        let begun = &self.buf[self.start..self.have];
        let seen = begun.len().min(LENGTH.len());
        match begun[..seen].eq_ignore_ascii_case(&LENGTH[..seen]) {
            true if seen < LENGTH.len() => None,
            true => Some(Framing::ContentLength),
            false => Some(Framing::Newline),
        }
    }

    /// Where a message should begin, space is nothing. It must not be kept: a server can send it without end.
    fn skip_space(&mut self) {
        let begun = &self.buf[self.start..self.have];
        self.start += begun.len() - begun.trim_ascii_start().len();
        self.searched = self.start;
    }

    fn next_block(&mut self) -> Option<Line<'_>> {
        if self.discarding.as_ref().is_some_and(|d| d.complete) {
            self.discarding = None;
        }
        if self.discarding.is_none() && self.block.is_none() {
            match self.read_head()? {
                Begun::Noise(line) => return Some(Line::Whole(self.buf[line].trim_ascii_end())),
                Begun::Block(length) if length > self.max => {
                    (self.discarding, self.to_discard) = (Some(Discarded::default()), length);
                }
                Begun::Block(length) => self.block = Some(length),
            }
        }
        if self.discarding.is_some() {
            let there = self.to_discard.min(self.have - self.start);
            self.to_discard -= there;
            self.discard_to(self.start + there, self.to_discard == 0);
            self.searched = self.start;
            return self.discarding.as_ref().filter(|gone| gone.complete).map(Discarded::line);
        }
        let (begin, end) = (self.start, self.start + self.block?);
        if self.have < end {
            return None;
        }
        self.block = None;
        (self.start, self.searched) = (end, end);
        Some(Line::Whole(&self.buf[begin..end]))
    }

    /// Goes past the head of a block, or a line that is none. None: too few bytes to tell.
    fn read_head(&mut self) -> Option<Begun> {
        self.skip_space();
        let begun = &self.buf[self.start..self.have];
        let (size, what) = match block_head(begun) {
            Some((length, size)) => (size, Begun::Block(length)),
            None => {
                // No head: the line is noise, if it is whole; one that never ends is given up.
                let size = match memchr(b'\n', begun) {
                    Some(end) if !is_head_begun(begun) => end + 1,
                    Some(_) | None if begun.len() > FRAME_HEAD_MAX => begun.len(),
                    Some(_) | None => return None,
                };
                (size, Begun::Noise(self.start..self.start + size))
            }
        };
        self.start += size;
        self.searched = self.start;
        Some(what)
    }

    fn next_newline(&mut self) -> Option<Line<'_>> {
        loop {
            if self.discarding.as_ref().is_some_and(|d| d.complete) {
                self.discarding = None;
            }
            let Some(at) = memchr(b'\n', &self.buf[self.searched..self.have]) else {
                self.searched = self.have;
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
                return self.discarding.as_ref().map(Discarded::line);
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

    /// In the middle of a line that is not a small one.
    pub fn is_amid_large(&self) -> bool {
        self.pending() >= BYTES_AT_ONCE || self.is_discarding()
    }

    /// In the middle of a line that is too long.
    pub fn is_discarding(&self) -> bool {
        self.discarding.as_ref().is_some_and(|line| !line.complete)
    }

    /// Bytes of a line that has not ended yet.
    pub fn pending(&self) -> usize {
        self.have - self.start
    }

    /// The memory that it has, needed or not.
    pub fn held(&self) -> usize {
        self.buf.len()
    }

    /// Gives back what it has and does not need; nothing is lost. Only where that is much: what is needed is copied.
    pub fn shrink(&mut self) {
        if self.pending() < self.buf.len() / 2 {
            self.buf = self.buf[self.start..self.have].to_vec();
            (self.have, self.searched, self.roomy) = (self.buf.len(), self.searched - self.start, 0);
            self.start = 0;
        }
    }

    /// The line that has begun is discarded to its end: there is no memory for it. For when `next_line` has nothing to give.
    pub fn give_up(&mut self) {
        match (self.framing, self.block) {
            // So little is not worth it.
            (Framing::ContentLength, None) | (Framing::Auto, _) => return,
            (Framing::ContentLength, Some(length)) => {
                self.to_discard = length.saturating_sub(self.pending());
                self.block = None;
            }
            (Framing::Newline, _) if self.is_discarding() => return,
            (Framing::Newline, _) => {}
        }
        self.discard_to(self.have, false);
        if let Some(line) = &mut self.discarding {
            line.why = Excess::Memory;
        }
        self.searched = self.start;
        self.shrink();
    }

    /// Moves `start..end` out of the buffer into the head and tail of the line being discarded.
    fn discard_to(&mut self, end: usize, complete: bool) {
        let gone = &self.buf[self.start..end];
        let line = self.discarding.get_or_insert_default();
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
        if self.start == self.have {
            self.give_back();
        } else if self.start > 0 {
            self.buf.copy_within(self.start..self.have, 0);
        }
        self.searched -= self.start;
        self.have -= self.start;
        self.start = 0;
    }

    /// A server that sends much keeps its buffer; one that did so once has it until its next few words.
    fn give_back(&mut self) {
        let roomy = self.buf.len() > LINE_BUFFER_KEPT && self.have < self.buf.len() / 4;
        self.roomy = if roomy { self.roomy + 1 } else { 0 };
        if self.roomy == LINE_BUFFER_ROOMY_MAX {
            (self.buf, self.roomy) = (Vec::new(), 0);
        }
    }
}

/// Could this become the head of a block, with more bytes?
fn is_head_begun(text: &[u8]) -> bool {
    let seen = text.len().min(FIELD.len());
    text.len() <= FRAME_HEAD_MAX && text[..seen].eq_ignore_ascii_case(&FIELD[..seen])
}

/// The length that a head names, and the size of the head with its empty line.
fn block_head(text: &[u8]) -> Option<(usize, usize)> {
    let text = &text[..text.len().min(FRAME_HEAD_MAX)];
    let (mut at, mut length) = (0, None);
    if !is_head_begun(text) {
        return None;
    }
    // With its empty line.
    for _ in 0..=FRAME_FIELDS_MAX {
        let end = at + memchr(b'\n', &text[at..])?;
        let line = text[at..end].trim_ascii();
        at = end + 1;
        if line.is_empty() {
            return Some((length?, at));
        }
        if line.len() > LENGTH.len() && line[..LENGTH.len()].eq_ignore_ascii_case(LENGTH) {
            let digits = std::str::from_utf8(line[LENGTH.len()..].trim_ascii()).ok()?;
            length = Some(digits.parse().ok()?);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(lines: &mut Lines, out: &mut Vec<(bool, Vec<u8>)>) {
        while let Some(line) = lines.next_line() {
            out.push(match line {
                Line::Whole(bytes) => (true, bytes.to_vec()),
                Line::TooLong { head, tail } => (false, [head, b"..", tail].concat()),
                Line::NoRoom { head, tail } => (false, [head, b"--", tail].concat()),
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
            assert!(lines.buf.len() < 64 * 1024);
        }
        lines.feed(b"\nnext\n");
        assert!(matches!(lines.next_line(), Some(Line::TooLong { .. })));
        assert_eq!(lines.next_line(), Some(Line::Whole(b"next")));
    }

    #[test]
    fn blocks_are_recognised_and_do_not_depend_on_where_the_bytes_are_split() {
        let text = b"Content-Length: 5\r\n\r\n{\n12}content-length:2\r\nContent-Type: x\r\n\r\n{}stray words\nContent-Length: 3\n\n[1]";
        let expected: Vec<(bool, Vec<u8>)> =
            [&b"{\n12}"[..], b"{}", b"stray words", b"[1]"].map(|line| (true, line.to_vec())).to_vec();
        for step in [1, 2, 3, 7, 20, 1000] {
            let mut found = Vec::new();
            let mut lines = Lines::with_framing(Framing::Auto);
            for piece in text.chunks(step) {
                lines.feed(piece);
                all(&mut lines, &mut found);
            }
            assert_eq!(found, expected, "split by {step}");
            assert!(lines.is_in_blocks() && lines.pending() == 0);
        }
    }

    #[test]
    fn a_block_that_is_too_large_is_discarded_to_its_end() {
        let mut lines = Lines { framing: Framing::ContentLength, ..Lines::with_max(5000) };
        lines.feed(b"Content-Length: 20000\r\n\r\n");
        for _ in 0..20 {
            assert_eq!(lines.next_line(), None);
            assert!(lines.pending() <= 1000);
            lines.feed(&[b'x'; 1000]);
        }
        lines.feed(b"Content-Length: 2\r\n\r\n{}");
        assert!(matches!(lines.next_line(), Some(Line::TooLong { .. })));
        assert_eq!(lines.next_line(), Some(Line::Whole(b"{}")));
    }

    #[test]
    fn a_head_that_makes_no_sense_is_noise_and_never_stops_the_rest() {
        for bad in ["Content-Length: x\r\n\r\n", "Content-Length: 99999999999999999999999\r\n\r\n"] {
            let mut lines = Lines::with_framing(Framing::ContentLength);
            lines.feed(bad.as_bytes());
            lines.feed(&[b'y'; 2 * FRAME_HEAD_MAX]);
            lines.feed(b"\nContent-Length: 2\r\n\r\n{}");
            let mut found = Vec::new();
            all(&mut lines, &mut found);
            assert_eq!(found.last(), Some(&(true, b"{}".to_vec())), "{bad}");
        }
        let mut mutator = crate::wire::mutation::Mutator::new(9);
        for _ in 0..5_000 {
            let text = mutator.mutate(&[b"Content-Length: 2\r\n\r\n{}Content-Length: 3\r\nX: y\r\n\r\n[1]\n"]);
            let mut lines = Lines::with_framing(Framing::Auto);
            lines.feed(&text);
            let mut found = Vec::new();
            all(&mut lines, &mut found);
        }
    }

    #[test]
    fn lines_become_blocks() {
        assert_eq!(framed(b"{}\n[1]\n"), b"Content-Length: 2\r\n\r\n{}Content-Length: 3\r\n\r\n[1]");
    }

    #[test]
    fn a_line_that_is_given_up_is_discarded_to_its_end_and_no_further() {
        let begun = vec![b'x'; 100_000];
        for (framing, head, end) in [
            (Framing::Newline, "", "yy\n"),
            (Framing::ContentLength, "Content-Length: 100002\r\n\r\n", "yy"),
            (Framing::Auto, "Content-Length: 100002\r\n\r\n", "yy"),
        ] {
            let mut lines = Lines::with_framing(framing);
            lines.feed(head.as_bytes());
            lines.feed(&begun);
            assert_eq!(lines.next_line(), None);
            assert!(lines.held() >= begun.len());
            lines.give_up();
            lines.give_up();
            assert!(lines.held() < 100 && lines.pending() == 0 && lines.is_discarding(), "{framing:?}");
            lines.feed(&[end.as_bytes(), head.as_bytes(), &begun, end.as_bytes()].concat());
            let kept = [vec![b'x'; LINE_HEAD_KEPT], b"--".to_vec(), vec![b'x'; LINE_TAIL_KEPT - 2], b"yy".to_vec()];
            let mut found = Vec::new();
            all(&mut lines, &mut found);
            assert!(found[0] == (false, kept.concat()), "{framing:?}");
            assert!(found.len() == 2 && found[1].0 && found[1].1.len() == 100_002, "{framing:?}");
        }
    }

    #[test]
    fn what_is_not_needed_is_given_back_and_nothing_is_lost() {
        let mut lines = Lines::default();
        lines.feed(&[vec![b'x'; 1 << 20], b"\none\ntwo\nthr".to_vec()].concat());
        assert!(matches!(lines.next_line(), Some(Line::Whole(line)) if line.len() == 1 << 20));
        assert_eq!(lines.next_line(), Some(Line::Whole(b"one")));
        lines.shrink();
        assert!(lines.held() < 100);
        lines.feed(b"ee\n");
        assert_eq!(lines.next_line(), Some(Line::Whole(b"two")));
        assert_eq!(lines.next_line(), Some(Line::Whole(b"three")));
        assert_eq!(lines.next_line(), None);
        let mut empty = Lines::with_framing(Framing::Auto);
        empty.shrink();
        empty.give_up();
        assert_eq!(empty.next_line(), None);
    }

    #[test]
    fn the_longest_line_needs_little_more_than_its_length() {
        let mut lines = Lines::default();
        lines.feed(b"x");
        while lines.pending() < LINE_MAX {
            let room = lines.room(64 << 10).len();
            lines.fed(room.min(LINE_MAX - lines.pending()));
        }
        assert!(lines.held() <= LINE_MAX + BYTES_AT_ONCE, "{}", lines.held());
    }

    #[test]
    fn a_large_buffer_is_kept_while_it_is_used_and_given_back_after() {
        let mut lines = Lines::default();
        let large = [vec![b'x'; 1 << 20], vec![b'\n']].concat();
        for _ in 0..100 {
            lines.feed(&large);
            assert!(matches!(lines.next_line(), Some(Line::Whole(line)) if line.len() == 1 << 20));
        }
        let kept = lines.buf.as_ptr();
        lines.feed(b"small\n");
        assert_eq!(lines.next_line(), Some(Line::Whole(b"small")));
        assert_eq!(lines.buf.as_ptr(), kept);
        for _ in 0..LINE_BUFFER_ROOMY_MAX {
            lines.feed(b"small\n");
            assert_eq!(lines.next_line(), Some(Line::Whole(b"small")));
        }
        assert!(lines.buf.len() <= LINE_BUFFER_KEPT, "{}", lines.buf.len());
    }
}
