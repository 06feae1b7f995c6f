//! What the host itself offers: kernel, cgroups, overlay, loop devices, network tools, database, disk. What can be tried
//! without leaving a trace is tried.

use super::trial::{Scratch, Trial, attempt, find, in_private_namespaces, version};
use super::{Check, Need, State};
use crate::cli::Common;
use crate::cli::api::Api;
use crate::cli::table::size;
use crate::config::{Config, Secret};
use crate::limits::{LAUNCHES_PER_CORE, RESTARTS_AT_ONCE, STARTS_AT_ONCE, TRIAL_TIMEOUT};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const DISK_LOW: u64 = 2 << 30;
const CNI_DIRS: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];
const CNI_PLUGINS: [&str; 4] = ["bridge", "host-local", "loopback", "portmap"];
const OVERLAY: &str = "cd \"$1\"
mkdir lower upper work merged
mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged
echo x > merged/file
test -f upper/file";

pub fn kernel() -> Check {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_else(|_| "unknown".to_string());
    Check::ok("kernel", Need::Sometimes, format!("Linux {} {}", release.trim(), std::env::consts::ARCH))
}

pub fn user() -> Check {
    let uid = nix::unistd::geteuid();
    if uid.is_root() {
        return Check::ok("user", Need::Always, "root");
    }
    Check::new("user", Need::Always, State::Missing, format!("uid {uid}: sandboxes need root"))
        .remedy("run the daemon (and this check) as root: sudo stdiod doctor")
}

/// Why a boot with many servers takes its time.
pub fn starts() -> Check {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let found = format!(
        "{STARTS_AT_ONCE} at once, {RESTARTS_AT_ONCE} when servers that ran have died; {} of them at work on {cores} cores",
        LAUNCHES_PER_CORE * cores
    );
    Check::ok("starts", Need::Sometimes, found)
}

pub fn cgroups() -> Check {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let cgroups = Cgroups::of(&mounts, |dir| std::fs::read_to_string(dir.join("cgroup.controllers")).ok());
    let lacking: Vec<&str> =
        ["cpu", "memory", "pids"].into_iter().filter(|one| !cgroups.controllers.contains(*one)).collect();
    let all: Vec<&str> = cgroups.controllers.iter().map(String::as_str).collect();
    let found = format!("{}: {}", cgroups.layout, all.join(" "));
    if lacking.is_empty() {
        return Check::ok("cgroups", Need::Sometimes, found);
    }
    let found = format!("{found}; without {}, whose limits cannot be kept", lacking.join(", "));
    Check::new("cgroups", Need::Sometimes, State::Warn, found)
        .remedy("mount cgroup2 on /sys/fs/cgroup, and look for cgroup_disable on the kernel's command line")
}

#[derive(Debug, PartialEq, Eq)]
struct Cgroups {
    layout: &'static str,
    controllers: BTreeSet<String>,
}

impl Cgroups {
    fn of(mounts: &str, v2_controllers: impl Fn(&Path) -> Option<String>) -> Cgroups {
        let mut controllers = BTreeSet::new();
        let (mut v1, mut v2) = (false, false);
        for line in mounts.lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            let [_, dir, kind, options, ..] = fields.as_slice() else { continue };
            match *kind {
                "cgroup" => {
                    v1 = true;
                    let named = options.split(',').filter(|option| is_controller(option));
                    controllers.extend(named.map(str::to_string));
                }
                "cgroup2" => {
                    v2 = true;
                    let here = v2_controllers(Path::new(dir)).unwrap_or_default();
                    controllers.extend(here.split_whitespace().map(str::to_string));
                }
                _ => {}
            }
        }
        let layout = match (v1, v2) {
            (false, false) => "none mounted",
            (true, false) => "v1",
            (false, true) => "v2",
            (true, true) => "hybrid v1+v2",
        };
        Cgroups { layout, controllers }
    }
}

/// Mount options of a v1 hierarchy are its controllers and a few others.
fn is_controller(option: &str) -> bool {
    const OTHERS: [&str; 9] =
        ["rw", "ro", "nosuid", "nodev", "noexec", "relatime", "noatime", "xattr", "clone_children"];
    !OTHERS.contains(&option) && !option.contains('=')
}

/// The numbers of users inside native containers are others than outside, where that can be had.
pub fn user_namespaces() -> Check {
    let name = "user namespaces";
    let mut unshare = Command::new("unshare");
    unshare.args(["--user", "true"]);
    match attempt(unshare, TRIAL_TIMEOUT) {
        Trial::Worked(_) => Check::ok(name, Need::Sometimes, "one was made; gVisor has users of its own kernel"),
        Trial::Failed(why) => {
            let found = format!("cannot be made ({why}): root in a crun container is root here, without capabilities");
            Check::new(name, Need::Sometimes, State::Warn, found)
                .remedy("sysctl user.max_user_namespaces=15000, if the kernel has them")
        }
        Trial::TimedOut => Check::new(name, Need::Sometimes, State::Warn, "no end within its time"),
    }
}

/// Told because it is asked for; a loop image caps bytes and files alike, and works without.
pub fn project_quotas(data_dir: &Path) -> Check {
    const Q_GETINFO: u32 = 0x0080_0005;
    const PRJQUOTA: u32 = 2;
    let existing = data_dir.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("/"));
    // dqi_bgrace, dqi_igrace, dqi_flags and dqi_valid of the kernel's struct if_dqinfo.
    let mut info = [0_u64; 3];
    let asked = std::fs::File::open(existing).map_err(|e| e.to_string()).and_then(|dir| {
        let (fd, command) = (std::os::fd::AsRawFd::as_raw_fd(&dir), Q_GETINFO << 8 | PRJQUOTA);
        // SAFETY: the last argument is as large as what the kernel writes there.
        let done = unsafe { libc::syscall(libc::SYS_quotactl_fd, fd, command, 0, info.as_mut_ptr()) };
        nix::errno::Errno::result(done).map(drop).map_err(|e| match e {
            nix::errno::Errno::ESRCH => "not turned on for this file system".to_string(),
            nix::errno::Errno::ENOSYS => "not in this kernel".to_string(),
            other => other.to_string(),
        })
    });
    let found = match asked {
        Ok(()) => "on for data_dir, and not used: disks are loop images".to_string(),
        Err(why) => format!("{why}, and not needed: disks are loop images"),
    };
    Check::ok("project quotas", Need::Sometimes, found)
}

/// On the file system of the data directory, because not every one can carry the upper layer.
pub fn overlay(data_dir: &Path) -> Check {
    if !nix::unistd::geteuid().is_root() {
        return Check::new("overlayfs", Need::Always, State::Warn, "not tried, because that needs root");
    }
    let mounted = match Scratch::new(data_dir, "overlay") {
        Ok(scratch) => attempt(in_private_namespaces(OVERLAY, &[scratch.path()]), TRIAL_TIMEOUT),
        Err(why) => Trial::Failed(why.to_string()),
    };
    let why = match mounted {
        Trial::Worked(_) => return Check::ok("overlayfs", Need::Always, "mounted and written to"),
        Trial::Failed(text) => text,
        Trial::TimedOut => "no end within its time".to_string(),
    };
    Check::new("overlayfs", Need::Always, State::Missing, format!("cannot be mounted: {why}"))
        .remedy("modprobe overlay; and keep data_dir on ext4, xfs or btrfs, not on an overlay itself")
}

pub fn loop_devices() -> Check {
    let name = "loop devices";
    let control = std::fs::File::options().read(true).write(true).open("/dev/loop-control");
    match (control, find(Path::new("mkfs.ext4"))) {
        (Ok(_), Some(_)) => Check::ok(name, Need::Sometimes, "/dev/loop-control can be opened"),
        (Ok(_), None) => Check::new(name, Need::Sometimes, State::Missing, "there, but mkfs.ext4 is not")
            .remedy("apt install e2fsprogs"),
        (Err(why), _) => {
            let found = format!("/dev/loop-control: {why}; what servers write counts as their memory");
            Check::new(name, Need::Sometimes, State::Warn, found).remedy("modprobe loop (as root)")
        }
    }
}

pub fn cni_plugins() -> Check {
    let name = "CNI plugins";
    let lacking = |dir: &Path| -> Vec<&str> {
        CNI_PLUGINS.into_iter().filter(|plugin| find(&dir.join(plugin)).is_none()).collect()
    };
    let Some(dir) = CNI_DIRS.into_iter().map(Path::new).find(|dir| dir.is_dir()) else {
        return Check::new(name, Need::Sometimes, State::Missing, "not installed; servers can have no network")
            .remedy("apt install containernetworking-plugins");
    };
    match lacking(dir).as_slice() {
        [] => Check::ok(name, Need::Sometimes, format!("in {}", dir.display())),
        some => Check::new(name, Need::Sometimes, State::Warn, format!("{} lacks {}", dir.display(), some.join(", ")))
            .remedy("apt install containernetworking-plugins"),
    }
}

pub fn nftables() -> Check {
    match find(Path::new("nft")) {
        Some(binary) => Check::ok("nftables", Need::Sometimes, version(&binary)),
        None => Check::new("nftables", Need::Sometimes, State::Missing, "not installed; no ports can be published")
            .remedy("apt install nftables"),
    }
}

pub fn database(config: &Config) -> Check {
    let name = "PostgreSQL";
    if let Some(url) = &config.database_url {
        return match server_version(url) {
            Ok(version) => Check::ok(name, Need::Always, format!("the configured database answers, version {version}")),
            Err(why) => Check::new(
                name,
                Need::Always,
                State::Missing,
                format!("the configured database does not answer: {why}"),
            )
            .remedy("start it, correct database_url, or remove that for a private PostgreSQL"),
        };
    }
    match private_postgres() {
        Some(dir) => {
            let found = format!("{} in {}, for a private database", version(&dir.join("postgres")), dir.display());
            Check::ok(name, Need::Always, found)
        }
        None => Check::new(name, Need::Always, State::Missing, "neither configured nor installed")
            .remedy("apt install postgresql, or set database_url"),
    }
}

fn server_version(url: &Secret) -> Result<String, postgres::Error> {
    let mut config: postgres::Config = url.reveal().parse()?;
    config.connect_timeout(Duration::from_secs(5));
    config.connect(postgres::NoTls)?.query_one("show server_version", &[])?.try_get(0)
}

/// The directory with `initdb` and `postgres`: Debian keeps one per version, outside of the PATH.
fn private_postgres() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut versions: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin"))))
        .collect();
    versions.sort();
    let in_path = find(Path::new("postgres")).and_then(|file| Some(file.parent()?.to_path_buf()));
    let dirs = versions.into_iter().rev().map(|(_, dir)| dir).chain(in_path);
    dirs.into_iter().find(|dir| ["initdb", "postgres"].iter().all(|file| find(&dir.join(file)).is_some()))
}

pub fn disk_space(data_dir: &Path) -> Check {
    let existing = data_dir.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("/"));
    let free = match nix::sys::statvfs::statvfs(existing) {
        Ok(stat) => stat.blocks_available() * stat.fragment_size(),
        Err(why) => {
            let found = format!("{}: {why}", existing.display());
            return Check::new("disk space", Need::Sometimes, State::Warn, found);
        }
    };
    let found = format!("{} free for {}", size(free), data_dir.display());
    if free >= DISK_LOW {
        return Check::ok("disk space", Need::Sometimes, found);
    }
    Check::new("disk space", Need::Sometimes, State::Warn, found).remedy("make room, or set data_dir to a larger disk")
}

pub fn daemon(common: &Common) -> Check {
    match Api::new(common).and_then(|api| api.get("/healthz").map(|_| api.address())) {
        Ok(address) => Check::ok("daemon", Need::Sometimes, format!("answers at {address}")),
        Err(error) => {
            let found = error.message().unwrap_or_default().lines().next().unwrap_or_default().to_string();
            Check::new("daemon", Need::Sometimes, State::Warn, found).remedy("start it: stdiod serve")
        }
    }
}

pub fn debian_codename() -> Option<String> {
    let text = std::fs::read_to_string("/etc/os-release").ok()?;
    let name = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="))?;
    Some(name.trim_matches('"').to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cgroups(mounts: &str, v2: &str) -> (&'static str, Vec<String>) {
        let found = Cgroups::of(mounts, |_| Some(v2.to_string()));
        (found.layout, found.controllers.into_iter().collect())
    }

    #[test]
    fn all_three_cgroup_layouts_are_told_apart() {
        let v1 = "cgroup /sys/fs/cgroup/memory cgroup rw,nosuid,relatime,memory 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/systemd cgroup rw,xattr,name=systemd 0 0";
        let v2 = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,nsdelegate 0 0";
        assert_eq!(cgroups(v1, ""), ("v1", vec!["cpu".into(), "cpuacct".into(), "memory".into()]));
        assert_eq!(cgroups(v2, "cpu memory pids\n"), ("v2", vec!["cpu".into(), "memory".into(), "pids".into()]));
        assert_eq!(cgroups(&format!("{v1}\n{v2}"), "").0, "hybrid v1+v2");
        assert_eq!(cgroups("proc /proc proc rw 0 0\n\nbroken", ""), ("none mounted", vec![]));
    }
}
