//! `docker run …` as a definition: the image, its arguments, and those options that mean something here. An option that
//! would change what the server sees and has no counterpart is refused by name; one that is only about Docker is dropped.

use super::program::{Variables, environment};
use super::values::Asking;
use serde_json::{Map, Value, json};

/// About Docker itself, without a value.
const FLAGS_DROPPED: &[&str] = &["-i", "-t", "-it", "-ti", "--interactive", "--tty", "--rm", "--init", "-q", "--quiet"];
/// About Docker itself, with one. Every server is confined at least as much as the last four ask for.
const OPTIONS_DROPPED: &[&str] = &[
    "--name",
    "--label",
    "-l",
    "--platform",
    "--log-driver",
    "--log-opt",
    "--hostname",
    "-h",
    "--restart",
    "--stop-timeout",
    "--cap-drop",
    "--security-opt",
    "--ulimit",
    "--tmpfs",
];

/// What is put together from the options.
struct Container<'a> {
    variables: Variables,
    given: &'a Variables,
    volumes: Vec<String>,
    ports: Vec<String>,
    limits: Map<String, Value>,
    fields: Map<String, Value>,
}

/// `args` are those of `docker`.
pub fn run(
    args: &[String],
    given: &Variables,
    definition: &mut Map<String, Value>,
    asking: &mut Asking,
) -> Result<(), String> {
    match args {
        [run, rest @ ..] if run == "run" => options(rest, given, definition, asking),
        [container, run, rest @ ..] if container == "container" && run == "run" => {
            options(rest, given, definition, asking)
        }
        _ => Err("command: of docker only `docker run IMAGE` can be hosted".to_string()),
    }
}

/// Options, the image, and its arguments.
pub fn options(
    words: &[String],
    given: &Variables,
    definition: &mut Map<String, Value>,
    asking: &mut Asking,
) -> Result<(), String> {
    let (volumes, ports) = (Vec::new(), Vec::new());
    let mut container =
        Container { variables: Variables::new(), given, volumes, ports, limits: Map::new(), fields: Map::new() };
    let mut rest = words.iter();
    let image = loop {
        let word = rest.next().ok_or("args: `docker run` names no image")?;
        if !word.starts_with('-') {
            break word;
        }
        if FLAGS_DROPPED.contains(&word.as_str()) || word == "--read-only" {
            continue;
        }
        let (option, value) = match word.split_once('=') {
            Some((option, value)) if option.starts_with("--") => (option, value.to_string()),
            Some(_) | None => {
                let value = rest.next().ok_or_else(|| format!("args: {word} has no value, or is not known here"))?;
                (word.as_str(), value.clone())
            }
        };
        container.option(option, &value, asking)?;
    };
    if image.contains("${") {
        return Err(format!("args: the image {image} is not known yet"));
    }
    definition.append(&mut container.fields);
    definition.insert("image".to_string(), json!(image));
    let cmd: Vec<&String> = rest.collect();
    let mut set = |key: &str, value: Value, is_empty: bool| {
        if !is_empty {
            definition.insert(key.to_string(), value);
        }
    };
    set("cmd", json!(cmd), cmd.is_empty());
    set("environment", environment(&container.variables), container.variables.is_empty());
    set("volumes", json!(container.volumes), container.volumes.is_empty());
    set("ports", json!(container.ports), container.ports.is_empty());
    set("resource_limits", json!(container.limits), container.limits.is_empty());
    // A container has a network unless it is told otherwise; a server here has none.
    if container.ports.is_empty() {
        definition.entry("network").or_insert(json!("bridge"));
    } else {
        // It is called on its ports by others; what it is hosted for is still its stdin.
        definition.insert("stdio_bridge".to_string(), json!(true));
    }
    Ok(())
}

impl Container<'_> {
    fn option(&mut self, option: &str, value: &str, asking: &mut Asking) -> Result<(), String> {
        let mut field = |key: &str| _ = self.fields.insert(key.to_string(), json!(value));
        match option {
            "-e" | "--env" => self.variable(value, asking),
            "-v" | "--volume" => return self.volume(value),
            "--mount" => return self.mount(value),
            "-p" | "--publish" => self.ports.push(value.strip_suffix("/tcp").unwrap_or(value).to_string()),
            "--network" | "--net" => field("network"),
            "-u" | "--user" => field("user"),
            "-w" | "--workdir" => field("workdir"),
            "--pull" => field("pull_policy"),
            "-m" | "--memory" => _ = self.limits.insert("memory".into(), json!(value.to_ascii_uppercase())),
            "--cpus" => _ = self.limits.insert("cpu".into(), json!(value)),
            "--pids-limit" => {
                let pids: u64 = value.parse().map_err(|_| format!("args: --pids-limit {value} is no number"))?;
                self.limits.insert("pids".into(), json!(pids));
            }
            dropped if OPTIONS_DROPPED.contains(&dropped) => {}
            other => return Err(format!("args: {other} of `docker run` has no counterpart here")),
        }
        Ok(())
    }

    /// `NAME=VALUE`, or `NAME` with the value that docker itself was given.
    fn variable(&mut self, text: &str, asking: &mut Asking) {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, (!value.contains("${")).then(|| value.to_string())),
            None => match self.given.get(text) {
                Some(value) => (text, value.clone()),
                None => (text, asking.variable(text)),
            },
        };
        // A placeholder in the value has been asked for under its own name.
        if value.is_none() && !text.contains('=') && !self.given.contains_key(name) {
            asking.need(name, None, false);
        }
        self.variables.insert(name.to_string(), value);
    }

    /// `NAME:/path[:ro]` is a volume; `/path:/path` would be a part of the host.
    fn volume(&mut self, text: &str) -> Result<(), String> {
        let parts: Vec<&str> = text.split(':').collect();
        let is_named = |source: &str| source.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c));
        let (source, path, options) = match parts[..] {
            [path] => ("", path, ""),
            [source, path] => (source, path, ""),
            [source, path, options] => (source, path, options),
            _ => return Err(format!("args: {text} is no volume")),
        };
        if !is_named(source) || source.starts_with('.') {
            return Err(host_directory(source));
        }
        self.add_volume(path, options.split(',').any(|option| option == "ro"));
        Ok(())
    }

    /// `type=volume,src=NAME,dst=/path,readonly`.
    fn mount(&mut self, text: &str) -> Result<(), String> {
        let (mut kind, mut source, mut path, mut read_only) = ("volume", "", "", false);
        for part in text.split(',') {
            match part.split_once('=').unwrap_or((part, "true")) {
                ("type", value) => kind = value,
                ("src" | "source", value) => source = value,
                ("dst" | "target" | "destination", value) => path = value,
                ("readonly" | "ro", value) => read_only = value != "false",
                (_, _) => {}
            }
        }
        match kind {
            "volume" => {
                self.add_volume(path, read_only);
                Ok(())
            }
            // Every container has its own.
            "tmpfs" => Ok(()),
            _ => Err(host_directory(source)),
        }
    }

    fn add_volume(&mut self, path: &str, read_only: bool) {
        self.volumes.push(if read_only { format!("{path}:ro") } else { path.to_string() });
    }
}

fn host_directory(source: &str) -> String {
    format!("args: `docker run` mounts {source} of the host, which no hosted server sees: use a volume (NAME:/path)")
}
