//! The commands that run something: wiring.
