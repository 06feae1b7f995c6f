//! External servers: how a link to one comes up, is lost, and is tried again. The table is pure; nothing here knows what
//! carries a link.

pub mod external;
pub mod link;
