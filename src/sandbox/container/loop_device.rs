//! Files as block devices, and file systems in them. A device is marked to be freed with its last user, so whoever mounts
//! it only in a private namespace leaves none behind. Never more than one device over one file, if both were got here.

use crate::limits::LOOP_ATTEMPTS_MAX;
use nix::errno::Errno;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where loop devices are in the kernel's numbering.
const LOOP_MAJOR: u64 = 7;

/// Hosts without loop devices or mkfs.ext4 exist (a container, for one).
pub fn is_possible() -> bool {
    Path::new("/dev/loop-control").exists() && tool("mkfs.ext4").is_some()
}

fn tool(name: &str) -> Option<PathBuf> {
    let dirs = ["/usr/sbin", "/sbin", "/usr/bin", "/usr/local/sbin"];
    dirs.iter().map(|dir| Path::new(dir).join(name)).find(|program| program.exists())
}

/// An ext4 that fills `file`, a new one.
pub fn make_file_system(file: &Path, options: &[&str]) -> io::Result<()> {
    run_tool("mkfs.ext4", &[&["-q", "-F"], options].concat(), file, &[0])
}

/// One of e2fsprogs, on a file system that nobody has mounted; `good` are the exit codes that mean it is done.
pub fn run_tool(name: &str, options: &[&str], file: &Path, good: &[i32]) -> io::Result<()> {
    let program = tool(name).ok_or_else(|| io::Error::other(format!("{name} is not installed (e2fsprogs)")))?;
    let mut command = Command::new(program);
    command.args(options).arg(file).env_clear();
    let done = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).output()?;
    if done.status.code().is_some_and(|code| good.contains(&code)) {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    let said = said.lines().last().unwrap_or("no reason");
    Err(io::Error::other(format!("{name}: {said} ({})", done.status)))
}

// From linux/loop.h; libc has none of it.
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;
const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
const LOOP_GET_STATUS64: libc::Ioctl = 0x4C05;
const LO_FLAGS_AUTOCLEAR: u32 = 4;

#[repr(C)]
struct LoopInfo64 {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo64,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<LoopInfo64>() == 232 && size_of::<LoopConfig>() == 304, "as the kernel has them");

/// What a device is mounted by, as long as its descriptor is open.
pub fn path_of(device: &File) -> PathBuf {
    format!("/proc/self/fd/{}", device.as_raw_fd()).into()
}

/// A new loop device over `file`; the descriptor keeps it until it is mounted. `scratch` is a directory of ours for the
/// moments in which a device needs a file that `/dev` does not have.
pub fn attach(file: &File, image: &Path, scratch: &Path) -> io::Result<File> {
    let control = File::options().read(true).write(true).open("/dev/loop-control")?;
    let mut busy = io::Error::from(Errno::EBUSY);
    for _ in 0..LOOP_ATTEMPTS_MAX {
        // SAFETY: takes no argument.
        let number = Errno::result(unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) })?;
        let device = open(number, scratch)?;
        match configure(&device, file.as_raw_fd(), image) {
            Ok(()) => return Ok(device),
            // Another launcher was quicker; there is a next one.
            Err(e @ Errno::EBUSY) => busy = e.into(),
            Err(e) => return Err(e.into()),
        }
    }
    Err(busy)
}

/// The device that is over `file` already, if there is one; it stays as long as the descriptor does. Two devices over one
/// file would be two caches of it, and the end of what is in it.
pub fn attached(file: &File, scratch: &Path) -> io::Result<Option<File>> {
    let meta = file.metadata()?;
    for entry in fs::read_dir("/sys/block")? {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("loop")?.parse::<i32>().ok());
        let Some(number) = number.filter(|_| entry.path().join("loop").is_dir()) else { continue };
        // One that is on its way out cannot be opened, and has written everything.
        let Ok(device) = open(number, scratch) else { continue };
        // SAFETY: plain numbers and bytes, for which zero is a value.
        let mut info: LoopInfo64 = unsafe { std::mem::zeroed() };
        // SAFETY: the argument is a live loop_info64 of the size the kernel has.
        let told = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, &raw mut info) };
        if told == 0 && (info.device, info.inode) == (meta.dev(), meta.ino()) {
            return Ok(Some(device));
        }
    }
    Ok(None)
}

/// Where nobody makes the devices' files in `/dev`, one of our own does as well.
fn open(number: i32, scratch: &Path) -> io::Result<File> {
    let open = |path: &Path| File::options().read(true).write(true).open(path);
    match open(Path::new(&format!("/dev/loop{number}"))) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        opened => return opened,
    }
    let own = scratch.join(format!(".loop{number}-{}", std::process::id()));
    let device = makedev(LOOP_MAJOR, u64::from(number.cast_unsigned()));
    match mknod(&own, SFlag::S_IFBLK, Mode::from_bits_truncate(0o600), device) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(e) => return Err(e.into()),
    }
    let opened = open(&own);
    fs::remove_file(&own)?;
    opened
}

fn configure(device: &File, backing: RawFd, image: &Path) -> nix::Result<()> {
    // SAFETY: plain numbers and bytes, for which zero is a value.
    let mut config: LoopConfig = unsafe { std::mem::zeroed() };
    config.fd = backing.cast_unsigned();
    config.info.flags = LO_FLAGS_AUTOCLEAR;
    let name = image.as_os_str().as_encoded_bytes();
    let shown = name.len().min(config.info.file_name.len() - 1);
    config.info.file_name[..shown].copy_from_slice(&name[..shown]);
    // SAFETY: the argument is a live loop_config of the size the kernel has.
    Errno::result(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) }).map(drop)
}
