//! The part of Kubernetes JSONPath that printer columns use: fields, indexes, `[*]` and equality filters.
//!
//! A path that cannot be read finds nothing; columns are compiled in and a test reads each of them.
use serde_json::Value;

/// One step of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Field(String),
    Index(usize),
    All,
    Filter { field: Vec<String>, equals: String },
}

/// Everything that the path finds in `root`, in order.
pub(crate) fn find<'a>(root: &'a Value, path: &str) -> Vec<&'a Value> {
    let Some(steps) = parse(path) else { return Vec::new() };
    steps.iter().fold(vec![root], |found, step| found.into_iter().flat_map(|at| follow(at, step)).collect())
}

fn follow<'a>(at: &'a Value, step: &Step) -> Vec<&'a Value> {
    match step {
        Step::Field(name) => at.get(name).into_iter().collect(),
        Step::Index(index) => at.get(*index).into_iter().collect(),
        Step::All => match at {
            Value::Array(items) => items.iter().collect(),
            Value::Object(fields) => fields.values().collect(),
            _ => Vec::new(),
        },
        Step::Filter { field, equals } => {
            let matches = |item: &&Value| {
                let found = field.iter().try_fold(*item, |at, name| at.get(name));
                found.is_some_and(|value| {
                    value.as_str().map_or_else(|| value.to_string(), str::to_owned) == *equals
                })
            };
            at.as_array().map(|items| items.iter().filter(matches).collect()).unwrap_or_default()
        }
    }
}

fn parse(path: &str) -> Option<Vec<Step>> {
    let mut rest = path.trim().trim_start_matches('{').trim_end_matches('}').trim_start_matches('$');
    let mut steps = Vec::new();
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix('[') {
            let end = closing(inner)?;
            steps.push(bracket(&inner[..end])?);
            rest = &inner[end + 1..];
        } else {
            let (name, after) = field(rest.strip_prefix('.').unwrap_or(rest))?;
            steps.push(if name == "*" { Step::All } else { Step::Field(name) });
            rest = after;
        }
    }
    Some(steps)
}

/// A field name, where `\.` stands for a dot.
fn field(text: &str) -> Option<(String, &str)> {
    let mut name = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => name.push(chars.next()?.1),
            '.' | '[' => return (!name.is_empty()).then(|| (name, &text[at..])),
            _ => name.push(c),
        }
    }
    (!name.is_empty()).then_some((name, ""))
}

fn closing(inner: &str) -> Option<usize> {
    let mut quote = None;
    for (at, c) in inner.char_indices() {
        match (quote, c) {
            (None, ']') => return Some(at),
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), _) if open == c => quote = None,
            _ => {}
        }
    }
    None
}

fn bracket(inner: &str) -> Option<Step> {
    if inner == "*" {
        return Some(Step::All);
    }
    if let Some(name) = unquoted(inner) {
        return Some(Step::Field(name.to_owned()));
    }
    if let Some(filter) = inner.strip_prefix("?(").and_then(|text| text.strip_suffix(')')) {
        let (left, right) = filter.split_once("==")?;
        let field = left.trim().strip_prefix("@.")?.split('.').map(str::to_owned).collect();
        let right = right.trim();
        return Some(Step::Filter { field, equals: unquoted(right).unwrap_or(right).to_owned() });
    }
    inner.parse().ok().map(Step::Index)
}

fn unquoted(text: &str) -> Option<&str> {
    ['"', '\''].into_iter().find_map(|q| text.strip_prefix(q)?.strip_suffix(q))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::find;

    #[test]
    fn paths_of_printer_columns_find_their_values() {
        let object = json!({
            "metadata": { "labels": { "a.b/c": "dotted" } },
            "spec": { "modes": ["RWO", "ROX"], "nodeName": "n1" },
            "status": { "conditions": [
                { "type": "Placed", "status": "True" }, { "type": "Ready", "status": "False" }
            ] }
        });
        for (path, expected) in [
            (".spec.nodeName", json!(["n1"])),
            ("{.spec.modes[*]}", json!(["RWO", "ROX"])),
            (".spec.modes[1]", json!(["ROX"])),
            (".status.conditions[?(@.type==\"Ready\")].status", json!(["False"])),
            (".status.conditions[?(@.type=='Placed')].status", json!(["True"])),
            (".metadata.labels.a\\.b/c", json!(["dotted"])),
            (".metadata.labels['a.b/c']", json!(["dotted"])),
            (".status.missing", json!([])),
            (".status.conditions[", json!([])),
        ] {
            assert_eq!(json!(find(&object, path)), expected, "{path}");
        }
    }
}
