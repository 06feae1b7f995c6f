//! What becomes of servers, told to those who watch all of them. Owns the watchers; never decides anything. Invariant: a
//! watcher hears only of servers that its token may see.

use crate::core::clients::Clients;
use crate::core::clients::parked::WaitOn;
use crate::core::contract::{Now, Output};
use crate::core::effects::{Effects, Timer};
use crate::core::hosting::lifecycle::{Event, State};
use crate::core::links::external::LinkEvent;
use crate::core::peers::life::Life;
use crate::core::peers::peer::{Peer, Role};
use crate::ids::{ConnId, InstanceId};
use crate::limits::KEEP_ALIVE;
use crate::model::fault::{Code, Fault};
use crate::model::news::{News, NewsKind};
use crate::model::principal::Principal;
use crate::model::status::Status;
use crate::shares::{Owner, Resource, Shares, Short};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

#[derive(Serialize, Deserialize)]
pub(in crate::core) struct Watcher {
    pub(super) conn: ConnId,
    who: Principal,
}

/// How a peer's status has changed.
pub(in crate::core) struct Transition<'a> {
    pub from: Status,
    pub instance: Option<InstanceId>,
    pub why: &'a str,
}

impl Clients {
    pub fn watch(&mut self, conn: ConnId, who: &Principal, effects: &mut Effects) -> Result<(), Fault> {
        take_watcher(&mut effects.shares, &who.name)?;
        self.watchers.push(Watcher { conn, who: who.clone() });
        self.park(conn, WaitOn::News);
        effects.deadlines.set(Timer::Stream(conn), effects.now.mono_ms + KEEP_ALIVE.as_millis() as u64);
        Ok(())
    }

    pub fn stop_watching(&mut self, conn: ConnId, effects: &mut Effects) {
        effects.deadlines.cancel(Timer::Stream(conn));
        let left = self.watchers.extract_if(.., |watcher| watcher.conn == conn);
        left.for_each(|watcher| give_watcher_back(&mut effects.shares, &watcher.who.name));
    }

    /// Those who watch by this token, who do not from here on.
    pub fn end_watching(&mut self, owner: &str) -> Vec<ConnId> {
        let watching = self.watchers.extract_if(.., |watcher| &*watcher.who.name == owner);
        watching.map(|watcher| watcher.conn).collect()
    }

    pub fn broadcast(&self, news: News, effects: &mut Effects) {
        let news = Arc::new(news);
        let hears = |who: &Principal| match news.kind {
            NewsKind::Link => news.project.as_ref().is_some_and(|project| who.may_use(project)),
            NewsKind::State | NewsKind::Transition | NewsKind::Warning | NewsKind::Presence => {
                who.may_see_named(&news.name, news.project.as_ref())
            }
        };
        for watcher in self.watchers.iter().filter(|watcher| hears(&watcher.who)) {
            effects.outputs.push_back(Output::News { conn: watcher.conn, news: Arc::clone(&news) });
        }
    }

    pub fn tell_transition(&self, peer: &Peer, is_registered: bool, told: Transition<'_>, effects: &mut Effects) {
        let Transition { from, instance, why } = told;
        let (name, to) = (&peer.definition.name, peer.status());
        let shown = instance.map_or_else(|| "-".to_string(), |instance| instance.to_string());
        log::info!("server={name} instance={shown} from={} to={} why={why}", from.wire(), to.wire());
        // Any but the main one is nobody's business but the daemon's.
        if peer.role == Role::Main {
            let news = news_of(peer, kind_of(is_registered, NewsKind::Transition), why.to_string(), effects.now);
            self.broadcast(News { instance, from: Some(from), ..news }, effects);
        }
    }

    /// It is not as it should be: said in the daemon's log, and to those who watch.
    pub fn warn(&self, peer: &Peer, is_registered: bool, text: &str, effects: &mut Effects) {
        log::warn!("server={} {text}", peer.definition.name);
        if peer.role == Role::Main {
            let kind = kind_of(is_registered, NewsKind::Warning);
            self.broadcast(news_of(peer, kind, text.to_string(), effects.now), effects);
        }
    }
}

/// One more who watches all servers or follows a log.
pub(in crate::core) fn take_watcher(shares: &mut Shares, owner: &Arc<str>) -> Result<(), Fault> {
    let whose = match shares.take(&Owner::Principal(Arc::clone(owner)), Resource::Watchers, 1) {
        Ok(()) => return Ok(()),
        Err(Short::Owner) => "as many clients of yours as one token may have",
        Err(Short::Whole) => "as many clients as this daemon takes",
    };
    let message = format!("{whose} follow events and logs already");
    Err(Fault::new(Code::Unavailable, message).retry_after_ms(10_000))
}

pub(in crate::core) fn give_watcher_back(shares: &mut Shares, owner: &Arc<str>) {
    shares.give_back(&Owner::Principal(Arc::clone(owner)), Resource::Watchers, 1);
}

pub(in crate::core) fn give_watchers_back(shares: &mut Shares, owner: &str, count: usize) {
    shares.give_back(&Owner::Principal(owner.into()), Resource::Watchers, count);
}

/// Of a server, by its main peer.
pub(in crate::core) fn news_of(main: &Peer, kind: NewsKind, why: String, now: Now) -> News {
    News {
        at_unix_ms: now.unix_ms,
        server: main.server,
        name: main.definition.name.clone(),
        project: main.definition.project.clone(),
        instance: main.life.instance(),
        kind,
        from: None,
        to: main.status(),
        link: match &main.life {
            Life::Hosted(_) => None,
            Life::External(life) => Some(life.link_status()),
        },
        why,
    }
}

/// Whatever happens to a row of a project is told as one thing: its name is not unique among those of hosted servers.
fn kind_of(is_registered: bool, kind: NewsKind) -> NewsKind {
    if is_registered { kind } else { NewsKind::Link }
}

/// A crash loop is a health warning, told when it begins and whenever it gets worse.
pub(in crate::core) fn crash_loop(peer: &Peer, now: Now) -> Option<String> {
    let State::Waiting { until_ms, looping: true } = *peer.life.state() else { return None };
    let wait_ms = until_ms.saturating_sub(now.mono_ms);
    let (level, cause) = (peer.life.crash_level(), peer.last_error.clone().unwrap_or_default());
    Some(match &peer.life {
        Life::Hosted(_) => format!("crash loop, level {level}: {cause}; the next start is in {wait_ms} ms"),
        Life::External(_) => format!("circuit open: {cause}; the next attempt is in {wait_ms} ms"),
    })
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
        Event::Sleep => "idle",
        Event::Wake => "used again",
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
