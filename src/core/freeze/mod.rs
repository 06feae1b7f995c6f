//! State as bytes, so that one process can hand itself to the next: a header, the shapes of all types that are in it, and the
//! values in their order. Owns the format and its version; knows nothing of what it carries, which is whatever serde can walk.
//! Invariants: equal states give equal bytes, and bytes that do not fit the types of this build are refused with a reason,
//! never half read.
//!
//! A shape is the name of a struct (or of a variant) and of its fields, as the writer had them. So a reader with more fields
//! takes what is missing from serde's defaults, and one with fewer refuses. Numbers are of variable length, texts and lists
//! carry their length, the entries of a map are sorted by their bytes.

mod read;
mod write;

use crate::limits::FROZEN_BYTES_MAX;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

const MAGIC: &[u8; 8] = b"stdiod*\n";

/// Counts the changes after which an earlier state cannot be read any more, whatever defaults there are.
pub const VERSION: u32 = 1;

/// The versions that this build can go on from.
pub const READABLE: &[u32] = &[VERSION];

/// Magic, version, length of what follows, its checksum.
const HEADER: usize = 8 + 4 + 8 + 8;

/// Why a state is not taken over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreadable {
    NotAState,
    Version(u32),
    /// Cut short, or changed on its way.
    Damaged,
    TooLarge(usize),
    /// It was written by a build whose types are others.
    Shape(String),
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unreadable::NotAState => f.write_str("this is no state of stdiod"),
            Unreadable::Version(found) => {
                write!(f, "the state has version {found}, and this build reads {READABLE:?}")
            }
            Unreadable::Damaged => f.write_str("the state is damaged"),
            Unreadable::TooLarge(bytes) => write!(f, "the state has {bytes} bytes, and {FROZEN_BYTES_MAX} are allowed"),
            Unreadable::Shape(why) => write!(f, "the state is of another build: {why}"),
        }
    }
}

impl std::error::Error for Unreadable {}

/// By its number: how a struct, or a variant of an enum, was written.
type Shapes = BTreeMap<u32, Shape>;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Shape {
    /// Of the struct or of the enum.
    name: String,
    /// Empty: it is a struct.
    variant: String,
    fields: Vec<String>,
}

/// Fails only for what is too large, or cannot be written at all.
pub fn freeze<T: Serialize>(state: &T) -> Result<Vec<u8>, Unreadable> {
    let mut writer = write::Writer::default();
    state.serialize(&mut writer)?;
    let body = writer.finish();
    if body.len() > FROZEN_BYTES_MAX {
        return Err(Unreadable::TooLarge(body.len()));
    }
    let mut out = Vec::with_capacity(HEADER + body.len());
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&(body.len() as u64).to_le_bytes());
    out.extend_from_slice(&checksum(&body).to_le_bytes());
    out.extend_from_slice(&body);
    Ok(out)
}

pub fn thaw<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Unreadable> {
    let (header, body) = bytes.split_at_checked(HEADER).ok_or(Unreadable::NotAState)?;
    let (magic, header) = header.split_at(8);
    if magic != MAGIC {
        return Err(Unreadable::NotAState);
    }
    let (version, header) = header.split_at(4);
    let version = u32::from_le_bytes(version.try_into().expect("4 bytes"));
    if !READABLE.contains(&version) {
        return Err(Unreadable::Version(version));
    }
    let (length, sum) = header.split_at(8);
    let length = u64::from_le_bytes(length.try_into().expect("8 bytes"));
    let sum = u64::from_le_bytes(sum.try_into().expect("8 bytes"));
    if body.len() > FROZEN_BYTES_MAX {
        return Err(Unreadable::TooLarge(body.len()));
    }
    if length != body.len() as u64 || sum != checksum(body) {
        return Err(Unreadable::Damaged);
    }
    let mut reader = read::Reader::open(body)?;
    let state = T::deserialize(&mut reader)?;
    reader.close()?;
    Ok(state)
}

/// The numbers of all shapes in it. Who can read a state can read every other one that has no more than its shapes.
pub fn shapes(bytes: &[u8]) -> Result<BTreeSet<u32>, Unreadable> {
    let body = bytes.get(HEADER..).ok_or(Unreadable::NotAState)?;
    Ok(read::Reader::open(body)?.shapes())
}

/// Sees what a fault of a machine or a cut does; against whoever wants to deceive, the state is not for others to write.
fn checksum(bytes: &[u8]) -> u64 {
    let mut sum = bytes.len() as u64 ^ 0x9e37_79b9_7f4a_7c15;
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        sum = (sum ^ u64::from_le_bytes(word)).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
    }
    sum
}

#[cfg(test)]
mod tests;
