//! Servers that nobody uses, by the clock: they go to rest, get no CPU there, and whoever comes in that very moment is served.
//! What counts here are milliseconds, so it has the machine to itself; the order of things is chosen in `core_mcp/idle.rs`.

mod support;

use serde_json::{Value, json};
use std::time::{Duration, Instant};
use support::mcp::McpClient;
use support::{BASE, Daemon, SOON, eventually, inside, on_both_providers};

on_both_providers!(
    one_that_was_ended_comes_back_for_fifty_callers_and_tells_its_lists_meanwhile,
    whoever_comes_in_the_moment_of_falling_asleep_is_served_once,
    the_next_daemon_knows_what_is_offered_and_starts_it_with_its_first_use,
    one_that_dozes_is_the_same_afterwards_and_gets_no_cpu_meanwhile,
    those_at_rest_stay_so_over_an_upgrade_and_wake_by_the_program_after,
);

/// Counts its calls in what outlives it, and in what does not.
const COUNT: &str = "import builtins; builtins.n = getattr(builtins, 'n', 0) + 1; f = open('/data/log', 'a'); f.write('x'); \
                     f.close(); result = [builtins.n, os.path.getsize('/data/log')]";

fn resting(provider: &str, idle: Value) -> Value {
    let mut definition = inside("quiet", provider);
    (definition["idle"], definition["volumes"]) = (idle, json!(["/data"]));
    definition
}

fn wait_asleep(daemon: &Daemon) -> Value {
    daemon.wait_until("quiet", "asleep", |status| status["status"] == "asleep")
}

fn metric(daemon: &Daemon, name: &str) -> f64 {
    let text = daemon.get("/metrics").body_text();
    let line = text.lines().find(|line| line.starts_with(&format!("{name}{{server=\"quiet\"")));
    let line = line.unwrap_or_else(|| panic!("no {name} in {text}"));
    line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
}

fn tools(daemon: &Daemon) -> Value {
    let client = McpClient::connect(daemon, "/mcp/quiet", json!({}));
    let list = client.ask("tools/list", json!({}));
    client.delete();
    list["result"]["tools"].clone()
}

fn one_that_was_ended_comes_back_for_fifty_callers_and_tells_its_lists_meanwhile(provider: &str) {
    let daemon = Daemon::start();
    daemon.register(&resting(provider, json!({"after_ms": 500, "mode": "stop"})));
    let before = tools(&daemon);
    let asleep = wait_asleep(&daemon);
    assert_eq!((&asleep["container_status"], &asleep["asleep"]["mode"]), (&json!("stopped"), &json!("stop")));
    assert!(asleep["asleep"]["since"].is_string() && asleep["last_crash"].is_null(), "{asleep:#}");
    assert_eq!(tools(&daemon), before, "byte for byte what the server said");
    assert_eq!(daemon.call("quiet", "tools/list", &json!({})).json()["result"]["tools"], before);
    assert_eq!(daemon.status("quiet")["status"], "asleep", "none of that wakes it");
    let mut answers: Vec<Value> = std::thread::scope(|scope| {
        let calls: Vec<_> = (0..50).map(|_| scope.spawn(|| daemon.inside("quiet", COUNT))).collect();
        calls.into_iter().map(|call| call.join().expect("an answer")).collect()
    });
    answers.sort_by_key(|answer| answer[0].as_u64());
    let wanted: Vec<Value> = (1..=50).map(|n| json!([n, n])).collect();
    assert_eq!(answers, wanted, "one instance, and each call once");
    let status = daemon.status("quiet");
    assert!(status["last_wake_ms"].as_u64().is_some_and(|ms| ms > 0), "{status:#}");
    assert_eq!(status["restart_count"], 0, "a wake is no restart");
    assert_eq!(metric(&daemon, "stdiod_server_wakes_total"), 1.0);
    assert!(metric(&daemon, "stdiod_server_wake_seconds_total") > 0.0);
}

/// 500 by hand: STDIOD_TRIES=500 cargo test --release --test e2e_idle moment
fn whoever_comes_in_the_moment_of_falling_asleep_is_served_once(provider: &str) {
    let tries: u64 = std::env::var("STDIOD_TRIES").map_or(12, |n| n.parse().expect("STDIOD_TRIES is a number"));
    for mode in ["stop", "doze"] {
        let daemon = Daemon::start();
        daemon.register(&resting(provider, json!({"after_ms": 100, "mode": mode})));
        let mut wakes = 0;
        for n in 1..=tries {
            assert_eq!(daemon.inside("quiet", COUNT)[1], n, "{mode}: each call is done once");
            // Around the moment: some milliseconds before it, and after.
            std::thread::sleep(Duration::from_millis(94 + n * 7 % 14));
            wakes += 1;
        }
        assert_eq!(daemon.inside("quiet", COUNT)[1], tries + 1);
        let counted = metric(&daemon, "stdiod_server_wakes_total");
        assert!(counted > 0.0 && counted <= f64::from(wakes), "{mode}: {counted} wakes");
        println!("{provider} {mode}: {counted} wakes in {tries} tries");
    }
}

fn the_next_daemon_knows_what_is_offered_and_starts_it_with_its_first_use(provider: &str) {
    let mut daemon = Daemon::start();
    daemon.register(&resting(provider, json!({"start": "on_demand"})));
    let before = tools(&daemon);
    assert!(daemon.stop().success());
    daemon.start_again();
    let status = daemon.status("quiet");
    assert_eq!((&status["status"], &status["container_status"]), (&json!("asleep"), &json!("stopped")), "{status:#}");
    assert_eq!(tools(&daemon), before);
    assert_eq!(daemon.status("quiet")["status"], "asleep");
    assert_eq!(daemon.inside("quiet", COUNT), json!([1, 1]));
    daemon.wait_ready("quiet");
    // A kill leaves what it offers in the store, too.
    daemon.kill();
    daemon.start_again();
    assert_eq!(daemon.status("quiet")["status"], "asleep");
    assert_eq!(daemon.inside("quiet", COUNT), json!([1, 2]));
}

fn one_that_dozes_is_the_same_afterwards_and_gets_no_cpu_meanwhile(provider: &str) {
    let mut daemon = Daemon::start();
    // It is at work all the time, whether it is asked or not.
    let busy = "import threading, time\ndef work():\n  while True: sum(range(1000)); time.sleep(0.001)\n\
                threading.Thread(target=work, daemon=True).start()\nresult = os.getpid()";
    daemon.register(&resting(provider, json!({"after_ms": 500, "mode": "doze"})));
    let pid = daemon.inside("quiet", busy);
    let sandbox = daemon.sandbox(provider, "server.py");
    assert_eq!(daemon.inside("quiet", COUNT), json!([1, 1]));
    let asleep = wait_asleep(&daemon);
    assert_eq!((&asleep["container_status"], &asleep["asleep"]["mode"]), (&json!("running"), &json!("doze")));
    let cpu_ms = || daemon.status("quiet")["resource_usage"]["cpu_ms_total"].as_u64().expect("a number");
    // The freezer needs a moment to have stopped everybody.
    assert!(eventually(SOON, || {
        let before = cpu_ms();
        std::thread::sleep(Duration::from_millis(500));
        cpu_ms() == before
    }));
    let began = Instant::now();
    assert_eq!(daemon.inside("quiet", COUNT), json!([2, 2]), "with all it had in memory");
    println!("{provider}: woken and answered in {:?}", began.elapsed());
    assert_eq!(daemon.inside("quiet", "result = os.getpid()"), pid);
    assert_eq!(daemon.sandbox(provider, "server.py"), sandbox);
    wait_asleep(&daemon);
    // Whatever is done with one that is frozen, it is done.
    assert_eq!(daemon.request("POST", &format!("{BASE}/quiet/restart"), None).status, 200);
    assert_eq!(daemon.inside("quiet", COUNT), json!([1, 3]));
    wait_asleep(&daemon);
    daemon.kill();
    daemon.start_again();
    daemon.wait_ready("quiet");
    assert_eq!(daemon.inside("quiet", COUNT), json!([1, 4]));
    wait_asleep(&daemon);
}

fn those_at_rest_stay_so_over_an_upgrade_and_wake_by_the_program_after(provider: &str) {
    let daemon = Daemon::start();
    let mut ended = resting(provider, json!({"after_ms": 100, "mode": "stop"}));
    ended["name"] = json!("ended");
    daemon.register(&resting(provider, json!({"after_ms": 500, "mode": "doze"})));
    daemon.register(&ended);
    assert_eq!(daemon.inside("quiet", COUNT), json!([1, 1]));
    daemon.wait_until("ended", "asleep", |status| status["status"] == "asleep");
    wait_asleep(&daemon);
    let wakes = metric(&daemon, "stdiod_server_wakes_total");
    for _ in 0..2 {
        let reply = daemon.request("POST", "/api/v1/upgrade", None);
        assert_eq!(reply.status, 200, "{reply}\n{}", daemon.log_tail());
        assert_eq!(daemon.status("quiet")["status"], "asleep");
        assert_eq!(metric(&daemon, "stdiod_server_wakes_total"), wakes, "it was not woken for that");
        assert_eq!(daemon.status("ended")["status"], "asleep");
    }
    assert_eq!(daemon.inside("quiet", COUNT), json!([2, 2]), "thawed by a program that has not frozen it");
    assert_eq!(daemon.inside("ended", COUNT), json!([1, 1]));
    wait_asleep(&daemon);
    assert_eq!(daemon.inside("quiet", COUNT), json!([3, 3]), "and it was frozen and thawed by the same");
    assert_eq!(daemon.status("quiet")["restart_count"], 0);
}

#[test]
fn a_sandbox_that_polls_dozes_by_default_and_is_shown_as_ready() {
    let daemon = Daemon::start();
    // Whether this build of gVisor polls is seen at the start of the daemon.
    daemon.wait_log(&["listening on"]);
    daemon.register(&resting("gvisor", json!({"after_ms": 300})));
    let polls = daemon.log_contains("idle sandboxes take CPU time");
    let cpu_ms = || daemon.status("quiet")["resource_usage"]["cpu_ms_total"].as_u64().expect("a number");
    let rests = eventually(Duration::from_secs(20), || {
        let before = cpu_ms();
        std::thread::sleep(Duration::from_millis(1_000));
        cpu_ms() == before
    });
    assert!(rests || !polls, "it polls, and nobody has frozen it\n{}", daemon.log_tail());
    assert_eq!(daemon.status("quiet")["status"], "ready");
    assert_eq!(daemon.inside("quiet", COUNT), json!([1, 1]));
    println!("polls: {polls}, rests: {rests}");
}
