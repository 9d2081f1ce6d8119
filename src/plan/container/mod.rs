//! What a container is, from what is wanted of it, what its image says and what the machine has.
//!
//! The result is a [`Document`], which is what runc is told, with what only the machine can fill in left open: whoever is
//! [`UserWanted`] is looked up in the container's own files, and [`Container::shares`] are copied before anything is
//! mounted. Paths in the document that begin with [`Wanted::stage`] are made by whoever starts it: `rootfs`, `v/N` for
//! the N-th volume and `s/N` for the N-th share.
mod capabilities;
mod defaults;
mod document;
mod gate;
mod mounts;

pub use document::{
    CapabilitySets, Cpu, Device, DeviceRule, Document, Linux, Memory, Mount, Namespace, Pids, Process,
    Resources, Root, User,
};
pub use gate::{Forbidden, Trust, Whose, gate};

use std::collections::{BTreeMap, BTreeSet};

use crate::api::capability::Capability;
use crate::api::plugin::Role;
use crate::api::runtime::{Network, OciRuntime, TaskLimits};

use defaults::{CPU_PERIOD, MASKED, PATH, READ_ONLY, STOP_SIGNAL, UMASK, VERSION};

/// Everything that the document is made from. Variables are replaced and paths are absolute.
#[derive(Debug, Clone)]
pub struct Wanted<'a> {
    /// The runtime's block, but for its command and arguments.
    pub oci: &'a OciRuntime,
    /// The program and its arguments, instead of the image's.
    pub command: &'a [String],
    /// The arguments, instead of the image's.
    pub args: &'a [String],
    /// The task's own variables.
    pub env: &'a BTreeMap<String, String>,
    /// What the image says.
    pub image: &'a ImageSays,
    /// What it may take.
    pub limits: Limits,
    /// The volumes that it mounts; the i-th is made at `v/i` of the stage.
    pub volumes: &'a [VolumeAt],
    /// The nodes of `oci.devices`, in its order, as the machine has them.
    pub devices: &'a [Device],
    /// That it serves a plugin.
    pub plugin: Option<&'a PluginPart>,
    /// What the machine has.
    pub machine: &'a MachineSays,
    /// Whose container it is.
    pub owner: Owner<'a>,
    /// The directory on the host that the root and volumes are made in.
    pub stage: &'a str,
    /// The cgroup's path.
    pub cgroup: &'a str,
}

/// Whose container it is.
#[derive(Debug, Clone, Copy)]
pub struct Owner<'a> {
    /// The node's name.
    pub node: &'a str,
    /// The allocation, as `NAMESPACE/NAME`.
    pub allocation: &'a str,
    /// The task in it.
    pub task: &'a str,
}

/// What an image says of how it wants to be run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageSays {
    /// The program and its first arguments.
    pub entrypoint: Vec<String>,
    /// The arguments, or the whole command without an entry point.
    pub cmd: Vec<String>,
    /// Variables, in the image's order.
    pub env: Vec<(String, String)>,
    /// An absolute path.
    pub working_dir: String,
    /// As whom: a user and, if it names one, a group. None: root.
    pub user: Option<(String, Option<String>)>,
    /// The number of the signal that asks it to end.
    pub stop_signal: Option<i32>,
}

/// The most that a task may take; no limit where none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Thousandths of a CPU.
    pub cpu_millis: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
}

impl From<&TaskLimits> for Limits {
    fn from(limits: &TaskLimits) -> Self {
        Self { memory: limits.memory_bytes(), cpu_millis: limits.cpu_millis(), pids: limits.pid_count() }
    }
}

/// A volume in the container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeAt {
    /// Where.
    pub path: String,
    /// Whether it is only read.
    pub read_only: bool,
    /// What it is.
    pub kind: VolumeKind,
}

/// What a volume is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeKind {
    /// A file system.
    Filesystem,
    /// A block device.
    Block {
        /// The driver's number.
        major: u32,
        /// The device's number.
        minor: u32,
    },
}

/// What a task that serves a plugin has beyond others. Paths of the container are empty where they are the host's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginPart {
    /// Which services.
    pub role: Role,
    /// The directory of its socket, `csi.sock`, on the host.
    pub socket_directory: String,
    /// The same in the container.
    pub mount_dir: String,
    /// The directory on the host beneath which volumes are staged and published.
    pub tree: String,
    /// The same in the container.
    pub stage_publish_base_dir: String,
}

/// What the machine has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineSays {
    /// The capabilities that the daemon may give away.
    pub capabilities: BTreeSet<Capability>,
    /// Its name.
    pub hostname: String,
    /// How its cgroups are laid out.
    pub cgroups: Cgroups,
    /// Whether there is a /etc/resolv.conf.
    pub resolv_conf: bool,
    /// Whether there is a /etc/hosts.
    pub hosts: bool,
}

/// How the cgroups of a machine are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cgroups {
    /// One tree for each controller.
    V1,
    /// So, with an empty tree of the second version beside them.
    Hybrid,
    /// One tree.
    V2,
}

/// A container as it can be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// What runc is told.
    pub document: Document,
    /// As whom it runs.
    pub user: UserWanted,
    /// What of the host it sees, copied with all mounts before anything is mounted; the i-th to `s/i`.
    pub shares: Vec<Share>,
    /// The number of the signal that asks its first process to end.
    pub stop_signal: i32,
}

/// As whom a container runs, by names or numbers of its own files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserWanted {
    /// The user; none: root.
    pub user: Option<String>,
    /// The group; none: the user's.
    pub group: Option<String>,
    /// Further groups.
    pub groups: Vec<String>,
}

impl UserWanted {
    /// Whether it is root, as far as can be said before its files are read.
    fn is_root(&self) -> bool {
        self.user.as_deref().is_none_or(|user| user == "root" || user.parse() == Ok(0_u32))
    }
}

/// A path of the host that the container sees, taken hold of before anything is mounted: whoever can write above it
/// cannot have another one taken by then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// The path.
    pub path: String,
    /// What is mounted in it on either side shall be seen on the other: it has to be a shared mount.
    pub both_ways: bool,
    /// Nothing on its way may be a link: it was resolved when it was allowed.
    pub resolved: bool,
}

/// Why there is no such container.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Neither the task nor the image names a program.
    #[error("the image names no program; give the task a command")]
    NoCommand,
    /// The machine lacks a capability that was asked for.
    #[error("this node cannot give away the capability {capability}; leave it out or use another node")]
    CapabilityMissing {
        /// Which one.
        capability: Capability,
    },
    /// Two things are at one path.
    #[error("{path} is taken by {by} already; choose another path for {what}")]
    Taken {
        /// Where.
        path: String,
        /// What was there first.
        by: &'static str,
        /// What would be there too.
        what: &'static str,
    },
    /// It would be mounted on the node, too.
    #[error(
        "{path} lies in {at}, which is {open}: what is mounted there reaches the node; choose another path for {what}"
    )]
    Reaches {
        /// Where.
        path: String,
        /// What would be there.
        what: &'static str,
        /// Beneath which path.
        at: String,
        /// What is there.
        open: &'static str,
    },
}

/// The container that is wanted.
pub fn container(wanted: &Wanted<'_>) -> Result<Container, Fault> {
    let user = user(wanted);
    let (mounts, shares) = mounts::mounts(wanted)?;
    let shared = mounts.iter().any(|mount| mount.options.iter().any(|option| option == "rshared"));
    let process = Process {
        user: User { umask: UMASK, ..User::default() },
        args: command_line(wanted)?,
        env: environment(wanted),
        cwd: directory(wanted),
        capabilities: capabilities::capabilities(wanted, &user)?,
        no_new_privileges: false,
    };
    let visible = |paths: &[&str]| if wanted.oci.privileged { Vec::new() } else { owned(paths) };
    let linux = Linux {
        cgroups_path: wanted.cgroup.to_owned(),
        resources: resources(wanted),
        namespaces: namespaces(wanted),
        // With the node's /dev they are there.
        devices: if wanted.oci.host_devices { Vec::new() } else { wanted.devices.to_vec() },
        masked_paths: visible(MASKED),
        readonly_paths: visible(READ_ONLY),
        rootfs_propagation: shared.then(|| "shared".to_owned()),
    };
    let document = Document {
        oci_version: VERSION.to_owned(),
        process,
        root: Root { path: format!("{}/rootfs", wanted.stage), readonly: wanted.oci.read_only_root },
        hostname: wanted.machine.hostname.clone(),
        mounts,
        annotations: annotations(wanted.owner),
        linux,
    };
    let stop_signal = wanted.image.stop_signal.unwrap_or(STOP_SIGNAL);
    Ok(Container { document, user, shares, stop_signal })
}

/// A command replaces the image's entry point and arguments, arguments replace its arguments alone.
fn command_line(wanted: &Wanted<'_>) -> Result<Vec<String>, Fault> {
    let (program, own) = match wanted.command {
        [] => (wanted.image.entrypoint.as_slice(), wanted.image.cmd.as_slice()),
        command => (command, &[][..]),
    };
    let arguments = if wanted.args.is_empty() { own } else { wanted.args };
    let all = [program, arguments].concat();
    if all.first().is_none_or(String::is_empty) { Err(Fault::NoCommand) } else { Ok(all) }
}

/// `NAME=VALUE`; who says a name again replaces its value in its place.
fn environment(wanted: &Wanted<'_>) -> Vec<String> {
    let own = [("NODE_NAME", wanted.owner.node.to_owned())];
    let socket = wanted.plugin.map(|plugin| ("CSI_ENDPOINT", mounts::endpoint(plugin)));
    let image = wanted.image.env.iter().map(|(name, value)| (name.as_str(), value.clone()));
    let task = wanted.env.iter().map(|(name, value)| (name.as_str(), value.clone()));
    let first = [("PATH", PATH.to_owned())];
    let mut all: Vec<(&str, String)> = Vec::new();
    for (name, value) in first.into_iter().chain(image).chain(own).chain(socket).chain(task) {
        match all.iter_mut().find(|(known, _)| *known == name) {
            Some(known) => known.1 = value,
            None => all.push((name, value)),
        }
    }
    all.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
}

/// The task's user, with its group or without, else the image's.
fn user(wanted: &Wanted<'_>) -> UserWanted {
    let groups = wanted.oci.groups.clone();
    let named = |(user, group): (String, Option<String>)| (Some(user), group);
    if wanted.plugin.is_some() {
        // The directory of its socket is root's, whatever the image says.
        return UserWanted { groups, ..UserWanted::default() };
    }
    let (user, group) = match wanted.oci.user.split_once(':') {
        Some((user, group)) => (Some(user.to_owned()), Some(group.to_owned())),
        None if wanted.oci.user.is_empty() => wanted.image.user.clone().map_or((None, None), named),
        None => (Some(wanted.oci.user.clone()), None),
    };
    UserWanted { user, group, groups }
}

fn resources(wanted: &Wanted<'_>) -> Resources {
    let limits = wanted.limits;
    Resources {
        devices: device_rules(wanted),
        memory: limits.memory.map(|limit| Memory { limit }),
        cpu: limits.cpu_millis.map(|millis| Cpu { quota: millis * CPU_PERIOD / 1000, period: CPU_PERIOD }),
        pids: limits.pids.map(|limit| Pids { limit }),
    }
}

/// Which devices it may open. A read-only bind of a node takes writes to its device: the rule is what refuses them.
fn device_rules(wanted: &Wanted<'_>) -> Vec<DeviceRule> {
    let any = |allow| DeviceRule { allow, r#type: None, major: None, minor: None, access: "rwm".to_owned() };
    if wanted.oci.privileged || wanted.oci.host_devices {
        return vec![any(true)];
    }
    let one = |kind: &str, (major, minor), access: &str| DeviceRule {
        allow: true,
        r#type: Some(kind.to_owned()),
        major: Some(major),
        minor: Some(minor),
        access: access.to_owned(),
    };
    let volumes = wanted.volumes.iter().filter_map(|volume| match volume.kind {
        VolumeKind::Filesystem => None,
        VolumeKind::Block { major, minor } => {
            Some(one("b", (major, minor), if volume.read_only { "r" } else { "rw" }))
        }
    });
    let nodes = wanted.devices.iter().map(|node| one(&node.r#type, (node.major, node.minor), "rw"));
    [any(false)].into_iter().chain(volumes).chain(nodes).collect()
}

fn namespaces(wanted: &Wanted<'_>) -> Vec<Namespace> {
    let network = match wanted.oci.network {
        Network::Host => None,
        Network::None => Some("network"),
    };
    let cgroup = match wanted.machine.cgroups {
        Cgroups::V1 | Cgroups::Hybrid => None,
        Cgroups::V2 => Some("cgroup"),
    };
    let pid = if wanted.oci.host_pid { None } else { Some("pid") };
    let kinds = ["mount", "ipc", "uts"].into_iter().chain(pid).chain(network).chain(cgroup);
    kinds.map(|kind| Namespace { r#type: kind.to_owned() }).collect()
}

fn annotations(owner: Owner<'_>) -> BTreeMap<String, String> {
    BTreeMap::from([
        ("dev.wharfline.allocation".to_owned(), owner.allocation.to_owned()),
        ("dev.wharfline.task".to_owned(), owner.task.to_owned()),
    ])
}

fn directory(wanted: &Wanted<'_>) -> String {
    let said = [&wanted.oci.working_dir, &wanted.image.working_dir];
    said.into_iter().find(|path| !path.is_empty()).map_or("/", String::as_str).to_owned()
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[cfg(test)]
mod tests;
