//! Bytes on their way out of the daemon, to a client or to a server's stdin. Small ones are gathered, large ones stay the
//! buffers they came in: what is written was copied at most once. Keeps the order, and nothing of what has gone out.

use crate::limits::{BUFFER_KEPT_MAX, PART_MIN, PARTS_PER_WRITE};
use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};

#[derive(Default)]
pub struct Backlog {
    parts: VecDeque<Vec<u8>>,
    /// How much of the first part has been written.
    written: usize,
    /// The last part takes more.
    open: bool,
}

impl Backlog {
    pub fn len(&self) -> usize {
        self.parts.iter().map(Vec::len).sum::<usize>() - self.written
    }

    pub fn is_empty(&self) -> bool {
        // Only the one that is open can be.
        self.parts.len() < 2 && self.parts.front().is_none_or(Vec::is_empty)
    }

    /// Where small things are written to.
    pub fn tail(&mut self) -> &mut Vec<u8> {
        // What has been written of a part is let go with its last byte. Nobody may put that off by never taking it.
        self.open &= self.parts.len() > 1 || self.written == 0;
        if !std::mem::replace(&mut self.open, true) {
            self.parts.push_back(Vec::new());
        }
        self.parts.back_mut().expect("one is open")
    }

    pub fn push(&mut self, bytes: Vec<u8>) {
        if bytes.len() < PART_MIN {
            return self.tail().extend_from_slice(&bytes);
        }
        self.parts.push_back(bytes);
        self.open = false;
    }

    /// One write, of no more than `most`; gives what it took.
    pub fn write_to(&mut self, out: &mut impl Write, most: usize) -> io::Result<usize> {
        let start = |bytes: &[u8], most: usize| bytes.len().min(most);
        let taken = match self.parts.len() {
            0 => 0,
            1 => {
                let left = &self.parts[0][self.written..];
                out.write(&left[..start(left, most)])?
            }
            _ => {
                let mut slices = [IoSlice::new(&[]); PARTS_PER_WRITE];
                let (mut room, mut written) = (most, self.written);
                for (slice, part) in slices.iter_mut().zip(&self.parts) {
                    let left = &part[std::mem::take(&mut written)..];
                    *slice = IoSlice::new(&left[..start(left, room)]);
                    room -= slice.len();
                }
                out.write_vectored(&slices)?
            }
        };
        self.forget(taken);
        Ok(taken)
    }

    fn forget(&mut self, taken: usize) {
        self.written += taken;
        while self.parts.front().is_some_and(|first| self.written >= first.len()) {
            let mut first = self.parts.pop_front().expect("just seen");
            self.written -= first.len();
            let last = self.parts.is_empty() && std::mem::take(&mut self.open);
            // A buffer that is as large as most answers need is kept for the next one.
            if last && first.capacity() <= BUFFER_KEPT_MAX {
                first.clear();
                self.parts.push_back(first);
                self.open = true;
                return;
            }
        }
    }

    pub fn clear(&mut self) {
        *self = Backlog::default();
    }

    /// All that is left.
    pub fn into_bytes(mut self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.parts.drain(..).flatten().collect();
        bytes.drain(..self.written);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes a few bytes at a time, and across parts.
    struct Drops(Vec<u8>, usize);

    impl Write for Drops {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let n = bytes.len().min(self.1);
            self.0.extend_from_slice(&bytes[..n]);
            Ok(n)
        }

        fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
            let all = slices.iter().flat_map(|slice| slice.iter().copied()).take(self.1);
            let before = self.0.len();
            self.0.extend(all);
            Ok(self.0.len() - before)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn everything_comes_out_once_and_in_order_however_little_is_taken() {
        let large = vec![b'L'; 3 * PART_MIN];
        for at_once in [1, 7, PART_MIN - 1, PART_MIN, 2 * PART_MIN + 5, usize::MAX] {
            let mut backlog = Backlog::default();
            let mut expected = Vec::new();
            let mut out = Drops(Vec::new(), at_once);
            for round in 0..3 {
                backlog.tail().extend_from_slice(b"head");
                backlog.push(large.clone());
                backlog.push(b"small".to_vec());
                backlog.tail().extend_from_slice(b"tail");
                expected.extend_from_slice(&[b"head", large.as_slice(), b"smalltail"].concat());
                assert!(!backlog.is_empty());
                // In the first rounds something is left over.
                while !backlog.is_empty() && (round == 2 || out.0.len() + 10 < expected.len()) {
                    backlog.write_to(&mut out, 2 * PART_MIN + 3).unwrap();
                }
                assert_eq!(backlog.len(), expected.len() - out.0.len());
            }
            assert!(out.0 == expected, "{at_once} at once");
            assert!(backlog.parts.iter().map(Vec::capacity).sum::<usize>() <= BUFFER_KEPT_MAX, "no large buffer stays");
        }
    }

    #[test]
    fn a_reader_that_always_leaves_a_little_costs_a_little() {
        let mut backlog = Backlog::default();
        backlog.tail().extend_from_slice(&[b'x'; 1000]);
        for _ in 0..10_000 {
            backlog.tail().extend_from_slice(&[b'x'; 1000]);
            let before = backlog.len();
            while backlog.len() > before - 1000 {
                backlog.write_to(&mut Drops(Vec::new(), 250), usize::MAX).unwrap();
            }
            assert!(!backlog.is_empty());
        }
        assert!(backlog.parts.iter().map(Vec::capacity).sum::<usize>() < 20_000);
    }

    #[test]
    fn what_is_handed_on_is_what_was_not_written() {
        let mut backlog = Backlog::default();
        backlog.tail().extend_from_slice(b"0123456789");
        backlog.write_to(&mut Drops(Vec::new(), 9), 4).unwrap();
        backlog.push(vec![b'x'; PART_MIN]);
        assert_eq!(backlog.into_bytes(), [b"456789".to_vec(), vec![b'x'; PART_MIN]].concat());
    }
}
