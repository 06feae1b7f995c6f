//! Why a subcommand did not do what it was asked, told so that the reader knows what to do next. Owns the exit codes;
//! never holds a token.

use super::http::HttpError;
use super::table::{one_line, visible};
use crate::config::ConfigError;
use serde_json::Value;
use std::fmt;
use std::io;

pub enum Error {
    /// The command line cannot be meant like this.
    Usage(String),
    Config(ConfigError),
    Http(HttpError),
    /// The daemon, or the server behind it, said no.
    Refused(Box<Refusal>),
    /// Something of this machine stood in the way.
    Fault(String),
    /// Everything was said already; only the exit code is left.
    Told,
    Output(io::Error),
}

impl Error {
    pub fn not_ours() -> Error {
        Error::Fault("the answer is not what stdiod gives: is this the right address?".to_string())
    }

    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Usage(_) | Error::Config(_) => 2,
            Error::Http(_) | Error::Refused(_) | Error::Fault(_) | Error::Told => 1,
            // Whoever read our output has seen enough: `stdiod ls | head -1` is no failure.
            Error::Output(why) if why.kind() == io::ErrorKind::BrokenPipe => 0,
            Error::Output(_) => 1,
        }
    }

    /// What goes to stderr, if anything.
    pub fn message(&self) -> Option<String> {
        match self {
            Error::Usage(text) | Error::Fault(text) => Some(text.clone()),
            Error::Config(error) => Some(format!("wrong configuration: {error}")),
            Error::Http(error) => Some(error.to_string()),
            Error::Refused(refusal) => Some(refusal.to_string()),
            Error::Told => None,
            Error::Output(why) if why.kind() == io::ErrorKind::BrokenPipe => None,
            Error::Output(why) => Some(format!("cannot write: {why}")),
        }
    }
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Error {
        Error::Config(error)
    }
}

impl From<HttpError> for Error {
    fn from(error: HttpError) -> Error {
        Error::Http(error)
    }
}

/// Only the screen is written to with `?`.
impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Error::Output(error)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refuser {
    Daemon,
    /// The MCP server itself answered with an error.
    Server,
}

/// An error answer of the API.
#[derive(Debug)]
pub struct Refusal {
    pub status: u16,
    pub by: Refuser,
    pub code: String,
    pub message: String,
    pub data: Value,
    pub retry_after: Option<String>,
    /// What the user can do about it, where the client knows.
    pub remedy: Option<String>,
    /// The answer as it came.
    pub body: Vec<u8>,
}

impl Refusal {
    pub fn new(status: u16, by: Refuser, retry_after: Option<&str>, body: Vec<u8>) -> Refusal {
        let parsed: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let error = &parsed["error"];
        let code = match &error["code"] {
            Value::String(code) => code.clone(),
            Value::Number(code) => code.to_string(),
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => format!("HTTP {status}"),
        };
        let message = match error["message"].as_str() {
            Some(message) => message.to_string(),
            None => "the answer is no error of stdiod: is this the right address?".to_string(),
        };
        let retry_after = retry_after.map(str::to_string);
        Refusal { status, by, code, message, data: error["data"].clone(), retry_after, remedy: None, body }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.by == Refuser::Server {
            f.write_str("the server answered with an error: ")?;
        }
        write!(f, "{} ({})", one_line(&self.message), one_line(&self.code))?;
        match self.data["outcome"].as_str() {
            Some("not_sent") => f.write_str("; it was never sent, so it is safe to repeat")?,
            Some("sent_unknown") => f.write_str("; it was sent, and whether it ran is unknown")?,
            Some(_) | None => {}
        }
        if let Some(seconds) = &self.retry_after {
            write!(f, "; try again in {} s", one_line(seconds))?;
        }
        if let Some(remedy) = &self.remedy {
            write!(f, "\n{remedy}")?;
        }
        if self.by == Refuser::Server && !self.data.is_null() {
            write!(f, "\n{}", visible(&self.data.to_string()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(by: Refuser, body: &str) -> String {
        Refusal::new(502, by, None, body.as_bytes().to_vec()).to_string()
    }

    #[test]
    fn a_refusal_says_message_code_and_outcome() {
        let body = r#"{"error":{"code":"server_crashed","message":"it died","data":{"outcome":"sent_unknown"}}}"#;
        assert_eq!(
            refusal(Refuser::Daemon, body),
            "it died (server_crashed); it was sent, and whether it ran is unknown"
        );
        let body = r#"{"result":null,"error":{"code":-32601,"message":"Unknown tool: x","data":[1]}}"#;
        assert_eq!(refusal(Refuser::Server, body), "the server answered with an error: Unknown tool: x (-32601)\n[1]");
    }

    #[test]
    fn an_answer_that_is_no_error_of_ours_still_makes_a_sentence() {
        assert!(refusal(Refuser::Daemon, "<html>").contains("(HTTP 502)"));
        assert!(refusal(Refuser::Daemon, r#"{"error":"x"}"#).contains("right address"));
    }

    #[test]
    fn a_closed_pipe_is_no_failure() {
        let closed = Error::Output(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!((closed.exit_code(), closed.message()), (0, None));
    }
}
