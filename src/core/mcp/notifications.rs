//! What a server tells without being asked: progress, log messages, changed lists and resources. Each goes to whoever it
//! concerns and to nobody else; what cannot be told apart is kept from everyone. Never answers a
//! request.

use crate::core::mcp::Mcp;
use crate::core::mcp::joint::joint_uri;
use crate::core::mcp::responses::Replies;
use crate::core::mcp::sessions::Listening;
use crate::core::peers::Peers;
use crate::core::peers::calls::{Caller, Stage};
use crate::core::peers::listings::Listing;
use crate::core::peers::peer::Role;
use crate::ids::{CallId, InstanceId, PeerId, PostId, SessionId};
use crate::model::protocol::Level;
use crate::wire::json::Json;
use crate::wire::jsonrpc;
use serde::Deserialize;
use serde_json::json;

/// Calls that are known to be one client's.
#[derive(PartialEq, Eq)]
enum Whose {
    Session(SessionId),
    Call(CallId),
}

/// Whose call a server is at work on.
pub(in crate::core) enum Busy {
    /// With nothing of a client's.
    Idle,
    /// With calls of one client only; this is one of them.
    With(CallId),
    /// With calls of several clients, or of one that has no stream to hear on; or maybe with one that has ended here
    /// without its answer, and was another's.
    Unclear,
}

impl Replies<'_> {
    pub fn notified(
        &mut self,
        peers: &mut Peers,
        id: PeerId,
        instance: InstanceId,
        method: &str,
        params: Option<Json<'_>>,
    ) {
        match method {
            "notifications/progress" => self.progressed(peers, id, instance, params),
            "notifications/message" => self.logged(peers, id, params),
            "notifications/tools/list_changed" => peers.fetch(id, Listing::Tools, self.effects),
            "notifications/prompts/list_changed" => peers.fetch(id, Listing::Prompts, self.effects),
            "notifications/resources/list_changed" => {
                peers.fetch(id, Listing::Resources, self.effects);
                peers.fetch(id, Listing::Templates, self.effects);
            }
            "notifications/cancelled" => self.question_cancelled(instance, params),
            // The daemon's own; its clients have one each.
            "notifications/subscriptions/acknowledged" => {}
            // It names a task, which only the one who began it may know; and who that was only a private process tells.
            "notifications/tasks/status" if !is_private(peers, id) => {}
            _ => {
                if let Busy::With(call) = self.mcp.busy_with(peers, id) {
                    let post = self.mcp.forwarded[&call].post;
                    self.emit(post, jsonrpc::message(method, params.map(Json::get)));
                }
            }
        }
    }

    /// Our token is the call's id; the client gets its own back.
    fn progressed(&mut self, peers: &mut Peers, id: PeerId, instance: InstanceId, params: Option<Json<'_>>) {
        #[derive(Deserialize)]
        struct Wire<'a> {
            #[serde(rename = "progressToken", borrow)]
            token: Json<'a>,
        }
        let Some(raw) = params else { return };
        let Ok(wire) = serde_json::from_str::<Wire<'_>>(raw.get()) else { return };
        let Some(call) = wire.token.get().parse().ok().map(CallId) else { return };
        let current = peers.calls.get(call).is_some_and(|known| match known.stage {
            Stage::Sent { instance: to } => known.peer == id && to == instance,
            Stage::Queued { .. } => false,
        });
        let Some(forwarded) = self.mcp.forwarded.get(&call).filter(|_| current) else { return };
        let Some(token) = &forwarded.token else { return };
        let params = jsonrpc::spliced(raw.get(), wire.token.get(), token.get());
        let (post, timeout_ms) = (forwarded.post, forwarded.timeout_ms);
        peers.postpone(call, timeout_ms, self.effects);
        self.emit(post, jsonrpc::message("notifications/progress", Some(&params)));
    }

    fn logged(&mut self, peers: &Peers, id: PeerId, params: Option<Json<'_>>) {
        #[derive(Deserialize)]
        struct Wire {
            level: String,
        }
        let level = params.and_then(|raw| serde_json::from_str::<Wire>(raw.get()).ok());
        let Some(level) = level.and_then(|wire| Level::of(&wire.level)) else { return };
        let message = || jsonrpc::message("notifications/message", params.map(Json::get));
        match self.mcp.busy_with(peers, id) {
            Busy::With(call) => {
                let forwarded = &self.mcp.forwarded[&call];
                let session = forwarded.session.and_then(|session| self.mcp.sessions.get(session));
                let wanted = match session {
                    Some(session) => session.level.is_none_or(|least| level >= least),
                    None => forwarded.level.is_some_and(|least| level >= least),
                };
                let (post, session) = (forwarded.post, forwarded.session.filter(|_| wanted));
                if wanted
                    && !self.emit(post, message())
                    && let Some(session) = session
                {
                    self.tell_session(session, message());
                }
            }
            Busy::Idle => {
                self.effects.charge_search(self.mcp.everybody());
                for session in self.mcp.sessions.of_peer(id) {
                    let known = self.mcp.sessions.get(session).expect("just listed");
                    if known.level.is_some_and(|least| level >= least) {
                        self.tell_session(session, message());
                    }
                }
            }
            Busy::Unclear => {}
        }
    }

    /// `at`: the peer under which clients have subscribed to what this server tells of, which is called by this name.
    pub fn resource_updated(&mut self, name: &str, at: PeerId, params: Option<Json<'_>>) {
        #[derive(Deserialize)]
        struct Wire {
            uri: String,
        }
        let Some(wire) = params.and_then(|raw| serde_json::from_str::<Wire>(raw.get()).ok()) else { return };
        self.effects.charge_search(self.mcp.everybody());
        // Where all servers are offered at once it has another name.
        let joint = joint_uri(name, &wire.uri);
        // A subscription covers what is below it.
        let covers =
            |(of, uri): &(PeerId, String)| *of == at && wire.uri.strip_prefix(uri.as_str()).is_some_and(is_below);
        for session in self.mcp.sessions.sorted(|session| session.subscriptions.iter().any(covers)) {
            let at_joint = self.mcp.sessions.get(session).is_some_and(|session| session.endpoint.is_joint());
            let params = json!({ "uri": if at_joint { &joint } else { &wire.uri } }).to_string();
            self.tell_session(session, jsonrpc::message("notifications/resources/updated", Some(&params)));
        }
        for at_joint in [false, true] {
            let uri = if at_joint { &joint } else { &wire.uri };
            for (post, subscription) in self.mcp.listeners(|l| l.at.is_joint() == at_joint && l.uris.iter().any(covers))
            {
                let params = tagged(&subscription, Some(uri));
                self.emit(post, jsonrpc::message("notifications/resources/updated", Some(&params)));
            }
        }
    }

    fn question_cancelled(&mut self, instance: InstanceId, params: Option<Json<'_>>) {
        #[derive(Deserialize)]
        struct Wire<'a> {
            #[serde(rename = "requestId", borrow)]
            request_id: Json<'a>,
        }
        let Some(wire) = params.and_then(|raw| serde_json::from_str::<Wire<'_>>(raw.get()).ok()) else { return };
        let meant = |q: &crate::core::mcp::sessions::Question| {
            q.instance == instance && q.input.is_none() && q.id.get() == wire.request_id.get()
        };
        let Some(number) = self.mcp.questions.iter().find(|(_, q)| meant(q)).map(|(number, _)| *number) else { return };
        let question = self.mcp.questions.remove(&number).expect("just found");
        let params = format!(r#"{{"requestId":{number}}}"#);
        let message = jsonrpc::message("notifications/cancelled", Some(&params));
        let post = question.call.and_then(|call| self.mcp.forwarded.get(&call)).map(|forwarded| forwarded.post);
        if let (Some(post), Some(_)) = (post, question.session) {
            self.emit(post, message);
        }
    }
}

impl Mcp {
    pub fn busy_with(&self, peers: &Peers, id: PeerId) -> Busy {
        let Some(peer) = peers.known.get(&id) else { return Busy::Idle };
        let mut found: Option<(CallId, Whose)> = None;
        for call in peer.lane.in_flight() {
            match peers.calls.get(*call).map(|call| call.caller) {
                Some(Caller::Handshake | Caller::List(_) | Caller::Own) | None => {}
                Some(Caller::Client(_) | Caller::Tool(_)) => return Busy::Unclear,
                Some(Caller::Mcp) => {
                    let Some(forwarded) = self.forwarded.get(call) else { return Busy::Unclear };
                    // Within a session all calls are one client's; without one, nothing is known to belong together.
                    let whose = forwarded.session.map_or(Whose::Call(*call), Whose::Session);
                    match &found {
                        Some((_, other)) if *other != whose => return Busy::Unclear,
                        Some(_) => {}
                        None => found = Some((*call, whose)),
                    }
                }
            }
        }
        let session = match &found {
            Some((_, Whose::Session(session))) => Some(*session),
            Some((_, Whose::Call(_))) | None => None,
        };
        match peer.lane.unanswered.are_all_of(session) {
            true => found.map_or(Busy::Idle, |(call, _)| Busy::With(call)),
            false => Busy::Unclear,
        }
    }

    pub fn listeners(&self, is: impl Fn(&Listening) -> bool) -> Vec<(PostId, String)> {
        let heard = |(id, post): (&PostId, &crate::core::mcp::sessions::PendingPost)| {
            let listening = post.listening.as_ref().filter(|listening| is(listening))?;
            Some((*id, listening.id.get().to_string()))
        };
        let mut found: Vec<_> = self.posts.iter().filter_map(heard).collect();
        found.sort();
        found
    }
}

fn is_private(peers: &Peers, id: PeerId) -> bool {
    peers.known.get(&id).is_some_and(|peer| matches!(peer.role, Role::Session(_)))
}

/// What follows a subscribed URI in one that it covers.
fn is_below(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with(['/', '?', '#'])
}

/// The params of a notification on a `subscriptions/listen` stream.
pub(in crate::core) fn tagged(subscription: &str, uri: Option<&str>) -> String {
    let uri = uri.map_or(String::new(), |uri| format!(r#","uri":{}"#, json!(uri)));
    format!(r#"{{"_meta":{{"io.modelcontextprotocol/subscriptionId":{subscription}}}{uri}}}"#)
}
