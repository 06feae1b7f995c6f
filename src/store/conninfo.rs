//! `database_url` as libpq reads it: the client library's own keys, and those about TLS that it does not know. Pure, and shows
//! no value in an error: one may be a password.

use postgres::Config;
use postgres::config::SslMode;
use std::path::PathBuf;

#[derive(Clone, Debug)]
pub struct Conninfo {
    pub config: Config,
    pub tls: Tls,
}

/// What a connection must prove, and be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tls {
    /// In clear text: on a unix socket, or as the operator wants it.
    None,
    /// Nobody who listens can read it; who the server is nobody knows.
    Any,
    /// One that these authorities know, whatever its name.
    Known(Roots),
    /// The one that was asked for.
    Named(Roots),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Roots {
    System,
    File(PathBuf),
}

/// What there is between `?` and the end, or all of it: pairs as they stand, each with its key.
type Pairs<'a> = Vec<(&'a str, &'a str)>;

impl Conninfo {
    pub fn parse(text: &str) -> Result<Conninfo, String> {
        let is_url = text.starts_with("postgres://") || text.starts_with("postgresql://");
        let (head, pairs) = if is_url { pairs_of_url(text) } else { ("", pairs_of_words(text)?) };
        let (mut mode, mut roots) = (None, None);
        let mut kept = Vec::new();
        for (key, whole) in pairs {
            let value = whole[key.len()..].trim_start().trim_start_matches('=').trim_start();
            let value = if is_url { percent_decoded(value)? } else { unquoted(value) };
            match key {
                "sslmode" => mode = Some(value),
                "sslrootcert" if value == "system" => roots = Some(Roots::System),
                "sslrootcert" if value.starts_with('/') => roots = Some(Roots::File(PathBuf::from(value))),
                "sslrootcert" => return Err("`sslrootcert` must be `system` or an absolute path".to_string()),
                "sslcert" | "sslkey" => return Err(format!("`{key}` is not supported: use a password")),
                _ => kept.push(whole),
            }
        }
        let tls = wanted(mode.as_deref(), roots)?;
        let (mark, between) = if is_url { ("?", "&") } else { ("", " ") };
        let rest = match kept.is_empty() {
            true => head.to_string(),
            false => format!("{head}{mark}{}", kept.join(between)),
        };
        let mut config: Config = rest.parse().map_err(|_| "not a PostgreSQL connection string or URL".to_string())?;
        config.ssl_mode(if tls == Tls::None { SslMode::Disable } else { SslMode::Require });
        Ok(Conninfo { config, tls })
    }
}

/// libpq's words. With a file of authorities `require` asks who the server is, too.
fn wanted(mode: Option<&str>, roots: Option<Roots>) -> Result<Tls, String> {
    match (mode, roots) {
        (None | Some("disable" | "allow" | "prefer"), None) => Ok(Tls::None),
        (None | Some("disable" | "allow" | "prefer"), Some(_)) => {
            Err("there is `sslrootcert`, but `sslmode` asks for no proof: write `sslmode=verify-full`".to_string())
        }
        (Some("require"), None) => Ok(Tls::Any),
        (Some("require" | "verify-ca"), Some(roots)) => Ok(Tls::Known(roots)),
        (Some("verify-ca"), None) => Ok(Tls::Known(Roots::System)),
        (Some("verify-full"), roots) => Ok(Tls::Named(roots.unwrap_or(Roots::System))),
        (Some(_), _) => Err("`sslmode` is one of disable, prefer, require, verify-ca, verify-full".to_string()),
    }
}

/// The same again, for another end.
fn pairs_of_url(text: &str) -> (&str, Pairs<'_>) {
    let Some((head, query)) = text.split_once('?') else { return (text, Vec::new()) };
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    (head, pairs.map(|pair| (pair.split('=').next().unwrap_or(pair), pair)).collect())
}

/// `key = value`, the value perhaps in quotes, each with its backslashes.
fn pairs_of_words(text: &str) -> Result<Pairs<'_>, String> {
    let torn = || "not a PostgreSQL connection string or URL".to_string();
    let mut pairs = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let key = rest.split(|c: char| c == '=' || c.is_whitespace()).next().unwrap_or(rest);
        let value = rest[key.len()..].trim_start().strip_prefix('=').ok_or_else(torn)?.trim_start();
        let end = rest.len() - value.len() + value_len(value).ok_or_else(torn)?;
        pairs.push((key, &rest[..end]));
        rest = rest[end..].trim_start();
    }
    Ok(pairs)
}

/// None: its quote has no end.
fn value_len(value: &str) -> Option<usize> {
    let quoted = value.starts_with('\'');
    let mut escaped = false;
    for (at, c) in value.char_indices().skip(usize::from(quoted)) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '\'' if quoted => return Some(at + 1),
            c if !quoted && c.is_whitespace() => return Some(at),
            _ => {}
        }
    }
    (!quoted).then_some(value.len())
}

fn unquoted(value: &str) -> String {
    let inner = value.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\'')).unwrap_or(value);
    let (mut plain, mut escaped) = (String::new(), false);
    for c in inner.chars() {
        match c {
            '\\' if !escaped => escaped = true,
            c => {
                plain.push(c);
                escaped = false;
            }
        }
    }
    plain
}

fn percent_decoded(value: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        match (first, after) {
            (b'%', [high, low, after @ ..]) => {
                let digit = |byte: &u8| char::from(*byte).to_digit(16).map(|digit| digit as u8);
                let (Some(high), Some(low)) = (digit(high), digit(low)) else {
                    return Err("a `%` without its two digits".to_string());
                };
                bytes.push(high << 4 | low);
                rest = after;
            }
            (b'%', _) => return Err("a `%` without its two digits".to_string()),
            (byte, _) => bytes.push(*byte),
        }
    }
    String::from_utf8(bytes).map_err(|_| "a value that is not UTF-8".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tls(text: &str) -> Tls {
        Conninfo::parse(text).unwrap_or_else(|why| panic!("{text}: {why}")).tls
    }

    #[test]
    fn modes_mean_what_libpq_means_by_them_in_both_forms() {
        let ca = || Roots::File(PathBuf::from("/etc/my ca.pem"));
        assert_eq!(tls("postgres://u:p@db/x"), Tls::None);
        assert_eq!(tls("host=db sslmode=prefer"), Tls::None);
        assert_eq!(tls("postgresql://u@db/x?connect_timeout=3&sslmode=require"), Tls::Any);
        assert_eq!(tls("postgres://db/x?sslmode=require&sslrootcert=/etc/my%20ca.pem"), Tls::Known(ca()));
        assert_eq!(tls("sslmode = verify-full host='d b' sslrootcert = '/etc/my ca.pem'"), Tls::Named(ca()));
        assert_eq!(tls(r"host=db sslmode=verify-ca sslrootcert=/etc/my\ ca.pem"), Tls::Known(ca()));
        assert_eq!(tls("host=db sslmode=verify-full"), Tls::Named(Roots::System));
        assert_eq!(tls("host=db sslmode=verify-full sslrootcert=system"), Tls::Named(Roots::System));
    }

    #[test]
    fn what_the_client_library_knows_reaches_it_untouched() {
        let kept = Conninfo::parse(r"host=db password='it\'s sslmode=off' sslmode=require user=u").unwrap().config;
        assert_eq!(kept.get_password(), Some(b"it's sslmode=off".as_slice()));
        assert_eq!((kept.get_user(), kept.get_ssl_mode()), (Some("u"), SslMode::Require));
        let kept = Conninfo::parse("postgres://u:p%40ss@db/x?sslmode=require&application_name=me").unwrap().config;
        assert_eq!(kept.get_password(), Some(b"p@ss".as_slice()));
        assert_eq!((kept.get_dbname(), kept.get_application_name()), (Some("x"), Some("me")));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_and_no_value_is_repeated() {
        for bad in [
            "host=db sslmode=hunter2",
            "host=db sslmode=verify-full sslrootcert=hunter2.pem",
            "host=db sslrootcert=/hunter2.pem",
            "host=db sslcert=/hunter2.pem",
            "host=db password='hunter2",
            "host=/tmp pass word=hunter2",
            "postgres://u:hunter2@[",
            "postgres://u@db/x?sslmode=%zzhunter2",
            "hunter2",
        ] {
            let why = Conninfo::parse(bad).expect_err(bad);
            assert!(!why.is_empty() && !why.contains("hunter2"), "{bad}: {why}");
        }
    }
}
