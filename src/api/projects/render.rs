//! How projects are shown: rows of external servers, names of secrets, tools, results and records. Never shows a value that
//! may be a secret: a header or a variable is shown if it was written with `${NAME}`, and else as `null`.

use crate::api::request::ResultFormat;
use crate::api::response::{ManifestAction, ManifestEntry, ProjectTool, UnavailableServer};
use crate::api::rest::render::{JSON, response};
use crate::api::tool_error::{ToolError, as_text};
use crate::limits::CALLS_SHOWN_ARGUMENTS_MAX;
use crate::model::external::{
    ClientCredentials, ExternalSpec, ExternalView, Isolation, ProjectId, Secret, SecretView, Target, ToolCallRecord,
};
use crate::wire::http_out::Response;
use crate::wire::json::{Json, members};
use crate::wire::times::rfc3339;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Where the servers of a project are.
pub fn servers_path(project: &ProjectId) -> String {
    format!("/api/v1/projects/{project}/mcp/servers")
}

pub fn created(view: &ExternalView) -> Response {
    let location = format!("{}/{}", servers_path(&view.server.project), view.server.id);
    let body = external(view).to_string().into_bytes();
    Response { headers: vec![("Location", location)], ..response(201, JSON, body) }
}

pub fn external(view: &ExternalView) -> Value {
    let server = &view.server;
    let time = |ms: Option<u64>| ms.map(rfc3339);
    let info = view.server_info.as_deref().and_then(|bytes| serde_json::from_slice::<Value>(bytes).ok());
    json!({
        "id": server.id.to_string(),
        "project_id": server.project.as_str(),
        "product_id": server.product,
        "name": server.spec.name,
        "description": server.spec.description,
        "transport": server.spec.target.transport(),
        "config": config(&server.spec, shown),
        "enabled": server.spec.enabled,
        "shared": server.spec.shared,
        "status": view.status.wire(),
        "last_error": view.last_error,
        "tools": view.tools,
        "connected_since": time(view.connected_since_unix_ms),
        "next_attempt_at": time(view.next_attempt_unix_ms),
        "server_info": info,
        "protocol_version": view.protocol_version,
        "created_at": rfc3339(server.created_unix_ms),
        "updated_at": rfc3339(server.updated_unix_ms),
    })
}

/// As it was written, if it names a secret; what is literal may be one itself.
fn shown(text: &Secret) -> Value {
    match super::template::mentions_any(text.expose()) {
        true => json!(text.expose()),
        false => Value::Null,
    }
}

/// What is in the column `config`, with each value that may be a secret as `value` writes it.
pub fn config(spec: &ExternalSpec, value: impl Fn(&Secret) -> Value) -> Map<String, Value> {
    let values = |all: &BTreeMap<String, Secret>| -> Value {
        all.iter().map(|(name, text)| (name.clone(), value(text))).collect::<Map<_, _>>().into()
    };
    let mut out = Map::new();
    let mut set = |key: &str, value: Value| _ = out.insert(key.to_string(), value);
    match &spec.target {
        Target::Program(program) => {
            set("command", json!(program.command));
            set("args", json!(program.args));
            set("env", values(&program.env));
            set("network", json!(program.network));
            if program.isolation == Isolation::None {
                set("isolation", json!("none"));
            }
        }
        Target::Remote(remote) => {
            set("url", json!(remote.url));
            set("headers", values(&remote.headers));
            if let Some(path) = &remote.tls_ca {
                set("tls_ca", json!(path));
            }
            if let Some(auth) = &remote.auth {
                set("auth", credentials(auth, &value));
            }
        }
    }
    set("timeouts", json!({"request_ms": spec.request_timeout_ms, "startup_ms": spec.startup_timeout_ms}));
    let health = &spec.health;
    set("health", json!({"heartbeat_ms": health.heartbeat_ms, "probe_timeout_ms": health.probe_timeout_ms}));
    set("max_in_flight", json!(spec.max_in_flight));
    set("queue_max", json!(spec.queue_max));
    let breaker = spec.breaker.map_or(Value::Bool(false), |breaker| json!(breaker));
    set("breaker", breaker);
    out
}

fn credentials(auth: &ClientCredentials, value: impl Fn(&Secret) -> Value) -> Value {
    let mut out = json!({
        "type": "client_credentials", "token_url": auth.token_url, "client_id": auth.client_id,
        "client_secret": value(&auth.client_secret),
    });
    for (key, text) in [("scope", &auth.scope), ("resource", &auth.resource)] {
        if let Some(text) = text {
            out[key] = json!(text);
        }
    }
    out
}

pub fn secret(secret: &SecretView) -> Value {
    let mut out = json!({
        "name": secret.name, "created_at": rfc3339(secret.created_unix_ms),
        "updated_at": rfc3339(secret.updated_unix_ms),
    });
    if let Some(why) = &secret.unreadable {
        out["error"] = json!(why);
    }
    out
}

pub fn manifest(project: &ProjectId, product: &str, entries: &[ManifestEntry]) -> Value {
    let entry = |entry: &ManifestEntry| {
        let action = match entry.action {
            ManifestAction::Created => "created",
            ManifestAction::Changed => "changed",
            ManifestAction::Unchanged => "unchanged",
            ManifestAction::Removed => "removed",
        };
        json!({"name": entry.name, "action": action})
    };
    let servers: Vec<Value> = entries.iter().map(entry).collect();
    json!({"project_id": project.as_str(), "product_id": product, "servers": servers})
}

// --- tools ------------------------------------------------------------------------------------------------------------

/// Each tool as its server gave it, and whose it is.
pub fn tools(tools: &[ProjectTool], unavailable: &[UnavailableServer]) -> Vec<u8> {
    let mut out = br#"{"tools":["#.to_vec();
    for (at, tool) in tools.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        write_tool(&mut out, tool);
    }
    let unavailable: Vec<Value> = unavailable
        .iter()
        .map(|UnavailableServer { server, why }| {
            let (code, _) = why.code.wire();
            json!({"server": server, "code": code, "message": why.message, "data": why.data})
        })
        .collect();
    out.extend(br#"],"unavailable":"#);
    out.extend(Value::from(unavailable).to_string().as_bytes());
    out.push(b'}');
    out
}

/// A member `server` of the tool's own makes way: nobody can say that a tool is another's.
fn write_tool(out: &mut Vec<u8>, tool: &ProjectTool) {
    out.extend(b"{\"server\":");
    out.extend(Value::from(&*tool.server).to_string().as_bytes());
    for (key, value) in members(&tool.tool).map_while(Result::ok).filter(|(key, _)| key != "server") {
        out.push(b',');
        out.extend(Value::from(&*key).to_string().as_bytes());
        out.push(b':');
        out.extend(value.get().as_bytes());
    }
    out.push(b'}');
}

/// The body of an answered `tools/call`: the result, byte for byte or as text, and the error if it is one.
pub fn tool_result(result: Vec<u8>, format: ResultFormat) -> Vec<u8> {
    let text = String::from_utf8(result).ok();
    let Some(result) = text.as_deref().and_then(|text| Json::of(text).ok()) else {
        // The core passes on what it has read as JSON.
        return br#"{"result":null,"error":null}"#.to_vec();
    };
    let told = match format {
        ResultFormat::Json => None,
        ResultFormat::Text => Some(Value::from(as_text(result)).to_string()),
    };
    let shown = told.as_deref().unwrap_or(result.get());
    match ToolError::of(result) {
        None => format!(r#"{{"result":{shown},"error":null}}"#).into_bytes(),
        Some(error) => error.body(shown).into_bytes(),
    }
}

// --- records ----------------------------------------------------------------------------------------------------------

/// Newest first. When their arguments together are too long, those of the older ones are left out.
pub fn calls(calls: &[ToolCallRecord]) -> Vec<Value> {
    let mut room = CALLS_SHOWN_ARGUMENTS_MAX;
    let mut shown = Vec::with_capacity(calls.len());
    for call in calls {
        let arguments = call.arguments.as_deref().filter(|text| text.len() <= room);
        room -= arguments.map_or(0, str::len);
        // What stands in a row that somebody else has written may be no JSON.
        let arguments = arguments.and_then(|text| serde_json::from_str::<&RawValue>(text).ok());
        shown.push(json!({
            "id": call.id.to_string(),
            "project_id": call.project.as_str(),
            "server": call.server,
            "tool": call.tool,
            "run_id": call.run_id,
            "principal": call.principal,
            "arguments": arguments.and_then(|raw| serde_json::to_value(raw).ok()),
            "arguments_bytes": call.arguments_bytes,
            "is_error": call.is_error,
            "error_code": call.error_code,
            "outcome": call.outcome.wire(),
            "started_at": rfc3339(call.started_unix_ms),
            "duration_ms": call.duration_ms,
            "result_bytes": call.result_bytes,
        }));
    }
    shown
}
