//! The end of a daemon that is asked to stop: gently for those who listen, firmly for those who do not.

use crate::support::{self, BASE, Daemon, RUDE, find_files, postgres, python, python_with};
use nix::sys::signal::Signal;
use serde_json::json;
use std::process::Command;
use std::time::{Duration, Instant};
use stdiod::limits::{DRAIN_GRACE, SHUTDOWN_GRACE};

const PROVIDERS: [&str; 2] = ["gvisor", "crun"];

#[test]
fn sigterm_reaches_every_container_and_the_stubborn_are_killed_after_the_grace() {
    let mut daemon = Daemon::start();
    for provider in PROVIDERS {
        let mut polite = python_with(&format!("polite-{provider}"), provider, RUDE, &["term_log"]);
        polite["volumes"] = json!(["/data"]);
        daemon.register(&polite);
        daemon.register(&python_with(&format!("stubborn-{provider}"), provider, RUDE, &["ignore_term"]));
    }
    let world = daemon.seen();
    let began = Instant::now();
    daemon.signal(Signal::SIGTERM);
    let exit = daemon.wait_exit(SHUTDOWN_GRACE + Duration::from_secs(30));
    let took = began.elapsed();
    assert_eq!(exit.code(), Some(0), "{exit:?}\n{}", daemon.log_tail());
    assert!(took >= SHUTDOWN_GRACE - DRAIN_GRACE, "the stubborn were not given their grace: {took:?}");
    assert_eq!(world.left(), Vec::<String>::new());
    assert_eq!(cluster_state(&daemon), "shut down");
    for provider in PROVIDERS {
        let polite = format!("polite-{provider}");
        let noted = daemon.in_volume(&polite, "/data", |volume| std::fs::read_to_string(volume.join("term")));
        assert_eq!(noted.ok().as_deref(), Some("term"), "{polite} noted the signal");
    }
}

#[test]
fn a_second_signal_ends_the_patience() {
    let mut daemon = Daemon::start();
    for provider in PROVIDERS {
        daemon.register(&python_with(&format!("stubborn-{provider}"), provider, RUDE, &["ignore_term"]));
    }
    let began = Instant::now();
    daemon.signal(Signal::SIGTERM);
    // It stops to accept when it has seen the first signal; before that the second would be the first.
    assert!(support::eventually(support::SOON, || std::net::TcpStream::connect(daemon.address()).is_err()));
    daemon.signal(Signal::SIGINT);
    let exit = daemon.wait_exit(SHUTDOWN_GRACE);
    assert!(began.elapsed() < SHUTDOWN_GRACE, "{:?}", began.elapsed());
    assert_eq!(exit.code(), Some(0), "{exit:?}\n{}", daemon.log_tail());
    assert_eq!(cluster_state(&daemon), "shut down");
}

#[test]
fn calls_in_flight_are_answered_before_the_daemon_goes() {
    let mut daemon = Daemon::start();
    daemon.register(&python("rude", "crun", RUDE));
    // The daemon itself asks a new server for its tools; once this is answered the next call is in flight at once.
    daemon.text("rude", "echo", json!({"text": "first"}));
    std::thread::scope(|scope| {
        let asleep = scope.spawn(|| daemon.tool("rude", "sleep", json!({"ms": 2_000})));
        daemon.wait_until("rude", "busy", |status| status["queue"]["in_flight"] == 1);
        daemon.signal(Signal::SIGTERM);
        let reply = asleep.join().expect("no panic");
        assert_eq!((reply.status, reply.text().as_str()), (200, "slept"), "{reply}");
    });
    assert_eq!(daemon.wait_exit(SHUTDOWN_GRACE).code(), Some(0));
}

#[test]
fn stop_and_delete_end_the_stubborn_too() {
    let daemon = Daemon::start();
    for provider in PROVIDERS {
        let name = format!("stubborn-{provider}");
        daemon.register(&python_with(&name, provider, RUDE, &["ignore_term"]));
        let before = daemon.seen();
        let stopped = daemon.request("POST", &format!("{BASE}/{name}/stop"), None);
        assert_eq!((stopped.status, &stopped.json()["status"]), (200, &json!("stopped")), "{stopped}");
        let refused = daemon.tool(&name, "echo", json!({"text": "x"}));
        assert_eq!((refused.status, refused.code()), (409, json!("server_stopped")), "{refused}");
        let started = daemon.request("POST", &format!("{BASE}/{name}/start"), None);
        assert_eq!((started.status, &started.json()["status"]), (200, &json!("ready")), "{started}");
        assert!(!daemon.seen().since(&before).is_empty(), "a new instance, not the old one");
        assert_eq!(daemon.request("DELETE", &format!("{BASE}/{name}"), None).status, 204);
        assert_eq!(daemon.get(&format!("{BASE}/{name}")).code(), "not_found");
    }
}

/// What the private PostgreSQL says of itself when it is not running.
fn cluster_state(daemon: &Daemon) -> String {
    let version = find_files(&daemon.data_dir, "pg_control");
    let cluster = version.first().and_then(|file| file.parent()?.parent()).expect("a cluster");
    let output = Command::new(postgres::programs().join("pg_controldata")).arg(cluster).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix("Database cluster state:"));
    line.unwrap_or_else(|| panic!("{output:?}")).trim().to_string()
}
