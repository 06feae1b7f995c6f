//! The daemon's configuration: one TOML file and the environment become one validated `Config`, once, before anything
//! starts. `Config::parse` is pure; `Config::load` reads the file and the process for it. A `Config` that exists is
//! valid: nobody checks it again, and no secret of it appears in its `Debug`.

mod ceilings;
mod doors;
mod idle;
mod images;
mod oauth;
mod source;

pub use doors::{Audit, ClientCertificates, Listen, OnAuditError, Tls};
pub use oauth::AuthServer;
pub use source::Place;

use crate::api::definition::quantity;
use crate::limits::{ALLOW_PRIVATE_MAX, RECORDS_KEEP_DAYS_DEFAULT, RECORDS_KEEP_DAYS_MAX};
use crate::model::ceilings::Ceilings;
use crate::model::definition::{COVERED, Idle};
use crate::model::ranges::{Kind, Net};
use crate::model::rate::RateLimit;
use crate::sandbox::container::plan::RuntimeKind;
use crate::sandbox::container::within::normal_path;
use crate::sandbox::image::registry::Registries;
use crate::sandbox::image::registry::trust::{Allowed, Trust};
use crate::sealing::KeyPlace;
use crate::store::conninfo::Conninfo;
use crate::wire::forwarded::TrustedProxies;
use crate::wire::http::url::Url;
use source::{Found, NetworkTable, ProviderTable, Sources, nearest};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

pub const DEFAULT_FILE: &str = "/etc/stdiod/stdiod.toml";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub listen: Vec<Listen>,
    /// Where metrics are told without a token; none: nowhere.
    pub metrics_listen: Option<Listen>,
    /// None: every listener speaks in clear text.
    pub tls: Option<Tls>,
    /// Under which clients know this daemon.
    pub public_url: Option<Url>,
    /// What these say of whom they speak for is believed.
    pub trusted_proxies: TrustedProxies,
    /// None: tokens are our own alone.
    pub auth_server: Option<AuthServer>,
    /// Of the whole daemon, whatever its peers do; none: as usual.
    pub memory_budget: Option<usize>,
    /// Connections of one address that has shown no token; none: as many as usual.
    pub peer_connections_max: Option<usize>,
    /// How much those who are limited may give a server.
    pub ceilings: Ceilings,
    /// What becomes of servers that nobody uses, where their definition says nothing.
    pub idle: Idle,
    pub audit: Audit,
    /// For everybody who has none of their own.
    pub rate_limit: Option<RateLimit>,
    pub data_dir: PathBuf,
    pub auth: Auth,
    /// Whose members may open the unix listeners; none: the daemon's user alone.
    pub socket_group: Option<String>,
    /// What seals secrets in the database.
    pub secret_key: KeyPlace,
    /// None: a private PostgreSQL under `data_dir`.
    pub database_url: Option<Secret>,
    /// While another daemon works on the database or the data directory, this one waits.
    pub standby: bool,
    /// A filter of `env_logger`.
    pub log: String,
    /// Always one of `providers`.
    pub default_provider: String,
    /// None: loopback only.
    pub default_network: Option<String>,
    /// Where CNI configurations are looked for.
    pub network_dirs: Vec<PathBuf>,
    /// By network: private ranges that its servers reach.
    pub allow_private: BTreeMap<String, Vec<Net>>,
    /// Directories that servers with `rootfs: "host"` see besides `/usr` and what belongs to it.
    pub host_paths: Vec<PathBuf>,
    /// What servers must leave free on the disk of `data_dir`; none: by its size.
    pub disk_reserve_bytes: Option<u64>,
    pub allow_isolation_none: bool,
    pub allow_host_network: bool,
    /// `host[:port]` of registries that are spoken to without TLS.
    pub insecure_registries: Vec<String>,
    /// `host[:port]` that names without a registry are pulled from; none: they are not pulled.
    pub default_registry: Option<String>,
    /// What may be run; none: everything.
    pub allowed_images: Vec<Allowed>,
    /// One of these must have signed it; none: nobody need.
    pub image_keys: Vec<PathBuf>,
    /// Between a server's name and a tool's, where `/mcp` offers all servers at once.
    pub tool_separator: String,
    /// Are the arguments of projects' tool calls recorded?
    pub record_arguments: bool,
    pub records_keep_days: u32,
    pub providers: BTreeMap<String, Provider>,
    /// False only by `ENABLE_AGENT_WORKSPACES=false`: the daemon answers, and hosts nothing.
    pub hosting_enabled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auth {
    Tokens,
    Off,
}

/// An OCI runtime that servers can ask for by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provider {
    pub kind: RuntimeKind,
    /// An absolute path, or a name to be found in `PATH`.
    pub binary: PathBuf,
    /// Global flags before the subcommand.
    pub args: Vec<String>,
}

/// A value that must not be shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// What `Config::parse` needs to know of the process.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    pub variables: BTreeMap<String, String>,
    pub root: bool,
    /// The credential of systemd that holds the key, if there is one.
    pub secret_key_credential: Option<PathBuf>,
}

/// The key's file in the data directory, and its name as a credential.
const SECRET_KEY: &str = "secret.key";

impl Surroundings {
    /// Variables that are not UTF-8 are nobody's settings and are left out.
    pub fn of_this_process() -> Surroundings {
        let variables = std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
        let credentials = std::env::var_os("CREDENTIALS_DIRECTORY").map(|dir| Path::new(&dir).join(SECRET_KEY));
        Surroundings {
            variables: variables.collect(),
            root: nix::unistd::geteuid().is_root(),
            secret_key_credential: credentials.filter(|path| path.is_absolute() && path.exists()),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigError {
    Unreadable { file: PathBuf, why: String },
    Syntax { at: Place, why: String },
    UnknownKey { at: Place, key: String, near: Option<String> },
    UnknownVariable { name: String, near: Option<String> },
    Invalid { at: Place, key: String, problem: String, remedy: String },
}

impl ConfigError {
    fn invalid(at: Place, key: &str, problem: impl Into<String>, remedy: impl Into<String>) -> ConfigError {
        ConfigError::Invalid { at, key: key.to_string(), problem: problem.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suggest = |near: &Option<String>, otherwise: &str| match near {
            Some(near) => format!("did you mean `{near}`?"),
            None => otherwise.to_string(),
        };
        match self {
            ConfigError::Unreadable { file, why } => {
                let remedy = "check --config and STDIOD_CONFIG, or run as a user who may read it";
                write!(f, "cannot read the configuration file {}: {why}; {remedy}", file.display())
            }
            ConfigError::Syntax { at, why } => write!(f, "{at}: not valid TOML: {why}"),
            ConfigError::UnknownKey { at, key, near } => {
                write!(f, "{at}: `{key}` is no setting; {}", suggest(near, "remove it"))
            }
            ConfigError::UnknownVariable { name, near } => {
                write!(f, "environment variable {name} is no setting; {}", suggest(near, "unset it"))
            }
            ConfigError::Invalid { at, key, problem, remedy } => write!(f, "{at}: `{key}` {problem}; {remedy}"),
        }
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// From `file`, which must exist, or else from the default file if that exists; and from this process.
    pub fn load(file: Option<&Path>) -> Result<Config, ConfigError> {
        let path = file.unwrap_or(Path::new(DEFAULT_FILE));
        let text = match std::fs::read_to_string(path) {
            Ok(text) => Some(text),
            Err(error) if file.is_none() && error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => {
                return Err(ConfigError::Unreadable { file: path.to_path_buf(), why: error.to_string() });
            }
        };
        Config::parse(text.as_deref().map(|text| (path, text)), &Surroundings::of_this_process())
    }

    /// `STDIOD_*` variables win over the platform's (`DATABASE_URL`, `WORKSPACE_*`), these over the file, the file over
    /// the defaults.
    pub fn parse(file: Option<(&Path, &str)>, around: &Surroundings) -> Result<Config, ConfigError> {
        let sources = Sources::new(file, &around.variables)?;
        let tls = doors::tls(&sources)?;
        let listen = doors::listeners(&sources, tls.is_some())?;
        let data_dir = data_dir(&sources, around)?;
        let control = Listen::Unix(control_socket(&data_dir));
        if let Some(Found { at, .. }) = sources.list("listen")?.filter(|_| listen.contains(&control)) {
            let problem = format!("holds `{control}`, the daemon's own socket");
            return Err(ConfigError::invalid(at, "listen", problem, "remove it: that one is always there"));
        }
        let public_url = oauth::public_url(&sources)?;
        let allow_isolation_none = flag(&sources, "allow_isolation_none")?;
        let providers = providers(&sources, allow_isolation_none)?;
        let allow_host_network = flag(&sources, "allow_host_network")?;
        Ok(Config {
            auth: auth(&sources, &listen)?,
            metrics_listen: doors::metrics_listener(&sources, &listen, tls.is_some())?,
            listen,
            tls,
            auth_server: oauth::auth_server(&sources, public_url.as_ref())?,
            public_url,
            trusted_proxies: doors::trusted_proxies(&sources)?,
            memory_budget: doors::memory_budget(&sources)?,
            peer_connections_max: doors::peer_connections_max(&sources)?,
            ceilings: ceilings::ceilings(&sources)?,
            idle: idle::idle(&sources)?,
            audit: doors::audit(&sources)?,
            rate_limit: doors::rate_limit(&sources)?,
            socket_group: socket_group(&sources)?,
            secret_key: doors::secret_key(&sources, around, &data_dir)?,
            data_dir,
            database_url: database_url(&sources)?,
            standby: flag(&sources, "standby")?,
            log: log_filter(&sources)?,
            default_provider: default_provider(&sources, &providers)?,
            default_network: default_network(&sources, allow_host_network)?,
            network_dirs: network_dirs(&sources)?,
            allow_private: allow_private(&sources)?,
            host_paths: host_paths(&sources)?,
            disk_reserve_bytes: disk_reserve(&sources)?,
            allow_isolation_none,
            allow_host_network,
            insecure_registries: images::insecure_registries(&sources)?,
            default_registry: images::default_registry(&sources)?,
            allowed_images: images::allowed_images(&sources)?,
            image_keys: images::image_keys(&sources)?,
            tool_separator: tool_separator(&sources)?,
            record_arguments: sources.boolean("record_arguments")?.is_none_or(|found| found.value),
            records_keep_days: records_keep_days(&sources)?,
            providers,
            hosting_enabled: hosting_enabled(&around.variables),
        })
    }

    /// Reads the keys. The error names the file.
    pub fn registries(&self) -> Result<Registries, String> {
        let keys = self.image_keys.iter().map(|file| images::key(file)).collect::<Result<_, _>>()?;
        let trust = Trust { allowed: self.allowed_images.clone(), keys };
        Ok(Registries { insecure: self.insecure_registries.clone(), default: self.default_registry.clone(), trust })
    }

    pub fn admin_token_file(&self) -> PathBuf {
        self.data_dir.join("admin.token")
    }

    /// Where the daemon's own user, and root, need no token: always there, whatever is configured.
    pub fn control_socket(&self) -> PathBuf {
        control_socket(&self.data_dir)
    }
}

fn control_socket(data_dir: &Path) -> PathBuf {
    data_dir.join("control.sock")
}

fn flag(sources: &Sources, key: &'static str) -> Result<bool, ConfigError> {
    Ok(sources.boolean(key)?.is_some_and(|found| found.value))
}

fn auth(sources: &Sources, listen: &[Listen]) -> Result<Auth, ConfigError> {
    let Some(Found { value, at }) = sources.string("auth")? else { return Ok(Auth::Tokens) };
    match value.as_str() {
        "tokens" => Ok(Auth::Tokens),
        "off" => match listen.iter().find(|one| !one.is_local()) {
            None => Ok(Auth::Off),
            Some(open) => Err(ConfigError::invalid(
                at,
                "auth",
                format!("is `off`, but the listener {open} can be reached from other machines"),
                "listen on a loopback address or a unix socket only, or set `auth` to `tokens`",
            )),
        },
        other => Err(ConfigError::invalid(at, "auth", format!("is `{other}`"), "write `tokens` or `off`")),
    }
}

fn socket_group(sources: &Sources) -> Result<Option<String>, ConfigError> {
    match sources.string("socket_group")? {
        Some(Found { value, at }) if !is_plain_name(&value) => {
            let remedy = "write the name or the number of a group";
            Err(ConfigError::invalid(at, "socket_group", format!("is `{value}`"), remedy))
        }
        found => Ok(found.map(|found| found.value)),
    }
}

fn data_dir(sources: &Sources, around: &Surroundings) -> Result<PathBuf, ConfigError> {
    let missing = || {
        let remedy = "set it (file, or STDIOD_DATA_DIR) to an absolute path";
        ConfigError::invalid(Place::Default, "data_dir", "has no default here: HOME is not set", remedy)
    };
    match sources.string("data_dir")? {
        Some(Found { value, .. }) if value.starts_with('/') => Ok(PathBuf::from(value)),
        Some(Found { value, at }) => {
            Err(ConfigError::invalid(at, "data_dir", format!("is `{value}`"), "write an absolute path"))
        }
        None if around.root => Ok(PathBuf::from("/var/lib/stdiod")),
        None => {
            let absolute = |name: &str| around.variables.get(name).filter(|value| value.starts_with('/'));
            let share = match absolute("XDG_DATA_HOME") {
                Some(dir) => PathBuf::from(dir),
                None => Path::new(absolute("HOME").ok_or_else(missing)?).join(".local/share"),
            };
            Ok(share.join("stdiod"))
        }
    }
}

fn database_url(sources: &Sources) -> Result<Option<Secret>, ConfigError> {
    let Some(Found { value, at }) = sources.string("database_url")? else { return Ok(None) };
    let why = match value.trim().is_empty() {
        true => "it is empty".to_string(),
        false => match Conninfo::parse(&value) {
            Ok(_) => return Ok(Some(Secret(value))),
            Err(why) => why,
        },
    };
    let remedy = "write `postgresql://USER:PASSWORD@HOST/DATABASE`, or remove it for a private PostgreSQL";
    Err(ConfigError::invalid(at, "database_url", format!("is no PostgreSQL address: {why}"), remedy))
}

/// `info`, or directives such as `info,stdiod::store=debug`. A bare word that is no level would silently mean a module
/// of that name.
fn log_filter(sources: &Sources) -> Result<String, ConfigError> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let Some(Found { value, at }) = sources.string("log")? else { return Ok("info".to_string()) };
    for directive in value.split(',') {
        let level = directive.rsplit('=').next().unwrap_or(directive).trim();
        if !LEVELS.iter().any(|known| level.eq_ignore_ascii_case(known)) {
            let remedy = format!("write one of {}, or `info,stdiod::store=debug`", LEVELS.join(", "));
            return Err(ConfigError::invalid(at, "log", format!("holds `{level}`, which is no level"), remedy));
        }
    }
    Ok(value)
}

fn default_provider(sources: &Sources, providers: &BTreeMap<String, Provider>) -> Result<String, ConfigError> {
    let Some(Found { value, at }) = sources.string("default_provider")? else { return Ok("gvisor".to_string()) };
    if providers.contains_key(&value) {
        return Ok(value);
    }
    let remedy = match nearest(&value, providers.keys().map(String::as_str)) {
        Some(near) => format!("did you mean `{near}`?"),
        None => {
            let known: Vec<&str> = providers.keys().map(String::as_str).collect();
            format!("known are {}; add a [providers.{value}] section for another runtime", known.join(", "))
        }
    };
    Err(ConfigError::invalid(at, "default_provider", format!("is `{value}`, which is no provider"), remedy))
}

/// Ours before the one that all CNI users share.
fn network_dirs(sources: &Sources) -> Result<Vec<PathBuf>, ConfigError> {
    let Some(Found { value, at }) = sources.list("network_dirs")? else {
        return Ok(["/etc/stdiod/networks", "/etc/cni/net.d"].map(PathBuf::from).to_vec());
    };
    match value.iter().find(|dir| !dir.starts_with('/')) {
        None => Ok(value.into_iter().map(PathBuf::from).collect()),
        Some(wrong) => {
            let problem = format!("holds `{wrong}`");
            Err(ConfigError::invalid(at, "network_dirs", problem, "write absolute paths of directories"))
        }
    }
}

fn allow_private(sources: &Sources) -> Result<BTreeMap<String, Vec<Net>>, ConfigError> {
    let mut networks = BTreeMap::new();
    for NetworkTable { name, at, allow_private } in sources.networks()? {
        if !is_plain_name(&name) || ["none", "host"].contains(&name.as_str()) {
            let remedy = "name `bridge`, or a CNI network; `none` and `host` have no fence to open";
            return Err(ConfigError::invalid(at, &format!("networks.{name}"), "is no network with a fence", remedy));
        }
        let Some(Found { value, at }) = allow_private else { continue };
        let key = format!("networks.{name}.allow_private");
        let invalid = |problem: String, remedy: &str| Err(ConfigError::invalid(at.clone(), &key, problem, remedy));
        if value.len() > ALLOW_PRIVATE_MAX {
            return invalid(format!("has more than {ALLOW_PRIVATE_MAX} ranges"), "name wider ranges");
        }
        let mut nets = Vec::new();
        for item in &value {
            match Net::parse(item) {
                Some(net) if net.kind() == Kind::Never => {
                    let remedy = "remove it: loopback, link-local, metadata and multicast addresses are never opened";
                    return invalid(format!("holds `{item}`"), remedy);
                }
                Some(net) => nets.push(net),
                None => {
                    return invalid(format!("holds `{item}`"), "write ranges such as `10.20.0.0/16` or `fd12::/48`");
                }
            }
        }
        networks.insert(name, nets);
    }
    Ok(networks)
}

fn disk_reserve(sources: &Sources) -> Result<Option<u64>, ConfigError> {
    let Some(Found { value, at }) = sources.string("disk_reserve")? else { return Ok(None) };
    let bytes = quantity::bytes(&value.as_str().into()).ok_or_else(|| {
        ConfigError::invalid(at, "disk_reserve", format!("is `{value}`"), "write bytes, as in `1G`, or `0` for none")
    })?;
    Ok(Some(bytes))
}

/// Nothing of what every container has of its own, and not everything at once.
fn host_paths(sources: &Sources) -> Result<Vec<PathBuf>, ConfigError> {
    let Some(Found { value, at }) = sources.list("host_paths")? else { return Ok(Vec::new()) };
    let own = |path: &Path| COVERED.iter().any(|covered| path.starts_with(covered)) || path == Path::new("/etc");
    let mut paths = Vec::new();
    for item in value {
        match normal_path(&item).filter(|path| !own(path)) {
            Some(path) => paths.push(path),
            None => {
                let remedy = "write absolute paths of directories, not /, /etc or of /proc, /sys, /dev, /tmp";
                return Err(ConfigError::invalid(at, "host_paths", format!("holds `{item}`"), remedy));
            }
        }
    }
    Ok(paths)
}

fn default_network(sources: &Sources, allow_host_network: bool) -> Result<Option<String>, ConfigError> {
    match sources.string("default_network")? {
        None => Ok(None),
        Some(Found { value, .. }) if value == "none" => Ok(None),
        Some(Found { value, at }) if value == "host" && !allow_host_network => {
            let remedy = "set `allow_host_network = true`, or name another network";
            Err(ConfigError::invalid(at, "default_network", "is `host`, which is not allowed", remedy))
        }
        Some(Found { value, at }) if !is_plain_name(&value) => {
            let remedy = "write `none`, or a name of letters, digits, `-`, `_` and `.`";
            Err(ConfigError::invalid(at, "default_network", format!("is `{value}`"), remedy))
        }
        Some(Found { value, .. }) => Ok(Some(value)),
    }
}

fn tool_separator(sources: &Sources) -> Result<String, ConfigError> {
    let Some(Found { value, at }) = sources.string("tool_separator")? else { return Ok(":".to_string()) };
    let allowed = |c: char| c.is_ascii_alphanumeric() || ":._-/".contains(c);
    match (1..=8).contains(&value.len()) && value.chars().all(allowed) {
        true => Ok(value),
        false => {
            let remedy = "write 1 to 8 letters, digits or of `:._-/`, such as `__`";
            Err(ConfigError::invalid(at, "tool_separator", format!("is `{value}`"), remedy))
        }
    }
}

fn records_keep_days(sources: &Sources) -> Result<u32, ConfigError> {
    let Some(Found { value, at }) = sources.quantity("records_keep_days")? else {
        return Ok(RECORDS_KEEP_DAYS_DEFAULT);
    };
    match value.parse() {
        Ok(days @ 1..=RECORDS_KEEP_DAYS_MAX) => Ok(days),
        Ok(_) | Err(_) => {
            let remedy = format!("write days, from 1 to {RECORDS_KEEP_DAYS_MAX}");
            Err(ConfigError::invalid(at, "records_keep_days", format!("is `{value}`"), remedy))
        }
    }
}

/// The two that are always there, `none` where it is allowed, and those of the file, which may also change the two.
fn providers(sources: &Sources, none: bool) -> Result<BTreeMap<String, Provider>, ConfigError> {
    let mut providers = BTreeMap::from([
        ("gvisor".to_string(), Provider { kind: RuntimeKind::Gvisor, binary: "runsc".into(), args: Vec::new() }),
        ("crun".to_string(), Provider { kind: RuntimeKind::Native, binary: "crun".into(), args: Vec::new() }),
    ]);
    if none {
        let plain = Provider { kind: RuntimeKind::Plain, binary: PathBuf::new(), args: Vec::new() };
        providers.insert("none".to_string(), plain);
    }
    for table in sources.providers()? {
        let known = providers.get(&table.name).cloned();
        let name = table.name.clone();
        providers.insert(name, provider(table, known)?);
    }
    Ok(providers)
}

fn provider(table: ProviderTable, known: Option<Provider>) -> Result<Provider, ConfigError> {
    let key = |field: &str| format!("providers.{}.{field}", table.name);
    if !is_plain_name(&table.name) {
        let remedy = "use letters, digits, `-`, `_` and `.`";
        return Err(ConfigError::invalid(table.at, &format!("providers.{}", table.name), "is no name", remedy));
    }
    let binary = match (table.binary, &known) {
        (Some(Found { value, .. }), _) if value.starts_with('/') || (!value.is_empty() && !value.contains('/')) => {
            PathBuf::from(value)
        }
        (Some(Found { at, .. }), _) => {
            let remedy = "write an absolute path, or a name to be found in PATH";
            return Err(ConfigError::invalid(at, &key("binary"), "is neither a path nor a name", remedy));
        }
        (None, Some(known)) => known.binary.clone(),
        (None, None) => {
            let remedy = "name the OCI runtime to run";
            return Err(ConfigError::invalid(table.at, &key("binary"), "is missing", remedy));
        }
    };
    let kind = match table.kind {
        Some(Found { value, at }) => match value.as_str() {
            "native" => RuntimeKind::Native,
            "gvisor" => RuntimeKind::Gvisor,
            other => {
                let remedy = "write `native` (crun, runc, youki) or `gvisor` (runsc)";
                return Err(ConfigError::invalid(at, &key("kind"), format!("is `{other}`"), remedy));
            }
        },
        None => match known {
            Some(known) => known.kind,
            None if binary.file_name().is_some_and(|name| name == "runsc") => RuntimeKind::Gvisor,
            None => RuntimeKind::Native,
        },
    };
    Ok(Provider { kind, binary, args: table.args.map(|found| found.value).unwrap_or_default() })
}

fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

fn hosting_enabled(variables: &BTreeMap<String, String>) -> bool {
    !variables.get("ENABLE_AGENT_WORKSPACES").is_some_and(|value| value.trim().eq_ignore_ascii_case("false"))
}

#[cfg(test)]
mod tests;
