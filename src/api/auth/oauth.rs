//! What a token of the authorization server is worth here: issuer, audience, time and signature, and the rules that turn its
//! claims into a principal. Owns the keys it was given and the tokens it has found good; fetches nothing and never waits.
//! Invariant: nobody is let in by a token whose signature was not verified with a key of the present set.

use crate::api::auth::jwks::{Keys, Signature};
use crate::api::auth::jwt::{self, Claims};
use crate::api::auth::resource::Resource;
use crate::api::auth::{OAUTH_PREFIX, hash};
use crate::limits::{OAUTH_LEEWAY, OAUTH_TOKENS_KEPT};
use crate::model::external::ProjectId;
use crate::model::principal::{Limits, Principal, Scopes};
use std::collections::HashMap;
use std::sync::Arc;

/// What the configuration says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OAuth {
    pub issuer: String,
    /// What tokens may be for besides our address.
    pub audience: Option<String>,
    /// None: scopes are called here as they are there.
    pub rules: Vec<ClaimRule>,
    pub resource: Arc<Resource>,
}

/// Whoever has this value in this claim may do that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRule {
    pub claim: String,
    pub value: String,
    pub scopes: Vec<String>,
    /// Both empty: all.
    pub servers: Vec<String>,
    pub projects: Vec<ProjectId>,
}

/// A token that was verified.
#[derive(Debug)]
pub struct Grant {
    pub principal: Principal,
    /// None: for all that is here.
    audiences: Option<Vec<String>>,
    from_unix_ms: u64,
    until_unix_ms: u64,
    /// Of the keys that it was verified with.
    edition: u64,
}

impl Grant {
    /// From then on it is worth nothing.
    pub fn until_unix_ms(&self) -> u64 {
        self.until_unix_ms
    }
}

#[derive(Debug)]
pub enum Verdict {
    Good(Arc<Grant>),
    /// In words for whoever sent it.
    Refused(&'static str),
    /// It would be good if its key were known.
    UnknownKey,
}

pub struct Verifier {
    oauth: OAuth,
    keys: Keys,
    /// Counts the changes of the keys.
    edition: u64,
    /// By SHA-256 of the token.
    good: HashMap<[u8; 32], Arc<Grant>>,
}

impl Verifier {
    pub fn new(oauth: OAuth) -> Verifier {
        Verifier { oauth, keys: Keys::default(), edition: 0, good: HashMap::new() }
    }

    pub fn has_keys(&self) -> bool {
        !self.keys.is_empty()
    }

    /// The whole set, which takes the place of the one before: a key that is not in it is good for nothing more.
    pub fn learn(&mut self, keys: Keys) -> bool {
        let differs = keys != self.keys;
        if differs {
            self.keys = keys;
            self.edition += 1;
            self.good.clear();
        }
        differs
    }

    /// Does a grant still hold, for this path?
    pub fn holds(&self, grant: &Grant, path: &str, now_unix_ms: u64) -> Result<(), &'static str> {
        if grant.edition != self.edition {
            return Err("the key of the token was replaced");
        }
        if now_unix_ms >= grant.until_unix_ms {
            return Err("the token has expired");
        }
        if now_unix_ms < grant.from_unix_ms {
            return Err("the token is not valid yet");
        }
        let resource = &self.oauth.resource;
        match &grant.audiences {
            None => Ok(()),
            Some(audiences) if audiences.iter().any(|audience| resource.is_addressed_by(audience, path)) => Ok(()),
            Some(_) => Err("the token is for another address of this daemon"),
        }
    }

    /// `path`: of the request that shows it.
    pub fn check(&mut self, token: &[u8], path: &str, now_unix_ms: u64) -> Verdict {
        let key = hash(token);
        let grant = match self.good.get(&key).filter(|grant| now_unix_ms < grant.until_unix_ms) {
            Some(grant) => Arc::clone(grant),
            None => match self.verify(token, now_unix_ms) {
                Ok(Some(grant)) => self.keep(key, grant, now_unix_ms),
                Ok(None) => return Verdict::UnknownKey,
                Err(why) => return Verdict::Refused(why),
            },
        };
        match self.holds(&grant, path, now_unix_ms) {
            Ok(()) => Verdict::Good(grant),
            Err(why) => Verdict::Refused(why),
        }
    }

    fn keep(&mut self, key: [u8; 32], grant: Grant, now_unix_ms: u64) -> Arc<Grant> {
        if self.good.len() >= OAUTH_TOKENS_KEPT {
            self.good.retain(|_, grant| now_unix_ms < grant.until_unix_ms);
        }
        if self.good.len() >= OAUTH_TOKENS_KEPT {
            self.good.clear();
        }
        let grant = Arc::new(grant);
        self.good.insert(key, Arc::clone(&grant));
        grant
    }

    /// The signature comes last: what is wrong anyway costs no arithmetic, and has no key fetched. None: by an unknown key.
    fn verify(&self, token: &[u8], now_unix_ms: u64) -> Result<Option<Grant>, &'static str> {
        let jwt = jwt::parse(token)?;
        let claims = &jwt.claims;
        if claims.issuer != self.oauth.issuer {
            return Err("the token is of another issuer");
        }
        let audiences = self.audiences(claims)?;
        let leeway_ms = OAUTH_LEEWAY.as_millis() as u64;
        let until_unix_ms = claims.expires_unix_ms.saturating_add(leeway_ms);
        let from_unix_ms = claims.not_before_unix_ms.unwrap_or(0).saturating_sub(leeway_ms);
        if now_unix_ms >= until_unix_ms {
            return Err("the token has expired");
        }
        if now_unix_ms < from_unix_ms {
            return Err("the token is not valid yet");
        }
        match self.keys.look_at(&jwt) {
            Signature::Good => {
                let principal = self.oauth.principal(claims);
                Ok(Some(Grant { principal, audiences, from_unix_ms, until_unix_ms, edition: self.edition }))
            }
            Signature::Bad => Err("the token's signature is wrong"),
            Signature::Unknown => Ok(None),
        }
    }

    /// Those that are ours; none: one is for all.
    fn audiences(&self, claims: &Claims) -> Result<Option<Vec<String>>, &'static str> {
        let resource = &self.oauth.resource;
        let is_all = |audience: &String| {
            resource.is_all_of(audience) || self.oauth.audience.as_ref().is_some_and(|own| own == audience)
        };
        if claims.audiences.iter().any(is_all) {
            return Ok(None);
        }
        let ours: Vec<String> = claims.audiences.iter().filter(|one| resource.is_mine(one)).cloned().collect();
        if ours.is_empty() { Err("the token is for another audience") } else { Ok(Some(ours)) }
    }
}

impl OAuth {
    fn principal(&self, claims: &Claims) -> Principal {
        let (scopes, limits) = match self.rules.is_empty() {
            true => {
                let granted = |name: &&str| claims.has("scope", name) || claims.has("scp", name);
                let names: Vec<&str> = Scopes::NAMES.into_iter().filter(granted).collect();
                (Scopes::of(&names), Limits::default())
            }
            false => add_up(self.rules.iter().filter(|rule| claims.has(&rule.claim, &rule.value))),
        };
        let name = format!("{OAUTH_PREFIX}{}", claims.subject).into();
        Principal { name, scopes, limits, rate_limit: None }
    }
}

/// The scopes of all, for the servers and projects of all. A rule that names none of these is for all of them; but where
/// others give scopes that it does not, their limits hold: no two rules together open more than was written.
fn add_up<'r>(rules: impl Iterator<Item = &'r ClaimRule>) -> (Scopes, Limits) {
    let (mut everywhere, mut limited) = (Scopes::default(), Scopes::default());
    let (mut servers, mut projects): (Vec<String>, Vec<ProjectId>) = (Vec::new(), Vec::new());
    for rule in rules {
        let scopes = Scopes::of(&rule.scopes);
        if rule.servers.is_empty() && rule.projects.is_empty() {
            everywhere = everywhere.with(scopes);
            continue;
        }
        limited = limited.with(scopes);
        servers.extend(rule.servers.iter().filter(|name| !servers.contains(name)).cloned().collect::<Vec<_>>());
        projects.extend(rule.projects.iter().filter(|id| !projects.contains(id)).cloned().collect::<Vec<_>>());
    }
    match everywhere.cover(limited) {
        true => (everywhere, Limits::default()),
        false => (everywhere.with(limited), Limits { servers: servers.into(), projects: projects.into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::auth::jwks::tests::Signer;
    use crate::wire::http::url::Url;
    use serde_json::{Value, json};

    const NOW_S: u64 = 1_000_000;
    const NOW: u64 = NOW_S * 1000;

    fn rule(claim: &str, value: &str, scopes: &[&str], servers: &[&str]) -> ClaimRule {
        let owned = |all: &[&str]| all.iter().map(ToString::to_string).collect();
        ClaimRule {
            claim: claim.into(),
            value: value.into(),
            scopes: owned(scopes),
            servers: owned(servers),
            projects: Vec::new(),
        }
    }

    fn oauth(rules: Vec<ClaimRule>) -> OAuth {
        let names = Scopes::NAMES.map(|name| vec![name.to_string()]);
        let here = Url::parse("https://here.test").unwrap();
        let resource = Arc::new(Resource::new(&here, "https://as.test".into(), names));
        OAuth { issuer: "https://as.test".into(), audience: Some("api://stdiod".into()), rules, resource }
    }

    fn keys(all: &[Value]) -> Keys {
        Keys::parse(json!({ "keys": all }).to_string().as_bytes()).unwrap()
    }

    fn claims() -> Value {
        json!({"iss": "https://as.test", "aud": "https://here.test/mcp/a", "sub": "ada", "exp": NOW_S + 600,
            "scope": "openid mcp:call"})
    }

    fn sign(signer: &Signer, claims: &Value) -> String {
        signer.sign(&json!({"alg": "ES256", "typ": "at+jwt", "kid": "1"}), claims)
    }

    fn verdict(verifier: &mut Verifier, token: &str, path: &str, now: u64) -> Result<Principal, String> {
        match verifier.check(token.as_bytes(), path, now) {
            Verdict::Good(grant) => Ok(grant.principal.clone()),
            Verdict::Refused(why) => Err(why.to_string()),
            Verdict::UnknownKey => Err("unknown key".to_string()),
        }
    }

    #[test]
    fn a_token_is_good_for_its_audience_and_its_time_alone() {
        let signer = Signer::p256();
        let mut verifier = Verifier::new(oauth(Vec::new()));
        let token = sign(&signer, &claims());
        assert_eq!(verdict(&mut verifier, &token, "/mcp/a", NOW), Err("unknown key".into()));
        assert!(verifier.learn(keys(&[signer.public(Some("1"))])));
        let who = verdict(&mut verifier, &token, "/mcp/a", NOW).unwrap();
        assert_eq!((&*who.name, who.scopes.names()), ("oauth:ada", vec!["mcp:call"]));
        assert!(!who.is_limited());
        for _ in 0..2 {
            assert!(verdict(&mut verifier, &token, "/mcp/b", NOW).is_err(), "another server");
            assert!(verdict(&mut verifier, &token, "/mcp", NOW).is_err());
            assert!(verdict(&mut verifier, &token, "/mcp/a", NOW + 700_000).is_err(), "its end");
            assert!(verdict(&mut verifier, &token, "/mcp/a", NOW + 650_000).is_ok(), "clocks differ");
        }
        for (field, value) in [
            ("iss", json!("https://as.test/")),
            ("aud", json!("https://there.test/mcp/a")),
            ("aud", json!([])),
            ("exp", json!(NOW_S - 61)),
            ("nbf", json!(NOW_S + 61)),
        ] {
            let mut wrong = claims();
            wrong[field] = value.clone();
            assert!(verdict(&mut verifier, &sign(&signer, &wrong), "/mcp/a", NOW).is_err(), "{field} {value}");
        }
        for (field, value) in [
            ("aud", json!(["https://there.test", "https://here.test/"])),
            ("aud", json!("api://stdiod")),
            ("exp", json!(NOW_S - 59)),
            ("nbf", json!(NOW_S + 59)),
        ] {
            let mut right = claims();
            right[field] = value.clone();
            assert!(verdict(&mut verifier, &sign(&signer, &right), "/mcp/a", NOW).is_ok(), "{field} {value}");
        }
        assert!(verdict(&mut verifier, &sign(&Signer::p256(), &claims()), "/mcp/a", NOW).is_err(), "another's key");
    }

    #[test]
    fn a_key_that_was_withdrawn_is_good_for_nothing_also_for_what_was_found_good() {
        let (old, new) = (Signer::p256(), Signer::p256());
        let mut verifier = Verifier::new(oauth(Vec::new()));
        verifier.learn(keys(&[old.public(Some("1"))]));
        let token = sign(&old, &claims());
        let Verdict::Good(grant) = verifier.check(token.as_bytes(), "/mcp/a", NOW) else { panic!("good") };
        assert!(!verifier.learn(keys(&[old.public(Some("1"))])), "the same again");
        assert!(verifier.holds(&grant, "/mcp/a", NOW).is_ok());
        assert!(verifier.learn(keys(&[new.public(Some("2"))])));
        assert!(verifier.holds(&grant, "/mcp/a", NOW).is_err());
        assert_eq!(verdict(&mut verifier, &token, "/mcp/a", NOW), Err("unknown key".into()));
    }

    #[test]
    fn good_tokens_are_kept_within_a_bound() {
        let signer = Signer::ed25519();
        let mut verifier = Verifier::new(oauth(Vec::new()));
        verifier.learn(keys(&[signer.public(None)]));
        for n in 0..OAUTH_TOKENS_KEPT + 10 {
            let mut claims = claims();
            claims["jti"] = json!(n);
            let token = signer.sign(&json!({"alg": "EdDSA"}), &claims);
            assert!(verdict(&mut verifier, &token, "/mcp/a", NOW).is_ok());
            assert!(verifier.good.len() <= OAUTH_TOKENS_KEPT);
        }
    }

    #[test]
    fn rules_add_up_and_open_no_more_than_was_written() {
        let signer = Signer::p256();
        let rules = vec![
            rule("groups", "dev", &["mcp:call"], &["a"]),
            rule("groups", "ops", &["mcp:call", "admin:read"], &["b"]),
            rule("groups", "admins", &["admin:write", "mcp:call"], &[]),
            rule("scope", "look", &["admin:read"], &[]),
        ];
        let mut verifier = Verifier::new(oauth(rules));
        verifier.learn(keys(&[signer.public(Some("1"))]));
        let mut who = |groups: &[&str], scope: &str| {
            let mut claims = claims();
            (claims["groups"], claims["scope"]) = (json!(groups), json!(scope));
            let who = verdict(&mut verifier, &sign(&signer, &claims), "/mcp/a", NOW).unwrap();
            (who.scopes.names().join(" "), who.limits.servers.join(" "))
        };
        let of = |scopes: &str, servers: &str| (scopes.to_string(), servers.to_string());
        assert_eq!(who(&[], "mcp:call admin:write"), of("", ""), "with rules, only they give anything");
        assert_eq!(who(&["dev"], ""), of("mcp:call", "a"));
        assert_eq!(who(&["dev", "ops"], ""), of("admin:read mcp:call", "a b"));
        assert_eq!(who(&["dev", "admins"], ""), of("admin:read admin:write mcp:call", ""));
        assert_eq!(who(&["dev"], "look"), of("admin:read mcp:call", "a"), "not mcp:call for all servers");
        assert_eq!(who(&[], "look"), of("admin:read", ""));
    }
}
