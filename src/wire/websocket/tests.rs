//! The handshake of the RFC, frames in every split, and what is refused.

use super::*;
use crate::wire::mutation::Mutator;

fn socket(max: usize) -> WebSocket {
    WebSocket::new(max, [7; 32])
}

/// As a server sends it.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let length = match payload.len() {
        short @ 0..=125 => vec![short as u8],
        medium @ 126..=0xffff => [&[126], &(medium as u16).to_be_bytes()[..]].concat(),
        long => [&[127], &(long as u64).to_be_bytes()[..]].concat(),
    };
    [&[first], &length[..], payload].concat()
}

#[derive(Debug, PartialEq)]
struct Seen {
    all: Vec<Incoming>,
    broken: Option<Broken>,
    held: bool,
}

fn read<'b>(max: usize, pieces: impl Iterator<Item = &'b [u8]>) -> Seen {
    let (mut socket, mut all, mut broken) = (socket(max), Vec::new(), None);
    for mut piece in pieces {
        loop {
            match socket.read(&mut piece) {
                Ok(Some(incoming)) => all.push(incoming),
                Ok(None) => break assert!(piece.is_empty()),
                Err(why) => break broken = Some(why),
            }
        }
    }
    Seen { all, broken, held: socket.message.is_some() }
}

fn at_once(max: usize, bytes: &[u8]) -> Seen {
    read(max, std::iter::once(bytes))
}

fn text(text: &str) -> Incoming {
    Incoming::Text(text.to_string())
}

/// What a server reads of masked frames: opcodes and payloads.
fn unmasked(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        assert!(bytes[1] & 0x80 != 0, "a client masks");
        let (length, start) = match bytes[1] & 0x7f {
            126 => (u16::from_be_bytes([bytes[2], bytes[3]]) as usize, 4),
            127 => (u64::from_be_bytes(bytes[2..10].try_into().unwrap()) as usize, 10),
            short => (short as usize, 2),
        };
        let mask = &bytes[start..start + 4];
        let payload = &bytes[start + 4..start + 4 + length];
        frames.push((bytes[0], payload.iter().enumerate().map(|(at, byte)| byte ^ mask[at % 4]).collect()));
        bytes = &bytes[start + 4 + length..];
    }
    frames
}

#[test]
fn the_handshake_is_that_of_the_rfc() {
    let handshake = Handshake { key: "dGhlIHNhbXBsZSBub25jZQ==".to_string() };
    let head = |status, headers: &[(&str, &str)]| {
        let headers = headers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        Head { status, headers }
    };
    let (upgrade, connection) = (("Upgrade", "WebSocket"), ("Connection", "keep-alive, Upgrade"));
    let accept = ("Sec-WebSocket-Accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    let good = [upgrade, connection, accept];
    assert_eq!(handshake.check(&head(101, &good)), Ok(()));
    let with = |more| [upgrade, connection, accept, more];
    assert_eq!(handshake.check(&head(101, &with(("Sec-WebSocket-Protocol", "mcp")))), Ok(()));
    for refused in [
        head(200, &good),
        head(101, &good[..2]),
        head(101, &good[1..]),
        head(101, &[upgrade, accept]),
        head(101, &[upgrade, connection, ("Sec-WebSocket-Accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOO=")]),
        head(101, &with(("Sec-WebSocket-Protocol", "chat"))),
        head(101, &with(("Sec-WebSocket-Extensions", "permessage-deflate"))),
    ] {
        assert!(handshake.check(&refused).is_err(), "{refused:?}");
    }
    let headers = Handshake::new([0; 16]).headers().map(|(name, value)| (name, value.to_string()));
    assert_eq!(headers[0], ("Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA==".to_string()));
    assert_eq!(headers[2].1, "mcp");
}

#[test]
fn messages_come_whole_or_in_frames_with_pings_between() {
    let bytes = [
        frame(0x81, b"{}"),
        frame(0x01, "h\u{e9}".as_bytes()[..2].as_ref()),
        frame(0x89, b"are you there"),
        frame(0x00, &"\u{e9}".as_bytes()[1..]),
        frame(0x80, b"!"),
        frame(0x8a, b""),
        frame(0x81, &[b'x'; 200]),
        frame(0x81, &[b'y'; 70_000]),
        frame(0x88, b"\x03\xe8bye"),
        frame(0x81, b"nobody hears this"),
    ]
    .concat();
    let (mut socket, mut rest, mut all) = (socket(100_000), &bytes[..], Vec::new());
    while let Some(incoming) = socket.read(&mut rest).unwrap() {
        if incoming == Incoming::Pong {
            assert_eq!(unmasked(&socket.take_out()), [(0x8a, b"are you there".to_vec())]);
        }
        all.push(incoming);
    }
    let closed = Incoming::Closed { code: Some(1000), reason: "bye".to_string() };
    let expected = [text("{}"), text("hé!"), Incoming::Pong, text(&"x".repeat(200)), text(&"y".repeat(70_000)), closed];
    assert_eq!(all, expected);
    assert_eq!(unmasked(&socket.take_out()), [(0x88, b"\x03\xe8".to_vec())], "a close is answered with one");
    socket.send("too late");
    assert!(socket.take_out().is_empty());
}

#[test]
fn what_is_sent_is_masked_each_time_anew() {
    let mut socket = socket(1000);
    let long = "é".repeat(40_000);
    for message in ["", "{\"a\":1}", &"x".repeat(300), &long] {
        socket.send(message);
        let once = socket.take_out();
        assert_eq!(unmasked(&once), [(0x81, message.as_bytes().to_vec())]);
        socket.send(message);
        assert_ne!(socket.take_out(), once);
    }
    socket.ping();
    socket.close(1001);
    assert_eq!(unmasked(&socket.take_out()), [(0x89, vec![]), (0x88, b"\x03\xe9".to_vec())]);
}

#[test]
fn what_breaks_the_rules_closes_the_connection_with_its_code() {
    for (bytes, code) in [
        (frame(0xc1, b"x"), PROTOCOL),
        (vec![0x81, 0x81, 0, 0, 0, 0, b'x'], PROTOCOL),
        (frame(0x80, b"x"), PROTOCOL),
        ([frame(0x01, b"x"), frame(0x81, b"y")].concat(), PROTOCOL),
        (frame(0x09, b"x"), PROTOCOL),
        (frame(0x89, &[b'x'; 126]), PROTOCOL),
        (frame(0x83, b""), PROTOCOL),
        (frame(0x8b, b""), PROTOCOL),
        (vec![0x81, 126, 0, 5, b'h', b'e', b'l', b'l', b'o'], PROTOCOL),
        (vec![0x81, 127, 0, 0, 0, 0, 0, 0, 1, 0], PROTOCOL),
        (frame(0x88, b"\x03"), PROTOCOL),
        (frame(0x82, b"x"), UNSUPPORTED),
        (frame(0x81, b"\xff"), NOT_UTF8),
        (frame(0x88, b"\x03\xe8\xff"), NOT_UTF8),
        (frame(0x81, &[b'x'; 101]), TOO_LARGE),
        ([frame(0x01, &[b'x'; 60]), frame(0x80, &[b'x'; 41])].concat(), TOO_LARGE),
        (vec![0x81, 127, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], TOO_LARGE),
    ] {
        let mut socket = socket(100);
        let mut rest = &bytes[..];
        let broken = loop {
            match socket.read(&mut rest) {
                Ok(_) => assert!(!rest.is_empty(), "{bytes:?} is not refused"),
                Err(broken) => break broken,
            }
        };
        assert_eq!(broken.code, code, "{bytes:?}");
        assert_eq!(unmasked(&socket.take_out()), [(0x88, code.to_be_bytes().to_vec())]);
        assert_eq!(socket.read(&mut &frame(0x81, b"x")[..]), Err(broken), "and stays so");
    }
}

#[test]
fn any_split_gives_the_same() {
    let samples = [
        frame(0x81, b"hello"),
        [frame(0x01, b"he"), frame(0x89, b"p"), frame(0x80, b"llo")].concat(),
        frame(0x88, b"\x03\xe8x"),
    ];
    let large = frame(0x81, &[b'x'; 130]);
    let seeds: Vec<&[u8]> = samples.iter().chain([&large]).map(Vec::as_slice).collect();
    for seed in 0..2000 {
        let mut mutator = Mutator::new(seed);
        let bytes = mutator.mutate(&seeds);
        let whole = at_once(150, &bytes);
        assert_eq!(read(150, bytes.chunks(1)), whole, "seed {seed}: {bytes:?}");
        let cut = mutator.below(bytes.len() + 1);
        assert_eq!(read(150, [&bytes[..cut], &bytes[cut..]].into_iter()), whole, "seed {seed} cut at {cut}: {bytes:?}");
    }
}

#[test]
fn pings_without_end_and_long_announcements_cost_nothing() {
    let mut flooded = socket(1000);
    for _ in 0..1000 {
        let pings = frame(0x89, &[b'x'; 125]).repeat(100);
        assert_eq!(flooded.read(&mut &pings[..]), Ok(None));
        assert!(flooded.held() < 4096);
    }
    assert_eq!(unmasked(&flooded.take_out()).len(), 1);
    let mut announced = socket(1 << 30);
    assert_eq!(announced.read(&mut &[0x81, 127, 0, 0, 0, 0, 0x3f, 0xff, 0xff, 0xff, b'x'][..]), Ok(None));
    assert!(announced.held() < 4096);
}
