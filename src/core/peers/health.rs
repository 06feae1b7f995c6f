//! Is a server that says nothing still there? Owns when it was last heard, when it is asked next and what its silence
//! means; never restarts it (`lifecycle.rs` decides that) and takes no slot of its lane, so no call waits for a probe.
//! Invariant: at most one question is out, and anything valid that the server says ends all doubt.

use crate::core::contract::Output;
use crate::core::effects::{Effects, Timer};
use crate::core::peers::Peers;
use crate::ids::{CallId, PeerId};
use crate::limits::HEARTBEAT_DOUBLINGS;
use crate::model::definition::Health;
use crate::model::status::Status;
use crate::wire::jsonrpc;
use serde::{Deserialize, Serialize};

const PING: &str = "ping";
const LIST: &str = "tools/list";

/// What is known of one instance's life signs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pulse {
    heard_ms: u64,
    /// When it last wrote anything at all.
    wrote_ms: u64,
    doubt: Doubt,
    /// The wire id of the last question.
    asked: Option<CallId>,
    /// It has answered a question of the daemon's own since the handshake, so that silence means something.
    answers: bool,
    /// Its silence has been called stale.
    stale: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Doubt {
    /// Its silence is looked at no earlier than `look_ms`.
    None { look_ms: u64 },
    /// `ping` is out; `called`: because a call got no answer.
    Pinged { at_ms: u64, called: bool },
    /// `ping` got no answer, `tools/list` is out.
    Listed { at_ms: u64, called: bool },
    /// Neither got one. It is asked again, ever more rarely: its pipe may be filling up.
    Lost { at_ms: u64, times: u32 },
}

/// What a look at the clock leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beat {
    Rest,
    Ask(&'static str),
    Lost,
    /// It has never answered a question of the daemon's own: silence says nothing of it.
    Inscrutable,
}

impl Pulse {
    /// The handshake is done.
    pub fn begin(now_ms: u64) -> Pulse {
        Pulse {
            heard_ms: now_ms,
            wrote_ms: now_ms,
            doubt: Doubt::None { look_ms: 0 },
            asked: None,
            answers: false,
            stale: false,
        }
    }

    pub fn heard_ms(&self) -> u64 {
        self.heard_ms
    }

    /// A question is out, and it has its time to answer.
    pub fn is_asking(&self) -> bool {
        matches!(self.doubt, Doubt::Pinged { .. } | Doubt::Listed { .. })
    }

    pub fn is_stale(&self) -> bool {
        self.stale
    }

    /// Something valid came. Costs nothing but this: the deadline finds out when it is due.
    pub fn heard(&mut self, now_ms: u64) {
        (self.heard_ms, self.wrote_ms) = (now_ms, now_ms);
        self.doubt = Doubt::None { look_ms: 0 };
        self.stale = false;
    }

    /// It wrote what is no message: it is not asked while it does, but a doubt stays a doubt.
    pub fn babbled(&mut self, now_ms: u64) {
        self.wrote_ms = now_ms;
    }

    /// It is in the middle of a line: whatever it was asked can only be answered after that.
    pub fn line_begun(&mut self, now_ms: u64) {
        self.wrote_ms = now_ms;
        match &mut self.doubt {
            Doubt::Pinged { at_ms, .. } | Doubt::Listed { at_ms, .. } => *at_ms = now_ms,
            Doubt::None { .. } | Doubt::Lost { .. } => {}
        }
    }

    /// An answer to a question of the daemon's own, error or not.
    pub fn answered(&mut self) {
        self.answers = true;
    }

    /// True if this is the answer to the last question; it is nobody else's then.
    pub fn takes(&mut self, wire_id: CallId) -> bool {
        let ours = self.asked == Some(wire_id);
        if ours {
            self.asked = None;
            self.answers = true;
        }
        ours
    }

    /// A call got no answer in time. Asks now unless a question is out already.
    pub fn suspect(&mut self, now_ms: u64) -> Beat {
        match self.doubt {
            Doubt::None { .. } => {
                self.doubt = Doubt::Pinged { at_ms: now_ms, called: true };
                Beat::Ask(PING)
            }
            Doubt::Pinged { .. } | Doubt::Listed { .. } | Doubt::Lost { .. } => Beat::Rest,
        }
    }

    /// When to look again.
    pub fn deadline(&self, rules: &Health) -> u64 {
        let due = match self.doubt {
            Doubt::None { look_ms } => look_ms.max(self.wrote_ms.saturating_add(rules.heartbeat_ms)),
            Doubt::Pinged { at_ms, .. } | Doubt::Listed { at_ms, .. } => at_ms.saturating_add(rules.probe_timeout_ms),
            Doubt::Lost { at_ms, times } => at_ms.saturating_add(rules.heartbeat_ms << times.min(HEARTBEAT_DOUBLINGS)),
        };
        match rules.stale_ms {
            Some(stale_ms) if !self.stale => due.min(self.heard_ms.saturating_add(stale_ms)),
            Some(_) | None => due,
        }
    }

    /// True once per silence that has lasted `stale_ms`.
    pub fn turns_stale(&mut self, rules: &Health, now_ms: u64) -> bool {
        let silent_ms = now_ms - self.heard_ms;
        let turns = !self.stale && rules.stale_ms.is_some_and(|stale_ms| silent_ms >= stale_ms);
        self.stale |= turns;
        turns
    }

    /// Time has passed. `busy`: it works on a call and takes one at a time, so it owes us nothing else.
    pub fn elapsed(&mut self, rules: &Health, busy: bool, now_ms: u64) -> Beat {
        let probe_over = |at_ms: u64| now_ms - at_ms >= rules.probe_timeout_ms;
        let (doubt, beat) = match self.doubt {
            Doubt::None { look_ms } if now_ms < look_ms.max(self.wrote_ms + rules.heartbeat_ms) => return Beat::Rest,
            Doubt::None { .. } if busy => (Doubt::None { look_ms: now_ms + rules.heartbeat_ms }, Beat::Rest),
            // This ping is the heartbeat, and if it is missed also the first half of the probe.
            Doubt::None { .. } => (Doubt::Pinged { at_ms: now_ms, called: false }, Beat::Ask(PING)),
            Doubt::Pinged { at_ms, called } if probe_over(at_ms) => {
                (Doubt::Listed { at_ms: now_ms, called }, Beat::Ask(LIST))
            }
            Doubt::Listed { at_ms, called: false } if probe_over(at_ms) && !self.answers => {
                (Doubt::None { look_ms: u64::MAX }, Beat::Inscrutable)
            }
            Doubt::Listed { at_ms, .. } if probe_over(at_ms) => (Doubt::Lost { at_ms: now_ms, times: 0 }, Beat::Lost),
            Doubt::Lost { at_ms, times } if now_ms - at_ms >= rules.heartbeat_ms << times.min(HEARTBEAT_DOUBLINGS) => {
                let again = Doubt::Lost { at_ms: now_ms, times: times.saturating_add(1) };
                // The answer to its call would tell as much.
                (again, if busy { Beat::Rest } else { Beat::Ask(PING) })
            }
            Doubt::Pinged { .. } | Doubt::Listed { .. } | Doubt::Lost { .. } => return Beat::Rest,
        };
        self.doubt = doubt;
        beat
    }
}

/// Something valid came from a server that was in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::core) enum HeardAgain {
    /// It was taken for unresponsive.
    Lost,
    /// It had been silent for long.
    Stale,
}

impl Peers {
    /// The server has become ready: from here on its silence is watched.
    pub fn watch(&mut self, id: PeerId, effects: &mut Effects) {
        let peer = self.known.get_mut(&id).expect("advance holds it");
        peer.pulse = Some(Pulse::begin(effects.now.mono_ms));
        self.arm_pulse(id, effects);
    }

    pub fn arm_pulse(&mut self, id: PeerId, effects: &mut Effects) {
        let Some(peer) = self.known.get(&id) else { return };
        match peer.pulse.as_ref().filter(|_| peer.rest.dozing_since_ms.is_none()) {
            Some(pulse) => effects.deadlines.set(Timer::Pulse(id), pulse.deadline(&peer.definition.health)),
            None => effects.deadlines.cancel(Timer::Pulse(id)),
        }
    }

    /// Something valid came from the server's present instance.
    pub fn heard(&mut self, id: PeerId, effects: &mut Effects) -> Option<HeardAgain> {
        let peer = self.known.get_mut(&id)?;
        let pulse = peer.pulse.as_mut()?;
        let was_stale = pulse.is_stale();
        pulse.heard(effects.now.mono_ms);
        if peer.life.status() == Status::Unresponsive {
            self.arm_pulse(id, effects);
            return Some(HeardAgain::Lost);
        }
        was_stale.then_some(HeardAgain::Stale)
    }

    pub fn line_begun(&mut self, id: PeerId, now_ms: u64) {
        if let Some(pulse) = self.known.get_mut(&id).and_then(|peer| peer.pulse.as_mut()) {
            pulse.line_begun(now_ms);
        }
    }

    /// A call to it got no answer in time; nothing else follows from that.
    pub fn suspect(&mut self, id: PeerId, now_ms: u64) -> Beat {
        let ready = self.known.get_mut(&id).filter(|peer| peer.life.ready_instance().is_some());
        let pulse = ready.and_then(|peer| peer.pulse.as_mut());
        pulse.map_or(Beat::Rest, |pulse| pulse.suspect(now_ms))
    }

    /// What the look at its silence leads to, and for how long it has been silent if that is too long now.
    pub fn pulse_elapsed(&mut self, id: PeerId, now_ms: u64) -> Option<(Beat, Option<u64>)> {
        let peer = self.known.get_mut(&id)?;
        let rules = &peer.definition.health;
        let busy = peer.definition.max_in_flight == 1 && !peer.lane.in_flight().is_empty();
        // One that is on its way out owes nobody an answer, and one that dozes cannot give any.
        peer.life.ready_instance().filter(|_| peer.rest.dozing_since_ms.is_none())?;
        let pulse = peer.pulse.as_mut()?;
        let stale_ms = pulse.turns_stale(rules, now_ms).then(|| now_ms - pulse.heard_ms());
        Some((pulse.elapsed(rules, busy, now_ms), stale_ms))
    }

    /// Outside the lane: the server may have a call in hand, and none waits for this.
    pub fn ask_pulse(&mut self, id: PeerId, method: &str, effects: &mut Effects) {
        let wire_id = self.calls.mint();
        let Some(peer) = self.known.get_mut(&id) else { return };
        let (Some(instance), Some(pulse)) = (peer.life.ready_instance(), &mut peer.pulse) else { return };
        pulse.asked = Some(wire_id);
        let bytes = jsonrpc::own_request(wire_id.0, method, "{}");
        effects.outputs.push_back(Output::Write { instance, bytes, call: None });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Health {
        Health { heartbeat_ms: 1_000, probe_timeout_ms: 100, ..Health::default() }
    }

    /// Lets the pulse look whenever it wants to, until it rests for good or the time is over.
    fn run(pulse: &mut Pulse, rules: &Health, busy: bool, until_ms: u64) -> Vec<(u64, Beat)> {
        let mut seen = Vec::new();
        loop {
            let at = pulse.deadline(rules);
            if at > until_ms {
                return seen;
            }
            let beat = pulse.elapsed(rules, busy, at);
            if beat != Beat::Rest {
                seen.push((at, beat));
            }
        }
    }

    #[test]
    fn silence_is_asked_about_twice_before_it_counts() {
        let mut pulse = Pulse::begin(0);
        pulse.answered();
        let seen = run(&mut pulse, &rules(), false, 1_200);
        assert_eq!(seen, [(1_000, Beat::Ask(PING)), (1_100, Beat::Ask(LIST)), (1_200, Beat::Lost)]);
        let rounds: Vec<u64> = run(&mut pulse, &rules(), false, 20_000).iter().map(|(at, _)| *at).collect();
        assert_eq!(rounds, [2_200, 4_200, 8_200, 16_200], "ever more rarely");
    }

    #[test]
    fn whoever_talks_or_works_is_not_asked() {
        let mut pulse = Pulse::begin(0);
        for at_ms in (0..10_000).step_by(900) {
            pulse.heard(at_ms);
            assert_eq!(run(&mut pulse, &rules(), false, at_ms + 899), []);
        }
        assert_eq!(run(&mut pulse, &rules(), true, 100_000), [], "busy");
        assert_eq!(run(&mut pulse, &rules(), false, 102_000).len(), 3, "and then not");
    }

    #[test]
    fn a_word_at_any_time_ends_the_doubt() {
        for at_ms in [1_050, 1_150, 1_250] {
            let mut pulse = Pulse::begin(0);
            pulse.answered();
            run(&mut pulse, &rules(), false, at_ms);
            pulse.heard(at_ms);
            assert_eq!(pulse.deadline(&rules()), at_ms + 1_000);
        }
    }

    #[test]
    fn whoever_is_in_the_middle_of_a_line_has_time_to_end_it() {
        let mut pulse = Pulse::begin(0);
        pulse.suspect(10);
        for at_ms in (10..1_000).step_by(90) {
            pulse.line_begun(at_ms);
            assert_eq!(run(&mut pulse, &rules(), false, at_ms + 90), []);
        }
        pulse.babbled(1_050);
        assert_eq!(run(&mut pulse, &rules(), false, 1_100).len(), 1, "babble is no excuse");
    }

    #[test]
    fn a_call_without_an_answer_is_asked_about_at_once_and_once() {
        let mut pulse = Pulse::begin(0);
        assert_eq!(pulse.suspect(10), Beat::Ask(PING));
        assert_eq!(pulse.suspect(11), Beat::Rest);
        let seen = run(&mut pulse, &rules(), true, 210);
        assert_eq!(seen, [(110, Beat::Ask(LIST)), (210, Beat::Lost)], "busy or not: it had its time");
    }

    #[test]
    fn one_that_never_answered_a_question_is_not_judged_by_it() {
        let mut pulse = Pulse::begin(0);
        let seen = run(&mut pulse, &rules(), false, 1_000_000);
        assert_eq!(seen.last(), Some(&(1_200, Beat::Inscrutable)));
    }

    #[test]
    fn a_silence_is_stale_once() {
        let rules = Health { stale_ms: Some(300), ..rules() };
        let mut pulse = Pulse::begin(0);
        assert_eq!(pulse.deadline(&rules), 300);
        assert!(!pulse.turns_stale(&rules, 299) && pulse.turns_stale(&rules, 300) && !pulse.turns_stale(&rules, 301));
        assert_eq!(pulse.deadline(&rules), 1_000);
        pulse.heard(500);
        assert!(pulse.turns_stale(&rules, 800));
    }

    #[test]
    fn an_answer_is_taken_once() {
        let mut pulse = Pulse { asked: Some(CallId(7)), ..Pulse::begin(0) };
        assert!(!pulse.takes(CallId(6)) && pulse.takes(CallId(7)) && !pulse.takes(CallId(7)));
        assert!(pulse.answers);
    }
}
