//! `/mcp/:name` of a server that speaks HTTP itself: which requests are passed on, to whom, and as what. Checks who asks as
//! for every call; then the client's connection goes to `Ports`, which carries the bytes. Never touches a bridged
//! server's requests: those are not for passing on.

use crate::api::auth::{Peer, Shown};
use crate::api::{mcp, rest, route};
use crate::core::Core;
use crate::ids::{InstanceId, ServerId};
use crate::model::fault::{Code, Fault};
use crate::model::principal::{Need, Principal};
use crate::os::net::client::Socket;
use crate::os::net::pairs::Exchange;
use crate::wire::http_in::{Method, Request};
use crate::wire::http_out::{Framing, Response};
use crate::wire::relay;

/// Where MCP is on the server's side; what follows the name comes after it.
const ENDPOINT: &str = route::MCP;

/// A client whose request is on its way to a server; its connection carries the answer and then ends.
pub struct Handed {
    pub instance: InstanceId,
    pub server: ServerId,
    pub exchange: Exchange,
    pub socket: Socket,
    /// What was still to be written to it.
    pub unwritten: Vec<u8>,
    pub request: Vec<u8>,
}

/// A request that is to be passed on: to whom, as what.
pub struct Aim {
    instance: InstanceId,
    server: ServerId,
    exchange: Exchange,
    request: Vec<u8>,
}

impl Aim {
    pub fn who(&self) -> &Principal {
        &self.exchange.who
    }

    pub fn hand(self, (socket, unwritten): (Socket, Vec<u8>)) -> Handed {
        let Aim { instance, server, exchange, request } = self;
        Handed { instance, server, exchange, socket, unwritten, request }
    }
}

/// Is this request for a server that speaks HTTP? Whoever may not see that server is told what would be said of one that is
/// not there, in the same words: by `rest::interpret`, which takes all that is not passed on.
pub fn aim(request: &Request<'_>, peer: &Peer, shown: &mut Shown, core: &Core) -> Result<Option<Aim>, Response> {
    let Some((name, rest)) = addressed(&request.path).filter(|(name, _)| core.speaks_http(name)) else {
        return Ok(None);
    };
    let who = rest::identify(request, core.tokens(), peer, shown, Need::Call).map_err(|f| mcp::refuse(None, &f))?;
    if !core.is_seen_by(name, &who) {
        return Ok(None);
    }
    mcp::refuse_foreign_origin(request)?;
    let aim = core.http_instance(name, &who).and_then(|(server, instance, timeout_ms)| {
        let head_only = request.method == Method::Head;
        let framing = Framing { keep_alive: false, head_only, http10: request.http10 };
        let exchange = Exchange { who, framing, timeout_ms };
        Ok(Aim { instance, server, exchange, request: passed_on(request, name, rest)? })
    });
    aim.map(Some).map_err(|fault| rest::refuse(&fault))
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
    if let Some((name, _)) = addressed(&head.path).filter(|(name, _)| core.speaks_http(name)) {
        match rest::identify(head, core.tokens(), peer, shown, Need::Call) {
            Ok(who) if core.is_seen_by(name, &who) => return None,
            Ok(_) => {}
            Err(fault) => return Some(mcp::refuse(None, &fault)),
        }
    }
    rest::refuse_early(head, core.tokens(), peer, shown)
}

/// As `route::endpoint`, for what is passed on: a slash at the end makes no difference.
fn addressed(path: &str) -> Option<(&str, &str)> {
    route::endpoint(path).map(|(name, rest)| (name, rest.trim_end_matches('/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slash_at_the_end_makes_no_difference() {
        assert_eq!(addressed("/mcp/web/"), Some(("web", "")));
        assert_eq!(addressed("/mcp/web/events"), Some(("web", "/events")));
        assert_eq!(addressed("/mcp/"), None);
    }
}
