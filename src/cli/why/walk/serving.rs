//! A task that serves a plugin, and shall serve another one, or in another role.
use kube::ResourceExt;

use super::super::{Branch, State};
use super::{Service, Walk};
use crate::api::{Allocation, PluginInstance};

impl Walk<'_> {
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
