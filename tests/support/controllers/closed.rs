//! Attachments that are taken away under tasks that use them.
use serde_json::{Value, json};

use crate::bench::{Bench, Seen, pass};
use crate::fake::{Behaviour, DISK};
use crate::manifests::{claim, disk, phase, user};

fn one(seen: &Seen) -> Value {
    seen.get("allocations", "default", "one")
}

fn told(seen: &Seen) -> usize {
    seen.all("events").iter().filter(|event| event["reason"] == "AttachmentClosed").count()
}

/// How the task of an allocation has its volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Mounted,
    /// At a path of the machine, where any task may be.
    AtAPath,
    NotAtAll,
}

/// One allocation whose task runs on a disk that it has this way, on a node that unpublishes nothing under it; and the attachment.
async fn running(way: Way) -> (Bench, Value) {
    let bench = Bench::with(&["a"], Behaviour { capabilities: DISK.to_vec(), ..Behaviour::default() }).await;
    disk(&bench).await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    let mut with_task = user("one", "c", "");
    let mounts = if way == Way::Mounted { json!([{ "name": "v", "mountPath": "/data" }]) } else { json!([]) };
    if way == Way::AtAPath {
        with_task["spec"]["volumes"][0]["hostPath"] = json!("/srv/data");
    }
    with_task["spec"]["tasks"] = json!([
        { "name": "t", "runtime": { "process": { "command": ["writer"] } }, "volumeMounts": mounts }
    ]);
    bench.make("allocations", with_task).await;
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    bench.behave("a", |b| b.unpublishes = false);
    let attachment = bench.seen.only("volumeattachments");
    (bench, attachment)
}

async fn take_away(bench: &Bench, attachment: &Value) {
    bench.delete("volumeattachments", "", attachment["metadata"]["name"].as_str().unwrap()).await;
}

/// Both would stay for ever: what is closed is not opened again, and does not go while the task runs.
#[tokio::test(start_paused = true)]
async fn a_task_whose_attachment_is_taken_away_ends_and_begins_anew() {
    for way in [Way::Mounted, Way::AtAPath] {
        let (bench, attachment) = running(way).await;
        take_away(&bench, &attachment).await;
        bench.until("it is told to leave", |seen| one(seen)["status"]["evicted"] == true).await;
        bench.until("why", |seen| told(seen) == 1).await;
        assert_eq!(bench.ledger.count("unpublish"), 0, "nothing was taken from under it");
        bench.behave("a", |b| b.unpublishes = true);
        let before = attachment["metadata"]["uid"].clone();
        bench
            .until("it runs by another attachment", move |seen| {
                let there = seen.all("volumeattachments");
                phase(seen, "one") == "Running"
                    && one(seen)["status"]["evicted"] != true
                    && there.len() == 1
                    && there[0]["metadata"]["uid"] != before
            })
            .await;
        pass(60).await;
        assert_eq!(told(&bench.seen), 1, "{way:?}");
        bench.end().await;
    }
}

/// What no task uses, or only until somebody stopped it, its node lets go of by itself.
#[tokio::test(start_paused = true)]
async fn who_does_not_use_it_or_goes_anyway_is_not_told() {
    for stops in [false, true] {
        let (bench, attachment) = running(if stops { Way::Mounted } else { Way::NotAtAll }).await;
        if stops {
            bench.patch("allocations", "default", "one", json!({ "spec": { "stop": true } })).await;
        }
        take_away(&bench, &attachment).await;
        pass(60).await;
        assert_ne!(one(&bench.seen)["status"]["evicted"], true, "{stops}");
        bench.behave("a", |b| b.unpublishes = true);
        if stops {
            bench.until("it has stopped", |seen| phase(seen, "one") == "Stopped").await;
            bench.patch("allocations", "default", "one", json!({ "spec": { "stop": false } })).await;
        }
        bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
        assert_eq!(told(&bench.seen), 0, "{stops}");
        bench.end().await;
    }
}

/// Nothing is known of a task whose node is silent.
#[tokio::test(start_paused = true)]
async fn who_is_on_a_silent_node_is_told_once_that_is_heard() {
    let (bench, attachment) = running(Way::Mounted).await;
    bench.behave("a", |b| b.alive = false);
    pass(120).await;
    take_away(&bench, &attachment).await;
    pass(60).await;
    assert_ne!(one(&bench.seen)["status"]["evicted"], true);
    bench.behave("a", |b| b.alive = true);
    bench.until("it is told to leave", |seen| one(seen)["status"]["evicted"] == true).await;
    bench.end().await;
}
