//! EFFECTS on this machine: the only caller of csi.
//!
//! The daemon watches the objects that name its node, asks `plan` for the next step of each, carries it out, journals
//! before and after, and writes what came of it. One handler at a time per volume and per allocation; volumes do not
//! wait for one another. Everything the machine is asked goes through the traits of `sys`, so that the whole daemon also
//! runs in a simulation.
//!
//! | file | does |
//! |---|---|
//! | [`daemon`] | starts and ends it all: lock, journal, tree, queue |
//! | [`recover`] | what a start makes of mounts, tasks and journal |
//! | [`watches`] | who is woken by what the API shows |
//! | [`instances`] | what a PluginInstance's status says |
//! | [`mounts`] | stage, publish and their reverses: one volume on this node |
//! | [`hosting`] | create, delete, attach, detach: volumes whose host this node is |
//! | [`allocations`] | tasks, and what an allocation's status says |
//! | [`tasks`] | what is known of each task now: started, adopted, watched to its end |
//! | [`runtime`] | the ways to run a task, behind one seam |
//! | [`supervisor`] | one plugin instance: socket, probe, fingerprint, heartbeat |
//! | [`registry`], `asked` | which instance serves, and which one is asked about a volume |
//! | [`journal`] | what was attempted |
//! | [`caches`], [`queue`], [`retry`] | what the API says, what to do next, and when again |
//! | [`requests`], [`objects`] | CSI requests from records, and where the objects are |
//! | `audit`, `room`, `drift` | what backends have: asked by a person, by the controllers, and for what is attached |
//! | [`lanes`] | how many attaches and detaches of a plugin are under way, and who is next |
//! | `lookup` | what our record says of a volume that a driver does not find |
//! | [`agent`] | lease and NodeAgent |
//! | [`events`], [`figures`] | what happened, for people; how it stands, in figures |
//! | [`blocks`] | which blocks a snapshot has, for whoever asks on this machine |
pub mod agent;
pub mod allocations;
mod asked;
mod audit;
pub mod blocks;
pub mod caches;
pub mod context;
pub mod daemon;
mod drift;
pub mod events;
pub mod figures;
pub mod hosting;
pub mod instances;
pub mod journal;
pub mod lanes;
mod lookup;
pub mod mounts;
pub mod objects;
pub mod queue;
pub mod recover;
pub mod registry;
pub mod requests;
pub mod retry;
mod room;
pub mod runtime;
pub mod supervisor;
mod tally;
pub mod tasks;
pub mod turns;
pub mod watches;
mod writes;

pub use blocks::Blocks;
pub use context::{AtSocket, Dial, Machine, Options, SocketId};
pub use daemon::{Error, Looked, Prepared, run};
pub use figures::{Figures, Names as FigureNames};
pub use runtime::Grants;
