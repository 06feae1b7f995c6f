//! REST: from a whole HTTP request to what is asked, and from an answer to a whole HTTP response. Owns queries, bodies
//! and media types; never waits and never decides. A call's `params` and a server's `result` pass through as slices.

use crate::api::auth::proof::{self, Challenge};
use crate::api::auth::{self, Peer, Shown, Tokens};
use crate::api::definition::fields;
use crate::api::definition::strict_json;
use crate::api::mcp::forwarding;
use crate::api::mcp::{self, EVENTS};
use crate::api::request::{Ask, Change, LogFormat, ServerRef};
use crate::api::response::Answer;
use crate::api::route::{self, Route};
use crate::api::status;
use crate::api::tokens::{self, TokenObject};
use crate::limits::{LOG_LINES_KEPT, LOG_TAIL_DEFAULT, WAIT_MS};
use crate::model::fault::{self, Code, Fault, Outcome};
use crate::model::log::{LogEntry, LogSource};
use crate::model::news::{News, NewsKind};
use crate::model::principal::{Need, Principal};
use crate::model::status::{Status, StatusView};
use crate::wire::backlog::Shared;
use crate::wire::http_in::{Method, Request, is_media};
use crate::wire::http_out::Response;
use crate::wire::json::Json;
use crate::wire::sse;
use crate::wire::times::{parse_rfc3339, rfc3339};
use serde::Serialize;
use serde_json::json;
use std::borrow::Cow;

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
/// Tells an error of the MCP server from one of the daemon.
const ERROR_SOURCE: &str = "x-stdiod-error-source";

#[derive(Debug)]
pub enum Interpreted<'a> {
    /// For the core.
    Ask { who: Principal, ask: Ask<'a> },
    /// Answered already.
    Direct(Response),
    /// For `prove`, with the address that the connection came to.
    Prove(Challenge),
}

/// What a request asks, if whoever sends it may ask that.
pub fn interpret<'a>(
    request: &Request<'a>,
    tokens: &Tokens,
    peer: &Peer,
    shown: &mut Shown,
) -> Result<Interpreted<'a>, Fault> {
    let route = match route::route(request.method, &request.path) {
        Ok(route) => route,
        Err(fault) => match stranger(request, tokens, peer, shown) {
            Some(response) => return Ok(Interpreted::Direct(response)),
            None => return Err(fault),
        },
    };
    if let Route::Mcp(server, door) = route {
        let ask = match identify(request, tokens, peer, shown, Need::Call) {
            Ok(who) => mcp::interpret(request, door).map(|ask| (who, ask)),
            Err(fault) => Err(mcp::refuse(None, &fault)),
        };
        return Ok(match ask {
            Ok((who, ask)) => Interpreted::Ask { who, ask: Ask::Mcp { server, ask } },
            Err(response) => Interpreted::Direct(response),
        });
    }
    let is_call = matches!(route, Route::Call(_));
    let asked = identify(request, tokens, peer, shown, route.needs()).and_then(|who| asked(request, route, who));
    // Whoever calls a server is told in every error whether the call may have been made.
    asked.map_err(|fault| if is_call { fault.outcome(Outcome::NotSent) } else { fault })
}

fn asked<'a>(request: &Request<'a>, route: Route, who: Principal) -> Result<Interpreted<'a>, Fault> {
    let mut query = Query::of(request, known_query(&route))?;
    let ask = match route {
        Route::Healthz => {
            return Ok(Interpreted::Direct(response(200, JSON, br#"{"status":"ok"}"#.to_vec())));
        }
        Route::Readyz => Ask::Ready,
        Route::Prove => {
            return Ok(Interpreted::Prove(Challenge { token: query.bytes("token")?, nonce: query.bytes("nonce")? }));
        }
        Route::Call(server) => call(server, json_body(request)?)?,
        Route::Register => {
            let definition = Box::new(fields::parse(json_body(request)?)?);
            if !who.may_see(&definition.name) {
                return Err(who.forbid("a server of this name is not among those it is limited to"));
            }
            Ask::Register { definition, wait: query.boolean("wait", true)? }
        }
        Route::List => Ask::List { status: query.status()?, name: query.take("name").map(Cow::into_owned) },
        Route::Get(server) => Ask::Get { server },
        Route::Patch(server) => {
            Ask::Patch { server, change: Box::new(Change { fields: strict_json::object(json_body(request)?)? }) }
        }
        Route::Delete(server) => Ask::Delete { server, volumes: query.boolean("volumes", false)? },
        Route::Restart(server) => Ask::Restart { server },
        Route::Stop(server) => Ask::Stop { server },
        Route::Start(server) => Ask::Start { server },
        Route::Logs(server) => Ask::Logs {
            server,
            tail: query.count("tail", LOG_TAIL_DEFAULT, LOG_LINES_KEPT)?,
            since_unix_ms: query.time("since")?,
            // A HEAD has no body for a stream to come in.
            follow: query.boolean("follow", false)? && request.method != Method::Head,
            format: log_format(request.header("accept")),
        },
        Route::Tools(server) => Ask::Tools { server },
        Route::Events if request.method == Method::Head => {
            return Ok(Interpreted::Direct(response(200, EVENTS, Vec::new())));
        }
        Route::Events => Ask::News,
        Route::Mcp(..) => unreachable!("taken before"),
        Route::TokenCreate => tokens::create(json_body(request)?, &who)?,
        Route::TokenList => Ask::TokenList,
        Route::TokenRevoke(name) => Ask::TokenRevoke { name },
        Route::TokenRotate(name) => Ask::TokenRotate { name, grace_ms: tokens::grace(json_body(request)?)? },
    };
    Ok(Interpreted::Ask { who, ask })
}

/// The answer to a challenge that came to `address`.
pub fn prove(challenge: &Challenge, tokens: &Tokens, address: &str) -> Response {
    match tokens.prove(challenge, address) {
        Ok(proof) => response(200, JSON, json!({ "proof": proof }).to_string().into_bytes()),
        Err(fault) => refuse(&fault),
    }
}

/// The refusal of a request whose body is still coming, if no body could change it: nobody is listened to for megabytes
/// only to be told that the token is wrong.
pub fn refuse_early(head: &Request<'_>, tokens: &Tokens, peer: &Peer, shown: &mut Shown) -> Option<Response> {
    let route = match route::route(head.method, &head.path) {
        Ok(route) => route,
        Err(fault) => return Some(stranger(head, tokens, peer, shown).unwrap_or_else(|| refuse(&fault))),
    };
    let fault = identify(head, tokens, peer, shown, route.needs()).err()?;
    if matches!(route, Route::Mcp(..)) {
        return Some(mcp::refuse(None, &fault));
    }
    Some(refuse(&if matches!(route, Route::Call(_)) { fault.outcome(Outcome::NotSent) } else { fault }))
}

/// Below an endpoint there is what its server says there is, or nothing. Whoever may not call anything is not told which.
fn stranger(request: &Request<'_>, tokens: &Tokens, peer: &Peer, shown: &mut Shown) -> Option<Response> {
    route::endpoint(&request.path)?;
    let fault = identify(request, tokens, peer, shown, Need::Call).err()?;
    Some(mcp::refuse(None, &fault))
}

/// Whoever shows a token is who it says, also where none is asked for.
pub fn identify(
    request: &Request<'_>,
    tokens: &Tokens,
    peer: &Peer,
    shown: &mut Shown,
    need: Need,
) -> Result<Principal, Fault> {
    if need == Need::Nothing {
        return Ok(Principal::nobody());
    }
    let who = match (peer, request.header("authorization")) {
        (Peer::Token, None) if shown.certified().is_some() => shown.certified().cloned().expect("just seen"),
        (Peer::Token, header) | (Peer::Open | Peer::OpenTls | Peer::Trusted, header @ Some(_)) => {
            tokens.recognise(header, shown)?
        }
        (Peer::Open | Peer::OpenTls | Peer::Trusted, None) => {
            auth::refuse_foreign_pages(request, *peer)?;
            Principal::anonymous()
        }
    };
    who.permit(need)?;
    Ok(who)
}

// --- queries --------------------------------------------------------------------------------------------------------

fn known_query(route: &Route) -> &'static [&'static str] {
    match route {
        Route::Register => &["wait"],
        Route::List => &["status", "name"],
        Route::Delete(_) => &["volumes"],
        Route::Logs(_) => &["tail", "since", "follow"],
        Route::Prove => &["token", "nonce"],
        Route::Healthz
        | Route::Readyz
        | Route::Get(_)
        | Route::Patch(_)
        | Route::Call(_)
        | Route::Restart(_)
        | Route::Stop(_)
        | Route::Start(_)
        | Route::Tools(_)
        | Route::Events
        | Route::Mcp(..)
        | Route::TokenCreate
        | Route::TokenList
        | Route::TokenRotate(_)
        | Route::TokenRevoke(_) => &[],
    }
}

/// The parameters after `?`: all of them known, none of them twice.
struct Query<'a> {
    pairs: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

impl<'a> Query<'a> {
    fn of(request: &Request<'a>, known: &[&str]) -> Result<Query<'a>, Fault> {
        let mut pairs: Vec<(Cow<'a, str>, Cow<'a, str>)> = Vec::new();
        for (name, value) in request.query_pairs() {
            if !known.contains(&&*name) {
                return Err(unknown_parameter(&name, known));
            }
            if pairs.iter().any(|(earlier, _)| *earlier == name) {
                return Err(Fault::field(&name, "this query parameter stands there twice"));
            }
            pairs.push((name, value));
        }
        Ok(Query { pairs })
    }

    fn take(&mut self, name: &str) -> Option<Cow<'a, str>> {
        let at = self.pairs.iter().position(|(given, _)| given == name)?;
        Some(self.pairs.swap_remove(at).1)
    }

    fn boolean(&mut self, name: &str, default: bool) -> Result<bool, Fault> {
        match self.take(name).as_deref() {
            None => Ok(default),
            Some("true") => Ok(true),
            Some("false") => Ok(false),
            Some(_) => Err(Fault::field(name, "expected true or false")),
        }
    }

    fn count(&mut self, name: &str, default: usize, max: usize) -> Result<usize, Fault> {
        let Some(text) = self.take(name) else { return Ok(default) };
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|number| digits && *number <= max);
        number.ok_or_else(|| Fault::field(name, format_args!("expected an integer from 0 to {max}")))
    }

    fn bytes<const N: usize>(&mut self, name: &str) -> Result<[u8; N], Fault> {
        let bytes = self.take(name).and_then(|text| proof::bytes(&text));
        bytes.ok_or_else(|| Fault::field(name, format_args!("expected {} hexadecimal digits", 2 * N)))
    }

    fn time(&mut self, name: &str) -> Result<Option<u64>, Fault> {
        let Some(text) = self.take(name) else { return Ok(None) };
        // An unescaped `+` of an offset arrives as a blank; nothing else in a time is one.
        let time = parse_rfc3339(&text.replace(' ', "+"));
        let expected = "expected an RFC 3339 time, as in 2026-02-17T10:00:00Z";
        time.map(Some).ok_or_else(|| Fault::field(name, expected))
    }

    fn status(&mut self) -> Result<Option<String>, Fault> {
        const ALL: [Status; 8] = [
            Status::Starting,
            Status::Ready,
            Status::Unresponsive,
            Status::Stopping,
            Status::Stopped,
            Status::Restarting,
            Status::Backoff,
            Status::Failed,
        ];
        let Some(text) = self.take("status") else { return Ok(None) };
        match ALL.iter().find(|status| status.wire() == text) {
            Some(status) => Ok(Some(status.wire().to_string())),
            None => Err(Fault::field("status", format_args!("expected one of {}", ALL.map(Status::wire).join(", ")))),
        }
    }
}

fn unknown_parameter(name: &str, known: &[&str]) -> Fault {
    let known =
        if known.is_empty() { "there are none here".into() } else { format!("known here are {}", known.join(", ")) };
    Fault::new(Code::UnknownField, format!("{name}: unknown query parameter; {known}")).with("field", name)
}

/// The range of the greatest weight wins, the first of equals, and text if it says nothing of the two: that is what a person with curl wants.
fn log_format(accept: Option<&[u8]>) -> LogFormat {
    let accept = String::from_utf8_lossy(accept.unwrap_or_default());
    let mut best = (0.0, LogFormat::Text);
    for range in accept.split(',') {
        let mut parts = range.split(';').map(str::trim);
        let format = match parts.next().unwrap_or_default().to_ascii_lowercase().as_str() {
            "application/json" | "application/*" => LogFormat::Json,
            "text/plain" | "text/*" | "*/*" => LogFormat::Text,
            _ => continue,
        };
        let weight = parts.find_map(|part| part.strip_prefix("q=")?.parse::<f64>().ok()).unwrap_or(1.0);
        if weight > best.0 {
            best = (weight, format);
        }
    }
    best.1
}

// --- bodies ---------------------------------------------------------------------------------------------------------

fn json_body<'a>(request: &Request<'a>) -> Result<&'a [u8], Fault> {
    match request.header("content-type") {
        Some(media) if !is_media(media, JSON) => {
            Err(Fault::new(Code::UnsupportedMediaType, format!("the body must be {JSON}")))
        }
        Some(_) | None => Ok(request.body),
    }
}

/// The hot path: three slices of the body and nothing else.
fn call(server: ServerRef, body: &[u8]) -> Result<Ask<'_>, Fault> {
    let [method, params, timeout_ms] = strict_json::members(body, &["method", "params", "timeout_ms"])?;
    let given = |raw: Option<_>| raw.filter(|raw: &Json<'_>| raw.get() != "null");
    let method = given(method).ok_or_else(|| Fault::field("method", "is required"))?;
    if method.get() != r#""tools/call""# {
        check_method(method)?;
    }
    let timeout_ms = match given(timeout_ms) {
        None => None,
        Some(raw) => Some(raw.get().parse().ok().filter(|ms| WAIT_MS.contains(ms)).ok_or_else(|| {
            let (least, most) = WAIT_MS.into_inner();
            Fault::field("timeout_ms", format_args!("expected an integer from {least} to {most}"))
        })?),
    };
    // JSON-RPC knows params or none; `null` is how some clients write none.
    Ok(Ask::Call { server, method, params: given(params), timeout_ms })
}

/// However it is spelt: what the server gets is the client's own text.
fn check_method(method: Json<'_>) -> Result<(), Fault> {
    let name = method.text().filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| Fault::field("method", "expected the name of a method"))?;
    match forwarding::kept_back(&name) {
        None => Ok(()),
        Some(why) => {
            Err(Fault::field("method", format_args!("{name} is not passed on: {why}")).outcome(Outcome::NotSent))
        }
    }
}

// --- answers --------------------------------------------------------------------------------------------------------

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
        Answer::Deleted | Answer::TokenRevoked => response(204, "", Vec::new()),
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
        Answer::Refused(fault) => refuse(&fault),
    }
}

/// Every fault of the daemon's own, in the one shape.
pub fn refuse(fault: &Fault) -> Response {
    let mut headers = vec![(ERROR_SOURCE, "host".to_string())];
    headers.extend(fault.retry_after_s.map(|seconds| ("Retry-After", seconds.to_string())));
    headers.extend(fault.allow.map(|methods| ("Allow", methods.to_string())));
    if fault.code == Code::Unauthorized {
        headers.push(("WWW-Authenticate", "Bearer".to_string()));
    }
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
    };
    let data = NewsObject {
        at: rfc3339(news.at_unix_ms),
        workspace_id: news.server.to_string(),
        name: &news.name,
        instance: news.instance.map(|instance| instance.0),
        from: news.from.map(Status::wire),
        status: news.to.wire(),
        why: &news.why,
    };
    sse::event(out, Some(kind), None, &to_json(&data));
}

#[derive(Serialize)]
struct NewsObject<'a> {
    at: String,
    workspace_id: String,
    name: &'a str,
    instance: Option<u64>,
    from: Option<&'static str>,
    status: &'static str,
    why: &'a str,
}

fn response(status: u16, content_type: &'static str, body: Vec<u8>) -> Response {
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
    use crate::api::status::tests::{definition, view};
    use crate::ids::InstanceId;
    use crate::model::records::Token;
    use crate::model::status::Usage;
    use crate::wire::http_in::{Parser, Step};
    use crate::wire::mutation::Mutator;
    use serde_json::Value;

    const NAMED: &str = "/api/v1/mcp/servers/a";

    fn tokens() -> Tokens {
        let mut tokens = Tokens::default();
        let mut add = |name: &str, scopes: &[&str], servers: &[&str]| {
            let owned = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
            let hash = auth::hash(format!("{name}-secret").as_bytes());
            let (scopes, servers) = (owned(scopes), owned(servers));
            let token = Token { name: name.into(), hash, scopes, servers, ..Token::default() };
            assert!(tokens.insert(token));
        };
        add("admin", &["admin:write", "mcp:call"], &[]);
        add("operator", &["admin:write"], &["a"]);
        add("reader", &["admin:read"], &[]);
        add("agent", &["mcp:call"], &["a"]);
        tokens
    }

    /// Sends a request as `who` (a token's name; nothing: none) and shows what comes of it.
    fn sent(peer: Peer, who: &str, line: &str, headers: &str, body: &str) -> Result<String, Fault> {
        let authorization = match who {
            "" => String::new(),
            who => format!("Authorization: Bearer {who}-secret\r\n"),
        };
        let length = body.len();
        let mut parser = Parser::new();
        parser.feed(
            format!(
                "{line} HTTP/1.1\r\nHost: localhost\r\n{authorization}{headers}Content-Length: {length}\r\n\r\n{body}"
            )
            .as_bytes(),
        );
        assert_eq!(parser.step(), Step::Request);
        let answer = match interpret(&parser.request(), &tokens(), &peer, &mut Shown::default())? {
            Interpreted::Ask { who, ask } => format!("{} {ask:?}", who.name),
            Interpreted::Direct(response) => format!("{response:?}"),
            Interpreted::Prove(challenge) => challenge.target(),
        };
        Ok(answer)
    }

    fn asked(line: &str, body: &str) -> Result<String, Fault> {
        sent(Peer::Trusted, "", line, "Content-Type: application/json\r\n", body)
    }

    const PROVE: &str = "GET /api/v1/prove?token=000102030405060708090a0b0c0d0e0f\
        &nonce=000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

    #[test]
    fn a_proof_is_asked_for_in_exactly_one_way() {
        assert!(sent(Peer::Token, "", PROVE, "", "").is_ok(), "whoever asks has shown nothing yet");
        for (line, code) in [
            ("GET /api/v1/prove".to_string(), Code::InvalidRequest),
            (PROVE.replace("&nonce=0001", "&nonce=01"), Code::InvalidRequest),
            (PROVE.replace("token=00", "token=0g"), Code::InvalidRequest),
            (format!("{PROVE}&token=00"), Code::InvalidRequest),
            (format!("{PROVE}&name=admin"), Code::UnknownField),
        ] {
            assert_eq!(sent(Peer::Token, "", &line, "", "").unwrap_err().code, code, "{line}");
        }
    }

    #[test]
    fn every_route_becomes_its_question() {
        for (line, body, expected) in [
            ("GET /readyz", "", "nobody Ready"),
            (PROVE, "", PROVE.strip_prefix("GET ").expect("a GET")),
            ("GET /api/v1/mcp/servers", "", "anonymous List { status: None, name: None }"),
            (
                "GET /api/v1/mcp/hosted/?status=ready&name=x",
                "",
                r#"anonymous List { status: Some("ready"), name: Some("x") }"#,
            ),
            ("HEAD /api/v1/mcp/servers/a", "", r#"anonymous Get { server: Name("a") }"#),
            ("POST /api/v1/mcp/servers/a/restart", "", r#"anonymous Restart { server: Name("a") }"#),
            ("POST /api/v1/mcp/servers/a/stop", "{}", r#"anonymous Stop { server: Name("a") }"#),
            ("POST /api/v1/mcp/servers/a/start", "", r#"anonymous Start { server: Name("a") }"#),
            ("DELETE /api/v1/mcp/servers/a", "", r#"anonymous Delete { server: Name("a"), volumes: false }"#),
            (
                "DELETE /api/v1/mcp/servers/a?volumes=true",
                "",
                r#"anonymous Delete { server: Name("a"), volumes: true }"#,
            ),
            (
                "GET /api/v1/mcp/servers/a/logs",
                "",
                r#"anonymous Logs { server: Name("a"), tail: 100, since_unix_ms: None, follow: false, format: Text }"#,
            ),
            (
                "GET /api/v1/mcp/servers/a/logs?follow=true&tail=0",
                "",
                r#"anonymous Logs { server: Name("a"), tail: 0, since_unix_ms: None, follow: true, format: Text }"#,
            ),
            (
                "HEAD /api/v1/mcp/servers/a/logs?follow=true",
                "",
                r#"anonymous Logs { server: Name("a"), tail: 100, since_unix_ms: None, follow: false, format: Text }"#,
            ),
            (
                "GET /api/v1/mcp/servers/a/logs?since=2026-02-17T11:00:00%2B01:00",
                "",
                r#"anonymous Logs { server: Name("a"), tail: 100, since_unix_ms: Some(1771322400000), follow: false, format: Text }"#,
            ),
            ("GET /api/v1/mcp/events", "", "anonymous News"),
            ("GET /api/v1/mcp/servers/a/tools", "", r#"anonymous Tools { server: Name("a") }"#),
            ("GET /api/v1/tokens", "", "anonymous TokenList"),
            ("DELETE /api/v1/tokens/ci", "", r#"anonymous TokenRevoke { name: "ci" }"#),
            (
                "POST /api/v1/tokens",
                r#"{"name":"ci","scopes":["mcp:call"],"servers":["a"]}"#,
                r#"anonymous TokenCreate { wanted: TokenWanted { name: "ci", scopes: ["mcp:call"], servers: ["a"], lifetime_ms: None, rate_limit: None } }"#,
            ),
            (
                "POST /api/v1/tokens",
                r#"{"name":"ci","scopes":["mcp:call"],"expires":"90d","rate_limit":{"per_second":5}}"#,
                r#"anonymous TokenCreate { wanted: TokenWanted { name: "ci", scopes: ["mcp:call"], servers: [], lifetime_ms: Some(7776000000), rate_limit: Some(RateLimit { per_second: 5, burst: 5 }) } }"#,
            ),
            ("POST /api/v1/tokens/ci/rotate", "", r#"anonymous TokenRotate { name: "ci", grace_ms: 0 }"#),
            (
                "POST /api/v1/tokens/ci/rotate",
                r#"{"grace":"1h"}"#,
                r#"anonymous TokenRotate { name: "ci", grace_ms: 3600000 }"#,
            ),
            (
                "PATCH /api/v1/mcp/servers/a",
                r#"{"enabled":false}"#,
                r#"anonymous Patch { server: Name("a"), change: Change { fields: {"enabled": Bool(false)} } }"#,
            ),
        ] {
            assert_eq!(asked(line, body).as_deref(), Ok(expected), "{line}");
        }
        let registered = asked("POST /api/v1/mcp/servers?wait=false", r#"{"name":"a","image":"i"}"#).unwrap();
        assert!(registered.starts_with("anonymous Register { definition: Definition { name: \"a\""), "{registered}");
        assert!(registered.ends_with("wait: false }"));
    }

    #[test]
    fn a_call_borrows_its_bytes_from_the_request() {
        let body = r#" {"timeout_ms":5 ,"params": { "a":1.0,
            "b":[ ]}, "method":"tools\/call"} "#;
        let mut parser = Parser::new();
        parser.feed(
            format!(
                "POST {NAMED}/call HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            )
            .as_bytes(),
        );
        assert_eq!(parser.step(), Step::Request);
        let request = parser.request();
        let asked = interpret(&request, &Tokens::default(), &Peer::Trusted, &mut Shown::default()).unwrap();
        let Interpreted::Ask { ask: Ask::Call { method, params: Some(params), timeout_ms, .. }, .. } = asked else {
            panic!("{asked:?}")
        };
        assert_eq!((method.get(), timeout_ms), (r#""tools\/call""#, Some(5)));
        assert_eq!(params.get(), &body[body.find("{ \"a\"").unwrap()..body.find(", \"method\"").unwrap()]);
        assert!(request.body.as_ptr_range().contains(&params.get().as_ptr()), "not a copy");
    }

    #[test]
    fn a_call_that_is_none_is_refused_by_its_field() {
        for (body, code, field) in [
            ("", Code::InvalidJson, None),
            ("{", Code::InvalidJson, None),
            ("[]", Code::InvalidRequest, None),
            (r#"["tools/list"]"#, Code::InvalidRequest, None),
            ("{}", Code::InvalidRequest, Some("method")),
            (r#"{"method":null}"#, Code::InvalidRequest, Some("method")),
            (r#"{"method":5}"#, Code::InvalidRequest, Some("method")),
            (r#"{"method":""}"#, Code::InvalidRequest, Some("method")),
            (r#"{"method":"x","param":{}}"#, Code::UnknownField, Some("param")),
            (r#"{"method":"x","method":"y"}"#, Code::InvalidJson, Some("method")),
            (r#"{"method":"x","timeout_ms":0}"#, Code::InvalidRequest, Some("timeout_ms")),
            (r#"{"method":"x","timeout_ms":-1}"#, Code::InvalidRequest, Some("timeout_ms")),
            (r#"{"method":"x","timeout_ms":1.5}"#, Code::InvalidRequest, Some("timeout_ms")),
            (r#"{"method":"x","timeout_ms":"5"}"#, Code::InvalidRequest, Some("timeout_ms")),
            (r#"{"method":"x","timeout_ms":86400001}"#, Code::InvalidRequest, Some("timeout_ms")),
        ] {
            let fault = asked(&format!("POST {NAMED}/call"), body).unwrap_err();
            assert_eq!((fault.code, fault.data.get("field").and_then(Value::as_str)), (code, field), "{body}");
        }
        let plain = asked(&format!("POST {NAMED}/call"), r#"{"method":"x","params":null,"timeout_ms":null}"#).unwrap();
        assert!(plain.contains("params: None, timeout_ms: None"), "{plain}");
    }

    #[test]
    fn queries_are_strict() {
        for (line, field) in [
            ("GET /healthz?x=1", "x"),
            ("GET /api/v1/mcp/servers?statu=ready", "statu"),
            ("GET /api/v1/mcp/servers?status=up", "status"),
            ("GET /api/v1/mcp/servers?name=a&name=b", "name"),
            ("GET /api/v1/mcp/servers/a?wait=true", "wait"),
            ("DELETE /api/v1/mcp/servers/a?volumes", "volumes"),
            ("DELETE /api/v1/mcp/servers/a?volumes=1", "volumes"),
            ("GET /api/v1/mcp/servers/a/logs?tail=1001", "tail"),
            ("GET /api/v1/mcp/servers/a/logs?tail=-1", "tail"),
            ("GET /api/v1/mcp/servers/a/logs?tail=", "tail"),
            ("GET /api/v1/mcp/servers/a/logs?tail=+5", "tail"),
            ("GET /api/v1/mcp/servers/a/logs?tail=99999999999999999999", "tail"),
            ("GET /api/v1/mcp/servers/a/logs?follow=True", "follow"),
        ] {
            let fault = asked(line, "").unwrap_err();
            assert_eq!((fault.code.status(), &fault.data["field"]), (400, &json!(field)), "{line}");
        }
    }

    #[test]
    fn bodies_are_json_or_of_no_said_type() {
        let sent =
            |headers: &str| sent(Peer::Token, "agent", &format!("POST {NAMED}/call"), headers, r#"{"method":"x"}"#);
        for good in ["", "application/json", "Application/JSON ; charset=utf-8"] {
            let header = if good.is_empty() { String::new() } else { format!("Content-Type: {good}\r\n") };
            assert!(sent(&header).is_ok(), "{good}");
        }
        for bad in ["text/plain", "application/x-www-form-urlencoded", "application/jsonx", ";"] {
            assert_eq!(
                sent(&format!("Content-Type: {bad}\r\n")).unwrap_err().code,
                Code::UnsupportedMediaType,
                "{bad}"
            );
        }
    }

    #[test]
    fn the_form_of_logs_follows_accept() {
        for (accept, format) in [
            (None, LogFormat::Text),
            (Some(""), LogFormat::Text),
            (Some("*/*"), LogFormat::Text),
            (Some("text/html, application/xhtml+xml, */*;q=0.8"), LogFormat::Text),
            (Some("application/json"), LogFormat::Json),
            (Some("Application/JSON;charset=utf-8"), LogFormat::Json),
            (Some("text/plain;q=0.5, application/json"), LogFormat::Json),
            (Some("application/json;q=0.1, text/plain"), LogFormat::Text),
            (Some("application/json, */*"), LogFormat::Json),
            (Some("application/json;q=0"), LogFormat::Text),
            (Some("image/png"), LogFormat::Text),
            (Some(";;,,q=,\u{fffd}"), LogFormat::Text),
        ] {
            assert_eq!(log_format(accept.map(str::as_bytes)), format, "{accept:?}");
        }
    }

    #[test]
    fn tokens_open_what_their_scopes_say() {
        let call = (format!("POST {NAMED}/call"), r#"{"method":"x"}"#);
        let get = (format!("GET {NAMED}"), "");
        let tools = (format!("GET {NAMED}/tools"), "");
        let stop = (format!("POST {NAMED}/stop"), "");
        let register = ("POST /api/v1/mcp/servers".to_string(), r#"{"name":"b","image":"i"}"#);
        let list_tokens = ("GET /api/v1/tokens".to_string(), "");
        let cases = [&call, &get, &tools, &stop, &register, &list_tokens];
        for (who, expected) in [
            ("", [401, 401, 401, 401, 401, 401]),
            ("stranger", [401, 401, 401, 401, 401, 401]),
            ("admin", [200, 200, 200, 200, 200, 200]),
            ("operator", [403, 200, 200, 200, 403, 403]),
            ("reader", [403, 200, 200, 403, 403, 200]),
            ("agent", [200, 403, 200, 403, 403, 403]),
        ] {
            let statuses = cases.map(|(line, body)| match sent(Peer::Token, who, line, "", body) {
                Ok(_) => 200,
                Err(fault) => fault.code.status(),
            });
            assert_eq!(statuses, expected, "{who}");
        }
        assert!(sent(Peer::Token, "", "GET /healthz", "", "").is_ok(), "liveness needs no token");
        assert!(sent(Peer::Token, "", "GET /readyz", "", "").is_ok());
    }

    #[test]
    fn a_trusted_peer_that_shows_a_token_is_who_the_token_says() {
        let get = format!("GET {NAMED}");
        assert!(sent(Peer::Trusted, "reader", &get, "", "").unwrap().starts_with("reader "));
        assert_eq!(sent(Peer::Trusted, "agent", &get, "", "").unwrap_err().code, Code::Forbidden);
        assert_eq!(sent(Peer::Trusted, "stranger", &get, "", "").unwrap_err().code, Code::Unauthorized);
        let foreign = "Origin: https://evil.example\r\n";
        assert_eq!(sent(Peer::Trusted, "", &get, foreign, "").unwrap_err().code, Code::Forbidden);
        assert!(sent(Peer::Trusted, "reader", &get, foreign, "").is_ok());
    }

    #[test]
    fn a_token_is_made_with_known_scopes_that_its_maker_has() {
        for (body, field) in [
            (r#"{"scopes":["mcp:call"]}"#, "name"),
            (r#"{"name":"a b","scopes":["mcp:call"]}"#, "name"),
            (r#"{"name":"x"}"#, "scopes"),
            (r#"{"name":"x","scopes":[]}"#, "scopes"),
            (r#"{"name":"x","scopes":"mcp:call"}"#, "scopes"),
            (r#"{"name":"x","scopes":["admin"]}"#, "scopes[0]"),
            (r#"{"name":"x","scopes":["mcp:call","mcp:call"]}"#, "scopes"),
            (r#"{"name":"x","scopes":["mcp:call"],"servers":[]}"#, "servers"),
            (r#"{"name":"x","scopes":["mcp:call"],"servers":["A"]}"#, "servers[0]"),
            (r#"{"name":"x","scopes":["mcp:call"],"hash":""}"#, "hash"),
        ] {
            assert_eq!(asked("POST /api/v1/tokens", body).unwrap_err().data["field"], json!(field), "{body}");
        }
        let all = r#"{"name":"x","scopes":["admin:read","admin:write","mcp:call"]}"#;
        assert!(sent(Peer::Token, "admin", "POST /api/v1/tokens", "", all).is_ok());
        assert_eq!(sent(Peer::Token, "operator", "POST /api/v1/tokens", "", all).unwrap_err().code, Code::Forbidden);
    }

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
        for gone in [Answer::Deleted, Answer::TokenRevoked] {
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
        let shown = json!({"name": "ci", "scopes": ["mcp:call"], "servers": [], "created_at": "1970-01-01T00:00:00.000Z",
            "expires_at": "1970-01-01T00:00:00.001Z", "last_used_at": null, "previous_until": "1970-01-01T00:00:00.002Z"});
        assert_eq!(body(&render(Answer::Tokens(vec![token.clone()]))), json!([shown]));
        let created = render(Answer::TokenCreated { token, secret: "s".into(), rotated: false });
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

    #[test]
    fn no_body_of_a_call_makes_it_panic() {
        let seeds: [&[u8]; 2] = [
            br#"{"method":"tools/call","params":{"name":"x","arguments":{"a":[1,2.5,null]}},"timeout_ms":100}"#,
            br#"{"params":[],"method":"m"}"#,
        ];
        let mut mutator = Mutator::new(4);
        for _ in 0..20_000 {
            let body = mutator.mutate(&seeds);
            if let Ok(Ask::Call { method, params, .. }) = call(ServerRef::Name("a".into()), &body) {
                let line = crate::wire::jsonrpc::request(1, method, params);
                assert_eq!(memchr::memchr(b'\n', &line), Some(line.len() - 1), "one line");
                assert!(crate::wire::jsonrpc::parse(&line).is_some(), "and valid");
            }
        }
    }
}
