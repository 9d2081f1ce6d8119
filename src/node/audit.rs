//! What the backend of a plugin has, for a person who asks at one of its instances: page by page, as the instance's status tells it.
//!
//! A key of its own in the queue: a list that hangs holds up nothing else. Nothing follows of it here; who asked compares
//! (`wharfline volume audit`).
use std::sync::Arc;
use std::time::Duration;

use kube::{Resource, ResourceExt};
use serde::{Deserialize, Serialize};

use super::context::Node;
use super::registry::{Instance, InstanceKey};
use super::writes::{Guard, Part};
use crate::api::PluginInstance;
use crate::api::audit::{Audit, AuditRequest, BackendVolume};
use crate::api::definitions::AUDIT_PART;
use crate::api::quantity;
use crate::csi::{Failure, Terms, check, proto};
use crate::plan::supervise::Process;

const AUDIT: Part = Part { name: "audit", fields: AUDIT_PART, epoch: None, guard: Guard::Any };

/// Volumes asked for in one call, as long as their entries are small.
const PAGE: i32 = 100;
/// Bytes after which an answer ends, and that it has at most: it goes through the API, which takes 1 MiB.
const ENOUGH: usize = 256 << 10;
const MOST: usize = 768 << 10;

/// The field of the status that this file writes.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct AuditField {
    #[serde(skip_serializing_if = "Option::is_none")]
    audit: Option<Audit>,
}

/// Whether an instance is asked something, or tells an answer still.
pub(super) fn concerns(instance: &PluginInstance) -> bool {
    instance.spec.audit.is_some() || instance.status.as_ref().is_some_and(|status| status.audit.is_some())
}

/// Answers what an instance is asked, once, and forgets the answer when the question is taken back.
pub(super) async fn answer(node: &Arc<Node>, key: &InstanceKey) -> Option<Duration> {
    let object = node.caches.instances.one(&format!("{}/{}", key.allocation, key.task))?;
    let told = object.status.as_ref().and_then(|status| status.audit.as_ref());
    let uid = object.uid().unwrap_or_default();
    let field = match (&object.spec.audit, told) {
        (None, None) => return None,
        (None, Some(_)) => AuditField::default(),
        (Some(asked), Some(told)) if told.answers(asked) => return None,
        (Some(asked), _) => {
            // What the server does not have yet is written again, and not asked for again.
            let said = node.said::<AuditField>(&uid, &AUDIT).and_then(|said| said.audit);
            let audit = match said.filter(|said| said.answers(asked)) {
                Some(said) => said,
                // A daemon that has just begun has not asked it yet who it is; looked at again when it has.
                None if is_undecided(node, key) => return None,
                None => page(node, key, &object, asked).await,
            };
            AuditField { audit: Some(audit) }
        }
    };
    let written = node.write_status(&*object, &AUDIT, &field).await;
    node.after_write(&format!("pi/{}/{}/audit", key.allocation, key.task), written)
}

fn is_undecided(node: &Node, key: &InstanceKey) -> bool {
    match node.registry.get(key) {
        Some(instance) => instance.progress.is_undecided(),
        None => node.tasks.process(&key.allocation, &key.task) == Process::Running,
    }
}

async fn page(node: &Node, key: &InstanceKey, object: &PluginInstance, asked: &AuditRequest) -> Audit {
    let (volumes, next_token, message) = match able(node, key) {
        Err(why) => (Vec::new(), String::new(), why.to_owned()),
        Ok(instance) => match list(node, object, &instance, asked).await {
            Ok((volumes, next_token)) => (volumes, next_token, String::new()),
            Err(message) => (Vec::new(), String::new(), message),
        },
    };
    let AuditRequest { id, starting_token } = asked.clone();
    Audit { id, starting_token, time: Some(node.now()), volumes, next_token, message }
}

/// The instance, if it can be asked.
fn able(node: &Node, key: &InstanceKey) -> Result<Instance, &'static str> {
    let well = |instance: &Instance| {
        instance.admitted && !instance.draining && instance.progress.healthy_since.is_some()
    };
    let instance = node.registry.get(key).filter(well).ok_or("the instance is not ready")?;
    let known = instance.progress.fingerprint.as_ref();
    if known.is_some_and(|known| instance.role.controller() && known.controller.list_volumes) {
        Ok(instance)
    } else {
        Err("the plugin does not list its volumes (LIST_VOLUMES)")
    }
}

async fn list(
    node: &Node,
    object: &PluginInstance,
    instance: &Instance,
    asked: &AuditRequest,
) -> Result<(Vec<BackendVolume>, String), String> {
    let can = instance.progress.fingerprint.as_ref().map(|known| known.controller).unwrap_or_default();
    let deadline = node.deadline(&instance.plugin, "ListVolumes");
    let mut pages = check::Pages::from(&asked.starting_token);
    let (mut volumes, mut bytes, mut most) = (Vec::new(), 0, PAGE);
    loop {
        let request =
            proto::ListVolumesRequest { max_entries: most, starting_token: pages.token().to_owned() };
        let alpha = node.alpha(&instance.plugin);
        let terms = Terms { deadline, attempt: 1, lease: None, gate: None, alpha };
        let call = instance.client.list_volumes(request, terms);
        let about = object.object_ref(&());
        match node.events.follow(Some(about), ("ListVolumes", deadline), call).await {
            Ok(answer) => {
                let page = page_of(&can, &answer).map_err(|fault| format!("ListVolumes: {fault}"))?;
                let size = serde_json::to_vec(&page).map_or(0, |text| text.len());
                if bytes + size > MOST {
                    match (volumes.is_empty(), most) {
                        (false, _) => return Ok((volumes, pages.token().to_owned())),
                        (true, 1) => return Err(format!("ListVolumes: one volume takes {size} bytes")),
                        (true, _) => most /= 2,
                    }
                    continue;
                }
                bytes += size;
                volumes.extend(page);
                let more = pages.took(&answer.next_token, answer.entries.len(), most);
                if !more.map_err(|fault| format!("ListVolumes: {fault}"))? || bytes >= ENOUGH {
                    return Ok((volumes, pages.token().to_owned()));
                }
            }
            // It does not know its own token any more (CO-CTRL-66): what went before is another list.
            Err(failure)
                if failure.is_aborted() && asked.starting_token.is_empty() && pages.restart().is_ok() =>
            {
                (volumes, bytes) = (Vec::new(), 0);
            }
            Err(failure) => return Err(said(&failure)),
        }
    }
}

fn page_of(
    can: &crate::csi::ControllerCapabilities,
    answer: &proto::ListVolumesResponse,
) -> Result<Vec<BackendVolume>, check::Fault> {
    answer.entries.iter().map(|entry| volume(can, entry)).collect()
}

fn said(failure: &Failure) -> String {
    let begun_anew = if failure.is_aborted() { "; its list has to be begun anew" } else { "" };
    format!("{failure}{begun_anew}")
}

fn volume(
    can: &crate::csi::ControllerCapabilities,
    entry: &proto::list_volumes_response::Entry,
) -> Result<BackendVolume, check::Fault> {
    let listed = check::listed(entry)?;
    let told = entry.status.as_ref().map(|status| status.published_node_ids.as_slice());
    let wrong = check::Condition::listed(entry).filter(|condition| condition.abnormal);
    Ok(BackendVolume {
        handle: listed.volume_id.clone(),
        size: Some(listed.capacity_bytes)
            .filter(|bytes| *bytes > 0)
            .map(quantity::display)
            .unwrap_or_default(),
        context: listed.volume_context.clone(),
        topology: listed.accessible_topology.iter().map(|of| of.segments.clone()).collect(),
        node_ids: check::published_nodes(can, told).map(<[String]>::to_vec),
        abnormal: wrong.map(|condition| condition.message).unwrap_or_default(),
    })
}
