//! `describe`: everything that an object says of itself, its last CSI calls and its events, in reading order.
//!
//! Works for every kind alike: conditions become a table, every list called `calls` is gathered into another, the
//! rest is shown as YAML.
use std::fmt::Write as _;

use jiff::Timestamp;
use serde_json::Value;

use super::{events, fullness};
use crate::cli::age::{millis, since, time_of};
use crate::cli::args::Describe;
use crate::cli::failure::{Exit, Failure};
use crate::cli::manifest;
use crate::cli::merge::LAST_APPLIED;
use crate::cli::output::with_kind;
use crate::cli::session::{Session, Target, selection};
use crate::cli::table;
use crate::cli::wire::Form;

pub(crate) async fn run(session: &mut Session<'_>, args: &Describe) -> Result<(), Failure> {
    let chosen = &args.selection;
    let mut described = 0;
    for Target { resource, name } in session.targets(&args.targets).await? {
        let objects = match &name {
            Some(name) => {
                match session.wire.get(&resource.item(&session.namespace(), name), Form::Object).await {
                    Ok(object) => vec![object],
                    Err(failure) if failure.exit == Exit::Unreachable => return Err(failure),
                    Err(failure) => {
                        session.report(&failure);
                        continue;
                    }
                }
            }
            None => {
                let parameters = selection(chosen.selector.as_deref(), chosen.field_selector.as_deref());
                let path = resource.collection(session.scope(chosen.all_namespaces).as_deref());
                let mut list = session.wire.list(&path, &parameters, Form::Object).await?;
                match list["items"].take() {
                    Value::Array(items) => items,
                    _ => Vec::new(),
                }
            }
        };
        for object in objects {
            let object = with_kind(object, &resource);
            let happened = events_of(session, &object).await?;
            let attachments = fullness::attachments(session, &object).await?;
            if described > 0 {
                session.say("\n")?;
            }
            let text = render(&object, &happened, &attachments, Timestamp::now());
            session.terminal.out.write_all(text.as_bytes())?;
            described += 1;
        }
    }
    if described == 0 && session.worst() == Exit::Done {
        session.note("No resources found.");
    }
    Ok(())
}

async fn events_of(session: &mut Session<'_>, object: &Value) -> Result<Vec<Value>, Failure> {
    let kinds = session.kinds().await?;
    // A server without events still has objects to describe.
    let Ok(events) = kinds.find("events") else { return Ok(Vec::new()) };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let meta = &object["metadata"];
    let fields = format!(
        "involvedObject.kind={},involvedObject.name={},involvedObject.uid={}",
        text(&object["kind"]),
        text(&meta["name"]),
        text(&meta["uid"])
    );
    let path = events.collection(meta["namespace"].as_str());
    let mut list = session.wire.list(&path, &[("fieldSelector", &fields)], Form::Object).await?;
    let mut found = match list["items"].take() {
        Value::Array(items) => items,
        _ => Vec::new(),
    };
    found.sort_by_key(events::last_seen);
    Ok(found)
}

/// The whole page about one object.
pub(crate) fn render(object: &Value, happened: &[Value], attachments: &[Value], now: Timestamp) -> String {
    let mut page = String::new();
    header(&mut page, object, now);
    section(&mut page, "Spec", &object["spec"]);
    for field in ["data", "stringData", "type", "immutable"] {
        secretive(&mut page, field, object);
    }
    let mut status = object["status"].clone();
    let mut calls = Vec::new();
    let mut next = Vec::new();
    gather(&mut status, "", &mut calls, &mut next);
    let conditions = match status.as_object_mut().and_then(|status| status.remove("conditions")) {
        Some(Value::Array(conditions)) => conditions,
        _ => Vec::new(),
    };
    if let Some(node) = status.get_mut("node").and_then(Value::as_object_mut) {
        node.remove("usage");
    }
    section(&mut page, "Status", &prune(status));
    let full = fullness::rows(attachments, now);
    if !full.is_empty() {
        grid(&mut page, "Usage", &fullness::HEADINGS, &full);
    }
    self::conditions(&mut page, &conditions, now);
    call_table(&mut page, calls, &next, now);
    let rows: Vec<Vec<String>> = happened
        .iter()
        .map(|event| {
            let mut row = events::row(event, now);
            row.remove(3);
            row
        })
        .collect();
    if rows.is_empty() {
        page.push_str("Events:  <none>\n");
    } else {
        grid(&mut page, "Events", &["LAST SEEN", "TYPE", "REASON", "MESSAGE"], &rows);
    }
    page
}

fn header(page: &mut String, object: &Value, now: Timestamp) {
    let meta = &object["metadata"];
    let mut line = |name: &str, value: String| {
        if !value.is_empty() {
            // Writing into a String cannot fail.
            writeln!(page, "{:<14}{value}", format!("{name}:")).ok();
        }
    };
    line("Name", table::text(&meta["name"]));
    line("Namespace", table::text(&meta["namespace"]));
    line("Kind", format!("{} ({})", table::text(&object["kind"]), table::text(&object["apiVersion"])));
    line("UID", table::text(&meta["uid"]));
    line("Labels", table::labels(&meta["labels"]));
    let mut annotations = meta["annotations"].clone();
    if let Some(map) = annotations.as_object_mut() {
        map.remove(LAST_APPLIED);
    }
    line("Annotations", table::labels(&annotations));
    let created = time_of(&meta["creationTimestamp"]);
    line("Created", created.map_or_else(String::new, |at| format!("{at} ({} ago)", since(created, now))));
    let owners = meta["ownerReferences"].as_array().into_iter().flatten();
    let owner = |o: &Value| format!("{}/{}", table::text(&o["kind"]).to_lowercase(), table::text(&o["name"]));
    line("Owned by", owners.map(owner).collect::<Vec<_>>().join(", "));
    let leaving = time_of(&meta["deletionTimestamp"]);
    line(
        "Deleted",
        leaving.map_or_else(String::new, |at| {
            format!("{at} ({} ago), held by its finalizers", since(leaving, now))
        }),
    );
    let finalizers = meta["finalizers"].as_array().into_iter().flatten().map(table::text);
    line("Finalizers", finalizers.collect::<Vec<_>>().join(", "));
    line("Generation", table::text(&meta["generation"]));
}

fn section(page: &mut String, title: &str, value: &Value) {
    let empty = match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    };
    if empty {
        return;
    }
    writeln!(page, "{title}:").ok();
    for line in manifest::to_yaml(value).lines() {
        writeln!(page, "  {line}").ok();
    }
}

/// The contents of ConfigMaps as they are and of Secrets by their length only.
fn secretive(page: &mut String, field: &str, object: &Value) {
    let hidden = object["kind"] == "Secret" && field.ends_with("ata");
    match &object[field] {
        Value::Object(fields) if hidden => {
            let sizes = fields.iter().map(|(key, value)| {
                let length =
                    value.as_str().map_or(0, |text| text.len() / 4 * 3 - text.matches('=').count().min(2));
                (key.clone(), format!("{length} bytes").into())
            });
            section(page, field, &Value::Object(sizes.collect()));
        }
        value => section(page, field, value),
    }
}

fn conditions(page: &mut String, conditions: &[Value], now: Timestamp) {
    let rows: Vec<Vec<String>> = conditions
        .iter()
        .map(|c| {
            vec![
                table::text(&c["type"]),
                table::text(&c["status"]),
                since(time_of(&c["lastTransitionTime"]), now),
                table::text(&c["reason"]),
                table::text(&c["message"]),
            ]
        })
        .collect();
    if !rows.is_empty() {
        grid(page, "Conditions", &["TYPE", "STATUS", "SINCE", "REASON", "MESSAGE"], &rows);
    }
}

/// Takes every list called `calls` and every `nextAttemptTime` out of the status, with the place it stood.
fn gather(
    value: &mut Value,
    place: &str,
    calls: &mut Vec<(String, Value)>,
    next: &mut Vec<(String, Timestamp)>,
) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::Array(list)) = fields.get("calls")
                && list.iter().all(|call| call["method"].is_string())
            {
                calls.extend(list.iter().map(|call| (place.to_owned(), call.clone())));
                fields.remove("calls");
            }
            if let Some(at) = fields.get("nextAttemptTime").and_then(time_of) {
                next.push((place.to_owned(), at));
                fields.remove("nextAttemptTime");
            }
            for (key, inner) in fields.iter_mut() {
                let inside = if place.is_empty() { key.clone() } else { format!("{place}.{key}") };
                gather(inner, &inside, calls, next);
            }
        }
        Value::Array(items) => {
            for item in items {
                let inside = match item["name"].as_str() {
                    Some(name) => format!("{place}[{name}]"),
                    None => place.to_owned(),
                };
                gather(item, &inside, calls, next);
            }
        }
        _ => {}
    }
}

/// What gathering emptied is not shown.
fn prune(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.into_iter().map(|(key, value)| (key, prune(value)));
            kept.filter(|(_, value)| !value.as_object().is_some_and(serde_json::Map::is_empty)).collect()
        }
        other => other,
    }
}

fn call_table(
    page: &mut String,
    mut calls: Vec<(String, Value)>,
    next: &[(String, Timestamp)],
    now: Timestamp,
) {
    calls.sort_by_key(|(_, call)| time_of(&call["startTime"]));
    let rows: Vec<Vec<String>> = calls
        .iter()
        .map(|(place, call)| {
            vec![
                since(time_of(&call["startTime"]), now),
                if place.is_empty() { "-".to_owned() } else { place.clone() },
                table::text(&call["method"]),
                table::text(&call["code"]),
                table::text(&call["attempt"]),
                call["durationMillis"].as_u64().map_or_else(String::new, millis),
                table::text(&call["message"]),
            ]
        })
        .collect();
    if !rows.is_empty() {
        grid(page, "CSI calls", &["AGO", "WHERE", "METHOD", "RESULT", "TRY", "TOOK", "MESSAGE"], &rows);
    }
    for (place, at) in next {
        let part = if place.is_empty() { String::new() } else { format!(" ({place})") };
        let left = at.duration_since(now).as_secs();
        let when = if left > 0 { format!("in {left}s") } else { "now".to_owned() };
        writeln!(page, "{:<14}{when}{part}", "Next attempt:").ok();
    }
}

fn grid(page: &mut String, title: &str, headings: &[&str], rows: &[Vec<String>]) {
    let mut text = Vec::new();
    // Writing into memory cannot fail.
    table::print(&mut text, headings, rows).ok();
    writeln!(page, "{title}:").ok();
    for line in String::from_utf8_lossy(&text).lines() {
        writeln!(page, "  {line}").ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_page_is_in_reading_order() {
        let object = json!({
            "apiVersion": "wharfline.dev/v1alpha1", "kind": "VolumeAttachment",
            "metadata": {
                "name": "vol-1.node-c", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z", "generation": 1,
                "annotations": { LAST_APPLIED: "{}" }, "finalizers": ["wharfline.dev/protection"],
            },
            "spec": { "volume": "vol-1", "nodeName": "node-c" },
            "status": {
                "conditions": [{ "type": "Ready", "status": "False", "reason": "StageFailed", "message": "no", "lastTransitionTime": "2026-01-01T00:00:30Z" }],
                "controller": { "calls": [
                    { "method": "ControllerPublishVolume", "code": "OK", "startTime": "2026-01-01T00:00:10Z", "durationMillis": 1010, "attempt": 1 },
                ] },
                "node": {
                    "staged": "Unknown", "nextAttemptTime": "2026-01-01T00:01:08Z",
                    "calls": [{ "method": "NodeStageVolume", "code": "DEADLINE_EXCEEDED", "startTime": "2026-01-01T00:00:20Z", "durationMillis": 30000, "attempt": 2, "message": "slow" }],
                },
            },
        });
        let event = json!({ "type": "Warning", "reason": "StageFailed", "message": "no", "lastTimestamp": "2026-01-01T00:00:50Z" });
        let page = render(&object, &[event], &[], "2026-01-01T00:01:00Z".parse().unwrap());
        assert_eq!(
            page,
            "\
Name:         vol-1.node-c
Kind:         VolumeAttachment (wharfline.dev/v1alpha1)
UID:          u
Labels:       <none>
Annotations:  <none>
Created:      2026-01-01T00:00:00Z (60s ago)
Finalizers:   wharfline.dev/protection
Generation:   1
Spec:
  nodeName: node-c
  volume: vol-1
Status:
  node:
    staged: Unknown
Conditions:
  TYPE    STATUS   SINCE   REASON        MESSAGE
  Ready   False    30s     StageFailed   no
CSI calls:
  AGO   WHERE        METHOD                    RESULT              TRY   TOOK    MESSAGE
  50s   controller   ControllerPublishVolume   OK                  1     1.01s
  40s   node         NodeStageVolume           DEADLINE_EXCEEDED   2     30.0s   slow
Next attempt: in 8s (node)
Events:
  LAST SEEN   TYPE      REASON        MESSAGE
  10s         Warning   StageFailed   no
"
        );
    }

    #[test]
    fn a_secret_keeps_its_values() {
        let secret = json!({ "kind": "Secret", "apiVersion": "v1", "metadata": { "name": "s" }, "data": { "password": "Y29ycmVjdA==" }, "type": "Opaque" });
        let page = render(&secret, &[], &[], Timestamp::UNIX_EPOCH);
        assert!(!page.contains("Y29y"), "{page}");
        assert!(page.contains("password: 7 bytes"), "{page}");
    }
}
