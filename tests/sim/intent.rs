//! Rule 1, from outside: when a call reaches a plugin, what it does stands where it outlives every process of ours. A
//! controller call has its object with a finalizer in the store, a node call its entry in the journal, synced.
use serde_json::Value;

use crate::checks::all;
use crate::state::NodeState;
use crate::support::scripted::Ask;
use crate::universe::Inner;

/// What is not written down of a call that has come, if that is so.
pub fn missing(inner: &Inner, plugin: &str, node: &str, ask: &Ask) -> Option<String> {
    let text = |object: &Value, pointer: &str| {
        object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let kept = |object: &Value| {
        object.pointer("/metadata/finalizers").and_then(Value::as_array).is_some_and(|all| !all.is_empty())
    };
    let stored = |plural: &str, what: &[(&str, &str)]| {
        let same = |object: &&Value| what.iter().all(|(pointer, wanted)| text(object, pointer) == *wanted);
        let there =
            all(inner, plural).filter(|o| text(o, "/spec/plugin") == plugin).any(|o| same(&o) && kept(o));
        (!there).then(|| format!("no {plural} with a finalizer and {what:?} in the store"))
    };
    let journal = |directory: &str, field: &str, wanted: &str| {
        let said = inner.nodes.get(node).and_then(|node| level(node, directory, field));
        (said.as_deref() != Some(wanted)).then(|| format!("the journal says {said:?}, not {wanted}"))
    };
    match ask {
        Ask::CreateVolume(request) => stored("volumes", &[("/spec/source/create/name", &request.name)]),
        Ask::DeleteVolume(request) => stored("volumes", &[("/status/handle", &request.volume_id)]),
        Ask::ControllerPublishVolume(request) => stored(
            "volumeattachments",
            &[("/spec/handle", &request.volume_id), ("/spec/nodeId", &request.node_id)],
        ),
        Ask::ControllerUnpublishVolume(request) => stored(
            "volumeattachments",
            &[("/spec/handle", &request.volume_id), ("/spec/nodeId", &request.node_id)],
        ),
        Ask::CreateSnapshot(request) => {
            let told = |s: &&Value| {
                format!("snap-{}", text(s, "/metadata/uid")) == request.name
                    && kept(s)
                    && ["Unknown", "Up"].contains(&text(s, "/status/exists").as_str())
            };
            match all(inner, "snapshots").find(told) {
                None => Some(format!("no snapshot {} that may be there in the store", request.name)),
                Some(snapshot) => {
                    let uid = text(snapshot, "/metadata/uid");
                    let named = |v: &Value| v["status"]["snapshots"].to_string().contains(&uid);
                    let of_it = |v: &&Value| text(v, "/metadata/uid") == text(snapshot, "/status/of/uid");
                    // What has its handle is deleted by that, whatever becomes of the volume.
                    let known = !text(snapshot, "/status/handle").is_empty();
                    let stays = known || all(inner, "volumes").find(of_it).is_some_and(named);
                    (!stays).then(|| format!("its volume does not name {}", request.name))
                }
            }
        }
        Ask::DeleteSnapshot(request) => {
            let it = |s: &&Value| {
                text(s, "/status/handle") == request.snapshot_id
                    && kept(s)
                    && s["metadata"]["deletionTimestamp"].is_string()
            };
            let there = all(inner, "snapshots").any(|s| it(&s));
            (!there).then(|| {
                format!("no snapshot of handle {} that is being deleted in the store", request.snapshot_id)
            })
        }
        Ask::ControllerExpandVolume(_) | Ask::ControllerModifyVolume(_) => change(inner, plugin, ask),
        Ask::NodeStageVolume(request) => journal(&request.staging_target_path, "staged", "Rising"),
        Ask::NodeUnstageVolume(request) => journal(&request.staging_target_path, "staged", "Sinking"),
        Ask::NodePublishVolume(request) => journal(parent(&request.target_path), "level", "Rising"),
        Ask::NodeUnpublishVolume(request) => journal(parent(&request.target_path), "level", "Sinking"),
        _ => None,
    }
}

/// The same of a call that changes a volume: its host has said what it asks for.
fn change(inner: &Inner, plugin: &str, ask: &Ask) -> Option<String> {
    let handle = ask.volume().unwrap_or_default();
    let (said, wanted) = match ask {
        Ask::ControllerExpandVolume(request) => {
            let asked = |v: &Value| v.pointer("/status/expansion/asked/requiredBytes").cloned();
            let bytes = request.capacity_range.as_ref().map(|range| Value::from(range.required_bytes));
            (told_of(inner, plugin, handle, asked), bytes)
        }
        Ask::ControllerModifyVolume(request) => {
            let asked = |v: &Value| v.pointer("/status/modification/asked/parameters").cloned();
            (told_of(inner, plugin, handle, asked), serde_json::to_value(&request.mutable_parameters).ok())
        }
        _ => return None,
    };
    (said != wanted).then(|| format!("{handle} is said to be asked for {said:?}"))
}

/// What the Volume of this handle says of itself.
fn told_of<T>(inner: &Inner, plugin: &str, handle: &str, word: impl Fn(&Value) -> Option<T>) -> Option<T> {
    let of_it = |v: &&Value| v["spec"]["plugin"] == plugin && v["status"]["handle"] == handle;
    word(all(inner, "volumes").find(of_it)?)
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// What the last synced word about a directory says of it. Within an entry the directory comes before the level.
fn level(node: &NodeState, directory: &str, field: &str) -> Option<String> {
    let name = directory.rsplit('/').next()?.as_bytes();
    let journal = &node.files.get(&NodeState::data_dir(&node.name).join("journal"))?.durable;
    let at =
        (0..=journal.len().checked_sub(name.len())?).rev().find(|at| journal[*at..].starts_with(name))?;
    let rest = String::from_utf8_lossy(&journal[at..journal.len().min(at + 400)]).into_owned();
    let (_, said) = rest.split_once(&format!("\"{field}\":\""))?;
    Some(said.split('"').next()?.to_owned())
}
