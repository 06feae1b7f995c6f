//! REST: from a whole HTTP request to what is asked (`asks`, by the table of routes), and from an answer to a whole HTTP
//! response (`render`). Here is who may ask at all. Never waits and never decides.

pub mod asks;
pub mod project_asks;
mod query;
pub(in crate::api) mod render;

pub use asks::Incoming;
pub use render::{prove, refuse, render, render_log_event, resource_metadata, write_news};

use crate::api::audit::AuditQuery;
use crate::api::auth::proof::Challenge;
use crate::api::auth::{self, Peer, Shown, Tokens};
use crate::api::import::body::Document;
use crate::api::mcp::{self, Door};
use crate::api::request::{Ask, ProjectAsk};
use crate::api::rest::query::Query;
use crate::api::route::{self, Found, Member, Reader, Row};
use crate::model::external::ProjectId;
use crate::model::fault::{Fault, Outcome};
use crate::model::principal::{Need, Principal};
use crate::wire::http_in::{Common, Request};
use crate::wire::http_out::Response;

#[derive(Debug)]
pub enum Interpreted<'a> {
    /// For the core.
    Ask { who: Principal, ask: Ask<'a> },
    /// Answered already.
    Direct(Response),
    /// For `prove`, with the address that the connection came to.
    Prove(Challenge),
    /// For `resource_metadata`: the path below the well-known one.
    ResourceMetadata { path: String },
    /// For whoever has the time to read it; then it is `Ask::Import`.
    Import { who: Principal, import: ImportAsked<'a> },
    /// For whoever runs the daemon: to go on as this program; none: as the one that has its name by now.
    Upgrade { who: Principal, program: Option<String> },
    /// For whoever has the audit log.
    Audit { who: Principal, query: AuditQuery },
}

/// An import whose document has not been read yet.
#[derive(Debug)]
pub struct ImportAsked<'a> {
    pub bytes: &'a [u8],
    pub is_archive: bool,
    pub dry_run: bool,
    pub project: Option<ProjectId>,
}

impl ImportAsked<'_> {
    /// To be read elsewhere, while the request stays where it is.
    pub fn document(&self) -> Document {
        Document { bytes: self.bytes.to_vec(), is_archive: self.is_archive, project: self.project.clone() }
    }
}

/// What a request asks, if whoever sends it may ask that.
pub fn interpret<'a>(
    request: &Request<'a>,
    tokens: &Tokens,
    peer: &Peer,
    shown: &mut Shown,
) -> Result<Interpreted<'a>, Fault> {
    let Found { row, member } = match route::find(request.method, &request.path) {
        Ok(found) => found,
        Err(fault) => match stranger(request, tokens, peer, shown) {
            Some(response) => return Ok(Interpreted::Direct(response)),
            None => return Err(fault),
        },
    };
    let who = identify(request, tokens, peer, shown, row.needs).and_then(|who| within(who, &member));
    if let Reader::Mcp(door) = row.reader {
        return Ok(mcp_asked(request, door, member, who));
    }
    let asked = who.and_then(|who| {
        let incoming = Incoming { request, who, query: Query::of(request, row.query)? };
        match (row.reader, member) {
            (Reader::OfServer(read), Member::Server(server)) => read(server, incoming),
            (Reader::OfToken(read), Member::Token(name)) => read(name, incoming),
            (Reader::Plain(read), Member::Nothing) => read(incoming),
            (Reader::OfProject(read), Member::Project(project)) => read(project, incoming),
            (Reader::OfExternal(read), Member::External(project, server)) => read(project, server, incoming),
            (Reader::OfNamed(read), Member::Named(project, name)) => read(project, name, incoming),
            (reader, member) => unreachable!("a test reads the whole table: {reader:?} {member:?}"),
        }
    });
    asked.map_err(|fault| of_row(row, fault))
}

fn mcp_asked<'a>(request: &Request<'a>, door: Door, member: Member, who: Result<Principal, Fault>) -> Interpreted<'a> {
    let ask = match who {
        Ok(who) => mcp::interpret(request, door).map(|ask| (who, ask)),
        Err(fault) => Err(mcp::refuse(None, &fault)),
    };
    let (who, ask) = match ask {
        Ok(asked) => asked,
        Err(response) => return Interpreted::Direct(response),
    };
    let ask = match member {
        Member::Server(server) => Ask::Mcp { server: Some(server), ask },
        Member::Project(project) => Ask::Project { project, ask: ProjectAsk::Mcp(ask) },
        Member::Nothing | Member::Token(_) | Member::External(..) | Member::Named(..) => Ask::Mcp { server: None, ask },
    };
    Interpreted::Ask { who, ask }
}

/// A project is closed to whoever is limited to others; that says nothing about what is in it.
fn within(who: Principal, member: &Member) -> Result<Principal, Fault> {
    match member.project() {
        Some(project) if !who.may_use(project) => {
            Err(who.forbid(format_args!("project {project} is not among those it is limited to")))
        }
        Some(_) | None => Ok(who),
    }
}

fn of_row(row: &Row, fault: Fault) -> Fault {
    if row.is_call() { fault.outcome(Outcome::NotSent) } else { fault }
}

/// The refusal of a request whose body is still coming, if no body could change it: nobody is listened to for megabytes
/// only to be told that the token is wrong.
pub fn refuse_early(head: &Request<'_>, tokens: &Tokens, peer: &Peer, shown: &mut Shown) -> Option<Response> {
    let Found { row, member } = match route::find(head.method, &head.path) {
        Ok(found) => found,
        Err(fault) => return Some(stranger(head, tokens, peer, shown).unwrap_or_else(|| refuse(&fault))),
    };
    let fault = identify(head, tokens, peer, shown, row.needs).and_then(|who| within(who, &member)).err()?;
    if matches!(row.reader, Reader::Mcp(_)) {
        return Some(mcp::refuse(None, &fault));
    }
    Some(refuse(&of_row(row, fault)))
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
    let who = recognise(request, tokens, peer, shown, need);
    match who.and_then(|who| who.permit(need).map(|()| who)) {
        Ok(who) => Ok(who),
        Err(fault) => Err(auth::challenged(fault, request, tokens, shown, need)),
    }
}

fn recognise(
    request: &Request<'_>,
    tokens: &Tokens,
    peer: &Peer,
    shown: &mut Shown,
    need: Need,
) -> Result<Principal, Fault> {
    match (peer, request.common(Common::Authorization)) {
        (Peer::Scraper, None) if need == Need::Scrape => {
            auth::refuse_foreign_pages(request, *peer)?;
            Ok(Principal::scraper())
        }
        (Peer::Token, None) if shown.certified().is_some() => Ok(shown.certified().cloned().expect("just seen")),
        (Peer::Token | Peer::Scraper, header) | (Peer::Open | Peer::OpenTls | Peer::Trusted, header @ Some(_)) => {
            tokens.recognise(header, shown)
        }
        (Peer::Open | Peer::OpenTls | Peer::Trusted, None) => {
            auth::refuse_foreign_pages(request, *peer)?;
            Ok(Principal::anonymous())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fault::Code;
    use crate::model::records::Token;
    use crate::wire::http_in::{Parser, Step};
    use serde_json::{Value, json};

    pub const NAMED: &str = "/api/v1/mcp/servers/a";

    fn tokens() -> Tokens {
        let mut tokens = Tokens::default();
        let mut add = |name: &str, scopes: &[&str], servers: &[&str]| {
            let owned = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
            let hash = auth::hash(format!("{name}-secret").as_bytes());
            let token =
                Token { name: name.into(), hash, scopes: owned(scopes), servers: owned(servers), ..Token::default() };
            assert!(tokens.insert(token));
        };
        add("admin", &["admin:write", "mcp:call"], &[]);
        add("operator", &["admin:write"], &["a"]);
        add("reader", &["admin:read"], &[]);
        add("agent", &["mcp:call"], &["a"]);
        tokens
    }

    /// Sends a request as `who` (a token's name; nothing: none) and shows what comes of it.
    pub fn sent(peer: Peer, who: &str, line: &str, headers: &str, body: &str) -> Result<String, Fault> {
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
            Interpreted::ResourceMetadata { path } => format!("metadata of {path:?}"),
            Interpreted::Import { who, import } => format!("{} {import:?}", who.name),
            Interpreted::Audit { who, query } => format!("{} {query:?}", who.name),
            Interpreted::Upgrade { who, program } => format!("{} upgrade to {program:?}", who.name),
        };
        Ok(answer)
    }

    pub fn asked(line: &str, body: &str) -> Result<String, Fault> {
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
            ("GET /api/v1/mcp/hosted/a/definition", "", r#"anonymous Definition { server: Name("a") }"#),
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
            ("GET /metrics", "", "anonymous Metrics"),
            ("GET /api/v1/mcp/servers/a/samples", "", r#"anonymous Samples { server: Name("a") }"#),
            ("GET /api/v1/mcp/servers/a/tools", "", r#"anonymous Tools { server: Name("a") }"#),
            ("GET /api/v1/tokens", "", "anonymous TokenList"),
            (
                "GET /api/v1/audit?type=auth&limit=5&since=1970-01-01T00:00:01Z",
                "",
                r#"anonymous AuditQuery { since_unix_ms: Some(1000), limit: 5, kind: Some("auth") }"#,
            ),
            ("POST /api/v1/key/rotate", "", "anonymous KeyRotate"),
            ("POST /api/v1/upgrade", "", "anonymous upgrade to None"),
            ("POST /api/v1/upgrade", r#"{"binary":"/new"}"#, r#"anonymous upgrade to Some("/new")"#),
            ("DELETE /api/v1/tokens/ci", "", r#"anonymous TokenRevoke { name: "ci" }"#),
            (
                "POST /api/v1/tokens",
                r#"{"name":"ci","scopes":["mcp:call"],"servers":["a"]}"#,
                r#"anonymous TokenCreate { wanted: TokenWanted { name: "ci", scopes: ["mcp:call"], servers: ["a"], projects: [], lifetime_ms: None, rate_limit: None } }"#,
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
    fn the_listener_for_metrics_tells_those_without_a_token_and_nothing_else() {
        assert!(sent(Peer::Scraper, "", "GET /metrics", "", "").unwrap().starts_with("metrics "));
        assert_eq!(sent(Peer::Scraper, "", &format!("GET {NAMED}"), "", "").unwrap_err().code, Code::Unauthorized);
        assert!(sent(Peer::Scraper, "reader", &format!("GET {NAMED}"), "", "").is_ok());
        assert_eq!(sent(Peer::Scraper, "agent", "GET /metrics", "", "").unwrap_err().code, Code::Forbidden);
        let foreign = "Origin: https://evil.example\r\n";
        assert_eq!(sent(Peer::Scraper, "", "GET /metrics", foreign, "").unwrap_err().code, Code::Forbidden);
        assert_eq!(sent(Peer::Token, "", "GET /metrics", "", "").unwrap_err().code, Code::Unauthorized);
        assert!(sent(Peer::Token, "reader", "GET /metrics", "", "").is_ok());
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
}
