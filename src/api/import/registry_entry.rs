//! A registry's `server.json` (schema 2025-12-11): the first of its packages that can be hosted, as a command that fetches
//! it or as an image, with its arguments and variables. What a person must choose is taken from what was given, else from
//! the default, else asked for.

use super::clients::scalar;
use super::container_command;
use super::program::{Variables, program};
use super::values::{Asking, Filled};
use super::{Draft, remote};
use serde_json::{Map, Value};

pub fn draft(document: &Map<String, Value>, asking: &mut Asking) -> Result<Draft, String> {
    let packages = array(document.get("packages"));
    let remotes = array(document.get("remotes"));
    if packages.is_empty() && !asking.has_project() {
        return Err(remote::WITHOUT_PROJECT.to_string());
    }
    let mut reasons = Vec::new();
    for package in packages {
        match obstacle(package) {
            None => return hosted(package, asking),
            Some(why) => reasons.push(why),
        }
    }
    if asking.has_project() && !remotes.is_empty() {
        return at_address(&remotes[0], asking);
    }
    Err(format!("none of its packages can be hosted: {}", reasons.join("; ")))
}

fn kind(package: &Value) -> &str {
    // Older documents call it so.
    package["registryType"].as_str().or(package["registry_type"].as_str()).unwrap_or_default()
}

fn obstacle(package: &Value) -> Option<String> {
    let name = package["identifier"].as_str().unwrap_or("(no identifier)");
    match package["transport"]["type"].as_str() {
        None | Some("stdio") => {}
        Some(other) => return Some(format!("{name} speaks {other}, not stdio")),
    }
    match kind(package) {
        "npm" | "pypi" | "oci" if package["identifier"].is_string() => None,
        "mcpb" => Some(format!("{name} is a bundle: fetch it and import the .mcpb file")),
        other => Some(format!("{name} is of the type {other:?}, and npm, pypi and oci can be hosted")),
    }
}

fn hosted(package: &Value, asking: &mut Asking) -> Result<Draft, String> {
    let identifier = package["identifier"].as_str().unwrap_or_default();
    let version = package["version"].as_str().filter(|version| !version.is_empty());
    let hint = package["runtimeHint"].as_str().unwrap_or_default();
    let runtime = arguments(&package["runtimeArguments"], asking);
    let own = arguments(&package["packageArguments"], asking);
    let variables = variables(&package["environmentVariables"], asking)?;
    let mut draft = Draft::default();
    if kind(package) == "oci" {
        let last = identifier.rsplit('/').next().unwrap_or_default();
        let image = match version {
            Some(version) if !last.contains([':', '@']) => format!("{identifier}:{version}"),
            Some(_) | None => identifier.to_string(),
        };
        // The variables are the container's, whether or not the runtime is told of each.
        let named = variables.keys().flat_map(|name| ["-e".to_string(), name.clone()]);
        let words: Vec<String> = named.chain(runtime).chain([image]).chain(own).collect();
        container_command::options(&words, &variables, &mut draft.definition, asking)?;
        return Ok(draft);
    }
    let versioned = version.map_or(identifier.to_string(), |version| format!("{identifier}@{version}"));
    let mut words: Vec<String> = match (kind(package), hint) {
        ("npm", "bunx") => vec!["bunx".to_string()],
        // Nobody is there to say yes.
        ("npm", _) if runtime.iter().any(|word| word == "-y" || word == "--yes") => vec!["npx".to_string()],
        ("npm", _) => vec!["npx".to_string(), "-y".to_string()],
        (_, "pipx") => vec!["pipx".to_string(), "run".to_string()],
        (_, _) => vec!["uvx".to_string()],
    };
    // pipx takes the requirement as pip writes it.
    let versioned = if words[0] == "pipx" { versioned.replacen('@', "==", 1) } else { versioned };
    words.extend(runtime);
    // The runtime's own arguments may name the package already, as in `--from PACKAGE`.
    if !words.contains(&versioned) {
        words.push(versioned);
    }
    words.extend(own);
    program(words, variables, &mut draft.definition, asking)?;
    Ok(draft)
}

/// The first of its addresses, which its own document prefers.
fn at_address(remote: &Value, asking: &mut Asking) -> Result<Draft, String> {
    let url = remote["url"].as_str().ok_or("remotes[0].url: is required")?;
    let url = fill_variables(url, &remote["variables"], asking);
    let kind = remote["type"].as_str().unwrap_or_default();
    let headers = inputs(&remote["headers"], "headers", asking)?;
    remote::draft(url, kind, headers)
}

fn arguments(list: &Value, asking: &mut Asking) -> Vec<String> {
    let mut words = Vec::new();
    for (index, argument) in array(Some(list)).iter().enumerate() {
        let flag = argument["name"].as_str().unwrap_or_default();
        let asked = match flag.trim_start_matches('-') {
            "" => argument["valueHint"].as_str().map_or(format!("argument-{}", index + 1), str::to_string),
            name => name.to_string(),
        };
        let is_switch = argument["format"] == "boolean";
        // A switch has no value to ask for: it is there or it is not.
        let value = match chosen(argument, &asked, asking) {
            None if is_switch && argument["isRequired"] == true => Some(Filled::plain("true")),
            None if argument["isRequired"] == true => {
                ask(argument, &asked, asking);
                Some(Filled { text: format!("${{{asked}}}"), missing: true })
            }
            other => other,
        };
        match value {
            None => {}
            Some(value) if flag.is_empty() => words.push(value.text),
            Some(value) if is_switch && value.text == "true" => words.push(flag.to_string()),
            Some(value) if is_switch && value.text == "false" => {}
            Some(value) => words.extend([flag.to_string(), value.text]),
        }
    }
    words
}

fn variables(list: &Value, asking: &mut Asking) -> Result<Variables, String> {
    inputs(list, "environmentVariables", asking)
}

/// Named values, of the environment or of headers.
fn inputs(list: &Value, key: &str, asking: &mut Asking) -> Result<Variables, String> {
    let mut variables = Variables::new();
    for (index, variable) in array(Some(list)).iter().enumerate() {
        let name = variable["name"].as_str().ok_or_else(|| format!("{key}[{index}]: has no name"))?;
        match chosen(variable, name, asking) {
            Some(value) => _ = variables.insert(name.to_string(), (!value.missing).then_some(value.text)),
            None if variable["isRequired"] == true => {
                ask(variable, name, asking);
                variables.insert(name.to_string(), None);
            }
            None => {}
        }
    }
    Ok(variables)
}

/// A fixed value with its `{variables}` filled in, what was given, or the default.
fn chosen(input: &Value, name: &str, asking: &mut Asking) -> Option<Filled> {
    if let Some(fixed) = input["value"].as_str() {
        return Some(fill_variables(fixed, &input["variables"], asking));
    }
    asking.given(name).or_else(|| scalar(&input["default"])).map(Filled::plain)
}

fn fill_variables(text: &str, declared: &Value, asking: &mut Asking) -> Filled {
    let mut filled = Filled::plain(text);
    for (name, variable) in declared.as_object().into_iter().flatten() {
        let mark = format!("{{{name}}}");
        if !filled.text.contains(&mark) {
            continue;
        }
        let fixed = variable["value"].as_str().map(str::to_string);
        match fixed.or_else(|| asking.given(name)).or_else(|| scalar(&variable["default"])) {
            Some(value) => filled.text = filled.text.replace(&mark, &value),
            None => {
                ask(variable, name, asking);
                filled.missing = true;
                filled.text = filled.text.replace(&mark, &format!("${{{name}}}"));
            }
        }
    }
    filled
}

fn ask(input: &Value, name: &str, asking: &mut Asking) {
    asking.need(name, input["description"].as_str(), input["isSecret"] == true);
}

fn array(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}
