//! Volumes as they lie on disk: one directory per server, in it one per path. Lists and measures them, removes one, or takes
//! all of a server's away at once; whether it still wants them is for the caller to know. Follows no link: what is inside is
//! a server's.

use crate::sandbox::plan::Layout;
use crate::sandbox::within::{remove_tree, slug};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    pub server: String,
    /// Where it is in the container.
    pub path: String,
    /// Where it is on this host.
    pub directory: PathBuf,
}

/// All of them, by server and path.
pub fn list(layout: &Layout) -> io::Result<Vec<Volume>> {
    let mut found = Vec::new();
    for server in directories(&layout.data_dir.join("volumes"))? {
        for directory in directories(&server)? {
            let name = |path: &Path| path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            let path = unslug(&name(&directory));
            found.push(Volume { server: name(&server), path, directory });
        }
    }
    found.sort_by(|a, b| (&a.server, &a.path).cmp(&(&b.server, &b.path)));
    Ok(found)
}

pub fn find(layout: &Layout, server: &str, path: &str) -> io::Result<Option<Volume>> {
    let directory = layout.volumes_dir(server).join(slug(Path::new(path)));
    Ok(list(layout)?.into_iter().find(|volume| volume.server == server && volume.directory == directory))
}

/// What it takes on disk.
pub fn bytes(volume: &Volume) -> io::Result<u64> {
    let mut sum = 0;
    let mut open = vec![volume.directory.clone()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            // A server may remove it while we count.
            let Ok(meta) = entry.metadata() else { continue };
            sum += meta.blocks() * 512;
            if meta.is_dir() {
                open.push(entry.path());
            }
        }
    }
    Ok(sum)
}

pub fn remove(volume: &Volume) -> io::Result<()> {
    remove_tree(&volume.directory)?;
    // The last one takes the server's directory with it; it is no fault if it was not the last.
    if let Some(parent) = volume.directory.parent() {
        _ = fs::remove_dir(parent);
    }
    Ok(())
}

/// All volumes of a server are gone when this returns, however much is in them: they are moved to where `empty_removed`
/// finds them.
pub fn take_away(layout: &Layout, server: &str) -> io::Result<()> {
    if !matches!(Path::new(server).components().collect::<Vec<_>>()[..], [Component::Normal(_)]) {
        return Err(io::Error::other(format!("{server:?} is no name of a server")));
    }
    let (from, removed) = (layout.volumes_dir(server), layout.removed_dir());
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&removed)?;
    for number in 0_u64.. {
        match fs::rename(&from, removed.join(format!("{server}-{number}"))) {
            Err(e) => match e.kind() {
                // An earlier one of that name is still there.
                io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists => {}
                io::ErrorKind::NotFound if fs::symlink_metadata(&from).is_err() => return Ok(()),
                // Somebody has put them on a disk of their own.
                io::ErrorKind::CrossesDevices | io::ErrorKind::ResourceBusy => return remove_tree(&from),
                _ => return Err(e),
            },
            Ok(()) => return Ok(()),
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
