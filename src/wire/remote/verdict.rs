//! What a status or a broken answer of an external server means for the call that it belongs to, and for the link. The one
//! table; never tells a header's value. `not_sent` is said only where the server has refused to look at the message.

use crate::limits::LINK_RETRY_AFTER_MAX;
use crate::model::endpoint::{LinkFault, LinkFaultKind};
use crate::model::fault::{Code, Fault, Outcome};
use crate::wire::http::response::Head;

pub fn unavailable(message: impl Into<String>, outcome: Outcome) -> Fault {
    Fault::new(Code::UpstreamUnavailable, message).outcome(outcome)
}

pub fn bad_output(message: impl Into<String>) -> Fault {
    Fault::new(Code::BadServerOutput, message).outcome(Outcome::SentUnknown)
}

pub fn too_large(max: usize) -> Fault {
    let message = format!("the answer is larger than {max} bytes");
    Fault::new(Code::ResponseTooLarge, message).outcome(Outcome::SentUnknown)
}

/// Of a status that is no success.
pub fn of_status(status: u16, retry_after_ms: Option<u64>) -> Fault {
    // Whoever answers so has not handed it on; of any other nobody knows how far it came.
    let outcome = match status {
        408 => Outcome::SentUnknown,
        300..500 => Outcome::NotSent,
        _ => Outcome::SentUnknown,
    };
    let fault = unavailable(format!("the external server answers {status}"), outcome).with("upstream_status", status);
    match retry_after_ms {
        Some(ms) => fault.retry_after_ms(ms),
        None => fault,
    }
}

/// The same, where it ends the link.
pub fn link_fault(status: u16, retry_after_ms: Option<u64>) -> LinkFault {
    let kind = match status {
        401 | 403 => LinkFaultKind::Unauthorized(status),
        _ => LinkFaultKind::Status(status),
    };
    LinkFault { kind, message: format!("the external server answers {status}"), retry_after_ms }
}

/// `Retry-After` in seconds; a date is not understood.
pub fn retry_after_ms(head: &Head) -> Option<u64> {
    let seconds: u64 = head.header("retry-after")?.trim().parse().ok()?;
    Some(seconds.saturating_mul(1000).min(LINK_RETRY_AFTER_MAX.as_millis() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_was_not_sent_and_a_failure_may_have_been() {
        let outcome = |status| of_status(status, None).data["outcome"].clone();
        for status in [301, 400, 401, 403, 404, 429] {
            assert_eq!(outcome(status), "not_sent", "{status}");
        }
        for status in [408, 500, 502, 503, 504] {
            assert_eq!(outcome(status), "sent_unknown", "{status}");
        }
        assert_eq!(of_status(429, Some(1500)).retry_after_s, Some(2));
    }
}
