//! Who waits for what: clients that are parked, watchers, and logs.

pub mod asks;
pub mod log_ring;
pub mod metrics;
pub mod news;
pub mod parked;
pub mod waiting;

use crate::core::clients::news::Watcher;
use crate::core::clients::parked::Parked;

#[derive(Default)]
pub(in crate::core) struct Clients {
    pub parked: Parked,
    pub watchers: Vec<Watcher>,
}
