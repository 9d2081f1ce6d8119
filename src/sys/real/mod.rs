//! The real kernel behind the traits of [`crate::sys`].
mod binds;
pub(crate) mod btrfs;
pub(crate) mod companion;
pub(crate) mod containerd;
mod containers;
pub(crate) mod copies;
pub(crate) mod copy_tree;
mod facts;
mod files;
pub(crate) mod filesystems;
mod forks;
mod host;
mod kernel;
mod leftovers;
pub(crate) mod loops;
pub(crate) mod mounts;
pub(crate) mod occupants;
pub(crate) mod open;
mod ownership;
mod pool;
mod processes;
pub(crate) mod program;
mod table;
mod task_files;
mod tree;
mod units;
mod vital;
mod watches;

pub use binds::RealBinds;
pub use containerd::RealContainerd;
pub use containers::RealContainers;
pub use files::RealFiles;
pub use kernel::RealKernel;
pub use pool::{Pool, Unanswered};
pub use processes::RealProcesses;
pub use table::{BadLine, parse as parse_mountinfo};
pub use units::RealUnits;
pub use watches::RealWatches;

/// The id of this boot.
pub(crate) fn boot_id() -> std::io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}
