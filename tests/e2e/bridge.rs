//! The bridge under pressure: many clients with colliding ids on one server that tolerates no overlap, and a server with
//! every bad habit there is. Whatever happens, each call gets its own answer and the next one works.

use crate::support::{BASE, Daemon, RUDE, Reply, STRICT, on_both_providers, python};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use stdiod::limits::LINE_MAX;

on_both_providers!(
    a_hundred_clients_with_colliding_ids_each_get_their_own_answer,
    bad_manners_cost_the_call_they_belong_to_and_no_other,
    large_answers_and_small_ones_pass_each_other_whole,
    payloads_pass_through_byte_for_byte,
    the_sandbox_shows_what_the_definition_says,
);

fn a_hundred_clients_with_colliding_ids_each_get_their_own_answer(provider: &str) {
    const CLIENTS: usize = 100;
    const CALLS: usize = 5;
    let daemon = Daemon::start();
    let mut definition = python("strict", provider, STRICT);
    definition["resource_limits"] = json!({"cpu": "2"});
    daemon.register(&definition);
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let daemon = &daemon;
            scope.spawn(move || {
                let mut http = daemon.http();
                for call in 0..CALLS {
                    let text = format!("client {client} call {call}");
                    // Every client counts the same ids; they are inside the params, where they look like the bridge's own.
                    let params = json!({"name": "echo", "arguments": {"text": text, "id": call}, "id": call});
                    let body = json!({"method": "tools/call", "params": params, "timeout_ms": 120_000});
                    let reply = http.request("POST", &format!("{BASE}/strict/call"), Some(&body));
                    assert_eq!((reply.status, reply.text()), (200, text), "{reply}");
                }
            });
        }
    });
    let status = daemon.status("strict");
    assert_eq!(
        (&status["restart_count"], &status["last_crash"]),
        (&json!(0), &Value::Null),
        "it saw an overlap: {status:#}"
    );
}

fn bad_manners_cost_the_call_they_belong_to_and_no_other(provider: &str) {
    let daemon = Daemon::start();
    daemon.register(&python("rude", provider, RUDE));
    let still_there = |after: &str| assert_eq!(daemon.text("rude", "echo", json!({"text": after})), after);

    assert_eq!(daemon.text("rude", "garbage", json!({})), "after garbage");
    still_there("garbage");
    let logs = daemon.get(&format!("{BASE}/rude/logs"));
    assert!(String::from_utf8_lossy(&logs.body).contains("not json"), "noise is kept in the log: {logs}");

    let mib = LINE_MAX / (1 << 20) + 4;
    for id_last in [false, true] {
        let long = daemon.tool("rude", "long_line", json!({"mib": mib, "id_last": id_last}));
        assert_eq!((long.status, long.code()), (502, json!("response_too_large")), "{long}");
        assert!(long.body.len() < 4096, "the error names the limit, not the line");
        still_there("long_line");
    }

    for finish in [false, true] {
        let half = daemon.tool_within("rude", "half_line", json!({"finish": finish}), 1_000);
        assert_eq!((half.status, half.code()), (504, json!("call_timeout")), "{half}");
        assert_eq!(half.outcome(), "sent_unknown");
        still_there("half_line");
    }

    assert_eq!(daemon.text("rude", "bad_utf8", json!({})), "after bad utf-8");
    still_there("bad_utf8");
    // A reply that is not UTF-8 cannot be passed on as JSON; whether it is noise or a bad reply is a matter of taste.
    let inside = daemon.tool_within("rude", "bad_utf8_inside", json!({}), 1_000);
    assert!([json!("bad_server_output"), json!("call_timeout")].contains(&inside.code()), "{inside}");
    still_there("bad_utf8_inside");

    assert_eq!(daemon.text("rude", "unknown_id", json!({})), "right");
    still_there("unknown_id");
    assert_eq!(daemon.text("rude", "twice", json!({})), "once");
    still_there("twice");

    let neither = daemon.tool("rude", "neither", json!({}));
    assert_eq!((neither.status, neither.code()), (502, json!("bad_server_output")), "{neither}");
    still_there("neither");

    let slow = daemon.tool_within("rude", "sleep", json!({"ms": 3_000}), 500);
    assert_eq!(
        (slow.status, slow.code(), slow.outcome()),
        (504, json!("call_timeout"), json!("sent_unknown")),
        "{slow}"
    );
    assert_eq!(slow.header("x-stdiod-error-source"), Some("host"));
    still_there("sleep");

    let status = daemon.status("rude");
    assert_eq!((&status["restart_count"], &status["status"]), (&json!(0), &json!("ready")), "{status:#}");
}

/// `numbers` says so many bytes of which every eight say where they stand.
const COUNTER: &str = r#"
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") == "numbers":
        result = {"text": "".join("%08x" % n for n in range(message["params"]["bytes"] // 8))}
    elif "id" in message:
        result = {}
    else:
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"#;

fn is_counted(reply: &Reply, bytes: usize) {
    assert_eq!(reply.status, 200, "{bytes}: {:.300}", reply.body_text());
    let expected: String = (0..bytes / 8).map(|n| format!("{n:08x}")).collect();
    assert!(reply.json()["result"]["text"] == expected, "{bytes} bytes are not what was said");
}

/// Large answers move piece by piece, in and out, in the gaps that small ones leave: none is lost or comes twice.
fn large_answers_and_small_ones_pass_each_other_whole(provider: &str) {
    const SIZES: [usize; 4] = [60_000, 130_000, 1 << 20, 6 << 20];
    let daemon = Daemon::start();
    let names = ["large-1", "large-2"];
    for name in names {
        daemon.register(&python(name, provider, COUNTER));
    }
    daemon.register(&python("small", provider, RUDE));
    let under_way = AtomicUsize::new(2 * names.len());
    std::thread::scope(|scope| {
        for name in names.into_iter().chain(names) {
            let (daemon, under_way) = (&daemon, &under_way);
            scope.spawn(move || {
                let _done = Leaves(under_way);
                let mut http = daemon.http();
                for bytes in SIZES.into_iter().cycle().take(12) {
                    let body = json!({"method": "numbers", "params": {"bytes": bytes}});
                    let reply = http.request("POST", &format!("{BASE}/{name}/call"), Some(&body));
                    is_counted(&reply, bytes);
                }
            });
        }
        let mut calls = 0;
        while under_way.load(Ordering::Relaxed) > 0 {
            let text = format!("call {calls}");
            assert_eq!(daemon.text("small", "echo", json!({"text": text})), text);
            calls += 1;
        }
        assert!(calls > 48, "{calls} calls beside 48 large ones");
    });
}

/// Counts down, also when its thread panics.
struct Leaves<'a>(&'a AtomicUsize);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn payloads_pass_through_byte_for_byte(provider: &str) {
    let daemon = Daemon::start();
    // Answers `raw` with the line it got, as the result; nothing parses it on the way.
    let mirror = r#"
import sys
for line in sys.stdin:
    if '"id":' not in line:
        continue
    number = line.split('"id":')[1].split(',')[0].split('}')[0].strip()
    params = line.split('"params":')[1].strip()[:-1] if '"raw"' in line else '{}'
    if '"raw"' in line or '"ping"' in line:
        print('{"jsonrpc":"2.0","id":%s,"result":%s}' % (number, params), flush=True)
    else:
        print('{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no"}}' % number, flush=True)
"#;
    daemon.register(&python("mirror", provider, mirror));
    let params = r#"{"z":1.0e2,"a":-0.0,"big":123456789012345678901234567890,"u":"\u00e9\/é","z":[ 1 , 2 ]}"#;
    let body = format!(r#"{{"method":"raw","params":{params}}}"#);
    let reply = daemon.http().request_text("POST", &format!("{BASE}/mirror/call"), &body);
    assert_eq!(reply.status, 200, "{reply}");
    let text = String::from_utf8(reply.body).expect("UTF-8");
    assert!(text.contains(params), "{text}");
}

fn the_sandbox_shows_what_the_definition_says(provider: &str) {
    let daemon = Daemon::start();
    let mut definition = python("rude", provider, RUDE);
    definition["environment"] = json!({"SECRET": "s3cret-value", "EMPTY": ""});
    definition["volumes"] = json!(["/data"]);
    daemon.register(&definition);

    let env: Value = serde_json::from_str(&daemon.text("rude", "env", json!({}))).expect("JSON");
    assert_eq!((&env["SECRET"], &env["EMPTY"]), (&json!("s3cret-value"), &json!("")), "{env:#}");
    assert!(env.get("STDIOD_DATA_DIR").is_none(), "the daemon's own environment stays outside: {env:#}");

    let who: Value = serde_json::from_str(&daemon.text("rude", "whoami", json!({}))).expect("JSON");
    assert_ne!(who["uid"], 0, "not root unless asked: {who:#}");
    assert_eq!(who["usr_writable"], false, "{who:#}");
    assert_eq!(who["interfaces"], json!(["lo"]), "no network by default: {who:#}");
    assert!(who["mounts"].as_array().is_some_and(|mounts| mounts.contains(&json!("/data"))), "{who:#}");

    // The volume survives the instance, and the server.
    daemon.text("rude", "write", json!({"path": "/data/kept", "text": "still here"}));
    let restarted = daemon.request("POST", &format!("{BASE}/rude/restart"), None);
    assert_eq!((restarted.status, &restarted.json()["status"]), (200, &json!("ready")), "{restarted}");
    assert_eq!(daemon.text("rude", "read", json!({"path": "/data/kept"})), "still here");
    assert_eq!(daemon.request("DELETE", &format!("{BASE}/rude"), None).status, 204);
    assert_eq!(daemon.get(&format!("{BASE}/rude")).status, 404);
    daemon.register(&definition);
    assert_eq!(daemon.text("rude", "read", json!({"path": "/data/kept"})), "still here");
    assert_eq!(daemon.request("DELETE", &format!("{BASE}/rude?volumes=true"), None).status, 204);
    // When it is answered, not some time after: the next one of that name makes its own there.
    assert!(!daemon.data_dir.join("volumes/rude").exists());
    daemon.register(&definition);
    let gone = daemon.tool("rude", "read", json!({"path": "/data/kept"}));
    assert_eq!((gone.status, gone.code()), (502, json!(-32000)), "{gone}");

    let everything_shown = [daemon.status("rude").to_string(), daemon.log_tail()].concat();
    assert!(!everything_shown.contains("s3cret-value"), "{everything_shown}");
}

/// Whatever a client does before it takes a large answer: it comes, and so does what it asks for next.
#[test]
fn a_large_answer_reaches_clients_of_every_kind() {
    const BYTES: usize = 3 << 20;
    let daemon = Daemon::start();
    daemon.register(&python("large", "crun", COUNTER));
    daemon.register(&python("small", "crun", RUDE));
    let request = |line: &str, more: &str, body: &[u8]| {
        let head = format!("{line} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n{more}", daemon.token());
        let length = format!("Content-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len());
        [head.as_bytes(), length.as_bytes(), body].concat()
    };
    let numbers = json!({"method": "numbers", "params": {"bytes": BYTES}}).to_string();
    let call = |more| request(&format!("POST {BASE}/large/call"), more, numbers.as_bytes());

    let mut pipelining = daemon.http();
    pipelining.send_raw(&[call(""), call(""), call("Connection: close\r\n")].concat()).expect("it listens");
    for _ in 0..3 {
        is_counted(&pipelining.read_reply(false).expect("an answer"), BYTES);
    }
    assert_eq!(pipelining.read_to_close().expect("the end"), b"");

    for _ in 0..10 {
        let mut leaving = daemon.http();
        leaving.send_raw(&call("")).expect("it listens");
        leaving.line().expect("the beginning of the answer");
    }

    // What the daemon knows by itself it says in the turn in which it has read the last of a long request.
    for _ in 0..40 {
        daemon.text("small", "stderr", json!({"text": "x".repeat(4000)}));
    }
    let logs = request(&format!("GET {BASE}/small/logs"), "", &vec![b' '; 2 << 20]);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut http = daemon.http();
                for _ in 0..25 {
                    http.send_raw(&logs).expect("it listens");
                    let reply = http.read_reply(false).expect("an answer");
                    assert!(reply.status == 200 && reply.body.len() > 150_000, "{}", reply.status);
                }
            });
        }
    });
    is_counted(&daemon.http().request_text("POST", &format!("{BASE}/large/call"), &numbers), BYTES);
}

#[test]
fn a_client_that_leaves_frees_its_place_in_the_queue() {
    let daemon = Daemon::start();
    daemon.register(&python("rude", "crun", RUDE));
    // The daemon itself asks a new server for its tools; once this is answered the queue is ours.
    daemon.text("rude", "echo", json!({"text": "first"}));
    let mut leaving = Vec::new();
    for (n, ms) in [4_000, 20_000, 20_000].into_iter().enumerate() {
        let body = json!({"method": "tools/call", "params": {"name": "sleep", "arguments": {"ms": ms}}}).to_string();
        let head = format!(
            "POST {BASE}/rude/call HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            daemon.token(),
            body.len()
        );
        let mut http = daemon.http();
        http.send_raw(head.as_bytes()).expect("sent");
        leaving.push(http);
        daemon.wait_until("rude", "busy", |status| status["queue"] == json!({"in_flight": 1, "waiting": n}));
    }
    // From the end of the queue: whoever leaves from its head makes room for the next.
    leaving.truncate(1);
    daemon.wait_until("rude", "left", |status| status["queue"]["waiting"] == 0);
    drop(leaving);
    let began = Instant::now();
    assert_eq!(daemon.text("rude", "echo", json!({"text": "next"})), "next");
    assert!(began.elapsed() < Duration::from_secs(15), "calls of clients that left were made all the same");
}

/// Both are seen in one turn of the loop.
#[test]
fn a_client_whose_end_comes_with_its_request_is_not_waited_for() {
    let daemon = Daemon::start();
    daemon.register(&python("rude", "crun", RUDE));
    daemon.text("rude", "echo", json!({"text": "first"}));
    let arguments = json!({"name": "sleep", "arguments": {"ms": 20_000}});
    let body = json!({"method": "tools/call", "params": arguments}).to_string();
    let head = format!("POST {BASE}/rude/call HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n", daemon.token());
    let mut http = daemon.http();
    daemon.signal(nix::sys::signal::Signal::SIGSTOP);
    http.send_raw(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes()).expect("sent");
    drop(http);
    daemon.signal(nix::sys::signal::Signal::SIGCONT);
    daemon.wait_until("rude", "left", |status| status["queue"] == json!({"in_flight": 0, "waiting": 0}));
}

#[test]
fn a_queue_that_is_full_says_so_at_once() {
    let daemon = Daemon::start();
    let mut definition = python("rude", "crun", RUDE);
    definition["queue_max"] = json!(2);
    daemon.register(&definition);
    daemon.text("rude", "echo", json!({"text": "first"}));
    std::thread::scope(|scope| {
        for (n, ms) in [5_000, 0, 0].into_iter().enumerate() {
            let daemon = &daemon;
            scope.spawn(move || assert_eq!(daemon.text("rude", "sleep", json!({"ms": ms})), "slept"));
            daemon.wait_until("rude", "busy", |status| status["queue"] == json!({"in_flight": 1, "waiting": n}));
        }
        let refused = daemon.tool("rude", "echo", json!({"text": "one too many"}));
        assert_eq!((refused.status, refused.code()), (429, json!("queue_full")), "{refused}");
        assert_eq!(refused.outcome(), "not_sent");
        assert!(refused.header("retry-after").is_some(), "{refused:?}");
    });
}
