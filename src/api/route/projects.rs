//! The rows of the routes of projects, and nothing else.

use super::table::{MAIN, OLD_POST, OLD_STREAM};
use super::{Kind, Media, Parameter, Path, Reader, Row, Success};
use crate::api::rest::project_asks as asks;
use crate::limits::{CALLS_LIMIT_DEFAULT, CALLS_LIMIT_MAX};
use crate::model::fault::Code;
use crate::model::principal::Need;
use crate::wire::http_in::Method::{Delete, Get, Patch, Post, Put};

const EXTERNAL: &[Media] = &[Media::Json("External")];
const CHANGED: &[Success] = &[Success { status: 200, about: "What the server is now.", content: EXTERNAL }];
const GONE: &[Success] = &[Success { status: 204, about: "It is gone.", content: &[] }];

pub(super) const ALL: &[Row] = &[Row {
    method: Get,
    needs: Need::Read,
    query: &[],
    reader: Reader::Plain(asks::all),
    summary: "The external servers of all projects that the caller may use, by project and name",
    body: None,
    answers: &[Success { status: 200, about: "And how they do.", content: &[Media::Json("ExternalList")] }],
    faults: &[],
}];

pub(super) const OF_PROJECT: &[Path] = &[
    Path { rest: "/mcp/tools/call", rows: CALL },
    Path { rest: "/mcp/tools", rows: TOOLS },
    Path { rest: "/mcp/servers", rows: SERVERS },
    Path { rest: "/mcp/calls", rows: RECORDS },
    Path {
        rest: "/secrets",
        rows: &[Row {
            method: Get,
            needs: Need::Read,
            query: &[],
            reader: Reader::OfProject(asks::secrets),
            summary: "The names of a project's secrets, and when they were stored",
            body: None,
            answers: &[Success { status: 200, about: "By name.", content: &[Media::Json("SecretList")] }],
            faults: &[],
        }],
    },
    Path {
        rest: "/unload",
        rows: &[Row {
            method: Post,
            needs: Need::Write,
            query: &[],
            reader: Reader::OfProject(asks::unload),
            summary: "End all links of a project; each is made again when it is next used",
            body: None,
            answers: &[Success { status: 200, about: "How many there were.", content: &[Media::Json("Unloaded")] }],
            faults: &[],
        }],
    },
    Path { rest: "/mcp", rows: MAIN },
    Path { rest: "/sse", rows: OLD_STREAM },
    Path { rest: "/messages", rows: OLD_POST },
];

pub(super) const OF_SHORT: &[Path] = &[
    Path { rest: "/mcp", rows: MAIN },
    Path { rest: "/sse", rows: OLD_STREAM },
    Path { rest: "/messages", rows: OLD_POST },
];

const CALL: &[Row] = &[Row {
    method: Post,
    needs: Need::Call,
    query: &[],
    reader: Reader::OfProject(asks::call_tool),
    summary: "Call a tool of a project, on whichever server has it",
    body: Some("ToolCall"),
    answers: &[Success {
        status: 200,
        about: "What the tool said. A tool that failed has an `error` beside its result, in words.",
        content: &[Media::Json("ToolResult")],
    }],
    faults: &[
        Code::AmbiguousTool,
        Code::ToolNotFound,
        Code::SecretMissing,
        Code::CircuitOpen,
        Code::UpstreamUnavailable,
        Code::QueueFull,
        Code::ResponseTooLarge,
        Code::BadServerOutput,
        Code::ServerStopped,
        Code::CallTimeout,
    ],
}];

const TOOLS: &[Row] = &[Row {
    method: Get,
    needs: Need::ReadOrCall,
    query: &[],
    reader: Reader::OfProject(asks::tools),
    summary: "The tools of all servers of a project that are enabled; those never used before are connected to",
    body: None,
    answers: &[Success {
        status: 200,
        about: "Each tool as its server gave it, and the servers that could not be asked, with the reason.",
        content: &[Media::Json("ProjectTools")],
    }],
    faults: &[],
}];

const SERVERS: &[Row] = &[
    Row {
        method: Get,
        needs: Need::Read,
        query: &[],
        reader: Reader::OfProject(asks::servers),
        summary: "The external servers of a project, by name",
        body: None,
        answers: &[Success { status: 200, about: "And how they do.", content: &[Media::Json("ExternalList")] }],
        faults: &[],
    },
    Row {
        method: Post,
        needs: Need::Write,
        query: &[],
        reader: Reader::OfProject(asks::create),
        summary: "Make an external server known; it is connected to when it is first used",
        body: Some("ExternalDefinition"),
        answers: &[Success { status: 201, about: "It is stored.", content: EXTERNAL }],
        faults: &[Code::NameTaken, Code::SecretMissing, Code::Unavailable, Code::StoreUnavailable],
    },
];

const RECORDS: &[Row] = &[Row {
    method: Get,
    needs: Need::Read,
    query: &[
        Parameter { name: "server", kind: Kind::Text, about: "Only calls of this server." },
        Parameter { name: "tool", kind: Kind::Text, about: "Only calls of this tool." },
        Parameter { name: "run_id", kind: Kind::Text, about: "Only calls of this run." },
        Parameter { name: "since", kind: Kind::Time, about: "Only calls that began at this time or later." },
        Parameter {
            name: "limit",
            kind: Kind::Count { default: CALLS_LIMIT_DEFAULT, max: CALLS_LIMIT_MAX },
            about: "At most so many.",
        },
    ],
    reader: Reader::OfProject(asks::calls),
    summary: "The records of a project's tool calls",
    body: None,
    answers: &[Success { status: 200, about: "Newest first.", content: &[Media::Json("CallRecords")] }],
    faults: &[Code::StoreUnavailable],
}];

pub(super) const OF_EXTERNAL: &[Path] = &[
    Path {
        rest: "",
        rows: &[
            Row {
                method: Get,
                needs: Need::Read,
                query: &[],
                reader: Reader::OfExternal(asks::server),
                summary: "An external server, and how the link to it does",
                body: None,
                answers: CHANGED,
                faults: &[],
            },
            Row {
                method: Patch,
                needs: Need::Write,
                query: &[],
                reader: Reader::OfExternal(asks::patch),
                summary: "Change an external server; its link is made anew if it must be",
                body: Some("ExternalChange"),
                answers: CHANGED,
                faults: &[Code::NameTaken, Code::SecretMissing, Code::StoreUnavailable],
            },
            Row {
                method: Delete,
                needs: Need::Write,
                query: &[],
                reader: Reader::OfExternal(asks::delete),
                summary: "Forget an external server and end its link",
                body: None,
                answers: GONE,
                faults: &[Code::StoreUnavailable],
            },
        ],
    },
    Path {
        rest: "/connect",
        rows: &[Row {
            method: Post,
            needs: Need::Write,
            query: &[],
            reader: Reader::OfExternal(asks::connect),
            summary: "Connect to an external server now, instead of when it is first used",
            body: None,
            answers: CHANGED,
            faults: &[Code::SecretMissing, Code::CircuitOpen, Code::UpstreamUnavailable, Code::ServerStopped],
        }],
    },
    Path {
        rest: "/disconnect",
        rows: &[Row {
            method: Post,
            needs: Need::Write,
            query: &[],
            reader: Reader::OfExternal(asks::disconnect),
            summary: "End the link to an external server; it is made again when it is next used",
            body: None,
            answers: CHANGED,
            faults: &[],
        }],
    },
];

pub(super) const OF_SECRET: &[Path] = &[Path {
    rest: "",
    rows: &[
        Row {
            method: Put,
            needs: Need::Write,
            query: &[],
            reader: Reader::OfNamed(asks::secret_put),
            summary: "Store a secret; servers that use it are connected to anew",
            body: Some("SecretValue"),
            answers: &[Success { status: 200, about: "It is stored.", content: &[Media::Json("Secret")] }],
            faults: &[Code::Unavailable, Code::StoreUnavailable],
        },
        Row {
            method: Delete,
            needs: Need::Write,
            query: &[],
            reader: Reader::OfNamed(asks::secret_delete),
            summary: "Forget a secret",
            body: None,
            answers: GONE,
            faults: &[Code::StoreUnavailable],
        },
    ],
}];

pub(super) const OF_PRODUCT: &[Path] = &[Path {
    rest: "/manifest",
    rows: &[Row {
        method: Post,
        needs: Need::Write,
        query: &[],
        reader: Reader::OfNamed(asks::manifest),
        summary: "Make the servers of a product those of its manifest, all of them or none",
        body: Some("Manifest"),
        answers: &[Success {
            status: 200,
            about: "What became of each server.",
            content: &[Media::Json("ManifestOutcome")],
        }],
        faults: &[Code::NameTaken, Code::SecretMissing, Code::Unavailable, Code::StoreUnavailable],
    }],
}];
