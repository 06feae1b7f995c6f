//! Servers in the form in which they are handed around, `npx …` and `uvx …`, on a host with no image at all: fetched
//! from the package registries that this machine is set up for, by its own settings, and from the cache afterwards.

use crate::support::{self, BASE, Daemon, Reply, on_both_providers};
use serde_json::{Map, Value, json};
use std::path::Path;

/// Installed by scripts/setup; on a host of one's own it is found by its name.
const UVX: &str = "/usr/local/lib/stdiod-fixtures/uv/bin/uvx";
const FILESYSTEM: &str = "@modelcontextprotocol/server-filesystem@2026.8.31";
const MEMORY: &str = "@modelcontextprotocol/server-memory@2026.8.31";
const GIT: &str = "mcp-server-git==2026.10.19";

on_both_providers!(servers_of_npx_and_uvx_run_without_an_image_and_then_without_a_network);

fn servers_of_npx_and_uvx_run_without_an_image_and_then_without_a_network(provider: &str) {
    assert!(Path::new(UVX).exists(), "{UVX} is missing: run scripts/setup --tests");
    let daemon = Daemon::start();
    let (variables, files) = this_machines_settings();
    let servers = [
        ("filesystem", "npx", json!(["-y", FILESYSTEM, "/data"])),
        ("memory", "npx", json!(["-y", MEMORY])),
        ("git", UVX, json!([GIT, "--repository", "/data"])),
    ];
    make_repository(&daemon);
    // All at once, and each for as long as its start may take: the first one fetches.
    let each = |ask: &(dyn Fn(&str, &str, &Value) -> Reply + Sync), network: &str| {
        std::thread::scope(|scope| {
            for (name, command, args) in &servers {
                scope.spawn(move || {
                    let reply = ask(name, command, args);
                    assert!([200, 201].contains(&reply.status), "{name}: {reply}");
                    let status = reply.json();
                    assert_eq!(status["status"], "ready", "{status:#}");
                    assert_eq!((&status["provider"], &status["network"]), (&json!(provider), &json!(network)));
                    assert_eq!(status["last_crash"], Value::Null, "{status:#}");
                });
            }
        });
    };
    let register = |name: &str, command: &str, args: &Value| {
        let mut environment = variables.clone();
        environment.insert("MEMORY_FILE_PATH".into(), json!("/data/memory.json"));
        daemon.try_register(&json!({
            "name": name, "provider": provider, "command": command, "args": args, "volumes": ["/data"],
            // Half a core does it too, in twice the time.
            "environment": environment, "files": files, "resource_limits": {"cpu": "2"},
        }))
    };
    each(&register, "bridge");
    assert_eq!(daemon.cli_json(&["image", "ls"]), json!([]), "there is no image here");
    use_them(&daemon, "first");

    // What was fetched is in a volume of each server: the same again with nobody to fetch from.
    let cut_off = |name: &str, _: &str, _: &Value| {
        daemon.request("PATCH", &format!("{BASE}/{name}"), Some(&json!({"network": "none"})))
    };
    each(&cut_off, "none");
    use_them(&daemon, "second");
}

fn use_them(daemon: &Daemon, word: &str) {
    let path = format!("/data/{word}.txt");
    daemon.text("filesystem", "write_file", json!({"path": path, "content": word}));
    let kept = daemon.in_volume("filesystem", "/data", |data| {
        std::fs::read_to_string(data.join(format!("{word}.txt"))).expect("it is in the volume")
    });
    assert_eq!(kept, word);
    let outside = daemon.tool("filesystem", "read_text_file", json!({"path": "/etc/passwd"})).json();
    assert_eq!(outside["result"]["isError"], true, "{outside}");

    let entity = json!({"name": word, "entityType": "word", "observations": ["was said"]});
    daemon.text("memory", "create_entities", json!({"entities": [entity]}));
    let graph = daemon.text("memory", "read_graph", json!({}));
    assert!(graph.contains(word) && graph.contains("first"), "{graph}");

    let log = daemon.text("git", "git_log", json!({"repo_path": "/data"}));
    assert!(log.contains("a commit of the test"), "{log}");
}

/// A repository in the volume of `git`, with one commit. It belongs to root until the server starts; the files in it
/// are the server's own from the beginning.
fn make_repository(daemon: &Daemon) {
    let data = daemon.data_dir.join("volumes/git/data");
    std::fs::create_dir_all(&data).expect("a directory");
    let git = |arguments: &[&str]| {
        let who = ["-c", "user.name=test", "-c", "user.email=test@stdiod.invalid", "-C"];
        let whole = [&who[..], &[data.to_str().expect("our own name")], arguments].concat();
        support::registry::run("git", &whole);
    };
    git(&["init", "--quiet"]);
    git(&["commit", "--quiet", "--allow-empty", "--message", "a commit of the test"]);
    support::registry::run("chown", &["-R", "65534:65534", data.to_str().expect("our own name")]);
}

/// What tells the package managers of this machine where to fetch from and whom to trust: variables, and the files that
/// a sandbox does not see. Passed on as any user would: in the registration.
fn this_machines_settings() -> (Map<String, Value>, Map<String, Value>) {
    let prefixes = ["NPM_CONFIG_", "PIP_", "UV_"];
    let names = ["NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"];
    let is_setting = |name: &str| {
        let name = name.to_ascii_uppercase();
        names.contains(&name.as_str()) || prefixes.iter().any(|prefix| name.starts_with(prefix))
    };
    // Where a cache lies is the sandbox's own business.
    let is_place = |name: &str| ["CACHE", "DIR", "PREFIX", "USERCONFIG"].iter().any(|word| name.ends_with(word));
    let keep = |name: &str| is_setting(name) && (name == "SSL_CERT_DIR" || !is_place(&name.to_ascii_uppercase()));
    let mut variables: Map<String, Value> =
        std::env::vars().filter(|(name, _)| keep(name)).map(|(name, value)| (name, json!(value))).collect();
    let mut files = Map::new();
    let home = std::env::var("HOME").unwrap_or_default();
    let candidates = [
        (format!("{home}/.npmrc"), "/etc/npmrc", Some("NPM_CONFIG_USERCONFIG")),
        ("/etc/pip.conf".to_string(), "/etc/pip.conf", None),
        ("/etc/uv/uv.toml".to_string(), "/etc/uv/uv.toml", None),
    ];
    for (source, inside, variable) in candidates {
        let Ok(text) = std::fs::read_to_string(source) else { continue };
        files.insert(inside.to_string(), json!(text));
        if let Some(variable) = variable {
            variables.insert(variable.to_string(), json!(inside));
        }
    }
    (variables, files)
}
