//! A claim names a VolumeAttributesClass, and later another one.
use serde_json::{Value, json};

use crate::bench::{Bench, Seen, condition};
use crate::fake::{Behaviour, DISK};
use crate::manifests::{claim, disk, phase, user};

fn changing(more: &[&'static str]) -> Behaviour {
    Behaviour { capabilities: [DISK, more].concat(), ..Behaviour::default() }
}

async fn class(bench: &Bench, name: &str, plugin: &str, parameters: Value) {
    let spec = json!({ "plugin": plugin, "parameters": parameters });
    bench.make("volumeattributesclasses", json!({ "metadata": { "name": name }, "spec": spec })).await;
}

async fn want(bench: &Bench, name: &str) {
    let spec = json!({ "spec": { "volumeAttributesClassName": name } });
    bench.patch("volumeclaims", "default", "c", spec).await;
}

fn has(seen: &Seen) -> Value {
    seen.only("volumeclaims")["status"]["volumeAttributesClassName"].clone()
}

fn modified(seen: &Seen) -> Value {
    condition(&seen.only("volumeclaims"), "Modified")
}

/// Scenario B110.
/// Obligation CO-CTRL-76.
#[tokio::test(start_paused = true)]
async fn a_claims_volume_is_made_with_its_attributes_and_is_given_others() {
    let mut behaviour = changing(&["controller/MODIFY_VOLUME"]);
    behaviour.modifies = false;
    let bench = Bench::with(&["a"], behaviour).await;
    disk(&bench).await;
    let mut wanted = claim("c", "disk", "SingleNodeWriter");
    wanted["spec"]["volumeAttributesClassName"] = json!("silver");
    bench.make("volumeclaims", wanted).await;
    let ready = |seen: &Seen| condition(&seen.only("volumeclaims"), "Ready");
    bench.until("it waits for its class", |seen| ready(seen)["reason"] == "NotFound").await;
    assert_eq!(bench.quiet().await.len(), 0);
    class(&bench, "silver", "disk", json!({ "tier": "silver", "old": "yes" })).await;
    bench.make("allocations", user("one", "c", "a")).await;
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    let silver = json!({ "className": "silver", "parameters": { "tier": "silver", "old": "yes" } });
    let spec = bench.seen.only("volumes")["spec"].clone();
    assert_eq!((&spec["attributes"], &spec["source"]["create"]["attributes"]), (&silver, &silver));
    bench.until("shown", |seen| has(seen) == "silver").await;
    assert!(modified(&bench.seen).is_null());
    assert_eq!(bench.quiet().await.len(), 0);
    want(&bench, "gold").await;
    bench.until("there is no such class", |seen| modified(seen)["reason"] == "NotFound").await;
    class(&bench, "gold", "disk", json!({ "tier": "gold" })).await;
    bench.until("told", |seen| modified(seen)["reason"] == "Modifying").await;
    let gold = json!({ "className": "gold", "parameters": { "tier": "gold" } });
    assert_eq!(bench.seen.only("volumes")["spec"]["attributes"], gold, "nothing of the old class is left");
    let told = |seen: &Seen| {
        let events = seen.all("events");
        let kept = events.iter().filter(|event| event["reason"] == "AttributesKept");
        kept.map(|event| event["message"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let sentence = "class \"gold\" says nothing of old: the volume keeps that as class \"silver\" had it";
    bench.until("what stays is told", |seen| told(seen) == [sentence]).await;
    assert_eq!(bench.quiet().await.len(), 0, "waiting costs nothing");
    bench.behave("a", |b| b.modifies = true);
    bench.until("shown", |seen| has(seen) == "gold" && modified(seen).is_null()).await;
    assert_eq!(phase(&bench.seen, "one"), "Running");
    // What volumes have is theirs, whatever becomes of the class.
    bench.delete("volumeattributesclasses", "", "gold").await;
    assert_eq!(bench.quiet().await.len(), 0);
    assert_eq!(has(&bench.seen), "gold");
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn attributes_that_cannot_be_are_told_and_go_on_by_themselves() {
    let bench = Bench::with(&["a"], changing(&[])).await;
    disk(&bench).await;
    class(&bench, "gold", "disk", json!({ "tier": "gold" })).await;
    class(&bench, "alien", "elsewhere", json!({ "tier": "gold" })).await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.until("it is bound", |seen| seen.only("volumeclaims")["status"]["phase"] == "Bound").await;
    want(&bench, "alien").await;
    bench.until("of another plugin", |seen| modified(seen)["reason"] == "AttributesMismatch").await;
    let message = modified(&bench.seen)["message"].as_str().unwrap().to_owned();
    assert!(message.contains("\"elsewhere\"") && message.contains("\"disk\""), "{message}");
    want(&bench, "gold").await;
    bench.until("the plugin cannot", |seen| modified(seen)["reason"] == "PluginLacksCapability").await;
    assert!(bench.seen.only("volumes")["spec"]["attributes"].is_null());
    assert_eq!(bench.quiet().await.len(), 0);
    // A class that was named by mistake is taken back.
    let nothing = json!({ "spec": { "volumeAttributesClassName": null } });
    bench.patch("volumeclaims", "default", "c", nothing).await;
    bench.until("nothing is told", |seen| modified(seen).is_null()).await;
    want(&bench, "gold").await;
    bench.until("the plugin cannot", |seen| modified(seen)["reason"] == "PluginLacksCapability").await;
    let mut second = claim("late", "disk", "SingleNodeWriter");
    second["spec"]["volumeAttributesClassName"] = json!("gold");
    bench.make("volumeclaims", second).await;
    let late = |seen: &Seen| seen.get("volumeclaims", "default", "late");
    let lacks = |seen: &Seen| condition(&late(seen), "Ready")["reason"] == "PluginLacksCapability";
    bench.until("nothing is made", lacks).await;
    assert_eq!(bench.seen.all("volumes").len(), 1);
    bench.behave("a", |b| b.capabilities.push("controller/MODIFY_VOLUME"));
    let both = |seen: &Seen| {
        let first = seen.get("volumeclaims", "default", "c");
        [first, late(seen)].iter().all(|claim| claim["status"]["volumeAttributesClassName"] == "gold")
    };
    bench.until("both have it", both).await;
    bench.end().await;
}

/// It is taken back as well where its volume was asked for it already, and not given it.
#[tokio::test(start_paused = true)]
async fn attributes_that_were_never_given_can_be_taken_back() {
    let mut behaviour = changing(&["controller/MODIFY_VOLUME"]);
    behaviour.modifies = false;
    let bench = Bench::with(&["a"], behaviour).await;
    disk(&bench).await;
    class(&bench, "gold", "disk", json!({ "tier": "gold" })).await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.until("it is bound", |seen| seen.only("volumeclaims")["status"]["phase"] == "Bound").await;
    want(&bench, "gold").await;
    bench.until("it is asked for", |seen| !seen.only("volumes")["spec"]["attributes"].is_null()).await;
    let nothing = json!({ "spec": { "volumeAttributesClassName": null } });
    bench.patch("volumeclaims", "default", "c", nothing).await;
    bench.until("not any more", |seen| seen.only("volumes")["spec"]["attributes"].is_null()).await;
    bench.until("nothing is told", |seen| modified(seen).is_null()).await;
    assert_eq!(bench.quiet().await.len(), 0);
    bench.end().await;
}
