//! What of a container a node has to allow: whatever reaches beyond it.
use crate::api::capability::{ALL, Capability};
use crate::api::plugin::Role;
use crate::api::runtime::OciRuntime;

use super::defaults::CAPABILITIES;

/// What a node's own configuration allows containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// What reaches no further than the container.
    Confined,
    /// All that a manifest can ask for.
    Privileged,
}

/// A field that the node does not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this node does not allow {field}: {way}")]
pub struct Forbidden {
    /// The field of the task's `runtime.oci` or `runtime.containerd`, with its value where that matters.
    pub field: String,
    /// What allows it.
    pub way: &'static str,
}

/// What allows a node's containers everything.
const PRIVILEGED: &str = "leave it out, or start the node with --allow-privileged";
/// What allows a driver that mounts.
const DRIVER: &str = "let a Plugin's instances run it, or start the node with --allow-privileged";
/// What allows paths of the node.
const PATHS: &str = "leave it out, or start the node with --bind-path DIR, beneath which the path is";

/// Whose container it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// A task's that serves no plugin, or one that mounts nothing.
    Workload,
    /// A driver's that mounts volumes, and for that has SYS_ADMIN and sees every volume of the node: of a Plugin object,
    /// which only who is trusted writes.
    Driver,
    /// The same, of anybody's allocation.
    AnybodysDriver,
}

impl Whose {
    /// That of a task in a namespace where anybody may make allocations, or only who is trusted.
    pub fn of(role: Option<Role>, trusted: bool) -> Self {
        match (role.is_some_and(Role::node), trusted) {
            (false, _) => Self::Workload,
            (true, true) => Self::Driver,
            (true, false) => Self::AnybodysDriver,
        }
    }
}

/// Whether the node allows what is asked for; which paths of the node, is looked at where they are resolved.
pub fn gate(oci: &OciRuntime, whose: Whose, trust: Trust, any_path: bool) -> Result<(), Forbidden> {
    let forbidden = |field: String, way| Err(Forbidden { field, way });
    if !oci.host_paths.is_empty() && !any_path {
        return forbidden("hostPaths".to_owned(), PATHS);
    }
    if trust == Trust::Privileged {
        return Ok(());
    }
    if whose == Whose::AnybodysDriver {
        return forbidden("csiPlugin with a node service".to_owned(), DRIVER);
    }
    let given = [
        ("privileged", oci.privileged),
        ("hostPid", oci.host_pid),
        ("hostDevices", oci.host_devices),
        ("devices", !oci.devices.is_empty()),
    ];
    if let Some((field, _)) = given.into_iter().find(|(_, given)| *given) {
        return forbidden(field.to_owned(), PRIVILEGED);
    }
    // With SYS_ADMIN, SYS_MODULE and others root leaves every container.
    let usual = |name: &str| CAPABILITIES.contains(&name);
    let beyond =
        |name: &&String| *name == ALL || Capability::named(name).is_none_or(|one| !usual(one.name()));
    match oci.capabilities.add.iter().find(beyond) {
        Some(name) => forbidden(format!("capabilities.add {name}"), PRIVILEGED),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Obligation CO-PLUG-12.
    #[test]
    fn what_reaches_beyond_a_container_needs_the_nodes_word() {
        for (field, value, needs) in [
            ("privileged", json!(true), "--allow-privileged"),
            ("hostPid", json!(true), "--allow-privileged"),
            ("hostDevices", json!(true), "--allow-privileged"),
            ("devices", json!(["/dev/fuse"]), "--allow-privileged"),
            ("capabilities", json!({ "add": ["ALL"] }), "--allow-privileged"),
            ("capabilities", json!({ "add": ["CHOWN", "SYS_MODULE"] }), "--allow-privileged"),
            ("capabilities", json!({ "add": ["CHOWN"], "drop": ["ALL"] }), ""),
            ("hostPaths", json!([{ "path": "/lib", "mountPath": "/lib" }]), "--bind-path"),
            ("network", json!("Host"), ""),
            ("user", json!("root"), ""),
        ] {
            let oci: OciRuntime = serde_json::from_value(json!({ field: value })).unwrap();
            for (trust, any_path) in [
                (Trust::Confined, false),
                (Trust::Confined, true),
                (Trust::Privileged, false),
                (Trust::Privileged, true),
            ] {
                let has = match needs {
                    "--allow-privileged" => trust == Trust::Privileged,
                    "--bind-path" => any_path,
                    _ => true,
                };
                let told = gate(&oci, Whose::Workload, trust, any_path);
                assert_eq!(told.is_ok(), has, "{field} {value} {trust:?} {any_path}");
                let sentence = told.err().map(|error| error.to_string()).unwrap_or_default();
                assert!(has || (sentence.contains(field) && sentence.contains(needs)), "{sentence}");
            }
        }
    }

    #[test]
    fn a_driver_that_mounts_is_a_plugins_or_needs_the_nodes_word() {
        let oci = OciRuntime::default();
        for (role, trusted, allowed) in [
            (None, false, true),
            (Some(Role::Controller), false, true),
            (Some(Role::Node), false, false),
            (Some(Role::Monolith), false, false),
            (Some(Role::Node), true, true),
        ] {
            let whose = Whose::of(role, trusted);
            assert_eq!(gate(&oci, whose, Trust::Confined, false).is_ok(), allowed, "{role:?} {trusted}");
            assert_eq!(gate(&oci, whose, Trust::Privileged, false), Ok(()));
        }
    }
}
