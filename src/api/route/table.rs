//! The rows of the table of routes, and nothing else. `api::route` says what a row is and finds it.

use super::{
    AUDIT, Family, HOSTED, IMPORT, KEY_ROTATION, Kind, MCP, Media, MemberKind, PROJECTS, PROTECTED, PROTECTED_HOSTED,
    PROTECTED_MCP, PROTECTED_PROJECTS, PROTECTED_SERVERS, PROTECTED_SHORT_PROJECTS, Parameter, Path, Reader, Row,
    SERVERS, SHORT_PROJECTS, Success, TOKENS, UPGRADE, page, projects, protected, tokens,
};
use crate::api::auth::proof;
use crate::api::mcp::Door;
use crate::api::request::ServerRef;
use crate::api::rest::{Incoming, Interpreted, asks};
use crate::limits::{AUDIT_LIMIT_DEFAULT, AUDIT_LIMIT_MAX, LOG_LINES_KEPT, LOG_TAIL_DEFAULT};
use crate::model::fault::{Code, Fault};
use crate::model::principal::Need;
use crate::wire::http_in::Method::{Delete, Get, Patch, Post};

/// Hot ones first: a call is found by the first comparison of each kind.
pub static FAMILIES: [Family; 12] = [
    Family { bases: &[SERVERS, HOSTED], member: MemberKind::Server, paths: OF_SERVER },
    Family { bases: &[MCP], member: MemberKind::Server, paths: OF_SHORT },
    Family { bases: &[PROJECTS], member: MemberKind::ProjectServer, paths: projects::OF_EXTERNAL },
    Family { bases: &[PROJECTS], member: MemberKind::ProjectSecret, paths: projects::OF_SECRET },
    Family { bases: &[PROJECTS], member: MemberKind::Product, paths: projects::OF_PRODUCT },
    Family { bases: &[PROJECTS], member: MemberKind::Project, paths: projects::OF_PROJECT },
    Family { bases: &[SHORT_PROJECTS], member: MemberKind::Project, paths: projects::OF_SHORT },
    Family { bases: &[TOKENS], member: MemberKind::Token, paths: tokens::OF_TOKEN },
    Family { bases: &[PROTECTED_MCP], member: MemberKind::Server, paths: protected::OF_SHORT },
    Family { bases: &[PROTECTED_SERVERS, PROTECTED_HOSTED], member: MemberKind::Server, paths: protected::OF_SERVER },
    Family {
        bases: &[PROTECTED_PROJECTS, PROTECTED_SHORT_PROJECTS],
        member: MemberKind::Project,
        paths: protected::OF_PROJECT,
    },
    Family { bases: &[""], member: MemberKind::Nothing, paths: FIXED },
];

const STATUS: &[Media] = &[Media::Json("Status")];
const CHANGED: &[Success] = &[Success { status: 200, about: "What the server is now.", content: STATUS }];

const OF_SERVER: &[Path] = &[
    Path {
        rest: "/call",
        rows: &[Row {
            method: Post,
            needs: Need::Call,
            query: &[],
            reader: Reader::OfServer(asks::call),
            summary: "Send one JSON-RPC request to a server and wait for its answer",
            body: Some("Call"),
            answers: &[Success {
                status: 200,
                about: "The server's own result, byte for byte.",
                content: &[Media::Json("CallResult")],
            }],
            faults: &[
                Code::BridgeDisabled,
                Code::ServerStopped,
                Code::QueueFull,
                Code::RestartFailed,
                Code::ServerCrashed,
                Code::ResponseTooLarge,
                Code::BadServerOutput,
                Code::RestartInProgress,
                Code::CallTimeout,
            ],
        }],
    },
    Path { rest: "", rows: ONE_SERVER },
    Path {
        rest: "/definition",
        rows: &[Row {
            method: Get,
            needs: Need::Read,
            query: &[],
            reader: Reader::OfServer(asks::definition),
            summary: "A server's definition, as it would be registered again",
            body: None,
            answers: &[Success {
                status: 200,
                about: "What `POST` takes, but for the values of the environment, which are `null`.",
                content: &[Media::Json("StoredDefinition")],
            }],
            faults: &[],
        }],
    },
    Path {
        rest: "/restart",
        rows: &[Row {
            summary: "Stop a server and start a new instance of it; its crash counters begin anew",
            ..lifecycle(asks::restart)
        }],
    },
    Path {
        rest: "/stop",
        rows: &[Row { summary: "Stop a server; it stays stopped until it is started", ..lifecycle(asks::stop) }],
    },
    Path {
        rest: "/start",
        rows: &[Row { summary: "Start a server, and wait until it is ready", ..lifecycle(asks::start) }],
    },
    Path {
        rest: "/logs",
        rows: &[Row {
            method: Get,
            needs: Need::Read,
            query: &[
                Parameter {
                    name: "tail",
                    kind: Kind::Count { default: LOG_TAIL_DEFAULT, max: LOG_LINES_KEPT },
                    about: "How many of the last entries.",
                },
                Parameter { name: "since", kind: Kind::Time, about: "Only entries of this time or later." },
                Parameter {
                    name: "follow",
                    kind: Kind::Flag { default: false },
                    about: "Stay connected: later entries come as events.",
                },
            ],
            reader: Reader::OfServer(asks::logs),
            summary: "The last lines of a server's stderr and the events of its lifecycle",
            body: None,
            answers: &[Success {
                status: 200,
                about: "Text or JSON, by `Accept`; with `follow=true` a stream of events, of which each has a log entry as \
                        its data.",
                content: &[Media::Text, Media::Json("Logs"), Media::Events],
            }],
            faults: &[Code::Unavailable],
        }],
    },
    Path {
        rest: "/tools",
        rows: &[Row {
            method: Get,
            needs: Need::ReadOrCall,
            query: &[],
            reader: Reader::OfServer(asks::tools),
            summary: "The tools a server offers, as it last told them",
            body: None,
            answers: &[Success {
                status: 200,
                about: "The result of `tools/list`, or `null` if the server has told none yet.",
                content: &[Media::Json("Tools")],
            }],
            faults: &[],
        }],
    },
    Path {
        rest: "/samples",
        rows: &[Row {
            method: Get,
            needs: Need::Read,
            query: &[],
            reader: Reader::OfServer(asks::samples),
            summary: "What a server used and did in the last ten minutes",
            body: None,
            answers: &[Success {
                status: 200,
                about: "One for every few seconds in which it ran, the oldest first.",
                content: &[Media::Json("Samples")],
            }],
            faults: &[],
        }],
    },
    Path { rest: "/mcp", rows: MAIN },
    Path { rest: "/sse", rows: OLD_STREAM },
    Path { rest: "/messages", rows: OLD_POST },
];

/// What needs nothing but the server's name, and answers with what the server is then.
const fn lifecycle(read: for<'r, 'a> fn(ServerRef, Incoming<'r, 'a>) -> Result<Interpreted<'a>, Fault>) -> Row {
    Row {
        method: Post,
        needs: Need::Write,
        query: &[],
        reader: Reader::OfServer(read),
        summary: "",
        body: None,
        answers: CHANGED,
        faults: &[Code::RestartFailed, Code::ServerStopped, Code::StoreUnavailable],
    }
}

const ONE_SERVER: &[Row] = &[
    Row {
        method: Get,
        needs: Need::Read,
        query: &[],
        reader: Reader::OfServer(asks::get),
        summary: "What a server is and how it does",
        body: None,
        answers: CHANGED,
        faults: &[],
    },
    Row {
        method: Patch,
        needs: Need::Write,
        query: &[],
        reader: Reader::OfServer(asks::patch),
        summary: "Change a server's definition, or stop and start it by `enabled`; it is restarted only if it must be",
        body: Some("Change"),
        answers: CHANGED,
        faults: &[Code::PortTaken, Code::ImageNotFound, Code::ProviderUnusable, Code::StoreUnavailable],
    },
    Row {
        method: Delete,
        needs: Need::Write,
        query: &[Parameter {
            name: "volumes",
            kind: Kind::Flag { default: false },
            about: "Remove what is in its volumes too.",
        }],
        reader: Reader::OfServer(asks::delete),
        summary: "Stop a server and remove it",
        body: None,
        answers: &[Success { status: 204, about: "It is gone.", content: &[] }],
        faults: &[Code::StoreUnavailable],
    },
];

const OF_SHORT: &[Path] = &[
    Path { rest: "", rows: MAIN },
    Path { rest: "/sse", rows: OLD_STREAM },
    Path { rest: "/messages", rows: OLD_POST },
];

const FIXED: &[Path] = &[
    Path { rest: PROTECTED, rows: protected::OF_ALL },
    Path { rest: PROTECTED_MCP, rows: protected::OF_ALL },
    Path { rest: SERVERS, rows: ALL_SERVERS },
    Path { rest: HOSTED, rows: ALL_SERVERS },
    Path {
        rest: "/healthz",
        rows: &[Row {
            method: Get,
            needs: Need::Nothing,
            query: &[],
            reader: Reader::Plain(asks::healthz),
            summary: "Is the daemon alive?",
            body: None,
            answers: &[Success { status: 200, about: "It is.", content: &[Media::Json("Health")] }],
            faults: &[],
        }],
    },
    Path {
        rest: "/readyz",
        rows: &[Row {
            method: Get,
            needs: Need::Nothing,
            query: &[],
            reader: Reader::Plain(asks::readyz),
            summary: "Can the daemon take calls and changes, and which providers are usable?",
            body: None,
            answers: &[Success { status: 200, about: "It can.", content: &[Media::Json("Readiness")] }],
            faults: &[Code::Unavailable],
        }],
    },
    Path {
        rest: "/metrics",
        rows: &[Row {
            method: Get,
            needs: Need::Scrape,
            query: &[],
            reader: Reader::Plain(asks::metrics),
            summary: "Everything that is counted, for Prometheus",
            body: None,
            answers: &[Success {
                status: 200,
                about: "The text format 0.0.4. A token that is limited to some servers sees those.",
                content: &[Media::Text],
            }],
            faults: &[],
        }],
    },
    Path {
        rest: "/openapi.json",
        rows: &[Row {
            method: Get,
            needs: Need::Nothing,
            query: &[],
            reader: Reader::Plain(asks::openapi),
            summary: "This document",
            body: None,
            answers: &[Success { status: 200, about: "OpenAPI 3.1.", content: &[Media::Json("OpenApi")] }],
            faults: &[],
        }],
    },
    Path { rest: "/", rows: page::DOCUMENT },
    Path { rest: "/page/page.css", rows: page::STYLE },
    Path { rest: "/page/icon.svg", rows: page::ICON },
    Path { rest: "/page/api.js", rows: page::SCRIPT },
    Path { rest: "/page/charts.js", rows: page::SCRIPT },
    Path { rest: "/page/dom.js", rows: page::SCRIPT },
    Path { rest: "/page/external.js", rows: page::SCRIPT },
    Path { rest: "/page/head.js", rows: page::SCRIPT },
    Path { rest: "/page/hosted.js", rows: page::SCRIPT },
    Path { rest: "/page/importing.js", rows: page::SCRIPT },
    Path { rest: "/page/known.js", rows: page::SCRIPT },
    Path { rest: "/page/list.js", rows: page::SCRIPT },
    Path { rest: "/page/live.js", rows: page::SCRIPT },
    Path { rest: "/page/logs.js", rows: page::SCRIPT },
    Path { rest: "/page/main.js", rows: page::SCRIPT },
    Path { rest: "/page/register.js", rows: page::SCRIPT },
    Path { rest: "/page/schema_form.js", rows: page::SCRIPT },
    Path { rest: "/page/snippets.js", rows: page::SCRIPT },
    Path { rest: "/page/text.js", rows: page::SCRIPT },
    Path { rest: "/page/tools.js", rows: page::SCRIPT },
    Path { rest: PROJECTS, rows: projects::ALL },
    Path { rest: MCP, rows: MAIN },
    Path { rest: "/sse", rows: OLD_STREAM },
    Path { rest: "/messages", rows: OLD_POST },
    Path {
        rest: "/api/v1/mcp/events",
        rows: &[Row {
            method: Get,
            needs: Need::Read,
            query: &[],
            reader: Reader::Plain(asks::events),
            summary: "The lifecycle of all servers that the caller may see, as it happens",
            body: None,
            answers: &[Success {
                status: 200,
                about: "First one `state` event for each hosted server, then `transition`, `warning` and `presence` events; of an \
                        external server, `link` events.",
                content: &[Media::Events],
            }],
            faults: &[Code::Unavailable],
        }],
    },
    Path { rest: TOKENS, rows: tokens::ALL },
    Path {
        rest: KEY_ROTATION,
        rows: &[Row {
            method: Post,
            needs: Need::TokensWrite,
            query: &[],
            reader: Reader::Plain(asks::key_rotate),
            summary: "Seal all secrets with a new key",
            body: None,
            answers: &[Success { status: 204, about: "The new key is in the place of the old one.", content: &[] }],
            faults: &[Code::StoreUnavailable],
        }],
    },
    Path {
        rest: UPGRADE,
        rows: &[Row {
            method: Post,
            needs: Need::TokensWrite,
            query: &[],
            reader: Reader::Plain(asks::upgrade),
            summary: "Go on as another program: nothing restarts, no connection ends but those that speak TLS",
            body: Some("Upgrade"),
            answers: &[
                Success {
                    status: 200,
                    about: "Answered by the new program: the daemon is that now.",
                    content: &[Media::Json("Upgraded")],
                },
                Success {
                    status: 202,
                    about: "On a connection that speaks TLS, which cannot go along: the new program can go on, and is about to.",
                    content: &[Media::Json("Upgrading")],
                },
            ],
            faults: &[Code::Unavailable],
        }],
    },
    Path {
        rest: AUDIT,
        rows: &[Row {
            method: Get,
            needs: Need::Audit,
            query: &[
                Parameter { name: "since", kind: Kind::Time, about: "Only lines of this time or later." },
                Parameter {
                    name: "limit",
                    kind: Kind::Count { default: AUDIT_LIMIT_DEFAULT, max: AUDIT_LIMIT_MAX },
                    about: "At most so many, the newest.",
                },
                Parameter { name: "type", kind: Kind::Text, about: "Only lines of this type, as in `server.update`." },
            ],
            reader: Reader::Plain(asks::audit),
            summary: "Who changed what, and who was not let in",
            body: None,
            answers: &[Success {
                status: 200,
                about: "Lines of the audit log, the newest first.",
                content: &[Media::Json("AuditLines")],
            }],
            faults: &[Code::Unavailable],
        }],
    },
    Path { rest: IMPORT, rows: IMPORTS },
    Path {
        rest: proof::PATH,
        rows: &[Row {
            method: Get,
            needs: Need::Nothing,
            query: &[
                Parameter {
                    name: "token",
                    kind: Kind::Hex { bytes: proof::ID_BYTES },
                    about: "The id of a token: the first half of HMAC-SHA256 under the token's SHA-256, of a fixed label.",
                },
                Parameter { name: "nonce", kind: Kind::Hex { bytes: proof::NONCE_BYTES }, about: "Never used before." },
            ],
            reader: Reader::Plain(asks::prove),
            summary: "Have the daemon show that it knows a token, before the token is sent",
            body: None,
            answers: &[Success { status: 200, about: "It knows the token.", content: &[Media::Json("Proof")] }],
            faults: &[Code::Unauthorized, Code::StoreUnavailable],
        }],
    },
];

const ALL_SERVERS: &[Row] = &[
    Row {
        method: Get,
        needs: Need::Read,
        query: &[
            Parameter { name: "status", kind: Kind::Status, about: "Only servers of this status." },
            Parameter { name: "name", kind: Kind::Text, about: "Only the server of this name." },
        ],
        reader: Reader::Plain(asks::list),
        summary: "All servers that the caller may see, by name",
        body: None,
        answers: &[Success { status: 200, about: "Their status objects.", content: &[Media::Json("StatusList")] }],
        faults: &[],
    },
    Row {
        method: Post,
        needs: Need::Write,
        query: &[Parameter {
            name: "wait",
            kind: Kind::Flag { default: true },
            about: "Answer when the server is ready or its startup time is over, not at once.",
        }],
        reader: Reader::Plain(asks::register),
        summary: "Register a server and start it",
        body: Some("Definition"),
        answers: &[Success {
            status: 201,
            about: "It is stored. A server that is not ready in time shows its true status and `last_error`.",
            content: STATUS,
        }],
        faults: &[
            Code::NameTaken,
            Code::PortTaken,
            Code::ImageNotFound,
            Code::SecretMissing,
            Code::ProviderUnusable,
            Code::Unavailable,
            Code::StoreUnavailable,
        ],
    },
];

const IMPORTS: &[Row] = &[Row {
    method: Post,
    needs: Need::Write,
    query: &[
        Parameter {
            name: "dry_run",
            kind: Kind::Flag { default: false },
            about: "Only say what would be done, and what is still missing.",
        },
        Parameter {
            name: "project",
            kind: Kind::Text,
            about: "Where servers that have a URL belong to. Without it they are refused.",
        },
    ],
    reader: Reader::Plain(asks::import),
    summary: "Register all servers of a client's configuration, a server.json, a bundle or an export, or none of them",
    body: Some("ImportDocument"),
    answers: &[
        Success {
            status: 200,
            about: "A dry run: what would be done. Values of variables and headers are not shown.",
            content: &[Media::Json("Imported")],
        },
        Success { status: 201, about: "It is done. Servers start now.", content: &[Media::Json("Imported")] },
    ],
    faults: &[
        Code::NameTaken,
        Code::PortTaken,
        Code::ImageNotFound,
        Code::SecretMissing,
        Code::ProviderUnusable,
        Code::Unavailable,
        Code::StoreUnavailable,
    ],
}];

/// Streamable HTTP.
pub(super) const MAIN: &[Row] = &[
    Row {
        method: Post,
        needs: Need::Call,
        query: &[],
        reader: Reader::Mcp(Door::Main),
        summary: "Send MCP messages (Streamable HTTP)",
        body: Some("McpPosted"),
        answers: &[
            Success {
                status: 200,
                about: "The answer: one message, or a stream of them.",
                content: &[Media::Json("McpMessage"), Media::Events],
            },
            Success { status: 202, about: "Messages that need no answer were taken.", content: &[] },
        ],
        faults: MCP_FAULTS,
    },
    Row {
        method: Get,
        needs: Need::Call,
        query: &[],
        reader: Reader::Mcp(Door::Main),
        summary: "Listen to what an MCP session is told unasked, or resume a stream that was lost",
        body: None,
        answers: &[Success { status: 200, about: "Messages, each with an id.", content: &[Media::Events] }],
        faults: MCP_FAULTS,
    },
    Row {
        method: Delete,
        needs: Need::Call,
        query: &[],
        reader: Reader::Mcp(Door::Main),
        summary: "End an MCP session",
        body: None,
        answers: &[Success { status: 204, about: "It is over.", content: &[] }],
        faults: MCP_FAULTS,
    },
];

/// The pair of 2024-11-05.
pub(super) const OLD_STREAM: &[Row] = &[Row {
    method: Get,
    needs: Need::Call,
    query: &[],
    reader: Reader::Mcp(Door::OldStream),
    summary: "The stream of an MCP client of 2024-11-05; its first event names where to post to",
    body: None,
    answers: &[Success { status: 200, about: "Messages.", content: &[Media::Events] }],
    faults: MCP_FAULTS,
}];
pub(super) const OLD_POST: &[Row] = &[Row {
    method: Post,
    needs: Need::Call,
    query: &[Parameter { name: "session", kind: Kind::Session, about: "As the first event of the stream names it." }],
    reader: Reader::Mcp(Door::OldPost),
    summary: "Send an MCP message of 2024-11-05; the answer comes over the stream",
    body: Some("McpOneMessage"),
    answers: &[Success { status: 202, about: "It was taken.", content: &[] }],
    faults: MCP_FAULTS,
}];

const MCP_FAULTS: &[Code] = &[
    Code::InvalidRequest,
    Code::NotFound,
    Code::ServerStopped,
    Code::QueueFull,
    Code::RestartFailed,
    Code::RestartInProgress,
    Code::CallTimeout,
];
