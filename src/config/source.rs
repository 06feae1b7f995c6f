//! Where settings come from: the lines of one TOML file and the environment. Owns precedence and places (file and line,
//! or variable), so that every complaint can say where to look; never judges what a value means. A name that no
//! setting has is refused here, before anything is read.

use super::ConfigError;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A setting, and the variable of the wider platform that means the same.
struct Key {
    name: &'static str,
    alias: Option<&'static str>,
}

const fn key(name: &'static str) -> Key {
    Key { name, alias: None }
}

const KEYS: &[Key] = &[
    key("listen"),
    key("metrics_listen"),
    key("data_dir"),
    key("auth"),
    key("socket_group"),
    Key { name: "database_url", alias: Some("DATABASE_URL") },
    key("standby"),
    key("log"),
    Key { name: "default_provider", alias: Some("WORKSPACE_DEFAULT_PROVIDER") },
    Key { name: "default_network", alias: Some("WORKSPACE_NETWORK_NAME") },
    key("network_dirs"),
    key("host_paths"),
    key("disk_reserve"),
    key("tls_cert"),
    key("tls_key"),
    key("tls_client_ca"),
    key("tls_client_auth"),
    key("insecure_http"),
    key("public_url"),
    key("trusted_proxies"),
    key("peer_connections_max"),
    key("memory_budget"),
    key("secret_key_file"),
    key("audit_calls"),
    key("audit_max_bytes"),
    key("audit_on_error"),
    key("allow_isolation_none"),
    key("allow_host_network"),
    key("insecure_registries"),
    key("default_registry"),
    key("allowed_images"),
    key("image_keys"),
    key("tool_separator"),
    key("record_arguments"),
    key("records_keep_days"),
];
/// Only in the file: a table per provider or network does not fit a variable.
const PROVIDERS: &str = "providers";
const NETWORKS: &str = "networks";
const RULES: &str = "tls_client_rules";
const RATE: &str = "rate_limit";
const CEILINGS: &str = "ceilings";
const IDLE: &str = "idle";
const OAUTH: &str = "oauth";
const OAUTH_RULES: &str = "oauth.rules";
const PREFIX: &str = "STDIOD_";
/// What the client subcommands read; no settings of the daemon.
const CLIENT_VARIABLES: &[&str] = &["STDIOD_CONFIG", "STDIOD_TOKEN", "STDIOD_URL", "STDIOD_CA"];

/// Where a value stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Line { file: PathBuf, line: usize },
    Variable(String),
    Default,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Line { file, line } => write!(f, "{} line {line}", file.display()),
            Place::Variable(name) => write!(f, "environment variable {name}"),
            Place::Default => f.write_str("default"),
        }
    }
}

#[derive(Debug)]
pub(super) struct Found<T> {
    pub value: T,
    pub at: Place,
}

/// One `[providers.NAME]`, its values still unjudged.
pub(super) struct ProviderTable {
    pub name: String,
    pub at: Place,
    pub binary: Option<Found<String>>,
    pub args: Option<Found<Vec<String>>>,
    pub kind: Option<Found<String>>,
}

/// One `[networks.NAME]`, its values still unjudged.
pub(super) struct NetworkTable {
    pub name: String,
    pub at: Place,
    pub allow_private: Option<Found<Vec<String>>>,
}

/// One `[[tls_client_rules]]`.
pub(super) struct RuleTable {
    pub at: Place,
    pub cn: Option<Found<String>>,
    pub scopes: Option<Found<Vec<String>>>,
    pub servers: Option<Found<Vec<String>>>,
}

/// `[ceilings]`; its amounts as they were written.
#[derive(Default)]
pub(super) struct CeilingsTable {
    pub cpu: Option<Found<String>>,
    pub memory: Option<Found<String>>,
    pub disk: Option<Found<String>>,
    pub pids: Option<Found<String>>,
    pub host_addresses: Option<Found<Vec<String>>>,
    pub host_ports: Option<Found<Vec<String>>>,
    pub networks: Option<Found<Vec<String>>>,
}

/// `[idle]`, its values still unjudged.
pub(super) struct IdleTable {
    pub after_ms: Option<Found<String>>,
    pub mode: Option<Found<String>>,
    pub start: Option<Found<String>>,
}

/// `[oauth]`, its values still unjudged.
pub(super) struct OAuthTable {
    pub at: Place,
    pub issuer: Option<Found<String>>,
    pub audience: Option<Found<String>>,
    pub jwks_uri: Option<Found<String>>,
    pub rules: Vec<ClaimRuleTable>,
}

/// One `[[oauth.rules]]`.
pub(super) struct ClaimRuleTable {
    pub at: Place,
    pub claim: Option<Found<String>>,
    pub value: Option<Found<String>>,
    pub scopes: Option<Found<Vec<String>>>,
    pub servers: Option<Found<Vec<String>>>,
    pub projects: Option<Found<Vec<String>>>,
}

/// `[rate_limit]`; its numbers as they were written.
pub(super) struct RateTable {
    pub at: Place,
    pub per_second: Option<Found<String>>,
    pub burst: Option<Found<String>>,
}

pub(super) struct Sources<'a> {
    env: &'a BTreeMap<String, String>,
    file: Option<File<'a>>,
}

struct File<'a> {
    path: &'a Path,
    text: &'a str,
    table: DeTable<'a>,
}

impl<'a> Sources<'a> {
    pub fn new(
        file: Option<(&'a Path, &'a str)>,
        env: &'a BTreeMap<String, String>,
    ) -> Result<Sources<'a>, ConfigError> {
        refuse_unknown_variables(env)?;
        let file = file.map(|(path, text)| File::parse(path, text)).transpose()?;
        Ok(Sources { env, file })
    }

    pub fn string(&self, key: &'static str) -> Result<Option<Found<String>>, ConfigError> {
        match self.variable(key) {
            Some(found) => Ok(Some(found)),
            None => self.in_file(key, File::string),
        }
    }

    /// A list in the file (or one string), commas in a variable.
    pub fn list(&self, key: &'static str) -> Result<Option<Found<Vec<String>>>, ConfigError> {
        match self.variable(key) {
            Some(Found { value, at }) => {
                let items = value.split(',').map(str::trim).filter(|item| !item.is_empty());
                Ok(Some(Found { value: items.map(str::to_string).collect(), at }))
            }
            None => self.in_file(key, File::list),
        }
    }

    pub fn boolean(&self, key: &'static str) -> Result<Option<Found<bool>>, ConfigError> {
        let Some(Found { value, at }) = self.variable(key) else {
            return self.in_file(key, File::boolean);
        };
        match value.as_str() {
            "true" | "1" => Ok(Some(Found { value: true, at })),
            "false" | "0" => Ok(Some(Found { value: false, at })),
            _ => Err(ConfigError::invalid(at, key, "is neither `true` nor `false`", "write `true` or `false`")),
        }
    }

    pub fn providers(&self) -> Result<Vec<ProviderTable>, ConfigError> {
        self.tables(PROVIDERS, "tables such as `[providers.youki]`", File::provider)
    }

    pub fn networks(&self) -> Result<Vec<NetworkTable>, ConfigError> {
        self.tables(NETWORKS, "tables such as `[networks.bridge]`", File::network)
    }

    /// A number, with a unit if it is a string.
    pub fn quantity(&self, key: &'static str) -> Result<Option<Found<String>>, ConfigError> {
        match self.variable(key) {
            Some(found) => Ok(Some(found)),
            None => self.in_file(key, File::quantity),
        }
    }

    pub fn certificate_rules(&self) -> Result<Vec<RuleTable>, ConfigError> {
        let Some(file) = &self.file else { return Ok(Vec::new()) };
        let Some(value) = file.table.get(RULES) else { return Ok(Vec::new()) };
        let Some(tables) = value.get_ref().as_array() else {
            return Err(file.wrong_type(RULES, value, "tables: `[[tls_client_rules]]`"));
        };
        tables.iter().map(|table| file.certificate_rule(table)).collect()
    }

    pub fn rate_limit(&self) -> Result<Option<RateTable>, ConfigError> {
        let Some(file) = &self.file else { return Ok(None) };
        file.table.get(RATE).map(|value| file.rate(value)).transpose()
    }

    pub fn ceilings(&self) -> Result<Option<CeilingsTable>, ConfigError> {
        let Some(file) = &self.file else { return Ok(None) };
        file.table.get(CEILINGS).map(|value| file.ceilings(value)).transpose()
    }

    pub fn idle(&self) -> Result<Option<IdleTable>, ConfigError> {
        let Some(file) = &self.file else { return Ok(None) };
        file.table.get(IDLE).map(|value| file.idle(value)).transpose()
    }

    pub fn oauth(&self) -> Result<Option<OAuthTable>, ConfigError> {
        let Some(file) = &self.file else { return Ok(None) };
        file.table.get(OAUTH).map(|value| file.oauth(value)).transpose()
    }

    fn tables<T>(
        &self,
        key: &str,
        wanted: &str,
        read: impl Fn(&File<'a>, &str, &Spanned<DeValue<'a>>) -> Result<T, ConfigError>,
    ) -> Result<Vec<T>, ConfigError> {
        let Some(file) = &self.file else { return Ok(Vec::new()) };
        let Some(value) = file.table.get(key) else { return Ok(Vec::new()) };
        let DeValue::Table(tables) = value.get_ref() else {
            return Err(file.wrong_type(key, value, wanted));
        };
        tables.iter().map(|(name, table)| read(file, name.get_ref(), table)).collect()
    }

    /// A variable that is set and not empty: compose files and units hand on empty ones for "nothing said".
    fn variable(&self, key: &str) -> Option<Found<String>> {
        let alias = KEYS.iter().find(|known| known.name == key).and_then(|known| known.alias);
        let own = format!("{PREFIX}{}", key.to_uppercase());
        [Some(own.as_str()), alias].into_iter().flatten().find_map(|name| {
            let value = self.env.get(name)?.trim();
            (!value.is_empty()).then(|| Found { value: value.to_string(), at: Place::Variable(name.to_string()) })
        })
    }

    fn in_file<T>(
        &self,
        key: &str,
        read: impl FnOnce(&File<'a>, &str, &Spanned<DeValue<'a>>) -> Result<Found<T>, ConfigError>,
    ) -> Result<Option<Found<T>>, ConfigError> {
        let Some(file) = &self.file else { return Ok(None) };
        file.table.get(key).map(|value| read(file, key, value)).transpose()
    }
}

impl<'a> File<'a> {
    fn parse(path: &'a Path, text: &'a str) -> Result<File<'a>, ConfigError> {
        let table = DeTable::parse(text).map_err(|error| ConfigError::Syntax {
            at: Place::Line {
                file: path.to_path_buf(),
                line: line_of(text, error.span().map_or(0, |span| span.start)),
            },
            why: error.message().lines().collect::<Vec<_>>().join(", "),
        })?;
        let file = File { path, text, table: table.into_inner() };
        let names: Vec<&str> = KEYS
            .iter()
            .map(|known| known.name)
            .chain([PROVIDERS, NETWORKS, RULES, RATE, CEILINGS, IDLE, OAUTH])
            .collect();
        file.refuse_unknown(&file.table, "", &names)?;
        Ok(file)
    }

    /// The first one in the order of the lines, because the table is sorted by name.
    fn refuse_unknown(&self, table: &DeTable<'a>, inside: &str, names: &[&str]) -> Result<(), ConfigError> {
        let unknown = table.keys().filter(|key| !names.contains(&key.get_ref().as_ref()));
        match unknown.min_by_key(|key| key.span().start) {
            None => Ok(()),
            Some(key) => Err(ConfigError::UnknownKey {
                at: self.place(key.span().start),
                key: format!("{inside}{}", key.get_ref()),
                near: nearest(key.get_ref(), names.iter().copied()),
            }),
        }
    }

    fn provider(&self, name: &str, value: &Spanned<DeValue<'a>>) -> Result<ProviderTable, ConfigError> {
        let inside = format!("{PROVIDERS}.{name}.");
        let DeValue::Table(table) = value.get_ref() else {
            return Err(self.wrong_type(&format!("{PROVIDERS}.{name}"), value, "a table with `binary`"));
        };
        self.refuse_unknown(table, &inside, &["binary", "args", "kind"])?;
        let string = |key: &str| table.get(key).map(|value| self.string(&format!("{inside}{key}"), value)).transpose();
        Ok(ProviderTable {
            name: name.to_string(),
            at: self.place(value.span().start),
            binary: string("binary")?,
            kind: string("kind")?,
            args: table.get("args").map(|value| self.list(&format!("{inside}args"), value)).transpose()?,
        })
    }

    fn network(&self, name: &str, value: &Spanned<DeValue<'a>>) -> Result<NetworkTable, ConfigError> {
        let inside = format!("{NETWORKS}.{name}.");
        let DeValue::Table(table) = value.get_ref() else {
            return Err(self.wrong_type(&format!("{NETWORKS}.{name}"), value, "a table with `allow_private`"));
        };
        self.refuse_unknown(table, &inside, &["allow_private"])?;
        let allow_private = table.get("allow_private");
        Ok(NetworkTable {
            name: name.to_string(),
            at: self.place(value.span().start),
            allow_private: allow_private
                .map(|value| self.list(&format!("{inside}allow_private"), value))
                .transpose()?,
        })
    }

    fn certificate_rule(&self, value: &Spanned<DeValue<'a>>) -> Result<RuleTable, ConfigError> {
        let DeValue::Table(table) = value.get_ref() else {
            return Err(self.wrong_type(RULES, value, "a table with `cn` and `scopes`"));
        };
        self.refuse_unknown(table, &format!("{RULES}."), &["cn", "scopes", "servers"])?;
        let list = |key: &str| table.get(key).map(|value| self.list(&format!("{RULES}.{key}"), value)).transpose();
        Ok(RuleTable {
            at: self.place(value.span().start),
            cn: table.get("cn").map(|value| self.string(&format!("{RULES}.cn"), value)).transpose()?,
            scopes: list("scopes")?,
            servers: list("servers")?,
        })
    }

    fn rate(&self, value: &Spanned<DeValue<'a>>) -> Result<RateTable, ConfigError> {
        let DeValue::Table(table) = value.get_ref() else {
            return Err(self.wrong_type(RATE, value, "a table with `per_second` and `burst`"));
        };
        self.refuse_unknown(table, &format!("{RATE}."), &["per_second", "burst"])?;
        let number = |key: &str| table.get(key).map(|value| self.quantity(&format!("{RATE}.{key}"), value)).transpose();
        let at = self.place(value.span().start);
        Ok(RateTable { at, per_second: number("per_second")?, burst: number("burst")? })
    }

    fn ceilings(&self, value: &Spanned<DeValue<'a>>) -> Result<CeilingsTable, ConfigError> {
        let DeValue::Table(table) = value.get_ref() else {
            return Err(self.wrong_type(CEILINGS, value, "a table, as in `memory = \"1G\"`"));
        };
        let names = ["cpu", "memory", "disk", "pids", "host_addresses", "host_ports", "networks"];
        self.refuse_unknown(table, &format!("{CEILINGS}."), &names)?;
        let number =
            |key: &str| table.get(key).map(|value| self.quantity(&format!("{CEILINGS}.{key}"), value)).transpose();
        let list = |key: &str| table.get(key).map(|value| self.list(&format!("{CEILINGS}.{key}"), value)).transpose();
        Ok(CeilingsTable {
            cpu: number("cpu")?,
            memory: number("memory")?,
            disk: number("disk")?,
            pids: number("pids")?,
            host_addresses: list("host_addresses")?,
            host_ports: list("host_ports")?,
            networks: list("networks")?,
        })
    }

    fn idle(&self, value: &Spanned<DeValue<'a>>) -> Result<IdleTable, ConfigError> {
        let DeValue::Table(table) = value.get_ref() else {
            return Err(self.wrong_type(IDLE, value, "a table, as in `mode = \"stop\"`"));
        };
        self.refuse_unknown(table, &format!("{IDLE}."), &["after_ms", "mode", "start"])?;
        let string = |key: &str| table.get(key).map(|value| self.string(&format!("{IDLE}.{key}"), value)).transpose();
        let after_ms = table.get("after_ms").map(|value| self.quantity(&format!("{IDLE}.after_ms"), value));
        Ok(IdleTable { after_ms: after_ms.transpose()?, mode: string("mode")?, start: string("start")? })
    }

    fn oauth(&self, value: &Spanned<DeValue<'a>>) -> Result<OAuthTable, ConfigError> {
        let DeValue::Table(table) = value.get_ref() else {
            return Err(self.wrong_type(OAUTH, value, "a table with `issuer`"));
        };
        self.refuse_unknown(table, &format!("{OAUTH}."), &["issuer", "audience", "jwks_uri", "rules"])?;
        let string = |key: &str| table.get(key).map(|value| self.string(&format!("{OAUTH}.{key}"), value)).transpose();
        let rules = match table.get("rules") {
            None => Vec::new(),
            Some(value) => match value.get_ref().as_array() {
                Some(rules) => rules.iter().map(|rule| self.claim_rule(rule)).collect::<Result<_, _>>()?,
                None => return Err(self.wrong_type(OAUTH_RULES, value, "tables: `[[oauth.rules]]`")),
            },
        };
        Ok(OAuthTable {
            at: self.place(value.span().start),
            issuer: string("issuer")?,
            audience: string("audience")?,
            jwks_uri: string("jwks_uri")?,
            rules,
        })
    }

    fn claim_rule(&self, value: &Spanned<DeValue<'a>>) -> Result<ClaimRuleTable, ConfigError> {
        let DeValue::Table(table) = value.get_ref() else {
            return Err(self.wrong_type(OAUTH_RULES, value, "a table with `claim`, `value` and `scopes`"));
        };
        let inside = format!("{OAUTH_RULES}.");
        self.refuse_unknown(table, &inside, &["claim", "value", "scopes", "servers", "projects"])?;
        let string = |key: &str| table.get(key).map(|value| self.string(&format!("{inside}{key}"), value)).transpose();
        let list = |key: &str| table.get(key).map(|value| self.list(&format!("{inside}{key}"), value)).transpose();
        Ok(ClaimRuleTable {
            at: self.place(value.span().start),
            claim: string("claim")?,
            value: string("value")?,
            scopes: list("scopes")?,
            servers: list("servers")?,
            projects: list("projects")?,
        })
    }

    fn quantity(&self, key: &str, value: &Spanned<DeValue<'a>>) -> Result<Found<String>, ConfigError> {
        match value.get_ref() {
            DeValue::Integer(number) => {
                Ok(Found { value: number.as_str().to_string(), at: self.place(value.span().start) })
            }
            DeValue::Float(number) => {
                Ok(Found { value: number.as_str().to_string(), at: self.place(value.span().start) })
            }
            _ => self.string(key, value),
        }
    }

    fn string(&self, key: &str, value: &Spanned<DeValue<'a>>) -> Result<Found<String>, ConfigError> {
        match value.get_ref().as_str() {
            Some(text) => Ok(Found { value: text.to_string(), at: self.place(value.span().start) }),
            None => Err(self.wrong_type(key, value, "a string in quotes")),
        }
    }

    fn list(&self, key: &str, value: &Spanned<DeValue<'a>>) -> Result<Found<Vec<String>>, ConfigError> {
        let at = self.place(value.span().start);
        if let Some(text) = value.get_ref().as_str() {
            return Ok(Found { value: vec![text.to_string()], at });
        }
        let Some(items) = value.get_ref().as_array() else {
            return Err(self.wrong_type(key, value, "a list of strings"));
        };
        let string = |item: &Spanned<DeValue<'a>>| match item.get_ref().as_str() {
            // Where it stands is looked for only if there is something to say: that is a walk through the file.
            Some(text) => Ok(text.to_string()),
            None => Err(self.wrong_type(key, item, "a string in quotes")),
        };
        let strings: Result<Vec<String>, ConfigError> = items.iter().map(string).collect();
        Ok(Found { value: strings?, at })
    }

    fn boolean(&self, key: &str, value: &Spanned<DeValue<'a>>) -> Result<Found<bool>, ConfigError> {
        match value.get_ref().as_bool() {
            Some(flag) => Ok(Found { value: flag, at: self.place(value.span().start) }),
            None => Err(self.wrong_type(key, value, "`true` or `false` without quotes")),
        }
    }

    fn wrong_type(&self, key: &str, value: &Spanned<DeValue<'a>>, wanted: &str) -> ConfigError {
        let problem = format!("has the wrong type ({})", value.get_ref().type_str());
        ConfigError::invalid(self.place(value.span().start), key, problem, format!("write {wanted}"))
    }

    fn place(&self, offset: usize) -> Place {
        Place::Line { file: self.path.to_path_buf(), line: line_of(self.text, offset) }
    }
}

fn refuse_unknown_variables(env: &BTreeMap<String, String>) -> Result<(), ConfigError> {
    for name in env.keys().filter(|name| name.starts_with(PREFIX)) {
        let known = KEYS.iter().map(|key| format!("{PREFIX}{}", key.name.to_uppercase()));
        let known: Vec<String> = known.chain(CLIENT_VARIABLES.iter().map(|name| name.to_string())).collect();
        if !known.contains(name) {
            let near = nearest(name, known.iter().map(String::as_str));
            return Err(ConfigError::UnknownVariable { name: name.clone(), near });
        }
    }
    Ok(())
}

fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count() + 1
}

/// The known name a typing error away from `name`, if there is one.
pub(super) fn nearest<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> Option<String> {
    let far = 1 + name.len() / 4;
    let best = known.map(|candidate| (edit_distance(name, candidate), candidate)).min()?;
    (best.0 <= far).then(|| best.1.to_string())
}

fn edit_distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(!x.eq_ignore_ascii_case(&y));
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typing_error_finds_its_key_and_a_stranger_finds_none() {
        let names = || KEYS.iter().map(|key| key.name);
        assert_eq!(nearest("listn", names()).as_deref(), Some("listen"));
        assert_eq!(nearest("data-dir", names()).as_deref(), Some("data_dir"));
        assert_eq!(nearest("insecure_registry", names()).as_deref(), Some("insecure_registries"));
        assert_eq!(nearest("frobnicate", names()), None);
    }

    #[test]
    fn lines_are_counted_from_one() {
        assert_eq!(line_of("a\nb\nc", 0), 1);
        assert_eq!(line_of("a\nb\nc", 2), 2);
        assert_eq!(line_of("a\nb\nc", 4), 3);
    }
}
