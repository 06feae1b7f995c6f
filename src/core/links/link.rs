//! One link's life: (state, event, now) → (state, actions), in one exhaustive match. Owns which attempt is current, when
//! the next one may be made, and whether users wait, are served or are refused. Invariants: at most one attempt or connection
//! at a time, numbered and never reused, so that a late word of an earlier one means nothing; while the circuit is open
//! nothing is tried; whoever was told to wait is admitted or refused when the attempt they wait for has ended.

use crate::limits::{LINK_SCHEDULE_MS, LINK_STABLE};
pub use crate::model::external::{Breaker, LinkStatus as Status};
use serde::{Deserialize, Serialize};

/// What a row says of its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// Tried again without end; otherwise once, and then with the next use.
    pub shared: bool,
    /// None: the schedule alone decides.
    pub breaker: Option<Breaker>,
    /// For one attempt, from the name to the end of the handshake.
    pub startup_ms: u64,
}

/// Of one link, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Attempt(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// Not connected, and nobody has asked for it.
    Idle,
    /// An attempt that its first users wait for.
    Connecting {
        attempt: Attempt,
    },
    Connected {
        attempt: Attempt,
        since_ms: u64,
    },
    /// Down; the next attempt is at `until_ms`.
    Waiting {
        until_ms: u64,
    },
    /// An attempt that nobody waits for.
    Retrying {
        attempt: Attempt,
    },
    /// The circuit is open.
    Open {
        until_ms: u64,
    },
    /// The one attempt that closes the circuit or opens it again.
    Trial {
        attempt: Attempt,
    },
    /// Given up until the next use.
    Failed,
    Disabled,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Somebody wants to call it, or it is to be connected now. Exactly one of `Serve`, `Wait` and `Refuse` follows.
    Use,
    /// The handshake of this attempt is done.
    Up {
        attempt: Attempt,
    },
    /// This attempt has failed, or its connection is closed.
    Down {
        attempt: Attempt,
        why: String,
    },
    /// This attempt could not even be made (a secret is missing): to try again changes nothing.
    Impossible {
        attempt: Attempt,
        why: String,
    },
    /// By hand, or because nobody needs it any more.
    Disconnect,
    /// A secret it uses, or what its row says, is another now.
    Changed,
    Enable,
    Disable,
    /// The deadline of the present state.
    Elapsed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Resolve, connect, shake hands; `Up`, `Down` or `Impossible` will follow.
    Connect {
        attempt: Attempt,
    },
    /// End this attempt or connection. Nothing that it says afterwards counts.
    Close {
        attempt: Attempt,
    },
    /// To the user of this event: there is a connection.
    Serve,
    /// To the user of this event: `Admit` or `RefuseWaiting` will follow.
    Wait,
    /// To the user of this event.
    Refuse(Refusal),
    /// To all who wait.
    Admit,
    RefuseWaiting(Refusal),
    /// For `last_error` and the log, each at level ERR: an attempt failed.
    AttemptFailed {
        why: String,
    },
    /// For the same: a connection that was up is closed (`transport-exit`). What was in flight on it has an unknown outcome.
    Lost {
        why: String,
    },
    /// The state's deadline; none: it has none.
    Deadline {
        at_ms: Option<u64>,
    },
}

/// Why a user gets nothing; nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// `upstream_unavailable`. None: with the next use it is tried again.
    Unavailable {
        retry_after_ms: Option<u64>,
    },
    /// `circuit_open`.
    CircuitOpen {
        retry_after_ms: u64,
    },
    Disconnected,
    Disabled,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    state: State,
    /// The number of the last attempt.
    minted: u64,
    /// Attempts in a row that failed.
    failed: u32,
    /// The place in the schedule of the next delay.
    step: usize,
}

impl Link {
    pub fn new(enabled: bool) -> Link {
        let state = if enabled { State::Idle } else { State::Disabled };
        Link { state, minted: 0, failed: 0, step: 0 }
    }

    pub fn state(&self) -> State {
        self.state
    }

    pub fn status(&self) -> Status {
        match self.state {
            State::Idle => Status::Idle,
            State::Connecting { .. } => Status::Connecting,
            State::Connected { .. } => Status::Connected,
            State::Waiting { .. } | State::Retrying { .. } => Status::Reconnecting,
            State::Open { .. } | State::Trial { .. } => Status::CircuitOpen,
            State::Failed => Status::Failed,
            State::Disabled => Status::Disabled,
        }
    }

    pub fn connected_since_ms(&self) -> Option<u64> {
        match self.state {
            State::Connected { since_ms, .. } => Some(since_ms),
            State::Idle
            | State::Connecting { .. }
            | State::Waiting { .. }
            | State::Retrying { .. }
            | State::Open { .. }
            | State::Trial { .. }
            | State::Failed
            | State::Disabled => None,
        }
    }

    pub fn next_attempt_at_ms(&self) -> Option<u64> {
        match self.state {
            State::Waiting { until_ms } | State::Open { until_ms } => Some(until_ms),
            State::Idle
            | State::Connecting { .. }
            | State::Connected { .. }
            | State::Retrying { .. }
            | State::Trial { .. }
            | State::Failed
            | State::Disabled => None,
        }
    }

    /// The attempt or the connection there is.
    pub fn attempt(&self) -> Option<Attempt> {
        match self.state {
            State::Connecting { attempt }
            | State::Connected { attempt, .. }
            | State::Retrying { attempt }
            | State::Trial { attempt } => Some(attempt),
            State::Idle | State::Waiting { .. } | State::Open { .. } | State::Failed | State::Disabled => None,
        }
    }

    /// The one table. Events that mean nothing in a state change nothing.
    pub fn handle(&mut self, event: Event, rules: &Rules, now_ms: u64) -> Vec<Action> {
        let mut out = Vec::new();
        let current = self.attempt();
        self.state = match (self.state, event) {
            // --- users
            (State::Idle | State::Failed, Event::Use) => {
                out.push(Action::Wait);
                let attempt = self.begin(rules, now_ms, &mut out);
                State::Connecting { attempt }
            }
            (state @ State::Connecting { .. }, Event::Use) => stay(state, Action::Wait, &mut out),
            (state @ State::Connected { .. }, Event::Use) => stay(state, Action::Serve, &mut out),
            (
                state @ (State::Waiting { .. }
                | State::Retrying { .. }
                | State::Open { .. }
                | State::Trial { .. }
                | State::Disabled),
                Event::Use,
            ) => stay(state, Action::Refuse(refusal(state, rules, now_ms)), &mut out),

            // --- up
            (State::Connecting { attempt }, Event::Up { attempt: of }) if of == attempt => {
                // The first delay belongs to the first loss: it is not used up by having connected.
                (self.failed, self.step) = (0, 0);
                out.push(Action::Admit);
                connected(attempt, now_ms, &mut out)
            }
            (State::Retrying { attempt } | State::Trial { attempt }, Event::Up { attempt: of }) if of == attempt => {
                self.failed = 0;
                connected(attempt, now_ms, &mut out)
            }

            // --- down by itself
            (State::Connected { attempt, since_ms }, Event::Down { attempt: of, why }) if of == attempt => {
                out.push(Action::Lost { why });
                self.after_loss(since_ms, rules, now_ms, &mut out)
            }
            (state, Event::Down { attempt, why }) if current == Some(attempt) => {
                out.push(Action::AttemptFailed { why });
                self.after_failure(state, rules, now_ms, &mut out)
            }
            (state, Event::Impossible { attempt, why }) if current == Some(attempt) => {
                out.push(Action::AttemptFailed { why });
                refuse_waiting(state, Refusal::Unavailable { retry_after_ms: None }, &mut out);
                deadline(None, &mut out);
                State::Failed
            }
            // Of an attempt that is over.
            (state, Event::Up { .. } | Event::Down { .. } | Event::Impossible { .. }) => state,

            // --- time
            (State::Waiting { until_ms }, Event::Elapsed) if now_ms >= until_ms => {
                let attempt = self.begin(rules, now_ms, &mut out);
                State::Retrying { attempt }
            }
            (State::Open { until_ms }, Event::Elapsed) if now_ms >= until_ms => match rules.shared {
                true => {
                    let attempt = self.begin(rules, now_ms, &mut out);
                    State::Trial { attempt }
                }
                // Its trial is the attempt of its next user: `failed` is as it was, so that one failure opens it again.
                false => {
                    deadline(None, &mut out);
                    State::Failed
                }
            },
            // A timer of an earlier state.
            (state @ (State::Waiting { until_ms } | State::Open { until_ms }), Event::Elapsed) => {
                deadline(Some(until_ms), &mut out);
                state
            }
            (
                state @ (State::Connecting { attempt } | State::Retrying { attempt } | State::Trial { attempt }),
                Event::Elapsed,
            ) => {
                out.push(Action::Close { attempt });
                out.push(Action::AttemptFailed { why: format!("it did not connect within {} ms", rules.startup_ms) });
                self.after_failure(state, rules, now_ms, &mut out)
            }
            (state @ (State::Idle | State::Connected { .. } | State::Failed | State::Disabled), Event::Elapsed) => {
                state
            }

            // --- because we say so
            (State::Disabled, Event::Disconnect | Event::Changed | Event::Disable) => State::Disabled,
            (State::Disabled, Event::Enable) => State::Idle,
            (
                state @ (State::Idle
                | State::Connecting { .. }
                | State::Connected { .. }
                | State::Waiting { .. }
                | State::Retrying { .. }
                | State::Open { .. }
                | State::Trial { .. }
                | State::Failed),
                Event::Enable,
            ) => state,
            (state, Event::Disconnect) => {
                self.put_down(state, Refusal::Disconnected, &mut out);
                State::Idle
            }
            (state, Event::Disable) => {
                self.put_down(state, Refusal::Disabled, &mut out);
                State::Disabled
            }
            (State::Idle | State::Failed, Event::Changed) => {
                (self.failed, self.step) = (0, 0);
                State::Idle
            }
            // Whatever was wrong may be right now, and those who wait go on waiting.
            (
                State::Connecting { .. }
                | State::Connected { .. }
                | State::Waiting { .. }
                | State::Retrying { .. }
                | State::Open { .. }
                | State::Trial { .. },
                Event::Changed,
            ) => {
                out.extend(current.map(|attempt| Action::Close { attempt }));
                (self.failed, self.step) = (0, 0);
                let attempt = self.begin(rules, now_ms, &mut out);
                State::Connecting { attempt }
            }
        };
        out
    }

    fn begin(&mut self, rules: &Rules, now_ms: u64, out: &mut Vec<Action>) -> Attempt {
        self.minted += 1;
        let attempt = Attempt(self.minted);
        // The first attempt of all is the one after no time: its failure is followed by the next delay.
        self.step = self.step.max(1);
        out.push(Action::Connect { attempt });
        deadline(Some(now_ms.saturating_add(rules.startup_ms)), out);
        attempt
    }

    fn after_loss(&mut self, since_ms: u64, rules: &Rules, now_ms: u64, out: &mut Vec<Action>) -> State {
        if now_ms.saturating_sub(since_ms) >= LINK_STABLE.as_millis() as u64 {
            self.step = 0;
        }
        // One that is for one user is tried again once; a second loss soon after is the end of it.
        if !rules.shared && self.step > 0 {
            deadline(None, out);
            return State::Failed;
        }
        self.wait(now_ms, out)
    }

    fn after_failure(&mut self, state: State, rules: &Rules, now_ms: u64, out: &mut Vec<Action>) -> State {
        self.failed = self.failed.saturating_add(1);
        let opened = rules.breaker.filter(|breaker| self.failed >= breaker.attempts.max(1));
        let next = match opened {
            Some(breaker) => {
                let until_ms = now_ms.saturating_add(breaker.cooldown_ms);
                deadline(Some(until_ms), out);
                State::Open { until_ms }
            }
            // Its one retry, which its users wait for too.
            None if !rules.shared && matches!(state, State::Connecting { .. }) && self.step < 2 => {
                let attempt = self.begin(rules, now_ms, out);
                self.step = 2;
                return State::Connecting { attempt };
            }
            None if !rules.shared => {
                self.step = 0;
                deadline(None, out);
                State::Failed
            }
            None => self.wait(now_ms, out),
        };
        refuse_waiting(state, refusal(next, rules, now_ms), out);
        next
    }

    fn wait(&mut self, now_ms: u64, out: &mut Vec<Action>) -> State {
        let delay_ms = LINK_SCHEDULE_MS[self.step.min(LINK_SCHEDULE_MS.len() - 1)];
        self.step = self.step.saturating_add(1);
        let until_ms = now_ms.saturating_add(delay_ms);
        deadline(Some(until_ms), out);
        State::Waiting { until_ms }
    }

    fn put_down(&mut self, state: State, why: Refusal, out: &mut Vec<Action>) {
        out.extend(self.attempt().map(|attempt| Action::Close { attempt }));
        refuse_waiting(state, why, out);
        (self.failed, self.step) = (0, 0);
        deadline(None, out);
    }
}

fn stay(state: State, word: Action, out: &mut Vec<Action>) -> State {
    out.push(word);
    state
}

fn connected(attempt: Attempt, now_ms: u64, out: &mut Vec<Action>) -> State {
    deadline(None, out);
    State::Connected { attempt, since_ms: now_ms }
}

fn deadline(at_ms: Option<u64>, out: &mut Vec<Action>) {
    out.push(Action::Deadline { at_ms });
}

/// Only the first attempt has somebody who waits for it.
fn refuse_waiting(state: State, why: Refusal, out: &mut Vec<Action>) {
    if matches!(state, State::Connecting { .. }) {
        out.push(Action::RefuseWaiting(why));
    }
}

/// What a user is told in a state that has nothing for them.
fn refusal(state: State, rules: &Rules, now_ms: u64) -> Refusal {
    let cooldown_ms = rules.breaker.map_or(0, |breaker| breaker.cooldown_ms);
    match state {
        State::Open { until_ms } => Refusal::CircuitOpen { retry_after_ms: until_ms.saturating_sub(now_ms) },
        // It may be closed in a moment; or it is open for as long again.
        State::Trial { .. } => Refusal::CircuitOpen { retry_after_ms: cooldown_ms.min(rules.startup_ms) },
        State::Waiting { until_ms } => Refusal::Unavailable { retry_after_ms: Some(until_ms.saturating_sub(now_ms)) },
        State::Retrying { .. } => Refusal::Unavailable { retry_after_ms: Some(rules.startup_ms) },
        State::Disabled => Refusal::Disabled,
        State::Idle | State::Connecting { .. } | State::Connected { .. } | State::Failed => {
            Refusal::Unavailable { retry_after_ms: None }
        }
    }
}

#[cfg(test)]
mod tests;
