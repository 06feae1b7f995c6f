//! What is dead and must go: what is left of a container, the volumes of a server that was deleted with them, and what
//! was in those. Children do it, a few at a time; one that is killed is followed by another, a little later, and one that
//! ran out of time by another, much later. What was not finished of a container is found by the sweep of the next boot. Never does anything itself that takes time.
//! Invariant: `at_work` is the number of children with a `Role::Chore`.

use crate::core::contract::{Input, Now};
use crate::ids::ServerId;
use crate::limits::{CHORE_LATER, CHORE_PAUSE, CHORE_TRIES, CHORES_AT_ONCE, CHORES_DURING_LAUNCHES};
use crate::model::instance::ExitCause;
use crate::os::children::reap::{Children, Role};
use crate::os::children::spawn;
use crate::sandbox::cleanup::discard;
use crate::sandbox::container::plan::Layout;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::ffi::OsString;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chore {
    pub work: Work,
    /// How many children were killed over it.
    pub killed: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// By its id.
    Container(String),
    /// Somebody waits to hear of it.
    Volumes(ServerId, String),
}

#[derive(Clone, Serialize, Deserialize)]
pub struct Chores {
    layout: Layout,
    waiting: VecDeque<Chore>,
    /// Those that ran out of time, and when they are tried again; the first one first.
    later: VecDeque<(u64, Chore)>,
    at_work: usize,
    /// Somebody was killed, or no child could be started: not before then.
    again_ms: Option<u64>,
    /// How many could not be started, in a row.
    unstarted: u32,
    removed: Removed,
    /// Children that were killed over it, in a row.
    emptying_killed: u32,
}

/// The volumes that were taken away. One child at a time sees to them, however long that takes, and nobody waits for it.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Removed {
    Nothing,
    Waiting,
    BeingEmptied,
    /// More has come meanwhile.
    AndWaiting,
}

impl Chores {
    pub fn new(layout: Layout) -> Chores {
        let (waiting, later, removed) = (VecDeque::new(), VecDeque::new(), Removed::Nothing);
        Chores { layout, waiting, later, at_work: 0, again_ms: None, unstarted: 0, removed, emptying_killed: 0 }
    }

    pub fn add(&mut self, work: Work) {
        self.waiting.push_back(Chore { work, killed: 0 });
    }

    /// All is done; or nothing can be, as often as it was tried, and whoever waits to leave need not wait for that. Nor for
    /// what is tried later: the next boot sees to it.
    pub fn are_at_rest(&self) -> bool {
        self.at_work == 0 && (self.waiting.is_empty() || self.unstarted >= CHORE_TRIES)
    }

    pub fn next_deadline(&self) -> Option<u64> {
        self.again_ms.into_iter().chain(self.later.front().map(|(at_ms, _)| *at_ms)).min()
    }

    /// What is dead can wait for what is to live.
    pub fn start(&mut self, launching: bool, children: &mut Children, now: Now) {
        while self.later.front().is_some_and(|(at_ms, _)| *at_ms <= now.mono_ms) {
            self.waiting.extend(self.later.pop_front().map(|(_, chore)| chore));
        }
        if self.again_ms.is_some_and(|at| now.mono_ms < at) {
            return;
        }
        self.again_ms = None;
        let most = if launching { CHORES_DURING_LAUNCHES } else { CHORES_AT_ONCE };
        while self.at_work < most
            && let Some(chore) = self.waiting.front()
        {
            let args = match &chore.work {
                Work::Container(id) => discard::args(&self.layout, id),
                Work::Volumes(_, name) => discard::volumes_args(&self.layout, name),
            };
            let Some(pid) = self.child(&args, now) else { return };
            children.add(pid, Role::Chore(self.waiting.pop_front().expect("just seen")));
            self.at_work += 1;
        }
        if self.removed == Removed::Waiting
            && let Some(pid) = self.child(&discard::removed_args(&self.layout), now)
        {
            children.add(pid, Role::Emptying);
            self.removed = Removed::BeingEmptied;
        }
    }

    fn child(&mut self, args: &[OsString], now: Now) -> Option<i32> {
        match spawn::own_child(args) {
            Ok(pid) => {
                self.unstarted = 0;
                Some(pid)
            }
            Err(e) => {
                if self.unstarted == 0 {
                    log::error!("nothing can be cleaned up now: {e}");
                }
                self.unstarted = self.unstarted.saturating_add(1);
                self.pause(now);
                None
            }
        }
    }

    fn pause(&mut self, now: Now) {
        self.again_ms = Some(now.mono_ms + CHORE_PAUSE.as_millis() as u64);
    }

    /// A child that failed has said why on stderr, and would fail again.
    pub fn ended(&mut self, chore: Chore, cause: ExitCause, now: Now) -> Option<Input<'static>> {
        self.at_work -= 1;
        let Chore { work, killed } = chore;
        if let ExitCause::Signal(signal) = cause {
            if killed + 1 < CHORE_TRIES {
                log::warn!("the clean-up of {} was killed by signal {signal}: again", work.what());
                self.waiting.push_back(Chore { work, killed: killed + 1 });
                self.pause(now);
                return None;
            }
            log::error!("the clean-up of {} was killed {CHORE_TRIES} times, and is given up", work.what());
        }
        // Of volumes the core hears, and asks again by itself.
        if let (Work::Container(_), ExitCause::Code(discard::TIMED_OUT)) = (&work, cause) {
            log::warn!("the clean-up of {} ran out of time: again in {CHORE_LATER:?}", work.what());
            self.later.push_back((now.mono_ms + CHORE_LATER.as_millis() as u64, Chore { work, killed }));
            return None;
        }
        match work {
            Work::Container(_) => None,
            Work::Volumes(server, _) => {
                self.removed = match self.removed {
                    Removed::Nothing | Removed::Waiting => Removed::Waiting,
                    Removed::BeingEmptied | Removed::AndWaiting => Removed::AndWaiting,
                };
                let done = cause == ExitCause::Code(0);
                let outcome = if done { Ok(()) } else { Err("the daemon's log says why".to_owned()) };
                Some(Input::VolumesRemoved { server, outcome })
            }
        }
    }

    pub fn emptied(&mut self, cause: ExitCause, now: Now) {
        let mut again = self.removed == Removed::AndWaiting;
        match cause {
            ExitCause::Signal(signal) => {
                log::warn!("the removal of volumes was killed by signal {signal}");
                self.emptying_killed += 1;
                self.pause(now);
                again |= self.emptying_killed < CHORE_TRIES;
            }
            ExitCause::Code(_) => self.emptying_killed = 0,
        }
        self.removed = if again { Removed::Waiting } else { Removed::Nothing };
    }
}

impl Work {
    fn what(&self) -> &str {
        match self {
            Work::Container(id) => id,
            Work::Volumes(_, name) => name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Uuid;

    const KILLED: ExitCause = ExitCause::Signal(9);

    fn now(mono_ms: u64) -> Now {
        Now { mono_ms, unix_ms: 0 }
    }

    /// As if a child had been started for the first that waits.
    fn begun(chores: &mut Chores) -> Chore {
        chores.at_work += 1;
        chores.waiting.pop_front().expect("something is to be done")
    }

    fn chores() -> Chores {
        Chores::new(Layout { data_dir: "/nowhere".into(), mark: "x".into() })
    }

    #[test]
    fn who_is_killed_is_followed_by_another_a_little_later_and_not_for_ever() {
        let mut chores = chores();
        chores.add(Work::Container("one".into()));
        for killed in 1..=CHORE_TRIES {
            let chore = begun(&mut chores);
            assert!(!chores.are_at_rest());
            assert!(chores.ended(chore, KILLED, now(1000)).is_none());
            assert_eq!(chores.are_at_rest(), killed == CHORE_TRIES);
        }
        assert_eq!(chores.next_deadline(), Some(1000 + CHORE_PAUSE.as_millis() as u64));
        let mut nobody = Children::default();
        chores.start(false, &mut nobody, now(1001));
        assert!(chores.next_deadline().is_some());
        chores.start(false, &mut nobody, now(100_000));
        assert!(chores.next_deadline().is_none() && nobody.is_empty());
    }

    #[test]
    fn volumes_whose_removal_is_killed_again_and_again_are_left_to_the_next_boot() {
        let mut chores = chores();
        for killed in 1..=CHORE_TRIES {
            chores.removed = Removed::BeingEmptied;
            chores.emptied(KILLED, now(0));
            assert_eq!(chores.removed == Removed::Waiting, killed < CHORE_TRIES);
        }
        chores.removed = Removed::AndWaiting;
        chores.emptied(ExitCause::Code(0), now(0));
        assert!(chores.removed == Removed::Waiting && chores.emptying_killed == 0);
        chores.removed = Removed::BeingEmptied;
        chores.emptied(ExitCause::Code(1), now(0));
        assert!(chores.removed == Removed::Nothing);
    }

    #[test]
    fn who_has_failed_would_fail_again() {
        let mut chores = chores();
        chores.add(Work::Container("one".into()));
        let chore = begun(&mut chores);
        assert!(chores.ended(chore, ExitCause::Code(1), now(0)).is_none());
        assert!(chores.are_at_rest() && chores.next_deadline().is_none());
    }

    #[test]
    fn who_ran_out_of_time_is_tried_again_later_and_keeps_nobody_waiting() {
        let mut chores = chores();
        chores.add(Work::Container("stuck".into()));
        let chore = begun(&mut chores);
        assert!(chores.ended(chore, ExitCause::Code(discard::TIMED_OUT), now(1_000)).is_none());
        assert!(chores.are_at_rest(), "the daemon may leave meanwhile");
        let later = 1_000 + CHORE_LATER.as_millis() as u64;
        assert_eq!(chores.next_deadline(), Some(later));
        // Nobody can be started here, so those whose time has come stay where they wait for it.
        let mut nobody = Children::default();
        chores.again_ms = Some(u64::MAX);
        chores.start(false, &mut nobody, now(later - 1));
        assert!(chores.waiting.is_empty());
        chores.start(false, &mut nobody, now(later));
        assert_eq!(chores.waiting.pop_front().map(|chore| chore.work), Some(Work::Container("stuck".into())));
    }

    #[test]
    fn of_volumes_the_last_outcome_is_told_once() {
        let server = ServerId(Uuid::from_bytes([7; 16]));
        for last in [ExitCause::Code(0), ExitCause::Code(1), KILLED] {
            let mut chores = chores();
            chores.add(Work::Volumes(server, "one".into()));
            for _ in 1..CHORE_TRIES {
                let chore = begun(&mut chores);
                assert!(chores.ended(chore, KILLED, now(0)).is_none());
            }
            let chore = begun(&mut chores);
            let told = chores.ended(chore, last, now(0));
            let Some(Input::VolumesRemoved { outcome, .. }) = told else { panic!("somebody waits for it") };
            assert_eq!(outcome.is_ok(), last == ExitCause::Code(0));
            assert!(chores.are_at_rest() && chores.removed == Removed::Waiting);
        }
    }

    #[test]
    fn what_cannot_be_begun_does_not_keep_the_daemon_from_leaving() {
        let mut chores = chores();
        chores.add(Work::Container("one".into()));
        for unstarted in 0..=CHORE_TRIES {
            chores.unstarted = unstarted;
            assert_eq!(chores.are_at_rest(), unstarted == CHORE_TRIES);
        }
    }
}
