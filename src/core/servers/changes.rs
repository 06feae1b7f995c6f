//! What becomes of changes once the store has spoken: a change is done to the core only after it is durable, and a
//! client is told only after that. An outcome that is unknown is told as a failure and then made one (`Reconcile`). What
//! takes something away (stop, delete, revoke) is done at once instead, and made durable by `decisions`.

use crate::api::response::Answer;
use crate::core::Core;
use crate::core::clients::asks::{is_at_rest, needs_restart};
use crate::core::clients::news::give_watcher_back;
use crate::core::clients::parked::{Hand, WaitOn};
use crate::core::contract::Output;
use crate::core::effects::Timer;
use crate::core::hosting::lifecycle::{Event, State};
use crate::core::peers::peer::Role;
use crate::core::servers::checks::store_unavailable;
use crate::core::servers::decisions::Key;
use crate::core::servers::outbox::{ChangeKind, Pending};
use crate::core::servers::server::{Removal, Server};
use crate::ids::{ConnId, ServerId, StoreSeq};
use crate::limits::VOLUMES_RETRY;
use crate::model::definition::Definition;
use crate::model::fault::{Code, Fault};
use crate::model::records::{Decision, StoreOp, StoreOutcome};
use std::sync::Arc;

impl Core {
    pub(in crate::core) fn store_lost(&mut self, why: &str) {
        log::warn!("store lost: {why}; calls go on, changes are refused until it is back");
        self.servers.outbox.lost();
        self.servers.decisions_are_late(|_| true, &mut self.effects);
        self.settle();
    }

    pub(in crate::core) fn store_done(&mut self, seq: StoreSeq, outcome: StoreOutcome) {
        if let Some(pending) = self.servers.outbox.done(seq) {
            self.settle_change(pending, outcome);
        }
        // It answers, so whatever had to wait may go now: also what puts right an operation that was given up.
        if self.servers.outbox.has_unsent() {
            self.schedule_flush();
        }
    }

    fn settle_change(&mut self, pending: Pending, outcome: StoreOutcome) {
        if let Pending::Records = pending {
            return self.records_stored(&outcome);
        }
        match outcome {
            StoreOutcome::Committed => self.committed(pending),
            StoreOutcome::Taken(why) => {
                let message = "name: the database has a row of this name already, which this daemon does not know";
                self.store_refuses(pending, &why, Fault::new(Code::NameTaken, message).with("field", "name"));
            }
            StoreOutcome::Rejected(why) => {
                let fault = Fault::new(Code::StoreUnavailable, format!("the database refused it: {why}"));
                self.store_refuses(pending, &why, fault);
            }
            StoreOutcome::Unknown(why) => {
                log::debug!("a write has an unknown outcome: {why}");
                self.servers.outbox.disown(&pending);
                self.undone(pending, store_unavailable());
            }
        }
    }

    fn store_refuses(&mut self, pending: Pending, why: &str, fault: Fault) {
        log::error!("the store refused a write: {why}");
        self.servers.outbox.refuse(&pending);
        if self.servers.outbox.has_refused() {
            self.servers.store_refused(&mut self.effects);
            self.settle();
        }
        self.undone(pending, fault);
    }

    /// The database hangs: the client may not wait any longer.
    pub(in crate::core) fn store_timed_out(&mut self, conn: ConnId, seq: StoreSeq) {
        self.servers.outbox.stall();
        match self.servers.outbox.abandon(seq) {
            Some(pending) => self.undone(pending, store_unavailable()),
            None => self.refuse(conn, store_unavailable()),
        }
    }

    fn committed(&mut self, pending: Pending) {
        match pending {
            Pending::Register { server, definition, conn, wait } => self.registered(server, definition, conn, wait),
            Pending::Change { server, definition, up, conns, kind, warning } => {
                if let Some(server) = self.servers.known.get_mut(&server)
                    && server.definition.environment != definition.environment
                {
                    server.warning = warning;
                }
                self.changed(server, definition, up, &conns, kind);
            }
            Pending::TokenInsert { token, secret, conn, rotates, .. } => {
                match self.servers.token_stored(&token, rotates, &mut self.effects) {
                    true => self.answer(conn, Answer::TokenCreated { token, secret, rotated: rotates.is_some() }),
                    false => self.refuse(conn, Fault::new(Code::NotFound, "the token was revoked meanwhile")),
                }
            }
            Pending::Reconcile { server } if !self.servers.outbox.owes(server) => {
                self.servers.decision_stored(&Key::Server(server), &mut self.effects)
            }
            Pending::ReconcileToken { name } if !self.servers.outbox.owes_token(&name) => {
                self.servers.decision_stored(&Key::Token(name), &mut self.effects)
            }
            Pending::Project { conn, change } => self.project_changed(conn, change),
            Pending::Import { conn, imported } => self.import_stored(conn, *imported),
            Pending::KeyRotation { conn } => self.answer(conn, Answer::KeyRotated),
            Pending::Status { .. }
            | Pending::Catalogue { .. }
            | Pending::Reconcile { .. }
            | Pending::ReconcileToken { .. }
            | Pending::ReconcileRow { .. }
            | Pending::ReconcileSecret { .. }
            | Pending::OldRecords
            | Pending::AdminToken => {}
            Pending::Records => unreachable!("settled before"),
        }
    }

    /// Nothing came of it: everything is as it was before the client asked.
    fn undone(&mut self, pending: Pending, fault: Fault) {
        match pending {
            Pending::Register { definition, conn, .. } => {
                self.servers.names.remove(&definition.name);
                self.refuse(conn, fault);
            }
            Pending::Change { server, definition, conns, .. } => {
                if let Some(server) = self.servers.known.get_mut(&server) {
                    server.changing = false;
                    // One that had no name was to have this one.
                    if server.definition.name != definition.name {
                        self.servers.names.remove(&definition.name);
                    }
                }
                for conn in conns {
                    self.refuse(conn, fault.clone());
                }
                self.follow_removal(server);
            }
            Pending::TokenInsert { conn, .. } | Pending::KeyRotation { conn } => self.refuse(conn, fault),
            Pending::Project { conn, change } => {
                self.projects.project_undone(&change);
                self.refuse(conn, fault);
            }
            Pending::Import { conn, imported } => self.import_undone(conn, &imported, fault),
            Pending::Catalogue { server } => self.servers.catalogue_unstored(server),
            Pending::Status { .. }
            | Pending::Reconcile { .. }
            | Pending::ReconcileToken { .. }
            | Pending::ReconcileRow { .. }
            | Pending::ReconcileSecret { .. }
            | Pending::OldRecords => {}
            Pending::Records => unreachable!("settled before"),
            Pending::AdminToken => log::error!("the admin token could not be stored; it works until the next restart"),
        }
    }

    /// A server that the store has.
    fn known_from_now(&mut self, id: ServerId, definition: Arc<Definition>) {
        log::info!("server={} id={id} registered", definition.name);
        let main = self.peers.mint();
        let (server, peer) = Server::new(id, main, definition, true, self.effects.now.unix_ms);
        self.projects.place(id, None, server.definition.project.as_ref());
        self.servers.known.insert(id, server);
        self.peers.known.insert(main, peer);
        self.tell_presence(id, "registered");
    }

    /// As `registered`, where nobody waits for this one.
    pub(in crate::core) fn begin(&mut self, id: ServerId, definition: Arc<Definition>) {
        self.known_from_now(id, definition);
        if self.settings.hosting && self.is_running() {
            self.advance_main(id, Event::Start);
        }
    }

    fn registered(&mut self, id: ServerId, definition: Arc<Definition>, conn: ConnId, wait: bool) {
        self.known_from_now(id, definition);
        let waiting = self.clients.release(conn).is_some();
        if waiting && wait {
            let on = WaitOn::Ready { server: id, after: Hand::Registered };
            self.park(conn, on, self.effects.now.mono_ms + self.main_of(id).start_wait_ms());
        }
        if self.settings.hosting && self.is_running() {
            self.advance_main(id, Event::Start);
        } else {
            self.tell_waiting(id);
        }
        if waiting && !wait {
            let answer = self.ready_answer(id, Hand::Registered);
            self.effects.deadlines.cancel(Timer::Client(conn));
            self.effects.outputs.push_back(Output::Answer { conn, answer });
        }
    }

    fn changed(&mut self, id: ServerId, definition: Arc<Definition>, up: bool, conns: &[ConnId], kind: ChangeKind) {
        let before = &self.servers.known[&id].definition;
        let moved = (&before.project, &before.name) != (&definition.project, &definition.name);
        // Those who do not see it from here on hear that, too.
        if moved {
            self.offer_changed(id);
        }
        let server = self.servers.known.get_mut(&id).expect("one that changes is not forgotten");
        server.changing = false;
        if server.removing.is_some() {
            let fault = Fault::new(Code::NotFound, "the server was removed meanwhile");
            conns.iter().for_each(|conn| self.refuse(*conn, fault.clone()));
            return self.follow_removal(id);
        }
        if server.definition.name != definition.name {
            self.servers.names.remove(&server.definition.name);
        }
        // Whoever has changed it has been through all rules.
        let was_refused = server.refused.take().is_some();
        let main = self.peers.known.get_mut(&server.main).expect("a server that is known has one");
        if was_refused {
            main.last_error = None;
        }
        main.definition = Arc::clone(&definition);
        let restart = was_refused || needs_restart(&server.definition, &definition);
        let sharing_changed = server.definition.shared != definition.shared;
        let was_up = std::mem::replace(&mut server.desired_up, up);
        self.projects.place(id, server.definition.project.as_ref(), definition.project.as_ref());
        server.definition = definition;
        let main = server.main;
        self.peers.arm_pulse(main, &mut self.effects);
        self.arm_rest(main);
        if moved {
            self.peers.rename_lists(main, &self.settings.separator, &mut self.effects);
        }
        let waiting: Vec<ConnId> = conns.iter().copied().filter(|conn| self.clients.release(*conn).is_some()).collect();
        let hosting = self.settings.hosting && self.is_running();
        let event = match (up && hosting, kind) {
            (false, _) => Some(Event::Stop),
            (true, ChangeKind::Patch) if restart && !is_at_rest(self.peers.known[&main].life.state()) => {
                Some(Event::Restart)
            }
            // One that has ended, or waits for its next attempt, goes on with that.
            (true, ChangeKind::Patch) if was_up && !restart => None,
            (true, _) => Some(Event::Start),
        };
        if event.as_ref().is_some_and(|event| *event != Event::Start) {
            self.retire_further_peers(id);
        }
        if sharing_changed {
            self.forget_clients(id);
        }
        if kind == ChangeKind::Start || moved {
            self.offer_changed(id);
        }
        if let Some(event) = event {
            self.advance(main, event);
        }
        for conn in waiting {
            self.park_for(conn, id, up && hosting);
        }
    }

    /// It is down from here on, whatever the store says.
    pub(in crate::core) fn stop_now(&mut self, id: ServerId) {
        self.servers.known.get_mut(&id).expect("found").desired_up = false;
        self.servers.outbox.keep_down(id);
        self.retire_further_peers(id);
        self.offer_changed(id);
        self.advance_main(id, Event::Stop);
        self.decide(Decision::Stop { server: id });
    }

    /// It is gone for everybody from here on, whatever the store says; it leaves when it is down.
    pub(in crate::core) fn delete_now(&mut self, id: ServerId, volumes: bool) {
        let server = self.servers.known.get_mut(&id).expect("found");
        server.removing = Some(if volumes { Removal::TakesVolumes } else { Removal::KeepsVolumes });
        server.desired_up = false;
        let name = server.definition.name.clone();
        self.servers.outbox.keep_down(id);
        self.retire_further_peers(id);
        self.offer_changed(id);
        self.decide(Decision::Delete { server: id, name, volumes });
        // `Failed` has no instance but is no `Down` either; a stop makes it one.
        self.advance_main(id, Event::Stop);
    }

    /// Once it is down, with all its peers, it is told to be gone; before that its volumes go. Its name stays
    /// taken until nothing can bring it back: the next one of that name would have its own volumes removed.
    pub(in crate::core) fn follow_removal(&mut self, id: ServerId) {
        let Some(removing) = self.servers.known.get(&id).and_then(|server| server.removing) else { return };
        let further = self.peers.known.values().any(|peer| peer.server == id && peer.role != Role::Main);
        if further || *self.main_of(id).life.state() != State::Down {
            return;
        }
        let server = self.servers.known.get_mut(&id).expect("just seen");
        match removing {
            Removal::KeepsVolumes => self.gone(id),
            Removal::TakesVolumes => {
                server.removing = Some(Removal::VolumesLeave);
                let name = server.definition.name.clone();
                self.effects.outputs.push_back(Output::RemoveVolumes { server: id, name });
            }
            Removal::VolumesLeave => {}
            Removal::Gone => self.forget(id),
        }
    }

    pub(in crate::core) fn volumes_removed(&mut self, id: ServerId, outcome: Result<(), String>) {
        let Some(server) = self.servers.known.get(&id) else { return };
        let Err(why) = outcome else { return self.gone(id) };
        let name = server.definition.name.clone();
        log::error!("server={name} its volumes are not removed: {why}; tried again in {VOLUMES_RETRY:?}");
        let message = format!(
            "the server is removed, but not all of its volumes: {why}; it is tried again, see `stdiod volume ls`"
        );
        self.tell_removal(id, || Answer::Refused(Fault::new(Code::Unavailable, message.clone())));
        self.effects.deadlines.set(Timer::Volumes(id), self.effects.now.mono_ms + VOLUMES_RETRY.as_millis() as u64);
    }

    pub(in crate::core) fn volumes_again(&mut self, id: ServerId) {
        if let Some(server) = self.servers.known.get(&id) {
            self.effects.outputs.push_back(Output::RemoveVolumes { server: id, name: server.definition.name.clone() });
        }
    }

    /// Its container is gone, and so are its volumes if they were to go.
    fn gone(&mut self, id: ServerId) {
        let server = self.servers.known.get_mut(&id).expect("it is being removed");
        let took_volumes = server.removing.replace(Removal::Gone) == Some(Removal::VolumesLeave);
        let (name, followers) = (server.definition.name.clone(), std::mem::take(&mut server.followers));
        log::info!("server={name} id={id} removed");
        self.fail_rounds(self.servers.known[&id].main);
        self.forget_clients(id);
        self.tell_presence(id, "removed");
        self.effects.outputs.push_back(Output::LogRemove { server: id });
        for follower in followers {
            give_watcher_back(&mut self.effects.shares, &follower.owner);
            self.close_conn(follower.conn);
        }
        if took_volumes {
            // The store need not remember them any longer.
            self.servers.outbox.reconcile(id);
            self.schedule_flush();
        }
        self.forget(id);
    }

    /// The last of a removed server, if nothing can bring it back; and whoever waits for its end has waited long enough.
    fn forget(&mut self, id: ServerId) {
        let key = Key::Server(id);
        let server = &self.servers.known[&id];
        if !server.changing && !self.servers.decisions.is_open(&key) {
            let main = server.main;
            self.projects.place(id, server.definition.project.as_ref(), None);
            if self.servers.names.get(&server.definition.name) == Some(&id) {
                self.servers.names.remove(&server.definition.name);
            }
            self.servers.known.remove(&id);
            self.forget_peer(main);
            self.servers.outbox.forget(id);
        }
        if self.servers.decisions.is_settled(&key) {
            self.tell_removal(id, || Answer::Deleted);
        }
    }

    /// To whoever has removed it; whoever waits for something else of it waits for nothing.
    fn tell_removal(&mut self, id: ServerId, answer: impl Fn() -> Answer) {
        for (conn, on) in self.clients.on_server(id) {
            match on {
                WaitOn::Gone(_) => self.answer(conn, answer()),
                WaitOn::Advertised(_) => self.answer_greeting(conn, id),
                WaitOn::Reply(_)
                | WaitOn::Stored(_)
                | WaitOn::Revoked
                | WaitOn::Ready { .. }
                | WaitOn::Down(_)
                | WaitOn::Log(_)
                | WaitOn::News
                | WaitOn::Post(_)
                | WaitOn::GetStream(_)
                | WaitOn::Project => self.answer(conn, self.status_answer(id)),
            }
        }
    }

    // --- write-behind -------------------------------------------------------------------------------------------------

    /// Hands out everything that waits to be written, if the store can take it.
    pub(in crate::core) fn flush(&mut self) {
        if !self.servers.outbox.available() || !self.servers.loaded {
            return;
        }
        let (servers, tokens) = self.servers.outbox.take_reconcile();
        for id in servers {
            // A change on its way decides what the row must be: not before its outcome is known.
            if self.servers.known.get(&id).is_some_and(|server| server.changing) {
                self.servers.outbox.reconcile(id);
                continue;
            }
            let op = match self.servers.known.get(&id) {
                Some(server) => match server.removing {
                    // What is wrong with its row is left as it is, until somebody puts it right or removes it.
                    None if server.refused.is_some() => StoreOp::SetDesired { id, up: server.desired_up },
                    None => StoreOp::InsertServer(Box::new(server.to_stored(&self.peers.known[&server.main]))),
                    Some(Removal::TakesVolumes | Removal::VolumesLeave) => {
                        StoreOp::DeleteServer { id, volumes: Some(server.definition.name.clone()) }
                    }
                    Some(Removal::KeepsVolumes | Removal::Gone) => StoreOp::DeleteServer { id, volumes: None },
                },
                None => StoreOp::DeleteServer { id, volumes: None },
            };
            let seq = self.servers.outbox.issue(Pending::Reconcile { server: id });
            self.effects.outputs.push_back(Output::Store { seq, op: Box::new(op) });
        }
        for name in tokens {
            // As above.
            if self.servers.outbox.is_inserting_token(&name) {
                self.servers.outbox.reconcile_token(name);
                continue;
            }
            let op = match self.servers.tokens.current(&name) {
                Some(token) => StoreOp::InsertToken { id: self.effects.entropy.uuid(), token },
                None => StoreOp::DeleteToken { name: name.clone() },
            };
            let seq = self.servers.outbox.issue(Pending::ReconcileToken { name });
            self.effects.outputs.push_back(Output::Store { seq, op: Box::new(op) });
        }
        self.flush_projects();
        self.flush_records();
        self.flush_catalogues();
        for id in self.servers.outbox.take_dirty() {
            let kept = |server: &&Server| server.refused.is_none() && server.removing.is_none();
            let Some(server) = self.servers.known.get(&id).filter(kept) else { continue };
            let op =
                StoreOp::SaveStatus { id, status: Box::new(server.stored_status(&self.peers.known[&server.main])) };
            let seq = self.servers.outbox.issue(Pending::Status { server: id });
            self.effects.outputs.push_back(Output::Store { seq, op: Box::new(op) });
        }
    }
}
