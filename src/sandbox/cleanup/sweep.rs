//! The first child of every daemon: ends whatever an earlier one with the same data directory left behind. Goes by
//! what is there (cgroups below the mark, everything in `run`), not by what anybody remembers, and needs no runtime.

use crate::limits::DISCARD_TIMEOUT;
use crate::sandbox::container::launch::die_with_parent;
use crate::sandbox::container::network;
use crate::sandbox::container::plan::Layout;
use crate::sandbox::container::within::remove_tree;
use crate::sandbox::host::cgroup::Hierarchies;
use crate::sandbox::image::Images;
use crate::sandbox::image::registry::pull;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

pub const SUBCOMMAND: &str = "sandbox-sweep";

/// For `/proc/self/exe`.
pub fn args(layout: &Layout) -> Vec<OsString> {
    let daemon = std::process::id().to_string();
    vec![SUBCOMMAND.into(), layout.data_dir.clone().into(), layout.mark.clone().into(), daemon.into()]
}

pub fn main(args: &[OsString]) -> i32 {
    let [data_dir, mark, daemon] = args else {
        eprintln!("stdiod {SUBCOMMAND}: started by the daemon, not by hand");
        return 2;
    };
    let daemon = daemon.to_str().and_then(|pid| pid.parse().ok());
    let (Some(mark), Some(daemon)) = (mark.to_str(), daemon) else { return 2 };
    // A daemon that is killed must not leave us at work: what is there soon may be the next one's.
    let tied = die_with_parent(daemon);
    match tied.and_then(|()| sweep(&Layout { data_dir: PathBuf::from(data_dir), mark: mark.to_owned() })) {
        Ok(()) => 0,
        Err(e) => {
            eprintln!("stdiod {SUBCOMMAND}: {e}");
            1
        }
    }
}

/// Only while no instance of this daemon runs, and no second daemon on the same directory.
pub fn sweep(layout: &Layout) -> io::Result<()> {
    // Processes first: what they hold open or mounted cannot be in the way afterwards.
    let ended = match Hierarchies::of_this_host() {
        Some(cgroups) => cgroups.parent(layout).kill_and_remove(DISCARD_TIMEOUT),
        None => Ok(()),
    };
    // Then networks, whose records are about to go. What could not be ended stays behind its fence.
    let cut = if ended.is_ok() { network::sweep(layout) } else { Ok(()) };
    if layout.images_dir().is_dir() {
        pull::forget_finished(&Images::of(layout));
    }
    ended.and(cut).and(remove_tree(&layout.run_dir()))
}
