//! `import`: servers from a client's configuration, a registry's `server.json`, a bundle or our own export. Everything is
//! read and compared before anything is registered, and what was registered is removed again if one of them is refused:
//! all or nothing. Values of variables are never printed.

use super::api::{Api, SERVERS, Wait, server_path};
use super::definitions::{self, Wanted};
use super::error::Error;
use super::screen::{Form, Screen};
use super::servers::text;
use super::table::{Table, visible};
use crate::api::import::{self, Entry, Surroundings};
use crate::limits::IMPORT_MAX;
use crate::model::fault::Fault;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
#[command(
    after_help = "FILE may be the configuration of a client (`mcpServers` of Claude and Cursor, `servers` of VS Code), a \
registry's server.json, an .mcpb bundle, or what `stdiod export` wrote.

Examples:
  stdiod import ~/.cursor/mcp.json --dry-run
  stdiod import .vscode/mcp.json --set api-key=s3cret
  stdiod import claude.json --skip linear --set notes.TOKEN=s3cret"
)]
pub struct Import {
    /// The document; `-` for stdin
    file: String,
    /// Only show what would be registered, and what is still missing
    #[arg(long)]
    dry_run: bool,
    /// A value that the document asks for; SERVER.NAME=VALUE is for that server alone
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// Leave out the entry of this name; may be repeated
    #[arg(long, value_name = "NAME")]
    skip: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
    Create,
    /// The same server is there already.
    Unchanged,
    /// Another one of that name is.
    Taken,
    /// The document has it switched off.
    Disabled,
}

impl Action {
    fn word(self) -> &'static str {
        match self {
            Action::Create => "create",
            Action::Unchanged => "unchanged",
            Action::Taken => "name_taken",
            Action::Disabled => "disabled",
        }
    }
}

pub fn import(api: &Api, screen: &mut Screen, args: &Import) -> Result<(), Error> {
    let around = Here::of(args)?;
    let entries = import::read(&read_document(&args.file)?, &around).map_err(|fault| refused(&args.file, &fault))?;
    let planned = plan(api, entries)?;
    if args.dry_run {
        return show(screen, &planned);
    }
    refuse_incomplete(&planned)?;
    register_all(api, &planned)?;
    show(screen, &planned)
}

/// Where a refusal is about a place in the file, it is named.
fn refused(file: &str, fault: &Fault) -> Error {
    // The names in it are the document's own.
    let message = fault.message.replacen("the body", "it", 1).lines().map(visible).collect::<Vec<_>>().join("\n");
    Error::Fault(format!("{file}: {message}"))
}

fn plan(api: &Api, entries: Vec<Entry>) -> Result<Vec<(Entry, Action)>, Error> {
    let servers = definitions::servers(api)?;
    let action = |entry: &Entry| -> Result<Action, Error> {
        if entry.disabled {
            return Ok(Action::Disabled);
        }
        let Some(status) = servers.iter().find(|server| server["name"] == entry.name.as_str()) else {
            return Ok(Action::Create);
        };
        let Some(is) = definitions::stored(api, &entry.name)? else { return Ok(Action::Taken) };
        let wanted = Wanted::of(entry.definition.clone()).map_err(|fault| Error::Fault(fault.message))?;
        match wanted.change_of(Some(&is), status) {
            Ok(change) if change.fields.is_empty() => Ok(Action::Unchanged),
            Ok(_) | Err(_) => Ok(Action::Taken),
        }
    };
    entries.into_iter().map(|entry| action(&entry).map(|action| (entry, action))).collect()
}

fn refuse_incomplete(planned: &[(Entry, Action)]) -> Result<(), Error> {
    let taken: Vec<&str> =
        planned.iter().filter(|(_, action)| *action == Action::Taken).map(|(entry, _)| entry.name.as_str()).collect();
    if !taken.is_empty() {
        return Err(Error::Fault(format!(
            "nothing was registered: there is another server called {} (name_taken). Remove it first, or leave the entry \
             out with --skip",
            taken.join(", ")
        )));
    }
    let mut missing = Vec::new();
    for (entry, _) in planned.iter().filter(|(_, action)| *action == Action::Create) {
        for need in &entry.needs {
            let about = need.description.as_ref().map(|text| format!(" ({text})")).unwrap_or_default();
            missing.push(format!("  {}{about}, for {}", need.name, entry.name));
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::Fault(format!(
        "nothing was registered. Still missing; give each with --set NAME=VALUE:\n{}",
        missing.join("\n")
    )))
}

fn register_all(api: &Api, planned: &[(Entry, Action)]) -> Result<(), Error> {
    let mut done: Vec<&str> = Vec::new();
    for (entry, _) in planned.iter().filter(|(_, action)| *action == Action::Create) {
        let body = Value::Object(entry.definition.clone()).to_string();
        let Err(error) = api.post(&format!("{SERVERS}?wait=false"), Some(body.as_bytes()), Wait::Quick) else {
            done.push(&entry.name);
            continue;
        };
        let why = error.message().unwrap_or_default();
        let left: Vec<&str> = done.into_iter().filter(|name| !removed(api, name)).collect();
        let rest = match left[..] {
            [] => "nothing is left of this import".to_string(),
            _ => format!("and could not be removed again: {}", left.join(", ")),
        };
        return Err(Error::Fault(format!("`{}` was refused: {why}\n{rest}", entry.from)));
    }
    Ok(())
}

/// It was made a moment ago, and its volumes with it.
fn removed(api: &Api, name: &str) -> bool {
    api.delete(&server_path(name, "?volumes=true")).is_ok()
}

fn show(screen: &mut Screen, planned: &[(Entry, Action)]) -> Result<(), Error> {
    if screen.form == Form::Json {
        let servers: Vec<Value> = planned.iter().map(|(entry, action)| entry.shown(action.word())).collect();
        return Ok(screen.json(&json!({ "servers": servers }).to_string())?);
    }
    let mut table = Table::new(&["name", "from", "action", "needs", "runs"]);
    for (entry, action) in planned {
        let needs: Vec<&str> = entry.needs.iter().map(|need| need.name.as_str()).collect();
        table.row(vec![
            entry.name.clone(),
            entry.from.clone(),
            action.word().to_string(),
            needs.join(", "),
            runs(&entry.definition),
        ]);
    }
    Ok(screen.table(&table)?)
}

fn runs(definition: &serde_json::Map<String, Value>) -> String {
    let mut words: Vec<String> = ["image", "command"].iter().filter_map(|key| definition.get(*key)).map(text).collect();
    for key in ["args", "cmd"] {
        words.extend(definition.get(key).and_then(Value::as_array).into_iter().flatten().map(text));
    }
    words.join(" ")
}

fn read_document(file: &str) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let read = match file {
        "-" => std::io::stdin().lock().take(IMPORT_MAX as u64 + 1).read_to_end(&mut bytes),
        path => std::fs::File::open(path).and_then(|file| file.take(IMPORT_MAX as u64 + 1).read_to_end(&mut bytes)),
    };
    read.map_err(|why| Error::Usage(format!("cannot read {file}: {why}")))?;
    if bytes.len() > IMPORT_MAX {
        return Err(Error::Usage(format!("{file} is larger than {IMPORT_MAX} bytes")));
    }
    Ok(bytes)
}

/// What this command line, this environment and this machine know.
struct Here<'a> {
    set: BTreeMap<String, String>,
    skip: &'a [String],
    /// Of the document.
    directory: PathBuf,
}

impl Here<'_> {
    fn of(args: &Import) -> Result<Here<'_>, Error> {
        let mut set = BTreeMap::new();
        for item in &args.set {
            let Some((name, value)) = item.split_once('=') else {
                return Err(Error::Usage(format!("--set {item}: write NAME=VALUE")));
            };
            set.insert(name.to_string(), value.to_string());
        }
        let file = std::path::absolute(&args.file).unwrap_or_else(|_| PathBuf::from(&args.file));
        let directory = file.parent().map(Path::to_path_buf).unwrap_or_default();
        Ok(Here { set, skip: &args.skip, directory })
    }

    /// Configurations of a project stand in a directory of their own below it.
    fn project(&self) -> &Path {
        let own = [".vscode", ".cursor"].map(std::ffi::OsStr::new);
        match self.directory.file_name() {
            Some(name) if own.contains(&name) => self.directory.parent().unwrap_or(&self.directory),
            Some(_) | None => &self.directory,
        }
    }
}

impl Surroundings for Here<'_> {
    fn given(&self, name: &str) -> Option<String> {
        self.set.get(name).cloned()
    }

    fn variable(&self, name: &str) -> Option<String> {
        let folder = || self.project().to_string_lossy().into_owned();
        match name {
            "workspaceFolder" => Some(folder()),
            "workspaceFolderBasename" => folder().rsplit('/').next().map(str::to_string),
            _ => std::env::var(name).ok(),
        }
    }

    fn wants(&self, from: &str) -> bool {
        !self.skip.iter().any(|name| name == from)
    }

    fn file(&self, path: &str) -> Result<String, String> {
        std::fs::read_to_string(self.directory.join(path)).map_err(|why| why.to_string())
    }
}
