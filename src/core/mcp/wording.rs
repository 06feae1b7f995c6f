//! How things are said to MCP clients: errors in their shape, results in their era, progress tokens that are ours on the
//! pipe and theirs on the wire. Only words; decides nothing and keeps nothing.

use crate::core::mcp::era::params::unambiguous;
use crate::core::mcp::sessions::{Era, ForwardedRequest, RequestKind};
use crate::core::peers::peer::Advertised;
use crate::model::fault::{Code, Fault};
use crate::model::protocol::Version;
use crate::wire::json::{Json, JsonBuf};
use crate::wire::jsonrpc;
use memchr::{memchr, memmem};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::borrow::Cow;
use std::sync::LazyLock;

/// Made once: every call is searched for it. A constant, but for the tables that a search needs.
static PROGRESS_TOKEN: LazyLock<memmem::Finder<'static>> = LazyLock::new(|| memmem::Finder::new(b"progressToken"));

pub(in crate::core) const INVALID_REQUEST: i64 = -32600;
pub(in crate::core) const METHOD_NOT_FOUND: i64 = -32601;
pub(in crate::core) const INVALID_PARAMS: i64 = -32602;

/// The params with our own progress token in the place of the client's, if it gave one, and the client's.
pub(in crate::core) fn minted_token(params: Option<Json<'_>>, call: u64) -> (Option<Cow<'_, str>>, Option<JsonBuf>) {
    #[derive(Deserialize)]
    struct Params<'a> {
        #[serde(rename = "_meta", borrow)]
        meta: Option<Json<'a>>,
    }
    #[derive(Deserialize)]
    struct Meta<'a> {
        #[serde(rename = "progressToken", borrow)]
        token: Option<Json<'a>>,
    }
    let Some(raw) = params else { return (None, None) };
    let text = raw.get();
    // A key can be written in escapes, too.
    let escaped = || memchr(b'\\', text.as_bytes()).is_some() && memmem::find(text.as_bytes(), b"\\u").is_some();
    if PROGRESS_TOKEN.find(text.as_bytes()).is_none() && !escaped() {
        return (Some(Cow::Borrowed(text)), None);
    }
    let found = serde_json::from_str::<Params<'_>>(text).and_then(|params| match params.meta {
        Some(meta) => serde_json::from_str::<Meta<'_>>(meta.get()).map(|meta| meta.token),
        None => Ok(None),
    });
    match found {
        Ok(None) => (Some(Cow::Borrowed(text)), None),
        Ok(Some(token)) => {
            let params = jsonrpc::spliced(text, token.get(), &call.to_string());
            (Some(Cow::Owned(params)), Some(token.kept()))
        }
        // A member stands there twice, and nobody knows which of them the server will take: it gets one.
        Err(_) => {
            let (params, token) = unambiguous(raw, call);
            (Some(Cow::Owned(params)), token)
        }
    }
}

/// The progress token of a question, as its server wrote it.
pub(in crate::core) fn progress_token(params: Json<'_>) -> Option<Json<'_>> {
    #[derive(Deserialize)]
    struct Params<'a> {
        #[serde(rename = "_meta", borrow)]
        meta: Option<Meta<'a>>,
    }
    #[derive(Deserialize)]
    struct Meta<'a> {
        #[serde(rename = "progressToken", borrow)]
        token: Option<Json<'a>>,
    }
    PROGRESS_TOKEN.find(params.get().as_bytes())?;
    serde_json::from_str::<Params<'_>>(params.get()).ok()?.meta?.token
}

pub(in crate::core) fn rpc_error(id: &str, code: i64, message: &str) -> Vec<u8> {
    jsonrpc::error(id, json!({ "code": code, "message": message }).to_string().as_bytes())
}

/// An answer before it is known under which id it is given.
#[derive(Serialize, Deserialize)]
pub(in crate::core) struct Settled<'a> {
    pub status: u16,
    pub body: Body<'a>,
}

/// The server's own words as they lie in its buffer, or ours: they are copied once, into the message.
#[derive(Serialize, Deserialize)]
pub(in crate::core) enum Body<'a> {
    Result(Cow<'a, [u8]>),
    Error(Cow<'a, [u8]>),
}

impl Settled<'_> {
    pub fn fault(fault: &Fault) -> Settled<'static> {
        Settled { status: 200, body: Body::Error(fault_error(fault).into_bytes().into()) }
    }

    pub fn kept(self) -> Settled<'static> {
        let body = match self.body {
            Body::Result(text) => Body::Result(text.into_owned().into()),
            Body::Error(text) => Body::Error(text.into_owned().into()),
        };
        Settled { status: self.status, body }
    }

    pub fn message(&self, id: &str) -> Vec<u8> {
        match &self.body {
            Body::Result(result) => jsonrpc::result(id, result),
            Body::Error(error) => jsonrpc::error(id, error),
        }
    }

    pub fn len(&self) -> usize {
        match &self.body {
            Body::Result(text) | Body::Error(text) => text.len(),
        }
    }
}

pub(in crate::core) fn fault_message(id: &str, fault: &Fault) -> Vec<u8> {
    jsonrpc::error(id, fault_error(fault).as_bytes())
}

/// A fault of the daemon's own, as MCP clients read it: its name and its data under `data`.
fn fault_error(fault: &Fault) -> String {
    let code = match fault.code {
        Code::CallTimeout => -32001,
        Code::InvalidRequest | Code::UnknownField => INVALID_REQUEST,
        Code::InvalidJson => -32700,
        Code::Unauthorized
        | Code::Forbidden
        | Code::NotFound
        | Code::MethodNotAllowed
        | Code::RequestTimeout
        | Code::NameTaken
        | Code::PortTaken
        | Code::BridgeDisabled
        | Code::ServerStopped
        | Code::PayloadTooLarge
        | Code::UriTooLong
        | Code::UnsupportedMediaType
        | Code::ExpectationFailed
        | Code::ImageNotFound
        | Code::SecretMissing
        | Code::ProviderUnusable
        | Code::QueueFull
        | Code::RateLimited
        | Code::HeadersTooLarge
        | Code::NotImplemented
        | Code::RestartFailed
        | Code::ServerCrashed
        | Code::ResponseTooLarge
        | Code::BadServerOutput
        | Code::RestartInProgress
        | Code::CircuitOpen
        | Code::UpstreamUnavailable
        | Code::AmbiguousTool
        | Code::ToolNotFound
        | Code::StoreUnavailable
        | Code::Unavailable
        | Code::Overloaded
        | Code::VersionNotSupported => -32000,
    };
    let mut data = fault.data.clone();
    data.insert("code".to_string(), fault.code.wire().0.into());
    json!({ "code": code, "message": fault.message, "data": data }).to_string()
}

/// How HTTP says what kind of error it is, where the version asks for that.
pub(in crate::core) fn stateless_status(code: i64) -> u16 {
    match code {
        METHOD_NOT_FOUND => 404,
        -32022..=-32020 => 400,
        _ => 200,
    }
}

/// `-32002` was the code for a resource that is not there before there was one for all.
pub(in crate::core) fn stateless_error<'e>(
    forwarded: &ForwardedRequest,
    code: i64,
    raw: &'e str,
) -> (i64, Cow<'e, str>) {
    const OLD_NOT_FOUND: i64 = -32002;
    if forwarded.era == Era::StatelessOverSessions
        && forwarded.kind == RequestKind::ReadResource
        && code == OLD_NOT_FOUND
        && let Some(old) = Json::of(raw).ok().and_then(|error| error.member("code"))
    {
        return (INVALID_PARAMS, Cow::Owned(jsonrpc::spliced(raw, old.get(), &INVALID_PARAMS.to_string())));
    }
    (code, Cow::Borrowed(raw))
}

impl Advertised {
    pub fn initialize_result(&self, version: Version) -> String {
        let instructions =
            self.instructions.as_ref().map_or(String::new(), |text| format!(r#","instructions":{text}"#));
        format!(
            r#"{{"protocolVersion":"{}","capabilities":{},"serverInfo":{}{instructions}}}"#,
            version.wire(),
            self.capabilities,
            self.server_info
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Json<'_> {
        Json::of(text).unwrap()
    }

    #[test]
    fn no_progress_token_of_a_client_reaches_a_server_however_it_is_written() {
        for (params, expected, token) in [
            (
                r#"{"a": 1.0,"_meta":{"x":1, "progressToken" : "t"}}"#,
                r#"{"a": 1.0,"_meta":{"x":1, "progressToken" : 7}}"#,
                "\"t\"",
            ),
            (r#"{"_meta":{"progress\u0054oken":3}}"#, r#"{"_meta":{"progress\u0054oken":7}}"#, "3"),
            (r#"{"\u005fmeta":{"progressToken":3}}"#, r#"{"\u005fmeta":{"progressToken":7}}"#, "3"),
            (r#"{"_meta":{"progressToken":1,"progressToken":2}}"#, r#"{"_meta":{"progressToken":7}}"#, "2"),
            (r#"{"_meta":{},"_meta":{"progressToken":2},"a":1.0}"#, r#"{"a":1.0,"_meta":{"progressToken":7}}"#, "2"),
        ] {
            let params = raw(params);
            let (written, own) = minted_token(Some(params), 7);
            assert_eq!((written.as_deref(), own.unwrap().get()), (Some(expected), token), "{params}");
        }
        for params in [r#"{"arguments":{"progressToken":1}}"#, r#"{"_meta":{},"b":"\u0041"}"#, r#"["progressToken"]"#] {
            let params = raw(params);
            let (written, own) = minted_token(Some(params), 7);
            assert_eq!((written.as_deref(), own.is_none()), (Some(params.get()), true));
        }
    }
}
