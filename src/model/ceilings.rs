//! How much whoever is limited to some servers or projects may give one of them. A ceiling holds for what somebody asks for:
//! what a server has already, because others gave it that, is no fault of a change to something else.

use crate::model::definition::{Definition, PortMapping, ResourceLimits};
use crate::model::external::{ExternalSpec, Isolation, Program, Target};
use ::core::fmt;
use ::core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use ::core::ops::RangeInclusive;
use serde::{Deserialize, Serialize};

/// The network of whoever has none.
const NO_NETWORK: &str = "none";
/// The provider that is no sandbox.
const NO_SANDBOX: &str = "none";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ceilings {
    pub cpu_milli: u32,
    pub memory_bytes: u64,
    /// Of the writable layer, and of all volumes.
    pub disk_bytes: u64,
    pub pids: u32,
    /// Where ports may be published.
    pub host_addresses: Vec<IpAddr>,
    pub host_ports: Vec<RangeInclusive<u16>>,
    pub networks: Vec<String>,
}

impl Default for Ceilings {
    /// What a server has that asks for nothing.
    fn default() -> Ceilings {
        let ResourceLimits { cpu_milli, memory_bytes, disk_bytes, pids, volume_bytes: _ } = ResourceLimits::default();
        Ceilings {
            cpu_milli,
            memory_bytes,
            disk_bytes,
            pids,
            host_addresses: vec![IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)],
            host_ports: vec![1024..=u16::MAX],
            networks: vec![NO_NETWORK.to_string(), "bridge".to_string()],
        }
    }
}

/// What is too much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beyond {
    /// As in a request.
    pub field: String,
    pub why: String,
}

impl Ceilings {
    /// `old`: what the server has now.
    pub fn admit(&self, old: Option<&Definition>, new: &Definition) -> Result<(), Beyond> {
        let (old_limits, limits) = (old.map(|old| &old.resource_limits), &new.resource_limits);
        let amounts = [
            ("cpu", self.cpu_milli.into(), limits.cpu_milli.into(), old_limits.map(|old| old.cpu_milli.into())),
            ("memory", self.memory_bytes, limits.memory_bytes, old_limits.map(|old| old.memory_bytes)),
            ("disk", self.disk_bytes, limits.disk_bytes, old_limits.map(|old| old.disk_bytes)),
            ("pids", self.pids.into(), limits.pids.into(), old_limits.map(|old| old.pids.into())),
            ("volume", self.disk_bytes, limits.volume_bytes(), old_limits.map(ResourceLimits::volume_bytes)),
        ];
        for (name, most, wanted, before) in amounts {
            if wanted > most && before.is_none_or(|before| wanted > before) {
                let most = if name == "cpu" { Amount::Milli(most) } else { Amount::Plain(most) };
                return Err(beyond(format!("resource_limits.{name}"), format_args!("at most {most}")));
            }
        }
        let is_new = |port: &PortMapping| old.is_none_or(|old| !old.ports.contains(port));
        for (index, port) in new.ports.iter().enumerate().filter(|(_, port)| is_new(port)) {
            self.admit_port(&format!("ports[{index}]"), port)?;
        }
        if let Some(network) = &new.network
            && old.is_none_or(|old| old.network.as_ref() != Some(network))
        {
            self.admit_network("network", network)?;
        }
        let unboxed = |definition: &Definition| definition.provider.as_deref() == Some(NO_SANDBOX);
        if unboxed(new) && !old.is_some_and(unboxed) {
            return Err(beyond("provider".to_string(), "one with a sandbox"));
        }
        Ok(())
    }

    /// The same for a row of a project.
    pub fn admit_row(&self, old: Option<&ExternalSpec>, new: &ExternalSpec) -> Result<(), Beyond> {
        let program = |spec: &ExternalSpec| match &spec.target {
            Target::Program(program) => Some(program.clone()),
            Target::Remote(_) => None,
        };
        let Some(Program { isolation, network, .. }) = program(new) else { return Ok(()) };
        let before = old.and_then(program);
        if isolation == Isolation::None && before.as_ref().is_none_or(|before| before.isolation != Isolation::None) {
            return Err(beyond("config.isolation".to_string(), "`sandbox`"));
        }
        match before.is_some_and(|before| before.network == network) {
            true => Ok(()),
            false => self.admit_network("config.network", &network),
        }
    }

    fn admit_port(&self, field: &str, port: &PortMapping) -> Result<(), Beyond> {
        if !self.host_addresses.contains(&port.address.to_canonical()) {
            let all: Vec<String> = self.host_addresses.iter().map(ToString::to_string).collect();
            return Err(beyond(field.to_string(), format_args!("an address of {}", listed(&all))));
        }
        if !self.host_ports.iter().any(|range| range.contains(&port.host)) {
            let all: Vec<String> =
                self.host_ports.iter().map(|range| format!("{}-{}", range.start(), range.end())).collect();
            return Err(beyond(field.to_string(), format_args!("a port of {}", listed(&all))));
        }
        Ok(())
    }

    fn admit_network(&self, field: &str, network: &str) -> Result<(), Beyond> {
        match self.networks.iter().any(|allowed| allowed == network) {
            true => Ok(()),
            false => Err(beyond(field.to_string(), format_args!("one of {}", listed(&self.networks)))),
        }
    }
}

fn beyond(field: String, allowed: impl fmt::Display) -> Beyond {
    let why = format!("{field}: {allowed} is what a token that is limited to some servers or projects may give");
    Beyond { field, why }
}

fn listed(all: &[String]) -> String {
    if all.is_empty() { "none".to_string() } else { all.join(", ") }
}

enum Amount {
    Milli(u64),
    Plain(u64),
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Amount::Milli(milli) => write!(f, "{}", *milli as f64 / 1000.0),
            Amount::Plain(amount) => write!(f, "{amount}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::definition::tests::definition;

    type Change = fn(&mut Definition);

    fn refused(old: Option<&Definition>, change: impl Fn(&mut Definition)) -> Option<String> {
        let mut new = old.cloned().unwrap_or_else(definition);
        change(&mut new);
        Ceilings::default().admit(old, &new).err().map(|beyond| beyond.field)
    }

    fn port(address: &str, host: u16) -> PortMapping {
        PortMapping { host, container: 80, address: address.parse().unwrap() }
    }

    #[test]
    fn each_field_has_its_ceiling() {
        assert_eq!(refused(None, |_| {}), None, "what asks for nothing");
        let changes: [(&str, Change); 10] = [
            ("resource_limits.cpu", |d| d.resource_limits.cpu_milli += 1),
            ("resource_limits.memory", |d| d.resource_limits.memory_bytes += 1),
            ("resource_limits.disk", |d| d.resource_limits.disk_bytes += 1),
            ("resource_limits.pids", |d| d.resource_limits.pids += 1),
            ("resource_limits.volume", |d| d.resource_limits.volume_bytes = Some(u64::MAX)),
            ("ports[1]", |d| d.ports = vec![port("127.0.0.1", 8080), port("0.0.0.0", 8080)]),
            ("ports[0]", |d| d.ports = vec![port("::ffff:10.0.0.1", 8080)]),
            ("ports[0]", |d| d.ports = vec![port("127.0.0.1", 80)]),
            ("network", |d| d.network = Some("host".into())),
            ("provider", |d| d.provider = Some("none".into())),
        ];
        for (field, change) in changes {
            assert_eq!(refused(None, change).as_deref(), Some(field));
            let before = definition();
            assert_eq!(refused(Some(&before), change).as_deref(), Some(field));
            // What is there already is not asked for.
            let mut given = definition();
            change(&mut given);
            assert_eq!(refused(Some(&given), |d| d.workdir = Some("/x".into())), None, "{field}");
        }
        assert_eq!(refused(None, |d| d.ports = vec![port("::1", 1024), port("127.0.0.1", 65535)]), None);
        assert_eq!(refused(None, |d| d.network = Some("bridge".into())), None);
    }

    #[test]
    fn what_others_gave_may_shrink_and_not_grow() {
        let mut given = definition();
        given.resource_limits.memory_bytes = 8 << 30;
        assert_eq!(refused(Some(&given), |d| d.resource_limits.memory_bytes = 4 << 30), None);
        let more = refused(Some(&given), |d| d.resource_limits.memory_bytes = 9 << 30);
        assert_eq!(more.as_deref(), Some("resource_limits.memory"));
    }
}
