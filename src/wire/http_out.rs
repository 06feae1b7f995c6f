//! HTTP/1.1 responses as bytes. Owns their framing; never decides about a status. No value can end its header line, and
//! what follows a head is always as long as the head says.

use crate::wire::backlog::{Backlog, Shared};
use crate::wire::times::date_line;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

const CONTENT_TYPE: &str = "Content-Type";
const JSON: &str = "application/json";

/// A whole response. An empty `content_type` is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    pub content_type: &'static str,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
    /// What stands before and behind the body: a large one need not be copied to be put into a frame.
    pub around: [Cow<'static, str>; 2],
    /// More of the body, which other answers have too.
    pub shared: Vec<Shared>,
}

impl Response {
    pub fn new(status: u16, content_type: &'static str, body: Vec<u8>) -> Response {
        let around = ["", ""].map(Cow::Borrowed);
        Response { status, content_type, headers: Vec::new(), body, around, shared: Vec::new() }
    }

    /// The body as the client gets it.
    pub fn whole_body(&self) -> Vec<u8> {
        let shared: Vec<&[u8]> = self.shared.iter().map(|part| &part[..]).collect();
        [self.around[0].as_bytes(), &self.body, &shared.concat(), self.around[1].as_bytes()].concat()
    }
}

/// What the request and the connection ask of the framing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Framing {
    pub keep_alive: bool,
    /// The request was HEAD.
    pub head_only: bool,
    pub http10: bool,
}

impl Framing {
    /// How a stream goes on behind `write_stream_head`: in chunks, or as it is until the connection closes. With
    /// `head_only` nothing follows at all.
    pub fn chunked(self) -> bool {
        !self.http10
    }
}

pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// For a connection that is one too many: it costs no parsing and next to no memory. `date`: a whole line.
pub fn write_busy(out: &mut Vec<u8>, date: &str, head_only: bool) {
    const BODY: &str = "{\"error\":{\"code\":\"unavailable\",\"message\":\"too many connections\",\"data\":{}}}";
    const FIELDS: &str = "Content-Type: application/json\r\n\
        Content-Length: 75\r\n\
        Retry-After: 1\r\n\
        x-stdiod-error-source: host\r\n\
        Connection: close\r\n\r\n";
    status_line(out, 503);
    for part in [date, FIELDS, if head_only { "" } else { BODY }] {
        out.extend_from_slice(part.as_bytes());
    }
}

/// What heads begin with, made once a second.
#[derive(Default)]
pub struct HeadStart {
    second: u64,
    /// A whole line.
    date: String,
    /// Of a 200 with JSON, which nearly every answer is: up to its Content-Type.
    ok_json: Vec<u8>,
}

impl HeadStart {
    pub fn at(&mut self, unix_ms: u64) -> &HeadStart {
        let second = unix_ms / 1000;
        if self.date.is_empty() || self.second != second {
            *self = HeadStart { second, ..HeadStart::with_date(date_line(second)) };
        }
        self
    }

    fn with_date(date: String) -> HeadStart {
        let mut ok_json = Vec::new();
        status_line(&mut ok_json, 200);
        ok_json.extend_from_slice(date.as_bytes());
        write_header(&mut ok_json, CONTENT_TYPE, JSON);
        HeadStart { second: 0, date, ok_json }
    }

    pub fn date(&self) -> &str {
        &self.date
    }
}

pub fn write_response(to: &mut Backlog, response: Response, start: &HeadStart, framing: Framing) {
    let Response { status, content_type, headers, body, around: [before, behind], shared } = response;
    let out = to.tail();
    let connection = match (framing.keep_alive, framing.http10) {
        (false, _) => "Connection: close\r\n",
        (true, true) => "Connection: keep-alive\r\n",
        (true, false) => "",
    };
    if !has_body(status) {
        status_line(out, status);
        out.extend_from_slice(start.date.as_bytes());
        write_headers(out, "", &headers);
        out.extend_from_slice(connection.as_bytes());
        out.extend_from_slice(b"\r\n");
        return;
    }
    if status == 200 && content_type == JSON {
        out.extend_from_slice(&start.ok_json);
        write_headers(out, "", &headers);
    } else {
        status_line(out, status);
        out.extend_from_slice(start.date.as_bytes());
        write_headers(out, content_type, &headers);
    }
    out.extend_from_slice(b"Content-Length: ");
    let shared_length: usize = shared.iter().map(|part| part.len()).sum();
    push_decimal(out, (before.len() + body.len() + shared_length + behind.len()) as u64);
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(connection.as_bytes());
    out.extend_from_slice(b"\r\n");
    if !framing.head_only {
        out.extend_from_slice(before.as_bytes());
        to.push(body);
        shared.into_iter().for_each(|part| to.push_shared(part));
        to.tail().extend_from_slice(behind.as_bytes());
    }
}

/// The head of a response whose length is not known; see `Framing::chunked` for what follows.
pub fn write_stream_head(
    out: &mut Vec<u8>,
    status: u16,
    content_type: &'static str,
    headers: &[(&'static str, String)],
    date: &str,
    framing: Framing,
) {
    status_line(out, status);
    out.extend_from_slice(date.as_bytes());
    write_headers(out, content_type, headers);
    if framing.chunked() {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
    if !framing.keep_alive || !framing.chunked() {
        out.extend_from_slice(b"Connection: close\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

/// One chunk; nothing for no data, because an empty chunk is the last one.
pub fn write_chunk(out: &mut Vec<u8>, data: &[u8]) {
    if data.is_empty() {
        return;
    }
    out.reserve(data.len() + 20);
    push_number::<16>(out, data.len() as u64);
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

pub fn write_last_chunk(out: &mut Vec<u8>) {
    out.extend_from_slice(b"0\r\n\r\n");
}

pub fn reason(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        204 => "No Content",
        304 => "Not Modified",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        // A reason may be empty, the space before it may not.
        _ => "",
    }
}

/// Hand-made, because the formatting machinery is most of the cost of a small answer.
pub fn push_decimal(out: &mut Vec<u8>, value: u64) {
    push_number::<10>(out, value);
}

fn push_number<const RADIX: u64>(out: &mut Vec<u8>, mut value: u64) {
    // As many digits as the largest `u64` has in decimal.
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b"0123456789abcdef"[(value % RADIX) as usize];
        value /= RADIX;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

fn has_body(status: u16) -> bool {
    !matches!(status, 100..=199 | 204 | 304)
}

fn status_line(out: &mut Vec<u8>, status: u16) {
    debug_assert!((100..1000).contains(&status));
    out.extend_from_slice(b"HTTP/1.1 ");
    push_decimal(out, status as u64);
    out.push(b' ');
    out.extend_from_slice(reason(status).as_bytes());
    out.extend_from_slice(b"\r\n");
}

fn write_headers(out: &mut Vec<u8>, content_type: &str, headers: &[(&'static str, String)]) {
    if !content_type.is_empty() {
        write_header(out, CONTENT_TYPE, content_type);
    }
    for (name, value) in headers {
        write_header(out, name, value);
    }
}

/// Control bytes of a value become spaces: whatever got into it, it stays one line.
fn write_header(out: &mut Vec<u8>, name: &str, value: &str) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    let start = out.len();
    out.extend_from_slice(value.as_bytes());
    for byte in &mut out[start..] {
        if byte.is_ascii_control() {
            *byte = b' ';
        }
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fault::{Code, Fault};

    const KEPT: Framing = Framing { keep_alive: true, head_only: false, http10: false };

    fn written(status: u16, body: &[u8], framing: Framing) -> String {
        let headers = vec![("x-a", "1\r\nx-b: 2\0\u{7f}\t.".to_string())];
        let response = Response { headers, ..Response::new(status, "text/plain", body.to_vec()) };
        let mut out = Backlog::default();
        out.tail().extend_from_slice(b"before ");
        write_response(&mut out, response, &HeadStart::with_date(String::new()), framing);
        String::from_utf8(out.into_bytes()).unwrap().strip_prefix("before ").unwrap().to_string()
    }

    #[test]
    fn a_response_is_as_long_as_its_head_says_and_no_value_ends_its_line() {
        assert_eq!(
            written(200, b"hello", KEPT),
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nx-a: 1  x-b: 2   .\r\nContent-Length: 5\r\n\r\nhello"
        );
        assert!(written(200, b"", KEPT).contains("\r\nContent-Length: 0\r\n"));
    }

    #[test]
    fn what_stands_around_a_body_is_part_of_it_whatever_its_size() {
        for size in [1, 1 << 20] {
            let response =
                Response { around: ["<", ">"].map(Cow::Borrowed), ..Response::new(200, "", vec![b'x'; size]) };
            let whole = response.whole_body();
            let mut out = Backlog::default();
            write_response(&mut out, response, &HeadStart::with_date("Date: x\r\n".to_string()), KEPT);
            let text = out.into_bytes();
            assert!(whole.len() == size + 2 && text.ends_with(&whole));
            let head = format!("HTTP/1.1 200 OK\r\nDate: x\r\nContent-Length: {}\r\n\r\n", size + 2);
            assert_eq!(String::from_utf8_lossy(&text[..text.len() - whole.len()]), head);
        }
    }

    #[test]
    fn a_head_that_begins_as_most_do_is_the_same_as_one_written_from_its_lines() {
        let mut start = HeadStart::default();
        for (unix_ms, date) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (999, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (1_999, "Thu, 01 Jan 1970 00:00:01 GMT"),
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
        ] {
            for (status, content_type, line) in
                [(200, JSON, "200 OK"), (404, JSON, "404 Not Found"), (200, "text/plain", "200 OK")]
            {
                let headers = vec![("x-a", "1".to_string())];
                let response = Response { headers, ..Response::new(status, content_type, b"{}".to_vec()) };
                let mut out = Backlog::default();
                write_response(&mut out, response, start.at(unix_ms), KEPT);
                let expected = format!(
                    "HTTP/1.1 {line}\r\nDate: {date}\r\nContent-Type: {content_type}\r\nx-a: 1\r\nContent-Length: 2\r\n\r\n{{}}"
                );
                assert_eq!(String::from_utf8(out.into_bytes()).unwrap(), expected);
            }
        }
    }

    #[test]
    fn head_gets_the_length_and_no_body() {
        let text = written(404, b"hello", Framing { head_only: true, ..KEPT });
        assert!(text.starts_with("HTTP/1.1 404 Not Found\r\n"));
        assert!(text.contains("Content-Length: 5\r\n") && text.ends_with("\r\n\r\n"));
    }

    #[test]
    fn no_content_has_neither_length_nor_type_nor_body() {
        let text = written(204, b"lost", KEPT);
        assert_eq!(text, "HTTP/1.1 204 No Content\r\nx-a: 1  x-b: 2   .\r\n\r\n");
    }

    #[test]
    fn the_connection_header_is_there_only_when_it_says_something() {
        assert!(!written(200, b"", KEPT).contains("Connection"));
        assert!(written(200, b"", Framing { http10: true, ..KEPT }).contains("\r\nConnection: keep-alive\r\n"));
        assert!(written(204, b"", Framing { http10: true, ..KEPT }).contains("\r\nConnection: keep-alive\r\n"));
        for http10 in [false, true] {
            let closed = Framing { keep_alive: false, http10, ..KEPT };
            assert!(written(200, b"", closed).contains("\r\nConnection: close\r\n"));
            assert!(written(204, b"", closed).contains("\r\nConnection: close\r\n"));
        }
    }

    #[test]
    fn a_stream_is_chunked_or_ends_with_the_connection() {
        let mut out = Vec::new();
        write_stream_head(&mut out, 200, "text/event-stream", &[("x-a", "\n".into())], "Date: x\r\n", KEPT);
        write_chunk(&mut out, b"");
        write_chunk(&mut out, &[b'x'; 26]);
        write_last_chunk(&mut out);
        let head = "HTTP/1.1 200 OK\r\nDate: x\r\nContent-Type: text/event-stream\r\nx-a:  \r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(String::from_utf8(out).unwrap(), format!("{head}1a\r\n{}\r\n0\r\n\r\n", "x".repeat(26)));

        let mut out = Vec::new();
        write_stream_head(&mut out, 200, "text/plain", &[], "", Framing { http10: true, ..KEPT });
        let text = String::from_utf8(out).unwrap();
        assert!(text.ends_with("\r\nConnection: close\r\n\r\n") && !text.contains("chunked"));
    }

    #[test]
    fn the_canned_refusal_has_the_one_error_shape_and_its_own_length() {
        let busy = |head_only| {
            let mut out = Vec::new();
            write_busy(&mut out, "Date: now\r\n", head_only);
            String::from_utf8(out).unwrap()
        };
        let text = busy(false);
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let fault = Fault::new(Code::Unavailable, "too many connections");
        assert_eq!(serde_json::from_str::<serde_json::Value>(body).unwrap(), fault.body());
        assert!(head.starts_with(&format!("HTTP/1.1 {} {}\r\n", fault.code.status(), reason(fault.code.status()))));
        assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{}", body.len());
        assert!(head.contains("\r\nDate: now\r\n"));
        assert_eq!(busy(true), format!("{head}\r\n\r\n"), "the same without its body");
    }

    #[test]
    fn numbers_are_written_as_the_formatter_would() {
        for value in [0, 1, 9, 10, 15, 16, 255, 4096, 1_000_000, u64::MAX - 1, u64::MAX] {
            let mut out = Vec::new();
            push_decimal(&mut out, value);
            out.push(b' ');
            push_number::<16>(&mut out, value);
            assert_eq!(String::from_utf8(out).unwrap(), format!("{value} {value:x}"));
        }
    }

    #[test]
    fn every_status_of_the_error_table_has_a_reason() {
        for status in
            [400, 401, 403, 404, 405, 408, 409, 413, 414, 415, 417, 422, 429, 431, 500, 501, 502, 503, 504, 505]
        {
            assert_ne!(reason(status), "");
        }
    }
}
