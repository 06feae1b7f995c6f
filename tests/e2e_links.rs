//! What is asked of a shared connection that fails, over each of the four transports: tried again without end, missed at
//! once, asked before it is given up, made once for many; and how one that is not shared differs. The server is the same
//! each time, and over stdio it is behind a program in a sandbox.

#[path = "support/mod.rs"]
mod support;

use serde_json::{Value, json};
use support::far_server::FarServer;
use support::{Daemon, Reply, SOON, eventually, logged_at};

const TRANSPORTS: [&str; 4] = ["stdio", "http", "sse", "ws"];
const PROJECT: &str = "/api/v1/projects/p-1/mcp";

/// One external server, which is named after its transport.
struct Over<'a> {
    daemon: &'a Daemon,
    transport: &'static str,
    far: FarServer,
}

/// The four at the same time, with one daemon.
fn over_every_transport(more: Value, act: impl Fn(&mut Over) + Sync) {
    let daemon = Daemon::with("STDIOD_DEFAULT_PROVIDER", "crun").variable("STDIOD_ALLOW_HOST_NETWORK", "true").start();
    std::thread::scope(|scope| {
        for transport in TRANSPORTS {
            let (daemon, more, act) = (&daemon, &more, &act);
            scope.spawn(move || {
                let far = FarServer::start();
                let mut row = far.definition(transport, transport);
                for (key, value) in more.as_object().expect("fields") {
                    row[key] = value.clone();
                }
                let reply = daemon.request("POST", &format!("{PROJECT}/servers"), Some(&row));
                assert_eq!(reply.status, 201, "{transport}: {reply}");
                act(&mut Over { daemon, transport, far });
            });
        }
    });
}

impl Over<'_> {
    fn try_call(&self, tool: &str, arguments: Value, timeout_ms: u64) -> Reply {
        let body = json!({"name": tool, "server": self.transport, "arguments": arguments, "timeout_ms": timeout_ms});
        self.daemon.request("POST", &format!("{PROJECT}/tools/call"), Some(&body))
    }

    /// It must succeed.
    fn call(&self) {
        let reply = self.try_call("search", json!({}), 60_000);
        assert_eq!(reply.status, 200, "{}: {reply}\n{}", self.transport, self.daemon.log_tail());
    }

    fn shown(&self) -> Value {
        self.daemon.get(&format!("{PROJECT}/servers/{}", self.transport)).json()
    }

    fn until(&self, status: &str) -> Value {
        let is = eventually(SOON, || self.shown()["status"] == status);
        assert!(is, "{} is not {status}: {}\n{}", self.transport, self.shown(), self.daemon.log_tail());
        self.shown()
    }

    fn enable(&self, enabled: bool) {
        let path = format!("{PROJECT}/servers/{}", self.transport);
        let reply = self.daemon.request("PATCH", &path, Some(&json!({"enabled": enabled})));
        assert_eq!(reply.status, 200, "{}: {reply}", self.transport);
    }

    /// The lines of the log about it that have these words, each of level ERROR.
    fn errors(&self, words: &str) -> Vec<String> {
        let of = format!("server={} ", self.transport);
        let mut lines = self.daemon.log_lines();
        lines.retain(|line| line.contains(&of) && line.contains(words) && line.contains("project="));
        assert!(lines.iter().all(|line| line.contains("ERROR")), "{lines:#?}");
        lines
    }

    fn until_errors(&self, words: &str, count: usize) -> Vec<String> {
        let all = eventually(SOON, || self.errors(words).len() >= count);
        assert!(all, "{}: {count} of {words:?}\n{}", self.transport, self.daemon.log_tail());
        self.errors(words)
    }
}

#[test]
fn a_shared_server_is_tried_again_without_end_until_it_is_disabled() {
    over_every_transport(json!({"breaker": false}), |over| {
        over.call();
        over.far.kill();
        let lost = over.until_errors("transport-exit", 1);
        let failed = over.until_errors("attempt failed", 3);
        // After 0, 1 and 2 s; an attempt takes some time itself.
        let at: Vec<u64> = lost.iter().chain(&failed).map(|line| logged_at(line)).collect();
        assert!(at[2] - at[1] >= 950 && at[3] - at[2] >= 1_950, "{}: {lost:?} {failed:?}", over.transport);
        let shown = over.until("reconnecting");
        assert!(shown["next_attempt_at"].is_string() && shown["last_error"].is_string(), "{shown}");
        let refused = over.try_call("search", json!({}), 60_000);
        assert_eq!(
            (refused.status, refused.code(), refused.outcome()),
            (503, json!("upstream_unavailable"), json!("not_sent")),
            "{}: {refused}",
            over.transport
        );
        assert!(refused.header("retry-after").is_some(), "{refused}");
        // Nobody asks for it, and it comes back: 5 s after the third failure.
        over.far.start_again();
        over.until("connected");
        assert_eq!((over.far.count("initialize"), over.far.count("tools/call")), (1, 0), "{}", over.transport);
        over.call();
        // To disable it is what ends that.
        over.far.kill();
        over.until_errors("transport-exit", 2);
        over.enable(false);
        let shown = over.until("disabled");
        assert_eq!(shown["next_attempt_at"], Value::Null, "{shown}");
        over.far.start_again();
        over.enable(true);
        assert_eq!((&over.shown()["status"], over.far.count("initialize")), (&json!("idle"), 0), "{}", over.transport);
        over.call();
    });
}

#[test]
fn a_connection_that_ends_while_nobody_calls_is_missed_and_made_again() {
    over_every_transport(json!({}), |over| {
        over.call();
        // Of Streamable HTTP it is the stream that ends.
        let listens = || over.transport != "http" || over.far.count("listening") > 0;
        assert!(eventually(SOON, listens), "{}", over.daemon.log_tail());
        let began = over.daemon.log_lines().last().map_or(0, |line| logged_at(line));
        over.far.kill();
        over.far.start_again();
        let lost = over.until_errors("transport-exit", 1);
        // Long before a heartbeat (30 s) or a call would have found out. `began` is the time of an earlier line.
        assert!(logged_at(&lost[0]) - began < 15_000, "{}: {lost:?}", over.transport);
        over.until("connected");
        assert_eq!((over.far.count("initialize"), over.far.count("tools/call")), (1, 0), "{}", over.transport);
        over.call();
        assert_eq!(over.far.count("initialize"), 1, "{}: whoever calls next finds it there", over.transport);
    });
}

#[test]
fn a_slow_call_ends_no_connection_and_one_that_answers_no_probe_is_made_again() {
    let more = json!({"breaker": false, "max_in_flight": 4, "health": {"probe_timeout_ms": 1_000},
        "timeouts": {"startup_ms": 10_000}});
    over_every_transport(more, |over| {
        over.call();
        let since = over.shown()["connected_since"].clone();
        let slow = over.try_call("sleep", json!({"seconds": 20}), 500);
        assert_eq!(
            (slow.status, slow.code(), slow.outcome()),
            (504, json!("call_timeout"), json!("sent_unknown")),
            "{}: {slow}",
            over.transport
        );
        assert!(eventually(SOON, || over.far.count("ping") > 0), "{} is asked", over.transport);
        over.call();
        assert_eq!(over.shown()["connected_since"], since, "{}: its probe is answered", over.transport);
        assert_eq!(over.far.count("initialize"), 1, "{}", over.transport);
        // Now it answers nobody, and whoever waits for it is told so.
        over.far.mode("silent");
        let (waiting, timed_out) = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| over.try_call("search", json!({}), 60_000));
            let timed_out = over.try_call("search", json!({}), 1_000);
            (waiting.join().expect("it is answered"), timed_out)
        });
        assert_eq!(
            (timed_out.status, timed_out.code()),
            (504, json!("call_timeout")),
            "{}: {timed_out}",
            over.transport
        );
        assert_eq!(
            (waiting.status, waiting.code(), waiting.outcome()),
            (503, json!("mcp_restart_in_progress"), json!("sent_unknown")),
            "{}: {waiting}",
            over.transport
        );
        let lost = over.until_errors("transport-exit", 1);
        assert!(lost[0].contains("neither ping nor tools/list"), "{lost:?}");
        over.far.mode("good");
        over.until("connected");
        over.call();
    });
}

#[test]
fn many_first_users_make_one_connection() {
    over_every_transport(json!({}), |over| {
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| over.call());
            }
        });
        let counted = ["initialize", "tools/list", "tools/call"].map(|what| over.far.count(what));
        assert_eq!(counted, [1, 1, 8], "{}", over.transport);
    });
}

#[test]
fn one_that_is_not_shared_is_tried_once_more_and_then_with_its_next_use() {
    over_every_transport(json!({"shared": false, "breaker": false}), |over| {
        over.far.kill();
        let refused = over.try_call("search", json!({}), 60_000);
        assert_eq!(
            (refused.status, refused.code(), refused.outcome()),
            (503, json!("upstream_unavailable"), json!("not_sent")),
            "{}: {refused}",
            over.transport
        );
        let shown = over.until("failed");
        let failed = over.until_errors("attempt failed", 2);
        assert_eq!((failed.len(), &shown["next_attempt_at"]), (2, &Value::Null), "{shown}");
        over.far.start_again();
        over.call();
        over.far.kill();
        over.until_errors("attempt failed", 3);
        over.until("failed");
        assert_eq!(over.errors("attempt failed").len(), 3, "{}: one retry", over.transport);
        over.far.start_again();
        over.call();
        assert_eq!(over.far.count("initialize"), 1, "{}", over.transport);
    });
}
