//! What the result of a tool says, in words: the one message of a result with `isError`, and any result as text. Reads a
//! result that is known to be JSON and was written by a stranger: each part is looked at a constant number of times, and what
//! becomes part of a message is cut. The result itself is never changed.

use crate::api::yaml::yaml;
use crate::limits::{TOOL_CODE_MAX, TOOL_ERROR_RAW_MAX, TOOL_MESSAGE_MAX};
use crate::wire::json::{Json, items};
use std::fmt::Write;

/// A result with `isError`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolError<'a> {
    pub message: String,
    /// Its `structuredContent`.
    pub cause: Option<Json<'a>>,
}

impl<'a> ToolError<'a> {
    /// None: the result is none of an error.
    pub fn of(result: Json<'a>) -> Option<ToolError<'a>> {
        if result.member("isError").map(Json::get) != Some("true") {
            return None;
        }
        let cause = structured(result);
        let mut message = cause
            .and_then(own_words)
            .or_else(|| texts_only(result))
            .map(|text| cut(&text, TOOL_MESSAGE_MAX))
            .unwrap_or_else(|| cut(result.get(), TOOL_ERROR_RAW_MAX));
        if let Some(suffix) = cause.and_then(suffix) {
            message = format!("{message} {suffix}");
        }
        Some(ToolError { message, cause })
    }

    /// The whole answer to whoever called the tool; `result` is the JSON that it is told as.
    pub fn body(&self, result: &str) -> String {
        let message = serde_json::Value::from(self.message.as_str());
        let data = self.cause.map_or("{}".to_string(), |cause| format!(r#"{{"cause":{cause}}}"#));
        format!(r#"{{"result":{result},"error":{{"code":"tool_error","message":{message},"data":{data}}}}}"#)
    }
}

/// The same question for every result that passes, so it walks through none but those that seem to say yes. A name that is
/// spelled with escapes is not found.
pub fn is_error(result: &[u8]) -> bool {
    let mut from = 0;
    while let Some(at) = memchr::memchr(b'E', &result[from..]) {
        let (before, after) = result.split_at(from + at);
        if before.ends_with(b"\"is") && after.strip_prefix(b"Error\"").is_some_and(is_followed_by_true) {
            return own_flag(result);
        }
        from += at + 1;
    }
    false
}

fn own_flag(result: &[u8]) -> bool {
    let text = std::str::from_utf8(result).ok();
    text.and_then(|text| Json::of(text).ok()?.member("isError")).is_some_and(|flag| flag.get() == "true")
}

fn is_followed_by_true(rest: &[u8]) -> bool {
    let value = rest.trim_ascii_start().strip_prefix(b":");
    value.is_some_and(|value| value.trim_ascii_start().starts_with(b"true"))
}

fn structured(result: Json<'_>) -> Option<Json<'_>> {
    result.member("structuredContent").filter(|content| content.get() != "null")
}

/// In this order: `message`, `error` as a string, `error.message`, `detail`.
fn own_words(content: Json<'_>) -> Option<String> {
    let error = content.member("error");
    let candidates =
        [content.member("message"), error, error.and_then(|error| error.member("message")), content.member("detail")];
    candidates.into_iter().flatten().find_map(words)
}

/// What a string says, if it says anything.
fn words(value: Json<'_>) -> Option<String> {
    value.text().filter(|text| !text.trim().is_empty()).map(|text| text.into_owned())
}

/// `(code=… retriable=…)`, of what is there; of the content itself, else of its `error`.
fn suffix(content: Json<'_>) -> Option<String> {
    let places = [Some(content), content.member("error")];
    let first = |names: &[&str], read: fn(Json<'_>) -> Option<String>| {
        let mut found = places.iter().flatten().flat_map(|place| names.iter().filter_map(|name| place.member(name)));
        found.find_map(read)
    };
    let code = first(&["code", "errorCode", "statusCode"], code).map(|code| format!("code={code}"));
    let retriable = first(&["retriable", "retryable"], boolean).map(|retriable| format!("retriable={retriable}"));
    match (code, retriable) {
        (None, None) => None,
        (Some(one), None) | (None, Some(one)) => Some(format!("({one})")),
        (Some(code), Some(retriable)) => Some(format!("({code} {retriable})")),
    }
}

/// A string or a number.
fn code(value: Json<'_>) -> Option<String> {
    let is_number = value.get().starts_with(|c: char| c == '-' || c.is_ascii_digit());
    let text = if is_number { Some(value.get().to_string()) } else { words(value) };
    text.map(|text| cut(&text, TOOL_CODE_MAX))
}

/// A boolean, also as a string or a number.
fn boolean(value: Json<'_>) -> Option<String> {
    let text = value.text().map_or_else(|| value.get().to_string(), |text| text.trim().to_ascii_lowercase());
    match text.as_str() {
        "true" | "1" | "yes" => Some("true".to_string()),
        "false" | "0" | "no" => Some("false".to_string()),
        _ => None,
    }
}

fn blocks(result: Json<'_>) -> impl Iterator<Item = Json<'_>> {
    let content = result.member("content").map_or("", Json::get);
    items(content.as_bytes()).map_while(Result::ok)
}

fn text_of<'a>(block: Json<'a>) -> Option<std::borrow::Cow<'a, str>> {
    let is_text = block.member("type").and_then(Json::text).is_some_and(|kind| kind == "text");
    is_text.then(|| block.member("text").and_then(Json::text)).flatten()
}

/// The text blocks alone, if they say anything.
fn texts_only(result: Json<'_>) -> Option<String> {
    let mut all = String::new();
    for text in blocks(result).filter_map(text_of).filter(|text| !text.trim().is_empty()) {
        if !all.is_empty() {
            all.push('\n');
        }
        all += &text;
    }
    (!all.is_empty()).then_some(all)
}

/// `format: "text"`: the structured content as YAML, else the blocks, of which those that are no text are named.
pub fn as_text(result: Json<'_>) -> String {
    if let Some(content) = structured(result) {
        return yaml(content);
    }
    let mut all = String::new();
    for (at, block) in blocks(result).enumerate() {
        if at > 0 {
            all.push('\n');
        }
        match text_of(block) {
            Some(text) => all += &text,
            None => name(&mut all, block),
        }
    }
    all
}

/// Such as `[image image/png, 1234 bytes]`.
fn name(out: &mut String, block: Json<'_>) {
    let place = block.member("resource").unwrap_or(block);
    let say = |value: Option<Json<'_>>| value.and_then(Json::text).map(|text| cut(&text, TOOL_CODE_MAX));
    *out += "[";
    *out += say(block.member("type")).as_deref().unwrap_or("unknown");
    for part in [say(place.member("uri")), say(place.member("mimeType"))].into_iter().flatten() {
        *out += " ";
        *out += &part;
    }
    let data = [block.member("data"), place.member("blob")].into_iter().flatten().find_map(Json::text);
    let size = match (data, place.member("text").and_then(Json::text)) {
        (Some(data), _) => Some(data.trim_end_matches('=').len() * 3 / 4),
        (None, Some(text)) => Some(text.len()),
        // A link has its own word for it.
        (None, None) => place.member("size").and_then(|size| size.get().parse().ok()),
    };
    if let Some(size) = size {
        _ = write!(out, ", {size} bytes");
    }
    *out += "]";
}

/// The first so many characters.
fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_string(),
        Some((at, _)) => format!("{}…", &text[..at]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(result: &str) -> String {
        ToolError::of(Json::of(result).unwrap()).unwrap().message
    }

    /// Of a result with this structured content and one text block.
    fn structured_message(content: &str) -> String {
        let block = r#"{"type":"text","text":"from the block"}"#;
        message(&format!(r#"{{"isError":true,"structuredContent":{content},"content":[{block}]}}"#))
    }

    #[test]
    fn a_result_is_an_error_if_its_own_flag_says_so() {
        for result in [r#"{"isError":true}"#, r#"{"content":[{"text":"E"}], "isError" : true}"#] {
            assert!(is_error(result.as_bytes()), "{result}");
        }
        for result in [
            r#"{"isError":false}"#,
            r#"{"structuredContent":{"isError":true}}"#,
            r#"{"text":"\"isError\":true","isError":false}"#,
            r#"["isError",true]"#,
            r#"{"x":"isError","y":true}"#,
            "E",
            r#""isError""#,
            r#"{"isError":true"#,
        ] {
            assert!(!is_error(result.as_bytes()), "{result}");
        }
    }

    #[test]
    fn the_message_is_the_first_of_message_error_error_message_and_detail() {
        for (content, expected) in [
            (r#"{"detail":"d","error":"e","message":"m"}"#, "m"),
            (r#"{"detail":"d","error":"e"}"#, "e"),
            (r#"{"detail":"d","error":{"message":"em"}}"#, "em"),
            (r#"{"detail":"d"}"#, "d"),
            (r#"{"message":" ","error":7,"detail":"d"}"#, "d"),
            (r#"{"message":null,"error":{"message":""}}"#, "from the block"),
            ("{}", "from the block"),
            ("null", "from the block"),
            ("[1]", "from the block"),
            (r#""text""#, "from the block"),
        ] {
            assert_eq!(structured_message(content), expected, "{content}");
        }
    }

    #[test]
    fn codes_and_whether_to_retry_stand_behind_it() {
        for (content, expected) in [
            (r#"{"message":"m","code":"E_TIMEOUT","retriable":false}"#, "m (code=E_TIMEOUT retriable=false)"),
            (r#"{"message":"m","errorCode":"E"}"#, "m (code=E)"),
            (r#"{"message":"m","statusCode":503}"#, "m (code=503)"),
            (r#"{"message":"m","statusCode":1,"errorCode":2,"code":3}"#, "m (code=3)"),
            (r#"{"message":"m","code":-32000}"#, "m (code=-32000)"),
            (r#"{"message":"m","code":null,"statusCode":4}"#, "m (code=4)"),
            (r#"{"message":"m","code":{"a":1}}"#, "m"),
            (r#"{"message":"m","retryable":true}"#, "m (retriable=true)"),
            (r#"{"message":"m","retriable":"True"}"#, "m (retriable=true)"),
            (r#"{"message":"m","retriable":"false"}"#, "m (retriable=false)"),
            (r#"{"message":"m","retriable":1}"#, "m (retriable=true)"),
            (r#"{"message":"m","retryable":0}"#, "m (retriable=false)"),
            (r#"{"message":"m","retriable":"0"}"#, "m (retriable=false)"),
            (r#"{"message":"m","retriable":"perhaps","retryable":"yes"}"#, "m (retriable=true)"),
            (r#"{"message":"m","retriable":[]}"#, "m"),
            (r#"{"error":{"message":"em","code":5,"retryable":"no"}}"#, "em (code=5 retriable=false)"),
            (r#"{"code":"E"}"#, "from the block (code=E)"),
        ] {
            assert_eq!(structured_message(content), expected, "{content}");
        }
    }

    #[test]
    fn text_blocks_come_next_and_the_raw_result_last() {
        let blocks = r#"{"isError":true,"content":[{"type":"text","text":"one"},{"type":"image","data":"x"},{"type":"text","text":"two"}]}"#;
        assert_eq!(message(blocks), "one\ntwo");
        let raw = r#"{"isError":true,"content":[{"type":"image","data":"x"}]}"#;
        assert_eq!(message(raw), raw);
        let long = format!(r#"{{"isError":true,"x":"{}"}}"#, "é".repeat(5000));
        assert_eq!(message(&long).chars().count(), TOOL_ERROR_RAW_MAX + 1);
        assert!(message(&long).ends_with("é…"));
        let words = structured_message(&format!(r#"{{"message":"{}"}}"#, "x".repeat(2 * TOOL_MESSAGE_MAX)));
        assert_eq!(words.chars().count(), TOOL_MESSAGE_MAX + 1);
    }

    #[test]
    fn only_a_result_that_says_so_is_an_error() {
        for result in ["{}", r#"{"isError":false}"#, r#"{"isError":"true"}"#, r#"{"isError":1}"#, "[]", "null"] {
            assert_eq!(ToolError::of(Json::of(result).unwrap()), None, "{result}");
        }
    }

    #[test]
    fn the_answer_has_the_result_as_it_came_and_its_cause() {
        let text = r#"{ "isError":true, "structuredContent": {"message":"a \"b\"" } }"#;
        let result = Json::of(text).unwrap();
        let error = ToolError::of(result).unwrap();
        let body = error.body(result.get());
        assert!(body.starts_with(&format!("{{\"result\":{text},\"error\":")), "{body}");
        let read: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(read["error"]["code"], "tool_error");
        assert_eq!(read["error"]["message"], "a \"b\"");
        assert_eq!(read["error"]["data"]["cause"]["message"], "a \"b\"");
        let bare = Json::of(r#"{"isError":true}"#).unwrap();
        let read: serde_json::Value = serde_json::from_str(&ToolError::of(bare).unwrap().body(bare.get())).unwrap();
        assert_eq!(read["error"]["data"], serde_json::json!({}));
    }

    #[test]
    fn any_result_can_be_told_as_text() {
        let told = |text: &str| as_text(Json::of(text).unwrap());
        assert_eq!(
            told(r#"{"structuredContent":{"a":[1,2]},"content":[{"type":"text","text":"x"}]}"#),
            "a:\n  - 1\n  - 2"
        );
        let blocks = r#"{"content":[{"type":"text","text":"x"},{"type":"image","mimeType":"image/png","data":"AAAA"},
            {"type":"audio","data":"AA=="},{"type":"resource","resource":{"uri":"file:///a","text":"é"}},
            {"type":"resource","resource":{"uri":"u","mimeType":"m","blob":"AAAAAA=="}},
            {"type":"resource_link","uri":"u","size":9},{},7,{"type":"text"}]}"#;
        let expected = "x\n[image image/png, 3 bytes]\n[audio, 1 bytes]\n[resource file:///a, 2 bytes]\n\
            [resource u m, 4 bytes]\n[resource_link u, 9 bytes]\n[unknown]\n[unknown]\n[text]";
        assert_eq!(told(blocks), expected);
        for nothing in ["{}", r#"{"content":[]}"#, r#"{"content":5}"#, "[]"] {
            assert_eq!(told(nothing), "");
        }
    }
}
