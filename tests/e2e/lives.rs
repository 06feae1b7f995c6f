//! Lives and deaths, and what they leave behind: an end for want of memory, a program that is not there, many cycles that
//! leave nothing, and an end that is quick for those who listen.

use crate::support::{BASE, Daemon, RUDE, SOON, eventually, on_both_providers, python, python_with, tiny, world};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use stdiod::limits::SHUTDOWN_GRACE;

on_both_providers!(an_oom_kill_is_called_one, many_lives_leave_nothing_behind);

fn an_oom_kill_is_called_one(provider: &str) {
    let daemon = Daemon::start();
    let mut definition = python("hungry", provider, RUDE);
    definition["resource_limits"] = json!({"memory": "96M"});
    daemon.register(&definition);
    let reply = daemon.tool("hungry", "eat", json!({"mib": 512}));
    assert_eq!((reply.status, reply.code()), (502, json!("server_crashed")), "{reply}");
    assert_eq!(reply.json()["error"]["data"]["oom"], true, "{reply}");
    let status = daemon.wait_until("hungry", "back", |s| s["status"] == "ready" && s["restart_count"] == 1);
    assert_eq!(status["last_crash"]["oom"], true, "{status:#}");
    assert!(status["last_error"].to_string().contains("out of memory"), "{status:#}");
}

#[test]
fn a_missing_program_is_a_launch_failure_with_the_runtimes_words() {
    let daemon = Daemon::start();
    for provider in ["gvisor", "crun"] {
        let cmd = ["/usr/bin/no-such-program"];
        let definition = json!({"name": provider, "rootfs": "host", "provider": provider, "cmd": cmd});
        let status = daemon.try_register(&definition).json();
        assert!(status["last_error"].to_string().contains("no-such-program"), "{status:#}");
        assert_eq!(status["last_crash"], Value::Null, "it never lived: {status:#}");
    }
}

fn many_lives_leave_nothing_behind(provider: &str) {
    // 200 by hand: STDIOD_CYCLES=200 cargo test --release --test e2e many_lives
    let cycles: usize = std::env::var("STDIOD_CYCLES").map_or(6, |n| n.parse().expect("STDIOD_CYCLES is a number"));
    let daemon = Daemon::start();
    let cycle = |n: usize| {
        let name = format!("cycle-{n}");
        let mut definition = python(&name, provider, RUDE);
        definition["volumes"] = json!(["/data"]);
        daemon.register(&definition);
        assert_eq!(daemon.text(&name, "echo", json!({"text": "hi"})), "hi");
        assert_eq!(daemon.tool(&name, "crash", json!({"code": 3})).code(), "server_crashed");
        assert_eq!(daemon.text(&name, "echo", json!({"text": "again"})), "again");
        assert_eq!(daemon.request("POST", &format!("{BASE}/{name}/restart"), None).status, 200);
        assert_eq!(daemon.text(&name, "echo", json!({"text": "and again"})), "and again");
        daemon.look();
        assert_eq!(daemon.request("DELETE", &format!("{BASE}/{name}?volumes=true"), None).status, 204);
    };
    let quiet = || {
        // PostgreSQL has workers that come and go as it likes.
        let children = || {
            let is_ours = |pid: &i32| world::command_of(*pid).is_some_and(|command| !command.contains("postgres"));
            world::descendants(daemon.pid()).into_iter().filter(is_ours).count()
        };
        let mut last = (0, 0);
        // The clean-up of the last container and the client's own connection are on their way.
        eventually(SOON, || {
            let now = (children(), world::weight_of(daemon.pid()).0);
            let settled = now.0 == 0 && std::mem::replace(&mut last, now) == now;
            settled && daemon.seen().left_of_containers().is_empty()
        });
        let threads = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).map_or(0, Iterator::count);
        let (fds, resident) = world::weight_of(daemon.pid());
        (fds, threads, children(), world::mounts_with("").len(), resident)
    };
    for n in 0..2 {
        cycle(n);
    }
    let before = quiet();
    let began = Instant::now();
    for n in 2..cycles + 2 {
        cycle(n);
    }
    let after = quiet();
    println!(
        "{provider}: {cycles} cycles in {:?}: {before:?} -> {after:?} (fds, threads, children, mounts, RSS)",
        began.elapsed()
    );
    assert_eq!((before.0, before.1, before.2), (after.0, after.1, after.2), "descriptors, threads, children");
    // Other tests mount and unmount on the same machine; what carries this daemon's mark is checked at its end.
    let grown = after.4.saturating_sub(before.4);
    assert!(grown < 8 << 20, "{grown} bytes more after {cycles} cycles");
    assert_eq!(daemon.seen().left_of_containers(), Vec::<String>::new());
}

#[test]
fn what_several_ask_for_at_once_is_done_once_and_told_to_all() {
    let daemon = Daemon::start();
    daemon.register(&tiny("tiny", "crun"));
    let all = |method: &str, path: &str| -> Vec<(u16, Value)> {
        std::thread::scope(|scope| {
            let one = || {
                let reply = daemon.request(method, &format!("{BASE}/tiny{path}"), None);
                (reply.status, if reply.status == 200 { reply.json()["status"].clone() } else { Value::Null })
            };
            let asked: Vec<_> = (0..6).map(|_| scope.spawn(one)).collect();
            asked.into_iter().map(|reply| reply.join().expect("no panic")).collect()
        })
    };
    for _ in 0..3 {
        assert_eq!(all("POST", "/stop"), vec![(200, json!("stopped")); 6]);
        assert_eq!(all("POST", "/start"), vec![(200, json!("ready")); 6]);
    }
    // Whoever comes when it is on its way out finds nothing to remove.
    let gone = all("DELETE", "");
    assert!(
        gone.iter().all(|(status, _)| matches!(status, 204 | 404)) && gone.contains(&(204, Value::Null)),
        "{gone:?}"
    );
}

#[test]
fn twenty_that_listen_are_gone_at_once_and_the_deaf_one_after_the_grace() {
    let mut daemon = Daemon::start();
    std::thread::scope(|scope| {
        for part in 0..4 {
            let daemon = &daemon;
            scope.spawn(move || (0..5).for_each(|n| _ = daemon.register(&tiny(&format!("tiny-{part}-{n}"), "crun"))));
        }
    });
    daemon.register(&python_with("deaf", "crun", RUDE, &["ignore_term"]));
    let pid = daemon.pid();
    let listening = || {
        let is_it =
            |pid: &i32| world::command_of(*pid).is_some_and(|command| command.starts_with("/bin/sh /app/tiny.sh"));
        world::descendants(pid).iter().filter(|pid| is_it(pid)).count()
    };
    assert_eq!(listening(), 20);
    let began = Instant::now();
    daemon.signal(Signal::SIGTERM);
    assert!(eventually(SHUTDOWN_GRACE / 2, || listening() == 0), "{} still there", listening());
    println!("20 of 21 servers gone after {:?}", began.elapsed());
    let exit = daemon.wait_exit(SHUTDOWN_GRACE + Duration::from_secs(30));
    assert!(began.elapsed() >= SHUTDOWN_GRACE, "the deaf one had its grace");
    assert_eq!(exit.code(), Some(0), "{exit:?}\n{}", daemon.log_tail());
}
