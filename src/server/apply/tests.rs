//! Tables of owners through applies and ordinary writes.
mod histories;

use serde_json::{Value, json};

use super::{Config, Ground, Part, Rule, Writer, apply, settle, track};
use crate::server::path::Path;
use crate::server::schema;
use crate::server::status::Refusal;

/// A kind with one list of every type.
pub(super) fn rule() -> Rule {
    let text = json!({ "type": "string" });
    let texts = json!({ "type": "object", "additionalProperties": text });
    Rule::read(&json!({ "type": "object", "properties": {
        "apiVersion": text, "kind": text, "metadata": crate::server::meta::SCHEMA.clone(),
        "spec": { "type": "object", "properties": {
            "plugin": text,
            "count": { "type": "integer", "default": 1 },
            "map": texts,
            "ref": { "type": "object", "additionalProperties": text, "x-kubernetes-map-type": "atomic" },
            "atoms": { "type": "array", "items": { "type": "object", "properties": {
                "x": text, "mode": { "type": "string", "default": "Block" }
            } } },
            "set": { "type": "array", "items": text, "x-kubernetes-list-type": "set" },
            "tasks": {
                "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": { "type": "object", "properties": { "name": text, "image": text, "env": texts } }
            },
            "sub": { "type": "object", "properties": {
                "x": text, "y": text, "mode": { "type": "string", "default": "Block" }
            } }
        } },
        "free": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
        "status": { "type": "object", "properties": {
            "phase": text,
            "conditions": {
                "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
                "items": { "type": "object", "properties": { "type": text, "status": text } }
            }
        } }
    } }))
}

/// An object through a series of writes, each a day after the other.
struct Story {
    rule: Rule,
    object: Value,
    day: i64,
}

impl Story {
    /// Nothing is there yet.
    fn new() -> Self {
        Self { rule: rule(), object: json!({}), day: 0 }
    }

    /// Somebody made it who left no entry.
    fn untracked(spec: &Value) -> Self {
        let object = json!({ "metadata": { "name": "a", "uid": "u", "generation": 1 }, "spec": spec });
        Self { object, ..Self::new() }
    }

    fn ground(&self, part: Part) -> Ground<'_> {
        Ground {
            rule: &self.rule,
            api_version: "v1",
            part,
            has_status: true,
            finalizer: Some("test.dev/own"),
        }
    }

    fn now(&mut self) -> jiff::Timestamp {
        self.day += 1;
        format!("2024-01-{:02}T00:00:00Z", self.day).parse().unwrap()
    }

    fn applied(&mut self, part: Part, config: &Config<'_>) -> Result<(), Refusal> {
        let (now, old) = (self.now(), self.object.clone());
        let mut applied = apply(&self.ground(part), &old, config, now)?;
        let mut new = std::mem::take(&mut applied.object);
        schema::shape(&mut new, &self.rule, &Path::Root, &mut Vec::new());
        settle(&self.ground(part), &old, &mut new, (applied, now));
        self.object = new;
        Ok(())
    }

    fn apply(&mut self, manager: &str, spec: &Value) -> Result<(), Refusal> {
        self.apply_object(manager, &json!({ "metadata": { "name": "a" }, "spec": spec }))
    }

    fn apply_object(&mut self, manager: &str, object: &Value) -> Result<(), Refusal> {
        self.applied(Part::Main, &Config { object, manager, force: false })
    }

    fn force(&mut self, manager: &str, spec: &Value) {
        let object = json!({ "metadata": { "name": "a" }, "spec": spec });
        self.applied(Part::Main, &Config { object: &object, manager, force: true }).unwrap();
    }

    /// An ordinary write.
    fn write(&mut self, writer: Writer<'_>, part: Part, change: impl FnOnce(&mut Value)) {
        let (now, old) = (self.now(), self.object.clone());
        let mut new = old.clone();
        change(&mut new);
        schema::shape(&mut new, &self.rule, &Path::Root, &mut Vec::new());
        let made = old.as_object().is_some_and(serde_json::Map::is_empty);
        track(&self.ground(part), ((!made).then_some(&old), &mut new), writer, now);
        self.object = new;
    }

    fn update(&mut self, manager: &str, change: impl FnOnce(&mut Value)) {
        self.write(Writer::Manager(manager), Part::Main, change);
    }

    /// `OPERATION MANAGER [SUBRESOURCE]` and what they have.
    fn owners(&self) -> Value {
        let entries = self.object["metadata"]["managedFields"].as_array().into_iter().flatten();
        let name = |entry: &Value| {
            let words = ["operation", "manager", "subresource"]
                .map(|field| entry[field].as_str().unwrap_or_default());
            words.join(" ").trim().to_owned()
        };
        Value::Object(entries.map(|entry| (name(entry), entry["fieldsV1"].clone())).collect())
    }

    /// The day on which an entry was written.
    fn since(&self, manager: &str) -> &str {
        let entries = self.object["metadata"]["managedFields"].as_array().unwrap();
        let entry = entries.iter().find(|entry| entry["manager"] == manager).unwrap();
        entry["time"].as_str().unwrap().get(8..10).unwrap()
    }

    fn spec(&self) -> &Value {
        &self.object["spec"]
    }
}

fn spec(fields: &Value) -> Value {
    json!({ "f:spec": fields })
}

#[test]
fn what_is_applied_is_owned_and_what_is_filled_in_is_not() {
    let mut story = Story::new();
    story.apply("a", &json!({ "plugin": "p", "sub": { "x": "1" } })).unwrap();
    assert_eq!(story.spec(), &json!({ "plugin": "p", "count": 1, "sub": { "x": "1", "mode": "Block" } }));
    let fields = json!({ "f:plugin": {}, "f:sub": { "f:x": {} } });
    assert_eq!(story.owners(), json!({ "Apply a": spec(&fields) }));
    // Nobody has the default, so nobody is asked.
    story.apply("b", &json!({ "count": 2 })).unwrap();
    assert_eq!(story.spec()["count"], 2);
    assert_eq!(story.owners()["Apply b"], spec(&json!({ "f:count": {} })));
    story.apply("b", &json!({})).unwrap();
    assert_eq!(story.spec()["count"], 1, "the default is back");
    assert_eq!(story.owners()["Apply b"], spec(&json!({})), "it applies an empty spec");
    story.apply_object("b", &json!({})).unwrap();
    assert_eq!(story.owners(), json!({ "Apply a": spec(&fields) }), "who has nothing has no entry");
}

#[test]
fn what_is_the_servers_belongs_to_nobody() {
    let mut story = Story::new();
    let metadata = json!({
        "name": "a", "namespace": "n", "uid": "u", "resourceVersion": "7", "generation": 3, "selfLink": "/x",
        "creationTimestamp": "2024-01-01T00:00:00Z", "deletionTimestamp": "2024-01-01T00:00:00Z",
        "labels": { "l": "1" }, "annotations": { "n": "1" }, "finalizers": ["test.dev/own", "x.dev/y"],
        "ownerReferences": [{ "uid": "o", "name": "o", "kind": "K", "apiVersion": "v1" }]
    });
    let object = json!({ "apiVersion": "v1", "kind": "K", "metadata": metadata });
    story.apply_object("a", &object).unwrap();
    let fields = json!({
        "f:labels": { "f:l": {} }, "f:annotations": { "f:n": {} }, "f:finalizers": { "v:\"x.dev/y\"": {} },
        "f:ownerReferences": { "k:{\"uid\":\"o\"}": {} }
    });
    assert_eq!(story.owners(), json!({ "Apply a": { "f:metadata": fields } }));
    let mut story = Story::new();
    story.update("u", |new| {
        *new = json!({ "kind": "K", "metadata": { "name": "a", "finalizers": ["test.dev/own"] } });
    });
    assert_eq!(story.owners(), json!({}), "its own finalizer, and the list of it alone");
}

#[test]
fn what_is_no_longer_applied_goes_unless_another_has_it() {
    let both = json!({ "tasks": [{ "name": "t", "image": "i" }], "set": ["x"], "map": { "k": "v" } });
    let mut story = Story::new();
    story.apply("a", &both).unwrap();
    story.apply("b", &both).unwrap();
    assert_eq!(story.owners()["Apply a"], story.owners()["Apply b"], "who says the same shares it");
    story.apply("a", &json!({ "tasks": [{ "name": "t" }] })).unwrap();
    assert_eq!(story.spec()["tasks"], both["tasks"], "the other has it still");
    assert_eq!(story.spec()["set"], both["set"]);
    story.apply("b", &json!({ "tasks": [{ "name": "t", "env": { "e": "1" } }] })).unwrap();
    assert_eq!(story.spec(), &json!({ "count": 1, "tasks": [{ "name": "t", "env": { "e": "1" } }] }));
    story.apply("b", &json!({ "plugin": "p" })).unwrap();
    assert_eq!(story.spec(), &json!({ "count": 1, "plugin": "p", "tasks": [{ "name": "t" }] }));
    story.apply("a", &json!({})).unwrap();
    assert_eq!(story.spec(), &json!({ "count": 1, "plugin": "p" }));
}

#[test]
fn a_conflict_names_each_field_and_its_manager() {
    let mut story = Story::new();
    story
        .apply("a", &json!({ "plugin": "p", "map": { "k": "v" }, "set": ["x"], "atoms": [{ "x": "1" }] }))
        .unwrap();
    let before = story.object.clone();
    let refused = story.apply("b", &json!({ "plugin": "q", "map": { "k": "w" }, "atoms": [] })).unwrap_err();
    assert_eq!(
        refused.message,
        "Apply failed with 3 conflicts: conflicts with \"a\":\n- .spec.atoms\n- .spec.map.k\n- .spec.plugin"
    );
    assert_eq!(story.object, before);
    // Nothing of these is the other's.
    story
        .apply("b", &json!({ "plugin": "p", "map": { "l": "w" }, "set": ["y"], "atoms": [{ "x": "1" }] }))
        .unwrap();
    assert_eq!(story.spec()["set"], json!(["x", "y"]));
    // What both have is the business of both.
    let refused = story.apply("a", &json!({ "plugin": "q" })).unwrap_err();
    assert_eq!(refused.message, "Apply failed with 1 conflict: conflict with \"b\": .spec.plugin");
}

#[test]
fn force_takes_the_fields_in_conflict_and_no_others() {
    let mut story = Story::new();
    story.apply("a", &json!({ "plugin": "p", "tasks": [{ "name": "t", "image": "i" }] })).unwrap();
    story.force("b", &json!({ "plugin": "p", "tasks": [{ "name": "t", "image": "j" }] }));
    assert_eq!(story.spec()["tasks"][0]["image"], "j");
    let task = "k:{\"name\":\"t\"}";
    let fields = json!({ "f:plugin": {}, "f:tasks": { task: { ".": {}, "f:name": {} } } });
    assert_eq!(story.owners()["Apply a"], spec(&fields));
    story.force("b", &json!({}));
    assert_eq!(story.spec()["tasks"], json!([{ "name": "t" }]), "the other no longer has the image");
    story.force("c", &json!({ "plugin": "q", "tasks": [] }));
    story.apply("a", &json!({})).unwrap();
    assert_eq!(story.spec()["plugin"], "q");
}

#[test]
fn ordinary_writes_own_what_they_change() {
    let mut story = Story::new();
    story.update("maker", |new| {
        *new = json!({ "metadata": { "name": "a", "labels": { "l": "1" } }, "spec": { "plugin": "p", "set": ["x"] } });
    });
    let made = json!({
        "f:metadata": { "f:labels": { ".": {}, "f:l": {} } },
        "f:spec": { ".": {}, "f:plugin": {}, "f:count": {}, "f:set": { ".": {}, "v:\"x\"": {} } }
    });
    assert_eq!(story.owners(), json!({ "Update maker": made }));
    story.apply("a", &json!({ "plugin": "p", "map": { "k": "v" } })).unwrap();
    story.update("editor", |new| {
        new["spec"]["map"]["k"] = json!("w");
        new["spec"]["set"] = json!(["y"]);
    });
    assert_eq!(story.owners()["Apply a"], spec(&json!({ "f:plugin": {} })), "it lost what was changed");
    let fields = json!({ "f:map": { "f:k": {} }, "f:set": { "v:\"y\"": {} } });
    assert_eq!(story.owners()["Update editor"], spec(&fields));
    assert!(story.owners()["Update maker"]["f:spec"]["f:set"].get("v:\"x\"").is_none(), "what is gone");
    let refused = story.apply("a", &json!({ "plugin": "p", "map": { "k": "v" } })).unwrap_err();
    assert_eq!(
        refused.message,
        "Apply failed with 1 conflict: conflict with \"editor\" using v1: .spec.map.k"
    );
    // What another wrote stays when it is applied no more.
    story.apply("a", &json!({ "plugin": "p" })).unwrap();
    assert_eq!(story.spec()["map"], json!({ "k": "w" }));
    story.update("editor", |new| drop(new["spec"].as_object_mut().unwrap().remove("map")));
    assert_eq!(story.owners()["Update editor"], spec(&json!({ "f:set": { "v:\"y\"": {} } })));
}

#[test]
fn status_and_the_rest_have_managers_of_their_own() {
    let mut story = Story::new();
    let object =
        json!({ "metadata": { "name": "a" }, "spec": { "plugin": "p" }, "status": { "phase": "Up" } });
    story.apply_object("a", &object).unwrap();
    assert_eq!(story.object.get("status"), None, "the main resource does not speak of it");
    let config = Config { object: &object, manager: "a", force: false };
    story.applied(Part::Status, &config).unwrap();
    let phase = json!({ "f:status": { "f:phase": {} } });
    let expected = json!({ "Apply a": spec(&json!({ "f:plugin": {} })), "Apply a status": phase });
    assert_eq!(story.owners(), expected);
    let other = json!({ "status": { "phase": "Down" } });
    let refused = story.applied(Part::Status, &Config { object: &other, manager: "b", force: false });
    assert_eq!(
        refused.unwrap_err().message,
        "Apply failed with 1 conflict: conflict with \"a\" with subresource \"status\": .status.phase"
    );
    story.apply_object("a", &json!({})).unwrap();
    assert_eq!(story.object["status"], json!({ "phase": "Up" }), "nor does it take it away");
    story.write(Writer::Manager("node"), Part::Status, |new| new["status"]["phase"] = json!("Down"));
    assert_eq!(story.owners(), json!({ "Update node status": phase }));
}

#[test]
fn our_own_writers_take_and_have_nothing() {
    let mut story = Story::new();
    story.write(Writer::Ours, Part::Main, |new| *new = json!({ "metadata": {}, "spec": { "plugin": "p" } }));
    assert_eq!(story.owners(), json!({}), "what they make has no managers");
    story.update("editor", |new| new["spec"]["plugin"] = json!("q"));
    assert_eq!(story.owners(), json!({}), "and gets none by being changed");
    let mut story = Story::new();
    story.apply("a", &json!({ "plugin": "p", "map": { "k": "v", "l": "v" } })).unwrap();
    let before = story.object["metadata"]["managedFields"].clone();
    story.write(Writer::Ours, Part::Status, |new| new["status"] = json!({ "phase": "Up" }));
    assert_eq!(story.object["metadata"]["managedFields"], before);
    story.write(Writer::Ours, Part::Main, |new| new["spec"]["map"]["k"] = json!("w"));
    assert_eq!(
        story.owners(),
        json!({ "Apply a": spec(&json!({ "f:plugin": {}, "f:map": { "f:l": {} } })) })
    );
    story.apply("a", &json!({ "plugin": "p", "map": { "k": "v" } })).unwrap();
    assert_eq!(story.spec()["map"], json!({ "k": "v" }), "who has nothing has no conflict");
    // Somebody applied a status: then it is not passed over.
    let status = json!({ "status": { "phase": "Up" } });
    story.applied(Part::Status, &Config { object: &status, manager: "s", force: false }).unwrap();
    story.write(Writer::Ours, Part::Status, |new| new["status"]["phase"] = json!("Down"));
    assert_eq!(story.owners().get("Apply s status"), None);
}

#[test]
fn what_was_there_before_the_first_apply_has_an_owner() {
    let mut story = Story::untracked(&json!({ "plugin": "p", "count": 1 }));
    let refused = story.apply("a", &json!({ "plugin": "q" })).unwrap_err();
    assert_eq!(
        refused.message,
        "Apply failed with 1 conflict: conflict with \"before-first-apply\" using v1: .spec.plugin"
    );
    story.apply("a", &json!({ "plugin": "p" })).unwrap();
    let before = json!({ ".": {}, "f:plugin": {}, "f:count": {} });
    assert_eq!(
        story.owners(),
        json!({ "Apply a": spec(&json!({ "f:plugin": {} })), "Update before-first-apply": spec(&before) })
    );
    story.apply("a", &json!({})).unwrap();
    assert_eq!(story.spec()["plugin"], "p", "it was not the applier's alone");
}

#[test]
fn clients_may_write_managers_themselves() {
    let mut story = Story::new();
    story.apply("a", &json!({ "plugin": "p" })).unwrap();
    let stored = story.object["metadata"]["managedFields"].clone();
    for (given, kept) in
        [(Value::Null, true), (json!([{ "manager": "x" }]), true), (json!([]), false), (json!([{}]), false)]
    {
        story.object["metadata"]["managedFields"] = stored.clone();
        story.update("x", |new| new["metadata"]["managedFields"] = given.clone());
        let expected = if kept { Some(&stored) } else { None };
        assert_eq!(story.object["metadata"].get("managedFields"), expected, "{given}");
    }
    story.object["metadata"]["managedFields"] = stored.clone();
    let mut given = stored.clone();
    given[0]["manager"] = json!("b");
    story.update("x", |new| new["metadata"]["managedFields"] = given.clone());
    assert_eq!(story.object["metadata"]["managedFields"], given);
    // Not through the status.
    story.write(Writer::Manager("x"), Part::Status, |new| new["status"] = json!({ "phase": "Up" }));
    assert_eq!(story.owners()["Apply b"], spec(&json!({ "f:plugin": {} })));
    // Who replaces an object from a file without them does not lose them.
    story.update("x", |new| drop(new["metadata"].as_object_mut().unwrap().remove("managedFields")));
    assert_eq!(story.owners()["Apply b"], spec(&json!({ "f:plugin": {} })));
}

#[test]
fn a_time_moves_with_what_its_manager_does() {
    let mut story = Story::new();
    story.apply("a", &json!({ "plugin": "p", "map": { "k": "v" } })).unwrap();
    let first = story.object.clone();
    story.apply("a", &json!({ "plugin": "p", "map": { "k": "v" } })).unwrap();
    assert_eq!(story.object, first, "nothing changes");
    story.apply("b", &json!({ "plugin": "p" })).unwrap();
    assert_eq!((story.since("a"), story.since("b")), ("01", "03"));
    story.force("b", &json!({ "plugin": "q" }));
    assert_eq!((story.since("a"), story.since("b")), ("01", "04"), "what is taken moves the taker's alone");
    story.update("c", |new| new["spec"]["count"] = json!(5));
    story.update("c", |_| {});
    assert_eq!(story.since("c"), "05");
}

#[test]
fn kubectl_takes_over_what_it_applied_on_the_clients_side() {
    let note = "kubectl.kubernetes.io/last-applied-configuration";
    let last = json!({ "apiVersion": "v1", "metadata": { "name": "a" }, "spec": { "plugin": "p", "map": { "k": "v" } } });
    let mut once = Story::new();
    once.update("kubectl-client-side-apply", |new| {
        *new = last.clone();
        new["metadata"]["annotations"] = json!({ note: last.to_string() });
    });
    let next = json!({ "apiVersion": "v1", "spec": { "plugin": "q", "map": { "k": "v" } } });
    let refused =
        Story { object: once.object.clone(), ..Story::new() }.apply_object("other", &next).unwrap_err();
    assert!(
        refused.message.contains("\"kubectl-client-side-apply\" using v1: .spec.plugin"),
        "{}",
        refused.message
    );
    let mut story = Story { object: once.object.clone(), ..Story::new() };
    story.apply_object("kubectl", &next).unwrap();
    assert_eq!(story.spec()["plugin"], "q");
    assert_eq!(story.object["metadata"]["annotations"][note], format!("{next}\n"), "the note stays true");
    // What somebody else changed since is not its own.
    once.update("editor", |new| new["spec"]["map"]["k"] = json!("w"));
    let refused = once.apply_object("kubectl", &next).unwrap_err();
    assert_eq!(
        refused.message,
        "Apply failed with 1 conflict: conflict with \"editor\" using v1: .spec.map.k"
    );
}

#[test]
fn structs_of_defaults_go_with_the_last_of_their_fields() {
    let mut story = Story::new();
    story.apply("a", &json!({ "plugin": "p", "sub": { "x": "1" }, "atoms": [{ "x": "1" }] })).unwrap();
    story.apply("a", &json!({ "plugin": "p" })).unwrap();
    assert_eq!(story.spec(), &json!({ "plugin": "p", "count": 1 }));
    // A piece with defaults in it, applied again by another, is the same piece.
    story.apply("a", &json!({ "atoms": [{ "x": "1" }] })).unwrap();
    story.apply("b", &json!({ "atoms": [{ "x": "1" }] })).unwrap();
    assert_eq!(story.owners()["Apply b"], spec(&json!({ "f:atoms": {} })));
}

#[test]
fn ten_writers_are_told_apart() {
    let mut story = Story::new();
    story.apply("a", &json!({ "plugin": "p" })).unwrap();
    for writer in 0..12 {
        let key = format!("k{writer}");
        story.update(&format!("w{writer}"), |new| new["spec"]["map"][&key] = json!("v"));
    }
    let owners = story.owners();
    assert_eq!(owners.as_object().unwrap().len(), 11);
    let fields = json!({ ".": {}, "f:k0": {}, "f:k1": {}, "f:k2": {} });
    assert_eq!(owners["Update ancient-changes"], spec(&json!({ "f:map": fields })));
}

#[test]
fn items_without_their_key_are_refused_and_replace_nothing() {
    use super::walk::keyless;
    for (spec, expected) in [
        (json!({ "tasks": [{ "name": "a" }, { "name": "b" }] }), None),
        (
            json!({ "tasks": [{ "name": "a" }, { "image": "i" }] }),
            Some("spec.tasks[1] has no \"name\", by which the items of this list are known"),
        ),
        (json!({ "tasks": [{ "name": "a" }, { "name": "a" }], "set": ["a", "a"] }), None),
        (json!({ "atoms": [{ "x": "a" }, { "x": "a" }] }), None),
        (json!({ "ref": { "tasks": "x" } }), None),
    ] {
        let found = keyless(&json!({ "spec": spec }), Some(&rule()), &Path::Root);
        assert_eq!(found.as_deref(), expected, "{spec}");
    }
}
