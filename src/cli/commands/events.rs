//! `events`: what happened, oldest first; with `-w` what happens.
use jiff::Timestamp;
use serde_json::Value;

use crate::cli::age::{since, time_of};
use crate::cli::args::Events;
use crate::cli::failure::Failure;
use crate::cli::kinds::Resource;
use crate::cli::output::{Output, list_of, tidy, with_kind};
use crate::cli::session::{Session, Tail};
use crate::cli::table::{Printer, clean};
use crate::cli::wire::{Change, Form};

pub(crate) async fn run(session: &mut Session<'_>, args: &Events) -> Result<(), Failure> {
    let output = Output::parse(args.output.as_deref())?;
    let of = match &args.of {
        Some(word) => Some(session.one_target(std::slice::from_ref(word)).await?),
        None => None,
    };
    let fields = of.as_ref().map(|(resource, name)| involved(resource, name));
    // Objects of no namespace have their events in one that the writer chose.
    let everywhere = args.all_namespaces || of.as_ref().is_some_and(|(resource, _)| !resource.namespaced);
    let kinds = session.kinds().await?;
    let events = kinds.find("events")?;
    let path = events.collection(session.scope(everywhere).as_deref());
    let mut parameters = Vec::new();
    parameters.extend(fields.as_deref().map(|fields| ("fieldSelector", fields)));
    let mut printer = Printer::default();
    let view = View { args, output: &output, everywhere };
    let mut first = true;
    loop {
        let list = session.wire.list(&path, &parameters, Form::Object).await?;
        let mut found: Vec<Value> =
            list["items"].as_array().into_iter().flatten().map(|e| with_kind(e.clone(), events)).collect();
        found.retain(|event| view.wants(event));
        found.sort_by_key(last_seen);
        if first || args.watch {
            view.print(session, &mut printer, &found)?;
        }
        if !args.watch {
            if found.is_empty() {
                session.note("No events found.");
            }
            return Ok(());
        }
        first = false;
        let mut tail = Tail::new(&list);
        while let Some((change, event)) = tail.next(&session.wire, &path, &parameters, Form::Object).await? {
            if matches!(change, Change::Added | Change::Modified) && view.wants(&event) {
                view.print(session, &mut printer, &[with_kind(event, events)])?;
            }
        }
    }
}

struct View<'a> {
    args: &'a Events,
    output: &'a Output,
    everywhere: bool,
}

impl View<'_> {
    fn wants(&self, event: &Value) -> bool {
        let kind = event["type"].as_str().unwrap_or_default();
        self.args.types.is_empty() || self.args.types.iter().any(|wanted| wanted.eq_ignore_ascii_case(kind))
    }

    fn print(
        &self,
        session: &mut Session<'_>,
        printer: &mut Printer,
        events: &[Value],
    ) -> Result<(), Failure> {
        if !self.output.is_table() {
            let tidied: Vec<Value> = events.iter().map(|event| tidy(event.clone())).collect();
            return self.output.print(session.terminal.out, &list_of(&tidied), &name);
        }
        let now = Timestamp::now();
        let mut headings: Vec<String> =
            ["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"].map(str::to_owned).to_vec();
        let mut rows: Vec<Vec<String>> = events.iter().map(|event| row(event, now)).collect();
        if self.everywhere {
            headings.insert(0, "NAMESPACE".to_owned());
            for (row, event) in rows.iter_mut().zip(events) {
                row.insert(0, event["metadata"]["namespace"].as_str().unwrap_or_default().to_owned());
            }
        }
        if !rows.is_empty() {
            printer.rows(session.terminal.out, &headings, &rows, self.args.no_headers)?;
            session.terminal.out.flush()?;
        }
        Ok(())
    }
}

fn name(event: &Value) -> String {
    format!("event/{}", event["metadata"]["name"].as_str().unwrap_or_default())
}

/// The field selector for the events of one object.
pub(crate) fn involved(resource: &Resource, name: &str) -> String {
    format!("involvedObject.kind={},involvedObject.name={name}", resource.kind)
}

/// One event as the cells of LAST SEEN, TYPE, REASON, OBJECT, MESSAGE.
pub(crate) fn row(event: &Value, now: Timestamp) -> Vec<String> {
    let word = |value: &Value| clean(value.as_str().unwrap_or_default());
    let object = &event["involvedObject"];
    let count = event["series"]["count"].as_i64().or(event["count"].as_i64()).unwrap_or(1);
    let mut seen = since(last_seen(event), now);
    if count > 1 {
        seen = format!("{seen} (x{count} over {})", since(first_seen(event), now));
    }
    vec![
        seen,
        word(&event["type"]),
        word(&event["reason"]),
        format!("{}/{}", word(&object["kind"]).to_lowercase(), word(&object["name"])),
        word(&event["message"]),
    ]
}

/// When an event was last seen, from whichever of the two APIs wrote it.
pub(crate) fn last_seen(event: &Value) -> Option<Timestamp> {
    time_of(&event["series"]["lastObservedTime"])
        .or_else(|| time_of(&event["lastTimestamp"]))
        .or_else(|| first_seen(event))
}

fn first_seen(event: &Value) -> Option<Timestamp> {
    time_of(&event["firstTimestamp"])
        .or_else(|| time_of(&event["eventTime"]))
        .or_else(|| time_of(&event["metadata"]["creationTimestamp"]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn events_of_both_apis_become_the_same_row() {
        let now = "2026-01-01T00:10:00Z".parse().unwrap();
        let object = json!({ "kind": "VolumeClaim", "name": "data" });
        let core = json!({ "type": "Warning", "reason": "R", "message": "m", "involvedObject": object, "count": 4,
            "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:09:00Z" });
        assert_eq!(row(&core, now), ["60s (x4 over 10m)", "Warning", "R", "volumeclaim/data", "m"]);
        let new = json!({ "type": "Normal", "reason": "R", "message": "m", "involvedObject": object,
            "eventTime": "2026-01-01T00:09:30.123456Z", "firstTimestamp": null, "lastTimestamp": null });
        assert_eq!(row(&new, now)[0], "29s");
        let series = json!({ "involvedObject": object, "eventTime": "2026-01-01T00:00:00.000000Z",
            "series": { "count": 2, "lastObservedTime": "2026-01-01T00:09:58.000000Z" } });
        assert_eq!(row(&series, now)[0], "2s (x2 over 10m)");
    }
}
