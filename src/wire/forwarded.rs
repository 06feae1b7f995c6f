//! What a proxy in front of the daemon says of whoever it speaks for: `X-Forwarded-For` and `X-Forwarded-Host`. Believed of
//! the proxies that are configured and of nobody else; a client that writes such fields itself gains nothing by it.

use crate::model::ranges::Net;
use crate::wire::http_in::Request;
use ::core::net::{IpAddr, SocketAddr};

/// The addresses of proxies that are believed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustedProxies(pub Vec<Net>);

impl TrustedProxies {
    pub fn has(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|net| net.contains(address))
    }

    /// Each proxy writes behind what it was told whom it was told by, so the list is read from its end: the first address
    /// that is no proxy of ours is the client's. What is before that, the client may have written. None: it says nothing that
    /// can be read, and the proxy itself is all that is known.
    pub fn client(&self, request: &Request<'_>) -> Option<IpAddr> {
        let fields: Vec<&[u8]> = request
            .headers()
            .filter(|(name, _)| name.eq_ignore_ascii_case("x-forwarded-for"))
            .map(|(_, v)| v)
            .collect();
        let mut last = None;
        for item in fields.iter().rev().flat_map(|field| field.rsplit(|byte| *byte == b',')) {
            let Some(address) = std::str::from_utf8(item).ok().and_then(|text| address(text.trim())) else { break };
            last = Some(address);
            if !self.has(address) {
                break;
            }
        }
        last
    }
}

/// With or without a port; IPv6 with or without brackets.
fn address(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let address = bare.parse::<IpAddr>().ok().or_else(|| text.parse::<SocketAddr>().ok().map(|at| at.ip()));
    address.map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::http_in::{Parser, Step};

    fn client(fields: &[&str]) -> Option<String> {
        let mut parser = Parser::new();
        let fields: String = fields.iter().map(|field| format!("X-Forwarded-For: {field}\r\n")).collect();
        parser.feed(format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n").as_bytes());
        assert_eq!(parser.step(), Step::Request);
        let proxies = TrustedProxies(["10.0.0.0/8", "fd00::/8"].map(|text| Net::parse(text).unwrap()).to_vec());
        proxies.client(&parser.request()).map(|address| address.to_string())
    }

    #[test]
    fn the_client_is_whoever_stands_before_the_last_proxy_of_ours() {
        let is = |fields: &[&str], wanted: &str| assert_eq!(client(fields).as_deref(), Some(wanted), "{fields:?}");
        is(&["192.0.2.7"], "192.0.2.7");
        is(&["192.0.2.7, 10.0.0.2"], "192.0.2.7");
        is(&["192.0.2.7", "10.0.0.2, 10.0.0.3"], "192.0.2.7");
        is(&["[2001:db8::1]:4711, fd00::1"], "2001:db8::1");
        is(&["192.0.2.7:80"], "192.0.2.7");
        is(&["::ffff:192.0.2.7"], "192.0.2.7");
        // All of them are ours: the first.
        is(&["10.0.0.9, 10.0.0.2"], "10.0.0.9");
        // What a client has written itself is behind the address that the proxy has seen, and is not read.
        is(&["127.0.0.1, 192.0.2.7"], "192.0.2.7");
        is(&["nonsense, 192.0.2.7, 10.0.0.2"], "192.0.2.7");
        // A proxy that tells what cannot be read is told of as far as it can.
        is(&["unknown, 10.0.0.2"], "10.0.0.2");
    }

    #[test]
    fn what_cannot_be_read_says_nothing() {
        for fields in [&[][..], &[""], &["unknown"], &["192.0.2.7,"], &["192.0.2.7 10.0.0.2"], &["\u{e9}"]] {
            assert_eq!(client(fields), None, "{fields:?}");
        }
    }
}
