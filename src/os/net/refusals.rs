//! What the daemon itself answers when it cannot serve a client: no room for its request, for its answer, or for a request
//! that is not read to its end. Owns the words, and what is said of a call; sends nothing.

use crate::api::audit::Draft;
use crate::api::request::Ask;
use crate::api::response::Answer;
use crate::api::{audit, mcp, rest, route};
use crate::core::contract::Now;
use crate::limits::OVERLOAD_RETRY;
use crate::model::fault::{Code, Fault, Outcome};
use crate::model::principal::Principal;
use crate::os::logs::audit::Audit;
use crate::os::net::rates::Rates;
use crate::shares::Short;
use crate::wire::http_in::Method;
use crate::wire::http_out::Response;

/// To a request that has not been read to its end, at this path: if it is a call, nothing of it was sent.
pub fn unread(fault: Fault, path: &str) -> Response {
    let is_call = route::find(Method::Post, path).is_ok_and(|found| found.row.is_call());
    rest::refuse(&if is_call { fault.outcome(Outcome::NotSent) } else { fault })
}

pub fn overloaded(short: Short) -> Fault {
    let why = match short {
        Short::Owner => {
            "your other requests and connections take all that one token may have; end some, or send less at once"
        }
        Short::Whole => "requests of other clients fill the memory there is for them; try again, or send less at once",
    };
    Fault::new(Code::Overloaded, why).retry_after_ms(OVERLOAD_RETRY.as_millis() as u64)
}

/// For an answer that has no room, because its client does not read those that it has.
fn crowded(short: Short) -> Fault {
    let why = match short {
        Short::Owner => "answers and streams that you have not read take all that one token may have; read them first",
        Short::Whole => "answers that other clients have not read take all the memory there is for them; try again",
    };
    Fault::new(Code::Overloaded, why).retry_after_ms(OVERLOAD_RETRY.as_millis() as u64)
}

pub fn crowded_out(short: Short) -> Response {
    rest::refuse(&crowded(short))
}

/// The server has answered, so whatever it was asked to do is done.
pub fn crowded_call(short: Short) -> Response {
    rest::refuse(&crowded(short).outcome(Outcome::SentUnknown))
}

pub fn crowded_message(short: Short) -> Response {
    mcp::refuse(None, &crowded(short).outcome(Outcome::SentUnknown))
}

/// Whoever asks more often than its rate allows.
pub fn too_often(rates: &mut Rates, who: &Principal, ask: &Ask<'_>, now: Now) -> Result<(), Response> {
    rates.take(who, audit::asks(ask), now.mono_ms).map_err(|fault| {
        let fault = fault.outcome(Outcome::NotSent);
        match audit::mcp(ask) {
            Some(ask) => mcp::refuse(audit::request_id(ask), &fault),
            None => rest::refuse(&fault),
        }
    })
}

/// What has to be written down cannot be. Whatever takes something away is done all the same.
pub fn unwritable(audit: &Audit, drafts: &[Draft]) -> Result<(), Response> {
    let Some(why) = audit.refuses().filter(|_| !drafts.iter().all(Draft::may_go_unwritten)) else { return Ok(()) };
    let message = format!(
        "the audit log cannot be written ({why}), so nothing is changed: make room on the disk of the data directory, or \
         set `audit_on_error = \"continue\"`"
    );
    Err(rest::refuse(&Fault::new(Code::Unavailable, message).outcome(Outcome::NotSent).retry_after_ms(5_000)))
}

/// Whether this answer begins a stream, and what its client gets if there is no room for it.
pub fn without_room(answer: &Answer) -> (bool, fn(Short) -> Response) {
    match answer {
        Answer::Stream { .. } | Answer::News(_) => (true, crowded_out),
        Answer::McpResult { .. } | Answer::McpList { .. } | Answer::Message { .. } => (false, crowded_message),
        Answer::Result(_) | Answer::ServerError { .. } | Answer::ToolResult { .. } => (false, crowded_call),
        Answer::Registered(_)
        | Answer::Status(_)
        | Answer::List(_)
        | Answer::Definition(_)
        | Answer::Deleted
        | Answer::Tools(_)
        | Answer::Logs { .. }
        | Answer::Accepted
        | Answer::SessionEnded
        | Answer::Ready { .. }
        | Answer::TokenCreated { .. }
        | Answer::Tokens(_)
        | Answer::TokenRevoked
        | Answer::KeyRotated
        | Answer::Metrics(_)
        | Answer::MetricsText(_)
        | Answer::Samples(_)
        | Answer::ExternalCreated(_)
        | Answer::External(_)
        | Answer::Externals(_)
        | Answer::Unloaded { .. }
        | Answer::SecretStored(_)
        | Answer::Secrets(_)
        | Answer::SecretDeleted
        | Answer::Manifest { .. }
        | Answer::Imported { .. }
        | Answer::ProjectTools { .. }
        | Answer::Calls(_)
        | Answer::Refused(_) => (false, crowded_out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_was_not_read_was_not_sent() {
        let outcome = |path: &str| {
            let response = unread(Fault::new(Code::PayloadTooLarge, "too long"), path);
            assert_eq!(response.status, 413);
            let body: serde_json::Value = serde_json::from_slice(&response.whole_body()).expect("JSON");
            body["error"]["data"]["outcome"].as_str().map(str::to_owned)
        };
        assert_eq!(outcome("/api/v1/mcp/servers/notes/call").as_deref(), Some("not_sent"));
        assert_eq!(outcome("/api/v1/mcp/hosted/notes/call").as_deref(), Some("not_sent"));
        for other in ["/api/v1/mcp/servers", "/api/v1/mcp/servers/notes", "/", "", "/no/call"] {
            assert_eq!(outcome(other), None, "{other}");
        }
    }
}
