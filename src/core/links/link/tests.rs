//! The table cell by cell, the schedules over time, and random lives against the invariants.

use super::*;

const SHARED: Rules =
    Rules { shared: true, breaker: Some(Breaker { attempts: 3, cooldown_ms: 60_000 }), startup_ms: 10_000 };
const PRIVATE: Rules = Rules { shared: false, ..SHARED };

fn up(attempt: u64) -> Event {
    Event::Up { attempt: Attempt(attempt) }
}

fn down(attempt: u64) -> Event {
    Event::Down { attempt: Attempt(attempt), why: "refused".to_string() }
}

fn impossible(attempt: u64) -> Event {
    Event::Impossible { attempt: Attempt(attempt), why: "secret_missing".to_string() }
}

/// In the order they are said, without what they carry.
fn words(actions: &[Action]) -> String {
    let word = |action: &Action| match action {
        Action::Connect { .. } => "connect",
        Action::Close { .. } => "close",
        Action::Serve => "serve",
        Action::Wait => "wait",
        Action::Refuse(Refusal::Unavailable { .. }) => "unavailable",
        Action::Refuse(Refusal::CircuitOpen { .. }) => "circuit",
        Action::Refuse(Refusal::Disabled) => "disabled",
        Action::Refuse(Refusal::Disconnected) => "disconnected",
        Action::Admit => "admit",
        Action::RefuseWaiting(_) => "refuse-waiting",
        Action::AttemptFailed { .. } => "failed",
        Action::Lost { .. } => "lost",
        Action::Deadline { at_ms: Some(_) } => "deadline",
        Action::Deadline { at_ms: None } => "no-deadline",
    };
    actions.iter().map(word).collect::<Vec<_>>().join(" ")
}

/// A link in this state at time 0, whose current attempt, if any, is 1.
fn link_in(state: State) -> Link {
    Link { state, minted: 1, failed: 0, step: 1 }
}

const ONE: Attempt = Attempt(1);
const STATES: [State; 9] = [
    State::Idle,
    State::Connecting { attempt: ONE },
    State::Connected { attempt: ONE, since_ms: 0 },
    State::Waiting { until_ms: 100 },
    State::Retrying { attempt: ONE },
    State::Open { until_ms: 100 },
    State::Trial { attempt: ONE },
    State::Failed,
    State::Disabled,
];

/// One row for each event, one cell for each of `STATES`: the status afterwards, and what is to be done.
fn table() -> Vec<(Event, [&'static str; 9])> {
    const SAME: [&str; 9] = [
        "idle:",
        "connecting:",
        "connected:",
        "reconnecting:",
        "reconnecting:",
        "circuit_open:",
        "circuit_open:",
        "failed:",
        "disabled:",
    ];
    let row = |changes: &[(usize, &'static str)]| {
        let mut row = SAME;
        changes.iter().for_each(|(at, cell)| row[*at] = cell);
        row
    };
    const IDLE: usize = 0;
    const CONNECTING: usize = 1;
    const CONNECTED: usize = 2;
    const WAITING: usize = 3;
    const RETRYING: usize = 4;
    const OPEN: usize = 5;
    const TRIAL: usize = 6;
    const FAILED: usize = 7;
    const DISABLED: usize = 8;
    vec![
        (
            Event::Use,
            [
                "connecting: wait connect deadline",
                "connecting: wait",
                "connected: serve",
                "reconnecting: unavailable",
                "reconnecting: unavailable",
                "circuit_open: circuit",
                "circuit_open: circuit",
                "connecting: wait connect deadline",
                "disabled: disabled",
            ],
        ),
        (
            up(1),
            row(&[
                (CONNECTING, "connected: admit no-deadline"),
                (RETRYING, "connected: no-deadline"),
                (TRIAL, "connected: no-deadline"),
            ]),
        ),
        (
            down(1),
            row(&[
                (CONNECTING, "reconnecting: failed deadline refuse-waiting"),
                (CONNECTED, "reconnecting: lost deadline"),
                (RETRYING, "reconnecting: failed deadline"),
                (TRIAL, "reconnecting: failed deadline"),
            ]),
        ),
        (
            impossible(1),
            row(&[
                (CONNECTING, "failed: failed refuse-waiting no-deadline"),
                (CONNECTED, "failed: failed no-deadline"),
                (RETRYING, "failed: failed no-deadline"),
                (TRIAL, "failed: failed no-deadline"),
            ]),
        ),
        // Of an attempt that is over.
        (up(0), SAME),
        (down(0), SAME),
        (impossible(0), SAME),
        (
            Event::Disconnect,
            row(&[
                (IDLE, "idle: no-deadline"),
                (CONNECTING, "idle: close refuse-waiting no-deadline"),
                (CONNECTED, "idle: close no-deadline"),
                (WAITING, "idle: no-deadline"),
                (RETRYING, "idle: close no-deadline"),
                (OPEN, "idle: no-deadline"),
                (TRIAL, "idle: close no-deadline"),
                (FAILED, "idle: no-deadline"),
            ]),
        ),
        (
            Event::Changed,
            row(&[
                (CONNECTING, "connecting: close connect deadline"),
                (CONNECTED, "connecting: close connect deadline"),
                (WAITING, "connecting: connect deadline"),
                (RETRYING, "connecting: close connect deadline"),
                (OPEN, "connecting: connect deadline"),
                (TRIAL, "connecting: close connect deadline"),
                (FAILED, "idle:"),
            ]),
        ),
        (Event::Enable, row(&[(DISABLED, "idle:")])),
        (
            Event::Disable,
            [
                "disabled: no-deadline",
                "disabled: close refuse-waiting no-deadline",
                "disabled: close no-deadline",
                "disabled: no-deadline",
                "disabled: close no-deadline",
                "disabled: no-deadline",
                "disabled: close no-deadline",
                "disabled: no-deadline",
                "disabled:",
            ],
        ),
        (
            Event::Elapsed,
            row(&[
                (CONNECTING, "reconnecting: close failed deadline refuse-waiting"),
                (WAITING, "reconnecting: connect deadline"),
                (RETRYING, "reconnecting: close failed deadline"),
                (OPEN, "circuit_open: connect deadline"),
                (TRIAL, "reconnecting: close failed deadline"),
            ]),
        ),
    ]
}

#[test]
fn every_event_in_every_state_does_what_the_table_says() {
    for (event, row) in table() {
        for (state, expected) in STATES.into_iter().zip(row) {
            let mut link = link_in(state);
            let actions = link.handle(event.clone(), &SHARED, 100);
            let got = format!("{}: {}", link.status().wire(), words(&actions));
            assert_eq!(got.trim_end(), expected, "{event:?} in {state:?}");
        }
    }
}

#[test]
fn a_timer_that_comes_too_early_is_set_again() {
    for state in [State::Waiting { until_ms: 100 }, State::Open { until_ms: 100 }] {
        let mut link = link_in(state);
        assert_eq!(link.handle(Event::Elapsed, &SHARED, 99), [Action::Deadline { at_ms: Some(100) }]);
        assert_eq!(link.state(), state);
    }
}

/// Lets every attempt fail at once, and gives the times at which they were made, from time 0 on.
fn attempts(link: &mut Link, rules: &Rules, count: usize) -> Vec<u64> {
    let (mut now, mut times) = (0, Vec::new());
    while times.len() < count {
        if let Some(attempt) = link.attempt() {
            times.push(now / 1000);
            link.handle(down(attempt.0), rules, now);
        } else if let Some(at) = link.next_attempt_at_ms() {
            now = at;
            link.handle(Event::Elapsed, rules, now);
        } else {
            break;
        }
    }
    times
}

fn used() -> Link {
    let mut link = Link::new(true);
    link.handle(Event::Use, &SHARED, 0);
    link
}

/// Up since long ago.
fn steady(rules: &Rules) -> Link {
    let mut link = Link::new(true);
    link.handle(Event::Use, rules, 0);
    link.handle(up(1), rules, 0);
    link
}

#[test]
fn a_shared_link_is_tried_without_end_after_0_1_2_5_10_30_60_seconds() {
    let rules = Rules { breaker: None, ..SHARED };
    let expected = [0, 1, 3, 8, 18, 48, 108, 168, 228];
    assert_eq!(attempts(&mut used(), &rules, 9), expected, "from the first use");
    let mut lost = steady(&rules);
    lost.handle(down(1), &rules, 0);
    assert_eq!(attempts(&mut lost, &rules, 9), expected, "after a loss");
}

#[test]
fn three_attempts_open_the_circuit_and_then_one_trial_is_made_each_minute() {
    let expected = [0, 1, 3, 63, 123, 183];
    assert_eq!(attempts(&mut used(), &SHARED, 6), expected);
    let mut lost = steady(&SHARED);
    lost.handle(down(1), &SHARED, 0);
    assert_eq!(attempts(&mut lost, &SHARED, 6), expected);

    let mut link = used();
    attempts(&mut link, &SHARED, 3);
    assert_eq!(link.state(), State::Open { until_ms: 63_000 });
    let refused = link.handle(Event::Use, &SHARED, 13_000);
    assert_eq!(refused, [Action::Refuse(Refusal::CircuitOpen { retry_after_ms: 50_000 })]);
    link.handle(Event::Elapsed, &SHARED, 63_000);
    assert_eq!(link.state(), State::Trial { attempt: Attempt(4) });
    assert_eq!(words(&link.handle(Event::Use, &SHARED, 63_001)), "circuit", "the trial is one attempt, not a crowd");
    link.handle(up(4), &SHARED, 63_100);
    assert_eq!(words(&link.handle(Event::Use, &SHARED, 63_101)), "serve");
    assert_eq!(link.failed, 0, "the circuit is closed: three more may fail");
}

#[test]
fn first_users_join_one_attempt_and_all_hear_how_it_ended() {
    let mut link = Link::new(true);
    assert_eq!(words(&link.handle(Event::Use, &SHARED, 0)), "wait connect deadline");
    for _ in 0..50 {
        assert_eq!(words(&link.handle(Event::Use, &SHARED, 1)), "wait");
    }
    let mut refused = link.clone();
    assert_eq!(words(&link.handle(up(1), &SHARED, 2)), "admit no-deadline");
    let actions = refused.handle(down(1), &SHARED, 2);
    let told = Action::RefuseWaiting(Refusal::Unavailable { retry_after_ms: Some(1000) });
    assert!(actions.contains(&told), "{actions:?}");
    assert_eq!(words(&refused.handle(Event::Use, &SHARED, 3)), "unavailable", "later ones are refused at once");
}

#[test]
fn a_link_that_only_just_holds_is_not_tried_in_a_tight_loop() {
    let mut link = steady(&SHARED);
    let (mut now, mut waited) = (0, Vec::new());
    for _ in 0..6 {
        let attempt = link.attempt().unwrap();
        link.handle(down(attempt.0), &SHARED, now);
        let at = link.next_attempt_at_ms().unwrap();
        waited.push((at - now) / 1000);
        now = at;
        link.handle(Event::Elapsed, &SHARED, now);
        link.handle(up(link.attempt().unwrap().0), &SHARED, now);
        assert_eq!(link.status(), Status::Connected, "what comes up opens no circuit");
        now += 5;
    }
    assert_eq!(waited, [0, 1, 2, 5, 10, 30]);
    now += LINK_STABLE.as_millis() as u64;
    link.handle(down(link.attempt().unwrap().0), &SHARED, now);
    assert_eq!(link.next_attempt_at_ms(), Some(now), "after a stable time it starts from the beginning");
}

#[test]
fn a_private_link_is_tried_once_more_and_then_with_the_next_use() {
    let rules = Rules { breaker: None, ..PRIVATE };
    let mut link = Link::new(true);
    for round in 0..3 {
        assert_eq!(words(&link.handle(Event::Use, &rules, 0)), "wait connect deadline");
        let retried = link.handle(down(2 * round + 1), &rules, 0);
        assert_eq!(words(&retried), "failed connect deadline", "its users wait for the retry too");
        let given_up = link.handle(down(2 * round + 2), &rules, 0);
        assert_eq!(words(&given_up), "failed no-deadline refuse-waiting");
        assert_eq!((link.state(), link.next_attempt_at_ms()), (State::Failed, None));
    }
    let mut lost = steady(&rules);
    lost.handle(down(1), &rules, 20_000);
    assert_eq!(lost.next_attempt_at_ms(), Some(20_000));
    lost.handle(Event::Elapsed, &rules, 20_000);
    lost.handle(down(2), &rules, 20_001);
    assert_eq!(lost.state(), State::Failed);
}

#[test]
fn a_private_link_has_a_circuit_too_and_its_trial_is_the_next_use() {
    let mut link = Link::new(true);
    link.handle(Event::Use, &PRIVATE, 0);
    link.handle(down(1), &PRIVATE, 0);
    link.handle(down(2), &PRIVATE, 0);
    link.handle(Event::Use, &PRIVATE, 0);
    link.handle(down(3), &PRIVATE, 0);
    assert_eq!(link.state(), State::Open { until_ms: 60_000 });
    assert_eq!(words(&link.handle(Event::Elapsed, &PRIVATE, 60_000)), "no-deadline", "nothing is tried by itself");
    assert_eq!(words(&link.handle(Event::Use, &PRIVATE, 70_000)), "wait connect deadline");
    link.handle(down(4), &PRIVATE, 70_000);
    assert_eq!(link.state(), State::Open { until_ms: 130_000 }, "one trial, and no retry");
}

#[test]
fn a_changed_secret_reconnects_at_once_whatever_had_failed_before() {
    let mut link = used();
    attempts(&mut link, &SHARED, 3);
    assert_eq!(link.status(), Status::CircuitOpen);
    assert_eq!(words(&link.handle(Event::Changed, &SHARED, 5_000)), "connect deadline");
    assert_eq!((link.failed, link.status()), (0, Status::Connecting));
    let mut connected = steady(&SHARED);
    let actions = connected.handle(Event::Changed, &SHARED, 5_000);
    assert_eq!(actions[..2], [Action::Close { attempt: Attempt(1) }, Action::Connect { attempt: Attempt(2) }]);
    assert_eq!(connected.handle(down(1), &SHARED, 5_001), [], "the old connection's end is no loss");
}

#[test]
fn a_link_is_frozen_and_thawed_as_it_was() {
    for state in STATES {
        let link = link_in(state);
        let text = serde_json::to_string(&link).unwrap();
        assert_eq!(serde_json::from_str::<Link>(&text).unwrap(), link);
    }
}

/// What the world may think of a link, from its actions alone.
#[derive(Default)]
struct Shadow {
    open: Option<Attempt>,
    last: u64,
    waiting: bool,
    deadline: Option<u64>,
}

impl Shadow {
    fn follow(&mut self, event: &Event, actions: &[Action], before: State, link: &Link) {
        if let Event::Down { attempt, .. } | Event::Impossible { attempt, .. } = event
            && self.open == Some(*attempt)
        {
            self.open = None;
        }
        let answers = actions.iter().filter(|a| matches!(a, Action::Serve | Action::Wait | Action::Refuse(_))).count();
        assert_eq!(answers, usize::from(*event == Event::Use), "a user hears exactly one thing");
        for action in actions {
            match action {
                Action::Connect { attempt } => {
                    assert!(self.open.is_none(), "one at a time");
                    assert!(attempt.0 > self.last, "never reused");
                    let is_open = matches!(before, State::Open { .. });
                    assert!(
                        !is_open || matches!(event, Event::Elapsed | Event::Changed),
                        "an open circuit tries nothing"
                    );
                    (self.open, self.last) = (Some(*attempt), attempt.0);
                }
                Action::Close { attempt } => assert_eq!(self.open.take(), Some(*attempt)),
                Action::Wait => self.waiting = true,
                Action::Admit | Action::RefuseWaiting(_) => self.waiting = false,
                Action::Deadline { at_ms } => self.deadline = *at_ms,
                Action::Serve => assert!(matches!(before, State::Connected { .. })),
                Action::Refuse(_) | Action::AttemptFailed { .. } | Action::Lost { .. } => {}
            }
        }
        assert_eq!(link.attempt(), self.open);
        assert!(!self.waiting || matches!(link.state(), State::Connecting { .. }), "nobody waits for nothing");
        let timed = !matches!(link.state(), State::Idle | State::Connected { .. } | State::Failed | State::Disabled);
        assert_eq!(self.deadline.is_some(), timed, "{:?}", link.state());
    }
}

#[test]
fn random_lives_keep_the_invariants() {
    for seed in 1..=400u64 {
        let mut random = crate::wire::mutation::Mutator::new(seed);
        let rules = Rules {
            shared: seed % 2 == 0,
            breaker: [None, SHARED.breaker, Some(Breaker { attempts: 1, cooldown_ms: 0 })][random.below(3)],
            startup_ms: 10_000,
        };
        let (mut link, mut shadow, mut now) = (Link::new(true), Shadow::default(), 0);
        for _ in 0..400 {
            now += random.below(3_000) as u64;
            // Mostly the attempt there is; now and then one that is over.
            let attempt = link.minted.saturating_sub(random.below(5) as u64 / 4);
            let event = match random.below(20) {
                0..=4 => Event::Use,
                5..=7 => up(attempt),
                8..=11 => down(attempt),
                12 => impossible(attempt),
                13 => Event::Disconnect,
                14 => Event::Changed,
                15 => Event::Disable,
                16 => Event::Enable,
                _ => {
                    let Some(at) = shadow.deadline else { continue };
                    now = now.max(at);
                    Event::Elapsed
                }
            };
            // An attempt that is up cannot be impossible any more, and only one that is not can come up.
            let before = link.state();
            if matches!((before, &event), (State::Connected { .. }, Event::Impossible { .. } | Event::Up { .. })) {
                continue;
            }
            let actions = link.handle(event.clone(), &rules, now);
            shadow.follow(&event, &actions, before, &link);
        }
    }
}
