//! What fuzzing has found worth keeping, and what it begins with: every input of `fuzz/corpus` goes through its target
//! again. `scripts/fuzz` looks for more.

#[path = "../fuzz/src/targets/mod.rs"]
mod targets;

use std::path::{Path, PathBuf};
use targets::ALL;

/// So that the corpora stay something to read, and to run with every change.
const INPUTS_MAX: usize = 120;
const INPUT_BYTES_MAX: u64 = 16 * 1024;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus")
}

fn inputs(target: &str) -> Vec<PathBuf> {
    let listed = std::fs::read_dir(corpus().join(target)).unwrap_or_else(|e| panic!("{target} has no corpus: {e}"));
    let mut inputs: Vec<PathBuf> = listed.map(|entry| entry.expect("an entry").path()).collect();
    inputs.sort();
    inputs
}

#[test]
fn every_kept_input_goes_through_its_target() {
    std::thread::scope(|scope| {
        for target in ALL {
            scope.spawn(move || {
                for input in inputs(target.name) {
                    let bytes = std::fs::read(&input).expect("an input");
                    let went = std::panic::catch_unwind(|| (target.run)(&bytes));
                    assert!(went.is_ok(), "{} fails with {}", target.name, input.display());
                }
                // Nothing, and one byte of each kind: what a fuzzer tries first.
                (target.run)(&[]);
                (0..=u8::MAX).step_by(15).for_each(|byte| (target.run)(&[byte]));
            });
        }
    });
}

#[test]
fn each_target_has_a_corpus_and_each_corpus_a_target_and_none_is_large() {
    for target in ALL {
        let inputs = inputs(target.name);
        assert!((3..=INPUTS_MAX).contains(&inputs.len()), "{} has {} inputs", target.name, inputs.len());
        for input in inputs {
            let size = std::fs::metadata(&input).expect("an input").len();
            assert!(size <= INPUT_BYTES_MAX, "{} has {size} bytes", input.display());
        }
    }
    for entry in std::fs::read_dir(corpus()).expect("the corpora") {
        let name = entry.expect("an entry").file_name();
        assert!(ALL.iter().any(|target| name == target.name), "{name:?} is no target");
    }
}
