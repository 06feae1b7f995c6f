//! The daemon's REST API as the subcommands use it: where it is, which token opens it, and what its errors mean for the
//! user. Never prints; never tells the token.

use super::Common;
use super::error::{Error, Refusal, Refuser};
use super::http::{Answer, Client, Request, Streamed, Target};
use super::trust::Trust;
use crate::config::Config;
use crate::limits::{CLIENT_LIFECYCLE_WAIT, CLIENT_QUICK_WAIT, REQUEST_TIMEOUT_MAX};
use crate::wire::answer::Head;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub const SERVERS: &str = "/api/v1/mcp/servers";
pub const TOKENS: &str = "/api/v1/tokens";

/// How long an answer may take.
#[derive(Clone, Copy, Debug)]
pub enum Wait {
    /// The daemon knows it already.
    Quick,
    /// A server must start or stop first.
    Lifecycle,
    /// As long as a call may take.
    Call(Duration),
}

impl Wait {
    fn patience(self) -> Duration {
        match self {
            Wait::Quick => CLIENT_QUICK_WAIT,
            Wait::Lifecycle => CLIENT_LIFECYCLE_WAIT,
            Wait::Call(patience) => patience,
        }
    }
}

/// Where the token came from, for the day it is not accepted.
#[derive(Debug)]
enum TokenOrigin {
    File(PathBuf),
    Variable,
    /// There was none to send; that is no error yet, because a listener may ask for none.
    Nowhere {
        file: PathBuf,
        why: io::Error,
    },
    /// None was given, and the local one is not for that address.
    NotAsked,
    /// The control socket takes us for who we are.
    NotNeeded,
}

pub struct Api {
    client: Client,
    origin: TokenOrigin,
}

impl Api {
    /// `--url` or STDIOD_URL, else the configured daemon's own socket or listener; `--token-file` or STDIOD_TOKEN, else the
    /// admin token in the data directory, where one is needed. The configuration is read only if one of them is.
    pub fn new(common: &Common) -> Result<Api, Error> {
        let url = common.url.clone().or_else(|| variable("STDIOD_URL"));
        let given_token = match &common.token_file {
            Some(file) => {
                Some((read_token(file).map_err(|why| unreadable(file, &why))?, TokenOrigin::File(file.clone())))
            }
            None => variable("STDIOD_TOKEN").map(|token| (token, TokenOrigin::Variable)),
        };
        let (target, control) = match &url {
            Some(url) => {
                let parsed = Target::parse(url);
                (parsed.map_err(|remedy| Error::Usage(format!("`{url}` is no address: {remedy}")))?, None)
            }
            None => {
                let config = common.load_config()?;
                (Target::of(&config), Some(Target::Unix(config.control_socket())))
            }
        };
        let (token, origin) = match given_token {
            Some((token, origin)) => (Some(token), origin),
            None if control.as_ref() == Some(&target) => (None, TokenOrigin::NotNeeded),
            // The key to this machine is not handed to another, least of all in clear text.
            None if url.is_some() && !target.is_local() => (None, TokenOrigin::NotAsked),
            None => admin_token(common, url.is_some())?,
        };
        if token.as_deref().is_some_and(|token| !token.bytes().all(|b| b.is_ascii_graphic())) {
            return Err(Error::Usage(
                "the token holds characters that no token has: check its file or STDIOD_TOKEN".into(),
            ));
        }
        let trust = if target.is_tls() { Trust::of(common)? } else { Trust::default() };
        Ok(Api { client: Client::new(target, token, trust), origin })
    }

    pub fn address(&self) -> String {
        self.client.target().to_string()
    }

    pub fn get(&self, path: &str) -> Result<String, Error> {
        self.json("GET", path, None, Wait::Quick)
    }

    pub fn get_text(&self, path: &str) -> Result<String, Error> {
        let patience = Wait::Quick.patience();
        let request = Request { method: "GET", path, accept: "text/plain", body: None, more: &[], patience };
        self.accepted(self.client.send(&request)?)
    }

    pub fn post(&self, path: &str, body: Option<&[u8]>, wait: Wait) -> Result<String, Error> {
        self.json("POST", path, body, wait)
    }

    pub fn put(&self, path: &str, body: &[u8], wait: Wait) -> Result<String, Error> {
        self.json("PUT", path, Some(body), wait)
    }

    pub fn patch(&self, path: &str, body: &[u8], wait: Wait) -> Result<String, Error> {
        self.json("PATCH", path, Some(body), wait)
    }

    /// A question for which servers may have to be asked first.
    pub fn get_when(&self, path: &str, wait: Wait) -> Result<String, Error> {
        self.json("GET", path, None, wait)
    }

    pub fn delete(&self, path: &str) -> Result<(), Error> {
        self.json("DELETE", path, None, Wait::Lifecycle).map(|_| ())
    }

    /// An event stream that stays open as long as both sides like.
    pub fn follow(&self, path: &str) -> Result<Streamed, Error> {
        let patience = REQUEST_TIMEOUT_MAX;
        let request = Request { method: "GET", path, accept: "text/event-stream", body: None, more: &[], patience };
        let Streamed { head, body } = self.client.open(&request)?;
        if head.status == 200 {
            return Ok(Streamed { head, body });
        }
        let answer = self.client.finish(head, body, patience)?;
        Err(self.refusal(&answer.head, answer.body))
    }

    /// The error of a stream that broke.
    pub fn stream_fault(&self, why: io::Error) -> Error {
        Error::Http(self.client.fault(why, REQUEST_TIMEOUT_MAX))
    }

    pub fn change(&self, method: &str, path: &str, body: &[u8], wait: Wait) -> Result<String, Error> {
        self.json(method, path, Some(body), wait)
    }

    /// For those who keep connections.
    pub fn into_client(self) -> Client {
        self.client
    }

    fn json(&self, method: &str, path: &str, body: Option<&[u8]>, wait: Wait) -> Result<String, Error> {
        let request = Request { method, path, accept: "application/json", body, more: &[], patience: wait.patience() };
        self.accepted(self.client.send(&request)?)
    }

    fn accepted(&self, answer: Answer) -> Result<String, Error> {
        if !(200..300).contains(&answer.head.status) {
            return Err(self.refusal(&answer.head, answer.body));
        }
        String::from_utf8(answer.body)
            .map_err(|_| Error::Fault(format!("the answer from {} is not UTF-8", self.client.target())))
    }

    fn refusal(&self, head: &Head, body: Vec<u8>) -> Error {
        let by = match head.header("x-stdiod-error-source") {
            Some("server") => Refuser::Server,
            Some(_) | None => Refuser::Daemon,
        };
        let mut refusal = Refusal::new(head.status, by, head.header("retry-after"), body);
        // A server may answer -32601 and the like; 401 and 403 are always the daemon's.
        refusal.remedy = match head.status {
            401 => Some(self.remedy_unauthorized()),
            403 => Some(self.remedy_forbidden()),
            _ => None,
        };
        Error::Refused(Box::new(refusal))
    }

    fn remedy_unauthorized(&self) -> String {
        let other = "give another with --token-file FILE or STDIOD_TOKEN";
        match &self.origin {
            TokenOrigin::File(file) => format!("the token in {} was not accepted: {other}", file.display()),
            TokenOrigin::Variable => format!("the token in STDIOD_TOKEN was not accepted: {other}"),
            TokenOrigin::Nowhere { file, why } => format!(
                "no token was sent: cannot read {} ({why}); run as the daemon's user (sudo), or give one with \
                 --token-file FILE or STDIOD_TOKEN",
                file.display()
            ),
            TokenOrigin::NotAsked | TokenOrigin::NotNeeded => format!("no token was sent: {other}"),
        }
    }

    fn remedy_forbidden(&self) -> String {
        let held = match &self.origin {
            TokenOrigin::File(file) => format!("the token in {}", file.display()),
            TokenOrigin::Variable => "the token in STDIOD_TOKEN".to_string(),
            TokenOrigin::Nowhere { .. } | TokenOrigin::NotAsked | TokenOrigin::NotNeeded => {
                "a client without a token".to_string()
            }
        };
        format!("{held} may not do this: an administrator can make one that may (`stdiod token create --help`)")
    }
}

/// The token that the daemon left in its data directory. With an address of its own (`--url`) a configuration that
/// cannot be read is no obstacle.
fn admin_token(common: &Common, address_known: bool) -> Result<(Option<String>, TokenOrigin), Error> {
    let config: Config = match common.load_config() {
        Ok(config) => config,
        Err(Error::Config(_)) if address_known => return Ok((None, TokenOrigin::NotAsked)),
        Err(error) => return Err(error),
    };
    let file = config.admin_token_file();
    Ok(match read_token(&file) {
        Ok(token) => (Some(token), TokenOrigin::File(file)),
        Err(why) => (None, TokenOrigin::Nowhere { file, why }),
    })
}

fn read_token(file: &Path) -> io::Result<String> {
    let text = std::fs::read_to_string(file)?;
    match text.trim() {
        "" => Err(io::Error::new(io::ErrorKind::InvalidData, "it is empty")),
        token => Ok(token.to_string()),
    }
}

fn unreadable(file: &Path, why: &io::Error) -> Error {
    Error::Usage(format!("cannot read the token file {}: {why}; check --token-file", file.display()))
}

/// A variable that is set and not empty.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().map(|value| value.trim().to_string()).filter(|value| !value.is_empty())
}

/// The path of one server, `id` being whatever the user typed.
pub fn server_path(id: &str, rest: &str) -> String {
    format!("{SERVERS}/{}{rest}", encode(id))
}

/// Percent-encodes one segment of a path or one value of a query.
pub fn encode(segment: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'~');
    segment.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_change_the_path_it_stands_in() {
        assert_eq!(server_path("a-1", "/call"), "/api/v1/mcp/servers/a-1/call");
        assert_eq!(server_path("../x?y=1 ü", ""), "/api/v1/mcp/servers/..%2Fx%3Fy%3D1%20%C3%BC");
    }
}
