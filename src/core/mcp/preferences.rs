//! What clients have set at a server that they share: log levels and subscriptions. Each session has its own; the one
//! process is told what covers them all, again after every restart, and no more once nobody wants it.

use crate::core::Core;
use crate::core::mcp::sessions::{Era, RequestKind};
use crate::core::mcp::wording::{INVALID_PARAMS, METHOD_NOT_FOUND, fault_message, rpc_error};
use crate::core::peers::calls::Caller;
use crate::core::peers::peer::Dialect;
use crate::ids::{PeerId, PostId, SessionId};
use crate::limits::{SUBSCRIBED_BYTES_MAX, SUBSCRIBED_BYTES_PER_OWNER, SUBSCRIPTIONS_MAX, TOOL_LIST_TIMEOUT, URI_MAX};
use crate::model::fault::{Code, Fault};
use crate::model::protocol::Level;
use crate::model::tally::MethodClass;
use crate::wire::json::Json;
use crate::wire::jsonrpc;
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;

impl Core {
    pub(in crate::core) fn set_level(
        &mut self,
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
            if !self.peers.known.get(&peer).is_some_and(|peer| peer.offers("logging")) {
                let message = "this server sends no log messages";
                return self.finish(post, None, 200, rpc_error(id.get(), METHOD_NOT_FOUND, message));
            }
            self.merge_level(peer);
        }
        self.finish(post, None, 200, jsonrpc::result(id.get(), b"{}"));
    }

    pub(in crate::core) fn subscription(
        &mut self,
        post: PostId,
        session_id: SessionId,
        peer: PeerId,
        id: Json<'_>,
        method: &str,
        params: Option<Json<'_>>,
    ) {
        #[derive(Deserialize)]
        struct Wire {
            uri: String,
        }
        let uri = params.and_then(|raw| serde_json::from_str::<Wire>(raw.get()).ok()).map(|wire| wire.uri);
        let Some(uri) = uri.filter(|uri| uri.len() <= URI_MAX) else {
            let message = "uri: expected the URI of a resource";
            return self.finish(post, None, 200, rpc_error(id.get(), INVALID_PARAMS, message));
        };
        let Some(session) = self.mcp.sessions.get_mut(session_id) else { return };
        let here = (peer, uri);
        let newer = self.peers.known.get(&peer).is_some_and(|peer| peer.dialect == Dialect::Stateless);
        if method == "resources/unsubscribe" {
            session.subscriptions.remove(&here);
            let wanted = self.is_wanted(peer, &here.1);
            if newer && !wanted {
                self.listen_to(peer);
            }
            if newer || wanted {
                return self.finish(post, None, 200, jsonrpc::result(id.get(), b"{}"));
            }
            return self.forward(post, session_id, peer, id, method, params, RequestKind::Unsubscribe(here.1));
        }
        if session.subscriptions.len() >= SUBSCRIPTIONS_MAX {
            let message = format!("a session has at most {SUBSCRIPTIONS_MAX} subscriptions");
            return self.finish(post, None, 200, rpc_error(id.get(), INVALID_PARAMS, &message));
        }
        let owner = Arc::clone(&session.owner);
        if let Err(fault) = self.check_subscribed(&owner, here.1.len()) {
            return self.finish(post, None, 200, fault_message(id.get(), &fault));
        }
        let wanted = self.is_wanted(peer, &here.1);
        if newer || wanted {
            self.mcp.sessions.get_mut(session_id).expect("just seen").subscriptions.insert(here);
            if !wanted {
                self.listen_to(peer);
            }
            return self.finish(post, None, 200, jsonrpc::result(id.get(), b"{}"));
        }
        self.forward(post, session_id, peer, id, method, params, RequestKind::Subscribe(here.1));
    }

    /// Does anybody still want to hear of this resource?
    pub(in crate::core) fn is_wanted(&self, peer: PeerId, uri: &str) -> bool {
        self.subscriptions().any(|(of, wanted)| *of == peer && wanted == uri)
    }

    fn subscriptions(&self) -> impl Iterator<Item = &(PeerId, String)> {
        let of_sessions = self.mcp.sessions.iter().flat_map(|session| &session.subscriptions);
        let listening = self.mcp.posts.values().filter_map(|post| post.listening.as_ref());
        of_sessions.chain(listening.flat_map(|listening| &listening.uris))
    }

    /// May this owner subscribe to so many bytes of names more?
    pub(in crate::core) fn check_subscribed(&self, owner: &Arc<str>, more: usize) -> Result<(), Fault> {
        let of_sessions = self.mcp.sessions.iter().map(|session| (&session.owner, &session.subscriptions));
        let listening = self.mcp.posts.values().filter_map(|post| post.listening.as_ref());
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

    pub(in crate::core) fn wanted_uris(&self, peer: PeerId) -> Vec<String> {
        let mut uris: Vec<String> =
            self.subscriptions().filter(|(of, _)| *of == peer).map(|(_, uri)| uri.clone()).collect();
        uris.sort();
        uris.dedup();
        uris
    }

    pub(in crate::core) fn unsubscribe_if_last(&mut self, peer: PeerId, uri: &str) {
        // First of all, because it is cheap: when a server goes this is asked for each of its subscriptions.
        let alive = self.peers.known.get(&peer).is_some_and(|peer| peer.life.ready_instance().is_some());
        if !alive || self.is_wanted(peer, uri) {
            return;
        }
        if self.peers.known.get(&peer).is_some_and(|peer| peer.dialect == Dialect::Stateless) {
            self.listen_to(peer);
        } else {
            self.tell_server(peer, "resources/unsubscribe", &json!({ "uri": uri }).to_string());
        }
    }

    /// The most talkative level that anybody wants.
    pub(in crate::core) fn merge_level(&mut self, id: PeerId) {
        let of_sessions = self.mcp.sessions.iter().filter(|s| s.peer == Some(id)).filter_map(|s| s.level);
        let over_sessions = self.mcp.forwarded.values().filter(|forwarded| forwarded.era == Era::StatelessOverSessions);
        let of_requests =
            over_sessions.filter(|forwarded| forwarded.peer == id).filter_map(|forwarded| forwarded.level);
        let wanted = of_sessions.chain(of_requests).min();
        let Some(peer) = self.peers.known.get_mut(&id) else { return };
        // A server without sessions is told with every request.
        let takes = peer.dialect == Dialect::Sessions && peer.offers("logging");
        let (Some(level), true) = (wanted, takes) else { return };
        if peer.level != Some(level) && peer.life.ready_instance().is_some() {
            peer.level = Some(level);
            self.tell_server(id, "logging/setLevel", &json!({ "level": level.wire() }).to_string());
        }
    }

    /// A new instance knows nothing of what clients set in the last one.
    pub(in crate::core) fn reapply(&mut self, id: PeerId) {
        self.merge_level(id);
        for uri in self.wanted_uris(id) {
            self.tell_server(id, "resources/subscribe", &json!({ "uri": uri }).to_string());
        }
    }

    /// A request of the daemon's own whose answer changes nothing.
    pub(in crate::core) fn tell_server(&mut self, id: PeerId, method: &str, params: &str) {
        if self.peers.known.get(&id).is_none_or(|peer| peer.life.ready_instance().is_none()) {
            return;
        }
        let timeout_ms = Some(TOOL_LIST_TIMEOUT.as_millis() as u64);
        let sent = self.submit(id, None, timeout_ms, (Caller::Own, MethodClass::Other), |call| {
            jsonrpc::own_request(call, method, params)
        });
        if let Err(fault) = sent {
            log::debug!("{method} could not be sent: {}", fault.message);
        }
    }
}
