//! Faults of what is written on an object: its labels and annotations.
use serde_json::Value;

use super::super::field::{Cause, FieldErrors};
use super::{entries, is_subdomain, text};

/// The most bytes of all annotations together.
const MAX_ANNOTATIONS: usize = 256 << 10;

/// Faults of the labels and annotations in the metadata at this path.
pub fn labels(faults: &mut FieldErrors, path: &str, metadata: &Value) {
    for (key, value) in entries(&metadata["labels"]) {
        let value = text(value);
        if !is_qualified(key) {
            let message =
                format!("Invalid value: \"{}\": a label key is PREFIX/NAME or NAME", key.escape_debug());
            faults.invalid(format!("{path}.labels"), message);
        }
        if !value.is_empty() && !is_word(value) {
            let message = format!(
                "Invalid value: \"{}\": a label value has at most 63 alphanumeric characters, '-', '_' or '.', and \
                 starts and ends with an alphanumeric one",
                value.escape_debug()
            );
            faults.invalid(format!("{path}.labels.{key}"), message);
        }
    }
    let mut size = 0;
    for (key, value) in entries(&metadata["annotations"]) {
        size += key.len() + text(value).len();
        if !is_qualified(&key.to_lowercase()) {
            let message = format!(
                "Invalid value: \"{}\": an annotation key is PREFIX/NAME or NAME",
                key.escape_debug()
            );
            faults.invalid(format!("{path}.annotations"), message);
        }
    }
    if size > MAX_ANNOTATIONS {
        let message = format!("Too long: may not be more than {MAX_ANNOTATIONS} bytes");
        faults.add(format!("{path}.annotations"), Cause::TooLong, message);
    }
}

/// Faults of the labels and annotations of what is made from a template: those of Wharfline's own are given by itself.
pub(super) fn template_labels(faults: &mut FieldErrors, path: &str, metadata: &Value) {
    labels(faults, path, metadata);
    for field in ["labels", "annotations"] {
        if let Some((key, _)) = entries(&metadata[field]).find(|(key, _)| key.starts_with("wharfline.dev/")) {
            let message = format!("\"{key}\" is given by Wharfline itself; leave it out");
            faults.invalid(format!("{path}.{field}"), message);
        }
    }
}

/// `NAME` or `DOMAIN/NAME`.
pub fn is_qualified(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => is_subdomain(prefix, 253) && is_word(name),
        None => is_word(key),
    }
}

fn is_word(word: &str) -> bool {
    let ends = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_alphanumeric());
    word.len() <= 63
        && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        && ends(word.bytes().next())
        && ends(word.bytes().last())
}
