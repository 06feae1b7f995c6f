//! Bytes on their way out of the daemon, to a client or to a server's stdin. Small ones are gathered, large ones stay the
//! buffers they came in, and what several clients get is not copied at all: what is written was copied at most once. Keeps
//! the order, and nothing of what has gone out.

use crate::limits::{BUFFER_KEPT_MAX, PART_MIN, PARTS_PER_WRITE, SHARED_PARTS_PER_WRITE};
use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};
use std::ops::Deref;
use std::sync::Arc;

/// Bytes that several answers have in common, from some byte on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shared {
    pub bytes: Arc<[u8]>,
    pub from: usize,
}

impl Deref for Shared {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.from..]
    }
}

enum Part {
    Own(Vec<u8>),
    Shared(Shared),
}

impl Deref for Part {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Part::Own(bytes) => bytes,
            Part::Shared(bytes) => bytes,
        }
    }
}

#[derive(Default)]
pub struct Backlog {
    parts: VecDeque<Part>,
    /// How much of the first part has been written.
    written: usize,
    /// The last part takes more.
    open: bool,
}

impl Backlog {
    pub fn len(&self) -> usize {
        self.parts.iter().map(|part| part.len()).sum::<usize>() - self.written
    }

    /// The memory behind it: what has been written of the first part is let go with its last byte.
    pub fn held(&self) -> usize {
        self.len() + self.written
    }

    /// The same without what is there for others too, of which only the place counts.
    pub fn own_len(&self) -> usize {
        // As nearly always, when this is asked.
        if self.is_empty() {
            return 0;
        }
        let own = |part: &Part| match part {
            Part::Own(bytes) => bytes.len(),
            Part::Shared(_) => size_of::<Part>(),
        };
        let written = match self.parts.front() {
            Some(Part::Own(_)) => self.written,
            Some(Part::Shared(_)) | None => 0,
        };
        self.parts.iter().map(own).sum::<usize>() - written
    }

    /// What is still to be written, in one piece.
    pub fn unwritten(&self) -> Vec<u8> {
        let all: Vec<u8> = self.parts.iter().flat_map(|part| part.iter()).copied().collect();
        all[self.written..].to_vec()
    }

    pub fn is_empty(&self) -> bool {
        // Only the one that is open can be.
        self.parts.len() < 2 && self.parts.front().is_none_or(|part| part.is_empty())
    }

    /// Where small things are written to.
    pub fn tail(&mut self) -> &mut Vec<u8> {
        // What has been written of a part is let go with its last byte. Nobody may put that off by never taking it.
        self.open &= self.parts.len() > 1 || self.written == 0;
        if !std::mem::replace(&mut self.open, true) {
            self.parts.push_back(Part::Own(Vec::new()));
        }
        match self.parts.back_mut() {
            Some(Part::Own(bytes)) => bytes,
            Some(Part::Shared(_)) | None => unreachable!("one is open, and only an own one is"),
        }
    }

    pub fn push(&mut self, bytes: Vec<u8>) {
        if bytes.len() < PART_MIN {
            return self.tail().extend_from_slice(&bytes);
        }
        self.parts.push_back(Part::Own(bytes));
        self.open = false;
    }

    /// However small it is: there may be many of them, for many clients.
    pub fn push_shared(&mut self, bytes: Shared) {
        if !bytes.is_empty() {
            self.parts.push_back(Part::Shared(bytes));
            self.open = false;
        }
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
            2..=PARTS_PER_WRITE => self.write_parts::<PARTS_PER_WRITE>(out, most)?,
            _ => self.write_parts::<SHARED_PARTS_PER_WRITE>(out, most)?,
        };
        self.forget(taken);
        Ok(taken)
    }

    fn write_parts<const N: usize>(&self, out: &mut impl Write, most: usize) -> io::Result<usize> {
        let mut slices = [IoSlice::new(&[]); N];
        let (mut room, mut written) = (most, self.written);
        for (slice, part) in slices.iter_mut().zip(&self.parts) {
            let left = &part[std::mem::take(&mut written)..];
            *slice = IoSlice::new(&left[..left.len().min(room)]);
            room -= slice.len();
        }
        out.write_vectored(&slices)
    }

    fn forget(&mut self, taken: usize) {
        self.written += taken;
        while self.parts.front().is_some_and(|first| self.written >= first.len()) {
            let first = self.parts.pop_front().expect("just seen");
            self.written -= first.len();
            let last = self.parts.is_empty() && std::mem::take(&mut self.open);
            // A buffer that is as large as most answers need is kept for the next one.
            if let Part::Own(mut first) = first
                && last
                && first.capacity() <= BUFFER_KEPT_MAX
            {
                first.clear();
                self.parts.push_back(Part::Own(first));
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
        let mut bytes = Vec::with_capacity(self.len() + self.written);
        self.parts.drain(..).for_each(|part| bytes.extend_from_slice(&part));
        bytes.drain(..self.written);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Backlog {
        fn capacity(&self) -> usize {
            let own = |part: &Part| match part {
                Part::Own(bytes) => bytes.capacity(),
                Part::Shared(_) => 0,
            };
            self.parts.iter().map(own).sum()
        }
    }

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
            assert!(backlog.capacity() <= BUFFER_KEPT_MAX, "no large buffer stays");
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
        assert!(backlog.capacity() < 20_000);
    }

    #[test]
    fn what_several_clients_get_is_there_once_and_comes_out_in_its_place() {
        let bytes: Arc<[u8]> = vec![b's'; 1000].into();
        for at_once in [1, 999, 5000, usize::MAX] {
            let mut backlog = Backlog::default();
            backlog.tail().extend_from_slice(b"head");
            for from in 0..200 {
                backlog.push_shared(Shared { bytes: Arc::clone(&bytes), from });
            }
            backlog.push_shared(Shared { bytes: Arc::clone(&bytes), from: 1000 });
            backlog.tail().extend_from_slice(b"tail");
            assert!(Arc::strong_count(&bytes) == 201 && backlog.capacity() < 100, "nothing is copied");
            let (mut out, left) = (Drops(Vec::new(), at_once), backlog.len());
            while !backlog.is_empty() {
                backlog.write_to(&mut out, usize::MAX).unwrap();
            }
            assert_eq!((out.0.len(), Arc::strong_count(&bytes)), (left, 1));
            assert!(out.0.starts_with(b"headsss") && out.0.ends_with(b"sstail"));
        }
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
