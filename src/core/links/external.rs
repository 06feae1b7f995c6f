//! The life of the link to an external server, told in the words of `hosting/lifecycle.rs`, so that a peer need not know what
//! carries it. `link.rs` decides when there is an attempt; this file owns what becomes of it: the instance that carries it, be
//! it a connection or a sandbox, its handshake and its end. Invariants: at most one instance at a time, so a sandbox that was
//! told to go is gone before the next attempt begins; every attempt that the link begins is told `Up`, `Down` or `Impossible`.

use crate::core::contract::Now;
use crate::core::hosting::lifecycle::{Action, Event, InstallFault, State, Then};
use crate::core::links::link::{self, Link, Rules};
use crate::ids::InstanceId;
use crate::limits::{INSTALL_TIMEOUT_DEFAULT, STOP_GRACE};
use crate::model::fault::{Code, Fault, Outcome};
use crate::model::instance::{Exit, ExitCause, Packages, StopSignal};
use serde::{Deserialize, Serialize};

/// What carries the conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Carrier {
    /// A connection of the daemon's own: it is over as soon as it is closed.
    Network,
    /// A program in a sandbox: it is over when it has exited.
    Sandbox,
}

/// What users and operators do to a link; hosted servers know nothing like it.
#[derive(Clone, Debug, PartialEq)]
pub enum LinkEvent {
    /// Somebody wants to call it, or it is to be connected now.
    Use,
    /// A secret it uses, or what its row says, is another now.
    Changed(Rules),
    Enable,
    Disable,
    /// The connection is closed, or could not be made.
    Lost(String),
    /// An attempt that cannot even be made, such as for want of a secret.
    Impossible(Fault),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Stage {
    /// No instance.
    None,
    /// The attempt waits for one.
    Asked,
    Opening {
        instance: InstanceId,
    },
    /// A sandbox that fetches its packages, before the one that runs them. The link's own deadline does not hold meanwhile.
    Installing {
        instance: InstanceId,
        until_ms: u64,
    },
    Greeting {
        instance: InstanceId,
    },
    Up {
        instance: InstanceId,
    },
    /// A sandbox that was told to go.
    Closing {
        instance: InstanceId,
        launched: bool,
        /// None: it has been killed.
        kill_at_ms: Option<u64>,
        /// The link waits to begin its next attempt.
        next: bool,
    },
}

/// Why an attempt has failed; `InstallFailed` has told more before.
const NOT_FETCHED: &str = "its packages could not be fetched";

#[derive(Serialize, Deserialize)]
pub struct ExternalLife {
    link: Link,
    rules: Rules,
    carrier: Carrier,
    stage: Stage,
    /// When the link wants to hear of the time.
    due_ms: Option<u64>,
    packages: Packages,
    /// What those are told who want to use it while it is given up.
    refusal: Option<Fault>,
    /// The same in the words of hosted servers.
    shown: State,
}

impl ExternalLife {
    pub fn new(enabled: bool, rules: Rules, carrier: Carrier) -> ExternalLife {
        let link = Link::new(enabled);
        ExternalLife {
            link,
            rules,
            carrier,
            stage: Stage::None,
            due_ms: None,
            packages: Packages::AsKept,
            refusal: None,
            shown: State::Down,
        }
    }

    pub fn state(&self) -> &State {
        &self.shown
    }

    pub fn carrier(&self) -> Carrier {
        self.carrier
    }

    pub fn link_status(&self) -> link::Status {
        self.link.status()
    }

    pub fn connected_since_ms(&self) -> Option<u64> {
        self.link.connected_since_ms()
    }

    pub fn next_attempt_at_ms(&self) -> Option<u64> {
        self.link.next_attempt_at_ms()
    }

    /// Would a user make it try?
    pub fn begins_with_use(&self) -> bool {
        matches!(self.link.state(), link::State::Idle | link::State::Failed)
    }

    /// May a call be sent, or wait for the first attempt? `cause`: why the last one failed.
    pub fn admits(&self, name: &str, cause: Option<&str>, now: Now) -> Result<(), Fault> {
        let cause = cause.map_or(String::new(), |cause| format!(": {cause}"));
        let unavailable = |what: &str, wait_ms: Option<u64>| {
            let fault = Fault::new(Code::UpstreamUnavailable, format!("{name} {what}{cause}"));
            let fault = fault.outcome(Outcome::NotSent);
            wait_ms.map_or(fault.clone(), |ms| fault.retry_after_ms(ms.max(1)))
        };
        match self.link.state() {
            link::State::Connected { .. } | link::State::Connecting { .. } => Ok(()),
            link::State::Waiting { until_ms } => {
                let wait_ms = until_ms.saturating_sub(now.mono_ms);
                Err(unavailable(&format!("is not connected, and tried again in {wait_ms} ms"), Some(wait_ms)))
            }
            link::State::Retrying { .. } => Err(unavailable("is being connected again", Some(1_000))),
            link::State::Open { until_ms } => {
                let wait_ms = until_ms.saturating_sub(now.mono_ms);
                let message = format!("{name} has failed too often and is left alone for {wait_ms} ms{cause}");
                let fault = Fault::new(Code::CircuitOpen, message).outcome(Outcome::NotSent);
                Err(fault.retry_after_ms(wait_ms.max(1)))
            }
            link::State::Trial { .. } => {
                let message = format!("{name} has failed too often and is just being tried{cause}");
                Err(Fault::new(Code::CircuitOpen, message).outcome(Outcome::NotSent).retry_after_ms(1_000))
            }
            link::State::Idle | link::State::Failed => {
                Err(self.refusal.clone().unwrap_or_else(|| unavailable("is not connected", None)))
            }
            link::State::Disabled => {
                let message = format!("{name} is disabled; PATCH it with `\"enabled\": true`");
                Err(Fault::new(Code::ServerStopped, message).outcome(Outcome::NotSent))
            }
        }
    }

    /// Events that mean nothing in a stage change nothing.
    pub fn handle(&mut self, event: Event, now_ms: u64) -> Vec<Action> {
        let mut out = Vec::new();
        match event {
            Event::Start => self.tell(link::Event::Use, now_ms, &mut out),
            Event::Stop => self.tell(link::Event::Disconnect, now_ms, &mut out),
            Event::Shutdown => {
                self.tell(link::Event::Disconnect, now_ms, &mut out);
                self.never_again();
            }
            Event::KillNow => {
                self.tell(link::Event::Disconnect, now_ms, &mut out);
                self.never_again();
                self.kill(&mut out);
            }
            Event::Restart => self.tell(link::Event::Changed, now_ms, &mut out),
            Event::Link(event) => self.linked(event, now_ms, &mut out),
            Event::Slot { instance } => self.opened(instance, &mut out),
            Event::Launched => self.launched(&mut out),
            Event::InstallBegun => self.install_begun(now_ms, &mut out),
            Event::LaunchFailed(fault) => self.over(fault.message, now_ms, &mut out),
            Event::Greeted => self.greeted(now_ms, &mut out),
            Event::HandshakeRefused(why) => self.put_down(why, now_ms, &mut out),
            Event::Silent => {
                if matches!(self.stage, Stage::Up { .. }) {
                    out.push(Action::FailInFlight);
                }
                self.put_down("it answers neither ping nor tools/list".to_string(), now_ms, &mut out);
            }
            Event::StdoutClosed => self.muted(&mut out),
            Event::Exited(exit) => self.exited(exit, now_ms, &mut out),
            Event::Elapsed => self.elapsed(now_ms, &mut out),
            Event::Pulled | Event::PullFailed(_) | Event::Heard | Event::Sleep | Event::Wake => {}
        }
        self.shown = self.state_now();
        out.push(Action::Deadline { at_ms: self.deadline_ms() });
        out
    }

    fn linked(&mut self, event: LinkEvent, now_ms: u64, out: &mut Vec<Action>) {
        match event {
            LinkEvent::Use => self.tell(link::Event::Use, now_ms, out),
            LinkEvent::Changed(rules) => {
                self.rules = rules;
                self.packages = Packages::AsKept;
                self.tell(link::Event::Changed, now_ms, out);
            }
            LinkEvent::Enable => self.tell(link::Event::Enable, now_ms, out),
            LinkEvent::Disable => self.tell(link::Event::Disable, now_ms, out),
            LinkEvent::Lost(why) => self.over(why, now_ms, out),
            LinkEvent::Impossible(fault) => {
                let why = fault.message.clone();
                self.leave_instance(now_ms, out);
                self.refusal = Some(fault.outcome(Outcome::NotSent));
                if let Some(attempt) = self.link.attempt() {
                    self.tell(link::Event::Impossible { attempt, why }, now_ms, out);
                }
            }
        }
    }

    // --- an attempt -------------------------------------------------------------------------------------------------

    /// The one way to the link's table, and what it wants done.
    fn tell(&mut self, event: link::Event, now_ms: u64, out: &mut Vec<Action>) {
        for action in self.link.handle(event, &self.rules, now_ms) {
            match action {
                link::Action::Connect { .. } => self.ask(out),
                link::Action::Close { .. } => self.close(now_ms, out),
                link::Action::AttemptFailed { why } => out.push(Action::LinkFailed { why, was_up: false }),
                link::Action::Lost { why } => out.push(Action::LinkFailed { why, was_up: true }),
                link::Action::Deadline { at_ms } => self.due_ms = at_ms,
                // Users wait in the lane, and are judged by `admits` after every step.
                link::Action::Serve
                | link::Action::Wait
                | link::Action::Refuse(_)
                | link::Action::Admit
                | link::Action::RefuseWaiting(_) => {}
            }
        }
    }

    fn ask(&mut self, out: &mut Vec<Action>) {
        self.refusal = None;
        match &mut self.stage {
            Stage::Closing { next, .. } => *next = true,
            Stage::None
            | Stage::Asked
            | Stage::Opening { .. }
            | Stage::Installing { .. }
            | Stage::Greeting { .. }
            | Stage::Up { .. } => {
                self.stage = Stage::Asked;
                out.push(match self.carrier {
                    Carrier::Network => Action::Open,
                    Carrier::Sandbox => Action::Queue,
                });
            }
        }
    }

    fn opened(&mut self, instance: InstanceId, out: &mut Vec<Action>) {
        if self.stage == Stage::Asked {
            self.stage = Stage::Opening { instance };
            out.push(match self.carrier {
                Carrier::Network => Action::Connect { instance },
                Carrier::Sandbox => Action::Launch { instance, packages: self.packages },
            });
        }
    }

    fn launched(&mut self, out: &mut Vec<Action>) {
        match self.stage {
            Stage::Opening { instance } => {
                self.stage = Stage::Greeting { instance };
                out.push(Action::Greet { instance });
            }
            Stage::Closing { instance, kill_at_ms, next, .. } => {
                out.push(match kill_at_ms {
                    Some(_) => Action::AskToStop { instance },
                    None => Action::Signal { instance, signal: StopSignal::Kill },
                });
                self.stage = Stage::Closing { instance, launched: true, kill_at_ms, next };
            }
            Stage::None | Stage::Asked | Stage::Installing { .. } | Stage::Greeting { .. } | Stage::Up { .. } => {}
        }
    }

    fn greeted(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        if let (Stage::Greeting { instance }, Some(attempt)) = (self.stage, self.link.attempt()) {
            self.stage = Stage::Up { instance };
            self.packages = Packages::AsKept;
            out.push(Action::Watch { instance });
            self.tell(link::Event::Up { attempt }, now_ms, out);
        }
    }

    // --- its packages -----------------------------------------------------------------------------------------------

    fn install_begun(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        match self.stage {
            Stage::Opening { instance } => {
                let until_ms = now_ms + INSTALL_TIMEOUT_DEFAULT.as_millis() as u64;
                self.stage = Stage::Installing { instance, until_ms };
                out.push(Action::Installing { instance });
            }
            // Whatever it is, it was told to go.
            Stage::Closing { .. } => self.launched(out),
            Stage::None | Stage::Asked | Stage::Installing { .. } | Stage::Greeting { .. } | Stage::Up { .. } => {}
        }
    }

    /// The attempt goes on with the program itself, and has all its time for that.
    fn installed(&mut self, instance: InstanceId, now_ms: u64, out: &mut Vec<Action>) {
        self.packages = Packages::Fetched;
        self.stage = Stage::None;
        out.extend([Action::Installed, Action::Discard { instance }]);
        self.due_ms = Some(now_ms + self.rules.startup_ms);
        self.ask(out);
    }

    // --- its end ----------------------------------------------------------------------------------------------------

    /// The instance is gone by itself, or never came.
    fn over(&mut self, why: String, now_ms: u64, out: &mut Vec<Action>) {
        let attempt = self.link.attempt();
        match self.stage {
            Stage::Opening { instance }
            | Stage::Installing { instance, .. }
            | Stage::Greeting { instance }
            | Stage::Up { instance } => {
                self.stage = Stage::None;
                out.push(Action::Discard { instance });
                if let Some(attempt) = attempt {
                    self.tell(link::Event::Down { attempt, why }, now_ms, out);
                }
            }
            Stage::Closing { instance, next, .. } => self.closed(instance, next, out),
            Stage::None | Stage::Asked => {}
        }
    }

    fn exited(&mut self, exit: Exit, now_ms: u64, out: &mut Vec<Action>) {
        if let Stage::Installing { instance, .. } = self.stage {
            if exit.cause == ExitCause::Code(0) {
                return self.installed(instance, now_ms, out);
            }
            out.push(Action::InstallFailed { instance, cause: InstallFault::Exited(exit) });
            return self.over(NOT_FETCHED.to_string(), now_ms, out);
        }
        if let (Stage::Greeting { .. }, Packages::AsKept) = (self.stage, self.packages) {
            // What an earlier life has fetched may not be whole any more.
            self.packages = Packages::Doubtful;
        }
        if let Stage::Opening { instance } | Stage::Greeting { instance } | Stage::Up { instance } = self.stage {
            out.push(Action::Crashed { instance, exit });
        }
        let why = match exit.cause {
            ExitCause::Code(code) => format!("transport-exit: it exited with code {code}"),
            ExitCause::Signal(signal) => format!("transport-exit: it was killed by signal {signal}"),
        };
        self.over(why, now_ms, out);
    }

    fn closed(&mut self, instance: InstanceId, next: bool, out: &mut Vec<Action>) {
        self.stage = Stage::None;
        out.push(Action::Discard { instance });
        if next {
            self.ask(out);
        }
    }

    /// It lives, but is of no use: it is closed, and the attempt has failed.
    fn put_down(&mut self, why: String, now_ms: u64, out: &mut Vec<Action>) {
        let Some(attempt) = self.link.attempt() else { return };
        self.close(now_ms, out);
        self.tell(link::Event::Down { attempt, why }, now_ms, out);
    }

    fn close(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let (instance, launched) = match &mut self.stage {
            Stage::None => return,
            // The attempt that waits for its end is over too.
            Stage::Closing { next, .. } => return *next = false,
            Stage::Asked => {
                self.stage = Stage::None;
                return;
            }
            Stage::Opening { instance } => (*instance, false),
            Stage::Installing { instance, .. } | Stage::Greeting { instance } | Stage::Up { instance } => {
                (*instance, true)
            }
        };
        match self.carrier {
            Carrier::Network => {
                self.stage = Stage::None;
                out.push(Action::Discard { instance });
            }
            Carrier::Sandbox => {
                if launched {
                    out.push(Action::AskToStop { instance });
                }
                let kill_at_ms = Some(now_ms + STOP_GRACE.as_millis() as u64);
                self.stage = Stage::Closing { instance, launched, kill_at_ms, next: false };
            }
        }
    }

    /// Of an instance that was only numbered nothing has been started; any other is closed.
    fn leave_instance(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        match self.stage {
            Stage::Opening { instance } => {
                self.stage = Stage::None;
                out.push(Action::Discard { instance });
            }
            Stage::Installing { .. } | Stage::Greeting { .. } | Stage::Up { .. } | Stage::Asked => {
                self.close(now_ms, out)
            }
            Stage::None | Stage::Closing { .. } => {}
        }
    }

    /// A sandbox that can say nothing any more is of no use; its exit tells the rest.
    fn muted(&mut self, out: &mut Vec<Action>) {
        if let (Carrier::Sandbox, Stage::Greeting { instance } | Stage::Up { instance }) = (self.carrier, self.stage) {
            out.push(Action::Signal { instance, signal: StopSignal::Kill });
        }
    }

    fn never_again(&mut self) {
        if let Stage::Closing { next, .. } = &mut self.stage {
            *next = false;
        }
    }

    fn kill(&mut self, out: &mut Vec<Action>) {
        if let Stage::Closing { instance, kill_at_ms, .. } = &mut self.stage {
            *kill_at_ms = None;
            out.push(Action::Signal { instance: *instance, signal: StopSignal::Kill });
        }
    }

    // --- time -------------------------------------------------------------------------------------------------------

    fn elapsed(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        if let Stage::Closing { kill_at_ms: Some(at_ms), .. } = self.stage
            && at_ms <= now_ms
        {
            self.kill(out);
        }
        if let Stage::Installing { instance, until_ms } = self.stage {
            if until_ms <= now_ms {
                let after_ms = INSTALL_TIMEOUT_DEFAULT.as_millis() as u64;
                out.push(Action::InstallFailed { instance, cause: InstallFault::TooSlow { after_ms } });
                self.put_down(NOT_FETCHED.to_string(), now_ms, out);
            }
            return;
        }
        if self.due_ms.is_some_and(|at_ms| at_ms <= now_ms) {
            self.tell(link::Event::Elapsed, now_ms, out);
        }
    }

    fn deadline_ms(&self) -> Option<u64> {
        let kill_at_ms = match self.stage {
            Stage::Installing { until_ms, .. } => return Some(until_ms),
            Stage::Closing { kill_at_ms, .. } => kill_at_ms,
            Stage::None | Stage::Asked | Stage::Opening { .. } | Stage::Greeting { .. } | Stage::Up { .. } => None,
        };
        [self.due_ms, kill_at_ms].into_iter().flatten().min()
    }

    fn state_now(&self) -> State {
        let waiting = match self.link.state() {
            link::State::Waiting { until_ms } => State::Waiting { until_ms, looping: false },
            link::State::Open { until_ms } => State::Waiting { until_ms, looping: true },
            link::State::Failed => State::Failed,
            link::State::Idle
            | link::State::Disabled
            | link::State::Connecting { .. }
            | link::State::Retrying { .. }
            | link::State::Trial { .. }
            | link::State::Connected { .. } => State::Down,
        };
        match self.stage {
            Stage::None => waiting,
            Stage::Asked => State::Due,
            Stage::Opening { instance } => State::Launching { instance },
            Stage::Installing { instance, .. } => State::Installing { instance },
            Stage::Greeting { instance } => State::Greeting { instance },
            Stage::Up { instance } => {
                State::Ready { instance, since_ms: self.link.connected_since_ms().unwrap_or_default() }
            }
            Stage::Closing { instance, launched, kill_at_ms, next } => State::Stopping {
                instance,
                launched,
                then: if next { Then::Restart } else { Then::Down },
                killed: kill_at_ms.is_none(),
            },
        }
    }
}

#[cfg(test)]
mod tests;
