//! What several controllers read from the caches: nodes and the instances of a plugin. Reads only.
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use super::context::Context;
use super::world::World;
use crate::api::allocation::DRAIN;
use crate::api::meta::{Condition, READY, Segments, Time, is_true, set_condition};
use crate::api::node_agent::{self, OUT_OF_SERVICE};
use crate::api::plugin::{Role, capability};
use crate::api::{Plugin, PluginInstance};
use crate::plan::marks::STOPPED;
use crate::plan::place::{self, Closed};
use crate::plan::registry::{self, Instance, Service};
use crate::plan::release::Fence;

/// Whether the node's `Ready` condition is `True`.
pub(crate) fn node_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions.into_iter().flatten().any(|c| c.type_ == READY && c.status == "True")
}

/// Whether `wharfline down` took the node down.
pub(crate) fn node_down(world: &World, node: &str) -> bool {
    let marked = world.nodes.named(node).is_some_and(|n| n.annotations().contains_key(STOPPED));
    marked || said_stopped(world, node)
}

/// Whether the node's daemon said that it took everything down.
pub(crate) fn said_stopped(world: &World, node: &str) -> bool {
    world.agents.named(node).is_some_and(|a| a.status.as_ref().is_some_and(|s| s.stopped))
}

/// Whether a person wants nothing but plugins to stay on the node.
pub(crate) fn draining(node: &Node) -> bool {
    node.spec
        .iter()
        .flat_map(|s| s.taints.iter().flatten())
        .any(|taint| taint.key == DRAIN && taint.effect == "NoExecute")
}

/// The boot id that the node told last, empty when it never did.
pub(crate) fn boot_id(world: &World, node: &str) -> String {
    let agent = world.agents.named(node).and_then(|a| a.status.as_ref().map(|s| s.boot_id.clone()));
    if let Some(id) = agent.filter(|id| !id.is_empty()) {
        return id;
    }
    let node = world.nodes.named(node);
    let info = node.as_ref().and_then(|n| n.status.as_ref()?.node_info.as_ref());
    info.map(|info| info.boot_id.clone()).unwrap_or_default()
}

/// Whether an operator's fence stands against the node's last boot, or its Node is gone.
pub(crate) fn said_off(world: &World, node: &str) -> Fence {
    let Some(object) = world.nodes.named(node) else { return Fence::Stands };
    let boot = boot_id(world, node);
    let taints = object.spec.iter().flat_map(|s| s.taints.iter().flatten());
    let off = taints.filter(|t| t.key == OUT_OF_SERVICE).filter_map(|t| t.value.as_ref());
    if !boot.is_empty() && off.into_iter().any(|id| *id == boot) { Fence::Stands } else { Fence::None }
}

/// The command that says of a node that it is off, in the words that [`said_off`] reads.
pub(crate) fn fence_command(world: &World, node: &str) -> String {
    node_agent::fence_command(node, &boot_id(world, node))
}

/// What was found of each plugin, and of the nodes, for as long as nothing that it was found from has changed. Every look
/// at a claim, a volume or an allocation asks, and with many nodes that is much to go through each time.
#[derive(Debug, Default)]
pub(crate) struct Found {
    plugins: Mutex<(Sources, HashMap<String, Arc<Instances>>)>,
    places: Mutex<([u64; 2], Arc<[place::Node]>)>,
}

/// The versions of the caches that [`instance`] reads.
type Sources = [u64; 3];

impl Found {
    fn of(&self, world: &World, plugin: &str) -> Arc<Instances> {
        // Before they are read: what changes meanwhile is then found anew.
        let sources = [world.instances.version(), world.nodes.version(), world.agents.version()];
        let known = || self.plugins.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) =
            Some(known()).filter(|known| known.0 == sources).and_then(|k| k.1.get(plugin).cloned())
        {
            return found;
        }
        let found = Arc::new(Instances::look(world, plugin));
        let mut known = known();
        if known.0 != sources {
            *known = (sources, HashMap::new());
        }
        known.1.insert(plugin.to_owned(), Arc::clone(&found));
        found
    }

    /// Every node, in the order of their names, as if nothing were on it.
    pub(crate) fn places(&self, world: &World) -> Arc<[place::Node]> {
        let sources = [world.nodes.version(), world.agents.version()];
        let known = || self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) =
            Some(known()).filter(|known| known.0 == sources).map(|known| Arc::clone(&known.1))
        {
            return found;
        }
        let found: Arc<[_]> = world.nodes.all().iter().map(|node| place(world, node)).collect();
        *known() = (sources, Arc::clone(&found));
        found
    }
}

fn place(world: &World, node: &Node) -> place::Node {
    let name = node.name_any();
    let cordoned = node.spec.as_ref().and_then(|s| s.unschedulable).unwrap_or(false);
    place::Node {
        ready: node_ready(node),
        closed: if deleting(node) {
            Some(Closed::Deleted)
        } else if node_down(world, &name) {
            Some(Closed::Stopped)
        } else if said_off(world, &name) == Fence::Stands {
            Some(Closed::SaidOff)
        } else if draining(node) {
            Some(Closed::Drained)
        } else {
            cordoned.then_some(Closed::Cordoned)
        },
        labels: Arc::new(node.labels().clone()),
        runtimes: runtimes(world, &name),
        load: 0,
        name,
    }
}

/// Why tasks of a runtime cannot be begun on a node.
pub(crate) fn lacks(world: &World, node: &str, runtime: &str) -> Option<String> {
    place::lacks(runtimes(world, node).as_deref(), runtime)
}

/// What a node says of runtimes, once it has said anything.
fn runtimes(world: &World, node: &str) -> Option<Arc<place::Runtimes>> {
    let agent = world.agents.named(node)?;
    let said = agent.status.as_ref().filter(|status| !status.boot_id.is_empty())?;
    let missing = said.missing_runtimes.iter().map(|one| (one.name.clone(), one.message.clone()));
    let listed = said.runtimes.iter().cloned().collect();
    Some(Arc::new(place::Runtimes { listed, missing: missing.collect() }))
}

/// All instances of one plugin as they are now.
#[derive(Debug, Default)]
pub(crate) struct Instances {
    /// For decisions.
    pub(crate) list: Vec<Instance>,
    /// The objects by name.
    pub(crate) objects: BTreeMap<String, Arc<PluginInstance>>,
    controllers: Serving,
    nodes: Serving,
    /// Whether one of them says that the driver makes controller calls; nothing where none of them was asked yet.
    makes_controller_calls: OnceLock<Option<bool>>,
}

/// Who serves one of the two services.
#[derive(Debug, Default)]
struct Serving {
    /// The newest healthy one of each node, by the nodes' names.
    on: BTreeMap<String, Arc<PluginInstance>>,
    /// What all of these can do.
    common: BTreeSet<String>,
}

impl Serving {
    fn of(list: &[Instance], objects: &BTreeMap<String, Arc<PluginInstance>>, service: Service) -> Self {
        let serving = registry::each_serving(list, service).into_iter();
        let on: BTreeMap<_, _> = serving
            .filter_map(|(node, instance)| Some((node.to_owned(), Arc::clone(objects.get(&instance.id)?))))
            .collect();
        Self { on, common: BTreeSet::new() }
    }

    fn told(&self) -> Vec<&[String]> {
        self.on.values().map(|i| i.status.as_ref().map_or(&[][..], |s| s.capabilities.as_slice())).collect()
    }
}

impl Instances {
    /// The instances of a plugin. One that is on a node without lease, or that took another's node id, is not healthy.
    pub(crate) fn of(world: &World, plugin: &str) -> Arc<Self> {
        world.found.of(world, plugin)
    }

    fn look(world: &World, plugin: &str) -> Self {
        let objects = world.instances.by(&format!("plugin:{plugin}"));
        let mut list: Vec<_> = objects.iter().map(|o| instance(world, o)).collect();
        let twice: Vec<_> =
            registry::duplicate_node_ids(&list).into_iter().map(|(id, _)| id.to_owned()).collect();
        for one in list.iter_mut().filter(|i| twice.contains(&i.id)) {
            one.healthy_since = None;
        }
        let objects = objects.into_iter().map(|o| (o.name_any(), o)).collect();
        let serving = |service| Serving::of(&list, &objects, service);
        let (mut controllers, mut nodes) = (serving(Service::Controller), serving(Service::Node));
        [controllers.common, nodes.common] = registry::in_common(&controllers.told(), &nodes.told());
        Self { list, objects, controllers, nodes, makes_controller_calls: OnceLock::new() }
    }

    fn of_service(&self, service: Service) -> &Serving {
        match service {
            Service::Controller => &self.controllers,
            Service::Node => &self.nodes,
        }
    }

    /// The instance that serves on a node.
    pub(crate) fn serving(&self, service: Service, node: &str) -> Option<&Arc<PluginInstance>> {
        self.of_service(service).on.get(node)
    }

    /// The nodes with a healthy instance, in the order of their names.
    pub(crate) fn nodes(&self, service: Service) -> impl ExactSizeIterator<Item = &str> {
        self.of_service(service).on.keys().map(String::as_str)
    }

    /// The newest healthy instance of one service on each node that has one.
    pub(crate) fn healthy(&self, service: Service) -> impl Iterator<Item = &Arc<PluginInstance>> {
        self.of_service(service).on.values()
    }

    /// Whether all healthy instances of a service know this capability, and there is one.
    pub(crate) fn all_can(&self, service: Service, word: &str) -> bool {
        self.of_service(service).common.contains(word)
    }

    /// What all healthy instances of a service know.
    pub(crate) fn in_common(&self, service: Service) -> impl Iterator<Item = &String> {
        self.of_service(service).common.iter()
    }

    /// Whether any instance that made controller calls possible knows this capability.
    pub(crate) fn controller_can(&self, word: &str) -> bool {
        self.objects.values().filter(|i| i.spec.role.controller()).any(|i| can(i, word))
    }

    /// Whether a controller instance is known well enough to say what controllers of this plugin can do.
    pub(crate) fn controller_known(&self) -> bool {
        self.objects.values().filter(|i| i.spec.role.controller()).any(|i| known(i))
    }

    /// Whether the plugin makes controller calls at all, as far as is known; doubt counts as yes.
    pub(crate) fn has_controllers(&self, plugin: Option<&Plugin>) -> bool {
        // What one of them told holds for all: it is a matter of the driver. Before that, doubt counts as yes.
        let may = self.makes_controller_calls().unwrap_or(true);
        if self.objects.values().any(|i| i.spec.role.controller()) {
            return may;
        }
        // A plugin whose instances come from elsewhere may still get one that makes controller calls, unless the driver
        // itself says that it has none: the instances of its nodes say so too.
        let declared = || plugin.is_some_and(|p| p.spec.instances.iter().any(|i| i.role.controller()));
        let open = || plugin.is_none_or(|p| p.spec.instances.is_empty());
        declared() || open() && may
    }

    /// What those say of it that have the role, or all where none has it.
    fn makes_controller_calls(&self) -> Option<bool> {
        *self.makes_controller_calls.get_or_init(|| {
            let has_role = |i: &&Arc<PluginInstance>| i.spec.role.controller();
            let none = !self.objects.values().any(|i| has_role(&i));
            let mut told = self.objects.values().filter(|i| (none || has_role(i)) && known(i)).peekable();
            told.peek().is_some().then(|| told.any(|i| can(i, capability::CONTROLLER_SERVICE)))
        })
    }

    /// What every node reports of its place.
    pub(crate) fn topologies(&self) -> Vec<Segments> {
        let status = |i: &Arc<PluginInstance>| i.status.as_ref().map(|s| s.topology.clone());
        self.healthy(Service::Node).filter_map(status).collect()
    }
}

/// Whether the instance told what it can do.
fn known(instance: &PluginInstance) -> bool {
    instance.status.as_ref().is_some_and(|s| {
        is_true(&s.conditions, "Fingerprinted") || is_true(&s.conditions, READY) || !s.capabilities.is_empty()
    })
}

/// Whether the instance has a capability.
pub(crate) fn can(instance: &PluginInstance, word: &str) -> bool {
    instance.status.as_ref().is_some_and(|s| s.capabilities.iter().any(|c| c == word))
}

fn instance(world: &World, object: &PluginInstance) -> Instance {
    let status = object.status.clone().unwrap_or_default();
    let node_ready = world.nodes.named(&object.spec.node_name).is_some_and(|n| node_ready(&n));
    let healthy =
        is_true(&status.conditions, READY) && node_ready && object.metadata.deletion_timestamp.is_none();
    let created = object.metadata.creation_timestamp.as_ref().map(|t| Time(t.0));
    // A driver without a controller service is one for nodes only, whatever role it was given.
    let half =
        object.spec.role == Role::Monolith && known(object) && !can(object, capability::CONTROLLER_SERVICE);
    Instance {
        id: object.name_any(),
        role: if half { Role::Node } else { object.spec.role },
        node: object.spec.node_name.clone(),
        born: created,
        healthy_since: if healthy { status.since.or(created) } else { None },
        node_id: status.node_id,
    }
}

/// Whether an instance of this role can be asked for this service.
pub(crate) fn serves(role: Role, service: Service) -> bool {
    match service {
        Service::Controller => role.controller(),
        Service::Node => role.node(),
    }
}

/// The list with one condition put in its place; equal to the old list when nothing is new.
pub(crate) fn with_condition(context: &Context, old: &[Condition], new: Condition) -> Vec<Condition> {
    let mut conditions = old.to_vec();
    set_condition(&mut conditions, new, context.now());
    conditions
}

/// Whether an object is being deleted.
pub(crate) fn deleting<K: ResourceExt>(object: &K) -> bool {
    object.meta().deletion_timestamp.is_some()
}

/// An object's uid.
pub(crate) fn uid<K: ResourceExt>(object: &K) -> String {
    object.meta().uid.clone().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::meta::Truth;
    use crate::controllers::cache::Cache;
    use kube::runtime::reflector::store::Writer;
    use kube::runtime::watcher::Event;
    use serde_json::json;

    fn put<K: super::super::cache::Kind>(cache: &Cache<K>, writer: &mut Writer<K>, value: serde_json::Value) {
        cache.apply(writer, &Event::Apply(serde_json::from_value(value).unwrap()));
    }

    fn instance(name: &str, node: &str, node_id: &str, ready: Truth) -> serde_json::Value {
        json!({ "metadata": { "name": name, "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "plugin": "p", "role": "Monolith", "nodeName": node, "task": "t",
                "allocation": { "namespace": "s", "name": name, "uid": name } },
            "status": { "nodeId": node_id, "since": format!("2026-01-01T00:00:0{}Z", name.len()),
                "conditions": [{ "type": "Ready", "status": ready }] } })
    }

    fn node(name: &str, ready: &str, taint: &str) -> serde_json::Value {
        json!({ "metadata": { "name": name },
            "spec": { "taints": [{ "key": OUT_OF_SERVICE, "value": taint, "effect": "NoExecute" }] },
            "status": { "conditions": [{ "type": "Ready", "status": ready }], "nodeInfo": { "bootID": "boot-1" } } })
    }

    #[test]
    fn an_instance_is_healthy_only_on_a_ready_node_with_its_own_node_id() {
        let (world, mut writers) = World::new();
        for (name, ready) in [("a", "True"), ("b", "Unknown"), ("c", "True")] {
            put(&world.nodes, &mut writers.nodes, node(name, ready, ""));
        }
        for (name, on, id) in [("i", "a", "id-a"), ("ii", "b", "id-b"), ("iii", "c", "id-a")] {
            put(&world.instances, &mut writers.instances, instance(name, on, id, Truth::True));
        }
        let nodes = |world: &World| -> Vec<String> {
            Instances::of(world, "p").nodes(Service::Node).map(ToOwned::to_owned).collect()
        };
        assert_eq!(nodes(&world), ["a"], "b has no lease, c took a's id");
        put(&world.instances, &mut writers.instances, instance("i", "a", "id-a", Truth::False));
        assert_eq!(nodes(&world), ["c"]);
    }

    /// Obligation CO-IDEN-03.
    /// A plugin without a list of instances, of which a node's instance has come first.
    #[test]
    fn a_driver_with_a_controller_service_is_not_taken_for_one_without() {
        let (world, mut writers) = World::new();
        let open: Plugin =
            serde_json::from_value(json!({ "metadata": { "name": "p" }, "spec": {} })).unwrap();
        let closed = json!({ "metadata": { "name": "p" }, "spec": { "instances": [{ "name": "n", "role": "Node",
            "placement": { "everyNode": {} }, "runtime": { "process": { "command": ["x"] } } }] } });
        let closed: Plugin = serde_json::from_value(closed).unwrap();
        let has = |world: &World, plugin: &Plugin| Instances::of(world, "p").has_controllers(Some(plugin));
        assert!(has(&world, &open), "nobody has come yet");
        for (capabilities, wanted) in [
            (json!([]), true),
            (json!(["plugin/CONTROLLER_SERVICE"]), true),
            (json!(["node/STAGE_UNSTAGE_VOLUME"]), false),
        ] {
            let mut came = instance("i", "a", "id-a", Truth::False);
            came["spec"]["role"] = json!("Node");
            came["status"]["capabilities"] = capabilities.clone();
            put(&world.instances, &mut writers.instances, came);
            assert_eq!(has(&world, &open), wanted, "{capabilities}");
            assert!(!has(&world, &closed), "its list has none that makes controller calls");
        }
    }

    #[test]
    fn a_fence_names_the_boot_that_is_off() {
        let (world, mut writers) = World::new();
        assert_eq!(said_off(&world, "a"), Fence::Stands, "its Node is gone");
        for (taint, wanted) in [("", Fence::None), ("boot-0", Fence::None), ("boot-1", Fence::Stands)] {
            put(&world.nodes, &mut writers.nodes, node("a", "Unknown", taint));
            assert_eq!(said_off(&world, "a"), wanted, "{taint}");
        }
        let expected = "wharfline taint node a --overwrite wharfline.dev/out-of-service=boot-1:NoExecute";
        assert_eq!(fence_command(&world, "a"), expected);
        let agent = json!({ "metadata": { "name": "a" }, "spec": {}, "status": { "bootId": "boot-2" } });
        put(&world.agents, &mut writers.agents, agent);
        assert_eq!(said_off(&world, "a"), Fence::None, "it booted again since");
        put(&world.nodes, &mut writers.nodes, json!({ "metadata": { "name": "b" } }));
        assert_eq!(fence_command(&world, "b"), "wharfline delete node b", "nobody knows its boot");
    }
}
