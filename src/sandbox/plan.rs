//! What the daemon tells a launcher, and what the launcher says back: two JSON documents, on a memfd and on a pipe.

use crate::core::contract::LaunchFault;
use crate::core::definition::Definition;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Everything a launcher needs to start one instance.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LaunchPlan {
    /// Unique over all lives of the daemon; short, because runtimes build socket paths from it.
    pub container_id: String,
    pub definition: Definition,
    pub runtime: Runtime,
    pub layout: Layout,
}

/// An OCI runtime as configured and probed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Runtime {
    /// The provider's name: `gvisor`, `crun`, or one of the configuration.
    pub provider: String,
    pub kind: RuntimeKind,
    pub binary: PathBuf,
    /// Global flags before the subcommand.
    pub args: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuntimeKind {
    /// runsc: signals through `runsc kill`, seccomp and pids limits of its own.
    Gvisor,
    /// crun, runc, youki: the container's init is a plain child.
    Native,
}

/// Where things of one daemon live.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    pub data_dir: PathBuf,
    /// The mark that cgroups of this daemon carry: `/stdiod-<mark>` is their parent.
    pub mark: String,
}

/// The launcher's only word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// The container runs; `pid` is now a child of the daemon.
    Started { pid: i32 },
    Failed(LaunchFault),
}
