//! `POST /api/v1/mcp/import` and `stdiod apply` against the real daemon: what a document gives, that it is all of it or
//! nothing, and that a second time changes nothing.

use crate::support::{Daemon, SOON, eventually, python};
use serde_json::{Value, json};
use std::io::{Cursor, Write};

const IMPORT: &str = "/api/v1/mcp/import";
const SERVERS: &str = "/api/v1/mcp/servers";
const SCRIPT: &str = "import sys\nfor line in sys.stdin: pass\n";

fn names(daemon: &Daemon) -> Vec<String> {
    let all = daemon.request("GET", SERVERS, None).json();
    all.as_array().unwrap().iter().map(|server| server["name"].as_str().unwrap().to_string()).collect()
}

fn actions(answer: &Value) -> Vec<(&str, &str)> {
    let of = |key: &str, entry: &'_ Value| entry[key].as_str().unwrap().to_string().leak() as &str;
    answer["servers"].as_array().unwrap().iter().map(|entry| (of("name", entry), of("action", entry))).collect()
}

fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in files {
        zip.start_file(*name, zip::write::SimpleFileOptions::default()).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

#[test]
fn a_document_is_registered_as_a_whole_or_not_at_all() {
    let daemon = Daemon::start();
    let document = json!({"mcpServers": {
        "One": {"command": "python3", "args": ["-c", SCRIPT], "env": {"KEY": "${MY_KEY}"}},
        "Two": {"command": "python3", "args": ["-c", SCRIPT]},
        "Off": {"command": "python3", "disabled": true},
    }});
    let dry = daemon.request("POST", &format!("{IMPORT}?dry_run=true"), Some(&document));
    assert_eq!(dry.status, 200, "{}", dry.body_text());
    assert_eq!(actions(&dry.json()), [("off", "disabled"), ("one", "create"), ("two", "create")]);
    assert_eq!(dry.json()["servers"][1]["needs"], json!(["MY_KEY"]));
    let refused = daemon.request("POST", IMPORT, Some(&document));
    assert_eq!((refused.status, refused.code()), (422, json!("secret_missing")), "{}", refused.body_text());
    assert_eq!(refused.json()["error"]["data"]["missing"], json!(["MY_KEY"]));
    assert!(names(&daemon).is_empty());

    let with_values = json!({"document": document.to_string(), "values": {"one.MY_KEY": "hunter2"}});
    let done = daemon.request("POST", IMPORT, Some(&with_values));
    assert_eq!(done.status, 201, "{}", done.body_text());
    assert!(!done.body_text().contains("hunter2"), "{}", done.body_text());
    assert_eq!(names(&daemon), ["one", "two"]);
    // Without the value: the one that is stored is kept.
    let again = daemon.request("POST", IMPORT, Some(&document));
    assert_eq!(again.status, 201, "{}", again.body_text());
    assert_eq!(actions(&again.json()), [("off", "disabled"), ("one", "unchanged"), ("two", "unchanged")]);

    let other = json!({"mcpServers": {"new": {"command": "python3"}, "two": {"command": "python3", "args": ["-V"]}}});
    let taken = daemon.request("POST", IMPORT, Some(&other));
    assert_eq!((taken.status, taken.code()), (409, json!("name_taken")));
    assert_eq!(taken.json()["error"]["data"]["servers"], json!(["two"]));
    let image = json!({"stdiod": 1, "servers": [
        {"name": "new", "rootfs": "host", "cmd": ["true"]},
        {"name": "gone", "image": "nowhere.test/x:1", "pull_policy": "never"},
    ]});
    let missing = daemon.request("POST", IMPORT, Some(&image));
    assert_eq!((missing.status, missing.code()), (422, json!("image_not_found")), "{}", missing.body_text());
    let ports = json!({"stdiod": 1, "servers": [
        {"name": "new", "rootfs": "host", "cmd": ["true"], "ports": ["28971:80"]},
        {"name": "next", "rootfs": "host", "cmd": ["true"], "ports": ["28971:80"]},
    ]});
    let collide = daemon.request("POST", IMPORT, Some(&ports));
    assert_eq!((collide.status, collide.code()), (409, json!("port_taken")), "{}", collide.body_text());
    assert_eq!(names(&daemon), ["one", "two"], "nothing of any of them");
    let audit = daemon.request("GET", "/api/v1/audit?type=server.register", None).json();
    let made = audit.as_array().unwrap().iter().filter(|line| line["outcome"] == "ok").count();
    assert_eq!(made, 2, "those that were made, once: {audit}");
}

#[test]
fn servers_with_a_url_become_rows_of_the_project_and_a_limited_token_imports_only_what_is_its_own() {
    let daemon = Daemon::start();
    let document = json!({"mcpServers": {
        "far": {"url": "https://far.example/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}},
        "near": {"command": "python3", "args": ["-c", SCRIPT]},
    }});
    let refused = daemon.request("POST", IMPORT, Some(&document));
    assert_eq!(refused.status, 400);
    assert!(refused.body_text().contains("`far`: is a remote server"), "{}", refused.body_text());
    let body = json!({"document": document, "values": {"TOKEN": "hunter2"}});
    let done = daemon.request("POST", &format!("{IMPORT}?project=shop"), Some(&body));
    assert_eq!(done.status, 201, "{}", done.body_text());
    let far = daemon.request("GET", "/api/v1/projects/shop/mcp/servers/far", None).json();
    assert_eq!(
        (&far["transport"], &far["config"]["headers"]["Authorization"]),
        (&json!("http"), &Value::Null),
        "{far}"
    );
    assert_eq!(daemon.request("GET", &format!("{SERVERS}/near/definition"), None).json()["project"], "shop");
    let again = daemon.request("POST", &format!("{IMPORT}?project=shop"), Some(&body)).json();
    assert_eq!(actions(&again), [("far", "unchanged"), ("near", "unchanged")]);

    let made = daemon.cli_json(&["token", "create", "limited", "--scope", "admin:write", "--project", "shop"]);
    let token = made["token"].as_str().expect("a token");
    let mut http = crate::support::Http::connect(daemon.address(), token);
    let one = json!({"mcpServers": {"third": {"command": "python3", "args": ["-c", SCRIPT]}}});
    assert_eq!(http.request("POST", IMPORT, Some(&one)).status, 403, "not in a project");
    assert_eq!(http.request("POST", &format!("{IMPORT}?project=other"), Some(&one)).status, 403);
    assert_eq!(http.request("POST", &format!("{IMPORT}?project=shop"), Some(&one)).status, 201);
}

#[test]
fn a_bundle_is_taken_from_its_archive_and_one_that_means_no_good_is_refused() {
    let daemon = Daemon::start();
    let manifest =
        json!({"manifest_version": "0.3", "name": "hello", "server": {"type": "python", "entry_point": "x.py"}});
    let bundle = archive(&[("manifest.json", manifest.to_string().as_bytes()), ("x.py", SCRIPT.as_bytes())]);
    let send = |bytes: &[u8]| {
        let mut http = daemon.http();
        let head = format!(
            "POST {IMPORT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nContent-Type: application/zip\r\n\
             Content-Length: {}\r\n\r\n",
            daemon.token(),
            bytes.len()
        );
        http.send_raw(&[head.as_bytes(), bytes].concat()).unwrap();
        http.read_reply(false).unwrap()
    };
    let done = send(&bundle);
    assert_eq!(done.status, 201, "{}", done.body_text());
    assert_eq!(done.json()["servers"][0]["definition"]["cmd"], Value::Null);
    assert_eq!(names(&daemon), ["hello"]);
    // Small as it comes, and far more than a definition may hold.
    let zeros = vec![b'0'; 200 << 20];
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let packed = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
    zip.start_file("manifest.json", packed).unwrap();
    zip.write_all(manifest.to_string().as_bytes()).unwrap();
    zip.start_file("bomb.txt", packed).unwrap();
    zip.write_all(&zeros).unwrap();
    let bomb = send(&zip.finish().unwrap().into_inner());
    assert!(bomb.status == 400 && bomb.body_text().contains("bomb.txt"), "{}", bomb.body_text());
    assert_eq!(send(b"PK\x03\x04 and nothing more").status, 400);
    assert_eq!(send(b"{}").status, 400);
    assert_eq!(names(&daemon), ["hello"]);
}

#[test]
fn applied_twice_nothing_is_restarted_and_prune_removes_what_apply_has_made() {
    let daemon = Daemon::start();
    let by_hand = python("by-hand", "crun", SCRIPT);
    assert_eq!(daemon.request("POST", &format!("{SERVERS}?wait=false"), Some(&by_hand)).status, 201);
    let file = daemon.scratch("declared").join("servers.json");
    let declared = |names: &[&str]| {
        let servers: Vec<Value> = names
            .iter()
            .map(|name| {
                let mut server = python(name, "crun", "import sys, time\nprint('x', file=sys.stderr)\ntime.sleep(600)");
                server["ports"] = json!([]);
                server["stdio_bridge"] = json!(false);
                server["environment"] = json!({"KEY": "value"});
                server
            })
            .collect();
        std::fs::write(&file, json!(servers).to_string()).unwrap();
    };
    declared(&["a", "b"]);
    let path = file.to_str().unwrap();
    let told = daemon.cli_json(&["apply", "-f", path]);
    assert_eq!(actions(&told), [("a", "created"), ("b", "created")]);
    let status = |name: &str| daemon.request("GET", &format!("{SERVERS}/{name}"), None).json();
    assert!(eventually(SOON, || ["a", "b"].iter().all(|name| status(name)["status"] == "ready")), "both are ready");
    let pids = || ["a", "b"].map(|name| (status(name)["restart_count"].clone(), status(name)["uptime_ms"].as_u64()));
    let before = pids();
    assert_eq!(actions(&daemon.cli_json(&["apply", "-f", path])), [("a", "unchanged"), ("b", "unchanged")]);
    for (before, after) in before.iter().zip(pids()) {
        assert_eq!(before.0, after.0);
        assert!(after.1 > before.1, "it went on: {before:?} {after:?}");
    }
    declared(&["b"]);
    assert_eq!(actions(&daemon.cli_json(&["apply", "-f", path])), [("b", "unchanged")]);
    assert_eq!(names(&daemon), ["a", "b", "by-hand"]);
    let dry = daemon.cli_json(&["apply", "-f", path, "--prune", "--dry-run"]);
    assert_eq!(actions(&dry), [("b", "unchanged"), ("a", "removed")]);
    assert_eq!(names(&daemon), ["a", "b", "by-hand"]);
    daemon.cli_json(&["apply", "-f", path, "--prune"]);
    assert_eq!(names(&daemon), ["b", "by-hand"]);
}
