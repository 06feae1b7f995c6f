//! One layer of an image: a tar stream becomes a directory that overlayfs can use as a lower one. Whatever the stream
//! says, nothing outside that directory is touched, no device is made, and bytes and entries stay within an allowance.

use crate::limits::{IMAGE_BYTES_MAX, IMAGE_DEPTH_MAX, IMAGE_ENTRIES_MAX, IMAGE_PATH_MAX};
use crate::sandbox::image::ImageError;
use crate::sandbox::within::{Within, create_new, is_directory, remove_non_directory, stat_of};
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{
    Mode, SFlag, UtimensatFlags, fchmod, futimens, makedev, mkdirat, mknodat, utimensat,
};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid, fchown, fchownat, linkat, mkfifoat, symlinkat};
use sha2::{Digest, Sha256};
use std::cell::Cell;
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use tar::{Archive, Entry, EntryType};

/// A tar header with its extensions (long names, pax records); the tar reader holds them in memory.
const HEADER_MAX: u64 = 1 << 20;
const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
const PAX_XATTR: &str = "SCHILY.xattr.";

/// What an image may still use, over all its layers.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    pub bytes: u64,
    pub entries: u64,
}

impl Default for Allowance {
    fn default() -> Allowance {
        Allowance { bytes: IMAGE_BYTES_MAX, entries: IMAGE_ENTRIES_MAX }
    }
}

/// Hashes and counts what passes through it.
pub struct Metered<R> {
    inner: R,
    sha: Sha256,
    count: u64,
}

impl<R: Read> Metered<R> {
    pub fn new(inner: R) -> Metered<R> {
        Metered { inner, sha: Sha256::new(), count: 0 }
    }

    /// Reads on to the end; then the count and the digest (`sha256:…`) of everything.
    pub fn finish(mut self) -> io::Result<(u64, String)> {
        io::copy(&mut self, &mut io::sink())?;
        let hex: String = self.sha.finalize().iter().map(|b| format!("{b:02x}")).collect();
        Ok((self.count, format!("sha256:{hex}")))
    }
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.sha.update(&buf[..n]);
        self.count += n as u64;
        Ok(n)
    }
}

/// Lets so many bytes through and then fails. Between two entries only a header may be read, however large the
/// stream claims it to be.
struct Leased<'a, R> {
    inner: R,
    lease: &'a Cell<u64>,
}

impl<R: Read> Read for Leased<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        let left = self.lease.get().checked_sub(n as u64);
        self.lease.set(left.ok_or_else(|| io::Error::other("it is larger than allowed"))?);
        Ok(n)
    }
}

/// Unpacks an uncompressed tar stream into `dir`, which must be empty, and takes what it used off the allowance.
pub fn unpack(stream: &mut dyn Read, dir: &Path, allowance: &mut Allowance) -> Result<(), ImageError> {
    let within = Within::open(dir).map_err(|e| ImageError::io("opening the layer's directory", e))?;
    let lease = Cell::new(0);
    let mut layer = Layer { within, allowance, directory_times: Vec::new() };
    let mut archive = Archive::new(Leased { inner: stream, lease: &lease });
    let mut entries = archive.entries().map_err(|e| ImageError::Unreadable(e.to_string()))?;
    loop {
        lease.set(HEADER_MAX);
        let Some(entry) = entries.next() else { break };
        let mut entry = entry.map_err(|e| ImageError::Unreadable(e.to_string()))?;
        lease.set(layer.allowance.bytes);
        layer.take_entry()?;
        layer.put(&mut entry)?;
    }
    layer.finish()
}

struct Layer<'a> {
    within: Within,
    allowance: &'a mut Allowance,
    /// Set last: every file made in a directory changes its time.
    directory_times: Vec<(PathBuf, TimeSpec)>,
}

/// What a header says about a file besides its content.
struct Attributes {
    mode: Mode,
    uid: Uid,
    gid: Gid,
    mtime: TimeSpec,
    xattrs: Vec<(CString, Vec<u8>)>,
}

impl Layer<'_> {
    fn take_entry(&mut self) -> Result<(), ImageError> {
        self.allowance.entries = self.allowance.entries.checked_sub(1).ok_or(ImageError::TooLarge("entries"))?;
        Ok(())
    }

    fn put<R: Read>(&mut self, entry: &mut Entry<'_, R>) -> Result<(), ImageError> {
        let path = entry_path(&entry.path_bytes())?;
        let Some(name) = path.file_name().map(OsStr::to_owned) else { return Ok(()) };
        let refuse = |why: String| ImageError::Refused { entry: path.display().to_string(), why };
        let failed = |e: io::Error| refuse(e.to_string());
        let (parent, last) = self.within.parent_of(&path).map_err(failed)?;
        if let Some(hidden) = name.as_bytes().strip_prefix(WHITEOUT) {
            return self.hide(&parent, name.as_bytes(), hidden).map_err(failed);
        }
        let kind = entry.header().entry_type();
        match kind {
            EntryType::Directory => {
                let attributes = attributes(entry).map_err(failed)?;
                self.make_directory(&parent, &path, &last, &attributes).map_err(failed)
            }
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                let attributes = attributes(entry).map_err(failed)?;
                remove_non_directory(&parent, &last).map_err(|e| failed(e.into()))?;
                let mut file = File::from(create_new(&parent, &last).map_err(|e| failed(e.into()))?);
                self.copy(entry, &mut file)?;
                apply(&file.into(), &attributes).map_err(failed)
            }
            EntryType::Symlink => {
                let attributes = attributes(entry).map_err(failed)?;
                let target = entry.link_name_bytes().ok_or_else(|| refuse("a symlink to nothing".into()))?;
                make_symlink(&parent, &last, &target, &attributes).map_err(failed)
            }
            EntryType::Link => {
                let target = entry.link_name_bytes().ok_or_else(|| refuse("a hard link to nothing".into()))?;
                let target = entry_path(&target)?;
                self.make_hard_link(&parent, &last, &target)
                    .map_err(|e| refuse(format!("hard link to {}: {e}", target.display())))
            }
            EntryType::Fifo => {
                let attributes = attributes(entry).map_err(failed)?;
                make_fifo(&parent, &last, &attributes).map_err(|e| failed(e.into()))
            }
            EntryType::Char | EntryType::Block => Err(refuse("a device node".into())),
            EntryType::XGlobalHeader => Ok(()),
            _ => Err(refuse(format!("an entry of the unknown type {:?}", kind.as_byte() as char))),
        }
    }

    fn copy(&mut self, from: &mut impl Read, to: &mut File) -> Result<(), ImageError> {
        let mut buf = vec![0; 128 * 1024];
        loop {
            let n = from.read(&mut buf).map_err(|e| ImageError::Unreadable(e.to_string()))?;
            if n == 0 {
                return Ok(());
            }
            let left = self.allowance.bytes.checked_sub(n as u64);
            self.allowance.bytes = left.ok_or(ImageError::TooLarge("bytes"))?;
            to.write_all(&buf[..n]).map_err(|e| ImageError::io("writing a file of the layer", e))?;
        }
    }

    /// `.wh.x` hides x of the layers below, `.wh..wh..opq` all that they have in this directory. What this layer has
    /// there itself stays, whichever of the two comes first in the stream.
    fn hide(&self, parent: &OwnedFd, name: &[u8], hidden: &[u8]) -> io::Result<()> {
        if name == OPAQUE {
            return make_opaque(parent, Path::new("."));
        }
        if hidden.starts_with(WHITEOUT) {
            // Bookkeeping of an old union file system.
            return Ok(());
        }
        if matches!(hidden, b"" | b"." | b"..") {
            return Err(io::Error::other("a whiteout of nothing"));
        }
        let hidden = Path::new(OsStr::from_bytes(hidden));
        match stat_of(parent, hidden)? {
            Some(stat) if is_directory(&stat) => make_opaque(parent, hidden),
            Some(_) => Ok(()),
            None => Ok(mknodat(parent, hidden, SFlag::S_IFCHR, Mode::empty(), makedev(0, 0))?),
        }
    }

    fn make_directory(&mut self, parent: &OwnedFd, path: &Path, name: &Path, a: &Attributes) -> io::Result<()> {
        let before = stat_of(parent, name)?;
        let hides = before.as_ref().is_some_and(is_whiteout);
        if !before.as_ref().is_some_and(is_directory) {
            remove_non_directory(parent, name)?;
            mkdirat(parent, name, Mode::S_IRWXU)?;
        }
        if hides {
            make_opaque(parent, name)?;
        }
        apply(&open_directory(parent, name)?, a)?;
        self.directory_times.push((path.to_owned(), a.mtime));
        Ok(())
    }

    fn make_hard_link(&self, parent: &OwnedFd, name: &Path, target: &Path) -> io::Result<()> {
        // Resolved as every path of the layer: inside it, or nowhere.
        let (target_parent, target_name) = self.within.parent_of(target)?;
        match stat_of(&target_parent, &target_name)? {
            Some(stat) if !is_directory(&stat) && !is_whiteout(&stat) => {}
            Some(_) => return Err(io::Error::other("not a file")),
            None => return Err(io::Error::other("not in this layer")),
        }
        remove_non_directory(parent, name)?;
        Ok(linkat(&target_parent, target_name.as_path(), parent, name, AtFlags::empty())?)
    }

    fn finish(self) -> Result<(), ImageError> {
        for (path, mtime) in self.directory_times.iter().rev() {
            let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
            // A directory that a later entry replaced has no time to keep.
            let Ok(fd) = self.within.open_at(path, flags) else { continue };
            futimens(&fd, mtime, mtime).map_err(|e| ImageError::io("setting the time of a directory", e.into()))?;
        }
        Ok(())
    }
}

/// A path of a stream: relative, inside, and of a sane size. The root itself is the empty path.
fn entry_path(bytes: &[u8]) -> Result<PathBuf, ImageError> {
    let shown = || String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).into_owned();
    let refuse = |why: &str| ImageError::Refused { entry: shown(), why: why.to_owned() };
    if bytes.len() > IMAGE_PATH_MAX || bytes.contains(&0) {
        return Err(refuse("a path that is too long or has a NUL"));
    }
    let mut path = PathBuf::new();
    for part in Path::new(OsStr::from_bytes(bytes)).components() {
        match part {
            Component::Normal(name) => path.push(name),
            Component::CurDir => {}
            // Some tools write hard link targets so; the root is the layer's all the same.
            Component::RootDir => {}
            Component::ParentDir | Component::Prefix(_) => return Err(refuse("a path with ..")),
        }
    }
    if path.components().count() > IMAGE_DEPTH_MAX {
        return Err(refuse("a path that is too deep"));
    }
    Ok(path)
}

fn attributes<R: Read>(entry: &mut Entry<'_, R>) -> io::Result<Attributes> {
    let id = |id: u64| u32::try_from(id).ok().filter(|id| *id != u32::MAX);
    let header = entry.header();
    let (uid, gid) = (id(header.uid()?), id(header.gid()?));
    let (Some(uid), Some(gid)) = (uid, gid) else { return Err(io::Error::other("an owner that cannot be")) };
    let mode = Mode::from_bits_truncate(header.mode()? & 0o7777);
    let mtime = TimeSpec::new(i64::try_from(header.mtime()?).unwrap_or(0), 0);
    let mut xattrs = Vec::new();
    for record in entry.pax_extensions()?.into_iter().flatten() {
        let record = record?;
        let Some(name) = record.key().ok().and_then(|key| key.strip_prefix(PAX_XATTR)) else { continue };
        // trusted.* steers the overlay and security.* gives rights: neither is the image's to set.
        if name.starts_with("user.") {
            xattrs.push((CString::new(name).map_err(io::Error::other)?, record.value_bytes().to_vec()));
        }
    }
    Ok(Attributes { mode, uid: Uid::from_raw(uid), gid: Gid::from_raw(gid), mtime, xattrs })
}

/// The owner before the mode: a change of owner clears the setuid bits.
fn apply(fd: &OwnedFd, a: &Attributes) -> io::Result<()> {
    fchown(fd, Some(a.uid), Some(a.gid))?;
    fchmod(fd, a.mode)?;
    for (name, value) in &a.xattrs {
        set_xattr(fd, name, value)?;
    }
    Ok(futimens(fd, &a.mtime, &a.mtime)?)
}

fn make_symlink(parent: &OwnedFd, name: &Path, target: &[u8], a: &Attributes) -> io::Result<()> {
    remove_non_directory(parent, name)?;
    symlinkat(OsStr::from_bytes(target), parent, name)?;
    fchownat(parent, name, Some(a.uid), Some(a.gid), AtFlags::AT_SYMLINK_NOFOLLOW)?;
    Ok(utimensat(parent, name, &a.mtime, &a.mtime, UtimensatFlags::NoFollowSymlink)?)
}

fn make_fifo(parent: &OwnedFd, name: &Path, a: &Attributes) -> nix::Result<()> {
    remove_non_directory(parent, name)?;
    mkfifoat(parent, name, a.mode & Mode::from_bits_truncate(0o777))?;
    fchownat(parent, name, Some(a.uid), Some(a.gid), AtFlags::AT_SYMLINK_NOFOLLOW)
}

fn is_whiteout(stat: &nix::sys::stat::FileStat) -> bool {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFCHR && stat.st_rdev == makedev(0, 0)
}

fn open_directory(parent: &OwnedFd, name: &Path) -> nix::Result<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    openat(parent, name, flags, Mode::empty())
}

fn make_opaque(parent: &OwnedFd, name: &Path) -> io::Result<()> {
    set_xattr(&open_directory(parent, name)?, c"trusted.overlay.opaque", b"y")
}

fn set_xattr(fd: &OwnedFd, name: &std::ffi::CStr, value: &[u8]) -> io::Result<()> {
    // SAFETY: name is NUL-terminated, value is valid for its length.
    let done = unsafe { libc::fsetxattr(fd.as_raw_fd(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
