//! HTTP/1.1 answers from the bytes of a server that was asked (RFC 9112), as they come. Owns where a head and a body end;
//! holds a head that is not whole, and of a body only the read that brought it: how much of one is wanted its taker says.
//!
//! What an answer is, or why it is none, depends on the bytes alone and not on where the reads were split. Whatever could
//! be read in two ways is refused, with the same rules for lines and chunks as in requests.

use crate::limits::{CLIENT_INTERIM_MAX, HEADERS_MAX, UPSTREAM_HEAD_MAX, UPSTREAM_STATUS_LINE_MAX};
use crate::model::fault::{Code, Fault};
pub use crate::wire::answer::Head;
use crate::wire::chunked::Chunks;
use crate::wire::fields::{Block, line_end, number};

/// The request that an answer is for, as far as it decides about the body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Asked {
    #[default]
    Plain,
    /// Whatever its head says, it has no body.
    Head,
    /// A way through a proxy: behind a 2xx the connection is another's.
    Connect,
    /// Another protocol: behind a 101 the connection speaks that.
    Upgrade,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    Head(Head),
    /// Never empty.
    Body(Vec<u8>),
    /// The answer is whole. The connection may carry another request only if it says so. There is none behind a head that
    /// makes it another's connection (`Reader::has_switched`).
    End {
        keep_alive: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Broken {
    Malformed(String),
    TooLarge(String),
    /// The connection was closed in the middle of it.
    CutOff(&'static str),
    /// Bytes that nobody asked for.
    Unasked,
}

impl Broken {
    pub fn message(&self) -> String {
        match self {
            Broken::Malformed(why) => format!("the answer is not HTTP/1.1: {why}"),
            Broken::TooLarge(why) => format!("the answer's head is too large: {why}"),
            Broken::CutOff(what) => format!("the connection was closed in the middle of {what}"),
            Broken::Unasked => "the server said something that it was not asked for".to_string(),
        }
    }
}

impl From<Fault> for Broken {
    fn from(fault: Fault) -> Broken {
        match fault.code {
            Code::HeadersTooLarge | Code::PayloadTooLarge => Broken::TooLarge(fault.message),
            _ => Broken::Malformed(fault.message),
        }
    }
}

fn malformed(why: impl Into<String>) -> Broken {
    Broken::Malformed(why.into())
}

/// Reads the answers of one connection, one request at a time.
#[derive(Default)]
pub struct Reader {
    buf: Vec<u8>,
    state: State,
    asked: Asked,
    keep_alive: bool,
    interim: usize,
}

#[derive(Default)]
enum State {
    /// Nothing was asked.
    #[default]
    Idle,
    StatusLine {
        searched: usize,
    },
    Fields {
        line: StatusLine,
        block: Block,
    },
    Length {
        left: u64,
    },
    Chunked(Chunks),
    /// All that was sent in chunks has come.
    Ended,
    UntilClose,
    Switched,
    Broken(Broken),
}

#[derive(Clone, Copy)]
struct StatusLine {
    status: u16,
    http10: bool,
}

/// What the fields of a final head say of its body.
enum Body {
    None,
    Length(u64),
    Chunked,
    UntilClose,
}

impl Reader {
    /// A request has been sent; what is fed from here on is its answer. To ask before the last answer has ended is a bug.
    pub fn ask(&mut self, asked: Asked) {
        assert!(matches!(self.state, State::Idle), "one request at a time");
        (self.asked, self.interim, self.keep_alive) = (asked, 0, true);
        self.state = State::StatusLine { searched: 0 };
    }

    /// Nothing is being waited for, so that the connection may be used again.
    pub fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    pub fn feed(&mut self, bytes: &[u8]) {
        match self.state {
            State::Broken(_) => {}
            State::Idle if bytes.is_empty() => {}
            State::Idle => self.state = State::Broken(Broken::Unasked),
            State::StatusLine { .. }
            | State::Fields { .. }
            | State::Length { .. }
            | State::Chunked(_)
            | State::Ended
            | State::UntilClose
            | State::Switched => self.buf.extend_from_slice(bytes),
        }
    }

    /// The next part, as far as the bytes reach; nothing: more are needed. What is broken stays so.
    pub fn next_part(&mut self) -> Result<Option<Part>, Broken> {
        self.advance().inspect_err(|broken| {
            self.buf = Vec::new();
            self.state = State::Broken(broken.clone());
        })
    }

    /// The server has closed the connection, and all it said was fed and taken. True: that ended an answer.
    pub fn closed(&mut self) -> Result<bool, Broken> {
        let cut_off = |what| Err(Broken::CutOff(what));
        match &self.state {
            State::Idle | State::Switched => Ok(false),
            State::UntilClose => {
                self.state = State::Idle;
                Ok(true)
            }
            State::StatusLine { .. } if self.buf.is_empty() && self.interim == 0 => {
                cut_off("nothing: there is no answer")
            }
            State::StatusLine { .. } | State::Fields { .. } => cut_off("its head"),
            State::Length { .. } | State::Chunked(_) | State::Ended => cut_off("its body"),
            State::Broken(broken) => Err(broken.clone()),
        }
    }

    /// What came behind the head of an answer that switched.
    pub fn into_rest(self) -> Vec<u8> {
        self.buf
    }

    /// The memory it takes.
    pub fn held(&self) -> usize {
        self.buf.capacity()
    }

    fn advance(&mut self) -> Result<Option<Part>, Broken> {
        loop {
            match &mut self.state {
                State::Idle | State::Switched => return Ok(None),
                State::Broken(broken) => return Err(broken.clone()),
                State::StatusLine { searched } => {
                    let too_long = || {
                        let why = format!("a status line of more than {UPSTREAM_STATUS_LINE_MAX} bytes");
                        Fault::new(Code::HeadersTooLarge, why)
                    };
                    let end = line_end(&self.buf, searched, UPSTREAM_STATUS_LINE_MAX, too_long)?;
                    let Some(end) = end else { return Ok(None) };
                    let line = StatusLine::read(&self.buf[..end])?;
                    self.state = State::Fields { line, block: Block::at(end) };
                }
                State::Fields { .. } => match self.read_fields()? {
                    Some(head) => return Ok(Some(Part::Head(head))),
                    None if matches!(self.state, State::Fields { .. }) => return Ok(None),
                    // An interim answer: what counts comes behind it.
                    None => {}
                },
                State::Length { left: 0 } | State::Ended => return self.end().map(Some),
                State::Length { left } => {
                    let take = usize::try_from(*left).unwrap_or(usize::MAX).min(self.buf.len());
                    *left -= take as u64;
                    return Ok(self.take_body(take));
                }
                State::UntilClose => return Ok(self.take_body(self.buf.len())),
                State::Chunked(chunks) => {
                    let decoded = chunks.decode(&mut self.buf);
                    let (body, raw) = chunks.take();
                    // What was decoded is handed out before it is said that the rest is no good: so it does not matter how
                    // much of it came at once.
                    match decoded {
                        Ok(false) => {}
                        Ok(true) => self.state = State::Ended,
                        Err(fault) => self.state = State::Broken(fault.into()),
                    }
                    let behind = self.buf.split_off(raw);
                    let mut piece = std::mem::replace(&mut self.buf, behind);
                    piece.truncate(body);
                    if !piece.is_empty() {
                        return Ok(Some(Part::Body(piece)));
                    }
                    if matches!(self.state, State::Chunked(_)) {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// The first `length` bytes; the buffer itself, where that is all of it.
    fn take_body(&mut self, length: usize) -> Option<Part> {
        match length {
            0 => None,
            all if all == self.buf.len() => Some(Part::Body(std::mem::take(&mut self.buf))),
            some => Some(Part::Body(self.buf.drain(..some).collect())),
        }
    }

    fn end(&mut self) -> Result<Part, Broken> {
        if self.asked == Asked::Connect || self.asked == Asked::Upgrade {
            // The answer was a no; whoever asked for such a thing has no other request for this connection.
            self.keep_alive = false;
        }
        let unasked = !std::mem::take(&mut self.buf).is_empty();
        self.state = State::Idle;
        // What comes behind an answer is told with the next feed, or here; either way this answer is whole.
        if unasked {
            self.state = State::Broken(Broken::Unasked);
        }
        Ok(Part::End { keep_alive: self.keep_alive && !unasked })
    }

    /// The head, once it is whole and a final one.
    fn read_fields(&mut self) -> Result<Option<Head>, Broken> {
        let State::Fields { line, block } = &mut self.state else { return Ok(None) };
        let line = *line;
        let mut room = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let Some((count, end)) = block.fields(&self.buf, UPSTREAM_HEAD_MAX, &mut room)? else { return Ok(None) };
        let fields = &room[..count];
        let (keep_alive, length, coding) = judge(fields, line.http10)?;
        if line.status < 200 && !(line.status == 101 && self.asked == Asked::Upgrade) {
            if line.status == 101 {
                return Err(malformed("it wants to change the protocol (101), which nobody asked it to"));
            }
            self.interim += 1;
            if self.interim > CLIENT_INTERIM_MAX {
                return Err(malformed("too many interim (1xx) answers, and none that counts"));
            }
            self.buf.drain(..end);
            self.state = State::StatusLine { searched: 0 };
            return Ok(None);
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let headers = fields.iter().map(|field| (field.name.to_string(), text(field.value))).collect();
        let switches = match self.asked {
            Asked::Connect => (200..300).contains(&line.status),
            Asked::Upgrade => line.status == 101,
            Asked::Plain | Asked::Head => false,
        };
        let body = body_of(self.asked, line, length, coding)?;
        self.buf.drain(..end);
        self.keep_alive = keep_alive && !matches!(body, Body::UntilClose);
        self.state = match body {
            _ if switches => State::Switched,
            Body::None => State::Length { left: 0 },
            Body::Length(left) => State::Length { left },
            Body::Chunked => State::Chunked(Chunks::without_end()),
            Body::UntilClose => State::UntilClose,
        };
        Ok(Some(Head { status: line.status, headers }))
    }

    /// The head that was last read has made this another protocol's connection.
    pub fn has_switched(&self) -> bool {
        matches!(self.state, State::Switched)
    }
}

impl StatusLine {
    fn read(line: &[u8]) -> Result<StatusLine, Broken> {
        let mut parsed = httparse::Response::new(&mut []);
        // A line without its fields is a partial head: whatever is an error now is one of this line.
        match (parsed.parse(line), parsed.version, parsed.code) {
            (Ok(_), Some(minor), Some(status @ 100..600)) => Ok(StatusLine { status, http10: minor == 0 }),
            (Ok(_), Some(_), Some(status)) => Err(malformed(format!("there is no status {status}"))),
            _ => Err(malformed("malformed status line")),
        }
    }
}

type Judged<'a> = (bool, Option<&'a [u8]>, Option<&'a [u8]>);

/// Whether the connection stays, and what is said of the body's length and coding.
fn judge<'a>(fields: &[httparse::Header<'a>], http10: bool) -> Result<Judged<'a>, Broken> {
    let (mut length, mut coding) = (None, None);
    let (mut close, mut keep_alive) = (false, false);
    for field in fields {
        let is = |name: &str| field.name.eq_ignore_ascii_case(name);
        let once = |seen: &mut Option<&'a [u8]>| match seen.replace(field.value) {
            None => Ok(()),
            Some(_) => Err(malformed(format!("more than one {}", field.name))),
        };
        if is("content-length") {
            once(&mut length)?;
        } else if is("transfer-encoding") {
            once(&mut coding)?;
        } else if is("connection") {
            for token in field.value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                close |= token.eq_ignore_ascii_case(b"close");
                keep_alive |= token.eq_ignore_ascii_case(b"keep-alive");
            }
        }
    }
    Ok((!close && (keep_alive || !http10), length, coding))
}

fn body_of(asked: Asked, line: StatusLine, length: Option<&[u8]>, coding: Option<&[u8]>) -> Result<Body, Broken> {
    if asked == Asked::Head || line.status < 200 || matches!(line.status, 204 | 304) {
        return Ok(Body::None);
    }
    match (length, coding) {
        (None, None) => Ok(Body::UntilClose),
        (Some(_), Some(_)) => Err(malformed("both Content-Length and Transfer-Encoding")),
        (None, Some(_)) if line.http10 => Err(malformed("Transfer-Encoding in HTTP/1.0")),
        (None, Some(coding)) if coding.eq_ignore_ascii_case(b"chunked") => Ok(Body::Chunked),
        (None, Some(_)) => Err(malformed("a Transfer-Encoding that is not chunked")),
        (Some(digits), None) => {
            number(digits, 10).map(Body::Length).ok_or_else(|| malformed("Content-Length is not a number"))
        }
    }
}

#[cfg(test)]
mod tests;
