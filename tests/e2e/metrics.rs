//! What is counted, as Prometheus reads it, and the samples of the last minutes: of a real daemon, judged by `promtool`.

use crate::support::{BASE, Daemon, Http, Options, RUDE, SOON, eventually, python};
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

fn scrape(daemon: &Daemon) -> String {
    let reply = daemon.get("/metrics");
    assert_eq!(reply.status, 200, "{reply}");
    assert!(reply.header("content-type").expect("a type").starts_with("text/plain; version=0.0.4"));
    reply.body_text().to_string()
}

/// The value of a series, by everything that stands before it.
fn value(text: &str, series: &str) -> Option<f64> {
    let of = |line: &str| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok();
    text.lines().find_map(of)
}

fn judge(text: &str) {
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool: scripts/setup --tests installs it");
    promtool.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("it reads");
    let output = promtool.wait_with_output().expect("it ends");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.trim().is_empty(), "{said}\n{text}");
}

#[test]
fn calls_crashes_and_use_are_counted_and_promtool_finds_no_fault_with_it() {
    let daemon = Daemon::start();
    daemon.register(&python("rude", "crun", RUDE));
    let before = scrape(&daemon);
    judge(&before);
    let ok = r#"stdiod_calls_total{server="rude",method="tools/call",outcome="ok"}"#;
    assert_eq!(value(&before, ok), Some(0.0), "there before its first call");

    for _ in 0..3 {
        daemon.text("rude", "echo", json!({"text": "x"}));
    }
    let refused = daemon.call("rude", "no/such", &json!({}));
    assert_eq!(refused.status, 404, "{refused}");
    daemon.tool("rude", "crash", json!({"code": 3}));
    daemon.wait_until("rude", "back", |status| status["status"] == "ready" && status["restart_count"] == 1);

    let after = scrape(&daemon);
    judge(&after);
    for (series, expected) in [
        (ok, 3.0),
        (r#"stdiod_calls_total{server="rude",method="other",outcome="error"}"#, 1.0),
        (r#"stdiod_calls_total{server="rude",method="tools/call",outcome="crashed"}"#, 1.0),
        (r#"stdiod_call_duration_seconds_count{server="rude"}"#, 5.0),
        (r#"stdiod_server_crashes_total{server="rude"}"#, 1.0),
        (r#"stdiod_server_restarts_total{server="rude"}"#, 1.0),
        (r#"stdiod_server_status{server="rude",status="ready"}"#, 1.0),
        (r#"stdiod_server_status{server="rude",status="failed"}"#, 0.0),
        (r#"stdiod_server_info{server="rude",provider="crun"}"#, 1.0),
        ("stdiod_store_up", 1.0),
    ] {
        assert_eq!(value(&after, series), Some(expected), "{series}\n{after}");
    }
    assert!(value(&after, "stdiod_received_bytes_total") > value(&before, "stdiod_received_bytes_total"));
    assert!(value(&after, "stdiod_loop_turn_seconds_count") > value(&before, "stdiod_loop_turn_seconds_count"));
}

#[test]
fn names_that_clients_make_up_add_no_series_and_a_limited_token_sees_its_own_servers() {
    let daemon = Daemon::start();
    daemon.register(&python("rude", "crun", RUDE));
    daemon.register(&python("other", "crun", RUDE));
    daemon.call("rude", "made-up/0", &json!({}));
    // What an instance uses is told from its first measurement on, whoever calls it.
    let is_counted = |line: &&str| !line.starts_with('#') && !line.contains("_cpu_") && !line.contains("_memory_");
    let series = |text: &str| text.lines().filter(is_counted).count();
    let before = series(&scrape(&daemon));
    for n in 0..10_000 {
        daemon.call("rude", &format!("made-up/{n}"), &json!({}));
    }
    let after = scrape(&daemon);
    assert_eq!(series(&after), before);
    assert_eq!(value(&after, r#"stdiod_calls_total{server="rude",method="other",outcome="error"}"#), Some(10_001.0));

    let made = daemon.cli_json(&["token", "create", "few", "--scope", "admin:read", "--server", "other"]);
    let token = made["token"].as_str().expect("a token");
    let reply = Http::connect(daemon.address(), token).request("GET", "/metrics", None);
    let text = reply.body_text();
    assert!(reply.status == 200 && text.contains(r#"{server="other"}"#), "{reply}");
    assert!(!text.contains("rude") && !text.contains("stdiod_connections"), "{text}");
    let stranger = Http::connect(daemon.address(), "nobody").request("GET", "/metrics", None);
    assert_eq!(stranger.status, 401, "{stranger}");
}

#[test]
fn the_listener_for_metrics_asks_for_no_token_and_tells_nothing_else() {
    let address = free_address();
    let _daemon = Options::default().variable("STDIOD_METRICS_LISTEN", address.as_str()).start();
    let mut http = Http::connect(&address, "");
    let get = |http: &mut Http, path: &str| {
        http.send_raw(format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes()).expect("it listens");
        http.read_reply(false).expect("an answer")
    };
    let metrics = get(&mut http, "/metrics");
    assert!(metrics.status == 200 && metrics.body_text().contains("stdiod_build_info"), "{metrics}");
    assert_eq!(get(&mut http, BASE).status, 401);
}

/// Every word of a text that is a name of ours, without what a histogram adds to it.
fn names(text: &str) -> std::collections::BTreeSet<String> {
    let words =
        text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).filter(|word| word.starts_with("stdiod_"));
    let plain = |word: &str| {
        let histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| word.strip_suffix(end));
        histogram.unwrap_or(word).to_string()
    };
    words.map(plain).collect()
}

#[test]
fn alert_rules_pass_their_tests_and_they_and_the_dashboard_name_what_is_told() {
    let bundles = Path::new(env!("CARGO_MANIFEST_DIR")).join("bundles");
    let rules = bundles.join("prometheus");
    for words in [["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]] {
        let output = Command::new("promtool").current_dir(&rules).args(words).output().expect("promtool runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {said}{}", String::from_utf8_lossy(&output.stdout));
    }
    let daemon = Daemon::start();
    daemon.register(&python("rude", "crun", RUDE));
    let is_measured = |text: &str| text.contains("stdiod_server_memory_bytes{") && text.contains("_cpu_seconds_total{");
    assert!(eventually(SOON, || is_measured(&scrape(&daemon))));
    let told = names(&scrape(&daemon));
    for file in ["prometheus/alerts.yml", "prometheus/alerts_test.yml", "grafana/stdiod.json"] {
        let text = std::fs::read_to_string(bundles.join(file)).expect("it is there");
        let unknown: Vec<String> = names(&text).difference(&told).cloned().collect();
        assert!(unknown.is_empty(), "{file} names what nobody tells: {unknown:?}");
    }
    let board: Value = serde_json::from_slice(&std::fs::read(bundles.join("grafana/stdiod.json")).unwrap()).unwrap();
    assert!(board["panels"].as_array().is_some_and(|panels| panels.len() > 10));
}

/// Ends with the test.
struct Prometheus(std::process::Child);

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_address() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").to_string()
}

#[test]
fn a_real_prometheus_scrapes_without_a_complaint() {
    let (metrics, web) = (free_address(), free_address());
    let daemon = Options::default().variable("STDIOD_METRICS_LISTEN", metrics.as_str()).start();
    daemon.register(&python("rude", "crun", RUDE));
    let (config, log) = (daemon.scratch("prometheus").join("config.yml"), daemon.scratch("prometheus").join("log"));
    let text = format!(
        "global: {{scrape_interval: 1s}}\nscrape_configs:\n  - job_name: stdiod\n    static_configs: [{{targets: [\"{metrics}\"]}}]\n"
    );
    std::fs::write(&config, text).expect("a file");
    let _prometheus = Prometheus(
        Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", daemon.scratch("prometheus").join("tsdb").display()))
            .arg(format!("--web.listen-address={web}"))
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).expect("a file"))
            .spawn()
            .expect("prometheus: scripts/setup --tests installs it"),
    );
    let ask = |path: &str| -> Option<Value> {
        std::net::TcpStream::connect(&web).ok()?;
        let mut http = Http::connect(&web, "");
        http.send_raw(format!("GET {path} HTTP/1.1\r\nHost: {web}\r\n\r\n").as_bytes()).ok()?;
        let reply = http.read_reply(false).ok()?;
        serde_json::from_str(reply.body_text().as_ref()).ok()
    };
    let scraped = || {
        let query = ask("/api/v1/query?query=count_over_time(stdiod_store_up%5B1m%5D)")?;
        query["data"]["result"][0]["value"][1].as_str()?.parse::<u64>().ok()
    };
    assert!(eventually(SOON * 6, || scraped().is_some_and(|times| times >= 5)), "{:?}", std::fs::read_to_string(&log));
    let target = ask("/api/v1/targets").expect("it answers")["data"]["activeTargets"][0].clone();
    assert_eq!((&target["health"], &target["lastError"]), (&json!("up"), &json!("")), "{target}");
    let said = std::fs::read_to_string(&log).expect("its log");
    let complaints: Vec<&str> =
        said.lines().filter(|line| line.contains("level=warn") || line.contains("level=error")).collect();
    assert!(complaints.is_empty(), "{complaints:?}");
}

#[test]
fn samples_show_what_a_server_did_of_late() {
    let daemon = Daemon::start();
    daemon.register(&python("rude", "crun", RUDE));
    daemon.text("rude", "echo", json!({"text": "x"}));
    let samples = || daemon.get(&format!("{BASE}/rude/samples")).json()["samples"].clone();
    let counted = |samples: &Value| -> u64 {
        samples.as_array().expect("a list").iter().filter_map(|sample| sample["calls"].as_u64()).sum()
    };
    assert!(eventually(SOON * 3, || counted(&samples()) == 1), "{}", samples());
    let last = samples()[0].clone();
    assert!(last["memory_bytes"].as_u64().expect("bytes") > 0 && last["at"].is_string(), "{last}");
}
