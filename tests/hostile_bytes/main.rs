//! Every reader of a peer's bytes, with bytes that are meant to hurt it: memory and steps must grow with the input and not
//! faster, and the stack must not grow at all. `meter.rs` measures, `inputs.rs` makes the bytes; a module for each part of
//! the program says what is read. `HOSTILE_BYTES_SHOW=1 … --nocapture` shows every number.

mod agreement;
mod inputs;
mod meter;
mod of_api;
mod of_client;
mod of_core;
mod of_sandbox;
mod of_wire;

// `of_client.rs` has a file of the program for a part, which looks for it here.
use stdiod::limits;
