//! Snapshots of several claims at one moment: which they are of, their one host, and claims that are filled from them.
use serde_json::{Value, json};

use crate::bench::{Bench, Seen, condition};
use crate::fake::{Behaviour, DIR, DISK};
use crate::manifests::{claim, class, disk, plugin, ready, user, why};

const SNAPSHOT: &str = "controller/CREATE_DELETE_SNAPSHOT";
const GROUPS: &str = "group-controller/CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT";
/// Its host tells how large a volume is.
const SIZED: &str = "controller/EXPAND_VOLUME";

fn grouping(of: &[&'static str]) -> Behaviour {
    let capabilities = [of, &[SNAPSHOT, GROUPS, SIZED]].concat();
    Behaviour { capabilities, lets_go: true, ..Behaviour::default() }
}

fn group(name: &str, app: &str) -> Value {
    let selector = json!({ "matchLabels": { "app": app } });
    json!({ "metadata": { "name": name }, "spec": { "source": { "selector": selector } } })
}

fn labelled(name: &str, class: &str, app: &str) -> Value {
    let mut claim = claim(name, class, "SingleNodeWriter");
    claim["metadata"]["labels"] = json!({ "app": app });
    claim
}

fn restore(name: &str, class: &str, snapshot: &str, of: Option<&str>) -> Value {
    let mut claim = claim(name, class, "SingleNodeWriter");
    claim["spec"]["dataSource"] = json!({ "snapshotName": snapshot, "claimName": of });
    claim["spec"]["resources"] = Value::Null;
    claim
}

fn snap(seen: &Seen, name: &str) -> Value {
    seen.get("snapshots", "default", name)
}

fn said(object: &Value) -> String {
    condition(object, "Ready")["message"].as_str().unwrap_or_default().to_owned()
}

fn bound(seen: &Seen, name: &str) -> bool {
    seen.get("volumeclaims", "default", name)["status"]["phase"] == "Bound"
}

fn volume_of(seen: &Seen, claim: &str) -> Value {
    let all = seen.all("volumes");
    all.into_iter().find(|v| v["spec"]["claimRef"]["name"] == claim).unwrap_or_default()
}

fn host_of(object: &Value) -> &str {
    object["status"]["controller"]["nodeName"].as_str().unwrap_or_default()
}

/// Bound claims of plugin `disk` with label `app: db`, and one without.
async fn bench(behaviour: Behaviour, claims: &[&str]) -> Bench {
    let bench = Bench::with(&["a", "b"], behaviour).await;
    disk(&bench).await;
    for name in claims {
        bench.make("volumeclaims", labelled(name, "disk", "db")).await;
    }
    bench.make("volumeclaims", claim("other", "disk", "SingleNodeWriter")).await;
    let all = |seen: &Seen| claims.iter().chain(&["other"]).all(|claim| bound(seen, claim));
    bench.until("they are bound", all).await;
    bench
}

fn take(bench: &Bench, takes: bool) {
    for node in ["a", "b"] {
        bench.behave(node, |b| b.takes = takes);
    }
}

/// Scenario B102.
#[tokio::test(start_paused = true)]
async fn a_group_has_one_host_with_all_its_volumes_and_claims_are_filled_from_its_members() {
    let bench = bench(Behaviour { takes: false, ..grouping(DISK) }, &["data-0", "data-1", "data-2"]).await;
    let hosts: std::collections::BTreeSet<_> = ["data-0", "data-1", "data-2"]
        .iter()
        .map(|c| host_of(&volume_of(&bench.seen, c)).to_owned())
        .collect();
    assert_eq!(hosts.len(), 2, "they have several hosts before");
    bench.make("snapshots", group("nightly", "db")).await;
    let together = |seen: &Seen| {
        let host = host_of(&snap(seen, "nightly")).to_owned();
        let mut volumes = ["data-0", "data-1", "data-2"].iter().map(|claim| volume_of(seen, claim));
        !host.is_empty() && volumes.all(|v| host_of(&v) == host && v["status"]["askedToRelease"].is_null())
    };
    bench.until("they have one host", together).await;
    let made = snap(&bench.seen, "nightly");
    let member = |claim: &str| {
        let volume = volume_of(&bench.seen, claim);
        json!({ "claimName": claim, "volume": volume["metadata"]["name"], "uid": volume["metadata"]["uid"],
            "handle": volume["status"]["handle"], "volumeMode": "Filesystem" })
    };
    let of = json!({ "plugin": "disk", "members": [member("data-0"), member("data-1"), member("data-2")] });
    assert_eq!(made["status"]["of"], of);
    for claim in ["data-0", "data-1", "data-2"] {
        let named = &volume_of(&bench.seen, claim)["status"]["snapshots"][0]["uid"];
        assert_eq!(*named, made["metadata"]["uid"], "{claim}");
    }
    assert_eq!(volume_of(&bench.seen, "other")["status"]["snapshots"], Value::Null);
    assert_eq!(bench.quiet().await.len(), 0, "waiting costs nothing");
    // What is made afterwards is not of it, and none of its claims goes before it is ready.
    bench.make("volumeclaims", labelled("late", "disk", "db")).await;
    bench.delete("volumeclaims", "default", "data-1").await;
    bench
        .until("who pictures it is told", |seen| {
            why(&seen.get("volumeclaims", "default", "data-1")) == "InUse"
        })
        .await;
    take(&bench, true);
    bench.until("it is ready", |seen| ready(&snap(seen, "nightly"))).await;
    bench.until("data-1 is gone", |seen| seen.get("volumeclaims", "default", "data-1").is_null()).await;
    let members = snap(&bench.seen, "nightly")["status"]["members"].as_array().unwrap().len();
    assert_eq!(members, 3);
    // A claim is filled from one member, and has to say from which.
    bench.make("volumeclaims", restore("which", "disk", "nightly", None)).await;
    bench.make("volumeclaims", restore("none", "disk", "nightly", Some("late"))).await;
    for (claim, message) in [
        ("which", "dataSource.claimName of which: data-0, data-1, data-2"),
        ("none", "not of claim \"late\""),
    ] {
        bench
            .until("it is told", |seen| said(&seen.get("volumeclaims", "default", claim)).contains(message))
            .await;
    }
    for node in ["a", "b"] {
        bench.behave(node, |b| b.creates = false);
    }
    bench.make("volumeclaims", restore("data-1", "disk", "nightly", Some("data-1"))).await;
    bench.until("it has a host", |seen| !host_of(&volume_of(seen, "data-1")).is_empty()).await;
    let create = volume_of(&bench.seen, "data-1")["spec"]["source"]["create"].clone();
    let made = snap(&bench.seen, "nightly");
    let handle = &made["status"]["members"][1]["handle"];
    let content = json!({ "snapshot": "default/nightly", "uid": made["metadata"]["uid"], "handle": handle });
    assert_eq!((&create["content"], &create["requiredBytes"]), (&content, &json!(1 << 30)));
    // It stays for that, with all its members.
    bench.delete("snapshots", "default", "nightly").await;
    bench.until("who is filled is told", |seen| why(&snap(seen, "nightly")) == "InUse").await;
    assert!(!bench.ledger.calls().iter().any(|call| call.starts_with("delete snap-")));
    for node in ["a", "b"] {
        bench.behave(node, |b| b.creates = true);
    }
    bench.until("it is filled", |seen| bound(seen, "data-1")).await;
    bench.until("the snapshot is gone", |seen| snap(seen, "nightly").is_null()).await;
    assert!(bench.ledger.calls().pop().unwrap().starts_with("delete snap-"));
    bench.end().await;
}

/// A claim that is on its way out, and stays for a snapshot that is being cut, is not of the next one.
#[tokio::test(start_paused = true)]
async fn what_is_being_deleted_is_no_member_of_a_group() {
    let bench = bench(Behaviour { takes: false, ..grouping(DISK) }, &["data-0", "data-1", "data-2"]).await;
    bench.make("snapshots", group("nightly", "db")).await;
    bench.until("it has a host", |seen| !host_of(&snap(seen, "nightly")).is_empty()).await;
    bench.delete("volumeclaims", "default", "data-1").await;
    let told = |seen: &Seen| why(&seen.get("volumeclaims", "default", "data-1")) == "InUse";
    bench.until("it stays for the first one", told).await;
    bench.make("snapshots", group("later", "db")).await;
    bench.until("it is frozen", |seen| snap(seen, "later")["status"]["of"].is_object()).await;
    let later = snap(&bench.seen, "later")["status"]["of"]["members"].clone();
    let later: Vec<_> = later.as_array().unwrap().iter().map(|m| m["claimName"].clone()).collect();
    assert_eq!(later, ["data-0", "data-2"]);
    take(&bench, true);
    bench
        .until("both are ready", |seen| ["nightly", "later"].iter().all(|name| ready(&snap(seen, name))))
        .await;
    bench.until("data-1 is gone", |seen| seen.get("volumeclaims", "default", "data-1").is_null()).await;
    bench.end().await;
}

/// Scenario B103.
/// Part of obligation CO-GRP-02.
#[tokio::test(start_paused = true)]
async fn what_goes_into_no_one_group_is_told_and_begun_once_it_does() {
    let bench = Bench::with(
        &["a", "b"],
        Behaviour { capabilities: [DISK, &[SNAPSHOT, SIZED]].concat(), ..Behaviour::default() },
    )
    .await;
    disk(&bench).await;
    bench.make("snapshots", group("nightly", "db")).await;
    bench
        .until("there is no claim", |seen| {
            said(&snap(seen, "nightly")).contains("no claim of the namespace has them")
        })
        .await;
    bench.make("volumeclaims", labelled("one", "later", "db")).await;
    bench.until("one has no volume", |seen| said(&snap(seen, "nightly")).contains("claim \"one\"")).await;
    assert_eq!(bench.quiet().await.len(), 0, "waiting costs nothing");
    bench.make("volumeclasses", class("later", "disk")).await;
    bench.until("the plugin cannot", |seen| why(&snap(seen, "nightly")) == "PluginLacksCapability").await;
    // Another plugin's.
    bench.make("plugins", plugin("tape", "Cluster")).await;
    bench.make("volumeclasses", class("tape", "tape")).await;
    bench.make("volumeclaims", labelled("two", "tape", "db")).await;
    bench
        .until("two is of another", |seen| {
            said(&snap(seen, "nightly")).contains("select claims of one plugin")
        })
        .await;
    bench.delete("volumeclaims", "default", "two").await;
    bench.until("the plugin cannot", |seen| why(&snap(seen, "nightly")) == "PluginLacksCapability").await;
    // Of other settings, until a class is named.
    let mut gold = class("gold", "disk");
    gold["spec"]["snapshotParameters"] = json!({ "tier": "gold" });
    bench.make("volumeclasses", gold).await;
    bench.make("volumeclaims", labelled("three", "gold", "db")).await;
    bench.until("which counts", |seen| said(&snap(seen, "nightly")).contains("volumeClassName")).await;
    assert_eq!(bench.quiet().await.len(), 0);
    let mut named = group("named", "db");
    named["spec"]["volumeClassName"] = json!("gold");
    bench.make("snapshots", named).await;
    bench.until("the plugin cannot", |seen| why(&snap(seen, "named")) == "PluginLacksCapability").await;
    for node in ["a", "b"] {
        bench.behave(node, |b| {
            b.capabilities.push(GROUPS);
            b.lets_go = true;
        });
    }
    bench.until("it is ready", |seen| ready(&snap(seen, "named"))).await;
    let of = &snap(&bench.seen, "named")["status"]["of"];
    assert_eq!(
        (&of["parameters"], of["members"].as_array().map(Vec::len)),
        (&json!({ "tier": "gold" }), Some(2))
    );
    // And once all are of one class.
    bench.delete("volumeclaims", "default", "three").await;
    bench.until("it is ready", |seen| ready(&snap(seen, "nightly"))).await;
    let of = &snap(&bench.seen, "nightly")["status"]["of"]["members"];
    assert_eq!((of.as_array().map(Vec::len), &of[0]["claimName"]), (Some(1), &json!("one")));
    bench.end().await;
}

/// Of those whose volumes only one node knows all are pictured there, or none.
#[tokio::test(start_paused = true)]
async fn a_group_of_volumes_of_one_node_is_taken_there() {
    let bench = Bench::with(&["a", "b"], grouping(DIR)).await;
    bench.make("plugins", plugin("disk", "Node")).await;
    let mut late = class("disk", "disk");
    late["spec"]["volumeBindingMode"] = json!("WaitForFirstConsumer");
    bench.make("volumeclasses", late).await;
    let all = |seen: &Seen| seen.all("plugininstances").iter().filter(|i| ready(i)).count() == 2;
    bench.until("both are ready", all).await;
    for (name, node) in [("one", "b"), ("two", "b"), ("three", "a")] {
        let mut claim = labelled(name, "disk", node);
        claim["metadata"]["labels"]["all"] = json!("yes");
        bench.make("volumeclaims", claim).await;
        bench.make("allocations", user(name, name, node)).await;
        bench.until("it is bound", |seen| bound(seen, name)).await;
    }
    bench.make("snapshots", group("here", "b")).await;
    bench.until("it is ready", |seen| ready(&snap(seen, "here"))).await;
    assert_eq!(host_of(&snap(&bench.seen, "here")), "b");
    let mut all = group("all", "x");
    all["spec"]["source"]["selector"]["matchLabels"] = json!({ "all": "yes" });
    bench.make("snapshots", all).await;
    bench
        .until("they are apart", |seen| said(&snap(seen, "all")).contains("select claims of one node"))
        .await;
    assert_eq!(snap(&bench.seen, "all")["status"]["of"], Value::Null);
    bench.end().await;
}

/// Two groups want the same volume: one is taken after the other, whoever was host of which.
#[tokio::test(start_paused = true)]
async fn groups_that_share_a_volume_are_taken_one_after_the_other() {
    let bench =
        bench(Behaviour { takes: false, ..grouping(DISK) }, &["data-0", "data-1", "data-2", "data-3"]).await;
    for (name, claims) in [("low", ["data-0", "data-1", "data-2"]), ("high", ["data-1", "data-2", "data-3"])]
    {
        let label = json!({ "metadata": { "labels": { name: "yes" } } });
        for claim in claims {
            bench.patch("volumeclaims", "default", claim, label.clone()).await;
        }
        let mut of = group(name, "x");
        of["spec"]["source"]["selector"]["matchLabels"] = json!({ name: "yes" });
        bench.make("snapshots", of).await;
    }
    let hosted = |seen: &Seen| ["low", "high"].iter().all(|name| !host_of(&snap(seen, name)).is_empty());
    bench.until("both have a host", hosted).await;
    assert_eq!(bench.quiet().await.len(), 0, "nobody moves a volume to and fro");
    take(&bench, true);
    bench.until("both are ready", |seen| ["low", "high"].iter().all(|name| ready(&snap(seen, name)))).await;
    bench.end().await;
}

/// The host of a group is lost: another one takes it on, with all the volumes.
#[tokio::test(start_paused = true)]
async fn a_group_goes_with_its_volumes_to_another_host() {
    let bench = bench(Behaviour { takes: false, ..grouping(DISK) }, &["data-0", "data-1"]).await;
    bench.make("snapshots", group("nightly", "db")).await;
    let asked = |seen: &Seen| snap(seen, "nightly")["status"]["exists"] == "Unknown";
    bench.until("it may have been asked for", asked).await;
    let first = host_of(&snap(&bench.seen, "nightly")).to_owned();
    bench.behave(&first, |b| b.alive = false);
    take(&bench, true);
    bench.until("it is ready", |seen| ready(&snap(seen, "nightly"))).await;
    let second = snap(&bench.seen, "nightly");
    assert_ne!(host_of(&second), first);
    for claim in ["data-0", "data-1"] {
        assert_eq!(host_of(&volume_of(&bench.seen, claim)), host_of(&second), "{claim}");
    }
    bench.end().await;
}
