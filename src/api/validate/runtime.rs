//! Faults of how a task or an instance of a plugin is run, and of what it may take.
use std::time::Duration;

use serde_json::Value;

use super::super::capability::{ALL, Capability};
use super::super::field::{Cause, FieldErrors};
use super::super::quantity;
use super::mounts::{BELOW_ROOT, is_below_root};
use super::{SOCKET_PATH_MAX, check_duration, entries, list, one_of, text};

/// The least memory that a program can start in.
const LEAST_MEMORY: i64 = 4 << 20;
/// The least thousandths of a CPU that the kernel divides.
const LEAST_CPU: u64 = 10;
/// The least time to be ready in that a driver may be given.
const LEAST_HEALTH_TIMEOUT: Duration = Duration::from_millis(100);
/// The kernel's largest number of a process.
const MOST_PIDS: u64 = 4_194_304;
/// The largest number of a user or a group; the one above it means none.
const LARGEST_ID: u32 = u32::MAX - 1;
/// CSI_ENDPOINT's file in the directory of a plugin's socket.
const SOCKET: &str = "csi.sock";

/// The runtimes of processes on the host.
const ON_HOST: [&str; 2] = ["process", "systemd"];
/// Those of containers, which are told the same.
const CONTAINERS: [&str; 2] = ["oci", "containerd"];

/// The block of a container, with its runtime; whichever of them is given, there is one at most.
pub(super) fn container(runtime: &Value) -> Option<(&'static str, &Value)> {
    CONTAINERS.map(|kind| (kind, &runtime[kind])).into_iter().find(|(_, block)| block.is_object())
}

/// Faults of a runtime's own block.
pub(super) fn runtime(faults: &mut FieldErrors, path: &str, runtime: &Value) {
    one_of(faults, path, runtime, &["process", "external", "oci", "containerd", "systemd"], true);
    for (kind, process) in ON_HOST.map(|kind| (kind, &runtime[kind])).iter().filter(|(_, p)| p.is_object()) {
        if list(&process["command"]).next().is_none_or(|c| text(c).is_empty()) {
            faults.required(format!("{path}.{kind}.command"), "needs at least the program to run");
        }
        working_dir(faults, &format!("{path}.{kind}.workingDir"), text(&process["workingDir"]));
        identity(faults, &format!("{path}.{kind}"), process);
    }
    if runtime["external"].is_object() {
        socket(faults, &format!("{path}.external.socket"), text(&runtime["external"]["socket"]));
    }
    if let Some((kind, block)) = container(runtime) {
        oci(faults, &format!("{path}.{kind}"), block);
    }
}

/// Faults of `resources`. `of` is a task or an instance of a plugin.
pub(super) fn resources(faults: &mut FieldErrors, path: &str, of: &Value) {
    if of["resources"].is_null() {
        return;
    }
    if of["runtime"]["external"].is_object() {
        faults.forbidden(format!("{path}.resources"), "something else runs the task; limit it there");
        return;
    }
    let limits = &of["resources"]["limits"];
    let given = |name: &str| Some(text(&limits[name])).filter(|value| !value.is_empty());
    let at = |name: &str| format!("{path}.resources.limits.{name}");
    if let Some(memory) = given("memory") {
        match quantity::bytes(memory) {
            Ok(bytes) if bytes >= LEAST_MEMORY => {}
            Ok(_) => faults.invalid(at("memory"), "must be at least 4Mi: less does not start a program"),
            Err(error) => faults.invalid(at("memory"), error.to_string()),
        }
    }
    if let Some(cpu) = given("cpu") {
        match quantity::cpu_millis(cpu) {
            Some(LEAST_CPU..) => {}
            Some(_) => faults.invalid(at("cpu"), "must be at least 10m"),
            None => faults.invalid(at("cpu"), format!("{cpu:?} is not an amount of CPU; write 500m or 2")),
        }
    }
    if let Some(pids) = given("pids")
        && !pids.parse().is_ok_and(|pids: u64| (1..=MOST_PIDS).contains(&pids))
    {
        faults.invalid(at("pids"), format!("must be a number from 1 to {MOST_PIDS}"));
    }
}

/// Faults of where a driver sees its paths. `of` has them: a task's `csiPlugin`, or an entry of a Plugin's instances.
pub(super) fn driver_paths(faults: &mut FieldErrors, path: &str, of: &Value, runtime: &Value) {
    let is = |kind: &str| runtime[kind].is_object();
    for field in ["mountDir", "stagePublishBaseDir"].into_iter().filter(|f| !text(&of[*f]).is_empty()) {
        let at = format!("{path}.{field}");
        if ON_HOST.into_iter().any(is) {
            let message = "speaks of a container's own root; a process has the host's, leave it out";
            faults.forbidden(at, message);
        } else if is("external") {
            faults.forbidden(at, "something else runs the driver; it says itself where its paths are");
        } else if field == "mountDir" {
            let bytes = text(&of[field]).trim_end_matches('/').len() + "/".len() + SOCKET.len();
            if bytes > SOCKET_PATH_MAX {
                let message = format!(
                    "its socket's path would have {bytes} bytes; a Unix socket's may have {SOCKET_PATH_MAX}"
                );
                faults.add(at, Cause::TooLong, message);
            }
        } else if of["role"] == "Controller" {
            faults.forbidden(at, "stages and publishes nothing; leave it out");
        }
    }
}

fn working_dir(faults: &mut FieldErrors, path: &str, dir: &str) {
    // A variable of the node may stand at its beginning.
    let absolute = dir.starts_with('/') || dir.starts_with("${");
    if !dir.is_empty() && (!absolute || dir.split('/').any(|part| part == "..")) {
        faults.invalid(path, "must be an absolute path without \"..\"");
    }
}

/// Faults of the environment. `of` is a task or an instance of a plugin.
pub(super) fn env(faults: &mut FieldErrors, path: &str, of: &Value) {
    for (name, _) in entries(&of["env"]).filter(|(name, _)| name.is_empty() || name.contains(['=', '\0'])) {
        faults.invalid(
            format!("{path}.env[{name}]"),
            "cannot be the name of a variable: give one without \"=\"",
        );
    }
}

fn socket(faults: &mut FieldErrors, path: &str, socket: &str) {
    if socket.contains("://") {
        faults.invalid(path, "must be a plain path of a Unix socket; other transports are not part of CSI");
    } else if !is_absolute(socket) {
        faults.invalid(path, "must be an absolute path without \"..\"");
    } else if socket.len() > SOCKET_PATH_MAX {
        let message = format!("has {} bytes; a Unix socket's path may have {SOCKET_PATH_MAX}", socket.len());
        faults.add(path, Cause::TooLong, message);
    }
}

/// As whom, and with what rights.
fn identity(faults: &mut FieldErrors, path: &str, of: &Value) {
    let user = text(&of["user"]);
    let (name, group) = user.split_once(':').map_or((user, None), |(name, group)| (name, Some(group)));
    let named = is_account(name) && group.is_none_or(is_account);
    if !named && !user.is_empty() {
        let message = format!("{user:?} must be USER or USER:GROUP, each a name or a number");
        faults.invalid(format!("{path}.user"), message);
    }
    for (i, group) in list(&of["groups"]).map(text).enumerate().filter(|(_, group)| !is_account(group)) {
        let message = format!("{group:?} must be a group's name or number");
        faults.invalid(format!("{path}.groups[{i}]"), message);
    }
    for list_of in ["add", "drop"] {
        let names = list(&of["capabilities"][list_of]).map(text).enumerate();
        for (i, name) in names.filter(|(_, name)| *name != ALL && Capability::named(name).is_none()) {
            faults.invalid(
                format!("{path}.capabilities.{list_of}[{i}]"),
                format!("{name:?} is not a capability; write it without CAP_, such as NET_ADMIN, or ALL"),
            );
        }
    }
}

/// A name or a number of a user or a group.
fn is_account(text: &str) -> bool {
    let name = |first: u8, rest: &[u8]| {
        let inner = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_.-".contains(b);
        (first.is_ascii_lowercase() || first == b'_') && rest.iter().all(inner)
    };
    let number =
        || text.bytes().all(|b| b.is_ascii_digit()) && text.parse().is_ok_and(|n: u32| n <= LARGEST_ID);
    text.as_bytes().split_first().is_some_and(|(first, rest)| name(*first, rest)) || number()
}

/// What follows after the daemon's own directory, which is absolute.
fn in_data_dir(path: &str) -> &str {
    path.strip_prefix("${DATA_DIR}").unwrap_or(path)
}

fn oci(faults: &mut FieldErrors, path: &str, oci: &Value) {
    let archive = text(&oci["archive"]);
    if archive.is_empty() {
        let message = "is needed: no registry is asked; name the image's directory or tar on the node";
        faults.required(format!("{path}.archive"), message);
    } else if !is_absolute(in_data_dir(archive)) {
        faults.invalid(format!("{path}.archive"), "must be an absolute path without \"..\"");
    }
    let image = text(&oci["image"]);
    if image.len() > 255 || image.chars().any(char::is_control) {
        faults.invalid(format!("{path}.image"), "cannot be the name of an image");
    }
    let directory = text(&oci["workingDir"]);
    if !directory.is_empty() && !is_absolute(directory) {
        faults.invalid(format!("{path}.workingDir"), "must be an absolute path without \"..\"");
    }
    identity(faults, path, oci);
    for (i, host) in list(&oci["hostPaths"]).enumerate() {
        if !is_below_root(in_data_dir(text(&host["path"]))) {
            faults.invalid(format!("{path}.hostPaths[{i}].path"), BELOW_ROOT);
        }
    }
    for (i, device) in list(&oci["devices"]).map(text).enumerate() {
        if !device.starts_with("/dev/") || !is_below_root(&device["/dev".len()..]) {
            faults.invalid(format!("{path}.devices[{i}]"), "must be a device below /dev");
        }
    }
    let privileged = oci["privileged"] == true;
    for (field, given) in [("devices", &oci["devices"]), ("capabilities.drop", &oci["capabilities"]["drop"])]
    {
        if privileged && list(given).next().is_some() {
            faults.forbidden(format!("{path}.{field}"), "privileged has them all; leave it out");
        }
    }
    if oci["hostPid"] == true && !privileged {
        let message = "needs privileged: it reaches every process of the node";
        faults.forbidden(format!("{path}.hostPid"), message);
    }
}

fn is_absolute(path: &str) -> bool {
    path.starts_with('/') && !path.split('/').any(|part| part == "..") && !path.contains('\0')
}

/// How long a driver may take to be ready.
pub(super) fn health_timeout(faults: &mut FieldErrors, path: &str, value: &Value) {
    check_duration(faults, path, value);
    if value.as_str().and_then(quantity::duration).is_some_and(|timeout| timeout < LEAST_HEALTH_TIMEOUT) {
        faults.invalid(
            path,
            "must be at least 100ms: no driver is ready sooner, and it would be ended for ever",
        );
    }
}

/// What stands for the path of a driver's socket, where CSI_ENDPOINT has it as an address.
const CSI_SOCKET: &str = "${CSI_SOCKET}";

/// A driver listens where it is told to. There are drivers that want that in another form than CSI's `unix://PATH`.
pub(super) fn own_endpoint(faults: &mut FieldErrors, path: &str, of: &Value) {
    let given = &of["env"]["CSI_ENDPOINT"];
    let before = text(given).strip_suffix(CSI_SOCKET);
    // `$$` is a dollar sign.
    if !given.is_null() && before.is_none_or(|before| before.ends_with('$')) {
        let message = format!(
            "is given to a plugin by Wharfline, which has to know where its socket is; leave it out, or, for a driver that \
             wants it in another form than unix://PATH, let it end with {CSI_SOCKET}, which stands for the path"
        );
        faults.forbidden(format!("{path}.env.CSI_ENDPOINT"), message);
    }
}

/// The directory of a driver's socket is root's, and so is what it mounts.
pub(super) fn driver_is_root(faults: &mut FieldErrors, path: &str, of: &Value) {
    let runtimes = ON_HOST.into_iter().chain(CONTAINERS);
    for (runtime, field) in runtimes.flat_map(|runtime| [(runtime, "user"), (runtime, "groups")]) {
        let value = &of["runtime"][runtime][field];
        let given = value.as_str().is_some_and(|text| !text.is_empty()) || list(value).next().is_some();
        if given {
            let message = format!(
                "a driver of the runtime {runtime} runs as root; leave it out, or run it as external"
            );
            faults.invalid(format!("{path}.runtime.{runtime}.{field}"), message);
        }
    }
}

#[cfg(test)]
mod tests;
