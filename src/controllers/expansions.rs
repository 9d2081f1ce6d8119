//! The size of a bound claim: what its volume is asked for, and what of that its users have. docs/design/expansion.md.
use kube::{Resource, ResourceExt};
use serde_json::json;

use super::claims::requested;
use super::context::Context;
use super::facts::{Instances, uid};
use super::wake::{expanded, refusal, up};
use super::write::Failure;
use crate::api::meta::{Condition, Truth};
use crate::api::plugin::capability;
use crate::api::quantity;
use crate::api::volume::{EXPANDED, WantedSize};
use crate::api::{Plugin, Volume, VolumeAttachment, VolumeClaim, VolumeClass, VolumeStatus};
use crate::plan::Reason;
use crate::plan::expand::{self, Ability, Claimed, Having};
use crate::plan::registry::Service;

/// The word of a claim of which a node owes its part.
const PENDING: &str = "NodeExpansionPending";

/// How a bound claim and its size stand.
pub(crate) struct Look {
    /// What is to be done.
    pub(crate) claimed: Claimed,
    /// What its users have.
    pub(crate) capacity: String,
    /// What the backend has, if its users have less yet.
    pub(crate) allocated: String,
    /// Why it has less than it asks for, if it has.
    pub(crate) condition: Option<Condition>,
}

/// Looks at the size of a claim that is bound to this volume.
pub(crate) fn look(
    context: &Context,
    claim: &VolumeClaim,
    volume: &Volume,
    class: Option<&VolumeClass>,
) -> Look {
    let (world, status) = (&context.world, volume.status.clone().unwrap_or_default());
    let bytes = |text: &str| quantity::bytes(text).unwrap_or(0);
    let existing = volume.spec.source.existing.as_ref();
    let backend = volume.bytes().unwrap_or(0);
    let shown = claim.status.as_ref().map_or(0, |s| bytes(&s.capacity));
    let made_with = volume.spec.source.create.as_ref().map_or(backend, |create| create.required_bytes);
    let asked = volume.spec.size.map_or(made_with, |size| size.required_bytes);
    let wanted = requested(claim).unwrap_or(asked);
    let name = volume.name_any();
    let came = expand::as_it_came(wanted, asked, existing.map(|_| name.as_str()));
    if let Some(claimed) = came.filter(|_| volume.spec.size.is_none()) {
        let condition = match &claimed {
            Claimed::Refused(reason) => Some(refused(reason)),
            Claimed::AsAsked | Claimed::Set(_) => None,
        };
        let capacity = if backend == 0 { String::new() } else { quantity::display(backend) };
        return Look { claimed, capacity, allocated: String::new(), condition };
    }
    let limit = claim.spec.resources.limits.as_ref().map_or(0, |limit| bytes(&limit.storage));
    let named = claim.spec.volume_class_name.is_empty() && !claim.spec.volume_name.is_empty();
    let class = (!named).then(|| match class {
        Some(class) => (class.name_any(), class.spec.allow_volume_expansion),
        None => (claim.spec.volume_class_name.clone(), false),
    });
    let claimed = expand::claimed(&expand::Claim {
        requested: wanted,
        limit,
        asked,
        capacity: backend,
        class,
        plugin: volume.spec.plugin.clone(),
        can: ability(
            &Instances::of(world, &volume.spec.plugin),
            world.plugins.named(&volume.spec.plugin).as_deref(),
        ),
    });
    let node_bytes = volume.node_bytes();
    let attachments = world.attachments.by(&format!("volume:{}", volume.name_any()));
    let ours = || attachments.iter().filter(|a| a.spec.volume_uid == uid(volume));
    let nodes: Vec<Having> = ours().map(|a| Having { up: up(a), expanded: expanded(a) }).collect();
    let mut behind = ours().filter(|a| up(a) && expanded(a) < node_bytes);
    let why = behind.find_map(|a| Some((a.spec.node_name.clone(), refusal(a).or_else(|| reads(a))?)));
    let seen = expand::seen(backend, node_bytes, shown, &nodes);
    let text = |bytes: i64| if bytes == 0 { String::new() } else { quantity::display(bytes) };
    Look {
        condition: (seen < wanted)
            .then(|| condition(&claimed, &status, (backend.max(node_bytes), why), wanted)),
        claimed,
        capacity: text(seen),
        allocated: text(if backend > seen { backend } else { 0 }),
    }
}

/// Why a node that only reads a file system has it as it was.
fn reads(attachment: &VolumeAttachment) -> Option<Condition> {
    let why = "has it for reading, where no file system grows: end those who read it there, and who comes next gets all of it";
    let spec = &attachment.spec;
    (!expand::can_grow(spec.read_only, spec.capability.volume_mode))
        .then(|| Condition::new(EXPANDED, Truth::False, PENDING, why.to_owned()))
}

fn refused(reason: &Reason) -> Condition {
    Condition::new(EXPANDED, Truth::False, reason.word(), reason.to_string())
}

/// Why a claim has less than it asks for.
fn condition(
    claimed: &Claimed,
    status: &VolumeStatus,
    (given, on_a_node): (i64, Option<(String, Condition)>),
    wanted: i64,
) -> Condition {
    if let Claimed::Refused(reason) = claimed {
        return refused(reason);
    }
    let waits = |word: &str, sentence: String| Condition::new(EXPANDED, Truth::False, word, sentence);
    let told = status.expansion.as_ref().and_then(|expansion| expansion.condition.as_ref());
    match (told, on_a_node) {
        (Some(told), _) => waits(&told.reason, told.message.clone()),
        (None, _) if given < wanted => {
            waits("Expanding", format!("is expanded to {}", quantity::display(wanted)))
        }
        (None, Some((node, why))) => waits(&why.reason, format!("node \"{node}\": {}", why.message)),
        (None, None) => waits(
            PENDING,
            "the node that has the volume expands it next; without one, the next one that gets it".to_owned(),
        ),
    }
}

/// What those instances can do that are healthy.
fn ability(instances: &Instances, plugin: Option<&Plugin>) -> Ability {
    let controllers = instances.nodes(Service::Controller).len() > 0;
    if instances.all_can(Service::Controller, capability::CONTROLLER_EXPAND) {
        return Ability::Controller;
    }
    let nodes = instances.nodes(Service::Node).len() > 0;
    let node = instances.all_can(Service::Node, capability::NODE_EXPAND);
    match (controllers || !instances.has_controllers(plugin), nodes) {
        (true, true) if node => Ability::NodeAlone,
        (true, true) => Ability::Nothing,
        (false, _) | (_, false) => Ability::NotKnown,
    }
}

/// Writes what a volume is asked for, unless somebody wrote since it was read.
pub(crate) async fn set(context: &Context, volume: &Volume, size: WantedSize) -> Result<(), Failure> {
    let metadata = json!({ "resourceVersion": volume.meta().resource_version });
    // A merge leaves what is not said: a bound or a mark of an earlier request must go.
    let size = json!({ "requiredBytes": size.required_bytes,
        "limitBytes": Some(size.limit_bytes).filter(|limit| *limit != 0),
        "nodeOnly": Some(size.node_only).filter(|only| *only) });
    context.merge(volume, json!({ "metadata": metadata, "spec": { "size": size } })).await.map(|_: Volume| ())
}
