//! The node daemon on the real kernel: tasks under shims, plugins over sockets, mounts. Root is needed.
#![allow(clippy::unwrap_used)] // helpers of tests count as tests
mod support;

#[path = "node/life.rs"]
mod life;
