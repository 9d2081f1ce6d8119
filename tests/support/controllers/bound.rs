//! Which volume a claim gets and which it does not, and what becomes of the volume when one of the two goes.
use std::time::Duration;

use serde_json::{Value, json};

use crate::bench::{Bench, Seen, condition, pass};
use crate::fake::{Behaviour, DISK};
use crate::manifests::{claim, class, disk, phase, plugin, ready, user, why};

fn disks() -> Behaviour {
    Behaviour { capabilities: DISK.to_vec(), ..Behaviour::default() }
}

/// A volume that a person registers.
fn registered(name: &str, policy: &str) -> Value {
    json!({ "metadata": { "name": name }, "spec": { "plugin": "disk",
        "source": { "existing": { "handle": format!("handle-of-{name}") } },
        "accessModes": ["SingleNodeWriter"], "reclaimPolicy": policy } })
}

/// A claim that names its volume.
fn naming(name: &str, volume: &str) -> Value {
    json!({ "metadata": { "name": name }, "spec": { "volumeName": volume,
        "accessModes": ["SingleNodeWriter"], "resources": { "requests": { "storage": "1Gi" } } } })
}

fn claimed(seen: &Seen, name: &str) -> Value {
    seen.get("volumeclaims", "default", name)
}

/// The volume of a claim.
fn volume_of(seen: &Seen, claim: &str) -> Value {
    seen.all("volumes").into_iter().find(|v| v["spec"]["claimRef"]["name"] == claim).unwrap_or_default()
}

fn message(object: &Value) -> String {
    condition(object, "Ready")["message"].as_str().unwrap_or_default().to_owned()
}

/// Scenario B88.
/// Neither in its mode, nor in how it may be accessed, nor in its size; one that fits is bound.
#[tokio::test(start_paused = true)]
async fn a_claim_that_asks_for_what_its_volume_is_not_is_not_bound_to_it() {
    let bench = Bench::with(&["a"], disks()).await;
    disk(&bench).await;
    bench.make("volumes", registered("old", "Retain")).await;
    bench.until("it is there", |seen| ready(&seen.only("volumes"))).await;
    bench.patch("volumes", "", "old", json!({ "status": { "capacity": "1Gi" } })).await;
    bench.quiet().await;
    let mut block = naming("block", "old");
    block["spec"]["volumeMode"] = json!("Block");
    let mut shared = naming("shared", "old");
    shared["spec"]["accessModes"] = json!(["SingleNodeWriter", "MultiNodeMultiWriter"]);
    let mut large = naming("large", "old");
    large["spec"]["resources"]["requests"]["storage"] = json!("2Gi");
    for (object, said) in [
        (block, "its mode is Filesystem"),
        (shared, "it has no access mode MultiNodeMultiWriter"),
        (large, "it has 1Gi"),
    ] {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        bench.make("volumeclaims", object).await;
        bench.until("it does not fit", |seen| why(&claimed(seen, &name)) == "VolumeMismatch").await;
        bench.quiet().await;
        let claim = claimed(&bench.seen, &name);
        assert!(message(&claim).contains(said), "{name}: {}", message(&claim));
        assert_eq!(claim["status"]["phase"], "Pending", "{name}");
        assert!(bench.seen.only("volumes")["spec"]["claimRef"].is_null(), "{name} has it");
        bench.delete("volumeclaims", "default", &name).await;
        bench.until("it goes", |seen| claimed(seen, &name).is_null()).await;
    }
    bench.make("volumeclaims", naming("right", "old")).await;
    bench.until("bound", |seen| ready(&claimed(seen, "right"))).await;
    assert_eq!(bench.seen.only("volumes")["spec"]["claimRef"]["name"], "right");
    bench.end().await;
}

/// Scenario Q11.
/// How large it is nobody said: it is bound whatever is asked for, and what is asked for is not shown as what there is.
#[tokio::test(start_paused = true)]
async fn a_volume_whose_size_nobody_knows_is_bound_and_shown_without_one() {
    let bench = Bench::with(&["a"], disks()).await;
    disk(&bench).await;
    bench.make("volumes", registered("old", "Retain")).await;
    bench.make("volumeclaims", naming("right", "old")).await;
    bench.until("bound", |seen| ready(&claimed(seen, "right"))).await;
    bench.quiet().await;
    let claim = claimed(&bench.seen, "right");
    assert_eq!(claim["spec"]["resources"]["requests"]["storage"], "1Gi");
    for object in [claim, bench.seen.only("volumes")] {
        let shown = object["status"]["capacity"].as_str().unwrap_or_default();
        assert!(shown.is_empty(), "{shown} is shown: {object}");
    }
    bench.end().await;
}

/// Scenario A23.
#[tokio::test(start_paused = true)]
async fn a_volume_at_a_plugin_that_is_not_there_or_not_well_says_so_and_waits() {
    let bench = Bench::with(&["a"], Behaviour { healthy: false, ..disks() }).await;
    bench.make("volumes", registered("old", "Retain")).await;
    bench.make("volumeclaims", naming("right", "old")).await;
    bench.until("no plugin", |seen| why(&seen.only("volumes")) == "NotFound").await;
    let said = message(&bench.seen.only("volumes"));
    assert!(said.contains("Plugin \"disk\""), "{said}");
    bench.make("plugins", plugin("disk", "Cluster")).await;
    bench.until("it is not well", |seen| why(&seen.only("volumes")) == "PluginNotReady").await;
    bench.quiet().await;
    let said = message(&bench.seen.only("volumes"));
    assert!(said.contains("healthy instance of plugin \"disk\""), "{said}");
    assert!(!ready(&bench.seen.only("volumes")) && !ready(&claimed(&bench.seen, "right")));
    assert!(bench.ledger.calls().is_empty(), "{:?}", bench.ledger.calls());
    bench.behave("a", |b| b.healthy = true);
    bench.until("bound", |seen| ready(&claimed(seen, "right"))).await;
    bench.end().await;
}

/// Scenario B32.
#[tokio::test(start_paused = true)]
async fn who_comes_for_a_claim_that_is_on_its_way_out_is_not_let_in() {
    let bench = Bench::with(&["a", "b"], disks()).await;
    disk(&bench).await;
    bench.make("volumeclaims", claim("c", "disk", "MultiNodeMultiWriter")).await;
    bench.make("allocations", user("first", "c", "a")).await;
    bench.until("it runs", |seen| phase(seen, "first") == "Running").await;
    bench.delete("volumeclaims", "default", "c").await;
    bench.until("it is in use", |seen| why(&claimed(seen, "c")) == "InUse").await;
    let late = [("here", "a"), ("there", "b"), ("anywhere", "")];
    let of = |seen: &Seen, name: &str| seen.get("allocations", "default", name);
    for (name, node) in late {
        bench.make("allocations", user(name, "c", node)).await;
        bench.until("it is told why", |seen| why(&of(seen, name)) == "BeingDeleted").await;
    }
    bench.quiet().await;
    for (name, _) in late {
        let status = of(&bench.seen, name)["status"].clone();
        let node = status["nodeName"].as_str().unwrap_or_default();
        assert_eq!((phase(&bench.seen, name).as_str(), node), ("Pending", ""), "{name}");
    }
    assert_eq!(phase(&bench.seen, "first"), "Running");
    bench.delete("allocations", "default", "first").await;
    bench
        .until("the claim goes", |seen| claimed(seen, "c").is_null() && seen.all("volumes").is_empty())
        .await;
    assert_eq!(bench.ledger.count("publish"), 1, "{:?}", bench.ledger.calls());
    bench.end().await;
}

/// Scenario B30.
/// What was there before is never deleted, whatever its policy says, and whichever of the two is deleted first.
#[tokio::test(start_paused = true)]
async fn a_registered_volume_stays_without_its_claim_and_goes_without_a_deletion_of_its_data() {
    for policy in ["Delete", "Retain"] {
        let bench = Bench::with(&["a"], disks()).await;
        disk(&bench).await;
        for name in ["claim-first", "volume-first"] {
            bench.make("volumes", registered(name, policy)).await;
            bench.make("volumeclaims", naming(name, name)).await;
            bench.until("bound", |seen| ready(&claimed(seen, name))).await;
        }
        let at = |seen: &Seen, name: &str| seen.get("volumes", "", name);
        bench.delete("volumeclaims", "default", "claim-first").await;
        bench.until("kept", |seen| at(seen, "claim-first")["status"]["phase"] == "Released").await;
        bench.quiet().await;
        let kept = at(&bench.seen, "claim-first");
        assert_eq!(kept["status"]["phase"], "Released", "{policy}");
        assert!(kept["metadata"]["deletionTimestamp"].is_null(), "{policy}: nobody asked for that");
        bench.delete("volumes", "", "volume-first").await;
        bench.until("it waits", |seen| why(&at(seen, "volume-first")) == "InUse").await;
        bench.quiet().await;
        let waits = at(&bench.seen, "volume-first");
        assert_eq!(waits["status"]["phase"], "Releasing", "{policy}: its claim has it");
        let claim = claimed(&bench.seen, "volume-first");
        assert_eq!((&claim["status"]["phase"], why(&claim).as_str()), (&json!("Bound"), "BeingDeleted"));
        bench.delete("volumeclaims", "default", "volume-first").await;
        bench.until("both are gone", |seen| at(seen, "volume-first").is_null()).await;
        bench.delete("volumes", "", "claim-first").await;
        let empty = |seen: &Seen| seen.all("volumes").is_empty() && seen.all("volumeclaims").is_empty();
        bench.until("nothing is left", empty).await;
        let by_us = |w: &&crate::bench::Write| w.method == "DELETE" && w.path.contains("/volumes/");
        assert_eq!(bench.writes().iter().filter(by_us).count(), 0, "{policy}");
        assert_eq!(bench.ledger.count("delete"), 0, "{policy}");
        bench.end().await;
    }
}

/// A person's reference to a claim that has another volume keeps nothing.
#[tokio::test(start_paused = true)]
async fn a_kept_volume_waits_for_no_claim_that_has_another_one() {
    let bench = Bench::with(&["a"], disks()).await;
    disk(&bench).await;
    bench.make("volumes", registered("mine", "Retain")).await;
    bench.make("volumeclaims", naming("mine", "mine")).await;
    bench.until("bound", |seen| ready(&claimed(seen, "mine"))).await;
    let mut other = registered("other", "Retain");
    let uid = claimed(&bench.seen, "mine")["metadata"]["uid"].clone();
    other["spec"]["claimRef"] = json!({ "namespace": "default", "name": "mine", "uid": uid });
    bench.make("volumes", other).await;
    bench.quiet().await;
    bench.delete("volumes", "", "other").await;
    bench.until("it goes", |seen| seen.get("volumes", "", "other").is_null()).await;
    assert!(ready(&claimed(&bench.seen, "mine")));
    bench.end().await;
}

/// Scenario B29.
#[tokio::test(start_paused = true)]
async fn the_policy_counts_as_it_is_when_the_claim_goes() {
    let bench = Bench::with(&["a"], disks()).await;
    disk(&bench).await;
    let mut keep = class("keep", "disk");
    keep["spec"]["reclaimPolicy"] = json!("Retain");
    bench.make("volumeclasses", keep).await;
    for (of, policy) in [("keep", "Delete"), ("disk", "Retain")] {
        bench.make("volumeclaims", claim(of, of, "SingleNodeWriter")).await;
        bench.until("bound", |seen| ready(&claimed(seen, of))).await;
        let volume = volume_of(&bench.seen, of);
        assert_ne!(volume["spec"]["reclaimPolicy"], policy, "that of its class");
        let name = volume["metadata"]["name"].as_str().unwrap();
        bench.patch("volumes", "", name, json!({ "spec": { "reclaimPolicy": policy } })).await;
        bench.delete("volumeclaims", "default", of).await;
        bench.until("the claim goes", |seen| claimed(seen, of).is_null()).await;
        bench.quiet().await;
        let left = bench.seen.get("volumes", "", name);
        // The first is deleted, and the second is not.
        assert_eq!(left.is_null(), policy == "Delete", "{policy}: {left}");
        assert_eq!(bench.ledger.count("delete"), 1, "{policy}: {:?}", bench.ledger.calls());
    }
    // What stays is told with how its plugin calls it.
    let kept = bench.seen.only("volumes");
    bench.delete("volumes", "", kept["metadata"]["name"].as_str().unwrap()).await;
    bench.until("it is forgotten", |seen| seen.all("volumes").is_empty()).await;
    let told =
        bench.seen.all("events").into_iter().filter(|event| event["reason"] == "Kept").collect::<Vec<_>>();
    let note = told[0]["message"].as_str().unwrap();
    let handle = format!("\"{}\"", kept["status"]["handle"].as_str().unwrap());
    assert!(told.len() == 1 && note.contains(&handle), "{told:?}");
    assert_eq!(bench.ledger.count("delete"), 1);
    bench.end().await;
}

/// Scenario B11.
#[tokio::test(start_paused = true)]
async fn claims_of_one_name_in_two_namespaces_have_two_volumes() {
    let bench = Bench::with(&["a"], disks()).await;
    disk(&bench).await;
    bench.make("namespaces", json!({ "metadata": { "name": "shop" } })).await;
    let namespaces = ["default", "shop"];
    for namespace in namespaces {
        let both =
            [("volumeclaims", claim("c", "disk", "SingleNodeWriter")), ("allocations", user("u", "c", "a"))];
        for (plural, mut object) in both {
            object["metadata"]["namespace"] = json!(namespace);
            bench.make(plural, object).await;
        }
    }
    let runs =
        |seen: &Seen, namespace| seen.get("allocations", namespace, "u")["status"]["phase"] == "Running";
    bench.until("both run", |seen| namespaces.into_iter().all(|namespace| runs(seen, namespace))).await;
    let volumes = bench.seen.all("volumes");
    let at = |namespace: &str| {
        let mut of_it = volumes.iter().filter(|v| v["spec"]["claimRef"]["namespace"] == namespace);
        let volume = of_it.next().unwrap();
        assert!(of_it.next().is_none(), "{volumes:#?}");
        (volume["metadata"]["name"].clone(), volume["spec"]["source"]["create"]["name"].clone())
    };
    let [ours, theirs] = namespaces.map(at);
    assert!(ours.0 != theirs.0 && ours.1 != theirs.1, "{ours:?} {theirs:?}");
    assert_eq!((bench.ledger.count("create"), bench.ledger.count("publish")), (2, 2));
    let attachments = bench.seen.all("volumeattachments");
    for (namespace, volume) in namespaces.into_iter().zip([&ours.0, &theirs.0]) {
        let of_it =
            |a: &&Value| a["spec"]["claim"]["namespace"] == namespace && a["spec"]["volume"] == *volume;
        assert_eq!(attachments.iter().filter(of_it).count(), 1, "{namespace}: {attachments:#?}");
    }
    bench.delete("allocations", "shop", "u").await;
    bench.delete("volumeclaims", "shop", "c").await;
    bench.until("one goes", |seen| seen.only("volumes")["metadata"]["name"] == ours.0).await;
    bench.quiet().await;
    assert!(runs(&bench.seen, "default") && ready(&claimed(&bench.seen, "c")), "the other stays");
    assert_eq!((bench.ledger.count("delete"), bench.ledger.count("unpublish")), (1, 1));
    bench.end().await;
}

/// Scenario B13.
/// Of two default ones the newest.
#[tokio::test(start_paused = true)]
async fn a_claim_without_class_gets_the_default_one_that_comes_later() {
    let bench = Bench::with(&["a"], disks()).await;
    // With a class that is nobody's default.
    disk(&bench).await;
    bench.make("volumeclaims", claim("early", "", "SingleNodeWriter")).await;
    bench.until("no class", |seen| why(&claimed(seen, "early")) == "NotFound").await;
    bench.quiet().await;
    let said = message(&claimed(&bench.seen, "early"));
    assert!(said.contains("VolumeClass \"default\""), "{said}");
    assert!(bench.seen.all("volumes").is_empty());
    // By name the first would come last.
    for (name, of) in [("z", "early"), ("a", "late")] {
        pass(2).await;
        let usual = json!({ "metadata": { "name": name }, "spec": { "plugin": "disk", "default": true,
            "parameters": { "class": name } } });
        bench.make("volumeclasses", usual).await;
        if of == "late" {
            bench.quiet().await;
            bench.make("volumeclaims", claim(of, "", "SingleNodeWriter")).await;
        }
        bench.until("bound", |seen| ready(&claimed(seen, of))).await;
        let made = volume_of(&bench.seen, of)["spec"]["source"]["create"]["parameters"].clone();
        assert_eq!(made, json!({ "class": name }), "{of}");
    }
    bench.end().await;
}

/// Scenario B15.
/// In the time of the test, which is that of all waits: none of them waits for another.
#[tokio::test(start_paused = true)]
async fn claims_that_are_deleted_at_once_take_all_their_volumes_along() {
    const CLAIMS: usize = 100;
    let bench = Bench::with(&["a"], disks()).await;
    disk(&bench).await;
    let names: Vec<_> = (0..CLAIMS).map(|n| format!("c{n}")).collect();
    for name in &names {
        bench.make("volumeclaims", claim(name, "disk", "SingleNodeWriter")).await;
    }
    bench.until("all are bound", |seen| names.iter().all(|name| ready(&claimed(seen, name)))).await;
    bench.quiet().await;
    let began = tokio::time::Instant::now();
    for name in &names {
        bench.delete("volumeclaims", "default", name).await;
    }
    let empty = |seen: &Seen| seen.all("volumes").is_empty() && seen.all("volumeclaims").is_empty();
    bench.until("all are gone", empty).await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(bench.ledger.count("delete"), CLAIMS);
    assert!(bench.ledger.is_empty(), "a volume is left");
    bench.end().await;
}
