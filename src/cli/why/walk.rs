//! From one object to what it waits for, kind by kind. Going up and coming down are told apart by the deletion mark.
mod ending;
mod expanding;
mod filling;
mod holders;
mod needing;
mod nodes;
mod placing;
mod serving;
mod telling;
mod turns;

use std::cell::RefCell;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Event, Node};
use kube::ResourceExt;

use super::{Branch, Kind, Objects, State, Subject};
use crate::api::allocation::{AllocationPhase, AllocationVolume, TaskState};
use crate::api::claim::ClaimPhase;
use crate::api::class::VolumeBindingMode;
use crate::api::meta::{Call, Condition, HANDLE_SHARED, Rung, Truth};
use crate::api::volume::{EXPANDED, VolumePhase};
use crate::api::{
    Allocation, AllocationStatus, Plugin, PluginInstance, Snapshot, SnapshotSchedule, Volume,
    VolumeAttachment, VolumeClaim, VolumeClass,
};
use ending::add_exit;
use expanding::{add_attributes, add_size};
use turns::NOT_IN_TURN;

/// How many users of one kind a branch names.
const MOST: usize = 3;
/// A claim waits for an allocation that uses it.
const FIRST_CONSUMER: &str = "WaitingForFirstConsumer";
/// A claim waits until an allocation that uses it has a node.
const UNPLACED: &str = "WaitingForPlacement";
/// How the reasons begin that are told of an allocation that cannot have its volume where it wants it on its node.
const AT_HOST: &str = "HostPath";
/// What waits for its plugin says so.
const NOT_READY: &str = "PluginNotReady";
/// What may be told of one user of a volume alone, or of the volume on its node.
const OF_A_USER: [&str; 4] = ["KernelRefused", "PathNotAllowed", "FsGroupNotSet", "NotMounted"];

type Named<'a, K> = BTreeMap<(String, String), &'a K>;

/// The objects by name, and the way walked so far.
pub(super) struct Walk<'a> {
    allocations: Named<'a, Allocation>,
    claims: Named<'a, VolumeClaim>,
    classes: Named<'a, VolumeClass>,
    volumes: Named<'a, Volume>,
    snapshots: Named<'a, Snapshot>,
    schedules: Named<'a, SnapshotSchedule>,
    attachments: Named<'a, VolumeAttachment>,
    /// By volume, then by attachment.
    attached: BTreeMap<&'a str, Vec<&'a VolumeAttachment>>,
    plugins: Named<'a, Plugin>,
    instances: Named<'a, PluginInstance>,
    nodes: Named<'a, Node>,
    objects: &'a Objects,
    way: RefCell<Vec<Subject>>,
}

/// Which instances of a plugin would do.
#[derive(Clone, Copy)]
enum Service<'a> {
    /// One that makes controller calls, on a node if one was chosen.
    Controller(Option<&'a str>),
    /// One that makes node calls on this node.
    Node(&'a str),
    /// One that makes volumes: a plugin that is to go makes no more.
    New,
    /// Any.
    Any,
}

/// Every workload, claim and volume as a subject.
pub(super) fn subjects_of(objects: &Objects) -> Vec<Subject> {
    let of = |kind, namespace: Option<String>, name: String| Subject {
        kind,
        namespace: namespace.unwrap_or_default(),
        name,
    };
    let mut all = Vec::new();
    all.extend(objects.allocations.iter().map(|o| of(Kind::Allocation, o.namespace(), o.name_any())));
    all.extend(objects.claims.iter().map(|o| of(Kind::Claim, o.namespace(), o.name_any())));
    all.extend(objects.volumes.iter().map(|o| of(Kind::Volume, None, o.name_any())));
    all
}

fn by_name<K: ResourceExt>(objects: &[K]) -> Named<'_, K> {
    objects.iter().map(|o| ((o.namespace().unwrap_or_default(), o.name_any()), o)).collect()
}

impl<'a> Walk<'a> {
    pub(super) fn new(objects: &'a Objects) -> Self {
        let mut attached: BTreeMap<&str, Vec<&VolumeAttachment>> = BTreeMap::new();
        for attachment in &objects.attachments {
            attached.entry(&attachment.spec.volume).or_default().push(attachment);
        }
        Self {
            allocations: by_name(&objects.allocations),
            claims: by_name(&objects.claims),
            classes: by_name(&objects.classes),
            volumes: by_name(&objects.volumes),
            snapshots: by_name(&objects.snapshots),
            schedules: by_name(&objects.schedules),
            attachments: by_name(&objects.attachments),
            attached,
            plugins: by_name(&objects.plugins),
            instances: by_name(&objects.instances),
            nodes: by_name(&objects.nodes),
            objects,
            way: RefCell::default(),
        }
    }

    pub(super) fn exists(&self, subject: &Subject) -> bool {
        let key = &(subject.namespace.clone(), subject.name.clone());
        match subject.kind {
            Kind::Allocation => self.allocations.contains_key(key),
            Kind::Claim => self.claims.contains_key(key),
            Kind::Class => self.classes.contains_key(key),
            Kind::Volume => self.volumes.contains_key(key),
            Kind::Snapshot => self.snapshots.contains_key(key),
            Kind::Schedule => self.schedules.contains_key(key),
            Kind::Attachment => self.attachments.contains_key(key),
            Kind::Plugin => self.plugins.contains_key(key),
            Kind::Instance => self.instances.contains_key(key),
            Kind::Node => self.nodes.contains_key(key),
        }
    }

    /// The branch of one object.
    pub(super) fn branch(&self, subject: &Subject) -> Branch {
        match subject.kind {
            Kind::Allocation => self.allocation(&subject.namespace, &subject.name),
            Kind::Claim => self.claim(&subject.namespace, &subject.name, ""),
            Kind::Class => self.class(&subject.name),
            Kind::Volume => self.volume(&subject.name, ""),
            Kind::Snapshot => self.snapshot(&subject.namespace, &subject.name),
            Kind::Schedule => self.schedule(&subject.namespace, &subject.name),
            Kind::Attachment => self.attachment(&subject.name),
            Kind::Plugin => self.plugin(&subject.name, Service::Any),
            Kind::Instance => self.instance(&subject.name),
            Kind::Node => self.whole_node(&subject.name),
        }
    }

    /// Makes one branch, unless the object is missing or the way has come from it.
    fn enter<K>(
        &self,
        subject: Subject,
        found: Option<&&'a K>,
        tell: impl FnOnce(&'a K, Branch) -> Branch,
    ) -> Branch {
        let Some(object) = found else {
            return Branch::new(subject, State::Missing, "does not exist");
        };
        if self.way.borrow().contains(&subject) {
            return Branch::new(subject, State::Fine, "see above");
        }
        self.descend(subject, *object, tell)
    }

    fn descend<K>(
        &self,
        subject: Subject,
        object: &'a K,
        tell: impl FnOnce(&'a K, Branch) -> Branch,
    ) -> Branch {
        self.way.borrow_mut().push(subject.clone());
        let branch = tell(object, Branch::new(subject, State::Fine, ""));
        self.way.borrow_mut().pop();
        branch
    }

    fn allocation(&self, namespace: &str, name: &str) -> Branch {
        let found = self.allocations.get(&(namespace.to_owned(), name.to_owned()));
        self.enter(Subject::namespaced(Kind::Allocation, namespace, name), found, |allocation, branch| {
            // Of one that has to serve until it is let go, whoever needs its instance asks why it does not.
            if leaves(allocation) && !self.has_to_serve(allocation) {
                self.allocation_leaving(allocation, branch)
            } else {
                self.allocation_coming(allocation, branch)
            }
        })
    }

    fn allocation_coming(&self, allocation: &Allocation, mut branch: Branch) -> Branch {
        let status = allocation.status.clone().unwrap_or_default();
        let node = status.node_name.as_str();
        branch.text = stands(&status);
        let settled = match status.phase {
            Some(AllocationPhase::Running | AllocationPhase::Complete) => true,
            Some(AllocationPhase::Stopped | AllocationPhase::Stopping) => allocation.spec.stop,
            Some(
                AllocationPhase::Pending
                | AllocationPhase::WaitingVolumes
                | AllocationPhase::Starting
                | AllocationPhase::Restarting
                | AllocationPhase::Failed,
            )
            | None => false,
        };
        let failed = status.phase == Some(AllocationPhase::Failed);
        // Of one that failed for good, the volumes are taken down: that they are not ready is no cause of anything.
        let speaking: &[&str] = if failed { &["Ready"] } else { &["Placed", "VolumesReady", "Ready"] };
        let told = speaking.iter().find_map(|kind| unmet(&status.conditions, kind));
        // MountLost, MountStale, MountSilent: it runs, and its volume is not what it was.
        let dead = settled && told.is_some_and(|c| c.kind == "VolumesReady" && c.reason.starts_with("Mount"));
        if settled && !dead && told.is_none_or(|condition| condition.kind != "Ready") {
            self.add_serving(&mut branch, allocation);
            branch.unwell = self.unwell_of(&status);
            return branch;
        }
        branch.state = State::Blocked;
        add_told(&mut branch, told);
        if dead {
            branch.hint = telling::how_to_start_anew(allocation, told);
            return branch;
        }
        if failed {
            let lost = branch.reason == "NodeLost";
            if lost {
                branch.hint = telling::how_to_leave_a_lost_node(allocation);
            }
            branch
                .because
                .extend(Some(node).filter(|_| lost).map(|node| self.node(node)).filter(Branch::blocked));
            add_exit(&mut branch, allocation, &status);
            return branch;
        }
        if node.is_empty() && self.add_places(&mut branch, allocation, told) {
            return branch;
        }
        if !node.is_empty() {
            branch.because.extend(Some(self.node(node)).filter(Branch::blocked));
        }
        let namespace = branch.subject.namespace.clone();
        // Where it wants a volume on its node is its own matter; an attachment may tell of another one that shares the volume.
        let own = told.is_some_and(|condition| self.is_own(condition));
        // What is let go there stays published until it is down, and nothing is begun on it.
        let volumes = told.is_some_and(|condition| condition.kind == "VolumesReady");
        let is_there = |name: &str| {
            let of_it = status.volumes.iter().find(|v| v.name == name && v.published == Rung::Up);
            let here = of_it.map(|v| self.on_node(&v.volume, node));
            here.is_some_and(|here| !volumes || here.is_some_and(|a| !self.is_leaving(a)))
        };
        let unpublished = allocation.spec.volumes.iter().filter(|v| !own && !is_there(&v.name));
        for volume in unpublished {
            branch.because.push(self.claim(&namespace, &volume.claim_name, node));
        }
        // A claim that waits for the place of this very allocation is never what holds it up, if anything else does.
        branch.because.sort_by_key(|b| b.reason == UNPLACED);
        add_call(&mut branch, status.volumes.iter().flat_map(|v| &v.calls));
        add_exit(&mut branch, allocation, &status);
        telling::add_not_started(&mut branch, &status);
        branch.next = branch.next.or_else(|| status.tasks.iter().find_map(|task| task.next_attempt_time));
        branch
    }

    /// Whether what is told of an allocation's volumes is of that allocation, and not of a volume that it shares.
    fn is_own(&self, told: &Condition) -> bool {
        let of_volume = |attachment: &&VolumeAttachment| {
            let node = attachment.status.as_ref().and_then(|status| status.node.as_ref());
            node.is_some_and(|node| node.message == told.message)
        };
        let reason = told.reason.as_str();
        reason.starts_with(AT_HOST)
            || OF_A_USER.contains(&reason) && !self.attachments.values().copied().any(|a| of_volume(&a))
    }

    fn allocation_leaving(&self, allocation: &Allocation, mut branch: Branch) -> Branch {
        let status = allocation.status.clone().unwrap_or_default();
        branch.state = State::Blocked;
        branch.text = match allocation.metadata.deletion_timestamp {
            Some(_) => "being deleted".to_owned(),
            None => format!("{}, is to stop", stands(&status)),
        };
        add_told(&mut branch, unmet(&status.conditions, "Ready"));
        let node = status.node_name.as_str();
        if !node.is_empty() {
            branch.because.extend(Some(self.node(node)).filter(Branch::blocked));
        }
        if !status.plugin_released {
            self.add_needing(&mut branch, allocation, node);
        }
        let running = status.tasks.iter().find(|task| match task.state {
            TaskState::Running | TaskState::Restarting | TaskState::Stopping | TaskState::Lost => true,
            TaskState::Pending | TaskState::Exited => false,
        });
        if let (Some(task), true) = (running, branch.because.is_empty()) {
            // Its volumes wait for it, not it for them.
            branch.add(&format!("; task {} is {:?}", task.name, task.state));
            if let Some(last) = task.events.last().filter(|event| event.reason == "Draining") {
                branch.add(&format!("; it {}", last.message));
            }
            return branch;
        }
        // What was mounted over it, or in its place, may keep it from being taken down.
        let lost = unmet(&status.conditions, "VolumesReady").is_some_and(|c| c.reason.starts_with("Mount"));
        for publication in &status.volumes {
            let here = self.on_node(&publication.volume, node);
            // It goes once what let it in is gone.
            let left = here.is_some_and(|a| self.is_held_until(allocation, a));
            let here = here.filter(|_| lost || left || publication.published != Rung::Down);
            branch.because.extend(here.map(|a| self.attachment(&a.name_any())).filter(Branch::blocked));
        }
        add_call(&mut branch, status.volumes.iter().flat_map(|v| &v.calls));
        branch
    }

    fn claim(&self, namespace: &str, name: &str, node: &str) -> Branch {
        let found = self.claims.get(&(namespace.to_owned(), name.to_owned()));
        self.enter(Subject::namespaced(Kind::Claim, namespace, name), found, |claim, branch| {
            if claim.metadata.deletion_timestamp.is_some() {
                self.claim_leaving(claim, branch)
            } else {
                self.claim_coming(claim, node, branch)
            }
        })
    }

    /// The volume that is being made for a claim, which the claim does not say yet.
    fn made_for(&self, claim: &VolumeClaim) -> Option<String> {
        let of_it = |v: &&&Volume| {
            let of = v.spec.claim_ref.as_ref();
            v.spec.source.existing.is_none()
                && of.is_some_and(|of| Some(&of.uid) == claim.metadata.uid.as_ref())
        };
        self.volumes.values().find(of_it).map(|volume| volume.name_any())
    }

    fn claim_coming(&self, claim: &VolumeClaim, node: &str, mut branch: Branch) -> Branch {
        let status = claim.status.clone().unwrap_or_default();
        let bound = status.phase == Some(ClaimPhase::Bound);
        let begun = || self.made_for(claim).unwrap_or_else(|| claim.spec.volume_name.clone());
        let volume = &if status.volume_name.is_empty() { begun() } else { status.volume_name.clone() };
        branch.text = match status.phase {
            Some(ClaimPhase::Bound) => format!("bound to {volume}"),
            Some(ClaimPhase::Lost) => "its volume is lost".to_owned(),
            Some(ClaimPhase::Pending) | None => "not bound".to_owned(),
        };
        if !bound {
            branch.state = State::Blocked;
            add_told(&mut branch, unmet(&status.conditions, "Ready"));
        } else if node.is_empty() {
            add_size(&mut branch, claim, &status);
            add_attributes(&mut branch, claim, &status);
        }
        if status.phase == Some(ClaimPhase::Lost) {
            "delete it and what uses it; what backends have still is told by `wharfline volume audit`, and used again by \
             `wharfline volume adopt`"
                .clone_into(&mut branch.hint);
            return branch;
        }
        if !volume.is_empty() {
            branch.because.push(self.volume(volume, node));
            return branch;
        }
        branch.because.extend(self.source_of(claim));
        if let Some(ephemeral) = &claim.spec.ephemeral {
            branch.because.push(self.plugin(&ephemeral.plugin, Service::New));
            return branch;
        }
        let class = claim.spec.volume_class_name.as_str();
        branch.because.push(self.class(class));
        let late = self.classes.get(&key(class)).map(|class| class.spec.volume_binding_mode);
        // What keeps it from ever having a volume no user changes.
        let obstacle = unmet(&status.conditions, "Ready").filter(|told| told.reason != FIRST_CONSUMER);
        if late == Some(VolumeBindingMode::WaitForFirstConsumer)
            && status.selected_node.is_empty()
            && obstacle.is_none()
        {
            let users: Vec<&Allocation> =
                self.naming(&branch.subject.namespace, &branch.subject.name).take(MOST).collect();
            if users.is_empty() {
                branch.name_reason(FIRST_CONSUMER);
                branch.say("not bound: waits for the first allocation that uses it");
            } else {
                branch.name_reason(UNPLACED);
                branch.say("not bound: waits until an allocation that uses it has a node");
            }
            let waiting =
                users.iter().map(|user| self.allocation(&branch.subject.namespace, &user.name_any()));
            let waiting: Vec<_> = waiting.filter(Branch::blocked).collect();
            branch.because.extend(waiting);
        }
        branch
    }

    fn claim_leaving(&self, claim: &VolumeClaim, mut branch: Branch) -> Branch {
        let status = claim.status.clone().unwrap_or_default();
        let volume = self.volumes.get(&key(&status.volume_name)).copied();
        branch.state = State::Blocked;
        branch.say("being deleted");
        if let Some(by) = self.waiting_for(claim, volume) {
            branch.add(", and given to nobody any more");
            let own = by
                .spec
                .volumes
                .iter()
                .any(|v| v.claim_name == claim.name_any() && v.claim_template.is_some());
            let again = if own { "it is made anew by itself" } else { "apply a manifest of it again" };
            branch.hint = format!("{again} once it is gone; who waits for it then goes on");
        }
        add_told(&mut branch, unmet(&status.conditions, "Ready"));
        if !branch.hint.is_empty() {
            branch.name_reason("BeingDeleted");
        }
        branch.because.extend(self.users_of(claim, volume).into_iter().take(MOST));
        branch.because.extend(self.copies_of(&status.volume_name));
        if volume.is_some_and(|volume| volume.metadata.deletion_timestamp.is_some()) {
            branch.because.push(self.volume(&status.volume_name, ""));
        }
        if branch.because.is_empty() && branch.reason == "InUse" {
            // It is deleted already.
            "it goes by itself once nothing has it any more".clone_into(&mut branch.hint);
        }
        branch
    }

    /// An allocation that keeps something from going: on its way out itself, or simply in use.
    fn user(&self, allocation: &Allocation) -> Branch {
        let namespace = allocation.namespace().unwrap_or_default();
        if leaves(allocation) {
            return self.allocation(&namespace, &allocation.name_any());
        }
        let subject = Subject::namespaced(Kind::Allocation, &namespace, &allocation.name_any());
        let mut branch = Branch::new(subject, State::Blocked, "uses it");
        branch.name_reason("InUse");
        branch
    }

    /// The allocations that name a claim and have not ended.
    fn naming<'w>(&'w self, namespace: &'w str, claim: &'w str) -> impl Iterator<Item = &'a Allocation> + 'w {
        let within = (namespace.to_owned(), String::new())..;
        let here = self.allocations.range(within).take_while(move |((of, _), _)| of == namespace);
        let uses = move |volume: &AllocationVolume| volume.claim_name == claim;
        let ended =
            |a: &Allocation| a.status.as_ref().and_then(|s| s.phase).is_some_and(AllocationPhase::terminal);
        here.map(|(_, allocation)| *allocation).filter(move |a| !ended(a) && a.spec.volumes.iter().any(uses))
    }

    fn class(&self, name: &str) -> Branch {
        let default = || self.classes.values().find(|class| class.spec.default);
        let found = if name.is_empty() { default() } else { self.classes.get(&key(name)) };
        let shown = found.map_or_else(|| name.to_owned(), |class| class.name_any());
        let mut branch = self.enter(Subject::global(Kind::Class, &shown), found, |class, mut branch| {
            branch.text = format!("of plugin {}", class.spec.plugin);
            branch.because.push(self.plugin(&class.spec.plugin, Service::New));
            branch
        });
        if name.is_empty() && found.is_none() {
            "(default)".clone_into(&mut branch.subject.name);
            branch.say("the claim names no class and no class is the default");
            "name one in volumeClassName of a new claim, or make one the default: `wharfline patch volumeclass/NAME --type merge -p '{\"spec\": {\"default\": true}}'`"
                .clone_into(&mut branch.hint);
        }
        branch
    }

    fn volume(&self, name: &str, node: &str) -> Branch {
        self.enter(Subject::global(Kind::Volume, name), self.volumes.get(&key(name)), |volume, branch| {
            if volume.metadata.deletion_timestamp.is_some() {
                self.volume_leaving(volume, branch)
            } else {
                self.volume_coming(volume, node, branch)
            }
        })
    }

    fn volume_coming(&self, volume: &Volume, node: &str, mut branch: Branch) -> Branch {
        let status = volume.status.clone().unwrap_or_default();
        let phase = status.phase.map_or_else(|| "Pending".to_owned(), |phase| format!("{phase:?}"));
        branch.text = phase;
        if status.phase != Some(VolumePhase::Ready) {
            branch.state = State::Blocked;
            let own = status.provisioning.as_ref().filter(|c| c.status != Truth::True);
            add_told(&mut branch, own.or_else(|| unmet(&status.conditions, "Ready")));
            if branch.reason == HANDLE_SHARED {
                branch.hint =
                    telling::how_to_part(volume, self.is_claimed(volume), self.is_deleted_under(volume));
            }
            if status.phase == Some(VolumePhase::Released) {
                branch.hint = telling::how_to_use_again(volume);
                return branch;
            }
            self.add_calls(&mut branch, volume, &status.calls);
            branch.next = status.next_attempt_time;
            let host = status.controller.as_ref().map(|host| host.node_name.as_str());
            let host = host.or_else(|| volume.spec.source.home());
            self.add_host(&mut branch, &volume.spec.plugin, host);
            return branch;
        }
        branch.unwell = self.unwell(volume);
        if node.is_empty() {
            self.add_expansion(&mut branch, volume, &status);
            self.add_modification(&mut branch, volume, &status);
            branch.because.extend(self.left_of(volume));
            return branch;
        }
        if self.add_holders(&mut branch, volume, node) {
            return branch;
        }
        if volume.expands_offline() {
            self.add_expansion_under_way(&mut branch, volume, &status);
            return branch;
        }
        match self.on_node(&branch.subject.name, node) {
            Some(attachment) => branch.because.push(self.attachment(&attachment.name_any())),
            None => {
                branch.state = State::Blocked;
                branch.name_reason("NotAttached");
                branch.add(&format!(", not attached to {node} yet"));
                let below = self.plugin(&volume.spec.plugin, Service::Node(node));
                branch.because.extend(Some(below).filter(Branch::blocked));
            }
        }
        branch
    }

    /// Whether the claim that it is for is there.
    fn is_claimed(&self, volume: &Volume) -> bool {
        let Some(of) = &volume.spec.claim_ref else { return false };
        let claim = self.claims.get(&(of.namespace.clone(), of.name.clone()));
        claim.is_some_and(|claim| of.uid.is_empty() || claim.uid().as_deref() == Some(&of.uid))
    }

    /// A volume of its plugin and handle that is being deleted with what is in both.
    fn is_deleted_under(&self, volume: &Volume) -> Option<&Volume> {
        let handle = |volume: &Volume| volume.status.as_ref().map(|s| s.handle.clone()).unwrap_or_default();
        let own = volume.spec.source.told().map_or_else(|| handle(volume), |(handle, _)| handle.to_owned());
        let goes = |other: &&&Volume| {
            let deleted = other.metadata.deletion_timestamp.is_some() && !other.spec.is_kept();
            deleted && other.spec.plugin == volume.spec.plugin && handle(other) == own
        };
        self.volumes.values().find(goes).copied()
    }

    fn volume_leaving(&self, volume: &Volume, mut branch: Branch) -> Branch {
        let status = volume.status.clone().unwrap_or_default();
        branch.state = State::Blocked;
        branch.say("being deleted");
        let own = status.provisioning.as_ref().filter(|c| c.status != Truth::True);
        add_told(&mut branch, own.or_else(|| unmet(&status.conditions, "Ready")));
        if branch.reason == HANDLE_SHARED {
            branch.hint =
                telling::how_to_part(volume, self.is_claimed(volume), self.is_deleted_under(volume));
        }
        self.add_calls(&mut branch, volume, &status.calls);
        branch.next = status.next_attempt_time;
        let name = branch.subject.name.clone();
        for attachment in self.attached.get(name.as_str()).into_iter().flatten() {
            branch.because.push(self.attachment(&attachment.name_any()));
        }
        branch.because.extend(self.copies_of(&name));
        let users = status.holders.iter().map(|holder| &holder.allocation);
        for user in users.filter_map(|u| self.allocations.get(&(u.namespace.clone(), u.name.clone()))) {
            branch.because.push(self.user(user));
        }
        let host = status.controller.as_ref().map(|host| host.node_name.as_str());
        self.add_host(&mut branch, &volume.spec.plugin, host);
        let claim = volume.spec.claim_ref.as_ref().filter(|of| {
            let claim = self.claims.get(&(of.namespace.clone(), of.name.clone()));
            claim.is_some_and(|claim| claim.metadata.deletion_timestamp.is_none())
        });
        if let Some(of) = claim.filter(|_| branch.reason == "InUse") {
            // It was deleted already, and nothing is tried before its claim goes.
            let words = Subject::namespaced(Kind::Claim, &of.namespace, &of.name).words("");
            branch.hint = format!("`wharfline delete {words}`: it goes with that");
            branch.next = None;
        }
        branch
    }

    /// The last call about an object that did not end well, and the one that has not ended.
    fn add_calls<K: ResourceExt>(&self, branch: &mut Branch, object: &K, calls: &[Call]) {
        add_call(branch, calls);
        self.add_under_way(branch, object, calls);
    }

    fn add_under_way<'c, K: ResourceExt>(
        &self,
        branch: &mut Branch,
        object: &K,
        calls: impl IntoIterator<Item = &'c Call>,
    ) {
        telling::add_under_way(branch, self.objects, object.uid().as_deref(), calls);
    }

    fn under_way<'c, K: ResourceExt>(
        &self,
        object: &K,
        calls: impl IntoIterator<Item = &'c Call>,
    ) -> Option<&'a Event> {
        telling::under_way(self.objects, object.uid().as_deref(), calls)
    }

    /// The node and the plugin that make a volume's controller calls, where they hold it up.
    fn add_host(&self, branch: &mut Branch, plugin: &str, host: Option<&str>) {
        let node = host.map(|host| self.node(host));
        let serving = self.plugin(plugin, Service::Controller(host));
        branch.because.extend(node.into_iter().chain([serving]).filter(Branch::blocked));
    }

    fn on_node(&self, volume: &str, node: &str) -> Option<&'a VolumeAttachment> {
        let there = self.attached.get(volume).into_iter().flatten().copied();
        // While one closes and the next is not made yet, the one that closes is what is waited for.
        there.filter(|a| a.spec.node_name == node).max_by_key(|a| a.metadata.deletion_timestamp.is_none())
    }

    /// Whether an attachment goes: somebody asked for that, or its node does it by itself, as nobody can want it any more who was let in.
    fn is_leaving(&self, attachment: &VolumeAttachment) -> bool {
        let closed =
            attachment.status.as_ref().and_then(|status| status.node.as_ref()).is_some_and(|n| n.closed);
        let goes = |uid: &String| {
            let of_it = |a: &&Allocation| a.metadata.uid.as_ref() == Some(uid);
            let found = self.objects.allocations.iter().find(of_it);
            found.is_some_and(|a| a.metadata.deletion_timestamp.is_some())
        };
        let let_in = &attachment.spec.allocations;
        let alone = !let_in.is_empty() && let_in.iter().all(goes);
        attachment.metadata.deletion_timestamp.is_some() || closed || alone
    }

    fn attachment(&self, name: &str) -> Branch {
        let found = self.attachments.get(&key(name));
        self.enter(Subject::global(Kind::Attachment, name), found, |attachment, mut branch| {
            let status = attachment.status.clone().unwrap_or_default();
            let (host, here) = (status.controller.unwrap_or_default(), status.node.unwrap_or_default());
            let spec = &attachment.spec;
            let leaving = self.is_leaving(attachment);
            let on_host = if leaving {
                here.released_uid == attachment.uid().unwrap_or_default()
            } else {
                spec.attach_required && host.attached != Rung::Up
            };
            let node = &spec.node_name;
            branch.state = State::Blocked;
            branch.text = match (leaving, on_host) {
                (true, true) => format!("released by {node}, not detached yet"),
                (true, false) => format!("not released by {node} yet"),
                (false, true) => format!("not attached to {node}"),
                (false, false)
                    if spec.stage_required && here.staged != Rung::Up || !here.reason.is_empty() =>
                {
                    // That it is staged is told with what comes of this.
                    let both = host.calls.iter().chain(&here.calls);
                    let publishes = self.under_way(attachment, both).is_some_and(telling::publishes);
                    telling::on_its_way(spec, if publishes { Rung::Up } else { here.staged })
                }
                (false, false) => {
                    branch.state = State::Fine;
                    format!("up on {node}")
                }
            };
            if branch.state == State::Fine {
                self.add_publishing(&mut branch, attachment);
                // Who uses it has it all the same: it is told to who asks for it itself.
                let asked = self.way.borrow().len() == 1;
                let conditions =
                    attachment.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
                return match unmet(conditions, EXPANDED).filter(|_| asked && branch.because.is_empty()) {
                    Some(told) => expanding::less_there(attachment, told),
                    None => branch,
                };
            }
            let both = host.calls.iter().chain(&here.calls);
            let hands_over =
                self.volumes.get(&key(&spec.volume)).and_then(|volume| needing::handing_over(volume));
            if let Some(volume) = hands_over.filter(|_| on_host) {
                // What its host said before is over.
                branch.because.push(volume);
            } else if on_host {
                add_words(&mut branch, &host.reason, &host.message);
                self.add_under_way(&mut branch, attachment, both);
                add_call(&mut branch, &host.calls);
                branch.next = host.next_attempt_time;
                if host.reason == NOT_IN_TURN {
                    branch.because.extend(self.at_it(attachment));
                }
                self.add_host(&mut branch, &spec.plugin, spec.host.as_ref().map(|h| h.node_name.as_str()));
            } else {
                // A call is under way: the plugin that was waited for before is there again.
                if here.reason != NOT_READY || self.under_way(attachment, both.clone()).is_none() {
                    add_words(&mut branch, &here.reason, &here.message);
                }
                self.add_under_way(&mut branch, attachment, both);
                add_call(&mut branch, &here.calls);
                branch.next = here.next_attempt_time;
                let below = [self.node(node), self.plugin(&spec.plugin, Service::Node(node))];
                branch.because.extend(below.into_iter().filter(Branch::blocked));
                // A call that takes it down and fails is what holds it up, for those who have it still, too.
                let undoes = ["NodeUnpublishVolume", "NodeUnstageVolume"];
                let fails = branch.call.as_ref().is_some_and(|call| undoes.contains(&call.method.as_str()));
                if leaving && !fails {
                    branch.because.extend(self.users_there(spec));
                }
            }
            branch
        })
    }
}

impl Service<'_> {
    fn fits(self, instance: &PluginInstance) -> bool {
        let (role, node) = (instance.spec.role, instance.spec.node_name.as_str());
        match self {
            Self::Controller(place) => role.controller() && place.is_none_or(|place| place == node),
            Self::New => role.controller(),
            Self::Node(place) => role.node() && place == node,
            Self::Any => true,
        }
    }

    fn place(self) -> String {
        match self {
            Self::Controller(Some(node)) | Self::Node(node) => format!(" on {node}"),
            Self::Controller(None) | Self::New | Self::Any => String::new(),
        }
    }

    fn role(self) -> &'static str {
        match self {
            Self::Controller(_) | Self::New => "controller ",
            Self::Node(_) => "node ",
            Self::Any => "",
        }
    }
}

fn key(name: &str) -> (String, String) {
    (String::new(), name.to_owned())
}

impl Branch {
    fn say(&mut self, text: &str) {
        text.clone_into(&mut self.text);
    }

    fn add(&mut self, text: &str) {
        self.text.push_str(text);
    }

    fn name_reason(&mut self, reason: &str) {
        reason.clone_into(&mut self.reason);
    }
}

/// Whether an allocation is on its way out: deleted, or told to stop and not down yet.
fn leaves(allocation: &Allocation) -> bool {
    let status = allocation.status.as_ref();
    let bound = status.is_some_and(|status| !status.node_name.is_empty());
    let down = status.and_then(|s| s.phase).is_some_and(|p| p.terminal() || p == AllocationPhase::Stopped);
    allocation.metadata.deletion_timestamp.is_some() || allocation.spec.stop && bound && !down
}

/// Where an allocation stands, in two words.
fn stands(status: &AllocationStatus) -> String {
    let phase = status.phase.map_or_else(|| "Pending".to_owned(), |phase| format!("{phase:?}"));
    match status.node_name.as_str() {
        "" => phase,
        node => format!("{phase} on {node}"),
    }
}

/// The named condition, if it is there and does not hold.
fn unmet<'c>(conditions: &'c [Condition], kind: &str) -> Option<&'c Condition> {
    conditions.iter().find(|c| c.kind == kind && c.status != Truth::True)
}

fn add_told(branch: &mut Branch, told: Option<&Condition>) {
    match told {
        // "being deleted: is being deleted".
        Some(told) if told.message.strip_prefix("is ") == Some(&branch.text) => {
            branch.name_reason(&told.reason);
        }
        Some(told) => add_words(branch, &told.reason, &told.message),
        None => {}
    }
}

fn add_words(branch: &mut Branch, reason: &str, message: &str) {
    branch.name_reason(reason);
    let said = if message.is_empty() { reason } else { message };
    if !said.is_empty() {
        branch.add(&format!(": {said}"));
    }
}

fn add_call<'c>(branch: &mut Branch, calls: impl IntoIterator<Item = &'c Call>) {
    let last = calls.into_iter().max_by_key(|call| call.start_time);
    branch.call = last.filter(|call| call.code != "OK").cloned().or(branch.call.take());
}
