//! Every refusal the daemon can give, and the one table from code to HTTP status. Errors of the MCP servers
//! themselves are not faults: they pass through unchanged (`server_error_status`).

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Code {
    InvalidRequest,
    UnknownField,
    InvalidJson,
    Unauthorized,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    RequestTimeout,
    NameTaken,
    PortTaken,
    BridgeDisabled,
    ServerStopped,
    PayloadTooLarge,
    UriTooLong,
    UnsupportedMediaType,
    ExpectationFailed,
    ImageNotFound,
    SecretMissing,
    ProviderUnusable,
    QueueFull,
    RateLimited,
    HeadersTooLarge,
    NotImplemented,
    RestartFailed,
    ServerCrashed,
    ResponseTooLarge,
    BadServerOutput,
    RestartInProgress,
    CircuitOpen,
    UpstreamUnavailable,
    AmbiguousTool,
    ToolNotFound,
    StoreUnavailable,
    Unavailable,
    Overloaded,
    CallTimeout,
    VersionNotSupported,
}

impl Code {
    pub const ALL: [Code; 37] = [
        Code::InvalidRequest,
        Code::UnknownField,
        Code::InvalidJson,
        Code::Unauthorized,
        Code::Forbidden,
        Code::NotFound,
        Code::MethodNotAllowed,
        Code::RequestTimeout,
        Code::NameTaken,
        Code::PortTaken,
        Code::BridgeDisabled,
        Code::ServerStopped,
        Code::PayloadTooLarge,
        Code::UriTooLong,
        Code::UnsupportedMediaType,
        Code::ExpectationFailed,
        Code::ImageNotFound,
        Code::SecretMissing,
        Code::ProviderUnusable,
        Code::QueueFull,
        Code::RateLimited,
        Code::HeadersTooLarge,
        Code::NotImplemented,
        Code::RestartFailed,
        Code::ServerCrashed,
        Code::ResponseTooLarge,
        Code::BadServerOutput,
        Code::RestartInProgress,
        Code::CircuitOpen,
        Code::UpstreamUnavailable,
        Code::AmbiguousTool,
        Code::ToolNotFound,
        Code::StoreUnavailable,
        Code::Unavailable,
        Code::Overloaded,
        Code::CallTimeout,
        Code::VersionNotSupported,
    ];

    /// The stable name on the wire and its HTTP status.
    pub fn wire(self) -> (&'static str, u16) {
        match self {
            Code::InvalidRequest => ("invalid_request", 400),
            Code::UnknownField => ("unknown_field", 400),
            Code::InvalidJson => ("invalid_json", 400),
            Code::Unauthorized => ("unauthorized", 401),
            Code::Forbidden => ("forbidden", 403),
            Code::NotFound => ("not_found", 404),
            Code::MethodNotAllowed => ("method_not_allowed", 405),
            Code::RequestTimeout => ("request_timeout", 408),
            Code::NameTaken => ("name_taken", 409),
            Code::PortTaken => ("port_taken", 409),
            Code::BridgeDisabled => ("bridge_disabled", 409),
            Code::ServerStopped => ("server_stopped", 409),
            Code::PayloadTooLarge => ("payload_too_large", 413),
            Code::UriTooLong => ("uri_too_long", 414),
            Code::UnsupportedMediaType => ("unsupported_media_type", 415),
            Code::ExpectationFailed => ("expectation_failed", 417),
            Code::ImageNotFound => ("image_not_found", 422),
            Code::SecretMissing => ("secret_missing", 422),
            Code::ProviderUnusable => ("provider_unusable", 422),
            Code::QueueFull => ("queue_full", 429),
            Code::RateLimited => ("rate_limited", 429),
            Code::HeadersTooLarge => ("headers_too_large", 431),
            Code::NotImplemented => ("not_implemented", 501),
            Code::RestartFailed => ("mcp_restart_failed", 502),
            Code::ServerCrashed => ("server_crashed", 502),
            Code::ResponseTooLarge => ("response_too_large", 502),
            Code::BadServerOutput => ("bad_server_output", 502),
            Code::RestartInProgress => ("mcp_restart_in_progress", 503),
            Code::CircuitOpen => ("circuit_open", 503),
            Code::UpstreamUnavailable => ("upstream_unavailable", 503),
            Code::AmbiguousTool => ("ambiguous_tool", 409),
            Code::ToolNotFound => ("tool_not_found", 404),
            Code::StoreUnavailable => ("store_unavailable", 503),
            Code::Unavailable => ("unavailable", 503),
            Code::Overloaded => ("overloaded", 503),
            Code::CallTimeout => ("call_timeout", 504),
            Code::VersionNotSupported => ("http_version_not_supported", 505),
        }
    }

    pub fn status(self) -> u16 {
        self.wire().1
    }
}

/// Did the server see the call? Every error of a call says so: a call that was never sent is safe to repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    NotSent,
    SentUnknown,
}

impl Outcome {
    pub fn wire(self) -> &'static str {
        match self {
            Outcome::NotSent => "not_sent",
            Outcome::SentUnknown => "sent_unknown",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    pub code: Code,
    pub message: String,
    #[serde(with = "crate::model::frozen::json")]
    pub data: Map<String, Value>,
    pub retry_after_s: Option<u64>,
    /// 405 only: what would have been allowed.
    pub allow: Option<String>,
    /// 401 and 403: how to get in, for `WWW-Authenticate`.
    pub challenge: Option<String>,
}

impl Fault {
    pub fn new(code: Code, message: impl Into<String>) -> Fault {
        Fault { code, message: message.into(), data: Map::new(), retry_after_s: None, allow: None, challenge: None }
    }

    /// A field of the request that cannot be; `field` is its path, as in `resource_limits.cpu`.
    pub fn field(field: &str, message: impl std::fmt::Display) -> Fault {
        Fault::new(Code::InvalidRequest, format!("{field}: {message}")).with("field", field)
    }

    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Fault {
        self.data.insert(key.to_string(), value.into());
        self
    }

    pub fn outcome(self, outcome: Outcome) -> Fault {
        self.with("outcome", outcome.wire())
    }

    pub fn retry_after_ms(mut self, ms: u64) -> Fault {
        self.retry_after_s = Some(ms.div_ceil(1000).max(1));
        self
    }

    /// The one error shape.
    pub fn body(&self) -> Value {
        json!({ "error": { "code": self.code.wire().0, "message": self.message, "data": self.data } })
    }
}

/// The HTTP status for a JSON-RPC error that the server itself gave.
pub fn server_error_status(code: i64) -> u16 {
    match code {
        -32601 => 404,
        -32602 | -32600 => 400,
        -32603 => 500,
        _ => 502,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_in_the_list_once_and_has_a_name_of_its_own() {
        for (at, code) in Code::ALL.into_iter().enumerate() {
            assert_eq!(code as usize, at);
            assert!(Code::ALL[..at].iter().all(|other| other.wire().0 != code.wire().0), "{code:?}");
        }
        assert_eq!(Code::ALL.last(), Some(&Code::VersionNotSupported), "the last of them");
    }
}
