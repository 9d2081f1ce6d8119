//! How a task is run: the runtimes and what each of them is told, and what a task may take.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ops::Not;

use super::quantity;

/// How a task is run: exactly one of these.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Runtime {
    /// A process on the host, under a shim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessRuntime>,
    /// Something else runs it; only its socket is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external: Option<ExternalRuntime>,
    /// A container from an OCI image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oci: Option<OciRuntime>,
    /// A container as under `oci`, of the same images, that the node's containerd makes and shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub containerd: Option<OciRuntime>,
    /// A process as under `process`, in a unit of the node's systemd, which has its limits and outlives the daemon's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub systemd: Option<ProcessRuntime>,
}

impl Runtime {
    /// Its word, as a NodeAgent lists it.
    pub fn word(&self) -> Option<&'static str> {
        let all = [
            (self.external.is_some(), "external"),
            (self.process.is_some(), "process"),
            (self.oci.is_some(), "oci"),
            (self.systemd.is_some(), "systemd"),
            (self.containerd.is_some(), "containerd"),
        ];
        all.into_iter().find_map(|(is_it, word)| is_it.then_some(word))
    }

    /// What is told of a container, whichever of the two runtimes runs it.
    pub fn container(&self) -> Option<&OciRuntime> {
        self.oci.as_ref().or(self.containerd.as_ref())
    }

    /// What is told of a process on the host, whichever of the two runtimes runs it.
    pub fn on_host(&self) -> Option<&ProcessRuntime> {
        self.process.as_ref().or(self.systemd.as_ref())
    }
}

/// A process on the host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProcessRuntime {
    /// The program and its arguments; `${NODE_NAME}`, `${DATA_DIR}`, `${CSI_ENDPOINT}` and `${CSI_SOCKET}` are replaced.
    pub command: Vec<String>,
    /// The working directory, `/` when empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub working_dir: String,
    /// As whom it runs: `USER` or `USER:GROUP`, names of the host or numbers; root when empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// Further groups, by name or number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub groups: Vec<String>,
    /// What differs from the capabilities that it begins with: root has all of them, others none.
    #[serde(default, skip_serializing_if = "Capabilities::is_empty")]
    pub capabilities: Capabilities,
}

/// A driver that something else runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExternalRuntime {
    /// The absolute path of its Unix socket, at most 107 bytes.
    pub socket: String,
}

/// A container from an OCI image.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OciRuntime {
    /// The image on the node: a directory or tar in the OCI layout, or what `docker save` writes; no registry is asked.
    /// `${DATA_DIR}` and `${NODE_NAME}` are replaced.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub archive: String,
    /// Which image of the archive; may be empty where it holds one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub image: String,
    /// The program and its arguments, instead of the image's entry point and arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// The arguments, instead of the image's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// The working directory, the image's when empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub working_dir: String,
    /// As whom it runs: `USER` or `USER:GROUP`, names of the image or numbers; the image's user when empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// Further groups, by name or number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub groups: Vec<String>,
    /// What differs from the capabilities that containers usually have.
    #[serde(default, skip_serializing_if = "Capabilities::is_empty")]
    pub capabilities: Capabilities,
    /// Whether its root cannot be written.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub read_only_root: bool,
    /// Which network it has.
    #[serde(default, skip_serializing_if = "Network::is_host")]
    pub network: Network,
    /// Whether it sees every process of the node; needs `privileged`.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub host_pid: bool,
    /// All capabilities of the node, all devices, nothing masked.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub privileged: bool,
    /// The node's /dev, as it changes, instead of a small one.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub host_devices: bool,
    /// Single devices of the node, such as /dev/fuse.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub devices: Vec<String>,
    /// Directories and files of the node that it sees.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host_paths: Vec<HostPath>,
}

/// What differs from the capabilities that a task begins with; `drop` goes first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Capabilities {
    /// Names without `CAP_`, such as NET_ADMIN, or ALL.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub add: Vec<String>,
    /// Names without `CAP_`, or ALL.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub drop: Vec<String>,
}

impl Capabilities {
    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        self.add.is_empty() && self.drop.is_empty()
    }
}

/// Which network a container has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum Network {
    /// The node's.
    #[default]
    Host,
    /// One of its own with nothing in it but a loopback that is down.
    None,
}

impl Network {
    #[allow(clippy::trivially_copy_pass_by_ref)] // serde hands out references
    fn is_host(&self) -> bool {
        *self == Self::Host
    }
}

/// A directory or file of the node that a container sees.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostPath {
    /// An absolute path on the node, beneath a directory that the node allows; `${DATA_DIR}` and `${NODE_NAME}` are replaced.
    pub path: String,
    /// An absolute path in the container.
    pub mount_path: String,
    /// Whether it is only read.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub read_only: bool,
    /// Whether mounts made beneath it later are seen on the other side.
    #[serde(default, skip_serializing_if = "Propagation::is_none")]
    pub propagation: Propagation,
}

/// Whether mounts made later are seen on the other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum Propagation {
    /// On neither side.
    #[default]
    None,
    /// The container sees the node's.
    HostToContainer,
    /// Each sees the other's.
    Bidirectional,
}

impl Propagation {
    #[allow(clippy::trivially_copy_pass_by_ref)] // serde hands out references
    fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// What a task may take.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskResources {
    /// The most.
    #[serde(default, skip_serializing_if = "TaskLimits::is_empty")]
    pub limits: TaskLimits,
}

impl TaskResources {
    /// Whether nothing is said.
    pub fn is_empty(&self) -> bool {
        self.limits.is_empty()
    }
}

/// The most that a task may take; no limit where empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskLimits {
    /// Memory, such as `256Mi`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub memory: String,
    /// CPUs, such as `500m` or `2`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cpu: String,
    /// Processes and threads, such as `"200"`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pids: String,
}

impl TaskLimits {
    /// Whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Bytes of memory.
    pub fn memory_bytes(&self) -> Option<u64> {
        quantity::bytes(&self.memory).ok().and_then(|bytes| u64::try_from(bytes).ok())
    }

    /// Thousandths of a CPU.
    pub fn cpu_millis(&self) -> Option<u64> {
        quantity::cpu_millis(&self.cpu)
    }

    /// Processes and threads.
    pub fn pid_count(&self) -> Option<u64> {
        self.pids.parse().ok()
    }
}
