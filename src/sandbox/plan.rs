//! What the daemon tells a launcher, and what the launcher says back: two JSON documents, on a memfd and on a socket.
//! Also the one place that knows where things of a daemon lie on disk.

use crate::core::contract::{LaunchFault, LaunchFaultKind};
use crate::core::definition::Definition;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// Everything a launcher needs to start one instance.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LaunchPlan {
    /// Unique over all lives of the daemon; short, because runtimes build socket paths from it.
    pub container_id: String,
    pub definition: Definition,
    pub runtime: Runtime,
    pub layout: Layout,
    pub networking: Networking,
    /// Who waits for the report. A launcher whose parent is another one was orphaned before it could ask the kernel
    /// to die with its parent.
    pub daemon_pid: i32,
    /// It begins when a byte comes on the socket that its report goes to.
    pub waits: bool,
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
    pub users: Users,
}

/// The numbers of a container's users, as the host sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Users {
    /// Others than inside: a user namespace.
    Shifted,
    Same,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuntimeKind {
    /// runsc: a kernel of its own in user space, with seccomp and thread counts of its own.
    Gvisor,
    /// crun, runc, youki: the container's init is a plain child.
    Native,
    /// No runtime and no sandbox: a plain child.
    Plain,
}

/// What the configuration says of networks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Networking {
    /// For servers that name none; none: loopback only.
    pub default: Option<String>,
    /// Where CNI configurations are looked for, the first one first.
    pub conf_dirs: Vec<PathBuf>,
}

/// Where things of one daemon live.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    pub data_dir: PathBuf,
    /// The mark that cgroups of this daemon carry: `/stdiod-<mark>` is their parent.
    pub mark: String,
}

impl Layout {
    /// The mark is the directory's own, so that two daemons on one host never sweep each other's containers.
    pub fn of(data_dir: PathBuf) -> Layout {
        let real = std::fs::canonicalize(&data_dir).unwrap_or_else(|_| data_dir.clone());
        let hash = Sha256::digest(real.as_os_str().as_encoded_bytes());
        let mark = hash[..4].iter().map(|byte| format!("{byte:02x}")).collect();
        Layout { data_dir, mark }
    }

    /// Everything that ends with the daemon; emptied at boot.
    pub fn run_dir(&self) -> PathBuf {
        self.data_dir.join("run")
    }

    pub fn bundles_dir(&self) -> PathBuf {
        self.run_dir().join("bundles")
    }

    pub fn bundle(&self, container_id: &str) -> PathBuf {
        self.bundles_dir().join(container_id)
    }

    /// The `--root` of a provider: its runtime's own records.
    pub fn runtime_root(&self, provider: &str) -> PathBuf {
        self.run_dir().join(provider)
    }

    /// Empty file systems, one per size; see `disk`.
    pub fn disk_templates_dir(&self) -> PathBuf {
        self.run_dir().join("disks")
    }

    /// Volumes that nobody has any more, until somebody finds the time to remove what is in them.
    pub fn removed_dir(&self) -> PathBuf {
        self.run_dir().join("removed")
    }

    pub fn volumes_dir(&self, server_name: &str) -> PathBuf {
        self.data_dir.join("volumes").join(server_name)
    }

    pub fn images_dir(&self) -> PathBuf {
        self.data_dir.join("images")
    }

    /// The parent of all cgroups of this daemon, below the root of each hierarchy.
    pub fn cgroup_parent(&self) -> PathBuf {
        Path::new("/").join(format!("stdiod-{}", self.mark))
    }

    pub fn cgroup(&self, container_id: &str) -> PathBuf {
        self.cgroup_parent().join(container_id)
    }
}

/// A container id becomes a file name, a cgroup name and an argument: it must be harmless as each of them.
pub fn is_container_id(id: &str) -> bool {
    let tame = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=64).contains(&id.len()) && id.bytes().all(tame) && !id.starts_with('-')
}

/// The launcher's only word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// The container runs; `pid` is now a child of the daemon.
    Started {
        pid: i32,
        /// Where this host reaches it, if it has a network.
        address: Option<std::net::IpAddr>,
    },
    Failed(LaunchFault),
}

/// A fault with what was being done, the way all of `sandbox/` reports what went wrong with a launch.
pub fn fault(kind: LaunchFaultKind, doing: &str, cause: impl std::fmt::Display) -> LaunchFault {
    LaunchFault { kind, message: format!("{doing}: {cause}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_ids_that_could_be_paths_or_flags_are_refused() {
        assert!(is_container_id("3f2a9c1b-12"));
        for bad in ["", "..", "a/b", "-f", "a b", "A", "a.b", &"a".repeat(65)] {
            assert!(!is_container_id(bad), "{bad:?}");
        }
    }
}
