//! The rules of MCP over HTTP: what a request to an endpoint must look like in each version of the protocol, and how its
//! answers look. Owns headers, media types and the statuses of refusals; never knows a session or a server.

pub mod forwarding;

use crate::api::auth;
use crate::api::request::{McpAsk, Stateless, Takes};
use crate::api::response::StreamEvent;
use crate::ids::EventId;
use crate::ids::{SessionId, Uuid};
use crate::limits::{BATCH_MAX, STREAM_RETRY};
use crate::model::fault::{Code, Fault};
use crate::model::protocol::{STATELESS, Version};
use crate::wire::http_in::{Common, Method, Request, is_media};
use crate::wire::http_out::Response;
use crate::wire::json::{self, Json};
use crate::wire::jsonrpc::{self, Message};
use crate::wire::sse;
use serde::Deserialize;
use serde_json::json;
use std::borrow::Cow;

const JSON: &str = "application/json";
pub const EVENTS: &str = "text/event-stream";
pub const SESSION: &str = "Mcp-Session-Id";
const PARSE_ERROR: i64 = -32700;
const INVALID_REQUEST: i64 = -32600;
const INVALID_PARAMS: i64 = -32602;
const HEADER_MISMATCH: i64 = -32020;
const UNSUPPORTED_VERSION: i64 = -32022;

/// Which of the addresses of an endpoint it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// Streamable HTTP.
    Main,
    /// The stream of 2024-11-05.
    OldStream,
    /// Where its clients post to.
    OldPost,
}

/// What a request asks of an endpoint, or the answer that it gets at once.
pub fn interpret<'a>(request: &Request<'a>, door: Door) -> Result<McpAsk<'a>, Response> {
    refuse_foreign_origin(request)?;
    match (door, request.method) {
        (Door::OldStream, _) => {
            let base = request.path.trim_end_matches('/').trim_end_matches("/sse");
            Ok(McpAsk::OldStream { post_to: format!("{base}/messages") })
        }
        (Door::OldPost, _) => old_post(request),
        (Door::Main, Method::Get) => listen(request),
        (Door::Main, Method::Delete) => Ok(McpAsk::End { session: required_session(request)? }),
        (Door::Main, _) => post(request),
    }
}

/// A page of another site may not speak here, whatever token it has got hold of.
pub fn refuse_foreign_origin(request: &Request<'_>) -> Result<(), Response> {
    let Some(origin) = request.common(Common::Origin) else { return Ok(()) };
    let text = std::str::from_utf8(origin).unwrap_or_default();
    let same = text.split_once("://").is_some_and(|(_, authority)| authority.eq_ignore_ascii_case(request.host()));
    if same || auth::is_local_origin(text) {
        return Ok(());
    }
    Err(refuse(None, &Fault::new(Code::Forbidden, "Origin: requests are not taken from a foreign web page")))
}

// --- the parts of a request -----------------------------------------------------------------------------------------------

fn listen<'a>(request: &Request<'a>) -> Result<McpAsk<'a>, Response> {
    if version_of(request) == Some(STATELESS) {
        return Err(only_post());
    }
    if !accepted_of(request)[1] {
        return Err(error(406, None, INVALID_REQUEST, "Accept: a GET opens a stream of text/event-stream", None));
    }
    let session = required_session(request)?;
    let after = match request.header("last-event-id") {
        None => None,
        Some(raw) => match std::str::from_utf8(raw).ok().and_then(|text| text.parse::<EventId>().ok()) {
            Some(id) => Some(id),
            None => return Err(error(400, None, INVALID_REQUEST, "Last-Event-ID: is no event of this server", None)),
        },
    };
    Ok(McpAsk::Listen { session, after })
}

fn only_post() -> Response {
    let response = error(405, None, INVALID_REQUEST, &format!("{STATELESS} knows only POST"), None);
    Response { headers: vec![("Allow", "POST".to_string())], ..response }
}

fn required_session(request: &Request<'_>) -> Result<SessionId, Response> {
    session(request)?.ok_or_else(|| error(400, None, INVALID_REQUEST, "Mcp-Session-Id: is missing", None))
}

/// One that cannot be ours is as unknown as one that is not there any more.
fn session(request: &Request<'_>) -> Result<Option<SessionId>, Response> {
    let Some(raw) = request.common(Common::McpSessionId) else { return Ok(None) };
    match Uuid::try_parse_ascii(raw) {
        Ok(uuid) => Ok(Some(SessionId(uuid))),
        Err(_) => Err(refuse(None, &Fault::new(Code::NotFound, "there is no such session: initialize again"))),
    }
}

fn version_of<'a>(request: &Request<'a>) -> Option<&'a str> {
    std::str::from_utf8(request.common(Common::McpProtocolVersion)?).ok()
}

fn takes(request: &Request<'_>) -> Result<Takes, Response> {
    match accepted_of(request) {
        [true, true] => Ok(Takes::Either),
        [true, false] => Ok(Takes::Json),
        [false, true] => Ok(Takes::Stream),
        [false, false] => {
            let message = "Accept: application/json and text/event-stream are what there is";
            Err(error(406, None, INVALID_REQUEST, message, None))
        }
    }
}

/// Whether JSON is accepted, and whether events are. Whoever does not say takes everything.
fn accepted_of(request: &Request<'_>) -> [bool; 2] {
    let Some(accept) = request.common(Common::Accept) else { return [true, true] };
    // As the specification writes it, and nearly everybody after it.
    if accept == b"application/json, text/event-stream" {
        return [true, true];
    }
    let mut accepted = [false, false];
    for range in accept.split(|byte| *byte == b',') {
        let essence = range.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        accepted[0] |= is_within(essence, JSON, b"application/*");
        accepted[1] |= is_within(essence, EVENTS, b"text/*");
    }
    accepted
}

fn is_within(essence: &[u8], media: &str, family: &[u8]) -> bool {
    essence.eq_ignore_ascii_case(media.as_bytes()) || essence == b"*/*" || essence == family
}

fn body<'a>(request: &Request<'a>) -> Result<&'a [u8], Response> {
    if !is_media(request.common(Common::ContentType).unwrap_or_default(), JSON) {
        let fault = Fault::new(Code::UnsupportedMediaType, "Content-Type: must be application/json");
        return Err(refuse(None, &fault));
    }
    match request.body.trim_ascii_start().is_empty() {
        true => Err(not_json("it is empty")),
        false => Ok(request.body),
    }
}

fn not_json(why: &str) -> Response {
    error(400, None, PARSE_ERROR, &format!("the body is not valid JSON: {why}"), None)
}

/// What is wrong with a body that was not understood; `otherwise`, if it is JSON all the same.
fn misread(body: &[u8], otherwise: impl FnOnce() -> Response) -> Response {
    match std::str::from_utf8(body).map(serde_json::from_str::<serde::de::IgnoredAny>) {
        Err(_) => not_json("it is not UTF-8"),
        Ok(Err(e)) => not_json(&e.to_string()),
        Ok(Ok(_)) => otherwise(),
    }
}

/// Whatever is read of it is UTF-8.
fn one_message(body: &[u8]) -> Result<Message<'_>, Response> {
    match jsonrpc::parse(body) {
        Some(Message::Stray) => {
            let message = "this is no JSON-RPC request, notification or reply to one of ours";
            Err(error(400, None, INVALID_REQUEST, message, None))
        }
        Some(message) => Ok(message),
        None => Err(misread(body, || error(400, None, INVALID_REQUEST, "a JSON-RPC message is an object", None))),
    }
}

// --- versions with sessions -------------------------------------------------------------------------------------------------

fn post<'a>(request: &Request<'a>) -> Result<McpAsk<'a>, Response> {
    let takes = takes(request)?;
    let body = body(request)?;
    let named = version_of(request).map(|name| (name, Version::of(name)));
    if let Some((name, None)) = named {
        return stateless(request, body, takes, Some(name));
    }
    if body.trim_ascii_start().starts_with(b"[") {
        return batch(request, body, takes);
    }
    let message = one_message(body)?;
    let session = session(request)?;
    if session.is_none() && named.is_none() && memchr::memmem::find(body, VERSION_KEY.as_bytes()).is_some() {
        return stateless(request, body, takes, None);
    }
    Ok(McpAsk::Post { session, takes, batch: false, messages: vec![message] })
}

fn batch<'a>(request: &Request<'a>, body: &'a [u8], takes: Takes) -> Result<McpAsk<'a>, Response> {
    let (mut items, mut count) = (Vec::new(), 0);
    for item in json::items(body) {
        let item = item.map_err(|_| misread(body, || not_json("a key escapes half a character")))?;
        count += 1;
        // The others are only counted: a body has room for millions of them.
        items.extend((count <= BATCH_MAX).then_some(item));
    }
    if count == 0 || count > BATCH_MAX {
        return Err(error(400, None, INVALID_REQUEST, &format!("a batch has 1 to {BATCH_MAX} messages"), None));
    }
    if takes == Takes::Json {
        return Err(error(406, None, INVALID_REQUEST, "Accept: a batch is answered by text/event-stream", None));
    }
    let session = Some(required_session(request)?);
    let messages = items.into_iter().map(|item| one_message(item.get().as_bytes())).collect::<Result<Vec<_>, _>>()?;
    Ok(McpAsk::Post { session, takes, batch: true, messages })
}

fn old_post<'a>(request: &Request<'a>) -> Result<McpAsk<'a>, Response> {
    let session = request.query_pairs().find(|(name, _)| name == "session");
    let session = session.and_then(|(_, value)| Uuid::try_parse(&value).ok()).map(SessionId);
    let session = session.ok_or_else(|| error(400, None, INVALID_REQUEST, "session: is missing in the query", None))?;
    let message = one_message(body(request)?)?;
    Ok(McpAsk::OldPost { session, message })
}

// --- the version without sessions -------------------------------------------------------------------------------------------

const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";

/// What `_meta` of every request says.
#[derive(Deserialize)]
struct Meta<'a> {
    #[serde(rename = "io.modelcontextprotocol/protocolVersion")]
    version: Option<Cow<'a, str>>,
    #[serde(rename = "io.modelcontextprotocol/clientCapabilities", borrow)]
    capabilities: Option<Json<'a>>,
    #[serde(rename = "io.modelcontextprotocol/logLevel")]
    log_level: Option<String>,
}

fn stateless<'a>(
    request: &Request<'a>,
    body: &'a [u8],
    takes: Takes,
    header: Option<&str>,
) -> Result<McpAsk<'a>, Response> {
    let (id, method, params) = match one_message(body)? {
        Message::Request { id, method, params } => (id, method, params),
        // Closing the stream is how a request is cancelled; there is nothing else to tell.
        Message::Notification { .. } => return Err(accepted()),
        Message::Reply { .. } | Message::Stray => {
            return Err(error(400, None, INVALID_REQUEST, "only requests and notifications are posted", None));
        }
    };
    let mismatch = |message: &str| error(400, Some(id), HEADER_MISMATCH, message, None);
    let invalid = |message: &str| error(400, Some(id), INVALID_PARAMS, message, None);
    #[derive(Deserialize)]
    struct Params<'a> {
        #[serde(rename = "_meta", borrow)]
        meta: Option<Json<'a>>,
    }
    let raw = params.ok_or_else(|| invalid("params._meta: is required"))?;
    let meta = serde_json::from_str::<Params<'_>>(raw.get()).ok().and_then(|params| params.meta);
    let meta = meta.and_then(|meta| serde_json::from_str::<Meta<'_>>(meta.get()).ok());
    let meta = meta.ok_or_else(|| invalid("params._meta: is required"))?;
    let version = meta.version.ok_or_else(|| invalid(&format!("params._meta.{VERSION_KEY}: is required")))?;
    match header {
        None => return Err(mismatch("MCP-Protocol-Version: is missing")),
        Some(header) if header != version => {
            return Err(mismatch("MCP-Protocol-Version: is not the version in params._meta"));
        }
        Some(_) => {}
    }
    if version != STATELESS {
        let data = json!({ "supported": [STATELESS], "requested": version });
        return Err(error(400, Some(id), UNSUPPORTED_VERSION, "Unsupported protocol version", Some(data)));
    }
    let capabilities = meta
        .capabilities
        .ok_or_else(|| invalid("params._meta.io.modelcontextprotocol/clientCapabilities: is required"))?;
    match text_header(request, "mcp-method") {
        Some(value) if value == method => {}
        Some(_) => return Err(mismatch("Mcp-Method: is not the method in the body")),
        None => return Err(mismatch("Mcp-Method: is missing")),
    }
    let name = body_name(&method, raw).ok_or_else(|| invalid("params: a member that names something stands twice"))?;
    if let Some(name) = name {
        match text_header(request, "mcp-name").map(decoded) {
            Some(Some(value)) if value == name => {}
            Some(_) => return Err(mismatch("Mcp-Name: is not the name in the body")),
            None => return Err(mismatch("Mcp-Name: is missing")),
        }
    }
    let param_headers = request
        .headers_of("mcp-param-")
        .filter_map(|(name, value)| Some((name, std::str::from_utf8(value).ok()?.trim().to_string())))
        .collect();
    let request = Stateless { id, method, params: raw, capabilities, log_level: meta.log_level, param_headers };
    Ok(McpAsk::Stateless { request, takes })
}

fn text_header<'a>(request: &Request<'a>, name: &str) -> Option<&'a str> {
    std::str::from_utf8(request.header(name)?).ok().map(str::trim)
}

/// What `Mcp-Name` must repeat, if there is anything. None: the server might read another name than we do.
fn body_name(method: &str, params: Json<'_>) -> Option<Option<String>> {
    #[derive(Deserialize)]
    struct Wire<'a> {
        #[serde(borrow)]
        name: Option<Json<'a>>,
        #[serde(borrow)]
        uri: Option<Json<'a>>,
        #[serde(rename = "taskId", borrow)]
        task_id: Option<Json<'a>>,
    }
    let wire: Wire<'_> = serde_json::from_str(params.get()).ok()?;
    let named = match method {
        "tools/call" | "prompts/get" => wire.name,
        "resources/read" => wire.uri,
        "tasks/get" | "tasks/update" | "tasks/cancel" => wire.task_id,
        _ => None,
    };
    Some(named.and_then(|raw| serde_json::from_str(raw.get()).ok()))
}

/// The value of a header that repeats a part of the body: as it is, or Base64 where it could not be. None: it claims to
/// be Base64 and is not.
pub fn decoded(value: &str) -> Option<String> {
    let Some(inner) = value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) else {
        return Some(value.to_string());
    };
    String::from_utf8(base64(inner.as_bytes())?).ok()
}

fn base64(text: &[u8]) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let padding = text.iter().rev().take_while(|byte| **byte == b'=').count();
    if padding > 2 {
        return None;
    }
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut held) = (0u32, 0);
    for byte in &text[..text.len() - padding] {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        held += 6;
        if held >= 8 {
            held -= 8;
            out.push((bits >> held) as u8);
            bits &= (1 << held) - 1;
        }
    }
    (bits == 0).then_some(out)
}

// --- answers ----------------------------------------------------------------------------------------------------------------

pub fn message(status: u16, session: Option<SessionId>, body: Vec<u8>) -> Response {
    let headers = session.map(|session| (SESSION, session.to_string())).into_iter().collect();
    Response { headers, ..Response::new(status, JSON, body) }
}

pub fn accepted() -> Response {
    Response::new(202, "", Vec::new())
}

/// The head of a stream and its first events; whoever writes it leaves it open.
pub fn stream(session: Option<SessionId>, events: &[StreamEvent]) -> Response {
    let mut headers = vec![("Cache-Control", "no-store".to_string()), ("X-Accel-Buffering", "no".to_string())];
    headers.extend(session.map(|session| (SESSION, session.to_string())));
    let mut body = Vec::new();
    for one in events {
        event(&mut body, one);
    }
    Response { headers, ..Response::new(200, EVENTS, body) }
}

pub fn event(out: &mut Vec<u8>, event: &StreamEvent) {
    match event {
        StreamEvent::Log(entry) => sse::event(out, None, None, &crate::api::rest::render_log_event(entry)),
        StreamEvent::Message { id: Some(id), data } => sse::event(out, Some("message"), Some(&id.to_string()), data),
        StreamEvent::Message { id: None, data } => sse::event(out, Some("message"), None, data),
        StreamEvent::Prime { id } => sse::prime(out, &id.to_string(), STREAM_RETRY.as_millis() as u64),
        StreamEvent::Endpoint(path) => sse::event(out, Some("endpoint"), None, path.as_bytes()),
        StreamEvent::KeepAlive => sse::comment(out, "still here"),
    }
}

/// A fault of the daemon's own, in the shape that MCP clients read.
pub fn refuse(id: Option<Json<'_>>, fault: &Fault) -> Response {
    let mut data = fault.data.clone();
    data.insert("code".to_string(), fault.code.wire().0.into());
    let mut response = error(fault.code.status(), id, -32000, &fault.message, Some(data.into()));
    response.headers.extend(fault.retry_after_s.map(|seconds| ("Retry-After", seconds.to_string())));
    response.headers.extend(fault.allow.clone().map(|methods| ("Allow", methods)));
    let told = match (&fault.challenge, fault.code) {
        (Some(told), _) => Some(told.clone()),
        (None, Code::Unauthorized) => Some(r#"Bearer realm="stdiod", scope="mcp:call""#.to_string()),
        (None, _other) => None,
    };
    response.headers.extend(told.map(|told| ("WWW-Authenticate", told)));
    response
}

fn error(status: u16, id: Option<Json<'_>>, code: i64, message: &str, data: Option<serde_json::Value>) -> Response {
    let mut error = json!({ "code": code, "message": message });
    if let Some(data) = data {
        error["data"] = data;
    }
    let id = id.map_or("null", Json::get);
    let body = jsonrpc::error(id, error.to_string().as_bytes());
    Response::new(status, JSON, body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::http_in::{Parser, Step};

    fn ask(head: &str, body: &str) -> Result<String, (u16, i64)> {
        let mut parser = Parser::new();
        let request = format!("{head}\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        parser.feed(request.as_bytes());
        assert_eq!(parser.step(), Step::Request, "{request}");
        let request = parser.request();
        let outcome = interpret(&request, Door::Main);
        outcome.map(|ask| format!("{ask:?}").split([' ', '(']).next().unwrap().to_string()).map_err(|response| {
            let body: serde_json::Value = serde_json::from_slice(&response.body).unwrap_or_default();
            (response.status, body["error"]["code"].as_i64().unwrap_or_default())
        })
    }

    const POST: &str =
        "POST /mcp/a HTTP/1.1\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream";

    #[test]
    fn the_rules_of_versions_with_sessions() {
        let session = "\r\nMcp-Session-Id: 0123456789abcdef0123456789abcdef";
        let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
        let get = "GET /mcp/a HTTP/1.1\r\nAccept: text/event-stream";
        for (head, body, expected) in [
            (POST.to_string(), list, Ok("Post")),
            (format!("{POST}{session}"), list, Ok("Post")),
            (
                format!("{POST}{session}\r\nMCP-Protocol-Version: 2025-03-26"),
                "[{\"id\":1,\"method\":\"x\"}]",
                Ok("Post"),
            ),
            (POST.to_string(), "[{\"id\":1,\"method\":\"x\"}]", Err((400, -32600))),
            (format!("{POST}{session}"), "[]", Err((400, -32600))),
            (format!("{POST}\r\nMcp-Session-Id: x"), list, Err((404, -32000))),
            (POST.to_string(), "", Err((400, -32700))),
            (POST.to_string(), "{", Err((400, -32700))),
            (POST.to_string(), "7", Err((400, -32600))),
            (POST.to_string(), "{}", Err((400, -32600))),
            (POST.replace("application/json\r", "text/plain\r"), list, Err((415, -32000))),
            (
                POST.replace("Accept: application/json, text/event-stream", "Accept: text/html"),
                list,
                Err((406, -32600)),
            ),
            (format!("{POST}\r\nOrigin: https://evil.example.com"), list, Err((403, -32000))),
            (format!("{POST}\r\nOrigin: http://localhost:1234"), list, Ok("Post")),
            (format!("{get}{session}"), "", Ok("Listen")),
            (format!("{get}{session}\r\nLast-Event-ID: 1-2"), "", Ok("Listen")),
            (format!("{get}{session}\r\nLast-Event-ID: nonsense"), "", Err((400, -32600))),
            (get.to_string(), "", Err((400, -32600))),
            (format!("{get}{session}").replace("text/event-stream", "application/json"), "", Err((406, -32600))),
            (format!("{get}\r\nMCP-Protocol-Version: 2026-07-28"), "", Err((405, -32600))),
            (format!("DELETE /mcp/a HTTP/1.1{session}"), "", Ok("End")),
            ("DELETE /mcp/a HTTP/1.1".to_string(), "", Err((400, -32600))),
        ] {
            assert_eq!(ask(&head, body), expected.map(String::from), "{head}\n{body}");
        }
    }

    #[test]
    fn the_rules_of_the_version_without_sessions() {
        let meta = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
        let list = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{{{meta}}}}}"#);
        let call = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"é",{meta}}}}}"#);
        let head = |headers: &str| format!("{POST}\r\nMCP-Protocol-Version: 2026-07-28{headers}");
        let other = list.replace("2026-07-28", "v9");
        let twice = call.replace(r#""name":"é""#, r#""name":"e","name":"é""#);
        for (head, body, expected) in [
            (head("\r\nMcp-Method: tools/list"), list.as_str(), Ok("Stateless")),
            (head("\r\nmcp-method:   tools/list  "), &list, Ok("Stateless")),
            (head(""), &list, Err((400, -32020))),
            (head("\r\nMcp-Method: TOOLS/LIST"), &list, Err((400, -32020))),
            (format!("{POST}\r\nMcp-Method: tools/list"), &list, Err((400, -32020))),
            (head("\r\nMcp-Method: tools/list"), r#"{"id":1,"method":"tools/list","params":{}}"#, Err((400, -32602))),
            (head("\r\nMcp-Method: tools/list"), r#"{"id":1,"method":"tools/list"}"#, Err((400, -32602))),
            (head("\r\nMcp-Method: tools/list"), &other, Err((400, -32020))),
            (head("\r\nMcp-Method: tools/list").replace("2026-07-28", "v9"), &other, Err((400, -32022))),
            (head("\r\nMcp-Method: tools/call"), &call, Err((400, -32020))),
            (head("\r\nMcp-Method: tools/call\r\nMcp-Name: e"), &call, Err((400, -32020))),
            (head("\r\nMcp-Method: tools/call\r\nMcp-Name: =?base64?w6k=?="), &call, Ok("Stateless")),
            (head("\r\nMcp-Method: tools/call\r\nMcp-Name: e"), &twice, Err((400, -32602))),
            (head(""), r#"{"method":"notifications/cancelled"}"#, Err((202, 0))),
        ] {
            assert_eq!(ask(&head, body), expected.map(String::from), "{head}\n{body}");
        }
    }

    #[test]
    fn base64_is_taken_only_when_it_is_valid() {
        for (text, expected) in [
            ("plain", Some("plain")),
            ("=?base64?SGVsbG8=?=", Some("Hello")),
            ("=?base64?SGVsbG8?=", None),
            ("=?base64?SGVs!!!bG8=?=", None),
            ("=?base64?SGVsbG8=", Some("=?base64?SGVsbG8=")),
            ("=?base64??=", Some("")),
            ("=?base64?====?=", None),
            ("=?base64?/w==?=", None),
        ] {
            assert_eq!(decoded(text).as_deref(), expected, "{text}");
        }
    }
}
