//! CNI as data: what a network's configuration means and what its plugins answered. PURE: calls no plugin, reads no
//! file. Knows the two networks that need no configuration.

use crate::limits::{CABLE_ADDRESSES_MAX, RESOLVERS_MAX};
use serde_json::{Value, json};
use std::net::IpAddr;
use std::path::Path;

/// The network of servers that publish ports and name no network. No server can ask for it by this name: it has a dot.
pub const PRIVATE: &str = "stdiod.private";
/// The one that is always there: out through this host's address.
pub const BRIDGE: &str = "bridge";

/// The kernel's bound for the name of an interface, its end included.
const IFNAME: usize = 16;

/// How a namespace hangs on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cable {
    /// At least one; the one that this host uses first.
    pub addresses: Vec<IpAddr>,
    /// The interface at this host's end: where a fence can stand.
    pub host_end: String,
}

/// A cable for each instance and no switch between them: servers do not see each other, and nothing outlives them.
pub fn built_in(name: &str, mark: &str, leases: &Path) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": format!("stdiod-{mark}"),
        "plugins": [{
            "type": "ptp",
            "ipMasq": name == BRIDGE,
            "ipam": {
                "type": "host-local",
                "dataDir": leases,
                "ranges": [[{ "subnet": subnet(mark) }]],
                "routes": [{ "dst": "0.0.0.0/0" }],
            },
        }],
    })
}

/// Room for every server there can be, and elsewhere for every daemon on a host: by its mark.
pub fn subnet(mark: &str) -> String {
    let number = u32::from_str_radix(mark, 16).unwrap_or(0);
    format!("10.{}.{}.0/19", 128 + number % 96, (number >> 8) % 8 * 32)
}

/// The plugins of a configuration (a list, or one plugin as they used to be), each as it wants to be called; and
/// whether one of them would have masqueraded. They are not left to do it.
pub fn plugins(conf: Value) -> Result<(Vec<Value>, bool), String> {
    let version = conf["cniVersion"].as_str().unwrap_or("0.4.0").to_owned();
    let name = conf["name"].as_str().ok_or("the configuration has no name")?.to_owned();
    let mut plugins = match &conf["plugins"] {
        Value::Array(plugins) => plugins.clone(),
        Value::Null => vec![conf.clone()],
        _ => return Err("`plugins` is no list".to_owned()),
    };
    let mut masquerade = false;
    for plugin in &mut plugins {
        let plugin = plugin.as_object_mut().ok_or("a plugin is no object")?;
        let kind = plugin.get("type").and_then(Value::as_str).ok_or("a plugin has no type")?;
        if kind.is_empty() || kind.starts_with('.') || kind.contains('/') {
            return Err(format!("{kind:?} is no plugin"));
        }
        masquerade |= plugin.remove("ipMasq") == Some(Value::Bool(true));
        plugin.insert("cniVersion".into(), json!(version));
        plugin.insert("name".into(), json!(name));
    }
    if plugins.is_empty() { Err("the configuration has no plugins".to_owned()) } else { Ok((plugins, masquerade)) }
}

/// What the last plugin's result says of `interface`. A sandbox that hangs on anything but one cable cannot be fenced.
pub fn cable(result: &Value, interface: &str) -> Result<Cable, String> {
    let interfaces = result["interfaces"].as_array().map(Vec::as_slice).unwrap_or_default();
    let name = |i: &Value| i["name"].as_str().unwrap_or_default().to_owned();
    let (inside, outside): (Vec<&Value>, Vec<&Value>) =
        interfaces.iter().partition(|i| i["sandbox"].as_str().is_some_and(|sandbox| !sandbox.is_empty()));
    let is_cable = |name: &String| {
        name.starts_with("veth") && name.len() < IFNAME && name.bytes().all(|b| b.is_ascii_alphanumeric())
    };
    let mut cables: Vec<String> = outside.into_iter().map(name).filter(is_cable).collect();
    let (Some(host_end), true) = (cables.pop(), cables.is_empty()) else {
        return Err(
            "its plugins gave no cable, or several, so there is no place for a fence; use `bridge` or `ptp`".into()
        );
    };
    if let Some(other) = inside.into_iter().map(name).find(|name| name != interface && name != "lo") {
        return Err(format!("its plugins put a second interface, {other}, into the sandbox, which has no fence"));
    }
    let ips = result["ips"].as_array().map(Vec::as_slice).unwrap_or_default();
    let addresses = ips.iter().filter_map(|ip| {
        let of = ip["interface"].as_u64().and_then(|at| interfaces.get(usize::try_from(at).ok()?));
        let ours = of.is_none_or(|of| of["name"] == interface);
        ip["address"].as_str().filter(|_| ours)?.split('/').next()?.parse::<IpAddr>().ok()
    });
    let mut addresses: Vec<IpAddr> = addresses.take(CABLE_ADDRESSES_MAX).collect();
    // What is reached from this host is reached by v4 if there is a choice.
    addresses.sort_by_key(|address| !address.is_ipv4());
    if addresses.is_empty() { Err("its plugins gave no address".into()) } else { Ok(Cable { addresses, host_end }) }
}

/// The resolvers that the network itself brings.
pub fn resolv_conf(result: &Value) -> Option<String> {
    let dns = &result["dns"];
    let words = |key: &str| -> Vec<&str> {
        let list = dns[key].as_array().map(Vec::as_slice).unwrap_or_default();
        list.iter().filter_map(Value::as_str).filter(|word| !word.contains(char::is_whitespace)).collect()
    };
    let servers = words("nameservers");
    let mut text: String = servers.iter().map(|server| format!("nameserver {server}\n")).collect();
    if !words("search").is_empty() {
        text.push_str(&format!("search {}\n", words("search").join(" ")));
    }
    (!servers.is_empty()).then_some(text)
}

/// The name servers of a `resolv.conf`. One that is an address of a cable, and means nothing without it, is left out.
pub fn resolvers(text: &str) -> Vec<IpAddr> {
    let address = |line: &str| match line.split_whitespace().collect::<Vec<_>>()[..] {
        ["nameserver", address, ..] => address.parse::<IpAddr>().ok(),
        _ => None,
    };
    text.lines().filter_map(address).filter(|address| !address.is_loopback()).take(RESOLVERS_MAX).collect()
}

/// A `resolv.conf` without the servers on loopback.
pub fn reachable_resolvers(text: &str) -> String {
    let keep = |line: &&str| match line.split_whitespace().collect::<Vec<_>>()[..] {
        ["nameserver", address, ..] => address.parse::<IpAddr>().is_ok_and(|address| !address.is_loopback()),
        ["search" | "options", ..] => true,
        _ => false,
    };
    text.lines().filter(keep).map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cable_is_found_in_what_the_plugins_answer() {
        let result = json!({
            "interfaces": [
                {"name": "br0", "mac": "x"},
                {"name": "veth2aee05ba", "mac": "x"},
                {"name": "eth0", "mac": "x", "sandbox": "/run/netns/x"},
            ],
            "ips": [
                {"interface": 2, "address": "fd00::2/64"},
                {"interface": 2, "address": "10.97.0.2/24", "gateway": "10.97.0.1"},
            ],
        });
        let found = cable(&result, "eth0").unwrap();
        assert_eq!(found.addresses, ["10.97.0.2", "fd00::2"].map(|a| a.parse::<IpAddr>().unwrap()));
        assert_eq!(found.host_end, "veth2aee05ba");
        for broken in [json!(null), json!({}), json!({"ips": [{"address": 7}]}), json!({"ips": "x"})] {
            assert!(cable(&broken, "eth0").is_err(), "{broken}");
        }
    }

    #[test]
    fn a_sandbox_without_exactly_one_cable_is_refused() {
        let with = |more: Value| {
            let mut interfaces = vec![json!({"name": "eth0", "sandbox": "/x"})];
            interfaces.extend(more.as_array().unwrap().clone());
            cable(&json!({"interfaces": interfaces, "ips": [{"interface": 0, "address": "10.0.0.2/24"}]}), "eth0")
        };
        assert!(with(json!([{"name": "veth1"}])).is_ok());
        assert!(with(json!([{"name": "veth1"}, {"name": "lo", "sandbox": "/x"}])).is_ok());
        for none in [json!([]), json!([{"name": "br0"}]), json!([{"name": "veth1"}, {"name": "veth2"}])] {
            assert!(with(none.clone()).unwrap_err().contains("fence"), "{none}");
        }
        assert!(with(json!([{"name": "veth\"; x"}])).is_err());
        assert!(with(json!([{"name": "veth1"}, {"name": "net1", "sandbox": "/x"}])).unwrap_err().contains("net1"));
    }

    #[test]
    fn both_forms_of_a_configuration_become_calls_and_none_of_them_masquerades() {
        let (list, masquerade) = plugins(built_in(BRIDGE, "00a1b2c3", Path::new("/leases"))).unwrap();
        assert!(masquerade && list[0].get("ipMasq").is_none());
        assert_eq!((&list[0]["name"], &list[0]["cniVersion"]), (&json!("stdiod-00a1b2c3"), &json!("1.0.0")));
        assert!(!plugins(built_in(PRIVATE, "00a1b2c3", Path::new("/l"))).unwrap().1);
        let (one, _) = plugins(json!({"cniVersion": "0.3.1", "name": "n", "type": "bridge"})).unwrap();
        assert_eq!(one, [json!({"cniVersion": "0.3.1", "name": "n", "type": "bridge"})]);
        let bad = json!({"name": "n", "plugins": [{"type": "../../bin/sh"}]});
        for refused in [json!({}), json!({"name": "n"}), json!({"name": "n", "plugins": []}), bad] {
            assert!(plugins(refused.clone()).is_err(), "{refused}");
        }
    }

    #[test]
    fn subnets_stay_in_the_private_range() {
        for mark in ["00000000", "ffffffff", "12345678", "no hex"] {
            let subnet = subnet(mark);
            let numbers: Vec<u32> = subnet.split(['.', '/']).map(|n| n.parse().unwrap()).collect();
            assert!(
                numbers[0] == 10
                    && (128..224).contains(&numbers[1])
                    && numbers[2].is_multiple_of(32)
                    && numbers[2] < 256
            );
        }
    }

    #[test]
    fn resolvers_on_loopback_are_no_use_in_a_sandbox() {
        let text = "# stub\nnameserver 127.0.0.53\nnameserver ::1\nnameserver 192.0.2.1\nsearch x.example\njunk\n";
        assert_eq!(reachable_resolvers(text), "nameserver 192.0.2.1\nsearch x.example\n");
        assert_eq!(
            resolvers("nameserver 192.0.2.1\nnameserver fe80::1%eth0\nnameserver 127.0.0.1\nsearch 10.0.0.1\n").len(),
            1
        );
        assert_eq!(resolv_conf(&json!({"dns": {}})), None);
        let own = json!({"dns": {"nameservers": ["192.0.2.9", "a b"], "search": ["y"]}});
        assert_eq!(resolv_conf(&own).as_deref(), Some("nameserver 192.0.2.9\nsearch y\n"));
    }
}
