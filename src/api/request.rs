//! What clients ask, once a request has been read and its rules are satisfied: one word for every route. The core knows
//! nothing of HTTP but these.

use crate::api::import::body::Candidate;
use crate::ids::{EventId, ServerId, SessionId};
use crate::model::definition::Definition;
use crate::model::external::{CallFilter, ExternalId, ExternalSpec, ProjectId, Secret};
use crate::model::rate::RateLimit;
use crate::wire::json::Json;
use crate::wire::jsonrpc::Message;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

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
    /// What would register the server again.
    Definition { server: ServerRef },
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
    /// Everything that is counted.
    Metrics,
    /// What a server used and did of late.
    Samples { server: ServerRef },
    Tools { server: ServerRef },
    /// MCP over HTTP; none: the endpoint that offers all servers at once.
    Mcp { server: Option<ServerRef>, ask: McpAsk<'a> },
    Ready,
    TokenCreate { wanted: TokenWanted },
    /// `grace_ms`: for so long the old secret goes on beside the new one.
    TokenRotate { name: String, grace_ms: u64 },
    TokenList,
    TokenRevoke { name: String },
    /// All that is sealed is sealed with a new key.
    KeyRotate,
    /// The external servers of all projects that the client may use.
    Projects,
    Project { project: ProjectId, ask: ProjectAsk<'a> },
    /// All that a document names, or nothing of it.
    Import { dry_run: bool, project: Option<ProjectId>, candidates: Vec<Candidate> },
}

/// What is asked of one project.
#[rustfmt::skip] // one line a word
#[derive(Debug)]
pub enum ProjectAsk<'a> {
    Servers,
    Server { server: ExternalRef },
    Create { spec: Box<ExternalSpec> },
    /// Merged by `api::projects::merge`.
    Patch { server: ExternalRef, change: Box<Change> },
    Delete { server: ExternalRef },
    Connect { server: ExternalRef },
    Disconnect { server: ExternalRef },
    Unload,
    SecretPut { name: String, value: Secret },
    SecretDelete { name: String },
    Secrets,
    /// All servers that the product has from here on.
    Manifest { product: String, servers: Vec<ExternalSpec> },
    Tools,
    CallTool(Box<ToolCall<'a>>),
    Calls(CallFilter),
    /// All servers of the project at once.
    Mcp(McpAsk<'a>),
}

/// `:id` of an external server: a UUID or a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExternalRef {
    Id(ExternalId),
    Name(String),
}

/// `POST /mcp/tools/call`.
#[derive(Debug)]
pub struct ToolCall<'a> {
    pub tool: String,
    /// A JSON object as the client wrote it.
    pub arguments: Option<Json<'a>>,
    /// The name or id of a server of the project, external or hosted.
    pub server: Option<String>,
    pub timeout_ms: Option<u64>,
    pub format: ResultFormat,
    pub run_id: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ResultFormat {
    Json,
    /// `result` is one string.
    Text,
}

/// A token that is to be made.
#[derive(Debug, Default)]
pub struct TokenWanted {
    pub name: String,
    pub scopes: Vec<String>,
    /// Both empty: all.
    pub servers: Vec<String>,
    pub projects: Vec<ProjectId>,
    /// From now on; none: for ever.
    pub lifetime_ms: Option<u64>,
    pub rate_limit: Option<RateLimit>,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
