//! Answers in every framing, in every split, and cut off.

use super::*;
use crate::wire::mutation::Mutator;

/// All that came of some bytes: heads, the body as one, and how it ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    head: Option<Head>,
    body: Vec<u8>,
    ended: bool,
    reusable: bool,
    broken: Option<Broken>,
}

fn read<'b>(asked: Asked, pieces: impl Iterator<Item = &'b [u8]>, closed: bool) -> Seen {
    let (mut reader, mut seen) = (Reader::default(), Seen::default());
    reader.ask(asked);
    for piece in pieces {
        reader.feed(piece);
        drain(&mut reader, &mut seen);
    }
    if closed && seen.broken.is_none() {
        match reader.closed() {
            Ok(ended) => seen.ended |= ended,
            Err(broken) => seen.broken = Some(broken),
        }
    }
    seen.reusable &= seen.broken.is_none();
    seen
}

fn drain(reader: &mut Reader, seen: &mut Seen) {
    loop {
        match reader.next_part() {
            Ok(Some(Part::Head(head))) => assert!(seen.head.replace(head).is_none(), "one head"),
            Ok(Some(Part::Body(bytes))) => {
                assert!(seen.head.is_some() && !seen.ended && !bytes.is_empty());
                seen.body.extend_from_slice(&bytes);
            }
            Ok(Some(Part::End { keep_alive })) => {
                assert!(!std::mem::replace(&mut seen.ended, true), "one end");
                seen.reusable = keep_alive;
            }
            Ok(None) => return,
            Err(broken) => return seen.broken = Some(broken),
        }
    }
}

fn whole(asked: Asked, text: &str) -> Seen {
    read(asked, std::iter::once(text.as_bytes()), true)
}

const SAMPLES: &[(&str, &str, bool)] = &[
    ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello", true),
    ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", "", true),
    ("HTTP/1.1 200\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", "ok", false),
    ("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", "ok", false),
    ("HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 2\r\n\r\nok", "ok", true),
    ("HTTP/1.1 200 OK\r\n\r\nuntil the end", "until the end", false),
    ("HTTP/1.1 204 No\r\nContent-Length: 7\r\n\r\n", "", true),
    ("HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n", "", true),
    (
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n5;x=y\r\nhello\r\n1\r\n!\r\n0\r\nA: b\r\n\r\n",
        "hello!",
        true,
    ),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "", true),
    (
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 H\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx",
        "x",
        true,
    ),
];

#[test]
fn every_framing_gives_its_body_and_says_whether_the_connection_stays() {
    for (text, body, reusable) in SAMPLES {
        let seen = whole(Asked::Plain, text);
        assert_eq!(seen.broken, None, "{text:?}");
        assert_eq!((seen.body.as_slice(), seen.ended, seen.reusable), (body.as_bytes(), true, *reusable), "{text:?}");
        assert!(seen.head.is_some_and(|head| head.status >= 200));
    }
}

#[test]
fn a_head_has_its_fields_and_no_body_follows_the_answer_to_a_head_request() {
    let text =
        "HTTP/1.1 404 Gone away\r\nMcp-Session-Id: a\r\nSet-Cookie: 1\r\nset-cookie: 2\r\nContent-Length: 9\r\n\r\n";
    let seen = whole(Asked::Head, text);
    let head = seen.head.unwrap();
    assert_eq!((head.status, head.header("mcp-session-id"), head.header("x")), (404, Some("a"), None));
    assert_eq!(head.each("Set-Cookie").collect::<Vec<_>>(), ["1", "2"]);
    assert!(seen.ended && seen.reusable && seen.body.is_empty());
}

#[test]
fn any_split_gives_the_same_for_good_and_for_broken_answers() {
    let seeds: Vec<&[u8]> = SAMPLES.iter().map(|(text, _, _)| text.as_bytes()).collect();
    for seed in 0..600 {
        let mut mutator = Mutator::new(seed);
        let bytes = if seed < 50 { seeds[mutator.below(seeds.len())].to_vec() } else { mutator.mutate(&seeds) };
        for asked in [Asked::Plain, Asked::Head, Asked::Upgrade, Asked::Connect] {
            let at_once = read(asked, std::iter::once(&bytes[..]), true);
            assert_eq!(read(asked, bytes.chunks(1), true), at_once, "seed {seed} byte by byte: {bytes:?}");
            let mut cuts: Vec<usize> = (0..3).map(|_| mutator.below(bytes.len() + 1)).chain([0, bytes.len()]).collect();
            cuts.sort_unstable();
            let pieces = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]);
            assert_eq!(read(asked, pieces, true), at_once, "seed {seed} cut at {cuts:?}: {bytes:?}");
        }
    }
}

#[test]
fn an_answer_that_is_cut_off_is_never_taken_for_a_whole_one() {
    for (text, _, _) in SAMPLES.iter().filter(|(text, _, _)| !text.ends_with("until the end")) {
        for length in 0..text.len() {
            let seen = whole(Asked::Plain, &text[..length]);
            assert!(!seen.ended && matches!(seen.broken, Some(Broken::CutOff(_))), "{:?}: {seen:?}", &text[..length]);
        }
    }
}

#[test]
fn what_can_be_read_in_two_ways_is_refused() {
    for head in [
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n",
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n",
        "HTTP/1.1 200 OK\r\nA : b\r\n",
        "HTTP/1.1 200 OK\r\nA: b\r\n c\r\n",
        "HTTP/1.1 200 OK\nContent-Length: 0\n",
        "HTTP/1.1 099 OK\r\n",
        "HTTP/1.1 600 OK\r\n",
        "HTTP/2.0 200 OK\r\n",
        "\r\nHTTP/1.1 200 OK\r\n",
        "SSH-2.0-x\r\n",
        "HTTP/1.1 101 Switching\r\n",
    ] {
        let seen = whole(Asked::Plain, &format!("{head}\r\n"));
        assert!(matches!(seen.broken, Some(Broken::Malformed(_))), "{head:?}: {seen:?}");
    }
    for body in ["x\r\n", "5 \r\nhello\r\n", "2\r\nabc\r\n", "-1\r\n", "fffffffffffffffff\r\n"] {
        let seen = whole(Asked::Plain, &format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{body}"));
        assert!(matches!(seen.broken, Some(Broken::Malformed(_))), "{body:?}: {seen:?}");
    }
}

#[test]
fn heads_and_interim_answers_have_a_bound() {
    let long = [
        format!("HTTP/1.1 200 {}", "x".repeat(UPSTREAM_STATUS_LINE_MAX)),
        format!("HTTP/1.1 200 OK\r\nA: {}", "x".repeat(UPSTREAM_HEAD_MAX)),
        format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(HEADERS_MAX + 1)),
    ];
    for text in long {
        let seen = whole(Asked::Plain, &text);
        assert!(matches!(seen.broken, Some(Broken::TooLarge(_))), "{:?}", seen.broken);
    }
    let interim = "HTTP/1.1 100 C\r\n\r\n".repeat(CLIENT_INTERIM_MAX + 1);
    assert!(matches!(whole(Asked::Plain, &interim).broken, Some(Broken::Malformed(_))));
}

#[test]
fn a_connection_carries_one_answer_after_the_other_and_nothing_unasked() {
    let mut reader = Reader::default();
    for _ in 0..3 {
        let mut seen = Seen::default();
        reader.ask(Asked::Plain);
        assert!(!reader.is_idle());
        reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        drain(&mut reader, &mut seen);
        assert!(seen.reusable && reader.is_idle());
        assert_eq!(reader.closed(), Ok(false), "between two answers a close is no fault");
    }
    reader.feed(b"H");
    assert_eq!(reader.next_part(), Err(Broken::Unasked));
    let two = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".repeat(2);
    let seen = whole(Asked::Plain, &two);
    assert!(seen.ended && !seen.reusable && seen.body == b"ok");
}

#[test]
fn behind_a_switch_the_bytes_are_anothers() {
    for (asked, head) in [
        (Asked::Connect, "HTTP/1.1 200 Connection established\r\nContent-Length: 3\r\n\r\n"),
        (Asked::Upgrade, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"),
    ] {
        let (mut reader, mut seen) = (Reader::default(), Seen::default());
        reader.ask(asked);
        reader.feed(head.as_bytes());
        reader.feed(b"\x81\x00");
        drain(&mut reader, &mut seen);
        assert!(reader.has_switched() && !seen.ended && seen.head.is_some());
        assert_eq!(reader.into_rest(), b"\x81\x00");
    }
    let refused = whole(Asked::Connect, "HTTP/1.1 407 Login\r\nContent-Length: 2\r\n\r\nno");
    assert!(refused.ended && !refused.reusable && refused.body == b"no");
}

#[test]
fn a_large_body_is_not_held() {
    let mut reader = Reader::default();
    reader.ask(Asked::Plain);
    reader.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    let mut seen = 0;
    for _ in 0..1000 {
        reader.feed(b"10000\r\n");
        reader.feed(&[b'x'; 0x10000]);
        reader.feed(b"\r\n");
        while let Some(part) = reader.next_part().unwrap() {
            seen += if let Part::Body(bytes) = part { bytes.len() } else { 0 };
        }
        assert!(reader.held() < 0x40000);
    }
    assert_eq!(seen, 1000 * 0x10000);
}
