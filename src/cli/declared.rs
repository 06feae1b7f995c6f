//! Files in which servers are declared: JSON (a definition, an array, an export) and TOML (a definition, or `[[servers]]`).
//! Owns the way from a field back to its line, so that a complaint names both; what a definition means is judged elsewhere.

use super::error::Error;
use crate::api::definition::strict_json;
use crate::limits::BODY_MAX;
use crate::model::fault::Fault;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A definition and where it stands.
pub struct Declared {
    pub fields: Map<String, Value>,
    source: Rc<Source>,
    /// From the top of the file to the definition.
    place: Vec<Step>,
}

struct Source {
    path: PathBuf,
    text: String,
    language: Language,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    Json,
    Toml,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Key(String),
    Index(usize),
}

/// All definitions of a file, or of the `*.json` and `*.toml` of a directory, by name.
pub fn read(path: &Path) -> Result<Vec<Declared>, Error> {
    let unreadable = |why: std::io::Error| Error::Usage(format!("cannot read {}: {why}", path.display()));
    if !std::fs::metadata(path).map_err(unreadable)?.is_dir() {
        return read_file(path);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(unreadable)? {
        files.push(entry.map_err(unreadable)?.path());
    }
    files.retain(|file| language(file).is_some());
    files.sort();
    let mut all = Vec::new();
    for file in files {
        all.extend(read_file(&file)?);
    }
    Ok(all)
}

fn language(path: &Path) -> Option<Language> {
    match path.extension()?.to_str()? {
        "json" | "jsonc" => Some(Language::Json),
        "toml" => Some(Language::Toml),
        _ => None,
    }
}

fn read_file(path: &Path) -> Result<Vec<Declared>, Error> {
    let mut text = String::new();
    let file = std::fs::File::open(path);
    let read = file.and_then(|file| file.take(BODY_MAX as u64 + 1).read_to_string(&mut text));
    read.map_err(|why| Error::Usage(format!("cannot read {}: {why}", path.display())))?;
    if text.len() > BODY_MAX {
        return Err(Error::Usage(format!("{} is larger than {BODY_MAX} bytes", path.display())));
    }
    let source = Source { path: path.to_path_buf(), text, language: language(path).unwrap_or(Language::Json) };
    definitions(Rc::new(source))
}

fn definitions(source: Rc<Source>) -> Result<Vec<Declared>, Error> {
    let mut document = source.parse()?;
    let declared = |fields: Value, place: Vec<Step>| match fields {
        Value::Object(fields) => Ok(Declared { fields, source: Rc::clone(&source), place }),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Err(source.complaint(&place, "expected a definition"))
        }
    };
    // The list of an export, of TOML's [[servers]], or of an array (which has been given this name).
    let is_list = document.contains_key("stdiod") || document.get("servers").is_some_and(Value::is_array);
    if !is_list {
        return Ok(vec![declared(Value::Object(document), Vec::new())?]);
    }
    let Some(Value::Array(list)) = document.remove("servers") else {
        return Err(source.complaint(&[], "servers: expected an array of definitions"));
    };
    let of_index =
        |index| if source.is_array() { vec![Step::Index(index)] } else { vec![key("servers"), Step::Index(index)] };
    list.into_iter().enumerate().map(|(index, fields)| declared(fields, of_index(index))).collect()
}

fn key(name: &str) -> Step {
    Step::Key(name.to_string())
}

impl Declared {
    pub fn file(&self) -> &Path {
        &self.source.path
    }

    /// `FILE line N: what is wrong`, with the field in it.
    pub fn complaint(&self, fault: &Fault) -> Error {
        let mut place = self.place.clone();
        place.extend(steps(fault.data.get("field").and_then(Value::as_str).unwrap_or_default()));
        self.source.complaint(&place, &fault.message)
    }
}

impl Source {
    fn is_array(&self) -> bool {
        self.language == Language::Json && self.text.trim_start().starts_with('[')
    }

    fn parse(&self) -> Result<Map<String, Value>, Error> {
        match self.language {
            Language::Json => {
                // A list becomes the object that an export is; no line moves.
                let text = if self.is_array() { format!("{{\"servers\":{}}}", self.text) } else { self.text.clone() };
                strict_json::object(text.as_bytes()).map_err(|fault| {
                    let message = fault.message.replacen("the body", "it", 1);
                    match (fault.data.get("line").and_then(Value::as_u64), fault.data.get("field")) {
                        (Some(line), _) => self.at(line as usize, &message),
                        (None, Some(field)) => self.complaint(&steps(field.as_str().unwrap_or_default()), &message),
                        (None, None) => self.at(1, &message),
                    }
                })
            }
            Language::Toml => {
                let parsed = toml::from_str::<Value>(&self.text);
                let value = parsed.map_err(|error| {
                    let line = error.span().map_or(1, |span| line_at(&self.text, span.start));
                    self.at(line, error.message())
                })?;
                match value {
                    Value::Object(map) => Ok(map),
                    Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                        Ok(Map::new())
                    }
                }
            }
        }
    }

    fn at(&self, line: usize, message: &str) -> Error {
        Error::Fault(format!("{} line {line}: {message}", self.path.display()))
    }

    /// At the line of the deepest part of `place` that is there.
    fn complaint(&self, place: &[Step], message: &str) -> Error {
        let offset = match self.language {
            Language::Json => offset_in_json(&self.text, place),
            Language::Toml => offset_in_toml(&self.text, place),
        };
        self.at(line_at(&self.text, offset), message)
    }
}

fn line_at(text: &str, offset: usize) -> usize {
    1 + text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count()
}

/// Parts of a text know where they are: they are slices of it.
fn offset_in_json(text: &str, place: &[Step]) -> usize {
    let mut here = text;
    for step in place {
        let inner = match step {
            Step::Key(name) => {
                serde_json::from_str::<BTreeMap<String, &RawValue>>(here).ok().and_then(|map| map.get(name).copied())
            }
            Step::Index(index) => {
                serde_json::from_str::<Vec<&RawValue>>(here).ok().and_then(|list| list.get(*index).copied())
            }
        };
        let Some(inner) = inner else { break };
        here = inner.get();
    }
    let offset = (here.as_ptr() as usize).saturating_sub(text.as_ptr() as usize);
    offset + (here.len() - here.trim_start().len())
}

fn offset_in_toml(text: &str, place: &[Step]) -> usize {
    let Ok(table) = DeTable::parse(text) else { return 0 };
    let mut offset = 0;
    let mut here: Option<&Spanned<DeValue>> = None;
    for step in place {
        let inner = match (step, here.map(Spanned::get_ref)) {
            (Step::Key(name), None) => table.get_ref().get(name.as_str()),
            (Step::Key(name), Some(DeValue::Table(inner))) => inner.get(name.as_str()),
            (Step::Index(index), Some(DeValue::Array(list))) => list.get(*index),
            (_, _) => None,
        };
        let Some(inner) = inner else { break };
        offset = inner.span().start;
        here = Some(inner);
    }
    offset
}

/// `files["/app/x.js"]`, `resource_limits.cpu`, `cmd[0]`.
fn steps(path: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        if let Some(quoted) = rest.strip_prefix("[\"") {
            let end = quoted.find("\"]").unwrap_or(quoted.len());
            steps.push(Step::Key(quoted[..end].replace("\\\"", "\"").replace("\\\\", "\\")));
            rest = quoted.get(end + 2..).unwrap_or_default();
        } else if let Some(index) = rest.strip_prefix('[') {
            let end = index.find(']').unwrap_or(index.len());
            steps.extend(index[..end].parse().ok().map(Step::Index));
            rest = index.get(end + 1..).unwrap_or_default();
        } else {
            let bare = rest.strip_prefix('.').unwrap_or(rest);
            let end = bare.find(['.', '[']).unwrap_or(bare.len());
            if end == 0 {
                break;
            }
            steps.push(key(&bare[..end]));
            rest = &bare[end..];
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::definitions::Wanted;

    fn source(language: Language, text: &str) -> Rc<Source> {
        Rc::new(Source { path: "x".into(), text: text.to_string(), language })
    }

    /// What is wrong with it, as a user reads it.
    fn wrong(language: Language, text: &str) -> String {
        let error = match definitions(source(language, text)) {
            Err(error) => Some(error),
            Ok(all) => {
                all.iter().find_map(|one| Wanted::of(one.fields.clone()).err().map(|fault| one.complaint(&fault)))
            }
        };
        error.expect("must be refused").message().unwrap()
    }

    #[test]
    fn one_definition_an_array_and_an_export_are_read() {
        let names = |language, text: &str| -> Vec<String> {
            let all = definitions(source(language, text)).ok().unwrap();
            all.iter().map(|one| one.fields["name"].as_str().unwrap().to_string()).collect()
        };
        assert_eq!(names(Language::Json, r#"{"name": "a"}"#), ["a"]);
        assert_eq!(names(Language::Json, r#" [{"name": "a"}, {"name": "b"}]"#), ["a", "b"]);
        assert_eq!(names(Language::Json, r#"{"stdiod": 1, "servers": [{"name": "a"}]}"#), ["a"]);
        assert_eq!(names(Language::Toml, "name = \"a\"\nimage = \"x\""), ["a"]);
        assert_eq!(names(Language::Toml, "[[servers]]\nname = \"a\"\n[[servers]]\nname = \"b\""), ["a", "b"]);
    }

    #[test]
    fn a_wrong_field_is_named_with_its_line() {
        let json = "[\n {\"name\": \"a\", \"image\": \"x\"},\n {\"name\": \"b\",\n  \"image\": \"x\",\n  \"resource_limits\": {\n   \"cpu\": \"much\"}}]";
        let why = wrong(Language::Json, json);
        assert!(why.starts_with("x line 6: resource_limits.cpu: "), "{why}");
        let toml = "[[servers]]\nname = \"a\"\nimage = \"x\"\n[servers.environment]\nA = \"1\"\n\"B=C\" = \"2\"\n";
        let why = wrong(Language::Toml, toml);
        assert!(why.starts_with("x line 6: environment[\"B=C\"]: "), "{why}");
        let why = wrong(Language::Json, "{\"name\": \"a\",\n\"image\": \"x\",\n\n\"colour\": 1}");
        assert!(why.starts_with("x line 4: colour: "), "{why}");
        let why = wrong(Language::Toml, "name = \"a\"\n");
        assert!(why.starts_with("x line 1: image: "), "{why}");
    }

    #[test]
    fn what_is_no_json_or_toml_is_named_with_its_line() {
        assert!(wrong(Language::Json, "{\n\"name\": oops}").starts_with("x line 2: "));
        assert!(wrong(Language::Toml, "name = \"a\"\nimage = \n").starts_with("x line 2: "));
        assert!(
            wrong(Language::Json, "{\"name\": \"a\",\n\"name\": \"b\"}").contains("name: this key stands there twice")
        );
    }

    #[test]
    fn paths_are_taken_apart_as_they_are_put_together() {
        let expected = [key("files"), key("/a.b/c"), key("x"), Step::Index(3)];
        assert_eq!(steps("files[\"/a.b/c\"].x[3]"), expected);
        assert_eq!(steps(""), []);
        for path in ["[", "[\"", "[\"a", "a.", ".", "..", "a]["] {
            steps(path);
        }
    }
}
