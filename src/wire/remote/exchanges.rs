//! HTTP requests of one link and their answers, over a few connections to one origin that are kept for the next request.
//! Owns which request is on which connection; never knows what they mean. Invariants: every exchange ends with exactly one
//! `End` or `Failed`, unless it was given up; one request at a time on a connection; nothing is sent twice.

use crate::limits::{LINK_CONNECTIONS_MAX, LINK_IDLE_CONNECTION, LINK_IDLE_CONNECTIONS_MAX};
use crate::model::endpoint::{LinkFault, LinkFaultKind};
use crate::wire::backlog::Backlog;
use crate::wire::http::request::{self, Request};
use crate::wire::http::response::{Asked, Head, Part, Reader};
use crate::wire::http::url::Url;
use crate::wire::remote::{Channel, Command, Heard, ViaProxy};
use std::collections::VecDeque;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExchangeId(u64);

pub struct Ask {
    pub method: &'static str,
    /// With its query.
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: Option<Vec<u8>>,
    /// Until the answer is whole; none: whoever asks gives it up.
    pub by_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    No,
    /// Some of it, perhaps all.
    Perhaps,
}

pub enum Step {
    Head(Head),
    Body(Vec<u8>),
    End,
    Failed { sent: Sent, why: LinkFault },
}

struct Connection {
    channel: Channel,
    proxy: Option<ViaProxy>,
    reader: Reader,
    state: State,
}

enum State {
    Connecting(ExchangeId, Box<Ask>),
    Busy { exchange: ExchangeId, by_ms: Option<u64> },
    Idle { until_ms: u64 },
}

pub struct Exchanges {
    url: Url,
    minted: u64,
    connections: Vec<Connection>,
    waiting: VecDeque<(ExchangeId, Ask)>,
    steps: VecDeque<(ExchangeId, Step)>,
    commands: VecDeque<Command>,
}

impl Exchanges {
    pub fn new(url: Url) -> Exchanges {
        Exchanges::numbered_from(url, 0)
    }

    /// Beside others of the same link: no number is used twice.
    pub fn numbered_from(url: Url, minted: u64) -> Exchanges {
        Exchanges {
            url,
            minted,
            connections: Vec::new(),
            waiting: VecDeque::new(),
            steps: VecDeque::new(),
            commands: VecDeque::new(),
        }
    }

    pub fn begin(&mut self, ask: Ask) -> ExchangeId {
        self.minted += 1;
        let id = ExchangeId(self.minted);
        self.assign(id, ask);
        id
    }

    fn assign(&mut self, id: ExchangeId, ask: Ask) {
        let idle = self.connections.iter().position(|connection| matches!(connection.state, State::Idle { .. }));
        match idle {
            Some(at) => self.send(at, id, ask),
            None if self.connections.len() < LINK_CONNECTIONS_MAX => {
                self.minted += 1;
                let channel = Channel(self.minted);
                let state = State::Connecting(id, Box::new(ask));
                self.connections.push(Connection { channel, proxy: None, reader: Reader::default(), state });
                self.commands.push_back(Command::Open { channel, to: self.url.clone() });
            }
            None => self.waiting.push_back((id, ask)),
        }
    }

    fn send(&mut self, at: usize, id: ExchangeId, ask: Ask) {
        let connection = &mut self.connections[at];
        let authority = self.url.authority();
        let proxy = connection.proxy.as_ref();
        let target = match proxy {
            Some(_) => format!("http://{authority}{}", ask.path),
            None => ask.path,
        };
        let headers: Vec<(&str, &str)> = ask.headers.iter().map(|(name, value)| (&**name, &**value)).collect();
        let request = Request {
            headers: &headers,
            body: ask.body,
            proxy_login: proxy.and_then(|proxy| proxy.login.as_deref()),
            ..Request::new(ask.method, &target, &authority)
        };
        let mut out = Backlog::default();
        if let Err(bad) = request::write(&mut out, request) {
            let why = LinkFault::new(LinkFaultKind::Invalid, bad.message());
            self.steps.push_back((id, Step::Failed { sent: Sent::No, why }));
            return self.close(at);
        }
        connection.reader.ask(Asked::Plain);
        connection.state = State::Busy { exchange: id, by_ms: ask.by_ms };
        self.commands.push_back(Command::Write { channel: connection.channel, bytes: out.into_bytes() });
    }

    /// Nothing more is heard of it. What has been sent of it stays sent.
    pub fn give_up(&mut self, id: ExchangeId) {
        self.waiting.retain(|(waiting, _)| *waiting != id);
        self.steps.retain(|(of, _)| *of != id);
        if let Some(at) = self.connections.iter().position(|connection| connection.exchange() == Some(id)) {
            self.close(at);
            self.next_waiting();
        }
    }

    /// It is to end by then.
    pub fn end_by(&mut self, id: ExchangeId, at_ms: u64) {
        for connection in &mut self.connections {
            if let State::Busy { exchange, by_ms } = &mut connection.state
                && *exchange == id
            {
                *by_ms = Some(by_ms.map_or(at_ms, |by_ms| by_ms.min(at_ms)));
            }
        }
    }

    fn close(&mut self, at: usize) {
        let channel = self.connections.swap_remove(at).channel;
        self.commands.push_back(Command::Close { channel });
    }

    fn next_waiting(&mut self) {
        if let Some((id, ask)) = self.waiting.pop_front() {
            self.assign(id, ask);
        }
    }

    pub fn heard(&mut self, channel: Channel, heard: Heard, now_ms: u64) {
        let Some(at) = self.connections.iter().position(|connection| connection.channel == channel) else { return };
        match heard {
            Heard::Connected { proxy } => {
                self.connections[at].proxy = proxy;
                let idle = State::Idle { until_ms: now_ms };
                if let State::Connecting(id, ask) = std::mem::replace(&mut self.connections[at].state, idle) {
                    self.send(at, id, *ask);
                }
            }
            Heard::Bytes(bytes) => {
                self.connections[at].reader.feed(&bytes);
                self.read(at, now_ms);
            }
            Heard::Closed(why) => {
                let mut connection = self.connections.swap_remove(at);
                match connection.state {
                    State::Connecting(id, _) => self.steps.push_back((id, Step::Failed { sent: Sent::No, why })),
                    State::Idle { .. } => {}
                    State::Busy { exchange, .. } => {
                        let step = match connection.reader.closed() {
                            Ok(true) if why.kind == LinkFaultKind::Closed => Step::End,
                            _ => Step::Failed { sent: Sent::Perhaps, why },
                        };
                        self.steps.push_back((exchange, step));
                    }
                }
                self.next_waiting();
            }
        }
    }

    fn read(&mut self, at: usize, now_ms: u64) {
        loop {
            let connection = &mut self.connections[at];
            let part = connection.reader.next_part();
            let State::Busy { exchange, .. } = connection.state else {
                // It says something that it was not asked for.
                return self.close(at);
            };
            match part {
                Ok(None) => return,
                Ok(Some(Part::Head(head))) => self.steps.push_back((exchange, Step::Head(head))),
                Ok(Some(Part::Body(bytes))) => self.steps.push_back((exchange, Step::Body(bytes))),
                Ok(Some(Part::End { keep_alive })) => {
                    self.steps.push_back((exchange, Step::End));
                    let idle = |connection: &Connection| matches!(connection.state, State::Idle { .. });
                    let kept = self.connections.iter().filter(|connection| idle(connection)).count();
                    if keep_alive && (kept < LINK_IDLE_CONNECTIONS_MAX || !self.waiting.is_empty()) {
                        let until_ms = now_ms + LINK_IDLE_CONNECTION.as_millis() as u64;
                        self.connections[at].state = State::Idle { until_ms };
                    } else {
                        self.close(at);
                    }
                    return self.next_waiting();
                }
                Err(broken) => {
                    let why = LinkFault::new(LinkFaultKind::Protocol, broken.message());
                    self.steps.push_back((exchange, Step::Failed { sent: Sent::Perhaps, why }));
                    self.close(at);
                    return self.next_waiting();
                }
            }
        }
    }

    pub fn next_deadline(&self) -> Option<u64> {
        self.connections.iter().filter_map(Connection::deadline_ms).min()
    }

    pub fn tick(&mut self, now_ms: u64) {
        while let Some(at) =
            self.connections.iter().position(|connection| connection.deadline_ms().is_some_and(|at| at <= now_ms))
        {
            if let State::Busy { exchange, .. } = self.connections[at].state {
                let why = LinkFault::new(LinkFaultKind::Timeout, "the external server does not answer");
                self.steps.push_back((exchange, Step::Failed { sent: Sent::Perhaps, why }));
            }
            self.close(at);
            self.next_waiting();
        }
    }

    pub fn next_step(&mut self) -> Option<(ExchangeId, Step)> {
        self.steps.pop_front()
    }

    pub fn poll(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    pub fn close_all(&mut self) {
        self.waiting.clear();
        self.steps.clear();
        while !self.connections.is_empty() {
            self.close(0);
        }
    }

    /// The memory it takes.
    pub fn held(&self) -> usize {
        let body = |ask: &Ask| ask.body.as_ref().map_or(0, Vec::len);
        let of = |connection: &Connection| match &connection.state {
            State::Connecting(_, ask) => body(ask),
            State::Busy { .. } | State::Idle { .. } => connection.reader.held(),
        };
        self.waiting.iter().map(|(_, ask)| body(ask)).sum::<usize>() + self.connections.iter().map(of).sum::<usize>()
    }
}

impl Connection {
    fn exchange(&self) -> Option<ExchangeId> {
        match &self.state {
            State::Connecting(id, _) => Some(*id),
            State::Busy { exchange, .. } => Some(*exchange),
            State::Idle { .. } => None,
        }
    }

    fn deadline_ms(&self) -> Option<u64> {
        match &self.state {
            State::Connecting(..) => None,
            State::Busy { by_ms, .. } => *by_ms,
            State::Idle { until_ms } => Some(*until_ms),
        }
    }
}
