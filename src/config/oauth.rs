//! What the configuration says about the authorization server: `public_url`, under which clients know this daemon, `[oauth]`
//! and its rules. Judges values only; the server is asked by `os::net::oauth`.

use super::source::{ClaimRuleTable, Found, OAuthTable, Sources};
use super::{ConfigError, Place};
use crate::api::auth::discovery;
use crate::api::auth::oauth::{ClaimRule, OAuth};
use crate::api::auth::resource::Resource;
use crate::api::definition::fields::server_name;
use crate::limits::{NAME_MAX, OAUTH_RULES_MAX, OAUTH_WORD_MAX, TOKEN_SERVERS_MAX};
use crate::model::external::ProjectId;
use crate::model::principal::Scopes;
use crate::wire::http::url::Url;
use std::sync::Arc;

/// Tokens of somebody else that are good here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthServer {
    pub oauth: OAuth,
    /// None: its metadata says where the keys are.
    pub jwks_uri: Option<Url>,
}

pub(super) fn public_url(sources: &Sources) -> Result<Option<Url>, ConfigError> {
    let Some(Found { value, at }) = sources.string("public_url")? else { return Ok(None) };
    match Url::parse(&value).filter(|url| !url.path.contains(['?', '%']) && !value.contains('#')) {
        Some(url) => Ok(Some(url)),
        None => {
            let remedy = "write the address that clients reach, as in `https://mcp.example.com`";
            Err(ConfigError::invalid(at, "public_url", format!("is `{value}`"), remedy))
        }
    }
}

pub(super) fn auth_server(sources: &Sources, public: Option<&Url>) -> Result<Option<AuthServer>, ConfigError> {
    let Some(table) = sources.oauth()? else { return Ok(None) };
    let OAuthTable { at, issuer, audience, jwks_uri, rules } = table;
    let Some(issuer) = issuer else {
        let remedy = "write the address of the authorization server, exactly as its tokens have it in `iss`";
        return Err(ConfigError::invalid(at, "oauth.issuer", "is missing", remedy));
    };
    address("oauth.issuer", &issuer)?;
    let Some(public) = public else {
        let remedy = "set `public_url` to the address that clients reach: tokens must be for it";
        return Err(ConfigError::invalid(at, "oauth", "needs `public_url`, which is missing", remedy));
    };
    if let Some(Found { value, at }) = &audience
        && (value.is_empty() || value.len() > OAUTH_WORD_MAX)
    {
        let remedy = format!("write what tokens have in `aud`, of at most {OAUTH_WORD_MAX} bytes, or leave it out");
        return Err(ConfigError::invalid(at.clone(), "oauth.audience", format!("is `{value}`"), remedy));
    }
    if let Some(one_more) = rules.get(OAUTH_RULES_MAX) {
        let problem = format!("has more than {OAUTH_RULES_MAX} rules");
        return Err(ConfigError::invalid(one_more.at.clone(), "oauth.rules", problem, "remove some"));
    }
    let rules = rules.into_iter().map(rule).collect::<Result<Vec<_>, _>>()?;
    let resource = Arc::new(Resource::new(public, issuer.value.clone(), names(&rules)));
    let jwks_uri = jwks_uri.map(|found| address("oauth.jwks_uri", &found)).transpose()?;
    let oauth = OAuth { issuer: issuer.value, audience: audience.map(|found| found.value), rules, resource };
    Ok(Some(AuthServer { oauth, jwks_uri }))
}

fn address(key: &str, found: &Found<String>) -> Result<Url, ConfigError> {
    let invalid = |problem: &str, remedy: &str| {
        Err(ConfigError::invalid(found.at.clone(), key, format!("is `{}`, {problem}", found.value), remedy))
    };
    match Url::parse(&found.value) {
        Some(url) if discovery::is_safe(&url) => Ok(url),
        Some(_) => {
            invalid("which is reached in clear text", "write an https:// address; http:// is for loopback alone")
        }
        None => invalid("which is no address", "write an https:// address"),
    }
}

/// What clients are to ask the authorization server for.
fn names(rules: &[ClaimRule]) -> [Vec<String>; 3] {
    if rules.is_empty() {
        return Scopes::NAMES.map(|name| vec![name.to_string()]);
    }
    Scopes::NAMES.map(|ours| {
        let mut names: Vec<String> = Vec::new();
        for rule in rules.iter().filter(|rule| matches!(rule.claim.as_str(), "scope" | "scp")) {
            if rule.scopes.iter().any(|scope| scope == ours) && !names.contains(&rule.value) {
                names.push(rule.value.clone());
            }
        }
        names
    })
}

fn rule(table: ClaimRuleTable) -> Result<ClaimRule, ConfigError> {
    let ClaimRuleTable { at, claim, value, scopes, servers, projects } = table;
    let claim = word(&at, "claim", claim, "write the name of a claim, as in `groups` or `realm_access.roles`")?;
    let value = word(&at, "value", value, "write the value that the claim must have, or have among others")?;
    if matches!(claim.as_str(), "scope" | "scp") && value.contains([' ', '"', '\\']) {
        return Err(invalid(&at, "value", format!("is `{value}`"), "write one scope; a rule is for one".to_string()));
    }
    let of = || format!("write of {}", Scopes::NAMES.join(", "));
    let scopes = scopes.map(|found| found.value).unwrap_or_default();
    if let Some(wrong) = scopes.iter().find(|scope| !Scopes::NAMES.contains(&scope.as_str())) {
        return Err(invalid(&at, "scopes", format!("holds `{wrong}`"), of()));
    }
    if scopes.is_empty() {
        return Err(invalid(&at, "scopes", "is missing".to_string(), of()));
    }
    let servers = servers.map(|found| found.value).unwrap_or_default();
    if let Some(wrong) = servers.iter().find(|name| server_name(name).is_err()) {
        return Err(invalid(&at, "servers", format!("holds `{wrong}`"), "write names of servers".to_string()));
    }
    let projects = projects.map(|found| found.value).unwrap_or_default();
    let ids: Result<Vec<ProjectId>, String> = projects.iter().map(|id| ProjectId::new(id)).collect();
    let projects =
        ids.map_err(|why| invalid(&at, "projects", format!("holds what {why}"), "write ids of projects".to_string()))?;
    for (key, count) in [("servers", servers.len()), ("projects", projects.len())] {
        if count > TOKEN_SERVERS_MAX {
            let problem = format!("has more than {TOKEN_SERVERS_MAX}");
            return Err(invalid(&at, key, problem, "leave it out for all".to_string()));
        }
    }
    Ok(ClaimRule { claim, value, scopes, servers, projects })
}

fn invalid(at: &Place, key: &str, problem: String, remedy: String) -> ConfigError {
    ConfigError::invalid(at.clone(), &format!("oauth.rules.{key}"), problem, remedy)
}

fn word(at: &Place, key: &str, found: Option<Found<String>>, remedy: &str) -> Result<String, ConfigError> {
    let word = found.map(|found| found.value).unwrap_or_default();
    if word.is_empty() || word.len() > NAME_MAX.max(OAUTH_WORD_MAX) || word.chars().any(char::is_control) {
        let problem = if word.is_empty() { "is missing".to_string() } else { format!("is `{word}`") };
        return Err(invalid(at, key, problem, remedy.to_string()));
    }
    Ok(word)
}
