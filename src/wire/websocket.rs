//! The client side of a WebSocket (RFC 6455): the handshake's fields, and messages from and to bytes. Whoever has the
//! connection feeds what came and takes what is to go out. Holds one message, no longer than the bound it was given, and
//! grows with the bytes that came, not with those that were announced; gives the same however the reads are split.
//!
//! Only text is spoken, as MCP does it. Pings are answered here; of many that came at once, the last.

use crate::wire::answer::Head;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};

pub const SUBPROTOCOL: &str = "mcp";
/// What RFC 6455 has every server put behind the key.
const ACCEPT_SALT: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Of a ping, a pong or a close.
const CONTROL_MAX: u64 = 125;

const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

// --- the handshake --------------------------------------------------------------------------------------------------

/// One handshake, which the answer must fit.
pub struct Handshake {
    key: String,
}

impl Handshake {
    /// `random`: nobody may foresee it, or a cache could be made to give the answer.
    pub fn new(random: [u8; 16]) -> Handshake {
        Handshake { key: STANDARD.encode(random) }
    }

    /// Besides `Connection` and `Upgrade`.
    pub fn headers(&self) -> [(&'static str, &str); 3] {
        [("Sec-WebSocket-Key", &self.key), ("Sec-WebSocket-Version", "13"), ("Sec-WebSocket-Protocol", SUBPROTOCOL)]
    }

    /// Why this answer opens no WebSocket.
    pub fn check(&self, head: &Head) -> Result<(), String> {
        let has = |name, word: &str| {
            let mut words = head.each(name).flat_map(|value| value.split(','));
            words.any(|found| found.trim().eq_ignore_ascii_case(word))
        };
        if head.status != 101 {
            return Err(format!("the server answers {} and opens no WebSocket", head.status));
        }
        if !has("upgrade", "websocket") || !has("connection", "upgrade") {
            return Err("the server does not change to the WebSocket protocol".to_string());
        }
        let expected = digest(&SHA1_FOR_LEGACY_USE_ONLY, format!("{}{ACCEPT_SALT}", self.key).as_bytes());
        if head.header("sec-websocket-accept") != Some(&STANDARD.encode(expected)) {
            return Err("the server's Sec-WebSocket-Accept does not fit the key".to_string());
        }
        if head.header("sec-websocket-extensions").is_some() {
            return Err("the server uses a WebSocket extension that nobody asked for".to_string());
        }
        // A server that knows no subprotocols names none; one that names another speaks something else.
        match head.header("sec-websocket-protocol") {
            None | Some(SUBPROTOCOL) => Ok(()),
            Some(_) => Err(format!("the server speaks another subprotocol than {SUBPROTOCOL:?}")),
        }
    }
}

// --- messages -------------------------------------------------------------------------------------------------------

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Incoming {
    Text(String),
    Pong,
    /// Nothing follows. None: it gave no reason.
    Closed {
        code: Option<u16>,
        reason: String,
    },
}

/// The connection is of no use any more; what `take_out` has then tells the server why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    pub code: u16,
    pub why: &'static str,
}

const fn broken(code: u16, why: &'static str) -> Broken {
    Broken { code, why }
}

const PROTOCOL: u16 = 1002;
const UNSUPPORTED: u16 = 1003;
const NOT_UTF8: u16 = 1007;
const TOO_LARGE: u16 = 1009;

pub struct WebSocket {
    max: usize,
    masks: Masks,
    state: State,
    /// The message under way, from its first frame on.
    message: Option<Vec<u8>>,
    control: Vec<u8>,
    /// What the last ping said; it is answered with the next `take_out`.
    ping: Option<Vec<u8>>,
    out: Vec<u8>,
    close_sent: bool,
}

enum State {
    Header { bytes: [u8; 10], have: usize },
    Payload { opcode: u8, last: bool, left: u64 },
    Closed,
    Broken(Broken),
}

const HEADER: State = State::Header { bytes: [0; 10], have: 0 };

impl WebSocket {
    /// `seed`: for the masks, which nobody may foresee.
    pub fn new(max: usize, seed: [u8; 32]) -> WebSocket {
        WebSocket {
            max,
            masks: Masks { seed, minted: 0 },
            state: HEADER,
            message: None,
            control: Vec::new(),
            ping: None,
            out: Vec::new(),
            close_sent: false,
        }
    }

    pub fn send(&mut self, text: &str) {
        if !self.close_sent {
            self.write_frame(TEXT, text.as_bytes());
        }
    }

    pub fn ping(&mut self) {
        if !self.close_sent {
            self.write_frame(PING, b"");
        }
    }

    /// Nothing is sent after it.
    pub fn close(&mut self, code: u16) {
        if !std::mem::replace(&mut self.close_sent, true) {
            self.ping = None;
            self.write_frame(CLOSE, &code.to_be_bytes());
        }
    }

    /// What is to be written to the connection.
    pub fn take_out(&mut self) -> Vec<u8> {
        if let Some(said) = self.ping.take() {
            self.write_frame(PONG, &said);
        }
        std::mem::take(&mut self.out)
    }

    /// The memory it takes.
    pub fn held(&self) -> usize {
        self.message.as_ref().map_or(0, Vec::capacity) + self.out.capacity() + self.control.capacity()
    }

    /// Takes bytes from the front of `bytes` up to the end of what comes next; nothing: all of them are taken.
    pub fn read(&mut self, bytes: &mut &[u8]) -> Result<Option<Incoming>, Broken> {
        self.advance(bytes).inspect_err(|broken| {
            (self.message, self.control) = (None, Vec::new());
            self.state = State::Broken(broken.clone());
            self.close(broken.code);
        })
    }

    fn advance(&mut self, bytes: &mut &[u8]) -> Result<Option<Incoming>, Broken> {
        loop {
            match &mut self.state {
                State::Broken(broken) => return Err(broken.clone()),
                State::Closed => {
                    *bytes = &[];
                    return Ok(None);
                }
                State::Header { bytes: header, have } => {
                    let need = header_length(&header[..*have]);
                    if *have < need {
                        let Some((first, rest)) = bytes.split_first() else { return Ok(None) };
                        header[*have] = *first;
                        *have += 1;
                        *bytes = rest;
                        continue;
                    }
                    let header = *header;
                    self.state = self.begin_frame(&header)?;
                }
                State::Payload { opcode, last, left } => {
                    let (opcode, last) = (*opcode, *last);
                    let take = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                    let (now, rest) = bytes.split_at(take);
                    *left -= take as u64;
                    let whole = *left == 0;
                    match &mut self.message {
                        Some(message) if opcode < CLOSE => message.extend_from_slice(now),
                        _ => self.control.extend_from_slice(now),
                    }
                    *bytes = rest;
                    if !whole {
                        return Ok(None);
                    }
                    self.state = HEADER;
                    if let Some(incoming) = self.end_frame(opcode, last)? {
                        return Ok(Some(incoming));
                    }
                }
            }
        }
    }

    /// Of a whole header. Whatever two readers could take for two things is an error.
    fn begin_frame(&mut self, header: &[u8; 10]) -> Result<State, Broken> {
        let (last, opcode) = (header[0] & 0x80 != 0, header[0] & 0x0f);
        if header[0] & 0x70 != 0 {
            return Err(broken(PROTOCOL, "a frame uses an extension"));
        }
        if header[1] & 0x80 != 0 {
            return Err(broken(PROTOCOL, "the server masks its frames"));
        }
        let left = match header[1] {
            126 => u64::from(u16::from_be_bytes([header[2], header[3]])),
            127 => u64::from_be_bytes(header[2..10].try_into().expect("eight bytes")),
            short => u64::from(short),
        };
        let is_shortest = match header[1] {
            126 => left > CONTROL_MAX,
            127 => left > u64::from(u16::MAX),
            _ => true,
        };
        if !is_shortest {
            return Err(broken(PROTOCOL, "a frame's length is not in its shortest form"));
        }
        let held = self.message.as_ref().map_or(0, Vec::len);
        match (opcode, &self.message) {
            (CLOSE | PING | PONG, _) if !last || left > CONTROL_MAX => {
                return Err(broken(PROTOCOL, "a control frame is in parts, or too long"));
            }
            (CLOSE | PING | PONG, _) => self.control.clear(),
            (TEXT, None) => self.message = Some(Vec::new()),
            (CONTINUATION, Some(_)) => {}
            (TEXT | BINARY, Some(_)) => return Err(broken(PROTOCOL, "a message begins within another")),
            (CONTINUATION, None) => return Err(broken(PROTOCOL, "a message goes on that never began")),
            (BINARY, None) => return Err(broken(UNSUPPORTED, "a message is no text")),
            (_, _) => return Err(broken(PROTOCOL, "a frame of a kind that nobody knows")),
        }
        if opcode < CLOSE && left > (self.max - held.min(self.max)) as u64 {
            return Err(broken(TOO_LARGE, "a message is longer than is allowed"));
        }
        Ok(State::Payload { opcode, last, left })
    }

    fn end_frame(&mut self, opcode: u8, last: bool) -> Result<Option<Incoming>, Broken> {
        match opcode {
            PING => {
                self.ping = (!self.close_sent).then(|| self.control.clone());
                Ok(None)
            }
            PONG => Ok(Some(Incoming::Pong)),
            CLOSE => {
                let (code, reason) = match self.control.split_first_chunk::<2>() {
                    None if self.control.is_empty() => (None, ""),
                    None => return Err(broken(PROTOCOL, "a close has half a code")),
                    Some((code, reason)) => {
                        let reason = std::str::from_utf8(reason);
                        let reason = reason.map_err(|_| broken(NOT_UTF8, "a reason is not UTF-8"))?;
                        (Some(u16::from_be_bytes(*code)), reason)
                    }
                };
                let closed = Incoming::Closed { code, reason: reason.to_string() };
                self.close(code.unwrap_or(1000));
                self.message = None;
                self.state = State::Closed;
                Ok(Some(closed))
            }
            _ if !last => Ok(None),
            _ => {
                let text = String::from_utf8(self.message.take().unwrap_or_default());
                let text = text.map_err(|_| broken(NOT_UTF8, "a message is not UTF-8"))?;
                Ok(Some(Incoming::Text(text)))
            }
        }
    }

    fn write_frame(&mut self, opcode: u8, payload: &[u8]) {
        let mask = self.masks.mint();
        self.out.reserve(payload.len() + 14);
        self.out.push(0x80 | opcode);
        match payload.len() {
            short @ 0..=125 => self.out.push(0x80 | short as u8),
            medium @ 126..=0xffff => {
                self.out.push(0x80 | 126);
                self.out.extend_from_slice(&(medium as u16).to_be_bytes());
            }
            long => {
                self.out.push(0x80 | 127);
                self.out.extend_from_slice(&(long as u64).to_be_bytes());
            }
        }
        self.out.extend_from_slice(&mask);
        let start = self.out.len();
        self.out.extend_from_slice(payload);
        // Four at a time: what is left behind the last four is masked from the mask's start again.
        for four in self.out[start..].chunks_mut(4) {
            four.iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
        }
    }
}

/// As far as it is known: the second byte says whether more belong to it.
fn header_length(have: &[u8]) -> usize {
    match have.get(1).map(|second| second & 0x7f) {
        None => 2,
        Some(126) => 4,
        Some(127) => 10,
        Some(_) => 2,
    }
}

/// Each from the seed and its number.
struct Masks {
    seed: [u8; 32],
    minted: u64,
}

impl Masks {
    fn mint(&mut self) -> [u8; 4] {
        self.minted += 1;
        let hash = digest(&SHA256, &[&self.seed[..], &self.minted.to_be_bytes()].concat());
        *hash.as_ref().first_chunk().expect("32 bytes")
    }
}

#[cfg(test)]
mod tests;
