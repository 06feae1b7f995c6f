//! What this host offers: its cgroups, and which providers work.

pub mod cgroup;
pub mod probe;
