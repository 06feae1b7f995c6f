//! The components of the document that belong to projects: what clients send and what they get. Names of fields are those that
//! their readers know; a test compares the two.

use super::schemas::{Shown, amount, closed, text, time};
use crate::api::definition::described::{self, NAME_WITH_COLON, NO_NUL, PORT, or_null};
use crate::limits::{
    BREAKER_ATTEMPTS, CMD_ARGS_MAX, DESCRIPTION_MAX, ENV_MAX, EXTERNAL_HEADERS_MAX, EXTERNALS_PER_PROJECT,
    HEADER_VALUE_MAX, HEARTBEAT_MS, MAX_IN_FLIGHT_MAX, NAME_MAX, PATH_MAX, QUEUE_LIMIT, RUN_ID_MAX, SECRET_VALUE_MAX,
    STRING_MAX, TOOL_NAME_MAX, URL_MAX, WAIT_MS,
};
use serde_json::{Map, Value, json};

/// By name.
pub fn all() -> Vec<(&'static str, Value)> {
    vec![
        ("ExternalDefinition", definition()),
        ("ExternalChange", change()),
        ("ToolCall", tool_call()),
        ("SecretValue", secret_value()),
        ("Manifest", manifest()),
        ("External", external()),
        ("ExternalList", list("External")),
        ("ToolResult", tool_result()),
        ("ProjectTools", tools()),
        ("CallRecords", list("CallRecord")),
        ("CallRecord", call_record()),
        ("Secret", secret()),
        ("SecretList", list("Secret")),
        ("Unloaded", closed(&[("links", "How many were ended.", amount())])),
        ("ManifestOutcome", manifest_outcome()),
    ]
}

fn list(schema: &str) -> Value {
    json!({"type": "array", "items": {"$ref": format!("#/components/schemas/{schema}")}})
}

fn transport() -> Value {
    json!({"type": "string", "enum": ["stdio", "http", "sse", "ws"]})
}

// --- what clients send ------------------------------------------------------------------------------------------------

/// Of a server, in the order of `projects::fields::FIELDS`.
fn fields() -> Map<String, Value> {
    let count =
        |about: &str, most: u64| json!({"type": "integer", "minimum": 1, "maximum": most, "description": about});
    let wait = |about: &str| count(about, *WAIT_MS.end());
    let env = json!({"type": "object", "maxProperties": ENV_MAX, "additionalProperties": described::text(STRING_MAX),
        "propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$", "maxLength": PATH_MAX}});
    let reserved =
        format!("(?!([Mm][Cc][Pp]-|[Ss][Ee][Cc]-|[Ll][Aa][Ss][Tt]-|({})$))", RESERVED.map(either_case).join("|"));
    let header = json!({"type": "string", "maxLength": HEADER_VALUE_MAX, "pattern": HEADER_VALUE});
    let headers = json!({"type": "object", "maxProperties": EXTERNAL_HEADERS_MAX, "additionalProperties": header,
        "propertyNames": {"pattern": format!("^{reserved}[A-Za-z0-9!#$%&'*+.^_`|~-]{{1,{NAME_MAX}}}$")}});
    let path = format!("^(/|({NAME_WITH_COLON})+)$");
    let (least, most) = HEARTBEAT_MS.into_inner();
    let heartbeat =
        or_null(json!({"type": "integer", "minimum": least, "maximum": most, "description": "Between signs of life."}));
    let auth = json!({
        "type": "object", "additionalProperties": false, "required": ["type", "token_url", "client_id", "client_secret"],
        "properties": {
            "type": {"type": "string", "const": "client_credentials"}, "token_url": url("https?"), "client_id": long(),
            "client_secret": long(), "scope": or_null(long()), "resource": or_null(described::text(URL_MAX)),
        },
        "description": "A token is fetched from there, and renewed before it ends.",
    });
    let breaker = json!({"anyOf": [
        {"type": "object", "additionalProperties": false, "properties": {
            "attempts": or_null(count("Failures in a row that open it.", u64::from(*BREAKER_ATTEMPTS.end()))),
            "cooldown_ms": or_null(wait("Until one trial.")),
        }},
        {"type": "boolean"},
    ], "description": "After so many failures nothing is tried for a while; `false`: it is tried without end; `true`: the default."});
    let fields = json!({
        "name": {"type": "string", "pattern": external_name(), "not": {"format": "uuid"}, "description": "Unique in the project.", "examples": ["github"]},
        "description": described::text(DESCRIPTION_MAX),
        "transport": transport(),
        "enabled": {"type": "boolean", "default": true},
        "shared": {"type": "boolean", "default": true, "description": "One link for all sessions, or one for each."},
        "command": {"type": "string", "minLength": 1, "maxLength": STRING_MAX, "pattern": NO_NUL, "description": "Of `stdio`: a program of the host, run in a sandbox."},
        "args": {"type": "array", "maxItems": CMD_ARGS_MAX - 1, "items": long()},
        "env": env,
        "isolation": {"type": "string", "enum": ["sandbox", "none"], "default": "sandbox"},
        "network": {"type": "string", "pattern": format!("^[A-Za-z0-9_-]{{1,{NAME_MAX}}}$")},
        "url": {"type": "string", "maxLength": URL_MAX, "description": "Of `http`, `sse` and `ws`.", "examples": ["https://mcp.example/mcp"]},
        "headers": headers,
        "tls_ca": {"type": "string", "maxLength": PATH_MAX, "pattern": path, "description": "A file with the authorities that are trusted for it."},
        "auth": auth,
        "timeouts": {"type": "object", "additionalProperties": false,
            "properties": {"request_ms": or_null(wait("Of a call.")), "startup_ms": or_null(wait("Of a connection."))}},
        "health": {"type": "object", "additionalProperties": false,
            "properties": {"heartbeat_ms": heartbeat, "probe_timeout_ms": or_null(wait("Of a probe."))}},
        "max_in_flight": count("Calls that it has at once.", u64::from(MAX_IN_FLIGHT_MAX)),
        "queue_max": count("Calls that may wait for their turn.", u64::from(QUEUE_LIMIT)),
        "breaker": breaker,
    });
    let Value::Object(fields) = fields else { unreachable!("an object was just made") };
    let must = |name: &str| ["name", "transport"].contains(&name);
    fields
        .into_iter()
        .map(|(name, schema)| if must(&name) { (name, schema) } else { (name, or_null(schema)) })
        .collect()
}

/// What each transport needs, and what it does not know; its fields stand beside the name, or in `config`.
fn transports() -> Value {
    let fields = fields();
    let none = json!({"type": "null"});
    let form = |title: &str, transports: &[&str], needs: (&str, Value), others: &[&str]| {
        let (field, schema) = needs;
        let transport = json!({"type": "string", "enum": transports});
        let (mut beside, mut inner) =
            (json!({field: schema, "config": {"type": "null"}, "transport": transport}), json!({}));
        let mut nested = json!({"transport": transport});
        for other in others {
            beside[*other] = none.clone();
        }
        for (name, known) in fields.iter().filter(|(name, _)| !COLUMNS.contains(&name.as_str())) {
            nested[name] = json!(false);
            if !others.contains(&name.as_str()) {
                inner[name] = if name == field { schema.clone() } else { known.clone() };
            }
        }
        nested["config"] =
            json!({"type": "object", "required": [field], "properties": inner, "additionalProperties": false});
        [
            json!({"title": title, "required": ["transport", field], "properties": beside}),
            json!({"title": format!("{title}, as a row shows it"), "required": ["transport", "config"], "properties": nested}),
        ]
    };
    let command = json!({"type": "string", "minLength": 1, "maxLength": STRING_MAX, "pattern": NO_NUL});
    let of_program = ["command", "args", "env", "isolation", "network"];
    let http = form("Over HTTP", &["http", "sse"], ("url", url("https?")), &of_program);
    let ws = form("Over a WebSocket", &["ws"], ("url", url("wss?")), &of_program);
    let of_remote = ["url", "headers", "tls_ca", "auth"];
    let program = form("A program of the host", &["stdio"], ("command", command), &of_remote);
    http.into_iter().chain(ws).chain(program).collect()
}

/// An address, or a text with `${NAME}` in it, which is looked at when it is filled in.
fn url(schemes: &str) -> Value {
    let address = format!("{schemes}://([A-Za-z0-9._-]+|\\[[A-Za-z0-9._:-]+\\])(:{PORT})?([/?#][!-~]*)?");
    let template =
        "[^\\u0000-\\u001f\\u007f-\\u009f]*\\$\\{[A-Za-z_][A-Za-z0-9_]{0,127}\\}[^\\u0000-\\u001f\\u007f-\\u009f]*";
    json!({"type": "string", "maxLength": URL_MAX, "pattern": format!("^({address}|{template})$")})
}

fn long() -> Value {
    described::text(STRING_MAX)
}

/// The name of an external server, as a pattern.
pub fn external_name() -> String {
    format!("^[A-Za-z0-9][A-Za-z0-9_.-]{{0,{}}}$", NAME_MAX - 1)
}

/// What rows have columns of their own for.
const COLUMNS: [&str; 5] = ["name", "description", "transport", "enabled", "shared"];
/// Headers that the transport sets itself.
const RESERVED: [&str; 10] = [
    "host",
    "content-length",
    "content-type",
    "transfer-encoding",
    "connection",
    "upgrade",
    "te",
    "trailer",
    "expect",
    "accept",
];

fn either_case(word: &str) -> String {
    let letter = |c: char| if c == '-' { "-".to_string() } else { format!("[{}{c}]", c.to_ascii_uppercase()) };
    word.chars().map(letter).collect()
}

const HEADER_VALUE: &str = "^[^\\u0000-\\u0008\\u000a-\\u001f\\u007f-\\u009f]*$";

fn definition() -> Value {
    json!({
        "type": "object", "required": ["name", "transport"], "properties": with_config(fields()), "additionalProperties": false,
        "anyOf": transports(),
        "description": "How an MCP server is reached. `${NAME}` in args, env, url, headers and auth is filled in from the \
            project's secrets when the link is made.",
    })
}

fn change() -> Value {
    let Value::Array(mut forms) = transports() else { unreachable!("an array was just made") };
    forms.push(
        json!({"title": "It is reached as before", "properties": {"transport": false, "config": {"type": "null"}}}),
    );
    json!({
        "type": "object", "properties": with_config(fields()), "additionalProperties": false, "anyOf": forms,
        "description": "What is not given stays as it is, and `null` makes it the default again. Objects are changed member \
            by member; arrays are replaced.",
    })
}

/// A server that was shown can be sent back as it is.
fn with_config(mut fields: Map<String, Value>) -> Map<String, Value> {
    let about = "The fields of the transport may stand in here, as rows show them.";
    fields.insert("config".to_string(), json!({"type": "object", "description": about}));
    fields
}

fn tool_call() -> Value {
    let (least, most) = WAIT_MS.into_inner();
    let short =
        |most: usize, about: &str| json!({"type": "string", "minLength": 1, "maxLength": most, "description": about});
    json!({"type": "object", "required": ["name"], "additionalProperties": false, "properties": {
        "name": short(TOOL_NAME_MAX, "The tool."),
        "arguments": {"type": "object", "description": "They reach the server as they are written."},
        "server": short(NAME_MAX, "Whose tool; needed only where two servers have one of this name."),
        "timeout_ms": {"type": "integer", "minimum": least, "maximum": most},
        "format": {"type": "string", "enum": ["json", "text"], "default": "json"},
        "run_id": short(RUN_ID_MAX, "The agent's run that the record of the call is found by."),
    }})
}

fn secret_value() -> Value {
    let value = json!({"type": "string", "maxLength": SECRET_VALUE_MAX, "description": "It is never shown again."});
    json!({"type": "object", "required": ["value"], "properties": {"value": value}, "additionalProperties": false})
}

fn nameless() -> Value {
    let mut fields = with_config(fields());
    fields.remove("name");
    json!({"type": "object", "required": ["transport"], "properties": fields, "additionalProperties": false,
        "anyOf": transports(), "description": "As in a list, but for the name."})
}

fn manifest() -> Value {
    let nameless = nameless();
    let by_name = json!({"type": "object", "additionalProperties": nameless, "maxProperties": EXTERNALS_PER_PROJECT,
        "propertyNames": {"pattern": external_name()}});
    json!({
        "type": "object", "required": ["mcp"], "properties": {"mcp": {
            "type": "object", "required": ["servers"], "additionalProperties": false,
            "properties": {"servers": {"anyOf": [list("ExternalDefinition"), by_name]}},
        }},
        "description": "What is there of the product and not in here is removed. Other members of the manifest are left alone.",
    })
}

// --- what they get ----------------------------------------------------------------------------------------------------

fn external() -> Value {
    let statuses = ["idle", "connecting", "connected", "reconnecting", "circuit_open", "failed", "disabled"];
    closed(&[
        ("id", "Its id.", json!({"type": "string", "format": "uuid"})),
        ("project_id", "Its project.", text()),
        ("product_id", "The product whose manifest brought it, if one did.", or_null(text())),
        ("name", "Unique in the project.", text()),
        ("description", "In somebody's words.", or_null(text())),
        ("transport", "How it is reached.", transport()),
        ("config", "As it was written; values that may be secrets are `null`.", json!({"type": "object"})),
        ("enabled", "It may be used.", json!({"type": "boolean"})),
        ("shared", "One link for all sessions.", json!({"type": "boolean"})),
        ("status", "How the link does.", json!({"type": "string", "enum": statuses})),
        ("last_error", "Why it is not connected.", or_null(text())),
        (
            "tools",
            "The names of its tools; `null`: it was not asked yet.",
            or_null(json!({"type": "array", "items": text()})),
        ),
        ("connected_since", "When the link was made.", or_null(time())),
        ("next_attempt_at", "When it is tried again.", or_null(time())),
        ("server_info", "`serverInfo` of its handshake.", json!({})),
        ("protocol_version", "Of MCP, as it was agreed on.", or_null(text())),
        ("created_at", "When it was made known.", time()),
        ("updated_at", "When it was last changed.", time()),
    ])
}

fn tool_result() -> Value {
    let error = json!({"type": "object", "required": ["code", "message", "data"], "properties": {
        "code": {"type": "string", "const": "tool_error"}, "message": text(),
        "data": {"type": "object", "description": "`cause`: the structured content of the result, if it has one."},
    }});
    closed(&[
        ("result", "The server's own; with `format` \"text\", a string.", json!({})),
        ("error", "What went wrong, in words, if the tool says that it failed.", or_null(error)),
    ])
}

fn tools() -> Value {
    let tool = json!({"type": "object", "required": ["server"], "properties": {"server": text()}, "additionalProperties": true,
        "description": "The rest is the server's own."});
    let unavailable = closed(&[
        ("server", "Which.", text()),
        ("code", "Of the error.", text()),
        ("message", "Why.", text()),
        ("data", "More.", json!({})),
    ]);
    closed(&[
        ("tools", "By server.", json!({"type": "array", "items": tool})),
        ("unavailable", "Servers that could not be asked.", json!({"type": "array", "items": unavailable})),
    ])
}

fn call_record() -> Value {
    let fields: [Shown; 14] = [
        ("id", "Of the record.", json!({"type": "string", "format": "uuid"})),
        ("project_id", "Its project.", text()),
        ("server", "Whose tool; `null`: none was found.", or_null(text())),
        ("tool", "As the caller named it.", text()),
        ("run_id", "As the caller gave it.", or_null(text())),
        ("principal", "Who called.", text()),
        ("arguments", "Left out where they are too long.", json!({})),
        ("arguments_bytes", "How long they were.", amount()),
        ("is_error", "The call or the tool failed.", json!({"type": "boolean"})),
        ("error_code", "How.", or_null(text())),
        ("outcome", "Whether the server had it.", text()),
        ("started_at", "When.", time()),
        ("duration_ms", "How long it took.", amount()),
        ("result_bytes", "How long the result was.", amount()),
    ];
    closed(&fields)
}

fn secret() -> Value {
    json!({"type": "object", "required": ["name", "created_at", "updated_at"], "additionalProperties": false, "properties": {
        "name": text(), "created_at": time(), "updated_at": time(),
        "error": {"type": "string", "description": "Why it cannot be read."},
    }})
}

fn manifest_outcome() -> Value {
    let actions = json!({"type": "string", "enum": ["created", "changed", "unchanged", "removed"]});
    let server = closed(&[("name", "Of the server.", text()), ("action", "What became of it.", actions)]);
    closed(&[
        ("project_id", "The project.", text()),
        ("product_id", "The product.", text()),
        ("servers", "All that were or are of the product.", json!({"type": "array", "items": server})),
    ])
}

// --- examples ---------------------------------------------------------------------------------------------------------

/// Of a schema of this file.
pub fn example(schema: &str) -> Option<Value> {
    let definition = json!({"name": "github", "transport": "http", "url": "https://mcp.example/mcp",
        "headers": {"Authorization": "Bearer ${GITHUB_TOKEN}"}});
    let secret = json!({"name": "GITHUB_TOKEN", "created_at": AT, "updated_at": AT});
    let example = match schema {
        "ExternalDefinition" => definition,
        "ExternalChange" => json!({"enabled": false}),
        "ToolCall" => json!({"name": "search", "arguments": {"q": "stdiod"}, "run_id": "run-7"}),
        "SecretValue" => json!({"value": "…"}),
        "Manifest" => json!({"mcp": {"servers": [definition]}}),
        "External" => external_example(),
        "ExternalList" => json!([external_example()]),
        "ToolResult" => json!({"result": {"content": [{"type": "text", "text": "3 found"}]}, "error": null}),
        "ProjectTools" => {
            json!({"tools": [{"server": "github", "name": "search", "inputSchema": {"type": "object"}}], "unavailable": []})
        }
        "CallRecords" => json!([{
            "id": ID, "project_id": "6f1a-shop", "server": "github", "tool": "search", "run_id": "run-7", "principal": "ci",
            "arguments": {"q": "stdiod"}, "arguments_bytes": 14, "is_error": false, "error_code": null,
            "outcome": "answered", "started_at": AT, "duration_ms": 12, "result_bytes": 52,
        }]),
        "Secret" => secret,
        "SecretList" => json!([secret]),
        "Unloaded" => json!({"links": 2}),
        "ManifestOutcome" => json!({"project_id": "6f1a-shop", "product_id": "crm",
            "servers": [{"name": "github", "action": "created"}]}),
        _ => return None,
    };
    Some(example)
}

const AT: &str = "2026-02-17T10:00:00.000Z";
const ID: &str = "2b1f1a52-8c39-4c55-9d0c-0a6f5f1f7f10";

fn external_example() -> Value {
    json!({
        "id": ID, "project_id": "6f1a-shop", "product_id": null, "name": "github", "description": null,
        "transport": "http", "config": {"url": "https://mcp.example/mcp", "headers": {"Authorization": "Bearer ${GITHUB_TOKEN}"}},
        "enabled": true, "shared": true, "status": "connected", "last_error": null, "tools": ["search"], "connected_since": AT,
        "next_attempt_at": null, "server_info": {"name": "github", "version": "1"}, "protocol_version": "2025-11-25",
        "created_at": AT, "updated_at": AT,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::projects::{bodies, fields};

    fn sorted<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
        let mut names: Vec<String> = names.map(str::to_string).collect();
        names.sort();
        names
    }

    #[test]
    fn fields_are_those_that_are_read() {
        let described = super::fields();
        assert_eq!(sorted(described.keys().map(String::as_str)), sorted(fields::FIELDS.into_iter()));
        let call = tool_call();
        let described = call["properties"].as_object().unwrap().keys().map(String::as_str);
        assert_eq!(sorted(described), sorted(bodies::TOOL_CALL.into_iter()));
    }

    #[test]
    fn examples_are_taken_by_those_who_read_them() {
        let example = |schema: &str| example(schema).unwrap();
        let Value::Object(definition) = example("ExternalDefinition") else { panic!("no object") };
        fields::from_fields(definition).unwrap();
        let Value::Object(manifest) = example("Manifest") else { panic!("no object") };
        assert_eq!(fields::manifest(manifest).unwrap().len(), 1);
        assert!(bodies::tool_call(example("ToolCall").to_string().as_bytes()).is_ok());
        assert!(bodies::secret_value(example("SecretValue").to_string().as_bytes()).is_ok());
    }

    #[test]
    fn what_is_shown_has_the_members_that_are_described() {
        for schema in ["External", "ToolResult", "ProjectTools", "ManifestOutcome", "Unloaded"] {
            let (_, described) = all().into_iter().find(|(name, _)| *name == schema).unwrap();
            let described = described["properties"].as_object().unwrap().keys().map(String::as_str);
            let shown = example(schema).unwrap();
            assert_eq!(sorted(described), sorted(shown.as_object().unwrap().keys().map(String::as_str)), "{schema}");
        }
    }
}
