//! The built-in CSI drivers: real ones, that any orchestrator can use.
//!
//! They serve gRPC on a unix socket and know nothing of this project's objects: of it they use the generated CSI types
//! and what the kernel is asked.
mod authority;
pub mod dir;
pub mod endpoint;
