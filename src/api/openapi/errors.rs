//! Every refusal that an operation may give, by status: those of its row, and those that follow from what the row says of
//! scopes, bodies, queries and members.

use crate::api::route::{Family, MemberKind, Reader, Row};
use crate::model::fault::Code;
use crate::model::principal::Need;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The responses of an operation that are no success.
pub fn of(family: &Family, row: &Row) -> Map<String, Value> {
    let schema = match row.reader {
        Reader::Mcp(_) => "McpMessage",
        Reader::Plain(_)
        | Reader::OfServer(_)
        | Reader::OfToken(_)
        | Reader::OfProject(_)
        | Reader::OfExternal(_)
        | Reader::OfNamed(_)
            if row.is_call() =>
        {
            "CallError"
        }
        Reader::Plain(_)
        | Reader::OfServer(_)
        | Reader::OfToken(_)
        | Reader::OfProject(_)
        | Reader::OfExternal(_)
        | Reader::OfNamed(_) => "Error",
    };
    let mut by_status: BTreeMap<u16, Vec<Code>> = BTreeMap::new();
    for code in codes(family, row) {
        let codes = by_status.entry(code.status()).or_default();
        if !codes.contains(&code) {
            codes.push(code);
        }
    }
    if row.is_call() {
        // What a server answers with an error of its own (`fault::server_error_status`).
        for status in [400, 404, 500, 502] {
            by_status.entry(status).or_default();
        }
    }
    let mut responses = Map::new();
    for (status, codes) in by_status {
        responses.insert(status.to_string(), refusal(status, &codes, row, schema));
    }
    // Malformed HTTP and what is too much of it: the same on every path.
    let any = json!({"description": "Any other refusal, in the same shape.", "headers": source(), "content": content(&[], row, schema)});
    responses.insert("default".to_string(), any);
    responses
}

fn codes(family: &Family, row: &Row) -> Vec<Code> {
    let mut codes = row.faults.to_vec();
    match row.needs {
        Need::Nothing => {}
        Need::Read
        | Need::Scrape
        | Need::Write
        | Need::Call
        | Need::ReadOrCall
        | Need::TokensRead
        | Need::TokensWrite
        | Need::Audit => {
            codes.extend([Code::Unauthorized, Code::Forbidden, Code::StoreUnavailable, Code::Unavailable]);
        }
    }
    if row.needs == Need::Call {
        codes.push(Code::RateLimited);
    }
    match family.member {
        MemberKind::Nothing => {}
        MemberKind::Project => codes.push(Code::Forbidden),
        MemberKind::Server
        | MemberKind::Token
        | MemberKind::ProjectServer
        | MemberKind::ProjectSecret
        | MemberKind::Product => codes.push(Code::NotFound),
    }
    codes.extend([Code::InvalidRequest, Code::UnknownField, Code::MethodNotAllowed, Code::Overloaded]);
    if row.body.is_some() {
        codes.extend([Code::InvalidJson, Code::PayloadTooLarge, Code::UnsupportedMediaType]);
    }
    codes
}

fn refusal(status: u16, codes: &[Code], row: &Row, schema: &str) -> Value {
    let names: Vec<String> = codes.iter().map(|code| format!("`{}`", code.wire().0)).collect();
    let own = "an error of the server's own";
    let about = match (names.is_empty(), row.is_call() && [400, 404, 500, 502].contains(&status)) {
        (true, _) => own.to_string(),
        (false, true) => format!("{}, or {own}", names.join(", ")),
        (false, false) => names.join(", "),
    };
    let mut headers = source();
    match status {
        401 => headers["WWW-Authenticate"] = json!({"$ref": "#/components/headers/WWW-Authenticate"}),
        405 => headers["Allow"] = json!({"$ref": "#/components/headers/Allow"}),
        429 | 503 => headers["Retry-After"] = json!({"$ref": "#/components/headers/Retry-After"}),
        _other => {}
    }
    json!({"description": about, "headers": headers, "content": content(codes, row, schema)})
}

fn content(codes: &[Code], row: &Row, schema: &str) -> Value {
    let mut examples = Map::new();
    for code in codes.iter().copied().chain(codes.is_empty().then_some(Code::InvalidRequest)) {
        let (name, _) = code.wire();
        let data = if row.is_call() { json!({"outcome": "not_sent"}) } else { json!({}) };
        let value = match row.reader {
            Reader::Mcp(_) => {
                let error = json!({"code": -32000, "message": "why", "data": {"code": name}});
                json!({"jsonrpc": "2.0", "id": null, "error": error})
            }
            Reader::Plain(_)
            | Reader::OfServer(_)
            | Reader::OfToken(_)
            | Reader::OfProject(_)
            | Reader::OfExternal(_)
            | Reader::OfNamed(_) => {
                json!({"error": {"code": name, "message": "why", "data": data}})
            }
        };
        examples.insert(name.to_string(), json!({ "value": value }));
    }
    let reference = json!({"$ref": format!("#/components/schemas/{schema}")});
    json!({"application/json": {"schema": reference, "examples": examples}})
}

fn source() -> Value {
    json!({"x-stdiod-error-source": {"$ref": "#/components/headers/x-stdiod-error-source"}})
}

/// Headers that answers have in common.
pub fn headers() -> Value {
    json!({
        "x-stdiod-error-source": {
            "description": "Whose error it is: the MCP server's own, or the daemon's.",
            "schema": {"type": "string", "enum": ["server", "host"]},
        },
        "Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}},
        "Allow": {"description": "The methods that there are.", "schema": {"type": "string"}},
        "WWW-Authenticate": {"description": "How to show who asks.", "schema": {"type": "string"}},
        "Location": {"description": "Where what was made is.", "schema": {"type": "string"}},
    })
}
