//! What the store holds and what is asked of it: rows, tokens, decisions, and the operations that change them. Plain data,
//! a part of the contract; reads and writes nothing itself.

use crate::ids::ServerId;
use crate::model::catalogue::Catalogue;
use crate::model::definition::Definition;
use crate::model::external::{CallFilter, ExternalId, ExternalServer, ProjectId, StoredSecret, ToolCallRecord};
use crate::model::fault::Fault;
use crate::model::rate::RateLimit;
use crate::model::status::{LastCrash, Status};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    pub servers: Vec<StoredServer>,
    /// Rows that break a rule.
    pub unfit: Vec<UnfitServer>,
    pub tokens: Vec<(uuid::Uuid, Token)>,
    /// What servers offered in an earlier life.
    pub catalogues: Vec<(ServerId, Catalogue)>,
    /// Servers that were deleted with their volumes, whose volumes may still be there.
    pub volume_removals: Vec<(ServerId, String)>,
    /// Those that break a rule are left out, and the log says why.
    pub externals: Vec<ExternalServer>,
    pub secrets: Vec<StoredSecret>,
}

/// A row that may not be started. What could be read of it is shown; a PATCH can put it right.
#[derive(Clone, Debug, PartialEq)]
pub struct UnfitServer {
    /// Its definition has a name that is harmless, whatever the row says.
    pub server: StoredServer,
    /// The field and the rule.
    pub why: Fault,
}

/// What was done at once, and must be in the store some time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    Stop {
        server: ServerId,
    },
    Delete {
        server: ServerId,
        name: String,
        volumes: bool,
    },
    /// The hash tells it from a later token of the same name.
    Revoke {
        name: String,
        hash: [u8; 32],
    },
}

/// One row of `kb.agent_workspaces`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredServer {
    pub id: ServerId,
    pub definition: Definition,
    pub desired_up: bool,
    pub status: StoredStatus,
    pub created_unix_ms: u64,
}

impl StoredServer {
    /// A server that is just being registered.
    pub fn new(id: ServerId, definition: Definition, created_unix_ms: u64) -> StoredServer {
        StoredServer { id, definition, desired_up: true, status: StoredStatus::default(), created_unix_ms }
    }
}

/// What is written behind: the last known state, for the next daemon and for whoever reads the table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StoredStatus {
    pub status: Status,
    pub restart_count: u64,
    pub last_crash: Option<LastCrash>,
    pub last_error: Option<String>,
    pub last_used_unix_ms: Option<u64>,
}

/// A bearer token as it is stored: its SHA-256, never itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    pub name: String,
    pub hash: [u8; 32],
    pub scopes: Vec<String>,
    /// The servers and projects that it is limited to; both empty: it is not.
    pub servers: Vec<String>,
    pub projects: Vec<ProjectId>,
    pub created_unix_ms: u64,
    /// None: never.
    pub expires_unix_ms: Option<u64>,
    pub last_used_unix_ms: Option<u64>,
    /// The one that it was rotated from, and until when that goes on.
    pub previous: Option<([u8; 32], u64)>,
    /// Its own; none: that of everybody.
    pub rate_limit: Option<RateLimit>,
}

#[rustfmt::skip] // one line a word
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum StoreOp {
    /// Also over a row of the same id: it is made to say what is true. Volumes under its name are its own from here on.
    InsertServer(Box<StoredServer>),
    /// Definition and desired state of a server that is there.
    UpdateServer { id: ServerId, definition: Arc<Definition>, desired_up: bool },
    /// Of a server whose row is left as it is otherwise.
    SetDesired { id: ServerId, up: bool },
    /// Also of a server that is not there: it undoes an insert whose fate is unknown. `volumes`: those under this name are
    /// still to be removed; none: none are.
    DeleteServer { id: ServerId, volumes: Option<String> },
    SaveStatus { id: ServerId, status: Box<StoredStatus> },
    /// What it offers, for the time when it does not run.
    SaveCatalogue { id: ServerId, catalogue: Box<Catalogue> },
    /// Also over one of the same name: the admin token of a data directory that is new.
    InsertToken { id: uuid::Uuid, token: Token },
    DeleteToken { name: String },
    /// Everything that is sealed is sealed with a new key, which takes the place of the old one.
    RotateKey,

    // --- projects
    /// A new one, or another version of one that is there. `Taken`: its name is another's in the project.
    PutExternal(Box<ExternalServer>),
    /// Also of one that is not there.
    DeleteExternal { id: ExternalId },
    /// In one transaction: these are all rows that the product has in the project from here on.
    ReplaceProduct { project: ProjectId, product: String, servers: Vec<ExternalServer> },
    /// In one transaction: all of these are new.
    Import { servers: Vec<StoredServer>, externals: Vec<ExternalServer> },
    /// Also over one of the same name.
    PutSecret(StoredSecret),
    DeleteSecret { project: ProjectId, name: String },
    /// Also of records that are there already: their fate was unknown.
    InsertCalls(Vec<ToolCallRecord>),
    DeleteCallsBefore { unix_ms: u64 },
    /// Answered by `Input::CallsRead`, unless it fails.
    ReadCalls { project: ProjectId, filter: CallFilter },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreOutcome {
    Committed,
    /// The database has another row with what must be unique, a name.
    Taken(String),
    /// The database refused it (any other constraint); it will refuse it again.
    Rejected(String),
    /// No connection, or it broke meanwhile: it may or may not have been committed.
    Unknown(String),
}
