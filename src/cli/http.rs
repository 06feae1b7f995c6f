//! A small blocking HTTP/1.1 client for the daemon's own API, over TCP or a unix socket: one connection per request, or
//! connections and heads for those who keep them (`connect`).
//! Owns the bytes of an exchange; never knows what they mean, and never puts a token into an error. Whatever the peer
//! sends, it reads a bounded amount and waits a bounded time. A token is sent only on a connection whose other end has
//! shown on this same connection that it knows it, or which the kernel says is root's or our own.

use super::trust::Trust;
use crate::api::auth;
use crate::api::auth::proof::{self, Challenge};
use crate::config::{Config, Listen};
use crate::limits::{CLIENT_ANSWER_MAX, CLIENT_CONNECT_TIMEOUT, CLIENT_PROOF_MAX, CLIENT_QUICK_WAIT};
use crate::os::event_loop::random::random;
use crate::os::net::unix_socket;
use crate::wire::answer::{Body, Head, read_head};
use rustls::{ClientConnection, StreamOwned};
use std::fmt;
use std::io::{self, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// Where a daemon can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Tcp { host: String, port: u16, tls: bool },
    Unix(PathBuf),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Tcp { tls: false, .. } => write!(f, "http://{}", self.authority()),
            Target::Tcp { tls: true, .. } => write!(f, "https://{}", self.authority()),
            Target::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Target {
    /// `http[s]://HOST[:PORT]` or `unix:PATH`; else what to write instead.
    pub fn parse(url: &str) -> Result<Target, String> {
        if let Some(path) = url.strip_prefix("unix:") {
            return match path.strip_prefix("//").unwrap_or(path) {
                "" => Err("a path must follow `unix:`".to_string()),
                path => Ok(Target::Unix(PathBuf::from(path))),
            };
        }
        let (rest, tls) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
            (Some(rest), _) => (rest, false),
            (None, Some(rest)) => (rest, true),
            (None, None) => return Err("write http://HOST:PORT, https://HOST:PORT or unix:PATH".to_string()),
        };
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        if authority.is_empty() || authority.contains(['/', '?', '#', '@']) || authority.contains(char::is_whitespace) {
            return Err("write http://HOST:PORT, without a path or a user".to_string());
        }
        let (host, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, port)) => (host, port.strip_prefix(':')),
            None => authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
        };
        let port = match port {
            None if tls => 443,
            None => 80,
            Some(port) => port.parse().map_err(|_| format!("`{port}` is no port"))?,
        };
        Ok(Target::Tcp { host: host.to_string(), port, tls })
    }

    /// The best way to a configured daemon: the first of its unix sockets that lets us in, its control socket before all
    /// others, or else the first of its addresses.
    pub fn of(config: &Config) -> Target {
        let listed = config.listen.iter().filter_map(|one| match one {
            Listen::Unix(path) => Some(path.clone()),
            Listen::Tcp(_) | Listen::Tls(_) => None,
        });
        let mut unix = std::iter::once(config.control_socket()).chain(listed);
        match unix.find(|path| unix_socket::connect(path).is_ok()) {
            Some(path) => Target::Unix(path),
            None => Target::of_listeners(&config.listen),
        }
    }

    /// Never empty by the config's word.
    pub fn of_listeners(listen: &[Listen]) -> Target {
        let tcp = listen.iter().find(|one| matches!(one, Listen::Tcp(_) | Listen::Tls(_)));
        let way = tcp.or(listen.first());
        match way {
            Some(Listen::Unix(path)) => Target::Unix(path.clone()),
            Some(Listen::Tcp(address) | Listen::Tls(address)) => {
                let ip = match address.ip() {
                    IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
                    IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
                    ip => ip,
                };
                let tls = matches!(way, Some(Listen::Tls(_)));
                Target::Tcp { host: ip.to_string(), port: address.port(), tls }
            }
            None => unreachable!("a configuration has a listener"),
        }
    }

    pub fn is_tls(&self) -> bool {
        matches!(self, Target::Tcp { tls: true, .. })
    }

    /// Nothing sent there leaves this machine.
    pub fn is_local(&self) -> bool {
        match self {
            Target::Unix(_) => true,
            Target::Tcp { host, .. } => host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback()),
        }
    }

    fn authority(&self) -> String {
        match self {
            Target::Tcp { host, port, .. } if host.contains(':') => format!("[{host}]:{port}"),
            Target::Tcp { host, port, .. } => format!("{host}:{port}"),
            Target::Unix(_) => "localhost".to_string(),
        }
    }

    fn connect(&self, trust: &Trust) -> io::Result<Stream> {
        match self {
            Target::Unix(path) => unix_socket::connect(path).map(Stream::Unix),
            Target::Tcp { host, port, tls } => {
                let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
                for address in (host.as_str(), *port).to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, CLIENT_CONNECT_TIMEOUT) {
                        Ok(stream) if *tls => return Ok(Stream::Tls(Box::new(trust.greet(host, stream)?))),
                        Ok(stream) => return Ok(Stream::Tcp(stream)),
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }
}

#[derive(Debug)]
pub enum HttpError {
    NoDaemon {
        target: Target,
        why: io::Error,
    },
    TimedOut {
        target: Target,
        after: Duration,
    },
    Broken {
        target: Target,
        why: String,
    },
    /// The token was kept back.
    Unproven {
        target: Target,
        doubt: Doubt,
    },
}

/// Why somebody was not given a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// No proof, or a wrong one.
    NotShown,
    /// It says that it does not know this token.
    Unknown,
    /// It says that it cannot tell now.
    NotNow,
}

impl fmt::Display for HttpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HttpError::NoDaemon { target, why } if why.kind() == io::ErrorKind::PermissionDenied => {
                write!(
                    f,
                    "may not connect to {target} (permission denied): run as its user or as root, or name an http:// address with --url"
                )
            }
            HttpError::NoDaemon { target, why } => match why.kind() {
                io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
                    write!(f, "no daemon answers at {target} (is `stdiod serve` running?)")
                }
                _ => write!(f, "no daemon answers at {target}: {why} (is `stdiod serve` running?)"),
            },
            HttpError::TimedOut { target, after } => {
                write!(f, "the daemon at {target} gave no answer within {} s", after.as_secs())
            }
            HttpError::Broken { target, why } => write!(f, "the answer from {target} is broken: {why}"),
            HttpError::Unproven { target, doubt: Doubt::NotShown } => write!(
                f,
                "the token was not sent: {target} did not show that it is the daemon that knows it. Another program may be \
                 there while the daemon is down, or something in between passes connections on: check the address, and \
                 that `stdiod serve` runs; root on its host needs neither token nor --url"
            ),
            HttpError::Unproven { target, doubt: Doubt::Unknown } => write!(
                f,
                "the token was not sent: {target} does not know it. It was revoked, or belongs to another daemon; give \
                 another with --token-file FILE or STDIOD_TOKEN, or check the address"
            ),
            HttpError::Unproven { target, doubt: Doubt::NotNow } => write!(
                f,
                "the token was not sent: {target} cannot show now that it knows it (it is starting or busy, or its \
                 database is away); try again"
            ),
        }
    }
}

pub struct Request<'a> {
    pub method: &'a str,
    /// Path and query, percent-encoded.
    pub path: &'a str,
    pub accept: &'a str,
    pub body: Option<&'a [u8]>,
    /// Headers besides those that every request has.
    pub more: &'a [(&'a str, &'a str)],
    /// The longest silence of the peer.
    pub patience: Duration,
}

/// What becomes of the connection after the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connection {
    Close,
    Keep,
}

#[derive(Debug)]
pub struct Answer {
    pub head: Head,
    pub body: Vec<u8>,
}

/// An answer whose body is still to be read.
pub struct Streamed {
    pub head: Head,
    pub body: BufReader<Body<Stream>>,
}

pub struct Client {
    target: Target,
    token: Option<String>,
    trust: Trust,
}

impl Client {
    pub fn new(target: Target, token: Option<String>, trust: Trust) -> Client {
        Client { target, token, trust }
    }

    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The whole answer, body and all.
    pub fn send(&self, request: &Request) -> Result<Answer, HttpError> {
        let Streamed { head, body } = self.open(request)?;
        self.finish(head, body, request.patience)
    }

    /// Reads the rest of an answer that was opened.
    pub fn finish(&self, head: Head, body: impl Read, patience: Duration) -> Result<Answer, HttpError> {
        let mut bytes = Vec::new();
        let read = body.take(CLIENT_ANSWER_MAX as u64 + 1).read_to_end(&mut bytes);
        read.map_err(|why| self.fault(why, patience))?;
        if bytes.len() > CLIENT_ANSWER_MAX {
            let why = format!("it is longer than {CLIENT_ANSWER_MAX} bytes");
            return Err(HttpError::Broken { target: self.target.clone(), why });
        }
        Ok(Answer { head, body: bytes })
    }

    /// A connection to somebody who may be given the token.
    pub fn connect(&self, patience: Duration) -> Result<Stream, HttpError> {
        let connected = self.target.connect(&self.trust);
        let mut stream = connected.map_err(|why| HttpError::NoDaemon { target: self.target.clone(), why })?;
        if let Some(token) = &self.token
            && !stream.is_known()
        {
            self.demand_proof(&mut stream, token, patience.min(CLIENT_QUICK_WAIT))?;
        }
        Ok(stream)
    }

    /// The answer's head, with its body still on the wire.
    pub fn open(&self, request: &Request) -> Result<Streamed, HttpError> {
        let mut stream = self.connect(request.patience)?;
        let mut exchange = || {
            stream.set_timeouts(request.patience)?;
            stream.write_all(&self.request_head(request, Connection::Close))?;
            // A daemon that refuses a long body answers and closes before it has read all of it: the answer counts.
            let written = stream.write_all(request.body.unwrap_or_default()).and_then(|()| stream.flush());
            match written {
                Err(error) if !is_hang_up(&error) => return Err(error),
                Err(_) | Ok(()) => {}
            }
            Ok(())
        };
        exchange().map_err(|why| self.fault(why, request.patience))?;
        let mut reader = BufReader::new(stream);
        let head = read_head(&mut reader).map_err(|why| self.fault(why, request.patience))?;
        let body = Body::of(&head, request.method, reader).map_err(|why| self.fault(why, request.patience))?;
        Ok(Streamed { head, body: BufReader::new(body) })
    }

    /// The other end must know the token before it gets it, and must have been reached at the address we went to: whoever
    /// passes our question on to the real daemon gets an answer for another address.
    fn demand_proof(&self, stream: &mut Stream, token: &str, patience: Duration) -> Result<(), HttpError> {
        let hash = auth::hash(token.as_bytes());
        let mut exchange = || -> io::Result<Result<(), Doubt>> {
            let challenge = Challenge::new(&hash, random()?);
            stream.set_timeouts(patience)?;
            let (target, host) = (challenge.target(), self.target.authority());
            stream.write_all(
                format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nAccept: application/json\r\n\r\n").as_bytes(),
            )?;
            let mut reader = BufReader::new(&mut *stream);
            let head = read_head(&mut reader)?;
            let mut body = Vec::new();
            Body::of(&head, "GET", reader)?.take(CLIENT_PROOF_MAX as u64).read_to_end(&mut body)?;
            let answer = serde_json::from_slice(&body).unwrap_or(serde_json::Value::Null);
            let answer = answer["proof"].as_str().unwrap_or_default();
            Ok(match head.status {
                200 if challenge.is_answered_by(answer, &hash, &stream.address()?) => Ok(()),
                401 => Err(Doubt::Unknown),
                503 => Err(Doubt::NotNow),
                _ => Err(Doubt::NotShown),
            })
        };
        let unproven = |doubt| HttpError::Unproven { target: self.target.clone(), doubt };
        match exchange() {
            Ok(shown) => shown.map_err(unproven),
            Err(why) => match self.fault(why, patience) {
                HttpError::Broken { .. } => Err(unproven(Doubt::NotShown)),
                error => Err(error),
            },
        }
    }

    pub fn request_head(&self, request: &Request, connection: Connection) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\n", request.method, request.path);
        head += &format!("Host: {}\r\nAccept: {}\r\n", self.target.authority(), request.accept);
        if connection == Connection::Close {
            head += "Connection: close\r\n";
        }
        if let Some(token) = &self.token {
            head += &format!("Authorization: Bearer {token}\r\n");
        }
        for (name, value) in request.more {
            head += &format!("{name}: {value}\r\n");
        }
        if let Some(body) = request.body {
            head += &format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
        } else if request.method == "POST" {
            head += "Content-Length: 0\r\n";
        }
        head += "\r\n";
        head.into_bytes()
    }

    pub fn fault(&self, why: io::Error, patience: Duration) -> HttpError {
        match why.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                HttpError::TimedOut { target: self.target.clone(), after: patience }
            }
            _ => HttpError::Broken { target: self.target.clone(), why: why.to_string() },
        }
    }
}

fn is_hang_up(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

#[derive(Debug)]
pub enum Stream {
    Tcp(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
    Unix(UnixStream),
}

impl Stream {
    /// The other end is root, who can read every token here, or the user who has this one; or its certificate is one that
    /// we trust.
    fn is_known(&self) -> bool {
        match self {
            Stream::Tcp(_) => false,
            Stream::Tls(_) => true,
            Stream::Unix(stream) => unix_socket::peer_uid(stream).is_some_and(unix_socket::is_root_or_us),
        }
    }

    /// The other end's, as a proof names it.
    fn address(&self) -> io::Result<String> {
        match self {
            Stream::Tcp(stream) => stream.peer_addr().map(proof::address),
            Stream::Tls(stream) => stream.sock.peer_addr().map(proof::address),
            Stream::Unix(_) => Ok(proof::UNIX.to_string()),
        }
    }

    pub fn set_timeouts(&self, patience: Duration) -> io::Result<()> {
        let of_tcp = |stream: &TcpStream| {
            stream.set_read_timeout(Some(patience))?;
            stream.set_write_timeout(Some(patience))?;
            stream.set_nodelay(true)
        };
        match self {
            Stream::Tcp(stream) => of_tcp(stream),
            Stream::Tls(stream) => of_tcp(&stream.sock),
            Stream::Unix(stream) => {
                stream.set_read_timeout(Some(patience))?;
                stream.set_write_timeout(Some(patience))
            }
        }
    }

    /// Has the other end said nothing and not hung up?
    pub fn is_quiet(&self) -> bool {
        use nix::sys::socket::{MsgFlags, recv};
        use std::os::fd::AsRawFd;
        let fd = match self {
            Stream::Tcp(stream) => stream.as_raw_fd(),
            Stream::Tls(stream) => stream.sock.as_raw_fd(),
            Stream::Unix(stream) => stream.as_raw_fd(),
        };
        let looked = recv(fd, &mut [0], MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT);
        looked == Err(nix::errno::Errno::EAGAIN)
    }

    /// Whoever reads from it or writes to it is woken by its end.
    pub fn hang_up(&self) {
        // It may have gone already.
        _ = match self {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Stream::Tls(stream) => stream.sock.shutdown(Shutdown::Both),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

/// One thread reads while another writes. TLS has one state for both directions, so this is not for it.
impl Read for &Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => (&*stream).read(buf),
            Stream::Tls(_) => Err(not_over_tls()),
            Stream::Unix(stream) => (&*stream).read(buf),
        }
    }
}

impl Write for &Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => (&*stream).write(buf),
            Stream::Tls(_) => Err(not_over_tls()),
            Stream::Unix(stream) => (&*stream).write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn not_over_tls() -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        "connect does not speak TLS: use the daemon's socket or a plain listener",
    )
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(buf),
            Stream::Tls(stream) => stream.read(buf),
            Stream::Unix(stream) => stream.read(buf),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(buf),
            Stream::Tls(stream) => stream.write(buf),
            Stream::Unix(stream) => stream.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Tcp(_) | Stream::Unix(_) => Ok(()),
            Stream::Tls(stream) => stream.flush(),
        }
    }
}

#[cfg(test)]
mod tests;
