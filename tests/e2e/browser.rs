//! Without authentication a daemon on loopback is open to every program of the machine, and must not be to the web pages in
//! its browsers: raw requests with the headers that a browser sends.

use crate::support::{BASE, Daemon, Http, RUDE, Reply, python, python_with};
use serde_json::json;
use std::net::TcpListener;

const RELAYED: &str = include_str!("../fixtures/relayed.py");
const JSON: &str = "Content-Type: application/json\r\n";

fn ask(daemon: &Daemon, line: &str, headers: &str, body: &str) -> Reply {
    let (address, length) = (daemon.address(), body.len());
    let host = if headers.contains("Host: ") { String::new() } else { format!("Host: {address}\r\n") };
    let mut http = Http::connect(address, "");
    http.send_raw(format!("{line} HTTP/1.1\r\n{host}{headers}Content-Length: {length}\r\n\r\n{body}").as_bytes())
        .expect("sent");
    http.read_reply(line.starts_with("HEAD")).unwrap_or_else(|e| panic!("{line} {headers}: {e}"))
}

#[test]
fn a_web_page_of_another_origin_can_do_nothing_where_no_token_is_asked_for() {
    let daemon = Daemon::with("STDIOD_AUTH", "off").start();
    daemon.register(&python("rude", "crun", RUDE));
    let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
    let mut web = python_with("web", "crun", RELAYED, &["80"]);
    (web["ports"], web["stdio_bridge"]) = (json!([format!("{port}:80")]), json!(false));
    daemon.register(&web);

    let (own, number) = (format!("http://{}", daemon.address()), daemon.address().rsplit(':').next().expect("a port"));
    let definition = python("evil", "crun", RUDE).to_string();
    let call = json!({"method": "tools/call", "params": {"name": "echo", "arguments": {"text": "x"}}}).to_string();
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}).to_string();
    let lines = [
        (format!("POST {BASE}"), definition.as_str()),
        (format!("POST {BASE}/rude/call"), &call),
        (format!("POST {BASE}/rude/stop"), ""),
        (format!("DELETE {BASE}/rude"), ""),
        (format!("GET {BASE}"), ""),
        (format!("GET {BASE}/rude/logs"), ""),
        ("GET /api/v1/mcp/events".to_string(), ""),
        ("POST /mcp/rude".to_string(), &ping),
        ("POST /mcp".to_string(), &ping),
        ("POST /mcp/web".to_string(), &ping),
        ("GET /mcp/web/page".to_string(), ""),
        (format!("GET {BASE}/web/mcp/page"), ""),
        ("POST /api/v1/tokens".to_string(), r#"{"name":"x","scopes":["mcp:call"]}"#),
    ];
    let script = |site: &str| format!("Sec-Fetch-Site: {site}\r\nSec-Fetch-Mode: cors\r\nSec-Fetch-Dest: empty\r\n");
    let pages = [
        // Another port of this machine is another origin of the same site, however it is spelled.
        format!("Origin: http://127.0.0.1:3000\r\n{JSON}{}", script("same-site")),
        format!("Origin: http://localhost:3000\r\n{JSON}"),
        format!("Origin: http://localhost:{number}\r\n{JSON}"),
        format!("Origin: https://{}\r\n{JSON}", daemon.address()),
        format!("Origin: http://evil.example\r\n{JSON}{}", script("cross-site")),
        format!("Origin: null\r\n{JSON}"),
        // A browser that says no Origin: an image, a link, a frame, the address bar.
        format!("{JSON}Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\nSec-Fetch-Dest: image\r\n"),
        format!("{JSON}Sec-Fetch-Site: same-site\r\nSec-Fetch-Mode: no-cors\r\nSec-Fetch-Dest: script\r\n"),
        format!("{JSON}Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: iframe\r\n"),
        format!("{JSON}Sec-Fetch-Site: none\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n"),
        // A page whose own name leads here.
        format!(
            "Host: evil.example:{number}\r\nOrigin: http://evil.example:{number}\r\n{JSON}{}",
            script("same-origin")
        ),
        format!("Host: printer:{number}\r\n{JSON}"),
    ];
    for (line, body) in &lines {
        for page in &pages {
            let reply = ask(&daemon, line, page, body);
            assert_eq!(reply.status, 403, "{line}\n{page}: {reply}");
            assert!(reply.header("access-control-allow-origin").is_none(), "{reply:?}");
        }
        // What a form can send without being asked for permission first.
        for media in ["", "Content-Type: text/plain\r\n", "Content-Type: application/x-www-form-urlencoded\r\n"] {
            if !body.is_empty() {
                assert_eq!(ask(&daemon, line, media, body).status, 415, "{line} {media}");
            }
        }
    }
    assert_eq!(daemon.status("rude")["status"], "ready", "nothing was done to it");
    assert_eq!(daemon.get(BASE).json().as_array().map(Vec::len), Some(2));
    assert_eq!(daemon.get("/api/v1/tokens").json().as_array().map(Vec::len), Some(1));

    // Programs say nothing of all this, or what Node.js and Electron say; and a page of the daemon's own is welcome.
    let electron = "Sec-Fetch-Site: none\r\nSec-Fetch-Mode: no-cors\r\nSec-Fetch-Dest: empty\r\n";
    for honest in ["", "Sec-Fetch-Mode: cors\r\n", electron, &format!("Origin: {own}\r\n{}", script("same-origin"))] {
        let headers = format!("{honest}{JSON}Accept: application/json, text/event-stream\r\n");
        assert_eq!(ask(&daemon, &format!("POST {BASE}/rude/call"), &headers, &call).status, 200, "{honest}");
        assert_eq!(ask(&daemon, "GET /mcp/web/x", honest, "").status, 200, "{honest}");
        assert_eq!(ask(&daemon, &format!("GET {BASE}"), honest, "").status, 200, "{honest}");
    }
    assert!(daemon.cli(&["ls"]).status.success());
    // With a token the page must have been given it by somebody.
    let with_token = format!("Authorization: Bearer {}\r\nOrigin: http://localhost:3000\r\n", daemon.token());
    assert_eq!(ask(&daemon, &format!("GET {BASE}"), &with_token, "").status, 200);
    // Of a server's page nothing runs and nothing stays.
    let page = ask(&daemon, "GET /mcp/web/page", "", "");
    assert_eq!(page.header("content-security-policy"), Some("sandbox"), "{page:?}");
    assert_eq!((page.header("x-content-type-options"), page.header("set-cookie")), (Some("nosniff"), None), "{page:?}");
}
