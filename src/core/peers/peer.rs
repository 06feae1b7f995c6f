//! One MCP conversation with a server: its handshake, its calls, its health and what it offers. Which conversation of the
//! server it is says its role; how it is carried is known to `life` alone. Holds state and answers questions about it; what
//! happens to it is decided in `hosting/lifecycle.rs` and done by the core. Invariant: it belongs to one registered server.

use crate::core::contract::Now;
use crate::core::hosting::idle::Rest;
use crate::core::hosting::lifecycle::{Lifecycle, State, Then};
use crate::core::links::external::Carrier;
use crate::core::peers::calls::Lane;
use crate::core::peers::health::Pulse;
use crate::core::peers::life::Life;
use crate::core::peers::listings::{Cached, Listing};
use crate::core::peers::unanswered::Unanswered;
use crate::ids::{InstanceId, PeerId, ServerId, SessionId};
use crate::limits::{PULL_WAIT, STOP_GRACE};
use crate::model::definition::{Definition, Source};
use crate::model::fault::{Code, Fault, Outcome};
use crate::model::instance::{Exit, ExitCause};
use crate::model::protocol::Level;
use crate::model::status::{LastCrash, Status};
use crate::wire::times::rfc3339;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// `last_used_at` is written at most this often.
pub(in crate::core) const LAST_USED_STEP_MS: u64 = 30_000;

/// Whom a conversation is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// For everybody, unless one of the others is there for them.
    Main,
    /// For clients without sessions, where the server speaks their version too.
    Stateless,
    /// For this session alone, where the server is not shared.
    Session(SessionId),
}

#[derive(Serialize, Deserialize)]
pub struct Peer {
    pub id: PeerId,
    pub server: ServerId,
    pub role: Role,
    /// The server's; of any but the main one without its ports.
    pub definition: Arc<Definition>,
    pub life: Life,
    pub lane: Lane,
    pub hello: Option<Hello>,
    /// What the last handshake told that clients are told in turn; it outlives the instance.
    pub advertised: Option<Advertised>,
    /// What it offers, in the order of `Listing`.
    lists: [Cached; 4],
    /// Which of the two eras its handshake was of.
    pub dialect: Dialect,
    pub opening: Opening,
    /// The daemon's own subscription at a server without sessions.
    pub listen: Option<u64>,
    /// By tool: its parameters that clients repeat in a header.
    pub header_params: HashMap<String, Vec<HeaderParam>>,
    /// Of the resources that it lists.
    #[serde(serialize_with = "crate::model::frozen::sorted")]
    pub resource_uris: HashSet<String>,
    /// Of the tools that it lists; of a main peer only.
    #[serde(serialize_with = "crate::model::frozen::sorted")]
    pub tool_names: HashSet<String>,
    /// The log level that the present instance was told.
    pub level: Option<Level>,
    pub restart_count: u64,
    /// The next launch is a restart.
    pub restart_due: bool,
    pub last_crash: Option<LastCrash>,
    pub last_error: Option<String>,
    /// How the instance that is just being discarded ended.
    pub ended_by: Option<Exit>,
    /// Why the present instance is being put down, if it is.
    pub put_down_for: Option<String>,
    /// The last instance never became ready.
    pub start_failed: bool,
    /// Of an instance that is ready and has a bridge.
    pub pulse: Option<Pulse>,
    pub said: Said,
    #[serde(default)]
    pub rest: Rest,
    /// When a use of it was last noted.
    used_unix_ms: Option<u64>,
    /// The instance that fetches its packages, if one does.
    pub installing: Option<InstanceId>,
    /// Nobody needs it any more: it is forgotten once it is down.
    pub leaving: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Dialect {
    /// `initialize`, up to 2025-11-25. Also of servers that know no handshake at all.
    Sessions,
    /// 2026-07-28.
    Stateless,
}

/// Which of the two handshakes is under way, and what is known by then.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub enum Opening {
    #[default]
    Initialize,
    /// Over Streamable HTTP the era without sessions is asked for first. `again`: it was refused for its version, and offered.
    DiscoverFirst { again: bool },
    /// The answer to that was no.
    InitializeAfter,
    /// It does not want to be initialized, and is asked for the other era.
    DiscoverAfter(Refusal),
}

/// An `initialize` that was answered with an error.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Refusal {
    pub code: i64,
    pub said: String,
}

/// What the handshake told.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Hello {
    pub server_info: Option<Vec<u8>>,
    pub protocol_version: Option<String>,
}

/// What clients of a server are told of it, as JSON text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advertised {
    pub capabilities: String,
    pub server_info: String,
    pub instructions: Option<String>,
}

/// A parameter of a tool and the name of its header, without the prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeaderParam {
    pub property: String,
    pub header: String,
}

/// What came from the present instance's stdout besides answers; it tells why a handshake fails.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Said {
    pub noise_lines: u64,
    pub content_length: bool,
    /// Answers to calls that had ended, over all instances.
    pub late: u64,
}

impl Peer {
    pub fn new(id: PeerId, server: ServerId, role: Role, definition: Arc<Definition>) -> Peer {
        Peer {
            id,
            server,
            role,
            definition,
            life: Life::Hosted(Lifecycle::default()),
            lane: Lane::default(),
            hello: None,
            advertised: None,
            lists: Default::default(),
            dialect: Dialect::Sessions,
            opening: Opening::Initialize,
            listen: None,
            header_params: HashMap::new(),
            resource_uris: HashSet::new(),
            tool_names: HashSet::new(),
            level: None,
            restart_count: 0,
            restart_due: false,
            last_crash: None,
            last_error: None,
            ended_by: None,
            put_down_for: None,
            start_failed: false,
            pulse: None,
            said: Said::default(),
            rest: Rest::default(),
            used_unix_ms: None,
            installing: None,
            leaving: false,
        }
    }

    /// A new instance begins: what was known of the last one alone is forgotten.
    pub fn begin_instance(&mut self) {
        self.restart_count += u64::from(std::mem::take(&mut self.restart_due));
        self.lane.unanswered = Unanswered::default();
        (self.hello, self.put_down_for) = (None, None);
        (self.level, self.listen, self.opening) = (None, None, Opening::Initialize);
        Listing::ALL.into_iter().for_each(|list| self.list_mut(list).new_instance());
        self.said = Said { late: self.said.late, ..Said::default() };
    }

    /// Is this the instance that fetches its packages? It is no server yet, and what it says is for the log alone.
    pub fn is_installing(&self, instance: InstanceId) -> bool {
        self.installing == Some(instance)
    }

    /// How long a client may wait for it from now on: a start, and before it the image or the packages. A little longer than the
    /// start itself may take: its own deadline comes first, and says more than that this one has passed.
    pub fn start_wait_ms(&self) -> u64 {
        let before_ms = match self.life.state() {
            State::Pulling => PULL_WAIT.as_millis() as u64,
            State::Installing { .. } => self.definition.install_timeout_ms,
            State::Down
            | State::InstallDue { .. }
            | State::Due
            | State::Launching { .. }
            | State::Greeting { .. }
            | State::Ready { .. }
            | State::Unresponsive { .. }
            | State::Mute { .. }
            | State::Stopping { .. }
            | State::Waiting { .. }
            | State::Asleep { .. }
            | State::Failed => 0,
        };
        self.definition.startup_timeout_ms + before_ms + STOP_GRACE.as_millis() as u64
    }

    /// Somebody has a use for it. True: that is to be noted, which it is now and then.
    pub fn is_used(&mut self, now_unix_ms: u64) -> bool {
        let is_due = self.used_unix_ms.is_none_or(|at| now_unix_ms.saturating_sub(at) > LAST_USED_STEP_MS);
        if is_due {
            self.used_unix_ms = Some(now_unix_ms);
        }
        is_due
    }

    pub fn image(&self) -> Option<&str> {
        match &self.definition.source {
            Source::Image(image) => Some(image),
            Source::HostRootfs => None,
        }
    }

    /// As it is told.
    pub fn status(&self) -> Status {
        match self.life.status() {
            Status::Ready if self.rest.is_told && self.rest.dozing_since_ms.is_some() => Status::Asleep,
            status => status,
        }
    }

    pub fn next_start_in(&self, now: Now) -> Option<u64> {
        self.life.next_start_in(&self.definition, now.mono_ms)
    }

    /// May a call that has not been sent wait for this server? It may if the next start is due before its deadline.
    pub fn admits(&self, deadline_ms: u64, now: Now) -> Result<(), Fault> {
        let name = &self.definition.name;
        if let Life::External(life) = &self.life {
            return life.admits(name, self.last_error.as_deref(), now);
        }
        match self.life.state() {
            State::Ready { .. }
            | State::Unresponsive { .. }
            | State::Pulling
            | State::Installing { .. }
            | State::Due
            | State::Launching { .. }
            | State::Greeting { .. }
            | State::Mute { .. }
            // It is woken, or started again when it has gone to rest.
            | State::Asleep { .. }
            | State::Stopping {
                then: Then::Sleep | Then::Wake | Then::Restart | Then::Install | Then::Crash { .. },
                ..
            } => Ok(()),
            State::Down | State::Stopping { then: Then::Down, .. } => {
                let message = format!("{name} is stopped; `POST …/{name}/start` starts it");
                Err(Fault::new(Code::ServerStopped, message).outcome(Outcome::NotSent))
            }
            State::Failed => {
                let cause = self.last_error.clone().unwrap_or_default();
                let message = format!("{name} could not be restarted and was given up: {cause}");
                Err(self.restart_fault(Code::RestartFailed, message, now).outcome(Outcome::NotSent))
            }
            State::Waiting { until_ms, .. } | State::InstallDue { until_ms } if *until_ms < deadline_ms => Ok(()),
            State::Waiting { until_ms, .. } | State::InstallDue { until_ms } => {
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
        let what = match self.life {
            Life::Hosted(_) => "restarted",
            Life::External(_) => "connected again",
        };
        let message = format!("{} is unresponsive and is being {what}", self.definition.name);
        self.restart_fault(Code::RestartInProgress, message, now).retry_after_ms(1_000)
    }

    /// For calls in flight when the instance is over.
    pub fn end_fault(&mut self) -> Fault {
        let name = &self.definition.name;
        // Of a program it is known how it ended, whoever it belongs to; of a connection only that it did.
        let Some(exit) = self.ended_by.take() else {
            return match self.life {
                Life::Hosted(_) => {
                    Fault::new(Code::ServerCrashed, format!("{name} was stopped with the call in flight"))
                }
                Life::External(_) => {
                    let message = format!("the connection to {name} ended with the call in flight");
                    Fault::new(Code::UpstreamUnavailable, message)
                }
            };
        };
        let (how, key, value) = match exit.cause {
            ExitCause::Code(code) => (format!("exited with code {code}"), "exit_code", code),
            ExitCause::Signal(signal) => (format!("was killed by signal {signal}"), "signal", signal),
        };
        Fault::new(Code::ServerCrashed, format!("{name} {how} with the call in flight"))
            .with(key, value)
            .with("oom", exit.oom)
    }

    /// What an operator should look at, in words.
    pub fn warnings(&self, now: Now) -> Vec<String> {
        let mut found = Vec::new();
        let silent_ms = self.pulse.as_ref().map_or(0, |pulse| now.mono_ms - pulse.heard_ms());
        match self.life.state() {
            State::Unresponsive { .. } => found.push(format!("unresponsive: silent for {silent_ms} ms")),
            State::Waiting { looping: true, .. } => found.push(match self.life {
                Life::Hosted(_) => format!("crash loop, level {}", self.life.crash_level()),
                Life::External(_) => "circuit open: it has failed too often and is left alone".to_string(),
            }),
            State::Failed => found.push(match self.life {
                Life::Hosted(_) => "given up: it is not started again by itself".to_string(),
                Life::External(_) => "given up: it is tried again with its next use".to_string(),
            }),
            State::Down
            | State::Pulling
            | State::Installing { .. }
            | State::InstallDue { .. }
            | State::Due
            | State::Launching { .. }
            | State::Greeting { .. }
            | State::Ready { .. }
            | State::Mute { .. }
            | State::Stopping { .. }
            | State::Asleep { .. }
            | State::Waiting { looping: false, .. } => {}
        }
        if self.pulse.as_ref().is_some_and(Pulse::is_stale) {
            found.push(format!("stale: silent for {silent_ms} ms"));
        }
        found
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
        if let Life::External(life) = &self.life
            && life.carrier() == Carrier::Network
        {
            return format!("{after}: the external server is silent; does it speak MCP at this url?");
        }
        match self.said {
            Said { content_length: true, .. } => {
                format!("{after}: it speaks Content-Length framing; set framing to content-length")
            }
            Said { noise_lines: 0, .. } => format!("{after}: it is silent; does it speak MCP on stdin and stdout?"),
            Said { noise_lines, .. } => format!("{after}: it wrote {noise_lines} lines to stdout that are no JSON-RPC"),
        }
    }
}
