//! The pair of 2024-11-05 against a server that is written out here byte by byte.

use super::*;
use crate::model::fault::Code;

const BY_MS: u64 = 1_000;
const CALL: &str = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"t"}}"#;

fn pair() -> SsePair {
    let url = Url::parse("http://h.test/a/sse").unwrap();
    SsePair::new(url, &[("X-Key".to_string(), "k".to_string())], false, BY_MS)
}

fn all(pair: &mut SsePair) -> Vec<Command> {
    std::iter::from_fn(|| pair.poll()).collect()
}

/// The channel that is to be opened.
fn opened(commands: &[Command]) -> Channel {
    let open = commands.iter().find_map(|command| match command {
        Command::Open { channel, .. } => Some(*channel),
        _ => None,
    });
    open.unwrap_or_else(|| panic!("a connection is opened: {commands:?}"))
}

fn written(commands: &[Command]) -> String {
    let bytes = commands.iter().filter_map(|command| match command {
        Command::Write { bytes, .. } => Some(bytes.clone()),
        _ => None,
    });
    String::from_utf8(bytes.flatten().collect()).unwrap()
}

fn lost(commands: &[Command]) -> &LinkFault {
    let why = commands.iter().find_map(|command| match command {
        Command::Lost(why) => Some(why),
        _ => None,
    });
    why.unwrap_or_else(|| panic!("it is lost: {commands:?}"))
}

fn say(pair: &mut SsePair, channel: Channel, text: &str) -> Vec<Command> {
    pair.heard(channel, Heard::Bytes(text.as_bytes().to_vec()), 0);
    all(pair)
}

fn connect(pair: &mut SsePair) -> (Channel, String) {
    let channel = opened(&all(pair));
    pair.heard(channel, Heard::Connected { proxy: None }, 0);
    (channel, written(&all(pair)))
}

const STREAM: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";

/// Its stream is open, and messages go to `/a/m?s=1`.
fn open() -> (SsePair, Channel) {
    let mut pair = pair();
    let (channel, _) = connect(&mut pair);
    let commands = say(&mut pair, channel, &format!("{STREAM}event: endpoint\ndata: m?s=1\n\n"));
    assert_eq!(commands, [Command::Connected]);
    (pair, channel)
}

#[test]
fn it_opens_when_it_knows_where_to_post() {
    let mut pair = pair();
    let (channel, words) = connect(&mut pair);
    for part in ["GET /a/sse HTTP/1.1\r\n", "Accept: text/event-stream\r\n", "X-Key: k\r\n"] {
        assert!(words.contains(part), "{part} in {words}");
    }
    assert_eq!(say(&mut pair, channel, STREAM), []);
    assert_eq!(say(&mut pair, channel, "event: endpoint\ndata: /m\n\n"), [Command::Connected]);
    assert_eq!(pair.next_deadline(), None);
}

#[test]
fn a_call_is_posted_once_and_its_answer_comes_on_the_stream() {
    let (mut pair, stream) = open();
    pair.write(CALL.as_bytes(), Some(CallId(7)), 0);
    let (post, words) = connect(&mut pair);
    assert!(words.starts_with("POST /a/m?s=1 HTTP/1.1\r\n") && words.ends_with(CALL), "{words}");
    assert_eq!(say(&mut pair, post, "HTTP/1.1 202 Accepted\r\nContent-Length: 8\r\n\r\nAccepted"), []);
    let answer = r#"{"jsonrpc":"2.0","id":7,"result":{}}"#;
    let commands = say(&mut pair, stream, &format!(": quiet\n\nevent: message\ndata: {answer}\n\n"));
    assert_eq!(commands, [Command::Line(answer.into())]);
    // The next one goes over the same connection.
    pair.write(CALL.replace('7', "8").as_bytes(), Some(CallId(8)), 0);
    let commands = all(&mut pair);
    assert!(matches!(commands[..], [Command::Write { channel, .. }] if channel == post), "{commands:?}");
}

#[test]
fn a_post_that_is_refused_was_not_sent_and_one_that_breaks_off_may_have_been() {
    for (end, outcome) in [
        (Heard::Bytes(b"HTTP/1.1 429 X\r\nContent-Length: 0\r\n\r\n".to_vec()), "not_sent"),
        (Heard::Bytes(b"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n".to_vec()), "sent_unknown"),
        (Heard::Closed(LinkFault::new(LinkFaultKind::Closed, "reset")), "sent_unknown"),
    ] {
        let (mut pair, _) = open();
        pair.write(CALL.as_bytes(), Some(CallId(7)), 0);
        let (post, _) = connect(&mut pair);
        pair.heard(post, end, 0);
        let commands = all(&mut pair);
        let [Command::Undelivered { call: CallId(7), fault }] = &commands[..] else { panic!("{commands:?}") };
        assert_eq!((fault.code, &fault.data["outcome"]), (Code::UpstreamUnavailable, &outcome.into()));
    }
    let (mut pair, _) = open();
    pair.write(CALL.as_bytes(), Some(CallId(7)), 0);
    let post = opened(&all(&mut pair));
    pair.heard(post, Heard::Closed(LinkFault::new(LinkFaultKind::Refused, "refused")), 0);
    let commands = all(&mut pair);
    let [Command::Undelivered { fault, .. }] = &commands[..] else { panic!("{commands:?}") };
    assert_eq!(fault.data["outcome"], "not_sent");
}

#[test]
fn a_session_that_is_not_known_ends_the_link() {
    let (mut pair, _) = open();
    pair.write(CALL.as_bytes(), Some(CallId(7)), 0);
    let (post, _) = connect(&mut pair);
    let commands = say(&mut pair, post, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    assert!(commands.iter().any(|command| matches!(command, Command::Undelivered { .. })), "{commands:?}");
    assert_eq!(lost(&commands).kind, LinkFaultKind::SessionLost);
}

#[test]
fn messages_go_to_no_other_origin() {
    for to in ["http://other.test/m", "//other.test/m", "https://h.test/m", "a b", ""] {
        let mut pair = pair();
        let (channel, _) = connect(&mut pair);
        let commands = say(&mut pair, channel, &format!("{STREAM}event: endpoint\ndata: {to}\n\n"));
        match to {
            "" => assert_eq!(commands, [Command::Connected], "the stream's own directory is an address"),
            _ => assert_eq!(lost(&commands).kind, LinkFaultKind::Protocol, "{to}"),
        }
    }
}

#[test]
fn what_is_no_stream_of_events_is_refused() {
    for (answer, kind) in [
        ("200 OK\r\nContent-Type: text/html", LinkFaultKind::Protocol),
        ("401 Unauthorized", LinkFaultKind::Unauthorized(401)),
        ("503 Busy", LinkFaultKind::Status(503)),
        ("307 There\r\nLocation: http://other.test/", LinkFaultKind::Status(307)),
    ] {
        let mut pair = pair();
        let (channel, _) = connect(&mut pair);
        let commands = say(&mut pair, channel, &format!("HTTP/1.1 {answer}\r\nContent-Length: 0\r\n\r\n"));
        assert_eq!(lost(&commands).kind, kind, "{answer}");
    }
    let mut pair = pair();
    connect(&mut pair);
    pair.tick(BY_MS);
    assert_eq!(lost(&all(&mut pair)).kind, LinkFaultKind::Timeout);
}

#[test]
fn an_endless_event_ends_the_link_and_its_calls_within_bounded_memory() {
    let (mut pair, stream) = open();
    pair.write(CALL.as_bytes(), Some(CallId(7)), 0);
    connect(&mut pair);
    let piece = vec![b'x'; 60_000];
    pair.heard(stream, Heard::Bytes(b"data: ".to_vec()), 0);
    let mut commands = Vec::new();
    for _ in 0..(100 << 20) / piece.len() {
        pair.heard(stream, Heard::Bytes(piece.clone()), 0);
        assert!(pair.held() <= 4 * UPSTREAM_EVENT_MAX, "{}", pair.held());
        commands.extend(all(&mut pair));
    }
    let undelivered = commands.iter().find_map(|command| match command {
        Command::Undelivered { call: CallId(7), fault } => Some(fault),
        _ => None,
    });
    assert_eq!(undelivered.map(|fault| fault.code), Some(Code::ResponseTooLarge));
    assert_eq!(lost(&commands).kind, LinkFaultKind::Protocol);
}
