//! What `POST /api/v1/mcp/import` takes: a document as it is, an archive, or `{document, values}`. Owns the difference, and
//! what a body is read with: the values beside the document, and nothing of the daemon's own environment or disk.

use super::{Entry, Read, Surroundings, bundle, jsonc, read, read_object};
use crate::api::definition::strict_json::{self, Fields};
use crate::limits::{ENV_MAX, STRING_MAX};
use crate::model::external::ProjectId;
use crate::model::fault::{Code, Fault};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// An import as it came, to be read where nobody waits for it but its own client.
#[derive(Debug)]
pub struct Document {
    pub bytes: Vec<u8>,
    pub is_archive: bool,
    pub project: Option<ProjectId>,
}

/// An entry, and what it would be stored as.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    pub entry: Entry,
    pub read: Read,
    /// Something that it names is not on this host.
    pub missing: Option<Fault>,
}

impl Document {
    /// Hosted servers are placed in the project too, unless they say in which they are.
    pub fn candidates(&self) -> Result<Vec<Candidate>, Fault> {
        let entries = self.entries()?;
        let candidate = |mut entry: Entry| {
            if let (super::Kind::Hosted, Some(project)) = (entry.kind, &self.project) {
                entry.definition.entry("project").or_insert_with(|| Value::String(project.to_string()));
            }
            let read = entry.read()?;
            Ok(Candidate { entry, read, missing: None })
        };
        entries.into_iter().map(candidate).collect()
    }

    fn entries(&self) -> Result<Vec<Entry>, Fault> {
        let mut around = Beside { values: BTreeMap::new(), has_project: self.project.is_some() };
        if self.is_archive {
            return match bundle::is_archive(&self.bytes) {
                true => read(&self.bytes, &around),
                false => Err(Fault::new(Code::InvalidRequest, "the body is no zip archive")),
            };
        }
        let given = strict_json::object(&jsonc::plain(&self.bytes))?;
        if !given.contains_key("document") {
            return read_object(&given, &around);
        }
        let mut fields = Fields::of(given, &["document", "values"])?;
        let document = fields.required("document")?;
        if let Some(values) = fields.take("values")
            && !values.value.is_null()
        {
            around.values = values_of(values.value)?;
        }
        match document.value {
            Value::Object(document) => read_object(&document, &around),
            // With comments in it, as editors write them.
            Value::String(text) => read(text.as_bytes(), &around),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => {
                Err(Fault::field("document", "expected an object, or its text"))
            }
        }
    }
}

fn values_of(given: Value) -> Result<BTreeMap<String, String>, Fault> {
    let Value::Object(given) = given else { return Err(Fault::field("values", "expected an object of strings")) };
    if given.len() > ENV_MAX {
        return Err(Fault::field("values", format_args!("must not be more than {ENV_MAX}")));
    }
    given.into_iter().map(value_of).collect()
}

fn value_of((name, value): (String, Value)) -> Result<(String, String), Fault> {
    match value {
        Value::String(text) if text.len() <= STRING_MAX => Ok((name, text)),
        Value::String(_) => {
            Err(Fault::field(&format!("values.{name}"), format_args!("must not be longer than {STRING_MAX} bytes")))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            Err(Fault::field(&format!("values.{name}"), "expected a string"))
        }
    }
}

/// What stands beside the document.
struct Beside {
    values: BTreeMap<String, String>,
    has_project: bool,
}

impl Surroundings for Beside {
    fn given(&self, name: &str) -> Option<String> {
        self.values.get(name).cloned()
    }

    /// Whoever imports is elsewhere: the daemon's own environment is none of the document's business.
    fn variable(&self, _: &str) -> Option<String> {
        None
    }

    fn wants(&self, _: &str) -> bool {
        true
    }

    fn file(&self, _: &str) -> Result<String, String> {
        Err("files beside a document are not sent with it: write its variables into `env`, or use `stdiod import`"
            .into())
    }

    fn has_project(&self) -> bool {
        self.has_project
    }
}

/// The body that hands over entries which were read elsewhere, with all that is known of them.
pub fn handed_over(entries: &[Entry]) -> Map<String, Value> {
    let enabled = entries.iter().filter(|entry| !entry.disabled);
    let servers = enabled.map(|entry| Value::Object(entry.definition.clone())).collect();
    let mut document = Map::new();
    document.insert("stdiod".to_string(), super::EXPORT_VERSION.into());
    document.insert("servers".to_string(), Value::Array(servers));
    document
}
