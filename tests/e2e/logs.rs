//! What can be read of servers afterwards and as it happens: logs that outlive the daemon, the stream of events, and what
//! the daemon says of itself to systemd and to signals.

use crate::support::{self, BASE, Daemon, Http, RUDE, SOON, eventually, python};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::os::unix::net::UnixDatagram;

/// The next event of a stream: its name and its data. Chunk sizes and comments are passed over.
fn next_event(http: &mut Http) -> (String, Value) {
    let mut name = String::new();
    loop {
        let line = http.line().expect("the stream goes on");
        if let Some(event) = line.strip_prefix("event: ") {
            name = event.to_string();
        } else if let Some(data) = line.strip_prefix("data: ") {
            return (name, serde_json::from_str(data).expect("JSON"));
        }
    }
}

fn open_stream(daemon: &Daemon, path: &str, token: &str) -> Http {
    let mut http = Http::connect(daemon.address(), token);
    let head = format!("GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n");
    http.send_raw(head.as_bytes()).expect("it listens");
    assert!(http.line().expect("a status line").contains(" 200 "));
    while !http.line().expect("a header").is_empty() {}
    http
}

#[test]
fn the_last_words_before_a_crash_outlive_the_daemon() {
    let mut daemon = Daemon::start();
    daemon.register(&python("rude", "crun", RUDE));
    daemon.tool("rude", "crash", json!({"code": 3, "stderr": ["the reason of it all"]}));
    daemon.wait_until("rude", "back", |status| status["status"] == "ready" && status["restart_count"] == 1);
    let has = |daemon: &Daemon, query: &str, text: &str| {
        let logs = daemon.get(&format!("{BASE}/rude/logs{query}"));
        assert_eq!(logs.status, 200, "{logs}");
        String::from_utf8_lossy(&logs.body).contains(text)
    };
    assert!(has(&daemon, "", "the reason of it all"));
    // It is written behind; the files show when it is there.
    let on_disk = || {
        let files = std::fs::read_dir(daemon.data_dir.join("logs")).into_iter().flatten().flatten();
        files
            .filter_map(|file| std::fs::read_to_string(file.path()).ok())
            .any(|text| text.contains("the reason of it all"))
    };
    assert!(eventually(SOON, on_disk));
    daemon.kill();
    daemon.start_again();
    let second_life = daemon.wait_until("rude", "ready", |status| status["status"] == "ready");
    assert!(eventually(SOON, || has(&daemon, "", "the reason of it all")), "{}", daemon.log_tail());
    assert!(has(&daemon, "", "exited with code 3"));
    let since = second_life["created_at"].as_str().expect("a time");
    assert!(has(&daemon, &format!("?since={since}"), "the reason of it all"));
    assert!(!has(&daemon, "?since=2999-01-01T00:00:00Z", "the reason of it all"));
    let refused = daemon.get(&format!("{BASE}/rude/logs?since=yesterday"));
    assert_eq!((refused.status, refused.code()), (400, json!("invalid_request")), "{refused}");
    let cli = daemon.cli(&["logs", "rude", "--since", since]);
    assert!(String::from_utf8_lossy(&cli.stdout).contains("the reason of it all"), "{cli:?}");

    assert_eq!(daemon.request("DELETE", &format!("{BASE}/rude"), None).status, 204);
    let files = || std::fs::read_dir(daemon.data_dir.join("logs")).map_or(0, Iterator::count);
    assert!(eventually(SOON, || files() == 0), "a removed server leaves no log");
}

#[test]
fn every_transition_is_told_to_those_who_may_see_the_server() {
    let daemon = Daemon::start();
    daemon.register(&python("first", "crun", RUDE));
    let token = |name: &str, scope: &str, server: &[&str]| {
        let created = daemon.cli_json(&[&["token", "create", name, "--scope", scope], server].concat());
        created["token"].as_str().expect("it is shown once").to_string()
    };
    let limited = token("limited", "admin:read", &["--server", "second"]);
    let caller = token("caller", "mcp:call", &[]);
    let refused = Http::connect(daemon.address(), &caller).request("GET", "/api/v1/mcp/events", None);
    assert_eq!(refused.status, 403, "{refused}");

    let mut all = open_stream(&daemon, "/api/v1/mcp/events", daemon.token());
    let (kind, state) = next_event(&mut all);
    assert_eq!((kind.as_str(), &state["name"], &state["status"]), ("state", &json!("first"), &json!("ready")));
    let mut some = open_stream(&daemon, "/api/v1/mcp/events", &limited);
    daemon.tool("first", "crash", json!({"code": 3}));
    let mut seen = Vec::new();
    while seen.last().is_none_or(|(_, to): &(Value, Value)| to != "ready") {
        let (kind, event) = next_event(&mut all);
        if kind == "transition" {
            assert_eq!(event["name"], "first");
            seen.push((event["from"].clone(), event["status"].clone()));
        }
    }
    // By way of `restarting`, if its stdout was seen to end before it was. Each begins where the last one ended.
    assert_eq!(seen[0].0, "ready");
    assert!(seen.windows(2).all(|pair| pair[0].1 == pair[1].0) && seen.len() <= 3, "{seen:?}");

    daemon.register(&python("second", "crun", RUDE));
    let (kind, event) = next_event(&mut some);
    assert_eq!((kind.as_str(), &event["name"], &event["why"]), ("presence", &json!("second"), &json!("registered")));
    assert_eq!(next_event(&mut some).1["status"], "starting");
}

#[test]
fn systemd_is_told_of_the_beginning_the_middle_and_the_end() {
    let home = support::short_temporary_directory();
    let path = home.join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    socket.set_read_timeout(Some(SOON)).expect("a timeout");
    let options = Daemon::with("NOTIFY_SOCKET", path.to_str().expect("our own name"));
    let mut daemon = options.variable("WATCHDOG_USEC", "2000000").start();
    let receive = || {
        let mut bytes = [0; 1024];
        let read = socket.recv(&mut bytes).expect("a message in time");
        String::from_utf8_lossy(&bytes[..read]).into_owned()
    };
    assert!(receive().starts_with("READY=1\nSTATUS=0 servers"));
    assert!(receive().starts_with("WATCHDOG=1\nSTATUS="));
    daemon.signal(Signal::SIGHUP);
    let mut reloading = receive();
    while reloading.starts_with("WATCHDOG=1") {
        reloading = receive();
    }
    assert_eq!(reloading, "RELOADING=1\n");
    daemon.signal(Signal::SIGTERM);
    while !receive().starts_with("STOPPING=1") {}
    assert_eq!(daemon.wait_exit(SOON).code(), Some(0));
    std::fs::remove_dir_all(home).expect("our own directory");
}

#[test]
fn sighup_reads_the_configuration_again_and_sigusr1_tells_how_it_is() {
    let home = support::short_temporary_directory();
    let file = home.join("stdiod.toml");
    std::fs::write(&file, "log = \"info\"\n").expect("a file");
    let daemon = Daemon::with("STDIOD_CONFIG", file.to_str().expect("our own name")).start();
    daemon.register(&python("rude", "crun", RUDE));
    daemon.signal(Signal::SIGUSR1);
    daemon.wait_log(&["summary: 1 servers, 1 ready"]);
    daemon.wait_log(&["summary: server=rude status=ready"]);

    std::fs::write(&file, "log = \"info\"\ndefault_provider = \"crun\"\nallow_host_network = true\n").expect("a file");
    daemon.signal(Signal::SIGHUP);
    daemon.wait_log(&["SIGHUP", "allow_host_network", "restart"]);
    let mut definition = python("default", "crun", RUDE);
    definition.as_object_mut().expect("an object").remove("provider");
    assert_eq!(daemon.register(&definition)["provider"], "crun");

    std::fs::write(&file, "log = \"nonsense\"\n").expect("a file");
    daemon.signal(Signal::SIGHUP);
    daemon.wait_log(&["SIGHUP", "stays as it was"]);
    std::fs::write(&file, "log = \"error\"\n").expect("a file");
    daemon.signal(Signal::SIGHUP);
    std::fs::remove_dir_all(home).expect("our own directory");
}
