//! The format, by what is written and read again, and by what is refused.

use super::*;
use ::core::net::IpAddr;
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Kind {
    Unit,
    One(u8),
    Two(i64, String),
    Named { a: Option<bool>, b: char },
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Whole {
    kinds: Vec<Kind>,
    map: HashMap<(u64, String), [u8; 32]>,
    numbers: (u16, i32, u64, i64, f64, u8),
    addresses: Vec<IpAddr>,
    text: std::sync::Arc<str>,
    result: Result<(), String>,
}

fn whole() -> Whole {
    Whole {
        kinds: vec![
            Kind::Unit,
            Kind::One(255),
            Kind::Two(i64::MIN, "é\n".to_string()),
            Kind::Named { a: Some(true), b: 'ß' },
            Kind::Named { a: None, b: '\0' },
        ],
        map: (0..50).map(|n| ((n, format!("k{n}")), [n as u8; 32])).collect(),
        numbers: (u16::MAX, -1, u64::MAX, i64::MAX, -0.5, 0),
        addresses: vec!["127.0.0.1".parse().unwrap(), "fe80::1".parse().unwrap()],
        text: "".into(),
        result: Err("no".to_string()),
    }
}

#[test]
fn whatever_is_written_is_read_again_and_equal_states_are_equal_bytes() {
    let bytes = freeze(&whole()).unwrap();
    assert_eq!(thaw::<Whole>(&bytes).unwrap(), whole());
    // Another map, with its entries in another order.
    assert_eq!(freeze(&whole()).unwrap(), bytes);
    assert_eq!(freeze(&thaw::<Whole>(&bytes).unwrap()).unwrap(), bytes);
}

/// A body with a header that fits it.
fn sealed(body: &[u8]) -> Vec<u8> {
    let header =
        [&MAGIC[..], &VERSION.to_le_bytes(), &(body.len() as u64).to_le_bytes(), &checksum(body).to_le_bytes()];
    [&header.concat()[..], body].concat()
}

#[test]
fn what_was_cut_or_changed_or_is_of_another_version_is_refused() {
    let bytes = freeze(&whole()).unwrap();
    for length in 0..bytes.len() {
        assert!(thaw::<Whole>(&bytes[..length]).is_err(), "cut to {length}");
    }
    for at in 0..bytes.len() {
        let mut other = bytes.clone();
        other[at] ^= 0x10;
        assert!(thaw::<Whole>(&other).is_err(), "changed at {at}");
    }
    let mut newer = bytes.clone();
    newer[8] += 1;
    assert_eq!(thaw::<Whole>(&newer).unwrap_err(), Unreadable::Version(VERSION + 1));
    assert_eq!(thaw::<Whole>(b"").unwrap_err(), Unreadable::NotAState);
}

#[test]
fn bytes_that_nobody_wrote_are_no_panic_though_their_checksum_is_right() {
    let bytes = freeze(&whole()).unwrap();
    let body = &bytes[HEADER..];
    for length in 0..body.len() {
        assert!(thaw::<Whole>(&sealed(&body[..length])).is_err());
    }
    for at in 0..body.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut other = body.to_vec();
            other[at] ^= flip;
            _ = thaw::<Whole>(&sealed(&other));
        }
    }
}

#[test]
fn a_build_takes_what_an_earlier_one_has_written_and_refuses_what_it_does_not_know() {
    mod before {
        #[derive(serde::Serialize, serde::Deserialize)]
        pub struct State {
            pub kept: u8,
        }
    }
    mod after {
        #[derive(serde::Serialize, serde::Deserialize)]
        pub struct State {
            #[serde(default = "seven")]
            pub new: u8,
            pub kept: u8,
            pub none: Option<String>,
        }

        fn seven() -> u8 {
            7
        }
    }
    let old = freeze(&before::State { kept: 1 }).unwrap();
    let state: after::State = thaw(&old).unwrap();
    assert_eq!((state.new, state.kept, state.none), (7, 1, None));
    let new = freeze(&after::State { new: 2, kept: 1, none: None }).unwrap();
    assert!(matches!(thaw::<before::State>(&new), Err(Unreadable::Shape(_))));
    assert!(matches!(thaw::<Whole>(&new), Err(Unreadable::Shape(_))));
    assert!(thaw::<BTreeMap<u64, Whole>>(&new).is_err());
}
