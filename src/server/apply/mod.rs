//! Server-side apply: who has which field of an object, and what becomes of an object when a manager applies what it wants.
//!
//! Values only; the time is given. Three questions are answered here:
//! - [`apply`]: the object and its managers after a manager applied a configuration, or the conflicts;
//! - [`settle`]: what is written of that once admission has had the object;
//! - [`track`]: the managers after an ordinary write, by what it changed.
//!
//! ```text
//! apply:  live + config --merge--> merged --prune (had it, applies it no more, nobody else has it)--> new
//!         compare(live, new) meets another's fields?  refuse, or with force take them
//! track:  compare(old, new) --> the writer has what it wrote, everybody else loses that and what is gone
//! ```
//!
//! What is fixed (name, uid, versions, times of the server) belongs to nobody, and so does a kind's own finalizer. Of
//! the status only `/status` speaks, and of nothing else.
//!
//! Left out, on purpose: kinds with several versions (entries of another version are dropped), unions, schemas deduced
//! from values beyond "objects have fields, lists are one piece", and lists that change their type from one release to
//! the next.
mod config;
mod conflict;
mod fields;
mod managers;
mod merge;
mod walk;

use jiff::Timestamp;
use serde_json::{Map, Value};

pub(crate) use self::config::{Wanted, is_apply};
use self::conflict::Conflicts;
use self::fields::{Element, FieldSet};
use self::managers::{Held, Managers, Operation, Who};
use super::admission::{same_but, seconds};
use super::path::Path;
use super::resource::Resource;
use super::route::Part;
use super::schema::{self, Rule};
use super::status::Refusal;

/// The manager that has what was there before anybody applied.
const BEFORE: &str = "before-first-apply";
/// The manager that takes over what it applied on the client's side before.
const KUBECTL: &str = "kubectl";
/// Where an apply on the client's side keeps what was applied.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// The most bytes that are kept there; more could make the object too large.
const MAX_LAST_APPLIED: usize = 128 << 10;
/// The fields of metadata that are the server's, or that cannot change.
const SYSTEM: [&str; 10] = [
    "name",
    "namespace",
    "uid",
    "selfLink",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
];

/// What a write is about: the kind, and the part of it that is written.
#[derive(Clone, Copy)]
pub(crate) struct Ground<'a> {
    rule: &'a Rule,
    api_version: &'a str,
    part: Part,
    /// Whether status is a part of its own.
    has_status: bool,
    /// The finalizer that the server itself puts on.
    finalizer: Option<&'a str>,
}

impl<'a> Ground<'a> {
    /// A write of this part of a resource.
    pub(crate) fn of(resource: &'a Resource, part: Part) -> Self {
        Self {
            rule: &resource.rule,
            api_version: &resource.api_version,
            part,
            has_status: resource.kind.has_status,
            finalizer: resource.kind.finalizer,
        }
    }

    fn who(&self, operation: Operation, manager: &str) -> Who {
        let subresource = match self.part {
            Part::Main => "",
            Part::Status => "status",
        };
        Who { operation, manager: manager.to_owned(), subresource: subresource.to_owned() }
    }

    /// What of these fields anybody can have by such a write.
    fn ownable(&self, mut fields: FieldSet) -> FieldSet {
        match self.part {
            Part::Status => {
                fields.keep_only("status");
                return fields;
            }
            Part::Main if self.has_status => fields.cut(&["status"]),
            Part::Main => {}
        }
        fields.leave(&[]);
        fields.leave(&["metadata"]);
        fields.cut(&["apiVersion"]);
        fields.cut(&["kind"]);
        for field in SYSTEM {
            fields.cut(&["metadata", field]);
        }
        if let Some(finalizer) = self.finalizer {
            let list = ["metadata", "finalizers"];
            fields.cut_element(&list, Element::value(&Value::from(finalizer)));
            let rest = fields.field("metadata").and_then(|metadata| metadata.field("finalizers"));
            if rest == Some(&FieldSet::member()) {
                fields.cut(&list);
            }
        }
        fields
    }
}

/// What a manager applies.
pub(crate) struct Config<'a> {
    /// The fields it wants, without what no schema knows and without defaults.
    pub(crate) object: &'a Value,
    /// Its name.
    pub(crate) manager: &'a str,
    /// Whether it takes what others have.
    pub(crate) force: bool,
}

/// What becomes of an object that something was applied to, before admission.
#[derive(Debug)]
pub(crate) struct Applied {
    /// The object.
    pub(crate) object: Value,
    managers: Managers,
    who: Who,
}

/// Applies a configuration to an object, or to nothing (`{}`).
pub(crate) fn apply(
    ground: &Ground<'_>,
    live: &Value,
    config: &Config<'_>,
    now: Timestamp,
) -> Result<Applied, Refusal> {
    let rule = Some(ground.rule);
    let object = part_of(ground, config.object);
    let who = ground.who(Operation::Apply, config.manager);
    let mut managers =
        Managers::read(&live["metadata"]["managedFields"], ground.api_version).unwrap_or_default();
    if managers.is_empty() {
        let fields = ground.ownable(walk::compare(None, Some(live), rule).written);
        let who = ground.who(Operation::Update, BEFORE);
        managers.put(who, Held { time: Some(seconds(now)), fields });
    }
    let Held { time, fields: last } = managers.get(&who).cloned().unwrap_or_default();
    let fields = ground.ownable(walk::applied(&object, rule));
    managers.put(who.clone(), Held { time, fields });
    let mut merged = merge::merge(live, &object, rule);
    merge::prune(&mut merged, rule, (&last, &managers.all_fields()));
    // With defaults, as what is there has them: else the same piece applied by another would not be the same.
    schema::shape(&mut merged, ground.rule, &Path::Root, &mut Vec::new());
    let changes = walk::compare(Some(live), Some(&merged), rule);
    let written = ground.ownable(changes.written);
    let conflicts = Conflicts::of(managers.others(&who), &written);
    if !conflicts.is_empty() && !config.force {
        let allowed =
            if config.manager == KUBECTL { once_applied(ground, live) } else { FieldSet::default() };
        let rest = conflicts.beside(&allowed);
        if !rest.is_empty() {
            return Err(rest.refusal(ground.api_version));
        }
    }
    managers.take(&written, Some(&who));
    managers.take(&ground.ownable(changes.removed), Some(&who));
    if config.manager == KUBECTL {
        note_last_applied(&mut merged, &object);
    }
    Ok(Applied { object: merged, managers, who })
}

/// Of a configuration what its part of the object is made of, for a status and the rest do not speak of each other.
fn part_of(ground: &Ground<'_>, config: &Value) -> Value {
    let mut object = config.clone();
    if let Some(fields) = object.as_object_mut() {
        match ground.part {
            Part::Main if ground.has_status => drop(fields.remove("status")),
            Part::Main => {}
            Part::Status => fields.retain(|name, _| name == "status"),
        }
    }
    object
}

/// What was applied on the client's side and still stands: who now applies on the server's side may change that.
fn once_applied(ground: &Ground<'_>, live: &Value) -> FieldSet {
    let text = live["metadata"]["annotations"][LAST_APPLIED].as_str().unwrap_or_default();
    let Ok(last) = serde_json::from_str::<Value>(text) else { return FieldSet::default() };
    if last["apiVersion"] != ground.api_version {
        return FieldSet::default();
    }
    let changes = walk::compare(Some(&last), Some(live), Some(ground.rule));
    let mut fields = walk::applied(&last, Some(ground.rule));
    fields.remove(&changes.written);
    fields.remove(&changes.removed);
    fields
}

/// Keeps the note of an object that was once applied on the client's side true, for whoever does so again.
fn note_last_applied(object: &mut Value, config: &Value) {
    let Some(annotations) = annotations_of(object) else { return };
    if annotations.get(LAST_APPLIED).and_then(Value::as_str).is_none_or(str::is_empty) {
        return;
    }
    let mut config = config.clone();
    if let Some(annotations) = annotations_of(&mut config) {
        annotations.remove(LAST_APPLIED);
    }
    let text = format!("{config}\n");
    if text.len() > MAX_LAST_APPLIED {
        annotations.remove(LAST_APPLIED);
    } else {
        annotations.insert(LAST_APPLIED.to_owned(), Value::from(text));
    }
}

fn annotations_of(object: &mut Value) -> Option<&mut Map<String, Value>> {
    object.pointer_mut("/metadata/annotations")?.as_object_mut()
}

/// Writes the managers of an applied object into what admission made of it. Where nothing but a time would change,
/// nothing does.
pub(crate) fn settle(
    ground: &Ground<'_>,
    old: &Value,
    new: &mut Value,
    (applied, now): (Applied, Timestamp),
) {
    let Applied { mut managers, who, .. } = applied;
    let aside = |field: &str| matches!(field, "managedFields" | "resourceVersion");
    let stored = &old["metadata"]["managedFields"];
    let same = same_but(old, new, |field| field == "metadata")
        && same_but(&old["metadata"], &new["metadata"], aside);
    let known = Managers::read(stored, ground.api_version).unwrap_or_default();
    let had = known.get(&who).map(|held| &held.fields);
    if let Some(mut held) = managers.get(&who).cloned()
        && (!same || had != Some(&held.fields))
    {
        held.time = Some(seconds(now));
        managers.put(who, held);
    }
    write(ground, (stored, known), new, managers);
}

/// The managers into the object; as they stand in the stored one if they are the same.
fn write(ground: &Ground<'_>, (old, known): (&Value, Managers), new: &mut Value, managers: Managers) {
    let Some(metadata) = new["metadata"].as_object_mut() else { return };
    if managers.is_empty() {
        metadata.remove("managedFields");
        return;
    }
    let written = if managers == known { old.clone() } else { managers.write(ground.api_version) };
    metadata.insert("managedFields".to_owned(), written);
}

/// Who makes an ordinary write.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Writer<'a> {
    /// A manager, whose fields are kept.
    Manager(&'a str),
    /// One of our own, who has its parts of an object by right: others lose what it writes, and it has nothing.
    Ours,
}

/// Keeps the managers of an object through an ordinary write. `old` is nothing where the object is made; `new` carries
/// what the client says of managers.
///
/// As in Kubernetes, an object that has no managers gets none by being changed, only by being made or applied to. So
/// what controllers make stays without, and costs nothing here.
pub(crate) fn track(
    ground: &Ground<'_>,
    (old, new): (Option<&Value>, &mut Value),
    writer: Writer<'_>,
    now: Timestamp,
) {
    let none = Value::Null;
    let stored = old.map_or(&none, |old| &old["metadata"]["managedFields"]);
    let given = take_given(new);
    let ours = matches!(writer, Writer::Ours);
    let made = old.is_none();
    if (made && ours) || (!made && (is_reset(&given) || (is_bare(stored) && is_bare(&given)))) {
        return;
    }
    if ours && ground.part == Part::Status && !speaks_of_status(stored) {
        // The most frequent write of all: there is nothing that it could change.
        return write_back(new, stored.clone());
    }
    let known = Managers::read(stored, ground.api_version).unwrap_or_default();
    let said = if ground.part == Part::Main { Managers::read(&given, ground.api_version) } else { None };
    let mut managers = said.filter(|said| !said.is_empty()).unwrap_or_else(|| known.clone());
    if !made && managers.is_empty() {
        return;
    }
    let changes = walk::compare(old, Some(new), Some(ground.rule));
    let written = ground.ownable(changes.written);
    managers.take(&written, None);
    managers.take(&ground.ownable(changes.removed), None);
    if let Writer::Manager(name) = writer
        && !written.is_empty()
    {
        let who = ground.who(Operation::Update, name);
        let mut fields = managers.get(&who).map(|held| held.fields.clone()).unwrap_or_default();
        fields.add(&written);
        managers.put(who, Held { time: Some(seconds(now)), fields });
        managers.cap();
    }
    write(ground, (stored, known), new, managers);
}

/// What the client says of managers, taken out of its object.
fn take_given(new: &mut Value) -> Value {
    new["metadata"].as_object_mut().and_then(|metadata| metadata.remove("managedFields")).unwrap_or_default()
}

fn write_back(new: &mut Value, managers: Value) {
    if let Some(metadata) = new["metadata"].as_object_mut()
        && !is_bare(&managers)
    {
        metadata.insert("managedFields".to_owned(), managers);
    }
}

fn is_bare(managers: &Value) -> bool {
    managers.as_array().is_none_or(Vec::is_empty)
}

/// An empty list, or one empty entry, says that nobody is to have anything.
fn is_reset(given: &Value) -> bool {
    match given.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([single]) => single.as_object().is_some_and(Map::is_empty),
        Some(_) | None => false,
    }
}

fn speaks_of_status(managers: &Value) -> bool {
    managers.as_array().into_iter().flatten().any(|entry| {
        entry.get("subresource").is_some_and(|part| part == "status")
            || entry["fieldsV1"].get("f:status").is_some()
    })
}

#[cfg(test)]
mod tests;
