//! One client connection: its socket, the parser of what comes in, the bytes that go out. One request at a time; while
//! it is being answered nothing more is read, so a client that pipelines is held back by its own socket. Never decides
//! what a request means.

use crate::api::auth::Peer;
use crate::ids::ConnId;
use crate::limits::{BODY_TIMEOUT, HEAD_TIMEOUT, IDLE_TIMEOUT, READ_BUDGET, STREAM_BACKLOG_MAX, WRITE_TIMEOUT};
use crate::wire::http_in::{Parser, Phase, Step};
use mio::net::{TcpStream, UnixStream};
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;

pub enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    pub fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => socket.read(buf),
            Socket::Unix(socket) => socket.read(buf),
        }
    }

    /// No more will be written.
    pub fn finish(&mut self) -> io::Result<()> {
        match self {
            Socket::Tcp(socket) => socket.shutdown(Shutdown::Write),
            Socket::Unix(socket) => socket.shutdown(Shutdown::Write),
        }
    }

    pub fn source(&mut self) -> &mut dyn mio::event::Source {
        match self {
            Socket::Tcp(socket) => socket,
            Socket::Unix(socket) => socket,
        }
    }

    pub fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => socket.write(buf),
            Socket::Unix(socket) => socket.write(buf),
        }
    }
}

/// What the connection is doing. Closing is a state of its own because the last answer must be written first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    Reading,
    /// The core has its request.
    Waiting,
    /// An open stream of events.
    Streaming,
    /// The last bytes are going out.
    Closing,
    Closed,
}

pub struct Client {
    pub id: ConnId,
    pub socket: Socket,
    pub peer: Peer,
    pub parser: Parser,
    pub doing: Doing,
    /// Sticky: the kernel has more for us, though it will not say so again.
    pub readable: bool,
    /// It will send no more; said once, so it is kept until the end itself is read.
    pub hung_up: bool,
    /// It has its place among those that go on in the next turn.
    pub queued: bool,
    out: Vec<u8>,
    written: usize,
    /// Properties of the request under way, for the framing of its answer.
    pub keep_alive: bool,
    pub head_only: bool,
    pub http10: bool,
    /// The parser's phase when the deadline was set: a new phase has a new one.
    phase: Phase,
    /// When this client has been too slow; none while we are.
    pub deadline_ms: Option<u64>,
    /// When the loop will next look at `deadline_ms`.
    pub armed_ms: Option<u64>,
}

/// What came of reading.
pub enum Read1 {
    Step(Step),
    /// Nothing whole yet.
    Nothing,
    Gone,
}

impl Client {
    pub fn new(id: ConnId, socket: Socket, peer: Peer, now_ms: u64) -> Client {
        Client {
            id,
            socket,
            peer,
            parser: Parser::default(),
            doing: Doing::Reading,
            readable: true,
            hung_up: false,
            queued: false,
            out: Vec::new(),
            written: 0,
            keep_alive: true,
            head_only: false,
            http10: false,
            phase: Phase::Idle,
            deadline_ms: Some(now_ms + HEAD_TIMEOUT.as_millis() as u64),
            armed_ms: None,
        }
    }

    /// Reads until there is a step to take, nothing more to read, or the budget is spent (then `readable` stays set).
    pub fn read(&mut self, scratch: &mut [u8]) -> Read1 {
        match self.parser.step() {
            Step::NeedMore => {}
            step @ (Step::Continue | Step::Request | Step::Refuse(_)) => return Read1::Step(step),
        }
        let mut taken = 0;
        while self.readable && taken < READ_BUDGET {
            match self.socket.read(scratch) {
                Ok(0) => return Read1::Gone,
                Ok(n) => {
                    taken += n;
                    self.readable = n == scratch.len() || self.hung_up;
                    self.parser.feed(&scratch[..n]);
                    match self.parser.step() {
                        Step::NeedMore => {}
                        step @ (Step::Continue | Step::Request | Step::Refuse(_)) => return Read1::Step(step),
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.readable = false,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Read1::Gone,
            }
        }
        Read1::Nothing
    }

    /// The connection goes to somebody else: the socket, and what is still to be written to it.
    pub fn hand_over(mut self) -> (Socket, Vec<u8>) {
        (self.socket, self.out.split_off(self.written))
    }

    /// Where answers are written to; `flush` sends them.
    pub fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Sends what it can. Writes first and asks later: only a short write leaves anything for a WRITABLE event.
    pub fn flush(&mut self, now_ms: u64) -> io::Result<()> {
        while self.written < self.out.len() {
            match self.socket.write(&self.out[self.written..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => {
                    self.written += n;
                    self.deadline_ms = Some(now_ms + WRITE_TIMEOUT.as_millis() as u64);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    if self.deadline_ms.is_none() {
                        self.deadline_ms = Some(now_ms + WRITE_TIMEOUT.as_millis() as u64);
                    }
                    if self.doing == Doing::Streaming && self.backlog() > STREAM_BACKLOG_MAX {
                        return Err(ErrorKind::OutOfMemory.into());
                    }
                    return Ok(());
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.out.clear();
        self.written = 0;
        if self.out.capacity() > 1 << 20 {
            self.out = Vec::new();
        }
        if self.doing == Doing::Closing {
            self.doing = Doing::Closed;
        }
        self.rearm(now_ms);
        Ok(())
    }

    fn backlog(&self) -> usize {
        self.out.len() - self.written
    }

    pub fn has_backlog(&self) -> bool {
        self.backlog() > 0
    }

    /// Bytes came: a request that has begun, or come to its body, has a deadline of its own. More bytes of the same
    /// phase move nothing, or a client could trickle them for ever.
    pub fn rearm_if_moved(&mut self, now_ms: u64) {
        if self.parser.phase() != self.phase {
            self.rearm(now_ms);
        }
    }

    /// The deadline of what the client now has to do.
    pub fn rearm(&mut self, now_ms: u64) {
        self.phase = self.parser.phase();
        let wait = match self.doing {
            Doing::Reading => Some(match self.parser.phase() {
                Phase::Idle => IDLE_TIMEOUT,
                Phase::Head => HEAD_TIMEOUT,
                Phase::Body | Phase::Complete => BODY_TIMEOUT,
            }),
            Doing::Waiting | Doing::Streaming => None,
            Doing::Closing | Doing::Closed => Some(WRITE_TIMEOUT),
        };
        self.deadline_ms = wait.map(|wait| now_ms + wait.as_millis() as u64);
    }
}
