//! Plain data that every layer may name: definitions, states, faults, who asks, and what the store keeps. No logic but what
//! a value needs to be valid or to be shown.

#![forbid(unsafe_code)]

pub mod catalogue;
pub mod ceilings;
pub mod definition;
pub mod endpoint;
pub mod external;
pub mod fault;
pub mod frozen;
pub mod instance;
pub mod log;
pub mod metrics;
pub mod news;
pub mod principal;
pub mod protocol;
pub mod ranges;
pub mod rate;
pub mod records;
pub mod status;
pub mod tally;
