//! SnapshotSchedule: Snapshots that are taken by the clock, and how many of them are kept.
use std::fmt;

use cronexpr::{Crontab, FallbackTimezoneOption, ParseOptions, parse_crontab_with};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::meta::{Condition, TemplateMetadata, Time};
use super::snapshot::SnapshotSpec;

/// Snapshots that are taken by the clock, and how many of them are kept.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "wharfline.dev",
    version = "v1alpha1",
    kind = "SnapshotSchedule",
    plural = "snapshotschedules",
    shortname = "snapsched"
)]
#[kube(namespaced, status = "SnapshotScheduleStatus", derive = "PartialEq")]
#[serde(rename_all = "camelCase")]
pub struct SnapshotScheduleSpec {
    /// When: minute, hour, day of the month, month and day of the week as cron has them, such as `30 3 * * *`, or one of
    /// `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`.
    pub schedule: String,
    /// Whose clock, such as `Europe/Berlin`; UTC when not given.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub time_zone: String,
    /// None are taken. What falls due meanwhile is not made up for.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,
    /// What is taken.
    pub template: SnapshotTemplate,
    /// So many of those that are ready are kept, the newest; all when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_last: Option<u32>,
    /// They are kept for so long, such as `30d`; for ever when not given. The newest that is ready is kept for longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_for: Option<String>,
}

/// A Snapshot that is made each time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotTemplate {
    /// Its labels and annotations.
    #[serde(default, skip_serializing_if = "TemplateMetadata::is_empty")]
    pub metadata: TemplateMetadata,
    /// What it is of: a claim, or the claims of a selector.
    pub spec: SnapshotSpec,
}

/// What is seen of a schedule.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotScheduleStatus {
    /// The schedule and time zone that `since` was told of; empty while it is suspended.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub schedule: String,
    /// What falls due after this is taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// The Snapshot that was taken last.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_snapshot: String,
    /// When that fell due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_time: Option<Time>,
    /// When the next one falls due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_time: Option<Time>,
    /// `Ready` = what fell due last was taken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// The label of a Snapshot that was taken by a schedule: its name. Who takes the label away keeps the Snapshot.
pub const SCHEDULE: &str = "wharfline.dev/schedule";
/// The annotation of such a Snapshot: the uid of the schedule, for another one may have that name later.
pub const SCHEDULE_UID: &str = "wharfline.dev/schedule-uid";
/// The annotation of such a Snapshot: when it fell due.
pub const SCHEDULED_AT: &str = "wharfline.dev/scheduled-at";

/// The words that stand for five fields.
const WORDS: [(&str, &str); 7] = [
    ("@hourly", "0 * * * *"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@weekly", "0 0 * * 0"),
    ("@monthly", "0 0 1 * *"),
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
];

/// When something falls due.
///
/// The library is asked about clock faces alone, in UTC, where each has its one moment; which moment that is in the time zone is
/// found here. (By itself it steps by the hour in the zone, and does not come past an hour that is set back by less than one;
/// and of a last day of December it knows nothing.)
#[derive(Debug, Clone)]
pub struct Calendar {
    faces: Crontab,
    zone: TimeZone,
}

/// So many clock faces come again, at most, where clocks are set back.
const AGAIN: usize = 24 * 60;

/// Why that cannot be said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoCalendar {
    /// The schedule is not one.
    Schedule(String),
    /// There is no such time zone.
    TimeZone,
    /// Such a day never comes.
    Never,
}

impl fmt::Display for NoCalendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Schedule(why) => write!(
                f,
                "{why}; write minute, hour, day of the month, month and day of the week, such as \"30 3 * * *\", or @daily"
            ),
            Self::TimeZone => {
                write!(f, "is no time zone that is known here; write a name such as Europe/Berlin, or UTC")
            }
            Self::Never => write!(f, "never falls due: there is no such day"),
        }
    }
}

impl Calendar {
    /// What a schedule and a time zone say; UTC when that is empty.
    pub fn new(schedule: &str, time_zone: &str) -> Result<Self, NoCalendar> {
        let zone = if time_zone.is_empty() { "UTC" } else { time_zone };
        let zone = Some(zone).filter(|zone| !zone.contains(char::is_whitespace));
        let zone = zone.and_then(|zone| TimeZone::get(zone).ok()).ok_or(NoCalendar::TimeZone)?;
        let schedule = schedule.trim();
        let fields = WORDS.iter().find(|(word, _)| *word == schedule).map_or(schedule, |(_, fields)| fields);
        match fields.split_whitespace().count() {
            5 => {}
            _ if fields.starts_with('@') => {
                return Err(NoCalendar::Schedule(format!("\"{fields}\" is no word that is known")));
            }
            6 => {
                return Err(NoCalendar::Schedule(
                    "it has six fields; a time zone belongs into timeZone".to_owned(),
                ));
            }
            n => return Err(NoCalendar::Schedule(format!("it has {n} of five fields"))),
        }
        let mut options = ParseOptions::default();
        options.fallback_timezone_option = FallbackTimezoneOption::None;
        // What the library says of a fault has several lines, with a mark beneath the place; the last one says what it is.
        let why = |error: cronexpr::Error| {
            let said = error.to_string();
            let last = said.lines().last().unwrap_or_default().trim_start_matches(['^', ' ']).to_owned();
            NoCalendar::Schedule(last)
        };
        if let Some(field) = fields.split_whitespace().find(|field| is_beyond(field)) {
            let why =
                format!("\"{field}\" is not understood: days are numbers and names, without L, W and #");
            return Err(NoCalendar::Schedule(why));
        }
        let faces = parse_crontab_with(&format!("{fields} UTC"), options).map_err(why)?;
        let calendar = Self { faces, zone };
        match calendar.next(Timestamp::UNIX_EPOCH) {
            Some(_) => Ok(calendar),
            None => Err(NoCalendar::Never),
        }
    }

    /// When it falls due next after a moment; none in the next four years. Of a clock face that comes twice the first one
    /// counts; one that is left out counts by so much later as was left out.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        let mut face = TimeZone::UTC.to_timestamp(self.zone.to_datetime(after)).ok()?;
        for _ in 0..AGAIN {
            face = self.faces.find_next(face).ok()?.timestamp();
            let moment = self.zone.to_timestamp(TimeZone::UTC.to_datetime(face)).ok()?;
            if moment > after {
                return Some(moment);
            }
        }
        None
    }

    /// When it fell due last, after one moment and not after another.
    pub fn last(&self, after: Timestamp, until: Timestamp) -> Option<Timestamp> {
        // Nearest first: what falls due each minute need not be counted from a year ago.
        for hours in [1, 25, 33 * 24, 367 * 24] {
            let near = until.saturating_sub(SignedDuration::from_hours(hours)).unwrap_or(after).max(after);
            let mut found = None;
            let mut at = self.next(near);
            while let Some(next) = at.filter(|next| *next <= until) {
                found = Some(next);
                at = self.next(next);
            }
            if found.is_some() || near == after {
                return found;
            }
        }
        self.next(after).filter(|next| *next <= until)
    }
}

/// Whether a field has what cron itself does not have: `L`, `W` and `#`, but for the names that have such letters.
fn is_beyond(field: &str) -> bool {
    let names = ["JUL", "WED"];
    field.contains('#')
        || field
            .to_ascii_uppercase()
            .split([',', '-', '/'])
            .any(|part| part.contains(['L', 'W']) && !names.contains(&part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn it_falls_due_by_the_clock_of_its_time_zone() {
        for (schedule, zone, after, wanted) in [
            ("30 3 * * *", "", "2026-01-01T00:00:00Z", "2026-01-01T03:30:00Z"),
            ("30 3 * * *", "", "2026-01-01T03:30:00Z", "2026-01-02T03:30:00Z"),
            ("30 3 * * *", "Europe/Berlin", "2026-01-01T00:00:00Z", "2026-01-01T02:30:00Z"),
            ("30 3 * * *", "Europe/Berlin", "2026-07-01T00:00:00Z", "2026-07-01T01:30:00Z"),
            ("@daily", "UTC", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"),
            ("@weekly", "", "2026-01-01T00:00:00Z", "2026-01-04T00:00:00Z"),
            ("*/15 9-17 * * MON-FRI", "", "2026-01-02T17:45:00Z", "2026-01-05T09:00:00Z"),
            ("0 12 * JUL WED", "", "2026-01-01T00:00:00Z", "2026-07-01T12:00:00Z"),
            // Where clocks are set back a time that comes twice counts once, and one that is left out counts later.
            ("30 2 * * *", "Europe/Berlin", "2026-10-24T23:00:00Z", "2026-10-25T00:30:00Z"),
            ("30 2 * * *", "Europe/Berlin", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"),
            ("30 2 * * *", "Europe/Berlin", "2027-03-28T00:00:00Z", "2027-03-28T01:30:00Z"),
            ("30 2 * * *", "Europe/Berlin", "2027-03-28T01:30:00Z", "2027-03-29T00:30:00Z"),
            // They are set back by half an hour there.
            ("0 5 4 4 *", "Australia/Lord_Howe", "2027-04-03T12:00:00Z", "2027-04-03T18:30:00Z"),
            ("30 3 * * *", "Australia/Lord_Howe", "2027-04-03T12:00:00Z", "2027-04-03T17:00:00Z"),
            ("* * * * *", "Australia/Lord_Howe", "2027-04-03T15:10:00Z", "2027-04-03T15:30:00Z"),
        ] {
            let calendar = Calendar::new(schedule, zone).unwrap();
            assert_eq!(calendar.next(at(after)), Some(at(wanted)), "{schedule} {zone} {after}");
        }
    }

    #[test]
    fn of_what_was_missed_the_last_is_found_however_long_ago() {
        let (every, yearly) =
            (Calendar::new("* * * * *", "").unwrap(), Calendar::new("@yearly", "").unwrap());
        let monthly = Calendar::new("0 4 1 * *", "").unwrap();
        let long_ago = at("2001-01-01T00:00:00Z");
        let now = at("2026-06-30T12:00:30Z");
        assert_eq!(every.last(long_ago, now), Some(at("2026-06-30T12:00:00Z")));
        assert_eq!(monthly.last(long_ago, now), Some(at("2026-06-01T04:00:00Z")));
        assert_eq!(yearly.last(long_ago, now), Some(at("2026-01-01T00:00:00Z")));
        assert_eq!(yearly.last(at("2026-01-01T00:00:00Z"), now), None, "that one is over");
        assert_eq!(every.last(at("2026-06-30T12:00:00Z"), now), None);
        assert_eq!(every.last(now, at("2026-06-30T12:01:00Z")), Some(at("2026-06-30T12:01:00Z")));
        assert_eq!(every.last(now, long_ago), None, "the clock was set back");
    }

    #[test]
    fn what_is_no_schedule_says_why() {
        let said =
            |schedule: &str, zone: &str| Calendar::new(schedule, zone).map(drop).unwrap_err().to_string();
        for (schedule, zone, wanted) in [
            ("30 3 * *", "", "it has 4 of five fields; write minute"),
            ("", "", "it has 0 of five fields"),
            ("30 3 * * * UTC", "", "it has six fields; a time zone belongs into timeZone"),
            ("@nightly", "", "\"@nightly\" is no word that is known"),
            ("61 3 * * *", "", "write minute, hour"),
            ("30 3 * * *", "Mars/Base", "is no time zone that is known here"),
            ("30 3 * * *", "UTC Europe/Berlin", "is no time zone"),
            ("0 0 31 2 *", "", "never falls due"),
            ("0 12 L * *", "", "\"L\" is not understood"),
            ("0 12 15W * *", "", "\"15W\" is not understood"),
            ("0 12 * * 5#3", "", "\"5#3\" is not understood"),
            ("0 12 * * MON,5L", "", "is not understood"),
        ] {
            let told = said(schedule, zone);
            assert!(told.contains(wanted) && !told.contains('\n'), "{schedule} {zone}: {told}");
        }
    }
}
