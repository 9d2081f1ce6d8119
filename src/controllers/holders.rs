//! Holders and attachments: who may use a volume, and the attachment of each node that does.
//!
//! A grant is one compare-and-swap of the volume's holders, each of which names an attachment made before it, or one that is made
//! next, as long as the volume is as it was written then. Nobody is let into an attachment but by a holder that names it.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::api::ObjectMeta;
use kube::{Resource, ResourceExt};
use serde_json::json;

use super::attachments::{fields, leaving};
use super::claims::{self, Ends};
use super::context::Context;
use super::drive::Outcome;
use super::facts::{Instances, boot_id, can, deleting, node_down, node_ready, said_off, uid};
use super::ledger;
use super::names::hex;
use super::placement::is_reached;
use super::templates;
use super::volumes;
use super::world::namespace_or_default;
use super::write::Failure;
use crate::api::meta::{AsSeen, ObjectRef, READY};
use crate::api::plugin::capability;
use crate::api::volume::{Holder, NewerModes};
use crate::api::{Allocation, Volume, VolumeAttachment, VolumeAttachmentSpec, VolumeClaim};
use crate::plan::Reason;
use crate::plan::holders::{self, Attachment, Facts, Step};
use crate::plan::registry::Service;
use crate::plan::release::{self, Fence, User, UserFacts};

/// Said by the controllers of an allocation whose node is lost.
const NODE_LOST: &str = "NodeLost";

/// An attachment, a holder, a way in; and one more for what came in between.
const ROUNDS: usize = 4;

/// The uid that we have chosen for an attachment.
struct Chosen {
    uid: String,
    /// Who holds it, once that is written, and in which version of the volume.
    named: Option<(String, BTreeSet<String>)>,
}

/// One look at one volume. What the server answers to one write is what the next is decided on: waiting for the cache to
/// show each of them would put three rounds of watching in every claim's way.
pub(crate) async fn reconcile(object: Arc<Volume>, context: Arc<Context>) -> Outcome {
    let mut known =
        Known { volume: object, attachments: Vec::new(), written: BTreeSet::new(), chosen: BTreeMap::new() };
    for _ in 0..ROUNDS {
        known.refresh(&context);
        let claim = claim_of(&context, &known.volume);
        let mut facts = gather(&context, &known.volume, claim.as_deref(), &known.attachments);
        known.choose(&context, &mut facts);
        // What we made and the cache does not show yet must not be taken for absent.
        let nodes = facts.holders.iter().map(|(holder, _)| &holder.node_name);
        let nodes = nodes.chain(facts.attachments.iter().map(|a| &a.node));
        for node in nodes.chain(facts.wanting.iter().map(|wanted| &wanted.node_name)) {
            let name = attachment_name(&known.volume, node);
            if !known.answered(&name)
                && let Some(wait) = context.behind::<VolumeAttachment>(&(String::new(), name))
            {
                return Ok(Some(wait));
            }
        }
        let verdict = holders::next(&facts);
        let mut news = false;
        for step in verdict.steps {
            let ends = known.ends(&context, &step, claim.as_deref());
            if ends == Ends::AfterUsers
                && let Some(left) = context.untold(&known.end_key(), true)
            {
                return Ok(Some(left));
            }
            news |= known.carry_out(&context, step, ends == Ends::Now).await?;
        }
        for (allocation, reason) in &verdict.waiting {
            context.tell::<Allocation>(allocation, reason.word(), &reason.to_string()).await;
        }
        if !news {
            break;
        }
    }
    Ok(None)
}

/// The volume and its attachments, each as the cache or the answer to our own write has it, whichever is newer.
struct Known {
    volume: Arc<Volume>,
    attachments: Vec<Arc<VolumeAttachment>>,
    /// Names of the attachments that we wrote here: of these we know our own last write.
    written: BTreeSet<String>,
    /// What we have chosen for nodes, and not asked for yet.
    chosen: BTreeMap<String, Chosen>,
}

impl Known {
    /// Takes in what the cache shows by now.
    fn refresh(&mut self, context: &Context) {
        let seen = context.world.volumes.named(&self.volume.name_any());
        if let Some(seen) = seen.filter(|seen| {
            uid(&**seen) == uid(&*self.volume) && ledger::version(&**seen) > ledger::version(&*self.volume)
        }) {
            self.volume = seen;
        }
        let mut seen = attachments_of(context, &self.volume);
        // An answer that the cache does not show yet, but for one that it has shown as gone since.
        for ours in self.attachments.drain(..) {
            let name = (String::new(), ours.name_any());
            match seen.iter_mut().find(|a| uid(&***a) == uid(&*ours)) {
                Some(seen) if ledger::version(&**seen) < ledger::version(&*ours) => *seen = ours,
                Some(_) => {}
                None if context.behind::<VolumeAttachment>(&name).is_some() => seen.push(ours),
                None => {}
            }
        }
        self.attachments = seen;
    }

    /// Chooses the uids of attachments that can be made. What holders name is good for as long as the volume is as we wrote it.
    fn choose(&mut self, context: &Context, facts: &mut Facts) {
        if !context.options.in_process || context.is_contested(&uid(&*self.volume)) {
            return;
        }
        let version = self.volume.resource_version();
        self.chosen
            .retain(|_, chosen| chosen.named.as_ref().is_none_or(|(at, _)| version.as_ref() == Some(at)));
        let nodes: BTreeSet<_> = facts.wanting.iter().map(|wanted| wanted.node_name.clone()).collect();
        for node in nodes {
            if self.attachments.iter().any(|a| a.spec.node_name == node) {
                self.chosen.remove(&node);
            } else if self.chosen.contains_key(&node)
                || new_attachment(context, &self.volume, &node, false).is_ok()
            {
                let new = || Chosen { uid: context.new_uid(), named: None };
                let chosen = self.chosen.entry(node.clone()).or_insert_with(new);
                facts.chosen.push((node, chosen.uid.clone()));
            }
        }
    }

    /// Keeps who holds what we have chosen, as it is written now. Who was granted by it before and is not any more might be let in by
    /// an old version of the volume: then it is never made.
    fn note_named(&mut self) {
        let Some(version) = self.volume.resource_version() else { return self.chosen.clear() };
        let holders = self.volume.status.as_ref().map(|s| s.holders.as_slice()).unwrap_or_default();
        self.chosen.retain(|_, chosen| {
            let of_it = holders.iter().filter(|h| h.attachment_uid == chosen.uid);
            let now: BTreeSet<_> = of_it.map(|h| h.allocation.uid.clone()).collect();
            let kept = chosen.named.as_ref().is_none_or(|(_, before)| before.is_subset(&now));
            chosen.named = (!now.is_empty()).then(|| (version.clone(), now));
            kept
        });
    }

    /// Whether what is known of this attachment is at least as new as our own last write of it.
    fn answered(&self, name: &str) -> bool {
        self.written.contains(name)
    }

    /// Whether the volume ends with the step, or soon: its last holder goes, and its claim, too.
    fn ends(&self, context: &Context, step: &Step, claim: Option<&VolumeClaim>) -> Ends {
        match (step, claim) {
            (Step::Holders { holders, .. }, Some(claim))
                if holders.is_empty() && !deleting(&*self.volume) =>
            {
                let mut free = (*self.volume).clone();
                free.status.get_or_insert_default().holders.clear();
                claims::ends(&context.world, claim, &free)
            }
            _ => Ends::Not,
        }
    }

    /// What it is that is waited with for a moment.
    fn end_key(&self) -> String {
        format!("{}/end", uid(&*self.volume))
    }

    /// Whether the server's answer is news to decide on. With its last holder the volume may end.
    async fn carry_out(&mut self, context: &Context, step: Step, ends: bool) -> Result<bool, Failure> {
        let at = |node: &str| self.attachments.iter().position(|a| a.spec.node_name == node);
        match step {
            Step::Holders { holders, unseen } => self.write_holders(context, (holders, unseen), ends).await,
            Step::Close { node } => {
                if let Some(at) = at(&node)
                    && !self.used(context, &node).await?
                {
                    if planted!("holder-kept") {
                        tokio::time::sleep(std::time::Duration::from_secs(20)).await;
                    }
                    context.delete_as_seen(&*self.attachments[at]).await?;
                }
                Ok(false)
            }
            Step::Attach { node, read_only, granted } => self.attach(context, node, read_only, granted).await,
            Step::Admit { node, allocations } => {
                if let Some(at) = at(&node) {
                    let spec = json!({ "allocations": allocations });
                    let admitted = fields(context, &self.attachments[at], spec).await?;
                    self.written.insert(admitted.name_any());
                    self.attachments[at] = Arc::new(admitted);
                }
                Ok(false)
            }
        }
    }
}

impl Known {
    /// Replaces the holders, with whose last one the volume may end. Whether that is news to decide on.
    async fn write_holders(
        &mut self,
        context: &Context,
        (holders, unseen): (Vec<Holder>, Vec<Holder>),
        ends: bool,
    ) -> Result<bool, Failure> {
        // What is not there has to be so still when its holders go.
        let mut absent = None;
        if let Some(node) = unseen.first().map(|holder| holder.node_name.clone()) {
            absent = match absence(context, &self.volume, (&node, &unseen)).await? {
                None => {
                    // The cache is behind; what it shows next brings us back.
                    return Ok(false);
                }
                absent => absent,
            };
        }
        let mut volume = (*self.volume).clone();
        if planted!("grant-uncompared") {
            let holders = json!({ "status": { "holders": holders } });
            self.volume = Arc::new(context.merge(&*self.volume, holders).await?);
            return Ok(true);
        }
        volume.status.get_or_insert_default().holders = holders;
        volumes::add_ready(context, &mut volume);
        context.untold(&self.end_key(), false);
        let ends = ends && volume.status.as_ref().is_some_and(|status| status.holders.is_empty());
        self.volume = Arc::new(context.replace_status_as(&volume, absent, ends).await?);
        self.note_named();
        Ok(true)
    }

    /// Makes an attachment, with its uid and those who are let in where they were `granted` it.
    async fn attach(
        &mut self,
        context: &Context,
        node: String,
        read_only: bool,
        granted: Option<(String, Vec<String>)>,
    ) -> Result<bool, Failure> {
        match new_attachment(context, &self.volume, &node, read_only) {
            Ok(mut attachment) => {
                // Once it was asked for, whatever comes of that.
                self.chosen.remove(&node);
                let made = match granted {
                    Some((chosen, allocations)) => {
                        attachment.spec.allocations = allocations;
                        let seen = volumes::as_seen(&self.volume);
                        let made = context.create_as(&attachment, chosen.clone(), seen).await;
                        match &made {
                            Err(Failure::Conflict) => context.contest(&uid(&*self.volume), false),
                            // What is refused is asked for again and again, with nothing written in between.
                            Err(Failure::Refused { .. }) => context.contest(&uid(&*self.volume), true),
                            // Whoever lets nobody else in hears what is said beside the wire.
                            Ok(made) if uid(made) != chosen => {
                                context.delete(made).await?;
                                return Err(Failure::NoAnswer(
                                    "the server did not hear which uid was chosen".to_owned(),
                                ));
                            }
                            Ok(_) | Err(_) => {}
                        }
                        made?
                    }
                    None => context.create(&attachment).await?,
                };
                self.written.insert(made.name_any());
                self.attachments.push(Arc::new(made));
                Ok(true)
            }
            Err(_) => {
                self.wake_users(context, &node);
                Ok(false)
            }
        }
    }

    /// Those on the node who want the volume are told what keeps them from it, by the controller of allocations.
    fn wake_users(&self, context: &Context, node: &str) {
        let Some(of) = &self.volume.spec.claim_ref else { return };
        let word = format!("claim:{}/{}", namespace_or_default(&of.namespace), of.name);
        let here = |a: &Arc<Allocation>| a.status.as_ref().is_some_and(|status| status.node_name == node);
        let users = context.world.allocations.by(&word).into_iter().filter(here);
        context.queues.allocations.add_all(users.map(|user| super::cache::name_of(&*user)));
    }

    /// Whether the server itself knows the volume otherwise, or one who wants it on this node. What is closed stays closed
    /// until its last user is over, and those who come meanwhile wait for that: no old cache may bring that about for who
    /// wants it. For who leaves, it may come a moment early.
    async fn used(&self, context: &Context, node: &str) -> Result<bool, Failure> {
        let volume: Option<Volume> =
            context.read(&Volume::url_path(&(), None), &self.volume.name_any()).await?;
        let Some(volume) = volume.filter(|v| uid(v) == uid(&*self.volume)) else { return Ok(false) };
        if ledger::version(&volume) != ledger::version(&*self.volume) {
            // The cache is behind; what it shows next brings us back.
            return Ok(true);
        }
        let claim = volume.spec.claim_ref.as_ref().map(|c| c.name.clone()).unwrap_or_default();
        let holders = volume.status.iter().flat_map(|s| &s.holders).filter(|h| h.node_name == node);
        for holder in holders {
            let of = &holder.allocation;
            let path = Allocation::url_path(&(), Some(&of.namespace));
            let found: Option<Allocation> = context.read(&path, &of.name).await?;
            let found = found.filter(|a| uid(a) == of.uid);
            if user(context, found.as_ref(), &claim, node) == User::Wants {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Asks the server itself for the attachments that holders of one node name: a cache that shows none may be older than both.
/// What is there instead, so that it may be seen whether it changes; nothing if one that is named is there.
async fn absence(
    context: &Context,
    volume: &Volume,
    (node, holders): (&str, &[Holder]),
) -> Result<Option<AsSeen>, Failure> {
    let (path, name) = (VolumeAttachment::url_path(&(), None), attachment_name(volume, node));
    let found: Option<VolumeAttachment> = context.read(&path, &name).await?;
    let is_named = |a: &VolumeAttachment| {
        let uid = uid(a);
        holders.iter().any(|h| h.attachment_uid.is_empty() || h.attachment_uid == uid)
    };
    if found.as_ref().is_some_and(is_named) {
        return Ok(None);
    }
    let version = found.and_then(|a| a.resource_version());
    Ok(Some(AsSeen { plural: VolumeAttachment::plural(&()).into_owned(), name, version }))
}

/// `att-` and the hash of volume and node: one attachment per volume and node.
pub(crate) fn attachment_name(volume: &Volume, node: &str) -> String {
    format!("att-{}", hex(&[&uid(volume), node], 16))
}

fn attachments_of(context: &Context, volume: &Volume) -> Vec<Arc<VolumeAttachment>> {
    let uid = uid(volume);
    let named = context.world.attachments.by(&format!("volume:{}", volume.name_any()));
    named.into_iter().filter(|a| a.spec.volume_uid == uid).collect()
}

/// The claim that the volume is bound to, or will be as soon as that is written, if it is there.
fn claim_of(context: &Context, volume: &Volume) -> Option<Arc<VolumeClaim>> {
    let of = volume.spec.claim_ref.as_ref()?;
    let claim =
        context.world.claims.get(&(namespace_or_default(&of.namespace).to_owned(), of.name.clone()))?;
    if uid(&*claim) != of.uid {
        return None;
    }
    let bound = claim.status.as_ref().is_some_and(|s| s.volume_name == volume.name_any());
    let binding = || {
        claims::volume_of(&context.world, &claim).is_some_and(|v| uid(&*v) == uid(volume))
            && claims::usable(&context.world, &claim, volume)
    };
    (bound || binding()).then_some(claim)
}

fn gather(
    context: &Context,
    volume: &Volume,
    claim: Option<&VolumeClaim>,
    attachments: &[Arc<VolumeAttachment>],
) -> Facts {
    let status = volume.status.clone().unwrap_or_default();
    let mode = volume.spec.capability().access_mode;
    let mut wanting = Vec::new();
    if let Some(claim) = claim {
        let (namespace, name) = super::cache::name_of(claim);
        let mut users = context.world.allocations.by(&format!("claim:{namespace}/{name}"));
        users.sort_by_key(|a| (a.metadata.creation_timestamp.as_ref().map(|t| t.0), uid(&**a)));
        if planted!("grant-uncompared") {
            users.sort_by_cached_key(|_| (context.options.jitter)());
        }
        for allocation in users {
            let node = allocation.status.as_ref().map(|s| s.node_name.clone()).unwrap_or_default();
            // Its own claim of this name may have gone, and another one have come, while it was stopped.
            let others = templates::unusable(&context.world, &allocation, &name).is_some();
            // Where the volume is not, placement takes it away from.
            // One that is said to be off gets nothing, heard or not: what it had by then is all that this is said of.
            if !node.is_empty()
                && !others
                && said_off(&context.world, &node) == Fence::None
                && is_reached(&context.world, volume, &node)
                && user(context, Some(&allocation), &name, &node) == User::Wants
            {
                let boot_id = boot_id(&context.world, &node);
                let holder = holder(&allocation, &name, &node, mode.read_only());
                wanting.push(Holder { boot_id, ..holder });
            }
        }
    }
    let claim_name = volume.spec.claim_ref.as_ref().map(|c| c.name.clone()).unwrap_or_default();
    let known = |h: Holder| {
        let of = &h.allocation;
        let allocation = context.world.allocations.get(&(of.namespace.clone(), of.name.clone()));
        let allocation = allocation.filter(|a| uid(&**a) == of.uid);
        let user = user(context, allocation.as_deref(), &claim_name, &h.node_name);
        (h, user)
    };
    let ready = volumes::ready(&context.world, volume) && !deleting(volume);
    Facts {
        volume: volume.name_any(),
        claim: claim_name.clone(),
        mode,
        open: ready && claim.is_some_and(|c| !deleting(c)),
        expanding: volume.expands_offline() && !planted!("granted-while-expanded"),
        holders: status.holders.into_iter().map(known).collect(),
        attachments: attachments.iter().map(|a| seen(a)).collect(),
        wanting,
        chosen: Vec::new(),
    }
}

fn seen(attachment: &VolumeAttachment) -> Attachment {
    Attachment {
        node: attachment.spec.node_name.clone(),
        uid: uid(attachment),
        going: deleting(attachment),
        read_only: attachment.spec.read_only,
        allocations: attachment.spec.allocations.clone(),
        seen: leaving(attachment),
    }
}

/// Who has the volume of a claim already, so that this allocation waits for it on `node`.
pub(crate) fn held(volume: &Volume, allocation: &Allocation, claim: &str, node: &str) -> Option<Reason> {
    let mode = volume.spec.capability().access_mode;
    let holders = volume.status.as_ref().map(|s| s.holders.as_slice()).unwrap_or_default();
    let wanted = holder(allocation, claim, node, mode.read_only());
    release::grant(&volume.name_any(), mode, holders, &wanted).err()
}

fn holder(allocation: &Allocation, claim: &str, node: &str, read_only: bool) -> Holder {
    let of = ObjectRef {
        namespace: allocation.namespace().unwrap_or_default(),
        name: allocation.name_any(),
        uid: uid(allocation),
    };
    let reads = allocation.spec.volumes.iter().any(|v| v.claim_name == claim && v.read_only);
    release::holder(of, node, reads || read_only)
}

/// What is known of the allocation behind a holder on `node`.
fn user(context: &Context, allocation: Option<&Allocation>, claim: &str, node: &str) -> User {
    // Not cloned: one with a hundred volumes is looked at for each of them.
    let status = allocation.and_then(|a| a.status.as_ref());
    let name =
        allocation.and_then(|a| a.spec.volumes.iter().find(|v| v.claim_name == claim)).map(|v| &v.name);
    release::user(UserFacts {
        exists: allocation.is_some(),
        leaving: name.is_none()
            || allocation.is_some_and(|a| a.spec.stop)
            || status.is_some_and(|s| s.evicted),
        deleting: allocation.is_some_and(deleting),
        here: status.is_some_and(|s| s.node_name == node),
        node_down: node_down(&context.world, node),
        node_ready: context.world.nodes.named(node).is_some_and(|node| node_ready(&node)),
        phase: status.and_then(|s| s.phase),
        lost: status.is_some_and(|s| s.conditions.iter().any(|c| c.kind == READY && c.reason == NODE_LOST)),
        published: status.and_then(|s| s.volumes.iter().find(|v| Some(&v.name) == name)).map(|v| v.published),
    })
}

/// What keeps an allocation from its volumes on its node although it may have them, if that is known, while it has no
/// attachment there.
pub(super) fn obstacle(context: &Context, allocation: &Allocation, node: &str) -> Option<Reason> {
    let world = &context.world;
    if !allocation.spec.volumes.is_empty() && said_off(world, node) == Fence::Stands {
        return Some(Reason::SaidOff { node: node.to_owned() });
    }
    let mut claims = allocation.spec.volumes.iter().map(|v| &v.claim_name);
    if let Some(reason) = claims.find_map(|claim| templates::unusable(world, allocation, claim)) {
        return Some(reason);
    }
    let namespace = allocation.namespace().unwrap_or_default();
    let named = allocation.spec.volumes.iter().filter_map(|v| {
        let claim = world.claims.get(&(namespace.clone(), v.claim_name.clone()))?;
        Some((&v.claim_name, claims::volume_of(world, &claim)?))
    });
    let volumes: Vec<_> = named.collect();
    if volumes.iter().any(|(_, v)| attachments_of(context, v).iter().any(|a| a.spec.node_name == node)) {
        return None;
    }
    let status = allocation.status.as_ref();
    let ready = status.and_then(|status| status.conditions.iter().find(|c| c.kind == READY));
    let said = ready.map(|ready| ready.message.as_str()).unwrap_or_default();
    let told = status.is_some_and(|status| status.obstacle.is_some());
    let (held, free): (Vec<_>, Vec<_>) = volumes
        .iter()
        .map(|(claim, v)| (v, held(v, allocation, claim, node)))
        .partition(|(_, held)| held.is_some());
    let held = held.into_iter().find_map(|(_, held)| held);
    let fault = || {
        let expanding = |v: &Volume| Reason::VolumeExpanding { volume: v.name_any() };
        let expanded = free.iter().find(|(v, _)| v.expands_offline()).map(|(v, _)| expanding(v));
        expanded.or_else(|| free.iter().find_map(|(v, _)| new_attachment(context, v, node, false).err()))
    };
    holders::obstacle((said, told), held, fault)
}

/// The attachment with all that undoing it needs and nobody let in; or what of that is not known yet, and why.
fn new_attachment(
    context: &Context,
    volume: &Volume,
    node: &str,
    read_only: bool,
) -> Result<VolumeAttachment, Reason> {
    let world = &context.world;
    let plugin = world.plugins.named(&volume.spec.plugin);
    let instances = Instances::of(world, &volume.spec.plugin);
    let unready =
        |node: &str| Reason::PluginNotReady { plugin: volume.spec.plugin.clone(), node: node.to_owned() };
    let here = instances.serving(Service::Node, node).ok_or_else(|| unready(node))?;
    let ephemeral = volume.spec.source.ephemeral.is_some();
    let attach_required = if ephemeral {
        false
    } else if instances.has_controllers(plugin.as_deref()) {
        if !instances.controller_known() {
            return Err(unready(""));
        }
        instances.controller_can(capability::PUBLISH_UNPUBLISH)
    } else {
        false
    };
    let status = volume.status.clone().unwrap_or_default();
    if attach_required && status.controller.is_none() {
        return Err(Reason::NoHost);
    }
    let (handle, volume_context) = match volume.spec.source.told() {
        Some((handle, context)) if status.handle.is_empty() => (handle.to_owned(), context.clone()),
        Some(_) | None => (status.handle, status.context),
    };
    let claim = volume.spec.claim_ref.clone().ok_or(Reason::NotAttached)?;
    let found = context.world.claims.get(&(claim.namespace.clone(), claim.name.clone()));
    let fs_group = found.filter(|found| uid(&**found) == claim.uid).and_then(|found| found.spec.fs_group);
    let spec = VolumeAttachmentSpec {
        volume: volume.name_any(),
        volume_uid: uid(volume),
        claim,
        node_name: node.to_owned(),
        host: status.controller,
        attach_required,
        stage_required: !ephemeral && can(here, capability::STAGE_UNSTAGE),
        pod_info: plugin.as_ref().is_some_and(|plugin| plugin.spec.pod_info_on_mount),
        plugin: volume.spec.plugin.clone(),
        handle,
        volume_context,
        node_id: here.status.as_ref().map(|s| s.node_id.clone()).unwrap_or_default(),
        capability: volume.spec.capability(),
        fs_group,
        read_only,
        allocations: Vec::new(),
        fenced: false,
        expand_bytes: volume.node_bytes(),
        secrets: volume.spec.secrets.clone(),
        newer_modes: Some(NewerModes {
            controller: instances.all_can(Service::Controller, capability::CONTROLLER_MULTI_WRITER),
            node: can(here, capability::NODE_MULTI_WRITER),
        }),
    };
    let metadata = ObjectMeta { name: Some(attachment_name(volume, node)), ..ObjectMeta::default() };
    Ok(VolumeAttachment { metadata, spec, status: None })
}
