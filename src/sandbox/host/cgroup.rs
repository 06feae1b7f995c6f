//! Cgroups as they are on this host: v1, v2 or both, found by looking at what is mounted. Owns the reading of an
//! instance's accounts and the end of its processes; the instance's own cgroup is made by the runtime, only the
//! launcher's here. Never touches a process or directory that does not lie below `/stdiod-<mark>`.

use crate::limits::CGROUP_FILE_MAX;
use crate::model::definition::ResourceLimits;
use crate::model::status::Usage;
use crate::sandbox::container::plan::Layout;
use crate::sandbox::container::spec::{CPU_PERIOD_US, cpu_quota_us};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    V1,
    V2,
    /// Controllers on v1, and a v2 tree beside them.
    Hybrid,
}

/// The hierarchies of a host and where they are mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchies {
    /// By controller (`memory`, `name=systemd`); controllers mounted together share a directory.
    pub v1: BTreeMap<String, PathBuf>,
    pub v2: Option<PathBuf>,
}

impl Hierarchies {
    /// What the text of `/proc/self/mountinfo` says; none if no cgroup is mounted at all.
    pub fn detect(mountinfo: &str) -> Option<Hierarchies> {
        let mut found = Hierarchies { v1: BTreeMap::new(), v2: None };
        for line in mountinfo.lines() {
            // 36 35 98:0 /root /mount/point rw,opts [optional …] - type source super,options
            let Some((left, right)) = line.split_once(" - ") else { continue };
            let Some(point) = left.split(' ').nth(4).map(unescape) else { continue };
            // Runtimes look below /sys/fs/cgroup and nowhere else; a copy in a chroot or a container is not ours.
            if !point.starts_with("/sys/fs/cgroup") {
                continue;
            }
            let mut right = right.split(' ');
            match (right.next(), right.nth(1)) {
                (Some("cgroup2"), _) => {
                    found.v2.get_or_insert(point);
                }
                (Some("cgroup"), Some(options)) => {
                    for name in options.split(',').filter(|o| is_controller(o)) {
                        found.v1.entry(name.to_owned()).or_insert_with(|| point.clone());
                    }
                }
                (_, _) => {}
            }
        }
        (found.v2.is_some() || !found.v1.is_empty()).then_some(found)
    }

    pub fn of_this_host() -> Option<Hierarchies> {
        Hierarchies::detect(&fs::read_to_string("/proc/self/mountinfo").ok()?)
    }

    pub fn mode(&self) -> Mode {
        match (self.v1.is_empty(), &self.v2) {
            (true, _) => Mode::V2,
            (false, Some(_)) => Mode::Hybrid,
            (false, None) => Mode::V1,
        }
    }

    /// A cgroup (`/a/b`) in every hierarchy, each directory once.
    fn directories(&self, cgroup: &Path) -> Vec<PathBuf> {
        let mut dirs: Vec<PathBuf> = self.v1.values().chain(&self.v2).map(|m| below(m, cgroup)).collect();
        dirs.sort();
        dirs.dedup();
        dirs
    }

    /// The directory where one controller keeps a cgroup's files.
    fn controller(&self, name: &str, cgroup: &Path) -> Option<Account> {
        match (self.v1.get(name), &self.v2) {
            (Some(mount), _) => Some(Account::V1(below(mount, cgroup))),
            (None, Some(mount)) => Some(Account::V2(below(mount, cgroup))),
            (None, None) => None,
        }
    }

    /// The cgroup of an instance, and with it the one of its launcher: who ends the first must end the second too.
    pub fn instance(&self, layout: &Layout, container_id: &str) -> CgroupFiles {
        let mut files = self.files(&layout.cgroup(container_id));
        files.dirs.extend(self.launcher(layout, container_id));
        files
    }

    /// Moves the calling process, a launcher, below the mark before it makes anything. The runtime and whatever it
    /// forks are then there as well until the runtime moves them to the instance's own cgroup, so that at no moment a
    /// process of a launch is out of reach of `kill_and_remove`.
    pub fn join_as_launcher(&self, layout: &Layout, container_id: &str) -> io::Result<()> {
        let Some(dir) = self.launcher(layout, container_id) else { return Ok(()) };
        fs::create_dir_all(&dir)?;
        fs::write(dir.join("cgroup.procs"), "0")
    }

    /// One hierarchy is enough to find a process by; the freezer's can be ended without a race.
    fn launcher(&self, layout: &Layout, container_id: &str) -> Option<PathBuf> {
        let mount = self.v1.get("freezer").or_else(|| self.v1.values().next()).or(self.v2.as_ref())?;
        Some(below(mount, &layout.cgroup(&format!("{container_id}-launch"))))
    }

    /// The parent of all instances of a daemon.
    pub fn parent(&self, layout: &Layout) -> CgroupFiles {
        self.files(&layout.cgroup_parent())
    }

    fn files(&self, cgroup: &Path) -> CgroupFiles {
        CgroupFiles {
            dirs: self.directories(cgroup),
            memory: self.controller("memory", cgroup),
            cpu: self.controller("cpuacct", cgroup),
            cpu_quota: self.controller("cpu", cgroup),
            pids: self.controller("pids", cgroup),
            freezer: self.freezer(cgroup),
        }
    }

    /// On v2 every cgroup can be frozen; on v1 a hierarchy of its own does that.
    fn freezer(&self, cgroup: &Path) -> Option<Account> {
        match (self.v1.get("freezer"), &self.v2) {
            (Some(mount), _) => Some(Account::V1(below(mount, cgroup))),
            // Beside controllers on v1 the runtime may not have put it into the other tree.
            (None, Some(mount)) if self.v1.is_empty() => Some(Account::V2(below(mount, cgroup))),
            (None, _) => None,
        }
    }

    /// On v2 a controller works in a cgroup only if every one above hands it down. Says whether swap is counted too:
    /// where it is not, the file for its limit is missing, and a runtime asked to write it would fail.
    pub fn prepare(&self, layout: &Layout) -> io::Result<Prepared> {
        let parent = layout.cgroup_parent();
        match (self.v1.get("memory"), &self.v2) {
            (Some(memory), _) => Ok(Prepared { counts_swap: memory.join("memory.memsw.limit_in_bytes").exists() }),
            (None, Some(mount)) => {
                let dir = below(mount, &parent);
                hand_down(mount)?;
                fs::create_dir_all(&dir)?;
                hand_down(&dir)?;
                Ok(Prepared { counts_swap: dir.join("memory.swap.max").exists() })
            }
            (None, None) => Ok(Prepared { counts_swap: false }),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prepared {
    pub counts_swap: bool,
}

/// One controller's directory of a cgroup, with the spelling of its files.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Account {
    V1(PathBuf),
    V2(PathBuf),
}

/// The files of one cgroup. They stay readable after the last process is gone, until the cgroup is removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupFiles {
    dirs: Vec<PathBuf>,
    memory: Option<Account>,
    /// What was used, and what may be.
    cpu: Option<Account>,
    cpu_quota: Option<Account>,
    pids: Option<Account>,
    freezer: Option<Account>,
}

impl CgroupFiles {
    /// Makes the cgroup and moves the calling process into it, wherever the kernel takes it: a v1 cpuset, which has no
    /// CPUs of its own yet, does not.
    pub fn enter(&self) -> io::Result<()> {
        let mut refused = Err(io::ErrorKind::NotFound.into());
        let mut entered = false;
        for dir in &self.dirs {
            match fs::create_dir_all(dir).and_then(|()| fs::write(dir.join("cgroup.procs"), "0")) {
                Ok(()) => entered = true,
                Err(e) => refused = Err(e),
            }
        }
        if entered { Ok(()) } else { refused }
    }

    /// The limits of a process that no runtime sets them for. A controller that is not there cannot be told: as for
    /// containers, it is the host's operator who turns them on.
    pub fn limit(&self, limits: &ResourceLimits, counts_swap: bool) -> io::Result<()> {
        let (memory, pids) = (limits.memory_bytes.to_string(), limits.pids.to_string());
        let (quota, period) = (cpu_quota_us(limits), CPU_PERIOD_US);
        let mut files: Vec<(PathBuf, String)> = Vec::new();
        match &self.memory {
            Some(Account::V1(dir)) => {
                files.push((dir.join("memory.limit_in_bytes"), memory.clone()));
                if counts_swap {
                    files.push((dir.join("memory.memsw.limit_in_bytes"), memory));
                }
            }
            Some(Account::V2(dir)) => {
                files.push((dir.join("memory.max"), memory));
                if counts_swap {
                    files.push((dir.join("memory.swap.max"), "0".to_owned()));
                }
            }
            None => {}
        }
        match &self.cpu_quota {
            Some(Account::V1(dir)) => {
                files.push((dir.join("cpu.cfs_period_us"), period.to_string()));
                files.push((dir.join("cpu.cfs_quota_us"), quota.to_string()));
            }
            Some(Account::V2(dir)) => files.push((dir.join("cpu.max"), format!("{quota} {period}"))),
            None => {}
        }
        if let Some(Account::V1(dir) | Account::V2(dir)) = &self.pids {
            files.push((dir.join("pids.max"), pids));
        }
        for (file, value) in files {
            fs::write(&file, value).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", file.display())))?;
        }
        Ok(())
    }

    /// Was the kernel's OOM killer at work here? Ask before the cgroup is removed, and only when `oom_kills_of_host` makes
    /// it worth asking.
    pub fn oom_killed(&self) -> bool {
        let text = match &self.memory {
            Some(Account::V1(dir)) => fs::read_to_string(dir.join("memory.oom_control")),
            Some(Account::V2(dir)) => fs::read_to_string(dir.join("memory.events")),
            None => return false,
        };
        text.is_ok_and(|text| field(&text, "oom_kill").unwrap_or(0) > 0)
    }

    /// What freezes and thaws all that is in it. Opened once: the way to it may be barred for a while, whenever somebody makes or
    /// removes a cgroup.
    pub fn freezer(&self) -> io::Result<Freezer> {
        let (file, words) = match &self.freezer {
            Some(Account::V1(dir)) => (dir.join("freezer.state"), ["FROZEN", "THAWED"]),
            Some(Account::V2(dir)) => (dir.join("cgroup.freeze"), ["1", "0"]),
            None => return Err(io::Error::other("no cgroup of this host can be frozen")),
        };
        Ok(Freezer { file: fs::OpenOptions::new().write(true).open(file)?, words })
    }

    /// The processes in it, as far as they can be told.
    pub fn processes(&self) -> Vec<i32> {
        let list = self.dirs.first().and_then(|dir| fs::read_to_string(dir.join("cgroup.procs")).ok());
        list.unwrap_or_default().lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 1).collect()
    }

    /// What the cgroup has used. `cpu_percent` and `disk_bytes` are not the cgroup's to know, and stay 0.
    pub fn usage(&self) -> Option<Usage> {
        Some(Usage {
            cpu_ms_total: self.cpu_ms()?,
            memory_bytes: self.memory()?,
            pids: self.pids()?,
            ..Usage::default()
        })
    }

    pub fn cpu_ms(&self) -> Option<u64> {
        Some(self.cpu_us()? / 1000)
    }

    pub fn cpu_us(&self) -> Option<u64> {
        match self.cpu.as_ref()? {
            Account::V1(dir) => Some(number(&dir.join("cpuacct.usage"))? / 1000),
            Account::V2(dir) => field(&text_of(&dir.join("cpu.stat"))?, "usage_usec"),
        }
    }

    /// Without the page cache that the kernel would give back at once: what counts towards an OOM.
    fn memory(&self) -> Option<u64> {
        let (used, stat, idle) = match self.memory.as_ref()? {
            Account::V1(dir) => (dir.join("memory.usage_in_bytes"), dir.join("memory.stat"), "total_inactive_file"),
            Account::V2(dir) => (dir.join("memory.current"), dir.join("memory.stat"), "inactive_file"),
        };
        let idle = text_of(&stat).and_then(|text| field(&text, idle)).unwrap_or(0);
        Some(number(&used)?.saturating_sub(idle))
    }

    fn pids(&self) -> Option<u64> {
        match self.pids.as_ref()? {
            Account::V1(dir) | Account::V2(dir) => number(&dir.join("pids.current")),
        }
    }

    /// Ends every process in this cgroup and the ones below it, and removes them all. Nothing there: nothing to do.
    /// Fails if it is not done by `limit`; a process in the kernel's uninterruptible sleep can do that.
    pub fn kill_and_remove(&self, limit: Duration) -> io::Result<()> {
        let start = Instant::now();
        let mut pause = Duration::from_millis(1);
        loop {
            // Done only when a look finds nothing: a runtime that is killed may still finish one call, and that can be
            // the making of a directory that was just removed.
            let there: Vec<&PathBuf> = self.dirs.iter().filter(|dir| dir.is_dir()).collect();
            if there.is_empty() {
                return Ok(());
            }
            there.iter().for_each(|dir| kill_in(dir));
            let left: Vec<io::Error> = there.iter().filter_map(|dir| remove_dirs(dir).err()).collect();
            if start.elapsed() > limit {
                let why = left.first().map_or_else(|| "cgroups are made anew".to_owned(), ToString::to_string);
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
            if !left.is_empty() {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(50));
            }
        }
    }

    /// Only if nothing is left in it.
    pub fn remove_if_empty(&self) {
        for dir in &self.dirs {
            let _ = fs::remove_dir(dir);
        }
    }
}

/// Of one cgroup. A process in it gets no CPU from `freeze` to `thaw`, and on v1 no signal either.
pub struct Freezer {
    file: fs::File,
    words: [&'static str; 2],
}

impl Freezer {
    pub fn freeze(&self) -> io::Result<()> {
        self.file.write_all_at(self.words[0].as_bytes(), 0)
    }

    pub fn thaw(&self) -> io::Result<()> {
        self.file.write_all_at(self.words[1].as_bytes(), 0)
    }
}

fn is_controller(option: &str) -> bool {
    let known = [
        "cpu",
        "cpuacct",
        "cpuset",
        "memory",
        "devices",
        "freezer",
        "blkio",
        "pids",
        "net_cls",
        "net_prio",
        "perf_event",
        "hugetlb",
        "rdma",
        "misc",
    ];
    known.contains(&option) || option.starts_with("name=")
}

fn below(mount: &Path, cgroup: &Path) -> PathBuf {
    mount.join(cgroup.strip_prefix("/").unwrap_or(cgroup))
}

fn hand_down(dir: &Path) -> io::Result<()> {
    let offered = fs::read_to_string(dir.join("cgroup.controllers"))?;
    let control = dir.join("cgroup.subtree_control");
    let given = fs::read_to_string(&control)?;
    for name in ["cpu", "memory", "pids"] {
        let has = |list: &str| list.split_whitespace().any(|c| c == name);
        if !has(&offered) {
            return Err(io::Error::other(format!("cgroup {} has no {name} controller to give", dir.display())));
        }
        if !has(&given) {
            fs::write(&control, format!("+{name}"))?;
        }
    }
    Ok(())
}

/// `\040` and friends, the way mountinfo spells blanks.
fn unescape(text: &str) -> PathBuf {
    let mut out = Vec::new();
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let code = (bytes[at] == b'\\').then(|| text.get(at + 1..at + 4)).flatten();
        match code.and_then(|octal| u8::from_str_radix(octal, 8).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 4;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from(String::from_utf8_lossy(&out).into_owned()))
}

/// How often the OOM killer has been at work on this host, for whatever reason; None if this kernel does not say. Costs
/// some ten microseconds, while the way to a cgroup's own count may be barred for many milliseconds, whenever somebody makes
/// or removes a cgroup.
pub fn oom_kills_of_host() -> Option<u64> {
    field(&text_of(Path::new("/proc/vmstat"))?, "oom_kill")
}

fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().filter_map(|line| line.split_once(' ')).find(|(key, _)| *key == name)?.1.trim().parse().ok()
}

fn number(path: &Path) -> Option<u64> {
    text_of(path)?.trim().parse().ok()
}

/// In one read: these files say that they are empty, and whoever believes it reads them in many small pieces.
fn text_of(path: &Path) -> Option<String> {
    let mut text = String::with_capacity(CGROUP_FILE_MAX as usize);
    fs::File::open(path).ok()?.take(CGROUP_FILE_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

fn kill_in(dir: &Path) {
    for child in children(dir) {
        kill_in(&child);
    }
    // v2, since Linux 5.14: all at once, forks included.
    if fs::write(dir.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    // Frozen, nothing can fork between the reading of the list and the last kill. SIGKILL waits for the thaw.
    let freezer = dir.join("freezer.state");
    let frozen = freezer.exists() && fs::write(&freezer, "FROZEN").is_ok();
    let list = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    // A process of a foreign pid namespace is listed as 0, and kill(0) would be our own group.
    for pid in list.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|pid| *pid > 1) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
    if frozen {
        let _ = fs::write(&freezer, "THAWED");
    }
}

fn remove_dirs(dir: &Path) -> io::Result<()> {
    for child in children(dir) {
        remove_dirs(&child)?;
    }
    match fs::remove_dir(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn children(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded: one controller per directory, `unified` beside them.
    const HYBRID: &str = "\
23 27 0:22 / /sys rw,relatime - sysfs sysfs rw
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
    /// Debian 12 and 13 with systemd.
    const V2: &str = "\
24 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
26 22 0:23 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
";
    /// Debian 9 with systemd: controllers mounted together, and symlinks for the single names.
    const V1: &str = "\
25 19 0:20 / /sys/fs/cgroup ro,nosuid,nodev,noexec shared:9 - tmpfs tmpfs ro,mode=755
26 25 0:21 / /sys/fs/cgroup/systemd rw,nosuid,nodev,noexec,relatime shared:10 - cgroup cgroup rw,xattr,release_agent=/lib/systemd/systemd-cgroups-agent,name=systemd
29 25 0:25 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid,nodev,noexec,relatime shared:13 - cgroup cgroup rw,cpu,cpuacct
30 25 0:26 / /sys/fs/cgroup/memory rw,nosuid,nodev,noexec,relatime shared:14 - cgroup cgroup rw,memory
31 25 0:27 / /sys/fs/cgroup/pids rw,nosuid,nodev,noexec,relatime shared:15 - cgroup cgroup rw,pids
99 25 0:26 / /srv/chroot/sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
";

    fn layout() -> Layout {
        Layout { data_dir: "/var/lib/stdiod".into(), mark: "3f2a9c1b".into() }
    }

    #[test]
    fn each_layout_is_known_by_its_mounts() {
        let mode = |text: &str| Hierarchies::detect(text).map(|h| h.mode());
        assert_eq!(mode(HYBRID), Some(Mode::Hybrid));
        assert_eq!(mode(V2), Some(Mode::V2));
        assert_eq!(mode(V1), Some(Mode::V1));
        assert_eq!(mode("24 1 8:1 / / rw - ext4 /dev/sda1 rw\nnonsense\n\n - \n"), None);
    }

    #[test]
    fn an_instance_has_one_directory_per_hierarchy_and_one_for_its_launcher() {
        let dirs = |text: &str| Hierarchies::detect(text).unwrap().instance(&layout(), "3f2a9c1b-7").dirs;
        let below = |mount: &str, id: &str| PathBuf::from(format!("/sys/fs/cgroup{mount}/stdiod-3f2a9c1b/{id}"));
        assert_eq!(dirs(V2), [below("", "3f2a9c1b-7"), below("", "3f2a9c1b-7-launch")]);
        let mut v1 = ["/cpu,cpuacct", "/memory", "/pids", "/systemd"].map(|m| below(m, "3f2a9c1b-7")).to_vec();
        v1.push(below("/cpu,cpuacct", "3f2a9c1b-7-launch"));
        assert_eq!(dirs(V1), v1);
        assert_eq!(dirs(HYBRID).len(), 7);
    }

    #[test]
    fn a_controller_on_v1_is_read_there_even_when_v2_is_mounted_too() {
        let files = Hierarchies::detect(HYBRID).unwrap().instance(&layout(), "x-1");
        assert_eq!(files.memory, Some(Account::V1("/sys/fs/cgroup/memory/stdiod-3f2a9c1b/x-1".into())));
        let files = Hierarchies::detect(V2).unwrap().instance(&layout(), "x-1");
        assert_eq!(files.cpu, Some(Account::V2("/sys/fs/cgroup/stdiod-3f2a9c1b/x-1".into())));
    }

    #[test]
    fn blanks_in_mount_points_are_read_as_blanks() {
        assert_eq!(unescape("/a\\040b\\134c"), PathBuf::from("/a b\\c"));
        assert_eq!(unescape("/a\\9"), PathBuf::from("/a\\9"));
    }

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let v1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        assert_eq!(field(v1, "oom_kill"), Some(3));
        assert_eq!(field("low 0\noom 1\noom_kill 1\n", "oom_kill"), Some(1));
        assert_eq!(field("usage_usec 1500\n", "usage"), None);
        assert!(oom_kills_of_host().is_some());
    }
}
