//! Sets of field paths and their wire form, `FieldsV1`.
//!
//! A set is a tree: a node that is a member (`own`) belongs to the set itself, whatever is below it. On the wire a member
//! without anything below is `{}`, one with something below also has the key `"."`. There is no empty node below the root.
use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Map, Value};

/// One step of a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Element {
    /// A field of a struct, or an entry of a map.
    Field(String),
    /// The item of a list whose keys have these values: a JSON object with sorted keys.
    Key(String),
    /// The item of a set with this value: JSON.
    Value(String),
    /// The item at this place. Only others write such paths; our lists have none.
    Index(u64),
}

impl Element {
    /// The item of a list that these keys tell apart.
    pub(crate) fn key(keys: Map<String, Value>) -> Self {
        Self::Key(Value::Object(keys).to_string())
    }

    /// The item of a set.
    pub(crate) fn value(value: &Value) -> Self {
        Self::Value(value.to_string())
    }

    fn read(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once(':')?;
        // Parsed and printed, so that what means the same is the same.
        let json = || serde_json::from_str::<Value>(rest).ok();
        match kind {
            "f" => Some(Self::Field(rest.to_owned())),
            "k" => json().filter(Value::is_object).map(|keys| Self::Key(keys.to_string())),
            "v" => json().map(|value| Self::Value(value.to_string())),
            "i" => rest.parse().ok().map(Self::Index),
            _ => None,
        }
    }

    fn wire(&self) -> String {
        match self {
            Self::Field(name) => format!("f:{name}"),
            Self::Key(keys) => format!("k:{keys}"),
            Self::Value(value) => format!("v:{value}"),
            Self::Index(index) => format!("i:{index}"),
        }
    }

    /// As paths stand in messages.
    fn show(&self, path: &mut String) {
        let _ = match self {
            Self::Field(name) => write!(path, ".{name}"),
            Self::Key(keys) => {
                let keys: Map<String, Value> = serde_json::from_str(keys).unwrap_or_default();
                let pairs: Vec<String> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
                write!(path, "[{}]", pairs.join(","))
            }
            Self::Value(value) => write!(path, "[={value}]"),
            Self::Index(index) => write!(path, "[{index}]"),
        };
    }
}

/// A set of paths.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FieldSet {
    own: bool,
    below: BTreeMap<Element, FieldSet>,
}

impl FieldSet {
    /// The set of nothing but the path of the node itself.
    pub(crate) fn member() -> Self {
        Self { own: true, below: BTreeMap::new() }
    }

    /// Reads `FieldsV1`; nothing if it is none.
    pub(crate) fn read(fields: &Value) -> Option<Self> {
        let mut set = Self::default();
        for (key, value) in fields.as_object()? {
            if key == "." {
                set.own = true;
                continue;
            }
            let mut below = Self::read(value)?;
            below.own |= below.below.is_empty();
            set.below.insert(Element::read(key)?, below);
        }
        Some(set)
    }

    /// The set as `FieldsV1`.
    pub(crate) fn wire(&self) -> Value {
        let mut fields: Map<String, Value> =
            self.below.iter().map(|(element, below)| (element.wire(), below.wire())).collect();
        if self.own && !fields.is_empty() {
            fields.insert(".".to_owned(), Value::Object(Map::new()));
        }
        Value::Object(fields)
    }

    /// Whether there is nothing in it.
    pub(crate) fn is_empty(&self) -> bool {
        !self.own && self.below.is_empty()
    }

    /// Whether the node itself is a member.
    pub(crate) fn is_member(&self) -> bool {
        self.own
    }

    /// Makes the node itself a member.
    pub(crate) fn join(&mut self) {
        self.own = true;
    }

    /// What lies below one element.
    pub(crate) fn get(&self, element: &Element) -> Option<&Self> {
        self.below.get(element)
    }

    /// Puts a set below an element, unless it is empty.
    pub(crate) fn put(&mut self, element: Element, set: Self) {
        if !set.is_empty() {
            self.below.insert(element, set);
        }
    }

    /// What lies below a field.
    pub(crate) fn field(&self, name: &str) -> Option<&Self> {
        self.below.get(&Element::Field(name.to_owned()))
    }

    /// Takes a path of field names with all below it out of the set.
    pub(crate) fn cut(&mut self, path: &[&str]) {
        if let [name, rest @ ..] = path {
            self.change(Element::Field((*name).to_owned()), |below| match rest {
                [] => *below = Self::default(),
                rest => below.cut(rest),
            });
        }
    }

    /// Takes an element of what is at a path of field names out of the set.
    pub(crate) fn cut_element(&mut self, path: &[&str], element: Element) {
        match path {
            [] => self.change(element, |below| *below = Self::default()),
            [name, rest @ ..] => {
                self.change(Element::Field((*name).to_owned()), |below| below.cut_element(rest, element));
            }
        }
    }

    /// Takes the node at a path of field names out of the set, and leaves what is below it.
    pub(crate) fn leave(&mut self, path: &[&str]) {
        match path {
            [] => self.own = false,
            [name, rest @ ..] => self.change(Element::Field((*name).to_owned()), |below| below.leave(rest)),
        }
    }

    /// Changes what is below an element, if there is anything.
    fn change(&mut self, element: Element, how: impl FnOnce(&mut Self)) {
        if let Some(below) = self.below.get_mut(&element) {
            how(below);
            if below.is_empty() {
                self.below.remove(&element);
            }
        }
    }

    /// Keeps of the fields at the top only this one.
    pub(crate) fn keep_only(&mut self, name: &str) {
        self.own = false;
        self.below.retain(|element, _| matches!(element, Element::Field(known) if known == name));
    }

    /// Adds all members of another set.
    pub(crate) fn add(&mut self, other: &Self) {
        self.own |= other.own;
        for (element, theirs) in &other.below {
            match self.below.get_mut(element) {
                Some(ours) => ours.add(theirs),
                None => drop(self.below.insert(element.clone(), theirs.clone())),
            }
        }
    }

    /// Takes all members of another set out; what is below a member stays.
    pub(crate) fn remove(&mut self, other: &Self) {
        self.own &= !other.own;
        for (element, theirs) in &other.below {
            if let Some(ours) = self.below.get_mut(element) {
                ours.remove(theirs);
                if ours.is_empty() {
                    self.below.remove(element);
                }
            }
        }
    }

    /// The members that both have.
    pub(crate) fn common(&self, other: &Self) -> Self {
        let mut common = Self { own: self.own && other.own, below: BTreeMap::new() };
        for (element, ours) in &self.below {
            if let Some(theirs) = other.below.get(element) {
                common.put(element.clone(), ours.common(theirs));
            }
        }
        common
    }

    /// Every member's path as messages show it, in order.
    pub(crate) fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.list(&mut String::new(), &mut paths);
        paths
    }

    fn list(&self, path: &mut String, paths: &mut Vec<String>) {
        if self.own {
            paths.push(path.clone());
        }
        let length = path.len();
        for (element, below) in &self.below {
            element.show(path);
            below.list(path, paths);
            path.truncate(length);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Element, FieldSet};

    fn set(fields: &Value) -> FieldSet {
        FieldSet::read(fields).unwrap()
    }

    #[test]
    fn every_element_is_read_and_written_as_it_stands() {
        let fields = json!({
            "f:metadata": { "f:labels": { ".": {}, "f:a.b/c:d": {} }, "f:finalizers": { "v:\"x\"": {} } },
            "f:spec": {
                "f:tasks": {
                    "k:{\"name\":\"a\",\"port\":80}": { ".": {}, "f:image": {} },
                    "k:{\"name\":\"b\"}": {}
                },
                "f:list": { "i:0": {}, "i:12": { "f:x": {} } },
                "f:numbers": { "v:1": {}, "v:true": {}, "v:null": {} }
            }
        });
        let read = set(&fields);
        assert_eq!(read.wire(), fields);
        assert_eq!(
            read.paths(),
            [
                ".metadata.finalizers[=\"x\"]",
                ".metadata.labels",
                ".metadata.labels.a.b/c:d",
                ".spec.list[0]",
                ".spec.list[12].x",
                ".spec.numbers[=1]",
                ".spec.numbers[=null]",
                ".spec.numbers[=true]",
                ".spec.tasks[name=\"a\",port=80]",
                ".spec.tasks[name=\"a\",port=80].image",
                ".spec.tasks[name=\"b\"]",
            ]
        );
    }

    #[test]
    fn what_means_the_same_is_the_same() {
        let odd = json!({ "f:l": { "k:{ \"b\": 2, \"a\": 1 }": {}, "v: \"x\"": { ".": {} } } });
        let plain = json!({ "f:l": { "k:{\"a\":1,\"b\":2}": {}, "v:\"x\"": {} } });
        assert_eq!(set(&odd), set(&plain));
        assert_eq!(set(&odd).wire(), plain);
    }

    #[test]
    fn what_is_no_set_is_refused() {
        for bad in [
            json!([]),
            json!("f:a"),
            json!({ "a": {} }),
            json!({ "x:a": {} }),
            json!({ "f:a": 1 }),
            json!({ "f:a": { "k:[1]": {} } }),
            json!({ "f:a": { "k:{": {} } }),
            json!({ "f:a": { "v:": {} } }),
            json!({ "f:a": { "i:-1": {} } }),
        ] {
            assert_eq!(FieldSet::read(&bad), None, "{bad}");
        }
        assert!(set(&json!({})).is_empty());
    }

    #[test]
    fn sets_are_added_removed_and_compared_member_by_member() {
        let left = set(&json!({ "f:a": { ".": {}, "f:b": {}, "f:c": {} }, "f:d": {} }));
        let right = set(&json!({ "f:a": { "f:b": {}, "f:x": {} }, "f:d": { "f:e": {} } }));
        let mut sum = left.clone();
        sum.add(&right);
        let all = json!({
            "f:a": { ".": {}, "f:b": {}, "f:c": {}, "f:x": {} }, "f:d": { ".": {}, "f:e": {} }
        });
        assert_eq!(sum.wire(), all);
        let mut rest = left.clone();
        rest.remove(&right);
        assert_eq!(rest.wire(), json!({ "f:a": { ".": {}, "f:c": {} }, "f:d": {} }));
        assert_eq!(left.common(&right).wire(), json!({ "f:a": { "f:b": {} } }));
        rest.remove(&left);
        assert!(rest.is_empty(), "no empty node is left: {rest:?}");
        assert_eq!(sum.common(&left), left);
    }

    #[test]
    fn paths_are_cut_out_with_all_below_or_alone() {
        let whole = set(&json!({ "f:a": { ".": {}, "f:b": { ".": {}, "v:1": {} } }, "f:c": {} }));
        let changed = |how: &dyn Fn(&mut FieldSet)| {
            let mut set = whole.clone();
            how(&mut set);
            set.wire()
        };
        assert_eq!(changed(&|set| set.cut(&["a", "b"])), json!({ "f:a": {}, "f:c": {} }));
        assert_eq!(changed(&|set| set.cut(&["a"])), json!({ "f:c": {} }));
        assert_eq!(
            changed(&|set| set.cut_element(&["a", "b"], Element::value(&json!(1)))),
            json!({ "f:a": { ".": {}, "f:b": {} }, "f:c": {} })
        );
        assert_eq!(
            changed(&|set| set.leave(&["a"])),
            json!({ "f:a": { "f:b": { ".": {}, "v:1": {} } }, "f:c": {} })
        );
        assert_eq!(changed(&|set| set.keep_only("c")), json!({ "f:c": {} }));
        assert_eq!(changed(&|set| set.cut(&["x", "y"])), whole.wire());
    }
}
