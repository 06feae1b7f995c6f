//! How an external server is reached, with every secret filled in, and why a connection to one is over. Plain data. Invariant:
//! nothing here shows a secret when it is printed for a log; addresses can have one too, so only their origin is shown.

use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Transport {
    /// Streamable HTTP, any version.
    Http,
    /// The stream and the POSTs of 2024-11-05.
    Sse,
    WebSocket,
}

#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub transport: Transport,
    /// `http`, `https`, `ws` or `wss`.
    pub url: String,
    pub headers: Vec<(String, String)>,
    /// Who vouches for the server and for whoever gives out its tokens, beside those whom the system trusts.
    pub tls_ca: Option<PathBuf>,
    pub auth: Option<ClientCredentials>,
    /// Until messages may be written.
    pub startup_ms: u64,
}

/// A token that is fetched with these (RFC 6749, 4.4), and shown as `Authorization: Bearer …`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ClientCredentials {
    pub token_url: String,
    pub client_id: String,
    pub client_secret: String,
    pub scope: Option<String>,
    /// RFC 8707.
    pub resource: Option<String>,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("Endpoint")
            .field("transport", &self.transport)
            .field("url", &origin(&self.url))
            .field("headers", &headers)
            .field("tls_ca", &self.tls_ca)
            .field("auth", &self.auth)
            .field("startup_ms", &self.startup_ms)
            .finish()
    }
}

impl fmt::Debug for ClientCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientCredentials").field("token_url", &origin(&self.token_url)).finish_non_exhaustive()
    }
}

/// Scheme, host and port of an address; its path and query may be secret.
pub fn origin(url: &str) -> &str {
    let start = url.find("://").map_or(0, |at| at + 3);
    let end = url[start..].find(['/', '?', '#']).map_or(url.len(), |at| start + at);
    &url[..end]
}

/// Of tools whose parameters are repeated in headers (`x-mcp-header`), by the tool's name.
pub type ParamHeaders = HashMap<String, Vec<ParamHeader>>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamHeader {
    /// The way to the property, from `arguments` on.
    pub path: Vec<String>,
    /// What stands behind `Mcp-Param-`.
    pub header: String,
}

/// Why a connection to an external server is over, or never came to be. `message` is for people, and has no secret in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkFault {
    pub kind: LinkFaultKind,
    pub message: String,
    /// The server has asked not to be tried before.
    pub retry_after_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkFaultKind {
    /// The row itself cannot be used: no such address, or a header that is none. To try again changes nothing.
    Invalid,
    /// Its name has no address.
    Name,
    /// Nobody is there, or the proxy does not let us through.
    Refused,
    Tls,
    /// It did not come up in time, or takes nothing of what is written.
    Timeout,
    /// The status: 401 or 403, of the server or of whoever gives out tokens.
    Unauthorized(u16),
    /// Any other status that says no.
    Status(u16),
    /// The server does not know its session any more: a new one has to be begun.
    SessionLost,
    /// What it says is not the protocol.
    Protocol,
    /// It was up, and the other side has closed it, or it broke.
    Closed,
    /// This daemon has as many connections as it may.
    Overloaded,
}

impl LinkFault {
    pub fn new(kind: LinkFaultKind, message: impl Into<String>) -> LinkFault {
        LinkFault { kind, message: message.into(), retry_after_ms: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_may_be_secret_is_printed() {
        let endpoint = Endpoint {
            transport: Transport::Http,
            url: "https://h.test:81/hidden?key=hidden".to_string(),
            headers: vec![("X-Key".to_string(), "hidden".to_string())],
            tls_ca: None,
            auth: Some(ClientCredentials {
                token_url: "https://t.test/hidden".to_string(),
                client_id: "hidden".to_string(),
                client_secret: "hidden".to_string(),
                scope: Some("hidden".to_string()),
                resource: None,
            }),
            startup_ms: 1,
        };
        let text = format!("{endpoint:?}");
        assert!(!text.contains("hidden"), "{text}");
        assert!(text.contains("https://h.test:81") && text.contains("X-Key") && text.contains("https://t.test"));
    }

    #[test]
    fn an_origin_ends_before_the_path() {
        for (url, shown) in [("ws://a/b", "ws://a"), ("http://a?x", "http://a"), ("a/b", "a"), ("http://a", "http://a")]
        {
            assert_eq!(origin(url), shown);
        }
    }
}
