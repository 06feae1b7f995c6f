//! The fence around every container network: one nftables table of ours for each daemon, by the name of its mark. What
//! is not said here is refused, both ways, v4 and v6. Owns the text of the rules and runs `nft`; knows no CNI, resolves
//! no name. Invariant: a script is one transaction, so there is no moment with half a fence; and it can be run again.
//!
//! The policy is in the family `inet`, where connections are known: forwarded packets, packets to this host, packets
//! from this host. `netdev` holds a chain for each cable, on the host's side because gVisor writes its packets past the
//! namespace's own netfilter: nothing comes out of a cable but what bears the address that was given to it. So the
//! addresses can be trusted in `inet`, where on a bridge all cables look alike. `bridge` lets no frame pass between a
//! cable and another port of its bridge: what leaves goes through this host, and is seen.

use crate::model::ranges::{self, Kind, Net};
use crate::sandbox::container::plan::Layout;
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// What holds one instance; kept in its record, because it takes the same to remove it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fence {
    /// The interface at this host's end.
    pub cable: String,
    /// May the cable be a port of a bridge?
    pub bridged: bool,
    pub addresses: Vec<IpAddr>,
    /// Name servers that it may ask.
    pub resolvers: Vec<IpAddr>,
}

/// Where an instance may connect to.
pub enum Reach {
    /// Everything public, and these.
    Public {
        allowed: Vec<Net>,
    },
    Listed(Vec<Opening>),
}

pub struct Opening {
    pub net: Net,
    /// For TCP and UDP; none: everything.
    pub port: Option<u16>,
    /// Was a private network asked for, by its own number or by the operator? Otherwise a range stays outside of them.
    pub private: bool,
}

const FAMILIES: [&str; 3] = ["inet", "netdev", "bridge"];
/// Chains of `inet` that all instances share and no hook calls. Those of instances end in the last one, always: so the
/// kernel itself refuses to remove it, and the table with it, while there is an instance.
const SHARED: [&str; 6] = ["arriving", "leaving", "to_host", "from_host", "public", "refused"];
/// Name, hook and priority. Before other people's filters: what we refuse is refused, what we pass is theirs to judge.
const HOOKS: [(&str, &str); 4] = [
    ("forward", "type filter hook forward priority -10"),
    ("input", "type filter hook input priority -10"),
    ("output", "type filter hook output priority -10"),
    ("outgoing", "type nat hook postrouting priority 100"),
];
/// Without these nobody finds anybody on a v6 cable.
const NEIGHBOURS: &str = "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert }";

pub fn table(layout: &Layout) -> String {
    format!("stdiod_{}", layout.mark)
}

// --- up and down ----------------------------------------------------------------------------------------------------

/// From here on the instance is held. To be called before anything runs in it.
pub fn put_up(layout: &Layout, id: &str, fence: &Fence, reach: &Reach, masquerade: bool) -> io::Result<()> {
    let table = table(layout);
    let mut script = shared(&table, geteuid().as_raw());
    script.push_str(&own(&table, id, fence, reach, masquerade));
    nft(&script)
}

/// When nothing runs in it any more, and while its address is still its own. Doing it twice is harmless.
pub fn take_down(layout: &Layout, id: &str, fence: &Fence) -> io::Result<()> {
    let table = table(layout);
    nft(&removal(&table, id, fence))?;
    // It fails while there are others, and changes nothing then.
    _ = nft(&end(&table));
    Ok(())
}

/// All fences of this daemon, those of earlier versions too, which had a table for each instance.
pub fn sweep(layout: &Layout) -> io::Result<()> {
    let mut program = command();
    program.args(["list", "tables"]).stdin(Stdio::null()).stdout(Stdio::piped());
    let Ok(output) = program.output() else { return Ok(()) };
    let table = table(layout);
    let of_ours = |name: &str| name.strip_prefix(&table).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'));
    let mut script = String::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        if let ["table", family, name] = line.split_whitespace().collect::<Vec<_>>()[..]
            && of_ours(name)
        {
            _ = writeln!(script, "delete table {family} {name}");
        }
    }
    if script.is_empty() { Ok(()) } else { nft(&script) }
}

// --- the rules ------------------------------------------------------------------------------------------------------

/// What all instances share, as it should be, whatever was there. `daemon` is the user who may connect to a server.
fn shared(table: &str, daemon: u32) -> String {
    let mut script = skeleton(table);
    for (name, _) in HOOKS {
        _ = writeln!(script, "flush chain inet {table} {name}");
    }
    for name in SHARED {
        _ = writeln!(script, "flush chain inet {table} {name}");
    }
    let mut rule = |chain: &str, text: &str| _ = writeln!(script, "add rule inet {table} {chain} {text}");
    for (ip, of) in [("ip", 4), ("ip6", 6)] {
        // To a container first: no container is another one's private network.
        rule("forward", &format!("{ip} daddr @containers{of} goto arriving"));
        rule("forward", &format!("{ip} saddr @containers{of} goto leaving"));
        rule("input", &format!("{ip} saddr @containers{of} goto to_host"));
        rule("output", &format!("{ip} daddr @containers{of} goto from_host"));
        rule("outgoing", &format!("{ip} saddr @masqueraded{of} masquerade"));
        let resolver = format!("{ip} saddr . {ip} daddr @resolvers{of} meta l4proto {{ tcp, udp }} th dport 53 accept");
        rule("leaving", &resolver);
        rule("to_host", &resolver);
        let set = |kind: Kind| format!("{{ {} }}", ranges_of(kind, of));
        rule("leaving", &format!("{ip} daddr {} goto refused", set(Kind::Never)));
        rule("leaving", &format!("{ip} saddr vmap @reach{of}"));
        rule("public", &format!("{ip} daddr {} goto refused", set(Kind::Private)));
    }
    // Only answers come in from outside, and the daemon's own connections are the only ones that this host opens.
    rule("arriving", "ct direction reply ct state established,related accept");
    rule("arriving", "drop");
    rule("leaving", "goto refused");
    rule("to_host", "ct direction reply ct state established,related accept");
    rule("to_host", &format!("{NEIGHBOURS} accept"));
    rule("to_host", "goto refused");
    rule("from_host", "ct state established,related accept");
    rule("from_host", &format!("{NEIGHBOURS} accept"));
    rule("from_host", &format!("meta skuid {daemon} accept"));
    rule("from_host", "goto refused");
    rule("public", "accept");
    // A word instead of silence: who tries gets an error now and not a timeout.
    rule("refused", "reject with icmpx admin-prohibited");
    script
}

/// Every object of the table that is not one instance's. To add what is there changes nothing.
fn skeleton(table: &str) -> String {
    let mut script = format!("add table inet {table}\nadd table netdev {table}\n");
    for of in [4, 6] {
        let address = format!("ipv{of}_addr");
        _ = writeln!(script, "add set inet {table} containers{of} {{ type {address}; }}");
        _ = writeln!(script, "add set inet {table} masqueraded{of} {{ type {address}; }}");
        _ = writeln!(script, "add set inet {table} resolvers{of} {{ type {address} . {address}; }}");
        _ = writeln!(script, "add map inet {table} reach{of} {{ type {address} : verdict; }}");
    }
    for name in SHARED {
        _ = writeln!(script, "add chain inet {table} {name}");
    }
    for (name, hook) in HOOKS {
        _ = writeln!(script, "add chain inet {table} {name} {{ {hook}; policy accept; }}");
    }
    script
}

fn ranges_of(kind: Kind, of: u8) -> String {
    let join = |ranges: Vec<(IpAddr, IpAddr)>| {
        let one = |(first, last): (IpAddr, IpAddr)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        };
        ranges.into_iter().map(one).collect::<Vec<_>>().join(", ")
    };
    match of {
        4 => join(ranges::v4(kind).into_iter().map(|(a, b)| (a.into(), b.into())).collect()),
        _ => join(ranges::v6(kind).into_iter().map(|(a, b)| (a.into(), b.into())).collect()),
    }
}

/// What one instance has for itself.
fn own(table: &str, id: &str, fence: &Fence, reach: &Reach, masquerade: bool) -> String {
    let (chain, cable) = (chain(id), &fence.cable);
    let mut script = format!("add chain inet {table} {chain}\nflush chain inet {table} {chain}\n");
    let mut rule = |text: &str| _ = writeln!(script, "add rule inet {table} {chain} {text}");
    match reach {
        Reach::Public { allowed } => {
            allowed.iter().for_each(|net| rule(&format!("{} daddr {net} accept", ip(net.address))));
            rule("goto public");
        }
        Reach::Listed(openings) => {
            let accept = |opening: &Opening| {
                let port = opening.port.map(|port| format!("meta l4proto {{ tcp, udp }} th dport {port} "));
                format!("{} daddr {} {}accept", ip(opening.net.address), opening.net, port.unwrap_or_default())
            };
            openings.iter().filter(|opening| opening.private).for_each(|opening| rule(&accept(opening)));
            rule(&format!("ip daddr {{ {} }} goto refused", ranges_of(Kind::Private, 4)));
            rule(&format!("ip6 daddr {{ {} }} goto refused", ranges_of(Kind::Private, 6)));
            openings.iter().filter(|opening| !opening.private).for_each(|opening| rule(&accept(opening)));
        }
    }
    rule("goto refused");
    script.push_str(&elements("add", table, id, fence));
    for address in fence.addresses.iter().filter(|_| masquerade) {
        _ = writeln!(script, "add element inet {table} masqueraded{} {{ {address} }}", of(*address));
    }

    let hook = format!("type filter hook ingress device \"{cable}\" priority 0; policy drop;");
    _ = writeln!(script, "add chain netdev {table} {chain} {{ {hook} }}\nflush chain netdev {table} {chain}");
    let mut rule = |text: &str| _ = writeln!(script, "add rule netdev {table} {chain} {text}");
    for address in fence.addresses.iter().filter(|address| address.is_ipv4()) {
        // It says of nobody else's address that it is here, or another's calls would come to it.
        rule(&format!("arp saddr ip {{ 0.0.0.0, {address} }} accept"));
        rule(&format!("ip saddr {address} accept"));
    }
    let v6: Vec<u128> = fence
        .addresses
        .iter()
        .filter_map(|address| match address {
            IpAddr::V4(_) => None,
            IpAddr::V6(address) => Some(u128::from(*address)),
        })
        .collect();
    if !v6.is_empty() {
        // The same with the words of v6: what is said of an address stands in the eighth byte and after.
        let foreign: String = v6.iter().map(|address| format!("@th,64,128 != {address:#x} ")).collect();
        rule(&format!("icmpv6 type nd-neighbor-advert @th,64,10 != 0x3fa {foreign}drop"));
        v6.iter().for_each(|address| rule(&format!("ip6 saddr {} accept", Ipv6Addr::from(*address))));
        rule(&format!("ip6 saddr {{ ::, fe80::/10 }} {NEIGHBOURS} accept"));
        // Bridges listen to these to learn who wants to hear what.
        rule("ip6 saddr { ::, fe80::/10 } icmpv6 type { mld-listener-report, mld2-listener-report } accept");
    }
    script
}

/// The instance in the sets that all share.
fn elements(verb: &str, table: &str, id: &str, fence: &Fence) -> String {
    let (mut script, chain) = (String::new(), chain(id));
    for address in &fence.addresses {
        let of = of(*address);
        let verdict = if verb == "add" { format!(" : goto {chain}") } else { String::new() };
        _ = writeln!(script, "{verb} element inet {table} reach{of} {{ {address}{verdict} }}");
        _ = writeln!(script, "{verb} element inet {table} containers{of} {{ {address} }}");
        for resolver in fence.resolvers.iter().filter(|resolver| resolver.is_ipv4() == address.is_ipv4()) {
            _ = writeln!(script, "{verb} element inet {table} resolvers{of} {{ {address} . {resolver} }}");
        }
    }
    if fence.bridged {
        if verb == "add" {
            _ = writeln!(script, "add table bridge {table}\nadd set bridge {table} cables {{ type ifname; }}");
            let hook = "type filter hook forward priority 0; policy accept;";
            _ = writeln!(script, "add chain bridge {table} forward {{ {hook} }}\nflush chain bridge {table} forward");
            _ = writeln!(script, "add rule bridge {table} forward iifname @cables drop");
            _ = writeln!(script, "add rule bridge {table} forward oifname @cables drop");
        }
        _ = writeln!(script, "{verb} element bridge {table} cables {{ \"{}\" }}", fence.cable);
    }
    script
}

/// To add a thing first makes its removal one that cannot fail for want of it.
fn removal(table: &str, id: &str, fence: &Fence) -> String {
    let chain = chain(id);
    let mut script = skeleton(table);
    _ = writeln!(script, "add chain inet {table} {chain}\nadd chain netdev {table} {chain}");
    for verb in ["add", "delete"] {
        script.push_str(&elements(verb, table, id, fence));
        for address in &fence.addresses {
            _ = writeln!(script, "{verb} element inet {table} masqueraded{} {{ {address} }}", of(*address));
        }
    }
    for family in ["inet", "netdev"] {
        _ = writeln!(script, "flush chain {family} {table} {chain}\ndelete chain {family} {table} {chain}");
    }
    script
}

/// The end of the table, if no instance is in it.
fn end(table: &str) -> String {
    let mut script = skeleton(table);
    for name in SHARED {
        _ = writeln!(script, "flush chain inet {table} {name}");
    }
    _ = writeln!(script, "delete chain inet {table} {}", SHARED[SHARED.len() - 1]);
    for family in FAMILIES {
        _ = writeln!(script, "add table {family} {table}\ndelete table {family} {table}");
    }
    script
}

fn chain(id: &str) -> String {
    format!("server_{}", id.replace('-', "_"))
}

fn of(address: IpAddr) -> u8 {
    if address.is_ipv4() { 4 } else { 6 }
}

fn ip(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "ip" } else { "ip6" }
}

// --- nft ------------------------------------------------------------------------------------------------------------

fn command() -> Command {
    let mut program = Command::new("nft");
    program.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").stderr(Stdio::null());
    program
}

fn nft(script: &str) -> io::Result<()> {
    let mut program = command();
    program.args(["-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null());
    match feed(program, script.as_bytes(), 0) {
        Ok(Fed { success: true, .. }) => Ok(()),
        Ok(Fed { success: false, .. }) => Err(io::Error::other("nft refused the rules")),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            Err(io::Error::other("nft is not installed (package nftables), so nothing can be fenced"))
        }
        Err(e) => Err(e),
    }
}

pub struct Fed {
    pub success: bool,
    pub said: Vec<u8>,
}

/// Runs a program that reads `input` to its end, and takes up to `max` bytes of what it says. It dies with us.
pub fn feed(mut program: Command, input: &[u8], max: u64) -> io::Result<Fed> {
    let parent = std::process::id().cast_signed();
    // SAFETY: prctl and getppid are async-signal-safe, and nothing is allocated.
    unsafe { program.pre_exec(move || crate::sandbox::container::launch::die_with_parent(parent)) };
    let mut child = program.spawn()?;
    let written = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(input));
    let mut said = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        stdout.take(max).read_to_end(&mut said)?;
    }
    let success = child.wait()?.success();
    // A program that ends early has a reason of its own, which is worth more than our EPIPE.
    if success {
        written?;
    }
    Ok(Fed { success, said })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dual() -> Fence {
        let parse = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        let (addresses, resolvers) = (parse(&["10.1.2.3", "fd51::3"]), parse(&["10.0.0.53", "fd00::53"]));
        Fence { cable: "veth12345678".into(), bridged: true, addresses, resolvers }
    }

    #[test]
    fn whatever_is_put_up_for_an_instance_is_taken_down_with_it() {
        let up = own("t", "a-1", &dual(), &Reach::Public { allowed: Vec::new() }, true);
        let down = removal("t", "a-1", &dual());
        for line in up.lines().filter(|line| line.starts_with("add element")) {
            let removed = line.replace("add element", "delete element").replace(" : goto server_a_1", "");
            assert!(down.contains(&removed), "{removed} is not in\n{down}");
        }
        for family in ["inet", "netdev"] {
            assert!(down.contains(&format!("delete chain {family} t server_a_1")));
        }
    }

    #[test]
    fn a_range_that_only_goes_around_private_networks_does_not_open_them() {
        let open = |text: &str| {
            let net = Net::parse(text).unwrap();
            Opening { net, port: None, private: net.kind() == Kind::Private }
        };
        let rules = own("t", "a-1", &dual(), &Reach::Listed(vec![open("0.0.0.0/0"), open("10.9.0.0/16")]), false);
        let at = |text: &str| rules.find(text).unwrap_or_else(|| panic!("{text} is not in\n{rules}"));
        assert!(at("ip daddr 10.9.0.0/16 accept") < at("10.0.0.0-10.255.255.255"));
        assert!(at("10.0.0.0-10.255.255.255") < at("ip daddr 0.0.0.0/0 accept"));
        assert!(at("ip daddr 0.0.0.0/0 accept") < rules.rfind("server_a_1 goto refused").unwrap());
        assert!(!rules.contains("masqueraded"));
    }
}
