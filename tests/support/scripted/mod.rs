//! A CSI plugin that does what a test says, and keeps book of what was asked of it.
//!
//! | part | what it is |
//! |---|---|
//! | [`Backend`] | one storage system: configuration, script, model, ledger and log; knows no socket |
//! | [`Site`] | one instance of the plugin: the node it runs on and the services it has |
//! | [`serve`] | HTTP/2 over any listener, honest or broken as the script wants |
//! | [`Scripted`] | one instance on a unix socket, ready for use |
//! | [`steered`] | one instance as a process of its own, which files steer and which keeps book in a file |
//!
//! Several instances share one backend, as the instances of a real plugin do. Whatever the caller does against the
//! rules of CSI is answered as CSI says and noted as a violation; [`Backend::assert_clean`] at the end of a test
//! wants no violation, no overlap per volume, and nothing left.
mod ask;
mod backend;
mod canary;
mod config;
mod inside;
mod log;
mod model;
mod mounts;
pub mod requests;
mod script;
pub mod serve;
pub mod steered;
mod unix;

pub use ask::Ask;
pub use backend::{Backend, Ending, Site, Wire, Witness};
pub use canary::Canary;
pub use config::{Config, Effects, Hands};
pub use inside::{Dial, inside};
pub use log::{End, Logged};
pub use model::Leftover;
pub use mounts::beneath as mounts_beneath;
pub use script::{Answer, Gate, Parts};
pub use unix::Scripted;
