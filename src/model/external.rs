//! Projects and what belongs to them: external servers (how to reach an MCP server as a client), secrets, and records of tool
//! calls. Plain data; how it is read and checked is `api::projects`, what becomes of it the core's. Invariant: the value of a
//! secret, of a header or of a variable is never shown by `Debug`.

use crate::ids::Uuid;
use crate::limits::NAME_MAX;
use crate::model::definition::Health;
pub use crate::model::endpoint::Transport as RemoteTransport;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// As a platform names its project: 1 to 63 letters, digits and `-`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ProjectId(Arc<str>);

impl ProjectId {
    pub fn new(text: &str) -> Result<ProjectId, String> {
        let is_one = (1..=NAME_MAX).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        match is_one {
            true => Ok(ProjectId(text.into())),
            false => Err(format!("must have 1 to {NAME_MAX} letters, digits or \"-\"")),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for ProjectId {
    type Error = String;

    fn try_from(text: String) -> Result<ProjectId, String> {
        ProjectId::new(&text)
    }
}

impl From<ProjectId> for String {
    fn from(id: ProjectId) -> String {
        id.0.to_string()
    }
}

impl fmt::Display for ProjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Of an external server, over all its changes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct ExternalId(pub Uuid);

impl fmt::Display for ExternalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A text that is not shown by accident.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// For whoever needs the text itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

// --- external servers -------------------------------------------------------------------------------------------------

/// One row of `kb.project_mcp_servers`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExternalServer {
    pub id: ExternalId,
    pub project: ProjectId,
    /// The product whose manifest has brought it.
    pub product: Option<String>,
    pub spec: ExternalSpec,
    pub created_unix_ms: u64,
    pub updated_unix_ms: u64,
}

/// What a client says of an external server. Texts may hold `${NAME}`, which are filled in when it is connected to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExternalSpec {
    /// Unique in its project, and no UUID.
    pub name: String,
    pub description: Option<String>,
    pub target: Target,
    pub enabled: bool,
    /// Tried again without end; otherwise once, and then with the next use.
    pub shared: bool,
    pub request_timeout_ms: u64,
    pub startup_timeout_ms: u64,
    pub health: Health,
    pub max_in_flight: u32,
    pub queue_max: u32,
    /// None: the schedule alone decides.
    pub breaker: Option<Breaker>,
}

impl ExternalSpec {
    /// Headers or variables of these names are as `other` has them, if it has them.
    pub fn keep_values_of<'n>(&mut self, other: &ExternalSpec, names: impl Iterator<Item = &'n str>) {
        let (own, others) = match (&mut self.target, &other.target) {
            (Target::Remote(own), Target::Remote(other)) => (&mut own.headers, &other.headers),
            (Target::Program(own), Target::Program(other)) => (&mut own.env, &other.env),
            (Target::Remote(_) | Target::Program(_), _) => return,
        };
        for name in names {
            if let Some((name, value)) = others.get_key_value(name) {
                own.insert(name.clone(), value.clone());
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Target {
    /// `stdio`: a program of the host, in a sandbox.
    Program(Program),
    /// `http`, `sse` or `ws`.
    Remote(Remote),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    pub command: String,
    pub args: Vec<String>,
    pub env: BTreeMap<String, Secret>,
    pub isolation: Isolation,
    pub network: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Isolation {
    Sandbox,
    /// Only where the configuration allows it.
    None,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remote {
    pub transport: RemoteTransport,
    pub url: String,
    /// By name in lower case.
    pub headers: BTreeMap<String, Secret>,
    /// The path of a file with certificates that are trusted beside the system's.
    pub tls_ca: Option<String>,
    pub auth: Option<ClientCredentials>,
}

impl Target {
    pub const TRANSPORTS: [&str; 4] = ["stdio", "http", "sse", "ws"];

    /// Its word on the wire and in the store.
    pub fn transport(&self) -> &'static str {
        match self {
            Target::Program(_) => "stdio",
            Target::Remote(remote) => match remote.transport {
                RemoteTransport::Http => "http",
                RemoteTransport::Sse => "sse",
                RemoteTransport::WebSocket => "ws",
            },
        }
    }
}

/// OAuth 2.1 client credentials.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientCredentials {
    pub token_url: String,
    pub client_id: String,
    pub client_secret: Secret,
    pub scope: Option<String>,
    pub resource: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Breaker {
    /// Attempts in a row that failed.
    pub attempts: u32,
    pub cooldown_ms: u64,
}

impl Default for Breaker {
    fn default() -> Breaker {
        Breaker { attempts: 3, cooldown_ms: 60_000 }
    }
}

/// How the link to an external server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkStatus {
    Idle,
    Connecting,
    Connected,
    Reconnecting,
    CircuitOpen,
    Failed,
    Disabled,
}

impl LinkStatus {
    pub const ALL: [LinkStatus; 7] = [
        LinkStatus::Idle,
        LinkStatus::Connecting,
        LinkStatus::Connected,
        LinkStatus::Reconnecting,
        LinkStatus::CircuitOpen,
        LinkStatus::Failed,
        LinkStatus::Disabled,
    ];

    pub fn wire(self) -> &'static str {
        match self {
            LinkStatus::Idle => "idle",
            LinkStatus::Connecting => "connecting",
            LinkStatus::Connected => "connected",
            LinkStatus::Reconnecting => "reconnecting",
            LinkStatus::CircuitOpen => "circuit_open",
            LinkStatus::Failed => "failed",
            LinkStatus::Disabled => "disabled",
        }
    }
}

/// What is shown of an external server, before it becomes JSON.
#[derive(Clone, Debug, PartialEq)]
pub struct ExternalView {
    pub server: Arc<ExternalServer>,
    pub status: LinkStatus,
    pub last_error: Option<String>,
    /// The names of its tools; none: not known yet.
    pub tools: Option<Vec<String>>,
    pub connected_since_unix_ms: Option<u64>,
    pub next_attempt_unix_ms: Option<u64>,
    /// `serverInfo` of the handshake, byte for byte.
    pub server_info: Option<Vec<u8>>,
    pub protocol_version: Option<String>,
}

impl ExternalView {
    /// Of one that nobody has used yet.
    pub fn unused(server: Arc<ExternalServer>) -> ExternalView {
        let status = if server.spec.enabled { LinkStatus::Idle } else { LinkStatus::Disabled };
        ExternalView {
            server,
            status,
            last_error: None,
            tools: None,
            connected_since_unix_ms: None,
            next_attempt_unix_ms: None,
            server_info: None,
            protocol_version: None,
        }
    }
}

// --- secrets ----------------------------------------------------------------------------------------------------------

/// One row of `kb.project_secrets`. In the store its value is sealed; the store seals and opens it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredSecret {
    pub project: ProjectId,
    pub name: String,
    pub value: SecretValue,
    pub created_unix_ms: u64,
    pub updated_unix_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SecretValue {
    Open(Secret),
    /// It is there, but cannot be opened: the key file is lost, or another one.
    Unreadable {
        why: String,
    },
}

/// What is shown of a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretView {
    pub name: String,
    pub created_unix_ms: u64,
    pub updated_unix_ms: u64,
    /// Why it cannot be used, if it cannot.
    pub unreadable: Option<String>,
}

impl From<&StoredSecret> for SecretView {
    fn from(secret: &StoredSecret) -> SecretView {
        let unreadable = match &secret.value {
            SecretValue::Open(_) => None,
            SecretValue::Unreadable { why } => Some(why.clone()),
        };
        SecretView {
            name: secret.name.clone(),
            created_unix_ms: secret.created_unix_ms,
            updated_unix_ms: secret.updated_unix_ms,
            unreadable,
        }
    }
}

/// The secrets of one project, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Secrets(pub BTreeMap<String, SecretValue>);

// --- records ----------------------------------------------------------------------------------------------------------

/// One row of `kb.agent_run_tool_calls`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCallRecord {
    pub id: Uuid,
    pub project: ProjectId,
    /// The name of the server, if the call got that far.
    pub server: Option<String>,
    pub tool: String,
    pub run_id: Option<String>,
    pub principal: String,
    /// As the client wrote them; none: there were none, they are not recorded, or they are too long.
    pub arguments: Option<String>,
    pub arguments_bytes: u64,
    pub is_error: bool,
    /// Of the daemon's fault, the server's JSON-RPC error, or `tool_error`.
    pub error_code: Option<String>,
    pub outcome: CallOutcome,
    pub started_unix_ms: u64,
    pub duration_ms: u64,
    pub result_bytes: u64,
}

/// Arguments are a client's own.
impl fmt::Debug for ToolCallRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ToolCallRecord");
        shown.field("id", &self.id).field("project", &self.project).field("server", &self.server);
        shown.field("tool", &self.tool).field("outcome", &self.outcome).finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallOutcome {
    Answered,
    NotSent,
    SentUnknown,
}

impl CallOutcome {
    pub const ALL: [CallOutcome; 3] = [CallOutcome::Answered, CallOutcome::NotSent, CallOutcome::SentUnknown];

    pub fn wire(self) -> &'static str {
        match self {
            CallOutcome::Answered => "answered",
            CallOutcome::NotSent => "not_sent",
            CallOutcome::SentUnknown => "sent_unknown",
        }
    }
}

/// Which records are wanted, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallFilter {
    pub server: Option<String>,
    pub tool: Option<String>,
    pub run_id: Option<String>,
    pub since_unix_ms: Option<u64>,
    pub limit: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_project_is_named_by_letters_digits_and_dashes() {
        for good in ["a", "A-1", "550e8400-e29b-41d4-a716-446655440000", &"x".repeat(63), "-"] {
            assert_eq!(ProjectId::new(good).unwrap().as_str(), good);
        }
        for bad in ["", "a_b", "a.b", "é", "a/b", "..", "a b", "\0", &"x".repeat(64)] {
            assert!(ProjectId::new(bad).is_err(), "{bad:?}");
            assert!(serde_json::from_value::<ProjectId>(bad.into()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn no_value_of_a_secret_is_shown_by_debug() {
        let secret = StoredSecret {
            project: ProjectId::new("p").unwrap(),
            name: "KEY".into(),
            value: SecretValue::Open(Secret::new("hunter2")),
            created_unix_ms: 0,
            updated_unix_ms: 0,
        };
        let remote = Remote {
            transport: RemoteTransport::Http,
            url: "http://h/".into(),
            headers: BTreeMap::from([("authorization".into(), Secret::new("hunter2"))]),
            tls_ca: None,
            auth: Some(ClientCredentials {
                token_url: "http://h/t".into(),
                client_id: "id".into(),
                client_secret: Secret::new("hunter2"),
                scope: None,
                resource: None,
            }),
        };
        let shown = format!("{secret:?} {:?} {remote:?}", SecretView::from(&secret));
        assert!(shown.contains("KEY") && !shown.contains("hunter2"), "{shown}");
    }
}
