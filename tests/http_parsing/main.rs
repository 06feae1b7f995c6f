//! What `wire::http_in` makes of a byte stream: the right requests for valid ones wherever the reads are split, the right
//! refusal for malformed ones, and never a panic, an unbounded buffer or a second reading of the same bytes.
//!
//! Every random test prints the seed that replays its failure.

mod driver;
mod malformed;

use driver::*;
use malformed::*;
use stdiod::limits::{
    BODY_MAX, CHUNK_LINE_MAX, EMPTY_LINES_MAX, HEAD_MAX, HEADERS_MAX, REQUEST_LINE_MAX, TARGET_MAX, TRAILERS_MAX,
};
use stdiod::wire::http_in::{Method, Parser, RequestPhase, Step};

// --- valid streams ------------------------------------------------------------------------------------------------

/// A valid request, and what must be read from it.
fn request(rng: &mut Rng) -> (Vec<u8>, Seen) {
    let http10 = rng.one_in(5);
    let (word, method) = rng.pick(&[
        ("GET", Method::Get),
        ("HEAD", Method::Head),
        ("POST", Method::Post),
        ("PUT", Method::Put),
        ("PATCH", Method::Patch),
        ("DELETE", Method::Delete),
        ("OPTIONS", Method::Options),
        ("M-SEARCH", Method::Other),
    ]);
    let (target, path, pairs, authority) = target(method, rng);
    let host_sent = !http10 || rng.one_in(2);
    let host = authority.unwrap_or(if host_sent { "localhost:8480" } else { "" });
    let mark = rng.one_in(2).then(|| vec![b'm'; 1 + rng.below(40)]);
    let (connection, keep_alive) = rng.pick(&[
        ("X-Connection: close", !http10),
        ("Connection: close", false),
        ("Connection: Keep-Alive", true),
        ("connection: x , CLOSE,keep-alive", false),
    ]);
    let size = rng.pick(&[0, 0, 1, 5, 200, 3000]);
    let body = rng.bytes(size);
    let chunked = !http10 && rng.one_in(2);

    let mut fields = vec![connection.to_string()];
    if host_sent {
        fields
            .push(rng.pick(&["Host: localhost:8480", "host:localhost:8480", "HOST: \t localhost:8480 \t"]).to_string());
    }
    if let Some(mark) = &mark {
        fields.push(format!("X-Mark:  {} ", String::from_utf8_lossy(mark)));
    }
    for n in 0..rng.below(6) {
        fields.push(format!("X-Noise-{n}: {}", "v\t".repeat(rng.below(20))));
    }
    if chunked {
        fields.push(rng.pick(&["Transfer-Encoding: chunked", "transfer-encoding:Chunked"]).to_string());
    } else if !body.is_empty() || rng.one_in(2) {
        fields.push(format!("Content-Length: {}{}", rng.pick(&["", "00"]), body.len()));
    }
    if rng.one_in(4) {
        fields.push("Expect: 100-Continue".to_string());
    }
    for at in (1..fields.len()).rev() {
        fields.swap(at, rng.below(at + 1));
    }

    let empty_lines = if rng.one_in(4) { rng.below(EMPTY_LINES_MAX + 1) } else { 0 };
    let version = if http10 { "HTTP/1.0" } else { "HTTP/1.1" };
    let head = format!("{}{word} {target} {version}\r\n{}\r\n\r\n", "\r\n".repeat(empty_lines), fields.join("\r\n"));
    let mut bytes = head.into_bytes();
    if chunked {
        chunk(&body, &mut bytes, rng);
    } else {
        bytes.extend(&body);
    }
    let seen = Seen { method, path: path.into(), pairs, host: host.into(), mark, body, keep_alive, http10 };
    (bytes, seen)
}

type Pairs = Vec<(String, String)>;

/// A target, and the path, the query and the authority that it names.
fn target(method: Method, rng: &mut Rng) -> (String, &'static str, Pairs, Option<&'static str>) {
    if method == Method::Options && rng.one_in(3) {
        return ("*".into(), "*", vec![], None);
    }
    let (scheme, authority) =
        rng.pick(&[("", None), ("", None), ("http://", Some("other:81")), ("HTTPS://", Some("[::1]"))]);
    let (path_sent, path) = rng.pick(&[
        ("/", "/"),
        ("/api/v1/mcp/servers/a-b/call", "/api/v1/mcp/servers/a-b/call"),
        ("/a//../%C3%A4%20b+", "/a//../ä b+"),
        ("/%2e%25", "/.%"),
        (if authority.is_some() { "" } else { "/" }, "/"),
    ]);
    let (query, pairs): (&str, &[(&str, &str)]) = rng.pick(&[
        ("", &[][..]),
        ("?", &[]),
        ("?a=1&b", &[("a", "1"), ("b", "")]),
        ("?x+%2B=%2f%3d&&y==", &[("x +", "/="), ("y", "=")]),
    ]);
    let pairs = pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    (format!("{scheme}{}{path_sent}{query}", authority.unwrap_or("")), path, pairs, authority)
}

fn chunk(body: &[u8], bytes: &mut Vec<u8>, rng: &mut Rng) {
    let mut rest = body;
    while !rest.is_empty() {
        let length = (1 + rng.below(700)).min(rest.len());
        let size = rng.pick(&[format!("{length:x}"), format!("{length:X}"), format!("000{length:x}")]);
        bytes.extend(format!("{size}{}\r\n", rng.pick(&["", "", ";a=b", "; q=\" x\""])).bytes());
        bytes.extend(&rest[..length]);
        bytes.extend(b"\r\n");
        rest = &rest[length..];
    }
    bytes.extend(rng.pick(&["0\r\n\r\n", "00;last\r\n\r\n", "0\r\nX-Mark: trailer\r\nB:\r\n\r\n"]).bytes());
}

/// Pipelined requests, and what must be read from them. Clients repeat themselves, and a parser knows the last head again.
fn stream(rng: &mut Rng) -> (Vec<u8>, Outcome) {
    let mut all: Vec<_> = (0..1 + rng.below(4)).map(|_| request(rng)).collect();
    if rng.one_in(2) {
        let at = rng.below(all.len());
        all.insert(at, all[at].clone());
    }
    let (bytes, requests): (Vec<_>, Vec<_>) = all.into_iter().unzip();
    (bytes.concat(), Outcome { requests, end: End::Open(RequestPhase::Idle) })
}

#[test]
fn valid_streams_are_read_the_same_wherever_they_are_split() {
    for seed in 0..600 {
        let rng = &mut Rng(seed);
        let (bytes, expected) = stream(rng);
        assert_eq!(whole(&bytes), expected, "seed {seed}, in one piece");
        assert_eq!(bytewise(&bytes), expected, "seed {seed}, byte by byte");
        for _ in 0..5 {
            assert_eq!(split_at_random(&bytes, rng), expected, "seed {seed}, at random");
        }
    }
}

#[test]
fn a_stream_may_be_cut_in_two_anywhere() {
    let rng = &mut Rng(7);
    let (bytes, expected) = std::iter::repeat_with(|| stream(rng))
        .find(|(bytes, expected)| expected.requests.len() == 4 && (600..2000).contains(&bytes.len()))
        .expect("one of so many is of that size");
    for cut in 0..=bytes.len() {
        let (left, right) = bytes.split_at(cut);
        assert_eq!(drive([left, right].into_iter(), |_| {}), expected, "cut at {cut}");
    }
}

#[test]
fn malformed_requests_are_refused_with_their_status_wherever_they_are_split() {
    let good = "POST /first HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok";
    for (text, expected) in malformed() {
        let outcome = whole(text.as_bytes());
        assert_eq!((outcome.status(), outcome.requests.len()), (Some(expected), 0), "{:?}: {outcome:?}", shown(&text));
        assert_eq!(bytewise(text.as_bytes()), outcome, "{:?}", shown(&text));
        let behind = whole(format!("{good}{text}").as_bytes());
        assert_eq!((&behind.end, behind.requests.len()), (&outcome.end, 1), "{:?} behind another", shown(&text));
    }
}

#[test]
fn what_is_just_within_a_limit_is_accepted() {
    let fits = |text: String| {
        let outcome = whole(text.as_bytes());
        assert_eq!((outcome.requests.len(), &outcome.end), (1, &End::Open(RequestPhase::Idle)), "{:?}", shown(&text));
        assert!(bytewise(text.as_bytes()) == outcome, "{:?}", shown(&text));
    };
    let head = |fields: &str| format!("POST / HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
    let chunked = head("Transfer-Encoding: chunked\r\n");
    fits(format!("{}GET / HTTP/1.0\r\n\r\n", "\r\n".repeat(EMPTY_LINES_MAX)));
    fits(format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", "a".repeat(TARGET_MAX - 1)));
    fits(head(&"X: a\r\n".repeat(HEADERS_MAX - 1)));
    fits(head(&format!("X: {}\r\n", "a".repeat(HEAD_MAX - head("X: \r\n").len()))));
    fits(format!("{}{}", head(&format!("Content-Length: {BODY_MAX}\r\n")), "b".repeat(BODY_MAX)));
    fits(format!("{chunked}{BODY_MAX:x}\r\n{}\r\n0\r\n\r\n", "b".repeat(BODY_MAX)));
    fits(format!("{chunked}1;{}\r\nb\r\n0\r\n\r\n", "a".repeat(CHUNK_LINE_MAX - 4)));
    fits(format!("{chunked}0\r\nX: {}\r\n\r\n", "a".repeat(TRAILERS_MAX - 7)));
}

#[test]
fn what_never_ends_is_refused_at_its_bound() {
    let chunked = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
    let endless = [
        ("", "A", 414, REQUEST_LINE_MAX),
        ("GET / HTTP/1.1\r\n", "A", 431, HEAD_MAX),
        ("GET / HTTP/1.1\r\nX: ", "a", 431, HEAD_MAX),
        ("", "\r\n", 400, 2 * EMPTY_LINES_MAX + 2),
        (chunked, "0", 400, CHUNK_LINE_MAX),
        (&format!("{chunked}1;"), "a", 400, CHUNK_LINE_MAX),
        (chunked, "1\r\na\r\n", 413, 6 * BODY_MAX + 3),
        (&format!("{chunked}0\r\nX: "), "a", 431, TRAILERS_MAX),
    ];
    for (start, again, expected, bound) in endless {
        let piece = again.repeat(1024 / again.len());
        let mut fed = 0;
        let pieces = std::iter::repeat_n(piece.as_bytes(), 2 * (bound / piece.len() + 2));
        let counted = pieces.inspect(|piece| fed += piece.len());
        let outcome = drive(std::iter::once(start.as_bytes()).chain(counted), |_| {});
        assert_eq!(outcome.status(), Some(expected), "{start:?} and then {again:?} for ever");
        assert!(fed <= bound + piece.len(), "{start:?} and then {again:?}: {fed} bytes were taken");
    }
}

#[test]
fn the_raw_bytes_of_a_chunked_body_do_not_pile_up() {
    let head = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
    let mut parser = Parser::new();
    parser.feed(head.as_bytes());
    let one = format!("1;{}\r\na\r\n", "x".repeat(CHUNK_LINE_MAX - 4));
    for n in 1..20_000 {
        parser.feed(one.as_bytes());
        assert_eq!(parser.step(), Step::NeedMore);
        assert!(parser.buffered() <= head.len() + n, "only what is decoded is kept");
    }
}

// --- the conversation ---------------------------------------------------------------------------------------------

#[test]
fn a_head_that_differs_in_its_length_alone_is_read_as_a_new_one() {
    let request = |field: &str, body: &str| format!("POST /a HTTP/1.1\r\nHost: h\r\n{field}\r\n\r\n{body}");
    let stream = [
        request("Content-Length: 3", "one"),
        request("Content-Length: 5", "three"),
        request("Content-Length: 11", "eleven more"),
        request("Content-Length: 00", ""),
        request("Content-Length: 02", "ab"),
        request("Content-Type: text/plain", ""),
        request("Content-Type: text/plain", ""),
    ];
    let bodies = |outcome: &Outcome| outcome.requests.iter().map(|seen| seen.body.len()).collect::<Vec<_>>();
    let outcome = whole(stream.concat().as_bytes());
    assert_eq!(bodies(&outcome), [3, 5, 11, 0, 2, 0, 0]);
    assert_eq!(bytewise(stream.concat().as_bytes()), outcome);

    for (field, status) in [("Content-Length: x", 400), ("Content-Length: -", 400), ("Transfer-Codin: 1", 200)] {
        let outcome = whole((request("Content-Length: 3", "one") + &request(field, "")).as_bytes());
        assert_eq!(outcome.status().unwrap_or(200), status, "{field}");
    }
    let (most, more) = (BODY_MAX.to_string(), (BODY_MAX + 1).to_string());
    let mut parser = Parser::new();
    parser.feed(request(&format!("Content-Length: {most}"), &"x".repeat(BODY_MAX)).as_bytes());
    assert_eq!(parser.step(), Step::Request);
    parser.finish();
    parser.feed(request(&format!("Content-Length: {more}"), "").as_bytes());
    assert!(matches!(parser.step(), Step::Refuse(fault) if fault.code.status() == 413));

    // Of an empty body nobody waits to send it.
    let mut parser = Parser::new();
    parser.feed(request("Expect: 100-continue\r\nContent-Length: 0", "").as_bytes());
    assert_eq!(parser.step(), Step::Request);
    parser.finish();
    parser.feed(request("Expect: 100-continue\r\nContent-Length: 5", "").as_bytes());
    assert_eq!(parser.step(), Step::Continue);
}

#[test]
fn continue_is_said_once_and_only_to_a_client_that_waits() {
    let head = |length: usize, minor: u8| {
        format!("POST / HTTP/1.{minor}\r\nHost: h\r\nContent-Length: {length}\r\nExpect: 100-continue\r\n\r\n")
    };
    let steps = |pieces: &[&str]| {
        let mut parser = Parser::new();
        let mut steps = Vec::new();
        for piece in pieces {
            parser.feed(piece.as_bytes());
            steps.push(parser.step());
            while steps.last() == Some(&Step::Continue) {
                steps.push(parser.step());
            }
        }
        steps
    };
    use Step::{Continue, NeedMore, Request};
    assert_eq!(steps(&[&head(2, 1), "o", "k"]), [Continue, NeedMore, NeedMore, Request]);
    assert_eq!(steps(&[&(head(2, 1) + "o"), "k"]), [NeedMore, Request]);
    assert_eq!(steps(&[&(head(2, 1) + "ok")]), [Request]);
    assert_eq!(steps(&[&head(0, 1)]), [Request]);
    assert_eq!(steps(&[&head(2, 0), "ok"]), [NeedMore, Request]);
    let chunked = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n";
    assert_eq!(steps(&[chunked, "0\r\n", "\r\n"]), [Continue, NeedMore, NeedMore, Request]);
    assert_eq!(steps(&[&format!("{chunked}0"), "\r\n\r\n"]), [NeedMore, Request]);
    assert_eq!(steps(&[&format!("{chunked}1\r\n"), "", "a\r\n0\r\n\r\n"]), [NeedMore, NeedMore, Request]);
}

#[test]
fn the_phase_says_what_is_waited_for() {
    let mut parser = Parser::new();
    let mut fed = |bytes: &str| {
        parser.feed(bytes.as_bytes());
        let step = parser.step();
        let phase = parser.phase();
        if step == Step::Request {
            parser.finish();
        }
        (phase, parser.phase())
    };
    assert_eq!(fed(""), (RequestPhase::Idle, RequestPhase::Idle));
    assert_eq!(fed("\r\n"), (RequestPhase::Idle, RequestPhase::Idle));
    assert_eq!(fed("P"), (RequestPhase::Head, RequestPhase::Head));
    assert_eq!(fed("OST / HTTP/1.1\r\nHost: h\r\n"), (RequestPhase::Head, RequestPhase::Head));
    assert_eq!(fed("Content-Length: 2\r\n\r\n"), (RequestPhase::Body, RequestPhase::Body));
    assert_eq!(fed("okG"), (RequestPhase::Complete, RequestPhase::Head));
    assert_eq!(fed("ET / HTTP/1.0\r\n\r\n"), (RequestPhase::Complete, RequestPhase::Idle));
}

#[test]
fn a_pipelined_request_waits_until_the_one_before_is_finished() {
    let mut parser = Parser::new();
    parser.feed(b"GET /a HTTP/1.0\r\nx-a:  1 \r\nX-A: 2\r\n\r\nGET /b HTTP/1.0\r\n\r\n");
    for _ in 0..3 {
        assert_eq!(parser.step(), Step::Request);
        assert!(!parser.wants_bytes());
        let request = parser.request();
        assert_eq!((&*request.path, request.header("X-a"), request.header("x")), ("/a", Some(&b"1"[..]), None));
    }
    parser.finish();
    assert!(parser.wants_bytes());
    assert_eq!(parser.step(), Step::Request);
    assert_eq!(parser.request().path, "/b");
    parser.finish();
    parser.finish();
    assert_eq!((parser.step(), parser.phase()), (Step::NeedMore, RequestPhase::Idle));
}

// --- mutated streams ----------------------------------------------------------------------------------------------

const SNIPPETS: &[&str] = &[
    "\r",
    "\n",
    "\r\n",
    "\r\n\r\n",
    "\0",
    " ",
    "\t",
    ":",
    "%",
    "%2F",
    ";",
    ",",
    "0",
    "\u{7f}",
    "Content-Length: 5\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Host: x\r\n",
    "Expect: 100-continue\r\n",
    "\r\nContent-Length: 3",
    "\r\nTransfer-Encoding: identity",
    "\r\n X: folded",
    "\nHost: y",
    "0\r\n\r\n",
    "5\r\nhello\r\n",
    "GET / HTTP/1.1\r\n",
    "GET /x HTTP/1.1\r\nHost: h\r\n\r\n",
    "HTTP/1.0",
    " HTTP/2.0",
];

fn mutate(bytes: &mut Vec<u8>, rng: &mut Rng) {
    for _ in 0..1 + rng.below(3) {
        let start = rng.below(bytes.len() + 1);
        let range = start..(start + 1 + rng.below(40)).min(bytes.len());
        match rng.below(7) {
            0 if !range.is_empty() => bytes[start] = rng.next() as u8,
            1 if !range.is_empty() => bytes[start] ^= 1 << rng.below(8),
            2 => _ = bytes.drain(range),
            3 => {
                let again = bytes[range.clone()].to_vec();
                bytes.splice(range.end..range.end, again);
            }
            4 => bytes.truncate(start),
            // Line ends are where parsers disagree.
            5 => {
                let ends: Vec<usize> = memchr::memmem::find_iter(bytes, b"\r\n").collect();
                if !ends.is_empty() {
                    let end = rng.pick(&ends);
                    let instead = rng.pick(&["\n", "\r", "\r\r\n", "\r\n\r\n", "", "\r\n ", " \r\n"]);
                    bytes.splice(end..end + 2, instead.bytes());
                }
            }
            _ => _ = bytes.splice(start..start, rng.pick(SNIPPETS).bytes()),
        }
    }
}

/// A second reading of an accepted request, as plain as can be: no other one may be possible.
fn read_again(mut raw: &[u8], seen: &Seen) -> Result<(), String> {
    while let Some(rest) = raw.strip_prefix(b"\r\n") {
        raw = rest;
    }
    let (head, body) = raw.split_at(memchr::memmem::find(raw, b"\r\n\r\n").ok_or("no end of the head")? + 4);
    let head = String::from_utf8_lossy(head);
    let mut lines = head.trim_end_matches("\r\n").split("\r\n");
    let first: Vec<&str> = lines.next().unwrap_or("").split(' ').collect();
    if first.len() != 3 || !matches!(first[2], "HTTP/1.0" | "HTTP/1.1") {
        return Err(format!("request line {first:?}"));
    }
    let (mut hosts, mut lengths, mut codings) = (0, vec![], vec![]);
    for line in lines {
        let (name, value) = line.split_once(':').ok_or(format!("no colon in {line:?}"))?;
        if name.is_empty() || name.contains(|c: char| !c.is_ascii_graphic() || "()<>@,;\\\"/[]?={}".contains(c)) {
            return Err(format!("name {name:?}"));
        }
        if value.contains(|c: char| c != '\t' && c.is_ascii_control()) {
            return Err(format!("value {value:?}"));
        }
        match name.to_ascii_lowercase().as_str() {
            "host" => hosts += 1,
            "content-length" => lengths.push(value.trim().to_string()),
            "transfer-encoding" => codings.push(value.trim().to_ascii_lowercase()),
            _ => {}
        }
    }
    if hosts > 1 || (hosts == 0 && first[2] == "HTTP/1.1") || lengths.len() + codings.len() > 1 {
        return Err(format!("{hosts} hosts, lengths {lengths:?}, codings {codings:?}"));
    }
    let expected = match (lengths.first(), codings.first()) {
        (Some(length), _) => body.get(..length.parse().map_err(|_| "length")?).ok_or("a short body")?,
        (None, Some(coding)) if coding == "chunked" => return read_chunks_again(body, &seen.body),
        (None, Some(coding)) => return Err(format!("coding {coding}")),
        (None, None) => b"",
    };
    if expected != body || expected != seen.body {
        return Err(format!("a body of {} bytes was read as {}", expected.len(), seen.body.len()));
    }
    Ok(())
}

fn read_chunks_again(mut raw: &[u8], expected: &[u8]) -> Result<(), String> {
    let mut body: Vec<u8> = Vec::new();
    loop {
        let end = memchr::memchr(b'\n', raw).ok_or("no chunk size")?;
        let line = raw[..end].strip_suffix(b"\r").ok_or("a bare LF")?;
        let size = String::from_utf8_lossy(line.split(|byte| *byte == b';').next().unwrap_or(b""));
        if size.is_empty() || !size.bytes().all(|byte| byte.is_ascii_hexdigit()) || line.contains(&b'\r') {
            return Err(format!("chunk size {size:?}"));
        }
        let size = usize::from_str_radix(&size, 16).map_err(|_| "chunk size")?;
        raw = &raw[end + 1..];
        if size == 0 {
            break;
        }
        body.extend(raw.get(..size).ok_or("a short chunk")?);
        raw = raw[size..].strip_prefix(b"\r\n").ok_or("no end of a chunk")?;
    }
    let ended = raw == b"\r\n" || memchr::memmem::find(raw, b"\r\n\r\n") == Some(raw.len().wrapping_sub(4));
    if !ended || body != expected {
        return Err(format!("{body:?} and then {raw:?}"));
    }
    Ok(())
}

#[test]
fn mutated_streams_end_the_same_wherever_they_are_split_and_are_never_ambiguous() {
    let (mut accepted, mut refused, mut open) = (0, 0, 0);
    for seed in 0..25_000 {
        let rng = &mut Rng(0xbad_5eed ^ (seed << 32));
        let mut bytes = [request(rng).0, request(rng).0].concat();
        mutate(&mut bytes, rng);
        let outcome = whole(&bytes);
        let mut ends = vec![0];
        assert_eq!(drive(bytes.chunks(1), |end| ends.push(end)), outcome, "seed {seed}, byte by byte");
        assert_eq!(split_at_random(&bytes, rng), outcome, "seed {seed}, at random");
        for (range, seen) in ends.windows(2).zip(&outcome.requests) {
            let raw = &bytes[range[0]..range[1]];
            if let Err(why) = read_again(raw, seen) {
                panic!("seed {seed}: {why} in {:?}", String::from_utf8_lossy(raw));
            }
        }
        accepted += outcome.requests.len();
        match outcome.end {
            End::Open(_) => open += 1,
            End::Refused(_) => refused += 1,
        }
    }
    let enough = accepted > 5_000 && refused > 5_000 && open > 5_000;
    assert!(enough, "a mutator that tests little: {accepted} accepted, {refused} refused, {open} open");
}

#[test]
fn noise_is_refused_or_waited_for_but_never_a_request() {
    for seed in 0..2_000 {
        let rng = &mut Rng(seed);
        let length = 1 + rng.below(400);
        let bytes = rng.bytes(length);
        let outcome = whole(&bytes);
        assert_eq!(outcome.requests, [], "seed {seed}");
        assert_eq!(bytewise(&bytes), outcome, "seed {seed}");
    }
}
