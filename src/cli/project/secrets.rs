//! `project secrets`: their names and times, `set` and `rm`. A value comes from stdin or a file and goes to the daemon alone.

use super::path;
use crate::cli::api::{Api, Wait, encode};
use crate::cli::error::Error;
use crate::cli::read_stdin;
use crate::cli::screen::{Form, Screen};
use crate::cli::servers::{array, parse, text};
use crate::cli::table::Table;
use clap::Subcommand;
use serde_json::json;
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  stdiod project secrets shop
  stdiod project secrets shop set SEARCH_API_KEY < key.txt
  stdiod project secrets shop rm SEARCH_API_KEY")]
pub struct Secrets {
    /// The project's id
    project: String,
    #[command(subcommand)]
    change: Option<Change>,
}

#[derive(Subcommand)]
enum Change {
    /// Store a secret, read from stdin; servers that use it are connected to anew
    Set {
        /// As in ${NAME}
        name: String,
        /// Read the value from this file instead of stdin
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Forget a secret
    Rm {
        /// As in ${NAME}
        name: String,
    },
}

pub fn secrets(api: &Api, screen: &mut Screen, args: &Secrets) -> Result<(), Error> {
    let at = |name: &str| path(&args.project, &format!("/secrets/{}", encode(name)));
    match &args.change {
        None => ls(api, screen, &args.project),
        Some(Change::Set { name, file }) => {
            let body = json!({ "value": value(file.as_ref())? }).to_string();
            let answer = api.put(&at(name), body.as_bytes(), Wait::Quick)?;
            match screen.form {
                Form::Json => Ok(screen.json(&answer)?),
                Form::Human => Ok(screen.line(&format!("stored {name}"))?),
            }
        }
        Some(Change::Rm { name }) => {
            api.delete(&at(name))?;
            match screen.form {
                Form::Json => Ok(()),
                Form::Human => Ok(screen.line(&format!("removed {name}"))?),
            }
        }
    }
}

/// Without the newline that editors and `echo` put at the end: no header could carry it.
fn value(file: Option<&PathBuf>) -> Result<String, Error> {
    let text = match file {
        None => read_stdin()?,
        Some(file) => std::fs::read_to_string(file)
            .map_err(|why| Error::Usage(format!("cannot read {}: {why}; check --file", file.display())))?,
    };
    let text = text.strip_suffix('\n').unwrap_or(&text);
    Ok(text.strip_suffix('\r').unwrap_or(text).to_string())
}

fn ls(api: &Api, screen: &mut Screen, project: &str) -> Result<(), Error> {
    let body = api.get(&path(project, "/secrets"))?;
    if screen.form == Form::Json {
        return Ok(screen.json(&body)?);
    }
    let mut table = Table::new(&["name", "stored", "changed", "problem"]);
    for secret in array(&parse(&body)?) {
        table.row(["name", "created_at", "updated_at", "error"].map(|key| text(&secret[key])).to_vec());
    }
    Ok(screen.table(&table)?)
}
