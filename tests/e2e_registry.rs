//! Images from a real registry with a password and TLS: by tag and digest, resumed, verified, shared; and servers whose
//! image is not here yet. Also that a pull may be killed at any moment.

mod support;

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use support::registry::{ConnectProxy, PASSWORD, Proxy, Registry, build_images};
use support::{BASE, Options, SOON, STDIOD, eventually, short_temporary_directory};

/// Of the large file in the images.
const LARGE: usize = 6 << 20;

/// A data directory without a daemon.
struct Store {
    dir: PathBuf,
    variables: Vec<(String, String)>,
}

impl Store {
    fn new(variables: Vec<(String, String)>) -> Store {
        Store { dir: short_temporary_directory(), variables }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(STDIOD);
        command.arg("image").args(arguments).env_clear().env("STDIOD_DATA_DIR", &self.dir);
        command.envs(self.variables.iter().map(|(name, value)| (name, value))).stdin(Stdio::null());
        command
    }

    fn image(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("stdiod runs")
    }

    fn done(&self, arguments: &[&str]) -> String {
        let output = self.image(arguments);
        assert!(output.status.success(), "image {arguments:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The complaint of a command that must fail.
    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.image(arguments);
        assert_eq!(output.status.code(), Some(1), "image {arguments:?}: {output:?}");
        assert!(!format!("{output:?}").contains(PASSWORD), "a password in the output: {output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn names(&self) -> Vec<String> {
        let listed: Value = serde_json::from_str(&self.done(&["ls", "--json"])).expect("JSON");
        listed.as_array().expect("a list").iter().map(|i| i["name"].as_str().unwrap().to_string()).collect()
    }

    fn inspect(&self, name: &str) -> Value {
        serde_json::from_str(&self.done(&["inspect", name, "--json"])).expect("JSON")
    }

    fn files(&self, below: &str) -> BTreeMap<PathBuf, u64> {
        sizes(&self.dir.join("images").join(below))
    }

    fn layers(&self) -> usize {
        std::fs::read_dir(self.dir.join("images/layers")).map_or(0, Iterator::count)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn sizes(below: &Path) -> BTreeMap<PathBuf, u64> {
    let mut found = BTreeMap::new();
    let mut open = vec![below.to_path_buf()];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(meta) if meta.is_dir() => open.push(entry.path()),
                Ok(meta) => _ = found.insert(entry.path().strip_prefix(below).unwrap().to_path_buf(), meta.len()),
                Err(_) => {}
            }
        }
    }
    found
}

#[test]
fn an_image_is_pulled_by_tag_and_by_digest_and_only_from_whom_we_trust() {
    let registry = Registry::start();
    let layout = build_images(&registry.home, LARGE);
    registry.push(&layout, "v1", "team/who:v1");
    registry.push(&layout, "v2", "team/who:v2");
    let store = Store::new(registry.variables(&[]));
    let name = registry.name("team/who:v1");

    let pulled = store.image(&["pull", &name]);
    assert!(pulled.status.success(), "{pulled:?}");
    let shown = String::from_utf8_lossy(&pulled.stderr).into_owned();
    assert!(shown.contains("layer 3/3") && shown.contains("downloaded") && !shown.contains('\x1b'), "{shown}");
    let first = store.inspect(&name);
    let digest = first["digest"].as_str().expect("a digest");

    let by_digest = registry.name(&format!("team/who@{digest}"));
    let again = store.image(&["pull", &by_digest]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("all here"), "{again:?}");
    assert_eq!(store.inspect(&by_digest)["layers"], first["layers"]);
    assert_eq!(store.layers(), 3);
    store.done(&["pull", &registry.name("team/who:v2")]);
    assert_eq!(store.layers(), 4, "three of its four layers were here");
    assert!(store.files("pull").is_empty(), "blobs of a finished pull are gone: {:?}", store.files("pull"));

    let unknown = "0".repeat(64);
    assert!(store.refused(&["pull", &registry.name("team/who:v9")]).contains("has no team/who:v9"));
    assert!(store.refused(&["pull", &registry.name(&format!("team/who@sha256:{unknown}"))]).contains("has no"));
    assert!(store.refused(&["pull", "who:1"]).contains("default_registry"));
    assert!(store.refused(&["pull", "127.0.0.1:1/who"]).contains("cannot be reached"));
    assert!(store.refused(&["rm", "who:1"]).contains("image ls"));
    let with = |name: &str, value: &str| {
        let mut variables = store.variables.clone();
        variables.retain(|(known, _)| known != name);
        variables.push((name.to_string(), value.to_string()));
        Store::new(variables)
    };
    assert!(with("SSL_CERT_FILE", "/dev/null").refused(&["pull", &name]).contains("certificate"));
    assert!(with("REGISTRY_AUTH_FILE", "/nonexistent").refused(&["pull", &name]).contains("wants a login"));
    let wrong = registry.home.join("wrong.json");
    let entry = json!({"auths": {format!("127.0.0.1:{}", registry.port): {"username": "tester", "password": "no"}}});
    std::fs::write(&wrong, entry.to_string()).expect("a file");
    let wrong = with("REGISTRY_AUTH_FILE", wrong.to_str().unwrap());
    assert!(wrong.refused(&["pull", &name]).contains("does not accept"));
    let short = with("STDIOD_DEFAULT_REGISTRY", &format!("127.0.0.1:{}", registry.port));
    short.done(&["pull", "team/who:v1"]);
    assert_eq!(short.names(), ["team/who:v1"]);

    store.done(&["rm", &name]);
    assert_eq!(store.layers(), 4, "the other names still need them");
    store.done(&["prune", "--all"]);
    assert_eq!((store.layers(), store.names().len()), (0, 0));
}

#[test]
fn a_registry_is_reached_by_an_ipv6_address_and_through_a_proxy() {
    let registry = Registry::start();
    let layout = build_images(&registry.home, 1024);
    registry.push(&layout, "v1", "who:v1");
    let by_v6 = Proxy::from("[::1]:0", registry.port);
    let proxy = ConnectProxy::to(registry.port);
    let hosts = [format!("[::1]:{}", by_v6.port), "registry.test:5000".to_string(), "registry.test".to_string()];
    let variables = registry.variables_for(&hosts);
    let with = |address: &str| {
        let mut variables = variables.clone();
        variables.push(("HTTPS_PROXY".to_string(), address.to_string()));
        Store::new(variables)
    };
    let store = with(&format!("http://u:p@127.0.0.1:{}", proxy.port));

    let name = format!("{}/who:v1", hosts[0]);
    store.done(&["pull", &name]);
    assert_eq!((store.names(), proxy.asked()), (vec![name], vec![]), "loopback needs no proxy");
    // A name that only the proxy knows; TLS is with the registry, whose certificate has that name.
    for (host, asked) in [("registry.test:5000", "registry.test:5000"), ("registry.test", "registry.test:443")] {
        store.done(&["pull", &format!("{host}/who:v1")]);
        let last = proxy.asked().pop().expect("it was asked");
        assert_eq!(last, format!("CONNECT {asked} HTTP/1.1"));
    }
    let refused = with(&format!("http://127.0.0.1:{}", proxy.port)).refused(&["pull", "registry.test/who:v1"]);
    assert!(refused.contains("wants a login") && refused.contains("proxy"), "{refused}");
    let refused = with("http://127.0.0.1:1").refused(&["pull", "registry.test/who:v1"]);
    assert!(refused.contains("the proxy 127.0.0.1:1"), "{refused}");
    let refused = with("socks5://127.0.0.1:1").refused(&["pull", "registry.test/who:v1"]);
    assert!(refused.contains("HTTPS_PROXY") && refused.contains("socks5"), "{refused}");
}

#[test]
fn a_blob_that_is_not_what_its_digest_says_is_refused() {
    let registry = Registry::start();
    let layout = build_images(&registry.home, LARGE);
    registry.push(&layout, "v1", "who:v1");
    let store = Store::new(registry.variables(&[]));
    let manifest = std::fs::read_to_string(layout.join("index.json")).expect("an index");
    let manifest: Value = serde_json::from_str(&manifest).expect("JSON");
    let entry = manifest["manifests"].as_array().unwrap().iter().find(|m| m["annotations"].to_string().contains("v1"));
    let digest = entry.unwrap()["digest"].as_str().unwrap();
    let document = std::fs::read_to_string(registry.blob(digest)).expect("the manifest");
    let document: Value = serde_json::from_str(&document).expect("JSON");
    let layer = document["layers"][2]["digest"].as_str().unwrap();

    // One bit, in the middle of the large layer.
    let path = registry.blob(layer);
    let good = std::fs::read(&path).expect("the blob");
    let mut bad = good.clone();
    bad[LARGE / 2] ^= 1;
    std::fs::write(&path, &bad).expect("our file");
    let why = store.refused(&["pull", &registry.name("who:v1")]);
    assert!(why.contains("is not what the image says") && why.contains(layer), "{why}");
    assert_eq!((store.names().len(), store.layers()), (0, 0), "nothing of it is in the store");
    // One that is too short, and one that is too long.
    std::fs::write(&path, &good[..good.len() - 1]).expect("our file");
    store.refused(&["pull", &registry.name("who:v1")]);
    std::fs::write(&path, [&good[..], b"x"].concat()).expect("our file");
    store.refused(&["pull", &registry.name("who:v1")]);
    assert_eq!((store.names().len(), store.layers()), (0, 0));

    std::fs::write(&path, &good).expect("our file");
    store.done(&["pull", &registry.name("who:v1")]);
    assert_eq!(store.layers(), 3);
}

#[test]
fn a_pull_that_is_killed_goes_on_where_it_ended() {
    let registry = Registry::start();
    let layout = build_images(&registry.home, LARGE);
    registry.push(&layout, "v1", "who:v1");
    let proxy = Proxy::to(registry.port);
    let store = Store::new(registry.variables(&[proxy.port]));
    let name = format!("127.0.0.1:{}/who:v1", proxy.port);

    proxy.slow_down(4 << 20);
    let mut pull = store.command(&["pull", &name]).stderr(Stdio::null()).spawn().expect("stdiod starts");
    assert!(eventually(SOON, || proxy.passed() > LARGE as u64 * 2 / 3), "{} bytes", proxy.passed());
    pull.kill().expect("it runs");
    pull.wait().expect("our child");
    assert!(store.names().is_empty(), "half an image is none");
    let parts: u64 = store.files("pull").values().sum();
    assert!(parts > LARGE as u64 / 3, "what came is kept: {parts}");

    proxy.slow_down(u64::MAX);
    let before = proxy.passed();
    store.done(&["pull", &name]);
    let needed = proxy.passed() - before;
    assert!(needed < LARGE as u64 * 3 / 4, "{needed} bytes again of {LARGE}, {parts} were here");
    assert_eq!(store.layers(), 3);
}

#[test]
fn a_pull_may_be_killed_at_any_moment() {
    let registry = Registry::start();
    let layout = build_images(&registry.home, LARGE);
    registry.push(&layout, "v1", "who:v1");
    let name = registry.name("who:v1");
    let whole = Store::new(registry.variables(&[]));
    let began = Instant::now();
    whole.done(&["pull", &name]);
    // As long as it takes when nothing else goes on; what is measured may be more, and comes down to it.
    let mut whole_pull = began.elapsed();

    let store = Store::new(registry.variables(&[]));
    let (mut finished, mut killed) = (0, 0);
    for round in 0..100_u32 {
        let is_there = !store.names().is_empty();
        let mut pull = store.command(&["pull", &name]);
        let mut pull = pull.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("stdiod starts");
        // Any moment of a pull is as good as any other: this is the one place where time itself is the input.
        let (began, moment) = (Instant::now(), whole_pull.mul_f64(f64::from(round * 37 % 100) / 90.0));
        while began.elapsed() < moment {
            std::thread::sleep(Duration::from_millis(1));
            if pull.try_wait().expect("our child").is_some() {
                whole_pull = if is_there { whole_pull } else { whole_pull.min(began.elapsed()) };
                break;
            }
        }
        killed += u32::from(pull.try_wait().expect("our child").is_none());
        let _ = pull.kill();
        pull.wait().expect("our child");
        // What is there is whole.
        if let [there] = &store.names()[..] {
            assert_eq!(there, &name);
            assert_eq!(store.files("layers"), whole.files("layers"), "round {round}");
            finished += 1;
            if round % 2 == 0 {
                store.done(&["rm", &name]);
            }
        }
    }
    assert!(killed >= 20, "only {killed} of 100 were killed; {finished} were whole");
    store.done(&["pull", &name]);
    assert_eq!(store.files("layers"), whole.files("layers"));
    assert!(store.files("tmp").is_empty() && store.files("pull").is_empty(), "{:?}", store.files(""));
}

#[test]
fn a_server_whose_image_is_elsewhere_gets_it_first_and_the_next_shares_it() {
    let registry = Registry::start();
    let layout = build_images(&registry.home, LARGE);
    registry.push(&layout, "v1", "who:v1");
    registry.push(&layout, "v2", "who:v2");
    let proxy = Proxy::to(registry.port);
    let variables = registry.variables(&[proxy.port]);
    let options = variables.into_iter().fold(Options::default(), |o, (name, value)| o.variable(&name, value));
    let mut daemon = options.start();
    let name = |tag: &str| format!("127.0.0.1:{}/who:{tag}", proxy.port);
    let definition = |server: &str, image: &str| json!({"name": server, "image": image, "provider": "crun"});

    // No registry, no such tag, and a policy that forbids to ask.
    let short = daemon.try_register(&definition("short", "who:v1"));
    assert_eq!((short.status, short.code()), (422, json!("image_not_found")), "{short}");
    let mut never = definition("never", &name("v1"));
    never["pull_policy"] = json!("never");
    let never = daemon.try_register(&never);
    assert_eq!((never.status, never.code()), (422, json!("image_not_found")), "{never}");
    let missing = daemon.try_register(&definition("missing", &name("v9")));
    assert_eq!(missing.status, 201, "it is stored, and may be pushed yet: {missing}");
    let missing = missing.json();
    assert!(missing["last_error"].as_str().unwrap_or_default().contains("has no who:v9"), "{missing:#}");
    assert_eq!(missing["image_pull"]["state"], "failed", "{missing:#}");
    assert_eq!(daemon.request("DELETE", &format!("{BASE}/missing"), None).status, 204);

    // A daemon that dies in the middle of a pull, and two servers that wait for one.
    proxy.slow_down(2 << 20);
    for server in ["one", "two"] {
        let reply = daemon.request("POST", &format!("{BASE}?wait=false"), Some(&definition(server, &name("v1"))));
        assert_eq!(reply.status, 201, "{reply}");
    }
    let pulling = daemon.wait_until("two", "downloading", |status| status["image_pull"]["bytes"].as_u64() > Some(0));
    assert_eq!((&pulling["status"], &pulling["image_pull"]["state"]), (&json!("starting"), &json!("downloading")));
    assert!(eventually(SOON, || proxy.passed() > LARGE as u64 / 2), "{} bytes", proxy.passed());
    daemon.kill();
    proxy.slow_down(u64::MAX);
    daemon.start_again();
    for server in ["one", "two"] {
        let status = daemon.wait_ready(server);
        assert_eq!(status["image_pull"]["state"], "done", "{status:#}");
    }
    let once = LARGE as u64 * 5 / 3;
    assert!(proxy.passed() < once, "{} bytes for one image of {LARGE}, two servers, two lives", proxy.passed());
    let logs = daemon.get(&format!("{BASE}/one/logs")).body_text();
    assert!(logs.contains("layer 3/3") && logs.contains("is here"), "{logs}");
    assert!(daemon.text("two", "who", json!({})).starts_with("uid=1234"));

    // One set of layers for both; a third server of it needs no pull; and nothing in use goes.
    let layers = || std::fs::read_dir(daemon.data_dir.join("images/layers")).expect("layers").count();
    assert_eq!(layers(), 3);
    let third = daemon.register(&definition("three", &name("v1")));
    assert_eq!(third["image_pull"], Value::Null);
    daemon.register(&definition("four", &name("v2")));
    assert_eq!(layers(), 4);
    let refused = daemon.cli(&["image", "rm", &name("v1")]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("in use"), "{refused:?}");
    assert!(daemon.cli(&["image", "prune", "--all"]).status.success());
    assert_eq!(layers(), 4);
    assert!(!daemon.log_contains(PASSWORD));

    // A new image under an old name comes with the next start of a server that always asks.
    registry.push(&layout, "v2", "who:v1");
    let always = json!({"pull_policy": "always"});
    let patched = daemon.request("PATCH", &format!("{BASE}/one"), Some(&always));
    assert_eq!(patched.status, 200, "{patched}");
    let restarted = daemon.request("POST", &format!("{BASE}/one/restart"), None);
    assert_eq!(restarted.json()["status"], "ready", "{restarted}");
    let digests = daemon.cli_json(&["image", "ls"]);
    assert_eq!(digests[0]["digest"], digests[1]["digest"], "{digests:#}");
}

/// What cosign signs for an image with this digest.
fn document(digest: &str) -> String {
    let image = json!({"docker-manifest-digest": digest});
    json!({"critical": {"identity": {"docker-reference": ""}, "image": image, "type": "cosign container image signature"},
        "optional": null})
    .to_string()
}

/// A private key and its public one.
fn key(home: &Path, name: &str) -> (PathBuf, PathBuf) {
    let (private, public) = (home.join(format!("{name}.key")), home.join(format!("{name}.pub")));
    let [private_name, public_name] = [&private, &public].map(|path| path.to_str().expect("our own name"));
    support::registry::run("openssl", &["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", private_name]);
    support::registry::run("openssl", &["pkey", "-in", private_name, "-pubout", "-out", public_name]);
    (private, public)
}

#[test]
fn only_an_image_that_is_on_the_list_or_signed_by_a_key_of_ours_is_pulled() {
    let registry = Registry::start();
    let layout = build_images(&registry.home, 1024);
    registry.push(&layout, "v1", "team/who:v1");
    registry.push(&layout, "v2", "other/who:v2");
    let with = |settings: &[(&str, &str)]| {
        let settings = settings.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        Store::new(registry.variables(&[]).into_iter().chain(settings).collect())
    };
    let (team, other) = (registry.name("team/who:v1"), registry.name("other/who:v2"));
    let open = with(&[]);
    open.done(&["pull", &team]);
    open.done(&["pull", &other]);
    let digest = |name: &str| open.inspect(name)["digest"].as_str().expect("a digest").to_string();

    // A place, and a digest from wherever it comes.
    let listed = with(&[("STDIOD_ALLOWED_IMAGES", &format!("{},{}", registry.name("team"), digest(&other)))]);
    listed.done(&["pull", &team]);
    listed.done(&["pull", &registry.name(&format!("other/who@{}", digest(&other)))]);
    let refused = listed.refused(&["pull", &other]);
    assert!(refused.contains("allowed_images"), "{refused}");
    assert!(listed.refused(&["pull", "127.0.0.1:1/team/who"]).contains("allowed_images"), "nobody was asked");

    let ((private, public), (stranger, _)) = (key(&registry.home, "ours"), key(&registry.home, "theirs"));
    let keys = ("STDIOD_IMAGE_KEYS", public.to_str().expect("our own name"));
    let strict = with(&[keys]);
    let refused = strict.refused(&["pull", &team]);
    assert!(refused.contains("is not signed by one of `image_keys`: the registry has no signature"), "{refused}");
    // By a stranger's key; by ours, but for another image; and another kind of document.
    let right = digest(&team);
    let wrong = document(&right).replace("container image", "anything");
    for (says, by) in [(document(&right), &stranger), (document(&digest(&other)), &private), (wrong, &private)] {
        registry.sign("team/who", &right, &says, by);
        let refused = strict.refused(&["pull", &team]);
        assert!(refused.contains("none of its signatures is by one of these keys"), "{refused}");
    }
    assert_eq!(strict.layers(), 0, "nothing of it came");
    registry.sign("team/who", &right, &document(&right), &private);
    strict.done(&["pull", &team]);
    assert_eq!(strict.inspect(&team)["signed_by"].as_str().map(str::len), Some(64));

    // One that came before anybody asked is looked at once more, and nothing of it comes twice.
    let later = Store { dir: open.dir.clone(), variables: strict.variables.clone() };
    assert_eq!(later.inspect(&team)["signed_by"], Value::Null);
    let again = later.image(&["pull", &team]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("all here"), "{again:?}");
    assert_eq!(later.inspect(&team)["signed_by"], strict.inspect(&team)["signed_by"]);
    assert!(later.refused(&["pull", &other]).contains("is not signed"));
    std::mem::forget(later);
    let broken = with(&[("STDIOD_IMAGE_KEYS", private.to_str().expect("our own name"))]);
    assert!(broken.refused(&["pull", &team]).contains("holds no public key"), "a private key is none");
}

#[test]
fn a_server_runs_only_an_image_that_may_be_run() {
    let registry = Registry::start();
    let layout = build_images(&registry.home, 1024);
    registry.push(&layout, "v1", "team/who:v1");
    registry.push(&layout, "v1", "other/who:v1");
    let (private, public) = key(&registry.home, "ours");
    let allowed = registry.name("team");
    let settings =
        [("STDIOD_ALLOWED_IMAGES", allowed.as_str()), ("STDIOD_IMAGE_KEYS", public.to_str().expect("a name"))];
    let settings = settings.map(|(name, value)| (name.to_string(), value.to_string()));
    let variables = registry.variables(&[]).into_iter().chain(settings);
    let daemon = variables.fold(Options::default(), |o, (name, value)| o.variable(&name, &value)).start();
    let definition = |server: &str, image: &str| json!({"name": server, "image": image, "provider": "crun"});

    let elsewhere = daemon.try_register(&definition("elsewhere", &registry.name("other/who:v1")));
    assert_eq!((elsewhere.status, elsewhere.code()), (422, json!("image_not_found")), "{elsewhere}");
    assert!(elsewhere.body_text().contains("allowed_images"), "{elsewhere}");
    let name = registry.name("team/who:v1");
    let unsigned = daemon.try_register(&definition("signed", &name));
    assert_eq!(unsigned.status, 201, "it is stored, and may be signed yet: {unsigned}");
    let why = unsigned.json()["last_error"].as_str().unwrap_or_default().to_string();
    assert!(why.contains("is not signed by one of `image_keys`"), "{why}");

    // Brought by hand under a registry's name it is no better; without one it is the operator's own.
    let from = format!("{}:v1", layout.display());
    for to in [&name, "local:1"] {
        let imported = daemon.cli(&["image", "import", &from, "--name", to]);
        assert!(imported.status.success(), "{imported:?}");
    }
    let mut never = definition("never", &name);
    never["pull_policy"] = json!("never");
    let never = daemon.try_register(&never);
    assert!(never.status == 422 && never.body_text().contains("without a signature"), "{never}");
    assert_eq!(daemon.register(&definition("local", "local:1"))["status"], "ready");

    let digest = why.split_whitespace().find(|word| word.starts_with("sha256:")).expect("it says which image");
    registry.sign("team/who", digest, &document(digest), &private);
    let started = daemon.request("POST", &format!("{BASE}/signed/restart"), None);
    assert_eq!(started.json()["status"], "ready", "{started}");
    assert!(daemon.text("signed", "who", json!({})).starts_with("uid=1234"));
}
