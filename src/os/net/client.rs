//! One client connection: its socket, the parser of what comes in, the bytes that go out. One request at a time; while
//! it is being answered nothing more is read, so a client that pipelines is held back by its own socket. Never decides
//! what a request means.

use serde::{Deserialize, Serialize};
pub mod carried;

use crate::api::audit::Draft;
use crate::api::auth::proof;
use crate::api::auth::{Peer, Shown};
use crate::ids::ConnId;
use crate::limits::{
    ANSWER_TIMEOUT, BODY_TIMEOUT, BUFFER_KEPT_MAX, BYTES_AT_ONCE, HEAD_TIMEOUT, IDLE_TIMEOUT, LINGER_BYTES_MAX,
    LINGER_SILENCE_MAX, LINGER_TIME_MAX, STREAM_BACKLOG_MAX, WRITE_TIMEOUT,
};
use crate::model::metrics::Traffic;
use crate::os::net::holding::Holding;
use crate::os::net::tls::TlsSocket;
use crate::os::net::unix_socket;
use crate::shares::{Shares, Short};
use crate::wire::backlog::Backlog;
use crate::wire::forwarded::TrustedProxies;
use crate::wire::http_in::{Parser, Request, RequestPhase, Step};
use mio::net::{TcpStream, UnixStream};
use nix::sys::socket::{MsgFlags, recv};
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{IpAddr, Shutdown};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

pub enum Socket {
    Tcp(TcpStream),
    Tls(Box<TlsSocket>),
    Unix(UnixStream),
}

impl Socket {
    pub fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => socket.read(buf),
            Socket::Tls(socket) => socket.read(buf),
            Socket::Unix(socket) => socket.read(buf),
        }
    }

    /// After a read that brought less than there was room for: the kernel may have more all the same.
    pub fn has_more(&self) -> bool {
        match self {
            Socket::Tcp(_) | Socket::Unix(_) => false,
            Socket::Tls(socket) => socket.has_more(),
        }
    }

    /// Bytes that were written to it and that the kernel did not take yet.
    pub fn unsent(&self) -> usize {
        match self {
            Socket::Tcp(_) | Socket::Unix(_) => 0,
            Socket::Tls(socket) => socket.unsent(),
        }
    }

    /// As `flush`, for whoever looks at `unsent` afterwards: that the kernel takes no more just now is no failure.
    pub fn send_what_goes(&mut self) -> io::Result<()> {
        match self.flush() {
            Err(e) if e.kind() != ErrorKind::WouldBlock => Err(e),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Nothing can be said on it yet.
    pub fn is_handshaking(&self) -> bool {
        match self {
            Socket::Tcp(_) | Socket::Unix(_) => false,
            Socket::Tls(socket) => socket.is_handshaking(),
        }
    }

    /// Where the other end is, for the audit log.
    pub fn peer(&self) -> String {
        let address = |socket: &TcpStream| socket.peer_addr().map_or_else(|_| "gone".to_string(), |at| at.to_string());
        match self {
            Socket::Tcp(socket) => address(socket),
            Socket::Tls(socket) => address(socket.socket()),
            Socket::Unix(socket) => match unix_socket::peer_uid(socket) {
                Some(uid) => format!("unix:uid={uid}"),
                None => "unix".to_string(),
            },
        }
    }

    /// None of a unix socket, or of one that is broken already.
    fn peer_ip(&self) -> Option<IpAddr> {
        let socket = match self {
            Socket::Tcp(socket) => socket,
            Socket::Tls(socket) => socket.socket(),
            Socket::Unix(_) => return None,
        };
        socket.peer_addr().ok().map(|at| at.ip())
    }

    /// No more will be written. `WouldBlock`: the last word is still on its way, and this is to be called again.
    pub fn finish(&mut self) -> io::Result<()> {
        match self {
            Socket::Tcp(socket) => socket.shutdown(Shutdown::Write),
            Socket::Tls(socket) => socket.finish(),
            Socket::Unix(socket) => socket.shutdown(Shutdown::Write),
        }
    }

    /// This end's, as a proof names it. None of a socket that is broken already: nobody takes that for an address.
    pub fn address(&self) -> String {
        match self {
            Socket::Tcp(socket) => socket.local_addr().map(proof::address).unwrap_or_default(),
            Socket::Tls(socket) => socket.socket().local_addr().map(proof::address).unwrap_or_default(),
            Socket::Unix(_) => proof::UNIX.to_string(),
        }
    }

    /// Is what it has sent first a HEAD, whose answer has no body? Looks and takes nothing; no, if nothing is there yet.
    pub fn begins_with_head(&self) -> bool {
        let mut first = [0; 5];
        let look = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        recv(self.as_raw_fd(), &mut first, look).is_ok_and(|n| first[..n] == *b"HEAD ")
    }

    pub fn source(&mut self) -> &mut dyn mio::event::Source {
        match self {
            Socket::Tcp(socket) => socket,
            Socket::Tls(socket) => socket.socket_mut(),
            Socket::Unix(socket) => socket,
        }
    }
}

impl Write for Socket {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => socket.write(buf),
            Socket::Tls(socket) => socket.write(buf),
            Socket::Unix(socket) => socket.write(buf),
        }
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => socket.write_vectored(parts),
            Socket::Tls(socket) => socket.write_vectored(parts),
            Socket::Unix(socket) => socket.write_vectored(parts),
        }
    }

    /// Of plain sockets there is nothing between us and the kernel.
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Socket::Tcp(_) | Socket::Unix(_) => Ok(()),
            Socket::Tls(socket) => socket.send(),
        }
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Socket::Tcp(socket) => socket.as_raw_fd(),
            Socket::Tls(socket) => socket.socket().as_raw_fd(),
            Socket::Unix(socket) => socket.as_raw_fd(),
        }
    }
}

/// What the connection is doing. Closing is a state of its own because the last answer must be written first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Doing {
    Reading,
    /// Something is looked up on a disk for it, before the core has its request or after that is answered. Not for long, so
    /// one that will send no more still gets its answer.
    LookingUp,
    /// The core has its request.
    Waiting,
    /// An open stream of events.
    Streaming,
    /// The last bytes are going out.
    Closing,
    /// They are out. What the client still sends is thrown away until it ends too: to close a socket with unread bytes
    /// resets it, and the answer would be lost.
    Lingering {
        until_ms: u64,
        drained: usize,
    },
    Closed,
}

/// What a proxy has said of the client of its last request.
pub struct Via {
    proxies: Arc<TrustedProxies>,
    client: Option<IpAddr>,
}

impl Via {
    /// None: the other end is no proxy that is configured.
    pub fn of(socket: &Socket, proxies: &Arc<TrustedProxies>) -> Option<Via> {
        let is_one = socket.peer_ip().is_some_and(|address| proxies.has(address));
        is_one.then(|| Via { proxies: Arc::clone(proxies), client: None })
    }

    /// The request as its client has made it.
    pub fn hear<'r>(via: &mut Option<Via>, request: Request<'r>) -> Request<'r> {
        let Some(via) = via else { return request };
        via.client = via.proxies.client(&request);
        request.forwarded()
    }
}

pub struct Client {
    pub id: ConnId,
    pub socket: Socket,
    pub peer: Peer,
    /// The other end is a proxy that is believed.
    pub via: Option<Via>,
    pub shown: Shown,
    pub parser: Parser,
    pub holding: Holding,
    pub doing: Doing,
    /// Sticky: the kernel has more for us, though it will not say so again.
    pub readable: bool,
    /// It will send no more; said once, so it is kept until the end itself is read.
    pub hung_up: bool,
    /// It has its place among those that go on reading in the next turn.
    pub queued: bool,
    /// Its answer is large, or its socket full: what is left goes out piece by piece.
    pub large: bool,
    /// It has its place among those whose large answer goes on.
    pub queued_large: bool,
    /// What is written to it; `flush` sends it.
    pub out: Backlog,
    /// While something is left to write: when the client last took any of it, and when it must have taken all.
    taken_ms: Option<u64>,
    written_by_ms: Option<u64>,
    /// Lines of the audit log that wait for the outcome of its request.
    pub drafts: Vec<Draft>,
    /// Properties of the request under way, for the framing of its answer.
    pub keep_alive: bool,
    pub head_only: bool,
    pub http10: bool,
    /// The parser's phase when the deadline was set: a new phase has a new one.
    phase: RequestPhase,
    /// When this client has been too slow; none while we are.
    pub deadline_ms: Option<u64>,
    /// Of a stream: when the token that opened it is worth nothing any more.
    pub ends_ms: Option<u64>,
    /// When the loop will next look at `deadline_ms`.
    pub armed_ms: Option<u64>,
    pub traffic: Traffic,
}

/// What came of reading.
pub enum ReadOutcome {
    Step(Step),
    /// Nothing whole yet.
    Nothing,
    Gone,
}

impl Client {
    pub fn new(id: ConnId, socket: Socket, peer: Peer, holding: Holding, now_ms: u64) -> Client {
        Client {
            id,
            socket,
            peer,
            via: None,
            shown: Shown::default(),
            parser: Parser::default(),
            holding,
            doing: Doing::Reading,
            readable: true,
            hung_up: false,
            queued: false,
            large: false,
            queued_large: false,
            out: Backlog::default(),
            taken_ms: None,
            written_by_ms: None,
            drafts: Vec::new(),
            keep_alive: true,
            head_only: false,
            http10: false,
            phase: RequestPhase::Idle,
            deadline_ms: Some(now_ms + HEAD_TIMEOUT.as_millis() as u64),
            ends_ms: None,
            armed_ms: None,
            traffic: Traffic::default(),
        }
    }

    /// Reads until there is a step to take, nothing more to read, or the budget is spent (then `readable` stays set).
    pub fn read(&mut self, scratch: &mut [u8]) -> ReadOutcome {
        match self.parser.step() {
            Step::NeedMore => {}
            step @ (Step::Continue | Step::Request | Step::Refuse(_)) => return ReadOutcome::Step(step),
        }
        let mut taken = 0;
        while self.readable && taken < BYTES_AT_ONCE {
            match self.socket.read(scratch) {
                Ok(0) => return ReadOutcome::Gone,
                Ok(n) => {
                    taken += n;
                    self.traffic.received += n as u64;
                    self.readable = n == scratch.len() || self.hung_up || self.socket.has_more();
                    if let Socket::Tls(socket) = &mut self.socket
                        && let Some(who) = socket.take_principal()
                    {
                        self.shown.certify(who);
                    }
                    self.parser.feed(&scratch[..n]);
                    match self.parser.step() {
                        Step::NeedMore => {}
                        step @ (Step::Continue | Step::Request | Step::Refuse(_)) => return ReadOutcome::Step(step),
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.readable = false,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return ReadOutcome::Gone,
            }
        }
        ReadOutcome::Nothing
    }

    /// Counts what its buffers hold now. An error: they have grown beyond what its owner may have, and something must go.
    pub fn count(&mut self, shares: &mut Shares) -> Result<(), Short> {
        self.count_with(0, shares)
    }

    /// As above, with an answer of so many bytes that is about to be written.
    pub fn count_with(&mut self, answer: usize, shares: &mut Shares) -> Result<(), Short> {
        let beyond = |bytes: usize| bytes.saturating_sub(BUFFER_KEPT_MAX);
        let bytes = beyond(self.parser.held()) + beyond(self.out.own_len() + answer + self.socket.unsent());
        self.holding.remember(bytes, shares)
    }

    /// The connection goes to somebody else: the socket, and what is still to be written to it.
    pub fn hand_over(self) -> (Socket, Vec<u8>) {
        (self.socket, self.out.into_bytes())
    }

    /// Sends what it can, of an answer so much at most; true: it might take more. A stream has a bound of its own, which
    /// is looked at when its client takes no more, so it must come to that. Writes first and asks later: only a short write
    /// leaves anything for a WRITABLE event.
    pub fn flush(&mut self, most: usize, now_ms: u64) -> io::Result<bool> {
        let mut room = if self.doing == Doing::Streaming { usize::MAX } else { most };
        while !self.out.is_empty() {
            if room == 0 {
                self.wait_for_room(now_ms)?;
                return Ok(true);
            }
            match self.out.write_to(&mut self.socket, room) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => {
                    self.taken_ms = Some(now_ms);
                    self.traffic.sent += n as u64;
                    room -= n;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    self.wait_for_room(now_ms)?;
                    return Ok(false);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        let is_out = match self.doing {
            Doing::Closing => self.socket.finish(),
            Doing::Reading
            | Doing::LookingUp
            | Doing::Waiting
            | Doing::Streaming
            | Doing::Lingering { .. }
            | Doing::Closed => self.socket.flush(),
        };
        match is_out {
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                self.wait_for_room(now_ms)?;
                return Ok(false);
            }
            other => other?,
        }
        (self.taken_ms, self.written_by_ms) = (None, None);
        if self.doing == Doing::Closing {
            self.readable = true;
            self.doing = Doing::Lingering { until_ms: now_ms + LINGER_TIME_MAX.as_millis() as u64, drained: 0 };
        }
        self.rearm(now_ms);
        Ok(false)
    }

    /// The client takes no more just now. It has until its next deadline to go on.
    fn wait_for_room(&mut self, now_ms: u64) -> io::Result<()> {
        if self.socket.is_handshaking() {
            return Ok(());
        }
        let taken_ms = *self.taken_ms.get_or_insert(now_ms);
        let mut deadline_ms = taken_ms + WRITE_TIMEOUT.as_millis() as u64;
        if self.doing != Doing::Streaming {
            let whole_ms = now_ms + ANSWER_TIMEOUT.as_millis() as u64;
            deadline_ms = deadline_ms.min(*self.written_by_ms.get_or_insert(whole_ms));
        } else if self.out.len() > STREAM_BACKLOG_MAX {
            return Err(ErrorKind::OutOfMemory.into());
        } else if let Some(ends_ms) = self.ends_ms {
            deadline_ms = deadline_ms.min(ends_ms);
        }
        self.deadline_ms = Some(deadline_ms);
        Ok(())
    }

    /// Throws away what a client sends behind its last answer, within the budget of a turn.
    pub fn drain(&mut self, scratch: &mut [u8], now_ms: u64) {
        let mut taken = 0;
        while let Doing::Lingering { drained, .. } = &mut self.doing
            && self.readable
            && taken < BYTES_AT_ONCE
        {
            match self.socket.read(scratch) {
                Ok(n @ 1..) if *drained + n <= LINGER_BYTES_MAX => {
                    (taken, *drained) = (taken + n, *drained + n);
                    self.readable = n == scratch.len() || self.hung_up || self.socket.has_more();
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.readable = false,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => self.doing = Doing::Closed,
            }
        }
        self.rearm(now_ms);
    }

    /// It has sent more than was looked at: in the parser, or still in the socket.
    pub fn has_unread(&self) -> bool {
        match self.doing {
            Doing::Reading => self.readable || self.parser.phase() != RequestPhase::Idle,
            Doing::Lingering { .. } => self.readable,
            Doing::LookingUp | Doing::Waiting | Doing::Streaming | Doing::Closing | Doing::Closed => false,
        }
    }

    /// A whole one, which the core has not taken.
    /// Where the client is, for the audit log.
    pub fn source(&self) -> String {
        match self.via.as_ref().and_then(|via| via.client) {
            Some(client) => format!("{client} via {}", self.socket.peer()),
            None => self.socket.peer(),
        }
    }

    pub fn has_request(&self) -> bool {
        self.parser.phase() == RequestPhase::Complete
    }

    pub fn has_backlog(&self) -> bool {
        !self.out.is_empty() || self.socket.unsent() > 0
    }

    /// Bytes came: a request that has begun, or come to its body, has a deadline of its own. More bytes of the same
    /// phase move nothing, or a client could trickle them for ever. True: the phase is a new one.
    pub fn rearm_if_moved(&mut self, now_ms: u64) -> bool {
        let moved = self.parser.phase() != self.phase;
        if moved {
            self.rearm(now_ms);
        }
        moved
    }

    /// The deadline of what the client now has to do.
    pub fn rearm(&mut self, now_ms: u64) {
        // From its first byte to the end of its first head a connection has one deadline, whatever comes of the handshake.
        if self.socket.is_handshaking() {
            return;
        }
        self.phase = self.parser.phase();
        let within = |wait: Duration| Some(now_ms + wait.as_millis() as u64);
        self.deadline_ms = match self.doing {
            Doing::Reading => within(match self.parser.phase() {
                RequestPhase::Idle => IDLE_TIMEOUT,
                RequestPhase::Head => HEAD_TIMEOUT,
                RequestPhase::Body | RequestPhase::Complete => BODY_TIMEOUT,
            }),
            Doing::LookingUp | Doing::Waiting => None,
            Doing::Streaming => self.ends_ms,
            Doing::Lingering { until_ms, .. } => within(LINGER_SILENCE_MAX).map(|at| at.min(until_ms)),
            Doing::Closing | Doing::Closed => within(WRITE_TIMEOUT),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shares::Owner;
    use std::os::unix::net::UnixStream as Blocking;

    const SECOND: u64 = 1000;

    fn nobodys() -> Holding {
        Holding::new(Owner::User(0), 0)
    }

    fn client() -> (Client, Blocking) {
        let (ours, theirs) = Blocking::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (Client::new(ConnId(1), Socket::Unix(UnixStream::from_std(ours)), Peer::Trusted, nobodys(), 0), theirs)
    }

    /// As many turns as it takes.
    fn flush(client: &mut Client, now_ms: u64) {
        while client.flush(BYTES_AT_ONCE, now_ms).unwrap() {}
    }

    #[test]
    fn an_answer_that_is_taken_in_drops_has_an_end_all_the_same() {
        let (mut client, mut reader) = client();
        client.doing = Doing::Closing;
        client.out.tail().resize(64 << 20, b'a');
        flush(&mut client, 0);
        assert_eq!(client.deadline_ms, Some(WRITE_TIMEOUT.as_millis() as u64), "it took what its socket holds");
        let mut now_ms = 0;
        let mut drop = vec![0; 64 << 10];
        while client.deadline_ms.unwrap() > now_ms {
            // Always in time, never much.
            now_ms += 10 * SECOND;
            reader.read_exact(&mut drop).unwrap();
            flush(&mut client, now_ms);
            assert!(client.has_backlog() && now_ms <= 2 * ANSWER_TIMEOUT.as_millis() as u64, "it holds on for ever");
        }
        assert!(now_ms >= ANSWER_TIMEOUT.as_millis() as u64, "it had its time: {now_ms}");
    }

    #[test]
    fn a_large_answer_goes_out_in_pieces_and_a_stream_does_not_pile_up() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (ours, _) = listener.accept().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut client = Client::new(ConnId(1), Socket::Tcp(TcpStream::from_std(ours)), Peer::Trusted, nobodys(), 0);
        let reader = std::thread::spawn(move || io::copy(&mut peer, &mut io::sink()).unwrap());
        client.out.tail().resize(3 * BYTES_AT_ONCE, b'a');
        assert!(client.flush(BYTES_AT_ONCE, 0).unwrap(), "somebody else's turn");
        assert!(client.out.len() >= 2 * BYTES_AT_ONCE && client.deadline_ms.is_some());
        client.doing = Doing::Streaming;
        for _ in 0..200 {
            client.out.tail().extend_from_slice(&[b'e'; 2 * BYTES_AT_ONCE]);
            while client.has_backlog() {
                assert!(
                    !client.flush(BYTES_AT_ONCE, 0).unwrap(),
                    "it is not put off: its socket is full, or all is out"
                );
            }
        }
        std::mem::drop(client);
        assert_eq!(reader.join().unwrap(), (403 * BYTES_AT_ONCE) as u64);
    }

    #[test]
    fn a_stream_of_events_has_no_last_byte_but_a_bound() {
        let (mut client, mut reader) = client();
        client.doing = Doing::Streaming;
        client.out.tail().resize(STREAM_BACKLOG_MAX, b'a');
        flush(&mut client, 0);
        let mut drop = vec![0; 64 << 10];
        for at_ms in (1..13).map(|round| round * 29 * SECOND) {
            reader.read_exact(&mut drop).unwrap();
            flush(&mut client, at_ms);
            assert!(client.has_backlog() && client.deadline_ms.is_none_or(|at| at > at_ms), "{at_ms}");
        }
        client.out.tail().resize(4 * STREAM_BACKLOG_MAX, b'a');
        assert!(client.flush(BYTES_AT_ONCE, 1000 * SECOND).is_err(), "it hears too little of what is said");
    }

    #[test]
    fn what_follows_the_last_answer_is_thrown_away_until_its_sender_ends() {
        let (mut client, mut peer) = client();
        let mut scratch = vec![0; 1 << 10];
        client.doing = Doing::Closing;
        client.out.tail().extend_from_slice(b"answer");
        flush(&mut client, 0);
        peer.write_all(&[b'x'; 5000]).unwrap();
        client.drain(&mut scratch, SECOND);
        assert!(matches!(client.doing, Doing::Lingering { drained: 5000, .. }), "{:?}", client.doing);
        assert_eq!(client.deadline_ms, Some(SECOND + LINGER_SILENCE_MAX.as_millis() as u64));
        let mut answer = String::new();
        peer.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "answer", "and then its end, though the socket is still open");
        std::mem::drop(peer);
        client.readable = true;
        client.drain(&mut scratch, 2 * SECOND);
        assert_eq!(client.doing, Doing::Closed);
    }

    #[test]
    fn a_head_request_is_known_by_its_first_bytes_which_stay_where_they_are() {
        for (sent, is_head) in [("", false), ("HEA", false), ("HEAD / HTTP/1.1\r\n", true), ("GET /", false)] {
            let (mut client, mut peer) = client();
            peer.write_all(sent.as_bytes()).unwrap();
            assert_eq!(client.socket.begins_with_head(), is_head, "{sent}");
            let mut scratch = [0; 64];
            assert_eq!(client.socket.read(&mut scratch).unwrap_or(0), sent.len());
        }
    }

    #[test]
    fn nobody_is_listened_to_for_ever() {
        let (mut client, mut peer) = client();
        let mut scratch = vec![0; 64 << 10];
        client.doing = Doing::Closing;
        flush(&mut client, 0);
        let until_ms = LINGER_TIME_MAX.as_millis() as u64;
        for at_ms in (0..until_ms).step_by(1000) {
            peer.write_all(b"more").unwrap();
            client.readable = true;
            client.drain(&mut scratch, at_ms);
            assert!(client.deadline_ms.unwrap() <= until_ms);
        }
        client.doing = Doing::Lingering { until_ms, drained: LINGER_BYTES_MAX };
        peer.write_all(b"x").unwrap();
        client.readable = true;
        client.drain(&mut scratch, 0);
        assert_eq!(client.doing, Doing::Closed);
    }
}
