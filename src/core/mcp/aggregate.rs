//! Requests at the endpoints that offer several servers at once: all, or those of a project. A list is put together from what each
//! server's part of it was made into when it came (`peers/listings.rs`), and any other request goes to the server that its name
//! begins with (`joint.rs`). Never waits for a server to make a list, so one that is dead, hung or large costs the others nothing.

use crate::core::Core;
use crate::core::mcp::endpoint::McpEndpoint;
use crate::core::mcp::era::stateless::OwnedRequest;
use crate::core::mcp::joint::own_advertised;
use crate::core::mcp::sessions::RequestKind;
use crate::core::mcp::wording::{INVALID_PARAMS, fault_message, rpc_error, stateless_status};
use crate::core::peers::listings::Listing;
use crate::core::projects::records::{CallDraft, CallEnd};
use crate::core::projects::waits::{Awaited, WaitingRequest};
use crate::ids::{PostId, SessionId};
use crate::limits::{LIST_PAGE_MAX, NAME_MAX, STREAM_BACKLOG_MAX};
use crate::model::fault::{Code, Fault};
use crate::model::principal::Limits;
use crate::wire::json::Json;
use crate::wire::jsonrpc;
use serde_json::json;

/// May a request still wait for links to come up?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::core) enum Patience {
    Left,
    Over,
}

impl Core {
    pub(in crate::core) fn aggregate_request(
        &mut self,
        post: PostId,
        session: SessionId,
        id: Json<'_>,
        method: &str,
        params: Option<Json<'_>>,
        patience: Patience,
    ) {
        let Some(known) = self.mcp.sessions.get(session) else { return };
        let (at, sees) = (known.endpoint.clone(), known.sees.clone());
        let waiting = || WaitingRequest::of_session(session, id, method, params);
        if let Some(list) = Listing::ALL.into_iter().find(|list| list.method() == method) {
            if patience == Patience::Left && self.begin_links(&at, list, params) {
                return self.wait_for_links(post, &at, Awaited::List(list), waiting());
            }
            return self.finish_list(post, id, list, (&at, &sees), params, "");
        }
        let (server, params) = match self.offers().addressed(method, params, &at, &sees) {
            Ok(found) => found,
            Err((code, message)) => {
                let draft = self.draft_of_session(session, method, params);
                self.record_unaddressed(draft, &message);
                return self.replies().finish(post, None, 200, rpc_error(id.get(), code, &message));
            }
        };
        if patience == Patience::Left && self.begin_link(server) {
            return self.wait_for_links(post, &at, Awaited::Link(server), waiting());
        }
        let peer = match self.serving(session, server) {
            Ok(peer) => peer,
            Err(fault) => return self.replies().finish(post, None, 200, fault_message(id.get(), &fault)),
        };
        match method {
            "resources/subscribe" | "resources/unsubscribe" => {
                self.subscription(post, session, peer, id, method, Some(params.as_json()));
            }
            _ => self.forward(post, session, peer, id, method, Some(params.as_json()), RequestKind::Plain),
        }
    }

    /// As above, of a client without a session.
    pub(in crate::core) fn aggregate_stateless(
        &mut self,
        post: PostId,
        at: &McpEndpoint,
        sees: &Limits,
        request: OwnedRequest,
        patience: Patience,
    ) {
        let (id, params) = (request.id.as_json(), request.params.as_json());
        if request.method == "server/discover" {
            let result = own_advertised().discover_result();
            return self.replies().finish(post, None, 200, jsonrpc::result(id.get(), result.as_bytes()));
        }
        if let Some(list) = Listing::ALL.into_iter().find(|list| list.method() == request.method) {
            if patience == Patience::Left && self.begin_links(at, list, Some(params)) {
                let waiting = WaitingRequest::Stateless { sees: sees.clone(), request };
                return self.wait_for_links(post, at, Awaited::List(list), waiting);
            }
            let hints = r#""resultType":"complete","ttlMs":0,"cacheScope":"private","#;
            return self.finish_list(post, id, list, (at, sees), Some(params), hints);
        }
        let (server, params) = match self.offers().addressed(&request.method, Some(params), at, sees) {
            Ok(found) => found,
            Err((code, why)) => {
                let message = rpc_error(id.get(), code, &why);
                if let (McpEndpoint::Project(project), "tools/call") = (at, &*request.method) {
                    let draft = self.draft_params(project, &request.owner, Some(params));
                    self.record_unaddressed(draft.map(Box::new), &why);
                }
                return self.replies().finish(post, None, stateless_status(code), message);
            }
        };
        if patience == Patience::Left && self.begin_link(server) {
            let waiting = WaitingRequest::Stateless { sees: sees.clone(), request };
            return self.wait_for_links(post, at, Awaited::Link(server), waiting);
        }
        let project = match at {
            McpEndpoint::Project(project) => Some(project.clone()),
            McpEndpoint::All | McpEndpoint::Server(_) => None,
        };
        self.serve_stateless(server, post, OwnedRequest { params, project, ..request });
    }

    /// No server of the project has it.
    fn record_unaddressed(&mut self, draft: Option<Box<CallDraft>>, why: &str) {
        if let Some(draft) = draft {
            self.record_call(*draft, None, CallEnd::Fault(&Fault::new(Code::ToolNotFound, why)));
        }
    }

    /// A page of all that this client may see, from its cursor on. A stream has smaller ones: there they are copied.
    fn finish_list(
        &mut self,
        post: PostId,
        id: Json<'_>,
        list: Listing,
        offered: (&McpEndpoint, &Limits),
        params: Option<Json<'_>>,
        hints: &str,
    ) {
        let after = match params.map_or(Ok(None), cursor) {
            Ok(after) => after,
            Err(message) => {
                return self.replies().finish(post, None, 200, rpc_error(id.get(), INVALID_PARAMS, &message));
            }
        };
        let most = if self.replies().is_streamed(post) { STREAM_BACKLOG_MAX } else { LIST_PAGE_MAX };
        let (items, last) = self.offers().joint_page(list, offered, after.as_deref(), most);
        let next = last.map_or(String::new(), |last| format!(r#","nextCursor":{}"#, json!(last)));
        let before = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{{hints}"{}":["#, id.get(), list.keys().0);
        self.replies().finish_shared(post, before, items, format!("]{next}}}}}"));
    }
}

/// Where the next page begins: behind the server that the last one ended with.
fn cursor(params: Json<'_>) -> Result<Option<String>, String> {
    match params.member("cursor") {
        None => Ok(None),
        Some(raw) if raw.get() == "null" => Ok(None),
        Some(raw) => match raw.text().filter(|text| text.len() <= NAME_MAX) {
            Some(text) => Ok(Some(text.into_owned())),
            None => Err("cursor: is none of this endpoint's; begin without one".to_string()),
        },
    }
}
