//! The readers of whoever is a client: the command line, which shows what a server or something in the place of the daemon
//! has answered, and the configuration, which is nobody's attack but may be large.

use crate::inputs::{BROKEN, Make, VALUES, random, repeated};
use crate::limits::CLIENT_INDENT_MAX;
use crate::meter::{MIB, Reader};
use std::hint::black_box;
use std::path::Path;
use stdiod::config::{Config, Surroundings};
use stdiod::wire::sse;

/// Not a part of the library: nobody but the command line shows JSON to people.
#[path = "../../src/cli/json.rs"]
mod shown;

#[test]
fn answers_that_are_shown() {
    let read = |bytes: &[u8]| drop(black_box(shown::pretty(&String::from_utf8_lossy(bytes))));
    for (what, make) in VALUES.iter().chain(BROKEN) {
        // A line for each comma, as far to the right as a line goes.
        Reader::new("JSON for people", 4 * CLIENT_INDENT_MAX, &read).up_to(MIB).judge(what, make);
    }
}

#[test]
fn events_of_a_followed_log() {
    let streams: [(&str, Make); 6] = [
        ("comments", |size| repeated("", ":\n", "", size)),
        ("empty lines", |size| repeated("", "\n", "", size)),
        ("lines of one event", |size| repeated("", "data:\n", "\n", size)),
        ("events", |size| repeated("", "data: x\n\n", "", size)),
        ("an endless line", |size| repeated("data: ", "x", "", size)),
        ("random bytes", random),
    ];
    for (what, make) in streams {
        let read = |mut bytes: &[u8]| {
            while let Ok(Some(data)) = sse::read_data(&mut bytes) {
                black_box(data);
            }
        };
        Reader::new("events", 4, &read).judge(what, make);
    }
}

#[test]
fn configurations() {
    let texts: [(&str, Make); 9] = [
        ("arrays in arrays", |size| repeated("listen = ", "[", "", size)),
        ("tables in tables", |size| repeated("listen = ", "{a=", "", size)),
        ("a dotted key", |size| repeated("a", ".a", " = 1", size)),
        ("a dotted table", |size| repeated("[a", ".a", "]", size)),
        ("many tables", |size| repeated("", "[[providers.x]]\n", "", size)),
        ("many values", |size| repeated("insecure_registries = [", "\"a:1\",\n", "]", size)),
        ("a long string", |size| repeated("data_dir = \"", "x", "\"", size)),
        ("comments", |size| repeated("", "#\n", "", size)),
        ("random bytes", random),
    ];
    let read = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        let around = Surroundings::default();
        black_box(Config::parse(Some((Path::new("/c"), &text)), &around).is_ok());
    };
    for (what, make) in texts {
        Reader::new("a configuration", 200, &read).up_to(MIB).judge(what, make);
    }
}
