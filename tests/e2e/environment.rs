//! The environment of a server belongs to whoever gave it: a token that is limited to some servers can change what runs
//! there, but not to read what others have put into it.

use crate::support::{BASE, Daemon, Http, RUDE, Reply, on_both_providers, python};
use serde_json::{Value, json};

on_both_providers!(whoever_changes_what_runs_does_not_get_the_environment_of_others);

fn whoever_changes_what_runs_does_not_get_the_environment_of_others(provider: &str) {
    const SECRET: &str = "hunter2-of-the-operator";
    let daemon = Daemon::start();
    let mut definition = python("tenant", provider, RUDE);
    definition["environment"] = json!({"API_KEY": SECRET, "MODE": "plain"});
    daemon.register(&definition);
    let scopes = ["--scope", "admin:read,admin:write,mcp:call", "--server", "tenant"];
    let created = daemon.cli_json(&[&["token", "create", "tenant"], &scopes[..]].concat());
    let token = created["token"].as_str().expect("a token");
    let patch = |token: &str, fields: Value| -> Reply {
        Http::connect(daemon.address(), token).request("PATCH", &format!("{BASE}/tenant"), Some(&fields))
    };
    let names = |reply: &Reply| reply.json()["environment"].clone();
    let everything = || {
        let logs = daemon.get(&format!("{BASE}/tenant/logs?tail=1000")).body_text();
        [logs, daemon.status("tenant").to_string()].concat()
    };
    let restore = || {
        let back =
            json!({"cmd": definition["cmd"], "environment": definition["environment"], "files": definition["files"]});
        let reply = patch(daemon.token(), back);
        assert_eq!((reply.status, names(&reply)), (200, json!(["API_KEY", "MODE"])), "{reply}");
        assert_eq!(reply.json()["warning"], Value::Null, "{reply}");
    };

    // What changes nothing of what runs leaves it as it is.
    assert_eq!(names(&patch(token, json!({"queue_max": 7, "cmd": definition["cmd"]}))), json!(["API_KEY", "MODE"]));
    let print = json!(["/bin/sh", "-c", "env >&2; exec /usr/bin/python3 /app/server.py"]);
    let script = format!("import os, sys\nprint(dict(os.environ), file=sys.stderr, flush=True)\n{RUDE}");
    let script = json!({"/app/server.py": script});
    for fields in [
        json!({"cmd": print}),
        json!({"files": script}),
        json!({"workdir": "/tmp"}),
        json!({"volumes": ["/app2"]}),
        // Also what is taken out: a variable may be what keeps a program from telling the others.
        json!({"environment": {"MODE": null}}),
    ] {
        let reply = patch(token, fields);
        assert_eq!((reply.status, names(&reply)), (200, json!([])), "{reply}");
        assert!(reply.json()["warning"].as_str().is_some_and(|why| why.contains("environment")), "{reply}");
        assert!(!everything().contains(SECRET), "{}", everything());
        restore();
    }
    // What is sent with the change is the whole environment; and a variable is such a change too.
    for fields in [json!({"cmd": print, "environment": {"MODE": "loud"}}), json!({"environment": {"MODE": "loud"}})] {
        let reply = patch(token, fields);
        assert_eq!((reply.status, names(&reply)), (200, json!(["MODE"])), "{reply}");
        let seen: Value = serde_json::from_str(&daemon.text("tenant", "env", json!({}))).expect("JSON");
        assert_eq!((&seen["MODE"], &seen["API_KEY"]), (&json!("loud"), &Value::Null));
        restore();
    }
    assert!(!everything().contains(SECRET), "{}", everything());
    // Whoever may do everything here keeps it.
    let reply = patch(daemon.token(), json!({"cmd": print}));
    assert_eq!((names(&reply), &reply.json()["warning"]), (json!(["API_KEY", "MODE"]), &Value::Null), "{reply}");
}
