//! One line of JSON-RPC, as much of it as a bridge must know: what kind of message it is, whose answer it waits for, and
//! which headers it needs on the wire. The line itself is passed on as it is.

use base64::Engine;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::borrow::Cow;

const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";

#[derive(Debug, PartialEq, Eq)]
pub enum Kind {
    /// With the id of the answer, as it is written.
    Request {
        id: String,
        method: String,
    },
    Notification {
        method: String,
    },
    /// The answer to a question of the server.
    Response,
    /// Several at once, as 2025-03-26 allows.
    Batch,
}

#[derive(Deserialize)]
struct Shape<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
}

/// None: it is no JSON-RPC.
pub fn kind(line: &str) -> Option<Kind> {
    if line.starts_with('[') {
        return serde_json::from_str::<Vec<&RawValue>>(line).ok().map(|_| Kind::Batch);
    }
    let shape: Shape = serde_json::from_str(line).ok()?;
    Some(match (shape.id.map(RawValue::get), shape.method) {
        (Some(id), Some(method)) if id != "null" => Kind::Request { id: id.to_string(), method: method.into_owned() },
        (_, Some(method)) => Kind::Notification { method: method.into_owned() },
        (_, None) => Kind::Response,
    })
}

/// Does a message that came answer the request of this id?
pub fn answers(message: &str, id: &str) -> bool {
    // Comparing the text of the id is enough for the daemon's own answers; numbers may be written in two ways.
    let same = |found: &str| {
        found == id
            || matches!((serde_json::from_str::<Value>(found), serde_json::from_str::<Value>(id)), (Ok(a), Ok(b)) if a == b)
    };
    match serde_json::from_str::<Shape>(message) {
        Ok(Shape { id: Some(found), method: None }) => same(found.get()),
        Ok(_) | Err(_) => false,
    }
}

/// Which request a `notifications/cancelled` is about.
pub fn cancelled(line: &str) -> Option<String> {
    let message: Value = serde_json::from_str(line).ok()?;
    match &message["params"]["requestId"] {
        Value::Null => None,
        id => Some(id.to_string()),
    }
}

/// The headers of a version without sessions: what is in the message, where whatever routes it can see it.
pub fn stateless_headers(line: &str) -> Option<Vec<(&'static str, String)>> {
    // Messages of other versions are not looked into: they may be large.
    memchr::memmem::find(line.as_bytes(), VERSION_KEY.as_bytes())?;
    let message: Value = serde_json::from_str(line).ok()?;
    let params = &message["params"];
    let version = params["_meta"][VERSION_KEY].as_str()?;
    let method = message["method"].as_str()?;
    let mut headers = vec![("MCP-Protocol-Version", header(version)), ("Mcp-Method", header(method))];
    let name = match method {
        "tools/call" | "prompts/get" => params["name"].as_str(),
        "resources/read" => params["uri"].as_str(),
        "tasks/get" | "tasks/update" | "tasks/cancel" => params["taskId"].as_str(),
        _ => None,
    };
    headers.extend(name.map(|name| ("Mcp-Name", header(name))));
    Some(headers)
}

/// A value as a header can carry it: Base64 where it could not be itself.
fn header(value: &str) -> String {
    let plain = value.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    if plain && value.trim() == value && !value.starts_with("=?base64?") {
        return value.to_string();
    }
    format!("=?base64?{}?=", base64::engine::general_purpose::STANDARD.encode(value))
}

/// A message in one line. In JSON a line end is space, wherever it may stand.
pub fn one_line(message: &str) -> Cow<'_, str> {
    let message = message.trim();
    if message.contains(['\n', '\r']) { message.replace(['\n', '\r'], " ").into() } else { message.into() }
}

/// An error in place of an answer that cannot come.
pub fn failure(id: &str, message: &str) -> String {
    let id: Value = serde_json::from_str(id).unwrap_or_default();
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32000, "message": message}}).to_string()
}

/// What an HTTP error says, as the answer to a request: the daemon's own JSON-RPC error, under the client's id.
pub fn refusal(id: &str, status: u16, body: &[u8]) -> String {
    let mut answer: Value = serde_json::from_slice(body).unwrap_or_default();
    if answer["jsonrpc"] == "2.0" && answer["error"].is_object() {
        answer["id"] = serde_json::from_str(id).unwrap_or_default();
        return answer.to_string();
    }
    let message =
        answer["error"]["message"].as_str().map_or(format!("the daemon answered with HTTP {status}"), str::to_string);
    failure(id, &message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_told_apart() {
        let request = |id: &str| Some(Kind::Request { id: id.into(), method: "m".into() });
        assert_eq!(kind(r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#), request("1"));
        assert_eq!(kind(r#"{"id":"a\"b","method":"m","params":{"id":2}}"#), request(r#""a\"b""#));
        assert_eq!(kind(r#"{"method":"m"}"#), Some(Kind::Notification { method: "m".into() }));
        assert_eq!(kind(r#"{"id":1,"result":{"method":"m"}}"#), Some(Kind::Response));
        assert_eq!(kind(r#"[{"id":1,"method":"m"}]"#), Some(Kind::Batch));
        assert_eq!(kind("hello"), None);
        assert!(answers(r#"{"id":1.0,"result":{}}"#, "1.0") && answers(r#"{"id": 1,"error":{}}"#, "1"));
        assert!(!answers(r#"{"id":1,"method":"elicitation/create"}"#, "1"));
        assert_eq!(cancelled(r#"{"params":{"requestId":"x"}}"#).as_deref(), Some("\"x\""));
    }

    #[test]
    fn a_message_without_a_session_repeats_its_names_in_headers() {
        let line = r#"{"id":1,"method":"tools/call","params":{"name":"grüß","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#;
        let headers = stateless_headers(line).unwrap();
        assert_eq!(headers[0], ("MCP-Protocol-Version", "2026-07-28".to_string()));
        assert_eq!(headers[1], ("Mcp-Method", "tools/call".to_string()));
        assert_eq!(crate::api::mcp::decoded(&headers[2].1).as_deref(), Some("grüß"));
        assert_eq!(stateless_headers(r#"{"id":1,"method":"tools/call","params":{"name":"x"}}"#), None);
        assert!(!header("a\r\nX: y").contains('\n'));
    }

    #[test]
    fn errors_keep_what_the_daemon_says_and_get_the_clients_id() {
        let body =
            br#"{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"late","data":{"code":"call_timeout"}}}"#;
        let answer: Value = serde_json::from_str(&refusal("\"a\"", 504, body)).unwrap();
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!("a"), &json!(-32001)));
        let body = br#"{"error":{"code":"unauthorized","message":"who?"}}"#;
        assert!(refusal("1", 401, body).contains("who?"));
        assert!(refusal("1", 502, b"<html>").contains("HTTP 502"));
        assert_eq!(one_line("{\n \"a\": 1\r\n}\n"), "{  \"a\": 1  }");
    }
}
