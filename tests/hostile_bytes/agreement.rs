//! Two readers of the same bytes, or one that gets them in other portions, say the same: lines however they are split, and
//! our own walk through JSON where `serde_json` can be asked. Hundreds of thousands of cases from a printed seed.

use crate::inputs::{Rng, random_json};
use serde_json::value::RawValue;
use stdiod::model::definition::Framing;
use stdiod::wire::json::{self, Json};
use stdiod::wire::lines::{Line, Lines};

const CASES: usize = 200_000;

const TEXTS: &[&str] = &[
    r#"{"jsonrpc":"2.0","id":1,"result":{"a":[1,2.5e-3,"x\u00e9\n",null,true]}}"#,
    r#"[{"":[]},{},[[]],"\ud83d\ude00",-0.0,1E+2]"#,
    " { \"k\" : \"v\\\\\" , \"€\" : false } ",
    r#""\"\\\/\b\f\n\r\t""#,
];

/// One of `texts`, or random pieces, with a few bytes changed, dropped, doubled or put in.
fn mutated(texts: &[&str], rng: &mut Rng) -> Vec<u8> {
    const SPICE: &[u8] = b"\"\\{}[]:,0919-+.eE ntfu\0\n\r\t\x7f\x80\xc3\xff";
    let mut bytes = texts[rng.below(texts.len())].as_bytes().to_vec();
    for _ in 0..rng.below(4) {
        let at = rng.below(bytes.len());
        match rng.below(5) {
            _ if bytes.is_empty() => bytes.push(SPICE[rng.below(SPICE.len())]),
            0 => bytes[at] = SPICE[rng.below(SPICE.len())],
            1 => drop(bytes.remove(at)),
            2 => bytes.insert(at, SPICE[rng.below(SPICE.len())]),
            3 => bytes.truncate(at),
            _ => {
                let copy = bytes[rng.below(at + 1)..at].to_vec();
                bytes.splice(at..at, copy);
            }
        }
    }
    bytes
}

#[test]
fn the_walk_through_json_says_what_serde_says() {
    let mut rng = Rng::new("JSON");
    let pieces = String::from_utf8(random_json(64 * 1024)).expect("ASCII");
    for case in 0..CASES {
        let bytes = match case % 4 {
            0 => {
                let start = rng.below(pieces.len() - 40);
                pieces.as_bytes()[start..start + rng.below(40)].to_vec()
            }
            _ => mutated(TEXTS, &mut rng),
        };
        let Ok(text) = std::str::from_utf8(&bytes) else {
            assert!(json::members(&bytes).any(|member| member.is_err()), "{bytes:?} is not UTF-8");
            continue;
        };
        let judged = serde_json::from_str::<&RawValue>(text).ok().map(RawValue::get);
        assert_eq!(Json::of(text).ok().map(Json::get), judged, "{text:?}");
        // The documented difference: a key that is half a character is refused as soon as it is read.
        let all: Result<Vec<_>, _> = json::items(&bytes).collect();
        let items: Option<Vec<&RawValue>> = serde_json::from_str(text).ok();
        let texts = items.map(|items| items.into_iter().map(RawValue::get).collect::<Vec<_>>());
        assert_eq!(all.ok().map(|all| all.into_iter().map(Json::get).collect::<Vec<_>>()), texts, "{text:?}");
        let all: Result<Vec<_>, _> = json::members(&bytes).collect();
        let read = serde_json::from_str::<std::collections::BTreeMap<String, &RawValue>>(text);
        assert_eq!(all.is_ok(), read.is_ok(), "{text:?}");
        for (key, value) in read.unwrap_or_default() {
            let object = Json::of(text).expect("just read");
            assert_eq!(object.member(&key).map(Json::get), Some(value.get()), "{text:?}");
        }
    }
}

fn all(framing: Framing, pieces: &[&[u8]]) -> Vec<Vec<u8>> {
    let mut lines = Lines::with_framing(framing);
    let mut found = Vec::new();
    for piece in pieces {
        lines.feed(piece);
        while let Some(line) = lines.next_line() {
            found.push(match line {
                Line::Whole(line) => line.to_vec(),
                Line::TooLong { head, tail } | Line::NoRoom { head, tail } => [b"long", head, tail].concat(),
            });
        }
    }
    found
}

#[test]
fn lines_do_not_depend_on_how_they_are_split() {
    const OUTPUTS: &[&str] = &[
        "one\r\n\n\ntwo\n{\"id\":1}\n  three \n",
        "\n\n  \r\nContent-Length: 2\r\n\r\n{}\r\nContent-Length: 3\r\nContent-Type: x\r\n\r\n[1]",
        "Content-Length: 0\r\n\r\ncontent-length: 1\n\nxContent-Length: 2\r\n\r\n{}",
    ];
    let mut rng = Rng::new("lines");
    for case in 0..CASES / 4 {
        let bytes = mutated(OUTPUTS, &mut rng);
        // Where noise stands between blocks, what is noise depends on how much is there: it is never an answer.
        let framing = [Framing::Newline, Framing::Auto, Framing::ContentLength][case % 3];
        let whole = all(framing, &[&bytes]);
        let mut pieces = Vec::new();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at((1 + rng.below(9)).min(rest.len()));
            pieces.push(piece);
            rest = behind;
        }
        assert_eq!(all(framing, &pieces), whole, "{framing:?} {:?}", String::from_utf8_lossy(&bytes));
    }
}
