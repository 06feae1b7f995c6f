//! The fence around container networks: what a server reaches and who reaches it, on this host and from a machine beside
//! it. Every test has a host and a neighbour of its own, which are network namespaces.

use crate::support::machines::{
    HOST, HOST_V6, METADATA, Machine, Neighbourhood, PRIVATE, PRIVATE_V6, PUBLIC, PUBLIC_V6, RESOLVER,
};
use crate::support::{self, BASE, Daemon, eventually, inside, on_both_providers};
use serde_json::{Value, json};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use stdiod::sandbox::container::plan::Layout;

on_both_providers!(
    a_server_on_the_bridge_reaches_the_world_and_none_of_its_neighbours,
    a_machine_that_routes_here_reaches_no_container,
    an_egress_name_that_leads_inside_is_refused,
    an_egress_list_of_addresses_opens_private_networks_but_never_this_host,
    allow_private_opens_exactly_what_it_names,
    a_bridge_of_the_operators_is_fenced_in_both_families,
);

/// Where every server of these tests listens.
const INSIDE: u16 = 8000;

fn a_server_on_the_bridge_reaches_the_world_and_none_of_its_neighbours(provider: &str) {
    let Neighbourhood { host, outside } = &Neighbourhood::new();
    let port = outside.greeter("[::]:0");
    let (v4, v6) = (host.greeter("0.0.0.0:0"), host.greeter("[::]:0"));
    let dns_tcp = outside.greeter(&format!("{RESOLVER}:53"));
    outside.echo(&format!("{RESOLVER}:53"));
    let site = Site::new(&[], "");
    host.inside(|| {
        let daemon = site.daemon();
        let two_port = free_port(host);
        let two = serve(
            &daemon,
            provider,
            "two",
            json!({"network": "bridge", "ports": [format!("0.0.0.0:{two_port}:{INSIDE}")]}),
        );
        serve(
            &daemon,
            provider,
            "one",
            json!({"network": "bridge", "ports": [format!("{}:{INSIDE}", free_port(host))]}),
        );
        let try_to = |address: &str, port: u16| reach(&daemon, "one", address, port);

        assert_eq!(try_to(PUBLIC, port), "hello", "the world is there");
        let mut reached = Reached::default();
        for address in PRIVATE.iter().chain([&METADATA, &RESOLVER]) {
            reached.note(address, try_to(address, port));
        }
        // This host by all the addresses it has, and one that only the cable has.
        let gateway = gateway(host, &daemon);
        for address in [HOST, gateway.as_str()] {
            reached.note("this host on 0.0.0.0", try_to(address, v4));
            reached.note("this host on [::]", try_to(address, v6));
            reached.note("a published port of another server", try_to(address, two_port));
        }
        for address in link_local_of_cables(host) {
            reached.note("this host by a link-local address", try_to(&format!("{address}%eth0"), v6));
        }
        reached.note("another server", try_to(&two.to_string(), INSIDE));
        drop(reached);
        // Port 53 of the name servers, both protocols, and nothing beside it.
        assert_eq!(try_to(RESOLVER, dns_tcp), "hello");
        let ask = |to: &str, port: u16| {
            let code = format!(
                "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(3)\n\
                 s.connect(({to:?}, {port})); s.send(b'name'); result = s.recv(9).decode()"
            );
            daemon.inside("one", &code)
        };
        assert_eq!(ask(RESOLVER, 53), "name");
        let resolv_conf = daemon.inside("one", "result = open('/etc/resolv.conf').read()");
        assert!(resolv_conf.as_str().is_some_and(|text| text.contains(RESOLVER)), "{resolv_conf}");
        refused("a name server that is not named", ask(METADATA, 53));
    });
}

fn a_machine_that_routes_here_reaches_no_container(provider: &str) {
    let Neighbourhood { host, outside } = &Neighbourhood::new();
    let listening = outside.greeter("[::]:0");
    let site = Site::new(&[], "");
    host.inside(|| {
        let daemon = site.daemon();
        for (name, network) in [("private", Value::Null), ("bridged", json!("bridge"))] {
            let published = free_port(host);
            let mut more = json!({"ports": [format!("{published}:{INSIDE}")]});
            if !network.is_null() {
                more["network"] = network;
            }
            let address = serve(&daemon, provider, name, more);
            let (direct, port) = (SocketAddr::new(address, INSIDE), SocketAddr::from(([127, 0, 0, 1], published)));
            // The daemon's forwarder gets through, and its answers come back.
            assert_eq!(host.hear(port).as_deref(), Some("hello"), "{name}");
            assert_eq!(outside.hear(direct), None, "{name}: the neighbour is let in");
            assert_eq!(heard_by_nobody(direct), None, "{name}: other users of this host are let in");
            assert_eq!(host.hear(port).as_deref(), Some("hello"), "{name}, again");
        }
        refused("the network with no way out", reach(&daemon, "private", PUBLIC, listening));
        assert_eq!(reach(&daemon, "bridged", PUBLIC, listening), "hello");
    });
}

fn an_egress_name_that_leads_inside_is_refused(provider: &str) {
    let Neighbourhood { host, outside } = &Neighbourhood::new();
    let port = outside.greeter("[::]:0");
    let names = [
        ("metadata.example", METADATA),
        ("link.example", "fe80::1"),
        ("loop.example", "127.0.0.1"),
        ("dressed.example", "::ffff:127.0.0.1"),
        ("host.example", HOST),
        ("host6.example", HOST_V6),
        ("internal.example", PRIVATE[2]),
        ("mixed.example", PUBLIC),
        ("mixed.example", METADATA),
        ("db.example", PRIVATE[0]),
        ("public.example", PUBLIC),
    ];
    let site = Site::new(&names, "[networks.bridge]\nallow_private = [\"10.77.0.0/24\"]\n");
    host.inside(|| {
        let daemon = site.daemon();
        let bad = ["metadata", "link", "loop", "dressed", "host", "host6", "internal", "mixed"];
        for name in bad.map(|name| format!("{name}.example")) {
            let mut definition = inside("bad", provider);
            (definition["network"], definition["egress"]) = (json!("bridge"), json!([format!("{name}:{port}")]));
            let told = daemon.try_register(&definition).json();
            let why = told["last_error"].as_str().unwrap_or_default().to_string();
            assert!(told["status"] != "ready" && why.contains(&format!("egress: {name}")), "{told:#}");
            assert_eq!(daemon.request("DELETE", &format!("{BASE}/bad"), None).status, 204);
        }
        let list = ["db.example", "public.example"].map(|name| format!("{name}:{port}"));
        serve(&daemon, provider, "good", json!({"network": "bridge", "egress": list}));
        assert_eq!(reach(&daemon, "good", "public.example", port), "hello");
        assert_eq!(reach(&daemon, "good", "db.example", port), "hello", "the operator allows it");
        refused("what is allowed and not listed", reach(&daemon, "good", "10.77.0.3", port));
        for address in [HOST, METADATA, PRIVATE[1], PRIVATE[2]] {
            refused(address, reach(&daemon, "good", address, port));
        }
    });
}

fn an_egress_list_of_addresses_opens_private_networks_but_never_this_host(provider: &str) {
    let Neighbourhood { host, outside } = &Neighbourhood::new();
    let port = outside.greeter("[::]:0");
    let own = host.greeter("[::]:0");
    let site = Site::new(&[], "");
    host.inside(|| {
        let daemon = site.daemon();
        let other = serve(&daemon, provider, "other", json!({"network": "bridge"}));
        // Its own list, also where no network is named and there is nothing but ports.
        let listed = json!([format!("{}:{port}", PRIVATE[2]), "0.0.0.0/0", format!("{other}:{INSIDE}")]);
        for (name, network) in [("one", json!("bridge")), ("two", Value::Null)] {
            let mut more = json!({"egress": listed, "ports": [format!("{}:{INSIDE}", free_port(host))]});
            if !network.is_null() {
                more["network"] = network;
            }
            serve(&daemon, provider, name, more);
            let try_to = |address: &str, port: u16| reach(&daemon, name, address, port);
            assert_eq!(try_to(PRIVATE[2], port), "hello", "{name}: the list names it");
            assert_eq!(try_to(PUBLIC, port), "hello", "{name}: the list goes around it");
            for address in [PRIVATE[0], PRIVATE[1], PRIVATE[3], METADATA] {
                refused(address, try_to(address, port));
            }
            refused("this host", try_to(HOST, own));
            refused("another server, although it is listed", try_to(&other.to_string(), INSIDE));
        }
        for never in ["169.254.169.254:80", "127.0.0.1:80", "[fe80::1]:80", "[::1]:80"] {
            let mut definition = inside("never", provider);
            (definition["network"], definition["egress"]) = (json!("bridge"), json!([never]));
            let refused = daemon.try_register(&definition);
            assert_eq!((refused.status, refused.code()), (400, json!("invalid_request")), "{never}: {refused}");
        }
        let mut definition = inside("never", provider);
        (definition["network"], definition["egress"]) = (json!("bridge"), json!([format!("{HOST}:{own}")]));
        let told = daemon.try_register(&definition).json();
        assert!(told["last_error"].as_str().is_some_and(|why| why.contains("this host")), "{told:#}");
    });
}

fn allow_private_opens_exactly_what_it_names(provider: &str) {
    let Neighbourhood { host, outside } = &Neighbourhood::new();
    let port = outside.greeter("[::]:0");
    let own = host.greeter("[::]:0");
    // A range that other containers and the host's own end of the cable are in too.
    let site = Site::new(&[], "[networks.bridge]\nallow_private = [\"10.0.0.0/8\", \"192.168.77.2/32\"]\n");
    host.inside(|| {
        let daemon = site.daemon();
        let other = serve(&daemon, provider, "other", json!({"network": "bridge"}));
        serve(&daemon, provider, "one", json!({"network": "bridge"}));
        let try_to = |address: &str, port: u16| reach(&daemon, "one", address, port);
        assert_eq!(try_to(PRIVATE[0], port), "hello");
        assert_eq!(try_to(PRIVATE[2], port), "hello");
        assert_eq!(try_to(PUBLIC, port), "hello");
        for address in [PRIVATE[1], PRIVATE[3], RESOLVER, METADATA] {
            refused(address, try_to(address, port));
        }
        refused("this host", try_to(&gateway(host, &daemon), own));
        refused("another server", try_to(&other.to_string(), INSIDE));
        // What another network was given is not this one's.
        serve(&daemon, provider, "two", json!({"ports": [format!("{}:{INSIDE}", free_port(host))]}));
        refused("the network with no way out", reach(&daemon, "two", PRIVATE[0], port));
    });
}

fn a_bridge_of_the_operators_is_fenced_in_both_families(provider: &str) {
    let Neighbourhood { host, outside } = &Neighbourhood::new();
    let port = outside.greeter("[::]:0");
    let own = host.greeter("[::]:0");
    outside.greeter(&format!("{RESOLVER}:53"));
    // Frames between two ports of a bridge pass no filter of the network layer.
    for family in ["iptables", "ip6tables"] {
        host.inside(|| {
            std::fs::write(format!("/proc/sys/net/bridge/bridge-nf-call-{family}"), "0").expect("br_netfilter")
        });
    }
    let site = Site::new(&[], "[networks.six]\nallow_private = [\"192.168.77.2\"]\n");
    let range = |subnet: &str| json!([{"subnet": subnet}]);
    let conf = json!({
        "cniVersion": "1.0.0", "name": "six",
        "plugins": [{
            "type": "bridge", "bridge": "six0", "isGateway": true, "ipMasq": true,
            "ipam": {"type": "host-local", "dataDir": site.directory.join("leases"),
                     "ranges": [range("10.251.7.0/24"), range("fd51:7::/64")],
                     "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]},
            "dns": {"nameservers": [RESOLVER]},
        }],
    });
    std::fs::write(site.directory.join("six.conflist"), conf.to_string()).expect("a file");
    host.inside(|| {
        let daemon = site.daemon();
        let other = serve(&daemon, provider, "other", json!({"network": "six"}));
        let other_v6 = address_of(&daemon, "other", PUBLIC_V6);
        let published = free_port(host);
        serve(&daemon, provider, "one", json!({"network": "six", "ports": [format!("{published}:{INSIDE}")]}));
        let try_to = |address: &str, port: u16| reach(&daemon, "one", address, port);
        let mut reached = Reached::default();
        for address in [PRIVATE[0], METADATA, PRIVATE_V6] {
            reached.note(address, try_to(address, port));
        }
        for address in [HOST, HOST_V6, "10.251.7.1", "fd51:7::1"] {
            reached.note(format!("this host by {address}"), try_to(address, own));
        }
        let of_bridge = host.ip("-6 -o addr show dev six0 scope link");
        let link_local = format!("{}%eth0", words_after(&of_bridge, "inet6")[0]);
        reached.note("this host by a link-local address", try_to(&link_local, own));
        for address in [other, other_v6] {
            reached.note(format!("a neighbour on the bridge by {address}"), try_to(&address.to_string(), INSIDE));
            let from_outside = outside.hear(SocketAddr::new(address, INSIDE));
            reached.note(format!("{address} from outside"), from_outside.map_or(json!({"error": ""}), Value::from));
        }
        drop(reached);
        assert_eq!(try_to(PUBLIC, port), "hello");
        assert_eq!(try_to(PUBLIC_V6, port), "hello");
        assert_eq!(try_to(PRIVATE[2], port), "hello", "this network leads there");
        assert_eq!(host.hear(SocketAddr::from(([127, 0, 0, 1], published))).as_deref(), Some("hello"));
        assert_eq!(host.hear(SocketAddr::new(other_v6, INSIDE)).as_deref(), Some("hello"), "the daemon's user may");
        let resolv_conf = daemon.inside("one", "result = open('/etc/resolv.conf').read()");
        assert!(resolv_conf.as_str().is_some_and(|text| text.contains(RESOLVER)), "{resolv_conf}");

        // With a list it is what the list says and nothing else, also of what the network leads to.
        let list = json!({"egress": [format!("{PUBLIC}:{port}"), format!("[{PUBLIC_V6}]:{port}")]});
        let patched = daemon.request("PATCH", &format!("{BASE}/one"), Some(&list));
        assert_eq!(patched.json()["status"], "ready", "{patched}");
        assert_eq!((try_to(PUBLIC, port), try_to(PUBLIC_V6, port)), (json!("hello"), json!("hello")));
        for (address, port) in [(PRIVATE[2], port), (PUBLIC, port ^ 1), (PUBLIC_V6, port ^ 1), (RESOLVER, 53)] {
            refused(address, try_to(address, port));
        }
    });
    let left = std::fs::read_dir(site.directory.join("leases/six")).expect("leases").flatten();
    let left: Vec<String> = left.map(|lease| lease.file_name().to_string_lossy().into_owned()).collect();
    assert!(!left.iter().any(|lease| lease.starts_with("10.") || lease.starts_with("fd51")), "{left:?}");
}

#[test]
fn two_daemons_keep_apart_and_each_removes_its_own() {
    let Neighbourhood { host, outside } = &Neighbourhood::new();
    let port = outside.greeter("[::]:0");
    let open = "[networks.bridge]\nallow_private = [\"10.0.0.0/8\"]\n";
    let sites = [Site::new(&[], open), Site::new(&[], open)];
    host.inside(|| {
        let (mut first, second) = (sites[0].daemon(), sites[1].daemon());
        serve(&first, "crun", "one", json!({"network": "bridge"}));
        let there = serve(&second, "crun", "two", json!({"network": "bridge"}));
        let apart = |first: &Daemon| {
            assert_eq!(reach(first, "one", PRIVATE[0], port), "hello");
            refused("a server of the other daemon", reach(first, "one", &there.to_string(), INSIDE));
            refused("a private network", reach(first, "one", PRIVATE[1], port));
        };
        apart(&first);
        // Tables of others come and go.
        for words in ["add table inet other", "flush table inet other", "delete table inet other"] {
            host.run("nft", &words.split(' ').collect::<Vec<_>>());
        }
        apart(&first);
        assert_eq!((fenced(host, &first), fenced(host, &second)), (1, 1));
        // Of an instance that is gone nothing stays in the tables of those that are there.
        let third = serve(&second, "crun", "three", json!({"network": "bridge"})).to_string();
        let ruleset = || host.run("nft", &["list", "ruleset"]);
        assert!(ruleset().contains(&third), "{}", ruleset());
        assert_eq!(second.request("DELETE", &format!("{BASE}/three"), None).status, 204);
        assert!(eventually(Duration::from_secs(20), || !ruleset().contains(&third)), "{}", ruleset());
        first.kill();
        assert_eq!(fenced(host, &second), 1);
        assert_eq!(reach(&second, "two", PUBLIC, port), "hello");
        first.start_again();
        first.wait_ready("one");
        assert_eq!((fenced(host, &first), fenced(host, &second)), (1, 1));
        apart(&first);
        assert_eq!(first.request("DELETE", &format!("{BASE}/one"), None).status, 204);
        assert!(
            eventually(Duration::from_secs(20), || tables_of(host, &first).is_empty()),
            "{:?}",
            tables_of(host, &first)
        );
        assert_eq!(reach(&second, "two", PUBLIC, port), "hello");
        assert_eq!(fenced(host, &second), 1);
    });
}

// --- the host's own settings ----------------------------------------------------------------------------------------

/// What a daemon of this test finds in `/etc`.
struct Site {
    directory: PathBuf,
}

impl Site {
    fn new(names: &[(&str, &str)], config: &str) -> Site {
        let directory = support::short_temporary_directory();
        let hosts: String = names.iter().map(|(name, address)| format!("{address}\t{name}\n")).collect();
        let write = |name: &str, text: &str| std::fs::write(directory.join(name), text).expect("a file");
        write("hosts", &format!("127.0.0.1\tlocalhost\n{hosts}"));
        write("resolv.conf", &format!("nameserver {RESOLVER}\n"));
        write("stdiod.toml", &format!("network_dirs = [{:?}]\n{config}", directory.to_str().expect("our own name")));
        Site { directory }
    }

    fn daemon(&self) -> Daemon {
        let at = |name: &str| self.directory.join(name).to_str().expect("our own name").to_string();
        let mount = |name: &str| format!("mount --bind {} $(realpath /etc/{name})", at(name));
        let script = format!("{} && {} && exec \"$@\"", mount("hosts"), mount("resolv.conf"));
        Daemon::with("STDIOD_CONFIG", at("stdiod.toml")).under(&["unshare", "-m", "sh", "-c", &script, "sh"]).start()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(Path::new(&self.directory));
    }
}

// --- servers --------------------------------------------------------------------------------------------------------

/// Registers a server that says hello on its port; its address.
fn serve(daemon: &Daemon, provider: &str, name: &str, more: Value) -> IpAddr {
    let mut definition = inside(name, provider);
    definition["stdio_bridge"] = json!(true);
    definition.as_object_mut().expect("an object").extend(more.as_object().expect("fields").clone());
    daemon.register(&definition);
    let code = format!(
        "import threading\n\
         l = socket.create_server(('::', {INSIDE}), family=socket.AF_INET6, dualstack_ipv6=True)\n\
         def greet():\n  while True:\n    c, _ = l.accept(); c.sendall(b'hello'); c.close()\n\
         threading.Thread(target=greet, daemon=True).start()\nresult = True"
    );
    assert_eq!(daemon.inside(name, &code), true);
    address_of(daemon, name, PUBLIC)
}

/// Under which a server would go there.
fn address_of(daemon: &Daemon, name: &str, there: &str) -> IpAddr {
    let family = if there.contains(':') { "AF_INET6" } else { "AF_INET" };
    let code = format!(
        "s = socket.socket(socket.{family}, socket.SOCK_DGRAM); s.connect(({there:?}, 9)); result = s.getsockname()[0]"
    );
    let told = daemon.inside(name, &code);
    told.as_str().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{name} has no address: {told}"))
}

/// What a server hears from there, or the error.
fn reach(daemon: &Daemon, server: &str, address: &str, port: u16) -> Value {
    let code = format!("s = socket.create_connection(({address:?}, {port}), timeout=3); result = s.recv(9).decode()");
    daemon.inside(server, &code)
}

fn refused(what: &str, told: Value) {
    assert!(told["error"].is_string(), "{what} was reached: {told}");
}

/// All that a server should not have reached, told at once.
#[derive(Default)]
struct Reached(Vec<String>);

impl Reached {
    fn note(&mut self, what: impl std::fmt::Display, told: Value) {
        if !told["error"].is_string() {
            self.0.push(format!("{what}: {told}"));
        }
    }
}

impl Drop for Reached {
    fn drop(&mut self) {
        assert!(std::thread::panicking() || self.0.is_empty(), "reached: {:#?}", self.0);
    }
}

/// What a user of this host who is not the daemon's hears from there. Runs where the test is.
fn heard_by_nobody(address: SocketAddr) -> Option<String> {
    let code = format!(
        "import socket; print(socket.create_connection(({:?}, {}), timeout=2).recv(9).decode(), end='')",
        address.ip().to_string(),
        address.port()
    );
    let options = ["--reuid", "65534", "--regid", "65534", "--clear-groups", "python3", "-c", &code];
    let output = Command::new("setpriv").args(options).output().expect("util-linux and python3");
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

fn free_port(host: &Machine) -> u16 {
    let bind = || std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
    host.inside(bind)
}

/// This host's own end of the cables of a daemon.
fn gateway(host: &Machine, daemon: &Daemon) -> String {
    let subnet = stdiod::sandbox::container::cni::subnet(&Layout::of(daemon.data_dir.clone()).mark);
    let gateway = subnet.replace(".0/19", ".1");
    assert!(host.ip("-4 -o addr show").contains(&format!("inet {gateway}/")), "it is there");
    gateway
}

fn link_local_of_cables(host: &Machine) -> Vec<String> {
    let text = host.ip("-6 -o addr show scope link");
    let cables: Vec<&str> = text.lines().filter(|line| line.contains("veth")).collect();
    assert!(!cables.is_empty(), "{text}");
    cables.iter().flat_map(|line| words_after(line, "inet6")).collect()
}

/// The addresses that follow a word, without their prefix.
fn words_after(text: &str, word: &str) -> Vec<String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let pairs = words.windows(2).filter(|pair| pair[0] == word);
    pairs.map(|pair| pair[1].split('/').next().unwrap_or_default().to_string()).collect()
}

fn tables_of(host: &Machine, daemon: &Daemon) -> Vec<String> {
    let mark = Layout::of(daemon.data_dir.clone()).mark;
    let tables = host.run("nft", &["list", "tables"]);
    tables.lines().filter(|line| line.contains(&mark)).map(str::to_string).collect()
}

/// How many instances of a daemon have a fence.
fn fenced(host: &Machine, daemon: &Daemon) -> usize {
    let table = format!("stdiod_{}", Layout::of(daemon.data_dir.clone()).mark);
    host.run("nft", &["list", "table", "inet", &table]).matches("chain server_").count()
}
