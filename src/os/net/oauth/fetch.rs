//! Asks an authorization server for its keys, in a thread that may wait: first where they are, then for them. Goes to the
//! addresses of the configuration and of the server's own metadata, and to no other; every document has a bound, and a time.

use crate::api::auth::discovery;
use crate::api::auth::jwks::Keys;
use crate::limits::{OAUTH_DOCUMENT_MAX, OAUTH_FETCH_TIMEOUT};
use crate::sandbox::image::registry::http::{Ask, Transport};
use crate::sandbox::image::registry::proxy::Proxies;
use crate::wire::http::url::Url;
use std::io::Read;
use std::time::Instant;

/// Where the server is.
pub struct Server {
    pub(super) issuer: String,
    pub(super) url: Url,
    /// None: where its metadata says.
    pub(super) jwks_uri: Option<Url>,
    pub(super) proxies: Proxies,
}

impl Server {
    /// An error is a sentence for the log, without its subject.
    pub fn keys(&self) -> Result<Keys, String> {
        let at = match &self.jwks_uri {
            Some(url) => url.clone(),
            None => self.discover()?,
        };
        Keys::parse(&self.document(&at)?)
    }

    /// The first of its addresses that has anything decides.
    fn discover(&self) -> Result<Url, String> {
        let mut last = "it has no metadata".to_string();
        for address in discovery::addresses(&self.url) {
            match self.document(&address) {
                Ok(document) => return discovery::jwks_uri(&document, &self.issuer),
                Err(why) => last = why,
            }
        }
        Err(last)
    }

    fn document(&self, url: &Url) -> Result<Vec<u8>, String> {
        let until = Instant::now() + OAUTH_FETCH_TIMEOUT;
        // In clear text to this very place and to no other that it might send us on to.
        let insecure = if url.https { Vec::new() } else { vec![url.authority()] };
        let transport = Transport::new(&insecure, self.proxies.clone());
        let ask = Ask { accept: "application/json", ..Ask::default() };
        let answer = transport.ask(url, &ask).map_err(|e| e.to_string())?;
        let at = format!("{}{}", url.authority(), url.path);
        if answer.head.status != 200 {
            return Err(format!("{at} answers {}", answer.head.status));
        }
        let mut body = answer.body.take(OAUTH_DOCUMENT_MAX + 1);
        let (mut document, mut piece) = (Vec::new(), [0; 4096]);
        loop {
            match body.read(&mut piece) {
                Ok(0) if document.len() as u64 <= OAUTH_DOCUMENT_MAX => return Ok(document),
                Ok(0) => return Err(format!("{at} has more than {OAUTH_DOCUMENT_MAX} bytes")),
                Ok(n) => document.extend_from_slice(&piece[..n]),
                Err(e) => return Err(format!("{at}: {e}")),
            }
            if Instant::now() > until {
                return Err(format!("{at} takes too long"));
            }
        }
    }
}
