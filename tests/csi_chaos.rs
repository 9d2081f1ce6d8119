//! `wharfline csi chaos` over real sockets: what callers get, and what the driver behind it saw.
#![allow(clippy::unwrap_used)] // helpers of tests count as tests
mod support;

#[path = "csi_chaos/actions.rs"]
mod actions;
#[path = "csi_chaos/passing.rs"]
mod passing;
#[path = "csi_chaos/process.rs"]
mod process;
#[path = "csi_chaos/rig.rs"]
mod rig;
