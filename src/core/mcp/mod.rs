//! What MCP clients see: sessions, requests, streams, questions, subscriptions, and the endpoint of all servers at once.

pub mod admission;
pub mod aggregate;
pub mod era;
pub mod event_log;
pub mod list_changes;
pub mod notifications;
pub mod old_stream;
pub mod posts;
pub mod preferences;
pub mod questions;
pub mod responses;
pub mod sessions;
pub mod wording;
