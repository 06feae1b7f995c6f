//! An HTTP/1.1 answer as a client reads it from a blocking stream: its head, how its body is framed, and the body
//! without that framing. Reads bounded heads, chunk lines and trailers; how much of a body is wanted the reader says.

use crate::limits::{CLIENT_HEAD_MAX, CLIENT_INTERIM_MAX, HEADERS_MAX, TRAILERS_MAX};
use std::io::{self, BufRead, BufReader, Read};

/// An answer's head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    pub status: u16,
    pub headers: Vec<(String, String)>,
}

impl Head {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// Every value of a header that may come more than once.
    pub fn each<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.headers.iter().filter(move |(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

fn bad(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

/// The final head; interim ones (100 Continue) are skipped, but not without end.
pub fn read_head(reader: &mut impl BufRead) -> io::Result<Head> {
    for _ in 0..=CLIENT_INTERIM_MAX {
        let head = read_one_head(reader)?;
        if head.status >= 200 {
            return Ok(head);
        }
    }
    Err(bad("it has more interim answers than anybody needs"))
}

fn read_one_head(reader: &mut impl BufRead) -> io::Result<Head> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") && !bytes.ends_with(b"\n\n") {
        if read_line(reader, &mut bytes, CLIENT_HEAD_MAX)? == 0 {
            return Err(bad(if bytes.is_empty() { "the connection was closed" } else { "its head is cut off" }));
        }
    }
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Response::new(&mut headers);
    match parsed.parse(&bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return Err(bad("its head is cut off")),
        Err(error) => return Err(bad(format!("it is not HTTP/1.1 ({error})"))),
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Head {
        status: parsed.code.ok_or_else(|| bad("it has no status"))?,
        headers: parsed.headers.iter().map(|header| (header.name.to_string(), text(header.value))).collect(),
    })
}

/// Appends one line with its end to `line`, which may not grow past `max`.
pub fn read_line(reader: &mut impl BufRead, line: &mut Vec<u8>, max: usize) -> io::Result<usize> {
    let room = (max - line.len().min(max)) as u64;
    let read = reader.take(room + 1).read_until(b'\n', line)?;
    if line.len() > max {
        return Err(bad(format!("a line or head is longer than {max} bytes")));
    }
    Ok(read)
}

/// How much of a body is still to come.
#[derive(Debug, PartialEq, Eq)]
enum Framing {
    Length(u64),
    Chunk { left: u64 },
    ChunkStart,
    UntilClose,
    Done,
}

impl Framing {
    fn of(head: &Head, method: &str) -> io::Result<Framing> {
        if method == "HEAD" || matches!(head.status, 204 | 304) {
            return Ok(Framing::Done);
        }
        if head.header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
            return Ok(Framing::ChunkStart);
        }
        match head.header("content-length") {
            None => Ok(Framing::UntilClose),
            Some(length) => {
                length.trim().parse().map(Framing::Length).map_err(|_| bad("its Content-Length is no number"))
            }
        }
    }
}

/// The body of an answer, without its framing.
pub struct Body<R> {
    reader: BufReader<R>,
    framing: Framing,
}

impl<R: Read> Body<R> {
    /// `reader` stands behind the head of an answer to `method`.
    pub fn of(head: &Head, method: &str, reader: BufReader<R>) -> io::Result<Body<R>> {
        Ok(Body { reader, framing: Framing::of(head, method)? })
    }

    /// What the body came from, if all of it has been read: the next answer can come from there.
    pub fn into_reader(self) -> Option<BufReader<R>> {
        matches!(self.framing, Framing::Done | Framing::Length(0)).then_some(self.reader)
    }

    fn read_chunk_start(&mut self) -> io::Result<Framing> {
        let mut line = Vec::new();
        read_line(&mut self.reader, &mut line, CLIENT_HEAD_MAX)?;
        let text = String::from_utf8_lossy(&line);
        let size = text.split(';').next().unwrap_or_default().trim();
        let left = u64::from_str_radix(size, 16).map_err(|_| bad("a chunk has no size"))?;
        if left > 0 {
            return Ok(Framing::Chunk { left });
        }
        // Up to the empty line.
        let mut trailers = Vec::new();
        loop {
            let start = trailers.len();
            let read = read_line(&mut self.reader, &mut trailers, TRAILERS_MAX)?;
            if read == 0 || trailers[start..].trim_ascii().is_empty() {
                return Ok(Framing::Done);
            }
        }
    }

    fn read_at_most(&mut self, left: u64, buf: &mut [u8]) -> io::Result<usize> {
        let room = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        match self.reader.read(&mut buf[..room])? {
            0 if room > 0 => Err(bad("the connection was closed in the middle of it")),
            read => Ok(read),
        }
    }

    fn end_of_chunk(&mut self) -> io::Result<()> {
        let mut end = [0; 2];
        self.reader.read_exact(&mut end)?;
        if &end != b"\r\n" {
            return Err(bad("a chunk does not end where it says"));
        }
        Ok(())
    }
}

impl<R: Read> Read for Body<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.framing {
                Framing::Done | Framing::Length(0) => return Ok(0),
                Framing::UntilClose => return self.reader.read(buf),
                Framing::Length(left) => {
                    let read = self.read_at_most(left, buf)?;
                    self.framing = Framing::Length(left - read as u64);
                    return Ok(read);
                }
                Framing::ChunkStart => self.framing = self.read_chunk_start()?,
                Framing::Chunk { left } => {
                    let read = self.read_at_most(left, buf)?;
                    self.framing = Framing::Chunk { left: left - read as u64 };
                    if left == read as u64 {
                        self.end_of_chunk()?;
                        self.framing = Framing::ChunkStart;
                    }
                    return Ok(read);
                }
            }
        }
    }
}
