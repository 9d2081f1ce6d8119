//! The parts of the OCI runtime specification's `config.json` that we write, by its names.
use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The whole document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Document {
    /// The version of the specification.
    pub oci_version: String,
    /// What runs.
    pub process: Process,
    /// Its root.
    pub root: Root,
    /// Its host's name.
    pub hostname: String,
    /// What is mounted, in this order.
    pub mounts: Vec<Mount>,
    /// Whose it is.
    pub annotations: BTreeMap<String, String>,
    /// What Linux alone has.
    pub linux: Linux,
}

/// What runs. Its `Debug` shows no value of the environment: some are secrets.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Process {
    /// As whom.
    pub user: User,
    /// The program and its arguments.
    pub args: Vec<String>,
    /// The whole environment, as `NAME=VALUE`.
    pub env: Vec<String>,
    /// Where it starts.
    pub cwd: String,
    /// What it may do.
    pub capabilities: CapabilitySets,
    /// Whether setuid programs have no effect.
    pub no_new_privileges: bool,
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.env.iter().map(|one| one.split('=').next().unwrap_or_default()).collect();
        f.debug_struct("Process")
            .field("user", &self.user)
            .field("args", &self.args)
            .field("env", &names)
            .field("cwd", &self.cwd)
            .field("capabilities", &self.capabilities)
            .field("no_new_privileges", &self.no_new_privileges)
            .finish()
    }
}

/// As whom the process runs. Only the container's own files say which numbers its names have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct User {
    /// The user's number, once it was looked up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The group's number, once it was looked up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// Further groups, once they were looked up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub additional_gids: Vec<u32>,
    /// Bits that new files do not have.
    pub umask: u32,
}

/// Names of capabilities, with `CAP_`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapabilitySets {
    /// What it can ever get.
    pub bounding: Vec<String>,
    /// What counts now.
    pub effective: Vec<String>,
    /// What it may make count.
    pub permitted: Vec<String>,
    /// What may outlive the start of another program.
    pub inheritable: Vec<String>,
    /// What outlives it without being root.
    pub ambient: Vec<String>,
}

/// The root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Root {
    /// Where it lies on the host.
    pub path: String,
    /// Whether it cannot be written.
    pub readonly: bool,
}

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Where in the container.
    pub destination: String,
    /// The file system, or `bind`.
    pub r#type: String,
    /// What is mounted.
    pub source: String,
    /// How.
    pub options: Vec<String>,
}

/// What Linux alone has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Linux {
    /// Where its processes are counted and limited.
    pub cgroups_path: String,
    /// What it may take.
    pub resources: Resources,
    /// What it does not share with the host.
    pub namespaces: Vec<Namespace>,
    /// Devices that it has beyond the usual ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Device>,
    /// Paths that it does not see.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub masked_paths: Vec<String>,
    /// Paths that it cannot write.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub readonly_paths: Vec<String>,
    /// How mounts beneath the root are told to others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rootfs_propagation: Option<String>,
}

/// A namespace of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    /// Of which kind.
    pub r#type: String,
}

/// A node in its `/dev`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// Where.
    pub path: String,
    /// `b` or `c`.
    pub r#type: String,
    /// The driver's number.
    pub major: u32,
    /// The device's number.
    pub minor: u32,
    /// Who may do what.
    pub file_mode: u32,
    /// The owner.
    pub uid: u32,
    /// The owner's group.
    pub gid: u32,
}

/// What it may take.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// Which devices it may open; a later rule counts more.
    pub devices: Vec<DeviceRule>,
    /// Memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// Time of CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cpu>,
    /// Processes and threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<Pids>,
}

/// Whether devices may be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceRule {
    /// Whether they may.
    pub allow: bool,
    /// `b` or `c`; both without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub r#type: Option<String>,
    /// The driver's number; any without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub major: Option<u32>,
    /// The device's number; any without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minor: Option<u32>,
    /// Of `r`, `w` and `m`, what the rule is about.
    pub access: String,
}

/// Memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Bytes.
    pub limit: u64,
}

/// Time of CPUs: so much of each period.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    /// Microseconds of all CPUs together.
    pub quota: u64,
    /// Microseconds.
    pub period: u64,
}

/// Processes and threads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pids {
    /// How many.
    pub limit: u64,
}
