//! Who may do what: no token, a wrong one, one with little power, one that was taken back.

use crate::support::{BASE, Daemon, Http, RUDE, Reply, python};
use serde_json::json;
use std::os::unix::fs::PermissionsExt;

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
fn without_authentication_a_loopback_listener_serves_everybody_and_a_public_one_does_not_start() {
    let daemon = Daemon::with("STDIOD_AUTH", "off").start();
    assert_eq!(ask(&daemon, "", "GET", BASE).status, 200);

    let public = daemon.command(&["serve"]).env("STDIOD_LISTEN", "0.0.0.0:0").output().expect("it runs");
    assert_eq!(public.status.code(), Some(2), "{public:?}");
    let told = String::from_utf8_lossy(&public.stderr);
    assert!(told.contains("auth"), "{told}");
}
