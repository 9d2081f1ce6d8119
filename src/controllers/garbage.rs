//! What nobody else clears away: objects whose owners are gone, old events, the contents of a namespace.
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Namespace};
use kube::ResourceExt;
use serde_json::Value;

use super::cache::{Cache, name_of};
use super::context::Context;
use super::drive::Outcome;
use super::facts::deleting;
use super::world::{Cached, Owner};
use super::write::Failure;

/// How long an event is kept after it was last seen.
pub(crate) const EVENT_AGE: Duration = Duration::from_secs(60 * 60);

/// One look at one object with owners: it goes when all of them are gone.
pub(crate) async fn dependent<K: Cached>(object: Arc<K>, context: Arc<Context>) -> Outcome {
    let owners = object.owner_references();
    if owners.is_empty() || deleting(&*object) {
        return Ok(None);
    }
    let namespace = object.namespace().unwrap_or_default();
    for owner in owners {
        match context.world.owner(owner, &namespace) {
            Owner::There | Owner::Unknown => return Ok(None),
            Owner::NotSeen { path } => {
                // The cache may only be late: what is not there is asked for at the API itself.
                let there: Option<Value> = context.read(&path, &owner.name).await?;
                if there.is_some_and(|o| o["metadata"]["uid"].as_str() == Some(&owner.uid)) {
                    return Ok(None);
                }
            }
        }
    }
    context.delete(&*object).await?;
    Ok(None)
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
    let mut left = empty(&context, &world.allocations, &name).await?;
    left += empty(&context, &world.claims, &name).await?;
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
