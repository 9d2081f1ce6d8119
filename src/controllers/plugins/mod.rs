//! Plugins: their instances run as allocations, their status is counted, and they stop only when no volume needs them.
mod changing;
mod instances;
mod rollout;
mod rooms;
mod tasks;
mod wanted;

use std::collections::BTreeSet;
use std::sync::Arc;

use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use super::context::Context;
use super::drive::Outcome;
use super::facts::{Instances, deleting, with_condition};
use super::write::Failure;
use crate::api::meta::{Condition, ObjectRef, READY, Truth, is_true};
use crate::api::plugin::{CRASH_LOOP, Health, OTHER_DRIVER, Provider, Role, STEADY, capability};
use crate::api::{Allocation, Plugin, PluginInstance, PluginStatus};
use crate::plan::Reason;
use crate::plan::marks::{PLUGIN_NAME, UNDECLARED_FROM};
use crate::plan::registry::{self, Instance, Service};

pub(crate) use changing::Changing;
pub(crate) use instances::reconcile as reconcile_instance;
pub(crate) use rollout::Settling;
pub(crate) use rooms::room;
pub(crate) use tasks::{Leaving, hosted_alone, leaving, reconcile as reconcile_task};
use wanted::Wanted;

/// What is said of instances of one version that tell different capabilities.
const DIFFER: &str = "CapabilitiesDiffer";
/// Its controllers and its nodes do not know the same access modes.
const MODES_DIFFER: &str = "AccessModesDiffer";
/// What is said while the API does not take the allocation of an instance, such as one of before what it says was refused.
const NOT_MADE: &str = "InstanceNotMade";

/// One look at one Plugin.
pub(crate) async fn reconcile(plugin: Arc<Plugin>, context: Arc<Context>) -> Outcome {
    let name = plugin.name_any();
    let own = own_allocations(&context, &name);
    let needed = tasks::needing(&context, &name);
    let wanted = wanted::wanted(&context, &plugin, &own);
    let mut made = Ok(());
    if deleting(&*plugin) {
        if needed.is_empty() && own.is_empty() {
            context.release(&*plugin).await?;
            return Ok(None);
        }
        if needed.is_empty() {
            for allocation in own.iter().filter(|a| !deleting(&***a)) {
                context.delete(&**allocation).await?;
            }
        } else {
            made = rollout::place_again(&context, &plugin, &own, &wanted).await;
        }
    } else if undeclared(&plugin).is_some() && unused(&context, &plugin) {
        if let Some(seen) = untouched(&context, &plugin).await? {
            context.delete_as_seen(&seen).await?;
            return Ok(None);
        }
    } else {
        made = rollout::place(&context, &plugin, &own, &wanted).await;
    }
    let asked = if deleting(&*plugin) { Ok(()) } else { rooms::ask(&context, &plugin).await };
    let refusal = match &made {
        Ok(()) => None,
        Err(Failure::Refused { message, .. }) => Some(message.as_str()),
        Err(Failure::Conflict | Failure::Gone | Failure::Unsaid(_) | Failure::NoAnswer(_)) => {
            return made.map(|()| None);
        }
    };
    let patch = status(&context, &plugin, (&own, &wanted), (&needed, refusal)).await;
    if !patch.is_null() {
        context.merge(&*plugin, json!({ "status": patch })).await?;
    }
    // Tried again, at growing pauses; what is known of its instances is told all the same.
    asked?;
    made.map(|()| rollout::settles(&context, &plugin))
}

/// The namespace that an undeclared Plugin belongs to. A person who writes anything into its spec declares it.
pub(crate) fn undeclared(plugin: &Plugin) -> Option<&String> {
    let empty = plugin.spec == crate::api::PluginSpec::default();
    plugin.annotations().get(UNDECLARED_FROM).filter(|_| empty)
}

fn unused(context: &Context, plugin: &Plugin) -> bool {
    let (world, name) = (&context.world, plugin.name_any());
    let of_it = format!("plugin:{name}");
    // One that may not serve it waits for it in vain, and for its end.
    let may =
        |a: &Arc<Allocation>| tasks::allowed(context, a, Some(plugin), &a.namespace().unwrap_or_default());
    world.instances.names(&of_it).is_empty()
        && world.volumes.names(&of_it).is_empty()
        && world.snapshots.names(&of_it).is_empty()
        && world.attachments.names(&of_it).is_empty()
        && !world.allocations.by(&format!("serves:{name}")).iter().any(may)
}

/// An undeclared Plugin as the server itself has it, if it is as we made it: a declaration may be as young as the reason to
/// delete, and who applied it or gave it a label means it to stay, although its spec says nothing.
async fn untouched(context: &Context, plugin: &Plugin) -> Result<Option<Plugin>, Failure> {
    let found: Option<Plugin> = context.read(&Plugin::url_path(&(), None), &plugin.name_any()).await?;
    Ok(found.filter(|found| {
        let bare = found.managed_fields().is_empty() && found.labels().is_empty();
        let ours = found.annotations().keys().all(|name| name == UNDECLARED_FROM);
        found.uid() == plugin.uid() && undeclared(found).is_some() && bare && ours
    }))
}

/// The allocations that were made for this plugin.
fn own_allocations(context: &Context, plugin: &str) -> Vec<Arc<Allocation>> {
    let mut own = context.world.allocations.by(&format!("of:{plugin}"));
    own.retain(|a| ours(context, a));
    own
}

/// Whether an allocation was made by this controller.
fn ours(context: &Context, allocation: &Allocation) -> bool {
    allocation.namespace().as_deref() == Some(&context.options.system_namespace)
        && allocation.annotations().contains_key(PLUGIN_NAME)
}

/// The part of the status that is to be written; null when nothing is.
async fn status(
    context: &Context,
    plugin: &Plugin,
    (own, wanted): (&[Arc<Allocation>], &[Wanted]),
    (needed, refusal): (&BTreeSet<String>, Option<&str>),
) -> Value {
    let old = plugin.status.clone().unwrap_or_default();
    let instances = Instances::of(&context.world, &plugin.name_any());
    let list = rollout::counted(context, plugin, &instances, (own, wanted));
    let (controllers, nodes) = registry::health(&list);
    let provider = provider(&instances).or_else(|| old.provider.clone());
    let has_volumes = known_to_driver(context, &plugin.name_any());
    let unknown = has_volumes && old.driver_name.is_empty();
    let maker = if unknown { maker(context, plugin, &instances) } else { None };
    let mut new = PluginStatus {
        driver_name: crate::plan::plugins::driver_of_volumes(
            &old.driver_name,
            maker.as_ref().map(|p| p.name.as_str()),
            has_volumes,
            instances.list.iter().any(|i| refused(context, i)),
        ),
        provider,
        controllers: Some(controllers),
        nodes: Some(nodes),
        capabilities: capabilities(&instances).unwrap_or_else(|| old.capabilities.clone()),
        topology_keys: topology_keys(&instances).unwrap_or_else(|| old.topology_keys.clone()),
        undeclared_from: undeclared(plugin).cloned().unwrap_or_default(),
        conditions: Vec::new(),
    };
    let condition = match refusal {
        Some(refusal) => not_made(refusal),
        None => ready(context, plugin, &list, (controllers, nodes), needed),
    };
    let condition = condition.of_generation(plugin.metadata.generation);
    if [DIFFER, MODES_DIFFER, CRASH_LOOP].contains(&condition.reason.as_str()) {
        let (name, uid) = (plugin.name_any(), plugin.uid().unwrap_or_default());
        let of = ObjectRef { namespace: String::new(), name, uid };
        context.tell::<Plugin>(&of, &condition.reason, &condition.message).await;
    }
    new.conditions = with_condition(context, &old.conditions, condition);
    if let Some(condition) = rollout::updated(context, plugin, &instances, (own, wanted)).await {
        new.conditions = with_condition(context, &new.conditions, condition);
    }
    if new == old {
        return Value::Null;
    }
    let undeclared = Some(&new.undeclared_from).filter(|from| !from.is_empty());
    let driver_name = Some(&new.driver_name).filter(|name| !name.is_empty());
    json!({
        "provider": new.provider, "driverName": driver_name, "controllers": new.controllers, "nodes": new.nodes,
        "capabilities": new.capabilities, "topologyKeys": new.topology_keys,
        "undeclaredFrom": undeclared, "conditions": new.conditions,
    })
}

/// What is said of a Plugin of which an instance was refused; no volume that others have is the worse for it.
fn not_made(refusal: &str) -> Condition {
    let message = format!("the API refuses its next instance, correct spec.instances: {refusal}");
    Condition::new(READY, Truth::False, NOT_MADE, message)
}

fn ready(
    context: &Context,
    plugin: &Plugin,
    list: &[Instance],
    (controllers, nodes): (Health, Health),
    needed: &BTreeSet<String>,
) -> Condition {
    let not = |reason: &str, message: String| Condition::new(READY, Truth::False, reason, message);
    if deleting(plugin) {
        if needed.is_empty() {
            return not("Stopping", "no volume needs it; its instances are being stopped".to_owned());
        }
        let reason = crate::plan::plugins::in_use(needed);
        return not(reason.word(), reason.to_string());
    }
    if let Some(reason) = tasks::held(context, &plugin.name_any()) {
        return not(reason.word(), reason.to_string());
    }
    if list.is_empty() {
        return not(Reason::NoNodes.word(), "no node has an instance of it".to_owned());
    }
    let healthy = controllers.healthy == controllers.expected && nodes.healthy == nodes.expected;
    if healthy && let Some((version, words)) = disagreement(context, &plugin.name_any()) {
        let words = words.into_iter().collect::<Vec<_>>().join(", ");
        let message = format!(
            "every instance is healthy, but those of version {version:?} do not agree on what the driver can do: {words}; \
             its vendor has to say why"
        );
        return Condition::new(READY, Truth::True, DIFFER, message);
    }
    let instances = Instances::of(&context.world, &plugin.name_any());
    if healthy && let Some(message) = modes_differ(&instances) {
        return Condition::new(READY, Truth::True, MODES_DIFFER, message);
    }
    if healthy {
        // One that was never healthy is no matter of those that are, nor is one beside which another one serves.
        let well = |o: &PluginInstance| o.status.as_ref().is_some_and(|s| is_true(&s.conditions, READY));
        let shaky = |o: &PluginInstance| o.status.as_ref().is_some_and(|s| s.unsteady().is_some());
        let steady: BTreeSet<_> =
            instances.objects.values().filter(|o| well(o) && !shaky(o)).map(|o| place(o)).collect();
        let unsteady = |o: &&Arc<PluginInstance>| well(o) && shaky(o) && !steady.contains(&place(o));
        return match instances.objects.values().find(unsteady) {
            Some(instance) => Condition::new(READY, Truth::True, CRASH_LOOP, loops(instance)),
            None => Condition::new(READY, Truth::True, "Ready", "every instance is healthy"),
        };
    }
    if let Some((_, holder)) = registry::duplicate_node_ids(list).first() {
        let message =
            format!("two nodes report one node id, node \"{holder}\" first; its later instance is not used");
        return not("DuplicateNodeID", message);
    }
    // The instance that says what is wrong with it says more than we can.
    let unwell = list.iter().filter(|i| i.healthy_since.is_none());
    if let Some((reason, message)) =
        unwell.filter_map(|i| context.world.instances.named(&i.id)).find_map(fault)
    {
        return not(&reason, message);
    }
    let missing = || list.iter().filter(|i| i.healthy_since.is_none()).map(|i| i.node.as_str());
    let nodes: BTreeSet<_> = missing().filter(|node| !node.is_empty()).collect();
    let nowhere = missing().filter(|node| node.is_empty()).count();
    if nodes.is_empty() {
        let message = format!(
            "replicas asks for {nowhere} more than there are nodes that are ready, and a node has one of each entry"
        );
        return not(Reason::NoNodes.word(), message);
    }
    let nodes = nodes.into_iter().take(5).collect::<Vec<_>>().join(", ");
    not("PluginNotReady", format!("waits for a healthy instance on {nodes}"))
}

/// What an instance does, and where.
fn place(instance: &PluginInstance) -> (Role, &str) {
    (instance.spec.role, &instance.spec.node_name)
}

fn loops(instance: &PluginInstance) -> String {
    let node = &instance.spec.node_name;
    format!("every instance is healthy now, but the one on node \"{node}\" {}", loops_said(instance))
}

/// Says the same at each of its ends.
fn loops_said(instance: &PluginInstance) -> String {
    let name = instance.name_any();
    format!(
        "ends soon after each start; its condition {STEADY} says how: wharfline describe plugininstance/{name}"
    )
}

/// What an instance says is wrong with it, and where it is.
fn fault(instance: Arc<PluginInstance>) -> Option<(String, String)> {
    let status = instance.status.as_ref()?;
    let said = status.conditions.iter().find(|c| c.kind == READY && c.status == Truth::False)?;
    let told = !said.reason.is_empty() && said.reason != "Starting";
    told.then(|| (said.reason.clone(), format!("on node \"{}\": {}", instance.spec.node_name, said.message)))
}

/// Whether another driver than that of the volumes is in the place of this instance.
fn refused(context: &Context, instance: &Instance) -> bool {
    let object = context.world.instances.named(&instance.id);
    let conditions = object.and_then(|o| o.status.clone()).unwrap_or_default().conditions;
    conditions.iter().any(|c| c.kind == READY && c.status == Truth::False && c.reason == OTHER_DRIVER)
}

/// Whether there is a volume or a snapshot of the plugin, which one driver alone knows.
pub(super) fn known_to_driver(context: &Context, plugin: &str) -> bool {
    let (world, of_it) = (&context.world, format!("plugin:{plugin}"));
    world.volumes.count(&of_it) + world.snapshots.count(&of_it) > 0
}

fn provider(instances: &Instances) -> Option<Provider> {
    let mut healthy = instances.healthy(Service::Node).chain(instances.healthy(Service::Controller));
    healthy.find_map(|i| i.status.as_ref().and_then(|s| s.provider.clone()))
}

/// Who makes the volumes of a plugin: the driver on the node that is host of them, for on another node another one may
/// run still. Without controllers, whoever there is; absent while there is a choice and no host yet.
fn maker(context: &Context, plugin: &Plugin, instances: &Instances) -> Option<Provider> {
    if !instances.has_controllers(Some(plugin)) {
        return provider(instances);
    }
    let of = |node: &str| instances.serving(Service::Controller, node)?.status.as_ref()?.provider.clone();
    let volumes = context.world.volumes.by(&format!("plugin:{}", plugin.name_any()));
    volumes.iter().find_map(|v| of(&v.status.as_ref()?.controller.as_ref()?.node_name))
}

/// What instances of one version tell differently of the plugin as a whole.
fn disagreement(context: &Context, plugin: &str) -> Option<(String, BTreeSet<String>)> {
    let instances = Instances::of(&context.world, plugin);
    let told = instances.objects.values().filter_map(|instance| {
        let status = instance.status.as_ref()?;
        let version = status.provider.as_ref()?.version.as_str();
        let controller = instance.spec.role.controller();
        Some(registry::Told { version, controller, words: &status.capabilities })
    });
    registry::disagreement(&told.collect::<Vec<_>>())
}

/// What is to be said of the access modes that the two sides know.
fn modes_differ(instances: &Instances) -> Option<String> {
    let knows = |service: Service, word: &str| {
        instances.healthy(service).next().map(|_| instances.all_can(service, word))
    };
    crate::plan::plugins::modes_differ(
        knows(Service::Controller, capability::CONTROLLER_MULTI_WRITER),
        knows(Service::Node, capability::NODE_MULTI_WRITER),
    )
}

/// What all healthy instances can do, each in what is its own; absent while none is healthy, so that a restart changes nothing.
fn capabilities(instances: &Instances) -> Option<Vec<String>> {
    let of_nodes = |word: &&String| word.starts_with("node/");
    let controllers = instances.in_common(Service::Controller).filter(|word| !of_nodes(word));
    let nodes =
        instances.in_common(Service::Node).filter(|word| of_nodes(word) || word.starts_with("plugin/"));
    let all: BTreeSet<&String> = controllers.chain(nodes).collect();
    (!all.is_empty()).then(|| all.into_iter().cloned().collect())
}

fn topology_keys(instances: &Instances) -> Option<Vec<String>> {
    let keys: BTreeSet<_> =
        instances.topologies().into_iter().flat_map(std::collections::BTreeMap::into_keys).collect();
    (!keys.is_empty()).then(|| keys.into_iter().collect())
}
