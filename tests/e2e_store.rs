//! PostgreSQL goes away under a running daemon and comes back: calls do not notice, changes are refused, nothing is lost.

mod support;

use serde_json::json;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use stdiod::limits::STORE_WAIT;
use support::postgres::Postgres;
use support::{BASE, Daemon, RUDE, SOON, STRICT, eventually, python};

/// How long it stays away. Nothing in the daemon counts the seconds; `STDIOD_AWAY_SECS=60` makes it a minute.
fn away() -> Duration {
    let secs = std::env::var("STDIOD_AWAY_SECS").map_or(8, |secs| secs.parse().expect("a number of seconds"));
    Duration::from_secs(secs)
}

/// How long the same load is watched in each of the two situations.
const MEASURED: Duration = Duration::from_secs(3);
/// What other programs on a small machine may add to the middle of a few hundred calls. A wait for the database would
/// be a hundred times as long, or for ever.
const NOISE: Duration = Duration::from_millis(5);

/// What the calls of a time took.
#[derive(Debug)]
struct Times {
    #[allow(dead_code)] // for whoever reads the test's output
    calls: usize,
    p50: Duration,
    p90: Duration,
}

impl Times {
    fn within(span: &Range<Instant>, took: &[(Instant, Duration)]) -> Times {
        let mut took: Vec<Duration> = took.iter().filter(|(at, _)| span.contains(at)).map(|(_, took)| *took).collect();
        took.sort_unstable();
        Times { calls: took.len(), p50: took[took.len() / 2], p90: took[took.len() * 9 / 10] }
    }
}

#[test]
fn calls_go_on_while_postgresql_is_away_and_its_return_brings_everything_up_to_date() {
    let postgres = Postgres::start();
    let mut daemon = Daemon::with("DATABASE_URL", postgres.url()).start();
    daemon.register(&python("strict", "crun", STRICT));
    daemon.register(&python("rude", "crun", RUDE));
    assert!(postgres.eventually_true(
        "SELECT count(*) = 2 FROM kb.agent_workspaces WHERE container_type = 'mcp_server' AND desired = 'up'"
    ));

    let over = AtomicBool::new(false);
    let calls = AtomicU64::new(0);
    // When each call began, and how long it took.
    let load = || {
        let mut http = daemon.http();
        let mut took: Vec<(Instant, Duration)> = Vec::new();
        while !over.load(Ordering::Relaxed) {
            let body = json!({"method": "tools/call", "params": {"name": "echo", "arguments": {"text": "x"}}});
            let began = Instant::now();
            let reply = http.request("POST", &format!("{BASE}/strict/call"), Some(&body));
            assert_eq!((reply.status, reply.text().as_str()), (200, "x"), "{reply}");
            took.push((began, began.elapsed()));
            calls.fetch_add(1, Ordering::Relaxed);
        }
        took
    };
    let measure = || {
        let (from, before) = (Instant::now(), calls.load(Ordering::Relaxed));
        let enough = || from.elapsed() > MEASURED && calls.load(Ordering::Relaxed) > before + 300;
        assert!(eventually(SOON, enough), "{} calls", calls.load(Ordering::Relaxed) - before);
        from..Instant::now()
    };
    std::thread::scope(|scope| {
        let clients = [scope.spawn(load), scope.spawn(load), scope.spawn(load)];
        assert!(eventually(SOON, || calls.load(Ordering::Relaxed) > 10));
        let there = measure();
        postgres.stop();
        let left = Instant::now();

        let began = Instant::now();
        let refused = daemon.try_register(&python("late", "crun", STRICT));
        assert_eq!((refused.status, refused.code()), (503, json!("store_unavailable")), "{refused}");
        assert!(began.elapsed() < STORE_WAIT + Duration::from_secs(5), "{:?}", began.elapsed());
        assert_eq!(daemon.get(&format!("{BASE}/late")).status, 404, "what was refused is not there");

        // A story that must be written down later.
        assert_eq!(
            daemon.tool("rude", "crash", json!({"code": 7, "stderr": ["while you were away"]})).code(),
            "server_crashed"
        );
        daemon.wait_until("rude", "back", |status| status["status"] == "ready" && status["restart_count"] == 1);

        let gone = measure();
        assert!(eventually(away() + SOON, || left.elapsed() > away()));
        assert_eq!(daemon.get("/healthz").status, 200);
        postgres.resume();
        over.store(true, Ordering::Relaxed);
        let took: Vec<(Instant, Duration)> =
            clients.into_iter().flat_map(|client| client.join().expect("no call failed")).collect();
        let slowest = took.iter().map(|(_, took)| *took).max().expect("there were calls");
        assert!(slowest < Duration::from_secs(3), "a call waited {slowest:?} for the database");
        let (there, gone) = (Times::within(&there, &took), Times::within(&gone, &took));
        println!("calls with PostgreSQL: {there:?}\ncalls without it:     {gone:?}");
        assert!(gone.p50 <= 2 * there.p50 + NOISE && gone.p90 <= 3 * there.p90 + 4 * NOISE, "{there:?}, then {gone:?}");
    });

    assert!(postgres.eventually_true(
        "SELECT restart_count = 1 AND last_crash::text LIKE '%while you were away%' FROM kb.agent_workspaces WHERE name = 'rude'"
    ));
    let mut accepted = None;
    assert!(eventually(SOON, || {
        let reply = daemon.try_register(&python("late", "crun", STRICT));
        assert!([201, 503].contains(&reply.status), "{reply}");
        accepted = Some(reply.status);
        reply.status == 201
    }));
    assert!(
        postgres.eventually_true("SELECT count(*) = 3 FROM kb.agent_workspaces WHERE container_type = 'mcp_server'")
    );
    assert!(postgres.eventually_true("SELECT last_used_at IS NOT NULL FROM kb.agent_workspaces WHERE name = 'strict'"));

    // The next life reads what this one wrote.
    assert!(daemon.stop().success());
    daemon.start_again();
    for name in ["strict", "rude", "late"] {
        daemon.wait_ready(name);
    }
    assert_eq!(daemon.status("rude")["last_crash"]["exit_code"], 7);
    assert_eq!(daemon.request("DELETE", &format!("{BASE}/late"), None).status, 204);
    assert!(
        postgres.eventually_true("SELECT count(*) = 2 FROM kb.agent_workspaces WHERE container_type = 'mcp_server'")
    );
}

#[test]
fn the_private_cluster_comes_back_by_itself_when_it_is_killed() {
    let daemon = Daemon::start();
    daemon.register(&python("rude", "crun", RUDE));
    let is_postmaster = |pid: &i32| {
        support::world::command_of(*pid).is_some_and(|command| command.contains("postgres") && command.contains(" -D"))
    };
    let postmaster = support::world::descendants(daemon.pid()).into_iter().find(is_postmaster).expect("a postmaster");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(postmaster), nix::sys::signal::Signal::SIGKILL).expect("it runs");
    assert_eq!(daemon.text("rude", "echo", json!({"text": "meanwhile"})), "meanwhile");
    assert!(eventually(SOON, || {
        let reply = daemon.try_register(&python("next", "crun", RUDE));
        assert!([201, 503].contains(&reply.status), "{reply}");
        reply.status == 201
    }));
}
