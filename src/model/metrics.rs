//! One look at everything that is counted, before it becomes text. Plain data: the core fills in what it knows, the shell what
//! only it can see, and `api::metrics` writes it down.

use crate::ids::InstanceId;
use crate::model::status::{Status, Usage};
use crate::model::tally::Tally;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq)]
pub struct Metrics {
    pub servers: Vec<ServerMetrics>,
    /// Not for those who may see only some servers.
    pub daemon: Option<DaemonMetrics>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ServerMetrics {
    pub name: String,
    pub provider: String,
    pub status: Status,
    pub tally: Tally,
    pub in_flight: usize,
    pub waiting: usize,
    pub restarts: u64,
    pub late_answers: u64,
    /// The instance that `usage` is of.
    pub instance: Option<InstanceId>,
    pub usage: Option<Usage>,
    pub memory_limit_bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct DaemonMetrics {
    pub sessions: usize,
    pub calls: usize,
    /// The store can be written to.
    pub store_up: bool,
    /// Writes that it does not have yet.
    pub store_pending: usize,
    /// Records of tool calls that it does not have yet, and those that were dropped for want of room.
    pub records_waiting: usize,
    pub records_dropped: u64,
    pub connections: usize,
    pub log_entries_dropped: u64,
    pub traffic: Traffic,
    pub turns: Turns,
}

/// Bytes of clients, of connections that are over too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    pub received: u64,
    pub sent: u64,
}

impl Traffic {
    pub fn plus(self, other: Traffic) -> Traffic {
        Traffic { received: self.received + other.received, sent: self.sent + other.sent }
    }
}

/// Upper bounds of a turn of the loop, in microseconds.
pub const TURN_BOUNDS_US: [u64; 8] = [100, 500, 1_000, 2_000, 5_000, 10_000, 50_000, 250_000];

/// How long the loop took to do what it was woken for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turns {
    counts: [u64; TURN_BOUNDS_US.len() + 1],
    pub sum_us: u64,
}

impl Turns {
    pub fn ended(&mut self, took_us: u64) {
        let mut bucket = 0;
        while bucket < TURN_BOUNDS_US.len() && took_us > TURN_BOUNDS_US[bucket] {
            bucket += 1;
        }
        self.counts[bucket] += 1;
        self.sum_us += took_us;
    }

    pub fn counts(&self) -> &[u64] {
        &self.counts
    }
}
