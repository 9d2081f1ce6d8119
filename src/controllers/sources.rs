//! What a claim's volume is filled from: found by its name, in the claim's own namespace. Reads only.
use kube::{Resource as _, ResourceExt};
use serde_json::Value;

use super::cache::name_of;
use super::claims::{owner, usable, volume_of};
use super::context::Context;
use super::facts::{Instances, deleting, uid};
use super::placement::reachable_from;
use super::snapshots::{self, NotUsed};
use super::world::World;
use super::write::Failure;
use crate::api::meta::VolumeMode;
use crate::api::plugin::capability;
use crate::api::quantity;
use crate::api::snapshot::SnapshotOf;
use crate::api::volume::Content;
use crate::api::{Snapshot, Volume, VolumeClaim};
use crate::plan::claim::{Origin, Owner, Source, SourceState};
use crate::plan::registry::Service;

/// What was found.
pub(crate) struct Found {
    /// For decisions.
    pub(crate) source: Source,
    /// What is frozen into the volume; empty while the source cannot be used.
    pub(crate) content: Content,
    /// How many bytes are asked for where the claim asks for none.
    pub(crate) bytes: i64,
}

impl Found {
    /// What is known of a source that can be used.
    pub(crate) fn origin(&self) -> Option<&Origin> {
        match &self.source.state {
            SourceState::There(origin) => Some(origin),
            SourceState::Missing(..) | SourceState::Leaving(..) | SourceState::NotReady(_) => None,
        }
    }
}

/// What the volume of this claim is to be filled from, by a volume of this plugin; none where it begins empty.
pub(crate) fn of(world: &World, claim: &VolumeClaim, plugin: &str) -> Option<Found> {
    let source = claim.spec.data_source.as_ref()?;
    let namespace = name_of(claim).0;
    let (word, capability, (state, content, bytes)) = if source.snapshot_name.is_empty() {
        let found = of_claim(world, &namespace, &source.claim_name);
        (format!("claim \"{}\"", source.claim_name), capability::CLONE, found)
    } else {
        let found = of_snapshot(world, &namespace, &source.snapshot_name, &source.claim_name);
        (format!("snapshot \"{}\"", source.snapshot_name), capability::SNAPSHOT, found)
    };
    let able = Instances::of(world, plugin).all_can(Service::Controller, capability);
    let capability = capability.rsplit('/').next().unwrap_or(capability);
    Some(Found { source: Source { from: word, capability, able, state }, content, bytes })
}

/// How it stands, what is frozen of it, and how many bytes are asked for where the claim asks for none.
type Look = (SourceState, Content, i64);

fn not_there(state: SourceState) -> Look {
    (state, Content::default(), 0)
}

fn of_claim(world: &World, namespace: &str, name: &str) -> Look {
    let Some(of) = world.claims.get(&(namespace.to_owned(), name.to_owned())) else {
        return not_there(SourceState::Missing("VolumeClaim", name.to_owned()));
    };
    if deleting(&*of) {
        return not_there(SourceState::Leaving("VolumeClaim", name.to_owned()));
    }
    let volume = volume_of(world, &of).filter(|volume| owner(world, &of, volume) == Owner::Mine);
    let Some(volume) = volume else {
        return not_there(SourceState::NotReady("it has no volume yet".to_owned()));
    };
    if deleting(&*volume) {
        return not_there(SourceState::Leaving("Volume", volume.name_any()));
    }
    if volume.spec.source.ephemeral.is_some() {
        let why = "it is ephemeral, and nothing can be made of such a one".to_owned();
        return not_there(SourceState::NotReady(why));
    }
    let handle = volume.status.as_ref().map(|status| status.handle.clone()).unwrap_or_default();
    if handle.is_empty() || !usable(world, &of, &volume) {
        let why = format!("its volume \"{}\" cannot be used yet", volume.name_any());
        return not_there(SourceState::NotReady(why));
    }
    let origin = origin(&volume);
    let bytes = if origin.bytes == 0 { asked(&volume) } else { origin.bytes };
    let content = Content { volume: volume.name_any(), uid: uid(&*volume), handle, ..Content::default() };
    (SourceState::There(origin), content, bytes)
}

/// The picture that is a Snapshot, or of one of several volumes that of this claim.
fn of_snapshot(world: &World, namespace: &str, name: &str, claim: &str) -> Look {
    let Some(of) = world.snapshots.get(&(namespace.to_owned(), name.to_owned())) else {
        return not_there(SourceState::Missing("Snapshot", name.to_owned()));
    };
    if deleting(&*of) {
        return not_there(SourceState::Leaving("Snapshot", name.to_owned()));
    }
    let status = of.status.clone().unwrap_or_default();
    let Some(pictured) = status.of.filter(|_| status.ready) else {
        return not_there(SourceState::NotReady("it is not ready".to_owned()));
    };
    if let Some(other) = snapshots::anothers(world, &of) {
        return not_there(SourceState::NotReady(format!("its plugin gave it the handle of {other}")));
    }
    match snapshots::not_to_be_used(world, &of) {
        None => {}
        Some(NotUsed::Ending { other, .. }) => {
            return not_there(SourceState::NotReady(format!("{other} has the same handle, and goes first")));
        }
        Some(NotUsed::Stale) => {
            return not_there(SourceState::NotReady("its plugin is asked for it once more".to_owned()));
        }
    }
    let picture = match member(&of, &pictured, claim) {
        Ok(Some(member)) => member,
        Ok(None) => Picture { handle: status.handle, size: status.size, volume_mode: pictured.volume_mode },
        Err(why) => return not_there(SourceState::NotReady(why)),
    };
    let bytes = quantity::bytes(&picture.size).unwrap_or(0);
    let origin = Origin {
        plugin: pictured.plugin,
        bytes,
        block: picture.volume_mode.map(|mode| mode == VolumeMode::Block),
        node: pictured.node_name,
        topology: Vec::new(),
    };
    let snapshot = format!("{namespace}/{name}");
    let content = Content { snapshot, uid: uid(&*of), handle: picture.handle, ..Content::default() };
    (SourceState::There(origin), content, bytes)
}

/// One picture, of one volume.
struct Picture {
    handle: String,
    size: String,
    volume_mode: Option<VolumeMode>,
}

/// The picture of this claim's volume in a Snapshot of several; none where that is of one volume alone.
fn member(snapshot: &Snapshot, of: &SnapshotOf, claim: &str) -> Result<Option<Picture>, String> {
    if !snapshot.is_group() {
        let only = &snapshot.spec.source.claim_name;
        let fits = claim.is_empty() || claim == only;
        let other = if only.is_empty() { "no claim".to_owned() } else { format!("claim \"{only}\"") };
        return if fits { Ok(None) } else { Err(format!("it is of {other}, not of \"{claim}\"")) };
    }
    let members = snapshot.status.as_ref().map(|status| status.members.as_slice()).unwrap_or_default();
    let names: Vec<_> = of.members.iter().map(|member| member.claim_name.as_str()).collect();
    let names = names.join(", ");
    if claim.is_empty() {
        return Err(format!("it is of several claims; say with dataSource.claimName of which: {names}"));
    }
    let found = of.members.iter().find(|one| one.claim_name == claim);
    let pictured = members.iter().find(|one| one.claim_name == claim);
    let (Some(found), Some(pictured)) = (found, pictured) else {
        return Err(format!("it is not of claim \"{claim}\", but of {names}"));
    };
    Ok(Some(Picture {
        handle: pictured.handle.clone(),
        size: pictured.size.clone(),
        volume_mode: Some(found.volume_mode),
    }))
}

fn origin(volume: &Volume) -> Origin {
    Origin {
        plugin: volume.spec.plugin.clone(),
        bytes: volume.bytes().unwrap_or(0),
        block: Some(volume.spec.volume_mode == VolumeMode::Block),
        node: volume.spec.source.home().unwrap_or_default().to_owned(),
        topology: reachable_from(volume),
    }
}

/// What a volume was asked for last, where its plugin tells no size.
fn asked(volume: &Volume) -> i64 {
    let made_with = volume.spec.source.create.as_ref().map_or(0, |create| create.required_bytes);
    volume.spec.size.map_or(made_with, |size| size.required_bytes)
}

/// Whether what this volume is to be filled from is not to be seen any more.
pub(super) fn is_gone(world: &World, volume: &Volume) -> bool {
    let Some(content) = volume.spec.source.create.as_ref().and_then(|create| create.content.as_ref()) else {
        return false;
    };
    match content.snapshot.split_once('/') {
        Some((namespace, name)) => {
            let found = world.snapshots.get(&(namespace.to_owned(), name.to_owned()));
            found.is_none_or(|found| uid(&*found) != content.uid)
        }
        None => world.volumes.named(&content.volume).is_none_or(|found| uid(&*found) != content.uid),
    }
}

/// Whether the server has it still: our cache may only be late.
pub(super) async fn is_there(context: &Context, volume: &Volume) -> Result<bool, Failure> {
    let Some(content) = volume.spec.source.create.as_ref().and_then(|create| create.content.as_ref()) else {
        return Ok(false);
    };
    let found: Option<Value> = match content.snapshot.split_once('/') {
        Some((namespace, name)) => context.read(&Snapshot::url_path(&(), Some(namespace)), name).await?,
        None => context.read(&Volume::url_path(&(), None), &content.volume).await?,
    };
    Ok(found.is_some_and(|found| found["metadata"]["uid"].as_str() == Some(&content.uid)))
}

/// What is being made of this volume, for people: claims that are filled from it, and snapshots.
pub(crate) fn copies(world: &World, volume: &Volume) -> Vec<String> {
    let copies = world.volumes.by(&format!("copy:{}", uid(volume)));
    let cut = volume.status.iter().flat_map(|status| &status.snapshots).cloned();
    let cut: std::collections::BTreeSet<_> = cut.chain(snapshots::of_volume(world, volume)).collect();
    let cut = cut.into_iter().map(|one| format!("snapshot {}/{}", one.namespace, one.name));
    let name = |copy: &Volume| match &copy.spec.claim_ref {
        Some(claim) => format!("claim {}/{}", claim.namespace, claim.name),
        None => format!("volume {}", copy.name_any()),
    };
    copies.iter().map(|copy| name(copy)).chain(cut).collect()
}
