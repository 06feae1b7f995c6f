//! Conversations with external servers: each transport as a machine that is told what its connections bring and says what is
//! to be done with them. Pure: whoever has the sockets performs the commands. Invariants: a machine says `Connected` at most
//! once and `Lost` at most once, after which it says nothing; and of every call that was written it says `Undelivered`, gives
//! a line that answers it, or says `Lost`.

pub mod exchanges;
pub mod headers;
pub mod streamable_http;
mod verdict;
pub mod websocket;

use crate::ids::CallId;
use crate::model::endpoint::{Endpoint, LinkFault, LinkFaultKind, ParamHeaders, Transport};
use crate::model::fault::Fault;
use crate::wire::http::url::Url;
use crate::wire::remote::streamable_http::StreamableHttp;
use crate::wire::remote::websocket::WebSocketLink;
use std::sync::Arc;

/// One connection of a machine, by a number of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Channel(pub u64);

/// A proxy that is asked by requests which name the whole address.
#[derive(Clone, PartialEq, Eq)]
pub struct ViaProxy {
    pub login: Option<String>,
}

/// What a connection brings.
pub enum Heard {
    Connected {
        proxy: Option<ViaProxy>,
    },
    Bytes(Vec<u8>),
    /// Nothing more comes of it.
    Closed(LinkFault),
}

#[derive(Debug, PartialEq)]
pub enum Command {
    Open {
        channel: Channel,
        to: Url,
    },
    Write {
        channel: Channel,
        bytes: Vec<u8>,
    },
    Close {
        channel: Channel,
    },
    /// Messages may be written.
    Connected,
    /// A message of the server.
    Line(Vec<u8>),
    Undelivered {
        call: CallId,
        fault: Fault,
    },
    Lost(LinkFault),
}

pub enum Remote {
    Http(Box<StreamableHttp>),
    WebSocket(Box<WebSocketLink>),
}

impl Remote {
    /// `seed`: nobody may foresee it.
    pub fn new(endpoint: &Endpoint, seed: [u8; 32], now_ms: u64) -> Result<Remote, LinkFault> {
        let invalid = |why: &str| LinkFault::new(LinkFaultKind::Invalid, why);
        headers::check(&endpoint.headers).map_err(|bad| invalid(&bad.message()))?;
        if endpoint.auth.is_some() {
            return Err(invalid("auth: tokens cannot be fetched by this daemon; put one into headers.Authorization"));
        }
        match endpoint.transport {
            Transport::Http => {
                let url = Url::parse(&endpoint.url).ok_or_else(|| invalid("url: is no http or https address"))?;
                Ok(Remote::Http(Box::new(StreamableHttp::new(url, endpoint.headers.clone()))))
            }
            Transport::Sse => {
                Err(invalid("transport: sse is not spoken by this daemon; use http if the server has that too"))
            }
            Transport::WebSocket => {
                let url = Url::parse_websocket(&endpoint.url).ok_or_else(|| invalid("url: is no ws or wss address"))?;
                let by_ms = now_ms.saturating_add(endpoint.startup_ms);
                Ok(Remote::WebSocket(Box::new(WebSocketLink::new(url, endpoint.headers.clone(), seed, by_ms))))
            }
        }
    }

    /// One message, with or without a line end; of a call, if it is one.
    pub fn write(&mut self, message: &[u8], call: Option<CallId>, now_ms: u64) {
        let message = message.trim_ascii_end();
        match self {
            Remote::Http(http) => http.write(message, call, now_ms),
            Remote::WebSocket(socket) => socket.write(message, call),
        }
    }

    pub fn heard(&mut self, channel: Channel, heard: Heard, now_ms: u64) {
        match self {
            Remote::Http(http) => http.heard(channel, heard, now_ms),
            Remote::WebSocket(socket) => socket.heard(heard),
        }
    }

    pub fn negotiated(&mut self, version: String) {
        match self {
            Remote::Http(http) => http.negotiated(version),
            Remote::WebSocket(_) => {}
        }
    }

    pub fn mirror(&mut self, tools: Arc<ParamHeaders>) {
        match self {
            Remote::Http(http) => http.mirror(tools),
            Remote::WebSocket(_) => {}
        }
    }

    /// Says goodbye; false: there is nothing to wait for.
    pub fn close(&mut self, now_ms: u64) -> bool {
        match self {
            Remote::Http(http) => http.close(now_ms),
            Remote::WebSocket(socket) => socket.close(),
        }
    }

    pub fn next_deadline(&self) -> Option<u64> {
        match self {
            Remote::Http(http) => http.next_deadline(),
            Remote::WebSocket(socket) => socket.next_deadline(),
        }
    }

    pub fn tick(&mut self, now_ms: u64) {
        match self {
            Remote::Http(http) => http.tick(now_ms),
            Remote::WebSocket(socket) => socket.tick(now_ms),
        }
    }

    pub fn poll(&mut self) -> Option<Command> {
        match self {
            Remote::Http(http) => http.poll(),
            Remote::WebSocket(socket) => socket.poll(),
        }
    }

    /// It has said goodbye.
    pub fn is_over(&self) -> bool {
        match self {
            Remote::Http(http) => http.is_over(),
            Remote::WebSocket(socket) => socket.is_over(),
        }
    }

    /// The memory of what has come and is not whole, and of what waits to go out.
    pub fn held(&self) -> usize {
        match self {
            Remote::Http(http) => http.held(),
            Remote::WebSocket(socket) => socket.held(),
        }
    }
}
