//! `export`: all servers as one document, for `import` on another host, or as the configuration of a client that is to use
//! them. Holds no secret: variables go without their values, and clients take the token from their own environment.

use super::Common;
use super::api::Api;
use super::definitions;
use super::error::Error;
use super::http::Target;
use super::screen::Screen;
use super::servers::text;
use crate::api::import::EXPORT_VERSION;
use clap::ValueEnum;
use serde_json::{Map, Value, json};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  stdiod export > servers.json
  stdiod export --client claude > .mcp.json")]
pub struct Export {
    /// As the configuration of this client, which then calls the servers here
    #[arg(long)]
    client: Option<Client>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Client {
    Claude,
    Vscode,
    Cursor,
}

pub fn export(common: &Common, api: &Api, screen: &mut Screen, args: &Export) -> Result<(), Error> {
    let servers = definitions::servers(api)?;
    let document = match args.client {
        None => definitions_of(api, &servers)?,
        Some(client) => for_client(client, &base(common, api)?, &servers),
    };
    // A file that people read and edit: indented, wherever it goes.
    Ok(screen.line_by_line(&format!("{document:#}"))?)
}

fn definitions_of(api: &Api, servers: &[Value]) -> Result<Value, Error> {
    let mut all = Vec::new();
    for server in servers {
        let name = text(&server["name"]);
        let Some(mut definition) = definitions::stored(api, &name)? else {
            return Err(Error::Fault(format!(
                "the daemon at {} does not tell the definition of {name}: it is too old for an export",
                api.address()
            )));
        };
        // Whoever takes it over looks after it in a way of their own.
        definition.remove("managed_by");
        all.push(Value::Object(definition));
    }
    Ok(json!({"stdiod": EXPORT_VERSION, "servers": all}))
}

/// Clients speak HTTP, so a unix socket is no address for them.
fn base(common: &Common, api: &Api) -> Result<String, Error> {
    match Target::parse(&api.address()) {
        Ok(target @ Target::Tcp { .. }) => Ok(target.to_string()),
        Ok(Target::Unix(_)) | Err(_) => match Target::of_listeners(&common.load_config()?.listen) {
            target @ Target::Tcp { .. } => Ok(target.to_string()),
            Target::Unix(_) => Err(Error::Fault(
                "the daemon listens on no TCP address, and clients know no other: add one to `listen`".to_string(),
            )),
        },
    }
}

fn for_client(client: Client, base: &str, servers: &[Value]) -> Value {
    let token = match client {
        Client::Claude => "${STDIOD_TOKEN}",
        Client::Cursor => "${env:STDIOD_TOKEN}",
        Client::Vscode => "${input:STDIOD_TOKEN}",
    };
    let mut entries = Map::new();
    // One without a bridge speaks no MCP here.
    for server in servers.iter().filter(|server| server["stdio_bridge"] == true) {
        let name = text(&server["name"]);
        let mut entry =
            json!({"url": format!("{base}/mcp/{name}"), "headers": {"Authorization": format!("Bearer {token}")}});
        if client != Client::Cursor {
            entry["type"] = json!("http");
        }
        entries.insert(name, entry);
    }
    match client {
        Client::Claude | Client::Cursor => json!({ "mcpServers": entries }),
        Client::Vscode => {
            let description = "Token of stdiod (stdiod token create NAME --scope mcp:call)";
            let input =
                json!({"type": "promptString", "id": "STDIOD_TOKEN", "description": description, "password": true});
            json!({"inputs": [input], "servers": entries})
        }
    }
}
