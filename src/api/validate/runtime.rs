//! Faults of how a task or an instance of a plugin is run.
use serde_json::Value;

use super::super::field::{Cause, FieldErrors};
use super::{SOCKET_PATH_MAX, list, not_yet, one_of, text};

pub(super) fn runtime(faults: &mut FieldErrors, path: &str, runtime: &Value) {
    one_of(faults, path, runtime, &["process", "external", "oci", "containerd", "systemd"], true);
    for kind in ["oci", "containerd", "systemd"] {
        if runtime[kind].is_object() {
            not_yet(faults, &format!("{path}.{kind}"), "This runtime");
        }
    }
    if runtime["process"].is_object()
        && list(&runtime["process"]["command"]).next().is_none_or(|c| text(c).is_empty())
    {
        faults.required(format!("{path}.process.command"), "needs at least the program to run");
    }
    if runtime["external"].is_object() {
        socket(faults, &format!("{path}.external.socket"), text(&runtime["external"]["socket"]));
    }
}

fn socket(faults: &mut FieldErrors, path: &str, socket: &str) {
    if socket.contains("://") {
        faults.invalid(path, "must be a plain path of a Unix socket; other transports are not part of CSI");
    } else if !socket.starts_with('/') {
        faults.invalid(path, "must be an absolute path");
    } else if socket.len() > SOCKET_PATH_MAX {
        let message = format!("has {} bytes; a Unix socket's path may have {SOCKET_PATH_MAX}", socket.len());
        faults.add(path, Cause::TooLong, message);
    }
}
