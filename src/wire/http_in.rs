//! HTTP/1.1 requests from a client's bytes (RFC 9112). Owns what was read and not yet answered; never holds more than one
//! request and the read that ended it, and touches each byte a constant number of times however the reads are split.
//!
//! What a request is, or why it is refused, depends on the bytes alone, not on where the reads were split. Whatever two
//! parsers could read in two ways is refused: `httparse` reads the fields, and what it forgives is checked here first.

use crate::limits::{BODY_MAX, BUFFER_KEPT_MAX, EMPTY_LINES_MAX, HEAD_MAX, HEADERS_MAX, REQUEST_LINE_MAX, TARGET_MAX};
use crate::model::fault::{Code, Fault};
use crate::wire::chunked::{Chunks, body_too_large};
pub use crate::wire::common_fields::{Common, is_media};
use crate::wire::fields::{Block, bad, line_end, number};
use crate::wire::known_head::KnownHead;
use crate::wire::target::{self, Part, unescape};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::ops::Range;

/// The first byte of a TLS connection.
const TLS_HANDSHAKE: u8 = 0x16;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Method {
    Get,
    Head,
    Post,
    Put,
    Patch,
    Delete,
    Options,
    #[default]
    Other,
}

impl Method {
    /// As it stands in a request; of `Other` nobody knows.
    pub fn name(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Head => "HEAD",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Patch => "PATCH",
            Method::Delete => "DELETE",
            Method::Options => "OPTIONS",
            Method::Other => "",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    NeedMore,
    /// The client waits for `100 Continue` before it sends the body; said once.
    Continue,
    /// `Parser::request` has it, until `Parser::finish`.
    Request,
    /// Answer this and close: what follows on the connection means nothing any more.
    Refuse(Fault),
}

/// What the parser is waiting for, which is what a timeout depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RequestPhase {
    /// No byte of a next request is there.
    Idle,
    Head,
    Body,
    /// Nothing: a request (or a refusal) waits for its answer.
    Complete,
}

/// One whole request, borrowed from its parser.
pub struct Request<'a> {
    pub method: Method,
    /// Decoded. Every `/` in it was a `/` on the wire, so it may be split there.
    pub path: Cow<'a, str>,
    /// As it was sent; `query_pairs` decodes it.
    pub query: &'a str,
    pub body: &'a [u8],
    pub keep_alive: bool,
    pub http10: bool,
    host: &'a str,
    head: &'a [u8],
    fields: &'a [Field],
    /// Where the first of each stands.
    common: &'a [Option<Span>; Common::COUNT],
}

impl<'a> Request<'a> {
    /// The first value of this field, without the spaces around it.
    pub fn common(&self, field: Common) -> Option<&'a [u8]> {
        Some(self.common[field as usize]?.of(self.head))
    }

    /// The first value of this name, without the spaces around it.
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        let head = self.head;
        Some(self.fields.iter().find(|field| field.is(head, name))?.value.of(head))
    }

    /// All whose name starts with `prefix`: the rest of the name in lower case, and the value.
    pub fn headers_of(&self, prefix: &'static str) -> impl Iterator<Item = (String, &'a [u8])> + use<'a> {
        let (head, fields) = (self.head, self.fields);
        fields.iter().filter_map(move |field| {
            let (start, rest) = field.name.of(head).split_at_checked(prefix.len())?;
            let named = start.eq_ignore_ascii_case(prefix.as_bytes());
            named.then(|| (String::from_utf8_lossy(rest).to_ascii_lowercase(), field.value.of(head)))
        })
    }

    /// All of them, in the order they came.
    pub fn headers(&self) -> impl Iterator<Item = (&'a str, &'a [u8])> + use<'a> {
        let head = self.head;
        self.fields
            .iter()
            .filter_map(move |field| Some((std::str::from_utf8(field.name.of(head)).ok()?, field.value.of(head))))
    }

    pub fn query_pairs(&self) -> impl Iterator<Item = (Cow<'a, str>, Cow<'a, str>)> + use<'a> {
        let plain = |text| unescape(text, Part::Query).expect("a query is checked with its head");
        self.query.split('&').filter(|pair| !pair.is_empty()).map(move |pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (plain(name), plain(value))
        })
    }

    /// As a proxy has passed it on that is believed: under the host that its client has named.
    pub fn forwarded(mut self) -> Request<'a> {
        let host = self.header("x-forwarded-host").filter(|host| target::is_host(host));
        if let Some(host) = host.and_then(|host| std::str::from_utf8(host).ok()) {
            self.host = host;
        }
        self
    }

    /// The authority of an absolute target, else `Host`; empty only from HTTP/1.0.
    pub fn host(&self) -> &'a str {
        self.host
    }
}

/// The parser of one connection. Offsets count from the first byte of the current request.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Parser {
    buf: Vec<u8>,
    /// Where the current request starts in `buf`.
    start: usize,
    state: State,
    head: Head,
    fields: Vec<Field>,
    common: [Option<Span>; Common::COUNT],
    /// What all of these were found in, if they can be true of the next request too.
    known: KnownHead,
    /// Of the request that was refused, if it was read so far.
    refused_path: String,
    refused_credentials: bool,
}

#[derive(Clone, Serialize, Deserialize)]
enum State {
    RequestLine { searched: usize, empty_lines: usize },
    Fields(Block),
    Length { end: usize },
    Chunked(Chunks),
    Complete { next: usize },
    Refused(Fault),
}

impl Default for State {
    fn default() -> State {
        State::RequestLine { searched: 0, empty_lines: 0 }
    }
}

/// What is known of the current request beside its fields.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Head {
    method: Method,
    http10: bool,
    keep_alive: bool,
    awaits_continue: bool,
    path: Span,
    query: Span,
    host: Option<Span>,
    body: Range<usize>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Field {
    name: Span,
    value: Span,
}

impl Field {
    fn is(&self, head: &[u8], name: &str) -> bool {
        // By length first: most fields are not the one.
        self.name.len() == name.len() && self.name.of(head).eq_ignore_ascii_case(name.as_bytes())
    }
}

/// A part of a head, which is never longer than a `u16` can count.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
struct Span {
    start: u16,
    end: u16,
}

impl Span {
    fn new(range: Range<usize>) -> Span {
        debug_assert!(range.end <= HEAD_MAX);
        Span { start: range.start as u16, end: range.end as u16 }
    }

    /// Where `part`, which was cut out of `whole`, stands in it.
    fn within(whole: &[u8], part: &[u8]) -> Span {
        let start = part.as_ptr() as usize - whole.as_ptr() as usize;
        Span::new(start..start + part.len())
    }

    fn len(self) -> usize {
        (self.end - self.start) as usize
    }

    fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    fn of(self, head: &[u8]) -> &[u8] {
        &head[self.range()]
    }

    fn text(self, head: &[u8]) -> &str {
        std::str::from_utf8(self.of(head)).expect("targets and hosts are checked to be ASCII")
    }
}

impl Parser {
    pub fn new() -> Parser {
        Parser::default()
    }

    pub fn feed(&mut self, bytes: &[u8]) {
        if matches!(self.state, State::Refused(_)) {
            return;
        }
        if self.start > 0 {
            self.buf.drain(..self.start);
            self.start = 0;
        }
        self.buf.extend_from_slice(bytes);
    }

    /// Goes as far as the bytes reach. Call it after `feed`, and after `finish` for the next pipelined request.
    pub fn step(&mut self) -> Step {
        self.advance().unwrap_or_else(|fault| {
            self.refused_path = self.path_so_far();
            self.refused_credentials = fault.code == Code::HeadersTooLarge && self.ends_in_credentials();
            self.head.method = if self.is_for_head() { Method::Head } else { Method::default() };
            (self.buf, self.start) = (Vec::new(), 0);
            self.state = State::Refused(fault.clone());
            Step::Refuse(fault)
        })
    }

    /// Was or will this be a HEAD? Its answer has no body, also if it is refused before it is understood.
    pub fn is_for_head(&self) -> bool {
        match self.state {
            State::Refused(_) => self.head.method == Method::Head,
            State::RequestLine { .. }
            | State::Fields(_)
            | State::Length { .. }
            | State::Chunked(_)
            | State::Complete { .. } => self.buf[self.start..].starts_with(b"HEAD "),
        }
    }

    fn path_so_far(&self) -> String {
        match self.state {
            State::Fields(_) | State::Length { .. } | State::Chunked(_) | State::Complete { .. } => {
                self.head.path.text(&self.buf[self.start..]).to_owned()
            }
            State::RequestLine { .. } => String::new(),
            State::Refused(_) => self.refused_path.clone(),
        }
    }

    /// The field that has come last is the one that says who asks.
    fn ends_in_credentials(&self) -> bool {
        const NAME: &[u8] = b"authorization:";
        // No more of it than is always there, however the reads were split.
        let raw = &self.buf[self.start..];
        let raw = &raw[..raw.len().min(HEAD_MAX)];
        let last = memchr::memrchr(b'\n', raw.trim_ascii_end()).map_or(0, |end| end + 1);
        raw.get(last..last + NAME.len()).is_some_and(|name| name.eq_ignore_ascii_case(NAME))
    }

    /// A head was too large for what it says of who asks: that is worth nothing, whatever it is.
    pub fn refused_credentials(&self) -> bool {
        self.refused_credentials
    }

    /// The path of a request that was refused, as the client wrote it; empty if it was not read so far.
    pub fn refused_path(&self) -> &str {
        &self.refused_path
    }

    /// The request that `Step::Request` announced. Asking for one at any other time is a bug.
    pub fn request(&self) -> Request<'_> {
        assert!(matches!(self.state, State::Complete { .. }), "there is no request");
        self.view(self.head.body.clone())
    }

    /// The head of a request whose body is still coming; its `body` is empty. None at any other time.
    pub fn head(&self) -> Option<Request<'_>> {
        match self.state {
            State::Length { .. } | State::Chunked(_) => Some(self.view(self.head.body.start..self.head.body.start)),
            State::RequestLine { .. } | State::Fields(_) | State::Complete { .. } | State::Refused(_) => None,
        }
    }

    fn view(&self, body: Range<usize>) -> Request<'_> {
        let (head, raw) = (&self.head, &self.buf[self.start..]);
        let path = match head.path.text(raw) {
            "" => Cow::Borrowed("/"),
            path => unescape(path, Part::Path).expect("a path is checked with its head"),
        };
        Request {
            method: head.method,
            path,
            query: head.query.text(raw),
            body: &raw[body],
            keep_alive: head.keep_alive,
            http10: head.http10,
            host: head.host.map_or("", |host| host.text(raw)),
            head: raw,
            fields: &self.fields,
            common: &self.common,
        }
    }

    /// Drops the current request and keeps what was pipelined behind it.
    pub fn finish(&mut self) {
        let State::Complete { next } = self.state else { return };
        self.state = State::default();
        self.start += next;
        if self.buf.capacity() > BUFFER_KEPT_MAX && self.buffered() <= BUFFER_KEPT_MAX {
            self.buf = self.buf[self.start..].to_vec();
            self.start = 0;
        }
    }

    pub fn phase(&self) -> RequestPhase {
        match self.state {
            State::RequestLine { .. } if self.buffered() == 0 => RequestPhase::Idle,
            State::RequestLine { .. } | State::Fields(_) => RequestPhase::Head,
            State::Length { .. } | State::Chunked(_) => RequestPhase::Body,
            State::Complete { .. } | State::Refused(_) => RequestPhase::Complete,
        }
    }

    /// No: leave the bytes in the socket, so that a client that is not being answered has to wait.
    pub fn wants_bytes(&self) -> bool {
        self.phase() != RequestPhase::Complete
    }

    /// Bytes held of the current request and of what was read behind it.
    pub fn buffered(&self) -> usize {
        self.buf.len() - self.start
    }

    /// The memory that takes.
    pub fn held(&self) -> usize {
        self.buf.capacity()
    }

    fn advance(&mut self) -> Result<Step, Fault> {
        if matches!(self.state, State::RequestLine { .. }) && !self.read_request_line()? {
            return Ok(Step::NeedMore);
        }
        if matches!(self.state, State::Fields(_)) && !self.read_fields()? {
            return Ok(Step::NeedMore);
        }
        let asked = self.phase() == RequestPhase::Body && std::mem::take(&mut self.head.awaits_continue);
        if asked && self.buffered() == self.head.body.start {
            return Ok(Step::Continue);
        }
        match &mut self.state {
            State::Length { end } => {
                let end = *end;
                if self.buffered() < end {
                    return Ok(Step::NeedMore);
                }
                self.head.body.end = end;
                self.state = State::Complete { next: end };
            }
            State::Chunked(chunks) => {
                let whole = chunks.decode(&mut self.buf[self.start..])?;
                self.head.body.end = chunks.body_end;
                if !whole {
                    chunks.close_gap(&mut self.buf, self.start);
                    return Ok(Step::NeedMore);
                }
                self.state = State::Complete { next: chunks.at };
            }
            State::Complete { .. } => {}
            State::Refused(fault) => return Err(fault.clone()),
            State::RequestLine { .. } | State::Fields(_) => unreachable!("the head has just been read"),
        }
        Ok(Step::Request)
    }

    /// True once the line is there, and the fields are next.
    fn read_request_line(&mut self) -> Result<bool, Fault> {
        let State::RequestLine { searched, empty_lines } = &mut self.state else { return Ok(true) };
        while self.buf[self.start..].starts_with(b"\r\n") {
            *empty_lines += 1;
            if *empty_lines > EMPTY_LINES_MAX {
                return Err(bad("empty lines where a request should be"));
            }
            self.start += 2;
            *searched = 0;
        }
        let raw = &self.buf[self.start..];
        if raw.first() == Some(&TLS_HANDSHAKE) {
            return Err(bad("this looks like TLS, but plain HTTP is spoken here"));
        }
        // Once only: what comes in drops is not compared with each of them.
        if *searched == 0
            && let Some((end, length)) = self.known.begins(raw)
        {
            self.head.body = end..end;
            self.state = State::Length { end: end + length };
            return Ok(true);
        }
        let Some(end) = line_end(raw, searched, REQUEST_LINE_MAX, target_too_long)? else { return Ok(false) };
        self.head = Head::read(&raw[..end])?;
        self.state = State::Fields(Block::at(end));
        Ok(true)
    }

    /// True once the head is whole, and the body is next.
    fn read_fields(&mut self) -> Result<bool, Fault> {
        let State::Fields(block) = &mut self.state else { return Ok(true) };
        let raw = &self.buf[self.start..];
        let mut room = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let Some((count, end)) = block.fields(raw, HEAD_MAX, &mut room)? else { return Ok(false) };
        let fields = &room[..count];
        let body = self.head.judge(raw, fields)?;
        self.fields.clear();
        self.fields.extend(fields.iter().map(|field| Field {
            name: Span::within(raw, field.name.as_bytes()),
            value: Span::within(raw, field.value),
        }));
        self.common = Default::default();
        for field in &self.fields {
            if let Some(common) = Common::of(field.name.of(raw)) {
                self.common[common as usize].get_or_insert(field.value);
            }
        }
        self.head.body = end..end;
        match body {
            // Whether one is waited for depends on the length, which may be another in the next.
            Body::Length(_) if !self.head.awaits_continue => {
                let length = self.fields.iter().find(|field| field.is(raw, "content-length"));
                self.known.learn(&raw[..end], length.map_or(0..0, |field| field.value.range()));
            }
            Body::Length(_) | Body::Chunked => self.known.forget(),
        }
        self.head.awaits_continue &= !matches!(body, Body::Length(0));
        self.state = match body {
            Body::Length(length) => State::Length { end: end + length },
            Body::Chunked => State::Chunked(Chunks::behind(end)),
        };
        Ok(true)
    }
}

// --- heads --------------------------------------------------------------------------------------------------------

/// How far a body reaches.
enum Body {
    Length(usize),
    Chunked,
}

impl Head {
    /// Of the request line, with its line end.
    fn read(line: &[u8]) -> Result<Head, Fault> {
        let mut parsed = httparse::Request::new(&mut []);
        // A line without its fields is a partial head: whatever is an error now is one of this line.
        let outcome = parsed.parse(line);
        if parsed.path.is_some_and(|path| path.len() > TARGET_MAX) {
            return Err(target_too_long());
        }
        if outcome == Err(httparse::Error::Version) && names_a_version(line) {
            return Err(Fault::new(Code::VersionNotSupported, "only HTTP/1.1 and HTTP/1.0 are spoken here"));
        }
        let (Ok(_), Some(method), Some(path), Some(minor)) = (outcome, parsed.method, parsed.path, parsed.version)
        else {
            return Err(bad("malformed request line"));
        };
        let method = match method {
            "GET" => Method::Get,
            "HEAD" => Method::Head,
            "POST" => Method::Post,
            "PUT" => Method::Put,
            "PATCH" => Method::Patch,
            "DELETE" => Method::Delete,
            "OPTIONS" => Method::Options,
            _ => Method::Other,
        };
        let target = target::split(path, method == Method::Options).map_err(bad)?;
        let base = Span::within(line, path.as_bytes()).start as usize;
        let span = |range: Range<usize>| Span::new(base + range.start..base + range.end);
        Ok(Head {
            method,
            http10: minor == 0,
            path: span(target.path),
            query: span(target.query),
            host: target.authority.map(span),
            ..Head::default()
        })
    }

    /// Takes from the fields what decides about the connection and the body.
    fn judge(&mut self, raw: &[u8], fields: &[httparse::Header]) -> Result<Body, Fault> {
        let (mut host, mut length, mut coding) = (None, None, None);
        let (mut close, mut keep_alive) = (false, false);
        for field in fields {
            let is = |name: &str| field.name.eq_ignore_ascii_case(name);
            // By length first: most fields are none of these.
            match field.name.len() {
                4 if is("host") => once(&mut host, field)?,
                6 if is("expect") => self.awaits_continue |= expects_continue(field, self.http10)?,
                10 if is("connection") => {
                    for token in field.value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                        close |= token.eq_ignore_ascii_case(b"close");
                        keep_alive |= token.eq_ignore_ascii_case(b"keep-alive");
                    }
                }
                14 if is("content-length") => once(&mut length, field)?,
                17 if is("transfer-encoding") => once(&mut coding, field)?,
                _ => {}
            }
        }
        self.keep_alive = !close && (keep_alive || !self.http10);
        match host {
            Some(value) if !target::is_host(value) => return Err(bad("Host is not a host with an optional port")),
            Some(value) => _ = self.host.get_or_insert(Span::within(raw, value)),
            None if self.http10 => {}
            None => return Err(bad("no Host")),
        }
        self.body_of(length, coding)
    }

    fn body_of(&self, length: Option<&[u8]>, coding: Option<&[u8]>) -> Result<Body, Fault> {
        match (length, coding) {
            (None, None) => Ok(Body::Length(0)),
            (Some(_), Some(_)) => Err(bad("both Content-Length and Transfer-Encoding")),
            (None, Some(_)) if self.http10 => Err(bad("Transfer-Encoding in HTTP/1.0")),
            (None, Some(coding)) if coding.eq_ignore_ascii_case(b"chunked") => Ok(Body::Chunked),
            (None, Some(_)) => Err(Fault::new(Code::NotImplemented, "no Transfer-Encoding but chunked")),
            (Some(digits), None) => {
                let length = number(digits, 10).ok_or_else(|| bad("Content-Length is not a number"))?;
                if length > BODY_MAX as u64 {
                    return Err(body_too_large());
                }
                Ok(Body::Length(length as usize))
            }
        }
    }
}

/// A second field of such a name is an attack, or a mistake that looks like one, even with the same value.
fn once<'a>(seen: &mut Option<&'a [u8]>, field: &httparse::Header<'a>) -> Result<(), Fault> {
    match seen.replace(field.value) {
        None => Ok(()),
        Some(_) => Err(bad(format!("more than one {}", field.name))),
    }
}

fn expects_continue(field: &httparse::Header, http10: bool) -> Result<bool, Fault> {
    if field.value.eq_ignore_ascii_case(b"100-continue") {
        // HTTP/1.0 knows no interim answers.
        return Ok(!http10);
    }
    Err(Fault::new(Code::ExpectationFailed, "no expectation but 100-continue can be met"))
}

/// `HTTP/2.0` is a version that is not spoken here; `HTTPS` is none.
fn names_a_version(line: &[u8]) -> bool {
    let mut parts = line.strip_suffix(b"\r\n").unwrap_or(line).split(|byte| *byte == b' ');
    let is_third = matches!(parts.nth(2), Some([b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9']));
    is_third && parts.next().is_none()
}

fn target_too_long() -> Fault {
    Fault::new(Code::UriTooLong, format!("the target is longer than {TARGET_MAX} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_buffer_is_given_back_with_the_request_that_needed_it() {
        let mut parser = Parser::new();
        let length = 2 * BUFFER_KEPT_MAX;
        parser.feed(format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n").as_bytes());
        parser.feed(&vec![b'b'; length]);
        parser.feed(b"GET /next HTTP/1.0\r\n\r\n");
        assert_eq!(parser.step(), Step::Request);
        assert_eq!(parser.request().body.len(), length);
        parser.finish();
        assert!(parser.buf.capacity() <= BUFFER_KEPT_MAX);
        assert_eq!(parser.step(), Step::Request);
        assert_eq!(parser.request().path, "/next");
    }

    #[test]
    fn a_refused_head_is_known_as_one_and_nothing_else_is() {
        let refused = |bytes: &[u8]| {
            let mut parser = Parser::new();
            parser.feed(bytes);
            while parser.step() == Step::Request {
                parser.finish();
            }
            assert!(matches!(parser.step(), Step::Refuse(_)));
            parser.is_for_head()
        };
        assert!(refused(b"HEAD /%zz HTTP/1.1\r\nHost: h\r\n\r\n"));
        assert!(refused(b"\r\n\r\nHEAD / HTTP/1.1\r\n\r\n"));
        assert!(refused(b"GET / HTTP/1.1\r\nHost: h\r\n\r\nHEAD / HTTP/9.9\r\n\r\n"));
        assert!(!refused(b"HEAD / HTTP/1.1\r\nHost: h\r\n\r\nGET /%zz HTTP/1.1\r\nHost: h\r\n\r\n"));
        assert!(!refused(b"HEADS / HTTP/1.1\r\n\r\n"));
    }

    #[test]
    fn of_a_refused_request_the_path_is_known_once_its_line_was_read() {
        let refused = |sent: &[u8]| {
            let mut parser = Parser::new();
            parser.feed(sent);
            assert!(matches!(parser.step(), Step::Refuse(_)));
            assert!(matches!(parser.step(), Step::Refuse(_)), "and again");
            parser.refused_path().to_owned()
        };
        let long = format!("Content-Length: {}\r\n\r\n", BODY_MAX + 1);
        assert_eq!(refused(format!("POST /a/call?x HTTP/1.1\r\nHost: h\r\n{long}").as_bytes()), "/a/call");
        assert_eq!(refused(b"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), "/a");
        assert_eq!(refused(b"POST /%zz HTTP/1.1\r\nHost: h\r\n\r\n"), "");
    }

    #[test]
    fn pipelined_requests_are_not_moved_for_each_that_is_answered() {
        let mut parser = Parser::new();
        parser.feed(&b"GET / HTTP/1.0\r\n\r\n".repeat(1000));
        let place = parser.buf.as_ptr();
        for _ in 0..1000 {
            assert_eq!(parser.step(), Step::Request);
            parser.finish();
            assert_eq!(parser.buf.as_ptr(), place);
        }
        parser.feed(b"");
        assert_eq!((parser.step(), parser.buf.len()), (Step::NeedMore, 0));
    }

    #[test]
    fn no_byte_of_a_head_is_searched_twice() {
        let mut parser = Parser::new();
        for byte in b"GET /a HTTP/1.1\r\nHost: h\r\nX: y\r\n\r" {
            parser.feed(&[*byte]);
            assert_eq!(parser.step(), Step::NeedMore);
            let searched = match &parser.state {
                State::RequestLine { searched, .. } => *searched,
                State::Fields(block) => block.searched,
                State::Length { .. } | State::Chunked(_) | State::Complete { .. } | State::Refused(_) => unreachable!(),
            };
            assert_eq!(searched, parser.buffered());
        }
    }
}
