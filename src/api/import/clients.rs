//! The entries of clients' configurations: `mcpServers` of Claude, Cursor and those who follow them, `servers` of VS Code
//! with its `inputs`, and the draft `mcp.json`. They differ in their placeholders and little else, so one reader takes all.

use super::program::{Variables, program, value_of};
use super::values::{Asking, Filled, Found};
use super::{Draft, remote};
use serde_json::{Map, Value, json};

const LOCAL_TYPES: &[&str] = &["stdio", "local", ""];
const KNOWN: &[&str] =
    &["name", "type", "transport", "command", "args", "env", "environment", "cwd", "envFile", "disabled", "enabled"];

pub fn draft(entry: &Map<String, Value>, inputs: &[Value], asking: &mut Asking) -> Result<Draft, String> {
    let of_type = |key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default();
    let kind = [of_type("type"), of_type("transport")].concat();
    if remote::is_remote(entry, &kind) {
        return remote::of_client(entry, &kind, inputs, asking);
    }
    if !LOCAL_TYPES.contains(&kind.as_str()) {
        return Err(format!("type: {kind:?} is not known; expected \"stdio\""));
    }
    let fill = |text: &str, asking: &mut Asking| asking.fill(text, |asking, inner| look_up(inner, inputs, asking));

    let mut variables = Variables::new();
    if let Some(path) = entry.get("envFile").and_then(Value::as_str) {
        let path = fill(path, asking);
        if !path.missing {
            read_env_file(&path.text, &mut variables, asking)?;
        }
    }
    for (name, value) in object(entry, "env")?.into_iter().chain(object(entry, "environment")?).flatten() {
        let value = match scalar(value) {
            Some(text) => value_of(fill(&text, asking)),
            None if value.is_null() => {
                let given = asking.given(name);
                if given.is_none() {
                    asking.need(name, None, false);
                }
                given
            }
            None => return Err(format!("env.{name}: expected a string")),
        };
        variables.insert(name.clone(), value);
    }

    let mut definition = Map::new();
    if let Some(cwd) = entry.get("cwd").and_then(Value::as_str) {
        let cwd: Filled = fill(cwd, asking);
        if !cwd.missing {
            definition.insert("workdir".to_string(), json!(cwd.text));
        }
    }
    let words = words(entry)?.iter().map(|word| fill(word, asking).text).collect();
    program(words, variables, &mut definition, asking)?;
    let ignored = entry.keys().filter(|key| !KNOWN.contains(&key.as_str())).cloned().collect();
    Ok(Draft { definition, ignored, disabled: is_disabled(entry), ..Draft::default() })
}

pub fn is_disabled(entry: &Map<String, Value>) -> bool {
    entry.get("disabled") == Some(&Value::Bool(true)) || entry.get("enabled") == Some(&Value::Bool(false))
}

/// The command and its arguments.
fn words(entry: &Map<String, Value>) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    match entry.get("command") {
        Some(Value::String(command)) => words.push(command.clone()),
        Some(Value::Array(list)) => words.extend(strings(list, "command")?),
        Some(_) => return Err("command: expected the name or path of a program".to_string()),
        None => return Err("command: is required".to_string()),
    }
    match entry.get("args") {
        None | Some(Value::Null) => {}
        Some(Value::Array(list)) => words.extend(strings(list, "args")?),
        Some(_) => return Err("args: expected a list of strings".to_string()),
    }
    Ok(words)
}

fn strings(list: &[Value], key: &str) -> Result<Vec<String>, String> {
    let each = list
        .iter()
        .enumerate()
        .map(|(index, value)| scalar(value).ok_or_else(|| format!("{key}[{index}]: expected a string")));
    each.collect()
}

/// Numbers and booleans are often written without quotes.
pub fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

pub fn object<'d>(entry: &'d Map<String, Value>, key: &str) -> Result<Option<&'d Map<String, Value>>, String> {
    match entry.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(object)) => Ok(Some(object)),
        Some(_) => Err(format!("{key}: expected an object of strings")),
    }
}

/// `${VAR}`, `${VAR:-default}`, `${env:VAR}`, `${input:id}`, and the places that editors know.
pub fn look_up(inner: &str, inputs: &[Value], asking: &mut Asking) -> Found {
    if let Some(name) = inner.strip_prefix("env:") {
        return asking.look_up_variable(name);
    }
    if let Some(id) = inner.strip_prefix("input:") {
        return input(id, inputs, asking);
    }
    match inner {
        "pathSeparator" | "/" => Found::Value("/".to_string()),
        "userHome" if asking.given(inner).is_none() => asking.look_up_variable("HOME"),
        _ => asking.look_up_variable(inner),
    }
}

/// What a person would be asked by the editor.
fn input(id: &str, inputs: &[Value], asking: &mut Asking) -> Found {
    let declared = inputs.iter().find(|input| input["id"] == id);
    let of = |key: &str| declared.map_or(&Value::Null, |declared| &declared[key]);
    if let Some(value) = asking.given(id) {
        return Found::Value(value);
    }
    if let Some(default) = scalar(of("default")) {
        return Found::Value(default);
    }
    asking.need(id, of("description").as_str(), of("password") == &Value::Bool(true));
    Found::Missing
}

/// `KEY=VALUE` lines, with `export` before them and quotes around the value if they are there.
fn read_env_file(path: &str, variables: &mut Variables, asking: &Asking) -> Result<(), String> {
    let text = asking.file(path).map_err(|why| format!("envFile: cannot read {path}: {why}"))?;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line = line.strip_prefix("export ").unwrap_or(line);
        // Its text may be a secret, and is not shown.
        let Some((name, value)) = line.split_once('=') else {
            return Err(format!("envFile: {path} line {}: write KEY=VALUE", index + 1));
        };
        variables.insert(name.trim().to_string(), Some(unquoted(value.trim()).to_string()));
    }
    Ok(())
}

fn unquoted(value: &str) -> &str {
    let within = |quote: char| value.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
    within('"').or_else(|| within('\'')).unwrap_or(value)
}
