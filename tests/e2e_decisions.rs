//! Stop, delete and revoke: done at once, whether the database is there, away, or on a disk that is full, and not undone by
//! a SIGKILL at any moment. And volumes that were to be removed with their server: nobody ever sees them again.

mod support;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use std::io::Write;
use std::time::Duration;
use support::postgres::Postgres;
use support::{
    BASE, Daemon, Http, Options, RUDE, SOON, eventually, on_both_providers, python, python_with, tiny, world,
};

on_both_providers!(volumes_that_go_with_a_server_are_gone_whenever_the_daemon_is_killed);

fn volumes_that_go_with_a_server_are_gone_whenever_the_daemon_is_killed(provider: &str) {
    let kills = if provider == "crun" { 10 } else { 3 };
    let postgres = Postgres::start();
    let mut daemon = Daemon::with("DATABASE_URL", postgres.url()).start();
    // Neither SIGTERM nor the end of its input ends it: it is on its way out for ten seconds.
    let mut definition = python_with("deaf", provider, RUDE, &["ignore_term"]);
    definition["volumes"] = json!(["/data"]);
    let mut kept = python("kept", provider, RUDE);
    kept["volumes"] = json!(["/data"]);
    daemon.register(&kept);
    daemon.text("kept", "write", json!({"path": "/data/kept", "text": "still here"}));
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    for round in 0..kills {
        daemon.register(&definition);
        let found = daemon.tool("deaf", "read", json!({"path": "/data/secret"}));
        assert_eq!(found.status, 502, "round {round}: the one before has left something: {found}");
        daemon.text("deaf", "write", json!({"path": "/data/secret", "text": "of the one before"}));
        let mut http = daemon.http();
        let head = format!("Host: x\r\nAuthorization: Bearer {}\r\n\r\n", daemon.token());
        http.send_raw(format!("DELETE {BASE}/deaf?volumes=true HTTP/1.1\r\n{head}").as_bytes()).expect("sent");
        assert!(postgres.eventually_true("SELECT count(*) = 0 FROM kb.agent_workspaces WHERE name = 'deaf'"));
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        std::thread::sleep(Duration::from_millis(random % 1500));
        daemon.kill();
        daemon.start_again();
        assert_eq!(daemon.get(&format!("{BASE}/deaf")).status, 404);
        assert!(eventually(SOON, || !daemon.data_dir.join("volumes/deaf").exists()), "{}", daemon.log_tail());
        assert!(postgres.eventually_true("SELECT count(*) = 0 FROM kb.volume_removals"));
    }
    // What a plain DELETE has kept comes back with the name, also then.
    daemon.wait_ready("kept");
    assert_eq!(daemon.request("DELETE", &format!("{BASE}/kept"), None).status, 204);
    daemon.kill();
    daemon.start_again();
    daemon.register(&kept);
    assert_eq!(daemon.text("kept", "read", json!({"path": "/data/kept"})), "still here");
}

fn token(daemon: &Daemon, name: &str) -> String {
    let created = daemon.cli_json(&["token", "create", name, "--scope", "admin:read,mcp:call"]);
    created["token"].as_str().expect("a token").to_string()
}

fn is_known(daemon: &Daemon, token: &str) -> bool {
    match Http::connect(daemon.address(), token).request("GET", BASE, None).status {
        200 => true,
        401 => false,
        other => panic!("{other}"),
    }
}

/// Two servers that run, one that has volumes and goes with them, and a token that is in use.
struct Scene {
    token: String,
    stream: Http,
}

impl Scene {
    fn set(daemon: &Daemon) -> Scene {
        daemon.register(&tiny("stays", "crun"));
        daemon.register(&tiny("stops", "crun"));
        let mut goes = python("goes", "crun", RUDE);
        goes["volumes"] = json!(["/data"]);
        daemon.register(&goes);
        daemon.text("goes", "write", json!({"path": "/data/secret", "text": "old"}));
        let token = token(daemon, "guest");
        let mut stream = Http::connect(daemon.address(), &token);
        let head = format!("Host: x\r\nAuthorization: Bearer {token}\r\n\r\n");
        stream.send_raw(format!("GET /api/v1/mcp/events HTTP/1.1\r\n{head}").as_bytes()).expect("sent");
        assert_eq!(stream.line().expect("an answer"), "HTTP/1.1 200 OK");
        Scene { token, stream }
    }

    /// All of it is taken away, and really gone when it is answered.
    fn decide(&mut self, daemon: &Daemon) {
        let stopped = daemon.request("POST", &format!("{BASE}/stops/stop"), None);
        assert_eq!((stopped.status, &stopped.json()["status"]), (200, &json!("stopped")), "{stopped}");
        assert_eq!(daemon.processes("/app/tiny.sh"), 1, "it was stopped");
        let deleted = daemon.request("DELETE", &format!("{BASE}/goes?volumes=true"), None);
        assert_eq!(deleted.status, 204, "{deleted}");
        assert_eq!(daemon.processes("/app/server.py"), 0, "it is gone");
        assert!(!daemon.data_dir.join("volumes/goes").exists());
        assert_eq!(daemon.request("DELETE", "/api/v1/tokens/guest", None).status, 204);
        self.stream.read_to_close().expect("its stream ends");
        self.holds(daemon);
    }

    fn holds(&self, daemon: &Daemon) {
        assert!(!is_known(daemon, &self.token), "the token was revoked");
        assert_eq!(daemon.status("stops")["status"], "stopped");
        assert_eq!(daemon.get(&format!("{BASE}/goes")).status, 404);
        daemon.wait_ready("stays");
    }
}

/// The rows say it too.
const WRITTEN: &str = "SELECT (SELECT count(*) = 2 AND bool_and((name = 'stays') = (desired = 'up'))
        FROM kb.agent_workspaces WHERE container_type = 'mcp_server')
    AND NOT EXISTS (SELECT FROM kb.api_tokens WHERE name = 'guest') AND NOT EXISTS (SELECT FROM kb.volume_removals)";

#[test]
fn with_the_database_away_they_act_at_once_and_are_written_down_later() {
    let postgres = Postgres::start();
    let daemon = Daemon::with("DATABASE_URL", postgres.url()).start();
    let mut scene = Scene::set(&daemon);
    postgres.stop();
    assert!(eventually(SOON, || daemon.get("/readyz").status == 503));
    scene.decide(&daemon);
    let warning = daemon.status("stops")["warning"].as_str().unwrap_or_default().to_string();
    assert!(warning.contains("until the database is back"), "{warning}");
    for (method, path) in [("POST", "/stops/start"), ("PATCH", "/stays")] {
        let body = (method == "PATCH").then(|| json!({"queue_max": 5}));
        let refused = daemon.request(method, &format!("{BASE}{path}"), body.as_ref());
        assert_eq!((refused.status, refused.code()), (503, json!("store_unavailable")), "what gives waits: {refused}");
    }
    postgres.resume();
    assert!(postgres.eventually_true(WRITTEN));
    scene.holds(&daemon);
    // And everything can be had again.
    assert!(eventually(SOON, || daemon.request("POST", &format!("{BASE}/stops/start"), None).status == 200));
    assert!(eventually(SOON, || daemon.try_register(&tiny("goes", "crun")).status == 201));
    assert_ne!(token(&daemon, "guest"), scene.token);
}

#[test]
fn a_daemon_that_is_killed_while_the_database_is_away_has_not_forgotten_them() {
    let postgres = Postgres::start();
    let mut daemon = Daemon::with("DATABASE_URL", postgres.url()).start();
    let mut scene = Scene::set(&daemon);
    postgres.stop();
    scene.decide(&daemon);
    daemon.kill();
    postgres.resume();
    assert!(!postgres.eventually_true_within(Duration::ZERO, WRITTEN), "only the disk has it");
    daemon.start_again();
    scene.holds(&daemon);
    assert!(postgres.eventually_true(WRITTEN));
    // From here on the database has it, and the disk does not say it again.
    assert!(eventually(SOON, || daemon.request("POST", &format!("{BASE}/stops/start"), None).status == 200));
    daemon.kill();
    daemon.start_again();
    daemon.wait_ready("stops");
}

#[test]
fn on_a_full_disk_they_act_at_once_and_outlive_the_daemon() {
    let mut daemon = Options::default().on_a_disk_of(400 << 20).start();
    let mut scene = Scene::set(&daemon);
    let is_postmaster = |pid: &i32| {
        world::command_of(*pid).is_some_and(|command| command.contains("postgres") && command.contains(" -D"))
    };
    let filler = daemon.data_dir.join("filler");
    let mut file = std::fs::File::create(&filler).expect("a file");
    while file.write_all(&[7; 64 << 10]).is_ok() {}
    while file.write_all(&[7; 16]).is_ok() {}
    // The private database finds no room for its start.
    let postmaster = world::descendants(daemon.pid()).into_iter().find(is_postmaster).expect("a postmaster");
    kill(Pid::from_raw(postmaster), Signal::SIGKILL).expect("it runs");
    assert!(eventually(SOON, || daemon.get("/readyz").status == 503));
    scene.decide(&daemon);
    daemon.kill();
    drop(file);
    std::fs::remove_file(&filler).expect("our own file");
    daemon.start_again();
    scene.holds(&daemon);
}
