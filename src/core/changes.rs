//! What becomes of changes once the store has spoken: a change is done to the core only after it is durable, and a
//! client is told only after that. An outcome that is unknown is told as a failure and then made one (`Reconcile`).

use crate::api::fault::{Code, Fault};
use crate::core::Core;
use crate::core::asks::{is_at_rest, needs_restart, store_unavailable};
use crate::core::contract::{Answer, Output, StoreOp, StoreOutcome};
use crate::core::definition::Definition;
use crate::core::lifecycle::{Event, State};
use crate::core::outbox::{ChangeKind, Pending};
use crate::core::parked::{Hand, WaitOn};
use crate::core::server::{Removal, Server};
use crate::ids::{ConnId, ServerId, StoreSeq};
use crate::limits::{SHUTDOWN_GRACE, STOP_GRACE};
use std::sync::Arc;

impl Core {
    pub(super) fn store_done(&mut self, seq: StoreSeq, outcome: StoreOutcome) {
        if let Some(pending) = self.outbox.done(seq) {
            self.settle_change(pending, outcome);
        }
        // It answers, so whatever had to wait may go now: also what puts right an operation that was given up.
        if self.outbox.has_unsent() {
            self.schedule_flush();
        }
    }

    fn settle_change(&mut self, pending: Pending, outcome: StoreOutcome) {
        match outcome {
            StoreOutcome::Committed => self.committed(pending),
            StoreOutcome::Rejected(why) => {
                log::error!("the store refused a write: {why}");
                self.undone(pending, Fault::new(Code::StoreUnavailable, format!("the database refused it: {why}")));
            }
            StoreOutcome::Unknown(why) => {
                log::debug!("a write has an unknown outcome: {why}");
                self.outbox.disown(&pending);
                self.undone(pending, store_unavailable());
            }
        }
    }

    /// The database hangs: the client may not wait any longer.
    pub(super) fn store_timed_out(&mut self, conn: ConnId, seq: StoreSeq) {
        self.outbox.stall();
        match self.outbox.abandon(seq) {
            Some(pending) => self.undone(pending, store_unavailable()),
            None => self.refuse(conn, store_unavailable()),
        }
    }

    fn committed(&mut self, pending: Pending) {
        match pending {
            Pending::Register { server, definition, conn, wait } => self.registered(server, definition, conn, wait),
            Pending::Change { server, definition, up, conns, kind } => {
                self.changed(server, definition, up, &conns, kind)
            }
            Pending::Delete { server, conns, volumes } => self.deleted(server, &conns, volumes),
            Pending::TokenInsert { token, secret, conn, .. } => {
                self.tokens.insert(token.clone());
                self.answer(conn, Answer::TokenCreated { token, secret });
            }
            Pending::TokenDelete { name, conn } => {
                self.tokens.remove(&name);
                self.end_clients_of(&name);
                self.answer(conn, Answer::TokenRevoked);
            }
            Pending::Status { .. }
            | Pending::Reconcile { .. }
            | Pending::ReconcileToken { .. }
            | Pending::AdminToken => {}
        }
    }

    /// Nothing came of it: everything is as it was before the client asked.
    fn undone(&mut self, pending: Pending, fault: Fault) {
        match pending {
            Pending::Register { definition, conn, .. } => {
                self.names.remove(&definition.name);
                self.refuse(conn, fault);
            }
            Pending::Change { server, conns, .. } | Pending::Delete { server, conns, .. } => {
                if let Some(server) = self.servers.get_mut(&server) {
                    server.changing = false;
                }
                for conn in conns {
                    self.refuse(conn, fault.clone());
                }
            }
            Pending::TokenInsert { conn, .. } | Pending::TokenDelete { conn, .. } => self.refuse(conn, fault),
            Pending::Status { .. } | Pending::Reconcile { .. } | Pending::ReconcileToken { .. } => {}
            Pending::AdminToken => log::error!("the admin token could not be stored; it works until the next restart"),
        }
    }

    fn registered(&mut self, id: ServerId, definition: Arc<Definition>, conn: ConnId, wait: bool) {
        let startup_ms = definition.startup_timeout_ms;
        log::info!("server={} id={id} registered", definition.name);
        let server = Server::new(id, definition, true, self.now.unix_ms);
        self.tell_presence(&server, "registered");
        self.servers.insert(id, server);
        let waiting = self.parked.release(conn).is_some();
        if waiting && wait {
            let on = WaitOn::Ready { server: id, after: Hand::Registered };
            // The start's own deadline comes first, and says more than that this one has passed.
            self.park(conn, on, self.now.mono_ms + startup_ms + STOP_GRACE.as_millis() as u64);
        }
        if self.settings.hosting && self.is_running() {
            self.advance(id, Event::Start);
        } else {
            self.tell_waiting(id);
        }
        if waiting && !wait {
            let answer = self.ready_answer(id, Hand::Registered);
            self.deadlines.cancel(super::Timer::Client(conn));
            self.outputs.push_back(Output::Answer { conn, answer });
        }
    }

    fn changed(&mut self, id: ServerId, definition: Arc<Definition>, up: bool, conns: &[ConnId], kind: ChangeKind) {
        let server = self.servers.get_mut(&id).expect("a server that changes is not removed");
        let restart = needs_restart(&server.definition, &definition);
        let sharing_changed = server.definition.shared != definition.shared;
        let was_up = std::mem::replace(&mut server.desired_up, up);
        server.definition = definition;
        server.changing = false;
        self.arm_pulse(id);
        let waiting: Vec<ConnId> = conns.iter().copied().filter(|conn| self.parked.release(*conn).is_some()).collect();
        let hosting = self.settings.hosting && self.is_running();
        let event = match (up && hosting, kind) {
            (false, _) => Some(Event::Stop),
            (true, ChangeKind::Patch) if restart && !is_at_rest(self.servers[&id].life.state()) => Some(Event::Restart),
            // One that has ended, or waits for its next attempt, goes on with that.
            (true, ChangeKind::Patch) if was_up && !restart => None,
            (true, _) => Some(Event::Start),
        };
        if event.as_ref().is_some_and(|event| *event != Event::Start) {
            self.retire_kin(id);
        }
        if sharing_changed {
            self.forget_clients(id);
        }
        if matches!(kind, ChangeKind::Start | ChangeKind::Stop) {
            self.offer_changed(id);
        }
        if let Some(event) = event {
            self.advance(id, event);
        }
        for conn in waiting {
            self.park_for(conn, id, up && hosting);
        }
    }

    fn deleted(&mut self, id: ServerId, conns: &[ConnId], volumes: bool) {
        let server = self.servers.get_mut(&id).expect("a server that changes is not removed");
        server.removing = Some(if volumes { Removal::TakesVolumes } else { Removal::KeepsVolumes });
        server.desired_up = false;
        for conn in conns {
            if self.parked.release(*conn).is_some() {
                let grace_ms = (STOP_GRACE + SHUTDOWN_GRACE).as_millis() as u64;
                self.park(*conn, WaitOn::Gone(id), self.now.mono_ms + grace_ms);
            }
        }
        self.retire_kin(id);
        self.offer_changed(id);
        // `Failed` has no instance but is no `Down` either; a stop makes it one.
        self.advance(id, Event::Stop);
    }

    /// Its record is gone. Once it is down, with all its further instances, it is forgotten; before that its volumes go, and
    /// its name stays taken until then: the next one of that name would have its own removed with them.
    pub(super) fn follow_removal(&mut self, id: ServerId) {
        let has_kin = || self.servers.values().any(|server| server.parent() == Some(id));
        let is_down = |server: &&Server| *server.life.state() == State::Down;
        let Some(removing) = self.servers.get(&id).filter(is_down).and_then(|server| server.removing) else { return };
        if has_kin() {
            return;
        }
        let server = self.servers.get_mut(&id).expect("just seen");
        match removing {
            Removal::KeepsVolumes => self.forget(id, None),
            Removal::TakesVolumes => {
                server.removing = Some(Removal::VolumesLeave);
                let name = server.definition.name.clone();
                self.outputs.push_back(Output::RemoveVolumes { server: id, name });
            }
            Removal::VolumesLeave => {}
        }
    }

    pub(super) fn volumes_removed(&mut self, id: ServerId, outcome: Result<(), String>) {
        let fault = outcome.err().map(|why| {
            let message = format!("the server is removed, but not all of its volumes: {why}; see `stdiod volume ls`");
            Fault::new(Code::Unavailable, message)
        });
        self.forget(id, fault);
    }

    /// The last of a removed server: its record is gone and so is its container. `fault`: what could not be removed.
    fn forget(&mut self, id: ServerId, fault: Option<Fault>) {
        let Some(server) = self.servers.remove(&id) else { return };
        self.deadlines.cancel(super::Timer::State(id));
        self.fail_rounds(id);
        if let Some(parent) = server.parent() {
            return self.follow_removal(parent);
        }
        let name = server.definition.name.clone();
        log::info!("server={name} id={id} removed");
        self.names.remove(&name);
        self.forget_clients(id);
        self.outbox.forget(id);
        self.tell_presence(&server, "removed");
        self.outputs.push_back(Output::LogRemove { server: id });
        for (conn, _) in self.parked.on_server(id) {
            self.answer(conn, fault.clone().map_or(Answer::Deleted, Answer::Refused));
        }
        for follower in server.followers {
            self.close_conn(follower.conn);
        }
    }

    // --- write-behind -------------------------------------------------------------------------------------------------

    /// Hands out everything that waits to be written, if the store can take it.
    pub(super) fn flush(&mut self) {
        if !self.outbox.available() || !self.loaded {
            return;
        }
        let (servers, tokens) = self.outbox.take_reconcile();
        for id in servers {
            // A change on its way decides what the row must be: not before its outcome is known.
            if self.servers.get(&id).is_some_and(|server| server.changing) {
                self.outbox.reconcile(id);
                continue;
            }
            let op = match self.servers.get(&id) {
                Some(server) if server.removing.is_none() => StoreOp::InsertServer(Box::new(server.to_stored())),
                Some(_) | None => StoreOp::DeleteServer { id },
            };
            let seq = self.outbox.issue(Pending::Reconcile { server: id });
            self.outputs.push_back(Output::Store { seq, op });
        }
        for name in tokens {
            let op = match self.tokens.get(&name).cloned() {
                Some(token) => StoreOp::InsertToken { id: self.entropy.uuid(), token },
                None => StoreOp::DeleteToken { name: name.clone() },
            };
            let seq = self.outbox.issue(Pending::ReconcileToken { name });
            self.outputs.push_back(Output::Store { seq, op });
        }
        for id in self.outbox.take_dirty() {
            let Some(server) = self.servers.get(&id) else { continue };
            let op = StoreOp::SaveStatus { id, status: Box::new(server.stored_status()) };
            let seq = self.outbox.issue(Pending::Status { server: id });
            self.outputs.push_back(Output::Store { seq, op });
        }
    }
}
