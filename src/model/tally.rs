//! What is counted of a server: its calls by kind and outcome, how long they took, and what went wrong. Fixed arrays, so that
//! counting costs a few additions and no name that a client has made up becomes a series. Never decides anything.

use serde::{Deserialize, Serialize};

/// What a call is for. A method that stands in no row is `Other`, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MethodClass {
    ToolsCall,
    ToolsList,
    Prompts,
    Resources,
    Other,
}

impl MethodClass {
    pub const ALL: [MethodClass; 5] = [
        MethodClass::ToolsCall,
        MethodClass::ToolsList,
        MethodClass::Prompts,
        MethodClass::Resources,
        MethodClass::Other,
    ];

    pub fn of(method: &str) -> MethodClass {
        match method {
            "tools/call" => MethodClass::ToolsCall,
            "tools/list" => MethodClass::ToolsList,
            "prompts/list" | "prompts/get" => MethodClass::Prompts,
            "resources/list"
            | "resources/read"
            | "resources/templates/list"
            | "resources/subscribe"
            | "resources/unsubscribe" => MethodClass::Resources,
            _ => MethodClass::Other,
        }
    }

    /// Of a method as it stands in JSON.
    pub fn quoted(json: &str) -> MethodClass {
        json.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).map_or(MethodClass::Other, MethodClass::of)
    }

    pub fn wire(self) -> &'static str {
        match self {
            MethodClass::ToolsCall => "tools/call",
            MethodClass::ToolsList => "tools/list",
            MethodClass::Prompts => "prompts",
            MethodClass::Resources => "resources",
            MethodClass::Other => "other",
        }
    }
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallOutcome {
    /// The server gave a result.
    Ok,
    /// The tool says that it has failed (`isError`).
    ToolError,
    /// The server answered with an error of its own.
    Error,
    Timeout,
    /// The server died, or was stopped, with the call in flight.
    Crashed,
    /// The client left or gave it up.
    Cancelled,
    /// It was never sent.
    Refused,
    /// Sent, and what came back was no answer that could be passed on.
    Failed,
}

impl CallOutcome {
    pub const ALL: [CallOutcome; 8] = [
        CallOutcome::Ok,
        CallOutcome::ToolError,
        CallOutcome::Error,
        CallOutcome::Timeout,
        CallOutcome::Crashed,
        CallOutcome::Cancelled,
        CallOutcome::Refused,
        CallOutcome::Failed,
    ];

    pub fn wire(self) -> &'static str {
        match self {
            CallOutcome::Ok => "ok",
            CallOutcome::ToolError => "tool_error",
            CallOutcome::Error => "error",
            CallOutcome::Timeout => "timeout",
            CallOutcome::Crashed => "crashed",
            CallOutcome::Cancelled => "cancelled",
            CallOutcome::Refused => "refused",
            CallOutcome::Failed => "failed",
        }
    }
}

/// Upper bounds in milliseconds: those that OpenTelemetry recommends for `mcp.server.operation.duration`.
pub const DURATION_BOUNDS_MS: [u64; 14] =
    [10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 120_000, 300_000];

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    calls: [[u64; CallOutcome::ALL.len()]; MethodClass::ALL.len()],
    /// How many took no longer than each bound and longer than the one before; the last: longer than all.
    durations: [u64; DURATION_BOUNDS_MS.len() + 1],
    pub duration_ms: u64,
    pub crashes: u64,
    pub out_of_memory: u64,
    pub noise_lines: u64,
    /// How often it was at rest and was woken, and what that took together.
    #[serde(default)]
    pub wakes: u64,
    #[serde(default)]
    pub wake_ms: u64,
    pub lately: Lately,
}

/// Since the last sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lately {
    pub calls: u32,
    /// Those of them that gave no result.
    pub failed: u32,
    pub duration_ms: u64,
    pub slowest_ms: u64,
}

impl Tally {
    pub fn ended(&mut self, method: MethodClass, outcome: CallOutcome, took_ms: u64) {
        self.calls[method as usize][outcome as usize] += 1;
        let mut bucket = 0;
        while bucket < DURATION_BOUNDS_MS.len() && took_ms > DURATION_BOUNDS_MS[bucket] {
            bucket += 1;
        }
        self.durations[bucket] += 1;
        self.duration_ms += took_ms;
        self.lately.calls = self.lately.calls.saturating_add(1);
        self.lately.failed = self.lately.failed.saturating_add(u32::from(outcome != CallOutcome::Ok));
        self.lately.duration_ms += took_ms;
        self.lately.slowest_ms = self.lately.slowest_ms.max(took_ms);
    }

    pub fn calls(&self, method: MethodClass, outcome: CallOutcome) -> u64 {
        self.calls[method as usize][outcome as usize]
    }

    pub fn durations(&self) -> &[u64] {
        &self.durations
    }
}

/// What a server used and did in the time before `at_unix_ms`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    pub at_unix_ms: u64,
    pub cpu_percent: f64,
    pub memory_bytes: u64,
    pub lately: Lately,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_counts_for_the_first_bound_that_holds_it() {
        let mut tally = Tally::default();
        for ms in [0, 10, 11, 300_000, 300_001] {
            tally.ended(MethodClass::ToolsCall, CallOutcome::Ok, ms);
        }
        tally.ended(MethodClass::of("tools/x"), CallOutcome::Timeout, 1);
        assert_eq!(
            (tally.durations()[0], tally.durations()[1], tally.durations()[13], tally.durations()[14]),
            (3, 1, 1, 1)
        );
        assert_eq!(tally.calls(MethodClass::ToolsCall, CallOutcome::Ok), 5);
        assert_eq!(tally.calls(MethodClass::Other, CallOutcome::Timeout), 1);
        assert_eq!((tally.lately.calls, tally.lately.failed, tally.lately.slowest_ms), (6, 1, 300_001));
    }

    #[test]
    fn each_class_and_outcome_has_its_own_place() {
        assert!(MethodClass::ALL.iter().enumerate().all(|(at, class)| *class as usize == at));
        assert!(CallOutcome::ALL.iter().enumerate().all(|(at, outcome)| *outcome as usize == at));
        for method in ["tools/call", "tools/list"] {
            assert_eq!(MethodClass::of(method).wire(), method);
        }
    }
}
