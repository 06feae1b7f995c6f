//! JSON-RPC 2.0, one message per line: what a server's stdout says, and the lines written to its stdin. Owns the
//! shape of messages; never looks into `params` or `result`, and passes their bytes on as they are.
//! Whatever a server prints, `parse` and `reply_id_of_torn` give a verdict in linear time and never panic.

use crate::wire::http_out::push_decimal;
use crate::wire::json::{self, Json};
use memchr::{memchr2, memchr2_iter};
use serde::Deserialize;
use std::borrow::Cow;
use std::io::Write;

/// One line of a server, understood.
#[derive(Debug)]
pub enum Message<'a> {
    /// To one of our own ids, which are all unsigned integers.
    Reply {
        id: u64,
        body: Reply<'a>,
    },
    Request {
        id: Json<'a>,
        method: Cow<'a, str>,
        params: Option<Json<'a>>,
    },
    Notification {
        method: Cow<'a, str>,
        params: Option<Json<'a>>,
    },
    /// A JSON object, but nobody's: without a method, and with an id that is not one of ours (or none).
    Stray,
}

#[derive(Debug)]
pub enum Reply<'a> {
    Result(Json<'a>),
    Error {
        code: i64,
        raw: Json<'a>,
    },
    /// No result and no error, or both of them, or an error that is no object with an integer `code`.
    Neither,
}

/// A message before it is known what it is.
#[derive(Default)]
struct Envelope<'a> {
    id: Option<Json<'a>>,
    method: Option<Json<'a>>,
    params: Option<Json<'a>>,
    result: Option<Json<'a>>,
    error: Option<Json<'a>>,
}

/// Nothing: not a JSON object in valid UTF-8, so it is noise. Keys may come in any order, unknown ones are skipped, and
/// one of the known twice makes the whole line invalid: nobody can say which of the two was meant.
pub fn parse(line: &[u8]) -> Option<Message<'_>> {
    let mut message = Envelope::default();
    for member in json::members(line) {
        let (key, value) = member.ok()?;
        let place = match &*key {
            "id" => &mut message.id,
            "method" => &mut message.method,
            "params" => &mut message.params,
            "result" => &mut message.result,
            "error" => &mut message.error,
            _ => continue,
        };
        if place.replace(value).is_some() {
            return None;
        }
    }
    Some(classify(message))
}

fn classify(message: Envelope<'_>) -> Message<'_> {
    let answers = message.result.is_some() || message.error.is_some();
    match (Id::of(message.id), message.method) {
        (Id::Ours(id, _), None) => Message::Reply { id, body: reply(&message) },
        // A server that copies the request into its answer means the answer.
        (Id::Ours(id, _), Some(_)) if answers => Message::Reply { id, body: reply(&message) },
        (Id::Ours(_, id) | Id::Theirs(id), Some(method)) => match method.text() {
            Some(method) => Message::Request { id, method, params: message.params },
            None => Message::Stray,
        },
        (Id::Absent, Some(method)) => match method.text() {
            Some(method) => Message::Notification { method, params: message.params },
            None => Message::Stray,
        },
        (Id::Absent | Id::Theirs(_), None) | (Id::Invalid, _) => Message::Stray,
    }
}

enum Id<'a> {
    /// Also `null`: some libraries write that into every notification.
    Absent,
    Ours(u64, Json<'a>),
    /// A string, or a number we would never write.
    Theirs(Json<'a>),
    Invalid,
}

impl Id<'_> {
    fn of(id: Option<Json<'_>>) -> Id<'_> {
        let Some(raw) = id else { return Id::Absent };
        match raw.get().as_bytes().first() {
            Some(b'0'..=b'9' | b'-') => raw.get().parse().map_or(Id::Theirs(raw), |id| Id::Ours(id, raw)),
            Some(b'"') => Id::Theirs(raw),
            Some(b'n') => Id::Absent,
            Some(_) | None => Id::Invalid,
        }
    }
}

/// `null` beside the other of the two is the old way to say that it is not there.
fn reply<'a>(message: &Envelope<'a>) -> Reply<'a> {
    let given = |value: Option<Json<'a>>| value.filter(|raw| raw.get() != "null");
    match (message.result, given(message.error)) {
        (Some(result), None) => Reply::Result(result),
        (result, Some(raw)) if given(result).is_none() => match error_code(raw) {
            Some(code) => Reply::Error { code, raw },
            None => Reply::Neither,
        },
        (Some(_) | None, Some(_)) | (None, None) => Reply::Neither,
    }
}

fn error_code(error: Json<'_>) -> Option<i64> {
    #[derive(Deserialize)]
    struct Coded {
        code: i64,
    }
    let text = error.get();
    if !text.starts_with('{') {
        return None;
    }
    serde_json::from_str::<Coded>(text).ok().map(|coded| coded.code)
}

// --- lines that were too long to keep -----------------------------------------------------------------------------

/// What the ends of a discarded line tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Torn {
    ReplyTo(u64),
    /// A request or a notification of the server.
    NotAReply,
    Unknown,
}

/// Whose answer a line was of which only `head` and `tail` are left. Only members of the outermost object count: an
/// `"id"` inside a string or a nested value says nothing.
pub fn reply_id_of_torn(head: &[u8], tail: &[u8]) -> Torn {
    let mut seen = Seen::default();
    if members_of_head(head, &mut seen).is_none() {
        return Torn::Unknown;
    }
    members_of_tail(tail, &mut seen);
    let id = seen.id.filter(|_| !seen.ids_differ);
    if seen.request && !(seen.reply && id.is_some()) {
        return Torn::NotAReply;
    }
    id.map_or(Torn::Unknown, Torn::ReplyTo)
}

/// The members found so far, reduced to what decides.
#[derive(Default)]
struct Seen {
    id: Option<u64>,
    ids_differ: bool,
    request: bool,
    reply: bool,
}

impl Seen {
    /// `value`: its text, or nothing if it was cut.
    fn note(&mut self, key: &[u8], value: Option<&[u8]>) {
        match key {
            b"id" => {
                let id = value.and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
                self.ids_differ |= self.id.is_some() && self.id != id;
                self.id = id;
            }
            b"method" | b"params" => self.request = true,
            b"result" | b"error" => self.reply = true,
            _ => {}
        }
    }
}

/// Notes the members of the object that `text` starts with, up to the one that is cut. Nothing: it is no object.
fn members_of_head(text: &[u8], seen: &mut Seen) -> Option<()> {
    let mut rest = text.trim_ascii_start().strip_prefix(b"{")?;
    loop {
        let Some((key, after)) = split_string(rest.trim_ascii_start()) else { return Some(()) };
        let Some(after) = after.trim_ascii_start().strip_prefix(b":") else { return Some(()) };
        let value = after.trim_ascii_start();
        let Some(length) = value_length(value) else {
            seen.note(key, None);
            return Some(());
        };
        seen.note(key, Some(&value[..length]));
        let Some(after) = value[length..].trim_ascii_start().strip_prefix(b",") else { return Some(()) };
        rest = after;
    }
}

/// The string that `text` starts with, without its quotes, and what follows it.
fn split_string(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let inner = text.strip_prefix(b"\"")?;
    let mut at = 0;
    loop {
        at += memchr2(b'"', b'\\', &inner[at..])?;
        if inner[at] == b'"' {
            return Some((&inner[..at], &inner[at + 1..]));
        }
        // A backslash and what it escapes; the slice above must not start past the end.
        at = (at + 2).min(inner.len());
    }
}

/// The length of the value that `text` starts with, if its end is there.
fn value_length(text: &[u8]) -> Option<usize> {
    let mut depth = 0usize;
    let mut at = 0;
    loop {
        match *text.get(at)? {
            b'"' => at = text.len() - split_string(&text[at..])?.1.len(),
            b'{' | b'[' => {
                depth += 1;
                at += 1;
            }
            b'}' | b']' => {
                // One too many: an empty value at the end of its object.
                depth = depth.checked_sub(1)?;
                at += 1;
            }
            _ if depth == 0 => return text.iter().position(|byte| b",}] \t\r".contains(byte)),
            _ => at += text[at..].iter().position(|byte| b"\"{}[]".contains(byte))?,
        }
        if depth == 0 {
            return Some(at);
        }
    }
}

/// Notes the last members of the object that `text` ends with, backwards to the first that is nested or cut. The
/// closing brace of a line is outside of every string, and so is everything this walk stands on.
fn members_of_tail(text: &[u8], seen: &mut Seen) -> Option<()> {
    let mut rest = text.trim_ascii_end().strip_suffix(b"}")?;
    loop {
        let value_end = rest.trim_ascii_end();
        let before_value = match value_end.last()? {
            b'"' => before_string(value_end)?,
            _ => {
                let scalar = value_end.iter().rev().take_while(|byte| is_scalar(**byte)).count();
                &value_end[..value_end.len() - scalar]
            }
        };
        let value = &value_end[before_value.len()..];
        let key_end = before_value.trim_ascii_end().strip_suffix(b":")?.trim_ascii_end();
        let before_key = before_string(key_end)?;
        let key = &key_end[before_key.len() + 1..key_end.len() - 1];
        // The byte before the key proves that its opening quote is one: it could be escaped, with the backslash cut.
        let (separator, earlier) = before_key.trim_ascii_end().split_last()?;
        if !matches!(separator, b',' | b'{') {
            return None;
        }
        seen.note(key, Some(value));
        if *separator == b'{' {
            return Some(());
        }
        rest = earlier;
    }
}

fn is_scalar(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"+-.".contains(&byte)
}

/// What stands before the string that `text` ends with. Quotes inside of a string have an odd number of backslashes
/// before them; its opening quote has none.
fn before_string(text: &[u8]) -> Option<&[u8]> {
    let mut end = text.strip_suffix(b"\"")?.len();
    loop {
        let quote = memchr::memrchr(b'"', &text[..end])?;
        if text[..quote].last() != Some(&b'\\') {
            return Some(&text[..quote]);
        }
        end = quote;
    }
}

// --- lines for a server's stdin -------------------------------------------------------------------------------------

/// A client's request under an id of ours. `method` and `params` are the client's own bytes, but for raw newlines
/// between tokens, which become spaces so that one message is one line (inside strings JSON has none).
pub fn request(id: u64, method: Json<'_>, params: Option<Json<'_>>) -> Vec<u8> {
    /// Everything but the method and the params, with the longest id.
    const FRAME: usize = "{'jsonrpc':'2.0','id':18446744073709551615,'method':,'params':}\n".len();
    let payload = method.get().len() + params.map_or(0, |params| params.get().len());
    let mut line = Vec::with_capacity(FRAME + payload);
    push_id(&mut line, id);
    line.extend_from_slice(method.get().as_bytes());
    push_params(&mut line, params.map(Json::get));
    line.extend_from_slice(b"}\n");
    line
}

/// A request of the daemon's own; `params` is JSON text on one line.
pub fn own_request(id: u64, method: &str, params: &str) -> Vec<u8> {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":{},\"params\":{params}}}\n", quoted(method)).into_bytes()
}

/// `params` is JSON text on one line.
pub fn notification(method: &str, params: Option<&str>) -> Vec<u8> {
    match params {
        Some(params) => format!("{{\"jsonrpc\":\"2.0\",\"method\":{},\"params\":{params}}}\n", quoted(method)),
        None => format!("{{\"jsonrpc\":\"2.0\",\"method\":{}}}\n", quoted(method)),
    }
    .into_bytes()
}

/// As `request`, for a method that was looked at; `params` may be spread over lines.
pub fn forwarded(id: u64, method: &str, params: Option<&str>) -> Vec<u8> {
    let mut line = Vec::with_capacity(64 + method.len() + params.map_or(0, str::len));
    push_id(&mut line, id);
    push_quoted(&mut line, method);
    push_params(&mut line, params);
    line.extend_from_slice(b"}\n");
    line
}

/// A client's notification, for a server.
pub fn forwarded_notification(method: &str, params: Option<&str>) -> Vec<u8> {
    let mut line = message(method, params);
    line.push(b'\n');
    line
}

/// A client's reply to a question of a server, under the server's own id; `body` is `"result":…` or `"error":…`.
pub fn forwarded_reply(id: Json<'_>, key: &str, value: Json<'_>) -> Vec<u8> {
    let mut line = Vec::with_capacity(64 + value.get().len());
    write!(line, r#"{{"jsonrpc":"2.0","id":{id},"{key}":"#).expect("a Vec takes everything");
    push_one_line(&mut line, value.get());
    line.extend_from_slice(b"}\n");
    line
}

/// The start of every request.
fn push_id(line: &mut Vec<u8>, id: u64) {
    line.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    push_decimal(line, id);
    line.extend_from_slice(br#","method":"#);
}

fn push_params(line: &mut Vec<u8>, params: Option<&str>) {
    if let Some(params) = params {
        line.extend_from_slice(br#","params":"#);
        push_one_line(line, params);
    }
}

fn push_one_line(line: &mut Vec<u8>, text: &str) {
    let start = line.len();
    line.extend_from_slice(text.as_bytes());
    let copied = &mut line[start..];
    for at in memchr2_iter(b'\n', b'\r', text.as_bytes()) {
        copied[at] = b' ';
    }
}

fn push_quoted(line: &mut Vec<u8>, text: &str) {
    if text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\') {
        line.push(b'"');
        line.extend_from_slice(text.as_bytes());
        line.push(b'"');
    } else {
        line.extend_from_slice(quoted(text).as_bytes());
    }
}

// --- messages to clients, without a line end ------------------------------------------------------------------------

/// The answer to a client's request; `id` and `result` are JSON text.
pub fn result(id: &str, result: &[u8]) -> Vec<u8> {
    [br#"{"jsonrpc":"2.0","id":"#, id.as_bytes(), br#","result":"#, result, b"}"].concat()
}

/// `error` is a whole error object.
pub fn error(id: &str, error: &[u8]) -> Vec<u8> {
    [br#"{"jsonrpc":"2.0","id":"#, id.as_bytes(), br#","error":"#, error, b"}"].concat()
}

/// A notification.
pub fn message(method: &str, params: Option<&str>) -> Vec<u8> {
    let mut out = Vec::with_capacity(48 + method.len() + params.map_or(0, str::len));
    out.extend_from_slice(br#"{"jsonrpc":"2.0","method":"#);
    push_quoted(&mut out, method);
    push_params(&mut out, params);
    out.push(b'}');
    out
}

/// A question of a server, under an id of ours.
pub fn question(id: u64, method: &str, params: Option<&str>) -> Vec<u8> {
    let mut line = forwarded(id, method, params);
    line.pop();
    line
}

/// `whole` with `part`, which was cut out of it, replaced.
pub fn spliced(whole: &str, part: &str, new: &str) -> String {
    let start = part.as_ptr() as usize - whole.as_ptr() as usize;
    [&whole[..start], new, &whole[start + part.len()..]].concat()
}

/// Nobody waits for the answer to `id` any more.
pub fn cancelled(id: u64, reason: &str) -> Vec<u8> {
    notification("notifications/cancelled", Some(&format!("{{\"requestId\":{id},\"reason\":{}}}", quoted(reason))))
}

/// An answer to a server's own request; `result` is JSON text.
pub fn result_reply(id: Json<'_>, result: &str) -> Vec<u8> {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}\n").into_bytes()
}

/// The answer to a request of the server that is not granted; `id` is its own, byte for byte.
pub fn error_reply(id: Json<'_>, code: i64, message: &str) -> Vec<u8> {
    let message = quoted(message);
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{{\"code\":{code},\"message\":{message}}}}}\n").into_bytes()
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::mutation::Mutator;

    fn raw(text: &str) -> Json<'_> {
        serde_json::from_str(text).unwrap()
    }

    /// A message in one word, for tables.
    fn verdict(line: &str) -> String {
        match parse(line.as_bytes()) {
            None => "noise".into(),
            Some(Message::Reply { id, body: Reply::Result(raw) }) => format!("result {id} {raw}"),
            Some(Message::Reply { id, body: Reply::Error { code, raw } }) => format!("error {id} {code} {raw}"),
            Some(Message::Reply { id, body: Reply::Neither }) => format!("neither {id}"),
            Some(Message::Request { id, method, params }) => {
                format!("request {id} {method} {}", params.map_or("-", Json::get))
            }
            Some(Message::Notification { method, params }) => {
                format!("notification {method} {}", params.map_or("-", Json::get))
            }
            Some(Message::Stray) => "stray".into(),
        }
    }

    #[test]
    fn every_kind_of_line_is_told_apart() {
        for (line, expected) in [
            (r#"{"jsonrpc":"2.0","id":7,"result":{"a":1.0}}"#, r#"result 7 {"a":1.0}"#),
            (r#" {"result" : [1, 2] , "x":{"id":3}, "id" : 7 } "#, "result 7 [1, 2]"),
            (r#"{"id":7,"result":null}"#, "result 7 null"),
            (r#"{"id":7,"result":1,"error":null}"#, "result 7 1"),
            (r#"{"id":7,"result":null,"error":null}"#, "result 7 null"),
            (r#"{"id":18446744073709551615,"result":0}"#, "result 18446744073709551615 0"),
            (r#"{"\u0069d":7,"result":0}"#, "result 7 0"),
            (r#"{"id":7,"method":"x","params":{},"result":0}"#, "result 7 0"),
            (r#"{"id":7,"error":{"message":"m","code":-32601}}"#, r#"error 7 -32601 {"message":"m","code":-32601}"#),
            (r#"{"id":7,"result":null,"error":{"code":1}}"#, r#"error 7 1 {"code":1}"#),
            (r#"{"id":7}"#, "neither 7"),
            (r#"{"id":7,"error":null}"#, "neither 7"),
            (r#"{"id":7,"result":1,"error":{"code":1}}"#, "neither 7"),
            (r#"{"id":7,"error":"bad"}"#, "neither 7"),
            (r#"{"id":7,"error":[-32601]}"#, "neither 7"),
            (r#"{"id":7,"error":{"code":"1"}}"#, "neither 7"),
            (r#"{"id":7,"error":{"code":1.5}}"#, "neither 7"),
            (r#"{"id":7,"error":{"code":1,"code":2}}"#, "neither 7"),
            (r#"{"id":7,"error":{"code":99999999999999999999}}"#, "neither 7"),
            (r#"{"id":7,"method":"roots/list"}"#, "request 7 roots/list -"),
            (r#"{"id":"a\"b","method":"p\u0069ng","params":[1]}"#, r#"request "a\"b" ping [1]"#),
            (r#"{"id":-1,"method":"ping"}"#, "request -1 ping -"),
            (r#"{"id":1.5,"method":"ping"}"#, "request 1.5 ping -"),
            (r#"{"method":"notifications/x","params":{}}"#, "notification notifications/x {}"),
            (r#"{"id":null,"method":"n"}"#, "notification n -"),
            (r#"{"id":"7","result":1}"#, "stray"),
            (r#"{"id":null,"error":{"code":-32700,"message":"parse"}}"#, "stray"),
            (r#"{"id":7.0,"result":1}"#, "stray"),
            (r#"{"id":-7,"result":1}"#, "stray"),
            (r#"{"id":{},"method":"x"}"#, "stray"),
            (r#"{"id":true,"result":1}"#, "stray"),
            (r#"{"method":5}"#, "stray"),
            (r#"{"level":"info","msg":"listening"}"#, "stray"),
            ("{}", "stray"),
            ("", "noise"),
            ("listening on port 3000", "noise"),
            ("[]", "noise"),
            (r#"[{"id":7,"result":1}]"#, "noise"),
            ("7", "noise"),
            ("null", "noise"),
            (r#"{"id":7,"result":1"#, "noise"),
            (r#"{"id":7,"result":1}}"#, "noise"),
            (r#"{"id":7,"result":1}{"id":8,"result":1}"#, "noise"),
            (r#"{"id":7,"id":8,"result":1}"#, "noise"),
            (r#"{"id":7,"result":1,"result":1}"#, "noise"),
            (r#"{"id":07,"result":1}"#, "noise"),
            (r#"{"id":7,"result":nul}"#, "noise"),
            ("{'id':7,'result':1}", "noise"),
            ("\u{feff}{\"id\":7,\"result\":1}", "noise"),
        ] {
            assert_eq!(verdict(line), expected, "{line}");
        }
        assert!(parse(b"{\"id\":7,\"result\":\"\xff\"}").is_none());
        assert!(parse(b"{\"id\":7,\"x\":\"\xc3\x28\",\"result\":1}").is_none());
    }

    #[test]
    fn a_result_keeps_its_bytes() {
        let exact = r#"{"n":1.50e+01,"big":123456789012345678901234567890,"k":"\u00e9\/","z":1,"a":[ 1 , 2 ]}"#;
        assert_eq!(verdict(&format!(r#"{{"id":1,"result":{exact}}}"#)), format!("result 1 {exact}"));
    }

    #[test]
    fn deep_nesting_costs_no_stack() {
        let deep = format!("{}{}", "[".repeat(1 << 20), "]".repeat(1 << 20));
        assert_eq!(verdict(&format!(r#"{{"id":1,"result":{deep}}}"#)), format!("result 1 {deep}"));
        assert_eq!(reply_id_of_torn(deep.as_bytes(), deep.as_bytes()), Torn::Unknown);
        assert_eq!(reply_id_of_torn(format!("{{\"a\":{deep}").as_bytes(), b""), Torn::Unknown);
    }

    #[test]
    fn a_torn_line_is_given_to_the_call_it_answers() {
        use Torn::*;
        for (head, tail, expected) in [
            (r#"{"jsonrpc":"2.0","id":5,"result":{"text":"aaa"#, r#"aaa"}}"#, ReplyTo(5)),
            (r#"{"jsonrpc":"2.0","id" : 5 , "error":{"#, "}}", ReplyTo(5)),
            (r#" {"a":{"id":1,"b":["}",{"id":2}]},"c":"\"id\":3,","id":5,"#, "", ReplyTo(5)),
            (r#"{"result":{"text":"aaa"#, r#"aaa"},"id":5}"#, ReplyTo(5)),
            (r#"{"result":{"text":"aaa"#, "aaa\"},\"id\": 5 ,\"jsonrpc\" : \"2.0\" }\r", ReplyTo(5)),
            (
                r#"{"result":"aaa"#,
                r#","id":9,","error":null,"x":"a\\\"b","id":5,"y":true,"jsonrpc":"2.0"}"#,
                ReplyTo(5),
            ),
            (r#"{"id":5,"method":"x","result":"aaa"#, "", ReplyTo(5)),
            (r#"{"id":5,"result":"aaa"#, r#"","id":5}"#, ReplyTo(5)),
            (r#"{"id":5,"method":"sampling/createMessage","params":{"#, "}}", NotAReply),
            (r#"{"method":"notifications/message","params":{"id":5,"result":1"#, "}}", NotAReply),
            (r#"{"id":5,"params":{"text":"aaa"#, r#"aaa"},"method":"x"}"#, NotAReply),
            (r#"{"jsonrpc":"2.0","x":"aaa"#, r#"","method":"x"}"#, NotAReply),
            // Cut inside the id, or before it.
            (r#"{"result":1,"id":12"#, "34567", Unknown),
            (r#"{"result":1,"id":"#, "", Unknown),
            (r#"{"result":1,"i"#, "", Unknown),
            (r#"{"result":1,"id\"#, "", Unknown),
            // Not at the top.
            (r#"{"result":{"id":5,"text":"aaa"#, r#"aaa","id":6}}"#, Unknown),
            (r#"{"result":[{"id":5}"#, r#",{"id":6}]}"#, Unknown),
            (r#"{"result":"{\"id\":5,"#, r#",\"id\":6}"}"#, Unknown),
            (r#"{"result":"aaa"#, r#"a,\"id":5}"#, Unknown),
            (r#"{"result":"aaa"#, r#""id":5}"#, Unknown),
            // Not one of ours, or two.
            (r#"{"id":"5","result":"aaa"#, r#"aaa"}"#, Unknown),
            (r#"{"id":-5,"result":"aaa"#, r#"aaa"}"#, Unknown),
            (r#"{"id":5.0,"result":"aaa"#, r#"aaa"}"#, Unknown),
            (r#"{"id":99999999999999999999,"result":"aaa"#, r#"aaa"}"#, Unknown),
            (r#"{"id":5,"result":"aaa"#, r#"","id":6}"#, Unknown),
            (r#"[{"id":5,"result":"aaa"#, r#"","id":5}]"#, Unknown),
            ("garbage", r#"..."id":5}"#, Unknown),
            ("", "", Unknown),
        ] {
            assert_eq!(reply_id_of_torn(head.as_bytes(), tail.as_bytes()), expected, "{head} ... {tail}");
        }
    }

    #[test]
    fn a_whole_message_cut_anywhere_is_never_given_to_another() {
        let line = br#"{"jsonrpc":"2.0","x":{"id":1,"s":"\\\",\"id\":2,"},"result":[{"id":3},"id",4],"id":5,"y":"\\"}"#;
        for cut in 0..line.len() {
            for back in 0..line.len() {
                let torn = reply_id_of_torn(&line[..cut], &line[back..]);
                assert!(matches!(torn, Torn::ReplyTo(5) | Torn::Unknown), "{cut} {back}: {torn:?}");
            }
        }
    }

    #[test]
    fn a_request_is_one_line_with_the_clients_bytes() {
        let params = raw("{\"a\" :\r\n\t[1.0,\n\"x\\ny\"]}");
        let line = request(12, raw(r#""tools\/call""#), Some(params));
        let text = String::from_utf8(line.clone()).unwrap();
        assert_eq!(
            text,
            "{\"jsonrpc\":\"2.0\",\"id\":12,\"method\":\"tools\\/call\",\"params\":{\"a\" :  \t[1.0, \"x\\ny\"]}}\n"
        );
        assert_eq!(request(0, raw(r#""m""#), None), b"{\"jsonrpc\":\"2.0\",\"id\":0,\"method\":\"m\"}\n");
        let longest = request(u64::MAX, raw(r#""m""#), Some(raw("[]")));
        assert_eq!(longest.len(), longest.capacity(), "one allocation of the right size");
    }

    #[test]
    fn our_own_lines_are_what_they_should_be() {
        for (line, expected) in [
            (own_request(1, "ping", "{}"), r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{}}"#),
            (notification("n", None), r#"{"jsonrpc":"2.0","method":"n"}"#),
            (notification("n", Some("[1]")), r#"{"jsonrpc":"2.0","method":"n","params":[1]}"#),
            (
                cancelled(4, "timed \"out\"\n"),
                r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":4,"reason":"timed \"out\"\n"}}"#,
            ),
            (
                error_reply(raw(r#""a\u0000""#), -32601, "no"),
                r#"{"jsonrpc":"2.0","id":"a\u0000","error":{"code":-32601,"message":"no"}}"#,
            ),
        ] {
            assert_eq!(String::from_utf8(line).unwrap(), format!("{expected}\n"));
        }
    }

    #[test]
    fn no_line_makes_it_panic() {
        let seeds: [&[u8]; 5] = [
            br#"{"jsonrpc":"2.0","id":7,"result":{"a":[1,"\u00e9\"",null]}}"#,
            br#"{"id":"x","method":"ping","params":{"deep":[[[{}]]]}}"#,
            br#"{"result":{"text":"a\\\"b"},"error":{"code":-1},"id":18446744073709551615}"#,
            br#"{"method":"n","id":null}"#,
            b"plain text \xff\xfe",
        ];
        let mut mutator = Mutator::new(2);
        for _ in 0..20_000 {
            let line = mutator.mutate(&seeds);
            let _ = parse(&line);
            let cut = mutator.below(line.len() + 1);
            let _ = reply_id_of_torn(&line[..cut], &line[cut..]);
            let _ = reply_id_of_torn(&line, &line);
        }
    }
}
