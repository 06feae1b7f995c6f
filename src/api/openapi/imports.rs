//! The components of the document that belong to the import.

use super::schemas::closed;
use crate::api::response::ImportAction;
use serde_json::{Value, json};

/// Other people's documents are described by what tells them apart; the rest of them is theirs.
pub fn document() -> Value {
    let of_servers = json!({"type": ["object", "array"]});
    let form = |title: &str, required: &[&str]| json!({"title": title, "required": required});
    let with_values = json!({
        "title": "A document, and values for what it asks for", "required": ["document"], "additionalProperties": false,
        "properties": {
            "document": {"type": ["object", "string"], "format": "client-configuration", "description": "The document, or its text, which may have comments."},
            "values": {"type": ["object", "null"], "additionalProperties": {"type": "string"},
                "description": "By the name under which a value is asked for; `SERVER.NAME` is for that server alone."},
        },
    });
    json!({
        "type": "object",
        "description": "The file itself, which may have comments; or the file and values for it. A bundle is sent as `application/zip`.",
        "properties": {"mcpServers": of_servers},
        "anyOf": [
            form("The configuration of Claude, Cursor and others", &["mcpServers"]),
            form("The configuration of VS Code, or an export of stdiod", &["servers"]),
            form("The settings of VS Code", &["mcp"]),
            form("A registry's server.json", &["name", "packages"]),
            form("The same, of a server that is elsewhere", &["name", "remotes"]),
            form("What a registry answers", &["server"]),
            json!({"title": "Servers by name", "minProperties": 1,
                "additionalProperties": {"type": "object", "anyOf": [{"required": ["command"]}, {"required": ["url"]}]}}),
            with_values,
        ],
    })
}

pub fn imported() -> Value {
    let text = || json!({"type": "string"});
    let texts = |about: &str| json!({"type": "array", "items": {"type": "string"}, "description": about});
    let about = json!({"type": "object", "description": "What is known of those values, by name.", "additionalProperties": closed(&[
        ("description", "As the document has it.", json!({"type": ["string", "null"]})),
        ("secret", "Is it not to be shown?", json!({"type": "boolean"})),
    ])});
    let mut entry = closed(&[
        ("from", "What it is called in the document.", text()),
        ("name", "What it is called here.", text()),
        (
            "action",
            "`name_taken`: another server has that name.",
            json!({"type": "string", "enum": ImportAction::ALL.map(ImportAction::wire)}),
        ),
        (
            "definition",
            "What registers it, without the values of its environment or headers. With a `transport` it is an \
            external server of the project.",
            json!({"type": "object"}),
        ),
        ("needs", "Values that must be given first.", json!({"type": "array", "items": {"type": "string"}})),
    ]);
    entry["properties"]["about"] = about;
    entry["properties"]["ignored"] = texts("Fields that mean something only to the client they were written for.");
    closed(&[("servers", "Every entry of the document.", json!({"type": "array", "items": entry}))])
}

pub fn example(schema: &str) -> Option<Value> {
    match schema {
        "ImportDocument" => Some(json!({"mcpServers": {"time": {"command": "uvx", "args": ["mcp-server-time"]}}})),
        "Imported" => Some(json!({"servers": [{
            "from": "Time", "name": "time", "action": "create", "needs": [],
            "definition": {"name": "time", "command": "uvx", "args": ["mcp-server-time"]},
        }]})),
        _other => None,
    }
}
