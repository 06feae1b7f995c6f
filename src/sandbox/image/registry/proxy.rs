//! Which proxy leads to a registry: `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY`, in both cases, as other clients of
//! registries read them. Owns the choice and the CONNECT; TLS is spoken with the registry itself, through the proxy.
//! What is on this machine's loopback is never asked for elsewhere.

use crate::sandbox::image::registry::http::Url;
use crate::wire::answer::read_head;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::fmt;
use std::io::{self, BufReader, Write};
use std::net::{IpAddr, TcpStream};

#[derive(Clone, Debug, Default)]
pub struct Proxies {
    for_https: Option<Proxy>,
    for_http: Option<Proxy>,
    /// In lower case.
    without: Vec<String>,
}

#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    pub host: String,
    pub port: u16,
    /// The value of `Proxy-Authorization`. Never shown.
    authorization: Option<String>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("host", &self.host).field("port", &self.port).finish_non_exhaustive()
    }
}

impl Proxies {
    /// `variable`: the environment. A proxy that cannot be understood is an error: to go round it would be worse.
    pub fn of(variable: impl Fn(&str) -> Option<String>) -> Result<Proxies, String> {
        let either = |name: &str| {
            [name.to_ascii_lowercase(), name.to_owned()]
                .iter()
                .find_map(|name| variable(name))
                .filter(|v| !v.is_empty())
        };
        let read = |name: &str| -> Result<Option<Proxy>, String> {
            either(name).map(|text| Proxy::parse(&text).map_err(|why| format!("{name}: {why}"))).transpose()
        };
        let without = either("NO_PROXY").unwrap_or_default().to_ascii_lowercase();
        let without = without.split([',', ' ']).filter(|entry| !entry.is_empty()).map(str::to_owned).collect();
        Ok(Proxies { for_https: read("HTTPS_PROXY")?, for_http: read("HTTP_PROXY")?, without })
    }

    pub fn to(&self, url: &Url) -> Option<&Proxy> {
        let proxy = if url.https { &self.for_https } else { &self.for_http };
        proxy.as_ref().filter(|_| !is_here(&url.host) && !self.without.iter().any(|entry| covers(entry, url)))
    }
}

impl Proxy {
    /// `[http://][USER[:PASSWORD]@]HOST[:PORT][/]`.
    fn parse(text: &str) -> Result<Proxy, String> {
        let rest = match text.split_once("://") {
            None => text,
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest,
            Some((scheme, _)) => return Err(format!("a proxy is spoken to by http, not by {scheme:?}")),
        };
        let rest = rest.trim_end_matches('/');
        let (login, authority) = rest.rsplit_once('@').map_or((None, rest), |(login, rest)| (Some(login), rest));
        let url = Url::at(false, authority, "/".to_owned()).ok_or("it is no HOST:PORT")?;
        let authorization = login.map(|login| format!("Basic {}", STANDARD.encode(unescape(login))));
        Ok(Proxy { host: url.host, port: url.port, authorization })
    }

    /// The value of `Proxy-Authorization`.
    pub fn authorization(&self) -> Option<&str> {
        self.authorization.as_deref()
    }

    /// With its end; nothing if it wants none.
    pub fn authorization_line(&self) -> String {
        self.authorization.as_ref().map(|value| format!("Proxy-Authorization: {value}\r\n")).unwrap_or_default()
    }

    /// Asks for a way through; what is read from `stream` afterwards is the registry's.
    pub fn pass_through(&self, stream: &TcpStream, url: &Url) -> io::Result<()> {
        let host = if url.host.contains(':') { format!("[{}]", url.host) } else { url.host.clone() };
        let to = format!("{host}:{}", url.port);
        let head = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n{}\r\n", self.authorization_line());
        let mut writer = stream;
        writer.write_all(head.as_bytes())?;
        // Byte by byte: what comes after the head is not ours to read.
        let answer = read_head(&mut BufReader::with_capacity(1, stream))?;
        match answer.status {
            200..=299 => Ok(()),
            407 => Err(io::Error::other(format!("the proxy {}:{} wants a login", self.host, self.port))),
            status => Err(io::Error::other(format!("the proxy {}:{} answers {status}", self.host, self.port))),
        }
    }
}

fn is_here(host: &str) -> bool {
    host == "localhost" || host.ends_with(".localhost") || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// An entry of `NO_PROXY`: `*`, a host and all below it, `HOST:PORT`, an address, or a range of them.
fn covers(entry: &str, url: &Url) -> bool {
    let address = url.host.parse::<IpAddr>().ok();
    if let (Some(address), Some((net, prefix))) = (address, entry.split_once('/')) {
        let range = net.parse::<IpAddr>().ok().zip(prefix.parse::<u32>().ok());
        return range.is_some_and(|(net, prefix)| is_within(address, net, prefix));
    }
    let (name, port) = match entry.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') || name.ends_with(']') => (name, Some(port)),
        Some(_) | None => (entry, None),
    };
    if port.is_some_and(|port| port.parse() != Ok(url.port)) {
        return false;
    }
    let name = name.trim_start_matches('[').trim_end_matches(']');
    let name = name.strip_prefix("*.").unwrap_or(name).trim_start_matches('.');
    match address {
        Some(address) => name == "*" || name.parse() == Ok(address),
        None => {
            let below = url.host.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
            name == "*" || (!name.is_empty() && below)
        }
    }
}

fn is_within(address: IpAddr, net: IpAddr, prefix: u32) -> bool {
    let same = |a: u128, b: u128, width: u32| {
        prefix <= width && (prefix == 0 || (a ^ b).checked_shr(width - prefix).unwrap_or(0) == 0)
    };
    match (address, net) {
        (IpAddr::V4(a), IpAddr::V4(n)) => same(u32::from(a).into(), u32::from(n).into(), 32),
        (IpAddr::V6(a), IpAddr::V6(n)) => same(u128::from(a), u128::from(n), 128),
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
    }
}

/// `%40` and friends, the way a login stands in an address.
fn unescape(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        out.extend_from_slice(&rest.as_bytes()[..at]);
        match rest.get(at + 1..at + 3).and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &rest[at + 3..];
            }
            None => {
                out.push(b'%');
                rest = &rest[at + 1..];
            }
        }
    }
    out.extend_from_slice(rest.as_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(variables: &[(&str, &str)]) -> Result<Proxies, String> {
        Proxies::of(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    }

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn each_scheme_has_its_proxy_and_loopback_has_none() {
        let found =
            proxies(&[("HTTPS_PROXY", "http://u:p%40ss@Proxy.test:3128/"), ("http_proxy", "plain.test")]).unwrap();
        let https = found.to(&url("https://registry.test/v2/")).unwrap();
        assert_eq!((https.host.as_str(), https.port), ("proxy.test", 3128));
        assert_eq!(https.authorization_line(), "Proxy-Authorization: Basic dTpwQHNz\r\n");
        assert!(!format!("{found:?}").contains("dTpwQHNz"), "{found:?}");
        let http = found.to(&url("http://registry.test/v2/")).unwrap();
        assert_eq!((http.host.as_str(), http.port, http.authorization_line().as_str()), ("plain.test", 80, ""));
        for here in ["https://127.0.0.1:5000/", "https://[::1]/", "https://localhost/", "https://a.localhost/"] {
            assert_eq!(found.to(&url(here)), None, "{here}");
        }
        assert_eq!(proxies(&[]).unwrap().to(&url("https://registry.test/")), None);
        assert_eq!(proxies(&[("HTTPS_PROXY", "")]).unwrap().to(&url("https://registry.test/")), None);
        for bad in ["socks5://x:1", "http://", "http://a b", "x:y"] {
            assert!(proxies(&[("https_proxy", bad)]).unwrap_err().starts_with("HTTPS_PROXY"), "{bad}");
        }
    }

    #[test]
    fn what_needs_no_proxy_is_known_by_name_port_address_and_range() {
        let is_covered = |entry: &str, at: &str| {
            let found = proxies(&[("HTTPS_PROXY", "proxy.test:1"), ("NO_PROXY", &format!("other.test, {entry}"))]);
            found.unwrap().to(&url(at)).is_none()
        };
        for (entry, at) in [
            ("*", "https://x.test/"),
            ("test", "https://x.test/"),
            (".x.test", "https://a.x.test/"),
            ("*.x.test", "https://a.x.test/"),
            ("X.test", "https://x.test:5000/"),
            ("x.test:5000", "https://x.test:5000/"),
            ("192.0.2.7", "https://192.0.2.7/"),
            ("192.0.2.0/24", "https://192.0.2.7/"),
            ("2001:db8::/32", "https://[2001:db8::7]/"),
            ("2001:db8::7", "https://[2001:db8::7]:5000/"),
            ("[2001:db8::7]:5000", "https://[2001:db8::7]:5000/"),
            ("0.0.0.0/0", "https://192.0.2.7/"),
        ] {
            assert!(is_covered(entry, at), "{entry} {at}");
        }
        for (entry, at) in [
            ("x.test", "https://ax.test/"),
            ("x.test:5000", "https://x.test/"),
            ("192.0.2.0/24", "https://192.0.3.7/"),
            ("192.0.2.0/99", "https://192.0.2.7/"),
            ("0.0.0.0/0", "https://[2001:db8::7]/"),
            (".", "https://x.test/"),
        ] {
            assert!(!is_covered(entry, at), "{entry} {at}");
        }
    }
}
