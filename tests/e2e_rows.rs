//! Rows that others have written into the database: they are judged like requests before anything of them runs. What breaks
//! a rule is shown with the reason and can be put right or removed; nothing in a row stops the daemon or another server.

mod support;

use serde_json::{Value, json};
use std::collections::BTreeMap;
use stdiod::ids::Uuid;
use support::postgres::Postgres;
use support::{BASE, Daemon, SOON, eventually, inside, on_both_providers};

on_both_providers!(a_row_whose_name_is_a_path_reads_and_writes_nothing_of_the_host);

/// The stored form of what was registered, under another id and name, with some fields changed.
fn copy(postgres: &Postgres, of: &str, name: &str, change: impl Fn(&mut Value)) -> String {
    let mut client = postgres.client();
    let row = client.query_one("SELECT definition FROM kb.agent_workspaces WHERE name = $1", &[&of]).expect("a row");
    let mut definition: Value = row.get(0);
    definition["name"] = json!(name);
    change(&mut definition);
    let id = Uuid::new_v4();
    let insert = "INSERT INTO kb.agent_workspaces (id, container_type, name, desired, definition, status)
                  VALUES ($1, 'mcp_server', $2, 'up', $3, 'ready')";
    client.execute(insert, &[&id, &name, &definition]).expect("the table takes it");
    id.to_string()
}

fn a_row_whose_name_is_a_path_reads_and_writes_nothing_of_the_host(provider: &str) {
    let postgres = Postgres::start();
    let mut daemon = Daemon::with("DATABASE_URL", postgres.url()).start();
    let mut good = inside("good", provider);
    good["volumes"] = json!(["/data"]);
    daemon.register(&good);
    // What the volume `/data` of a server named `../../vault` would be.
    let vault = daemon.scratch("vault").join("data");
    std::fs::create_dir_all(&vault).expect("a directory");
    std::fs::write(vault.join("secret"), "of the host").expect("a file");
    assert!(daemon.stop().success());

    let id = copy(&postgres, "good", "vault", |definition| definition["name"] = json!("../../vault"));
    daemon.start_again();
    daemon.wait_ready("good");
    let listed = daemon.get(BASE).json();
    let names: Vec<&Value> = listed.as_array().expect("a list").iter().map(|status| &status["name"]).collect();
    assert_eq!(names, [&json!("good"), &json!("vault")], "{listed:#}");
    let status = daemon.status(&id);
    let why = status["last_error"].as_str().unwrap_or_default();
    assert!(status["status"] == "failed" && why.starts_with("name: "), "{status:#}");
    for action in ["start", "restart"] {
        let refused = daemon.request("POST", &format!("{BASE}/{id}/{action}"), None);
        assert_eq!((refused.status, refused.code()), (400, json!("invalid_request")), "{action}: {refused}");
    }
    assert_eq!(daemon.tool(&id, "run", json!({"code": "result = 1"})).status, 502, "nothing of it runs");
    assert_eq!(daemon.request("DELETE", &format!("{BASE}/{id}?volumes=true"), None).status, 204);
    assert_eq!(std::fs::read_dir(&vault).expect("it is there").count(), 1, "nothing was written or removed");
    assert_eq!(std::fs::read_to_string(vault.join("secret")).expect("it is there"), "of the host");
    assert!(postgres.eventually_true("SELECT count(*) = 1 FROM kb.agent_workspaces"));
}

#[test]
fn a_row_that_breaks_a_rule_is_not_started_says_why_and_can_be_put_right() {
    let postgres = Postgres::start();
    let mut daemon = Daemon::with("DATABASE_URL", postgres.url()).start();
    let mut good = inside("good", "crun");
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
    good["ports"] = json!([format!("{port}:80")]);
    good["stdio_bridge"] = json!(true);
    daemon.register(&good);
    assert!(daemon.stop().success());
    type Spoil = fn(&mut Value);
    let spoiled: [(&str, &str, Spoil); 10] = [
        ("host-network", "network: ", |d| (d["network"], d["ports"]) = (json!("host"), json!([]))),
        ("same-port", "ports[0]: ", |_| {}),
        ("no-provider", "provider: ", |d| (d["provider"], d["ports"]) = (json!("docker"), json!([]))),
        ("volume", "volumes[0].path: ", |d| (d["volumes"], d["ports"]) = (json!(["/a/../.."]), json!([]))),
        ("user", "user: ", |d| (d["user"], d["ports"]) = (json!("a b"), json!([]))),
        ("limits", "resource_limits.memory: ", |d| d["resource_limits"]["memory_bytes"] = json!(1)),
        ("newer", "definition: unknown field `from_the_future`", |d| d["from_the_future"] = json!({"x": "hunter2"})),
        ("torn", "definition: missing field `cmd`", |d| _ = d.as_object_mut().expect("an object").remove("cmd")),
        ("wrong", "definition: is not one of this version", |d| d["environment"]["KEY"] = json!(["hunter2"])),
        ("renamed", "name: ", |d| d["name"] = json!("good")),
    ];
    let ids: BTreeMap<&str, String> =
        spoiled.iter().map(|(name, _, spoil)| (*name, copy(&postgres, "good", name, spoil))).collect();
    daemon.start_again();
    daemon.wait_ready("good");
    for (name, why, _) in &spoiled {
        let status = daemon.status(&ids[name]);
        let told = status["last_error"].as_str().unwrap_or_default();
        assert_eq!((&status["status"], &status["name"]), (&json!("failed"), &json!(name)), "{status:#}");
        assert!(told.starts_with(why), "{name}: {told}");
        let refused = daemon.request("POST", &format!("{BASE}/{name}/start"), None);
        assert!(refused.status == 400 || refused.status == 409 || refused.status == 422, "{name}: {refused}");
    }
    assert!(!daemon.log_contains("hunter2"));
    daemon.look();
    assert_eq!(daemon.processes("/app/server.py"), 1, "only the good one runs");
    // A PATCH of something else does not help; one of the right field does.
    let patch = |name: &str, fields: Value| daemon.request("PATCH", &format!("{BASE}/{name}"), Some(&fields));
    assert_eq!(patch("host-network", json!({"queue_max": 7})).status, 400);
    let repaired = patch("host-network", json!({"network": null}));
    assert_eq!((repaired.status, &repaired.json()["status"]), (200, &json!("ready")), "{repaired}");
    assert_eq!(repaired.json()["last_error"], Value::Null);
    // Of a definition that cannot be read nothing is left but its name.
    let script = good["files"].clone();
    let repaired = patch("torn", json!({"rootfs": "host", "cmd": good["cmd"], "files": script, "provider": "crun"}));
    assert_eq!((repaired.status, &repaired.json()["status"]), (200, &json!("ready")), "{repaired}");
    // What was in the way is gone.
    assert_eq!(daemon.request("DELETE", &format!("{BASE}/good"), None).status, 204);
    let started = daemon.request("POST", &format!("{BASE}/same-port/start"), None);
    assert_eq!((started.status, &started.json()["status"]), (200, &json!("ready")), "{started}");

    assert!(daemon.stop().success());
    daemon.start_again();
    for name in ["host-network", "torn", "same-port"] {
        daemon.wait_ready(name);
    }
    assert_eq!(daemon.status("user")["status"], "failed");
}

#[test]
fn whatever_stands_in_the_tables_the_daemon_comes_up_and_each_row_can_be_removed() {
    const ROWS: usize = 400;
    let postgres = Postgres::start();
    let mut daemon = Daemon::with("DATABASE_URL", postgres.url()).start();
    let mut good = inside("good", "crun");
    good["volumes"] = json!(["/data"]);
    good["environment"] = json!({"A": "hunter2"});
    daemon.register(&good);
    assert!(daemon.stop().success());

    let mut client = postgres.client();
    let row = client.query_one("SELECT definition FROM kb.agent_workspaces", &[]).expect("a row");
    let seed: Value = row.get(0);
    // Somebody who may write rows may well have dropped what guards them.
    let guards = ["complete", "name", "desired", "definition", "restarts"];
    for guard in guards {
        let drop = format!("ALTER TABLE kb.agent_workspaces DROP CONSTRAINT agent_workspaces_mcp_server_{guard}");
        client.batch_execute(&drop).expect("a constraint");
    }
    client.batch_execute("DROP INDEX kb.agent_workspaces_mcp_server_name_key").expect("an index");
    client.batch_execute("UPDATE kb.agent_workspaces SET desired = 'down'").expect("a row");
    let mut random = Random(1);
    let names = ["good", "../../x", "", "a\n\u{1b}[2Jb", "invalid-", "UPPER", "twin", "twin", "ok-name"];
    for n in 0..ROWS {
        let mut definition = random.spoil(&seed, 3);
        let name = match random.below(3) {
            0 => Some(names[random.below(names.len())].to_string()),
            1 => definition["name"].as_str().map(|name| name.replace('\0', "")),
            _ => {
                if definition.is_object() {
                    definition["name"] = json!(format!("row-{n}"));
                }
                Some(format!("row-{n}"))
            }
        };
        let desired = ["down", "down", "down", "sideways", ""][random.below(5)];
        let status = ["ready", "asleep", "", "failed"][random.below(4)];
        let count = [0, -1, i64::MAX, i64::MIN][random.below(4)];
        let crash = [
            json!({"at_unix_ms": u64::MAX, "exit_code": -1, "signal": null, "oom": false, "stderr_tail": vec!["x"; 99]}),
            json!([]),
            random.value(3),
        ];
        let crash = crash[random.below(3)].clone();
        let time = ["'infinity'", "'-infinity'", "'4713-01-01 BC'", "'294276-01-01'", "now()", "NULL"][random.below(6)];
        let insert = format!(
            "INSERT INTO kb.agent_workspaces (id, container_type, name, desired, definition, status, restart_count,
                 last_crash, last_error, created_at, last_used_at)
             VALUES ($1, 'mcp_server', $2, $3, $4, $5, $6, $7, repeat('e', $8), coalesce({time}::timestamptz, now()), {time})"
        );
        let long = [0, 100_000][random.below(2)];
        let definition = Some(definition).filter(|_| random.below(20) > 0);
        client
            .execute(&insert, &[&Uuid::new_v4(), &name, &desired, &definition, &status, &count, &crash, &long])
            .expect("without guards the table takes anything");
        let token = "INSERT INTO kb.api_tokens (id, name, hash, scopes, servers) VALUES ($1, $2, sha256($3), $4, $5)";
        let scopes = [vec!["admin:write"], vec!["root", "*"], vec![]][random.below(3)].clone();
        let servers = [vec!["good"], vec!["../x"], vec![""]][random.below(3)].clone();
        let names = ["tok", "anonymous", "a b", "\u{1b}[2J"];
        let name = format!("{}{n}", names[random.below(4)]);
        client
            .execute(token, &[&Uuid::new_v4(), &name, &name.as_bytes(), &scopes, &servers])
            .expect("the table takes it");
    }
    client.batch_execute("INSERT INTO kb.volume_removals VALUES (gen_random_uuid(), '../../x')").expect("a row");

    daemon.start_again();
    let listed = daemon.get(BASE).json();
    let listed = listed.as_array().expect("a list");
    assert_eq!(listed.len(), ROWS + 1);
    let mut failed = 0;
    for status in listed {
        let name = status["name"].as_str().expect("a name");
        assert!(stdiod::api::definition::fields::server_name(name).is_ok(), "{name:?} is harmless");
        match status["status"].as_str() {
            Some("failed") => {
                failed += 1;
                assert!(status["last_error"].as_str().is_some_and(|why| why.contains(": ")), "{status:#}");
            }
            Some("stopped") => {}
            other => panic!("{other:?}: {status:#}"),
        }
    }
    assert!(failed > ROWS / 2 && failed < ROWS, "{failed} of {ROWS} break a rule");
    assert!(!daemon.log_contains("hunter2") && !daemon.log_contains("\u{1b}"));
    for token in daemon.cli_json(&["token", "ls"]).as_array().expect("a list") {
        assert!(stdiod::api::auth::token_name(token["name"].as_str().expect("a name")).is_ok(), "{token}");
    }
    for status in listed {
        let id = status["workspace_id"].as_str().expect("an id");
        assert_eq!(daemon.request("DELETE", &format!("{BASE}/{id}"), None).status, 204, "{status:#}");
    }
    assert!(eventually(SOON, || daemon.get(BASE).json() == json!([])));
    assert!(postgres.eventually_true("SELECT count(*) = 0 FROM kb.agent_workspaces"));
}

/// xorshift: the same rows in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }

    fn value(&mut self, depth: usize) -> Value {
        match self.below(if depth == 0 { 7 } else { 9 }) {
            0 => Value::Null,
            1 => json!(self.below(2) == 0),
            2 => json!([0, 1, -1, i64::MAX, i64::MIN][self.below(5)]),
            3 => json!([0.5, -0.0, 1e300][self.below(3)]),
            4 => json!(u64::MAX),
            5 => json!(["", "..", "/", "../../x", "a\nb", "0", "host"][self.below(7)]),
            6 => json!("x".repeat([10, 1000, 100_000][self.below(3)])),
            7 => (0..self.below(4)).map(|_| self.value(depth - 1)).collect(),
            _ => (0..self.below(4)).map(|n| (format!("k{n}"), self.value(depth - 1))).collect(),
        }
    }

    /// A few places of it hold something else.
    fn spoil(&mut self, seed: &Value, times: usize) -> Value {
        let mut spoiled = seed.clone();
        for _ in 0..self.below(times + 1) {
            let mut place = &mut spoiled;
            loop {
                let length = match &*place {
                    Value::Object(map) => map.len(),
                    Value::Array(list) => list.len(),
                    _ => 0,
                };
                if length == 0 || self.below(3) == 0 {
                    break;
                }
                let at = self.below(length);
                place = match place {
                    Value::Object(map) => map.iter_mut().nth(at).expect("counted").1,
                    Value::Array(list) => &mut list[at],
                    _ => unreachable!("it has parts"),
                };
            }
            *place = self.value(3);
        }
        spoiled
    }
}
