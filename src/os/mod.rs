//! The shell: the only place for mio, nix and libc besides the sandbox's children. `reactor.rs` is the loop; the
//! others each own one kind of thing the kernel gives us.

pub mod alarm;
pub mod boot;
pub mod chores;
pub mod client;
pub mod clients;
pub mod clock;
pub mod database;
pub mod descriptors;
pub mod hosted;
pub mod log_files;
pub mod log_filter;
pub mod meter;
pub mod notify;
pub mod pace;
pub mod pipes;
pub mod ports;
pub mod probes;
pub mod proxy;
pub mod pulls;
pub mod reactor;
pub mod reap;
pub mod reload;
pub mod room;
pub mod signals;
pub mod spawn;
pub mod token;
pub mod turns;
