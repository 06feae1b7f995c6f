//! The end of one instance: its processes, cgroups, bundle and the runtime's record of it. Needs no runtime: processes
//! are all in the cgroups of the instance and its launcher, records in directories of ours, mounts gone with the
//! processes; so it serves a container that is half made, or whose runtime was removed. Doing it twice is harmless.

use crate::limits::DISCARD_TIMEOUT;
use crate::sandbox::cleanup::volumes;
use crate::sandbox::container::launch::die_with_parent;
use crate::sandbox::container::network;
use crate::sandbox::container::plan::{Layout, is_container_id};
use crate::sandbox::container::within::remove_tree;
use crate::sandbox::host::cgroup::Hierarchies;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub const SUBCOMMAND: &str = "sandbox-discard";
pub const SUBCOMMAND_VOLUMES: &str = "sandbox-remove-volumes";
pub const SUBCOMMAND_REMOVED: &str = "sandbox-empty-removed";

/// The exit status of a clean-up that ran out of time, and may do better later.
pub const TIMED_OUT: i32 = 3;

/// For `/proc/self/exe`, by the daemon itself.
pub fn args(layout: &Layout, container_id: &str) -> Vec<OsString> {
    args_of(SUBCOMMAND, layout, container_id)
}

pub fn volumes_args(layout: &Layout, server_name: &str) -> Vec<OsString> {
    args_of(SUBCOMMAND_VOLUMES, layout, server_name)
}

pub fn removed_args(layout: &Layout) -> Vec<OsString> {
    args_of(SUBCOMMAND_REMOVED, layout, "")
}

fn args_of(name: &str, layout: &Layout, what: &str) -> Vec<OsString> {
    let daemon = std::process::id().to_string();
    vec![name.into(), layout.data_dir.clone().into(), layout.mark.clone().into(), what.into(), daemon.into()]
}

/// Its container's name is nobody else's, ever; so it may go on when the daemon is gone.
pub fn main(args: &[OsString]) -> i32 {
    child_main(args, SUBCOMMAND, |layout, id, _| {
        if is_container_id(id) { discard(layout, id) } else { Err(io::Error::other("no container id")) }
    })
}

/// Not after the daemon: the next one may have a server of that name, with volumes of its own.
pub fn volumes_main(args: &[OsString]) -> i32 {
    child_main(args, SUBCOMMAND_VOLUMES, |layout, name, daemon| {
        die_with_parent(daemon)?;
        volumes::take_away(layout, name)
    })
}

/// What it does not finish in this life of the daemon is the next one's sweep's.
pub fn removed_main(args: &[OsString]) -> i32 {
    child_main(args, SUBCOMMAND_REMOVED, |layout, _, daemon| {
        die_with_parent(daemon)?;
        volumes::empty_removed(layout)
    })
}

/// `act` gets the daemon's pid with the rest.
fn child_main(args: &[OsString], name: &str, act: impl Fn(&Layout, &str, i32) -> io::Result<()>) -> i32 {
    let [data_dir, mark, what, daemon] = args else {
        eprintln!("stdiod {name}: started by the daemon, not by hand");
        return 2;
    };
    let daemon = daemon.to_str().and_then(|pid| pid.parse().ok());
    let (Some(mark), Some(what), Some(daemon)) = (mark.to_str(), what.to_str(), daemon) else { return 2 };
    let layout = Layout { data_dir: PathBuf::from(data_dir), mark: mark.to_owned() };
    match act(&layout, what, daemon) {
        Ok(()) => 0,
        Err(e) => {
            eprintln!("stdiod {name} {what}: {e}");
            if e.kind() == io::ErrorKind::TimedOut { TIMED_OUT } else { 1 }
        }
    }
}

/// Everything is tried, whatever fails; the first failure is told.
pub fn discard(layout: &Layout, container_id: &str) -> io::Result<()> {
    let ended = match Hierarchies::of_this_host() {
        Some(cgroups) => cgroups.instance(layout, container_id).kill_and_remove(DISCARD_TIMEOUT),
        None => Ok(()),
    };
    // What could not be ended stays behind its fence, and keeps its address.
    let network = match &ended {
        Ok(()) => network::take_down(layout, container_id),
        Err(e) => Err(io::Error::new(e.kind(), "its network is still in use")),
    };
    let records = remove_records(&layout.run_dir(), container_id);
    let bundle = match &network {
        Ok(()) => remove_tree(&layout.bundle(container_id)),
        Err(_) => network::keep_record(layout, container_id),
    };
    ended.and(network).and(records).and(bundle)
}

/// What runtimes keep under their `--root`: crun, runc and youki a directory per container, runsc three files.
fn remove_records(run_dir: &Path, id: &str) -> io::Result<()> {
    let of_container = [
        id.to_owned(),
        format!("{id}_sandbox:{id}.state"),
        format!("{id}_sandbox:{id}.lock"),
        format!("runsc-{id}.sock"),
    ];
    for root in runtime_roots(run_dir)? {
        for name in &of_container {
            remove_tree(&root.join(name))?;
        }
    }
    Ok(())
}

/// One directory per provider, beside the bundles.
fn runtime_roots(run_dir: &Path) -> io::Result<Vec<PathBuf>> {
    let list = match fs::read_dir(run_dir) {
        Ok(list) => list,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let entries: io::Result<Vec<PathBuf>> = list.map(|entry| Ok(entry?.path())).collect();
    Ok(entries?.into_iter().filter(|p| p.is_dir() && p.file_name() != Some(OsStr::new("bundles"))).collect())
}
