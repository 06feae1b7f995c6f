//! `project tools`, `call` and `calls`: what the servers of a project offer, one call of it, and what was called.

use super::path;
use crate::cli::api::{Api, Wait, encode};
use crate::cli::error::Error;
use crate::cli::screen::{Form, Screen};
use crate::cli::servers::{array, json_word, parse, text};
use crate::cli::table::Table;
use crate::limits::{CLIENT_CALL_MARGIN, REQUEST_TIMEOUT_MAX};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use std::time::Duration;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  stdiod project call shop search '{\"q\": \"socks\"}'
  stdiod project call shop search --server catalogue --text - < arguments.json")]
pub struct Call {
    /// The project's id
    project: String,
    /// The tool, as its server names it
    tool: String,
    /// The arguments, a JSON object; `-` reads it from stdin
    #[arg(value_name = "JSON")]
    arguments: Option<String>,
    /// Whose tool; needed where two servers have one of this name
    #[arg(long, value_name = "NAME")]
    server: Option<String>,
    /// Have the result as text: structured content as YAML
    #[arg(long)]
    text: bool,
    /// Give up after so long (default: the server's own limit)
    #[arg(long, value_name = "N")]
    timeout_ms: Option<u64>,
    /// The agent's run that the record of the call is found by
    #[arg(long, value_name = "ID")]
    run_id: Option<String>,
}

#[derive(clap::Args)]
#[command(after_help = "Examples:
  stdiod project calls shop --tool search --limit 20
  stdiod project calls shop --run-id run-7 --json")]
pub struct Calls {
    /// The project's id
    project: String,
    /// Only calls of this server
    #[arg(long, value_name = "NAME")]
    server: Option<String>,
    /// Only calls of this tool
    #[arg(long, value_name = "NAME")]
    tool: Option<String>,
    /// Only calls of this run
    #[arg(long, value_name = "ID")]
    run_id: Option<String>,
    /// Nothing older than this, as in 2026-02-17T10:00:00Z
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// At most so many, the newest
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
}

pub fn tools(api: &Api, screen: &mut Screen, project: &str) -> Result<(), Error> {
    // Servers are connected to, and each may take its time.
    let body = api.get_when(&path(project, "/mcp/tools"), Wait::Lifecycle)?;
    if screen.form == Form::Json {
        return Ok(screen.json(&body)?);
    }
    let answer = parse(&body)?;
    let mut table = Table::new(&["server", "name", "description"]);
    for tool in array(&answer["tools"]) {
        table.row(["server", "name", "description"].map(|key| text(&tool[key])).to_vec());
    }
    screen.table(&table)?;
    screen.flush()?;
    for server in array(&answer["unavailable"]) {
        eprintln!("stdiod: {} is not available: {}", text(&server["server"]), text(&server["message"]));
    }
    Ok(())
}

#[derive(Serialize)]
struct Body<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    format: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_id: Option<&'a str>,
}

/// The parts of an answer that matter here, the result byte for byte.
#[derive(Deserialize)]
struct Told<'a> {
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    error: Option<Value>,
}

pub fn call(api: &Api, screen: &mut Screen, args: &Call) -> Result<(), Error> {
    let arguments = args.arguments.as_deref().map(json_word).transpose()?;
    let body = Body {
        name: &args.tool,
        arguments: arguments.as_deref(),
        server: args.server.as_deref(),
        timeout_ms: args.timeout_ms,
        format: args.text.then_some("text"),
        run_id: args.run_id.as_deref(),
    };
    let body = serde_json::to_vec(&body).expect("strings and valid JSON");
    let limit = args.timeout_ms.map_or(REQUEST_TIMEOUT_MAX, Duration::from_millis);
    let wait = Wait::Call(limit.saturating_add(CLIENT_CALL_MARGIN));
    let answer = api.post(&path(&args.project, "/mcp/tools/call"), Some(&body), wait)?;
    let told: Told = serde_json::from_str(&answer).map_err(|_| Error::not_ours())?;
    let result = told.result.map_or("null", RawValue::get);
    match (screen.form, args.text) {
        (Form::Json, _) => screen.json(&answer)?,
        (Form::Human, true) => screen.line_by_line(&text(&parse(result)?))?,
        (Form::Human, false) => screen.json(result)?,
    }
    match told.error {
        None => Ok(()),
        Some(error) => {
            screen.flush()?;
            Err(Error::Fault(format!("the tool reports an error: {}", text(&error["message"]))))
        }
    }
}

pub fn calls(api: &Api, screen: &mut Screen, args: &Calls) -> Result<(), Error> {
    let limit = args.limit.map(|limit| limit.to_string());
    let given = [
        ("server", args.server.as_deref()),
        ("tool", args.tool.as_deref()),
        ("run_id", args.run_id.as_deref()),
        ("since", args.since.as_deref()),
        ("limit", limit.as_deref()),
    ];
    let pairs = given.into_iter().filter_map(|(key, value)| Some(format!("{key}={}", encode(value?))));
    let query = pairs.collect::<Vec<_>>().join("&");
    let body = api.get(&path(&args.project, &format!("/mcp/calls?{query}")))?;
    if screen.form == Form::Json {
        return Ok(screen.json(&body)?);
    }
    let mut table = Table::new(&["started", "server", "tool", "run", "ms", "outcome", "error"]);
    for call in array(&parse(&body)?) {
        let keys = ["started_at", "server", "tool", "run_id", "duration_ms", "outcome", "error_code"];
        table.row(keys.map(|key| text(&call[key])).to_vec());
    }
    Ok(screen.table(&table)?)
}
