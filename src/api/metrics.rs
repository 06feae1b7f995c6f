//! One look at everything that is counted, as the text that Prometheus reads. Labels are what operators wrote, never what a
//! client sent. Pure and without an allocation for each line; still, with a thousand servers it is work for a thread of
//! its own.

use crate::model::metrics::{DaemonMetrics, Metrics, ServerMetrics, TURN_BOUNDS_US};
use crate::model::status::Status;
use crate::model::tally::{CallOutcome, DURATION_BOUNDS_MS, MethodClass};
use crate::wire::http_out::push_decimal;

pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A family of which each server has one line: its name, its type, what it is, and its value.
type Plain = (&'static str, &'static str, &'static str, fn(&ServerMetrics) -> Option<Value>);

enum Value {
    Whole(u64),
    /// Thousandths.
    Milli(u64),
}

const OF_SERVER: &[Plain] = &[
    ("stdiod_server_crashes_total", "counter", "Instances that ended though nobody had asked them to.", |s| {
        Some(Value::Whole(s.tally.crashes))
    }),
    ("stdiod_server_oom_total", "counter", "Instances that were killed for want of memory.", |s| {
        Some(Value::Whole(s.tally.out_of_memory))
    }),
    ("stdiod_server_restarts_total", "counter", "Starts that followed an earlier instance.", |s| {
        Some(Value::Whole(s.restarts))
    }),
    ("stdiod_server_calls_in_flight", "gauge", "Calls that were sent and are not answered.", |s| {
        Some(Value::Whole(s.in_flight as u64))
    }),
    ("stdiod_server_calls_waiting", "gauge", "Calls that wait for their turn.", |s| {
        Some(Value::Whole(s.waiting as u64))
    }),
    ("stdiod_server_late_answers_total", "counter", "Answers to calls that had ended; they were dropped.", |s| {
        Some(Value::Whole(s.late_answers))
    }),
    ("stdiod_server_noise_lines_total", "counter", "Lines on stdout that were no JSON-RPC.", |s| {
        Some(Value::Whole(s.tally.noise_lines))
    }),
    ("stdiod_server_wakes_total", "counter", "How often it was at rest and was woken.", |s| {
        Some(Value::Whole(s.tally.wakes))
    }),
    ("stdiod_server_wake_seconds_total", "counter", "What these wakes took, until it could be called.", |s| {
        Some(Value::Milli(s.tally.wake_ms))
    }),
    ("stdiod_server_cpu_seconds_total", "counter", "CPU time of the present instance.", |s| {
        s.usage.map(|usage| Value::Milli(usage.cpu_ms_total))
    }),
    ("stdiod_server_memory_bytes", "gauge", "Memory of the present instance.", |s| {
        s.usage.map(|usage| Value::Whole(usage.memory_bytes))
    }),
    ("stdiod_server_memory_limit_bytes", "gauge", "What it may have.", |s| Some(Value::Whole(s.memory_limit_bytes))),
];

pub fn render(metrics: &Metrics) -> Vec<u8> {
    let mut out = Text { out: Vec::with_capacity(4096 + metrics.servers.len() * 4096) };
    out.family("stdiod_build_info", "gauge", "The version of this daemon.");
    out.line("stdiod_build_info", &[("version", env!("CARGO_PKG_VERSION"))], &Value::Whole(1));
    if let Some(daemon) = &metrics.daemon {
        of_daemon(&mut out, daemon);
    }
    let servers = &metrics.servers;
    out.family("stdiod_server_info", "gauge", "The provider that runs a server.");
    for server in servers {
        let labels = [("server", server.name.as_str()), ("provider", server.provider.as_str())];
        out.line("stdiod_server_info", &labels, &Value::Whole(1));
    }
    out.family("stdiod_server_status", "gauge", "1 for the status that a server has, 0 for the others.");
    for server in servers {
        for status in Status::ALL {
            let labels = [("server", server.name.as_str()), ("status", status.wire())];
            out.line("stdiod_server_status", &labels, &Value::Whole(u64::from(status == server.status)));
        }
    }
    for (name, kind, help, value) in OF_SERVER {
        out.family(name, kind, help);
        for server in servers {
            if let Some(value) = value(server) {
                out.line(name, &[("server", &server.name)], &value);
            }
        }
    }
    calls(&mut out, servers);
    out.out
}

fn of_daemon(out: &mut Text, daemon: &DaemonMetrics) {
    let whole = |value: usize| Value::Whole(value as u64);
    for (name, kind, help, value) in [
        ("stdiod_connections", "gauge", "Open connections of clients.", whole(daemon.connections)),
        ("stdiod_sessions", "gauge", "MCP sessions.", whole(daemon.sessions)),
        ("stdiod_calls", "gauge", "Calls under way, of all servers.", whole(daemon.calls)),
        (
            "stdiod_received_bytes_total",
            "counter",
            "Bytes that clients have sent.",
            Value::Whole(daemon.traffic.received),
        ),
        ("stdiod_sent_bytes_total", "counter", "Bytes that clients have taken.", Value::Whole(daemon.traffic.sent)),
        ("stdiod_store_up", "gauge", "1 if changes can be stored.", Value::Whole(u64::from(daemon.store_up))),
        ("stdiod_store_pending_writes", "gauge", "Writes that the database has not.", whole(daemon.store_pending)),
        (
            "stdiod_call_records_waiting",
            "gauge",
            "Records of projects' tool calls that the database has not.",
            whole(daemon.records_waiting),
        ),
        (
            "stdiod_call_records_dropped_total",
            "counter",
            "Records of projects' tool calls that were dropped, because too many waited for the database.",
            Value::Whole(daemon.records_dropped),
        ),
        (
            "stdiod_log_entries_dropped_total",
            "counter",
            "Entries of servers' logs that the disk could not take in time.",
            Value::Whole(daemon.log_entries_dropped),
        ),
    ] {
        out.family(name, kind, help);
        out.line(name, &[], &value);
    }
    out.family("stdiod_loop_turn_seconds", "histogram", "How long the event loop was at work between two waits.");
    let bounds = TURN_BOUNDS_US.map(|us| us as f64 / 1e6);
    out.histogram("stdiod_loop_turn_seconds", None, &bounds, daemon.turns.counts(), daemon.turns.sum_us / 1_000);
}

fn calls(out: &mut Text, servers: &[ServerMetrics]) {
    out.family("stdiod_calls_total", "counter", "Calls of clients that have ended, by kind and outcome.");
    for server in servers {
        for method in MethodClass::ALL {
            for outcome in CallOutcome::ALL {
                let count = server.tally.calls(method, outcome);
                // The most common one is there from the start, so that its first increase is seen.
                if count > 0 || (method, outcome) == (MethodClass::ToolsCall, CallOutcome::Ok) {
                    let labels =
                        [("server", server.name.as_str()), ("method", method.wire()), ("outcome", outcome.wire())];
                    out.line("stdiod_calls_total", &labels, &Value::Whole(count));
                }
            }
        }
    }
    out.family("stdiod_call_duration_seconds", "histogram", "From a call's arrival to its end.");
    let bounds = DURATION_BOUNDS_MS.map(|ms| ms as f64 / 1e3);
    for server in servers {
        let (counts, sum_ms) = (server.tally.durations(), server.tally.duration_ms);
        out.histogram("stdiod_call_duration_seconds", Some(&server.name), &bounds, counts, sum_ms);
    }
}

struct Text {
    out: Vec<u8>,
}

impl Text {
    fn push(&mut self, parts: &[&str]) {
        for part in parts {
            self.out.extend_from_slice(part.as_bytes());
        }
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.push(&["# HELP ", name, " ", help, "\n# TYPE ", name, " ", kind, "\n"]);
    }

    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: &Value) {
        self.push(&[name]);
        for (at, (label, value)) in labels.iter().enumerate() {
            self.push(&[if at == 0 { "{" } else { "," }, label, "=\""]);
            self.label_value(value);
            self.push(&["\""]);
        }
        self.push(&[if labels.is_empty() { " " } else { "} " }]);
        self.value(value);
        self.push(&["\n"]);
    }

    /// `counts` are those of each bucket alone, and one more for what is beyond all bounds.
    fn histogram(&mut self, name: &str, server: Option<&str>, bounds: &[f64], counts: &[u64], sum_ms: u64) {
        let mut so_far = 0;
        for (at, count) in counts.iter().enumerate() {
            so_far += count;
            self.push(&[name, "_bucket{"]);
            self.of_server(server, "server=\"", "\",");
            self.push(&["le=\""]);
            match bounds.get(at) {
                Some(bound) => self.push(&[&bound.to_string()]),
                None => self.push(&["+Inf"]),
            }
            self.push(&["\"} "]);
            push_decimal(&mut self.out, so_far);
            self.push(&["\n"]);
        }
        for (suffix, value) in [("_sum", Value::Milli(sum_ms)), ("_count", Value::Whole(so_far))] {
            self.push(&[name, suffix]);
            self.of_server(server, "{server=\"", "\"}");
            self.push(&[" "]);
            self.value(&value);
            self.push(&["\n"]);
        }
    }

    fn of_server(&mut self, server: Option<&str>, before: &str, behind: &str) {
        if let Some(server) = server {
            self.push(&[before]);
            self.label_value(server);
            self.push(&[behind]);
        }
    }

    /// A name is plain, but for that of a server whose row breaks the rules.
    fn label_value(&mut self, text: &str) {
        for byte in text.bytes() {
            match byte {
                b'\\' => self.push(&["\\\\"]),
                b'"' => self.push(&["\\\""]),
                b'\n' => self.push(&["\\n"]),
                other => self.out.push(other),
            }
        }
    }

    fn value(&mut self, value: &Value) {
        match value {
            Value::Whole(value) => push_decimal(&mut self.out, *value),
            Value::Milli(value) => {
                push_decimal(&mut self.out, value / 1_000);
                let rest = value % 1_000;
                self.out.extend_from_slice(&[
                    b'.',
                    b'0' + (rest / 100) as u8,
                    b'0' + (rest / 10 % 10) as u8,
                    b'0' + (rest % 10) as u8,
                ]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::metrics::Turns;
    use crate::model::status::Usage;
    use crate::model::tally::Tally;

    fn server(name: &str) -> ServerMetrics {
        let mut tally = Tally::default();
        tally.crashes = 2;
        tally.ended(MethodClass::ToolsCall, CallOutcome::Ok, 15);
        tally.ended(MethodClass::Other, CallOutcome::Timeout, 30_000);
        ServerMetrics {
            name: name.into(),
            provider: "gvisor".into(),
            status: Status::Ready,
            tally,
            in_flight: 1,
            waiting: 0,
            restarts: 3,
            late_answers: 0,
            instance: None,
            usage: Some(Usage { cpu_ms_total: 1_050, memory_bytes: 7, ..Usage::default() }),
            memory_limit_bytes: 512,
        }
    }

    fn text(metrics: &Metrics) -> String {
        String::from_utf8(render(metrics)).expect("text")
    }

    #[test]
    fn a_server_is_told_by_status_calls_and_durations() {
        let text = text(&Metrics { servers: vec![server("a")], daemon: None });
        for line in [
            "stdiod_server_status{server=\"a\",status=\"ready\"} 1",
            "stdiod_server_status{server=\"a\",status=\"failed\"} 0",
            "stdiod_calls_total{server=\"a\",method=\"tools/call\",outcome=\"ok\"} 1",
            "stdiod_calls_total{server=\"a\",method=\"other\",outcome=\"timeout\"} 1",
            "stdiod_call_duration_seconds_bucket{server=\"a\",le=\"0.01\"} 0",
            "stdiod_call_duration_seconds_bucket{server=\"a\",le=\"0.02\"} 1",
            "stdiod_call_duration_seconds_bucket{server=\"a\",le=\"+Inf\"} 2",
            "stdiod_call_duration_seconds_sum{server=\"a\"} 30.015",
            "stdiod_call_duration_seconds_count{server=\"a\"} 2",
            "stdiod_server_cpu_seconds_total{server=\"a\"} 1.050",
            "stdiod_server_crashes_total{server=\"a\"} 2",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
        assert!(!text.contains("stdiod_connections"), "not for those who see only some servers");
    }

    #[test]
    fn a_name_that_breaks_the_rules_ends_no_label() {
        let text = text(&Metrics { servers: vec![server("a\"} 1\n\\")], daemon: None });
        assert!(text.contains("{server=\"a\\\"} 1\\n\\\\\"} 2"), "{text}");
        assert!(text.lines().all(|line| line.starts_with("# ") || line.starts_with("stdiod_")), "{text}");
    }

    #[test]
    fn a_family_is_described_once_however_many_servers_there_are() {
        let mut turns = Turns::default();
        turns.ended(20_000);
        let daemon = Some(DaemonMetrics { turns, ..DaemonMetrics::default() });
        let text = text(&Metrics { servers: vec![server("a"), server("b")], daemon });
        let types: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
        let mut once = types.clone();
        once.sort();
        once.dedup();
        assert_eq!(types.len(), once.len());
        assert!(text.contains("stdiod_loop_turn_seconds_bucket{le=\"0.05\"} 1\n"), "{text}");
    }
}
