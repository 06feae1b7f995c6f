//! Randomness for a core that may not ask the OS for any: 32 secret bytes from the shell, stretched by SHA-256. The
//! same seed gives the same ids, which is what lets a simulation be replayed.

use crate::ids::Uuid;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Signs what clients carry for us. HMAC-SHA-256 with a key that no other life of the daemon has.
#[derive(Serialize, Deserialize)]
pub struct Seal {
    key: [u8; 32],
}

impl Seal {
    pub fn new(key: [u8; 32]) -> Seal {
        Seal { key }
    }

    /// `text` and a signature that binds it to its owner.
    pub fn close(&self, text: &str, owner: &str) -> String {
        let mac: String = self.mac(text, owner).iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{text}.{mac}")
    }

    /// The text, if it was closed by us for this owner.
    pub fn open<'t>(&self, sealed: &'t str, owner: &str) -> Option<&'t str> {
        let (text, _) = sealed.rsplit_once('.')?;
        let expected = self.close(text, owner);
        // Every byte is looked at, so that the time tells nothing.
        let differ = expected.bytes().zip(sealed.bytes()).fold(0, |differ, (a, b)| differ | (a ^ b));
        (expected.len() == sealed.len() && differ == 0).then_some(text)
    }

    fn mac(&self, text: &str, owner: &str) -> [u8; 32] {
        let pad = |byte: u8| -> [u8; 64] { std::array::from_fn(|at| self.key.get(at).unwrap_or(&0) ^ byte) };
        let inner = Sha256::new().chain_update(pad(0x36)).chain_update(text).chain_update([0]).chain_update(owner);
        Sha256::new().chain_update(pad(0x5c)).chain_update(inner.finalize()).finalize().into()
    }
}

#[derive(Serialize, Deserialize)]
pub struct Entropy {
    seed: [u8; 32],
    drawn: u64,
}

impl Entropy {
    pub fn new(seed: [u8; 32]) -> Entropy {
        Entropy { seed, drawn: 0 }
    }

    pub fn bytes(&mut self) -> [u8; 32] {
        self.drawn += 1;
        Sha256::new().chain_update(self.seed).chain_update(self.drawn.to_le_bytes()).finalize().into()
    }

    pub fn uuid(&mut self) -> Uuid {
        let bytes = self.bytes();
        uuid::Builder::from_random_bytes(bytes[..16].try_into().expect("16 of 32")).into_uuid()
    }

    /// A bearer token: 256 bits, with a prefix that secret scanners can look for.
    pub fn token(&mut self) -> String {
        let mut out = String::from("stdiod_");
        for byte in self.bytes() {
            out.push_str(&format!("{byte:02x}"));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_opens_for_its_owner_and_only_unchanged() {
        let seal = Seal::new([7; 32]);
        let closed = seal.close("12", "me");
        assert_eq!(seal.open(&closed, "me"), Some("12"));
        assert_eq!(seal.open(&closed, "you"), None);
        assert_eq!(seal.open(&closed.replace("12.", "13."), "me"), None);
        assert_eq!(seal.open(&format!("{closed}0"), "me"), None);
        assert_eq!(seal.open("", "me").or(seal.open("12", "me")).or(seal.open("12.", "me")), None);
        assert_eq!(Seal::new([8; 32]).open(&closed, "me"), None);
    }
}
