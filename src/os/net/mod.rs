//! Connections: clients of the API, published ports and relays, other servers, and who holds how much of them.

pub mod client;
pub mod clients;
pub mod descriptors;
pub mod holding;
pub mod oauth;
pub mod outgoing;
pub mod pairs;
pub mod ports;
pub mod proxy;
pub mod rates;
pub mod refusals;
pub mod tls;
pub mod unix_socket;
