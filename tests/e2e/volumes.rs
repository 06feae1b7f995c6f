//! Volumes that end where they should, on both providers: full is an error inside and nothing outside, they outlive their
//! instances and the daemon, several instances have the same ones at once, and none of it leaves a device or a mount.

use crate::support::mcp::McpClient;
use crate::support::world::loops_with;
use crate::support::{BASE, Daemon, Options, SOON, eventually, inside, on_both_providers};
use serde_json::{Value, json};
use stdiod::sandbox::container::plan::free_bytes;

on_both_providers!(
    a_full_volume_is_an_error_inside_and_nothing_outside_and_may_grow,
    instances_that_run_at_once_have_the_same_volumes,
    a_kill_of_the_daemon_takes_nothing_from_volumes_and_leaves_no_device,
    directories_of_earlier_versions_become_volumes_with_a_bound,
    a_volume_that_nobody_can_walk_keeps_no_other_from_being_listed,
    a_server_that_fills_the_disk_is_ended_before_the_database_has_no_room,
);

const MIB: u64 = 1 << 20;

/// Bytes written until it fails, and the error.
fn fill(daemon: &Daemon, server: &str, path: &str) -> (u64, Value) {
    let code = format!(
        "written = 0
try:
    with open('{path}', 'ab', buffering=0) as file:
        while written < 1 << 30: written += file.write(b'x' * 65536)
except OSError as error:
    result = [written, errno.errorcode[error.errno]]
else:
    result = [written, None]"
    );
    let told = daemon.inside(server, &code);
    (told[0].as_u64().expect("a number"), told[1].clone())
}

/// Without a word of its own a volume is as large as the disk.
fn with_volume(name: &str, provider: &str, size: &str) -> Value {
    let mut definition = inside(name, provider);
    definition["volumes"] = json!(["/data"]);
    definition["resource_limits"] = json!({ "disk": size });
    definition
}

fn a_full_volume_is_an_error_inside_and_nothing_outside_and_may_grow(provider: &str) {
    let daemon = Daemon::start();
    let status = daemon.register(&with_volume("full", provider, "16M"));
    let (written, error) = fill(&daemon, "full", "/data/fill");
    assert_eq!(error, "ENOSPC");
    assert!((8 * MIB..=16 * MIB).contains(&written), "{written}");
    assert_eq!(status["resource_limits"]["volume"], "16M", "{status:#}");
    assert_eq!(daemon.inside("full", "open('/tmp/x', 'w').write('x'); result = 1"), json!(1), "its disk is another");
    let restarted = daemon.request("POST", &format!("{BASE}/full/restart"), None);
    assert_eq!(restarted.json()["status"], "ready", "{restarted}");
    assert_eq!(daemon.inside("full", "result = os.path.getsize('/data/fill')"), json!(written));

    let patch =
        |limits: Value| daemon.request("PATCH", &format!("{BASE}/full"), Some(&json!({ "resource_limits": limits })));
    let smaller = patch(json!({"volume": "8M"}));
    assert_eq!((smaller.status, &smaller.json()["error"]["data"]["field"]), (400, &json!("resource_limits.volume")));
    assert!(smaller.json()["error"]["message"].as_str().is_some_and(|m| m.contains("16M")), "{smaller}");
    let grown = patch(json!({"volume": "64M"}));
    assert_eq!((grown.status, &grown.json()["resource_limits"]["volume"]), (200, &json!("64M")), "{grown}");
    daemon.wait_ready("full");
    let (more, error) = fill(&daemon, "full", "/data/fill");
    assert_eq!(error, "ENOSPC");
    assert!((24 * MIB..=56 * MIB).contains(&more), "{more} more\n{}", daemon.log_tail());
    let used = daemon.status("full")["resource_usage"]["disk_bytes"].as_u64().expect("a number");
    assert!(used <= 70 * MIB, "{used} on the host");
    assert_eq!(daemon.inside("full", "os.remove('/data/fill'); result = 1"), json!(1));
}

fn instances_that_run_at_once_have_the_same_volumes(provider: &str) {
    let daemon = Daemon::start();
    let mut definition = with_volume("private", provider, "32M");
    definition["shared"] = json!(false);
    daemon.register(&definition);
    let clients: Vec<McpClient> = (0..3).map(|_| McpClient::connect(&daemon, "/mcp/private", json!({}))).collect();
    let run = |client: &McpClient, code: &str| -> Value {
        let answer = client.tool("run", json!({ "code": code }));
        let text = answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_string();
        serde_json::from_str(&text).expect("JSON")
    };
    for (number, client) in clients.iter().enumerate() {
        let write = format!("open('/data/{number}', 'w').write('{number}' * 100000); result = os.getpid()");
        assert!(run(client, &write).is_number());
    }
    for client in &clients {
        assert_eq!(run(client, "result = sorted(f for f in os.listdir('/data'))"), json!(["0", "1", "2"]));
        let same = "result = [open(f'/data/{n}').read() == str(n) * 100000 for n in range(3)]";
        assert_eq!(run(client, same), json!([true, true, true]));
    }
    let devices = loops_with(&format!("{}/volumes/private/", daemon.data_dir.display()));
    assert_eq!(devices.len(), 1, "one device, whoever has it: {devices:?}");
    // It is seen from the host, too, while it is in use.
    let listed = daemon.cli_json(&["volume", "ls"]);
    assert!(listed[0]["bytes"].as_u64().is_some_and(|bytes| bytes >= 300_000), "{listed}");
    for client in &clients {
        client.delete();
    }
}

fn a_kill_of_the_daemon_takes_nothing_from_volumes_and_leaves_no_device(provider: &str) {
    let mut daemon = Daemon::start();
    daemon.register(&with_volume("keeper", provider, "32M"));
    let write = "open('/data/kept', 'w').write('kept' * 1000000); result = 1";
    assert_eq!(daemon.inside("keeper", write), json!(1));
    daemon.kill();
    daemon.start_again();
    daemon.wait_ready("keeper");
    assert_eq!(daemon.inside("keeper", "result = open('/data/kept').read() == 'kept' * 1000000"), json!(true));
    let volumes = format!("{}/volumes/", daemon.data_dir.display());
    assert_eq!(loops_with(&volumes).len(), 1);
    assert_eq!(daemon.request("POST", &format!("{BASE}/keeper/stop"), None).status, 200);
    assert!(eventually(SOON, || loops_with(&volumes).is_empty()), "{:?}", loops_with(&volumes));
    // What is kept comes back with the name, and goes when that is asked for.
    assert_eq!(daemon.request("DELETE", &format!("{BASE}/keeper"), None).status, 204);
    daemon.register(&with_volume("keeper", provider, "16M"));
    assert_eq!(daemon.inside("keeper", "result = os.path.getsize('/data/kept')"), json!(4_000_000));
    assert_eq!(daemon.request("DELETE", &format!("{BASE}/keeper?volumes=true"), None).status, 204);
    assert!(!daemon.data_dir.join("volumes/keeper").exists());
    assert_eq!(daemon.cli_json(&["volume", "ls"]), json!([]));
}

fn directories_of_earlier_versions_become_volumes_with_a_bound(provider: &str) {
    let daemon = Daemon::start();
    let plain = |server: &str| {
        let data = daemon.data_dir.join("volumes").join(server).join("data");
        std::fs::create_dir_all(data.join("deep/er")).expect("a directory");
        std::fs::write(data.join("deep/er/file"), "kept").expect("a file");
        std::fs::hard_link(data.join("deep/er/file"), data.join("same")).expect("a link");
        std::os::unix::fs::symlink("/etc/shadow", data.join("link")).expect("a link");
        std::os::unix::fs::chown(data.join("deep"), Some(65534), Some(65534)).expect("our own");
        data
    };
    let small = plain("small");
    daemon.register(&with_volume("small", provider, "16M"));
    let look = "result = [open('/data/deep/er/file').read(), os.stat('/data/same').st_nlink, os.readlink('/data/link'), \
                os.stat('/data/deep').st_uid]";
    assert_eq!(daemon.inside("small", look), json!(["kept", 2, "/etc/shadow", 65534]));
    assert!(!small.exists() && daemon.data_dir.join("volumes/small/.image").exists(), "it is in the image now");
    assert_eq!(fill(&daemon, "small", "/data/fill").1, "ENOSPC");
    daemon.request("POST", &format!("{BASE}/small/restart"), None);
    assert_eq!(daemon.inside("small", look), json!(["kept", 2, "/etc/shadow", 65534]));

    // One that does not fit stays what it was, and the server's log says so.
    let large = plain("large");
    std::fs::write(large.join("much"), vec![7; 20 << 20]).expect("a file");
    daemon.register(&with_volume("large", provider, "16M"));
    assert_eq!(daemon.inside("large", "result = os.path.getsize('/data/much')"), json!(20 << 20));
    assert_eq!(daemon.inside("large", look), json!(["kept", 2, "/etc/shadow", 65534]));
    assert!(large.join("much").exists());
    let log = daemon.get(&format!("{BASE}/large/logs?tail=100"));
    assert!(log.to_string().contains("without a bound"), "{log}");
}

fn a_volume_that_nobody_can_walk_keeps_no_other_from_being_listed(provider: &str) {
    let daemon = Daemon::start();
    for name in ["deep", "flat"] {
        daemon.register(&with_volume(name, provider, "512M"));
    }
    assert_eq!(daemon.inside("flat", "open('/data/x', 'w').write('x' * 100000); result = 1"), json!(1));
    let dig = "os.chdir('/data'); depth = 0
try:
    while depth < 20000: os.mkdir('d'); os.chdir('d'); depth += 1
except OSError: pass
result = depth";
    let reply = daemon.tool_within("deep", "run", json!({ "code": dig }), 300_000);
    let depth: u64 = reply.text().parse().expect("a number");
    // gVisor has every directory open that another one is in, and comes to an end. No path is as long as either.
    assert!(if provider == "crun" { depth == 20_000 } else { depth > 2_100 }, "{reply}");
    let listed = daemon.cli_json(&["volume", "ls"]);
    let of = |name: &str| listed.as_array().expect("a list").iter().find(|v| v["server"] == name).cloned();
    let (deep, flat) = (of("deep").expect("its row"), of("flat").expect("its row"));
    assert!(flat["bytes"].as_u64().is_some_and(|bytes| bytes >= 100_000), "{flat}");
    assert!(deep["bytes"].as_u64().is_some_and(|bytes| bytes >= depth * 1024), "{deep}");
    // One that is broken has its reason in its row.
    assert_eq!(daemon.request("DELETE", &format!("{BASE}/deep"), None).status, 204);
    let devices = || loops_with(&format!("{}/volumes/deep/", daemon.data_dir.display()));
    assert!(eventually(SOON, || devices().is_empty()));
    std::fs::write(daemon.data_dir.join("volumes/deep/.image"), "no file system").expect("a file");
    let listed = daemon.cli_json(&["volume", "ls"]);
    assert_eq!(listed.as_array().map(Vec::len), Some(2), "{listed}");
    assert!(listed[0]["error"].is_string() && listed[1]["error"].is_null(), "{listed}");
    let table = daemon.cli(&["volume", "ls"]);
    assert!(table.status.success() && String::from_utf8_lossy(&table.stdout).contains("flat"), "{table:?}");
}

/// The disk of the data directory is small, and the volume larger than it.
fn a_server_that_fills_the_disk_is_ended_before_the_database_has_no_room(provider: &str) {
    let daemon = Options::default().on_a_disk_of(2600 * MIB).start();
    let mut greedy = with_volume("greedy", provider, "8G");
    greedy["resource_limits"]["memory"] = json!("256M");
    daemon.register(&greedy);
    daemon.register(&inside("modest", provider));
    let fill = "with open('/data/fill', 'wb', buffering=0) as file:\n    while True: file.write(b'x' * 65536)";
    daemon.tool_within("greedy", "run", json!({ "code": fill }), 120_000);
    daemon.wait_log(&["is killed", "of the disk are left"]);
    let free = || free_bytes(&daemon.data_dir).expect("a disk");
    let is_refused = |status: &Value| status["last_error"].as_str().is_some_and(|why| why.contains("disk_reserve"));
    let status = daemon.wait_until("greedy", "refused", is_refused);
    assert_ne!(status["status"], "ready", "{status:#}");
    assert!(free() > 0, "the database has room");
    assert_eq!(daemon.inside("modest", "result = 'well'"), json!("well"), "who writes nothing is left alone");
    assert_eq!(daemon.status("modest")["restart_count"], 0);
    // What an operator does now.
    let token = daemon.cli_json(&["token", "create", "temporary", "--scope", "admin:read"]);
    assert!(token["token"].is_string(), "{token}");
    assert!(daemon.cli(&["token", "revoke", "temporary"]).status.success());
    assert_eq!(daemon.request("POST", &format!("{BASE}/greedy/stop"), None).status, 200);
    assert_eq!(daemon.request("DELETE", &format!("{BASE}/greedy?volumes=true"), None).status, 204);
    assert!(eventually(SOON, || free() > 1024 * MIB), "{} are free", free());
    daemon.register(&with_volume("greedy", provider, "16M"));
}
