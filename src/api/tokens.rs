//! What is asked about tokens, and how they are shown: the bodies that make and rotate one, and the object that a list has.
//! Never shows a hash, and a secret only where it was just made.

use crate::api::auth;
use crate::api::definition::fields;
use crate::api::definition::strict_json::{self, Field, Fields};
use crate::api::request::{Ask, TokenWanted};
use crate::limits::{RATE_MAX, TOKEN_GRACE_MAX, TOKEN_LIFE_MAX, TOKEN_SERVERS_MAX};
use crate::model::external::ProjectId;
use crate::model::fault::Fault;
use crate::model::principal::{Principal, Scopes};
use crate::model::rate::RateLimit;
use crate::model::records::Token;
use crate::wire::times::{parse_duration, rfc3339};
use serde::Serialize;
use std::time::Duration;

pub fn create(body: &[u8], who: &Principal) -> Result<Ask<'static>, Fault> {
    let known = &["name", "scopes", "servers", "projects", "expires", "rate_limit"];
    let mut fields = Fields::of(strict_json::object(body)?, known)?;
    let name = fields.required("name")?.parse(auth::token_name)?;
    let scopes = names(fields.required("scopes")?, Scopes::NAMES.len(), |text| match Scopes::NAMES.contains(&text) {
        true => Ok(text.to_string()),
        false => Err(format!("expected one of {}", Scopes::NAMES.join(", "))),
    })?;
    who.may_grant(Scopes::of(&scopes))?;
    let mut servers = Vec::new();
    fields.set("servers", &mut servers, &Vec::new(), |field| names(field, TOKEN_SERVERS_MAX, fields::server_name))?;
    let mut projects = Vec::new();
    fields.set("projects", &mut projects, &Vec::new(), |field| names(field, TOKEN_SERVERS_MAX, ProjectId::new))?;
    let lifetime_ms =
        given(&mut fields, "expires").map(|field| field.parse(|text| duration(text, TOKEN_LIFE_MAX))).transpose()?;
    let rate_limit = given(&mut fields, "rate_limit").map(rate_limit).transpose()?;
    fields.finish();
    Ok(Ask::TokenCreate { wanted: TokenWanted { name, scopes, servers, projects, lifetime_ms, rate_limit } })
}

/// The body of a rotation; none at all is one without grace.
pub fn grace(body: &[u8]) -> Result<u64, Fault> {
    if body.is_empty() {
        return Ok(0);
    }
    let mut fields = Fields::of(strict_json::object(body)?, &["grace"])?;
    let grace_ms =
        given(&mut fields, "grace").map(|field| field.parse(|text| duration(text, TOKEN_GRACE_MAX))).transpose()?;
    fields.finish();
    Ok(grace_ms.unwrap_or(0))
}

/// `null` is as if it was not there.
fn given(fields: &mut Fields, key: &str) -> Option<Field> {
    fields.take(key).filter(|field| !field.value.is_null())
}

fn duration(text: &str, most: Duration) -> Result<u64, String> {
    let most_ms = most.as_millis() as u64;
    parse_duration(text)
        .filter(|ms| (1..=most_ms).contains(ms))
        .ok_or_else(|| format!("expected a time such as 90d, 12h, 5m or 30s, of at most {}d", most_ms / 86_400_000))
}

fn rate_limit(field: Field) -> Result<RateLimit, Fault> {
    let mut fields = field.object(&["per_second", "burst"])?;
    let per_second = fields.required("per_second")?.integer(1..=RATE_MAX)?;
    let burst = given(&mut fields, "burst").map(|field| field.integer(1..=RATE_MAX)).transpose()?;
    fields.finish();
    Ok(RateLimit { per_second, burst: burst.unwrap_or(per_second) })
}

/// A list of different words. An empty one is refused: it could be read as none or as all.
fn names<T: PartialEq>(field: Field, max: usize, rule: fn(&str) -> Result<T, String>) -> Result<Vec<T>, Fault> {
    let path = field.path.clone();
    let names = field.list(max)?.into_iter().map(|item| item.parse(rule)).collect::<Result<Vec<_>, _>>()?;
    let twice = names.iter().enumerate().any(|(at, name)| names[..at].contains(name));
    match names.is_empty() || twice {
        true => Err(Fault::field(&path, "must have at least one item, and none twice")),
        false => Ok(names),
    }
}

#[derive(Serialize)]
pub struct TokenObject<'a> {
    pub name: &'a str,
    pub scopes: &'a [String],
    pub servers: &'a [String],
    pub projects: &'a [ProjectId],
    pub created_at: String,
    pub expires_at: Option<String>,
    pub last_used_at: Option<String>,
    /// Until when the secret before this one goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous_until: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_limit: Option<RateLimit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<&'a str>,
}

impl TokenObject<'_> {
    pub fn of(token: &Token) -> TokenObject<'_> {
        TokenObject {
            name: &token.name,
            scopes: &token.scopes,
            servers: &token.servers,
            projects: &token.projects,
            created_at: rfc3339(token.created_unix_ms),
            expires_at: token.expires_unix_ms.map(rfc3339),
            last_used_at: token.last_used_unix_ms.map(rfc3339),
            previous_until: token.previous.map(|(_, until)| rfc3339(until)),
            rate_limit: token.rate_limit,
            token: None,
        }
    }
}
