//! Access tokens as an authorization server gives them: a JWT in its compact form (RFC 7519, 7515, 9068), read strictly and
//! within bounds. Verifies nothing: who has signed it is `jwks`'s, what it is worth `oauth`'s. Whatever a header names as the
//! place of a key (`jwk`, `jku`, `x5u`, `x5c`) is not looked at.

use crate::api::definition::strict_json;
use crate::limits::{
    OAUTH_DEPTH_MAX, OAUTH_HEADER_FIELDS_MAX, OAUTH_HEADER_MAX, OAUTH_TOKEN_MAX, OAUTH_VALUES_MAX, OAUTH_WORD_MAX,
};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

/// How a token may be signed. There is no shared secret and no `none` among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    Rs256,
    Es256,
    EdDsa,
}

impl Algorithm {
    pub fn of(name: &str) -> Option<Algorithm> {
        match name {
            "RS256" => Some(Algorithm::Rs256),
            "ES256" => Some(Algorithm::Es256),
            // The second name is RFC 9864's, for the one curve that is known here.
            "EdDSA" | "Ed25519" => Some(Algorithm::EdDsa),
            _ => None,
        }
    }
}

/// One that was read, and not yet believed.
#[derive(Debug)]
pub struct Jwt<'t> {
    pub algorithm: Algorithm,
    /// The name of its key.
    pub kid: Option<String>,
    pub claims: Claims,
    /// What the signature is over.
    pub signed: &'t [u8],
    pub signature: Vec<u8>,
}

#[derive(Debug)]
pub struct Claims {
    pub issuer: String,
    pub audiences: Vec<String>,
    /// Whom it stands for: its subject, or else the client it was given to.
    pub subject: String,
    pub expires_unix_ms: u64,
    pub not_before_unix_ms: Option<u64>,
    pub all: Map<String, Value>,
}

/// Why it is none, in words for whoever sent it.
pub type Refusal = &'static str;

/// Does it have the form of one? Static tokens do not.
pub fn is_one(secret: &[u8]) -> bool {
    secret.starts_with(b"ey") && secret.iter().filter(|byte| **byte == b'.').count() == 2
}

pub fn parse(token: &[u8]) -> Result<Jwt<'_>, Refusal> {
    if token.len() > OAUTH_TOKEN_MAX {
        return Err("the token is longer than any is taken");
    }
    let mut parts = token.split(|byte| *byte == b'.');
    let (Some(header), Some(claims), Some(signature), None) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err("the token is no JWT of three parts");
    };
    let signed = &token[..header.len() + 1 + claims.len()];
    let (algorithm, kid) = read_header(&decoded(header)?)?;
    let claims = read_claims(&decoded(claims)?)?;
    Ok(Jwt { algorithm, kid, claims, signed, signature: decoded(signature)? })
}

/// Neither padding nor another alphabet: each token has one spelling.
fn decoded(part: &[u8]) -> Result<Vec<u8>, Refusal> {
    URL_SAFE_NO_PAD.decode(part).map_err(|_| "a part of the token is not base64url")
}

fn object(text: &[u8]) -> Result<Map<String, Value>, Refusal> {
    if !is_shallow(text) {
        return Err("a part of the token is nested too deeply");
    }
    strict_json::object(text).map_err(|_| "a part of the token is no JSON object, or has a key twice")
}

/// Looked at before it is parsed: brackets outside of strings.
fn is_shallow(text: &[u8]) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for byte in text {
        match (in_string, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => in_string = !in_string,
            (false, b'{' | b'[') => depth += 1,
            (false, b'}' | b']') => depth = depth.saturating_sub(1),
            (true | false, _) => {}
        }
        if depth > OAUTH_DEPTH_MAX {
            return false;
        }
    }
    true
}

fn read_header(text: &[u8]) -> Result<(Algorithm, Option<String>), Refusal> {
    if text.len() > OAUTH_HEADER_MAX {
        return Err("the token's header is too long");
    }
    let header = object(text)?;
    if header.len() > OAUTH_HEADER_FIELDS_MAX {
        return Err("the token's header has too many fields");
    }
    if header.contains_key("crit") {
        return Err("the token has a critical extension (`crit`), and none is known here");
    }
    let typ = header.get("typ").map(|typ| typ.as_str().unwrap_or_default().to_ascii_lowercase());
    if typ.is_some_and(|typ| !["at+jwt", "application/at+jwt", "jwt"].contains(&typ.as_str())) {
        return Err("the token's `typ` is neither `at+jwt` nor `JWT`");
    }
    let algorithm = header.get("alg").and_then(Value::as_str).and_then(Algorithm::of);
    let algorithm = algorithm.ok_or("the token's `alg` is none of RS256, ES256, EdDSA")?;
    let kid = match header.get("kid") {
        None => None,
        Some(Value::String(kid)) if kid.len() <= OAUTH_WORD_MAX => Some(kid.clone()),
        Some(_) => return Err("the token's `kid` is no short string"),
    };
    Ok((algorithm, kid))
}

fn read_claims(text: &[u8]) -> Result<Claims, Refusal> {
    let all = object(text)?;
    let issuer = all.get("iss").and_then(Value::as_str).ok_or("the token names no issuer")?.to_string();
    let audiences = match all.get("aud") {
        Some(Value::String(one)) => vec![one.clone()],
        Some(Value::Array(many)) if many.len() <= OAUTH_VALUES_MAX => {
            let each: Option<Vec<String>> = many.iter().map(|one| one.as_str().map(str::to_string)).collect();
            each.ok_or("the token's audience is no string")?
        }
        Some(_) | None => return Err("the token names no audience"),
    };
    let expires_unix_ms = moment(all.get("exp"))?.ok_or("the token has no end (`exp`)")?;
    let not_before_unix_ms = moment(all.get("nbf"))?;
    let subject = ["sub", "client_id", "azp"].into_iter().find_map(|claim| all.get(claim));
    let subject = subject.and_then(Value::as_str).ok_or("the token names no subject")?.to_string();
    if subject.is_empty() || subject.len() > OAUTH_WORD_MAX || subject.chars().any(char::is_control) {
        return Err("the token's subject is no short line of text");
    }
    Ok(Claims { issuer, audiences, subject, expires_unix_ms, not_before_unix_ms, all })
}

/// Seconds since 1970, as a number that may have a fraction.
fn moment(value: Option<&Value>) -> Result<Option<u64>, Refusal> {
    let Some(value) = value else { return Ok(None) };
    match value.as_f64().filter(|seconds| seconds.is_finite() && *seconds >= 0.0) {
        Some(seconds) => Ok(Some((seconds * 1000.0) as u64)),
        None => Err("a time in the token is no number"),
    }
}

impl Claims {
    /// Does a claim have this value, or is it among its values? `name` may lead into objects, as in `realm_access.roles`;
    /// `scope` and `scp` are lists in one string.
    pub fn has(&self, name: &str, wanted: &str) -> bool {
        let Some(value) = self.find(name) else { return false };
        match value {
            Value::String(text) if matches!(name, "scope" | "scp") => text.split(' ').any(|one| one == wanted),
            Value::Array(values) => values.iter().take(OAUTH_VALUES_MAX).any(|one| is_it(one, wanted)),
            one => is_it(one, wanted),
        }
    }

    /// A claim whose name has a dot in it comes before one that is inside another.
    fn find(&self, name: &str) -> Option<&Value> {
        if let Some(value) = self.all.get(name) {
            return Some(value);
        }
        let mut inside = &self.all;
        let mut steps = name.split('.').peekable();
        while let Some(step) = steps.next() {
            let value = inside.get(step)?;
            if steps.peek().is_none() {
                return Some(value);
            }
            inside = value.as_object()?;
        }
        None
    }
}

fn is_it(value: &Value, wanted: &str) -> bool {
    match value {
        Value::String(text) => text == wanted,
        Value::Bool(flag) => wanted == if *flag { "true" } else { "false" },
        Value::Number(number) => number.to_string() == wanted,
        Value::Null | Value::Array(_) | Value::Object(_) => false,
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::wire::mutation::Mutator;
    use serde_json::json;

    pub fn unsigned(header: &Value, claims: &Value) -> String {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        format!("{}.{}", part(header), part(claims))
    }

    fn good() -> (Value, Value) {
        (
            json!({"alg": "ES256", "typ": "at+jwt", "kid": "k1"}),
            json!({"iss": "https://as", "aud": ["https://here/mcp/a"], "sub": "ada", "exp": 2000.5, "nbf": 1000,
                "scope": "mcp:call openid", "realm_access": {"roles": ["dev"]}, "a.b": true, "level": 3}),
        )
    }

    fn read(header: &Value, claims: &Value) -> Result<(), Refusal> {
        parse(format!("{}.AAAA", unsigned(header, claims)).as_bytes()).map(drop)
    }

    #[test]
    fn a_token_is_taken_apart() {
        let (header, claims) = good();
        let token = format!("{}.AAEC", unsigned(&header, &claims));
        assert!(is_one(token.as_bytes()) && !is_one(b"k7a0sd.x") && !is_one(b"eyJ.a.b.c"));
        let jwt = parse(token.as_bytes()).unwrap();
        assert_eq!((jwt.algorithm, jwt.kid.as_deref()), (Algorithm::Es256, Some("k1")));
        assert_eq!(jwt.signed, unsigned(&header, &claims).as_bytes());
        assert_eq!(jwt.signature, [0, 1, 2]);
        let claims = jwt.claims;
        assert_eq!((claims.issuer.as_str(), claims.subject.as_str()), ("https://as", "ada"));
        assert_eq!((claims.expires_unix_ms, claims.not_before_unix_ms), (2_000_500, Some(1_000_000)));
        assert_eq!(claims.audiences, ["https://here/mcp/a"]);
        for (claim, value, has) in [
            ("scope", "mcp:call", true),
            ("scope", "mcp", false),
            ("scope", "mcp:call openid", false),
            ("realm_access.roles", "dev", true),
            ("realm_access.roles", "de", false),
            ("realm_access", "dev", false),
            ("a.b", "true", true),
            ("level", "3", true),
            ("sub", "ada", true),
            ("sub.x", "ada", false),
            ("", "", false),
        ] {
            assert_eq!(claims.has(claim, value), has, "{claim} {value}");
        }
    }

    #[test]
    fn a_header_that_asks_for_anything_else_is_refused() {
        let (header, claims) = good();
        for (field, value) in [
            ("alg", json!("none")),
            ("alg", json!("None")),
            ("alg", json!("HS256")),
            ("alg", json!("RS512")),
            ("alg", json!(null)),
            ("alg", json!(["ES256"])),
            ("typ", json!("dpop+jwt")),
            ("typ", json!(5)),
            ("crit", json!(["exp"])),
            ("crit", json!([])),
            ("kid", json!(5)),
            ("kid", json!("k".repeat(OAUTH_WORD_MAX + 1))),
            ("x", json!("x".repeat(OAUTH_HEADER_MAX))),
        ] {
            let mut header = header.clone();
            header[field] = value.clone();
            assert!(read(&header, &claims).is_err(), "{field} {value}");
        }
        for typ in ["JWT", "jwt", "at+JWT", "application/at+jwt"] {
            let mut header = header.clone();
            header["typ"] = json!(typ);
            assert_eq!(read(&header, &claims), Ok(()), "{typ}");
        }
        let places = json!({"alg": "ES256", "jwk": {"kty": "EC"}, "jku": "http://evil", "x5u": "http://evil"});
        assert_eq!(read(&places, &claims), Ok(()), "they are not looked at");
        let many: Map<String, Value> = (0..=OAUTH_HEADER_FIELDS_MAX).map(|n| (n.to_string(), json!(0))).collect();
        assert!(read(&Value::Object(many), &claims).is_err());
    }

    #[test]
    fn claims_that_are_missing_or_of_another_kind_are_refused() {
        let (header, claims) = good();
        for (field, value) in [
            ("iss", None),
            ("iss", Some(json!(5))),
            ("aud", None),
            ("aud", Some(json!([5]))),
            ("aud", Some(json!({}))),
            ("exp", None),
            ("exp", Some(json!("2000"))),
            ("exp", Some(json!(-1))),
            ("nbf", Some(json!("x"))),
            ("sub", None),
            ("sub", Some(json!(""))),
            ("sub", Some(json!("a\nb"))),
            ("sub", Some(json!("s".repeat(OAUTH_WORD_MAX + 1)))),
        ] {
            let mut claims = claims.clone();
            match &value {
                None => _ = claims.as_object_mut().unwrap().remove(field),
                Some(value) => claims[field] = value.clone(),
            }
            assert!(read(&header, &claims).is_err(), "{field} {value:?}");
        }
        let mut machine = claims.clone();
        machine.as_object_mut().unwrap().remove("sub");
        machine["client_id"] = json!("ci");
        assert_eq!(read(&header, &machine), Ok(()));
    }

    #[test]
    fn what_two_readers_could_read_in_two_ways_is_refused() {
        let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
        let (header, claims) = good();
        let (header, claims) = (header.to_string(), claims.to_string());
        let token = |header: &str, claims: &str| format!("{}.{}.AAAA", part(header), part(claims));
        assert!(parse(token(&header, &claims).as_bytes()).is_ok());
        let twice = claims.replacen('{', r#"{"iss":"https://evil","#, 1);
        let deep = format!("{{\"x\":{}1{},{}", "[".repeat(50), "]".repeat(50), &claims[1..]);
        let hidden = claims.replacen('{', &format!("{{\"x\":\"{}\\\"[\",", "[".repeat(50)), 1);
        assert!(parse(token(&header, &hidden).as_bytes()).is_ok(), "brackets in a string");
        let good = token(&header, &claims);
        for bad in [
            token(&header, &twice),
            token(&header, &deep),
            token(&header, "[]"),
            token(&header, &format!("{claims} x")),
            token("", &claims),
            good.replacen('.', "=.", 1),
            format!("{good}="),
            format!("{good}.A"),
            format!("{}+", &good[..good.len() - 1]),
            format!("{}B", &good[..good.len() - 2]),
            good.rsplit_once('.').unwrap().0.to_string(),
            format!("{good}{}", "A".repeat(OAUTH_TOKEN_MAX)),
        ] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let (header, claims) = good();
        let seed = format!("{}.AAEC", unsigned(&header, &claims));
        let (header, claims) = (header.to_string(), claims.to_string());
        let mut mutator = Mutator::new(3);
        for _ in 0..20_000 {
            _ = parse(&mutator.mutate(&[seed.as_bytes()]));
            _ = read_header(&mutator.mutate(&[header.as_bytes()]));
            if let Ok(claims) = read_claims(&mutator.mutate(&[claims.as_bytes()])) {
                _ = claims.has("realm_access.roles", "dev");
            }
        }
    }
}
