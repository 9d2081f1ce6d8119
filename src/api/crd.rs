//! A kind as a CustomResourceDefinition, and as YAML that people can read: what `crds/` is made of.
//!
//! A Kubernetes API server that has these serves the same kinds with the same tables and field selectors. It checks what
//! the schema says; what our own admission checks beyond that is not in them.
use serde_json::{Map, Value, json};

use super::kind::{Cell, Column, KindDefinition};

/// The whole CustomResourceDefinition of one kind.
pub fn manifest(kind: &KindDefinition) -> Value {
    let columns: Vec<Value> = kind.columns.iter().map(printer_column).chain([age()]).collect();
    let mut version = json!({
        "name": kind.version,
        "served": true,
        "storage": true,
        "schema": { "openAPIV3Schema": kind.schema },
        "additionalPrinterColumns": columns,
    });
    if kind.has_status {
        version["subresources"] = json!({ "status": {} });
    }
    if !kind.selectable.is_empty() {
        let paths: Vec<Value> =
            kind.selectable.iter().map(|path| json!({ "jsonPath": format!(".{path}") })).collect();
        version["selectableFields"] = json!(paths);
    }
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": file_stem(kind) },
        "spec": {
            "group": kind.group,
            "names": {
                "kind": kind.kind,
                "listKind": format!("{}List", kind.kind),
                "plural": kind.plural,
                "singular": kind.singular,
                "shortNames": kind.short_names,
            },
            "scope": if kind.namespaced { "Namespaced" } else { "Cluster" },
            "versions": [version],
        },
    })
}

/// The name of the definition, and of its file without `.yaml`: `<plural>.<group>`.
pub fn file_stem(kind: &KindDefinition) -> String {
    format!("{}.{}", kind.plural, kind.group)
}

fn printer_column(column: &Column) -> Value {
    let (Cell::Path(path) | Cell::Computed(path, _)) = column.cell;
    let mut out = json!({ "name": column.name, "type": column.kind, "jsonPath": path });
    if column.wide {
        out["priority"] = json!(1);
    }
    out
}

/// Kubernetes leaves the age out as soon as there is any other column.
fn age() -> Value {
    json!({ "name": "AGE", "type": "date", "jsonPath": ".metadata.creationTimestamp" })
}

/// The value as YAML: block style, keys in alphabetical order, so that equal values give equal text.
pub fn yaml(value: &Value) -> String {
    let mut out = String::new();
    block(&mut out, value, 0);
    out
}

/// Writes a mapping or a list, each entry on a line of its own; the cursor is at the start of a line.
fn block(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(map) => {
            for (i, (key, value)) in sorted(map).into_iter().enumerate() {
                if i > 0 || at_line_start(out) {
                    out.push_str(&" ".repeat(indent));
                }
                out.push_str(&scalar(key));
                out.push(':');
                entry(out, value, indent);
            }
        }
        Value::Array(items) => {
            for item in items {
                out.push_str(&" ".repeat(indent));
                out.push('-');
                match item {
                    Value::Object(map) if !map.is_empty() => {
                        out.push(' ');
                        block(out, item, indent + 2);
                    }
                    Value::Array(inner) if !inner.is_empty() => {
                        out.push('\n');
                        block(out, item, indent + 2);
                    }
                    _ => entry(out, item, indent),
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => entry(out, value, indent),
    }
}

/// Writes what follows a `key:` or a `-`, to the end of its line or as a block beneath it.
fn entry(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            out.push('\n');
            block(out, value, indent + 2);
        }
        // A list stands under its key without further indent.
        Value::Array(items) if !items.is_empty() => {
            out.push('\n');
            block(out, value, indent);
        }
        Value::String(text) if text.contains('\n') && literal(text) => {
            out.push_str(" |-\n");
            for line in text.lines() {
                let pad = if line.is_empty() { 0 } else { indent + 2 };
                out.push_str(&" ".repeat(pad));
                out.push_str(line);
                out.push('\n');
            }
        }
        Value::String(text) => {
            out.push(' ');
            out.push_str(&scalar(text));
            out.push('\n');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) | Value::Array(_) => {
            out.push(' ');
            out.push_str(&value.to_string()); // `{}`, `[]`, numbers and words are the same in JSON
            out.push('\n');
        }
    }
}

fn at_line_start(out: &str) -> bool {
    out.is_empty() || out.ends_with('\n')
}

fn sorted(map: &Map<String, Value>) -> Vec<(&String, &Value)> {
    let mut entries: Vec<_> = map.iter().collect();
    entries.sort_by_key(|(key, _)| *key);
    entries
}

/// Whether a text of several lines may stand as it is beneath `|-`.
fn literal(text: &str) -> bool {
    !text.ends_with('\n')
        && !text.starts_with([' ', '\n'])
        && text.chars().all(|c| c == '\n' || !c.is_control())
}

/// A string on one line: bare where no reader of YAML could take it for anything else, else quoted as in JSON.
fn scalar(text: &str) -> String {
    if bare(text) { text.to_owned() } else { Value::from(text).to_string() }
}

fn bare(text: &str) -> bool {
    // Booleans and nulls of YAML 1.1 and 1.2, in any case.
    const WORDS: &[&str] = &["y", "n", "yes", "no", "on", "off", "true", "false", "null", ".inf", ".nan"];
    let word = text.strip_prefix('.').unwrap_or(text);
    let inside = |c: char| c.is_ascii_alphanumeric() || " _-./,;()'`=*|$<>+~^".contains(c);
    word.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(inside)
        && !text.ends_with(' ')
        && !WORDS.contains(&text.to_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_is_quoted_where_it_must_be() {
        let value = json!({
            "b": ["x", { "k": 1, "a": [] }, { "list": [true, "True", null] }, [["n"], 2]],
            "a": { "empty": {}, "text": "one: two", "lines": "first\n\n  second" },
            "on": "no",
            "path": ".spec.nodeName",
            "filter": ".status.conditions[?(@.type==\"Ready\")].status",
            "number": "12",
            "blank": "",
        });
        let wanted = r#"a:
  empty: {}
  lines: |-
    first

      second
  text: "one: two"
b:
- x
- a: []
  k: 1
- list:
  - true
  - "True"
  - null
-
  -
    - "n"
  - 2
blank: ""
filter: ".status.conditions[?(@.type==\"Ready\")].status"
number: "12"
"on": "no"
path: .spec.nodeName
"#;
        assert_eq!(yaml(&value), wanted);
    }
}
