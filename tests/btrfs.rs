//! The driver `btrfs.csi.wharfline.dev` as processes, over their sockets, on a real btrfs in a file. Root is needed, and
//! `mkfs.btrfs`.
#![allow(clippy::unwrap_used, clippy::print_stderr)] // helpers of tests count as tests
#[path = "btrfs/arguments.rs"]
mod arguments;
#[cfg(feature = "kill-points")]
#[path = "btrfs/killed.rs"]
mod killed;
#[path = "btrfs/life.rs"]
mod life;
#[path = "btrfs/rig.rs"]
mod rig;
