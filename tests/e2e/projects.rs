//! Projects as their specification tells them, scenario by scenario: rows, manifests, secrets, links over each transport, tools
//! and records, on a PostgreSQL of the test and with real sandboxes. The names of these tests are those of the scenarios.

use crate::support::far_server::FarServer;
use crate::support::postgres::Postgres;
use crate::support::{Daemon, Options, Reply, SOON, eventually};
use serde_json::{Value, json};

const PROJECT: &str = "/api/v1/projects/shop";
const INSIDE: &str = include_str!("../fixtures/inside.py");

fn ask(daemon: &Daemon, method: &str, rest: &str, body: Value) -> Reply {
    let body = Some(&body).filter(|body| !body.is_null());
    daemon.request(method, &format!("{PROJECT}{rest}"), body)
}

fn add(daemon: &Daemon, definition: Value) -> Value {
    let reply = ask(daemon, "POST", "/mcp/servers", definition);
    assert_eq!(reply.status, 201, "{reply}");
    reply.json()
}

fn call(daemon: &Daemon, tool: &str, arguments: Value) -> Reply {
    ask(daemon, "POST", "/mcp/tools/call", json!({"name": tool, "arguments": arguments}))
}

fn shown(daemon: &Daemon, server: &str) -> Value {
    let reply = ask(daemon, "GET", &format!("/mcp/servers/{server}"), Value::Null);
    assert_eq!(reply.status, 200, "{reply}");
    reply.json()
}

fn until(daemon: &Daemon, server: &str, status: &str) -> Value {
    let is = eventually(SOON, || shown(daemon, server)["status"] == status);
    assert!(is, "{server} is not {status}: {}\n{}", shown(daemon, server), daemon.log_tail());
    shown(daemon, server)
}

/// A program on stdin and stdout, in a sandbox of its own.
fn program(name: &str, env: Value) -> Value {
    json!({"name": name, "transport": "stdio", "command": "python3", "args": ["-c", INSIDE], "env": env})
}

/// What Python leaves in `result` inside such a program.
fn inside(daemon: &Daemon, code: &str) -> Value {
    let reply = call(daemon, "run", json!({"code": code}));
    assert_eq!(reply.status, 200, "{reply}\n{}", daemon.log_tail());
    let text = reply.json()["result"]["content"][0]["text"].as_str().expect("text").to_string();
    serde_json::from_str(&text).expect("JSON")
}

/// On crun, which starts sooner.
fn daemon() -> Options {
    Options::default().variable("STDIOD_DEFAULT_PROVIDER", "crun")
}

#[test]
fn mcp_server_table_schema() {
    let postgres = Postgres::start();
    let daemon = Daemon::with("STDIOD_DATABASE_URL", postgres.url()).start();
    add(&daemon, json!({"name": "far", "transport": "http", "url": "https://mcp.example/mcp"}));
    let columns = "SELECT string_agg(column_name || ' ' || data_type, ', ' ORDER BY column_name) FROM \
                   information_schema.columns WHERE table_schema = 'kb' AND table_name = 'project_mcp_servers'";
    let columns: String = postgres.client().query_one(columns, &[]).expect("a valid query").get(0);
    for column in [
        "id uuid",
        "project_id text",
        "product_id text",
        "name text",
        "description text",
        "transport text",
        "config jsonb",
        "enabled boolean",
        "created_at timestamp with time zone",
        "updated_at timestamp with time zone",
    ] {
        assert!(columns.split(", ").any(|found| found == column), "{column}: {columns}");
    }
    let other = "INSERT INTO kb.project_mcp_servers (id, project_id, name, transport) VALUES \
                 (gen_random_uuid(), 'p', 'n', 'carrier-pigeon')";
    assert!(postgres.client().execute(other, &[]).is_err(), "the transport is one of four");
    let stored =
        "SELECT name, transport, config->>'url', enabled FROM kb.project_mcp_servers WHERE project_id = 'shop'";
    let row = postgres.client().query_one(stored, &[]).expect("one row");
    let (name, transport, url, enabled): (String, String, String, bool) =
        (row.get(0), row.get(1), row.get(2), row.get(3));
    assert_eq!((&*name, &*transport, &*url, enabled), ("far", "http", "https://mcp.example/mcp", true));
}

#[test]
fn product_manifest_import() {
    let postgres = Postgres::start();
    let daemon = Daemon::with("STDIOD_DATABASE_URL", postgres.url()).start();
    let http = |url: &str| json!({"transport": "http", "url": url});
    let manifest = |servers: Value| {
        ask(&daemon, "POST", "/products/crm/manifest", json!({"name": "crm", "mcp": {"servers": servers}}))
    };
    let names = || -> Vec<String> {
        let rows =
            "SELECT name FROM kb.project_mcp_servers WHERE project_id = 'shop' AND product_id = 'crm' ORDER BY name";
        postgres.client().query(rows, &[]).expect("a valid query").iter().map(|row| row.get(0)).collect()
    };
    let reply = manifest(json!({"a": http("https://a.example/"), "b": http("https://b.example/")}));
    assert_eq!(reply.status, 200, "{reply}");
    assert_eq!(names(), ["a", "b"]);
    let before = shown(&daemon, "a");
    assert_eq!((&before["product_id"], &before["project_id"]), (&json!("crm"), &json!("shop")));
    // All or nothing: of a manifest with one mistake nothing is taken.
    let reply = manifest(json!({"c": http("https://c.example/"), "d": http("gopher://d.example/")}));
    assert_eq!(
        (reply.status, &reply.json()["error"]["data"]["field"]),
        (400, &json!("mcp.servers[\"d\"].url")),
        "{reply}"
    );
    assert_eq!(names(), ["a", "b"]);
    // The next import of the product takes the place of this one; what is the same stays the same row.
    let reply = manifest(json!({"a": http("https://a.example/"), "c": http("https://c.example/")}));
    assert_eq!(reply.status, 200, "{reply}");
    assert_eq!(names(), ["a", "c"]);
    assert_eq!(shown(&daemon, "a")["id"], before["id"]);
}

#[test]
fn stdio_server_connection() {
    let daemon = daemon().start();
    add(&daemon, program("local", json!({"GREETING": "hello"})));
    assert_eq!(
        inside(&daemon, "result = [os.environ['GREETING'], os.getuid() != 0, os.getpid()]"),
        json!(["hello", true, 1])
    );
    assert_eq!(shown(&daemon, "local")["status"], "connected");
}

#[test]
fn environment_variable_interpolation() {
    let daemon = daemon().start();
    add(&daemon, program("local", json!({"KEY": "<${SEARCH_API_KEY}>"})));
    let refused = call(&daemon, "run", json!({"code": "result = 1"}));
    let listed = ask(&daemon, "GET", "/mcp/tools", Value::Null).json();
    assert_eq!(listed["unavailable"][0]["code"], "secret_missing", "{listed}");
    assert!(listed["unavailable"][0]["message"].as_str().expect("words").contains("SEARCH_API_KEY"), "{listed}");
    let named = ask(&daemon, "POST", "/mcp/tools/call", json!({"name": "run", "server": "local", "arguments": {}}));
    assert_eq!((named.status, named.code()), (422, json!("secret_missing")), "{named}\n{refused}");
    assert!(named.body_text().contains("SEARCH_API_KEY"), "{named}");
    let stored = ask(&daemon, "PUT", "/secrets/SEARCH_API_KEY", json!({"value": "first"}));
    assert_eq!(stored.status, 200, "{stored}");
    let value = || inside(&daemon, "result = os.environ['KEY']");
    assert_eq!(value(), "<first>");
    // Another value reaches the server by a new connection.
    ask(&daemon, "PUT", "/secrets/SEARCH_API_KEY", json!({"value": "second"}));
    assert!(eventually(SOON, || call(&daemon, "run", json!({"code": "result = os.environ['KEY']"}))
        .body_text()
        .contains("second")));
    let shown = shown(&daemon, "local");
    assert_eq!(shown["config"]["env"]["KEY"], "<${SEARCH_API_KEY}>", "as it was written");
    let secrets = ask(&daemon, "GET", "/secrets", Value::Null);
    assert!(!secrets.body_text().contains("second") && !daemon.log_contains("second"), "{secrets}");
}

#[test]
fn stdio_process_lifecycle() {
    let daemon = daemon().start();
    let trap = "import signal\nsignal.signal(signal.SIGTERM, lambda *_: (print('asked to end', file=sys.stderr, flush=True), \
                os._exit(0)))\nresult = 1";
    let mut local = program("local", json!({}));
    add(&daemon, local.clone());
    let running = || daemon.processes("inside its sandbox");
    for end in ["unload", "disconnect", "reconfigure", "delete"] {
        inside(&daemon, trap);
        assert_eq!(running(), 1, "{end}");
        let reply = match end {
            "unload" => ask(&daemon, "POST", "/unload", Value::Null),
            "disconnect" => ask(&daemon, "POST", "/mcp/servers/local/disconnect", Value::Null),
            "reconfigure" => {
                local["env"] = json!({"OTHER": "1"});
                ask(&daemon, "PATCH", "/mcp/servers/local", json!({"env": {"OTHER": "1"}, "enabled": false}))
            }
            _ => {
                ask(&daemon, "PATCH", "/mcp/servers/local", json!({"enabled": true}));
                inside(&daemon, trap);
                ask(&daemon, "DELETE", "/mcp/servers/local", Value::Null)
            }
        };
        assert!((200..300).contains(&reply.status), "{end}: {reply}");
        assert!(eventually(SOON, || running() == 0), "{end}: the process goes\n{}", daemon.log_tail());
        if end == "reconfigure" {
            ask(&daemon, "PATCH", "/mcp/servers/local", json!({"enabled": true}));
        }
    }
}

#[test]
fn sse_server_connection() {
    let (daemon, upstream) = (Daemon::start(), FarServer::start());
    ask(&daemon, "PUT", "/secrets/TOKEN", json!({"value": "t0ken"}));
    let mut definition = upstream.definition("old", "sse");
    definition["headers"] = json!({"Authorization": "Bearer ${TOKEN}"});
    add(&daemon, definition);
    let reply = call(&daemon, "search", json!({"q": "socks"}));
    assert_eq!(
        reply.json()["result"]["content"][0]["text"],
        r#"found {"q": "socks"}"#,
        "{reply}\n{}",
        daemon.log_tail()
    );
    let counts = upstream.counts();
    assert_eq!((&counts["authorization"], &counts["streams"]), (&json!("Bearer t0ken"), &json!(1)));
}

#[test]
fn sse_reconnection() {
    let (daemon, upstream) = (Daemon::start(), FarServer::start());
    add(&daemon, upstream.definition("old", "sse"));
    assert_eq!(call(&daemon, "search", json!({})).status, 200);
    upstream.mode("refuse");
    upstream.mode("cut");
    upstream.mode("refuse");
    // Noticed while nobody calls.
    daemon.wait_log(&["transport-exit"]);
    let down = ["reconnecting", "circuit_open"];
    assert!(eventually(SOON, || down.iter().any(|status| shown(&daemon, "old")["status"] == *status)));
    let refused = call(&daemon, "search", json!({}));
    assert_eq!(
        (refused.status, refused.outcome()),
        (503, json!("not_sent")),
        "at once, and not after a wait: {refused}"
    );
    upstream.mode("good");
    ask(&daemon, "POST", "/mcp/servers/old/disconnect", Value::Null);
    assert!(eventually(SOON, || call(&daemon, "search", json!({})).status == 200), "{}", daemon.log_tail());
    assert!(upstream.count("attempts") >= 2);
}

#[test]
fn tool_discovery_on_connection() {
    let (daemon, upstream) = (Daemon::start(), FarServer::start());
    add(&daemon, upstream.definition("far", "http"));
    let listed = ask(&daemon, "GET", "/mcp/tools", Value::Null).json();
    let names: Vec<&str> =
        listed["tools"].as_array().expect("tools").iter().filter_map(|tool| tool["name"].as_str()).collect();
    assert_eq!(names, ["search", "fail", "sleep"], "as they come: {listed}");
    assert!(listed["tools"].as_array().expect("tools").iter().all(|tool| tool["server"] == "far"), "{listed}");
    assert_eq!(
        (listed["unavailable"].as_array().map(Vec::len), upstream.count("tools/list")),
        (Some(0), 1),
        "{listed}"
    );
    assert_eq!(shown(&daemon, "far")["tools"], json!(["search", "fail", "sleep"]));
}

#[test]
fn tool_call_forwarding() {
    let (postgres, upstream) = (Postgres::start(), FarServer::start());
    let daemon = Daemon::with("STDIOD_DATABASE_URL", postgres.url()).start();
    add(&daemon, upstream.definition("far", "http"));
    let body = json!({"name": "search", "arguments": {"q": 1.50}, "run_id": "run-7"});
    let reply = ask(&daemon, "POST", "/mcp/tools/call", body);
    assert_eq!((reply.status, &reply.json()["error"]), (200, &Value::Null), "{reply}");
    assert_eq!(reply.json()["result"]["content"][0]["text"], r#"found {"q": 1.5}"#);
    let failed = call(
        &daemon,
        "fail",
        json!({"structured": {"message": "no such index", "code": "E_INDEX", "retryable": "no"}}),
    );
    let error = &failed.json()["error"];
    assert_eq!(
        (&error["code"], &error["message"]),
        (&json!("tool_error"), &json!("no such index (code=E_INDEX retriable=false)"))
    );
    assert_eq!(error["data"]["cause"]["message"], "no such index");
    let unknown = call(&daemon, "no-such-tool", json!({}));
    assert_eq!((unknown.status, unknown.code()), (404, json!("tool_not_found")), "{unknown}");
    let recorded = "SELECT count(*) = 1 FROM kb.agent_run_tool_calls WHERE project_id = 'shop' AND server = 'far' AND tool = \
                    'search' AND run_id = 'run-7' AND principal = 'admin' AND NOT is_error AND arguments LIKE '%1.5%'";
    assert!(postgres.eventually_true(recorded), "the call is on record");
    let failed = "SELECT count(*) = 1 FROM kb.agent_run_tool_calls WHERE tool = 'fail' AND is_error";
    assert!(postgres.eventually_true(failed), "and so is the one that failed");
    let told = ask(&daemon, "GET", "/mcp/calls?run_id=run-7", Value::Null).json();
    assert_eq!((told.as_array().map(Vec::len), &told[0]["tool"]), (Some(1), &json!("search")), "{told}");
}

/// What the tool says of its failure, and the one message that the caller reads.
#[test]
fn error_surfacing_and_formatting() {
    let (daemon, upstream) = (Daemon::start(), FarServer::start());
    add(&daemon, upstream.definition("far", "http"));
    let long = "x".repeat(3_000);
    for (structured, message) in [
        (json!({"message": "m", "error": "e", "detail": "d"}), "m"),
        (json!({"error": "e", "detail": "d"}), "e"),
        (json!({"error": {"message": "em"}, "detail": "d"}), "em"),
        (json!({"detail": "d"}), "d"),
        (json!({"other": 1}), "from the block"),
        (json!({"message": "m", "code": "E_TIMEOUT", "retriable": false}), "m (code=E_TIMEOUT retriable=false)"),
        (json!({"message": "m", "errorCode": 7, "retryable": "true"}), "m (code=7 retriable=true)"),
        (json!({"message": "m", "statusCode": 503, "retryable": 1}), "m (code=503 retriable=true)"),
    ] {
        let failed = call(&daemon, "fail", json!({"structured": structured, "text": "from the block"}));
        let error = &failed.json()["error"];
        assert_eq!((failed.status, &error["code"], &error["message"]), (200, &json!("tool_error"), &json!(message)));
        assert_eq!(error["data"]["cause"], structured, "the cause is all that it said");
        assert_eq!(failed.json()["result"]["structuredContent"], structured, "{failed}");
    }
    let bare = call(&daemon, "fail", json!({"bare": long})).json();
    let message = bare["error"]["message"].as_str().expect("a message");
    assert!(message.starts_with(r#"{"isError": true"#) && message.chars().count() == 2_001, "{message}");
    let body = json!({"name": "fail", "arguments": {"structured": {"rows": [1, {"a": "b"}]}}, "format": "text"});
    let told = ask(&daemon, "POST", "/mcp/tools/call", body).json();
    assert_eq!(told["result"], "rows:\n  - 1\n  - a: b", "{told}");
}

#[test]
fn lazy_connection_on_first_tool_call() {
    let (mut daemon, upstream) = (Daemon::start(), FarServer::start());
    add(&daemon, upstream.definition("far", "http"));
    assert_eq!(
        (upstream.count("attempts"), &shown(&daemon, "far")["status"]),
        (0, &json!("idle")),
        "nothing before its use"
    );
    daemon.stop();
    daemon.start_again();
    assert_eq!(upstream.count("attempts"), 0, "nor when the daemon starts");
    for _ in 0..3 {
        assert_eq!(call(&daemon, "search", json!({})).status, 200);
    }
    assert_eq!(
        (upstream.count("attempts"), upstream.count("tools/call")),
        (1, 3),
        "one connection serves all that follow"
    );
}

#[test]
fn connection_pooling_per_project() {
    let (daemon, upstream) = (Daemon::start(), FarServer::start());
    add(&daemon, upstream.definition("far", "http"));
    // Many agents at once, and none has used it before.
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let agents: Vec<_> = (0..12)
            .map(|n| {
                scope.spawn({
                    let daemon = &daemon;
                    move || call(daemon, "search", json!({"n": n})).status
                })
            })
            .collect();
        agents.into_iter().map(|agent| agent.join().expect("an agent")).collect()
    });
    assert_eq!(statuses, [200; 12], "{}", daemon.log_tail());
    assert_eq!((upstream.count("initialize"), upstream.count("tools/call")), (1, 12), "they share one connection");
    // Another project has its own.
    let other = "/api/v1/projects/other/mcp";
    daemon.request("POST", &format!("{other}/servers"), Some(&upstream.definition("far", "http")));
    let reply = daemon.request("POST", &format!("{other}/tools/call"), Some(&json!({"name": "search"})));
    assert_eq!((reply.status, upstream.count("initialize")), (200, 2), "{reply}");
}

#[test]
fn circuit_breaker_for_failing_servers() {
    let (daemon, upstream) = (Daemon::start(), FarServer::start());
    upstream.mode("refuse");
    let mut definition = upstream.definition("far", "http");
    definition["breaker"] = json!({"cooldown_ms": 4_000});
    add(&daemon, definition);
    assert_eq!(call(&daemon, "search", json!({})).status, 503);
    let open = until(&daemon, "far", "circuit_open");
    assert!(open["next_attempt_at"].is_string() && open["last_error"].is_string(), "{open}");
    let attempts = upstream.count("attempts");
    assert_eq!(attempts, 3, "three in a row");
    let refused = ask(&daemon, "POST", "/mcp/tools/call", json!({"name": "search", "server": "far"}));
    assert_eq!(
        (refused.status, refused.code(), refused.outcome()),
        (503, json!("circuit_open"), json!("not_sent")),
        "{refused}"
    );
    assert!(refused.header("retry-after").is_some(), "{refused}");
    assert_eq!(upstream.count("attempts"), attempts, "while it is open nothing is tried");
    // One trial after the cool-down; it fails and opens the circuit again.
    assert!(eventually(SOON, || upstream.count("attempts") == 4));
    until(&daemon, "far", "circuit_open");
    upstream.mode("good");
    until(&daemon, "far", "connected");
    // The trial under way, or the next one, has found it well.
    assert!((4..=5).contains(&upstream.count("attempts")));
    assert_eq!(call(&daemon, "search", json!({})).status, 200);
}
