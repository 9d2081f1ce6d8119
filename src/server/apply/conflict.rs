//! Fields that another manager has and an applier would change, in the words of Kubernetes.
use std::collections::BTreeMap;

use http::StatusCode;

use super::fields::FieldSet;
use super::managers::{Held, Operation, Who};
use crate::server::status::{Refusal, StatusCause};

/// What the others have of what would change, per manager.
#[derive(Debug)]
pub(super) struct Conflicts {
    of: Vec<(Who, FieldSet)>,
}

impl Conflicts {
    /// What these managers have of these fields.
    pub(super) fn of<'a>(managers: impl Iterator<Item = (&'a Who, &'a Held)>, written: &FieldSet) -> Self {
        let conflict = |(who, held): (&Who, &Held)| (who.clone(), held.fields.common(written));
        Self { of: managers.map(conflict).filter(|(_, fields)| !fields.is_empty()).collect() }
    }

    /// Those that are not about these fields.
    pub(super) fn beside(self, allowed: &FieldSet) -> Self {
        let rest = |(who, mut fields): (Who, FieldSet)| {
            fields.remove(allowed);
            (who, fields)
        };
        Self { of: self.of.into_iter().map(rest).filter(|(_, fields)| !fields.is_empty()).collect() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// 409 with one cause per field.
    pub(super) fn refusal(&self, api_version: &str) -> Refusal {
        let single = |(who, fields): &(Who, FieldSet)| {
            let name = shown(who, api_version);
            fields.paths().into_iter().map(move |path| (name.clone(), path)).collect::<Vec<_>>()
        };
        let mut all: Vec<(String, String)> = self.of.iter().flat_map(single).collect();
        all.sort();
        let message = match all.as_slice() {
            [(name, path)] => format!("Apply failed with 1 conflict: conflict with {name}: {path}"),
            all => {
                let mut by_name: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
                for (name, path) in all {
                    by_name.entry(name).or_default().push(path);
                }
                let mut lines = Vec::new();
                for (name, paths) in by_name {
                    lines.push(format!("conflicts with {name}:"));
                    lines.extend(paths.into_iter().map(|path| format!("- {path}")));
                }
                format!("Apply failed with {} conflicts: {}", all.len(), lines.join("\n"))
            }
        };
        let mut refusal = Refusal::new(StatusCode::CONFLICT, "Conflict", message);
        let cause = |(name, field): (String, String)| StatusCause {
            reason: "FieldManagerConflict",
            message: format!("conflict with {name}"),
            field,
        };
        refusal.details.causes = all.into_iter().map(cause).collect();
        refusal
    }
}

/// A manager as messages name it.
fn shown(who: &Who, api_version: &str) -> String {
    let mut text = format!("{:?}", who.manager);
    if !who.subresource.is_empty() {
        text = format!("{text} with subresource {:?}", who.subresource);
    }
    match who.operation {
        Operation::Apply => text,
        Operation::Update => format!("{text} using {api_version}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Conflicts;
    use crate::server::apply::fields::FieldSet;
    use crate::server::apply::managers::{Held, Operation, Who};

    fn entry(operation: Operation, manager: &str, subresource: &str) -> (Who, Held) {
        let fields = json!({ "f:spec": { "f:a": {}, "f:b": {} }, "f:status": { "f:c": {} } });
        let who = Who { operation, manager: manager.to_owned(), subresource: subresource.to_owned() };
        (who, Held { time: None, fields: FieldSet::read(&fields).unwrap() })
    }

    #[test]
    fn conflicts_are_told_in_the_words_of_kubernetes() {
        let applier = entry(Operation::Apply, "other", "");
        let updater = entry(Operation::Update, "kubectl-edit", "");
        let status = entry(Operation::Update, "node", "status");
        let said = |entries: &[&(Who, Held)], written: serde_json::Value| {
            let written = FieldSet::read(&written).unwrap();
            Conflicts::of(entries.iter().map(|(who, held)| (who, held)), &written).refusal("test.dev/v1")
        };
        let one = said(&[&updater], json!({ "f:spec": { "f:a": {} } }));
        assert_eq!(
            one.message,
            "Apply failed with 1 conflict: conflict with \"kubectl-edit\" using test.dev/v1: .spec.a"
        );
        assert_eq!((one.code.as_u16(), one.reason), (409, "Conflict"));
        assert_eq!(one.details.causes[0].reason, "FieldManagerConflict");
        assert_eq!(one.details.causes[0].message, "conflict with \"kubectl-edit\" using test.dev/v1");
        assert_eq!(one.details.causes[0].field, ".spec.a");
        let one = said(&[&status], json!({ "f:status": { "f:c": {} } }));
        assert!(one.message.ends_with("\"node\" with subresource \"status\" using test.dev/v1: .status.c"));
        let both = json!({ "f:spec": { "f:a": {}, "f:b": {}, "f:x": {} } });
        assert_eq!(
            said(&[&updater, &applier], both).message,
            "Apply failed with 4 conflicts: conflicts with \"kubectl-edit\" using test.dev/v1:\n- .spec.a\n- .spec.b\n\
             conflicts with \"other\":\n- .spec.a\n- .spec.b"
        );
    }

    #[test]
    fn what_is_allowed_is_no_conflict() {
        let (who, held) = entry(Operation::Update, "kubectl-client-side-apply", "");
        let all = held.fields.clone();
        let some = FieldSet::read(&json!({ "f:spec": { "f:a": {}, "f:b": {} } })).unwrap();
        assert!(!Conflicts::of([(&who, &held)].into_iter(), &all).beside(&some).is_empty());
        assert!(Conflicts::of([(&who, &held)].into_iter(), &some).beside(&all).is_empty());
    }
}
