//! What is registered: definitions, what the operator wants, and how changes become durable.

pub mod changes;
pub mod decisions;
pub mod outbox;
pub mod rows;
pub mod server;
pub mod tokens;
