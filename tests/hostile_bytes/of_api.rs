//! The readers of `api/`: whole requests, from their first byte to what they ask, and each kind of body by itself, which may
//! then be larger than any that is let in.

use crate::inputs::{BROKEN, Make, VALUES, framed, random, repeated};
use crate::meter::{MIB, Reader};
use serde_json::json;
use std::hint::black_box;
use stdiod::api::auth::{Peer, Shown, Tokens};
use stdiod::api::definition::{fields, quantity, strict_json as bodies};
use stdiod::api::tool_error::{ToolError, as_text};
use stdiod::api::{auth, mcp, rest, route};
use stdiod::ids::EventId;
use stdiod::model::definition::Definition;
use stdiod::wire::http_in::{Method, Parser, Step};
use stdiod::wire::json::Json;

/// A definition, and no more than that, is made of a body; the rest is refused as soon as it is one too many.
const BODY: usize = 4;

#[test]
fn bodies_that_are_read_as_a_whole() {
    const FRAMES: [&str; 8] = [
        "V",
        r#"{"name":V}"#,
        r#"{"name":"n","image":"i","environment":V}"#,
        r#"{"name":"n","image":"i","files":{"/f":V}}"#,
        r#"{"name":"n","image":"i","volumes":V}"#,
        r#"{"name":"n","image":"i","resource_limits":{"memory":V}}"#,
        r#"{"name":"n","command":"npx","args":V}"#,
        r#"{"name":"n","image":"i","crash_loop":{"schedule_ms":V}}"#,
    ];
    let old = fields::parse(br#"{"name":"n","image":"i"}"#).expect("a definition");
    let read = |bytes: &[u8]| {
        black_box(fields::parse(bytes).ok());
        if let Ok(fields) = bodies::object(bytes) {
            black_box(fields::merge(&old, &fields).ok());
        }
    };
    for (at, (what, make)) in VALUES.iter().chain(BROKEN).enumerate() {
        // Each value in two places, so that each place gets several.
        for frame in [FRAMES[0], FRAMES[1 + at % (FRAMES.len() - 1)]] {
            Reader::new(&format!("a body {frame}"), BODY, &read).judge(what, |size| framed(frame, *make, size));
        }
    }
    let words = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        let value = json!(text);
        black_box((quantity::cpu_milli(&value), quantity::bytes(&value)));
        black_box((fields::server_name(&text).ok(), auth::token_name(&text).ok()));
        black_box((text.parse::<EventId>().ok(), auth::is_local_origin(&text)));
    };
    for (what, make) in WORDS {
        Reader::new("a word", 8, &words).judge(what, make);
    }
}

const WORDS: &[(&str, Make)] = &[
    ("digits", |size| repeated("", "9", "", size)),
    ("digits and a dot", |size| repeated("0.", "9", "m", size)),
    ("letters", |size| repeated("1", "K", "", size)),
    ("dashes", |size| repeated("", "-", "", size)),
    ("slashes", |size| repeated("", "/", "", size)),
    ("colons", |size| repeated("[", ":", "]", size)),
    ("random bytes", random),
];

#[test]
fn members_of_a_call() {
    const FRAMES: [&str; 4] =
        ["V", r#"{"method":"m","params":V}"#, r#"{"method":V,"params":{}}"#, r#"{"method":"m","timeout_ms":V}"#];
    let read = |bytes: &[u8]| drop(black_box(bodies::members(bytes, &["method", "params", "timeout_ms"])));
    for (at, (what, make)) in VALUES.iter().chain(BROKEN).enumerate() {
        for frame in [FRAMES[0], FRAMES[1 + at % 3]] {
            Reader::new(&format!("a call {frame}"), 2, &read).judge(what, |size| framed(frame, *make, size));
        }
    }
}

/// A request with that body, as the loop sees it: parsed, and interpreted. 8 MiB are the most that comes through.
fn asked(path: &str, head: &str, body: &[u8]) {
    let mut parser = Parser::new();
    let length = body.len();
    parser.feed(format!("POST {path} HTTP/1.1\r\nHost: h\r\n{head}Content-Length: {length}\r\n\r\n").as_bytes());
    for piece in body.chunks(64 * 1024) {
        parser.feed(piece);
        match parser.step() {
            Step::NeedMore | Step::Continue => {}
            Step::Refuse(fault) => return drop(black_box(rest::refuse(&fault))),
            Step::Request => {
                let (request, mut shown) = (parser.request(), Shown::default());
                let asked = rest::interpret(&request, &Tokens::default(), &Peer::Trusted, &mut shown);
                black_box(asked.map_err(|fault| rest::refuse(&fault)).is_ok());
                return;
            }
        }
    }
}

#[test]
fn whole_requests() {
    const NEWER: &str = "Content-Type: application/json\r\nMCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\n\
                         Mcp-Name: t\r\n";
    const OLDER: &str = "Content-Type: application/json\r\nMcp-Session-Id: 0123456789abcdef0123456789abcdef\r\n";
    const META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":V}"#;
    let newer = format!(r#"{{"id":1,"method":"tools/call","params":{{"name":"t",{META}}}}}"#);
    let named = newer.replace(r#"Capabilities":V"#, r#"Capabilities":{}"#).replace(r#""t""#, "V");
    let requests = [
        ("/api/v1/mcp/servers/x/call", "", r#"{"method":"m","params":V}"#),
        ("/api/v1/tokens", "", r#"{"name":"n","scopes":V}"#),
        ("/mcp/x", OLDER, "V"),
        ("/mcp/x", OLDER, r#"{"id":1,"method":"m","params":V}"#),
        ("/mcp/x", NEWER, &newer),
        ("/mcp/x", NEWER, &named),
        ("/messages?session=0123456789abcdef0123456789abcdef", OLDER, r#"{"id":V,"method":"m"}"#),
    ];
    for (at, (what, make)) in VALUES.iter().chain(BROKEN).enumerate() {
        // Every value as a body of its own, and in two of the other places.
        for (path, head, frame) in [requests[2], requests[at % requests.len()], requests[(at + 3) % requests.len()]] {
            // The buffer it is read into doubles as it grows, and is there twice while it does.
            let read = |body: &[u8]| asked(path, head, body);
            let name = format!("a request to {path} {frame}");
            Reader::new(&name, 6, &read).up_to(MIB).judge(what, |size| framed(frame, *make, size));
        }
    }
}

#[test]
fn paths_and_header_values() {
    let read = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        for method in [Method::Get, Method::Post, Method::Delete] {
            black_box(route::find(method, &text).ok());
        }
        black_box(mcp::decoded(&text));
        black_box(Tokens::default().authenticate(Some(bytes)).is_ok());
        black_box(auth::token_name(&text).is_ok());
    };
    let more: [(&str, Make); 3] = [
        ("a path of slashes", |size| repeated("/api/v1/mcp/servers/", "/", "/call", size)),
        ("a long Base64", |size| repeated("=?base64?", "QUFB", "?=", size)),
        ("a long token", |size| repeated("Bearer ", "x", "", size)),
    ];
    for (what, make) in WORDS.iter().chain(&more) {
        Reader::new("a path or a header", 8, &read).judge(what, make);
    }
}

#[test]
fn definitions_of_the_store() {
    // As a row is read: JSON first, then what it means.
    let read = |bytes: &[u8]| {
        if let Ok(value) = serde_json::from_slice::<serde_json::Value>(bytes) {
            black_box(serde_json::from_value::<Definition>(value).ok());
        }
    };
    for (what, make) in VALUES.iter().chain(BROKEN) {
        // The tree of values is the driver's. A row is the store's own; it is not bounded by a body.
        Reader::new("a stored definition", 120, &read).up_to(MIB).judge(what, make);
    }
}

/// A tool's result is a stranger's, and is told in words.
#[test]
fn results_of_tools() {
    const FRAMES: [&str; 4] = [
        r#"{"isError":true,"structuredContent":V}"#,
        r#"{"isError":true,"content":V}"#,
        r#"{"isError":true,"structuredContent":{"message":V,"error":{"message":"m"}}}"#,
        r#"{"content":[{"type":"text","text":V}]}"#,
    ];
    let told = |bytes: &[u8]| {
        let Ok(result) = Json::of(std::str::from_utf8(bytes).unwrap_or_default()) else { return };
        if let Some(error) = ToolError::of(result) {
            black_box(error.body(result.get()));
        }
        black_box(as_text(result));
    };
    for (what, make) in VALUES {
        for frame in FRAMES {
            Reader::new(&format!("a result {frame}"), 16, &told)
                .up_to(MIB)
                .judge(what, |size| framed(frame, *make, size));
        }
    }
}
