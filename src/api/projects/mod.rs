//! Projects over HTTP: external servers, secrets, tools and records. Pure; decides nothing.

pub mod bodies;
pub mod fields;
pub mod fill;
pub mod render;
pub mod template;
