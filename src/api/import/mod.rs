//! Servers in the forms in which they are handed around, as definitions for `POST`: the configurations of clients, a
//! registry's `server.json`, a bundle, and our own export. Owns the recognition of a form, the names, and the list of what
//! is still unknown. Touches no file and no variable itself: whoever imports answers for those (`Surroundings`).
//! Either every entry of a document becomes a valid definition, or the document is refused with all that is wrong in it.

pub mod body;
mod bundle;
mod clients;
mod container_command;
mod exported;
mod jsonc;
mod program;
mod registry_entry;
mod remote;
mod values;

use crate::api::definition::{fields, strict_json};
use crate::api::projects::fields as external;
use crate::limits::NAME_MAX;
use crate::model::definition::Definition;
use crate::model::external::ExternalSpec;
use crate::model::fault::{Code, Fault};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use values::Asking;
pub use values::{Need, Surroundings};

/// The version of our own export.
pub const EXPORT_VERSION: u64 = 1;

/// One server of a document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// What it is called there.
    pub from: String,
    /// What it will be called here.
    pub name: String,
    pub kind: Kind,
    /// What `POST` takes. A variable or a header whose value is unknown is `null`; an argument keeps its placeholder.
    #[serde(with = "crate::model::frozen::json")]
    pub definition: Map<String, Value>,
    pub needs: Vec<Need>,
    /// Fields that only mean something to the client they were written for.
    pub ignored: Vec<String>,
    /// The document has it switched off.
    pub disabled: bool,
}

/// What an entry becomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A program, in a sandbox of this host.
    #[default]
    Hosted,
    /// A server that runs elsewhere; it belongs to a project.
    External,
}

/// An entry as it would be stored, but for the values that are still missing.
#[derive(Clone, Debug, PartialEq)]
pub enum Read {
    Hosted(Box<Definition>),
    External(Box<ExternalSpec>),
}

impl Entry {
    pub fn read(&self) -> Result<Read, Fault> {
        match self.kind {
            // A `null` in the environment is left out here, so that what is unknown is no obstacle to judging the rest.
            Kind::Hosted => fields::but_for_values(self.definition.clone()).map(|read| Read::Hosted(Box::new(read))),
            Kind::External => {
                let mut given = self.definition.clone();
                for key in ["headers", "env"] {
                    if let Some(Value::Object(values)) = given.get_mut(key) {
                        values.retain(|_, value| !value.is_null());
                    }
                }
                external::from_fields(given).map(|read| Read::External(Box::new(read)))
            }
        }
    }

    /// For a person or a program to look at: values of the environment are secrets, here as everywhere.
    pub fn shown(&self, action: &str) -> Value {
        let mut definition = self.definition.clone();
        for key in ["environment", "headers", "env"] {
            if let Some(Value::Object(secrets)) = definition.get_mut(key) {
                secrets.values_mut().for_each(|value| *value = Value::Null);
            }
        }
        let needs: Vec<&str> = self.needs.iter().map(|need| need.name.as_str()).collect();
        let mut shown = json!({
            "from": self.from, "name": self.name, "action": action, "definition": definition, "needs": needs,
        });
        let about = self
            .needs
            .iter()
            .filter(|need| need.secret || need.description.is_some())
            .map(|need| (need.name.clone(), json!({"description": need.description, "secret": need.secret})));
        let about: Map<String, Value> = about.collect();
        if !about.is_empty() {
            shown["about"] = Value::Object(about);
        }
        if !self.ignored.is_empty() {
            shown["ignored"] = json!(self.ignored);
        }
        shown
    }
}

/// What a form makes of an entry, before it has a name.
#[derive(Debug, Default)]
struct Draft {
    kind: Kind,
    definition: Map<String, Value>,
    ignored: Vec<String>,
    disabled: bool,
}

/// An entry that was found in a document.
struct Found<'d> {
    from: String,
    form: Form<'d>,
}

enum Form<'d> {
    Client { entry: &'d Map<String, Value>, inputs: &'d [Value] },
    Registry(&'d Map<String, Value>),
    Exported(&'d Map<String, Value>),
    Bundle(Box<bundle::Bundle>),
}

/// All entries of a document, or everything that is wrong with it.
pub fn read(bytes: &[u8], around: &dyn Surroundings) -> Result<Vec<Entry>, Fault> {
    if bundle::is_archive(bytes) {
        let bundle = bundle::open(bytes).map_err(|why| Fault::new(Code::InvalidRequest, why))?;
        let found = Found { from: bundle.name().to_string(), form: Form::Bundle(Box::new(bundle)) };
        return entries(vec![found], around);
    }
    read_object(&strict_json::object(&jsonc::plain(bytes))?, around)
}

fn read_object(document: &Map<String, Value>, around: &dyn Surroundings) -> Result<Vec<Entry>, Fault> {
    entries(find(document).map_err(|why| Fault::new(Code::InvalidRequest, why))?, around)
}

const FORMS: &str = "expected `mcpServers` (Claude, Cursor), `servers` (VS Code), a registry's server.json, an .mcpb bundle, \
                     or an export of stdiod";

/// Which form a document has is told by its keys.
fn find(document: &Map<String, Value>) -> Result<Vec<Found<'_>>, String> {
    if let Some(version) = document.get("stdiod") {
        return exported(version, document);
    }
    if let Some(servers) = document.get("mcpServers") {
        return client_entries(servers, "mcpServers", document);
    }
    if let Some(servers @ Value::Object(_)) = document.get("servers") {
        return client_entries(servers, "servers", document);
    }
    // The settings of VS Code hold the same thing one level down.
    if let Some(Value::Object(inner)) = document.get("mcp")
        && let Some(servers @ Value::Object(_)) = inner.get("servers")
    {
        return client_entries(servers, "mcp.servers", inner);
    }
    // What a registry answers wraps the file.
    let unwrapped = document.get("server").and_then(Value::as_object).filter(|inner| inner.contains_key("name"));
    let registered = unwrapped.unwrap_or(document);
    if registered.contains_key("packages") || registered.contains_key("remotes") {
        let from = registered.get("name").and_then(Value::as_str).ok_or("name: is required in a server.json")?;
        return Ok(vec![Found { from: from.to_string(), form: Form::Registry(registered) }]);
    }
    if document.contains_key("manifest_version") || document.contains_key("dxt_version") {
        return Err("this is the manifest of a bundle, without the bundle: import the .mcpb file itself".to_string());
    }
    if document.get("command").is_some() {
        return Err("this is one server without a name: put it into {\"mcpServers\": {\"NAME\": …}}".to_string());
    }
    let runs_something =
        |value: &Value| ["command", "url"].iter().any(|key| value.get(key).is_some_and(Value::is_string));
    if !document.is_empty() && document.values().all(runs_something) {
        return Ok(named(document, &[]));
    }
    Err(format!("this is no list of MCP servers: {FORMS}"))
}

fn client_entries<'d>(servers: &'d Value, key: &str, beside: &'d Map<String, Value>) -> Result<Vec<Found<'d>>, String> {
    let inputs = beside.get("inputs").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    match servers {
        Value::Object(servers) => {
            if let Some((name, _)) = servers.iter().find(|(_, entry)| !entry.is_object()) {
                return Err(format!("{key}.{name}: expected an object"));
            }
            Ok(named(servers, inputs))
        }
        Value::Array(servers) => {
            let each = servers.iter().enumerate().map(|(index, entry)| match (entry, entry["name"].as_str()) {
                (Value::Object(entry), Some(name)) => {
                    Ok(Found { from: name.to_string(), form: Form::Client { entry, inputs } })
                }
                _ => Err(format!("{key}[{index}]: expected an object with a name")),
            });
            each.collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            Err(format!("{key}: expected an object of servers"))
        }
    }
}

fn named<'d>(servers: &'d Map<String, Value>, inputs: &'d [Value]) -> Vec<Found<'d>> {
    let objects = servers.iter().filter_map(|(name, entry)| Some((name, entry.as_object()?)));
    objects.map(|(name, entry)| Found { from: name.clone(), form: Form::Client { entry, inputs } }).collect()
}

fn exported<'d>(version: &Value, document: &'d Map<String, Value>) -> Result<Vec<Found<'d>>, String> {
    if version.as_u64() != Some(EXPORT_VERSION) {
        return Err(format!("stdiod: this export has version {version}, and only {EXPORT_VERSION} is known here"));
    }
    let Some(Value::Array(servers)) = document.get("servers") else {
        return Err("servers: expected an array of definitions".to_string());
    };
    let each = servers.iter().enumerate().map(|(index, one)| match (one, one["name"].as_str()) {
        (Value::Object(fields), Some(name)) => Ok(Found { from: name.to_string(), form: Form::Exported(fields) }),
        _ => Err(format!("servers[{index}]: expected a definition with a name")),
    });
    each.collect()
}

fn entries(found: Vec<Found>, around: &dyn Surroundings) -> Result<Vec<Entry>, Fault> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut refused: Vec<(String, String)> = Vec::new();
    for one in found.iter().filter(|one| around.wants(&one.from)) {
        match entry(one, around) {
            Ok(entry) => entries.push(entry),
            Err(why) => refused.push((one.from.clone(), why)),
        }
    }
    let mut by_name: BTreeMap<&str, &str> = BTreeMap::new();
    for entry in &entries {
        if let Some(other) = by_name.insert(&entry.name, &entry.from) {
            let why = format!("would be called {}, and so would `{other}`: rename one of them", entry.name);
            refused.push((entry.from.clone(), why));
        }
    }
    if refused.is_empty() {
        return Ok(entries);
    }
    let sentences: Vec<String> = refused.iter().map(|(from, why)| format!("`{from}`: {why}")).collect();
    let list: Vec<Value> = refused.iter().map(|(from, why)| json!({"from": from, "why": why})).collect();
    Err(Fault::new(Code::InvalidRequest, sentences.join("\n")).with("refused", list))
}

fn entry(found: &Found, around: &dyn Surroundings) -> Result<Entry, String> {
    let name = clean_name(&found.from)?;
    let mut asking = Asking::new(around, &name);
    let draft = match &found.form {
        Form::Client { entry, inputs } => clients::draft(entry, inputs, &mut asking)?,
        Form::Registry(document) => registry_entry::draft(document, &mut asking)?,
        Form::Exported(fields) => exported::draft(fields, &mut asking)?,
        Form::Bundle(bundle) => bundle.draft(&mut asking)?,
    };
    let needs = asking.into_needs();
    let mut definition = draft.definition.clone();
    definition.insert("name".to_string(), json!(name));
    let Draft { kind, ignored, disabled, .. } = draft;
    let entry = Entry { from: found.from.clone(), name, kind, definition, needs, ignored, disabled };
    entry.read().map_err(|fault| fault.message)?;
    Ok(entry)
}

/// A name that a server may have here. Of `io.github.someone/weather` the last part.
pub fn clean_name(wished: &str) -> Result<String, String> {
    // A scope is part of a package's name; a namespace with a dot in it is not part of a server's.
    let wished = match wished.rsplit_once('/') {
        Some((space, last)) if !space.starts_with('@') && space.contains('.') => last,
        Some(_) | None => wished,
    };
    let mut name = String::new();
    for c in wished.chars().map(|c| c.to_ascii_lowercase()) {
        if c.is_ascii_lowercase() || c.is_ascii_digit() {
            name.push(c);
        } else if !name.is_empty() && !name.ends_with('-') {
            name.push('-');
        }
    }
    name.truncate(NAME_MAX);
    let name = name.trim_end_matches('-');
    if name.is_empty() {
        return Err("no name can be made of this: a name is of a-z, 0-9 and -".to_string());
    }
    fields::server_name(name)
}

#[cfg(test)]
mod tests;
