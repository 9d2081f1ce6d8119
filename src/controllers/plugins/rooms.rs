//! How much room plugins have for volumes: what their instances are asked, and what they answered.
use std::sync::Arc;

use kube::ResourceExt;
use serde_json::json;

use super::super::context::Context;
use super::super::facts::Instances;
use super::super::world::World;
use super::super::write::Failure;
use crate::api::meta::Segments;
use crate::api::plugin::{ControllerScope, capability};
use crate::api::room::{Room, RoomQuestion};
use crate::api::{Plugin, PluginInstance};
use crate::plan::registry::Service;

/// The most questions at one instance: what is left out is not known.
const MOST: usize = 100;

/// Asks at each instance that makes volumes what is to be known of it, and takes back what is not.
pub(super) async fn ask(context: &Context, plugin: &Plugin) -> Result<(), Failure> {
    let instances = Instances::of(&context.world, &plugin.name_any());
    for instance in instances.healthy(Service::Controller) {
        let questions = questions(&context.world, plugin, &instances, instance);
        if questions != instance.spec.rooms {
            context.merge(&**instance, json!({ "spec": { "rooms": questions } })).await?;
        }
    }
    Ok(())
}

fn questions(
    world: &World,
    plugin: &Plugin,
    instances: &Instances,
    instance: &Arc<PluginInstance>,
) -> Vec<RoomQuestion> {
    let local = plugin.spec.controller_scope == ControllerScope::Node;
    let asked =
        local || instances.healthy(Service::Controller).next().is_some_and(|one| Arc::ptr_eq(one, instance));
    if !asked || !instances.all_can(Service::Controller, capability::GET_CAPACITY) {
        return Vec::new();
    }
    let mut places = match instances.all_can(Service::Controller, capability::TOPOLOGY) {
        true if local => vec![own_place(instances, &instance.spec.node_name)],
        true => instances.topologies(),
        false => vec![Segments::new()],
    };
    places.sort();
    places.dedup();
    let mut classes = world.classes.by(&format!("plugin:{}", plugin.name_any()));
    classes.sort_by_key(|class| class.name_any());
    let of_class = |class: &Arc<crate::api::VolumeClass>| {
        let (class, parameters) = (class.name_any(), class.spec.parameters.clone());
        let question = |segments: &Segments| RoomQuestion {
            class: class.clone(),
            parameters: parameters.clone(),
            segments: segments.clone(),
        };
        places.iter().map(question).collect::<Vec<_>>()
    };
    classes.iter().flat_map(of_class).take(MOST).collect()
}

/// What the plugin's instance on a node reports of its place.
fn own_place(instances: &Instances, node: &str) -> Segments {
    let there = instances.serving(Service::Node, node).and_then(|i| i.status.as_ref());
    there.map(|status| status.topology.clone()).unwrap_or_default()
}

/// How much room there is for a volume of a class that is made for this node, as far as that is known.
pub(crate) fn room(instances: &Instances, local: bool, class: &str, node: &str) -> Option<Room> {
    let teller = if local {
        instances.serving(Service::Controller, node)
    } else {
        instances.healthy(Service::Controller).next()
    };
    let here = own_place(instances, node);
    let rooms = &teller?.status.as_ref()?.rooms;
    let is_of = |room: &&Room| room.class == class && (room.segments.is_empty() || room.segments == here);
    rooms.iter().find(is_of).filter(|room| room.available_bytes.is_some()).cloned()
}
