//! The two vocabularies of the program. The shell turns kernel events into `Input`s and performs `Output`s; between
//! them the core decides. A reader who knows these enums knows the program.
//!
//! Inputs are in the past tense: they have happened. Outputs are imperative: the shell must do them, and what comes
//! of it is a later `Input`. Nothing here can fail, block or ask the time.

use crate::api::auth::Principal;
use crate::api::fault::Fault;
use crate::core::definition::{Definition, PullPolicy};
use crate::core::event_log::EventId;
pub use crate::core::records::{
    Decision, Snapshot, StoreOp, StoreOutcome, StoredServer, StoredStatus, Token, UnfitServer,
};
use crate::ids::{CallId, ConnId, InstanceId, PullId, ServerId, SessionId, StoreSeq};
use crate::shares::Short;
use crate::wire::backlog::Shared;
use crate::wire::json::Json;
use crate::wire::jsonrpc::Message;
use crate::wire::lines::Line;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::sync::Arc;

/// The time, read once per turn: `mono_ms` for every wait, `unix_ms` only to be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Now {
    pub mono_ms: u64,
    pub unix_ms: u64,
}

#[rustfmt::skip] // one line a word
#[derive(Debug)]
pub enum Input<'a> {
    // --- the daemon itself
    /// Whatever an earlier daemon left behind is gone, and it is known which providers work here, and why others do not.
    Swept { providers: Vec<String>, unusable: Vec<(String, String)> },
    /// SIGTERM or SIGINT.
    ShutdownAsked,
    /// The configuration was read again, and of what it says this may change while the daemon runs.
    Reconfigured { default_provider: String },

    // --- the store
    /// Connected. The first time it brings everything that was stored.
    StoreOpened { snapshot: Option<Box<Snapshot>> },
    StoreLost { why: String },
    StoreDone { seq: StoreSeq, outcome: StoreOutcome },
    /// As `KeepDecisions` wanted, or why they are not on disk.
    DecisionsKept { version: u64, outcome: Result<(), String> },

    // --- clients
    Asked { conn: ConnId, who: Principal, ask: Ask<'a> },
    ClientGone { conn: ConnId },

    // --- images
    /// It is here, or was all the time.
    Pulled { pull: PullId },
    PullProgressed { pull: PullId, step: PullStep },
    PullFailed { pull: PullId, why: LaunchFault },

    // --- instances
    Launched { instance: InstanceId },
    /// The port of a server without a bridge takes connections.
    PortOpened { instance: InstanceId },
    LaunchFailed { instance: InstanceId, why: LaunchFault },
    /// The server reads so little, or all servers together do, that there was no room for this call; it never left the
    /// daemon.
    Unwritten { call: CallId, short: Short },
    LineRead { instance: InstanceId, line: Line<'a> },
    /// Stdout is in the middle of a line.
    Stirred { instance: InstanceId },
    StdoutClosed { instance: InstanceId },
    StderrRead { instance: InstanceId, bytes: &'a [u8] },
    /// Always the last word about an instance that was launched; stdout has been read to its end before.
    Exited { instance: InstanceId, exit: Exit },
    /// As `RemoveVolumes` wanted, or why not all of them.
    VolumesRemoved { server: ServerId, outcome: Result<(), String> },

    // --- logs on disk
    LogRestored { server: ServerId, entries: Vec<LogEntry> },
}

#[rustfmt::skip] // one line a word
#[derive(Debug)]
pub enum Output {
    // --- clients
    Answer { conn: ConnId, answer: Answer },
    /// One more event on a stream that was opened with `Answer::Stream`, or a sign of life on one of `Answer::News`.
    Event { conn: ConnId, event: StreamEvent },
    /// One more on a stream that was opened with `Answer::News`.
    News { conn: ConnId, news: Arc<News> },
    /// No more will come on that stream.
    EndStream { conn: ConnId },

    // --- images
    /// See to it that the image is here: `Pulled` or `PullFailed` will follow, unless it is abandoned.
    Pull { pull: PullId, image: String, policy: PullPolicy },
    /// Nobody waits for it any more.
    AbandonPull { pull: PullId },

    // --- instances
    /// `server`: whose share it is that the instance takes.
    Launch { instance: InstanceId, server: ServerId, provider: String, definition: Arc<Definition> },
    /// See when its port answers.
    Knock { instance: InstanceId },
    /// Bytes for the server's stdin, one or more whole messages; of a call, if they are one.
    Write { instance: InstanceId, bytes: Vec<u8>, call: Option<CallId> },
    /// The daemon's own reply to something that the server asked. Who does not read them is not listened to either.
    Reply { instance: InstanceId, bytes: Vec<u8> },
    /// No more will be written: close stdin once it is flushed.
    CloseStdin { instance: InstanceId },
    Signal { instance: InstanceId, signal: StopSignal },
    /// The instance is over: remove its container, cgroup and files.
    Discard { instance: InstanceId },
    /// The server goes for good: remove its volumes too. `VolumesRemoved` follows, and only then may somebody else have the
    /// name, and new volumes under it.
    RemoveVolumes { server: ServerId, name: String },

    // --- logs on disk
    /// One more entry of the server's log; dropped and counted if the disk cannot follow.
    LogKeep { server: ServerId, entry: LogEntry },
    /// Read back what an earlier daemon kept; `LogRestored` follows.
    LogRestore { server: ServerId },
    LogRemove { server: ServerId },

    // --- the store
    Store { seq: StoreSeq, op: StoreOp },
    /// Keep these on disk, in place of those before, until the store has them. `DecisionsKept` follows; there is never more
    /// than one on its way.
    KeepDecisions { version: u64, decisions: Vec<Decision> },

    // --- the daemon itself
    /// Everything is down and written; leave.
    Exit,
}

// --- what clients ask, and what they get ------------------------------------------------------------------------

/// `:id` of a path: a UUID or a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerRef {
    Id(ServerId),
    Name(String),
}

#[rustfmt::skip] // one line a word
#[derive(Debug)]
pub enum Ask<'a> {
    Register { definition: Box<Definition>, wait: bool },
    List { status: Option<String>, name: Option<String> },
    Get { server: ServerRef },
    Patch { server: ServerRef, change: Box<Change> },
    /// `method` and `params` are valid JSON text, as the client wrote them (`method` with its quotes).
    Call { server: ServerRef, method: Json<'a>, params: Option<Json<'a>>, timeout_ms: Option<u64> },
    Restart { server: ServerRef },
    Stop { server: ServerRef },
    Start { server: ServerRef },
    Delete { server: ServerRef, volumes: bool },
    Logs { server: ServerRef, tail: usize, since_unix_ms: Option<u64>, follow: bool, format: LogFormat },
    /// The lifecycle of all servers that the client may see, as it happens.
    News,
    Tools { server: ServerRef },
    /// MCP over HTTP; none: the endpoint that offers all servers at once.
    Mcp { server: Option<ServerRef>, ask: McpAsk<'a> },
    Ready,
    TokenCreate { name: String, scopes: Vec<String>, servers: Vec<String> },
    TokenList,
    TokenRevoke { name: String },
}

/// What an MCP client does at an endpoint, once the rules of HTTP are satisfied.
#[rustfmt::skip] // one line a word
#[derive(Debug)]
pub enum McpAsk<'a> {
    /// Messages of a version that has sessions; more than one only in a batch. None: an `initialize`.
    Post { session: Option<SessionId>, takes: Takes, batch: bool, messages: Vec<Message<'a>> },
    /// A request of the version without sessions. Its headers agree with its body, but for those that a tool names.
    Stateless { request: Stateless<'a>, takes: Takes },
    /// The stream of what no request of the client has asked for, or the rest of a stream that was lost.
    Listen { session: SessionId, after: Option<EventId> },
    End { session: SessionId },
    /// The stream of the oldest version: its first event names where to post to.
    OldStream { post_to: String },
    OldPost { session: SessionId, message: Message<'a> },
}

#[derive(Debug)]
pub struct Stateless<'a> {
    pub id: Json<'a>,
    pub method: Cow<'a, str>,
    pub params: Json<'a>,
    /// Of its `_meta`, as it came.
    pub capabilities: Json<'a>,
    pub log_level: Option<String>,
    /// `Mcp-Param-*`: the part of the name after the prefix, and the value.
    pub param_headers: Vec<(String, String)>,
}

/// Which kinds of answer a client takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    Json,
    Stream,
    Either,
}

/// A new definition of a server, made from its present one; `enabled` stops or starts it.
#[derive(Debug)]
pub struct Change {
    /// The body of the PATCH, a JSON object; merged by `api::register::merge`.
    pub fields: serde_json::Map<String, serde_json::Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

#[rustfmt::skip] // one line a word
#[derive(Debug, PartialEq)]
pub enum Answer {
    Registered(Box<StatusView>),
    Status(Box<StatusView>),
    List(Vec<StatusView>),
    Deleted,
    /// The server's own `result`, byte for byte.
    Result(Vec<u8>),
    /// The server's own `error` object, byte for byte, and its code.
    ServerError { code: i64, error: Vec<u8> },
    /// The cached answer to `tools/list`, or none: the server has not told its tools yet.
    Tools(Option<Arc<[u8]>>),
    Logs { entries: Vec<LogEntry>, format: LogFormat },
    /// The present state of each server; the connection stays open for `Output::News`.
    News(Vec<News>),
    /// The first events of a stream; the connection stays open for `Output::Event`.
    Stream { session: Option<SessionId>, events: Vec<StreamEvent> },
    /// The server's own `result` to an MCP client, byte for byte, and the message up to it; only its end is missing.
    McpResult { before: String, result: Vec<u8> },
    /// A list that many clients get: the message up to its items, these, and the rest of the message.
    McpList { before: String, items: Vec<Shared>, behind: String },
    /// Any other JSON-RPC message to one.
    Message { status: u16, session: Option<SessionId>, body: Vec<u8> },
    /// Messages of an MCP client that need no answer.
    Accepted,
    SessionEnded,
    /// Providers by name, with the reason why one is not usable.
    Ready { ready: bool, reasons: Vec<String>, providers: Vec<(String, Option<String>)> },
    /// The only time the token itself is seen.
    TokenCreated { token: Token, secret: String },
    Tokens(Vec<Token>),
    TokenRevoked,
    Refused(Fault),
}

/// What goes over an event stream, before it becomes text.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamEvent {
    Log(LogEntry),
    /// One JSON-RPC message; with an id it can be asked for again.
    Message {
        id: Option<EventId>,
        data: Arc<[u8]>,
    },
    /// No message yet, but a place to resume from.
    Prime {
        id: EventId,
    },
    /// Where a client of the oldest version posts to.
    Endpoint(String),
    /// Nothing, so that nobody takes the silence for an end.
    KeepAlive,
}

/// The status object of SPEC §2, before it becomes JSON.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusView {
    pub id: ServerId,
    pub definition: Arc<Definition>,
    /// The provider in use, or the one the next start will use.
    pub provider: String,
    pub status: Status,
    pub bridge_connected: bool,
    pub restart_count: u64,
    pub last_crash: Option<LastCrash>,
    pub last_error: Option<String>,
    /// Something an operator should know though it works.
    pub warning: Option<String>,
    /// The network in use; `none` is loopback only.
    pub network: String,
    pub uptime_ms: Option<u64>,
    pub in_flight: usize,
    pub waiting: usize,
    pub crash_level: u32,
    /// Wall clock time of the next start, if one is scheduled.
    pub next_attempt_unix_ms: Option<u64>,
    /// `serverInfo` of the handshake, byte for byte.
    pub server_info: Option<Vec<u8>>,
    pub protocol_version: Option<String>,
    /// The instance that `usage` is read from when the answer is given.
    pub instance: Option<InstanceId>,
    /// When anything valid last came from it.
    pub last_heard_unix_ms: Option<u64>,
    /// What an operator should look at.
    pub warnings: Vec<String>,
    pub usage: Option<Usage>,
    pub image_pull: Option<ImagePull>,
    pub created_unix_ms: u64,
    pub last_used_unix_ms: Option<u64>,
}

/// The last pull of a server's image, as far as it has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImagePull {
    pub state: PullState,
    /// The digest of the layer that was last heard of.
    pub layer: Option<String>,
    /// Of all layers that come.
    pub bytes: u64,
    pub total: u64,
    pub error: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullState {
    /// For the registry, or for other pulls.
    Waiting,
    Downloading,
    Unpacking,
    Done,
    Failed,
}

impl PullState {
    pub fn wire(self) -> &'static str {
        match self {
            PullState::Waiting => "waiting",
            PullState::Downloading => "downloading",
            PullState::Unpacking => "unpacking",
            PullState::Done => "done",
            PullState::Failed => "failed",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Starting,
    Ready,
    Unresponsive,
    Stopping,
    Stopped,
    Restarting,
    Backoff,
    Failed,
}

impl Status {
    pub fn wire(self) -> &'static str {
        match self {
            Status::Starting => "starting",
            Status::Ready => "ready",
            Status::Unresponsive => "unresponsive",
            Status::Stopping => "stopping",
            Status::Stopped => "stopped",
            Status::Restarting => "restarting",
            Status::Backoff => "backoff",
            Status::Failed => "failed",
        }
    }

    pub fn container_status(self) -> &'static str {
        match self {
            Status::Starting | Status::Ready | Status::Unresponsive | Status::Stopping => "running",
            Status::Stopped | Status::Failed => "stopped",
            Status::Restarting | Status::Backoff => "restarting",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LastCrash {
    pub at_unix_ms: u64,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub oom: bool,
    pub stderr_tail: Vec<String>,
}

/// What the cgroup says of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Usage {
    pub cpu_percent: f64,
    pub cpu_ms_total: u64,
    pub memory_bytes: u64,
    pub pids: u64,
    pub disk_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    pub at_unix_ms: u64,
    pub instance: Option<InstanceId>,
    pub source: LogSource,
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogSource {
    Stderr,
    /// Stdout that was no JSON-RPC.
    Noise,
    Lifecycle,
    /// A warning about its health.
    Health,
}

/// Something that happened to a server, for those who watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    pub at_unix_ms: u64,
    pub server: ServerId,
    pub name: String,
    pub instance: Option<InstanceId>,
    pub kind: NewsKind,
    /// The status before, of a transition.
    pub from: Option<Status>,
    pub to: Status,
    pub why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewsKind {
    /// How it is when the watching begins.
    State,
    Transition,
    /// Its health is not as it should be.
    Warning,
    /// Registered or removed.
    Presence,
}

// --- instances ----------------------------------------------------------------------------------------------------

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopSignal {
    Term,
    Kill,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    pub cause: ExitCause,
    /// The kernel's OOM killer was at work in its cgroup.
    pub oom: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitCause {
    Code(i32),
    Signal(i32),
}

/// Why a container could not be started at all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchFault {
    pub kind: LaunchFaultKind,
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LaunchFaultKind {
    ImageNotFound,
    ProviderUnusable,
    Rootfs,
    Network,
    Runtime,
    Internal,
}

/// What a puller says, one line each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PullStep {
    /// It is not here, or must be looked for: the registry will be asked.
    Due,
    /// The registry has it: so many layers, and so many bytes to come.
    Resolved {
        digest: String,
        layers: usize,
        bytes: u64,
    },
    /// `index` counts from 1; `bytes` and `total` are of all layers that come.
    Layer {
        index: usize,
        of: usize,
        layer: String,
        state: LayerState,
        layer_bytes: u64,
        layer_total: u64,
        bytes: u64,
        total: u64,
    },
    /// The last word, or this:
    Done {
        digest: String,
    },
    Failed(LaunchFault),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerState {
    Downloading,
    Downloaded,
    /// Another image has brought it.
    Present,
    Unpacking,
}
