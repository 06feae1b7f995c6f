//! What outlives the daemon: the store, the disk's file of decisions, volumes; and the SIGKILL after which only they are
//! left. What must hold: who was told that a server is stopped or gone, or a token revoked, was told the truth, then and
//! after any kill, as far as the store or the disk could be written; and no server ever sees what was to be removed.

use super::super::kernel::Rng;
use super::{Question, World};
use std::collections::{BTreeMap, BTreeSet};
use stdiod::api::request::Ask;
use stdiod::core::contract::{Input, Now};
use stdiod::core::{Core, Settings};
use stdiod::ids::ServerId;
use stdiod::limits::DECISION_DISK_WAIT;
use stdiod::model::records::{Decision, StoreOp, StoredServer, Token};
use stdiod::model::status::{Status, StatusView};

#[derive(Default)]
pub(super) struct FakeDisk {
    kept: Vec<Decision>,
    writing: Option<(u64, Vec<Decision>)>,
    /// Since when it has had one write after the other.
    busy_since: Option<Now>,
    /// The last write has failed.
    failing: bool,
}

impl FakeDisk {
    pub fn begin(&mut self, version: u64, decisions: Vec<Decision>, now: Now) {
        assert!(self.writing.is_none(), "one write at a time");
        self.writing = Some((version, decisions));
        self.busy_since.get_or_insert(now);
    }

    fn is_slow(&self, now: Now) -> bool {
        let wait_ms = DECISION_DISK_WAIT.as_millis() as u64;
        self.busy_since.is_some_and(|since| now.mono_ms - since.mono_ms >= wait_ms)
    }

    fn has(&self, is: impl Fn(&Decision) -> bool) -> bool {
        self.kept.iter().any(is)
    }

    fn stops(&self, id: ServerId) -> bool {
        self.has(|decision| match decision {
            Decision::Stop { server } | Decision::Delete { server, .. } => *server == id,
            Decision::Revoke { .. } => false,
        })
    }

    fn revokes(&self, token: &[u8; 32]) -> bool {
        self.has(|decision| matches!(decision, Decision::Revoke { hash, .. } if hash == token))
    }

    fn removes(&self, id: ServerId) -> bool {
        self.has(|decision| matches!(decision, Decision::Delete { server, .. } if *server == id))
    }
}

/// What clients were told and either the store or the disk had then.
#[derive(Default)]
pub(super) struct Promises {
    down: BTreeSet<ServerId>,
    gone: BTreeSet<ServerId>,
    revoked: BTreeSet<[u8; 32]>,
}

pub(super) fn new_core(rng: &mut Rng, decisions: Vec<Decision>) -> Core {
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&rng.next().to_le_bytes());
    Core::new(Settings {
        default_provider: "gvisor".to_string(),
        providers: vec!["gvisor".to_string()],
        hosting: true,
        admin_token_hash: [7; 32],
        separator: ":".to_string(),
        decisions,
        seed,
        ..Settings::default()
    })
}

fn swept() -> Input<'static> {
    Input::Swept {
        providers: vec!["crun".to_string(), "gvisor".to_string()],
        unusable: Vec::new(),
        polling: Vec::new(),
    }
}

impl World {
    pub(super) fn boot(&mut self) {
        if self.rng.one_in(2) {
            self.input(swept());
        }
        self.store.up = true;
        let snapshot = Some(Box::new(self.store.snapshot()));
        self.input(Input::StoreOpened { snapshot });
        self.input(swept());
        self.ask(Ask::News, Question::Watch);
    }

    /// SIGKILL, and the next daemon.
    pub(super) fn killed(&mut self) {
        // Of what was on its way some is done, in order, and nobody hears of it.
        let done = if self.store.up { self.rng.below(self.store.queue.len() + 1) } else { 0 };
        for _ in 0..done {
            self.store.step(true, false);
        }
        self.store.queue.clear();
        self.disk.busy_since = None;
        if let Some((_, decisions)) = self.disk.writing.take()
            && self.rng.one_in(2)
        {
            self.disk.kept = decisions;
        }
        for (_, name) in std::mem::take(&mut self.removals) {
            if self.rng.one_in(2) {
                self.volumes.remove(&name);
            }
        }
        self.check_promises();
        // What neither the store nor the disk has was never decided.
        let is_there = |id: &ServerId| self.store.rows.contains_key(id) && !self.disk.removes(*id);
        self.condemned.retain(|id| !is_there(id));
        let rows = self.store.rows.values();
        let rows: Vec<_> = rows.filter(|row| is_there(&row.id)).cloned().collect();
        let is_down = |row: &&StoredServer| !row.desired_up || self.disk.stops(row.id);
        self.stopped = rows.iter().filter(is_down).map(|row| row.id).collect();
        self.lives = rows.iter().map(|row| (row.definition.name.clone(), row.id)).collect();
        (self.processes, self.pulls, self.shadows) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        (self.questions, self.followers, self.told) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        (self.agents, self.watcher) = (super::mcp::Agents::default(), None);
        self.disk.failing = false;
        self.core = new_core(&mut self.rng, self.disk.kept.clone());
        self.boot();
        for token in self.store.tokens.values() {
            let known = self.core.tokens().get(&token.name).is_some_and(|known| known.hash == token.hash);
            let revoked = self.disk.revokes(&token.hash);
            assert!(!known || !revoked, "a token lives on that was revoked before the kill");
        }
    }

    fn check_promises(&self) {
        let Promises { down, gone, revoked } = &self.promises;
        for id in down {
            let is_stored = self.store.rows.get(id).is_none_or(|row| !row.desired_up);
            assert!(is_stored || self.disk.stops(*id), "{id} was stopped, and would start again");
        }
        for id in gone {
            assert!(!self.store.rows.contains_key(id) || self.disk.removes(*id), "{id} was removed, and would be back");
        }
        for token in self.store.tokens.values().filter(|token| revoked.contains(&token.hash)) {
            assert!(self.disk.revokes(&token.hash), "{} was revoked, and would be back", token.name);
        }
    }

    // --- the disk ---------------------------------------------------------------------------------------------------

    pub(super) fn disk_step(&mut self) {
        let works = !self.rng.one_in(4);
        self.disk_writes(works);
    }

    pub(super) fn disk_writes(&mut self, works: bool) {
        let Some((version, decisions)) = self.disk.writing.take() else { return };
        self.disk.failing = !works;
        let outcome = if works { Ok(()) } else { Err("no space".to_string()) };
        if works {
            self.disk.kept = decisions;
        }
        self.input(Input::DecisionsKept { version, outcome });
        if self.disk.writing.is_none() {
            self.disk.busy_since = None;
        }
    }

    // --- the store --------------------------------------------------------------------------------------------------

    pub(super) fn toggle_store(&mut self) {
        match (self.store.up, self.rng.below(3)) {
            (true, 0) => {
                self.store.up = false;
                self.input(Input::StoreLost { why: "gone".to_string() });
            }
            (false, _) => {
                self.store.up = true;
                self.input(Input::StoreOpened { snapshot: None });
            }
            (true, _) => {}
        }
    }

    pub(super) fn store_step(&mut self) {
        let (commits, breaks, refuses) = (self.rng.one_in(2), self.rng.one_in(30), self.rng.one_in(60));
        self.foresee();
        let step = if refuses { self.store.refuse() } else { self.store.step(commits, breaks) };
        let Some((seq, outcome)) = step else { return };
        if breaks && !refuses && self.store.up {
            self.store.up = false;
            self.input(Input::StoreLost { why: "broke".to_string() });
        }
        self.input(Input::StoreDone { seq, outcome });
    }

    /// A hand on a server takes effect when it is stored; until the outcome is known either bound may hold.
    pub(super) fn foresee(&mut self) {
        let Some((_, op)) = self.store.queue.front() else { return };
        let (name, max) = match op {
            StoreOp::UpdateServer { definition, .. } => (definition.name.clone(), definition.max_in_flight),
            StoreOp::InsertServer(row) => (row.definition.name.clone(), 1),
            StoreOp::DeleteServer { id, .. } => match self.store.rows.get(id) {
                Some(row) => (row.definition.name.clone(), 1),
                None => return,
            },
            StoreOp::SetDesired { .. }
            | StoreOp::SaveStatus { .. }
            | StoreOp::SaveCatalogue { .. }
            | StoreOp::InsertToken { .. }
            | StoreOp::DeleteToken { .. }
            | StoreOp::RotateKey
            | StoreOp::PutExternal(_)
            | StoreOp::DeleteExternal { .. }
            | StoreOp::ReplaceProduct { .. }
            | StoreOp::Import { .. }
            | StoreOp::PutSecret(_)
            | StoreOp::DeleteSecret { .. }
            | StoreOp::InsertCalls(_)
            | StoreOp::DeleteCallsBefore { .. }
            | StoreOp::ReadCalls { .. } => return,
        };
        self.touch(&name);
        if let Some(definition) = self.definitions.get_mut(&name) {
            definition.max_in_flight = definition.max_in_flight.max(max);
        }
    }

    // --- what must hold ---------------------------------------------------------------------------------------------

    /// Somebody does something that may bring a server up.
    pub(super) fn may_start(&mut self, name: &'static str) {
        *self.hands.entry(name).or_default() += 1;
        if let Some(life) = self.lives.get(name) {
            self.stopped.remove(life);
            self.promises.down.remove(life);
        }
    }

    pub(super) fn revoke(&mut self, name: &'static str) {
        let hash = self.core.tokens().get(name).map(|token| token.hash);
        self.ask(Ask::TokenRevoke { name: name.to_string() }, Question::Revoke { name, hash });
        let still = self.core.tokens().get(name).is_some_and(|token| Some(token.hash) == hash);
        assert!(!still, "{name} is revoked from here on, whoever waits for the store");
    }

    pub(super) fn check_launch(&mut self, name: &str) {
        let life = *self.lives.get(name).unwrap_or_else(|| panic!("{name} is nobody's name"));
        assert!(!self.stopped.contains(&life), "{name} was stopped, and starts");
        let writers = self.volumes.entry(name.to_string()).or_default();
        let kept = writers.iter().filter(|writer| **writer != life).find(|writer| self.condemned.contains(writer));
        assert!(kept.is_none(), "{name} starts with volumes that were to be removed");
        writers.insert(life);
    }

    /// The store or the disk has it, or both could not.
    fn check_recorded(&self, what: &str, is_recorded: bool) {
        let excused = self.disk.failing || self.disk.is_slow(self.now);
        assert!(is_recorded || excused, "{what}, but it is written down nowhere");
    }

    pub(super) fn check_deleted(&mut self, name: &'static str, volumes: bool, life: Option<ServerId>) {
        // None: an earlier daemon had removed it, and this one its volumes.
        let Some(life) = life else { return };
        let is_recorded = !self.store.rows.contains_key(&life) || self.disk.removes(life);
        self.check_recorded(&format!("{name} is gone"), is_recorded);
        if is_recorded {
            self.promises.gone.insert(life);
        }
        if volumes {
            self.condemned.insert(life);
        }
    }

    pub(super) fn check_stopped(&mut self, name: &'static str, life: Option<ServerId>, hands: u64, view: &StatusView) {
        // Whoever had a hand on it since may have started it again.
        if self.hands.get(name).copied().unwrap_or(0) != hands || self.lives.get(name).copied() != life {
            return;
        }
        if !matches!(view.status, Status::Stopped | Status::Failed) {
            return assert_eq!(view.status, Status::Stopping, "it was told to stop");
        }
        assert!(self.processes.values().all(|process| process.server != name), "stopped, but it runs");
        let life = life.expect("a server that was there");
        let is_stored = self.store.rows.get(&life).is_none_or(|row| !row.desired_up);
        let is_recorded = is_stored || self.disk.stops(life);
        // Nobody waits for ever; whoever has waited long enough is told that it is not done yet, or not on disk either.
        let not_yet = ["being written", "neither in the database nor on disk"];
        let is_told = view.warning.as_ref().is_some_and(|warning| not_yet.iter().any(|words| warning.contains(words)));
        self.check_recorded(&format!("{name} is stopped"), is_recorded || is_told);
        if is_recorded && !is_told {
            self.promises.down.insert(life);
        }
    }

    pub(super) fn check_revoked(&mut self, name: &'static str, hash: Option<[u8; 32]>) {
        let hash = hash.expect("a token that was there");
        assert!(self.core.tokens().get(name).is_none_or(|token| token.hash != hash));
        let is_stored = self.store.tokens.get(name).is_none_or(|token| token.hash != hash);
        let is_recorded = is_stored || self.disk.revokes(&hash);
        self.check_recorded(&format!("the token {name} is revoked"), is_recorded);
        if is_recorded {
            self.promises.revoked.insert(hash);
        }
    }

    /// At rest nothing is owed to the store, the disk is clean, and tokens are what they are told to be.
    pub(super) fn check_records(&self) {
        // When each was last used is written down now and then.
        let unused = |token: Token| Token { last_used_unix_ms: None, ..token };
        let known: Vec<_> = self.core.tokens().list().filter(|token| token.name != "admin").map(unused).collect();
        let stored = self.store.tokens.values().filter(|token| token.name != "admin");
        let stored: Vec<_> = stored.cloned().map(unused).collect();
        assert_eq!(known, stored, "tokens differ");
        assert!(self.store.volume_removals.is_empty(), "volumes were removed, and the store does not know");
        assert!(self.disk.kept.is_empty(), "the store has it, and the disk too: {:?}", self.disk.kept);
    }
}
