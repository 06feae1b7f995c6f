//! The transport to registries: one blocking HTTP/1.1 request per connection, TLS by rustls with the system's roots, plain
//! HTTP only to hosts that the configuration allows. Knows no credentials but those it is told to send; never goes from
//! TLS to plain HTTP, and takes what they are for to no other host.

use crate::limits::{HTTP_REDIRECTS_MAX, REGISTRY_CONNECT_TIMEOUT, REGISTRY_STALL_TIMEOUT};
use crate::sandbox::image::registry::PullError;
use crate::sandbox::image::registry::proxy::{Proxies, Proxy};
use crate::wire::answer::{Body, Head, read_head};
pub use crate::wire::http::url::Url;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{self, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;

/// Where podman and docker look for the certificates of one registry: `DIR/HOST[:PORT]/*.crt`.
const CERTS_D: [&str; 2] = ["/etc/containers/certs.d", "/etc/docker/certs.d"];

/// The headers of a request besides those that every request has.
#[derive(Default)]
pub struct Ask<'a> {
    /// The whole value; sent to the first host only.
    pub authorization: Option<&'a str>,
    pub accept: &'a str,
    /// Only the bytes from here on.
    pub from: Option<u64>,
    /// Makes it a POST of this form, which no redirect takes elsewhere.
    pub form: Option<&'a str>,
}

pub struct RegistryAnswer {
    pub head: Head,
    pub body: Body<Stream>,
    /// Of the last redirect.
    pub url: Url,
}

pub struct Transport {
    /// `HOST[:PORT]` that may be spoken to without TLS.
    insecure: Vec<String>,
    roots: RootCertStore,
    proxies: Proxies,
}

impl Transport {
    pub fn new(insecure: &[String], proxies: Proxies) -> Transport {
        let mut roots = RootCertStore::empty();
        // A root that cannot be read is one that vouches for nobody; a pull then fails and says whom it did not trust.
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
        Transport { insecure: insecure.to_vec(), roots, proxies }
    }

    pub fn is_insecure(&self, authority: &str) -> bool {
        self.insecure.iter().any(|known| known.eq_ignore_ascii_case(authority))
    }

    /// One request, through redirects.
    pub fn ask(&self, url: &Url, ask: &Ask<'_>) -> Result<RegistryAnswer, PullError> {
        let mut at = url.clone();
        for _ in 0..=HTTP_REDIRECTS_MAX {
            let authorization = ask.authorization.filter(|_| at.same_origin(url));
            let unreachable = |e: io::Error| PullError::unreachable(&at.authority(), &e);
            self.check_scheme(&at)?;
            let mut stream = self.connect(&at).map_err(unreachable)?;
            let request = request(&at, ask, authorization, self.proxies.to(&at));
            stream.write_all(&request).and_then(|()| stream.flush()).map_err(unreachable)?;
            let mut reader = BufReader::with_capacity(64 * 1024, stream);
            let head = read_head(&mut reader).map_err(unreachable)?;
            let Some(location) = redirect(&head).filter(|_| ask.form.is_none()) else {
                let body = Body::of(&head, "GET", reader).map_err(unreachable)?;
                return Ok(RegistryAnswer { head, body, url: at });
            };
            let Some(next) = at.join(location) else {
                return Err(PullError::protocol(&at.authority(), "it redirects to what is no http or https address"));
            };
            if at.https && !next.https {
                return Err(PullError::protocol(&at.authority(), "it redirects from https to http, which is refused"));
            }
            at = next;
        }
        Err(PullError::protocol(&url.authority(), "it redirects without end"))
    }

    fn check_scheme(&self, url: &Url) -> Result<(), PullError> {
        // The configuration may name the standard port, or leave it out.
        let allowed = self.is_insecure(&url.authority()) || self.is_insecure(&format!("{}:{}", url.host, url.port));
        if url.https || allowed {
            return Ok(());
        }
        let why = "it wants plain http; add it to insecure_registries in the configuration if that is meant";
        Err(PullError::protocol(&url.authority(), why))
    }

    fn connect(&self, url: &Url) -> io::Result<Stream> {
        let proxy = self.proxies.to(url);
        let tcp = match proxy {
            None => connect_tcp(&url.host, url.port)?,
            Some(proxy) => connect_tcp(&proxy.host, proxy.port)
                .map_err(|e| io::Error::new(e.kind(), format!("the proxy {}:{}: {e}", proxy.host, proxy.port)))?,
        };
        tcp.set_read_timeout(Some(REGISTRY_STALL_TIMEOUT))?;
        tcp.set_write_timeout(Some(REGISTRY_STALL_TIMEOUT))?;
        tcp.set_nodelay(true)?;
        if !url.https {
            return Ok(Stream::Plain(tcp));
        }
        if let Some(proxy) = proxy {
            proxy.pass_through(&tcp, url)?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(self.roots_for(&url.authority()))
            .with_no_client_auth();
        let name = ServerName::try_from(url.host.clone()).map_err(io::Error::other)?;
        let connection = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
        Ok(Stream::Tls(Box::new(StreamOwned::new(connection, tcp))))
    }

    fn roots_for(&self, authority: &str) -> RootCertStore {
        let mut roots = self.roots.clone();
        for dir in CERTS_D.map(|dir| Path::new(dir).join(authority)) {
            for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
                let path = entry.path();
                if path.extension().is_some_and(|end| end == "crt") {
                    let certificates = CertificateDer::pem_file_iter(path).into_iter().flatten().flatten();
                    roots.add_parsable_certificates(certificates);
                }
            }
        }
        roots
    }
}

fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, REGISTRY_CONNECT_TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn request(url: &Url, ask: &Ask<'_>, authorization: Option<&str>, proxy: Option<&Proxy>) -> Vec<u8> {
    let method = if ask.form.is_some() { "POST" } else { "GET" };
    // A proxy that is not passed through is asked itself, by the whole address.
    let (target, login) = match proxy.filter(|_| !url.https) {
        Some(proxy) => (format!("http://{}{}", url.authority(), url.path), proxy.authorization_line()),
        None => (url.path.clone(), String::new()),
    };
    let mut head = format!("{method} {target} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{login}", url.authority());
    head += concat!("User-Agent: stdiod/", env!("CARGO_PKG_VERSION"), "\r\n");
    if !ask.accept.is_empty() {
        head += &format!("Accept: {}\r\n", ask.accept);
    }
    if let Some(value) = authorization {
        head += &format!("Authorization: {value}\r\n");
    }
    if let Some(from) = ask.from {
        head += &format!("Range: bytes={from}-\r\n");
    }
    if let Some(form) = ask.form {
        let length = form.len();
        head += &format!("Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {length}\r\n");
    }
    head += "\r\n";
    head += ask.form.unwrap_or_default();
    head.into_bytes()
}

fn redirect(head: &Head) -> Option<&str> {
    matches!(head.status, 301 | 302 | 303 | 307 | 308).then(|| head.header("location")).flatten()
}

pub enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.read(buf),
            Stream::Tls(stream) => stream.read(buf),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.write(buf),
            Stream::Tls(stream) => stream.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(stream) => stream.flush(),
            Stream::Tls(stream) => stream.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufRead;
    use std::net::TcpListener;
    use std::thread::JoinHandle;

    /// A peer that answers one request after the other, and hands back their heads.
    fn peer(answers: Vec<String>) -> (u16, JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let served = std::thread::spawn(move || {
            let answer = |text: String| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let head: Vec<String> = lines.by_ref().map(|l| l.unwrap()).take_while(|l| !l.is_empty()).collect();
                stream.write_all(text.as_bytes()).unwrap();
                head.join("\n")
            };
            answers.into_iter().map(answer).collect()
        });
        (port, served)
    }

    fn go(port: u16, allowed: &[String]) -> Result<String, PullError> {
        let url = Url::parse(&format!("http://127.0.0.1:{port}/v2/")).unwrap();
        let ask = Ask { authorization: Some("Basic c2VjcmV0"), ..Ask::default() };
        let mut text = String::new();
        Transport::new(allowed, Proxies::default()).ask(&url, &ask)?.body.read_to_string(&mut text).unwrap();
        Ok(text)
    }

    #[test]
    fn credentials_stay_with_the_host_they_are_for() {
        let (far, far_saw) = peer(vec!["HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".to_string()]);
        let redirect =
            format!("HTTP/1.1 307 T\r\nLocation: http://127.0.0.1:{far}/blob?x=1\r\nContent-Length: 0\r\n\r\n");
        let here = "HTTP/1.1 302 T\r\nLocation: /again\r\nContent-Length: 0\r\n\r\n".to_string();
        let (near, near_saw) = peer(vec![here, redirect]);
        let allowed = [far, near].map(|port| format!("127.0.0.1:{port}"));
        assert_eq!(go(near, &allowed).unwrap(), "ok");
        let near_saw = near_saw.join().unwrap();
        assert!(near_saw.iter().all(|head| head.contains("Authorization: Basic c2VjcmV0")), "{near_saw:?}");
        assert!(near_saw[1].starts_with("GET /again "));
        let far_saw = far_saw.join().unwrap();
        assert!(far_saw[0].starts_with("GET /blob?x=1 ") && !far_saw[0].contains("Authorization"), "{far_saw:?}");
    }

    #[test]
    fn plain_http_is_spoken_only_where_it_is_allowed() {
        let refused = |result: Result<String, PullError>| result.unwrap_err().to_string();
        assert!(refused(go(9, &[])).contains("insecure_registries"));
        let elsewhere = "HTTP/1.1 302 T\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n".to_string();
        let (port, saw) = peer(vec![elsewhere]);
        assert!(refused(go(port, &[format!("127.0.0.1:{port}")])).contains("insecure_registries"));
        saw.join().unwrap();
    }
}
