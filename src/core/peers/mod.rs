//! Conversations with servers: calls and their order, health, and what each server offers.

pub mod bridge;
pub mod calls;
pub mod health;
pub mod listings;
pub mod peer;
pub mod queue_room;
pub mod unanswered;
