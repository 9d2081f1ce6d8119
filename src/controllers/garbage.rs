//! What nobody else clears away: objects whose owners are gone, old events, the contents of a namespace.
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Namespace};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::cache::{Cache, name_of};
use super::context::Context;
use super::drive::Outcome;
use super::facts::deleting;
use super::world::{Cached, Owner, for_each_kind};
use super::write::{Failure, Writable};

/// How long an event is kept after it was last seen.
pub(crate) const EVENT_AGE: Duration = Duration::from_secs(60 * 60);

/// The finalizer of an object that goes after what it owns.
const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer of an object that goes without what it owns.
const ORPHAN: &str = "orphan";

/// Whether an object that is being deleted stays until something was done about what it owns.
pub(crate) fn holds_for_dependents<K: Cached>(object: &K) -> bool {
    deleting(object) && object.finalizers().iter().any(|f| f == FOREGROUND || f == ORPHAN)
}

/// One look at one object that has owners or is one: it goes when all its owners are gone, and when it is deleted, what
/// it owns is let go of or goes first, if that was asked for.
pub(crate) async fn dependent<K: Cached>(object: Arc<K>, context: Arc<Context>) -> Outcome {
    if holds_for_dependents(&*object) {
        return with_dependents(&*object, &context).await;
    }
    let owners = object.owner_references();
    if owners.is_empty() || deleting(&*object) {
        return Ok(None);
    }
    if other_owner(&*object, &context, "").await? {
        return Ok(None);
    }
    context.delete(&*object).await?;
    Ok(None)
}

/// Whether an object has an owner beside the one of this uid.
async fn other_owner<K: Cached>(object: &K, context: &Context, uid: &str) -> Result<bool, Failure> {
    let namespace = object.namespace().unwrap_or_default();
    for owner in object.owner_references().iter().filter(|owner| owner.uid != uid) {
        match context.world.owner(owner, &namespace) {
            Owner::There | Owner::Unknown => return Ok(true),
            Owner::NotSeen { path } => {
                // The cache may only be late: what is not there is asked for at the API itself.
                let there: Option<Value> = context.read(&path, &owner.name).await?;
                if there.is_some_and(|o| o["metadata"]["uid"].as_str() == Some(&owner.uid)) {
                    return Ok(true);
                }
            }
        }
    }
    Ok(false)
}

async fn with_dependents<K: Cached>(object: &K, context: &Context) -> Outcome {
    let finalizer = if object.finalizers().iter().any(|f| f == ORPHAN) { ORPHAN } else { FOREGROUND };
    let uid = object.meta().uid.clone().unwrap_or_default();
    let mut waits = false;
    macro_rules! each {
        ($field:ident) => {
            waits |= dependents(context, &context.world.$field, &uid, finalizer).await?;
        };
    }
    for_each_kind!(each);
    if !waits {
        context.release_from(object, finalizer).await?;
    }
    Ok(None)
}

/// Lets go of what the owner has of one kind, or has it deleted; whether any of it holds the owner.
async fn dependents<K: Cached + Writable>(
    context: &Context,
    cache: &Cache<K>,
    owner: &str,
    finalizer: &str,
) -> Result<bool, Failure> {
    let mut waits = false;
    for object in cache.by(&format!("owner:{owner}")) {
        if finalizer == ORPHAN || other_owner(&*object, context, owner).await? {
            disown(context, &*object, owner).await?;
            continue;
        }
        let blocks = |o: &OwnerReference| o.uid == owner && o.block_owner_deletion == Some(true);
        waits |= object.owner_references().iter().any(blocks);
        if !deleting(&*object) {
            let own = object.meta().uid.as_deref().unwrap_or_default();
            if context.world.owns_anything(own) {
                context.delete_last(&*object).await?;
            } else {
                context.delete(&*object).await?;
            }
        }
    }
    Ok(waits)
}

/// Takes the owner out of an object's references, unless somebody wrote since it was read.
async fn disown<K: Cached + Writable>(context: &Context, object: &K, owner: &str) -> Result<(), Failure> {
    let left: Vec<_> = object.owner_references().iter().filter(|o| o.uid != owner).collect();
    let metadata = json!({ "resourceVersion": object.resource_version(), "ownerReferences": left });
    match context.merge(object, json!({ "metadata": metadata })).await {
        // It is gone, and with it its reference.
        Err(Failure::Gone) => Ok(()),
        done => done.map(drop),
    }
}

/// One look at one event: deleted an hour after it was last seen.
pub(crate) async fn event(object: Arc<Event>, context: Arc<Context>) -> Outcome {
    let series = object.series.as_ref().and_then(|s| s.last_observed_time.as_ref()).map(|t| t.0);
    let told = [series, object.last_timestamp.as_ref().map(|t| t.0), object.event_time.as_ref().map(|t| t.0)];
    let created = object.metadata.creation_timestamp.as_ref().map(|t| t.0);
    let Some(last) = told.into_iter().flatten().max().or(created) else { return Ok(None) };
    let age = context.now().0.duration_since(last);
    let age = Duration::try_from(age).unwrap_or(Duration::ZERO);
    match EVENT_AGE.checked_sub(age).filter(|left| !left.is_zero()) {
        Some(left) => Ok(Some(left)),
        None => {
            context.delete(&*object).await?;
            Ok(None)
        }
    }
}

/// One look at one namespace: one that is being deleted is emptied, then let go.
pub(crate) async fn namespace(object: Arc<Namespace>, context: Arc<Context>) -> Outcome {
    if !deleting(&*object) {
        return Ok(None);
    }
    let name = object.name_any();
    let world = &context.world;
    let mut left = empty(&context, &world.schedules, &name).await?;
    left += empty(&context, &world.allocations, &name).await?;
    left += empty(&context, &world.claims, &name).await?;
    left += empty(&context, &world.snapshots, &name).await?;
    if left == 0 {
        // What the volumes of the claims may have needed goes after them.
        left += empty(&context, &world.secrets, &name).await?;
        left += empty(&context, &world.config_maps, &name).await?;
        left += empty(&context, &world.leases, &name).await?;
        left += empty(&context, &world.events, &name).await?;
    }
    if left == 0 {
        context.release(&*object).await?;
    }
    Ok(None)
}

/// Asks for the end of everything of one kind in a namespace; how many are left.
async fn empty<K: Cached>(context: &Context, cache: &Cache<K>, namespace: &str) -> Result<usize, Failure> {
    let inside: Vec<_> = cache.all().into_iter().filter(|o| name_of(&**o).0 == namespace).collect();
    for object in inside.iter().filter(|o| !deleting(&***o)) {
        context.delete(&**object).await?;
    }
    Ok(inside.len())
}
