//! stdiod: `inetd` for MCP servers. One thread decides, everything else is data.
//!
//! ```text
//! model/     plain data that every layer may name: definitions, states, faults, who asks
//! core/      PURE. Input + now → Output. contract.rs first, then mod.rs and route/, which pass on what happens in the rooms:
//!            servers/ what is registered and durable, hosting/ lives of instances, peers/ calls, mcp/ MCP clients, …
//! wire/      PURE. bytes ⇄ messages: HTTP/1.1, server-sent events, lines and blocks, JSON-RPC
//! api/       PURE. what a request means and what an answer looks like; fault.rs is the one table error → status
//! sandbox/   what a container is: spec, rootfs, image, limits, network; its children (launch, discard, sweep, pull, probe)
//!            are this same binary, so that nothing that takes time runs in the loop
//! store/     StoreOp → SQL, the store thread, migrations, the private PostgreSQL
//! os/        the shell: the only place for mio; event_loop/reactor.rs is the loop and its phases
//! cli/       the client subcommands; they speak to the daemon over its API
//! config.rs  file + environment → one validated Config;  limits.rs  every bound;  shares.rs  who has how much;
//! allowance.rs  who may cause how much work;  ids.rs  names for things;  sealing.rs  what must not stand in clear
//! ```
//!
//! `core`, `wire` and `api` ask neither the OS nor the clock (`tests/tidy.rs` keeps it so); `tests/sim.rs` drives the core
//! through thousands of invented lives.

pub mod allowance;
pub mod api;
pub mod cli;
pub mod config;
pub mod core;
pub mod ids;
pub mod limits;
pub mod model;
pub mod os;
pub mod sandbox;
pub mod sealing;
pub mod shares;
pub mod store;
pub mod wire;
