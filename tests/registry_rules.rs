//! The rules of registries that the real one of the tests does not need: tokens that end, lists of platforms, blobs on
//! another host, ranges that are not what was asked for, packed in every way. A registry of a few lines, with a script.

mod support;

use base64::Engine;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use support::{STDIOD, short_temporary_directory};

/// A request, as far as it matters.
#[derive(Clone, Debug)]
struct Asked {
    line: String,
    headers: BTreeMap<String, String>,
    body: String,
}

type Script = dyn Fn(&Asked, usize) -> Vec<u8> + Send + Sync;

/// Answers what the script says; the second argument counts requests of the same line.
struct Fake {
    port: u16,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Fake {
    fn new(script: impl Fn(&Asked, usize) -> Vec<u8> + Send + Sync + 'static) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let (log, script): (_, Arc<Script>) = (Arc::clone(&asked), Arc::new(script));
        // Ends with the test's process; it holds nothing but sockets.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (log, script) = (Arc::clone(&log), Arc::clone(&script));
                std::thread::spawn(move || serve(stream, &log, &*script));
            }
        });
        Fake { port, asked }
    }

    fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("not poisoned").clone()
    }
}

fn serve(mut stream: TcpStream, log: &Mutex<Vec<Asked>>, script: &Script) {
    let mut reader = BufReader::new(stream.try_clone().expect("a socket"));
    let mut asked = Asked { line: String::new(), headers: BTreeMap::new(), body: String::new() };
    let mut line = String::new();
    while reader.read_line(&mut line).is_ok_and(|n| n > 2) {
        match line.trim_end().split_once(": ") {
            Some((name, value)) if !asked.line.is_empty() => {
                asked.headers.insert(name.to_ascii_lowercase(), value.to_string());
            }
            _ => asked.line = line.trim_end().trim_end_matches(" HTTP/1.1").to_string(),
        }
        line.clear();
    }
    let length = asked.headers.get("content-length").and_then(|n| n.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    let _ = std::io::Read::read_exact(&mut reader, &mut body);
    asked.body = String::from_utf8_lossy(&body).into_owned();
    let before = {
        let mut log = log.lock().expect("not poisoned");
        log.push(asked.clone());
        log.iter().filter(|other| other.line == asked.line).count() - 1
    };
    let _ = stream.write_all(&script(&asked, before));
}

fn answer(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{headers}\r\n", body.len());
    [head.as_bytes(), body].concat()
}

fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect();
    format!("sha256:{hex}")
}

/// An image of three layers (plain, gzip, zstd) behind a list of platforms.
struct Image {
    index: Vec<u8>,
    manifests: BTreeMap<String, Vec<u8>>,
    blobs: BTreeMap<String, Vec<u8>>,
    layers: Vec<String>,
}

fn image() -> Image {
    let tar = |name: &str, size: usize| {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(size as u64);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_cksum();
        let noise: Vec<u8> =
            (0..size as u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).take(size).collect();
        builder.append_data(&mut header, name, &noise[..]).expect("into memory");
        builder.into_inner().expect("into memory")
    };
    let tars = [tar("plain", 300_000), tar("gzip", 400_000), tar("zstd", 500_000)];
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&tars[1]).expect("into memory");
    let packed =
        [tars[0].clone(), gzip.finish().expect("into memory"), zstd::encode_all(&tars[2][..], 1).expect("zstd")];
    let architecture = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
    let diff_ids: Vec<String> = tars.iter().map(|tar| digest(tar)).collect();
    let config =
        json!({"os": "linux", "architecture": architecture, "rootfs": {"type": "layers", "diff_ids": diff_ids}});
    let config = config.to_string().into_bytes();
    let described = |bytes: &[u8], media_type: &str| -> Value {
        json!({"mediaType": media_type, "digest": digest(bytes), "size": bytes.len()})
    };
    let layer = "application/vnd.docker.image.rootfs.diff.tar.gzip";
    let manifest_type = "application/vnd.docker.distribution.manifest.v2+json";
    let manifest = json!({
        "schemaVersion": 2, "mediaType": manifest_type,
        "config": described(&config, "application/vnd.docker.container.image.v1+json"),
        "layers": packed.iter().map(|bytes| described(bytes, layer)).collect::<Vec<_>>(),
    });
    let manifest = manifest.to_string().into_bytes();
    let entry = |architecture: &str, of: &[u8]| {
        let mut entry = described(of, manifest_type);
        entry["platform"] = json!({"os": "linux", "architecture": architecture});
        entry
    };
    let list = "application/vnd.docker.distribution.manifest.list.v2+json";
    let manifests = [entry("s390x", b"nobody asks for this one"), entry(architecture, &manifest)];
    let index = json!({"schemaVersion": 2, "mediaType": list, "manifests": manifests}).to_string().into_bytes();
    let layers: Vec<String> = packed.iter().map(|bytes| digest(bytes)).collect();
    let blobs = packed.into_iter().chain([config]).map(|bytes| (digest(&bytes), bytes)).collect();
    Image { index, manifests: BTreeMap::from([(digest(&manifest), manifest)]), blobs, layers }
}

impl Image {
    /// What an honest registry without a login says.
    fn answer(&self, asked: &Asked) -> Vec<u8> {
        let name = asked.line.rsplit('/').next().unwrap_or_default();
        if asked.line.ends_with("/manifests/v1") {
            return answer("200 OK", &format!("Docker-Content-Digest: {}\r\n", digest(&self.index)), &self.index);
        }
        let Some(bytes) = self.manifests.get(name).or_else(|| self.blobs.get(name)) else {
            return answer("404 Not Found", "", br#"{"errors":[{"code":"BLOB_UNKNOWN","message":"no such blob"}]}"#);
        };
        let range = asked.headers.get("range").and_then(|r| r.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
        match range {
            Some(from) if from < bytes.len() => {
                let headers = format!("Content-Range: bytes {from}-{}/{}\r\n", bytes.len() - 1, bytes.len());
                answer("206 Partial Content", &headers, &bytes[from..])
            }
            _ => answer("200 OK", "", bytes),
        }
    }
}

struct Store {
    dir: PathBuf,
    auth: Value,
    insecure: Vec<String>,
}

impl Store {
    fn of(fakes: &[&Fake]) -> Store {
        let insecure = fakes.iter().map(|fake| fake.host()).collect();
        Store { dir: short_temporary_directory(), auth: json!({}), insecure }
    }

    fn pull(&self, name: &str) -> Output {
        let auth = self.dir.join("auth.json");
        std::fs::write(&auth, self.auth.to_string()).expect("a file");
        let mut command = Command::new(STDIOD);
        command.args(["image", "pull", name, "--json"]).env_clear().env("STDIOD_DATA_DIR", &self.dir);
        command.env("STDIOD_INSECURE_REGISTRIES", self.insecure.join(",")).env("REGISTRY_AUTH_FILE", auth);
        command.stdin(Stdio::null()).output().expect("stdiod runs")
    }

    fn pulled(&self, name: &str) -> Value {
        let output = self.pull(name);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    fn refused(&self, name: &str, why: &str) {
        let output = self.pull(name);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(why), "{why:?} in {said}");
        assert!(!said.contains("hunter2"), "a secret in {said}");
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

#[test]
fn a_list_of_platforms_leads_to_ours_and_layers_come_packed_in_any_way() {
    let image = image();
    let manifest = image.manifests.keys().next().expect("one").clone();
    let fake = Fake::new(move |asked, _| image.answer(asked));
    let store = Store::of(&[&fake]);
    let pulled = store.pulled(&format!("{}/team/who:v1", fake.host()));
    assert_eq!(pulled["digest"], json!(manifest));
    assert_eq!(std::fs::read_dir(store.dir.join("images/layers")).expect("layers").count(), 3);
    let accept = fake.asked()[0].headers["accept"].clone();
    assert!(accept.contains("manifest.list.v2+json") && accept.contains("image.index.v1+json"), "{accept}");
}

#[test]
fn a_token_is_fetched_where_the_registry_says_and_again_when_it_ends() {
    let image = image();
    let tokens = Fake::new(|asked, nth| {
        let login = base64::engine::general_purpose::STANDARD.encode("u:hunter2");
        assert_eq!(asked.headers["authorization"], format!("Basic {login}"));
        assert!(asked.line.contains("service=the%20registry") && asked.line.contains("repository%3Awho%3Apull"));
        answer("200 OK", "", json!({"token": format!("t{nth}")}).to_string().as_bytes())
    });
    let realm = format!("http://{}/token", tokens.host());
    let seen = Mutex::new(0);
    let fake = Fake::new(move |asked, _| {
        let mut seen = seen.lock().expect("not poisoned");
        *seen += 1;
        // The first token is good for three requests only; those that come at once each fetch a new one.
        let good = |value: &String| (value == "Bearer t0") == (*seen <= 4);
        if asked.headers.get("authorization").is_some_and(good) {
            return image.answer(asked);
        }
        let scope = "repository:who:pull";
        let challenge = format!("Bearer realm=\"{realm}\",service=\"the registry\",scope=\"{scope}\"");
        answer("401 Unauthorized", &format!("WWW-Authenticate: {challenge}\r\n"), b"")
    });
    let mut store = Store::of(&[&fake, &tokens]);
    store.auth = json!({"auths": {fake.host(): {"username": "u", "password": "hunter2"}}});
    store.pulled(&format!("{}/who:v1", fake.host()));
    assert!(tokens.asked().len() >= 2, "{:?}", tokens.asked());
}

#[test]
fn a_refresh_token_is_posted_and_a_helper_is_not_run() {
    let image = image();
    let tokens = Fake::new(|asked, _| {
        assert!(asked.line.starts_with("POST /token") && asked.body.contains("refresh_token=hunter2"), "{asked:?}");
        answer("200 OK", "", br#"{"access_token":"t"}"#)
    });
    let realm = format!("http://{}/token", tokens.host());
    let fake = Fake::new(move |asked, _| match asked.headers.get("authorization").map(String::as_str) {
        Some("Bearer t") => image.answer(asked),
        _ => answer("401 Unauthorized", &format!("WWW-Authenticate: Bearer realm=\"{realm}\"\r\n"), b""),
    });
    let mut store = Store::of(&[&fake, &tokens]);
    store.auth = json!({"auths": {fake.host(): {"identitytoken": "hunter2"}}});
    store.pulled(&format!("{}/who:v1", fake.host()));
    store.auth = json!({"auths": {fake.host(): {}}, "credsStore": "vault"});
    store.refused(&format!("{}/who:v1", fake.host()), "helpers are not run");
}

#[test]
fn blobs_may_be_on_another_host_which_sees_no_credentials() {
    let (near, far) = (image(), image());
    let storage = Fake::new(move |asked, _| far.answer(asked));
    let to = storage.host();
    let fake = Fake::new(move |asked, _| match (asked.headers.get("authorization"), asked.line.contains("/blobs/")) {
        (None, _) => answer("401 Unauthorized", "WWW-Authenticate: Basic realm=\"x\"\r\n", b""),
        (Some(_), false) => near.answer(asked),
        (Some(_), true) => {
            let path = asked.line.trim_start_matches("GET ");
            answer("307 Temporary Redirect", &format!("Location: http://{to}{path}\r\n"), b"")
        }
    });
    let mut store = Store::of(&[&fake, &storage]);
    store.auth = json!({"auths": {fake.host(): {"username": "u", "password": "hunter2"}}});
    store.pulled(&format!("{}/who:v1", fake.host()));
    assert_eq!(storage.asked().len(), 4, "three layers and a configuration");
    assert!(storage.asked().iter().all(|asked| !asked.headers.contains_key("authorization")), "{:?}", storage.asked());
    // The same, but that host is none that may be spoken to without TLS.
    store.insecure.pop();
    std::fs::remove_dir_all(store.dir.join("images")).expect("our own");
    store.refused(&format!("{}/who:v1", fake.host()), "insecure_registries");
}

#[test]
fn a_broken_connection_is_taken_up_and_a_wrong_range_is_not_believed() {
    let image = image();
    let torn = image.layers.clone();
    let fake = Fake::new(move |asked, nth| {
        let whole = image.answer(asked);
        let layer = torn.iter().position(|layer| asked.line.ends_with(layer.as_str()));
        match (layer, nth) {
            // Half of it, and then the line is dead.
            (Some(_), 0) => whole[..whole.len() / 2].to_vec(),
            // The first layer's registry knows no ranges, the second's gives another one, once.
            (Some(0), _) => {
                let mut plain = asked.clone();
                plain.headers.remove("range");
                image.answer(&plain)
            }
            (Some(1), 1) => answer("206 Partial Content", "Content-Range: bytes 1-2/3\r\n", b"xx"),
            (Some(_) | None, _) => whole,
        }
    });
    let store = Store::of(&[&fake]);
    store.pulled(&format!("{}/who:v1", fake.host()));
    let ranges = fake.asked().iter().filter(|asked| asked.headers.contains_key("range")).count();
    assert!(ranges >= 3, "{ranges} of {:?}", fake.asked());
}

#[test]
fn a_registry_that_lies_is_refused() {
    let lies: [(&str, &str, Box<Script>); 5] = [
        ("v1", "is not what the image says", {
            let image = image();
            Box::new(move |asked: &Asked, _| match asked.line.ends_with("/v1") {
                true => answer("200 OK", &format!("Docker-Content-Digest: {}\r\n", digest(b"another")), &image.index),
                false => image.answer(asked),
            })
        }),
        ("v1", "is not what the image says", {
            let image = image();
            Box::new(move |asked: &Asked, _| match asked.line.contains("/manifests/sha256:") {
                true => answer("200 OK", "", br#"{"schemaVersion":2,"config":{},"layers":[]}"#),
                false => image.answer(asked),
            })
        }),
        ("v1", "schema 1", Box::new(|_: &Asked, _| answer("200 OK", "", br#"{"schemaVersion":1}"#))),
        ("v1", "larger than allowed", Box::new(|_: &Asked, _| answer("200 OK", "", &vec![b' '; 5 << 20]))),
        ("v1", "redirects without end", Box::new(|_: &Asked, _| answer("302 Found", "Location: /v2/\r\n", b""))),
    ];
    for (tag, why, script) in lies {
        let fake = Fake::new(script);
        let store = Store::of(&[&fake]);
        store.refused(&format!("{}/who:{tag}", fake.host()), why);
        assert!(
            !store.dir.join("images/layers").exists()
                || store.dir.join("images/layers").read_dir().unwrap().count() == 0
        );
    }
}
