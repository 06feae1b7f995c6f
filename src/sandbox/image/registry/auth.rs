//! Who we are to a registry: credentials from the auth files of podman and docker, and what a registry asks for in
//! `WWW-Authenticate`. Runs no credential helper. No value of a credential is in any error or `Debug`.

use crate::limits::AUTH_FILE_MAX;
use crate::sandbox::image::registry::PullError;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

/// What the auth files say of one repository.
pub enum Credentials {
    Nothing,
    Basic {
        /// `user:password` in base64.
        encoded: String,
    },
    /// A refresh token, to be given to the registry's token service.
    Identity {
        token: String,
    },
    /// Only a helper program knows, and helpers are not run.
    Helper {
        file: String,
        helper: String,
    },
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct AuthFile {
    auths: BTreeMap<String, Entry>,
    creds_store: String,
    cred_helpers: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    auth: String,
    username: String,
    password: String,
    identitytoken: String,
}

/// The files in the order in which podman and docker look at them. One that is named by a variable is the only one.
pub fn files(variable: impl Fn(&str) -> Option<PathBuf>, uid: u32) -> Vec<PathBuf> {
    if let Some(file) = variable("REGISTRY_AUTH_FILE") {
        return vec![file];
    }
    let home = variable("HOME");
    let below_home = |path: &str| home.as_ref().map(|home| home.join(path));
    let run = match variable("XDG_RUNTIME_DIR") {
        Some(run) => run.join("containers/auth.json"),
        None => PathBuf::from(format!("/run/containers/{uid}/auth.json")),
    };
    let config = variable("XDG_CONFIG_HOME").or_else(|| below_home(".config"));
    let docker = variable("DOCKER_CONFIG").or_else(|| below_home(".docker"));
    let found =
        [Some(run), config.map(|dir| dir.join("containers/auth.json")), docker.map(|dir| dir.join("config.json"))];
    found.into_iter().flatten().collect()
}

/// The first file that knows the repository decides.
pub fn find(files: &[PathBuf], registry: &str, repository: &str) -> Result<Credentials, PullError> {
    for path in files {
        let broken = |why: String| PullError::AuthFile { file: path.display().to_string(), why };
        let mut text = Vec::new();
        match File::open(path) {
            Ok(file) => file.take(AUTH_FILE_MAX).read_to_end(&mut text).map_err(|e| broken(e.to_string()))?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(broken(e.to_string())),
        };
        // The parser's own words are left out: they may quote a secret.
        let file: AuthFile =
            serde_json::from_slice(&text).map_err(|_| broken("it is no valid JSON auth file".into()))?;
        let found = file.find(&path.display().to_string(), registry, repository).map_err(|why| broken(why.into()))?;
        match found {
            Credentials::Nothing => {}
            Credentials::Basic { .. } | Credentials::Identity { .. } | Credentials::Helper { .. } => return Ok(found),
        }
    }
    Ok(Credentials::Nothing)
}

impl AuthFile {
    /// The longest key that the repository is below of.
    fn find(&self, file: &str, registry: &str, repository: &str) -> Result<Credentials, &'static str> {
        let whole = format!("{registry}/{repository}");
        let covers = |key: &str| whole.strip_prefix(key).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let covering = self.auths.iter().filter(|(key, _)| covers(bare(key)));
        if let Some((_, entry)) = covering.max_by_key(|(key, _)| bare(key).len()) {
            if !entry.identitytoken.is_empty() {
                return Ok(Credentials::Identity { token: entry.identitytoken.clone() });
            }
            if !entry.auth.is_empty() {
                let decoded = STANDARD.decode(entry.auth.trim()).map_err(|_| "an `auth` in it is no base64")?;
                if !decoded.contains(&b':') {
                    return Err("an `auth` in it is no user:password");
                }
                return Ok(Credentials::Basic { encoded: STANDARD.encode(decoded) });
            }
            if !entry.username.is_empty() {
                return Ok(basic(&entry.username, &entry.password));
            }
        }
        let helper = self.cred_helpers.get(registry).or(Some(&self.creds_store).filter(|store| !store.is_empty()));
        Ok(match helper {
            Some(helper) => Credentials::Helper { file: file.to_owned(), helper: helper.clone() },
            None => Credentials::Nothing,
        })
    }
}

pub fn basic(user: &str, password: &str) -> Credentials {
    Credentials::Basic { encoded: STANDARD.encode(format!("{user}:{password}")) }
}

/// Old docker files have `https://HOST/v1/` for keys.
fn bare(key: &str) -> &str {
    let key = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
    let key = key.strip_suffix('/').unwrap_or(key);
    key.strip_suffix("/v1").or_else(|| key.strip_suffix("/v2")).unwrap_or(key)
}

/// What a registry asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Challenge {
    Basic,
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
}

/// The best of the challenges in all `WWW-Authenticate` headers: a token rather than a password.
pub fn challenge<'a>(headers: impl Iterator<Item = &'a str>) -> Option<Challenge> {
    let mut best = None;
    for header in headers {
        for (scheme, parameters) in challenges(header) {
            let get = |name: &str| parameters.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
            match scheme.as_str() {
                "bearer" => {
                    if let Some(realm) = get("realm") {
                        return Some(Challenge::Bearer { realm, service: get("service"), scope: get("scope") });
                    }
                }
                "basic" => best = Some(Challenge::Basic),
                _ => {}
            }
        }
    }
    best
}

type Parameters = Vec<(String, String)>;

/// `Scheme key="value", key=value, Scheme …`: names in lower case.
fn challenges(header: &str) -> Vec<(String, Parameters)> {
    let mut found: Vec<(String, Parameters)> = Vec::new();
    let mut rest = header.trim_start_matches([' ', ',', '\t']);
    while !rest.is_empty() {
        let end = rest.find([' ', '=', ',']).unwrap_or(rest.len());
        let (word, after) = (rest[..end].to_ascii_lowercase(), &rest[end..]);
        rest = match after.strip_prefix('=') {
            Some(value) => {
                let (value, after) = parameter(value);
                if let Some((_, parameters)) = found.last_mut() {
                    parameters.push((word, value));
                }
                after
            }
            None => {
                found.push((word, Vec::new()));
                after
            }
        };
        rest = rest.trim_start_matches([' ', ',', '\t']);
    }
    found
}

/// A token or a quoted string, and what follows it.
fn parameter(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([',', ' ']).unwrap_or(text.len());
        return (text[..end].to_owned(), &text[end..]);
    };
    let mut value = String::new();
    let mut escaped = false;
    for (at, c) in quoted.char_indices() {
        match c {
            '\\' if !escaped => escaped = true,
            '"' if !escaped => return (value, &quoted[at + 1..]),
            c => {
                value.push(c);
                escaped = false;
            }
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(json: &str, registry: &str, repository: &str) -> String {
        let file: AuthFile = serde_json::from_str(json).unwrap();
        match file.find("F", registry, repository) {
            Ok(Credentials::Nothing) => "nothing".to_string(),
            Ok(Credentials::Basic { encoded }) => String::from_utf8(STANDARD.decode(encoded).unwrap()).unwrap(),
            Ok(Credentials::Identity { token }) => format!("token {token}"),
            Ok(Credentials::Helper { helper, .. }) => format!("helper {helper}"),
            Err(why) => format!("broken: {why}"),
        }
    }

    #[test]
    fn the_most_exact_entry_of_an_auth_file_holds() {
        let file = r#"{"auths":{"r.test:5000":{"auth":"YTpi"},"r.test:5000/team":{"auth":"Yzpk"},
            "https://old.test/v1/":{"username":"u","password":"p"},"i.test":{"identitytoken":"t"},"e.test":{},
            "x.test":{"auth":"???"}},"credHelpers":{"h.test":"vault"}}"#;
        assert_eq!(found(file, "r.test:5000", "img"), "a:b");
        assert_eq!(found(file, "r.test:5000", "team/img"), "c:d");
        assert_eq!(found(file, "r.test:5000", "teams/img"), "a:b");
        assert_eq!(found(file, "r.test", "img"), "nothing");
        assert_eq!(found(file, "old.test", "img"), "u:p");
        assert_eq!(found(file, "i.test", "img"), "token t");
        assert_eq!(found(file, "h.test", "img"), "helper vault");
        assert_eq!(found(r#"{"auths":{"e.test":{}},"credsStore":"pass"}"#, "e.test", "img"), "helper pass");
        assert!(found(file, "x.test", "img").starts_with("broken"));
    }

    #[test]
    fn the_files_are_those_of_podman_and_docker_in_their_order() {
        let variables = |pairs: &'static [(&str, &str)]| {
            move |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| PathBuf::from(value))
        };
        let all = files(variables(&[("HOME", "/h"), ("XDG_RUNTIME_DIR", "/r")]), 0);
        let want = ["/r/containers/auth.json", "/h/.config/containers/auth.json", "/h/.docker/config.json"];
        assert_eq!(all, want.map(PathBuf::from));
        assert_eq!(files(variables(&[]), 7), [PathBuf::from("/run/containers/7/auth.json")]);
        let named = [("HOME", "/h"), ("REGISTRY_AUTH_FILE", "/x.json")];
        assert_eq!(files(variables(Box::leak(Box::new(named))), 0), [PathBuf::from("/x.json")]);
    }

    #[test]
    fn challenges_are_read_whatever_their_form() {
        let one = |header: &str| challenge([header].into_iter());
        let bearer = one(r#"Bearer realm="https://a.test/t?x=\"1\"",service=s, scope="repository:a,b:pull""#);
        let want = Challenge::Bearer {
            realm: "https://a.test/t?x=\"1\"".into(),
            service: Some("s".into()),
            scope: Some("repository:a,b:pull".into()),
        };
        assert_eq!(bearer, Some(want));
        assert_eq!(one(r#"Basic realm="Registry Realm""#), Some(Challenge::Basic));
        assert!(matches!(one(r#"Basic realm="x", Bearer realm="https://a.test""#), Some(Challenge::Bearer { .. })));
        for strange in ["", ",", "Negotiate", "Bearer", "Bearer realm", "=", "Bearer realm=\"", "\"", "= ="] {
            let _ = one(strange);
        }
        assert_eq!(one("Negotiate abc="), None);
    }
}
