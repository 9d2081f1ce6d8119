//! The driver `dir.csi.wharfline.dev` over its socket, on real bind mounts. Root is needed.
#![allow(clippy::unwrap_used)] // helpers of tests count as tests
#[path = "dir/arguments.rs"]
mod arguments;
#[path = "dir/damage.rs"]
mod damage;
#[path = "dir/ephemeral.rs"]
mod ephemeral;
#[path = "dir/life.rs"]
mod life;
#[path = "dir/process.rs"]
mod process;
#[path = "dir/publishing.rs"]
mod publishing;
#[path = "dir/rig.rs"]
mod rig;
#[path = "dir/snapshots.rs"]
mod snapshots;
#[path = "dir/volumes.rs"]
mod volumes;
