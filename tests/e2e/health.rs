//! Servers that hang, dawdle or never speak: what is said of them, and what is done.

use crate::support::{self, Daemon, RUDE, THREADS, on_both_providers, python, world};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

on_both_providers!(
    a_hung_server_is_unresponsive_and_comes_back_by_itself,
    a_server_that_is_stopped_inside_its_sandbox_is_told_apart_from_one_that_ended,
    a_heartbeat_alone_finds_the_silent,
    with_restart_the_hung_server_is_replaced_and_its_callers_are_told,
);

/// Goes on again even if the test fails, so that the daemon can end it.
struct Stopped(Pid);

impl Stopped {
    fn stop(pid: Pid) -> Stopped {
        world::stop(pid);
        Stopped(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

fn with_health(mut definition: Value, health: Value) -> Value {
    definition["health"] = health;
    definition
}

fn a_hung_server_is_unresponsive_and_comes_back_by_itself(provider: &str) {
    let daemon = Daemon::start();
    let health = json!({"heartbeat_ms": 60_000, "probe_timeout_ms": 1_000});
    daemon.register(&with_health(python("rude", provider, RUDE), health));
    // The daemon's own first questions are answered by now, and the next one is ours.
    assert_eq!(daemon.text("rude", "echo", json!({"text": "early"})), "early");
    let stopped = Stopped::stop(daemon.sandbox(provider, "/app/server.py"));
    let reply = daemon.tool_within("rude", "echo", json!({"text": "late"}), 1_000);
    assert_eq!((reply.status, reply.code(), reply.outcome()), (504, json!("call_timeout"), json!("sent_unknown")));
    let status = daemon.wait_until("rude", "unresponsive", |status| status["status"] == "unresponsive");
    assert_eq!((&status["container_status"], &status["bridge_connected"]), (&json!("running"), &json!(false)));
    assert!(status["health"]["warnings"].to_string().contains("unresponsive"), "{status:#}");
    daemon.wait_log(&["server=rude", "unresponsive"]);
    drop(stopped);
    let status = daemon.wait_ready("rude");
    assert_eq!((&status["restart_count"], &status["last_crash"]), (&json!(0), &Value::Null), "{status:#}");
    // The late reply was nobody's, least of all this call's.
    assert_eq!(daemon.text("rude", "echo", json!({"text": "mine"})), "mine");
    let logs = daemon.get(&format!("{}/rude/logs", support::BASE));
    let text = String::from_utf8_lossy(&logs.body).into_owned();
    assert!(text.contains(" health unresponsive") && text.contains("unresponsive -> ready"), "{text}");
}

/// Here it is not the sandbox that hangs but the server in it: it stops itself, and a companion of its own lets it go on.
fn a_server_that_is_stopped_inside_its_sandbox_is_told_apart_from_one_that_ended(provider: &str) {
    let daemon = Daemon::start();
    // The first process of a container cannot be stopped from within.
    let second = |name: &str, health: Value| {
        let mut definition = with_health(python(name, provider, RUDE), health);
        definition["cmd"] = json!(["/bin/sh", "-c", "/usr/bin/python3 /app/server.py; exit $?"]);
        definition["volumes"] = json!(["/data"]);
        definition
    };
    daemon.register(&second("rude", json!({"heartbeat_ms": 1_000, "probe_timeout_ms": 1_000})));
    assert_eq!(daemon.text("rude", "echo", json!({"text": "early"})), "early");
    let reply = daemon.tool_within("rude", "hang", json!({"until": "/data/go"}), 1_000);
    assert_eq!((reply.status, reply.code(), reply.outcome()), (504, json!("call_timeout"), json!("sent_unknown")));
    let status = daemon.wait_until("rude", "unresponsive", |status| status["status"] == "unresponsive");
    assert_eq!((&status["container_status"], &status["restart_count"]), (&json!("running"), &json!(0)), "{status:#}");
    daemon.inform("rude", "/data/go");
    let status = daemon.wait_ready("rude");
    assert_eq!((&status["restart_count"], &status["last_crash"]), (&json!(0), &Value::Null), "{status:#}");
    assert_eq!(daemon.text("rude", "echo", json!({"text": "mine"})), "mine");

    let health = json!({"heartbeat_ms": 60_000, "probe_timeout_ms": 500, "on_unresponsive": "restart"});
    daemon.register(&second("replaced", health));
    assert_eq!(daemon.text("replaced", "echo", json!({"text": "early"})), "early");
    let reply = daemon.tool_within("replaced", "hang", json!({"until": "/data/never"}), 500);
    assert_eq!((reply.status, reply.code()), (504, json!("call_timeout")), "{reply}");
    let status = daemon.wait_until("replaced", "back", |s| s["status"] == "ready" && s["restart_count"] == 1);
    assert!(status["last_error"].as_str().is_some_and(|error| error.contains("unresponsive")), "{status:#}");
    assert_eq!(daemon.text("replaced", "echo", json!({"text": "new"})), "new");
}

fn a_heartbeat_alone_finds_the_silent(provider: &str) {
    let daemon = Daemon::start();
    let health = json!({"heartbeat_ms": 500, "probe_timeout_ms": 500, "stale_ms": 1_000});
    daemon.register(&with_health(python("rude", provider, RUDE), health));
    let stopped = Stopped::stop(daemon.sandbox(provider, "/app/server.py"));
    let status = daemon.wait_until("rude", "unresponsive", |status| status["status"] == "unresponsive");
    assert_eq!(status["restart_count"], 0);
    daemon.wait_until("rude", "stale", |status| status["health"]["warnings"].to_string().contains("stale"));
    drop(stopped);
    daemon.wait_until("rude", "well", |s| s["status"] == "ready" && s["health"]["warnings"] == json!([]));
}

fn with_restart_the_hung_server_is_replaced_and_its_callers_are_told(provider: &str) {
    let daemon = Daemon::start();
    let health = json!({"heartbeat_ms": 60_000, "probe_timeout_ms": 500, "on_unresponsive": "restart"});
    let mut definition = with_health(python("threads", provider, THREADS), health);
    definition["max_in_flight"] = json!(2);
    daemon.register(&definition);
    assert_eq!(daemon.text("threads", "echo", json!({"text": "early"})), "early");
    let stopped = Stopped::stop(daemon.sandbox(provider, "/app/server.py"));
    std::thread::scope(|scope| {
        let patient = scope.spawn(|| daemon.tool_within("threads", "echo", json!({"text": "x"}), 80_000));
        daemon.wait_until("threads", "busy", |status| status["queue"]["in_flight"] == 1);
        let hasty = daemon.tool_within("threads", "echo", json!({"text": "x"}), 500);
        assert_eq!((hasty.status, hasty.code()), (504, json!("call_timeout")), "{hasty}");
        let told = patient.join().expect("no panic");
        assert_eq!((told.status, told.code()), (503, json!("mcp_restart_in_progress")), "{told}");
        let data = told.json()["error"]["data"].clone();
        assert_eq!((&data["outcome"], &data["attempt"]), (&json!("sent_unknown"), &json!(1)), "{told}");
        assert!(data["cause"].as_str().is_some_and(|cause| cause.contains("unresponsive")), "{told}");
        assert!(data["next_attempt_at"].as_str().is_some_and(|at| at.ends_with('Z')), "{told}");
        assert!(told.header("retry-after").is_some(), "{told}");
    });
    let status = daemon.wait_until("threads", "back", |s| s["status"] == "ready" && s["restart_count"] == 1);
    assert!(status["last_error"].as_str().is_some_and(|error| error.contains("unresponsive")), "{status:#}");
    assert_eq!(daemon.text("threads", "echo", json!({"text": "new"})), "new");
    drop(stopped);
}

#[test]
fn a_slow_call_of_a_server_that_answers_pings_changes_nothing() {
    let slow = Duration::from_secs(45);
    let daemon = Daemon::start();
    let health = json!({"heartbeat_ms": 1_000, "probe_timeout_ms": 3_000, "on_unresponsive": "restart"});
    let mut definition = with_health(python("threads", "crun", THREADS), health.clone());
    definition["max_in_flight"] = json!(2);
    daemon.register(&definition);
    // One that takes a single call at a time owes no answer to a ping meanwhile, and is not asked for one.
    daemon.register(&with_health(python("serial", "crun", RUDE), health));
    let began = Instant::now();
    std::thread::scope(|scope| {
        let ms = slow.as_millis() as u64;
        let daemon = &daemon;
        let calls: Vec<_> = ["threads", "serial"]
            .into_iter()
            .map(|name| scope.spawn(move || daemon.tool_within(name, "sleep", json!({"ms": ms}), 2 * ms)))
            .collect();
        while calls.iter().any(|call| !call.is_finished()) {
            for name in ["threads", "serial"] {
                let status = daemon.status(name);
                assert_eq!((&status["status"], &status["restart_count"]), (&json!("ready"), &json!(0)), "{status:#}");
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        for call in calls {
            assert_eq!(call.join().expect("no panic").text(), "slept");
        }
    });
    assert!(began.elapsed() >= slow);
    let pings: u64 = daemon.text("threads", "pings", json!({})).parse().expect("a number");
    assert!(pings >= 10, "it was asked {pings} times and answered");
    assert!(!daemon.log_contains("to=unresponsive"), "{}", daemon.log_tail());
}

#[test]
fn a_server_that_never_greets_is_told_apart_from_one_that_cannot() {
    let daemon = Daemon::start();
    let shell = |name: &str, script: &str| {
        let cmd = ["/bin/sh", "-c", script];
        let timeouts = json!({"startup_ms": 3_000});
        json!({"name": name, "rootfs": "host", "provider": "crun", "cmd": cmd, "timeouts": timeouts})
    };
    for (name, script, diagnosis) in [
        ("silent", "cat > /dev/null", "it is silent"),
        ("noisy", "while :; do echo hello; sleep 0.1; done", "that are no JSON-RPC"),
        ("exits", "exit 3", "exited with code 3"),
        ("missing", "exec /usr/bin/no-such-program", "exited with code 127"),
    ] {
        let mut definition = shell(name, script);
        definition["restart_policy"] = json!("never");
        let reply = daemon.try_register(&definition);
        assert_eq!(reply.status, 201, "{reply}");
        let status =
            daemon.wait_until(name, "over", |s| ["failed", "stopped"].contains(&s["status"].as_str().unwrap_or("")));
        let error = status["last_error"].as_str().unwrap_or_default();
        assert!(error.contains(diagnosis), "{name}: {error}");
    }
}
