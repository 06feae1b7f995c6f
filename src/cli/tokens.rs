//! `token create|ls|rotate|revoke`: a new token is printed once, alone on stdout, so that a script can catch it; nothing else
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
  stdiod token create agent --scope mcp:call --expires 90d --rate-limit 10:20
  stdiod token create ops --scope admin:read,admin:write,mcp:call > ops.token")]
    Create(Create),
    /// List tokens (not the secrets themselves)
    Ls,
    /// Give a token another secret and print it, once; without --grace the old one is dead at once
    Rotate {
        /// The token's name
        name: String,
        /// For so long the old one goes on beside it, as in 1h
        #[arg(long, value_name = "TIME")]
        grace: Option<String>,
    },
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
    /// Only for this project and the servers in it; may be repeated
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    project: Vec<String>,
    /// It ends after this time: a number and s, m, h or d, as in 90d
    #[arg(long, value_name = "TIME")]
    expires: Option<String>,
    /// Calls a second, and how many may come at once
    #[arg(long, value_name = "PER_SECOND[:BURST]", value_parser = rate)]
    rate_limit: Option<(u32, u32)>,
}

fn rate(text: &str) -> Result<(u32, u32), String> {
    let (per_second, burst) = text.split_once(':').unwrap_or((text, text));
    let number = |text: &str| text.parse::<u32>().map_err(|_| format!("`{text}` is no number; write 10 or 10:20"));
    Ok((number(per_second)?, number(burst)?))
}

pub fn token(api: &Api, screen: &mut Screen, command: &Token) -> Result<(), Error> {
    match command {
        Token::Create(args) => create(api, screen, args),
        Token::Ls => ls(api, screen),
        Token::Rotate { name, grace } => {
            let body = grace.as_ref().map(|grace| json!({ "grace": grace }).to_string());
            let path = format!("{TOKENS}/{}/rotate", encode(name));
            let answer = api.post(&path, body.as_deref().map(str::as_bytes), Wait::Quick)?;
            show_once(screen, &answer, name)
        }
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
    if !args.project.is_empty() {
        wanted["projects"] = json!(args.project);
    }
    if let Some(expires) = &args.expires {
        wanted["expires"] = json!(expires);
    }
    if let Some((per_second, burst)) = args.rate_limit {
        wanted["rate_limit"] = json!({ "per_second": per_second, "burst": burst });
    }
    let body = api.post(TOKENS, Some(wanted.to_string().as_bytes()), Wait::Quick)?;
    show_once(screen, &body, &args.name)
}

fn show_once(screen: &mut Screen, body: &str, name: &str) -> Result<(), Error> {
    match screen.form {
        Form::Json => Ok(screen.json(body)?),
        Form::Human => {
            screen.line(&text(&parse(body)?["token"]))?;
            eprintln!("stdiod: this is the only time token `{name}` is shown; keep it safe");
            Ok(())
        }
    }
}

fn ls(api: &Api, screen: &mut Screen) -> Result<(), Error> {
    let body = api.get(TOKENS)?;
    if screen.form == Form::Json {
        return Ok(screen.json(&body)?);
    }
    let mut table = Table::new(&["name", "scopes", "servers", "projects", "created", "expires", "last used"]);
    for token in array(&parse(&body)?) {
        let servers = list(&token["servers"]);
        let projects = list(&token["projects"]);
        let all = |names: &str| match (names, servers.is_empty() && projects.is_empty()) {
            ("", true) => "(all)".to_string(),
            (names, _) => names.to_string(),
        };
        let time = |key: &str| if token[key].is_null() { "never".to_string() } else { text(&token[key]) };
        let (expires, used) = (time("expires_at"), time("last_used_at"));
        table.row(vec![
            text(&token["name"]),
            list(&token["scopes"]),
            all(&servers),
            all(&projects),
            text(&token["created_at"]),
            expires,
            used,
        ]);
    }
    Ok(screen.table(&table)?)
}
