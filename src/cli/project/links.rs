//! `project servers`, `import` and `unload`: how a project's external servers are reached, and how their links do.

use super::path;
use crate::cli::api::{Api, Wait, encode};
use crate::cli::error::Error;
use crate::cli::read_stdin;
use crate::cli::screen::{Form, Screen};
use crate::cli::servers::{array, list, parse, text};
use crate::cli::table::Table;
use clap::{Subcommand, ValueEnum};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  stdiod project servers shop
  stdiod project servers shop add search --url https://mcp.example/mcp --header 'Authorization=Bearer ${SEARCH_KEY}'
  stdiod project servers shop add files -- npx -y @modelcontextprotocol/server-filesystem /tmp
  stdiod project servers shop connect search")]
pub struct Servers {
    /// The project's id
    project: String,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Subcommand)]
enum Action {
    /// Show one server
    Show(One),
    /// Make a server known; it is connected to when it is first used
    Add(Box<Add>),
    /// Forget a server and end its link
    Rm(One),
    /// Connect now, instead of at first use
    Connect(One),
    /// End the link; it is made again when the server is next used
    Disconnect(One),
    /// Allow its use
    Enable(One),
    /// End the link and refuse its use
    Disable(One),
}

#[derive(clap::Args)]
struct One {
    /// Name or id of the external server
    name: String,
}

#[derive(clap::Args)]
struct Add {
    /// Its name, unique in the project
    name: String,
    /// Where it is; the transport is `ws` for ws: and wss:, else `http`
    #[arg(long, conflicts_with = "cmd")]
    url: Option<String>,
    /// How it is reached, if the address does not tell
    #[arg(long, requires = "url")]
    transport: Option<Transport>,
    /// A header of every request; its value may name secrets as ${NAME}
    #[arg(long, value_name = "NAME=VALUE", requires = "url")]
    header: Vec<String>,
    /// An environment variable; its value may name secrets as ${NAME}
    #[arg(long, value_name = "NAME=VALUE", requires = "cmd")]
    env: Vec<String>,
    /// In somebody's words
    #[arg(long)]
    description: Option<String>,
    /// One retry after a failure, and then nothing before the next use
    #[arg(long)]
    not_shared: bool,
    /// The program to run in a sandbox, for a server that speaks on stdin and stdout
    #[arg(last = true, value_name = "CMD")]
    cmd: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Transport {
    Http,
    Sse,
    Ws,
}

impl Transport {
    fn wire(self) -> &'static str {
        match self {
            Transport::Http => "http",
            Transport::Sse => "sse",
            Transport::Ws => "ws",
        }
    }
}

#[derive(clap::Args)]
#[command(after_help = "Examples:
  stdiod project import manifest.json --project shop --product search-suite
  stdiod project import - --project shop < manifest.json

A manifest has a block {\"mcp\": {\"servers\": …}}; what else is in it is not sent. Without --product the product is the
manifest's own `id` or `name`.")]
pub struct Import {
    /// The manifest; `-` is stdin
    #[arg(value_name = "FILE|-")]
    file: PathBuf,
    /// The project's id
    #[arg(long)]
    project: String,
    /// The product whose manifest it is
    #[arg(long)]
    product: Option<String>,
}

pub fn servers(api: &Api, screen: &mut Screen, args: &Servers) -> Result<(), Error> {
    let project = &args.project;
    let at = |one: &One, rest: &str| path(project, &format!("/mcp/servers/{}{rest}", encode(&one.name)));
    match &args.action {
        None => ls(api, screen, project),
        Some(Action::Show(one)) => show(screen, &api.get(&at(one, ""))?),
        Some(Action::Add(args)) => {
            let body = Value::Object(definition(args)?).to_string();
            let answer = api.post(&path(project, "/mcp/servers"), Some(body.as_bytes()), Wait::Quick)?;
            told(screen, &answer, "added")
        }
        Some(Action::Rm(one)) => {
            api.delete(&at(one, ""))?;
            match screen.form {
                Form::Json => Ok(()),
                Form::Human => Ok(screen.line(&format!("removed {}", one.name))?),
            }
        }
        Some(Action::Connect(one)) => told(screen, &api.post(&at(one, "/connect"), None, Wait::Lifecycle)?, "asked"),
        Some(Action::Disconnect(one)) => {
            told(screen, &api.post(&at(one, "/disconnect"), None, Wait::Lifecycle)?, "disconnected")
        }
        Some(Action::Enable(one)) => enable(api, screen, &at(one, ""), true),
        Some(Action::Disable(one)) => enable(api, screen, &at(one, ""), false),
    }
}

fn enable(api: &Api, screen: &mut Screen, at: &str, enabled: bool) -> Result<(), Error> {
    let body = json!({ "enabled": enabled }).to_string();
    let answer = api.patch(at, body.as_bytes(), Wait::Quick)?;
    told(screen, &answer, if enabled { "enabled" } else { "disabled" })
}

fn ls(api: &Api, screen: &mut Screen, project: &str) -> Result<(), Error> {
    let body = api.get(&path(project, "/mcp/servers"))?;
    if screen.form == Form::Json {
        return Ok(screen.json(&body)?);
    }
    let mut table = Table::new(&["name", "transport", "status", "tools", "product", "reason"]);
    for server in array(&parse(&body)?) {
        let tools = server["tools"].as_array().map_or(String::new(), |tools| tools.len().to_string());
        let [name, transport, status, product, reason] =
            ["name", "transport", "status", "product_id", "last_error"].map(|key| text(&server[key]));
        table.row(vec![name, transport, status, tools, product, reason]);
    }
    Ok(screen.table(&table)?)
}

fn show(screen: &mut Screen, body: &str) -> Result<(), Error> {
    if screen.form == Form::Json {
        return Ok(screen.json(body)?);
    }
    let server = parse(body)?;
    let keys = [
        ("name", "name"),
        ("id", "id"),
        ("description", "description"),
        ("product", "product_id"),
        ("transport", "transport"),
        ("config", "config"),
        ("status", "status"),
        ("last error", "last_error"),
        ("next attempt", "next_attempt_at"),
        ("connected", "connected_since"),
        ("server", "server_info"),
        ("protocol", "protocol_version"),
        ("shared", "shared"),
        ("created", "created_at"),
        ("changed", "updated_at"),
    ];
    let mut pairs = keys.map(|(title, key)| (title, text(&server[key]))).to_vec();
    pairs.push(("tools", list(&server["tools"])));
    Ok(screen.pairs(&pairs)?)
}

fn told(screen: &mut Screen, body: &str, done: &str) -> Result<(), Error> {
    if screen.form == Form::Json {
        return Ok(screen.json(body)?);
    }
    let server = parse(body)?;
    let told = format!("{done} {} ({}): {}", text(&server["name"]), text(&server["id"]), text(&server["status"]));
    Ok(screen.line(&told)?)
}

fn definition(args: &Add) -> Result<Map<String, Value>, Error> {
    let mut out = Map::new();
    out.insert("name".into(), json!(args.name));
    match (&args.url, args.cmd.split_first()) {
        (Some(url), None) => {
            let by_scheme = if url.starts_with("ws") { Transport::Ws } else { Transport::Http };
            out.insert("transport".into(), json!(args.transport.unwrap_or(by_scheme).wire()));
            out.insert("url".into(), json!(url));
            out.insert("headers".into(), pairs("--header", &args.header)?);
        }
        (None, Some((command, rest))) => {
            out.insert("transport".into(), json!("stdio"));
            out.insert("command".into(), json!(command));
            out.insert("args".into(), json!(rest));
            out.insert("env".into(), pairs("--env", &args.env)?);
        }
        (Some(_), Some(_)) | (None, None) => {
            return Err(Error::Usage("say how it is reached: --url URL, or -- and the command to run".to_string()));
        }
    }
    if let Some(description) = &args.description {
        out.insert("description".into(), json!(description));
    }
    if args.not_shared {
        out.insert("shared".into(), json!(false));
    }
    Ok(out)
}

/// The value of a pair is never repeated in a complaint.
fn pairs(option: &str, given: &[String]) -> Result<Value, Error> {
    let mut out = Map::new();
    for pair in given {
        let Some((name, value)) = pair.split_once('=').filter(|(name, _)| !name.is_empty()) else {
            return Err(Error::Usage(format!("{option}: write NAME=VALUE")));
        };
        if out.insert(name.to_string(), json!(value)).is_some() {
            return Err(Error::Usage(format!("{option}: {name} stands there twice")));
        }
    }
    Ok(Value::Object(out))
}

// --- manifests ------------------------------------------------------------------------------------------------------

pub fn import(api: &Api, screen: &mut Screen, args: &Import) -> Result<(), Error> {
    let whole = read(&args.file)?;
    let (product, body) = manifest(&whole, args.product.as_deref(), &args.file)?;
    let at = path(&args.project, &format!("/products/{}/manifest", encode(&product)));
    let answer = api.post(&at, Some(body.as_bytes()), Wait::Lifecycle)?;
    if screen.form == Form::Json {
        return Ok(screen.json(&answer)?);
    }
    let mut table = Table::new(&["server", "action"]);
    for server in array(&parse(&answer)?["servers"]) {
        table.row(["name", "action"].map(|key| text(&server[key])).to_vec());
    }
    Ok(screen.table(&table)?)
}

fn read(file: &Path) -> Result<String, Error> {
    if file == Path::new("-") {
        return read_stdin();
    }
    std::fs::read_to_string(file).map_err(|why| Error::Usage(format!("cannot read {}: {why}", file.display())))
}

/// The product, and the part of its manifest that the daemon takes.
fn manifest(text: &str, product: Option<&str>, file: &Path) -> Result<(String, String), Error> {
    let wrong = |why: String| Error::Usage(format!("{}: {why}", file.display()));
    let whole: Value = serde_json::from_str(text).map_err(|why| wrong(format!("it is not valid JSON: {why}")))?;
    let mcp = whole.get("mcp").ok_or_else(|| wrong("it has no `mcp` block with `servers`".to_string()))?;
    let own = || ["id", "name"].iter().find_map(|key| whole[key].as_str().map(str::to_string));
    let product = product.map(str::to_string).or_else(own);
    let product = product.ok_or_else(|| wrong("it does not say its `id` or `name`: give --product ID".to_string()))?;
    Ok((product, json!({ "mcp": mcp }).to_string()))
}

pub fn unload(api: &Api, screen: &mut Screen, project: &str) -> Result<(), Error> {
    let body = api.post(&path(project, "/unload"), None, Wait::Lifecycle)?;
    match screen.form {
        Form::Json => Ok(screen.json(&body)?),
        Form::Human => Ok(screen.line(&format!("ended {} links", text(&parse(&body)?["links"])))?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Servers,
    }

    fn sent(words: &[&str]) -> Value {
        let line = Line::try_parse_from([&["x", "shop", "add"], words].concat()).unwrap();
        let Some(Action::Add(add)) = &line.args.action else { panic!("no add") };
        definition(add).map(Value::Object).unwrap_or(Value::Null)
    }

    #[test]
    fn flags_become_the_fields_of_an_external_server() {
        assert_eq!(
            sent(&["s", "--url", "wss://h/x", "--header", "A=b=c", "--not-shared"]),
            json!({"name": "s", "transport": "ws", "url": "wss://h/x", "headers": {"A": "b=c"}, "shared": false})
        );
        assert_eq!(
            sent(&["s", "--url", "http://h/", "--transport", "sse"]),
            json!({"name": "s", "transport": "sse", "url": "http://h/", "headers": {}})
        );
        assert_eq!(
            sent(&["s", "--env", "K=${K}", "--", "npx", "-y", "p"]),
            json!({"name": "s", "transport": "stdio", "command": "npx", "args": ["-y", "p"], "env": {"K": "${K}"}})
        );
        assert_eq!(sent(&["s"]), Value::Null, "it is not said how it is reached");
        assert_eq!(sent(&["s", "--url", "http://h/", "--header", "A"]), Value::Null);
    }

    #[test]
    fn of_a_manifest_only_its_servers_are_sent_and_the_product_is_named() {
        let text = r#"{"name": "crm", "version": 3, "mcp": {"servers": []}}"#;
        let file = Path::new("m.json");
        assert_eq!(manifest(text, None, file).ok(), Some(("crm".into(), r#"{"mcp":{"servers":[]}}"#.into())));
        assert_eq!(manifest(text, Some("other"), file).ok().map(|(product, _)| product), Some("other".into()));
        for (text, words) in [("{", "not valid JSON"), ("{}", "no `mcp`"), (r#"{"mcp":{}}"#, "--product")] {
            let Err(Error::Usage(why)) = manifest(text, None, file) else { panic!("{text}") };
            assert!(why.contains(words) && why.starts_with("m.json"), "{why}");
        }
    }
}
