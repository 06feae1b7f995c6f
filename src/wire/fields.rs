//! Blocks of lines as heads and trailers have them. Owns where a line ends and what bytes it may have, closing what
//! `httparse` forgives (a bare LF above all); looks at a byte a constant number of times, and says the same however the
//! reads are split.

use crate::api::fault::{Code, Fault};
use crate::limits::HEADERS_MAX;
use memchr::{memchr, memchr_iter, memmem};
use std::sync::LazyLock;

/// What a block ends with. Made once: every head is searched for it.
static EMPTY_LINE: LazyLock<memmem::Finder<'static>> = LazyLock::new(|| memmem::Finder::new(b"\r\n\r\n"));

/// Lines up to an empty one (the fields of a head, or trailers), as far as they have been seen.
pub struct Block {
    pub first: usize,
    line: usize,
    pub searched: usize,
    lines: usize,
}

impl Block {
    pub fn at(first: usize) -> Block {
        Block { first, line: first, searched: first, lines: 0 }
    }

    /// The end of the block, once its empty line is there. `max` counts from the start of `raw`.
    pub fn scan(&mut self, raw: &[u8], max: usize) -> Result<Option<usize>, Fault> {
        if let Some(end) = self.whole(raw, max) {
            return Ok(Some(end));
        }
        let too_large = || Fault::new(Code::HeadersTooLarge, format!("fields take more than {max} bytes"));
        while let Some(end) = line_end(raw, &mut self.searched, max, too_large)? {
            let line = std::mem::replace(&mut self.line, end);
            if &raw[line..end] == b"\r\n" {
                return Ok(Some(end));
            }
            self.lines += 1;
            if self.lines > HEADERS_MAX {
                return Err(Fault::new(Code::HeadersTooLarge, format!("more than {HEADERS_MAX} fields")));
            }
        }
        Ok(None)
    }

    /// The end of a block that is all there and has nothing in it to object to, which is nearly every one: two walks of
    /// wide steps instead of several for each line. Nothing: look at it line by line.
    fn whole(&self, raw: &[u8], max: usize) -> Option<usize> {
        if self.searched != self.first || raw[self.first..].starts_with(b"\r\n") {
            return None;
        }
        let block = &raw[self.first..raw.len().min(max)];
        let end = EMPTY_LINE.find(block)? + EMPTY_LINE.needle().len();
        let block = &block[..end];
        let irregular = block.iter().zip(&block[1..]).fold(is_control(block[0]), |found, (before, byte)| {
            // Without a branch, so that it becomes vector code.
            let bare = (*byte == b'\n') & (*before != b'\r');
            found | bare | (is_control(*byte) & (*byte != b'\n'))
        });
        let lines = memchr_iter(b'\n', block).count() - 1;
        (!irregular && lines <= HEADERS_MAX).then_some(self.first + end)
    }
}

/// The end of the line that is under way, behind its CRLF; nothing when it has not come yet. `searched` is how far the
/// bytes are known to be without a newline. A line must end within the first `max` bytes.
pub fn line_end(
    raw: &[u8],
    searched: &mut usize,
    max: usize,
    too_long: impl FnOnce() -> Fault,
) -> Result<Option<usize>, Fault> {
    let window = &raw[..raw.len().min(max)];
    let newline = memchr(b'\n', &window[*searched..]).map(|at| *searched + at);
    // Before the line end, because these bytes came before it: it makes no difference how many were there at once. A
    // fold has no early exit, and so becomes vector code.
    if window[*searched..newline.unwrap_or(window.len())].iter().fold(false, |found, byte| found | is_control(*byte)) {
        return Err(bad("control byte"));
    }
    match newline {
        Some(at) if window[..at].ends_with(b"\r") => {
            *searched = at + 1;
            Ok(Some(at + 1))
        }
        Some(_) => Err(bad("a line must end with CRLF")),
        None if window.len() == max => Err(too_long()),
        None => {
            *searched = window.len();
            Ok(None)
        }
    }
}

fn is_control(byte: u8) -> bool {
    (byte == 0x7f) | ((byte < 0x20) & (byte != b'\t') & (byte != b'\r'))
}

/// The fields of a whole block. What is left of `httparse`'s leniency here is nothing: its lines are known to end with
/// CRLF, and it refuses bare CRs, spaces before a colon and folded lines by itself.
pub fn parse_fields<'h, 'b>(
    block: &'b [u8],
    room: &'h mut [httparse::Header<'b>; HEADERS_MAX],
) -> Result<&'h [httparse::Header<'b>], Fault> {
    match httparse::parse_headers(block, room) {
        Ok(httparse::Status::Complete((length, fields))) if length == block.len() => Ok(fields),
        Ok(_) => Err(bad("malformed fields")),
        Err(why) => Err(bad(format!("malformed fields: {why}"))),
    }
}

/// Digits only, and no more than a `u64` holds.
pub fn number(digits: &[u8], radix: u64) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |value, digit| {
        let digit = (*digit as char).to_digit(radix as u32)?;
        value.checked_mul(radix)?.checked_add(digit as u64)
    })
}

pub fn bad(message: impl Into<String>) -> Fault {
    Fault::new(Code::InvalidRequest, message)
}
