//! Updates of plugins: what a moment of health counts for, and who serves until the next instance is up.
use serde_json::json;

use crate::bench::{Bench, Seen, condition};
use crate::fake::Behaviour;
use crate::manifests::{disk, ready, why};
use crate::plugins::{change, disks, updated, with};

/// A version that gets ready and then is not would else be everywhere before anybody knew.
#[tokio::test(start_paused = true)]
async fn a_moment_of_health_neither_stops_the_former_one_nor_gives_the_next_node_its_turn() {
    let bench = Bench::with(&["a", "b"], disks()).await;
    disk(&bench).await;
    change(&bench, "NEXT", json!(null)).await;
    let well = |seen: &Seen| {
        let next =
            seen.all("allocations").into_iter().find(|a| a["spec"]["tasks"][0]["env"].get("NEXT").is_some());
        let uid = next.map(|next| next["metadata"]["uid"].clone()).unwrap_or_default();
        seen.all("plugininstances").iter().any(|i| i["spec"]["allocation"]["uid"] == uid && ready(i))
    };
    for _ in 0..3 {
        bench.until("it is well", well).await;
        crate::bench::pass(5).await;
        let said = updated(&bench.seen)["message"].as_str().unwrap().to_owned();
        assert!(
            said.contains("waits until the next instance on a has been healthy for 10 s")
                && said.contains("minHealthyTime"),
            "{said}"
        );
        bench.behave("a", |b| b.poison = "NEXT");
        bench.until("and is not", |seen| !well(seen)).await;
        crate::bench::pass(30).await;
        assert_eq!(with(&bench.seen, "NEXT"), ["a"], "b has its turn when a is through");
        assert_eq!(bench.seen.all("plugininstances").len(), 3, "the former one serves on");
        bench.behave("a", |b| b.poison = "");
    }
    bench.until("through", |seen| updated(seen)["status"] == "True").await;
    assert_eq!(with(&bench.seen, "NEXT"), ["a", "b"]);
    assert_eq!(bench.quiet().await.len(), 0);
    // Who wants no such wait says so.
    bench.behave("a", |b| b.poison = "LAST");
    change(&bench, "LAST", json!({ "minHealthyTime": "0s", "maxSurge": 2 })).await;
    bench
        .until("b is through at once", |seen| {
            let at = |name: &str| with(seen, name).contains(&"b".to_owned());
            at("LAST") && !at("NEXT")
        })
        .await;
    bench.end().await;
}

/// While both run until the next one is up, the former one is ended by nothing else: volumes are served by it.
#[tokio::test(start_paused = true)]
async fn a_former_instance_that_somebody_deletes_serves_until_the_next_one_is_up() {
    let bench = Bench::with(&["a"], Behaviour { poison: "NEXT", ..disks() }).await;
    disk(&bench).await;
    let former = bench.seen.only("plugininstances")["spec"]["allocation"].clone();
    change(&bench, "NEXT", json!(null)).await;
    bench.until("held", |seen| updated(seen)["reason"] == "UpdateHeld").await;
    bench.delete("allocations", "wharfline-system", former["name"].as_str().unwrap()).await;
    bench.quiet().await;
    let serves = |seen: &Seen| {
        let all = seen.all("plugininstances");
        all.iter().any(|i| i["spec"]["allocation"]["uid"] == former["uid"] && ready(i))
    };
    assert!(serves(&bench.seen), "it serves still");
    let plugin = bench.seen.get("plugins", "", "disk");
    assert_eq!(plugin["status"]["nodes"], json!({ "healthy": 1, "expected": 1 }), "{plugin}");
    let said = condition(&plugin, "Ready");
    assert_eq!(said["reason"], "SuccessorNotReady", "{said}");
    bench.behave("a", |b| b.poison = "");
    bench.until("through", |seen| updated(seen)["status"] == "True").await;
    bench.until("it has gone", |seen| !serves(seen)).await;
    bench.until("ready", |seen| ready(&seen.get("plugins", "", "disk"))).await;
    bench.end().await;
}

/// That it ends no more soon after each start is all that the next one lacked.
#[tokio::test(start_paused = true)]
async fn a_former_instance_goes_once_the_next_one_is_steady() {
    let bench = Bench::with(&["a"], disks()).await;
    disk(&bench).await;
    let former = bench.seen.only("plugininstances")["spec"]["allocation"].clone();
    bench.behave("a", |b| b.shaky = "NEXT");
    change(&bench, "NEXT", json!(null)).await;
    let all_ready = |seen: &Seen| {
        let all = seen.all("plugininstances");
        all.len() == 2 && all.iter().all(ready)
    };
    bench.until("both are well", all_ready).await;
    bench.until("held", |seen| updated(seen)["reason"] == "UpdateHeld").await;
    bench.quiet().await;
    assert_eq!(why(&bench.seen.get("plugins", "", "disk")), "Ready", "the former one serves, and is steady");
    bench.delete("allocations", "wharfline-system", former["name"].as_str().unwrap()).await;
    bench.until("held", |seen| updated(seen)["reason"] == "UpdateHeld").await;
    bench.quiet().await;
    let serves = |seen: &Seen| {
        seen.all("plugininstances").iter().any(|i| i["spec"]["allocation"]["uid"] == former["uid"])
    };
    assert!(serves(&bench.seen), "it serves still");
    bench.behave("a", |b| b.shaky = "");
    bench.until("it has gone", |seen| !serves(seen)).await;
    bench.until("through", |seen| updated(seen)["status"] == "True").await;
    bench.end().await;
}

/// What the next one lacks is said for as long as it is said of it, however often it was started again for that.
#[tokio::test(start_paused = true)]
async fn a_held_change_says_what_the_next_instance_lacks() {
    let bench = Bench::with(&["a"], Behaviour { poison: "NEXT", unready: "HealthTimeout", ..disks() }).await;
    disk(&bench).await;
    change(&bench, "NEXT", json!(null)).await;
    let says = |seen: &Seen, what: &str| {
        let updated = updated(seen);
        updated["reason"] == "UpdateHeld" && updated["message"].as_str().unwrap().contains(what)
    };
    bench.until("held", |seen| says(seen, "HealthTimeout on node \"a\": as told")).await;
    bench.behave("a", |b| b.unready = "ProcessEnded");
    bench.until("held", |seen| says(seen, "on node \"a\": it ends soon after each start")).await;
    bench.end().await;
}

/// Who changes a spec many times soon after each other has the last of them beside the one that served, and none of those between.
#[tokio::test(start_paused = true)]
async fn what_was_replaced_before_it_was_settled_goes_at_once() {
    let bench = Bench::with(&["a"], disks()).await;
    disk(&bench).await;
    crate::bench::pass(30).await;
    for word in ["ONE", "TWO", "THREE"] {
        change(&bench, word, json!(null)).await;
        let well = |seen: &Seen| {
            with(seen, word).len() == 1
                && seen.all("plugininstances").iter().filter(|i| ready(i)).count() >= 2
        };
        bench.until("it is well", well).await;
        crate::bench::pass(2).await;
    }
    bench.until("two are left", |seen| seen.all("plugininstances").len() == 2).await;
    assert_eq!(with(&bench.seen, "THREE"), ["a"]);
    assert_eq!((with(&bench.seen, "ONE").len(), with(&bench.seen, "TWO").len()), (0, 0));
    assert_eq!(updated(&bench.seen)["status"], "False", "it is not through");
    bench.until("through", |seen| updated(seen)["status"] == "True").await;
    assert_eq!(bench.seen.all("plugininstances").len(), 1);
    bench.end().await;
}
