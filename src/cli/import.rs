//! `import`: servers from a client's configuration, a registry's `server.json`, a bundle or our own export. The document is
//! read here, where its variables and files are; the daemon compares what comes of it and registers all of it or nothing.
//! Values of variables are never printed.

use super::api::{Api, Wait, encode};
use super::error::Error;
use super::screen::{Form, Screen};
use super::servers::{array, parse, text};
use super::table::{Table, visible};
use crate::api::import::body::handed_over;
use crate::api::import::{self, Entry, Surroundings};
use crate::api::response::ImportAction;
use crate::api::route::IMPORT;
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
    /// Where servers that have a URL belong to; without it they are refused
    #[arg(long)]
    project: Option<String>,
}

pub fn import(api: &Api, screen: &mut Screen, args: &Import) -> Result<(), Error> {
    let around = Here::of(args)?;
    let entries = import::read(&read_document(&args.file)?, &around).map_err(|fault| refused(&args.file, &fault))?;
    let foreseen = ask(api, args, &entries, true)?;
    if !args.dry_run {
        refuse_incomplete(&foreseen)?;
        ask(api, args, &entries, false)?;
    }
    show(screen, &foreseen)
}

/// What the daemon does with the entries, or would do. It gets them with everything that is known here.
fn ask<'e>(api: &Api, args: &Import, entries: &'e [Entry], dry_run: bool) -> Result<Vec<(&'e Entry, String)>, Error> {
    let project = args.project.as_ref().map(|project| format!("&project={}", encode(project))).unwrap_or_default();
    let path = format!("{IMPORT}?dry_run={dry_run}{project}");
    let body = Value::Object(handed_over(entries)).to_string();
    let answer = parse(&api.post(&path, Some(body.as_bytes()), Wait::Quick)?)?;
    let action = |entry: &Entry| match entry.disabled {
        true => "disabled".to_string(),
        false => {
            let told = array(&answer["servers"]).iter().find(|told| told["name"] == entry.name.as_str());
            told.map_or_else(String::new, |told| text(&told["action"]))
        }
    };
    Ok(entries.iter().map(|entry| (entry, action(entry))).collect())
}

/// Where a refusal is about a place in the file, it is named.
fn refused(file: &str, fault: &Fault) -> Error {
    // The names in it are the document's own.
    let message = fault.message.replacen("the body", "it", 1).lines().map(visible).collect::<Vec<_>>().join("\n");
    Error::Fault(format!("{file}: {message}"))
}

/// The daemon knows nothing of questions that are about a part of a word.
fn refuse_incomplete(foreseen: &[(&Entry, String)]) -> Result<(), Error> {
    let mut missing = Vec::new();
    for (entry, _) in foreseen.iter().filter(|(_, action)| action == ImportAction::Create.wire()) {
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

fn show(screen: &mut Screen, planned: &[(&Entry, String)]) -> Result<(), Error> {
    if screen.form == Form::Json {
        let servers: Vec<Value> = planned.iter().map(|(entry, action)| entry.shown(action)).collect();
        return Ok(screen.json(&json!({ "servers": servers }).to_string())?);
    }
    let mut table = Table::new(&["name", "from", "action", "needs", "runs"]);
    for (entry, action) in planned {
        let needs: Vec<&str> = entry.needs.iter().map(|need| need.name.as_str()).collect();
        table.row(vec![
            entry.name.clone(),
            entry.from.clone(),
            action.clone(),
            needs.join(", "),
            runs(&entry.definition),
        ]);
    }
    Ok(screen.table(&table)?)
}

fn runs(definition: &serde_json::Map<String, Value>) -> String {
    let mut words: Vec<String> =
        ["image", "command", "url"].iter().filter_map(|key| definition.get(*key)).map(text).collect();
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
    has_project: bool,
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
        Ok(Here { set, skip: &args.skip, has_project: args.project.is_some(), directory })
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

    fn has_project(&self) -> bool {
        self.has_project
    }
}
