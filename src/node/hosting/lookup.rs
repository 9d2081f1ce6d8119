//! What the host of a volume asks the driver before it asks again for what was not found (CO-ERR-05).
use kube::ResourceExt as _;

use super::super::context::Node;
use super::super::lookup::{record, standing, with};
use super::super::mounts::{BLOCKED, in_words};
use super::super::requests;
use super::{Attempt, measured};
use crate::api::Volume;
use crate::api::volume::Content;
use crate::csi::{Failure, Rpc, proto};
use crate::plan::Reason;

/// A failure of a call about the volume; one that was not found with what our record and the driver say of it.
pub(super) async fn of_volume(
    node: &Node,
    names: Attempt<'_>,
    (name, handle): (&str, &str),
    failure: Failure,
) -> Failure {
    if !failure.is_not_found() {
        return failure;
    }
    // What is rare does not make every step's future larger.
    let found = Box::pin(async {
        match record(node, name, handle).await {
            Ok(volume) => asked(node, names, (&volume, handle), failure.rpc).await,
            Err(found) => found,
        }
    });
    let found = found.await;
    with(failure, &found)
}

/// A failure to make a volume out of another one or a snapshot; where that was not found, with what our record says of it
/// (CO-CTRL-14).
pub(super) async fn of_source(node: &Node, content: Option<&Content>, failure: Failure) -> Failure {
    let Some(content) = content.filter(|_| failure.is_not_found()) else { return failure };
    let (handle, name) = (&content.handle, named(content));
    let found = match Box::pin(source(node, content)).await {
        Ok(Some(())) => standing(&name, handle),
        Ok(None) => format!("{name} is gone, or another one by now"),
        Err(error) => format!("{name} could not be read: {}", in_words(&error)),
    };
    with(failure, &found)
}

/// What a volume is to be filled from, if it is surely gone.
pub(super) async fn gone(node: &Node, content: &Content) -> Option<Reason> {
    let found = Box::pin(source(node, content)).await;
    matches!(found, Ok(None)).then(|| Reason::SourceGone { what: named(content) })
}

fn named(content: &Content) -> String {
    match content.snapshot.as_str() {
        "" => format!("Volume \"{}\"", content.volume),
        snapshot => format!("Snapshot \"{snapshot}\""),
    }
}

/// Whether the object that a volume is to be filled from is there, as the server itself has it.
async fn source(node: &Node, content: &Content) -> Result<Option<()>, kube::Error> {
    let uid = if content.snapshot.is_empty() {
        node.volume(&content.volume).await?.and_then(|volume| volume.uid())
    } else {
        node.snapshot(&content.snapshot).await?.and_then(|snapshot| snapshot.uid())
    };
    Ok(uid.filter(|uid| *uid == content.uid).map(drop))
}

/// What the driver says of it. Where it has no call that only looks, it is asked whether the volume can be used as it is.
async fn asked(node: &Node, names: Attempt<'_>, (volume, handle): (&Volume, &str), of: Rpc) -> String {
    let plugin = names.serving;
    let told = |rpc: Rpc, answer: Result<(), Failure>| match answer {
        Ok(()) => match of {
            Rpc::ControllerPublishVolume | Rpc::ControllerUnpublishVolume => {
                format!("{rpc} finds the volume, so it is the node that the driver does not know")
            }
            _ => format!("{rpc} finds the volume"),
        },
        Err(failure) if failure.is_not_found() => {
            format!(
                "{rpc} does not find the volume {handle:?} either: it is gone at the backend, or another one"
            )
        }
        Err(failure) => format!("whether it is there was not to be learned: {failure}"),
    };
    if plugin.controller.get_volume {
        let request = proto::ControllerGetVolumeRequest { volume_id: handle.to_owned() };
        let look = |terms| plugin.client.controller_get_volume(request, terms);
        let answer = measured(node, names, "ControllerGetVolume", look).await.map(drop);
        // CSI calls it alpha, and what is alpha may be switched off.
        if !answer.as_ref().is_err_and(|failure| failure.is_unsent() || failure.is_unimplemented()) {
            return told(Rpc::ControllerGetVolume, answer);
        }
    }
    // A driver without the call is not asked again before it comes anew (CO-ERR-12).
    let step = format!("{}/lookup", names.key);
    if of == Rpc::ValidateVolumeCapabilities || node.retry.remaining(&step).is_some() {
        return standing(&format!("Volume \"{}\"", volume.name_any()), handle);
    }
    let asker = format!("volumes/{}", volume.name_any());
    let secrets = match node.secrets(&asker, volume.spec.secrets.provision.as_ref()).await {
        Ok(secrets) => secrets,
        Err(reason) => return format!("whether it is there was not to be learned: {reason}"),
    };
    let context = volume.status.as_ref().map(|status| status.context.clone()).unwrap_or_default();
    let newer_modes = requests::Modes::of(plugin.controller.single_node_multi_writer);
    let request = requests::validate(&volume.spec, handle, &context, secrets, newer_modes);
    let look = |terms| plugin.client.validate_volume_capabilities(request, terms);
    let answer = measured(node, names, "ValidateVolumeCapabilities", look).await.map(drop);
    if answer.as_ref().is_err_and(Failure::is_unimplemented) {
        node.retry.failed(&step, "UNIMPLEMENTED".to_owned());
        node.retry.block(&step, BLOCKED);
    }
    told(Rpc::ValidateVolumeCapabilities, answer)
}
