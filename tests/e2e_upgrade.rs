//! A daemon that replaces its program while everybody goes on: calls, streams, half-sent requests, servers and their
//! sandboxes. The servers count what they get and know when they were born, so nothing can be lost, sent twice or started
//! anew unseen. And programs that must not take over: then nothing changes.

mod support;

use serde_json::{Value, json};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use support::certificates::Authority;
use support::mcp::{McpClient, text};
use support::secure::{Secure, any_version};
use support::{BASE, Daemon, Http, SOON, STDIOD, eventually, python};

const COUNTING: &str = include_str!("fixtures/counting.py");
const UPGRADE: &str = "/api/v1/upgrade";
const UPGRADES: usize = 50;
const SERVERS: [(&str, &str); 2] = [("g", "gvisor"), ("c", "crun")];

fn hosted() -> Daemon {
    let daemon = Daemon::start();
    for (name, provider) in SERVERS {
        let mut definition = python(name, provider, COUNTING);
        definition["max_in_flight"] = json!(16);
        definition["resource_limits"] = json!({"cpu": "1"});
        daemon.register(&definition);
    }
    daemon
}

fn told(daemon: &Daemon, server: &str) -> Value {
    let told = daemon.text(server, "told", json!({}));
    serde_json::from_str(&told).expect("JSON")
}

/// On a connection of its own, which goes over the exec like all others.
fn upgrade(daemon: &Daemon, program: Option<&str>) -> support::Reply {
    let body = program.map(|program| json!({"binary": program}));
    daemon.request("POST", UPGRADE, body.as_ref())
}

fn upgraded(daemon: &Daemon, program: Option<&str>) -> u64 {
    let reply = upgrade(daemon, program);
    assert_eq!(reply.status, 200, "{reply}\n{}", daemon.log_tail());
    reply.json()["pause_ms"].as_u64().expect("a number")
}

/// When the program that has taken over last is connected to its database.
fn descriptors(daemon: &Daemon) -> usize {
    let last = |lines: &[String], words: &str| lines.iter().rposition(|line| line.contains(words));
    let is_connected = || {
        let lines = daemon.log_lines();
        last(&lines, "store: open") > last(&lines, "has taken over from")
    };
    assert!(eventually(SOON, is_connected), "{}", daemon.log_tail());
    std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).expect("it runs").count()
}

#[test]
fn fifty_upgrades_under_load_lose_nothing_and_send_nothing_twice() {
    let daemon = hosted();
    let born: Vec<Value> = SERVERS.iter().map(|(server, _)| told(&daemon, server)["born"].clone()).collect();
    let pid = daemon.pid();
    // The connection that asks, the first exec and its threads: what is there after one is there after fifty.
    upgraded(&daemon, None);
    let (done, calls) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut pauses = std::thread::scope(|scope| {
        let mut clients = Vec::new();
        for (server, _) in SERVERS {
            for number in 0..4 {
                let (daemon, done, calls) = (&daemon, &done, &calls);
                clients.push(scope.spawn(move || rest_client(daemon, server, number, done, calls)));
            }
            let (daemon, done, calls) = (&daemon, &done, &calls);
            clients.push(scope.spawn(move || mcp_client(daemon, server, done, calls)));
            clients.push(scope.spawn(move || streaming_client(daemon, server, done, calls)));
        }
        let mut pauses = Vec::new();
        for _ in 0..UPGRADES {
            // Some work between two of them: the load must get on.
            let before = calls.load(Ordering::Relaxed);
            assert!(eventually(SOON, || calls.load(Ordering::Relaxed) > before + 20), "nobody gets on");
            pauses.push(upgraded(&daemon, None));
        }
        done.store(true, Ordering::Relaxed);
        clients.into_iter().for_each(|client| client.join().expect("no call failed"));
        pauses
    });
    let mut all = 0;
    for ((server, _), born) in SERVERS.iter().zip(born) {
        let told = told(&daemon, server);
        assert_eq!(told["born"], born, "{server} is another process");
        assert_eq!(told["twice"], json!([]), "{server}: calls that came twice");
        assert_eq!(daemon.status(server)["restart_count"], 0);
        all += told["calls"].as_u64().expect("a number") as usize;
    }
    assert_eq!(all, calls.load(Ordering::Relaxed), "every call that was answered was sent once");
    assert_eq!(daemon.pid(), pid);
    pauses.sort_unstable();
    println!(
        "{UPGRADES} upgrades, {all} calls; pauses: median {} ms, longest {} ms",
        pauses[UPGRADES / 2],
        pauses[UPGRADES - 1]
    );
    assert!(pauses[UPGRADES - 1] < 5_000, "nobody was served for so long: {pauses:?}");
    // Nobody is connected any more, and nothing was kept open by mistake.
    let before = descriptors(&daemon);
    for _ in 0..5 {
        upgraded(&daemon, None);
    }
    assert!(
        eventually(SOON, || descriptors(&daemon) <= before),
        "{before} descriptors became {}",
        descriptors(&daemon)
    );
}

/// Calls over one connection that is kept, small ones and large ones.
fn rest_client(daemon: &Daemon, server: &str, number: usize, done: &AtomicBool, calls: &AtomicUsize) {
    let mut http = Http::connect(daemon.address(), daemon.token());
    let path = format!("{BASE}/{server}/call");
    for turn in 0.. {
        let token = format!("{server}{number}-{turn}-");
        let (tool, arguments) = match turn % 16 {
            7 => ("large", json!({"token": token, "bytes": 300_000})),
            _ => ("count", json!({"token": token})),
        };
        let body = json!({"method": "tools/call", "params": {"name": tool, "arguments": arguments}}).to_string();
        // In two pieces: an exec may come between them.
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            daemon.address(),
            daemon.token(),
            body.len()
        );
        let (first, rest) = body.split_at(body.len() / 2);
        http.send_raw(format!("{head}{first}").as_bytes()).expect("it is taken");
        http.send_raw(rest.as_bytes()).expect("it is taken");
        let reply = http.read_reply(false).unwrap_or_else(|e| panic!("{token}: {e}\n{}", daemon.log_tail()));
        assert_eq!(reply.status, 200, "{token}: {reply}\n{}", daemon.log_tail());
        assert!(reply.text().starts_with(&token), "somebody else's answer");
        calls.fetch_add(1, Ordering::Relaxed);
        if done.load(Ordering::Relaxed) {
            return;
        }
    }
}

/// A session, and an open stream beside it, over all upgrades.
fn mcp_client(daemon: &Daemon, server: &str, done: &AtomicBool, calls: &AtomicUsize) {
    let client = McpClient::connect(daemon, &format!("/mcp/{server}"), json!({}));
    let open = client.get(None);
    for turn in 0.. {
        let token = format!("{server}m-{turn}");
        let answer = client.tool("count", json!({"token": token}));
        assert_eq!(text(&answer), token);
        calls.fetch_add(1, Ordering::Relaxed);
        if done.load(Ordering::Relaxed) {
            break;
        }
    }
    assert_eq!(open.status, 200);
}

/// Long calls with progress: every step is told once and in order, whatever program tells it.
fn streaming_client(daemon: &Daemon, server: &str, done: &AtomicBool, calls: &AtomicUsize) {
    let client = McpClient::connect(daemon, &format!("/mcp/{server}"), json!({}));
    for turn in 0.. {
        let token = format!("{server}s-{turn}");
        let arguments = json!({"token": token, "steps": 20});
        let params = json!({"name": "slow", "arguments": arguments, "_meta": {"progressToken": 1}});
        let (before, answer) = client.request(turn, "tools/call", params).answer_and(turn);
        assert_eq!(text(&answer), token);
        let steps: Vec<u64> = before.iter().filter_map(|message| message["params"]["progress"].as_u64()).collect();
        assert_eq!(steps, (1..=20).collect::<Vec<u64>>(), "each step once");
        calls.fetch_add(1, Ordering::Relaxed);
        if done.load(Ordering::Relaxed) {
            return;
        }
    }
}

#[test]
fn connections_that_speak_tls_are_brought_to_an_end_and_nothing_asked_on_them_is_lost() {
    let authority = Authority::new();
    let (cert, key) = authority.vouch_for("server", "stdiod");
    let daemon = Daemon::with("STDIOD_LISTEN", "http://127.0.0.1:0,127.0.0.1:0")
        .variable("STDIOD_TLS_CERT", cert)
        .variable("STDIOD_TLS_KEY", key)
        .start();
    daemon.register(&python("c", "crun", COUNTING));
    let line = daemon.wait_log(&["listening on https://"]);
    let address = line.rsplit_once("https://").expect("just found").1.trim();
    let config = any_version(&authority.cert());
    let connect = || Secure::connect(address, &config, daemon.token()).expect("a connection");
    let (mut idle, mut busy) = (connect(), connect());
    assert_eq!(idle.request("GET", BASE, None).expect("an answer").status, 200);
    let params = json!({"name": "slow", "arguments": {"token": "t", "steps": 20}});
    let call = json!({"method": "tools/call", "params": params});
    busy.send("POST", &format!("{BASE}/c/call"), "", Some(&call)).expect("it is open");
    // It has begun when the server has it.
    assert!(eventually(SOON, || told(&daemon, "c")["calls"] == 1));
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| upgraded(&daemon, None));
        let reply = busy.read_reply().expect("an answer, from the program that was asked");
        assert_eq!((reply.status, reply.text().as_str()), (200, "t"));
        for mut over in [idle, busy] {
            let mut rest = Vec::new();
            over.stream.read_to_end(&mut rest).expect("close_notify, and not a torn end");
            assert_eq!(rest, b"");
        }
        asked.join().expect("it goes on");
    });
    let mut asking = connect();
    assert_eq!(asking.request("POST", UPGRADE, None).expect("an answer, ahead").status, 202);
    let over = |line: &&String| line.contains("has taken over from");
    assert!(eventually(SOON, || daemon.log_lines().iter().filter(over).count() == 2), "{}", daemon.log_tail());
    assert_eq!(connect().request("GET", BASE, None).expect("an answer").status, 200, "of the new one");
    assert_eq!(told(&daemon, "c")["twice"], json!([]));
}

/// A program of a few lines, in the place of a new daemon.
fn program(daemon: &Daemon, name: &str, text: &str) -> String {
    let path: PathBuf = daemon.scratch("programs").join(name);
    std::fs::write(&path, text).expect("a file");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("our own file");
    path.to_str().expect("a name of ours").to_string()
}

#[test]
fn a_program_that_cannot_take_over_is_refused_and_nothing_changes() {
    let daemon = hosted();
    let born = told(&daemon, "c")["born"].clone();
    for (name, text, why) in [
        ("broken", "#!/bin/sh\nexit 3\n", "does not read the state"),
        ("crashes", "#!/bin/sh\nkill -SEGV $$\n", "killed by signal 11"),
        (
            "older",
            "#!/bin/sh\necho '{\"version\":\"0.0.9\",\"refused\":\"the state has version 7\"}'\nexit 1\n",
            "version 0.0.9 cannot go on: the state has version 7",
        ),
        ("empty", "", "cannot be started"),
    ] {
        let refused = upgrade(&daemon, Some(&program(&daemon, name, text)));
        assert_eq!(refused.status, 503, "{name}: {refused}");
        assert!(refused.body_text().contains(why), "{name}: {refused}");
    }
    let open = program(&daemon, "open", "#!/bin/sh\n");
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).expect("our own file");
    let refused = upgrade(&daemon, Some(&open));
    assert!(refused.status == 503 && refused.body_text().contains("others may write to it"), "{refused}");
    let refused = upgrade(&daemon, Some("/nowhere/at/all"));
    assert!(refused.status == 503 && refused.body_text().contains("cannot be started"), "{refused}");
    assert_eq!(upgrade(&daemon, Some("relative")).status, 400);
    let after = told(&daemon, "c");
    assert_eq!((&after["born"], &after["twice"]), (&born, &json!([])));
    // And one that can, from another place than its own: the command line says so too.
    let copy = daemon.scratch("programs").join("stdiod");
    std::fs::copy(STDIOD, &copy).expect("a copy");
    let output = daemon.cli(&["upgrade", copy.to_str().expect("a name of ours")]);
    assert!(output.status.success(), "{output:?}\n{}", daemon.log_tail());
    let exe = std::fs::read_link(format!("/proc/{}/exe", daemon.pid())).expect("it runs");
    assert_eq!(exe, copy.canonicalize().expect("it is there"));
    assert_eq!(told(&daemon, "c")["born"], born);
}

#[test]
fn deaths_signals_and_a_stop_around_an_upgrade_are_seen_once() {
    let mut daemon = hosted();
    for turn in 0..3 {
        // It dies in the very moment, before or after.
        let victim = daemon.sandbox("crun", "/app/server.py");
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| upgraded(&daemon, None));
            nix::sys::signal::kill(victim, nix::sys::signal::Signal::SIGKILL).expect("it runs");
            asked.join().expect("it goes on");
        });
        let status = daemon.wait_until("c", "ready again", |status| {
            status["status"] == "ready" && status["restart_count"] == json!(turn + 1)
        });
        assert_eq!(status["restart_count"], json!(turn + 1), "one death, one restart");
    }
    // SIGUSR2 is the same without an answer.
    daemon.signal(nix::sys::signal::Signal::SIGUSR2);
    assert!(
        eventually(SOON, || daemon.log_lines().iter().filter(|line| line.contains("has taken over from")).count() == 4)
    );
    told(&daemon, "g");
    // And a daemon that has taken over ends as any other.
    let exit = daemon.stop();
    assert_eq!(exit.code(), Some(0), "{exit:?}\n{}", daemon.log_tail());
}
