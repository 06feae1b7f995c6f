//! Volumes as they lie on disk: one directory per server, in it an image with a directory per path (`volume_image`), or
//! plain directories of earlier versions. Lists and measures them, removes one, or takes all of a server's away at once;
//! whether it still wants them is for the caller to know. Follows no link and does not recurse: what is inside is a
//! server's.

use crate::api::definition::fields::server_name;
use crate::limits::{VOLUME_ENTRIES_MAX, WALK_OPEN_MAX};
use crate::sandbox::container::packages;
use crate::sandbox::container::plan::Layout;
use crate::sandbox::container::rootfs::PrivateMounts;
use crate::sandbox::container::volume_image::{self, IMAGE};
use crate::sandbox::container::within::{is_directory, remove_tree, slug};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::stat::{Mode, fstatat};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// What ext4 makes in every new file system.
const LOST_AND_FOUND: &str = "lost+found";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    pub server: String,
    /// Where it is in the container.
    pub path: String,
    pub place: Place,
    pub size: Result<Size, String>,
}

/// Where it is on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the image of all volumes of its server.
    Image(PathBuf),
    Directory(PathBuf),
}

/// What a tree takes on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    pub bytes: u64,
    /// False: it has more entries, or is more branched, than is looked at.
    pub whole: bool,
}

/// What was found of a server: its volumes, or why they cannot be seen.
pub type Found = (String, Result<Vec<Volume>, String>);

/// All of them, by server and path. One that cannot be seen keeps no other from being.
pub fn list(layout: &Layout) -> io::Result<Vec<Found>> {
    let mut found = Vec::new();
    for dir in directories(&layout.volumes_root())? {
        let server = name_of(&dir);
        let volumes = of_server(&server, &dir).map_err(|e| e.to_string());
        // A directory that has become empty is nobody's any more.
        if volumes.as_ref().is_ok_and(Vec::is_empty) {
            continue;
        }
        found.push((server, volumes));
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(found)
}

pub fn find(layout: &Layout, server: &str, path: &str) -> io::Result<Option<Volume>> {
    let dir = layout.volumes_dir(server);
    if !dir.is_dir() {
        return Ok(None);
    }
    Ok(of_server(server, &dir)?.into_iter().find(|volume| volume.path == path))
}

fn of_server(server: &str, dir: &Path) -> io::Result<Vec<Volume>> {
    let look = |directory: &Path, place: Place| {
        let size = measure(directory, VOLUME_ENTRIES_MAX).map_err(|e| e.to_string());
        Volume { server: server.to_owned(), path: unslug(&name_of(directory)), place, size }
    };
    let mut found: Vec<Volume> = volumes_in(dir)?.into_iter().map(|d| look(&d, Place::Directory(d.clone()))).collect();
    let image = dir.join(IMAGE);
    if image.exists() {
        let seen = inside(dir, |dir| {
            let all = volumes_in(dir)?.into_iter().map(|d| look(&d, Place::Image(image.clone())));
            Ok(all.collect::<Vec<Volume>>())
        })?;
        // One that is in both is used from the image.
        found.retain(|plain| !seen.iter().any(|volume| volume.path == plain.path));
        found.extend(seen);
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// Runs `act` where the image of a server's volumes is mounted over their directory, which it is given.
pub fn inside<T: Send>(dir: &Path, act: impl FnOnce(&Path) -> io::Result<T> + Send) -> io::Result<T> {
    // In a thread, whose mount namespace goes with it.
    std::thread::scope(|scope| {
        let mounted = scope.spawn(|| {
            let mounts = PrivateMounts::enter()?;
            volume_image::mount_over(&mounts, dir)?;
            let done = act(dir);
            volume_image::unmount(&mounts, dir)?;
            done
        });
        mounted.join().unwrap_or_else(|_| Err(io::Error::other("the look into the image failed")))
    })
}

/// How much a tree takes, as far as `entries_max` entries go. By descriptors, one level at a time and without symlinks: it
/// is as deep as a server likes, and may change under our eyes.
pub fn measure(top: &Path, entries_max: usize) -> io::Result<Size> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut size = Size { bytes: 0, whole: true };
    let mut entries = 0;
    // Directories with the names in them that are still to be looked into.
    let mut levels: Vec<(OwnedFd, Vec<OsString>)> = Vec::new();
    let mut dir = open(top, flags, Mode::empty())?;
    loop {
        let mut inner = Vec::new();
        for entry in fs::read_dir(format!("/proc/self/fd/{}", dir.as_raw_fd()))? {
            entries += 1;
            if entries > entries_max {
                return Ok(Size { whole: false, ..size });
            }
            let name = entry?.file_name();
            let Ok(stat) = fstatat(&dir, name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW) else { continue };
            size.bytes += stat.st_blocks.cast_unsigned() * 512;
            if is_directory(&stat) {
                inner.push(name);
            }
        }
        levels.push((dir, inner));
        if levels.len() > WALK_OPEN_MAX {
            return Ok(Size { whole: false, ..size });
        }
        dir = loop {
            let Some((parent, names)) = levels.last_mut() else { return Ok(size) };
            let opened = names.pop().map(|name| openat(&*parent, name.as_os_str(), flags, Mode::empty()));
            // Nothing left to do there: so a chain of directories, however long, has one open at a time.
            if names.is_empty() {
                levels.pop();
            }
            match opened {
                Some(Ok(dir)) => break dir,
                // A server may remove it, or put something else there, while we count.
                None | Some(Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP)) => {}
                Some(Err(e)) => return Err(e.into()),
            }
        };
    }
}

/// One volume of a server that does not run.
pub fn remove(layout: &Layout, volume: &Volume) -> io::Result<()> {
    let dir = layout.volumes_dir(&volume.server);
    packages::unmark(&dir);
    let slug = slug(Path::new(&volume.path));
    match &volume.place {
        Place::Directory(directory) => remove_tree(directory)?,
        Place::Image(image) => {
            let left = inside(&dir, |dir| {
                remove_tree(&dir.join(&slug))?;
                volumes_in(dir)
            })?;
            if left.is_empty() {
                let _lock = volume_image::lock(&dir)?;
                fs::remove_file(image)?;
            }
        }
    }
    // The last one takes the server's directory with it; it is no fault if it was not the last.
    _ = fs::remove_dir(dir);
    Ok(())
}

/// All volumes of a server are gone when this returns, however much is in them: they are moved to where `empty_removed`
/// finds them.
pub fn take_away(layout: &Layout, server: &str) -> io::Result<()> {
    server_name(server).map_err(|why| io::Error::other(format!("{server:?} {why}")))?;
    let (from, removed) = (layout.volumes_dir(server), layout.removed_dir());
    match fs::DirBuilder::new().recursive(true).mode(0o700).create(&removed) {
        Err(e) if e.kind() == io::ErrorKind::StorageFull => return remove_tree(&from),
        made => made?,
    }
    for number in 0_u64.. {
        match fs::rename(&from, removed.join(format!("{server}-{number}"))) {
            Err(e) => match e.kind() {
                // An earlier one of that name is still there.
                io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists => {}
                io::ErrorKind::NotFound if fs::symlink_metadata(&from).is_err() => return Ok(()),
                // Somebody has put them on a disk of their own; or this one is so full that it has no room for a name.
                io::ErrorKind::CrossesDevices | io::ErrorKind::ResourceBusy | io::ErrorKind::StorageFull => {
                    return remove_tree(&from);
                }
                _ => return Err(e),
            },
            // What is said to be gone must not be there again after a loss of power.
            Ok(()) => return fs::File::open(layout.data_dir.join("volumes"))?.sync_all(),
        }
    }
    unreachable!("there are more numbers than directories")
}

/// Blocks as long as it takes. The place itself stays: more may be on its way there.
pub fn empty_removed(layout: &Layout) -> io::Result<()> {
    // Everything is tried, whatever fails; the last failure is told.
    let mut done = Ok(());
    for volumes in directories(&layout.removed_dir())? {
        done = remove_tree(&volumes).and(done);
    }
    done
}

fn directories(below: &Path) -> io::Result<Vec<PathBuf>> {
    let list = match fs::read_dir(below) {
        Ok(list) => list,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let entries: io::Result<Vec<fs::DirEntry>> = list.collect();
    let is_dir = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    Ok(entries?.into_iter().filter(is_dir).map(|entry| entry.path()).collect())
}

/// Without what is ours (names with a dot) and what is the file system's.
fn volumes_in(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = directories(dir)?;
    found.retain(|path| !name_of(path).starts_with('.') && name_of(path) != LOST_AND_FOUND);
    Ok(found)
}

fn name_of(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The path that `slug` made this name of; one that was cut stays as it is.
fn unslug(name: &str) -> String {
    let mut bytes = vec![b'/'];
    let mut rest = name;
    while let Some(at) = rest.find('%') {
        let Some(byte) = rest.get(at + 1..at + 3).and_then(|hex| u8::from_str_radix(hex, 16).ok()) else {
            return name.to_owned();
        };
        bytes.extend_from_slice(&rest.as_bytes()[..at]);
        bytes.push(byte);
        rest = &rest[at + 3..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8(bytes).unwrap_or_else(|_| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_on_disk_gives_its_path_back() {
        for path in ["/data", "/var/lib/x", "/a b/ü", "/.hidden", "/a%2Fb"] {
            assert_eq!(unslug(&slug(Path::new(path))), path);
        }
        let cut = slug(Path::new(&format!("/{}", "x".repeat(400))));
        assert_eq!(unslug(&cut), cut);
    }

    #[test]
    fn a_tree_is_measured_however_deep_it_is_and_its_symlinks_are_not_followed() {
        let top = std::env::temp_dir().join(format!("stdiod-measure-{}", std::process::id()));
        fs::create_dir_all(top.join("a/b")).unwrap();
        fs::write(top.join("a/b/file"), vec![1; 100_000]).unwrap();
        std::os::unix::fs::symlink("/usr", top.join("a/usr")).unwrap();
        std::os::unix::fs::symlink("..", top.join("a/loop")).unwrap();
        let flat = measure(&top, 100).unwrap();
        assert!(flat.whole && (100_000..200_000).contains(&flat.bytes), "{flat:?}");
        assert!(!measure(&top, 2).unwrap().whole);
        let mut at = open(&top, OFlag::O_DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..5_000 {
            nix::sys::stat::mkdirat(&at, "d", Mode::S_IRWXU).unwrap();
            at = openat(&at, "d", OFlag::O_DIRECTORY, Mode::empty()).unwrap();
        }
        assert!(measure(&top, 100_000).unwrap().whole);
        // Twigs on every level, which are all left to do while the walk goes down.
        let mut at = open(&top, OFlag::O_DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..2 * WALK_OPEN_MAX {
            for twig in ["c", "e"] {
                nix::sys::stat::mkdirat(&at, twig, Mode::S_IRWXU).unwrap();
            }
            at = openat(&at, "d", OFlag::O_DIRECTORY, Mode::empty()).unwrap();
        }
        assert!(measure(&top, 100_000).is_ok());
        remove_tree(&top).unwrap();
        assert!(measure(&top, 100).is_err());
    }

    #[test]
    fn all_volumes_of_a_server_go_at_once_and_one_that_has_none_needs_no_more() {
        let data_dir = std::env::temp_dir().join(format!("stdiod-volumes-{}", std::process::id()));
        let layout = Layout { data_dir: data_dir.clone(), mark: "x".into() };
        for _ in 0..3 {
            fs::create_dir_all(layout.volumes_dir("-x").join("data/deep")).unwrap();
            take_away(&layout, "-x").unwrap();
            assert!(!layout.volumes_dir("-x").exists());
        }
        take_away(&layout, "-x").unwrap();
        for bad in ["", ".", "..", "a/b", "/"] {
            assert!(take_away(&layout, bad).is_err(), "{bad:?}");
        }
        assert_eq!(directories(&layout.removed_dir()).unwrap().len(), 3);
        empty_removed(&layout).unwrap();
        assert_eq!(directories(&layout.removed_dir()).unwrap().len(), 0);
        fs::remove_dir_all(data_dir).unwrap();
    }
}
