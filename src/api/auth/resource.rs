//! This daemon as a protected resource (RFC 9728): under which address clients know it, who gives tokens for it, and how
//! whoever is not let in is told where to get one. Owns the words; checks no token. The address is the configured one alone:
//! what a client sends as its `Host` says nothing about whom a token is for.

use crate::api::route;
use crate::model::principal::{Need, Scopes};
use crate::wire::http::url::Url;
use crate::wire::http_in::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resource {
    /// `https://host[:port]`, as clients write it.
    origin: String,
    /// What of the public address comes before every path of ours; without a slash at its end.
    prefix: String,
    issuer: String,
    /// By each of our scopes, in their order: what the authorization server calls it. None: it has no name there.
    names: [Vec<String>; 3],
}

impl Resource {
    /// `names`: as above.
    pub fn new(public: &Url, issuer: String, names: [Vec<String>; 3]) -> Resource {
        let prefix = public.path.trim_end_matches('/').to_string();
        Resource { origin: origin(public), prefix, issuer, names }
    }

    /// The audience that is for this path alone, in each spelling that a client could have typed: the address of the endpoint
    /// that the path is at or below.
    pub fn is_addressed_by(&self, audience: &str, path: &str) -> bool {
        let Some(named) = audience.strip_prefix(self.origin.as_str()).and_then(|rest| rest.strip_prefix(&*self.prefix))
        else {
            return false;
        };
        let (named, path) = (trimmed(named), trimmed(path));
        named.starts_with('/')
            && (named == path || named == endpoint(path) || Some(named) == stream_of(path).as_deref())
    }

    /// The audience that is for all that is here.
    pub fn is_all_of(&self, audience: &str) -> bool {
        let rest = audience.strip_prefix(self.origin.as_str()).and_then(|rest| rest.strip_prefix(&*self.prefix));
        rest.is_some_and(|rest| matches!(rest, "" | "/"))
    }

    /// For one of our endpoints, or all of them.
    pub fn is_mine(&self, audience: &str) -> bool {
        let rest = audience.strip_prefix(self.origin.as_str()).and_then(|rest| rest.strip_prefix(&*self.prefix));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// What is at `WELL_KNOWN` and this path below it.
    pub fn metadata(&self, path: &str) -> Value {
        let scopes: Vec<&String> = self.names.iter().flatten().collect();
        let mut metadata = json!({
            "resource": format!("{}{}{}", self.origin, self.prefix, trimmed(path)),
            "authorization_servers": [self.issuer],
            "bearer_methods_supported": ["header"],
            "resource_name": "stdiod",
        });
        if !scopes.is_empty() {
            metadata["scopes_supported"] = json!(scopes);
        }
        metadata
    }

    // --- challenges -------------------------------------------------------------------------------------------------

    /// To a request without a token: nothing is wrong, something is missing.
    pub fn ask_for_token(&self, path: &str, need: Need) -> String {
        self.challenge(path, "", need.scopes())
    }

    pub fn refuse_token(&self, path: &str, need: Need, why: &str) -> String {
        let error = format!("error=\"invalid_token\", error_description=\"{}\", ", quotable(why));
        self.challenge(path, &error, need.scopes())
    }

    /// All that is needed, with what there is already: whoever asks for a new token asks once.
    pub fn ask_for_scopes(&self, path: &str, held: Scopes, need: Need) -> String {
        self.challenge(path, "error=\"insufficient_scope\", ", held.with(need.scopes()))
    }

    fn challenge(&self, path: &str, error: &str, scopes: Scopes) -> String {
        let mut names: Vec<&str> = Vec::new();
        for (known, ours) in self.names.iter().zip(Scopes::NAMES) {
            // Of several that mean the same, one will do.
            names.extend(scopes.names().contains(&ours).then(|| known.first().map(String::as_str)).flatten());
        }
        let scope = if names.is_empty() { String::new() } else { format!("scope=\"{}\", ", names.join(" ")) };
        let at = metadata_path(path);
        format!("Bearer {error}{scope}resource_metadata=\"{}{WELL_KNOWN}{}{at}\"", self.origin, self.prefix)
    }
}

fn origin(url: &Url) -> String {
    format!("{}://{}", if url.https { "https" } else { "http" }, url.authority())
}

fn trimmed(path: &str) -> &str {
    path.strip_suffix('/').unwrap_or(path)
}

/// The endpoint of one server that this is at or below; any other path is its own.
fn endpoint(path: &str) -> &str {
    match route::endpoint(path) {
        Some((_, rest)) => &path[..path.len() - rest.len()],
        None => path,
    }
}

/// Of the address that clients of 2024-11-05 post to, the one that they were given.
fn stream_of(path: &str) -> Option<String> {
    path.strip_suffix("/messages").map(|base| format!("{base}/sse"))
}

/// The most specific that there is metadata for; nothing: what holds for all.
fn metadata_path(path: &str) -> String {
    let path = trimmed(path);
    let candidates = [stream_of(path), Some(path.to_string()), Some(endpoint(path).to_string())];
    // Found in the table, so nothing of it needs to be quoted.
    let is_there = |path: &String| route::find(Method::Get, &format!("{WELL_KNOWN}{path}")).is_ok();
    candidates.into_iter().flatten().find(is_there).unwrap_or_default()
}

/// Between quotes of a header.
fn quotable(text: &str) -> String {
    text.chars().filter(|c| matches!(c, ' '..='~') && !matches!(c, '"' | '\\')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(public: &str) -> Resource {
        let names = Scopes::NAMES.map(|name| vec![name.to_string()]);
        Resource::new(&Url::parse(public).unwrap(), "https://as.test".into(), names)
    }

    #[test]
    fn an_audience_is_one_endpoint_or_all_of_them() {
        let here = resource("https://Here.test:443/");
        for (audience, path, is) in [
            ("https://here.test/mcp/a", "/mcp/a", true),
            ("https://here.test/mcp/a/", "/mcp/a", true),
            ("https://here.test/mcp/a", "/mcp/a/", true),
            ("https://here.test/mcp/a", "/mcp/a/events", true),
            ("https://here.test/mcp/a/sse", "/mcp/a/sse", true),
            ("https://here.test/mcp/a/sse", "/mcp/a/messages", true),
            ("https://here.test/mcp", "/mcp", true),
            ("https://here.test/mcp", "/mcp/a", false),
            ("https://here.test/mcp/a", "/mcp", false),
            ("https://here.test/mcp/a", "/mcp/ab", false),
            ("https://here.test/mcp/ab", "/mcp/a", false),
            ("https://here.test/p/x/mcp", "/p/x/mcp", true),
            ("https://here.test/p/x/mcp", "/p/y/mcp", false),
            ("https://here.test/api/v1/mcp/servers/a/mcp", "/api/v1/mcp/servers/a/mcp", true),
            ("https://here.test/mcp/a", "/api/v1/mcp/servers/a/mcp", false),
            ("https://here.test/mcp/a", "/api/v1/mcp/servers/a/call", false),
            ("https://here.test", "/mcp/a", false),
            ("https://here.test.evil/mcp/a", "/mcp/a", false),
            ("http://here.test/mcp/a", "/mcp/a", false),
            ("https://here.test:8443/mcp/a", "/mcp/a", false),
            ("mcp/a", "/mcp/a", false),
            ("", "/mcp/a", false),
        ] {
            assert_eq!(here.is_addressed_by(audience, path), is, "{audience} {path}");
        }
        for (audience, is) in
            [("https://here.test", true), ("https://here.test/", true), ("https://here.test//", false), ("", false)]
        {
            assert_eq!(here.is_all_of(audience), is, "{audience}");
        }
        let below = resource("https://here.test/stdiod/");
        assert!(below.is_addressed_by("https://here.test/stdiod/mcp/a", "/mcp/a"));
        assert!(!below.is_addressed_by("https://here.test/mcp/a", "/mcp/a"));
        assert!(!below.is_addressed_by("https://here.test/stdiodx/mcp/a", "/mcp/a"));
        assert!(below.is_all_of("https://here.test/stdiod") && !below.is_all_of("https://here.test/"));
    }

    #[test]
    fn whoever_is_not_let_in_is_told_where_to_ask() {
        let here = resource("http://127.0.0.1:8480");
        let at = "resource_metadata=\"http://127.0.0.1:8480/.well-known/oauth-protected-resource";
        assert_eq!(here.ask_for_token("/mcp/a", Need::Call), format!("Bearer scope=\"mcp:call\", {at}/mcp/a\""));
        assert_eq!(
            here.ask_for_token("/api/v1/mcp/servers/", Need::Read),
            format!("Bearer scope=\"admin:read\", {at}\"")
        );
        assert_eq!(
            here.refuse_token("/mcp/a/", Need::Call, "it \"ended\"\r\n"),
            format!("Bearer error=\"invalid_token\", error_description=\"it ended\", scope=\"mcp:call\", {at}/mcp/a\"")
        );
        let held = Scopes { mcp_call: true, ..Scopes::default() };
        assert_eq!(
            here.ask_for_scopes("/api/v1/tokens", held, Need::TokensWrite),
            format!("Bearer error=\"insufficient_scope\", scope=\"admin:write mcp:call\", {at}\"")
        );
        for (path, metadata) in [
            ("/mcp", "/mcp"),
            ("/mcp/a/events", "/mcp/a"),
            ("/mcp/a/messages", "/mcp/a/sse"),
            ("/p/x/mcp", "/p/x/mcp"),
            ("/api/v1/mcp/hosted/a/mcp", "/api/v1/mcp/hosted/a/mcp"),
            ("/api/v1/projects/x/mcp", "/api/v1/projects/x/mcp"),
            ("/mcp/\"\r\nX: y", ""),
            ("/", ""),
        ] {
            assert_eq!(metadata_path(path), metadata, "{path}");
        }
    }

    #[test]
    fn metadata_names_the_address_that_was_typed() {
        let below = resource("https://here.test/stdiod");
        let metadata = below.metadata("/mcp/a");
        assert_eq!(metadata["resource"], "https://here.test/stdiod/mcp/a");
        assert_eq!(metadata["authorization_servers"], json!(["https://as.test"]));
        assert_eq!(metadata["scopes_supported"], json!(["admin:read", "admin:write", "mcp:call"]));
        assert_eq!(below.metadata("/")["resource"], "https://here.test/stdiod");
        let nameless = Resource { names: Default::default(), ..below };
        assert_eq!(nameless.metadata("").get("scopes_supported"), None);
        assert!(!nameless.ask_for_token("/mcp", Need::Call).contains("scope"));
    }
}
