//! Deaths by the clock: the schedule as it was asked for, and fifty deaths at once. What counts here are milliseconds, so
//! it has the machine to itself; lives and deaths without a clock are in `e2e/lives.rs`.

mod support;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, Command};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use support::{Daemon, RUDE, SOON, logged_at, python, tiny, world};

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

const FIFTY: usize = 50;

#[test]
fn fifty_deaths_at_once_are_seen_in_one_turn_and_answered_at_once() {
    let daemon = Daemon::start();
    std::thread::scope(|scope| {
        for part in 0..5 {
            let daemon = &daemon;
            scope.spawn(move || {
                for n in (part..FIFTY).step_by(5) {
                    let name = format!("tiny-{n}");
                    let mut definition = tiny(&name, "crun");
                    definition["cmd"].as_array_mut().expect("words").push(json!(name));
                    // Every death is the first one of its window, and answered at once.
                    definition["crash_loop"] = json!({"window_ms": 1});
                    daemon.register(&definition);
                }
            });
        }
    });
    // As it goes: the kernel takes tens of milliseconds for so many sandboxes, and tells of each one when it is done. How
    // many turns that makes is the kernel's affair: the same deaths take as long below, where the daemon is not looking.
    let deaths = Deaths::of_fifty(&daemon, 1, Loop::Runs);
    println!("as they come: {deaths}");
    deaths.assert_answered_at_once();
    // Truly at once: when the loop comes to look, the kernel is done with all of them, and all of it is one signal.
    let deaths = Deaths::of_fifty(&daemon, 2, Loop::Stopped);
    println!("truly at once: {deaths}");
    assert_eq!(deaths.turns, [FIFTY], "{}", daemon.log_tail());
    deaths.assert_answered_at_once();
}

/// What the daemon's loop does while servers die.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Loop {
    Runs,
    Stopped,
}

/// A process that does nothing until this goes away.
struct Stopped(Pid);

impl Stopped {
    fn now(pid: i32) -> Stopped {
        world::stop(Pid::from_raw(pid));
        Stopped(Pid::from_raw(pid))
    }

    /// Says when, in milliseconds.
    fn go_on(self) -> u64 {
        unix_ms()
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

/// Servers that were killed together. All times are milliseconds since the first kill, by server.
#[derive(Default)]
struct Deaths {
    /// When the kernel was done with each: its pidfd says so, to whoever asks.
    ended: BTreeMap<String, u64>,
    /// When the daemon could have known: the later one of that and of when it was let go on.
    known: BTreeMap<String, u64>,
    /// The daemon's lines, of the death and of the next exec, the launcher's.
    seen: BTreeMap<String, u64>,
    launched: BTreeMap<String, u64>,
    /// How many it saw in each turn of its loop.
    turns: Vec<usize>,
}

impl Deaths {
    fn of_fifty(daemon: &Daemon, round: u64, its_loop: Loop) -> Deaths {
        let name = |pid| world::command_of(pid)?.strip_prefix("/bin/sh /app/tiny.sh ").map(str::to_string);
        let victims: BTreeMap<i32, String> =
            world::descendants(daemon.pid()).into_iter().filter_map(|pid| Some((pid, name(pid)?))).collect();
        assert_eq!(victims.len(), FIFTY);
        let before = daemon.log_lines().len();
        let stopped = (its_loop == Loop::Stopped).then(|| Stopped::now(daemon.pid()));
        let pids: Vec<i32> = victims.keys().copied().collect();
        let (began_ms, ends) = std::thread::spawn(move || kill_and_watch(&pids)).join().expect("they all end");
        if stopped.is_some() {
            for pid in victims.keys() {
                let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("nobody has reaped it");
                assert!(stat.contains(") Z "), "{stat}");
            }
        }
        let went_on_ms = stopped.map_or(0, |stopped| stopped.go_on());
        for name in victims.values() {
            let back = |status: &Value| status["status"] == "ready" && status["restart_count"] == round;
            daemon.wait_until(name, "back", back);
        }
        // To be before everybody else is for the loop, and for as long as it answers; nobody ever inherits it.
        for pid in world::descendants(daemon.pid()).into_iter().chain([daemon.pid()]) {
            // SAFETY: takes a plain number. One that has ended meanwhile has no policy any more.
            let policy = unsafe { libc::sched_getscheduler(pid) };
            assert!(matches!(policy, libc::SCHED_OTHER | -1), "{:?} has policy {policy}", world::command_of(pid));
        }
        let mut deaths = Deaths::default();
        for (pid, at_ms) in ends {
            deaths.ended.insert(victims[&pid].clone(), at_ms - began_ms);
            deaths.known.insert(victims[&pid].clone(), at_ms.max(went_on_ms) - began_ms);
        }
        deaths.read(&daemon.log_lines()[before..], began_ms);
        assert_eq!((deaths.ended.len(), deaths.seen.len(), deaths.launched.len()), (FIFTY, FIFTY, FIFTY));
        deaths
    }

    fn read(&mut self, log: &[String], began_ms: u64) {
        let mut unanswered = None;
        for line in log {
            let server = line.split_ascii_whitespace().find_map(|word| word.strip_prefix("server="));
            match server {
                Some(server) if line.contains("killed by signal 9; stderr") => {
                    self.seen.insert(server.to_string(), logged_at(line) - began_ms);
                    assert_eq!(unanswered.replace(server), None, "one death is answered before the next is looked at");
                }
                Some(server) if line.contains(" launch ") => {
                    self.launched.insert(server.to_string(), logged_at(line) - began_ms);
                    assert_eq!(unanswered.take(), Some(server), "one death is answered before the next is looked at");
                }
                Some(_) => {}
                None => {
                    let count = line.strip_suffix(" instances ended in one turn");
                    let count = count.and_then(|line| line.split_ascii_whitespace().next_back());
                    self.turns.extend(count.map(|count| count.parse::<usize>().expect("a number")));
                }
            }
        }
        // Only turns with more than one death are told of.
        let alone = self.seen.len() - self.turns.iter().sum::<usize>();
        self.turns.extend(std::iter::repeat_n(1, alone));
    }

    /// From what the daemon could have known to what it did, sorted.
    fn waits(&self, until: &BTreeMap<String, u64>) -> Vec<u64> {
        let mut waits: Vec<u64> = until.iter().map(|(server, at)| at.saturating_sub(self.known[server])).collect();
        waits.sort_unstable();
        waits
    }

    fn assert_answered_at_once(&self) {
        let median = self.waits(&self.launched)[FIFTY / 2];
        // 20 ms, or what this machine can do just now: tests share it with each other.
        let machine = fifty_programs();
        assert!(median < 20 || median < 3 * machine, "median {median} ms; fifty programs alone take {machine} ms");
    }
}

impl std::fmt::Display for Deaths {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let span = |times: &BTreeMap<String, u64>| {
            format!("{}..{}", times.values().min().expect("fifty"), times.values().max().expect("fifty"))
        };
        let (seen, launched) = (self.waits(&self.seen), self.waits(&self.launched));
        write!(
            f,
            "dead {} ms after the first kill, exec {}; death to seen: median {}, last {}; to exec: median {}, last {}; {} turns {:?}",
            span(&self.ended),
            span(&self.launched),
            seen[FIFTY / 2],
            seen[FIFTY - 1],
            launched[FIFTY / 2],
            launched[FIFTY - 1],
            self.turns.len(),
            self.turns,
        )
    }
}

/// Kills them all and waits for each one's end; when the killing began, and when who was at an end. Its thread goes before
/// everybody else: a watcher that is late would make the daemon look quick.
fn kill_and_watch(pids: &[i32]) -> (u64, Vec<(i32, u64)>) {
    let before_the_loop = libc::sched_param { sched_priority: 2 };
    // SAFETY: takes plain numbers, and a struct that it only reads; 0 is this thread.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &before_the_loop) } != 0 {
        println!("no right to watch closely: {}", std::io::Error::last_os_error());
    }
    let watch = |pid: &i32| {
        // SAFETY: takes plain numbers, and what it gives is a new descriptor, nobody else's.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, *pid, 0) };
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        (*pid, unsafe { OwnedFd::from_raw_fd(fd as i32) })
    };
    let mut alive: Vec<(i32, OwnedFd)> = pids.iter().map(watch).collect();
    let began_ms = unix_ms();
    for pid in pids {
        kill(Pid::from_raw(*pid), Signal::SIGKILL).expect("it runs");
    }
    let mut ends = Vec::new();
    while !alive.is_empty() {
        let mut polled: Vec<libc::pollfd> =
            alive.iter().map(|(_, fd)| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 }).collect();
        // SAFETY: the array is as long as it is said to be.
        let ready = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, SOON.as_millis() as i32) };
        assert!(ready > 0, "{} do not end", alive.len());
        let now_ms = unix_ms();
        let ended = |fd: &OwnedFd| polled.iter().any(|p| p.fd == fd.as_raw_fd() && p.revents != 0);
        ends.extend(alive.extract_if(.., |(_, fd)| ended(fd)).map(|(pid, _)| (pid, now_ms)));
    }
    (began_ms, ends)
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as u64
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
