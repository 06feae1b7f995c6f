//! The readers of `sandbox/` that take bytes of others: names of images, what a registry answers, what an image says of its
//! users, layers, the words of launchers, pullers and network plugins.

use crate::inputs::{BROKEN, Make, VALUES, framed, random, repeated};
use crate::meter::{MIB, Reader};
use std::hint::black_box;
use stdiod::model::instance::PullStep;
use stdiod::sandbox::container::plan::Report;
use stdiod::sandbox::container::{account, cni};
use stdiod::sandbox::image::registry::auth::challenge;
use stdiod::sandbox::image::registry::http::Url;
use stdiod::sandbox::image::registry::reference::{full_name, reference};
use stdiod::sandbox::image::unpack::{Allowance, unpack};

#[test]
fn names_and_addresses_of_registries() {
    let texts: [(&str, Make); 9] = [
        ("slashes", |size| repeated("a", "/", "", size)),
        ("parts of a name", |size| repeated("a", "/a", ":t", size)),
        ("colons", |size| repeated("a", ":", "", size)),
        ("an address", |size| repeated("http://a/", "x", "", size)),
        ("an address of v6", |size| repeated("https://[", "a:", "]:1/", size)),
        ("challenges", |size| repeated("", "Basic,", "", size)),
        ("parameters of a challenge", |size| repeated("Bearer ", "a=b,", "", size)),
        ("a quoted parameter", |size| repeated("Bearer realm=\"", "\\\\", "\"", size)),
        ("random bytes", random),
    ];
    let read = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        black_box((full_name(&text).ok(), reference(&text, Some("r")).ok(), Url::parse(&text)));
        black_box(challenge([&*text].into_iter()));
    };
    for (what, make) in texts {
        // A header is 64 KiB at most. Each word of a list of challenges is a string of its own.
        Reader::new("a name or address", 80, &read).up_to(MIB).judge(what, make);
    }
}

#[test]
fn users_of_an_image() {
    let files: [(&str, Make); 5] = [
        ("empty lines", |size| repeated("", "\n", "", size)),
        ("users", |size| repeated("", "a:x:1:1::/:\n", "", size)),
        ("groups", |size| repeated("u:x:1:1::/:\n", "g:x:1:u\n", "", size)),
        ("members of a group", |size| repeated("u:x:1:1::/:\ng:x:1:", "a,", "u\n", size)),
        ("random bytes", random),
    ];
    let read = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        for asked in [None, Some("u"), Some("u:g")] {
            black_box(account::resolve(asked, &text, &text, account::Unlisted::Own).ok());
        }
    };
    for (what, make) in files {
        Reader::new("passwd and group", 6, &read).judge(what, make);
    }
}

#[test]
fn words_of_children_and_plugins() {
    let read = |bytes: &[u8]| {
        black_box(serde_json::from_slice::<Report>(bytes).ok());
        black_box(serde_json::from_slice::<PullStep>(bytes).ok());
    };
    for (what, make) in VALUES.iter().chain(BROKEN) {
        Reader::new("a report", 2, &read).judge(what, make);
        Reader::new("a failed launch", 2, &read)
            .judge(what, |size| framed(r#"{"failed":{"kind":"runtime","message":V}}"#, *make, size));
    }
    let network = |bytes: &[u8]| {
        black_box(cni::reachable_resolvers(&String::from_utf8_lossy(bytes)));
        let Ok(said) = serde_json::from_slice::<serde_json::Value>(bytes) else { return };
        black_box((cni::cable(&said, "eth0").ok(), cni::resolv_conf(&said)));
        black_box(cni::plugins(said).ok());
    };
    for (what, make) in VALUES.iter().chain(BROKEN) {
        for frame in ["V", r#"{"interfaces":V,"ips":V}"#, r#"{"name":"n","plugins":V,"dns":{"nameservers":V}}"#] {
            let (first, rest) = frame.split_once('V').expect("a place");
            let frame = [first, "V", &rest.replace('V', "[]")].concat();
            // A tree of values, of a megabyte at most, in a child that ends.
            Reader::new("an answer of a plugin", 250, &network)
                .up_to(MIB)
                .judge(what, |size| framed(&frame, *make, size / 2));
        }
    }
}

// --- layers -------------------------------------------------------------------------------------------------------------

/// A header with its checksum.
fn header(name: &str, kind: tar::EntryType, size: u64) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.as_gnu_mut().expect("just made so").name[..name.len()].copy_from_slice(name.as_bytes());
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(0o755);
    header.set_uid(0);
    header.set_gid(0);
    header.set_cksum();
    header.as_bytes().to_vec()
}

fn headers(name: &str, kind: tar::EntryType, size: usize) -> Vec<u8> {
    header(name, kind, 0).repeat(size / 512)
}

/// A header with that much behind it, as often as it fits.
fn with_content(kind: tar::EntryType, content: &[u8], size: usize) -> Vec<u8> {
    let mut one = header("./", kind, content.len() as u64);
    one.extend_from_slice(content);
    one.resize(one.len().next_multiple_of(512), 0);
    one.repeat((size / one.len()).max(1))
}

#[test]
fn layers() {
    let layers: [(&str, Make); 10] = [
        ("empty blocks", |size| vec![0; size]),
        ("directories", |size| headers("./", tar::EntryType::Directory, size)),
        ("one directory over and over", |size| headers("a", tar::EntryType::Directory, size)),
        ("global headers", |size| headers("a", tar::EntryType::XGlobalHeader, size)),
        ("long names without an entry", |size| with_content(tar::EntryType::GNULongName, &[b'a'; 600], size)),
        ("a long name", |size| with_content(tar::EntryType::GNULongName, &vec![b'/'; size], size)),
        ("records of an extended header", |size| {
            with_content(tar::EntryType::XHeader, &b"6 a=b\n".repeat(size / 6), size)
        }),
        ("small extended headers", |size| with_content(tar::EntryType::XHeader, b"6 a=b\n", size)),
        ("a sparse file", |size| headers("./", tar::EntryType::GNUSparse, size)),
        ("random bytes", random),
    ];
    let read = |bytes: &[u8]| {
        let dir = std::env::temp_dir().join(format!("hostile-layer-{:?}", std::thread::current().id()));
        std::fs::create_dir(&dir).expect("a directory of our own");
        let unpacked = unpack(&mut &*bytes, &dir, &mut Allowance::default());
        std::fs::remove_dir_all(&dir).expect("ours");
        black_box(unpacked.is_ok());
    };
    for (what, make) in layers {
        // The times of its directories are set at the end. Each entry is several calls of the kernel.
        Reader::new("a layer", 4, &read).up_to(MIB).judge(what, make);
    }
}
