//! One program for all targets: `FUZZ_TARGET` names the one to run, the rest of the command line is libFuzzer's.

#![no_main]

mod targets;

use std::sync::OnceLock;

static TARGET: OnceLock<fn(&[u8])> = OnceLock::new();

fn target() -> fn(&[u8]) {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    match targets::ALL.iter().find(|target| target.name == name) {
        Some(target) => target.run,
        None => {
            let names: Vec<&str> = targets::ALL.iter().map(|target| target.name).collect();
            eprintln!("FUZZ_TARGET={name:?}: write one of {}", names.join(" "));
            std::process::exit(2);
        }
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| TARGET.get_or_init(target)(bytes));
