//! MCP sessions and the requests under way in them. Owns what each client declared, set and subscribed to, and where
//! its answers go; never decides what a message means. Invariant: a forwarded request belongs to one post, and a post has one
//! connection or, once its stream has event ids, may wait for another.

use crate::core::mcp::endpoint::McpEndpoint;
use crate::core::mcp::event_log::EventLog;
use crate::core::projects::records::CallDraft;
use crate::ids::{CallId, ConnId, IdMap, InstanceId, PeerId, PostId, ServerId, SessionId};
use crate::model::fault::{Fault, Outcome};
use crate::model::principal::Limits;
use crate::model::protocol::{Level, Version};
use crate::wire::json::{Json, JsonBuf};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// What a client said it can be asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abilities {
    pub sampling: bool,
    pub sampling_tools: bool,
    pub elicitation: bool,
    pub elicitation_url: bool,
    pub roots: bool,
}

impl Abilities {
    /// From a `capabilities` object; what cannot be read is not declared.
    pub fn of(capabilities: Json<'_>) -> Abilities {
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Wire<'a> {
            #[serde(borrow)]
            sampling: Option<Json<'a>>,
            #[serde(borrow)]
            elicitation: Option<Json<'a>>,
            #[serde(borrow)]
            roots: Option<Json<'a>>,
        }
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Parts<'a> {
            #[serde(borrow)]
            tools: Option<Json<'a>>,
            #[serde(borrow)]
            url: Option<Json<'a>>,
        }
        let object = |raw: &Option<Json<'_>>| raw.is_some_and(|raw| raw.get().starts_with('{'));
        let wire: Wire<'_> = serde_json::from_str(capabilities.get()).unwrap_or_default();
        let parts = |raw: Option<Json<'_>>| -> (bool, bool) {
            let parts: Parts<'_> = raw.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default();
            (parts.tools.is_some(), parts.url.is_some())
        };
        Abilities {
            sampling: object(&wire.sampling),
            sampling_tools: parts(wire.sampling).0,
            elicitation: object(&wire.elicitation),
            elicitation_url: parts(wire.elicitation).1,
            roots: object(&wire.roots),
        }
    }

    /// As a `capabilities` object.
    pub fn declared(&self) -> String {
        let mut parts = Vec::new();
        if self.sampling {
            parts.push(if self.sampling_tools { r#""sampling":{"tools":{}}"# } else { r#""sampling":{}"# });
        }
        if self.elicitation {
            let both = r#""elicitation":{"form":{},"url":{}}"#;
            parts.push(if self.elicitation_url { both } else { r#""elicitation":{"form":{}}"# });
        }
        if self.roots {
            parts.push(r#""roots":{}"#);
        }
        format!("{{{}}}", parts.join(","))
    }

    /// May this client be asked that? `params` decide where a method has two forms.
    pub fn cover(&self, method: &str, params: Option<Json<'_>>) -> bool {
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Form<'a> {
            mode: Option<String>,
            #[serde(borrow)]
            tools: Option<Json<'a>>,
        }
        let form = || -> Form<'_> { params.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default() };
        match method {
            "sampling/createMessage" => self.sampling && (self.sampling_tools || form().tools.is_none()),
            "elicitation/create" => self.elicitation && (self.elicitation_url || form().mode.as_deref() != Some("url")),
            "roots/list" => self.roots,
            _ => false,
        }
    }
}

/// Whose post it is when a client was asked for input by a result, and has not come back with it.
pub const NOBODY: PostId = PostId(0);

#[derive(Serialize, Deserialize)]
pub struct Session {
    pub id: SessionId,
    /// Where it was opened.
    pub endpoint: McpEndpoint,
    /// Who serves it: the main peer of the server of its endpoint, or one of its own.
    pub peer: Option<PeerId>,
    /// By server: the peer of it that is this session's alone.
    pub private: BTreeMap<ServerId, PeerId>,
    /// Whoever opened it; nobody else is in it.
    pub owner: Arc<str>,
    /// What its owner may see.
    pub sees: Limits,
    pub version: Version,
    pub abilities: Abilities,
    pub level: Option<Level>,
    /// Resources by the peer that has them.
    pub subscriptions: BTreeSet<(PeerId, String)>,
    pub log: EventLog,
    /// The open stream of what no request asked for.
    pub get_stream: Option<ConnId>,
    /// The last event of that stream that some connection was given.
    pub heard: u64,
    /// Streams of requests that are not over, and whose post each is.
    pub streams: BTreeMap<u32, PostId>,
    pub streams_minted: u32,
    pub calls: Vec<CallId>,
    pub used_ms: u64,
    /// Of the oldest version: everything goes over its one stream.
    pub old_stream: bool,
}

impl Session {
    pub fn is_busy(&self) -> bool {
        self.get_stream.is_some() || !self.streams.is_empty() || !self.calls.is_empty()
    }
}

/// One POST of a client that waits for answers.
#[derive(Serialize, Deserialize)]
pub struct PendingPost {
    /// None: its stream was lost, and may be resumed.
    pub conn: Option<ConnId>,
    pub session: Option<SessionId>,
    pub takes_stream: bool,
    /// Answers come over a stream from here on; without a session it has no number that matters.
    pub stream: Option<u32>,
    /// Answers that are still due.
    pub due: usize,
    pub calls: Vec<CallId>,
    pub listening: Option<Listening>,
}

/// An open `subscriptions/listen`.
#[derive(Serialize, Deserialize)]
pub struct Listening {
    pub at: McpEndpoint,
    pub owner: Arc<str>,
    pub sees: Limits,
    /// The client's request id, which names the subscription.
    pub id: JsonBuf,
    pub tools: bool,
    pub prompts: bool,
    pub resources: bool,
    /// Resources by the main peer of the server that has them.
    pub uris: BTreeSet<(PeerId, String)>,
}

/// One request of an MCP client that became a call.
#[derive(Serialize, Deserialize)]
pub struct ForwardedRequest {
    pub peer: PeerId,
    pub post: PostId,
    pub session: Option<SessionId>,
    /// The client's own id and progress token, as it wrote them.
    pub id: JsonBuf,
    pub token: Option<JsonBuf>,
    pub kind: RequestKind,
    pub abilities: Abilities,
    /// Log messages it wants, where no session says so.
    pub level: Option<Level>,
    pub era: Era,
    pub timeout_ms: u64,
    /// Who asked, for what is resumed without a session.
    pub owner: Arc<str>,
    /// What is sent again, where the server is of the newer era and its client is not.
    pub rounds: Option<Box<InputRounds>>,
    /// What is recorded of it, if it is a call of a project.
    pub record: Option<Box<CallDraft>>,
}

impl ForwardedRequest {
    /// Whatever became of the last round, an earlier one was sent.
    pub fn after_rounds(&self, fault: Fault) -> Fault {
        match self.rounds.as_ref().is_some_and(|rounds| rounds.count > 0) {
            true => fault.outcome(Outcome::SentUnknown),
            false => fault,
        }
    }
}

/// A request that may go out in rounds, each with more input.
#[derive(Debug, Serialize, Deserialize)]
pub struct InputRounds {
    pub method: String,
    pub params: Option<JsonBuf>,
    pub count: u32,
    /// The server's own state, as it wrote it.
    pub state: Option<JsonBuf>,
    pub answers: BTreeMap<String, Option<JsonBuf>>,
}

impl InputRounds {
    pub fn kept_bytes(&self) -> usize {
        // Each key twice: its question has it too.
        let keys = self.answers.keys().map(|key| 2 * key.len()).sum::<usize>();
        let answers = self.answers.values().flatten().map(|raw| raw.get().len()).sum::<usize>();
        let kept = [&self.params, &self.state].into_iter().flatten().map(|raw| raw.get().len()).sum::<usize>();
        keys + answers + kept
    }

    pub fn first(method: &str, params: Option<Json<'_>>) -> InputRounds {
        let params = params.map(Json::kept);
        InputRounds { method: method.to_string(), params, count: 0, state: None, answers: BTreeMap::new() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RequestKind {
    Plain,
    Subscribe(String),
    Unsubscribe(String),
    /// Results of these may be cached by clients; they say for how long.
    Cacheable,
    ReadResource,
}

/// Which of the two dialects the client speaks, and the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Era {
    /// The same: nothing is translated.
    Same,
    /// A client without sessions and a server that knows only those.
    StatelessOverSessions,
    /// Both without sessions.
    Stateless,
    /// A client with a session and a server that knows none.
    SessionOverStateless,
}

/// A question that a server asked in mid-call and that a client has to answer.
#[derive(Serialize, Deserialize)]
pub struct Question {
    pub peer: PeerId,
    pub instance: InstanceId,
    /// The server's own id for it.
    pub id: JsonBuf,
    /// It was no request but a result that asks for input under this key: the answer goes out with the next round.
    pub input: Option<String>,
    pub method: String,
    pub params: Option<JsonBuf>,
    pub call: Option<CallId>,
    pub session: Option<SessionId>,
    /// The server's own, under which it wants to hear of progress.
    pub token: Option<JsonBuf>,
}

#[derive(Default, Serialize, Deserialize)]
pub struct Sessions {
    table: IdMap<SessionId, Session>,
}

impl Sessions {
    pub fn insert(&mut self, session: Session) {
        self.table.insert(session.id, session);
    }

    pub fn get(&self, id: SessionId) -> Option<&Session> {
        self.table.get(&id)
    }

    pub fn get_mut(&mut self, id: SessionId) -> Option<&mut Session> {
        self.table.get_mut(&id)
    }

    pub fn remove(&mut self, id: SessionId) -> Option<Session> {
        self.table.remove(&id)
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Session> {
        self.table.values()
    }

    /// Those that were opened at the endpoint of a server.
    pub fn at_endpoint(&self, server: ServerId) -> Vec<SessionId> {
        self.sorted(|session| session.endpoint == McpEndpoint::Server(server))
    }

    pub fn of_peer(&self, peer: PeerId) -> Vec<SessionId> {
        self.sorted(|session| session.peer == Some(peer))
    }

    /// In a fixed order, so that a simulation can be replayed.
    pub fn sorted(&self, is: impl Fn(&Session) -> bool) -> Vec<SessionId> {
        let mut found: Vec<SessionId> = self.table.values().filter(|s| is(s)).map(|session| session.id).collect();
        found.sort();
        found
    }

    /// Of this owner's sessions that have nothing open and some of what is scarce, the one that was idle for longest; the
    /// one that asks is never it.
    pub fn idlest_of(
        &self,
        owner: &str,
        takes: impl Fn(&Session) -> usize,
        asking: Option<SessionId>,
    ) -> Option<SessionId> {
        let idle = self.table.values().filter(|session| !session.is_busy() && Some(session.id) != asking);
        let may_go = idle.filter(|session| takes(session) > 0 && *session.owner == *owner);
        may_go.min_by_key(|session| (session.used_ms, session.id)).map(|session| session.id)
    }

    /// Of those with nothing open, one of whoever has the most of what is scarce, and of these the one that was idle for
    /// longest: nobody loses a session to a client that takes ever more. The session that asks is never the one, nor is
    /// any of somebody who has less than its owner.
    pub fn idlest(&self, takes: impl Fn(&Session) -> usize, asking: Option<SessionId>) -> Option<SessionId> {
        let mut owned: HashMap<&str, usize> = HashMap::new();
        self.table.values().for_each(|session| *owned.entry(&session.owner).or_default() += takes(session));
        let least = asking.and_then(|id| self.get(id)).map_or(0, |session| owned[&*session.owner]);
        let idle = self.table.values().filter(|session| !session.is_busy() && Some(session.id) != asking);
        let may_go = idle.filter(|session| takes(session) > 0 && owned[&*session.owner] >= least);
        let first = |session: &&Session| (Reverse(owned[&*session.owner]), session.used_ms, session.id);
        may_go.min_by_key(first).map(|session| session.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Json<'_> {
        Json::of(text).unwrap()
    }

    #[test]
    fn a_client_is_asked_only_what_it_declared() {
        for (capabilities, method, params, expected) in [
            ("{}", "roots/list", "{}", false),
            (r#"{"roots":{}}"#, "roots/list", "{}", true),
            (r#"{"roots":true}"#, "roots/list", "{}", false),
            (r#"{"sampling":{}}"#, "sampling/createMessage", "{}", true),
            (r#"{"sampling":{}}"#, "sampling/createMessage", r#"{"tools":[]}"#, false),
            (r#"{"sampling":{"tools":{}}}"#, "sampling/createMessage", r#"{"tools":[]}"#, true),
            (r#"{"elicitation":{}}"#, "elicitation/create", r#"{"mode":"form"}"#, true),
            (r#"{"elicitation":{}}"#, "elicitation/create", r#"{"mode":"url"}"#, false),
            (r#"{"elicitation":{"url":{}}}"#, "elicitation/create", r#"{"mode":"url"}"#, true),
            (r#"{"elicitation":{}}"#, "sampling/createMessage", "{}", false),
            (r#"{"anything":{}}"#, "anything/else", "{}", false),
            ("[]", "roots/list", "{}", false),
        ] {
            let abilities = Abilities::of(raw(capabilities));
            assert_eq!(Abilities::of(raw(&abilities.declared())), abilities, "{capabilities}");
            assert_eq!(abilities.cover(method, Some(raw(params))), expected, "{capabilities} {method} {params}");
        }
    }
}
