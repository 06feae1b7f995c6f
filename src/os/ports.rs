//! Published ports: listeners on the host, and the bytes between whoever connects there and the server in its network.
//! Also sees when a server's port first answers. Forwards in this process, not by address translation in the kernel:
//! so a port on loopback opens no way from a sandbox to the host's loopback, and all of it ends with the daemon.
//! Never looks into the bytes. Invariant: what is read of one side is written to the other before more is read.

use crate::core::Core;
use crate::core::contract::{Input, LaunchFault, LaunchFaultKind, Now};
use crate::core::definition::PortMapping;
use crate::ids::{IdMap, InstanceId};
use crate::limits::{BYTES_AT_ONCE, KNOCK_PAUSE, KNOCK_WAIT, PORT_BUFFER, PORT_CONNECTIONS_MAX};
use crate::os::client::Socket;
use crate::os::descriptors::Descriptors;
use crate::os::proxy::Handed;
use crate::os::token::Source;
use crate::wire::relay::{self, BAD_GATEWAY, Head};
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, SockaddrIn6, connect, setsockopt, socket, sockopt,
};
use std::io::{self, ErrorKind, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;

/// What a token of ours stands for. Numbers are never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    Listener {
        instance: InstanceId,
        index: usize,
    },
    /// One side of the pair.
    Side {
        pair: u64,
        side: usize,
    },
    Knock(InstanceId),
}

#[derive(Default)]
struct Published {
    listeners: Vec<(u64, TcpListener, u16)>,
    /// None: it is not there yet.
    address: Option<IpAddr>,
    /// The port that says whether it is ready.
    first_port: Option<u16>,
}

/// Two connections that are one: `sides[0]` is the client's, `sides[1]` goes to the server.
struct Pair {
    instance: InstanceId,
    sides: [Side; 2],
    relay: Relay,
}

/// What a pair does with the bytes besides passing them on.
enum Relay {
    /// Nothing: a published port.
    Not,
    /// One request was sent; these are the first bytes of the answer, whose head is not whole yet.
    Head(Vec<u8>),
    /// The rest of the answer. `events`: nobody waits for its end, so a client that hangs up is gone.
    Body { events: bool },
}

struct Side {
    token: u64,
    socket: Socket,
    /// Sticky: the kernel has more, though it will not say so again.
    readable: bool,
    ended: bool,
    /// For this side, from the other one.
    out: Vec<u8>,
    /// No more will be written to it.
    closed: bool,
}

struct Knock {
    token: u64,
    /// None: between two attempts.
    socket: Option<TcpStream>,
    /// When to give this attempt up, or to make the next.
    again_ms: u64,
}

pub struct Ports {
    descriptors: Descriptors,
    minted: u64,
    named: IdMap<u64, Named>,
    published: IdMap<InstanceId, Published>,
    pairs: IdMap<u64, Pair>,
    knocks: IdMap<InstanceId, Knock>,
    /// Pairs with more to do though the kernel will not say so again.
    runnable: Vec<u64>,
    scratch: Vec<u8>,
}

impl Ports {
    pub fn new(descriptors: Descriptors) -> Ports {
        Ports {
            descriptors,
            minted: 0,
            named: IdMap::default(),
            published: IdMap::default(),
            pairs: IdMap::default(),
            knocks: IdMap::default(),
            runnable: Vec::new(),
            scratch: Vec::new(),
        }
    }

    // --- what instances want ----------------------------------------------------------------------------------------

    /// Takes the ports of an instance that is about to start. Whoever connects meanwhile waits.
    pub fn publish(
        &mut self,
        instance: InstanceId,
        ports: &[PortMapping],
        registry: &Registry,
    ) -> Result<(), LaunchFault> {
        let mut published = Published { first_port: ports.first().map(|port| port.container), ..Published::default() };
        for (index, port) in ports.iter().enumerate() {
            let opened = self.listen(instance, index, port, registry);
            match opened {
                Ok((token, listener)) => published.listeners.push((token, listener, port.container)),
                Err(e) => {
                    published.listeners.iter().for_each(|(token, _, _)| _ = self.named.remove(token));
                    let message = format!("ports: cannot listen on port {} of {}: {e}", port.host, port.address);
                    return Err(LaunchFault { kind: LaunchFaultKind::Network, message });
                }
            }
        }
        self.published.insert(instance, published);
        Ok(())
    }

    fn listen(
        &mut self,
        instance: InstanceId,
        index: usize,
        port: &PortMapping,
        registry: &Registry,
    ) -> io::Result<(u64, TcpListener)> {
        let mut listener = TcpListener::bind(SocketAddr::new(port.address, port.host))?;
        let token = self.mint(Named::Listener { instance, index });
        registry.register(&mut listener, Source::Port(token).token(), Interest::READABLE)?;
        Ok((token, listener))
    }

    /// It runs, and this is where.
    pub fn located(&mut self, instance: InstanceId, address: Option<IpAddr>, registry: &Registry) {
        let Some(published) = self.published.get_mut(&instance) else { return };
        published.address = address;
        for index in 0..published.listeners.len() {
            self.accept(instance, index, registry);
        }
    }

    /// See when its first port answers.
    pub fn knock(&mut self, instance: InstanceId, now: Now) {
        let token = self.mint(Named::Knock(instance));
        self.knocks.insert(instance, Knock { token, socket: None, again_ms: now.mono_ms });
    }

    /// Its ports are free again, and its connections over.
    pub fn withdraw(&mut self, instance: InstanceId) {
        for (token, _, _) in self.published.remove(&instance).into_iter().flat_map(|published| published.listeners) {
            self.named.remove(&token);
        }
        if let Some(knock) = self.knocks.remove(&instance) {
            self.named.remove(&knock.token);
        }
        let gone: Vec<u64> =
            self.pairs.iter().filter(|(_, pair)| pair.instance == instance).map(|(id, _)| *id).collect();
        gone.into_iter().for_each(|pair| self.close(pair));
    }

    fn mint(&mut self, named: Named) -> u64 {
        self.minted += 1;
        self.named.insert(self.minted, named);
        self.minted
    }

    // --- what the kernel says ---------------------------------------------------------------------------------------

    pub fn woke(&mut self, token: u64, event: &mio::event::Event, registry: &Registry, core: &mut Core, now: Now) {
        match self.named.get(&token).copied() {
            Some(Named::Listener { instance, index }) => self.accept(instance, index, registry),
            Some(Named::Side { pair, side }) => {
                if let Some(found) = self.pairs.get_mut(&pair) {
                    found.sides[side].readable |= event.is_readable() || event.is_read_closed();
                    self.pump(pair);
                }
            }
            Some(Named::Knock(instance)) => self.knock_ended(instance, event, core, now),
            None => {}
        }
    }

    pub fn has_runnable(&self) -> bool {
        !self.runnable.is_empty()
    }

    pub fn serve_runnable(&mut self) {
        for pair in std::mem::take(&mut self.runnable) {
            self.pump(pair);
        }
    }

    fn accept(&mut self, instance: InstanceId, index: usize, registry: &Registry) {
        loop {
            let Some(published) = self.published.get(&instance) else { return };
            let (Some(address), Some((_, listener, port))) = (published.address, published.listeners.get(index)) else {
                return;
            };
            let to = SocketAddr::new(address, *port);
            match listener.accept() {
                Ok(_) if self.pairs.len() >= PORT_CONNECTIONS_MAX => {
                    log::warn!("instance={instance} a connection was refused: {PORT_CONNECTIONS_MAX} are open already");
                }
                Ok((client, _)) if !self.descriptors.spare(&client) => {
                    log::warn!("instance={instance} a connection was refused: the last descriptors are for the daemon");
                }
                Ok((client, _)) => {
                    if let Err(e) = self.connect(instance, client, to, registry) {
                        log::warn!("instance={instance} cannot connect to {to}: {e}");
                    }
                }
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                // WouldBlock; or no descriptors, and then the next client's edge is as good a moment as any.
                Err(_) => return,
            }
        }
    }

    fn connect(
        &mut self,
        instance: InstanceId,
        client: TcpStream,
        to: SocketAddr,
        registry: &Registry,
    ) -> io::Result<()> {
        _ = client.set_nodelay(true);
        let server = connect_nearby(to)?;
        self.minted += 1;
        let pair = self.minted;
        let client = self.side(pair, 0, Socket::Tcp(client), Vec::new(), registry)?;
        let server = self.side(pair, 1, Socket::Tcp(server), Vec::new(), registry)?;
        self.pairs.insert(pair, Pair { instance, sides: [client, server], relay: Relay::Not });
        Ok(())
    }

    fn side(
        &mut self,
        pair: u64,
        side: usize,
        mut socket: Socket,
        out: Vec<u8>,
        registry: &Registry,
    ) -> io::Result<Side> {
        let token = self.mint(Named::Side { pair, side });
        registry.register(socket.source(), Source::Port(token).token(), Interest::READABLE | Interest::WRITABLE)?;
        Ok(Side { token, socket, readable: false, ended: false, out, closed: false })
    }

    /// Passes one request on and its answer back; then the client's connection ends.
    pub fn relay(&mut self, handed: Handed, registry: &Registry) {
        let Handed { instance, mut socket, unwritten, request } = handed;
        _ = registry.deregister(socket.source());
        let published = self.published.get(&instance);
        let to = published.and_then(|p| Some(SocketAddr::new(p.address?, p.first_port?)));
        let full = self.pairs.len() >= PORT_CONNECTIONS_MAX;
        let server = match to.filter(|_| !full).map(connect_nearby) {
            Some(Ok(server)) => server,
            // Best effort: it is all that will be written, and fits any buffer.
            Some(Err(_)) | None => {
                _ = socket.write(BAD_GATEWAY);
                return;
            }
        };
        self.minted += 1;
        let pair = self.minted;
        let sides = self
            .side(pair, 0, socket, unwritten, registry)
            .and_then(|client| Ok([client, self.side(pair, 1, Socket::Tcp(server), request, registry)?]));
        match sides {
            Ok(sides) => _ = self.pairs.insert(pair, Pair { instance, sides, relay: Relay::Head(Vec::new()) }),
            Err(e) => log::warn!("instance={instance} a request was dropped: {e}"),
        }
    }

    /// Moves bytes until neither side has any, or this pair has had its share of the turn.
    fn pump(&mut self, id: u64) {
        self.scratch.resize(PORT_BUFFER, 0);
        let Some(pair) = self.pairs.get_mut(&id) else { return };
        let mut taken = 0;
        loop {
            let mut moved = 0;
            for from in 0..2 {
                match pair.step(from, &mut self.scratch) {
                    Ok(n) => moved += n,
                    Err(_) => {
                        if let Relay::Head(_) = pair.relay {
                            _ = pair.sides[0].socket.write(BAD_GATEWAY);
                        }
                        return self.close(id);
                    }
                }
            }
            taken += moved;
            if moved == 0 {
                break;
            }
            if taken > BYTES_AT_ONCE {
                self.runnable.push(id);
                return;
            }
        }
        if pair.sides.iter().all(|side| side.closed) {
            self.close(id);
        }
    }

    fn close(&mut self, id: u64) {
        for side in self.pairs.remove(&id).into_iter().flat_map(|pair| pair.sides) {
            self.named.remove(&side.token);
        }
    }

    // --- is it there? -----------------------------------------------------------------------------------------------

    pub fn next_deadline(&self) -> Option<u64> {
        self.knocks.values().map(|knock| knock.again_ms).min()
    }

    pub fn tick(&mut self, registry: &Registry, now: Now) {
        for (instance, knock) in self.knocks.iter_mut().filter(|(_, knock)| knock.again_ms <= now.mono_ms) {
            knock.again_ms = now.mono_ms + KNOCK_PAUSE.as_millis() as u64;
            knock.socket = None;
            let published = self.published.get(instance);
            let to = published.and_then(|p| Some(SocketAddr::new(p.address?, p.first_port?)));
            let Some(Ok(mut socket)) = to.map(connect_nearby) else { continue };
            let token = Source::Port(knock.token).token();
            if registry.register(&mut socket, token, Interest::WRITABLE).is_ok() {
                knock.again_ms = now.mono_ms + KNOCK_WAIT.as_millis() as u64;
                knock.socket = Some(socket);
            }
        }
    }

    fn knock_ended(&mut self, instance: InstanceId, event: &mio::event::Event, core: &mut Core, now: Now) {
        let Some(knock) = self.knocks.get_mut(&instance) else { return };
        let Some(socket) = &knock.socket else { return };
        let failed = event.is_error() || !matches!(socket.take_error(), Ok(None));
        if failed || socket.peer_addr().is_err() {
            knock.socket = None;
            knock.again_ms = now.mono_ms + KNOCK_PAUSE.as_millis() as u64;
            return;
        }
        self.named.remove(&knock.token);
        self.knocks.remove(&instance);
        core.handle(Input::PortOpened { instance }, now);
    }
}

/// Only to a host on the other end of one of our own cables. A server's address is free again when it dies; by the
/// default route whatever we send would then go to somebody else.
fn connect_nearby(to: SocketAddr) -> io::Result<TcpStream> {
    let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(family, SockType::Stream, flags, None)?;
    setsockopt(&socket, sockopt::DontRoute, &true)?;
    let begun = match to {
        SocketAddr::V4(to) => connect(socket.as_raw_fd(), &SockaddrIn::from(to)),
        SocketAddr::V6(to) => connect(socket.as_raw_fd(), &SockaddrIn6::from(to)),
    };
    match begun {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(TcpStream::from_std(socket.into())),
        Err(e) => Err(e.into()),
    }
}

impl Pair {
    /// Writes what waits for the other side, then reads what this one has. The bytes moved; an error ends the pair.
    fn step(&mut self, at: usize, scratch: &mut [u8]) -> io::Result<usize> {
        let [one, two] = &mut self.sides;
        let (from, to) = if at == 0 { (one, two) } else { (two, one) };
        let mut moved = to.flush()?;
        let toward_server = at == 0;
        if to.out.is_empty() && from.readable && !from.ended {
            match from.socket.read(scratch) {
                Ok(0) => from.ended = true,
                Ok(n) => {
                    match (&mut self.relay, toward_server) {
                        (Relay::Not, _) | (Relay::Body { .. }, false) => to.out.extend_from_slice(&scratch[..n]),
                        // It was told that nothing after its request is read.
                        (Relay::Head(_) | Relay::Body { .. }, true) => {}
                        (Relay::Head(head), false) => {
                            head.extend_from_slice(&scratch[..n]);
                            if let Some((bytes, events)) = whole_head(head) {
                                to.out.extend_from_slice(&bytes);
                                self.relay = Relay::Body { events };
                            }
                        }
                    }
                    moved += n + to.flush()?;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => from.readable = false,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        if from.ended && to.out.is_empty() && !to.closed {
            match (&self.relay, toward_server) {
                (Relay::Not, _) | (Relay::Body { .. }, false) => {
                    to.closed = true;
                    to.socket.finish()?;
                }
                (Relay::Head(_), false) => return Err(ErrorKind::UnexpectedEof.into()),
                (Relay::Body { events: true }, true) => return Err(ErrorKind::BrokenPipe.into()),
                // It will send no more, and still waits for its answer.
                (Relay::Head(_) | Relay::Body { events: false }, true) => {}
            }
        }
        if to.closed && !toward_server && !matches!(self.relay, Relay::Not) {
            from.closed = true;
        }
        Ok(moved)
    }
}

/// The head for the client and what came of the body with it, once the head is whole; is it a stream of events?
/// What is no HTTP becomes an answer that says so.
fn whole_head(came: &[u8]) -> Option<(Vec<u8>, bool)> {
    match relay::answer(came) {
        Head::Partial => None,
        Head::Garbage => Some((BAD_GATEWAY.to_vec(), true)),
        Head::Whole { mut bytes, body_at, events } => {
            bytes.extend_from_slice(&came[body_at..]);
            Some((bytes, events))
        }
    }
}

impl Side {
    fn flush(&mut self) -> io::Result<usize> {
        let mut written = 0;
        while written < self.out.len() {
            match self.socket.write(&self.out[written..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => written += n,
                // NotConnected: the server's side is still on its way.
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.out.drain(..written);
        Ok(written)
    }
}
