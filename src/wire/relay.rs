//! HTTP heads on their way through: a client's request as the server behind gets it, and the server's answer as the client
//! gets it. Only heads are looked at; bodies pass as they are. Hop-by-hop fields end here, and the client's credentials
//! for this daemon never reach a server. A server's answer is told under the daemon's name, so only fields that say something
//! of the answer itself pass: nothing that a client would keep for, or do to, the daemon's origin.

use crate::limits::{HEAD_MAX, HEADERS_MAX, INTERIM_ANSWERS_MAX, INTERIM_BYTES_MAX};
use crate::wire::http_in::{Method, Request, is_media};
use serde::{Deserialize, Serialize};

/// Fields of a request that are about one connection only, that this daemon sets itself, or that are meant for it.
const NOT_PASSED: [&str; 14] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "expect",
    "content-length",
    "authorization",
    "cookie",
    "cookie2",
];

/// Fields of an answer that pass. A list of what does not would be out of date with the next browser.
const PASSED: [&str; 20] = [
    "accept-ranges",
    "age",
    "allow",
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-length",
    "content-range",
    "content-type",
    "date",
    "etag",
    "expires",
    "last-modified",
    "retry-after",
    "traceparent",
    "transfer-encoding",
    "vary",
    "x-accel-buffering",
    "x-request-id",
];
/// And all whose names begin so: those of the protocol, and those that tell a client when it may come back.
const PASSED_PREFIXES: [&str; 4] = ["mcp-", "x-mcp-", "ratelimit", "x-ratelimit-"];

/// What every relayed answer says to a browser: take it for what it says it is, and let it do nothing in our name.
const CONTAINED: &[u8] = b"X-Content-Type-Options: nosniff\r\nContent-Security-Policy: sandbox\r\n";

/// Path and query as they go on the wire; the path is a decoded one.
pub fn target(path: &str, query: &str) -> String {
    let mut out = String::with_capacity(path.len() + query.len() + 1);
    for byte in path.bytes() {
        match byte {
            b'/' | b'-' | b'.' | b'_' | b'~' => out.push(byte as char),
            byte if byte.is_ascii_alphanumeric() => out.push(byte as char),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    if !query.is_empty() {
        out.push('?');
        out.push_str(query);
    }
    out
}

/// The request for a connection that carries nothing else; none for a method that we do not know. `target` is as
/// `target` makes it.
pub fn request(request: &Request<'_>, target: &str, host: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(512 + request.body.len());
    let method = method(request.method)?;
    out.extend_from_slice(format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n").as_bytes());
    for (name, value) in request.headers() {
        if name.eq_ignore_ascii_case("host") || is_not_passed(name) || is_for_this_hop(request, name) {
            continue;
        }
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
    if !request.body.is_empty() || matches!(request.method, Method::Post | Method::Put | Method::Patch) {
        out.extend_from_slice(format!("Content-Length: {}\r\n", request.body.len()).as_bytes());
    }
    out.extend_from_slice(b"Connection: close\r\n\r\n");
    out.extend_from_slice(request.body);
    Some(out)
}

fn method(method: Method) -> Option<&'static str> {
    Some(match method {
        Method::Get => "GET",
        Method::Head => "HEAD",
        Method::Post => "POST",
        Method::Put => "PUT",
        Method::Patch => "PATCH",
        Method::Delete => "DELETE",
        Method::Options => "OPTIONS",
        Method::Other => return None,
    })
}

fn is_not_passed(name: &str) -> bool {
    NOT_PASSED.iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// The client's `Connection` says that the field is about that connection.
fn is_for_this_hop(request: &Request<'_>, name: &str) -> bool {
    let says = |(field, value): (&str, &[u8])| {
        let mut named = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        field.eq_ignore_ascii_case("connection") && named.any(|word| word.eq_ignore_ascii_case(name.as_bytes()))
    };
    request.headers().any(says)
}

/// Why an answer cannot be passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Garbage {
    NotHttp,
    TooLong,
    /// It never comes to its real answer.
    Interim,
    /// It wants to speak something else from here on.
    Switched,
}

impl Garbage {
    pub fn message(self) -> &'static str {
        match self {
            Garbage::NotHttp => "the server gave no HTTP answer",
            Garbage::TooLong => "the server's answer has a head that is too long",
            Garbage::Interim => "the server gave too many interim (1xx) answers and none of its own",
            Garbage::Switched => "the server wants to change the protocol (101), which nobody asked it to",
        }
    }
}

/// What became of the first bytes of an answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Head {
    /// More are needed.
    Partial,
    /// The head as the client gets it, with what has come of the body behind it. `events`: it is a stream that may never end.
    Whole {
        bytes: Vec<u8>,
        events: bool,
    },
    Garbage(Garbage),
}

/// Reads the head of an answer from bytes as they come, past interim answers. Touches each byte a constant number of times,
/// and holds no more than a head, the interim ones before it, and the read that ended it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct HeadReader {
    bytes: Vec<u8>,
    /// Where the head that is being read begins; interim ones were before it.
    start: usize,
    /// How far its end has been looked for.
    searched: usize,
    interim: usize,
}

impl HeadReader {
    /// The memory it takes.
    pub fn held(&self) -> usize {
        self.bytes.capacity()
    }

    /// After anything but `Partial` there is nothing more to feed it.
    pub fn feed(&mut self, came: &[u8]) -> Head {
        self.bytes.extend_from_slice(came);
        loop {
            let Some(end) = self.find_end() else {
                let long = self.bytes.len() - self.start >= HEAD_MAX;
                return if long { Head::Garbage(Garbage::TooLong) } else { Head::Partial };
            };
            if end - self.start > HEAD_MAX {
                return Head::Garbage(Garbage::TooLong);
            }
            match answer(&self.bytes[self.start..end]) {
                Ok(Answer::Real { mut bytes, events }) => {
                    bytes.extend_from_slice(&self.bytes[end..]);
                    self.bytes = Vec::new();
                    return Head::Whole { bytes, events };
                }
                // It says nothing that the client waits for.
                Ok(Answer::Interim) => {
                    (self.start, self.searched, self.interim) = (end, end, self.interim + 1);
                    if self.interim > INTERIM_ANSWERS_MAX || end > INTERIM_BYTES_MAX {
                        return Head::Garbage(Garbage::Interim);
                    }
                }
                Err(garbage) => return Head::Garbage(garbage),
            }
        }
    }

    /// Behind the empty line that ends the head. Lines may end without a carriage return, as the parser allows.
    fn find_end(&mut self) -> Option<usize> {
        while let Some(at) = memchr::memchr(b'\n', &self.bytes[self.searched..]) {
            let line_end = self.searched + at;
            match self.bytes[line_end + 1..] {
                [b'\n', ..] => return Some(line_end + 2),
                [b'\r', b'\n', ..] => return Some(line_end + 3),
                // What follows decides, and is not here yet.
                [] | [b'\r'] => {
                    self.searched = line_end;
                    return None;
                }
                [..] => self.searched = line_end + 1,
            }
        }
        self.searched = self.bytes.len();
        None
    }
}

enum Answer {
    Interim,
    Real { bytes: Vec<u8>, events: bool },
}

/// One whole head. The body goes on until the server closes, framed as the server framed it.
fn answer(head: &[u8]) -> Result<Answer, Garbage> {
    let mut fields = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut fields);
    match response.parse(head) {
        Ok(httparse::Status::Complete(end)) if end == head.len() => {}
        Ok(httparse::Status::Complete(_) | httparse::Status::Partial) | Err(_) => return Err(Garbage::NotHttp),
    }
    let code = match response.code {
        Some(101) => return Err(Garbage::Switched),
        Some(100..200) => return Ok(Answer::Interim),
        Some(code @ 200..600) => code,
        Some(_) | None => return Err(Garbage::NotHttp),
    };
    let mut out = format!("HTTP/1.1 {code} {}\r\n", response.reason.unwrap_or_default()).into_bytes();
    let named = |name: &'static str| {
        let fields = response.headers.iter();
        fields.filter(move |field| field.name.eq_ignore_ascii_case(name)).map(|field| field.value)
    };
    // Two that could be read in two ways, by whoever is between us and the client, are none.
    let mut encodings = named("transfer-encoding");
    let chunked = match (encodings.next(), encodings.next()) {
        (None, _) => false,
        (Some(only), None) if only.eq_ignore_ascii_case(b"chunked") => true,
        (Some(_), _) => return Err(Garbage::NotHttp),
    };
    let mut lengths = named("content-length");
    let length = lengths.next();
    let is_number = |text: &[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    if !length.is_none_or(is_number) || lengths.any(|other| Some(other) != length) {
        return Err(Garbage::NotHttp);
    }
    let mut has_length = false;
    for field in response.headers.iter().filter(|field| passes(field.name)) {
        let is_length = field.name.eq_ignore_ascii_case("content-length");
        if is_length && (chunked || std::mem::replace(&mut has_length, true)) {
            continue;
        }
        out.extend_from_slice(field.name.as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(field.value);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(CONTAINED);
    out.extend_from_slice(b"Connection: close\r\n\r\n");
    let events = named("content-type").any(|media| is_media(media, "text/event-stream"));
    Ok(Answer::Real { bytes: out, events })
}

fn passes(name: &str) -> bool {
    let begins = |prefix: &&str| name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
    PASSED.iter().any(|known| name.eq_ignore_ascii_case(known)) || PASSED_PREFIXES.iter().any(begins)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Head {
        HeadReader::default().feed(bytes)
    }

    #[test]
    fn an_answer_keeps_its_framing_and_loses_what_is_about_its_connection() {
        let came = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\
            Keep-Alive: timeout=5\r\nConnection: keep-alive\r\nMcp-Session-Id: x\r\n\r\n3\r\nabc";
        let Head::Whole { bytes, events: true } = read(came) else { panic!("whole") };
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(
            text,
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nMcp-Session-Id: x\r\n\
             X-Content-Type-Options: nosniff\r\nContent-Security-Policy: sandbox\r\nConnection: close\r\n\r\n3\r\nabc"
        );
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_read_in_one_or_not_at_all() {
        let head = |fields: &str| match read(format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n").as_bytes()) {
            Head::Whole { bytes, .. } => Ok(String::from_utf8(bytes).unwrap().to_ascii_lowercase()),
            Head::Garbage(garbage) => Err(garbage),
            Head::Partial => panic!("it is whole"),
        };
        let both = head("Content-Length: 5\r\nTransfer-Encoding: chunked").unwrap();
        assert!(both.contains("transfer-encoding") && !both.contains("content-length"), "{both}");
        for fields in [
            "Content-Length: 5\r\nContent-Length: 6",
            "Content-Length: +5",
            "Content-Length: 5, 5",
            "Content-Length:",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
            "Transfer-Encoding: identity\r\nContent-Length: 5",
            "Transfer-Encoding: gzip, chunked",
            "Transfer-Encoding: xchunked",
        ] {
            assert_eq!(head(fields), Err(Garbage::NotHttp), "{fields}");
        }
        assert!(head("Transfer-Encoding: Chunked").unwrap().contains("transfer-encoding: chunked"));
        assert_eq!(head("Content-Length: 5\r\ncontent-length: 5").unwrap().matches("content-length").count(), 1);
    }

    #[test]
    fn a_path_is_spelled_again_as_it_was_meant() {
        assert_eq!(target("/mcp/a b/ü?", "x=%20&y"), "/mcp/a%20b/%C3%BC%3F?x=%20&y");
    }

    #[test]
    fn half_a_head_waits_and_garbage_does_not() {
        assert_eq!(read(b"HTTP/1.1 200 OK\r\nA: b"), Head::Partial);
        assert_eq!(read(b""), Head::Partial);
        assert_eq!(read(b"SSH-2.0-x\r\n\r\n"), Head::Garbage(Garbage::NotHttp));
        assert_eq!(read(b"HTTP/1.1 099 X\r\n\r\n"), Head::Garbage(Garbage::NotHttp));
        assert_eq!(read(b"HTTP/1.1 101 Switching\r\n\r\n"), Head::Garbage(Garbage::Switched));
        let long = [b"HTTP/1.1 200 OK\r\nA: ".as_slice(), &vec![b'x'; HEAD_MAX]].concat();
        assert_eq!(read(&long), Head::Garbage(Garbage::TooLong));
        assert_eq!(read(&[&long, b"\r\n\r\n".as_slice()].concat()), Head::Garbage(Garbage::TooLong));
        let Head::Whole { bytes, .. } = read(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n") else {
            panic!("whole")
        };
        assert!(bytes.starts_with(b"HTTP/1.1 204 No Content\r\n"));
    }

    #[test]
    fn interim_answers_are_bounded_in_number_and_in_bytes_and_take_no_stack() {
        let interim = |count: usize, field: usize| {
            let one = format!("HTTP/1.1 103\r\nLink: {}\r\n\r\n", "x".repeat(field));
            [one.repeat(count).as_bytes(), b"HTTP/1.1 200 OK\r\n\r\n"].concat()
        };
        assert!(matches!(read(&interim(INTERIM_ANSWERS_MAX, 10)), Head::Whole { .. }));
        assert_eq!(read(&interim(INTERIM_ANSWERS_MAX + 1, 10)), Head::Garbage(Garbage::Interim));
        assert_eq!(read(&interim(3, INTERIM_BYTES_MAX / 2)), Head::Garbage(Garbage::Interim));
        assert_eq!(read(&interim(1 << 20, 0)), Head::Garbage(Garbage::Interim));
    }

    #[test]
    fn where_the_reads_are_split_makes_no_difference() {
        let came = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: a/b\n\r\nbody\n\nbody";
        let Head::Whole { bytes: whole, .. } = read(came) else { panic!("whole") };
        for size in 1..came.len() {
            let mut reader = HeadReader::default();
            let mut told = Vec::new();
            for piece in came.chunks(size) {
                match (told.is_empty(), told.is_empty().then(|| reader.feed(piece))) {
                    (true, Some(Head::Whole { bytes, .. })) => told = bytes,
                    (true, Some(Head::Partial)) => {}
                    (false, _) => told.extend_from_slice(piece),
                    (true, other) => panic!("{size}: {other:?}"),
                }
            }
            assert_eq!(told, whole, "{size}");
        }
    }

    #[test]
    fn only_what_says_something_of_the_answer_passes() {
        for name in ["Content-Type", "MCP-Protocol-Version", "mcp-session-id", "RateLimit-Limit", "ETag"] {
            assert!(passes(name), "{name}");
        }
        for name in
            ["Set-Cookie", "Location", "Clear-Site-Data", "Access-Control-Allow-Origin", "X-Accel-Redirect", "mcp"]
        {
            assert!(!passes(name), "{name}");
        }
    }
}
