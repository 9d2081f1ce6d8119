//! The allocations that a Plugin's `instances` ask for.
use std::sync::Arc;

use kube::ResourceExt;
use kube::api::ObjectMeta;

use super::super::context::Context;
use super::super::facts::{deleting, lacks, node_down, node_ready};
use super::super::names::{hex, joined};
use crate::api::allocation::{AllocationSpec, CsiPlugin, RestartPolicy, Task};
use crate::api::plugin::{PluginInstances, Role};
use crate::api::{Allocation, Plugin};
use crate::plan::marks::{PLUGIN_LABEL, PLUGIN_NAME};
use crate::plan::plugins::{Node, wanted_nodes};

/// The annotation with the hash of what an allocation was made from.
const HASH: &str = "wharfline.dev/instances-hash";
/// The annotation with the name of the entry in `instances`.
const ENTRY: &str = "wharfline.dev/instances-name";
/// The task's name in such an allocation.
const TASK: &str = "plugin";

/// One allocation that shall be.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub(super) name: String,
    pub(super) hash: String,
    pub(super) node: String,
    pub(super) role: Role,
    plugin: String,
    entry: PluginInstances,
}

/// Every allocation that the Plugin asks for. One that is being deleted asks for those that it has.
pub(super) fn wanted(context: &Context, plugin: &Plugin, own: &[Arc<Allocation>]) -> Vec<Wanted> {
    let mut nodes = nodes(context);
    let mut all = Vec::new();
    for entry in &plugin.spec.instances {
        let hash = hash(entry);
        let of_it = |a: &&Arc<Allocation>| a.annotations().get(ENTRY) == Some(&entry.name);
        // One that stays says more than one that goes, whichever of the two comes last.
        let mut present: Vec<_> =
            own.iter().filter(of_it).map(|a| (a.spec.node_name.clone(), !deleting(&**a))).collect();
        present.sort();
        if entry.placement.replicas.is_some() {
            let begun = |node: &str| {
                let there = own.iter().filter(of_it).filter(|a| a.spec.node_name == node);
                there.filter_map(|a| a.status.as_ref()).any(|status| !status.is_unbegun())
            };
            let word = entry.runtime.word();
            for node in &mut nodes {
                node.lacks = word.is_some_and(|word| lacks(&context.world, &node.name, word).is_some())
                    && !begun(&node.name);
            }
        }
        for node in wanted_nodes(&entry.placement, &nodes, &present.into_iter().collect()) {
            let uid = plugin.uid().unwrap_or_default();
            let stem = joined(&[&plugin.name_any(), &entry.name], 200);
            all.push(Wanted {
                name: format!("{stem}-{}", hex(&[&uid, &entry.name, &node, &hash], 16)),
                hash: hash.clone(),
                node,
                role: entry.role,
                plugin: plugin.name_any(),
                entry: entry.clone(),
            });
        }
    }
    all
}

/// The entry in `instances` and the node that an allocation was made for.
pub(super) fn slot(allocation: &Allocation) -> Slot {
    let entry = allocation.annotations().get(ENTRY).cloned().unwrap_or_default();
    (entry, allocation.spec.node_name.clone())
}

/// An entry in `instances`, and a node.
pub(super) type Slot = (String, String);

/// What the process is started from; where it runs is not part of it.
fn hash(entry: &PluginInstances) -> String {
    let parts = (&entry.role, &entry.runtime, &entry.env, &entry.health_timeout);
    let more = (&entry.resources, &entry.mount_dir, &entry.stage_publish_base_dir);
    let says_more = !(more.0.is_empty() && more.1.is_empty() && more.2.is_empty());
    // A value of ours always has a JSON form.
    let mut text = serde_json::to_string(&parts).unwrap_or_default();
    // What was made before there were these fields stays as it is: another hash would start every plugin anew.
    if says_more {
        text += &serde_json::to_string(&more).unwrap_or_default();
    }
    hex(&[&text], 16)
}

fn nodes(context: &Context) -> Vec<Node> {
    let nodes = context.world.nodes.all();
    let staying = nodes.iter().filter(|n| !deleting(&***n));
    staying
        .map(|node| {
            let name = node.name_any();
            let ready = node_ready(node) && !node_down(&context.world, &name);
            Node { ready, labels: node.labels().clone(), lacks: false, name }
        })
        .collect()
}

impl Wanted {
    /// What it is made for.
    pub(super) fn slot(&self) -> Slot {
        (self.entry.name.clone(), self.node.clone())
    }

    /// Whether an allocation that was made for the same is of the spec that is wanted.
    pub(super) fn is_met_by(&self, allocation: &Allocation) -> bool {
        allocation.annotations().get(HASH) == Some(&self.hash)
    }

    /// The object to create.
    pub(super) fn allocation(&self, namespace: &str) -> Allocation {
        let label = if self.plugin.len() > 63 { hex(&[&self.plugin], 32) } else { self.plugin.clone() };
        let annotations =
            [(PLUGIN_NAME, self.plugin.clone()), (ENTRY, self.entry.name.clone()), (HASH, self.hash.clone())];
        let task = Task {
            name: TASK.to_owned(),
            runtime: self.entry.runtime.clone(),
            env: self.entry.env.clone(),
            resources: self.entry.resources.clone(),
            restart_policy: RestartPolicy::Always,
            csi_plugin: Some(CsiPlugin {
                plugin_name: self.plugin.clone(),
                role: self.entry.role,
                mount_dir: self.entry.mount_dir.clone(),
                stage_publish_base_dir: self.entry.stage_publish_base_dir.clone(),
                health_timeout: self.entry.health_timeout.clone(),
            }),
            ..Task::default()
        };
        Allocation {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                namespace: Some(namespace.to_owned()),
                labels: Some([(PLUGIN_LABEL.to_owned(), label)].into()),
                annotations: Some(annotations.map(|(k, v)| (k.to_owned(), v)).into()),
                ..ObjectMeta::default()
            },
            spec: AllocationSpec {
                node_name: self.node.clone(),
                tasks: vec![task],
                ..AllocationSpec::default()
            },
            status: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use std::collections::BTreeSet;

    use super::*;

    /// The entry of manifests/quickstart.yaml with these fields more.
    fn entry(more: &Value) -> PluginInstances {
        let mut entry = json!({ "name": "all", "role": "Monolith", "placement": { "everyNode": {} }, "runtime": {
            "process": { "command": ["wharfline", "csi", "dir", "--data-dir", "${DATA_DIR}/drivers/dir"] } } });
        entry.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(entry).unwrap()
    }

    /// Were it another, an upgrade would replace every plugin.
    #[test]
    fn the_hash_of_an_entry_of_old_fields_stays() {
        for same in [
            json!({}),
            json!({ "name": "other", "placement": { "replicas": 2 } }),
            json!({ "resources": {}, "mountDir": "", "stagePublishBaseDir": "", "env": {} }),
            json!({ "resources": { "limits": { "memory": "" } } }),
        ] {
            assert_eq!(hash(&entry(&same)), "887a978a0989ce46", "{same}");
        }
        let command = "[wharfline, csi, dir, --data-dir, \"${DATA_DIR}/drivers/dir\"]";
        assert!(include_str!("../../../manifests/quickstart.yaml").contains(command));
    }

    #[test]
    fn whatever_the_process_is_started_from_changes_the_hash() {
        let process = |more: Value| {
            let mut process = json!({ "command": ["x"] });
            process.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!({ "runtime": { "process": process } })
        };
        let fields = [
            json!({}),
            json!({ "role": "Node" }),
            json!({ "env": { "A": "b" } }),
            json!({ "healthTimeout": "30s" }),
            process(json!({})),
            process(json!({ "user": "a" })),
            process(json!({ "groups": ["a"] })),
            process(json!({ "capabilities": { "add": ["KILL"] } })),
            process(json!({ "capabilities": { "drop": ["KILL"] } })),
            json!({ "resources": { "limits": { "memory": "a" } } }),
            json!({ "resources": { "limits": { "cpu": "a" } } }),
            json!({ "resources": { "limits": { "pids": "a" } } }),
            json!({ "mountDir": "a" }),
            json!({ "stagePublishBaseDir": "a" }),
        ];
        let hashes: BTreeSet<_> = fields.iter().map(|more| hash(&entry(more))).collect();
        assert_eq!(hashes.len(), fields.len());
    }
}
