//! What of a container a node has to allow: whatever reaches beyond it.
use crate::api::capability::{ALL, Capability};
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
    /// The field of the task's `runtime.oci`, with its value where that matters.
    pub field: String,
    /// What allows it.
    pub way: &'static str,
}

/// What allows a node's containers everything.
const PRIVILEGED: &str = "leave it out, or start the node with --allow-privileged";
/// What allows paths of the node.
const PATHS: &str = "leave it out, or start the node with --bind-path DIR, beneath which the path is";

/// Whether the node allows what is asked for; which paths of the node, is looked at where they are resolved.
pub fn gate(oci: &OciRuntime, trust: Trust, any_path: bool) -> Result<(), Forbidden> {
    let forbidden = |field: String, way| Err(Forbidden { field, way });
    if !oci.host_paths.is_empty() && !any_path {
        return forbidden("hostPaths".to_owned(), PATHS);
    }
    if trust == Trust::Privileged {
        return Ok(());
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
                let told = gate(&oci, trust, any_path);
                assert_eq!(told.is_ok(), has, "{field} {value} {trust:?} {any_path}");
                let sentence = told.err().map(|error| error.to_string()).unwrap_or_default();
                assert!(has || (sentence.contains(field) && sentence.contains(needs)), "{sentence}");
            }
        }
    }
}
