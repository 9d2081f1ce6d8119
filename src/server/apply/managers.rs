//! `metadata.managedFields` as values: who has which fields of an object, since when, and by what kind of write.
use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::fields::FieldSet;

/// How many entries of ordinary writes there may be; the oldest become one.
const MOST_UPDATES: usize = 10;
/// The manager of what the oldest writes have in common.
const ANCIENT: &str = "ancient-changes";

/// The kind of write that an entry comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Operation {
    /// Applied: what is left out next time goes.
    Apply,
    /// Created, replaced or patched.
    Update,
}

impl Operation {
    fn as_str(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

/// Who an entry belongs to: one manager has one entry per operation and subresource.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Who {
    pub(super) operation: Operation,
    /// The name that the client gave.
    pub(super) manager: String,
    /// `status`, or nothing.
    pub(super) subresource: String,
}

/// What a manager has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Held {
    /// Since when; none where a client wrote an entry without it.
    pub(super) time: Option<String>,
    pub(super) fields: FieldSet,
}

/// All entries of an object, of the one version that its kind has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Managers {
    entries: BTreeMap<Who, Held>,
}

impl Managers {
    /// Reads `metadata.managedFields`; nothing if they cannot be read. Entries of another version are left out: what
    /// they name may not be there in ours.
    pub(super) fn read(list: &Value, api_version: &str) -> Option<Self> {
        let mut managers = Self::default();
        for entry in list.as_array().into_iter().flatten() {
            let text = |field: &str| entry.get(field).and_then(Value::as_str).unwrap_or_default();
            let operation = match text("operation") {
                "Apply" => Operation::Apply,
                "Update" => Operation::Update,
                _ => return None,
            };
            if text("fieldsType") != "FieldsV1" {
                return None;
            }
            let fields = FieldSet::read(entry.get("fieldsV1")?)?;
            let (manager, subresource) = (text("manager").to_owned(), text("subresource").to_owned());
            let time = Some(text("time")).filter(|time| time.parse::<Timestamp>().is_ok()).map(str::to_owned);
            if text("apiVersion") == api_version {
                managers.put(Who { operation, manager, subresource }, Held { time, fields });
            }
        }
        Some(managers)
    }

    /// As `metadata.managedFields`, in the order of Kubernetes: by operation, time and name.
    pub(super) fn write(self, api_version: &str) -> Value {
        let mut entries: Vec<(Who, Held)> = self.entries.into_iter().collect();
        // Stable: of equal times the names decide, in whose order they are.
        entries.sort_by(|(a, held), (b, other)| (a.operation, &held.time).cmp(&(b.operation, &other.time)));
        let entry = |(who, held): (Who, Held)| {
            let mut entry = json!({
                "manager": who.manager, "operation": who.operation.as_str(), "apiVersion": api_version,
                "fieldsType": "FieldsV1", "fieldsV1": held.fields.wire(),
            });
            if let Some(time) = held.time {
                entry["time"] = Value::from(time);
            }
            if !who.subresource.is_empty() {
                entry["subresource"] = Value::from(who.subresource);
            }
            entry
        };
        entries.into_iter().map(entry).collect()
    }

    /// Whether nobody has anything.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// What a manager has.
    pub(super) fn get(&self, who: &Who) -> Option<&Held> {
        self.entries.get(who)
    }

    /// Says what a manager has from now on; one who has nothing is left out.
    pub(super) fn put(&mut self, who: Who, held: Held) {
        if held.fields.is_empty() {
            self.entries.remove(&who);
        } else {
            self.entries.insert(who, held);
        }
    }

    /// What everybody but one has.
    pub(super) fn others(&self, than: &Who) -> impl Iterator<Item = (&Who, &Held)> {
        self.entries.iter().filter(move |(who, _)| *who != than)
    }

    /// Takes fields from everybody but one.
    pub(super) fn take(&mut self, fields: &FieldSet, but: Option<&Who>) {
        self.entries.retain(|who, held| {
            if Some(who) != but {
                held.fields.remove(fields);
            }
            !held.fields.is_empty()
        });
    }

    /// What anybody has.
    pub(super) fn all_fields(&self) -> FieldSet {
        let mut all = FieldSet::default();
        for held in self.entries.values() {
            all.add(&held.fields);
        }
        all
    }

    /// Makes one entry of the oldest ordinary writes, if there are too many.
    pub(super) fn cap(&mut self) {
        // What became one before stays one.
        let age = |who: &Who, held: &Held| (who.manager != ANCIENT, held.time.clone(), who.clone());
        let updates = self.entries.iter().filter(|(who, _)| who.operation == Operation::Update);
        let mut updates: Vec<_> = updates.map(|(who, held)| age(who, held)).collect();
        if updates.len() <= MOST_UPDATES {
            return;
        }
        updates.sort_unstable();
        updates.truncate(updates.len() - MOST_UPDATES + 1);
        let mut ancient = Held::default();
        for (_, time, who) in updates {
            if let Some(held) = self.entries.remove(&who) {
                ancient.fields.add(&held.fields);
                ancient.time = ancient.time.max(time);
            }
        }
        let manager = ANCIENT.to_owned();
        self.put(Who { operation: Operation::Update, manager, subresource: String::new() }, ancient);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::Managers;

    fn entry(manager: &str, operation: &str, time: &str, fields: &Value) -> Value {
        json!({
            "manager": manager, "operation": operation, "apiVersion": "v1", "time": time,
            "fieldsType": "FieldsV1", "fieldsV1": fields
        })
    }

    #[test]
    fn entries_are_read_and_written_in_order() {
        let (early, late) = ("2024-01-01T00:00:00Z", "2024-01-02T00:00:00Z");
        let fields = json!({ "f:a": {} });
        let mut status = entry("b", "Update", early, &fields);
        status["subresource"] = json!("status");
        let ordered = json!([
            entry("x", "Apply", early, &fields),
            entry("a", "Apply", late, &fields),
            entry("b", "Update", early, &fields),
            status,
            entry("a", "Update", late, &fields),
        ]);
        let mut shuffled = ordered.as_array().unwrap().clone();
        shuffled.reverse();
        let read = Managers::read(&json!(shuffled), "v1").unwrap();
        assert_eq!(read.write("v1"), ordered);
        assert!(Managers::read(&ordered, "v2").unwrap().is_empty(), "of another version");
        assert!(Managers::read(&Value::Null, "v1").unwrap().is_empty());
    }

    #[test]
    fn what_cannot_be_read_is_not_taken_in_parts() {
        let good = entry("a", "Apply", "2024-01-01T00:00:00Z", &json!({ "f:a": {} }));
        for (field, bad) in [
            ("operation", json!("Delete")),
            ("operation", Value::Null),
            ("fieldsType", json!("FieldsV2")),
            ("fieldsV1", json!({ "a": {} })),
            ("fieldsV1", Value::Null),
        ] {
            let mut entry = good.clone();
            entry[field] = bad;
            assert!(Managers::read(&json!([good, entry]), "v1").is_none(), "{field}");
        }
    }

    #[test]
    fn the_oldest_updates_become_one_entry() {
        let mut entries: Vec<Value> = (1..=11)
            .map(|day| {
                let field = format!("f:{day}");
                entry(
                    &format!("m{day}"),
                    "Update",
                    &format!("2024-01-{day:02}T00:00:00Z"),
                    &json!({ field: {} }),
                )
            })
            .collect();
        entries.push(entry("applier", "Apply", "2023-01-01T00:00:00Z", &json!({ "f:x": {} })));
        let mut managers = Managers::read(&json!(entries[1..]), "v1").unwrap();
        let before = managers.clone();
        managers.cap();
        assert_eq!(managers, before, "ten may be there");
        let mut managers = Managers::read(&json!(entries), "v1").unwrap();
        managers.cap();
        let written = managers.write("v1");
        let names: Vec<&str> =
            written.as_array().unwrap().iter().map(|e| e["manager"].as_str().unwrap()).collect();
        assert_eq!(
            names,
            ["applier", "ancient-changes", "m3", "m4", "m5", "m6", "m7", "m8", "m9", "m10", "m11"]
        );
        assert_eq!(written[1]["fieldsV1"], json!({ "f:1": {}, "f:2": {} }));
        assert_eq!(written[1]["time"], "2024-01-02T00:00:00Z");
    }
}
