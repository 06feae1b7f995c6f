//! The database, as three things that know little of each other: `sql` and `migrate` (what is said to it), `thread`
//! (who says it, with `reach` to find out first whether anyone listens, and `claim` whether another daemon is at work on
//! it), and `cluster` with `premises` (the private PostgreSQL, when the operator gave no other).

pub mod claim;
pub mod cluster;
pub mod conninfo;
pub mod environments;
pub mod home;
pub mod migrate;
pub mod premises;
pub mod projects;
pub mod reach;
pub mod rotation;
pub mod rows;
pub mod seals;
pub mod sql;
pub mod thread;
mod tls;
