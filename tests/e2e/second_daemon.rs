//! Two daemons on one database that are not a fleet: the second is refused, or stands by and takes over from one that was
//! killed, and nothing runs twice, neither on the way nor when the first comes back.

use crate::support::postgres::Postgres;
use crate::support::{BASE, Daemon, RUDE, SOON, eventually, python, python_with, world};
use serde_json::json;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Lives on when nobody speaks to it any more, as a daemon's sandboxes do that was killed.
const STUBBORN: &str = r#"
import json, sys, time
while True:
    line = sys.stdin.readline()
    if not line:
        time.sleep(0.05)
        continue
    asked = json.loads(line)
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32601, "message": "no"}}), flush=True)
"#;

/// Processes of this machine that run with this word; of a sandbox's init there is one more, which shows no arguments.
fn running(word: &str) -> usize {
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_it = |pid: &i32| {
        world::command_of(*pid).is_some_and(|command| command.starts_with("/usr/bin/python3") && command.contains(word))
    };
    pids.filter(is_it).count()
}

#[test]
fn a_second_daemon_on_a_database_is_refused_and_one_that_stands_by_takes_over_and_nothing_runs_twice() {
    let postgres = Postgres::start();
    let mut first = Daemon::with("DATABASE_URL", postgres.url()).start();
    let word = format!("only-once-{}", std::process::id());
    first.register(&python_with("stubborn", "crun", STUBBORN, &[&word]));
    first.register(&python("rude", "crun", RUDE));

    // Without more: a sentence, and exit 1. Nothing of the first one changes.
    let refused = first
        .command(&["serve"])
        .env("STDIOD_DATA_DIR", first.scratch("second"))
        .env("STDIOD_LISTEN", "127.0.0.1:0")
        .stdin(Stdio::null())
        .output()
        .expect("it runs");
    let told = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{told}");
    let sentence = told.lines().last().unwrap_or_default();
    let data_dir = first.data_dir.display().to_string();
    for part in ["stdiod: another stdiod", data_dir.as_str(), "works on this database", "standby = true"] {
        assert!(sentence.contains(part), "{part}: {told}");
    }
    assert_eq!(first.text("rude", "echo", json!({"text": "unharmed"})), "unharmed");

    // It listens, says that it is not the one, and starts nothing.
    let options = Daemon::with("DATABASE_URL", postgres.url()).variable("STDIOD_STANDBY", "true");
    let mut second = options.stand_by();
    assert!(!second.log_contains("listening on"));
    let (over, most) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                most.fetch_max(running(&word), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        assert_eq!(running(&word), 1);
        first.kill();
        let killed = Instant::now();
        second.taken_over();
        assert!(killed.elapsed() < Duration::from_secs(10), "{:?}\n{}", killed.elapsed(), second.log_tail());
        second.wait_ready("rude");
        second.wait_ready("stubborn");
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!((running(&word), most.load(Ordering::Relaxed)), (1, 1), "once, at every moment");
    assert_eq!(second.text("rude", "echo", json!({"text": "here"})), "here");

    // The first comes back, and finds that it is not its own any more.
    let late = first.command(&["serve"]).env("STDIOD_LISTEN", "127.0.0.1:0").output().expect("it runs");
    assert_eq!(late.status.code(), Some(1), "{}", String::from_utf8_lossy(&late.stderr));
    assert_eq!(running(&word), 1);
}

#[test]
fn a_daemon_whose_database_was_taken_over_ends_and_takes_its_servers_along() {
    let postgres = Postgres::start();
    let mut daemon = Daemon::with("DATABASE_URL", postgres.url()).start();
    let word = format!("fenced-{}", std::process::id());
    daemon.register(&python_with("stubborn", "crun", STUBBORN, &[&word]));
    let taken = "UPDATE kb.daemon SET epoch = epoch + 1, home = gen_random_uuid(), host = 'elsewhere'";
    postgres.client().batch_execute(taken).expect("a valid statement");
    let refused = daemon.request("PATCH", &format!("{BASE}/stubborn"), Some(&json!({"queue_max": 7})));
    assert_eq!((refused.status, refused.code()), (503, json!("store_unavailable")), "{refused}");
    assert_eq!(daemon.wait_exit(SOON).code(), Some(1));
    assert!(daemon.log_contains("another stdiod (on elsewhere"), "{}", daemon.log_tail());
    assert!(eventually(SOON, || running(&word) == 0), "what it hosted is the other's to run");
    let kept = "SELECT definition ->> 'queue_max' IS DISTINCT FROM '7' FROM kb.agent_workspaces";
    assert!(postgres.eventually_true(kept), "and nothing was written");
}

#[test]
fn a_standby_on_the_same_data_directory_waits_for_the_private_database_too() {
    let mut first = Daemon::start();
    first.register(&python("rude", "crun", RUDE));
    let log = first.scratch("standby").join("log");
    let mut standby = first
        .command(&["serve"])
        .env("STDIOD_LISTEN", first.address())
        .env("STDIOD_STANDBY", "true")
        .stderr(std::fs::File::create(&log).expect("our directory"))
        .spawn()
        .expect("it runs");
    let told = || std::fs::read_to_string(&log).unwrap_or_default();
    assert!(eventually(SOON, || told().contains("standing by: another stdiod runs on")), "{}", told());
    let address = first.address().to_string();
    let token = first.token().to_string();
    first.kill();
    let killed = Instant::now();
    assert!(eventually(SOON, || told().contains("listening on")), "{}", told());
    assert!(killed.elapsed() < Duration::from_secs(10), "{:?}: {}", killed.elapsed(), told());
    let ready = || {
        let reply = crate::support::Http::connect(&address, &token).request("GET", &format!("{BASE}/rude"), None);
        reply.json()["status"] == "ready"
    };
    assert!(eventually(SOON, ready), "{}", told());
    // One that waits can be told to stop.
    let mut idle =
        first.command(&["serve"]).env("STDIOD_STANDBY", "true").stderr(Stdio::null()).spawn().expect("it runs");
    std::thread::sleep(Duration::from_secs(3));
    let stop = |child: &std::process::Child| {
        let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("it runs");
    };
    stop(&idle);
    assert_eq!(idle.wait().expect("our child").code(), Some(0));
    stop(&standby);
    assert_eq!(standby.wait().expect("our child").code(), Some(0), "{}", told());
}
