//! What MCP clients see: sessions, requests, streams, questions, subscriptions, and the endpoints that
//! offer several servers at once.

pub mod admission;
pub mod aggregate;
pub mod endpoint;
pub mod era;
pub mod event_log;
#[cfg(debug_assertions)]
mod invariants;
pub mod joint;
pub mod list_changes;
pub mod notifications;
pub mod old_stream;
pub mod posts;
pub mod preferences;
pub mod private;
pub mod questions;
pub mod responses;
pub mod sessions;
pub mod wording;

use crate::core::entropy::Seal;
use crate::core::mcp::admission::Greeting;
use crate::core::mcp::endpoint::McpEndpoint;
use crate::core::mcp::era::suspended::KeptAnswers;
use crate::core::mcp::list_changes::JointNews;
use crate::core::mcp::sessions::{ForwardedRequest, PendingPost, Question, Session, Sessions};
use crate::ids::{CallId, ConnId, IdMap, InstanceId, PostId, SessionId};
use crate::model::external::ProjectId;
use crate::wire::json::Json;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

#[derive(Serialize, Deserialize)]
pub(in crate::core) struct Mcp {
    sessions: Sessions,
    posts: IdMap<PostId, PendingPost>,
    posts_minted: u64,
    forwarded: IdMap<CallId, ForwardedRequest>,
    /// By the id under which the client was asked.
    questions: IdMap<u64, Question>,
    /// Those who wait to be introduced to a server.
    greetings: IdMap<ConnId, Greeting>,
    kept: KeptAnswers,
    joint_news: JointNews,
    seal: Seal,
}

impl Mcp {
    pub fn new(seal: Seal) -> Mcp {
        Mcp {
            sessions: Sessions::default(),
            posts: IdMap::default(),
            posts_minted: 0,
            forwarded: IdMap::default(),
            questions: IdMap::default(),
            greetings: IdMap::default(),
            kept: KeptAnswers::default(),
            joint_news: JointNews::default(),
            seal,
        }
    }

    /// What such instances have asked and nobody has answered.
    pub fn unanswered(&self, are: impl Fn(InstanceId) -> bool) -> usize {
        self.questions.values().filter(|question| are(question.instance)).count()
    }

    /// Whose call it is, if it is an MCP client's with a session.
    pub fn session_of_call(&self, call: CallId) -> Option<SessionId> {
        self.forwarded.get(&call).and_then(|forwarded| forwarded.session)
    }

    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    pub fn session(&self, id: SessionId) -> Option<&Session> {
        self.sessions.get(id)
    }

    /// Does a client still wait for this?
    pub fn is_open(&self, post: PostId) -> bool {
        self.posts.contains_key(&post)
    }

    /// The same, and has it no stream yet?
    pub fn is_plain(&self, post: PostId) -> bool {
        self.posts.get(&post).is_some_and(|post| post.stream.is_none())
    }

    /// The call that a session's request became, and whose answer it is.
    pub fn call_of(&self, session: SessionId, id: Json<'_>) -> Option<(CallId, PostId)> {
        let mut calls = self.session(session)?.calls.iter().filter_map(|call| Some((call, self.forwarded.get(call)?)));
        calls.find(|(_, forwarded)| forwarded.id.get() == id.get()).map(|(call, forwarded)| (*call, forwarded.post))
    }

    /// Its client has left before it was introduced.
    pub fn forget_greeting(&mut self, conn: ConnId) {
        self.greetings.remove(&conn);
    }

    /// Whose project records this call, if it is one.
    pub fn recorded_at(&self, session: SessionId, method: &str) -> Option<(ProjectId, Arc<str>)> {
        let session = self.sessions.get(session).filter(|_| method == "tools/call")?;
        match &session.endpoint {
            McpEndpoint::Project(project) => Some((project.clone(), Arc::clone(&session.owner))),
            McpEndpoint::All | McpEndpoint::Server(_) => None,
        }
    }

    /// Sessions and requests: as many as are looked at to find those whom something concerns.
    pub fn everybody(&self) -> usize {
        self.sessions.len() + self.posts.len()
    }
}
