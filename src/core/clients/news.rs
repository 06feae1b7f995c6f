//! What servers do and say, told to everyone it concerns: the ring and the file of the server's log, those who follow
//! that log, and those who watch the lifecycle of all servers. Owns the watchers; never decides anything. Invariant: a
//! watcher hears only of servers that its token may see.

use crate::api::response::{Answer, StreamEvent};
use crate::core::Core;
use crate::core::clients::parked::WaitOn;
use crate::core::contract::Output;
use crate::core::effects::Timer;
use crate::core::hosting::lifecycle::{Event, State};
use crate::core::links::external::LinkEvent;
use crate::core::peers::life::Life;
use crate::core::peers::peer::{Peer, Role};
use crate::core::servers::server::{Follower, Server};
use crate::ids::{ConnId, InstanceId, PeerId, ServerId};
use crate::limits::{KEEP_ALIVE, LOG_UNKEPT_EVERY};
use crate::model::fault::{Code, Fault};
use crate::model::log::{LogEntry, LogSource};
use crate::model::news::{News, NewsKind};
use crate::model::principal::Principal;
use crate::model::status::Status;
use crate::shares::{Owner, Resource, Short};
use memchr::memchr_iter;
use std::sync::Arc;

pub(in crate::core) struct Watcher {
    pub conn: ConnId,
    who: Principal,
}

impl Core {
    // --- those who watch ------------------------------------------------------------------------------------------

    /// The stream begins with the present state of each server, so that nothing is missed between a list and it.
    pub(in crate::core) fn watch_news(&mut self, conn: ConnId, who: &Principal) -> Result<Answer, Fault> {
        self.take_watcher(&who.name)?;
        let mut seen: Vec<&Server> = self
            .servers
            .registered()
            .filter(|server| server.removing.is_none() && who.may_see(&server.definition))
            .collect();
        seen.sort_by(|a, b| a.definition.name.cmp(&b.definition.name));
        let state = |server: &Server| self.news_of(&self.peers.known[&server.main], NewsKind::State, String::new());
        let now = seen.into_iter().map(state).collect();
        self.clients.watchers.push(Watcher { conn, who: who.clone() });
        self.clients.parked.park(conn, WaitOn::News);
        self.effects.deadlines.set(Timer::Stream(conn), self.effects.now.mono_ms + KEEP_ALIVE.as_millis() as u64);
        Ok(Answer::News(now))
    }

    /// One more who watches all servers or follows a log.
    pub(in crate::core) fn take_watcher(&mut self, owner: &Arc<str>) -> Result<(), Fault> {
        let whose = match self.shares.take(&Owner::Principal(Arc::clone(owner)), Resource::Watchers, 1) {
            Ok(()) => return Ok(()),
            Err(Short::Owner) => "as many clients of yours as one token may have",
            Err(Short::Whole) => "as many clients as this daemon takes",
        };
        let message = format!("{whose} follow events and logs already");
        Err(Fault::new(Code::Unavailable, message).retry_after_ms(10_000))
    }

    pub(in crate::core) fn give_watcher_back(&mut self, owner: &Arc<str>) {
        self.shares.give_back(&Owner::Principal(Arc::clone(owner)), Resource::Watchers, 1);
    }

    pub(in crate::core) fn stop_watching(&mut self, conn: ConnId) {
        self.effects.deadlines.cancel(Timer::Stream(conn));
        let left: Vec<Watcher> = self.clients.watchers.extract_if(.., |watcher| watcher.conn == conn).collect();
        left.iter().for_each(|watcher| self.give_watcher_back(&watcher.who.name));
    }

    pub(in crate::core) fn stop_following(&mut self, conn: ConnId, server: ServerId) {
        self.effects.deadlines.cancel(Timer::Stream(conn));
        let Some(server) = self.servers.known.get_mut(&server) else { return };
        let left: Vec<Follower> = server.followers.extract_if(.., |follower| follower.conn == conn).collect();
        left.iter().for_each(|follower| self.give_watcher_back(&follower.owner));
    }

    /// A token was revoked: those who watch or follow a log with it hear nothing more.
    pub(in crate::core) fn end_watching(&mut self, owner: &str) {
        let watching = self.clients.watchers.extract_if(.., |watcher| &*watcher.who.name == owner);
        let mut conns: Vec<ConnId> = watching.map(|watcher| watcher.conn).collect();
        for server in self.servers.known.values_mut() {
            conns.extend(server.followers.extract_if(.., |follower| &*follower.owner == owner).map(|left| left.conn));
        }
        self.shares.give_back(&Owner::Principal(owner.into()), Resource::Watchers, conns.len());
        conns.sort();
        for conn in conns {
            self.close_conn(conn);
        }
    }

    /// Of a server, by its main peer.
    fn news_of(&self, main: &Peer, kind: NewsKind, why: String) -> News {
        News {
            at_unix_ms: self.effects.now.unix_ms,
            server: main.server,
            name: main.definition.name.clone(),
            project: main.definition.project.clone(),
            instance: main.life.instance(),
            kind,
            from: None,
            to: main.life.status(),
            link: match &main.life {
                Life::Hosted(_) => None,
                Life::External(life) => Some(life.link_status()),
            },
            why,
        }
    }

    /// Whatever happens to a row of a project is told as one thing: its name is not unique among those of hosted servers.
    fn kind_of(&self, main: &Peer, kind: NewsKind) -> NewsKind {
        if self.servers.is_registered(main.server) { kind } else { NewsKind::Link }
    }

    fn broadcast(&mut self, news: News) {
        let news = Arc::new(news);
        let hears = |who: &Principal| match news.kind {
            NewsKind::Link => news.project.as_ref().is_some_and(|project| who.may_use(project)),
            NewsKind::State | NewsKind::Transition | NewsKind::Warning | NewsKind::Presence => {
                who.may_see_named(&news.name, news.project.as_ref())
            }
        };
        for watcher in self.clients.watchers.iter().filter(|watcher| hears(&watcher.who)) {
            self.effects.outputs.push_back(Output::News { conn: watcher.conn, news: Arc::clone(&news) });
        }
    }

    // --- what is told -----------------------------------------------------------------------------------------------

    pub(in crate::core) fn tell_transition(
        &mut self,
        id: PeerId,
        from: Status,
        instance: Option<InstanceId>,
        why: &str,
    ) {
        let Some(peer) = self.peers.known.get(&id) else { return };
        let (name, to) = (&peer.definition.name, peer.life.status());
        let shown = instance.map_or_else(|| "-".to_string(), |instance| instance.to_string());
        log::info!("server={name} instance={shown} from={} to={} why={why}", from.wire(), to.wire());
        // Any but the main one is nobody's business but the daemon's.
        if peer.role == Role::Main {
            let kind = self.kind_of(peer, NewsKind::Transition);
            self.broadcast(News { instance, from: Some(from), ..self.news_of(peer, kind, why.to_string()) });
        }
        self.note(id, format!("{} -> {} ({why})", from.wire(), to.wire()));
    }

    /// It is not as it should be: said in the daemon's log, in the server's, and to those who watch.
    pub(in crate::core) fn warn(&mut self, id: PeerId, text: String) {
        let Some(peer) = self.peers.known.get(&id) else { return };
        log::warn!("server={} {text}", peer.definition.name);
        if peer.role == Role::Main {
            let kind = self.kind_of(peer, NewsKind::Warning);
            let news = self.news_of(peer, kind, text.clone());
            self.broadcast(news);
        }
        self.log_entry(id, LogSource::Health, text);
    }

    /// A crash loop is a health warning, told when it begins and whenever it gets worse.
    pub(in crate::core) fn tell_crash_loop(&mut self, id: PeerId) {
        let Some(peer) = self.peers.known.get(&id) else { return };
        if let State::Waiting { until_ms, looping: true } = *peer.life.state() {
            let wait_ms = until_ms.saturating_sub(self.effects.now.mono_ms);
            let (level, cause) = (peer.life.crash_level(), peer.last_error.clone().unwrap_or_default());
            let told = match &peer.life {
                Life::Hosted(_) => format!("crash loop, level {level}: {cause}; the next start is in {wait_ms} ms"),
                Life::External(_) => format!("circuit open: {cause}; the next attempt is in {wait_ms} ms"),
            };
            self.warn(id, told);
        }
    }

    /// Registered, removed: there from here on, or not any more.
    pub(in crate::core) fn tell_presence(&mut self, id: ServerId, why: &str) {
        let news = self.news_of(self.main_of(id), NewsKind::Presence, why.to_string());
        self.broadcast(news);
    }

    /// A lifecycle event in the log of the server, which all its peers share.
    pub(in crate::core) fn note(&mut self, id: PeerId, text: String) {
        self.log_entry(id, LogSource::Lifecycle, text);
    }

    fn log_entry(&mut self, id: PeerId, source: LogSource, text: String) {
        let Some(peer) = self.peers.known.get(&id) else { return };
        let (instance, id) = (peer.life.instance(), peer.server);
        let Some(server) = self.servers.known.get_mut(&id) else { return };
        let entry = LogEntry { at_unix_ms: self.effects.now.unix_ms, instance, source, text };
        server.log.push(entry.clone());
        self.stream(id, entry);
    }

    /// An entry that is in the ring already: to the followers, and to the disk.
    pub(in crate::core) fn stream(&mut self, id: ServerId, entry: LogEntry) {
        let Some(server) = self.servers.known.get(&id) else { return };
        for follower in &server.followers {
            let event = StreamEvent::Log(entry.clone());
            self.effects.outputs.push_back(Output::Event { conn: follower.conn, event });
        }
        self.effects.outputs.push_back(Output::LogKeep { server: id, entry });
    }

    pub(in crate::core) fn stderr_read(&mut self, instance: InstanceId, bytes: &[u8]) {
        self.effects.work = 0;
        let before = self.effects.outputs.len();
        let Some(id) = self.server_of(instance) else { return self.charge(1, bytes.len(), before) };
        if let Some(server) = self.servers.known.get_mut(&id) {
            let fresh = server.log.stderr(instance, bytes, self.effects.now);
            self.stream_said(id, fresh);
        }
        self.charge(memchr_iter(b'\n', bytes).count().max(1), bytes.len(), before);
    }

    /// Lines that a server wrote, as far as its log has room for them.
    pub(in crate::core) fn stream_said(&mut self, id: ServerId, fresh: impl IntoIterator<Item = LogEntry>) {
        for entry in fresh {
            self.stream(id, entry);
        }
        if self.servers.known.get_mut(&id).is_some_and(|server| server.log.begins_to_skip()) {
            self.effects
                .deadlines
                .set(Timer::Unkept(id), self.effects.now.mono_ms + LOG_UNKEPT_EVERY.as_millis() as u64);
        }
    }

    pub(in crate::core) fn tell_unkept(&mut self, id: ServerId) {
        let told = self.servers.known.get_mut(&id).and_then(|server| server.log.tell_unkept(self.effects.now));
        if let Some(entry) = told {
            self.stream(id, entry);
        }
    }

    /// What an instance has begun to say when it ends is its own, and no part of what the next one says.
    pub(in crate::core) fn end_stderr(&mut self, id: PeerId, instance: InstanceId) {
        let Some(id) = self.peers.known.get(&id).map(|peer| peer.server) else { return };
        let Some(server) = self.servers.known.get_mut(&id) else { return };
        for entry in server.log.end_stderr(instance, self.effects.now) {
            self.stream(id, entry);
        }
    }

    /// What an earlier daemon had written down of this server's log.
    pub(in crate::core) fn log_restored(&mut self, id: ServerId, entries: Vec<LogEntry>) {
        if let Some(server) = self.servers.known.get_mut(&id) {
            server.log.restore(entries);
        }
    }

    // --- for whoever runs the daemon -------------------------------------------------------------------------------

    /// How the daemon is, in one line.
    pub fn status_line(&self) -> String {
        let main = || self.servers.registered().map(|server| &self.peers.known[&server.main]);
        let count = |wanted: Status| main().filter(|peer| peer.life.status() == wanted).count();
        let (all, ready, calls) = (self.servers.registered().count(), count(Status::Ready), self.peers.calls.len());
        let unwell =
            [Status::Unresponsive, Status::Backoff, Status::Failed].map(|status| (count(status), status.wire()));
        let unwell = unwell.iter().filter(|(n, _)| *n > 0).map(|(n, status)| format!(", {n} {status}"));
        format!("{all} servers, {ready} ready{}; {calls} calls under way", unwell.collect::<String>())
    }

    /// Each server in a line, by name.
    pub fn summary(&self) -> Vec<String> {
        let summary = |server: &Server| server.summary(&self.peers.known[&server.main], self.effects.now);
        let mut lines: Vec<String> = self.servers.registered().map(summary).collect();
        lines.sort();
        lines.splice(..0, self.shares.summary());
        lines
    }
}

/// Why a server's status changes, in a word for the log.
pub(in crate::core) fn event_name(event: &Event) -> &'static str {
    match event {
        Event::Start => "start",
        Event::Pulled => "image here",
        Event::PullFailed(_) => "pull failed",
        Event::Slot { .. } => "slot",
        Event::Launched => "launched",
        Event::InstallBegun => "packages to be fetched",
        Event::LaunchFailed(_) => "launch failed",
        Event::Greeted => "answers",
        Event::HandshakeRefused(_) => "initialize refused",
        Event::Silent => "no answer to ping and tools/list",
        Event::Heard => "heard again",
        Event::StdoutClosed => "stdout closed",
        Event::Exited(_) => "exited",
        Event::Stop => "stop",
        Event::Shutdown => "shutdown",
        Event::Restart => "restart",
        Event::KillNow => "to end at once",
        Event::Elapsed => "deadline",
        Event::Link(event) => link_event_name(event),
    }
}

fn link_event_name(event: &LinkEvent) -> &'static str {
    match event {
        LinkEvent::Use => "use",
        LinkEvent::Changed(_) => "changed",
        LinkEvent::Enable => "enabled",
        LinkEvent::Disable => "disabled",
        LinkEvent::Lost(_) => "transport-exit",
        LinkEvent::Impossible(_) => "cannot be tried",
    }
}
