//! Events in both of their groups: stored as core/v1, served as events.k8s.io/v1 by renaming fields.
use serde_json::{Map, Value};

/// Name in core/v1, name in events.k8s.io/v1.
const RENAMED: &[(&str, &str)] = &[
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// A stored event as events.k8s.io/v1 shows it.
pub(crate) fn to_new_group(event: &mut Value) {
    rename(event, "events.k8s.io/v1", |(core, new)| (core, new));
}

/// An event of events.k8s.io/v1 as it is stored.
pub(crate) fn to_core(event: &mut Value) {
    rename(event, "v1", |(core, new)| (new, core));
}

fn rename(
    event: &mut Value,
    api_version: &str,
    way: fn((&'static str, &'static str)) -> (&'static str, &'static str),
) {
    let Some(fields) = event.as_object_mut() else { return };
    let taken: Map<String, Value> = RENAMED
        .iter()
        .filter_map(|pair| {
            let (from, to) = way(*pair);
            fields.remove(from).map(|value| (to.to_owned(), value))
        })
        .collect();
    fields.extend(taken);
    fields.insert("apiVersion".to_owned(), Value::from(api_version));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{to_core, to_new_group};

    #[test]
    fn an_event_is_the_same_after_there_and_back() {
        let stored = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": { "name": "a" },
            "involvedObject": { "name": "v" }, "message": "made", "source": { "component": "c" },
            "firstTimestamp": "1", "lastTimestamp": "2", "count": 3, "reportingComponent": "r",
            "reportingInstance": "i", "action": "Make", "type": "Normal", "eventTime": "4"
        });
        let mut event = stored.clone();
        to_new_group(&mut event);
        assert_eq!(
            event,
            json!({
                "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": { "name": "a" },
                "regarding": { "name": "v" }, "note": "made", "deprecatedSource": { "component": "c" },
                "deprecatedFirstTimestamp": "1", "deprecatedLastTimestamp": "2", "deprecatedCount": 3,
                "reportingController": "r", "reportingInstance": "i", "action": "Make", "type": "Normal",
                "eventTime": "4"
            })
        );
        to_core(&mut event);
        assert_eq!(event, stored);
    }
}
