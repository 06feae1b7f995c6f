//! The endpoints that offer several servers at once: all, or those of a project. Items are named `<server><separator><name>`, a list is put together from what
//! each server's part of it was made into when it came (`listings.rs`), and a request goes to the server that its name begins
//! with. Owns that naming; never waits for a server to make a list, and never copies one, so one that is dead, hung or large
//! costs the others nothing.

use crate::core::Core;
use crate::core::mcp::endpoint::McpEndpoint;
use crate::core::mcp::era::stateless::OwnedRequest;
use crate::core::mcp::sessions::RequestKind;
use crate::core::mcp::wording::{INVALID_PARAMS, METHOD_NOT_FOUND, fault_message, rpc_error, stateless_status};
use crate::core::peers::listings::Listing;
use crate::core::peers::peer::Advertised;
use crate::core::projects::records::{CallDraft, CallEnd};
use crate::core::projects::waits::{Awaited, WaitingRequest};
use crate::core::servers::server::Server;
use crate::ids::{PostId, ServerId, SessionId};
use crate::limits::{LIST_PAGE_MAX, NAME_MAX, STREAM_BACKLOG_MAX};
use crate::model::fault::{Code, Fault};
use crate::model::principal::Limits;
use crate::wire::backlog::Shared;
use crate::wire::json::{Item, Json, JsonBuf};
use crate::wire::jsonrpc;
use serde_json::json;
use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

/// May a request still wait for links to come up?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::core) enum Patience {
    Left,
    Over,
}

impl Core {
    pub(in crate::core) fn own_advertised(&self) -> Advertised {
        Advertised {
            capabilities: concat!(
                r#"{"tools":{"listChanged":true},"prompts":{"listChanged":true},"#,
                r#""resources":{"listChanged":true,"subscribe":true},"completions":{},"logging":{}}"#
            )
            .to_string(),
            server_info: json!({ "name": "stdiod", "version": env!("CARGO_PKG_VERSION") }).to_string(),
            instructions: None,
        }
    }

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
        let (server, params) = match self.addressed(method, params, &at, &sees) {
            Ok(found) => found,
            Err((code, message)) => {
                let draft = self.draft_of_session(session, method, params);
                self.record_unaddressed(draft, &message);
                return self.finish(post, None, 200, rpc_error(id.get(), code, &message));
            }
        };
        if patience == Patience::Left && self.begin_link(server) {
            return self.wait_for_links(post, &at, Awaited::Link(server), waiting());
        }
        let peer = match self.serving(session, server) {
            Ok(peer) => peer,
            Err(fault) => return self.finish(post, None, 200, fault_message(id.get(), &fault)),
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
            let result = self.own_advertised().discover_result();
            return self.finish(post, None, 200, jsonrpc::result(id.get(), result.as_bytes()));
        }
        if let Some(list) = Listing::ALL.into_iter().find(|list| list.method() == request.method) {
            if patience == Patience::Left && self.begin_links(at, list, Some(params)) {
                let waiting = WaitingRequest::Stateless { sees: sees.clone(), request };
                return self.wait_for_links(post, at, Awaited::List(list), waiting);
            }
            let hints = r#""resultType":"complete","ttlMs":0,"cacheScope":"private","#;
            return self.finish_list(post, id, list, (at, sees), Some(params), hints);
        }
        let (server, params) = match self.addressed(&request.method, Some(params), at, sees) {
            Ok(found) => found,
            Err((code, why)) => {
                let message = rpc_error(id.get(), code, &why);
                if let (McpEndpoint::Project(project), "tools/call") = (at, &*request.method) {
                    let draft = self.draft_params(project, &request.owner, Some(params));
                    self.record_unaddressed(draft.map(Box::new), &why);
                }
                return self.finish(post, None, stateless_status(code), message);
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
            Err(message) => return self.finish(post, None, 200, rpc_error(id.get(), INVALID_PARAMS, &message)),
        };
        let most = if self.is_streamed(post) { STREAM_BACKLOG_MAX } else { LIST_PAGE_MAX };
        let (items, last) = self.joint_page(list, offered, after.as_deref(), most);
        let next = last.map_or(String::new(), |last| format!(r#","nextCursor":{}"#, json!(last)));
        let before = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{{hints}"{}":["#, id.get(), list.keys().0);
        self.finish_shared(post, before, items, format!("]{next}}}}}"));
    }

    /// What servers offer, one after the other by name, and the last of these if there are more.
    fn joint_page(
        &self,
        list: Listing,
        (at, sees): (&McpEndpoint, &Limits),
        after: Option<&str>,
        most: usize,
    ) -> (Vec<Shared>, Option<String>) {
        let (mut items, mut bytes, mut last) = (Vec::new(), 0, "");
        for server in self.visible(at, sees).into_iter().filter(|server| server.offered) {
            let name = &server.definition.name;
            let Some(joint) =
                self.peers.known[&server.main].list(list).joint.as_ref().filter(|joint| !joint.is_empty())
            else {
                continue;
            };
            if after.is_some_and(|after| name.as_str() <= after) {
                continue;
            }
            if !items.is_empty() && bytes + joint.len() > most {
                return (items, Some(last.to_string()));
            }
            // Each item has a comma before it, and only the first needs none.
            items.push(Shared { bytes: Arc::clone(joint), from: usize::from(items.is_empty()) });
            (bytes, last) = (bytes + joint.len(), name);
        }
        (items, None)
    }

    /// The server that a request is for, and its params with the name as that server knows it.
    fn addressed(
        &self,
        method: &str,
        params: Option<Json<'_>>,
        at: &McpEndpoint,
        sees: &Limits,
    ) -> Result<(ServerId, JsonBuf), (i64, String)> {
        let params = params.ok_or((INVALID_PARAMS, "params: are required".to_string()))?;
        let (holder, key) = match method {
            "tools/call" | "prompts/get" => (params, "name"),
            "resources/read" | "resources/subscribe" | "resources/unsubscribe" => (params, "uri"),
            "completion/complete" => {
                let reference = params.member("ref").ok_or((INVALID_PARAMS, "ref: is required".to_string()))?;
                let key = if reference.member("name").is_some() { "name" } else { "uri" };
                (reference, key)
            }
            _ => return Err((METHOD_NOT_FOUND, format!("Method not found: {method}"))),
        };
        let raw = holder.member(key);
        let text = raw.and_then(|raw| serde_json::from_str::<String>(raw.get()).ok());
        let (Some(raw), Some(text)) = (raw, text) else {
            return Err((INVALID_PARAMS, format!("{key}: expected a string")));
        };
        let (server, rest) = match key {
            "uri" => self.resource_at(&text, at, sees),
            _ => self.named(&text, &self.settings.separator, (at, sees)).ok_or_else(|| {
                let separator = &self.settings.separator;
                format!("{key}: no server here has {text}; names are <server>{separator}<name>")
            }),
        }
        .map_err(|message| (INVALID_PARAMS, message))?;
        let spliced = jsonrpc::spliced(params.get(), raw.get(), &json!(rest).to_string());
        match JsonBuf::of(spliced) {
            Ok(params) => Ok((server, params)),
            Err(_) => Err((INVALID_PARAMS, format!("{key}: expected a string"))),
        }
    }

    /// The server whose name a longer name begins with, and the rest of it.
    fn named(&self, text: &str, separator: &str, (at, sees): (&McpEndpoint, &Limits)) -> Option<(ServerId, String)> {
        let rest_of = |name: &str| text.strip_prefix(name)?.strip_prefix(separator).map(str::to_string);
        let visible = self.visible(at, sees).into_iter();
        let found = visible.filter_map(|server| Some((server, rest_of(&server.definition.name)?)));
        // The longest: with a separator that names may contain, one name can begin another.
        let (server, rest) = found.max_by_key(|(server, _)| server.definition.name.len())?;
        Some((server.id, rest))
    }

    /// The server that has a resource, and its own URI there. Tools hand out URIs as their server knows them, so one
    /// without a server's name is understood too, as long as a single server lists it.
    pub(in crate::core) fn resource_at(
        &self,
        text: &str,
        at: &McpEndpoint,
        sees: &Limits,
    ) -> Result<(ServerId, String), String> {
        let separator = &self.settings.separator;
        let named = self.named(text, JOINT_URI, (at, sees)).or_else(|| self.named(text, separator, (at, sees)));
        // Before any list: else a server could list what is another's. But one named `file` does not have all files.
        if let Some((server, rest)) = named.as_ref().filter(|(_, rest)| has_scheme(rest)) {
            return Ok((*server, rest.clone()));
        }
        let lists = |server: &&Server| self.peers.known[&server.main].resource_uris.contains(text);
        let having: Vec<&Server> = self.visible(at, sees).into_iter().filter(lists).collect();
        match (&having[..], named) {
            ([server], _) => Ok((server.id, text.to_string())),
            (_, Some(found)) => Ok(found),
            ([], None) => Err(format!("uri: no server here has {text}; resources are <server>{JOINT_URI}<uri>")),
            ([first, ..], None) => {
                let example = joint_uri(&first.definition.name, text);
                Err(format!("uri: {} servers here have {text}; say which, such as {example}", having.len()))
            }
        }
    }
}

/// Between a server's name and the URI of its resource. Not the separator of names, which may be configured: only with
/// this is the whole a URI again.
const JOINT_URI: &str = ":";

pub(in crate::core) fn joint_uri(server: &str, uri: &str) -> String {
    format!("{server}{JOINT_URI}{uri}")
}

/// Is this a whole URI, and not the rest of one?
fn has_scheme(text: &str) -> bool {
    text.split_once(':').is_some_and(|(scheme, _)| {
        scheme.starts_with(|first: char| first.is_ascii_alphabetic())
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
    })
}

/// What stands before a name where all servers are offered at once.
pub(in crate::core) fn joint_prefix(list: Listing, server: &str, separator: &str) -> String {
    match list {
        Listing::Tools | Listing::Prompts => format!("{server}{separator}"),
        Listing::Resources | Listing::Templates => joint_uri(server, ""),
    }
}

/// The names of tools, or the URIs of resources.
pub(in crate::core) fn names_of(items: &[Item<'_>]) -> HashSet<String> {
    items.iter().filter_map(|item| item.named?.text().map(Cow::into_owned)).collect()
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

/// Items under their longer names, each with a comma before it; everything else of them is as the server wrote it. One without a
/// name is left out.
pub(in crate::core) fn prefixed(items: &[Item<'_>], prefix: &str) -> Vec<u8> {
    let size = items.iter().map(|item| item.whole.get().len() + prefix.len() + 1).sum();
    let mut all = Vec::with_capacity(size);
    for item in items {
        let Some((raw, name)) = item.named.and_then(|raw| Some((raw.get(), raw.text()?))) else { continue };
        let whole = item.whole.get();
        let start = raw.as_ptr() as usize - whole.as_ptr() as usize;
        all.push(b',');
        all.extend_from_slice(&whole.as_bytes()[..start]);
        all.extend_from_slice(json!(format!("{prefix}{name}")).to_string().as_bytes());
        all.extend_from_slice(&whole.as_bytes()[start + raw.len()..]);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::json;

    #[test]
    fn items_get_their_longer_names_and_keep_every_other_byte() {
        let text = r#"{"tools":[{"x": {"name":1.0e2} , "name" : "a\u00e9\"b","y":[ 1 ]},{"name":7},{"name":"t"}, 3]}"#;
        let items = json::named_items(text.as_bytes(), "tools", "name", 9).unwrap();
        let expected = r#",{"x": {"name":1.0e2} , "name" : "time:aé\"b","y":[ 1 ]},{"name":"time:t"}"#;
        assert_eq!(String::from_utf8(prefixed(&items, "time:")).unwrap(), expected);
        assert_eq!(names_of(&items), HashSet::from(["aé\"b".to_string(), "t".to_string()]));
        assert_eq!(prefixed(&[], "x"), b"");
    }
}
