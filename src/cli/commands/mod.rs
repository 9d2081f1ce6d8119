//! One file per command: what it asks of the server and what it prints.
pub(crate) mod about;
pub(crate) mod apply;
mod backends;
pub(crate) mod backup;
pub(crate) mod delete;
pub(crate) mod describe;
pub(crate) mod drain;
pub(crate) mod edit;
pub(crate) mod events;
mod fullness;
pub(crate) mod get;
pub(crate) mod logs;
pub(crate) mod snapshot;
pub(crate) mod token;
pub(crate) mod user;
pub(crate) mod volume;
pub(crate) mod wait;
pub(crate) mod why;
