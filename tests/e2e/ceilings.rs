//! What somebody who is limited to some servers can get out of the daemon by asking: no more for a server than the ceilings
//! say, in any field and by any way, no variable that others have set, and no name that it may not see.

use crate::support::{BASE, Daemon, Http, RUDE, Reply, SOON, python, tiny};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn limited(daemon: &Daemon, name: &str, limits: &[&str]) -> String {
    let scopes = ["token", "create", name, "--scope", "admin:read,admin:write,mcp:call"];
    let made = daemon.cli_json(&[&scopes[..], limits].concat());
    made["token"].as_str().unwrap_or_else(|| panic!("{made}")).to_string()
}

fn ask(daemon: &Daemon, token: &str, method: &str, path: &str, body: Option<&Value>) -> Reply {
    Http::connect(daemon.address(), token).request(method, path, body)
}

fn with(mut definition: Value, field: &str, value: &Value) -> Value {
    definition[field] = value.clone();
    definition
}

#[test]
fn no_field_of_a_definition_goes_beyond_its_ceiling_by_any_way() {
    let daemon = Daemon::with("STDIOD_ALLOW_HOST_NETWORK", "true").start();
    let token = limited(&daemon, "tenant", &["--server", "one", "--server", "two", "--server", "three"]);
    assert_eq!(
        ask(&daemon, &token, "POST", BASE, Some(&tiny("one", "crun"))).status,
        201,
        "what asks for nothing more"
    );
    // What an administrator gave is there, and stays.
    let rich = with(tiny("two", "crun"), "resource_limits", &json!({"memory": "1G"}));
    daemon.register(&rich);
    let tries = [
        ("resource_limits", json!({"cpu": "0.6"}), "resource_limits.cpu"),
        ("resource_limits", json!({"memory": "513M"}), "resource_limits.memory"),
        ("resource_limits", json!({"disk": "2G"}), "resource_limits.disk"),
        ("resource_limits", json!({"pids": 257}), "resource_limits.pids"),
        ("resource_limits", json!({"volume": "2G"}), "resource_limits.volume"),
        ("ports", json!(["0.0.0.0:18080:80"]), "ports[0]"),
        ("ports", json!(["18080:80", {"host": 18081, "container": 80, "address": "::"}]), "ports[1]"),
        ("ports", json!(["80:80"]), "ports[0]"),
        ("network", json!("host"), "network"),
        ("network", json!("lan"), "network"),
    ];
    for (field, value, told) in &tries {
        for (way, reply) in [
            ("POST", ask(&daemon, &token, "POST", BASE, Some(&with(tiny("one", "crun"), field, value)))),
            ("PATCH", ask(&daemon, &token, "PATCH", &format!("{BASE}/one"), Some(&json!({ *field: value })))),
        ] {
            assert_eq!((reply.status, reply.code()), (403, json!("forbidden")), "{way} {field} {value}: {reply}");
            assert_eq!(reply.json()["error"]["data"]["field"], *told, "{way} {field} {value}: {reply}");
        }
    }
    for (field, value, _) in &tries {
        let document = json!({"stdiod": 1, "servers": [with(tiny("three", "crun"), field, value)]});
        let reply = ask(&daemon, &token, "POST", "/api/v1/mcp/import", Some(&document));
        assert_eq!((reply.status, reply.code()), (403, json!("forbidden")), "import {field} {value}: {reply}");
    }
    let status = daemon.status("one");
    assert_eq!(status["resource_limits"]["memory"], "512M", "{status}");
    // To change something else is no offence; to have less neither; more is.
    let patch = |body: Value| ask(&daemon, &token, "PATCH", &format!("{BASE}/two"), Some(&body)).status;
    assert_eq!(patch(json!({"queue_max": 7})), 200);
    assert_eq!(patch(json!({"resource_limits": {"memory": "900M"}})), 200);
    assert_eq!(patch(json!({"resource_limits": {"memory": "1G"}})), 403);
    assert_eq!(
        daemon.request("PATCH", &format!("{BASE}/two"), Some(&json!({"resource_limits": {"memory": "1G"}}))).status,
        200
    );
}

#[test]
fn no_row_of_a_project_goes_beyond_the_ceilings() {
    let daemon = Daemon::with("STDIOD_ALLOW_ISOLATION_NONE", "true").start();
    let token = limited(&daemon, "tenant", &["--project", "shop"]);
    let servers = "/api/v1/projects/shop/mcp/servers";
    let row = |config: Value| json!({"name": "a", "transport": "stdio", "config": config, "enabled": false});
    let plain = json!({"command": "cat"});
    assert_eq!(ask(&daemon, &token, "POST", servers, Some(&row(plain))).status, 201);
    for (config, field) in [
        (json!({"command": "cat", "isolation": "none"}), "config.isolation"),
        (json!({"command": "cat", "network": "lan"}), "config.network"),
    ] {
        let manifest = json!({"mcp": {"servers": [{"name": "b", "transport": "stdio", "command": "cat",
            field.trim_start_matches("config."): config[field.trim_start_matches("config.")]}]}});
        for (way, reply) in [
            ("POST", ask(&daemon, &token, "POST", servers, Some(&with(row(config.clone()), "name", &json!("b"))))),
            ("PATCH", ask(&daemon, &token, "PATCH", &format!("{servers}/a"), Some(&json!({"config": config})))),
            ("manifest", ask(&daemon, &token, "POST", "/api/v1/projects/shop/products/crm/manifest", Some(&manifest))),
        ] {
            assert_eq!((reply.status, reply.code()), (403, json!("forbidden")), "{way} {config}: {reply}");
            assert_eq!(reply.json()["error"]["data"]["field"], field, "{way} {config}: {reply}");
        }
    }
}

/// Each of these would make the program tell, or others' code read, what is in the environment.
#[test]
fn nobody_who_is_limited_reads_a_variable_of_others_by_changing_what_runs() {
    let daemon = Daemon::start();
    let token = limited(&daemon, "tenant", &["--server", "one"]);
    let secret = with(python("one", "crun", RUDE), "environment", &json!({"SECRET": "s3cr3t"}));
    for change in [
        json!({"cmd": ["/usr/bin/env"]}),
        json!({"files": {"/app/server.py": "print(1)"}}),
        json!({"workdir": "/tmp"}),
        json!({"user": "1000:1000"}),
        json!({"volumes": ["/data"]}),
        json!({"environment": {"PYTHONINSPECT": "1"}}),
    ] {
        daemon.register(&secret);
        let reply = ask(&daemon, &token, "PATCH", &format!("{BASE}/one"), Some(&change));
        assert_eq!(reply.status, 200, "{change}: {reply}");
        let now = reply.json();
        assert!(!now["environment"].to_string().contains("SECRET"), "{change}: {now}");
        assert!(now["warning"].to_string().contains("environment"), "and it is told: {change}: {now}");
        assert_eq!(daemon.request("DELETE", &format!("{BASE}/one"), None).status, 204);
    }
}

#[test]
fn a_name_that_may_not_be_seen_answers_as_one_that_is_not_there_and_in_the_same_time() {
    let daemon = Daemon::start();
    let token = limited(&daemon, "tenant", &["--server", "mine"]);
    daemon.register(&tiny("hidden", "crun"));
    let call = json!({"method": "ping"});
    let answer = |method: &str, path: String, body: Option<&Value>, name: &str| {
        let reply = ask(&daemon, &token, method, &path, body);
        (reply.status, reply.body_text().replace(name, "NAME"))
    };
    for (method, rest, body) in [
        ("GET", "", None),
        ("GET", "/definition", None),
        ("GET", "/logs", None),
        ("GET", "/tools", None),
        ("POST", "/call", Some(&call)),
        ("POST", "/restart", None),
        ("POST", "/stop", None),
        ("PATCH", "", Some(&call)),
        ("DELETE", "", None),
    ] {
        let of = |name: &str| answer(method, format!("{BASE}/{name}{rest}"), body, name);
        assert_eq!(of("hidden"), of("nobody"), "{method} {rest}");
    }
    let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}});
    let of = |name: &str| answer("POST", format!("/mcp/{name}"), Some(&initialize), name);
    assert_eq!(of("hidden"), of("nobody"));
    // Without a token neither is told.
    let nobodys = |name: &str| ask(&daemon, "", "GET", &format!("{BASE}/{name}"), None).body_text();
    assert_eq!(nobodys("hidden"), nobodys("nobody"));

    // In turns, so that whatever else this machine does falls on both.
    let mut client = Http::connect(daemon.address(), &token);
    let mut times: [Vec<Duration>; 2] = [Vec::new(), Vec::new()];
    for round in 0..2000 {
        let which = round % 2;
        let path = format!("{BASE}/{}", ["hidden", "nobody"][which]);
        let asked = Instant::now();
        assert_eq!(client.request("GET", &path, None).status, 404);
        times[which].push(asked.elapsed());
    }
    let [hidden, nobody] = times.map(|mut all| {
        all.sort();
        all[all.len() / 2]
    });
    let (less, more) = (hidden.min(nobody), hidden.max(nobody));
    // Not their absolute times, which are the machine's: the one is no multiple of the other.
    assert!(more < less * 3 / 2 && SOON > more, "the median of a hidden name {hidden:?}, of no name {nobody:?}");
}
