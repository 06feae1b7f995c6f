//! A proxy that fails in every way there is, between the daemon and an external server that counts: each failure has its code
//! and says whether the call may have been carried out, no call is sent twice, and neither memory nor anybody else suffers.

use crate::support::upstream::{Failure, FaultProxy, Upstream, free_port};
use crate::support::{Daemon, Reply};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PROJECT: &str = "/api/v1/projects/faults/mcp";
/// A connection that nobody should make: port 9 (discard) of this machine, and another origin than the proxy's.
const ELSEWHERE: &str = "Location: http://127.0.0.1:9/mcp\r\n";

const FAILURES: &[(&str, Failure)] = &[
    ("reset_at_once", Failure::ResetAtOnce),
    ("s401", Failure::Status("401 Unauthorized", "")),
    ("s403", Failure::Status("403 Forbidden", "")),
    ("s404", Failure::Status("404 Not Found", "")),
    ("s429", Failure::Status("429 Too Many Requests", "Retry-After: 2\r\n")),
    ("s500", Failure::Status("500 Internal Server Error", "")),
    ("redirected", Failure::Status("307 Temporary Redirect", ELSEWHERE)),
    ("reset_in_mid_answer", Failure::ResetInMidAnswer),
    ("hang", Failure::Hang),
    ("byte_a_second", Failure::ByteASecond),
    ("wrong_type", Failure::WrongType),
    ("malformed_events", Failure::MalformedEvents),
    ("huge_event", Failure::HugeEvent),
];

/// By tool: code, outcome, and how often the upstream has it.
const EXPECTED: &[(&str, &str, &str, usize)] = &[
    ("reset_at_once", "upstream_unavailable", "sent_unknown", 0),
    ("s401", "upstream_unavailable", "not_sent", 0),
    ("s403", "upstream_unavailable", "not_sent", 0),
    ("s404", "upstream_unavailable", "not_sent", 0),
    ("s429", "upstream_unavailable", "not_sent", 0),
    ("s500", "upstream_unavailable", "sent_unknown", 0),
    ("redirected", "upstream_unavailable", "not_sent", 0),
    ("reset_in_mid_answer", "upstream_unavailable", "sent_unknown", 1),
    ("hang", "call_timeout", "sent_unknown", 1),
    ("byte_a_second", "call_timeout", "sent_unknown", 1),
    ("wrong_type", "bad_server_output", "sent_unknown", 1),
    ("malformed_events", "bad_server_output", "sent_unknown", 1),
    ("huge_event", "response_too_large", "sent_unknown", 1),
];

fn add(daemon: &Daemon, name: &str, url: &str) {
    let row = json!({"name": name, "transport": "http", "url": url});
    let reply = daemon.request("POST", &format!("{PROJECT}/servers"), Some(&row));
    assert_eq!(reply.status, 201, "{reply}");
}

fn call(daemon: &Daemon, server: &str, tool: &str) -> Reply {
    // Longer than a busy machine needs; those that never answer have less time.
    let timeout_ms = if matches!(tool, "hang" | "byte_a_second") { 1_500 } else { 15_000 };
    let body = json!({"name": tool, "server": server, "timeout_ms": timeout_ms});
    daemon.request("POST", &format!("{PROJECT}/tools/call"), Some(&body))
}

/// A link that has just been lost is there again soon.
fn call_until_answered(daemon: &Daemon, server: &str) {
    let patience = Instant::now() + Duration::from_secs(30);
    loop {
        let reply = call(daemon, server, "fine");
        if reply.status == 200 {
            return;
        }
        assert_eq!(reply.code(), json!("upstream_unavailable"), "{reply}");
        assert!(Instant::now() < patience, "{reply}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn peak_kib(daemon: &Daemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("a peak");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
}

#[test]
fn every_failure_of_an_external_server_is_told_as_what_it_is_and_harms_nobody_else() {
    let daemon = Daemon::start();
    let mut tools: Vec<&str> = FAILURES.iter().map(|(name, _)| *name).collect();
    tools.push("fine");
    let upstream = Upstream::with_tools(&tools);
    let neighbour = Upstream::with_tools(&["fine"]);
    let proxy = FaultProxy::before(upstream.address, FAILURES);
    add(&daemon, "faulty", &proxy.url());
    add(&daemon, "neighbour", &neighbour.url());
    add(&daemon, "nobody", &format!("http://127.0.0.1:{}/mcp", free_port()));
    assert_eq!(call(&daemon, "faulty", "fine").status, 200, "{}", daemon.log_tail());
    assert_eq!(call(&daemon, "neighbour", "fine").status, 200, "{}", daemon.log_tail());
    let before_kib = peak_kib(&daemon);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let neighbours = scope.spawn(|| {
            let mut calls = 1;
            while !over.load(Ordering::SeqCst) {
                let reply = call(&daemon, "neighbour", "fine");
                assert_eq!(reply.status, 200, "the neighbour is not harmed: {reply}");
                calls += 1;
            }
            calls
        });
        for (tool, code, outcome, reached) in EXPECTED {
            call_until_answered(&daemon, "faulty");
            let reply = call(&daemon, "faulty", tool);
            assert_eq!((reply.code(), reply.outcome()), (json!(code), json!(outcome)), "{tool}: {reply}");
            assert_eq!(upstream.calls(tool), *reached, "{tool} is sent once at most");
            if *tool == "s429" {
                assert_eq!(reply.header("retry-after"), Some("2"), "{reply}");
            }
        }
        over.store(true, Ordering::SeqCst);
        let calls = neighbours.join().expect("the neighbour answers");
        assert_eq!(neighbour.calls("fine"), calls, "each of them was sent once");
    });
    call_until_answered(&daemon, "faulty");
    assert!(upstream.sessions.load(Ordering::SeqCst) >= 2, "a session that is not known is begun anew");
    for (tool, _, _, reached) in EXPECTED {
        assert_eq!(upstream.calls(tool), *reached, "{tool} is not sent later either");
    }
    let refused = call(&daemon, "nobody", "fine");
    assert_eq!((refused.code(), refused.outcome()), (json!("upstream_unavailable"), json!("not_sent")), "{refused}");
    let grown_kib = peak_kib(&daemon) - before_kib;
    assert!(grown_kib < 96 * 1024, "an event of 100 MB is not held: {grown_kib} KiB more");
}

/// `isolation: "none"` is a program beside the daemon, not in a sandbox: an operator has to allow that.
#[test]
fn an_external_program_without_a_sandbox_runs_only_where_that_is_allowed() {
    let row = json!({"name": "bare", "transport": "stdio", "command": "/usr/bin/python3", "isolation": "none",
        "args": ["-c", PROGRAM]});
    let ask = |daemon: &Daemon| -> Value {
        let made = daemon.request("POST", &format!("{PROJECT}/servers"), Some(&row));
        assert!(matches!(made.status, 201 | 422), "{made}");
        call(daemon, "bare", "fine").json()
    };
    let refused = ask(&Daemon::start());
    assert!(refused["error"]["code"].is_string(), "{refused}");
    let told = refused.to_string();
    assert!(told.contains("allow_isolation_none") || told.contains("not_found"), "{refused}");
    let answered = ask(&Daemon::with("STDIOD_ALLOW_ISOLATION_NONE", "true").start());
    assert_eq!(answered["result"]["content"][0]["text"], "fine", "{answered}");
}

const PROGRAM: &str = r#"
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if 'id' not in asked: continue
    method = asked['method']
    result = {'initialize': {'protocolVersion': '2025-11-25', 'capabilities': {'tools': {}}, 'serverInfo': {'name': 'bare', 'version': '1'}},
        'tools/list': {'tools': [{'name': 'fine', 'inputSchema': {'type': 'object'}}]},
        'tools/call': {'content': [{'type': 'text', 'text': 'fine'}]}}.get(method, {})
    print(json.dumps({'jsonrpc': '2.0', 'id': asked['id'], 'result': result}), flush=True)
"#;
