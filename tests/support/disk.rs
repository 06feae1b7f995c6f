//! A disk of a test's own: a file system in a sparse file, mounted for as long as it is kept.

use super::{eventually, registry};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A file system of a test's own.
pub(super) struct Disk {
    point: PathBuf,
}

impl Disk {
    pub(super) fn mount(file: &Path, point: &Path, bytes: u64) -> Disk {
        std::fs::File::create(file).and_then(|f| f.set_len(bytes)).expect("a sparse file");
        std::fs::create_dir(point).expect("a directory");
        let (file, at) = (file.to_str().expect("our own name"), point.to_str().expect("our own name"));
        registry::run("mkfs.ext4", &["-q", "-F", "-m", "0", file]);
        registry::run("mount", &["-o", "loop", file, at]);
        Disk { point: point.to_owned() }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let gone = eventually(Duration::from_secs(20), || nix::mount::umount(&self.point).is_ok());
        if !gone {
            eprintln!("{} stays mounted", self.point.display());
        }
    }
}
