//! What a daemon does to its machine, seen from outside: processes, cgroups, mounts, loop devices. Remembers what it has
//! seen of one daemon, tells what is left, and can clear it away; never touches anything that was not that daemon's.

use super::{SOON, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const CGROUPS: &str = "/sys/fs/cgroup";

#[derive(Clone, Default)]
pub struct World {
    /// A pid comes back to life as somebody else; with its start time it does not.
    processes: BTreeSet<(i32, u64)>,
    /// Directories below `CGROUPS`, the containers' own.
    cgroups: BTreeSet<PathBuf>,
}

impl World {
    /// Takes in what lives below the daemon now.
    pub fn look(&mut self, daemon: i32) {
        for pid in descendants(daemon) {
            if let Some(started) = start_time(pid) {
                self.processes.insert((pid, started));
                self.cgroups.extend(own_cgroups(pid));
            }
        }
    }

    /// Only what `self` knows and `earlier` does not.
    pub fn since(&self, earlier: &World) -> World {
        World {
            processes: self.processes.difference(&earlier.processes).copied().collect(),
            cgroups: self.cgroups.difference(&earlier.cgroups).cloned().collect(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    /// The names of the containers that were seen; a runtime makes each one's cgroup and mounts with it.
    pub fn containers(&self) -> BTreeSet<String> {
        self.cgroups.iter().filter_map(|path| Some(path.file_name()?.to_str()?.to_string())).collect()
    }

    /// What of it is still there. Mounts and loop devices count by the container's name in them.
    pub fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        for &(pid, started) in &self.processes {
            if start_time(pid) == Some(started) {
                left.push(format!("process {pid}: {}", command_of(pid).unwrap_or_default()));
            }
        }
        left.extend(self.cgroups.iter().filter(|path| path.exists()).map(|path| format!("cgroup {}", path.display())));
        for container in self.containers() {
            left.extend(mounts_with(&container).into_iter().map(|mount| format!("mount {mount}")));
            left.extend(loops_with(&container).into_iter().map(|device| format!("loop device of {device}")));
        }
        left
    }

    /// Cgroups, mounts and loop devices of containers, whether their daemon still runs or not.
    pub fn left_of_containers(&self) -> Vec<String> {
        let lives = |container: &str| {
            let own = |(pid, started): &(i32, u64)| {
                start_time(*pid) == Some(*started)
                    && own_cgroups(*pid).iter().any(|path| path.file_name().is_some_and(|name| name == container))
            };
            self.processes.iter().any(own)
        };
        let dead: Vec<String> = self.containers().into_iter().filter(|container| !lives(container)).collect();
        let mut left = Vec::new();
        for container in dead {
            let of_it = |path: &&PathBuf| path.file_name().is_some_and(|name| name == container.as_str());
            left.extend(
                self.cgroups.iter().filter(of_it).filter(|p| p.exists()).map(|p| format!("cgroup {}", p.display())),
            );
            left.extend(mounts_with(&container).into_iter().map(|mount| format!("mount {mount}")));
            left.extend(loops_with(&container).into_iter().map(|device| format!("loop device of {device}")));
        }
        left
    }

    /// As `left`, and everything that names the daemon's directory, and the cgroup that held the containers' own.
    pub fn left_of(&self, home: &Path) -> Vec<String> {
        let home = home.to_str().expect("our own name");
        let mut left = self.left();
        for pid in all_processes().filter(|pid| *pid != std::process::id().cast_signed()) {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let command = command_of(pid).unwrap_or_default();
            if command.contains(home) || String::from_utf8_lossy(&environment).contains(home) {
                left.push(format!("process {pid} of the data directory: {command}"));
            }
        }
        left.extend(mounts_with(home).into_iter().map(|mount| format!("mount {mount}")));
        left.extend(loops_with(home).into_iter().map(|device| format!("loop device of {device}")));
        left.extend(parents(Path::new(home)).iter().map(|path| format!("cgroup {}", path.display())));
        left.sort();
        left.dedup();
        left
    }

    /// Ends and removes what `left_of` would tell, as well as it can: a failed test must not spoil the next one.
    pub fn clear(&self, home: &Path) {
        for &(pid, started) in &self.processes {
            if start_time(pid) == Some(started) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
        // The innermost mount first: it was made last.
        for mount in mounts_with(home.to_str().expect("our own name")).iter().rev() {
            let _ = nix::mount::umount2(mount.as_str(), nix::mount::MntFlags::MNT_DETACH);
        }
        for cgroup in self.cgroups.iter().chain(&parents(home)) {
            let _ = std::fs::remove_dir(cgroup);
        }
    }
}

/// What is there of the cgroups that hold a daemon's containers, one in each hierarchy.
pub fn parents(home: &Path) -> Vec<PathBuf> {
    let name = stdiod::sandbox::container::plan::Layout::of(home.join("data")).cgroup_parent();
    let name = name.strip_prefix("/").expect("below the root of a hierarchy");
    let hierarchies = std::fs::read_dir(CGROUPS).into_iter().flatten().flatten().map(|entry| entry.path());
    let all = std::iter::once(PathBuf::from(CGROUPS)).chain(hierarchies).map(|root| root.join(name));
    all.filter(|path| path.exists()).collect()
}

/// Children and theirs, parents first.
pub fn descendants(of: i32) -> Vec<i32> {
    let mut found = Vec::new();
    let mut next = vec![of];
    while let Some(pid) = next.pop() {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for task in tasks {
            let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            for child in children.split_ascii_whitespace().filter_map(|word| word.parse().ok()) {
                found.push(child);
                next.push(child);
            }
        }
    }
    found
}

/// None if there is no such process, or only what its parent has not taken note of yet.
fn start_time(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    let started = fields.nth(18)?.parse().ok()?;
    (state != "Z" && state != "X").then_some(started)
}

/// SIGSTOP, and the end of all it was doing: one thread takes the signal and tells the others, and until each has had its
/// turn they go on. On a busy machine that is long enough for an answer.
pub fn stop(pid: Pid) {
    kill(pid, Signal::SIGSTOP).expect("it runs");
    let is_stopped = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('T'))
    };
    let tasks = || std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    assert!(eventually(SOON, || tasks().all(is_stopped)), "{pid} does not stop");
}

/// The arguments with blanks between them.
pub fn command_of(pid: i32) -> Option<String> {
    let raw = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    Some(String::from_utf8_lossy(&raw).trim_end_matches('\0').replace('\0', " "))
}

pub fn all_processes() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Where a process stands in each hierarchy, as far as that is below a `stdiod-…` of the daemon's own making.
fn own_cgroups(pid: i32) -> Vec<PathBuf> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let mut found = Vec::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let Some((parents, rest)) = path.split_once("/stdiod-") else { continue };
        let Some((mark, container)) = rest.split_once('/') else { continue };
        let container = container.split('/').next().unwrap_or_default();
        let below = format!("{}/stdiod-{mark}/{container}", parents.trim_start_matches('/'));
        let controllers = controllers.strip_prefix("name=").unwrap_or(controllers);
        // v2 has no controllers in this file; in the hybrid layout it is mounted under `unified`.
        let roots = if controllers.is_empty() { vec!["", "unified"] } else { vec![controllers] };
        let candidates =
            roots.into_iter().map(|root| Path::new(CGROUPS).join(root).join(below.trim_start_matches('/')));
        found.extend(candidates.filter(|path| path.exists()));
    }
    found
}

/// Mount points whose line in the mount table mentions `text`, in the order they were made.
pub fn mounts_with(text: &str) -> Vec<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let lines = table.lines().filter(|line| line.contains(text));
    lines.filter_map(|line| Some(line.split(' ').nth(4)?.to_string())).collect()
}

pub fn loops_with(text: &str) -> Vec<String> {
    let devices = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let files = devices.filter_map(|device| std::fs::read_to_string(device.path().join("loop/backing_file")).ok());
    files.filter(|file| file.contains(text)).map(|file| file.trim().to_string()).collect()
}

/// Open file descriptors and resident bytes.
pub fn weight_of(pid: i32) -> (usize, u64) {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let resident =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse().ok());
    (fds, resident.unwrap_or(0u64) * 1024)
}
