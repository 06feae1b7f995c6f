//! Names of images, and where a name says the image comes from. Pure: nothing is asked, nothing is guessed. A name
//! without a registry has none, unless the configuration names one.

use crate::sandbox::image::ImageError;
use std::net::Ipv6Addr;

/// An image at a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// `HOST[:PORT]`.
    pub registry: String,
    pub repository: String,
    pub version: Version,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Version {
    Tag(String),
    /// `sha256:…`, checked.
    Digest(String),
}

impl Version {
    /// As it stands in a path of the distribution API.
    pub fn text(&self) -> &str {
        match self {
            Version::Tag(text) | Version::Digest(text) => text,
        }
    }
}

/// A name taken apart.
struct Parts<'a> {
    path: &'a str,
    tag: Option<&'a str>,
    digest: Option<&'a str>,
}

/// A name in its one spelling: `path:tag` (`latest` if none was given), or `path@sha256:…`. With a digest a tag says
/// nothing more and is left out.
pub fn full_name(name: &str) -> Result<String, ImageError> {
    let parts = parts(name)?;
    Ok(match parts.digest {
        Some(digest) => format!("{}@{digest}", parts.path),
        None => format!("{}:{}", parts.path, parts.tag.unwrap_or("latest")),
    })
}

/// Where the image of that name can be pulled from; None: the name has no registry and there is no default.
pub fn reference(name: &str, default_registry: Option<&str>) -> Result<Option<Reference>, ImageError> {
    let parts = parts(name)?;
    let (registry, repository) = match parts.path.split_once('/') {
        Some((first, rest)) if is_registry(first) => (first, rest),
        Some(_) | None => match default_registry {
            Some(registry) => (registry, parts.path),
            None => return Ok(None),
        },
    };
    let version = match parts.digest {
        Some(digest) => Version::Digest(digest.to_owned()),
        None => Version::Tag(parts.tag.unwrap_or("latest").to_owned()),
    };
    Ok(Some(Reference { registry: registry.to_owned(), repository: repository.to_owned(), version }))
}

/// The first part of a name is a host if it can be nothing else: it has a dot or a port, or is this machine.
fn is_registry(first: &str) -> bool {
    first.contains(['.', ':']) || first == "localhost"
}

fn parts(name: &str) -> Result<Parts<'_>, ImageError> {
    let bad = || ImageError::BadName(name.to_owned());
    if name.is_empty() || name.len() > 255 {
        return Err(bad());
    }
    let (rest, digest) = match name.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (name, None),
    };
    // A colon before the last slash is a registry's port.
    let after_slash = rest.rfind('/').map_or(0, |at| at + 1);
    let (path, tag) = match rest[after_slash..].find(':') {
        Some(at) => (&rest[..after_slash + at], Some(&rest[after_slash + at + 1..])),
        None => (rest, None),
    };
    let tag_ok = |tag: &str| {
        (1..=128).contains(&tag.len())
            && tag.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
            && !tag.starts_with(['.', '-'])
    };
    let digest_ok = |digest: &str| digest.strip_prefix("sha256:").is_some_and(is_sha256_hex);
    let parts_ok = path.split('/').enumerate().all(|(at, part)| is_part(part, at == 0 && path.contains('/')));
    if parts_ok && tag.is_none_or(tag_ok) && digest.is_none_or(digest_ok) {
        Ok(Parts { path, tag, digest })
    } else {
        Err(bad())
    }
}

/// One part between slashes; the first of several may have a port, or be an IPv6 address in brackets.
fn is_part(part: &str, may_be_host: bool) -> bool {
    if let (true, Some((address, rest))) = (may_be_host, part.strip_prefix('[').and_then(|rest| rest.split_once(']'))) {
        let port_ok = rest.is_empty() || rest.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
        return address.parse::<Ipv6Addr>().is_ok() && port_ok;
    }
    let tame = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b);
    let (body, port) = match part.split_once(':') {
        Some((body, port)) if may_be_host => (body, Some(port)),
        Some(_) | None => (part, None),
    };
    let ends = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_alphanumeric());
    body.bytes().all(tame)
        && ends(body.bytes().next())
        && ends(body.bytes().last())
        && port.is_none_or(|port| port.parse::<u16>().is_ok())
}

pub fn is_sha256_hex(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_spelling() {
        let full = |name: &str| full_name(name).unwrap();
        let digest = format!("sha256:{}", "a1".repeat(32));
        assert_eq!(full("echo"), "echo:latest");
        assert_eq!(full("echo:1.0"), "echo:1.0");
        assert_eq!(full("localhost:5000/team/echo"), "localhost:5000/team/echo:latest");
        assert_eq!(full("example.test/echo:v1"), "example.test/echo:v1");
        assert_eq!(full(&format!("example.test/echo@{digest}")), format!("example.test/echo@{digest}"));
        assert_eq!(full(&format!("example.test/echo:v1@{digest}")), format!("example.test/echo@{digest}"));
        let bad = ["", ":", "a:", "A", "../x", "a//b", "/a", "a/", "a:b:c", "a b", "a:.x", "x/y:5000/z", "a\n", "a@b"];
        for bad in bad.into_iter().chain(["a@sha256:12", "@sha256:aa", "a@"]) {
            assert!(full_name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn only_a_host_is_taken_for_a_registry() {
        let found = |name: &str, default| {
            reference(name, default).unwrap().map(|r| format!("{} {} {}", r.registry, r.repository, r.version.text()))
        };
        assert_eq!(found("example.test/a/b:1", None).as_deref(), Some("example.test a/b 1"));
        assert_eq!(found("localhost/a", None).as_deref(), Some("localhost a latest"));
        assert_eq!(found("127.0.0.1:5000/a", None).as_deref(), Some("127.0.0.1:5000 a latest"));
        assert_eq!(found("[::1]:5000/a:1", None).as_deref(), Some("[::1]:5000 a 1"));
        assert_eq!(found("[2001:db8::7]/a", None).as_deref(), Some("[2001:db8::7] a latest"));
        for bad in ["[::1]", "[::1]x/a", "[::1]:x/a", "[1.2.3.4]/a", "a/[::1]", "[::1/a", "[]/a"] {
            assert!(reference(bad, None).is_err(), "{bad}");
        }
        for short in ["a", "a:1", "team/a"] {
            assert_eq!(found(short, None), None);
            assert!(found(short, Some("r.test")).unwrap().starts_with(&format!("r.test {}", &short[..1])));
        }
    }
}
