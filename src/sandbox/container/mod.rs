//! One container: what it is made of, and how it is launched.

pub mod account;
pub mod cni;
pub mod disk;
pub mod fence;
pub mod launch;
pub mod loop_device;
pub mod network;
pub mod packages;
pub mod plain;
pub mod plan;
pub mod rootfs;
pub mod signal;
pub mod spec;
pub mod users;
pub mod volume_image;
pub mod within;

mod runtime;
