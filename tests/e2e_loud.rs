//! One server that says as much as it can, and what its neighbours notice of it. Latencies are compared within one run, each
//! with and without the loud one, and the factor is generous: an unfair loop misses it by far.

mod support;

use serde_json::json;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};
use support::mcp::McpClient;
use support::{BASE, Daemon, RUDE, SOON, eventually, on_both_providers, python};

const LOUD: &str = include_str!("fixtures/loud.py");

on_both_providers!(
    a_loud_server_costs_its_neighbours_little,
    lines_of_a_loud_server_are_late_and_not_lost,
    the_last_words_of_a_loud_server_are_heard,
);

/// Another test's sandboxes would be what this one measures.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn a_loud_server_costs_its_neighbours_little(provider: &str) {
    let _turn = alone();
    let daemon = Daemon::start();
    daemon.register(&python("quiet", provider, RUDE));
    let mut missed = Vec::new();
    for kind in ["noise", "stderr", "pings", "notifications"] {
        let loud = python(kind, provider, LOUD);
        daemon.register(&loud);
        // Somebody hears its notifications.
        let client = McpClient::connect(&daemon, &format!("/mcp/{kind}"), json!({}));
        assert_eq!(client.ask("logging/setLevel", json!({"level": "error"}))["result"], json!({}));
        let mut stream = client.get(None);

        let before = median(&daemon);
        let flooded = daemon.tool(kind, "flood", json!({"kind": kind, "secs": 6}));
        assert_eq!(flooded.text(), "here it comes", "{flooded}");
        std::thread::sleep(Duration::from_millis(500));
        let (cpu, began) = (cpu_time(&daemon), Instant::now());
        let beside = median(&daemon);
        std::thread::sleep(Duration::from_secs(2).saturating_sub(began.elapsed()));
        let share = (cpu_time(&daemon) - cpu).as_secs_f64() / began.elapsed().as_secs_f64();
        if kind == "notifications" {
            assert_eq!(stream.message().expect("a notification")["method"], "notifications/message");
        }
        drop(stream);
        let reply = daemon.request("POST", &format!("{BASE}/{kind}/stop"), None);
        assert_eq!(reply.status, 200, "{reply}");
        let after = median(&daemon);
        let factor = beside.as_secs_f64() / before.max(after).as_secs_f64();
        let found =
            format!("{kind}: {before:?} and {after:?} alone, {beside:?} beside it: {factor:.1} x; {share:.2} cores");
        println!("{provider} {found}");
        if factor > 5.0 || share > 0.6 {
            missed.push(found);
        }
        assert_eq!(daemon.request("DELETE", &format!("{BASE}/{kind}"), None).status, 204);
    }
    assert!(missed.is_empty(), "{missed:#?}\n{}", daemon.log_tail());
    let said = daemon.log_lines().len();
    assert!(said < 300, "{said} lines of the daemon's own log:\n{}", daemon.log_tail());
}

/// Of two hundred calls, or of as many as three seconds have.
fn median(daemon: &Daemon) -> Duration {
    let (mut http, began, mut took) = (daemon.http(), Instant::now(), Vec::new());
    let body = json!({"method": "tools/call", "params": {"name": "echo", "arguments": {"text": "x"}}});
    while took.len() < 200 && (took.len() < 5 || began.elapsed() < Duration::from_secs(3)) {
        let asked = Instant::now();
        let reply = http.request("POST", &format!("{BASE}/quiet/call"), Some(&body));
        took.push(asked.elapsed());
        assert_eq!(reply.status, 200, "{reply}");
    }
    took.sort();
    took[took.len() / 2]
}

/// Of all its threads.
fn cpu_time(daemon: &Daemon) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", daemon.pid())).expect("it runs");
    let fields: Vec<&str> = stat.rsplit_once(')').expect("a name").1.split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().expect("a number")).sum();
    let per_sec = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).expect("known").expect("a number");
    Duration::from_millis(1000 * ticks / per_sec.cast_unsigned())
}

fn lines_of_a_loud_server_are_late_and_not_lost(provider: &str) {
    let _turn = alone();
    let daemon = Daemon::start();
    daemon.register(&python("loud", provider, LOUD));
    // Far more than it may be owed: it is not heard while it reads nothing, and then every one is answered.
    let asked = daemon.tool_within("loud", "ask", json!({"count": 20_000, "deaf_secs": 2}), 80_000);
    assert_eq!(asked.text(), "20000", "{asked}");
    daemon.wait_log(&["asks and does not read the answers"]);
    // Its answers stand behind its noise, and come.
    assert_eq!(daemon.text("loud", "flood", json!({"kind": "noise", "secs": 1})), "here it comes");
    let late = daemon.tool_within("loud", "echo", json!({"text": "after the noise"}), 80_000);
    assert_eq!(late.text(), "after the noise", "{late}");
    daemon.wait_log(&["says more than it may"]);
    // A loud stderr keeps no answer back.
    assert_eq!(daemon.text("loud", "flood", json!({"kind": "stderr", "secs": 1})), "here it comes");
    assert_eq!(daemon.text("loud", "echo", json!({"text": "still here"})), "still here");
    let has_summary = || daemon.get(&format!("{BASE}/loud/logs?tail=1000")).body_text().contains("lines were not kept");
    assert!(eventually(SOON, has_summary), "{}", daemon.get(&format!("{BASE}/loud/logs?tail=5")));
    assert_eq!(daemon.status("loud")["restart_count"], 0);
}

fn the_last_words_of_a_loud_server_are_heard(provider: &str) {
    let _turn = alone();
    let daemon = Daemon::start();
    daemon.register(&python("loud", provider, LOUD));
    daemon.register(&python("quiet", provider, RUDE));
    // What the pipes hold, a byte of noise a line.
    let last = daemon.tool("loud", "last", json!({"noise": 30_000, "code": 3}));
    assert_eq!(last.text(), "just in time", "{last}");
    let status = daemon.wait_until("loud", "back", |s| s["status"] == "ready" && s["restart_count"] == 1);
    assert_eq!(status["last_crash"]["exit_code"], 3, "{status:#}");
    let tail = status["last_crash"]["stderr_tail"].as_array().expect("lines").clone();
    assert_eq!(tail.last(), Some(&json!("the reason of it all")), "{status:#}");
    assert_eq!(daemon.text("quiet", "echo", json!({"text": "x"})), "x");
    let logs = daemon.get(&format!("{BASE}/loud/logs?tail=1000")).body_text();
    assert!(logs.contains("lines were not kept"), "{logs}");
}
