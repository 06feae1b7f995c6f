//! Between the eras of the protocol: clients without sessions at servers with them, and the other way round.

pub(in crate::core) mod mirrored;
pub mod params;
pub mod rounds;
pub mod stateless;
pub mod suspended;
