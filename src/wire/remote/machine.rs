//! The machine of a link, by its transport. Owns what becomes of Streamable HTTP where the server turns out to speak only the
//! pair of 2024-11-05; what each of them does is their own.

use crate::ids::CallId;
use crate::model::endpoint::{Endpoint, LinkFault, LinkFaultKind, Transport};
use crate::wire::http::url::Url;
use crate::wire::remote::sse_pair::SsePair;
use crate::wire::remote::streamable_http::StreamableHttp;
use crate::wire::remote::websocket::WebSocketLink;
use crate::wire::remote::{Channel, Command, Heard, Seeds, headers};

pub enum Machine {
    Http(Box<StreamableHttp>),
    Sse(Box<SsePair>),
    WebSocket(Box<WebSocketLink>),
}

pub fn address(endpoint: &Endpoint) -> Result<Url, LinkFault> {
    let (url, kinds) = match endpoint.transport {
        Transport::Http | Transport::Sse => (Url::parse(&endpoint.url), "http or https"),
        Transport::WebSocket => (Url::parse_websocket(&endpoint.url), "ws or wss"),
    };
    url.ok_or_else(|| LinkFault::new(LinkFaultKind::Invalid, format!("url: is no {kinds} address")))
}

impl Machine {
    pub fn new(
        endpoint: &Endpoint,
        seeds: Seeds,
        authorization: Option<String>,
        now_ms: u64,
    ) -> Result<Machine, LinkFault> {
        let url = address(endpoint)?;
        let renews = authorization.is_some();
        let mut all = endpoint.headers.clone();
        if let Some(authorization) = authorization {
            headers::authorize(&mut all, authorization);
        }
        let by_ms = now_ms.saturating_add(endpoint.startup_ms);
        Ok(match endpoint.transport {
            Transport::Http => Machine::Http(Box::new(StreamableHttp::new(url, &all, renews))),
            Transport::Sse => Machine::Sse(Box::new(SsePair::new(url, &all, renews, by_ms))),
            Transport::WebSocket => Machine::WebSocket(Box::new(WebSocketLink::new(url, all, seeds, by_ms))),
        })
    }

    pub fn write(&mut self, message: &[u8], call: Option<CallId>, now_ms: u64) {
        match self {
            Machine::Http(http) => http.write(message, call, now_ms),
            Machine::Sse(pair) => pair.write(message, call, now_ms),
            Machine::WebSocket(socket) => socket.write(message, call),
        }
    }

    pub fn heard(&mut self, channel: Channel, heard: Heard, now_ms: u64) {
        match self {
            Machine::Http(http) => http.heard(channel, heard, now_ms),
            Machine::Sse(pair) => pair.heard(channel, heard, now_ms),
            Machine::WebSocket(socket) => socket.heard(heard),
        }
        self.fall_back(now_ms);
    }

    fn fall_back(&mut self, now_ms: u64) {
        if let Machine::Http(http) = self
            && let Some(pair) = http.fall_back(now_ms)
        {
            *self = Machine::Sse(Box::new(pair));
        }
    }

    /// Another token is shown from now on.
    pub fn show(&mut self, authorization: String) {
        match self {
            Machine::Http(http) => http.show(authorization),
            Machine::Sse(pair) => pair.show(authorization),
            // It was shown when the connection was made.
            Machine::WebSocket(_) => {}
        }
    }

    pub fn close(&mut self, now_ms: u64) -> bool {
        match self {
            Machine::Http(http) => http.close(now_ms),
            Machine::Sse(pair) => {
                pair.close();
                false
            }
            Machine::WebSocket(socket) => socket.close(),
        }
    }

    pub fn next_deadline(&self) -> Option<u64> {
        match self {
            Machine::Http(http) => http.next_deadline(),
            Machine::Sse(pair) => pair.next_deadline(),
            Machine::WebSocket(socket) => socket.next_deadline(),
        }
    }

    pub fn tick(&mut self, now_ms: u64) {
        match self {
            Machine::Http(http) => http.tick(now_ms),
            Machine::Sse(pair) => pair.tick(now_ms),
            Machine::WebSocket(socket) => socket.tick(now_ms),
        }
        self.fall_back(now_ms);
    }

    pub fn poll(&mut self) -> Option<Command> {
        match self {
            Machine::Http(http) => http.poll(),
            Machine::Sse(pair) => pair.poll(),
            Machine::WebSocket(socket) => socket.poll(),
        }
    }

    pub fn is_over(&self) -> bool {
        match self {
            Machine::Http(http) => http.is_over(),
            // It ends with its connections.
            Machine::Sse(_) => true,
            Machine::WebSocket(socket) => socket.is_over(),
        }
    }

    pub fn held(&self) -> usize {
        match self {
            Machine::Http(http) => http.held(),
            Machine::Sse(pair) => pair.held(),
            Machine::WebSocket(socket) => socket.held(),
        }
    }
}
