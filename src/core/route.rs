//! What follows in one room from what has happened in another: calls from room to room that need no more than their rooms side
//! by side. Owns nothing and decides nothing; what is done stands in the rooms.

use crate::api::response::Answer;
use crate::core::Core;
use crate::core::clients::news::{self, Transition};
use crate::core::clients::parked::{Hand, WaitOn};
use crate::core::clients::waiting;
use crate::core::contract::Output;
use crate::core::events::RoomEvent;
use crate::core::hosting::lifecycle::{Event, InstallFault};
use crate::core::links::external::LinkEvent;
use crate::core::mcp::endpoint::Offers;
use crate::core::peers::calls::Call;
use crate::core::peers::health::{Beat, HeardAgain};
use crate::core::peers::peer::{Peer, Role};
use crate::core::projects::carriers;
use crate::core::projects::records::{CallDone, CallDraft};
use crate::core::servers::decisions::Key;
use crate::core::servers::metrics::Metered;
use crate::core::servers::outbox::Pending;
use crate::core::servers::rows::Rows;
use crate::core::shutdown::{Phase, Step};
use crate::ids::{ConnId, InstanceId, PeerId, PullId, ServerId, StoreSeq};
use crate::limits::STORE_WAIT;
use crate::model::definition::PullPolicy;
use crate::model::external::ProjectId;
use crate::model::fault::{Code, Fault};
use crate::model::instance::{LaunchFault, PullStep};
use crate::model::news::NewsKind;
use crate::model::principal::Principal;
use crate::model::records::{Decision, StoreOp, StoreOutcome};
use crate::model::status::{Status, Usage};
use crate::model::tally::CallOutcome;
use crate::wire::json::Json;
use std::sync::Arc;

mod aggregate;
mod calls;
mod further;
mod handshakes;
mod imports;
mod mcp;
mod posts;
mod projects;
mod rest;
mod stateless;

impl Core {
    /// What is offered where, to be looked at.
    pub(in crate::core) fn offers(&self) -> Offers<'_> {
        let Core { servers, projects, peers, settings, effects, .. } = self;
        Offers { servers, projects, peers, settings, now: effects.now }
    }

    /// Servers as the store says, and as this daemon can have them.
    pub(in crate::core) fn rows(&mut self) -> Rows<'_> {
        let Core { servers, peers, projects, settings, effects, .. } = self;
        Rows { servers, peers, projects, settings, effects }
    }

    // --- clients that wait ------------------------------------------------------------------------------------------

    pub(in crate::core) fn park(&mut self, conn: ConnId, on: WaitOn, until_ms: u64) {
        self.clients.park_until(conn, on, until_ms, &mut self.effects);
    }

    pub(in crate::core) fn answer(&mut self, conn: ConnId, answer: Answer) {
        self.clients.answer(conn, answer, &mut self.effects);
    }

    pub(in crate::core) fn refuse(&mut self, conn: ConnId, fault: Fault) {
        self.answer(conn, Answer::Refused(fault));
    }

    pub(in crate::core) fn status_answer(&self, id: ServerId) -> Answer {
        self.ready_answer(id, Hand::Started)
    }

    pub(in crate::core) fn ready_answer(&self, id: ServerId, after: Hand) -> Answer {
        waiting::ready_answer(self.with_main(id), after, &self.settings, self.effects.now)
    }

    /// The server's state may be what somebody waits for.
    pub(in crate::core) fn tell_waiting(&mut self, id: ServerId) {
        let Some((_, main)) = self.with_main(id) else { return };
        let settled = self.servers.decisions.is_settled(&Key::Server(id));
        for (conn, on) in self.clients.served_by(id, main.life.state(), settled) {
            match on {
                WaitOn::Advertised(_) => self.answer_greeting(conn, id),
                WaitOn::Ready { after, .. } => self.answer(conn, self.ready_answer(id, after)),
                _ => self.answer(conn, self.status_answer(id)),
            }
        }
        self.follow_removal(id);
    }

    /// The start has failed in a way that waiting will not mend: say so at once.
    pub(in crate::core) fn answer_ready_waits(&mut self, peer: PeerId) {
        let Some(main) = self.peers.known.get(&peer).filter(|peer| peer.role == Role::Main) else { return };
        let id = main.server;
        for (conn, after) in self.clients.for_ready(id) {
            self.answer(conn, self.ready_answer(id, after));
        }
    }

    pub(in crate::core) fn wait_timed_out(&mut self, conn: ConnId) {
        let Some(on) = self.clients.waits_on(conn) else { return };
        match on {
            WaitOn::Ready { server, after } => self.answer(conn, self.ready_answer(server, after)),
            WaitOn::Down(server) => self.answer(conn, self.status_answer(server)),
            WaitOn::Stored(seq) => self.store_timed_out(conn, seq),
            WaitOn::Gone(_) => {
                self.refuse(conn, Fault::new(Code::Unavailable, "the server is removed, but still on its way out"));
            }
            WaitOn::Advertised(server) => self.answer_greeting(conn, server),
            WaitOn::Project => self.end_wait(conn),
            WaitOn::Reply(_)
            | WaitOn::Revoked
            | WaitOn::Log(_)
            | WaitOn::News
            | WaitOn::Post(_)
            | WaitOn::GetStream(_) => {
                unreachable!("they have no deadline of this kind")
            }
        }
    }

    pub(in crate::core) fn client_gone(&mut self, conn: ConnId) {
        match self.clients.release_wait(conn, &mut self.effects) {
            Some(WaitOn::Reply(call)) => {
                self.drop_tool_call(call);
                self.abandon_call(call, None, "the client has disconnected");
            }
            Some(WaitOn::Post(post)) => self.post_lost(post, conn),
            Some(WaitOn::GetStream(session)) => self.get_stream_lost(session, conn),
            Some(WaitOn::Advertised(_)) => self.mcp.forget_greeting(conn),
            Some(WaitOn::Log(id)) => self.servers.stop_following(conn, id, &mut self.effects),
            Some(WaitOn::News) => self.clients.stop_watching(conn, &mut self.effects),
            Some(WaitOn::Project) => self.drop_wait(conn),
            // What they asked for goes on without them.
            Some(WaitOn::Stored(_) | WaitOn::Revoked | WaitOn::Ready { .. } | WaitOn::Down(_) | WaitOn::Gone(_))
            | None => {}
        }
    }

    pub(in crate::core) fn close_conn(&mut self, conn: ConnId) {
        self.clients.close(conn, &mut self.effects);
    }

    // --- what is told -----------------------------------------------------------------------------------------------

    /// The stream begins with the present state of each server, so that nothing is missed between a list and it.
    pub(in crate::core) fn watch_news(&mut self, conn: ConnId, who: &Principal) -> Result<Option<Answer>, Fault> {
        let main = |server: &crate::core::servers::server::Server| &self.peers.known[&server.main];
        let seen = self.servers.seen_by(who).into_iter();
        let now = seen.map(|server| news::news_of(main(server), NewsKind::State, String::new(), self.effects.now));
        let now = now.collect();
        self.clients.watch(conn, who, &mut self.effects)?;
        Ok(Some(Answer::News(now)))
    }

    /// A token was revoked: those who watch or follow a log with it hear nothing more.
    pub(in crate::core) fn end_watching(&mut self, owner: &str) {
        let mut conns = self.clients.end_watching(owner);
        conns.extend(self.servers.end_following(owner));
        news::give_watchers_back(&mut self.effects.shares, owner, conns.len());
        conns.sort();
        for conn in conns {
            self.close_conn(conn);
        }
    }

    pub(in crate::core) fn tell_transition(
        &mut self,
        id: PeerId,
        from: Status,
        instance: Option<InstanceId>,
        why: &str,
    ) {
        let Some(peer) = self.peers.known.get(&id) else { return };
        let is_registered = self.servers.is_registered(peer.server);
        self.clients.tell_transition(peer, is_registered, Transition { from, instance, why }, &mut self.effects);
        let told = format!("{} -> {} ({why})", from.wire(), peer.status().wire());
        self.servers.note(peer, told, &mut self.effects);
    }

    pub(in crate::core) fn warn(&mut self, id: PeerId, text: String) {
        let Some(peer) = self.peers.known.get(&id) else { return };
        let is_registered = self.servers.is_registered(peer.server);
        self.clients.warn(peer, is_registered, &text, &mut self.effects);
        self.servers.note_health(peer, text, &mut self.effects);
    }

    pub(in crate::core) fn tell_crash_loop(&mut self, id: PeerId) {
        let told = self.peers.known.get(&id).and_then(|peer| news::crash_loop(peer, self.effects.now));
        if let Some(told) = told {
            self.warn(id, told);
        }
    }

    /// Registered, removed: there from here on, or not any more.
    pub(in crate::core) fn tell_presence(&mut self, id: ServerId, why: &str) {
        let main = &self.peers.known[&self.servers.known[&id].main];
        let told = news::news_of(main, NewsKind::Presence, why.to_string(), self.effects.now);
        self.clients.broadcast(told, &mut self.effects);
    }

    /// A lifecycle event in the log of the server, which all its peers share.
    pub(in crate::core) fn note(&mut self, id: PeerId, text: String) {
        if let Some(peer) = self.peers.known.get(&id) {
            self.servers.note(peer, text, &mut self.effects);
        }
    }

    pub(in crate::core) fn stderr_read(&mut self, instance: InstanceId, bytes: &[u8]) {
        self.servers.stderr_read(self.server_of(instance), instance, bytes, &mut self.effects);
    }

    /// What an instance has begun to say when it ends is its own, and no part of what the next one says.
    pub(in crate::core) fn end_stderr(&mut self, id: PeerId, instance: InstanceId) {
        if let Some(peer) = self.peers.known.get(&id) {
            self.servers.end_stderr(peer.server, instance, &mut self.effects);
        }
    }

    // --- what is counted --------------------------------------------------------------------------------------------

    /// A call of a client has ended. The daemon's own are nobody's.
    pub(in crate::core) fn count_call(&mut self, call: &Call, outcome: CallOutcome) {
        self.servers.count_call(call, outcome, self.effects.now.mono_ms);
    }

    pub(in crate::core) fn measured(&mut self, looks: &[(InstanceId, Usage)]) {
        for (instance, usage) in looks {
            if let Some(peer) = self.hosting.peer_of(*instance).and_then(|id| self.peers.known.get(&id)) {
                self.servers.install_measured(peer, *instance, usage);
                self.servers.sampled(peer, usage, self.effects.now);
            }
        }
    }

    pub(in crate::core) fn metered(&self) -> Metered<'_> {
        let Core { servers, peers, mcp, projects, settings, .. } = self;
        Metered { servers, peers, mcp, projects, settings }
    }

    // --- what servers are made of -----------------------------------------------------------------------------------

    /// The server's image is wanted.
    pub(in crate::core) fn pull(&mut self, id: PeerId, policy: PullPolicy) {
        if let Some(image) = self.peers.known.get(&id).and_then(Peer::image) {
            self.hosting.pull(id, image, policy, &mut self.effects);
            self.extend_ready_waits(id);
        }
    }

    pub(in crate::core) fn leave_pull(&mut self, id: PeerId) {
        self.hosting.leave_pull(id, &mut self.effects);
        if let Some(peer) = self.peers.known.get(&id) {
            self.servers.pull_left(peer);
        }
    }

    pub(in crate::core) fn pulled(&mut self, pull: PullId) {
        let Some(pull) = self.hosting.end_pull(pull) else { return };
        for id in pull.waiting {
            if let Some(peer) = self.peers.known.get(&id) {
                self.servers.pulled(peer, &pull.image, &mut self.effects);
            }
            self.advance(id, Event::Pulled);
            self.extend_ready_waits(id);
        }
    }

    pub(in crate::core) fn pull_failed(&mut self, pull: PullId, why: &LaunchFault) {
        let Some(pull) = self.hosting.end_pull(pull) else { return };
        for id in pull.waiting {
            if let Some(peer) = self.peers.known.get(&id) {
                self.servers.pull_failed(peer, why);
            }
            self.advance(id, Event::PullFailed(why.clone()));
        }
    }

    pub(in crate::core) fn pull_progressed(&mut self, pull: PullId, step: &PullStep) {
        let Some(pull) = self.hosting.pull_of(pull) else { return };
        for peer in pull.waiting.iter().filter_map(|id| self.peers.known.get(id)) {
            self.servers.pull_progressed(peer, &pull.image, step, &mut self.effects);
        }
    }

    /// From here on, whatever its server's state: one that is being stopped already must not be spoken to either.
    pub(in crate::core) fn know_install(&mut self, instance: InstanceId) {
        let id = self.hosting.peer_of(instance);
        if let Some(peer) = id.and_then(|id| self.peers.known.get_mut(&id)) {
            peer.installing = Some(instance);
        }
    }

    pub(in crate::core) fn install_begun(&mut self, id: PeerId) {
        self.servers.install_begun(&self.peers.known[&id], &mut self.effects);
        self.extend_ready_waits(id);
    }

    pub(in crate::core) fn installed(&mut self, id: PeerId) {
        let peer = self.peers.known.get_mut(&id).expect("advance holds it");
        peer.start_failed = false;
        self.servers.installed(peer, &mut self.effects);
        self.extend_ready_waits(id);
    }

    pub(in crate::core) fn install_failed(&mut self, id: PeerId, instance: InstanceId, cause: InstallFault) {
        let peer = self.peers.known.get_mut(&id).expect("advance holds it");
        let message = self.servers.install_failed(peer, instance, cause, &mut self.effects);
        (peer.last_error, peer.put_down_for) = (Some(message.clone()), Some(message));
        peer.start_failed = true;
        self.answer_ready_waits(id);
    }

    /// The time to start counts from the end of the pull, or of the install.
    fn extend_ready_waits(&mut self, id: PeerId) {
        if let Some(main) = self.peers.known.get(&id).filter(|peer| peer.role == Role::Main) {
            let until_ms = self.effects.now.mono_ms + main.start_wait_ms();
            self.clients.extend_ready(main.server, until_ms, &mut self.effects);
        }
    }

    // --- whether a server is well -------------------------------------------------------------------------------------

    /// Something valid came from it.
    pub(in crate::core) fn heard(&mut self, id: PeerId) {
        match self.peers.heard(id, &mut self.effects) {
            Some(HeardAgain::Lost) => self.advance(id, Event::Heard),
            Some(HeardAgain::Stale) => self.note(id, "heard again".to_string()),
            None => {}
        }
    }

    pub(in crate::core) fn line_begun(&mut self, instance: InstanceId) {
        if let Some(id) = self.hosting.peer_of(instance) {
            self.peers.line_begun(id, self.effects.now.mono_ms);
        }
    }

    pub(in crate::core) fn suspect(&mut self, id: PeerId) {
        let beat = self.peers.suspect(id, self.effects.now.mono_ms);
        self.follow_beat(id, beat);
    }

    pub(in crate::core) fn pulse_elapsed(&mut self, id: PeerId) {
        let Some((beat, stale_ms)) = self.peers.pulse_elapsed(id, self.effects.now.mono_ms) else { return };
        if let Some(silent_ms) = stale_ms {
            self.warn(id, format!("stale: nothing valid has come from it for {silent_ms} ms"));
        }
        self.follow_beat(id, beat);
    }

    fn follow_beat(&mut self, id: PeerId, beat: Beat) {
        match beat {
            Beat::Rest => {}
            Beat::Ask(method) => self.peers.ask_pulse(id, method, &mut self.effects),
            Beat::Lost => {
                let waits_ms = 2 * self.peers.known[&id].definition.health.probe_timeout_ms;
                self.warn(id, format!("unresponsive: it answered neither ping nor tools/list within {waits_ms} ms"));
                self.advance(id, Event::Silent);
            }
            Beat::Inscrutable => {
                let text = "it answers neither ping nor tools/list: only its calls can tell whether it is well";
                self.note(id, text.to_string());
            }
        }
        self.peers.arm_pulse(id, &mut self.effects);
    }

    // --- records of tool calls ----------------------------------------------------------------------------------------

    pub(in crate::core) fn draft_call(
        &mut self,
        project: &ProjectId,
        principal: &Arc<str>,
        tool: &str,
        arguments: Option<&str>,
        run_id: Option<String>,
    ) -> CallDraft {
        let keeps_arguments = self.settings.record_arguments;
        self.projects.draft_call((project, principal), tool, arguments, run_id, keeps_arguments, self.effects.now)
    }

    /// Of an MCP client's call; none: it names no tool.
    pub(in crate::core) fn draft_params(
        &mut self,
        project: &ProjectId,
        principal: &Arc<str>,
        params: Option<Json<'_>>,
    ) -> Option<CallDraft> {
        let keeps_arguments = self.settings.record_arguments;
        self.projects.draft_params((project, principal), params, keeps_arguments, self.effects.now)
    }

    pub(in crate::core) fn record_call(
        &mut self,
        draft: CallDraft,
        server: Option<ServerId>,
        done: impl Into<CallDone>,
    ) {
        let done = done.into();
        let known = server.and_then(|server| self.servers.known.get(&server));
        let name = known.map(|server| server.definition.name.clone());
        if self.projects.record_call(draft, name, done, &mut self.effects) {
            self.flush_records();
        }
    }

    /// The pause is over: what has come together meanwhile goes out.
    pub(in crate::core) fn records_elapsed(&mut self) {
        self.projects.records_have_waited();
        self.flush_records();
    }

    /// The next batch, if the store can take it and none is out.
    pub(in crate::core) fn flush_records(&mut self) {
        if self.servers.is_storing()
            && let Some(batch) = self.projects.take_records()
        {
            self.servers.issue(Pending::Records, StoreOp::InsertCalls(batch), &mut self.effects);
        }
    }

    pub(in crate::core) fn records_stored(&mut self, outcome: &StoreOutcome) {
        if self.projects.records_stored(outcome, &mut self.effects) {
            self.flush_records();
        }
    }

    // --- what is to be made durable -----------------------------------------------------------------------------------

    /// Passes on what has happened in one room and concerns another.
    pub(in crate::core) fn settle(&mut self) {
        while let Some(event) = self.effects.events.pop_front() {
            match event {
                RoomEvent::WriteSoon => self.schedule_flush(),
                RoomEvent::WriteNow => self.flush(),
                RoomEvent::WaitMayBeOver(server) => self.tell_waiting(server),
                RoomEvent::Revoked(conn) => self.answer(conn, Answer::TokenRevoked),
                RoomEvent::CallRefused { server, caller, method } => {
                    self.servers.count(server, caller, (method, CallOutcome::Refused), 0);
                }
                RoomEvent::CallEnded { call_id, call, fault } => {
                    self.call_ended(call_id, &call, Answer::Refused(*fault));
                }
                RoomEvent::Used(server) => {
                    if self.servers.used(server, self.effects.now.unix_ms) {
                        self.schedule_flush();
                    }
                }
                RoomEvent::ToolCallDone { draft, peer, done } => {
                    let server = self.peers.known.get(&peer).map(|peer| peer.server);
                    self.record_call(*draft, server, *done);
                }
                RoomEvent::CallWaits(peer) => {
                    self.mcp.hurry_suspended(peer, &mut self.peers, &mut self.effects);
                    self.wake(peer);
                }
                RoomEvent::ListChanged { peer, list } => {
                    self.catalogue_changed(peer);
                    self.list_changed(peer, list);
                }
                RoomEvent::ListKnown { peer, list } => {
                    self.catalogue_changed(peer);
                    self.aggregate_changed(peer, list);
                }
                RoomEvent::ListEnded(server) => self.follow_project(server),
                RoomEvent::SecretEnded(token) => self.end_clients_of(&token),
            }
        }
    }

    /// The client waits until the store has it.
    pub(in crate::core) fn park_stored(&mut self, conn: ConnId, seq: StoreSeq) {
        self.park(conn, WaitOn::Stored(seq), self.effects.now.mono_ms + STORE_WAIT.as_millis() as u64);
    }

    pub(in crate::core) fn store(&mut self, conn: ConnId, pending: Pending, op: StoreOp) {
        let seq = self.servers.issue(pending, op, &mut self.effects);
        self.park_stored(conn, seq);
    }

    pub(in crate::core) fn decide(&mut self, decision: Decision) {
        self.servers.decide(decision, &mut self.effects);
        self.settle();
    }

    pub(in crate::core) fn token_revoke(&mut self, conn: ConnId, name: String) -> Result<(), Fault> {
        self.servers.token_revoke(conn, name, self.settings.admin_token_hash, &mut self.effects)?;
        self.clients.park(conn, WaitOn::Revoked);
        self.settle();
        Ok(())
    }

    // --- links of external servers ------------------------------------------------------------------------------------

    /// Some: the next event of this peer, because it cannot even be tried.
    pub(in crate::core) fn connect_external(&mut self, id: PeerId, instance: InstanceId) -> Option<Event> {
        let peer = self.peers.known.get_mut(&id).expect("advance holds it");
        let server = peer.server;
        peer.begin_instance();
        match self.offers().endpoint(id) {
            Ok(endpoint) => {
                self.hosting.connected(instance, id);
                let endpoint = Arc::new(endpoint);
                self.effects.outputs.push_back(Output::Connect { instance, server, endpoint });
                None
            }
            Err(fault) => Some(Event::Link(LinkEvent::Impossible(fault))),
        }
    }

    pub(in crate::core) fn link_failed(&mut self, id: PeerId, why: String, was_up: bool) {
        let Some(row) = self.offers().row_of(id) else { return };
        let peer = self.peers.known.get_mut(&id).expect("it has a row");
        let told = carriers::told_of_failure(peer, &row, why, was_up);
        self.servers.note(peer, told, &mut self.effects);
    }

    // --- the end --------------------------------------------------------------------------------------------------------

    pub(in crate::core) fn store_denied(&mut self, why: &str) {
        log::error!("this daemon ends: {why}");
        self.servers.outbox.lost();
        let step = self.phase.store_denied();
        self.take_step(step);
    }

    /// Moves the shutdown on as soon as its present phase has nothing left to wait for.
    pub(in crate::core) fn follow_shutdown(&mut self) {
        if self.phase.is_accepting() {
            return;
        }
        if self.phase == Phase::Draining && self.peers.known.values().all(|peer| peer.lane.in_flight().is_empty()) {
            let step = self.phase.elapsed();
            self.take_step(step);
        }
        if self.phase == Phase::Stopping && self.peers.known.values().all(|peer| peer.life.instance().is_none()) {
            let step = self.phase.stopped(&mut self.effects);
            self.take_step(step);
        }
        let is_written = self.servers.outbox.is_clean() && self.projects.records().is_empty();
        if self.phase == Phase::Flushing && (is_written || !self.servers.outbox.available()) {
            let step = self.phase.leave();
            self.take_step(step);
        }
    }

    pub(in crate::core) fn take_step(&mut self, step: Step) {
        match step {
            Step::Nothing => {}
            Step::ReviewQueues => self.peer_ids().into_iter().for_each(|id| self.review_queue(id)),
            Step::Tell(event) => self.peer_ids().into_iter().for_each(|id| self.advance(id, event.clone())),
            Step::Write => self.flush(),
            Step::Leave => {
                self.servers.leave_decisions(&mut self.effects);
                self.settle();
                self.effects.outputs.push_back(Output::Exit);
            }
        }
    }
}
