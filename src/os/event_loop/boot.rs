//! From a configuration to a loop that can run: everything that may fail with a word to the operator happens here, in
//! order, before the first event. Blocking is fine; nobody is connected yet.

pub mod carried;

use crate::api::auth::Peer;
use crate::api::auth::oauth::OAuth;
use crate::config::{Auth, Config, Listen};
use crate::core::{Core, Settings};
use crate::limits::{LOCK_WAIT, MALLOC_KEPT_MAX, MALLOC_MMAP_MIN, STORE_LOCK_EVERY};
use crate::model::principal::Principal;
use crate::os::children::database::Database;
use crate::os::children::probes::Probes;
use crate::os::children::pulls::PullChildren;
use crate::os::children::reap::Children;
use crate::os::event_loop::boot::carried::{adopt_listeners, still_locked};
use crate::os::event_loop::clock::Clock;
use crate::os::event_loop::lookups::{Lookups, WhereToLook};
use crate::os::event_loop::notify::Notify;
use crate::os::event_loop::pending::Pending;
use crate::os::event_loop::random::random;
use crate::os::event_loop::reactor::Reactor;
use crate::os::event_loop::reload::Reload;
use crate::os::event_loop::signals::{self, Signals, StopSignals};
use crate::os::event_loop::timer::Alarm;
use crate::os::event_loop::token::EventSource;
use crate::os::instances::meter::Meter;
use crate::os::instances::{Instances, LaunchSettings};
use crate::os::links::Links;
use crate::os::logs::audit::Audit;
use crate::os::logs::files::LogFiles;
use crate::os::logs::filter::LogFilter;
use crate::os::net::client::Socket;
use crate::os::net::clients::Clients;
use crate::os::net::descriptors::Descriptors;
use crate::os::net::oauth::{AuthServer, Server};
use crate::os::net::outgoing::Outgoing;
use crate::os::net::outgoing::resolver::system_lookup;
use crate::os::net::rates::Rates;
use crate::os::net::tls::TlsKeys;
use crate::os::net::unix_socket;
use crate::os::upgrade::Started;
use crate::os::upgrade::state::{self, Shell, State};
use crate::sandbox::container::plan::{Layout, Networking, Runtime, default_reserve_bytes};
use crate::sandbox::host::cgroup::Hierarchies;
use crate::sandbox::host::probe;
use crate::sandbox::image::registry::proxy::Proxies;
use crate::shares::{Owner, Resource, Shares};
use crate::store::cluster::Cluster;
use crate::store::home::{Home, LOCK_FILE};
use crate::store::premises;
use crate::store::thread::{Store, Wanted};
use mio::net::{TcpListener, UnixListener};
use mio::{Interest, Poll, Waker};
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::Gid;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// The parts of a loop, made but not yet running.
pub struct Boot {
    pub started: Started,
    /// Of the data directory.
    pub lock: RawFd,
    pub boot_id: String,
    /// None: this is the beginning of the daemon's life.
    pub before: Option<Shell>,
    pub poll: Poll,
    pub clock: Clock,
    pub core: Core,
    pub signals: Signals,
    pub alarm: Alarm,
    pub listeners: Vec<Listener>,
    pub clients: Clients,
    pub lookups: Lookups,
    pub shares: Shares,
    pub children: Children,
    pub instances: Instances,
    pub links: Links,
    pub pulls: PullChildren,
    pub database: Database,
    pub pending: Pending,
    pub logs: LogFiles,
    pub notify: Notify,
    pub reload: Reload,
    pub probes: Probes,
}

/// Runs the daemon until it is asked to stop. An error is a sentence for the operator. `file`: where the configuration
/// came from, to be read again on SIGHUP.
pub fn serve(
    config: Config,
    file: Option<PathBuf>,
    filter: &'static LogFilter,
    started: Started,
    state: Option<RawFd>,
) -> Result<(), String> {
    let before = state.map(state::taken_over).transpose()?;
    make_data_dir(&config.data_dir)?;
    // Held until the process ends: two daemons on one data directory would sweep each other's containers.
    let lock = match &before {
        Some(State { shell, .. }) => Some(still_locked(shell.lock)?),
        None => lock(&config.data_dir, config.standby)?,
    };
    let Some(lock) = lock else { return Ok(()) };
    let boot = prepare(&config, file, filter, started, lock.as_raw_fd(), before)?;
    signals::let_come().map_err(|e| format!("signals: {e}"))?;
    let denied = Reactor::new(boot).run().map_err(|e| format!("the event loop failed: {e}"))?;
    // The last container is gone; so is the last reason for the cgroup above them.
    if let Some(cgroups) = Hierarchies::of_this_host() {
        cgroups.parent(&Layout::of(config.data_dir)).remove_if_empty();
    }
    denied.map_or(Ok(()), Err)
}

/// Large buffers come and go with large answers. Without this each would be new memory from the kernel, which clears it
/// page by page: more work than all the rest of the answer.
fn keep_freed_memory() {
    // SAFETY: takes plain numbers, and glibc holds its own lock meanwhile, whatever other threads allocate. Another libc
    // may not know them, and goes on as it is.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MALLOC_MMAP_MIN as i32);
        libc::mallopt(libc::M_TRIM_THRESHOLD, MALLOC_KEPT_MAX as i32);
    }
}

fn prepare(
    config: &Config,
    file: Option<PathBuf>,
    filter: &'static LogFilter,
    started: Started,
    lock: RawFd,
    before: Option<State>,
) -> Result<Boot, String> {
    let (carried_core, mut shell) = before.map(|before| (before.core, before.shell)).unzip();
    let failed = |what: &str| {
        let what = what.to_string();
        move |e: io::Error| format!("{what}: {e}")
    };
    keep_freed_memory();
    let descriptors = Descriptors::all_there_are();
    nix::sys::prctl::set_child_subreaper(true).map_err(|e| format!("cannot become a subreaper: {e}"))?;
    let poll = Poll::new().map_err(failed("epoll"))?;
    let mut signals = Signals::install().map_err(failed("signals"))?;
    poll.registry()
        .register(signals.socket(), EventSource::Signals.token(), Interest::READABLE)
        .map_err(failed("signals"))?;
    let alarm = Alarm::new(poll.registry()).map_err(failed("the timer"))?;
    let listeners = match &shell {
        Some(shell) => adopt_listeners(&shell.listeners, config, &poll)?,
        None => listen(config, &poll)?,
    };

    let layout = Layout::of(config.data_dir.clone());
    let (runtimes, missing) = find_runtimes(config);
    let networking = Networking {
        default: config.default_network.clone(),
        conf_dirs: config.network_dirs.clone(),
        allow_private: config.allow_private.clone(),
        host_allowed: config.allow_host_network,
    };
    let cluster = match (&config.database_url, &mut shell) {
        (Some(_), _) => None,
        (None, Some(shell)) => Some(shell.database.take_cluster()?),
        (None, None) => Some(Cluster::new(premises::prepare(&config.data_dir)?)),
    };
    let conninfo = match (&config.database_url, &cluster) {
        (Some(url), _) => url.reveal().to_string(),
        (None, Some(cluster)) => cluster.conninfo(),
        (None, None) => unreachable!("no URL, so there is a cluster"),
    };
    let waker = Arc::new(Waker::new(poll.registry(), EventSource::Threads.token()).map_err(failed("waker"))?);
    let wake = || {
        let waker = Arc::clone(&waker);
        move || _ = waker.wake()
    };
    let (pending, decisions) = Pending::spawn(&config.data_dir, wake()).map_err(failed("the thread for decisions"))?;
    let seed = random().map_err(failed("/dev/urandom"))?;
    let settings = Settings {
        default_provider: config.default_provider.clone(),
        providers: vec![config.default_provider.clone()],
        usable: Vec::new(),
        default_warning: None,
        polling: Vec::new(),
        idle: config.idle,
        unusable: missing.clone(),
        default_network: config.default_network.clone(),
        allow_host_network: config.allow_host_network,
        hosting: config.hosting_enabled,
        separator: config.tool_separator.clone(),
        record_arguments: config.record_arguments,
        records_keep_days: config.records_keep_days,
        memory_budget: config.memory_budget,
        admin_token_hash: admin_token(&config.data_dir, &seed)?,
        decisions,
        seed: random().map_err(failed("/dev/urandom"))?,
        ceilings: config.ceilings.clone(),
        resource: config.auth_server.as_ref().map(|server| Arc::clone(&server.oauth.resource)),
    };
    let core = carried_core.unwrap_or_else(|| Core::new(settings));
    let home = Home::of(&config.data_dir).map_err(failed("the id of the data directory"))?;
    let wanted = Wanted { conninfo, key: config.secret_key.clone(), home, standby: config.standby };
    let store = Store::spawn(wanted, wake()).map_err(|e| e.to_string())?;
    let logs = LogFiles::spawn(&config.data_dir, wake()).map_err(failed("the directory for servers' logs"))?;
    let audit = Audit::spawn(&config.data_dir, config.audit, wake()).map_err(failed("the audit log"))?;
    let disk_reserve_bytes = match config.disk_reserve_bytes {
        Some(bytes) => bytes,
        None => default_reserve_bytes(&config.data_dir).map_err(failed("the size of data_dir's disk"))?,
    };
    let meter =
        Meter::spawn(config.data_dir.clone(), disk_reserve_bytes, wake()).map_err(failed("the meter's thread"))?;
    let reload = Reload::new(config.clone(), filter);
    let registries = config.registries()?;
    let places = WhereToLook {
        layout: layout.clone(),
        registries: registries.clone(),
        networking: networking.clone(),
        config_file: file,
    };
    let lookups = Lookups::spawn(places, wake()).map_err(failed("the look-up thread"))?;

    let proxies = Proxies::of(|name| std::env::var(name).ok())?;
    let auth_server = match &config.auth_server {
        None => None,
        Some(configured) => {
            let OAuth { issuer, .. } = &configured.oauth;
            let server = Server::new(issuer, configured.jwks_uri.clone(), proxies.clone())?;
            let spawned = AuthServer::spawn(configured.oauth.clone(), server, wake());
            Some(spawned.map_err(failed("the thread for the authorization server"))?)
        }
    };
    let outgoing = Outgoing::new(proxies, system_lookup(), Arc::new(wake()));
    let links = Links::new(outgoing, random().map_err(failed("/dev/urandom"))?);

    let pulls = PullChildren::new(layout.clone(), registries);
    let boot_id = match &shell {
        Some(shell) => shell.boot_id.clone(),
        None => format!("{:08x}", u32::from_le_bytes(seed[..4].try_into().expect("4 of 32"))),
    };
    let settings = LaunchSettings {
        layout: layout.clone(),
        networking,
        host_paths: config.host_paths.clone(),
        disk_reserve_bytes,
        boot_id: boot_id.clone(),
    };
    let instances = Instances::new(settings, meter, descriptors);
    let mut children = Children::default();
    let probes = match &shell {
        Some(_) => Probes::told(&layout),
        None => Probes::begin(&layout, runtimes, missing, &mut children)
            .map_err(failed("the sweep of leftovers cannot be started"))?,
    };
    let clock = shell.as_ref().map_or_else(Clock::start, |shell| Clock::go_on(shell.mono_ms, shell.kernels_clock));
    Ok(Boot {
        started,
        lock,
        boot_id,
        before: shell,
        poll,
        clock,
        core,
        signals,
        alarm,
        listeners,
        clients: Clients::new(
            descriptors,
            audit,
            Rates::new(config.rate_limit),
            auth_server,
            config.trusted_proxies.clone(),
        ),
        lookups,
        shares: shares_of_this_host(descriptors, config),
        probes,
        children,
        instances,
        links,
        pulls,
        database: Database::new(store, cluster),
        pending,
        logs,
        notify: Notify::from_environment(),
        reload,
    })
}

// --- the data directory -------------------------------------------------------------------------------------------

/// Traversable, because PostgreSQL runs as another user below it; everything in it is closed by itself.
fn make_data_dir(dir: &Path) -> Result<(), String> {
    let failed = |e: io::Error| format!("data_dir {}: {e}", dir.display());
    DirBuilder::new().recursive(true).mode(0o711).create(dir).map_err(failed)?;
    fs::create_dir_all(dir.join("run")).map_err(failed)?;
    fs::set_permissions(dir.join("run"), fs::Permissions::from_mode(0o700)).map_err(failed)
}

/// None: asked to stop while it was standing by.
fn lock(dir: &Path, standby: bool) -> Result<Option<Flock<File>>, String> {
    let path = dir.join(LOCK_FILE);
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
    let mut wanted = file.map_err(|e| format!("{}: {e}", path.display()))?;
    let until = Instant::now() + LOCK_WAIT;
    while Instant::now() < until {
        wanted = match Flock::lock(wanted, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(Some(lock)),
            // Of a daemon that was killed, a child on its way to its exec may have the lock for a moment longer.
            Err((file, _)) => file,
        };
        std::thread::sleep(LOCK_WAIT / 50);
    }
    match standby {
        true => stand_by(dir, wanted),
        false => Err(format!(
            "another stdiod runs on {}; stop it, give this one another data_dir, or set `standby = true` to have this one \
             wait and take over",
            dir.display()
        )),
    }
}

/// Waits for the daemon that has this very data directory. There is no loop yet, and nothing to do but this.
fn stand_by(dir: &Path, mut wanted: File) -> Result<Option<Flock<File>>, String> {
    let status = format!("standing by: another stdiod runs on {}", dir.display());
    log::info!("{status}");
    let failed = |e: io::Error| format!("signals: {e}");
    let signals = StopSignals::install().map_err(failed)?;
    signals::let_come().map_err(failed)?;
    let (mut clock, mut notify) = (Clock::start(), Notify::from_environment());
    notify.ready(&status, clock.now().mono_ms);
    while !signals.came() {
        wanted = match Flock::lock(wanted, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => {
                log::info!("the other stdiod is gone; this one takes over");
                signals::hold_back().map_err(failed)?;
                return Ok(Some(lock));
            }
            Err((file, _)) => file,
        };
        notify.tick(|| status.clone(), clock.now().mono_ms);
        std::thread::sleep(STORE_LOCK_EVERY);
    }
    Ok(None)
}

/// Reads the admin token, or makes it at the first start. The store has only its hash.
fn admin_token(dir: &Path, seed: &[u8; 32]) -> Result<[u8; 32], String> {
    let path = dir.join("admin.token");
    let failed = |e: io::Error| format!("{}: {e}", path.display());
    let token = match fs::read_to_string(&path) {
        Ok(text) if text.trim().len() >= 32 => text.trim().to_string(),
        Ok(_) => return Err(format!("{} holds no token; remove it to get a new one", path.display())),
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let token = crate::core::entropy::Entropy::new(*seed).token();
            let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&path).map_err(failed)?;
            writeln!(file, "{token}").and_then(|()| file.sync_all()).map_err(failed)?;
            log::info!("the admin token is in {}", path.display());
            token
        }
        Err(e) => return Err(failed(e)),
    };
    Ok(Sha256::digest(token.as_bytes()).into())
}

/// As `limits.rs` plans it, and less where the kernel lets this process have fewer descriptors.
fn shares_of_this_host(descriptors: Descriptors, config: &Config) -> Shares {
    let mut shares = Shares::default();
    shares.narrow(Resource::Connections, descriptors.for_clients());
    if let Some(bytes) = config.memory_budget {
        shares.plan(bytes);
    }
    shares.speak_for_many(config.trusted_proxies.0.clone());
    if let Some(most) = config.peer_connections_max {
        shares.cap_address(Resource::Connections, most);
    }
    // Two descriptors each, and no more than half of all.
    shares.narrow(Resource::Relays, descriptors.for_clients() / 4);
    shares
}

// --- what the host can do -------------------------------------------------------------------------------------------

/// The runtimes that are installed, and why others are not; whether they work is found out by `Probes`.
fn find_runtimes(config: &Config) -> (BTreeMap<String, Runtime>, Vec<(String, String)>) {
    let (mut found, mut missing) = (BTreeMap::new(), Vec::new());
    for (name, provider) in &config.providers {
        match probe::find(name, provider) {
            Ok(runtime) => _ = found.insert(name.clone(), runtime),
            Err(why) => {
                log::warn!("provider {name} is not usable: {why}");
                missing.push((name.clone(), why));
            }
        }
    }
    (found, missing)
}

// --- listeners ----------------------------------------------------------------------------------------------------

pub struct Listener {
    kind: Kind,
    address: String,
    /// What is known of whoever reaches it.
    admits: Peer,
    /// Of a unix socket.
    file: Option<SocketFile>,
}

/// The name of a unix socket in the file system, which goes with this. Apart from the socket: that is closed in the middle of
/// the loop, and a disk is touched only after it.
pub struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        _ = fs::remove_file(&self.0);
    }
}

/// A client that has just connected, and whose it is before it says more.
pub struct NewConnection {
    pub socket: Socket,
    pub peer: Peer,
    pub owner: Owner,
}

enum Kind {
    Tcp(TcpListener),
    Tls(TcpListener, Arc<TlsKeys>),
    Unix(UnixListener),
}

/// What is configured, and the control socket, which nothing opens to others.
fn listen(config: &Config, poll: &Poll) -> Result<Vec<Listener>, String> {
    let group = config.socket_group.as_deref().map(unix_socket::group).transpose();
    let group = group.map_err(|why| format!("socket_group: {why}"))?;
    let control = (Listen::Unix(config.control_socket()), Peer::Token, None);
    let metrics = config.metrics_listen.clone().map(|wanted| (wanted, Peer::Scraper, group));
    let configured = config.listen.iter().map(|wanted| (wanted.clone(), admitted(config.auth, wanted), group));
    let keys = config.tls.as_ref().map(TlsKeys::read).transpose()?;
    let mut listeners = Vec::new();
    for (index, (wanted, admits, group)) in configured.chain(metrics).chain([control]).enumerate() {
        let mut listener = Listener::bind(&wanted, admits, group, keys.as_ref()).map_err(|e| {
            format!("cannot listen on {wanted}: {e}; another daemon may be there, or choose another `listen`")
        })?;
        let token = EventSource::Listener(index).token();
        let registered = match &mut listener.kind {
            Kind::Tcp(socket) | Kind::Tls(socket, _) => poll.registry().register(socket, token, Interest::READABLE),
            Kind::Unix(socket) => poll.registry().register(socket, token, Interest::READABLE),
        };
        registered.map_err(|e| format!("cannot listen on {wanted}: {e}"))?;
        listeners.push(listener);
    }
    Ok(listeners)
}

fn admitted(auth: Auth, wanted: &Listen) -> Peer {
    match (auth, wanted) {
        (Auth::Tokens, _) => Peer::Token,
        (Auth::Off, Listen::Tls(_)) => Peer::OpenTls,
        (Auth::Off, Listen::Tcp(_) | Listen::Unix(_)) => Peer::Open,
    }
}

impl Listener {
    /// `group`: who else may open it, if it is a unix socket.
    fn bind(wanted: &Listen, admits: Peer, group: Option<Gid>, keys: Option<&Arc<TlsKeys>>) -> io::Result<Listener> {
        match wanted {
            Listen::Tcp(address) => {
                let socket = TcpListener::bind(*address)?;
                let address = format!("http://{}", socket.local_addr()?);
                Ok(Listener { kind: Kind::Tcp(socket), address, admits, file: None })
            }
            Listen::Tls(address) => {
                let socket = TcpListener::bind(*address)?;
                let address = format!("https://{}", socket.local_addr()?);
                let keys = keys.expect("a configuration with such a listener has a certificate");
                Ok(Listener { kind: Kind::Tls(socket, Arc::clone(keys)), address, admits, file: None })
            }
            Listen::Unix(path) => {
                let socket = unix_socket::bind(path, group)?;
                let file = Some(SocketFile(path.clone()));
                Ok(Listener { kind: Kind::Unix(socket), address: wanted.to_string(), admits, file })
            }
        }
    }

    /// Takes no more connections. What is left of it on disk is the caller's to drop.
    pub fn close(self) -> Option<SocketFile> {
        self.file
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    /// For those who connect from here on.
    pub fn speak_with(&mut self, fresh: &Arc<TlsKeys>) {
        match &mut self.kind {
            Kind::Tls(_, keys) => *keys = Arc::clone(fresh),
            Kind::Tcp(_) | Kind::Unix(_) => {}
        }
    }

    /// The next client; none if nobody waits.
    pub fn accept(&self) -> io::Result<Option<NewConnection>> {
        loop {
            let accepted = match &self.kind {
                Kind::Tcp(listener) => listener.accept().map(|(socket, from)| {
                    // An answer is one write; there is nothing to wait for.
                    _ = socket.set_nodelay(true);
                    (Socket::Tcp(socket), Owner::at(from.ip()), self.admits)
                }),
                Kind::Tls(listener, keys) => listener.accept().and_then(|(socket, from)| {
                    _ = socket.set_nodelay(true);
                    Ok((Socket::Tls(Box::new(keys.accept(socket)?)), Owner::at(from.ip()), self.admits))
                }),
                Kind::Unix(listener) => listener.accept().map(|(socket, _)| {
                    let uid = unix_socket::peer_uid(&socket);
                    let known = uid.is_some_and(unix_socket::is_root_or_us);
                    let peer = match self.admits {
                        Peer::Open | Peer::OpenTls | Peer::Trusted => Peer::Trusted,
                        Peer::Token if known => Peer::Trusted,
                        Peer::Token | Peer::Scraper => self.admits,
                    };
                    // Whom the kernel cannot name is nobody in particular.
                    (Socket::Unix(socket), Owner::User(uid.unwrap_or(u32::MAX)), peer)
                }),
            };
            match accepted {
                Ok((socket, _, peer @ (Peer::Open | Peer::OpenTls | Peer::Trusted))) => {
                    let owner = Owner::Principal(Principal::anonymous().name);
                    return Ok(Some(NewConnection { socket, peer, owner }));
                }
                Ok((socket, owner, peer @ (Peer::Token | Peer::Scraper))) => {
                    return Ok(Some(NewConnection { socket, peer, owner }));
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                Err(e) => return Err(e),
            }
        }
    }
}
