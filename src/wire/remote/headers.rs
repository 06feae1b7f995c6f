//! Headers of a message that goes to an external server: those of its row, and those that repeat a part of the message. Owns
//! which are whose; a value that no header can have goes in Base64, as the protocol says.

use crate::model::endpoint::{ParamHeader, ParamHeaders};
use crate::wire::backlog::Backlog;
use crate::wire::http::request::{self, BadRequest, Request};
use crate::wire::json::Json;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::borrow::Cow;

/// Headers that the transport writes itself; a row's own are left out.
const OURS: [&str; 7] =
    ["accept", "content-type", "last-event-id", "mcp-method", "mcp-name", "mcp-protocol-version", "mcp-session-id"];

/// Whether all of them can be sent.
pub fn check(headers: &[(String, String)]) -> Result<(), BadRequest> {
    let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    request::write(&mut Backlog::default(), Request { headers: &headers, ..Request::new("GET", "/", "h") })
}

pub fn of_row(headers: &[(String, String)]) -> Vec<(String, String)> {
    let is_ours = |name: &str| OURS.iter().any(|ours| name.eq_ignore_ascii_case(ours));
    headers.iter().filter(|(name, _)| !is_ours(name)).cloned().collect()
}

/// A token in place of whatever the row shows.
pub fn authorize(headers: &mut Vec<(String, String)>, authorization: String) {
    headers.retain(|(name, _)| !name.eq_ignore_ascii_case("authorization"));
    headers.push(("Authorization".to_string(), authorization));
}

/// The version that a message names itself, as every request of the era without sessions does.
pub fn version_of(params: Option<Json<'_>>) -> Option<Cow<'_, str>> {
    params?.member("_meta")?.member("io.modelcontextprotocol/protocolVersion")?.text()
}

/// What a request without a session repeats.
pub fn repeated(method: &str, params: Option<Json<'_>>, tools: &ParamHeaders) -> Vec<(String, String)> {
    let mut found = vec![("Mcp-Method".to_string(), encoded(method))];
    let member = match method {
        "tools/call" | "prompts/get" => Some("name"),
        "resources/read" => Some("uri"),
        "tasks/get" | "tasks/update" | "tasks/cancel" => Some("taskId"),
        _ => None,
    };
    let name = member.and_then(|member| params?.member(member)?.text());
    found.extend(name.as_ref().map(|name| ("Mcp-Name".to_string(), encoded(name))));
    let mirrored = name.filter(|_| method == "tools/call").and_then(|name| tools.get(&*name));
    let arguments = params.and_then(|params| params.member("arguments"));
    for ParamHeader { path, header } in mirrored.into_iter().flatten() {
        let value = path.iter().try_fold(arguments, |value, key| value.map(|value| value.member(key))).flatten();
        let text = value.and_then(as_text);
        found.extend(text.map(|text| (format!("Mcp-Param-{header}"), encoded(&text))));
    }
    found
}

fn as_text(value: Json<'_>) -> Option<Cow<'_, str>> {
    match value.get().as_bytes().first()? {
        b'"' => value.text(),
        b'n' | b'{' | b'[' => None,
        _ => Some(Cow::Borrowed(value.get())),
    }
}

fn encoded(value: &str) -> String {
    let is_plain = value.bytes().all(|byte| (0x20..0x7f).contains(&byte)) && value.trim() == value;
    let is_marked = value.starts_with("=?base64?") && value.ends_with("?=");
    match is_plain && !is_marked {
        true => value.to_string(),
        false => format!("=?base64?{}?=", STANDARD.encode(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_repeats_its_method_its_name_and_what_its_tool_mirrors() {
        let path = vec!["where".to_string(), "region".to_string()];
        let tools = ParamHeaders::from([("é".to_string(), vec![ParamHeader { path, header: "Region".to_string() }])]);
        let params = Json::of(r#"{"name":"é","arguments":{"where":{"region":" eu"}}}"#).unwrap();
        let value = |name: &str| {
            let all = repeated("tools/call", Some(params), &tools);
            all.into_iter().find(|(known, _)| known == name).map(|(_, value)| value)
        };
        assert_eq!(value("Mcp-Method").as_deref(), Some("tools/call"));
        assert_eq!(value("Mcp-Name").as_deref(), Some("=?base64?w6k=?="));
        assert_eq!(value("Mcp-Param-Region").as_deref(), Some("=?base64?IGV1?="));
        assert_eq!(encoded("=?base64?literal?="), "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?=");
        assert_eq!(repeated("ping", None, &tools), [("Mcp-Method".to_string(), "ping".to_string())]);
    }
}
