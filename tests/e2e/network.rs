//! Servers with a network: published ports, HTTP servers without a bridge; all of it gone with the instance, and after a
//! crash of the daemon too. What a server reaches and who reaches it is in `fence`.

use crate::support::{self, BASE, Daemon, Http, eventually, on_both_providers, python_with};
use serde_json::json;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

const WEB: &str = include_str!("../fixtures/web.py");

/// Installed by scripts/setup.
const EVERYTHING: &str =
    "/usr/local/lib/stdiod-fixtures/node/node_modules/@modelcontextprotocol/server-everything/dist/index.js";

on_both_providers!(
    the_reference_server_is_reached_by_its_port_and_through_the_daemon,
    an_http_server_is_ready_when_its_port_answers_and_comes_back_after_a_kill,
);

fn an_http_server_is_ready_when_its_port_answers_and_comes_back_after_a_kill(provider: &str) {
    let mut daemon = Daemon::start();
    let port = free_port();
    let mut web = python_with("web", provider, WEB, &["80"]);
    web["ports"] = json!([format!("{port}:80")]);
    let status = daemon.register(&web);
    assert_eq!((&status["stdio_bridge"], &status["network"]), (&json!(false), &json!("private")), "{status:#}");
    assert_eq!(status["ports"], json!([format!("127.0.0.1:{port}:80")]));
    assert_eq!(get(port, "/x").json()["path"], "/x", "it listens when it says it is ready");

    // Through the daemon: with its token, which goes no further, and events as they come.
    let through = daemon.get("/mcp/web/x?y=1").json();
    assert_eq!(through["path"], "/mcp/x?y=1", "{through}");
    assert_eq!(through["headers"].get("authorization"), None, "{through}");
    let events = daemon.get("/mcp/web/events").body_text();
    assert_eq!(events, "data: 0\n\ndata: 1\n\ndata: 2\n\n");
    // Its endpoint, and nothing beside it; not for pages of other sites, and not with what was for this hop only.
    for path in ["/mcp/web/../../x", "/mcp/web/%2e%2e/x", "/api/v1/mcp/servers/web/mcp/a/../../b"] {
        assert_eq!(daemon.get(path).code(), "invalid_request", "{path}");
    }
    let ask = |more: &str| {
        let mut http = daemon.http();
        let head = format!("GET /mcp/web/x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n", daemon.token());
        http.send_raw(format!("{head}{more}\r\n").as_bytes()).expect("sent");
        http.read_reply(false).expect("an answer")
    };
    assert_eq!(ask("Origin: http://evil.example\r\n").status, 403);
    let passed = ask("Connection: X-Hop, close\r\nX-Hop: 1\r\nX-End: 1\r\n").json();
    assert_eq!((passed["headers"].get("x-hop"), &passed["headers"]["x-end"]), (None, &json!("1")), "{passed}");
    // Whoever may not see it learns nothing of it, with a token or without.
    let limited = daemon.cli_json(&["token", "create", "limited", "--scope", "mcp:call", "--server", "other"]);
    let address = daemon.address();
    for token in [limited["token"].as_str().expect("a token"), "wrong"] {
        let told = |name: &str| {
            let reply = post(
                address,
                token,
                &format!("/mcp/{name}"),
                "",
                &json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}),
            );
            (reply.status, reply.body_text().replace(name, "NAME"))
        };
        assert_eq!(told("web"), told("nosuch"));
    }
    let broken = daemon.get("/mcp/web/crash");
    assert_eq!((broken.status, broken.code()), (502, json!("bad_server_output")), "{broken}");
    daemon.wait_until("web", "back", |s| s["status"] == "ready" && s["restart_count"] == 1);

    // What no list allows: the host by every name it has, and its neighbours.
    let host = Greeter::start("0.0.0.0:0");
    let gateway = get(port, "/file?/proc/net/route").body_text();
    for address in ["127.0.0.1".to_string(), own_address(), gateway_of(&gateway)] {
        let told = get(port, &format!("/connect?{address}:{}", host.port)).body_text();
        assert!(!told.starts_with("connected"), "{address}: {told}");
    }
    refused_by_name(&daemon, provider, port);

    assert!(get_gone(port, "/crash"), "a crash answers nothing");
    daemon.wait_until("web", "back", |s| s["status"] == "ready" && s["restart_count"] == 2);
    assert_eq!(get(port, "/again").json()["path"], "/again");
    let victim = daemon.sandbox(provider, "/app/server.py");
    nix::sys::signal::kill(victim, nix::sys::signal::Signal::SIGKILL).expect("it runs");
    daemon.wait_until("web", "back", |s| s["status"] == "ready" && s["restart_count"] == 3);
    assert_eq!(get(port, "/again").json()["path"], "/again");

    // Of a daemon that is killed everything is found again.
    assert_eq!(fences_of(&daemon).matches("chain server_").count(), 1, "{}", fences_of(&daemon));
    daemon.kill();
    daemon.start_again();
    daemon.wait_ready("web");
    assert_eq!(get(port, "/second-life").json()["path"], "/second-life");
    assert_eq!(fences_of(&daemon).matches("chain server_").count(), 1, "{}", fences_of(&daemon));
    assert_eq!(daemon.request("POST", &format!("{BASE}/web/stop"), None).json()["status"], "stopped");
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "a stopped server has no port");
    assert!(eventually(Duration::from_secs(20), || fences_of(&daemon).is_empty()), "{}", fences_of(&daemon));
    // The address goes last: while it has one, nobody else gets it.
    let leases = || {
        let networks = std::fs::read_dir(daemon.data_dir.join("run/leases")).into_iter().flatten().flatten();
        let files = networks.flat_map(|network| std::fs::read_dir(network.path())).flatten().flatten();
        files.map(|lease| lease.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
    };
    let free = || !leases().iter().any(|lease| lease.starts_with("10."));
    assert!(eventually(Duration::from_secs(20), free), "{:?}", leases());
}

fn the_reference_server_is_reached_by_its_port_and_through_the_daemon(provider: &str) {
    let daemon = Daemon::start();
    let port = free_port();
    daemon.register(&json!({
        "name": "everything", "provider": provider, "command": "/usr/bin/node", "args": [EVERYTHING, "streamableHttp"],
        "environment": {"PORT": "3001"}, "ports": [format!("{port}:3001")],
        "resource_limits": {"cpu": 2},
    }));
    for life in 0..2 {
        let direct = mcp_session(&format!("127.0.0.1:{port}"), "", "/mcp");
        assert!(direct.contains("echo"), "{direct}");
        let through = mcp_session(daemon.address(), daemon.token(), "/mcp/everything");
        assert!(through.contains("echo"), "{through}");
        if life == 0 {
            let victim = daemon.sandbox(provider, EVERYTHING);
            nix::sys::signal::kill(victim, nix::sys::signal::Signal::SIGKILL).expect("it runs");
            daemon.wait_until("everything", "back", |s| s["status"] == "ready" && s["restart_count"] == 1);
        }
    }
    let stranger = Http::connect(daemon.address(), "").request("POST", "/mcp/everything", Some(&json!({})));
    assert_eq!(
        (stranger.status, &stranger.json()["error"]["data"]["code"]),
        (401, &json!("unauthorized")),
        "{stranger}"
    );
    assert_eq!(daemon.request("POST", &format!("{BASE}/everything/stop"), None).status, 200);
    let stopped = daemon.request("POST", "/mcp/everything", Some(&json!({})));
    assert_eq!((stopped.status, stopped.code()), (409, json!("server_stopped")), "{stopped}");
}

/// Initializes a session over Streamable HTTP and asks for the tools; the answer as it came.
fn mcp_session(address: &str, token: &str, path: &str) -> String {
    let client = json!({"name": "test", "version": "1"});
    let params = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client});
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
    let welcome = post(address, token, path, "", &hello);
    assert_eq!(welcome.status, 200, "{welcome}");
    let session = welcome.header("mcp-session-id").expect("a session").to_string();
    post(address, token, path, &session, &json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    let tools = post(address, token, path, &session, &json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"}));
    assert_eq!(tools.status, 200, "{tools}");
    assert_eq!(tools.header("content-type"), Some("text/event-stream"), "it answers in a stream");
    tools.body_text()
}

fn post(address: &str, token: &str, path: &str, session: &str, body: &serde_json::Value) -> support::Reply {
    let body = body.to_string();
    let mut head = format!("POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n");
    head += "Accept: application/json, text/event-stream\r\n";
    if !token.is_empty() {
        head += &format!("Authorization: Bearer {token}\r\n");
    }
    if !session.is_empty() {
        head += &format!("Mcp-Session-Id: {session}\r\nMcp-Protocol-Version: 2025-06-18\r\n");
    }
    let mut http = Http::connect(address, token);
    http.send_raw(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes()).expect("sent");
    http.read_reply(false).expect("an answer")
}

fn refused_by_name(daemon: &Daemon, provider: &str, port: u16) {
    let mut other = python_with("other", provider, WEB, &["81"]);
    other["ports"] = json!([{"host": port, "container": 81, "address": "0.0.0.0"}]);
    let refused = daemon.try_register(&other);
    assert_eq!((refused.status, refused.code()), (409, json!("port_taken")), "{refused}");
    assert!(refused.json()["error"]["message"].as_str().is_some_and(|m| m.contains("web")), "{refused}");
    // Somebody else's port is found out at the start.
    let foreign = TcpListener::bind("127.0.0.1:0").expect("a port");
    other["ports"] = json!([format!("{}:81", foreign.local_addr().expect("bound").port())]);
    let told = daemon.try_register(&other);
    assert!(told.json()["last_error"].as_str().is_some_and(|e| e.contains("cannot listen on port")), "{told}");
    assert_eq!(daemon.request("DELETE", &format!("{BASE}/other"), None).status, 204);
    let mut nowhere = python_with("nowhere", provider, WEB, &["81"]);
    nowhere["network"] = json!("nowhere");
    let refused = daemon.try_register(&nowhere);
    assert_eq!((refused.status, refused.code()), (400, json!("invalid_request")), "{refused}");
    // Nor is a server that runs taken down for it.
    let before = daemon.status("web");
    let refused = daemon.request("PATCH", &format!("{BASE}/web"), Some(&json!({"network": "nowhere"})));
    assert_eq!((refused.status, refused.code()), (400, json!("invalid_request")), "{refused}");
    let after = daemon.status("web");
    assert_eq!((&after["status"], &after["restart_count"]), (&json!("ready"), &before["restart_count"]), "{after:#}");
}

#[test]
fn a_port_that_many_ask_for_at_once_is_given_to_one() {
    let daemon = Daemon::start();
    let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port();
    let register = &|n: usize| {
        let mut web = python_with(&format!("web-{n}"), "crun", WEB, &["80"]);
        (web["ports"], web["stdio_bridge"]) = (json!([format!("{port}:80")]), json!(false));
        daemon.request("POST", &format!("{BASE}?wait=false"), Some(&web)).status
    };
    let given: Vec<u16> = std::thread::scope(|scope| {
        let asked: Vec<_> = (0..8).map(|n| scope.spawn(move || register(n))).collect();
        asked.into_iter().map(|answer| answer.join().expect("no panic")).collect()
    });
    assert_eq!(given.iter().filter(|status| **status == 201).count(), 1, "{given:?}");
    assert_eq!(given.iter().filter(|status| **status == 409).count(), 7, "{given:?}");
}

/// Says hello to whoever connects, as long as it lives.
struct Greeter {
    port: u16,
}

impl Greeter {
    fn start(address: &str) -> Greeter {
        let listener = TcpListener::bind(address).expect("a port");
        let port = listener.local_addr().expect("bound").port();
        // Ends with the test's process.
        std::thread::spawn(move || listener.incoming().flatten().for_each(|mut s| drop(s.write_all(b"hello"))));
        Greeter { port }
    }
}

fn get(port: u16, path: &str) -> support::Reply {
    Http::connect(&format!("127.0.0.1:{port}"), "").request("GET", path, None)
}

/// A request that ends its server: no answer, only the end.
fn get_gone(port: u16, path: &str) -> bool {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a port");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").expect("sent");
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).is_err() || rest.is_empty()
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port()
}

fn own_address() -> String {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").expect("a socket");
    socket.connect("192.0.2.1:9").and_then(|()| socket.local_addr()).map_or("192.0.2.2".into(), |a| a.ip().to_string())
}

/// The default gateway, from the text of /proc/net/route; gVisor's has none to read.
fn gateway_of(routes: &str) -> String {
    let gateway = routes.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let gateway = u32::from_str_radix(fields.get(2)?, 16).ok()?;
        (fields.get(1) == Some(&"00000000") && gateway != 0).then(|| std::net::Ipv4Addr::from(gateway.swap_bytes()))
    });
    gateway.map_or_else(own_address, |gateway| gateway.to_string())
}

/// The daemon's table, as nft shows it; nothing, if there is none.
fn fences_of(daemon: &Daemon) -> String {
    let table = format!("stdiod_{}", stdiod::sandbox::container::plan::Layout::of(daemon.data_dir.clone()).mark);
    let output = Command::new("nft").args(["list", "table", "inet", &table]).output();
    String::from_utf8_lossy(&output.expect("nft: scripts/setup installs it").stdout).into_owned()
}
