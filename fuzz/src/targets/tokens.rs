//! Tokens of an authorization server, its documents, and certificates of clients. The keys are made from numbers that never
//! change, so that a kept input stays good.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};
use std::sync::Arc;
use stdiod::api::auth::jwks::Keys;
use stdiod::api::auth::oauth::{OAuth, Verdict, Verifier};
use stdiod::api::auth::resource::Resource;
use stdiod::api::auth::{certificate, discovery, jwt};
use stdiod::wire::http::url::Url;

const ISSUER: &str = "https://as.example";
const NOW_UNIX_MS: u64 = 1_800_000_000_000;
/// One that is good: whoever changes it must not get in with it.
const CLAIMS: &str =
    r#"{"iss":"https://as.example","aud":"https://mcp.example","sub":"s","exp":1900000000,"scope":"mcp:call"}"#;

fn pair() -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[7; 32]).expect("32 bytes")
}

fn verifier() -> Verifier {
    let public = Url::parse("https://mcp.example").expect("an address");
    let names = ["admin:read", "admin:write", "mcp:call"].map(|name| vec![name.to_string()]);
    let resource = Arc::new(Resource::new(&public, ISSUER.to_string(), names));
    let mut verifier = Verifier::new(OAuth { issuer: ISSUER.to_string(), audience: None, rules: Vec::new(), resource });
    let x = URL_SAFE_NO_PAD.encode(pair().public_key().as_ref());
    let keys = json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "k", "x": x}]});
    verifier.learn(Keys::parse(keys.to_string().as_bytes()).expect("a key"));
    verifier
}

fn signed(header: &[u8], claims: &[u8]) -> String {
    let text = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
    let signature = URL_SAFE_NO_PAD.encode(pair().sign(text.as_bytes()).as_ref());
    format!("{text}.{signature}")
}

/// No token opens but the one that was signed, letter by letter.
pub fn jwt(bytes: &[u8]) {
    _ = jwt::parse(bytes);
    let good = signed(br#"{"alg":"EdDSA","kid":"k"}"#, CLAIMS.as_bytes());
    // A line of an input stands for what is good, so that one may be made of it by a change.
    let text = String::from_utf8_lossy(bytes);
    let shown = text.replace("HEADER", good.split('.').next().unwrap_or_default());
    let shown = shown.replace("CLAIMS", good.split('.').nth(1).unwrap_or_default());
    let shown = shown.replace("SIGNATURE", good.rsplit('.').next().unwrap_or_default());
    if let Verdict::Good(_) = verifier().check(shown.as_bytes(), "/mcp/x", NOW_UNIX_MS) {
        assert_eq!(shown, good, "nobody has signed that");
    }
}

/// Claims that the right server has signed: what lets in is what it says.
pub fn claims(bytes: &[u8]) {
    let mut parts = bytes.splitn(2, |byte| *byte == b'\n');
    let (header, claims) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let token = signed(header, claims);
    if let Verdict::Good(grant) = verifier().check(token.as_bytes(), "/mcp/x", NOW_UNIX_MS) {
        let header: Value = serde_json::from_slice(header).expect("a header is JSON");
        assert_eq!((header["alg"].as_str(), header.get("crit")), (Some("EdDSA"), None));
        let said: Value = serde_json::from_slice(claims).expect("claims are JSON");
        assert_eq!(said["iss"], ISSUER);
        assert!(said["exp"].as_f64().is_some_and(|end| end * 1000.0 + 60_001.0 > NOW_UNIX_MS as f64), "{said}");
        assert!(said["nbf"].as_f64().is_none_or(|from| from * 1000.0 - 60_001.0 < NOW_UNIX_MS as f64), "{said}");
        assert!(said["aud"].to_string().contains("https://mcp.example"), "{said}");
        let scopes = said["scope"].to_string() + &said["scp"].to_string();
        let held = &grant.principal.scopes;
        for (name, has) in
            [("admin:read", held.admin_read), ("admin:write", held.admin_write), ("mcp:call", held.mcp_call)]
        {
            assert!(!has || scopes.contains(name), "{name} of {said}");
        }
        assert!(grant.principal.name.starts_with("oauth:"), "{}", grant.principal.name);
    }
}

/// What an authorization server says of its keys.
pub fn keys(bytes: &[u8]) {
    if let Ok(keys) = Keys::parse(bytes) {
        let token = signed(br#"{"alg":"EdDSA","kid":"k"}"#, CLAIMS.as_bytes());
        _ = keys.look_at(&jwt::parse(token.as_bytes()).expect("a token"));
    }
    if let Ok(url) = discovery::jwks_uri(bytes, ISSUER) {
        assert!(discovery::is_safe(&url), "{url:?}");
    }
}

pub fn certificate(bytes: &[u8]) {
    if let Some(name) = certificate::common_name(bytes) {
        assert!(name.len() <= bytes.len());
    }
    assert!(certificate::principal(&[], bytes).is_none(), "no rule is for it");
}
