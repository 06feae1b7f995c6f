//! `apply`: the servers that files declare, registered where they are missing and changed where they differ. A second run
//! changes nothing. All files are read and judged before anything is asked for. `--prune` touches nothing but what bears the
//! mark of an earlier run.

use super::api::{Api, SERVERS, Wait, server_path};
use super::declared::{self, Declared};
use super::definitions::{self, Change, Wanted};
use super::error::Error;
use super::screen::{Form, Screen};
use super::servers::{parse, text};
use super::table::Table;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(
    after_help = "Files: *.json (a definition, an array, or an export) and *.toml (a definition, or [[servers]]). A \
field that is not declared has its default; a variable declared as null keeps the value it has.

Examples:
  stdiod apply -f servers/ --dry-run
  stdiod apply -f servers.toml"
)]
pub struct Apply {
    /// A file, or a directory of them
    #[arg(short, long, value_name = "DIR|FILE", required = true)]
    file: Vec<PathBuf>,
    /// Remove servers that an earlier apply made and that are declared no more
    #[arg(long)]
    prune: bool,
    /// Only show what would be done
    #[arg(long)]
    dry_run: bool,
}

/// The mark of what was made here, in the server's definition and in its status.
const MANAGED_BY: &str = "managed_by";
const MARK: &str = "apply";

/// What is to be done with one server.
struct Step {
    name: String,
    file: String,
    plan: Plan,
}

enum Plan {
    Create(Wanted),
    Change { change: Change, uptime_ms: Option<u64> },
    Remove,
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Done {
    Created,
    Changed,
    Unchanged,
    Removed,
    Failed,
}

impl Done {
    fn word(self) -> &'static str {
        match self {
            Done::Created => "created",
            Done::Changed => "changed",
            Done::Unchanged => "unchanged",
            Done::Removed => "removed",
            Done::Failed => "failed",
        }
    }
}

pub fn apply(api: &Api, screen: &mut Screen, args: &Apply) -> Result<(), Error> {
    let mut declared = Vec::new();
    for file in &args.file {
        declared.extend(declared::read(file)?);
    }
    let wanted = judged(declared)?;
    let servers = definitions::servers(api)?;
    let mut steps = Vec::new();
    for (file, wanted) in wanted {
        steps.push(step(api, &servers, file, wanted)?);
    }
    if args.prune {
        steps.extend(to_prune(&servers, &steps));
    }
    let mut rows = Vec::new();
    let mut failures = Vec::new();
    for step in &steps {
        let done = match args.dry_run {
            true => Ok(step.plan.foreseen()),
            false => perform(api, step),
        };
        let done = done.unwrap_or_else(|error| {
            failures.push(format!("{}: {}", step.name, error.message().unwrap_or_default()));
            Done::Failed
        });
        rows.push((step, done));
    }
    show(screen, &rows)?;
    if failures.is_empty() {
        return Ok(());
    }
    screen.flush()?;
    Err(Error::Fault(failures.join("\n")))
}

/// All of them valid, and no name twice.
fn judged(declared: Vec<Declared>) -> Result<Vec<(String, Wanted)>, Error> {
    let mut by_name: BTreeMap<String, String> = BTreeMap::new();
    let mut all = Vec::new();
    for one in declared {
        let file = one.file().display().to_string();
        let mut fields = one.fields.clone();
        fields.insert(MANAGED_BY.to_string(), json!(MARK));
        let wanted = Wanted::of(fields).map_err(|fault| one.complaint(&fault))?;
        if let Some(other) = by_name.insert(wanted.name.clone(), file.clone()) {
            return Err(Error::Fault(format!("{} is declared twice: in {other} and in {file}", wanted.name)));
        }
        all.push((file, wanted));
    }
    Ok(all)
}

fn step(api: &Api, servers: &[Value], file: String, wanted: Wanted) -> Result<Step, Error> {
    let name = wanted.name.clone();
    let wrong = |why: String| Error::Fault(format!("{file}: {name}: {why}"));
    let Some(status) = servers.iter().find(|server| server["name"] == name.as_str()) else {
        let missing = wanted.missing();
        if !missing.is_empty() {
            return Err(wrong(format!("environment: a new server needs a value for {}", missing.join(", "))));
        }
        return Ok(Step { name, file, plan: Plan::Create(wanted) });
    };
    let change = wanted.change_of(definitions::stored(api, &name)?.as_ref(), status).map_err(wrong)?;
    let uptime_ms = status["uptime_ms"].as_u64();
    Ok(Step { name, file, plan: Plan::Change { change, uptime_ms } })
}

/// What an earlier run has made. Whatever a server's mark says, what nobody declares now and nobody marked is left alone.
fn to_prune(servers: &[Value], steps: &[Step]) -> Vec<Step> {
    let made = servers.iter().filter(|server| server[MANAGED_BY] == MARK).map(|server| text(&server["name"]));
    let gone = made.filter(|name| !steps.iter().any(|step| step.name == *name));
    gone.map(|name| Step { name, file: String::new(), plan: Plan::Remove }).collect()
}

impl Plan {
    /// What would be done, as far as it can be known.
    fn foreseen(&self) -> Done {
        match self {
            Plan::Create(_) => Done::Created,
            Plan::Change { change, .. } if change.fields.is_empty() => Done::Unchanged,
            Plan::Change { .. } => Done::Changed,
            Plan::Remove => Done::Removed,
        }
    }

    fn fields(&self) -> &[String] {
        match self {
            Plan::Create(_) | Plan::Remove => &[],
            Plan::Change { change, .. } => &change.fields,
        }
    }
}

fn perform(api: &Api, step: &Step) -> Result<Done, Error> {
    match &step.plan {
        Plan::Create(wanted) => {
            let body = Value::Object(wanted.given.clone()).to_string();
            api.post(&format!("{SERVERS}?wait=false"), Some(body.as_bytes()), Wait::Quick)?;
            Ok(Done::Created)
        }
        Plan::Change { change, .. } if change.patch.is_empty() => Ok(Done::Unchanged),
        Plan::Change { change, uptime_ms } => {
            let body = Value::Object(change.patch.clone()).to_string();
            let answer = api.change("PATCH", &server_path(&step.name, ""), body.as_bytes(), Wait::Lifecycle)?;
            let after = parse(&answer)?["uptime_ms"].as_u64();
            // Whether the values that were sent are new is told by whether the server was started again for them.
            let goes_on = matches!((*uptime_ms, after), (Some(before), Some(after)) if after >= before);
            Ok(if change.fields.is_empty() && goes_on { Done::Unchanged } else { Done::Changed })
        }
        Plan::Remove => {
            api.delete(&server_path(&step.name, ""))?;
            Ok(Done::Removed)
        }
    }
}

fn show(screen: &mut Screen, rows: &[(&Step, Done)]) -> Result<(), Error> {
    if screen.form == Form::Json {
        let servers = rows.iter().map(|(step, done)| {
            json!({"name": step.name, "action": done.word(), "fields": step.plan.fields(), "file": step.file})
        });
        let servers: Vec<Value> = servers.collect();
        return Ok(screen.json(&json!({ "servers": servers }).to_string())?);
    }
    let mut table = Table::new(&["name", "action", "fields", "file"]);
    for (step, done) in rows {
        table.row(vec![step.name.clone(), done.word().to_string(), step.plan.fields().join(", "), step.file.clone()]);
    }
    Ok(screen.table(&table)?)
}
