//! Clients without sessions (2026-07-28). Where a server speaks that version a second, shared instance of it is started
//! for them, because a server keeps to the era of its first message; where it does not, their requests are translated
//! for the instance that all share (`suspended.rs` has those that wait for input meanwhile). Owns how they are put and
//! answered, and what such clients listen to; which of the two it is knows `servers/support.rs`.

use crate::api::mcp::forwarding::kept_back;
use crate::api::request::{Stateless, Takes};
use crate::core::effects::{Effects, Timer};
use crate::core::events::RoomEvent;
use crate::core::mcp::Mcp;
use crate::core::mcp::endpoint::McpEndpoint;
use crate::core::mcp::era::params::{Filter, header_mismatch, without_era};
use crate::core::mcp::responses::Replies;
use crate::core::mcp::sessions::{Abilities, Era, ForwardedRequest, Listening, RequestKind};
use crate::core::mcp::wording::{
    INVALID_PARAMS, METHOD_NOT_FOUND, fault_message, minted_token, rpc_error, stateless_status,
};
use crate::core::peers::Peers;
use crate::core::peers::calls::Caller;
use crate::core::peers::peer::Advertised;
use crate::core::projects::records::{CallDraft, CallEnd};
use crate::ids::{CallId, ConnId, PeerId, PostId, ServerId};
use crate::limits::{LISTENERS_MAX, LISTENERS_PER_OWNER, STREAM_AFTER};
use crate::model::external::ProjectId;
use crate::model::fault::{Code, Fault};
use crate::model::principal::Principal;
use crate::model::protocol::{Level, STATELESS};
use crate::model::tally::MethodClass;
use crate::wire::json::{Json, JsonBuf};
use crate::wire::jsonrpc;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const HEADER_MISMATCH: i64 = -32020;
/// How long clients may keep what changes only with a notification.
const LIST_TTL_MS: u64 = 60_000;

/// Does a server speak the version without sessions?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Support {
    /// Nobody has asked yet.
    #[default]
    Unknown,
    /// A peer of it is being asked.
    Asked(PeerId),
    /// It does, and this peer of it serves those who use it.
    Yes(PeerId),
    No,
}

/// A request that waits until it is known how to serve it.
#[derive(Serialize, Deserialize)]
pub(in crate::core) struct Held {
    pub post: PostId,
    pub request: OwnedRequest,
}

/// A request of a client without a session, kept beyond its HTTP request.
#[derive(Clone, Serialize, Deserialize)]
pub(in crate::core) struct OwnedRequest {
    pub owner: Arc<str>,
    pub id: JsonBuf,
    pub method: String,
    pub params: JsonBuf,
    pub abilities: Abilities,
    pub level: Option<Level>,
    pub param_headers: Vec<(String, String)>,
    /// At whose endpoint it came in, if its calls are recorded.
    pub project: Option<ProjectId>,
}

impl OwnedRequest {
    /// Whose it is, and what it says, if it is a call that is recorded.
    pub fn recorded(&self) -> Option<((&ProjectId, &Arc<str>), Json<'_>)> {
        let project = self.project.as_ref().filter(|_| self.method == "tools/call")?;
        Some(((project, &self.owner), self.params.as_json()))
    }
}

impl Replies<'_> {
    /// The post of a request that may go on, and the request as it is kept; or it was refused.
    pub fn open_stateless(
        &mut self,
        conn: ConnId,
        who: &Principal,
        request: &Stateless<'_>,
        takes: Takes,
    ) -> Option<(PostId, OwnedRequest)> {
        // Whatever a client sets for itself has gone with its session.
        if request.method == "ping" || kept_back(&request.method).is_some() {
            let message = format!("{STATELESS} has no {}", request.method);
            self.message(conn, 404, None, rpc_error(request.id.get(), METHOD_NOT_FOUND, &message));
            return None;
        }
        let post = self.open_post(Some(conn), None, takes != Takes::Json, 1);
        if takes == Takes::Stream {
            self.open_stream(post);
        } else {
            let at_ms = self.effects.now.mono_ms + STREAM_AFTER.as_millis() as u64;
            self.effects.deadlines.set(Timer::Stream(conn), at_ms);
        }
        let request = OwnedRequest {
            owner: Arc::clone(&who.name),
            id: request.id.kept(),
            method: request.method.to_string(),
            params: request.params.kept(),
            abilities: Abilities::of(request.capabilities),
            level: request.log_level.as_deref().and_then(Level::of),
            param_headers: request.param_headers.clone(),
            project: None,
        };
        Some((post, request))
    }

    pub fn forward_stateless(
        &mut self,
        peers: &mut Peers,
        peer: PeerId,
        post: PostId,
        request: &OwnedRequest,
        record: impl FnOnce(&mut Effects) -> Option<Box<CallDraft>>,
    ) {
        if !self.check_headers(peers, peer, post, request) {
            return;
        }
        let mut token = None;
        let line = |call| {
            let (params, own) = minted_token(Some(request.params.as_json()), call);
            token = own;
            jsonrpc::forwarded(call, &request.method, params.as_deref())
        };
        let kind = (Caller::Mcp, MethodClass::of(&request.method));
        let used_ms = peers.used_before(peer, &request.method);
        let sent = peers.submit(peer, Some(&request.owner), None, kind, line, self.effects);
        peers.was_no_use(peer, used_ms);
        let record = record(self.effects);
        self.sent_stateless(peer, post, request, (sent, token), Era::Stateless, record);
    }

    /// What a tool says is also in a header must be there, and be the same.
    fn check_headers(&mut self, peers: &Peers, peer: PeerId, post: PostId, request: &OwnedRequest) -> bool {
        if request.method != "tools/call" {
            return true;
        }
        match header_mismatch(&peers.known[&peer].header_params, request.params.as_json(), &request.param_headers) {
            None => true,
            Some(message) => {
                let message = rpc_error(request.id.get(), HEADER_MISMATCH, &message);
                self.finish(post, None, stateless_status(HEADER_MISMATCH), message);
                false
            }
        }
    }

    fn sent_stateless(
        &mut self,
        peer: PeerId,
        post: PostId,
        request: &OwnedRequest,
        (sent, token): (Result<(CallId, u64), Fault>, Option<JsonBuf>),
        era: Era,
        record: Option<Box<CallDraft>>,
    ) {
        let (call, timeout_ms) = match sent {
            Ok(sent) => sent,
            Err(fault) => {
                if let Some(draft) = record {
                    let done = Box::new(CallEnd::Fault(&fault).into());
                    self.effects.raise(RoomEvent::ToolCallDone { draft, peer, done });
                }
                return self.finish(post, None, 200, fault_message(request.id.get(), &fault));
            }
        };
        let kind = match &*request.method {
            "tools/list" | "prompts/list" | "resources/list" | "resources/templates/list" => RequestKind::Cacheable,
            "resources/read" => RequestKind::ReadResource,
            _ => RequestKind::Plain,
        };
        let forwarded = ForwardedRequest {
            peer,
            post,
            session: None,
            id: request.id.clone(),
            token,
            kind,
            abilities: request.abilities,
            level: request.level,
            era,
            timeout_ms,
            owner: Arc::clone(&request.owner),
            rounds: None,
            record,
        };
        self.mcp.insert_forwarded(call, forwarded, self.effects);
        self.mcp.posts.get_mut(&post).expect("it asks").calls.push(call);
    }

    /// For a server of the other era, by its main peer.
    pub fn translate(
        &mut self,
        peers: &mut Peers,
        peer: PeerId,
        post: PostId,
        request: &OwnedRequest,
        record: impl FnOnce(&mut Effects) -> Option<Box<CallDraft>>,
    ) {
        if request.method == "server/discover" {
            let Some(advertised) = &peers.known[&peer].advertised else {
                let fault =
                    Fault::new(Code::Unavailable, "the server has not told who it is yet").retry_after_ms(1_000);
                return self.finish(post, None, 200, fault_message(request.id.get(), &fault));
            };
            let result = advertised.discover_result();
            return self.finish(post, None, 200, jsonrpc::result(request.id.get(), result.as_bytes()));
        }
        if request.method.starts_with("tasks/") {
            let message = format!("Method not found: {}", request.method);
            return self.finish(post, None, 404, rpc_error(request.id.get(), METHOD_NOT_FOUND, &message));
        }
        if !self.check_headers(peers, peer, post, request) {
            return;
        }
        let mut token = None;
        let line = |call| {
            let (params, own) = without_era(request.params.as_json(), call);
            token = own;
            jsonrpc::forwarded(call, &request.method, Some(&params))
        };
        let kind = (Caller::Mcp, MethodClass::of(&request.method));
        let used_ms = peers.used_before(peer, &request.method);
        let sent = peers.submit(peer, Some(&request.owner), None, kind, line, self.effects);
        peers.was_no_use(peer, used_ms);
        let record = record(self.effects);
        self.sent_stateless(peer, post, request, (sent, token), Era::StatelessOverSessions, record);
        if request.level.is_some() {
            self.mcp.merge_level(peer, peers, self.effects);
        }
    }

    /// What a client listens to, if it may; else it was refused.
    pub fn may_listen(
        &mut self,
        conn: ConnId,
        who: &Principal,
        request: &Stateless<'_>,
        takes: Takes,
    ) -> Option<Filter> {
        let id = request.id.get();
        if takes == Takes::Json {
            let message = "subscriptions/listen is a stream: accept text/event-stream";
            self.message(conn, 406, None, rpc_error(id, INVALID_PARAMS, message));
            return None;
        }
        let listening = || self.mcp.posts.values().filter_map(|post| post.listening.as_ref());
        let own = listening().filter(|listening| listening.owner == who.name).count();
        if own >= LISTENERS_PER_OWNER || listening().count() >= LISTENERS_MAX {
            let fault = Fault::new(Code::Unavailable, format!("{own} subscriptions of yours are open already"));
            self.refuse_message(conn, Some(request.id), &fault);
            return None;
        }
        let filter = match Filter::of(request.params) {
            Ok(filter) => filter,
            Err(message) => {
                self.message(conn, 400, None, rpc_error(id, INVALID_PARAMS, &message));
                return None;
            }
        };
        match self.mcp.check_subscribed(&who.name, filter.uris.iter().map(String::len).sum()) {
            Ok(()) => Some(filter),
            Err(fault) => {
                self.refuse_message(conn, Some(request.id), &fault);
                None
            }
        }
    }

    /// `uris`: by the main peers that have them. Gives the servers that are listened to, each with what nobody wanted before.
    pub fn listen_stateless(
        &mut self,
        conn: ConnId,
        who: &Principal,
        id: Json<'_>,
        (at, filter): (McpEndpoint, &Filter),
        uris: BTreeSet<(PeerId, String)>,
        peers: &Peers,
    ) -> BTreeMap<ServerId, Vec<String>> {
        let post = self.open_post(Some(conn), None, true, 1);
        self.open_stream(post);
        let ack = filter.acknowledged(id.get());
        let mut new: BTreeMap<ServerId, Vec<String>> =
            at.server().into_iter().map(|server| (server, Vec::new())).collect();
        for (peer, uri) in &uris {
            let of_it = new.entry(peers.known[peer].server).or_default();
            of_it.extend(Some(uri.clone()).filter(|uri| !self.mcp.is_wanted(*peer, uri)));
        }
        self.mcp.posts.get_mut(&post).expect("just opened").listening = Some(Listening {
            at,
            owner: Arc::clone(&who.name),
            sees: who.limits.clone(),
            id: id.kept(),
            tools: filter.tools,
            prompts: filter.prompts,
            resources: filter.resources,
            uris,
        });
        self.emit(post, jsonrpc::message("notifications/subscriptions/acknowledged", Some(&ack)));
        new
    }
}

/// The result as a client of the newer version expects it.
pub(in crate::core) fn stateless_result(forwarded: &ForwardedRequest, call: CallId, result: Json<'_>) -> Vec<u8> {
    let text = result.get();
    if forwarded.era == Era::Stateless || !text.starts_with('{') {
        return text.as_bytes().to_vec();
    }
    log::trace!("call={call} is answered in the other era");
    match forwarded.kind {
        RequestKind::Cacheable => cacheable(text),
        RequestKind::ReadResource => with_hints(text, r#","ttlMs":0,"cacheScope":"private""#),
        RequestKind::Plain | RequestKind::Subscribe(_) | RequestKind::Unsubscribe(_) => with_hints(text, ""),
    }
}

/// An object, as the newer version has a list.
pub(in crate::core) fn cacheable(text: &str) -> Vec<u8> {
    with_hints(text, &format!(r#","ttlMs":{LIST_TTL_MS},"cacheScope":"private""#))
}

fn with_hints(text: &str, hints: &str) -> Vec<u8> {
    let inner = text.get(1..).unwrap_or("}").trim_ascii_start();
    let comma = if inner.starts_with('}') { "" } else { "," };
    format!(r#"{{"resultType":"complete"{hints}{comma}{inner}"#).into_bytes()
}

impl Mcp {
    /// The daemon's own subscription at a server without sessions, for all who listen to it. It is no call: nothing
    /// waits for its end, and it takes nobody's place. `at`: the peer under which they have subscribed.
    pub fn listen_to(&self, id: PeerId, at: PeerId, peers: &mut Peers, effects: &mut Effects) {
        let Some(instance) = peers.known.get(&id).and_then(|peer| peer.life.ready_instance()) else { return };
        let uris = json!(self.wanted_uris(at));
        let call = peers.calls.mint().0;
        let notifications = format!(
            r#"{{"toolsListChanged":true,"promptsListChanged":true,"resourcesListChanged":true,"resourceSubscriptions":{uris}}}"#
        );
        let params = format!(r#"{{"_meta":{},"notifications":{notifications}}}"#, own_meta());
        effects.write(instance, jsonrpc::own_request(call, "subscriptions/listen", &params));
        let peer = peers.known.get_mut(&id).expect("just seen");
        if let Some(before) = peer.listen.replace(call) {
            effects.write(instance, jsonrpc::cancelled(before, "another subscription has taken its place"));
        }
    }
}

/// The daemon as a client without a session.
pub(in crate::core) fn own_meta() -> String {
    era_meta("{}", None)
}

/// The daemon in the name of a client that can do this, and wants log messages from that level on.
pub(in crate::core) fn era_meta(capabilities: &str, level: Option<&str>) -> String {
    let level = level.map_or(String::new(), |level| format!(r#","io.modelcontextprotocol/logLevel":"{level}""#));
    format!(
        r#"{{"io.modelcontextprotocol/protocolVersion":"{STATELESS}","io.modelcontextprotocol/clientCapabilities":{capabilities},"io.modelcontextprotocol/clientInfo":{{"name":"stdiod","version":"{}"}}{level}}}"#,
        env!("CARGO_PKG_VERSION")
    )
}

impl Advertised {
    pub fn discover_result(&self) -> String {
        let instructions =
            self.instructions.as_ref().map_or(String::new(), |text| format!(r#","instructions":{text}"#));
        format!(
            r#"{{"resultType":"complete","supportedVersions":["{STATELESS}"],"capabilities":{}{instructions},"ttlMs":{LIST_TTL_MS},"cacheScope":"private","_meta":{{"io.modelcontextprotocol/serverInfo":{}}}}}"#,
            self.capabilities, self.server_info
        )
    }
}
