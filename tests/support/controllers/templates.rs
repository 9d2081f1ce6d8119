//! Claims that allocations bring along.
use serde_json::{Value, json};

use crate::bench::{Bench, Seen};
use crate::manifests::{claim, disk, phase, ready, why};

/// An allocation `name` that brings its claim along.
fn bringing(name: &str, when_deleted: &str) -> Value {
    let spec = claim("", "disk", "SingleNodeWriter")["spec"].clone();
    let template = json!({ "metadata": { "labels": { "app": "db" }, "annotations": { "note": "mine" } },
        "spec": spec, "whenDeleted": when_deleted });
    json!({ "metadata": { "name": name }, "spec": {
        "volumes": [{ "name": "data", "claimTemplate": template }] } })
}

fn the_claim(seen: &Seen, name: &str) -> Value {
    seen.get("volumeclaims", "default", name)
}

async fn runs(bench: &Bench, name: &str) {
    bench.until("it runs", |seen| phase(seen, name) == "Running").await;
}

async fn gone(bench: &Bench, name: &str) {
    bench.delete("allocations", "default", name).await;
    bench.until("it is gone", |seen| seen.get("allocations", "default", name).is_null()).await;
}

/// Scenario B92.
#[tokio::test(start_paused = true)]
async fn a_claim_that_is_brought_along_comes_and_goes_with_its_allocation() {
    let bench = Bench::new(&["a"]).await;
    disk(&bench).await;
    bench.make("allocations", bringing("app", "Delete")).await;
    runs(&bench, "app").await;
    let app = bench.seen.get("allocations", "default", "app");
    assert_eq!(app["spec"]["volumes"][0]["claimName"], "app-data", "it is named");
    let own = the_claim(&bench.seen, "app-data");
    assert!(ready(&own));
    assert_eq!(own["metadata"]["labels"], json!({ "app": "db" }));
    assert_eq!(own["metadata"]["annotations"], json!({ "note": "mine" }));
    let owners = json!([{ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Allocation", "name": "app",
        "uid": app["metadata"]["uid"], "controller": true }]);
    assert_eq!(own["metadata"]["ownerReferences"], owners);
    bench.quiet().await;
    let made =
        |path: &str| bench.writes().iter().filter(|w| w.method == "POST" && w.path.contains(path)).count();
    assert_eq!(made("/volumeclaims"), 1);
    gone(&bench, "app").await;
    bench
        .until("nothing of it is left", |seen| {
            seen.all("volumeclaims").is_empty() && seen.all("volumes").is_empty()
        })
        .await;
    bench.end().await;
}

/// Scenario B92.
#[tokio::test(start_paused = true)]
async fn an_unrelated_claim_of_that_name_is_not_taken() {
    let bench = Bench::new(&["a"]).await;
    disk(&bench).await;
    let mut others = claim("app-data", "disk", "SingleNodeWriter");
    others["metadata"]["labels"] = json!({ "of": "somebody" });
    bench.make("volumeclaims", others).await;
    bench.until("it is bound", |seen| ready(&the_claim(seen, "app-data"))).await;
    let before = the_claim(&bench.seen, "app-data")["metadata"]["uid"].clone();
    for when in ["Delete", "Retain"] {
        bench.make("allocations", bringing("app", when)).await;
        bench.until("it waits", |seen| why(&seen.get("allocations", "default", "app")) == "ClaimTaken").await;
        bench.quiet().await;
        assert_eq!(
            bench.seen.get("allocations", "default", "app")["status"]["nodeName"],
            Value::Null,
            "{when}"
        );
        gone(&bench, "app").await;
        bench.quiet().await;
        assert_eq!(
            the_claim(&bench.seen, "app-data")["metadata"]["uid"],
            before,
            "{when}: not its to delete"
        );
    }
    // It goes on by itself once the name is free.
    bench.make("allocations", bringing("app", "Delete")).await;
    bench.until("it waits", |seen| why(&seen.get("allocations", "default", "app")) == "ClaimTaken").await;
    bench.delete("volumeclaims", "default", "app-data").await;
    runs(&bench, "app").await;
    assert_ne!(the_claim(&bench.seen, "app-data")["metadata"]["uid"], before);
    gone(&bench, "app").await;
    bench.until("nothing of it is left", |seen| seen.all("volumes").is_empty()).await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn each_of_several_has_a_claim_of_its_own_that_waits_for_the_next_of_its_name() {
    let bench = Bench::new(&["a"]).await;
    disk(&bench).await;
    let volume = |name: &str| the_claim(&bench.seen, name)["status"]["volumeName"].clone();
    for name in ["db-0", "db-1"] {
        bench.make("allocations", bringing(name, "Retain")).await;
        runs(&bench, name).await;
    }
    let (first, second) = (volume("db-0-data"), volume("db-1-data"));
    assert!(first.is_string() && second.is_string() && first != second);
    let labels = the_claim(&bench.seen, "db-0-data")["metadata"]["labels"].clone();
    assert_eq!(labels, json!({ "app": "db", "wharfline.dev/allocation": "db-0" }));
    gone(&bench, "db-0").await;
    bench.quiet().await;
    assert!(ready(&the_claim(&bench.seen, "db-0-data")), "it stays");
    bench.make("allocations", bringing("db-0", "Retain")).await;
    runs(&bench, "db-0").await;
    assert_eq!(volume("db-0-data"), first);
    // One that goes with its allocation is not that one's, whatever is written on it.
    gone(&bench, "db-0").await;
    bench.make("allocations", bringing("db-0", "Delete")).await;
    bench.until("it waits", |seen| why(&seen.get("allocations", "default", "db-0")) == "ClaimTaken").await;
    for name in ["db-0", "db-1"] {
        gone(&bench, name).await;
        bench.delete("volumeclaims", "default", &format!("{name}-data")).await;
    }
    bench.until("nothing of it is left", |seen| seen.all("volumes").is_empty()).await;
    bench.end().await;
}

/// The next allocation of the name is there before the claim of the one before is gone.
#[tokio::test(start_paused = true)]
async fn the_next_of_a_name_waits_until_the_claim_of_the_one_before_is_gone() {
    let bench = Bench::new(&["a"]).await;
    disk(&bench).await;
    bench.make("allocations", bringing("app", "Delete")).await;
    runs(&bench, "app").await;
    let before = the_claim(&bench.seen, "app-data")["metadata"]["uid"].clone();
    let mut held = the_claim(&bench.seen, "app-data")["metadata"]["finalizers"].clone();
    held.as_array_mut().unwrap().push(json!("example.com/held"));
    let held = json!({ "metadata": { "finalizers": held } });
    bench.patch("volumeclaims", "default", "app-data", held).await;
    gone(&bench, "app").await;
    bench.make("allocations", bringing("app", "Delete")).await;
    let waits = |seen: &Seen| why(&seen.get("allocations", "default", "app")) == "BeingDeleted";
    bench.until("it waits", waits).await;
    bench.quiet().await;
    assert_eq!(the_claim(&bench.seen, "app-data")["metadata"]["uid"], before);
    let free = json!({ "metadata": { "finalizers": [] } });
    bench.patch("volumeclaims", "default", "app-data", free).await;
    runs(&bench, "app").await;
    assert_ne!(the_claim(&bench.seen, "app-data")["metadata"]["uid"], before);
    gone(&bench, "app").await;
    bench.until("nothing of it is left", |seen| seen.all("volumes").is_empty()).await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_not_to_run_brings_nothing_along() {
    let bench = Bench::new(&["a"]).await;
    disk(&bench).await;
    let mut stopped = bringing("app", "Delete");
    stopped["spec"]["stop"] = json!(true);
    bench.make("allocations", stopped).await;
    bench.quiet().await;
    assert_eq!(bench.seen.all("volumeclaims").len(), 0);
    bench.patch("allocations", "default", "app", json!({ "spec": { "stop": false } })).await;
    runs(&bench, "app").await;
    gone(&bench, "app").await;
    bench.until("nothing of it is left", |seen| seen.all("volumes").is_empty()).await;
    bench.end().await;
}

/// Its own claim goes while it is stopped, and somebody else's comes in its place: bound as it is, it does not get that one.
#[tokio::test(start_paused = true)]
async fn an_unrelated_claim_is_not_taken_by_one_that_has_a_node_already() {
    let bench = Bench::new(&["a"]).await;
    disk(&bench).await;
    bench.make("allocations", bringing("app", "Delete")).await;
    runs(&bench, "app").await;
    bench.patch("allocations", "default", "app", json!({ "spec": { "stop": true } })).await;
    bench.until("it is stopped", |seen| phase(seen, "app") == "Stopped").await;
    bench.delete("volumeclaims", "default", "app-data").await;
    bench.until("its claim is gone", |seen| the_claim(seen, "app-data").is_null()).await;
    bench.make("volumeclaims", claim("app-data", "disk", "SingleNodeWriter")).await;
    bench.until("the other one is bound", |seen| ready(&the_claim(seen, "app-data"))).await;
    bench.patch("allocations", "default", "app", json!({ "spec": { "stop": false } })).await;
    let told = |seen: &Seen| {
        let app = seen.get("allocations", "default", "app");
        app["status"]["obstacle"]["reason"] == "ClaimTaken"
    };
    bench.until("it is told", told).await;
    bench.quiet().await;
    let volume = bench.seen.only("volumes");
    assert!(volume["status"]["holders"].as_array().is_none_or(Vec::is_empty), "{volume}");
    assert_eq!(bench.seen.all("volumeattachments").len(), 0);
    gone(&bench, "app").await;
    bench.delete("volumeclaims", "default", "app-data").await;
    bench.until("nothing of it is left", |seen| seen.all("volumes").is_empty()).await;
    bench.end().await;
}
