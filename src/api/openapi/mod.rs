//! The OpenAPI 3.1 document of this daemon, made of the table of routes and of the descriptions of what clients send. Owns
//! how they are written down, and says nothing of its own about a route. It never changes while the daemon runs.

mod errors;
mod imports;
mod projects;
mod schemas;

use crate::api::definition::described;
use crate::api::mcp::{self, Door};
use crate::api::rest::asks::ZIP;
use crate::api::route::{FAMILIES, Family, Kind, Media, MemberKind, Parameter, Path, Reader, Row, Success};
use crate::limits::{NAME_MAX, SECRET_NAME_MAX};
use crate::model::principal::Need;
use crate::model::protocol::{STATELESS, Version};
use crate::model::status::Status;
use crate::wire::backlog::Shared;
use crate::wire::http_in::Method;
use serde_json::{Map, Value, json};
use std::sync::{Arc, LazyLock};

/// A constant that is computed: the same bytes for all who ask, made when the first one does.
static DOCUMENT: LazyLock<Arc<[u8]>> = LazyLock::new(|| document().to_string().into_bytes().into());

pub fn bytes() -> Shared {
    Shared { bytes: Arc::clone(&DOCUMENT), from: 0 }
}

const ABOUT: &str = "stdiod hosts MCP servers: programs that speak JSON-RPC on stdin and stdout, each in a sandbox of its \
    own. Every `:id` is a server's UUID or its name. Fields and query parameters that are not described here are refused by \
    name; an optional field that is `null` has its default.\n\nWhat a server that speaks HTTP itself offers at its MCP \
    endpoint, and below it, is its own: such requests are passed on as they are.";

pub fn document() -> Value {
    let mut paths = Map::new();
    for family in &FAMILIES {
        for base in family.bases {
            for place in family.paths {
                let path = format!("{base}{}{}", member_template(family.member), place.rest);
                let item = path_item(family, place, &path);
                paths.insert(path, item);
            }
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "stdiod", "version": env!("CARGO_PKG_VERSION"), "description": ABOUT,
            "license": {"name": env!("CARGO_PKG_LICENSE"), "identifier": env!("CARGO_PKG_LICENSE")},
        },
        "servers": [{"url": "/", "description": "The daemon that this document comes from."}],
        "tags": TAGS.map(|(name, about)| json!({"name": name, "description": about})),
        "paths": paths,
        "components": {
            "schemas": schemas::all(),
            "headers": errors::headers(),
            "securitySchemes": {"token": {
                "type": "http", "scheme": "bearer",
                "description": "A token of `stdiod token create`, or the one in `admin.token` of the data directory. Each \
                    route names the scopes that open it. None is asked for where the configuration says `auth = \"off\"`.",
            }},
        },
    })
}

const TAGS: [(&str, &str); 5] = [
    ("servers", "Hosted servers: what they are, how they do, and calls to them."),
    ("projects", "External servers of projects: how they are reached, their tools, secrets and records."),
    ("mcp", "MCP over HTTP, for MCP clients."),
    ("tokens", "Who may do what."),
    ("daemon", "The daemon itself."),
];

fn tag(path: &str, row: &Row) -> &'static str {
    match (row.reader, row.needs) {
        (Reader::Mcp(_), _) => "mcp",
        (Reader::OfProject(_) | Reader::OfExternal(_) | Reader::OfNamed(_), _) => "projects",
        (_, Need::TokensRead | Need::TokensWrite) => "tokens",
        (_, Need::Nothing | Need::Audit) => "daemon",
        (_, Need::Read | Need::Scrape | Need::Write | Need::Call | Need::ReadOrCall)
            if path.starts_with("/api/v1/mcp/") =>
        {
            "servers"
        }
        (_, Need::Read | Need::Scrape | Need::Write | Need::Call | Need::ReadOrCall) => "daemon",
    }
}

fn member_template(member: MemberKind) -> &'static str {
    match member {
        MemberKind::Nothing => "",
        MemberKind::Server => "/{id}",
        MemberKind::Token => "/{name}",
        MemberKind::Project => "/{project}",
        MemberKind::ProjectServer => "/{project}/mcp/servers/{id}",
        MemberKind::ProjectSecret => "/{project}/secrets/{name}",
        MemberKind::Product => "/{project}/products/{product}",
    }
}

fn path_item(family: &Family, place: &Path, path: &str) -> Value {
    let mut item = Map::new();
    let parameters = path_parameters(family.member);
    if !parameters.is_empty() {
        item.insert("parameters".into(), parameters.into());
    }
    for row in place.rows {
        item.insert(row.method.name().to_ascii_lowercase(), operation(family, row, path));
        if row.has_head() {
            item.insert("head".into(), head(family, row, path));
        }
    }
    item.into()
}

fn path_parameters(member: MemberKind) -> Vec<Value> {
    let parameter = |name: &str, about: &str, schema: Value| json!({"name": name, "in": "path", "required": true, "description": about, "schema": schema});
    let named = |example: &str| {
        json!({"examples": [example], "anyOf": [
            {"$ref": "#/components/schemas/ServerName"}, {"type": "string", "format": "uuid"},
        ], "type": "string"})
    };
    let text = |pattern: String, example: &str| json!({"type": "string", "pattern": pattern, "examples": [example]});
    let secret = format!("^[A-Za-z_][A-Za-z0-9_]{{0,{}}}$", SECRET_NAME_MAX - 1);
    let product = format!("^[A-Za-z0-9_-][A-Za-z0-9_.-]{{0,{}}}$", NAME_MAX - 1);
    let external = || json!({"examples": ["github"], "type": "string", "pattern": projects::external_name()});
    let project = || parameter("project", "The project, as its platform names it.", described::project());
    match member {
        MemberKind::Nothing => vec![],
        MemberKind::Server => vec![parameter("id", "The server: its UUID or its name.", named("weather"))],
        MemberKind::Token => {
            vec![parameter("name", "The token's name.", json!({"$ref": "#/components/schemas/TokenName"}))]
        }
        MemberKind::Project => vec![project()],
        MemberKind::ProjectServer => {
            vec![project(), parameter("id", "The external server: its UUID or its name.", external())]
        }
        MemberKind::ProjectSecret => {
            vec![project(), parameter("name", "The secret's name.", text(secret, "GITHUB_TOKEN"))]
        }
        MemberKind::Product => {
            vec![project(), parameter("product", "The product, as its platform names it.", text(product, "crm"))]
        }
    }
}

fn operation(family: &Family, row: &Row, path: &str) -> Value {
    let mut operation = json!({
        "operationId": operation_id(row.method.name(), path),
        "summary": row.summary,
        "tags": [tag(path, row)],
        "security": security(row),
        "responses": responses(family, row),
    });
    if let Some(scopes) = scopes(row) {
        operation["description"] = json!(format!("Needs {scopes}."));
    }
    let parameters: Vec<Value> = row.query.iter().map(parameter).chain(mcp_headers(row)).collect();
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if let Some(schema) = row.body {
        let reference = json!({"$ref": format!("#/components/schemas/{schema}")});
        let content = json!({"schema": reference, "examples": schemas::examples(schema)});
        let required = !["Rotation", "Upgrade"].contains(&schema);
        operation["requestBody"] = json!({"required": required, "content": {"application/json": content}});
        if schema == "ImportDocument" {
            operation["requestBody"]["content"][ZIP] = json!({});
        }
    }
    operation
}

/// As `GET`, without bodies.
fn head(family: &Family, row: &Row, path: &str) -> Value {
    let mut head = operation(family, row, path);
    head["operationId"] = json!(operation_id("HEAD", path));
    for response in head["responses"].as_object_mut().expect("an object").values_mut() {
        response.as_object_mut().expect("an object").remove("content");
    }
    head
}

/// `post_api_v1_mcp_servers_id_call`
fn operation_id(method: &str, path: &str) -> String {
    let words = path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    [method.to_ascii_lowercase().as_str()].into_iter().chain(words).collect::<Vec<_>>().join("_")
}

fn security(row: &Row) -> Value {
    match row.needs {
        Need::Nothing => json!([]),
        Need::Read
        | Need::Scrape
        | Need::Write
        | Need::Call
        | Need::ReadOrCall
        | Need::TokensRead
        | Need::TokensWrite
        | Need::Audit => {
            json!([{"token": []}])
        }
    }
}

fn scopes(row: &Row) -> Option<&'static str> {
    match row.needs {
        Need::Nothing => None,
        Need::Read | Need::Scrape => Some("the scope `admin:read`"),
        Need::Write => Some("the scope `admin:write`"),
        Need::Call => Some("the scope `mcp:call`"),
        Need::ReadOrCall => Some("the scope `admin:read` or `mcp:call`"),
        Need::TokensRead | Need::Audit => {
            Some("the scope `admin:read`, of a token that is not limited to some servers")
        }
        Need::TokensWrite => Some("the scope `admin:write`, of a token that is not limited to some servers"),
    }
}

fn parameter(parameter: &Parameter) -> Value {
    let (required, schema) = match parameter.kind {
        Kind::Flag { default } => (false, json!({"type": "boolean", "default": default})),
        Kind::Count { default, max } => {
            (false, json!({"type": "integer", "minimum": 0, "maximum": max, "default": default}))
        }
        Kind::Time => {
            let since_1970 = "^(19[789][0-9]|[2-9][0-9]{3})-";
            let examples = ["2026-02-17T10:00:00Z"];
            (false, json!({"type": "string", "format": "date-time", "pattern": since_1970, "examples": examples}))
        }
        Kind::Status => (false, json!({"type": "string", "enum": Status::ALL.map(Status::wire)})),
        Kind::Text if parameter.name == "project" => (false, described::project()),
        Kind::Text => (false, json!({"type": "string", "pattern": described::NO_NUL, "examples": ["weather"]})),
        Kind::Hex { bytes } => {
            let pattern = format!("^[0-9a-fA-F]{{{}}}$", 2 * bytes);
            (true, json!({"type": "string", "pattern": pattern, "examples": ["00".repeat(bytes)]}))
        }
        Kind::Session => (true, json!({"type": "string", "format": "uuid"})),
    };
    json!({"name": parameter.name, "in": "query", "required": required, "description": parameter.about, "schema": schema})
}

/// What MCP puts into headers. Of a POST the session is required or not by what is posted.
fn mcp_headers(row: &Row) -> impl Iterator<Item = Value> {
    const SESSION: &str = "The session, of those versions that have them; an `initialize` has none yet.";
    const VERSION: &str = "The version that was agreed on, as in `2025-11-25`. Messages of `2026-07-28` say more about \
        themselves: the same version in `_meta`, and `Mcp-Method`.";
    const LAST_EVENT: &str = "The last event that was seen of a stream that is to be resumed.";
    let known: &[(&str, &str, bool)] = match (row.reader, row.method) {
        (Reader::Mcp(Door::Main), Method::Get) => {
            &[(mcp::SESSION, SESSION, true), (VERSION_HEADER, VERSION, false), ("Last-Event-ID", LAST_EVENT, false)]
        }
        (Reader::Mcp(Door::Main), Method::Delete) => &[(mcp::SESSION, SESSION, true), (VERSION_HEADER, VERSION, false)],
        (Reader::Mcp(Door::Main), _) => &[(mcp::SESSION, SESSION, false), (VERSION_HEADER, VERSION, false)],
        (Reader::Mcp(Door::OldStream | Door::OldPost), _) => &[],
        (
            Reader::Plain(_)
            | Reader::OfServer(_)
            | Reader::OfToken(_)
            | Reader::OfProject(_)
            | Reader::OfExternal(_)
            | Reader::OfNamed(_),
            _,
        ) => &[],
    };
    known.iter().map(|(name, about, required)| {
        json!({"name": name, "in": "header", "required": required, "description": about, "schema": header(name)})
    })
}

fn header(name: &str) -> Value {
    if name != VERSION_HEADER {
        return json!({"type": "string"});
    }
    let versions = Version::ALL.map(Version::wire).into_iter().chain([STATELESS]);
    json!({"type": "string", "enum": versions.collect::<Vec<_>>()})
}

const VERSION_HEADER: &str = "MCP-Protocol-Version";

// --- answers --------------------------------------------------------------------------------------------------------

fn responses(family: &Family, row: &Row) -> Value {
    let mut responses = errors::of(family, row);
    for answer in row.answers {
        responses.insert(answer.status.to_string(), success(answer));
    }
    responses.into()
}

fn success(answer: &Success) -> Value {
    let mut content = Map::new();
    for media in answer.content {
        let (name, value) = match media {
            Media::Json(schema) => {
                let reference = json!({"$ref": format!("#/components/schemas/{schema}")});
                ("application/json", json!({"schema": reference, "examples": schemas::examples(schema)}))
            }
            Media::Text => {
                let example = "2026-02-17T10:00:00.000Z lifecycle starting\n";
                ("text/plain", json!({"schema": {"type": "string"}, "example": example}))
            }
            Media::Events => ("text/event-stream", json!({"schema": {"type": "string"}})),
            Media::File(media) => (*media, json!({"schema": {"type": "string"}})),
        };
        content.insert(name.to_string(), value);
    }
    let mut response = json!({"description": answer.about});
    if !content.is_empty() {
        response["content"] = content.into();
    }
    if answer.status == 201 && answer.content != [Media::Json("Imported")] {
        response["headers"] = json!({"Location": {"$ref": "#/components/headers/Location"}});
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::route::find;

    fn references<'v>(value: &'v Value, found: &mut Vec<&'v str>) {
        match value {
            Value::Object(map) => {
                found.extend(map.get("$ref").and_then(Value::as_str));
                map.values().for_each(|inner| references(inner, found));
            }
            Value::Array(items) => items.iter().for_each(|inner| references(inner, found)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    #[test]
    fn every_route_is_in_the_document_and_nothing_else() {
        let document = document();
        let paths = document["paths"].as_object().unwrap();
        let methods =
            [Method::Get, Method::Head, Method::Post, Method::Put, Method::Patch, Method::Delete, Method::Options];
        let mut operations = Vec::new();
        for (path, item) in paths {
            let real = path
                .replace("{id}", "weather")
                .replace("{project}", "shop")
                .replace("{product}", "crm")
                .replace("{name}", "ci");
            for method in methods {
                let described = item.get(method.name().to_ascii_lowercase());
                assert_eq!(find(method, &real).is_ok(), described.is_some(), "{} {path}", method.name());
                operations.extend(described);
            }
        }
        let rows = FAMILIES.iter().flat_map(|family| family.paths.iter().map(|place| (family.bases.len(), place.rows)));
        let rows =
            rows.map(|(bases, rows)| bases * rows.iter().map(|row| 1 + usize::from(row.has_head())).sum::<usize>());
        assert_eq!(operations.len(), rows.sum::<usize>());
        let mut ids: Vec<&str> =
            operations.iter().map(|operation| operation["operationId"].as_str().unwrap()).collect();
        ids.sort();
        let all = ids.len();
        ids.dedup();
        assert_eq!(ids.len(), all, "an operation id is used twice");
    }

    #[test]
    fn every_reference_leads_somewhere_and_every_schema_is_used() {
        let document = document();
        let mut found = Vec::new();
        references(&document, &mut found);
        for reference in &found {
            assert!(document.pointer(reference.trim_start_matches('#')).is_some(), "{reference}");
        }
        for name in document["components"]["schemas"].as_object().unwrap().keys() {
            assert!(found.contains(&format!("#/components/schemas/{name}").as_str()), "{name} is used by nothing");
        }
    }

    #[test]
    fn every_operation_says_what_it_is_and_has_examples() {
        let document = document();
        let tags = TAGS.map(|(name, _)| name);
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap().iter().filter(|(key, _)| *key != "parameters") {
                let place = format!("{method} {path}");
                assert!(tags.contains(&operation["tags"][0].as_str().unwrap()), "{place}");
                let responses = operation["responses"].as_object().unwrap();
                assert!(
                    responses.contains_key("default") && responses.keys().any(|key| key.starts_with('2')),
                    "{place}"
                );
                let mut bodies = vec![&operation["requestBody"]];
                bodies.extend(responses.values());
                for body in bodies {
                    let Some(json) = body["content"].get("application/json") else { continue };
                    assert!(json["examples"].as_object().is_some_and(|all| !all.is_empty()), "{place}: {json}");
                }
            }
        }
    }

    #[test]
    fn all_who_ask_get_the_same_bytes() {
        let (one, other) = (bytes(), bytes());
        assert!(Arc::ptr_eq(&one.bytes, &other.bytes));
        assert_eq!(serde_json::from_slice::<Value>(&one).unwrap(), document());
    }
}
