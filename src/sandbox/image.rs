//! The image store: names → layers and configuration, under `<data_dir>/images`. A layer is unpacked once, by the
//! digest of its content, and shared by all images and instances; a name is one small file, replaced atomically. So a
//! crash at any moment leaves either the old state or the new, and rubbish only in `tmp`, which the next import clears.

use crate::core::contract::{LaunchFault, LaunchFaultKind};
use crate::sandbox::plan::{Layout, fault};
use crate::sandbox::within::{remove_tree, slug};
use nix::fcntl::{Flock, FlockArg};
use oci_spec::image::Config;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// In a bundle: the layers its instance stands on, one per line.
const CLAIM: &str = "layers";

#[derive(Debug)]
pub enum ImageError {
    /// `name[:tag]`, or `registry/name:tag`.
    BadName(String),
    /// No such file, or it is none of the formats.
    NotAnImage {
        path: String,
        why: String,
    },
    /// The stream or a document in it cannot be read.
    Unreadable(String),
    /// A blob is not what its descriptor says.
    Mismatch {
        what: String,
        expected: String,
        found: String,
    },
    /// An entry of a layer that no honest image has.
    Refused {
        entry: String,
        why: String,
    },
    TooLarge(&'static str),
    Io {
        doing: String,
        error: io::Error,
    },
}

impl ImageError {
    pub fn io(doing: &str, error: io::Error) -> ImageError {
        ImageError::Io { doing: doing.to_owned(), error }
    }
}

impl fmt::Display for ImageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ImageError::BadName(name) => write!(f, "{name:?} is no image name: name[:tag] or registry/name[:tag]"),
            ImageError::NotAnImage { path, why } => write!(f, "{path} is no image: {why}"),
            ImageError::Unreadable(why) => write!(f, "the image cannot be read: {why}"),
            ImageError::Mismatch { what, expected, found } => {
                write!(f, "{what} is not what the image says: expected {expected}, found {found}")
            }
            ImageError::Refused { entry, why } => write!(f, "the image has an entry {entry:?} that is refused: {why}"),
            ImageError::TooLarge(what) => write!(f, "the image has more {what} than allowed"),
            ImageError::Io { doing, error } => write!(f, "{doing}: {error}"),
        }
    }
}

impl std::error::Error for ImageError {}

/// An image that is there. `layers` are the digests of their unpacked content, the lowest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredImage {
    pub name: String,
    /// Of the manifest, or of the configuration where an archive has no manifest.
    pub digest: String,
    pub layers: Vec<String>,
    pub config: Config,
    /// Of the packed layers together.
    pub packed_bytes: u64,
    pub imported_unix_ms: u64,
}

pub struct Images {
    dir: PathBuf,
    bundles: PathBuf,
}

/// Held while layers are made or removed: one import or removal at a time.
pub struct Writing {
    _lock: Flock<File>,
}

impl Images {
    pub fn of(layout: &Layout) -> Images {
        Images { dir: layout.images_dir(), bundles: layout.bundles_dir() }
    }

    /// The image of that name, if it is there.
    pub fn resolve(&self, name: &str) -> Result<Option<StoredImage>, ImageError> {
        let name = full_name(name)?;
        match fs::read(self.reference(&name)) {
            Ok(text) => serde_json::from_slice(&text)
                .map(Some)
                .map_err(|e| ImageError::Unreadable(format!("its record is broken: {e}"))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(ImageError::io("reading the image's record", e)),
        }
    }

    /// All images, by name.
    pub fn list(&self) -> Result<Vec<StoredImage>, ImageError> {
        let mut found = Vec::new();
        for entry in entries(&self.dir.join("refs")).map_err(|e| ImageError::io("listing images", e))? {
            // Removed meanwhile, or not ours.
            let Ok(text) = fs::read(entry) else { continue };
            let Ok(image) = serde_json::from_slice::<StoredImage>(&text) else { continue };
            found.push(image);
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    pub fn layer_dirs(&self, image: &StoredImage) -> Vec<PathBuf> {
        image.layers.iter().map(|digest| self.layer(digest)).collect()
    }

    /// The image for an instance: from here until its bundle is gone no layer of it is removed.
    pub fn claim(&self, name: &str, bundle: &Path) -> Result<StoredImage, LaunchFault> {
        let not_found = |why: String| LaunchFault { kind: LaunchFaultKind::ImageNotFound, message: why };
        let missing = || not_found(format!("image {name:?} is not in the image store"));
        if self.resolve(name).map_err(|e| not_found(e.to_string()))?.is_none() {
            return Err(missing());
        }
        let broken = |e: io::Error| fault(LaunchFaultKind::Rootfs, "claiming the image", e);
        let _lock = self.lock("refs.lock", FlockArg::LockShared).map_err(broken)?;
        let image = self.resolve(name).map_err(|e| not_found(e.to_string()))?.ok_or_else(missing)?;
        fs::write(bundle.join(CLAIM), image.layers.join("\n")).map_err(broken)?;
        Ok(image)
    }

    /// Forgets a name, and removes the layers that neither another name nor an instance uses. False: no such image.
    pub fn remove(&self, name: &str) -> Result<bool, ImageError> {
        let reference = self.reference(&full_name(name)?);
        let writing = self.write()?;
        match fs::remove_file(reference) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(e) => return Err(ImageError::io("removing the image's record", e)),
        }
        self.remove_unused(&writing)?;
        Ok(true)
    }

    /// Waits for its turn, and clears what an interrupted one left.
    pub fn write(&self) -> Result<Writing, ImageError> {
        let io = |e| ImageError::io("opening the image store", e);
        // 0700 on the way down: a setuid program of an image is nothing for the users of the host.
        for part in ["refs", "layers", "tmp"] {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(self.dir.join(part)).map_err(io)?;
        }
        let lock = self.lock("write.lock", FlockArg::LockExclusive).map_err(io)?;
        for rubbish in entries(&self.tmp()).map_err(io)? {
            remove_tree(&rubbish).map_err(io)?;
        }
        Ok(Writing { _lock: lock })
    }

    pub fn tmp(&self) -> PathBuf {
        self.dir.join("tmp")
    }

    /// Where the layer with this content (`sha256:…`, already checked to be a digest) is or will be.
    pub fn layer(&self, digest: &str) -> PathBuf {
        self.dir.join("layers").join(digest.replace(':', "-"))
    }

    /// Makes the image known; its layers must be in place.
    pub fn commit(&self, _writing: &Writing, image: &StoredImage) -> Result<(), ImageError> {
        let io = |e| ImageError::io("writing the image's record", e);
        let text = serde_json::to_vec_pretty(image).map_err(|e| io(e.into()))?;
        let new = self.tmp().join("reference");
        let file = File::create(&new).map_err(io)?;
        io::Write::write_all(&mut &file, &text).and_then(|()| file.sync_all()).map_err(io)?;
        fs::rename(&new, self.reference(&image.name)).map_err(io)?;
        File::open(self.dir.join("refs")).and_then(|dir| dir.sync_all()).map_err(io)
    }

    /// Layers that no name and no instance stands on.
    pub fn remove_unused(&self, _writing: &Writing) -> Result<(), ImageError> {
        let io = |e| ImageError::io("removing unused layers", e);
        let _lock = self.lock("refs.lock", FlockArg::LockExclusive).map_err(io)?;
        let mut used: HashSet<PathBuf> = self.list()?.iter().flat_map(|image| self.layer_dirs(image)).collect();
        for bundle in entries(&self.bundles).map_err(io)? {
            let claimed = fs::read_to_string(bundle.join(CLAIM)).unwrap_or_default();
            used.extend(claimed.lines().map(|digest| self.layer(digest)));
        }
        for layer in entries(&self.dir.join("layers")).map_err(io)?.into_iter().filter(|l| !used.contains(l)) {
            // Out of sight first: a layer that is half removed must not be found by its digest.
            let doomed = self.tmp().join(layer.file_name().unwrap_or_default());
            fs::rename(&layer, &doomed).map_err(io)?;
            remove_tree(&doomed).map_err(io)?;
        }
        Ok(())
    }

    fn reference(&self, full_name: &str) -> PathBuf {
        self.dir.join("refs").join(format!("{}.json", slug(Path::new(full_name))))
    }

    fn lock(&self, name: &str, how: FlockArg) -> io::Result<Flock<File>> {
        let file = File::options().create(true).truncate(false).write(true).open(self.dir.join(name))?;
        Flock::lock(file, how).map_err(|(_, e)| e.into())
    }
}

fn entries(dir: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(dir) {
        Ok(list) => list.map(|entry| Ok(entry?.path())).collect(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(e),
    }
}

/// A name in its one spelling: with a tag, `latest` if none was given.
pub fn full_name(name: &str) -> Result<String, ImageError> {
    let bad = || ImageError::BadName(name.to_owned());
    if name.is_empty() || name.len() > 255 {
        return Err(bad());
    }
    // A colon before the last slash is a registry's port.
    let after_slash = name.rfind('/').map_or(0, |at| at + 1);
    let (path, tag) = match name[after_slash..].find(':') {
        Some(at) => (&name[..after_slash + at], &name[after_slash + at + 1..]),
        None => (name, "latest"),
    };
    let tag_ok = (1..=128).contains(&tag.len())
        && tag.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
        && !tag.starts_with(['.', '-']);
    let mut parts = path.split('/').enumerate();
    let part_ok = |(at, part): (usize, &str)| {
        let host = at == 0 && path.contains('/');
        let tame = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b);
        let (body, port) = match part.split_once(':') {
            Some((body, port)) if host => (body, Some(port)),
            _ => (part, None),
        };
        let ends = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_alphanumeric());
        body.bytes().all(tame)
            && ends(body.bytes().next())
            && ends(body.bytes().last())
            && port.is_none_or(|port| port.parse::<u16>().is_ok())
    };
    if tag_ok && parts.all(part_ok) { Ok(format!("{path}:{tag}")) } else { Err(bad()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_spelling() {
        let full = |name| full_name(name).unwrap();
        assert_eq!(full("echo"), "echo:latest");
        assert_eq!(full("echo:1.0"), "echo:1.0");
        assert_eq!(full("localhost:5000/team/echo"), "localhost:5000/team/echo:latest");
        assert_eq!(full("example.test/echo:v1"), "example.test/echo:v1");
        for bad in ["", ":", "a:", "A", "../x", "a//b", "/a", "a/", "a:b:c", "a b", "a:.x", "x/y:5000/z", "a\n"] {
            assert!(full_name(bad).is_err(), "{bad:?}");
        }
    }
}
