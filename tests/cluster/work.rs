//! What the tests on several machines put to work, and how they look at it.
use serde_json::Value;

use crate::rig::{Cluster, until};

/// A driver whose volumes are attached, on every node, over one backend.
pub(crate) fn driver(cluster: &Cluster) -> String {
    let backend = cluster.place("backend");
    include_str!("../../manifests/loop.yaml")
        .split("\n---\n")
        .take(3)
        .collect::<Vec<_>>()
        .join("\n---\n")
        .replace("${DATA_DIR}/drivers/loop", backend.to_str().unwrap())
}

/// An allocation of the claim `disk`, with one task.
pub(crate) fn allocation(name: &str, more: &str, script: &str) -> String {
    format!(
        "apiVersion: wharfline.dev/v1alpha1\nkind: Allocation\nmetadata: {{name: {name}}}\nspec:\n  {more}\n  \
         volumes: [{{name: disk, claimName: disk}}]\n  tasks:\n  - name: t\n    restartPolicy: Never\n    \
         runtime: {{process: {{command: [/bin/sh, -c, \"{script}\"]}}}}\n    \
         volumeMounts: [{{name: disk, mountPath: /disk}}]\n"
    )
}

/// A task that uses no volume.
pub(crate) fn plain(name: &str, more: &str) -> String {
    allocation(name, more, "exec sleep infinity")
        .replace("  volumes: [{name: disk, claimName: disk}]\n", "")
        .replace("    volumeMounts: [{name: disk, mountPath: /disk}]\n", "")
}

/// Waits for a phase of an allocation.
pub(crate) fn wait(cluster: &Cluster, name: &str, phase: &str) {
    let phase = format!("--for=jsonpath={{.status.phase}}={phase}");
    cluster.run(&["wait", &format!("allocation/{name}"), &phase, "--timeout", "60s"]);
}

/// The message of what an allocation waits for.
pub(crate) fn blocker(cluster: &Cluster, name: &str) -> String {
    let conditions = cluster.get("allocation", name)["status"]["conditions"].clone();
    let unmet = conditions.as_array().into_iter().flatten().filter(|c| c["status"] != "True");
    unmet
        .map(|c| format!("{}: {}\n", c["reason"].as_str().unwrap(), c["message"].as_str().unwrap()))
        .collect()
}

/// Takes everything down, sees that nothing is left, and turns the machines off.
pub(crate) fn finish(mut cluster: Cluster, nodes: &[&str]) {
    for kind in ["allocations", "volumeclaims", "volumeclasses", "plugins"] {
        cluster.run(&["delete", kind, "--all", "--timeout", "60s"]);
    }
    for kind in ["volumes", "volumeattachments", "plugininstances", "allocations"] {
        assert_eq!(cluster.list(kind), Vec::<Value>::new(), "{kind}");
    }
    let left = std::fs::read_dir(cluster.place("backend").join("volumes"));
    assert_eq!(left.map_or(0, Iterator::count), 0, "the backend has volumes left");
    for node in nodes {
        assert_eq!(cluster.mounts(node), Vec::<String>::new(), "{node} has mounts left");
    }
    for node in nodes {
        cluster.power_off(node);
    }
}

/// Where an allocation is bound.
pub(crate) fn node_of(cluster: &Cluster, name: &str) -> String {
    cluster.get("allocation", name)["status"]["nodeName"].as_str().unwrap_or_default().to_owned()
}

/// Whether a node is ready, in the words of its condition.
pub(crate) fn readiness(cluster: &Cluster, node: &str) -> (String, String) {
    let conditions = cluster.get("node", node)["status"]["conditions"].clone();
    let ready = conditions.as_array().into_iter().flatten().find(|c| c["type"] == "Ready");
    let word = |field: &str| ready.and_then(|c| c[field].as_str()).unwrap_or_default().to_owned();
    (word("status"), word("lastTransitionTime"))
}

/// A task that says when it was started, and then writes a line ten times a second for as long as it can.
pub(crate) const BEATS: &str = "echo run >> /disk/runs; while echo beat >> /disk/beats; do sleep 0.1; done";

/// How many lines the machine of an allocation sees in a file of its volume.
pub(crate) fn lines(cluster: &Cluster, allocation: &Value, file: &str) -> usize {
    let status = &allocation["status"];
    let path = format!("{}/{file}", status["volumes"][0]["path"].as_str().unwrap());
    let path = cluster.inside(status["nodeName"].as_str().unwrap(), &path);
    std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        .lines()
        .count()
}

/// Waits until the task has written so many lines more: it runs on, and time has passed.
pub(crate) fn beats(cluster: &Cluster, allocation: &Value, more: usize) {
    let before = lines(cluster, allocation, "beats");
    until("the task writes on", || lines(cluster, allocation, "beats") >= before + more);
}

/// The plugins' instances that can be asked.
pub(crate) fn instances(cluster: &Cluster) -> Vec<(String, String)> {
    let ready = |instance: &&Value| {
        let conditions = instance["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
    };
    let all = cluster.list("plugininstances");
    let word = |value: &Value| value.as_str().unwrap().to_owned();
    all.iter().filter(ready).map(|i| (word(&i["metadata"]["uid"]), word(&i["spec"]["nodeName"]))).collect()
}
