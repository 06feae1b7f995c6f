//! Lives and deaths by the clock: the schedule as it was asked for, fifty deaths at once, many cycles that leave nothing
//! behind, and an end that is quick for those who listen.

mod support;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::{Child, Command};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use stdiod::limits::SHUTDOWN_GRACE;
use support::{BASE, Daemon, RUDE, SOON, eventually, logged_at, on_both_providers, python, python_with, tiny, world};

on_both_providers!(an_oom_kill_is_called_one, many_lives_leave_nothing_behind);

#[test]
fn a_crash_loop_keeps_to_its_schedule_and_falls_back_only_after_a_stable_life() {
    let daemon = Daemon::start();
    let schedule = [1_000, 2_000, 4_000];
    let mut definition =
        json!({"name": "dies", "rootfs": "host", "provider": "crun", "cmd": ["/bin/sh", "-c", "exit 3"]});
    definition["crash_loop"] = json!({"threshold": 1, "schedule_ms": schedule, "max_attempts": 4});
    assert_eq!(daemon.try_register(&definition).status, 201);
    let status = daemon.wait_until("dies", "given up", |status| status["status"] == "failed");
    assert_eq!((&status["restart_count"], &status["crash_loop"]["level"]), (&json!(4), &json!(3)), "{status:#}");
    let times = |words: &str| -> Vec<u64> {
        let lines = daemon.log_lines();
        lines.iter().filter(|line| line.contains("server=dies") && line.contains(words)).map(|l| logged_at(l)).collect()
    };
    let (deaths, launches) = (times("exited with code 3; stderr"), times(" launch "));
    assert_eq!((deaths.len(), launches.len()), (5, 5), "{}", daemon.log_tail());
    // The first restart is at once; the rest keep to the schedule, and none of them comes early.
    for (wanted, (death, launch)) in schedule.iter().zip(deaths[1..].iter().zip(&launches[2..])) {
        let took = launch - death;
        assert!((*wanted..=wanted + wanted / 10 + 50).contains(&took), "{wanted} ms became {took} ms");
    }
    let call = daemon.tool("dies", "echo", json!({}));
    assert_eq!((call.status, call.code()), (502, json!("mcp_restart_failed")), "{call}");
    let data = call.json()["error"]["data"].clone();
    assert!(data["cause"].to_string().contains("code 3") && data["outcome"] == "not_sent", "{call}");

    // A life of `stable_ms` in ready, and only that, is a new beginning.
    let mut rude = python("rude", "crun", RUDE);
    rude["crash_loop"] = json!({"threshold": 1, "schedule_ms": [500], "stable_ms": 3_000});
    daemon.register(&rude);
    let level = |status: &Value| status["crash_loop"]["level"].as_u64().unwrap_or(0);
    for n in 1..=3_u64 {
        daemon.tool("rude", "crash", json!({"code": 1}));
        let status = daemon.wait_until("rude", "back", |s| s["status"] == "ready" && s["restart_count"] == n);
        assert_eq!(level(&status), n - 1, "{status:#}");
    }
    daemon.wait_until("rude", "stable", |status| status["uptime_ms"].as_u64() >= Some(3_000));
    daemon.tool("rude", "crash", json!({"code": 1}));
    let status = daemon.wait_until("rude", "back", |s| s["status"] == "ready" && s["restart_count"] == 4);
    assert_eq!(level(&status), 0, "{status:#}");
}

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

#[test]
fn fifty_deaths_at_once_are_seen_at_once_and_answered_at_once() {
    const SERVERS: usize = 50;
    let daemon = Daemon::start();
    std::thread::scope(|scope| {
        for part in 0..5 {
            let daemon = &daemon;
            scope.spawn(move || {
                for n in (part..SERVERS).step_by(5) {
                    daemon.register(&tiny(&format!("tiny-{n}"), "crun"));
                }
            });
        }
    });
    let is_it = |pid: &i32| world::command_of(*pid).is_some_and(|command| command.starts_with("/bin/sh /app/tiny.sh"));
    let victims: Vec<i32> = world::descendants(daemon.pid()).into_iter().filter(is_it).collect();
    assert_eq!(victims.len(), SERVERS);
    let before = daemon.log_lines().len();
    let unix_ms = || SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as u64;
    let killed_from = unix_ms();
    for pid in &victims {
        kill(Pid::from_raw(*pid), Signal::SIGKILL).expect("it runs");
    }
    let killed_until = unix_ms();
    for n in 0..SERVERS {
        let back = |status: &Value| status["status"] == "ready" && status["restart_count"] == 1;
        daemon.wait_until(&format!("tiny-{n}"), "back", back);
    }
    // From the line that tells of a death to the line that tells of the next exec, the launcher's.
    let (mut deaths, mut launches) = (BTreeMap::new(), BTreeMap::new());
    for line in &daemon.log_lines()[before..] {
        let server = line.split_ascii_whitespace().find(|word| word.starts_with("server=")).map(str::to_string);
        match server {
            Some(server) if line.contains("killed by signal 9; stderr") => _ = deaths.insert(server, logged_at(line)),
            Some(server) if line.contains(" launch ") => _ = launches.insert(server, logged_at(line)),
            Some(_) | None => {}
        }
    }
    assert_eq!((deaths.len(), launches.len()), (SERVERS, SERVERS));
    let mut waits: Vec<u64> = launches.iter().map(|(server, at)| at - deaths[server]).collect();
    waits.sort_unstable();
    let (median, last) = (waits[SERVERS / 2], waits[SERVERS - 1]);
    let span = |times: &BTreeMap<String, u64>| {
        (times.values().min().expect("fifty") - killed_from, times.values().max().expect("fifty") - killed_from)
    };
    println!("50 killed within {} ms; ms since the first kill:", killed_until - killed_from);
    println!("seen {:?}, exec {:?}; from death to exec: median {median}, last {last}", span(&deaths), span(&launches));
    // 20 ms, or what this machine can do just now: tests share it with each other.
    let machine = fifty_programs();
    assert!(median < 20 || median < 3 * machine, "median {median} ms; fifty programs alone take {machine} ms");
}

/// How long it takes to start as many programs that do nothing, in milliseconds.
fn fifty_programs() -> u64 {
    let began = Instant::now();
    let started: Vec<Child> = (0..50).map(|_| Command::new("/bin/true").spawn().expect("it starts")).collect();
    let took = began.elapsed().as_millis() as u64;
    for mut child in started {
        let _ = child.wait();
    }
    took
}

fn many_lives_leave_nothing_behind(provider: &str) {
    // 200 by hand: STDIOD_CYCLES=200 cargo test --release --test e2e_lifecycle many_lives
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
