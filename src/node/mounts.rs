//! One volume on this node: the ladder of `plan::mount`, carried out.
//!
//! Gather, plan, carry out one step, journal, and again until nothing is left to do; then write what came of it. The
//! steps do not need the server; only their report does.
use std::sync::Arc;
use std::time::Duration;

use kube::{Resource, ResourceExt};

use super::context::{Key, Node};
use super::journal::{
    AttachmentEntry, Change, Entry, HostPublication, JournalError, PublicationEntry, publication_key,
};
use super::requests;
use crate::api::allocation::AllocationPhase;
use crate::api::meta::{
    Call, Condition, Map, ObjectRef, READY, Rung, Time, Truth, VolumeMode, set_condition,
};
use crate::api::volume::StageStatus;
use crate::api::{Allocation, VolumeAttachment};
use crate::csi::{self, Failure, Remedy, Terms};
use crate::plan::mount::{self, Attachment, Level, Publication, Step};
use crate::plan::registry::Service;
use crate::plan::{Next, Reason};
use crate::sys::kernel::{Access, FileKind, KernelError, PathFacts, Present};
use crate::sys::path::{BadPath, HostPath, Place, TreePath};

/// How long a step that must not be repeated as it is waits for a change.
pub const BLOCKED: Duration = Duration::from_secs(365 * 24 * 3600);
/// An unpublish that the plugin answers with NOT_FOUND counts as done after so many times, if the kernel agrees.
const NOT_FOUND_TRIES: u32 = 3;

/// One attachment of the volume: what the API says of it and what the journal does.
struct Unit {
    uid: String,
    object: Option<Arc<VolumeAttachment>>,
    entry: Option<AttachmentEntry>,
    users: Vec<User>,
    wanted: Attachment,
}

/// One user of the volume here.
struct User {
    allocation: ObjectRef,
    name: String,
    read_only: bool,
    host_path: String,
    wanted: bool,
    entry: Option<PublicationEntry>,
}

/// Why a step did not succeed.
enum Trouble {
    /// It waits for something whose change wakes it.
    Wait(Reason),
    /// A call failed.
    Call(Failure),
    /// The kernel said no, or shows something else than it should.
    Kernel(&'static str, String),
    /// The journal cannot be written; the daemon is ending.
    Journal(JournalError),
}

impl From<JournalError> for Trouble {
    fn from(error: JournalError) -> Self {
        Self::Journal(error)
    }
}

impl From<KernelError> for Trouble {
    fn from(error: KernelError) -> Self {
        Self::Kernel("KernelRefused", chain(&error))
    }
}

impl From<BadPath> for Trouble {
    fn from(error: BadPath) -> Self {
        Self::Kernel("PathNotAllowed", error.to_string())
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        source = inner.source();
    }
    text
}

/// Brings one volume on this node as far as it goes. Returns when to try again, if time alone may help.
pub async fn reconcile(node: &Arc<Node>, volume: &str) -> Option<Duration> {
    if !node.synced() {
        return None;
    }
    let mut again: Option<Duration> = None;
    let mut held: Vec<String> = Vec::new();
    loop {
        let units = gather(node, volume);
        let mut progressed = false;
        for unit in &units {
            let key = unit.key();
            match mount::next(unit.wanted, &unit.seen(node)) {
                Next::Converged => node.notes.clear(&key),
                Next::Wait(reason) => node.notes.wait(&key, &reason),
                Next::Do(step) => {
                    let name = format!("{key}/{}", unit.step_name(step));
                    if held.contains(&name) {
                        continue;
                    }
                    if let Some(left) = node.retry.remaining(&name) {
                        again = Some(again.map_or(left, |a| a.min(left)));
                        held.push(name);
                        continue;
                    }
                    match unit.carry_out(node, step, &name).await {
                        Ok(()) => {
                            node.retry.succeeded(&name);
                            progressed = true;
                        }
                        Err(trouble) => {
                            if let Some(delay) = trouble_delay(node, &key, &name, &trouble) {
                                again = Some(again.map_or(delay, |a| a.min(delay)));
                            }
                            held.push(name);
                        }
                    }
                }
            }
        }
        if !progressed {
            let report = record(node, &units, again).await;
            return [again, report].into_iter().flatten().min().filter(|d| *d < BLOCKED / 2);
        }
    }
}

fn trouble_delay(node: &Node, key: &str, step: &str, trouble: &Trouble) -> Option<Duration> {
    match trouble {
        Trouble::Wait(reason) => {
            node.notes.wait(key, reason);
            match reason {
                // A node may only get Secrets, not watch them.
                Reason::SecretMissing { .. } => Some(node.retry.failed(step, reason.word().to_owned())),
                _ => None,
            }
        }
        Trouble::Call(failure) => {
            node.notes.set(key, &reason_word(failure), &failure.to_string());
            match failure.remedy() {
                Remedy::Repeat | Remedy::RepairSecrets => {
                    Some(node.retry.failed(step, failure.code_name().to_owned()))
                }
                Remedy::ChangeInput | Remedy::Unsupported => {
                    node.retry.failed(step, failure.code_name().to_owned());
                    node.retry.block(step, BLOCKED);
                    None
                }
            }
        }
        Trouble::Kernel(word, message) => {
            node.notes.set(key, word, message);
            Some(node.retry.failed(step, (*word).to_owned()))
        }
        Trouble::Journal(error) => {
            node.notes.set(key, "JournalFailed", &chain(error));
            Some(node.retry.failed(step, "journal".to_owned()))
        }
    }
}

/// `NodeStageVolume` failing is `NodeStageVolumeFailed`, one in doubt `NodeStageVolumeUncertain`.
pub fn reason_word(failure: &Failure) -> String {
    let what = if failure.is_uncertain() { "Uncertain" } else { "Failed" };
    format!("{}{what}", failure.rpc.name())
}

fn gather(node: &Node, volume: &str) -> Vec<Unit> {
    let mut units: Vec<Unit> = Vec::new();
    let mut entries = node.journal.attachments_of(volume);
    for object in node.caches.attachments.of(volume) {
        let uid = object.uid().unwrap_or_default();
        let at = entries.iter().position(|e| e.uid == uid);
        let entry = at.map(|at| entries.swap_remove(at));
        units.push(Unit::new(node, uid, Some(object), entry));
    }
    for entry in entries {
        units.push(Unit::new(node, entry.uid.clone(), None, Some(entry)));
    }
    // What leaves goes first: the new attachment of a volume waits for the old one's end here.
    units.sort_by_key(|u| u.wanted == Attachment::Open);
    let leaving = units.iter().any(|u| u.wanted == Attachment::Leaving && u.busy());
    if leaving {
        units.retain(|u| u.wanted == Attachment::Leaving);
    }
    units
}

/// Whether an allocation is on its way out, as far as its volumes go.
pub fn stopping(node: &Node, allocation: &Allocation) -> bool {
    let phase = allocation.status.as_ref().and_then(|s| s.phase);
    // Stopped is not over: it may be wanted again.
    let over = matches!(phase, Some(AllocationPhase::Complete | AllocationPhase::Failed));
    allocation.meta().deletion_timestamp.is_some() || allocation.spec.stop || node.stopped() || over
}

impl Unit {
    fn new(
        node: &Node,
        uid: String,
        object: Option<Arc<VolumeAttachment>>,
        entry: Option<AttachmentEntry>,
    ) -> Self {
        let open = object.as_ref().is_some_and(|o| o.meta().deletion_timestamp.is_none());
        let wanted = if open { Attachment::Open } else { Attachment::Leaving };
        let mut published = node.journal.publications(&uid);
        let mut users = Vec::new();
        for holder in object.iter().flat_map(|o| &o.spec.allocations) {
            let Some(allocation) = node.caches.allocations.one(holder) else { continue };
            let namespace = allocation.namespace().unwrap_or_default();
            let claim = object.as_ref().map(|o| o.spec.claim.clone());
            for of in allocation.spec.volumes.iter().filter(|v| {
                claim.as_ref().is_some_and(|c| c.name == v.claim_name && c.namespace == namespace)
            }) {
                let at = published.iter().position(|p| p.allocation.uid == *holder && p.name == of.name);
                users.push(User {
                    allocation: ObjectRef {
                        namespace: namespace.clone(),
                        name: allocation.name_any(),
                        uid: holder.clone(),
                    },
                    name: of.name.clone(),
                    read_only: of.read_only,
                    host_path: of.host_path.clone(),
                    wanted: open && !stopping(node, &allocation),
                    entry: at.map(|at| published.swap_remove(at)),
                });
            }
        }
        users.extend(published.into_iter().map(|entry| User {
            allocation: entry.allocation.clone(),
            name: entry.name.clone(),
            read_only: entry.read_only,
            host_path: String::new(),
            wanted: false,
            entry: Some(entry),
        }));
        Self { uid, object, entry, users, wanted }
    }

    fn key(&self) -> String {
        format!("att/{}", self.uid)
    }

    /// Whether anything of it may be left here.
    fn busy(&self) -> bool {
        self.entry.as_ref().is_some_and(|e| e.staged != Level::Down)
            || self.users.iter().any(|u| u.level() != Level::Down)
    }

    fn released(&self) -> bool {
        let said = self.object.as_ref().and_then(|o| o.status.as_ref()).and_then(|s| s.node.as_ref());
        self.entry.as_ref().is_some_and(|e| e.released) || said.is_some_and(|s| s.released_uid == self.uid)
    }

    fn seen(&self, node: &Node) -> mount::Seen {
        let spec = self.object.as_ref().map(|o| &o.spec);
        mount::Seen {
            attach_required: spec.is_some_and(|s| s.attach_required),
            attached: self.attached(),
            stage_required: spec.map_or_else(
                || self.entry.as_ref().is_some_and(|e| e.stage_required),
                |spec| spec.stage_required,
            ),
            staged: self.entry.as_ref().map_or(Level::Down, |e| e.staged),
            closed: self.entry.as_ref().is_some_and(|e| e.closed),
            released: self.released(),
            publications: self
                .users
                .iter()
                .map(|u| Publication {
                    wanted: u.wanted,
                    level: u.level(),
                    idle: node.tasks.idle(&u.allocation.uid),
                })
                .collect(),
        }
    }

    fn attached(&self) -> Rung {
        let Some(object) = &self.object else { return Rung::Unknown };
        let said = object.status.as_ref().and_then(|s| s.controller.as_ref());
        let epoch = object.spec.host.as_ref().map(|h| h.epoch);
        said.filter(|s| Some(s.epoch) == epoch).map_or(Rung::Unknown, |s| s.attached)
    }

    fn step_name(&self, step: Step) -> String {
        match step {
            Step::Close => "close".to_owned(),
            Step::Stage => "stage".to_owned(),
            Step::Unstage => "unstage".to_owned(),
            Step::Release => "release".to_owned(),
            Step::Publish(i) => format!("publish/{}", self.users[i].allocation.uid),
            Step::Unpublish(i) => format!("unpublish/{}", self.users[i].allocation.uid),
        }
    }

    async fn carry_out(&self, node: &Arc<Node>, step: Step, name: &str) -> Result<(), Trouble> {
        match step {
            Step::Close => {
                let mut entry = self.entry_or_new()?;
                entry.closed = true;
                Ok(node.journal.put(Entry::Attachment(entry)).await?)
            }
            Step::Stage => self.stage(node, name).await,
            Step::Unstage => self.unstage(node, name).await,
            Step::Publish(i) => self.publish(node, &self.users[i], name).await,
            Step::Unpublish(i) => self.unpublish(node, &self.users[i], name).await,
            Step::Release => self.release(node).await,
        }
    }

    fn entry_or_new(&self) -> Result<AttachmentEntry, Trouble> {
        if let Some(entry) = &self.entry {
            return Ok(entry.clone());
        }
        let object = self.object.as_ref().ok_or(Trouble::Wait(Reason::NotAttached))?;
        let spec = &object.spec;
        Ok(AttachmentEntry {
            uid: self.uid.clone(),
            name: object.name_any(),
            volume: spec.volume.clone(),
            plugin: spec.plugin.clone(),
            handle: spec.handle.clone(),
            capability: spec.capability.clone(),
            stage_required: spec.stage_required,
            staging: staging_name(&spec.plugin, &spec.handle),
            staged: Level::Down,
            closed: false,
            released: false,
        })
    }

    fn publish_context(&self) -> Map {
        let status = self.object.as_ref().and_then(|o| o.status.as_ref());
        status.and_then(|s| s.controller.as_ref()).map(|c| c.publish_context.clone()).unwrap_or_default()
    }

    async fn stage(&self, node: &Arc<Node>, step: &str) -> Result<(), Trouble> {
        let Some(object) = &self.object else { return Err(Trouble::Wait(Reason::NotAttached)) };
        let spec = &object.spec;
        let plugin = serving(node, &spec.plugin)?;
        let secrets = node.secrets(spec.secrets.node_stage.as_ref()).await.map_err(Trouble::Wait)?;
        let mut entry = self.entry_or_new()?;
        entry.staged = Level::Rising;
        node.journal.put(Entry::Attachment(entry.clone())).await?;
        let place = TreePath::new(["staging", &entry.staging])?;
        node.machine.kernel.make_dir(&place).await?;
        let path = absolute(node, &place);
        let request = requests::stage(spec, &self.publish_context(), &path, secrets, plugin.newer_modes);
        let call = |terms| plugin.client.node_stage_volume(request, terms);
        match self.call(node, "NodeStageVolume", step, call).await {
            Ok(_) => {
                entry.staged = Level::Up;
                tracing::info!(volume = entry.volume, plugin = entry.plugin, "staged");
                Ok(node.journal.put(Entry::Attachment(entry)).await?)
            }
            Err(failure) if failure.is_already_exists() => {
                // Staged there with other arguments, by a record that is gone: it comes down first (CO-NODE-26).
                entry.staged = Level::Sinking;
                Ok(node.journal.put(Entry::Attachment(entry)).await?)
            }
            Err(failure) => Err(Trouble::Call(failure)),
        }
    }

    async fn unstage(&self, node: &Arc<Node>, step: &str) -> Result<(), Trouble> {
        let mut entry = self.entry_or_new()?;
        let plugin = serving(node, &entry.plugin)?;
        if entry.staged != Level::Sinking {
            entry.staged = Level::Sinking;
            node.journal.put(Entry::Attachment(entry.clone())).await?;
        }
        let place = TreePath::new(["staging", &entry.staging])?;
        let request = csi::proto::NodeUnstageVolumeRequest {
            volume_id: entry.handle.clone(),
            staging_target_path: absolute(node, &place),
        };
        let call = |terms| plugin.client.node_unstage_volume(request, terms);
        match self.call(node, "NodeUnstageVolume", step, call).await {
            Ok(_) => {}
            Err(failure) if self.forgiven(node, &failure, step, &place).await => {}
            Err(failure) => return Err(Trouble::Call(failure)),
        }
        self.nothing_mounted(node, &place).await?;
        node.machine.kernel.remove(&place).await?;
        entry.staged = Level::Down;
        tracing::info!(volume = entry.volume, plugin = entry.plugin, "unstaged");
        Ok(node.journal.put(Entry::Attachment(entry)).await?)
    }

    async fn publish(&self, node: &Arc<Node>, user: &User, step: &str) -> Result<(), Trouble> {
        let Some(object) = &self.object else { return Err(Trouble::Wait(Reason::NotAttached)) };
        let spec = &object.spec;
        let plugin = serving(node, &spec.plugin)?;
        let host = user.host_path(node)?;
        let secrets = node.secrets(spec.secrets.node_publish.as_ref()).await.map_err(Trouble::Wait)?;
        let attachment = self.entry_or_new()?;
        let mut entry = self.publication(user, host.as_ref());
        entry.level = Level::Rising;
        let mut changes = vec![Change::Put(Entry::Publication(entry.clone()))];
        if self.entry.is_none() {
            changes.insert(0, Change::Put(Entry::Attachment(attachment.clone())));
        }
        node.journal.commit(changes).await?;
        let parent = TreePath::new(["publish", &entry.directory])?;
        node.machine.kernel.make_dir(&parent).await?;
        let target = parent.join(TARGET)?;
        let staging = TreePath::new(["staging", &attachment.staging])?;
        let request = requests::publish(
            spec,
            requests::Publish {
                publish_context: &self.publish_context(),
                staging: &if spec.stage_required { absolute(node, &staging) } else { String::new() },
                target: &absolute(node, &target),
                read_only: user.read_only,
                secrets,
            },
            plugin.newer_modes,
        );
        let call = |terms| plugin.client.node_publish_volume(request, terms);
        match self.call(node, "NodePublishVolume", step, call).await {
            Ok(_) => {}
            Err(failure) if failure.is_already_exists() => {
                // Published there with other arguments: it comes down first.
                entry.level = Level::Sinking;
                return Ok(node.journal.put(Entry::Publication(entry)).await?);
            }
            Err(failure) => return Err(Trouble::Call(failure)),
        }
        let verified = self.verify(node, &target, spec.stage_required.then_some(&staging)).await?;
        if let Some(host) = &host {
            self.publish_at_host(node, &target, &verified, host, &mut entry).await?;
        }
        entry.verified = Some(verified);
        entry.level = Level::Up;
        tracing::info!(volume = attachment.volume, allocation = user.allocation.name, "published");
        node.journal.put(Entry::Publication(entry)).await?;
        node.queue.wake(Key::Allocation(user.allocation.uid.clone()));
        Ok(())
    }

    fn publication(&self, user: &User, host: Option<&HostPath>) -> PublicationEntry {
        user.entry.clone().unwrap_or_else(|| PublicationEntry {
            attachment: self.uid.clone(),
            allocation: user.allocation.clone(),
            name: user.name.clone(),
            directory: hash(&[&self.uid, &user.allocation.uid, &user.name]),
            read_only: user.read_only,
            level: Level::Down,
            verified: None,
            host: host.map(|h| HostPublication {
                allowed: h.allowed().to_owned(),
                path: h.absolute(),
                made: 0,
            }),
        })
    }

    /// What is at the target must be what was asked for: a mount, of the staged file system if there is one; or a device.
    async fn verify(
        &self,
        node: &Node,
        target: &TreePath,
        staging: Option<&TreePath>,
    ) -> Result<Present, Trouble> {
        let mode = self.object.as_ref().map(|o| o.spec.capability.volume_mode).unwrap_or_default();
        let wrong = |message: &str| Trouble::Kernel("NotMounted", message.to_owned());
        let facts = node.machine.kernel.mount_facts(&Place::Tree(target.clone())).await?;
        let PathFacts::Present(present) = facts else {
            return Err(wrong(
                "the plugin answered OK to NodePublishVolume but nothing is at the target path",
            ));
        };
        match mode {
            VolumeMode::Block if matches!(present.kind, FileKind::Block(_)) => return Ok(present),
            VolumeMode::Block => {
                return Err(wrong("the plugin answered OK but no block device is at the target path"));
            }
            VolumeMode::Filesystem => {}
        }
        let Some(mount) = &present.mount else {
            return Err(wrong(
                "the plugin answered OK but the target is no mount point here; its mounts must propagate to this \
                 namespace",
            ));
        };
        if let Some(staging) = staging
            && let Some(staged) =
                node.machine.kernel.mount_facts(&Place::Tree(staging.clone())).await?.mount()
            && staged.device != mount.device
        {
            return Err(wrong("what is mounted at the target is not the file system that was staged"));
        }
        Ok(present)
    }

    async fn publish_at_host(
        &self,
        node: &Node,
        target: &TreePath,
        verified: &Present,
        host: &HostPath,
        entry: &mut PublicationEntry,
    ) -> Result<(), Trouble> {
        let before = node.machine.kernel.mount_facts(&Place::Host(host.clone())).await?;
        let made = match before {
            PathFacts::Absent { missing } => missing,
            PathFacts::Present(_) => entry.host.as_ref().map_or(0, |h| h.made),
        };
        entry.host =
            Some(HostPublication { allowed: host.allowed().to_owned(), path: host.absolute(), made });
        entry.verified = Some(verified.clone());
        // Written before the mount is made: a crash between the two must not leave one that nobody knows.
        node.journal.put(Entry::Publication(entry.clone())).await?;
        let access = if entry.read_only { Access::ReadOnly } else { Access::ReadWrite };
        node.machine.kernel.publish_at_host(target, verified, host, access).await?;
        Ok(())
    }

    async fn unpublish(&self, node: &Arc<Node>, user: &User, step: &str) -> Result<(), Trouble> {
        let Some(mut entry) = user.entry.clone() else { return Ok(()) };
        let attachment = self.entry_or_new()?;
        let plugin = serving(node, &attachment.plugin)?;
        if entry.level != Level::Sinking {
            entry.level = Level::Sinking;
            node.journal.put(Entry::Publication(entry.clone())).await?;
        }
        // A start that looked at the journal before the line above may have gone on since: look again.
        if !node.tasks.idle(&user.allocation.uid) {
            return Err(Trouble::Wait(Reason::TasksRunning));
        }
        if let (Some(host), Some(verified)) = (&entry.host, &entry.verified) {
            let place = HostPath::new(&host.allowed, &host.path)?;
            node.machine.kernel.unpublish_at_host(&place, verified, host.made).await?;
        }
        let parent = TreePath::new(["publish", &entry.directory])?;
        let target = parent.join(TARGET)?;
        let request = csi::proto::NodeUnpublishVolumeRequest {
            volume_id: attachment.handle.clone(),
            target_path: absolute(node, &target),
        };
        let call = |terms| plugin.client.node_unpublish_volume(request, terms);
        match self.call(node, "NodeUnpublishVolume", step, call).await {
            Ok(_) => {}
            Err(failure) if self.forgiven(node, &failure, step, &target).await => {}
            Err(failure) => return Err(Trouble::Call(failure)),
        }
        self.nothing_mounted(node, &target).await?;
        node.machine.kernel.remove(&target).await?;
        node.machine.kernel.remove(&parent).await?;
        let key = publication_key(&self.uid, &user.allocation.uid, &user.name);
        node.journal.commit(vec![Change::Forget(key)]).await?;
        tracing::info!(volume = attachment.volume, allocation = user.allocation.name, "unpublished");
        node.queue.wake(Key::Allocation(user.allocation.uid.clone()));
        Ok(())
    }

    /// NOT_FOUND to a reverse call is no success by itself. Repeated, and with nothing mounted there, it is as much as
    /// this plugin will ever say.
    async fn forgiven(&self, node: &Node, failure: &Failure, step: &str, place: &TreePath) -> bool {
        failure.is_not_found()
            && node.retry.attempt(step) >= NOT_FOUND_TRIES
            && self.nothing_mounted(node, place).await.is_ok()
    }

    async fn nothing_mounted(&self, node: &Node, place: &TreePath) -> Result<(), Trouble> {
        let facts = node.machine.kernel.mount_facts(&Place::Tree(place.clone())).await?;
        match facts.mount() {
            None => Ok(()),
            Some(_) => Err(Trouble::Kernel(
                "StillMounted",
                format!("the plugin answered, but {} is still a mount point", absolute(node, place)),
            )),
        }
    }

    async fn release(&self, node: &Arc<Node>) -> Result<(), Trouble> {
        let key = format!("attachment/{}", self.uid);
        let Some(object) = &self.object else {
            node.forget_written(&self.uid);
            node.calls.clear(&self.key());
            return Ok(node.journal.commit(vec![Change::Forget(key)]).await?);
        };
        let mut entry = self.entry_or_new()?;
        let status = self.status(node, None, true);
        node.write_status(&**object, "node", &status)
            .await
            .map_err(|error| Trouble::Kernel("NotReported", chain(&error)))?;
        entry.released = true;
        tracing::info!(volume = entry.volume, "released");
        Ok(node.journal.put(Entry::Attachment(entry)).await?)
    }

    /// One call, measured and remembered.
    async fn call<T, F>(
        &self,
        node: &Node,
        method: &'static str,
        step: &str,
        make: impl FnOnce(Terms) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let plugin = self
            .object
            .as_ref()
            .map(|o| o.spec.plugin.clone())
            .or(self.entry.as_ref().map(|e| e.plugin.clone()));
        let deadline = node.deadline(&plugin.unwrap_or_default(), method);
        let attempt = node.retry.attempt(step);
        let started = node.now();
        let result = make(Terms { deadline, attempt }).await;
        node.calls.add(&self.key(), requests::call(method, &result, attempt, started, node.now()));
        result
    }

    fn status(&self, node: &Node, again: Option<Duration>, released: bool) -> NodePart {
        let before = self.object.as_ref().and_then(|o| o.status.as_ref());
        let known: &[Call] =
            before.and_then(|s| s.node.as_ref()).map(|n| n.calls.as_slice()).unwrap_or_default();
        let (reason, message) = node.notes.get(&self.key());
        let next = again.filter(|_| !reason.is_empty()).map(|d| later(node.now(), d));
        let staged = self.entry.as_ref().map_or(Rung::Down, |e| e.staged.rung());
        let stage = StageStatus {
            staged,
            closed: self.entry.as_ref().is_some_and(|e| e.closed),
            released_uid: if released { self.uid.clone() } else { String::new() },
            calls: node.calls.get(&self.key(), known),
            next_attempt_time: next,
            reason: reason.clone(),
            message: message.clone(),
        };
        let spec = self.object.as_ref().map(|o| &o.spec);
        let ready = spec.is_some_and(|s| {
            (!s.attach_required || self.attached() == Rung::Up) && (!s.stage_required || staged == Rung::Up)
        });
        let (truth, word) = match (ready, self.wanted, reason.is_empty()) {
            (true, Attachment::Open, true) => (Truth::True, "Ready".to_owned()),
            (_, Attachment::Leaving, true) => (Truth::False, "Leaving".to_owned()),
            (_, _, true) => (Truth::False, "Waiting".to_owned()),
            (_, _, false) => (Truth::False, reason),
        };
        let mut conditions = before.map(|s| s.conditions.clone()).unwrap_or_default();
        let generation = self.object.as_ref().and_then(|o| o.meta().generation);
        let condition = Condition::new(READY, truth, &word, message).of_generation(generation);
        set_condition(&mut conditions, condition, node.now());
        NodePart { node: stage, conditions }
    }
}

/// This node's part of an attachment's status.
#[derive(serde::Serialize)]
struct NodePart {
    node: StageStatus,
    conditions: Vec<Condition>,
}

impl User {
    fn level(&self) -> Level {
        self.entry.as_ref().map_or(Level::Down, |e| e.level)
    }

    fn host_path(&self, node: &Node) -> Result<Option<HostPath>, Trouble> {
        if self.host_path.is_empty() {
            return Ok(None);
        }
        let wanted = std::path::Path::new(&self.host_path);
        let allowed =
            node.options.host_paths.iter().filter_map(|allowed| HostPath::new(allowed, wanted).ok());
        match allowed.max_by_key(|h| h.allowed().as_os_str().len()) {
            Some(path) => Ok(Some(path)),
            None => {
                let list: Vec<_> = node.options.host_paths.iter().map(|p| p.display().to_string()).collect();
                Err(Trouble::Kernel(
                    "HostPathNotAllowed",
                    format!(
                        "hostPath {} is not beneath one that this node allows: {}",
                        self.host_path,
                        list.join(", ")
                    ),
                ))
            }
        }
    }
}

/// The last component of every target path; the plugin makes it.
pub const TARGET: &str = "target";

struct Serving {
    client: csi::Plugin,
    newer_modes: bool,
}

fn serving(node: &Node, plugin: &str) -> Result<Serving, Trouble> {
    match node.registry.serving(plugin, Service::Node) {
        Some(instance) => Ok(Serving {
            client: instance.client,
            newer_modes: instance.progress.fingerprint.is_some_and(|f| f.node.single_node_multi_writer),
        }),
        None => Err(Trouble::Wait(Reason::PluginNotReady {
            plugin: plugin.to_owned(),
            node: node.options.name.clone(),
        })),
    }
}

fn absolute(node: &Node, path: &TreePath) -> String {
    node.machine.kernel.absolute(&Place::Tree(path.clone())).to_string_lossy().into_owned()
}

fn later(now: Time, delay: Duration) -> Time {
    Time(jiff::SignedDuration::try_from(delay).map_or(now.0, |d| now.0.saturating_add(d).unwrap_or(now.0)))
}

/// A directory name for any ids: 32 hexadecimal digits of their SHA-256.
pub fn hash(parts: &[&str]) -> String {
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    for part in parts {
        context.update(&(part.len() as u64).to_le_bytes());
        context.update(part.as_bytes());
    }
    context.finish().as_ref()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// One staging directory per plugin and volume on a node, whatever uses it.
fn staging_name(plugin: &str, handle: &str) -> String {
    hash(&["staging", plugin, handle])
}

async fn record(node: &Arc<Node>, units: &[Unit], again: Option<Duration>) -> Option<Duration> {
    let mut retry: Option<Duration> = None;
    for unit in units {
        for user in &unit.users {
            node.queue.wake(Key::Allocation(user.allocation.uid.clone()));
        }
        let Some(object) = &unit.object else { continue };
        let quiet = unit.entry.is_none() && unit.users.is_empty() && object.status.is_none();
        if quiet {
            continue;
        }
        let status = unit.status(node, again, unit.released());
        let result = node.write_status(&**object, "node", &status).await;
        if let Some(delay) = node.after_write(&format!("{}/report", unit.key()), result) {
            retry = Some(retry.map_or(delay, |r| r.min(delay)));
        }
    }
    retry
}
