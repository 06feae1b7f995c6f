mod chunked;
mod fields;
pub mod http_in;
pub mod http_out;
pub mod jsonrpc;
pub mod lines;
pub mod sse;
mod target;
