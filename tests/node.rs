//! The node daemon on the real kernel: tasks under shims, plugins over sockets, mounts. Root is needed.
#![allow(clippy::unwrap_used, clippy::too_many_lines)] // helpers of tests count as tests
mod support;

#[path = "node/alone.rs"]
mod alone;
#[path = "node/answered.rs"]
mod answered;
#[path = "node/asked.rs"]
mod asked;
#[path = "node/attended.rs"]
mod attended;
#[path = "node/audited.rs"]
mod audited;
#[path = "node/between.rs"]
mod between;
#[path = "node/blocks.rs"]
mod blocks;
#[path = "node/changed.rs"]
mod changed;
#[path = "node/codes.rs"]
mod codes;
#[path = "node/containers.rs"]
mod containers;
#[path = "node/copied.rs"]
mod copied;
#[path = "node/crash.rs"]
mod crash;
#[path = "node/drifted.rs"]
mod drifted;
#[path = "node/duties.rs"]
mod duties;
#[path = "node/ephemeral.rs"]
mod ephemeral;
#[path = "node/expanded.rs"]
mod expanded;
#[path = "node/fickle.rs"]
mod fickle;
#[path = "node/full.rs"]
mod full;
#[path = "node/golden.rs"]
mod golden;
#[path = "node/grouped.rs"]
mod grouped;
#[path = "node/handover.rs"]
mod handover;
#[path = "node/healed.rs"]
mod healed;
#[path = "node/instances.rs"]
mod instances;
#[path = "node/journal.rs"]
mod journal;
#[path = "node/kernel.rs"]
mod kernel;
#[path = "node/lanes.rs"]
mod lanes;
#[path = "node/life.rs"]
mod life;
#[path = "node/lost.rs"]
mod lost;
#[path = "node/many.rs"]
mod many;
#[path = "node/measured.rs"]
mod measured;
#[path = "node/missing.rs"]
mod missing;
#[path = "node/modified.rs"]
mod modified;
#[path = "node/owned.rs"]
mod owned;
#[path = "node/pictured.rs"]
mod pictured;
#[path = "node/plugins.rs"]
mod plugins;
#[path = "node/refused.rs"]
mod refused;
#[path = "node/roomy.rs"]
mod roomy;
#[path = "node/scenes.rs"]
mod scenes;
#[path = "node/secrets.rs"]
mod secrets;
#[path = "node/sent.rs"]
mod sent;
#[path = "node/server.rs"]
mod server;
#[path = "node/shapes.rs"]
mod shapes;
#[path = "node/stale.rs"]
mod stale;
#[path = "node/taken.rs"]
mod taken;
#[path = "node/tasks.rs"]
mod tasks;
#[path = "node/together.rs"]
mod together;
#[path = "node/told.rs"]
mod told;
#[path = "node/twins.rs"]
mod twins;
#[path = "node/uncertain.rs"]
mod uncertain;
#[path = "node/views.rs"]
mod views;
#[path = "node/waiting.rs"]
mod waiting;
