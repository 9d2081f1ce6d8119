//! Who serves a plugin: which instances count, a task that may not or does not yet, and one that shall serve another one, or
//! in another role.
use kube::ResourceExt;

use super::super::{Branch, Kind, State, Subject};
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

    /// Adds what an allocation that runs does not do, if it serves a plugin.
    pub(super) fn add_serving(&self, branch: &mut Branch, allocation: &Allocation) {
        let refused = allocation.status.as_ref().map(|s| s.plugin_refused.as_str()).unwrap_or_default();
        if !refused.is_empty() {
            branch.state = State::Blocked;
            branch.name_reason("InstanceRefused");
            branch.add(&format!("; {refused}"));
        }
        self.add_former(branch, allocation);
        self.add_unwell(branch, allocation);
    }

    /// Whether one is the allocation of the other, an instance: it is not held up by that, it is that.
    pub(in super::super) fn runs(&self, allocation: &Subject, instance: &Subject) -> bool {
        let of = self.instances.get(&key(&instance.name)).map(|object| &object.spec.allocation);
        let (namespace, name) = (&allocation.namespace, &allocation.name);
        instance.kind == Kind::Instance
            && allocation.kind == Kind::Allocation
            && of.is_some_and(|of| (&of.namespace, &of.name) == (namespace, name))
    }

    /// The PluginInstances of its tasks.
    fn instances_of(&self, allocation: &Allocation) -> impl Iterator<Item = &PluginInstance> {
        let (namespace, name) = (allocation.namespace().unwrap_or_default(), allocation.name_any());
        self.instances.values().copied().filter(move |instance| {
            let of = &instance.spec.allocation;
            (of.namespace.as_str(), of.name.as_str()) == (namespace.as_str(), name.as_str())
        })
    }

    /// Adds the first of its instances that is not healthy, unless the way has come from there.
    fn add_unwell(&self, branch: &mut Branch, allocation: &Allocation) {
        let all = self.instances_of(allocation).map(|instance| self.instance(&instance.name_any()));
        let Some(unwell) = all.into_iter().find(Branch::blocked) else { return };
        branch.state = State::Blocked;
        branch.because.push(unwell);
    }

    /// Adds the plugin that cannot do without the allocation as it was, if its csiPlugin block changed and waits for that.
    fn add_former(&self, branch: &mut Branch, allocation: &Allocation) {
        for task in &allocation.spec.tasks {
            let Some(block) = &task.csi_plugin else { continue };
            let of_task = |instance: &&PluginInstance| instance.spec.task == task.name;
            let Some(instance) = self.instances_of(allocation).find(of_task) else { continue };
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
