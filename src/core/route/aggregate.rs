//! Requests at the endpoints that offer several servers at once, all or those of a project, on their way to the server that their
//! name begins with, once its link is up. Which that is is known to `mcp/joint.rs`.

use crate::core::Core;
use crate::core::mcp::aggregate::Patience;
use crate::core::mcp::endpoint::{McpEndpoint, Offers};
use crate::core::mcp::era::stateless::OwnedRequest;
use crate::core::mcp::joint::own_advertised;
use crate::core::mcp::responses::Replies;
use crate::core::mcp::sessions::RequestKind;
use crate::core::mcp::wording::{fault_message, rpc_error, stateless_status};
use crate::core::peers::listings::Listing;
use crate::core::projects::records::{CallDraft, CallEnd};
use crate::core::projects::waits::{Awaited, WaitingRequest};
use crate::ids::{PostId, SessionId};
use crate::model::fault::{Code, Fault};
use crate::model::principal::Limits;
use crate::wire::json::Json;
use crate::wire::jsonrpc;

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
        let Some(known) = self.mcp.session(session) else { return };
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

    fn finish_list(
        &mut self,
        post: PostId,
        id: Json<'_>,
        list: Listing,
        offered: (&McpEndpoint, &Limits),
        params: Option<Json<'_>>,
        hints: &str,
    ) {
        let Core { mcp, clients, effects, servers, projects, peers, settings, .. } = self;
        let offers = Offers { servers, projects, peers, settings, now: effects.now };
        let page = |list, after: Option<&str>, most| offers.joint_page(list, offered, after, most);
        Replies { mcp, clients, effects }.finish_list(page, post, id, list, params, hints);
    }
}
