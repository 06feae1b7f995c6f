//! The image store: names → layers and configuration, under `<data_dir>/images`. A layer is unpacked once, by the
//! digest of its content, and shared by all images and instances; a name is one small file, replaced atomically. So a
//! crash at any moment leaves either the old state or the new, and rubbish only in `tmp`, which the next import clears.

pub mod import;
pub mod registry;
pub mod unpack;

use crate::model::instance::{LaunchFault, LaunchFaultKind};
use crate::sandbox::container::plan::{Layout, fault};
use crate::sandbox::container::within::{remove_tree, slug};
use crate::sandbox::image::registry::reference::full_name;
use nix::fcntl::{Flock, FlockArg};
use oci_spec::image::Config;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// In a bundle: the layers its instance stands on, one per line, and the image's name.
const CLAIM: &str = "layers";
const CLAIM_NAME: &str = "image";

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
    /// A running instance stands on it.
    InUse(String),
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
            ImageError::BadName(name) => {
                write!(f, "{name:?} is no image name: write NAME[:TAG], REGISTRY/NAME[:TAG] or REGISTRY/NAME@sha256:…")
            }
            ImageError::NotAnImage { path, why } => write!(f, "{path} is no image: {why}"),
            ImageError::Unreadable(why) => write!(f, "the image cannot be read: {why}"),
            ImageError::Mismatch { what, expected, found } => {
                write!(f, "{what} is not what the image says: expected {expected}, found {found}")
            }
            ImageError::Refused { entry, why } => write!(f, "the image has an entry {entry:?} that is refused: {why}"),
            ImageError::TooLarge(what) => write!(f, "the image has more {what} than allowed"),
            ImageError::InUse(name) => {
                write!(f, "{name} is in use by a running server; stop the server first (`stdiod ls` shows them)")
            }
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
    /// The key that had signed it when it came, if one was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signed_by: Option<String>,
}

pub struct Images {
    dir: PathBuf,
    bundles: PathBuf,
}

/// What a prune has removed.
#[derive(Debug, Default)]
pub struct Pruned {
    pub images: Vec<String>,
    pub partial_bytes: u64,
}

enum Forgotten {
    Yes,
    NotThere,
    InUse,
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
        let broken = |e: io::Error| fault(LaunchFaultKind::Rootfs, "claiming the image", e);
        let _lock = match self.lock("refs.lock", FlockArg::LockShared) {
            // Nothing was ever brought here.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(missing()),
            locked => locked.map_err(broken)?,
        };
        let image = self.resolve(name).map_err(|e| not_found(e.to_string()))?.ok_or_else(missing)?;
        fs::write(bundle.join(CLAIM), image.layers.join("\n")).map_err(broken)?;
        fs::write(bundle.join(CLAIM_NAME), &image.name).map_err(broken)?;
        Ok(image)
    }

    /// The names of the images that running instances stand on.
    pub fn in_use(&self) -> Result<HashSet<String>, ImageError> {
        let bundles = entries(&self.bundles).map_err(|e| ImageError::io("listing running instances", e))?;
        Ok(bundles.iter().filter_map(|bundle| fs::read_to_string(bundle.join(CLAIM_NAME)).ok()).collect())
    }

    /// Forgets a name, and removes the layers that neither another name nor an instance uses. False: no such image.
    pub fn remove(&self, name: &str) -> Result<bool, ImageError> {
        let name = full_name(name)?;
        let writing = self.write()?;
        match self.forget(&name)? {
            Forgotten::Yes => self.remove_unused(&writing).map(|()| true),
            Forgotten::NotThere => Ok(false),
            Forgotten::InUse => Err(ImageError::InUse(name)),
        }
    }

    /// Removes what nobody needs: unused layers, downloads that were not finished, and if `all` is said every image
    /// that no running instance uses. The names of those, and the bytes of unfinished downloads.
    pub fn prune(&self, all: bool) -> Result<Pruned, ImageError> {
        let writing = self.write()?;
        let mut pruned = Pruned::default();
        for image in self.list()?.into_iter().filter(|_| all) {
            if let Forgotten::Yes = self.forget(&image.name)? {
                pruned.images.push(image.name);
            }
        }
        self.remove_unused(&writing)?;
        let io = |e| ImageError::io("removing unfinished downloads", e);
        for blob in entries(&self.pull_dir().map_err(io)?).map_err(io)? {
            // One that is just coming has its lock, and stays.
            let Ok(file) = File::open(&blob) else { continue };
            let Ok(file) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else { continue };
            pruned.partial_bytes += file.metadata().map_or(0, |meta| meta.len());
            fs::remove_file(&blob).map_err(io)?;
        }
        Ok(pruned)
    }

    /// With the claims held still: no instance can begin to stand on it meanwhile.
    fn forget(&self, full_name: &str) -> Result<Forgotten, ImageError> {
        let io = |e| ImageError::io("removing the image's record", e);
        let _lock = self.lock("refs.lock", FlockArg::LockExclusive).map_err(io)?;
        if self.in_use()?.contains(full_name) {
            return Ok(Forgotten::InUse);
        }
        match fs::remove_file(self.reference(full_name)) {
            Ok(()) => Ok(Forgotten::Yes),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Forgotten::NotThere),
            Err(e) => Err(io(e)),
        }
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

    /// The layout that pulls fill, and where its blobs are.
    pub fn pull_layout(&self) -> PathBuf {
        self.dir.join("pull")
    }

    pub fn pull_dir(&self) -> io::Result<PathBuf> {
        let blobs = self.pull_layout().join("blobs/sha256");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&blobs)?;
        Ok(blobs)
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

    /// An image that is here, and of which it has just been seen who has signed it.
    pub fn vouch(&self, known: StoredImage, signed_by: Option<String>) -> Result<StoredImage, ImageError> {
        let writing = self.write()?;
        let image = StoredImage { signed_by, ..known };
        // Another one may have got its name meanwhile.
        if self.resolve(&image.name)?.is_some_and(|now| now.digest == image.digest) {
            self.commit(&writing, &image)?;
        }
        Ok(image)
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
