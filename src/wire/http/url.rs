//! Addresses of servers that are reached over HTTP, taken apart. Whatever could end a request line or a header is no
//! address, and neither is one with a login in it: it would end up in logs.

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    pub https: bool,
    pub host: String,
    pub port: u16,
    /// With its query; begins with `/`.
    pub path: String,
}

impl Url {
    pub fn parse(text: &str) -> Option<Url> {
        Url::of_schemes(text, ["http://", "https://"])
    }

    /// `ws` and `wss`, which are `http` and `https` as far as the connection goes.
    pub fn parse_websocket(text: &str) -> Option<Url> {
        Url::of_schemes(text, ["ws://", "wss://"])
    }

    fn of_schemes(text: &str, [plain, tls]: [&str; 2]) -> Option<Url> {
        let (https, rest) = match text.strip_prefix(tls) {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix(plain)?),
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let path = rest[end..].split('#').next().unwrap_or_default();
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Url::at(https, &rest[..end], path)
    }

    /// `authority`: `HOST[:PORT]`, an IPv6 host in brackets.
    pub fn at(https: bool, authority: &str, path: String) -> Option<Url> {
        let (host, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, port)) => (host, Some(port.strip_prefix(':')?)),
            None => authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
        };
        let port = match port {
            Some(port) => port.parse().ok()?,
            None if https => 443,
            None => 80,
        };
        let host_ok = !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_:".contains(&b));
        // A blank or a line end in it would end the request line.
        let path_ok = path.bytes().all(|b| b.is_ascii_graphic());
        (host_ok && path_ok).then(|| Url { https, host: host.to_ascii_lowercase(), port, path })
    }

    /// What a `Location` of an answer to this means.
    pub fn join(&self, location: &str) -> Option<Url> {
        match location {
            relative if relative.starts_with("//") => {
                Url::parse(&format!("{}:{relative}", if self.https { "https" } else { "http" }))
            }
            absolute if absolute.starts_with('/') => Url::at(self.https, &self.authority(), absolute.to_owned()),
            full if full.contains("://") => Url::parse(full),
            relative => {
                let path = self.path.split('?').next().unwrap_or("/");
                // A query alone belongs to the same path; anything else stands beside its last part.
                let kept = if relative.starts_with('?') { path.len() } else { path.rfind('/').map_or(0, |at| at + 1) };
                Url::at(self.https, &self.authority(), format!("{}{relative}", &path[..kept]))
            }
        }
    }

    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let standard = if self.https { 443 } else { 80 };
        if self.port == standard { host } else { format!("{host}:{}", self.port) }
    }

    pub fn same_origin(&self, other: &Url) -> bool {
        (self.https, &self.host, self.port) == (other.https, &other.host, other.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_apart_or_refused() {
        let url = Url::parse("https://Example.test/v2/?a=b#c").unwrap();
        assert_eq!((url.authority().as_str(), url.port, url.path.as_str()), ("example.test", 443, "/v2/?a=b"));
        assert_eq!(Url::parse("http://[::1]:5000/x").unwrap().authority(), "[::1]:5000");
        assert_eq!(url.join("http://a.test:81").unwrap().authority(), "a.test:81");
        assert_eq!(url.join("//b.test/y").unwrap().path, "/y");
        for (location, path) in [("m?s=1", "/v2/m?s=1"), ("?s=1", "/v2/?s=1"), ("/m", "/m")] {
            assert_eq!(url.join(location).map(|url| url.path).as_deref(), Some(path));
        }
        let ws = Url::parse_websocket("wss://h.test/mcp").unwrap();
        assert_eq!((ws.https, ws.port, ws.path.as_str()), (true, 443, "/mcp"));
        assert_eq!(Url::parse_websocket("ws://h.test").map(|url| (url.https, url.port)), Some((false, 80)));
        assert_eq!((Url::parse_websocket("http://h.test"), Url::parse("ws://h.test")), (None, None));
        let bad = ["ftp://x/", "https://", "https://a:b/", "https://a b/", "https://a/\r\nx", "https://u@h/", "x"];
        for bad in bad {
            assert_eq!(Url::parse(bad), None, "{bad:?}");
        }
    }
}
