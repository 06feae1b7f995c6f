//! Each way an attempt can go, for connections and for sandboxes; the breaker and the schedule as a peer sees them; and random
//! lives, in which nobody who was started is forgotten.

use super::*;
use crate::model::external::Breaker;
use crate::model::instance::{LaunchFault, LaunchFaultKind};

const SHARED: Rules =
    Rules { shared: true, breaker: Some(Breaker { attempts: 3, cooldown_ms: 60_000 }), startup_ms: 10_000 };
const PRIVATE: Rules = Rules { shared: false, ..SHARED };
const CRASH: Exit = Exit { cause: ExitCause::Code(3), oom: false };

/// A life, its clock, and the core's part: whoever asks for an instance gets the next number at once.
struct Scene {
    life: ExternalLife,
    now_ms: u64,
    minted: u64,
    at_ms: Option<u64>,
}

impl Scene {
    fn new(carrier: Carrier, rules: Rules) -> Scene {
        Scene { life: ExternalLife::new(true, rules, carrier), now_ms: 0, minted: 0, at_ms: None }
    }

    fn network() -> Scene {
        Scene::new(Carrier::Network, SHARED)
    }

    fn sandbox() -> Scene {
        Scene::new(Carrier::Sandbox, SHARED)
    }

    /// What is to be done, in words.
    fn tell(&mut self, event: Event) -> String {
        let mut said = Vec::new();
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            for action in self.life.handle(event, self.now_ms) {
                if matches!(action, Action::Open | Action::Queue) {
                    self.minted += 1;
                    events.push(Event::Slot { instance: InstanceId(self.minted) });
                }
                match action {
                    Action::Deadline { at_ms } => self.at_ms = at_ms,
                    other => said.push(word(&other)),
                }
            }
        }
        said.join(" ")
    }

    fn link(&mut self, event: LinkEvent) -> String {
        self.tell(Event::Link(event))
    }

    fn lost(&mut self) -> String {
        self.link(LinkEvent::Lost("reset".to_string()))
    }

    /// Up, by its first use.
    fn up(mut self) -> Scene {
        self.link(LinkEvent::Use);
        self.tell(Event::Launched);
        self.tell(Event::Greeted);
        assert_eq!(self.life.link_status(), link::Status::Connected);
        self
    }

    /// To the next deadline.
    fn wait(&mut self) -> String {
        self.now_ms = self.at_ms.expect("there is a deadline");
        self.tell(Event::Elapsed)
    }

    fn code(&self) -> Option<Code> {
        self.life.admits("files", Some("reset"), Now { mono_ms: self.now_ms, unix_ms: 0 }).err().map(|fault| {
            assert_eq!(fault.data["outcome"], "not_sent");
            fault.code
        })
    }
}

fn word(action: &Action) -> String {
    match action {
        Action::Open => "open".to_string(),
        Action::Queue => "queue".to_string(),
        Action::Connect { instance } => format!("connect-{instance}"),
        Action::Launch { instance, .. } => format!("launch-{instance}"),
        Action::Greet { instance } => format!("greet-{instance}"),
        Action::Watch { .. } => "watch".to_string(),
        Action::FailInFlight => "fail-in-flight".to_string(),
        Action::AskToStop { instance } => format!("ask-to-stop-{instance}"),
        Action::Signal { instance, signal: StopSignal::Kill } => format!("kill-{instance}"),
        Action::Discard { instance } => format!("discard-{instance}"),
        Action::Crashed { .. } => "crashed".to_string(),
        Action::LinkFailed { was_up: true, .. } => "lost".to_string(),
        Action::LinkFailed { was_up: false, .. } => "failed".to_string(),
        other => panic!("a link never wants {other:?}"),
    }
}

#[test]
fn a_first_use_connects_greets_and_watches_and_further_users_join_it() {
    let mut scene = Scene::network();
    assert_eq!(scene.life.state(), &State::Down);
    assert_eq!(scene.link(LinkEvent::Use), "open connect-1");
    for _ in 0..50 {
        assert_eq!(scene.link(LinkEvent::Use), "", "one attempt for all of them");
        assert_eq!(scene.code(), None, "they wait");
    }
    assert_eq!(scene.tell(Event::Launched), "greet-1");
    assert_eq!(scene.life.state().instance(), Some(InstanceId(1)));
    assert_eq!(scene.life.state().ready_instance(), None);
    assert_eq!(scene.tell(Event::Greeted), "watch");
    assert_eq!(scene.life.state().ready_instance(), Some(InstanceId(1)));
    assert_eq!((scene.code(), scene.at_ms), (None, None));
    assert_eq!(Scene::sandbox().link(LinkEvent::Use), "queue launch-1");
}

#[test]
fn three_failed_attempts_open_the_circuit_and_one_trial_follows_the_cool_down() {
    let mut scene = Scene::network();
    scene.link(LinkEvent::Use);
    assert_eq!(scene.lost(), "discard-1 failed");
    assert_eq!((scene.code(), scene.at_ms), (Some(Code::UpstreamUnavailable), Some(1_000)));
    assert_eq!(scene.wait(), "open connect-2");
    assert_eq!(scene.code(), Some(Code::UpstreamUnavailable), "only first users wait");
    assert_eq!(scene.lost(), "discard-2 failed");
    assert_eq!(scene.wait(), "open connect-3");
    assert_eq!(scene.lost(), "discard-3 failed");
    assert_eq!((scene.code(), scene.at_ms), (Some(Code::CircuitOpen), Some(63_000)));
    assert_eq!(scene.life.state(), &State::Waiting { until_ms: 63_000, looping: true });
    for _ in 0..10 {
        assert_eq!(scene.link(LinkEvent::Use), "", "nothing is tried");
    }
    assert_eq!(scene.wait(), "open connect-4");
    assert_eq!((scene.code(), scene.life.link_status()), (Some(Code::CircuitOpen), link::Status::CircuitOpen));
    let mut closed = scene;
    closed.lost();
    assert_eq!(closed.at_ms, Some(123_000), "a trial that fails opens it again");
    closed.wait();
    closed.tell(Event::Launched);
    closed.tell(Event::Greeted);
    assert_eq!((closed.code(), closed.life.link_status()), (None, link::Status::Connected));
}

#[test]
fn without_a_breaker_the_schedule_goes_on_without_end() {
    let mut scene = Scene::new(Carrier::Network, Rules { breaker: None, ..SHARED });
    scene.link(LinkEvent::Use);
    let mut waits = Vec::new();
    for _ in 0..9 {
        scene.lost();
        waits.push((scene.at_ms.unwrap() - scene.now_ms) / 1000);
        assert!(scene.wait().starts_with("open connect-"));
    }
    assert_eq!(waits, [1, 2, 5, 10, 30, 60, 60, 60, 60]);
}

#[test]
fn a_link_that_is_lost_while_nobody_calls_is_made_again_at_once() {
    let mut scene = Scene::network().up();
    scene.now_ms = 100_000;
    assert_eq!(scene.lost(), "discard-1 lost");
    assert_eq!(scene.at_ms, Some(100_000));
    assert_eq!(scene.wait(), "open connect-2");
    assert_eq!(scene.life.link_status(), link::Status::Reconnecting);
    scene.tell(Event::Launched);
    assert_eq!(scene.tell(Event::Greeted), "watch");

    let mut scene = Scene::sandbox().up();
    scene.now_ms = 100_000;
    assert_eq!(scene.tell(Event::StdoutClosed), "kill-1", "it can say nothing any more");
    assert_eq!(scene.tell(Event::Exited(CRASH)), "crashed discard-1 lost");
    assert_eq!(scene.wait(), "queue launch-2");
}

#[test]
fn only_a_link_that_leaves_its_probe_unanswered_is_put_down() {
    let mut scene = Scene::network().up();
    assert_eq!(scene.tell(Event::Heard), "");
    assert_eq!(scene.tell(Event::Silent), "fail-in-flight discard-1 lost");
    assert_eq!(scene.wait(), "open connect-2");
    assert_eq!(scene.tell(Event::Silent), "discard-2 failed", "of an attempt nothing is in flight");

    let mut scene = Scene::sandbox().up();
    assert_eq!(scene.tell(Event::Silent), "fail-in-flight ask-to-stop-1 lost");
    assert_eq!(scene.wait(), "", "the next waits until the last one is gone");
    assert_eq!(scene.tell(Event::Exited(CRASH)), "discard-1 queue launch-2");
}

#[test]
fn a_sandbox_that_does_not_go_is_killed_and_the_next_waits_for_that() {
    let rules = Rules { startup_ms: 30_000, ..SHARED };
    let mut scene = Scene::new(Carrier::Sandbox, rules).up();
    assert_eq!(scene.link(LinkEvent::Changed(rules)), "ask-to-stop-1");
    assert!(matches!(scene.life.state(), State::Stopping { then: Then::Restart, killed: false, .. }));
    assert_eq!((scene.wait(), scene.now_ms), ("kill-1".to_string(), STOP_GRACE.as_millis() as u64));
    assert_eq!(scene.tell(Event::Exited(CRASH)), "discard-1 queue launch-2");
}

#[test]
fn an_attempt_that_ends_while_the_last_sandbox_is_still_going_starts_nothing() {
    let rules = Rules { startup_ms: 1_000, breaker: None, ..SHARED };
    let mut scene = Scene::new(Carrier::Sandbox, rules).up();
    assert_eq!(scene.link(LinkEvent::Changed(rules)), "ask-to-stop-1");
    assert_eq!(scene.wait(), "failed", "it took too long until the old one was gone");
    assert_eq!(scene.tell(Event::Exited(CRASH)), "discard-1", "nothing is launched that nobody asked for");
    assert!(matches!(scene.life.state(), State::Waiting { .. }), "{:?}", scene.life.state());
    assert_eq!(scene.wait(), "queue launch-2");
}

#[test]
fn a_launch_that_fails_is_a_failed_attempt() {
    let mut scene = Scene::sandbox();
    scene.link(LinkEvent::Use);
    let fault = LaunchFault { kind: LaunchFaultKind::Rootfs, message: "no such program".to_string() };
    assert_eq!(scene.tell(Event::LaunchFailed(fault)), "discard-1 failed");
    assert_eq!(scene.at_ms, Some(1_000));
}

#[test]
fn a_handshake_that_is_refused_or_takes_too_long_is_a_failed_attempt() {
    let mut scene = Scene::network();
    scene.link(LinkEvent::Use);
    scene.tell(Event::Launched);
    assert_eq!(scene.tell(Event::HandshakeRefused("no".to_string())), "discard-1 failed");
    scene.wait();
    scene.tell(Event::Launched);
    assert_eq!(scene.at_ms, Some(11_000));
    assert_eq!(scene.wait(), "discard-2 failed");
    assert_eq!(scene.tell(Event::Greeted), "", "too late");
    assert_eq!(scene.lost(), "", "too late");
}

#[test]
fn what_cannot_even_be_tried_is_given_up_with_its_own_reason_wherever_it_is_found_out() {
    let missing = || Fault::new(Code::SecretMissing, "KEY is missing").outcome(Outcome::NotSent);
    for steps in 0..3 {
        let mut scene = Scene::network();
        scene.link(LinkEvent::Use);
        [Event::Launched, Event::Greeted].into_iter().take(steps).for_each(|event| _ = scene.tell(event));
        assert_eq!(scene.link(LinkEvent::Impossible(missing())), "discard-1 failed", "after {steps} steps");
        assert_eq!((scene.life.state(), scene.code()), (&State::Failed, Some(Code::SecretMissing)));
        assert_eq!(scene.at_ms, None, "to try again changes nothing");
        assert_eq!(scene.link(LinkEvent::Use), "open connect-2", "but the next user may try");
        assert_eq!(scene.code(), None);
    }
}

#[test]
fn a_private_link_is_tried_once_more_and_then_with_the_next_use() {
    let mut scene = Scene::new(Carrier::Network, Rules { breaker: None, ..PRIVATE });
    scene.link(LinkEvent::Use);
    assert_eq!(scene.lost(), "discard-1 failed open connect-2");
    assert_eq!(scene.code(), None, "its user waits for the retry too");
    assert_eq!(scene.lost(), "discard-2 failed");
    assert_eq!((scene.at_ms, scene.code()), (None, Some(Code::UpstreamUnavailable)));
    assert!(scene.life.begins_with_use());
    assert_eq!(scene.link(LinkEvent::Use), "open connect-3");
}

#[test]
fn disconnecting_and_disabling_end_the_link_for_good() {
    let mut scene = Scene::network().up();
    assert_eq!(scene.tell(Event::Stop), "discard-1");
    assert_eq!((scene.life.link_status(), scene.at_ms), (link::Status::Idle, None));
    let mut scene = scene.up_again();
    assert_eq!(scene.link(LinkEvent::Disable), "discard-2");
    assert_eq!(scene.code(), Some(Code::ServerStopped));
    assert_eq!(scene.link(LinkEvent::Use), "");
    assert_eq!(scene.link(LinkEvent::Enable), "");
    assert_eq!(scene.link(LinkEvent::Use), "open connect-3");
}

impl Scene {
    fn up_again(mut self) -> Scene {
        self.link(LinkEvent::Use);
        self.tell(Event::Launched);
        self.tell(Event::Greeted);
        self
    }
}

#[test]
fn a_shutdown_leaves_no_instance_and_no_attempt_to_come() {
    for steps in 0..3 {
        let mut scene = Scene::network();
        scene.link(LinkEvent::Use);
        [Event::Launched, Event::Greeted].into_iter().take(steps).for_each(|event| _ = scene.tell(event));
        assert_eq!(scene.tell(Event::Shutdown), "discard-1");
        assert_eq!((scene.life.state().instance(), scene.at_ms), (None, None));
    }
    let mut scene = Scene::network();
    scene.link(LinkEvent::Use);
    scene.lost();
    assert_eq!((scene.tell(Event::Shutdown).as_str(), scene.at_ms), ("", None), "not even the next in its schedule");
    let mut scene = Scene::sandbox().up();
    assert_eq!(scene.tell(Event::Shutdown), "ask-to-stop-1");
    assert_eq!(scene.tell(Event::KillNow), "kill-1");
    assert_eq!(scene.tell(Event::Exited(CRASH)), "discard-1");
    assert_eq!(scene.life.state(), &State::Down);
}

/// Whatever happens in whatever order: one instance at a time, and each that was started is discarded.
#[test]
fn random_lives_leave_no_instance_behind() {
    for seed in 0..3_000_u64 {
        let mut random = crate::wire::mutation::Mutator::new(seed);
        let carrier = if seed % 2 == 0 { Carrier::Network } else { Carrier::Sandbox };
        let rules = Rules { shared: seed % 3 > 0, startup_ms: 1 + seed % 12_000, ..SHARED };
        let mut scene = Scene::new(carrier, rules);
        let mut alive: Option<InstanceId> = None;
        for _ in 0..60 {
            let event = match random.below(15) {
                0 | 1 => Event::Link(LinkEvent::Use),
                2 | 3 => Event::Launched,
                4 | 5 => Event::Greeted,
                6 => Event::Silent,
                7 => Event::Link(LinkEvent::Changed(rules)),
                8 => Event::Stop,
                9 => Event::HandshakeRefused("no".to_string()),
                // Only what is there can end.
                10 | 11 if alive.is_some() => match carrier {
                    Carrier::Network => Event::Link(LinkEvent::Lost("reset".to_string())),
                    Carrier::Sandbox => Event::Exited(CRASH),
                },
                12 => Event::Link(LinkEvent::Disable),
                13 => Event::Link(LinkEvent::Enable),
                _ => {
                    scene.now_ms = scene.at_ms.unwrap_or(scene.now_ms);
                    Event::Elapsed
                }
            };
            let told = format!("seed {seed}: {event:?}");
            for said in scene.tell(event).split_whitespace() {
                let of = |start: &str| said.strip_prefix(start).map(|number| InstanceId(number.parse().unwrap()));
                if let Some(instance) = of("connect-").or(of("launch-")) {
                    assert_eq!(alive.replace(instance), None, "{told}: one at a time");
                }
                if let Some(instance) = of("discard-") {
                    assert_eq!(alive.take(), Some(instance), "{told}");
                }
            }
            assert_eq!(scene.life.state().instance(), alive, "{told}");
        }
    }
}
