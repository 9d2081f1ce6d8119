//! What a claim's volume is filled from: found by its name, in the claim's own namespace. Reads only.
use kube::ResourceExt;

use super::cache::name_of;
use super::claims::{owner, usable, volume_of};
use super::facts::{Instances, deleting, uid};
use super::placement::reachable_from;
use super::volumes::only;
use super::world::World;
use crate::api::meta::VolumeMode;
use crate::api::plugin::capability;
use crate::api::quantity;
use crate::api::volume::Content;
use crate::api::{Volume, VolumeClaim};
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
    let name = claim.spec.data_source.as_ref().map(|source| source.claim_name.clone())?;
    let able = Instances::of(world, plugin).all_can(Service::Controller, capability::CLONE);
    let from = format!("claim \"{name}\"");
    let source = |state| Source { from: from.clone(), capability: "CLONE_VOLUME", able, state };
    let found = |state| Found { source: source(state), content: Content::default(), bytes: 0 };
    let Some(of) = world.claims.get(&(name_of(claim).0, name.clone())) else {
        return Some(found(SourceState::Missing("VolumeClaim", name)));
    };
    if deleting(&*of) {
        return Some(found(SourceState::Leaving("VolumeClaim", name)));
    }
    let volume = volume_of(world, &of).filter(|volume| owner(world, &of, volume) == Owner::Mine);
    let Some(volume) = volume else {
        return Some(found(SourceState::NotReady("it has no volume yet".to_owned())));
    };
    if deleting(&*volume) {
        return Some(found(SourceState::Leaving("Volume", volume.name_any())));
    }
    let handle = volume.status.as_ref().map(|status| status.handle.clone()).unwrap_or_default();
    if handle.is_empty() || !usable(world, &of, &volume) {
        let why = format!("its volume \"{}\" cannot be used yet", volume.name_any());
        return Some(found(SourceState::NotReady(why)));
    }
    let origin = origin(&volume);
    Some(Found {
        bytes: if origin.bytes == 0 { asked(&volume) } else { origin.bytes },
        source: source(SourceState::There(origin)),
        content: Content { volume: volume.name_any(), uid: uid(&*volume), handle },
    })
}

fn origin(volume: &Volume) -> Origin {
    let told = volume.status.as_ref().and_then(|status| quantity::bytes(&status.capacity).ok());
    Origin {
        plugin: volume.spec.plugin.clone(),
        bytes: told.unwrap_or(0),
        block: volume.spec.volume_mode == VolumeMode::Block,
        node: only(volume).unwrap_or_default().to_owned(),
        topology: reachable_from(volume),
    }
}

/// What a volume was asked for last, where its plugin tells no size.
fn asked(volume: &Volume) -> i64 {
    let made_with = volume.spec.source.create.as_ref().map_or(0, |create| create.required_bytes);
    volume.spec.size.map_or(made_with, |size| size.required_bytes)
}

/// The claims that are being filled from this volume, for people.
pub(crate) fn copies(world: &World, volume: &Volume) -> Vec<String> {
    let copies = world.volumes.by(&format!("copy:{}", uid(volume)));
    let name = |copy: &Volume| match &copy.spec.claim_ref {
        Some(claim) => format!("claim {}/{}", claim.namespace, claim.name),
        None => format!("volume {}", copy.name_any()),
    };
    copies.iter().map(|copy| name(&**copy)).collect()
}
