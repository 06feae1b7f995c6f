//! What is registered: a definition, what the operator wants of it, and how far a change of it has come. Whoever talks to
//! the server itself is a `Peer` of it; the main one is there as long as the server is.

use crate::core::Settings;
use crate::core::clients::log_ring::LogRing;
use crate::core::contract::Now;
use crate::core::hosting::lifecycle::{Lifecycle, State};
use crate::core::mcp::era::stateless::{Held, Support};
use crate::core::peers::life::Life;
use crate::core::peers::peer::{Peer, Role};
use crate::ids::{ConnId, PeerId, ServerId};
use crate::model::definition::{Definition, IdleMode};
use crate::model::external::ExternalId;
use crate::model::fault::{Code, Fault};
use crate::model::records::{StoredServer, StoredStatus};
use crate::model::status::{Asleep, ImagePull, Install, Status, StatusView};
use crate::model::tally::{Sample, Tally};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::Arc;

/// Somebody who follows a server's log.
#[derive(Serialize, Deserialize)]
pub struct Follower {
    pub conn: ConnId,
    pub owner: Arc<str>,
}

/// How far a server that goes for good has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Removal {
    /// Once it is down it is forgotten.
    KeepsVolumes,
    /// Once it is down its volumes go first.
    TakesVolumes,
    /// They are on their way out.
    VolumesLeave,
    /// Nothing is left of it but its record, perhaps, and so its name is not free yet.
    Gone,
}

/// Where a server comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Origin {
    /// It was registered here, and is hosted.
    Registered,
    /// It is a row of a project, which knows it by name.
    Project(ExternalId),
}

#[derive(Serialize, Deserialize)]
pub struct Server {
    pub id: ServerId,
    pub origin: Origin,
    pub definition: Arc<Definition>,
    /// What the operator wants; what is, stands in the life of the main peer.
    pub desired_up: bool,
    pub created_unix_ms: u64,
    /// The conversation that everybody shares.
    pub main: PeerId,
    pub log: LogRing,
    pub followers: Vec<Follower>,
    pub support: Support,
    /// It stands in lists of several servers: also while it is coming back, but not while the link to it is given up.
    pub offered: bool,
    /// Requests that wait for `support` to be known.
    pub(in crate::core) held: Vec<Held>,
    pub last_used_unix_ms: Option<u64>,
    /// A print of what the store knows of what it offers.
    #[serde(default)]
    pub catalogue: Option<u64>,
    /// A change of it is on its way to the store.
    pub changing: bool,
    pub removing: Option<Removal>,
    /// Why its definition may not be started.
    pub refused: Option<Fault>,
    /// What a change has done besides what was asked for.
    pub warning: Option<String>,
    /// That it was stopped is not in the store yet.
    pub unrecorded: Option<String>,
    /// The pull of its image, if one was needed.
    pub image_pull: Option<ImagePull>,
    /// The fetching of its packages, if that was needed.
    pub install: Option<Install>,
    /// Of all its peers, since the daemon's start.
    pub tally: Tally,
    /// The newest last; no more than `SAMPLES_KEPT`.
    pub samples: VecDeque<Sample>,
}

impl Server {
    /// With its main peer, which does not run yet.
    pub fn new(
        id: ServerId,
        main: PeerId,
        definition: Arc<Definition>,
        desired_up: bool,
        created_unix_ms: u64,
    ) -> (Server, Peer) {
        let peer = Peer::new(main, id, Role::Main, Arc::clone(&definition));
        let server = Server {
            id,
            origin: Origin::Registered,
            definition,
            desired_up,
            created_unix_ms,
            main,
            log: LogRing::default(),
            followers: Vec::new(),
            support: Support::default(),
            offered: true,
            held: Vec::new(),
            last_used_unix_ms: None,
            catalogue: None,
            changing: false,
            removing: None,
            refused: None,
            warning: None,
            unrecorded: None,
            image_pull: None,
            install: None,
            tally: Tally::default(),
            samples: VecDeque::new(),
        };
        (server, peer)
    }

    pub fn from_stored(row: StoredServer, main: PeerId) -> (Server, Peer) {
        let (mut server, mut peer) =
            Server::new(row.id, main, Arc::new(row.definition), row.desired_up, row.created_unix_ms);
        peer.restart_count = row.status.restart_count;
        peer.last_crash = row.status.last_crash;
        peer.last_error = row.status.last_error;
        server.last_used_unix_ms = row.status.last_used_unix_ms;
        (server, peer)
    }

    /// Before it has told. An external server has one conversation, whatever version that is of.
    pub fn support_at_first(&self) -> Support {
        match self.origin {
            Origin::Registered => Support::Unknown,
            Origin::Project(_) => Support::No,
        }
    }

    /// It is known, and shown with the reason, but never started.
    pub fn refuse(&mut self, main: &mut Peer, why: Fault) {
        log::error!("server={} id={} is not started: {}", self.definition.name, self.id, why.message);
        main.last_error = Some(why.message.clone());
        main.life = Life::Hosted(Lifecycle::failed());
        self.refused = Some(why);
    }

    /// One whose row breaks the rule about names has none of its own; a PATCH may give it one.
    pub fn is_nameless(&self) -> bool {
        self.refused.as_ref().is_some_and(|why| why.data.get("field").is_some_and(|field| field == "name"))
    }

    /// Why the values of its environment are not known, if they are not: the key that they are sealed with is not here.
    pub fn sealed_environment(&self) -> Option<&Fault> {
        self.refused.as_ref().filter(|why| why.code == Code::SecretMissing)
    }

    /// All there is to say, in one line.
    fn all_warnings(&self, settings: &Settings) -> Option<String> {
        let of_default = settings.default_warning.as_deref().filter(|_| self.definition.provider.is_none());
        let all: Vec<&str> =
            [of_default, self.warning.as_deref(), self.unrecorded.as_deref()].into_iter().flatten().collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    pub fn to_stored(&self, main: &Peer) -> StoredServer {
        StoredServer {
            id: self.id,
            definition: (*self.definition).clone(),
            desired_up: self.desired_up,
            status: self.stored_status(main),
            created_unix_ms: self.created_unix_ms,
        }
    }

    pub fn stored_status(&self, main: &Peer) -> StoredStatus {
        StoredStatus {
            status: main.status(),
            restart_count: main.restart_count,
            last_crash: main.last_crash.clone(),
            last_error: main.last_error.clone(),
            last_used_unix_ms: self.last_used_unix_ms,
        }
    }

    pub fn view(&self, main: &Peer, settings: &Settings, now: Now) -> StatusView {
        let since = match main.life.state() {
            State::Ready { since_ms, .. } | State::Unresponsive { since_ms, .. } => Some(*since_ms),
            State::Down
            | State::Pulling
            | State::Installing { .. }
            | State::InstallDue { .. }
            | State::Due
            | State::Launching { .. }
            | State::Greeting { .. }
            | State::Mute { .. }
            | State::Stopping { .. }
            | State::Waiting { .. }
            | State::Asleep { .. }
            | State::Failed => None,
        };
        let silent_ms = main.pulse.as_ref().map(|pulse| now.mono_ms - pulse.heard_ms());
        StatusView {
            id: self.id,
            definition: Arc::clone(&self.definition),
            provider: self.definition.provider.clone().unwrap_or_else(|| settings.providers[0].clone()),
            warning: self.all_warnings(settings),
            network: self.network(settings),
            status: main.status(),
            // A pipe that nobody answers on is no connection.
            bridge_connected: self.definition.stdio_bridge && main.life.status() == Status::Ready,
            restart_count: main.restart_count,
            last_crash: main.last_crash.clone(),
            last_error: main.last_error.clone(),
            uptime_ms: since.map(|since| now.mono_ms - since),
            in_flight: main.lane.in_flight().len(),
            waiting: main.lane.waiting(),
            crash_level: main.life.crash_level(),
            next_attempt_unix_ms: main.next_start_in(now).map(|ms| now.unix_ms + ms),
            server_info: main.hello.as_ref().and_then(|h| h.server_info.clone()),
            protocol_version: main.hello.as_ref().and_then(|h| h.protocol_version.clone()),
            instance: main.life.instance(),
            last_heard_unix_ms: silent_ms.map(|ms| now.unix_ms.saturating_sub(ms)),
            warnings: main.warnings(now),
            usage: None,
            image_pull: self.image_pull.clone(),
            install: self.install.clone(),
            asleep: self.asleep(main, now),
            last_wake_ms: main.rest.last_wake_ms,
            created_unix_ms: self.created_unix_ms,
            last_used_unix_ms: self.last_used_unix_ms,
        }
    }

    fn asleep(&self, main: &Peer, now: Now) -> Option<Asleep> {
        let (mode, since_ms) = match (main.life.state(), main.rest.dozing_since_ms) {
            (State::Asleep { since_ms }, _) => (IdleMode::Stop, *since_ms),
            (_, Some(since_ms)) if main.status() == Status::Asleep => (IdleMode::Doze, since_ms),
            (_, _) => return None,
        };
        Some(Asleep { mode, since_unix_ms: now.unix_ms.saturating_sub(now.mono_ms - since_ms) })
    }

    fn network(&self, settings: &Settings) -> String {
        let asked = self.definition.network.as_ref().or(settings.default_network.as_ref());
        match asked.map(String::as_str) {
            None | Some("none") if !self.definition.ports.is_empty() => "private".to_string(),
            None => "none".to_string(),
            Some(name) => name.to_string(),
        }
    }

    /// One line for the log.
    pub fn summary(&self, main: &Peer, now: Now) -> String {
        let (name, status) = (&self.definition.name, main.status().wire());
        let (in_flight, waiting) = (main.lane.in_flight().len(), main.lane.waiting());
        let (restarts, late) = (main.restart_count, main.said.late);
        let warnings = main.warnings(now).join("; ");
        format!(
            "server={name} status={status} in_flight={in_flight} waiting={waiting} restarts={restarts} late={late} {warnings}"
        )
    }
}
