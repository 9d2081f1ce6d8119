//! What several test binaries share. Each binary uses its own part of it.
#![allow(clippy::unwrap_used, clippy::match_wild_err_arm, dead_code, unreachable_pub, unused_imports)]
pub mod fuse;
pub mod node;
pub mod scripted;
