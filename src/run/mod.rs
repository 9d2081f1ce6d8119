//! The commands that run something: wiring.
pub mod csi;
