//! The part of a life in which its packages are fetched: what follows from the end of an attempt, and when the next one is. An
//! attempt that fails is no crash, and has a schedule of its own. Invariant: a start from packages that are in doubt comes after
//! they were looked after.

use super::{Action, Lifecycle, State, deadline, due};
use crate::core::hosting::backoff::Verdict;
use crate::ids::InstanceId;
use crate::model::definition::{Definition, RestartPolicy};
use crate::model::instance::{Exit, ExitCause, Packages};

/// Why packages could not be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstallFault {
    Exited(Exit),
    TooSlow { after_ms: u64 },
}

impl Lifecycle {
    /// It has ended before it was ready. If it was started from what an earlier daemon or an earlier life has fetched, that
    /// may not be whole any more: it is looked after once, and no more until it has been ready.
    pub(super) fn doubt_packages(&mut self) {
        if self.packages == Packages::AsKept {
            self.packages = Packages::Doubtful;
        }
    }

    pub(super) fn after_install(
        &mut self,
        instance: InstanceId,
        exit: Exit,
        def: &Definition,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> State {
        if exit.cause == ExitCause::Code(0) {
            self.installs.reset();
            self.packages = Packages::Fetched;
            out.extend([Action::Installed, Action::Discard { instance }]);
            return due(out);
        }
        out.push(Action::InstallFailed { instance, cause: InstallFault::Exited(exit) });
        out.push(Action::Discard { instance });
        self.next_install(def, now_ms, out)
    }

    /// What has come so far is kept, so every attempt begins where the last one has ended.
    pub(super) fn next_install(&mut self, def: &Definition, now_ms: u64, out: &mut Vec<Action>) -> State {
        let verdict = match def.restart_policy {
            RestartPolicy::Never => Verdict::GiveUp,
            RestartPolicy::Always | RestartPolicy::OnFailure => self.installs.death(&def.crash_loop, now_ms, None),
        };
        match verdict {
            Verdict::GiveUp => {
                out.extend([Action::InstallGivenUp, Action::Deadline { at_ms: None }]);
                State::Failed
            }
            Verdict::Restart { delay_ms, .. } => {
                out.push(deadline(now_ms + delay_ms));
                State::InstallDue { until_ms: now_ms + delay_ms }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Event;
    use super::*;
    use crate::model::definition::tests::definition;
    use crate::model::status::Status;

    const I: InstanceId = InstanceId(1);

    fn exit(code: i32) -> Event {
        Event::Exited(Exit { cause: ExitCause::Code(code), oom: false })
    }

    fn launch(life: &mut Lifecycle, def: &Definition, now_ms: u64) -> Packages {
        let launched = life.handle(Event::Slot { instance: I }, def, now_ms);
        let packages = launched
            .iter()
            .find_map(|action| if let Action::Launch { packages, .. } = action { Some(*packages) } else { None });
        packages.expect("a slot is used")
    }

    fn installing(def: &Definition) -> Lifecycle {
        let mut life = Lifecycle::default();
        life.handle(Event::Start, def, 0);
        assert_eq!(launch(&mut life, def, 0), Packages::AsKept);
        assert!(life.handle(Event::InstallBegun, def, 0).contains(&deadline(def.install_timeout_ms)));
        assert_eq!((life.state().status(), life.state().ready_instance()), (Status::Installing, None));
        life
    }

    #[test]
    fn what_was_fetched_is_started_and_what_was_not_is_fetched_again_by_a_schedule_of_its_own() {
        let def = definition();
        let mut life = installing(&def);
        for (now_ms, delay_ms) in [(0, 0), (10, 1_000), (2_000, 2_000), (5_000, 5_000), (20_000, 15_000)] {
            let failed = life.handle(exit(1), &def, now_ms);
            assert!(!failed.iter().any(|action| matches!(action, Action::Crashed { .. } | Action::Fault { .. })));
            assert_eq!(*life.state(), State::InstallDue { until_ms: now_ms + delay_ms });
            assert_eq!((life.state().status(), life.crash_level()), (Status::Installing, 0));
            life.handle(Event::Elapsed, &def, now_ms + delay_ms);
            launch(&mut life, &def, now_ms + delay_ms);
            life.handle(Event::InstallBegun, &def, now_ms + delay_ms);
        }
        assert!(life.handle(exit(0), &def, 40_000).contains(&Action::Installed));
        assert_eq!(launch(&mut life, &def, 40_000), Packages::Fetched);
    }

    #[test]
    fn an_install_that_takes_too_long_is_asked_to_stop_and_whatever_its_exit_says_it_has_failed() {
        let def = definition();
        let mut life = installing(&def);
        let late = life.handle(Event::Elapsed, &def, def.install_timeout_ms);
        assert!(late.contains(&Action::AskToStop { instance: I }), "{late:?}");
        assert_eq!(life.state().status(), Status::Installing);
        assert!(!life.handle(exit(0), &def, def.install_timeout_ms + 1).contains(&Action::Installed));
        assert!(matches!(life.state(), State::InstallDue { .. }));
        assert_eq!(life.handle(Event::Stop, &def, 0), [Action::Deadline { at_ms: None }]);
        assert_eq!(*life.state(), State::Down);
    }

    #[test]
    fn a_start_that_fails_from_what_is_kept_is_doubted_once() {
        let def = definition();
        let mut life = Lifecycle::default();
        life.handle(Event::Start, &def, 0);
        let mut seen = Vec::new();
        for _ in 0..3 {
            seen.push(launch(&mut life, &def, 0));
            life.handle(Event::Launched, &def, 0);
            life.handle(exit(1), &def, 0);
            life.handle(Event::Elapsed, &def, 9_000);
            if seen.len() == 2 {
                seen.push(launch(&mut life, &def, 9_000));
                life.handle(Event::InstallBegun, &def, 9_000);
                life.handle(exit(0), &def, 9_000);
            }
        }
        assert_eq!(seen, [Packages::AsKept, Packages::Doubtful, Packages::Doubtful, Packages::Fetched]);
        life.handle(Event::Restart, &def, 9_000);
        assert_eq!(launch(&mut life, &def, 9_000), Packages::AsKept);
    }

    #[test]
    fn without_restarts_a_failed_install_is_the_end() {
        let def = Definition { restart_policy: RestartPolicy::Never, ..definition() };
        let mut life = installing(&def);
        assert!(life.handle(exit(1), &def, 0).contains(&Action::InstallGivenUp));
        assert_eq!(*life.state(), State::Failed);
    }
}
