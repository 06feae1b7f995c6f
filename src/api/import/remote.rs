//! Entries that name an address and no program: external servers of a project, for whoever has one.

use super::clients::{is_disabled, look_up, object, scalar};
use super::program::{Variables, value_of};
use super::values::{Asking, Filled};
use super::{Draft, Kind};
use serde_json::{Map, Value, json};

/// Where a remote server says its address.
const ADDRESSES: &[&str] = &["url", "httpUrl", "serverUrl"];
const TYPES: &[&str] =
    &["sse", "http", "streamable-http", "streamableHttp", "streamable_http", "remote", "ws", "websocket"];
const KNOWN: &[&str] =
    &["name", "type", "transport", "url", "httpUrl", "serverUrl", "headers", "disabled", "enabled", "description"];

pub const WITHOUT_PROJECT: &str = "is a remote server (it has a URL, and no command), and such servers belong to a project: \
                                   name it, with `project` or --project, or leave the entry out";

pub fn is_remote(entry: &Map<String, Value>, kind: &str) -> bool {
    let has_address = ADDRESSES.iter().any(|key| entry.get(*key).is_some_and(Value::is_string));
    TYPES.contains(&kind) || (has_address && !entry.contains_key("command"))
}

pub fn of_client(
    entry: &Map<String, Value>,
    kind: &str,
    inputs: &[Value],
    asking: &mut Asking,
) -> Result<Draft, String> {
    if !asking.has_project() {
        return Err(WITHOUT_PROJECT.to_string());
    }
    let fill = |text: &str, asking: &mut Asking| asking.fill(text, |asking, inner| look_up(inner, inputs, asking));
    let address = ADDRESSES.iter().find_map(|key| entry.get(*key).and_then(Value::as_str));
    let url = fill(address.ok_or("url: is required")?, asking);
    let mut headers = Variables::new();
    for (name, value) in object(entry, "headers")?.into_iter().flatten() {
        let text = scalar(value).ok_or_else(|| format!("headers.{name}: expected a string"))?;
        headers.insert(name.clone(), value_of(fill(&text, asking)));
    }
    let mut draft = draft(url, kind, headers)?;
    if let Some(description) = entry.get("description").and_then(Value::as_str) {
        draft.definition.insert("description".to_string(), json!(description));
    }
    draft.disabled = is_disabled(entry);
    draft.ignored = entry.keys().filter(|key| !KNOWN.contains(&key.as_str())).cloned().collect();
    Ok(draft)
}

pub fn draft(url: Filled, kind: &str, headers: Variables) -> Result<Draft, String> {
    let transport = transport(&url.text, kind)?;
    let mut definition = Map::new();
    definition.insert("transport".to_string(), json!(transport));
    definition.insert("url".to_string(), json!(url.text));
    if !headers.is_empty() {
        definition.insert("headers".to_string(), json!(headers));
    }
    Ok(Draft { kind: Kind::External, definition, ..Draft::default() })
}

/// As it is said, or else as the address tells.
fn transport(url: &str, kind: &str) -> Result<&'static str, String> {
    let path = url.split(['?', '#']).next().unwrap_or_default();
    match kind {
        "sse" => Ok("sse"),
        "ws" | "websocket" => Ok("ws"),
        "" | "remote" if url.starts_with("ws://") || url.starts_with("wss://") => Ok("ws"),
        "" | "remote" if path.trim_end_matches('/').ends_with("/sse") => Ok("sse"),
        "" | "remote" | "http" | "streamable-http" | "streamableHttp" | "streamable_http" => Ok("http"),
        other => Err(format!("type: {other:?} is not known; expected \"http\", \"sse\" or \"ws\"")),
    }
}
