//! Projects over HTTP: external servers, secrets, tools and records. Pure; decides nothing.

pub mod fields;
pub mod render;
pub mod template;
