//! `project …`: external servers, secrets, tools and records of a project. Each subcommand takes the project first, is one
//! request, and makes its answer readable. Values of secrets are read from stdin or a file, never from the command line,
//! where other users of the host could see them.

mod calls;
mod links;
mod secrets;

use super::api::{Api, encode};
use super::error::Error;
use super::screen::Screen;
use clap::Subcommand;
use clap::builder::NonEmptyStringValueParser;

#[derive(Subcommand)]
pub enum Project {
    /// List the external servers of a project, or change them
    Servers(links::Servers),
    /// List the names of a project's secrets, or store and remove them
    Secrets(secrets::Secrets),
    /// List the tools of all servers of a project; servers never used before are connected to
    Tools(Named),
    /// Call a tool of a project, on whichever server has it
    Call(calls::Call),
    /// Show the records of tool calls, the newest first
    Calls(calls::Calls),
    /// Make the external servers of a product those of its manifest, all of them or none
    Import(links::Import),
    /// End all links of a project; each is made again when it is next used
    Unload(Named),
}

#[derive(clap::Args)]
pub struct Named {
    /// The project's id
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    project: String,
}

pub fn project(api: &Api, screen: &mut Screen, command: &Project) -> Result<(), Error> {
    match command {
        Project::Servers(args) => links::servers(api, screen, args),
        Project::Secrets(args) => secrets::secrets(api, screen, args),
        Project::Tools(args) => calls::tools(api, screen, &args.project),
        Project::Call(args) => calls::call(api, screen, args),
        Project::Calls(args) => calls::calls(api, screen, args),
        Project::Import(args) => links::import(api, screen, args),
        Project::Unload(args) => links::unload(api, screen, &args.project),
    }
}

/// The path of something within a project, whatever the user typed as its id.
fn path(project: &str, rest: &str) -> String {
    format!("/api/v1/projects/{}{rest}", encode(project))
}
