//! The steps themselves: journal, one call, verify, journal.
use kube::Resource;
use std::path::PathBuf;
use std::sync::Arc;

use super::super::allocations::wake_orphans;
use super::super::context::{Key, Node};
use super::super::journal::{AttachmentEntry, Change, Entry, PublicationEntry, publication_key};
use super::super::{lookup, requests};
use super::unit::{Unit, User};
use super::{FOREIGN_MOUNT, NODE, TARGET, Trouble, at_host, chain, hash, strays};
use crate::api::meta::VolumeMode;
use crate::csi::{self, Alpha, Failure, Gate, Terms};
use crate::plan::Reason;
use crate::plan::mount::{Level, Step};
use crate::plan::registry::Service;
use crate::plan::view;
use crate::sys::kernel::{DeviceId, FileKind, MountId, PathFacts, Present};
use crate::sys::path::{Place, TreePath};
use kube::ResourceExt;

/// An unpublish that the plugin answers with NOT_FOUND counts as done after so many times, if the kernel agrees.
const NOT_FOUND_TRIES: u32 = 3;

impl Unit {
    pub(super) async fn carry_out(&self, node: &Arc<Node>, step: Step, name: &str) -> Result<(), Trouble> {
        match step {
            Step::Close => {
                let mut entry = self.entry_or_new()?;
                entry.closed = true;
                Ok(node.journal.put(Entry::Attachment(entry)).await?)
            }
            Step::Stage => self.stage(node, name).await,
            Step::Unstage => self.unstage(node, name).await,
            Step::PassOn => {
                let mut entry = self.entry_or_new()?;
                entry.staged = Level::Down;
                tracing::info!(volume = entry.volume, "unstaged when the other volume of its handle is");
                Ok(node.journal.put(Entry::Attachment(entry)).await?)
            }
            Step::Publish(i) => self.publish(node, &self.users[i], name).await,
            Step::Expand => self.expand(node, name).await,
            Step::Unpublish(i) => self.unpublish(node, &self.users[i], name).await,
            Step::Release => self.release(node).await,
        }
    }

    pub(super) async fn stage(&self, node: &Arc<Node>, step: &str) -> Result<(), Trouble> {
        let Some(object) = &self.object else { return Err(Trouble::Wait(Reason::NotAttached)) };
        let spec = &object.spec;
        let plugin = serving(node, &spec.plugin, &spec.handle)?;
        let asker = format!("volumeattachments/{}", object.name_any());
        let secrets = node.secrets(&asker, spec.secrets.node_stage.as_ref()).await.map_err(Trouble::Wait)?;
        let mut entry = self.entry_or_new()?;
        let dialect = entry.dialect(spec, &plugin);
        entry.staged = Level::Rising;
        node.journal.put(Entry::Attachment(entry.clone())).await?;
        let place = TreePath::new(["staging", &entry.staging])?;
        node.machine.kernel.make_dir(&place).await?;
        let path = plugin.told(node, &place);
        let foreign = foreign(node, &place, entry.seen.as_ref()).await?;
        let request = requests::stage(spec, &self.publish_context(), &path, secrets, dialect);
        let call = |terms| plugin.client.node_stage_volume(request, terms);
        match self.call(node, &plugin, ("NodeStageVolume", step), call).await {
            Ok(_) => {
                let seen = match node.machine.kernel.mount_facts(&Place::Tree(place.clone())).await? {
                    PathFacts::Present(present) => Some(present),
                    PathFacts::Absent { .. } => None,
                };
                if seen.as_ref().is_some_and(|seen| is_still(foreign, seen)) {
                    return Err(not_the_volume(node, &place));
                }
                // Once it mounted there, and was never asked to unstage: an OK without a mount says nothing.
                if device(entry.seen.as_ref()).is_some() && device(seen.as_ref()).is_none() {
                    return Err(self.staged_by_word_alone(node, entry).await);
                }
                entry.seen = seen;
                entry.staged = Level::Up;
                // It may take an expansion now that it did not take as it was staged before.
                entry.tried = None;
                node.retry.succeeded(&format!("{}/{}", self.key(), self.step_name(Step::Expand)));
                node.sightings.forget(&Entry::Attachment(entry.clone()).key());
                tracing::info!(volume = entry.volume, plugin = entry.plugin, "staged");
                let entry = Entry::Attachment(entry);
                // The intent of the publish that follows takes it along.
                if self.users.iter().any(|user| user.wanted && user.level() != Level::Up) {
                    return Ok(node.journal.put_soon(entry).await?);
                }
                Ok(node.journal.put(entry).await?)
            }
            Err(failure) if failure.is_already_exists() => {
                // Staged there with other arguments, by a record that is gone: it comes down first (CO-NODE-26).
                entry.staged = Level::Sinking;
                node.journal.put(Entry::Attachment(entry)).await?;
                Err(Trouble::Undo(failure))
            }
            Err(failure) => Err(Trouble::Call(requests::naming(failure, spec.secrets.node_stage.as_ref()))),
        }
    }

    /// The plugin says that it is staged, and it is not. To one that goes by what it remembers it has to come down first, and
    /// with it what is in doubt, once nobody has the volume.
    async fn staged_by_word_alone(&self, node: &Node, entry: AttachmentEntry) -> Trouble {
        let message = "the plugin answered OK to NodeStageVolume, but its mount at the staging path is gone";
        let trouble = Trouble::Kernel("NotMounted", message.to_owned());
        let free = |user: &User| user.level() == Level::Down || user.level() != Level::Up && user.idle(node);
        if !self.users.iter().all(free) {
            return trouble;
        }
        let mut changes =
            vec![Change::Put(Entry::Attachment(AttachmentEntry { staged: Level::Sinking, ..entry }))];
        for user in self.users.iter().filter_map(|user| user.entry.clone()) {
            changes.push(Change::Put(Entry::Publication(PublicationEntry { level: Level::Sinking, ..user })));
        }
        match node.journal.commit(changes).await {
            Ok(()) => trouble,
            Err(error) => error.into(),
        }
    }

    pub(super) async fn unstage(&self, node: &Arc<Node>, step: &str) -> Result<(), Trouble> {
        let mut entry = self.entry_or_new()?;
        let plugin = serving(node, &entry.plugin, &entry.handle)?;
        let place = TreePath::new(["staging", &entry.staging])?;
        Box::pin(strays::none_left(node, &place)).await?;
        if entry.staged != Level::Sinking {
            entry.staged = Level::Sinking;
            node.journal.put(Entry::Attachment(entry.clone())).await?;
        }
        node.sightings.quiet(&Entry::Attachment(entry.clone()).key()).await;
        let request = csi::proto::NodeUnstageVolumeRequest {
            volume_id: entry.handle.clone(),
            staging_target_path: plugin.told(node, &place),
        };
        let call = |terms| plugin.client.node_unstage_volume(request, terms);
        match self.call(node, &plugin, ("NodeUnstageVolume", step), call).await {
            Ok(_) => {}
            Err(failure) if self.forgiven(node, &failure, step, &place).await => {}
            Err(failure) => return Err(Trouble::Call(failure)),
        }
        self.nothing_mounted(node, &place).await?;
        node.machine.kernel.remove(&place).await?;
        entry.staged = Level::Down;
        entry.seen = None;
        tracing::info!(volume = entry.volume, plugin = entry.plugin, "unstaged");
        Ok(node.journal.put(Entry::Attachment(entry)).await?)
    }

    pub(super) async fn publish(&self, node: &Arc<Node>, user: &User, step: &str) -> Result<(), Trouble> {
        let Some(object) = &self.object else { return Err(Trouble::Wait(Reason::NotAttached)) };
        let spec = &object.spec;
        let plugin = serving(node, &spec.plugin, &spec.handle)?;
        let host = user.host_path(node)?;
        if let Some(host) = &host {
            self.free_at_host(node, user, host)?;
        }
        let asker = format!("volumeattachments/{}", object.name_any());
        let secrets =
            node.secrets(&asker, spec.secrets.node_publish.as_ref()).await.map_err(Trouble::Wait)?;
        let mut attachment = self.entry_or_new()?;
        if spec.stage_required {
            self.still_staged(node, &attachment).await?;
        }
        let dialect = attachment.dialect(spec, &plugin);
        if !spec.stage_required && self.users.iter().all(|user| user.level() == Level::Down) {
            attachment.tried = None;
        }
        let mut entry = self.publication(user);
        entry.level = Level::Rising;
        let mut changes = vec![Change::Put(Entry::Publication(entry.clone()))];
        if self.entry.as_ref() != Some(&attachment) {
            changes.insert(0, Change::Put(Entry::Attachment(attachment.clone())));
        }
        if !planted!("call-before-intent") {
            node.journal.commit(changes).await?;
        }
        let parent = TreePath::new(["publish", &entry.directory])?;
        node.machine.kernel.make_dir(&parent).await?;
        let target = parent.join(TARGET)?;
        let staging = TreePath::new(["staging", &attachment.staging])?;
        let request = requests::publish(
            spec,
            requests::Publish {
                publish_context: &self.publish_context(),
                staging: &if spec.stage_required { plugin.told(node, &staging) } else { String::new() },
                target: &plugin.told(node, &target),
                user: (&user.allocation, user.read_only),
                secrets,
            },
            dialect,
        );
        let foreign = foreign(node, &target, entry.verified.as_ref()).await?;
        let call = |terms| plugin.client.node_publish_volume(request, terms);
        match self.call(node, &plugin, ("NodePublishVolume", step), call).await {
            Ok(_) => {}
            Err(failure) if failure.is_already_exists() => {
                // Published there with other arguments: it comes down first.
                entry.level = Level::Sinking;
                node.journal.put(Entry::Publication(entry)).await?;
                return Err(Trouble::Undo(failure));
            }
            Err(failure) => {
                self.stage_again(node, &failure).await?;
                return Err(Trouble::Call(requests::naming(failure, spec.secrets.node_publish.as_ref())));
            }
        }
        let staged = spec.stage_required.then(|| (&staging, device(attachment.seen.as_ref())));
        let verified = match self.verify(node, &target, staged, entry.verified.as_ref()).await {
            Ok(verified) if is_still(foreign, &verified) => return Err(not_the_volume(node, &target)),
            Ok(verified) => verified,
            Err(trouble) => return Err(self.by_word_alone(node, entry, &target, trouble).await),
        };
        Box::pin(self.give_to_group(node, user, (&target, &verified), (spec, dialect, &plugin))).await?;
        if let Some(host) = &host {
            self.publish_at_host(node, user, (&target, &verified, host), &mut entry).await?;
        }
        entry.verified = Some(verified);
        self.published(node, user, &attachment, entry).await
    }

    /// It is up: that is told and remembered.
    async fn published(
        &self,
        node: &Arc<Node>,
        user: &User,
        attachment: &AttachmentEntry,
        mut entry: PublicationEntry,
    ) -> Result<(), Trouble> {
        entry.level = Level::Up;
        node.sightings.forget(&publication_key(&self.uid, &user.allocation.uid, &user.name));
        tracing::info!(volume = attachment.volume, allocation = user.allocation.name, "published");
        // Should the daemon end before this is durable, it looks at the mount again, as if it had ended in the call.
        node.journal.put_beside(Entry::Publication(entry)).await?;
        node.queue.wake(Key::Allocation(user.allocation.uid.clone()));
        Ok(())
    }

    /// The plugin says that it is published, and it is not. To one that goes by what it remembers it has to come down first;
    /// what never was there is asked for again.
    async fn by_word_alone(
        &self,
        node: &Node,
        entry: PublicationEntry,
        target: &TreePath,
        trouble: Trouble,
    ) -> Trouble {
        // What somebody else mounted there is left alone.
        if entry.verified.is_none() || self.nothing_mounted(node, target).await.is_err() {
            return trouble;
        }
        let sinking = PublicationEntry { level: Level::Sinking, ..entry };
        match node.journal.put(Entry::Publication(sinking)).await {
            Ok(()) => trouble,
            Err(error) => error.into(),
        }
    }

    /// What was mounted at the staging path must be there still: a plugin that does not look would publish the directory
    /// beneath it. If it is not, staging is in doubt, and is repeated before the next publish.
    async fn still_staged(&self, node: &Node, attachment: &AttachmentEntry) -> Result<(), Trouble> {
        let Some(staged) = attachment.seen.as_ref().filter(|seen| seen.mount.is_some()) else {
            return Ok(());
        };
        let place = Place::Tree(TreePath::new(["staging", &attachment.staging])?);
        if let PathFacts::Present(present) = node.machine.kernel.mount_facts(&place).await?
            && present.shows(staged)
        {
            return Ok(());
        }
        let mut doubted = attachment.clone();
        doubted.staged = Level::Rising;
        node.journal.put(Entry::Attachment(doubted)).await?;
        let message = "what was mounted at the staging path is not there any more; it is staged again";
        Err(Trouble::Kernel("StagingLost", message.to_owned()))
    }

    /// A plugin that lost its stage says FAILED_PRECONDITION to a publish: staging is in doubt then, and is repeated
    /// before the next publish (CO-NODE-54).
    async fn stage_again(&self, node: &Node, failure: &Failure) -> Result<(), Trouble> {
        let staged = self.entry.as_ref().filter(|e| e.stage_required && e.staged == Level::Up);
        let Some(entry) = staged.filter(|_| failure.is_failed_precondition()) else { return Ok(()) };
        let mut entry = entry.clone();
        entry.staged = Level::Rising;
        Ok(node.journal.put(Entry::Attachment(entry)).await?)
    }

    /// The place at the host is added when a mount is about to be made there: of one that is refused nothing has to be
    /// undone.
    pub(super) fn publication(&self, user: &User) -> PublicationEntry {
        user.entry.clone().unwrap_or_else(|| PublicationEntry {
            attachment: self.uid.clone(),
            allocation: user.allocation.clone(),
            name: user.name.clone(),
            directory: hash(&[&self.uid, &user.allocation.uid, &user.name]),
            read_only: user.read_only,
            level: Level::Down,
            verified: None,
            host: None,
        })
    }

    /// What is at the target must be what was asked for: a mount, of the staged file system if there is one, and the same
    /// directory of it as before; or a device.
    pub(super) async fn verify(
        &self,
        node: &Node,
        target: &TreePath,
        staging: Option<(&TreePath, Option<DeviceId>)>,
        before: Option<&Present>,
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
        // One that was made anew may have another device. Another directory of the same one somebody else has mounted.
        let former = before.and_then(|before| before.mount.as_ref());
        if former.is_some_and(|former| former.device == mount.device)
            && !before.is_some_and(|before| present.shows(before))
        {
            return Err(wrong("what is mounted at the target is another directory than the volume"));
        }
        let Some((staging, seen)) = staging else { return Ok(present) };
        let facts = node.machine.kernel.mount_facts(&Place::Tree(staging.clone())).await?;
        let staged = facts.mount().map(|staged| staged.device);
        if staged.is_some_and(|staged| staged != mount.device) || seen.is_some() && staged != seen {
            return Err(wrong("what is mounted at the target is not the file system that was staged"));
        }
        Ok(present)
    }

    pub(super) async fn unpublish(&self, node: &Arc<Node>, user: &User, step: &str) -> Result<(), Trouble> {
        let Some(mut entry) = user.entry.clone() else { return Ok(()) };
        let attachment = self.entry_or_new()?;
        let plugin = serving(node, &attachment.plugin, &attachment.handle)?;
        if entry.level != Level::Sinking {
            entry.level = Level::Sinking;
            node.journal.put(Entry::Publication(entry.clone())).await?;
        }
        node.sightings.quiet(&Entry::Publication(entry.clone()).key()).await;
        // A start that looked at the journal before the line above may have gone on since: look again.
        if !user.idle(node) {
            return Err(Trouble::Wait(Reason::TasksRunning));
        }
        let parent = TreePath::new(["publish", &entry.directory])?;
        let target = parent.join(TARGET)?;
        self.unpublish_at_host(node, &entry, &target).await?;
        if planted!("directory-first") {
            let _busy = node.machine.kernel.remove(&parent).await;
        }
        let request = csi::proto::NodeUnpublishVolumeRequest {
            volume_id: attachment.handle.clone(),
            target_path: plugin.told(node, &target),
        };
        let call = |terms| plugin.client.node_unpublish_volume(request, terms);
        match self.call(node, &plugin, ("NodeUnpublishVolume", step), call).await {
            Ok(_) => {}
            Err(_) if planted!("failure-is-forgotten") => {}
            Err(failure) if self.forgiven(node, &failure, step, &target).await => {}
            Err(failure) => return Err(Trouble::Call(failure)),
        }
        let mounted = self.nothing_mounted(node, &target).await;
        if !(planted!("failure-is-forgotten") && mounted.is_err()) {
            mounted?;
            node.machine.kernel.remove(&target).await?;
            node.machine.kernel.remove(&parent).await?;
        }
        let key = publication_key(&self.uid, &user.allocation.uid, &user.name);
        node.journal.commit(vec![Change::Forget(key)]).await?;
        if let Some(host) = &entry.host {
            at_host::wake_for(node, &host.path);
        }
        tracing::info!(volume = attachment.volume, allocation = user.allocation.name, "unpublished");
        node.queue.wake(Key::Allocation(user.allocation.uid.clone()));
        Ok(())
    }

    /// NOT_FOUND to a reverse call is no success by itself. Repeated, and with nothing mounted there, it is as much as
    /// this plugin will ever say.
    pub(super) async fn forgiven(
        &self,
        node: &Node,
        failure: &Failure,
        step: &str,
        place: &TreePath,
    ) -> bool {
        failure.is_not_found()
            && node.retry.attempt(step) >= NOT_FOUND_TRIES
            && self.nothing_mounted(node, place).await.is_ok()
    }

    pub(super) async fn nothing_mounted(&self, node: &Node, place: &TreePath) -> Result<(), Trouble> {
        let facts = node.machine.kernel.mount_facts(&Place::Tree(place.clone())).await?;
        match facts.mount() {
            None => Ok(()),
            Some(_) => Err(Trouble::Kernel(
                "StillMounted",
                format!("the plugin answered, but {} is still a mount point", at_node(node, place)),
            )),
        }
    }

    pub(super) async fn release(&self, node: &Arc<Node>) -> Result<(), Trouble> {
        let key = format!("attachment/{}", self.uid);
        let Some(object) = &self.object else {
            node.forget_written(&self.uid);
            node.calls.clear(&self.key());
            node.notes.clear(&self.key());
            node.notes.gone(&self.key());
            node.retry.gone(&self.key());
            node.events.gone(&self.key());
            node.journal.commit(vec![Change::Forget(key)]).await?;
            // A plugin that nobody wants any more may have run on for this volume alone.
            if let Some(entry) = &self.entry {
                wake_orphans(node, &entry.plugin);
            }
            return Ok(());
        };
        let mut entry = self.entry_or_new()?;
        entry.released = true;
        // Who detaches it is this machine, too: it takes the word along.
        let status = self.status(node, true);
        if self.detach_follows(node, true) {
            node.keep_back_anew(&**object, &NODE, &status);
            let volume = entry.volume.clone();
            node.journal.put(Entry::Attachment(entry)).await?;
            tracing::info!(volume, "released");
            node.queue.wake(Key::Host(object.spec.volume.clone()));
            return Ok(());
        }
        node.write_status(&**object, &NODE, &status)
            .await
            .map_err(|error| Trouble::Kernel("NotReported", chain(&error)))?;
        tracing::info!(volume = entry.volume, "released");
        Ok(node.journal.put(Entry::Attachment(entry)).await?)
    }

    /// One call, measured and remembered.
    pub(super) async fn call<T, F>(
        &self,
        node: &Node,
        serving: &Serving,
        (method, step): (&'static str, &str),
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
        let plugin = plugin.unwrap_or_default();
        let (deadline, alpha) = (node.deadline(&plugin, method), node.alpha(&plugin));
        let attempt = node.retry.attempt(step);
        let started = node.now();
        let about = self.object.as_ref().map(|object| object.object_ref(&()));
        let gate = Some(Arc::clone(&serving.gate));
        let answer = make(Terms { deadline, attempt, lease: None, gate, alpha });
        let result = node.events.follow(about, (method, deadline), answer).await;
        if !result.as_ref().is_err_and(Failure::is_unsent) {
            node.calls.add(&self.key(), requests::call(method, &result, attempt, started, node.now()));
        }
        match result {
            Ok(answer) => Ok(answer),
            Err(failure) => Err(lookup::of_node(node, self.names(), failure).await),
        }
    }

    /// The name of its Volume, and the driver's.
    fn names(&self) -> (&str, &str) {
        let of_object = self.object.as_ref().map(|o| (o.spec.volume.as_str(), o.spec.handle.as_str()));
        let of_entry = self.entry.as_ref().map(|e| (e.volume.as_str(), e.handle.as_str()));
        of_object.or(of_entry).unwrap_or_default()
    }
}

/// The mount at a path of ours that is of another kind of file system than what was seen there of the volume. A driver that
/// goes by what it remembers says OK to it.
async fn foreign(node: &Node, place: &TreePath, seen: Option<&Present>) -> Result<Option<MountId>, Trouble> {
    let Some(known) = seen.and_then(|present| present.mount.as_ref()) else { return Ok(None) };
    let facts = node.machine.kernel.mount_facts(&Place::Tree(place.clone())).await?;
    Ok(facts.mount().filter(|mount| mount.magic != known.magic).map(|mount| mount.id))
}

/// Whether what is there after a call is what was foreign before it: no doing of the driver's.
fn is_still(foreign: Option<MountId>, seen: &Present) -> bool {
    foreign.is_some() && seen.mount.as_ref().map(|mount| mount.id) == foreign
}

fn not_the_volume(node: &Node, place: &TreePath) -> Trouble {
    let at = at_node(node, place);
    let message = format!(
        "somebody mounted something else at {at}: unmount it there, and the volume is seen again or mounted anew"
    );
    Trouble::Kernel(FOREIGN_MOUNT, message)
}

/// The device of the mount, if there is one.
fn device(seen: Option<&Present>) -> Option<DeviceId> {
    seen.and_then(|present| present.mount.as_ref()).map(|mount| mount.device)
}

pub(super) struct Serving {
    pub(super) client: csi::Plugin,
    gate: Arc<dyn Gate>,
    pub(super) newer_modes: bool,
    /// Whether it mounts for a group.
    pub(super) mount_group: bool,
    /// Whether it expands volumes on nodes.
    pub(super) expands: bool,
    /// Whether it tells how full volumes are, or how they are.
    pub(super) measures: bool,
    /// Where the instance has the tree, if not where the node has it.
    view: Option<PathBuf>,
}

impl Serving {
    /// Whom it may be asked about the volume.
    pub(super) fn gate(&self) -> Arc<dyn Gate> {
        Arc::clone(&self.gate)
    }

    /// A path of the tree as it is told to this instance. No path goes into a request but by this.
    pub(super) fn told(&self, node: &Node, path: &TreePath) -> String {
        let tree = node.machine.kernel.absolute(&Place::Tree(TreePath::root()));
        view::told(&tree, self.view.as_deref(), &path.relative()).to_string_lossy().into_owned()
    }
}

pub(super) fn serving(node: &Node, plugin: &str, handle: &str) -> Result<Serving, Trouble> {
    match node.registry.serving_volume(plugin, Service::Node, handle) {
        Some((of, instance)) => {
            let can = instance.progress.fingerprint.map(|known| known.node).unwrap_or_default();
            Ok(Serving {
                gate: node.gate(of, (plugin, Service::Node), handle),
                client: instance.client,
                view: instance.view,
                newer_modes: can.single_node_multi_writer,
                mount_group: can.volume_mount_group,
                expands: can.expand_volume,
                measures: can.get_volume_stats || can.volume_condition && node.alpha(plugin) == Alpha::On,
            })
        }
        None => Err(Trouble::Wait(Reason::PluginNotReady {
            plugin: plugin.to_owned(),
            node: node.options.name.clone(),
        })),
    }
}

/// A path of the tree as people find it.
fn at_node(node: &Node, path: &TreePath) -> String {
    node.machine.kernel.absolute(&Place::Tree(path.clone())).to_string_lossy().into_owned()
}
