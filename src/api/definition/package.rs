//! `{"command": "npx", "args": […]}`, the form in which MCP servers are usually handed around. Turns it into the fields of
//! a registration: the host's root file system and a `cmd`. What fetches packages also gets a cache of its own that
//! survives restarts, and a network to fetch from. Owns that translation only; the fields are judged in `register`.

use crate::limits::{FETCH_STARTUP_TIMEOUT_DEFAULT, STARTUP_TIMEOUT_DEFAULT};
use crate::model::definition::Definition;
use crate::model::fault::Fault;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Where the cache is, in the container.
const CACHE: &str = "/cache";
const NETWORK: &str = "bridge";

type Variables = &'static [(&'static str, &'static str)];

/// Programs that fetch what they run, and what tells them where to keep it.
const FETCHERS: &[(&[&str], Variables)] = &[
    (
        &["npx", "npm", "pnpm", "yarn", "bunx"],
        &[
            ("NPM_CONFIG_CACHE", "/cache/npm"),
            // What is in the cache is not asked for again: the next start works without the network.
            ("NPM_CONFIG_PREFER_OFFLINE", "true"),
            ("NPM_CONFIG_UPDATE_NOTIFIER", "false"),
            ("NPM_CONFIG_FUND", "false"),
            ("NPM_CONFIG_YES", "true"),
        ],
    ),
    (
        &["uvx", "uv", "pipx"],
        &[
            ("UV_CACHE_DIR", "/cache/uv"),
            ("UV_TOOL_DIR", "/cache/uv-tools"),
            ("UV_NO_PROGRESS", "1"),
            ("PIPX_HOME", "/cache/pipx"),
            ("PIP_CACHE_DIR", "/cache/pip"),
            ("XDG_CACHE_HOME", "/cache"),
        ],
    ),
];

/// What a program that fetches needs besides.
#[derive(Debug, PartialEq, Eq)]
pub struct Fetched {
    variables: Variables,
    startup_is_said: bool,
}

/// Replaces `command` and `args` by what they stand for.
pub fn expand(given: &mut Map<String, Value>) -> Result<Option<Fetched>, Fault> {
    let is_given = |given: &Map<String, Value>, key: &str| given.get(key).is_some_and(|value| !value.is_null());
    if !is_given(given, "command") {
        if is_given(given, "args") {
            return Err(Fault::field("args", "belong to `command`, which is missing"));
        }
        given.remove("command");
        given.remove("args");
        return Ok(None);
    }
    for other in ["cmd", "image"] {
        if is_given(given, other) {
            return Err(Fault::field("command", format_args!("says what to run, and so does `{other}`: give one")));
        }
    }
    let program = match given.remove("command") {
        Some(Value::String(program)) if !program.is_empty() => program,
        _ => return Err(Fault::field("command", "expected the name or path of a program")),
    };
    let mut cmd = vec![Value::String(program.clone())];
    match given.remove("args") {
        None | Some(Value::Null) => {}
        Some(Value::Array(args)) if args.iter().all(Value::is_string) => cmd.extend(args),
        Some(_) => return Err(Fault::field("args", "expected a list of strings")),
    }
    given.insert("cmd".into(), Value::Array(cmd));
    if !is_given(given, "rootfs") {
        given.insert("rootfs".into(), "host".into());
    }
    let variables = variables_of(&program);
    let says = |object: &str, key: &str| given.get(object).and_then(|object| object.get(key)).is_some();
    let startup_is_said = says("timeouts", "startup_ms") || says("health", "startup_timeout_ms");
    Ok(variables.map(|variables| Fetched { variables, startup_is_said }))
}

fn variables_of(program: &str) -> Option<Variables> {
    let name = program.rsplit('/').next().unwrap_or_default();
    FETCHERS.iter().find(|(names, _)| names.contains(&name)).map(|(_, variables)| *variables)
}

/// What tells a program that fetches where its cache is; nothing of it is secret.
pub fn furnish_variables(cmd: &[String], environment: &mut BTreeMap<String, String>) {
    for (name, value) in cmd.first().and_then(|program| variables_of(program)).unwrap_or_default() {
        environment.entry((*name).to_string()).or_insert_with(|| (*value).to_string());
    }
}

/// Is this variable one of those, as they are?
pub fn is_furnished(cmd: &[String], name: &str, value: &str) -> bool {
    let variables = cmd.first().and_then(|program| variables_of(program)).unwrap_or_default();
    variables.contains(&(name, value))
}

impl Fetched {
    /// What the registration says itself stays as it is.
    pub fn furnish(&self, definition: &mut Definition) {
        let covered =
            |path: &String| CACHE == path || CACHE.starts_with(&format!("{path}/")) || path.starts_with("/cache/");
        if !definition.volumes.iter().any(covered) {
            definition.volumes.push(CACHE.to_string());
        }
        for (name, value) in self.variables {
            definition.environment.entry((*name).to_string()).or_insert_with(|| (*value).to_string());
        }
        if definition.network.is_none() && definition.ports.is_empty() {
            definition.network = Some(NETWORK.to_string());
        }
        let is_default = definition.startup_timeout_ms == STARTUP_TIMEOUT_DEFAULT.as_millis() as u64;
        if !self.startup_is_said && is_default {
            definition.startup_timeout_ms = FETCH_STARTUP_TIMEOUT_DEFAULT.as_millis() as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::api::definition::fields::parse;
    use crate::model::definition::Source;
    use serde_json::{Value, json};

    fn read(mut body: Value) -> Result<crate::model::definition::Definition, String> {
        body["name"] = json!("a");
        parse(body.to_string().as_bytes()).map_err(|fault| fault.message)
    }

    #[test]
    fn a_package_runner_gets_a_cache_and_a_network() {
        let npx =
            read(json!({"command": "npx", "args": ["-y", "some-server", "/data"], "volumes": ["/data"]})).unwrap();
        assert_eq!(npx.source, Source::HostRootfs);
        assert_eq!(npx.cmd, ["npx", "-y", "some-server", "/data"]);
        assert_eq!((npx.volumes, npx.network.as_deref()), (vec!["/data".into(), "/cache".into()], Some("bridge")));
        assert_eq!((npx.environment["NPM_CONFIG_CACHE"].as_str(), npx.startup_timeout_ms), ("/cache/npm", 300_000));
        let own = json!({"command": "/usr/bin/uvx", "network": "none", "environment": {"UV_CACHE_DIR": "/data/uv"},
            "timeouts": {"startup_ms": 60_000}});
        let own = read(own).unwrap();
        assert_eq!(own.startup_timeout_ms, 60_000);
        assert_eq!((own.network.as_deref(), own.environment["UV_CACHE_DIR"].as_str()), (Some("none"), "/data/uv"));
        let plain = read(json!({"command": "node", "args": ["x.js"]})).unwrap();
        assert_eq!((plain.network, plain.volumes.len(), plain.environment.len()), (None, 0, 0));
        assert_eq!(plain.startup_timeout_ms, 60_000);
    }

    #[test]
    fn half_of_it_or_twice_of_it_is_refused() {
        for (body, field) in [
            (json!({"args": ["x"], "rootfs": "host", "cmd": ["y"]}), "args"),
            (json!({"command": "npx", "cmd": ["y"]}), "command"),
            (json!({"command": "npx", "image": "y"}), "command"),
            (json!({"command": ""}), "command"),
            (json!({"command": "x", "args": "y"}), "args"),
            (json!({"command": "x", "args": [1]}), "args"),
        ] {
            let why = read(body.clone()).unwrap_err();
            assert!(why.starts_with(field), "{body}: {why}");
        }
    }
}
