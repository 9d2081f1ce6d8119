//! The attributes of a claim's volume: which VolumeAttributesClass it shall have, and which it has. docs/volumes.md.
use kube::Resource;
use serde_json::json;

use super::context::Context;
use super::facts::Instances;
use super::world::World;
use super::write::Failure;
use crate::api::attributes::{Attributes, MODIFIED};
use crate::api::meta::{Condition, Truth};
use crate::api::plugin::capability;
use crate::api::{Volume, VolumeClaim};
use crate::plan::Reason;
use crate::plan::modify::{self, Claim, Claimed};
use crate::plan::registry::Service;

/// How a bound claim and its attributes stand.
pub(crate) struct Look {
    /// What its volume is to be asked for now.
    pub(crate) set: Option<Attributes>,
    /// Its volume is to be asked for none any more.
    pub(crate) unset: bool,
    /// The class that its volume has.
    pub(crate) has: String,
    /// Why that is another one than it names, if it is.
    pub(crate) condition: Option<Condition>,
}

/// Looks at the attributes of a claim that is bound to this volume.
pub(crate) fn look(world: &World, claim: &VolumeClaim, volume: &Volume) -> Look {
    let wanted = &claim.spec.volume_attributes_class_name;
    let name = |attributes: Option<&Attributes>| attributes.map(|a| a.class_name.clone()).unwrap_or_default();
    let has = name(volume.attributes());
    let claimed = modify::claimed(&facts(world, claim, &volume.spec.plugin, Some(volume)));
    if wanted.is_empty() {
        let unset = claimed == Claimed::Unset;
        return Look { set: None, unset, has, condition: in_doubt(volume).filter(|_| !unset) };
    }
    let told = volume.status.as_ref().and_then(|s| s.modification.as_ref()?.condition.as_ref());
    let waits = |word: &str, sentence: String| Condition::new(MODIFIED, Truth::False, word, sentence);
    let condition = match (&claimed, told) {
        (Claimed::Refused(reason), _) => Some(waits(reason.word(), reason.to_string())),
        (Claimed::AsAsked | Claimed::Set | Claimed::Unset, _) if has == *wanted => None,
        (Claimed::AsAsked, Some(told)) => Some(waits(&told.reason, told.message.clone())),
        (Claimed::AsAsked | Claimed::Set | Claimed::Unset, _) => {
            Some(waits("Modifying", format!("its volume is given the attributes of \"{wanted}\"")))
        }
    };
    let class = || Some(world.attributes.named(wanted)?.spec.parameters.clone());
    let kept = volume.attributes().filter(|has| has.class_name == *wanted).map(|has| has.parameters.clone());
    let parameters = if claimed == Claimed::Set { kept.or_else(class) } else { None };
    let set = parameters.map(|parameters| Attributes { class_name: wanted.clone(), parameters });
    Look { set, unset: false, has, condition }
}

/// What a volume that is made for this claim by this plugin is made with; a reason if it cannot be.
pub(crate) fn from_the_start(
    world: &World,
    claim: &VolumeClaim,
    plugin: &str,
) -> Result<Option<Attributes>, Reason> {
    let wanted = &claim.spec.volume_attributes_class_name;
    if wanted.is_empty() {
        return Ok(None);
    }
    modify::usable(&facts(world, claim, plugin, None))?;
    let parameters = world.attributes.named(wanted).map(|class| class.spec.parameters.clone());
    Ok(parameters.map(|parameters| Attributes { class_name: wanted.clone(), parameters }))
}

/// That a volume is asked for attributes still that its claim names no more: nobody knows what it has until that is answered.
fn in_doubt(volume: &Volume) -> Option<Condition> {
    let modification = volume.status.as_ref()?.modification.as_ref().filter(|change| change.doubted)?;
    let asked = volume.spec.attributes.as_ref()?;
    let said = modification.condition.as_ref().map(|told| format!(": {}", told.message)).unwrap_or_default();
    let word = modification.condition.as_ref().map_or("Modifying", |told| told.reason.as_str());
    let sentence = format!(
        "the claim names no class, and its volume may have what it was asked for of \"{}\": name that one, or the one that it \
         shall have{said}",
        asked.class_name
    );
    Some(Condition::new(MODIFIED, Truth::False, word, sentence))
}

/// Whether a person asked for the attributes of a volume that was there, before any claim did.
fn is_anothers_wish(claim: &VolumeClaim, volume: &Volume) -> bool {
    let told = claim.status.as_ref().is_some_and(|s| s.conditions.iter().any(|c| c.kind == MODIFIED));
    volume.spec.source.create.is_none() && !told
}

fn facts(world: &World, claim: &VolumeClaim, plugin: &str, volume: Option<&Volume>) -> Claim {
    let wanted = claim.spec.volume_attributes_class_name.clone();
    let name = |attributes: Option<&Attributes>| attributes.map(|a| a.class_name.clone()).unwrap_or_default();
    let instances = Instances::of(world, plugin);
    let declared = world.plugins.named(plugin);
    let known =
        instances.nodes(Service::Controller).len() > 0 || !instances.has_controllers(declared.as_deref());
    Claim {
        asked: name(volume.and_then(|volume| volume.spec.attributes.as_ref())),
        has: name(volume.and_then(Volume::attributes)),
        given: volume.is_some_and(|v| v.was_given_attributes() || is_anothers_wish(claim, v)),
        class: world.attributes.named(&wanted).map(|class| class.spec.plugin.clone()),
        plugin: plugin.to_owned(),
        can: known.then(|| instances.all_can(Service::Controller, capability::MODIFY)),
        wanted,
    }
}

/// Writes what a volume is asked for, unless somebody wrote since it was read, and tells what it keeps of what it has.
pub(crate) async fn set(
    context: &Context,
    claim: &VolumeClaim,
    volume: &Volume,
    attributes: &Attributes,
) -> Result<(), Failure> {
    if let Some(has) = volume.attributes()
        && let kept = modify::kept(&has.parameters, &attributes.parameters)
        && !kept.is_empty()
    {
        let sentence = format!(
            "class \"{}\" says nothing of {}: the volume keeps that as class \"{}\" had it",
            attributes.class_name,
            kept.join(", "),
            has.class_name
        );
        context.tell::<VolumeClaim>(&super::claims::reference(claim), "AttributesKept", &sentence).await;
    }
    let metadata = json!({ "resourceVersion": volume.meta().resource_version });
    // A merge leaves what is not said: the parameters of an earlier class must go.
    let old = volume.spec.attributes.iter().flat_map(|before| before.parameters.keys());
    let mut parameters: serde_json::Map<_, _> = old.map(|key| (key.clone(), json!(null))).collect();
    parameters.extend(attributes.parameters.iter().map(|(key, value)| (key.clone(), json!(value))));
    let attributes = json!({ "className": attributes.class_name, "parameters": parameters });
    let patch = json!({ "metadata": metadata, "spec": { "attributes": attributes } });
    context.merge(volume, patch).await.map(|_: Volume| ())
}

/// Takes away what a volume is asked for, unless somebody wrote since it was read. What was asked for already and not answered for
/// good is asked for again until it is.
pub(crate) async fn unset(context: &Context, volume: &Volume) -> Result<(), Failure> {
    let metadata = json!({ "resourceVersion": volume.meta().resource_version });
    context
        .merge(volume, json!({ "metadata": metadata, "spec": { "attributes": null } }))
        .await
        .map(|_: Volume| ())
}
