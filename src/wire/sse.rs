//! Server-sent events as bytes. Owns their line rules: whatever the data is, a client reads it back as one event, and no
//! name or id can start a line of its own. What is read is bounded: an event, and what is skipped before one.

use crate::limits::STREAM_BACKLOG_MAX;
use crate::wire::answer::read_line;
use crate::wire::http_out::push_decimal;
use memchr::memchr2;
use std::io::{self, BufRead};

pub mod reader;

/// One event. A line end in `data` (LF, CR or both) is read back as LF.
pub fn event(out: &mut Vec<u8>, event: Option<&str>, id: Option<&str>, data: &[u8]) {
    if let Some(event) = event {
        one_line(out, b"event: ", event);
    }
    if let Some(id) = id {
        one_line(out, b"id: ", id);
    }
    lines(out, b"data: ", data);
    out.push(b'\n');
}

/// An event that has no data: where to resume from, and after what time.
pub fn prime(out: &mut Vec<u8>, id: &str, retry_ms: u64) {
    one_line(out, b"id: ", id);
    out.extend_from_slice(b"retry: ");
    push_decimal(out, retry_ms);
    out.extend_from_slice(b"\ndata: \n\n");
}

/// What a client ignores: it keeps a quiet stream open.
pub fn comment(out: &mut Vec<u8>, text: &str) {
    lines(out, b": ", text.as_bytes());
    out.push(b'\n');
}

/// How long a client waits before it connects again.
pub fn retry(out: &mut Vec<u8>, ms: u64) {
    out.extend_from_slice(b"retry: ");
    push_decimal(out, ms);
    out.extend_from_slice(b"\n\n");
}

/// Line ends in a value become spaces, and so does NUL, for which a client would ignore an id.
fn one_line(out: &mut Vec<u8>, field: &[u8], value: &str) {
    out.extend_from_slice(field);
    out.extend(value.bytes().map(|byte| if matches!(byte, b'\n' | b'\r' | 0) { b' ' } else { byte }));
    out.push(b'\n');
}

fn lines(out: &mut Vec<u8>, field: &[u8], mut text: &[u8]) {
    loop {
        out.extend_from_slice(field);
        let Some(at) = memchr2(b'\n', b'\r', text) else { break };
        out.extend_from_slice(&text[..at]);
        out.push(b'\n');
        let end = if text[at..].starts_with(b"\r\n") { 2 } else { 1 };
        text = &text[at + end..];
    }
    out.extend_from_slice(text);
    out.push(b'\n');
}

/// What a client reads of an event.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// Where to resume from, if the stream breaks behind it.
    pub id: Option<String>,
    /// None: it only says where the stream is.
    pub data: Option<String>,
}

/// The data of the next event that has some; none at the end of the stream. Comments and other fields are skipped.
pub fn read_data(stream: &mut impl BufRead) -> io::Result<Option<String>> {
    while let Some(event) = read_event(stream)? {
        if event.data.is_some() {
            return Ok(event.data);
        }
    }
    Ok(None)
}

/// The next event with an id or data; none at the end of the stream.
pub fn read_event(stream: &mut impl BufRead) -> io::Result<Option<Event>> {
    let mut event = Event::default();
    let mut line = Vec::new();
    loop {
        line.clear();
        if read_line(stream, &mut line, STREAM_BACKLOG_MAX)? == 0 {
            return Ok(None);
        }
        let line = line.strip_suffix(b"\n").unwrap_or(&line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() && event != Event::default() {
            return Ok(Some(event));
        }
        let value = |field: &[u8]| {
            let value = line.strip_prefix(field)?;
            Some(String::from_utf8_lossy(value.strip_prefix(b" ").unwrap_or(value)))
        };
        if let Some(id) = value(b"id:") {
            event.id = Some(id.into_owned());
        } else if let Some(piece) = value(b"data:") {
            match &mut event.data {
                None => event.data = Some(piece.into_owned()),
                Some(before) => {
                    before.push('\n');
                    before.push_str(&piece);
                }
            }
        }
        // No line is too long, but all of them together may be.
        if event.data.as_ref().is_some_and(|data| data.len() > STREAM_BACKLOG_MAX) {
            let why = format!("an event is longer than {STREAM_BACKLOG_MAX} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(text: &str) -> Vec<String> {
        let mut stream = text.as_bytes();
        let mut all = Vec::new();
        while let Some(data) = read_data(&mut stream).unwrap() {
            all.push(data);
        }
        all
    }

    #[test]
    fn events_are_told_apart_and_comments_skipped() {
        let stream =
            ": hello\n\nid: 1\nevent: log\ndata: one\n\ndata:two\r\ndata: lines\r\n\r\n: ping\n\ndata: unfinished";
        assert_eq!(events(stream), ["one", "two\nlines"]);
    }

    #[test]
    fn an_event_may_only_say_where_the_stream_is() {
        let mut stream = "id: 7\nretry: 1000\ndata: \n\n: quiet\n\nid: 8\n\ndata: x\n\n".as_bytes();
        let event = |id: Option<&str>, data: Option<&str>| Event { id: id.map(Into::into), data: data.map(Into::into) };
        assert_eq!(read_event(&mut stream).unwrap(), Some(event(Some("7"), Some(""))));
        assert_eq!(read_event(&mut stream).unwrap(), Some(event(Some("8"), None)));
        assert_eq!(read_event(&mut stream).unwrap(), Some(event(None, Some("x"))));
        assert_eq!(read_event(&mut stream).unwrap(), None);
    }

    #[test]
    fn an_endless_line_or_event_is_an_error() {
        for long in [format!("data: {}\n\n", "x".repeat(STREAM_BACKLOG_MAX)), "data:xx\n".repeat(STREAM_BACKLOG_MAX)] {
            assert!(read_data(&mut long.as_bytes()).is_err());
        }
    }

    fn written(name: Option<&str>, id: Option<&str>, data: &str) -> String {
        let mut out = Vec::new();
        event(&mut out, name, id, data.as_bytes());
        String::from_utf8(out).unwrap()
    }

    /// The parser of the standard, as far as `data` goes.
    fn read_back(text: &str) -> Vec<String> {
        let (mut events, mut data) = (Vec::new(), String::new());
        for line in text.lines() {
            if line.is_empty() && !data.is_empty() {
                data.pop();
                events.push(std::mem::take(&mut data));
            } else if let Some(value) = line.strip_prefix("data:") {
                data.push_str(value.strip_prefix(' ').unwrap_or(value));
                data.push('\n');
            }
        }
        events
    }

    #[test]
    fn an_event_has_its_fields_in_order() {
        assert_eq!(written(Some("message"), Some("7"), "{}"), "event: message\nid: 7\ndata: {}\n\n");
        assert_eq!(written(None, None, ""), "data: \n\n");
    }

    #[test]
    fn data_comes_back_as_one_event_whatever_its_line_ends() {
        let data = ["", "a", " a", "a\n", "\n", "a\nb", "a\r\nb", "a\rb", "a\n\nevent: x\n\ndata: y", "\r\r\n\n", ":"];
        for data in data {
            let unified = data.replace("\r\n", "\n").replace('\r', "\n");
            assert_eq!(read_back(&written(None, None, data)), [unified], "{data:?}");
        }
    }

    #[test]
    fn a_name_or_an_id_cannot_start_a_line() {
        let text = written(Some("a\ndata: x"), Some("1\r\n\r\n\0data: y"), "z");
        assert_eq!(text, "event: a data: x\nid: 1     data: y\ndata: z\n\n");
    }

    #[test]
    fn comments_and_delays_are_no_events() {
        let mut out = Vec::new();
        comment(&mut out, "quiet\ndata: x");
        retry(&mut out, 3000);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, ": quiet\n: data: x\n\nretry: 3000\n\n");
        assert!(read_back(&text).is_empty());
    }
}
