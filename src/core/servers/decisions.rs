//! What takes effect before it is stored: that a server is stopped or removed, that a token is revoked. The store is told
//! as soon as it listens; if it does not, the disk keeps the decision for the next daemon. Owns which decisions are open
//! and where each is kept; what the store must say is `outbox`'s. Invariant: whoever decided is answered once the decision
//! is in the store or on disk, or in neither because both have failed, and never waits for longer than their deadlines.

use crate::core::contract::Output;
use crate::core::effects::{Effects, Timer};
use crate::core::events::RoomEvent;
use crate::core::servers::Servers;
use crate::ids::{ConnId, ServerId};
use crate::limits::{DECISION_DISK_WAIT, DECISION_RETRY, DECISIONS_KEPT_MAX, STORE_WAIT};
use crate::model::records::Decision;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(in crate::core) enum Key {
    Server(ServerId),
    Token(String),
}

impl Key {
    fn of(decision: &Decision) -> Key {
        match decision {
            Decision::Stop { server } | Decision::Delete { server, .. } => Key::Server(*server),
            Decision::Revoke { name, .. } => Key::Token(name.clone()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Place {
    /// The store has been asked, and has until then.
    Asked {
        until_ms: u64,
    },
    /// The store does not take it now. The disk has been asked, and has until then.
    Late {
        until_ms: u64,
    },
    Disk,
    /// In memory only.
    Nowhere,
    /// In the store. It is known here only because the disk may have it too.
    Store,
}

#[derive(Serialize, Deserialize)]
struct Open {
    decision: Decision,
    place: Place,
    /// A daemon that starts now may find this on disk, or what was decided before it.
    on_disk: bool,
}

#[derive(Default, Serialize, Deserialize)]
pub(in crate::core) struct Decisions {
    open: BTreeMap<Key, Open>,
    version: u64,
    /// What is on its way to the disk.
    writing: Option<(u64, BTreeMap<Key, Decision>)>,
    /// The disk does not have what it should have.
    changed: bool,
    /// The disk has failed, or the store has refused something: not before then.
    disk_again_ms: Option<u64>,
    store_again_ms: Option<u64>,
    /// Whoever waits to hear that a token is revoked.
    revokers: Vec<(String, ConnId)>,
}

impl Decisions {
    /// Nobody has to wait for this one any longer.
    pub fn is_settled(&self, key: &Key) -> bool {
        match self.open.get(key).map(|open| open.place) {
            Some(Place::Asked { .. } | Place::Late { .. }) => false,
            Some(Place::Disk | Place::Nowhere | Place::Store) | None => true,
        }
    }

    pub fn is_open(&self, key: &Key) -> bool {
        self.open.contains_key(key)
    }

    /// The store has them all, and the disk need not have any.
    pub fn are_recorded(&self) -> bool {
        self.open.is_empty() && self.writing.is_none() && !self.changed
    }

    /// To the disk.
    fn is_on_its_way(&self, key: &Key) -> bool {
        self.writing.as_ref().is_some_and(|(_, written)| written.contains_key(key))
    }

    /// What the disk should have.
    fn to_keep(&self) -> BTreeMap<Key, Decision> {
        let kept = self.open.iter().filter(|(_, open)| match open.place {
            Place::Late { .. } | Place::Disk | Place::Nowhere => true,
            // What was decided before it may be on disk and nowhere else, and this goes further.
            Place::Asked { .. } => open.on_disk,
            Place::Store => false,
        });
        kept.take(DECISIONS_KEPT_MAX).map(|(key, open)| (key.clone(), open.decision.clone())).collect()
    }

    fn next_deadline(&self) -> Option<u64> {
        let of_places = self.open.values().filter_map(|open| match open.place {
            Place::Asked { until_ms } | Place::Late { until_ms } => Some(until_ms),
            Place::Disk | Place::Nowhere | Place::Store => None,
        });
        of_places.chain(self.disk_again_ms).chain(self.store_again_ms).min()
    }
}

impl Servers {
    /// It has been done. Now it must be made to last.
    pub fn decide(&mut self, decision: Decision, effects: &mut Effects) {
        let key = Key::of(&decision);
        match &key {
            Key::Server(server) => self.outbox.reconcile(*server),
            Key::Token(name) => self.outbox.reconcile_token(name.clone()),
        }
        let on_disk = self.decisions.open.get(&key).is_some_and(|open| open.on_disk);
        let place = Place::Asked { until_ms: effects.now.mono_ms + STORE_WAIT.as_millis() as u64 };
        self.decisions.open.insert(key, Open { decision, place, on_disk });
        effects.raise(RoomEvent::WriteNow);
        if !self.outbox.available() {
            self.decisions_are_late(|_| true, effects);
        }
        self.arm_decisions(effects);
    }

    /// What an earlier daemon had on disk: it holds as if it had been decided just now.
    pub fn decided_before(&mut self, decision: Decision) {
        let key = Key::of(&decision);
        match &key {
            Key::Server(server) => self.outbox.reconcile(*server),
            Key::Token(name) => self.outbox.reconcile_token(name.clone()),
        }
        self.decisions.open.insert(key, Open { decision, place: Place::Disk, on_disk: true });
    }

    pub fn wait_for_revocation(&mut self, name: String, conn: ConnId) {
        self.decisions.revokers.push((name, conn));
    }

    /// The store is away, or takes too long: those for whom `is` it is so go to the disk.
    pub fn decisions_are_late(&mut self, is: impl Fn(u64) -> bool, effects: &mut Effects) {
        let until_ms = effects.now.mono_ms + DECISION_DISK_WAIT.as_millis() as u64;
        for open in self.decisions.open.values_mut() {
            if let Place::Asked { until_ms: asked_ms } = open.place
                && is(asked_ms)
            {
                open.place = Place::Late { until_ms };
                self.decisions.changed = true;
            }
        }
        self.keep_decisions(effects);
        self.arm_decisions(effects);
        self.tell_decisions(effects);
    }

    /// The row, or the token, says what is true now.
    pub fn decision_stored(&mut self, key: &Key, effects: &mut Effects) {
        let is_on_its_way = self.decisions.is_on_its_way(key);
        match self.decisions.open.get_mut(key) {
            None => return,
            Some(open) if open.on_disk || is_on_its_way => {
                open.place = Place::Store;
                self.decisions.changed = true;
                self.keep_decisions(effects);
            }
            Some(_) => _ = self.decisions.open.remove(key),
        }
        self.tell_decision(key, effects);
    }

    fn keep_decisions(&mut self, effects: &mut Effects) {
        let decisions = &mut self.decisions;
        if !decisions.changed || decisions.writing.is_some() || decisions.disk_again_ms.is_some() {
            return;
        }
        decisions.changed = false;
        decisions.version += 1;
        let kept = decisions.to_keep();
        let all = kept.values().cloned().collect();
        decisions.writing = Some((decisions.version, kept));
        effects.outputs.push_back(Output::KeepDecisions { version: decisions.version, decisions: all });
    }

    pub fn decisions_kept(&mut self, version: u64, outcome: Result<(), String>, effects: &mut Effects) {
        let Some((_, written)) = self.decisions.writing.take_if(|(asked, _)| *asked == version) else { return };
        if let Err(why) = &outcome {
            log::error!("decisions that the database does not have are not on disk either: {why}");
            self.decisions.changed = true;
            self.decisions.disk_again_ms = Some(effects.now.mono_ms + DECISION_RETRY.as_millis() as u64);
        }
        for (key, open) in &mut self.decisions.open {
            let is_there = outcome.is_ok() && written.get(key) == Some(&open.decision);
            // A write that failed may have left what was there before, or have been done all the same.
            open.on_disk = written.contains_key(key) || (outcome.is_err() && open.on_disk);
            open.place = match open.place {
                Place::Late { .. } | Place::Nowhere if is_there => Place::Disk,
                Place::Late { .. } if outcome.is_err() => Place::Nowhere,
                place @ (Place::Asked { .. } | Place::Late { .. } | Place::Disk | Place::Nowhere | Place::Store) => {
                    place
                }
            };
        }
        self.keep_decisions(effects);
        self.arm_decisions(effects);
        self.tell_decisions(effects);
    }

    pub fn decisions_elapsed(&mut self, effects: &mut Effects) {
        let now_ms = effects.now.mono_ms;
        self.decisions.disk_again_ms.take_if(|at| *at <= now_ms);
        if self.decisions.store_again_ms.take_if(|at| *at <= now_ms).is_some() {
            self.outbox.try_refused_again();
            effects.raise(RoomEvent::WriteSoon);
        }
        for open in self.decisions.open.values_mut() {
            if matches!(open.place, Place::Late { until_ms } if until_ms <= now_ms) {
                open.place = Place::Nowhere;
            }
        }
        if self
            .decisions
            .open
            .values()
            .any(|open| matches!(open.place, Place::Asked { until_ms } if until_ms <= now_ms))
        {
            self.outbox.stall();
        }
        self.decisions_are_late(|until_ms| until_ms <= now_ms, effects);
    }

    /// Before the daemon leaves: the store has not taken them.
    pub fn leave_decisions(&mut self, effects: &mut Effects) {
        self.decisions.disk_again_ms = None;
        self.decisions_are_late(|_| true, effects);
    }

    /// The store has refused to have a row, or a token, as it is: now and then it is asked again.
    pub fn store_refused(&mut self, effects: &mut Effects) {
        let again_ms = effects.now.mono_ms + DECISION_RETRY.as_millis() as u64;
        self.decisions.store_again_ms.get_or_insert(again_ms);
        self.decisions_are_late(|_| true, effects);
    }

    fn arm_decisions(&mut self, effects: &mut Effects) {
        match self.decisions.next_deadline() {
            Some(at_ms) => effects.deadlines.set(Timer::Decisions, at_ms),
            None => effects.deadlines.cancel(Timer::Decisions),
        }
    }

    // --- those who wait ---------------------------------------------------------------------------------------------

    fn tell_decisions(&mut self, effects: &mut Effects) {
        let gone = |(_, open): &(&Key, &Open)| open.place == Place::Store && !open.on_disk;
        let over = self.decisions.open.iter().filter(gone).map(|(key, _)| key.clone());
        let over: Vec<Key> = over.filter(|key| !self.decisions.is_on_its_way(key)).collect();
        for key in &over {
            self.decisions.open.remove(key);
        }
        let open: Vec<Key> = self.decisions.open.keys().cloned().collect();
        let revoked = self.decisions.revokers.iter().map(|(name, _)| Key::Token(name.clone()));
        let all: BTreeSet<Key> = over.into_iter().chain(open).chain(revoked).collect();
        for key in all {
            self.tell_decision(&key, effects);
        }
    }

    fn tell_decision(&mut self, key: &Key, effects: &mut Effects) {
        let place = self.decisions.open.get(key).map(|open| open.place);
        match key {
            Key::Server(id) => {
                if let Some(server) = self.known.get_mut(id) {
                    let told = match place {
                        Some(Place::Disk) => Some("that it is stopped is kept on disk until the database is back"),
                        Some(Place::Nowhere) => Some(
                            "that it is stopped is neither in the database nor on disk: a daemon that is killed forgets it",
                        ),
                        Some(Place::Late { .. }) => Some("that it is stopped is being written to the disk"),
                        Some(Place::Asked { .. } | Place::Store) | None => None,
                    };
                    server.unrecorded = told.map(str::to_string);
                }
                effects.raise(RoomEvent::WaitMayBeOver(*id));
            }
            Key::Token(name) => {
                if !self.decisions.is_settled(key) {
                    return;
                }
                let of_it = self.decisions.revokers.extract_if(.., |(of, _)| of == name);
                for conn in of_it.map(|(_, conn)| conn).collect::<Vec<_>>() {
                    effects.raise(RoomEvent::Revoked(conn));
                }
            }
        }
    }
}
