//! DECISIONS: pure functions from what is wanted and what is seen to the next step.
//!
//! No async, no clock, no lock, no I/O, nothing random: a decision takes values and returns a value. The event that
//! woke the caller is not an input. Every ladder is climbed one step at a time, and comes down in mirror order.
//!
//! | file | decides |
//! |---|---|
//! | [`provision`] | create, validate, delete: the backend's volume, on its host |
//! | [`attach`] | ControllerPublish and its reverse, on the volume's host |
//! | [`mount`] | close, stage, publish and their reverses, on the node |
//! | [`expand`] | who is asked for a larger size next, and which size is shown |
//! | [`stale`] | what became of a mount that was up, and what is told of it |
//! | [`usage`] | when it is told anew how full a volume is |
//! | [`supervise`] | start, stop, start again: the tasks of an allocation |
//! | [`registry`] | which instance of a plugin serves, and the counts |
//! | [`place`] | which node an allocation and a late-bound claim go to |
//! | [`release`] | who may hold a volume, and when a holder is let go |
//! | [`holders`] | the holders and attachments of one volume, step by step |
//! | [`host`] | which node makes a volume's controller calls |
//! | [`nodes`] | when a deleted Node goes, and when a fence is disproved |
//! | [`claim`] | what a claim needs next: a volume made, found, let go |
//! | [`template`] | whether the claim that an allocation brings along is made, and whether it is its own |
//! | [`group`] | which volumes are pictured together, and whose pictures are told of |
//! | [`schedule`] | which Snapshots are taken by the clock, and which of them go |
//! | [`snapshot`] | the backend's snapshot, on its host, and where a Snapshot stands |
//! | [`volume`] | where a volume stands, and when its object may go |
//! | [`plugins`] | where a plugin's instances run, and when one may stop |
//! | [`container`] | what a container is: the document that runc is told |
//! | [`widths`] | which attaches and detaches may begin, of many at a time |
//! | [`untold`] | what is not worth a write of its own while it is new |
//! | [`unit`] | what the unit of a task is called where systemd runs it |
//! | [`view`] | where a driver sees the tree of volumes, and which paths it is told |
//! | [`marks`] | nothing: the words by which decisions travel |
//! | [`backoff`] | when a failed step is tried again |
//! | [`keys`] | which of many waiting keys is looked at next |
#![deny(clippy::disallowed_methods, clippy::wildcard_enum_match_arm)]

pub mod attach;
pub mod backoff;
pub mod blocks;
pub mod claim;
pub mod container;
pub mod containerd;
pub mod drift;
pub mod expand;
pub mod group;
pub mod handle;
pub mod holders;
pub mod host;
pub mod keys;
pub mod last_words;
pub mod lead;
pub mod marks;
pub mod modify;
pub mod mount;
pub mod nodes;
pub mod ownership;
pub mod place;
pub mod plugins;
pub mod provision;
pub mod reason;
pub mod registry;
pub mod release;
pub mod schedule;
pub mod snapshot;
pub mod stale;
pub mod supervise;
pub mod template;
pub mod unit;
pub mod untold;
pub mod update;
pub mod usage;
pub mod view;
pub mod volume;
pub mod widths;

pub use reason::Reason;

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next<S> {
    /// Carry out one step.
    Do(S),
    /// Nothing can be done until something else changes; this is what it waits for.
    Wait(Reason),
    /// What is seen is what is wanted.
    Converged,
}

/// Whether something is wanted there or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wanted {
    /// It shall be there.
    Present,
    /// It shall be gone.
    Absent,
}
