//! Faults of where things are mounted in a task's root. No two of them may be at one path: the first would be hidden.
use std::collections::HashMap;

use serde_json::Value;

use super::super::field::FieldErrors;
use super::runtime::container;
use super::{list, text};

/// Where a container has the tree of volumes.
const BASE_DIR: &str = "stagePublishBaseDir";
/// What is said of a path that [`is_below_root`] does not take.
pub(super) const BELOW_ROOT: &str = "must be an absolute path below / without \"..\"";

/// Faults of all mount paths of `of`, a task or an instance of a plugin; the plugin's paths are fields of `driver`, a
/// block in it or, with an empty name, itself.
pub(super) fn mounts(faults: &mut FieldErrors, path: &str, of: &Value, driver: &str) {
    let (kind, oci) = container(&of["runtime"]).unwrap_or(("", &Value::Null));
    let mut taken = Taken { path, root: Root::of(oci), by: HashMap::new(), open: Vec::new() };
    for (i, mount) in list(&of["volumeMounts"]).enumerate() {
        taken.take(faults, format!("volumeMounts[{i}]"), ".mountPath", text(&mount["mountPath"]));
    }
    if taken.root == Root::Hosts {
        return;
    }
    for (i, host) in list(&oci["hostPaths"]).enumerate() {
        let what = format!("runtime.{kind}.hostPaths[{i}]");
        if host["propagation"] == "Bidirectional" {
            taken.open.push((what.clone(), parts(text(&host["mountPath"]))));
        }
        taken.take(faults, what, ".mountPath", text(&host["mountPath"]));
    }
    let (block, prefix) = match driver {
        "" => (of, String::new()),
        name => (&of[name], format!("{name}.")),
    };
    for field in ["mountDir", BASE_DIR] {
        let value = text(&block[field]);
        if !value.is_empty() {
            if field == BASE_DIR {
                taken.open.push((format!("{prefix}{field}"), parts(value)));
            }
            taken.take(faults, format!("{prefix}{field}"), "", value);
        }
    }
    taken.refuse_what_reaches_the_node(faults);
}

/// Faults of entries of one plugin that have the tree of volumes at different paths: which of them is asked about a volume
/// changes with their health, and a driver need not know at a second path what it made at the first.
pub(super) fn one_view(faults: &mut FieldErrors, path: &str, instances: &Value) {
    let view = |instance: &Value| parts(text(&instance[BASE_DIR])).join("/");
    let mut staging = list(instances).enumerate().filter(|(_, i)| i["role"] != "Controller");
    let Some((first, of_first)) = staging.next() else { return };
    let said = match text(&of_first[BASE_DIR]) {
        "" => "none".to_owned(),
        named => format!("{named:?}"),
    };
    for (i, _) in staging.filter(|(_, instance)| view(instance) != view(of_first)) {
        let at = format!("{path}[{i}].{BASE_DIR}");
        if !faults.has(&at) {
            let message = format!(
                "views of one plugin must be equal: instances[{first}] has {said}, and either may be asked to take down \
                 what the other has mounted"
            );
            faults.invalid(at, message);
        }
    }
}

/// Whose root things are mounted in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Root {
    /// The host's.
    Hosts,
    /// A container's.
    Own,
    /// A container's with the node's /dev in it.
    WithHostDevices,
}

impl Root {
    fn of(oci: &Value) -> Self {
        match (oci.is_object(), oci["hostDevices"] == true) {
            (false, _) => Self::Hosts,
            (true, false) => Self::Own,
            (true, true) => Self::WithHostDevices,
        }
    }

    /// Why nothing may be mounted there.
    fn refuses(self, parts: &[&str]) -> Option<&'static str> {
        match (self, parts) {
            (Self::Hosts, _) => None,
            (Self::Own | Self::WithHostDevices, ["proc" | "sys", ..] | ["dev"]) => {
                Some("is the container's own; choose another path")
            }
            // The place to mount it at would be made on the node.
            (Self::WithHostDevices, ["dev", ..]) => {
                Some("lies in the node's /dev with hostDevices; choose another path")
            }
            (Self::Own | Self::WithHostDevices, _) => None,
        }
    }
}

/// The paths at which something is mounted.
struct Taken<'a> {
    path: &'a str,
    root: Root,
    by: HashMap<Vec<&'a str>, (String, &'static str)>,
    /// Those of them where what is mounted beneath is mounted on the node, too.
    open: Vec<(String, Vec<&'a str>)>,
}

impl<'a> Taken<'a> {
    fn take(&mut self, faults: &mut FieldErrors, what: String, field: &'static str, value: &'a str) {
        let at = format!("{}.{what}{field}", self.path);
        if !is_below_root(value) {
            faults.invalid(&at, BELOW_ROOT);
        }
        let parts = parts(value);
        if let Some(why) = self.root.refuses(&parts) {
            faults.invalid(&at, why);
        }
        if let Some((other, _)) = self.by.get(&parts) {
            faults.invalid(&at, format!("{other} is mounted there already, and would be hidden"));
        } else {
            self.by.insert(parts, (what, field));
        }
    }

    fn refuse_what_reaches_the_node(&self, faults: &mut FieldErrors) {
        let mut all: Vec<_> = self.by.iter().collect();
        all.sort();
        for (at, (what, field)) in all {
            let above = |(_, open): &&(String, Vec<&str>)| at.len() > open.len() && at.starts_with(open);
            if let Some((open, _)) = self.open.iter().find(above) {
                let message = format!("lies in {open}: what is mounted there is mounted on the node, too");
                faults.invalid(format!("{}.{what}{field}", self.path), message);
            }
        }
    }
}

/// Whether it is an absolute path of something else than the root.
pub(super) fn is_below_root(path: &str) -> bool {
    let parts = parts(path);
    path.starts_with('/') && !parts.is_empty() && !parts.contains(&"..") && !path.contains('\0')
}

/// What tells a path from another.
fn parts(path: &str) -> Vec<&str> {
    path.split('/').filter(|part| !matches!(*part, "" | ".")).collect()
}
