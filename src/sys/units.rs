//! Units of systemd's in which tasks run: transient scopes, made around a shim before its task begins, and gone with the
//! last process in them.
use crate::sys::cgroup::Limits;
use crate::sys::containers::Lack;
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a machine is asked that systemd runs.
#[async_trait]
pub trait Units: Send + Sync + fmt::Debug {
    /// Whether its manager answers, and takes our word.
    async fn check(&self) -> Result<(), Lack>;
}

/// A transient scope.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitSpec {
    /// Its name with `.scope`. No other task has it.
    pub name: String,
    /// The slice that it is in, with `.slice`.
    pub slice: String,
    /// What people are shown, one line.
    pub description: String,
    /// What its processes may use together; its shim is counted among them, and allowed for.
    #[serde(default)]
    pub limits: Limits,
    /// Between the SIGTERM of a `systemctl stop` and the SIGKILL to all of it, in milliseconds: longer than the task's own
    /// grace, so that its shim tells of its end.
    pub stop_after_ms: u64,
}
