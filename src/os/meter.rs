//! What instances use, looked at by a thread of its own: cgroup files and the disk are read a few instances at a time, and
//! the loop only keeps the last numbers. Never blocks the loop; a look that takes long makes the numbers older. Invariant:
//! the work per second is bounded, however many instances there are.

use crate::core::contract::Usage;
use crate::ids::InstanceId;
use crate::limits::{
    METER_CHANNEL, METER_DISK_EVERY, METER_ENTRIES_MAX, METER_EVERY, METER_IDLE_EVERY, METER_LOOKS_MAX,
};
use crate::sandbox::cgroup::CgroupFiles;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::Mode;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

enum Job {
    Watch { instance: InstanceId, cgroup: CgroupFiles, dirs: Vec<PathBuf> },
    Forget { instance: InstanceId },
}

pub struct Meter {
    jobs: SyncSender<Job>,
    looks: Receiver<Vec<(InstanceId, Usage)>>,
    last: HashMap<InstanceId, Usage>,
}

impl Meter {
    pub fn spawn(wake: impl Fn() + Send + 'static) -> io::Result<Meter> {
        let (jobs, todo) = sync_channel(METER_CHANNEL);
        let (tell, looks) = sync_channel(METER_CHANNEL);
        std::thread::Builder::new()
            .name("meter".to_string())
            .spawn(move || Thread::default().run(&todo, &tell, wake))?;
        Ok(Meter { jobs, looks, last: HashMap::new() })
    }

    /// `dirs`: where it writes to the host's disk. An instance that cannot be handed over has no numbers, no more.
    pub fn watch(&mut self, instance: InstanceId, cgroup: CgroupFiles, dirs: Vec<PathBuf>) {
        self.last.insert(instance, Usage::default());
        _ = self.jobs.try_send(Job::Watch { instance, cgroup, dirs });
    }

    pub fn forget(&mut self, instance: InstanceId) {
        self.last.remove(&instance);
        _ = self.jobs.try_send(Job::Forget { instance });
    }

    /// The thread rang.
    pub fn heard(&mut self) {
        for (instance, usage) in self.looks.try_iter().flatten() {
            if let Some(last) = self.last.get_mut(&instance) {
                *last = usage;
            }
        }
    }

    /// The last look at it; none before the first.
    pub fn usage(&self, instance: InstanceId) -> Option<Usage> {
        self.last.get(&instance).copied().filter(|usage| usage.memory_bytes > 0)
    }
}

// --- the thread -------------------------------------------------------------------------------------------------------

#[derive(Default)]
struct Thread {
    watched: BTreeMap<InstanceId, Watched>,
    /// Where the next round goes on.
    after: Option<InstanceId>,
}

struct Watched {
    cgroup: CgroupFiles,
    dirs: Vec<PathBuf>,
    last: Option<(Instant, Usage)>,
    /// The last look at everything: when, and the CPU time until then.
    whole: Option<(Instant, u64)>,
}

const TICK: Duration = Duration::from_secs(1);

impl Thread {
    fn run(mut self, todo: &Receiver<Job>, tell: &SyncSender<Vec<(InstanceId, Usage)>>, wake: impl Fn()) {
        let mut next = Instant::now();
        loop {
            // With nothing to look at there is nothing to wake up for.
            let job = match self.watched.is_empty() {
                true => todo.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => todo.recv_timeout(next.saturating_duration_since(Instant::now())),
            };
            match job {
                Ok(Job::Watch { instance, cgroup, dirs }) => {
                    self.watched.insert(instance, Watched { cgroup, dirs, last: None, whole: None });
                }
                Ok(Job::Forget { instance }) => _ = self.watched.remove(&instance),
                Err(RecvTimeoutError::Timeout) => {
                    next = Instant::now() + TICK;
                    let looks = self.round();
                    if !looks.is_empty() && tell.try_send(looks).is_ok() {
                        wake();
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// So many that each comes up every few seconds, as long as they are not too many for that.
    fn round(&mut self) -> Vec<(InstanceId, Usage)> {
        let share = self.watched.len().div_ceil(METER_EVERY.as_secs() as usize).min(METER_LOOKS_MAX);
        let from = self.after.map_or(0, |InstanceId(last)| last + 1);
        let later = self.watched.range(InstanceId(from)..).map(|(id, _)| *id);
        let earlier = self.watched.range(..InstanceId(from)).map(|(id, _)| *id);
        let chosen: Vec<InstanceId> = later.chain(earlier).take(share).collect();
        self.after = chosen.last().copied();
        let look = |instance: InstanceId| Some((instance, self.watched.get_mut(&instance)?.look()?));
        chosen.into_iter().filter_map(look).collect()
    }
}

impl Watched {
    fn look(&mut self) -> Option<Usage> {
        let now = Instant::now();
        let cpu_ms = self.cgroup.cpu_ms()?;
        // Who has not run has changed nothing: a thousand that idle cost one small file each.
        let is_whole = self.whole.is_none_or(|(at, then_ms)| {
            now - at >= if then_ms == cpu_ms { METER_IDLE_EVERY } else { METER_DISK_EVERY }
        });
        let mut usage = match self.last {
            Some((_, last)) if last.cpu_ms_total == cpu_ms && !is_whole => last,
            Some((_, last)) => Usage { disk_bytes: last.disk_bytes, ..self.cgroup.usage()? },
            None => self.cgroup.usage()?,
        };
        if is_whole {
            usage.disk_bytes = self.dirs.iter().map(|dir| disk_bytes(dir).unwrap_or(0)).sum();
            self.whole = Some((now, cpu_ms));
        }
        usage.cpu_percent = self
            .last
            .map_or(0.0, |(at, last)| cpu_percent(usage.cpu_ms_total.saturating_sub(last.cpu_ms_total), now - at));
        self.last = Some((now, usage));
        Some(usage)
    }
}

/// Of one core, to a tenth.
fn cpu_percent(busy_ms: u64, over: Duration) -> f64 {
    let over_ms = over.as_secs_f64() * 1000.0;
    if over_ms < 1.0 { 0.0 } else { (busy_ms as f64 * 1000.0 / over_ms).round() / 10.0 }
}

/// What a tree takes on the disk, as far as `METER_ENTRIES_MAX` entries go. By descriptors and without symlinks: the
/// tree is the container's, and may change under our eyes.
fn disk_bytes(top: &Path) -> io::Result<u64> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut pending: Vec<OwnedFd> = vec![open(top, flags, Mode::empty())?];
    let (mut bytes, mut entries) = (0, 0);
    while let Some(dir) = pending.pop() {
        for entry in std::fs::read_dir(format!("/proc/self/fd/{}", dir.as_raw_fd()))? {
            entries += 1;
            if entries > METER_ENTRIES_MAX {
                return Ok(bytes);
            }
            let Ok(entry) = entry else { continue };
            let Ok(meta) = entry.metadata() else { continue };
            bytes += meta.blocks() * 512;
            // Each open directory is a descriptor of ours; a tree that is very wide is not followed into all of them.
            if meta.is_dir()
                && pending.len() < 64
                && let Ok(child) = openat(&dir, entry.file_name().as_os_str(), flags, Mode::empty())
            {
                pending.push(child);
            }
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_measured_and_its_symlinks_are_not_followed() {
        let top = std::env::temp_dir().join(format!("stdiod-meter-{}", std::process::id()));
        std::fs::create_dir_all(top.join("a/b")).unwrap();
        std::fs::write(top.join("a/b/file"), vec![1; 100_000]).unwrap();
        std::os::unix::fs::symlink("/usr", top.join("a/usr")).unwrap();
        std::os::unix::fs::symlink("..", top.join("a/loop")).unwrap();
        let bytes = disk_bytes(&top);
        std::fs::remove_dir_all(&top).unwrap();
        let bytes = bytes.unwrap();
        assert!((100_000..200_000).contains(&bytes), "{bytes}");
        assert!(disk_bytes(&top).is_err());
    }

    #[test]
    fn a_share_of_a_core_is_told_to_a_tenth() {
        assert_eq!(cpu_percent(500, Duration::from_secs(1)), 50.0);
        assert_eq!(cpu_percent(1, Duration::from_secs(3)), 0.0);
        assert_eq!(cpu_percent(2_000, Duration::from_secs(1)), 200.0);
        assert_eq!(cpu_percent(2_000, Duration::ZERO), 0.0);
    }

    #[test]
    fn everyone_has_a_turn_and_no_round_is_too_long() {
        let watched = || Watched {
            cgroup: crate::sandbox::cgroup::Hierarchies::detect("1 1 0:1 / /sys/fs/cgroup rw - cgroup2 c rw")
                .unwrap()
                .parent(&crate::sandbox::plan::Layout { data_dir: "/x".into(), mark: "x".into() }),
            dirs: Vec::new(),
            last: None,
            whole: None,
        };
        let mut thread = Thread::default();
        for id in 0..1_000 {
            thread.watched.insert(InstanceId(id), watched());
        }
        let mut order = Vec::new();
        for _ in 0..1_000_usize.div_ceil(METER_LOOKS_MAX) {
            thread.round();
            order.push(thread.after.unwrap().0);
        }
        assert_eq!(order[0], METER_LOOKS_MAX as u64 - 1);
        let (last, rounds) = order.split_last().unwrap();
        assert!(rounds.is_sorted() && *last < METER_LOOKS_MAX as u64, "the last round begins again: {order:?}");
    }
}
