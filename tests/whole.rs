//! The real binary on the real machine: up, apply, use, kill, restart, delete, down. Root is needed.
#![allow(clippy::unwrap_used, clippy::print_stderr)] // helpers of tests count as tests
#[path = "whole/audited.rs"]
mod audited;
#[path = "whole/blocks.rs"]
mod blocks;
#[path = "support/systemd.rs"]
mod booted;
#[path = "whole/by_hand.rs"]
mod by_hand;
#[path = "whole/chaos.rs"]
mod chaos;
#[path = "whole/containerd.rs"]
mod containerd;
#[path = "whole/containers.rs"]
mod containers;
#[path = "whole/copies.rs"]
mod copies;
#[path = "whole/ephemeral.rs"]
mod ephemeral;
#[path = "whole/external.rs"]
mod external;
#[path = "whole/fingerprints.rs"]
mod fingerprints;
#[path = "whole/foreign.rs"]
mod foreign;
#[path = "support/fuse.rs"]
#[allow(dead_code, unreachable_pub)] // each binary uses its own part of it
mod fuse;
#[path = "whole/growth.rs"]
mod growth;
#[path = "support/image.rs"]
#[expect(dead_code, unreachable_pub, reason = "shared with other tests")]
mod image;
#[path = "whole/instances.rs"]
mod instances;
#[path = "support/containerd.rs"]
#[allow(dead_code, reason = "each binary uses its own part of it")]
mod its;
#[cfg(feature = "kill-points")]
#[path = "whole/killed.rs"]
mod killed;
#[path = "whole/loops.rs"]
mod loops;
#[path = "whole/matrix.rs"]
mod matrix;
#[path = "whole/quickstart.rs"]
mod quickstart;
#[path = "whole/refusals.rs"]
mod refusals;
#[path = "whole/rig.rs"]
mod rig;
#[path = "whole/rights.rs"]
mod rights;
#[path = "whole/scene.rs"]
mod scene;
#[path = "support/scripted/mod.rs"]
#[allow(clippy::match_wild_err_arm, dead_code, unreachable_pub, unused_imports)]
// each binary uses its own part of it
mod scripted;
#[path = "whole/sharing.rs"]
mod sharing;
#[path = "whole/snapshots.rs"]
mod snapshots;
#[path = "whole/systemd.rs"]
mod systemd;
#[path = "whole/tasks.rs"]
mod tasks;
#[path = "whole/upgrade.rs"]
mod upgrade;
#[path = "whole/views.rs"]
mod views;
