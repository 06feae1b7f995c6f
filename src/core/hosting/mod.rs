//! Instances of hosted servers: their lives, the schedule of restarts, images they wait for, and second instances.

pub mod backoff;
pub mod companion;
pub mod lifecycle;
pub mod private;
pub mod pulls;
