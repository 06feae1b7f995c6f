//! Images that no honest tool makes, through the front door: whatever a layer holds, the import refuses it with its reason
//! or makes it harmless, the host stays as it was, and nothing of it stays in the store.

use crate::support::{STDIOD, short_temporary_directory};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tar::{EntryType, Header};

/// A data directory, a place to be attacked, and layouts.
struct Scene {
    home: PathBuf,
}

/// An entry of a layer: what it is, its name, what it links to, its content.
type Member<'a> = (EntryType, &'a str, &'a str, &'a [u8]);

impl Scene {
    fn new() -> Scene {
        let home = short_temporary_directory();
        std::fs::create_dir(home.join("host")).expect("a directory");
        std::fs::write(home.join("host/secret"), "secret").expect("a file");
        Scene { home }
    }

    fn victim(&self) -> String {
        self.home.join("host").display().to_string()
    }

    /// Imports an image of one layer, packed as it comes.
    fn import(&self, packed: &[u8], content: &str) -> Output {
        let layout = self.home.join("layout");
        let _ = std::fs::remove_dir_all(&layout);
        std::fs::create_dir_all(layout.join("blobs/sha256")).expect("a directory");
        let put = |bytes: &[u8], media_type: &str| {
            let hex = hex(bytes);
            std::fs::write(layout.join("blobs/sha256").join(&hex), bytes).expect("a file");
            json!({"mediaType": media_type, "digest": format!("sha256:{hex}"), "size": bytes.len()})
        };
        let architecture = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
        let rootfs = json!({"type": "layers", "diff_ids": [content]});
        let config = json!({"os": "linux", "architecture": architecture, "rootfs": rootfs}).to_string();
        let config = put(config.as_bytes(), "application/vnd.oci.image.config.v1+json");
        let layer = put(packed, "application/vnd.oci.image.layer.v1.tar+zstd");
        let manifest = json!({"schemaVersion": 2, "config": config, "layers": [layer]}).to_string();
        let manifest = put(manifest.as_bytes(), "application/vnd.oci.image.manifest.v1+json");
        let index = json!({"schemaVersion": 2, "manifests": [manifest]}).to_string();
        std::fs::write(layout.join("index.json"), index).expect("a file");
        std::fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).expect("a file");
        self.cli(&["image", "import", &layout.display().to_string(), "--name", "hostile:1"])
    }

    fn import_tar(&self, members: &[Member<'_>]) -> Output {
        let tar = tar(members);
        self.import(&tar, &format!("sha256:{}", hex(&tar)))
    }

    fn cli(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(STDIOD);
        command.args(arguments).env_clear().env("STDIOD_DATA_DIR", self.home.join("data")).stdin(Stdio::null());
        command.output().expect("stdiod runs")
    }

    /// The host's side is as it was, and the image is not there.
    fn refused(&self, output: &Output, why: &str) {
        assert_eq!(output.status.code(), Some(1), "{why}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(why), "{why:?} in {said}");
        self.unharmed();
        let listed = self.cli(&["image", "ls", "--json"]);
        assert_eq!(String::from_utf8_lossy(&listed.stdout).trim(), "[]");
        for part in ["layers", "tmp"] {
            let left = std::fs::read_dir(self.home.join("data/images").join(part)).map_or(0, Iterator::count);
            assert_eq!(left, 0, "{why}: rubbish in {part}");
        }
    }

    fn unharmed(&self) {
        let host = self.home.join("host");
        assert_eq!(std::fs::read_to_string(host.join("secret")).expect("it is there"), "secret");
        assert_eq!(std::fs::metadata(host.join("secret")).expect("it is there").nlink(), 1);
        assert_eq!(std::fs::read_dir(&host).expect("it is there").count(), 1, "nothing new");
        assert!(!self.home.join("escape").exists() && !Path::new("/escape").exists());
        assert!(!self.home.join("data/escape").exists() && !self.home.join("data/images/escape").exists());
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.home);
    }
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

fn header(kind: EntryType, name: &str, link: &str, size: u64) -> Header {
    let mut header = Header::new_gnu();
    // By hand: the writer's own checks would refuse most of these.
    header.as_gnu_mut().expect("it is").name[..name.len()].copy_from_slice(name.as_bytes());
    header.as_gnu_mut().expect("it is").linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(0o4755);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_cksum();
    header
}

fn tar(members: &[Member<'_>]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (kind, name, link, data) in members {
        builder.append(&header(*kind, name, link, data.len() as u64), *data).expect("into memory");
    }
    builder.into_inner().expect("into memory")
}

#[test]
fn paths_that_lead_out_are_refused() {
    let scene = Scene::new();
    let victim = scene.victim();
    for name in ["../escape", "../../escape", "a/../../../../escape", "./../../../../../../escape"] {
        scene.refused(&scene.import_tar(&[(EntryType::Regular, name, "", b"x")]), "..");
    }
    // An absolute path is one inside the image, as every tool has it.
    let inside = scene.import_tar(&[(EntryType::Regular, &format!("{victim}/secret"), "", b"changed")]);
    assert!(inside.status.success(), "{inside:?}");
    scene.unharmed();
}

#[test]
fn a_symlink_into_the_host_is_only_a_name() {
    let scene = Scene::new();
    let victim = scene.victim();
    let through: [&[Member<'_>]; 4] = [
        &[(EntryType::Symlink, "out", &victim, b""), (EntryType::Regular, "out/secret", "", b"changed")],
        &[(EntryType::Symlink, "out", "../../../../../..", b""), (EntryType::Regular, "out/escape", "", b"x")],
        &[(EntryType::Symlink, "out", &victim, b""), (EntryType::Directory, "out/new", "", b"")],
        &[(EntryType::Symlink, "out", "/proc/self/root", b""), (EntryType::Regular, "out/escape", "", b"x")],
    ];
    for members in through {
        // Harmless either way: refused because it leads nowhere in the image, or written inside of it.
        let output = scene.import_tar(members);
        if !output.status.success() {
            scene.refused(&output, "refused");
        }
        scene.unharmed();
        scene.cli(&["image", "rm", "hostile:1"]);
    }
    // A link that is replaced by a file of its name is replaced, not written through.
    let secret = format!("{victim}/secret");
    let members: &[Member<'_>] =
        &[(EntryType::Symlink, "f", &secret, b""), (EntryType::Regular, "f", "", b"of the image")];
    assert!(scene.import_tar(members).status.success());
    scene.unharmed();
}

#[test]
fn devices_and_links_to_files_of_the_host_are_refused() {
    let scene = Scene::new();
    let secret = format!("{}/secret", scene.victim());
    for kind in [EntryType::Char, EntryType::Block] {
        scene.refused(&scene.import_tar(&[(kind, "dev/sda", "", b"")]), "device node");
    }
    for target in ["/etc/shadow", "etc/shadow", secret.as_str()] {
        let before = std::fs::metadata("/etc/shadow").map_or(0, |meta| meta.nlink());
        scene.refused(&scene.import_tar(&[(EntryType::Link, "shadow", target, b"")]), "hard link to");
        assert_eq!(std::fs::metadata("/etc/shadow").map_or(0, |meta| meta.nlink()), before);
    }
    let around: &[Member<'_>] =
        &[(EntryType::Symlink, "etc", &scene.victim(), b""), (EntryType::Link, "x", "etc/secret", b"")];
    scene.refused(&scene.import_tar(around), "hard link to");
    scene.refused(&scene.import_tar(&[(EntryType::Link, "x", "../../../etc/shadow", b"")]), "..");
}

#[test]
fn ten_gigabytes_of_zeros_in_a_few_kilobytes_are_refused() {
    const BLOCK: u64 = 128 << 10;
    let scene = Scene::new();
    let size: u64 = 10 << 30;
    // A zstd frame made by hand: a window of 128 KiB, the tar header as a raw block, and then only repeated zeros.
    let mut bomb = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 7 << 3];
    let mut block = |kind: u32, size: u32, last: bool, content: &[u8]| {
        let head = size << 3 | kind << 1 | u32::from(last);
        bomb.write_all(&head.to_le_bytes()[..3]).and_then(|()| bomb.write_all(content)).expect("into memory");
    };
    block(0, 512, false, header(EntryType::Regular, "zeros", "", size).as_bytes());
    for at in 0..size / BLOCK {
        block(1, BLOCK as u32, at + 1 == size / BLOCK, &[0]);
    }
    assert!(bomb.len() < 400 << 10, "{} bytes", bomb.len());
    let output = scene.import(&bomb, &format!("sha256:{}", "0".repeat(64)));
    scene.refused(&output, "than allowed");
}
