//! From the fields of a request, a manifest or a row to an `ExternalSpec`, and from a PATCH to the next one. Owns every rule
//! about what an external server may be; what comes out is valid as a whole, whichever way it came. Never shows a value.

use crate::api::definition::fields::{absolute_path, variable_name};
use crate::api::definition::reach;
use crate::api::definition::strict_json::{Field, Fields};
use crate::api::projects::render::config;
use crate::api::projects::template::mentions_any;
use crate::ids::Uuid;
use crate::limits::{
    self, BREAKER_ATTEMPTS, CMD_ARGS_MAX, DESCRIPTION_MAX, ENV_MAX, EXTERNAL_HEADERS_MAX, EXTERNAL_IN_FLIGHT_DEFAULT,
    EXTERNALS_PER_PROJECT, HEADER_VALUE_MAX, NAME_MAX, QUEUE_DEFAULT, QUEUE_LIMIT, REQUEST_TIMEOUT_DEFAULT,
    STARTUP_TIMEOUT_DEFAULT, STRING_MAX, URL_MAX, WAIT_MS,
};
use crate::model::definition::Health;
use crate::model::external::{
    Breaker, ClientCredentials, ExternalSpec, Isolation, Program, Remote, RemoteTransport, Secret, Target,
};
use crate::model::fault::{Code, Fault};
use crate::wire::http::url::Url;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

pub const FIELDS: [&str; 19] = [
    "name",
    "description",
    "transport",
    "enabled",
    "shared",
    "command",
    "args",
    "env",
    "isolation",
    "network",
    "url",
    "headers",
    "tls_ca",
    "auth",
    "timeouts",
    "health",
    "max_in_flight",
    "queue_max",
    "breaker",
];
const OF_PROGRAM: [&str; 5] = ["command", "args", "env", "isolation", "network"];
const OF_REMOTE: [&str; 4] = ["url", "headers", "tls_ca", "auth"];
const TIMEOUTS: [&str; 2] = ["request_ms", "startup_ms"];
const HEALTH: [&str; 2] = ["heartbeat_ms", "probe_timeout_ms"];
const BREAKER: [&str; 2] = ["attempts", "cooldown_ms"];
const AUTH: [&str; 6] = ["type", "token_url", "client_id", "client_secret", "scope", "resource"];
/// Set by the transport itself.
const RESERVED_HEADERS: [&str; 10] = [
    "host",
    "content-length",
    "content-type",
    "transfer-encoding",
    "connection",
    "upgrade",
    "te",
    "trailer",
    "expect",
    "accept",
];

/// What a server is that is just being made. `config`, as rows show it, may hold the fields too.
pub fn from_fields(given: Map<String, Value>) -> Result<ExternalSpec, Fault> {
    read(flat(given)?)
}

/// The fields of a PATCH on top of what a server is now. What is not given stays, and `null` makes it the default again;
/// objects are merged likewise, member by member, and arrays are replaced.
pub fn merge(old: &ExternalSpec, given: &Map<String, Value>) -> Result<ExternalSpec, Fault> {
    let given = flat(given.clone())?;
    let mut next = written(old, |text| json!(text.expose()));
    if let Some(transport) = given.get("transport").and_then(Value::as_str) {
        // What belongs to the other kind is gone with it.
        let gone: &[&str] = if transport == "stdio" { &OF_REMOTE } else { &OF_PROGRAM };
        next.retain(|key, _| !gone.contains(&key.as_str()));
    }
    for (key, value) in given {
        match (next.get_mut(&key), value) {
            (_, Value::Null) => _ = next.remove(&key),
            (Some(Value::Object(old)), Value::Object(new)) => {
                for (name, value) in new {
                    match value {
                        Value::Null => _ = old.remove(&name),
                        value => _ = old.insert(name, value),
                    }
                }
            }
            (_, value) => _ = next.insert(key, value),
        }
    }
    read(next)
}

/// What `from_fields` takes, with each value that may be a secret as `value` writes it.
pub fn written(spec: &ExternalSpec, value: impl Fn(&Secret) -> Value) -> Map<String, Value> {
    let mut out = config(spec, value);
    out.insert("name".into(), json!(spec.name));
    out.insert("transport".into(), json!(spec.target.transport()));
    out.insert("enabled".into(), json!(spec.enabled));
    out.insert("shared".into(), json!(spec.shared));
    if let Some(text) = &spec.description {
        out.insert("description".into(), json!(text));
    }
    out
}

/// `{"mcp": {"servers": […]}}`, a list or an object by name; all of them, or why not.
pub fn manifest(mut given: Map<String, Value>) -> Result<Vec<ExternalSpec>, Fault> {
    // What else a product's manifest says is not for us.
    given.retain(|key, _| key == "mcp");
    let mut top = Fields::of(given, &["mcp"])?;
    let mut mcp = top.required("mcp")?.object(&["servers"])?;
    let servers = mcp.required("servers")?;
    let too_many = || Fault::field("mcp.servers", format_args!("must not be more than {EXTERNALS_PER_PROJECT}"));
    let mut entries: Vec<(String, Map<String, Value>)> = Vec::new();
    match servers.value {
        Value::Array(items) => {
            for (at, item) in items.into_iter().enumerate() {
                let Value::Object(item) = item else {
                    return Err(Fault::field(&format!("mcp.servers[{at}]"), "expected an object"));
                };
                entries.push((format!("mcp.servers[{at}]"), item));
            }
        }
        Value::Object(items) => {
            for (name, item) in items {
                let path = format!("mcp.servers[{name:?}]");
                let Value::Object(mut item) = item else { return Err(Fault::field(&path, "expected an object")) };
                if item.get("name").is_some_and(|inner| inner.as_str() != Some(&name)) {
                    return Err(Fault::field(&format!("{path}.name"), "is not the name it stands under"));
                }
                item.insert("name".into(), Value::String(name));
                entries.push((path, item));
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            return Err(Fault::field("mcp.servers", "expected an array, or an object by name"));
        }
    }
    if entries.len() > EXTERNALS_PER_PROJECT {
        return Err(too_many());
    }
    let mut all: Vec<ExternalSpec> = Vec::with_capacity(entries.len());
    for (path, item) in entries {
        let spec = from_fields(item).map_err(|fault| within(&path, fault))?;
        if all.iter().any(|other| other.name == spec.name) {
            let message = format!("another server of this manifest is called {} too", spec.name);
            return Err(Fault::field(&format!("{path}.name"), message));
        }
        all.push(spec);
    }
    Ok(all)
}

/// The same fault, of a field within another.
fn within(path: &str, fault: Fault) -> Fault {
    let field = fault.data.get("field").and_then(Value::as_str).map(|field| format!("{path}.{field}"));
    let message = format!("{path}.{}", fault.message);
    let fault = Fault { message, ..fault };
    match field {
        Some(field) => fault.with("field", field),
        None => fault,
    }
}

/// The members of `config` beside the others.
fn flat(mut given: Map<String, Value>) -> Result<Map<String, Value>, Fault> {
    match given.remove("config") {
        None | Some(Value::Null) => {}
        Some(Value::Object(config)) => {
            for (key, value) in config {
                if given.insert(key.clone(), value).is_some() {
                    return Err(Fault::field(&key, "stands there twice, within `config` and beside it"));
                }
            }
        }
        Some(value) => return Err(Field { path: "config".into(), value }.expected("an object")),
    }
    Ok(given)
}

// --- the fields -------------------------------------------------------------------------------------------------------

fn read(given: Map<String, Value>) -> Result<ExternalSpec, Fault> {
    refuse_missing_values(&given)?;
    let mut fields = Fields::of(given, &FIELDS)?;
    let name = fields.required("name")?.parse(external_name)?;
    let mut description = None;
    fields.set("description", &mut description, &None, |field| field.text(DESCRIPTION_MAX).map(Some))?;
    let target = target(&mut fields)?;
    let is_remote = matches!(target, Target::Remote(_));
    let mut spec = ExternalSpec {
        name,
        description,
        target,
        enabled: true,
        shared: true,
        request_timeout_ms: REQUEST_TIMEOUT_DEFAULT.as_millis() as u64,
        startup_timeout_ms: STARTUP_TIMEOUT_DEFAULT.as_millis() as u64,
        health: Health::default(),
        max_in_flight: if is_remote { EXTERNAL_IN_FLIGHT_DEFAULT } else { limits::MAX_IN_FLIGHT_DEFAULT },
        queue_max: QUEUE_DEFAULT,
        breaker: Some(Breaker::default()),
    };
    fields.set("enabled", &mut spec.enabled, &true, Field::boolean)?;
    fields.set("shared", &mut spec.shared, &true, Field::boolean)?;
    looked_after(&mut fields, &mut spec)?;
    fields.finish();
    Ok(spec)
}

fn looked_after(fields: &mut Fields, spec: &mut ExternalSpec) -> Result<(), Fault> {
    let wait = |field: Field| field.integer(WAIT_MS);
    let standard = (spec.request_timeout_ms, spec.startup_timeout_ms);
    let mut timeouts = standard;
    fields.set_within("timeouts", &TIMEOUTS, &mut timeouts, &standard, |inner, timeouts| {
        inner.set("request_ms", &mut timeouts.0, &standard.0, wait)?;
        inner.set("startup_ms", &mut timeouts.1, &standard.1, wait)
    })?;
    (spec.request_timeout_ms, spec.startup_timeout_ms) = timeouts;
    let standard = Health::default();
    fields.set_within("health", &HEALTH, &mut spec.health, &standard, |inner, health| {
        inner.set("heartbeat_ms", &mut health.heartbeat_ms, &standard.heartbeat_ms, |field| {
            field.integer(limits::HEARTBEAT_MS)
        })?;
        inner.set("probe_timeout_ms", &mut health.probe_timeout_ms, &standard.probe_timeout_ms, wait)
    })?;
    let (in_flight, queue) = (spec.max_in_flight, spec.queue_max);
    fields.set("max_in_flight", &mut spec.max_in_flight, &in_flight, |field| {
        field.integer(1..=limits::MAX_IN_FLIGHT_MAX)
    })?;
    fields.set("queue_max", &mut spec.queue_max, &queue, |field| field.integer(1..=QUEUE_LIMIT))?;
    let standard = Some(Breaker::default());
    fields.set("breaker", &mut spec.breaker, &standard, |field| match field.value {
        Value::Bool(false) => Ok(None),
        Value::Bool(true) => Ok(Some(Breaker::default())),
        Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {
            let mut inner = field.object(&BREAKER)?;
            let (standard, mut breaker) = (Breaker::default(), Breaker::default());
            let attempts = |field: Field| field.integer(BREAKER_ATTEMPTS);
            inner.set("attempts", &mut breaker.attempts, &standard.attempts, attempts)?;
            inner.set("cooldown_ms", &mut breaker.cooldown_ms, &standard.cooldown_ms, wait)?;
            inner.finish();
            Ok(Some(breaker))
        }
    })
}

/// A row that was read back has `null` where a value was. It must not become a server without its secrets.
fn refuse_missing_values(given: &Map<String, Value>) -> Result<(), Fault> {
    for key in ["env", "headers"] {
        let values = given.get(key).and_then(Value::as_object);
        let missing = values.into_iter().flatten().filter(|(_, value)| value.is_null());
        let missing: Vec<String> = missing.map(|(name, _)| name.clone()).collect();
        if !missing.is_empty() {
            let message = format!("{key}: these have no value: {}", missing.join(", "));
            return Err(Fault::new(Code::SecretMissing, message).with("field", key).with("missing", missing));
        }
    }
    Ok(())
}

/// Letters, digits, `_`, `.` and `-`, of which the first is a letter or digit; and no UUID.
pub fn external_name(text: &str) -> Result<String, String> {
    let letters = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte));
    let begins = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if !letters || !begins || text.len() > NAME_MAX {
        return Err(format!(
            "must have 1 to {NAME_MAX} letters, digits, \"_\", \".\" or \"-\", first a letter or digit"
        ));
    }
    if Uuid::try_parse(text).is_ok() {
        return Err("must not be a UUID, which is an id".to_string());
    }
    Ok(text.to_string())
}

/// The product's id, as the platform has it.
pub fn product_id(text: &str) -> Result<String, String> {
    let letters = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte));
    match letters && !text.is_empty() && text.len() <= NAME_MAX {
        true => Ok(text.to_string()),
        false => Err(format!("must have 1 to {NAME_MAX} letters, digits, \"_\", \".\" or \"-\"")),
    }
}

// --- how it is reached ------------------------------------------------------------------------------------------------

fn target(fields: &mut Fields) -> Result<Target, Fault> {
    let remote = match fields.required("transport")?.one_of(&[
        ("stdio", None),
        ("http", Some(RemoteTransport::Http)),
        ("sse", Some(RemoteTransport::Sse)),
        ("ws", Some(RemoteTransport::WebSocket)),
    ])? {
        None => {
            refuse_others(fields, &OF_REMOTE, "belongs to the transports http, sse and ws")?;
            return program(fields).map(Target::Program);
        }
        Some(transport) => transport,
    };
    refuse_others(fields, &OF_PROGRAM, "belongs to the transport stdio")?;
    let mut out = Remote {
        transport: remote,
        url: fields.required("url")?.parse(|text| url(text, remote))?,
        headers: BTreeMap::new(),
        tls_ca: None,
        auth: None,
    };
    fields.set("headers", &mut out.headers, &BTreeMap::new(), headers)?;
    fields.set("tls_ca", &mut out.tls_ca, &None, |field| field.parse(absolute_path).map(Some))?;
    fields.set("auth", &mut out.auth, &None, |field| auth(field).map(Some))?;
    Ok(Target::Remote(out))
}

fn refuse_others(fields: &mut Fields, others: &[&str], why: &str) -> Result<(), Fault> {
    for key in others {
        if let Some(field) = fields.take(key)
            && !field.value.is_null()
        {
            return Err(field.refuse(why));
        }
    }
    Ok(())
}

fn program(fields: &mut Fields) -> Result<Program, Fault> {
    let command = fields.required("command")?.text(STRING_MAX)?;
    if command.is_empty() {
        return Err(Fault::field("command", "must not be empty"));
    }
    let mut out = Program {
        command,
        args: Vec::new(),
        env: BTreeMap::new(),
        isolation: Isolation::Sandbox,
        // Such servers call services.
        network: "bridge".to_string(),
    };
    fields.set("args", &mut out.args, &Vec::new(), |field| {
        field.list(CMD_ARGS_MAX - 1)?.into_iter().map(|item| item.text(STRING_MAX)).collect()
    })?;
    fields.set("env", &mut out.env, &BTreeMap::new(), |field| {
        values(field, ENV_MAX, |name, entry| Ok((variable_name(name).map_err(|why| entry.refuse(why))?, STRING_MAX)))
    })?;
    fields.set("isolation", &mut out.isolation, &Isolation::Sandbox, |field| {
        field.one_of(&[("sandbox", Isolation::Sandbox), ("none", Isolation::None)])
    })?;
    let standard = out.network.clone();
    fields.set("network", &mut out.network, &standard, |field| field.parse(reach::network))?;
    Ok(out)
}

/// An object of strings, each under a name that `rule` judges; it says how long the string may be, too.
fn values(
    field: Field,
    most: usize,
    rule: impl Fn(&str, &Field) -> Result<(String, usize), Fault>,
) -> Result<BTreeMap<String, Secret>, Fault> {
    let path = field.path.clone();
    let mut out = BTreeMap::new();
    for (name, entry) in field.entries()? {
        let (name, longest) = rule(&name, &entry)?;
        let place = entry.path.clone();
        if out.insert(name, Secret::new(entry.text(longest)?)).is_some() {
            return Err(Fault::field(&place, "stands there twice"));
        }
    }
    match out.len() > most {
        true => Err(Fault::field(&path, format_args!("must not have more than {most} entries"))),
        false => Ok(out),
    }
}

fn headers(field: Field) -> Result<BTreeMap<String, Secret>, Fault> {
    let path = field.path.clone();
    let all = values(field, EXTERNAL_HEADERS_MAX, |name, entry| {
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        let lower = name.to_ascii_lowercase();
        if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(is_token) {
            return Err(entry.refuse("is no name of a header"));
        }
        let is_reserved = RESERVED_HEADERS.contains(&lower.as_str())
            || ["mcp-", "sec-websocket-", "last-event-id"].iter().any(|beginning| lower.starts_with(beginning));
        match is_reserved {
            true => Err(entry.refuse("is set by the transport itself")),
            false => Ok((lower, HEADER_VALUE_MAX)),
        }
    })?;
    match all.iter().find(|(_, value)| !is_header_value(value.expose())) {
        Some((name, _)) => Err(Fault::field(&format!("{path}.{name}"), "must not have control characters in it")),
        None => Ok(all),
    }
}

/// Nothing that could end the line of a header.
pub fn is_header_value(text: &str) -> bool {
    text.chars().all(|c| c == '\t' || !c.is_control())
}

/// With `${NAME}` in it, it is judged again when they are filled in.
pub fn url(text: &str, transport: RemoteTransport) -> Result<String, String> {
    if text.len() > URL_MAX {
        return Err(format!("must not be longer than {URL_MAX} bytes"));
    }
    let (parsed, expected) = match transport {
        RemoteTransport::Http | RemoteTransport::Sse => (Url::parse(text).is_some(), "http:// or https://"),
        RemoteTransport::WebSocket => (Url::parse_websocket(text).is_some(), "ws:// or wss://"),
    };
    match parsed || (mentions_any(text) && is_header_value(text)) {
        true => Ok(text.to_string()),
        false => Err(format!("expected an address that begins with {expected}, without a login in it")),
    }
}

fn auth(field: Field) -> Result<ClientCredentials, Fault> {
    let mut inner = field.object(&AUTH)?;
    inner.required("type")?.one_of(&[("client_credentials", ())])?;
    let mut out = ClientCredentials {
        token_url: inner.required("token_url")?.parse(|text| url(text, RemoteTransport::Http))?,
        client_id: inner.required("client_id")?.text(STRING_MAX)?,
        client_secret: Secret::default(),
        scope: None,
        resource: None,
    };
    match inner.take("client_secret") {
        Some(secret) if !secret.value.is_null() => out.client_secret = Secret::new(secret.text(STRING_MAX)?),
        Some(_) | None => {
            let message = "auth.client_secret: has no value; give it as `${NAME}` of a secret of the project";
            return Err(Fault::new(Code::SecretMissing, message).with("field", "auth.client_secret"));
        }
    }
    inner.set("scope", &mut out.scope, &None, |field| field.text(STRING_MAX).map(Some))?;
    inner.set("resource", &mut out.resource, &None, |field| field.text(URL_MAX).map(Some))?;
    inner.finish();
    Ok(out)
}

#[cfg(test)]
mod tests;
