//! stdiod: `inetd` for MCP servers. See `core/contract.rs` first, then `os/reactor.rs`.
pub mod api;
pub mod cli;
pub mod config;
pub mod core;
pub mod ids;
pub mod limits;
pub mod os;
pub mod sandbox;
pub mod store;
pub mod wire;
