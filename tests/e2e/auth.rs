//! Who may do what: no token, a wrong one, one with little power, one that was taken back.

use crate::support::{BASE, Daemon, Http, RUDE, Reply, python, python_with};
use serde_json::json;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

fn ask(daemon: &Daemon, token: &str, method: &str, path: &str) -> Reply {
    Http::connect(daemon.address(), token).request(method, path, None)
}

fn echo(daemon: &Daemon, token: &str, server: &str) -> Reply {
    let body = json!({"method": "tools/call", "params": {"name": "echo", "arguments": {"text": "x"}}});
    Http::connect(daemon.address(), token).request("POST", &format!("{BASE}/{server}/call"), Some(&body))
}

fn create(daemon: &Daemon, arguments: &[&str]) -> String {
    let created = daemon.cli_json(&[&["token", "create"], arguments].concat());
    created["token"].as_str().unwrap_or_else(|| panic!("no token in {created}")).to_string()
}

#[test]
fn every_token_can_do_what_its_scopes_say_and_no_more() {
    let daemon = Daemon::start();
    let file = std::fs::metadata(daemon.data_dir.join("admin.token")).expect("written at the first start");
    assert_eq!(file.permissions().mode() & 0o777, 0o600);
    daemon.register(&python("one", "crun", RUDE));
    daemon.register(&python("two", "crun", RUDE));

    // Nobody, and somebody else.
    assert_eq!(ask(&daemon, "", "GET", "/healthz").status, 200, "liveness is nobody's secret");
    for token in ["", "wrong", &daemon.token()[1..], &format!("{}x", daemon.token())] {
        for (method, path) in [("GET", BASE.to_string()), ("POST", BASE.to_string()), ("DELETE", format!("{BASE}/one"))]
        {
            let reply = ask(&daemon, token, method, &path);
            assert_eq!(
                (reply.status, reply.code()),
                (401, json!("unauthorized")),
                "{token:?} {method} {path}: {reply}"
            );
        }
        assert_eq!(echo(&daemon, token, "one").status, 401);
    }

    let reader = create(&daemon, &["reader", "--scope", "admin:read"]);
    let caller = create(&daemon, &["caller", "--scope", "mcp:call"]);
    let narrow = create(&daemon, &["narrow", "--scope", "mcp:call", "--server", "one"]);
    let writer = create(&daemon, &["writer", "--scope", "admin:read,admin:write"]);

    assert_eq!(ask(&daemon, &reader, "GET", BASE).status, 200);
    let reply = ask(&daemon, &reader, "POST", &format!("{BASE}/one/restart"));
    assert_eq!((reply.status, reply.code()), (403, json!("forbidden")), "{reply}");
    assert_eq!(echo(&daemon, &reader, "one").status, 403);

    assert_eq!(echo(&daemon, &caller, "one").status, 200);
    assert_eq!(echo(&daemon, &caller, "two").status, 200);
    assert_eq!(ask(&daemon, &caller, "DELETE", &format!("{BASE}/one")).status, 403);

    assert_eq!(echo(&daemon, &narrow, "one").status, 200);
    let elsewhere = echo(&daemon, &narrow, "two").status;
    assert!(elsewhere == 403 || elsewhere == 404, "{elsewhere}");

    assert_eq!(ask(&daemon, &writer, "POST", &format!("{BASE}/two/stop")).status, 200);
    assert_eq!(ask(&daemon, &writer, "DELETE", &format!("{BASE}/two")).status, 204);

    let listed = daemon.cli_json(&["token", "ls"]).to_string();
    assert!(listed.contains("reader") && listed.contains("narrow"), "{listed}");
    for secret in [&reader, &caller, daemon.token()] {
        assert!(!listed.contains(secret) && !daemon.log_contains(secret), "a token is shown once and logged never");
    }

    let revoked = daemon.cli(&["token", "revoke", "caller"]);
    assert!(revoked.status.success(), "{revoked:?}");
    assert_eq!(echo(&daemon, &caller, "one").status, 401);
    assert_eq!(echo(&daemon, &narrow, "one").status, 200, "the others are as they were");
}

#[test]
fn tokens_outlive_the_daemon_and_their_revocation_too() {
    let mut daemon = Daemon::start();
    let kept = create(&daemon, &["kept", "--scope", "admin:read"]);
    let gone = create(&daemon, &["gone", "--scope", "admin:read"]);
    assert!(daemon.cli(&["token", "revoke", "gone"]).status.success());
    let admin = daemon.token().to_string();
    assert!(daemon.stop().success());
    daemon.start_again();
    assert_eq!(daemon.token(), admin, "the admin token is made once");
    assert_eq!(ask(&daemon, &admin, "GET", BASE).status, 200);
    assert_eq!(ask(&daemon, &kept, "GET", BASE).status, 200);
    assert_eq!(ask(&daemon, &gone, "GET", BASE).status, 401);
}

#[test]
fn tokens_end_rotate_and_tell_when_they_were_last_used() {
    let mut daemon = Daemon::start();
    let brief = create(&daemon, &["brief", "--scope", "admin:read", "--expires", "6s"]);
    let worker = create(&daemon, &["worker", "--scope", "admin:read", "--expires", "90d"]);
    let mut stream = Http::connect(daemon.address(), &brief);
    let head = format!("GET /api/v1/mcp/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {brief}\r\n\r\n");
    stream.send_raw(head.as_bytes()).expect("it is open");
    assert_eq!(ask(&daemon, &brief, "GET", BASE).status, 200);
    assert!(stream.read_to_close().is_ok_and(|heard| heard.starts_with(b"HTTP/1.1 200")), "and it ends with the token");
    assert_eq!(ask(&daemon, &brief, "GET", BASE).status, 401);

    let listed = |daemon: &Daemon, name: &str| {
        let all = daemon.cli_json(&["token", "ls"]);
        all.as_array().and_then(|all| all.iter().find(|token| token["name"] == name)).cloned().expect("in the list")
    };
    let of_brief = listed(&daemon, "brief");
    assert!(of_brief["expires_at"].is_string() && of_brief["last_used_at"].is_string(), "{of_brief}");
    assert!(listed(&daemon, "worker")["last_used_at"].is_null());

    let rotate = |daemon: &Daemon, more: &[&str]| {
        let rotated = daemon.cli_json(&[&["token", "rotate", "worker"], more].concat());
        rotated["token"].as_str().expect("a token").to_string()
    };
    let second = rotate(&daemon, &[]);
    assert_eq!(ask(&daemon, &worker, "GET", BASE).status, 401, "dead at once");
    let third = rotate(&daemon, &["--grace", "1h"]);
    for token in [&second, &third] {
        assert_eq!(ask(&daemon, token, "GET", BASE).status, 200);
    }
    assert!(daemon.stop().success());
    daemon.start_again();
    for (token, status) in [(&brief, 401), (&worker, 401), (&second, 200), (&third, 200)] {
        assert_eq!(ask(&daemon, token, "GET", BASE).status, status, "also after a restart");
    }
    let of_worker = listed(&daemon, "worker");
    assert!(of_worker["expires_at"].is_string() && of_worker["previous_until"].is_string(), "{of_worker}");
    let admin = daemon.cli(&["token", "rotate", "admin"]);
    assert!(!admin.status.success(), "that one belongs to the data directory");
}

#[test]
fn without_authentication_a_loopback_listener_serves_everybody_and_a_public_one_does_not_start() {
    let daemon = Daemon::with("STDIOD_AUTH", "off").start();
    assert_eq!(ask(&daemon, "", "GET", BASE).status, 200);

    let public = daemon
        .command(&["serve"])
        .env("STDIOD_LISTEN", "0.0.0.0:0")
        .env("STDIOD_INSECURE_HTTP", "true")
        .output()
        .expect("it runs");
    assert_eq!(public.status.code(), Some(2), "{public:?}");
    let told = String::from_utf8_lossy(&public.stderr);
    assert!(told.contains("auth"), "{told}");
}

/// A server on stdio, one that speaks HTTP, and one that is not there: the same words for all of them, to whoever may not
/// see them.
#[test]
fn whoever_may_not_see_a_server_is_not_told_that_it_is_there() {
    let daemon = Daemon::start();
    daemon.register(&python("piped", "crun", RUDE));
    let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
    let mut web = python_with("speaks", "crun", include_str!("../fixtures/relayed.py"), &["80"]);
    (web["ports"], web["stdio_bridge"]) = (json!([format!("{port}:80")]), json!(false));
    let web = daemon.register(&web);
    let limited = create(&daemon, &["limited", "--scope", "mcp:call,admin:read,admin:write", "--server", "other"]);
    let reader = create(&daemon, &["reader", "--scope", "admin:read", "--server", "other"]);
    let names = ["nosuch", "piped", "speaks", web["workspace_id"].as_str().expect("an id")];

    let paths: Vec<String> = ["", "/", "/x", "/sse", "/messages", "/x/y"].map(|rest| format!("/mcp/NAME{rest}")).into();
    let below =
        ["", "/mcp", "/mcp/x", "/mcp/sse", "/call", "/logs", "/tools", "/stop", "/restart", "/sse", "/messages", "/x"];
    let paths = paths.into_iter().chain(below.map(|rest| format!("{BASE}/NAME{rest}")));
    let paths: Vec<String> = paths.chain(below.map(|rest| format!("/api/v1/mcp/hosted/NAME{rest}"))).collect();
    for token in ["", "wrong", &limited, &reader] {
        for path in &paths {
            for method in ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "BREW"] {
                for body in ["", r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#, "{"] {
                    let told: Vec<_> = names
                        .iter()
                        .map(|name| told(&daemon, token, method, &path.replace("NAME", name), body, name))
                        .collect();
                    for (name, other) in names.iter().zip(&told) {
                        assert_eq!(*other, told[0], "{method} {path} {body} as {token:?}: {name}");
                    }
                    // Without a token nothing below an endpoint is anything but that.
                    assert!(!token.is_empty() || !path.starts_with("/mcp/") || told[0].0 == 401, "{told:?}");
                }
            }
        }
    }
    for line in ["PUT /mcp/NAME", "POST /mcp/NAME", "POST /mcp/NAME/x"] {
        for token in ["wrong", &limited, &reader] {
            let early = names.map(|name| refused_early(&daemon, token, &line.replace("NAME", name)));
            assert!(early.iter().all(|one| *one == early[0]), "{line} as {token}: {early:?}");
        }
    }
}

/// Is a request refused before its body has come?
fn refused_early(daemon: &Daemon, token: &str, line: &str) -> bool {
    let mut http = Http::connect(daemon.address(), "");
    let head = format!("{line} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Length: 9\r\n\r\n");
    http.send_raw(head.as_bytes()).expect("it listens");
    http.has_answer_within(Duration::from_millis(300))
}

/// Status, headers and body of an answer, without the name that was asked for and the time.
fn told(daemon: &Daemon, token: &str, method: &str, path: &str, body: &str, name: &str) -> (u16, String, String) {
    let mut http = Http::connect(daemon.address(), "");
    let authorization = if token.is_empty() { String::new() } else { format!("Authorization: Bearer {token}\r\n") };
    let media = "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n";
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: x\r\n{authorization}{media}Content-Length: {length}\r\n\r\n");
    http.send_raw(format!("{head}{body}").as_bytes()).expect("it listens");
    let reply = http.read_reply(method == "HEAD").unwrap_or_else(|e| panic!("{method} {path}: {e}"));
    let mut headers = reply.headers.clone();
    headers.retain(|(name, _)| name != "date" && name != "content-length");
    let plain = |text: String| text.replace(name, "NAME");
    (reply.status, plain(format!("{headers:?}")), plain(reply.body_text()))
}
