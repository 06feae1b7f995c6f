//! What the configuration says of images: where they come from, which may be run, and who must have signed them. Judges
//! values; the keys are read when the daemon starts.

use super::ConfigError;
use super::source::{Found, Sources};
use crate::limits::{ALLOWED_IMAGES_MAX, IMAGE_KEYS_MAX, TLS_FILE_MAX};
use crate::sandbox::image::registry::trust::{Allowed, SigningKey};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

pub(super) fn insecure_registries(sources: &Sources) -> Result<Vec<String>, ConfigError> {
    let Some(Found { value, at }) = sources.list("insecure_registries")? else { return Ok(Vec::new()) };
    match value.iter().find(|item| !is_host(item)) {
        None => Ok(value),
        Some(wrong) => {
            let problem = format!("holds `{wrong}`");
            let remedy = "write HOST or HOST:PORT, without a scheme or a path";
            Err(ConfigError::invalid(at, "insecure_registries", problem, remedy))
        }
    }
}

pub(super) fn default_registry(sources: &Sources) -> Result<Option<String>, ConfigError> {
    match sources.string("default_registry")? {
        Some(Found { value, at }) if !is_host(&value) => {
            let remedy = "write HOST or HOST:PORT, without a scheme or a path";
            Err(ConfigError::invalid(at, "default_registry", format!("is `{value}`"), remedy))
        }
        found => Ok(found.map(|found| found.value)),
    }
}

fn is_host(item: &str) -> bool {
    !item.is_empty() && !item.contains(|c: char| c == '/' || c.is_whitespace())
}

pub(super) fn allowed_images(sources: &Sources) -> Result<Vec<Allowed>, ConfigError> {
    let Some(Found { value, at }) = sources.list("allowed_images")? else { return Ok(Vec::new()) };
    let invalid = |problem: String| {
        let remedy = "write HOST[:PORT], HOST[:PORT]/REPOSITORY or sha256:DIGEST of what may be run; leave it out for everything";
        Err(ConfigError::invalid(at.clone(), "allowed_images", problem, remedy))
    };
    if value.is_empty() || value.len() > ALLOWED_IMAGES_MAX {
        return invalid(format!("has {} entries, and 1 to {ALLOWED_IMAGES_MAX} are possible", value.len()));
    }
    let mut allowed = Vec::new();
    for item in &value {
        match Allowed::parse(item) {
            Some(one) => allowed.push(one),
            None => return invalid(format!("holds `{item}`")),
        }
    }
    Ok(allowed)
}

pub(super) fn image_keys(sources: &Sources) -> Result<Vec<PathBuf>, ConfigError> {
    let Some(Found { value, at }) = sources.list("image_keys")? else { return Ok(Vec::new()) };
    let invalid = |problem: String| {
        let remedy = "write absolute paths of public keys in PEM, as `cosign generate-key-pair` makes them; leave it out if \
                      nothing need be signed";
        Err(ConfigError::invalid(at.clone(), "image_keys", problem, remedy))
    };
    if value.is_empty() || value.len() > IMAGE_KEYS_MAX {
        return invalid(format!("has {} entries, and 1 to {IMAGE_KEYS_MAX} are possible", value.len()));
    }
    match value.iter().find(|item| !item.starts_with('/')) {
        Some(wrong) => invalid(format!("holds `{wrong}`")),
        None => Ok(value.into_iter().map(PathBuf::from).collect()),
    }
}

pub(super) fn key(file: &Path) -> Result<SigningKey, String> {
    let failed = |why: &dyn std::fmt::Display| format!("image_keys {}: {why}", file.display());
    let mut text = Vec::new();
    let read = File::open(file).and_then(|open| open.take(TLS_FILE_MAX).read_to_end(&mut text));
    read.map_err(|e| failed(&format_args!("{e}; check the path and its permissions")))?;
    SigningKey::of_pem(&text)
        .map_err(|why| failed(&format_args!("{why}; name the `cosign.pub` that `cosign generate-key-pair` makes")))
}
