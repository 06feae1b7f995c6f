//! Files: the configuration, images and their layers, and the names that lead to them. What is unpacked is unpacked in a
//! directory of its own, and nothing may be beside it afterwards.

use ring::digest::{SHA256, digest};
use std::path::{Path, PathBuf};
use stdiod::config::{Config, Surroundings};
use stdiod::sandbox::container::account::{self, Unlisted};
use stdiod::sandbox::container::plan::Layout;
use stdiod::sandbox::image::Images;
use stdiod::sandbox::image::registry::auth::challenge;
use stdiod::sandbox::image::registry::reference::{full_name, reference};
use stdiod::sandbox::image::unpack::{Allowance, unpack};
use stdiod::wire::http::url::Url;

pub fn config(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let around = Surroundings { root: true, ..Surroundings::default() };
    if let Err(error) = Config::parse(Some((Path::new("/c"), &text)), &around) {
        assert!(!error.to_string().is_empty());
    }
}

/// A directory for one input, with another in it.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        let name = format!("stdiod-fuzz-{}-{:?}", std::process::id(), std::thread::current().id());
        let scratch = Scratch(std::env::temp_dir().join(name));
        std::fs::create_dir_all(scratch.inside()).expect("a directory of our own");
        scratch
    }

    fn inside(&self) -> PathBuf {
        self.0.join("inside")
    }

    /// Nothing was made outside.
    fn assert_alone(&self) {
        let beside = std::fs::read_dir(&self.0).expect("ours").flatten().map(|entry| entry.file_name());
        let beside: Vec<_> = beside.filter(|name| name != "inside").collect();
        assert!(beside.is_empty(), "{beside:?} beside the layer");
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn layer(bytes: &[u8]) {
    let scratch = Scratch::new();
    let mut allowance = Allowance { bytes: 1 << 20, entries: 200 };
    _ = unpack(&mut &*bytes, &scratch.inside(), &mut allowance);
    scratch.assert_alone();
}

/// A file as a whole; or the documents of an image and a layer, with `---` between them and `DIGEST` for the layer's.
pub fn image(bytes: &[u8]) {
    const MEMBERS: [&str; 3] = ["manifest.json", "config.json", "layer.tar"];
    let scratch = Scratch::new();
    let images = Images::of(&Layout { data_dir: scratch.inside(), mark: "fuzz".into() });
    let path = scratch.0.join("image");
    let text = bytes.windows(5).position(|window| window == b"\n---\n");
    match text {
        None => std::fs::write(&path, bytes).expect("written"),
        Some(_) => {
            std::fs::create_dir(&path).expect("a directory");
            let parts = pieces(bytes, b"\n---\n");
            let layer = parts.get(2).copied().unwrap_or_default();
            let hex: String = digest(&SHA256, layer).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
            for (name, part) in MEMBERS.iter().zip(&parts) {
                let part = match *name {
                    "layer.tar" => part.to_vec(),
                    _ => String::from_utf8_lossy(part).replace("DIGEST", &hex).into_bytes(),
                };
                std::fs::write(path.join(name), part).expect("written");
            }
        }
    }
    let imported = images.import(&path.display().to_string(), "a:1", &mut |_| {});
    let stored = images.resolve("a:1").expect("a record that can be read");
    assert_eq!(imported.is_ok(), stored.is_some(), "{imported:?}");
    for layer in stored.iter().flat_map(|image| images.layer_dirs(image)) {
        assert!(layer.starts_with(scratch.inside()) && layer.is_dir(), "{}", layer.display());
    }
    match path.is_dir() {
        true => std::fs::remove_dir_all(&path).expect("ours"),
        false => std::fs::remove_file(&path).expect("ours"),
    }
    scratch.assert_alone();
}

fn pieces<'b>(mut rest: &'b [u8], between: &[u8]) -> Vec<&'b [u8]> {
    let mut all = Vec::new();
    while let Some(at) = rest.windows(between.len()).position(|window| window == between) {
        all.push(&rest[..at]);
        rest = &rest[at + between.len()..];
    }
    all.push(rest);
    all
}

/// Names of images, addresses of registries, their challenges, users of an image.
pub fn names(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(full) = full_name(&text) {
        assert_eq!(full_name(&full).ok().as_ref(), Some(&full), "the one spelling of a name is its own");
        let [asked, again] = [&*text, &full].map(|name| reference(name, Some("r.example")).ok().flatten());
        assert_eq!(asked, again, "{full} is another image");
    }
    if let Some(url) = Url::parse(&text) {
        let scheme = if url.https { "https" } else { "http" };
        assert_eq!(Url::parse(&format!("{scheme}://{}{}", url.authority(), url.path)).as_ref(), Some(&url));
        assert!(!url.path.contains([' ', '\r', '\n']), "{url:?}");
        _ = url.join(&text);
    }
    _ = challenge([&*text].into_iter());
    for asked in [None, Some("u"), Some("u:g"), Some(&*text)] {
        _ = account::resolve(asked, &text, &text, Unlisted::Own);
    }
}
