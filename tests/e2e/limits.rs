//! Limits that bite, on both providers: memory, cpu, processes, disk, open files; and volumes, which outlive all of it.

use crate::support::registry::build_images;
use crate::support::{self, BASE, Daemon, inside, on_both_providers};
use serde_json::{Value, json};
use std::time::Instant;

on_both_providers!(
    a_memory_hog_is_killed_for_it_and_comes_back,
    a_busy_loop_gets_its_share_and_no_more,
    a_fork_bomb_stays_in_its_box,
    a_full_disk_is_an_error_inside_and_nothing_outside,
    a_full_layer_of_an_image_is_an_error_inside_and_nothing_outside,
    a_volume_outlives_crash_restart_and_removal,
);

fn a_memory_hog_is_killed_for_it_and_comes_back(provider: &str) {
    let daemon = Daemon::start();
    let mut hog = inside("hog", provider);
    hog["resource_limits"] = json!({"memory": "160M"});
    daemon.register(&hog);
    let code = "held = []\nwhile True: held.append(bytearray(os.urandom(1 << 16)) * 64)";
    let reply = daemon.tool("hog", "run", json!({"code": code}));
    assert_eq!((reply.status, reply.code()), (502, json!("server_crashed")), "{reply}");
    let status = daemon.wait_until("hog", "back", |s| s["status"] == "ready" && s["restart_count"] == 1);
    assert_eq!(status["last_crash"]["oom"], true, "{status:#}");
    assert_eq!(daemon.inside("hog", "result = 1"), json!(1));
    assert_eq!(daemon.status("hog")["resource_usage"]["memory_limit_bytes"], 160 << 20);
}

fn a_busy_loop_gets_its_share_and_no_more(provider: &str) {
    let daemon = Daemon::start();
    let mut busy = inside("busy", provider);
    busy["resource_limits"] = json!({"cpu": "0.5"});
    daemon.register(&busy);
    let spent_ms = || daemon.status("busy")["resource_usage"]["cpu_ms_total"].as_u64().expect("a number");
    let (spent, began) = (spent_ms(), Instant::now());
    // Two processes that want a core each, for three seconds.
    let spin = "end = time.monotonic() + 3
child = os.fork()
while time.monotonic() < end: pass
if child == 0: os._exit(0)
os.waitpid(child, 0)
result = 'spun'";
    assert_eq!(daemon.inside("busy", spin), json!("spun"));
    let share = (spent_ms() - spent) as f64 / began.elapsed().as_millis() as f64;
    assert!((0.02..0.6).contains(&share), "half a core was allowed, {share:.2} were used");
}

fn a_fork_bomb_stays_in_its_box(provider: &str) {
    let daemon = Daemon::start();
    let mut bomb = inside("bomb", provider);
    bomb["resource_limits"] = json!({"pids": 40});
    daemon.register(&bomb);
    let code = "made = 0
try:
    while made < 2000:
        if os.fork() == 0: time.sleep(3600)
        made += 1
except OSError as error:
    result = [made, errno.errorcode[error.errno]]
else:
    result = [made, None]";
    // A native fork is refused with EAGAIN. gVisor's own threads count too: its sandbox dies of it, and is replaced.
    let reply = daemon.tool("bomb", "run", json!({"code": code}));
    match reply.status {
        200 => {
            let told: Value = serde_json::from_str(&reply.text()).expect("JSON");
            assert_eq!(told[1], "EAGAIN", "{told}");
            assert!(told[0].as_u64().is_some_and(|made| made <= 40), "{told}");
        }
        _ => assert_eq!(reply.code(), "server_crashed", "{reply}"),
    }
    let pids = daemon.wait_ready("bomb")["resource_usage"]["pids"].as_u64().expect("a number");
    assert!(pids <= 40 + 512, "{pids}");
    let restarted = daemon.request("POST", &format!("{BASE}/bomb/restart"), None);
    assert_eq!(restarted.json()["status"], "ready", "{restarted}");
    assert_eq!(daemon.inside("bomb", "result = 'well'"), json!("well"));
}

fn a_full_disk_is_an_error_inside_and_nothing_outside(provider: &str) {
    let daemon = Daemon::start();
    let mut full = inside("full", provider);
    full["resource_limits"] = json!({"disk": "16M"});
    daemon.register(&full);
    let fill = "written = 0
try:
    with open('/tmp/fill', 'wb', buffering=0) as file:
        while written < 1 << 30: written += file.write(b'x' * 65536)
except OSError as error:
    result = [written, errno.errorcode[error.errno]]";
    let told = daemon.inside("full", fill);
    assert_eq!(told[1], "ENOSPC", "{told}");
    assert!(told[0].as_u64().is_some_and(|bytes| (8 << 20..=16 << 20).contains(&bytes)), "{told}");
    let used = daemon.status("full")["resource_usage"]["disk_bytes"].as_u64().expect("a number");
    // The bundle has a few files more than the disk.
    assert!(used <= 17 << 20, "{used} on the host");

    let files = "held = []
try:
    while len(held) < 100000: held.append(open('/dev/null'))
except OSError as error:
    result = [len(held), errno.errorcode[error.errno]]
held.clear()";
    let told = daemon.inside("full", files);
    assert_eq!(told[1], "EMFILE", "{told}");
    assert!(told[0].as_u64().is_some_and(|open| open <= 4096), "{told}");

    // Only volumes persist.
    let restarted = daemon.request("POST", &format!("{BASE}/full/restart"), None);
    assert_eq!(restarted.json()["status"], "ready", "{restarted}");
    assert_eq!(daemon.inside("full", "result = os.listdir('/tmp')"), json!([]));
}

/// As above, in the layer over an image's own, where a server writes that believes it has a machine to itself.
fn a_full_layer_of_an_image_is_an_error_inside_and_nothing_outside(provider: &str) {
    let daemon = Daemon::start();
    let layout = build_images(&daemon.scratch("image"), 1024);
    let imported = daemon.cli(&["image", "import", &format!("{}:v1", layout.display()), "--name", "who:1"]);
    assert!(imported.status.success(), "{imported:?}");
    let bytes_on_host = || {
        let stat = nix::sys::statvfs::statvfs(&daemon.data_dir).expect("a file system");
        stat.blocks_free() * stat.fragment_size()
    };
    // Root of the image, because only root may write to its root.
    daemon.register(&json!({
        "name": "full", "provider": provider, "image": "who:1", "user": "0:0", "resource_limits": {"disk": "16M"},
    }));
    let free = bytes_on_host();
    let told = daemon.text("full", "fill", json!({}));
    let (written, error) = told.split_once(' ').expect("two words");
    assert_eq!(error, "No space left on device", "{told}");
    let written: u64 = written.parse().expect("a number");
    assert!((8 << 20..=16 << 20).contains(&written), "{told}");
    let used = daemon.status("full")["resource_usage"]["disk_bytes"].as_u64().expect("a number");
    assert!(used <= 17 << 20, "{used} on the host");
    // Others write here too; 200 MiB would be what it asked for.
    assert!(free.saturating_sub(bytes_on_host()) < 200 << 20, "the host's disk is not what it fills");
    let layers = daemon.data_dir.join("images/layers");
    assert!(support::find_files(&layers, "fill").is_empty(), "the image stays as it was");

    let restarted = daemon.request("POST", &format!("{BASE}/full/restart"), None);
    assert_eq!(restarted.json()["status"], "ready", "{restarted}");
    let again = daemon.text("full", "fill", json!({}));
    assert!(again.contains("No space left") && !again.starts_with("0 "), "a new layer has room again: {again}");
}

fn a_volume_outlives_crash_restart_and_removal(provider: &str) {
    let daemon = Daemon::start();
    let mut keeper = inside("keeper", provider);
    keeper["volumes"] = json!(["/data", {"path": "/reference", "read_only": true}]);
    daemon.register(&keeper);
    let read = || daemon.inside("keeper", "result = open('/data/kept').read()");
    assert_eq!(daemon.inside("keeper", "open('/data/kept', 'w').write('kept'); result = 1"), json!(1));
    assert_eq!(daemon.inside("keeper", "open('/reference/x', 'w')"), json!({"error": "EROFS"}));
    let crashed = daemon.tool("keeper", "run", json!({"code": "os._exit(3)"}));
    assert_eq!(crashed.code(), "server_crashed", "{crashed}");
    daemon.wait_until("keeper", "back", |s| s["status"] == "ready" && s["restart_count"] == 1);
    assert_eq!(read(), json!("kept"));
    daemon.request("POST", &format!("{BASE}/keeper/restart"), None);
    assert_eq!(read(), json!("kept"));

    let in_use = daemon.cli(&["volume", "rm", "keeper", "/data"]);
    assert!(!in_use.status.success(), "{in_use:?}");
    assert!(String::from_utf8_lossy(&in_use.stderr).contains("keeper"), "{in_use:?}");
    assert_eq!(daemon.request("DELETE", &format!("{BASE}/keeper"), None).status, 204);
    let listed = daemon.cli_json(&["volume", "ls"]);
    let data = listed.as_array().expect("a list").iter().find(|v| v["path"] == "/data").expect("it stays").clone();
    assert_eq!((&data["server"], &data["in_use"]), (&json!("keeper"), &json!(false)), "{data}");
    assert!(data["bytes"].as_u64().is_some_and(|bytes| bytes >= 4), "{data}");
    daemon.register(&keeper);
    assert_eq!(read(), json!("kept"));

    assert_eq!(daemon.request("DELETE", &format!("{BASE}/keeper"), None).status, 204);
    let removed = daemon.cli(&["volume", "rm", "keeper", "/data"]);
    assert!(removed.status.success(), "{removed:?}");
    daemon.register(&keeper);
    assert_eq!(daemon.inside("keeper", "result = os.listdir('/data')"), json!([]));
}
