//! The command line: what can be said, and who does it. Owns arguments and dispatch; each subcommand lives in a module
//! of its own. Client subcommands speak to the daemon over its API and know nothing of its inside.

mod api;
mod apply;
mod audit;
mod connect;
mod declared;
mod definitions;
mod doctor;
mod error;
mod export;
mod http;
mod image;
mod import;
mod json;
mod key;
mod logs;
mod progress;
mod project;
mod register;
mod screen;
mod serve;
mod servers;
mod shell;
mod table;
mod tokens;
mod top;
mod trust;
mod upgrade;
mod volume;

use crate::config::Config;
use crate::limits::BODY_MAX;
use crate::os::upgrade::Started;
use api::Api;
use clap::{Parser, Subcommand};
pub use error::Error;
use screen::{Form, Screen};
use std::io::Read;
use std::os::fd::RawFd;
use std::path::PathBuf;

/// inetd for MCP: hosts stdio MCP servers in sandboxes and gives each an HTTP face.
#[derive(Parser)]
#[command(name = "stdiod", version, disable_help_subcommand = true)]
#[command(after_help = "First steps:
  stdiod doctor                       what can this host do?
  stdiod serve                        run the daemon
  stdiod register hello.json          host a server
  stdiod call hello tools/list        ask it something")]
pub struct Args {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Args)]
#[command(next_help_heading = "Everywhere")]
pub struct Common {
    /// Configuration [default: STDIOD_CONFIG, or /etc/stdiod/stdiod.toml if it exists]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The daemon, as http[s]://HOST:PORT or unix:PATH [default: STDIOD_URL, or DATA_DIR/control.sock, or the configured listener]
    #[arg(long, global = true)]
    url: Option<String>,
    /// File with the token to use [default: STDIOD_TOKEN, or DATA_DIR/admin.token]
    #[arg(long, global = true, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// File with the certificate, or the authority, of a daemon that speaks TLS [default: STDIOD_CA, and the configured tls_cert]
    #[arg(long, global = true, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Print JSON, for machines
    #[arg(long, global = true)]
    json: bool,
}

impl Common {
    fn load_config(&self) -> Result<Config, Error> {
        Ok(Config::load(self.config_file().as_deref())?)
    }

    /// The file that was named; none: the default one, if it is there.
    fn config_file(&self) -> Option<PathBuf> {
        self.config.clone().or_else(|| api::variable("STDIOD_CONFIG").map(PathBuf::from))
    }

    fn screen(&self) -> Screen {
        Screen::new(if self.json { Form::Json } else { Form::Human })
    }
}

#[derive(Subcommand)]
enum Command {
    /// Run the daemon
    Serve,
    /// Register a server and wait until it is ready
    Register(Box<register::Register>),
    /// List servers
    Ls(servers::Ls),
    /// Show everything about one server
    Status(servers::Named),
    /// Call a method or a tool of a server and print the result
    Call(servers::Call),
    /// List the tools a server offers
    Tools(servers::Named),
    /// Restart a server
    Restart(servers::Named),
    /// Stop a server and keep it stopped
    Stop(servers::Named),
    /// Start a stopped server
    Start(servers::Named),
    /// Stop and remove a server; its volumes stay
    Rm(servers::Rm),
    /// Show what a server wrote to stderr, and its lifecycle
    Logs(logs::Logs),
    /// Show what every server uses, again and again
    Top(top::Top),
    /// Be a hosted server for a client that only starts programs: stdin and stdout are its
    Connect(connect::Connect),
    /// Register servers from a client's configuration, a server.json, a bundle or an export
    Import(import::Import),
    /// Print all servers as one document, for `import` or for a client
    Export(export::Export),
    /// Make the servers what files declare
    Apply(apply::Apply),
    /// Pull, import, list and remove images
    #[command(subcommand)]
    Image(image::Image),
    /// List, inspect and remove volumes
    #[command(subcommand)]
    Volume(volume::Volumes),
    /// External servers, secrets, tools and records of a project
    #[command(subcommand)]
    Project(project::Project),
    /// Make, list, rotate and revoke access tokens
    #[command(subcommand)]
    Token(tokens::Token),
    /// Replace the key that secrets are sealed with
    #[command(subcommand, alias = "secret")]
    Key(key::Key),
    /// Have the daemon go on as another program, without a restart of anything
    Upgrade(upgrade::Upgrade),
    /// Show who changed what, and who was not let in
    Audit(audit::Audit),
    /// Say what this host can and cannot do, and what to install
    Doctor,
    /// Print a script that completes commands, for a shell
    Completions(shell::Completions),
    /// Print the manual page
    Man(shell::Man),
}

/// Does what was said; the exit code, or why it could not be done.
/// `started`, `state`: how this process was started, and what it takes over, if it is the daemon.
pub fn run(args: &Args, started: Started, state: Option<RawFd>) -> Result<u8, Error> {
    let common = &args.common;
    match &args.command {
        Command::Serve => serve::serve(common, started, state),
        Command::Doctor => doctor::doctor(common, &mut common.screen()),
        Command::Image(command) => image::image(common, &mut common.screen(), command).map(|()| 0),
        Command::Volume(command) => volume::volume(common, &mut common.screen(), command).map(|()| 0),
        Command::Register(args) => ask(common, |api, screen| register::register(api, screen, args)),
        Command::Ls(args) => ask(common, |api, screen| servers::ls(api, screen, args)),
        Command::Status(args) => ask(common, |api, screen| servers::status(api, screen, args)),
        Command::Call(args) => ask(common, |api, screen| servers::call(api, screen, args)),
        Command::Tools(args) => ask(common, |api, screen| servers::tools(api, screen, args)),
        Command::Restart(args) => ask(common, |api, screen| servers::restart(api, screen, args)),
        Command::Stop(args) => ask(common, |api, screen| servers::stop(api, screen, args)),
        Command::Start(args) => ask(common, |api, screen| servers::start(api, screen, args)),
        Command::Rm(args) => ask(common, |api, screen| servers::rm(api, screen, args)),
        Command::Logs(args) => ask(common, |api, screen| logs::logs(api, screen, args)),
        Command::Completions(args) => shell::completions(args).map(|()| 0),
        Command::Man(args) => shell::man(args).map(|()| 0),
        Command::Top(args) => ask(common, |api, screen| top::top(api, screen, args)),
        Command::Connect(args) => connect::connect(common, args),
        Command::Import(args) => ask(common, |api, screen| import::import(api, screen, args)),
        Command::Export(args) => ask(common, |api, screen| export::export(common, api, screen, args)),
        Command::Apply(args) => ask(common, |api, screen| apply::apply(api, screen, args)),
        Command::Audit(args) => ask(common, |api, screen| audit::audit(api, screen, args)),
        Command::Upgrade(wanted) => ask(common, |api, screen| upgrade::upgrade(api, screen, wanted)),
        Command::Key(command) => ask(common, |api, screen| key::key(api, screen, command)),
        Command::Project(command) => ask(common, |api, screen| project::project(api, screen, command)),
        Command::Token(command) => ask(common, |api, screen| tokens::token(api, screen, command)),
    }
}

/// One question to the daemon. For machines an error stays the JSON it came as.
fn ask(common: &Common, question: impl FnOnce(&Api, &mut Screen) -> Result<(), Error>) -> Result<u8, Error> {
    let mut screen = common.screen();
    let asked = Api::new(common).and_then(|api| question(&api, &mut screen));
    match asked {
        Ok(()) => Ok(0),
        Err(Error::Refused(refusal)) if screen.form == Form::Json => {
            eprintln!("{}", String::from_utf8_lossy(&refusal.body).trim_end());
            Err(Error::Told)
        }
        Err(error) => Err(error),
    }
}

/// Everything on stdin, as far as a request can carry it.
fn read_stdin() -> Result<String, Error> {
    let mut text = String::new();
    let read = std::io::stdin().lock().take(BODY_MAX as u64 + 1).read_to_string(&mut text);
    read.map_err(|why| Error::Fault(format!("cannot read stdin: {why}")))?;
    if text.len() > BODY_MAX {
        return Err(Error::Fault(format!("stdin holds more than {BODY_MAX} bytes, which no request can carry")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_forms_that_scripts_rely_on_are_understood() {
        for line in [
            "serve",
            "serve --config /etc/x.toml",
            "token create ci --scope mcp:call,admin:read --server a --server b --json",
            "token create ci --scope mcp:call --expires 90d --rate-limit 5:10",
            "token rotate ci --grace 1h --json",
            "key rotate",
            "upgrade",
            "upgrade /usr/bin/stdiod --json",
            "secret rotate",
            "audit -f --type auth --json",
            "project servers shop",
            "project servers shop add s --url http://h/mcp --header A=b",
            "project servers shop add s --env A=b -- npx -y p",
            "project servers shop connect s",
            "project secrets shop set KEY --file key.txt",
            "project tools shop --json",
            "project call shop search {} --server s --text",
            "project calls shop --tool search --limit 5",
            "project import manifest.json --project shop --product crm",
            "project unload shop",
            "image import ./layout:latest --name echo:1",
            "image pull r.test:5000/echo:1 --json",
            "image inspect echo:1",
            "image prune --all",
            "logs -f --tail 5 x",
            "call x tools/list",
            "call x --tool echo {}",
            "call x --json tools/call -",
            "rm x --volumes",
            "ls --json",
            "import mcp.json --dry-run --set A=b --set c.D=e --json",
            "export --client claude",
            "connect notes",
            "completions zsh",
            "top --once --json",
            "apply -f servers --prune --dry-run",
        ] {
            let words = ["stdiod"].into_iter().chain(line.split(' '));
            assert!(Args::try_parse_from(words).is_ok(), "{line}");
        }
    }
}
