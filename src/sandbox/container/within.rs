//! A directory as a world of its own: every path given here is resolved inside it by the kernel (`openat2`), so that
//! no symlink, `..` or absolute path of a hostile tree can lead out of it. Also the removal of such a tree.

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat, openat2, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstatat, mkdirat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, unlinkat};
use sha2::{Digest, Sha256};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

pub struct Within {
    root: OwnedFd,
}

impl Within {
    pub fn open(root: &Path) -> io::Result<Within> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(Within { root: nix::fcntl::open(root, flags, Mode::empty())? })
    }

    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// A path that exists; a symlink at its end is followed, still inside.
    pub fn open_at(&self, path: &Path, flags: OFlag) -> io::Result<OwnedFd> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let how = OpenHow::new()
            .flags(flags | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        Ok(openat2(&self.root, path, how)?)
    }

    pub fn read_to_string(&self, path: &Path, max: u64) -> io::Result<String> {
        let fd = self.open_at(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK)?;
        let mut text = Vec::new();
        File::from(fd).take(max).read_to_end(&mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// The directory at `path`; it and its parents are made if they are missing, 0755 and root's. Says whether the last
    /// one was made now.
    pub fn make_dirs(&self, path: &Path) -> io::Result<(OwnedFd, bool)> {
        let names = plain_components(path)?;
        let dir_flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
        match self.open_at(&names.iter().collect::<PathBuf>(), dir_flags) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            found => return found.map(|fd| (fd, false)),
        }
        let mut made = false;
        let mut at = self.open_at(Path::new(""), dir_flags)?;
        for depth in 1..=names.len() {
            let prefix: PathBuf = names[..depth].iter().collect();
            at = match self.open_at(&prefix, dir_flags) {
                Ok(fd) => fd,
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    // A dangling symlink is not there for openat2, but is for mkdirat: EEXIST, and the end of it.
                    mkdirat(&at, names[depth - 1], Mode::from_bits_truncate(0o755))?;
                    made = depth == names.len();
                    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_RDONLY;
                    let fd = openat(&at, names[depth - 1], flags, Mode::empty())?;
                    fchmod(&fd, Mode::from_bits_truncate(0o755))?;
                    fd
                }
                Err(e) => return Err(e),
            };
        }
        Ok((at, made))
    }

    /// A new regular file in place of whatever file or symlink was there.
    pub fn write_file(&self, path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
        let (parent, name) = self.parent_of(path)?;
        remove_non_directory(&parent, &name)?;
        let mut file = File::from(create_new(&parent, &name)?);
        file.write_all(content)?;
        fchmod(&file, Mode::from_bits_truncate(mode))?;
        Ok(())
    }

    /// As `make_dirs`; a directory that was missing gets this owner.
    pub fn make_dirs_owned(&self, path: &Path, uid: u32, gid: u32) -> io::Result<()> {
        let (fd, made) = self.make_dirs(path)?;
        if made {
            let fd = openat(&fd, ".", OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
            fchown(&fd, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
        }
        Ok(())
    }

    /// The directory that holds `path`, made if missing, and the last name of it.
    pub fn parent_of(&self, path: &Path) -> io::Result<(OwnedFd, PathBuf)> {
        let names = plain_components(path)?;
        let (last, parents) = names.split_last().ok_or_else(|| io::Error::other("the root itself is no file"))?;
        let (fd, _) = self.make_dirs(&parents.iter().collect::<PathBuf>())?;
        Ok((fd, PathBuf::from(last)))
    }
}

/// The names of a path without its root; `..` is refused whatever it would mean.
fn plain_components(path: &Path) -> io::Result<Vec<&OsStr>> {
    let mut names = Vec::new();
    for part in path.components() {
        match part {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => names.push(name),
            Component::ParentDir | Component::Prefix(_) => {
                return Err(io::Error::other(format!("{} has a .. in it", path.display())));
            }
        }
    }
    Ok(names)
}

pub fn create_new(parent: &OwnedFd, name: &Path) -> nix::Result<OwnedFd> {
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    openat(parent, name, flags, Mode::from_bits_truncate(0o600))
}

/// What a name stands for, itself and not what it may point to.
pub fn stat_of(parent: &OwnedFd, name: &Path) -> nix::Result<Option<FileStat>> {
    match fstatat(parent, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::ENOENT) => Ok(None),
        Err(e) => Err(e),
    }
}

pub fn is_directory(stat: &FileStat) -> bool {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR
}

/// Makes room for a new entry. A directory that is in the way stays, and the creation then fails by itself.
pub fn remove_non_directory(parent: &OwnedFd, name: &Path) -> nix::Result<()> {
    match unlinkat(parent, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT | Errno::EISDIR) => Ok(()),
        Err(e) => Err(e),
    }
}

/// Removes a tree, however deep and however wide. A directory that is not empty is first moved up to the top, and names are
/// read a few at a time: neither the stack, nor the memory, nor the number of open files depends on what a container has
/// built. Quiet when there is nothing.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let top = match nix::fcntl::open(path, DIRECTORY, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::ENOENT) => return Ok(()),
        Err(Errno::ENOTDIR | Errno::ELOOP) => return gone(std::fs::remove_file(path)),
        Err(e) => return Err(e.into()),
    };
    let mut work = Removal::default();
    // What is moved up in the middle of a look at the top may or may not be among what that look gives.
    loop {
        let before = work.done;
        for name in names_in(&top)? {
            let name = name?;
            if !work.unlink(&top, &name)? {
                work.empty(&top, &name)?;
            }
        }
        if work.done == before {
            return gone(std::fs::remove_dir(path));
        }
    }
}

const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

#[derive(Default)]
struct Removal {
    /// Names that were removed or moved up.
    done: u64,
    moved: u64,
}

impl Removal {
    /// False: it is a directory with something in it.
    fn unlink(&mut self, dir: &OwnedFd, name: &Path) -> io::Result<bool> {
        let removed = match unlinkat(dir, name, UnlinkatFlags::NoRemoveDir) {
            Err(Errno::EISDIR | Errno::EPERM) => unlinkat(dir, name, UnlinkatFlags::RemoveDir),
            removed => removed,
        };
        match removed {
            Ok(()) => self.done += 1,
            Err(Errno::ENOENT) => {}
            Err(Errno::ENOTEMPTY | Errno::EEXIST) => return Ok(false),
            Err(e) => return Err(e.into()),
        }
        Ok(true)
    }

    /// Of a directory at the top. Those in it that are not empty go up, to have their own turn.
    fn empty(&mut self, top: &OwnedFd, name: &Path) -> io::Result<()> {
        let here = match openat(top, name, DIRECTORY, Mode::empty()) {
            // Somebody else is at it too.
            Err(Errno::ENOENT) => return Ok(()),
            opened => opened?,
        };
        for inner in names_in(&here)? {
            let inner = inner?;
            if !self.unlink(&here, &inner)? {
                self.move_up(&here, &inner, top)?;
            }
        }
        // What is left in it, if anything, the next look finds.
        self.unlink(top, name).map(|_| ())
    }

    fn move_up(&mut self, from: &OwnedFd, name: &Path, top: &OwnedFd) -> io::Result<()> {
        loop {
            self.moved += 1;
            let up = PathBuf::from(format!(".removed-{}", self.moved));
            match renameat(from, name, top, up.as_path()) {
                Ok(()) => {
                    self.done += 1;
                    return Ok(());
                }
                // Somebody else who is at it has removed it.
                Err(Errno::ENOENT) => return Ok(()),
                // Somebody chose our name; the next one then.
                Err(Errno::ENOTEMPTY | Errno::EEXIST | Errno::ENOTDIR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// As they are read: a directory may hold more names than fit into memory.
fn names_in(dir: &OwnedFd) -> io::Result<impl Iterator<Item = io::Result<PathBuf>> + use<>> {
    let by_fd = format!("/proc/self/fd/{}", dir.as_raw_fd());
    Ok(std::fs::read_dir(by_fd)?.map(|entry| Ok(PathBuf::from(entry?.file_name()))))
}

/// A path inside a container in its one spelling: absolute, no empty or `.` parts, no `/` at its end. None if it is
/// not absolute, has `..` or a NUL, or is the root itself.
pub fn normal_path(path: &str) -> Option<PathBuf> {
    if !path.starts_with('/') || path.as_bytes().contains(&0) {
        return None;
    }
    let names = plain_components(Path::new(path)).ok()?;
    if names.is_empty() {
        return None;
    }
    Some(Path::new("/").join(names.into_iter().collect::<PathBuf>()))
}

/// A path as one file name: what is not plain is spelled `%XX`, so that two paths never share a name.
pub fn slug(path: &Path) -> String {
    let mut out = String::new();
    for &b in path.as_os_str().as_bytes().strip_prefix(b"/").unwrap_or(path.as_os_str().as_bytes()) {
        let plain = b.is_ascii_alphanumeric() || b == b'-' || b == b'_' || (b == b'.' && !out.is_empty());
        if plain { out.push(b as char) } else { out.push_str(&format!("%{b:02X}")) }
    }
    if out.len() > SLUG_MAX {
        // File names end at 255 bytes. `%-` is no spelling of any byte, so a cut slug cannot be a whole one.
        let digest = Sha256::digest(path.as_os_str().as_bytes());
        out.truncate(SLUG_MAX / 2);
        out.push_str("%-");
        digest.iter().for_each(|b| out.push_str(&format!("{b:02x}")));
    }
    out
}

const SLUG_MAX: usize = 180;

#[cfg(test)]
mod tests {
    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path = std::env::temp_dir().join(format!("stdiod-within-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Scratch(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn symlinks_of_a_hostile_tree_lead_nowhere_outside() {
        let scratch = Scratch::new("links");
        let outside = scratch.0.join("outside");
        let root = scratch.0.join("root");
        std::fs::create_dir_all(&outside).unwrap();
        std::fs::create_dir_all(&root).unwrap();
        std::os::unix::fs::symlink(&outside, root.join("abs")).unwrap();
        std::os::unix::fs::symlink("../outside", root.join("rel")).unwrap();
        std::os::unix::fs::symlink(outside.join("file"), root.join("file")).unwrap();
        let within = Within::open(&root).unwrap();
        // Both links dangle inside the root: refused, or taken as a path inside.
        let _ = within.write_file(Path::new("/abs/x"), b"x", 0o444);
        let _ = within.write_file(Path::new("rel/x"), b"x", 0o444);
        within.write_file(Path::new("/file"), b"mine", 0o444).unwrap();
        assert!(within.write_file(Path::new("/a/../../x"), b"x", 0o444).is_err());
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
        assert_eq!(std::fs::read(root.join("file")).unwrap(), b"mine");
        assert!(!root.join("file").is_symlink());
    }

    #[test]
    fn a_symlink_inside_is_followed_inside() {
        let scratch = Scratch::new("inside");
        std::fs::create_dir_all(scratch.0.join("usr/lib")).unwrap();
        std::os::unix::fs::symlink("/usr/lib", scratch.0.join("lib")).unwrap();
        let within = Within::open(&scratch.0).unwrap();
        within.write_file(Path::new("/lib/deep/er/x"), b"x", 0o444).unwrap();
        assert_eq!(std::fs::read(scratch.0.join("usr/lib/deep/er/x")).unwrap(), b"x");
    }

    #[test]
    fn a_tree_is_removed_however_deep_it_is() {
        let scratch = Scratch::new("deep");
        let top = scratch.0.join("top");
        std::fs::create_dir_all(top.join("a/b")).unwrap();
        std::fs::write(top.join("a/b/f"), b"").unwrap();
        std::os::unix::fs::symlink("/etc", top.join("a/etc")).unwrap();
        let flags = OFlag::O_DIRECTORY | OFlag::O_RDONLY;
        let mut at = nix::fcntl::open(top.as_path(), flags, Mode::empty()).unwrap();
        for _ in 0..5000 {
            mkdirat(&at, "d", Mode::S_IRWXU).unwrap();
            mkdirat(&at, "e", Mode::S_IRWXU).unwrap();
            at = openat(&at, "d", flags, Mode::empty()).unwrap();
        }
        drop(at);
        remove_tree(&top).unwrap();
        assert!(!top.exists());
        remove_tree(&top).unwrap();
        assert!(Path::new("/etc").exists());
    }

    #[test]
    fn a_tree_is_removed_however_wide_it_is() {
        let scratch = Scratch::new("wide");
        let top = scratch.0.join("top");
        let wide = top.join("a/wide");
        std::fs::create_dir_all(&wide).unwrap();
        let name = |n: u32| format!("{n:0200}");
        for n in 0..50_000 {
            std::fs::File::create(wide.join(name(n))).unwrap();
        }
        for n in 0..500 {
            std::fs::create_dir_all(wide.join(format!("d{n}/e/f"))).unwrap();
            std::fs::create_dir_all(top.join(format!("d{n}/e"))).unwrap();
        }
        let names = names_in(&nix::fcntl::open(wide.as_path(), DIRECTORY, Mode::empty()).unwrap()).unwrap();
        assert_eq!(names.count(), 50_500, "as they come");
        remove_tree(&top).unwrap();
        assert!(!top.exists());
    }

    #[test]
    fn paths_have_one_spelling_and_no_two_share_a_slug() {
        assert_eq!(normal_path("//data/./x/"), Some(PathBuf::from("/data/x")));
        for bad in ["data", "/", "/a/../b", "", "/a\0b"] {
            assert_eq!(normal_path(bad), None, "{bad:?}");
        }
        assert_eq!(slug(Path::new("/data")), "data");
        assert_eq!(slug(Path::new("/var/lib")), "var%2Flib");
        assert_ne!(slug(Path::new("/a%2Fb")), slug(Path::new("/a/b")));
        assert_eq!(slug(Path::new("/.hidden")), "%2Ehidden");
        let long = |end: &str| slug(Path::new(&format!("/{}{end}", "/x".repeat(500))));
        assert!(long("a").len() < 255 && long("a") != long("b"));
    }
}
