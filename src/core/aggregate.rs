//! The endpoint that offers all servers at once. Items are named `<server><separator><name>`, lists are joined from what is
//! cached, and a request goes to the server that its name begins with. Owns that naming; never waits for a server to
//! make a list, so one that is dead or hung costs the others nothing.

use crate::api::auth::Principal;
use crate::core::Core;
use crate::core::listings::{Listing, items};
use crate::core::server::{Face, Server};
use crate::core::sessions::ErrandKind;
use crate::core::wording::{INVALID_PARAMS, METHOD_NOT_FOUND, fault_message, rpc_error, stateless_status};
use crate::ids::{ServerId, SessionId, VoiceId};
use crate::wire::json::{Json, JsonBuf};
use crate::wire::jsonrpc;
use serde::Deserialize;
use serde_json::json;
use std::collections::{HashMap, HashSet};

impl Core {
    pub(super) fn own_face(&self) -> Face {
        Face {
            capabilities: concat!(
                r#"{"tools":{"listChanged":true},"prompts":{"listChanged":true},"#,
                r#""resources":{"listChanged":true,"subscribe":true},"completions":{},"logging":{}}"#
            )
            .to_string(),
            server_info: json!({ "name": "stdiod", "version": env!("CARGO_PKG_VERSION") }).to_string(),
            instructions: None,
        }
    }

    pub(super) fn aggregate_request(
        &mut self,
        voice: VoiceId,
        session: SessionId,
        id: Json<'_>,
        method: &str,
        params: Option<Json<'_>>,
    ) {
        let Some(sees) = self.sessions.get(session).map(|session| session.sees.clone()) else { return };
        if let Some(list) = Listing::ALL.into_iter().find(|list| list.method() == method) {
            let result = self.joined_list(list, &sees);
            return self.finish(voice, None, 200, jsonrpc::result(id.get(), format!("{{{result}}}").as_bytes()));
        }
        let (server, params) = match self.addressed(method, params, &sees) {
            Ok(found) => found,
            Err((code, message)) => return self.finish(voice, None, 200, rpc_error(id.get(), code, &message)),
        };
        let server = match self.serving(session, server) {
            Ok(server) => server,
            Err(fault) => return self.finish(voice, None, 200, fault_message(id.get(), &fault)),
        };
        match method {
            "resources/subscribe" | "resources/unsubscribe" => {
                self.subscription(voice, session, server, id, method, Some(params.as_json()));
            }
            _ => self.forward(voice, session, server, id, method, Some(params.as_json()), ErrandKind::Plain),
        }
    }

    /// For a client without a session. `Ok`: the server to ask, and the params for it.
    pub(super) fn aggregate_stateless(
        &mut self,
        voice: VoiceId,
        who: &Principal,
        id: Json<'_>,
        method: &str,
        params: Json<'_>,
    ) -> Option<(ServerId, JsonBuf)> {
        if method == "server/discover" {
            let result = self.own_face().discover_result();
            self.finish(voice, None, 200, jsonrpc::result(id.get(), result.as_bytes()));
            return None;
        }
        if let Some(list) = Listing::ALL.into_iter().find(|list| list.method() == method) {
            let result = self.joined_list(list, &who.servers);
            let result = format!(r#"{{"resultType":"complete","ttlMs":0,"cacheScope":"private",{result}}}"#);
            self.finish(voice, None, 200, jsonrpc::result(id.get(), result.as_bytes()));
            return None;
        }
        match self.addressed(method, Some(params), &who.servers) {
            Ok(found) => Some(found),
            Err((code, message)) => {
                let status = stateless_status(code);
                self.finish(voice, None, status, rpc_error(id.get(), code, &message));
                None
            }
        }
    }

    /// The member of a list result that holds everything this client may see.
    fn joined_list(&self, list: Listing, sees: &[String]) -> String {
        let (key, name_key) = list.keys();
        let mut all = Vec::new();
        for server in self.visible(sees) {
            let prefix = match list {
                Listing::Tools | Listing::Prompts => format!("{}{}", server.definition.name, self.settings.separator),
                Listing::Resources | Listing::Templates => joint_uri(&server.definition.name, ""),
            };
            let text = server.list(list).text.as_deref().unwrap_or_default();
            all.extend(items(list, text).into_iter().filter_map(|item| prefixed(item, name_key, &prefix)));
        }
        format!(r#""{key}":[{}]"#, all.join(","))
    }

    /// By name. A server that is stopped offers nothing; one that is coming back offers what it did before.
    fn visible(&self, sees: &[String]) -> Vec<&Server> {
        let seen = |name: &String| sees.is_empty() || sees.contains(name);
        let offers = |server: &&Server| {
            server.parent().is_none() && server.removing.is_none() && server.desired_up && seen(&server.definition.name)
        };
        let mut found: Vec<&Server> = self.servers.values().filter(offers).collect();
        found.sort_by(|a, b| a.definition.name.cmp(&b.definition.name));
        found
    }

    /// The server that a request is for, and its params with the name as that server knows it.
    fn addressed(
        &self,
        method: &str,
        params: Option<Json<'_>>,
        sees: &[String],
    ) -> Result<(ServerId, JsonBuf), (i64, String)> {
        let params = params.ok_or((INVALID_PARAMS, "params: are required".to_string()))?;
        let (holder, key) = match method {
            "tools/call" | "prompts/get" => (params, "name"),
            "resources/read" | "resources/subscribe" | "resources/unsubscribe" => (params, "uri"),
            "completion/complete" => {
                let reference = member(params, "ref").ok_or((INVALID_PARAMS, "ref: is required".to_string()))?;
                let key = if member(reference, "name").is_some() { "name" } else { "uri" };
                (reference, key)
            }
            _ => return Err((METHOD_NOT_FOUND, format!("Method not found: {method}"))),
        };
        let raw = member(holder, key);
        let text = raw.and_then(|raw| serde_json::from_str::<String>(raw.get()).ok());
        let (Some(raw), Some(text)) = (raw, text) else {
            return Err((INVALID_PARAMS, format!("{key}: expected a string")));
        };
        let (server, rest) = match key {
            "uri" => self.resource_at(&text, sees),
            _ => self.named(&text, &self.settings.separator, sees).ok_or_else(|| {
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
    fn named(&self, text: &str, separator: &str, sees: &[String]) -> Option<(ServerId, String)> {
        let rest_of = |name: &str| text.strip_prefix(name)?.strip_prefix(separator).map(str::to_string);
        let visible = self.visible(sees).into_iter();
        let found = visible.filter_map(|server| Some((server, rest_of(&server.definition.name)?)));
        // The longest: with a separator that names may contain, one name can begin another.
        let (server, rest) = found.max_by_key(|(server, _)| server.definition.name.len())?;
        Some((server.id, rest))
    }

    /// The server that has a resource, and its own URI there. Tools hand out URIs as their server knows them, so one
    /// without a server's name is understood too, as long as a single server lists it.
    pub(super) fn resource_at(&self, text: &str, sees: &[String]) -> Result<(ServerId, String), String> {
        let separator = &self.settings.separator;
        let named = self.named(text, JOINT_URI, sees).or_else(|| self.named(text, separator, sees));
        // Before any list: else a server could list what is another's. But one named `file` does not have all files.
        if let Some((server, rest)) = named.as_ref().filter(|(_, rest)| has_scheme(rest)) {
            return Ok((*server, rest.clone()));
        }
        let lists = |server: &&Server| server.resource_uris.contains(text);
        let having: Vec<&Server> = self.visible(sees).into_iter().filter(lists).collect();
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

pub(super) fn joint_uri(server: &str, uri: &str) -> String {
    format!("{server}{JOINT_URI}{uri}")
}

/// Is this a whole URI, and not the rest of one?
fn has_scheme(text: &str) -> bool {
    text.split_once(':').is_some_and(|(scheme, _)| {
        scheme.starts_with(|first: char| first.is_ascii_alphabetic())
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
    })
}

/// The URIs of a list of resources.
pub(super) fn resource_uris(listed: &[u8]) -> HashSet<String> {
    let uri = |item: Json<'_>| serde_json::from_str(member(item, "uri")?.get()).ok();
    items(Listing::Resources, listed).into_iter().filter_map(uri).collect()
}

fn member<'a>(object: Json<'a>, key: &str) -> Option<Json<'a>> {
    #[derive(Deserialize)]
    struct Members<'a>(#[serde(borrow)] HashMap<String, Json<'a>>);
    serde_json::from_str::<Members<'a>>(object.get()).ok()?.0.get(key).copied()
}

/// An item under its longer name; everything else of it is as the server wrote it.
fn prefixed(item: Json<'_>, key: &str, prefix: &str) -> Option<String> {
    let raw = member(item, key)?;
    let name: String = serde_json::from_str(raw.get()).ok()?;
    Some(jsonrpc::spliced(item.get(), raw.get(), &json!(format!("{prefix}{name}")).to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_gets_its_longer_name_and_keeps_every_other_byte() {
        let item = JsonBuf::of(r#"{"x": {"name":1.0e2} , "name" : "a\u00e9\"b","y":[ 1 ]}"#.into()).unwrap();
        let expected = r#"{"x": {"name":1.0e2} , "name" : "time:aé\"b","y":[ 1 ]}"#;
        assert_eq!(prefixed(item.as_json(), "name", "time:").unwrap(), expected);
        assert_eq!(prefixed(Json::of("[]").unwrap(), "name", "x"), None);
    }
}
