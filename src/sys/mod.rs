//! What the kernel is asked: mounts, paths, processes, files, time, randomness.
//!
//! Each question is a narrow trait ([`Kernel`], [`Binds`], [`Processes`], [`Containers`], [`Containerd`], [`Units`],
//! [`Files`], [`Watches`], [`Clock`], [`Random`]) with one real implementation in [`real`]; simulated ones live in test code.
//! [`image`] unpacks images of containers. This is the only module with `unsafe`. It knows nothing of volumes, claims or plugins: it
//! decides nothing, it only asks.
mod allocator;
pub mod cgroup;
pub mod clock;
pub mod containerd;
pub mod containers;
mod ffi;
pub mod files;
pub mod image;
pub mod kernel;
pub mod open_files;
pub mod path;
pub(crate) mod proc;
pub mod process;
pub mod random;
pub mod real;
pub(crate) mod remove;
pub mod shim;
pub mod units;
pub mod watch;

pub use allocator::{Allocator, SHIM};
pub use clock::Clock;
pub use containerd::Containerd;
pub use containers::Containers;
pub use files::Files;
pub use kernel::{Binds, Kernel};
pub use process::{Processes, Task};
pub use random::Random;
pub use units::Units;
pub use watch::Watches;
