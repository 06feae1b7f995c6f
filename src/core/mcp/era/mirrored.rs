//! Tools whose parameters are repeated in headers (`x-mcp-header`): which of them can be used. One that names a header wrongly,
//! or on a parameter that no header can carry, is left out, as the protocol wants it of clients over HTTP. Pure.

use crate::wire::json::{self, Json};
use std::collections::HashSet;

/// The list without the others, if there are any, and their names.
pub(in crate::core) fn usable_tools(tools: &[u8]) -> (Option<Vec<u8>>, Vec<String>) {
    if memchr::memmem::find(tools, b"x-mcp-header").is_none() {
        return (None, Vec::new());
    }
    let items = json::named_items(tools, "tools", "name", usize::MAX).unwrap_or_default();
    let (kept, left_out): (Vec<json::Item<'_>>, Vec<_>) = items.into_iter().partition(|tool| is_usable(tool.whole));
    if left_out.is_empty() {
        return (None, Vec::new());
    }
    let mut text = br#"{"tools":["#.to_vec();
    for (at, tool) in kept.iter().enumerate() {
        if at > 0 {
            text.push(b',');
        }
        text.extend_from_slice(tool.whole.get().as_bytes());
    }
    text.extend_from_slice(b"]}");
    let name = |named: Option<Json<'_>>| named.and_then(Json::text).unwrap_or_default().chars().take(100).collect();
    (Some(text), left_out.into_iter().map(|tool| name(tool.named)).collect())
}

fn is_usable(tool: Json<'_>) -> bool {
    let properties = tool.member("inputSchema").and_then(|schema| schema.member("properties"));
    let Some(properties) = properties else { return true };
    let mut seen = HashSet::new();
    json::members(properties.get().as_bytes()).map_while(Result::ok).all(|(_, schema)| {
        let Some(header) = schema.member("x-mcp-header") else { return true };
        let kind = schema.member("type").and_then(Json::text);
        let carried = matches!(kind.as_deref(), Some("string" | "integer" | "boolean"));
        let header = header.text().unwrap_or_default();
        carried && is_token(&header) && seen.insert(header.to_ascii_lowercase())
    })
}

/// As RFC 9110 has it.
fn is_token(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str, properties: &str) -> String {
        format!(r#"{{"name":"{name}","inputSchema":{{"type":"object","properties":{properties}}}}}"#)
    }

    #[test]
    fn a_tool_is_left_out_for_a_header_that_cannot_be_and_the_others_stay() {
        let good = tool("good", r#"{"a":{"type":"string","x-mcp-header":"A-1"},"b":{"type":"number"}}"#);
        let bad = [
            r#"{"a":{"type":"string","x-mcp-header":""}}"#,
            r#"{"a":{"type":"string","x-mcp-header":"a b"}}"#,
            r#"{"a":{"type":"string","x-mcp-header":"é"}}"#,
            r#"{"a":{"type":"string","x-mcp-header":1}}"#,
            r#"{"a":{"type":"number","x-mcp-header":"A"}}"#,
            r#"{"a":{"type":"object","x-mcp-header":"A"}}"#,
            r#"{"a":{"x-mcp-header":"A"}}"#,
            r#"{"a":{"type":"string","x-mcp-header":"A"},"b":{"type":"string","x-mcp-header":"a"}}"#,
        ];
        for properties in bad {
            let list = format!(r#"{{"tools":[{},{good}]}}"#, tool("bad", properties));
            let (text, left_out) = usable_tools(list.as_bytes());
            assert_eq!(text.map(|text| String::from_utf8(text).unwrap()), Some(format!(r#"{{"tools":[{good}]}}"#)));
            assert_eq!(left_out, ["bad"]);
        }
        let list = format!(r#"{{"tools":[{good}]}}"#);
        assert_eq!(usable_tools(list.as_bytes()), (None, Vec::new()));
    }
}
