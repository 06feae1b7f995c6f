//! From an answer to a whole HTTP response: its status, its headers and its JSON. A server's `result` passes through as
//! it is. Never waits and never decides.

use crate::api::auth::Tokens;
use crate::api::auth::proof::Challenge;
use crate::api::definition::stored;
use crate::api::mcp::{self, EVENTS};
use crate::api::metrics;
use crate::api::projects::render as projects;
use crate::api::request::LogFormat;
use crate::api::response::Answer;
use crate::api::route;
use crate::api::status;
use crate::api::tokens::TokenObject;
use crate::model::external::{LinkStatus, ProjectId};
use crate::model::fault::{self, Code, Fault};
use crate::model::log::{LogEntry, LogSource};
use crate::model::news::{News, NewsKind};
use crate::model::status::{Status, StatusView};
use crate::model::tally::Sample;
use crate::wire::backlog::Shared;
use crate::wire::http_out::Response;
use crate::wire::sse;
use crate::wire::times::rfc3339;
use serde::Serialize;
use serde_json::json;
use std::borrow::Cow;

pub const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
/// Tells an error of the MCP server from one of the daemon.
pub const ERROR_SOURCE: &str = "x-stdiod-error-source";

/// `Answer::Stream` gives the head and the first events of a stream; whoever writes it leaves it open.
pub fn render(answer: Answer) -> Response {
    match answer {
        Answer::Result(result) => Response {
            around: [r#"{"result":"#, r#","error":null}"#].map(Cow::Borrowed),
            ..response(200, JSON, result)
        },
        Answer::ServerError { code, error } => {
            let status = fault::server_error_status(code);
            let around = [r#"{"result":null,"error":"#, "}"].map(Cow::Borrowed);
            Response { headers: vec![(ERROR_SOURCE, "server".into())], around, ..response(status, JSON, error) }
        }
        Answer::Registered(view) => {
            let location = format!("{}/{}", route::SERVERS, view.id);
            Response { headers: vec![("Location", location)], ..response(201, JSON, status_body(&view)) }
        }
        Answer::Status(view) => response(200, JSON, status_body(&view)),
        Answer::List(views) => response(200, JSON, list_body(&views)),
        Answer::Definition(definition) => response(200, JSON, to_json(&stored::shown(&definition))),
        Answer::Deleted | Answer::TokenRevoked | Answer::KeyRotated => response(204, "", Vec::new()),
        Answer::Tools(None) => response(200, JSON, br#"{"tools":null}"#.to_vec()),
        Answer::Tools(Some(bytes)) => {
            Response { shared: vec![Shared { bytes, from: 0 }], ..response(200, JSON, Vec::new()) }
        }
        Answer::Logs { entries, format: LogFormat::Text } => response(200, TEXT, log_text(&entries)),
        Answer::Logs { entries, format: LogFormat::Json } => {
            let entries: Vec<_> = entries.iter().map(LogObject::of).collect();
            response(200, JSON, to_json(&json!({ "entries": entries })))
        }
        Answer::News(all) => {
            let mut body = Vec::new();
            for news in &all {
                write_news(&mut body, news);
            }
            Response { headers: vec![("Cache-Control", "no-store".into())], ..response(200, EVENTS, body) }
        }
        Answer::Stream { session, events } => mcp::stream(session, &events),
        Answer::McpResult { before, result } => {
            Response { around: [before.into(), "}".into()], ..response(200, JSON, result) }
        }
        Answer::McpList { before, items, behind } => {
            Response { around: [before.into(), behind.into()], shared: items, ..response(200, JSON, Vec::new()) }
        }
        Answer::Message { status, session, body } => mcp::message(status, session, body),
        Answer::Accepted => mcp::accepted(),
        Answer::SessionEnded => response(204, "", Vec::new()),
        Answer::Ready { ready: true, providers, .. } => {
            let verdict =
                |why: Option<String>| why.map_or_else(|| "usable".to_string(), |why| format!("not usable: {why}"));
            let providers: std::collections::BTreeMap<String, String> =
                providers.into_iter().map(|(name, why)| (name, verdict(why))).collect();
            response(200, JSON, to_json(&json!({ "status": "ready", "providers": providers })))
        }
        Answer::Ready { ready: false, reasons, .. } => {
            let why = format!("not ready: {}", reasons.join("; "));
            refuse(&Fault::new(Code::Unavailable, why).with("reasons", reasons).retry_after_ms(1000))
        }
        Answer::TokenCreated { token, secret, rotated: true } => {
            let body = to_json(&TokenObject { token: Some(&secret), ..TokenObject::of(&token) });
            Response { headers: vec![("Cache-Control", "no-store".into())], ..response(200, JSON, body) }
        }
        Answer::TokenCreated { token, secret, rotated: false } => {
            let location = format!("{}/{}", route::TOKENS, token.name);
            let body = to_json(&TokenObject { token: Some(&secret), ..TokenObject::of(&token) });
            let headers = vec![("Location", location), ("Cache-Control", "no-store".into())];
            Response { headers, ..response(201, JSON, body) }
        }
        Answer::Tokens(tokens) => response(200, JSON, to_json(&tokens.iter().map(TokenObject::of).collect::<Vec<_>>())),
        Answer::Metrics(metrics) => response(200, metrics::CONTENT_TYPE, metrics::render(&metrics)),
        Answer::MetricsText(text) => response(200, metrics::CONTENT_TYPE, text),
        Answer::Samples(samples) => {
            let samples: Vec<_> = samples.iter().map(SampleObject::of).collect();
            response(200, JSON, to_json(&json!({ "samples": samples })))
        }
        Answer::ExternalCreated(view) => projects::created(&view),
        Answer::External(view) => response(200, JSON, to_json(&projects::external(&view))),
        Answer::Externals(views) => {
            response(200, JSON, to_json(&views.iter().map(projects::external).collect::<Vec<_>>()))
        }
        Answer::Unloaded { links } => response(200, JSON, to_json(&json!({ "links": links }))),
        Answer::SecretStored(secret) => response(200, JSON, to_json(&projects::secret(&secret))),
        Answer::Secrets(all) => response(200, JSON, to_json(&all.iter().map(projects::secret).collect::<Vec<_>>())),
        Answer::SecretDeleted => response(204, "", Vec::new()),
        Answer::Manifest { project, product, entries } => {
            response(200, JSON, to_json(&projects::manifest(&project, &product, &entries)))
        }
        Answer::ProjectTools { tools, unavailable } => response(200, JSON, projects::tools(&tools, &unavailable)),
        Answer::ToolResult { result, format } => response(200, JSON, projects::tool_result(result, format)),
        Answer::Calls(calls) => response(200, JSON, to_json(&projects::calls(&calls))),
        Answer::Imported { dry_run, entries } => {
            let servers: Vec<_> = entries.iter().map(|one| one.entry.shown(one.action.wire())).collect();
            response(if dry_run { 200 } else { 201 }, JSON, to_json(&json!({ "servers": servers })))
        }
        Answer::Refused(fault) => refuse(&fault),
    }
}

/// The answer to a challenge that came to `address`.
pub fn prove(challenge: &Challenge, tokens: &Tokens, address: &str) -> Response {
    match tokens.prove(challenge, address) {
        Ok(proof) => response(200, JSON, json!({ "proof": proof }).to_string().into_bytes()),
        Err(fault) => refuse(&fault),
    }
}

/// What clients of the authorization server read first, also in a browser: of this daemon as such, or of an endpoint, whether
/// there is a server behind it or not.
pub fn resource_metadata(path: &str, tokens: &Tokens) -> Response {
    let Some(resource) = tokens.resource() else {
        return refuse(&Fault::new(Code::NotFound, "no authorization server is configured here: `[oauth]` is missing"));
    };
    let headers = vec![("Access-Control-Allow-Origin", "*".to_string())];
    Response { headers, ..response(200, JSON, to_json(&resource.metadata(path))) }
}

/// Every fault of the daemon's own, in the one shape.
pub fn refuse(fault: &Fault) -> Response {
    let mut headers = vec![(ERROR_SOURCE, "host".to_string())];
    headers.extend(fault.retry_after_s.map(|seconds| ("Retry-After", seconds.to_string())));
    headers.extend(fault.allow.clone().map(|methods| ("Allow", methods)));
    let told = fault.challenge.clone().or_else(|| (fault.code == Code::Unauthorized).then(|| "Bearer".to_string()));
    headers.extend(told.map(|told| ("WWW-Authenticate", told)));
    Response { headers, ..response(fault.code.status(), JSON, to_json(&fault.body())) }
}

/// The data of one event of a followed log.
pub fn render_log_event(entry: &LogEntry) -> Vec<u8> {
    to_json(&LogObject::of(entry))
}

/// One event of the stream of all servers.
pub fn write_news(out: &mut Vec<u8>, news: &News) {
    let kind = match news.kind {
        NewsKind::State => "state",
        NewsKind::Transition => "transition",
        NewsKind::Warning => "warning",
        NewsKind::Presence => "presence",
        NewsKind::Link => "link",
    };
    let data = NewsObject {
        at: rfc3339(news.at_unix_ms),
        workspace_id: news.server.to_string(),
        project_id: news.project.as_ref().map(ProjectId::as_str),
        name: &news.name,
        instance: news.instance.map(|instance| instance.0),
        from: news.from.filter(|_| news.link.is_none()).map(Status::wire),
        status: news.link.map_or_else(|| news.to.wire(), LinkStatus::wire),
        why: &news.why,
    };
    sse::event(out, Some(kind), None, &to_json(&data));
}

#[derive(Serialize)]
struct NewsObject<'a> {
    at: String,
    workspace_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    project_id: Option<&'a str>,
    name: &'a str,
    instance: Option<u64>,
    from: Option<&'static str>,
    status: &'static str,
    why: &'a str,
}

pub(in crate::api) fn response(status: u16, content_type: &'static str, body: Vec<u8>) -> Response {
    Response::new(status, content_type, body)
}

fn to_json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("strings and numbers into memory")
}

fn status_body(view: &StatusView) -> Vec<u8> {
    let mut body = Vec::with_capacity(1024);
    status::write(view, &mut body);
    body
}

fn list_body(views: &[StatusView]) -> Vec<u8> {
    let mut body = Vec::with_capacity(2 + views.len() * 1024);
    body.push(b'[');
    for (at, view) in views.iter().enumerate() {
        if at > 0 {
            body.push(b',');
        }
        status::write(view, &mut body);
    }
    body.push(b']');
    body
}

#[derive(Serialize)]
struct SampleObject {
    at: String,
    cpu_percent: f64,
    memory_bytes: u64,
    calls: u32,
    failed: u32,
    latency_mean_ms: u64,
    latency_max_ms: u64,
}

impl SampleObject {
    fn of(sample: &Sample) -> SampleObject {
        let lately = sample.lately;
        SampleObject {
            at: rfc3339(sample.at_unix_ms),
            cpu_percent: sample.cpu_percent,
            memory_bytes: sample.memory_bytes,
            calls: lately.calls,
            failed: lately.failed,
            latency_mean_ms: lately.duration_ms / u64::from(lately.calls.max(1)),
            latency_max_ms: lately.slowest_ms,
        }
    }
}

#[derive(Serialize)]
struct LogObject<'a> {
    at: String,
    instance: Option<u64>,
    source: &'static str,
    text: &'a str,
}

impl LogObject<'_> {
    fn of(entry: &LogEntry) -> LogObject<'_> {
        LogObject {
            at: rfc3339(entry.at_unix_ms),
            instance: entry.instance.map(|instance| instance.0),
            source: match entry.source {
                LogSource::Stderr => "stderr",
                LogSource::Noise => "noise",
                LogSource::Lifecycle => "lifecycle",
                LogSource::Health => "health",
            },
            text: &entry.text,
        }
    }
}

/// Time, source and text, a line each. Control characters are escaped: a server must not reach into the terminal of
/// whoever reads its log, nor write lines that look like another's.
fn log_text(entries: &[LogEntry]) -> Vec<u8> {
    let mut out = String::new();
    for entry in entries {
        let LogObject { at, source, text, .. } = LogObject::of(entry);
        out.extend([&at, " ", source, " "]);
        for letter in text.chars() {
            match letter.is_control() && letter != '\t' {
                true => out.extend(letter.escape_default()),
                false => out.push(letter),
            }
        }
        out.push('\n');
    }
    out.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::auth::Peer;
    use crate::api::rest::tests::{NAMED, asked, sent};
    use crate::api::status::tests::{definition, view};
    use crate::ids::InstanceId;
    use crate::model::records::Token;
    use crate::model::status::Usage;
    use serde_json::Value;

    fn header<'r>(response: &'r Response, name: &str) -> Option<&'r str> {
        response.headers.iter().find(|(given, _)| *given == name).map(|(_, value)| value.as_str())
    }

    fn body(response: &Response) -> Value {
        serde_json::from_slice(&response.whole_body()).unwrap()
    }

    #[test]
    fn a_servers_answer_passes_byte_for_byte() {
        let exact = br#"{"n":1.50e+01, "k":"\u00e9\/"}"#;
        let answer = render(Answer::Result(exact.to_vec()));
        assert_eq!(answer.whole_body(), br#"{"result":{"n":1.50e+01, "k":"\u00e9\/"},"error":null}"#);
        assert_eq!((answer.status, answer.body.capacity()), (200, answer.body.len()));
        assert!(answer.headers.is_empty());
        let error = br#"{"code":-32601,"message":"Unknown tool: x"}"#;
        let answer = render(Answer::ServerError { code: -32601, error: error.to_vec() });
        assert_eq!(answer.whole_body(), br#"{"result":null,"error":{"code":-32601,"message":"Unknown tool: x"}}"#);
        assert_eq!((answer.status, header(&answer, ERROR_SOURCE)), (404, Some("server")));
    }

    #[test]
    fn answers_have_their_status_and_headers() {
        let view = || StatusView { usage: Some(Usage::default()), ..view(definition()) };
        let registered = render(Answer::Registered(Box::new(view())));
        assert_eq!(registered.status, 201);
        let location = "/api/v1/mcp/servers/550e8400-e29b-41d4-a716-446655440000";
        assert_eq!(header(&registered, "Location"), Some(location));
        let one = render(Answer::Status(Box::new(view())));
        let list = render(Answer::List(vec![view(), view()]));
        assert_eq!((one.status, body(&list)), (200, json!([body(&one), body(&one)])));
        assert_eq!(render(Answer::List(Vec::new())).body, b"[]");
        for gone in [Answer::Deleted, Answer::TokenRevoked, Answer::KeyRotated] {
            let gone = render(gone);
            assert_eq!((gone.status, gone.body.len()), (204, 0));
        }
        assert_eq!(render(Answer::Tools(Some((*b"{\"tools\":[ ]}").into()))).whole_body(), b"{\"tools\":[ ]}");
        assert_eq!(body(&render(Answer::Tools(None))), json!({"tools": null}));
        assert_eq!(render(Answer::Ready { ready: true, reasons: Vec::new(), providers: Vec::new() }).status, 200);
        let reasons = vec!["store".into()];
        let not_ready = render(Answer::Ready { ready: false, reasons, providers: Vec::new() });
        assert_eq!((not_ready.status, &body(&not_ready)["error"]["data"]["reasons"]), (503, &json!(["store"])));
    }

    #[test]
    fn the_hash_of_a_token_is_never_shown_and_its_secret_once() {
        let token = Token {
            name: "ci".into(),
            hash: [7; 32],
            scopes: vec!["mcp:call".into()],
            expires_unix_ms: Some(1),
            previous: Some(([8; 32], 2)),
            ..Token::default()
        };
        let shown = json!({"name": "ci", "scopes": ["mcp:call"], "servers": [], "projects": [],
            "created_at": "1970-01-01T00:00:00.000Z", "expires_at": "1970-01-01T00:00:00.001Z", "last_used_at": null, "previous_until": "1970-01-01T00:00:00.002Z"});
        assert_eq!(body(&render(Answer::Tokens(vec![token.clone()]))), json!([shown]));
        let created = render(Answer::TokenCreated { token: Box::new(token), secret: "s".into(), rotated: false });
        assert_eq!((created.status, header(&created, "Cache-Control")), (201, Some("no-store")));
        assert_eq!(body(&created)["token"], json!("s"));
    }

    #[test]
    fn refusals_have_one_shape_and_name_the_way_out() {
        let refused = refuse(&Fault::new(Code::QueueFull, "full").with("limit", 4).retry_after_ms(1500));
        assert_eq!(body(&refused), json!({"error": {"code": "queue_full", "message": "full", "data": {"limit": 4}}}));
        assert_eq!((refused.status, header(&refused, ERROR_SOURCE)), (429, Some("host")));
        assert_eq!(header(&refused, "Retry-After"), Some("2"));
        let refused = refuse(&asked("PUT /healthz", "").unwrap_err());
        assert_eq!((refused.status, header(&refused, "Allow")), (405, Some("GET, HEAD")));
        let refused = render(Answer::Refused(sent(Peer::Token, "", &format!("GET {NAMED}"), "", "").unwrap_err()));
        assert_eq!((refused.status, header(&refused, "WWW-Authenticate")), (401, Some("Bearer")));
    }

    #[test]
    fn logs_come_as_text_as_json_and_as_events() {
        let entries = vec![
            LogEntry { at_unix_ms: 0, instance: None, source: LogSource::Lifecycle, text: "starting".into() },
            LogEntry {
                at_unix_ms: 1,
                instance: Some(InstanceId(3)),
                source: LogSource::Stderr,
                text: "a\tb\u{1b}[31mé\r\n".into(),
            },
        ];
        let text = render(Answer::Logs { entries: entries.clone(), format: LogFormat::Text });
        assert_eq!(
            String::from_utf8(text.body).unwrap(),
            "1970-01-01T00:00:00.000Z lifecycle starting\n1970-01-01T00:00:00.001Z stderr a\tb\\u{1b}[31mé\\r\\n\n"
        );
        let first =
            json!({"at": "1970-01-01T00:00:00.000Z", "instance": null, "source": "lifecycle", "text": "starting"});
        let as_json = body(&render(Answer::Logs { entries: entries.clone(), format: LogFormat::Json }));
        assert_eq!(as_json["entries"][0], first);
        assert_eq!(as_json["entries"][1]["text"], json!(entries[1].text));
        let stream = entries.iter().cloned().map(crate::api::response::StreamEvent::Log).collect();
        let events = render(Answer::Stream { session: None, events: stream });
        assert_eq!(events.content_type, "text/event-stream");
        let event = |entry| [b"data: ", render_log_event(entry).as_slice(), b"\n\n"].concat();
        assert_eq!(events.body, [event(&entries[0]), event(&entries[1])].concat());
    }
}
