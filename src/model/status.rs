//! What is shown of a server: the status object before it becomes JSON, and its parts. Plain data; who fills it decides what
//! is true, and `api::status` how it is written.

use crate::ids::{InstanceId, ServerId};
use crate::model::definition::{Definition, IdleMode};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The status object of SPEC §2, before it becomes JSON.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusView {
    pub id: ServerId,
    pub definition: Arc<Definition>,
    /// The provider in use, or the one the next start will use.
    pub provider: String,
    pub status: Status,
    pub bridge_connected: bool,
    pub restart_count: u64,
    pub last_crash: Option<LastCrash>,
    pub last_error: Option<String>,
    /// Something an operator should know though it works.
    pub warning: Option<String>,
    /// The network in use; `none` is loopback only.
    pub network: String,
    pub uptime_ms: Option<u64>,
    pub in_flight: usize,
    pub waiting: usize,
    pub crash_level: u32,
    /// Wall clock time of the next start, if one is scheduled.
    pub next_attempt_unix_ms: Option<u64>,
    /// `serverInfo` of the handshake, byte for byte.
    pub server_info: Option<Vec<u8>>,
    pub protocol_version: Option<String>,
    /// The instance that `usage` is read from when the answer is given.
    pub instance: Option<InstanceId>,
    /// When anything valid last came from it.
    pub last_heard_unix_ms: Option<u64>,
    /// What an operator should look at.
    pub warnings: Vec<String>,
    pub usage: Option<Usage>,
    pub image_pull: Option<ImagePull>,
    pub install: Option<Install>,
    /// It is at rest.
    pub asleep: Option<Asleep>,
    /// What its last wake has cost.
    pub last_wake_ms: Option<u64>,
    pub created_unix_ms: u64,
    pub last_used_unix_ms: Option<u64>,
}

/// The rest of a server that nobody uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asleep {
    pub mode: IdleMode,
    pub since_unix_ms: u64,
}

/// The last pull of a server's image, as far as it has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImagePull {
    pub state: PullState,
    /// The digest of the layer that was last heard of.
    pub layer: Option<String>,
    /// Of all layers that come.
    pub bytes: u64,
    pub total: u64,
    pub error: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PullState {
    /// For the registry, or for other pulls.
    Waiting,
    Downloading,
    Unpacking,
    Done,
    Failed,
}

impl PullState {
    pub fn wire(self) -> &'static str {
        match self {
            PullState::Waiting => "waiting",
            PullState::Downloading => "downloading",
            PullState::Unpacking => "unpacking",
            PullState::Done => "done",
            PullState::Failed => "failed",
        }
    }
}

/// The fetching of a server's packages, as far as it has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Install {
    pub phase: InstallPhase,
    /// What its volumes hold by now, fetched in this attempt or an earlier one.
    pub bytes: u64,
    /// None: nobody knows before the end.
    pub total: Option<u64>,
    /// Counted from 1 in this life of the daemon, and again after a success.
    pub attempt: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InstallPhase {
    Fetching,
    /// An attempt has ended before everything was here; the next one goes on from there.
    Waiting,
    Done,
    Failed,
}

impl InstallPhase {
    pub const ALL: [InstallPhase; 4] =
        [InstallPhase::Fetching, InstallPhase::Waiting, InstallPhase::Done, InstallPhase::Failed];

    pub fn wire(self) -> &'static str {
        match self {
            InstallPhase::Fetching => "fetching",
            InstallPhase::Waiting => "waiting",
            InstallPhase::Done => "done",
            InstallPhase::Failed => "failed",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Its packages are being fetched.
    Installing,
    Starting,
    Ready,
    Unresponsive,
    Stopping,
    #[default]
    Stopped,
    Restarting,
    Backoff,
    Failed,
    /// Nobody uses it; the next request wakes it.
    Asleep,
}

impl Status {
    pub const ALL: [Status; 10] = [
        Status::Installing,
        Status::Starting,
        Status::Ready,
        Status::Unresponsive,
        Status::Stopping,
        Status::Stopped,
        Status::Restarting,
        Status::Backoff,
        Status::Failed,
        Status::Asleep,
    ];

    pub fn wire(self) -> &'static str {
        match self {
            Status::Installing => "installing",
            Status::Starting => "starting",
            Status::Ready => "ready",
            Status::Unresponsive => "unresponsive",
            Status::Stopping => "stopping",
            Status::Stopped => "stopped",
            Status::Restarting => "restarting",
            Status::Backoff => "backoff",
            Status::Failed => "failed",
            Status::Asleep => "asleep",
        }
    }

    pub fn container_status(self) -> &'static str {
        match self {
            Status::Starting | Status::Ready | Status::Unresponsive | Status::Stopping => "running",
            Status::Installing | Status::Stopped | Status::Failed | Status::Asleep => "stopped",
            Status::Restarting | Status::Backoff => "restarting",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LastCrash {
    pub at_unix_ms: u64,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub oom: bool,
    pub stderr_tail: Vec<String>,
}

/// What the cgroup says of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Usage {
    pub cpu_percent: f64,
    pub cpu_ms_total: u64,
    pub memory_bytes: u64,
    pub pids: u64,
    pub disk_bytes: u64,
}
