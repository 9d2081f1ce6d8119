//! Snapshots of several volumes: what they are of, and the one host that all those volumes have until it is ready.
//! docs/design/snapshots.md, "Groups".
use std::sync::Arc;

use kube::ResourceExt;

use super::cache::name_of;
use super::facts::{Instances, deleting, uid};
use super::snapshots::{class_behind, handle, pictured, settings, settings_for};
use super::world::World;
use crate::api::plugin::capability;
use crate::api::snapshot::{ClaimSelector, MemberOf, SnapshotOf};
use crate::api::{Snapshot, Volume, VolumeClaim, VolumeClass};
use crate::plan::registry::Service;
use crate::plan::{Reason, group};

/// One of the volumes, and all that is asked with for it.
struct One {
    claim: String,
    volume: Arc<Volume>,
    of: SnapshotOf,
}

impl One {
    fn of(&self) -> group::One<'_> {
        group::One {
            claim: &self.claim,
            plugin: &self.volume.spec.plugin,
            node: self.volume.spec.source.home().unwrap_or_default(),
            parameters: &self.of.parameters,
            secret: self.of.secret.as_ref(),
        }
    }
}

/// What is to be frozen of a snapshot of several volumes: all that its selector finds now, but for claims that are on their
/// way out. One that cannot be pictured yet holds it up: without that it would be less than what was asked for.
pub(super) fn source(
    world: &World,
    object: &Snapshot,
    selector: &ClaimSelector,
) -> Result<SnapshotOf, Reason> {
    let namespace = name_of(object).0;
    let meant = |claim: &Arc<VolumeClaim>| {
        name_of(&**claim).0 == namespace && selector.matches(claim.labels()) && !deleting(&**claim)
    };
    let mut claims: Vec<_> = world.claims.all().into_iter().filter(meant).map(|c| c.name_any()).collect();
    claims.sort();
    let all = claims.iter().map(|claim| one(world, object, &namespace, claim));
    let all = all.collect::<Result<Vec<_>, _>>()?;
    let Some(first) = all.first() else {
        let why = "no claim of the namespace has them".to_owned();
        return Err(Reason::SourceNotReady {
            from: "claims with the labels of its selector".to_owned(),
            why,
        });
    };
    let ones: Vec<_> = all.iter().map(One::of).collect();
    if let Some(reason) = group::apart(&ones) {
        return Err(reason);
    }
    let plugin = &first.volume.spec.plugin;
    let instances = Instances::of(world, plugin);
    if instances.nodes(Service::Controller).len() > 0
        && !instances.all_can(Service::Controller, capability::GROUP_SNAPSHOT)
    {
        let capability = capability::GROUP_SNAPSHOT.rsplit('/').next().unwrap_or_default();
        return Err(Reason::PluginLacks { plugin: plugin.clone(), capability });
    }
    let members = all.iter().map(|one| MemberOf {
        claim_name: one.claim.clone(),
        volume: one.volume.name_any(),
        uid: uid(&*one.volume),
        handle: handle(&one.volume),
        volume_mode: one.volume.spec.volume_mode,
    });
    Ok(SnapshotOf {
        plugin: plugin.clone(),
        members: members.collect(),
        node_name: first.volume.spec.source.home().unwrap_or_default().to_owned(),
        ..first.of.clone()
    })
}

fn one(world: &World, object: &Snapshot, namespace: &str, name: &str) -> Result<One, Reason> {
    let (claim, volume) = pictured(world, namespace, name)?;
    let named = &object.spec.volume_class_name;
    let class: Option<Arc<VolumeClass>> =
        if named.is_empty() { class_behind(world, &claim, &volume)? } else { settings(world, named)? };
    // The parameters are those of a driver: another plugin's say nothing to it.
    let class = class.filter(|class| class.spec.plugin == volume.spec.plugin);
    if class.is_none() && !named.is_empty() {
        let plugin = &volume.spec.plugin;
        let details = format!("class \"{named}\" is not of its plugin \"{plugin}\"; choose one that is");
        return Err(Reason::SourceMismatch { from: format!("claim \"{name}\""), details });
    }
    let of = settings_for(&volume, class.as_deref(), named);
    Ok(One { claim: name.to_owned(), volume, of })
}

/// The Snapshot of several volumes which this volume's host has to make the calls of first (`plan::group`).
fn first(world: &World, volume: &Volume) -> Option<Arc<Snapshot>> {
    let named = |snapshot: &Snapshot| {
        let status = volume.status.as_ref();
        status.is_some_and(|status| status.snapshots.iter().any(|one| one.uid == uid(snapshot)))
    };
    let mut groups = world.snapshots.by(&format!("cut:{}", uid(volume)));
    groups.retain(|snapshot| snapshot.is_group() && named(snapshot));
    group::first(groups, |snapshot| {
        (snapshot.metadata.creation_timestamp.as_ref().map(|time| time.0), uid(&**snapshot))
    })
}

/// The node that has to be the host of this volume: that of a Snapshot of several volumes, until that is ready.
pub(super) fn pinned(world: &World, volume: &Volume) -> Option<String> {
    let group = first(world, volume)?;
    let host = group.status.as_ref()?.controller.as_ref()?;
    Some(host.node_name.clone())
}

/// Where the calls of a Snapshot of several volumes are best made: where those of its volumes are pinned to already, or else
/// made.
pub(super) fn preferred(world: &World, object: &Snapshot, of: &SnapshotOf) -> Option<String> {
    if !object.is_group() {
        return None;
    }
    let volumes = || of.volumes().filter_map(|(name, _)| world.volumes.named(name));
    let host = |volume: Arc<Volume>| {
        let status = volume.status.as_ref()?;
        Some(status.calling_host()?.node_name.clone())
    };
    volumes().find_map(|volume| pinned(world, &volume)).or_else(|| volumes().find_map(host))
}
