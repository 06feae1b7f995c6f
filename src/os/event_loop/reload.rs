//! SIGHUP: what the configuration says when it is read again. What can change while the daemon runs is changed, the rest is
//! named, and a file that is wrong changes nothing. Reads no file: the look-up thread does, and brings it here.

use crate::config::Config;
use crate::os::logs::filter::LogFilter;
use crate::os::net::tls::TlsKeys;
use std::sync::Arc;

pub struct Reload {
    config: Config,
    filter: &'static LogFilter,
}

/// What of a configuration that was read again holds from here on.
#[derive(Default)]
pub struct Fresh {
    /// If it has changed.
    pub default_provider: Option<String>,
    pub keys: Option<Arc<TlsKeys>>,
}

impl Reload {
    pub fn new(config: Config, filter: &'static LogFilter) -> Reload {
        Reload { config, filter }
    }

    pub fn take(&mut self, read: Result<Box<Config>, String>) -> Fresh {
        let fresh = match read {
            Ok(fresh) => fresh,
            Err(e) => {
                log::error!("SIGHUP: the configuration stays as it was: {e}");
                return Fresh::default();
            }
        };
        self.filter.set(&fresh.log);
        let later = needs_restart(&self.config, &fresh);
        match later.is_empty() {
            true => log::info!("SIGHUP: the configuration was read again"),
            false => log::warn!("SIGHUP: read again, but {} change only with a restart", later.join(", ")),
        }
        let moved = fresh.default_provider != self.config.default_provider;
        self.config.log = fresh.log;
        self.config.default_provider = fresh.default_provider;
        let keys = match fresh.tls.as_ref().filter(|_| self.config.tls.is_some()).map(TlsKeys::read) {
            Some(Ok(keys)) => {
                log::info!("SIGHUP: the certificates were read again");
                self.config.tls = fresh.tls;
                Some(keys)
            }
            Some(Err(why)) => {
                log::error!("SIGHUP: the old certificates go on: {why}");
                None
            }
            None => None,
        };
        Fresh { default_provider: moved.then(|| self.config.default_provider.clone()), keys }
    }
}

/// The keys that differ and are read only once: `log`, `default_provider` and the certificates are all that is not.
fn needs_restart(old: &Config, fresh: &Config) -> Vec<&'static str> {
    let keys = [
        ("listen", old.listen != fresh.listen),
        ("tls_cert", old.tls.is_some() != fresh.tls.is_some()),
        ("public_url", old.public_url != fresh.public_url),
        ("trusted_proxies", old.trusted_proxies != fresh.trusted_proxies),
        ("oauth", old.auth_server != fresh.auth_server),
        ("memory_budget", old.memory_budget != fresh.memory_budget),
        ("peer_connections_max", old.peer_connections_max != fresh.peer_connections_max),
        ("ceilings", old.ceilings != fresh.ceilings),
        ("audit", old.audit != fresh.audit),
        ("rate_limit", old.rate_limit != fresh.rate_limit),
        ("data_dir", old.data_dir != fresh.data_dir),
        ("auth", old.auth != fresh.auth),
        ("socket_group", old.socket_group != fresh.socket_group),
        ("secret_key_file", old.secret_key != fresh.secret_key),
        ("database_url", old.database_url != fresh.database_url),
        ("standby", old.standby != fresh.standby),
        ("default_network", old.default_network != fresh.default_network),
        ("disk_reserve", old.disk_reserve_bytes != fresh.disk_reserve_bytes),
        ("host_paths", old.host_paths != fresh.host_paths),
        ("network_dirs", old.network_dirs != fresh.network_dirs),
        ("networks", old.allow_private != fresh.allow_private),
        ("allow_isolation_none", old.allow_isolation_none != fresh.allow_isolation_none),
        ("allow_host_network", old.allow_host_network != fresh.allow_host_network),
        ("insecure_registries", old.insecure_registries != fresh.insecure_registries),
        ("default_registry", old.default_registry != fresh.default_registry),
        ("allowed_images", old.allowed_images != fresh.allowed_images),
        ("image_keys", old.image_keys != fresh.image_keys),
        ("record_arguments", old.record_arguments != fresh.record_arguments),
        ("records_keep_days", old.records_keep_days != fresh.records_keep_days),
        ("tool_separator", old.tool_separator != fresh.tool_separator),
        ("providers", old.providers != fresh.providers),
    ];
    keys.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect()
}
