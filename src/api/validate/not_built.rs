//! The one gate before what is known and checked, but carried out by nothing yet.
use serde_json::Value;

use super::super::field::FieldErrors;
use super::{list, not_yet};

/// Fields of a task and of an instance of a plugin that are refused once their shape was checked, and what each would be.
/// Whoever builds one takes its line out; nothing else has to change.
const NOT_BUILT: &[(&str, &str)] = &[("runtime.containerd", "This runtime")];

/// Refuses what of `of`, a task or an instance of a plugin, is not built. One fault of a field is enough.
pub(super) fn refuse_not_built(faults: &mut FieldErrors, path: &str, of: &Value) {
    for (field, what) in NOT_BUILT {
        let parts: Vec<_> = field.split('.').collect();
        for at in given(path.to_owned(), of, &parts) {
            if !faults.has(&at) {
                not_yet(faults, &at, what);
            }
        }
    }
}

/// The paths at which a field says something; `name[]` is every element of a list.
fn given(path: String, value: &Value, parts: &[&str]) -> Vec<String> {
    let Some((part, rest)) = parts.split_first() else {
        return if says_something(value) { vec![path] } else { Vec::new() };
    };
    match part.strip_suffix("[]") {
        Some(name) => {
            let items = list(&value[name]).enumerate();
            items.flat_map(|(i, item)| given(format!("{path}.{name}[{i}]"), item, rest)).collect()
        }
        None => given(format!("{path}.{part}"), &value[*part], rest),
    }
}

fn says_something(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(word) => *word,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Number(_) | Value::Object(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{NOT_SUPPORTED_YET, allocation, paths};
    use super::*;

    /// Obligation CO-PLUG-11.
    #[test]
    fn every_line_of_the_table_refuses_its_field_alone() {
        let task = json!({ "name": "t",
            "runtime": { "containerd": {} } });
        let mut faults = FieldErrors::new();
        refuse_not_built(&mut faults, "at", &task);
        let faults = faults.into_vec();
        let wanted: Vec<_> = NOT_BUILT.iter().map(|(field, _)| format!("at.{field}")).collect();
        assert_eq!(paths(&faults), wanted);
        assert!(faults.iter().all(|fault| fault.message.contains(NOT_SUPPORTED_YET)), "{faults:?}");
    }

    #[test]
    fn what_is_misshapen_is_told_once() {
        let task = json!({ "name": "t", "runtime": { "process": { "command": ["x"], "user": "a b" } } });
        let faults = allocation(&json!({ "spec": { "tasks": [task] } }), None);
        assert_eq!(paths(&faults), ["spec.tasks[0].runtime.process.user"]);
        assert!(!faults[0].message.contains(NOT_SUPPORTED_YET), "{faults:?}");
    }

    #[test]
    fn what_says_nothing_is_not_refused() {
        let task = json!({ "name": "t",
            "runtime": { "process": { "command": ["x"], "user": "", "groups": [], "capabilities": null } },
            "volumeMounts": [{ "name": "v", "mountPath": "/v", "subPath": "" }] });
        let object = json!({ "spec": { "volumes": [{ "name": "v", "claimName": "c" }], "tasks": [task] } });
        assert_eq!(allocation(&object, None), []);
    }
}
