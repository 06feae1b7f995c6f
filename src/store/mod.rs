pub mod cluster;
pub mod sql;
pub mod thread;
