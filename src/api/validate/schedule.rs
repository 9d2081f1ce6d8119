//! Faults of a SnapshotSchedule.
use serde_json::{Value, json};

use super::super::field::{Cause, FieldError, FieldErrors};
use super::super::schedule::{Calendar, NoCalendar};
use super::{check_duration, snapshot, template_labels, text};

/// The longest name: it is the value of a label of each Snapshot.
const LONGEST_NAME: usize = 63;

/// Faults of a SnapshotSchedule.
pub fn schedule(new: &Value, _: Option<&Value>) -> Vec<FieldError> {
    let mut faults = FieldErrors::new();
    let spec = &new["spec"];
    if text(&new["metadata"]["name"]).len() > LONGEST_NAME {
        let message = format!("at most {LONGEST_NAME} characters: it is a label of each Snapshot");
        faults.add("metadata.name", Cause::TooLong, message);
    }
    let (schedule, zone) = (text(&spec["schedule"]), text(&spec["timeZone"]));
    match Calendar::new(schedule, zone) {
        Ok(_) => {}
        Err(fault @ NoCalendar::TimeZone) => faults.invalid("spec.timeZone", format!("\"{zone}\" {fault}")),
        Err(fault @ (NoCalendar::Schedule(_) | NoCalendar::Never)) => {
            faults.invalid("spec.schedule", format!("\"{schedule}\": {fault}"));
        }
    }
    let template = &spec["template"];
    template_labels(&mut faults, "spec.template.metadata", &template["metadata"]);
    for fault in snapshot(&json!({ "spec": template["spec"] }), None) {
        faults.add(format!("spec.template.{}", fault.path), fault.cause, fault.message);
    }
    if !template["spec"]["source"]["handle"].is_null() {
        let message = "is one that is there already; name a claim in claimName, or several by a selector";
        faults.invalid("spec.template.spec.source.handle", message);
    }
    if spec["keepLast"] == 0 {
        faults.invalid("spec.keepLast", "nothing would be kept; leave it out to keep all, or give 1 or more");
    }
    check_duration(&mut faults, "spec.keepFor", &spec["keepFor"]);
    faults.into_vec()
}

#[cfg(test)]
mod tests {
    use super::super::paths;
    use super::*;

    #[test]
    fn a_schedule_says_when_of_what_and_how_many() {
        let source = |source: Value| json!({ "spec": { "source": source } });
        let of = source(json!({ "claimName": "data" }));
        for (spec, wanted) in [
            (json!({ "schedule": "@daily", "template": of }), vec![]),
            (
                json!({ "schedule": "30 3 * * *", "timeZone": "Europe/Berlin", "template": of, "keepLast": 7, "keepFor": "30d" }),
                vec![],
            ),
            (json!({ "schedule": "30 3", "timeZone": "UTC", "template": of }), vec!["spec.schedule"]),
            (json!({ "schedule": "0 0 31 2 *", "template": of }), vec!["spec.schedule"]),
            (json!({ "schedule": "@daily", "timeZone": "Nowhere", "template": of }), vec!["spec.timeZone"]),
            (
                json!({ "schedule": "@daily", "template": source(json!({})) }),
                vec!["spec.template.spec.source"],
            ),
            (
                json!({ "schedule": "@daily", "template": source(json!({ "handle": "h", "plugin": "p" })) }),
                vec!["spec.template.spec.source.handle"],
            ),
            (
                json!({ "schedule": "@daily", "template": of, "keepLast": 0, "keepFor": "long" }),
                vec!["spec.keepLast", "spec.keepFor"],
            ),
        ] {
            let faults = schedule(&json!({ "metadata": { "name": "s" }, "spec": spec }), None);
            assert_eq!(paths(&faults), wanted, "{spec}");
        }
        let long = json!({ "metadata": { "name": "s".repeat(64) }, "spec": { "schedule": "@daily", "template": of } });
        assert_eq!(paths(&schedule(&long, None)), ["metadata.name"]);
    }
}
