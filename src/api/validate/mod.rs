//! What a schema cannot say. Every function lists all faults of one object by field path.
//!
//! Called after the schema's own checks, so types are right; what is absent is simply absent. One file for each kind;
//! `runtime` and `mounts` are for what tasks and plugins share; here is what several need.
mod allocation;
mod attributes;
mod claim;
mod labels;
mod mounts;
mod plugin;
mod runtime;
mod schedule;
mod snapshot;
mod volume;

pub use allocation::allocation;
pub use attributes::attributes;
pub use claim::claim;
use labels::template_labels;
pub use labels::{is_qualified, labels};
pub use plugin::plugin;
pub use schedule::schedule;
pub use snapshot::snapshot;
pub use volume::{class, volume};

use std::fmt::Write;

use serde_json::Value;

#[cfg(test)]
use super::field::FieldError;
use super::field::{Cause, FieldErrors};
use super::quantity;

/// The longest path that a Unix socket may have, in bytes.
pub const SOCKET_PATH_MAX: usize = 107;
/// CSI's bound for a string, in bytes (CO-GEN-04).
pub const CSI_STRING_MAX: usize = 128;
/// CSI's bound for a map, keys and values together, in bytes (CO-GEN-04, A-36).
pub const CSI_MAP_MAX: usize = 4096;

/// Lower case words joined by dots and dashes, as DNS names are and names of objects must be.
pub fn is_subdomain(name: &str, longest: usize) -> bool {
    let part = |part: &str| {
        let ok = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        !part.is_empty() && part.bytes().all(ok) && !part.starts_with('-') && !part.ends_with('-')
    };
    name.len() <= longest && name.split('.').all(part)
}

fn access_modes(faults: &mut FieldErrors, modes: &Value) {
    if list(modes).next().is_none() {
        faults.required("spec.accessModes", "needs at least one, such as SingleNodeWriter");
    }
}

/// Options for mount(8). What stands there already is left, so that the object can be changed otherwise.
fn mount_options(faults: &mut FieldErrors, path: &str, options: &Value, before: &Value) {
    for (i, option) in list(options).enumerate().filter(|_| options != before) {
        if text(option).is_empty() || text(option).chars().any(|c| c.is_control() || c == ' ') {
            let message = format!("{:?} is no mount option; write one such as noatime", text(option));
            faults.invalid(format!("{path}[{i}]"), message);
        }
    }
    if list(options).map(|o| text(o).len()).sum::<usize>() > CSI_MAP_MAX {
        faults.add(path, Cause::TooLong, format!("CSI allows {CSI_MAP_MAX} bytes in all"));
    }
}

fn fs_type(faults: &mut FieldErrors, path: &str, value: &Value) {
    let length = text(value).len();
    if length > CSI_STRING_MAX {
        faults.add(path, Cause::TooLong, format!("has {length} bytes; CSI allows {CSI_STRING_MAX}"));
    } else if text(value).chars().any(|c| c.is_control() || c.is_whitespace() || c == '/') {
        faults.invalid(path, format!("{:?} is no file system; write one such as ext4", text(value)));
    }
}

fn map_size(faults: &mut FieldErrors, path: &str, map: &Value) {
    let bytes: usize = entries(map).map(|(k, v)| k.len() + text(v).len()).sum();
    if bytes > CSI_MAP_MAX {
        faults.add(path, Cause::TooLong, format!("has {bytes} bytes; CSI allows {CSI_MAP_MAX} in all"));
    }
}

fn check_duration(faults: &mut FieldErrors, path: &str, value: &Value) {
    if !value.is_null() && quantity::duration(text(value)).is_none() {
        faults.invalid(path, format!("\"{}\" is not a duration; write 30s, 2m or 500ms", text(value)));
    }
}

fn one_of(faults: &mut FieldErrors, path: &str, value: &Value, keys: &[&str], needed: bool) {
    let given = keys.iter().filter(|key| !value[**key].is_null()).count();
    if given > 1 || (needed && given == 0) {
        let mut choice = String::new();
        for key in keys {
            let _ = write!(choice, "{}{key}", if choice.is_empty() { "" } else { ", " });
        }
        faults.invalid(path, format!("needs exactly one of {choice}"));
    }
}

/// That no two are the same is said by the schema, of which the name is the key.
fn names(faults: &mut FieldErrors, path: &str, values: &Value) {
    for (i, value) in list(values).enumerate() {
        let name = text(&value["name"]);
        let label = name.len() <= 63
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if name.is_empty() || !label || name.starts_with('-') || name.ends_with('-') {
            faults.invalid(
                format!("{path}[{i}].name"),
                format!("\"{name}\" must be 1 to 63 lower-case letters, digits or inner dashes"),
            );
        }
    }
}

fn unchanged(faults: &mut FieldErrors, old: &Value, new: &Value, fields: &[&str], advice: &str) {
    for field in fields {
        if old["spec"][*field] != new["spec"][*field] {
            faults.forbidden(format!("spec.{field}"), format!("cannot change; {advice}"));
        }
    }
}

/// The name of another object, which need not be there yet, but must be one that can be.
fn reference(faults: &mut FieldErrors, path: &str, value: &Value) {
    let name = text(value);
    if !name.is_empty() && !is_subdomain(name, 253) {
        let message = format!(
            "\"{name}\" cannot be the name of an object: a to z, 0 to 9, '-' and '.', at most 253 characters"
        );
        faults.invalid(path, message);
    }
}

fn required(faults: &mut FieldErrors, path: &str, value: &Value) {
    if text(value).is_empty() {
        faults.required(path, "is needed");
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

#[cfg(test)]
fn paths(faults: &[FieldError]) -> Vec<&str> {
    faults.iter().map(|f| f.path.as_str()).collect()
}
