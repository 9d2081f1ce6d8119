//! Allocations whose tasks serve a plugin: their PluginInstances are made, and they are let go when nothing needs them.
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use kube::ResourceExt;
use kube::api::ObjectMeta;
use serde_json::json;

use super::super::allocations::over;
use super::super::cache::{Name, name_of};
use super::super::context::Context;
use super::super::drive::Outcome;
use super::super::facts::{Instances, deleting, node_down, serves, uid};
use super::super::names::joined;
use super::super::placement::plugin_of;
use super::super::wake::{cluster, users_of_plugin};
use super::super::world::World;
use super::wanted::{Slot, Wanted, slot, wanted};
use super::{ours, own_allocations, rollout, undeclared};
use crate::api::allocation::{CsiPlugin, Task};
use crate::api::meta::{Condition, ObjectRef, READY, ReclaimPolicy, Rung, Truth, is_true};
use crate::api::plugin::{OTHER_DRIVER, Role};
use crate::api::{
    Allocation, Plugin, PluginInstance, PluginInstanceSpec, Snapshot, Volume, VolumeAttachment,
};
use crate::plan::Reason;
use crate::plan::plugins::{Facts, Going, given_up, released};
use crate::plan::registry::Service;

/// One look at one allocation. Those that serve no plugin are none of our business.
pub(crate) async fn reconcile(object: Arc<Allocation>, context: Arc<Context>) -> Outcome {
    let tasks: Vec<_> =
        object.spec.tasks.iter().filter_map(|t| t.csi_plugin.as_ref().map(|p| (t, p))).collect();
    let news = context.changing.set(&name_of(&*object), &served_still(&context, &object));
    for plugin in news {
        users_of_plugin(&context, &plugin);
        context.queues.plugins.add(cluster(&plugin));
    }
    if tasks.is_empty() {
        return Ok(None);
    }
    let status = object.status.clone().unwrap_or_default();
    let mut refused = String::new();
    if !status.node_name.is_empty() && !deleting(&*object) && !is_stopped(&object) {
        for (task, plugin) in &tasks {
            let why = make_instance(&context, &object, task, plugin, &status.node_name).await?;
            if let Some(why) = why.filter(|_| refused.is_empty()) {
                refused = format!("task {} serves nobody: {why}", task.name);
            }
        }
    }
    if status.plugin_refused != refused {
        let refused = Some(refused).filter(|refused| !refused.is_empty());
        context.merge(&*object, json!({ "status": { "pluginRefused": refused } })).await?;
    }
    let may = may_stop(&context, &object);
    // It waits for nothing but time then, which wakes nobody.
    let again = match &may {
        Err(Reason::SuccessorNotReady { .. }) => {
            let plugins = tasks.iter().filter_map(|(_, of)| context.world.plugins.named(&of.plugin_name));
            plugins.filter_map(|plugin| rollout::settles(&context, &plugin)).min()
        }
        Ok(_) | Err(_) => None,
    };
    let may_stop = may == Ok(true);
    // One that was let go stays let go: its node may have begun to stop it.
    let sticky = status.plugin_released && (deleting(&*object) || object.spec.stop);
    if status.plugin_released != (may_stop || sticky) {
        context.merge(&*object, json!({ "status": { "pluginReleased": may_stop } })).await?;
    }
    Ok(again)
}

/// Whether a person stopped it, and its node said that nothing of it is left: it is no instance until it is wanted again.
pub(super) fn is_stopped(allocation: &Allocation) -> bool {
    allocation.spec.stop && allocation.status.as_ref().is_some_and(|status| over(status, true))
}

/// Makes the PluginInstance of a task, or takes one back that is of something else by now. Returns why it has none.
async fn make_instance(
    context: &Context,
    object: &Allocation,
    task: &Task,
    csi: &CsiPlugin,
    node: &str,
) -> Result<Option<String>, super::Failure> {
    let (namespace, name) = name_of(object);
    let of = ObjectRef { namespace: namespace.clone(), name: name.clone(), uid: uid(object) };
    let instance = joined(&[&namespace, &name, &task.name], 240);
    let plugin = context.world.plugins.named(&csi.plugin_name);
    let known = context.world.instances.named(&instance);
    if let Some(known) = &known {
        let theirs = &known.spec.allocation;
        if theirs.uid != of.uid {
            // One of the same name that is gone takes its instance with it.
            let message = format!(
                "PluginInstance \"{instance}\" is of allocation {}/{}; give the task another name",
                theirs.namespace, theirs.name
            );
            context.tell::<Allocation>(&of, "NameTaken", &message).await;
            return Ok(Some(message));
        }
        let plugin = context.world.plugins.named(&known.spec.plugin);
        if !allowed(context, object, plugin.as_deref(), &namespace) {
            return revoke(context, object, known).await.map(|()| None);
        }
    }
    if !allowed(context, object, plugin.as_deref(), &namespace) {
        let message = format!(
            "Plugin \"{}\" takes no instances from namespace \"{namespace}\"; its allowInstancesFrom does not name it",
            csi.plugin_name
        );
        context.tell::<Allocation>(&of, "InstanceRefused", &message).await;
        return Ok(Some(message));
    }
    if uses(context, object, &csi.plugin_name) {
        let reason = Reason::OwnPlugin { plugin: csi.plugin_name.clone() };
        context.tell::<Allocation>(&of, reason.word(), &reason.to_string()).await;
        return Ok(Some(reason.to_string()));
    }
    if let Some(known) = known {
        return change(context, object, csi, &known).await.map(|()| None);
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
                audit: None,
                rooms: Vec::new(),
            },
            status: None,
        })
        .await
        .map(|_| None)
}

/// The very allocation that is meant, unless it is gone.
pub(super) fn allocation_of(context: &Context, of: &ObjectRef) -> Option<Arc<Allocation>> {
    let allocation = context.world.allocations.get(&(of.namespace.clone(), of.name.clone()));
    allocation.filter(|allocation| uid(&**allocation) == of.uid)
}

/// Whether a volume of the allocation is of this plugin.
fn uses(context: &Context, object: &Allocation, plugin: &str) -> bool {
    let namespace = object.namespace().unwrap_or_default();
    object.spec.volumes.iter().any(|volume| {
        let claim = context.world.claims.get(&(namespace.clone(), volume.claim_name.clone()));
        claim.is_some_and(|claim| plugin_of(&context.world, &claim) == plugin)
    })
}

/// What an instance shall do no more, although its allocation stays: its task's block says otherwise by now, or its
/// namespace is not allowed any more.
fn shall_give_up(context: &Context, instance: &PluginInstance) -> Option<Role> {
    let (spec, world) = (&instance.spec, &context.world);
    let object = allocation_of(context, &spec.allocation)?;
    let (from, namespace) = (world.plugins.named(&spec.plugin), &spec.allocation.namespace);
    if !allowed(context, &object, from.as_deref(), namespace) {
        return Some(spec.role);
    }
    let written = object.spec.tasks.iter().find(|task| task.name == spec.task)?.csi_plugin.as_ref()?;
    let same = written.plugin_name == spec.plugin;
    let to = world.plugins.named(&written.plugin_name);
    let may =
        allowed(context, &object, to.as_deref(), namespace) && !uses(context, &object, &written.plugin_name);
    given_up(spec.role, written.role, same).filter(|_| may)
}

/// The plugins that an allocation serves otherwise than is written, whatever becomes of that.
fn served_still(context: &Context, object: &Allocation) -> BTreeSet<String> {
    let mut plugins = BTreeSet::new();
    for task in &object.spec.tasks {
        let Some(instance) = instance_of(context, object, task) else { continue };
        let written = task.csi_plugin.as_ref().map(|block| (&block.plugin_name, block.role));
        if written != Some((&instance.spec.plugin, instance.spec.role))
            || shall_give_up(context, &instance).is_some()
        {
            plugins.insert(instance.spec.plugin.clone());
        }
    }
    plugins
}

/// The PluginInstance of a task.
fn instance_of(context: &Context, object: &Allocation, task: &Task) -> Option<Arc<PluginInstance>> {
    let (namespace, name) = name_of(object);
    let instance = context.world.instances.named(&joined(&[&namespace, &name, &task.name], 240))?;
    (instance.spec.allocation.uid == uid(object)).then_some(instance)
}

/// Lets a task serve as its block says by now: what says otherwise of it goes as soon as no volume needs what it gives up,
/// and is made anew. Until then its node leaves its process alone.
async fn change(
    context: &Context,
    object: &Allocation,
    csi: &CsiPlugin,
    instance: &PluginInstance,
) -> Result<(), super::Failure> {
    let from = &instance.spec;
    if from.plugin == csi.plugin_name && from.role == csi.role {
        return Ok(());
    }
    if let Some(reason) = change_waits(context, object, instance) {
        let message = format!(
            "its csiPlugin block changed; as Plugin \"{}\", role {:?}, it serves on while that has to be: {reason}",
            from.plugin, from.role
        );
        context.tell::<Allocation>(&from.allocation, "InstanceStays", &message).await;
        return Ok(());
    }
    context.delete_as_seen(instance).await
}

/// Why an instance cannot give up yet what it shall.
fn change_waits(context: &Context, object: &Allocation, instance: &PluginInstance) -> Option<Reason> {
    let lost = shall_give_up(context, instance)?;
    let of = (&instance.spec.plugin[..], lost, Some(&instance.spec.task[..]));
    released(&facts(context, object, of, &instance.spec.node_name, Going::Deleted)).err()
}

/// Whether another driver than that of the plugin's volumes is in its place: it is asked about none of them, and none needs it.
/// One that has answered as theirs once is theirs, whatever name the Plugin asks for by now.
fn is_another_driver(context: &Context, object: &Allocation, task: &Task) -> bool {
    let Some(instance) = instance_of(context, object, task) else { return false };
    let status = instance.status.clone().unwrap_or_default();
    let refused = |c: &Condition| c.kind == READY && c.status == Truth::False && c.reason == OTHER_DRIVER;
    let plugin = context.world.plugins.named(&instance.spec.plugin);
    let theirs = plugin.and_then(|plugin| plugin.status.as_ref().map(|s| s.driver_name.clone()));
    let known = status.provider.is_some_and(|provider| theirs.as_ref() == Some(&provider.name));
    !known && status.conditions.iter().any(refused)
}

/// The plugin that a task serves, and in which role: as it was admitted, until a change of that is. One that may not be
/// admitted serves none, unless it once was: its instance may be gone before the volumes.
fn served(context: &Context, object: &Allocation, task: &Task) -> Option<(String, Role)> {
    let written = task.csi_plugin.as_ref()?;
    if let Some(instance) = instance_of(context, object, task) {
        return Some((instance.spec.plugin.clone(), instance.spec.role));
    }
    let plugin = context.world.plugins.named(&written.plugin_name);
    let may = allowed(context, object, plugin.as_deref(), &object.namespace().unwrap_or_default());
    let pair = (written.plugin_name.clone(), written.role);
    (may || served_alone(context, object, (&pair.0, pair.1))).then_some(pair)
}

/// Whether nobody but this allocation can have brought up what its node has of a plugin: no other one has an instance there,
/// well or not. Who was never admitted is let go where the one that was stays.
fn served_alone(context: &Context, object: &Allocation, (plugin, role): (&str, Role)) -> bool {
    let node = object.status.as_ref().map(|s| s.node_name.clone()).unwrap_or_default();
    let mine = uid(object);
    let instances = Instances::of(&context.world, plugin);
    let alone = |service| {
        let another = |o: &Arc<PluginInstance>| {
            o.spec.node_name == node && o.spec.allocation.uid != mine && serves(o.spec.role, service)
        };
        serves(role, service) && !instances.objects.values().any(another)
    };
    let there = facts(context, object, (plugin, role, None), &node, Going::Deleted);
    !node.is_empty()
        && (alone(Service::Node) && !there.on_node.is_empty()
            || alone(Service::Controller) && !there.hosted.is_empty())
}

/// Takes back what was allowed once, as soon as no volume needs that instance.
async fn revoke(
    context: &Context,
    object: &Allocation,
    instance: &PluginInstance,
) -> Result<(), super::Failure> {
    let of = &instance.spec.allocation;
    let refused = format!(
        "Plugin \"{}\" takes no instances from namespace \"{}\" any more",
        instance.spec.plugin, of.namespace
    );
    match change_waits(context, object, instance) {
        None => {
            context.tell::<Allocation>(of, "InstanceRefused", &refused).await;
            context.delete_as_seen(instance).await
        }
        Some(needed) => {
            let message = format!("{refused}; it serves on while that has to be: {needed}");
            context.tell::<Allocation>(of, "InstanceStays", &message).await;
            Ok(())
        }
    }
}

/// Whether a task of this namespace may serve the plugin.
pub(super) fn allowed(
    context: &Context,
    object: &Allocation,
    plugin: Option<&Plugin>,
    namespace: &str,
) -> bool {
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
    let pictured = context.world.snapshots.by(&of_it);
    let pictured = pictured.iter().filter(|s| needs_deletion(s)).map(|s| snapshot_name(s));
    there.chain(attachments.iter().map(|a| a.spec.volume.clone())).chain(pictured).collect()
}

/// A snapshot as people find it among the volumes that need a plugin.
fn snapshot_name(snapshot: &Snapshot) -> String {
    format!("snapshot {}/{}", snapshot.namespace().unwrap_or_default(), snapshot.name_any())
}

/// Whether the plugin has, or may have, the snapshot, and will be asked about it.
fn needs_deletion(snapshot: &Snapshot) -> bool {
    let status = snapshot.status.clone().unwrap_or_default();
    let may_be = matches!(status.exists, Some(Rung::Unknown | Rung::Up));
    may_be && snapshot.is_cut() && snapshot.spec.deletion_policy == ReclaimPolicy::Delete
}

fn needs(volume: &Volume) -> bool {
    let status = volume.status.clone().unwrap_or_default();
    let host = status.controller.as_ref();
    let absent = status.exists == Some(Rung::Down) && !status.attempting;
    let surely_absent = absent && host.is_some_and(|h| h.epoch == status.observed_epoch);
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
        .or_else(|| context.changing.of(plugin).iter().find_map(|name| former_waits(context, name, plugin)))
}

/// Why an allocation that serves a plugin and shall not does so still.
fn former_waits(context: &Context, name: &Name, plugin: &str) -> Option<Reason> {
    let object = context.world.allocations.get(name)?;
    if deleting(&*object) || object.spec.stop {
        return may_stop(context, &object).err();
    }
    let instances = object.spec.tasks.iter().filter_map(|task| instance_of(context, &object, task));
    let of_plugin = instances.filter(|instance| instance.spec.plugin == plugin);
    of_plugin.into_iter().find_map(|instance| change_waits(context, &object, &instance))
}

/// Whether the allocation's instances may stop; if they shall but may not, why.
pub(super) fn may_stop(context: &Context, object: &Allocation) -> Result<bool, Reason> {
    let node = object.status.as_ref().map(|s| s.node_name.clone()).unwrap_or_default();
    let stops = deleting(object) || object.spec.stop;
    // One that serves no plugin yet is not let go before it shall.
    let mut may = stops || !node.is_empty() && node_down(&context.world, &node);
    let serving = object.spec.tasks.iter().filter(|task| !is_another_driver(context, object, task));
    for (plugin, role) in serving.filter_map(|task| served(context, object, task)) {
        // Only of one that shall stop it matters what is wanted in its place.
        let wanted = if stops { again(context, &plugin) } else { HashMap::new() };
        let next = comes(context, object, &wanted);
        let going = going(context, object, &node, next.is_some());
        // Where both run until the next one is up a person's deletion changes nothing.
        if let Some(next) = next.filter(|next| going == Going::Replaced && !next.is_met_by(object))
            && rollout::serves_on(context, &plugin, object, next)
        {
            return Err(Reason::SuccessorNotReady { successor: next.name.clone() });
        }
        // What the next one in another role does not do is left to nobody.
        let lost = next.filter(|_| going == Going::Replaced).and_then(|next| given_up(role, next.role, true));
        let (role, going) = lost.map_or((role, going), |lost| (lost, Going::Deleted));
        may &= released(&facts(context, object, (&plugin, role, None), &node, going))?;
    }
    Ok(may)
}

/// What the plugin wants now, by what it is for.
fn again(context: &Context, plugin: &str) -> HashMap<Slot, Wanted> {
    let plugin = context.world.plugins.named(plugin).filter(|p| !deleting(&**p));
    let wanted = plugin.map(|p| wanted(context, &p, &own_allocations(context, &p.name_any())));
    wanted.into_iter().flatten().map(|w| (w.slot(), w)).collect()
}

/// What comes in the place of an allocation that shall stop.
fn comes<'a>(
    context: &Context,
    object: &Allocation,
    wanted: &'a HashMap<Slot, Wanted>,
) -> Option<&'a Wanted> {
    // One that is deleted and wanted comes again, the same or another; one that a person stopped stays so.
    let next = wanted.get(&slot(object)).filter(|_| ours(context, object));
    next.filter(|next| deleting(object) || !next.is_met_by(object))
}

fn going(context: &Context, object: &Allocation, node: &str, comes: bool) -> Going {
    if !node.is_empty() && node_down(&context.world, node) {
        return Going::NodeDown;
    }
    if !deleting(object) && !object.spec.stop {
        return Going::No;
    }
    if comes { Going::Replaced } else { Going::Deleted }
}

/// What is known of the services that one task gives up, or all tasks of the allocation.
fn facts(
    context: &Context,
    object: &Allocation,
    (plugin, role, task): (&str, Role, Option<&str>),
    node: &str,
    going: Going,
) -> Facts {
    let world = &context.world;
    let of_it = format!("plugin:{plugin}");
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
    let mut hosted = names(&|v| needs(v) && host(v).as_deref() == Some(node));
    // Of a Volume that is gone, taken off by force, the attachment alone tells who has to detach.
    let alone = attachments.iter().filter(|a| hosted_alone(world, a, node));
    hosted.extend(alone.map(|a| a.spec.volume.clone()));
    let mut unhosted = names(&|v| needs(v) && host(v).is_none());
    for snapshot in world.snapshots.by(&of_it).iter().filter(|s| needs_deletion(s)) {
        match snapshot.status.as_ref().and_then(|status| status.calling_host()) {
            Some(host) if host.node_name == node => drop(hosted.insert(snapshot_name(snapshot))),
            Some(_) => {}
            None => drop(unhosted.insert(snapshot_name(snapshot))),
        }
    }
    let instances = Instances::of(world, plugin);
    let mine = uid(object);
    let others = |service: Service| {
        let other = |i: &&crate::plan::registry::Instance| {
            let of = instances.objects.get(&i.id);
            // Of an allocation that stays, its other tasks do.
            let another = |o: &PluginInstance| {
                o.spec.allocation.uid != mine || task.is_some_and(|task| task != o.spec.task)
            };
            of.is_some_and(|o| serves(o.spec.role, service) && another(o) && stays(context, o, service))
        };
        instances.list.iter().filter(|i| i.healthy_since.is_some()).filter(other).collect::<Vec<_>>()
    };
    let here = |service| others(service).iter().any(|i| i.node == node);
    // Of a driver without controllers nobody makes such a call.
    if !instances.has_controllers(world.plugins.named(plugin).as_deref()) {
        (hosted, unhosted) = Default::default();
    }
    Facts {
        going,
        role,
        on_node,
        hosted,
        unhosted,
        other_node_here: here(Service::Node),
        other_controller_here: here(Service::Controller),
        other_controller: !others(Service::Controller).is_empty(),
        node_services: node_services(&instances, (node, &mine)),
    }
}

/// The instances of the node service that a node says are healthy, but for those of one allocation: on a node that is taken
/// down nobody counts on them any more, but they are there.
fn node_services(instances: &Instances, (node, mine): (&str, &str)) -> BTreeSet<String> {
    let there = instances.objects.iter().filter(|(_, o)| {
        let ready = o.status.as_ref().is_some_and(|status| is_true(&status.conditions, READY));
        let of_it = o.spec.node_name == node && serves(o.spec.role, Service::Node);
        of_it && ready && o.spec.allocation.uid != mine
    });
    there.map(|(id, _)| id.clone()).collect()
}

/// The allocations whose tasks served plugins that shall stop for good, for as long as nothing that decides it has changed.
#[derive(Debug, Default)]
pub(crate) struct Leaving(Mutex<(Sources, ByPlugin)>);

type ByPlugin = HashMap<String, Arc<BTreeSet<Name>>>;

/// The versions of the caches that it was found from.
type Sources = [u64; 3];

/// The allocations with tasks of the plugin that shall make no controller calls of it any more: those that stop for good,
/// but not those in whose place another one comes, and those whose blocks say otherwise by now.
pub(crate) fn leaving(context: &Context, plugin: &str) -> Arc<BTreeSet<Name>> {
    let stopping = stopping_for_good(context, plugin);
    let mut former = context.changing.of(plugin);
    former.retain(|name| {
        let Some(object) = context.world.allocations.get(name) else { return false };
        let instances = object.spec.tasks.iter().filter_map(|task| instance_of(context, &object, task));
        let lost =
            instances.filter(|i| i.spec.plugin == plugin).map(|i| (shall_give_up(context, &i), i.spec.role));
        let goes = deleting(&*object) || object.spec.stop;
        lost.into_iter().any(|(lost, role)| lost.unwrap_or(role).controller() && (goes || lost.is_some()))
    });
    if former.is_empty() { stopping } else { Arc::new(&*stopping | &former) }
}

fn stopping_for_good(context: &Context, plugin: &str) -> Arc<BTreeSet<Name>> {
    let world = &context.world;
    let word = format!("leaving:{plugin}");
    if world.allocations.count(&word) == 0 {
        return Arc::default();
    }
    let sources = [world.allocations.version(), world.plugins.version(), world.nodes.version()];
    let known = || context.leaving.0.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) =
        Some(known()).filter(|known| known.0 == sources).and_then(|k| k.1.get(plugin).cloned())
    {
        return found;
    }
    let comes_again = again(context, plugin);
    let all = world.allocations.by(&word).into_iter().filter(|allocation| {
        let node = allocation.status.as_ref().map(|s| s.node_name.clone()).unwrap_or_default();
        let comes = comes(context, allocation, &comes_again).is_some();
        going(context, allocation, &node, comes) == Going::Deleted
    });
    let found = Arc::new(all.map(|allocation| name_of(&*allocation)).collect::<BTreeSet<_>>());
    let mut known = known();
    if known.0 != sources {
        *known = (sources, HashMap::new());
    }
    known.1.insert(plugin.to_owned(), Arc::clone(&found));
    found
}

/// Whether the node is host of an attachment whose Volume is gone.
pub(crate) fn hosted_alone(world: &World, attachment: &VolumeAttachment, node: &str) -> bool {
    let here = attachment.spec.host.as_ref().is_some_and(|host| host.node_name == node);
    let volume = || world.volumes.named(&attachment.spec.volume);
    here && volume().is_none_or(|v| v.metadata.uid.as_deref() != Some(&attachment.spec.volume_uid))
}

/// Whether another instance can be relied on for a service: it is not on its way out as well.
fn stays(context: &Context, one: &PluginInstance, service: Service) -> bool {
    let of = &one.spec.allocation;
    let allocation = context.world.allocations.get(&(of.namespace.clone(), of.name.clone()));
    let stopping = allocation.is_none_or(|a| deleting(&*a) || a.spec.stop);
    !stopping && !shall_give_up(context, one).is_some_and(|lost| serves(lost, service))
}
