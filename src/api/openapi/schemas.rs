//! The components of the document: what clients send, from the descriptions that its readers use, and what they get. A test
//! compares the latter with what is really written.

use super::{imports, projects};
use crate::api::definition::described::{self, or_null};
use crate::limits::BATCH_MAX;
use crate::model::fault::Code;
use crate::model::status::{InstallPhase, Status};
use serde_json::{Map, Value, json};

/// By name.
pub fn all() -> Value {
    let mut all = Map::new();
    for (name, schema) in sent().into_iter().chain(shown()).chain(projects::all()).chain(refused()) {
        all.insert(name.to_string(), schema);
    }
    all.into()
}

// --- what clients send ------------------------------------------------------------------------------------------------

fn sent() -> Vec<(&'static str, Value)> {
    let message = "One JSON-RPC message of MCP, or a batch where the version has them. What is in it is MCP's.";
    vec![
        ("ServerName", described::server_name()),
        ("TokenName", token_name()),
        ("Definition", definition()),
        ("StoredDefinition", stored_definition()),
        ("Change", change()),
        ("ImportDocument", imports::document()),
        ("Call", described::object(&described::CALL, &["method"])),
        ("NewToken", described::object(&described::TOKEN, &["name", "scopes"])),
        ("Rotation", described::object(&described::ROTATION, &[])),
        ("Upgrade", described::object(&described::UPGRADE, &[])),
        ("McpMessage", json!({"type": ["object", "array"], "description": message})),
        ("McpPosted", mcp_posted()),
        ("McpOneMessage", mcp_message("One JSON-RPC message of MCP.")),
    ]
}

/// Of what is posted, what JSON-RPC says; all else is MCP's.
fn mcp_message(about: &str) -> Value {
    let jsonrpc = json!({"examples": ["2.0"]});
    json!({"type": "object", "description": about, "anyOf": [
        {"title": "A request or a notification", "required": ["method"], "properties": {
            "jsonrpc": jsonrpc, "method": {"type": "string"}, "id": {"type": ["string", "number", "null"]},
        }},
        {"title": "A reply to a request of the daemon", "required": ["id"], "properties": {
            "jsonrpc": jsonrpc, "method": false, "id": {"type": "integer", "minimum": 0, "maximum": u32::MAX},
        }},
    ]})
}

fn mcp_posted() -> Value {
    let one = json!({"$ref": "#/components/schemas/McpOneMessage"});
    json!({
        "description": "One JSON-RPC message of MCP, or a batch where the version has them. Each but an `initialize` is of a session.",
        "anyOf": [one, {"type": "array", "items": one, "minItems": 1, "maxItems": BATCH_MAX}],
    })
}

fn token_name() -> Value {
    (described::TOKEN[0].schema)()
}

fn definition() -> Value {
    let mut definition = described::object(&described::DEFINITION, &["name"]);
    let absent = json!({"type": "null"});
    let image = json!({"title": "An image", "required": ["image"], "properties": {
        "image": {"type": "string"}, "rootfs": absent, "command": absent, "args": absent,
    }});
    let rootfs = json!({"title": "Programs of the host", "required": ["rootfs", "cmd"], "properties": {
        "rootfs": {"type": "string"}, "cmd": {"type": "array", "minItems": 1},
        "image": absent, "command": absent, "args": absent,
    }});
    let command = json!({"title": "A command of the host", "required": ["command"], "properties": {
        "command": {"type": "string"}, "image": absent, "cmd": absent,
    }});
    definition["anyOf"] = json!([image, rootfs, command]);
    definition["not"] = two_startups();
    definition["description"] = json!("What a server is. It has an image, or runs programs of the host.");
    definition
}

/// `timeouts.startup_ms` under its other name, and both of them.
fn two_startups() -> Value {
    let said = |key: &str| json!({"type": "object", "required": [key], "properties": {key: {"type": "integer"}}});
    json!({"required": ["timeouts", "health"], "properties": {
        "timeouts": said("startup_ms"), "health": said("startup_timeout_ms"),
    }})
}

/// As it is read back.
fn stored_definition() -> Value {
    let mut definition = described::object(&described::DEFINITION, &["name"]);
    let about = "What registers the server again, once the values of the environment are filled in.";
    definition["description"] = json!(about);
    definition["properties"]["environment"]["additionalProperties"] = json!({"type": "null"});
    definition
}

fn change() -> Value {
    let mut change = described::object(&described::DEFINITION, &[]);
    change["description"] = json!(
        "What is not given stays as it is, and `null` makes it the default again. Objects are changed member by member, \
         where `null` removes a variable or a file; arrays are replaced. A server keeps its name."
    );
    // What is said of one source is not said of another.
    let both = |one: &str, other: &str| {
        let given = json!({"not": {"type": "null"}});
        json!({"not": {"required": [one, other], "properties": {one: given, other: given}}})
    };
    let args = json!({"anyOf": [
        {"required": ["command"], "properties": {"command": {"type": "string"}}}, {"properties": {"args": {"type": "null"}}},
    ]});
    change["allOf"] = json!([
        both("command", "cmd"), both("command", "image"), both("rootfs", "image"), args, {"not": two_startups()},
    ]);
    let properties = &mut change["properties"];
    properties["name"] = json!({"type": "string", "description": "If it is given, the name that the server has."});
    properties["enabled"] = json!({"type": "boolean", "description": "Start or stop it, for good."});
    for key in ["environment", "files"] {
        let inner = properties[key]["additionalProperties"].take();
        properties[key]["additionalProperties"] = or_null(inner);
    }
    change
}

// --- what they get ------------------------------------------------------------------------------------------------------

fn shown() -> Vec<(&'static str, Value)> {
    vec![
        ("Status", status()),
        ("Imported", imports::imported()),
        ("StatusList", json!({"type": "array", "items": {"$ref": "#/components/schemas/Status"}})),
        (
            "CallResult",
            closed(&[("result", "The server's own.", json!({})), ("error", "None.", json!({"type": "null"}))]),
        ),
        (
            "Tools",
            json!({
                "type": "object", "required": ["tools"], "properties": {"tools": {"type": ["array", "null"]}},
                "description": "As the server gave it; other members are its own.",
            }),
        ),
        (
            "Logs",
            closed(&[("entries", "The last ones, oldest first.", json!({"type": "array", "items": log_entry()}))]),
        ),
        ("Samples", closed(&[("samples", "The oldest first.", json!({"type": "array", "items": sample()}))])),
        ("Health", closed(&[("status", "It answers.", json!({"type": "string", "const": "ok"}))])),
        (
            "Readiness",
            closed(&[
                ("status", "It is ready.", json!({"type": "string", "const": "ready"})),
                (
                    "providers",
                    "`usable`, or why not.",
                    json!({"type": "object", "additionalProperties": {"type": "string"}}),
                ),
            ]),
        ),
        (
            "ResourceMetadata",
            json!({"type": "object", "required": ["resource", "authorization_servers"], "additionalProperties": false,
                "properties": {
                    "resource": {"type": "string", "description": "The address, as a client would type it."},
                    "authorization_servers": {"type": "array", "items": {"type": "string"}},
                    "bearer_methods_supported": {"type": "array", "items": {"type": "string"}},
                    "scopes_supported": {"type": "array", "items": {"type": "string"}},
                    "resource_name": {"type": "string"},
                },
            }),
        ),
        (
            "Proof",
            closed(&[("proof", "HMAC-SHA256 in hexadecimal.", json!({"type": "string", "pattern": "^[0-9a-f]{64}$"}))]),
        ),
        ("Token", token_object(token_fields())),
        ("TokenList", json!({"type": "array", "items": {"$ref": "#/components/schemas/Token"}})),
        ("TokenCreated", {
            let mut fields = token_fields();
            fields.push(("token", "The token itself, shown this once.", json!({"type": "string"})));
            token_object(fields)
        }),
        ("AuditLines", json!({"type": "array", "items": audit_line()})),
        (
            "Upgrading",
            closed(&[("from", "The version that runs.", text()), ("to", "The version that is to run.", text())]),
        ),
        (
            "Upgraded",
            closed(&[
                ("from", "The version before.", text()),
                ("to", "The version that runs now.", text()),
                ("pause_ms", "For how long nobody was served.", json!({"type": "integer", "minimum": 0})),
            ]),
        ),
        (
            "OpenApi",
            json!({"type": "object", "required": ["openapi", "info", "paths"], "description": "This document.",
                "properties": {"openapi": text(), "info": {"type": "object"}, "paths": {"type": "object"}}}),
        ),
    ]
}

pub(super) type Shown = (&'static str, &'static str, Value);

/// An object that always has all of these members, and no others.
pub(super) fn closed(fields: &[Shown]) -> Value {
    let property = |(name, about, schema): &Shown| {
        let mut schema = schema.clone();
        schema["description"] = json!(about);
        (name.to_string(), schema)
    };
    let names: Vec<&str> = fields.iter().map(|(name, _, _)| *name).collect();
    let properties: Map<String, Value> = fields.iter().map(property).collect();
    json!({"type": "object", "properties": properties, "required": names, "additionalProperties": false})
}

pub(super) fn time() -> Value {
    json!({"type": "string", "format": "date-time"})
}

pub(super) fn texts() -> Value {
    json!({"type": "array", "items": {"type": "string"}})
}

pub(super) fn amount() -> Value {
    json!({"type": "integer", "minimum": 0})
}

pub(super) fn text() -> Value {
    json!({"type": "string"})
}

fn token_fields() -> Vec<Shown> {
    vec![
        ("name", "Unique.", text()),
        ("scopes", "What it opens.", texts()),
        ("servers", "The only ones that exist for it, beside those of its projects.", texts()),
        ("projects", "The only ones that it may use; both empty: all.", texts()),
        ("created_at", "When it was made.", time()),
        ("expires_at", "When it ends, if it does.", or_null(time())),
        ("last_used_at", "When it was last shown.", or_null(time())),
    ]
}

/// Some members are there only where they say something.
fn token_object(fields: Vec<Shown>) -> Value {
    let mut token = closed(&fields);
    let mut previous = time();
    previous["description"] = json!("How long the secret before is still good; only if it is.");
    let mut rate =
        closed(&[("per_second", "Calls, in the long run.", amount()), ("burst", "Calls at once.", amount())]);
    rate["description"] = json!("Its own; without it, that of everybody.");
    token["properties"]["previous_until"] = previous;
    token["properties"]["rate_limit"] = rate;
    token
}

fn audit_line() -> Value {
    let outcomes = json!({"type": "string", "enum": ["ok", "denied", "failed"]});
    closed(&[
        ("audit_id", "Of this line alone.", json!({"type": "string", "format": "uuid"})),
        ("logged_at", "When.", time()),
        ("type", "What was done, as in `server.update`.", text()),
        ("outcome", "What came of it.", outcomes),
        ("source", "The address it came from.", text()),
        ("subject", "Who.", text()),
        ("target", "To what.", text()),
        ("data", "Names, never values.", json!({"type": "object"})),
    ])
}

fn log_entry() -> Value {
    closed(&[
        ("at", "When.", time()),
        ("instance", "Of which life of the server.", or_null(amount())),
        ("source", "Who says it.", json!({"type": "string", "enum": ["stderr", "noise", "lifecycle", "health"]})),
        ("text", "One line.", text()),
    ])
}

fn sample() -> Value {
    closed(&[
        ("at", "The end of the time it is about.", time()),
        ("cpu_percent", "Of one core.", json!({"type": "number", "minimum": 0})),
        ("memory_bytes", "At that moment.", amount()),
        ("calls", "That ended in this time.", amount()),
        ("failed", "Those of them that gave no result.", amount()),
        ("latency_mean_ms", "Of these calls.", amount()),
        ("latency_max_ms", "Of the slowest of them.", amount()),
    ])
}

fn status() -> Value {
    let statuses = json!({"type": "string", "enum": Status::ALL.map(Status::wire)});
    let containers = json!({"type": "string", "enum": ["running", "stopped", "restarting"]});
    let policies = json!({"type": "string", "enum": ["always", "on-failure", "never"]});
    let crash_loop =
        closed(&[("level", "0: none.", amount()), ("next_attempt_at", "When it is started again.", or_null(time()))]);
    let health = closed(&[
        ("last_heard_at", "When anything valid last came from it.", or_null(time())),
        ("warnings", "What an operator should look at.", texts()),
    ]);
    closed(&[
        ("workspace_id", "Its id.", json!({"type": "string", "format": "uuid"})),
        ("name", "Its name.", text()),
        ("image", "Its image, if it has one.", or_null(text())),
        ("rootfs", "`host`, if it has no image.", or_null(text())),
        ("status", "How it does.", statuses),
        ("container_status", "The same for its container.", containers),
        ("provider", "The runtime.", text()),
        ("stdio_bridge", "It speaks JSON-RPC on its pipes.", json!({"type": "boolean"})),
        ("bridge_connected", "And it can be called now.", json!({"type": "boolean"})),
        ("restart_policy", "Whether it is started again when it ends.", policies),
        ("restart_count", "How often it was.", amount()),
        ("last_crash", "Its last unexpected end.", or_null(crash())),
        ("last_error", "Why it is not ready.", or_null(text())),
        ("warning", "What an operator should know though it works.", or_null(text())),
        ("uptime", "As in `2h15m30s`.", or_null(text())),
        ("uptime_ms", "The same in milliseconds.", or_null(amount())),
        ("volumes", "As they can be registered.", texts()),
        ("ports", "As they can be registered.", texts()),
        ("network", "The network in use.", text()),
        ("egress", "The only destinations; `null`: all that the network has.", or_null(texts())),
        ("resource_limits", "What it may use.", limits()),
        ("resource_usage", "What it uses; `null`: not known now.", usage()),
        ("queue", "Calls.", closed(&[("in_flight", "It has them.", amount()), ("waiting", "They wait.", amount())])),
        ("crash_loop", "How far its crash loop has come.", crash_loop),
        ("health", "Signs of life.", health),
        ("server_info", "`serverInfo` of its handshake.", json!({})),
        ("protocol_version", "Of MCP, as it was agreed on.", or_null(text())),
        ("image_pull", "The last pull of its image.", or_null(pull())),
        ("install", "The last fetching of its packages, if one was needed.", or_null(install())),
        ("asleep", "How it is at rest, if it is.", or_null(asleep())),
        ("last_wake_ms", "What its last wake took, from the request to ready.", or_null(amount())),
        ("managed_by", "What made it and looks after it.", or_null(text())),
        ("environment", "The names of its variables.", texts()),
        ("created_at", "When it was registered.", time()),
        ("last_used_at", "When it was last called.", or_null(time())),
    ])
}

fn crash() -> Value {
    closed(&[
        ("at", "When.", time()),
        ("exit_code", "Of its main process.", or_null(json!({"type": "integer"}))),
        ("signal", "That ended it.", or_null(json!({"type": "integer"}))),
        ("oom", "For want of memory.", json!({"type": "boolean"})),
        ("stderr_tail", "The last lines.", texts()),
    ])
}

fn limits() -> Value {
    closed(&[
        ("cpu", "Cores.", text()),
        ("memory", "As in `512M`.", text()),
        ("disk", "As in `1G`.", text()),
        ("volume", "Of all volumes together.", text()),
        ("pids", "Processes and threads.", amount()),
    ])
}

fn usage() -> Value {
    closed(&[
        ("cpu_percent", "100: one core.", json!({"type": ["number", "null"]})),
        ("cpu_ms_total", "Since its start.", or_null(amount())),
        ("memory_bytes", "Now.", or_null(amount())),
        ("memory_limit_bytes", "At most.", amount()),
        ("pids", "Now.", or_null(amount())),
        ("disk_bytes", "Written outside of volumes.", or_null(amount())),
    ])
}

fn install() -> Value {
    let phases = json!({"type": "string", "enum": InstallPhase::ALL.map(InstallPhase::wire)});
    closed(&[
        ("phase", "How far it is.", phases),
        ("bytes", "What its volumes hold by now.", amount()),
        ("total", "Of so many; `null`: not known before the end.", or_null(amount())),
        ("attempt", "Each goes on from what the one before has fetched.", amount()),
    ])
}

fn asleep() -> Value {
    closed(&[
        ("mode", "Frozen, or ended.", json!({"type": "string", "enum": ["doze", "stop"]})),
        ("since", "When it went to rest.", time()),
        ("last_wake_ms", "What the wake before that took.", or_null(amount())),
    ])
}

fn pull() -> Value {
    let states = json!({"type": "string", "enum": ["waiting", "downloading", "unpacking", "done", "failed"]});
    closed(&[
        ("state", "How far it is.", states),
        ("layer", "The layer that was last heard of.", or_null(text())),
        ("bytes", "So many are here.", amount()),
        ("total", "Of so many.", amount()),
        ("error", "Why it failed.", or_null(text())),
    ])
}

// --- refusals -----------------------------------------------------------------------------------------------------------

fn refused() -> Vec<(&'static str, Value)> {
    let codes: Vec<&str> = Code::ALL.iter().map(|code| code.wire().0).collect();
    let fault = closed(&[
        ("code", "A stable name.", json!({"type": "string", "enum": codes})),
        ("message", "For people.", text()),
        ("data", "More about it: `field` is the path of what is wrong in the request.", json!({"type": "object"})),
    ]);
    let mut call = fault.clone();
    let outcomes = json!({"type": "string", "enum": ["not_sent", "sent_unknown"]});
    call["properties"]["data"]["properties"] = json!({ "outcome": outcomes });
    call["properties"]["data"]["description"] =
        json!("`outcome` tells a call that was never sent, and is safe to repeat, from one that may have been made.");
    let own = json!({
        "type": "object", "required": ["code", "message"], "description": "The server's own, as it is.",
        "properties": {"code": {"type": "integer"}, "message": {"type": "string"}},
    });
    let by_host = closed(&[("error", "The daemon's own.", call)]);
    let by_server = closed(&[("result", "None.", json!({"type": "null"})), ("error", "The server's own.", own)]);
    vec![
        ("Error", closed(&[("error", "Why it was refused.", fault)])),
        ("CallError", json!({"oneOf": [by_host, by_server]})),
    ]
}

// --- examples -----------------------------------------------------------------------------------------------------------

pub fn examples(schema: &str) -> Value {
    let one = |name: &str, value: Value| json!({ name: { "value": value } });
    let token = json!({"name": "ci", "scopes": ["mcp:call"], "servers": ["weather"], "projects": [],
        "created_at": "2026-02-17T10:00:00.000Z", "expires_at": null, "last_used_at": null});
    if let Some(example) = projects::example(schema) {
        return one("example", example);
    }
    if let Some(example) = imports::example(schema) {
        return one("example", example);
    }
    match schema {
        "Definition" => json!({
            "image": {"value": {"name": "weather", "image": "registry.example/weather:1", "environment": {"API_KEY": "…"}}},
            "command": {"value": {"name": "files", "command": "npx", "args": ["-y", "some-server", "/data"], "volumes": ["/data"]}},
            "script": {"value": {"name": "script", "rootfs": "host", "cmd": ["python3", "/app/server.py"],
                "files": {"/app/server.py": "import sys\n"}}},
        }),
        "StoredDefinition" => one(
            "weather",
            json!({
                "name": "weather", "image": "registry.example/weather:1", "environment": {"API_KEY": null}, "shared": true,
            }),
        ),
        "Change" => json!({
            "stop": {"value": {"enabled": false}},
            "limits": {"value": {"resource_limits": {"memory": "1G"}, "environment": {"API_KEY": "…", "DEBUG": null}}},
        }),
        "Call" => {
            one("echo", json!({"method": "tools/call", "params": {"name": "echo", "arguments": {"text": "hello"}}}))
        }
        "CallResult" => one("echo", json!({"result": {"content": [{"type": "text", "text": "hello"}]}, "error": null})),
        "Rotation" => one("slow", json!({"grace": "1h"})),
        "Upgrade" => one("binary", json!({"binary": "/usr/bin/stdiod"})),
        "Upgrading" => one("upgrading", json!({"from": "0.1.0", "to": "0.2.0"})),
        "Upgraded" => one("upgraded", json!({"from": "0.1.0", "to": "0.2.0", "pause_ms": 4})),
        "NewToken" => one("agent", json!({"name": "ci", "scopes": ["mcp:call"], "servers": ["weather"]})),
        "Token" | "TokenCreated" => {
            let mut created = token;
            created["token"] = json!("…");
            one("agent", created)
        }
        "TokenList" => one("one", json!([token])),
        "AuditLines" => one(
            "one",
            json!([{
                "audit_id": "6f0a1d6e-52b4-4b0c-9f2b-0d6d2b1f3c11", "logged_at": "2026-02-17T10:00:00.000Z",
                "type": "server.update", "outcome": "ok", "source": "127.0.0.1:40312", "subject": "ci", "target": "weather",
                "data": {"fields": ["environment"]},
            }]),
        ),
        // Whatever else is posted needs the session that this one begins.
        "McpMessage" | "McpPosted" => one(
            "initialize",
            json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
                "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "example", "version": "1"}}}),
        ),
        "McpOneMessage" => json!({
            "initialize": {"value": {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
                "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "example", "version": "1"}}}},
            "call": {"value": {"jsonrpc": "2.0", "id": 2, "method": "tools/call",
                "params": {"name": "echo", "arguments": {"text": "hello"}}}},
        }),
        "Status" => one("ready", status_example()),
        "StatusList" => one("one", json!([status_example()])),
        "Tools" => one("echo", json!({"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]})),
        "Logs" => one(
            "started",
            json!({"entries": [
                {"at": "2026-02-17T10:00:00.000Z", "instance": 1, "source": "lifecycle", "text": "starting"},
            ]}),
        ),
        "Samples" => one(
            "one",
            json!({"samples": [{"at": "2026-02-17T10:00:00.000Z", "cpu_percent": 1.5, "memory_bytes": 50_000_000,
                "calls": 3, "failed": 0, "latency_mean_ms": 12, "latency_max_ms": 20}]}),
        ),
        "Health" => one("alive", json!({"status": "ok"})),
        "Readiness" => one("ready", json!({"status": "ready", "providers": {"gvisor": "usable"}})),
        "Proof" => one("known", json!({"proof": "00".repeat(32)})),
        "ResourceMetadata" => one(
            "endpoint",
            json!({"resource": "https://mcp.example.com/mcp/weather", "authorization_servers": ["https://as.example.com"],
                "bearer_methods_supported": ["header"], "scopes_supported": ["mcp:call"], "resource_name": "stdiod"}),
        ),
        "OpenApi" => one("this", json!({"openapi": "3.1.0", "info": {"title": "stdiod", "version": "1"}, "paths": {}})),
        other => unreachable!("{other} has no example"),
    }
}

fn status_example() -> Value {
    json!({
        "workspace_id": "550e8400-e29b-41d4-a716-446655440000", "name": "weather", "image": "registry.example/weather:1",
        "rootfs": null, "status": "ready", "container_status": "running", "provider": "gvisor", "stdio_bridge": true,
        "bridge_connected": true, "restart_policy": "always", "restart_count": 0, "last_crash": null, "last_error": null,
        "warning": null, "uptime": "2h15m30s", "uptime_ms": 8_130_000, "volumes": ["/data"], "ports": [], "network": "none",
        "egress": null, "resource_limits": {"cpu": "0.5", "memory": "512M", "disk": "1G", "volume": "1G", "pids": 256},
        "resource_usage": {"cpu_percent": 0.5, "cpu_ms_total": 120, "memory_bytes": 52_428_800,
            "memory_limit_bytes": 536_870_912, "pids": 9, "disk_bytes": 4096},
        "queue": {"in_flight": 0, "waiting": 0}, "crash_loop": {"level": 0, "next_attempt_at": null},
        "health": {"last_heard_at": "2026-02-17T12:15:29.000Z", "warnings": []},
        "server_info": {"name": "weather", "version": "1"}, "protocol_version": "2025-11-25", "image_pull": null,
        "install": {"phase": "done", "bytes": 18_350_080, "total": 18_350_080, "attempt": 1},
        "asleep": null, "last_wake_ms": 412, "managed_by": null, "environment": ["API_KEY"], "created_at": "2026-02-17T10:00:00.000Z", "last_used_at": null,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::definition::fields;
    use crate::api::status;
    use crate::api::status::tests::{definition, view};
    use crate::model::definition::IdleMode;
    use crate::model::status::{Asleep, ImagePull, Install, InstallPhase, LastCrash, PullState, StatusView, Usage};

    /// Has the value the members that the schema says, at every depth?
    fn agrees(value: &Value, schema: &Value, place: &str) {
        let schema = match schema.get("anyOf").and_then(Value::as_array) {
            Some(choices) if !value.is_null() => &choices[0],
            Some(_) | None => schema,
        };
        let (Some(value), Some(properties)) = (value.as_object(), schema["properties"].as_object()) else { return };
        let (written, described): (Vec<_>, Vec<_>) = (value.keys().collect(), properties.keys().collect());
        assert_eq!(written, described, "{place}");
        value.iter().for_each(|(key, inner)| agrees(inner, &properties[key], &format!("{place}.{key}")));
    }

    #[test]
    fn a_status_object_is_as_described() {
        let full = StatusView {
            usage: Some(Usage::default()),
            last_crash: Some(LastCrash {
                at_unix_ms: 0,
                exit_code: None,
                signal: None,
                oom: false,
                stderr_tail: vec![],
            }),
            asleep: Some(Asleep { mode: IdleMode::Stop, since_unix_ms: 0 }),
            install: Some(Install { phase: InstallPhase::Fetching, bytes: 0, total: None, attempt: 1 }),
            image_pull: Some(ImagePull { state: PullState::Done, layer: None, bytes: 0, total: 0, error: None }),
            ..view(definition())
        };
        for view in [full, view(definition())] {
            let mut out = Vec::new();
            status::write(&view, &mut out);
            agrees(&serde_json::from_slice(&out).unwrap(), &super::status(), "status");
        }
        agrees(&status_example(), &super::status(), "example");
    }

    #[test]
    fn examples_of_definitions_are_taken() {
        for (name, example) in examples("Definition").as_object().unwrap() {
            let read = fields::parse(example["value"].to_string().as_bytes());
            assert!(read.is_ok(), "{name}: {read:?}");
        }
        let old = definition();
        for (name, example) in examples("Change").as_object().unwrap() {
            let read = fields::merge(&old, example["value"].as_object().unwrap());
            assert!(read.is_ok(), "{name}: {read:?}");
        }
    }
}
