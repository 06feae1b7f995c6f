//! Secrets at rest, on a real daemon: a key that is lost and comes back, and a rotation of the key that is killed at any moment.

use crate::support::{self, BASE, Daemon, RUDE, Reply, python, world};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use stdiod::sealing::{Missing, Sealer};

const SECRET: &str = "hunter2-of-the-operator";
const PROJECT_SECRET: &str = "hunter3-of-a-project";
/// So many times a daemon is killed while it rotates its key.
const KILLS: u64 = 20;

/// A project whose external server has a secret in its environment, and tells it when it is asked.
fn register_project(daemon: &Daemon) {
    let secret = json!({"value": PROJECT_SECRET});
    let put = daemon.request("PUT", "/api/v1/projects/p-1/secrets/TOKEN", Some(&secret));
    assert!((200..300).contains(&put.status), "{put}");
    let server = json!({"name": "tells", "transport": "stdio", "command": "/usr/bin/python3", "args": ["-c", RUDE],
        "env": {"API_KEY": "${TOKEN}"}});
    let made = daemon.request("POST", "/api/v1/projects/p-1/mcp/servers", Some(&server));
    assert_eq!(made.status, 201, "{made}");
}

fn project_key(daemon: &Daemon) -> Value {
    let call = json!({"name": "env", "arguments": {}, "timeout_ms": 60_000});
    let reply = daemon.request("POST", "/api/v1/projects/p-1/mcp/tools/call", Some(&call));
    assert_eq!(reply.status, 200, "{reply}");
    let seen: Value = serde_json::from_str(&reply.text()).expect("JSON");
    seen["API_KEY"].clone()
}

/// Files below `directory` that hold these bytes.
fn files_with(directory: &std::path::Path, bytes: &str) -> Vec<String> {
    let found = std::process::Command::new("grep").args(["-rlaF", bytes]).arg(directory).output().expect("grep");
    String::from_utf8_lossy(&found.stdout).lines().map(str::to_string).collect()
}

/// Command lines of what the daemon starts while `act` runs: launchers, runtimes, servers. Those that hold `bytes`.
fn command_lines_with(daemon: &Daemon, bytes: &str, act: impl FnOnce()) -> Vec<String> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let (mut seen, mut found) = (0, BTreeSet::new());
            while !over.load(Ordering::Relaxed) {
                let commands = world::descendants(daemon.pid()).into_iter().filter_map(world::command_of);
                for command in commands {
                    seen += 1;
                    if command.contains(bytes) {
                        found.insert(command);
                    }
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            assert!(seen > 0, "there are helpers");
            found.into_iter().collect()
        });
        act();
        over.store(true, Ordering::Relaxed);
        watcher.join().expect("it watches")
    })
}

#[test]
fn no_value_of_a_secret_is_in_the_data_directory_a_backup_a_listing_a_log_or_a_command_line() {
    let mut daemon = Daemon::with("STDIOD_LOG", "debug").start();
    let mut definition = python("one", "crun", RUDE);
    definition["environment"] = json!({"API_KEY": SECRET});
    let shown = command_lines_with(&daemon, "hunter", || {
        daemon.register(&definition);
        register_project(&daemon);
        assert_eq!((api_key(&daemon), project_key(&daemon)), (json!(SECRET), json!(PROJECT_SECRET)));
        let patched = patch(&daemon, json!({"environment": {"API_KEY": "hunter2-changed"}}));
        assert_eq!(patched.status, 200, "{patched}");
        wait_ready(&daemon);
    });
    assert_eq!(shown, [""; 0]);
    let project = "/api/v1/projects/p-1";
    for listing in [BASE.to_string(), format!("{BASE}/one/definition"), format!("{BASE}/one/logs")].into_iter().chain(
        ["secrets", "mcp/servers", "mcp/servers/tells", "mcp/tools", "mcp/calls"]
            .map(|what| format!("{project}/{what}")),
    ) {
        let told = daemon.get(&listing);
        assert_eq!(told.status, 200, "{listing}: {told}");
        assert!(!told.body_text().contains("hunter"), "{listing}: {told}");
    }
    assert!(daemon.log_lines().iter().all(|line| !line.contains("hunter")), "in the daemon's own log");
    let backup = std::process::Command::new(support::postgres::programs().join("pg_dump"))
        .args(["--username=stdiod", "--dbname=postgres", "--host"])
        .arg(daemon.data_dir.join("pg"))
        .output()
        .expect("pg_dump");
    let backup = String::from_utf8_lossy(&backup.stdout).into_owned();
    assert!(backup.contains("sealed1:") && backup.contains("API_KEY"), "it is a backup of this database");
    for value in ["hunter2", "hunter3"] {
        assert!(!backup.contains(value), "a value is in the backup");
        // But for what the runtime of a running instance reads, closed to all but root, which goes with the instance.
        let run = daemon.data_dir.join("run").display().to_string();
        assert_eq!(std::fs::metadata(&run).expect("a directory").permissions().mode() & 0o777, 0o700);
        let found = files_with(&daemon.data_dir, value);
        let kept: Vec<&String> = found.iter().filter(|file| !file.starts_with(&run)).collect();
        assert!(kept.is_empty(), "{value}: {kept:?}");
    }
    assert!(daemon.stop().success());
    for value in ["hunter2", "hunter3"] {
        assert_eq!(files_with(&daemon.data_dir, value), [""; 0], "after the end");
    }
}

/// The three places of the key, one after the other, with one secret that goes from one to the next.
#[test]
fn the_key_comes_from_the_data_directory_a_file_or_the_credential_of_a_unit() {
    let mut daemon = Daemon::start();
    let mut definition = python("one", "crun", RUDE);
    definition["environment"] = json!({"API_KEY": SECRET});
    daemon.register(&definition);
    let own = find_key(&daemon);
    assert!(daemon.stop().success());
    let elsewhere = daemon.scratch("keys");
    std::fs::rename(&own, elsewhere.join("key")).expect("a key");
    daemon.set_variable("STDIOD_SECRET_KEY_FILE", elsewhere.join("key").display().to_string());
    daemon.start_again();
    wait_ready(&daemon);
    assert_eq!(api_key(&daemon), SECRET);
    assert!(daemon.stop().success());
    // As `LoadCredential=secret.key:…` puts it there.
    std::fs::rename(elsewhere.join("key"), elsewhere.join("secret.key")).expect("a key");
    daemon.set_variable("STDIOD_SECRET_KEY_FILE", "");
    daemon.set_variable("CREDENTIALS_DIRECTORY", elsewhere.display().to_string());
    daemon.start_again();
    wait_ready(&daemon);
    assert_eq!(api_key(&daemon), SECRET);
    let refused = daemon.cli(&["secret", "rotate"]);
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("only systemd can replace"), "{refused:?}");
    assert!(!own.exists(), "none is made beside it");
}

fn api_key(daemon: &Daemon) -> Value {
    let seen: Value = serde_json::from_str(&daemon.text("one", "env", json!({}))).expect("JSON");
    seen["API_KEY"].clone()
}

fn patch(daemon: &Daemon, fields: Value) -> Reply {
    daemon.request("PATCH", &format!("{BASE}/one"), Some(&fields))
}

fn wait_ready(daemon: &Daemon) {
    let ready = || daemon.status("one")["status"] == "ready";
    assert!(support::eventually(Duration::from_secs(30), ready), "{}", daemon.status("one"));
}

#[test]
fn without_its_key_a_server_says_so_and_is_neither_started_nor_overwritten_and_others_run() {
    let mut daemon = Daemon::start();
    let mut definition = python("one", "crun", RUDE);
    definition["environment"] = json!({"API_KEY": SECRET, "MODE": "plain"});
    daemon.register(&definition);
    daemon.register(&python("two", "crun", RUDE));
    assert_eq!(api_key(&daemon), SECRET);
    let (key, kept) = (find_key(&daemon), daemon.scratch("kept").join("key"));
    daemon.kill();
    std::fs::rename(&key, &kept).expect("a key");
    daemon.start_again();

    assert!(support::eventually(Duration::from_secs(30), || daemon.status("two")["status"] == "ready"));
    let status = daemon.status("one");
    assert_eq!((&status["status"], &status["environment"]), (&json!("failed"), &json!(["API_KEY", "MODE"])));
    assert!(status["last_error"].as_str().is_some_and(|why| why.contains("secret.key")), "{status}");
    for fields in [json!({"queue_max": 7}), json!({"environment": {"API_KEY": "x"}}), json!({"enabled": true})] {
        let reply = patch(&daemon, fields);
        assert_eq!((reply.status, reply.code()), (422, json!("secret_missing")), "{reply}");
    }
    for action in ["start", "restart"] {
        let reply = daemon.request("POST", &format!("{BASE}/one/{action}"), None);
        assert_eq!((reply.status, reply.code()), (422, json!("secret_missing")), "{action}: {reply}");
    }
    assert_eq!(daemon.request("POST", &format!("{BASE}/one/stop"), None).status, 200);
    assert!(!key.exists(), "nothing is put in the place of a lost key");

    daemon.kill();
    std::fs::rename(&kept, &key).expect("a key");
    daemon.start_again();
    assert_eq!(daemon.request("POST", &format!("{BASE}/one/start"), None).status, 200);
    wait_ready(&daemon);
    assert_eq!(api_key(&daemon), SECRET);

    // A key that is lost for good: another one, and all values again.
    daemon.kill();
    let other = daemon.scratch("other").join("key");
    drop(Sealer::from_file(&other, Missing::Create).expect("a key"));
    std::fs::rename(other, &key).expect("another key");
    daemon.start_again();
    assert_eq!(daemon.status("one")["status"], "failed");
    let reply = patch(&daemon, json!({"environment": {"API_KEY": "new", "MODE": null}}));
    assert_eq!(reply.status, 200, "{reply}");
    wait_ready(&daemon);
    assert_eq!(api_key(&daemon), "new");
}

fn find_key(daemon: &Daemon) -> std::path::PathBuf {
    let found = std::process::Command::new("find").arg(daemon.home()).args(["-name", "secret.key"]).output();
    let text = String::from_utf8(found.expect("find").stdout).expect("a path");
    text.lines().next().unwrap_or_else(|| panic!("no key below {}", daemon.home().display())).into()
}

#[test]
fn a_rotation_of_the_key_that_is_killed_at_any_moment_loses_nothing() {
    let mut daemon = Daemon::start();
    let mut definition = python("one", "crun", RUDE);
    definition["environment"] = json!({"API_KEY": SECRET});
    daemon.register(&definition);
    register_project(&daemon);
    assert_eq!(project_key(&daemon), PROJECT_SECRET);
    let key = find_key(&daemon);
    let before = std::fs::read(&key).expect("a key");
    let rotated = daemon.cli(&["key", "rotate"]);
    assert!(rotated.status.success(), "{rotated:?}");
    assert_ne!(std::fs::read(&key).expect("a key"), before);
    // Every moment once, and none after the other in order: what one leaves is what the next one finds.
    for moment in (0..KILLS).map(|number| number * 7 % KILLS) {
        let mut rotation =
            daemon.command(&["secret", "rotate"]).stderr(Stdio::null()).stdout(Stdio::null()).spawn().expect("stdiod");
        std::thread::sleep(Duration::from_millis(2 + 2 * moment));
        daemon.kill();
        _ = rotation.wait();
        daemon.start_again();
        wait_ready(&daemon);
        assert_eq!(api_key(&daemon), SECRET, "killed after {moment}");
        assert_eq!(project_key(&daemon), PROJECT_SECRET, "killed after {moment}");
        assert!(!key.with_file_name("secret.key.next").exists(), "it is finished");
    }
}
