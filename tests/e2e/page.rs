//! The page at `/`, in Debian's Chromium, against a real daemon with servers in both sandboxes. What is done and seen there
//! stands in `tests/browser/*.mjs`; `scripts/setup --tests` installs what drives the browser.

use crate::support::postgres::Postgres;
use crate::support::{BASE, Daemon, Http, Options, python, tiny};
use serde_json::{Value, json};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PAGE: &str = include_str!("../fixtures/page.py");
const MODULES: &str = "/usr/local/lib/stdiod-fixtures/browser/node_modules";

/// Runs a scenario, which must succeed, and gives what it printed.
fn browse(scenario: &str, stage: &Value) -> String {
    let script = format!("{}/tests/browser/{scenario}.mjs", env!("CARGO_MANIFEST_DIR"));
    let output = Command::new("/usr/bin/node")
        .arg(script)
        .arg(stage.to_string())
        .env("BROWSER_MODULES", MODULES)
        .stdin(Stdio::null())
        .output()
        .expect("node: scripts/setup --tests installs it");
    let (said, complaints) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{scenario}: {said}\n{complaints}");
    println!("{said}");
    said.into_owned()
}

#[test]
fn somebody_runs_the_daemon_with_the_page_alone() {
    let daemon = Daemon::start();
    daemon.register(&python("worker", "gvisor", PAGE));
    let pid = daemon.sandbox("gvisor", "server.py").as_raw();
    browse("operate", &json!({"url": daemon.url(), "token": daemon.token(), "pid": pid}));
    assert_eq!(daemon.get(&format!("{BASE}/formed")).status, 404);
}

#[test]
fn what_somebody_has_for_another_client_is_pasted_previewed_and_registered() {
    let daemon = Daemon::start();
    browse("importing", &json!({"url": daemon.url(), "token": daemon.token()}));
    let pasted = daemon.get(&format!("{BASE}/my-pasted/definition")).json();
    assert_eq!(pasted["environment"], json!({"API_KEY": null}), "{pasted}");
    let far = daemon.get("/api/v1/projects/shop/mcp/servers/far").json();
    assert_eq!(far["config"]["url"], "https://far.example/mcp", "{far}");
}

#[test]
fn whatever_servers_write_is_shown_as_text_everywhere() {
    let daemon = Daemon::start();
    daemon.register(&python("rude", "crun", PAGE));
    let rows = "/api/v1/projects/shop/mcp/servers";
    let description = "<img src=x onerror=\"window.pwned=1\"> \u{202e}\u{1b}[31m";
    let far = json!({"name": "far", "description": description, "transport": "stdio", "network": "none",
        "command": "/usr/bin/python3", "args": ["-c", PAGE]});
    let gone = json!({"name": "gone", "transport": "http", "url": "http://127.0.0.1:9/mcp"});
    for row in [far, gone] {
        let made = daemon.request("POST", rows, Some(&row));
        assert_eq!(made.status, 201, "{made}");
    }
    browse("hostile", &json!({"url": daemon.url(), "token": daemon.token()}));
}

#[test]
fn a_thousand_servers_are_there_at_once_and_what_is_old_is_not_shown_as_live() {
    const COPIES: usize = 1000;
    let postgres = Postgres::start();
    let options = Options::default().variable("DATABASE_URL", postgres.url()).variable("STDIOD_AUTH", "off");
    let mut daemon = options.start();
    daemon.register(&tiny("real", "crun"));
    assert!(daemon.stop().success());
    let insert = "INSERT INTO kb.agent_workspaces (id, container_type, name, desired, definition, status)
        SELECT gen_random_uuid(), 'mcp_server', 'row-' || n, 'down', jsonb_set(definition, '{name}', to_jsonb('row-' || n)), 'stopped'
        FROM kb.agent_workspaces, generate_series(1, $1::int) AS n";
    postgres.client().execute(insert, &[&(COPIES as i32)]).expect("rows");
    daemon.start_again();
    daemon.wait_ready("real");
    // Generous: what is really reached is printed. A machine that is busy with other tests may take its time.
    let limits = json!({"paint_ms": 10_000, "shown_ms": 5_000});
    let stage = json!({"url": daemon.url(), "count": COPIES + 1, "limits": limits, "pid": daemon.pid()});
    scrape_all_of_them(&daemon, COPIES);
    browse("many", &stage);
    // The scenario ends with its SIGKILL; the next life clears up what that has left.
    daemon.kill();
    daemon.start_again();
}

/// The metrics of so many servers in one answer, and what the loop's other turns notice of that; both are printed.
fn scrape_all_of_them(daemon: &Daemon, copies: usize) {
    let mut http = daemon.http();
    let mut scrape = || {
        let began = Instant::now();
        let reply = http.request("GET", "/metrics", None);
        assert_eq!(reply.status, 200, "{reply}");
        (began.elapsed(), reply.body_text())
    };
    let slow_turns = |text: &str| {
        let value = |series: &str| -> u64 {
            let found =
                text.lines().find_map(|line| line.strip_prefix(series)).unwrap_or_else(|| panic!("no {series}"));
            found.trim().parse().expect("a number")
        };
        value("stdiod_loop_turn_seconds_count") - value("stdiod_loop_turn_seconds_bucket{le=\"0.01\"}")
    };
    let (_, before) = scrape();
    assert_eq!(before.matches("stdiod_server_info{").count(), copies + 1);
    let mut took: Vec<Duration> = (0..9).map(|_| scrape().0).collect();
    took.sort();
    let (_, after) = scrape();
    let slow = slow_turns(&after) - slow_turns(&before);
    println!(
        "{copies} servers: a scrape took {} ms (median of 9), {slow} turns over 10 ms meanwhile",
        took[4].as_millis()
    );
    // As generous as above.
    assert!(took[4] < Duration::from_secs(3), "{took:?}");
}

#[test]
fn the_page_and_its_files_are_for_everybody_and_only_for_looking() {
    let daemon = Daemon::start();
    let ask = |line: &str, more: &str| {
        let mut http = Http::connect(daemon.address(), "");
        let head = format!("{line} HTTP/1.1\r\nHost: {}\r\n{more}Content-Length: 0\r\n\r\n", daemon.address());
        http.send_raw(head.as_bytes()).expect("sent");
        http.read_reply(line.starts_with("HEAD")).expect("an answer")
    };
    for path in ["/", "/page/main.js", "/page/page.css", "/page/icon.svg"] {
        let page = ask(&format!("GET {path}"), "");
        let policy = page.header("content-security-policy").unwrap_or_default();
        assert_eq!(page.status, 200, "{path}: {page}");
        for rule in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "form-action 'none'"] {
            assert!(policy.contains(rule), "{path}: {policy}");
        }
        assert_eq!(page.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(page.header("referrer-policy"), Some("no-referrer"), "{path}");
        let etag = page.header("etag").expect("a mark");
        assert_eq!(ask(&format!("GET {path}"), &format!("If-None-Match: {etag}\r\n")).status, 304, "{path}");
        let head = ask(&format!("HEAD {path}"), "");
        assert_eq!((head.status, head.header("etag")), (200, Some(etag)), "{path}");
        assert_eq!(ask(&format!("POST {path}"), "").status, 405, "{path}");
    }
    assert_eq!(ask("GET /page/none.js", "").status, 404);
    assert_eq!(ask(&format!("GET {BASE}"), "").status, 401);
}
