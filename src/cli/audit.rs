//! `audit`: who changed what, who was not let in; with `-f` also what is still to come. Asks again and again, because the log
//! is a file of the daemon's and no stream.

use super::api::{Api, encode};
use super::error::Error;
use super::screen::{Form, Screen};
use super::servers::{array, parse, text};
use crate::limits::{AUDIT_FOLLOW_EVERY, AUDIT_LIMIT_MAX};
use serde_json::Value;
use std::collections::HashSet;

const AUDIT: &str = "/api/v1/audit";

#[derive(clap::Args)]
#[command(after_help = "Examples:
  stdiod audit --type auth
  stdiod audit --since 2026-02-17T10:00:00Z --json
  stdiod audit -f")]
pub struct Audit {
    /// Go on with new lines as they come
    #[arg(short, long)]
    follow: bool,
    /// At most so many, the newest
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Nothing older than this, as in 2026-02-17T10:00:00Z
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only these, as in server.update, token.create, auth or tool.call
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
}

pub fn audit(api: &Api, screen: &mut Screen, args: &Audit) -> Result<(), Error> {
    let first = ask(api, args, args.limit, args.since.as_deref())?;
    if !args.follow && screen.form == Form::Json {
        return Ok(screen.json(&first)?);
    }
    let mut seen: HashSet<String> = HashSet::new();
    let mut last = show(screen, &parse(&first)?, &mut seen)?.or_else(|| args.since.clone());
    if !args.follow {
        return Ok(());
    }
    loop {
        std::thread::sleep(AUDIT_FOLLOW_EVERY);
        let more = parse(&ask(api, args, Some(AUDIT_LIMIT_MAX), last.as_deref())?)?;
        // What came in the same moment as the last one comes again; older lines never do.
        let again: HashSet<String> = array(&more).iter().map(|line| text(&line["audit_id"])).collect();
        last = show(screen, &more, &mut seen)?.or(last);
        seen.retain(|id| again.contains(id));
    }
}

fn ask(api: &Api, args: &Audit, limit: Option<usize>, since: Option<&str>) -> Result<String, Error> {
    let given =
        [("limit", limit.map(|n| n.to_string())), ("since", since.map(str::to_string)), ("type", args.kind.clone())];
    let pairs = given.into_iter().filter_map(|(key, value)| Some(format!("{key}={}", encode(&value?))));
    let query: Vec<String> = pairs.collect();
    api.get(&format!("{AUDIT}?{}", query.join("&")))
}

/// The oldest first, as on a terminal; gives the time of the newest.
fn show(screen: &mut Screen, lines: &Value, seen: &mut HashSet<String>) -> Result<Option<String>, Error> {
    let mut newest = None;
    for line in array(lines).iter().rev() {
        newest = Some(text(&line["logged_at"]));
        if !seen.insert(text(&line["audit_id"])) {
            continue;
        }
        match screen.form {
            Form::Json => screen.json(&line.to_string())?,
            Form::Human => {
                let words = ["logged_at", "type", "outcome", "subject", "target", "source"].map(|key| text(&line[key]));
                screen.line(&format!("{} {}", words.join(" "), line["data"]))?;
            }
        }
    }
    screen.flush()?;
    Ok(newest)
}
