//! A link over one WebSocket, against a server that is written out here byte by byte.

use super::*;
use crate::model::fault::Code;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

const BY_MS: u64 = 1_000;
const SEEDS: Seeds = Seeds { key: [1; 16], masks: [2; 32] };

fn link() -> WebSocketLink {
    let url = Url::parse_websocket("ws://h.test/mcp").unwrap();
    WebSocketLink::new(url, vec![("X-Key".to_string(), "k".to_string())], SEEDS, BY_MS)
}

fn all(link: &mut WebSocketLink) -> Vec<Command> {
    std::iter::from_fn(|| link.poll()).collect()
}

/// What an honest server answers to the key of `SEEDS`.
fn accepted() -> Vec<u8> {
    let key = format!("{}258EAFA5-E914-47DA-95CA-C5AB0DC85B11", STANDARD.encode(SEEDS.key));
    let accept = STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, key.as_bytes()));
    let head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n";
    format!("{head}Sec-WebSocket-Protocol: mcp\r\nSec-WebSocket-Accept: {accept}\r\n\r\n").into_bytes()
}

/// A short text, as a server sends it.
fn text(text: &str) -> Vec<u8> {
    [&[0x81, text.len() as u8], text.as_bytes()].concat()
}

fn open() -> WebSocketLink {
    let mut link = link();
    link.heard(Heard::Connected { proxy: None });
    link.heard(Heard::Bytes(accepted()));
    assert!(all(&mut link).contains(&Command::Connected));
    link
}

fn lost(commands: &[Command]) -> Option<&LinkFault> {
    commands.iter().find_map(|command| match command {
        Command::Lost(why) => Some(why),
        _ => None,
    })
}

#[test]
fn it_asks_for_the_subprotocol_with_the_headers_of_its_row() {
    let mut link = link();
    assert!(matches!(all(&mut link)[..], [Command::Open { .. }]));
    link.heard(Heard::Connected { proxy: None });
    let [Command::Write { bytes, .. }] = &all(&mut link)[..] else { panic!("one request") };
    let words = String::from_utf8(bytes.clone()).unwrap();
    for part in ["GET /mcp HTTP/1.1\r\n", "Sec-WebSocket-Protocol: mcp\r\n", "X-Key: k\r\n", "AQEBAQEBAQEBAQEBAQEBAQ=="]
    {
        assert!(words.contains(part), "{part} in {words}");
    }
}

#[test]
fn messages_that_come_with_the_answer_are_read_and_every_split_gives_the_same() {
    let bytes = [accepted(), text(r#"{"jsonrpc":"2.0","id":7,"result":{}}"#)].concat();
    for cut in 0..=bytes.len() {
        let mut link = link();
        link.heard(Heard::Connected { proxy: None });
        all(&mut link);
        link.heard(Heard::Bytes(bytes[..cut].to_vec()));
        link.heard(Heard::Bytes(bytes[cut..].to_vec()));
        let line = Command::Line(br#"{"jsonrpc":"2.0","id":7,"result":{}}"#.to_vec());
        assert_eq!(all(&mut link), [Command::Connected, line], "cut at {cut}");
    }
}

#[test]
fn a_call_before_it_is_open_or_after_it_is_over_is_undelivered_and_was_not_sent() {
    let mut over = open();
    over.heard(Heard::Closed(LinkFault::new(LinkFaultKind::Closed, "reset")));
    for mut link in [link(), over] {
        all(&mut link);
        link.write(b"{}", Some(CallId(3)));
        let [Command::Undelivered { call: CallId(3), fault }] = &all(&mut link)[..] else { panic!("it is told") };
        assert_eq!((fault.code, &fault.data["outcome"]), (Code::UpstreamUnavailable, &"not_sent".into()));
        link.write(b"{}", None);
        assert_eq!(all(&mut link), [], "nobody waits for a notification");
    }
}

#[test]
fn whatever_is_no_handshake_loses_the_link_with_its_reason() {
    let wrong_key = String::from_utf8(accepted()).unwrap().replace("Accept: ", "Accept: x");
    for (answer, kind) in [
        ("HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n", LinkFaultKind::Unauthorized(401)),
        ("HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", LinkFaultKind::Status(404)),
        ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", LinkFaultKind::Status(200)),
        ("SSH-2.0-x\r\n\r\n", LinkFaultKind::Protocol),
        (&wrong_key, LinkFaultKind::Protocol),
    ] {
        let mut link = link();
        link.heard(Heard::Connected { proxy: None });
        link.heard(Heard::Bytes(answer.as_bytes().to_vec()));
        assert_eq!(lost(&all(&mut link)).map(|why| why.kind), Some(kind), "{answer}");
    }
    let mut slow = link();
    assert_eq!(slow.next_deadline(), Some(BY_MS));
    slow.tick(BY_MS);
    assert_eq!(lost(&all(&mut slow)).map(|why| why.kind), Some(LinkFaultKind::Timeout));
}

#[test]
fn a_message_that_is_too_long_fails_the_calls_it_may_answer_and_then_the_link() {
    let mut link = open();
    link.write(b"{}", Some(CallId(3)));
    link.write(b"{}", Some(CallId(4)));
    link.heard(Heard::Bytes(text(r#"{"jsonrpc":"2.0","id":3,"result":{}}"#)));
    all(&mut link);
    link.heard(Heard::Bytes([&[0x81, 127][..], &(100_u64 << 20).to_be_bytes()].concat()));
    let told = all(&mut link);
    let undelivered: Vec<_> = told
        .iter()
        .filter_map(|command| match command {
            Command::Undelivered { call, fault } => Some((*call, fault.code)),
            _ => None,
        })
        .collect();
    assert_eq!(undelivered, [(CallId(4), Code::ResponseTooLarge)], "call 3 has its answer");
    assert_eq!(lost(&told).map(|why| why.kind), Some(LinkFaultKind::Protocol));
    link.heard(Heard::Bytes(text("{}")));
    assert_eq!(all(&mut link), [], "nothing is said after that");
}

#[test]
fn it_says_goodbye_and_a_close_of_the_server_loses_the_link() {
    let mut link = open();
    assert!(link.close(), "the server is told");
    assert!(matches!(all(&mut link)[..], [Command::Write { .. }]));
    let mut closed = open();
    closed.heard(Heard::Bytes(vec![0x88, 2, 0x03, 0xe9]));
    let told = all(&mut closed);
    let why = lost(&told).unwrap();
    assert_eq!((why.kind, why.message.contains("1001")), (LinkFaultKind::Closed, true));
    assert!(!self::link().close(), "before it is open there is nobody to tell");
}
