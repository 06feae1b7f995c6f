//! Images from disk into the store: OCI layouts, OCI archives and docker archives. Every blob is checked against the
//! size and digest that vouch for it before it counts; nothing is visible in the store before all of it is there.

use crate::limits::{
    ARCHIVE_LINKS_MAX, IMAGE_BYTES_MAX, IMAGE_ENTRIES_MAX, IMAGE_LAYERS_MAX, IMAGE_RATIO_FREE, IMAGE_RATIO_MAX,
    INDEX_DEPTH_MAX, MANIFEST_MAX,
};
use crate::sandbox::image::registry::reference::{full_name, is_sha256_hex};
use crate::sandbox::image::unpack::{Allowance, Metered, unpack};
use crate::sandbox::image::{ImageError, Images, StoredImage, Writing};
use oci_spec::image::{Descriptor, ImageConfiguration, ImageIndex, ImageManifest, Os};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufReader, Cursor, Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use tar::EntryType;

const TAG: &str = "org.opencontainers.image.ref.name";

impl Images {
    /// Imports the image at `path` (a layout directory, `DIR:TAG`, or an archive) under `name`. `said` hears of each
    /// layer that is unpacked.
    pub fn import(&self, path: &str, name: &str, said: &mut dyn FnMut(&str)) -> Result<StoredImage, ImageError> {
        let name = full_name(name)?;
        let writing = self.write()?;
        let (source, tag) = ImageSource::open(path, &self.tmp())?;
        let found = source.find(path, tag)?;
        let mut told = |step: LayerStep| {
            let doing = if step.is_there { "is there" } else { "unpacking" };
            said(&format!(
                "layer {}/{} {} {doing}",
                step.index + 1,
                found.layers.len(),
                found.layers[step.index].content
            ));
        };
        self.import_writing(&writing, &source, &found, &name, &mut told)
    }

    /// As `import`, for an image that was found before; waits for its turn.
    pub fn import_found(
        &self,
        source: &ImageSource,
        found: &Found,
        name: &str,
        said: &mut dyn FnMut(LayerStep),
    ) -> Result<StoredImage, ImageError> {
        self.import_writing(&self.write()?, source, found, name, said)
    }

    fn import_writing(
        &self,
        writing: &Writing,
        source: &ImageSource,
        found: &Found,
        name: &str,
        said: &mut dyn FnMut(LayerStep),
    ) -> Result<StoredImage, ImageError> {
        let mut allowance = Allowance::default();
        for (index, layer) in found.layers.iter().enumerate() {
            let home = self.layer(&layer.content);
            let is_there = home.is_dir();
            said(LayerStep { index, is_there });
            if !is_there {
                self.add_layer(source, layer, &home, &mut allowance)?;
            }
        }
        let image = StoredImage {
            name: name.to_owned(),
            digest: found.digest.clone(),
            layers: found.layers.iter().map(|l| l.content.clone()).collect(),
            config: found.config.config().clone().unwrap_or_default(),
            packed_bytes: found.layers.iter().map(|l| l.size).sum(),
            imported_unix_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64),
            signed_by: found.signed_by.clone(),
        };
        self.commit(writing, &image)?;
        // The name may have stood for another image before.
        self.remove_unused(writing)?;
        Ok(image)
    }

    fn add_layer(
        &self,
        source: &ImageSource,
        layer: &Layer,
        home: &Path,
        allowance: &mut Allowance,
    ) -> Result<(), ImageError> {
        let io = |e| ImageError::io("unpacking a layer", e);
        let new = self.tmp().join("layer");
        fs::create_dir(&new).map_err(io)?;
        let done = unpack_checked(source, layer, &new, allowance);
        if let Err(error) = done {
            // The next import would do it too; a bomb should not wait for that.
            let _ = crate::sandbox::container::within::remove_tree(&new);
            return Err(error);
        }
        let dir = File::open(&new).map_err(io)?;
        // A layer that is known by its digest must be whole even after a power cut.
        // SAFETY: the descriptor is open.
        if unsafe { libc::syncfs(dir.as_raw_fd()) } != 0 {
            return Err(io(io::Error::last_os_error()));
        }
        fs::rename(&new, home).map_err(io)
    }
}

fn unpack_checked(
    source: &ImageSource,
    layer: &Layer,
    dir: &Path,
    allowance: &mut Allowance,
) -> Result<(), ImageError> {
    let (blob, size) = source.blob(&layer.blob)?;
    if size != layer.size {
        return Err(mismatch(&layer.blob, layer.size, size));
    }
    let unreadable = |e: io::Error| ImageError::Unreadable(e.to_string());
    let mut packed = Metered::new(blob);
    let most = size.saturating_mul(IMAGE_RATIO_MAX).saturating_add(IMAGE_RATIO_FREE).min(allowance.bytes);
    let mut here = Allowance { bytes: most, entries: allowance.entries };
    let mut plain = Metered::new(decompress(&mut packed).map_err(unreadable)?.take(most));
    unpack(&mut plain, dir, &mut here)?;
    let (_, content) = plain.finish().map_err(unreadable)?;
    let (_, digest) = packed.finish().map_err(unreadable)?;
    if let Some(expected) = &layer.digest
        && *expected != digest
    {
        return Err(mismatch(&layer.blob, expected, digest));
    }
    if content != layer.content {
        return Err(mismatch(&format!("the content of {}", layer.blob), &layer.content, content));
    }
    allowance.bytes -= most - here.bytes;
    allowance.entries = here.entries;
    Ok(())
}

/// By the first bytes: media types are often wrong, and the digests tell the truth in the end.
fn decompress<'a>(mut from: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let mut magic = Vec::new();
    from.by_ref().take(4).read_to_end(&mut magic)?;
    let whole = Cursor::new(magic.clone()).chain(from);
    Ok(match magic[..] {
        [0x1f, 0x8b, ..] => Box::new(flate2::read::MultiGzDecoder::new(BufReader::new(whole))),
        [0x28, 0xb5, 0x2f, 0xfd] => Box::new(zstd::stream::read::Decoder::new(whole)?),
        _ => Box::new(whole),
    })
}

/// What an image is made of, before any of it is unpacked.
pub struct Found {
    pub digest: String,
    pub config: ImageConfiguration,
    pub layers: Vec<Layer>,
    /// None of what comes from a disk.
    pub signed_by: Option<String>,
}

pub struct Layer {
    /// Its name in the source.
    pub blob: String,
    pub size: u64,
    /// Of the blob as it is packed; docker archives do not tell it.
    pub digest: Option<String>,
    /// Of the tar stream in it (the diff id).
    pub content: String,
}

/// An import has come to this layer.
pub struct LayerStep {
    pub index: usize,
    /// Another image has brought it.
    pub is_there: bool,
}

/// Named blobs: a directory, or the members of a tar file.
pub enum ImageSource {
    Directory(PathBuf),
    Archive { file: File, members: HashMap<String, Member> },
}

pub enum Member {
    File {
        at: u64,
        size: u64,
    },
    /// Old docker archives link layers that occur twice.
    Link(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerManifest {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

impl ImageSource {
    /// `tmp`: where a packed archive is unpacked to be read.
    fn open(path: &str, tmp: &Path) -> Result<(ImageSource, Option<String>), ImageError> {
        let (file, tag) = match path.rsplit_once(':') {
            Some((dir, tag)) if !Path::new(path).exists() => (dir, Some(tag.to_owned())),
            _ => (path, None),
        };
        let not_an_image = |e: io::Error| ImageError::NotAnImage { path: path.to_owned(), why: e.to_string() };
        if fs::metadata(file).map_err(not_an_image)?.is_dir() {
            return Ok((ImageSource::Directory(PathBuf::from(file)), tag));
        }
        let file = File::open(file).and_then(|file| plain_archive(file, tmp)).map_err(not_an_image)?;
        let members = members(&file).map_err(not_an_image)?;
        Ok((ImageSource::Archive { file, members }, tag))
    }

    fn has(&self, name: &str) -> bool {
        match self {
            ImageSource::Directory(dir) => dir.join(name).is_file(),
            ImageSource::Archive { members, .. } => members.contains_key(name),
        }
    }

    /// A blob and its size.
    fn blob(&self, name: &str) -> Result<(Box<dyn Read + '_>, u64), ImageError> {
        let missing = |e: io::Error| ImageError::Unreadable(format!("{name}: {e}"));
        match self {
            ImageSource::Directory(dir) => {
                let file = File::open(dir.join(name)).map_err(missing)?;
                let size = file.metadata().map_err(missing)?.len();
                Ok((Box::new(file), size))
            }
            ImageSource::Archive { file, members } => {
                let (at, size) = member(members, name).ok_or_else(|| missing(io::ErrorKind::NotFound.into()))?;
                let mut file = file;
                file.seek(SeekFrom::Start(at)).map_err(missing)?;
                Ok((Box::new(file.take(size)), size))
            }
        }
    }

    fn document(&self, name: &str) -> Result<Vec<u8>, ImageError> {
        let (blob, size) = self.blob(name)?;
        if size > MANIFEST_MAX {
            return Err(ImageError::TooLarge("bytes in a document"));
        }
        let mut text = Vec::new();
        blob.take(MANIFEST_MAX).read_to_end(&mut text).map_err(|e| ImageError::Unreadable(format!("{name}: {e}")))?;
        Ok(text)
    }

    /// The document that a descriptor vouches for.
    fn described<T: DeserializeOwned>(&self, descriptor: &Descriptor) -> Result<T, ImageError> {
        let name = blob_name(descriptor)?;
        let text = self.document(&name)?;
        if text.len() as u64 != descriptor.size() {
            return Err(mismatch(&name, descriptor.size(), text.len()));
        }
        check_digest(&name, descriptor.digest().as_ref(), &text)?;
        parse(&name, &text)
    }

    fn find(&self, path: &str, tag: Option<String>) -> Result<Found, ImageError> {
        let why = |why: &str| ImageError::NotAnImage { path: path.to_owned(), why: why.to_owned() };
        if self.has("index.json") && self.has("oci-layout") {
            return self.find_oci(tag.as_deref()).map_err(|e| e.of(path));
        }
        if self.has("manifest.json") {
            return self.find_docker(tag.as_deref()).map_err(|e| e.of(path));
        }
        Err(why("neither an OCI layout nor a docker archive"))
    }

    fn find_oci(&self, tag: Option<&str>) -> Result<Found, ImageError> {
        let index: ImageIndex = parse("index.json", &self.document("index.json")?)?;
        let mut descriptor = choose(index.manifests(), tag)?;
        for _ in 0..INDEX_DEPTH_MAX {
            if !is_index(descriptor.media_type().as_ref()) {
                return self.find_manifest(&descriptor);
            }
            let inner: ImageIndex = self.described(&descriptor)?;
            descriptor = choose(inner.manifests(), None)?;
        }
        Err(ImageError::Unreadable("its indexes are nested too deep".into()))
    }

    /// The configuration that a manifest names.
    pub fn config_of(&self, descriptor: &Descriptor) -> Result<Descriptor, ImageError> {
        let manifest: ImageManifest = self.described(descriptor)?;
        Ok(manifest.config().clone())
    }

    /// The digests of all that a manifest names.
    pub fn named_by(&self, descriptor: &Descriptor) -> Result<Vec<String>, ImageError> {
        let manifest: ImageManifest = self.described(descriptor)?;
        let named = manifest.layers().iter().chain([manifest.config()]);
        named.map(|blob| blob_name(blob).map(|_| blob.digest().to_string())).collect()
    }

    pub fn find_manifest(&self, descriptor: &Descriptor) -> Result<Found, ImageError> {
        let manifest: ImageManifest = self.described(descriptor)?;
        let config: ImageConfiguration = self.described(manifest.config())?;
        let contents = contents(&config, manifest.layers().len())?;
        let layers = manifest.layers().iter().zip(contents).map(|(layer, content)| {
            Ok(Layer { blob: blob_name(layer)?, size: layer.size(), digest: Some(layer.digest().to_string()), content })
        });
        let layers = layers.collect::<Result<_, ImageError>>()?;
        Ok(Found { digest: descriptor.digest().to_string(), config, layers, signed_by: None })
    }

    fn find_docker(&self, tag: Option<&str>) -> Result<Found, ImageError> {
        let list: Vec<DockerManifest> = parse("manifest.json", &self.document("manifest.json")?)?;
        let tagged = |m: &DockerManifest| tag.is_none_or(|tag| m.repo_tags.iter().flatten().any(|t| has_tag(t, tag)));
        let mut fitting = list.iter().filter(|m| tagged(m));
        let (Some(manifest), None) = (fitting.next(), fitting.next()) else {
            let tags: Vec<_> = list.iter().flat_map(|m| m.repo_tags.iter().flatten()).collect();
            return Err(ImageError::Unreadable(format!("choose one of its images with PATH:TAG: {tags:?}")));
        };
        let text = self.document(&manifest.config)?;
        let digest = Metered::new(&text[..]).finish().map(|(_, digest)| digest);
        let digest = digest.map_err(|e| ImageError::Unreadable(e.to_string()))?;
        // Its name is its digest, as a file or as a blob.
        let named = Path::new(&manifest.config).file_stem().and_then(|s| s.to_str()).unwrap_or_default();
        if is_sha256_hex(named) && digest != format!("sha256:{named}") {
            return Err(mismatch(&manifest.config, named, digest));
        }
        let config: ImageConfiguration = parse(&manifest.config, &text)?;
        let contents = contents(&config, manifest.layers.len())?;
        let layers = manifest.layers.iter().zip(contents).map(|(blob, content)| {
            let (_, size) = self.blob(blob)?;
            Ok(Layer { blob: blob.clone(), size, digest: None, content })
        });
        let layers = layers.collect::<Result<_, ImageError>>()?;
        Ok(Found { digest, config, layers, signed_by: None })
    }
}

impl ImageError {
    fn of(self, path: &str) -> ImageError {
        match self {
            ImageError::Unreadable(why) => ImageError::NotAnImage { path: path.to_owned(), why },
            other => other,
        }
    }
}

/// An archive that can be searched: as it is, or unpacked into a file that goes away with its last reader.
fn plain_archive(mut file: File, tmp: &Path) -> io::Result<File> {
    let mut magic = [0; 4];
    let n = file.read(&mut magic)?;
    file.rewind()?;
    if !matches!(magic[..n], [0x1f, 0x8b, ..] | [0x28, 0xb5, 0x2f, 0xfd]) {
        return Ok(file);
    }
    let name = tmp.join("archive");
    let mut plain = File::options().read(true).write(true).create_new(true).open(&name)?;
    fs::remove_file(&name)?;
    let copied = io::copy(&mut decompress(file)?.take(IMAGE_BYTES_MAX), &mut plain)?;
    if copied == IMAGE_BYTES_MAX {
        return Err(io::Error::other("it is larger than allowed"));
    }
    plain.rewind()?;
    Ok(plain)
}

fn members(file: &File) -> io::Result<HashMap<String, Member>> {
    let mut members = HashMap::new();
    let mut archive = tar::Archive::new(file);
    for entry in archive.entries_with_seek()? {
        let entry = entry?;
        let name = tidy(&String::from_utf8_lossy(&entry.path_bytes()));
        let kind = entry.header().entry_type();
        let member = match (kind, entry.link_name_bytes()) {
            (EntryType::Regular | EntryType::Continuous, _) => {
                Member::File { at: entry.raw_file_position(), size: entry.size() }
            }
            (EntryType::Symlink, Some(target)) => {
                let parent = name.rsplit_once('/').map_or("", |(parent, _)| parent);
                Member::Link(tidy(&format!("{parent}/{}", String::from_utf8_lossy(&target))))
            }
            (EntryType::Link, Some(target)) => Member::Link(tidy(&String::from_utf8_lossy(&target))),
            (_, _) => continue,
        };
        members.insert(name, member);
        if members.len() as u64 > IMAGE_ENTRIES_MAX {
            return Err(io::Error::other("it has more members than allowed"));
        }
    }
    Ok(members)
}

/// A name as a key: no `.`, and `..` taken by its word. Nothing is opened by it.
fn tidy(name: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in name.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

fn member(members: &HashMap<String, Member>, name: &str) -> Option<(u64, u64)> {
    let mut name = name;
    for _ in 0..=ARCHIVE_LINKS_MAX {
        match members.get(name)? {
            Member::File { at, size } => return Some((*at, *size)),
            Member::Link(target) => name = target,
        }
    }
    None
}

/// The one manifest that is meant: by its tag, or else the only one for this machine.
pub fn choose(manifests: &[Descriptor], tag: Option<&str>) -> Result<Descriptor, ImageError> {
    let tag_of = |d: &Descriptor| d.annotations().as_ref().and_then(|a| a.get(TAG).cloned());
    let fits = |d: &&Descriptor| {
        d.platform().as_ref().is_none_or(|p| *p.os() == Os::Linux && p.architecture().to_string() == architecture())
    };
    let tagged = |d: &&Descriptor| tag.is_none_or(|tag| tag_of(d).is_some_and(|t| t == tag || has_tag(&t, tag)));
    let fitting: Vec<&Descriptor> = manifests.iter().filter(tagged).filter(fits).collect();
    let latest = || fitting.iter().find(|d| tag_of(d).as_deref() == Some("latest"));
    // Two names for one manifest are no question.
    let all_same = fitting.windows(2).all(|pair| pair[0].digest() == pair[1].digest());
    match (fitting.first(), all_same, latest()) {
        (Some(only), true, _) => Ok((*only).clone()),
        (Some(_), false, Some(latest)) => Ok((*latest).clone()),
        (Some(_), false, None) => {
            let tags: Vec<String> = fitting.iter().filter_map(|d| tag_of(d)).collect();
            Err(ImageError::Unreadable(format!("it holds several images, choose one with PATH:TAG: {tags:?}")))
        }
        (None, _, _) => Err(ImageError::Unreadable(match tag {
            Some(tag) => format!("it holds no image tagged {tag:?} for linux/{}", architecture()),
            None => format!("it holds no image for linux/{}", architecture()),
        })),
    }
}

pub fn is_index(media_type: &str) -> bool {
    media_type.contains("image.index") || media_type.contains("manifest.list")
}

fn has_tag(full: &str, tag: &str) -> bool {
    full == tag || full.rsplit_once(':').is_some_and(|(_, last)| last == tag)
}

/// This machine, in the words of images.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

/// The digests of the unpacked layers, one for each layer.
fn contents(config: &ImageConfiguration, layers: usize) -> Result<Vec<String>, ImageError> {
    let (os, arch) = (config.os().to_string(), config.architecture().to_string());
    if os != "linux" || arch != architecture() {
        return Err(ImageError::Unreadable(format!("it is for {os}/{arch}, this is linux/{}", architecture())));
    }
    let contents = config.rootfs().diff_ids().clone();
    if layers > IMAGE_LAYERS_MAX {
        return Err(ImageError::TooLarge("layers"));
    }
    if contents.len() != layers {
        return Err(mismatch("the number of layers", contents.len(), layers));
    }
    for content in &contents {
        if !content.strip_prefix("sha256:").is_some_and(is_sha256_hex) {
            return Err(ImageError::Unreadable(format!("{content:?} is no SHA-256 digest")));
        }
    }
    Ok(contents)
}

fn blob_name(descriptor: &Descriptor) -> Result<String, ImageError> {
    match descriptor.as_digest_sha256() {
        Some(hex) if is_sha256_hex(hex) => Ok(format!("blobs/sha256/{hex}")),
        _ => Err(ImageError::Unreadable(format!("{} is no SHA-256 digest", descriptor.digest()))),
    }
}

fn check_digest(name: &str, expected: &str, text: &[u8]) -> Result<(), ImageError> {
    let (_, found) = Metered::new(text).finish().map_err(|e| ImageError::Unreadable(e.to_string()))?;
    if found == expected { Ok(()) } else { Err(mismatch(name, expected, found)) }
}

fn parse<T: DeserializeOwned>(name: &str, text: &[u8]) -> Result<T, ImageError> {
    serde_json::from_slice(text).map_err(|e| ImageError::Unreadable(format!("{name}: {e}")))
}

fn mismatch(what: &str, expected: impl ToString, found: impl ToString) -> ImageError {
    ImageError::Mismatch { what: what.to_owned(), expected: expected.to_string(), found: found.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::container::plan::Layout;
    use serde_json::{Value, json};

    /// A data directory and an OCI layout beside it.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path = std::env::temp_dir().join(format!("stdiod-import-{}-{name}", std::process::id()));
            fs::create_dir_all(path.join("oci/blobs/sha256")).unwrap();
            fs::write(path.join("oci/oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
            Scratch(path)
        }

        fn images(&self) -> Images {
            Images::of(&Layout { data_dir: self.0.join("data"), mark: "m".into() })
        }

        fn blob(&self, kind: &str, bytes: &[u8]) -> Value {
            let (size, digest) = Metered::new(bytes).finish().unwrap();
            fs::write(self.0.join("oci/blobs").join(digest.replace(':', "/")), bytes).unwrap();
            json!({ "mediaType": format!("application/vnd.oci.image.{kind}"), "digest": digest, "size": size })
        }

        /// A manifest of one layer with one file; what it says of the layer may be changed on the way.
        fn manifest(&self, arch: &str, content: &[u8], lie: impl Fn(&mut Value, &mut String)) -> Value {
            let mut tar = tar::Builder::new(Vec::new());
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            header.set_uid(u64::from(nix::unistd::Uid::current().as_raw()));
            header.set_gid(u64::from(nix::unistd::Gid::current().as_raw()));
            tar.append_data(&mut header, "file", content).unwrap();
            let tar = tar.into_inner().unwrap();
            let (_, mut content) = Metered::new(&tar[..]).finish().unwrap();
            let mut layer = self.blob("layer.v1.tar", &tar);
            lie(&mut layer, &mut content);
            let config = json!({
                "architecture": arch, "os": "linux", "config": { "Entrypoint": ["/file"] },
                "rootfs": { "type": "layers", "diff_ids": [content] }, "history": [],
            });
            let config = self.blob("config.v1+json", config.to_string().as_bytes());
            let manifest = json!({ "schemaVersion": 2, "config": config, "layers": [layer] });
            self.blob("manifest.v1+json", manifest.to_string().as_bytes())
        }

        fn import(&self, manifests: &[Value], tag: &str) -> Result<StoredImage, ImageError> {
            let index = json!({ "schemaVersion": 2, "manifests": manifests });
            fs::write(self.0.join("oci/index.json"), index.to_string()).unwrap();
            self.images().import(&format!("{}{tag}", self.0.join("oci").display()), "test", &mut |_| {})
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn tagged(mut manifest: Value, tag: &str) -> Value {
        manifest["annotations"] = json!({ TAG: tag });
        manifest
    }

    #[test]
    fn an_image_is_known_when_it_is_whole_and_gone_with_its_layers() {
        let scratch = Scratch::new("whole");
        let images = scratch.images();
        assert!(images.resolve("test").unwrap().is_none());
        let manifest = scratch.manifest(architecture(), b"one", |_, _| {});
        let image = scratch.import(std::slice::from_ref(&manifest), "").unwrap();
        assert_eq!(images.resolve("test:latest").unwrap(), Some(image.clone()));
        assert_eq!(fs::read(images.layer_dirs(&image)[0].join("file")).unwrap(), b"one");
        assert_eq!(image.config.entrypoint().as_deref(), Some(&["/file".to_owned()][..]));

        // Another image under the same name: the layer that nothing needs any more goes.
        let other = scratch.manifest(architecture(), b"two", |_, _| {});
        let second = scratch.import(&[tagged(manifest, "a"), tagged(other, "b")], ":b").unwrap();
        assert!(!images.layer_dirs(&image)[0].exists() && images.layer_dirs(&second)[0].exists());

        // An instance stands on it: it is not removed, and a new image under its name leaves the layer until the bundle
        // is gone.
        let bundle = scratch.0.join("data/run/bundles/x-1");
        fs::create_dir_all(&bundle).unwrap();
        images.claim("test", &bundle).unwrap();
        assert!(matches!(images.remove("test"), Err(ImageError::InUse(_))));
        assert!(images.prune(true).unwrap().images.is_empty());
        let third = scratch.manifest(architecture(), b"three", |_, _| {});
        let third = scratch.import(&[third], "").unwrap();
        assert!(images.layer_dirs(&second)[0].exists() && images.layer_dirs(&third)[0].exists());
        fs::remove_dir_all(&bundle).unwrap();
        images.remove_unused(&images.write().unwrap()).unwrap();
        assert!(!images.layer_dirs(&second)[0].exists());
        assert!(images.remove("test").unwrap());
        assert!(!images.layer_dirs(&third)[0].exists());
        assert!(!images.remove("test").unwrap());
    }

    #[test]
    fn a_blob_that_is_not_what_was_promised_leaves_nothing_behind() {
        let scratch = Scratch::new("lies");
        let zeros = "0".repeat(64);
        let wrong_content = |_: &mut Value, content: &mut String| *content = format!("sha256:{}", "1".repeat(64));
        let wrong_size = |layer: &mut Value, _: &mut String| layer["size"] = json!(7);
        let wrong_digest = |layer: &mut Value, _: &mut String| {
            let real = layer["digest"].as_str().unwrap().replace("sha256:", "");
            let blobs = scratch.0.join("oci/blobs/sha256");
            fs::copy(blobs.join(real), blobs.join(&zeros)).unwrap();
            layer["digest"] = json!(format!("sha256:{zeros}"));
        };
        let escape = |_: &mut Value, content: &mut String| *content = "sha256:../../x".into();
        let manifests = [
            scratch.manifest(architecture(), b"x", wrong_content),
            scratch.manifest(architecture(), b"x", wrong_size),
            scratch.manifest(architecture(), b"x", wrong_digest),
            scratch.manifest(architecture(), b"x", escape),
            scratch.manifest("s390x", b"x", |_, _| {}),
        ];
        for manifest in manifests {
            assert!(scratch.import(std::slice::from_ref(&manifest), "").is_err(), "{manifest}");
            assert!(scratch.images().resolve("test").unwrap().is_none());
            for part in ["layers", "tmp", "refs"] {
                assert_eq!(fs::read_dir(scratch.0.join("data/images").join(part)).unwrap().count(), 0, "{part}");
            }
        }
    }

    #[test]
    fn the_manifest_for_this_machine_is_chosen_and_doubt_is_an_error() {
        let scratch = Scratch::new("choose");
        let ours = |mut manifest: Value, arch: &str| {
            manifest["platform"] = json!({ "architecture": arch, "os": "linux" });
            manifest
        };
        let foreign = ours(scratch.manifest("s390x", b"far", |_, _| {}), "s390x");
        let here = ours(scratch.manifest(architecture(), b"here", |_, _| {}), architecture());
        let image = scratch.import(&[foreign.clone(), here.clone()], "").unwrap();
        assert_eq!(image.digest, here["digest"].as_str().unwrap());
        assert!(scratch.import(&[foreign], "").is_err());
        let other = scratch.manifest(architecture(), b"other", |_, _| {});
        let both = [tagged(here, "a"), tagged(other, "b")];
        assert!(scratch.import(&both, "").unwrap_err().to_string().contains("PATH:TAG"));
        assert!(scratch.import(&both, ":a").is_ok());
        assert!(scratch.import(&both, ":c").is_err());
    }
}
