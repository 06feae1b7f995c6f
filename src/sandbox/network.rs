//! The network of one instance: a namespace of its own, connected by CNI plugins, fenced by nftables on the host's side
//! of the cable. Before anything is made, a record of it is written into the bundle; `take_down` goes by that record
//! alone, so it works for a launch that was killed half-way. Names, leases and tables all carry the container's id.
//!
//! The fence is on the host's side because gVisor writes its packets past the namespace's own netfilter.

use crate::core::contract::{LaunchFault, LaunchFaultKind};
use crate::core::definition::{Definition, Egress, EgressTarget};
use crate::limits::{CNI_ANSWER_MAX, CNI_CONF_MAX, EGRESS_ADDRESSES_MAX};
use crate::sandbox::cni::{self, Cable};
use crate::sandbox::plan::{LaunchPlan, Layout, Networking, RuntimeKind, fault};
use crate::sandbox::rootfs::PrivateMounts;
use crate::sandbox::within::remove_tree;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
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
}

// --- up -------------------------------------------------------------------------------------------------------------

pub fn join(mounts: &PrivateMounts, plan: &LaunchPlan, bundle: &Path, name: &str) -> Result<Joined, LaunchFault> {
    let plugin_dir = plugin_dir()?;
    let (plugins, masquerade) = configuration(plan, name)?;
    let namespace = make_namespace(mounts, bundle, plan.runtime.kind)?;
    let mut record = Record { plugins, plugin_dir, result: None };
    save(bundle, &record)?;
    let call = Call { id: &plan.container_id, namespace: &namespace, plugin_dir: &record.plugin_dir };
    for plugin in &record.plugins {
        record.result = Some(call.run("ADD", plugin, record.result.as_ref())?.unwrap_or(Value::Null));
    }
    save(bundle, &record)?;
    let result = record.result.unwrap_or(Value::Null);
    let cable = cni::cable(&result, INTERFACE).map_err(|why| net_fault(&format!("network {name}"), why))?;
    let def = &plan.definition;
    let rules = resolve(def.egress.as_deref())?;
    fence(&plan.layout, &plan.container_id, def, name, &cable, rules.as_deref(), masquerade)?;
    let mut hosts = format!("{}\t{}\n", cable.address, def.name);
    for (host, addresses) in rules.iter().flatten().filter_map(|rule| Some((rule.host.as_ref()?, &rule.addresses))) {
        addresses.iter().for_each(|(address, _)| hosts.push_str(&format!("{address}\t{host}\n")));
    }
    let resolv_conf = match name {
        cni::PRIVATE => String::new(),
        _ => cni::resolv_conf(&result).unwrap_or_else(hosts_own_resolvers),
    };
    Ok(Joined { namespace, address: cable.address, resolv_conf, hosts })
}

fn plugin_dir() -> Result<PathBuf, LaunchFault> {
    let found = CNI_DIRS.iter().map(PathBuf::from).find(|dir| dir.join("host-local").exists());
    found.ok_or_else(|| net_fault("network", "no CNI plugins are installed (containernetworking-plugins)"))
}

/// The plugins of a network, ready to be called, and whether its packets leave under this host's address. That is done
/// by a rule of our own: a plugin's would stay behind when the namespace is gone before it.
fn configuration(plan: &LaunchPlan, name: &str) -> Result<(Vec<Value>, bool), LaunchFault> {
    let found = find_configuration(&plan.networking, name).map_err(|e| net_fault(&format!("network {name}"), e))?;
    let leases = plan.layout.run_dir().join("leases");
    let conf = match (found, name) {
        (Some(conf), _) => conf,
        (None, cni::PRIVATE | cni::BRIDGE) => cni::built_in(name, &plan.layout.mark, &leases),
        (None, _) => {
            let dirs: Vec<String> = plan.networking.conf_dirs.iter().map(|dir| dir.display().to_string()).collect();
            let why = format!("no CNI configuration in {} has this name", dirs.join(" or "));
            return Err(net_fault(&format!("network {name}"), why));
        }
    };
    cni::plugins(conf).map_err(|why| net_fault(&format!("network {name}"), why))
}

/// Is there such a network? For the registration: a look at a few small files.
pub fn exists(networking: &Networking, name: &str) -> bool {
    matches!(name, "none" | "host" | cni::BRIDGE) || find_configuration(networking, name).is_ok_and(|f| f.is_some())
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
        let output = feed(program, conf.to_string().as_bytes()).map_err(|e| net_fault(&doing, e))?;
        let said: Option<Value> = serde_json::from_slice(&output.said).ok();
        if output.success {
            return Ok(said);
        }
        let message = said.as_ref().and_then(|said| said["msg"].as_str()).unwrap_or("it failed without a word");
        Err(net_fault(&doing, message))
    }
}

struct Fed {
    success: bool,
    said: Vec<u8>,
}

/// Runs a program that reads `input` to its end. It dies with us.
fn feed(mut program: Command, input: &[u8]) -> io::Result<Fed> {
    let parent = std::process::id().cast_signed();
    // SAFETY: prctl and getppid are async-signal-safe, and nothing is allocated.
    unsafe { program.pre_exec(move || crate::sandbox::launch::die_with_parent(parent)) };
    let mut child = program.spawn()?;
    let written = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(input));
    let mut said = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        stdout.take(CNI_ANSWER_MAX).read_to_end(&mut said)?;
    }
    let success = child.wait()?.success();
    // A program that ends early has a reason of its own, which is worth more than our EPIPE.
    if success {
        written?;
    }
    Ok(Fed { success, said })
}

// --- the fence ------------------------------------------------------------------------------------------------------

/// An entry of `egress` with its name resolved.
struct Rule {
    host: Option<String>,
    addresses: Vec<(IpAddr, u8)>,
    port: Option<u16>,
}

/// Names become addresses here, once per start, and go into `/etc/hosts`: the sandbox needs no DNS, and nobody's DNS
/// decides later what it may reach.
fn resolve(egress: Option<&[Egress]>) -> Result<Option<Vec<Rule>>, LaunchFault> {
    let Some(egress) = egress else { return Ok(None) };
    let mut rules = Vec::new();
    for Egress { target, port } in egress {
        let rule = match target {
            EgressTarget::Net { address, prefix } => {
                Rule { host: None, addresses: vec![(*address, *prefix)], port: *port }
            }
            EgressTarget::Host(host) => {
                let found = (host.as_str(), port.unwrap_or(0)).to_socket_addrs();
                let found = found.map_err(|e| net_fault(&format!("egress: {host}"), e))?;
                let mut addresses: Vec<IpAddr> = found.map(|at: SocketAddr| at.ip()).collect();
                addresses.sort();
                addresses.dedup();
                addresses.truncate(EGRESS_ADDRESSES_MAX);
                let whole = |address: IpAddr| (address, if address.is_ipv4() { 32 } else { 128 });
                Rule { host: Some(host.clone()), addresses: addresses.into_iter().map(whole).collect(), port: *port }
            }
        };
        rules.push(rule);
    }
    Ok(Some(rules))
}

fn table(layout: &Layout, container_id: &str) -> String {
    format!("stdiod_{}_{}", layout.mark, container_id.replace('-', "_"))
}

fn fence(
    layout: &Layout,
    container_id: &str,
    def: &Definition,
    network: &str,
    cable: &Cable,
    egress: Option<&[Rule]>,
    masquerade: bool,
) -> Result<(), LaunchFault> {
    let table = table(layout, container_id);
    let mut script = String::new();
    let nothing: &[Rule] = &[];
    let egress = if network == cni::PRIVATE { egress.or(Some(nothing)) } else { egress };
    if let Some(rules) = egress {
        let Some(host_end) = &cable.host_end else {
            return Err(net_fault("egress", format!("network {network} has no cable on this host to put a fence on")));
        };
        let address = cable.address;
        let family = if address.is_ipv4() { "ip" } else { "ip6" };
        script.push_str(&format!("table netdev {table} {{\n chain out {{\n"));
        script.push_str(&format!("  type filter hook ingress device \"{host_end}\" priority 0; policy drop;\n"));
        script.push_str("  ether type arp accept\n  icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept\n");
        script.push_str(&format!("  {family} saddr != {address} drop\n"));
        // Answers on a published port, and only answers: never the first packet of a connection.
        for port in def.ports.iter().map(|port| port.container) {
            script.push_str(&format!("  tcp sport {port} tcp flags & (syn | ack) != syn accept\n"));
        }
        for rule in rules {
            for (to, prefix) in &rule.addresses {
                let family = if to.is_ipv4() { "ip" } else { "ip6" };
                let port = rule.port.map(|port| format!("meta l4proto {{ tcp, udp }} th dport {port} "));
                script.push_str(&format!("  {family} daddr {to}/{prefix} {}accept\n", port.unwrap_or_default()));
            }
        }
        script.push_str(" }\n}\n");
    }
    if let (true, IpAddr::V4(address)) = (masquerade, cable.address) {
        script.push_str(&format!("table ip {table} {{\n chain out {{\n  type nat hook postrouting priority 100;\n"));
        script.push_str(&format!("  ip saddr {address} masquerade\n }}\n}}\n"));
    }
    if script.is_empty() { Ok(()) } else { nft(&script).map_err(|e| net_fault("nftables", e)) }
}

fn nft(script: &str) -> io::Result<()> {
    let mut program = Command::new("nft");
    program.args(["-f", "-"]).env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    program.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    match feed(program, script.as_bytes()) {
        Ok(Fed { success: true, .. }) => Ok(()),
        Ok(Fed { success: false, .. }) => Err(io::Error::other("nft refused the rules")),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            Err(io::Error::other("nft is not installed (package nftables), so nothing can be fenced"))
        }
        Err(e) => Err(e),
    }
}

// --- down -----------------------------------------------------------------------------------------------------------

/// Undoes what the record in the bundle says. Without one there is nothing to undo. The cable itself goes with the
/// namespace; leases and rules do not.
pub fn take_down(layout: &Layout, container_id: &str) -> io::Result<()> {
    let text = match fs::read(layout.bundle(container_id).join(RECORD)) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e),
    };
    let record: Record = serde_json::from_slice(&text)?;
    let call = Call { id: container_id, namespace: Path::new(""), plugin_dir: &record.plugin_dir };
    let mut done = Ok(());
    for plugin in record.plugins.iter().rev() {
        if let Err(why) = call.run("DEL", plugin, record.result.as_ref()) {
            done = Err(io::Error::other(why.message));
        }
    }
    let table = table(layout, container_id);
    // To add it first makes the removal one that cannot fail for want of it.
    let families =
        ["netdev", "ip"].map(|family| format!("add table {family} {table}\ndelete table {family} {table}\n"));
    match nft(&families.concat()) {
        Err(e) if Path::new("/usr/sbin/nft").exists() => done.and(Err(e)),
        Ok(()) | Err(_) => done,
    }
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
