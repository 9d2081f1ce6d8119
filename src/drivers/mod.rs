//! The built-in CSI drivers: real ones, that any orchestrator can use.
//!
//! They serve gRPC on a unix socket and know nothing of this project's objects: of it they use the generated CSI types
//! and what the kernel is asked. What is the same for all of them is here; what a volume is, each says itself.
mod authority;
pub mod btrfs;
pub mod chaos;
pub mod dir;
pub mod endpoint;
mod faults;
mod homes;
mod identity;
mod listing;
mod local;
pub mod loopback;
mod publish;
mod record;
mod refusal;
mod request;
mod service;
mod snapshots;
mod spot;
mod stats;

pub use refusal::Refusal;
