//! The ports of instances: listeners on the host for those that are published, a connection to the instance for everyone who
//! connects there or whose HTTP request is passed on, and attempts to connect until a new instance answers for the first
//! time. Forwards in this process and not by address translation in the kernel: a port on loopback opens no way from a sandbox
//! to the host's loopback, and everything ends with the daemon. Moves no bytes itself: `Pairs` does.

pub mod carried;

use crate::core::Core;
use crate::core::contract::{Input, Now};
use crate::ids::{IdMap, InstanceId};
use crate::limits::{KNOCK_PAUSE, KNOCK_WAIT, PORT_ACCEPTS_AT_ONCE, PORT_REFUSED_LOG_EVERY};
use crate::model::definition::PortMapping;
use crate::model::fault::{Code, Fault, Outcome};
use crate::model::instance::{LaunchFault, LaunchFaultKind};
use crate::os::event_loop::token::EventSource;
use crate::os::net::client::Socket;
use crate::os::net::descriptors::Descriptors;
use crate::os::net::pairs::{Pairs, owners_of_port};
use crate::os::net::proxy::Handed;
use crate::shares::Shares;
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, SockaddrIn6, connect, setsockopt, socket, sockopt,
};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;

/// What a token of ours stands for. Numbers are never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    Listener { instance: InstanceId, index: usize },
    Knock(InstanceId),
}

#[derive(Default)]
struct Published {
    listeners: Vec<(u64, TcpListener, u16)>,
    /// None: it is not there yet.
    address: Option<IpAddr>,
    /// The port that says whether it is ready.
    first_port: Option<u16>,
    /// Connections that were refused since the log last said so, and when it may say so again.
    refused: u64,
    refused_log_ms: u64,
}

impl Published {
    fn first(&self) -> Option<SocketAddr> {
        Some(SocketAddr::new(self.address?, self.first_port?))
    }
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
    pub pairs: Pairs,
    knocks: IdMap<InstanceId, Knock>,
    /// Listeners with more to accept though the kernel will not say so again.
    eager: Vec<(InstanceId, usize)>,
}

impl Ports {
    pub fn new(descriptors: Descriptors) -> Ports {
        Ports {
            descriptors,
            minted: 0,
            named: IdMap::default(),
            published: IdMap::default(),
            pairs: Pairs::default(),
            knocks: IdMap::default(),
            eager: Vec::new(),
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
        registry.register(&mut listener, EventSource::Port(token).token(), Interest::READABLE)?;
        Ok((token, listener))
    }

    /// It runs, and this is where.
    pub fn located(&mut self, instance: InstanceId, address: Option<IpAddr>) {
        let Some(published) = self.published.get_mut(&instance) else { return };
        published.address = address;
        self.eager.extend((0..published.listeners.len()).map(|index| (instance, index)));
    }

    /// See when its first port answers.
    pub fn knock(&mut self, instance: InstanceId, now: Now) {
        let token = self.mint(Named::Knock(instance));
        self.knocks.insert(instance, Knock { token, socket: None, again_ms: now.mono_ms });
    }

    /// Its ports are free again, and its connections over.
    pub fn withdraw(&mut self, instance: InstanceId, shares: &mut Shares, now: Now) {
        for (token, _, _) in self.published.remove(&instance).into_iter().flat_map(|published| published.listeners) {
            self.named.remove(&token);
        }
        if let Some(knock) = self.knocks.remove(&instance) {
            self.named.remove(&knock.token);
        }
        self.pairs.end_of(instance, shares, now);
    }

    fn mint(&mut self, named: Named) -> u64 {
        self.minted += 1;
        self.named.insert(self.minted, named);
        self.minted
    }

    // --- what the kernel says ---------------------------------------------------------------------------------------

    pub fn woke(
        &mut self,
        token: u64,
        event: &mio::event::Event,
        core: &mut Core,
        (registry, shares, now): (&Registry, &mut Shares, Now),
    ) {
        match self.named.get(&token).copied() {
            Some(Named::Listener { instance, index }) => self.accept(instance, index, core, (registry, shares, now)),
            Some(Named::Knock(instance)) => self.knock_ended(instance, event, core, now),
            None => {}
        }
    }

    pub fn has_runnable(&self) -> bool {
        !self.eager.is_empty() || self.pairs.has_runnable()
    }

    pub fn serve_runnable(&mut self, core: &Core, (registry, shares, now): (&Registry, &mut Shares, Now)) {
        self.pairs.serve_runnable(shares, now);
        for (instance, index) in std::mem::take(&mut self.eager) {
            self.accept(instance, index, core, (registry, shares, now));
        }
    }

    fn accept(
        &mut self,
        instance: InstanceId,
        index: usize,
        core: &Core,
        (registry, shares, now): (&Registry, &mut Shares, Now),
    ) {
        // None: it is on its way out, and its listeners with it.
        let Some(server) = core.server_of(instance) else { return };
        for _ in 0..PORT_ACCEPTS_AT_ONCE {
            let Some(published) = self.published.get_mut(&instance) else { return };
            let (Some(address), Some((_, listener, port))) = (published.address, published.listeners.get(index)) else {
                return;
            };
            let to = SocketAddr::new(address, *port);
            let joined = match listener.accept() {
                Ok((client, _)) if !self.descriptors.spare(&client) => {
                    Err("the last descriptors are for the daemon".to_string())
                }
                Ok((client, peer)) => {
                    _ = client.set_nodelay(true);
                    let owners = owners_of_port(peer.ip(), server);
                    let joined = connect_nearby(to).map_err(|e| format!("cannot connect to {to}: {e}"));
                    joined.and_then(|server| {
                        let sides = [client, server].map(Socket::Tcp);
                        self.pairs.join(instance, owners, sides, (registry, shares, now)).map_err(|fault| fault.message)
                    })
                }
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => Ok(()),
                // WouldBlock; or no descriptors, and then the next client's edge is as good a moment as any.
                Err(_) => return,
            };
            if let Err(why) = joined {
                published.refused += 1;
                if published.refused_log_ms <= now.mono_ms {
                    published.refused_log_ms = now.mono_ms + PORT_REFUSED_LOG_EVERY.as_millis() as u64;
                    let refused = std::mem::take(&mut published.refused);
                    log::warn!(
                        "instance={instance} connections to a published port refused: {refused}, the last because {why}"
                    );
                }
            }
        }
        self.eager.push((instance, index));
    }

    /// Passes one request on and its answer back; then the client's connection ends.
    pub fn relay(&mut self, handed: Handed, (registry, shares, now): (&Registry, &mut Shares, Now)) {
        let Handed { instance, server, exchange, mut socket, unwritten, request } = handed;
        _ = registry.deregister(socket.source());
        let to = self.published.get(&instance).and_then(Published::first);
        let fault = match to.map(connect_nearby) {
            Some(Ok(stream)) if self.descriptors.spare(&stream) => {
                let sides = [(socket, unwritten), (Socket::Tcp(stream), request)];
                return self.pairs.relay(instance, server, exchange, sides, (registry, shares, now));
            }
            Some(Ok(_)) => {
                Fault::new(Code::Overloaded, "the last descriptors are for the daemon").retry_after_ms(1_000)
            }
            Some(Err(_)) | None => {
                Fault::new(Code::BadServerOutput, "the server gave no HTTP answer: it cannot be reached")
            }
        };
        self.pairs.refuse(socket, unwritten, &fault.outcome(Outcome::NotSent), exchange.framing, now);
    }

    // --- is it there? -----------------------------------------------------------------------------------------------

    pub fn next_deadline(&self) -> Option<u64> {
        self.knocks.values().map(|knock| knock.again_ms).min().into_iter().chain(self.pairs.next_deadline()).min()
    }

    pub fn tick(&mut self, (registry, shares, now): (&Registry, &mut Shares, Now)) {
        self.pairs.expire(shares, now);
        for (instance, knock) in self.knocks.iter_mut().filter(|(_, knock)| knock.again_ms <= now.mono_ms) {
            knock.again_ms = now.mono_ms + KNOCK_PAUSE.as_millis() as u64;
            knock.socket = None;
            let to = self.published.get(instance).and_then(Published::first);
            let Some(Ok(mut socket)) = to.map(connect_nearby) else { continue };
            let token = EventSource::Port(knock.token).token();
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
