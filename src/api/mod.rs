//! What the HTTP face means: routes, registrations, who may do what, and the one table from faults to statuses. Pure:
//! requests become `Ask`s and `Answer`s become responses; nothing here waits, and nothing decides what a server does.

#![forbid(unsafe_code)]

pub mod audit;
pub mod auth;
pub mod definition;
pub mod import;
pub mod mcp;
pub mod metrics;
pub mod openapi;
pub mod page;
pub mod projects;
pub mod request;
pub mod response;
pub mod rest;
pub mod route;
pub mod status;
pub mod tokens;
pub mod tool_error;
mod yaml;
