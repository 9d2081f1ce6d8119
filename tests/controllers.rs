//! The controllers on the real server, with nodes played by the test.
//!
//! Covers A10, A18, A20, A31, A32, A41, A43, A45, A47, A49, A60, A67, A68, A70 and rules 5, 6, 8 and 10 of the design.
#![allow(dead_code, reason = "the support is shared with other tests")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]
mod support {
    pub(crate) mod server_api;
}
#[path = "support/controllers/anew.rs"]
mod anew;
#[path = "support/controllers/attributes.rs"]
mod attributes;
#[path = "support/controllers/bench.rs"]
mod bench;
#[path = "support/controllers/bound.rs"]
mod bound;
#[path = "support/controllers/capacity.rs"]
mod capacity;
#[path = "support/controllers/closed.rs"]
mod closed;
#[path = "support/controllers/copies.rs"]
mod copies;
#[path = "support/controllers/drained.rs"]
mod drained;
#[path = "support/controllers/ephemeral.rs"]
mod ephemeral;
#[path = "support/controllers/expansion.rs"]
mod expansion;
#[path = "support/controllers/fake.rs"]
mod fake;
#[path = "support/controllers/garbage.rs"]
mod garbage;
#[path = "support/controllers/groups.rs"]
mod groups;
#[path = "support/controllers/kept.rs"]
mod kept;
#[path = "support/controllers/late.rs"]
mod late;
#[path = "support/controllers/lead.rs"]
mod lead;
#[path = "support/controllers/manifests.rs"]
mod manifests;
#[path = "support/controllers/nodes.rs"]
mod nodes;
#[path = "support/controllers/plugins.rs"]
mod plugins;
#[path = "support/controllers/quickstart.rs"]
mod quickstart;
#[path = "support/controllers/roomy.rs"]
mod roomy;
#[path = "support/controllers/schedules.rs"]
mod schedules;
#[path = "support/controllers/served.rs"]
mod served;
#[path = "support/controllers/settled.rs"]
mod settled;
#[path = "support/controllers/snapshots.rs"]
mod snapshots;
#[path = "support/controllers/templates.rs"]
mod templates;
#[path = "support/controllers/twins.rs"]
mod twins;
#[path = "support/controllers/volumes.rs"]
mod volumes;
