//! What an instance may write besides its volumes: a file system of exactly `disk` bytes, in a sparse file on a loop
//! device. Made anew for every instance. The device is marked to be freed with its last user, and its only mount is
//! in the launcher's private namespace: so it goes with the container, however that ends.

use crate::model::definition::ResourceLimits;
use crate::model::instance::{LaunchFault, LaunchFaultKind};
use crate::sandbox::container::loop_device;
use crate::sandbox::container::plan::{Layout, fault};
use crate::sandbox::container::rootfs::PrivateMounts;
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// In the bundle: the sparse file.
pub const IMAGE: &str = "disk.img";
const CHUNK: usize = 64 * 1024;

/// A mounted disk and what is in it. Both directories are empty.
pub struct Disk {
    /// For the writable layer of an image.
    pub layer: PathBuf,
    /// `/tmp`, open to all.
    pub tmp: PathBuf,
}

/// Makes the disk of an instance and mounts it in its bundle.
pub fn make(
    mounts: &PrivateMounts,
    layout: &Layout,
    bundle: &Path,
    limits: &ResourceLimits,
) -> Result<Disk, LaunchFault> {
    let point = bundle.join("disk");
    make_dir(&point, 0o700)?;
    match loop_device::is_possible() {
        true => mount_image(mounts, layout, bundle, &point, limits.disk_bytes)?,
        false => mount_memory(mounts, &point, limits)?,
    }
    let disk = Disk { layer: point.join("layer"), tmp: point.join("tmp") };
    make_dir(&disk.layer, 0o700)?;
    make_dir(&disk.tmp, 0o755)?;
    // Not by mkdir, whose mode is cut by the umask.
    fs::set_permissions(&disk.tmp, fs::Permissions::from_mode(0o1777)).map_err(|e| disk_fault("opening /tmp", e))?;
    Ok(disk)
}

/// The pages count as the instance's memory: half of that at most, so that a full disk is ENOSPC before it is an OOM.
fn mount_memory(_: &PrivateMounts, point: &Path, limits: &ResourceLimits) -> Result<(), LaunchFault> {
    let size = format!("mode=700,size={}", limits.disk_bytes.min(limits.memory_bytes / 2));
    mount(Some("tmpfs"), point, Some("tmpfs"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV, Some(size.as_str()))
        .map_err(|e| disk_fault("mounting a tmpfs", e))
}

fn mount_image(_: &PrivateMounts, layout: &Layout, bundle: &Path, point: &Path, bytes: u64) -> Result<(), LaunchFault> {
    let image = bundle.join(IMAGE);
    let file = copy_template(layout, bundle, &image, bytes)?;
    let device = loop_device::attach(&file, &image, bundle).map_err(|e| disk_fault("attaching a loop device", e))?;
    // discard: what is deleted inside is free again outside. noinit_itable: the file is all zeros already.
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOATIME;
    let mounted =
        mount(Some(&loop_device::path_of(&device)), point, Some("ext4"), flags, Some("discard,noinit_itable"));
    // Only now may the last descriptor go: the mount is the device's user from here on.
    drop(device);
    mounted.map_err(|e| disk_fault("mounting the disk image", e))
}

// --- the file -------------------------------------------------------------------------------------------------------

/// A copy of an empty file system of this size. One is made per size and life of the daemon; to copy the few blocks it
/// has is much quicker than mkfs.
fn copy_template(layout: &Layout, bundle: &Path, image: &Path, bytes: u64) -> Result<File, LaunchFault> {
    let failed = |e: io::Error| disk_fault("making the disk image", e);
    let template = layout.disk_templates_dir().join(format!("{bytes}.ext4"));
    let from = match File::open(&template) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => make_template(&template, bundle, bytes)?,
        Err(e) => return Err(failed(e)),
    };
    let to = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(image).map_err(failed)?;
    to.set_len(bytes).and_then(|()| copy_data(&from, &to, bytes)).map_err(failed)?;
    Ok(to)
}

fn make_template(template: &Path, bundle: &Path, bytes: u64) -> Result<File, LaunchFault> {
    let failed = |e: io::Error| disk_fault("making the disk image", e);
    // In the bundle until it is whole: whoever is killed here leaves nothing that could be taken for a template.
    let draft = bundle.join("disk.draft");
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&draft).map_err(failed)?;
    file.set_len(bytes).map_err(failed)?;
    // No journal and no reserve: after a crash nobody reads it again, and root's share would be nobody's.
    let options = ["-m", "0", "-O", "^has_journal,^resize_inode", "-E", "lazy_itable_init=1,nodiscard"];
    loop_device::make_file_system(&draft, &options).map_err(failed)?;
    let dir = template.parent().unwrap_or(Path::new("/"));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
    // Two launchers may do this at once; the results are equal, and the last one stays.
    fs::rename(&draft, template).map_err(failed)?;
    Ok(file)
}

/// Copies what is not zero.
fn copy_data(from: &File, to: &File, bytes: u64) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    let mut at = 0;
    while let Some(data) = next_data(from, at, bytes)? {
        let n = from.read_at(&mut buffer, data)?;
        if n == 0 {
            break;
        }
        if buffer[..n].iter().any(|byte| *byte != 0) {
            to.write_all_at(&buffer[..n], data)?;
        }
        at = data + n as u64;
    }
    Ok(())
}

/// Where the next bytes that are no hole begin.
fn next_data(file: &File, at: u64, end: u64) -> io::Result<Option<u64>> {
    if at >= end {
        return Ok(None);
    }
    let offset = i64::try_from(at).map_err(io::Error::other)?;
    match nix::unistd::lseek(file, offset, nix::unistd::Whence::SeekData) {
        Ok(found) => Ok(Some(found.cast_unsigned())),
        Err(Errno::ENXIO) => Ok(None),
        // A file system that does not know: everything may be data.
        Err(Errno::EINVAL | Errno::EOPNOTSUPP) => Ok(Some(at)),
        Err(e) => Err(e.into()),
    }
}

fn make_dir(dir: &Path, mode: u32) -> Result<(), LaunchFault> {
    fs::DirBuilder::new().mode(mode).create(dir).map_err(|e| disk_fault(&format!("making {}", dir.display()), e))
}

fn disk_fault(doing: &str, cause: impl std::fmt::Display) -> LaunchFault {
    fault(LaunchFaultKind::Rootfs, doing, cause)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_copy_has_the_same_bytes_and_as_few_blocks() {
        let dir = std::env::temp_dir().join(format!("stdiod-disk-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let open = |name: &str| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(true).open(dir.join(name)).unwrap()
        };
        let (from, to) = (open("from"), open("to"));
        let bytes = 256 << 20;
        for file in [&from, &to] {
            file.set_len(bytes).unwrap();
        }
        from.write_all_at(b"begin", 0).unwrap();
        from.write_all_at(&[7; 3 * CHUNK], 100 << 20).unwrap();
        from.write_all_at(b"end", bytes - 3).unwrap();
        copy_data(&from, &to, bytes).unwrap();
        let (mut one, mut other) = (vec![0; 4 * CHUNK], vec![0; 4 * CHUNK]);
        for at in [0, (100 << 20) - 10, bytes - one.len() as u64] {
            from.read_exact_at(&mut one, at).unwrap();
            to.read_exact_at(&mut other, at).unwrap();
            assert!(one == other, "at {at}");
        }
        assert!(to.metadata().unwrap().blocks() * 512 < 1 << 20);
        fs::remove_dir_all(&dir).unwrap();
    }
}
