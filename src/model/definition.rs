//! What a server is, as its operator defined it: validated once by `api/register.rs`, kept in the store as JSON, and
//! read by the core (policy), the sandbox (spec) and the API (status). It never changes while an instance lives.

use crate::model::external::ProjectId;
use ::core::fmt;
use ::core::net::{IpAddr, Ipv4Addr};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What is mounted over every container's root; nothing of the root is seen there.
pub const COVERED: [&str; 4] = ["/proc", "/sys", "/dev", "/tmp"];
/// Directories of the host that make up its view: programs, and what programs need to find each other. Nothing that
/// holds data, keys or configuration of the host itself. The configuration's `host_paths` adds to them.
pub const HOST_DIRS: [&str; 9] = [
    "/usr",
    "/etc/alternatives",
    "/etc/ssl/certs",
    "/etc/ca-certificates",
    "/etc/pki/ca-trust",
    "/etc/pki/tls/certs",
    "/etc/ld.so.conf.d",
    "/etc/fonts",
    "/etc/terminfo",
];
/// Links into /usr on a merged host, directories of their own on an old one.
pub const HOST_LINKS: [&str; 6] = ["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    pub name: String,
    pub source: Source,
    #[serde(default)]
    pub pull_policy: PullPolicy,
    /// Empty: the image's own command.
    pub cmd: Vec<String>,
    pub stdio_bridge: bool,
    pub restart_policy: RestartPolicy,
    /// Values are secrets: never shown, never logged.
    pub environment: BTreeMap<String, String>,
    pub volumes: Vec<String>,
    /// Those of `volumes` that the server may not write to.
    #[serde(default)]
    pub read_only_volumes: BTreeSet<String>,
    pub resource_limits: ResourceLimits,
    /// A provider named in the registration, or none: the daemon's default at the time of each start.
    pub provider: Option<String>,
    pub ports: Vec<PortMapping>,
    /// None: the daemon's default, and with `ports` one where nothing but these is open.
    pub network: Option<String>,
    /// Where connections may go; none: wherever the network leads.
    #[serde(default)]
    pub egress: Option<Vec<Egress>>,
    pub user: Option<String>,
    pub workdir: Option<String>,
    pub files: BTreeMap<String, String>,
    /// The project whose tools it is among, and whose tokens see it.
    #[serde(default)]
    pub project: Option<ProjectId>,
    /// What made it and looks after it, as `stdiod apply` does.
    #[serde(default)]
    pub managed_by: Option<String>,
    pub max_in_flight: u32,
    pub queue_max: u32,
    pub shared: bool,
    pub framing: Framing,
    pub request_timeout_ms: u64,
    pub startup_timeout_ms: u64,
    /// For one attempt to fetch its packages.
    #[serde(default = "install_timeout_ms")]
    pub install_timeout_ms: u64,
    pub health: Health,
    pub crash_loop: CrashLoop,
    #[serde(default)]
    pub idle: Idle,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// `name[:tag]` of an image in the image store.
    Image(String),
    /// A read-only view of the host's `/usr` and friends.
    HostRootfs,
}

/// When a registry is asked for a server's image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PullPolicy {
    /// If it is not here.
    #[default]
    Missing,
    /// Before every start but a restart after a crash: a registry that is away must not keep a server down that was up.
    Always,
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Framing {
    Auto,
    Newline,
    ContentLength,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResourceLimits {
    /// Thousandths of a core.
    pub cpu_milli: u32,
    pub memory_bytes: u64,
    pub disk_bytes: u64,
    pub pids: u32,
    /// Of all volumes together; none: as `disk_bytes`.
    #[serde(default)]
    pub volume_bytes: Option<u64>,
}

impl ResourceLimits {
    pub fn volume_bytes(&self) -> u64 {
        self.volume_bytes.unwrap_or(self.disk_bytes)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortMapping {
    pub host: u16,
    pub container: u16,
    #[serde(default = "loopback")]
    pub address: IpAddr,
}

fn install_timeout_ms() -> u64 {
    crate::limits::INSTALL_TIMEOUT_DEFAULT.as_millis() as u64
}

fn loopback() -> IpAddr {
    IpAddr::V4(Ipv4Addr::LOCALHOST)
}

impl PortMapping {
    /// Can only one of them be listened on? An unspecified address is all of them.
    pub fn collides_with(&self, other: &PortMapping) -> bool {
        let everywhere = self.address.is_unspecified() || other.address.is_unspecified();
        self.host == other.host && (everywhere || self.address == other.address)
    }
}

/// `127.0.0.1:8080:80`
impl fmt::Display for PortMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            IpAddr::V4(address) => write!(f, "{address}:{}:{}", self.host, self.container),
            IpAddr::V6(address) => write!(f, "[{address}]:{}:{}", self.host, self.container),
        }
    }
}

/// One destination that a server may connect to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Egress {
    pub target: EgressTarget,
    /// None: all of them, whatever the protocol.
    pub port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EgressTarget {
    /// A name, resolved at each start.
    Host(String),
    Net {
        address: IpAddr,
        prefix: u8,
    },
}

impl fmt::Display for Egress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.target, self.port) {
            (EgressTarget::Host(host), _) => f.write_str(host)?,
            (EgressTarget::Net { address: IpAddr::V4(address), prefix: 32 }, _) => write!(f, "{address}")?,
            (EgressTarget::Net { address: IpAddr::V6(address), prefix: 128 }, None) => write!(f, "{address}")?,
            (EgressTarget::Net { address: IpAddr::V6(address), prefix: 128 }, Some(_)) => write!(f, "[{address}]")?,
            (EgressTarget::Net { address, prefix }, _) => write!(f, "{address}/{prefix}")?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Health {
    pub heartbeat_ms: u64,
    pub probe_timeout_ms: u64,
    /// A server whose last sign of life is older than this is reported as stale; none: never.
    #[serde(default)]
    pub stale_ms: Option<u64>,
    pub on_unresponsive: OnUnresponsive,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnUnresponsive {
    Report,
    Restart,
}

/// What becomes of a server that nobody uses. What is not said is the daemon's own rule for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Idle {
    /// After so long without a request.
    #[serde(default)]
    pub after_ms: Option<u64>,
    #[serde(default)]
    pub mode: Option<IdleMode>,
    #[serde(default)]
    pub start: Option<IdleStart>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IdleMode {
    /// Nothing, whatever the daemon does with others.
    Off,
    /// Frozen: it has its memory and gets no CPU.
    Doze,
    /// Ended; whoever wakes it has a new instance.
    Stop,
}

impl IdleMode {
    pub fn wire(self) -> &'static str {
        match self {
            IdleMode::Off => "off",
            IdleMode::Doze => "doze",
            IdleMode::Stop => "stop",
        }
    }
}

/// When the daemon starts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IdleStart {
    /// With itself.
    Boot,
    /// With the first request, if it is known from an earlier life what the server offers.
    OnDemand,
}

impl Idle {
    pub fn is_unsaid(&self) -> bool {
        *self == Idle::default()
    }

    /// With what another rule says where this one says nothing.
    pub fn or(self, other: Idle) -> Idle {
        Idle {
            after_ms: self.after_ms.or(other.after_ms),
            mode: self.mode.or(other.mode),
            start: self.start.or(other.start),
        }
    }
}

/// When deaths become a crash loop, and what follows then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CrashLoop {
    /// More deaths than this within `window_ms` are a loop.
    pub threshold: u32,
    pub window_ms: u64,
    /// The delays of a loop, level by level; the last one repeats.
    pub schedule_ms: Vec<u64>,
    /// Restarts before the server is given up as `failed`; none: without end.
    pub max_attempts: Option<u32>,
    /// The level falls back to nothing after so long in `ready`.
    pub stable_ms: u64,
    /// The schedule holds from the first death on, whatever the window.
    pub relentless: bool,
}

impl Default for CrashLoop {
    fn default() -> CrashLoop {
        CrashLoop {
            threshold: 3,
            window_ms: 60_000,
            schedule_ms: vec![5_000, 15_000, 45_000, 120_000, 300_000],
            max_attempts: None,
            stable_ms: 60_000,
            relentless: false,
        }
    }
}

impl CrashLoop {
    pub fn relentless() -> CrashLoop {
        CrashLoop {
            schedule_ms: vec![0, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000],
            relentless: true,
            ..CrashLoop::default()
        }
    }
}

impl Default for Health {
    fn default() -> Health {
        Health {
            heartbeat_ms: 30_000,
            probe_timeout_ms: 3_000,
            stale_ms: None,
            on_unresponsive: OnUnresponsive::Report,
        }
    }
}

impl Default for ResourceLimits {
    fn default() -> ResourceLimits {
        ResourceLimits { cpu_milli: 500, memory_bytes: 512 << 20, disk_bytes: 1 << 30, pids: 256, volume_bytes: None }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A plain host server, for tests of what stands on definitions.
    pub fn definition() -> Definition {
        Definition {
            name: "echo".to_string(),
            source: Source::HostRootfs,
            pull_policy: PullPolicy::Missing,
            cmd: vec!["cat".to_string()],
            stdio_bridge: true,
            restart_policy: RestartPolicy::Always,
            environment: BTreeMap::new(),
            volumes: Vec::new(),
            read_only_volumes: BTreeSet::new(),
            resource_limits: ResourceLimits::default(),
            provider: None,
            ports: Vec::new(),
            network: None,
            egress: None,
            user: None,
            workdir: None,
            files: BTreeMap::new(),
            project: None,
            managed_by: None,
            max_in_flight: 1,
            queue_max: 256,
            shared: true,
            framing: Framing::Auto,
            request_timeout_ms: 30_000,
            startup_timeout_ms: 60_000,
            install_timeout_ms: 600_000,
            health: Health::default(),
            crash_loop: CrashLoop::default(),
            idle: Idle::default(),
        }
    }
}
