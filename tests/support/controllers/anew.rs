//! Claims whose volumes were refused as they were asked for: once the claim or its class says something else, that is asked for.
use serde_json::{Value, json};

use crate::bench::{Bench, condition};
use crate::fake::Behaviour;
use crate::manifests::{claim, class, disk};
use crate::quickstart::nothing_left;

const GIB: i64 = 1 << 30;

fn size_of(volumes: &[Value]) -> Vec<i64> {
    volumes.iter().filter_map(|v| v["spec"]["source"]["create"]["requiredBytes"].as_i64()).collect()
}

/// A claim of 1 GiB at a plugin that makes no volume of more than half of that.
async fn refused() -> Bench {
    let behaviour = Behaviour { largest: GIB / 2, ..Behaviour::default() };
    let bench = Bench::with(&["a"], behaviour).await;
    disk(&bench).await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    let told = |c: &Value| condition(c, "Ready")["reason"] == "CreateVolumeFailed";
    bench.until("it is refused", |seen| told(&seen.only("volumeclaims"))).await;
    assert_eq!(bench.quiet().await.len(), 0, "nothing is begun anew by itself");
    bench
}

async fn end(bench: Bench) {
    if !bench.seen.all("volumeclaims").is_empty() {
        bench.delete("volumeclaims", "default", "c").await;
    }
    bench.delete("volumeclasses", "", "disk").await;
    bench.delete("plugins", "", "disk").await;
    bench.until("nothing is left", nothing_left).await;
    assert!(bench.ledger.is_empty(), "{:?}", bench.ledger.calls());
    bench.end().await;
}

/// Obligation CO-CTRL-17.
/// Part of obligation CO-CTRL-13.
#[tokio::test(start_paused = true)]
async fn a_claim_whose_volume_was_refused_can_be_corrected() {
    let bench = refused().await;
    let before = bench.seen.only("volumes");
    let less = json!({ "spec": { "resources": { "requests": { "storage": "256Mi" } } } });
    bench.patch("volumeclaims", "default", "c", less).await;
    bench.until("it is bound", |seen| seen.only("volumeclaims")["status"]["phase"] == "Bound").await;
    bench.until("one is left", |seen| seen.all("volumes").len() == 1).await;
    assert_eq!(size_of(&bench.seen.all("volumes")), [GIB / 4]);
    assert_ne!(
        bench.seen.only("volumes")["metadata"]["name"],
        before["metadata"]["name"],
        "a name is of one request"
    );
    assert_eq!(bench.ledger.count("create"), 1, "{:?}", bench.ledger.calls());
    let told = |e: &&Value| e["reason"] == "BegunAnew" && e["involvedObject"]["kind"] == "VolumeClaim";
    let events = bench.seen.all("events");
    assert_eq!(events.iter().filter(told).count(), 1, "{events:#?}");
    assert_eq!(bench.quiet().await.len(), 0);
    end(bench).await;
}

/// Scenario B8.
/// Part of obligation CO-CTRL-13.
/// A class cannot change, but another one can stand in its place; and a volume that is there is left alone, whatever is said.
#[tokio::test(start_paused = true)]
async fn what_its_class_says_by_now_is_asked_for_and_nothing_that_is_there_is_made_anew() {
    let bench = refused().await;
    let another = |pool: &str| {
        let mut class = class("disk", "disk");
        class["spec"]["parameters"] = json!({ "pool": pool });
        class
    };
    bench.delete("volumeclasses", "", "disk").await;
    bench.make("volumeclasses", another("slow")).await;
    let slow = json!({ "pool": "slow" });
    let asked =
        |v: &Value| v["status"]["exists"] == "Down" && v["spec"]["source"]["create"]["parameters"] == slow;
    bench.until("it is asked for so", |seen| asked(&seen.only("volumes"))).await;
    bench.behave("a", |b| b.largest = 0);
    bench.until("it is bound", |seen| seen.only("volumeclaims")["status"]["phase"] == "Bound").await;
    bench.until("one is left", |seen| seen.all("volumes").len() == 1).await;
    let there = bench.seen.only("volumes");
    assert_eq!(there["spec"]["source"]["create"]["parameters"], slow);
    bench.delete("volumeclasses", "", "disk").await;
    bench.make("volumeclasses", another("fast")).await;
    assert_eq!(bench.quiet().await.len(), 0);
    assert_eq!(bench.seen.only("volumes")["metadata"]["uid"], there["metadata"]["uid"]);
    end(bench).await;
}

/// Of a code that says nothing of what was made people are told where to look, and of one that does they are not.
#[tokio::test(start_paused = true)]
async fn what_is_taken_for_not_made_is_told_when_its_object_goes() {
    for (code, told) in [("INTERNAL", 1), ("RESOURCE_EXHAUSTED", 0)] {
        let bench = refused().await;
        let name = bench.seen.only("volumes")["metadata"]["name"].as_str().unwrap().to_owned();
        let call = json!({
            "method": "CreateVolume", "code": code, "startTime": "2026-01-01T00:00:00Z", "durationMillis": 3, "attempt": 1,
        });
        bench.patch("volumes", "", &name, json!({ "status": { "calls": [call] } })).await;
        let seen = |seen: &crate::bench::Seen| {
            let volume = seen.get("volumes", "", &name);
            volume["status"]["calls"][0]["code"] == code
        };
        bench.until("it is known", seen).await;
        bench.delete("volumeclaims", "default", "c").await;
        bench.until("it goes", |seen| seen.all("volumes").is_empty()).await;
        bench.quiet().await;
        let events = bench.seen.all("events");
        let words = "wharfline volume audit disk";
        let events = events.iter().filter(|e| e["reason"] == "TakenForNotMade");
        let events: Vec<_> = events.map(|e| e["message"].as_str().unwrap()).collect();
        assert!(events.len() == told && events.iter().all(|e| e.contains(words)), "{code}: {events:?}");
        end(bench).await;
    }
}
