//! Names for things. Every id is a type of its own, handed out once and never reused, so that a late event of
//! something that is gone finds nothing instead of something else. None of them is a file descriptor or a pid.

use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::str::FromStr;

pub use uuid::Uuid;

/// A registered server; its `workspace_id` on the wire and in the store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct ServerId(pub Uuid);

/// Random enough in either half.
impl Hash for ServerId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.as_u64_pair().1);
    }
}

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An MCP session: random, because whoever knows it (and its owner's token) is in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct SessionId(pub Uuid);

impl Hash for SessionId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.as_u64_pair().1);
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.simple().fmt(f)
    }
}

macro_rules! counted {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

counted!(
    /// One life of a server's container, counted from the start of this daemon.
    InstanceId
);
counted!(
    /// One conversation with a server, over all lives of what carries it.
    PeerId
);
counted!(
    /// One client connection.
    ConnId
);
counted!(
    /// One JSON-RPC request to a server. It is also its id on the pipe: a reply that comes late, or from an
    /// instance that is gone, can match nothing else.
    CallId
);
counted!(
    /// One pull of an image, for everyone who waits for it.
    PullId
);
counted!(
    /// One POST of an MCP client that waits for its answers.
    PostId
);
counted!(
    /// One connection to another server.
    OutgoingId
);
counted!(
    /// One operation handed to the store thread.
    StoreSeq
);

/// Maps by id. Ids are minted here, counted or at random, so nobody can choose them to collide: their hash has to be
/// quick and nothing else. Never for what a client names.
pub type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;
pub type IdSet<K> = HashSet<K, BuildHasherDefault<IdHasher>>;

#[derive(Default)]
pub struct IdHasher(u64);

impl IdHasher {
    fn mix(&mut self, word: u64) {
        // 2^64 over the golden ratio: odd, so that no two words fall together, and its high bits are well mixed.
        self.0 = (self.0.rotate_left(29) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        // A table takes its buckets from the low bits, and multiplication mixes upwards.
        self.0 ^ self.0 >> 32
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.mix(number);
    }

    fn write_usize(&mut self, number: usize) {
        self.mix(number as u64);
    }

    fn write_isize(&mut self, number: isize) {
        self.mix(number as u64);
    }
}

/// Stream 0 is the one of what nobody asked for. `seq` counts over all streams of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EventId {
    pub stream: u32,
    pub seq: u64,
}

impl fmt::Display for EventId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}-{}", self.stream, self.seq)
    }
}

impl FromStr for EventId {
    type Err = ();

    fn from_str(text: &str) -> Result<EventId, ()> {
        let (stream, seq) = text.split_once('-').ok_or(())?;
        Ok(EventId { stream: stream.parse().map_err(|_| ())?, seq: seq.parse().map_err(|_| ())? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::BuildHasher;

    #[test]
    fn ids_that_follow_each_other_spread_over_a_table() {
        let hash = |id: u64| BuildHasherDefault::<IdHasher>::default().hash_one(ConnId(id));
        for step in [1, 16, 1 << 32] {
            let buckets: HashSet<u64> = (0..1024).map(|n| hash(n * step) % 1024).collect();
            let tags: HashSet<u64> = (0..1024).map(|n| hash(n * step) >> 57).collect();
            assert!(buckets.len() > 512 && tags.len() > 96, "{step}: {} {}", buckets.len(), tags.len());
        }
    }
}
