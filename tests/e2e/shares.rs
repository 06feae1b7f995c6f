//! What one client can take of the daemon, and what is left for the others: connections, memory, sessions, instances,
//! watchers, time. Each test has one who takes all it can get, and somebody else who must not notice.

use crate::support::mcp::McpClient;
use crate::support::world::weight_of;
use crate::support::{BASE, Daemon, Http, RUDE, eventually, python, tiny};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket};
use serde_json::{Value, json};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;
use stdiod::limits::{
    BODY_MAX, MEMORY_BUDGET, SHARE_CONNECTIONS, SHARE_LINES, SHARE_MEMORY, SHARE_PRIVATE_INSTANCES, SHARE_SESSIONS,
    SHARE_UNREAD, SHARE_WATCHERS, STDIN_BEHIND_MAX,
};

const HOARD: &str = include_str!("../fixtures/hoard.py");

fn token(daemon: &Daemon, name: &str, scope: &str) -> String {
    let made = daemon.cli_json(&["token", "create", name, "--scope", scope]);
    made["token"].as_str().unwrap_or_else(|| panic!("no token: {made}")).to_string()
}

fn send(http: &mut Http, token: &str, path: &str, body: &Value) {
    let body = body.to_string();
    let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n");
    let text = format!("{head}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    http.send_raw(text.as_bytes()).expect("it listens");
}

/// Beyond what is counted: tables, and what an allocator keeps.
const SLACK: u64 = 48 << 20;
/// Less than usual, as an operator may say.
const BUDGET: u64 = 640 << 20;

#[test]
fn bodies_without_a_token_are_not_kept_and_take_nobodys_room() {
    let daemon = Daemon::start();
    let before = weight_of(daemon.pid()).1;
    let body = vec![b' '; BODY_MAX - 2];
    let mut held = Vec::new();
    for _ in 0..40 {
        let mut http = Http::connect(daemon.address(), "");
        let head = format!("GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: {BODY_MAX}\r\n\r\n");
        http.send_raw(head.as_bytes()).expect("it listens");
        // It may be told before it has sent all of it, and then its connection is closed.
        _ = http.send_raw(&body);
        held.push(http);
    }
    let grown = weight_of(daemon.pid()).1.saturating_sub(before);
    assert!(grown < SLACK, "the daemon has grown by {grown} for those who have shown nothing");
    let large = json!({"method": "tools/list", "params": {"x": "y".repeat(2 << 20)}});
    for _ in 0..4 {
        let reply = daemon.http().request("POST", &format!("{BASE}/nobody/call"), Some(&large));
        assert_eq!((reply.status, reply.code()), (404, "not_found".into()), "somebody with a token: {reply}");
    }
    let reply = held[0].read_reply(false).expect("an answer");
    assert_eq!((reply.status, reply.code()), (413, "payload_too_large".into()), "{reply}");
    // A small one is read, as HTTP has it.
    let mut http = Http::connect(daemon.address(), "");
    http.send_raw(b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}").expect("it listens");
    assert_eq!(http.read_reply(false).expect("an answer").status, 200);
}

#[test]
fn connections_that_say_nothing_lock_nobody_out() {
    let daemon = Daemon::start();
    let mut known = daemon.http();
    assert_eq!(known.request("GET", BASE, None).status, 200);
    let idle: Vec<Http> = (0..3 * SHARE_CONNECTIONS.address).map(|_| Http::connect(daemon.address(), "")).collect();
    let own = std::process::id();
    assert!(
        eventually(Duration::from_secs(20), || weight_of(daemon.pid()).0 < 2 * SHARE_CONNECTIONS.address),
        "descriptors of the daemon, with {} idle connections of process {own}: {}",
        idle.len(),
        weight_of(daemon.pid()).0
    );
    // From the same address, with and without a token.
    assert_eq!(daemon.get(BASE).status, 200);
    assert_eq!(Http::connect(daemon.address(), "").request("GET", "/healthz", None).status, 200);
    assert_eq!(known.request("GET", BASE, None).status, 200, "one that has shown a token is not dropped for others");
}

/// A connection from another address of this machine.
fn from_address(source: [u8; 4], daemon: &Daemon) -> OwnedFd {
    let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
    let [a, b, c, d] = source;
    bind(socket.as_raw_fd(), &SockaddrIn::new(a, b, c, d, 0)).expect("an address of loopback");
    let to: std::net::SocketAddrV4 = daemon.address().parse().expect("IPv4");
    connect(socket.as_raw_fd(), &SockaddrIn::from(to)).expect("it listens");
    socket
}

#[test]
fn five_thousand_connections_of_one_address_leave_room_for_another() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("up to the hard one");
    let daemon = Daemon::with("STDIOD_PEER_CONNECTIONS_MAX", "64").start();
    let before = weight_of(daemon.pid()).0;
    let mut worst = Duration::ZERO;
    let mut crowd = Vec::new();
    for n in 0..5000 {
        crowd.push(from_address([127, 9, 9, 9], &daemon));
        if n % 500 == 0 {
            let asked = std::time::Instant::now();
            assert_eq!(Http::connect(daemon.address(), "").request("GET", "/healthz", None).status, 200);
            assert_eq!(daemon.get(BASE).status, 200);
            worst = worst.max(asked.elapsed());
        }
    }
    assert!(worst < Duration::from_secs(10), "another address waited {worst:?}");
    let few = || weight_of(daemon.pid()).0 < before + 64 + 16;
    assert!(eventually(Duration::from_secs(20), few), "{} descriptors of the daemon", weight_of(daemon.pid()).0);
    assert_eq!(crowd.len(), 5000);
    assert_eq!(daemon.get(BASE).status, 200);
}

#[test]
fn slow_readers_of_large_answers_hold_no_more_than_their_share() {
    let daemon = Daemon::with("STDIOD_MEMORY_BUDGET", BUDGET.to_string()).start();
    daemon.register(&python("large", "crun", RUDE));
    let other = token(&daemon, "other", "mcp:call");
    let before = weight_of(daemon.pid()).1;
    let call = json!({"method": "tools/call", "params": {"name": "long_line", "arguments": {"mib": 15}}});
    let (mut slow, mut last) = (Vec::new(), String::new());
    for _ in 0..16 {
        let mut http = daemon.http();
        send(&mut http, daemon.token(), &format!("{BASE}/large/call"), &call);
        slow.push(http);
    }
    let has_run = || daemon.status("large")["queue"] == json!({"in_flight": 0, "waiting": 0});
    assert!(eventually(Duration::from_secs(60), has_run), "{}", daemon.status("large"));
    let grown = weight_of(daemon.pid()).1.saturating_sub(before);
    assert!(grown < SHARE_MEMORY.principal as u64 + SLACK, "the daemon has grown by {grown}");
    assert!(weight_of(daemon.pid()).1 < BUDGET);
    // Somebody else has a share of its own.
    let reply = Http::connect(daemon.address(), &other).request("POST", &format!("{BASE}/large/call"), Some(&call));
    assert_eq!(reply.status, 200, "{}", reply.code());
    // Sixty-four of them, by seven tokens: whatever they have been promised, all of it is less than the budget.
    let crowd: Vec<Http> = (0..48)
        .map(|n| {
            let mut http = daemon.http();
            let token = if n % 8 == 0 { token(&daemon, &format!("reader{n}"), "mcp:call") } else { last.clone() };
            send(&mut http, &token, &format!("{BASE}/large/call"), &call);
            last = token;
            http
        })
        .collect();
    assert!(eventually(Duration::from_secs(180), has_run), "{}", daemon.status("large"));
    let weight = weight_of(daemon.pid()).1;
    assert!(weight < BUDGET, "{weight} bytes for {} readers that do not read", crowd.len() + slow.len());
    drop(crowd);
    let (mut whole, mut refused) = (0, 0);
    for mut http in slow {
        let reply = http.read_reply(false).expect("an answer");
        match reply.status {
            200 => whole += 1,
            _ => {
                assert_eq!((reply.status, reply.code()), (503, "overloaded".into()), "{reply}");
                assert_eq!(reply.json()["error"]["data"]["outcome"], "sent_unknown");
                refused += 1;
            }
        }
    }
    assert!(whole >= 2 && refused >= 4, "{whole} had their answer, {refused} were refused");
}

#[test]
fn one_token_takes_neither_all_sessions_nor_another_ones() {
    let daemon = Daemon::start();
    daemon.register(&tiny("tiny", "crun"));
    let greedy = token(&daemon, "greedy", "mcp:call");
    let other = McpClient::connect(&daemon, "/mcp/tiny", json!({}));
    let params =
        json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "g", "version": "1"}});
    let initialize = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}).to_string();
    let head = format!(
        "POST /mcp/tiny HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {greedy}\r\nAccept: application/json\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        initialize.len()
    );
    let mut http = Http::connect(daemon.address(), "");
    for _ in 0..SHARE_SESSIONS.whole + 8 {
        http.send_raw(format!("{head}{initialize}").as_bytes()).expect("it listens");
        let reply = http.read_reply(false).expect("an answer");
        assert_eq!(reply.status, 200, "{reply}");
    }
    assert_eq!(other.ask("ping", json!({}))["result"], json!({}), "its session is still there");
    McpClient::connect(&daemon, "/mcp/tiny", json!({}));
}

#[test]
fn one_token_takes_not_all_the_places_of_watchers() {
    let daemon = Daemon::start();
    let greedy = token(&daemon, "greedy", "admin:read");
    let watch = |token: &str| {
        let mut http = Http::connect(daemon.address(), token);
        http.send_raw(
            format!("GET /api/v1/mcp/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n").as_bytes(),
        )
        .expect("it listens");
        let status = http.line().expect("an answer");
        (status.split(' ').nth(1).and_then(|code| code.parse::<u16>().ok()), http)
    };
    let held: Vec<_> = (0..SHARE_WATCHERS.principal + 4).map(|_| watch(&greedy)).collect();
    let refused = held.iter().filter(|(status, _)| *status == Some(503)).count();
    assert_eq!(refused, 4, "{:?}", held.iter().map(|(status, _)| *status).collect::<Vec<_>>());
    assert_eq!(watch(daemon.token()).0, Some(200));
}

#[test]
fn a_day_long_call_holds_a_server_only_while_nobody_else_waits() {
    let daemon = Daemon::start();
    let mut slow = python("slow", "crun", RUDE);
    slow["timeouts"] = json!({"request_ms": 2000});
    daemon.register(&slow);
    let greedy = token(&daemon, "greedy", "mcp:call");
    let call = json!({"method": "tools/call", "timeout_ms": 86_400_000,
        "params": {"name": "sleep", "arguments": {"ms": 3_600_000}}});
    let mut long = Http::connect(daemon.address(), &greedy);
    send(&mut long, &greedy, &format!("{BASE}/slow/call"), &call);
    let holds = || daemon.status("slow")["queue"]["in_flight"] == json!(1);
    assert!(eventually(Duration::from_secs(10), holds));
    std::thread::sleep(Duration::from_secs(3));
    assert!(holds(), "as long as nobody else wants anything it may go on");
    // The slot is free again before this one's own deadline; whether the server can answer then is its own business.
    let quick = json!({"method": "tools/list", "timeout_ms": 20_000});
    let mut waiting = daemon.http();
    send(&mut waiting, daemon.token(), &format!("{BASE}/slow/call"), &quick);
    let reply = long.read_reply(false).expect("an answer");
    assert_eq!((reply.status, reply.code()), (504, "call_timeout".into()), "{reply}");
}

/// They begin answers and do not end them: what they hold together is bounded, and whoever says less than they do is heard.
#[test]
fn half_lines_of_many_servers_hold_no_more_than_their_share() {
    const MIB: usize = 15;
    let daemon = Daemon::start();
    let names: Vec<String> = (0..2 * SHARE_LINES.whole / (MIB << 20)).map(|n| format!("half{n}")).collect();
    for name in &names {
        let mut definition = python(name, "crun", HOARD);
        definition["max_in_flight"] = json!(2);
        daemon.register(&definition);
    }
    daemon.register(&python("other", "crun", RUDE));
    let before = weight_of(daemon.pid()).1;
    let half = json!({"method": "tools/call", "params": {"name": "half", "arguments": {"mib": MIB}}});
    let begun: Vec<Http> = names
        .iter()
        .map(|name| {
            let mut http = daemon.http();
            send(&mut http, daemon.token(), &format!("{BASE}/{name}/call"), &half);
            let logs = || daemon.get(&format!("{BASE}/{name}/logs")).body_text();
            let is_begun = eventually(Duration::from_secs(30), || logs().contains("half of it is written"));
            assert!(is_begun, "{name}: {}", logs());
            http
        })
        .collect();
    let grown = weight_of(daemon.pid()).1.saturating_sub(before);
    assert!(grown < SHARE_LINES.whole as u64 + SLACK, "the daemon has grown by {grown}");
    assert!(weight_of(daemon.pid()).1 < MEMORY_BUDGET as u64);
    daemon.wait_log(&["bytes discarded: no room"]);
    for mib in [1, MIB / 2] {
        let reply = daemon.tool("other", "long_line", json!({ "mib": mib }));
        assert_eq!(reply.status, 200, "somebody who says less: {}", reply.code());
    }
    let (mut whole, mut refused) = (0, 0);
    for (name, mut http) in names.iter().zip(begun) {
        daemon.text(name, "end", json!({}));
        let reply = http.read_reply(false).expect("an answer");
        match reply.status {
            200 => whole += 1,
            _ => {
                assert_eq!((reply.status, reply.code()), (503, "overloaded".into()), "{reply}");
                assert_eq!(reply.json()["error"]["data"]["outcome"], "sent_unknown");
                refused += 1;
            }
        }
    }
    let kept = SHARE_LINES.whole / (MIB << 20);
    assert!(whole + 1 >= kept && refused >= kept, "{whole} were kept, {refused} had to make room");
    // All of it is free again.
    assert_eq!(daemon.tool("half0", "long", json!({ "mib": MIB })).status, 200);
}

/// They read nothing: what waits for all of them is bounded, and they are ended when others need the room.
#[test]
fn what_waits_for_servers_that_read_nothing_is_no_more_than_its_share() {
    let daemon = Daemon::start();
    let names: Vec<String> = (0..2 * SHARE_UNREAD.whole / SHARE_UNREAD.server).map(|n| format!("deaf{n}")).collect();
    for name in &names {
        let mut definition = python(name, "crun", HOARD);
        (definition["max_in_flight"], definition["timeouts"]) = (json!(16), json!({"request_ms": 300_000}));
        daemon.register(&definition);
    }
    daemon.register(&python("other", "crun", HOARD));
    let before = weight_of(daemon.pid()).1;
    let large = json!({"method": "tools/call", "params": {"name": "long", "arguments": {"mib": 0}, "x": "y".repeat(BODY_MAX - 1000)}});
    let (mut held, mut own, mut whole) = (Vec::new(), 0, 0);
    for name in &names {
        assert_eq!(daemon.text(name, "deaf", json!({})), "from here on");
        for _ in 0..=SHARE_UNREAD.server / BODY_MAX {
            let mut http = daemon.http();
            send(&mut http, daemon.token(), &format!("{BASE}/{name}/call"), &large);
            if !http.has_answer_within(Duration::from_millis(700)) {
                held.push(http);
                continue;
            }
            let reply = http.read_reply(false).expect("an answer");
            assert_eq!(reply.json()["error"]["data"]["outcome"], "not_sent", "{reply}");
            match (reply.status, reply.json()["error"]["code"].as_str().unwrap_or("none")) {
                (429, "queue_full") => own += 1,
                (503, "overloaded") => whole += 1,
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(own >= 1 && whole >= 2, "{} wait, {own} found no room of the server's, {whole} none at all", held.len());
    let grown = weight_of(daemon.pid()).1.saturating_sub(before);
    assert!(grown < SHARE_UNREAD.whole as u64 + SLACK, "the daemon has grown by {grown}");
    assert!(weight_of(daemon.pid()).1 < MEMORY_BUDGET as u64);
    assert_eq!(daemon.tool("other", "long", json!({"mib": 1})).status, 200, "a small call has its room");
    let arrives = || daemon.request("POST", &format!("{BASE}/other/call"), Some(&large)).status == 200;
    assert!(eventually(2 * STDIN_BEHIND_MAX, arrives), "{}", daemon.log_tail());
    assert!(daemon.log_contains("bytes wait for it, and there is no room for more"), "{}", daemon.log_tail());
}

#[test]
fn one_token_takes_neither_all_private_instances_nor_another_ones() {
    let daemon = Daemon::start();
    let mut definition = tiny("own", "crun");
    definition["shared"] = json!(false);
    daemon.register(&definition);
    let connect = |token: &str| {
        let mut client = McpClient::new(&daemon, "/mcp/own");
        client.token = token.to_string();
        let answer = client.initialize(json!({}));
        assert!(answer["result"]["protocolVersion"].is_string(), "{answer}");
        client
    };
    let [greedy, other] = ["greedy", "other"].map(|name| token(&daemon, name, "mcp:call"));
    let of_other = connect(&other);
    assert_eq!(of_other.ask("ping", json!({}))["result"], json!({}));
    let taken: Vec<McpClient> = (0..SHARE_PRIVATE_INSTANCES.principal + 6).map(|_| connect(&greedy)).collect();
    assert_eq!(taken[taken.len() - 1].ask("ping", json!({}))["result"], json!({}));
    // Besides them there are the one that everybody sees, and the other token's.
    let running = || daemon.processes("/app/tiny.sh");
    let within = || running() <= SHARE_PRIVATE_INSTANCES.principal + 2;
    assert!(eventually(Duration::from_secs(30), within), "{} instances", running());
    // Its own oldest have made room, and nobody else's.
    let gone =
        taken.iter().filter(|client| client.post(&json!({"jsonrpc": "2.0", "id": 1, "method": "ping"})).status == 404);
    assert_eq!(gone.count(), 6);
    assert_eq!(of_other.ask("ping", json!({}))["result"], json!({}), "its session is still there");
    let more: Vec<McpClient> = (0..4).map(|_| connect(&other)).collect();
    for client in &more {
        assert_eq!(client.ask("ping", json!({}))["result"], json!({}), "and has room for more");
    }
}
