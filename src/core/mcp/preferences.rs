//! What clients have set at a server that they share: log levels and subscriptions. Each session has its own; the one
//! process is told what covers them all, again after every restart, and no more once nobody wants it.

use crate::core::effects::Effects;
use crate::core::mcp::Mcp;
use crate::core::mcp::endpoint::McpEndpoint;
use crate::core::mcp::responses::Replies;
use crate::core::mcp::sessions::{Era, RequestKind};
use crate::core::mcp::wording::{INVALID_PARAMS, METHOD_NOT_FOUND, fault_message, rpc_error};
use crate::core::peers::Peers;
use crate::core::peers::peer::Dialect;
use crate::ids::{PeerId, PostId, SessionId};
use crate::limits::{SUBSCRIBED_BYTES_MAX, SUBSCRIBED_BYTES_PER_OWNER, SUBSCRIPTIONS_MAX, URI_MAX};
use crate::model::fault::{Code, Fault};
use crate::model::protocol::Level;
use crate::wire::json::Json;
use crate::wire::jsonrpc;
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;

/// What a subscription, or the end of one, asks of its server.
pub(in crate::core) enum Subscribing {
    /// It was refused, and its client has been told.
    Refused,
    /// Nothing: others want the same.
    Done,
    /// It is done, and the daemon's own subscription is to be made anew.
    DoneAnew,
    /// The server is asked.
    Asks(RequestKind),
}

impl Replies<'_> {
    /// A request to hear of a resource, or to hear of it no more, of which the server may know already.
    pub fn subscription(
        &mut self,
        peers: &Peers,
        peer: PeerId,
        (post, session_id, id): (PostId, SessionId, Json<'_>),
        method: &str,
        params: Option<Json<'_>>,
    ) -> Subscribing {
        #[derive(Deserialize)]
        struct Wire {
            uri: String,
        }
        let uri = params.and_then(|raw| serde_json::from_str::<Wire>(raw.get()).ok()).map(|wire| wire.uri);
        let Some(uri) = uri.filter(|uri| uri.len() <= URI_MAX) else {
            let message = "uri: expected the URI of a resource";
            self.finish(post, None, 200, rpc_error(id.get(), INVALID_PARAMS, message));
            return Subscribing::Refused;
        };
        let Some(session) = self.mcp.sessions.get_mut(session_id) else { return Subscribing::Refused };
        let here = (peer, uri);
        let newer = peers.known.get(&peer).is_some_and(|peer| peer.dialect == Dialect::Stateless);
        if method == "resources/unsubscribe" {
            session.subscriptions.remove(&here);
            return match (self.mcp.is_wanted(peer, &here.1), newer) {
                (true, _) => Subscribing::Done,
                (false, true) => Subscribing::DoneAnew,
                (false, false) => Subscribing::Asks(RequestKind::Unsubscribe(here.1)),
            };
        }
        if session.subscriptions.len() >= SUBSCRIPTIONS_MAX {
            let message = format!("a session has at most {SUBSCRIPTIONS_MAX} subscriptions");
            self.finish(post, None, 200, rpc_error(id.get(), INVALID_PARAMS, &message));
            return Subscribing::Refused;
        }
        let owner = Arc::clone(&session.owner);
        if let Err(fault) = self.mcp.check_subscribed(&owner, here.1.len()) {
            self.finish(post, None, 200, fault_message(id.get(), &fault));
            return Subscribing::Refused;
        }
        let wanted = self.mcp.is_wanted(peer, &here.1);
        if !newer && !wanted {
            return Subscribing::Asks(RequestKind::Subscribe(here.1));
        }
        self.mcp.sessions.get_mut(session_id).expect("just seen").subscriptions.insert(here);
        if wanted { Subscribing::Done } else { Subscribing::DoneAnew }
    }

    pub fn set_level(
        &mut self,
        peers: &mut Peers,
        post: PostId,
        session: SessionId,
        id: Json<'_>,
        params: Option<Json<'_>>,
    ) {
        #[derive(Deserialize)]
        struct Wire {
            level: String,
        }
        let level = params.and_then(|raw| serde_json::from_str::<Wire>(raw.get()).ok());
        let Some(level) = level.and_then(|wire| Level::of(&wire.level)) else {
            let message = "level: expected one of debug, info, notice, warning, error, critical, alert, emergency";
            return self.finish(post, None, 200, rpc_error(id.get(), INVALID_PARAMS, message));
        };
        let Some(known) = self.mcp.sessions.get_mut(session) else { return };
        known.level = Some(level);
        if let Some(peer) = known.peer {
            if !peers.known.get(&peer).is_some_and(|peer| peer.offers("logging")) {
                let message = "this server sends no log messages";
                return self.finish(post, None, 200, rpc_error(id.get(), METHOD_NOT_FOUND, message));
            }
            self.mcp.merge_level(peer, peers, self.effects);
        }
        self.finish(post, None, 200, jsonrpc::result(id.get(), b"{}"));
    }
}

impl Mcp {
    /// Does anybody still want to hear of this resource?
    pub fn is_wanted(&self, peer: PeerId, uri: &str) -> bool {
        self.subscriptions().any(|(of, wanted)| *of == peer && wanted == uri)
    }

    /// Something of a client's is under way at this peer, or may still come from it. `at`: the peer under which its clients have
    /// subscribed; `endpoint`: that of its server, if it serves those who listen there.
    pub fn holds(&self, id: PeerId, at: PeerId, endpoint: Option<&McpEndpoint>) -> bool {
        let listening = || self.posts.values().filter_map(|post| post.listening.as_ref());
        self.questions.values().any(|question| question.peer == id)
            || self.forwarded.values().any(|forwarded| forwarded.peer == id)
            || self.subscriptions().any(|(of, _)| *of == at)
            || self.sessions.iter().any(|session| session.peer == Some(id) && session.get_stream.is_some())
            || endpoint.is_some_and(|endpoint| listening().any(|listening| listening.at == *endpoint))
    }

    fn subscriptions(&self) -> impl Iterator<Item = &(PeerId, String)> {
        let of_sessions = self.sessions.iter().flat_map(|session| &session.subscriptions);
        let listening = self.posts.values().filter_map(|post| post.listening.as_ref());
        of_sessions.chain(listening.flat_map(|listening| &listening.uris))
    }

    /// May this owner subscribe to so many bytes of names more?
    pub fn check_subscribed(&self, owner: &Arc<str>, more: usize) -> Result<(), Fault> {
        let of_sessions = self.sessions.iter().map(|session| (&session.owner, &session.subscriptions));
        let listening = self.posts.values().filter_map(|post| post.listening.as_ref());
        let (mut own, mut all) = (more, more);
        for (whose, uris) in of_sessions.chain(listening.map(|listening| (&listening.owner, &listening.uris))) {
            let bytes: usize = uris.iter().map(|(_, uri)| uri.len()).sum();
            all += bytes;
            own += if whose == owner { bytes } else { 0 };
        }
        let why = match (own > SUBSCRIBED_BYTES_PER_OWNER, all > SUBSCRIBED_BYTES_MAX) {
            (true, _) => "your subscriptions are too large together",
            (false, true) => "the subscriptions of all clients are too large together",
            (false, false) => return Ok(()),
        };
        Err(Fault::new(Code::Unavailable, why))
    }

    pub fn wanted_uris(&self, peer: PeerId) -> Vec<String> {
        let mut uris: Vec<String> =
            self.subscriptions().filter(|(of, _)| *of == peer).map(|(_, uri)| uri.clone()).collect();
        uris.sort();
        uris.dedup();
        uris
    }

    /// A resource of a server that nobody wants to hear of any more. False: it is to be told by a subscription as a whole.
    pub fn unsubscribe_if_last(&self, peer: PeerId, uri: &str, peers: &mut Peers, effects: &mut Effects) -> bool {
        // First of all, because it is cheap: when a server goes this is asked for each of its subscriptions.
        let alive = peers.known.get(&peer).is_some_and(|peer| peer.life.ready_instance().is_some());
        if !alive || self.is_wanted(peer, uri) {
            return true;
        }
        if peers.known.get(&peer).is_some_and(|peer| peer.dialect == Dialect::Stateless) {
            return false;
        }
        peers.tell_server(peer, "resources/unsubscribe", &json!({ "uri": uri }).to_string(), effects);
        true
    }

    /// The most talkative level that anybody wants.
    pub fn merge_level(&self, id: PeerId, peers: &mut Peers, effects: &mut Effects) {
        let of_sessions = self.sessions.iter().filter(|s| s.peer == Some(id)).filter_map(|s| s.level);
        let over_sessions = self.forwarded.values().filter(|forwarded| forwarded.era == Era::StatelessOverSessions);
        let of_requests =
            over_sessions.filter(|forwarded| forwarded.peer == id).filter_map(|forwarded| forwarded.level);
        let wanted = of_sessions.chain(of_requests).min();
        let Some(peer) = peers.known.get_mut(&id) else { return };
        // A server without sessions is told with every request.
        let takes = peer.dialect == Dialect::Sessions && peer.offers("logging");
        let (Some(level), true) = (wanted, takes) else { return };
        if peer.level != Some(level) && peer.life.ready_instance().is_some() {
            peer.level = Some(level);
            peers.tell_server(id, "logging/setLevel", &json!({ "level": level.wire() }).to_string(), effects);
        }
    }

    /// A new instance knows nothing of what clients set in the last one.
    pub fn reapply(&self, id: PeerId, peers: &mut Peers, effects: &mut Effects) {
        self.merge_level(id, peers, effects);
        for uri in self.wanted_uris(id) {
            peers.tell_server(id, "resources/subscribe", &json!({ "uri": uri }).to_string(), effects);
        }
    }
}
