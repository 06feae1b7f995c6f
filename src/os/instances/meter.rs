//! What instances use, looked at by a thread of its own: cgroup files and the disk are read a few instances at a time, and
//! the loop only keeps the last numbers. Never blocks the loop; a look that takes long makes the numbers older. Invariant:
//! the work per second is bounded, however many instances there are.

use crate::ids::InstanceId;
use crate::limits::{
    METER_CHANNEL, METER_DISK_EVERY, METER_ENTRIES_MAX, METER_EVERY, METER_IDLE_EVERY, METER_LOOKS_MAX,
};
use crate::model::status::Usage;
use crate::os::instances::disk_guard::DiskGuard;
use crate::os::instances::fetched;
use crate::sandbox::cleanup::volumes::measure;
use crate::sandbox::container::disk;
use crate::sandbox::container::plan::free_bytes;
use crate::sandbox::container::volume_image;
use crate::sandbox::host::cgroup::CgroupFiles;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

enum Job {
    Watch {
        instance: InstanceId,
        cgroup: Box<CgroupFiles>,
        dirs: Vec<PathBuf>,
        volume: Option<PathBuf>,
    },
    /// Somebody waits for what it puts on the disk.
    Install {
        instance: InstanceId,
    },
    Forget {
        instance: InstanceId,
    },
}

/// What the thread has found.
enum Found {
    Usage(Vec<(InstanceId, Usage)>),
    /// It grows, and less than the reserve is free.
    Greedy {
        instance: InstanceId,
        free_bytes: u64,
    },
}

/// What the loop is told.
#[derive(Default)]
pub struct Heard {
    /// Who must go, and how much room there was on the disk.
    pub greedy: Vec<(InstanceId, u64)>,
    pub looks: Vec<(InstanceId, Usage)>,
}

pub struct Meter {
    jobs: SyncSender<Job>,
    found: Receiver<Found>,
    last: HashMap<InstanceId, Usage>,
}

impl Meter {
    /// `data_dir` is where instances write to, and `reserve_bytes` what they must leave there.
    pub fn spawn(data_dir: PathBuf, reserve_bytes: u64, wake: impl Fn() + Send + 'static) -> io::Result<Meter> {
        let (jobs, todo) = sync_channel(METER_CHANNEL);
        let (tell, found) = sync_channel(METER_CHANNEL);
        let guard = DiskGuard::new(reserve_bytes);
        std::thread::Builder::new()
            .name("meter".to_string())
            .spawn(move || Thread { data_dir, guard, ..Thread::default() }.run(&todo, &tell, wake))?;
        Ok(Meter { jobs, found, last: HashMap::new() })
    }

    /// `dirs`: where it writes to the host's disk. An instance that cannot be handed over has no numbers, no more.
    /// The last of `dirs` is of its volumes, and `volume` where it sees one of them.
    pub fn watch(&mut self, instance: InstanceId, cgroup: CgroupFiles, dirs: Vec<PathBuf>, volume: Option<PathBuf>) {
        self.last.insert(instance, Usage::default());
        _ = self.jobs.try_send(Job::Watch { instance, cgroup: Box::new(cgroup), dirs, volume });
    }

    /// It fetches packages: how much of them is here is looked at every time.
    pub fn watch_install(&mut self, instance: InstanceId) {
        _ = self.jobs.try_send(Job::Install { instance });
    }

    pub fn forget(&mut self, instance: InstanceId) {
        self.last.remove(&instance);
        _ = self.jobs.try_send(Job::Forget { instance });
    }

    /// The thread rang.
    pub fn heard(&mut self) -> Heard {
        let mut heard = Heard::default();
        for found in self.found.try_iter() {
            match found {
                Found::Greedy { instance, free_bytes } => heard.greedy.push((instance, free_bytes)),
                Found::Usage(looks) => {
                    for (instance, usage) in looks {
                        if let Some(last) = self.last.get_mut(&instance) {
                            *last = usage;
                            heard.looks.push((instance, usage));
                        }
                    }
                }
            }
        }
        heard
    }

    /// The last look at it; none before the first.
    pub fn usage(&self, instance: InstanceId) -> Option<Usage> {
        self.last.get(&instance).copied().filter(|usage| usage.memory_bytes > 0)
    }
}

// --- the thread -------------------------------------------------------------------------------------------------------

#[derive(Default)]
struct Thread {
    data_dir: PathBuf,
    guard: DiskGuard,
    watched: BTreeMap<InstanceId, Watched>,
    /// Where the next round goes on.
    after: Option<InstanceId>,
}

struct Watched {
    cgroup: CgroupFiles,
    dirs: Vec<PathBuf>,
    volume: Option<PathBuf>,
    installs: bool,
    last: Option<(Instant, Usage)>,
    /// The last look at everything: when, and the CPU time until then.
    whole: Option<(Instant, u64)>,
}

const TICK: Duration = Duration::from_secs(1);

impl Thread {
    fn run(mut self, todo: &Receiver<Job>, tell: &SyncSender<Found>, wake: impl Fn()) {
        let mut next_round = Instant::now();
        let mut next_guard = Instant::now();
        loop {
            let next = next_round.min(next_guard);
            // With nothing to look at there is nothing to wake up for.
            let job = match self.watched.is_empty() {
                true => todo.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => todo.recv_timeout(next.saturating_duration_since(Instant::now())),
            };
            match job {
                Ok(Job::Watch { instance, cgroup, dirs, volume }) => {
                    let new = Watched { cgroup: *cgroup, dirs, volume, installs: false, last: None, whole: None };
                    self.watched.insert(instance, new);
                }
                Ok(Job::Install { instance }) => {
                    if let Some(watched) = self.watched.get_mut(&instance) {
                        watched.installs = true;
                    }
                }
                Ok(Job::Forget { instance }) => {
                    self.watched.remove(&instance);
                    self.guard.forget(instance);
                }
                Err(RecvTimeoutError::Timeout) => {
                    let now = Instant::now();
                    if now >= next_guard {
                        next_guard = now + self.look_at_the_disk(tell, &wake);
                    }
                    if now >= next_round {
                        next_round = now + TICK;
                        let looks = self.round();
                        if !looks.is_empty() && tell.try_send(Found::Usage(looks)).is_ok() {
                            wake();
                        }
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// How long until the next look at it.
    fn look_at_the_disk(&mut self, tell: &SyncSender<Found>, wake: impl Fn()) -> Duration {
        let Ok(free_bytes) = free_bytes(&self.data_dir) else { return TICK };
        let taken = || self.watched.iter().map(|(instance, watched)| (*instance, watched.image_bytes()));
        if let Some(instance) = self.guard.look(free_bytes, taken)
            && tell.try_send(Found::Greedy { instance, free_bytes }).is_ok()
        {
            self.guard.ends(instance);
            wake();
        }
        self.guard.pause(free_bytes)
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
    /// What its own disk and its volumes take. Quick, and right also for what is still on its way to the disk.
    fn image_bytes(&self) -> u64 {
        let images = self.dirs.iter().flat_map(|dir| [dir.join(disk::IMAGE), dir.join(volume_image::IMAGE)]);
        images.filter_map(|image| Some(std::fs::metadata(image).ok()?.blocks() * 512)).sum()
    }

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
        if self.installs {
            usage.disk_bytes =
                self.dirs.last().map_or(0, |dir| fetched::bytes(&self.cgroup, dir, self.volume.as_ref()));
        } else if is_whole {
            usage.disk_bytes =
                self.dirs.iter().map(|dir| measure(dir, METER_ENTRIES_MAX).map_or(0, |size| size.bytes)).sum();
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

#[cfg(test)]
mod tests {
    use super::*;

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
            cgroup: crate::sandbox::host::cgroup::Hierarchies::detect("1 1 0:1 / /sys/fs/cgroup rw - cgroup2 c rw")
                .unwrap()
                .parent(&crate::sandbox::container::plan::Layout { data_dir: "/x".into(), mark: "x".into() }),
            dirs: Vec::new(),
            volume: None,
            installs: false,
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
