//! Definitions of servers: from the fields of a registration or a PATCH, from a row of the store, and from the forms in
//! which servers are handed around. One set of rules for all of them.

pub mod described;
pub mod fields;
pub mod idle;
pub mod install;
pub mod package;
pub mod patch;
pub mod quantity;
pub mod reach;
pub mod stored;
pub mod strict_json;
