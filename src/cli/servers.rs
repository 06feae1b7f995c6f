//! `ls`, `status`, `tools`, `call`, `restart`, `stop`, `start`, `rm`: one request each, and its answer made readable.
//! Status objects are read by name and shown as far as they are there, so that an older client can show a newer daemon.

use super::api::{Api, SERVERS, Wait, encode, server_path};
use super::error::Error;
use super::read_stdin;
use super::screen::{Form, Screen};
use super::table::{Table, size};
use crate::limits::{CLIENT_CALL_MARGIN, REQUEST_TIMEOUT_MAX};
use crate::wire::json::Json;
use clap::builder::NonEmptyStringValueParser;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use std::time::Duration;

#[derive(clap::Args)]
pub struct Ls {
    /// Only servers in this status, such as `ready` or `backoff`
    #[arg(long)]
    status: Option<String>,
}

#[derive(clap::Args)]
#[command(
    override_usage = "stdiod call NAME METHOD [JSON]\n       stdiod call NAME --tool TOOL [JSON]",
    after_help = "Examples:
  stdiod call notes tools/list
  stdiod call notes --tool echo '{\"text\": \"hello\"}'
  stdiod call notes tools/call - < params.json"
)]
pub struct Call {
    /// Name or id of the server
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    name: String,
    /// Call this tool; what follows are its arguments
    #[arg(long)]
    tool: Option<String>,
    /// Give up after so long (default: the server's own limit)
    #[arg(long, value_name = "N")]
    timeout_ms: Option<u64>,
    /// The method and its parameters, or the tool's arguments; `-` reads the JSON from stdin
    #[arg(value_names = ["METHOD", "JSON"], num_args = 0..=2)]
    words: Vec<String>,
}

#[derive(clap::Args)]
pub struct Named {
    /// Name or id of the server
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub name: String,
}

#[derive(clap::Args)]
pub struct Rm {
    /// Name or id of the server
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    name: String,
    /// Remove its volumes too: the data is lost
    #[arg(long)]
    volumes: bool,
}

pub fn ls(api: &Api, screen: &mut Screen, args: &Ls) -> Result<(), Error> {
    let filter = args.status.as_deref().map(|status| format!("?status={}", encode(status))).unwrap_or_default();
    let body = api.get(&format!("{SERVERS}{filter}"))?;
    if screen.form == Form::Json {
        return Ok(screen.json(&body)?);
    }
    let mut table = Table::new(&["name", "status", "provider", "image", "restarts", "uptime", "queue"]);
    for server in array(&parse(&body)?) {
        table.row(vec![
            text(&server["name"]),
            status_word(server),
            text(&server["provider"]),
            image(server),
            text(&server["restart_count"]),
            text(&server["uptime"]),
            queue(server),
        ]);
    }
    Ok(screen.table(&table)?)
}

pub fn status(api: &Api, screen: &mut Screen, args: &Named) -> Result<(), Error> {
    let body = api.get(&server_path(&args.name, ""))?;
    show_status(screen, &body)
}

pub fn tools(api: &Api, screen: &mut Screen, args: &Named) -> Result<(), Error> {
    let body = api.get(&server_path(&args.name, "/tools"))?;
    if screen.form == Form::Json {
        return Ok(screen.json(&body)?);
    }
    let answer = parse(&body)?;
    if answer["tools"].is_null() {
        return Err(Error::Fault(format!("{} has not told its tools yet: see `stdiod status {0}`", args.name)));
    }
    let mut table = Table::new(&["name", "description"]);
    for tool in array(&answer["tools"]) {
        table.row(vec![text(&tool["name"]), text(&tool["description"])]);
    }
    Ok(screen.table(&table)?)
}

pub fn restart(api: &Api, screen: &mut Screen, args: &Named) -> Result<(), Error> {
    let body = api.post(&server_path(&args.name, "/restart"), None, Wait::Lifecycle)?;
    show_change(screen, &body, "restarted")
}

pub fn stop(api: &Api, screen: &mut Screen, args: &Named) -> Result<(), Error> {
    let body = api.post(&server_path(&args.name, "/stop"), None, Wait::Lifecycle)?;
    show_change(screen, &body, "stopped")
}

pub fn start(api: &Api, screen: &mut Screen, args: &Named) -> Result<(), Error> {
    let body = api.post(&server_path(&args.name, "/start"), None, Wait::Lifecycle)?;
    show_change(screen, &body, "started")
}

pub fn rm(api: &Api, screen: &mut Screen, args: &Rm) -> Result<(), Error> {
    api.delete(&server_path(&args.name, if args.volumes { "?volumes=true" } else { "" }))?;
    match screen.form {
        Form::Json => Ok(()),
        Form::Human => Ok(screen.line(&format!("removed {}", args.name))?),
    }
}

// --- calls ----------------------------------------------------------------------------------------------------------

#[derive(Serialize)]
struct CallBody<'a> {
    method: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u64>,
}

#[derive(Serialize)]
struct ToolParams<'a> {
    name: &'a str,
    arguments: &'a RawValue,
}

/// The parts of an answer to a call that matter here, its result byte for byte.
#[derive(Deserialize)]
struct CallAnswer<'a> {
    #[serde(borrow)]
    result: Option<&'a RawValue>,
}

pub fn call(api: &Api, screen: &mut Screen, args: &Call) -> Result<(), Error> {
    let (method, params) = method_and_params(args)?;
    let body = CallBody { method: &method, params: params.as_deref(), timeout_ms: args.timeout_ms };
    let body = serde_json::to_vec(&body).expect("strings and valid JSON");
    // Without a limit of its own the call is the daemon's to end.
    let limit = args.timeout_ms.map_or(REQUEST_TIMEOUT_MAX, Duration::from_millis);
    let wait = Wait::Call(limit.saturating_add(CLIENT_CALL_MARGIN));
    let answer = api.post(&server_path(&args.name, "/call"), Some(&body), wait)?;
    if screen.form == Form::Json {
        screen.json(&answer)?;
    }
    let parsed: CallAnswer = serde_json::from_str(&answer).map_err(|_| Error::not_ours())?;
    let result = parsed.result.map_or("null", RawValue::get);
    if screen.form == Form::Human {
        screen.json(result)?;
    }
    if args.tool.is_some() && tool_failed(result) {
        screen.flush()?;
        return Err(Error::Fault("the tool reports an error (isError)".to_string()));
    }
    Ok(())
}

fn method_and_params(args: &Call) -> Result<(String, Option<Box<RawValue>>), Error> {
    match (&args.tool, args.words.as_slice()) {
        (Some(tool), []) => tool_call(tool, "{}"),
        (Some(tool), [arguments]) => tool_call(tool, arguments),
        (Some(_), _) => Err(Error::Usage("with --tool only its arguments may follow: one JSON object".to_string())),
        (None, [method]) => Ok((method.clone(), None)),
        (None, [method, params]) => Ok((method.clone(), Some(json_word(params)?))),
        (None, _) => Err(Error::Usage("say what to call: a METHOD such as tools/list, or --tool NAME".to_string())),
    }
}

fn tool_call(tool: &str, arguments: &str) -> Result<(String, Option<Box<RawValue>>), Error> {
    let arguments = json_word(arguments)?;
    let params = serde_json::value::to_raw_value(&ToolParams { name: tool, arguments: &arguments });
    Ok(("tools/call".to_string(), Some(params.expect("strings and valid JSON"))))
}

/// JSON as the user wrote it, on the command line or on stdin.
pub fn json_word(word: &str) -> Result<Box<RawValue>, Error> {
    let text = if word == "-" { read_stdin()? } else { word.to_string() };
    RawValue::from_string(text.trim().to_string())
        .map_err(|why| Error::Usage(format!("the parameters are not valid JSON: {why}")))
}

fn tool_failed(result: &str) -> bool {
    Json::of(result).ok().and_then(|result| result.member("isError")).is_some_and(|flag| flag.get() == "true")
}

// --- status objects -------------------------------------------------------------------------------------------------

/// One line for a change that was asked for, and a warning if the server is not what it should be now.
fn show_change(screen: &mut Screen, body: &str, done: &str) -> Result<(), Error> {
    if screen.form == Form::Json {
        return Ok(screen.json(body)?);
    }
    let server = parse(body)?;
    screen.line(&format!("{done} {}: {}", text(&server["name"]), text(&server["status"])))?;
    match server["last_error"].as_str() {
        Some(why) if server["status"] != "ready" && done != "stopped" => Err(Error::Fault(why.to_string())),
        Some(_) | None => Ok(()),
    }
}

pub fn show_status(screen: &mut Screen, body: &str) -> Result<(), Error> {
    if screen.form == Form::Json {
        return Ok(screen.json(body)?);
    }
    let server = parse(body)?;
    let mut pairs = vec![
        ("name", text(&server["name"])),
        ("id", text(&server["workspace_id"])),
        ("status", format!("{} (container {})", text(&server["status"]), text(&server["container_status"]))),
        ("provider", text(&server["provider"])),
        ("image", image(&server)),
        ("bridge", bridge(&server)),
        ("uptime", text(&server["uptime"])),
        ("restarts", format!("{} (policy {})", text(&server["restart_count"]), text(&server["restart_policy"]))),
        ("queue", queue(&server)),
        ("usage", usage(&server["resource_usage"])),
        ("limits", fields(&server["resource_limits"])),
        ("volumes", list(&server["volumes"])),
        ("ports", list(&server["ports"])),
        ("environment", list(&server["environment"])),
        ("created", text(&server["created_at"])),
        ("last used", text(&server["last_used_at"])),
    ];
    if !server["install"].is_null() {
        pairs.push(("install", fields(&server["install"])));
    }
    if !server["asleep"].is_null() {
        pairs.push(("asleep", fields(&server["asleep"])));
    }
    if server["crash_loop"]["level"].as_u64().is_some_and(|level| level > 0) {
        pairs.push(("crash loop", fields(&server["crash_loop"])));
    }
    if !server["last_error"].is_null() {
        pairs.push(("last error", text(&server["last_error"])));
    }
    if !server["last_crash"].is_null() {
        pairs.push(("last crash", crash(&server["last_crash"])));
    }
    Ok(screen.pairs(&pairs)?)
}

pub fn parse(body: &str) -> Result<Value, Error> {
    serde_json::from_str(body).map_err(|_| Error::not_ours())
}

pub fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A value as a person writes it: no quotes, nothing for null.
pub fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}

pub fn list(value: &Value) -> String {
    array(value).iter().map(text).collect::<Vec<_>>().join(", ")
}

fn fields(value: &Value) -> String {
    let Some(object) = value.as_object() else { return text(value) };
    let known = object.iter().filter(|(_, value)| !value.is_null());
    known.map(|(key, value)| format!("{key} {}", text(value))).collect::<Vec<_>>().join(", ")
}

/// With how much of its packages is here, while they are fetched.
pub fn status_word(server: &Value) -> String {
    let status = text(&server["status"]);
    match server["install"]["bytes"].as_u64() {
        Some(bytes) if status == "installing" => format!("{status} {}", size(bytes)),
        Some(_) | None => status,
    }
}

fn image(server: &Value) -> String {
    match &server["image"] {
        Value::Null => "(host)".to_string(),
        image => text(image),
    }
}

pub fn queue(server: &Value) -> String {
    let count = |key: &str| server["queue"][key].as_u64().unwrap_or(0);
    match (count("in_flight"), count("waiting")) {
        (0, 0) => "idle".to_string(),
        (in_flight, waiting) => format!("{in_flight} in flight, {waiting} waiting"),
    }
}

fn bridge(server: &Value) -> String {
    if server["stdio_bridge"] != Value::Bool(true) {
        return "none".to_string();
    }
    let state = if server["bridge_connected"] == Value::Bool(true) { "connected" } else { "not connected" };
    let info = &server["server_info"];
    let who = [text(&info["name"]), text(&info["version"])].join(" ");
    let version = text(&server["protocol_version"]);
    let told = [who.trim(), version.as_str()].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>();
    if told.is_empty() { state.to_string() } else { format!("{state} ({})", told.join(", protocol ")) }
}

fn usage(usage: &Value) -> String {
    let Some(memory) = usage["memory_bytes"].as_u64() else { return String::new() };
    let mut parts = Vec::new();
    if let Some(percent) = usage["cpu_percent"].as_f64() {
        parts.push(format!("cpu {percent:.1}%"));
    }
    match usage["memory_limit_bytes"].as_u64() {
        Some(limit) => parts.push(format!("memory {} of {}", size(memory), size(limit))),
        None => parts.push(format!("memory {}", size(memory))),
    }
    if let Some(pids) = usage["pids"].as_u64() {
        parts.push(format!("pids {pids}"));
    }
    if let Some(disk) = usage["disk_bytes"].as_u64() {
        parts.push(format!("disk {}", size(disk)));
    }
    parts.join(", ")
}

fn crash(crash: &Value) -> String {
    let mut how = match (crash["exit_code"].as_i64(), crash["signal"].as_i64()) {
        (_, Some(signal)) => format!("signal {signal}"),
        (Some(code), None) => format!("exit code {code}"),
        (None, None) => "unknown end".to_string(),
    };
    if crash["oom"] == Value::Bool(true) {
        how += ", out of memory";
    }
    let tail = match &crash["stderr_tail"] {
        Value::Array(lines) => lines.iter().map(text).collect::<Vec<_>>().join("\n"),
        other => text(other),
    };
    format!("{} at {}\n{tail}", how, text(&crash["at"])).trim_end().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn call_args(tool: Option<&str>, words: &[&str]) -> Call {
        let words = words.iter().map(|word| word.to_string()).collect();
        Call { name: "x".to_string(), tool: tool.map(str::to_string), timeout_ms: None, words }
    }

    #[test]
    fn parameters_reach_the_wire_as_they_were_written() {
        let (method, params) =
            method_and_params(&call_args(None, &["m", r#" {"b": 1.0e2, "a":"\u00e9"} "#])).ok().unwrap();
        assert_eq!((method.as_str(), params.unwrap().get()), ("m", r#"{"b": 1.0e2, "a":"\u00e9"}"#));
        let (method, params) = method_and_params(&call_args(Some("echo"), &[r#"{"n":1.50}"#])).ok().unwrap();
        assert_eq!(
            (method.as_str(), params.unwrap().get()),
            ("tools/call", r#"{"name":"echo","arguments":{"n":1.50}}"#)
        );
        let (_, params) = method_and_params(&call_args(Some("now"), &[])).ok().unwrap();
        assert_eq!(params.unwrap().get(), r#"{"name":"now","arguments":{}}"#);
    }

    #[test]
    fn a_call_that_cannot_be_meant_is_wrong_use() {
        for args in [call_args(None, &[]), call_args(Some("t"), &["{}", "{}"]), call_args(None, &["m", "{broken"])] {
            assert_eq!(method_and_params(&args).err().map(|error| error.exit_code()), Some(2));
        }
    }

    #[test]
    fn a_status_object_is_shown_as_far_as_it_is_there() {
        let bare = json!({});
        assert_eq!(
            (queue(&bare), usage(&bare["resource_usage"]), bridge(&bare)),
            ("idle".into(), "".into(), "none".into())
        );
        let full = json!({
            "stdio_bridge": true, "bridge_connected": true, "protocol_version": "2025-06-18",
            "server_info": {"name": "echo", "version": "1.0"}, "queue": {"in_flight": 1, "waiting": 2},
            "resource_usage": {"cpu_percent": 1.25, "memory_bytes": 1048576, "memory_limit_bytes": 536870912, "pids": 3},
            "last_crash": {"at": "T", "signal": 9, "oom": true, "stderr_tail": ["a", "b"]},
        });
        assert_eq!(bridge(&full), "connected (echo 1.0, protocol 2025-06-18)");
        assert_eq!(queue(&full), "1 in flight, 2 waiting");
        assert_eq!(usage(&full["resource_usage"]), "cpu 1.2%, memory 1M of 512M, pids 3");
        assert_eq!(crash(&full["last_crash"]), "signal 9, out of memory at T\na\nb");
        let clean = json!({"at": "T", "exit_code": 1, "stderr_tail": "x\ny"});
        assert_eq!(crash(&clean), "exit code 1 at T\nx\ny");
    }
}
