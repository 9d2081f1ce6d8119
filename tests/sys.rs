//! The kernel side against the real kernel. Needs root; every test has a mount namespace of its own, which
//! stands for the host, and leaves its mount table as it found it.
#![allow(clippy::unwrap_used)] // the exception for tests does not reach their helpers
#[path = "sys/cgroup.rs"]
mod cgroup;
#[path = "sys/container.rs"]
mod container;
#[path = "sys/containers.rs"]
mod containers;
#[path = "sys/files.rs"]
mod files;
#[path = "support/fuse.rs"]
#[expect(dead_code, unreachable_pub, reason = "shared with other tests")]
mod fuse;
#[path = "sys/identity.rs"]
mod identity;
#[path = "sys/image.rs"]
mod image;
#[path = "sys/kernel.rs"]
mod kernel;
#[path = "sys/root.rs"]
mod root;
#[path = "sys/shim.rs"]
mod shim;
#[path = "sys/support.rs"]
mod support;
#[path = "sys/vital.rs"]
mod vital;
