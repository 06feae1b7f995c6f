//! The program of an entry and its variables, as the fields of a definition. Knows the detours that people write:
//! `cmd /c`, a whole line as the command, and `docker run`, of which an image is left.

use super::container_command;
use super::values::{Asking, Filled};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Variables by name; none: the value is not known yet.
pub type Variables = BTreeMap<String, Option<String>>;

/// A value for a variable: all of it, or nothing.
pub fn value_of(filled: Filled) -> Option<String> {
    (!filled.missing).then_some(filled.text)
}

pub fn environment(variables: &Variables) -> Value {
    json!(variables)
}

/// Writes what runs into `definition`.
pub fn program(
    words: Vec<String>,
    variables: Variables,
    definition: &mut Map<String, Value>,
    asking: &mut Asking,
) -> Result<(), String> {
    let words = without_shell(words);
    let Some((command, args)) = words.split_first().filter(|(command, _)| !command.is_empty()) else {
        return Err("command: is empty".to_string());
    };
    let runs_containers = matches!(command.rsplit('/').next(), Some("docker" | "podman" | "nerdctl"));
    if runs_containers {
        return container_command::run(args, &variables, definition, asking);
    }
    definition.insert("command".to_string(), json!(command));
    if !args.is_empty() {
        definition.insert("args".to_string(), json!(args));
    }
    if !variables.is_empty() {
        definition.insert("environment".to_string(), environment(&variables));
    }
    Ok(())
}

/// What Windows needs in front of a command, and a command that is a whole line.
fn without_shell(mut words: Vec<String>) -> Vec<String> {
    let is_cmd = |word: &str| matches!(word.to_ascii_lowercase().as_str(), "cmd" | "cmd.exe");
    if let [shell, flag, _, ..] = &words[..]
        && is_cmd(shell)
        && flag.eq_ignore_ascii_case("/c")
    {
        words.drain(..2);
    }
    if let [line] = &words[..] {
        let plain = |c: char| c.is_alphanumeric() || " -_./@:=,+".contains(c);
        if line.contains(' ') && !line.starts_with('/') && line.chars().all(plain) {
            words = line.split_whitespace().map(str::to_string).collect();
        }
    }
    words
}
