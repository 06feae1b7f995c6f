//! Request targets, hosts and percent-escapes. Owns what a path may look like before the router sees it: no escape can
//! make a `/`, a control byte or anything that is not UTF-8. It never normalises: `..` and `//` stay what they are.

use crate::limits::HOST_MAX;
use memchr::{memchr, memchr2};
use std::borrow::Cow;
use std::ops::Range;

/// Where the parts of a target stand in it, and what must be undone to read its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Only of an absolute target; it counts more than `Host`.
    pub authority: Option<Range<usize>>,
    /// Empty: the root, of an absolute target that ends with its authority.
    pub path: Range<usize>,
    /// Without its `?`.
    pub query: Range<usize>,
}

/// Where an escape stands decides what it may say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Path,
    /// Here `+` is a space, as forms write it.
    Query,
}

/// Takes a target apart; the error says what is wrong with it.
pub fn split(target: &str, is_options: bool) -> Result<Target, &'static str> {
    if !target.is_ascii() {
        return Err("the target has bytes that must be percent-encoded");
    }
    if target == "*" && is_options {
        return Ok(Target { authority: None, path: 0..1, query: 1..1 });
    }
    if memchr(b'#', target.as_bytes()).is_some() {
        return Err("the target has a fragment");
    }
    let authority = match scheme_len(target) {
        Some(start) => {
            let end = target[start..].find(['/', '?']).map_or(target.len(), |at| start + at);
            if !is_host(&target.as_bytes()[start..end]) {
                return Err("the authority of the target is not a host with an optional port");
            }
            Some(start..end)
        }
        None if target.starts_with('/') => None,
        None => return Err("the target must be a path, an http URL, or * with OPTIONS"),
    };
    let start = authority.as_ref().map_or(0, |range| range.end);
    let end = memchr(b'?', &target.as_bytes()[start..]).map_or(target.len(), |at| start + at);
    let query = (end + 1).min(target.len())..target.len();
    unescape(&target[start..end], Part::Path)?;
    unescape(&target[query.clone()], Part::Query)?;
    Ok(Target { authority, path: start..end, query })
}

fn scheme_len(target: &str) -> Option<usize> {
    ["http://", "https://"]
        .into_iter()
        .find(|scheme| target.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)))
        .map(str::len)
}

/// `host`, `host:port`, `[v6]` or `[v6]:port`. No user info, no escapes: a host is compared with allowed ones later, and
/// must have one spelling.
pub fn is_host(value: &[u8]) -> bool {
    let (name, port) = match value {
        [b'[', rest @ ..] => {
            let Some(end) = memchr(b']', rest) else { return false };
            let v6 = &rest[..end];
            if v6.len() < 2 || !v6.iter().all(|b| b.is_ascii_hexdigit() || matches!(b, b':' | b'.')) {
                return false;
            }
            (v6, &rest[end + 1..])
        }
        _ => {
            let name = &value[..memchr(b':', value).unwrap_or(value.len())];
            if !name.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~')) {
                return false;
            }
            (name, &value[name.len()..])
        }
    };
    let port_ok = match port {
        [] => true,
        [b':', digits @ ..] => digits.len() <= 5 && digits.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    !name.is_empty() && port_ok && value.len() <= HOST_MAX
}

/// Undoes `%xx` (and `+` in a query). Text without any is given back as it is.
pub fn unescape(text: &str, part: Part) -> Result<Cow<'_, str>, &'static str> {
    let bytes = text.as_bytes();
    let first = match part {
        Part::Path => memchr(b'%', bytes),
        Part::Query => memchr2(b'%', b'+', bytes),
    };
    let Some(mut at) = first else { return Ok(Cow::Borrowed(text)) };
    let mut plain = Vec::with_capacity(bytes.len());
    plain.extend_from_slice(&bytes[..at]);
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'%' => {
                let escape = bytes.get(at + 1..at + 3).ok_or("a % without two hex digits")?;
                let (Some(high), Some(low)) = (hex(escape[0]), hex(escape[1])) else {
                    return Err("a % without two hex digits");
                };
                plain.push(allowed(high << 4 | low, part)?);
                at += 3;
            }
            b'+' if part == Part::Query => {
                plain.push(b' ');
                at += 1;
            }
            _ => {
                plain.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8(plain).map(Cow::Owned).map_err(|_| "the target is not UTF-8 once decoded")
}

fn allowed(byte: u8, part: Part) -> Result<u8, &'static str> {
    match (byte, part) {
        (0, _) => Err("%00 in the target"),
        // The router splits at `/`: an encoded one would be data to a proxy in front and structure here.
        (b'/', Part::Path) => Err("an encoded slash (%2F) in the path"),
        (0x01..=0x1f | 0x7f, Part::Path) => Err("an encoded control byte in the path"),
        (_, Part::Path | Part::Query) => Ok(byte),
    }
}

/// The value of one hex digit.
pub fn hex(digit: u8) -> Option<u8> {
    (digit as char).to_digit(16).map(|value| value as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(target: &str) -> Result<(Option<&str>, &str, &str), &'static str> {
        let found = split(target, false)?;
        Ok((found.authority.map(|range| &target[range]), &target[found.path], &target[found.query]))
    }

    #[test]
    fn targets_are_taken_apart() {
        assert_eq!(parts("/"), Ok((None, "/", "")));
        assert_eq!(parts("/a//../b?x=1?y&z"), Ok((None, "/a//../b", "x=1?y&z")));
        assert_eq!(parts("/a?"), Ok((None, "/a", "")));
        assert_eq!(parts("http://h:80/a?q"), Ok((Some("h:80"), "/a", "q")));
        assert_eq!(parts("HTTPS://[::1]:80"), Ok((Some("[::1]:80"), "", "")));
        assert_eq!(parts("http://h?q=/"), Ok((Some("h"), "", "q=/")));
        assert!(split("*", true).is_ok() && split("*", false).is_err());
    }

    #[test]
    fn targets_that_could_be_read_in_two_ways_are_refused() {
        let bad = [
            "",
            "a",
            "h:443",
            "ftp://h/",
            "http:/h",
            "http://",
            "http:///a",
            "http://u@h/",
            "http://h:x/",
            "/#f",
            "/ä",
            "/%",
            "/%2",
            "/%zz",
            "/%+1",
            "/%00",
            "/a%2fb",
            "/a%2Fb",
            "/%0a",
            "/%7f",
            "/%ff",
            "/?%",
            "/?a=%00",
            "/?a=%c3",
        ];
        for target in bad {
            assert!(split(target, false).is_err(), "{target}");
        }
        assert!(split("//", false).is_ok(), "an empty segment is the router's business");
    }

    #[test]
    fn escapes_are_undone_once() {
        assert_eq!(unescape("/plain+", Part::Path), Ok(Cow::Borrowed("/plain+")));
        assert_eq!(unescape("/%41%2525+%c3%a4", Part::Path).as_deref(), Ok("/A%25+ä"));
        assert_eq!(unescape("a+b%2B%2f%0a", Part::Query).as_deref(), Ok("a b+/\n"));
    }

    #[test]
    fn hosts_have_one_spelling() {
        for good in ["a", "localhost:8480", "127.0.0.1", "[::1]", "[::ffff:1.2.3.4]:1", "a.b-c_d~", "h:"] {
            assert!(is_host(good.as_bytes()), "{good}");
        }
        let long = "a".repeat(256);
        for bad in
            ["", ":80", "a b", "a,b", "u@h", "h:1:2", "h:+1", "h:123456", "[]", "[::1", "[::1]x", "h/", "%41", &long]
        {
            assert!(!is_host(bad.as_bytes()), "{bad}");
        }
    }
}
