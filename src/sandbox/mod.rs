//! Sandboxes, from the image to the clean-up: images and registries, containers, what the host can do, what is to be removed.
//! Whatever waits here runs in children of the daemon, which are the daemon's own binary under another name (`child`), or in
//! one of its threads. The event loop takes only plain data from here (`plan`, the arguments of children), sends signals, and
//! reads from the kernel whether an instance was killed for want of memory.

pub mod cleanup;
pub mod container;
pub mod host;
pub mod image;

use cleanup::{discard, sweep};
use container::launch;
use host::probe;
use image::registry;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::OnceLock;

/// What to execute for a child: the very file that this process was started from, also when an upgrade has put another in
/// its place. Held open by its name because under valgrind, where the hot path is counted, `/proc/self/exe` is valgrind.
pub fn this_program() -> PathBuf {
    static THIS: OnceLock<Option<File>> = OnceLock::new();
    match THIS.get_or_init(|| File::open(std::env::current_exe().ok()?).ok()) {
        Some(file) => format!("/proc/self/fd/{}", file.as_raw_fd()).into(),
        None => "/proc/self/exe".into(),
    }
}

/// If the arguments (without the program's name) are those of a child, lives its life and gives its exit code. To be
/// asked before anything else in `main`: these are no commands of a user.
pub fn child(args: &[OsString]) -> Option<i32> {
    let (name, rest) = args.split_first()?;
    match name.to_str()? {
        launch::SUBCOMMAND => Some(launch::main(rest)),
        discard::SUBCOMMAND => Some(discard::main(rest)),
        discard::SUBCOMMAND_VOLUMES => Some(discard::volumes_main(rest)),
        discard::SUBCOMMAND_REMOVED => Some(discard::removed_main(rest)),
        sweep::SUBCOMMAND => Some(sweep::main(rest)),
        probe::SUBCOMMAND => Some(probe::main(rest)),
        registry::pull::SUBCOMMAND => Some(registry::pull::main(rest)),
        _ => None,
    }
}
