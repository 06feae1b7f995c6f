//! Randomness for a core that may not ask the OS for any: 32 secret bytes from the shell, stretched by SHA-256. The
//! same seed gives the same ids, which is what lets a simulation be replayed.

use crate::ids::Uuid;
use sha2::{Digest, Sha256};

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
