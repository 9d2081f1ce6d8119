//! What holds after every history of applies and ordinary writes.
use proptest::collection::{btree_map, btree_set};
use proptest::option;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::Story;
use crate::server::apply::fields::FieldSet;
use crate::server::apply::walk;

/// What a manager may want. Every choice is small, so that managers often want the same.
fn wanted() -> impl Strategy<Value = Value> {
    let word = || prop::sample::select(vec!["1", "2"]);
    let key = || prop::sample::select(vec!["a", "b", "c"]);
    let task = (option::of(word()), option::of(btree_map(key(), word(), 0..3)));
    let parts = (
        option::of(word()),
        option::of(btree_map(key(), word(), 0..3)),
        option::of(btree_map(key(), word(), 0..2)),
        option::of(word()),
        option::of(btree_set(key(), 0..3)),
        option::of(btree_map(key(), task, 0..3)),
        option::of((option::of(word()), option::of(word()))),
    );
    parts.prop_map(|(plugin, map, piece, atoms, set, tasks, sub)| {
        let tasks = tasks.map(|tasks| {
            let task = |(name, (image, env))| bare(json!({ "name": name, "image": image, "env": env }));
            tasks.into_iter().map(task).collect::<Vec<_>>()
        });
        let sub = sub.map(|(x, y)| bare(json!({ "x": x, "y": y })));
        let atoms = atoms.map(|x| json!([{ "x": x }]));
        bare(json!({
            "plugin": plugin, "map": map, "ref": piece, "atoms": atoms, "set": set, "tasks": tasks, "sub": sub
        }))
    })
}

fn bare(mut fields: Value) -> Value {
    fields.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    fields
}

/// The object without the order of what has none, and without what is empty: an applier that is gone may leave
/// nothing else.
fn plain(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| (name.clone(), plain(value)));
            Value::Object(fields.filter(|(_, value)| *value != json!({}) && *value != json!([])).collect())
        }
        Value::Array(items) => {
            let mut items: Vec<Value> = items.iter().map(plain).collect();
            items.sort_by_key(ToString::to_string);
            Value::Array(items)
        }
        other => other.clone(),
    }
}

/// The same with one value for every key, so that no two want different things of one field.
fn agreed(wanted: &Value) -> Value {
    match wanted {
        Value::String(text) if text == "2" => json!("1"),
        Value::Object(fields) => {
            Value::Object(fields.iter().map(|(name, value)| (name.clone(), agreed(value))).collect())
        }
        Value::Array(items) => items.iter().map(agreed).collect(),
        other => other.clone(),
    }
}

/// Without the pieces that are compared as a whole.
fn granular(wanted: &Value) -> Value {
    let mut wanted = agreed(wanted);
    wanted.as_object_mut().unwrap().remove("ref");
    wanted
}

/// One step of a history.
#[derive(Debug, Clone)]
enum Step {
    Apply(&'static str, Value),
    Force(&'static str, Value),
    Replace(&'static str, Value),
}

fn step() -> impl Strategy<Value = Step> {
    let manager = || prop::sample::select(vec!["m", "n", "o"]);
    prop_oneof![
        (manager(), wanted()).prop_map(|(manager, wanted)| Step::Apply(manager, wanted)),
        (manager(), wanted()).prop_map(|(manager, wanted)| Step::Force(manager, wanted)),
        (manager(), wanted()).prop_map(|(manager, wanted)| Step::Replace(manager, wanted)),
    ]
}

fn take(story: &mut Story, step: &Step) {
    story.day = 0;
    match step {
        // A conflict changes nothing.
        Step::Apply(manager, wanted) => drop(story.apply(manager, wanted)),
        Step::Force(manager, wanted) => story.force(manager, wanted),
        Step::Replace(manager, wanted) => story.update(manager, |new| new["spec"] = wanted.clone()),
    }
}

fn fields_of(story: &Story, who: &str) -> FieldSet {
    FieldSet::read(story.owners().get(who).unwrap_or(&json!({}))).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn applied_twice_is_applied_once(history in prop::collection::vec(step(), 0..5), wanted in wanted()) {
        let mut story = Story::new();
        for step in &history {
            take(&mut story, step);
        }
        story.force("m", &wanted);
        let once = story.object.clone();
        prop_assert!(story.apply("m", &wanted).is_ok(), "who has all has no conflict");
        prop_assert_eq!(&story.object, &once);
    }

    #[test]
    fn what_is_applied_stands_and_is_its_appliers(history in prop::collection::vec(step(), 0..5), wanted in wanted()) {
        let mut story = Story::new();
        for step in &history {
            take(&mut story, step);
        }
        story.force("m", &wanted);
        let wanted = json!({ "spec": wanted });
        let own = walk::applied(&wanted, Some(&story.rule));
        prop_assert_eq!(fields_of(&story, "Apply m"), own.clone());
        let changes = walk::compare(Some(&wanted), Some(&story.object), Some(&story.rule));
        // Defaults within pieces aside.
        let other = changes.written.common(&own).paths();
        prop_assert!(other.iter().all(|path| path == ".spec.atoms"), "{:?}", other);
    }

    #[test]
    fn managers_that_agree_commute(left in wanted(), right in wanted()) {
        let (left, right) = (granular(&left), granular(&right));
        let after = |pair: [(&str, &Value); 2]| {
            let mut story = Story::new();
            for (manager, wanted) in pair {
                story.day = 0;
                story.apply(manager, wanted).unwrap();
            }
            plain(&story.object)
        };
        let (one, other) = (after([("m", &left), ("n", &right)]), after([("n", &right), ("m", &left)]));
        prop_assert_eq!(one, other);
    }

    #[test]
    fn who_leaves_takes_exactly_his_own(stays in wanted(), goes in wanted()) {
        let (stays, goes) = (granular(&stays), granular(&goes));
        let mut story = Story::new();
        story.apply("m", &stays).unwrap();
        let before = story.object.clone();
        story.apply("n", &goes).unwrap();
        story.apply_object("n", &json!({})).unwrap();
        prop_assert_eq!(plain(&story.object), plain(&before));
    }

    #[test]
    fn force_takes_from_others_what_they_say_otherwise(first in wanted(), second in wanted()) {
        let mut story = Story::new();
        story.apply("m", &first).unwrap();
        let had = fields_of(&story, "Apply m");
        let conflicts = story.apply("n", &second).is_err();
        if conflicts {
            story.force("n", &second);
        }
        let has = fields_of(&story, "Apply m");
        prop_assert_eq!(has != had, conflicts, "who loses something had a conflict, and who had one loses");
        prop_assert_eq!(story.apply("m", &first).is_err(), conflicts, "and has one in turn");
    }

    #[test]
    fn nobody_has_what_is_not_there(history in prop::collection::vec(step(), 1..8)) {
        let mut story = Story::new();
        for step in &history {
            take(&mut story, step);
            let there = walk::compare(None, Some(&story.object), Some(&story.rule)).written;
            for (who, fields) in story.owners().as_object().unwrap() {
                let mut fields = FieldSet::read(fields).unwrap();
                prop_assert!(!fields.is_empty(), "{} has nothing", who);
                fields.remove(&there);
                prop_assert!(fields.is_empty(), "{} has {:?}", who, fields.paths());
            }
        }
    }
}
