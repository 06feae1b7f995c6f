//! The audit log and rates, on a real daemon: each kind of event with its line, no secret in any, a log that cannot be
//! written, and who asks too often.

use crate::support::{BASE, Daemon, Http, RUDE, Reply, eventually, python};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::Duration;

fn audit(daemon: &Daemon, query: &str) -> Vec<Value> {
    let reply = daemon.get(&format!("/api/v1/audit{query}"));
    assert_eq!(reply.status, 200, "{reply}");
    reply.json().as_array().expect("an array").clone()
}

fn echo(daemon: &Daemon, token: &str, server: &str) -> Reply {
    let body = json!({"method": "tools/call", "params": {"name": "echo", "arguments": {"text": "hunter2"}}});
    Http::connect(daemon.address(), token).request("POST", &format!("{BASE}/{server}/call"), Some(&body))
}

fn create(daemon: &Daemon, arguments: &[&str]) -> String {
    let created = daemon.cli_json(&[&["token", "create"], arguments].concat());
    created["token"].as_str().unwrap_or_else(|| panic!("no token in {created}")).to_string()
}

#[test]
fn every_kind_of_event_has_its_line_and_none_has_a_secret() {
    let daemon = Daemon::with("STDIOD_AUDIT_CALLS", "true").start();
    let mut definition = python("one", "crun", RUDE);
    definition["environment"] = json!({"API_KEY": "hunter2"});
    daemon.register(&definition);
    assert_eq!(daemon.try_register(&definition).status, 409);
    assert_eq!(daemon.request("PATCH", &format!("{BASE}/one"), Some(&json!({"queue_max": 7}))).status, 200);
    for action in ["restart", "stop", "start"] {
        assert_eq!(daemon.request("POST", &format!("{BASE}/one/{action}"), None).status, 200);
    }
    let reader = create(&daemon, &["reader", "--scope", "admin:read"]);
    let rotated = daemon.cli_json(&["token", "rotate", "reader"])["token"].as_str().expect("a token").to_string();
    assert_eq!(echo(&daemon, daemon.token(), "one").status, 200);
    assert_eq!(echo(&daemon, &rotated, "one").status, 403);
    assert_eq!(echo(&daemon, "hunter2", "one").status, 401);
    assert!(daemon.cli(&["token", "revoke", "reader"]).status.success());
    assert_eq!(daemon.request("DELETE", &format!("{BASE}/one"), None).status, 204);

    let mut lines = Vec::new();
    assert!(eventually(Duration::from_secs(10), || {
        lines = audit(&daemon, "?limit=1000");
        lines.iter().any(|line| line["type"] == "server.delete")
    }));
    for (kind, outcome, subject, target) in [
        ("server.register", "ok", "admin", "one"),
        ("server.register", "failed", "admin", "one"),
        ("server.update", "ok", "admin", "one"),
        ("server.restart", "ok", "admin", "one"),
        ("server.stop", "ok", "admin", "one"),
        ("server.start", "ok", "admin", "one"),
        ("server.delete", "ok", "admin", "one"),
        ("token.create", "ok", "admin", "reader"),
        ("token.rotate", "ok", "admin", "reader"),
        ("token.revoke", "ok", "admin", "reader"),
        ("tool.call", "ok", "admin", "one"),
        ("auth", "denied", "reader", "POST /api/v1/mcp/servers/one/call"),
        ("auth", "denied", "nobody", "POST /api/v1/mcp/servers/one/call"),
    ] {
        let is_it = |line: &&Value| {
            line["type"] == kind && line["outcome"] == outcome && line["subject"] == subject && line["target"] == target
        };
        let line = lines.iter().find(is_it).unwrap_or_else(|| panic!("{kind} {outcome} {subject}: {lines:#?}"));
        assert!(line["source"].as_str().is_some_and(|source| source.starts_with("127.0.0.1:")), "{line}");
        assert!(line["audit_id"].is_string() && line["logged_at"].is_string() && line["data"].is_object(), "{line}");
    }
    let registered = lines.iter().find(|line| line["type"] == "server.register").expect("just seen");
    assert_eq!(registered["data"]["environment"], json!(["API_KEY"]));
    let times: Vec<&str> = lines.iter().map(|line| line["logged_at"].as_str().expect("a time")).collect();
    assert!(times.is_sorted_by(|a, b| a >= b), "newest first: {times:?}");
    assert_eq!(audit(&daemon, "?type=auth").len(), 2);

    let file = daemon.data_dir.join("audit.log");
    assert_eq!(std::fs::metadata(&file).expect("a file").permissions().mode() & 0o777, 0o600);
    let text = std::fs::read_to_string(&file).expect("text");
    for secret in ["hunter2", &reader, &rotated, daemon.token()] {
        assert!(!text.contains(secret), "a secret is in the audit log");
    }
    assert_eq!(daemon.cli_json(&["audit", "--type", "token.create"])[0]["target"], "reader");
    // It is for those who see everything.
    let limited = create(&daemon, &["limited", "--scope", "admin:read", "--server", "one"]);
    let reply = Http::connect(daemon.address(), &limited).request("GET", "/api/v1/audit", None);
    assert_eq!(reply.status, 403, "{reply}");
}

#[test]
fn each_change_of_a_project_has_its_line_and_none_has_a_secret() {
    let daemon = Daemon::with("STDIOD_AUDIT_CALLS", "true").start();
    let mut http = daemon.http();
    let at = |path: &str| format!("/api/v1/projects/p-1{path}");
    let row = json!({"name": "tells", "transport": "stdio", "command": "/usr/bin/python3", "args": ["-c", RUDE],
        "env": {"API_KEY": "${TOKEN}", "LITERAL": "hunter2-literal"}});
    let manifest = json!({"mcp": {"servers": [{"name": "of-product", "transport": "http", "url": "http://127.0.0.1:9/mcp",
        "headers": {"Authorization": "Bearer hunter2-header"}}]}});
    let call = json!({"name": "echo", "server": "tells", "arguments": {"text": "hunter2-argument"}});
    let steps = [
        ("PUT", "/secrets/TOKEN", Some(json!({"value": "hunter2-secret"}))),
        ("POST", "/mcp/servers", Some(row)),
        ("POST", "/mcp/servers/tells/connect", None),
        ("POST", "/mcp/tools/call", Some(call)),
        ("PATCH", "/mcp/servers/tells", Some(json!({"description": "hunter2-description"}))),
        ("POST", "/mcp/servers/tells/disconnect", None),
        ("POST", "/products/search/manifest", Some(manifest)),
        ("POST", "/unload", None),
        ("DELETE", "/mcp/servers/tells", None),
        ("DELETE", "/secrets/TOKEN", None),
    ];
    for (method, path, body) in &steps {
        let reply = http.request(method, &at(path), body.as_ref());
        assert!((200..300).contains(&reply.status), "{method} {path}: {reply}");
    }
    let wanted = [
        ("secret.put", "p-1/TOKEN"),
        ("project.register", "p-1/tells"),
        ("project.connect", "p-1/tells"),
        ("tool.call", "p-1/tells"),
        ("project.update", "p-1/tells"),
        ("project.disconnect", "p-1/tells"),
        ("project.manifest", "p-1/search"),
        ("project.unload", "p-1"),
        ("project.delete", "p-1/tells"),
        ("secret.delete", "p-1/TOKEN"),
    ];
    let mut lines = Vec::new();
    let has = |lines: &[Value], (kind, target): (&str, &str)| {
        lines.iter().any(|line| line["type"] == kind && line["target"] == target && line["outcome"] == "ok")
    };
    eventually(Duration::from_secs(10), || {
        lines = audit(&daemon, "?limit=1000");
        wanted.iter().all(|line| has(&lines, *line))
    });
    for line in wanted {
        assert!(has(&lines, line), "{line:?}: {lines:#?}");
    }
    // A refused one too, and what cannot be.
    let reader = create(&daemon, &["reader", "--scope", "admin:read"]);
    let mut reader = Http::connect(daemon.address(), &reader);
    assert_eq!(reader.request("PUT", &at("/secrets/X"), Some(&json!({"value": "hunter2"}))).status, 403);
    assert_eq!(http.request("DELETE", &at("/mcp/servers/nobody"), None).status, 404);
    assert!(eventually(Duration::from_secs(10), || {
        let lines = audit(&daemon, "?limit=1000");
        let is =
            |kind: &str, outcome: &str| lines.iter().any(|line| line["type"] == kind && line["outcome"] == outcome);
        is("auth", "denied") && is("project.delete", "failed")
    }));
    let text = std::fs::read_to_string(daemon.data_dir.join("audit.log")).expect("text");
    assert!(!text.contains("hunter2"), "a value is in the audit log");
}

#[test]
fn with_continue_changes_go_on_while_the_log_cannot_be_written_and_the_gap_is_told() {
    let daemon = Daemon::with("STDIOD_AUDIT_MAX_BYTES", "64K").variable("STDIOD_AUDIT_ON_ERROR", "continue").start();
    daemon.register(&python("one", "crun", RUDE));
    let obstacle = daemon.data_dir.join("audit.log.1");
    std::fs::create_dir_all(obstacle.join("x")).expect("our directory");
    let mut stranger = Http::connect(daemon.address(), "wrong");
    for _ in 0..600 {
        assert_eq!(stranger.request("GET", BASE, None).status, 401);
    }
    daemon.wait_log(&["audit log", "cannot be written"]);
    assert_eq!(daemon.request("PATCH", &format!("{BASE}/one"), Some(&json!({"queue_max": 7}))).status, 200);
    std::fs::remove_dir_all(&obstacle).expect("our directory");
    daemon.wait_log(&["audit log is written again"]);
    assert!(eventually(Duration::from_secs(10), || !audit(&daemon, "?type=server.update").is_empty()), "it waited");
}

#[test]
fn the_command_line_follows_the_log() {
    let daemon = Daemon::start();
    let mut follower = daemon
        .command(&["audit", "-f"])
        .env("STDIOD_URL", daemon.url())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("stdiod");
    let mut lines = BufReader::new(follower.stdout.take().expect("a pipe")).lines();
    create(&daemon, &["watched", "--scope", "mcp:call"]);
    let found = lines.by_ref().map_while(Result::ok).find(|line| line.contains("token.create"));
    assert!(found.is_some_and(|line| line.contains("watched")));
    follower.kill().expect("it runs");
    follower.wait().expect("our child");
}

#[test]
fn while_the_audit_log_cannot_be_written_nothing_is_changed_and_afterwards_it_is() {
    let daemon = Daemon::with("STDIOD_AUDIT_MAX_BYTES", "64K").start();
    daemon.register(&python("one", "crun", RUDE));
    // Where the older half should go there is a directory with something in it: it cannot be rotated.
    let obstacle = daemon.data_dir.join("audit.log.1");
    std::fs::create_dir_all(obstacle.join("x")).expect("our directory");
    let mut stranger = Http::connect(daemon.address(), "wrong");
    for _ in 0..600 {
        assert_eq!(stranger.request("GET", BASE, None).status, 401);
    }
    daemon.wait_log(&["audit log", "cannot be written"]);
    let change = || daemon.request("PATCH", &format!("{BASE}/one"), Some(&json!({"queue_max": 7})));
    let refused = change();
    assert_eq!(refused.status, 503, "{refused}");
    assert!(refused.body_text().contains("audit log") && refused.header("retry-after").is_some(), "{refused}");
    assert_eq!(echo(&daemon, daemon.token(), "one").status, 200, "calls go on");
    assert_eq!(daemon.request("POST", &format!("{BASE}/one/stop"), None).status, 200, "what takes away always may");

    std::fs::remove_dir_all(&obstacle).expect("our directory");
    daemon.wait_log(&["audit log is written again"]);
    assert!(eventually(Duration::from_secs(10), || change().status == 200));
    assert!(eventually(Duration::from_secs(10), || !audit(&daemon, "?type=server.stop").is_empty()), "it waited");
    for name in ["audit.log", "audit.log.1"] {
        assert!(std::fs::metadata(daemon.data_dir.join(name)).expect("a file").len() <= 64 << 10, "{name}");
    }
}

#[test]
fn whoever_asks_too_often_is_told_when_to_come_back_and_others_do_not_notice() {
    let daemon = Daemon::start();
    daemon.register(&python("one", "crun", RUDE));
    let slow = create(&daemon, &["slow", "--scope", "mcp:call,admin:read", "--rate-limit", "1:3"]);
    let other = create(&daemon, &["other", "--scope", "mcp:call"]);
    let call = json!({"method": "tools/call", "params": {"name": "echo", "arguments": {"text": "x"}}});
    let mut client = Http::connect(daemon.address(), &slow);
    let mut ask = |body: &Value| client.request("POST", &format!("{BASE}/one/call"), Some(body));
    let statuses: Vec<u16> = (0..10).map(|_| ask(&call).status).collect();
    assert!(statuses.starts_with(&[200, 200, 200]) && statuses.contains(&429), "{statuses:?}");
    let refused = (0..5).map(|_| ask(&call)).find(|reply| reply.status == 429).expect("it asks too often");
    assert_eq!((refused.code(), refused.outcome()), (json!("rate_limited"), json!("not_sent")), "{refused}");
    assert_eq!(refused.header("retry-after"), Some("1"));
    for _ in 0..20 {
        assert_eq!(echo(&daemon, &other, "one").status, 200);
    }
    let mut reader = Http::connect(daemon.address(), &slow);
    assert_eq!((0..10).map(|_| reader.request("GET", BASE, None).status).collect::<Vec<_>>(), [200; 10]);
    // The same over MCP, where it counts too.
    let mut agent = Http::connect(daemon.address(), &slow);
    let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}});
    let mut post = || agent.request("POST", "/mcp/one", Some(&initialize));
    let refused = (0..10).map(|_| post()).find(|reply| reply.status == 429).expect("it asks too often");
    assert_eq!(refused.header("retry-after"), Some("1"), "{refused}");
    assert_eq!((&refused.json()["id"], &refused.json()["error"]["data"]["code"]), (&json!(1), &json!("rate_limited")));
    std::thread::sleep(Duration::from_millis(1_100));
    assert_eq!(echo(&daemon, &slow, "one").status, 200, "when it was told to come back");
}

#[test]
fn a_rate_for_everybody_is_each_ones_own() {
    let home = nix::unistd::mkdtemp("/tmp/rate-XXXXXX").expect("a directory in /tmp");
    let file = home.join("stdiod.toml");
    std::fs::write(&file, "[rate_limit]\nper_second = 1\nburst = 2\n").expect("our directory");
    let daemon = Daemon::with("STDIOD_CONFIG", file.display().to_string()).start();
    daemon.register(&python("one", "crun", RUDE));
    let tokens = ["a", "b"].map(|name| create(&daemon, &[name, "--scope", "mcp:call"]));
    let wide = create(&daemon, &["wide", "--scope", "mcp:call", "--rate-limit", "1000"]);
    for token in &tokens {
        let statuses: Vec<u16> = (0..5).map(|_| echo(&daemon, token, "one").status).collect();
        assert!(statuses.starts_with(&[200, 200]) && statuses.contains(&429), "{statuses:?}");
    }
    assert!((0..20).all(|_| echo(&daemon, &wide, "one").status == 200), "one of its own comes first");
    std::fs::remove_dir_all(home).expect("our directory");
}
