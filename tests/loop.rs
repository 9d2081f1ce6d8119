//! The driver `loop.csi.wharfline.dev` as processes, over their sockets, on real loop devices, file systems and mounts. Root
//! is needed.
#![allow(clippy::unwrap_used, clippy::print_stderr)] // helpers of tests count as tests
#[path = "loop/arguments.rs"]
mod arguments;
#[path = "loop/block.rs"]
mod block;
#[path = "loop/format.rs"]
mod format;
#[path = "loop/grow.rs"]
mod grow;
#[cfg(feature = "kill-points")]
#[path = "loop/killed.rs"]
mod killed;
#[path = "loop/life.rs"]
mod life;
#[path = "loop/nodes.rs"]
mod nodes;
#[path = "loop/process.rs"]
mod process;
#[path = "loop/rig.rs"]
mod rig;
#[path = "loop/snapshots.rs"]
mod snapshots;
#[path = "loop/volumes.rs"]
mod volumes;
