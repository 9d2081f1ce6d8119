//! Claims that allocations bring along: made here, and looked at by whom they are of.
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};

use super::allocations::{over, serves};
use super::cache::name_of;
use super::context::Context;
use super::drive::Outcome;
use super::facts::{deleting, uid};
use super::world::World;
use super::write::Failure;
use crate::api::allocation::{AllocationPhase, AllocationVolume, CLAIM_OF, ClaimTemplate, WhenDeleted};
use crate::api::meta::ObjectRef;
use crate::api::{Allocation, VolumeClaim};
use crate::plan::Reason;
use crate::plan::template::{self, Found, Step};

/// Makes the claims that an allocation brings along and that are not there; when to look again if that cannot be told yet.
pub(crate) async fn make(context: &Context, object: &Allocation) -> Outcome {
    let status = object.status.clone().unwrap_or_default();
    let failed = status.phase.is_some_and(|phase| phase.terminal() && phase != AllocationPhase::Stopped);
    let wanted = !deleting(object) && !object.spec.stop && !failed && !over(&status, serves(object));
    for volume in &object.spec.volumes {
        let Some(of) = volume.claim_template.as_deref() else { continue };
        match template::step(wanted, found(&context.world, object, volume, of)) {
            Step::Keep => {}
            Step::Make => {
                let claim = claim(object, volume, of);
                // One that goes with its allocation goes if that is gone by now. One that stays would be nobody's.
                if of.when_deleted == WhenDeleted::Retain && !is_there(context, object).await? {
                    return Ok(None);
                }
                if let Some(wait) = context.behind::<VolumeClaim>(&name_of(&claim)) {
                    return Ok(Some(wait));
                }
                if let Err(failure) = context.create(&claim).await {
                    if let Failure::Refused { message, .. } = &failure {
                        let sentence = format!("claim \"{}\" cannot be made: {message}", volume.claim_name);
                        let of = ObjectRef {
                            namespace: object.namespace().unwrap_or_default(),
                            name: object.name_any(),
                            uid: uid(object),
                        };
                        context.tell::<Allocation>(&of, "ClaimNotMade", &sentence).await;
                    }
                    return Err(failure);
                }
            }
        }
    }
    Ok(None)
}

/// Whether the server itself has the allocation, and it is not on its way out: the cache may be late.
async fn is_there(context: &Context, object: &Allocation) -> Result<bool, Failure> {
    let path = Allocation::url_path(&(), object.namespace().as_deref());
    let there: Option<Allocation> = context.read(&path, &object.name_any()).await?;
    Ok(there.is_some_and(|there| there.metadata.uid == object.metadata.uid && !deleting(&there)))
}

/// Why an allocation cannot use the claim of this name, if it brings that along itself.
pub(crate) fn unusable(world: &World, object: &Allocation, claim: &str) -> Option<Reason> {
    let volume = object.spec.volumes.iter().find(|volume| volume.claim_name == claim)?;
    let of = volume.claim_template.as_deref()?;
    template::unusable(found(world, object, volume, of), claim)
}

fn found(world: &World, object: &Allocation, volume: &AllocationVolume, of: &ClaimTemplate) -> Found {
    let key = (object.namespace().unwrap_or_default(), volume.claim_name.clone());
    let Some(claim) = world.claims.get(&key) else { return Found::Nothing };
    let own = match of.when_deleted {
        WhenDeleted::Delete => claim.owner_references().iter().any(|owner| owner.uid == uid(object)),
        WhenDeleted::Retain => claim.labels().get(CLAIM_OF) == Some(&object.name_any()),
    };
    match (own, deleting(&*claim)) {
        (true, false) => Found::Own,
        (true, true) => Found::OwnLeaving,
        (false, false) => Found::Others,
        (false, true) => Found::OthersLeaving,
    }
}

fn claim(object: &Allocation, volume: &AllocationVolume, of: &ClaimTemplate) -> VolumeClaim {
    let mut claim = VolumeClaim::new(&volume.claim_name, of.spec.clone());
    claim.metadata.namespace = object.namespace();
    claim.metadata.annotations = Some(of.metadata.annotations.clone()).filter(|all| !all.is_empty());
    let mut labels = of.metadata.labels.clone();
    match of.when_deleted {
        // Whoever deletes the allocation first of all waits for nothing: the claim goes when no user of it is left.
        WhenDeleted::Delete => {
            let owner = object.controller_owner_ref(&());
            let owner = owner.map(|owner| OwnerReference { block_owner_deletion: None, ..owner });
            claim.metadata.owner_references = owner.map(|owner| vec![owner]);
        }
        WhenDeleted::Retain => {
            labels.insert(CLAIM_OF.to_owned(), object.name_any());
        }
    }
    claim.metadata.labels = Some(labels).filter(|all| !all.is_empty());
    claim
}
