//! The end of things: one instance, what an earlier daemon left, and volumes.

pub mod discard;
pub mod sweep;
pub mod volumes;
