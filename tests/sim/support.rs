//! What this shares with the other tests, of which it uses a part.
#![allow(dead_code, unused_imports)]
#[path = "../support/scripted/mod.rs"]
pub mod scripted;
