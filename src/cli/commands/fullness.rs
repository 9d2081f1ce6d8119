//! How full a volume is, on each node that has it, as its attachments tell.
use jiff::Timestamp;
use serde_json::Value;

use crate::api::VolumeAttachment;
use crate::api::meta::Truth;
use crate::api::volume::{Figures, VOLUME_HEALTHY};
use crate::cli::age::{since, time_of};
use crate::cli::failure::Failure;
use crate::cli::session::Session;
use crate::cli::wire::Form;

/// The heads of the table.
pub(super) const HEADINGS: [&str; 6] = ["NODE", "USED", "OF", "INODES USED", "HEALTH", "AS OF"];

/// The attachments of a claim or a volume, or the attachment itself; none of anything else.
pub(super) async fn attachments(session: &mut Session<'_>, object: &Value) -> Result<Vec<Value>, Failure> {
    let meta = &object["metadata"];
    let is_of: Box<dyn Fn(&Value) -> bool> = match object["kind"].as_str() {
        Some("VolumeAttachment") => return Ok(vec![object.clone()]),
        Some("VolumeClaim") => Box::new(|of| of["spec"]["claim"]["uid"] == meta["uid"]),
        Some("Volume") => Box::new(|of| of["spec"]["volume"] == meta["name"]),
        Some(_) | None => return Ok(Vec::new()),
    };
    let kinds = session.kinds().await?;
    let Ok(attachments) = kinds.find("volumeattachments") else { return Ok(Vec::new()) };
    // Who may read a claim need not be allowed to read them.
    let Ok(mut list) = session.wire.list(&attachments.collection(None), &[], Form::Object).await else {
        return Ok(Vec::new());
    };
    let items = match list["items"].take() {
        Value::Array(items) => items,
        _ => Vec::new(),
    };
    Ok(items.into_iter().filter(|item| is_of(item)).collect())
}

/// A row for each attachment that tells anything.
pub(super) fn rows(attachments: &[Value], now: Timestamp) -> Vec<Vec<String>> {
    let typed = attachments.iter().filter_map(|a| serde_json::from_value::<VolumeAttachment>(a.clone()).ok());
    let mut rows: Vec<Vec<String>> = typed.filter_map(|attachment| row(&attachment, now)).collect();
    rows.sort();
    rows
}

fn row(attachment: &VolumeAttachment, now: Timestamp) -> Option<Vec<String>> {
    let status = attachment.status.as_ref()?;
    let usage = status.node.as_ref().and_then(|node| node.usage.clone());
    let condition = status.conditions.iter().find(|condition| condition.kind == VOLUME_HEALTHY);
    if usage.is_none() && condition.is_none() {
        return None;
    }
    let usage = usage.unwrap_or_default();
    let (bytes, of) =
        usage.bytes.map_or_else(Default::default, |bytes| (used(&bytes, size), size(bytes.total)));
    let inodes = usage.inodes.map(|inodes| used(&inodes, |count: i64| count.to_string())).unwrap_or_default();
    let health = condition.map_or("", |condition| match condition.status {
        Truth::True => "well",
        Truth::False => "unwell",
        Truth::Unknown => "unknown",
    });
    let as_of =
        usage.time.map(|time| format!("{} ago", since(time_of(&Value::from(time.0.to_string())), now)));
    let node = attachment.spec.node_name.clone();
    Some(vec![node, bytes, of, inodes, health.to_owned(), as_of.unwrap_or_default()])
}

/// What is used, with its part of the whole.
fn used(figures: &Figures, word: impl Fn(i64) -> String) -> String {
    match (figures.used, figures.per_cent()) {
        (Some(used), Some(part)) => format!("{} ({part}%)", word(used)),
        (Some(used), None) => word(used),
        (None, _) => String::new(),
    }
}

/// Bytes with a binary unit and one place behind the point, as `df -h` writes them.
fn size(bytes: i64) -> String {
    const UNITS: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    if bytes < 1024 {
        return bytes.to_string();
    }
    let mut tenths = i128::from(bytes) * 10;
    let mut unit = "";
    for next in UNITS {
        if tenths < 10_240 {
            break;
        }
        // To the nearest tenth.
        tenths = (tenths + 512) / 1024;
        unit = next;
    }
    if tenths % 10 == 0 {
        format!("{}{unit}", tenths / 10)
    } else {
        format!("{}.{}{unit}", tenths / 10, tenths % 10)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sizes_are_written_for_people() {
        for (bytes, expected) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1Ki"),
            (1536, "1.5Ki"),
            (1 << 20, "1Mi"),
            (1_300_000_000, "1.2Gi"),
            (i64::MAX, "8Ei"),
        ] {
            assert_eq!(size(bytes), expected);
        }
    }

    #[test]
    fn each_node_that_tells_has_a_row() {
        let attachment = |node: &str, status: Value| {
            json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "VolumeAttachment", "metadata": { "name": node },
                "spec": { "volume": "v", "volumeUid": "u", "claim": { "namespace": "d", "name": "c", "uid": "c" },
                    "nodeName": node, "attachRequired": false, "stageRequired": false, "plugin": "p", "handle": "h",
                    "capability": { "accessMode": "SingleNodeWriter", "volumeMode": "Filesystem" }, "allocations": [] },
                "status": status })
        };
        let usage = json!({ "bytes": { "total": 1_073_741_824, "used": 536_870_912, "available": 536_870_912 },
            "inodes": { "total": 100, "used": 7, "available": 93 }, "time": "2026-01-01T00:00:00Z" });
        let all = [
            attachment("node-b", json!({ "node": { "staged": "Up", "usage": usage } })),
            attachment("node-c", json!({ "node": { "staged": "Up" } })),
            attachment(
                "node-a",
                json!({ "conditions": [{ "type": VOLUME_HEALTHY, "status": "False",
                "reason": "Abnormal", "message": "gone", "lastTransitionTime": "2026-01-01T00:00:00Z" }] }),
            ),
        ];
        let rows = rows(&all, "2026-01-01T00:00:30Z".parse().unwrap());
        assert_eq!(
            rows,
            [
                ["node-a", "", "", "", "unwell", ""].map(str::to_owned).to_vec(),
                ["node-b", "512Mi (50%)", "1Gi", "7 (7%)", "", "30s ago"].map(str::to_owned).to_vec(),
            ]
        );
    }
}
