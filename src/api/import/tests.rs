//! Names, and archives that mean no good. What whole documents give is in `tests/import.rs`.

use super::*;
use crate::limits::{FILES_BYTES_MAX, FILES_MAX};
use crate::wire::mutation::Mutator;
use std::io::{Cursor, Write};
use zip::write::SimpleFileOptions;

struct Nothing;

impl Surroundings for Nothing {
    fn given(&self, _: &str) -> Option<String> {
        None
    }

    fn variable(&self, _: &str) -> Option<String> {
        None
    }

    fn wants(&self, _: &str) -> bool {
        true
    }

    fn file(&self, _: &str) -> Result<String, String> {
        Err("there are no files".to_string())
    }

    fn has_project(&self) -> bool {
        false
    }
}

fn refusal(bytes: &[u8]) -> String {
    read(bytes, &Nothing).expect_err("must be refused").message
}

#[test]
fn names_are_made_valid() {
    for (wished, name) in [
        ("time", "time"),
        ("My Server (v2)", "my-server-v2"),
        ("__weird__", "weird"),
        ("@scope/package", "scope-package"),
        ("io.github.someone/weather", "weather"),
        ("Wetter für Köln", "wetter-f-r-k-ln"),
        (&"x".repeat(80), &"x".repeat(63)),
    ] {
        assert_eq!(clean_name(wished).as_deref(), Ok(name));
    }
    for wished in ["", "---", "天気", "f47ac10b-58cc-4372-a567-0e02b2c3d479"] {
        clean_name(wished).expect_err(wished);
    }
}

const MANIFEST: &str = r#"{"manifest_version": "0.3", "name": "x", "server": {"type": "node", "entry_point": "x.js"}}"#;

fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
    for (name, bytes) in [("manifest.json", MANIFEST.as_bytes())].iter().chain(files) {
        zip.start_file(*name, options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

#[test]
fn a_small_bundle_of_text_is_taken() {
    let entries =
        read(&archive(&[("x.js", b"1"), ("lib/y.js", b"2"), ("icon.png", b"\x89PNG\xff")]), &Nothing).unwrap();
    let definition = &entries[0].definition;
    assert_eq!(definition["command"], "node");
    assert_eq!(definition["args"], json!(["/app/x.js"]));
    assert_eq!(definition["files"]["/app/lib/y.js"], "2");
    assert!(definition["files"].get("/app/icon.png").is_none());
}

#[test]
fn no_path_leads_out_of_a_bundle() {
    for path in ["../x.js", "/etc/passwd", "a/../../x", "a//b", "C:\\x", "a\\b", "./x", "a/\u{1b}[2J"] {
        let why = refusal(&archive(&[(path, b"1")]));
        assert!(why.contains("no path inside"), "{path}: {why}");
    }
}

#[test]
fn a_bundle_that_does_not_fit_is_refused_by_the_name_of_a_file() {
    assert!(refusal(&archive(&[("lib/native.node", b"\x7fELF\0\xff")])).contains("lib/native.node"));
    assert!(refusal(&archive(&[("nul.txt", b"a\0b")])).contains("nul.txt"));
    let zeros = vec![b'0'; 64 * FILES_BYTES_MAX];
    let bomb = archive(&[("bomb.txt", &zeros)]);
    assert!(bomb.len() < FILES_BYTES_MAX, "it is small as long as it is packed");
    assert!(refusal(&bomb).contains("bomb.txt"));
    let names: Vec<String> = (0..=FILES_MAX).map(|n| format!("{n}.js")).collect();
    let many: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), b"1".as_slice())).collect();
    assert!(refusal(&archive(&many)).contains("more than 64 files"));
}

#[test]
fn links_and_secrets_of_a_bundle_are_refused() {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    zip.add_symlink("x.js", "/etc/shadow", SimpleFileOptions::default()).unwrap();
    assert!(refusal(&zip.finish().unwrap().into_inner()).contains("symbolic link"));
}

#[test]
fn a_bundle_without_a_manifest_or_with_a_broken_one_is_refused() {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    zip.start_file("x.js", SimpleFileOptions::default()).unwrap();
    assert!(refusal(&zip.finish().unwrap().into_inner()).contains("manifest.json"));
    assert!(refusal(b"PK\x03\x04 and nothing more").contains("no valid zip"));
}

#[test]
fn whatever_comes_is_read_or_refused_and_nothing_panics() {
    let bundle = archive(&[("x.js", b"1")]);
    let seeds: [&[u8]; 4] = [
        &bundle,
        br#"{"mcpServers": {"a": {"command": "docker", "args": ["run", "-e", "A", "x:1"], "env": {"A": "${B:-c}"}}}}"#,
        br#"{"servers": {"a": {"command": "x", "args": ["${input:i}"]}}, "inputs": [{"id": "i", "default": 1}]}"#,
        br#"{"name": "a/b", "packages": [{"registryType": "npm", "identifier": "x", "packageArguments": [{"name": "-x"}]}]}"#,
    ];
    let mut mutator = Mutator::new(7);
    let mut taken = 0;
    for _ in 0..20_000 {
        taken += usize::from(read(&mutator.mutate(&seeds), &Nothing).is_ok());
    }
    assert!(taken > 50, "{taken}");
}
