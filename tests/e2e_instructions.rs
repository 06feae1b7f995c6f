//! What a call costs in instructions of the loop thread, counted by callgrind: a number that no noise of the machine moves.
//! It may not rise by more than a tenth over what is written here; if it falls, write the new one down.

mod support;

use serde_json::json;
use std::path::Path;
use std::process::Command;
use support::{BASE, Daemon, Http, Options, RUDE, python};

/// Of the build that the tests run (`profile.dev`), with rustc 1.95 on x86-64.
const REST: u64 = 27_800;
const MCP: u64 = 37_800;
/// REST again, with a head that its connection has never sent before.
const NEW_HEAD: u64 = 36_100;
const CALLS: u64 = 500;
/// In a request: another one each time.
const NUMBER: &str = "NUMBER";

#[test]
fn a_call_costs_no_more_instructions_than_it_did() {
    let scratch = support::short_temporary_directory();
    let counts = scratch.join("callgrind");
    let out = format!("--callgrind-out-file={}", counts.display());
    let daemon = Options::default()
        .under(&["valgrind", "--quiet", "--tool=callgrind", "--instr-atstart=no", "--separate-threads=yes", &out])
        .start();
    daemon.register(&python("echo", "crun", RUDE));
    let text = "x".repeat(100);
    let call = json!({"method": "tools/call", "params": {"name": "echo", "arguments": {"text": text}}});
    let rest = request(&daemon, &format!("{BASE}/echo/call"), "", &call.to_string());
    let numbered = format!("traceparent: 00-4bf92f3577b34da6a3ce929d0e{NUMBER}-00f067aa0ba902b7-01\r\n");
    let new_head = request(&daemon, &format!("{BASE}/echo/call"), &numbered, &call.to_string());

    let info = json!({"name": "test", "version": "1"});
    let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info});
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello});
    let mut http = daemon.http();
    http.send_raw(request(&daemon, "/mcp/echo", "", &hello.to_string()).as_bytes()).unwrap();
    let answer = http.read_reply(false).unwrap();
    let session = answer.header("mcp-session-id").expect("a session").to_string();
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call["params"]});
    let head = format!("Mcp-Session-Id: {session}\r\nMCP-Protocol-Version: 2025-11-25\r\n");
    let mcp = request(&daemon, "/mcp/echo", &head, &call.to_string());

    let mut taken = Vec::new();
    for (round, request) in [&rest, &mcp, &new_head].into_iter().enumerate() {
        // Buffers and maps have their size, and the connection is known.
        make(&mut http, request, &text, 50);
        control(&daemon, "-i", "on");
        make(&mut http, request, &text, CALLS);
        control(&daemon, "-i", "off");
        taken.push(dumped(&daemon, &counts, round + 1) / CALLS);
    }
    // It writes its last counts there.
    drop(daemon);
    std::fs::remove_dir_all(scratch).expect("our own directory");
    println!("instructions a call: REST {}, MCP {}, with a new head {}", taken[0], taken[1], taken[2]);
    for (what, taken, known) in [("REST", taken[0], REST), ("MCP", taken[1], MCP), ("a new head", taken[2], NEW_HEAD)] {
        assert!(taken * 10 <= known * 11, "{what}: {taken} instructions a call, and it was {known}");
        assert!(taken * 2 > known, "{what}: {taken} instructions a call instead of {known}: is it still counted?");
    }
}

fn request(daemon: &Daemon, path: &str, more: &str, body: &str) -> String {
    let (host, token, length) = (daemon.address(), daemon.token(), body.len());
    format!(
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nAccept: application/json, \
         text/event-stream\r\nContent-Type: application/json\r\n{more}Content-Length: {length}\r\n\r\n{body}"
    )
}

fn make(http: &mut Http, request: &str, expected: &str, times: u64) {
    for number in 0..times {
        let request = request.replace(NUMBER, &format!("{number:06}"));
        http.send_raw(request.as_bytes()).unwrap();
        let reply = http.read_reply(false).unwrap();
        assert!(reply.status == 200 && reply.body_text().contains(expected), "{}", reply.body_text());
    }
}

fn control(daemon: &Daemon, option: &str, value: &str) {
    let mut command = Command::new("callgrind_control");
    command.arg(option).args(Some(value).filter(|value| !value.is_empty())).arg(daemon.pid().to_string());
    let output = command.output().expect("valgrind: scripts/setup --tests installs it");
    assert!(output.status.success(), "callgrind_control {option} {value}: {output:?}");
}

/// What the first thread, which is the loop, has taken since the last dump.
fn dumped(daemon: &Daemon, counts: &Path, number: usize) -> u64 {
    control(daemon, "-d", "");
    let file = format!("{}.{number}-01", counts.display());
    let text = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{file}: {e}"));
    let total = text.lines().find_map(|line| line.strip_prefix("totals:"));
    total.and_then(|total| total.trim().parse().ok()).unwrap_or_else(|| panic!("no total in {file}"))
}
