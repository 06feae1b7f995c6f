//! Blocks of lines as heads and trailers have them. Owns where a line ends and what bytes it may have, closing what
//! `httparse` forgives (a bare LF above all); looks at a byte a constant number of times, and says the same however the
//! reads are split.

use crate::limits::HEADERS_MAX;
use crate::model::fault::{Code, Fault};
use memchr::{memchr, memmem};
use serde::{Deserialize, Serialize};
use std::sync::LazyLock;

/// What a block ends with. Made once: every head is searched for it. A constant, but for the tables that a search needs.
static EMPTY_LINE: LazyLock<memmem::Finder<'static>> = LazyLock::new(|| memmem::Finder::new(b"\r\n\r\n"));

pub type Room<'b> = [httparse::Header<'b>; HEADERS_MAX];

/// Lines up to an empty one (the fields of a head, or trailers), as far as they have been seen.
#[derive(Clone, Serialize, Deserialize)]
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

    /// Reads the fields of the block into `room`, once its empty line is there: how many, and where the block ends.
    /// `max` counts from the start of `raw`.
    pub fn fields<'b>(
        &mut self,
        raw: &'b [u8],
        max: usize,
        room: &mut Room<'b>,
    ) -> Result<Option<(usize, usize)>, Fault> {
        // Nearly every block is all there and has nothing in it to object to: it is not looked at line by line.
        if let Some(end) = self.whole(raw, max)
            && let Ok(count) = parse_fields(&raw[self.first..end], room)
            && are_lines(raw, &room[1..count.max(1)])
        {
            return Ok(Some((count, end)));
        }
        let Some(end) = self.scan(raw, max)? else { return Ok(None) };
        Ok(Some((parse_fields(&raw[self.first..end], room)?, end)))
    }

    /// The end of the block, once its empty line is there.
    pub fn scan(&mut self, raw: &[u8], max: usize) -> Result<Option<usize>, Fault> {
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

    /// The end of a block that came at once.
    fn whole(&self, raw: &[u8], max: usize) -> Option<usize> {
        let block = &raw[self.first..raw.len().min(max)];
        if self.searched != self.first || block.starts_with(b"\r\n") {
            return None;
        }
        Some(self.first + EMPTY_LINE.find(block)? + EMPTY_LINE.needle().len())
    }
}

/// Each field is behind a CRLF: what `httparse` found to be a line is one.
fn are_lines(raw: &[u8], fields: &[httparse::Header<'_>]) -> bool {
    let start = |field: &httparse::Header<'_>| field.name.as_ptr() as usize - raw.as_ptr() as usize;
    fields.iter().all(|field| raw[..start(field)].ends_with(b"\r\n"))
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

/// The number of fields of a whole block, which go to `room`. What is left of `httparse`'s leniency where lines are known
/// to end with CRLF is nothing: it refuses bare CRs, control bytes, spaces before a colon and folded lines by itself.
pub fn parse_fields<'b>(block: &'b [u8], room: &mut Room<'b>) -> Result<usize, Fault> {
    match httparse::parse_headers(block, room) {
        Ok(httparse::Status::Complete((length, fields))) if length == block.len() => Ok(fields.len()),
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
