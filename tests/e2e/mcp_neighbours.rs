//! MCP clients that share a process, and mean each other no good: what a server says for one of them never reaches another,
//! nothing that one of them sends changes the process for the others, and lists that one makes large or restless cost the
//! others nothing.

use crate::support::mcp::{Exchange, McpClient, text};
use crate::support::world::weight_of;
use crate::support::{BASE, Daemon, SOON, eventually, on_both_providers, python};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

on_both_providers!(
    what_is_said_for_a_call_that_timed_out_reaches_nobody_else,
    what_is_said_for_a_call_whose_client_left_reaches_nobody_else,
    no_client_changes_the_process_that_others_share,
);

// --- whose it is ------------------------------------------------------------------------------------------------------

/// `keep` is never answered. `speak` says and asks three things, as if for the calls it has kept, before it is answered with
/// what came of them; `settle` answers those calls first.
const LATE: &str = r#"
import json, sys
kept = []
def say(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
def read():
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)
def ask(key, method, params):
    say({"id": key, "method": method, "params": params})
    while True:
        message = read()
        if message.get("method") == "ping":
            say({"id": message["id"], "result": {}})
        elif message.get("id") == key and "method" not in message:
            return "answered" if "result" in message else "refused"
def speak():
    say({"method": "notifications/message", "params": {"level": "error", "data": "secret"}})
    schema = {"type": "object", "properties": {}}
    asked = ask("q1", "elicitation/create", {"message": "secret", "requestedSchema": schema})
    content = {"role": "user", "content": {"type": "text", "text": "secret"}}
    return asked + " " + ask("q2", "sampling/createMessage", {"messages": [content], "maxTokens": 1})
while True:
    asked = read()
    method = asked.get("method")
    if "id" not in asked or method is None:
        continue
    result = {}
    if method == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}, "logging": {}}, "serverInfo": {"name": "l", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": []}
    elif method == "tools/call":
        name = asked["params"]["name"]
        if name == "keep":
            kept.append(asked["id"])
            continue
        if name == "settle":
            for key in kept:
                say({"id": key, "result": {"content": []}})
        result = {"content": [{"type": "text", "text": speak() if name in ("speak", "settle") else name}]}
    say({"id": asked["id"], "result": result})
"#;

fn late(provider: &str) -> Daemon {
    let daemon = Daemon::start();
    let mut definition = python("late", provider, LATE);
    definition["timeouts"] = json!({"request_ms": 20_000});
    daemon.register(&definition);
    daemon
}

fn able() -> Value {
    json!({"elicitation": {}, "sampling": {}})
}

/// The answer to request 1, before which nothing may come.
fn answer_alone(mut exchange: Exchange) -> Value {
    if !exchange.is_stream() {
        return exchange.answer(1);
    }
    let first = exchange.message().expect("an answer");
    assert!(first.get("method").is_none(), "somebody else's: {first}");
    first
}

/// Nobody else hears what the server says while a call has no answer, and everybody their own once it has.
fn hears_only_its_own(daemon: &Daemon) {
    let other = McpClient::connect(daemon, "/mcp/late", able());
    assert_eq!(other.ask("logging/setLevel", json!({"level": "debug"}))["result"], json!({}));
    for _ in 0..2 {
        let spoken = answer_alone(other.request(1, "tools/call", json!({"name": "speak", "arguments": {}})));
        assert_eq!(text(&spoken), "refused refused", "the server asked nobody");
    }
    let mut exchange = other.request(1, "tools/call", json!({"name": "settle", "arguments": {}}));
    let logged = exchange.message().expect("a log message");
    assert_eq!(logged["method"], "notifications/message");
    for method in ["elicitation/create", "sampling/createMessage"] {
        let question = exchange.message().expect("a question");
        assert_eq!(question["method"], method);
        assert_eq!(other.post(&json!({"jsonrpc": "2.0", "id": question["id"], "result": {}})).status, 202);
    }
    assert_eq!(text(&exchange.answer(1)), "answered answered");
    assert_eq!(daemon.status("late")["restart_count"], 0);
}

fn what_is_said_for_a_call_that_timed_out_reaches_nobody_else(provider: &str) {
    let daemon = late(provider);
    // One with a session, one without, one that knows neither: none of them waits any more.
    let patched = daemon.request("PATCH", &format!("{BASE}/late"), Some(&json!({"timeouts": {"request_ms": 300}})));
    assert_eq!(patched.status, 200, "{patched}");
    let one = McpClient::connect(&daemon, "/mcp/late", able());
    assert_eq!(one.tool("keep", json!({}))["error"]["data"]["outcome"], "sent_unknown");
    assert_eq!(daemon.tool_within("late", "keep", json!({}), 200).code(), "call_timeout");
    let params = json!({"name": "keep", "arguments": {}});
    let newer = McpClient::new(&daemon, "/mcp/late").stateless("tools/call", params, able()).answer(1);
    assert_eq!(newer["error"]["data"]["outcome"], "sent_unknown", "{newer}");
    let patched = daemon.request("PATCH", &format!("{BASE}/late"), Some(&json!({"timeouts": {"request_ms": 20_000}})));
    assert_eq!(patched.status, 200, "{patched}");
    hears_only_its_own(&daemon);
}

fn what_is_said_for_a_call_whose_client_left_reaches_nobody_else(provider: &str) {
    let daemon = late(provider);
    let is_sent = || eventually(SOON, || daemon.status("late")["queue"]["in_flight"] == 1);
    let is_given_up = || eventually(SOON, || daemon.status("late")["queue"]["in_flight"] == 0);
    let params = json!({"name": "keep", "arguments": {}});

    let one = McpClient::connect(&daemon, "/mcp/late", able());
    let kept = std::thread::scope(|scope| {
        let kept = scope.spawn(|| one.request(1, "tools/call", params.clone()));
        assert!(is_sent());
        assert_eq!(one.delete().status, 204);
        kept.join().expect("an answer")
    });
    assert!([200, 404].contains(&kept.status), "a stream by then, or not");
    assert!(is_given_up());

    let body = json!({"method": "tools/call", "params": params}).to_string();
    let (host, token, length) = (daemon.address(), daemon.token(), body.len());
    let mut rest = daemon.http();
    let head = format!(
        "POST {BASE}/late/call HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    rest.send_raw(format!("{head}{body}").as_bytes()).expect("sent");
    assert!(is_sent());
    drop(rest);
    assert!(is_given_up());
    hears_only_its_own(&daemon);
}

// --- what a client may send -------------------------------------------------------------------------------------------

/// Tells which methods it was sent, requests and notifications.
const LISTENING: &str = r#"
import json, sys
seen = []
for line in sys.stdin:
    asked = json.loads(line)
    seen.append(asked.get("method"))
    if "id" not in asked or "method" not in asked:
        continue
    result = {}
    if asked["method"] == "initialize":
        capabilities = {"tools": {}, "logging": {}, "resources": {"subscribe": True}, "tasks": {"list": {}}}
        result = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": {"name": "s", "version": "1"}}
    elif asked["method"] == "tools/list":
        result = {"tools": []}
    elif asked["method"] == "tools/call":
        result = {"content": [{"type": "text", "text": json.dumps(seen)}]}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"#;

fn no_client_changes_the_process_that_others_share(provider: &str) {
    let daemon = Daemon::start();
    daemon.register(&python("shared", provider, LISTENING));
    let seen = || -> Vec<String> { serde_json::from_str(&daemon.text("shared", "seen", json!({}))).expect("a list") };
    let own = |seen: Vec<String>| -> Vec<String> { seen.into_iter().filter(|method| method != "tools/call").collect() };
    let before = own(seen());
    assert_eq!(before.iter().filter(|method| *method == "initialize").count(), 1, "the daemon's own: {before:?}");

    for (method, params) in [
        (r#""initialize""#, json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {}})),
        (r#""initi\u0061lize""#, json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {}})),
        (r#""logging/setLevel""#, json!({"level": "debug"})),
        (r#""logging\/setLevel""#, json!({"level": "debug"})),
        (r#""resources/subscribe""#, json!({"uri": "x://a"})),
        (r#""resources/unsubscribe""#, json!({"uri": "x://a"})),
        (r#""subscriptions/listen""#, json!({"notifications": {}})),
        (r#""notifications/initialized""#, json!({})),
        (r#""notifications/cancelled""#, json!({"requestId": 1})),
        (r#""notifications/roots/list_changed""#, json!({})),
        (r#""notifications/anything""#, json!({})),
        (r#""tasks/list""#, json!({})),
    ] {
        let body = format!(r#"{{"method":{method},"params":{params}}}"#);
        let refused = daemon.http().request_text("POST", &format!("{BASE}/shared/call"), &body);
        assert_eq!((refused.status, refused.code()), (400, json!("invalid_request")), "{method}: {refused}");
        assert_eq!(refused.json()["error"]["data"]["field"], "method", "{method}: {refused}");
        assert_eq!(refused.outcome(), "not_sent", "{method}: {refused}");
    }
    let one = McpClient::connect(&daemon, "/mcp/shared", json!({"roots": {"listChanged": true}}));
    for method in
        ["notifications/roots/list_changed", "notifications/progress", "notifications/tasks/status", "notifications/x"]
    {
        let params = json!({"progressToken": 1, "progress": 1});
        assert_eq!(one.post(&json!({"jsonrpc": "2.0", "method": method, "params": params})).status, 202);
    }
    // A request that is named like a notification is none, and has no effect either.
    for method in ["notifications/cancelled", "notifications/x", "tasks/list", "subscriptions/listen"] {
        let refused = one.ask(method, json!({"requestId": 1}));
        assert!(refused["error"]["code"].is_i64(), "{method}: {refused}");
        let newer = McpClient::new(&daemon, "/mcp/shared");
        if method != "subscriptions/listen" {
            let refused = newer.stateless(method, json!({"requestId": 1}), json!({})).answer(1);
            assert!(refused["error"]["code"].is_i64(), "{method}: {refused}");
        }
    }
    assert_eq!(own(seen()), before, "the process was told something by a client");
    assert_eq!(daemon.call("shared", "ping", &json!({})).status, 200, "what changes nothing is answered by the server");
}

// --- lists ------------------------------------------------------------------------------------------------------------

const SERVERS: usize = 50;
const SCHEMA_BYTES: usize = 400_000;
const READERS: usize = 20;

/// One tool, with a schema of so many bytes.
const LARGE: &str = r#"
trap 'exit 0' TERM
while IFS= read -r line; do
  case $line in
  *'"id":'*)
    rest=${line#*'"id":'}
    id=${rest%%,*}
    case $line in
    *'"initialize"'*)
      printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}}\n' "${id%%\}*}"
      ;;
    *)
      printf '{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"t","inputSchema":{"type":"object","description":"' "${id%%\}*}"
      head -c BYTES /dev/zero | tr '\0' x
      printf '"}}]}}\n'
      ;;
    esac
    ;;
  esac
done
"#;

fn large(name: &str) -> Value {
    let script = LARGE.replace("BYTES", &SCHEMA_BYTES.to_string());
    let cmd = ["/bin/sh", "/app/large.sh"];
    json!({"name": name, "rootfs": "host", "provider": "crun", "cmd": cmd, "files": {"/app/large.sh": script}})
}

fn median(mut took: Vec<Duration>) -> Duration {
    took.sort();
    took[took.len() / 2]
}

#[test]
fn the_joined_list_of_fifty_large_servers_costs_neither_memory_nor_anybody_else() {
    let daemon = Daemon::start();
    std::thread::scope(|scope| {
        for half in 0..2 {
            let daemon = &daemon;
            scope.spawn(move || (half..SERVERS).step_by(2).for_each(|n| _ = daemon.register(&large(&format!("l{n}")))));
        }
    });
    daemon.register(&python("small", "crun", LISTENING));
    let small = || {
        let began = Instant::now();
        assert_eq!(daemon.tool("small", "seen", json!({})).status, 200);
        began.elapsed()
    };
    let client = McpClient::connect(&daemon, "/mcp", json!({}));
    let list = |cursor: Option<&Value>| {
        let params = cursor.map_or(json!({}), |cursor| json!({"cursor": cursor}));
        client.request(1, "tools/list", params)
    };
    // All of it, page by page.
    let (mut names, mut cursor) = (BTreeSet::new(), None);
    loop {
        let page = list(cursor.as_ref()).answer(1);
        let tools = page["result"]["tools"].as_array().unwrap_or_else(|| panic!("no tools: {page:.300}"));
        for tool in tools {
            assert!(names.insert(tool["name"].as_str().expect("a name").to_string()), "twice: {}", tool["name"]);
            assert!(tool["inputSchema"]["description"].as_str().is_some_and(|text| text.len() == SCHEMA_BYTES));
        }
        cursor = page["result"].get("nextCursor").cloned();
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(names.len(), SERVERS, "{names:?}");

    let alone = median((0..25).map(|_| small()).collect());
    let before = weight_of(daemon.pid()).1;
    // They have the heads of their answers and leave the rest unread: whatever is held for them is held now.
    let unread: Vec<Exchange> = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..READERS).map(|_| scope.spawn(|| list(None))).collect();
        asking.into_iter().map(|asking| asking.join().expect("an answer")).collect()
    });
    let grown = weight_of(daemon.pid()).1.saturating_sub(before) >> 20;
    drop(unread);
    let (asking, enough) = (AtomicUsize::new(0), AtomicBool::new(false));
    let beside = std::thread::scope(|scope| {
        for _ in 0..READERS {
            scope.spawn(|| {
                while !enough.load(Ordering::Relaxed) {
                    // Not the rest of it: what is measured is how it is made.
                    assert_eq!(list(None).status, 200);
                    asking.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        assert!(eventually(SOON, || asking.load(Ordering::Relaxed) > READERS));
        let beside = median((0..25).map(|_| small()).collect());
        enough.store(true, Ordering::Relaxed);
        beside
    });
    println!("{READERS} readers: {grown} MiB more; a small call {alone:?} alone, {beside:?} beside them");
    assert!(grown < 48, "the daemon has grown by {grown} MiB for {READERS} readers");
    assert!(beside < 10 * alone + Duration::from_millis(100), "{beside:?} beside large lists, {alone:?} alone");
}

/// Changes its tools as fast as it is asked for them, from `begin` on, until it is told to `end`.
const RESTLESS: &str = r#"
import json, sys, threading
lock = threading.Lock()
turns, restless = 0, False
def say(message):
    with lock:
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
def flip():
    pause = threading.Event()
    while restless:
        say({"method": "notifications/tools/list_changed"})
        pause.wait(0.001)
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    method, result = asked["method"], {}
    if method == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {"listChanged": True}}, "serverInfo": {"name": "r", "version": "1"}}
    elif method == "tools/list":
        turns += restless
        result = {"tools": [{"name": "t%d" % turns, "inputSchema": {"type": "object"}}]}
    elif method == "tools/call" and asked["params"]["name"] == "begin":
        restless = True
        threading.Thread(target=flip, daemon=True).start()
    elif method == "tools/call" and asked["params"]["name"] == "end":
        restless, turns = False, 1000000
        say({"method": "notifications/tools/list_changed"})
    say({"id": asked["id"], "result": result})
"#;

#[test]
fn a_server_that_changes_its_tools_without_end_is_heard_now_and_then_and_only_by_those_who_see_it() {
    const RESTLESS_FOR: Duration = Duration::from_secs(4);
    let daemon = Daemon::start();
    daemon.register(&python("restless", "crun", RESTLESS));
    daemon.register(&python("calm", "crun", LISTENING));
    // Until all is told of how they came.
    std::thread::sleep(Duration::from_secs(1));
    let created = daemon.cli_json(&["token", "create", "guest", "--scope", "mcp:call", "--server", "calm"]);
    let guest = created["token"].as_str().expect("a token");
    let mut elsewhere = McpClient::new(&daemon, "/mcp");
    elsewhere.token = guest.to_string();
    elsewhere.initialize(json!({}));
    let beside = McpClient::connect(&daemon, "/mcp/calm", json!({}));
    let joint = McpClient::connect(&daemon, "/mcp", json!({}));
    let direct = McpClient::connect(&daemon, "/mcp/restless", json!({}));

    // Everything that comes on a stream until its session ends.
    let listen = |client: &McpClient<'_>| {
        let mut get_stream = client.get(None);
        assert!(get_stream.event().expect("a first event").data.is_empty());
        std::thread::spawn(move || {
            let mut heard = Vec::new();
            while let Some(message) = get_stream.message() {
                heard.push(message["method"].as_str().expect("a notification").to_string());
            }
            heard
        })
    };
    let clients = [&elsewhere, &beside, &joint, &direct];
    let heard = clients.map(listen);
    assert!(direct.tool("begin", json!({})).get("result").is_some());
    std::thread::sleep(RESTLESS_FOR);
    assert!(direct.tool("end", json!({})).get("result").is_some());
    let last = |client: &McpClient<'_>, name: &str| {
        let listed = client.ask("tools/list", json!({}));
        listed["result"]["tools"].as_array().is_some_and(|tools| tools.iter().any(|tool| tool["name"] == name))
    };
    assert!(eventually(SOON, || last(&joint, "restless:t1000000")), "the last change is the one that counts");
    // The last change is told within one more pause.
    std::thread::sleep(Duration::from_secs(2));
    for client in clients {
        assert_eq!(client.delete().status, 204);
    }
    let counts = heard.map(|heard| heard.join().expect("its messages").len());
    println!("list_changed: {counts:?} in {RESTLESS_FOR:?}");
    assert_eq!(counts[..2], [0, 0], "they have nothing to do with it");
    // Twice a second, and a few for its beginning and its end.
    for count in &counts[2..] {
        assert!((2..=2 * RESTLESS_FOR.as_secs() as usize + 4).contains(count), "{counts:?}");
    }
}
