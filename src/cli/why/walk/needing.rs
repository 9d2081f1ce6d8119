//! What still needs a plugin or a node that is to go.
use kube::ResourceExt;

use super::super::{Branch, Kind, State, Subject};
use super::{MOST, Walk, add_told, key, unmet};
use crate::api::allocation::CsiPlugin;
use crate::api::meta::{ObjectRef, ReclaimPolicy, Rung};
use crate::api::plugin::Role;
use crate::api::volume::Holder;
use crate::api::{Allocation, AllocationStatus, Snapshot, Volume, VolumeStatus};

impl Walk<'_> {
    /// The volumes that still need a plugin which is to go.
    pub(super) fn volumes_of(&self, plugin: &str) -> Vec<Branch> {
        self.needing(plugin, "", |_| true)
    }

    /// Adds what needs the plugins of an allocation on its node, which keeps it from stopping.
    pub(super) fn add_needing(&self, branch: &mut Branch, allocation: &Allocation, node: &str) {
        let blocks = || allocation.spec.tasks.iter().filter_map(|task| task.csi_plugin.as_ref());
        // Whoever needs it goes on with its successor.
        if let Some(replaced) = blocks().find_map(|served| self.said_replaced(&served.plugin_name)) {
            branch.because.push(replaced);
            return;
        }
        // Where they say so themselves, of others nothing is needed here.
        let needed = |served: &&CsiPlugin| self.said_in_use(&served.plugin_name).is_some();
        let any = blocks().any(|served| needed(&served));
        for served in blocks().filter(|served| !any || needed(served)) {
            let (plugin, role) = (served.plugin_name.as_str(), served.role);
            branch.because.extend(self.needing(plugin, node, |volume| self.needs_here(volume, role, node)));
            if role.controller() {
                branch.because.extend(self.snapshots_of(plugin, node));
            }
        }
        if branch.because.is_empty() {
            branch
                .because
                .extend(blocks().filter_map(|served| self.said_in_use(&served.plugin_name)).take(1));
        }
    }

    /// Whether a volume needs an instance of this role on this node.
    fn needs_here(&self, volume: &Volume, role: Role, node: &str) -> bool {
        let host = volume.status.as_ref().and_then(VolumeStatus::calling_host);
        // One without a host gets whichever there is.
        let hosted = host.is_none_or(|host| host.node_name == node);
        let attached = || self.on_node(&volume.name_any(), node).is_some();
        role.controller() && hosted
            || role.node() && (holders_on(volume, node).next().is_some() || attached())
    }

    /// The snapshots that a plugin has to delete from this node.
    fn snapshots_of(&self, plugin: &str, node: &str) -> Vec<Branch> {
        let hosted = |snapshot: &&&Snapshot| {
            let Some(status) = &snapshot.status else { return false };
            status.of.as_ref().is_some_and(|of| of.plugin == plugin)
                && status.calling_host().is_some_and(|host| host.node_name == node)
                && matches!(status.exists, Some(Rung::Unknown | Rung::Up))
                && snapshot.is_cut()
                && snapshot.spec.deletion_policy == ReclaimPolicy::Delete
        };
        let branch = |snapshot: &&Snapshot| {
            let (namespace, name) = (snapshot.namespace().unwrap_or_default(), snapshot.name_any());
            if snapshot.metadata.deletion_timestamp.is_some() {
                return self.snapshot(&namespace, &name);
            }
            let subject = Subject::namespaced(Kind::Snapshot, &namespace, &name);
            let mut branch = Branch::new(subject, State::Blocked, "needs it");
            branch.name_reason("InUse");
            branch
        };
        self.snapshots.values().filter(hosted).take(MOST).map(branch).collect()
    }

    /// What a plugin says of a former instance of its that waits for the next one.
    fn said_replaced(&self, plugin: &str) -> Option<Branch> {
        let status = self.plugins.get(&key(plugin))?.status.as_ref()?;
        let told = unmet(&status.conditions, "Ready").filter(|told| told.reason == "SuccessorNotReady")?;
        let subject = Subject::global(Kind::Plugin, plugin);
        let mut branch = Branch::new(subject, State::Blocked, "its update is not through");
        add_told(&mut branch, Some(told));
        let held = status.conditions.iter().find(|c| c.kind == "Updated" && !c.message.is_empty());
        if let Some(held) = held {
            branch.add(&format!("; {}: {}", held.reason, held.message));
        }
        branch.hint = format!("mend {}, or apply its former spec again", branch.subject);
        Some(branch)
    }

    /// What a plugin itself says of who needs it.
    fn said_in_use(&self, plugin: &str) -> Option<Branch> {
        let status = self.plugins.get(&key(plugin))?.status.as_ref()?;
        let told = unmet(&status.conditions, "Ready").filter(|told| told.reason == "InUse")?;
        let mut branch = Branch::new(Subject::global(Kind::Plugin, plugin), State::Blocked, "is needed");
        add_told(&mut branch, Some(told));
        branch.hint = format!("`wharfline describe {}`", branch.subject);
        Some(branch)
    }

    /// Who uses a volume on this node, or else what is left of it there.
    fn users_on(&self, volume: &Volume, node: &str) -> Vec<Branch> {
        let found = |holder: &Holder| {
            let of = &holder.allocation;
            self.allocations.get(&(of.namespace.clone(), of.name.clone())).copied()
        };
        let users: Vec<&Allocation> = holders_on(volume, node).filter_map(found).take(MOST).collect();
        if users.is_empty() {
            let left = self.on_node(&volume.name_any(), node);
            return left
                .map(|a| self.attachment(&a.name_any()))
                .filter(Branch::blocked)
                .into_iter()
                .collect();
        }
        users.into_iter().map(|user| self.user(user)).collect()
    }

    /// The volumes of a plugin that need it, and of what is used on a node, by whom.
    fn needing(&self, plugin: &str, node: &str, needs: impl Fn(&Volume) -> bool) -> Vec<Branch> {
        let node_goes = self.nodes.get(&key(node)).is_some_and(|n| n.metadata.deletion_timestamp.is_some());
        let of_plugin = self.volumes.values().copied().filter(|v| v.spec.plugin == plugin);
        let mut needing: Vec<&Volume> = of_plugin.filter(|volume| needs(volume)).collect();
        // What goes by itself comes last: the others are for a person to delete.
        needing.sort_by_key(|volume| self.goes(volume));
        let branch = |volume: &Volume| {
            let name = volume.name_any();
            if let Some(branch) = self.on_its_way(volume) {
                return branch;
            }
            let mut branch = Branch::new(Subject::global(Kind::Volume, &name), State::Blocked, "needs it");
            branch.name_reason("InUse");
            let claim = self.claim_of(volume);
            if claim.is_none() && volume.spec.claim_ref.is_some() {
                branch.say("needs it, and its claim is gone");
                branch.hint = delete_volume(volume);
            }
            if let Some(claim) = claim {
                if self.goes(volume) {
                    return self.claim(&claim.namespace, &claim.name, "");
                }
                branch.subject = Subject::namespaced(Kind::Claim, &claim.namespace, &claim.name);
                branch.text = format!("needs it for {name}");
                if volume.spec.reclaim_policy == ReclaimPolicy::Delete {
                    let words = branch.subject.words("");
                    branch.hint = format!("`wharfline delete {words}`, and its data with it, or leave it");
                    if node_goes && self.home(volume).is_none() {
                        // It goes on as soon as somebody else can make its calls.
                        let way = "and that one goes on with the volume";
                        branch.hint = format!(
                            "start a controller instance of {plugin} on another node, {way}; or {}",
                            branch.hint
                        );
                    }
                }
            }
            branch.because = self.users_on(volume, node);
            branch
        };
        needing.into_iter().take(MOST).map(branch).collect()
    }

    /// A volume that needs something now and will not for long: it is being deleted, or others go on with it.
    fn on_its_way(&self, volume: &Volume) -> Option<Branch> {
        let name = volume.name_any();
        if volume.metadata.deletion_timestamp.is_some() {
            return Some(self.volume(&name, ""));
        }
        handing_over(volume)
    }

    /// The only node that knows the volume.
    fn home<'v>(&self, volume: &'v Volume) -> Option<&'v str> {
        let plugin = self.plugins.get(&key(&volume.spec.plugin));
        volume.home(plugin.map(|plugin| plugin.spec.controller_scope).unwrap_or_default())
    }

    /// What a volume was claimed by, if that is there.
    fn claim_of<'v>(&self, volume: &'v Volume) -> Option<&'v ObjectRef> {
        let of = volume.spec.claim_ref.as_ref()?;
        self.claims.contains_key(&(of.namespace.clone(), of.name.clone())).then_some(of)
    }

    /// Whether a volume or its claim is being deleted.
    fn goes(&self, volume: &Volume) -> bool {
        let of = volume.spec.claim_ref.as_ref();
        let claim = of.and_then(|of| self.claims.get(&(of.namespace.clone(), of.name.clone())));
        volume.metadata.deletion_timestamp.is_some()
            || claim.is_some_and(|claim| claim.metadata.deletion_timestamp.is_some())
    }

    /// What still has to leave a node that is being deleted, the workloads first; plugins leave by themselves, after what
    /// needs them.
    pub(super) fn left_on(&self, node: &str) -> Vec<Branch> {
        let bound = |a: &&&Allocation| a.status.as_ref().is_some_and(|s| s.node_name == node);
        let serves = |a: &Allocation| a.spec.tasks.iter().any(|t| t.csi_plugin.is_some());
        let here = || self.allocations.values().filter(bound);
        let ended = |a: &Allocation| a.status.as_ref().is_some_and(AllocationStatus::over);
        let users = here().filter(|a| !serves(a) && !ended(a)).take(MOST);
        let plugins = here().filter(|a| serves(a));
        let plugins = plugins.map(|a| self.allocation(&a.namespace().unwrap_or_default(), &a.name_any()));
        let user = |allocation: &&Allocation| {
            let mut branch = self.user(allocation);
            if branch.reason == "InUse" {
                branch.say("runs on it");
            }
            branch
        };
        let attached = self.attachments.values().filter(|a| a.spec.node_name == node);
        let attached = attached.map(|a| self.attachment(&a.name_any())).filter(Branch::blocked);
        let before = users.map(user).chain(attached.take(MOST));
        let left: Vec<_> = before.chain(plugins.filter(Branch::blocked).take(MOST)).collect();
        // Drivers that are on their way name those volumes themselves.
        if left.is_empty() { self.hosted_on(node) } else { left }
    }

    /// The volumes whose calls are made on a node that is to go, and that others can go on with.
    fn hosted_on(&self, node: &str) -> Vec<Branch> {
        let hosted = |volume: &&&Volume| {
            let host = volume.status.as_ref().and_then(VolumeStatus::calling_host);
            host.is_some_and(|host| host.node_name == node) && self.home(volume) != Some(node)
        };
        let branch = |volume: &&Volume| {
            if let Some(branch) = self.on_its_way(volume) {
                return branch;
            }
            let subject = Subject::global(Kind::Volume, &volume.name_any());
            let mut branch = Branch::new(subject, State::Blocked, "has its calls made there");
            branch.name_reason("InUse");
            let claim =
                self.claim_of(volume).map(|of| Subject::namespaced(Kind::Claim, &of.namespace, &of.name));
            let first = claim.map(|claim| format!("`wharfline delete {}`, and then ", claim.words("")));
            branch.hint = format!(
                "start a controller instance of plugin/{} on another node, and that one goes on with it; or {}{}",
                volume.spec.plugin,
                first.unwrap_or_default(),
                delete_volume(volume)
            );
            branch
        };
        self.volumes.values().filter(hosted).take(MOST).map(branch).collect()
    }
}

/// Who has the volume on this node.
fn holders_on<'v>(volume: &'v Volume, node: &'v str) -> impl Iterator<Item = &'v Holder> {
    let holders = volume.status.as_ref().map(|status| status.holders.as_slice()).unwrap_or_default();
    holders.iter().filter(move |holder| holder.node_name == node)
}

/// A volume whose host was asked to let go of it, and has not done so yet.
pub(super) fn handing_over(volume: &Volume) -> Option<Branch> {
    let name = volume.name_any();
    let host = handed_over(volume)?;
    let text = format!("goes to another node once {host} lets go of it");
    let mut branch = Branch::new(Subject::global(Kind::Volume, &name), State::Blocked, text);
    branch.name_reason("InUse");
    branch.hint = String::from(
        "wait: it does so when no call can be at work any more, at most 150 s after its last call, or after its \
         daemon began; or it goes on itself, once its driver is well again",
    );
    Some(branch)
}

/// The node that was asked to let go of the volume and has not said yet that it did.
fn handed_over(volume: &Volume) -> Option<&str> {
    let status = volume.status.as_ref()?;
    let host = status.calling_host()?;
    (status.asked_to_release == Some(host.epoch)).then_some(&host.node_name)
}

/// How a volume is let go of.
fn delete_volume(volume: &Volume) -> String {
    let rest =
        if volume.spec.is_kept() { "which leaves its data at the backend" } else { "and its data with it" };
    format!("`wharfline delete volume/{}`, {rest}", volume.name_any())
}
