//! What is known of one volume here: what the API says, what the journal does, and who uses it.
use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Resource, ResourceExt};

use super::super::context::{Key, Node, Note};
use super::super::events::{about_allocation, part};
use super::super::hosting::attach::{CONTROLLER, ControllerPart};
use super::super::journal::{AttachmentEntry, PublicationEntry};
use super::at_host::allowed_host_path;
use super::{Trouble, staging_name, stopping};
use crate::api::VolumeAttachment;
use crate::api::allocation::OnStaleMount;
use crate::api::meta::{Map, ObjectRef, Rung};
use crate::api::volume::AttachStatus;
use crate::plan::Reason;
use crate::plan::mount::{self, Attachment, Level, Publication, Step};
use crate::plan::release::{self, Ending, Tenure};
use crate::plan::stale::{self, Cure, Health, Look, Patient};
use crate::plan::untold::{self, Following};
use crate::sys::path::HostPath;

/// One attachment of the volume: what the API says of it and what the journal does.
pub(super) struct Unit {
    pub(super) uid: String,
    pub(super) object: Option<Arc<VolumeAttachment>>,
    pub(super) entry: Option<AttachmentEntry>,
    pub(super) users: Vec<User>,
    pub(super) wanted: Attachment,
    /// What its host says: in the object, or, where this node is the host, in the answer to its own last write.
    host: Option<AttachStatus>,
}

/// One user of the volume here.
pub(super) struct User {
    pub(super) allocation: ObjectRef,
    pub(super) name: String,
    pub(super) read_only: bool,
    pub(super) host_path: String,
    pub(super) wanted: bool,
    pub(super) policy: OnStaleMount,
    pub(super) entry: Option<PublicationEntry>,
}

pub(super) fn gather(node: &Node, volume: &str) -> Vec<Unit> {
    let mut units: Vec<Unit> = Vec::new();
    let mut entries = node.journal.attachments_of(volume);
    for object in node.caches.attachments.of(volume) {
        let uid = object.uid().unwrap_or_default();
        let at = entries.iter().position(|e| e.uid == uid);
        let entry = at.map(|at| entries.swap_remove(at));
        units.push(Unit::new(node, uid, Some(object), entry));
    }
    // What was let go here is known until nobody here can take it for wanted any more: the host is told of its end by itself.
    for entry in entries.into_iter().filter(|e| !(e.released && node.caches.hosted.has(&e.uid))) {
        units.push(Unit::new(node, entry.uid.clone(), None, Some(entry)));
    }
    // What leaves goes first: the new attachment of a volume waits for the old one's end here.
    units.sort_by_key(|u| u.wanted == Attachment::Open);
    if units.iter().any(|u| u.wanted == Attachment::Leaving && u.busy()) {
        units.retain(|u| u.wanted == Attachment::Leaving);
    }
    units
}

/// Whether this node takes its part of an attachment away: because it was asked to, or by itself, once and for all.
pub(in crate::node) fn is_going(node: &Node, object: &VolumeAttachment) -> bool {
    let uid = object.uid().unwrap_or_default();
    let closed = || node.journal.attachment(&uid).is_some_and(|entry| entry.closed);
    object.meta().deletion_timestamp.is_some() || closed() || lets_go(node, object, &uid)
}

/// What the user of a publication still has of its volume.
pub(in crate::node) fn tenure(node: &Node, publication: &PublicationEntry) -> Tenure {
    let object = node.caches.attachments.get(&publication.attachment);
    release::tenure(object.map(|object| (is_going(node, &object), object.spec.fenced)))
}

fn lets_go(node: &Node, object: &VolumeAttachment, uid: &str) -> bool {
    let published = node.journal.publications(uid);
    let ending = |uid: &String| Ending {
        deleting: node.caches.allocations.one(uid).is_some_and(|a| a.meta().deletion_timestamp.is_some()),
        down: published.iter().all(|entry| entry.allocation.uid != *uid || entry.level == Level::Down),
    };
    release::lets_go(object.spec.capability.access_mode, object.spec.allocations.iter().map(ending))
}

impl Unit {
    pub(super) fn new(
        node: &Node,
        uid: String,
        object: Option<Arc<VolumeAttachment>>,
        entry: Option<AttachmentEntry>,
    ) -> Self {
        let open = object.as_ref().is_some_and(|object| !is_going(node, object));
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
                    policy: of.on_stale_mount,
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
            policy: OnStaleMount::None,
            entry: Some(entry),
        }));
        let host = object.as_ref().and_then(|o| {
            let answered = node.answered::<_, ControllerPart>(&**o, &CONTROLLER).map(|part| part.controller);
            answered.or_else(|| o.status.as_ref().and_then(|s| s.controller.clone()))
        });
        Self { uid, object, entry, users, wanted, host }
    }

    /// Whether it is staged or published here, by the journal.
    pub(super) fn is_up(&self) -> bool {
        let staged = |entry: &AttachmentEntry| entry.stage_required && entry.staged == Level::Up;
        self.entry.as_ref().is_some_and(staged) || self.users.iter().any(|user| user.level() == Level::Up)
    }

    pub(super) fn key(&self) -> String {
        format!("att/{}", self.uid)
    }

    /// Where it is noted why a step does not succeed: what is one user's matter is told to that one alone.
    pub(super) fn note(&self, step: Step) -> String {
        match step {
            Step::Publish(i) | Step::Unpublish(i) => {
                user_note(&self.uid, &self.users[i].allocation.uid, &self.users[i].name)
            }
            // Who has the volume has it, whatever its size.
            Step::Expand => self.size_note(),
            Step::Close | Step::Stage | Step::Unstage | Step::PassOn | Step::Release => self.key(),
        }
    }

    /// Where it is noted why it does not grow.
    pub(super) fn size_note(&self) -> String {
        format!("{}/size", self.key())
    }

    /// What is noted of it, or else of one of its users.
    pub(super) fn told(&self, node: &Node) -> Note {
        let own = node.notes.get(&self.key());
        let users = self.users.iter();
        let of_users = || users.map(|u| node.notes.get(&user_note(&self.uid, &u.allocation.uid, &u.name)));
        if own.0.is_empty() { of_users().find(|note| !note.0.is_empty()).unwrap_or(own) } else { own }
    }

    /// Of who wants nothing here any more and has nothing, nothing is told.
    pub(super) fn forget_the_done(&self, node: &Node) {
        for user in self.users.iter().filter(|user| !user.wanted && user.level() == Level::Down) {
            node.notes.clear(&user_note(&self.uid, &user.allocation.uid, &user.name));
        }
    }

    /// Its users say what is known of it.
    pub(super) fn tell_users(&self, node: &Node) {
        for user in &self.users {
            node.queue.wake(Key::Allocation(user.allocation.uid.clone()));
        }
    }

    /// What a blocked step waits for: the object changes, or goes. Once it goes, who asked for that is no change.
    pub(super) fn generation(&self) -> String {
        let generation = self.object.as_ref().and_then(|o| o.meta().generation).unwrap_or_default();
        if self.wanted == Attachment::Open { generation.to_string() } else { "leaving".to_owned() }
    }

    /// Whether anything of it may be left here.
    pub(super) fn busy(&self) -> bool {
        self.entry.as_ref().is_some_and(|e| e.staged != Level::Down)
            || self.users.iter().any(|u| u.level() != Level::Down)
    }

    pub(super) fn released(&self) -> bool {
        // Without the object nobody reads a release any more: what is left to do is to forget the entry.
        if self.object.is_none() {
            return false;
        }
        let said = self.object.as_ref().and_then(|o| o.status.as_ref()).and_then(|s| s.node.as_ref());
        self.entry.as_ref().is_some_and(|e| e.released) || said.is_some_and(|s| s.released_uid == self.uid)
    }

    /// Whether that it is let go here may wait for that it is detached.
    pub(super) fn detach_follows(&self, node: &Node, released: bool) -> bool {
        let Some(object) = &self.object else { return false };
        let own = &node.options.name;
        untold::detach_follows(&Following {
            host_is_node: object.spec.host.as_ref().is_some_and(|host| host.node_name == *own),
            attach_required: object.spec.attach_required,
            used: !object.spec.allocations.is_empty(),
            leaving: self.wanted == Attachment::Leaving,
            attached: self.attached(),
            released,
        })
    }

    pub(super) fn seen(&self, node: &Node) -> mount::Seen {
        let spec = self.object.as_ref().map(|o| &o.spec);
        let (dead, cures) = self.cures(node);
        mount::Seen {
            attach_required: spec.is_some_and(|s| s.attach_required),
            attached: self.attached(),
            stage_required: spec.map_or_else(
                || self.entry.as_ref().is_some_and(|e| e.stage_required),
                |spec| spec.stage_required,
            ),
            staged: self.entry.as_ref().map_or(Level::Down, |e| e.staged),
            dead,
            closed: self.entry.as_ref().is_some_and(|e| e.closed),
            released: self.released(),
            publications: self
                .users
                .iter()
                .zip(cures)
                .map(|(u, cure)| Publication {
                    wanted: u.wanted,
                    level: u.level(),
                    idle: u.idle(node),
                    cure,
                    held: false,
                })
                .collect(),
            others: self.others(node),
            growth: self.growth(),
        }
    }

    /// Whether what is staged has to be staged anew, and what is done about the mounts of each user.
    pub(super) fn cures(&self, node: &Node) -> (bool, Vec<Cure>) {
        let staging = self.entry.as_ref().and_then(|entry| node.sightings.staging(entry));
        let staging = staging.map_or(Health::Well, Look::health);
        let look = |user: &User| {
            let seen = user.entry.as_ref().and_then(|entry| node.sightings.publication(entry));
            seen.map_or(Look::Well, |(_, look)| look)
        };
        let patient = |user: &User| {
            let up = user.wanted && user.level() != Level::Down;
            Patient { policy: user.policy, look: look(user), up }
        };
        let patients: Vec<_> = self.users.iter().map(patient).collect();
        let wanted_by = self.users.iter().filter(|user| user.wanted).map(|user| user.policy);
        (stale::stage_anew(staging, wanted_by), stale::cures(staging, &patients))
    }

    pub(super) fn attached(&self) -> Rung {
        let Some(object) = &self.object else { return Rung::Unknown };
        let epoch = object.spec.host.as_ref().map(|h| h.epoch);
        let deleting = object.meta().deletion_timestamp.is_some();
        release::attached(deleting, epoch, self.host.as_ref().map(|s| (s.attached, s.epoch)))
    }

    pub(super) fn step_name(&self, step: Step) -> String {
        match step {
            Step::Close => "close".to_owned(),
            Step::Stage => "stage".to_owned(),
            Step::Unstage => "unstage".to_owned(),
            Step::PassOn => "passOn".to_owned(),
            Step::Release => "release".to_owned(),
            Step::Expand => "expand".to_owned(),
            Step::Publish(i) => format!("publish/{}/{}", self.users[i].allocation.uid, self.users[i].name),
            Step::Unpublish(i) => {
                format!("unpublish/{}/{}", self.users[i].allocation.uid, self.users[i].name)
            }
        }
    }

    pub(super) fn entry_or_new(&self) -> Result<AttachmentEntry, Trouble> {
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
            newer_modes: None,
            modes: None,
            mount_group: None,
            staged: Level::Down,
            seen: None,
            expanded: 0,
            tried: None,
            closed: false,
            released: false,
        })
    }

    pub(super) fn publish_context(&self) -> Map {
        self.host.as_ref().map(|host| host.publish_context.clone()).unwrap_or_default()
    }
}

/// Where it is noted why a user of an attachment does not get or lose its volume.
pub fn user_note(attachment: &str, allocation: &str, name: &str) -> String {
    format!("att/{attachment}/user/{allocation}/{name}")
}

impl User {
    /// What an event about it refers to.
    pub(super) fn about(&self) -> ObjectReference {
        part(about_allocation(&self.allocation), "volumes", &self.name)
    }

    /// Whether no process is left that may use it. While the allocation stays, its tasks that do not mount it are none of it; but for one
    /// that is taken away and is at a path of the machine, where any of them may be.
    pub(super) fn idle(&self, node: &Node) -> bool {
        let uid = &self.allocation.uid;
        let at_host = self.entry.as_ref().is_some_and(|entry| entry.host.is_some());
        let stays =
            |allocation: &Arc<crate::api::Allocation>| self.wanted || !at_host && !stopping(node, allocation);
        let allocation = node.caches.allocations.one(uid).filter(stays);
        let Some(allocation) = allocation else { return node.tasks.idle(uid) };
        let tasks = &allocation.spec.tasks;
        node.tasks.idle_of(uid, |name| {
            let task = tasks.iter().find(|task| task.name == name);
            task.is_none_or(|task| task.volume_mounts.iter().any(|mount| mount.name == self.name))
        })
    }

    pub(super) fn level(&self) -> Level {
        self.entry.as_ref().map_or(Level::Down, |e| e.level)
    }

    pub(super) fn host_path(&self, node: &Node) -> Result<Option<HostPath>, Trouble> {
        allowed_host_path(node, &self.host_path).map_err(|why| Trouble::Kernel("HostPathNotAllowed", why))
    }
}

impl Unit {
    /// A call of the step failed, or the kernel contradicts its answer.
    pub(super) fn failed(&self, node: &Node, step: &str, trouble: &Trouble) {
        let Some(about) = self.about(step) else { return };
        match trouble {
            Trouble::Call(failure) if failure.is_unsent() => {}
            Trouble::Call(_) | Trouble::Undo(_) | Trouble::Kernel(..) => {
                let (word, sentence) = trouble.text();
                node.events.failed(about, step, &word, action(step), &sentence);
            }
            Trouble::Wait(_) | Trouble::Journal(_) => {}
        }
    }

    /// The step succeeded.
    pub(super) fn recovered(&self, node: &Node, step: &str) {
        let Some(about) = self.about(step) else { return };
        node.events.recovered(about, step, action(step));
    }

    /// What an event of a step refers to: what is done for one user is told of that one.
    fn about(&self, step: &str) -> Option<ObjectReference> {
        let of_it = |user: &&User| step.ends_with(&format!("/{}/{}", user.allocation.uid, user.name));
        let user = self.users.iter().find(of_it).filter(|_| ["Publish", "Unpublish"].contains(&action(step)));
        user.map(User::about).or_else(|| Some(self.object.as_ref()?.object_ref(&())))
    }
}

/// `att/<uid>/publish/<allocation>` is `Publish`.
fn action(step: &str) -> &'static str {
    match step.split('/').nth(2) {
        Some("stage") => "Stage",
        Some("unstage") => "Unstage",
        Some("publish") => "Publish",
        Some("unpublish") => "Unpublish",
        Some("passOn") => "PassOn",
        Some("release") => "Release",
        Some("expand") => "Expand",
        Some(_) | None => "Close",
    }
}
