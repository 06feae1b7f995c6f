//! Pairs of connections that are one: a client's and the one to a server, and the bytes between them. Published ports pass
//! whatever comes; a relayed request passes one answer back, whose head it reads. Every pair has an owner on each side
//! (`Shares`), a deadline, and a bound on what it holds. Never looks into a body. Invariant: what is read of one side is
//! written to the other before more is read, and what a pair holds beyond a small part is counted.

pub mod carried;
mod places;

use crate::api::auth::Tokens;
use crate::api::rest;
use crate::core::contract::Now;
use crate::ids::{IdMap, InstanceId, ServerId};
use crate::limits::{
    ANSWER_TIMEOUT, BYTES_AT_ONCE, LINGER_BYTES_MAX, PAIRS_BYTES_AT_ONCE, PORT_BUFFER, PORT_BUFFER_FREE,
    PORT_HALF_CLOSED_MAX, PORT_SILENCE_MAX, RELAY_CONNECT_TIMEOUT, RELAY_EVENTS_MAX, RELAY_EVENTS_SILENCE_MAX,
    RELAY_SILENCE_MAX, WRITE_TIMEOUT,
};
use crate::model::fault::{Code, Fault, Outcome};
use crate::model::principal::Principal;
use crate::os::event_loop::token::EventSource;
use crate::os::net::client::Socket;
use crate::os::net::pairs::places::{give_place_back, overloaded, take_place};
use crate::shares::{Owner, Resource, Shares, Short};
use crate::wire::backlog::Backlog;
use crate::wire::http_out::{self, Framing, HeadStart};
use crate::wire::relay::{Garbage, Head, HeadReader};
use mio::{Interest, Registry};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::{self, ErrorKind, Write};
use std::net::IpAddr;
use std::time::Duration;

/// The two sides of a pair.
const CLIENT: usize = 0;
const SERVER: usize = 1;

/// Who holds a pair: whoever connected, and the server.
pub type Owners = [Owner; 2];

pub fn owners_of_relay(who: &Principal, server: ServerId) -> Owners {
    [Owner::Principal(who.name.clone()), Owner::Server(server)]
}

pub fn owners_of_port(peer: IpAddr, server: ServerId) -> Owners {
    [Owner::at(peer), Owner::Server(server)]
}

/// One request that is passed on, and what must be known of it to answer it.
#[derive(Clone, Serialize, Deserialize)]
pub struct Exchange {
    pub who: Principal,
    /// How an answer of the daemon's own is framed.
    pub framing: Framing,
    /// For the head of the server's answer.
    pub timeout_ms: u64,
}

struct Pair {
    instance: InstanceId,
    owners: Owners,
    /// Of the first owner's memory.
    counted: usize,
    sides: [Side; 2],
    carries: Carries,
    begun_ms: u64,
    /// The server's side is there.
    connected: bool,
    /// When either side last took something that was meant for it.
    moved_ms: u64,
    /// When the loop will next look at its deadline.
    armed_ms: Option<u64>,
    /// It has its place among those that go on in the next turn.
    queued: bool,
}

#[derive(Clone, Serialize, Deserialize)]
enum Carries {
    /// Whatever comes, both ways: a published port.
    Bytes,
    /// A request, and its answer.
    Answer { exchange: Exchange, stage: Stage, discarded: usize },
}

#[derive(Clone, Serialize, Deserialize)]
enum Stage {
    /// Nothing of the answer has gone to the client yet.
    Head(HeadReader),
    /// `events`: nobody waits for its end.
    Body { events: bool, since_ms: u64 },
}

struct Side {
    socket: Socket,
    /// Sticky: the kernel has more, though it will not say so again.
    readable: bool,
    /// It will send no more, which may not have been read yet.
    left: bool,
    /// As above, and it was read.
    ended: bool,
    /// For this side, from the other one; the first `written` bytes are out.
    out: Vec<u8>,
    written: usize,
    /// No more will be written to it.
    closed: bool,
}

/// Why a pair is over.
enum End {
    /// All was passed on, or a side is gone.
    Over,
    /// The client is told, if it has heard nothing of the answer yet.
    Fault(Fault),
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> End {
        End::Over
    }
}

#[derive(Default)]
pub struct Pairs {
    map: IdMap<u64, Pair>,
    minted: u64,
    /// Pairs with more to do though the kernel will not say so again, the next one first.
    runnable: VecDeque<u64>,
    /// What all of them have moved in this turn.
    moved: usize,
    /// When to look at a pair's deadline. Lazy: an entry may be early, never late.
    deadlines: BinaryHeap<Reverse<(u64, u64)>>,
    scratch: Vec<u8>,
    /// Of the tokens, when they were last looked at.
    edition: u64,
    heads: HeadStart,
}

impl Pairs {
    // --- begin ------------------------------------------------------------------------------------------------------

    /// A published port: passes what comes, both ways.
    pub fn join(
        &mut self,
        instance: InstanceId,
        owners: Owners,
        [client, server]: [Socket; 2],
        (registry, shares, now): (&Registry, &mut Shares, Now),
    ) -> Result<(), Fault> {
        take_place(&owners, shares)?;
        let pair = Pair::new(instance, owners, [Side::new(client), Side::new(server)], Carries::Bytes, now.mono_ms);
        self.insert(pair, registry, shares)
    }

    /// Passes one request on and its answer back; then the client's connection ends. `unwritten` is still for the client.
    pub fn relay(
        &mut self,
        instance: InstanceId,
        server: ServerId,
        exchange: Exchange,
        [(client, unwritten), (to, request)]: [(Socket, Vec<u8>); 2],
        (registry, shares, now): (&Registry, &mut Shares, Now),
    ) {
        let owners = owners_of_relay(&exchange.who, server);
        let (mut client, mut to) = (Side::new(client), Side::new(to));
        (client.out, to.out) = (unwritten, request);
        let framing = exchange.framing;
        let carries = Carries::Answer { exchange, stage: Stage::Head(HeadReader::default()), discarded: 0 };
        let mut pair = Pair::new(instance, owners, [client, to], carries, now.mono_ms);
        if let Err(fault) = take_place(&pair.owners, shares) {
            return self.tell(&mut pair.sides[CLIENT], &fault, framing, now);
        }
        if let Err(short) = pair.settle(shares) {
            give_place_back(&pair, shares);
            return self.tell(&mut pair.sides[CLIENT], &overloaded(short).outcome(Outcome::NotSent), framing, now);
        }
        if let Err(fault) = self.insert(pair, registry, shares) {
            log::warn!("instance={instance} a request was dropped: {}", fault.message);
        }
    }

    fn insert(&mut self, mut pair: Pair, registry: &Registry, shares: &mut Shares) -> Result<(), Fault> {
        self.minted += 1;
        let id = self.minted;
        for (at, side) in pair.sides.iter_mut().enumerate() {
            let token = EventSource::Pair(id << 1 | at as u64).token();
            if let Err(e) = registry.register(side.socket.source(), token, Interest::READABLE | Interest::WRITABLE) {
                give_place_back(&pair, shares);
                return Err(Fault::new(Code::Overloaded, format!("a connection cannot be watched: {e}")));
            }
        }
        self.map.insert(id, pair);
        self.arm(id);
        Ok(())
    }

    // --- what the kernel says ---------------------------------------------------------------------------------------

    pub fn woke(&mut self, number: u64, event: &mio::event::Event, shares: &mut Shares, now: Now) {
        let (id, at) = (number >> 1, (number & 1) as usize);
        let Some(pair) = self.map.get_mut(&id) else { return };
        let side = &mut pair.sides[at];
        side.readable |= event.is_readable() || event.is_read_closed();
        side.left |= event.is_read_closed() || event.is_error();
        if at == SERVER && !pair.connected && event.is_writable() && !event.is_error() {
            (pair.connected, pair.moved_ms) = (true, now.mono_ms);
        }
        // However many there are, nobody else waits for all of them.
        if pair.queued || self.moved >= PAIRS_BYTES_AT_ONCE {
            return self.go_on_later(id);
        }
        self.pump(id, shares, now);
    }

    fn go_on_later(&mut self, id: u64) {
        let Some(pair) = self.map.get_mut(&id).filter(|pair| !pair.queued) else { return };
        pair.queued = true;
        self.runnable.push_back(id);
    }

    pub fn has_runnable(&self) -> bool {
        !self.runnable.is_empty()
    }

    /// The first of a turn: those that wait, each once, as far as all together may.
    pub fn serve_runnable(&mut self, shares: &mut Shares, now: Now) {
        self.moved = 0;
        for _ in 0..self.runnable.len() {
            let next = if self.moved < PAIRS_BYTES_AT_ONCE { self.runnable.pop_front() } else { None };
            let Some(id) = next else { return };
            self.map.get_mut(&id).into_iter().for_each(|pair| pair.queued = false);
            self.pump(id, shares, now);
        }
    }

    /// Moves bytes until neither side has any, or this pair has had its share of the turn.
    fn pump(&mut self, id: u64, shares: &mut Shares, now: Now) {
        self.scratch.resize(PORT_BUFFER, 0);
        let Some(pair) = self.map.get_mut(&id) else { return };
        match pair.pump(&mut self.scratch, shares, now) {
            Ok(moved) => {
                self.moved += moved;
                if moved > BYTES_AT_ONCE {
                    self.go_on_later(id);
                }
                self.arm(id);
            }
            Err(end) => self.end(id, end, shares, now),
        }
    }

    // --- deadlines --------------------------------------------------------------------------------------------------

    pub fn next_deadline(&self) -> Option<u64> {
        self.deadlines.peek().map(|Reverse((at, _))| *at)
    }

    pub fn expire(&mut self, shares: &mut Shares, now: Now) {
        while self.next_deadline().is_some_and(|at| at <= now.mono_ms) {
            let Reverse((at, id)) = self.deadlines.pop().expect("just peeked");
            let Some(pair) = self.map.get_mut(&id) else { continue };
            if pair.armed_ms != Some(at) {
                continue;
            }
            pair.armed_ms = None;
            match pair.deadline_ms() <= now.mono_ms {
                true => {
                    let end = pair.too_slow();
                    self.end(id, end, shares, now);
                }
                false => self.arm(id),
            }
        }
    }

    fn arm(&mut self, id: u64) {
        let pair = self.map.get_mut(&id).expect("it goes on");
        let at = pair.deadline_ms();
        if pair.armed_ms.is_none_or(|armed| at < armed) {
            pair.armed_ms = Some(at);
            self.deadlines.push(Reverse((at, id)));
        }
    }

    // --- end --------------------------------------------------------------------------------------------------------

    /// All of an instance that is gone.
    pub fn end_of(&mut self, instance: InstanceId, shares: &mut Shares, now: Now) {
        let fault = || {
            let fault = Fault::new(Code::ServerCrashed, "the server ended before it had answered");
            End::Fault(fault.outcome(Outcome::SentUnknown))
        };
        self.end_those(|pair| pair.instance == instance, fault, shares, now);
    }

    /// Those whose token was taken back since this was last asked.
    pub fn end_revoked(&mut self, tokens: &Tokens, shares: &mut Shares, now: Now) {
        if std::mem::replace(&mut self.edition, tokens.edition()) == tokens.edition() {
            return;
        }
        let revoked = |pair: &Pair| match &pair.carries {
            Carries::Bytes => false,
            Carries::Answer { exchange, .. } => !tokens.still_knows(&exchange.who),
        };
        let fault =
            || End::Fault(Fault::new(Code::Unauthorized, "this token was revoked").outcome(Outcome::SentUnknown));
        self.end_those(revoked, fault, shares, now);
    }

    fn end_those(&mut self, are: impl Fn(&Pair) -> bool, why: impl Fn() -> End, shares: &mut Shares, now: Now) {
        let ids: Vec<u64> = self.map.iter().filter(|(_, pair)| are(pair)).map(|(id, _)| *id).collect();
        for id in ids {
            self.end(id, why(), shares, now);
        }
    }

    fn end(&mut self, id: u64, end: End, shares: &mut Shares, now: Now) {
        let Some(mut pair) = self.map.remove(&id) else { return };
        give_place_back(&pair, shares);
        if let (End::Fault(fault), Carries::Answer { exchange, stage: Stage::Head(_), .. }) = (end, &pair.carries) {
            let framing = exchange.framing;
            self.tell(&mut pair.sides[CLIENT], &fault, framing, now);
        }
    }

    /// A fault of the daemon's own, instead of an answer. Best effort: it is all that will be written, and fits any buffer.
    pub fn refuse(&mut self, client: Socket, unwritten: Vec<u8>, fault: &Fault, framing: Framing, now: Now) {
        let mut side = Side::new(client);
        side.out = unwritten;
        self.tell(&mut side, fault, framing, now);
    }

    fn tell(&mut self, client: &mut Side, fault: &Fault, framing: Framing, now: Now) {
        let mut text = Backlog::default();
        let framing = Framing { keep_alive: false, ..framing };
        http_out::write_response(&mut text, rest::refuse(fault), self.heads.at(now.unix_ms), framing);
        client.out.extend_from_slice(&text.into_bytes());
        _ = client.flush();
        _ = client.socket.finish();
    }
}

// --- one pair -------------------------------------------------------------------------------------------------------

impl Pair {
    fn new(instance: InstanceId, owners: Owners, sides: [Side; 2], carries: Carries, now_ms: u64) -> Pair {
        Pair {
            instance,
            owners,
            counted: 0,
            sides,
            carries,
            begun_ms: now_ms,
            connected: false,
            moved_ms: now_ms,
            armed_ms: None,
            queued: false,
        }
    }

    /// The bytes moved; with more than `BYTES_AT_ONCE` it has more to do, in the next turn.
    fn pump(&mut self, scratch: &mut [u8], shares: &mut Shares, now: Now) -> Result<usize, End> {
        // A client that will send no more has its whole request out, and does not wait for the answer: it has left. Seen
        // also while the server says nothing, and while it does not read.
        if let Carries::Answer { .. } = self.carries
            && self.sides[CLIENT].left
        {
            return Err(End::Over);
        }
        let mut taken = 0;
        loop {
            let mut moved = 0;
            for from in [CLIENT, SERVER] {
                moved += self.step(from, scratch, shares, now)?;
            }
            taken += moved;
            if moved == 0 || taken > BYTES_AT_ONCE {
                break;
            }
        }
        match self.sides.iter().all(|side| side.closed) {
            true => Err(End::Over),
            false => Ok(taken),
        }
    }

    /// Writes what waits for the other side, then reads what this one has. The bytes moved.
    fn step(&mut self, from: usize, scratch: &mut [u8], shares: &mut Shares, now: Now) -> Result<usize, End> {
        let to = 1 - from;
        let mut moved = self.flush(to, now)?;
        let thrown_away = from == CLIENT && matches!(self.carries, Carries::Answer { .. });
        let side = &self.sides[from];
        if side.readable && !side.ended && (thrown_away || self.sides[to].is_flushed()) {
            let most = if thrown_away { scratch.len() } else { self.reserve(scratch.len(), shares) };
            match self.sides[from].socket.read(&mut scratch[..most]) {
                Ok(0) if thrown_away => return Err(End::Over),
                Ok(0) => self.sides[from].ended = true,
                Ok(n) => {
                    self.take(from, &scratch[..n], now)?;
                    moved += n;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.sides[from].readable = false,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(self.broken(e)),
            }
            self.flush(to, now)?;
        }
        self.settle(shares).map_err(|short| End::Fault(overloaded(short).outcome(Outcome::SentUnknown)))?;
        self.pass_end_on(from)?;
        Ok(moved)
    }

    /// How much may be read at once: less for an owner that has all the memory it may have, but never nothing.
    fn reserve(&mut self, most: usize, shares: &mut Shares) -> usize {
        let wanted = self.counted + most;
        match shares.resize(&self.owners[CLIENT], Resource::Memory, &mut self.counted, wanted) {
            Ok(()) => most,
            Err(Short::Owner | Short::Whole) => most.min(PORT_BUFFER_FREE),
        }
    }

    /// What it holds is counted, but for a small part of each buffer.
    fn settle(&mut self, shares: &mut Shares) -> Result<(), Short> {
        let head = match &self.carries {
            Carries::Answer { stage: Stage::Head(head), .. } => head.held(),
            Carries::Answer { stage: Stage::Body { .. }, .. } | Carries::Bytes => 0,
        };
        let buffers = [self.sides[CLIENT].out.capacity(), self.sides[SERVER].out.capacity(), head];
        let wanted = buffers.iter().map(|held| held.saturating_sub(PORT_BUFFER_FREE)).sum();
        shares.resize(&self.owners[CLIENT], Resource::Memory, &mut self.counted, wanted)
    }

    fn flush(&mut self, to: usize, now: Now) -> Result<usize, End> {
        match self.sides[to].flush() {
            Ok(0) => Ok(0),
            Ok(n) => {
                self.moved_ms = now.mono_ms;
                Ok(n)
            }
            Err(e) => Err(self.broken(e)),
        }
    }

    /// What came of one side.
    fn take(&mut self, from: usize, came: &[u8], now: Now) -> Result<(), End> {
        let [client, server] = &mut self.sides;
        match &mut self.carries {
            Carries::Bytes if from == CLIENT => server.out.extend_from_slice(came),
            Carries::Bytes => client.out.extend_from_slice(came),
            // It was told that nothing after its request is read. It is taken all the same: unread bytes would reset the
            // connection at its end, and the answer with it.
            Carries::Answer { discarded, .. } if from == CLIENT => {
                *discarded += came.len();
                if *discarded > LINGER_BYTES_MAX {
                    return Err(End::Over);
                }
            }
            Carries::Answer { stage: Stage::Body { .. }, .. } => client.out.extend_from_slice(came),
            Carries::Answer { stage: stage @ Stage::Head(_), .. } => {
                let Stage::Head(head) = stage else { unreachable!("just matched") };
                match head.feed(came) {
                    Head::Partial => {}
                    Head::Garbage(garbage) => return Err(bad_output(garbage)),
                    Head::Whole { bytes, events } => {
                        client.out.extend_from_slice(&bytes);
                        *stage = Stage::Body { events, since_ms: now.mono_ms };
                    }
                }
            }
        }
        Ok(())
    }

    /// One side has sent its last byte, and all was passed on.
    fn pass_end_on(&mut self, from: usize) -> Result<(), End> {
        let to = 1 - from;
        if !self.sides[from].ended || !self.sides[to].is_flushed() || self.sides[to].closed {
            return Ok(());
        }
        match &self.carries {
            Carries::Answer { .. } if from == CLIENT => return Err(End::Over),
            Carries::Answer { stage: Stage::Head(_), .. } => return Err(bad_output(Garbage::NotHttp)),
            Carries::Answer { stage: Stage::Body { .. }, .. } => {
                self.sides[CLIENT].socket.finish()?;
                return Err(End::Over);
            }
            Carries::Bytes => {
                self.sides[to].closed = true;
                self.sides[to].socket.finish()?;
            }
        }
        Ok(())
    }

    /// A connection has failed; of the client's nobody is left to be told.
    fn broken(&self, why: io::Error) -> End {
        let outcome = if self.connected { Outcome::SentUnknown } else { Outcome::NotSent };
        let message = format!("the server gave no HTTP answer: its connection broke ({why})");
        End::Fault(Fault::new(Code::BadServerOutput, message).outcome(outcome))
    }

    // --- time ---

    /// When somebody has been too slow.
    fn deadline_ms(&self) -> u64 {
        let after = |from_ms: u64, wait: Duration| from_ms.saturating_add(wait.as_millis() as u64);
        let connected_by = if self.connected { u64::MAX } else { after(self.begun_ms, RELAY_CONNECT_TIMEOUT) };
        let Carries::Answer { exchange, stage, .. } = &self.carries else {
            let ending = self.sides.iter().any(|side| side.left);
            let silence = if ending { PORT_HALF_CLOSED_MAX } else { PORT_SILENCE_MAX };
            return after(self.moved_ms, silence).min(connected_by);
        };
        let taken_by = match self.sides.iter().all(Side::is_flushed) {
            true => u64::MAX,
            false => after(self.moved_ms, WRITE_TIMEOUT),
        };
        let said_by = match stage {
            Stage::Head(_) => self.begun_ms.saturating_add(exchange.timeout_ms),
            Stage::Body { events: false, since_ms } => {
                after(self.moved_ms, RELAY_SILENCE_MAX).min(after(*since_ms, ANSWER_TIMEOUT))
            }
            Stage::Body { events: true, since_ms } => {
                after(self.moved_ms, RELAY_EVENTS_SILENCE_MAX).min(after(*since_ms, RELAY_EVENTS_MAX))
            }
        };
        connected_by.min(taken_by).min(said_by)
    }

    fn too_slow(&self) -> End {
        let (message, outcome) = match self.connected {
            true => ("the server did not answer in time", Outcome::SentUnknown),
            false => ("the server did not accept the connection in time", Outcome::NotSent),
        };
        End::Fault(Fault::new(Code::CallTimeout, message).outcome(outcome))
    }
}

fn bad_output(garbage: Garbage) -> End {
    End::Fault(Fault::new(Code::BadServerOutput, garbage.message()).outcome(Outcome::SentUnknown))
}

impl Side {
    fn new(socket: Socket) -> Side {
        Side { socket, readable: false, left: false, ended: false, out: Vec::new(), written: 0, closed: false }
    }

    fn is_flushed(&self) -> bool {
        self.out.is_empty() && self.socket.unsent() == 0
    }

    /// Nothing is kept of a buffer that is out: most pairs are idle most of the time.
    fn flush(&mut self) -> io::Result<usize> {
        let before = self.written;
        while self.written < self.out.len() {
            match self.socket.write(&self.out[self.written..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => self.written += n,
                // NotConnected: the server's side is still on its way.
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        let moved = self.written - before;
        if self.written == self.out.len() {
            (self.out, self.written) = (Vec::new(), 0);
        }
        self.socket.send_what_goes().map(|()| moved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Uuid;
    use crate::limits::HEAD_MAX;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    const SECOND: u64 = 1000;

    fn at(mono_ms: u64) -> Now {
        Now { mono_ms, unix_ms: 0 }
    }

    fn socket() -> (Socket, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        (Socket::Unix(mio::net::UnixStream::from_std(ours)), theirs)
    }

    /// A pair, and the far ends of its sides.
    fn pair(carries: Carries) -> (Pair, UnixStream, UnixStream) {
        let ((client, client_end), (server, server_end)) = (socket(), socket());
        let owners = [Owner::Principal("a".into()), Owner::Server(ServerId(Uuid::nil()))];
        let mut pair = Pair::new(InstanceId(1), owners, [Side::new(client), Side::new(server)], carries, 0);
        pair.connected = true;
        (pair, client_end, server_end)
    }

    fn answer(timeout_ms: u64) -> Carries {
        let framing = Framing { keep_alive: false, head_only: false, http10: false };
        let exchange = Exchange { who: Principal::anonymous(), framing, timeout_ms };
        Carries::Answer { exchange, stage: Stage::Head(HeadReader::default()), discarded: 0 }
    }

    /// The kernel has said that there is something on every side.
    fn pump(pair: &mut Pair, shares: &mut Shares, now_ms: u64) -> Result<usize, End> {
        pair.sides.iter_mut().for_each(|side| side.readable = true);
        pair.pump(&mut vec![0; PORT_BUFFER], shares, at(now_ms))
    }

    fn code(end: End) -> Option<Code> {
        match end {
            End::Over => None,
            End::Fault(fault) => Some(fault.code),
        }
    }

    #[test]
    fn each_stage_of_an_answer_has_a_clock_of_its_own() {
        let (mut pair, mut client, mut server) = pair(answer(30 * SECOND));
        let mut shares = Shares::default();
        pair.connected = false;
        assert_eq!(pair.deadline_ms(), 10 * SECOND, "to connect");
        assert_eq!(code(pair.too_slow()), Some(Code::CallTimeout));
        pair.connected = true;
        assert_eq!(pair.deadline_ms(), 30 * SECOND, "for a head");
        server.write_all(b"HTTP/1.1 200 OK\r\n").unwrap();
        assert!(pump(&mut pair, &mut shares, 29 * SECOND).is_ok());
        assert_eq!(pair.deadline_ms(), 30 * SECOND, "which is not moved by trickling it");
        server.write_all(b"Content-Length: 9\r\n\r\nabc").unwrap();
        assert!(pump(&mut pair, &mut shares, 29 * SECOND).is_ok());
        assert_eq!(pair.deadline_ms(), 89 * SECOND, "for the next byte of a body");
        for at_ms in (79..=319).step_by(40).map(|second| second * SECOND) {
            server.write_all(b"d").unwrap();
            assert!(pump(&mut pair, &mut shares, at_ms).is_ok());
            assert!(pair.deadline_ms() > at_ms || at_ms >= 319 * SECOND);
        }
        assert_eq!(pair.deadline_ms(), 329 * SECOND, "and for the last one");
        let mut told = String::new();
        _ = client.read_to_string(&mut told);
        assert!(told.ends_with("\r\n\r\nabcddddddd"), "{told}");
    }

    #[test]
    fn all_pairs_together_move_so_much_in_a_turn_and_each_has_its_turn() {
        let (mut pairs, mut shares, mut ends) = (Pairs::default(), Shares::default(), Vec::new());
        for id in 1..=64 {
            let (mut pair, client, mut server) = pair(Carries::Bytes);
            while server.write(&[b'x'; 8 << 10]).is_ok() {}
            take_place(&pair.owners, &mut shares).unwrap();
            pair.sides.iter_mut().for_each(|side| side.readable = true);
            pairs.map.insert(id, pair);
            pairs.go_on_later(id);
            ends.push((client, server));
        }
        let heard = |(client, _): &mut (UnixStream, UnixStream)| client.read(&mut vec![0; 1 << 20]).unwrap_or(0);
        let (mut turns, mut whose) = (0, vec![0; ends.len()]);
        while whose.contains(&0) {
            pairs.serve_runnable(&mut shares, at(0));
            let moved: Vec<usize> = ends.iter_mut().map(heard).collect();
            assert!(moved.iter().sum::<usize>() <= PAIRS_BYTES_AT_ONCE + BYTES_AT_ONCE + 2 * PORT_BUFFER, "{moved:?}");
            whose.iter_mut().zip(moved).for_each(|(sum, moved)| *sum += moved);
            turns += 1;
            assert!(turns <= 64, "{whose:?}");
        }
        assert!(turns > 4, "{turns}: nobody waits for all of them");
    }

    #[test]
    fn events_may_be_rare_but_not_for_ever() {
        let (mut pair, _client, mut server) = pair(answer(SECOND));
        server.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n").unwrap();
        assert!(pump(&mut pair, &mut Shares::default(), 0).is_ok());
        assert_eq!(pair.deadline_ms(), RELAY_EVENTS_SILENCE_MAX.as_millis() as u64);
        pair.moved_ms = RELAY_EVENTS_MAX.as_millis() as u64 - SECOND;
        assert_eq!(pair.deadline_ms(), RELAY_EVENTS_MAX.as_millis() as u64);
    }

    #[test]
    fn a_side_that_takes_nothing_is_not_waited_for() {
        let (mut pair, _client, mut server) = pair(answer(3600 * SECOND));
        let mut shares = Shares::default();
        server.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n").unwrap();
        let mut now_ms = 0;
        // Nobody reads at the client's end: at some point its socket is full, and then nothing more is read.
        while pair.sides[CLIENT].is_flushed() {
            _ = server.write(&[b'x'; 8 << 10]);
            now_ms += SECOND;
            assert!(pump(&mut pair, &mut shares, now_ms).is_ok() && now_ms < 1000 * SECOND);
        }
        assert_eq!(pair.deadline_ms(), pair.moved_ms + WRITE_TIMEOUT.as_millis() as u64);
        assert!(pair.sides[CLIENT].out.capacity() <= 2 * PORT_BUFFER);
        let memory = |shares: &Shares| shares.of(&Owner::Principal("a".into()), Resource::Memory);
        assert_eq!(memory(&shares), pair.counted);
        assert_eq!(pair.counted, pair.sides[CLIENT].out.capacity().saturating_sub(PORT_BUFFER_FREE));
    }

    #[test]
    fn a_published_port_knows_silence_only_and_less_of_it_when_one_side_has_ended() {
        let (mut pair, mut client, mut server) = pair(Carries::Bytes);
        let mut shares = Shares::default();
        assert_eq!(pair.deadline_ms(), PORT_SILENCE_MAX.as_millis() as u64);
        client.write_all(b"hello").unwrap();
        assert!(pump(&mut pair, &mut shares, 5 * SECOND).is_ok());
        assert_eq!(pair.deadline_ms(), 5 * SECOND + PORT_SILENCE_MAX.as_millis() as u64);
        let mut heard = [0; 5];
        server.read_exact(&mut heard).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        pair.sides[CLIENT].left = true;
        assert!(pump(&mut pair, &mut shares, 6 * SECOND).is_ok(), "the server may still answer");
        assert_eq!(server.read(&mut heard).unwrap(), 0, "it hears the end");
        assert_eq!(pair.deadline_ms(), 5 * SECOND + PORT_HALF_CLOSED_MAX.as_millis() as u64);
        server.write_all(b"late").unwrap();
        drop(server);
        assert_eq!(pump(&mut pair, &mut shares, 7 * SECOND).map_err(code), Err(None), "both have ended");
        assert_eq!((client.read(&mut heard).unwrap(), &heard[..4]), (4, b"late".as_slice()));
    }

    #[test]
    fn whoever_has_no_memory_left_goes_on_in_small_steps() {
        let (mut pair, mut client, mut server) = pair(Carries::Bytes);
        let mut shares = Shares::default();
        let cap = Resource::Memory.caps().principal;
        shares.take(&pair.owners[CLIENT], Resource::Memory, cap).unwrap();
        client.write_all(&vec![b'x'; 3 * PORT_BUFFER_FREE]).unwrap();
        assert!(pump(&mut pair, &mut shares, 0).is_ok());
        let mut heard = vec![0; 3 * PORT_BUFFER_FREE];
        server.read_exact(&mut heard).unwrap();
        assert_eq!((pair.counted, shares.of(&pair.owners[CLIENT], Resource::Memory)), (0, cap));
        // A head cannot be read in small steps: it is kept until it is whole.
        let (mut pair, _client, mut server) = self::pair(answer(SECOND));
        server.write_all(b"HTTP/1.1 200 OK\r\nA: ").and_then(|()| server.write_all(&vec![b'x'; HEAD_MAX / 2])).unwrap();
        assert_eq!(pump(&mut pair, &mut shares, 0).map_err(code), Err(Some(Code::Overloaded)));
    }

    #[test]
    fn a_client_that_left_is_noticed_whatever_its_server_does() {
        let (mut pair, client, _server) = pair(answer(3600 * SECOND));
        pair.sides[SERVER].out = vec![b'x'; 4 << 20];
        let mut shares = Shares::default();
        assert!(pump(&mut pair, &mut shares, 0).is_ok());
        assert!(!pair.sides[SERVER].is_flushed(), "the server reads nothing");
        drop(client);
        assert_eq!(pump(&mut pair, &mut shares, 0).map_err(code), Err(None));
    }
}
