//! Connections from the daemon to other servers, in the one event loop: names are looked up by helper threads, sockets never
//! block, TLS and proxies are passed on the way. Owns the connections and their deadlines; knows nothing of what they carry.
//! Invariants: every connection ends with exactly one `Closed`, unless its owner closed it; what waits to be written is
//! bounded; and no connection takes more than its share of a turn.

mod connection;
pub mod resolver;
mod tls;

use crate::core::contract::Now;
use crate::ids::{IdMap, OutgoingId};
use crate::limits::{OUTGOING_CONNECT_TIMEOUT, OUTGOING_MAX, OUTGOING_SCRATCH, UPSTREAM_BACKLOG_MAX};
use crate::os::event_loop::token::EventSource;
use crate::os::net::outgoing::connection::{Connection, Progress};
use crate::os::net::outgoing::resolver::{Found, Lookup, Question, Resolver, Wake};
use crate::sandbox::image::registry::proxy::Proxies;
use crate::wire::http::url::Url;
use mio::{Interest, Registry};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::path::PathBuf;

/// Where to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its path is of no interest here.
    pub url: Url,
    /// Who vouches for it, beside those whom the system trusts.
    pub tls_ca: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Bytes may be written, and will come.
    Connected {
        proxy: PlainProxy,
    },
    Bytes(Vec<u8>),
    /// The last that is heard of it.
    Closed {
        why: Why,
    },
}

/// A proxy that is not passed through but spoken to: requests name the whole address, and have its login.
#[derive(Clone, PartialEq, Eq)]
pub enum PlainProxy {
    None,
    Asked { login: Option<String> },
}

impl std::fmt::Debug for PlainProxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            PlainProxy::None => "None",
            PlainProxy::Asked { .. } => "Asked",
        })
    }
}

/// Why a connection is over, or never came to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// There are as many as may be.
    TooMany,
    /// Its name has no address.
    NotFound(String),
    /// None of its addresses takes a connection.
    Unreachable(String),
    Proxy(String),
    Tls(String),
    /// It took too long, and what for.
    TimedOut(&'static str),
    /// The server takes nothing of what is written.
    Stalled,
    /// The server has closed it. Not clean: over TLS, without saying so.
    Ended {
        clean: bool,
    },
    /// It broke.
    Lost(String),
}

impl Why {
    pub fn message(&self) -> String {
        match self {
            Why::TooMany => "there are too many connections to other servers".to_string(),
            Why::NotFound(why) => format!("its address cannot be found: {why}"),
            Why::Unreachable(why) => format!("it cannot be reached: {why}"),
            Why::Proxy(why) => format!("the proxy: {why}"),
            Why::Tls(why) => format!("TLS: {why}"),
            Why::TimedOut(what) => format!("{what} took too long"),
            Why::Stalled => "it takes nothing of what is sent to it".to_string(),
            Why::Ended { clean: true } => "it closed the connection".to_string(),
            Why::Ended { clean: false } => "the connection ended without the end of TLS".to_string(),
            Why::Lost(why) => format!("the connection broke: {why}"),
        }
    }
}

/// More waits to be written than may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BacklogFull;

pub struct Outgoing {
    map: IdMap<OutgoingId, Connection>,
    resolver: Resolver,
    proxies: Proxies,
    events: VecDeque<(OutgoingId, Event)>,
    /// Connections with more to do though the kernel will not say so again.
    runnable: Vec<OutgoingId>,
    /// When to look at a connection's deadline. Lazy: an entry may be early, never late.
    deadlines: BinaryHeap<Reverse<(u64, OutgoingId)>>,
    scratch: Vec<u8>,
}

impl Outgoing {
    pub fn new(proxies: Proxies, lookup: Lookup, wake: Wake) -> Outgoing {
        Outgoing {
            map: IdMap::default(),
            resolver: Resolver::new(lookup, wake),
            proxies,
            events: VecDeque::new(),
            runnable: Vec::new(),
            deadlines: BinaryHeap::new(),
            scratch: Vec::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.map.len()
    }

    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    // --- what the owner wants ---------------------------------------------------------------------------------------

    /// `Connected` or `Closed` will follow, the latter within `OUTGOING_CONNECT_TIMEOUT`. An id is used once.
    pub fn connect(&mut self, id: OutgoingId, target: Target, now: Now) {
        if self.map.len() >= OUTGOING_MAX {
            return self.events.push_back((id, Event::Closed { why: Why::TooMany }));
        }
        let proxy = self.proxies.to(&target.url).cloned();
        let (host, port) = match &proxy {
            Some(proxy) => (proxy.host.clone(), proxy.port),
            None => (target.url.host.clone(), target.url.port),
        };
        let tls = target.url.https.then(|| target.tls_ca.clone());
        let by = now.mono_ms + OUTGOING_CONNECT_TIMEOUT.as_millis() as u64;
        self.map.insert(id, Connection::new(target, proxy, now.mono_ms, by));
        self.arm(id);
        if self.resolver.ask(Question { id, host, port, tls }).is_err() {
            self.end(id, Why::TooMany);
        }
    }

    /// Behind all that was written before; also before it is `Connected`.
    pub fn write(&mut self, id: OutgoingId, bytes: Vec<u8>, now: Now) -> Result<(), BacklogFull> {
        // Of one that is gone the owner has heard, or will.
        let Some(connection) = self.map.get_mut(&id) else { return Ok(()) };
        if connection.out.len() + bytes.len() > UPSTREAM_BACKLOG_MAX {
            return Err(BacklogFull);
        }
        if connection.out.is_empty() {
            connection.moved_ms = now.mono_ms;
        }
        connection.out.push(bytes);
        self.run(id);
        Ok(())
    }

    /// Whether bytes are wanted. Those that are not stay in the kernel, and the server has to wait.
    pub fn want_bytes(&mut self, id: OutgoingId, wanted: bool) {
        let Some(connection) = self.map.get_mut(&id) else { return };
        if !std::mem::replace(&mut connection.wants_bytes, wanted) && wanted {
            self.run(id);
        }
    }

    /// Nothing more is heard of it, not even of bytes that have come.
    pub fn close(&mut self, id: OutgoingId) {
        if let Some(mut connection) = self.map.remove(&id) {
            connection.finish();
        }
        self.resolver.forget(id);
        self.events.retain(|(of, _)| *of != id);
    }

    /// What has happened, in its order.
    pub fn poll_event(&mut self) -> Option<(OutgoingId, Event)> {
        self.events.pop_front()
    }

    // --- what the kernel and the helpers say ------------------------------------------------------------------------

    pub fn woke(&mut self, id: OutgoingId, event: &mio::event::Event, registry: &Registry, now: Now) {
        let Some(connection) = self.map.get_mut(&id) else { return };
        connection.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
        connection.writable |= event.is_writable() || event.is_write_closed() || event.is_error();
        self.pump(id, registry, now);
    }

    /// A helper thread has woken the loop.
    pub fn heard(&mut self, registry: &Registry, now: Now) {
        for Found { id, addresses, tls } in self.resolver.take() {
            let Some(connection) = self.map.get_mut(&id) else { continue };
            let began = addresses.map_err(Why::NotFound).and_then(|addresses| {
                let config = tls.transpose().map_err(Why::Tls)?;
                connection.resolved(addresses, config, now.mono_ms)
            });
            match began {
                Ok(()) => self.watch(id, registry),
                Err(why) => self.end(id, why),
            }
        }
    }

    pub fn has_runnable(&self) -> bool {
        !self.runnable.is_empty()
    }

    pub fn serve_runnable(&mut self, registry: &Registry, now: Now) {
        for id in std::mem::take(&mut self.runnable) {
            if let Some(connection) = self.map.get_mut(&id) {
                connection.queued = false;
                self.pump(id, registry, now);
            }
        }
    }

    fn run(&mut self, id: OutgoingId) {
        if let Some(connection) = self.map.get_mut(&id)
            && !std::mem::replace(&mut connection.queued, true)
        {
            self.runnable.push(id);
        }
    }

    fn pump(&mut self, id: OutgoingId, registry: &Registry, now: Now) {
        self.scratch.resize(OUTGOING_SCRATCH, 0);
        let Some(connection) = self.map.get_mut(&id) else { return };
        let Progress { connected, bytes, more, new_socket, end } = connection.pump(&mut self.scratch, now.mono_ms);
        if connected {
            let proxy = match &connection.proxy {
                Some(proxy) if !connection.target.url.https => {
                    PlainProxy::Asked { login: proxy.authorization().map(str::to_string) }
                }
                Some(_) | None => PlainProxy::None,
            };
            self.events.push_back((id, Event::Connected { proxy }));
        }
        if !bytes.is_empty() {
            self.events.push_back((id, Event::Bytes(bytes)));
        }
        if let Some(why) = end {
            return self.end(id, why);
        }
        if new_socket {
            self.watch(id, registry);
        }
        if more {
            self.run(id);
        }
        self.arm(id);
    }

    /// Its socket is a new one.
    fn watch(&mut self, id: OutgoingId, registry: &Registry) {
        let Some(socket) = self.map.get_mut(&id).and_then(|connection| connection.socket.as_mut()) else { return };
        let token = EventSource::Outgoing(id).token();
        match registry.register(socket, token, Interest::READABLE | Interest::WRITABLE) {
            Ok(()) => self.arm(id),
            Err(e) => self.end(id, Why::Lost(format!("it cannot be watched: {e}"))),
        }
    }

    fn end(&mut self, id: OutgoingId, why: Why) {
        if let Some(mut connection) = self.map.remove(&id) {
            if connection.is_up() {
                connection.finish();
            }
            self.resolver.forget(id);
            self.events.push_back((id, Event::Closed { why }));
        }
    }

    // --- deadlines --------------------------------------------------------------------------------------------------

    pub fn next_deadline(&self) -> Option<u64> {
        self.deadlines.peek().map(|Reverse((at, _))| *at)
    }

    pub fn expire(&mut self, registry: &Registry, now: Now) {
        while self.next_deadline().is_some_and(|at| at <= now.mono_ms) {
            let Some(Reverse((at, id))) = self.deadlines.pop() else { return };
            let Some(connection) = self.map.get_mut(&id) else { continue };
            if connection.armed_ms != Some(at) {
                continue;
            }
            connection.armed_ms = None;
            if connection.deadline_ms().is_none_or(|deadline| deadline > now.mono_ms) {
                self.arm(id);
            } else if connection.give_up_address(now.mono_ms) {
                self.watch(id, registry);
            } else {
                let why = connection.too_slow();
                self.end(id, why);
            }
        }
    }

    fn arm(&mut self, id: OutgoingId) {
        let Some(connection) = self.map.get_mut(&id) else { return };
        let Some(at) = connection.deadline_ms() else { return };
        if connection.armed_ms.is_none_or(|armed| at < armed) {
            connection.armed_ms = Some(at);
            self.deadlines.push(Reverse((at, id)));
        }
    }
}
