//! Objects that several tests use.
use serde_json::{Value, json};

use crate::bench::{Bench, Seen, condition};

/// A plugin with one Monolith on every node.
pub(crate) fn plugin(name: &str, scope: &str) -> Value {
    json!({ "metadata": { "name": name }, "spec": { "controllerScope": scope, "instances": [
        { "name": "all", "role": "Monolith", "runtime": { "process": { "command": ["driver"] } } }] } })
}

/// A class of that plugin.
pub(crate) fn class(name: &str, plugin: &str) -> Value {
    json!({ "metadata": { "name": name }, "spec": { "plugin": plugin } })
}

/// A claim of a class.
pub(crate) fn claim(name: &str, class: &str, mode: &str) -> Value {
    json!({ "metadata": { "name": name }, "spec": { "volumeClassName": class, "accessModes": [mode],
        "resources": { "requests": { "storage": "1Gi" } } } })
}

/// An allocation without tasks that keeps one claim published, pinned unless `node` is empty.
pub(crate) fn user(name: &str, claim: &str, node: &str) -> Value {
    json!({ "metadata": { "name": name }, "spec": { "nodeName": node,
        "volumes": [{ "name": "v", "claimName": claim }] } })
}

/// A plugin `disk` of the whole cluster with class `disk`.
pub(crate) async fn disk(bench: &Bench) {
    bench.make("plugins", plugin("disk", "Cluster")).await;
    bench.make("volumeclasses", class("disk", "disk")).await;
    bench.until("the plugin is ready", |seen| ready(&seen.get("plugins", "", "disk"))).await;
}

/// Whether an object's `Ready` is `True`.
pub(crate) fn ready(object: &Value) -> bool {
    condition(object, "Ready")["status"] == "True"
}

/// The reason of an object's `Ready`.
pub(crate) fn why(object: &Value) -> String {
    condition(object, "Ready")["reason"].as_str().unwrap_or_default().to_owned()
}

/// The phase of an allocation in `default`.
pub(crate) fn phase(seen: &Seen, name: &str) -> String {
    seen.get("allocations", "default", name)["status"]["phase"].as_str().unwrap_or_default().to_owned()
}
