//! Which addresses a sandbox may be given: the public ones, the private ones on somebody's word, and those that nobody
//! gets. PURE: numbers only; who is asked for a word, and which addresses are this host's own, others know.

use ::core::fmt;
use ::core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use serde::{Deserialize, Serialize};

/// What stands at an address, as far as its number says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Public,
    /// A network of somebody: an `egress` list or the operator must name it.
    Private,
    /// This host, its cables, the provider's metadata, or no single machine at all: never opened.
    Never,
}

const NEVER_V4: &[(Ipv4Addr, u8)] = &[
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    // A public number that a large provider answers on inside every one of its machines.
    (Ipv4Addr::new(168, 63, 129, 16), 32),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    // Multicast, reserved, broadcast.
    (Ipv4Addr::new(224, 0, 0, 0), 3),
];
const PRIVATE_V4: &[(Ipv4Addr, u8)] = &[
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
];

/// Translators (NAT64, 6to4) take a v4 address out of these: 64:ff9b::/96 has it in the last bits, 2002::/16 after the
/// first ones. Such an address is what its v4 address is.
const NAT64: u128 = 0x0064_ff9b << 96;
const SIX_TO_FOUR: u128 = 0x2002 << 112;

/// All v4 addresses of a kind that is not public, from the first to the last of each range.
pub fn v4(kind: Kind) -> Vec<(Ipv4Addr, Ipv4Addr)> {
    listed_v4(kind)
        .iter()
        .map(|(first, prefix)| (*first, Ipv4Addr::from(u32::from(*first) | !mask_v4(*prefix))))
        .collect()
}

/// As `v4`. Only 2000::/3 and NAT64 lead to machines; everything else has no public use.
pub fn v6(kind: Kind) -> Vec<(Ipv6Addr, Ipv6Addr)> {
    let nat64_last = NAT64 | u128::from(u32::MAX);
    let mut ranges: Vec<(u128, u128)> = match kind {
        Kind::Public => Vec::new(),
        Kind::Private => vec![(0xfc << 120, (0xfe << 120) - 1)],
        Kind::Never => vec![
            // Loopback, v4-mapped, unassigned.
            (0, NAT64 - 1),
            (nat64_last + 1, (0x20 << 120) - 1),
            // Teredo hides a v4 address too, and is gone from the world.
            (0x2001 << 112, (0x2001_0001 << 96) - 1),
            (0x40 << 120, (0xfc << 120) - 1),
            // Link-local, site-local, multicast.
            (0xfe << 120, u128::MAX),
        ],
    };
    for (first, last) in v4(kind) {
        let (first, last) = (u128::from(u32::from(first)), u128::from(u32::from(last)));
        ranges.push((NAT64 | first, NAT64 | last));
        ranges.push((SIX_TO_FOUR | first << 80, SIX_TO_FOUR | last << 80 | ((1 << 80) - 1)));
    }
    ranges.into_iter().map(|(first, last)| (Ipv6Addr::from(first), Ipv6Addr::from(last))).collect()
}

pub fn kind_of(address: IpAddr) -> Kind {
    let is = |kind: Kind| match address {
        IpAddr::V4(address) => v4(kind).iter().any(|(first, last)| (*first..=*last).contains(&address)),
        IpAddr::V6(address) => v6(kind).iter().any(|(first, last)| (*first..=*last).contains(&address)),
    };
    match (is(Kind::Never), is(Kind::Private)) {
        (true, _) => Kind::Never,
        (false, true) => Kind::Private,
        (false, false) => Kind::Public,
    }
}

fn listed_v4(kind: Kind) -> &'static [(Ipv4Addr, u8)] {
    match kind {
        Kind::Public => &[],
        Kind::Private => PRIVATE_V4,
        Kind::Never => NEVER_V4,
    }
}

fn mask_v4(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0)
}

/// An address, or a range of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Net {
    pub address: IpAddr,
    pub prefix: u8,
}

impl Net {
    /// `192.0.2.7`, `10.0.0.0/8`, `[2001:db8::1]`, `fd00::/8`: the spare bits are zero.
    pub fn parse(text: &str) -> Option<Net> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (bare(address), Some(prefix)),
            None => (bare(text), None),
        };
        let address: IpAddr = address.parse().ok()?;
        let width = width(address);
        let prefix = match prefix {
            None => width,
            Some(text) if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) => {
                text.parse().ok().filter(|prefix| *prefix <= width)?
            }
            Some(_) => return None,
        };
        let net = Net { address, prefix };
        (net.bounds().0 == address).then_some(net)
    }

    pub fn of(address: IpAddr) -> Net {
        Net { address, prefix: width(address) }
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        let (first, last) = self.bounds();
        self.address.is_ipv4() == address.is_ipv4() && (first..=last).contains(&address)
    }

    /// What all of it is. A range that has more than one kind of address in it counts as public: it names no private
    /// network, it only happens to go around one.
    pub fn kind(&self) -> Kind {
        let (first, last) = self.bounds();
        let inside = |kind: Kind| match (first, last) {
            (IpAddr::V4(first), IpAddr::V4(last)) => v4(kind).iter().any(|range| range.0 <= first && last <= range.1),
            (IpAddr::V6(first), IpAddr::V6(last)) => v6(kind).iter().any(|range| range.0 <= first && last <= range.1),
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        };
        match (inside(Kind::Never), inside(Kind::Private)) {
            (true, _) => Kind::Never,
            (false, true) => Kind::Private,
            (false, false) => Kind::Public,
        }
    }

    fn bounds(&self) -> (IpAddr, IpAddr) {
        match self.address {
            IpAddr::V4(address) => {
                let (bits, mask) = (u32::from(address), mask_v4(self.prefix.min(32)));
                (Ipv4Addr::from(bits & mask).into(), Ipv4Addr::from(bits | !mask).into())
            }
            IpAddr::V6(address) => {
                let spare = 128 - u32::from(self.prefix.min(128));
                let (bits, mask) = (u128::from(address), u128::MAX.checked_shl(spare).unwrap_or(0));
                (Ipv6Addr::from(bits & mask).into(), Ipv6Addr::from(bits | !mask).into())
            }
        }
    }
}

impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// Without the brackets that keep the colons of a v6 address together.
pub fn bare(text: &str) -> &str {
    text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(texts: &[&str], wanted: Kind) {
        for text in texts {
            assert_eq!(kind_of(text.parse().unwrap()), wanted, "{text}");
        }
    }

    #[test]
    fn every_address_is_of_the_kind_that_its_number_says() {
        kinds(
            &["0.0.0.0", "127.0.0.53", "169.254.169.254", "168.63.129.16", "224.0.0.1", "255.255.255.255"],
            Kind::Never,
        );
        kinds(
            &["10.0.0.1", "100.64.0.1", "100.127.255.255", "172.16.0.1", "172.31.255.255", "192.168.1.1"],
            Kind::Private,
        );
        kinds(&["1.1.1.1", "172.32.0.1", "100.128.0.1", "192.0.2.1", "203.0.113.9", "168.63.129.17"], Kind::Public);
        kinds(&["::", "::1", "fe80::1", "febf::1", "fec0::1", "ff02::1", "4000::1", "2001::1"], Kind::Never);
        kinds(&["fc00::1", "fd00:ec2::254", "fdff::1"], Kind::Private);
        kinds(&["2001:db8::1", "2606:4700::1111", "3fff::1", "2003::1"], Kind::Public);
    }

    #[test]
    fn a_v4_address_inside_a_v6_address_counts_as_itself() {
        kinds(
            &["::ffff:1.1.1.1", "::ffff:10.0.0.1", "64:ff9b::169.254.169.254", "2002:7f00:1::1", "64:ff9b:1::1"],
            Kind::Never,
        );
        kinds(&["64:ff9b::10.0.0.1", "2002:a00:1::", "2002:c0a8:101:ffff::1"], Kind::Private);
        kinds(&["64:ff9b::1.1.1.1", "2002:101:101::1"], Kind::Public);
    }

    #[test]
    fn a_range_is_private_only_if_all_of_it_is() {
        for (text, kind) in [
            ("10.0.0.0/8", Kind::Private),
            ("10.1.2.3", Kind::Private),
            ("fd00::/8", Kind::Private),
            ("0.0.0.0/0", Kind::Public),
            ("::/0", Kind::Public),
            ("8.0.0.0/6", Kind::Public),
            ("169.254.169.254", Kind::Never),
            ("fe80::/64", Kind::Never),
            ("127.0.0.0/8", Kind::Never),
        ] {
            assert_eq!(Net::parse(text).unwrap().kind(), kind, "{text}");
        }
    }

    #[test]
    fn a_range_with_spare_bits_is_a_slip() {
        for text in ["10.0.0.1/8", "10.0.0.0/33", "fd00::1/64", "::/129", "x", "", "10.0.0.0/", "10.0.0.0/+8", "1.2.3"]
        {
            assert_eq!(Net::parse(text), None, "{text}");
        }
        let net = Net::parse("10.0.0.0/8").unwrap();
        assert!(net.contains("10.255.255.255".parse().unwrap()) && !net.contains("11.0.0.0".parse().unwrap()));
        assert!(
            !net.contains("::a00:1".parse().unwrap()) && Net::parse("::/0").unwrap().contains("::1".parse().unwrap())
        );
    }
}
