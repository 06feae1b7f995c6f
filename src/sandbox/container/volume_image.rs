//! The file system that all volumes of one server lie in: a sparse file of `resource_limits.volume` bytes in the server's
//! directory, mounted by whoever needs it in a mount namespace of its own and by no one else. So it is full before the
//! disk is, and nothing of it can be left behind. Instances that run at once have the same device, hence the same cache.

use crate::limits::{VOLUME_MOUNT_PAUSE, VOLUME_MOUNT_TRIES, VOLUME_MOVE_BYTES_MAX, VOLUME_MOVE_ENTRIES_MAX};
use crate::sandbox::cleanup::volumes::measure;
use crate::sandbox::container::loop_device;
use crate::sandbox::container::plan::Layout;
use crate::sandbox::container::rootfs::PrivateMounts;
use crate::sandbox::container::within::remove_tree;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// In the server's directory. No volume's name begins with a dot (`slug`).
pub const IMAGE: &str = ".image";
const DRAFT: &str = ".image.draft";
/// In the image and in the directory: a volume on its way from one to the other.
const INCOMING: &str = ".incoming-";
const COPIED: &str = ".copied-";

/// Whoever has it is the only one who mounts, moves or removes volumes of this server now. The kernel takes it back with
/// the process.
pub type Lock = Flock<File>;

pub fn lock(dir: &Path) -> io::Result<Lock> {
    Flock::lock(File::open(dir)?, FlockArg::LockExclusive).map_err(|(_, e)| e.into())
}

/// Where the volumes of a server are: in its image, mounted at `point`, and some perhaps not.
pub struct Mounted {
    point: PathBuf,
    dir: PathBuf,
}

impl Mounted {
    /// The directory of one volume. One that could not be moved to the image is where it was.
    pub fn volume(&self, slug: &str) -> PathBuf {
        let (inside, outside) = (self.point.join(slug), self.dir.join(slug));
        if !inside.exists() && is_dir(&outside) { outside } else { inside }
    }
}

/// Mounts the volumes of a server in a new directory `point`; they are made if they are missing, and grow if they are to.
/// They never become smaller. Where nothing can be mounted from a file, they are plain directories without a bound.
pub fn mount_for_launch(
    mounts: &PrivateMounts,
    layout: &Layout,
    server: &str,
    bytes: u64,
    point: &Path,
) -> io::Result<Mounted> {
    let dir = layout.volumes_dir(server);
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
    let _lock = lock(&dir)?;
    let image = dir.join(IMAGE);
    if !image.exists() {
        if !loop_device::is_possible() {
            eprintln!("stdiod: volumes have no bound here, for want of loop devices or mkfs.ext4");
            return Ok(Mounted { point: dir.clone(), dir });
        }
        make(&dir, bytes)?;
    }
    fs::DirBuilder::new().mode(0o700).create(point)?;
    attach_and_mount(mounts, &image, point, point.parent().unwrap_or(&dir), Some(bytes))?;
    let mounted = Mounted { point: point.to_owned(), dir };
    if is_first_of_this_life(layout, server)? {
        mounted.take_in_plain_ones(bytes)?;
    }
    Ok(mounted)
}

/// Mounts an image that is there over its own directory.
pub fn mount_over(mounts: &PrivateMounts, dir: &Path) -> io::Result<()> {
    let _lock = lock(dir)?;
    attach_and_mount(mounts, &dir.join(IMAGE), dir, dir, None)
}

/// To be done by who has used `mount_over`, so that the device is free when it goes on.
pub fn unmount(_: &PrivateMounts, dir: &Path) -> io::Result<()> {
    Ok(umount2(dir, MntFlags::empty())?)
}

fn make(dir: &Path, bytes: u64) -> io::Result<()> {
    let draft = dir.join(DRAFT);
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    file.set_len(bytes)?;
    // With a journal, unlike an instance's disk: this one outlives a loss of power. Inodes for many small files, as caches
    // of packages have them.
    let lazy = "lazy_itable_init=1,lazy_journal_init=1,nodiscard";
    loop_device::make_file_system(&draft, &["-m", "0", "-i", "8192", "-E", lazy])?;
    file.sync_all()?;
    fs::rename(&draft, dir.join(IMAGE))
}

fn attach_and_mount(
    _: &PrivateMounts,
    image: &Path,
    point: &Path,
    scratch: &Path,
    wanted: Option<u64>,
) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(image)?;
    let mut there = loop_device::attached(&file, scratch)?;
    if let Some(bytes) = wanted.filter(|bytes| is_smaller(&file, *bytes)) {
        for _ in 0..VOLUME_MOUNT_TRIES {
            if there.take().is_none() {
                break;
            }
            // The last instance is not quite gone, or another one runs.
            std::thread::sleep(VOLUME_MOUNT_PAUSE);
            there = loop_device::attached(&file, scratch)?;
        }
        let grown = if there.is_some() { Err(io::Error::from(Errno::EBUSY)) } else { grow(image, bytes) };
        if let Err(e) = grown {
            eprintln!("stdiod: the volumes stay smaller than {bytes} bytes until the next start: {e}");
        }
    }
    let device = match there {
        Some(there) => there,
        None => loop_device::attach(&file, image, scratch)?,
    };
    // discard: what is deleted inside is free again outside. noinit_itable: the file was all zeros.
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOATIME;
    let source = loop_device::path_of(&device);
    let mut tries = 0;
    loop {
        match mount(Some(&source), point, Some("ext4"), flags, Some("discard,noinit_itable")) {
            // The last one who had it is not quite gone.
            Err(Errno::EBUSY) if tries < VOLUME_MOUNT_TRIES => tries += 1,
            Err(e) => {
                let image = image.display();
                return Err(io::Error::other(format!("mounting {image}: {e}; `e2fsck -f {image}` may mend it")));
            }
            Ok(()) => break,
        }
        std::thread::sleep(VOLUME_MOUNT_PAUSE);
    }
    // Only now may our descriptor go: the mount is the device's user from here on.
    drop(device);
    Ok(())
}

/// By what the superblock says, not by the file's length: the last one may have been killed after it had made the file
/// longer.
fn is_smaller(image: &File, bytes: u64) -> bool {
    let mut block = [0; 1024];
    let is_read = image.read_exact_at(&mut block, 1024).is_ok();
    let number = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().expect("4 of 1024"));
    let log_block = number(0x18);
    if !is_read || u16::from_le_bytes([block[0x38], block[0x39]]) != 0xEF53 || log_block > 6 {
        return false;
    }
    // The upper half is there only in file systems that say so.
    let upper = if number(0x60) & 0x80 != 0 { u64::from(number(0x150)) << 32 } else { 0 };
    (upper | u64::from(number(0x4))) < bytes >> (10 + log_block)
}

/// Of a file system that nobody has mounted. In place it would take a capability that not every daemon has.
fn grow(image: &Path, bytes: u64) -> io::Result<()> {
    OpenOptions::new().write(true).open(image)?.set_len(bytes)?;
    // resize2fs wants it looked over. 1: something was mended.
    loop_device::run_tool("e2fsck", &["-f", "-p"], image, &[0, 1])?;
    loop_device::run_tool("resize2fs", &[], image, &[0])
}

// --- plain directories ----------------------------------------------------------------------------------------------

/// Later ones leave plain directories alone: an instance may be at work there.
fn is_first_of_this_life(layout: &Layout, server: &str) -> io::Result<bool> {
    let seen = layout.seen_volumes_dir();
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&seen)?;
    // With a dot, so that it is no container's record (`discard`).
    let mut mark = layout.volumes_dir(server).file_name().unwrap_or_default().to_owned();
    mark.push(".seen");
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(seen.join(mark)) {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(e) => Err(e),
    }
}

impl Mounted {
    /// Volumes of earlier versions, and those that the operator has put there. A copy counts only when it is whole and
    /// the directory has got another name; whoever is killed in between leaves what the next one can finish.
    fn take_in_plain_ones(&self, bytes: u64) -> io::Result<()> {
        for name in names(&self.dir)? {
            if let Some(slug) = name.to_str().and_then(|name| name.strip_prefix(COPIED)) {
                self.finish(slug)?;
            }
        }
        for name in names(&self.dir)?.into_iter().filter(|name| !name.as_encoded_bytes().starts_with(b".")) {
            let (Some(slug), from) = (name.to_str(), self.dir.join(&name)) else { continue };
            if !is_dir(&from) {
                continue;
            }
            if self.point.join(slug).exists() {
                eprintln!("stdiod: {} is not used: the volume is in {IMAGE} beside it", from.display());
            } else if let Err(why) = self.take_in(slug, &from, bytes) {
                eprintln!("stdiod: {} stays a directory without a bound: {why}", from.display());
            }
        }
        Ok(())
    }

    fn take_in(&self, slug: &str, from: &Path, bytes: u64) -> io::Result<()> {
        let incoming = self.point.join(format!("{INCOMING}{slug}"));
        remove_tree(&incoming)?;
        let size = measure(from, VOLUME_MOVE_ENTRIES_MAX)?;
        if !size.whole || size.bytes > VOLUME_MOVE_BYTES_MAX.min(bytes) {
            return Err(io::Error::other("it is too large; raise resource_limits.volume, or move what is in it"));
        }
        // Owners, times, holes, links and attributes, and nothing that is mounted there.
        let mut copy = Command::new("cp");
        copy.args(["-a", "--one-file-system", "-T", "--"]).arg(from).arg(&incoming);
        copy.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let copied = copy.output()?;
        if !copied.status.success() {
            remove_tree(&incoming)?;
            let said = String::from_utf8_lossy(&copied.stderr);
            return Err(io::Error::other(said.lines().next().unwrap_or("cp failed").to_owned()));
        }
        nix::unistd::syncfs(File::open(&self.point)?)?;
        fs::rename(from, self.dir.join(format!("{COPIED}{slug}")))?;
        self.finish(slug)
    }

    fn finish(&self, slug: &str) -> io::Result<()> {
        let incoming = self.point.join(format!("{INCOMING}{slug}"));
        if incoming.exists() {
            fs::rename(incoming, self.point.join(slug))?;
        }
        remove_tree(&self.dir.join(format!("{COPIED}{slug}")))
    }
}

fn names(dir: &Path) -> io::Result<Vec<OsString>> {
    fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name())).collect()
}

fn is_dir(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir())
}
