//! Requests and results on their way between the eras: what a server may see of the other's params, what a client may see
//! of its results, what a request resumes or subscribes to, and whether the headers that a tool names agree with it. Pure
//! functions of their input.

use crate::core::mcp::era::stateless::era_meta;
use crate::core::mcp::notifications::tagged;
use crate::core::mcp::sessions::{Abilities, InputRounds};
use crate::core::peers::peer::HeaderParam;
use crate::limits::{SUBSCRIPTIONS_MAX, URI_MAX};
use crate::model::protocol::Level;
use crate::wire::json::{self, Json, JsonBuf};
use serde::Deserialize;
use serde_json::json;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

const OWN_KEYS: &str = "io.modelcontextprotocol/";
/// What a request brings along when it continues an earlier one.
const ROUND_KEYS: [&str; 2] = ["inputResponses", "requestState"];

/// The params of a REST client's call, for a server without sessions.
pub(in crate::core) fn in_newer_era(params: Option<Json<'_>>, call: u64) -> String {
    with_era(&InputRounds::first("", params), &Newer { abilities: &Abilities::default(), level: None }, call).0
}

/// The params for a server with sessions: without what only the other era knows, and with our own progress token.
pub(in crate::core) fn without_era(params: Json<'_>, call: u64) -> (String, Option<JsonBuf>) {
    let added = Added::default();
    rewritten(params.get(), call, |key| !ROUND_KEYS.contains(&key), |key| !key.starts_with(OWN_KEYS), added)
}

/// The params with each member once, and with our own progress token.
pub(in crate::core) fn unambiguous(params: Json<'_>, call: u64) -> (String, Option<JsonBuf>) {
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
    let Some(mut members) = each_once(params, &keeps) else { return (params.to_string(), None) };
    let meta = members.remove("_meta");
    let mut meta = meta.and_then(|meta| each_once(meta.get(), &keeps_in_meta)).unwrap_or_default();
    let token = meta.remove("progressToken").map(Json::kept);
    let mut out = Object::with_room_for(params.len());
    members.iter().for_each(|(key, value)| out.member(key, value.get()));
    added.members.iter().for_each(|member| out.text(member));
    if meta.is_empty() && added.meta.is_empty() && token.is_none() {
        return (out.end(), token);
    }
    out.text(r#""_meta":"#);
    out.open();
    added.meta.iter().for_each(|member| out.text(member));
    meta.iter().for_each(|(key, value)| out.member(key, value.get()));
    if token.is_some() {
        out.member("progressToken", &call.to_string());
    }
    out.close();
    (out.end(), token)
}

/// The members of an object that are kept; of several of one name the last. None: it is no object.
fn each_once<'a>(text: &'a str, keeps: &impl Fn(&str) -> bool) -> Option<BTreeMap<Cow<'a, str>, Json<'a>>> {
    let mut found = BTreeMap::new();
    for member in json::members(text.as_bytes()) {
        let (key, value) = member.ok()?;
        if keeps(&key) {
            found.insert(key, value);
        }
    }
    Some(found)
}

/// An object as it is written: text that is added to, because a peer decides how many members there are.
struct Object(String);

impl Object {
    fn with_room_for(bytes: usize) -> Object {
        let mut text = String::with_capacity(bytes + 256);
        text.push('{');
        Object(text)
    }

    fn open(&mut self) {
        self.0.push('{');
    }

    fn close(&mut self) {
        self.0.push('}');
    }

    /// Whole members, as JSON text.
    fn text(&mut self, member: &str) {
        if !self.0.ends_with('{') {
            self.0.push(',');
        }
        self.0.push_str(member);
    }

    fn member(&mut self, key: &str, value: &str) {
        let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\';
        match key.bytes().all(plain) {
            true => {
                self.text("\"");
                self.0.push_str(key);
                self.0.push_str("\":");
            }
            false => {
                self.text(&json!(key).to_string());
                self.0.push(':');
            }
        }
        self.0.push_str(value);
    }

    fn end(mut self) -> String {
        self.close();
        self.0
    }
}

/// What a server without sessions is told of the client.
pub(in crate::core) struct Newer<'a> {
    pub abilities: &'a Abilities,
    pub level: Option<Level>,
}

/// The params for a server without sessions: with what that era wants to know, what its client was asked for in the last
/// round, and our own progress token.
pub(in crate::core) fn with_era(rounds: &InputRounds, newer: &Newer<'_>, call: u64) -> (String, Option<JsonBuf>) {
    let given = rounds.params.as_ref().map_or("{}", JsonBuf::get);
    let own = era_meta(&newer.abilities.declared(), newer.level.map(Level::wire));
    let meta = vec![own[1..own.len() - 1].to_string()];
    let mut members = Vec::new();
    let answers =
        rounds.answers.iter().filter_map(|(key, raw)| Some(format!("{}:{}", json!(key), raw.as_ref()?.get())));
    let answers: Vec<String> = answers.collect();
    if !answers.is_empty() {
        members.push(format!(r#""inputResponses":{{{}}}"#, answers.join(",")));
    }
    members.extend(rounds.state.as_ref().map(|state| format!(r#""requestState":{}"#, state.get())));
    // A client that asks in rounds itself keeps what it says; in a round of ours this is ours.
    let keeps = |key: &str| rounds.count == 0 || !ROUND_KEYS.contains(&key);
    rewritten(given, call, keeps, |key| !key.starts_with(OWN_KEYS), Added { meta, members })
}

/// A result of the newer era as the older knows it. Members keep their text, and their order.
pub(in crate::core) fn older_result(result: Json<'_>) -> Vec<u8> {
    const NEWER: [&str; 3] = ["resultType", "ttlMs", "cacheScope"];
    let mut out = Object::with_room_for(result.get().len());
    for member in json::members(result.get().as_bytes()) {
        let Ok((key, value)) = member else { return result.get().into() };
        if !NEWER.contains(&&*key) {
            out.member(&key, value.get());
        }
    }
    out.end().into_bytes()
}

/// A `requestState` in the params: it continues an earlier request.
pub(in crate::core) fn resumed_state(params: Json<'_>) -> Option<String> {
    #[derive(Deserialize)]
    struct Wire {
        #[serde(rename = "requestState")]
        state: Option<String>,
    }
    serde_json::from_str::<Wire>(params.get()).ok()?.state
}

/// The answers in the params to these questions, which are called `q` and their number. Looked for once for all of them:
/// the params may be as large as the questions are many.
pub(in crate::core) fn given_responses(params: Json<'_>, questions: &[u64]) -> HashMap<u64, JsonBuf> {
    #[derive(Deserialize)]
    struct Wire<'a> {
        #[serde(rename = "inputResponses", borrow)]
        responses: Json<'a>,
    }
    let Ok(wire) = serde_json::from_str::<Wire<'_>>(params.get()) else { return HashMap::new() };
    let mut found = HashMap::new();
    for member in json::members(wire.responses.get().as_bytes()) {
        let Ok((key, value)) = member else { return HashMap::new() };
        let number = key.strip_prefix('q').and_then(|number| number.parse().ok());
        let Some(number) = number.filter(|number| questions.contains(number) && *key == format!("q{number}")) else {
            continue;
        };
        match value.get().starts_with('{') {
            true => found.insert(number, value),
            false => found.remove(&number),
        };
    }
    found.into_iter().map(|(number, value)| (number, value.kept())).collect()
}

/// What a `subscriptions/listen` asks for.
#[derive(Default)]
pub(in crate::core) struct Filter {
    pub tools: bool,
    pub prompts: bool,
    pub resources: bool,
    pub uris: BTreeSet<String>,
}

impl Filter {
    pub fn of(params: Json<'_>) -> Result<Filter, String> {
        #[derive(Deserialize)]
        struct Wire<'a> {
            #[serde(borrow)]
            notifications: Wanted<'a>,
        }
        #[derive(Deserialize, Default)]
        #[serde(default, rename_all = "camelCase")]
        struct Wanted<'a> {
            tools_list_changed: bool,
            prompts_list_changed: bool,
            resources_list_changed: bool,
            #[serde(borrow)]
            resource_subscriptions: Option<Json<'a>>,
        }
        let wrong = || "notifications: expected an object of what to listen to".to_string();
        let wire: Wire<'_> = serde_json::from_str(params.get()).map_err(|_| wrong())?;
        let wanted = wire.notifications;
        let mut uris = BTreeSet::new();
        for uri in json::items(wanted.resource_subscriptions.map_or("[]", Json::get).as_bytes()) {
            let uri = uri.ok().and_then(Json::text).ok_or_else(wrong)?.into_owned();
            if uri.len() > URI_MAX || uris.insert(uri) && uris.len() > SUBSCRIPTIONS_MAX {
                return Err(format!("resourceSubscriptions: at most {SUBSCRIPTIONS_MAX} of at most {URI_MAX} bytes"));
            }
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
pub(in crate::core) fn header_params(tools: &[u8]) -> HashMap<String, Vec<HeaderParam>> {
    if memchr::memmem::find(tools, b"x-mcp-header").is_none() {
        return HashMap::new();
    }
    let mut found = HashMap::new();
    for tool in json::named_items(tools, "tools", "name", usize::MAX).unwrap_or_default() {
        let properties = tool.whole.member("inputSchema").and_then(|schema| schema.member("properties"));
        let (Some(name), Some(properties)) = (tool.named.and_then(Json::text), properties) else { continue };
        let named =
            json::members(properties.get().as_bytes()).map_while(Result::ok).filter_map(|(property, schema)| {
                let header = schema.member("x-mcp-header")?.text()?.to_ascii_lowercase();
                Some(HeaderParam { property: property.into_owned(), header })
            });
        let named: Vec<HeaderParam> = named.collect();
        if !named.is_empty() {
            found.insert(name.into_owned(), named);
        }
    }
    found
}

/// Why the headers of a `tools/call` do not fit its body, if they do not.
pub(in crate::core) fn header_mismatch(
    tools: &HashMap<String, Vec<HeaderParam>>,
    params: Json<'_>,
    headers: &[(String, String)],
) -> Option<String> {
    #[derive(Deserialize)]
    struct Wire<'a> {
        name: String,
        #[serde(borrow)]
        arguments: Option<Json<'a>>,
    }
    if tools.is_empty() {
        return None;
    }
    let unclear = "Mcp-Param-*: cannot be compared, because the params have no name or a member twice";
    let Ok(wire) = serde_json::from_str::<Wire<'_>>(params.get()) else { return Some(unclear.to_string()) };
    let named = tools.get(&wire.name)?;
    let properties: HashSet<&str> = named.iter().map(|param| param.property.as_str()).collect();
    let mut arguments = HashMap::new();
    for member in json::members(wire.arguments.map_or("{}", Json::get).as_bytes()) {
        let Ok((key, value)) = member else { return Some(unclear.to_string()) };
        if let Some(property) = properties.get(&*key) {
            arguments.insert(*property, value);
        }
    }
    for HeaderParam { property, header } in named {
        let value = arguments.get(property.as_str()).map(|value| in_header(*value));
        let given = headers.iter().find(|(name, _)| name == header).map(|(_, value)| value);
        let given = match given {
            None => None,
            Some(text) => match crate::api::mcp::decoded(text) {
                Some(text) => Some(text),
                None => return Some(format!("Mcp-Param-{header}: is not valid Base64")),
            },
        };
        let same = match value {
            None | Some(InHeader::Nothing) => given.is_none(),
            Some(InHeader::Text(text)) => given == Some(text),
            Some(InHeader::Never) => false,
        };
        if !same {
            return Some(format!("Mcp-Param-{header}: must be what {property} is in the body"));
        }
    }
    None
}

/// A value as a header says it.
enum InHeader {
    Nothing,
    Text(String),
    /// Only single values are repeated in headers.
    Never,
}

fn in_header(value: Json<'_>) -> InHeader {
    match value.get().as_bytes()[0] {
        b'{' | b'[' => InHeader::Never,
        b'n' => InHeader::Nothing,
        b'"' => value.text().map_or(InHeader::Never, |text| InHeader::Text(text.into_owned())),
        // A number in its one spelling.
        _ => serde_json::from_str::<serde_json::Value>(value.get())
            .map_or(InHeader::Never, |value| InHeader::Text(value.to_string())),
    }
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
        let rounds =
            InputRounds { method: "tools/call".into(), params: Some(raw(params).kept()), count: 1, state, answers };
        let (translated, token) = with_era(&rounds, &newer, 7);
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
        let tools = header_params(
            br#"{"tools":[{"name":"t","inputSchema":{"properties":{"r":{"type":"string","x-mcp-header":"Region"},"q":{}}}},{"name":"u"}]}"#,
        );
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
