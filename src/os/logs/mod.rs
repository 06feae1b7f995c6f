//! Logs on disk: those of the servers, and the daemon's own.

pub mod audit;
pub mod files;
pub mod filter;
