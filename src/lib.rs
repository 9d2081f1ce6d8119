//! Wharfline orchestrates CSI volumes on machines that run no Kubernetes.
//!
//! This page is the map. Values are in [`api`], decisions in [`plan`], everything else is an effect.
//! `tests/tidy.rs` holds the table of the imports allowed between these modules.
#[macro_use]
pub mod effect;
#[macro_use]
pub mod planted;

pub mod api;
pub mod cli;
pub mod controllers;
pub mod csi;
pub mod drivers;
pub mod node;
pub mod plan;
pub mod run;
pub mod server;
pub mod store;
pub mod sys;
