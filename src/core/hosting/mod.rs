//! Instances of hosted servers: their lives, the schedule of restarts, images they wait for, and peers of their own for some clients.

pub mod backoff;
pub mod lifecycle;
pub mod pulls;
pub mod session_peers;
pub mod stateless_peer;
