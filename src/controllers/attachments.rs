//! One attachment: its host and the size that its node shall bring it to are kept equal to the volume's, a fence is entered
//! once it is sure, one without its volume is closed, its finalizer goes last.
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use super::context::Context;
use super::drive::Outcome;
use super::facts::{boot_id, deleting, uid};
use super::nodes::{fence, pulse};
use super::write::Failure;
use crate::api::meta::Host;
use crate::api::{NodeAgent, Volume, VolumeAttachment};
use crate::plan::host::HostNode;
use crate::plan::release::{self, Fence, Leaving};

/// One look at one attachment.
pub(crate) async fn reconcile(object: Arc<VolumeAttachment>, context: Arc<Context>) -> Outcome {
    let seen = leaving(&object);
    let node = &object.spec.node_name;
    if deleting(&*object) {
        let node_gone = context.world.nodes.named(node).is_none();
        let gone = release::attachment_gone(seen)
            || node_gone && seen.fence == Fence::Stands && release::holder_free(seen);
        if gone {
            context.release(&*object).await?;
            return Ok(None);
        }
        if !seen.released && seen.fence == Fence::None && fence(&context, node) == Fence::Stands {
            let (state, left) = pulse(&context, node);
            // A node that renews its lease is not off, whatever its taints say.
            if state == HostNode::Alive {
                return Ok(left);
            }
            // As it was before it is asked for: what is heard from here on counts.
            let silent = context.unrenewed(node);
            if confirmed(&context, node).await? {
                let seen = json!({ "resourceVersion": object.resource_version() });
                let patch = json!({ "metadata": seen, "spec": { "fenced": true } });
                // It may be heard while this is on its way.
                context.merge_while(&*object, patch, silent).await?;
                return Ok(None);
            }
            // It was heard just now.
            if let (HostNode::Alive, left) = pulse(&context, node) {
                return Ok(left);
            }
        }
    }
    let volume = context.world.volumes.named(&object.spec.volume);
    let Some(volume) = volume.filter(|v| uid(&**v) == object.spec.volume_uid) else {
        if !deleting(&*object) && volume_is_gone(&context, &object).await? {
            context.delete_as_seen(&*object).await?;
        }
        return Ok(None);
    };
    let status = volume.status.clone().unwrap_or_default();
    // Forward only: an old cache of volumes must not give it back to a former host.
    let epoch = |host: &Option<Host>| host.as_ref().map_or(0, |host| host.epoch);
    if epoch(&status.controller) > epoch(&object.spec.host) {
        fields(&context, &object, json!({ "host": status.controller })).await?;
        return Ok(None);
    }
    // A size that no backend has yet may be taken back.
    if volume.node_bytes() != object.spec.expand_bytes && !deleting(&*object) {
        fields(&context, &object, json!({ "expandBytes": volume.node_bytes() })).await?;
    }
    Ok(None)
}

/// Asks the server itself for the volume: a cache that shows none may be older than the attachment. A controller whose
/// caches are behind may have made the attachment after the volume went; nobody else would ever close it.
async fn volume_is_gone(context: &Context, object: &VolumeAttachment) -> Result<bool, Failure> {
    let path = Volume::url_path(&(), None);
    let found: Option<Value> = context.read(&path, &object.spec.volume).await?;
    Ok(found.is_none_or(|volume| volume["metadata"]["uid"].as_str() != Some(&object.spec.volume_uid)))
}

/// Writes fields of the spec, unless somebody wrote since the object was read: a later attachment of the name, too, has
/// another version.
pub(crate) async fn fields(
    context: &Context,
    object: &VolumeAttachment,
    spec: Value,
) -> Result<VolumeAttachment, Failure> {
    let patch = json!({ "metadata": { "resourceVersion": object.resource_version() }, "spec": spec });
    context.merge(object, patch).await
}

/// What is seen of an attachment on its way out.
pub(crate) fn leaving(attachment: &VolumeAttachment) -> Leaving {
    let status = attachment.status.clone().unwrap_or_default();
    let uid = uid(attachment);
    let said = status.controller.map(|c| (c.attached, c.epoch));
    Leaving {
        released: !uid.is_empty() && status.node.is_some_and(|n| n.released_uid == uid),
        fence: if attachment.spec.fenced && deleting(attachment) { Fence::Stands } else { Fence::None },
        attach_required: attachment.spec.attach_required,
        attached: release::attached(
            deleting(attachment),
            attachment.spec.host.as_ref().map(|h| h.epoch),
            said,
        ),
        used: !attachment.spec.allocations.is_empty(),
    }
}

/// Asks the API itself whether the fence holds: the attachment is closed by now, so a daemon that registers a new boot
/// after this answer finds it closed.
async fn confirmed(context: &Context, node: &str) -> Result<bool, Failure> {
    if context.world.nodes.named(node).is_none() {
        let there: Option<Value> = context.read(&Node::url_path(&(), None), node).await?;
        return Ok(there.is_none());
    }
    let boot = boot_id(&context.world, node);
    let agent: Option<NodeAgent> = context.read(&NodeAgent::url_path(&(), None), node).await?;
    let told = agent.and_then(|a| a.status).map(|s| s.boot_id).unwrap_or_default();
    if !(told.is_empty() || told == boot) {
        return Ok(false);
    }
    // It may have been heard since its silence was asked for.
    let path = Lease::url_path(&(), Some(&context.options.system_namespace));
    let age = context.lease_age(node).map_or(Duration::ZERO, |(age, _)| age);
    if let Some(lease) = context.read::<Lease>(&path, node).await? {
        context.lease_asked(node, &lease, age);
    }
    Ok(fence(context, node) == Fence::Stands && pulse(context, node).0 != HostNode::Alive)
}
