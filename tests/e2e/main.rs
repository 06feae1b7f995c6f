//! The real thing on real sandboxes, part by part. One program, because these tests wait more than they compute: here they
//! wait at the same time. What has time itself as its input or its result (a schedule, a moment to kill, a latency), and
//! what is counted, has a program of its own, `tests/e2e_*.rs`: cargo runs one program after the other.

mod audit;
mod auth;
mod bridge;
mod browser;
mod ceilings;
mod cli;
mod client_conformance;
mod clients;
mod conformance;
mod connect;
mod control;
mod crash;
mod environment;
mod escape;
mod fence;
mod forwarded;
mod guide;
mod health;
mod host_view;
mod hostile_http;
mod hostile_image;
mod http;
mod image;
mod imports;
mod install;
mod launcher;
mod limits;
mod link_faults;
mod link_stalls;
mod lives;
mod logs;
mod mcp;
mod mcp_neighbours;
mod metrics;
mod network;
mod oauth;
mod package;
mod page;
mod project_mcp;
mod project_records;
mod projects;
mod relay;
mod sealed;
mod second_daemon;
mod shares;
mod shutdown;
#[path = "../support/mod.rs"]
mod support;
mod upstreams;
mod volumes;
