//! How a server is reached and what it may reach: `ports`, `network`, `egress`. Owns their spelling; never asks the host
//! whether a port is free or a network is there.

use crate::api::definition::described;
use crate::api::definition::strict_json::Field;
use crate::limits::{EGRESS_MAX, HOST_MAX, NAME_MAX, PORTS_MAX};
use crate::model::definition::{Definition, Egress, EgressTarget, PortMapping};
use crate::model::fault::Fault;
use crate::model::ranges::{Kind, Net, bare};
use ::core::net::{IpAddr, Ipv4Addr};
use serde_json::Value;

// --- ports ----------------------------------------------------------------------------------------------------------

/// `["8080:80", "0.0.0.0:8080:80", {"host": 8080, "container": 80, "address": "::1"}]`
pub fn ports(field: Field) -> Result<Vec<PortMapping>, Fault> {
    let mut ports: Vec<PortMapping> = Vec::new();
    for item in field.list(PORTS_MAX)? {
        let place = item.path.clone();
        let port = match item.value {
            Value::Object(_) => port_object(item)?,
            Value::String(_) => item.parse(port_text)?,
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => {
                return Err(item.expected("\"8080:80\" or {\"host\": 8080, \"container\": 80}"));
            }
        };
        if let Some(other) = ports.iter().find(|other| other.collides_with(&port)) {
            return Err(Fault::field(&place, format_args!("takes the same host port as {other}")));
        }
        ports.push(port);
    }
    Ok(ports)
}

fn port_object(field: Field) -> Result<PortMapping, Fault> {
    let mut fields = field.object(&const { described::names(&described::PORT_MAPPING) })?;
    let host = fields.required("host")?.integer(1..=u16::MAX)?;
    let container = fields.required("container")?.integer(1..=u16::MAX)?;
    let mut address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let loopback = address;
    fields.set("address", &mut address, &loopback, |field| {
        field.parse(|text| text.parse().map_err(|_| "expected an address of this host, as in 127.0.0.1".to_string()))
    })?;
    fields.finish();
    Ok(PortMapping { host, container, address })
}

fn port_text(text: &str) -> Result<PortMapping, String> {
    let wrong = || "expected HOST:CONTAINER or ADDRESS:HOST:CONTAINER, as in \"8080:80\"".to_string();
    let (rest, container) = text.rsplit_once(':').ok_or_else(wrong)?;
    let (address, host) = match rest.rsplit_once(':') {
        Some((address, host)) => (Some(address), host),
        None => (None, rest),
    };
    let address = match address {
        None => IpAddr::V4(Ipv4Addr::LOCALHOST),
        Some(text) => bare(text).parse().map_err(|_| wrong())?,
    };
    Ok(PortMapping { host: port(host).ok_or_else(wrong)?, container: port(container).ok_or_else(wrong)?, address })
}

fn port(text: &str) -> Option<u16> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| digits && *port != 0)
}

// --- networks -------------------------------------------------------------------------------------------------------

pub fn network(text: &str) -> Result<String, String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if text.is_empty() || text.len() > NAME_MAX || !text.bytes().all(allowed) {
        return Err("expected \"none\", \"bridge\" or the name of a CNI network".to_string());
    }
    Ok(text.to_string())
}

/// `["db.example:5432", "10.0.0.0/8", "192.0.2.7:443", "[2001:db8::1]:443"]`
pub fn egress(field: Field) -> Result<Vec<Egress>, Fault> {
    field.list(EGRESS_MAX)?.into_iter().map(|item| item.parse(egress_text)).collect()
}

fn egress_text(text: &str) -> Result<Egress, String> {
    let wrong = || "expected HOST:PORT, ADDRESS[:PORT] or CIDR[:PORT], as in \"db.example:5432\"".to_string();
    if let Some(target) = net(text) {
        return possible(Egress { target, port: None });
    }
    let (target, number) = text.rsplit_once(':').ok_or_else(wrong)?;
    let number = port(number).ok_or_else(wrong)?;
    let target = net(target).or_else(|| host(target)).ok_or_else(wrong)?;
    possible(Egress { target, port: Some(number) })
}

/// What no list opens is refused here, where somebody reads it. A range that is wider is not: the fence keeps them apart.
fn possible(egress: Egress) -> Result<Egress, String> {
    match egress.target {
        EgressTarget::Net { address, prefix } if (Net { address, prefix }).kind() == Kind::Never => {
            Err("is never opened: loopback, link-local, metadata and multicast addresses are no list's to give"
                .to_string())
        }
        EgressTarget::Net { .. } | EgressTarget::Host(_) => Ok(egress),
    }
}

fn net(text: &str) -> Option<EgressTarget> {
    Net::parse(text).map(|Net { address, prefix }| EgressTarget::Net { address, prefix })
}

fn host(text: &str) -> Option<EgressTarget> {
    let label = |label: &str| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        (1..=63).contains(&label.len())
            && label.bytes().all(allowed)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    // A name that is all digits and dots is an address with a slip in it.
    let named = text.bytes().any(|byte| byte.is_ascii_alphabetic());
    (text.len() <= HOST_MAX && named && text.split('.').all(label)).then(|| EgressTarget::Host(text.to_string()))
}

// --- together -------------------------------------------------------------------------------------------------------

pub fn check(definition: &Definition) -> Result<(), Fault> {
    let network = definition.network.as_deref();
    if !definition.ports.is_empty() && network == Some("none") {
        return Err(Fault::field("ports", "need a network; leave `network` out, and nothing but the ports is open"));
    }
    if definition.egress.is_some() && matches!(network, Some("none" | "host")) {
        return Err(Fault::field("egress", "is a list of exceptions, and this network has nothing to except from"));
    }
    if !definition.ports.is_empty() && network == Some("host") {
        return Err(Fault::field("ports", "are the server's own on the host's network; leave them out"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read_ports(value: Value) -> Result<Vec<String>, Fault> {
        let ports = ports(Field { path: "ports".into(), value })?;
        Ok(ports.iter().map(ToString::to_string).collect())
    }

    fn read_egress(value: Value) -> Result<Vec<String>, Fault> {
        let list = egress(Field { path: "egress".into(), value })?;
        Ok(list.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn ports_are_on_loopback_unless_an_address_is_named() {
        let all =
            json!(["8080:80", "0.0.0.0:81:80", "[::1]:82:80", {"host": 83, "container": 80, "address": "192.0.2.1"}]);
        let shown = ["127.0.0.1:8080:80", "0.0.0.0:81:80", "[::1]:82:80", "192.0.2.1:83:80"];
        assert_eq!(read_ports(all).unwrap(), shown);
    }

    #[test]
    fn ports_that_are_none_are_refused_with_their_place() {
        let wrong =
            ["80", "", ":", "8080:", ":80", "0:80", "65536:80", "a:80", "1.2.3:80:80", "+1:80", "localhost:1:2"];
        for text in wrong.iter().map(|text| json!(text)).chain([json!(80), json!({"host": 1}), json!(null)]) {
            let fault = read_ports(json!(["1:1", text])).unwrap_err();
            assert!(fault.message.starts_with("ports[1]"), "{text}: {}", fault.message);
        }
        let twice = read_ports(json!(["8080:80", "0.0.0.0:8080:81"])).unwrap_err();
        assert!(twice.message.contains("127.0.0.1:8080:80"), "{}", twice.message);
    }

    #[test]
    fn egress_is_a_host_with_a_port_or_a_range() {
        let list = json!(["db.example:5432", "10.0.0.0/8", "192.0.2.7:443", "192.0.2.7", "[2001:db8::1]:443", "::/0"]);
        let shown = ["db.example:5432", "10.0.0.0/8", "192.0.2.7:443", "192.0.2.7", "[2001:db8::1]:443", "::/0"];
        assert_eq!(read_egress(list).unwrap(), shown);
        let wrong =
            ["db.example", "10.0.0.1/8", "10.0.0.0/33", "x:0", "1.2.3:80", "a b:80", "-x:1", "x/8:1", "*:80", ""];
        for text in wrong {
            assert!(read_egress(json!([text])).is_err(), "{text}");
        }
        assert_eq!(read_egress(json!([])).unwrap(), Vec::<String>::new());
        for never in ["169.254.169.254:80", "127.0.0.1:5432", "[fe80::1]:80", "[::ffff:127.0.0.1]:80", "224.0.0.0/4"] {
            let fault = read_egress(json!([never])).unwrap_err();
            assert!(fault.message.contains("never opened"), "{never}: {}", fault.message);
        }
    }
}
