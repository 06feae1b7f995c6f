//! Processes of the daemon that are no sandboxes: who each pid is, launchers and their turns, clean-ups, probes, pulls, and
//! the private database.

pub mod chores;
pub mod database;
pub mod launch_turns;
pub mod probes;
pub mod pulls;
pub mod reap;
pub mod spawn;
