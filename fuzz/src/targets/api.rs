//! The readers of `api/`: headers that say who and where from, definitions, documents of other clients.

use stdiod::api::auth::{self, Peer, Shown, Tokens};
use stdiod::api::definition::{fields, strict_json};
use stdiod::api::import::body::Document;
use stdiod::api::{mcp, rest};
use stdiod::ids::EventId;
use stdiod::model::definition::Definition;
use stdiod::wire::http_in::{Parser, Step};

/// Requests whose head is known; what is put in is header fields, or a body behind them.
const REQUESTS: &[(&str, &str)] = &[
    ("GET /mcp/x HTTP/1.1\r\nHost: h\r\nAccept: text/event-stream\r\n", ""),
    (
        "POST /mcp/x HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n",
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#,
    ),
    ("DELETE /mcp/x HTTP/1.1\r\nHost: h\r\n", ""),
    ("POST /api/v1/mcp/servers/x/call HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n", r#"{"method":"m"}"#),
    ("GET /api/v1/mcp/servers HTTP/1.1\r\nHost: h\r\n", ""),
    ("POST /messages?session=0123456789abcdef0123456789abcdef HTTP/1.1\r\nHost: h\r\n", r#"{"id":1,"method":"m"}"#),
];
const PEERS: [Peer; 5] = [Peer::Token, Peer::Open, Peer::OpenTls, Peer::Scraper, Peer::Trusted];

/// `Last-Event-ID`, `Mcp-Session-Id`, `Authorization`, `Origin`, …: whatever fields a request brings.
pub fn headers(bytes: &[u8]) {
    let Some((which, fields)) = bytes.split_first() else { return };
    let which = usize::from(*which);
    let (head, body) = REQUESTS[which % REQUESTS.len()];
    let peer = &PEERS[which / REQUESTS.len() % PEERS.len()];
    let length = format!("Content-Length: {}\r\n", body.len());
    let request = [head.as_bytes(), fields, b"\r\n", length.as_bytes(), b"\r\n", body.as_bytes()].concat();
    let mut parser = Parser::new();
    parser.feed(&request);
    let mut step = parser.step();
    if step == Step::Continue {
        step = parser.step();
    }
    if step == Step::Request {
        let mut shown = Shown::default();
        let asked = rest::interpret(&parser.request(), &Tokens::default(), peer, &mut shown);
        // There is no token, so nobody can have shown one.
        assert!(shown.who().is_none() || matches!(peer, Peer::Open | Peer::OpenTls | Peer::Trusted), "who is that?");
        if let Err(fault) = asked {
            assert!((400..600).contains(&rest::refuse(&fault).status), "{fault:?}");
        }
    }
    let text = String::from_utf8_lossy(fields);
    if let Ok(id) = text.parse::<EventId>() {
        assert_eq!(id.to_string().parse(), Ok(id));
    }
    if let Ok(name) = auth::token_name(&text) {
        assert!(!name.is_empty() && !name.contains(['\r', '\n']), "{name:?}");
    }
    _ = (mcp::decoded(&text), auth::is_local_origin(&text));
    assert!(Tokens::default().authenticate(Some(fields)).is_err(), "nobody has a token");
}

/// What is taken as a definition is stored, and read again as the same.
pub fn definition(bytes: &[u8]) {
    if let Ok(definition) = fields::parse(bytes) {
        let row = serde_json::to_value(&definition).expect("it can be stored");
        assert_eq!(serde_json::from_value::<Definition>(row).expect("it can be read again"), definition);
    }
    let old = fields::parse(br#"{"name":"n","image":"i","environment":{"A":"secret"}}"#).expect("a definition");
    if let Ok(given) = strict_json::object(bytes)
        && let Ok((merged, _)) = fields::merge(&old, &given)
    {
        let row = serde_json::to_value(&merged).expect("it can be stored");
        assert_eq!(serde_json::from_value::<Definition>(row).expect("it can be read again"), merged);
    }
}

/// What editors, other clients and archives have is imported, or refused.
pub fn import(bytes: &[u8]) {
    let Some((how, bytes)) = bytes.split_first() else { return };
    let document = Document { bytes: bytes.to_vec(), is_archive: how % 2 == 1, project: None };
    if let Ok(candidates) = document.candidates() {
        for candidate in candidates {
            _ = format!("{candidate:?}");
        }
    }
}
