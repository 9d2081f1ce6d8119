//! What nobody else clears away, and controllers that die at any moment.

use serde_json::{Value, json};

use crate::bench::{Bench, Seen, ask, condition};
use crate::quickstart::{nothing_left, quickstart, running};

fn config(name: &str, owners: &[&Value]) -> Value {
    let owner = |o: &&Value| json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": o["metadata"]["name"], "uid": o["metadata"]["uid"] });
    json!({ "metadata": { "name": name, "ownerReferences": owners.iter().map(owner).collect::<Vec<_>>() } })
}

#[tokio::test(start_paused = true)]
async fn what_was_owned_goes_with_its_last_owner() {
    let bench = Bench::new(&[]).await;
    let get = |name: &str| bench.seen.get("configmaps", "default", name);
    for name in ["one", "two"] {
        bench.make("configmaps", json!({ "metadata": { "name": name } })).await;
        bench.until("it is there", |seen| !seen.get("configmaps", "default", name).is_null()).await;
    }
    bench.make("configmaps", config("child", &[&get("one"), &get("two")])).await;
    bench.until("it is there", |seen| !seen.get("configmaps", "default", "child").is_null()).await;
    bench.make("configmaps", config("grandchild", &[&get("child")])).await;
    bench.delete("configmaps", "default", "one").await;
    bench.quiet().await;
    assert!(!get("child").is_null(), "one owner is left");
    bench.delete("configmaps", "default", "two").await;
    bench.until("all are gone", |seen| seen.all("configmaps").is_empty()).await;
    bench.end().await;
}

/// `kubectl delete --cascade=…`, which must be granted.
async fn delete_with(bench: &Bench, name: &str, propagation: &str) {
    let path = format!("/api/v1/namespaces/default/configmaps/{name}");
    let options = json!({ "kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation });
    let (code, answer) = ask(&bench.admin, "DELETE", &path, Some(&options)).await;
    assert_eq!(code, 200, "{answer}");
}

/// `top` owns `middle`, which owns `bottom`, each of which holds its owner; `shared` has another owner as well, and
/// `kept` holds nobody.
async fn family(bench: &Bench) {
    let get = |name: &str| bench.seen.get("configmaps", "default", name);
    let parents: [(&str, &[&str]); 6] = [
        ("other", &[]),
        ("top", &[]),
        ("middle", &["top"]),
        ("bottom", &["middle"]),
        ("shared", &["top", "other"]),
        ("loose", &["top"]),
    ];
    for (name, owners) in parents {
        let owners: Vec<_> = owners.iter().map(|o| get(o)).collect();
        let mut object = config(name, &owners.iter().collect::<Vec<_>>());
        for owner in object["metadata"]["ownerReferences"].as_array_mut().unwrap() {
            owner["blockOwnerDeletion"] = json!(name != "loose");
        }
        if name == "bottom" {
            object["metadata"]["finalizers"] = json!(["example.com/held"]);
        }
        bench.make("configmaps", object).await;
        bench.until("it is there", |seen| !seen.get("configmaps", "default", name).is_null()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_deleted_in_the_foreground_goes_after_what_it_owns() {
    let bench = Bench::new(&[]).await;
    family(&bench).await;
    let get = |name: &str| bench.seen.get("configmaps", "default", name);
    delete_with(&bench, "top", "Foreground").await;
    let going = |seen: &crate::bench::Seen| {
        !seen.get("configmaps", "default", "bottom")["metadata"]["deletionTimestamp"].is_null()
    };
    bench.until("the last one is asked to go", going).await;
    assert_eq!(bench.quiet().await.len(), 0);
    assert!(!get("top").is_null() && !get("middle").is_null(), "each waits for what it owns");
    assert!(get("loose").is_null(), "asked to go like the others");
    let owners = get("shared")["metadata"]["ownerReferences"].clone();
    assert_eq!(owners.as_array().map(Vec::len), Some(1), "who has another owner is let go of: {owners}");
    bench.patch("configmaps", "default", "bottom", json!({ "metadata": { "finalizers": null } })).await;
    bench.until("top is gone", |seen| seen.get("configmaps", "default", "top").is_null()).await;
    assert!(get("middle").is_null() && get("bottom").is_null());
    assert!(!get("shared").is_null() && !get("other").is_null());
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn what_an_orphaned_object_owned_stays() {
    let bench = Bench::new(&[]).await;
    family(&bench).await;
    let get = |name: &str| bench.seen.get("configmaps", "default", name);
    delete_with(&bench, "top", "Orphan").await;
    bench.until("top is gone", |seen| seen.get("configmaps", "default", "top").is_null()).await;
    bench.quiet().await;
    for name in ["middle", "loose", "shared"] {
        let owners = get(name)["metadata"]["ownerReferences"].clone();
        let left = owners.as_array().map_or(0, Vec::len);
        assert_eq!(left, usize::from(name == "shared"), "{name}: {owners}");
        assert!(get(name)["metadata"]["deletionTimestamp"].is_null(), "{name}");
    }
    assert!(!get("bottom").is_null());
    bench.end().await;
}

/// Scenario A40.
/// As long as the data of a claim is not deleted the namespace stays, and the volume says that it is on its way out.
#[tokio::test(start_paused = true)]
async fn a_namespace_goes_after_its_contents() {
    let bench = Bench::new(&["a"]).await;
    bench.make("namespaces", json!({ "metadata": { "name": "shop" } })).await;
    let objects = quickstart();
    for (plural, namespace, object) in &objects {
        let mut object = object.clone();
        if !namespace.is_empty() {
            object["metadata"]["namespace"] = json!("shop");
        }
        bench.make(plural, object).await;
    }
    bench.make("configmaps", json!({ "metadata": { "name": "settings", "namespace": "shop" } })).await;
    let template = json!({ "spec": { "source": { "claimName": "data" } } });
    let yearly = json!({ "metadata": { "name": "yearly", "namespace": "shop" },
        "spec": { "schedule": "@yearly", "template": template } });
    bench.make("snapshotschedules", yearly).await;
    bench
        .until("it runs", |seen| seen.get("allocations", "shop", "hello")["status"]["phase"] == "Running")
        .await;
    bench.behave("a", |b| b.creates = false);
    bench.delete("namespaces", "", "shop").await;
    let going = |seen: &Seen| seen.get("namespaces", "", "shop")["status"]["phase"] == "Terminating";
    bench.until("it is going", going).await;
    bench.until("its user goes", |seen| seen.all("volumeattachments").is_empty()).await;
    bench.quiet().await;
    let said = condition(&bench.seen.only("volumes"), "Ready")["reason"].clone();
    assert!(going(&bench.seen) && said == "Releasing", "{said}");
    let claim = bench.seen.get("volumeclaims", "shop", "data");
    assert!(!claim["metadata"]["deletionTimestamp"].is_null() && !bench.ledger.is_empty(), "{claim}");
    let settings = bench.seen.get("configmaps", "shop", "settings");
    let stays = !settings.is_null() && settings["metadata"]["deletionTimestamp"].is_null();
    assert!(stays, "what the volume may need goes after it: {settings}");
    bench.behave("a", |b| b.creates = true);
    bench.until("it is gone", |seen| seen.get("namespaces", "", "shop").is_null()).await;
    assert!(bench.ledger.is_empty(), "{:?}", bench.ledger.calls());
    assert!(bench.seen.get("configmaps", "shop", "settings").is_null());
    assert_eq!(bench.seen.all("snapshotschedules").len(), 0);
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn events_are_kept_for_an_hour() {
    let bench = Bench::new(&[]).await;
    let event = |name: &str, time: &str| {
        json!({ "metadata": { "name": name }, "reason": "R", "message": "m", "type": "Normal", "lastTimestamp": time,
            "involvedObject": { "kind": "Volume", "name": "v" } })
    };
    bench.make("events", event("old", "2024-05-01T08:59:59Z")).await;
    bench.make("events", event("new", "2024-05-01T09:30:00Z")).await;
    bench
        .until("the old one is gone", |seen| {
            seen.get("events", "default", "old").is_null() && !seen.get("events", "default", "new").is_null()
        })
        .await;
    crate::bench::pass(60).await;
    assert_eq!(bench.seen.all("events").len(), 1);
    bench.end().await;
}

/// Scenarios A69, B1, B25, B51.
/// Obligation CO-CTRL-01: the one name that is made of the claim's uid, which stands in the volume before it is asked for.
/// The controllers are killed after each of their writes in turn: nothing is lost, nothing is done twice.
#[tokio::test(start_paused = true)]
async fn controllers_may_die_after_any_write() {
    let mut at = 1;
    loop {
        let mut bench = Bench::new(&["a"]).await;
        bench.kill_after(at);
        for (plural, _, object) in quickstart() {
            bench.make(plural, object).await;
        }
        let mut died = bench.restart_if_killed().await;
        bench.until("it runs", |seen| running(seen, "hello")).await;
        died |= bench.restart_if_killed().await;
        let claim = bench.seen.get("volumeclaims", "default", "data")["metadata"]["uid"].clone();
        let name = format!("vol-{}-1", claim.as_str().unwrap());
        let made = bench.seen.only("volumes")["spec"]["source"]["create"]["name"].clone();
        assert_eq!(made, name.as_str(), "killed after write {at}");
        for (plural, namespace, object) in quickstart() {
            bench.delete(plural, namespace, object["metadata"]["name"].as_str().unwrap()).await;
        }
        died |= bench.restart_if_killed().await;
        bench.until("nothing is left", nothing_left).await;
        let verbs: Vec<_> =
            bench.ledger.calls().iter().map(|c| c.split(' ').next().unwrap().to_owned()).collect();
        assert_eq!(verbs, ["create", "publish", "unpublish", "delete"], "killed after write {at}");
        assert_eq!(bench.ledger.calls()[0], format!("create {name}"), "killed after write {at}");
        bench.end().await;
        if !died {
            break;
        }
        at += 1;
    }
    assert!(at > 20, "only {at} writes in a whole life");
}
