//! Bytes ⇄ messages: HTTP/1.1 in, out and as a client, server-sent events, lines, JSON-RPC. Pure, and linear in the bytes however
//! they are split.

// But for two places in `json`, each of which says why it may.
#![deny(unsafe_code)]

pub mod answer;
pub mod backlog;
mod chunked;
mod common_fields;
mod fields;
pub mod forwarded;
pub mod http;
pub mod http_in;
pub mod http_out;
pub mod json;
pub mod jsonrpc;
mod known_head;
pub mod lines;
#[cfg(test)]
pub mod mutation;
pub mod relay;
pub mod remote;
pub mod sse;
mod target;
pub mod times;
pub mod websocket;
