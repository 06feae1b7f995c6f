//! How a daemon shows a client that it knows a token, before the client sends the token: the client names the token by an
//! id that nobody can turn back, the daemon answers with a MAC over a fresh nonce and the address it was reached at. Owns
//! what both sides compute; never holds a token, only its hash. Neither id nor proof is of use to who does not know it.

use ::core::net::SocketAddr;
use ring::hmac::{HMAC_SHA256, Key, sign, verify};
use std::fmt::Write;

pub const PATH: &str = "/api/v1/prove";
/// Instead of an address, where there is none that both ends know: a unix socket.
pub const UNIX: &str = "unix";
pub const NONCE_BYTES: usize = 32;
pub const ID_BYTES: usize = 16;
const PROOF_BYTES: usize = 32;

/// Each use of the key begins its message with a word of its own, so that no answer to one is an answer to the other.
const ID_LABEL: &[u8] = b"stdiod token id\0";
const PROOF_LABEL: &[u8] = b"stdiod proof\0";

pub type TokenId = [u8; ID_BYTES];
pub type Nonce = [u8; NONCE_BYTES];

/// What a client asks: do you know this token?
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    pub token: TokenId,
    pub nonce: Nonce,
}

impl Challenge {
    /// `hash`: of the token, as `auth::hash` makes it.
    pub fn new(hash: &[u8; 32], nonce: Nonce) -> Challenge {
        Challenge { token: token_id(hash), nonce }
    }

    /// Path and query of the question.
    pub fn target(&self) -> String {
        format!("{PATH}?token={}&nonce={}", hex(&self.token), hex(&self.nonce))
    }

    pub fn answer(&self, hash: &[u8; 32], address: &str) -> String {
        hex(sign(&Key::new(HMAC_SHA256, hash), &self.message(address)).as_ref())
    }

    /// In a time that does not tell how much of it is right.
    pub fn is_answered_by(&self, answer: &str, hash: &[u8; 32], address: &str) -> bool {
        bytes::<PROOF_BYTES>(answer)
            .is_some_and(|answer| verify(&Key::new(HMAC_SHA256, hash), &self.message(address), &answer).is_ok())
    }

    /// Label and nonce have fixed lengths, so the address is all that is left of it.
    fn message(&self, address: &str) -> Vec<u8> {
        [PROOF_LABEL, &self.nonce, address.as_bytes()].concat()
    }
}

/// A name for a token that says nothing about it but whether another one is the same.
pub fn token_id(hash: &[u8; 32]) -> TokenId {
    let tag = sign(&Key::new(HMAC_SHA256, hash), ID_LABEL);
    tag.as_ref()[..ID_BYTES].try_into().expect("a tag has 32 bytes")
}

/// The daemon's end of a TCP connection, the same seen from both ends: no scope, and no IPv4 in the clothes of IPv6.
pub fn address(end: SocketAddr) -> String {
    SocketAddr::new(end.ip().to_canonical(), end.port()).to_string()
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        write!(text, "{byte:02x}").expect("a String takes everything");
    }
    text
}

/// `N` bytes in hexadecimal, and nothing else.
pub fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let text = text.as_bytes();
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: [u8; 32] = [7; 32];
    const AT: &str = "127.0.0.1:8480";

    #[test]
    fn a_proof_holds_for_its_token_its_nonce_and_its_address_alone() {
        let challenge = Challenge::new(&HASH, [1; NONCE_BYTES]);
        let answer = challenge.answer(&HASH, AT);
        assert!(challenge.is_answered_by(&answer, &HASH, AT));
        assert!(!challenge.is_answered_by(&answer, &[8; 32], AT));
        assert!(!challenge.is_answered_by(&answer, &HASH, "127.0.0.1:8481"));
        assert!(!challenge.is_answered_by(&answer, &HASH, UNIX));
        assert!(!Challenge::new(&HASH, [2; NONCE_BYTES]).is_answered_by(&answer, &HASH, AT));
        for wrong in ["", "00", &answer[1..], &format!("{answer}0"), &answer.replace(|c: char| c.is_ascii(), "0"), "é"]
        {
            assert!(!challenge.is_answered_by(wrong, &HASH, AT), "{wrong}");
        }
    }

    #[test]
    fn nothing_that_is_sent_is_the_hash_or_one_another() {
        let challenge = Challenge::new(&HASH, [1; NONCE_BYTES]);
        let sent = [hex(&challenge.token), hex(&challenge.nonce), challenge.answer(&HASH, AT)];
        assert!(sent.iter().all(|text| !text.contains(&hex(&HASH[..8]))));
        assert!(!sent[2].starts_with(&sent[0]));
        assert_eq!(challenge.target(), format!("/api/v1/prove?token={}&nonce={}", sent[0], sent[1]));
    }

    #[test]
    fn both_ends_of_a_connection_write_its_address_alike() {
        let written = |text: &str| address(text.parse().unwrap());
        assert_eq!(written("127.0.0.1:8480"), AT);
        assert_eq!(written("[::ffff:127.0.0.1]:8480"), AT);
        assert_eq!(written("[fe80::1%3]:8480"), "[fe80::1]:8480");
    }

    #[test]
    fn hexadecimal_is_read_exactly() {
        assert_eq!(bytes::<2>("0aFf"), Some([0x0a, 0xff]));
        for wrong in ["", "0a", "0aff0", "0aff00", "0a g", "+1+1", "éé"] {
            assert_eq!(bytes::<2>(wrong), None, "{wrong}");
        }
    }
}
