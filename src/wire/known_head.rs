//! The head that a connection has sent last. A client that keeps its connection sends the same head with each request, but
//! for the length of its body: whatever was found in it is found there again, so it is compared and not parsed. Owns a copy
//! of that head; never says what stands in it. Invariant: a head is the same byte for byte, or it is another one.

use crate::limits::{BODY_MAX, KNOWN_HEAD_MAX};
use crate::wire::fields::number;
use serde::{Deserialize, Serialize};
use std::ops::Range;

#[derive(Clone, Default, Serialize, Deserialize)]
pub struct KnownHead {
    /// From its request line to its empty line; empty: none is known.
    bytes: Vec<u8>,
    /// Where the value of its Content-Length stands; empty: it has none.
    digits: Range<usize>,
}

impl KnownHead {
    /// A long head is parsed each time: each connection keeps what is known for as long as it lives.
    pub fn learn(&mut self, head: &[u8], digits: Range<usize>) {
        self.bytes.clear();
        if head.len() <= KNOWN_HEAD_MAX {
            self.bytes.extend_from_slice(head);
            self.digits = digits;
        }
    }

    pub fn forget(&mut self) {
        self.bytes.clear();
    }

    /// Where the head ends that `raw` begins with, and how long its body is, if it is the one that is known.
    pub fn begins(&self, raw: &[u8]) -> Option<(usize, usize)> {
        let Range { start, end } = self.digits;
        let head = raw.get(..self.bytes.len()).filter(|head| !head.is_empty())?;
        if head[..start] != self.bytes[..start] || head[end..] != self.bytes[end..] {
            return None;
        }
        let length = match start == end {
            true => 0,
            // What is no length, or none that is taken, is refused by whoever parses it.
            false => number(&head[start..end], 10).filter(|length| *length <= BODY_MAX as u64)?,
        };
        Some((head.len(), length as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::HEAD_MAX;

    #[test]
    fn only_the_length_of_the_body_may_be_another() {
        let head = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 120\r\nX: y\r\n\r\n";
        let at = head.find("120").unwrap();
        let mut known = KnownHead::default();
        assert_eq!(known.begins(head.as_bytes()), None);
        known.learn(head.as_bytes(), at..at + 3);
        let with = |length: &str| head.replace("120", length) + "{}";
        assert_eq!(known.begins(with("120").as_bytes()), Some((head.len(), 120)));
        assert_eq!(known.begins(with("007").as_bytes()), Some((head.len(), 7)));
        for length in ["", "12", "1200", "+12", "12 ", "1\r\n"] {
            assert_eq!(known.begins(with(length).as_bytes()), None, "{length}");
        }
        for at in (0..head.len()).filter(|index| !(at..at + 3).contains(index)) {
            let mut other = with("120").into_bytes();
            other[at] ^= 1;
            assert_eq!(known.begins(&other), None, "{at}");
            assert_eq!(known.begins(&head.as_bytes()[..at]), None, "not all there");
        }
        known.forget();
        assert_eq!(known.begins(with("120").as_bytes()), None);
    }

    #[test]
    fn a_length_that_is_not_taken_and_a_head_that_is_long_are_nothing_known() {
        let head = format!("Content-Length: {BODY_MAX}\r\n\r\n");
        let mut known = KnownHead::default();
        known.learn(head.as_bytes(), 16..head.len() - 4);
        assert_eq!(known.begins(head.as_bytes()), Some((head.len(), BODY_MAX)));
        assert_eq!(known.begins(head.replace(&BODY_MAX.to_string(), "9999999").as_bytes()), None);
        known.learn(&[b'x'; HEAD_MAX], 0..0);
        assert_eq!(known.begins(&[b'x'; HEAD_MAX]), None);
        assert!(known.bytes.capacity() <= KNOWN_HEAD_MAX);
    }
}
