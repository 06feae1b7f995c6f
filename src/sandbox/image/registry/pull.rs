//! One pull from its order to the committed image, and the child of the daemon that does it: resolves the name, fetches
//! what the store lacks with a few downloads at once, imports. Says one `PullStep` per step; the last is `Done` or
//! `Failed`. Invariant: the store changes only by `Images::import_found`, under its lock and all at once.

use crate::limits::{
    DOWNLOADS_AT_ONCE, IMAGE_BYTES_MAX, INDEX_DEPTH_MAX, LAUNCH_MESSAGE_MAX, MANIFEST_MAX, PARTS_KEPT, PULL_ATTEMPTS,
    PULL_PROGRESS_EVERY, PULL_TIME_MAX,
};
use crate::model::instance::{LayerState, PullStep};
use crate::sandbox::container::launch::{cut, die_with_parent};
use crate::sandbox::image::import::{Found, ImageSource, LayerStep, choose, is_index};
use crate::sandbox::image::registry::auth;
use crate::sandbox::image::registry::fetch::{Wanted, fetch, hex};
use crate::sandbox::image::registry::http::Transport;
use crate::sandbox::image::registry::proxy::Proxies;
use crate::sandbox::image::registry::reference::{Version, full_name, is_sha256_hex, reference};
use crate::sandbox::image::registry::session::Session;
use crate::sandbox::image::registry::{PullError, PullOrder, Registries};
use crate::sandbox::image::{ImageError, Images, StoredImage};
use oci_spec::image::{Descriptor, ImageIndex, MediaType};
use serde::Deserialize;
use serde::de::IgnoredAny;
use sha2::{Digest, Sha256};
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime};

pub const SUBCOMMAND: &str = "sandbox-pull";

/// For `/proc/self/exe`. Nothing in an order is secret.
pub fn args(order: &PullOrder) -> Vec<OsString> {
    vec![SUBCOMMAND.into(), serde_json::to_string(order).expect("an order is plain data").into()]
}

/// The child: its steps are lines on stdout.
pub fn main(args: &[OsString]) -> i32 {
    let order: Option<PullOrder> = match args {
        [order] => order.to_str().and_then(|text| serde_json::from_str(text).ok()),
        _ => None,
    };
    let Some(order) = order else {
        eprintln!("stdiod {SUBCOMMAND}: started by the daemon, not by hand");
        return 2;
    };
    if die_with_parent(order.parent_pid).is_err() {
        return 1;
    }
    // Whatever a registry thinks of to keep us waiting between two blobs: the kernel ends it.
    nix::unistd::alarm::set(2 * PULL_TIME_MAX.as_secs() as u32);
    let mut out = std::io::stdout().lock();
    // Nobody listens any more: then nobody waits for the image either, but what has come is kept.
    let mut say = |step: &PullStep| _ = serde_json::to_writer(&mut out, step).map(|()| out.write_all(b"\n"));
    match pull(&Images::of(&order.layout), &order.image, &order.registries, &mut say) {
        Ok(image) => {
            say(&PullStep::Done { digest: image.digest });
            0
        }
        Err(error) => {
            let mut fault = error.to_fault(&order.image);
            cut(&mut fault.message, LAUNCH_MESSAGE_MAX);
            say(&PullStep::Failed(fault));
            1
        }
    }
}

/// Brings the image of that name, or finds that what is here is what the registry has.
pub fn pull(
    images: &Images,
    name: &str,
    registries: &Registries,
    said: &mut dyn FnMut(&PullStep),
) -> Result<StoredImage, PullError> {
    let full = full_name(name)?;
    let no_registry = || PullError::NoRegistry { image: name.to_owned() };
    let reference = reference(name, registries.default.as_deref())?.ok_or_else(no_registry)?;
    // Before anybody is asked: a registry that is not on the list hears nothing of us.
    registries.trust.admits(name, registries.default.as_deref())?;
    let files = auth::files(|name| std::env::var_os(name).map(Into::into), nix::unistd::geteuid().as_raw());
    let credentials = auth::find(&files, &reference.registry, &reference.repository)?;
    let proxies = Proxies::of(|name| std::env::var(name).ok());
    let proxies = proxies.map_err(|why| PullError::protocol(&reference.registry, &why))?;
    let transport = Transport::new(&registries.insecure, proxies);
    let session = Session::new(&transport, &reference, credentials);

    let blobs = images.pull_dir().map_err(|e| PullError::io("opening the image store", e))?;
    forget_old_parts(&blobs);
    let (manifest, named) = resolve(&session, &reference.version, &blobs)?;
    let signed_by = registries.trust.signer(&session, &named)?;
    let source = ImageSource::Directory(images.pull_layout());
    let digest = manifest.digest().to_string();
    if let Some(here) = images.resolve(&full)?
        && here.digest == digest
        && images.layer_dirs(&here).iter().all(|dir| dir.is_dir())
    {
        said(&PullStep::Resolved { digest: digest.clone(), layers: here.layers.len(), bytes: 0 });
        // Also what a pull that was killed at its very end has left.
        forget_blobs(&blobs, &source, &manifest);
        if signed_by.is_some() && here.signed_by != signed_by {
            return Ok(images.vouch(here, signed_by)?);
        }
        return Ok(here);
    }
    let deadline = Instant::now() + PULL_TIME_MAX;
    let config = source.config_of(&manifest)?;
    let in_time = |_: u64| check_time(deadline);
    fetch(&session, &blobs, &wanted(&config, MANIFEST_MAX)?, &in_time)?;
    let found = Found { signed_by, ..source.find_manifest(&manifest)? };

    for _ in 0..PULL_ATTEMPTS {
        let missing = missing_layers(images, &found)?;
        said(&PullStep::Resolved { digest: digest.clone(), layers: found.layers.len(), bytes: total(&missing) });
        download(&session, &blobs, &found, &missing, deadline, said)?;
        let mut told = |step: LayerStep| said(&unpack_step(&found, &step));
        match images.import_found(&source, &found, &full, &mut told) {
            Ok(image) => {
                forget_blobs(&blobs, &source, &manifest);
                return Ok(image);
            }
            // A layer that was here was removed while the others came, or a prune took a blob: fetch it after all.
            Err(_) if missing_blob(&blobs, images, &found) => {}
            Err(error) => {
                // Verified once and wrong now, or a layer that is refused: none of it is worth keeping.
                forget_blobs(&blobs, &source, &manifest);
                return Err(error.into());
            }
        }
    }
    let why = "its layers are removed as fast as they come; is a prune running in a loop?";
    Err(PullError::Image(ImageError::Unreadable(why.into())))
}

// --- from a name to a manifest ----------------------------------------------------------------------------------------

/// The manifest for this machine, its text verified and in `blobs`; and the digest of what the name stands for, which may be a
/// list of platforms with this manifest in it.
fn resolve(session: &Session<'_>, version: &Version, blobs: &Path) -> Result<(Descriptor, String), PullError> {
    let (mut text, claimed) = session.manifest(version.text())?;
    let mut digest = digest_of(&text);
    let expected = match version {
        Version::Digest(digest) => Some(digest.clone()),
        Version::Tag(_) => claimed.filter(|claimed| claimed.starts_with("sha256:")),
    };
    check(&format!("manifest {}", version.text()), expected.as_deref(), &digest)?;
    let named = digest.clone();
    for _ in 0..INDEX_DEPTH_MAX {
        let document: Document = serde_json::from_slice(&text)
            .map_err(|e| PullError::Image(ImageError::Unreadable(format!("its manifest: {e}"))))?;
        if document.schema_version != Some(2) {
            let why =
                "its manifest is of schema 1, which has no verifiable layers; push the image again with a newer tool";
            return Err(PullError::Image(ImageError::Unreadable(why.into())));
        }
        let media_type = document.media_type.unwrap_or_default();
        // Old OCI indexes have no media type; but only an index has manifests.
        if !is_index(&media_type) && document.manifests.is_none() {
            let size = text.len() as u64;
            let name = digest.strip_prefix("sha256:").unwrap_or(&digest);
            fs::write(blobs.join(name), &text).map_err(|e| PullError::io("writing the manifest", e))?;
            let digest = oci_spec::image::Digest::from_str(&digest)
                .map_err(|e| PullError::Image(ImageError::Unreadable(e.to_string())))?;
            return Ok((Descriptor::new(media_type.as_str().into(), size, digest), named));
        }
        let index: ImageIndex = serde_json::from_slice(&text)
            .map_err(|e| PullError::Image(ImageError::Unreadable(format!("its index: {e}"))))?;
        let chosen = choose(index.manifests(), None)?;
        let next = wanted(&chosen, MANIFEST_MAX)?;
        (text, _) = session.manifest(&next.digest)?;
        digest = digest_of(&text);
        check("its manifest", Some(&next.digest), &digest)?;
        check("the size of its manifest", Some(&next.size.to_string()), &text.len().to_string())?;
    }
    Err(PullError::Image(ImageError::Unreadable("its indexes are nested too deep".into())))
}

/// As much of a document as tells what it is. The rest is not kept: a registry could make it take a hundred times its size.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    schema_version: Option<u64>,
    media_type: Option<String>,
    manifests: Option<IgnoredAny>,
}

fn check(what: &str, expected: Option<&str>, found: &str) -> Result<(), PullError> {
    match expected {
        Some(expected) if expected != found => Err(PullError::Image(ImageError::Mismatch {
            what: what.to_owned(),
            expected: expected.to_owned(),
            found: found.to_owned(),
        })),
        Some(_) | None => Ok(()),
    }
}

fn digest_of(text: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(text)))
}

fn wanted(descriptor: &Descriptor, size_max: u64) -> Result<Wanted, PullError> {
    let digest = descriptor.digest().to_string();
    if !digest.strip_prefix("sha256:").is_some_and(is_sha256_hex) {
        return Err(PullError::Image(ImageError::Unreadable(format!("{digest} is no SHA-256 digest"))));
    }
    if descriptor.size() > size_max {
        return Err(PullError::Image(ImageError::TooLarge("bytes")));
    }
    Ok(Wanted { digest, size: descriptor.size() })
}

// --- layers -----------------------------------------------------------------------------------------------------------

/// A layer to fetch, and its place in the image.
struct Missing {
    index: usize,
    wanted: Wanted,
}

fn missing_layers(images: &Images, found: &Found) -> Result<Vec<Missing>, PullError> {
    let mut seen = HashSet::new();
    let mut missing = Vec::new();
    for (index, layer) in found.layers.iter().enumerate() {
        let digest = layer.digest.clone().unwrap_or_default();
        if !images.layer(&layer.content).is_dir() && seen.insert(digest.clone()) {
            missing.push(Missing { index, wanted: Wanted { digest, size: layer.size } });
        }
    }
    // Before the first byte: an image that cannot be unpacked need not be downloaded.
    if missing.iter().map(|m| m.wanted.size).try_fold(0u64, u64::checked_add).is_none_or(|sum| sum > IMAGE_BYTES_MAX) {
        return Err(PullError::Image(ImageError::TooLarge("bytes")));
    }
    Ok(missing)
}

fn total(missing: &[Missing]) -> u64 {
    missing.iter().map(|m| m.wanted.size).sum()
}

/// Fetches all of them, a few at once. The first that fails ends the others; what they have stays as parts.
fn download(
    session: &Session<'_>,
    blobs: &Path,
    found: &Found,
    missing: &[Missing],
    deadline: Instant,
    said: &mut dyn FnMut(&PullStep),
) -> Result<(), PullError> {
    let next = AtomicUsize::new(0);
    let ended = AtomicBool::new(false);
    let failed: Mutex<Option<PullError>> = Mutex::new(None);
    let (notes, heard) = mpsc::channel::<(usize, u64)>();
    std::thread::scope(|scope| {
        for _ in 0..DOWNLOADS_AT_ONCE.min(missing.len()) {
            let notes = notes.clone();
            let (next, ended, failed) = (&next, &ended, &failed);
            scope.spawn(move || {
                while let Some((at, layer)) = take(next, missing).filter(|_| !ended.load(Ordering::Acquire)) {
                    let came = |bytes: u64| {
                        _ = notes.send((at, bytes));
                        if ended.load(Ordering::Acquire) { Err(PullError::Ended) } else { check_time(deadline) }
                    };
                    if let Err(error) = fetch(session, blobs, &layer.wanted, &came) {
                        // The first one is the reason. It is there before the others are told to end.
                        failed.lock().expect("no panic holds it").get_or_insert(error);
                        ended.store(true, Ordering::Release);
                    }
                }
            });
        }
        drop(notes);
        tell(found, missing, &heard, said);
    });
    match failed.into_inner().expect("no panic holds it") {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

fn take<'m>(next: &AtomicUsize, missing: &'m [Missing]) -> Option<(usize, &'m Missing)> {
    let at = next.fetch_add(1, Ordering::Relaxed);
    missing.get(at).map(|layer| (at, layer))
}

/// Turns counts into steps: the first and the last of a layer, and in between no more than a few a second.
fn tell(found: &Found, missing: &[Missing], heard: &mpsc::Receiver<(usize, u64)>, said: &mut dyn FnMut(&PullStep)) {
    let mut have = vec![0; missing.len()];
    let mut last: Vec<Option<Instant>> = vec![None; missing.len()];
    for (at, bytes) in heard {
        let Missing { index, wanted } = &missing[at];
        have[at] = bytes;
        let whole = bytes == wanted.size;
        if !whole && last[at].is_some_and(|last| last.elapsed() < PULL_PROGRESS_EVERY) {
            continue;
        }
        last[at] = Some(Instant::now());
        said(&PullStep::Layer {
            index: index + 1,
            of: found.layers.len(),
            layer: wanted.digest.clone(),
            state: if whole { LayerState::Downloaded } else { LayerState::Downloading },
            layer_bytes: bytes,
            layer_total: wanted.size,
            bytes: have.iter().sum(),
            total: total(missing),
        });
    }
}

fn unpack_step(found: &Found, step: &LayerStep) -> PullStep {
    let layer = &found.layers[step.index];
    let sum = found.layers.iter().map(|l| l.size).sum();
    PullStep::Layer {
        index: step.index + 1,
        of: found.layers.len(),
        layer: layer.digest.clone().unwrap_or_default(),
        state: if step.is_there { LayerState::Present } else { LayerState::Unpacking },
        layer_bytes: layer.size,
        layer_total: layer.size,
        bytes: sum,
        total: sum,
    }
}

fn check_time(deadline: Instant) -> Result<(), PullError> {
    match Instant::now() < deadline {
        true => Ok(()),
        false => Err(PullError::TooSlow { hours: PULL_TIME_MAX.as_secs() / 3600 }),
    }
}

// --- what stays behind ------------------------------------------------------------------------------------------------

fn missing_blob(blobs: &Path, images: &Images, found: &Found) -> bool {
    found.layers.iter().any(|layer| {
        let hex = layer.digest.as_deref().and_then(|digest| digest.strip_prefix("sha256:")).unwrap_or_default();
        !images.layer(&layer.content).is_dir() && !blobs.join(hex).is_file()
    })
}

fn forget_blobs(blobs: &Path, source: &ImageSource, manifest: &Descriptor) {
    for digest in source.named_by(manifest).unwrap_or_default() {
        forget(blobs, &digest);
    }
    forget(blobs, manifest.digest().as_ref());
}

/// What pulls have left that were killed when their image was here already: its manifest is the last to go, and names the
/// rest. Harmless to a pull that is under way: a blob that goes under its hands is fetched again.
pub fn forget_finished(images: &Images) {
    let (Ok(blobs), Ok(here)) = (images.pull_dir(), images.list()) else { return };
    let source = ImageSource::Directory(images.pull_layout());
    for image in here {
        let file = blobs.join(image.digest.strip_prefix("sha256:").unwrap_or(&image.digest));
        if let (Ok(meta), Ok(digest)) = (fs::metadata(file), oci_spec::image::Digest::from_str(&image.digest)) {
            forget_blobs(&blobs, &source, &Descriptor::new(MediaType::ImageManifest, meta.len(), digest));
        }
    }
}

/// Best effort: what stays is removed by age.
fn forget(blobs: &Path, digest: &str) {
    _ = fs::remove_file(blobs.join(digest.strip_prefix("sha256:").unwrap_or(digest)));
}

/// Blobs that nobody has come back for.
fn forget_old_parts(blobs: &Path) {
    let old = |modified: SystemTime| modified.elapsed().unwrap_or(Duration::ZERO) > PARTS_KEPT;
    for entry in fs::read_dir(blobs).into_iter().flatten().flatten() {
        if entry.metadata().and_then(|meta| meta.modified()).is_ok_and(old) {
            _ = fs::remove_file(entry.path());
        }
    }
}
