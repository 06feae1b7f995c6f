//! `top`: what every server uses, the hungriest first, again every two seconds. Shows status objects and computes nothing
//! of its own.

use super::api::{Api, SERVERS};
use super::error::Error;
use super::screen::{Form, Screen};
use super::servers::{array, parse, queue, status_word, text};
use super::table::{Table, size};
use crate::limits::CLIENT_TOP_EVERY;
use serde_json::Value;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  stdiod top
  stdiod top --once --json")]
pub struct Top {
    /// Show it once and end; in a pipe that is the default
    #[arg(long)]
    once: bool,
}

pub fn top(api: &Api, screen: &mut Screen, args: &Top) -> Result<(), Error> {
    loop {
        let body = api.get(SERVERS)?;
        let goes_on = !args.once && screen.is_terminal();
        match screen.form {
            Form::Json => screen.json(&body)?,
            Form::Human => {
                if goes_on {
                    screen.clear()?;
                }
                show(screen, &parse(&body)?)?;
            }
        }
        screen.flush()?;
        if !goes_on {
            return Ok(());
        }
        std::thread::sleep(CLIENT_TOP_EVERY);
    }
}

fn show(screen: &mut Screen, servers: &Value) -> Result<(), Error> {
    let mut servers: Vec<&Value> = array(servers).iter().collect();
    let used = |server: &Value, key: &str| server["resource_usage"][key].as_f64().unwrap_or(-1.0);
    // By processor, then by memory; what is not running comes last.
    servers.sort_by(|a, b| {
        let order = |key| used(b, key).total_cmp(&used(a, key));
        order("cpu_percent").then(order("memory_bytes"))
    });
    let ready = servers.iter().filter(|server| server["status"] == "ready").count();
    let memory: u64 = servers.iter().filter_map(|server| server["resource_usage"]["memory_bytes"].as_u64()).sum();
    screen.line(&format!("{} servers, {ready} ready, {} of memory", servers.len(), size(memory)))?;
    let mut table =
        Table::new(&["name", "status", "cpu", "memory", "pids", "restarts", "uptime", "queue", "last error"]);
    for server in servers {
        let usage = &server["resource_usage"];
        table.row(vec![
            text(&server["name"]),
            status_word(server),
            usage["cpu_percent"].as_f64().map(|percent| format!("{percent:.1}%")).unwrap_or_default(),
            usage["memory_bytes"].as_u64().map(size).unwrap_or_default(),
            text(&usage["pids"]),
            text(&server["restart_count"]),
            text(&server["uptime"]),
            queue(server),
            text(&server["last_error"]),
        ]);
    }
    Ok(screen.table(&table)?)
}
