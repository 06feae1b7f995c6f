//! MCP over one WebSocket: the handshake, then a message each way as text. Owns which calls are unanswered, because an answer
//! that is too large cannot be told apart from others; never opens a second connection. The framing is `wire/websocket`: it is
//! fed and taken as bytes, counts what it holds and draws nothing from the system, which the library at hand does otherwise.

use crate::ids::CallId;
use crate::limits::UPSTREAM_MESSAGE_MAX;
use crate::model::endpoint::{LinkFault, LinkFaultKind};
use crate::model::fault::Outcome;
use crate::wire::backlog::Backlog;
use crate::wire::http::request::{self, Request};
use crate::wire::http::response::{Asked, Part, Reader};
use crate::wire::http::url::Url;
use crate::wire::jsonrpc::{self, Message};
use crate::wire::remote::{Channel, Command, Heard, Seeds, ViaProxy, headers, verdict};
use crate::wire::websocket::{Handshake, Incoming, WebSocket};
use std::collections::{BTreeSet, VecDeque};

const ONLY: Channel = Channel(1);
const TOO_LARGE: u16 = 1009;
const LEAVING: u16 = 1000;

pub struct WebSocketLink {
    url: Url,
    row_headers: Vec<(String, String)>,
    handshake: Handshake,
    socket: WebSocket,
    unanswered: BTreeSet<CallId>,
    out: VecDeque<Command>,
    stage: Stage,
}

enum Stage {
    Connecting {
        by_ms: u64,
    },
    Handshake {
        reader: Box<Reader>,
        by_ms: u64,
    },
    Open,
    /// The close is on its way.
    Leaving,
    Over,
}

impl WebSocketLink {
    pub fn new(url: Url, row_headers: Vec<(String, String)>, seeds: Seeds, by_ms: u64) -> WebSocketLink {
        WebSocketLink {
            out: VecDeque::from([Command::Open { channel: ONLY, to: url.clone() }]),
            url,
            row_headers,
            handshake: Handshake::new(seeds.key),
            socket: WebSocket::new(UPSTREAM_MESSAGE_MAX, seeds.masks),
            unanswered: BTreeSet::new(),
            stage: Stage::Connecting { by_ms },
        }
    }

    pub fn write(&mut self, message: &[u8], call: Option<CallId>) {
        let (Stage::Open, Ok(text)) = (&self.stage, std::str::from_utf8(message)) else {
            let fault = verdict::unavailable("the WebSocket is not open", Outcome::NotSent);
            return self.out.extend(call.map(|call| Command::Undelivered { call, fault }));
        };
        self.socket.send(text);
        self.unanswered.extend(call);
        self.flush();
    }

    fn flush(&mut self) {
        let bytes = self.socket.take_out();
        if !bytes.is_empty() {
            self.out.push_back(Command::Write { channel: ONLY, bytes });
        }
    }

    pub fn heard(&mut self, heard: Heard) {
        match heard {
            Heard::Connected { proxy } => self.ask(proxy.as_ref()),
            Heard::Closed(why) => self.lose(why),
            Heard::Bytes(bytes) => match &mut self.stage {
                Stage::Connecting { .. } | Stage::Leaving | Stage::Over => {}
                Stage::Open => self.read(&bytes),
                Stage::Handshake { reader, .. } => {
                    reader.feed(&bytes);
                    self.follow_handshake();
                }
            },
        }
    }

    fn ask(&mut self, proxy: Option<&ViaProxy>) {
        let Stage::Connecting { by_ms } = self.stage else { return };
        let authority = self.url.authority();
        let target = match proxy {
            Some(_) => format!("http://{authority}{}", self.url.path),
            None => self.url.path.clone(),
        };
        let row = headers::of_row(&self.row_headers);
        let own = self.handshake.headers();
        let all: Vec<(&str, &str)> = row.iter().map(|(name, value)| (&**name, &**value)).chain(own).collect();
        let request = Request {
            headers: &all,
            upgrade: Some("websocket"),
            proxy_login: proxy.and_then(|proxy| proxy.login.as_deref()),
            ..Request::new("GET", &target, &authority)
        };
        let mut words = Backlog::default();
        if let Err(bad) = request::write(&mut words, request) {
            return self.lose(LinkFault::new(LinkFaultKind::Invalid, bad.message()));
        }
        self.out.push_back(Command::Write { channel: ONLY, bytes: words.into_bytes() });
        let mut reader = Box::new(Reader::default());
        reader.ask(Asked::Upgrade);
        self.stage = Stage::Handshake { reader, by_ms };
    }

    fn follow_handshake(&mut self) {
        let Stage::Handshake { reader, .. } = &mut self.stage else { return };
        let head = match reader.next_part() {
            Ok(Some(Part::Head(head))) => head,
            Ok(Some(Part::Body(_) | Part::End { .. }) | None) => return,
            Err(broken) => return self.lose(LinkFault::new(LinkFaultKind::Protocol, broken.message())),
        };
        if head.status != 101 {
            return self.lose(verdict::link_fault(head.status, verdict::retry_after_ms(&head)));
        }
        if let Err(why) = self.handshake.check(&head) {
            return self.lose(LinkFault::new(LinkFaultKind::Protocol, why));
        }
        let Stage::Handshake { reader, .. } = std::mem::replace(&mut self.stage, Stage::Open) else { return };
        self.out.push_back(Command::Connected);
        self.read(&reader.into_rest());
    }

    fn read(&mut self, mut bytes: &[u8]) {
        loop {
            match self.socket.read(&mut bytes) {
                Ok(None) => break,
                Ok(Some(Incoming::Pong)) => {}
                Ok(Some(Incoming::Text(text))) => {
                    if let Some(Message::Reply { id, .. }) = jsonrpc::parse(text.as_bytes()) {
                        self.unanswered.remove(&CallId(id));
                    }
                    self.out.push_back(Command::Line(text.into_bytes()));
                }
                Ok(Some(Incoming::Closed { code, .. })) => {
                    self.flush();
                    let said = code.map_or_else(String::new, |code| format!(" ({code})"));
                    let message = format!("the external server closed the WebSocket{said}");
                    return self.lose(LinkFault::new(LinkFaultKind::Closed, message));
                }
                Err(broken) => {
                    self.flush();
                    if broken.code == TOO_LARGE {
                        let fault = || verdict::too_large(UPSTREAM_MESSAGE_MAX);
                        let unanswered = std::mem::take(&mut self.unanswered).into_iter();
                        self.out.extend(unanswered.map(|call| Command::Undelivered { call, fault: fault() }));
                    }
                    return self.lose(LinkFault::new(LinkFaultKind::Protocol, broken.why));
                }
            }
        }
        self.flush();
    }

    fn lose(&mut self, why: LinkFault) {
        if !matches!(std::mem::replace(&mut self.stage, Stage::Over), Stage::Over) {
            self.out.extend([Command::Close { channel: ONLY }, Command::Lost(why)]);
        }
    }

    /// True: the server is told, and closes the connection.
    pub fn close(&mut self) -> bool {
        if !matches!(std::mem::replace(&mut self.stage, Stage::Leaving), Stage::Open) {
            self.stage = Stage::Over;
            return false;
        }
        self.socket.close(LEAVING);
        self.flush();
        true
    }

    pub fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    pub fn next_deadline(&self) -> Option<u64> {
        match &self.stage {
            Stage::Connecting { by_ms } | Stage::Handshake { by_ms, .. } => Some(*by_ms),
            Stage::Open | Stage::Leaving | Stage::Over => None,
        }
    }

    pub fn tick(&mut self, now_ms: u64) {
        if self.next_deadline().is_some_and(|by_ms| by_ms <= now_ms) {
            self.lose(LinkFault::new(LinkFaultKind::Timeout, "the WebSocket did not open in time"));
        }
    }

    pub fn poll(&mut self) -> Option<Command> {
        self.out.pop_front()
    }

    pub fn held(&self) -> usize {
        self.socket.held()
    }
}

#[cfg(test)]
mod tests;
