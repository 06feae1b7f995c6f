//! One repository at one registry: asks for manifests and blobs, and shows who we are when the registry wants to know.
//! Whatever it is told, it hands out only answers that say yes; everything else is an error with a remedy.

use crate::limits::{MANIFEST_MAX, REGISTRY_WORDS_MAX, TOKEN_ANSWER_MAX};
use crate::sandbox::image::registry::PullError;
use crate::sandbox::image::registry::auth::{Challenge, Credentials, challenge};
use crate::sandbox::image::registry::http::{Ask, RegistryAnswer, Transport, Url};
use crate::sandbox::image::registry::reference::Reference;
use serde::Deserialize;
use std::io::Read;
use std::sync::Mutex;

const MANIFESTS: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, \
     application/vnd.docker.distribution.manifest.v2+json, application/vnd.docker.distribution.manifest.list.v2+json";

pub struct Session<'a> {
    transport: &'a Transport,
    registry: String,
    repository: String,
    https: bool,
    credentials: Credentials,
    /// The value that was last accepted.
    authorization: Mutex<Option<String>>,
}

#[derive(Deserialize)]
struct TokenAnswer {
    token: Option<String>,
    access_token: Option<String>,
}

impl<'a> Session<'a> {
    pub fn new(transport: &'a Transport, reference: &Reference, credentials: Credentials) -> Session<'a> {
        Session {
            transport,
            registry: reference.registry.clone(),
            repository: reference.repository.clone(),
            https: !transport.is_insecure(&reference.registry),
            credentials,
            authorization: Mutex::new(None),
        }
    }

    /// A manifest or an index, by tag or digest: its bytes, and the digest that the registry claims for it.
    pub fn manifest(&self, version: &str) -> Result<(Vec<u8>, Option<String>), PullError> {
        let what = format!("{}:{version}", self.repository);
        let answer = self.get(&format!("manifests/{version}"), MANIFESTS, None, &what)?;
        let claimed = answer.head.header("docker-content-digest").map(str::to_owned);
        let mut text = Vec::new();
        let read = answer.body.take(MANIFEST_MAX + 1).read_to_end(&mut text);
        read.map_err(|e| PullError::unreachable(&self.registry, &e))?;
        if text.len() as u64 > MANIFEST_MAX {
            return Err(PullError::protocol(&self.registry, "its manifest is larger than allowed"));
        }
        Ok((text, claimed))
    }

    /// A blob, or what follows its first bytes: whether that is what comes, the answer says.
    pub fn blob(&self, digest: &str, from: Option<u64>) -> Result<RegistryAnswer, PullError> {
        self.get(&format!("blobs/{digest}"), "", from, &format!("{}@{digest}", self.repository))
    }

    fn get(&self, path: &str, accept: &str, from: Option<u64>, what: &str) -> Result<RegistryAnswer, PullError> {
        let path = format!("/v2/{}/{path}", self.repository);
        let url = Url::at(self.https, &self.registry, path)
            .ok_or_else(|| PullError::protocol(&self.registry, "it is no HOST[:PORT]"))?;
        // Tokens end in the middle of long pulls: then the registry asks again, and is answered once more.
        for attempt in 0..2 {
            let shown = self.authorization.lock().expect("no panic holds it").clone();
            let answer =
                self.transport.ask(&url, &Ask { authorization: shown.as_deref(), accept, from, form: None })?;
            match answer.head.status {
                200 | 206 => return Ok(answer),
                401 if attempt == 0 && answer.url.same_origin(&url) => {
                    let wanted = challenge(answer.head.each("www-authenticate"));
                    let value = self.authorize(wanted)?;
                    *self.authorization.lock().expect("no panic holds it") = Some(value);
                }
                _ => return Err(self.refusal(answer, what)),
            }
        }
        unreachable!("the second attempt returns")
    }

    /// The `Authorization` that answers a challenge.
    fn authorize(&self, wanted: Option<Challenge>) -> Result<String, PullError> {
        match (wanted, &self.credentials) {
            (_, Credentials::Helper { file, helper }) => {
                Err(PullError::Helper { registry: self.registry.clone(), file: file.clone(), helper: helper.clone() })
            }
            (Some(Challenge::Basic), Credentials::Basic { encoded }) => Ok(format!("Basic {encoded}")),
            (Some(Challenge::Bearer { realm, service, scope }), _) => self.token(&realm, service, scope),
            (Some(Challenge::Basic), Credentials::Nothing | Credentials::Identity { .. }) => Err(self.denied("")),
            (None, _) => {
                Err(PullError::protocol(&self.registry, "it asks for a login of a kind that is not known here"))
            }
        }
    }

    /// Asks the registry's token service. It gets the credentials: the registry, which we trust with them, sent us there.
    fn token(&self, realm: &str, service: Option<String>, scope: Option<String>) -> Result<String, PullError> {
        let scope = scope.unwrap_or_else(|| format!("repository:{}:pull", self.repository));
        let mut query = format!("scope={}", encode(&scope));
        if let Some(service) = service {
            query += &format!("&service={}", encode(&service));
        }
        let no_address = || PullError::protocol(&self.registry, "its token service is at no http or https address");
        let separator = if realm.contains('?') { '&' } else { '?' };
        let plain = Url::parse(realm).ok_or_else(no_address)?;
        if self.https && !plain.https {
            return Err(PullError::protocol(&self.registry, "its token service is at a plain http address"));
        }
        let asking = || Url::parse(&format!("{realm}{separator}{query}")).ok_or_else(no_address);
        let accept = "application/json";
        let answer = match &self.credentials {
            Credentials::Basic { encoded } => {
                let value = format!("Basic {encoded}");
                self.transport.ask(&asking()?, &Ask { authorization: Some(&value), accept, ..Ask::default() })?
            }
            Credentials::Identity { token } => {
                let token = encode(token);
                let form = format!("grant_type=refresh_token&client_id=stdiod&{query}&refresh_token={token}");
                self.transport.ask(&plain, &Ask { accept, form: Some(&form), ..Ask::default() })?
            }
            Credentials::Nothing | Credentials::Helper { .. } => {
                self.transport.ask(&asking()?, &Ask { accept, ..Ask::default() })?
            }
        };
        if answer.head.status != 200 {
            return Err(self.denied(&format!("its token service answers {}", answer.head.status)));
        }
        let mut text = Vec::new();
        let read = answer.body.take(TOKEN_ANSWER_MAX).read_to_end(&mut text);
        read.map_err(|e| PullError::unreachable(&self.registry, &e))?;
        // The parser's own words are left out: they may quote the token.
        let said: Option<TokenAnswer> = serde_json::from_slice(&text).ok();
        said.and_then(|said| said.token.or(said.access_token))
            .filter(|token| !token.is_empty() && token.bytes().all(|b| b.is_ascii_graphic()))
            .map(|token| format!("Bearer {token}"))
            .ok_or_else(|| PullError::protocol(&self.registry, "its token service gives no token"))
    }

    fn denied(&self, why: &str) -> PullError {
        let logged_in = match self.credentials {
            Credentials::Basic { .. } | Credentials::Identity { .. } => true,
            Credentials::Nothing | Credentials::Helper { .. } => false,
        };
        PullError::Denied { registry: self.registry.clone(), logged_in, why: why.to_owned() }
    }

    /// An answer that says no.
    fn refusal(&self, answer: RegistryAnswer, what: &str) -> PullError {
        let status = answer.head.status;
        let words = words(answer.body);
        let told = |otherwise: &str| if words.is_empty() { otherwise.to_owned() } else { words.clone() };
        match status {
            404 => PullError::NotFound {
                registry: self.registry.clone(),
                what: what.to_owned(),
                why: told("404 Not Found"),
            },
            401 | 403 => self.denied(&told("")),
            429 => PullError::protocol(&self.registry, "it has had too many requests from here; try again later"),
            _ => PullError::protocol(&self.registry, &format!("it answers {status} {words}")),
        }
    }
}

/// What a registry says went wrong, as far as it can be shown.
fn words(body: impl Read) -> String {
    #[derive(Deserialize)]
    struct Errors {
        errors: Vec<One>,
    }
    #[derive(Deserialize)]
    struct One {
        #[serde(default)]
        code: String,
        #[serde(default)]
        message: String,
    }
    let mut text = Vec::new();
    _ = body.take(TOKEN_ANSWER_MAX).read_to_end(&mut text);
    let Ok(Errors { errors }) = serde_json::from_slice(&text) else { return String::new() };
    let Some(One { code, message }) = errors.into_iter().next() else { return String::new() };
    let all = format!("{code}: {message}");
    all.chars().filter(|c| !c.is_control()).take(REGISTRY_WORDS_MAX).collect()
}

/// For a query.
fn encode(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    text.bytes().map(|b| if plain(b) { (b as char).to_string() } else { format!("%{b:02X}") }).collect()
}
