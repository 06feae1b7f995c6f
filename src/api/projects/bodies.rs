//! The bodies of requests to a project that are no servers: a tool call, and the value of a secret. Arguments stay a slice of
//! the body, as the client wrote them.

use crate::api::definition::strict_json::{self, Fields};
use crate::api::request::{ResultFormat, ToolCall};
use crate::limits::{NAME_MAX, RUN_ID_MAX, SECRET_VALUE_MAX, TOOL_NAME_MAX, WAIT_MS};
use crate::model::external::Secret;
use crate::model::fault::Fault;
use crate::wire::json::Json;

pub const TOOL_CALL: [&str; 6] = ["name", "arguments", "server", "timeout_ms", "format", "run_id"];

pub fn tool_call(body: &[u8]) -> Result<ToolCall<'_>, Fault> {
    let given = strict_json::members(body, &TOOL_CALL)?;
    let [tool, arguments, server, timeout_ms, format, run_id] = given.map(|raw| raw.filter(|raw| raw.get() != "null"));
    let text = |field: &str, raw: Option<Json<'_>>, most: usize| {
        let expected = || Fault::field(field, format_args!("expected a string of 1 to {most} bytes"));
        let check = |raw: Json<'_>| {
            let text = raw.text().filter(|text| (1..=most).contains(&text.len()) && !text.contains('\0'));
            text.map(|text| text.into_owned()).ok_or_else(expected)
        };
        raw.map(check).transpose()
    };
    let timeout_ms = match timeout_ms {
        None => None,
        Some(raw) => Some(raw.get().parse().ok().filter(|ms| WAIT_MS.contains(ms)).ok_or_else(|| {
            let (least, most) = WAIT_MS.into_inner();
            Fault::field("timeout_ms", format_args!("expected an integer from {least} to {most}"))
        })?),
    };
    let format = match text("format", format, NAME_MAX)?.as_deref() {
        None | Some("json") => ResultFormat::Json,
        Some("text") => ResultFormat::Text,
        Some(_) => return Err(Fault::field("format", "expected \"json\" or \"text\"")),
    };
    if arguments.is_some_and(|raw| !raw.get().starts_with('{')) {
        return Err(Fault::field("arguments", "expected an object"));
    }
    Ok(ToolCall {
        tool: text("name", tool, TOOL_NAME_MAX)?.ok_or_else(|| Fault::field("name", "is required"))?,
        arguments,
        server: text("server", server, NAME_MAX)?,
        timeout_ms,
        format,
        run_id: text("run_id", run_id, RUN_ID_MAX)?,
    })
}

/// `{"value": "…"}`.
pub fn secret_value(body: &[u8]) -> Result<Secret, Fault> {
    let mut fields = Fields::of(strict_json::object(body)?, &["value"])?;
    let value = fields.required("value")?.text(SECRET_VALUE_MAX)?;
    fields.finish();
    Ok(Secret::new(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_call_is_read_and_its_arguments_stay_as_they_are() {
        let body =
            br#"{"name":"sum","arguments":{ "a":1.50 },"server":"s","timeout_ms":5,"format":"text","run_id":"r"}"#;
        let call = tool_call(body).unwrap();
        assert_eq!((call.tool.as_str(), call.arguments.unwrap().get()), ("sum", r#"{ "a":1.50 }"#));
        assert_eq!((call.server.as_deref(), call.timeout_ms, call.run_id.as_deref()), (Some("s"), Some(5), Some("r")));
        assert_eq!(call.format, ResultFormat::Text);
        for (body, field) in [
            (r#"{"arguments":{}}"#, "name"),
            (r#"{"name":""}"#, "name"),
            (r#"{"name":"a\u0000"}"#, "name"),
            (r#"{"name":"a","arguments":[1]}"#, "arguments"),
            (r#"{"name":"a","timeout_ms":0}"#, "timeout_ms"),
            (r#"{"name":"a","format":"xml"}"#, "format"),
            (r#"{"name":"a","server":7}"#, "server"),
            (r#"{"name":"a","tool":"b"}"#, "tool"),
        ] {
            assert_eq!(tool_call(body.as_bytes()).unwrap_err().data["field"], field, "{body}");
        }
    }

    #[test]
    fn a_secret_is_one_string_and_is_not_shown_in_a_refusal() {
        assert_eq!(secret_value(br#"{"value":"hunter2"}"#).unwrap().expose(), "hunter2");
        for body in
            [r#"{"value":["hunter2"]}"#, r#"{"value":null}"#, r#"{"value":"hunter2\u0000"}"#, r#"{"valu":"hunter2"}"#]
        {
            assert!(!secret_value(body.as_bytes()).unwrap_err().message.contains("hunter2"), "{body}");
        }
    }
}
