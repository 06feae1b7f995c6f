//! What clients ask of the core, one function per `Ask`. Questions are answered at once; changes go to the store
//! first (`servers/changes.rs`), calls to the peer that has them (`route/calls.rs`). Never parks a client twice.

use crate::api::definition::{fields, patch};
use crate::api::request::{Ask, Change, ProjectAsk, ServerRef};
use crate::api::response::{Answer, StreamEvent};
use crate::core::Core;
use crate::core::clients::news::take_watcher;
use crate::core::clients::parked::{Hand, WaitOn};
use crate::core::contract::Output;
use crate::core::effects::Timer;
use crate::core::hosting::idle::is_quiet;
use crate::core::hosting::lifecycle::{Event, State};
use crate::core::peers::listings::Listing;
use crate::core::servers::outbox::{ChangeKind, Pending};
use crate::core::servers::server::{Follower, Removal, Server};
use crate::core::shutdown::Phase;
use crate::ids::{ConnId, InstanceId, ServerId};
use crate::limits::{FOLLOWERS_MAX, KEEP_ALIVE, SERVERS_MAX, SHUTDOWN_GRACE, STOP_GRACE, STORE_WAIT};
use crate::model::definition::Definition;
use crate::model::fault::{Code, Fault, Outcome};
use crate::model::log::LogEntry;
use crate::model::principal::Principal;
use crate::model::records::{StoreOp, StoredServer};
use std::borrow::Cow;
use std::sync::Arc;

/// Who the other one is stands in the log: whoever asks here may be nobody.
const STANDS_BY: &str = "another daemon works on the database; this one waits for it to end";

impl Core {
    pub(in crate::core) fn asked(&mut self, conn: ConnId, who: &Principal, ask: Ask<'_>) {
        self.servers.token_used(who, &mut self.effects);
        if let (Ask::Mcp { .. }, Phase::Running) = (&ask, self.phase) {
            let Ask::Mcp { server, ask } = ask else { unreachable!("just matched") };
            return self.mcp(conn, who, server.as_ref(), ask);
        }
        if let Ask::Ready = ask {
            let answer = self.readiness();
            self.effects.outputs.push_back(Output::Answer { conn, answer });
            return;
        }
        let is_call = matches!(ask, Ask::Call { .. } | Ask::Project { ask: ProjectAsk::CallTool(_), .. });
        let done = match self.phase {
            Phase::Running => self.dispatch(conn, who, ask),
            Phase::Booting { .. } => {
                let message = if self.servers.stands_by { STANDS_BY } else { "the daemon is still starting" };
                Err(Fault::new(Code::StoreUnavailable, message).retry_after_ms(1_000))
            }
            Phase::Draining | Phase::Stopping | Phase::Flushing | Phase::Over => {
                Err(Fault::new(Code::Unavailable, "the daemon is shutting down").retry_after_ms(5_000))
            }
        };
        match done {
            Ok(Some(answer)) => self.effects.outputs.push_back(Output::Answer { conn, answer }),
            // Parked; the answer comes later.
            Ok(None) => {}
            Err(fault) => {
                // Whatever refuses a call here does so before anything is sent.
                let fault = if is_call { fault.outcome(Outcome::NotSent) } else { fault };
                self.effects.outputs.push_back(Output::Answer { conn, answer: Answer::Refused(fault) });
            }
        }
    }

    /// An answer now, none yet (the client is parked), or a refusal.
    fn dispatch(&mut self, conn: ConnId, who: &Principal, ask: Ask<'_>) -> Result<Option<Answer>, Fault> {
        match ask {
            Ask::Call { server, method, params, timeout_ms } => {
                let id = self.servers.find(&server, who)?;
                let main = self.servers.known[&id].main;
                let quiet = Some(method.get().trim_matches('"')).filter(|method| is_quiet(method));
                if let Some(answer) = quiet.and_then(|method| self.answer_at_rest(main, method, params)) {
                    return Ok(Some(answer));
                }
                self.call(conn, who, main, method, params, timeout_ms).map(|()| None)
            }
            Ask::Register { definition, wait } => self.register(conn, who, *definition, wait).map(|()| None),
            Ask::List { status, name } => Ok(Some(self.list(who, status.as_deref(), name.as_deref()))),
            Ask::Get { server } => {
                let id = self.servers.find(&server, who)?;
                Ok(Some(self.status_answer(id)))
            }
            Ask::Definition { server } => {
                let id = self.servers.find(&server, who)?;
                Ok(Some(Answer::Definition(Arc::clone(&self.servers.known[&id].definition))))
            }
            Ask::Patch { server, change } => {
                self.patch(conn, who, self.servers.find(&server, who)?, &change).map(|()| None)
            }
            Ask::Restart { server } => self.restart(conn, self.servers.find(&server, who)?).map(|()| None),
            Ask::Stop { server } => {
                self.stop(conn, self.servers.find(&server, who)?);
                Ok(None)
            }
            Ask::Start { server } => self.start(conn, self.servers.find(&server, who)?).map(|()| None),
            Ask::Delete { server, volumes } => self.delete(conn, who, &server, volumes).map(|()| None),
            Ask::Logs { server, tail, since_unix_ms, follow, format } => {
                let id = self.servers.find(&server, who)?;
                let entries = self.servers.known[&id].log.tail(tail, since_unix_ms.unwrap_or(0));
                match follow {
                    false => Ok(Some(Answer::Logs { entries, format })),
                    true => self.follow_log(conn, who, id, entries).map(Some),
                }
            }
            Ask::News => self.watch_news(conn, who),
            Ask::Metrics => Ok(Some(self.metered().metrics(who))),
            Ask::Samples { server } => {
                let id = self.servers.find(&server, who)?;
                Ok(Some(Answer::Samples(self.servers.known[&id].samples.iter().copied().collect())))
            }
            Ask::Tools { server } => {
                let id = self.servers.find(&server, who)?;
                Ok(Some(Answer::Tools(self.main_of(id).list(Listing::Tools).text.clone())))
            }
            Ask::Mcp { .. } => unreachable!("taken before"),
            Ask::Ready => unreachable!("answered before any phase is looked at"),
            Ask::TokenCreate { wanted } => {
                let seq = self.servers.token_create(conn, wanted, &mut self.effects)?;
                self.park_stored(conn, seq);
                Ok(None)
            }
            Ask::TokenRotate { name, grace_ms } => {
                let admin = self.settings.admin_token_hash;
                let seq = self.servers.token_rotate(conn, who, &name, grace_ms, admin, &mut self.effects)?;
                self.park_stored(conn, seq);
                Ok(None)
            }
            Ask::TokenList => Ok(Some(Answer::Tokens(self.servers.tokens.list().collect()))),
            Ask::TokenRevoke { name } => self.token_revoke(conn, name).map(|()| None),
            Ask::KeyRotate => self.key_rotate(conn).map(|()| None),
            Ask::Projects => Ok(Some(self.all_externals(who))),
            Ask::Project { project, ask } => self.project_asked(conn, who, &project, ask),
            Ask::Import { dry_run, project, candidates } => {
                self.import(conn, who, project.as_ref(), candidates, dry_run)
            }
        }
    }

    fn list(&self, who: &Principal, status: Option<&str>, name: Option<&str>) -> Answer {
        let mut found: Vec<&Server> = self
            .servers
            .registered()
            .filter(|server| server.removing.is_none() && who.may_see(&server.definition))
            .filter(|server| status.is_none_or(|wanted| self.peers.known[&server.main].status().wire() == wanted))
            .filter(|server| name.is_none_or(|wanted| server.definition.name == wanted))
            .collect();
        found.sort_by(|a, b| a.definition.name.cmp(&b.definition.name));
        let view = |server: &Server| server.view(&self.peers.known[&server.main], &self.settings, self.effects.now);
        Answer::List(found.into_iter().map(view).collect())
    }

    /// Its id, the instance that answers for it now, and how long that may take.
    pub fn http_instance(&self, server: &str, who: &Principal) -> Result<(ServerId, InstanceId, u64), Fault> {
        let id = self.servers.server_id(server).ok_or_else(|| Fault::new(Code::NotFound, "there is no such server"))?;
        let id = self.servers.find(&ServerRef::Id(id), who)?;
        let main = self.main_of(id);
        main.admits(self.effects.now.mono_ms, self.effects.now)?;
        let instance = main.life.ready_instance().ok_or_else(|| {
            let message = format!("{} is starting", main.definition.name);
            Fault::new(Code::RestartInProgress, message).outcome(Outcome::NotSent).retry_after_ms(1_000)
        })?;
        Ok((id, instance, main.definition.request_timeout_ms))
    }

    fn readiness(&self) -> Answer {
        let mut reasons = Vec::new();
        if self.servers.stands_by {
            reasons.push(STANDS_BY.to_string());
        } else if !self.servers.loaded {
            reasons.push("the store has not been read yet".to_string());
        } else if !self.servers.outbox.available() {
            reasons.push("the store is away; calls go on, changes are refused".to_string());
        }
        if self.phase == (Phase::Booting { swept: false }) {
            reasons.push("leftovers of an earlier run are being removed, and providers tried".to_string());
        }
        if !self.is_accepting() {
            reasons.push("the daemon is shutting down".to_string());
        }
        let usable = self.settings.providers.iter().map(|name| (name.clone(), None));
        let unusable = self.settings.unusable.iter().map(|(name, why)| (name.clone(), Some(why.clone())));
        let mut providers: Vec<(String, Option<String>)> = unusable.collect();
        providers.extend(usable.filter(|(name, _)| !self.settings.unusable.iter().any(|(other, _)| other == name)));
        providers.sort();
        Answer::Ready { ready: reasons.is_empty(), reasons, providers }
    }

    fn follow_log(
        &mut self,
        conn: ConnId,
        who: &Principal,
        id: ServerId,
        entries: Vec<LogEntry>,
    ) -> Result<Answer, Fault> {
        if self.servers.known[&id].followers.len() >= FOLLOWERS_MAX {
            let message = format!("{FOLLOWERS_MAX} clients follow this log already");
            return Err(Fault::new(Code::Unavailable, message).retry_after_ms(10_000));
        }
        take_watcher(&mut self.effects.shares, &who.name)?;
        self.servers.follow(id, Follower { conn, owner: Arc::clone(&who.name) });
        self.clients.park(conn, WaitOn::Log(id));
        self.effects.deadlines.set(Timer::Stream(conn), self.effects.now.mono_ms + KEEP_ALIVE.as_millis() as u64);
        Ok(Answer::Stream { session: None, events: entries.into_iter().map(StreamEvent::Log).collect() })
    }

    // --- changes ----------------------------------------------------------------------------------------------------

    fn register(&mut self, conn: ConnId, who: &Principal, definition: Definition, wait: bool) -> Result<(), Fault> {
        self.settings.check_ceilings(who, None, &definition)?;
        self.settings.check_place(&definition)?;
        self.servers.check_ports(&definition, who, None)?;
        if self.servers.names.contains_key(&definition.name) {
            let message = format!("name: a server named {} is registered already", definition.name);
            return Err(Fault::new(Code::NameTaken, message).with("field", "name"));
        }
        self.projects.check_external_name(&definition)?;
        if self.servers.names.len() >= SERVERS_MAX {
            let message = format!("this daemon hosts at most {SERVERS_MAX} servers");
            return Err(Fault::new(Code::Unavailable, message));
        }
        self.servers.check_store()?;
        let server = ServerId(self.effects.entropy.uuid());
        self.servers.names.insert(definition.name.clone(), server);
        let definition = Arc::new(definition);
        let row = StoredServer::new(server, (*definition).clone(), self.effects.now.unix_ms);
        self.store(conn, Pending::Register { server, definition, conn, wait }, StoreOp::InsertServer(Box::new(row)));
        Ok(())
    }

    /// The definition that a server is to have, if the ask brings one with an image or a network that it has not had: for
    /// whoever can see what this host has of them. Not one that is refused anyway as too much: whoever may not have a network
    /// is not told whether it is there.
    pub fn proposed<'a>(&self, who: &Principal, ask: &'a Ask<'_>) -> Option<Cow<'a, Definition>> {
        match ask {
            Ask::Register { definition, .. } => {
                Some(Cow::Borrowed(definition.as_ref())).filter(|new| self.settings.check_ceilings(who, None, new).is_ok())
            }
            Ask::Patch { server, change } => {
                let old = &self.servers.known[&self.servers.find(server, who).ok()?].definition;
                let (new, _) = fields::merge(old, &change.fields).ok()?;
                let has_had = |new: &Definition| {
                    (&new.source, new.pull_policy, &new.network) == (&old.source, old.pull_policy, &old.network)
                };
                let is_admitted = |new: &Definition| self.settings.check_ceilings(who, Some(old), new).is_ok();
                Some(Cow::Owned(new)).filter(|new| !has_had(new) && is_admitted(new))
            }
            Ask::List { .. }
            | Ask::Get { .. }
            | Ask::Definition { .. }
            | Ask::Call { .. }
            | Ask::Restart { .. }
            | Ask::Stop { .. }
            | Ask::Start { .. }
            | Ask::Delete { .. }
            | Ask::Logs { .. }
            | Ask::News
            | Ask::Metrics
            | Ask::Samples { .. }
            | Ask::Tools { .. }
            | Ask::Mcp { .. }
            | Ask::Ready
            | Ask::TokenCreate { .. }
            | Ask::TokenList
            | Ask::TokenRotate { .. }
            | Ask::TokenRevoke { .. }
            | Ask::KeyRotate
            // Whoever has read the document has looked.
            | Ask::Import { .. }
            | Ask::Projects
            | Ask::Project { .. } => None,
        }
    }

    fn patch(&mut self, conn: ConnId, who: &Principal, id: ServerId, change: &Change) -> Result<(), Fault> {
        let server = self.servers.changeable(id)?;
        let old = self.servers.named_for_patch(who, server, change)?;
        let (mut definition, enabled) = fields::merge(&old, &change.fields)?;
        if let Some(why) = server.sealed_environment() {
            patch::sends_the_environment(&definition, &change.fields, why)?;
        }
        let up = enabled.unwrap_or(server.desired_up);
        if definition.project != old.project {
            who.may_place_in(definition.project.as_ref())?;
        }
        if (&definition.project, &definition.name) != (&old.project, &old.name) {
            self.projects.check_external_name(&definition)?;
        }
        self.settings.check_ceilings(who, Some(&old), &definition)?;
        self.settings.check_place(&definition)?;
        self.servers.check_ports(&definition, who, Some(id))?;
        let dropped = who.is_limited() && patch::drop_environment(&old, &mut definition, &change.fields);
        let name = definition.name.clone();
        let warning = dropped.then_some(ENVIRONMENT_DROPPED);
        self.change(conn, id, Arc::new(definition), up, ChangeKind::Patch, warning)?;
        self.servers.names.insert(name, id);
        Ok(())
    }

    /// What is already so needs no store.
    fn start(&mut self, conn: ConnId, id: ServerId) -> Result<(), Fault> {
        self.settings.check_hosting()?;
        if let Some(seq) = self.servers.outbox.join_start(id, conn) {
            self.park(conn, WaitOn::Stored(seq), self.effects.now.mono_ms + STORE_WAIT.as_millis() as u64);
            return Ok(());
        }
        self.servers.changeable(id)?;
        self.rows().reconsider(id)?;
        let server = &self.servers.known[&id];
        if server.desired_up {
            self.advance_main(id, Event::Start);
            self.park_for(conn, id, true);
            return Ok(());
        }
        let definition = Arc::clone(&server.definition);
        self.change(conn, id, definition, true, ChangeKind::Start, None)
    }

    /// Done at once, whether it can be stored now or not.
    fn stop(&mut self, conn: ConnId, id: ServerId) {
        // Also if a change that was told to have failed may have brought its row up.
        let server = &self.servers.known[&id];
        match server.desired_up || server.changing || self.servers.outbox.owes(id) {
            true => self.stop_now(id),
            false => {
                self.retire_further_peers(id);
                self.advance_main(id, Event::Stop);
            }
        }
        self.park_for(conn, id, false);
    }

    fn change(
        &mut self,
        conn: ConnId,
        id: ServerId,
        definition: Arc<Definition>,
        up: bool,
        kind: ChangeKind,
        warning: Option<&'static str>,
    ) -> Result<(), Fault> {
        self.servers.check_store()?;
        self.servers.known.get_mut(&id).expect("found").changing = true;
        let op = StoreOp::UpdateServer { id, definition: Arc::clone(&definition), desired_up: up };
        self.store(
            conn,
            Pending::Change {
                server: id,
                definition,
                up,
                conns: vec![conn],
                kind,
                warning: warning.map(str::to_string),
            },
            op,
        );
        Ok(())
    }

    fn restart(&mut self, conn: ConnId, id: ServerId) -> Result<(), Fault> {
        self.settings.check_hosting()?;
        self.servers.changeable(id)?;
        self.rows().reconsider(id)?;
        let server = &self.servers.known[&id];
        if !server.desired_up {
            let message = format!("{} is stopped; start it instead", server.definition.name);
            return Err(Fault::new(Code::ServerStopped, message));
        }
        self.main_of_mut(id).restart_due = true;
        self.retire_further_peers(id);
        self.advance_main(id, Event::Restart);
        self.park_for_ready(conn, id, Hand::Restarted);
        Ok(())
    }

    /// Done at once, whether it can be stored now or not; answered when nothing of it runs.
    fn delete(&mut self, conn: ConnId, who: &Principal, server: &ServerRef, volumes: bool) -> Result<(), Fault> {
        let on_its_way = self.servers.is_being_removed(server, who);
        let id = on_its_way.map_or_else(|| self.servers.find(server, who), Ok)?;
        let grace_ms = (STOP_GRACE + SHUTDOWN_GRACE).as_millis() as u64;
        self.park(conn, WaitOn::Gone(id), self.effects.now.mono_ms + grace_ms);
        match on_its_way {
            None => self.delete_now(id, volumes),
            // Its volumes may go with it as long as it is here; what is on its way out already goes anyway.
            Some(_) if volumes && self.servers.known[&id].removing == Some(Removal::KeepsVolumes) => {
                self.delete_now(id, volumes);
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// Lets the client wait until the server is up or down, if it is not so already.
    pub(in crate::core) fn park_for(&mut self, conn: ConnId, id: ServerId, up: bool) {
        match up {
            true => self.park_for_ready(conn, id, Hand::Started),
            false => {
                self.park(conn, WaitOn::Down(id), self.effects.now.mono_ms + 2 * STOP_GRACE.as_millis() as u64);
                self.tell_waiting(id);
            }
        }
    }

    fn park_for_ready(&mut self, conn: ConnId, id: ServerId, after: Hand) {
        self.park(
            conn,
            WaitOn::Ready { server: id, after },
            self.effects.now.mono_ms + self.main_of(id).start_wait_ms(),
        );
        self.tell_waiting(id);
    }

    fn key_rotate(&mut self, conn: ConnId) -> Result<(), Fault> {
        self.servers.check_store()?;
        self.store(conn, Pending::KeyRotation { conn }, StoreOp::RotateKey);
        Ok(())
    }
}

const ENVIRONMENT_DROPPED: &str = "the environment was dropped, because a token that is limited to some servers has changed \
     what runs: send all variables with such a change";

/// Does going from one definition to the other need a new instance?
pub(in crate::core) fn needs_restart(old: &Definition, new: &Definition) -> bool {
    // Only what the core reads at run time may differ; everything else is built into the container.
    let same_at_run_time = Definition {
        restart_policy: new.restart_policy,
        pull_policy: new.pull_policy,
        project: new.project.clone(),
        managed_by: new.managed_by.clone(),
        max_in_flight: new.max_in_flight,
        queue_max: new.queue_max,
        shared: new.shared,
        request_timeout_ms: new.request_timeout_ms,
        startup_timeout_ms: new.startup_timeout_ms,
        install_timeout_ms: new.install_timeout_ms,
        health: new.health.clone(),
        crash_loop: new.crash_loop.clone(),
        idle: new.idle,
        ..old.clone()
    };
    same_at_run_time != *new
}

/// A server that is down for good has nobody to wait for.
pub(in crate::core) fn is_at_rest(state: &State) -> bool {
    matches!(state, State::Down | State::Failed)
}
