//! What a node daemon may do: read the objects that name it, write its parts of their status, its lease, its events, and
//! the Secrets of its volumes.
//!
//! Which field of a kind names the node, and what the node writes then, is data of the kind ([`NodeRight`]). Decides from
//! values; [`super::handle`] and the verbs ask.
use serde_json::Value;

use super::Inner;
use super::access::{SYSTEM, Verb};
use super::query::Query;
use super::resource::{Nature, Resource};
use super::route::{Part, Target};
use super::selector::Selector;
use super::status::Refusal;
use crate::api::NodeRight;

/// The kinds whose objects may refer to Secrets, as a node names them when it asks for one.
const REFERRERS: [&str; 3] = ["volumes", "volumeattachments", "snapshots"];

/// Whether a node may make such a request at all, as far as that can be told before an object is read.
pub(super) async fn of_request(
    inner: &Inner,
    node: &str,
    (verb, target, query): (Verb, &Target, &Query),
) -> Result<(), Refusal> {
    let resource = &target.resource;
    let rights = resource.kind.nodes;
    let may = match (resource.nature, verb) {
        (Nature::Secret, Verb::Get) => may_read_secret(inner, node, target, query).await?,
        (Nature::CoreEvent | Nature::NewEvent, Verb::Create | Verb::Patch | Verb::Update) => true,
        _ if is_lease(resource) => match verb {
            Verb::Get | Verb::Update | Verb::Patch => is_own_lease(target, node),
            Verb::Create => target.namespace.as_deref() == Some(SYSTEM),
            _ => false,
        },
        (_, Verb::Get) => !rights.is_empty(),
        (_, Verb::List | Verb::Watch) => {
            let selector = Selector::of(target, query)?;
            rights.iter().any(|right| right.lists && right.by.is_none_or(|by| selector.wants(by, node)))
        }
        (_, Verb::Update | Verb::Patch) => {
            target.part == Part::Status && rights.iter().any(|right| !right.writes.is_empty())
        }
        _ => false,
    };
    if may { Ok(()) } else { Err(refused(node, resource, target.name.as_deref(), what(verb, resource))) }
}

fn what(verb: Verb, resource: &Resource) -> &'static str {
    match verb {
        Verb::List | Verb::Watch if !resource.kind.nodes.is_empty() => {
            "a node lists and watches only what names it: ask for that field with a field selector"
        }
        Verb::Get if resource.nature == Nature::Secret => {
            "a node reads only the Secrets of its volumes: say for which one with ?for=volumes/NAME"
        }
        _ => "a node has no right to that",
    }
}

/// Whether a node may see an object that was read.
pub(super) fn of_object(node: &str, resource: &Resource, object: &Value) -> Result<(), Refusal> {
    let own = match resource.nature {
        Nature::CoreEvent | Nature::NewEvent => is_of_event(object, node),
        // Asked before it was read.
        Nature::Secret => true,
        Nature::Review(_) | Nature::Definition => false,
        Nature::Plain | Nature::Namespace => {
            is_lease(resource)
                || resource.kind.nodes.iter().any(|right| right.by.is_none_or(|by| names(object, by, node)))
        }
    };
    let name = object["metadata"]["name"].as_str();
    if own { Ok(()) } else { Err(refused(node, resource, name, "it does not name this node")) }
}

/// Whether a node may make this of an object; `old` is null where it makes it.
pub(super) fn of_change(node: &str, resource: &Resource, old: &Value, new: &Value) -> Result<(), Refusal> {
    let name = new["metadata"]["name"].as_str();
    let refuse = |why: &str| Err(refused(node, resource, name, why));
    if is_lease(resource) {
        return if name == Some(node) { Ok(()) } else { refuse("it is not this node's lease") };
    }
    if matches!(resource.nature, Nature::CoreEvent | Nature::NewEvent) {
        let was = old.is_null() || is_of_event(old, node);
        return if was && is_of_event(new, node) { Ok(()) } else { refuse("it reports for another node") };
    }
    of_object(node, resource, old)?;
    let rights = resource.kind.nodes.iter();
    let rights = rights.filter(|right| right.by.is_some_and(|by| names(old, by, node)));
    let mine: Vec<&str> = rights.flat_map(|right: &NodeRight| right.writes).copied().collect();
    let (before, after) = (&old["status"], &new["status"]);
    let fields = [before, after].into_iter().filter_map(Value::as_object).flat_map(|fields| fields.keys());
    let changed = |field: &&String| before.get(field.as_str()) != after.get(field.as_str());
    match fields.filter(changed).find(|field| !mine.contains(&field.as_str())) {
        Some(other) => refuse(&format!("status.{other} is not for this node to write")),
        None => Ok(()),
    }
}

/// A Secret is for the node that hosts or has the volume that refers to it.
async fn may_read_secret(inner: &Inner, node: &str, target: &Target, query: &Query) -> Result<bool, Refusal> {
    let asked = query.asked_for.as_deref().and_then(|text| text.split_once('/'));
    let Some((plural, name)) = asked.filter(|(plural, _)| REFERRERS.contains(plural)) else {
        return Ok(false);
    };
    let Some(resource) = inner.registry.find(crate::api::GROUP, crate::api::VERSION, plural) else {
        return Ok(false);
    };
    // A Snapshot is named with its namespace.
    let (namespace, name) = match name.split_once('/') {
        Some((namespace, name)) if resource.kind.namespaced => (Some(namespace), name),
        None if !resource.kind.namespaced => (None, name),
        Some(_) | None => return Ok(false),
    };
    let Some(found) = inner.objects.get(resource, &resource.key(namespace, name)).await? else {
        return Ok(false);
    };
    let object = found.value(resource)?;
    let refers = |reference: &Value| {
        reference["name"].as_str() == target.name.as_deref()
            && reference["namespace"].as_str() == target.namespace.as_deref()
    };
    let references = object["spec"]["secrets"].as_object();
    let referred = references.is_some_and(|all| all.values().any(refers))
        || resource.kind.plural == "snapshots" && refers(&object["status"]["of"]["secret"]);
    Ok(referred && of_object(node, resource, &object).is_ok())
}

/// Whether a field of an object is this node's name.
fn names(object: &Value, path: &str, node: &str) -> bool {
    path.split('.').try_fold(object, |at, part| at.get(part)).and_then(Value::as_str) == Some(node)
}

fn is_lease(resource: &Resource) -> bool {
    resource.kind.group == "coordination.k8s.io" && resource.kind.plural == "leases"
}

fn is_own_lease(target: &Target, node: &str) -> bool {
    target.namespace.as_deref() == Some(SYSTEM) && target.name.as_deref() == Some(node)
}

fn is_of_event(event: &Value, node: &str) -> bool {
    // The two kinds of events write the reporter in the same field.
    event["reportingInstance"].as_str() == Some(node)
}

fn refused(node: &str, resource: &Resource, name: Option<&str>, why: &str) -> Refusal {
    let why = format!("User \"system:node:{node}\" may not: {why}");
    Refusal::forbidden(resource.subject(name.unwrap_or_default()), &why)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::resource::Registry;
    use super::*;

    fn refusal(plural: &str, old: &Value, new: &Value) -> Option<String> {
        let registry = Registry::new(crate::api::definitions());
        let resource = registry.find(crate::api::GROUP, crate::api::VERSION, plural).unwrap();
        of_change("a", resource, old, new).err().map(|refusal| refusal.message)
    }

    #[test]
    fn a_node_writes_its_part_and_no_other() {
        let attachment = json!({ "metadata": { "name": "x" },
            "spec": { "nodeName": "a", "host": { "nodeName": "b" } }, "status": { "node": { "staged": "Down" } } });
        let change = |field: &str| {
            let mut new = attachment.clone();
            new["status"][field] = json!({ "new": 1 });
            new
        };
        assert_eq!(refusal("volumeattachments", &attachment, &attachment), None);
        assert_eq!(refusal("volumeattachments", &attachment, &change("node")), None);
        let said = refusal("volumeattachments", &attachment, &change("controller")).unwrap();
        assert!(said.contains("status.controller is not for this node to write"), "{said}");
        let mut hosted = attachment.clone();
        hosted["spec"]["host"]["nodeName"] = json!("a");
        let mut new = hosted.clone();
        new["status"]["controller"] = json!({});
        assert_eq!(refusal("volumeattachments", &hosted, &new), None);
        // What it takes away it changes, too.
        let mut placed =
            json!({ "metadata": { "name": "x" }, "status": { "nodeName": "a", "phase": "Running" } });
        let mut moved = placed.clone();
        moved["status"].as_object_mut().unwrap().remove("nodeName");
        let said = refusal("allocations", &placed, &moved).unwrap();
        assert!(said.contains("status.nodeName"), "{said}");
        moved = placed.clone();
        moved["status"]["phase"] = json!("Complete");
        assert_eq!(refusal("allocations", &placed, &moved), None);
        placed["status"]["nodeName"] = json!("b");
        assert!(refusal("allocations", &placed, &moved).unwrap().contains("does not name this node"));
        let claim = json!({ "metadata": { "name": "x" } });
        let said = refusal(
            "volumeclaims",
            &claim,
            &json!({ "metadata": { "name": "x" }, "status": { "phase": "Lost" } }),
        );
        assert!(said.unwrap().contains("status.phase"));
    }

    #[test]
    fn a_node_sees_what_names_it() {
        let registry = Registry::new(crate::api::definitions());
        let ours = |plural: &str| registry.find(crate::api::GROUP, crate::api::VERSION, plural).unwrap();
        for (plural, object, seen) in [
            ("volumes", json!({ "status": { "controller": { "nodeName": "a" } } }), true),
            ("volumes", json!({ "status": { "controller": { "nodeName": "b" } } }), false),
            ("volumes", json!({}), false),
            ("plugininstances", json!({ "spec": { "nodeName": "a" } }), true),
            ("nodeagents", json!({ "metadata": { "name": "b" } }), false),
            ("plugins", json!({}), true),
            ("volumeclasses", json!({}), false),
            ("snapshots", json!({}), false),
            ("snapshots", json!({ "status": { "controller": { "nodeName": "a" } } }), true),
        ] {
            assert_eq!(of_object("a", ours(plural), &object).is_ok(), seen, "{plural} {object}");
        }
        let core = registry.find("", "v1", "nodes").unwrap();
        assert!(of_object("a", core, &json!({ "metadata": { "name": "a" } })).is_ok());
        assert!(of_object("a", core, &json!({ "metadata": { "name": "b" } })).is_err());
        assert!(of_object("a", registry.find("", "v1", "configmaps").unwrap(), &json!({})).is_err());
    }
}
