//! PROTOCOL: one CSI plugin on one socket.
//!
//! Typed calls with a deadline, one outcome class per attempt, capabilities, checks of what a plugin answers, and
//! redaction. Never decides what to call next, never retries, and knows no object of ours.

mod advice;
mod calls;
pub mod capabilities;
pub mod check;
mod confided;
pub mod connector;
pub mod failure;
pub mod gates;
mod hiding;
mod line;
pub mod observer;
mod owed;
mod plugin;
mod rpc;
mod stream;
mod turns;
mod witness;

pub use advice::Advice;
pub use calls::Readiness;
pub use capabilities::{
    ControllerCapabilities, GroupControllerCapabilities, NodeCapabilities, PluginCapabilities,
};
pub use check::Fault;
pub use confided::Confided;
pub use connector::{Connection, Connector, SocketPathError, UnixConnector};
pub use failure::{Class, Failure, Origin, Remedy, code_name};
pub use gates::{Alpha, Capabilities, Closed, may};
pub use observer::{CallRecord, Observer};
pub use plugin::{Gate, LONGEST_READ, Lease, Plugin, PluginOptions, Tenure, Terms};
pub use rpc::{Rpc, Service};
pub use stream::{BlockStream, Interrupted, StreamTerms};
pub use tonic::Code;
pub use turns::Turns;

/// Messages, clients and servers generated from `proto/csi.proto`; see `build.rs`.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, clippy::unwrap_used)]
pub mod proto {
    tonic::include_proto!("csi.v1");

    // `Debug` of the messages with something to hide: derived ones would print secrets.
    include!(concat!(env!("OUT_DIR"), "/csi_debug.rs"));

    /// The compiled descriptor of `proto/csi.proto` with its imports, options included.
    pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/csi_descriptor.bin"));

    /// Full names of the elements that the contract calls alpha, sorted: nothing may send them ungated.
    pub const ALPHA: &[&str] = include!(concat!(env!("OUT_DIR"), "/csi_alpha.rs"));
}
