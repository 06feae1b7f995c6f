//! `/mcp/:name` of a server that speaks HTTP itself: which requests are passed on, to whom, and as what. Checks who asks as
//! for every call; then the client's connection goes to `Ports`, which carries the bytes. Never touches a bridged
//! server's requests: those are not for passing on.

use crate::api::auth::{Need, Peer, Shown};
use crate::api::fault::{Code, Fault};
use crate::api::{mcp, rest, route};
use crate::core::Core;
use crate::ids::InstanceId;
use crate::os::client::Socket;
use crate::wire::http_in::Request;
use crate::wire::http_out::Response;
use crate::wire::relay;

/// Where MCP is on the server's side; what follows the name comes after it.
const ENDPOINT: &str = "/mcp";

/// A client whose request is on its way to a server; its connection carries the answer and then ends.
pub struct Handed {
    pub instance: InstanceId,
    pub socket: Socket,
    /// What was still to be written to it.
    pub unwritten: Vec<u8>,
    pub request: Vec<u8>,
}

/// Is this request for a server that speaks HTTP? Then for which instance, and as what. Whoever may not see that server is
/// told what would be said of one that is not there, in the same words.
pub fn aim(
    request: &Request<'_>,
    peer: &Peer,
    shown: &mut Shown,
    core: &Core,
) -> Result<Option<(InstanceId, Vec<u8>)>, Response> {
    let Some((name, rest)) = addressed(&request.path) else { return Ok(None) };
    if !core.speaks_http(name) {
        return Ok(None);
    }
    let who = rest::identify(request, core.tokens(), peer, shown, Need::Call).map_err(|f| mcp::refuse(None, &f))?;
    if !core.is_seen_by(name, &who) {
        return Ok(None);
    }
    mcp::refuse_foreign_origin(request)?;
    let passed_on = core.http_instance(name, &who).and_then(|instance| Ok((instance, passed_on(request, name, rest)?)));
    passed_on.map(Some).map_err(|fault| rest::refuse(&fault))
}

/// The bytes for the server, which has nothing but its endpoint and what is below it.
fn passed_on(request: &Request<'_>, name: &str, rest: &str) -> Result<Vec<u8>, Fault> {
    if rest.split('/').any(|part| matches!(part, "." | "..")) {
        return Err(Fault::new(Code::InvalidRequest, "a path with `.` or `..` in it is not passed on"));
    }
    let target = relay::target(&format!("{ENDPOINT}{rest}"), request.query);
    relay::request(request, &target, name)
        .ok_or_else(|| Fault::new(Code::NotImplemented, "this method is not passed on"))
}

/// As `rest::refuse_early`, for both kinds of requests.
pub fn refuse_early(head: &Request<'_>, peer: &Peer, shown: &mut Shown, core: &Core) -> Option<Response> {
    match addressed(&head.path) {
        Some((name, _)) if core.speaks_http(name) => {
            let fault = rest::identify(head, core.tokens(), peer, shown, Need::Call).err()?;
            Some(mcp::refuse(None, &fault))
        }
        Some(_) | None => rest::refuse_early(head, core.tokens(), peer, shown),
    }
}

/// The server's name or id, and what comes after it.
fn addressed(path: &str) -> Option<(&str, &str)> {
    let split = |inner: &'_ str| inner.find('/').unwrap_or(inner.len());
    if let Some(inner) = path.strip_prefix("/mcp/") {
        let (name, rest) = inner.split_at(split(inner));
        return (!name.is_empty()).then_some((name, rest.trim_end_matches('/')));
    }
    let of_server = |base: &str| path.strip_prefix(base)?.strip_prefix('/');
    let inner = of_server(route::SERVERS).or_else(|| of_server(route::HOSTED))?;
    let (name, rest) = inner.split_at(split(inner));
    let rest = rest.strip_prefix(ENDPOINT).filter(|rest| rest.is_empty() || rest.starts_with('/'))?;
    Some((name, rest.trim_end_matches('/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_addresses_of_an_endpoint_are_known_and_no_others() {
        assert_eq!(addressed("/mcp/web"), Some(("web", "")));
        assert_eq!(addressed("/mcp/web/"), Some(("web", "")));
        assert_eq!(addressed("/mcp/web/events"), Some(("web", "/events")));
        assert_eq!(addressed("/api/v1/mcp/servers/web/mcp"), Some(("web", "")));
        assert_eq!(addressed("/api/v1/mcp/hosted/web/mcp/x"), Some(("web", "/x")));
        for other in ["/mcp", "/mcp/", "/api/v1/mcp/servers/web", "/api/v1/mcp/servers/web/mcpx", "/healthz", "/"] {
            assert_eq!(addressed(other), None, "{other}");
        }
    }
}
