//! `upgrade`: the daemon goes on as another program, or says why not. It is the daemon's host that the program must be on.

use super::api::{Api, Wait};
use super::error::Error;
use super::screen::{Form, Screen};
use crate::api::route::UPGRADE;
use crate::limits::{UPGRADE_CHECK_WAIT, UPGRADE_QUIET_WAIT};
use serde_json::{Value, json};
use std::path::PathBuf;

#[derive(clap::Args)]
pub struct Upgrade {
    /// The new program [default: the one that has the running one's name by now]
    binary: Option<PathBuf>,
}

pub fn upgrade(api: &Api, screen: &mut Screen, wanted: &Upgrade) -> Result<(), Error> {
    let body = match &wanted.binary {
        None => json!({}),
        Some(binary) => {
            let path = binary.canonicalize().map_err(|e| Error::Fault(format!("{}: {e}", binary.display())))?;
            json!({ "binary": path.to_string_lossy() })
        }
    };
    let patience = 2 * (UPGRADE_CHECK_WAIT + UPGRADE_QUIET_WAIT);
    let answer = api.post(UPGRADE, Some(body.to_string().as_bytes()), Wait::Call(patience))?;
    match screen.form {
        Form::Json => screen.line(&answer)?,
        Form::Human => {
            let told: Value = serde_json::from_str(&answer).unwrap_or_default();
            let word = |key: &str| told[key].as_str().unwrap_or("?").to_string();
            let (to, from) = (word("to"), word("from"));
            match told["pause_ms"].as_u64() {
                Some(pause_ms) => {
                    screen.line(&format!("version {to} goes on from {from}; the pause was {pause_ms} ms"))?
                }
                None => screen.line(&format!("version {to} is about to go on from {from}"))?,
            }
        }
    }
    Ok(screen.flush()?)
}
