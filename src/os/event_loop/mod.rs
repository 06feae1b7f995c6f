//! The loop and what turns it: its phases, what an event is about, the clock, signals, how it begins, and the threads that
//! look at the disk for it.

pub mod boot;
pub mod clock;
pub mod held_answers;
pub mod lookups;
pub mod notify;
pub mod pending;
pub mod random;
pub mod reactor;
pub mod reload;
pub mod signals;
pub mod timer;
pub mod token;
