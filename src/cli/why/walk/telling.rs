//! What is going on at this moment, where no status can say it yet.
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Event;

use kube::ResourceExt;

use super::super::{Branch, Kind, Objects, State, Subject};
use super::{Walk, leaves};
use crate::api::allocation::{AllocationPhase, START_ANEW};
use crate::api::meta::{Call, Condition, Rung, is_of_another};
use crate::api::volume::VolumeAttachmentSpec;
use crate::api::{Allocation, AllocationStatus, Volume, VolumeAttachment};

/// The reason of the event that tells of a call which takes long.
const NO_ANSWER: &str = "NoAnswerYet";

/// After how long without an answer a call is told of, and how much later its event may be written.
const TOLD_AFTER: SignedDuration = SignedDuration::from_secs(5);

/// Adds the call that is under way about an object. Before it began, every other one that the object tells of had ended,
/// and it began [`TOLD_AFTER`] before it was told of.
pub(super) fn add_under_way<'c>(
    branch: &mut Branch,
    objects: &Objects,
    uid: Option<&str>,
    calls: impl IntoIterator<Item = &'c Call>,
) {
    if let Some(event) = under_way(objects, uid, calls) {
        branch.add(&format!("; {}", event.message.as_deref().unwrap_or_default()));
    }
}

/// Whether what was told of is a call that publishes.
pub(super) fn publishes(event: &Event) -> bool {
    event.action.as_deref() == Some("NodePublishVolume")
}

/// What was told of the call that is under way about an object.
pub(super) fn under_way<'o, 'c>(
    objects: &'o Objects,
    uid: Option<&str>,
    calls: impl IntoIterator<Item = &'c Call>,
) -> Option<&'o Event> {
    let about = |event: &&Event| {
        event.reason.as_deref() == Some(NO_ANSWER)
            && uid.is_some()
            && event.involved_object.uid.as_deref() == uid
    };
    let last = objects.events.iter().filter(about).max_by_key(|event| told_at(event));
    let (event, told) = last.and_then(|event| Some((event, told_at(event)?)))?;
    let over = |call: &Call| {
        let took = SignedDuration::from_millis(i64::try_from(call.duration_millis).unwrap_or(i64::MAX));
        let end = call.start_time.0.checked_add(took);
        Some(&call.method) == event.action.as_ref() && end.is_ok_and(|end| end > told - TOLD_AFTER)
    };
    (!calls.into_iter().any(over)).then_some(event)
}

/// What becomes of one that failed with its node: it stays where it was.
pub(super) fn how_to_leave_a_lost_node(allocation: &Allocation) -> String {
    let namespace = allocation.namespace().unwrap_or_default();
    let words = Subject::namespaced(Kind::Allocation, &namespace, &allocation.name_any()).words("");
    format!(
        "`wharfline delete {words}`, and apply it again; with `onNodeLost: Rebind` it goes elsewhere by itself"
    )
}

impl Walk<'_> {
    /// A volume that is up on its node, and whose driver has not answered yet to a call for one of its users.
    pub(super) fn add_publishing(&self, branch: &mut Branch, attachment: &VolumeAttachment) {
        let spec = &attachment.spec;
        let on_its_way = |allocation: &Allocation, published: Rung| {
            let ended =
                allocation.status.as_ref().and_then(|s| s.phase).is_some_and(AllocationPhase::terminal);
            published == Rung::Unknown || published == Rung::Down && !ended && !leaves(allocation)
        };
        for allocation in self.allocations.values() {
            let Some(status) = allocation.status.as_ref().filter(|s| s.node_name == spec.node_name) else {
                continue;
            };
            let mut publications = status.volumes.iter().filter(|v| v.volume == spec.volume).peekable();
            // Of the first one nothing is written before it is answered, where nothing was staged.
            let first = publications.peek().is_none()
                && spec.allocations.iter().any(|uid| allocation.uid().as_ref() == Some(uid));
            if !(first && on_its_way(allocation, Rung::Down)
                || publications.any(|v| on_its_way(allocation, v.published)))
            {
                continue;
            }
            let node = attachment.status.as_ref().and_then(|status| status.node.as_ref());
            let ended = node.map(|node| node.calls.as_slice()).unwrap_or_default();
            let call = under_way(self.objects, attachment.uid().as_deref(), ended);
            let of_user = |action: &str| ["NodePublishVolume", "NodeUnpublishVolume"].contains(&action);
            if let Some(event) = call.filter(|event| event.action.as_deref().is_some_and(of_user)) {
                branch.state = State::Blocked;
                branch.name_reason(NO_ANSWER);
                branch.add(&format!("; {}", event.message.as_deref().unwrap_or_default()));
                break;
            }
        }
    }
}

/// How to do what the message of a lost or dead mount says brings it back; nothing where it says something else.
pub(super) fn how_to_start_anew(allocation: &Allocation, told: Option<&Condition>) -> String {
    if !told.is_some_and(|condition| condition.message.contains(START_ANEW)) {
        return String::new();
    }
    let words = Subject::namespaced(
        Kind::Allocation,
        &allocation.namespace().unwrap_or_default(),
        &allocation.name_any(),
    )
    .words("");
    let patch = |stop: bool| format!("`wharfline patch {words} -p '{{\"spec\":{{\"stop\":{stop}}}}}'`");
    format!(
        "{}, and {} once it is Stopped: it begins again on fresh mounts (onStaleMount has it done by itself)",
        patch(true),
        patch(false)
    )
}

/// When an event was told last.
fn told_at(event: &Event) -> Option<Timestamp> {
    let series =
        event.series.as_ref().and_then(|series| series.last_observed_time.as_ref()).map(|time| time.0);
    let last = event.last_timestamp.as_ref().map(|time| time.0);
    series.max(last).max(event.event_time.as_ref().map(|time| time.0))
}

/// Adds why a task could not be started at all, and when that is tried again: it has no end of its own to tell of.
pub(super) fn add_not_started(branch: &mut Branch, status: &AllocationStatus) {
    let failed = |reason: &str| matches!(reason, "StartFailed" | "SubPathUnusable" | "ClearFailed");
    let told = status.tasks.iter().find_map(|task| {
        let last = task.events.last().filter(|event| failed(&event.reason))?;
        Some((task, &last.message))
    });
    let Some((task, message)) = told else { return };
    branch.next = branch.next.or(task.next_attempt_time);
    if !branch.text.contains(message.as_str()) {
        branch.add(&format!("; task {} is not started: {message}", task.name));
    }
}

/// How far a volume has come on a node that stages or publishes it.
pub(super) fn on_its_way(spec: &VolumeAttachmentSpec, staged: Rung) -> String {
    let node = &spec.node_name;
    match (spec.attach_required, spec.stage_required) {
        (true, true) if staged != Rung::Up => format!("attached to {node}, not staged"),
        (false, true) if staged != Rung::Up => format!("not staged on {node}"),
        (_, true) => format!("staged on {node}, not published"),
        (true, false) => format!("attached to {node}, not published"),
        (false, false) => format!("not published on {node}"),
    }
}

/// What to do about a volume in whose place another one of its handle is used, or that would take the data of another one away; whether
/// its claim is there, and what is being deleted `under` it.
pub(super) fn how_to_part(volume: &Volume, claimed: bool, under: Option<&Volume>) -> String {
    let name = volume.name_any();
    let retain = format!(
        "`wharfline patch volume/{name} --type merge -p '{{\"spec\": {{\"reclaimPolicy\": \"Retain\"}}}}'`"
    );
    let goes = volume.metadata.deletion_timestamp.is_some();
    if volume.status.as_ref().is_some_and(|status| is_of_another(&status.conditions)) {
        let of = volume
            .spec
            .claim_ref
            .as_ref()
            .filter(|_| claimed)
            .map(|of| format!("`wharfline delete volumeclaim/{} -n {}`", of.name, of.namespace));
        let what = of.unwrap_or_else(|| format!("`wharfline delete volume/{name}`"));
        return format!(
            "{what}, and make it anew once the driver is corrected: nothing is deleted at the backend"
        );
    }
    match (goes, volume.spec.is_kept()) {
        (false, true) if let Some(under) = under => {
            let under = under.name_any();
            format!(
                "to use what is in it: `wharfline patch volume/{under} --type merge -p '{{\"spec\": {{\"reclaimPolicy\": \"Retain\"}}}}'`; \
                 without this one it is deleted with volume/{under}"
            )
        }
        (false, true) => format!(
            "one of the two has to go: `wharfline delete volume/{name}` forgets this one, and its data stays while the other is there"
        ),
        (false, false) => format!(
            "one of the two has to go: the one that the message names, or this one, and that its data stays for the other: {retain}, and \
             delete what it is for"
        ),
        (true, _) => {
            format!("delete the one that the message names, or leave its data to that one: {retain}")
        }
    }
}

/// How a volume is used again that was kept after its claim.
pub(super) fn how_to_use_again(volume: &Volume) -> String {
    let name = volume.name_any();
    let patch =
        |spec: &str| format!("`wharfline patch volume/{name} --type merge -p '{{\"spec\": {spec}}}'`");
    let free = patch("{\"claimRef\": null}");
    let told = format!(
        "to use it again: {free}, and a claim with spec.volumeName: {name}; to forget it and keep its data: `wharfline delete \
         volume/{name}`"
    );
    if volume.spec.source.existing.is_some() {
        return told;
    }
    let delete = patch("{\"reclaimPolicy\": \"Delete\"}");
    format!("{told}; to delete it with its data: {delete}")
}
