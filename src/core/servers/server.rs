//! One registered server, as the core sees it: its definition, its life, its calls and what it has said. Holds state
//! and answers questions about it; what happens to it is decided in `lifecycle.rs` and done in `mod.rs`.

use crate::core::Settings;
use crate::core::clients::log_ring::LogRing;
use crate::core::contract::Now;
use crate::core::hosting::lifecycle::{Lifecycle, State, Then};
use crate::core::mcp::era::stateless::{Held, Support};
use crate::core::peers::calls::Lane;
use crate::core::peers::health::Pulse;
use crate::core::peers::listings::{Cached, Listing};
use crate::ids::{ConnId, ServerId, SessionId};
use crate::model::definition::Definition;
use crate::model::fault::{Code, Fault, Outcome};
use crate::model::instance::{Exit, ExitCause};
use crate::model::protocol::Level;
use crate::model::records::{StoredServer, StoredStatus, UnfitServer};
use crate::model::status::{ImagePull, LastCrash, Status, StatusView};
use crate::wire::times::rfc3339;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Somebody who follows a server's log.
pub struct Follower {
    pub conn: ConnId,
    pub owner: Arc<str>,
}

/// How far a server that goes for good has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

pub struct Server {
    pub id: ServerId,
    pub definition: Arc<Definition>,
    /// What the operator wants; what is, stands in `life`.
    pub desired_up: bool,
    pub created_unix_ms: u64,
    pub life: Lifecycle,
    pub lane: Lane,
    pub log: LogRing,
    pub followers: Vec<Follower>,
    pub hello: Option<Hello>,
    /// What the last handshake told that clients are told in turn; it outlives the instance.
    pub advertised: Option<Advertised>,
    /// What it offers, in the order of `Listing`.
    lists: [Cached; 4],
    pub kin: Kin,
    /// Which of the two eras its handshake was of.
    pub dialect: Dialect,
    /// How it answered `initialize`, while it is asked for the other era.
    pub refusal: Option<Refusal>,
    pub support: Support,
    /// Requests that wait for `support` to be known.
    pub held: Vec<Held>,
    /// The daemon's own subscription at a server without sessions.
    pub listen: Option<u64>,
    /// By tool: its parameters that clients repeat in a header.
    pub header_params: HashMap<String, Vec<HeaderParam>>,
    /// Of the resources that it lists.
    pub resource_uris: HashSet<String>,
    /// The log level that the present instance was told.
    pub level: Option<Level>,
    pub restart_count: u64,
    /// The next launch is a restart.
    pub restart_due: bool,
    pub last_crash: Option<LastCrash>,
    pub last_error: Option<String>,
    pub last_used_unix_ms: Option<u64>,
    /// A change of it is on its way to the store.
    pub changing: bool,
    pub removing: Option<Removal>,
    /// Why its definition may not be started.
    pub refused: Option<Fault>,
    /// What a change has done besides what was asked for.
    pub warning: Option<&'static str>,
    /// That it was stopped is not in the store yet.
    pub unrecorded: Option<&'static str>,
    /// How the instance that is just being discarded ended.
    pub ended_by: Option<Exit>,
    /// Why the present instance is being put down, if it is.
    pub put_down_for: Option<String>,
    /// The last instance never became ready.
    pub start_failed: bool,
    /// Of an instance that is ready and has a bridge.
    pub pulse: Option<Pulse>,
    pub said: Said,
    /// The pull of its image, if one was needed.
    pub image_pull: Option<ImagePull>,
}

/// What this is an instance of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kin {
    /// The server itself.
    Registered,
    /// A second instance of another, for clients without sessions.
    Companion { of: ServerId },
    /// A further instance of another, for one session.
    Private { of: ServerId, session: SessionId },
}

impl Kin {
    /// Whose clients hear what the instance `own` tells of its resources.
    pub fn hears_for(self, own: ServerId) -> ServerId {
        match self {
            Kin::Companion { of } => of,
            Kin::Registered | Kin::Private { .. } => own,
        }
    }

    pub fn parent(self) -> Option<ServerId> {
        match self {
            Kin::Registered => None,
            Kin::Companion { of } | Kin::Private { of, .. } => Some(of),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `initialize`, up to 2025-11-25. Also of servers that know no handshake at all.
    Sessions,
    /// 2026-07-28.
    Stateless,
}

/// An `initialize` that was answered with an error.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub code: i64,
    pub said: String,
}

/// What the handshake told.
#[derive(Clone, Debug, Default)]
pub struct Hello {
    pub server_info: Option<Vec<u8>>,
    pub protocol_version: Option<String>,
}

/// What clients of a server are told of it, as JSON text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advertised {
    pub capabilities: String,
    pub server_info: String,
    pub instructions: Option<String>,
}

/// A parameter of a tool and the name of its header, without the prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderParam {
    pub property: String,
    pub header: String,
}

/// What came from the present instance's stdout besides answers; it tells why a handshake fails.
#[derive(Clone, Copy, Debug, Default)]
pub struct Said {
    pub noise_lines: u64,
    pub content_length: bool,
    /// Answers to calls that had ended, over all instances.
    pub late: u64,
}

impl Server {
    pub fn new(id: ServerId, definition: Arc<Definition>, desired_up: bool, created_unix_ms: u64) -> Server {
        Server {
            id,
            definition,
            desired_up,
            created_unix_ms,
            life: Lifecycle::default(),
            lane: Lane::default(),
            log: LogRing::default(),
            followers: Vec::new(),
            hello: None,
            advertised: None,
            lists: Default::default(),
            kin: Kin::Registered,
            dialect: Dialect::Sessions,
            refusal: None,
            support: Support::default(),
            held: Vec::new(),
            listen: None,
            header_params: HashMap::new(),
            resource_uris: HashSet::new(),
            level: None,
            restart_count: 0,
            restart_due: false,
            last_crash: None,
            last_error: None,
            last_used_unix_ms: None,
            changing: false,
            removing: None,
            refused: None,
            warning: None,
            unrecorded: None,
            ended_by: None,
            put_down_for: None,
            start_failed: false,
            pulse: None,
            said: Said::default(),
            image_pull: None,
        }
    }

    pub fn from_stored(row: StoredServer) -> Server {
        let mut server = Server::new(row.id, Arc::new(row.definition), row.desired_up, row.created_unix_ms);
        server.restart_count = row.status.restart_count;
        server.last_crash = row.status.last_crash;
        server.last_error = row.status.last_error;
        server.last_used_unix_ms = row.status.last_used_unix_ms;
        server
    }

    pub fn unfit(row: UnfitServer) -> Server {
        let mut server = Server::from_stored(row.server);
        server.refuse(row.why);
        server
    }

    /// It is known, and shown with the reason, but never started.
    pub fn refuse(&mut self, why: Fault) {
        log::error!("server={} id={} is not started: {}", self.definition.name, self.id, why.message);
        self.last_error = Some(why.message.clone());
        self.refused = Some(why);
        self.life = Lifecycle::failed();
    }

    /// One whose row breaks the rule about names has none of its own; a PATCH may give it one.
    pub fn is_nameless(&self) -> bool {
        self.refused.as_ref().is_some_and(|why| why.data.get("field").is_some_and(|field| field == "name"))
    }

    /// All there is to say, in one line.
    fn all_warnings(&self, settings: &Settings) -> Option<String> {
        let of_default = settings.default_warning.as_deref().filter(|_| self.definition.provider.is_none());
        let all: Vec<&str> = [of_default, self.warning, self.unrecorded].into_iter().flatten().collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    pub fn to_stored(&self) -> StoredServer {
        StoredServer {
            id: self.id,
            definition: (*self.definition).clone(),
            desired_up: self.desired_up,
            status: self.stored_status(),
            created_unix_ms: self.created_unix_ms,
        }
    }

    pub fn stored_status(&self) -> StoredStatus {
        StoredStatus {
            status: self.life.status(),
            restart_count: self.restart_count,
            last_crash: self.last_crash.clone(),
            last_error: self.last_error.clone(),
            last_used_unix_ms: self.last_used_unix_ms,
        }
    }

    pub fn view(&self, settings: &Settings, now: Now) -> StatusView {
        let since = match self.life.state() {
            State::Ready { since_ms, .. } | State::Unresponsive { since_ms, .. } => Some(*since_ms),
            State::Down
            | State::Pulling
            | State::Due
            | State::Launching { .. }
            | State::Greeting { .. }
            | State::Mute { .. }
            | State::Stopping { .. }
            | State::Waiting { .. }
            | State::Failed => None,
        };
        let silent_ms = self.pulse.as_ref().map(|pulse| now.mono_ms - pulse.heard_ms());
        StatusView {
            id: self.id,
            definition: Arc::clone(&self.definition),
            provider: self.definition.provider.clone().unwrap_or_else(|| settings.providers[0].clone()),
            warning: self.all_warnings(settings),
            network: self.network(settings),
            status: self.life.status(),
            // A pipe that nobody answers on is no connection.
            bridge_connected: self.definition.stdio_bridge && self.life.status() == Status::Ready,
            restart_count: self.restart_count,
            last_crash: self.last_crash.clone(),
            last_error: self.last_error.clone(),
            uptime_ms: since.map(|since| now.mono_ms - since),
            in_flight: self.lane.in_flight().len(),
            waiting: self.lane.waiting(),
            crash_level: self.life.crash_level(),
            next_attempt_unix_ms: self.next_start_in(now).map(|ms| now.unix_ms + ms),
            server_info: self.hello.as_ref().and_then(|h| h.server_info.clone()),
            protocol_version: self.hello.as_ref().and_then(|h| h.protocol_version.clone()),
            instance: self.life.instance(),
            last_heard_unix_ms: silent_ms.map(|ms| now.unix_ms.saturating_sub(ms)),
            warnings: self.warnings(now),
            usage: None,
            image_pull: self.image_pull.clone(),
            created_unix_ms: self.created_unix_ms,
            last_used_unix_ms: self.last_used_unix_ms,
        }
    }

    fn network(&self, settings: &Settings) -> String {
        let asked = self.definition.network.as_ref().or(settings.default_network.as_ref());
        match asked.map(String::as_str) {
            None | Some("none") if !self.definition.ports.is_empty() => "private".to_string(),
            None => "none".to_string(),
            Some(name) => name.to_string(),
        }
    }

    fn next_start_in(&self, now: Now) -> Option<u64> {
        self.life.next_start_in(&self.definition, now.mono_ms)
    }

    /// May a call that has not been sent wait for this server? It may if the next start is due before its deadline.
    pub fn admits(&self, deadline_ms: u64, now: Now) -> Result<(), Fault> {
        let name = &self.definition.name;
        match self.life.state() {
            State::Ready { .. }
            | State::Unresponsive { .. }
            | State::Pulling
            | State::Due
            | State::Launching { .. }
            | State::Greeting { .. }
            | State::Mute { .. }
            | State::Stopping { then: Then::Restart | Then::Crash { .. }, .. } => Ok(()),
            State::Down | State::Stopping { then: Then::Down, .. } => {
                let message = format!("{name} is stopped; `POST …/{name}/start` starts it");
                Err(Fault::new(Code::ServerStopped, message).outcome(Outcome::NotSent))
            }
            State::Failed => {
                let cause = self.last_error.clone().unwrap_or_default();
                let message = format!("{name} could not be restarted and was given up: {cause}");
                Err(self.restart_fault(Code::RestartFailed, message, now).outcome(Outcome::NotSent))
            }
            State::Waiting { until_ms, .. } if *until_ms < deadline_ms => Ok(()),
            State::Waiting { until_ms, .. } => {
                let wait_ms = until_ms.saturating_sub(now.mono_ms);
                let (code, what) = match self.start_failed {
                    true => (Code::RestartFailed, "could not be started"),
                    false => (Code::RestartInProgress, "is restarting"),
                };
                let message = format!("{name} {what}; its next start is in {wait_ms} ms, after this call's deadline");
                Err(self.restart_fault(code, message, now).outcome(Outcome::NotSent).retry_after_ms(wait_ms))
            }
        }
    }

    /// With everything a caller may want to know of a server that is not there: why, how often, and when it is back.
    fn restart_fault(&self, code: Code, message: String, now: Now) -> Fault {
        let next_ms = self.next_start_in(now);
        Fault::new(code, message)
            .with("cause", self.last_error.clone())
            .with("attempt", self.restart_count + 1)
            .with("next_attempt_in_ms", next_ms)
            .with("next_attempt_at", next_ms.map(|ms| rfc3339(now.unix_ms + ms)))
    }

    /// For whoever has restarted it.
    pub fn restarted_in_vain(&self, now: Now) -> Fault {
        let cause = self.last_error.as_deref().unwrap_or("it is not known why");
        let message = format!("{} was stopped, but cannot be started again: {cause}", self.definition.name);
        self.restart_fault(Code::RestartFailed, message, now)
    }

    /// For calls in flight when the server is put down for its silence.
    pub fn restarting_fault(&self, now: Now) -> Fault {
        let message = format!("{} is unresponsive and is being restarted", self.definition.name);
        self.restart_fault(Code::RestartInProgress, message, now).retry_after_ms(1_000)
    }

    /// For calls in flight when the instance is over.
    pub fn end_fault(&mut self) -> Fault {
        let name = &self.definition.name;
        let Some(exit) = self.ended_by.take() else {
            return Fault::new(Code::ServerCrashed, format!("{name} was stopped with the call in flight"));
        };
        let (how, key, value) = match exit.cause {
            ExitCause::Code(code) => (format!("exited with code {code}"), "exit_code", code),
            ExitCause::Signal(signal) => (format!("was killed by signal {signal}"), "signal", signal),
        };
        Fault::new(Code::ServerCrashed, format!("{name} {how} with the call in flight"))
            .with(key, value)
            .with("oom", exit.oom)
    }

    /// One line for the log.
    pub fn summary(&self, now: Now) -> String {
        let (name, status) = (&self.definition.name, self.life.status().wire());
        let (in_flight, waiting) = (self.lane.in_flight().len(), self.lane.waiting());
        let (restarts, late) = (self.restart_count, self.said.late);
        let warnings = self.warnings(now).join("; ");
        format!(
            "server={name} status={status} in_flight={in_flight} waiting={waiting} restarts={restarts} late={late} {warnings}"
        )
    }

    /// What an operator should look at, in words.
    pub fn warnings(&self, now: Now) -> Vec<String> {
        let mut found = Vec::new();
        let silent_ms = self.pulse.as_ref().map_or(0, |pulse| now.mono_ms - pulse.heard_ms());
        match self.life.state() {
            State::Unresponsive { .. } => found.push(format!("unresponsive: silent for {silent_ms} ms")),
            State::Waiting { looping: true, .. } => {
                found.push(format!("crash loop, level {}", self.life.crash_level()));
            }
            State::Failed => found.push("given up: it is not started again by itself".to_string()),
            State::Down
            | State::Pulling
            | State::Due
            | State::Launching { .. }
            | State::Greeting { .. }
            | State::Ready { .. }
            | State::Mute { .. }
            | State::Stopping { .. }
            | State::Waiting { looping: false, .. } => {}
        }
        if self.pulse.as_ref().is_some_and(Pulse::is_stale) {
            found.push(format!("stale: silent for {silent_ms} ms"));
        }
        found
    }

    pub fn parent(&self) -> Option<ServerId> {
        self.kin.parent()
    }

    pub fn list(&self, list: Listing) -> &Cached {
        &self.lists[list as usize]
    }

    pub fn list_mut(&mut self, list: Listing) -> &mut Cached {
        &mut self.lists[list as usize]
    }

    /// Did the handshake name this capability?
    pub fn offers(&self, capability: &str) -> bool {
        let Some(advertised) = &self.advertised else { return false };
        serde_json::from_str::<HashMap<String, serde::de::IgnoredAny>>(&advertised.capabilities)
            .is_ok_and(|all| all.contains_key(capability))
    }

    /// Why did the handshake get no answer in time?
    pub fn diagnosis(&self) -> String {
        let wait_ms = self.definition.startup_timeout_ms;
        if !self.definition.stdio_bridge {
            let port = self.definition.ports.first().map_or(0, |port| port.container);
            return format!("nothing listens on its port {port} after {wait_ms} ms; does it listen on 0.0.0.0?");
        }
        let after = format!("no answer to initialize within {wait_ms} ms");
        match self.said {
            Said { content_length: true, .. } => {
                format!("{after}: it speaks Content-Length framing; set framing to content-length")
            }
            Said { noise_lines: 0, .. } => format!("{after}: it is silent; does it speak MCP on stdin and stdout?"),
            Said { noise_lines, .. } => format!("{after}: it wrote {noise_lines} lines to stdout that are no JSON-RPC"),
        }
    }
}
