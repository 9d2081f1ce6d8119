//! Snapshots of claims, claims that are filled from them, and who waits for whom.
use std::time::Duration;

use serde_json::{Value, json};

use crate::bench::{Bench, Seen, condition};
use crate::fake::{Behaviour, DIR, DISK};
use crate::manifests::{claim, class, disk, plugin, ready, why};

const SNAPSHOT: &str = "controller/CREATE_DELETE_SNAPSHOT";
/// Its host tells how large a volume is.
const SIZED: &str = "controller/EXPAND_VOLUME";

fn picturing(of: &[&'static str]) -> Behaviour {
    Behaviour { capabilities: [of, &[SNAPSHOT, SIZED]].concat(), ..Behaviour::default() }
}

fn snapshot(name: &str, claim: &str) -> Value {
    json!({ "metadata": { "name": name }, "spec": { "source": { "claimName": claim } } })
}

fn restore(name: &str, snapshot: &str, size: Option<&str>) -> Value {
    let mut claim = claim(name, "disk", "SingleNodeWriter");
    claim["spec"]["dataSource"] = json!({ "snapshotName": snapshot });
    claim["spec"]["resources"] = size.map_or(Value::Null, |size| json!({ "requests": { "storage": size } }));
    claim
}

fn snap(seen: &Seen, name: &str) -> Value {
    seen.get("snapshots", "default", name)
}

fn told(seen: &Seen, claim: &str) -> Value {
    condition(&seen.get("volumeclaims", "default", claim), "Ready")
}

fn bound(seen: &Seen, name: &str) -> bool {
    seen.get("volumeclaims", "default", name)["status"]["phase"] == "Bound"
}

fn volume_of(seen: &Seen, claim: &str) -> Value {
    let all = seen.all("volumes");
    all.into_iter().find(|v| v["spec"]["claimRef"]["name"] == claim).unwrap_or_default()
}

fn gone(seen: &Seen, claim: &str) -> bool {
    seen.get("volumeclaims", "default", claim).is_null()
}

/// A bound claim `data`; no snapshot is taken.
async fn halted(behaviour: Behaviour) -> Bench {
    let bench = Bench::with(&["a", "b"], Behaviour { takes: false, ..behaviour }).await;
    disk(&bench).await;
    let settings = json!({ "spec": { "snapshotParameters": { "tier": "cold" },
        "secrets": { "snapshot": { "namespace": "default", "name": "keys" } } } });
    bench.patch("volumeclasses", "", "disk", settings).await;
    bench.make("volumeclaims", claim("data", "disk", "SingleNodeWriter")).await;
    bench.until("data is bound", |seen| bound(seen, "data")).await;
    bench
}

fn take(bench: &Bench, takes: bool) {
    for node in ["a", "b"] {
        bench.behave(node, |b| b.takes = takes);
    }
}

/// Scenario B99.
#[tokio::test(start_paused = true)]
async fn a_snapshot_is_made_by_its_volumes_host_and_the_claim_stays_for_it() {
    let bench = halted(picturing(DISK)).await;
    let data = volume_of(&bench.seen, "data");
    bench.make("snapshots", snapshot("nightly", "data")).await;
    bench.until("it has a host", |seen| snap(seen, "nightly")["status"]["controller"].is_object()).await;
    let made = snap(&bench.seen, "nightly");
    let of = json!({ "plugin": "disk", "volume": data["metadata"]["name"], "uid": data["metadata"]["uid"],
        "handle": data["status"]["handle"], "volumeMode": "Filesystem", "parameters": { "tier": "cold" },
        "secret": { "namespace": "default", "name": "keys" } });
    assert_eq!(made["status"]["of"], of);
    assert_eq!(made["status"]["controller"]["nodeName"], data["status"]["controller"]["nodeName"]);
    let entered = &volume_of(&bench.seen, "data")["status"]["snapshots"];
    assert_eq!(entered[0]["uid"], made["metadata"]["uid"], "{entered}");
    bench.delete("volumeclaims", "default", "data").await;
    bench.until("who pictures it is told", |seen| told(seen, "data")["reason"] == "InUse").await;
    let message = told(&bench.seen, "data")["message"].as_str().unwrap().to_owned();
    assert!(message.contains("snapshot default/nightly"), "{message}");
    assert_eq!(bench.quiet().await.len(), 0, "waiting costs nothing");
    take(&bench, true);
    bench.until("it is ready", |seen| ready(&snap(seen, "nightly"))).await;
    bench.until("data is gone", |seen| gone(seen, "data")).await;
    bench.until("and its volume", |seen| seen.all("volumes").is_empty()).await;
    assert!(ready(&snap(&bench.seen, "nightly")), "it needs its volume no more");
    // A claim is filled from it, and it stays for that.
    for node in ["a", "b"] {
        bench.behave(node, |b| b.creates = false);
    }
    bench.make("volumeclaims", restore("back", "nightly", None)).await;
    bench.until("it has a host", |seen| volume_of(seen, "back")["status"]["controller"].is_object()).await;
    let made = volume_of(&bench.seen, "back");
    let create = &made["spec"]["source"]["create"];
    let content = json!({ "snapshot": "default/nightly", "uid": snap(&bench.seen, "nightly")["metadata"]["uid"],
        "handle": snap(&bench.seen, "nightly")["status"]["handle"] });
    assert_eq!((&create["content"], &create["requiredBytes"]), (&content, &json!(1 << 30)));
    bench.delete("snapshots", "default", "nightly").await;
    bench.until("who is filled is told", |seen| why(&snap(seen, "nightly")) == "InUse").await;
    assert_eq!(bench.quiet().await.len(), 0);
    for node in ["a", "b"] {
        bench.behave(node, |b| b.creates = true);
    }
    bench.until("it is filled", |seen| bound(seen, "back")).await;
    bench.until("the snapshot is gone", |seen| snap(seen, "nightly").is_null()).await;
    let last = bench.ledger.calls().pop().unwrap();
    assert!(last.starts_with("delete snap-"), "{last}");
    bench.end().await;
}

/// Scenario B98.
#[tokio::test(start_paused = true)]
async fn what_is_waited_for_is_told_and_what_was_never_asked_for_goes_at_once() {
    let behaviour = Behaviour { capabilities: [DISK, &[SIZED]].concat(), ..Behaviour::default() };
    let bench = Bench::with(&["a"], behaviour).await;
    disk(&bench).await;
    bench.make("snapshots", snapshot("nightly", "data")).await;
    bench.until("there is no claim", |seen| why(&snap(seen, "nightly")) == "NotFound").await;
    bench.make("volumeclaims", restore("back", "nightly", Some("2Gi"))).await;
    bench.until("the plugin cannot", |seen| told(seen, "back")["reason"] == "PluginLacksCapability").await;
    bench.make("volumeclaims", claim("data", "disk", "SingleNodeWriter")).await;
    bench.until("the plugin cannot", |seen| why(&snap(seen, "nightly")) == "PluginLacksCapability").await;
    assert_eq!(bench.quiet().await.len(), 0);
    bench.make("snapshots", snapshot("never", "data")).await;
    bench.delete("snapshots", "default", "never").await;
    bench.until("it goes", |seen| snap(seen, "never").is_null()).await;
    bench.behave("a", |b| {
        b.takes = false;
        b.capabilities.push(SNAPSHOT);
    });
    bench.until("it is not ready", |seen| told(seen, "back")["reason"] == "SourceNotReady").await;
    bench.behave("a", |b| b.takes = true);
    bench.until("it is filled", |seen| bound(seen, "back")).await;
    bench.make("volumeclaims", restore("small", "nightly", Some("1Mi"))).await;
    bench.until("it does not fit", |seen| told(seen, "small")["reason"] == "SourceMismatch").await;
    // Retain leaves it where it is.
    bench.patch("snapshots", "default", "nightly", json!({ "spec": { "deletionPolicy": "Retain" } })).await;
    let handle = snap(&bench.seen, "nightly")["status"]["handle"].as_str().unwrap().to_owned();
    bench.delete("snapshots", "default", "nightly").await;
    bench.until("it goes", |seen| snap(seen, "nightly").is_null()).await;
    let events = bench.seen.all("events");
    let kept =
        events.iter().filter(|event| event["reason"] == "Kept").map(|event| event["message"].to_string());
    let kept: Vec<_> = kept.collect();
    assert!(kept.len() == 1 && kept[0].contains(&handle) && kept[0].contains("snapshot adopt"), "{kept:?}");
    assert!(!bench.ledger.calls().iter().any(|call| call.starts_with("delete snap-")));
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn one_that_was_there_and_those_of_one_node_are_restored_where_they_are() {
    let bench = Bench::with(&["a", "b"], picturing(DIR)).await;
    bench.make("plugins", plugin("disk", "Node")).await;
    bench.make("volumeclasses", class("disk", "disk")).await;
    let all = |seen: &Seen| seen.all("plugininstances").iter().filter(|i| ready(i)).count() == 2;
    bench.until("both are ready", all).await;
    bench.make("volumeclaims", claim("data", "disk", "SingleNodeWriter")).await;
    bench.until("data is bound", |seen| bound(seen, "data")).await;
    let node =
        |seen: &Seen, claim: &str| volume_of(seen, claim)["spec"]["source"]["create"]["nodeName"].clone();
    let there = node(&bench.seen, "data");
    bench.make("snapshots", snapshot("nightly", "data")).await;
    bench.until("it is ready", |seen| ready(&snap(seen, "nightly"))).await;
    assert_eq!(snap(&bench.seen, "nightly")["status"]["controller"]["nodeName"], there);
    for name in ["one", "two"] {
        bench.make("volumeclaims", restore(name, "nightly", None)).await;
        bench.until("it is filled", |seen| bound(seen, name)).await;
        assert_eq!(node(&bench.seen, name), there, "{name}");
    }
    let found = |node: Value| {
        let source = json!({ "handle": "by-hand", "plugin": "disk", "nodeName": node });
        json!({ "metadata": { "name": "found" }, "spec": { "source": source } })
    };
    bench.make("snapshots", found(Value::Null)).await;
    bench.until("its node is asked for", |seen| why(&snap(seen, "found")) == "NodeNotNamed").await;
    bench.delete("snapshots", "default", "found").await;
    bench.until("it goes", |seen| snap(seen, "found").is_null()).await;
    bench.make("snapshots", found(json!("b"))).await;
    bench.until("it is found", |seen| ready(&snap(seen, "found"))).await;
    assert_eq!(snap(&bench.seen, "found")["status"]["controller"]["nodeName"], "b");
    bench.delete("snapshots", "default", "found").await;
    bench.until("it goes", |seen| snap(seen, "found").is_null()).await;
    bench.end().await;
}

/// What one of two deleted the other would have lost.
#[tokio::test(start_paused = true)]
async fn of_one_handle_there_is_one_snapshot() {
    let bench = halted(picturing(DISK)).await;
    take(&bench, true);
    bench.make("snapshots", snapshot("nightly", "data")).await;
    bench.until("it is ready", |seen| ready(&snap(seen, "nightly"))).await;
    let handle = snap(&bench.seen, "nightly")["status"]["handle"].clone();
    let found = |name: &str, handle: &Value| {
        let source = json!({ "handle": handle, "plugin": "disk" });
        json!({ "metadata": { "name": name }, "spec": { "source": source } })
    };
    bench.make("snapshots", found("same", &handle)).await;
    bench.until("it is not taken up", |seen| why(&snap(seen, "same")) == "HandleShared").await;
    let message = condition(&snap(&bench.seen, "same"), "Ready")["message"].as_str().unwrap().to_owned();
    assert!(message.contains("snapshot default/nightly"), "{message}");
    // Of two that were there the first one.
    bench.make("snapshots", found("first", &json!("by-hand"))).await;
    bench.until("it is ready", |seen| ready(&snap(seen, "first"))).await;
    bench.make("snapshots", found("another", &json!("by-hand"))).await;
    bench.until("it is not taken up", |seen| why(&snap(seen, "another")) == "HandleShared").await;
    assert_eq!(bench.quiet().await.len(), 0);
    bench.delete("snapshots", "default", "first").await;
    bench.until("it is its turn", |seen| ready(&snap(seen, "another"))).await;
    bench.patch("snapshots", "default", "nightly", json!({ "spec": { "deletionPolicy": "Retain" } })).await;
    bench.delete("snapshots", "default", "nightly").await;
    bench.until("it stays at the plugin, and is found", |seen| ready(&snap(seen, "same"))).await;
    assert_eq!(snap(&bench.seen, "same")["status"]["handle"], handle);
    bench.end().await;
}

/// Of two snapshots with one id a driver loses the data of both with the deletion of one.
#[tokio::test(start_paused = true)]
async fn a_snapshot_that_was_given_the_handle_of_another_one_is_not_used_and_goes_alone() {
    let bench = halted(picturing(DISK)).await;
    take(&bench, true);
    for node in ["a", "b"] {
        bench.behave(node, |b| b.one_handle = "same");
    }
    bench.make("snapshots", snapshot("first", "data")).await;
    bench.until("it is ready", |seen| ready(&snap(seen, "first"))).await;
    bench.make("snapshots", snapshot("second", "data")).await;
    bench.until("it is not to be used", |seen| why(&snap(seen, "second")) == "HandleShared").await;
    let message = condition(&snap(&bench.seen, "second"), "Ready")["message"].as_str().unwrap().to_owned();
    assert!(message.contains("the handle of snapshot default/first"), "{message}");
    let shared = |seen: &Seen, name: &str| condition(&snap(seen, name), "HandleShared")["status"] == "True";
    assert!(shared(&bench.seen, "second") && !shared(&bench.seen, "first"));
    assert!(ready(&snap(&bench.seen, "first")), "it is as good as before");
    bench.make("volumeclaims", restore("back", "second", Some("1Gi"))).await;
    let waits =
        |seen: &Seen| told(seen, "back")["message"].as_str().unwrap_or_default().contains("handle of");
    bench.until("nothing is filled from it", waits).await;
    // It goes alone, whether the other one is there or stays at the backend.
    bench.make("snapshots", snapshot("third", "data")).await;
    bench.until("it is not to be used", |seen| why(&snap(seen, "third")) == "HandleShared").await;
    bench.patch("snapshots", "default", "first", json!({ "spec": { "deletionPolicy": "Retain" } })).await;
    for name in ["second", "first", "third"] {
        bench.delete("snapshots", "default", name).await;
        bench.until("it is gone", |seen| snap(seen, name).is_null()).await;
    }
    let deleted = bench.ledger.calls().into_iter().filter(|call| call.starts_with("delete snap-"));
    assert_eq!(deleted.count(), 0);
    bench.end().await;
}

/// A person has said that it is wanted, whether it is used by that or not.
#[tokio::test(start_paused = true)]
async fn nothing_is_deleted_under_a_snapshot_that_was_registered_by_its_handle() {
    let bench = halted(picturing(DISK)).await;
    take(&bench, true);
    bench.make("snapshots", snapshot("nightly", "data")).await;
    bench.until("it is ready", |seen| ready(&snap(seen, "nightly"))).await;
    let handle = snap(&bench.seen, "nightly")["status"]["handle"].clone();
    let source = json!({ "handle": handle, "plugin": "disk" });
    bench.make("snapshots", json!({ "metadata": { "name": "same" }, "spec": { "source": source } })).await;
    bench.until("it is not taken up", |seen| why(&snap(seen, "same")) == "HandleShared").await;
    bench.delete("snapshots", "default", "nightly").await;
    bench.quiet().await;
    let shared = condition(&snap(&bench.seen, "nightly"), "HandleShared");
    assert_eq!((&shared["status"], &shared["reason"]), (&json!("True"), &json!("HandleShared")));
    assert!(shared["message"].as_str().unwrap().contains("snapshot default/same"), "{shared}");
    let deleted = |bench: &Bench| {
        bench.ledger.calls().into_iter().filter(|call| call.starts_with("delete snap-")).count()
    };
    assert_eq!(deleted(&bench), 0);
    bench.delete("snapshots", "default", "same").await;
    bench.until("it is gone", |seen| snap(seen, "nightly").is_null()).await;
    assert_eq!(deleted(&bench), 1);
    bench.end().await;
}

/// Its host may be at the deletion that was wanted before.
#[tokio::test(start_paused = true)]
async fn a_snapshot_that_is_kept_while_it_is_being_deleted_waits_for_the_word_of_its_host() {
    for (exists, reason) in [("Up", "Kept"), ("Unknown", "KeptInDoubt"), ("Down", "Deleted")] {
        let bench = halted(picturing(DISK)).await;
        take(&bench, true);
        bench.make("snapshots", snapshot("nightly", "data")).await;
        bench.until("it is ready", |seen| ready(&snap(seen, "nightly"))).await;
        take(&bench, false);
        bench.delete("snapshots", "default", "nightly").await;
        crate::bench::pass(5).await;
        let keep = json!({ "spec": { "deletionPolicy": "Retain" } });
        bench.patch("snapshots", "default", "nightly", keep).await;
        bench.until("asked", |seen| !snap(seen, "nightly")["status"]["askedToRelease"].is_null()).await;
        bench.patch("snapshots", "default", "nightly", json!({ "status": { "exists": exists } })).await;
        bench.quiet().await;
        assert!(!snap(&bench.seen, "nightly").is_null() || exists == "Down", "{exists}");
        for node in ["a", "b"] {
            bench.behave(node, |b| b.lets_go = true);
        }
        bench.until("it goes", |seen| snap(seen, "nightly").is_null()).await;
        let told = |seen: &Seen| seen.all("events").iter().filter(|event| event["reason"] == reason).count();
        bench.until("it is told", |seen| told(seen) == 1).await;
        bench.end().await;
    }
}

/// What a plugin gives again may be what it deletes once more: it is asked again when that is over.
#[tokio::test(start_paused = true)]
async fn a_snapshot_of_a_handle_that_was_being_deleted_is_asked_for_once_more() {
    let bench = halted(picturing(DISK)).await;
    take(&bench, true);
    for node in ["a", "b"] {
        bench.behave(node, |b| b.one_handle = "s-1");
    }
    bench.make("snapshots", snapshot("first", "data")).await;
    bench.until("it is ready", |seen| ready(&snap(seen, "first"))).await;
    take(&bench, false);
    bench.delete("snapshots", "default", "first").await;
    bench.make("snapshots", snapshot("second", "data")).await;
    bench.until("it has a host", |seen| snap(seen, "second")["status"]["controller"].is_object()).await;
    let given = json!({ "status": { "exists": "Up", "handle": "s-1", "size": "1Gi", "ready": true, "observedEpoch": 1 } });
    bench.patch("snapshots", "default", "second", given).await;
    bench.until("it waits", |seen| why(&snap(seen, "second")) == "HandleEnding").await;
    bench.make("volumeclaims", restore("back", "second", Some("1Gi"))).await;
    bench.quiet().await;
    assert!(!ready(&snap(&bench.seen, "second")));
    bench.patch("snapshots", "default", "first", json!({ "status": { "exists": "Down" } })).await;
    bench.until("the first one is gone", |seen| snap(seen, "first").is_null()).await;
    crate::bench::pass(5).await;
    assert!(!ready(&snap(&bench.seen, "second")), "what it was given may be gone");
    assert_eq!(bench.seen.all("volumes").len(), 1, "nothing is filled from it");
    let told = told(&bench.seen, "back")["message"].as_str().unwrap().to_owned();
    assert!(told.contains("asked for it once more"), "{told}");
    take(&bench, true);
    bench.until("it is ready", |seen| ready(&snap(seen, "second"))).await;
    assert_eq!(bench.ledger.count("again"), 1);
    bench.until("the claim is filled", |seen| bound(seen, "back")).await;
    bench.end().await;
}

/// Controllers with old caches beside others, and deletions in the very moment: the ledger refuses what must not be.
#[tokio::test(start_paused = true)]
async fn nothing_is_pictured_or_filled_that_is_gone_whoever_decides() {
    for late in [0, 1, 4] {
        for after in [0, 300, 1_500, 5_000] {
            let mut bench = Bench::with(&["a"], picturing(DISK)).await;
            disk(&bench).await;
            bench.make("volumeclaims", claim("data", "disk", "SingleNodeWriter")).await;
            bench.until("data is bound", |seen| bound(seen, "data")).await;
            let slow = Duration::from_secs(late);
            bench.start_others(&[("volumes", slow), ("snapshots", slow * 2), ("volumeclaims", slow / 2)]);
            bench.make("snapshots", snapshot("nightly", "data")).await;
            crate::bench::pass_millis(after).await;
            bench.delete("volumeclaims", "default", "data").await;
            bench.until("data is gone", |seen| gone(seen, "data")).await;
            let known = |seen: &Seen| {
                let snap = snap(seen, "nightly");
                ready(&snap) || ["NotFound", "BeingDeleted"].contains(&why(&snap).as_str())
            };
            bench.until("it is ready, or was never begun", known).await;
            bench.make("volumeclaims", restore("back", "nightly", None)).await;
            crate::bench::pass_millis(after).await;
            bench.delete("snapshots", "default", "nightly").await;
            bench.until("the snapshot is gone", |seen| snap(seen, "nightly").is_null()).await;
            let settled = |seen: &Seen| bound(seen, "back") || told(seen, "back")["reason"] == "NotFound";
            bench.until("it is filled, or was never begun", settled).await;
            bench.quiet().await;
            bench.delete("volumeclaims", "default", "back").await;
            bench.until("nothing is left", |seen| seen.all("volumes").is_empty()).await;
            bench.end().await;
        }
    }
}

/// Controllers whose snapshots are those of before, when it was not known yet of which volume they are.
#[tokio::test(start_paused = true)]
async fn what_a_volume_names_stays_named_by_those_who_know_less_of_it() {
    let late = Duration::from_secs(10);
    let mut bench = halted(picturing(DISK)).await;
    bench.start_others(&[("snapshots", late)]);
    bench.make("snapshots", snapshot("nightly", "later")).await;
    crate::bench::pass(5).await;
    bench.make("volumeclaims", claim("later", "disk", "SingleNodeWriter")).await;
    bench.until("it has a host", |seen| snap(seen, "nightly")["status"]["controller"].is_object()).await;
    let volume = volume_of(&bench.seen, "later");
    assert_eq!(volume["status"]["snapshots"][0]["uid"], snap(&bench.seen, "nightly")["metadata"]["uid"]);
    // They have the Snapshot by now, and not what was said of it since.
    crate::bench::pass(late.as_secs() - 3).await;
    let before = bench.writes().len();
    let name = volume["metadata"]["name"].as_str().unwrap();
    bench.patch("volumes", "", name, json!({ "metadata": { "labels": { "look": "again" } } })).await;
    crate::bench::pass(1).await;
    let written = bench.writes().split_off(before);
    let written: Vec<_> = written.iter().filter(|write| write.path.contains("/volumes/")).collect();
    assert!(written.is_empty(), "{} {}", written[0].method, written[0].path);
    take(&bench, true);
    bench.until("it is ready", |seen| ready(&snap(seen, "nightly"))).await;
    bench.end().await;
}

/// Without its plugin nobody knows which of them has it, and it goes on when that is there.
#[tokio::test(start_paused = true)]
async fn a_snapshot_that_was_there_waits_for_its_plugin() {
    let bench = Bench::with(&["a"], picturing(DISK)).await;
    let source = json!({ "handle": "h", "plugin": "disk" });
    bench.make("snapshots", json!({ "metadata": { "name": "old" }, "spec": { "source": source } })).await;
    bench.until("there is none", |seen| why(&snap(seen, "old")) == "NotFound").await;
    assert_eq!(snap(&bench.seen, "old")["status"]["of"], Value::Null);
    assert_eq!(bench.quiet().await.len(), 0, "waiting costs nothing");
    disk(&bench).await;
    bench.until("it has a host", |seen| snap(seen, "old")["status"]["controller"].is_object()).await;
    bench.end().await;
}

/// Whoever began the volume had seen a snapshot that was gone by then; one made anew under its name is another one.
#[tokio::test(start_paused = true)]
async fn a_claim_is_filled_from_the_snapshot_that_there_is() {
    let bench = halted(picturing(DISK)).await;
    take(&bench, true);
    bench.make("volumeclaims", restore("back", "nightly", Some("1Gi"))).await;
    bench.until("there is none", |seen| told(seen, "back")["reason"] == "NotFound").await;
    let claim = bench.seen.get("volumeclaims", "default", "back");
    let name = format!("vol-{}-1", claim["metadata"]["uid"].as_str().unwrap());
    let content = json!({ "snapshot": "default/nightly", "uid": "gone", "handle": "gone" });
    let create = json!({ "name": name, "requiredBytes": 1 << 30, "content": content });
    let of = json!({ "namespace": "default", "name": "back", "uid": claim["metadata"]["uid"] });
    let begun = json!({ "metadata": { "name": name }, "spec": { "plugin": "disk", "claimRef": of,
        "accessModes": ["SingleNodeWriter"], "source": { "create": create } } });
    bench.make("volumes", begun).await;
    bench.until("it goes again", |seen| seen.get("volumes", "", &name).is_null()).await;
    bench.make("snapshots", snapshot("nightly", "data")).await;
    bench.until("it is filled", |seen| bound(seen, "back")).await;
    let filled = volume_of(&bench.seen, "back");
    let content = &filled["spec"]["source"]["create"]["content"];
    assert_eq!(content["uid"], snap(&bench.seen, "nightly")["metadata"]["uid"]);
    let asked = bench.ledger.calls().into_iter().filter(|call| call.starts_with("create vol-")).count();
    assert_eq!(asked, 2, "data's and this one: {:?}", bench.ledger.calls());
    bench.end().await;
}

/// Until it is ready its calls are about its volume as well, and so it has that one's host.
#[tokio::test(start_paused = true)]
async fn a_snapshot_that_is_being_cut_goes_with_its_volume_to_another_host() {
    let bench = halted(picturing(DISK)).await;
    for node in ["a", "b"] {
        bench.behave(node, |b| b.lets_go = true);
    }
    bench.make("snapshots", snapshot("nightly", "data")).await;
    bench.until("it has a host", |seen| snap(seen, "nightly")["status"]["controller"].is_object()).await;
    let mut volume = volume_of(&bench.seen, "data");
    let first = volume["status"]["controller"]["nodeName"].as_str().unwrap().to_owned();
    let other = if first == "a" { "b" } else { "a" };
    // As if the volume had let go of its host.
    let host = json!({ "nodeName": other, "epoch": 2 });
    let name = volume["metadata"]["name"].take();
    bench.patch("volumes", "", name.as_str().unwrap(), json!({ "status": { "controller": host } })).await;
    let follows = |seen: &Seen| snap(seen, "nightly")["status"]["controller"]["nodeName"] == other;
    bench.until("the snapshot follows", follows).await;
    assert_eq!(snap(&bench.seen, "nightly")["status"]["controller"]["epoch"], 2);
    take(&bench, true);
    bench.until("it is ready", |seen| ready(&snap(seen, "nightly"))).await;
    bench.end().await;
}

/// What a volume is asked with it has for life; what else its class says is not made up where the class is gone.
#[tokio::test(start_paused = true)]
async fn a_snapshot_has_its_volumes_secret_and_the_parameters_of_the_class_that_is_meant() {
    let bench = halted(picturing(DISK)).await;
    let other = json!({ "spec": { "snapshotParameters": { "tier": "hot" },
        "secrets": { "snapshot": { "namespace": "default", "name": "other" } } } });
    bench.patch("volumeclasses", "", "disk", other).await;
    bench.make("snapshots", snapshot("one", "data")).await;
    let of = |seen: &Seen, name: &str| snap(seen, name)["status"]["of"].clone();
    bench.until("frozen", |seen| of(seen, "one").is_object()).await;
    let frozen = of(&bench.seen, "one");
    assert_eq!(
        (&frozen["secret"]["name"], &frozen["parameters"]),
        (&json!("keys"), &json!({ "tier": "hot" }))
    );
    bench.delete("volumeclasses", "", "disk").await;
    bench.make("snapshots", snapshot("two", "data")).await;
    bench.until("waits for the class", |seen| why(&snap(seen, "two")) == "NotFound").await;
    assert_eq!(of(&bench.seen, "two"), Value::Null);
    // A class of another plugin has another driver's Secret.
    bench.make("volumeclasses", class("alien", "elsewhere")).await;
    let mut foreign = json!({ "metadata": { "name": "three" }, "spec": { "volumeClassName": "alien",
        "source": { "handle": "h", "plugin": "disk" } } });
    bench.make("snapshots", foreign.clone()).await;
    bench.until("refused", |seen| why(&snap(seen, "three")) == "SourceMismatch").await;
    foreign["metadata"]["name"] = json!("four");
    foreign["spec"]["volumeClassName"].take();
    bench.delete("snapshots", "default", "three").await;
    bench.make("snapshots", foreign).await;
    bench.until("taken", |seen| of(seen, "four").is_object()).await;
    bench.end().await;
}

/// One that is to be kept, and nobody knows what came of it, is asked for on; but not for ever.
#[tokio::test(start_paused = true)]
async fn what_is_kept_and_in_doubt_is_asked_for_a_while() {
    let bench = halted(picturing(DISK)).await;
    let mut kept = snapshot("nightly", "data");
    kept["spec"]["deletionPolicy"] = json!("Retain");
    bench.make("snapshots", kept).await;
    bench.until("asked for", |seen| snap(seen, "nightly")["status"]["exists"] == "Unknown").await;
    bench.delete("snapshots", "default", "nightly").await;
    let since = tokio::time::Instant::now();
    bench.until("gone", |seen| snap(seen, "nightly").is_null()).await;
    let asked = since.elapsed();
    assert!((120..130).contains(&asked.as_secs()), "{asked:?}");
    let told = |seen: &Seen| {
        let events = seen.all("events");
        let kept = events.iter().filter(|event| event["reason"] == "KeptInDoubt");
        kept.map(|event| event["message"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    bench.until("told", |seen| told(seen).len() == 1).await;
    assert!(told(&bench.seen)[0].contains("wharfline volume audit disk"), "{:?}", told(&bench.seen));
    bench.end().await;
}

/// Nobody has to wait for the word of a host that does well again: it goes on.
#[tokio::test(start_paused = true)]
async fn what_a_host_was_asked_is_taken_back_when_its_driver_is_well_again() {
    let bench = halted(picturing(DISK)).await;
    bench.make("snapshots", snapshot("nightly", "data")).await;
    take(&bench, true);
    // From then on it has its own host.
    bench.until("it is ready", |seen| ready(&snap(seen, "nightly"))).await;
    let host = volume_of(&bench.seen, "data")["status"]["controller"].clone();
    let node = host["nodeName"].as_str().unwrap();
    let asked = |seen: &Seen, wanted: &Value| {
        let both = [volume_of(seen, "data"), snap(seen, "nightly")];
        both.iter().all(|one| one["status"]["askedToRelease"] == *wanted)
    };
    for _ in 0..2 {
        bench.behave(node, |b| b.healthy = false);
        bench.until("both are to go to the other node", |seen| asked(seen, &host["epoch"])).await;
        bench.behave(node, |b| b.healthy = true);
        bench.until("they are asked back", |seen| asked(seen, &Value::Null)).await;
    }
    // One that ends again and again is not: it may end by the very call that the volume waits for.
    bench.behave(node, |b| b.healthy = false);
    bench.until("both are to go to the other node", |seen| asked(seen, &host["epoch"])).await;
    bench.behave(node, |b| (b.healthy, b.unsteady) = (true, true));
    let back = |seen: &Seen| seen.all("plugininstances").iter().all(ready);
    bench.until("its driver is there", back).await;
    assert_eq!(bench.quiet().await.len(), 0);
    assert!(asked(&bench.seen, &host["epoch"]));
    // Nor because it has kept running without that call; and it goes where no driver has ended so, wherever it is used.
    bench.behave(node, |b| b.unsteady = false);
    let steady =
        |seen: &Seen| seen.all("plugininstances").iter().all(|i| condition(i, "Steady")["status"] != "False");
    bench.until("it is steady", steady).await;
    assert_eq!(bench.quiet().await.len(), 0);
    assert!(asked(&bench.seen, &host["epoch"]));
    for node in ["a", "b"] {
        bench.behave(node, |b| b.lets_go = true);
    }
    let other = |seen: &Seen| volume_of(seen, "data")["status"]["controller"]["epoch"] == 2;
    bench.until("it has another host", other).await;
    assert_ne!(volume_of(&bench.seen, "data")["status"]["controller"]["nodeName"], node);
    bench.end().await;
}
