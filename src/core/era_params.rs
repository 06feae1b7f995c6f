//! Requests and results on their way between the eras: what a server may see of the other's params, what a client may see
//! of its results, what a request resumes or subscribes to, and whether the headers that a tool names agree with it. Pure
//! functions of their input.

use crate::core::eras::era_meta;
use crate::core::fanout::tagged;
use crate::core::server::HeaderParam;
use crate::core::sessions::{Abilities, Again, Level};
use crate::limits::{SUBSCRIPTIONS_MAX, URI_MAX};
use crate::wire::json::{Json, JsonBuf};
use serde::Deserialize;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet, HashMap};

const OWN_KEYS: &str = "io.modelcontextprotocol/";
/// What a request brings along when it continues an earlier one.
const ROUND_KEYS: [&str; 2] = ["inputResponses", "requestState"];

/// The params for a server with sessions: without what only the other era knows, and with our own progress token.
pub(super) fn without_era(params: Json<'_>, call: u64) -> (String, Option<JsonBuf>) {
    let added = Added::default();
    rewritten(params.get(), call, |key| !ROUND_KEYS.contains(&key), |key| !key.starts_with(OWN_KEYS), added)
}

/// The params with each member once, and with our own progress token.
pub(super) fn unambiguous(params: Json<'_>, call: u64) -> (String, Option<JsonBuf>) {
    rewritten(params.get(), call, |_| true, |_| true, Added::default())
}

/// Members of ours, as JSON text.
#[derive(Default)]
struct Added {
    meta: Vec<String>,
    members: Vec<String>,
}

fn rewritten(
    params: &str,
    call: u64,
    keeps: impl Fn(&str) -> bool,
    keeps_in_meta: impl Fn(&str) -> bool,
    added: Added,
) -> (String, Option<JsonBuf>) {
    let Ok(mut members) = serde_json::from_str::<BTreeMap<String, Json<'_>>>(params) else {
        return (params.to_string(), None);
    };
    members.retain(|key, _| keeps(key));
    let meta = members.remove("_meta");
    let mut meta: BTreeMap<String, Json<'_>> =
        meta.and_then(|meta| serde_json::from_str(meta.get()).ok()).unwrap_or_default();
    meta.retain(|key, _| keeps_in_meta(key));
    let token = meta.remove("progressToken").map(Json::kept);
    let mut parts = added.meta;
    parts.extend(meta.iter().map(|(key, value)| format!("{}:{value}", json!(key))));
    if token.is_some() {
        parts.push(format!(r#""progressToken":{call}"#));
    }
    let meta = (!parts.is_empty()).then(|| format!(r#""_meta":{{{}}}"#, parts.join(",")));
    let rest = members.iter().map(|(key, value)| format!("{}:{value}", json!(key)));
    let all: Vec<String> = rest.chain(added.members).chain(meta).collect();
    (format!("{{{}}}", all.join(",")), token)
}

/// What a server without sessions is told of the client.
pub(super) struct Newer<'a> {
    pub abilities: &'a Abilities,
    pub level: Option<Level>,
}

/// The params for a server without sessions: with what that era wants to know, what its client was asked for in the last
/// round, and our own progress token.
pub(super) fn with_era(again: &Again, newer: &Newer<'_>, call: u64) -> (String, Option<JsonBuf>) {
    let given = again.params.as_ref().map_or("{}", JsonBuf::get);
    let own = era_meta(&newer.abilities.declared(), newer.level.map(Level::wire));
    let meta = vec![own[1..own.len() - 1].to_string()];
    let mut members = Vec::new();
    let answers = again.answers.iter().filter_map(|(key, raw)| Some(format!("{}:{}", json!(key), raw.as_ref()?.get())));
    let answers: Vec<String> = answers.collect();
    if !answers.is_empty() {
        members.push(format!(r#""inputResponses":{{{}}}"#, answers.join(",")));
    }
    members.extend(again.state.as_ref().map(|state| format!(r#""requestState":{}"#, state.get())));
    // A client that asks in rounds itself keeps what it says; in a round of ours this is ours.
    let keeps = |key: &str| again.rounds == 0 || !ROUND_KEYS.contains(&key);
    rewritten(given, call, keeps, |key| !key.starts_with(OWN_KEYS), Added { meta, members })
}

/// A result of the newer era as the older knows it. Members keep their text, and their order.
pub(super) fn older_result(result: Json<'_>) -> Vec<u8> {
    const NEWER: [&str; 3] = ["resultType", "ttlMs", "cacheScope"];
    let Ok(members) = serde_json::from_str::<Members<'_>>(result.get()) else { return result.get().into() };
    let kept = members.0.iter().filter(|(key, _)| !NEWER.contains(&key.as_str()));
    let parts: Vec<String> = kept.map(|(key, value)| format!("{}:{value}", json!(key))).collect();
    format!("{{{}}}", parts.join(",")).into_bytes()
}

/// Of an object, in the order in which they stand.
struct Members<'a>(Vec<(String, Json<'a>)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> serde::de::Visitor<'de> for InOrder {
            type Value = Vec<(String, Json<'de>)>;

            fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                out.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut found = Vec::new();
                while let Some(member) = map.next_entry()? {
                    found.push(member);
                }
                Ok(found)
            }
        }
        from.deserialize_map(InOrder).map(Members)
    }
}

/// A `requestState` in the params: it continues an earlier request.
pub(super) fn resumed_state(params: Json<'_>) -> Option<String> {
    #[derive(Deserialize)]
    struct Wire {
        #[serde(rename = "requestState")]
        state: Option<String>,
    }
    serde_json::from_str::<Wire>(params.get()).ok()?.state
}

pub(super) fn given_response(params: Json<'_>, key: &str) -> Option<JsonBuf> {
    #[derive(Deserialize)]
    struct Wire<'a> {
        #[serde(rename = "inputResponses", borrow)]
        responses: HashMap<String, Json<'a>>,
    }
    let wire: Wire<'_> = serde_json::from_str(params.get()).ok()?;
    wire.responses.get(key).filter(|raw| raw.get().starts_with('{')).map(|raw| raw.kept())
}

/// What a `subscriptions/listen` asks for.
#[derive(Default)]
pub(super) struct Filter {
    pub tools: bool,
    pub prompts: bool,
    pub resources: bool,
    pub uris: BTreeSet<String>,
}

impl Filter {
    pub fn of(params: Json<'_>) -> Result<Filter, String> {
        #[derive(Deserialize)]
        struct Wire {
            notifications: Wanted,
        }
        #[derive(Deserialize, Default)]
        #[serde(default, rename_all = "camelCase")]
        struct Wanted {
            tools_list_changed: bool,
            prompts_list_changed: bool,
            resources_list_changed: bool,
            resource_subscriptions: Vec<String>,
        }
        let wire: Wire = serde_json::from_str(params.get())
            .map_err(|_| "notifications: expected an object of what to listen to".to_string())?;
        let wanted = wire.notifications;
        let uris: BTreeSet<String> = wanted.resource_subscriptions.into_iter().collect();
        if uris.len() > SUBSCRIPTIONS_MAX || uris.iter().any(|uri| uri.len() > URI_MAX) {
            return Err(format!("resourceSubscriptions: at most {SUBSCRIPTIONS_MAX} of at most {URI_MAX} bytes"));
        }
        let (tools, prompts) = (wanted.tools_list_changed, wanted.prompts_list_changed);
        Ok(Filter { tools, prompts, resources: wanted.resources_list_changed, uris })
    }

    pub fn acknowledged(&self, id: &str) -> String {
        let mut granted = serde_json::Map::new();
        let lists = [
            ("toolsListChanged", self.tools),
            ("promptsListChanged", self.prompts),
            ("resourcesListChanged", self.resources),
        ];
        for (key, _) in lists.into_iter().filter(|(_, wanted)| *wanted) {
            granted.insert(key.to_string(), true.into());
        }
        if !self.uris.is_empty() {
            granted.insert("resourceSubscriptions".to_string(), json!(self.uris));
        }
        let tagged = tagged(id, None);
        format!(r#"{},"notifications":{}}}"#, &tagged[..tagged.len() - 1], serde_json::Value::Object(granted))
    }
}

// --- headers that tools name --------------------------------------------------------------------------------------------

/// From a `tools/list`: which parameters of which tools clients repeat in a header.
pub(super) fn header_params(tools: Json<'_>) -> HashMap<String, Vec<HeaderParam>> {
    #[derive(Deserialize)]
    struct List {
        #[serde(default)]
        tools: Vec<Tool>,
    }
    #[derive(Deserialize)]
    struct Tool {
        name: String,
        #[serde(rename = "inputSchema", default)]
        schema: Option<Schema>,
    }
    #[derive(Deserialize)]
    struct Schema {
        #[serde(default)]
        properties: BTreeMap<String, serde_json::Value>,
    }
    if memchr::memmem::find(tools.get().as_bytes(), b"x-mcp-header").is_none() {
        return HashMap::new();
    }
    let Ok(list) = serde_json::from_str::<List>(tools.get()) else { return HashMap::new() };
    let mut found = HashMap::new();
    for tool in list.tools {
        let properties = tool.schema.map(|schema| schema.properties).unwrap_or_default();
        let named = properties.into_iter().filter_map(|(property, schema)| {
            let header = schema.get("x-mcp-header")?.as_str()?.to_ascii_lowercase();
            Some(HeaderParam { property, header })
        });
        let named: Vec<HeaderParam> = named.collect();
        if !named.is_empty() {
            found.insert(tool.name, named);
        }
    }
    found
}

/// Why the headers of a `tools/call` do not fit its body, if they do not.
pub(super) fn header_mismatch(
    tools: &HashMap<String, Vec<HeaderParam>>,
    params: Json<'_>,
    headers: &[(String, String)],
) -> Option<String> {
    #[derive(Deserialize)]
    struct Wire {
        name: String,
        #[serde(default)]
        arguments: Option<HashMap<String, serde_json::Value>>,
    }
    if tools.is_empty() {
        return None;
    }
    let Ok(wire) = serde_json::from_str::<Wire>(params.get()) else {
        return Some("Mcp-Param-*: cannot be compared, because the params have no name or a member twice".to_string());
    };
    let arguments = wire.arguments.unwrap_or_default();
    for HeaderParam { property, header } in tools.get(&wire.name)? {
        let value = match arguments.get(property) {
            None | Some(serde_json::Value::Null) => None,
            Some(serde_json::Value::String(text)) => Some(text.clone()),
            Some(other) => Some(other.to_string()),
        };
        let given = headers.iter().find(|(name, _)| name == header).map(|(_, value)| value);
        let given = match given {
            None => None,
            Some(text) => match crate::api::mcp::decoded(text) {
                Some(text) => Some(text),
                None => return Some(format!("Mcp-Param-{header}: is not valid Base64")),
            },
        };
        if value != given {
            return Some(format!("Mcp-Param-{header}: must be what {property} is in the body"));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Json<'_> {
        Json::of(text).unwrap()
    }

    #[test]
    fn a_server_with_sessions_sees_nothing_of_the_other_era() {
        let params = r#"{"name":"t","arguments":{"x":1.0e2},"requestState":"s","inputResponses":{},"_meta":
            {"io.modelcontextprotocol/protocolVersion":"2026-07-28","progressToken":"mine","own":{"a":1}}}"#;
        let (translated, token) = without_era(raw(params), 7);
        let expected = r#"{"arguments":{"x":1.0e2},"name":"t","_meta":{"own":{"a":1},"progressToken":7}}"#;
        assert_eq!((translated.as_str(), token.unwrap().get()), (expected, r#""mine""#));
        assert_eq!(without_era(raw(r#"{"_meta":{"io.modelcontextprotocol/x":1}}"#), 7).0, "{}");
        assert_eq!(without_era(raw("[1]"), 7).0, "[1]");
    }

    #[test]
    fn a_server_without_sessions_is_told_what_its_era_wants_and_its_results_lose_it() {
        let abilities = Abilities::of(raw(r#"{"elicitation":{}}"#));
        let newer = Newer { abilities: &abilities, level: Level::of("info") };
        let params =
            r#"{"name":"t","requestState":"theirs","arguments":{"x":1.0e2},"_meta":{"progressToken":"mine","own":1}}"#;
        let answers = [("a".to_string(), Some(raw(r#"{"action":"accept"}"#).kept()))].into();
        let state = Some(raw(r#""s""#).kept());
        let again = Again { method: "tools/call".into(), params: Some(raw(params).kept()), rounds: 1, state, answers };
        let (translated, token) = with_era(&again, &newer, 7);
        assert_eq!(token.unwrap().get(), r#""mine""#);
        let seen: serde_json::Value = serde_json::from_str(&translated).unwrap();
        assert!(translated.contains(r#""x":1.0e2"#) && !translated.contains("theirs"), "{translated}");
        assert_eq!(seen["inputResponses"], json!({"a": {"action": "accept"}}));
        assert_eq!((&seen["requestState"], &seen["_meta"]["progressToken"]), (&json!("s"), &json!(7)));
        assert_eq!(seen["_meta"]["own"], 1);
        assert_eq!(seen["_meta"]["io.modelcontextprotocol/logLevel"], "info");
        assert_eq!(seen["_meta"]["io.modelcontextprotocol/clientCapabilities"], json!({"elicitation": {"form": {}}}));

        let result =
            raw(r#"{"tools" : [ 1.0 ],"resultType":"complete","ttlMs":1,"cacheScope":"private","a":{"ttlMs":2}}"#);
        assert_eq!(older_result(result), br#"{"tools":[ 1.0 ],"a":{"ttlMs":2}}"#);
        assert_eq!(older_result(raw("7")), b"7");
    }

    #[test]
    fn a_header_that_a_tool_names_must_be_what_the_body_says() {
        let tools = header_params(raw(
            r#"{"tools":[{"name":"t","inputSchema":{"properties":{"r":{"type":"string","x-mcp-header":"Region"},"q":{}}}},{"name":"u"}]}"#,
        ));
        for (arguments, headers, fits) in [
            (r#"{"r":"eu"}"#, &[("region", "eu")][..], true),
            (r#"{"r":"eu"}"#, &[("region", "us")], false),
            (r#"{"r":"eu"}"#, &[], false),
            (r#"{"q":1}"#, &[], true),
            (r#"{"q":1}"#, &[("region", "eu")], false),
            (r#"{"r":"Hello"}"#, &[("region", "=?base64?SGVsbG8=?=")], true),
            (r#"{"r":"Hello"}"#, &[("region", "=?base64?SGVsbG8?=")], false),
            (r#"{"r":7}"#, &[("region", "7")], true),
        ] {
            let params = format!(r#"{{"name":"t","arguments":{arguments}}}"#);
            let given: Vec<_> = headers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
            let verdict = header_mismatch(&tools, raw(&params), &given);
            assert_eq!(verdict.is_none(), fits, "{arguments} {headers:?}: {verdict:?}");
        }
        let twice = raw(r#"{"name":"t","arguments":{"r":"eu"},"arguments":{"r":"us"}}"#);
        assert!(header_mismatch(&tools, twice, &[("region".into(), "eu".into())]).is_some());
    }
}
