//! What the backend of a plugin has, for a person who asks at one of its instances: page by page, as the instance's status tells it.
//!
//! A key of its own in the queue: a list that hangs holds up nothing else. Nothing follows of it here; who asked compares
//! (`wharfline volume audit`).
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use kube::{Resource, ResourceExt};
use serde::{Deserialize, Serialize};

use super::context::Node;
use super::registry::{Instance, InstanceKey};
use super::requests;
use super::writes::{Guard, Part};
use crate::api::audit::{Audit, AuditList, AuditRequest, BackendSnapshot, BackendVolume};
use crate::api::definitions::AUDIT_PART;
use crate::api::meta::SecretRef;
use crate::api::{PluginInstance, Snapshot, quantity};
use crate::csi::{Failure, Terms, check, proto};
use crate::plan::supervise::Process;

const AUDIT: Part = Part { name: "audit", fields: AUDIT_PART, epoch: None, guard: Guard::Any };

/// Entries asked for in one call, as long as they are small.
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
    let AuditRequest { id, list, starting_token } = asked.clone();
    let blank = Audit { id, list, starting_token, time: Some(node.now()), ..Audit::default() };
    let told = match able(node, key, list) {
        Err(why) => Err(why.to_owned()),
        Ok(instance) => {
            let asking = Asking { node, object, instance: &instance };
            match list {
                AuditList::Volumes => asking.volumes(asked).await.map(|(volumes, next_token)| Audit {
                    volumes,
                    next_token,
                    ..blank.clone()
                }),
                AuditList::Snapshots => asking.snapshots(asked).await.map(
                    |OfSecret { secret, unlisted, snapshots, next_token }| Audit {
                        secret,
                        unlisted,
                        snapshots,
                        next_token,
                        ..blank.clone()
                    },
                ),
            }
        }
    };
    told.unwrap_or_else(|message| Audit { message, ..blank })
}

/// The instance, if it can be asked.
fn able(node: &Node, key: &InstanceKey, list: AuditList) -> Result<Instance, &'static str> {
    let well = |instance: &Instance| {
        instance.admitted && !instance.draining && instance.progress.healthy_since.is_some()
    };
    let instance = node.registry.get(key).filter(well).ok_or("the instance is not ready")?;
    let can = instance.progress.fingerprint.as_ref().map(|known| known.controller).unwrap_or_default();
    let (lists, cannot) = match list {
        AuditList::Volumes => (can.list_volumes, "the plugin does not list its volumes (LIST_VOLUMES)"),
        AuditList::Snapshots => {
            (can.list_snapshots, "the plugin does not list its snapshots (LIST_SNAPSHOTS)")
        }
    };
    if instance.role.controller() && lists { Ok(instance) } else { Err(cannot) }
}

/// A part of a list, and where the next one begins.
type Page<T> = (Vec<T>, String);

/// Who may read a Secret, and the Secret; without one, none goes with the call.
type Reader = (String, Option<SecretRef>);

/// A part of the list of snapshots, with one Secret.
#[derive(Default)]
struct OfSecret {
    /// Which one, as `namespace/name`; nothing at the end of all.
    secret: Option<String>,
    /// Why there are none, or no more, with this one.
    unlisted: String,
    snapshots: Vec<BackendSnapshot>,
    next_token: String,
}

/// Why there is no page.
enum Trouble {
    Call(Failure),
    Answer(check::Fault),
}

impl From<check::Fault> for Trouble {
    fn from(fault: check::Fault) -> Self {
        Self::Answer(fault)
    }
}

/// An instance that is asked.
struct Asking<'a> {
    node: &'a Node,
    object: &'a PluginInstance,
    instance: &'a Instance,
}

impl Asking<'_> {
    fn terms(&self, method: &'static str) -> Terms {
        let deadline = self.node.deadline(&self.instance.plugin, method);
        let alpha = self.node.alpha(&self.instance.plugin);
        Terms { deadline, attempt: 1, lease: None, gate: None, alpha }
    }

    async fn follow<T>(
        &self,
        method: &'static str,
        call: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Trouble> {
        let about = Some(self.object.object_ref(&()));
        let deadline = self.node.deadline(&self.instance.plugin, method);
        self.node.events.follow(about, (method, deadline), call).await.map_err(Trouble::Call)
    }

    async fn volumes(&self, asked: &AuditRequest) -> Result<Page<BackendVolume>, String> {
        const METHOD: &str = "ListVolumes";
        let known = self.instance.progress.fingerprint.as_ref();
        let can = known.map(|known| known.controller).unwrap_or_default();
        let ask = |starting_token, max_entries| {
            let request = proto::ListVolumesRequest { max_entries, starting_token };
            let call = self.instance.client.list_volumes(request, self.terms(METHOD));
            async move {
                let answer = self.follow(METHOD, call).await?;
                let volumes: Result<_, _> = answer.entries.iter().map(|entry| volume(&can, entry)).collect();
                Ok((volumes?, answer.next_token))
            }
            .boxed()
        };
        paged(METHOD, &asked.starting_token, ask).await
    }

    /// With each Secret of the snapshots whose calls are made here, one after the other: a plugin may want one and list what is of
    /// that alone, and none but those of snapshots are given for it. One that cannot be read, or that the plugin refuses, says so, and
    /// the others are asked all the same.
    async fn snapshots(&self, asked: &AuditRequest) -> Result<OfSecret, String> {
        let (from, token) = asked.starting_token.split_once(' ').unwrap_or_default();
        let all = self.secrets();
        let gone = || Err("no Snapshot whose calls are made here has it any more".to_owned());
        let (name, listed) = match all.range(from.to_owned()..).next() {
            Some((name, _)) if name != from && !token.is_empty() => (from, gone()),
            None if !token.is_empty() => (from, gone()),
            Some((name, reader)) => (name.as_str(), self.with_secret(reader, token).await),
            None => return Ok(OfSecret::default()),
        };
        let next = all.range((Bound::Excluded(name.to_owned()), Bound::Unbounded)).next();
        let next = next.map(|(next, _)| format!("{next} ")).unwrap_or_default();
        let secret = Some(name.to_owned());
        match listed {
            Ok((snapshots, token)) => {
                let next_token = if token.is_empty() { next } else { format!("{name} {token}") };
                Ok(OfSecret { secret, unlisted: String::new(), snapshots, next_token })
            }
            // Without any Secret that is all there is to be asked.
            Err(why) if name.is_empty() && all.len() < 2 => Err(why),
            Err(unlisted) => Ok(OfSecret { secret, unlisted, snapshots: Vec::new(), next_token: next }),
        }
    }

    async fn with_secret(
        &self,
        (asker, secret): &Reader,
        token: &str,
    ) -> Result<Page<BackendSnapshot>, String> {
        const METHOD: &str = "ListSnapshots";
        let secrets = self.node.secrets(asker, secret.as_ref()).await.map_err(|reason| reason.to_string())?;
        paged(METHOD, token, |starting_token, max_entries| {
            let secrets = secrets.clone();
            let request =
                proto::ListSnapshotsRequest { max_entries, starting_token, secrets, ..Default::default() };
            let call = self.instance.client.list_snapshots(request, self.terms(METHOD));
            async move {
                let answer = self.follow(METHOD, call).await?;
                let snapshots: Result<_, _> =
                    answer.entries.iter().map(|entry| snapshot(entry.snapshot.as_ref())).collect();
                Ok((snapshots?, answer.next_token))
            }
            .boxed()
        })
        .await
    }

    /// The Secrets of the plugin's Snapshots that this node makes the calls of, each as `namespace/name` with one of those who may
    /// read it. None goes with the call of those that have none, or where there are no Snapshots.
    fn secrets(&self) -> BTreeMap<String, Reader> {
        let of = |snapshot: &Snapshot| {
            let of = snapshot.status.as_ref()?.of.as_ref()?;
            if of.plugin != self.instance.plugin {
                return None;
            }
            let secret = of.secret.clone();
            let namespace = snapshot.namespace().unwrap_or_default();
            let name = secret.as_ref().map(|secret| format!("{}/{}", secret.namespace, secret.name));
            Some((
                name.unwrap_or_default(),
                (format!("snapshots/{namespace}/{}", snapshot.name_any()), secret),
            ))
        };
        let all = self.node.caches.snapshots.all();
        let all: BTreeMap<_, _> = all.iter().filter_map(|snapshot| of(snapshot)).collect();
        if all.is_empty() { [(String::new(), (String::new(), None))].into() } else { all }
    }
}

/// Why a page that was to have one entry cannot be passed on.
fn too_much(method: &str, entries: usize, size: usize) -> String {
    match entries {
        1 => format!("{method}: one entry takes {size} bytes"),
        _ => format!("{method}: {entries} entries came, of {size} bytes, where one was asked for"),
    }
}

/// As many pages from there as an answer may hold.
async fn paged<'a, T: Serialize>(
    method: &'static str,
    starting_token: &str,
    ask: impl Fn(String, i32) -> BoxFuture<'a, Result<Page<T>, Trouble>>,
) -> Result<Page<T>, String> {
    let mut pages = check::Pages::from(starting_token);
    let (mut all, mut bytes, mut most) = (Vec::new(), 0, PAGE);
    let unusable = |fault: check::Fault| format!("{method}: {fault}");
    loop {
        match ask(pages.token().to_owned(), most).await {
            Ok((page, next_token)) => {
                let size = serde_json::to_vec(&page).map_or(0, |text| text.len());
                if bytes + size > MOST {
                    match (all.is_empty(), most) {
                        (false, _) => return Ok((all, pages.token().to_owned())),
                        (true, 1) => return Err(too_much(method, page.len(), size)),
                        (true, _) => most /= 2,
                    }
                    continue;
                }
                bytes += size;
                let more = pages.took(&next_token, page.len(), most);
                all.extend(page);
                if !more.map_err(unusable)? || bytes >= ENOUGH {
                    return Ok((all, pages.token().to_owned()));
                }
            }
            // It does not know its own token any more (CO-CTRL-66): what went before is another list.
            Err(Trouble::Call(failure))
                if failure.is_aborted() && starting_token.is_empty() && pages.restart().is_ok() =>
            {
                (all, bytes) = (Vec::new(), 0);
            }
            Err(Trouble::Call(failure)) => return Err(said(&failure)),
            Err(Trouble::Answer(fault)) => return Err(unusable(fault)),
        }
    }
}

fn said(failure: &Failure) -> String {
    let begun_anew = if failure.is_aborted() { "; its list has to be begun anew" } else { "" };
    format!("{failure}{begun_anew}")
}

fn snapshot(entry: Option<&proto::Snapshot>) -> Result<BackendSnapshot, check::Fault> {
    let listed = check::snapshot_listed("", "", entry)?;
    Ok(BackendSnapshot {
        handle: listed.snapshot_id.clone(),
        source: listed.source_volume_id.clone(),
        group: listed.group_snapshot_id.clone(),
        size: told_size(listed.size_bytes),
        time: requests::time(listed.creation_time),
    })
}

fn told_size(bytes: i64) -> String {
    Some(bytes).filter(|bytes| *bytes > 0).map(quantity::display).unwrap_or_default()
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
        size: told_size(listed.capacity_bytes),
        context: listed.volume_context.clone(),
        topology: listed.accessible_topology.iter().map(|of| of.segments.clone()).collect(),
        node_ids: check::published_nodes(can, told).map(<[String]>::to_vec),
        abnormal: wrong.map(|condition| condition.message).unwrap_or_default(),
    })
}
