//! Feeds a parser in pieces and writes down what comes of it.

use stdiod::limits::{BODY_MAX, HEAD_MAX, TRAILERS_MAX};
use stdiod::model::fault::Fault;
use stdiod::wire::http_in::{Method, Parser, RequestPhase, Step};

/// splitmix64.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }
}

// --- driving the parser -------------------------------------------------------------------------------------------

#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    pub method: Method,
    pub path: String,
    pub pairs: Vec<(String, String)>,
    pub host: String,
    pub mark: Option<Vec<u8>>,
    pub body: Vec<u8>,
    pub keep_alive: bool,
    pub http10: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum End {
    Open(RequestPhase),
    Refused(Fault),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub requests: Vec<Seen>,
    pub end: End,
}

impl Outcome {
    pub fn status(&self) -> Option<u16> {
        match &self.end {
            End::Open(_) => None,
            End::Refused(fault) => Some(fault.code.status()),
        }
    }
}

pub fn seen(parser: &Parser) -> Seen {
    let request = parser.request();
    Seen {
        method: request.method,
        path: request.path.to_string(),
        pairs: request.query_pairs().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
        host: request.host().to_string(),
        mark: request.header("x-mark").map(<[u8]>::to_vec),
        body: request.body.to_vec(),
        keep_alive: request.keep_alive,
        http10: request.http10,
    }
}

/// Feeds the pieces one by one, as a connection would. `ended` gets the number of bytes fed when a request was whole.
pub fn drive<'a>(pieces: impl Iterator<Item = &'a [u8]>, mut ended: impl FnMut(usize)) -> Outcome {
    let mut parser = Parser::new();
    let mut requests = Vec::new();
    let mut fed = 0;
    for piece in pieces {
        parser.feed(piece);
        fed += piece.len();
        let mut continued = false;
        loop {
            match parser.step() {
                Step::NeedMore => break,
                Step::Continue => assert!(!std::mem::replace(&mut continued, true), "100 Continue is said once"),
                Step::Request => {
                    assert!(!parser.wants_bytes() && parser.phase() == RequestPhase::Complete);
                    requests.push(seen(&parser));
                    ended(fed);
                    parser.finish();
                }
                Step::Refuse(fault) => {
                    assert!(!parser.wants_bytes() && parser.buffered() == 0);
                    parser.feed(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
                    assert_eq!(parser.step(), Step::Refuse(fault.clone()), "a refusal is final");
                    return Outcome { requests, end: End::Refused(fault) };
                }
            }
        }
        assert!(parser.wants_bytes());
        match parser.phase() {
            RequestPhase::Idle => assert_eq!(parser.buffered(), 0),
            RequestPhase::Head => assert!(parser.buffered() < HEAD_MAX),
            RequestPhase::Body => assert!(parser.buffered() < HEAD_MAX + BODY_MAX + TRAILERS_MAX),
            RequestPhase::Complete => panic!("complete, and yet more is needed"),
        }
    }
    Outcome { requests, end: End::Open(parser.phase()) }
}

pub fn whole(bytes: &[u8]) -> Outcome {
    drive(std::iter::once(bytes), |_| {})
}

pub fn bytewise(bytes: &[u8]) -> Outcome {
    drive(bytes.chunks(1), |_| {})
}

pub fn split_at_random(bytes: &[u8], rng: &mut Rng) -> Outcome {
    let longest = rng.pick(&[2, 5, 17, 64, 300]);
    let mut pieces = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at((1 + rng.below(longest)).min(rest.len()));
        pieces.push(piece);
        rest = behind;
    }
    drive(pieces.into_iter(), |_| {})
}
