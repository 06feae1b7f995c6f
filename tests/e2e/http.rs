//! HTTP/1.1 as it is meant to be spoken, and the one right answer to each way of speaking it wrongly.

use crate::support::{BASE, Daemon};
use serde_json::json;
use stdiod::limits::{BODY_MAX, HEAD_MAX, HEADERS_MAX, TARGET_MAX};

#[test]
fn honest_requests_in_every_legal_form_are_answered() {
    let daemon = Daemon::start();
    let token = daemon.token();

    let mut http = daemon.http();
    for _ in 0..3 {
        assert_eq!(http.request("GET", "/healthz", None).status, 200, "kept alive");
    }

    // Pipelined: three at once, answered in their order.
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n");
    http.send_raw([get("/healthz"), get("/no-such-path"), get(BASE)].concat().as_bytes()).expect("sent");
    let answers: Vec<_> = (0..3).map(|_| http.read_reply(false).expect("an answer").status).collect();
    assert_eq!(answers, [200, 404, 200]);

    // A head for HEAD, with the length that GET would have.
    let whole = http.request("GET", "/healthz", None);
    let head = http.request("HEAD", "/healthz", None);
    assert_eq!((head.status, head.header("content-length")), (200, whole.header("content-length")));
    for reply in [&whole, &head, &http.request("GET", "/no-such-path", None)] {
        let date = reply.header("date").unwrap_or_else(|| panic!("no date: {reply:?}"));
        assert!(date.len() == 29 && date.ends_with(" GMT"), "{date}");
    }

    // Absolute form, and a path in other letters.
    http.send_raw(get("http://x/healthz").as_bytes()).expect("sent");
    assert_eq!(http.read_reply(false).expect("an answer").status, 200);
    http.send_raw(get("/api/v1/mcp/server%73").as_bytes()).expect("sent");
    assert_eq!(http.read_reply(false).expect("an answer").status, 200);

    // A chunked body, with an extension and a trailer; the answer shows that it was understood.
    let head = format!(
        "POST {BASE} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
    );
    let (one, two) = (r#"{"rootfs":"host","cmd":["x"],"na"#, r#"me":"A"}"#);
    let sizes = format!("{:x};ext=1\r\n{one}\r\n{:X}\r\n{two}\r\n", one.len(), two.len());
    let chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n{sizes}0\r\nX: y\r\n\r\n");
    http.send_raw(chunked.as_bytes()).expect("sent");
    let reply = http.read_reply(false).expect("an answer");
    assert_eq!((reply.status, reply.code()), (400, json!("invalid_request")), "{reply}");
    assert_eq!(reply.json()["error"]["data"]["field"], "name", "{reply}");

    // The body is sent when the daemon has said that it wants it.
    http.send_raw(format!("{head}Expect: 100-continue\r\nContent-Length: 2\r\n\r\n").as_bytes()).expect("sent");
    assert_eq!(http.line().expect("a line"), "HTTP/1.1 100 Continue");
    assert_eq!(http.line().expect("a line"), "");
    http.send_raw(b"{}").expect("sent");
    assert_eq!(http.read_reply(false).expect("an answer").status, 400);
    assert_eq!(http.request("GET", "/healthz", None).status, 200, "still the same connection");

    for last in ["GET /healthz HTTP/1.0\r\n\r\n", "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"] {
        let mut http = daemon.http();
        http.send_raw(last.as_bytes()).expect("sent");
        let answer = String::from_utf8(http.read_to_close().expect("a close")).expect("text");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{last:?}: {answer}");
    }
}

#[test]
fn each_wrong_request_gets_its_own_refusal() {
    let daemon = Daemon::start();
    let token = daemon.token();
    let post = format!(
        "POST {BASE} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
    );

    // What cannot be trusted to end where it says: refused, and the connection with it.
    let fatal = [
        ("both lengths", 400, format!("{post}Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")),
        ("two lengths", 400, format!("{post}Content-Length: 2\r\nContent-Length: 3\r\n\r\n{{}}")),
        ("a list of lengths", 400, format!("{post}Content-Length: 2, 3\r\n\r\n{{}}")),
        ("a signed length", 400, format!("{post}Content-Length: +2\r\n\r\n{{}}")),
        ("a huge length", 413, format!("{post}Content-Length: {}\r\n\r\n", BODY_MAX + 1)),
        ("a length beyond numbers", 400, format!("{post}Content-Length: 99999999999999999999999\r\n\r\n")),
        ("an unknown encoding", 501, format!("{post}Transfer-Encoding: gzip, chunked\r\n\r\n")),
        ("a chunk size that is none", 400, format!("{post}Transfer-Encoding: chunked\r\n\r\nzz\r\n")),
        ("a negative chunk", 400, format!("{post}Transfer-Encoding: chunked\r\n\r\n-1\r\n")),
        ("a chunk without end", 400, format!("{post}Transfer-Encoding: chunked\r\n\r\n2\r\n{{}}xx0\r\n\r\n")),
        ("a chunk beyond numbers", 400, format!("{post}Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n")),
        ("a folded header", 400, "GET /healthz HTTP/1.1\r\nHost: x\r\nX: a\r\n b\r\n\r\n".into()),
        ("a space before the colon", 400, "GET /healthz HTTP/1.1\r\nHost : x\r\n\r\n".into()),
        ("a space before the name", 400, "GET /healthz HTTP/1.1\r\n Host: x\r\n\r\n".into()),
        ("bare line feeds", 400, "GET /healthz HTTP/1.1\nHost: x\n\n".into()),
        ("a bare carriage return", 400, "GET /healthz HTTP/1.1\r\nHost: x\r\nX: a\rb\r\n\r\n".into()),
        ("a zero byte", 400, "GET /healthz HTTP/1.1\r\nHost: x\r\nX: a\0b\r\n\r\n".into()),
        ("no host", 400, "GET /healthz HTTP/1.1\r\n\r\n".into()),
        ("two hosts", 400, "GET /healthz HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n".into()),
        ("two blanks", 400, "GET  /healthz HTTP/1.1\r\nHost: x\r\n\r\n".into()),
        ("no version", 400, "GET /healthz\r\nHost: x\r\n\r\n".into()),
        ("a way out of the path", 400, format!("GET {BASE}/..%2f..%2fetc HTTP/1.1\r\nHost: x\r\n\r\n")),
        ("another version", 505, "GET /healthz HTTP/2.0\r\nHost: x\r\n\r\n".into()),
        ("a long target", 414, format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(TARGET_MAX))),
        ("a long header", 431, format!("GET /healthz HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "a".repeat(HEAD_MAX))),
        ("many headers", 431, format!("GET /healthz HTTP/1.1\r\nHost: x\r\n{}\r\n", "X: y\r\n".repeat(HEADERS_MAX))),
    ];
    for (what, status, request) in &fatal {
        let mut http = daemon.http();
        http.send_raw(request.as_bytes()).unwrap_or_else(|e| panic!("{what}: {e}"));
        let reply = http.read_reply(false).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(reply.status, *status, "{what}: {reply}");
        assert!(reply.code().is_string() && reply.json()["error"]["message"].is_string(), "{what}: {reply}");
        assert_eq!(reply.header("connection"), Some("close"), "{what}");
        http.read_to_close().unwrap_or_else(|e| panic!("{what} was not followed by a close: {e}"));
    }

    // Refused before it is understood, and a HEAD all the same.
    let mut http = daemon.http();
    http.send_raw(b"HEAD /%zz HTTP/1.1\r\nHost: x\r\n\r\n").expect("sent");
    let answer = String::from_utf8(http.read_to_close().expect("a close")).expect("text");
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.ends_with("\r\n\r\n"), "{answer}");

    // What is well formed and still wrong: refused in the same shape, and the connection goes on.
    let mut http = daemon.http();
    for (what, method, path, status, code) in [
        ("an unknown path", "GET", "/api/v1/nothing", 404, "not_found"),
        ("an unknown server", "GET", "/api/v1/mcp/servers/nobody", 404, "not_found"),
        ("a name that is none", "GET", "/api/v1/mcp/servers/No.Name", 404, "not_found"),
        ("a wrong method", "PUT", BASE, 405, "method_not_allowed"),
    ] {
        let reply = http.request(method, path, None);
        assert_eq!((reply.status, reply.code()), (status, json!(code)), "{what}: {reply}");
        assert_eq!(reply.header("allow").is_some(), status == 405, "{what}: {reply:?}");
    }
    for (what, body, code) in [
        ("broken JSON", r#"{"name": "#, "invalid_json"),
        ("no object", "[]", "invalid_request"),
        ("a name that cannot be", r#"{"name": "Not A Name", "rootfs": "host", "cmd": ["x"]}"#, "invalid_request"),
        ("an unknown field", r#"{"name": "a", "rootfs": "host", "cmd": ["x"], "colour": 1}"#, "unknown_field"),
        ("nothing to run", r#"{"name": "a", "rootfs": "host"}"#, "invalid_request"),
        (
            "a limit that is none",
            r#"{"name":"a","rootfs":"host","cmd":["x"],"resource_limits":{"cpu":"-1"}}"#,
            "invalid_request",
        ),
    ] {
        let reply = http.request_text("POST", BASE, body);
        assert_eq!((reply.status, reply.code()), (400, json!(code)), "{what}: {reply}");
    }
    let provider = json!({"name": "a", "rootfs": "host", "cmd": ["x"], "provider": "no-such-provider"});
    let reply = http.request("POST", BASE, Some(&provider));
    assert!((400..500).contains(&reply.status), "{reply}");
    let text = format!(
        "POST {BASE} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{{}}"
    );
    http.send_raw(text.as_bytes()).expect("sent");
    let reply = http.read_reply(false).expect("an answer");
    assert_eq!((reply.status, reply.code()), (415, json!("unsupported_media_type")), "{reply}");
    assert_eq!(http.request("GET", BASE, None).json(), json!([]), "none of it was stored");
}

#[test]
fn a_definition_is_read_back_and_registers_the_same_server_again() {
    let daemon = Daemon::start();
    let mut http = daemon.http();
    let body = json!({
        "name": "first", "rootfs": "host", "cmd": ["cat"], "provider": "crun", "environment": {"KEY": "s3cret", "B": "2"},
        "volumes": ["/data:ro"], "resource_limits": {"memory": "64M"}, "files": {"/app/x": "y"},
    });
    let reply = http.request("POST", &format!("{BASE}?wait=false"), Some(&body));
    assert_eq!(reply.status, 201, "{reply}");
    let path = |name: &str| format!("{BASE}/{name}/definition");
    let shown = http.request("GET", &path("first"), None);
    assert_eq!((shown.status, &shown.json()["environment"]), (200, &json!({"KEY": null, "B": null})), "{shown}");
    assert!(!shown.body_text().contains("s3cret"));
    assert_eq!(http.request("GET", &path("nobody"), None).status, 404);
    assert_eq!(http.request("POST", &path("first"), None).status, 405);

    let mut again = shown.json();
    again["name"] = json!("second");
    let reply = http.request("POST", &format!("{BASE}?wait=false"), Some(&again));
    assert_eq!((reply.status, reply.code()), (422, json!("secret_missing")), "{reply}");
    assert_eq!(reply.json()["error"]["data"]["missing"], json!(["B", "KEY"]), "{reply}");
    again["environment"] = body["environment"].clone();
    let reply = http.request("POST", &format!("{BASE}?wait=false"), Some(&again));
    assert_eq!(reply.status, 201, "{reply}");
    let mut second = http.request("GET", &path("second"), None).json();
    second["name"] = json!("first");
    assert_eq!(second, shown.json());

    // In a change, `null` takes a variable away.
    let reply = http.request("PATCH", &format!("{BASE}/second"), Some(&json!({"environment": {"KEY": null}})));
    assert_eq!(reply.status, 200, "{reply}");
    assert_eq!(http.request("GET", &path("second"), None).json()["environment"], json!({"B": null}));
}

#[test]
fn the_description_of_the_api_is_open_to_all() {
    let daemon = Daemon::start();
    let mut http = daemon.http();
    let host = daemon.address();
    let ask = |method: &str| format!("{method} /openapi.json HTTP/1.1\r\nHost: {host}\r\n\r\n");
    http.send_raw(ask("GET").as_bytes()).expect("sent");
    let whole = http.read_reply(false).expect("an answer");
    assert_eq!((whole.status, whole.header("content-type")), (200, Some("application/json")), "{whole}");
    assert_eq!(whole.json()["openapi"], "3.1.0");
    http.send_raw(ask("HEAD").as_bytes()).expect("sent");
    let head = http.read_reply(true).expect("an answer");
    assert_eq!((head.status, head.header("content-length")), (200, whole.header("content-length")));
}
