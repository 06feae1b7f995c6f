//! How instances begin and end: signals, exits, and why a container could not be started or an image not be had.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopSignal {
    Term,
    Kill,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    pub cause: ExitCause,
    /// The kernel's OOM killer was at work in its cgroup.
    pub oom: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitCause {
    Code(i32),
    Signal(i32),
}

/// What is known of the packages that a server is made of, when it is launched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Packages {
    /// Whatever an earlier install has left word of.
    #[default]
    AsKept,
    /// They have just been fetched.
    Fetched,
    /// It did not start from what is kept: that is not to be relied on.
    Doubtful,
}

/// Why a container could not be started at all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchFault {
    pub kind: LaunchFaultKind,
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LaunchFaultKind {
    ImageNotFound,
    ProviderUnusable,
    Rootfs,
    Network,
    Runtime,
    Internal,
}

/// What a puller says, one line each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PullStep {
    /// It is not here, or must be looked for: the registry will be asked.
    Due,
    /// The registry has it: so many layers, and so many bytes to come.
    Resolved {
        digest: String,
        layers: usize,
        bytes: u64,
    },
    /// `index` counts from 1; `bytes` and `total` are of all layers that come.
    Layer {
        index: usize,
        of: usize,
        layer: String,
        state: LayerState,
        layer_bytes: u64,
        layer_total: u64,
        bytes: u64,
        total: u64,
    },
    /// The last word, or this:
    Done {
        digest: String,
    },
    Failed(LaunchFault),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerState {
    Downloading,
    Downloaded,
    /// Another image has brought it.
    Present,
    Unpacking,
}
