//! Snapshots that are taken by the clock, and how many of them are kept.
use serde_json::{Value, json};

use crate::bench::{Bench, Seen, condition, pass};
use crate::fake::{Behaviour, DISK};
use crate::manifests::{claim, disk};

const SNAPSHOT: &str = "controller/CREATE_DELETE_SNAPSHOT";
const HOUR: u64 = 3600;

/// A bound claim `data` of a driver that takes snapshots.
async fn bench() -> Bench {
    let behaviour = Behaviour { capabilities: [DISK, &[SNAPSHOT]].concat(), ..Behaviour::default() };
    let bench = Bench::with(&["a"], behaviour).await;
    disk(&bench).await;
    bench.make("volumeclaims", claim("data", "disk", "SingleNodeWriter")).await;
    let bound = |seen: &Seen| seen.get("volumeclaims", "default", "data")["status"]["phase"] == "Bound";
    bench.until("data is bound", bound).await;
    bench
}

/// Each hour of the test, which begins at ten.
fn hourly(keep: &Value) -> Value {
    let template = json!({ "metadata": { "labels": { "of": "data" } },
        "spec": { "source": { "claimName": "data" } } });
    let mut object = json!({ "metadata": { "name": "each" },
        "spec": { "schedule": "@hourly", "template": template } });
    object["spec"].as_object_mut().unwrap().extend(keep.as_object().unwrap().clone());
    object
}

fn told(seen: &Seen) -> (String, String) {
    let ready = condition(&seen.get("snapshotschedules", "default", "each"), "Ready");
    let text = |field: &str| ready[field].as_str().unwrap_or_default().to_owned();
    (text("reason"), text("message"))
}

/// When the next one falls due, to the minute.
fn next(seen: &Seen) -> String {
    let schedule = seen.get("snapshotschedules", "default", "each");
    schedule["status"]["nextTime"]
        .as_str()
        .unwrap_or_default()
        .chars()
        .take("2024-05-01T11:00".len())
        .collect()
}

/// The hours of the snapshots that there are and that are not on their way out.
fn there(seen: &Seen) -> Vec<String> {
    let all = seen.all("snapshots").into_iter().filter(|s| s["metadata"]["deletionTimestamp"].is_null());
    let name = |s: Value| s["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    all.map(name).map(|name| name.trim_start_matches("each-20240501-").to_owned()).collect()
}

fn ready(seen: &Seen, hour: &str) -> bool {
    let name = format!("each-20240501-{hour}");
    seen.get("snapshots", "default", &name)["status"]["ready"] == true
}

/// The next hour begins, and its snapshot is taken.
async fn taken(bench: &Bench, hour: &str) {
    pass(HOUR).await;
    bench.until("it is taken", |seen| ready(seen, hour)).await;
}

async fn clear(bench: Bench) {
    for hour in there(&bench.seen) {
        bench.delete("snapshots", "default", &format!("each-20240501-{hour}")).await;
    }
    bench.until("they are gone", |seen| seen.all("snapshots").is_empty()).await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn one_is_taken_each_time_and_the_newest_are_kept() {
    let bench = bench().await;
    bench.make("snapshotschedules", hourly(&json!({ "keepLast": 2 }))).await;
    bench.until("it is looked at", |seen| told(seen).0 == "Waiting").await;
    assert_eq!(next(&bench.seen), "2024-05-01T11:00");
    assert_eq!(there(&bench.seen), Vec::<String>::new(), "none before it is due");
    taken(&bench, "1100").await;
    let first = bench.seen.get("snapshots", "default", "each-20240501-1100");
    assert_eq!(first["metadata"]["labels"], json!({ "of": "data", "wharfline.dev/schedule": "each" }));
    assert_eq!(first["metadata"]["annotations"]["wharfline.dev/scheduled-at"], "2024-05-01T11:00:00Z");
    assert_eq!(first["metadata"]["ownerReferences"], Value::Null, "it outlives its schedule");
    assert_eq!(told(&bench.seen).0, "Taken");
    assert_eq!(next(&bench.seen), "2024-05-01T12:00");
    taken(&bench, "1200").await;
    taken(&bench, "1300").await;
    bench.until("two are left", |seen| there(seen) == ["1200", "1300"]).await;
    // What somebody takes the label from is kept, and counts no more.
    let keep = json!({ "metadata": { "labels": { "wharfline.dev/schedule": null } } });
    bench.patch("snapshots", "default", "each-20240501-1200", keep).await;
    taken(&bench, "1400").await;
    taken(&bench, "1500").await;
    bench.until("and the kept one", |seen| there(seen) == ["1200", "1400", "1500"]).await;
    bench.delete("snapshotschedules", "default", "each").await;
    pass(3 * HOUR).await;
    assert_eq!(there(&bench.seen), ["1200", "1400", "1500"], "they stay when it goes");
    clear(bench).await;
}

#[tokio::test(start_paused = true)]
async fn what_a_claim_is_filled_from_is_spared() {
    let bench = bench().await;
    bench.make("snapshotschedules", hourly(&json!({ "keepFor": "90m" }))).await;
    taken(&bench, "1100").await;
    let mut restored = claim("restored", "disk", "SingleNodeWriter");
    restored["spec"]["dataSource"] = json!({ "snapshotName": "each-20240501-1100" });
    bench.make("volumeclaims", restored).await;
    let bound = |seen: &Seen| seen.get("volumeclaims", "default", "restored")["status"]["phase"] == "Bound";
    bench.until("it is filled", bound).await;
    for hour in ["1200", "1300", "1400"] {
        taken(&bench, hour).await;
    }
    bench.until("an older one went", |seen| there(seen) == ["1100", "1300", "1400"]).await;
    bench.delete("volumeclaims", "default", "restored").await;
    taken(&bench, "1500").await;
    bench.until("nobody needs it", |seen| there(seen) == ["1400", "1500"]).await;
    bench.delete("snapshotschedules", "default", "each").await;
    clear(bench).await;
}

#[tokio::test(start_paused = true)]
async fn none_is_taken_beside_one_that_is_not_finished() {
    let bench = bench().await;
    bench.behave("a", |b| b.takes = false);
    bench.make("snapshotschedules", hourly(&json!({ "keepLast": 1 }))).await;
    pass(HOUR).await;
    bench.until("it is begun", |seen| there(seen) == ["1100"]).await;
    pass(2 * HOUR).await;
    let passed_over = |seen: &Seen| {
        let (reason, sentence) = told(seen);
        let says = |word: &str| sentence.contains(word);
        reason == "Unfinished" && says("each-20240501-1100") && says("2024-05-01T13:00:00Z")
    };
    bench.until("the next ones are passed over", passed_over).await;
    assert_eq!(there(&bench.seen), ["1100"]);
    bench.behave("a", |b| b.takes = true);
    bench.until("it is finished", |seen| ready(seen, "1100")).await;
    taken(&bench, "1400").await;
    bench.until("the former one went", |seen| there(seen) == ["1400"]).await;
    assert_eq!(told(&bench.seen).0, "Taken");
    bench.delete("snapshotschedules", "default", "each").await;
    clear(bench).await;
}

#[tokio::test(start_paused = true)]
async fn of_what_was_missed_one_is_made_up_for_and_none_of_what_was_not_wanted() {
    let mut bench = bench().await;
    bench.make("snapshotschedules", hourly(&json!({}))).await;
    taken(&bench, "1100").await;
    bench.stop().await;
    pass(3 * HOUR).await;
    bench.start();
    bench.until("the last one is made up for", |seen| ready(seen, "1400")).await;
    bench.quiet().await;
    assert_eq!(there(&bench.seen), ["1100", "1400"]);
    let change = |spec: Value| json!({ "spec": spec });
    bench.patch("snapshotschedules", "default", "each", change(json!({ "suspend": true }))).await;
    bench.until("it is suspended", |seen| told(seen).0 == "Suspended").await;
    pass(2 * HOUR).await;
    let schedule = bench.seen.get("snapshotschedules", "default", "each");
    assert_eq!(schedule["status"]["nextTime"], Value::Null);
    bench.patch("snapshotschedules", "default", "each", change(json!({ "suspend": false }))).await;
    bench.until("it goes on", |seen| told(seen).0 == "Waiting").await;
    bench.quiet().await;
    assert_eq!(there(&bench.seen), ["1100", "1400"], "nobody wanted those");
    // It is past four: by the other schedule one would have been due at half past three.
    bench.patch("snapshotschedules", "default", "each", change(json!({ "schedule": "30 15 * * *" }))).await;
    bench.until("it has the other schedule", |seen| next(seen) == "2024-05-02T15:30").await;
    bench.quiet().await;
    assert_eq!(there(&bench.seen), ["1100", "1400"]);
    bench.delete("snapshotschedules", "default", "each").await;
    clear(bench).await;
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_of_somebody_elses_with_its_name_is_left_alone() {
    let bench = bench().await;
    let others = json!({ "metadata": { "name": "each-20240501-1100", "labels": { "wharfline.dev/schedule": "each" } },
        "spec": { "source": { "claimName": "data" } } });
    bench.make("snapshots", others).await;
    bench.until("it is ready", |seen| ready(seen, "1100")).await;
    bench.make("snapshotschedules", hourly(&json!({ "keepLast": 1 }))).await;
    pass(HOUR).await;
    bench.until("it is told", |seen| told(seen).0 == "NameTaken").await;
    taken(&bench, "1200").await;
    taken(&bench, "1300").await;
    bench.until("its own go", |seen| there(seen) == ["1100", "1300"]).await;
    bench.delete("snapshotschedules", "default", "each").await;
    clear(bench).await;
}

/// What an earlier one of its name has taken is not its own, nor is a copy of what it has taken.
#[tokio::test(start_paused = true)]
async fn one_that_is_made_anew_thins_out_nothing_of_before() {
    let bench = bench().await;
    bench.make("snapshotschedules", hourly(&json!({ "keepLast": 1 }))).await;
    taken(&bench, "1100").await;
    bench.delete("snapshotschedules", "default", "each").await;
    bench.until("it is gone", |seen| seen.all("snapshotschedules").is_empty()).await;
    bench.make("snapshotschedules", hourly(&json!({ "keepLast": 1 }))).await;
    taken(&bench, "1200").await;
    let mut copy = bench.seen.get("snapshots", "default", "each-20240501-1200");
    copy["metadata"] = json!({ "name": "copy", "labels": copy["metadata"]["labels"],
        "annotations": copy["metadata"]["annotations"] });
    copy.as_object_mut().unwrap().remove("status");
    bench.make("snapshots", copy).await;
    taken(&bench, "1300").await;
    taken(&bench, "1400").await;
    bench.until("its own went", |seen| there(seen) == ["copy", "1100", "1400"]).await;
    bench.delete("snapshotschedules", "default", "each").await;
    bench.delete("snapshots", "default", "copy").await;
    bench.until("the copy is gone", |seen| there(seen) == ["1100", "1400"]).await;
    clear(bench).await;
}

/// The clock of a former leader was far ahead.
#[tokio::test(start_paused = true)]
async fn a_clock_that_was_ahead_once_stops_nothing() {
    let mut bench = bench().await;
    bench.make("snapshotschedules", hourly(&json!({}))).await;
    taken(&bench, "1100").await;
    bench.stop().await;
    let path = "/apis/wharfline.dev/v1alpha1/namespaces/default/snapshotschedules/each/status";
    let ahead = json!({ "status": { "since": "2031-01-01T00:00:00Z" } });
    let (code, answer) = crate::bench::ask(&bench.admin, "PATCH", path, Some(&ahead)).await;
    assert_eq!(code, 200, "{answer}");
    bench.start();
    taken(&bench, "1200").await;
    bench.delete("snapshotschedules", "default", "each").await;
    clear(bench).await;
}
