//! `crds/` is what the kinds in `src/api` say, can be read by any YAML reader, and holds on a Kubernetes API server.
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};
use wharfline::api::crd::{file_stem, manifest, yaml};
use wharfline::api::definitions;
use wharfline::api::kind::Cell;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("crds")
}

/// File name to text, as the kinds say.
fn wanted() -> BTreeMap<String, String> {
    let head = "# Written by `make crds` from src/api; not by hand.\n";
    definitions()
        .iter()
        .map(|kind| (format!("{}.yaml", file_stem(kind)), format!("{head}{}", yaml(&manifest(kind)))))
        .collect()
}

/// File name to text, as the folder has it.
fn seen() -> BTreeMap<String, String> {
    let Ok(entries) = fs::read_dir(folder()) else { return BTreeMap::new() };
    let read = |path: PathBuf| {
        let name = path.file_name().expect("an entry has a name").to_string_lossy().into_owned();
        (name, fs::read_to_string(&path).expect("crds/ holds text"))
    };
    entries.map(|entry| read(entry.expect("crds/ can be read").path())).collect()
}

#[test]
fn the_folder_is_what_the_kinds_say() {
    let wanted = wanted();
    if std::env::var_os("UPDATE_CRDS").is_some() {
        fs::create_dir_all(folder()).expect("crds/ can be made");
        for name in seen().keys().filter(|name| !wanted.contains_key(*name)) {
            fs::remove_file(folder().join(name)).expect("a stale file can be removed");
        }
        for (name, text) in &wanted {
            fs::write(folder().join(name), text).expect("crds/ can be written");
        }
    }
    let seen = seen();
    let names = wanted.keys().chain(seen.keys()).collect::<std::collections::BTreeSet<_>>();
    let differ: Vec<_> = names.into_iter().filter(|name| wanted.get(*name) != seen.get(*name)).collect();
    assert!(differ.is_empty(), "crds/ is not what src/api says: {differ:?}\nrun: make crds");
}

#[test]
fn a_yaml_reader_reads_what_was_meant() {
    for kind in definitions() {
        let value = manifest(&kind);
        let text = yaml(&value);
        let read: Value = serde_saphyr::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", kind.kind));
        assert_eq!(read, value, "{}", kind.kind);
        assert_eq!(text, yaml(&manifest(&kind)), "{}: the same again", kind.kind);
    }
}

#[test]
fn kubernetes_own_type_keeps_every_field() {
    for kind in definitions() {
        let value = manifest(&kind);
        let typed: CustomResourceDefinition =
            serde_json::from_value(value.clone()).unwrap_or_else(|e| panic!("{}: {e}", kind.kind));
        assert_eq!(serde_json::to_value(typed).expect("it came from JSON"), value, "{}", kind.kind);
    }
}

/// Every schema in a schema, itself included, with its path.
fn each(schema: &Value, path: &str, visit: &mut dyn FnMut(&str, &Value)) {
    visit(path, schema);
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        each(property, &format!("{path}.{name}"), visit);
    }
    for inner in ["items", "additionalProperties"] {
        if schema[inner].is_object() {
            each(&schema[inner], &format!("{path}[]"), visit);
        }
    }
}

/// The schema at a plain path such as `.spec.nodeName`, if there is one.
fn at<'a>(schema: &'a Value, path: &str) -> Option<&'a Value> {
    path.trim_start_matches('.').split('.').try_fold(schema, |schema, name| schema["properties"].get(name))
}

#[test]
fn no_name_or_value_is_a_boolean_word() {
    // The truth of a condition is of the Kubernetes shape, and no person writes it.
    let truth = json!(["True", "False", "Unknown"]);
    let boolean = |word: &str| {
        ["y", "n", "yes", "no", "on", "off", "true", "false"].contains(&word.to_lowercase().as_str())
    };
    let mut values = 0;
    for kind in definitions() {
        each(&kind.schema, "", &mut |path, schema| {
            let name = path.rsplit('.').next().unwrap_or_default();
            assert!(!boolean(name), "{}{path}", kind.kind);
            for value in schema["enum"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                values += 1;
                let condition = schema["enum"] == truth && path.starts_with(".status") && name == "status";
                assert!(condition || !boolean(value), "{}{path}: {value}", kind.kind);
            }
        });
    }
    assert!(values > 50, "only {values} enum values were seen");
}

/// What a Kubernetes API server demands of a structural schema and would refuse the definition for.
#[test]
fn the_schemas_are_structural() {
    for kind in definitions() {
        each(&kind.schema, "", &mut |path, schema| {
            let place = format!("{}{path}", kind.kind);
            assert!(schema["type"].is_string(), "{place} has no type: {schema}");
            for word in ["$ref", "definitions", "oneOf", "anyOf", "allOf", "not", "const", "$schema"] {
                assert!(schema.get(word).is_none(), "{place} has {word}");
            }
            let both = schema.get("properties").is_some() && schema.get("additionalProperties").is_some();
            assert!(!both, "{place} has fixed and free fields");
            assert_eq!(schema["type"] == "array", schema.get("items").is_some(), "{place}");
        });
    }
}

#[test]
fn columns_and_selectors_name_fields_that_exist() {
    for kind in definitions() {
        for path in kind.selectable {
            let schema = at(&kind.schema, path).unwrap_or_else(|| panic!("{}: no field {path}", kind.kind));
            assert!(matches!(schema["type"].as_str(), Some("string" | "integer" | "boolean")), "{path}");
        }
        for column in kind.columns {
            let (Cell::Path(path) | Cell::Computed(path, _)) = column.cell;
            let plain = path.split(['[', ']']).next().unwrap_or_default();
            assert!(at(&kind.schema, plain).is_some(), "{} {}: no field {plain}", kind.kind, column.name);
        }
    }
}
