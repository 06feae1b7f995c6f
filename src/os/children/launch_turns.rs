//! Which launchers may work now. All of them are started at once, so that none waits for the loop; but only a few per CPU
//! core work at the same time. A launch costs CPU time and takes locks of the kernel: with more of them at once each takes
//! longer, and so does the loop. Invariant: an instance is working, or waiting, or neither; never both.

use crate::ids::InstanceId;
use crate::limits::LAUNCHES_PER_CORE;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, VecDeque};

#[derive(Clone, Serialize, Deserialize)]
pub struct LaunchTurns {
    most: usize,
    working: BTreeSet<InstanceId>,
    waiting: VecDeque<InstanceId>,
}

impl LaunchTurns {
    pub fn of_this_host() -> LaunchTurns {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        LaunchTurns { most: LAUNCHES_PER_CORE * cores, working: BTreeSet::new(), waiting: VecDeque::new() }
    }

    /// Its launcher has been started, and waits for the word.
    pub fn join(&mut self, instance: InstanceId) {
        self.waiting.push_back(instance);
    }

    /// Its launcher has ended.
    pub fn leave(&mut self, instance: InstanceId) {
        if !self.working.remove(&instance) {
            self.waiting.retain(|other| *other != instance);
        }
    }

    /// Who may begin now, the first come first.
    pub fn begin(&mut self) -> Option<InstanceId> {
        if self.working.len() >= self.most {
            return None;
        }
        let instance = self.waiting.pop_front()?;
        self.working.insert(instance);
        Some(instance)
    }

    /// Somebody waits for work to end.
    pub fn are_taken(&self) -> bool {
        !self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_work_the_rest_follow_in_order_and_those_who_leave_are_skipped() {
        let mut turns = LaunchTurns { most: 2, working: BTreeSet::new(), waiting: VecDeque::new() };
        let id = InstanceId;
        (1..=5).for_each(|n| turns.join(id(n)));
        assert_eq!((turns.begin(), turns.begin(), turns.begin()), (Some(id(1)), Some(id(2)), None));
        turns.leave(id(3));
        turns.leave(id(1));
        turns.leave(id(1));
        assert_eq!((turns.begin(), turns.begin(), turns.are_taken()), (Some(id(4)), None, true));
        turns.leave(id(4));
        assert_eq!((turns.begin(), turns.are_taken()), (Some(id(5)), false));
        turns.leave(id(2));
        turns.leave(id(5));
        assert_eq!(turns.begin(), None);
        assert!(turns.working.is_empty());
    }
}
