//! The embedded backend: one file on this machine.
