//! Records of a project's tool calls in a real PostgreSQL: all of them are there, also after it was away, and no call waits.

use crate::support::postgres::Postgres;
use crate::support::{Daemon, SOON, STRICT, eventually, python};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const CALL: &str = "/api/v1/projects/p-1/mcp/tools/call";

fn with_project(postgres: &Postgres) -> Daemon {
    let daemon = Daemon::with("DATABASE_URL", postgres.url()).start();
    let mut mine = python("mine", "crun", STRICT);
    mine["project"] = json!("p-1");
    mine["queue_max"] = json!(64);
    daemon.register(&mine);
    daemon
}

fn body(text: &str, run_id: &str) -> Value {
    json!({"name": "echo", "arguments": {"text": text, "work_ms": 0}, "run_id": run_id})
}

fn dropped(daemon: &Daemon) -> u64 {
    let metrics = daemon.get("/metrics").body_text();
    let value = metrics.lines().find_map(|line| line.strip_prefix("stdiod_call_records_dropped_total "));
    value.expect("it is counted").parse().expect("a number")
}

#[test]
fn ten_thousand_calls_make_ten_thousand_records() {
    const CLIENTS: u64 = 4;
    const EACH: u64 = 2_500;
    let postgres = Postgres::start();
    let daemon = with_project(&postgres);
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let daemon = &daemon;
            scope.spawn(move || {
                let mut http = daemon.http();
                for _ in 0..EACH {
                    let reply = http.request("POST", CALL, Some(&body("x", &format!("run-{client}"))));
                    assert_eq!(reply.status, 200, "{reply}");
                }
            });
        }
    });
    let all = postgres.eventually_true("SELECT count(*) = 10000 FROM kb.agent_run_tool_calls");
    assert!(all, "{} were dropped\n{}", dropped(&daemon), daemon.log_tail());
    assert!(postgres.eventually_true(
        "SELECT bool_and(server = 'mine' AND tool = 'echo' AND principal = 'admin' AND NOT is_error AND outcome = 'answered'
            AND arguments::text LIKE '%\"text\"%' AND duration_ms >= 0 AND result_bytes > 0) FROM kb.agent_run_tool_calls"
    ));
    assert_eq!(dropped(&daemon), 0);
    let of_one = daemon.get("/api/v1/projects/p-1/mcp/calls?run_id=run-2&tool=echo&server=mine&limit=1000").json();
    let all = of_one.as_array().expect("a list");
    assert!(all.len() == 1000 && all.iter().all(|call| call["run_id"] == "run-2"), "{}", of_one[0]);
    for nothing in ["server=other", "tool=other", "run_id=other", "since=2099-01-01T00:00:00Z"] {
        assert_eq!(daemon.get(&format!("/api/v1/projects/p-1/mcp/calls?{nothing}")).json(), json!([]), "{nothing}");
    }
    assert_eq!(daemon.get("/api/v1/projects/p-2/mcp/calls").json(), json!([]), "of another project");
}

#[test]
fn with_postgresql_away_no_call_fails_or_waits_and_records_follow_or_are_counted() {
    let postgres = Postgres::start();
    let daemon = with_project(&postgres);
    let (over, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    let load = || {
        let mut http = daemon.http();
        let mut slowest = Duration::ZERO;
        while !over.load(Ordering::Relaxed) {
            let began = Instant::now();
            let reply = http.request("POST", CALL, Some(&body("x", "run")));
            assert_eq!(reply.status, 200, "{reply}");
            slowest = slowest.max(began.elapsed());
            calls.fetch_add(1, Ordering::Relaxed);
        }
        slowest
    };
    std::thread::scope(|scope| {
        let clients = [scope.spawn(load), scope.spawn(load)];
        let more = |than: u64| eventually(SOON, || calls.load(Ordering::Relaxed) > than);
        assert!(more(200));
        postgres.stop();
        let away = Instant::now();
        assert!(more(calls.load(Ordering::Relaxed) + 1_000));
        let secs = std::env::var("STDIOD_AWAY_SECS").map_or(3, |secs| secs.parse().expect("a number of seconds"));
        assert!(eventually(Duration::from_secs(secs) + SOON, || away.elapsed() > Duration::from_secs(secs)));
        postgres.resume();
        over.store(true, Ordering::Relaxed);
        for client in clients {
            let slowest = client.join().expect("no call failed");
            assert!(slowest < Duration::from_secs(5), "a call waited {slowest:?} for the database");
        }
    });
    let all = calls.load(Ordering::Relaxed) - dropped(&daemon);
    assert!(postgres.eventually_true(&format!("SELECT count(*) = {all} FROM kb.agent_run_tool_calls")), "of {all}");
}

#[test]
fn a_killed_daemon_loses_at_most_what_had_no_time_to_be_written() {
    let postgres = Postgres::start();
    let mut daemon = with_project(&postgres);
    for _ in 0..50 {
        assert_eq!(daemon.request("POST", CALL, Some(&body("x", "early"))).status, 200);
    }
    assert!(postgres.eventually_true("SELECT count(*) = 50 FROM kb.agent_run_tool_calls"));
    for _ in 0..20 {
        assert_eq!(daemon.request("POST", CALL, Some(&body("x", "late"))).status, 200);
    }
    daemon.kill();
    daemon.start_again();
    assert!(postgres.eventually_true(
        "SELECT count(*) FILTER (WHERE run_id = 'early') = 50 AND count(*) <= 70 FROM kb.agent_run_tool_calls"
    ));
    daemon.wait_ready("mine");
    assert_eq!(daemon.request("POST", CALL, Some(&body("x", "after"))).status, 200);
    assert!(postgres.eventually_true("SELECT count(*) = 1 FROM kb.agent_run_tool_calls WHERE run_id = 'after'"));
}

#[test]
fn a_daemon_that_stops_writes_its_records_first_and_arguments_are_left_out_if_that_is_configured() {
    let postgres = Postgres::start();
    let mut daemon = Daemon::with("DATABASE_URL", postgres.url()).variable("STDIOD_RECORD_ARGUMENTS", "false").start();
    let mut mine = python("mine", "crun", STRICT);
    mine["project"] = json!("p-1");
    daemon.register(&mine);
    assert_eq!(daemon.request("POST", CALL, Some(&body("hush", "last"))).status, 200);
    assert!(daemon.stop().success());
    assert!(postgres.eventually_true(
        "SELECT count(*) = 1 AND bool_and(arguments IS NULL AND arguments_bytes > 0) FROM kb.agent_run_tool_calls"
    ));
}
