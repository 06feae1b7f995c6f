//! The core: `Input` + now → `Output`, and nothing else. No OS, no clock, no randomness of its own; the simulation in
//! `tests/sim.rs` drives it with invented ones. One `Core` per daemon. Its rooms own their state; this file and
//! `route/` pass on what happens between them. Invariant: after each `handle` nothing is left half done, and `poll_output` says it all.

#![forbid(unsafe_code)]

pub mod clients;
pub mod contract;
pub mod deadlines;
pub mod effects;
pub mod entropy;
pub mod hosting;
#[cfg(debug_assertions)]
pub mod invariants;
pub mod links;
pub mod mcp;
pub mod peers;
pub mod projects;
pub mod servers;
pub mod settings;

pub mod events;
pub mod freeze;
mod route;
mod shutdown;
mod work;

use crate::api::auth::Tokens;
use crate::core::clients::Clients;
use crate::core::contract::{Input, Now, Output};
use crate::core::effects::{Effects, Timer};
use crate::core::entropy::Seal;
use crate::core::freeze::Unreadable;
use crate::core::hosting::Hosting;
use crate::core::hosting::lifecycle::{Action, Event, State};
use crate::core::links::external::LinkEvent;
use crate::core::mcp::Mcp;
use crate::core::peers::Peers;
use crate::core::peers::peer::{Peer, Role};
use crate::core::projects::{Projects, carriers};
use crate::core::servers::Servers;
use crate::core::servers::server::Server;
pub use crate::core::settings::Settings;
use crate::core::shutdown::Phase;
use crate::ids::{InstanceId, PeerId, ServerId};
use crate::limits::STDIN_GRACE;
use crate::model::instance::{Exit, ExitCause, StopSignal};
use crate::model::principal::Principal;
use crate::model::records::Snapshot;
use crate::model::status::{LastCrash, Status};
use serde::{Deserialize, Serialize};

/// How long a change of status may wait for more of them before it is written.
const WRITE_BEHIND_MS: u64 = 500;

#[derive(Serialize, Deserialize)]
pub struct Core {
    settings: Settings,
    phase: Phase,
    servers: Servers,
    hosting: Hosting,
    peers: Peers,
    mcp: Mcp,
    clients: Clients,
    projects: Projects,
    effects: Effects,
}

impl Core {
    pub fn new(settings: Settings) -> Core {
        assert!(!settings.providers.is_empty(), "a daemon has a default provider, usable or not");
        let mut effects = Effects::new(settings.seed);
        if let Some(bytes) = settings.memory_budget {
            effects.shares.plan(bytes);
        }
        let mcp = Mcp::new(Seal::new(effects.entropy.bytes()));
        let mut servers = Servers::default();
        servers.tokens.announce(settings.resource.clone());
        Core {
            settings,
            phase: Phase::Booting { swept: false },
            servers,
            hosting: Hosting::default(),
            peers: Peers::default(),
            mcp,
            clients: Clients::default(),
            projects: Projects::default(),
            effects,
        }
    }

    /// The tokens that `api` checks requests against.
    pub fn tokens(&self) -> &Tokens {
        &self.servers.tokens
    }

    /// Whose instance this is.
    pub fn server_of(&self, instance: InstanceId) -> Option<ServerId> {
        Some(self.peers.known.get(&self.hosting.peer_of(instance)?)?.server)
    }

    pub fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }

    /// Does this daemon still take new connections?
    pub fn is_accepting(&self) -> bool {
        self.phase.is_accepting()
    }

    /// All that is known, as bytes; between turns, when nothing is left to be performed.
    pub fn freeze(&self) -> Result<Vec<u8>, Unreadable> {
        assert!(!self.has_output() && self.effects.events.is_empty(), "what is to be done is done first");
        freeze::freeze(self)
    }

    /// As it was when it was frozen.
    pub fn thaw(bytes: &[u8]) -> Result<Core, Unreadable> {
        freeze::thaw(bytes)
    }

    /// Requests that such instances have, and questions of theirs.
    pub fn in_flight(&self, are: impl Fn(InstanceId) -> bool) -> usize {
        let of_peers = self.peers.known.values().filter(|peer| peer.life.instance().is_some_and(&are));
        let questions = self.mcp.unanswered(&are);
        of_peers.map(|peer| peer.lane.in_flight().len()).sum::<usize>() + questions
    }

    /// Something is still to be performed.
    pub fn has_output(&self) -> bool {
        !self.effects.outputs.is_empty()
    }

    pub fn poll_output(&mut self) -> Option<Output> {
        self.effects.outputs.pop_front()
    }

    /// What the last `LineRead` or `StderrRead` has cost.
    pub fn work(&self) -> usize {
        self.effects.work
    }

    /// How the daemon is, in one line.
    pub fn status_line(&self) -> String {
        self.metered().status_line()
    }

    /// Each server in a line, by name.
    pub fn summary(&self) -> Vec<String> {
        let summary = |server: &Server| server.summary(&self.peers.known[&server.main], self.effects.now);
        let mut lines: Vec<String> = self.servers.registered().map(summary).collect();
        lines.sort();
        lines.splice(..0, self.effects.shares.summary());
        lines
    }

    pub fn next_deadline(&mut self) -> Option<u64> {
        self.effects.deadlines.earliest()
    }

    /// Everything is at rest: no call, no client that waits for an answer, nothing to write, nobody on the way out.
    pub fn is_idle(&self) -> bool {
        self.peers.calls.is_empty()
            && self.clients.is_idle()
            && self.servers.outbox.is_clean()
            && self.projects.records().is_empty()
            && self.servers.decisions.are_recorded()
            && self.servers.known.values().all(|server| server.removing.is_none())
            && self.peers.known.values().all(|peer| !peer.leaving)
    }

    pub fn handle(&mut self, input: Input<'_>, now: Now) {
        self.effects.now = now;
        match input {
            Input::Swept { providers, unusable, polling } => self.swept(providers, unusable, polling),
            Input::ShutdownAsked => {
                log::info!("shutdown asked for: {} calls in flight or waiting", self.peers.calls.len());
                let step = self.phase.shutdown_asked(&mut self.effects);
                self.take_step(step);
            }
            Input::StoreOpened { snapshot } => self.store_opened(snapshot),
            Input::StoreLost { why } => self.store_lost(&why),
            Input::StoreHeld => self.servers.stands_by = true,
            Input::StoreDenied { why } => self.store_denied(&why),
            Input::StoreDone { seq, outcome } => self.store_done(seq, outcome),
            Input::CallsRead { seq, calls } => self.calls_read(seq, calls),
            Input::DecisionsKept { version, outcome } => {
                self.servers.decisions_kept(version, outcome, &mut self.effects)
            }
            Input::Asked { conn, who, ask } => self.asked(conn, &who, ask),
            Input::ClientGone { conn } => self.client_gone(conn),
            Input::Pulled { pull } => self.pulled(pull),
            Input::PullProgressed { pull, step } => self.pull_progressed(pull, &step),
            Input::PullFailed { pull, why } => self.pull_failed(pull, &why),
            Input::Launched { instance } => {
                self.hosting.launched(instance);
                self.advance_instance(instance, Event::Launched);
                self.grant_slots();
            }
            Input::LaunchFailed { instance, why } => {
                self.hosting.launched(instance);
                self.advance_instance(instance, Event::LaunchFailed(why));
                self.grant_slots();
            }
            Input::InstallBegun { instance } => {
                self.hosting.launched(instance);
                self.know_install(instance);
                self.advance_instance(instance, Event::InstallBegun);
                self.grant_slots();
            }
            Input::PortOpened { instance } => self.advance_instance(instance, Event::Greeted),
            Input::LineRead { instance, line } => self.line_read(instance, line),
            Input::LineBegun { instance } => self.line_begun(instance),
            Input::StdoutClosed { instance } => self.advance_instance(instance, Event::StdoutClosed),
            Input::StderrRead { instance, bytes } => self.stderr_read(instance, bytes),
            Input::Exited { instance, exit } => self.advance_instance(instance, Event::Exited(exit)),
            Input::Unwritten { call, short } => self.unwritten(call, short),
            Input::Undelivered { instance: _, call, fault } => self.undelivered(call, fault),
            Input::Connected { instance } => self.advance_instance(instance, Event::Launched),
            Input::LinkLost { instance, why } => {
                self.advance_instance(instance, Event::Link(carriers::event_of_loss(why)));
            }
            Input::VolumesRemoved { server, outcome } => self.volumes_removed(server, outcome),
            Input::Woken { instance, took_ms } => self.woken(instance, took_ms),
            Input::Measured { looks } => self.measured(&looks),
            Input::LogRestored { server, entries } => self.servers.log_restored(server, entries),
            Input::Reconfigured { default_provider } => self.settings.prefer(default_provider),
        }
        self.settle();
        self.follow_shutdown();
    }

    /// Also for a request that never becomes a question to the core.
    pub fn token_used(&mut self, who: &Principal) {
        self.servers.token_used(who, &mut self.effects);
    }

    /// Is this a server (by name or id) whose own HTTP is passed through?
    pub fn speaks_http(&self, server: &str) -> bool {
        self.servers.speaks_http(server)
    }

    pub fn is_seen_by(&self, server: &str, who: &Principal) -> bool {
        self.servers.is_seen_by(server, who)
    }

    /// Lets every deadline pass that is due.
    pub fn tick(&mut self, now: Now) {
        self.effects.now = now;
        while let Some(timer) = self.effects.deadlines.pop_due(now.mono_ms) {
            match timer {
                Timer::Call(id) => self.call_timed_out(id),
                Timer::State(peer) => self.state_elapsed(peer),
                Timer::Pulse(peer) => self.pulse_elapsed(peer),
                Timer::Idle(peer) => self.rest_elapsed(peer),
                Timer::Client(conn) => self.wait_timed_out(conn),
                Timer::Stream(conn) => self.replies().stream_elapsed(conn),
                Timer::Session(id) => self.session_elapsed(id),
                Timer::List(id, list) => self.peers.fetch_due(id, list, &mut self.effects),
                Timer::JointList(list) => self.replies().tell_joint(list),
                Timer::Records => self.records_elapsed(),
                Timer::OldRecords => self.servers.clean_records(&self.settings, &mut self.effects),
                Timer::ProjectWait(wait) => self.links_awaited_in_vain(wait),
                Timer::Stdin(instance) => self.effects.outputs.push_back(Output::CloseStdin { instance }),
                Timer::Unkept(server) => self.servers.tell_unkept(server, &mut self.effects),
                Timer::Flush => self.flush(),
                Timer::Decisions => self.servers.decisions_elapsed(&mut self.effects),
                Timer::Volumes(server) => self.volumes_again(server),
                Timer::Tokens => self.servers.tokens_elapsed(&mut self.effects),
                Timer::Shutdown => {
                    let step = self.phase.elapsed();
                    self.take_step(step);
                }
            }
            self.settle();
        }
        self.follow_shutdown();
    }

    // --- boot ---------------------------------------------------------------------------------------------------

    fn swept(&mut self, providers: Vec<String>, unusable: Vec<(String, String)>, polling: Vec<String>) {
        self.settings.polling = polling;
        self.settings.unusable = unusable;
        self.settings.provide(providers);
        if let Phase::Booting { swept } = &mut self.phase {
            *swept = true;
        }
        self.finish_boot();
    }

    fn store_opened(&mut self, snapshot: Option<Box<Snapshot>>) {
        self.servers.outbox.opened();
        self.servers.stands_by = false;
        if let Some(snapshot) = snapshot
            && !self.servers.loaded
        {
            let decisions = std::mem::take(&mut self.settings.decisions);
            let (externals, secrets) = self.rows().load(*snapshot, decisions);
            self.load_projects(externals, secrets);
            self.servers.clean_records(&self.settings, &mut self.effects);
        }
        self.finish_boot();
        self.flush();
    }

    /// Servers start when nothing of an earlier life is left, and when it is known which they are.
    fn finish_boot(&mut self) {
        if self.phase != (Phase::Booting { swept: true }) || !self.servers.loaded {
            return;
        }
        self.phase = Phase::Running;
        self.rows().check_places();
        for id in self.server_ids() {
            self.follow_removal(id);
        }
        if !self.settings.hosting {
            log::warn!("hosting is disabled by ENABLE_AGENT_WORKSPACES=false: no server is started");
            return;
        }
        let mut up: Vec<&Server> = self.servers.registered().filter(|server| server.desired_up).collect();
        up.sort_by(|a, b| a.definition.name.cmp(&b.definition.name));
        for id in up.into_iter().map(|server| server.main).collect::<Vec<_>>() {
            let event = self.boot_event(id);
            self.advance(id, event);
        }
    }

    // --- one life --------------------------------------------------------------------------------------

    fn advance_instance(&mut self, instance: InstanceId, event: Event) {
        if let Some(peer) = self.hosting.peer_of(instance) {
            self.advance(peer, event);
        }
    }

    /// As below, for the conversation that everybody shares.
    fn advance_main(&mut self, id: ServerId, event: Event) {
        if let Some(server) = self.servers.known.get(&id) {
            self.advance(server.main, event);
        }
    }

    /// The one way a peer's state changes.
    fn advance(&mut self, id: PeerId, event: Event) {
        let Some(peer) = self.peers.known.get_mut(&id) else { return };
        let server = peer.server;
        // What breaks a rule is not started, whoever asks for it.
        let refused = self.servers.known.get(&server).is_some_and(|server| server.refused.is_some());
        if refused && matches!(event, Event::Start | Event::Restart) {
            return;
        }
        let before = (peer.status(), peer.life.instance());
        let why = clients::news::event_name(&event);
        let actions = peer.life.handle(event, &peer.definition, self.effects.now.mono_ms);
        let failed = actions.iter().any(|action| {
            matches!(action, Action::Crashed { .. } | Action::Fault { .. } | Action::InstallFailed { .. })
        });
        self.act_all(id, actions);
        let Some(peer) = self.peers.known.get_mut(&id) else { return };
        let after = peer.status();
        if matches!(after, Status::Stopped | Status::Failed) {
            peer.rest.waking_since_ms = None;
        }
        if before.0 != after {
            let instance = peer.life.instance().or(before.1);
            self.tell_transition(id, before.0, instance, why);
            self.tell_crash_loop(id);
            self.outbox_mark(id);
        }
        self.peers.pump(id, &mut self.effects);
        self.review_queue(id);
        self.forget_if_left(id);
        self.tell_waiting(server);
        self.follow_offer(server);
        self.follow_project(server);
        // Last: it may be the end of this peer, and its actions needed it to the last.
        if failed {
            self.stateless_peer_failed(id);
        }
        self.further_peer_over(id);
    }

    /// A slot that is free now is the next step of this very peer, with a deadline of its own. So slots are granted when
    /// nothing of this step is left to do, wherever in it the peer was put into the queue.
    fn act_all(&mut self, id: PeerId, actions: Vec<Action>) {
        let queued = actions.contains(&Action::Queue);
        let mut next = None;
        for action in actions {
            next = self.act(id, action).or(next);
        }
        if queued {
            self.grant_slots();
        }
        if let Some(event) = next {
            self.advance(id, event);
        }
    }

    /// Some: what follows from it for the peer at once, when nothing of this step is left to do.
    fn act(&mut self, id: PeerId, action: Action) -> Option<Event> {
        let peer = self.peers.known.get_mut(&id).expect("advance holds it");
        match action {
            Action::Pull { policy } => self.pull(id, policy),
            Action::LeavePull => self.leave_pull(id),
            Action::Queue => self.hosting.queue(id, peer.restart_due),
            Action::Launch { instance, packages } => {
                peer.begin_instance();
                let server = peer.server;
                let definition = match self.offers().launchable(id) {
                    Ok(definition) => definition,
                    Err(fault) => return Some(Event::Link(LinkEvent::Impossible(fault))),
                };
                let provider = definition.provider.clone().unwrap_or_else(|| self.settings.providers[0].clone());
                self.hosting.launching(instance, id);
                let launch = Output::Launch { instance, server, provider, definition, packages };
                self.effects.outputs.push_back(launch);
                self.outbox_mark(id);
            }
            Action::Installing { .. } => self.install_begun(id),
            Action::Installed => self.installed(id),
            Action::InstallFailed { instance, cause } => self.install_failed(id, instance, cause),
            Action::InstallGivenUp => self.servers.install_given_up(peer),
            Action::Open => return Some(Event::Slot { instance: self.hosting.mint_instance() }),
            Action::Connect { instance } => return self.connect_external(id, instance),
            Action::LinkFailed { why, was_up } => self.link_failed(id, why, was_up),
            Action::Greet { instance } => self.greet(id, instance),
            Action::Watch { .. } => {
                peer.start_failed = false;
                // It is asked over its pipes; one that has none is known by its port and its process.
                if peer.definition.stdio_bridge {
                    self.peers.watch(id, &mut self.effects);
                    self.rest_begins(id);
                }
            }
            Action::FailInFlight => {
                let fault = peer.restarting_fault(self.effects.now);
                self.fail_in_flight(id, &fault);
            }
            Action::Knock { instance } => self.effects.outputs.push_back(Output::Knock { instance }),
            Action::AskToStop { instance } => {
                // Some servers, node among them, leave only at the end of their input. It comes a moment later: one that
                // sees it first would be gone before it has seen the signal.
                self.effects.outputs.push_back(Output::Signal { instance, signal: StopSignal::Term });
                self.effects
                    .deadlines
                    .set(Timer::Stdin(instance), self.effects.now.mono_ms + STDIN_GRACE.as_millis() as u64);
            }
            Action::Signal { instance, signal } => self.effects.outputs.push_back(Output::Signal { instance, signal }),
            Action::Discard { instance } => self.discard(id, instance),
            Action::Crashed { instance, exit } => self.crashed(id, instance, exit),
            Action::Fault { message, launch } => {
                log::warn!("server={} fault: {message}", peer.definition.name);
                peer.last_error = Some(message.clone());
                peer.restart_due = true;
                match launch {
                    true => peer.start_failed = true,
                    false => peer.put_down_for = Some(message.clone()),
                }
                self.note(id, message);
                if launch {
                    self.answer_ready_waits(id);
                }
            }
            Action::Deadline { at_ms: Some(at_ms) } => self.effects.deadlines.set(Timer::State(id), at_ms),
            Action::Deadline { at_ms: None } => self.effects.deadlines.cancel(Timer::State(id)),
        }
        None
    }

    /// An instance is over, and with it whatever it still owed.
    fn discard(&mut self, id: PeerId, instance: InstanceId) {
        self.end_stderr(id, instance);
        let peer = self.peers.known.get_mut(&id).expect("advance holds it");
        (peer.pulse, peer.rest.dozing_since_ms) = (None, None);
        if peer.installing.take_if(|installing| *installing == instance).is_some() {
            self.servers.put_install_by(peer);
        }
        self.effects.deadlines.cancel(Timer::Pulse(id));
        self.effects.deadlines.cancel(Timer::Idle(id));
        let fault = peer.end_fault();
        self.fail_in_flight(id, &fault);
        self.effects.deadlines.cancel(Timer::Stdin(instance));
        if self.hosting.ended(instance) {
            self.effects.outputs.push_back(Output::Discard { instance });
        }
    }

    fn grant_slots(&mut self) {
        while let Some(id) = self.hosting.next_slot() {
            if self.peers.known.get(&id).is_some_and(|peer| *peer.life.state() == State::Due) {
                let instance = self.hosting.mint_instance();
                self.advance(id, Event::Slot { instance });
            }
        }
    }

    fn crashed(&mut self, id: PeerId, instance: InstanceId, exit: Exit) {
        let now = self.effects.now;
        self.end_stderr(id, instance);
        let peer = self.peers.known.get_mut(&id).expect("advance holds it");
        let log = self.servers.known.get(&peer.server).map(|server| &server.log);
        let stderr_tail = log.map(|log| log.crash_tail(instance)).unwrap_or_default();
        let (exit_code, signal, how) = match exit.cause {
            ExitCause::Code(code) => (Some(code), None, format!("exited with code {code}")),
            ExitCause::Signal(signal) => (None, Some(signal), format!("killed by signal {signal}")),
        };
        let how = if exit.oom { format!("{how}, out of memory") } else { how };
        log::warn!("server={} instance={instance} {how}; stderr: {stderr_tail:?}", peer.definition.name);
        // Whoever was put down has a reason that says more than the signal it was done with.
        peer.last_error = Some(match peer.put_down_for.take() {
            Some(reason) => format!("{reason}; {how}"),
            None => how.clone(),
        });
        peer.start_failed |= peer.pulse.is_none() && peer.definition.stdio_bridge;
        peer.last_crash = Some(LastCrash { at_unix_ms: now.unix_ms, exit_code, signal, oom: exit.oom, stderr_tail });
        peer.ended_by = Some(exit);
        peer.restart_due = true;
        if let Some(server) = self.servers.known.get_mut(&peer.server) {
            server.tally.crashes += 1;
            server.tally.out_of_memory += u64::from(exit.oom);
        }
        self.note(id, how);
    }

    fn state_elapsed(&mut self, id: PeerId) {
        if let Some(peer) = self.peers.known.get_mut(&id)
            && matches!(peer.life.state(), State::Greeting { .. })
        {
            let message = peer.diagnosis();
            log::warn!("server={} {message}", peer.definition.name);
            peer.last_error = Some(message.clone());
            peer.put_down_for = Some(message.clone());
            peer.start_failed = true;
            self.note(id, message);
            // It is about to be put down, but whoever waited for it should hear the reason and not the consequence.
            self.answer_ready_waits(id);
            self.stateless_peer_failed(id);
        }
        self.advance(id, Event::Elapsed);
    }

    // --- small things ---------------------------------------------------------------------------------------------

    /// The conversation that everybody shares; a server that is known has one.
    fn main_of(&self, id: ServerId) -> &Peer {
        &self.peers.known[&self.servers.known[&id].main]
    }

    fn main_of_mut(&mut self, id: ServerId) -> &mut Peer {
        self.peers.known.get_mut(&self.servers.known[&id].main).expect("a server that is known has one")
    }

    /// Of a server that is known: it, and the conversation that everybody shares.
    fn with_main(&self, id: ServerId) -> Option<(&Server, &Peer)> {
        let server = self.servers.known.get(&id)?;
        Some((server, &self.peers.known[&server.main]))
    }

    fn server_ids(&self) -> Vec<ServerId> {
        let mut ids: Vec<ServerId> = self.servers.known.keys().copied().collect();
        ids.sort();
        ids
    }

    fn peer_ids(&self) -> Vec<PeerId> {
        let mut ids: Vec<PeerId> = self.peers.known.keys().copied().collect();
        ids.sort();
        ids
    }

    /// What the store keeps of a server is its own state and that of its main peer.
    fn outbox_mark(&mut self, id: PeerId) {
        let main = self.peers.known.get(&id).filter(|peer| peer.role == Role::Main);
        let is_registered = |peer: &&Peer| self.servers.is_registered(peer.server);
        if let Some(peer) = main.filter(is_registered) {
            self.servers.outbox.mark(peer.server);
            self.schedule_flush();
        }
    }

    fn schedule_flush(&mut self) {
        if self.phase == Phase::Flushing {
            self.flush();
        } else {
            self.effects.deadlines.set(Timer::Flush, self.effects.now.mono_ms + WRITE_BEHIND_MS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Uuid;
    use crate::model::definition::tests::definition;
    use std::sync::Arc;

    #[test]
    fn the_place_of_a_queueing_among_the_actions_takes_no_deadline_from_the_launch() {
        let mut core = Core::new(Settings { providers: vec!["crun".to_string()], ..Settings::default() });
        for (n, queue_first) in [false, true].into_iter().enumerate() {
            let id = ServerId(Uuid::from_u128(n as u128));
            let definition = crate::model::definition::Definition { name: format!("server-{n}"), ..definition() };
            let main = core.peers.mint();
            let (server, mut peer) = Server::new(id, main, Arc::new(definition.clone()), true, 0);
            let mut actions = peer.life.handle(Event::Start, &definition, 0);
            assert!(actions.len() == 2 && actions.contains(&Action::Queue));
            if queue_first {
                actions.sort_by_key(|action| *action != Action::Queue);
            }
            core.servers.known.insert(id, server);
            core.peers.known.insert(main, peer);
            core.act_all(main, actions);
            assert!(matches!(core.peers.known[&main].life.state(), State::Launching { .. }));
            let due = std::iter::from_fn(|| core.effects.deadlines.pop_due(u64::MAX)).collect::<Vec<_>>();
            assert!(due.contains(&Timer::State(main)), "queued first: {queue_first}");
        }
    }
}
