//! What the configuration says about who comes in and what is written down of them: listeners, TLS and client certificates,
//! the audit log, rates. Judges values only; the files that are named here are read by whoever uses them.

use super::source::{Found, RateTable, RuleTable, Sources};
use super::{ConfigError, SECRET_KEY, Surroundings, flag};
use crate::api::auth::CertificateRule;
use crate::api::definition::fields::server_name;
use crate::api::definition::quantity;
use crate::limits::{
    AUDIT_BYTES_DEFAULT, AUDIT_BYTES_MIN, CERTIFICATE_RULES_MAX, CONNECTIONS_MAX, MEMORY_BUDGETS, NAME_MAX,
    TOKEN_SERVERS_MAX, TRUSTED_PROXIES_MAX, UNIX_PATH_MAX,
};
use crate::model::principal::Scopes;
use crate::model::ranges::Net;
use crate::model::rate::RateLimit;
use crate::sealing::KeyPlace;
use crate::wire::forwarded::TrustedProxies;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8480);

// --- listeners ------------------------------------------------------------------------------------------------------

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Listen {
    /// In clear text.
    Tcp(SocketAddr),
    Tls(SocketAddr),
    Unix(PathBuf),
}

impl Listen {
    /// Nobody outside this machine can reach it.
    pub fn is_local(&self) -> bool {
        match self {
            Listen::Tcp(address) | Listen::Tls(address) => address.ip().is_loopback(),
            Listen::Unix(_) => true,
        }
    }

    fn address(&self) -> Option<SocketAddr> {
        match self {
            Listen::Tcp(address) | Listen::Tls(address) => Some(*address),
            Listen::Unix(_) => None,
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Tcp(address) => write!(f, "http://{address}"),
            Listen::Tls(address) => write!(f, "https://{address}"),
            Listen::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// `tls`: there is a certificate, so an address that does not say otherwise speaks TLS.
pub(super) fn listeners(sources: &Sources, tls: bool) -> Result<Vec<Listen>, ConfigError> {
    let Some(Found { value, at }) = sources.list("listen")? else {
        return Ok(vec![if tls { Listen::Tls(DEFAULT_LISTEN) } else { Listen::Tcp(DEFAULT_LISTEN) }]);
    };
    let insecure = flag(sources, "insecure_http")?;
    let invalid = |problem: String, remedy: &str| Err(ConfigError::invalid(at.clone(), "listen", problem, remedy));
    let mut listen: Vec<Listen> = Vec::new();
    for item in &value {
        let one = match listener(item, tls) {
            Ok(one) => one,
            Err(remedy) => return invalid(format!("holds `{item}`, which is no address"), &remedy),
        };
        // Port 0 is another one each time.
        let same = |other: &Listen| match (other.address(), one.address()) {
            (Some(other), Some(one)) => other == one && one.port() != 0,
            _ => *other == one,
        };
        if listen.iter().any(same) {
            return invalid(format!("holds `{item}` twice"), "name each address once");
        }
        if matches!(one, Listen::Tcp(_)) && !one.is_local() && !insecure {
            let problem = format!("holds `{item}`, which other machines reach in clear text");
            let remedy = "set `tls_cert` and `tls_key`, or put a TLS proxy in front of a loopback address, or set \
                          `insecure_http = true` if the network in between is trusted";
            return invalid(problem, remedy);
        }
        listen.push(one);
    }
    if listen.is_empty() {
        return invalid("is empty".to_string(), "name at least one address, such as `127.0.0.1:8480`");
    }
    Ok(listen)
}

/// Whoever reaches it needs no token, so it is for this machine alone, or speaks TLS.
pub(super) fn metrics_listener(sources: &Sources, others: &[Listen], tls: bool) -> Result<Option<Listen>, ConfigError> {
    let Some(Found { value, at }) = sources.string("metrics_listen")? else { return Ok(None) };
    let invalid = |problem: String, remedy: &str| Err(ConfigError::invalid(at, "metrics_listen", problem, remedy));
    match listener(&value, tls) {
        Err(remedy) => invalid(format!("is `{value}`, which is no address"), &remedy),
        Ok(one) if others.contains(&one) => {
            invalid(format!("is `{value}`, and so is a listener of `listen`"), "give it an address of its own")
        }
        Ok(one) if matches!(one, Listen::Tcp(_)) && !one.is_local() => {
            let remedy = "use a loopback address, a unix socket, or TLS, or have /metrics scraped with a token";
            invalid(format!("is `{value}`, which other machines reach in clear text, and it asks for no token"), remedy)
        }
        Ok(one) => Ok(Some(one)),
    }
}

/// One address, or what to write instead.
fn listener(item: &str, tls: bool) -> Result<Listen, String> {
    if let Some(path) = item.strip_prefix("unix:") {
        if !path.starts_with('/') {
            return Err("write `unix:` and an absolute path".to_string());
        }
        if path.len() > UNIX_PATH_MAX {
            return Err(format!("a socket's path has at most {UNIX_PATH_MAX} bytes"));
        }
        return Ok(Listen::Unix(PathBuf::from(path)));
    }
    let (secure, bare) = match (item.strip_prefix("http://"), item.strip_prefix("https://")) {
        (Some(bare), _) => (false, bare),
        (None, Some(_)) if !tls => return Err("set `tls_cert` and `tls_key` for an https:// address".to_string()),
        (None, Some(bare)) => (true, bare),
        (None, None) => (tls, item),
    };
    let numeric = match bare.strip_prefix("localhost:") {
        Some(port) => format!("127.0.0.1:{port}"),
        None => bare.to_string(),
    };
    let address: Result<SocketAddr, _> = numeric.parse();
    match (address, bare.strip_prefix(':')) {
        (Ok(address), _) if secure => Ok(Listen::Tls(address)),
        (Ok(address), _) => Ok(Listen::Tcp(address)),
        (Err(_), Some(port)) => {
            Err(format!("write `0.0.0.0:{port}` for all interfaces or `127.0.0.1:{port}` for this machine only"))
        }
        (Err(_), None) => {
            Err("write IP:PORT, as in `127.0.0.1:8480` or `[::1]:8480`, or `unix:/run/stdiod.sock`".to_string())
        }
    }
}

// --- TLS ------------------------------------------------------------------------------------------------------------

/// Files, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    pub cert: PathBuf,
    pub key: PathBuf,
    pub clients: Option<ClientCertificates>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificates {
    pub ca: PathBuf,
    /// Without one there is no connection.
    pub required: bool,
    pub rules: Vec<CertificateRule>,
}

pub(super) fn tls(sources: &Sources) -> Result<Option<Tls>, ConfigError> {
    let (cert, key) = (file(sources, "tls_cert")?, file(sources, "tls_key")?);
    let missing = |there: &Found<PathBuf>, key: &str, other: &str| {
        let problem = format!("is missing, though there is `{other}`");
        ConfigError::invalid(there.at.clone(), key, problem, "name both, or neither")
    };
    let clients = client_certificates(sources)?;
    match (cert, key) {
        (Some(cert), Some(key)) => Ok(Some(Tls { cert: cert.value, key: key.value, clients })),
        (Some(cert), None) => Err(missing(&cert, "tls_key", "tls_cert")),
        (None, Some(key)) => Err(missing(&key, "tls_cert", "tls_key")),
        (None, None) => match file(sources, "tls_client_ca")? {
            Some(ca) => Err(missing(&ca, "tls_cert", "tls_client_ca")),
            None => Ok(None),
        },
    }
}

fn client_certificates(sources: &Sources) -> Result<Option<ClientCertificates>, ConfigError> {
    let (ca, mode) = (file(sources, "tls_client_ca")?, sources.string("tls_client_auth")?);
    let tables = sources.certificate_rules()?;
    let Some(Found { value: ca, .. }) = ca else {
        let without_ca = "says something of client certificates, but nobody vouches for them";
        let remedy = "set `tls_client_ca` to the file of their authority";
        if let Some(Found { at, .. }) = mode {
            return Err(ConfigError::invalid(at, "tls_client_auth", without_ca, remedy));
        }
        return match tables.into_iter().next() {
            Some(RuleTable { at, .. }) => Err(ConfigError::invalid(at, "tls_client_rules", without_ca, remedy)),
            None => Ok(None),
        };
    };
    let required = match mode.as_ref().map(|found| found.value.as_str()) {
        None | Some("optional") => false,
        Some("required") => true,
        Some(other) => {
            let at = mode.as_ref().expect("just seen").at.clone();
            let problem = format!("is `{other}`");
            return Err(ConfigError::invalid(at, "tls_client_auth", problem, "write `optional` or `required`"));
        }
    };
    if let Some(table) = tables.get(CERTIFICATE_RULES_MAX) {
        let problem = format!("has more than {CERTIFICATE_RULES_MAX} rules");
        return Err(ConfigError::invalid(table.at.clone(), "tls_client_rules", problem, "remove some"));
    }
    let rules = tables.into_iter().map(rule).collect::<Result<Vec<_>, _>>()?;
    Ok(Some(ClientCertificates { ca, required, rules }))
}

fn rule(table: RuleTable) -> Result<CertificateRule, ConfigError> {
    let RuleTable { at, cn, scopes, servers } = table;
    let invalid = |key: &str, problem: String, remedy: String| {
        Err(ConfigError::invalid(at.clone(), &format!("tls_client_rules.{key}"), problem, remedy))
    };
    let cn = cn.map(|found| found.value).unwrap_or_default();
    if cn.is_empty() || cn.len() > NAME_MAX || cn.chars().any(char::is_control) {
        let remedy = format!("write the common name of a certificate, of at most {NAME_MAX} bytes");
        return invalid("cn", format!("is `{cn}`"), remedy);
    }
    let scopes = scopes.map(|found| found.value).unwrap_or_default();
    if let Some(wrong) = scopes.iter().find(|scope| !Scopes::NAMES.contains(&scope.as_str())) {
        return invalid("scopes", format!("holds `{wrong}`"), format!("write of {}", Scopes::NAMES.join(", ")));
    }
    if scopes.is_empty() {
        return invalid("scopes", "is missing".to_string(), format!("write of {}", Scopes::NAMES.join(", ")));
    }
    let servers = servers.map(|found| found.value).unwrap_or_default();
    if let Some(wrong) = servers.iter().find(|name| server_name(name).is_err()) {
        return invalid("servers", format!("holds `{wrong}`"), "write names of servers".to_string());
    }
    if servers.len() > TOKEN_SERVERS_MAX {
        return invalid("servers", format!("has more than {TOKEN_SERVERS_MAX}"), "leave it out for all".to_string());
    }
    Ok(CertificateRule { cn, scopes, servers, projects: Vec::new() })
}

// --- the key --------------------------------------------------------------------------------------------------------

/// The file that is named; or the credential that systemd has put there for this service; or one of our own.
pub(super) fn secret_key(sources: &Sources, around: &Surroundings, data_dir: &Path) -> Result<KeyPlace, ConfigError> {
    if let Some(Found { value, at }) = sources.string("secret_key_file")? {
        return match value.starts_with('/') {
            true => Ok(KeyPlace::File(PathBuf::from(value))),
            false => {
                let remedy = "write the absolute path of the file that holds the key, or will hold it";
                Err(ConfigError::invalid(at, "secret_key_file", format!("is `{value}`"), remedy))
            }
        };
    }
    Ok(match &around.secret_key_credential {
        Some(path) => KeyPlace::Credential(path.clone()),
        None => KeyPlace::File(data_dir.join(SECRET_KEY)),
    })
}

fn file(sources: &Sources, key: &'static str) -> Result<Option<Found<PathBuf>>, ConfigError> {
    match sources.string(key)? {
        Some(Found { value, at }) if value.starts_with('/') => Ok(Some(Found { value: PathBuf::from(value), at })),
        Some(Found { value, at }) => {
            Err(ConfigError::invalid(at, key, format!("is `{value}`"), "write the absolute path of a PEM file"))
        }
        None => Ok(None),
    }
}

// --- the audit log --------------------------------------------------------------------------------------------------

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Audit {
    /// Tool calls are written down too.
    pub calls: bool,
    /// Of each of the two files.
    pub max_bytes: u64,
    pub on_error: OnAuditError,
}

/// What becomes of changes while the audit log cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnAuditError {
    Refuse,
    Continue,
}

pub(super) fn audit(sources: &Sources) -> Result<Audit, ConfigError> {
    let max_bytes = match sources.quantity("audit_max_bytes")? {
        None => AUDIT_BYTES_DEFAULT,
        Some(Found { value, at }) => match quantity::bytes(&value.as_str().into()) {
            Some(bytes) if bytes >= AUDIT_BYTES_MIN => bytes,
            Some(_) | None => {
                let remedy = format!("write bytes, as in `16M`, and at least {AUDIT_BYTES_MIN}");
                return Err(ConfigError::invalid(at, "audit_max_bytes", format!("is `{value}`"), remedy));
            }
        },
    };
    let on_error = match sources.string("audit_on_error")? {
        None => OnAuditError::Refuse,
        Some(Found { value, at }) => match value.as_str() {
            "refuse" => OnAuditError::Refuse,
            "continue" => OnAuditError::Continue,
            _ => {
                let problem = format!("is `{value}`");
                return Err(ConfigError::invalid(at, "audit_on_error", problem, "write `refuse` or `continue`"));
            }
        },
    };
    Ok(Audit { calls: flag(sources, "audit_calls")?, max_bytes, on_error })
}

// --- connections ----------------------------------------------------------------------------------------------------

/// Of one address that has shown no token.
pub(super) fn peer_connections_max(sources: &Sources) -> Result<Option<usize>, ConfigError> {
    let Some(Found { value, at }) = sources.quantity("peer_connections_max")? else { return Ok(None) };
    match value.parse::<usize>() {
        Ok(most) if (1..=CONNECTIONS_MAX).contains(&most) => Ok(Some(most)),
        Ok(_) | Err(_) => {
            let remedy = format!("write a number from 1 to {CONNECTIONS_MAX}");
            Err(ConfigError::invalid(at, "peer_connections_max", format!("is `{value}`"), remedy))
        }
    }
}

/// Loopback too: a proxy on this machine is the usual one.
pub(super) fn trusted_proxies(sources: &Sources) -> Result<TrustedProxies, ConfigError> {
    let Some(Found { value, at }) = sources.list("trusted_proxies")? else { return Ok(TrustedProxies::default()) };
    let invalid = |problem: String| {
        let remedy =
            "write the addresses of your proxies, such as `127.0.0.1` or `10.20.0.0/16`, and no more than those";
        Err(ConfigError::invalid(at.clone(), "trusted_proxies", problem, remedy))
    };
    if value.len() > TRUSTED_PROXIES_MAX {
        return invalid(format!("has more than {TRUSTED_PROXIES_MAX} ranges"));
    }
    let mut nets = Vec::new();
    for item in &value {
        match Net::parse(item) {
            // Everybody would be believed.
            Some(Net { prefix: 0, .. }) | None => return invalid(format!("holds `{item}`")),
            Some(net) => nets.push(net),
        }
    }
    Ok(TrustedProxies(nets))
}

pub(super) fn memory_budget(sources: &Sources) -> Result<Option<usize>, ConfigError> {
    let Some(Found { value, at }) = sources.quantity("memory_budget")? else { return Ok(None) };
    let bytes = quantity::bytes(&value.as_str().into()).and_then(|bytes| usize::try_from(bytes).ok());
    match bytes.filter(|bytes| MEMORY_BUDGETS.contains(bytes)) {
        Some(bytes) => Ok(Some(bytes)),
        None => {
            let remedy = "write bytes, from `512M` to `64G`";
            Err(ConfigError::invalid(at, "memory_budget", format!("is `{value}`"), remedy))
        }
    }
}

// --- rates ----------------------------------------------------------------------------------------------------------

/// For everybody who has none of their own.
pub(super) fn rate_limit(sources: &Sources) -> Result<Option<RateLimit>, ConfigError> {
    let Some(RateTable { at, per_second, burst }) = sources.rate_limit()? else { return Ok(None) };
    let number = |found: Option<Found<String>>| found.map(|found| found.value.parse::<u32>().unwrap_or(0));
    let Some(per_second) = number(per_second) else {
        return Err(ConfigError::invalid(at, "rate_limit.per_second", "is missing", "write how many calls a second"));
    };
    let burst = number(burst).unwrap_or(per_second);
    RateLimit::new(per_second, burst).map(Some).map_err(|(key, why)| {
        ConfigError::invalid(at, &format!("rate_limit.{key}"), "is out of range", format!("write a number: {why}"))
    })
}
