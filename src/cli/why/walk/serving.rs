//! Who serves a plugin: which instances count, and a task that shall serve another one, or in another role.
use kube::ResourceExt;

use super::super::{Branch, State};
use super::{Service, Walk, key};
use crate::api::meta::is_true;
use crate::api::{Allocation, PluginInstance};

impl Walk<'_> {
    /// Whether an instance counts: what it said of itself last is worth nothing while its node is lost.
    pub(super) fn is_healthy(&self, instance: &PluginInstance) -> bool {
        let status = self.nodes.get(&key(&instance.spec.node_name)).and_then(|node| node.status.as_ref());
        let conditions = status.and_then(|s| s.conditions.as_deref()).unwrap_or_default();
        let lost = conditions.iter().any(|c| c.type_ == "Ready" && c.status != "True");
        !lost && instance.status.as_ref().is_some_and(|s| is_true(&s.conditions, "Ready"))
    }

    /// Adds the plugin that cannot do without the allocation as it was, if its csiPlugin block changed and waits for that.
    pub(super) fn add_former(&self, branch: &mut Branch, allocation: &Allocation) {
        let (namespace, name) = (allocation.namespace().unwrap_or_default(), allocation.name_any());
        for task in &allocation.spec.tasks {
            let Some(block) = &task.csi_plugin else { continue };
            let of_task = |instance: &&&PluginInstance| {
                let of = &instance.spec.allocation;
                (of.namespace.as_str(), of.name.as_str(), instance.spec.task.as_str())
                    == (namespace.as_str(), name.as_str(), task.name.as_str())
            };
            let Some(instance) = self.instances.values().find(of_task) else { continue };
            let (plugin, role) = (&instance.spec.plugin, instance.spec.role);
            if (plugin, role) == (&block.plugin_name, block.role) {
                continue;
            }
            branch.state = State::Blocked;
            branch.name_reason("InUse");
            branch.add(&format!(
                "; its csiPlugin block changed, and task {} serves plugin {plugin} as {role:?} until nothing needs that",
                task.name
            ));
            branch.because.extend(Some(self.plugin(plugin, Service::Any)).filter(Branch::blocked));
        }
    }
}
