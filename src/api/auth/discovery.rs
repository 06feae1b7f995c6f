//! Where an authorization server says what its keys are: the addresses of its metadata (RFC 8414, and OpenID Connect's), and
//! what is taken from one of these documents. Knows no network; who fetches is `os::net::oauth`.

use crate::wire::http::url::Url;
use ::core::net::IpAddr;
use serde::Deserialize;

/// In clear text only where nobody is in between.
pub fn is_safe(url: &Url) -> bool {
    let is_here = || {
        let address = url.host.parse::<IpAddr>();
        url.host == "localhost" || url.host.ends_with(".localhost") || address.is_ok_and(|ip| ip.is_loopback())
    };
    url.https || is_here()
}

/// In the order in which they are tried. The well-known part comes before the issuer's path; OpenID Connect has it behind too.
pub fn addresses(issuer: &Url) -> Vec<Url> {
    let path = issuer.path.trim_end_matches('/');
    let at = |path: String| Url { path, ..issuer.clone() };
    let mut all = vec![
        at(format!("/.well-known/oauth-authorization-server{path}")),
        at(format!("/.well-known/openid-configuration{path}")),
    ];
    if !path.is_empty() {
        all.push(at(format!("{path}/.well-known/openid-configuration")));
    }
    all
}

/// Where the keys are. The document must be of this very issuer, or one server could speak for another.
pub fn jwks_uri(document: &[u8], issuer: &str) -> Result<Url, String> {
    #[derive(Deserialize)]
    struct Metadata {
        issuer: String,
        jwks_uri: Option<String>,
    }
    let metadata: Metadata = serde_json::from_slice(document).map_err(|e| format!("its metadata is wrong: {e}"))?;
    if metadata.issuer != issuer {
        let shown: String = metadata.issuer.chars().filter(|c| !c.is_control()).take(200).collect();
        return Err(format!("its metadata is of the issuer {shown:?}, and `oauth.issuer` is {issuer:?}"));
    }
    let uri = metadata.jwks_uri.ok_or("its metadata names no jwks_uri; set `oauth.jwks_uri`")?;
    let url = Url::parse(&uri).ok_or("its metadata has a jwks_uri that is no http or https address")?;
    match is_safe(&url) {
        true => Ok(url),
        false => Err("its metadata has a jwks_uri that is neither https nor on loopback".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn metadata_is_looked_for_at_every_usual_place() {
        let paths = |issuer: &str| addresses(&url(issuer)).into_iter().map(|url| url.path).collect::<Vec<_>>();
        let root = ["/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"];
        assert_eq!(paths("https://as.test"), root);
        assert_eq!(paths("https://as.test/"), root);
        assert_eq!(
            paths("https://as.test/realms/a"),
            [
                "/.well-known/oauth-authorization-server/realms/a",
                "/.well-known/openid-configuration/realms/a",
                "/realms/a/.well-known/openid-configuration"
            ]
        );
    }

    #[test]
    fn a_document_of_another_issuer_or_with_keys_in_clear_text_is_refused() {
        let issuer = "https://as.test";
        let read = |issuer_there: &str, uri: Option<&str>| {
            let document = json!({"issuer": issuer_there, "jwks_uri": uri}).to_string();
            jwks_uri(document.as_bytes(), issuer).map(|url| url.path)
        };
        assert_eq!(read(issuer, Some("https://as.test/jwks")).as_deref(), Ok("/jwks"));
        assert_eq!(read(issuer, Some("http://127.0.0.1:5/jwks")).as_deref(), Ok("/jwks"));
        for (there, uri) in [
            ("https://as.test/", Some("https://as.test/jwks")),
            ("https://evil.test", Some("https://as.test/jwks")),
            (issuer, Some("http://as.test/jwks")),
            (issuer, Some("file:///etc/passwd")),
            (issuer, None),
        ] {
            assert!(read(there, uri).is_err(), "{there} {uri:?}");
        }
        assert!(jwks_uri(b"{", issuer).is_err());
    }

    #[test]
    fn clear_text_is_for_loopback_alone() {
        for (text, safe) in [
            ("https://a.test", true),
            ("http://a.test", false),
            ("http://127.0.0.1:1", true),
            ("http://[::1]:1", true),
            ("http://localhost", true),
            ("http://localhost.test", false),
        ] {
            assert_eq!(is_safe(&url(text)), safe, "{text}");
        }
    }
}
