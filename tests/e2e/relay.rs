//! What is between a client and a server that speaks HTTP: answers that no server should give, clients that leave, servers
//! that say nothing, those who want all of it for themselves, and tokens that are taken back in the middle.

use crate::support::world::weight_of;
use crate::support::{BASE, Daemon, Http, Reply, SOON, eventually, on_both_providers, python_with};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;
use stdiod::limits::{BODY_MAX, SHARE_MEMORY, SHARE_RELAYS};

const RELAYED: &str = include_str!("../fixtures/relayed.py");

on_both_providers!(
    no_interim_answer_of_a_server_ends_the_daemon_or_its_neighbours,
    a_token_that_is_taken_back_hears_nothing_more,
);

/// Registers the fixture as `web`, on a port of this host.
fn host(daemon: &Daemon, provider: &str, more: Value) -> u16 {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
    let mut web = python_with("web", provider, RELAYED, &["80"]);
    (web["ports"], web["stdio_bridge"]) = (json!([format!("{port}:80")]), json!(false));
    // Time is the matter of one test only.
    web["timeouts"] = json!({"request_ms": 600_000});
    for (name, value) in more.as_object().into_iter().flatten() {
        web[name] = value.clone();
    }
    daemon.register(&web);
    port
}

fn token(daemon: &Daemon, name: &str) -> String {
    let created = daemon.cli_json(&["token", "create", name, "--scope", "mcp:call,admin:read"]);
    created["token"].as_str().expect("a token").to_string()
}

fn get(daemon: &Daemon, token: &str, path: &str) -> Reply {
    Http::connect(daemon.address(), token).request("GET", path, None)
}

/// A request whose answer nobody has read yet.
fn sent(address: &str, token: &str, path: &str) -> Http {
    let mut http = Http::connect(address, token);
    let head = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\r\n");
    http.send_raw(head.as_bytes()).expect("sent");
    http
}

fn descriptors(daemon: &Daemon) -> usize {
    weight_of(daemon.pid()).0
}

/// When nothing else goes on: what a start or an answer needs is given back a little later.
fn descriptors_at_rest(daemon: &Daemon) -> usize {
    let looks = (0..20).map(|_| {
        std::thread::sleep(Duration::from_millis(100));
        descriptors(daemon)
    });
    looks.min().expect("some")
}

/// This process holds the other ends.
fn make_room_for_descriptors() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("within the hard one");
}

fn no_interim_answer_of_a_server_ends_the_daemon_or_its_neighbours(provider: &str) {
    let daemon = Daemon::start();
    let port = host(&daemon, provider, json!({}));
    let pid = daemon.pid();
    assert_eq!(daemon.get("/mcp/web/interim?3").json(), "at last", "a few are nobody's harm");
    for path in ["interim?4000", "interim?100000", "switch", "head"] {
        let reply = daemon.get(&format!("/mcp/web/{path}"));
        assert_eq!((reply.status, reply.code()), (502, json!("bad_server_output")), "{path}: {reply}");
        assert!(reply.header("upgrade").is_none() && reply.header("connection") == Some("close"), "{reply:?}");
    }
    assert_eq!((daemon.get("/healthz").status, daemon.pid()), (200, pid));
    assert_eq!(daemon.get("/mcp/web/x").json()["path"], "/mcp/x");
    assert_eq!(daemon.status("web")["restart_count"], 0);
    let through = Http::connect(&format!("127.0.0.1:{port}"), "").request("GET", "/y", None);
    assert_eq!(through.json()["path"], "/y");
}

fn a_token_that_is_taken_back_hears_nothing_more(provider: &str) {
    let daemon = Daemon::start();
    host(&daemon, provider, json!({}));
    let (lost, kept) = (token(&daemon, "lost"), token(&daemon, "kept"));
    let logs = format!("{BASE}/web/logs?follow=true");
    let paths = ["/mcp/web/events", "/mcp/web/silent", "/api/v1/mcp/events", &logs];
    let mut ending: Vec<Http> = paths.iter().map(|path| sent(daemon.address(), &lost, path)).collect();
    let mut others: Vec<Http> = paths.iter().map(|path| sent(daemon.address(), &kept, path)).collect();
    let hears = |http: &mut Http, what: &str| while http.line().expect("it is told something") != what {};
    hears(&mut ending[0], "data: 3");
    hears(&mut others[0], "data: 3");
    let revoked = daemon.cli(&["token", "revoke", "lost"]);
    assert!(revoked.status.success(), "{revoked:?}");
    let since = std::time::Instant::now();
    for (http, path) in ending.iter_mut().zip(paths) {
        let mut last = Vec::new();
        while let Ok(line) = http.line() {
            assert!(since.elapsed() < Duration::from_secs(10), "{path} went on: {line}");
            last.push(line);
        }
        assert!(since.elapsed() < SOON, "{path} neither went on nor ended");
        if path.ends_with("silent") {
            assert!(last[0].starts_with("HTTP/1.1 401 "), "{last:?}");
        }
    }
    hears(&mut others[0], "data: 30");
    assert_eq!(get(&daemon, &kept, "/mcp/web/x").status, 200);
    assert_eq!(get(&daemon, &lost, "/mcp/web/x").status, 401);
}

#[test]
fn clients_that_left_hold_nothing() {
    const CLIENTS: usize = 64;
    let daemon = Daemon::start();
    let port = host(&daemon, "crun", json!({}));
    let before = descriptors_at_rest(&daemon);
    let published = format!("127.0.0.1:{port}");
    let large = vec![b'x'; BODY_MAX / 8];
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(sent(daemon.address(), daemon.token(), "/mcp/web/silent"));
        clients.push(sent(daemon.address(), daemon.token(), "/mcp/web/events"));
        clients.push(sent(&published, "", "/silent"));
    }
    for _ in 0..4 {
        let mut http = Http::connect(daemon.address(), "");
        let head = format!(
            "POST /mcp/web/deaf HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nContent-Length: {}\r\n\r\n",
            daemon.token(),
            large.len()
        );
        http.send_raw(head.as_bytes()).and_then(|()| http.send_raw(&large)).expect("it is listening");
        clients.push(http);
    }
    let held = 2 * (3 * CLIENTS + 4);
    assert!(eventually(SOON, || descriptors(&daemon) >= before + held), "{}", descriptors(&daemon));
    drop(clients);
    let gone = eventually(SOON, || descriptors(&daemon) <= before + 8);
    assert!(gone, "descriptors: {before} before, {} after", descriptors(&daemon));
    assert_eq!(daemon.get("/mcp/web/x").status, 200);
}

#[test]
fn a_server_that_accepts_and_says_nothing_is_given_up_after_its_own_timeout() {
    let daemon = Daemon::start();
    host(&daemon, "crun", json!({"timeouts": {"request_ms": 2000}}));
    let reply = daemon.get("/mcp/web/silent");
    assert_eq!((reply.status, reply.code()), (504, json!("call_timeout")), "{reply}");
    assert_eq!(reply.outcome(), "sent_unknown", "{reply}");
    let reply = daemon.get("/mcp/web/slow?0.1");
    assert_eq!(reply.json(), "slow");
    // An answer that has begun is not bound by it.
    let mut events = sent(daemon.address(), daemon.token(), "/mcp/web/events");
    while events.line().expect("an event") != "data: 40" {}
}

#[test]
fn one_token_cannot_take_the_relays_of_others() {
    make_room_for_descriptors();
    let daemon = Daemon::start();
    let port = host(&daemon, "crun", json!({"resource_limits": {"memory": "512Mi"}}));
    let (greedy, modest) = (token(&daemon, "greedy"), token(&daemon, "modest"));
    let before = descriptors_at_rest(&daemon);
    let cap = SHARE_RELAYS.principal;
    let held: Vec<Http> = (0..cap).map(|_| sent(daemon.address(), &greedy, "/mcp/web/silent")).collect();
    assert!(eventually(SOON, || descriptors(&daemon) >= before + 2 * cap), "{}", descriptors(&daemon));
    let refused = get(&daemon, &greedy, "/mcp/web/x");
    assert_eq!((refused.status, refused.code()), (429, json!("queue_full")), "{refused}");
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    assert_eq!(refused.outcome(), "not_sent", "{refused}");
    assert_eq!(get(&daemon, &modest, "/mcp/web/x").status, 200);
    let published = Http::connect(&format!("127.0.0.1:{port}"), "").request("GET", "/x", None);
    assert_eq!(published.status, 200);
    drop(held);
    assert!(eventually(SOON, || get(&daemon, &greedy, "/mcp/web/x").status == 200), "it has them back");
}

#[test]
fn one_address_cannot_take_a_published_port_from_others() {
    make_room_for_descriptors();
    let daemon = Daemon::start();
    let port = host(&daemon, "crun", json!({}));
    let published = format!("127.0.0.1:{port}");
    let before = descriptors_at_rest(&daemon);
    let cap = SHARE_RELAYS.address;
    let mut held: Vec<TcpStream> = (0..cap).map(|_| TcpStream::connect(&published).expect("a port")).collect();
    assert!(eventually(SOON, || descriptors(&daemon) >= before + 2 * cap), "{}", descriptors(&daemon));
    for _ in 0..3 {
        let mut refused = TcpStream::connect(&published).expect("a port");
        refused.set_read_timeout(Some(SOON)).expect("a timeout");
        let _ = refused.write_all(b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n");
        let mut told = Vec::new();
        assert!(refused.read_to_end(&mut told).is_err() || told.is_empty(), "{}", String::from_utf8_lossy(&told));
    }
    // The host has many addresses on its loopback.
    let mut other = from("127.0.0.2", &published);
    other.write_all(b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n").expect("sent");
    let mut told = String::new();
    other.read_to_string(&mut told).expect("an answer");
    assert!(told.starts_with("HTTP/1.1 200 "), "{told}");
    assert_eq!(daemon.get("/mcp/web/x").status, 200, "and the daemon's own clients are nobody's neighbours");
    held.truncate(cap / 2);
    let again = || Http::connect(&published, "").try_get("/x").is_ok_and(|reply| reply.status == 200);
    assert!(eventually(SOON, again), "it has them back");
}

/// A connection from another address of this host.
fn from(source: &str, to: &str) -> TcpStream {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket};
    use std::os::fd::AsRawFd;
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Inet, SockType::Stream, flags, None).expect("a socket");
    let address = |text: String| match text.parse::<SocketAddr>().expect("an address") {
        SocketAddr::V4(v4) => SockaddrIn::from(v4),
        SocketAddr::V6(_) => panic!("IPv4 only"),
    };
    bind(socket.as_raw_fd(), &address(format!("{source}:0"))).expect("loopback");
    connect(socket.as_raw_fd(), &address(to.to_string())).expect("a port");
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(SOON)).expect("a timeout");
    stream
}

/// The server reads nothing, so the daemon has to keep what was sent to it.
#[test]
fn requests_that_a_server_does_not_read_count_for_whoever_sent_them() {
    let daemon = Daemon::start();
    host(&daemon, "crun", json!({}));
    let (greedy, modest) = (token(&daemon, "greedy"), token(&daemon, "modest"));
    let body = vec![b' '; BODY_MAX - 1024];
    let post = |token: &str| {
        let mut http = Http::connect(daemon.address(), "");
        let head = format!(
            "POST /mcp/web/deaf HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        http.send_raw(head.as_bytes()).and_then(|()| http.send_raw(&body)).expect("it is listening");
        http
    };
    let before = weight_of(daemon.pid()).1;
    let fitting = SHARE_MEMORY.principal / BODY_MAX;
    let mut kept = Vec::new();
    let mut refused = None;
    for _ in 0..2 * fitting {
        let mut http = post(&greedy);
        if http.has_answer_within(Duration::from_secs(2)) {
            refused = Some(http.read_reply(false).expect("an answer"));
            break;
        }
        kept.push(http);
    }
    let refused = refused.expect("there is an end to it");
    assert_eq!((refused.status, refused.code()), (503, json!("overloaded")), "{refused}");
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    assert!((fitting / 2..=fitting + 1).contains(&kept.len()), "{} were kept", kept.len());
    let grown = weight_of(daemon.pid()).1.saturating_sub(before);
    assert!(grown < (SHARE_MEMORY.principal + 64 * 1024 * 1024) as u64, "the daemon has grown by {grown}");
    assert!(!post(&modest).has_answer_within(Duration::from_secs(2)), "another's request is on its way");
    assert_eq!(get(&daemon, &greedy, "/mcp/web/x").status, 200, "small ones always find room");
}

#[test]
fn nothing_that_a_server_answers_lands_on_the_daemons_origin() {
    let daemon = Daemon::start();
    host(&daemon, "crun", json!({}));
    let mut http = daemon.http();
    let head = format!("GET /mcp/web/x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n", daemon.token());
    http.send_raw(format!("{head}Cookie: session=mine\r\n\r\n").as_bytes()).expect("sent");
    let passed = http.read_reply(false).expect("an answer").json();
    assert_eq!((passed["headers"].get("cookie"), passed["headers"].get("authorization")), (None, None), "{passed}");

    let page = daemon.get("/mcp/web/page");
    let mut names: Vec<&str> = page.headers.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    let expected = [
        "cache-control",
        "connection",
        "content-length",
        "content-security-policy",
        "content-type",
        "mcp-session-id",
        "x-content-type-options",
    ];
    assert_eq!(names, expected, "{page:?}");
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(page.header("content-security-policy"), Some("sandbox"));
    assert_eq!(page.header("content-type"), Some("text/html"));
}
