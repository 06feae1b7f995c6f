//! The network of one instance: a namespace of its own, connected by CNI plugins, inside a `fence`. Says what goes
//! through the fence: what the definition and the operator ask for, with every name resolved and judged. Before anything
//! is made, a record of it is written into the bundle; `take_down` goes by that record alone, so it works for a launch
//! that was killed half-way. Leases and chains all carry the container's id.

use crate::limits::{CNI_ANSWER_MAX, CNI_CONF_MAX, EGRESS_ADDRESSES_MAX};
use crate::model::definition::{Definition, Egress, EgressTarget};
use crate::model::instance::{LaunchFault, LaunchFaultKind};
use crate::model::ranges::{self, Kind, Net};
use crate::sandbox::container::cni;
use crate::sandbox::container::fence::{self, Fence, Opening, Reach, feed};
use crate::sandbox::container::plan::{LaunchPlan, Layout, Networking, RuntimeKind, fault, is_container_id};
use crate::sandbox::container::rootfs::PrivateMounts;
use crate::sandbox::container::within::remove_tree;
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// In the bundle.
const RECORD: &str = "network.json";
const INTERFACE: &str = "eth0";
/// Where plugins are installed.
pub const CNI_DIRS: [&str; 3] = ["/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"];

/// What a definition and the daemon's default come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A namespace with loopback and nothing else.
    None,
    /// No namespace at all.
    Host,
    /// Its ports can be reached from this host; it can reach nobody.
    Private,
    Named(String),
}

pub fn wanted(def: &Definition, networking: &Networking) -> Wanted {
    let name = def.network.as_deref().or(networking.default.as_deref());
    match name {
        Some("host") => Wanted::Host,
        None | Some("none") if def.ports.is_empty() => Wanted::None,
        None | Some("none") => Wanted::Private,
        Some(name) => Wanted::Named(name.to_owned()),
    }
}

/// A network that is up.
pub struct Joined {
    /// The namespace, as a file in the bundle that only this mount namespace has.
    pub namespace: PathBuf,
    pub address: IpAddr,
    /// `nameserver` lines and the like.
    pub resolv_conf: String,
    /// Lines for `/etc/hosts`.
    pub hosts: String,
}

/// What was made for an instance; enough to undo it.
#[derive(Serialize, Deserialize)]
struct Record {
    /// The network's plugins as they were called, in order.
    plugins: Vec<Value>,
    plugin_dir: PathBuf,
    /// The last result, once there is one.
    result: Option<Value>,
    /// What was put around it, once that is known.
    #[serde(default)]
    fence: Option<Fence>,
}

// --- up -------------------------------------------------------------------------------------------------------------

pub fn join(mounts: &PrivateMounts, plan: &LaunchPlan, bundle: &Path, name: &str) -> Result<Joined, LaunchFault> {
    let plugin_dir = plugin_dir()?;
    let Configured { plugins, masquerade, built_in } = configuration(plan, name)?;
    let namespace = make_namespace(mounts, bundle, plan.runtime.kind)?;
    let mut record = Record { plugins, plugin_dir, result: None, fence: None };
    save(bundle, &record)?;
    let call = Call { id: &plan.container_id, namespace: &namespace, plugin_dir: &record.plugin_dir };
    for plugin in &record.plugins {
        record.result = Some(call.run("ADD", plugin, record.result.as_ref())?.unwrap_or(Value::Null));
    }
    save(bundle, &record)?;
    let result = record.result.clone().unwrap_or(Value::Null);
    let at = format!("network {name}");
    let cable = cni::cable(&result, INTERFACE).map_err(|why| net_fault(&at, why))?;
    let def = &plan.definition;
    let allowed = plan.networking.allowed(name);
    let rules = match (def.egress.as_deref(), name) {
        (Some(egress), _) => Some(resolve(egress, allowed)?),
        (None, cni::PRIVATE) => Some(Vec::new()),
        (None, _) => None,
    };
    let resolv_conf = match name {
        cni::PRIVATE => String::new(),
        _ => cni::resolv_conf(&result).unwrap_or_else(hosts_own_resolvers),
    };
    let mut resolvers = cni::resolvers(&resolv_conf);
    if let Some(egress) = &def.egress {
        let listed = |resolver: &IpAddr| {
            let Net { address, prefix } = Net::of(*resolver);
            egress.contains(&Egress { target: EgressTarget::Net { address, prefix }, port: Some(53) })
        };
        resolvers.retain(listed);
    }
    let mut hosts = format!("{}\t{}\n", cable.addresses[0], def.name);
    for (host, openings) in rules.iter().flatten().filter_map(|rule| Some((rule.host.as_ref()?, &rule.openings))) {
        openings.iter().for_each(|opening| hosts.push_str(&format!("{}\t{host}\n", opening.net.address)));
    }
    let openings = rules.map(|rules| rules.into_iter().flat_map(|rule| rule.openings).collect::<Vec<_>>());
    // Whoever may leave by a list needs a way back, also from the network that has none.
    let masquerade = masquerade || name == cni::PRIVATE && openings.as_ref().is_some_and(|list| !list.is_empty());
    let reach = match openings {
        Some(openings) => Reach::Listed(openings),
        None => Reach::Public { allowed: allowed.to_vec() },
    };
    let address = cable.addresses[0];
    let fence = Fence { cable: cable.host_end, bridged: !built_in, addresses: cable.addresses, resolvers };
    record.fence = Some(fence.clone());
    save(bundle, &record)?;
    fence::put_up(&plan.layout, &plan.container_id, &fence, &reach, masquerade)
        .map_err(|e| net_fault("nftables", e))?;
    Ok(Joined { namespace, address, resolv_conf, hosts })
}

fn plugin_dir() -> Result<PathBuf, LaunchFault> {
    let found = CNI_DIRS.iter().map(PathBuf::from).find(|dir| dir.join("host-local").exists());
    found.ok_or_else(|| net_fault("network", "no CNI plugins are installed (containernetworking-plugins)"))
}

struct Configured {
    /// Ready to be called.
    plugins: Vec<Value>,
    /// Do its packets leave under this host's address? That is done by a rule of our own: a plugin's would stay behind
    /// when the namespace is gone before it.
    masquerade: bool,
    /// Then it is a cable to this host, and no port of a bridge.
    built_in: bool,
}

fn configuration(plan: &LaunchPlan, name: &str) -> Result<Configured, LaunchFault> {
    let found = find_configuration(&plan.networking, name).map_err(|e| net_fault(&format!("network {name}"), e))?;
    let leases = plan.layout.run_dir().join("leases");
    let built_in = found.is_none();
    let conf = match (found, name) {
        (Some(conf), _) => conf,
        (None, cni::PRIVATE | cni::BRIDGE) => cni::built_in(name, &plan.layout.mark, &leases),
        (None, _) => {
            let dirs: Vec<String> = plan.networking.conf_dirs.iter().map(|dir| dir.display().to_string()).collect();
            let why = format!("no CNI configuration in {} has this name", dirs.join(" or "));
            return Err(net_fault(&format!("network {name}"), why));
        }
    };
    let (plugins, masquerade) = cni::plugins(conf).map_err(|why| net_fault(&format!("network {name}"), why))?;
    Ok(Configured { plugins, masquerade, built_in })
}

/// One that is there without a configuration.
pub fn is_built_in(name: &str) -> bool {
    matches!(name, "none" | "host" | cni::BRIDGE)
}

/// Is there such a network? For the registration: a look at a few small files.
pub fn exists(networking: &Networking, name: &str) -> bool {
    is_built_in(name) || find_configuration(networking, name).is_ok_and(|f| f.is_some())
}

fn find_configuration(networking: &Networking, name: &str) -> io::Result<Option<Value>> {
    for dir in &networking.conf_dirs {
        let list = match fs::read_dir(dir) {
            Ok(list) => list,
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(e),
        };
        let mut files: Vec<PathBuf> = list.filter_map(|entry| Some(entry.ok()?.path())).collect();
        files.retain(|f| f.extension().is_some_and(|e| ["conf", "conflist", "json"].iter().any(|known| e == *known)));
        files.sort();
        for file in files {
            let mut text = Vec::new();
            File::open(&file)?.take(CNI_CONF_MAX).read_to_end(&mut text)?;
            // A file that is broken is somebody else's business until it is asked for by a name it does not have.
            let Ok(conf) = serde_json::from_slice::<Value>(&text) else { continue };
            if conf["name"] == name {
                return Ok(Some(conf));
            }
        }
    }
    Ok(None)
}

/// A new namespace with its loopback up. It is held by a mount in this mount namespace, and so by nobody after us but
/// the container.
fn make_namespace(_: &PrivateMounts, bundle: &Path, kind: RuntimeKind) -> Result<PathBuf, LaunchFault> {
    let point = bundle.join("netns");
    File::create_new(&point).map_err(|e| net_fault("making the network namespace", e))?;
    let held = point.clone();
    // unshare() moves the calling thread only: this process stays where it is.
    let made = std::thread::spawn(move || -> io::Result<()> {
        unshare(CloneFlags::CLONE_NEWNET)?;
        loopback_up()?;
        // Without capabilities nobody could have port 80, and in here there is nobody to take it from.
        fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0")?;
        match kind {
            RuntimeKind::Native | RuntimeKind::Plain => {}
            // runsc refuses the host's own namespace, and takes any for it that has these settings; newer kernels have
            // them in all. The directory is another one in each namespace, so it must be covered from inside.
            RuntimeKind::Gvisor => {
                let settings = Some("mode=755,size=4k");
                mount(Some("tmpfs"), "/proc/sys/net/core", Some("tmpfs"), MsFlags::MS_RDONLY, settings)?;
            }
        }
        let own = Some("/proc/thread-self/ns/net");
        Ok(mount(own, &held, None::<&str>, MsFlags::MS_BIND, None::<&str>)?)
    });
    let made = made.join().unwrap_or_else(|_| Err(io::Error::other("the thread for it died")));
    made.map(|()| point).map_err(|e| net_fault("making the network namespace", e))
}

fn loopback_up() -> io::Result<()> {
    let socket = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    // SAFETY: plain numbers and bytes, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
    // SAFETY: the argument is a live ifreq.
    let done = unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&socket), libc::SIOCSIFFLAGS, &raw const request) };
    nix::errno::Errno::result(done).map(drop).map_err(Into::into)
}

fn save(bundle: &Path, record: &Record) -> Result<(), LaunchFault> {
    let text = serde_json::to_vec(record).expect("a record is plain data");
    let (draft, path) = (bundle.join("network.draft"), bundle.join(RECORD));
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&draft)
        .map_err(|e| net_fault("recording the network", e))?;
    file.write_all(&text).and_then(|()| fs::rename(&draft, &path)).map_err(|e| net_fault("recording the network", e))
}

// --- the plugins ----------------------------------------------------------------------------------------------------

struct Call<'a> {
    id: &'a str,
    namespace: &'a Path,
    plugin_dir: &'a Path,
}

impl Call<'_> {
    /// One plugin, one command; what it says on stdout.
    fn run(&self, command: &str, plugin: &Value, previous: Option<&Value>) -> Result<Option<Value>, LaunchFault> {
        let kind = plugin["type"].as_str().unwrap_or_default();
        let doing = format!("CNI plugin {kind}");
        let mut conf = plugin.clone();
        if let (Some(previous), Some(conf)) = (previous, conf.as_object_mut()) {
            conf.insert("prevResult".into(), previous.clone());
        }
        let mut program = Command::new(self.plugin_dir.join(kind));
        program.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("CNI_COMMAND", command);
        program.env("CNI_CONTAINERID", self.id).env("CNI_NETNS", self.namespace).env("CNI_IFNAME", INTERFACE);
        program.env("CNI_PATH", self.plugin_dir).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let output = feed(program, conf.to_string().as_bytes(), CNI_ANSWER_MAX).map_err(|e| net_fault(&doing, e))?;
        let said: Option<Value> = serde_json::from_slice(&output.said).ok();
        if output.success {
            return Ok(said);
        }
        let message = said.as_ref().and_then(|said| said["msg"].as_str()).unwrap_or("it failed without a word");
        Err(net_fault(&doing, message))
    }
}

// --- what it may reach ----------------------------------------------------------------------------------------------

/// One entry of an egress list, with its name resolved.
struct Rule {
    host: Option<String>,
    openings: Vec<Opening>,
}

/// Names become addresses here, once per start, and go into `/etc/hosts`: the sandbox needs no DNS, and nobody's DNS
/// decides later what it may reach. Nor now: an answer that leads into this host, or where nobody has allowed it to
/// lead, is refused. An address that the list itself gives is its author's own wish.
fn resolve(egress: &[Egress], allowed: &[Net]) -> Result<Vec<Rule>, LaunchFault> {
    let own = own_addresses().map_err(|e| net_fault("egress", e))?;
    let mut rules = Vec::new();
    for Egress { target, port } in egress {
        let rule = match target {
            EgressTarget::Net { address, prefix } => {
                let net = Net { address: *address, prefix: *prefix };
                if net == Net::of(*address) && own.contains(address) {
                    return Err(net_fault(&format!("egress: {address}"), "is this host, which no list opens"));
                }
                Rule { host: None, openings: vec![Opening { net, port: *port, private: net.kind() == Kind::Private }] }
            }
            EgressTarget::Host(host) => {
                let found = (host.as_str(), port.unwrap_or(0)).to_socket_addrs();
                let found = found.map_err(|e| net_fault(&format!("egress: {host}"), e))?;
                // A v4 address that is dressed as v6 is judged, and opened, as what it is.
                let mut addresses: Vec<IpAddr> = found.map(|at: SocketAddr| at.ip().to_canonical()).collect();
                addresses.sort();
                addresses.dedup();
                addresses.truncate(EGRESS_ADDRESSES_MAX);
                let opening = |address: IpAddr| -> Result<Opening, LaunchFault> {
                    let private = judge(address, &own, allowed).map_err(|why| {
                        net_fault(&format!("egress: {host}"), format!("its name server says {address}, which {why}"))
                    })?;
                    Ok(Opening { net: Net::of(address), port: *port, private })
                };
                let openings = addresses.into_iter().map(opening).collect::<Result<_, _>>()?;
                Rule { host: Some(host.clone()), openings }
            }
        };
        rules.push(rule);
    }
    Ok(rules)
}

/// May a name lead here, and is it a private network? Or why not.
fn judge(address: IpAddr, own: &[IpAddr], allowed: &[Net]) -> Result<bool, &'static str> {
    match ranges::kind_of(address) {
        Kind::Never => Err("is loopback, link-local, metadata or multicast, and never opened"),
        Kind::Public | Kind::Private if own.contains(&address) => Err("is this host, which no list opens"),
        Kind::Public => Ok(false),
        Kind::Private if allowed.iter().any(|net| net.contains(address)) => Ok(true),
        Kind::Private => Err("is private: list the address itself, or have it in the network's `allow_private`"),
    }
}

fn own_addresses() -> io::Result<Vec<IpAddr>> {
    let address = |interface: InterfaceAddress| {
        let storage = interface.address?;
        let v4 = storage.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| storage.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    };
    Ok(getifaddrs()?.filter_map(address).collect())
}

// --- down -----------------------------------------------------------------------------------------------------------

/// Undoes what the record in the bundle says. Without one there is nothing to undo. The cable itself goes with the
/// namespace; leases and rules do not. Only when nothing runs in it any more: it is open from here on.
pub fn take_down(layout: &Layout, container_id: &str) -> io::Result<()> {
    let Some(record) = load(layout, container_id)? else { return Ok(()) };
    // Before its address is free: the next one to get it has a fence of its own in the same place.
    if let Some(fence) = &record.fence {
        fence::take_down(layout, container_id, fence)?;
    }
    give_back(container_id, &record)
}

/// All of an earlier daemon at once: every fence, then what each record says.
pub fn sweep(layout: &Layout) -> io::Result<()> {
    let mut done = fence::sweep(layout);
    for bundle in fs::read_dir(layout.bundles_dir()).into_iter().flatten().flatten() {
        if let Some(id) = bundle.file_name().to_str().filter(|id| is_container_id(id)) {
            let given = load(layout, id).and_then(|record| record.map_or(Ok(()), |record| give_back(id, &record)));
            done = given.and(done);
        }
    }
    done
}

fn load(layout: &Layout, container_id: &str) -> io::Result<Option<Record>> {
    match fs::read(layout.bundle(container_id).join(RECORD)) {
        Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// What the plugins hold for it.
fn give_back(container_id: &str, record: &Record) -> io::Result<()> {
    let call = Call { id: container_id, namespace: Path::new(""), plugin_dir: &record.plugin_dir };
    let mut done = Ok(());
    for plugin in record.plugins.iter().rev() {
        if let Err(why) = call.run("DEL", plugin, record.result.as_ref()) {
            done = Err(io::Error::other(why.message));
        }
    }
    done
}

/// Of a bundle only what `take_down` needs, so that the sweep of the next boot can try it again.
pub fn keep_record(layout: &Layout, container_id: &str) -> io::Result<()> {
    for entry in fs::read_dir(layout.bundle(container_id))? {
        let entry = entry?;
        if entry.file_name() != RECORD {
            remove_tree(&entry.path())?;
        }
    }
    Ok(())
}

// --- names ----------------------------------------------------------------------------------------------------------

/// The host's resolvers, but for those on its loopback, which no sandbox can reach.
fn hosts_own_resolvers() -> String {
    // systemd-resolved shows a stub on loopback to everybody, and the real ones here.
    let texts =
        ["/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"].map(|f| fs::read_to_string(f).unwrap_or_default());
    texts.iter().map(|text| cni::reachable_resolvers(text)).find(|text| text.contains("nameserver")).unwrap_or_default()
}

fn net_fault(doing: &str, cause: impl std::fmt::Display) -> LaunchFault {
    fault(LaunchFaultKind::Network, doing, cause)
}
