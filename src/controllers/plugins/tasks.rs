//! Allocations whose tasks serve a plugin: their PluginInstances are made, and they are let go when nothing needs them.
use std::collections::BTreeSet;
use std::sync::Arc;

use kube::ResourceExt;
use kube::api::ObjectMeta;
use serde_json::json;

use super::super::cache::name_of;
use super::super::context::Context;
use super::super::drive::Outcome;
use super::super::facts::{Instances, deleting, node_down, serves, uid};
use super::super::names::joined;
use super::wanted::{HASH, wanted};
use super::{ours, own_allocations, undeclared};
use crate::api::allocation::{CsiPlugin, Task};
use crate::api::meta::{ObjectRef, Rung};
use crate::api::plugin::Role;
use crate::api::{Allocation, Plugin, PluginInstance, PluginInstanceSpec, Volume};
use crate::plan::Reason;
use crate::plan::plugins::{Facts, Going, released};
use crate::plan::registry::Service;

/// One look at one allocation. Those that serve no plugin are none of our business.
pub(crate) async fn reconcile(object: Arc<Allocation>, context: Arc<Context>) -> Outcome {
    let tasks: Vec<_> =
        object.spec.tasks.iter().filter_map(|t| t.csi_plugin.as_ref().map(|p| (t, p))).collect();
    if tasks.is_empty() {
        return Ok(None);
    }
    let status = object.status.clone().unwrap_or_default();
    if !status.node_name.is_empty() && !deleting(&*object) {
        for (task, plugin) in &tasks {
            make_instance(&context, &object, task, plugin, &status.node_name).await?;
        }
    }
    let may_stop = may_stop(&context, &object) == Ok(true);
    // One that was let go stays let go: its node may have begun to stop it.
    let sticky = status.plugin_released && (deleting(&*object) || object.spec.stop);
    if status.plugin_released != (may_stop || sticky) {
        context.merge(&*object, json!({ "status": { "pluginReleased": may_stop } })).await?;
    }
    Ok(None)
}

async fn make_instance(
    context: &Context,
    object: &Allocation,
    task: &Task,
    csi: &CsiPlugin,
    node: &str,
) -> Result<(), super::Failure> {
    let (namespace, name) = name_of(object);
    let of = ObjectRef { namespace: namespace.clone(), name: name.clone(), uid: uid(object) };
    let instance = joined(&[&namespace, &name, &task.name], 240);
    if context.world.instances.named(&instance).is_some() {
        return Ok(());
    }
    let plugin = context.world.plugins.named(&csi.plugin_name);
    if !allowed(context, object, plugin.as_deref(), &namespace) {
        let message = format!(
            "Plugin \"{}\" takes no instances from namespace \"{namespace}\"; its allowInstancesFrom does not name it",
            csi.plugin_name
        );
        context.tell::<Allocation>(&of, "InstanceRefused", &message).await;
        return Ok(());
    }
    context
        .create(&PluginInstance {
            metadata: ObjectMeta { name: Some(instance), ..ObjectMeta::default() },
            spec: PluginInstanceSpec {
                plugin: csi.plugin_name.clone(),
                role: csi.role,
                node_name: node.to_owned(),
                allocation: of,
                task: task.name.clone(),
                driver_name: plugin.map(|p| p.spec.driver_name.clone()).unwrap_or_default(),
            },
            status: None,
        })
        .await
        .map(drop)
}

/// Whether a task of this namespace may serve the plugin.
fn allowed(context: &Context, object: &Allocation, plugin: Option<&Plugin>, namespace: &str) -> bool {
    let Some(plugin) = plugin else { return true };
    if ours(context, object) {
        return true;
    }
    match undeclared(plugin) {
        Some(from) => from == namespace,
        None => plugin.spec.allow_instances_from.iter().any(|allowed| allowed == namespace),
    }
}

/// The volumes that need the plugin: those that the backend has or may have, and those that a node has or may have.
pub(super) fn needing(context: &Context, plugin: &str) -> BTreeSet<String> {
    let of_it = format!("plugin:{plugin}");
    let volumes = context.world.volumes.by(&of_it);
    let attachments = context.world.attachments.by(&of_it);
    let there = volumes.iter().filter(|v| needs(v)).map(|v| v.name_any());
    there.chain(attachments.iter().map(|a| a.spec.volume.clone())).collect()
}

fn needs(volume: &Volume) -> bool {
    let status = volume.status.clone().unwrap_or_default();
    let host = status.controller.as_ref();
    let surely_absent =
        status.exists == Some(Rung::Down) && host.is_some_and(|h| h.epoch == status.observed_epoch);
    // One that was never attempted and is going needs nobody.
    let never = host.is_none() && deleting(volume);
    !surely_absent && !never
}

/// Why an instance that shall stop may not, for the Plugin's condition.
pub(super) fn held(context: &Context, plugin: &str) -> Option<Reason> {
    let serving = context.world.allocations.by(&format!("serves:{plugin}"));
    let leaving = serving.iter().filter(|a| deleting(&***a) || a.spec.stop);
    leaving
        .filter(|a| a.status.as_ref().is_none_or(|s| !s.plugin_released))
        .find_map(|a| may_stop(context, a).err())
}

/// Whether the allocation's instances may stop; if they shall but may not, why.
fn may_stop(context: &Context, object: &Allocation) -> Result<bool, Reason> {
    let node = object.status.as_ref().map(|s| s.node_name.clone()).unwrap_or_default();
    let mut may = true;
    for csi in object.spec.tasks.iter().filter_map(|t| t.csi_plugin.as_ref()) {
        let going = going(context, object, &csi.plugin_name, &node);
        may &= released(&facts(context, object, csi, &node, going))?;
    }
    Ok(may)
}

fn going(context: &Context, object: &Allocation, plugin: &str, node: &str) -> Going {
    if !node.is_empty() && node_down(&context.world, node) {
        return Going::NodeDown;
    }
    if !deleting(object) && !object.spec.stop {
        return Going::No;
    }
    let plugin = context.world.plugins.named(plugin);
    let replaced = plugin.filter(|p| !deleting(&**p) && ours(context, object)).is_some_and(|plugin| {
        let own = own_allocations(context, &plugin.name_any());
        let same = |name: &str| name == object.name_any();
        let wanted = wanted(context, &plugin, &own);
        wanted.iter().any(|w| same(&w.name) && object.annotations().get(HASH) != Some(&w.hash))
    });
    if replaced { Going::Replaced } else { Going::Deleted }
}

fn facts(context: &Context, object: &Allocation, csi: &CsiPlugin, node: &str, going: Going) -> Facts {
    let world = &context.world;
    let of_it = format!("plugin:{}", csi.plugin_name);
    let volumes = world.volumes.by(&of_it);
    let names = |keep: &dyn Fn(&Volume) -> bool| -> BTreeSet<String> {
        volumes.iter().filter(|v| keep(v)).map(|v| v.name_any()).collect()
    };
    let host = |v: &Volume| v.status.as_ref()?.calling_host().map(|h| h.node_name.clone());
    let held_here =
        |v: &Volume| v.status.as_ref().is_some_and(|s| s.holders.iter().any(|h| h.node_name == node));
    let mut on_node = names(&held_here);
    let attachments = world.attachments.by(&of_it);
    on_node.extend(attachments.iter().filter(|a| a.spec.node_name == node).map(|a| a.spec.volume.clone()));
    let instances = Instances::of(world, &csi.plugin_name);
    let mine = uid(object);
    let others = |service: Service| {
        let other = |i: &&crate::plan::registry::Instance| {
            let of = instances.objects.get(&i.id).map(|o| (o.spec.role, o.spec.allocation.uid.clone()));
            of.is_some_and(|(role, uid)| serves(role, service) && uid != mine)
                && !leaving(context, &instances, i)
        };
        instances.list.iter().filter(|i| i.healthy_since.is_some()).filter(other).collect::<Vec<_>>()
    };
    let here = |service| others(service).iter().any(|i| i.node == node);
    let other_here = match csi.role {
        Role::Controller => here(Service::Controller),
        Role::Node => here(Service::Node),
        Role::Monolith => here(Service::Controller) && here(Service::Node),
    };
    Facts {
        going,
        role: csi.role,
        on_node,
        hosted: names(&|v| needs(v) && host(v).as_deref() == Some(node)),
        unhosted: names(&|v| needs(v) && host(v).is_none()),
        other_here,
        other_controller: !others(Service::Controller).is_empty(),
    }
}

/// Whether an instance goes on: it is not to stop, or only for another one in its place.
pub(crate) fn stays(context: &Context, instance: &PluginInstance) -> bool {
    let of = &instance.spec.allocation;
    let Some(allocation) = context.world.allocations.get(&(of.namespace.clone(), of.name.clone())) else {
        return false;
    };
    match going(context, &allocation, &instance.spec.plugin, &instance.spec.node_name) {
        Going::No | Going::Replaced | Going::NodeDown => true,
        Going::Deleted => false,
    }
}

/// Whether another instance is on its way out as well and cannot be relied on.
fn leaving(context: &Context, instances: &Instances, one: &crate::plan::registry::Instance) -> bool {
    let of = instances.objects.get(&one.id).map(|o| o.spec.allocation.clone());
    let allocation = of.and_then(|of| context.world.allocations.get(&(of.namespace, of.name)));
    allocation.is_none_or(|a| deleting(&*a) || a.spec.stop)
}
