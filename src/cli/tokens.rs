//! `token create|ls|revoke`: a new token is printed once, alone on stdout, so that a script can catch it; nothing else
//! here ever sees one.

use super::api::{Api, TOKENS, Wait, encode};
use super::error::Error;
use super::screen::{Form, Screen};
use super::servers::{array, list, parse, text};
use super::table::Table;
use clap::Subcommand;
use serde_json::json;

#[derive(Subcommand)]
pub enum Token {
    /// Make a token and print it, once
    #[command(after_help = "Scopes: admin:read, admin:write, mcp:call

Examples:
  stdiod token create agent --scope mcp:call --server notes
  stdiod token create ops --scope admin:read,admin:write,mcp:call > ops.token")]
    Create(Create),
    /// List tokens (not the secrets themselves)
    Ls,
    /// Make a token worthless, at once
    Revoke {
        /// The token's name
        name: String,
    },
}

#[derive(clap::Args)]
pub struct Create {
    /// A name to know it by
    name: String,
    /// What it may do
    #[arg(long, value_name = "SCOPE", required = true, value_delimiter = ',')]
    scope: Vec<String>,
    /// Only for this server; may be repeated
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    server: Vec<String>,
}

pub fn token(api: &Api, screen: &mut Screen, command: &Token) -> Result<(), Error> {
    match command {
        Token::Create(args) => create(api, screen, args),
        Token::Ls => ls(api, screen),
        Token::Revoke { name } => {
            api.delete(&format!("{TOKENS}/{}", encode(name)))?;
            match screen.form {
                Form::Json => Ok(()),
                Form::Human => Ok(screen.line(&format!("revoked {name}"))?),
            }
        }
    }
}

fn create(api: &Api, screen: &mut Screen, args: &Create) -> Result<(), Error> {
    let mut wanted = json!({ "name": args.name, "scopes": args.scope });
    if !args.server.is_empty() {
        wanted["servers"] = json!(args.server);
    }
    let body = api.post(TOKENS, Some(wanted.to_string().as_bytes()), Wait::Quick)?;
    match screen.form {
        Form::Json => Ok(screen.json(&body)?),
        Form::Human => {
            screen.line(&text(&parse(&body)?["token"]))?;
            eprintln!("stdiod: this is the only time token `{}` is shown; keep it safe", args.name);
            Ok(())
        }
    }
}

fn ls(api: &Api, screen: &mut Screen) -> Result<(), Error> {
    let body = api.get(TOKENS)?;
    if screen.form == Form::Json {
        return Ok(screen.json(&body)?);
    }
    let mut table = Table::new(&["name", "scopes", "servers", "created"]);
    for token in array(&parse(&body)?) {
        let servers = list(&token["servers"]);
        let servers = if servers.is_empty() { "(all)".to_string() } else { servers };
        table.row(vec![text(&token["name"]), list(&token["scopes"]), servers, text(&token["created_at"])]);
    }
    Ok(screen.table(&table)?)
}
