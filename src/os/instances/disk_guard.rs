//! Who must go when the disk of the data directory runs full. Images of servers are sparse and may promise more together
//! than there is; the database and the daemon's own records need what is kept back (`disk_reserve`). Decides only: others
//! look at the disk, and end the instance. Invariant: nobody is named who has taken nothing since the last look.

use crate::ids::InstanceId;
use crate::limits::{DISK_LOOK_EVERY, DISK_LOOK_LOW_EVERY, DISK_LOW_FACTOR};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

#[derive(Debug, Default)]
pub struct DiskGuard {
    reserve_bytes: u64,
    /// What each had at the last look; empty while there is plenty.
    taken: BTreeMap<InstanceId, u64>,
    /// They are on their way out.
    ended: BTreeSet<InstanceId>,
}

impl DiskGuard {
    pub fn new(reserve_bytes: u64) -> DiskGuard {
        DiskGuard { reserve_bytes, ..DiskGuard::default() }
    }

    pub fn is_low(&self, free_bytes: u64) -> bool {
        free_bytes < self.reserve_bytes.saturating_mul(DISK_LOW_FACTOR)
    }

    /// Until the next look.
    pub fn pause(&self, free_bytes: u64) -> Duration {
        if self.is_low(free_bytes) { DISK_LOOK_LOW_EVERY } else { DISK_LOOK_EVERY }
    }

    /// `taken`: what the instances have on the disk now; asked only when it is low. The one to end, if it has come to that.
    pub fn look<I>(&mut self, free_bytes: u64, taken: impl FnOnce() -> I) -> Option<InstanceId>
    where
        I: Iterator<Item = (InstanceId, u64)>,
    {
        if !self.is_low(free_bytes) {
            self.taken.clear();
            return None;
        }
        let now: BTreeMap<InstanceId, u64> = taken().collect();
        let grown = |(instance, bytes): (&InstanceId, &u64)| {
            let before = *self.taken.get(instance)?;
            (*bytes > before && !self.ended.contains(instance)).then(|| (bytes - before, *instance))
        };
        let most = now.iter().filter_map(grown).max().filter(|_| free_bytes < self.reserve_bytes);
        self.taken = now;
        most.map(|(_, instance)| instance)
    }

    /// It will be.
    pub fn ends(&mut self, instance: InstanceId) {
        self.ended.insert(instance);
    }

    pub fn forget(&mut self, instance: InstanceId) {
        self.taken.remove(&instance);
        self.ended.remove(&instance);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: InstanceId = InstanceId(1);
    const B: InstanceId = InstanceId(2);

    #[test]
    fn who_grows_most_goes_when_the_reserve_is_touched_and_only_then() {
        let mut guard = DiskGuard::new(100);
        let at = |guard: &mut DiskGuard, free, a, b| guard.look(free, || [(A, a), (B, b)].into_iter());
        assert_eq!(guard.look(1_000_000, || -> std::iter::Empty<_> { panic!("nobody is looked at") }), None);
        assert_eq!(at(&mut guard, 99, 500, 10), None, "nobody is known to grow");
        assert_eq!(at(&mut guard, 99, 500, 10), None, "nobody does");
        assert_eq!(at(&mut guard, 90, 501, 20), Some(B));
        guard.ends(B);
        assert_eq!(at(&mut guard, 80, 501, 30), None, "it is on its way");
        assert_eq!(at(&mut guard, 70, 502, 40), Some(A));
        assert_eq!(at(&mut guard, 101, 600, 50), None, "there is room again");
        guard.forget(B);
        assert_eq!(at(&mut guard, 60, 600, 60), None, "another one of that number begins anew");
        assert_eq!(at(&mut guard, 60, 600, 61), Some(B));
        let mut off = DiskGuard::new(0);
        assert_eq!(at(&mut off, 0, 1, 1), None);
        assert_eq!(at(&mut off, 0, 2, 2), None);
    }
}
