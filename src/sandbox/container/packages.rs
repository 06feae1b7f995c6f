//! Whether a launch fetches the packages of its server first, or starts it from what is kept. What says that they are all here
//! is a mark in the directory of the server's volumes, out of the server's reach, with the command that has fetched them.
//! Only the launcher reads and writes it; a mark that is wrong costs one more install, or one start that fails.

use crate::api::definition::install::{self, Install};
use crate::model::definition::Definition;
use crate::model::instance::Packages;
use crate::sandbox::container::plan::{LaunchPlan, Networking, Runs, RuntimeKind};
use sha2::{Digest, Sha256};
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// No volume's name begins with a dot.
pub const MARK: &str = ".packages";
/// What an install uses whose server has no network.
const NETWORK: &str = "bridge";

/// Makes the plan that of the install, or of the server from its cache.
pub fn settle(plan: &mut LaunchPlan) -> io::Result<Runs> {
    // A server that sees the host's own files has no volume to keep them in.
    let found = install::of(&plan.definition).filter(|_| plan.runtime.kind != RuntimeKind::Plain);
    let Some(Install { command, offline }) = found else { return Ok(Runs::Server) };
    let dir = plan.layout.volumes_dir(&plan.definition.name);
    let digest = digest(&command);
    let are_here = match plan.packages {
        Packages::AsKept => is_marked(&dir, &digest),
        Packages::Fetched => {
            mark(&dir, &digest)?;
            true
        }
        Packages::Doubtful => {
            unmark(&dir);
            false
        }
    };
    if are_here {
        plan.definition.cmd = offline;
        return Ok(Runs::Server);
    }
    plan.definition.cmd = command;
    plan.definition.network = network(&plan.definition, &plan.networking);
    plan.definition.ports.clear();
    Ok(Runs::Install)
}

/// The server's own, unless it has none that leads anywhere.
fn network(definition: &Definition, networking: &Networking) -> Option<String> {
    let own = definition.network.as_ref().or(networking.default.as_ref());
    match own.map(String::as_str) {
        None | Some("none") => Some(NETWORK.to_string()),
        Some(name) => Some(name.to_string()),
    }
}

/// What is fetched, and how; what the server is told besides does not matter.
fn digest(command: &[String]) -> String {
    let mut hash = Sha256::new();
    for word in command {
        hash.update(word.len().to_le_bytes());
        hash.update(word);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn is_marked(dir: &Path, digest: &str) -> bool {
    fs::read_to_string(dir.join(MARK)).is_ok_and(|kept| kept == digest)
}

fn mark(dir: &Path, digest: &str) -> io::Result<()> {
    if is_marked(dir, digest) {
        return Ok(());
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    fs::write(dir.join(MARK), digest)
}

/// Something that was fetched may not be there any more.
pub fn unmark(dir: &Path) {
    _ = fs::remove_file(dir.join(MARK));
}
