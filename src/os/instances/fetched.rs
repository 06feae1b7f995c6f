//! How much an install has fetched: what is in the volumes of its server, asked of their file system itself. It is mounted where
//! the sandbox is and nowhere else, so it is looked up through the sandbox's processes. What is written to it and not yet on
//! the disk counts, unlike in the image that it lies in. Never waits for the sandbox, and follows none of its symlinks out.

use crate::limits::{METER_ENTRIES_MAX, METER_PIDS_MAX};
use crate::sandbox::cleanup::volumes::measure;
use crate::sandbox::container::volume_image;
use crate::sandbox::container::within::Within;
use crate::sandbox::host::cgroup::CgroupFiles;
use nix::fcntl::OFlag;
use nix::sys::stat::fstat;
use nix::sys::statvfs::fstatvfs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where a process of the sandbox may have the server's root: in its own, or, if it serves files to a kernel of the
/// sandbox, below it.
const ROOTS: [&str; 2] = ["", "root"];

/// `dir` is where the volumes lie, `volume` the place of one of them in the container.
pub fn bytes(cgroup: &CgroupFiles, dir: &Path, volume: Option<&PathBuf>) -> u64 {
    if let Some(used) = volume.and_then(|volume| used_in_sandbox(cgroup, dir, volume)) {
        return used;
    }
    let image = std::fs::metadata(dir.join(volume_image::IMAGE)).map(|image| image.blocks() * 512);
    image.unwrap_or_else(|_| measure(dir, METER_ENTRIES_MAX).map_or(0, |size| size.bytes))
}

fn used_in_sandbox(cgroup: &CgroupFiles, dir: &Path, volume: &Path) -> Option<u64> {
    // A plain directory is on a file system that has more in it.
    let host = std::fs::metadata(dir).ok()?.dev();
    let place = volume.strip_prefix("/").ok()?;
    cgroup.processes().into_iter().take(METER_PIDS_MAX).find_map(|pid| {
        let root = Within::open(Path::new(&format!("/proc/{pid}/root"))).ok()?;
        let own = fstat(root.root()).ok()?.st_dev;
        ROOTS.iter().find_map(|below| {
            let found = root.open_at(&Path::new(below).join(place), OFlag::O_PATH | OFlag::O_DIRECTORY).ok()?;
            let device = fstat(&found).ok()?.st_dev;
            let stat = fstatvfs(&found).ok().filter(|_| device != host && device != own)?;
            Some(stat.blocks().saturating_sub(stat.blocks_free()).saturating_mul(stat.fragment_size()))
        })
    })
}
