//! Documents as people have them, in `tests/fixtures/import`, and what the import makes of each: `X.expected.json` holds the
//! entries or the refusals, `X.given.json` what is given beside the document. A directory `X.mcpb` is packed here.

use serde_json::{Value, json};
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use stdiod::api::definition::fields;
use stdiod::api::import::{self, Entry, Kind, Surroundings};
use stdiod::api::projects::fields as external;

const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/import");

/// What is given beside a document.
struct Given(Value);

impl Surroundings for Given {
    fn given(&self, name: &str) -> Option<String> {
        self.0["set"][name].as_str().map(str::to_string)
    }

    fn variable(&self, name: &str) -> Option<String> {
        self.0["variables"][name].as_str().map(str::to_string)
    }

    fn wants(&self, from: &str) -> bool {
        !self.0["skip"].as_array().is_some_and(|names| names.iter().any(|name| name == from))
    }

    fn file(&self, path: &str) -> Result<String, String> {
        self.0["files"][path].as_str().map(str::to_string).ok_or("no such file".to_string())
    }

    fn has_project(&self) -> bool {
        self.0["project"].is_string()
    }
}

fn documents() -> Vec<PathBuf> {
    let all = std::fs::read_dir(DIRECTORY).unwrap().map(|entry| entry.unwrap().path());
    let is_document = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        !name.ends_with(".expected.json") && !name.ends_with(".given.json")
    };
    let mut all: Vec<PathBuf> = all.filter(is_document).collect();
    all.sort();
    all
}

fn beside(document: &Path, what: &str) -> Option<Value> {
    let text = std::fs::read(document.with_extension(what)).ok()?;
    Some(serde_json::from_slice(&text).unwrap_or_else(|e| panic!("{}: {e}", document.display())))
}

fn bytes_of(document: &Path) -> Vec<u8> {
    if document.is_dir() { packed(document) } else { std::fs::read(document).unwrap() }
}

/// As `mcpb pack` would.
fn packed(directory: &Path) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
    let mut open = vec![directory.to_path_buf()];
    while let Some(inner) = open.pop() {
        for path in std::fs::read_dir(inner).unwrap().map(|entry| entry.unwrap().path()) {
            let name = path.strip_prefix(directory).unwrap().to_str().unwrap();
            if path.is_dir() {
                zip.add_directory(name, options).unwrap();
                open.push(path);
            } else {
                zip.start_file(name, options).unwrap();
                zip.write_all(&std::fs::read(&path).unwrap()).unwrap();
            }
        }
    }
    zip.finish().unwrap().into_inner()
}

fn told(entry: &Entry) -> Value {
    let needs: Vec<Value> = entry
        .needs
        .iter()
        .map(|need| json!({"name": need.name, "description": need.description, "secret": need.secret}))
        .collect();
    let mut told = json!({"from": entry.from, "name": entry.name, "definition": entry.definition, "needs": needs});
    if !entry.ignored.is_empty() {
        told["ignored"] = json!(entry.ignored);
    }
    if entry.disabled {
        told["disabled"] = json!(true);
    }
    told
}

#[test]
fn every_document_gives_the_definitions_beside_it() {
    let documents = documents();
    assert!(documents.len() >= 25, "{}", documents.len());
    let mut wrong = Vec::new();
    for document in &documents {
        let given = Given(beside(document, "given.json").unwrap_or_default());
        let told = match import::read(&bytes_of(document), &given) {
            Ok(entries) => json!({"servers": entries.iter().map(told).collect::<Vec<_>>()}),
            Err(fault) => json!({"refused": fault.message.lines().collect::<Vec<_>>()}),
        };
        let expected = beside(document, "expected.json").unwrap_or_default();
        if told != expected {
            wrong.push(format!("{}: {told:#}", document.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_needs_nothing_more_can_be_registered_as_it_is() {
    let mut registered = 0;
    for document in documents() {
        let given = Given(beside(&document, "given.json").unwrap_or_default());
        let entries = import::read(&bytes_of(&document), &given).into_iter().flatten();
        for entry in entries.filter(|entry| entry.needs.is_empty()) {
            if entry.kind == Kind::External {
                let spec = external::from_fields(entry.definition.clone()).unwrap_or_else(|fault| panic!("{fault:?}"));
                assert_eq!(spec.name, entry.name);
                continue;
            }
            let body = serde_json::to_vec(&entry.definition).unwrap();
            let definition = fields::parse(&body).unwrap_or_else(|fault| panic!("{}: {fault:?}", document.display()));
            assert_eq!(definition.name, entry.name);
            registered += 1;
        }
    }
    assert!(registered > 10, "{registered}");
}

#[test]
fn what_is_shown_of_an_entry_has_no_values_of_its_environment() {
    for document in documents() {
        let given = Given(beside(&document, "given.json").unwrap_or_default());
        for entry in import::read(&bytes_of(&document), &given).into_iter().flatten() {
            let shown = entry.shown("create");
            let environment = shown["definition"]["environment"].as_object().cloned().unwrap_or_default();
            assert!(environment.values().all(Value::is_null), "{shown}");
            assert_eq!(shown["needs"].as_array().unwrap().len(), entry.needs.len());
        }
    }
}
