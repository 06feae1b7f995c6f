//! What the daemon tells a launcher, and what the launcher says back: two JSON documents, on a memfd and on a socket.
//! Also the one place that knows where things of a daemon lie on disk.

use crate::api::definition::fields::server_name;
use crate::limits::{DISK_RESERVE_DEFAULT, DISK_RESERVE_DISK_PART};
use crate::model::definition::{Definition, Source};
use crate::model::instance::{LaunchFault, LaunchFaultKind, Packages};
use crate::model::ranges::Net;
use crate::sandbox::container::network::{self, Wanted};
use crate::sandbox::container::within::{normal_path, slug};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// Everything a launcher needs to start one instance.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LaunchPlan {
    /// Unique over all lives of the daemon; short, because runtimes build socket paths from it.
    pub container_id: String,
    pub definition: Definition,
    /// What is known of its packages, if it is made of any.
    pub packages: Packages,
    pub runtime: Runtime,
    pub layout: Layout,
    pub networking: Networking,
    /// What the configuration adds to the host's view.
    pub host_paths: Vec<PathBuf>,
    /// What must be free on the disk of the data directory for a launch.
    pub disk_reserve_bytes: u64,
    /// Who waits for the report. A launcher whose parent is another one was orphaned before it could ask the kernel
    /// to die with its parent.
    pub daemon_pid: i32,
    /// It begins when a byte comes on the socket that its report goes to.
    pub waits: bool,
}

impl LaunchPlan {
    /// What a definition says becomes paths, names and rights on this host. Whoever wrote it, and whoever has looked at
    /// it before: here it is looked at for the last time.
    pub fn check(&self) -> Result<(), LaunchFault> {
        let refused = |field: &str, why: &str| Err(fault(LaunchFaultKind::Rootfs, field, why));
        let def = &self.definition;
        if !is_container_id(&self.container_id) {
            return refused("the plan", &format!("{:?} is no container id", self.container_id));
        }
        if let Err(why) = server_name(&def.name) {
            return refused("name", &format!("{:?} {why}", def.name));
        }
        if part(&self.runtime.provider) != self.runtime.provider {
            return refused("provider", &format!("{:?} is no name of a provider", self.runtime.provider));
        }
        let kernels = |path: &Path| ["/proc", "/sys", "/dev"].iter().any(|dir| path.starts_with(dir));
        let is_place =
            |path: &str| normal_path(path).is_some_and(|normal| normal == Path::new(path) && !kernels(&normal));
        if let Some(path) = def.volumes.iter().find(|path| !is_place(path)) {
            return refused("volumes", &format!("{path:?} is no place in a container"));
        }
        if let Some(path) = def.files.keys().find(|path| !is_place(path)) {
            return refused("files", &format!("{path:?} is no place in a container"));
        }
        if def.workdir.as_deref().is_some_and(|dir| dir != "/" && normal_path(dir).is_none()) {
            return refused("workdir", "the path must be absolute and without `..`");
        }
        if def.source == Source::HostRootfs && def.cmd.first().is_none_or(String::is_empty) {
            return refused("cmd", "the host's files have no command of their own");
        }
        match network::wanted(def, &self.networking) {
            Wanted::Host if !self.networking.host_allowed => {
                refused("network", "the host's own is not given away here: see `allow_host_network`")
            }
            Wanted::None | Wanted::Host | Wanted::Private | Wanted::Named(_) => Ok(()),
        }
    }
}

/// What the disk that `dir` is on has left.
pub fn free_bytes(dir: &Path) -> io::Result<u64> {
    let stat = nix::sys::statvfs::statvfs(dir)?;
    Ok(stat.blocks_available().saturating_mul(stat.fragment_size()))
}

/// What servers leave free on the disk that `dir` is on where nobody has said how much.
pub fn default_reserve_bytes(dir: &Path) -> io::Result<u64> {
    let stat = nix::sys::statvfs::statvfs(dir)?;
    let all = stat.blocks().saturating_mul(stat.fragment_size());
    Ok(DISK_RESERVE_DEFAULT.min(all / DISK_RESERVE_DISK_PART))
}

/// A name as one part of a path. Every path that is made of a name is made through here: whatever the name is, the path
/// does not lead out of its directory, nor is it the directory.
fn part(name: &str) -> String {
    match slug(Path::new(name)) {
        part if name.starts_with('/') => format!("%2F{part}"),
        part if part.is_empty() => "%".to_owned(),
        part => part,
    }
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
    /// A sandbox in which nothing happens takes CPU time all the same.
    #[serde(default)]
    pub polls: bool,
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
    /// Private ranges that a network leads to, by its name.
    pub allow_private: BTreeMap<String, Vec<Net>>,
    /// May a server have the host's own?
    pub host_allowed: bool,
}

impl Networking {
    pub fn allowed(&self, network: &str) -> &[Net] {
        self.allow_private.get(network).map(Vec::as_slice).unwrap_or_default()
    }
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
        self.bundles_dir().join(part(container_id))
    }

    /// The `--root` of a provider: its runtime's own records.
    pub fn runtime_root(&self, provider: &str) -> PathBuf {
        self.run_dir().join(part(provider))
    }

    /// Empty file systems, one per size; see `disk`.
    pub fn disk_templates_dir(&self) -> PathBuf {
        self.run_dir().join("disks")
    }

    /// Volumes that nobody has any more, until somebody finds the time to remove what is in them.
    pub fn removed_dir(&self) -> PathBuf {
        self.run_dir().join("removed")
    }

    /// Servers whose volumes have been mounted in this life of the daemon; see `volume_image`.
    pub fn seen_volumes_dir(&self) -> PathBuf {
        self.run_dir().join("volumes-seen")
    }

    pub fn volumes_root(&self) -> PathBuf {
        self.data_dir.join("volumes")
    }

    pub fn volumes_dir(&self, server_name: &str) -> PathBuf {
        self.volumes_root().join(part(server_name))
    }

    pub fn images_dir(&self) -> PathBuf {
        self.data_dir.join("images")
    }

    /// The parent of all cgroups of this daemon, below the root of each hierarchy.
    pub fn cgroup_parent(&self) -> PathBuf {
        Path::new("/").join(format!("stdiod-{}", part(&self.mark)))
    }

    pub fn cgroup(&self, container_id: &str) -> PathBuf {
        self.cgroup_parent().join(part(container_id))
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
        runs: Runs,
    },
    Failed(LaunchFault),
}

/// What was launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Runs {
    Server,
    /// What fetches its packages.
    Install,
}

/// A fault with what was being done, the way all of `sandbox/` reports what went wrong with a launch.
pub fn fault(kind: LaunchFaultKind, doing: &str, cause: impl std::fmt::Display) -> LaunchFault {
    LaunchFault { kind, message: format!("{doing}: {cause}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_leads_out_of_its_directory_and_no_two_share_one() {
        let layout = Layout { data_dir: "/d".into(), mark: "m".into() };
        let mut seen = std::collections::BTreeSet::new();
        for name in ["a", "", ".", "..", "/", "/a", "a/", "../../../vault", "a/../b", "\0", "%", "%2F", "volumes/.."] {
            let paths = [layout.volumes_dir(name), layout.bundle(name), layout.runtime_root(name), layout.cgroup(name)];
            for path in paths {
                let parent = path.parent().unwrap();
                assert!(
                    [layout.volumes_root(), layout.bundles_dir(), layout.run_dir(), layout.cgroup_parent()]
                        .contains(&parent.into()),
                    "{name:?}: {path:?}"
                );
                assert!(
                    path.to_str().unwrap().split('/').skip(1).all(|part| !matches!(part, "" | "." | "..")),
                    "{path:?}"
                );
            }
            assert!(seen.insert(layout.volumes_dir(name)), "{name:?}");
        }
        assert_eq!(layout.volumes_dir("my-server-1"), Path::new("/d/volumes/my-server-1"));
    }

    fn plan() -> LaunchPlan {
        LaunchPlan {
            container_id: "x-1".into(),
            definition: crate::sandbox::host::probe::trivial(&["x"]),
            packages: Packages::AsKept,
            runtime: Runtime {
                provider: "crun".into(),
                kind: RuntimeKind::Native,
                binary: "/usr/bin/crun".into(),
                args: vec![],
                users: Users::Shifted,
                polls: false,
            },
            layout: Layout { data_dir: "/d".into(), mark: "m".into() },
            networking: Networking::default(),
            host_paths: Vec::new(),
            disk_reserve_bytes: 0,
            daemon_pid: 1,
            waits: false,
        }
    }

    #[test]
    fn a_definition_that_no_request_could_have_made_is_refused_by_its_field() {
        assert!(plan().check().is_ok());
        type Spoil = fn(&mut LaunchPlan);
        let cases: [(&str, Spoil); 12] = [
            ("the plan", |p| p.container_id = "../x".into()),
            ("name", |p| p.definition.name = "../../../vault".into()),
            ("name", |p| p.definition.name = String::new()),
            ("provider", |p| p.runtime.provider = "../x".into()),
            ("volumes", |p| p.definition.volumes = vec!["/a/../../etc".into()]),
            ("volumes", |p| p.definition.volumes = vec!["/".into()]),
            ("volumes", |p| p.definition.volumes = vec!["/proc/self".into()]),
            ("files", |p| _ = p.definition.files.insert("etc/shadow".into(), String::new())),
            ("files", |p| _ = p.definition.files.insert("/../etc/shadow".into(), String::new())),
            ("workdir", |p| p.definition.workdir = Some("../..".into())),
            ("cmd", |p| p.definition.cmd.clear()),
            ("network", |p| p.definition.network = Some("host".into())),
        ];
        for (field, spoil) in cases {
            let mut plan = plan();
            spoil(&mut plan);
            let message = plan.check().unwrap_err().message;
            assert!(message.starts_with(&format!("{field}: ")), "{message}");
        }
        let mut allowed = plan();
        allowed.definition.network = Some("host".into());
        allowed.networking.host_allowed = true;
        assert!(allowed.check().is_ok());
    }

    #[test]
    fn container_ids_that_could_be_paths_or_flags_are_refused() {
        assert!(is_container_id("3f2a9c1b-12"));
        for bad in ["", "..", "a/b", "-f", "a b", "A", "a.b", &"a".repeat(65)] {
            assert!(!is_container_id(bad), "{bad:?}");
        }
    }
}
