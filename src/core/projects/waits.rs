//! Links that are made when they are first used, and the requests of MCP clients that wait for them at the endpoint of a project
//! (`tools.rs` has those of REST clients). A list waits until it is known of each server what it offers or that it will not come
//! up; anything else waits for its own server. Invariant: each that waits is served, refused or forgotten once, and what it holds
//! is counted as its owner's.

use crate::core::Core;
use crate::core::effects::Timer;
use crate::core::hosting::lifecycle::Event;
use crate::core::links::external::LinkEvent;
use crate::core::mcp::aggregate::Patience;
use crate::core::mcp::endpoint::McpEndpoint;
use crate::core::mcp::era::stateless::OwnedRequest;
use crate::core::mcp::wording::fault_message;
use crate::core::peers::listings::Listing;
use crate::core::projects::records::CallEnd;
use crate::ids::{ConnId, PeerId, PostId, ServerId, SessionId};
use crate::limits::SESSION_CALLS_MAX;
use crate::model::external::{CallOutcome, ProjectId};
use crate::model::fault::{Code, Fault, Outcome};
use crate::model::principal::Limits;
use crate::shares::{Owner, Resource};
use crate::wire::json::{Json, JsonBuf};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::core) enum Awaited {
    /// Each server of the project has told this list, or will not.
    List(Listing),
    /// The link to this server is up, or will not be.
    Link(ServerId),
}

/// A request kept beyond its HTTP request.
#[derive(Serialize, Deserialize)]
pub(in crate::core) enum WaitingRequest {
    Session { session: SessionId, id: JsonBuf, method: String, params: Option<JsonBuf> },
    Stateless { sees: Limits, request: OwnedRequest },
}

impl WaitingRequest {
    pub fn of_session(session: SessionId, id: Json<'_>, method: &str, params: Option<Json<'_>>) -> WaitingRequest {
        let (id, method, params) = (id.kept(), method.to_string(), params.map(Json::kept));
        WaitingRequest::Session { session, id, method, params }
    }

    fn id(&self) -> Json<'_> {
        match self {
            WaitingRequest::Session { id, .. } => id.as_json(),
            WaitingRequest::Stateless { request, .. } => request.id.as_json(),
        }
    }

    fn kept_bytes(&self) -> usize {
        match self {
            WaitingRequest::Session { id, method, params, .. } => {
                id.get().len() + method.len() + params.as_ref().map_or(0, |params| params.get().len())
            }
            WaitingRequest::Stateless { request, .. } => request.id.get().len() + request.params.get().len(),
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(in crate::core) struct McpWait {
    project: ProjectId,
    awaited: Awaited,
    post: PostId,
    owner: Arc<str>,
    request: WaitingRequest,
}

impl Core {
    // --- links ------------------------------------------------------------------------------------------------------

    /// Somebody wants to use a server: if the link to it is made by that, it is. True: it is worth waiting for.
    pub(in crate::core) fn begin_link(&mut self, server: ServerId) -> bool {
        let Some(main) = self.servers.known.get(&server).map(|server| server.main) else { return false };
        if self.peers.known[&main].life.begins_with_use() {
            self.advance(main, Event::Link(LinkEvent::Use));
        }
        self.offers().is_coming(server)
    }

    /// The same for all servers of a project. True: one of them has not told its list yet, but may.
    pub(in crate::core) fn begin_links(&mut self, at: &McpEndpoint, list: Listing, params: Option<Json<'_>>) -> bool {
        let McpEndpoint::Project(project) = at else { return false };
        // Whoever asks for the next page has waited for the first.
        let is_next_page = params.and_then(|params| params.member("cursor")).is_some_and(|raw| raw.get() != "null");
        if is_next_page {
            return false;
        }
        let unused = |main: &PeerId| self.peers.known[main].life.begins_with_use();
        let unused: Vec<PeerId> =
            self.offers().members(project).iter().map(|server| server.main).filter(unused).collect();
        for main in unused {
            self.advance(main, Event::Link(LinkEvent::Use));
        }
        self.offers().members(project).into_iter().any(|server| self.offers().is_awaited(server, list))
    }

    /// A server has moved: those who wait for it in its project may have waited long enough.
    pub(in crate::core) fn follow_project(&mut self, server: ServerId) {
        if self.projects.waits.is_empty() && self.projects.mcp_waits.is_empty() {
            return;
        }
        if let Some(project) = self.offers().project_of(server).cloned() {
            self.follow_waits(&project);
        }
    }

    pub(in crate::core) fn follow_waits(&mut self, project: &ProjectId) {
        let of_it = self.projects.waits.iter().filter(|(_, wait)| wait.project == *project);
        for conn in of_it.map(|(conn, _)| *conn).collect::<Vec<ConnId>>() {
            self.follow_wait(conn);
        }
        let of_it = self.projects.mcp_waits.iter().filter(|(_, wait)| wait.project == *project);
        for number in of_it.map(|(number, _)| *number).collect::<Vec<u64>>() {
            let wait = self.projects.mcp_waits.get(&number);
            if wait.is_some_and(|wait| !self.offers().is_open(project, wait.awaited)) {
                self.links_awaited(number);
            }
        }
    }

    // --- requests that wait -----------------------------------------------------------------------------------------

    pub(in crate::core) fn wait_for_links(
        &mut self,
        post: PostId,
        at: &McpEndpoint,
        awaited: Awaited,
        request: WaitingRequest,
    ) {
        let McpEndpoint::Project(project) = at else { unreachable!("links are of projects") };
        let owner = match &request {
            WaitingRequest::Session { session, .. } => match self.mcp.session(*session) {
                Some(session) => Arc::clone(&session.owner),
                None => return,
            },
            WaitingRequest::Stateless { request, .. } => Arc::clone(&request.owner),
        };
        if let Err(fault) = self.check_wait(&owner, &request) {
            return self.replies().finish(post, None, 200, fault_message(request.id().get(), &fault));
        }
        let patience_ms = match awaited {
            Awaited::List(list) => {
                let members =
                    self.offers().members(project).into_iter().filter(|server| self.offers().is_awaited(server, list));
                members.map(|server| server.definition.startup_timeout_ms).max().unwrap_or(0)
            }
            Awaited::Link(server) => self.servers.known[&server].definition.request_timeout_ms,
        };
        self.projects.mcp_waits_minted += 1;
        let number = self.projects.mcp_waits_minted;
        let wait = McpWait { project: project.clone(), awaited, post, owner, request };
        self.projects.mcp_waits.insert(number, wait);
        self.effects.deadlines.set(Timer::ProjectWait(number), self.effects.now.mono_ms + patience_ms);
    }

    fn check_wait(&mut self, owner: &Arc<str>, request: &WaitingRequest) -> Result<(), Fault> {
        if let WaitingRequest::Session { session, .. } = request {
            let of_it =
                |wait: &&McpWait| matches!(&wait.request, WaitingRequest::Session { session: of, .. } if of == session);
            if self.projects.mcp_waits.values().filter(of_it).count() >= SESSION_CALLS_MAX {
                let message = format!("{SESSION_CALLS_MAX} requests of this session wait already");
                return Err(Fault::new(Code::QueueFull, message));
            }
        }
        let share = Owner::Principal(Arc::clone(owner));
        self.effects.shares.take(&share, Resource::Memory, request.kept_bytes()).map_err(|_| {
            let message = "your requests that wait are too large together";
            Fault::new(Code::QueueFull, message).outcome(Outcome::NotSent).retry_after_ms(1_000)
        })
    }

    fn take_mcp_wait(&mut self, number: u64) -> Option<McpWait> {
        let wait = self.projects.mcp_waits.remove(&number)?;
        self.effects.deadlines.cancel(Timer::ProjectWait(number));
        let share = Owner::Principal(Arc::clone(&wait.owner));
        self.effects.shares.give_back(&share, Resource::Memory, wait.request.kept_bytes());
        if !self.mcp.is_open(wait.post) {
            // Its client has left meanwhile.
            self.record_waited(&wait, wait.awaited, CallEnd::Left(CallOutcome::NotSent));
            return None;
        }
        Some(wait)
    }

    fn links_awaited(&mut self, number: u64) {
        let Some(wait) = self.take_mcp_wait(number) else { return };
        match wait.request {
            WaitingRequest::Session { session, id, method, params } => {
                let params = params.as_ref().map(JsonBuf::as_json);
                self.aggregate_request(wait.post, session, id.as_json(), &method, params, Patience::Over);
            }
            WaitingRequest::Stateless { sees, request } => {
                let at = McpEndpoint::Project(wait.project);
                self.aggregate_stateless(wait.post, &at, &sees, request, Patience::Over);
            }
        }
    }

    /// Its time is over. A list is what is known by then.
    pub(in crate::core) fn links_awaited_in_vain(&mut self, number: u64) {
        let Some(awaited) = self.projects.mcp_waits.get(&number).map(|wait| wait.awaited) else { return };
        match awaited {
            Awaited::List(_) => self.links_awaited(number),
            Awaited::Link(_) => {
                let Some(wait) = self.take_mcp_wait(number) else { return };
                let fault = Fault::new(Code::CallTimeout, "the deadline passed before the call could be sent");
                let fault = fault.outcome(Outcome::NotSent);
                self.record_waited(&wait, awaited, CallEnd::Fault(&fault));
                let message = fault_message(wait.request.id().get(), &fault);
                self.replies().finish(wait.post, None, 200, message);
            }
        }
    }

    /// A call that never got to its server is one all the same.
    fn record_waited(&mut self, wait: &McpWait, awaited: Awaited, end: CallEnd<'_>) {
        let Awaited::Link(server) = awaited else { return };
        let (method, params) = match &wait.request {
            WaitingRequest::Session { method, params, .. } => (method, params.as_ref()),
            WaitingRequest::Stateless { request, .. } => (&request.method, Some(&request.params)),
        };
        if method == "tools/call"
            && let Some(draft) = self.draft_params(&wait.project, &wait.owner, params.map(JsonBuf::as_json))
        {
            self.record_call(draft, Some(server), end);
        }
    }

    /// The client has cancelled one of its requests, which may be one that waits here.
    pub(in crate::core) fn cancel_waiting(&mut self, session: SessionId, request: Json<'_>) {
        let meant = |wait: &McpWait| match &wait.request {
            WaitingRequest::Session { session: of, id, .. } => *of == session && id.get() == request.get(),
            WaitingRequest::Stateless { .. } => false,
        };
        let number = self.projects.mcp_waits.iter().find(|(_, wait)| meant(wait)).map(|(number, _)| *number);
        let wait = number.and_then(|number| Some((self.projects.mcp_waits.get(&number)?.awaited, number)));
        if let Some((awaited, wait)) = wait.and_then(|(awaited, number)| Some((awaited, self.take_mcp_wait(number)?))) {
            self.record_waited(&wait, awaited, CallEnd::Left(CallOutcome::NotSent));
            self.replies().unanswered(wait.post, None);
        }
    }
}
