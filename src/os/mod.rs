//! The shell: the only place for mio, nix and libc besides the sandbox's children. `event_loop/reactor.rs` is the loop; the
//! others each own one kind of thing the kernel gives us.

pub mod children;
pub mod event_loop;
pub mod instances;
pub mod links;
pub mod logs;
pub mod net;
pub mod upgrade;
