//! The readers of `wire/`: HTTP requests and answers, lines and blocks, JSON and JSON-RPC, events, times. Fed at once, byte
//! by byte and in portions of any size.

use crate::inputs::{BROKEN, Make, VALUES, framed, portions, random, repeated};
use crate::meter::{MIB, Reader};
use std::hint::black_box;
use std::io::{BufReader, Read};
use stdiod::limits::{LINE_HEAD_KEPT, LINE_TAIL_KEPT};
use stdiod::model::definition::Framing;
use stdiod::wire::answer::{Body, read_head, read_line};
use stdiod::wire::http::response::{Asked, Part, Reader as AnswerReader};
use stdiod::wire::http_in::{Parser, Step};
use stdiod::wire::json::{self, Json};
use stdiod::wire::lines::{Line, Lines, framed as in_blocks};
use stdiod::wire::sse::reader::Reader as EventReader;
use stdiod::wire::websocket::WebSocket;
use stdiod::wire::{jsonrpc, relay, sse, times};

/// Sixteen million calls are too many for a test; a million shows the same.
const BYTEWISE: usize = MIB;

// --- HTTP requests ------------------------------------------------------------------------------------------------------

const REQUESTS: &[(&str, Make)] = &[
    ("empty lines", |size| repeated("", "\r\n", "", size)),
    ("a long target", |size| repeated("GET /", "a", " HTTP/1.1\r\nHost: h\r\n\r\n", size)),
    ("a long target of escapes", |size| repeated("GET /", "%41", " HTTP/1.1\r\nHost: h\r\n\r\n", size)),
    ("a long query", |size| repeated("GET /?", "a=%20&", " HTTP/1.1\r\nHost: h\r\n\r\n", size)),
    ("many fields", |size| repeated("GET / HTTP/1.1\r\nHost: h\r\n", "a: b\r\n", "\r\n", size)),
    ("a long field", |size| repeated("GET / HTTP/1.1\r\nHost: h\r\na: ", "b", "\r\n\r\n", size)),
    ("folded fields", |size| repeated("GET / HTTP/1.1\r\nHost: h\r\na: b\r\n", " c\r\n", "\r\n", size)),
    ("a list of connection words", |size| {
        repeated("GET / HTTP/1.1\r\nHost: h\r\nConnection: ", "a,", "\r\n\r\n", size)
    }),
    ("requests one after another", |size| repeated("", "GET / HTTP/1.1\r\nHost: h\r\n\r\n", "", size)),
    ("requests with bodies", |size| {
        repeated("", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc", "", size)
    }),
    ("a large body", |size| {
        let head = format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", (size / 2).min(8 * MIB));
        repeated(&head, "x", "", size)
    }),
    ("small chunks", |size| {
        repeated("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n", "0\r\n\r\n", size)
    }),
    ("chunks with long extensions", |size| {
        let chunk = format!("1;{}\r\nx\r\n", "e".repeat(200));
        repeated("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n", &chunk, "0\r\n\r\n", size)
    }),
    ("many trailers", |size| {
        repeated("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", "a: b\r\n", "\r\n", size)
    }),
    ("a chunk size of zeros", |size| {
        repeated("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n", "0", "1\r\nx\r\n", size)
    }),
    ("a length of digits", |size| repeated("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: ", "0", "1\r\n\r\nx", size)),
    ("random bytes", random),
];

fn requests<'b>(pieces: impl Iterator<Item = &'b [u8]>) {
    let mut parser = Parser::new();
    for piece in pieces {
        parser.feed(piece);
        loop {
            match parser.step() {
                Step::NeedMore => break,
                Step::Continue => {}
                Step::Request => {
                    let request = parser.request();
                    black_box((request.query_pairs().count(), request.headers().count(), request.header("x")));
                    black_box(relay::request(&request, &relay::target(&request.path, request.query), "h"));
                    parser.finish();
                }
                Step::Refuse(fault) => return drop(black_box(fault)),
            }
        }
    }
}

#[test]
fn http_requests() {
    for (what, make) in REQUESTS {
        Reader::new("requests at once", 4, &|bytes| requests(std::iter::once(bytes))).judge(what, make);
        Reader::new("requests in portions", 4, &|bytes| requests(portions(bytes))).judge(what, make);
        let bytewise = |bytes: &[u8]| requests(bytes.chunks(1));
        Reader::new("requests byte by byte", 4, &bytewise).up_to(BYTEWISE).judge(what, make);
    }
}

// --- HTTP answers -------------------------------------------------------------------------------------------------------

const ANSWERS: &[(&str, Make)] = &[
    ("interim answers", |size| repeated("", "HTTP/1.1 100\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n", size)),
    ("empty lines", |size| repeated("", "\r\n", "", size)),
    ("bare line ends", |size| repeated("HTTP/1.1 200 OK", "\n", "", size)),
    ("many fields", |size| repeated("HTTP/1.1 200 OK\r\n", "a: b\r\n", "\r\n", size)),
    ("a long field", |size| repeated("HTTP/1.1 200 OK\r\na: ", "b", "\r\n\r\n", size)),
    ("a long reason", |size| repeated("HTTP/1.1 200 ", "b", "\r\n\r\n", size)),
    ("small chunks", |size| {
        repeated("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n", "0\r\n\r\n", size)
    }),
    ("many trailers", |size| {
        repeated("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", "a: b\r\n", "\r\n", size)
    }),
    ("a body without a length", |size| repeated("HTTP/1.1 200 OK\r\n\r\n", "x", "", size)),
    ("a body with a length", |size| {
        repeated(&format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", size - 64), "x", "", size)
    }),
    ("a body with a length of its own", |size| {
        repeated("HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615\r\n\r\n", "x", "", size)
    }),
    ("random bytes", random),
];

/// As a client reads it: from a stream, in small reads.
fn answer(bytes: &[u8]) {
    let mut reader = BufReader::with_capacity(1024, bytes);
    let Ok(head) = read_head(&mut reader) else { return };
    let Ok(mut body) = Body::of(&head, "GET", reader) else { return };
    let mut buf = [0; 512];
    while body.read(&mut buf).is_ok_and(|read| read > 0) {}
}

#[test]
fn http_answers() {
    for (what, make) in ANSWERS {
        Reader::new("an answer", 1, &answer).judge(what, make);
        // Whoever relays an answer reads its head as it comes.
        let relayed = |bytes: &[u8]| {
            let mut head = relay::HeadReader::default();
            for portion in bytes.chunks(16 * 1024) {
                if head.feed(portion) != relay::Head::Partial {
                    return;
                }
            }
        };
        Reader::new("a relayed answer", 3, &relayed).judge(what, make);
    }
}

/// As the loop reads it from an upstream: in pieces, whose bodies go on at once.
fn upstream<'b>(asked: Asked, pieces: impl Iterator<Item = &'b [u8]>) {
    let mut reader = AnswerReader::default();
    reader.ask(asked);
    for piece in pieces {
        reader.feed(piece);
        loop {
            match reader.next_part() {
                Ok(Some(Part::End { .. })) if reader.is_idle() => reader.ask(asked),
                Ok(Some(part)) => drop(black_box(part)),
                Ok(None) => break,
                Err(broken) => return drop(black_box(broken.message())),
            }
        }
    }
    _ = black_box(reader.closed());
}

#[test]
fn answers_of_upstreams() {
    for (what, make) in ANSWERS {
        for asked in [Asked::Plain, Asked::Upgrade] {
            let of = |how: &str| format!("{asked:?} upstream answers {how}");
            Reader::new(&of("at once"), 4, &|bytes| upstream(asked, std::iter::once(bytes))).judge(what, make);
            Reader::new(&of("in portions"), 1, &|bytes| upstream(asked, portions(bytes))).judge(what, make);
            let bytewise = |bytes: &[u8]| upstream(asked, bytes.chunks(1));
            Reader::new(&of("byte by byte"), 1, &bytewise).up_to(BYTEWISE).judge(what, make);
        }
    }
}

const STREAMS: &[(&str, Make)] = &[
    ("small events", |size| repeated("", "data:x\n\n", "", size)),
    ("empty events", |size| repeated("", "data\n\n", "", size)),
    ("empty lines", |size| repeated("", "\r\n", "", size)),
    ("one endless line", |size| repeated("data:", "x", "", size)),
    ("one endless event", |size| repeated("", "data:x\r", "", size)),
    ("one endless event of empty lines", |size| repeated("", "data\n", "", size)),
    ("an endless comment", |size| repeated(":", "x", "", size)),
    ("comments", |size| repeated("", ":\n", "", size)),
    ("marks", |size| repeated("", "\u{feff}", "", size)),
    ("ids", |size| repeated("", "id:abc\n", "", size)),
    ("colons", |size| repeated("", ":", "\n\n", size)),
    ("digits", |size| repeated("retry:", "9", "\n\n", size)),
    ("random bytes", random),
];

fn stream<'b>(pieces: impl Iterator<Item = &'b [u8]>) {
    let mut reader = EventReader::new(8 * MIB);
    for mut piece in pieces {
        while let Ok(Some(event)) = reader.read(&mut piece) {
            black_box(event);
        }
    }
}

#[test]
fn events_of_upstreams() {
    for (what, make) in STREAMS {
        Reader::new("a stream at once", 2, &|bytes| stream(std::iter::once(bytes))).judge(what, make);
        Reader::new("a stream in portions", 3, &|bytes| stream(portions(bytes))).judge(what, make);
        Reader::new("a stream byte by byte", 3, &|bytes| stream(bytes.chunks(1))).up_to(BYTEWISE).judge(what, make);
    }
}

const SOCKETS: &[(&str, Make)] = &[
    ("small messages", |size| frames(b"\x81\x01x", size)),
    ("empty parts of one message", |size| [&b"\x01\x00"[..], &frames(b"\x00\x00", size)].concat()),
    ("small parts of one message", |size| [&b"\x01\x00"[..], &frames(b"\x00\x01x", size)].concat()),
    ("pings", |size| frames(b"\x89\x01x", size)),
    ("one large message", |size| {
        let length = (size as u64).to_be_bytes();
        [&b"\x81\x7f"[..], &length, &vec![b'x'; size]].concat()
    }),
    ("random bytes", random),
];

fn frames(frame: &[u8], size: usize) -> Vec<u8> {
    frame.repeat(size / frame.len())
}

fn socket<'b>(pieces: impl Iterator<Item = &'b [u8]>) {
    let mut socket = WebSocket::new(8 * MIB, [1; 32]);
    for mut piece in pieces {
        while let Ok(Some(incoming)) = socket.read(&mut piece) {
            black_box(incoming);
        }
        black_box(socket.take_out());
    }
}

#[test]
fn messages_of_web_sockets() {
    for (what, make) in SOCKETS {
        Reader::new("a WebSocket at once", 2, &|bytes| socket(std::iter::once(bytes))).judge(what, make);
        Reader::new("a WebSocket in portions", 3, &|bytes| socket(portions(bytes))).judge(what, make);
        // Each of its pings is answered.
        Reader::new("a WebSocket byte by byte", 12, &|bytes| socket(bytes.chunks(1))).up_to(BYTEWISE).judge(what, make);
    }
}

#[test]
fn lines_of_an_answer_are_bounded() {
    let line = |bytes: &[u8]| {
        let mut reader = BufReader::new(bytes);
        let mut line = Vec::new();
        while read_line(&mut reader, &mut line, 1000).is_ok_and(|read| read > 0) {
            line.clear();
        }
    };
    Reader::new("a line of an answer", 1, &line).judge("one endless line", |size| repeated("", "x", "", size));
    Reader::new("a line of an answer", 1, &line).judge("empty lines", |size| repeated("", "\n", "", size));
}

// --- lines and blocks ---------------------------------------------------------------------------------------------------

const OUTPUTS: &[(&str, Make)] = &[
    ("empty lines", |size| repeated("", "\n", "", size)),
    ("empty lines of Windows", |size| repeated("", "\r\n", "", size)),
    ("spaces", |size| repeated("", " ", "", size)),
    ("lines of two bytes", |size| repeated("", "x\n", "", size)),
    ("one endless line", |size| repeated("", "x", "", size + MIB)),
    ("lines of some length", |size| repeated("", &format!("{}\n", "x".repeat(5000)), "", size)),
    ("small blocks", |size| repeated("", "Content-Length: 2\r\n\r\n{}", "", size)),
    ("empty blocks", |size| repeated("", "Content-Length: 0\r\n\r\n", "", size)),
    ("a block of all", |size| repeated(&format!("Content-Length: {}\r\n\r\n", size - 64), "x", "", size)),
    ("a block behind a large head", |size| {
        let head = format!("Content-Length: {}\r\n{}\r\n", size.saturating_sub(2000), "x\n".repeat(400));
        repeated(&head, "x", "", size)
    }),
    ("a block that is too large", |size| repeated("Content-Length: 999999999\r\n\r\n", "x", "", size)),
    ("a block without a number", |size| repeated("Content-Length: 1\r\n\r\nx", "Content-Length: x\r\n\r\n", "", size)),
    ("a head without an end", |size| repeated("Content-Length: 1\r\n", "Content-Type: x\r\n", "", size)),
    ("heads that name no length", |size| repeated("Content-Length: 1\r\n\r\nx", "content-\n", "", size)),
    ("spaces between blocks", |size| repeated("Content-Length: 1\r\n\r\nx", " ", "", size)),
    ("line ends between blocks", |size| repeated("Content-Length: 1\r\n\r\nx", "\r\n", "", size)),
    ("random bytes", random),
];

fn lines<'b>(framing: Framing, pieces: impl Iterator<Item = &'b [u8]>) {
    let mut lines = Lines::with_framing(framing);
    for piece in pieces {
        lines.feed(piece);
        while let Some(line) = lines.next_line() {
            match line {
                Line::Whole(line) => drop(black_box(line)),
                Line::TooLong { head, tail } | Line::NoRoom { head, tail } => drop(black_box((head, tail))),
            }
        }
    }
}

#[test]
fn lines_and_blocks() {
    for (what, make) in OUTPUTS {
        for framing in [Framing::Auto, Framing::Newline, Framing::ContentLength] {
            // 2 for the buffer, which doubles, and 2 more while it is copied into a larger one.
            let of = |how: &str| format!("{framing:?} lines {how}");
            Reader::new(&of("at once"), 4, &|bytes| lines(framing, std::iter::once(bytes))).judge(what, make);
            Reader::new(&of("in portions"), 4, &|bytes| lines(framing, portions(bytes))).judge(what, make);
            let bytewise = |bytes: &[u8]| lines(framing, bytes.chunks(1));
            Reader::new(&of("byte by byte"), 4, &bytewise).up_to(BYTEWISE).judge(what, make);
        }
        Reader::new("lines put into blocks", 30, &|bytes| drop(black_box(in_blocks(bytes)))).judge(what, make);
    }
}

// --- JSON ---------------------------------------------------------------------------------------------------------------

#[test]
fn json_values() {
    let value = |bytes: &[u8]| {
        if let Ok(text) = std::str::from_utf8(bytes)
            && let Ok(value) = Json::of(text)
        {
            black_box(value.text());
        }
    };
    let members = |bytes: &[u8]| _ = black_box(json::members(bytes).take_while(Result::is_ok).count());
    for (what, make) in VALUES.iter().chain(BROKEN) {
        Reader::new("a JSON value", 2, &value).judge(what, make);
        Reader::new("members", 2, &members).judge(what, make);
    }
}

#[test]
fn json_rpc() {
    const FRAMES: [&str; 6] = [
        "V",
        r#"{"jsonrpc":"2.0","id":7,"result":V}"#,
        r#"{"jsonrpc":"2.0","id":7,"error":V}"#,
        r#"{"jsonrpc":"2.0","id":7,"error":{"code":1,"data":V}}"#,
        r#"{"jsonrpc":"2.0","id":V,"method":"m"}"#,
        r#"{"jsonrpc":"2.0","method":V,"params":0}"#,
    ];
    let parse = |bytes: &[u8]| {
        let message = jsonrpc::parse(bytes);
        if let Some(jsonrpc::Message::Request { id, method, params }) = &message {
            black_box(jsonrpc::forwarded(1, method, params.map(Json::get)));
            black_box(jsonrpc::error_reply(*id, 1, method));
        }
        black_box(message);
    };
    let torn = |bytes: &[u8]| {
        let head = &bytes[..bytes.len().min(LINE_HEAD_KEPT)];
        black_box(jsonrpc::reply_id_of_torn(head, &bytes[bytes.len().saturating_sub(LINE_TAIL_KEPT)..]));
        // Much more than it ever gets.
        black_box(jsonrpc::reply_id_of_torn(bytes, bytes));
    };
    for (at, (what, make)) in VALUES.iter().chain(BROKEN).enumerate() {
        // Each value by itself and in two places, so that each place gets several.
        for frame in [FRAMES[0], FRAMES[1 + at % 5], FRAMES[1 + (at + 2) % 5]] {
            Reader::new(&format!("a message {frame}"), 6, &parse).judge(what, |size| framed(frame, *make, size));
        }
        let frame = [FRAMES[0], FRAMES[1]][at % 2];
        Reader::new(&format!("a torn line {frame}"), 1, &torn).judge(what, |size| framed(frame, *make, size));
    }
}

// --- the rest -----------------------------------------------------------------------------------------------------------

#[test]
fn events_and_times() {
    let event = |bytes: &[u8]| {
        let mut out = Vec::new();
        sse::event(&mut out, Some("e"), Some("1"), bytes);
        let text = String::from_utf8_lossy(bytes);
        sse::comment(&mut out, &text);
        sse::event(&mut out, Some(&text), Some(&text), b"");
    };
    let time = |bytes: &[u8]| _ = black_box(times::parse_rfc3339(&String::from_utf8_lossy(bytes)));
    let texts: [(&str, Make); 5] = [
        ("line ends", |size| repeated("", "\n", "", size)),
        ("line ends of two kinds", |size| repeated("", "\r\n", "", size)),
        ("lines", |size| repeated("", "a\r", "", size)),
        ("a long fraction", |size| repeated("2026-02-17T10:00:00.", "9", "Z", size)),
        ("random bytes", random),
    ];
    for (what, make) in texts {
        Reader::new("an event", 40, &event).judge(what, make);
        Reader::new("a time", 4, &time).judge(what, make);
    }
}
