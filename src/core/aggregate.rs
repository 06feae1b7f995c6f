//! The endpoint that offers all servers at once. Items are named `<server><separator><name>`, lists are joined from what is
//! cached, and a request goes to the server that its name begins with. Owns that naming; never waits for a server to
//! make a list, so one that is dead or hung costs the others nothing.

use crate::api::auth::Principal;
use crate::core::Core;
use crate::core::listings::{Listing, items};
use crate::core::server::{Face, Server};
use crate::core::sessions::ErrandKind;
use crate::core::wording::{INVALID_PARAMS, METHOD_NOT_FOUND, rpc_error, stateless_status};
use crate::ids::{ServerId, SessionId, VoiceId};
use crate::wire::jsonrpc;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use std::collections::HashMap;

impl Core {
    pub(super) fn own_face(&self) -> Face {
        Face {
            capabilities: concat!(
                r#"{"tools":{"listChanged":true},"prompts":{"listChanged":true},"#,
                r#""resources":{"listChanged":true},"completions":{},"logging":{}}"#
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
        id: &RawValue,
        method: &str,
        params: Option<&RawValue>,
    ) {
        let Some(sees) = self.sessions.get(session).map(|session| session.sees.clone()) else { return };
        if let Some(list) = Listing::ALL.into_iter().find(|list| list.method() == method) {
            let result = self.joined_list(list, &sees);
            return self.finish(voice, None, 200, jsonrpc::result(id.get(), format!("{{{result}}}").as_bytes()));
        }
        match self.addressed(method, params, &sees) {
            Ok((server, params)) => {
                self.forward(voice, session, server, id, method, Some(&params), ErrandKind::Plain);
            }
            Err((code, message)) => self.finish(voice, None, 200, rpc_error(id.get(), code, &message)),
        }
    }

    /// For a client without a session. `Ok`: the server to ask, and the params for it.
    pub(super) fn aggregate_stateless(
        &mut self,
        voice: VoiceId,
        who: &Principal,
        id: &RawValue,
        method: &str,
        params: &RawValue,
    ) -> Option<(ServerId, Box<RawValue>)> {
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
            let prefix = format!("{}{}", server.definition.name, self.settings.separator);
            let text = server.list(list).text.as_deref().unwrap_or_default();
            all.extend(items(list, text).into_iter().filter_map(|item| prefixed(item, name_key, &prefix)));
        }
        format!(r#""{key}":[{}]"#, all.join(","))
    }

    /// By name. A server that is stopped offers nothing; one that is coming back offers what it did before.
    fn visible(&self, sees: &[String]) -> Vec<&Server> {
        let seen = |name: &String| sees.is_empty() || sees.contains(name);
        let offers = |server: &&Server| {
            server.parent.is_none() && server.removing.is_none() && server.desired_up && seen(&server.definition.name)
        };
        let mut found: Vec<&Server> = self.servers.values().filter(offers).collect();
        found.sort_by(|a, b| a.definition.name.cmp(&b.definition.name));
        found
    }

    /// The server that a request is for, and its params with the name as that server knows it.
    fn addressed(
        &self,
        method: &str,
        params: Option<&RawValue>,
        sees: &[String],
    ) -> Result<(ServerId, Box<RawValue>), (i64, String)> {
        let params = params.ok_or((INVALID_PARAMS, "params: are required".to_string()))?;
        let (holder, key) = match method {
            "tools/call" | "prompts/get" => (params, "name"),
            "resources/read" => (params, "uri"),
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
        let separator = &self.settings.separator;
        let is_for = |server: &&&Server| {
            text.strip_prefix(&server.definition.name).is_some_and(|rest| rest.starts_with(separator.as_str()))
        };
        let visible = self.visible(sees);
        // The longest: with a separator that names may contain, one name can begin another.
        let Some(server) = visible.iter().filter(is_for).max_by_key(|server| server.definition.name.len()) else {
            return Err((
                INVALID_PARAMS,
                format!("{key}: no server here has {text}; names are <server>{separator}<name>"),
            ));
        };
        let rest = &text[server.definition.name.len() + separator.len()..];
        let spliced = jsonrpc::spliced(params.get(), raw.get(), &json!(rest).to_string());
        match RawValue::from_string(spliced) {
            Ok(params) => Ok((server.id, params)),
            Err(_) => Err((INVALID_PARAMS, format!("{key}: expected a string"))),
        }
    }
}

fn member<'a>(object: &'a RawValue, key: &str) -> Option<&'a RawValue> {
    #[derive(Deserialize)]
    struct Members<'a>(#[serde(borrow)] HashMap<String, &'a RawValue>);
    serde_json::from_str::<Members<'a>>(object.get()).ok()?.0.get(key).copied()
}

/// An item under its longer name; everything else of it is as the server wrote it.
fn prefixed(item: &RawValue, key: &str, prefix: &str) -> Option<String> {
    let raw = member(item, key)?;
    let name: String = serde_json::from_str(raw.get()).ok()?;
    Some(jsonrpc::spliced(item.get(), raw.get(), &json!(format!("{prefix}{name}")).to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_gets_its_longer_name_and_keeps_every_other_byte() {
        let item = RawValue::from_string(r#"{"x": {"name":1.0e2} , "name" : "a\u00e9\"b","y":[ 1 ]}"#.into()).unwrap();
        let expected = r#"{"x": {"name":1.0e2} , "name" : "time:aé\"b","y":[ 1 ]}"#;
        assert_eq!(prefixed(&item, "name", "time:").unwrap(), expected);
        assert_eq!(prefixed(&RawValue::from_string("[]".into()).unwrap(), "name", "x"), None);
    }
}
