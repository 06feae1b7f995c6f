//! From a request to what it asks, one function for each row of the table of routes that is not MCP. Owns bodies, media
//! types and the form of logs. Whoever sends the request is known and may ask this; a call's `params` stay a slice of it.

use crate::api::audit::AuditQuery;
use crate::api::auth::proof::Challenge;
use crate::api::auth::resource::WELL_KNOWN;
use crate::api::definition::described;
use crate::api::definition::fields;
use crate::api::definition::strict_json::{self, Fields};
use crate::api::mcp::{EVENTS, forwarding};
use crate::api::openapi;
use crate::api::request::{Ask, Change, LogFormat, ServerRef};
use crate::api::rest::query::Query;
use crate::api::rest::render::{JSON, response};
use crate::api::rest::{ImportAsked, Interpreted};
use crate::api::tokens;
use crate::limits::{UPGRADE_PATH_MAX, WAIT_MS};
use crate::model::external::ProjectId;
use crate::model::fault::{Code, Fault, Outcome};
use crate::model::principal::Principal;
use crate::wire::http_in::{Common, Method, Request, is_media};
use crate::wire::http_out::Response;
use crate::wire::json::Json;

/// A request whose route is found, and whoever sent it.
pub struct Incoming<'r, 'a> {
    pub request: &'r Request<'a>,
    pub who: Principal,
    pub query: Query<'a>,
}

type Asked<'a> = Result<Interpreted<'a>, Fault>;

impl<'a> Incoming<'_, 'a> {
    pub(super) fn asks(self, ask: Ask<'a>) -> Asked<'a> {
        Ok(Interpreted::Ask { who: self.who, ask })
    }

    pub(super) fn body(&self) -> Result<&'a [u8], Fault> {
        match self.request.common(Common::ContentType) {
            Some(media) if !is_media(media, JSON) => {
                Err(Fault::new(Code::UnsupportedMediaType, format!("the body must be {JSON}")))
            }
            Some(_) | None => Ok(self.request.body),
        }
    }
}

// --- the daemon -----------------------------------------------------------------------------------------------------

pub fn healthz<'a>(_: Incoming<'_, 'a>) -> Asked<'a> {
    Ok(Interpreted::Direct(response(200, JSON, br#"{"status":"ok"}"#.to_vec())))
}

pub fn openapi<'a>(_: Incoming<'_, 'a>) -> Asked<'a> {
    let response = response(200, JSON, Vec::new());
    Ok(Interpreted::Direct(Response { shared: vec![openapi::bytes()], ..response }))
}

pub fn readyz<'a>(incoming: Incoming<'_, 'a>) -> Asked<'a> {
    incoming.asks(Ask::Ready)
}

pub fn prove<'a>(mut incoming: Incoming<'_, 'a>) -> Asked<'a> {
    let query = &mut incoming.query;
    Ok(Interpreted::Prove(Challenge { token: query.hex("token")?, nonce: query.hex("nonce")? }))
}

/// Only the path matters: what there is behind it is nobody's to learn here.
pub fn metadata<'a>(incoming: Incoming<'_, 'a>) -> Asked<'a> {
    let path = incoming.request.path.strip_prefix(WELL_KNOWN).unwrap_or_default().to_string();
    Ok(Interpreted::ResourceMetadata { path })
}

pub fn server_metadata<'a>(_: ServerRef, incoming: Incoming<'_, 'a>) -> Asked<'a> {
    metadata(incoming)
}

pub fn project_metadata<'a>(_: ProjectId, incoming: Incoming<'_, 'a>) -> Asked<'a> {
    metadata(incoming)
}

pub fn audit<'a>(mut incoming: Incoming<'_, 'a>) -> Asked<'a> {
    let query = &mut incoming.query;
    let query =
        AuditQuery { since_unix_ms: query.time("since")?, limit: query.count("limit")?, kind: query.text("type") };
    Ok(Interpreted::Audit { who: incoming.who, query })
}

// --- servers --------------------------------------------------------------------------------------------------------

pub fn list<'a>(mut incoming: Incoming<'_, 'a>) -> Asked<'a> {
    let (status, name) = (incoming.query.status("status")?, incoming.query.text("name"));
    incoming.asks(Ask::List { status, name })
}

pub fn register<'a>(mut incoming: Incoming<'_, 'a>) -> Asked<'a> {
    let definition = Box::new(fields::parse(incoming.body()?)?);
    incoming.who.may_place_in(definition.project.as_ref())?;
    if !incoming.who.may_see(&definition) {
        return Err(incoming.who.forbid("a server of this name is not among those it is limited to"));
    }
    let wait = incoming.query.flag("wait")?;
    incoming.asks(Ask::Register { definition, wait })
}

/// The document is judged where it keeps nobody waiting; here is only what the request says of it.
pub fn import<'a>(mut incoming: Incoming<'_, 'a>) -> Asked<'a> {
    let dry_run = incoming.query.flag("dry_run")?;
    let project = match incoming.query.text("project") {
        Some(id) => Some(ProjectId::new(&id).map_err(|why| Fault::field("project", why))?),
        None => None,
    };
    incoming.who.may_place_in(project.as_ref())?;
    let is_archive = match incoming.request.common(Common::ContentType) {
        None => false,
        Some(media) if is_media(media, JSON) => false,
        Some(media) if is_media(media, ZIP) => true,
        Some(_) => {
            let message = format!("the body must be {JSON}, or {ZIP} for an .mcpb bundle");
            return Err(Fault::new(Code::UnsupportedMediaType, message));
        }
    };
    let import = ImportAsked { bytes: incoming.request.body, is_archive, dry_run, project };
    Ok(Interpreted::Import { who: incoming.who, import })
}

/// As bundles are sent.
pub const ZIP: &str = "application/zip";

pub fn get<'a>(server: ServerRef, incoming: Incoming<'_, 'a>) -> Asked<'a> {
    incoming.asks(Ask::Get { server })
}

pub fn definition<'a>(server: ServerRef, incoming: Incoming<'_, 'a>) -> Asked<'a> {
    incoming.asks(Ask::Definition { server })
}

pub fn patch<'a>(server: ServerRef, incoming: Incoming<'_, 'a>) -> Asked<'a> {
    let change = Box::new(Change { fields: strict_json::object(incoming.body()?)? });
    incoming.asks(Ask::Patch { server, change })
}

pub fn delete<'a>(server: ServerRef, mut incoming: Incoming<'_, 'a>) -> Asked<'a> {
    let volumes = incoming.query.flag("volumes")?;
    incoming.asks(Ask::Delete { server, volumes })
}

pub fn restart<'a>(server: ServerRef, incoming: Incoming<'_, 'a>) -> Asked<'a> {
    incoming.asks(Ask::Restart { server })
}

pub fn stop<'a>(server: ServerRef, incoming: Incoming<'_, 'a>) -> Asked<'a> {
    incoming.asks(Ask::Stop { server })
}

pub fn start<'a>(server: ServerRef, incoming: Incoming<'_, 'a>) -> Asked<'a> {
    incoming.asks(Ask::Start { server })
}

pub fn logs<'a>(server: ServerRef, mut incoming: Incoming<'_, 'a>) -> Asked<'a> {
    let query = &mut incoming.query;
    let (tail, since_unix_ms) = (query.count("tail")?, query.time("since")?);
    // A HEAD has no body for a stream to come in.
    let follow = query.flag("follow")? && incoming.request.method != Method::Head;
    let format = log_format(incoming.request.common(Common::Accept));
    incoming.asks(Ask::Logs { server, tail, since_unix_ms, follow, format })
}

pub fn tools<'a>(server: ServerRef, incoming: Incoming<'_, 'a>) -> Asked<'a> {
    incoming.asks(Ask::Tools { server })
}

pub fn events<'a>(incoming: Incoming<'_, 'a>) -> Asked<'a> {
    match incoming.request.method {
        Method::Head => Ok(Interpreted::Direct(response(200, EVENTS, Vec::new()))),
        _other => incoming.asks(Ask::News),
    }
}

pub fn samples<'a>(server: ServerRef, incoming: Incoming<'_, 'a>) -> Asked<'a> {
    incoming.asks(Ask::Samples { server })
}

pub fn metrics<'a>(incoming: Incoming<'_, 'a>) -> Asked<'a> {
    incoming.asks(Ask::Metrics)
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

// --- calls ----------------------------------------------------------------------------------------------------------

/// The members of a call's body.
const CALL: [&str; 3] = described::names(&described::CALL);

pub fn call<'a>(server: ServerRef, incoming: Incoming<'_, 'a>) -> Asked<'a> {
    let ask = call_of(server, incoming.body()?)?;
    incoming.asks(ask)
}

/// The hot path: three slices of the body and nothing else.
fn call_of(server: ServerRef, body: &[u8]) -> Result<Ask<'_>, Fault> {
    let [method, params, timeout_ms] = strict_json::members(body, &CALL)?;
    let given = |raw: Option<_>| raw.filter(|raw: &Json<'_>| raw.get() != "null");
    let method = given(method).ok_or_else(|| Fault::field("method", "is required"))?;
    if method.get() != r#""tools/call""# {
        check_method(method)?;
    }
    let timeout_ms = match given(timeout_ms) {
        None => None,
        Some(raw) => Some(milliseconds(raw.get()).filter(|ms| WAIT_MS.contains(ms)).ok_or_else(|| {
            let (least, most) = WAIT_MS.into_inner();
            Fault::field("timeout_ms", format_args!("expected an integer from {least} to {most}"))
        })?),
    };
    // JSON-RPC knows params or none; `null` is how some clients write none.
    Ok(Ask::Call { server, method, params: given(params), timeout_ms })
}

fn milliseconds(text: &str) -> Option<u64> {
    text.parse().ok().or_else(|| strict_json::whole(text.parse().ok()?))
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

// --- tokens ---------------------------------------------------------------------------------------------------------

pub fn token_list<'a>(incoming: Incoming<'_, 'a>) -> Asked<'a> {
    incoming.asks(Ask::TokenList)
}

pub fn token_create<'a>(incoming: Incoming<'_, 'a>) -> Asked<'a> {
    let ask = tokens::create(incoming.body()?, &incoming.who)?;
    incoming.asks(ask)
}

pub fn token_rotate<'a>(name: String, incoming: Incoming<'_, 'a>) -> Asked<'a> {
    let grace_ms = tokens::grace(incoming.body()?)?;
    incoming.asks(Ask::TokenRotate { name, grace_ms })
}

pub fn token_revoke<'a>(name: String, incoming: Incoming<'_, 'a>) -> Asked<'a> {
    incoming.asks(Ask::TokenRevoke { name })
}

pub fn key_rotate<'a>(incoming: Incoming<'_, 'a>) -> Asked<'a> {
    incoming.asks(Ask::KeyRotate)
}

/// No body at all: the program that has the daemon's name by now.
pub fn upgrade<'a>(incoming: Incoming<'_, 'a>) -> Asked<'a> {
    let body = incoming.body()?;
    let mut program = None;
    if !body.is_empty() {
        let mut fields = Fields::of(strict_json::object(body)?, &["binary"])?;
        program = fields
            .take("binary")
            .filter(|field| !field.value.is_null())
            .map(|field| field.parse(program_path))
            .transpose()?;
        fields.finish();
    }
    Ok(Interpreted::Upgrade { who: incoming.who, program })
}

fn program_path(text: &str) -> Result<String, String> {
    match text.starts_with('/') && text.len() <= UPGRADE_PATH_MAX && !text.contains('\0') {
        true => Ok(text.to_string()),
        false => Err("expected the absolute path of a program on the daemon's host".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::mutation::Mutator;

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
    fn no_body_of_a_call_makes_it_panic() {
        let seeds: [&[u8]; 2] = [
            br#"{"method":"tools/call","params":{"name":"x","arguments":{"a":[1,2.5,null]}},"timeout_ms":100}"#,
            br#"{"params":[],"method":"m"}"#,
        ];
        let mut mutator = Mutator::new(4);
        for _ in 0..20_000 {
            let body = mutator.mutate(&seeds);
            if let Ok(Ask::Call { method, params, .. }) = call_of(ServerRef::Name("a".into()), &body) {
                let line = crate::wire::jsonrpc::request(1, method, params);
                assert_eq!(memchr::memchr(b'\n', &line), Some(line.len() - 1), "one line");
                assert!(crate::wire::jsonrpc::parse(&line).is_some(), "and valid");
            }
        }
    }
}
