//! Who serves a plugin: which instances count, a task that may not or does not yet, and one that shall serve another one, or
//! in another role.
use kube::ResourceExt;

use super::super::{Branch, Kind, State, Subject};
use super::ending::logs_of;
use super::{MOST, Service, Walk, add_told, key, leaves, placing, unmet};
use crate::api::meta::{Condition, Truth, is_true};
use crate::api::plugin::CRASH_LOOP;
use crate::api::{Allocation, Plugin, PluginInstance};

/// What can be done about an instance that is needed as it was, without a loss of anything.
const LEAVE: &str = "leave it: it serves on until nothing needs it";

impl Walk<'_> {
    pub(super) fn plugin(&self, name: &str, service: Service<'_>) -> Branch {
        let (subject, found) = (Subject::global(Kind::Plugin, name), self.plugins.get(&key(name)));
        let tell = |plugin: &Plugin, branch: Branch| {
            let goes = plugin.metadata.deletion_timestamp.is_some();
            if goes && matches!(service, Service::New) {
                let mut branch = branch;
                branch.state = State::Blocked;
                branch.say("being deleted, and makes no more volumes");
                "apply a Plugin of that name once it is gone, or use a class of another one"
                    .clone_into(&mut branch.hint);
                branch
            } else if goes && matches!(service, Service::Any) {
                self.plugin_leaving(plugin, branch)
            } else {
                self.plugin_serving(plugin, service, branch)
            }
        };
        match found {
            // What it waits for itself waits for one of its instances: that is another matter.
            Some(plugin) if self.asks_for_an_instance(&subject, service) => {
                self.descend(subject, *plugin, tell)
            }
            None => self.announced(subject),
            Some(_) => self.enter(subject, found, tell),
        }
    }

    /// A plugin that there is not. One that an allocation is to serve comes with its first healthy instance.
    fn announced(&self, subject: Subject) -> Branch {
        let name = subject.name.clone();
        let (mut because, mut circle) = (Vec::new(), None);
        for allocation in self.serving(&name).filter(|allocation| !leaves(allocation)) {
            let (namespace, name) = (allocation.namespace().unwrap_or_default(), allocation.name_any());
            let subject = Subject::namespaced(Kind::Allocation, &namespace, &name);
            if self.way.borrow().contains(&subject) {
                circle = Some(subject.words(""));
            }
            because.push(self.allocation(&namespace, &name));
        }
        because.retain(Branch::blocked);
        because.truncate(MOST);
        let circle = circle.filter(|_| because.is_empty());
        // One whose driver is well registers in this moment, or was left by a Plugin that is gone.
        if because.is_empty() && circle.is_none() {
            return Branch::new(subject, State::Missing, "does not exist");
        }
        let text = "does not exist yet: it comes with its first healthy instance";
        let mut branch = Branch { because, ..Branch::new(subject, State::Blocked, text) };
        if let Some(words) = circle {
            branch.add(&format!(", which {words} would be, and that waits for this in the end"));
            "none of them can begin: run one of the drivers in an allocation without such a volume"
                .clone_into(&mut branch.hint);
        }
        branch
    }

    /// The allocations with a task that is to serve a plugin.
    fn serving<'p>(&'p self, plugin: &'p str) -> impl Iterator<Item = &'p Allocation> {
        let blocks = move |a: &Allocation| {
            a.spec.tasks.iter().filter_map(|t| t.csi_plugin.as_ref()).any(|p| p.plugin_name == plugin)
        };
        self.allocations.values().copied().filter(move |allocation| blocks(allocation))
    }

    /// Whether the way comes from the plugin over what needs it, and not over its own instances, for the first time.
    fn asks_for_an_instance(&self, plugin: &Subject, service: Service<'_>) -> bool {
        let one = match service {
            Service::Controller(_) | Service::Node(_) => true,
            Service::New | Service::Any => false,
        };
        let way = self.way.borrow();
        let Some(at) = way.iter().position(|subject| subject == plugin) else { return false };
        let since = &way[at + 1..];
        let first = since.first().map(|subject| subject.kind);
        one && matches!(first, Some(Kind::Claim | Kind::Volume))
            && !since.iter().any(|subject| subject == plugin || subject.kind == Kind::Instance)
    }

    fn plugin_leaving(&self, plugin: &Plugin, mut branch: Branch) -> Branch {
        branch.state = State::Blocked;
        branch.say("being deleted");
        let name = branch.subject.name.clone();
        branch.because = self.volumes_of(&name);
        if branch.because.is_empty() {
            branch.because = self.unstarted(&name, leaves);
        }
        add_told(&mut branch, unmet(&plugin.status.clone().unwrap_or_default().conditions, "Ready"));
        branch
    }

    fn plugin_serving(&self, plugin: &Plugin, service: Service<'_>, mut branch: Branch) -> Branch {
        let name = branch.subject.name.clone();
        let name = name.as_str();
        let of_plugin = self.instances.values().filter(|i| i.spec.plugin == name);
        let serving: Vec<_> =
            of_plugin.filter(|i| service.fits(i)).filter(|i| !self.has_successor(i)).collect();
        let healthy = serving.iter().filter(|i| self.is_healthy(i)).count();
        let all_needed = matches!(service, Service::Any);
        branch.text = format!("{healthy} of {} instances{} healthy", serving.len(), service.place());
        let conditions = plugin.status.as_ref().map(|status| status.conditions.as_slice());
        let conditions = conditions.unwrap_or_default();
        // One that is about to go, in whose place none comes, is not needed.
        let missing = all_needed && healthy < serving.len() && !is_true(conditions, "Ready");
        if healthy > 0 && !missing {
            let told = ["Ready", "Updated"].iter().find_map(|kind| unmet(conditions, kind));
            if let Some(told) = told.filter(|_| all_needed) {
                // Those that are there are well; others are wanted.
                branch.state = State::Blocked;
                add_told(&mut branch, Some(told));
                // What the next ones replace waits for them, and not they for it.
                let succeeded = |a: &Allocation| self.instances_of(a).any(|i| self.has_successor(i));
                let former =
                    |a: &Allocation| told.kind == "Updated" && (serves_on(a) || !leaves(a) && succeeded(a));
                branch.because.extend(self.unstarted(name, |a| !former(a)));
                if branch.reason == "InUse" {
                    branch.hint = format!("undo what was changed or deleted, or {LEAVE}");
                    branch.because.extend(self.volumes_of(name));
                }
            }
            self.add_unsteady(&mut branch, &serving, all_needed);
            return branch;
        }
        branch.state = State::Blocked;
        if let Some(held) = unmet(conditions, "Updated").filter(|_| all_needed) {
            branch.add(&format!("; its update is not through: {}", held.message));
        }
        let sick = serving.iter().filter(|i| !self.is_healthy(i)).take(MOST);
        branch.because.extend(sick.map(|i| self.instance(&i.name_any())));
        if serving.is_empty() {
            branch.name_reason("NoInstance");
            branch.text = format!("has no {}instance{}", service.role(), service.place());
            branch.because.extend(self.nodes.is_empty().then(placing::no_node));
            branch.because.extend(self.unstarted(name, |a| !serves_on(a)));
        }
        branch
    }

    /// Whether a later one is well in its place: what becomes of it is no matter any more.
    fn has_successor(&self, former: &PluginInstance) -> bool {
        let place = |i: &PluginInstance| (i.spec.plugin.clone(), i.spec.role, i.spec.node_name.clone());
        let later = |i: &PluginInstance| i.creation_timestamp() > former.creation_timestamp();
        let stays = |i: &PluginInstance| {
            let of = &i.spec.allocation;
            let allocation = self.allocations.get(&(of.namespace.clone(), of.name.clone()));
            allocation.is_some_and(|allocation| !leaves(allocation))
        };
        let steady = |i: &PluginInstance| i.status.as_ref().is_some_and(|s| s.unsteady().is_none());
        let mut others = self.instances.values().filter(|i| place(i) == place(former) && later(i));
        others.any(|next| steady(next) && self.is_healthy(next) && stays(next))
    }

    /// The plugin's own allocations that are not up, which is why there is no instance: those of them that count.
    fn unstarted(&self, plugin: &str, counts: impl Fn(&Allocation) -> bool) -> Vec<Branch> {
        let name = |a: &Allocation| (a.namespace().unwrap_or_default(), a.name_any());
        let counting = self.serving(plugin).filter(|a| counts(a));
        let branches = counting.map(|a| {
            let (namespace, name) = name(a);
            self.allocation(&namespace, &name)
        });
        branches.filter(Branch::blocked).take(MOST).collect()
    }

    /// Whether an allocation has to serve its plugins still, and the way comes from an instance of it.
    pub(super) fn has_to_serve(&self, allocation: &Allocation) -> bool {
        let way = self.way.borrow();
        let from = way.iter().rev().nth(1).map(|subject| subject.kind);
        serves_on(allocation) && from == Some(Kind::Instance)
    }

    /// Whether an instance counts: what it said of itself last is worth nothing while its node is lost.
    pub(super) fn is_healthy(&self, instance: &PluginInstance) -> bool {
        let status = self.nodes.get(&key(&instance.spec.node_name)).and_then(|node| node.status.as_ref());
        let conditions = status.and_then(|s| s.conditions.as_deref()).unwrap_or_default();
        let lost = conditions.iter().any(|c| c.type_ == "Ready" && c.status != "True");
        !lost && instance.status.as_ref().is_some_and(|s| is_true(&s.conditions, "Ready"))
    }

    pub(super) fn instance(&self, name: &str) -> Branch {
        let found = self.instances.get(&key(name));
        self.enter(Subject::global(Kind::Instance, name), found, |instance, mut branch| {
            branch.text = format!("healthy on {}", instance.spec.node_name);
            let healthy = self.is_healthy(instance);
            let status = instance.status.clone().unwrap_or_default();
            if healthy && status.unsteady().is_none() {
                return branch;
            }
            branch.state = State::Blocked;
            let of = &instance.spec.allocation;
            let served = self.allocations.get(&(of.namespace.clone(), of.name.clone()));
            branch.hint = instance_hint(instance, served.copied());
            if !healthy && self.is_held(&instance.spec.plugin) {
                let plugin = &instance.spec.plugin;
                branch.hint = format!("{}; or apply the former spec of plugin/{plugin} again", branch.hint);
            }
            if healthy {
                branch.add(" for now");
                add_told(&mut branch, status.unsteady());
                return branch;
            }
            branch.text = format!("not healthy on {}", instance.spec.node_name);
            let order = ["Connected", "Probed", "Fingerprinted", "Ready"];
            add_told(&mut branch, order.iter().find_map(|kind| unmet(&status.conditions, kind)));
            let node = self.node(&instance.spec.node_name);
            let task = served.map(|_| self.allocation(&of.namespace, &of.name));
            branch.because.extend([Some(node), task].into_iter().flatten().filter(Branch::blocked));
            branch
        })
    }

    /// Whether a change of the plugin waits for an instance that does not get healthy.
    fn is_held(&self, plugin: &str) -> bool {
        let status = self.plugins.get(&key(plugin)).and_then(|plugin| plugin.status.as_ref());
        let held =
            |c: &Condition| c.kind == "Updated" && c.status == Truth::False && c.reason == "UpdateHeld";
        status.is_some_and(|status| status.conditions.iter().any(held))
    }

    /// Adds the instances that are well in between and do not keep running: each that is needed, or those that others of the
    /// plugin do not make up for.
    pub(super) fn add_unsteady(&self, branch: &mut Branch, serving: &[&&PluginInstance], all_needed: bool) {
        let healthy = serving.iter().filter(|instance| self.is_healthy(instance));
        let shaky = |i: &&&&PluginInstance| i.status.as_ref().is_some_and(|s| s.unsteady().is_some());
        let (unsteady, steady): (Vec<_>, Vec<_>) = healthy.partition(shaky);
        if unsteady.is_empty() || !(all_needed || steady.is_empty()) {
            return;
        }
        branch.state = State::Blocked;
        if branch.reason.is_empty() {
            branch.name_reason(CRASH_LOOP);
        }
        branch
            .because
            .extend(unsteady.into_iter().take(MOST).map(|i: &&&PluginInstance| self.instance(&i.name_any())));
    }

    /// Adds what an allocation that runs does not do, if it serves a plugin.
    pub(super) fn add_serving(&self, branch: &mut Branch, allocation: &Allocation) {
        let refused = allocation.status.as_ref().map(|s| s.plugin_refused.as_str()).unwrap_or_default();
        if !refused.is_empty() {
            branch.state = State::Blocked;
            branch.name_reason("InstanceRefused");
            branch.add(&format!("; {refused}"));
            if refused.contains("allowInstancesFrom") {
                branch.hint = self.admission(allocation, refused).unwrap_or_default();
            }
        }
        self.add_former(branch, allocation);
        self.add_unwell(branch, allocation);
    }

    /// How a plugin is told that it takes instances from the allocation's namespace, if it does not.
    fn admission(&self, allocation: &Allocation, refused: &str) -> Option<String> {
        let namespace = allocation.namespace().unwrap_or_default();
        let blocks = allocation.spec.tasks.iter().filter_map(|task| task.csi_plugin.as_ref());
        let mut plugins = blocks.filter_map(|block| self.plugins.get(&key(&block.plugin_name)));
        let plugin =
            plugins.find(|plugin| refused.contains(&format!("Plugin \"{}\" ", plugin.name_any())))?;
        let mut all = plugin.spec.allow_instances_from.clone();
        all.push(namespace);
        let list = all.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(",");
        Some(format!(
            "`wharfline patch plugin/{} -p '{{\"spec\":{{\"allowInstancesFrom\":[{list}]}}}}'`, if they shall serve it",
            plugin.name_any()
        ))
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
            branch.hint = format!("write its csiPlugin block as it was, or {LEAVE}");
            branch.add(&format!(
                "; its csiPlugin block changed, and task {} serves plugin {plugin} as {role:?} until nothing needs that",
                task.name
            ));
            branch.because.extend(Some(self.plugin(plugin, Service::Any)).filter(Branch::blocked));
        }
    }
}

/// Whether an allocation shall go, and serves its plugins until nothing needs them.
fn serves_on(allocation: &Allocation) -> bool {
    leaves(allocation) && !allocation.status.as_ref().is_some_and(|status| status.plugin_released)
}

/// Where to look for what is wrong with an instance: what something else runs has no logs here.
fn instance_hint(instance: &PluginInstance, served: Option<&Allocation>) -> String {
    let describe = format!("`wharfline describe plugininstance/{}`", instance.name_any());
    let task = served.and_then(|a| a.spec.tasks.iter().find(|t| t.name == instance.spec.task));
    match (served, task) {
        (_, Some(task)) if task.runtime.external.is_some() => {
            format!("{describe}; start the driver, which Wharfline does not run, or look at its own log")
        }
        (Some(served), Some(task)) => {
            format!("{describe}, and the logs of its task: {}", logs_of(served, &task.name))
        }
        _ => describe,
    }
}
