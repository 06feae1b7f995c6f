//! One outgoing connection: from the addresses of its name to bytes both ways, through a proxy and TLS where they are
//! needed. Never blocks; goes as far as its socket lets it and remembers what the kernel will not say again. Holds what was
//! not written yet, and nothing of what was read.

use crate::limits::{ADDRESS_TIMEOUT, BYTES_AT_ONCE, UPSTREAM_TLS_BUFFER, WRITE_TIMEOUT};
use crate::os::net::outgoing::{Target, Why};
use crate::sandbox::image::registry::proxy::Proxy;
use crate::wire::backlog::Backlog;
use crate::wire::http::request::{self, Request};
use crate::wire::http::response::{Asked, Part, Reader};
use mio::net::TcpStream;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read};
use std::net::SocketAddr;
use std::sync::Arc;

pub struct Connection {
    pub target: Target,
    pub proxy: Option<Proxy>,
    pub stage: Stage,
    pub socket: Option<TcpStream>,
    config: Option<Arc<ClientConfig>>,
    tls: Option<Box<ClientConnection>>,
    /// Sticky: the kernel has something for us, or room, though it will not say so again.
    pub readable: bool,
    pub writable: bool,
    /// The owner wants bytes. If not, they stay in the kernel, and the server has to wait.
    pub wants_bytes: bool,
    /// It has its place among those that go on in the next turn.
    pub queued: bool,
    pub out: Backlog,
    /// When the server last took something of what is to be written.
    pub moved_ms: u64,
    /// Until it is up.
    pub connect_by_ms: u64,
    /// For the address that is being tried.
    address_by_ms: u64,
    pub armed_ms: Option<u64>,
}

pub enum Stage {
    Resolving,
    Connecting {
        rest: VecDeque<SocketAddr>,
    },
    /// The proxy was asked for a way through.
    Tunnel(Reader),
    Handshake,
    Up,
}

/// What came of a turn.
pub struct Progress {
    /// It came up in this turn.
    pub connected: bool,
    pub bytes: Vec<u8>,
    /// It has more to do though the kernel will not say so.
    pub more: bool,
    /// Another socket is to be watched: the one before was of an address that does not answer.
    pub new_socket: bool,
    pub end: Option<Why>,
}

impl Connection {
    pub fn new(target: Target, proxy: Option<Proxy>, now_ms: u64, connect_by_ms: u64) -> Connection {
        Connection {
            target,
            proxy,
            stage: Stage::Resolving,
            socket: None,
            config: None,
            tls: None,
            readable: false,
            writable: false,
            wants_bytes: true,
            queued: false,
            out: Backlog::default(),
            moved_ms: now_ms,
            connect_by_ms,
            address_by_ms: connect_by_ms,
            armed_ms: None,
        }
    }

    pub fn is_up(&self) -> bool {
        matches!(self.stage, Stage::Up)
    }

    /// When it has been too slow; none: it has nothing to be slow with.
    pub fn deadline_ms(&self) -> Option<u64> {
        match self.stage {
            Stage::Connecting { .. } => Some(self.connect_by_ms.min(self.address_by_ms)),
            Stage::Resolving | Stage::Tunnel(_) | Stage::Handshake => Some(self.connect_by_ms),
            Stage::Up => (!self.out.is_empty()).then(|| self.moved_ms + WRITE_TIMEOUT.as_millis() as u64),
        }
    }

    /// Why it is too slow.
    pub fn too_slow(&self) -> Why {
        match self.stage {
            Stage::Resolving => Why::TimedOut("looking up its name"),
            Stage::Connecting { .. } => Why::TimedOut("connecting"),
            Stage::Tunnel(_) => Why::TimedOut("the proxy's answer"),
            Stage::Handshake => Why::TimedOut("the TLS handshake"),
            Stage::Up => Why::Stalled,
        }
    }

    /// The name has these addresses: the first is tried. On success there is a socket to be watched.
    pub fn resolved(
        &mut self,
        addresses: Vec<SocketAddr>,
        config: Option<Arc<ClientConfig>>,
        now_ms: u64,
    ) -> Result<(), Why> {
        if addresses.is_empty() {
            return Err(Why::NotFound("the name has no address".to_string()));
        }
        self.config = config;
        self.try_next(addresses.into(), Why::NotFound("the name has no address".to_string()), now_ms)
    }

    /// The present address does not answer in time. False: there is no other.
    pub fn give_up_address(&mut self, now_ms: u64) -> bool {
        let Stage::Connecting { rest } = &mut self.stage else { return false };
        if rest.is_empty() || now_ms >= self.connect_by_ms {
            return false;
        }
        let rest = std::mem::take(rest);
        self.try_next(rest, Why::TimedOut("connecting"), now_ms).is_ok()
    }

    /// `last`: what was wrong with the address before.
    fn try_next(&mut self, mut rest: VecDeque<SocketAddr>, mut last: Why, now_ms: u64) -> Result<(), Why> {
        (self.readable, self.writable) = (false, false);
        while let Some(address) = rest.pop_front() {
            match TcpStream::connect(address) {
                Ok(socket) => {
                    self.socket = Some(socket);
                    self.address_by_ms = now_ms + ADDRESS_TIMEOUT.as_millis() as u64;
                    if rest.is_empty() {
                        self.address_by_ms = self.connect_by_ms;
                    }
                    self.stage = Stage::Connecting { rest };
                    return Ok(());
                }
                Err(e) => last = Why::Unreachable(e.to_string()),
            }
        }
        Err(last)
    }

    // --- one turn ---------------------------------------------------------------------------------------------------

    pub fn pump(&mut self, scratch: &mut [u8], now_ms: u64) -> Progress {
        let mut progress = Progress { connected: false, bytes: Vec::new(), more: false, new_socket: false, end: None };
        if let Err(why) = self.advance(scratch, now_ms, &mut progress) {
            progress.end = Some(why);
        }
        progress
    }

    fn advance(&mut self, scratch: &mut [u8], now_ms: u64, progress: &mut Progress) -> Result<(), Why> {
        loop {
            let before = std::mem::discriminant(&self.stage);
            match &mut self.stage {
                Stage::Resolving => return Ok(()),
                Stage::Connecting { .. } => self.follow_connect(now_ms, progress)?,
                Stage::Tunnel(_) => self.follow_tunnel(scratch)?,
                Stage::Handshake => self.follow_handshake()?,
                Stage::Up => {
                    self.write(now_ms)?;
                    return self.read(scratch, progress);
                }
            }
            progress.connected = self.is_up();
            if std::mem::discriminant(&self.stage) == before {
                return Ok(());
            }
        }
    }

    fn follow_connect(&mut self, now_ms: u64, progress: &mut Progress) -> Result<(), Why> {
        if !self.writable && !self.readable {
            return Ok(());
        }
        let Some(socket) = &self.socket else { return Ok(()) };
        let failed = match socket.take_error() {
            Ok(None) => match socket.peer_addr() {
                Ok(_) => None,
                Err(e) if e.kind() == ErrorKind::NotConnected => return Ok(()),
                Err(e) => Some(e),
            },
            Ok(Some(e)) | Err(e) => Some(e),
        };
        let Stage::Connecting { rest } = &mut self.stage else { return Ok(()) };
        if let Some(e) = failed {
            let rest = std::mem::take(rest);
            self.try_next(rest, Why::Unreachable(plain(&e)), now_ms)?;
            progress.new_socket = true;
            return Ok(());
        }
        // Small messages must not wait for each other; a socket that cannot do that is none the worse.
        _ = socket.set_nodelay(true);
        self.stage = match &self.proxy {
            Some(proxy) if self.target.url.https => Stage::Tunnel(self.ask_proxy(proxy.clone())?),
            Some(_) | None => self.begin_tls()?,
        };
        Ok(())
    }

    fn ask_proxy(&mut self, proxy: Proxy) -> Result<Reader, Why> {
        let url = &self.target.url;
        let host = if url.host.contains(':') { format!("[{}]", url.host) } else { url.host.clone() };
        let to = format!("{host}:{}", url.port);
        let ask = Request { proxy_login: proxy.authorization(), ..Request::new("CONNECT", &to, &to) };
        // What the owner has written before goes behind it, inside of TLS.
        let mut words = Backlog::default();
        request::write(&mut words, ask).map_err(|bad| Why::Proxy(bad.message()))?;
        let words = words.into_bytes();
        let socket = self.socket.as_mut().ok_or(Why::Stalled)?;
        // A new connection has room for so little.
        match io::Write::write(socket, &words) {
            Ok(written) if written == words.len() => {}
            Ok(_) => return Err(Why::Proxy("it does not take the request".to_string())),
            Err(e) => return Err(Why::Proxy(plain(&e))),
        }
        let mut reader = Reader::default();
        reader.ask(Asked::Connect);
        Ok(reader)
    }

    fn follow_tunnel(&mut self, scratch: &mut [u8]) -> Result<(), Why> {
        let Stage::Tunnel(reader) = &mut self.stage else { return Ok(()) };
        let Some(socket) = &mut self.socket else { return Ok(()) };
        while self.readable {
            match socket.read(scratch) {
                Ok(0) => return Err(Why::Proxy("it closed the connection".to_string())),
                Ok(n) => reader.feed(&scratch[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.readable = false,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(Why::Proxy(plain(&e))),
            }
            match reader.next_part() {
                Ok(Some(Part::Head(_))) if reader.has_switched() => {
                    let Stage::Tunnel(reader) = std::mem::replace(&mut self.stage, Stage::Handshake) else {
                        return Ok(());
                    };
                    self.begin_tls()?;
                    return self.feed_tls(&reader.into_rest());
                }
                Ok(Some(Part::Head(head))) if head.status == 407 => {
                    return Err(Why::Proxy("it wants a login".to_string()));
                }
                Ok(Some(Part::Head(head))) => return Err(Why::Proxy(format!("it answers {}", head.status))),
                Ok(Some(Part::Body(_) | Part::End { .. })) | Ok(None) => {}
                Err(broken) => return Err(Why::Proxy(broken.message())),
            }
        }
        Ok(())
    }

    /// The stage that follows a connection to whoever is meant.
    fn begin_tls(&mut self) -> Result<Stage, Why> {
        let Some(config) = self.config.take() else { return Ok(Stage::Up) };
        let failed = |e: &dyn std::fmt::Display| Why::Tls(e.to_string());
        let name = ServerName::try_from(self.target.url.host.clone()).map_err(|e| failed(&e))?;
        let mut tls = ClientConnection::new(config, name).map_err(|e| failed(&e))?;
        tls.set_buffer_limit(Some(UPSTREAM_TLS_BUFFER));
        self.tls = Some(Box::new(tls));
        Ok(Stage::Handshake)
    }

    fn feed_tls(&mut self, mut bytes: &[u8]) -> Result<(), Why> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        while !bytes.is_empty() {
            tls.read_tls(&mut bytes).map_err(|e| Why::Tls(plain(&e)))?;
            tls.process_new_packets().map_err(|e| Why::Tls(e.to_string()))?;
        }
        Ok(())
    }

    fn follow_handshake(&mut self) -> Result<(), Why> {
        let (Some(tls), Some(socket)) = (&mut self.tls, &mut self.socket) else { return Ok(()) };
        while tls.is_handshaking() {
            while self.writable && tls.wants_write() {
                match tls.write_tls(socket) {
                    Ok(_) => {}
                    Err(e) if e.kind() == ErrorKind::WouldBlock => self.writable = false,
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(e) => return Err(Why::Tls(plain(&e))),
                }
            }
            if !self.readable {
                return Ok(());
            }
            match tls.read_tls(socket) {
                Ok(0) => return Err(Why::Tls("the connection was closed in the middle of the handshake".to_string())),
                Ok(_) => {
                    if let Err(e) = tls.process_new_packets() {
                        // It should hear why.
                        _ = tls.write_tls(socket);
                        return Err(Why::Tls(e.to_string()));
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.readable = false,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(Why::Tls(plain(&e))),
            }
        }
        self.stage = Stage::Up;
        Ok(())
    }

    // --- bytes ------------------------------------------------------------------------------------------------------

    fn write(&mut self, now_ms: u64) -> Result<(), Why> {
        let Some(socket) = &mut self.socket else { return Ok(()) };
        while self.writable {
            let written = match &mut self.tls {
                None if self.out.is_empty() => break,
                None => self.out.write_to(socket, BYTES_AT_ONCE),
                Some(tls) => {
                    if !self.out.is_empty() {
                        self.out.write_to(&mut tls.writer(), BYTES_AT_ONCE).map_err(|e| Why::Lost(plain(&e)))?;
                    }
                    if !tls.wants_write() {
                        break;
                    }
                    tls.write_tls(socket)
                }
            };
            match written {
                Ok(_) => self.moved_ms = now_ms,
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.writable = false,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(Why::Lost(plain(&e))),
            }
        }
        Ok(())
    }

    /// Until there is no more, or this connection has had its share of the turn.
    fn read(&mut self, scratch: &mut [u8], progress: &mut Progress) -> Result<(), Why> {
        let Some(socket) = &mut self.socket else { return Ok(()) };
        while self.wants_bytes && (self.readable || self.tls.is_some()) {
            if progress.bytes.len() >= BYTES_AT_ONCE {
                progress.more = true;
                return Ok(());
            }
            let read = match &mut self.tls {
                None => socket.read(scratch),
                Some(tls) => match tls.reader().read(scratch) {
                    // All that came is taken: more may have come.
                    Err(e) if e.kind() == ErrorKind::WouldBlock && self.readable => match read_tls(tls, socket) {
                        Ok(()) => continue,
                        Err(TlsRead::Socket(e)) => Err(e),
                        Err(TlsRead::Broken(why)) => return Err(why),
                    },
                    read => read,
                },
            };
            match read {
                Ok(0) => return Err(Why::Ended { clean: true }),
                Ok(n) => progress.bytes.extend_from_slice(&scratch[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    self.readable = false;
                    return Ok(());
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                // TLS that ends without saying so may have been cut off by anybody.
                Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Err(Why::Ended { clean: false }),
                Err(e) => return Err(Why::Lost(plain(&e))),
            }
        }
        Ok(())
    }

    /// Says goodbye, as far as that takes no time.
    pub fn finish(&mut self) {
        if let (Some(tls), Some(socket)) = (&mut self.tls, &mut self.socket) {
            tls.send_close_notify();
            _ = tls.write_tls(socket);
        }
    }
}

enum TlsRead {
    Socket(io::Error),
    Broken(Why),
}

/// One read of the socket into TLS. Its end is known to TLS from then on, which says whether it was a clean one.
fn read_tls(tls: &mut ClientConnection, socket: &mut TcpStream) -> Result<(), TlsRead> {
    tls.read_tls(socket).map_err(TlsRead::Socket)?;
    match tls.process_new_packets() {
        Ok(_) => Ok(()),
        Err(e) => {
            _ = tls.write_tls(socket);
            Err(TlsRead::Broken(Why::Lost(format!("TLS: {e}"))))
        }
    }
}

/// What the kernel says, without its number.
fn plain(e: &io::Error) -> String {
    let text = e.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_ascii_lowercase()
}
