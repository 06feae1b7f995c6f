//! Who a client certificate stands for: the common name of its subject, and the rule that gives this name scopes and
//! servers. Whether the certificate is good was decided before (by rustls). Reads DER and never panics on it.

use crate::model::external::ProjectId;
use crate::model::principal::{Limits, Principal, Scopes};

/// Of the name of whoever comes with a certificate. No token's name has a colon in it.
pub const PREFIX: &str = "cert:";

/// What the configuration gives to a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateRule {
    pub cn: String,
    pub scopes: Vec<String>,
    pub servers: Vec<String>,
    /// Both empty: all.
    pub projects: Vec<ProjectId>,
}

/// None: no rule is for it, and it is worth nothing.
pub fn principal(rules: &[CertificateRule], certificate: &[u8]) -> Option<Principal> {
    let cn = common_name(certificate)?;
    let rule = rules.iter().find(|rule| rule.cn == cn)?;
    Some(Principal {
        name: format!("{PREFIX}{cn}").into(),
        scopes: Scopes::of(&rule.scopes),
        limits: Limits { servers: rule.servers.clone().into(), projects: rule.projects.clone().into() },
        rate_limit: None,
    })
}

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT: u8 = 0x06;
/// `[0]` of a TBSCertificate: its version, which version 1 leaves out.
const VERSION: u8 = 0xa0;
const UTF8: u8 = 0x0c;
const PRINTABLE: u8 = 0x13;
const IA5: u8 = 0x16;
/// 2.5.4.3
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// Of the subject; the last one, if it has several: that is the most specific.
pub fn common_name(certificate: &[u8]) -> Option<&str> {
    let (certificate, _) = element(certificate, SEQUENCE)?;
    let (mut rest, _) = element(certificate, SEQUENCE)?;
    if rest.first() == Some(&VERSION) {
        rest = any(rest)?.2;
    }
    // The serial number, the algorithm, the issuer, the time.
    for _ in 0..4 {
        rest = any(rest)?.2;
    }
    let (mut subject, _) = element(rest, SEQUENCE)?;
    let mut found = None;
    while !subject.is_empty() {
        let (mut set, after) = element(subject, SET)?;
        subject = after;
        while !set.is_empty() {
            let (pair, after) = element(set, SEQUENCE)?;
            set = after;
            let (kind, value) = element(pair, OBJECT)?;
            if kind == COMMON_NAME {
                found = Some(any(value).filter(|(tag, ..)| [UTF8, PRINTABLE, IA5].contains(tag))?.1);
            }
        }
    }
    std::str::from_utf8(found?).ok()
}

/// What is inside an element of this kind, and what follows it.
fn element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    any(der).filter(|(found, ..)| *found == tag).map(|(_, inside, after)| (inside, after))
}

fn any(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x83 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest)
        }
        _ => return None,
    };
    let (inside, after) = rest.split_at_checked(length)?;
    Some((tag, inside, after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::mutation::Mutator;

    fn der(tag: u8, inside: &[&[u8]]) -> Vec<u8> {
        let inside = inside.concat();
        let length = inside.len();
        let head =
            if length < 128 { vec![tag, length as u8] } else { vec![tag, 0x82, (length >> 8) as u8, length as u8] };
        [head, inside].concat()
    }

    fn named(names: &[(u8, &[u8])]) -> Vec<u8> {
        let pair = |(tag, name): &(u8, &[u8])| {
            der(SET, &[&der(SEQUENCE, &[&der(OBJECT, &[COMMON_NAME]), &der(*tag, &[*name])])])
        };
        let subject: Vec<Vec<u8>> = names.iter().map(pair).collect();
        let subject = der(SEQUENCE, &[&subject.concat()]);
        let nothing = der(SEQUENCE, &[]);
        let tbs = [&der(VERSION, &[&[2, 1, 2]])[..], &[2, 1, 9], &nothing, &nothing, &nothing, &subject, &[b'x'; 300]];
        der(SEQUENCE, &[&der(SEQUENCE, &tbs), &nothing])
    }

    #[test]
    fn the_common_name_is_found_in_every_usual_spelling() {
        assert_eq!(common_name(&named(&[(UTF8, "ü".as_bytes())])), Some("ü"));
        assert_eq!(common_name(&named(&[(PRINTABLE, b"a"), (IA5, b"ops")])), Some("ops"));
        assert_eq!(common_name(&named(&[])), None);
        assert_eq!(common_name(&named(&[(UTF8, b"\xff")])), None);
        assert_eq!(common_name(&named(&[(0x1e, b"\0o\0p\0s")])), None, "an old spelling that nobody is found by");
    }

    #[test]
    fn a_rule_gives_what_it_says_and_no_rule_gives_nothing() {
        let rule = |cn: &str, servers: &[&str]| CertificateRule {
            cn: cn.into(),
            scopes: vec!["mcp:call".into()],
            servers: servers.iter().map(ToString::to_string).collect(),
            projects: Vec::new(),
        };
        let rules = [rule("ops", &[]), rule("agent", &["time"])];
        let who = principal(&rules, &named(&[(UTF8, b"agent")])).unwrap();
        assert_eq!(&*who.name, "cert:agent");
        assert!(
            who.may_see_named("time", None)
                && !who.may_see_named("notes", None)
                && who.scopes.mcp_call
                && !who.scopes.admin_read
        );
        assert!(principal(&rules, &named(&[(UTF8, b"ops")])).unwrap().may_see_named("notes", None));
        assert_eq!(principal(&rules, &named(&[(UTF8, b"Ops")])), None);
        assert_eq!(principal(&[], &named(&[(UTF8, b"ops")])), None);
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let seed = named(&[(UTF8, b"ops"), (PRINTABLE, b"agent")]);
        let mut mutator = Mutator::new(7);
        for _ in 0..20_000 {
            let _ = common_name(&mutator.mutate(&[&seed]));
        }
        for cut in 0..seed.len() {
            let _ = common_name(&seed[..cut]);
        }
    }
}
