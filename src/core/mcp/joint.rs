//! Names where several servers are offered at once: items are called `<server><separator><name>`, and a request goes to the server
//! that its name begins with. A list is put together from what each server's part of it was made into when it came, and never
//! copied. Owns that naming, and nothing else.

use crate::core::mcp::endpoint::{McpEndpoint, Offers};
use crate::core::mcp::wording::{INVALID_PARAMS, METHOD_NOT_FOUND};
use crate::core::peers::listings::Listing;
use crate::core::peers::peer::Advertised;
use crate::core::servers::server::Server;
use crate::ids::{PeerId, ServerId};
use crate::model::principal::Limits;
use crate::wire::backlog::Shared;
use crate::wire::json::{Item, Json, JsonBuf};
use crate::wire::jsonrpc;
use serde_json::json;
use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

impl<'a> Offers<'a> {
    /// What servers offer, one after the other by name, and the last of these if there are more.
    pub fn joint_page(
        self,
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
    pub fn addressed(
        self,
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
    fn named(self, text: &str, separator: &str, (at, sees): (&McpEndpoint, &Limits)) -> Option<(ServerId, String)> {
        let rest_of = |name: &str| text.strip_prefix(name)?.strip_prefix(separator).map(str::to_string);
        let visible = self.visible(at, sees).into_iter();
        let found = visible.filter_map(|server| Some((server, rest_of(&server.definition.name)?)));
        // The longest: with a separator that names may contain, one name can begin another.
        let (server, rest) = found.max_by_key(|(server, _)| server.definition.name.len())?;
        Some((server.id, rest))
    }

    /// The server that has a resource, and its own URI there. Tools hand out URIs as their server knows them, so one
    /// without a server's name is understood too, as long as a single server lists it.
    pub fn resource_at(self, text: &str, at: &McpEndpoint, sees: &Limits) -> Result<(ServerId, String), String> {
        let separator = &self.settings.separator;
        let named = self.named(text, JOINT_URI, (at, sees)).or_else(|| self.named(text, separator, (at, sees)));
        // Before any list: else a server could list what is another's. But one named `file` does not have all files.
        if let Some((server, rest)) = named.as_ref().filter(|(_, rest)| has_scheme(rest)) {
            return Ok((*server, rest.clone()));
        }
        let lists = |server: &&Server| self.peers.known[&server.main].resource_uris.contains(text);
        let having: Vec<&'a Server> = self.visible(at, sees).into_iter().filter(lists).collect();
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

    /// Which main peer has each of the resources that a client wants to hear of; those that none has are taken out.
    pub fn located(self, at: &McpEndpoint, sees: &Limits, uris: &mut BTreeSet<String>) -> BTreeSet<(PeerId, String)> {
        if let Some(server) = at.server() {
            let main = self.servers.known[&server].main;
            return uris.iter().map(|uri| (main, uri.clone())).collect();
        }
        let mut found = BTreeSet::new();
        let mut add = |(server, own)| found.insert((self.servers.known[&server].main, own));
        uris.retain(|uri| self.resource_at(uri, at, sees).map(&mut add).is_ok());
        found
    }
}

/// What the daemon says of itself at an endpoint of several servers.
pub(in crate::core) fn own_advertised() -> Advertised {
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
