//! Who asks, and what they may do. Owns the table of bearer tokens by their SHA-256; holds no token itself but what a
//! connection has shown. Finding one costs a hash and a lookup, so that its time tells nothing about tokens that are there.

pub mod certificate;
pub mod discovery;
mod frozen;
pub mod jwks;
pub mod jwt;
pub mod oauth;
pub mod proof;
pub mod resource;

pub use crate::api::auth::certificate::CertificateRule;
use crate::api::auth::oauth::Grant;
use crate::api::auth::proof::{Challenge, TokenId};
use crate::api::auth::resource::Resource;
use crate::limits::NAME_MAX;
use crate::model::fault::{Code, Fault};
use crate::model::principal::{Limits, Need, Principal, Scopes};
use crate::model::records::Token;
use crate::wire::http_in::{Common, Request, is_media};
use ::core::net::IpAddr;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Of the name of whoever comes with a token of the authorization server. No token's name has a colon in it.
pub const OAUTH_PREFIX: &str = "oauth:";

/// What is known about the other end of a connection before it says anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Peer {
    /// It must show a token.
    Token,
    /// Authentication is off on this TCP listener: anybody on this machine, and any web page in a browser on it.
    Open,
    /// The same on a listener that speaks TLS.
    OpenTls,
    /// A listener for whoever collects metrics: those need no token here, and everything else does.
    Scraper,
    /// Authentication is off on this unix socket, or the kernel vouches for root or the daemon's own user.
    Trusted,
}

// --- tokens ---------------------------------------------------------------------------------------------------------

/// Every token that is good now.
#[derive(Debug, Default)]
pub struct Tokens {
    by_hash: HashMap<[u8; 32], Arc<Known>>,
    by_name: BTreeMap<String, Arc<Known>>,
    /// By what clients call a token that they do not send yet.
    by_id: HashMap<TokenId, Arc<Known>>,
    /// When each was last used, by name. Every request looks here: with few tokens some comparisons cost less than a hash that
    /// nobody can aim at, and with many little more.
    used: BTreeMap<Arc<str>, Used>,
    /// Counts the changes.
    edition: u64,
    /// The store has not been read: there may be others that are good.
    unread: bool,
    /// None: no authorization server gives tokens for this daemon.
    resource: Option<Arc<Resource>>,
}

/// What the other end of a connection showed with its last request, and who that was: as long as it shows the same and no
/// token has changed, there is nothing to hash.
#[derive(Debug, Default)]
pub struct Shown {
    header: Vec<u8>,
    edition: u64,
    who: Option<Principal>,
    /// Whom its certificate stands for.
    certified: Option<Principal>,
    /// What is in `header` is a token of the authorization server, and was verified.
    grant: Option<Arc<Grant>>,
    /// It is one, or might be, and is worth nothing.
    refused: Option<Box<Fault>>,
}

impl Shown {
    /// It came with a certificate that a rule is for.
    pub fn certify(&mut self, who: Principal) {
        self.certified = Some(who);
    }

    /// The same as with its last request, which was found good?
    pub fn is_same(&self, header: &[u8], tokens: &Tokens) -> bool {
        self.who.is_some() && self.edition == tokens.edition && self.header == header
    }

    /// What its last request was let in with, if the authorization server gave that.
    pub fn grant(&self) -> Option<&Arc<Grant>> {
        self.grant.as_ref().filter(|_| self.who.is_some())
    }

    /// It shows a token of the authorization server, which is good.
    pub fn let_in(&mut self, header: &[u8], grant: Arc<Grant>, tokens: &Tokens) {
        self.header.clear();
        self.header.extend_from_slice(header);
        (self.edition, self.who) = (tokens.edition, Some(grant.principal.clone()));
        (self.grant, self.refused) = (Some(grant), None);
    }

    /// It shows one that is not.
    pub fn turn_away(&mut self, why: Fault) {
        (self.who, self.grant, self.refused) = (None, None, Some(Box::new(why)));
    }

    /// What it shows is to be looked at afresh.
    pub fn forget_refusal(&mut self) {
        self.refused = None;
    }

    pub fn certified(&self) -> Option<&Principal> {
        self.certified.as_ref()
    }

    /// Whoever it was with its last request that showed anything.
    pub fn who(&self) -> Option<&Principal> {
        self.who.as_ref().or(self.certified.as_ref())
    }
}

#[derive(Debug)]
struct Known {
    token: Token,
    principal: Principal,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Used {
    unix_ms: Option<u64>,
    /// The store does not have it yet.
    unsaved: bool,
}

impl Tokens {
    /// Until `read`, nobody is told that a token is not known.
    pub fn unread() -> Tokens {
        Tokens { unread: true, ..Tokens::default() }
    }

    pub fn read(&mut self) {
        self.unread = false;
    }

    /// Whoever is not let in is told of it.
    pub fn announce(&mut self, resource: Option<Arc<Resource>>) {
        self.resource = resource;
    }

    pub fn resource(&self) -> Option<&Resource> {
        self.resource.as_deref()
    }

    /// Is this the secret of one of them?
    pub fn has_secret(&self, secret: &[u8]) -> bool {
        self.by_hash.contains_key(&hash(secret))
    }

    /// False: its name or its hash is there already, and nothing has changed.
    pub fn insert(&mut self, token: Token) -> bool {
        if self.by_name.contains_key(&token.name) || self.by_hash.contains_key(&token.hash) {
            return false;
        }
        let name: Arc<str> = token.name.as_str().into();
        self.used.insert(Arc::clone(&name), Used { unix_ms: token.last_used_unix_ms, unsaved: false });
        let hashes: Vec<[u8; 32]> =
            std::iter::once(token.hash).chain(token.previous.map(|(previous, _)| previous)).collect();
        self.know(token, name, &hashes);
        true
    }

    /// `name`: whoever holds this very one is still the same. `hashes`: which of its secrets open anything.
    fn know(&mut self, token: Token, name: Arc<str>, hashes: &[[u8; 32]]) {
        self.edition += 1;
        let principal = Principal {
            name,
            scopes: Scopes::of(&token.scopes),
            limits: Limits { servers: token.servers.clone().into(), projects: token.projects.clone().into() },
            rate_limit: token.rate_limit,
        };
        let known = Arc::new(Known { token, principal });
        for hash in hashes {
            self.by_hash.insert(*hash, known.clone());
            self.by_id.insert(proof::token_id(hash), known.clone());
        }
        self.by_name.insert(known.token.name.clone(), known);
    }

    pub fn remove(&mut self, name: &str) -> Option<Token> {
        let known = self.by_name.remove(name)?;
        self.edition += 1;
        self.forget_hashes(&known.token);
        self.used.remove(name);
        Some(known.token.clone())
    }

    fn forget_hashes(&mut self, token: &Token) {
        for hash in std::iter::once(token.hash).chain(token.previous.map(|(previous, _)| previous)) {
            self.by_hash.remove(&hash);
            self.by_id.remove(&proof::token_id(&hash));
        }
    }

    /// The same name with another secret. Whoever uses the old one stays who they are as long as that goes on.
    pub fn rotate(&mut self, token: Token) {
        let Some(old) = self.by_name.get(&token.name).cloned() else { return };
        self.forget_hashes(&old.token);
        let name = match token.previous {
            Some(_) => Arc::clone(&old.principal.name),
            None => token.name.as_str().into(),
        };
        let hashes: Vec<[u8; 32]> =
            std::iter::once(token.hash).chain(token.previous.map(|(previous, _)| previous)).collect();
        self.know(token, name, &hashes);
    }

    // --- their ends -------------------------------------------------------------------------------------------------

    /// The next moment at which a secret ends.
    pub fn next_end(&self) -> Option<u64> {
        let live = |known: &&Arc<Known>| self.by_hash.contains_key(&known.token.hash);
        let ends = self.by_name.values().filter(live).flat_map(|known| {
            let Token { expires_unix_ms, previous, .. } = &known.token;
            [*expires_unix_ms, previous.map(|(_, until)| until)]
        });
        ends.flatten().min()
    }

    /// Lets every secret end whose time has come; the names of those. An expired token is worth nothing, and stays in the
    /// list until it is revoked.
    pub fn expire(&mut self, now_unix_ms: u64) -> Vec<String> {
        let is_over = |at: u64| at <= now_unix_ms;
        let ended = self.by_name.values().filter(|known| {
            let live = self.by_hash.contains_key(&known.token.hash);
            let Token { expires_unix_ms, previous, .. } = &known.token;
            (live && expires_unix_ms.is_some_and(is_over)) || previous.is_some_and(|(_, until)| is_over(until))
        });
        let ended: Vec<String> = ended.map(|known| known.token.name.clone()).collect();
        for name in &ended {
            let mut token = self.by_name[name].token.clone();
            self.forget_hashes(&token);
            token.previous = token.previous.filter(|(_, until)| !is_over(*until));
            let expired = token.expires_unix_ms.is_some_and(is_over);
            let hashes: Vec<[u8; 32]> = match expired {
                true => Vec::new(),
                false => std::iter::once(token.hash).chain(token.previous.map(|(previous, _)| previous)).collect(),
            };
            self.know(token, name.as_str().into(), &hashes);
        }
        ended
    }

    // --- their use --------------------------------------------------------------------------------------------------

    /// True: it is the first use since `take_used`.
    pub fn used(&mut self, who: &Principal, now_unix_ms: u64) -> bool {
        let Some(used) = self.used.get_mut(&*who.name) else { return false };
        used.unix_ms = Some(now_unix_ms);
        !std::mem::replace(&mut used.unsaved, true)
    }

    /// The names of those whose last use the store does not have.
    pub fn take_used(&mut self) -> Vec<String> {
        let unsaved =
            |(name, used): (&Arc<str>, &mut Used)| std::mem::take(&mut used.unsaved).then(|| name.to_string());
        let mut names: Vec<String> = self.used.iter_mut().filter_map(unsaved).collect();
        names.sort();
        names
    }

    /// With its last use, as it is to be stored and shown.
    pub fn current(&self, name: &str) -> Option<Token> {
        self.by_name.get(name).map(|known| self.with_use(known))
    }

    fn with_use(&self, known: &Known) -> Token {
        let last_used_unix_ms = self.used.get(known.token.name.as_str()).and_then(|used| used.unix_ms);
        Token { last_used_unix_ms, ..known.token.clone() }
    }

    pub fn get(&self, name: &str) -> Option<&Token> {
        self.by_name.get(name).map(|known| &known.token)
    }

    /// By name.
    pub fn list(&self) -> impl Iterator<Item = Token> {
        self.by_name.values().map(|known| self.with_use(known))
    }

    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Changes whenever a token does.
    pub fn edition(&self) -> u64 {
        self.edition
    }

    /// Is this still somebody? A token that is gone is nobody's, also when another has its name by now. Those who were not
    /// asked for one stay who they are.
    pub fn still_knows(&self, who: &Principal) -> bool {
        match self.by_name.get(&*who.name) {
            Some(known) => Arc::ptr_eq(&known.principal.name, &who.name),
            None => {
                let others = [certificate::PREFIX, OAUTH_PREFIX];
                who.name == Principal::anonymous().name || others.iter().any(|prefix| who.name.starts_with(prefix))
            }
        }
    }

    /// After a handover: who was one of these before it is the same one again.
    pub fn rejoin(&self, who: &mut Principal) {
        if let Some(known) = self.by_name.get(&*who.name) {
            who.name = Arc::clone(&known.principal.name);
        }
    }

    /// As `authenticate`, for a connection that may have shown the same before.
    pub fn recognise(&self, authorization: Option<&[u8]>, shown: &mut Shown) -> Result<Principal, Fault> {
        if let (Some(who), Some(header)) = (&shown.who, authorization)
            && shown.edition == self.edition
            && shown.header == header
        {
            return Ok(who.clone());
        }
        (shown.who, shown.grant) = (None, None);
        if let Some(fault) = shown.refused.as_deref().filter(|_| authorization.is_some()) {
            return Err(fault.clone());
        }
        let who = self.authenticate(authorization)?;
        shown.header.clear();
        shown.header.extend_from_slice(authorization.unwrap_or_default());
        (shown.edition, shown.who) = (self.edition, Some(who.clone()));
        Ok(who)
    }

    /// The value of an `Authorization` header, as it came.
    pub fn authenticate(&self, authorization: Option<&[u8]>) -> Result<Principal, Fault> {
        let Some(value) = authorization else {
            return Err(unauthorized("a token is needed"));
        };
        let Some(secret) = bearer(value) else {
            return Err(unauthorized("the Authorization header is not of the form `Bearer <token>`"));
        };
        match self.by_hash.get(&hash(secret)) {
            Some(known) => Ok(known.principal.clone()),
            None => Err(self.unknown()),
        }
    }

    /// To somebody who has shown nothing: they learn whether a token is known only if they can name it, and nobody guesses
    /// 128 bits. `address` is the daemon's end of the connection.
    pub fn prove(&self, challenge: &Challenge, address: &str) -> Result<String, Fault> {
        match self.by_id.get(&challenge.token) {
            Some(known) => Ok(challenge.answer(&known.token.hash, address)),
            None => Err(self.unknown()),
        }
    }

    fn unknown(&self) -> Fault {
        if self.unread {
            let why = "tokens are not known yet: the daemon is starting, or its database is away";
            return Fault::new(Code::StoreUnavailable, why).retry_after_ms(1_000);
        }
        unauthorized("this token is not known, was revoked, or has expired")
    }
}

/// How a token is stored and found.
pub fn hash(secret: &[u8]) -> [u8; 32] {
    Sha256::digest(secret).into()
}

pub fn bearer(value: &[u8]) -> Option<&[u8]> {
    let value = value.trim_ascii();
    let (scheme, rest) = value.split_at(value.iter().position(|byte| *byte == b' ')?);
    let secret = rest.trim_ascii();
    let plain = !secret.is_empty() && secret.iter().all(|byte| byte.is_ascii_graphic());
    (scheme.eq_ignore_ascii_case(b"bearer") && plain).then_some(secret)
}

fn unauthorized(what: &str) -> Fault {
    Fault::new(
        Code::Unauthorized,
        format!(
            "{what}: send `Authorization: Bearer <token>`, with the one in admin.token of the data directory or one \
             made by `stdiod token create`"
        ),
    )
}

/// A token of the authorization server that opens nothing.
pub fn worthless(why: &str) -> Fault {
    Fault::new(Code::Unauthorized, format!("{why}: get a new one from the authorization server")).with("reason", why)
}

/// Whoever is not let in is told where to get a token that opens this, if anybody gives one.
pub fn challenged(mut fault: Fault, request: &Request<'_>, tokens: &Tokens, shown: &Shown, need: Need) -> Fault {
    let held = shown.who().map(|who| who.scopes).unwrap_or_default();
    let lacks_scope = fault.code == Code::Forbidden && !held.cover(need.scopes());
    let Some(resource) = &tokens.resource else {
        let scope = need.scopes().names().join(" ");
        let told = || format!(r#"Bearer realm="stdiod", error="insufficient_scope", scope="{scope}""#);
        fault.challenge = lacks_scope.then(told);
        return fault;
    };
    fault.challenge = match fault.code {
        Code::Unauthorized if request.common(Common::Authorization).is_none() => {
            Some(resource.ask_for_token(&request.path, need))
        }
        Code::Unauthorized => {
            let why = fault.data.get("reason").and_then(serde_json::Value::as_str);
            let why = why.unwrap_or("the token is not known, was revoked, or has expired");
            Some(resource.refuse_token(&request.path, need, why))
        }
        // Where limits are in the way no scope helps.
        Code::Forbidden if lacks_scope => Some(resource.ask_for_scopes(&request.path, held, need)),
        _other => None,
    };
    fault
}

/// The rule for names of tokens.
pub fn token_name(name: &str) -> Result<String, String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte);
    let starts_well = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if name.len() > NAME_MAX || !starts_well || !name.bytes().all(allowed) {
        return Err(format!("must be 1 to {NAME_MAX} of A-Z a-z 0-9 - _ . @, beginning with a letter or digit"));
    }
    if name == &*Principal::anonymous().name || name == &*Principal::nobody().name {
        return Err("is reserved".to_string());
    }
    Ok(name.to_string())
}

// --- browsers -------------------------------------------------------------------------------------------------------

/// Where no token is asked for, any web page on the machine could have its browser ask. Its requests are told by what a
/// browser says of them and a page cannot change: the Origin, which must be this listener's own (another port of this machine
/// is another site); Sec-Fetch-*, of requests that have none, such as an image or a link; the Host, of a page that has its own
/// name resolve to us. And a body must say that it is JSON, which no form and no simple request of a page can.
pub fn refuse_foreign_pages(request: &Request<'_>, peer: Peer) -> Result<(), Fault> {
    let foreign = |what: &str| {
        let remedy = "use `localhost` or an address, and no web page of another origin, or send a token";
        Err(Fault::new(Code::Forbidden, format!("without a token, requests are not taken {what}: {remedy}")))
    };
    let host = request.host();
    // No browser reaches a unix socket; there a host may be called anything that is no public name.
    let named_well = is_local(host) || (peer == Peer::Trusted && !host.contains('.'));
    if !named_well {
        return foreign("under a name that could be anybody's");
    }
    if let Some(origin) = request.common(Common::Origin)
        && !is_own_origin(origin, host, peer)
    {
        return foreign("from a foreign web page (Origin)");
    }
    // Programs send none of these, or the ones below: `none` is for what no page has caused.
    let fetch = |name: &str, allowed: &[&[u8]]| request.header(name).is_none_or(|value| allowed.contains(&value));
    if !fetch("sec-fetch-site", &[b"same-origin", b"none"]) {
        return foreign("from a foreign web page (Sec-Fetch-Site)");
    }
    if !fetch("sec-fetch-mode", &[b"cors", b"no-cors", b"same-origin"]) || !fetch("sec-fetch-dest", &[b"empty"]) {
        return foreign("from the address bar, a link or an element of a web page (Sec-Fetch-Mode, Sec-Fetch-Dest)");
    }
    if !request.body.is_empty()
        && !is_media(request.common(Common::ContentType).unwrap_or_default(), "application/json")
    {
        let why = "without a token, a body must say that it is JSON: send `Content-Type: application/json`";
        return Err(Fault::new(Code::UnsupportedMediaType, why));
    }
    Ok(())
}

/// Whoever reaches a listener names it in `Host`, port and all.
fn is_own_origin(origin: &[u8], host: &str, peer: Peer) -> bool {
    let authority = match peer {
        Peer::OpenTls => origin.strip_prefix(b"https://"),
        Peer::Open | Peer::Trusted | Peer::Token | Peer::Scraper => origin.strip_prefix(b"http://"),
    };
    authority.is_some_and(|authority| !host.is_empty() && authority.eq_ignore_ascii_case(host.as_bytes()))
}

/// Of a page on this machine. Another machine's address is as foreign as its name: a page can be anywhere.
pub fn is_local_origin(origin: &str) -> bool {
    origin.split_once("://").is_some_and(|(_, authority)| is_loopback(authority))
}

fn is_loopback(authority: &str) -> bool {
    let host = match authority.strip_prefix('[') {
        Some(bracketed) => bracketed.split_once(']').map_or("", |(address, _)| address),
        None => authority.split_once(':').map_or(authority, |(host, _)| host),
    };
    host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
        || host.eq_ignore_ascii_case("localhost")
        || host.to_ascii_lowercase().ends_with(".localhost")
}

/// Cannot be made to stand for us by somebody else. An address cannot, nor can a name that every machine keeps for itself; a
/// name without a dot is looked up in domains that the network chooses. `authority`: a host with or without a port.
fn is_local(authority: &str) -> bool {
    if let Some(bracketed) = authority.strip_prefix('[') {
        return bracketed.split_once(']').is_some_and(|(address, _)| address.parse::<IpAddr>().is_ok());
    }
    let host = authority.split_once(':').map_or(authority, |(host, _)| host);
    host.is_empty() || host.parse::<IpAddr>().is_ok() || is_loopback(host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::principal::Need;
    use crate::wire::http_in::{Parser, Step};

    fn token(name: &str, secret: &str, scopes: &[&str], servers: &[&str]) -> Token {
        let owned = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
        Token {
            name: name.into(),
            hash: hash(secret.as_bytes()),
            scopes: owned(scopes),
            servers: owned(servers),
            ..Token::default()
        }
    }

    fn table() -> Tokens {
        let mut tokens = Tokens::default();
        assert!(tokens.insert(token("admin", "s1", &["admin:read", "admin:write", "mcp:call"], &[])));
        assert!(tokens.insert(token("agent", "s2", &["mcp:call", "from:the:future"], &["time"])));
        tokens
    }

    #[test]
    fn a_connection_is_recognised_until_it_shows_something_else_or_a_token_changes() {
        let mut tokens = table();
        let mut shown = Shown::default();
        let mut ask = |tokens: &Tokens, header: &[u8]| tokens.recognise(Some(header), &mut shown).map(|who| who.name);
        for _ in 0..2 {
            assert_eq!(ask(&tokens, b"Bearer s2").as_deref(), Ok("agent"));
        }
        assert!(ask(&tokens, b"Bearer s3").is_err());
        assert_eq!(ask(&tokens, b"Bearer s1").as_deref(), Ok("admin"));
        assert_eq!(ask(&tokens, b"Bearer s2").as_deref(), Ok("agent"));
        tokens.remove("agent");
        for _ in 0..2 {
            assert!(ask(&tokens, b"Bearer s2").is_err(), "revoked");
        }
        assert!(tokens.recognise(None, &mut shown).is_err());
    }

    #[test]
    fn a_token_is_found_by_its_secret_only() {
        let tokens = table();
        for header in ["Bearer s1", "bearer s1", "BEARER  s1 "] {
            let who = tokens.authenticate(Some(header.as_bytes())).unwrap();
            assert_eq!((&*who.name, who.scopes), ("admin", Scopes::ALL), "{header}");
        }
        let agent = tokens.authenticate(Some(b"Bearer s2")).unwrap();
        assert_eq!(agent.scopes, Scopes { mcp_call: true, ..Scopes::default() });
        assert!(agent.may_see_named("time", None) && !agent.may_see_named("times", None));
        let headers: [&[u8]; 11] = [
            b"",
            b"Bearer",
            b"Bearer ",
            b"Bearers1",
            b"Basic s1",
            b"s1",
            b"Bearer s3",
            b"Bearer S1",
            b"Bearer s1,s2",
            b"Bearer s1 s2",
            b"Bearer \xff",
        ];
        for header in headers.map(Some).into_iter().chain([None]) {
            let fault = tokens.authenticate(header).unwrap_err();
            assert_eq!(fault.code, Code::Unauthorized);
            assert!(fault.message.contains("stdiod token create"), "the remedy is named: {}", fault.message);
        }
    }

    #[test]
    fn a_revoked_token_is_unknown_at_once() {
        let mut tokens = table();
        assert_eq!(tokens.remove("agent").map(|token| token.name), Some("agent".into()));
        assert_eq!(tokens.remove("agent"), None);
        assert!(tokens.authenticate(Some(b"Bearer s2")).is_err());
        assert!(tokens.insert(token("agent", "s2", &[], &[])), "its name and hash are free again");
        assert!(!tokens.insert(token("agent", "s9", &[], &[])));
        assert!(!tokens.insert(token("other", "s2", &[], &[])));
        assert_eq!(tokens.list().map(|token| token.name).collect::<Vec<_>>(), ["admin", "agent"]);
        assert_eq!(tokens.len(), 2);
    }

    #[test]
    fn only_a_token_that_is_good_is_proved_to_be_known() {
        let mut tokens = table();
        let (hash, at) = (hash(b"s2"), "127.0.0.1:1");
        let challenge = Challenge::new(&hash, [3; 32]);
        assert!(challenge.is_answered_by(&tokens.prove(&challenge, at).unwrap(), &hash, at));
        tokens.remove("agent");
        assert_eq!(tokens.prove(&challenge, at).unwrap_err().code, Code::Unauthorized);
        assert_eq!(Tokens::unread().prove(&challenge, at).unwrap_err().code, Code::StoreUnavailable);
    }

    #[test]
    fn scopes_grant_what_they_say_and_writing_implies_reading() {
        use Need::*;
        let needs = [Nothing, Read, Write, Call, ReadOrCall, TokensRead, TokensWrite];
        for (scopes, granted) in [
            (&[][..], &[Nothing][..]),
            (&["admin:read"], &[Nothing, Read, ReadOrCall, TokensRead]),
            (&["admin:write"], &[Nothing, Read, Write, ReadOrCall, TokensRead, TokensWrite]),
            (&["mcp:call"], &[Nothing, Call, ReadOrCall]),
            (&["ADMIN:WRITE", "admin", "*"], &[Nothing]),
        ] {
            let who = Principal { name: "x".into(), scopes: Scopes::of(scopes), ..Principal::nobody() };
            for need in needs {
                assert_eq!(who.permit(need).is_ok(), granted.contains(&need), "{scopes:?} {need:?}");
            }
        }
        let fault = Principal::nobody().permit(Write).unwrap_err();
        assert_eq!(fault.message, "this needs the scope `admin:write`; `nobody` has none");
    }

    #[test]
    fn nobody_gets_more_by_making_a_token() {
        let limits = Limits { servers: vec!["time".to_string()].into(), ..Limits::default() };
        let limited = Principal { limits, ..Principal::anonymous() };
        assert!(limited.permit(Need::Write).is_ok());
        assert_eq!(limited.permit(Need::TokensWrite).unwrap_err().code, Code::Forbidden);
        let admin = Principal { scopes: Scopes::of(&["admin:write"]), ..Principal::anonymous() };
        assert!(admin.may_grant(Scopes::of(&["admin:read"])).is_ok());
        assert_eq!(admin.may_grant(Scopes::of(&["mcp:call"])).unwrap_err().code, Code::Forbidden);
    }

    #[test]
    fn names_of_tokens_are_plain() {
        for name in ["ci", "Alice", "a.b@c_d-e", "0", &"x".repeat(63)] {
            assert_eq!(token_name(name).as_deref(), Ok(name));
        }
        for name in ["", ".", "-x", "a b", "a/b", "é", "anonymous", "nobody", "a\0", &"x".repeat(64)] {
            assert!(token_name(name).is_err(), "{name}");
        }
    }

    /// What becomes of a request without a token, with these headers.
    fn page(peer: Peer, host: &str, headers: &str, body: &str) -> Result<(), Code> {
        let mut parser = Parser::new();
        let length = body.len();
        let text = format!("POST / HTTP/1.1\r\nHost: {host}\r\n{headers}Content-Length: {length}\r\n\r\n{body}");
        parser.feed(text.as_bytes());
        assert_eq!(parser.step(), Step::Request, "{text}");
        refuse_foreign_pages(&parser.request(), peer).map_err(|fault| fault.code)
    }

    #[test]
    fn only_pages_of_the_listener_itself_are_taken_where_no_token_is_asked_for() {
        for host in ["localhost:8480", "127.0.0.1:8480", "[::1]:8480", "10.0.0.7", "a.localhost:1", "LOCALHOST:8480"] {
            for peer in [Peer::Open, Peer::Trusted] {
                assert_eq!(page(peer, host, "", ""), Ok(()), "{host}");
                assert_eq!(page(peer, host, &format!("Origin: http://{host}\r\n"), ""), Ok(()), "{host}");
                for origin in [
                    "http://localhost:3000",
                    "http://localhost",
                    "http://127.0.0.1:8481",
                    "https://localhost:8480",
                    "https://evil.example",
                    "null",
                    "http://",
                    "http://127.0.0.1.evil.example",
                    "http://localhost:8480.evil.example",
                ] {
                    let told = page(peer, host, &format!("Origin: {origin}\r\n"), "");
                    assert_eq!(told, Err(Code::Forbidden), "{origin}");
                }
            }
        }
        let (at_tls, host) = (|origin: &str| page(Peer::OpenTls, "localhost:1", origin, ""), "localhost:1");
        assert_eq!(at_tls(&format!("Origin: https://{host}\r\n")), Ok(()));
        assert_eq!(at_tls(&format!("Origin: http://{host}\r\n")), Err(Code::Forbidden));
        for host in ["evil.example", "evil.example:8480", "127.0.0.1.evil.example", "localhost."] {
            assert_eq!(page(Peer::Open, host, "", ""), Err(Code::Forbidden), "{host}");
            assert_eq!(page(Peer::Trusted, host, "", ""), Err(Code::Forbidden), "{host}");
        }
        assert_eq!(page(Peer::Open, "stdiod", "", ""), Err(Code::Forbidden), "somebody's network may say who that is");
        assert_eq!(page(Peer::Trusted, "stdiod", "", ""), Ok(()), "no browser reaches a unix socket");
    }

    #[test]
    fn what_a_browser_does_by_itself_is_refused_and_what_programs_say_is_not() {
        for (headers, expected) in [
            ("", Ok(())),
            // Node.js; Electron; a page of the daemon's own.
            ("Sec-Fetch-Mode: cors\r\n", Ok(())),
            ("Sec-Fetch-Site: none\r\nSec-Fetch-Mode: no-cors\r\nSec-Fetch-Dest: empty\r\n", Ok(())),
            ("Sec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: cors\r\nSec-Fetch-Dest: empty\r\n", Ok(())),
            // The address bar; another port; another site; an image, a frame, a worker, a link.
            ("Sec-Fetch-Site: none\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n", Err(Code::Forbidden)),
            ("Sec-Fetch-Site: same-site\r\nSec-Fetch-Mode: cors\r\n", Err(Code::Forbidden)),
            ("Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\n", Err(Code::Forbidden)),
            ("Sec-Fetch-Site: same-origin\r\nSec-Fetch-Dest: image\r\n", Err(Code::Forbidden)),
            ("Sec-Fetch-Dest: iframe\r\n", Err(Code::Forbidden)),
            ("Sec-Fetch-Dest: serviceworker\r\n", Err(Code::Forbidden)),
            ("Sec-Fetch-Mode: navigate\r\n", Err(Code::Forbidden)),
            ("Sec-Fetch-Mode: websocket\r\n", Err(Code::Forbidden)),
        ] {
            assert_eq!(page(Peer::Open, "localhost:1", headers, ""), expected, "{headers}");
        }
    }

    #[test]
    fn a_body_without_a_token_says_that_it_is_json() {
        let sent = |media: &str| page(Peer::Open, "localhost:1", &format!("Content-Type: {media}\r\n"), "{}");
        assert_eq!(sent("application/json"), Ok(()));
        assert_eq!(sent("Application/JSON; charset=utf-8"), Ok(()));
        for media in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "application/jsonx"]
        {
            assert_eq!(sent(media), Err(Code::UnsupportedMediaType), "{media}");
        }
        assert_eq!(page(Peer::Open, "localhost:1", "", "{}"), Err(Code::UnsupportedMediaType));
        assert_eq!(page(Peer::Open, "localhost:1", "", ""), Ok(()), "no body has no type");
    }

    fn knows(tokens: &Tokens, secret: &str) -> bool {
        tokens.authenticate(Some(format!("Bearer {secret}").as_bytes())).is_ok()
    }

    #[test]
    fn a_token_ends_when_its_time_has_come_and_stays_in_the_list() {
        let mut tokens = table();
        assert!(tokens.insert(Token { expires_unix_ms: Some(5_000), ..token("brief", "s5", &["mcp:call"], &[]) }));
        assert!(tokens.insert(Token { expires_unix_ms: Some(9_000), ..token("later", "s6", &["mcp:call"], &[]) }));
        let brief = tokens.authenticate(Some(b"Bearer s5")).unwrap();
        assert_eq!(tokens.next_end(), Some(5_000));
        assert_eq!(tokens.expire(4_999), Vec::<String>::new());
        assert!(knows(&tokens, "s5") && tokens.still_knows(&brief));
        let edition = tokens.edition();
        assert_eq!(tokens.expire(5_000), ["brief"]);
        assert!(!knows(&tokens, "s5") && knows(&tokens, "s6") && !tokens.still_knows(&brief));
        assert!(tokens.edition() != edition, "whoever was recognised is looked at again");
        assert_eq!((tokens.next_end(), tokens.expire(5_001)), (Some(9_000), vec![]));
        assert!(tokens.list().any(|token| token.name == "brief"), "until it is revoked");
        assert!(!tokens.insert(token("brief", "s9", &[], &[])));
        assert!(tokens.remove("brief").is_some());
        assert_eq!(tokens.expire(u64::MAX), ["later"]);
        assert_eq!(tokens.next_end(), None);
    }

    #[test]
    fn a_rotated_token_has_one_secret_at_once_or_two_for_a_while() {
        let mut tokens = table();
        let old = tokens.authenticate(Some(b"Bearer s2")).unwrap();
        let fresh = |secret: &str, previous| Token { previous, ..token("agent", secret, &["mcp:call"], &["time"]) };
        tokens.rotate(fresh("s3", None));
        assert!(!knows(&tokens, "s2") && knows(&tokens, "s3") && !tokens.still_knows(&old), "dead at once");
        let old = tokens.authenticate(Some(b"Bearer s3")).unwrap();
        tokens.rotate(fresh("s4", Some((hash(b"s3"), 7_000))));
        assert!(knows(&tokens, "s3") && knows(&tokens, "s4") && tokens.still_knows(&old));
        assert_eq!(tokens.next_end(), Some(7_000));
        assert_eq!(tokens.expire(7_000), ["agent"]);
        assert!(!knows(&tokens, "s3") && knows(&tokens, "s4") && !tokens.still_knows(&old));
        assert_eq!((tokens.next_end(), tokens.current("agent").unwrap().previous), (None, None));
        // Revoked in the middle of it, both are.
        tokens.rotate(fresh("s5", Some((hash(b"s4"), 9_000))));
        tokens.remove("agent");
        assert!(!knows(&tokens, "s4") && !knows(&tokens, "s5"));
        tokens.rotate(fresh("s6", None));
        assert!(!knows(&tokens, "s6"), "nothing is left to be rotated");
    }

    #[test]
    fn the_last_use_is_known_and_saved_once_in_a_while() {
        let mut tokens = table();
        let agent = tokens.authenticate(Some(b"Bearer s2")).unwrap();
        assert!(tokens.used(&agent, 1_000) && !tokens.used(&agent, 2_000), "the first since it was saved");
        assert!(!tokens.used(&Principal::anonymous(), 2_000), "no token");
        assert_eq!(tokens.take_used(), ["agent"]);
        assert_eq!(tokens.take_used(), Vec::<String>::new());
        assert_eq!(tokens.current("agent").unwrap().last_used_unix_ms, Some(2_000));
        assert_eq!(tokens.current("admin").unwrap().last_used_unix_ms, None);
        assert!(tokens.used(&agent, 3_000));
    }

    #[test]
    fn a_token_that_is_made_again_is_another_one() {
        let mut tokens = table();
        let agent = tokens.authenticate(Some(b"Bearer s2")).unwrap();
        let edition = tokens.edition();
        assert!(tokens.still_knows(&agent) && tokens.still_knows(&Principal::anonymous()));
        tokens.remove("agent");
        assert!(!tokens.still_knows(&agent) && tokens.edition() != edition);
        assert!(tokens.insert(token("agent", "s2", &["mcp:call"], &[])));
        assert!(!tokens.still_knows(&agent), "it has the name, and was given to somebody else");
    }

    #[test]
    fn before_the_store_is_read_no_token_is_called_wrong() {
        let mut tokens = Tokens::unread();
        let code = |tokens: &Tokens, header: Option<&[u8]>| tokens.authenticate(header).unwrap_err().code;
        assert_eq!(code(&tokens, Some(b"Bearer good")), Code::StoreUnavailable);
        assert_eq!(code(&tokens, Some(b"Basic good")), Code::Unauthorized);
        assert_eq!(code(&tokens, None), Code::Unauthorized);
        tokens.read();
        assert_eq!(code(&tokens, Some(b"Bearer good")), Code::Unauthorized);
    }
}
