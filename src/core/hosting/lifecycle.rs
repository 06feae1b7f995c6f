//! One server's life: (state, event, now) → (state, actions), in one exhaustive match. Owns which instance is current and
//! when the next one may start. Invariants: at most one instance, and one death is counted once.

mod installing;

use crate::core::hosting::backoff::{Backoff, Verdict};
pub use crate::core::hosting::lifecycle::installing::InstallFault;
pub use crate::core::hosting::state::{State, Then};
use crate::core::links::external::LinkEvent;
use crate::ids::InstanceId;
use crate::limits::{LAUNCH_TIMEOUT, SHUTDOWN_GRACE, STDOUT_CLOSED_GRACE, STOP_GRACE, UNRESPONSIVE_GRACE};
use crate::model::definition::{Definition, OnUnresponsive, PullPolicy, RestartPolicy, Source};
use crate::model::instance::{Exit, ExitCause, LaunchFault, Packages, StopSignal};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// It should be up: boot, registration, `start`.
    Start,
    /// Its image is here.
    Pulled,
    PullFailed(LaunchFault),
    /// A slot is free; `instance` is the new life's id.
    Slot {
        instance: InstanceId,
    },
    Launched,
    /// What was launched fetches its packages first: its exit with 0 says that they are here.
    InstallBegun,
    LaunchFailed(LaunchFault),
    /// The handshake is done, or the port of a server without a bridge answers.
    Greeted,
    /// The handshake was refused.
    HandshakeRefused(String),
    /// It has left a probe unanswered.
    Silent,
    /// It has said something after all.
    Heard,
    StdoutClosed,
    Exited(Exit),
    Stop,
    /// As `Stop`, with the grace of a shutdown.
    Shutdown,
    Restart,
    /// Nobody has used it for so long; or it was not to be started before somebody does.
    Sleep,
    /// Somebody uses it.
    Wake,
    /// Do not wait for anybody.
    KillNow,
    /// The deadline of the present state.
    Elapsed,
    /// What only the link to an external server knows.
    Link(LinkEvent),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// See to the image; `Pulled` or `PullFailed` will follow.
    Pull {
        policy: PullPolicy,
    },
    /// The image is not waited for any more.
    LeavePull,
    /// Ask for a slot; `Slot` will follow.
    Queue,
    Launch {
        instance: InstanceId,
        packages: Packages,
    },
    /// From here on its packages are being fetched; and how that ended.
    Installing {
        instance: InstanceId,
    },
    Installed,
    InstallFailed {
        instance: InstanceId,
        cause: InstallFault,
    },
    /// There will be no further attempt.
    InstallGivenUp,
    /// Take an instance for a connection at once; `Slot` will follow.
    Open,
    /// Connect to an external server.
    Connect {
        instance: InstanceId,
    },
    /// Send `initialize`.
    Greet {
        instance: InstanceId,
    },
    /// From here on it is asked whether it lives.
    Watch {
        instance: InstanceId,
    },
    /// Its calls in flight will not be answered any more: it is put down for its silence.
    FailInFlight,
    /// See when its port answers.
    Knock {
        instance: InstanceId,
    },
    /// SIGTERM.
    AskToStop {
        instance: InstanceId,
    },
    Signal {
        instance: InstanceId,
        signal: StopSignal,
    },
    /// The instance is over; remove what is left of it.
    Discard {
        instance: InstanceId,
    },
    Crashed {
        instance: InstanceId,
        exit: Exit,
    },
    /// A fault of its own making or of its start, for `last_error`.
    Fault {
        message: String,
        launch: bool,
    },
    /// The link to an external server could not be made, or was lost.
    LinkFailed {
        why: String,
        was_up: bool,
    },
    /// The state's deadline; none: it has none.
    Deadline {
        at_ms: Option<u64>,
    },
}

#[derive(Serialize, Deserialize)]
pub struct Lifecycle {
    state: State,
    backoff: Backoff,
    /// The same for attempts to fetch its packages, which are no crashes.
    installs: Backoff,
    packages: Packages,
}

impl Default for Lifecycle {
    fn default() -> Lifecycle {
        let (backoff, installs) = (Backoff::default(), Backoff::default());
        Lifecycle { state: State::Down, backoff, installs, packages: Packages::AsKept }
    }
}

impl Lifecycle {
    /// Of a server that may not be started.
    pub fn failed() -> Lifecycle {
        Lifecycle { state: State::Failed, ..Lifecycle::default() }
    }

    pub fn state(&self) -> &State {
        &self.state
    }

    pub fn crash_level(&self) -> u32 {
        self.backoff.level()
    }

    /// How long until the next start, if one is certain: known while it waits, and while it is put down for a restart.
    pub fn next_start_in(&self, def: &Definition, now_ms: u64) -> Option<u64> {
        match self.state {
            State::Waiting { until_ms, .. } | State::InstallDue { until_ms } => Some(until_ms.saturating_sub(now_ms)),
            State::Stopping { then: Then::Crash { ready_for_ms }, .. } => {
                match self.backoff.clone().death(&def.crash_loop, now_ms, ready_for_ms) {
                    Verdict::Restart { delay_ms, .. } => Some(delay_ms),
                    Verdict::GiveUp => None,
                }
            }
            State::Stopping { then: Then::Down | Then::Sleep | Then::Wake | Then::Restart | Then::Install, .. }
            | State::Down
            | State::Asleep { .. }
            | State::Pulling
            | State::Installing { .. }
            | State::Due
            | State::Launching { .. }
            | State::Greeting { .. }
            | State::Ready { .. }
            | State::Unresponsive { .. }
            | State::Mute { .. }
            | State::Failed => None,
        }
    }

    /// The one table. Events that mean nothing in a state change nothing.
    pub fn handle(&mut self, event: Event, def: &Definition, now_ms: u64) -> Vec<Action> {
        let mut out = Vec::new();
        let state = std::mem::replace(&mut self.state, State::Down);
        self.state = match (state, event) {
            // --- coming up
            (
                State::Down | State::Failed | State::Asleep { .. } | State::Waiting { .. } | State::InstallDue { .. },
                Event::Start | Event::Restart,
            ) => {
                self.reset();
                begin(def, Begin::Fresh, &mut out)
            }
            (State::Waiting { .. } | State::InstallDue { .. }, Event::Elapsed) => {
                begin(def, Begin::AfterDeath, &mut out)
            }
            (State::Pulling, Event::Pulled) => due(&mut out),
            (State::Pulling, Event::PullFailed(fault)) => {
                out.push(Action::Fault { message: fault.message, launch: true });
                self.after_death(def, now_ms, None, &mut out)
            }
            (State::Due, Event::Slot { instance }) => {
                out.push(Action::Launch { instance, packages: self.packages });
                out.push(deadline(now_ms + LAUNCH_TIMEOUT.as_millis() as u64));
                State::Launching { instance }
            }
            (State::Launching { instance }, Event::Launched) => match def.stdio_bridge {
                true => {
                    out.push(Action::Greet { instance });
                    out.push(deadline(now_ms + def.startup_timeout_ms));
                    State::Greeting { instance }
                }
                false if def.ports.is_empty() => ready(instance, now_ms, &mut out),
                false => {
                    out.push(Action::Knock { instance });
                    out.push(deadline(now_ms + def.startup_timeout_ms));
                    State::Greeting { instance }
                }
            },
            (State::Launching { instance }, Event::InstallBegun) => {
                out.push(Action::Installing { instance });
                out.push(deadline(now_ms + def.install_timeout_ms));
                State::Installing { instance }
            }
            (State::Installing { instance }, Event::Exited(exit)) => {
                self.after_install(instance, exit, def, now_ms, &mut out)
            }
            (State::Installing { instance }, Event::Elapsed) => {
                let cause = InstallFault::TooSlow { after_ms: def.install_timeout_ms };
                out.push(Action::InstallFailed { instance, cause });
                // Asked first: what it has in hand is whole when it may put it down itself.
                stopping(instance, true, Then::Install, now_ms, &mut out)
            }
            (State::Launching { instance }, Event::LaunchFailed(fault)) => {
                out.push(Action::Discard { instance });
                out.push(Action::Fault { message: fault.message, launch: true });
                self.after_death(def, now_ms, None, &mut out)
            }
            (State::Launching { instance }, Event::Elapsed) => {
                let message = format!("the runtime did not start it within {} s", LAUNCH_TIMEOUT.as_secs());
                out.push(Action::Fault { message, launch: true });
                put_down(instance, false, Then::Crash { ready_for_ms: None }, &mut out)
            }
            (State::Greeting { instance }, Event::Greeted) => {
                self.packages = Packages::AsKept;
                out.push(Action::Watch { instance });
                ready(instance, now_ms, &mut out)
            }
            (State::Greeting { instance }, Event::HandshakeRefused(message)) => {
                out.push(Action::Fault { message, launch: false });
                put_down(instance, true, Then::Crash { ready_for_ms: None }, &mut out)
            }
            (State::Greeting { instance }, Event::Elapsed) => {
                put_down(instance, true, Then::Crash { ready_for_ms: None }, &mut out)
            }

            // --- at rest while nobody uses it
            (State::Ready { instance, .. } | State::Unresponsive { instance, .. }, Event::Sleep) => {
                stopping(instance, true, Then::Sleep, now_ms, &mut out)
            }
            (State::Down, Event::Sleep) => State::Asleep { since_ms: now_ms },
            // It was up: neither what is counted of its crashes nor its image is begun anew.
            (State::Asleep { .. }, Event::Wake) => begin(def, Begin::AfterRest, &mut out),
            (State::Stopping { instance, launched, then: Then::Sleep, killed }, Event::Wake) => {
                State::Stopping { instance, launched, then: Then::Wake, killed }
            }

            // --- silent, and heard again
            (State::Ready { instance, since_ms } | State::Unresponsive { instance, since_ms }, Event::Silent) => {
                silent(instance, since_ms, def, now_ms, &mut out)
            }
            (State::Unresponsive { instance, since_ms }, Event::Heard) => State::Ready { instance, since_ms },

            // --- going down by itself
            (State::Greeting { instance }, Event::StdoutClosed) if def.stdio_bridge => {
                out.push(deadline(now_ms + STDOUT_CLOSED_GRACE.as_millis() as u64));
                State::Mute { instance, ready_since_ms: None }
            }
            (State::Ready { instance, since_ms } | State::Unresponsive { instance, since_ms }, Event::StdoutClosed)
                if def.stdio_bridge =>
            {
                out.push(deadline(now_ms + STDOUT_CLOSED_GRACE.as_millis() as u64));
                State::Mute { instance, ready_since_ms: Some(since_ms) }
            }
            (State::Mute { instance, ready_since_ms }, Event::Elapsed) => {
                let message = "it closed its stdout and did not exit".to_string();
                out.push(Action::Fault { message, launch: false });
                out.push(Action::Signal { instance, signal: StopSignal::Kill });
                out.push(Action::Deadline { at_ms: None });
                State::Mute { instance, ready_since_ms }
            }
            (State::Greeting { instance } | State::Launching { instance }, Event::Exited(exit)) => {
                self.doubt_packages();
                self.after_exit(instance, exit, def, now_ms, None, &mut out)
            }
            (State::Ready { instance, since_ms } | State::Unresponsive { instance, since_ms }, Event::Exited(exit)) => {
                self.after_exit(instance, exit, def, now_ms, Some(since_ms), &mut out)
            }
            (State::Mute { instance, ready_since_ms }, Event::Exited(exit)) => {
                self.after_exit(instance, exit, def, now_ms, ready_since_ms, &mut out)
            }

            // --- going down because we say so
            (State::Pulling, Event::Stop | Event::Shutdown | Event::KillNow) => {
                out.push(Action::LeavePull);
                State::Down
            }
            // The definition may name another image now.
            (State::Pulling, Event::Restart) => {
                self.reset();
                out.push(Action::LeavePull);
                begin(def, Begin::Fresh, &mut out)
            }
            (
                State::Due | State::Waiting { .. } | State::InstallDue { .. },
                Event::Stop | Event::Shutdown | Event::KillNow,
            ) => {
                out.push(Action::Deadline { at_ms: None });
                State::Down
            }
            (State::Failed, Event::Stop) => State::Down,
            (State::Asleep { .. }, Event::Stop | Event::Shutdown | Event::KillNow) => State::Down,
            (State::Launching { instance }, Event::Stop) => stopping(instance, false, Then::Down, now_ms, &mut out),
            (State::Launching { instance }, Event::Restart) => {
                self.reset();
                stopping(instance, false, Then::Restart, now_ms, &mut out)
            }
            (State::Launching { instance }, Event::Shutdown) => shutting(instance, false, now_ms, &mut out),
            (
                State::Installing { instance }
                | State::Greeting { instance }
                | State::Ready { instance, .. }
                | State::Unresponsive { instance, .. }
                | State::Mute { instance, .. },
                Event::Stop,
            ) => stopping(instance, true, Then::Down, now_ms, &mut out),
            (
                State::Installing { instance }
                | State::Greeting { instance }
                | State::Ready { instance, .. }
                | State::Unresponsive { instance, .. }
                | State::Mute { instance, .. },
                Event::Restart,
            ) => {
                self.reset();
                stopping(instance, true, Then::Restart, now_ms, &mut out)
            }
            (
                State::Installing { instance }
                | State::Greeting { instance }
                | State::Ready { instance, .. }
                | State::Unresponsive { instance, .. }
                | State::Mute { instance, .. },
                Event::Shutdown,
            ) => shutting(instance, true, now_ms, &mut out),
            (
                State::Launching { instance }
                | State::Installing { instance }
                | State::Greeting { instance }
                | State::Ready { instance, .. }
                | State::Unresponsive { instance, .. }
                | State::Mute { instance, .. }
                | State::Stopping { instance, .. },
                Event::KillNow,
            ) => put_down(instance, true, Then::Down, &mut out),

            // --- on its way out
            (State::Stopping { instance, then, killed, .. }, Event::Launched | Event::InstallBegun) => {
                match killed {
                    true => out.push(Action::Signal { instance, signal: StopSignal::Kill }),
                    false => out.push(Action::AskToStop { instance }),
                }
                State::Stopping { instance, launched: true, then, killed }
            }
            (State::Stopping { instance, then, .. }, Event::LaunchFailed(_)) => {
                out.push(Action::Discard { instance });
                self.after_stop(then, def, now_ms, &mut out)
            }
            (State::Stopping { instance, launched, then, .. }, Event::Elapsed) => {
                out.push(Action::Signal { instance, signal: StopSignal::Kill });
                out.push(Action::Deadline { at_ms: None });
                State::Stopping { instance, launched, then, killed: true }
            }
            (State::Stopping { instance, then, .. }, Event::Exited(exit)) => {
                if let Then::Crash { .. } = then {
                    out.push(Action::Crashed { instance, exit });
                }
                out.push(Action::Discard { instance });
                self.after_stop(then, def, now_ms, &mut out)
            }
            (State::Stopping { instance, launched, killed, .. }, Event::Start | Event::Restart) => {
                self.reset();
                State::Stopping { instance, launched, then: Then::Restart, killed }
            }
            (State::Stopping { instance, launched, killed, .. }, Event::Stop | Event::Shutdown) => {
                State::Stopping { instance, launched, then: Then::Down, killed }
            }

            // --- nothing to do: it is there already, or the event is of a life that is over
            (
                state @ (State::Pulling
                | State::Due
                | State::Launching { .. }
                | State::Installing { .. }
                | State::Greeting { .. }
                | State::Ready { .. }
                | State::Unresponsive { .. }
                | State::Mute { .. }),
                Event::Start,
            ) => state,
            // What was fetched may be another's: its definition may have changed.
            (State::Due, Event::Restart) => {
                self.packages = Packages::AsKept;
                State::Due
            }
            (state @ (State::Down | State::Failed), Event::Stop | Event::Shutdown | Event::KillNow) => state,
            (
                state,
                Event::Pulled
                | Event::PullFailed(_)
                | Event::Slot { .. }
                | Event::Launched
                | Event::InstallBegun
                | Event::LaunchFailed(_)
                | Event::Greeted
                | Event::HandshakeRefused(_)
                | Event::Silent
                | Event::Heard
                | Event::StdoutClosed
                | Event::Exited(_)
                | Event::Sleep
                | Event::Wake
                | Event::Elapsed
                | Event::Link(_),
            ) => state,
        };
        out
    }

    fn after_exit(
        &mut self,
        instance: InstanceId,
        exit: Exit,
        def: &Definition,
        now_ms: u64,
        ready_since_ms: Option<u64>,
        out: &mut Vec<Action>,
    ) -> State {
        out.push(Action::Crashed { instance, exit });
        out.push(Action::Discard { instance });
        let restart = match def.restart_policy {
            RestartPolicy::Always => true,
            RestartPolicy::OnFailure => exit.cause != ExitCause::Code(0),
            RestartPolicy::Never => false,
        };
        if !restart {
            out.push(Action::Deadline { at_ms: None });
            return State::Down;
        }
        self.after_death(def, now_ms, ready_since_ms.map(|since| now_ms - since), out)
    }

    /// A hand, so all that was counted and thought of earlier lives is over.
    fn reset(&mut self) {
        self.backoff.reset();
        self.installs.reset();
        self.packages = Packages::AsKept;
    }

    fn after_stop(&mut self, then: Then, def: &Definition, now_ms: u64, out: &mut Vec<Action>) -> State {
        match then {
            Then::Down => {
                out.push(Action::Deadline { at_ms: None });
                State::Down
            }
            Then::Sleep => {
                out.push(Action::Deadline { at_ms: None });
                State::Asleep { since_ms: now_ms }
            }
            Then::Wake => begin(def, Begin::AfterRest, out),
            Then::Restart => begin(def, Begin::Fresh, out),
            Then::Install => self.next_install(def, now_ms, out),
            Then::Crash { ready_for_ms } => self.after_death(def, now_ms, ready_for_ms, out),
        }
    }

    /// A death or a launch that failed: when is the next life, if there is one?
    fn after_death(
        &mut self,
        def: &Definition,
        now_ms: u64,
        ready_for_ms: Option<u64>,
        out: &mut Vec<Action>,
    ) -> State {
        if def.restart_policy == RestartPolicy::Never {
            out.push(Action::Deadline { at_ms: None });
            return State::Failed;
        }
        match self.backoff.death(&def.crash_loop, now_ms, ready_for_ms) {
            Verdict::GiveUp => {
                out.push(Action::Deadline { at_ms: None });
                State::Failed
            }
            Verdict::Restart { delay_ms: 0, looping: false } => begin(def, Begin::AfterDeath, out),
            Verdict::Restart { delay_ms, looping } => {
                out.push(deadline(now_ms + delay_ms));
                State::Waiting { until_ms: now_ms + delay_ms, looping }
            }
        }
    }
}

/// Why a life begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Begin {
    /// A hand, a boot or a registration.
    Fresh,
    AfterDeath,
    AfterRest,
}

/// The first step of every life: its image, if it has one.
fn begin(def: &Definition, why: Begin, out: &mut Vec<Action>) -> State {
    match (&def.source, def.pull_policy, why) {
        (Source::HostRootfs, _, _) => due(out),
        (Source::Image(_), PullPolicy::Always, Begin::AfterDeath | Begin::AfterRest) => {
            pulling(PullPolicy::Missing, out)
        }
        (Source::Image(_), policy, _) => pulling(policy, out),
    }
}

fn pulling(policy: PullPolicy, out: &mut Vec<Action>) -> State {
    out.push(Action::Deadline { at_ms: None });
    out.push(Action::Pull { policy });
    State::Pulling
}

fn due(out: &mut Vec<Action>) -> State {
    out.push(Action::Deadline { at_ms: None });
    out.push(Action::Queue);
    State::Due
}

fn ready(instance: InstanceId, now_ms: u64, out: &mut Vec<Action>) -> State {
    out.push(Action::Deadline { at_ms: None });
    State::Ready { instance, since_ms: now_ms }
}

/// What silence leads to. A restart needs a policy that allows one: to put down what may not come back helps nobody.
fn silent(instance: InstanceId, since_ms: u64, def: &Definition, now_ms: u64, out: &mut Vec<Action>) -> State {
    match (def.health.on_unresponsive, def.restart_policy) {
        (OnUnresponsive::Report, _) | (OnUnresponsive::Restart, RestartPolicy::Never) => {
            State::Unresponsive { instance, since_ms }
        }
        (OnUnresponsive::Restart, RestartPolicy::Always | RestartPolicy::OnFailure) => {
            let message = "unresponsive: it answered neither ping nor tools/list".to_string();
            out.push(Action::Fault { message, launch: false });
            out.push(Action::FailInFlight);
            out.push(Action::AskToStop { instance });
            out.push(deadline(now_ms + UNRESPONSIVE_GRACE.as_millis() as u64));
            let then = Then::Crash { ready_for_ms: Some(now_ms - since_ms) };
            State::Stopping { instance, launched: true, then, killed: false }
        }
    }
}

fn deadline(at_ms: u64) -> Action {
    Action::Deadline { at_ms: Some(at_ms) }
}

fn stopping(instance: InstanceId, launched: bool, then: Then, now_ms: u64, out: &mut Vec<Action>) -> State {
    if launched {
        out.push(Action::AskToStop { instance });
    }
    out.push(deadline(now_ms + STOP_GRACE.as_millis() as u64));
    State::Stopping { instance, launched, then, killed: false }
}

fn shutting(instance: InstanceId, launched: bool, now_ms: u64, out: &mut Vec<Action>) -> State {
    let state = stopping(instance, launched, Then::Down, now_ms, out);
    out.push(deadline(now_ms + SHUTDOWN_GRACE.as_millis() as u64));
    state
}

fn put_down(instance: InstanceId, launched: bool, then: Then, out: &mut Vec<Action>) -> State {
    out.push(Action::Signal { instance, signal: StopSignal::Kill });
    out.push(Action::Deadline { at_ms: None });
    State::Stopping { instance, launched, then, killed: true }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::definition::tests::definition;
    use crate::model::status::Status;

    const I: InstanceId = InstanceId(1);

    fn crash(code: i32) -> Event {
        Event::Exited(Exit { cause: ExitCause::Code(code), oom: false })
    }

    fn up(def: &Definition) -> Lifecycle {
        let mut life = Lifecycle::default();
        assert!(life.handle(Event::Start, def, 0).contains(&Action::Queue));
        life.handle(Event::Slot { instance: I }, def, 0);
        assert!(life.handle(Event::Launched, def, 0).contains(&Action::Greet { instance: I }));
        life.handle(Event::Greeted, def, 0);
        assert_eq!(life.state().ready_instance(), Some(I));
        life
    }

    #[test]
    fn the_policy_decides_what_an_exit_means() {
        let exits = [(RestartPolicy::Always, 0, Status::Starting), (RestartPolicy::OnFailure, 0, Status::Stopped)];
        let more = [(RestartPolicy::OnFailure, 3, Status::Starting), (RestartPolicy::Never, 3, Status::Stopped)];
        for (policy, code, want) in exits.into_iter().chain(more) {
            let def = Definition { restart_policy: policy, ..definition() };
            let mut life = up(&def);
            let actions = life.handle(crash(code), &def, 5);
            assert_eq!(actions[1], Action::Discard { instance: I });
            assert_eq!(life.state().status(), want, "{policy:?} after {code}");
        }
    }

    #[test]
    fn a_stop_is_no_crash_and_ends_with_a_kill() {
        let def = definition();
        let mut life = up(&def);
        assert!(life.handle(Event::Stop, &def, 0).contains(&Action::AskToStop { instance: I }));
        let kill = Action::Signal { instance: I, signal: StopSignal::Kill };
        assert!(life.handle(Event::Elapsed, &def, 10_000).contains(&kill));
        let actions = life.handle(crash(0), &def, 10_001);
        assert!(!actions.iter().any(|a| matches!(a, Action::Crashed { .. })));
        assert_eq!(*life.state(), State::Down);
    }

    #[test]
    fn a_stop_in_the_middle_of_a_launch_waits_for_the_instance() {
        let def = definition();
        let mut life = Lifecycle::default();
        life.handle(Event::Start, &def, 0);
        life.handle(Event::Slot { instance: I }, &def, 0);
        assert!(!life.handle(Event::Stop, &def, 0).contains(&Action::AskToStop { instance: I }));
        assert!(life.handle(Event::Launched, &def, 1).contains(&Action::AskToStop { instance: I }));
        life.handle(crash(0), &def, 2);
        assert_eq!(*life.state(), State::Down);
    }

    #[test]
    fn an_image_comes_before_the_slot_and_its_want_is_a_failed_launch() {
        let def =
            Definition { source: Source::Image("r.test/a".into()), pull_policy: PullPolicy::Always, ..definition() };
        let mut life = Lifecycle::default();
        assert!(life.handle(Event::Start, &def, 0).contains(&Action::Pull { policy: PullPolicy::Always }));
        let fault = LaunchFault { kind: crate::model::instance::LaunchFaultKind::ImageNotFound, message: "no".into() };
        let actions = life.handle(Event::PullFailed(fault), &def, 1);
        assert!(actions.contains(&Action::Fault { message: "no".into(), launch: true }));
        // The first restart is at once, and asks the registry only for what is not here.
        assert!(actions.contains(&Action::Pull { policy: PullPolicy::Missing }));
        assert!(life.handle(Event::Pulled, &def, 2).contains(&Action::Queue));
        life.handle(Event::Slot { instance: I }, &def, 2);
        assert_eq!(life.state().instance(), Some(I));

        let mut stopped = Lifecycle::default();
        stopped.handle(Event::Start, &def, 0);
        assert!(stopped.handle(Event::Stop, &def, 1).contains(&Action::LeavePull));
        assert_eq!(stopped.handle(Event::Pulled, &def, 2), []);
        assert_eq!(*stopped.state(), State::Down);
    }

    #[test]
    fn one_death_is_counted_once() {
        let def = definition();
        let mut life = up(&def);
        assert!(life.handle(crash(1), &def, 1).iter().any(|a| matches!(a, Action::Crashed { .. })));
        for late in [crash(1), Event::StdoutClosed, Event::Greeted, Event::Elapsed] {
            assert_eq!(life.handle(late, &def, 2), []);
        }
    }

    #[test]
    fn silence_is_reported_and_a_word_ends_it() {
        let def = definition();
        let mut life = up(&def);
        assert_eq!(life.handle(Event::Silent, &def, 5), []);
        assert_eq!((life.state().status(), life.state().ready_instance()), (Status::Unresponsive, Some(I)));
        assert_eq!(life.handle(Event::Heard, &def, 6), []);
        assert_eq!(*life.state(), State::Ready { instance: I, since_ms: 0 });
    }

    #[test]
    fn silence_can_mean_a_restart_by_the_schedule_unless_the_policy_forbids_it() {
        let mut def = definition();
        def.health.on_unresponsive = OnUnresponsive::Restart;
        let mut life = up(&def);
        let actions = life.handle(Event::Silent, &def, 5);
        assert!(actions.contains(&Action::FailInFlight) && actions.contains(&Action::AskToStop { instance: I }));
        let kill = Action::Signal { instance: I, signal: StopSignal::Kill };
        assert!(life.handle(Event::Elapsed, &def, 2_005).contains(&kill));
        assert!(life.handle(crash(0), &def, 2_006).contains(&Action::Queue), "the first is at once");
        assert_eq!(
            life.backoff.death(&def.crash_loop, 2_007, None),
            Verdict::Restart { delay_ms: 1_000, looping: false }
        );

        def.restart_policy = RestartPolicy::Never;
        let mut life = up(&def);
        assert_eq!(life.handle(Event::Silent, &def, 5), []);
        assert_eq!(life.state().status(), Status::Unresponsive);
    }

    #[test]
    fn four_deaths_in_a_row_are_a_backoff_that_a_hand_can_end() {
        let def = definition();
        let mut life = up(&def);
        for _ in 0..3 {
            life.handle(crash(1), &def, 0);
            life.handle(Event::Elapsed, &def, 0);
            life.handle(Event::Slot { instance: I }, &def, 0);
            life.handle(Event::Launched, &def, 0);
        }
        life.handle(crash(1), &def, 0);
        assert_eq!(*life.state(), State::Waiting { until_ms: 5_000, looping: true });
        assert!(life.handle(Event::Restart, &def, 1).contains(&Action::Queue));
        assert_eq!(life.crash_level(), 0);
    }
}
