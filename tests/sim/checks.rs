//! What must never be so, from the plugins' books, the machines and the store; never from what a process of ours believes.
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::faults::MUTATING;
use crate::plugins::{Backends, node_id};
use crate::state::{NodeState, Task};
use crate::support::scripted::{Backend, Leftover};
use crate::universe::{Inner, Promise, Universe, kind};

/// After a boot, what the daemon said before it may still be on its way.
const STALE: Duration = Duration::from_secs(40);

/// How long a process may take to end, and then its volume to be free.
const LETS_GO: Duration = Duration::from_secs(2 + 5);

/// How often one object may be changed by one within how long. A change and its answer take some sixty milliseconds here.
const OFTEN: usize = 36;
const MOMENT: Duration = Duration::from_secs(3);

/// How long a status may be on its way to the store.
const ON_ITS_WAY: Duration = Duration::from_secs(12);

/// What lies at a pointer. Serde's own makes two strings of each of its words.
fn at<'a>(value: &'a Value, pointer: &str) -> Option<&'a Value> {
    pointer.split('/').skip(1).try_fold(value, |value, word| match value {
        Value::Array(items) => items.get(word.parse::<usize>().ok()?),
        _ => value.get(word),
    })
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    at(object, pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The objects of a kind as they were stored last.
pub fn all<'a>(inner: &'a Inner, plural: &str) -> impl Iterator<Item = &'a Value> {
    inner.objects.of(plural)
}

/// An object was written.
pub fn stored(inner: &mut Inner, key: &str, before: Option<&Value>, rev: u64) {
    let Some(object) = inner.objects.get(key).cloned() else { return };
    if let Some(before) = before
        && text(before, "/metadata/uid") != text(&object, "/metadata/uid")
    {
        inner.violated(format!("S13: {key} changed its uid at {rev} without a deletion"));
    }
    if let Some(what) = inner.promised.get(key).and_then(|promise| broken(key, promise, Some(&*object))) {
        inner.violated(what);
    }
    match kind(key) {
        "allocations" => {
            if at(&object, "/metadata/deletionTimestamp").is_some() {
                let now = inner.now;
                inner.ending.entry(text(&object, "/metadata/uid").to_owned()).or_insert(now);
            }
            published(inner, key, before, &object);
        }
        "volumeattachments" => one_holder(inner, key, &object),
        _ => {}
    }
}

/// A change was answered. No loop: whoever changes one object again and again within a moment answers itself, or another who answers it.
pub fn asked(inner: &mut Inner, host: &str, what: &str) {
    if what.starts_with("POST") || what.contains("/leases/") {
        return;
    }
    // Two leaders each have a clock of their own for a silent node: until both take it for lost, one takes back what the
    // other says. What keeps the product from it, the fence of its leadership, is left out here on purpose (seed 789).
    if inner.rivals {
        inner.asked.clear();
        return;
    }
    let now = inner.now;
    let times = inner.asked.entry((host.to_owned(), what.to_owned())).or_default();
    while times.front().is_some_and(|at| *at + MOMENT <= now) {
        times.pop_front();
    }
    times.push_back(now);
    if times.len() > OFTEN {
        let count = times.len();
        inner.violated(format!("a loop: {host} asks for {what} {count} times within {MOMENT:?}"));
    }
}

/// S8: everything that people were told is stored, and did not ask to delete, is there as they wrote it.
pub fn lost(inner: &Inner) -> Vec<String> {
    inner
        .promised
        .iter()
        .filter_map(|(key, p)| broken(key, p, inner.objects.get(key).map(|object| &**object)))
        .collect()
}

fn broken(key: &str, promise: &Promise, object: Option<&Value>) -> Option<String> {
    let Some(object) = object else {
        return Some(format!("S8: {key} was acknowledged and is lost"));
    };
    if text(object, "/metadata/uid") != promise.uid {
        return Some(format!("S8: {key} was acknowledged as {} and is another one now", promise.uid));
    }
    if at(object, "/metadata/deletionTimestamp").is_some() {
        return Some(format!("S8: {key} is being deleted and nobody asked for that"));
    }
    let kept = within(&promise.spec, &object["spec"]);
    (!kept).then(|| format!("S8: {key} was acknowledged with {} and has {}", promise.spec, object["spec"]))
}

/// Whether one value says all that another does. Defaults may be added.
fn within(asked: &Value, stored: &Value) -> bool {
    match (asked, stored) {
        (Value::Object(asked), Value::Object(stored)) => {
            asked.iter().all(|(name, value)| stored.get(name).is_some_and(|there| within(value, there)))
        }
        (Value::Array(asked), Value::Array(stored)) => {
            asked.len() == stored.len() && asked.iter().zip(stored).all(|(a, b)| within(a, b))
        }
        _ => asked == stored,
    }
}

/// S12: what an allocation's status newly calls published is in the machine's mount table, or was when that was sent. What
/// it said before stands until its node can be heard.
fn published(inner: &mut Inner, key: &str, before: Option<&Value>, object: &Value) {
    let node = text(object, "/status/nodeName");
    let now = inner.now;
    let Some(state) = inner.nodes.get(node) else { return };
    if now < state.booted + STALE && state.boot > 1 {
        return;
    }
    let mut wrong = Vec::new();
    let volumes = |object: &Value| at(object, "/status/volumes").cloned().unwrap_or_default();
    let known = before.map(volumes).unwrap_or_default();
    let known = known.as_array().map(Vec::as_slice).unwrap_or_default();
    let said = volumes(object);
    for publication in
        said.as_array().into_iter().flatten().filter(|publication| !known.contains(publication))
    {
        let path = text(publication, "/path");
        let up = text(publication, "/published") == "Up";
        let lately = state.unmounted.get(Path::new(path)).is_some_and(|at| now < *at + ON_ITS_WAY);
        if up && !path.is_empty() && state.top(path.as_ref()).is_none() && !lately {
            wrong.push(format!("S12: {key} says that {path} is published; nothing is mounted there"));
        }
    }
    for what in wrong {
        inner.violated(what);
    }
}

/// Rule 5 in the store: one volume of a single-node mode is granted to publishers of one node, and one of a mode with a single
/// writer to those of one node by what was made for writing.
fn one_holder(inner: &mut Inner, key: &str, object: &Value) {
    let admits = |o: &Value| {
        at(o, "/spec/allocations").and_then(Value::as_array).is_some_and(|a| !a.is_empty())
            && !o["spec"]["fenced"].as_bool().unwrap_or(false)
    };
    let mode = text(object, "/spec/capability/accessMode");
    let one_writes = mode == "MultiNodeSingleWriter";
    let counts = |o: &Value| admits(o) && !(one_writes && o["spec"]["readOnly"].as_bool().unwrap_or(false));
    if !(mode.starts_with("SingleNode") || one_writes) || !counts(object) {
        return;
    }
    let (volume, node) = (text(object, "/spec/volumeUid"), text(object, "/spec/nodeName"));
    let other = all(inner, "volumeattachments").find(|other| {
        text(other, "/spec/volumeUid") == volume
            && text(other, "/spec/nodeName") != node
            && counts(other)
            && text(other, "/status/node/releasedUID").is_empty()
    });
    if let Some(other) = other {
        let what = format!("S1: {key} and {} both admit users", text(other, "/metadata/name"));
        inner.violated(what);
    }
}

/// L3: while nothing else goes wrong, nobody holds a volume for long after its end was asked for.
pub fn held_too_long(inner: &Inner) -> Result<(), String> {
    for volume in all(inner, "volumes") {
        for holder in at(volume, "/status/holders").and_then(Value::as_array).into_iter().flatten() {
            let Some(since) = inner.ending.get(text(holder, "/allocation/uid")) else { continue };
            if inner.now > *since + LETS_GO {
                let name = text(volume, "/metadata/name");
                return Err(format!("L3: {name} is held since {since:?} by {}", holder["allocation"]));
            }
        }
    }
    Ok(())
}

/// S1 where tasks run: whatever a person said of their machine, each that runs is let in by an attachment that stands.
pub fn let_in(inner: &Inner) -> Result<(), String> {
    let granted = |node: &NodeState, volume: &str, uid: &str| {
        all(inner, "volumeattachments").any(|attachment| {
            let mut users =
                at(attachment, "/spec/allocations").and_then(Value::as_array).into_iter().flatten();
            text(attachment, "/spec/nodeName") == node.name
                && text(attachment, "/spec/handle") == volume
                && !attachment["spec"]["fenced"].as_bool().unwrap_or(false)
                && users.any(|user| user == uid)
        })
    };
    for node in inner.nodes.values() {
        for (directory, task) in node.tasks.iter().filter(|(_, task)| task.runs()) {
            let name = directory.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
            let uid = name.split('.').next().unwrap_or_default();
            let mut volumes = task.clones.iter().filter_map(|mount| node.volume_of(*mount));
            if let Some(volume) = volumes.find(|volume| !granted(node, volume, uid)) {
                return Err(format!(
                    "S1: {name} runs on {} with {volume}, which it was not given",
                    node.name
                ));
            }
        }
    }
    Ok(())
}

/// An object is gone for good.
pub fn removed(inner: &mut Inner, key: &str, object: &Value) {
    if let Some(what) = inner.promised.get(key).and_then(|promise| broken(key, promise, None)) {
        inner.violated(what);
    }
    let handle = text(object, "/status/handle");
    let plugin = text(object, "/spec/plugin");
    match kind(key) {
        "volumes" if at(object, "/spec/source/create").is_some() => {
            let name = text(object, "/spec/source/create/name");
            let there = inner.backends.get(plugin).and_then(|b| b.volume_named(name));
            let retained = text(object, "/spec/reclaimPolicy") == "Retain";
            if retained {
                let kept = [plugin, name, handle].map(str::to_owned);
                inner.kept.push(kept);
                let has = |backend: &Arc<Backend>| backend.volumes().iter().any(|id| id == handle);
                if is_said_to_stay(inner, plugin, handle) && !inner.backends.get(plugin).is_some_and(has) {
                    inner.violated(format!("S2: {key} was said to stay as {handle}, and is not there"));
                }
                return;
            }
            let is_left = |id: String| !of_another(object) && !has_twin(inner, plugin, &id);
            if there.is_some_and(is_left) {
                inner.violated(format!("S17: {key} ({handle}) is gone and the backend still has it"));
            }
        }
        "snapshots" => {
            let (plugin, uid) = (text(object, "/status/of/plugin"), text(object, "/metadata/uid"));
            let there = inner
                .backends
                .get(plugin)
                .is_some_and(|b| b.snapshot_named(&format!("snap-{uid}")).is_some());
            if there {
                inner.violated(format!("S17: {key} is gone and the backend still has it"));
            }
        }
        "volumeattachments" => {
            let (handle, node) = (text(object, "/spec/handle"), node_id(text(object, "/spec/nodeName")));
            let Some(backend) = inner.backends.get(plugin) else { return };
            let held = backend.left().into_iter().find(|left| match left {
                Leftover::Volume(_) | Leftover::Snapshot(_) | Leftover::Group(_) => false,
                Leftover::Attachment { volume, node: on }
                | Leftover::Stage { volume, node: on }
                | Leftover::Publication { volume, node: on, .. } => volume == handle && *on == node,
            });
            if let Some(held) = held {
                inner.violated(format!("S17: {key} is gone and {held:?} is left"));
            }
        }
        _ => {}
    }
}

/// Whether it is said to have been given what is another's.
fn of_another(volume: &Value) -> bool {
    says(&volume["status"]["conditions"], "HandleOfAnother")
}

/// Whether what has this handle is there for another one.
fn has_twin(inner: &Inner, plugin: &str, handle: &str) -> bool {
    let of_it = |v: &Value| text(v, "/spec/plugin") == plugin && text(v, "/status/handle") == handle;
    all(inner, "volumes").any(|volume| of_it(volume) && !of_another(volume))
}

/// A claim that is not on its way out and is bound to this volume.
pub fn claim_that_uses(inner: &Inner, plugin: &str, handle: &str) -> Option<String> {
    let of_it = |v: &&Value| text(v, "/spec/plugin") == plugin && text(v, "/status/handle") == handle;
    let volumes = all(inner, "volumes").filter(of_it).collect::<Vec<_>>();
    // Of several the one that is said to have it: it goes with that one.
    let has =
        |v: &&Value| !of_another(v) && (volumes.len() == 1 || text(v, "/status/handleChecked") == handle);
    let named = |claim: &&Value| {
        let name = text(claim, "/status/volumeName");
        at(claim, "/metadata/deletionTimestamp").is_none()
            && volumes.iter().copied().filter(has).any(|v| text(v, "/metadata/name") == name)
    };
    all(inner, "volumeclaims").find(named).map(|claim| text(claim, "/metadata/name").to_owned())
}

/// Whether people were told that the data of a volume stays at its backend.
pub fn is_said_to_stay(inner: &Inner, plugin: &str, handle: &str) -> bool {
    let words = format!("its data stays with plugin \"{plugin}\"");
    let named = format!(" as \"{handle}\",");
    let kept = |event: &&Value| {
        let message = text(event, "/message");
        text(event, "/reason") == "Kept" && message.contains(&words) && message.contains(&named)
    };
    all(inner, "events").find(kept).is_some()
}

/// A snapshot that may be being cut of this volume.
pub fn snapshot_of(inner: &Inner, plugin: &str, handle: &str) -> Option<String> {
    let cut = all(inner, "snapshots").find(|s| {
        let doubted = text(s, "/status/exists") == "Unknown" && text(s, "/status/handle").is_empty();
        text(s, "/status/of/plugin") == plugin && text(s, "/status/of/handle") == handle && doubted
    })?;
    Some(text(cut, "/metadata/name").to_owned())
}

/// A volume that may be being filled from the snapshot, or from the volume, of this handle.
pub fn copy_of(inner: &Inner, plugin: &str, what: &str, handle: &str) -> Option<String> {
    let filled = all(inner, "volumes").find(|v| {
        let content = |field: &str| text(v, &format!("/spec/source/create/content/{field}"));
        let doubted = text(v, "/status/exists") == "Unknown" && text(v, "/status/handle").is_empty();
        text(v, "/spec/plugin") == plugin
            && !content(what).is_empty()
            && content("handle") == handle
            && doubted
    })?;
    Some(text(filled, "/metadata/name").to_owned())
}

/// A fence lets the volumes of a node go without its word: nobody waits for what it still undoes by its journal when it is
/// back, so that may meet a call of those who have them now.
pub fn after_a_fence(inner: &Inner, violation: &str) -> bool {
    let undone = |node: &&NodeState| {
        ["NodeUnstageVolume", "NodeUnpublishVolume"]
            .iter()
            .any(|rpc| violation.contains(&format!("{rpc} on {}", node_id(&node.name))))
    };
    violation.contains(" overlaps ")
        && inner.nodes.values().filter(|node| node.fenced).any(|node| undone(&node))
}

/// Looked at after every step.
pub fn step(universe: &Universe, backends: &Backends) -> Result<(), String> {
    for (plugin, backend) in backends {
        let mut violations = backend.violations();
        if !violations.is_empty() {
            let inner = universe.look();
            violations.retain(|violation| !after_a_fence(&inner, violation));
        }
        if !violations.is_empty() {
            return Err(format!("plugin {plugin}: {}", violations.join("; ")));
        }
    }
    let inner = universe.look();
    if inner.violations.is_empty() { Ok(()) } else { Err(inner.violations.join("; ")) }
}

/// S11 and L7: what is left once everything was deleted.
pub fn leftovers<'a>(inner: &'a Inner, backends: &'a Backends) -> impl Iterator<Item = String> + 'a {
    let ours =
        inner.objects.iter().filter(|(key, _)| key.contains("wharfline.dev") && kind(key) != "nodeagents");
    let objects = ours.map(|(key, object)| {
        let waits = at(object, "/status/conditions").map(ToString::to_string).unwrap_or_default();
        format!("{key} {} {waits}", object["metadata"]["deletionTimestamp"])
    });
    let made = backends.iter().flat_map(move |(plugin, backend)| {
        let of_it = inner.kept.iter().filter(move |kept| kept[0] == *plugin);
        let ids = of_it
            .flat_map(|[_, name, handle]| backend.volume_named(name).into_iter().chain([handle.clone()]));
        let kept: Vec<_> = ids.map(Leftover::Volume).collect();
        let left = backend.left().into_iter().filter(move |left| !kept.contains(left));
        left.map(move |left| format!("plugin {plugin}: {left:?}"))
    });
    objects.chain(made).chain(inner.nodes.values().flat_map(machine_leftovers))
}

fn machine_leftovers(node: &NodeState) -> Vec<String> {
    let tree = node.tree();
    let mounts = node
        .mounts
        .keys()
        .filter(|at| **at != tree)
        .map(|at| format!("{}: mount {}", node.name, at.display()));
    let kept = [tree.clone(), tree.join("staging"), tree.join("publish")];
    let beneath = |at: &&std::path::PathBuf| at.starts_with(&tree) && !kept.contains(at);
    let directories = node
        .directories
        .keys()
        .filter(beneath)
        .map(|at| format!("{}: directory {}", node.name, at.display()));
    let tasks = node.tasks.iter().filter(|(_, task)| task.taken());
    let tasks = tasks.map(|(at, task)| format!("{}: task {} {:?}", node.name, at.display(), task.argv));
    mounts.chain(directories).chain(tasks).collect()
}

/// The drivers that are not called steady, though nothing makes them end any more.
pub fn unsteady(inner: &Inner) -> impl Iterator<Item = String> {
    let steady = |instance: &Value| {
        let conditions = instance["status"]["conditions"].as_array();
        !conditions.into_iter().flatten().any(|c| c["type"] == "Steady" && c["status"] == "False")
    };
    let found = all(inner, "plugininstances").filter(move |instance| !steady(instance));
    found.map(|instance| format!("{} {}", text(instance, "/metadata/name"), instance["status"]))
}

/// What is still missing of what people asked for: everything acknowledged is there, and everything that is there runs
/// and is bound; by what the API says, and on the machines themselves. At least the first `most` of it.
pub fn unmet(inner: &Inner, most: usize) -> Vec<String> {
    let mut missing = Vec::new();
    for claim in all(inner, "volumeclaims") {
        if missing.len() >= most {
            return missing;
        }
        // A claim that waits for its first consumer and has none waits rightly.
        if text(claim, "/status/phase") == "Pending" && says(&claim["status"], "WaitingForFirstConsumer") {
            continue;
        }
        // One that its plugin takes for another is never bound.
        if text(claim, "/metadata/name").starts_with("twin-") {
            missing.extend(twin_amiss(inner, claim));
        } else if text(claim, "/status/phase") != "Bound" {
            missing.push(format!("claim {} {}", text(claim, "/metadata/name"), claim["status"]));
        } else if let Some(what) = not_as_asked(inner, claim) {
            missing.push(format!("claim {}: {what}: {}", text(claim, "/metadata/name"), claim["status"]));
        }
    }
    for snapshot in all(inner, "snapshots") {
        if missing.len() >= most {
            return missing;
        }
        if snapshot["status"]["ready"] != true {
            missing.push(format!("snapshot {} {}", text(snapshot, "/metadata/name"), snapshot["status"]));
        }
    }
    for allocation in all(inner, "allocations") {
        if missing.len() >= most {
            return missing;
        }
        let phase = text(allocation, "/status/phase");
        let volumes = at(allocation, "/spec/volumes").and_then(Value::as_array).map_or(0, Vec::len);
        let up = at(allocation, "/status/volumes")
            .and_then(Value::as_array)
            .map_or(0, |all| all.iter().filter(|v| text(v, "/published") == "Up").count());
        let met = phase == "Complete" || phase == "Running" && up == volumes;
        if !met {
            missing.push(format!(
                "allocation {} {}",
                text(allocation, "/metadata/name"),
                allocation["status"]
            ));
        } else if phase == "Running" {
            missing.extend(not_there(inner, allocation));
        }
    }
    for plugin in all(inner, "plugins") {
        let conditions = at(plugin, "/status/conditions").and_then(Value::as_array);
        let is = |kind: &str, status: &str| {
            let all = conditions.into_iter().flatten();
            all.into_iter().any(|c| text(c, "/type") == kind && text(c, "/status") == status)
        };
        if !is("Ready", "True") || is("Updated", "False") {
            missing.push(format!("plugin {} {}", text(plugin, "/metadata/name"), plugin["status"]));
        }
    }
    // The dearest last.
    if missing.len() < most {
        missing.extend(lost(inner));
    }
    missing
}

/// What is amiss with a claim that its plugin takes for another: of those that are, one is bound, and the others say why not.
fn twin_amiss(inner: &Inner, claim: &Value) -> Option<String> {
    let name = text(claim, "/metadata/name");
    let of = |claim: &Value| {
        let volume = text(claim, "/status/volumeName");
        all(inner, "volumes").find(|one| text(one, "/metadata/name") == volume)
    };
    let volume = of(claim);
    let is_another = volume.is_some_and(of_another);
    let is_bound = text(claim, "/status/phase") == "Bound";
    let handle = |volume: Option<&Value>| volume.map(|v| text(v, "/status/handle").to_owned());
    let other = |other: &Value| {
        text(other, "/metadata/name").starts_with("twin-")
            && text(other, "/metadata/name") != name
            && text(other, "/status/phase") == "Bound"
            && handle(of(other)) == handle(volume)
    };
    // That it is one of another that is gone since is said for good.
    let other = is_bound && all(inner, "volumeclaims").any(other);
    (is_another == is_bound || other).then(|| format!("claim {name} {}", claim["status"]))
}

/// What a bound claim asks for and its volume is not: by what the API says, and by the backend's own book.
fn not_as_asked(inner: &Inner, claim: &Value) -> Option<String> {
    let (wanted, has) =
        (text(claim, "/spec/volumeAttributesClassName"), text(claim, "/status/volumeAttributesClassName"));
    if wanted != has {
        return Some(format!("it has the attributes of \"{has}\""));
    }
    let (asked, size) = (text(claim, "/spec/resources/requests/storage"), text(claim, "/status/capacity"));
    // What nobody uses is made larger by its backend, and its file system by the node that gets it next.
    let claims = |a: &Value| {
        let volumes = at(a, "/spec/volumes").and_then(Value::as_array).cloned().unwrap_or_default();
        volumes.iter().any(|volume| text(volume, "/claimName") == text(claim, "/metadata/name"))
    };
    let used = all(inner, "allocations").any(|a| text(a, "/status/phase") == "Running" && claims(a));
    if size != asked && (used || text(claim, "/status/allocated") != asked) {
        return Some(format!("it has {size}"));
    }
    let name = text(claim, "/status/volumeName");
    let volume = all(inner, "volumes").find(|volume| text(volume, "/metadata/name") == name)?;
    let backend = inner.backends.get(text(volume, "/spec/plugin"))?;
    let handle = text(volume, "/status/handle");
    let tier = backend.mutable_parameters(handle).remove("tier").unwrap_or_default();
    if tier != wanted {
        return Some(format!("its backend gives it \"{tier}\""));
    }
    let bytes = backend.capacity(handle).unwrap_or_default();
    let enough = wharfline::api::quantity::bytes(asked).is_ok_and(|asked| bytes >= asked);
    (!enough).then(|| format!("its backend gives it {bytes}"))
}

/// Whether a word stands in a value.
fn says(value: &Value, word: &str) -> bool {
    match value {
        Value::String(text) => text.contains(word),
        Value::Array(items) => items.iter().any(|item| says(item, word)),
        Value::Object(fields) => fields.values().any(|field| says(field, word)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// S12 at rest: what runs by its status has its mounts and its processes on its machine.
fn not_there(inner: &Inner, allocation: &Value) -> Vec<String> {
    let (name, uid) = (text(allocation, "/metadata/name"), text(allocation, "/metadata/uid"));
    let Some(machine) = inner.nodes.get(text(allocation, "/status/nodeName")) else {
        return vec![format!("allocation {name} runs on no machine")];
    };
    let paths = at(allocation, "/status/volumes").and_then(Value::as_array).into_iter().flatten();
    let mounts = paths
        .map(|volume| text(volume, "/path"))
        .filter(|path| machine.top(path.as_ref()).is_none())
        .map(|path| format!("allocation {name}: nothing is mounted at {path}"));
    let tasks = at(allocation, "/spec/tasks").and_then(Value::as_array).into_iter().flatten();
    let tasks = tasks
        // One that finishes may have done so.
        .filter(|task| text(task, "/runtime/process/command/0") != "finish")
        .map(|task| machine.task_directory(uid, text(task, "/name")))
        .filter(|at| !machine.tasks.get(at).is_some_and(Task::runs))
        .map(|at| format!("allocation {name}: no process in {}", at.display()));
    mounts.chain(tasks).collect()
}

/// After one life with at most one kill: no call was made for what was in place, there was one volume, and its task was
/// started once.
pub fn once(inner: &Inner, backend: &Backend, killed: bool) -> Result<(), String> {
    let mut repeated = Vec::new();
    for rpc in MUTATING {
        let calls = backend.calls_of(rpc).len();
        if calls == 0 {
            return Err(format!("{rpc} was never called"));
        }
        repeated.extend(std::iter::repeat_n(rpc.name(), calls - 1));
    }
    // The call that was under way when its caller was killed may be made once more; nothing else may.
    if repeated.len() > usize::from(killed) {
        return Err(format!("S10: called again: {}", repeated.join(", ")));
    }
    match inner.started.get("run") {
        Some(1) => Ok(()),
        other => Err(format!("S10: the task was started {other:?} times")),
    }
}
