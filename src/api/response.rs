//! What clients get, before it becomes an HTTP response: one word for every kind of answer, and the events of a stream.

use crate::api::import::Entry;
use crate::api::request::{LogFormat, ResultFormat};
use crate::ids::{EventId, SessionId};
use crate::model::definition::Definition;
use crate::model::external::{ExternalView, ProjectId, SecretView, ToolCallRecord};
use crate::model::fault::Fault;
use crate::model::log::LogEntry;
use crate::model::metrics::Metrics;
use crate::model::news::News;
use crate::model::records::Token;
use crate::model::status::StatusView;
use crate::model::tally::Sample;
use crate::wire::backlog::Shared;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

#[rustfmt::skip] // one line a word
#[derive(Debug, PartialEq)]
pub enum Answer {
    Registered(Box<StatusView>),
    Status(Box<StatusView>),
    List(Vec<StatusView>),
    Definition(Arc<Definition>),
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
    TokenCreated { token: Box<Token>, secret: String, rotated: bool },
    Tokens(Vec<Token>),
    TokenRevoked,
    KeyRotated,
    Metrics(Box<Metrics>),
    /// As Prometheus reads them.
    MetricsText(Vec<u8>),
    Samples(Vec<Sample>),
    ExternalCreated(Box<ExternalView>),
    External(Box<ExternalView>),
    Externals(Vec<ExternalView>),
    /// The links that were ended.
    Unloaded { links: usize },
    SecretStored(SecretView),
    Secrets(Vec<SecretView>),
    SecretDeleted,
    Manifest { project: ProjectId, product: String, entries: Vec<ManifestEntry> },
    ProjectTools { tools: Vec<ProjectTool>, unavailable: Vec<UnavailableServer> },
    /// The server's own result of `tools/call`, byte for byte.
    ToolResult { result: Vec<u8>, format: ResultFormat },
    Calls(Vec<ToolCallRecord>),
    Imported { dry_run: bool, entries: Vec<ImportedEntry> },
    Refused(Fault),
}

/// What a manifest has done to one server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ManifestEntry {
    pub name: String,
    pub action: ManifestAction,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ManifestAction {
    Created,
    Changed,
    /// It keeps its link.
    Unchanged,
    Removed,
}

/// What an import does, or would do, with one entry of its document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ImportedEntry {
    pub entry: Entry,
    pub action: ImportAction,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ImportAction {
    Create,
    /// The same server is there already.
    Unchanged,
    /// Another one of that name is.
    Taken,
    /// The document has it switched off.
    Disabled,
}

impl ImportAction {
    pub const ALL: [ImportAction; 4] =
        [ImportAction::Create, ImportAction::Unchanged, ImportAction::Taken, ImportAction::Disabled];

    pub fn wire(self) -> &'static str {
        match self {
            ImportAction::Create => "create",
            ImportAction::Unchanged => "unchanged",
            ImportAction::Taken => "name_taken",
            ImportAction::Disabled => "disabled",
        }
    }
}

/// A tool of a server of a project.
#[derive(Clone, Debug, PartialEq)]
pub struct ProjectTool {
    pub server: Arc<str>,
    /// The object that the server gave, byte for byte.
    pub tool: Shared,
}

/// A server of a project whose tools cannot be told.
#[derive(Clone, Debug, PartialEq)]
pub struct UnavailableServer {
    pub server: String,
    pub why: Fault,
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
