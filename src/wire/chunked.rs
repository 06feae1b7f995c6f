//! Chunked bodies. Owns how far one is decoded, in the buffer it was read into; keeps no raw bytes but those of a line
//! that has not ended, and nothing of extensions and trailers.

use crate::limits::{BODY_MAX, CHUNK_LINE_MAX, HEADERS_MAX, TRAILERS_MAX};
use crate::model::fault::{Code, Fault};
use crate::wire::fields::{Block, bad, line_end, number, parse_fields};
use memchr::memchr;
use serde::{Deserialize, Serialize};

/// A chunked body, decoded in place: behind the head stands what is decoded, behind that what is still raw.
#[derive(Clone, Serialize, Deserialize)]
pub struct Chunks {
    pub body_end: usize,
    /// Where the raw bytes start; once all is decoded, where the next request does.
    pub at: usize,
    /// What the body may still grow by.
    room: usize,
    part: Part,
}

#[derive(Clone, Serialize, Deserialize)]
enum Part {
    Size { searched: usize },
    Data { left: usize },
    DataEnd,
    Trailers(Block),
}

impl Chunks {
    pub fn behind(head_end: usize) -> Chunks {
        Chunks { body_end: head_end, at: head_end, room: BODY_MAX, part: Part::Size { searched: 0 } }
    }

    /// Of a body that is taken out as it comes (`take`), and so may be of any length.
    pub fn without_end() -> Chunks {
        Chunks { body_end: 0, at: 0, room: usize::MAX, part: Part::Size { searched: 0 } }
    }

    /// How much is decoded, at the start of the buffer, and where the raw bytes start; both are to be taken out of it.
    pub fn take(&mut self) -> (usize, usize) {
        (std::mem::take(&mut self.body_end), std::mem::take(&mut self.at))
    }

    /// True once the last chunk and its trailers are read.
    pub fn decode(&mut self, raw: &mut [u8]) -> Result<bool, Fault> {
        loop {
            let rest = &raw[self.at..];
            match &mut self.part {
                Part::Size { searched } => {
                    let too_long = || bad("chunk size line too long");
                    let Some(end) = line_end(rest, searched, CHUNK_LINE_MAX, too_long)? else { return Ok(false) };
                    let size = chunk_size(&rest[..end - 2]).ok_or_else(|| bad("malformed chunk size"))?;
                    if size > self.room as u64 {
                        return Err(body_too_large());
                    }
                    if self.room != usize::MAX {
                        self.room -= size as usize;
                    }
                    self.at += end;
                    self.part = match size as usize {
                        0 => Part::Trailers(Block::at(0)),
                        left => Part::Data { left },
                    };
                }
                Part::Data { left } => {
                    let length = rest.len().min(*left);
                    raw.copy_within(self.at..self.at + length, self.body_end);
                    self.at += length;
                    self.body_end += length;
                    *left -= length;
                    if *left > 0 {
                        return Ok(false);
                    }
                    self.part = Part::DataEnd;
                }
                Part::DataEnd => match rest {
                    [] | [b'\r'] => return Ok(false),
                    [b'\r', b'\n', ..] => {
                        self.at += 2;
                        self.part = Part::Size { searched: 0 };
                    }
                    _ => return Err(bad("a chunk is longer than its size")),
                },
                Part::Trailers(block) => {
                    let Some(end) = block.scan(rest, TRAILERS_MAX)? else { return Ok(false) };
                    parse_fields(&rest[..end], &mut [httparse::EMPTY_HEADER; HEADERS_MAX])?;
                    self.at += end;
                    return Ok(true);
                }
            }
        }
    }

    /// Drops what has been decoded or skipped, so that raw bytes never pile up.
    pub fn close_gap(&mut self, buf: &mut Vec<u8>, start: usize) {
        buf.drain(start + self.body_end..start + self.at);
        self.at = self.body_end;
    }
}

/// Of a chunk's first line, without its line end. Extensions mean nothing here; spaces before them are refused.
fn chunk_size(line: &[u8]) -> Option<u64> {
    if memchr(b'\r', line).is_some() {
        return None;
    }
    number(&line[..memchr(b';', line).unwrap_or(line.len())], 16)
}

pub fn body_too_large() -> Fault {
    Fault::new(Code::PayloadTooLarge, format!("the body is longer than {BODY_MAX} bytes"))
}
