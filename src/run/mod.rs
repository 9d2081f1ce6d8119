//! The commands that run something: wiring.
pub mod csi;
pub mod join;
pub mod machine;
