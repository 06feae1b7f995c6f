//! Sudden death: of a sandbox, of a server, of the daemon itself.

use crate::support::census::Census;
use crate::support::{BASE, Daemon, RUDE, SOON, STRICT, eventually, on_both_providers, python, tiny, world};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

on_both_providers!(
    a_killed_sandbox_fails_its_call_at_once_and_comes_back,
    a_crash_is_told_with_its_exit_code_and_last_words,
);

fn a_killed_sandbox_fails_its_call_at_once_and_comes_back(provider: &str) {
    let daemon = Daemon::start();
    daemon.register(&python("rude", provider, RUDE));
    daemon.text("rude", "stderr", json!({"text": "last words"}));
    let victim = daemon.sandbox(provider, "/app/server.py");
    std::thread::scope(|scope| {
        let asleep = scope.spawn(|| {
            let began = Instant::now();
            (daemon.tool("rude", "sleep", json!({"ms": 25_000})), began.elapsed())
        });
        daemon.wait_until("rude", "busy", |status| status["queue"]["in_flight"] == 1);
        nix::sys::signal::kill(victim, Signal::SIGKILL).expect("it runs");
        let (reply, took) = asleep.join().expect("no panic");
        assert_eq!((reply.status, reply.code()), (502, json!("server_crashed")), "{reply}");
        assert_eq!(reply.outcome(), "sent_unknown");
        assert!(took < Duration::from_secs(20), "it waited for its own end instead: {took:?}");
    });
    let status =
        daemon.wait_until("rude", "back", |status| status["status"] == "ready" && status["restart_count"] == 1);
    let crash = &status["last_crash"];
    assert!(crash["signal"] == 9 || crash["exit_code"] == 137, "{crash:#}");
    assert_eq!(crash["oom"], false, "{crash:#}");
    assert!(crash["stderr_tail"].to_string().contains("last words"), "{crash:#}");
    assert!(crash["at"].as_str().is_some_and(|at| at.ends_with('Z')), "RFC 3339, UTC: {crash:#}");
    assert_eq!(daemon.text("rude", "echo", json!({"text": "again"})), "again");
}

fn a_crash_is_told_with_its_exit_code_and_last_words(provider: &str) {
    let daemon = Daemon::start();
    daemon.register(&python("rude", provider, RUDE));
    let crash = json!({"code": 3, "stderr": ["one reason", "another reason"]});
    let reply = daemon.tool("rude", "crash", crash.clone());
    assert_eq!((reply.status, reply.code()), (502, json!("server_crashed")), "{reply}");
    // A call that was not sent yet waits for the next instance.
    assert_eq!(daemon.text("rude", "echo", json!({"text": "waited"})), "waited");
    let status = daemon.wait_ready("rude");
    assert_eq!((&status["restart_count"], &status["last_crash"]["exit_code"]), (&json!(1), &json!(3)), "{status:#}");
    let tail = status["last_crash"]["stderr_tail"].to_string();
    assert!(tail.contains("one reason") && tail.contains("another reason"), "{status:#}");

    let mut never = python("never", provider, RUDE);
    never["restart_policy"] = json!("never");
    daemon.register(&never);
    assert_eq!(daemon.tool("never", "crash", crash).code(), "server_crashed");
    daemon.wait_until("never", "stopped", |status| status["status"] == "stopped");
    let refused = daemon.tool("never", "echo", json!({"text": "x"}));
    assert_eq!((refused.status, refused.code()), (409, json!("server_stopped")), "{refused}");
    let started = daemon.request("POST", &format!("{BASE}/never/start"), None);
    assert_eq!((started.status, &started.json()["status"]), (200, &json!("ready")), "{started}");
    assert_eq!(daemon.text("never", "echo", json!({"text": "up"})), "up");
}

#[test]
fn ten_servers_outlive_the_daemon_and_nothing_of_the_first_life_is_left() {
    const SERVERS: usize = 10;
    let mut daemon = Daemon::start();
    let name = |n: usize| format!("server-{n}");
    std::thread::scope(|scope| {
        for n in 0..SERVERS {
            let daemon = &daemon;
            let provider = if n % 2 == 0 { "gvisor" } else { "crun" };
            scope.spawn(move || {
                let mut definition = python(&name(n), provider, STRICT);
                definition["volumes"] = json!(["/data"]);
                daemon.register(&definition)
            });
        }
    });
    // One that was stopped on purpose stays so.
    daemon.register(&python("resting", "crun", STRICT));
    assert_eq!(daemon.request("POST", &format!("{BASE}/resting/stop"), None).json()["status"], "stopped");

    let first_life = daemon.seen();
    let containers = first_life.containers();
    assert!(containers.len() >= SERVERS, "one cgroup a container: {containers:?}");
    daemon.kill();
    assert!(!first_life.left().is_empty(), "SIGKILL leaves things behind, else this test shows nothing");

    daemon.start_again();
    for n in 0..SERVERS {
        daemon.wait_ready(&name(n));
        assert_eq!(daemon.text(&name(n), "echo", json!({"text": name(n)})), name(n));
    }
    assert_eq!(daemon.status("resting")["status"], "stopped");
    assert_eq!(daemon.get(BASE).json().as_array().map(Vec::len), Some(SERVERS + 1));
    let mut left = Vec::new();
    assert!(
        eventually(SOON, || {
            left = first_life.left();
            left.is_empty()
        }),
        "of the first life: {left:#?}"
    );
    let second_life = daemon.seen().since(&first_life).containers();
    assert!(second_life.is_disjoint(&containers), "a container's name is never used again");
}

#[test]
fn a_server_that_cannot_start_says_why_and_is_still_registered() {
    let daemon = Daemon::start();
    for provider in ["gvisor", "crun"] {
        let name = format!("missing-{provider}");
        let reply = daemon.try_register(&json!({
            "name": name, "rootfs": "host", "provider": provider, "cmd": ["/usr/bin/no-such-program"],
            "timeouts": {"startup_ms": 5_000},
        }));
        assert_eq!(reply.status, 201, "{reply}");
        let status = reply.json();
        assert_ne!(status["status"], "ready", "{status:#}");
        let told = [status["last_error"].to_string(), status["last_crash"].to_string()].concat();
        assert!(told.contains("no-such-program") || status["last_error"] != Value::Null, "{status:#}");
        let call = daemon.tool_within(&name, "echo", json!({"text": "x"}), 1_000);
        assert_eq!(call.outcome(), "not_sent", "{call}");
        assert!([502, 503, 504].contains(&call.status), "{call}");
    }
}

/// A plain child can be ended by any signal; the first process of a container only by a kill or by one that it asks for.
#[test]
fn a_death_by_a_real_time_signal_is_a_death_like_any_other() {
    const REAL_TIME: i32 = 40;
    let daemon = Daemon::with("STDIOD_ALLOW_ISOLATION_NONE", "true").start();
    let cmd = ["/usr/bin/python3", "-c", RUDE];
    daemon.register(&json!({"name": "plain", "rootfs": "host", "provider": "none", "cmd": cmd}));
    let is_it = |pid: &i32| world::command_of(*pid).is_some_and(|command| command.starts_with("/usr/bin/python3 -c"));
    let victim = world::descendants(daemon.pid()).into_iter().find(is_it).expect("it runs");
    // SAFETY: takes plain numbers.
    assert_eq!(unsafe { libc::kill(victim, REAL_TIME) }, 0);
    let status =
        daemon.wait_until("plain", "back", |status| status["status"] == "ready" && status["restart_count"] == 1);
    assert_eq!(status["last_crash"]["signal"], REAL_TIME, "{status:#}");
    assert_eq!(daemon.text("plain", "echo", json!({"text": "again"})), "again");
}

/// The daemon's own helpers may be anybody's victims too: of an operator's `pkill`, of the host's OOM killer.
#[test]
fn a_clean_up_that_is_killed_is_followed_by_another() {
    const ATTEMPTS: usize = 100;
    let daemon = Daemon::start();
    daemon.register(&tiny("tiny", "crun"));
    let post = |action: &str| daemon.request("POST", &format!("{BASE}/tiny/{action}"), None);
    // It may end before it is found, or be found at its end.
    let was_hit = (0..ATTEMPTS).any(|_| {
        assert_eq!(post("stop").status, 200);
        let of_daemon = || world::descendants(daemon.pid());
        kill_helper(of_daemon, daemon.home(), "sandbox-discard", Duration::from_millis(200));
        assert_eq!(post("start").status, 200);
        daemon.log_contains("was killed by signal 9: again")
    });
    assert!(was_hit, "no clean-up was killed");
    is_alone(&daemon);
}

#[test]
fn a_sweep_and_a_probe_that_are_killed_are_followed_by_others() {
    const ATTEMPTS: usize = 20;
    let mut daemon = Daemon::start();
    daemon.register(&tiny("tiny-crun", "crun"));
    daemon.register(&tiny("tiny-gvisor", "gvisor"));
    let was_hit = (0..ATTEMPTS).any(|_| {
        daemon.kill();
        // What it knows of its providers: it has to try them again.
        std::fs::remove_file(daemon.data_dir.join("providers")).expect("it was written");
        let (home, earlier) = (daemon.home().to_path_buf(), daemon.log_lines().len());
        let killer = std::thread::spawn(move || {
            // Its pid is not known before it listens.
            let all = || world::all_processes().collect();
            ["sandbox-sweep", "sandbox-probe"].map(|name| kill_helper(all, &home, name, Duration::from_secs(2)))
        });
        daemon.start_again();
        killer.join().expect("no panic");
        for name in ["tiny-crun", "tiny-gvisor"] {
            daemon.wait_ready(name);
        }
        let said = daemon.log_lines()[earlier..].join("\n");
        said.contains("the sweep of leftovers was killed by signal 9")
            && said
                .lines()
                .any(|line| line.contains("the probe of ") && line.ends_with("was killed by signal 9: again"))
    });
    assert!(was_hit, "none of them was killed\n{}", daemon.log_tail());
    is_alone(&daemon);
}

/// The first that is found.
fn kill_helper(among: impl Fn() -> Vec<i32>, home: &Path, name: &str, patience: Duration) {
    let (begin, home) = (format!("stdiod {name} "), home.to_str().expect("our own name"));
    let is_it = |pid: &i32| world::command_of(*pid).is_some_and(|it| it.starts_with(&begin) && it.contains(home));
    let until = Instant::now() + patience;
    while Instant::now() < until {
        if let Some(pid) = among().into_iter().find(is_it) {
            _ = nix::sys::signal::kill(Pid::from_raw(pid), Signal::SIGKILL);
            return;
        }
    }
}

fn is_alone(daemon: &Daemon) {
    let census = Census::of(daemon.home());
    let mut strangers = Vec::new();
    let alone = eventually(SOON, || {
        strangers = census.strangers(daemon.pid());
        strangers.is_empty()
    });
    assert!(alone, "{strangers:#?}\n{}", daemon.log_tail());
}
