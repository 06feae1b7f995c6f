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
pub mod disk_guard;
pub mod holding;
pub mod hosted;
pub mod log_files;
pub mod log_filter;
pub mod meter;
pub mod notify;
pub mod pace;
pub mod pairs;
pub mod pending;
pub mod pipe_share;
pub mod pipes;
pub mod ports;
pub mod probes;
pub mod proxy;
pub mod pulls;
pub mod random;
pub mod reactor;
pub mod reading;
pub mod reap;
pub mod reload;
pub mod signals;
pub mod spawn;
pub mod token;
pub mod turns;
pub mod unix_socket;
