//! Snapshots that are taken by the clock: made when they fall due, deleted when enough later ones are there.
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use serde_json::json;

use super::cache::name_of;
use super::context::Context;
use super::drive::Outcome;
use super::facts::{deleting, uid, with_condition};
use super::world::World;
use super::write::Failure;
use crate::api::meta::{Condition, HANDLE_ENDING, HANDLE_SHARED, READY, Time, Truth};
use crate::api::quantity;
use crate::api::schedule::{Calendar, SCHEDULE, SCHEDULE_UID, SCHEDULED_AT};
use crate::api::{Snapshot, SnapshotSchedule, SnapshotScheduleStatus};
use crate::plan::schedule::{self, Due, Picture, Since};

/// The longest sleep: the clock of the wall may be set meanwhile.
const LONGEST: Duration = Duration::from_secs(3600);

/// One look at one schedule.
pub(crate) async fn reconcile(object: Arc<SnapshotSchedule>, context: Arc<Context>) -> Outcome {
    if deleting(&*object) {
        return Ok(None);
    }
    if let Some(wait) = context.behind::<SnapshotSchedule>(&name_of(&*object)) {
        return Ok(Some(wait));
    }
    let spec = &object.spec;
    let calendar = match Calendar::new(&spec.schedule, &spec.time_zone) {
        Ok(calendar) => calendar,
        // It was one when it was taken in: the time zone is not known here.
        Err(why) => {
            let told = Condition::new(READY, Truth::False, "Unreadable", format!("{}: {why}", spec.schedule));
            return say(&context, &object, object.status.clone().unwrap_or_default(), told)
                .await
                .map(|()| None);
        }
    };
    let now = context.now();
    let before = object.status.clone().unwrap_or_default();
    let current = if spec.suspend { String::new() } else { format!("{} {}", spec.schedule, spec.time_zone) };
    let mut status = before.clone();
    let said = before.since.map(|since| (since.0, before.schedule == current));
    let born = object.creation_timestamp().map_or(now.0, |born| born.0);
    let Since { at: since, anew } = schedule::since(said, (born, spec.suspend), now.0);
    status.since = Some(Time(since));
    status.schedule = current;
    let pictures = pictures(&context.world, &object);
    let last = if spec.suspend { None } else { calendar.last(since, now.0) };
    let mut told = match schedule::due(last, &pictures) {
        Due::Nothing => None,
        Due::PassOver(at, unfinished) => {
            status.since = Some(Time(at));
            let sentence = format!(
                "what fell due at {at} was passed over: snapshot \"{unfinished}\" is not ready, and none is taken beside it"
            );
            Some(Condition::new(READY, Truth::False, "Unfinished", sentence))
        }
        Due::Take(at) => Some(take(&context, &object, at, &mut status).await?),
    };
    // It was taken, and that could not be written.
    if let Some(at) = last.filter(|at| told.is_none() && since < *at) {
        let name = name_of_moment(&object, at);
        told = Some(taken(&name));
        noted(&mut status, at, name);
    }
    status.next_time = if spec.suspend { None } else { calendar.next(now.0).map(Time) };
    let told = told.unwrap_or_else(|| standing(&before, (spec.suspend, anew)));
    say(&context, &object, status.clone(), told).await?;
    thin_out(&context, &object, &pictures, now.0).await?;
    let left = status.next_time.map(|next| next.0.duration_since(now.0));
    let left = left.map(|left| Duration::try_from(left).unwrap_or_default());
    // What is kept for a time grows old while none is taken, too; and what falls due in more than four years does so in the end.
    let left = left.or_else(|| (!spec.suspend || spec.keep_for.is_some()).then_some(LONGEST));
    Ok(left.map(|left| left.clamp(Duration::from_millis(1), LONGEST)))
}

/// What it says while nothing falls due.
fn standing(before: &SnapshotScheduleStatus, (suspended, anew): (bool, bool)) -> Condition {
    let said = before.conditions.iter().find(|c| c.kind == READY);
    match said {
        _ if suspended => {
            Condition::new(READY, Truth::False, "Suspended", "spec.suspend is set: none is taken".to_owned())
        }
        // What was passed over stays so until the next one.
        Some(said) if !anew && said.reason != "Suspended" && said.reason != "Unreadable" => said.clone(),
        Some(_) | None => {
            Condition::new(READY, Truth::True, "Waiting", "waits until the next one falls due".to_owned())
        }
    }
}

fn taken(name: &str) -> Condition {
    Condition::new(READY, Truth::True, "Taken", format!("snapshot \"{name}\" was asked for"))
}

fn noted(status: &mut SnapshotScheduleStatus, at: Timestamp, name: String) {
    status.since = Some(Time(at));
    status.last_time = Some(Time(at));
    status.last_snapshot = name;
}

/// Makes the Snapshot of a moment. It has its name of that, so that it is made once, whoever looks.
async fn take(
    context: &Context,
    object: &SnapshotSchedule,
    at: Timestamp,
    status: &mut SnapshotScheduleStatus,
) -> Result<Condition, Failure> {
    let name = name_of_moment(object, at);
    let mut snapshot = Snapshot::new(&name, object.spec.template.spec.clone());
    let template = &object.spec.template.metadata;
    let (mut labels, mut annotations) = (template.labels.clone(), template.annotations.clone());
    labels.insert(SCHEDULE.to_owned(), object.name_any());
    annotations.insert(SCHEDULED_AT.to_owned(), at.to_string());
    annotations.insert(SCHEDULE_UID.to_owned(), uid(object));
    snapshot.metadata.namespace = object.namespace();
    snapshot.metadata.labels = Some(labels);
    snapshot.metadata.annotations = Some(annotations);
    if let Some(wait) = context.behind::<Snapshot>(&name_of(&snapshot)) {
        return Err(Failure::Unsaid(wait));
    }
    if context.world.snapshots.get(&name_of(&snapshot)).is_some() {
        status.since = Some(Time(at));
        let sentence = format!(
            "what fell due at {at} was passed over: there is a snapshot \"{name}\" of somebody else's"
        );
        return Ok(Condition::new(READY, Truth::False, "NameTaken", sentence));
    }
    match context.create(&snapshot).await {
        Ok(_) => {
            noted(status, at, name.clone());
            Ok(taken(&name))
        }
        Err(Failure::Refused { code, message, reason }) => {
            let sentence = format!("snapshot \"{name}\" cannot be made: {message}");
            let told = Condition::new(READY, Truth::False, "NotTaken", sentence);
            say(context, object, status.clone(), told).await?;
            Err(Failure::Refused { code, message, reason })
        }
        Err(failure) => Err(failure),
    }
}

/// What the Snapshot of a moment is called.
fn name_of_moment(object: &SnapshotSchedule, at: Timestamp) -> String {
    format!("{}-{}", object.name_any(), at.strftime("%Y%m%d-%H%M"))
}

/// What this schedule has taken: not what an earlier one of its name has, nor a copy of it.
fn pictures(world: &World, object: &SnapshotSchedule) -> Vec<Picture> {
    let namespace = object.namespace().unwrap_or_default();
    let all = world.snapshots.by(&format!("schedule:{namespace}/{}", object.name_any()));
    let picture = |snapshot: &Arc<Snapshot>| {
        let at = snapshot.annotations().get(SCHEDULED_AT)?.parse().ok()?;
        let own = snapshot.annotations().get(SCHEDULE_UID) == Some(&uid(object));
        if !own || snapshot.name_any() != name_of_moment(object, at) {
            return None;
        }
        let status = snapshot.status.as_ref();
        let copies = status.is_some_and(|status| !status.copies.is_empty());
        let name = snapshot.name_any();
        let named = !world.claims.names(&format!("from:{namespace}/{name}")).is_empty();
        // One that was given the handle of another one is none to go back to.
        let another =
            |c: &Condition| c.kind == READY && [HANDLE_SHARED, HANDLE_ENDING].contains(&c.reason.as_str());
        let ready = status.is_some_and(|status| status.ready && !status.conditions.iter().any(another));
        Some(Picture { name, at, ready, needed: copies || named, leaving: deleting(&**snapshot) })
    };
    all.iter().filter_map(picture).collect()
}

/// Deletes what is kept no longer.
async fn thin_out(
    context: &Context,
    object: &SnapshotSchedule,
    pictures: &[Picture],
    now: Timestamp,
) -> Result<(), Failure> {
    let spec = &object.spec;
    let age = spec.keep_for.as_deref().and_then(quantity::duration);
    let age = age.and_then(|age| SignedDuration::try_from(age).ok());
    let since = age.map(|age| now.saturating_sub(age).unwrap_or(Timestamp::MIN));
    let last = spec.keep_last.map(|last| last as usize);
    let namespace = object.namespace().unwrap_or_default();
    for name in schedule::surplus(last, since, pictures) {
        let Some(snapshot) = context.world.snapshots.get(&(namespace.clone(), name.to_owned())) else {
            continue;
        };
        context.delete_as_seen(&*snapshot).await?;
    }
    Ok(())
}

async fn say(
    context: &Context,
    object: &SnapshotSchedule,
    mut status: SnapshotScheduleStatus,
    condition: Condition,
) -> Result<(), Failure> {
    let condition = condition.of_generation(object.metadata.generation);
    status.conditions = with_condition(context, &status.conditions, condition);
    if object.status.as_ref() != Some(&status) {
        context.merge(object, json!({ "status": written(&status) })).await?;
    }
    Ok(())
}

/// Each field, also one that is to go.
fn written(status: &SnapshotScheduleStatus) -> serde_json::Value {
    json!({ "schedule": status.schedule, "since": status.since, "lastSnapshot": status.last_snapshot,
        "lastTime": status.last_time, "nextTime": status.next_time, "conditions": status.conditions })
}
