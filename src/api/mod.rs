//! What the HTTP face means: routes, registrations, who may do what, and the one table from faults to statuses. Pure:
//! requests become `Ask`s and `Answer`s become responses; nothing here waits, and nothing decides what a server does.

pub mod auth;
pub mod fault;
pub mod forwarding;
pub mod json;
pub mod mcp;
#[cfg(test)]
pub mod mutation;
pub mod package;
pub mod proof;
pub mod quantity;
pub mod reach;
pub mod register;
pub mod rest;
pub mod route;
pub mod status;
pub mod stored;
