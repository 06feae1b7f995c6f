//! One layer of an image: a tar stream becomes a directory that overlayfs can use as a lower one. Whatever the stream
//! says, nothing outside that directory is touched, no device is made, and bytes and entries stay within an allowance.

use crate::limits::{IMAGE_BYTES_MAX, IMAGE_DEPTH_MAX, IMAGE_ENTRIES_MAX, IMAGE_PATH_MAX, TAR_HEADER_MAX};
use crate::sandbox::container::within::{Within, create_new, is_directory, remove_non_directory, stat_of};
use crate::sandbox::image::ImageError;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{Mode, SFlag, UtimensatFlags, fchmod, futimens, makedev, mkdirat, mknodat, utimensat};
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

const BLOCK: u64 = 512;
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

/// Completes a stream that ends with its last byte of data: some image tools leave out the padding of the last block
/// and the two empty ones that should follow.
struct Padded<R> {
    inner: R,
    count: u64,
    missing: Option<u64>,
}

impl<R: Read> Read for Padded<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let missing = match &mut self.missing {
            Some(missing) => missing,
            None => {
                let n = self.inner.read(buf)?;
                self.count += n as u64;
                if n > 0 || buf.is_empty() {
                    return Ok(n);
                }
                self.missing.insert(self.count.next_multiple_of(BLOCK) - self.count + 2 * BLOCK)
            }
        };
        let n = usize::try_from(*missing).unwrap_or(usize::MAX).min(buf.len());
        buf[..n].fill(0);
        *missing -= n as u64;
        Ok(n)
    }
}

/// Unpacks an uncompressed tar stream into `dir`, which must be empty, and takes what it used off the allowance.
pub fn unpack(stream: &mut dyn Read, dir: &Path, allowance: &mut Allowance) -> Result<(), ImageError> {
    let within = Within::open(dir).map_err(|e| ImageError::io("opening the layer's directory", e))?;
    let lease = Cell::new(0);
    let mut layer = Layer { within, allowance, directory_times: Vec::new() };
    let mut archive = Archive::new(Leased { inner: Padded { inner: stream, count: 0, missing: None }, lease: &lease });
    let mut entries = archive.entries().map_err(|e| ImageError::Unreadable(e.to_string()))?;
    loop {
        lease.set(TAR_HEADER_MAX);
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;
    use tar::{Builder, Header};

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path = std::env::temp_dir().join(format!("stdiod-unpack-{}-{name}", std::process::id()));
            std::fs::create_dir_all(path.join("layer")).unwrap();
            Scratch(path)
        }

        fn layer(&self) -> PathBuf {
            self.0.join("layer")
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// A member as it may stand in a hostile archive: the tar writer's own checks are gone around.
    fn add(tar: &mut Builder<Vec<u8>>, kind: EntryType, name: &str, link: &str, data: &[u8]) {
        let mut header = Header::new_gnu();
        header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
        header.as_gnu_mut().unwrap().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(kind);
        header.set_size(data.len() as u64);
        header.set_mode(0o755);
        header.set_uid(u64::from(Uid::current().as_raw()));
        header.set_gid(u64::from(Gid::current().as_raw()));
        header.set_mtime(1_000_000_000);
        header.set_cksum();
        tar.append(&header, data).unwrap();
    }

    /// Kind, name, link target, content.
    type Member<'a> = (EntryType, &'a str, &'a str, &'a [u8]);

    fn tar(members: &[Member<'_>]) -> Vec<u8> {
        let mut tar = Builder::new(Vec::new());
        for (kind, name, link, data) in members {
            add(&mut tar, *kind, name, link, data);
        }
        tar.into_inner().unwrap()
    }

    fn unpacked(scratch: &Scratch, tar: &[u8]) -> Result<(), ImageError> {
        unpack(&mut &tar[..], &scratch.layer(), &mut Allowance::default())
    }

    #[test]
    fn an_honest_layer_is_unpacked_as_it_was_packed() {
        let scratch = Scratch::new("honest");
        let long = format!("deep/{}/file", "n".repeat(90));
        let mut bytes = tar(&[
            (EntryType::Directory, "./", "", b""),
            (EntryType::Directory, "dir/", "", b""),
            (EntryType::Regular, "dir/file", "", b"content"),
            (EntryType::Link, "dir/hard", "dir/file", b""),
            (EntryType::Symlink, "link", "/dir/file", b""),
            (EntryType::Regular, &long, "", b"x"),
            (EntryType::Regular, "dir/file2", "", b"old"),
            (EntryType::Regular, "dir/file2", "", b"new"),
            (EntryType::Regular, ".wh.gone", "", b""),
        ]);
        unpacked(&scratch, &bytes).unwrap();
        let dir = scratch.layer();
        let file = std::fs::metadata(dir.join("dir/file")).unwrap();
        assert_eq!((file.mode() & 0o7777, file.mtime(), file.nlink()), (0o755, 1_000_000_000, 2));
        assert_eq!(std::fs::metadata(dir.join("dir")).unwrap().mtime(), 1_000_000_000);
        assert_eq!(std::fs::read_link(dir.join("link")).unwrap(), Path::new("/dir/file"));
        assert_eq!(std::fs::read(dir.join("dir/file2")).unwrap(), b"new");
        assert!(dir.join(&long).is_file());
        assert!(is_whiteout(&nix::sys::stat::lstat(&dir.join("gone")).unwrap()));

        // Cut where some tools cut: after the last byte of data.
        let scratch = Scratch::new("cut");
        bytes = tar(&[(EntryType::Regular, "file", "", b"content")]);
        bytes.truncate(512 + 7);
        unpacked(&scratch, &bytes).unwrap();
        assert_eq!(std::fs::read(scratch.layer().join("file")).unwrap(), b"content");
        // Data that is missing is not made up.
        bytes.truncate(512);
        let mut large = tar(&[(EntryType::Regular, "large", "", &[1; 5000])]);
        large.truncate(2000);
        assert!(unpacked(&scratch, &large).is_err());
    }

    #[test]
    fn nothing_outside_the_layer_can_be_reached() {
        let scratch = Scratch::new("escape");
        let outside = scratch.0.join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("secret"), b"secret").unwrap();
        let abs = outside.to_str().unwrap();
        let secret = format!("{abs}/secret");
        let hostile: [&[Member<'_>]; 8] = [
            &[(EntryType::Regular, "../outside/a", "", b"x")],
            &[(EntryType::Regular, "a/../../outside/a", "", b"x")],
            &[(EntryType::Regular, &format!("{abs}/a"), "", b"x")],
            &[(EntryType::Symlink, "s", abs, b""), (EntryType::Regular, "s/a", "", b"x")],
            &[(EntryType::Symlink, "t", "../outside", b""), (EntryType::Regular, "t/a", "", b"x")],
            &[(EntryType::Symlink, "u", &secret, b""), (EntryType::Regular, "u", "", b"x")],
            &[(EntryType::Link, "h", &secret, b""), (EntryType::Regular, "h", "", b"x")],
            &[(EntryType::Symlink, "v", abs, b""), (EntryType::Link, "w", "v/secret", b"")],
        ];
        for members in hostile {
            let _ = unpacked(&scratch, &tar(members));
            assert_eq!(std::fs::read(outside.join("secret")).unwrap(), b"secret", "{:?}", members[0].1);
            assert_eq!(std::fs::metadata(outside.join("secret")).unwrap().nlink(), 1, "{:?}", members[0].1);
            assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1, "{:?}", members[0].1);
        }
    }

    #[test]
    fn devices_and_impossible_entries_are_refused_by_name() {
        let scratch = Scratch::new("refused");
        for (kind, name, link) in [
            (EntryType::Char, "dev/null", ""),
            (EntryType::Block, "dev/sda", ""),
            (EntryType::Link, "x", "etc/shadow"),
            (EntryType::Regular, "../x", ""),
            (EntryType::Regular, "a/.wh.", ""),
            (EntryType::new(b'Z'), "z", ""),
        ] {
            match unpacked(&scratch, &tar(&[(kind, name, link, b"")])) {
                Err(ImageError::Refused { entry, .. }) => assert_eq!(entry, name),
                other => panic!("{name}: {other:?}"),
            }
        }
    }

    #[test]
    fn an_allowance_ends_bombs_of_bytes_entries_and_headers() {
        let scratch = Scratch::new("bomb");
        let tar_of = |n: usize| tar(&[(EntryType::Regular, "zeros", "", &vec![0; n])]);
        let mut small = Allowance { bytes: 100_000, entries: 10 };
        assert!(unpack(&mut &tar_of(50_000)[..], &scratch.layer(), &mut small).is_ok());
        assert_eq!((small.bytes, small.entries), (50_000, 9));
        assert!(unpack(&mut &tar_of(60_000)[..], &scratch.layer(), &mut small).is_err());

        let names: Vec<String> = (0..20).map(|n| format!("f{n}")).collect();
        let members: Vec<_> = names.iter().map(|n| (EntryType::Regular, n.as_str(), "", &b""[..])).collect();
        let mut few = Allowance { bytes: 100_000, entries: 10 };
        let entries = unpack(&mut &tar(&members)[..], &scratch.layer(), &mut few);
        assert!(matches!(entries, Err(ImageError::TooLarge("entries"))), "{entries:?}");

        // A name of many megabytes would be held in memory.
        let name = tar(&[(EntryType::GNULongName, "x", "", &vec![b'a'; 3 << 20]), (EntryType::Regular, "y", "", b"")]);
        assert!(matches!(unpacked(&scratch, &name), Err(ImageError::Unreadable(_))));
        let pax = tar(&[(EntryType::XHeader, "x", "", &vec![b'a'; 3 << 20]), (EntryType::Regular, "y", "", b"")]);
        assert!(matches!(unpacked(&scratch, &pax), Err(ImageError::Unreadable(_))));
    }

    #[test]
    fn an_image_cannot_speak_to_the_overlay_itself() {
        let scratch = Scratch::new("xattr");
        let mut builder = Builder::new(Vec::new());
        let records = [
            ("SCHILY.xattr.trusted.overlay.redirect", &b"/etc"[..]),
            ("SCHILY.xattr.security.capability", b"x"),
            ("SCHILY.xattr.user.kept", b"yes"),
        ];
        builder.append_pax_extensions(records).unwrap();
        add(&mut builder, EntryType::Regular, "file", "", b"x");
        unpacked(&scratch, &builder.into_inner().unwrap()).unwrap();
        let path = CString::new(scratch.layer().join("file").as_os_str().as_bytes()).unwrap();
        let mut list = [0_u8; 256];
        // SAFETY: the buffer is valid for its length.
        let n = unsafe { libc::llistxattr(path.as_ptr(), list.as_mut_ptr().cast(), list.len()) };
        // A temporary directory without user xattrs shows none at all.
        assert!(n <= 0 || list[..n as usize] == b"user.kept\0"[..], "{:?}", String::from_utf8_lossy(&list));
    }
}
