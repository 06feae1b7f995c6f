//! The readers of `wire/`: each gets the same bytes at once and in portions, and must say the same.

use super::split;
use ring::digest::{SHA256, digest};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use stdiod::model::definition::Framing;
use stdiod::wire::http::response::{Asked, Part, Reader as AnswerReader};
use stdiod::wire::http_in::{Parser, Request, Step};
use stdiod::wire::json::{self, Json};
use stdiod::wire::jsonrpc::{self, Message, Torn};
use stdiod::wire::lines::{Line, Lines};
use stdiod::wire::sse::reader::{Event, Reader as EventReader};
use stdiod::wire::websocket::WebSocket;
use stdiod::wire::{answer, relay, sse};

// --- HTTP -----------------------------------------------------------------------------------------------------------

/// What a request says, as far as anybody goes by it.
fn told(request: &Request<'_>) -> String {
    let headers: Vec<(&str, &[u8])> = request.headers().collect();
    let pairs: Vec<_> = request.query_pairs().collect();
    let (method, path, body) = (request.method, &request.path, digest(&SHA256, request.body));
    format!("{method:?} {path} {pairs:?} {} {headers:?} {body:?} {}", request.host(), request.keep_alive)
}

fn requests(pieces: &[&[u8]]) -> Vec<String> {
    let mut parser = Parser::new();
    let mut said = Vec::new();
    for piece in pieces {
        parser.feed(piece);
        loop {
            match parser.step() {
                Step::NeedMore => break,
                // Said once, and only while the body has not come.
                Step::Continue => {}
                Step::Request => {
                    said.push(told(&parser.request()));
                    parser.finish();
                }
                Step::Refuse(fault) => {
                    said.push(format!("refused {:?} {}", fault.code, fault.message));
                    return said;
                }
            }
        }
    }
    said
}

pub fn http_request(bytes: &[u8]) {
    let (whole, pieces) = split(bytes);
    assert_eq!(requests(&pieces), requests(&[whole]), "it depends on where it is split");
    passed_on(whole);
}

/// What is passed on to a server is one request, with the path and the body that came: nobody hides a second one in it.
fn passed_on(bytes: &[u8]) {
    let mut parser = Parser::new();
    parser.feed(bytes);
    while let Step::Request | Step::Continue = parser.step() {
        let Some(request) = parser.head() else { return };
        let target = relay::target(&request.path, request.query);
        let Step::Request = parser.step() else { return };
        let request = parser.request();
        if let Some(out) = relay::request(&request, &target, "server") {
            let mut other = Parser::new();
            other.feed(&out);
            assert_eq!(other.step(), Step::Request, "{:?}", String::from_utf8_lossy(&out));
            let got = other.request();
            assert_eq!((got.method, &*got.path, got.query), (request.method, &*request.path, request.query));
            assert_eq!((got.body, got.host()), (request.body, "server"));
            other.finish();
            assert_eq!(other.buffered(), 0, "nothing stands behind it");
        }
        parser.finish();
    }
}

fn head(pieces: &[&[u8]]) -> (relay::Head, usize) {
    let mut reader = relay::HeadReader::default();
    for (at, piece) in pieces.iter().enumerate() {
        match reader.feed(piece) {
            relay::Head::Partial => {}
            head => return (head, at + 1),
        }
    }
    (relay::Head::Partial, pieces.len())
}

pub fn relayed_answer(bytes: &[u8]) {
    let (whole, pieces) = split(bytes);
    let (at_once, _) = head(&[whole]);
    let (mut in_pieces, read) = head(&pieces);
    if let relay::Head::Whole { bytes, .. } = &mut in_pieces {
        bytes.extend(pieces[read..].concat());
    }
    assert_eq!(in_pieces, at_once, "it depends on where it is split");
    // Whoever reads what is passed on finds a head.
    if let relay::Head::Whole { bytes, .. } = at_once {
        let mut reader = &bytes[..];
        let head = answer::read_head(&mut reader).expect("what is passed on has a head");
        assert!((200..600).contains(&head.status), "{}", head.status);
    }
}

fn answers(asked: Asked, pieces: &[&[u8]]) -> (Vec<String>, Vec<u8>) {
    let mut reader = AnswerReader::default();
    reader.ask(asked);
    let (mut said, mut body) = (Vec::new(), Vec::new());
    for piece in pieces {
        reader.feed(piece);
        loop {
            match reader.next_part() {
                Ok(Some(Part::Head(head))) => said.push(format!("{head:?}")),
                Ok(Some(Part::Body(more))) => {
                    assert!(!more.is_empty(), "a part that is none");
                    body.extend(more);
                }
                // Whatever comes behind it was not asked for, and how soon that is seen depends on when it comes.
                Ok(Some(Part::End { .. })) => {
                    said.push(format!("end behind {}", body.len()));
                    return (said, body);
                }
                Ok(None) => break,
                Err(broken) => {
                    said.push(broken.message());
                    return (said, body);
                }
            }
        }
    }
    said.push(format!("{:?}", reader.closed()));
    (said, body)
}

pub fn http_answer(bytes: &[u8]) {
    let (whole, pieces) = split(bytes);
    for asked in [Asked::Plain, Asked::Head, Asked::Connect, Asked::Upgrade] {
        assert_eq!(answers(asked, &pieces), answers(asked, &[whole]), "{asked:?}: it depends on where it is split");
    }
    let mut reader = std::io::BufReader::with_capacity(64, whole);
    if let Ok(head) = answer::read_head(&mut reader)
        && let Ok(mut body) = answer::Body::of(&head, "GET", reader)
    {
        // However it ends; it does end.
        _ = std::io::copy(&mut body, &mut std::io::sink());
    }
}

// --- streams --------------------------------------------------------------------------------------------------------

/// Small, so that a fuzzer gets to the end of it.
const EVENT_MAX: usize = 512;

fn read_events(pieces: &[&[u8]]) -> (Vec<Event>, bool, String, Option<u64>) {
    let mut reader = EventReader::new(EVENT_MAX);
    let (mut events, mut failed) = (Vec::new(), false);
    for piece in pieces {
        let mut rest = *piece;
        loop {
            match reader.read(&mut rest) {
                Ok(Some(event)) => events.push(event),
                Ok(None) => break,
                Err(_) => {
                    failed = true;
                    break;
                }
            }
        }
    }
    (events, failed, reader.last_event_id().to_string(), reader.retry_ms())
}

pub fn events(bytes: &[u8]) {
    let (whole, pieces) = split(bytes);
    let read = read_events(&[whole]);
    assert_eq!(read_events(&pieces), read, "it depends on where it is split");
    for event in read.0 {
        assert!(event.data.len() <= EVENT_MAX, "{} bytes", event.data.len());
        let mut out = Vec::new();
        sse::event(&mut out, Some(&event.name), Some(&event.id), &event.data);
        let mut reader = EventReader::new(16 * EVENT_MAX);
        let again = reader.read(&mut &out[..]).expect("small").expect("an event");
        // A zero byte would make a client ignore an id, and is written as a space.
        let name = event.name.replace('\0', " ");
        assert_eq!((again.name, again.data), (name, event.data), "what is written is what was read");
    }
    let mut rest = whole;
    while let Ok(Some(_)) = sse::read_data(&mut rest) {}
}

fn messages(pieces: &[&[u8]]) -> Vec<String> {
    let mut socket = WebSocket::new(EVENT_MAX, [1; 32]);
    let mut said = Vec::new();
    for piece in pieces {
        let mut rest = *piece;
        loop {
            match socket.read(&mut rest) {
                Ok(Some(incoming)) => said.push(format!("{incoming:?}")),
                Ok(None) => break,
                Err(broken) => {
                    said.push(format!("{broken:?}"));
                    return said;
                }
            }
        }
    }
    said
}

pub fn websocket(bytes: &[u8]) {
    let (whole, pieces) = split(bytes);
    assert_eq!(messages(&pieces), messages(&[whole]), "it depends on where it is split");
}

// --- lines and JSON -------------------------------------------------------------------------------------------------

fn read_lines(framing: Framing, pieces: &[&[u8]]) -> Vec<Vec<u8>> {
    let mut lines = Lines::with_framing(framing);
    let mut found = Vec::new();
    for piece in pieces {
        lines.feed(piece);
        while let Some(line) = lines.next_line() {
            match line {
                Line::Whole(line) => found.push(line.to_vec()),
                Line::TooLong { head, tail } | Line::NoRoom { head, tail } => {
                    found.push([b"long", head, tail].concat())
                }
            }
        }
    }
    found
}

pub fn lines(bytes: &[u8]) {
    let (whole, pieces) = split(bytes);
    for framing in [Framing::Auto, Framing::Newline, Framing::ContentLength] {
        // What is noise between blocks depends on how much of it is there. It is never a message.
        let messages = |pieces: &[&[u8]]| {
            let all = read_lines(framing, pieces);
            let is_kept = |line: &Vec<u8>| framing == Framing::Newline || jsonrpc::parse(line).is_some();
            all.into_iter().filter(is_kept).collect::<Vec<_>>()
        };
        assert_eq!(messages(&pieces), messages(&[whole]), "{framing:?}: it depends on where it is split");
    }
}

pub fn json(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        assert!(json::members(bytes).any(|member| member.is_err()), "{bytes:?} is not UTF-8");
        return;
    };
    let judged = serde_json::from_str::<&RawValue>(text).ok().map(RawValue::get);
    assert_eq!(Json::of(text).ok().map(Json::get), judged);
    let items: Result<Vec<Json<'_>>, _> = json::items(bytes).collect();
    let theirs: Option<Vec<&RawValue>> = serde_json::from_str(text).ok();
    let theirs = theirs.map(|items| items.into_iter().map(RawValue::get).collect::<Vec<_>>());
    assert_eq!(items.ok().map(|items| items.into_iter().map(Json::get).collect::<Vec<_>>()), theirs);
    let ours: Result<Vec<_>, _> = json::members(bytes).collect();
    let theirs = serde_json::from_str::<BTreeMap<String, &RawValue>>(text);
    assert_eq!(ours.is_ok(), theirs.is_ok());
    for (key, value) in theirs.unwrap_or_default() {
        let object = Json::of(text).expect("it was read");
        assert_eq!(object.member(&key).map(Json::get), Some(value.get()));
    }
}

pub fn json_rpc(bytes: &[u8]) {
    let torn = jsonrpc::reply_id_of_torn(bytes, bytes);
    match jsonrpc::parse(bytes) {
        Some(Message::Reply { id, .. }) => {
            // What its ends tell is less, and never another's answer.
            assert!(!matches!(torn, Torn::ReplyTo(other) if other != id), "{torn:?} is not {id}");
        }
        Some(Message::Request { id, method, params }) => {
            let line = jsonrpc::forwarded(7, &method, params.map(Json::get));
            let line = line.strip_suffix(b"\n").unwrap_or(&line);
            match jsonrpc::parse(line) {
                Some(Message::Request { id, method: same, params: also }) => {
                    assert_eq!((id.get(), same, also.map(Json::get)), ("7", method, params.map(Json::get)));
                }
                other => panic!("what is passed on is no request: {other:?}"),
            }
            let reply = jsonrpc::error_reply(id, -1, "no");
            assert!(jsonrpc::parse(reply.strip_suffix(b"\n").unwrap_or(&reply)).is_some());
        }
        Some(Message::Notification { method, params }) => {
            let line = jsonrpc::forwarded_notification(&method, params.map(Json::get));
            let line = line.strip_suffix(b"\n").unwrap_or(&line);
            assert!(matches!(jsonrpc::parse(line), Some(Message::Notification { .. })));
        }
        Some(Message::Stray) | None => {}
    }
}
