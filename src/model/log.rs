//! One entry of a server's log: what it said on stderr, what it said on stdout that was no message, and what happened to it.

use crate::ids::InstanceId;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    pub at_unix_ms: u64,
    pub instance: Option<InstanceId>,
    pub source: LogSource,
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogSource {
    Stderr,
    /// Stdout that was no JSON-RPC.
    Noise,
    Lifecycle,
    /// A warning about its health.
    Health,
}
