//! Who serves a Plugin and who may not, what a Plugin without a declaration is worth, and who waits for one.
use std::time::Duration;

use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use wharfline::api::Plugin;

use crate::bench::{Bench, Seen, condition};
use crate::fake::Behaviour;
use crate::manifests::{claim, class, disk, phase, ready, user, why};
use crate::plugins::{by_hand, disks};
use crate::quickstart::nothing_left;

/// A volume is in use whose driver is away, and somebody else asked to serve its plugin in vain.
#[tokio::test(start_paused = true)]
async fn who_was_never_admitted_holds_nothing() {
    let bench = Bench::with(&["a"], disks()).await;
    disk(&bench).await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.make("allocations", user("one", "c", "a")).await;
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    let mut intruder = by_hand("default");
    intruder["spec"]["tasks"][0]["csiPlugin"]["pluginName"] = json!("disk");
    bench.make("allocations", intruder).await;
    let refused = |seen: &Seen| seen.all("events").iter().any(|e| e["reason"] == "InstanceRefused");
    bench.until("it is refused", refused).await;
    bench.behave("a", |b| b.healthy = false);
    bench.until("the driver is away", |seen| why(&seen.get("plugins", "", "disk")) == "Probed").await;
    assert_ne!(bench.seen.get("allocations", "default", "driver")["status"]["pluginReleased"], true);
    bench.delete("allocations", "default", "driver").await;
    let gone = |seen: &Seen| {
        // What is wrong with the plugin is told all the while.
        assert_ne!(why(&seen.get("plugins", "", "disk")), "InUse");
        seen.get("allocations", "default", "driver").is_null()
    };
    bench.until("it goes at once", gone).await;
    bench.end().await;
}

/// An undeclared Plugin, served and then no more.
async fn served(bench: &Bench) {
    bench.make("allocations", by_hand("default")).await;
    bench.until("the plugin is there", |seen| ready(&seen.get("plugins", "", "by-hand"))).await;
}

#[tokio::test(start_paused = true)]
async fn what_a_person_wrote_stays_though_it_says_nothing() {
    for applies in [false, true] {
        let bench = Bench::with(&["a"], disks()).await;
        served(&bench).await;
        if applies {
            let plugins: Api<Plugin> = Api::all(bench.admin.clone());
            let empty = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Plugin",
                "metadata": { "name": "by-hand" }, "spec": {} });
            plugins.patch("by-hand", &PatchParams::apply("person"), &Patch::Apply(empty)).await.unwrap();
        } else {
            let mine = json!({ "metadata": { "labels": { "mine": "yes" } } });
            bench.patch("plugins", "", "by-hand", mine).await;
        }
        bench.quiet().await;
        assert!(ready(&bench.seen.get("plugins", "", "by-hand")), "that takes no instance away");
        bench.delete("allocations", "default", "driver").await;
        bench.until("no instance", |seen| seen.all("plugininstances").is_empty()).await;
        bench.quiet().await;
        assert!(!bench.seen.get("plugins", "", "by-hand").is_null(), "applied: {applies}");
        assert_eq!(bench.quiet().await.len(), 0);
        bench.delete("plugins", "", "by-hand").await;
        bench.until("nothing is left", nothing_left).await;
        bench.end().await;
    }
}

/// The cache shows the declaration later than the end of the last instance.
#[tokio::test(start_paused = true)]
async fn what_is_declared_at_the_last_moment_stays() {
    let bench = Bench::with(&["a"], disks()).await;
    served(&bench).await;
    bench.quiet().await;
    bench.delay("plugins", Duration::from_secs(20));
    bench.patch("plugins", "", "by-hand", json!({ "spec": { "driverName": "fake.csi" } })).await;
    bench.delete("allocations", "default", "driver").await;
    bench.until("no instance", |seen| seen.all("plugininstances").is_empty()).await;
    bench.quiet().await;
    assert_eq!(bench.seen.get("plugins", "", "by-hand")["spec"]["driverName"], "fake.csi");
    bench.end().await;
}

/// An allocation on node `a` that was stopped, and whose plugin is away when it is started again.
async fn started_without_its_plugin(bench: &Bench) {
    disk(bench).await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.make("allocations", user("one", "c", "a")).await;
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    bench.patch("allocations", "default", "one", json!({ "spec": { "stop": true } })).await;
    bench.until("nothing of it is left", |seen| seen.all("volumeattachments").is_empty()).await;
    bench.behave("a", |b| b.healthy = false);
    bench.until("the plugin is away", |seen| !ready(&seen.get("plugins", "", "disk"))).await;
    bench.patch("allocations", "default", "one", json!({ "spec": { "stop": false } })).await;
    bench.until("it waits for its plugin", |seen| obstacle(seen, "one")["reason"] == "PluginNotReady").await;
    let message = obstacle(&bench.seen, "one")["message"].clone();
    assert_eq!(message, "waits for a healthy instance of plugin \"disk\" on node \"a\"");
    assert_eq!(bench.quiet().await.len(), 0, "waiting is free");
}

/// What its node is told of what it waits for.
fn obstacle(seen: &Seen, name: &str) -> Value {
    seen.get("allocations", "default", name)["status"]["obstacle"].clone()
}

fn one(seen: &Seen) -> Value {
    seen.get("allocations", "default", "one")
}

/// Obligation CO-PLUG-17.
#[tokio::test(start_paused = true)]
async fn a_bound_allocation_says_that_it_waits_for_its_plugin_and_goes_on_with_it() {
    let bench = Bench::with(&["a"], disks()).await;
    started_without_its_plugin(&bench).await;
    bench.behave("a", |b| b.healthy = true);
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    assert_eq!(bench.ledger.count("publish"), 2);
    bench.until("nothing is said of before", |seen| obstacle(seen, "one").is_null()).await;
    assert_eq!(bench.quiet().await.len(), 0);
    bench.end().await;
}

/// Who waits is told for whom, also once another one has the volume; and while that is so nothing more is written.
#[tokio::test(start_paused = true)]
async fn who_waits_is_told_of_the_next_one_that_has_its_volume() {
    let bench = Bench::with(&["a", "b"], disks()).await;
    disk(&bench).await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.make("allocations", user("one", "c", "a")).await;
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    for (name, node) in [("two", "b"), ("three", "a")] {
        crate::bench::pass(1).await;
        bench.make("allocations", user(name, "c", node)).await;
        bench.until("it waits", |seen| phase(seen, name) == "WaitingVolumes").await;
    }
    bench.quiet().await;
    assert!(obstacle(&bench.seen, "three").is_null(), "it was said when it was bound");
    bench.delete("allocations", "default", "one").await;
    bench.until("two has it", |seen| phase(seen, "two") == "Running").await;
    let told = |seen: &Seen| {
        let told = obstacle(seen, "three");
        told["reason"] == "HeldElsewhere" && told["message"].as_str().unwrap().contains("default/two")
    };
    bench.until("told of two", told).await;
    assert_eq!(bench.quiet().await.len(), 0, "waiting is free");
    bench.delete("allocations", "default", "two").await;
    bench.until("three has it", |seen| phase(seen, "three") == "Running").await;
    bench.until("nothing is said of before", |seen| obstacle(seen, "three").is_null()).await;
    bench.end().await;
}

/// It waited for another user when the plugin of its node went, which changes nothing of the allocation itself.
#[tokio::test(start_paused = true)]
async fn who_gets_its_turn_while_its_plugin_is_away_says_so() {
    let bench = Bench::with(&["a", "b"], disks()).await;
    disk(&bench).await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.make("allocations", user("one", "c", "a")).await;
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    bench.make("allocations", user("two", "c", "b")).await;
    bench.until("it waits", |seen| phase(seen, "two") == "WaitingVolumes").await;
    bench.behave("b", |b| b.healthy = false);
    bench.until("the plugin is away", |seen| !ready(&seen.get("plugins", "", "disk"))).await;
    bench.quiet().await;
    assert!(obstacle(&bench.seen, "two").is_null(), "it waits for the other one");
    bench.delete("allocations", "default", "one").await;
    bench.until("it waits for its plugin", |seen| obstacle(seen, "two")["reason"] == "PluginNotReady").await;
    assert_eq!(bench.quiet().await.len(), 0, "waiting is free");
    bench.behave("b", |b| b.healthy = true);
    bench.until("it runs", |seen| phase(seen, "two") == "Running").await;
    bench.end().await;
}

/// Scenario A60.
#[tokio::test(start_paused = true)]
async fn what_ends_while_it_waits_for_its_plugin_leaves_no_claim() {
    for delete in [false, true] {
        let bench = Bench::with(&["a"], disks()).await;
        started_without_its_plugin(&bench).await;
        if delete {
            bench.delete("allocations", "default", "one").await;
            bench.until("it is gone", |seen| one(seen).is_null()).await;
        } else {
            bench.patch("allocations", "default", "one", json!({ "spec": { "stop": true } })).await;
            bench.until("it is stopped", |seen| phase(seen, "one") == "Stopped").await;
        }
        bench.behave("a", |b| b.healthy = true);
        bench.until("the plugin is back", |seen| ready(&seen.get("plugins", "", "disk"))).await;
        bench.quiet().await;
        assert!(bench.seen.all("volumeattachments").is_empty());
        let holders = bench.seen.only("volumes")["status"]["holders"].clone();
        assert!(holders.as_array().is_none_or(Vec::is_empty), "{holders}");
        assert_eq!(bench.ledger.count("publish"), 1);
        bench.end().await;
    }
}

/// Scenarios A60, B94.
/// On first start: nothing is bound or made, and nothing is after the end.
#[tokio::test(start_paused = true)]
async fn what_waits_for_a_plugin_from_the_first_on_leaves_nothing_either() {
    for delete in [false, true] {
        let bench = Bench::with(&["a"], Behaviour { healthy: false, ..disks() }).await;
        bench.make("plugins", crate::manifests::plugin("disk", "Cluster")).await;
        bench.make("volumeclasses", class("disk", "disk")).await;
        bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
        bench.make("allocations", user("one", "c", "a")).await;
        let waits = |seen: &Seen| {
            let said = condition(&one(seen), "Ready");
            said["reason"] == "VolumeNotReady"
                && said["message"].as_str().unwrap_or_default().contains("disk")
        };
        bench.until("it waits and says for what", waits).await;
        if delete {
            bench.delete("allocations", "default", "one").await;
            bench.until("it is gone", |seen| one(seen).is_null()).await;
        } else {
            bench.patch("allocations", "default", "one", json!({ "spec": { "stop": true } })).await;
            bench.until("it is stopped", |seen| phase(seen, "one") == "Stopped").await;
        }
        bench.behave("a", |b| b.healthy = true);
        bench.until("the claim is bound", |seen| ready(&seen.get("volumeclaims", "default", "c"))).await;
        bench.quiet().await;
        assert!(bench.seen.all("volumeattachments").is_empty());
        assert_eq!((bench.ledger.count("attach"), bench.ledger.count("publish")), (0, 0));
        bench.end().await;
    }
}

/// A driver of a person, allowed once, with a volume in use on its node `a`.
async fn used_by_hand(bench: &Bench) {
    let spec = json!({ "driverName": "fake.csi", "allowInstancesFrom": ["default"] });
    bench.make("plugins", json!({ "metadata": { "name": "by-hand" }, "spec": spec })).await;
    bench.make("allocations", by_hand("default")).await;
    bench.until("the plugin is there", |seen| ready(&seen.get("plugins", "", "by-hand"))).await;
    bench.make("volumeclasses", class("by-hand", "by-hand")).await;
    bench.make("volumeclaims", claim("c", "by-hand", "SingleNodeWriter")).await;
    bench.make("allocations", user("one", "c", "a")).await;
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
}

/// Its admission is taken back, then its instance is deleted by hand: nobody else could take down what it has brought up.
#[tokio::test(start_paused = true)]
async fn who_was_admitted_once_is_held_by_its_volumes_without_an_instance() {
    let bench = Bench::with(&["a"], disks()).await;
    used_by_hand(&bench).await;
    let allow = |from: Value| json!({ "spec": { "allowInstancesFrom": from } });
    bench.patch("plugins", "", "by-hand", allow(json!([]))).await;
    let stays = |seen: &Seen| seen.all("events").iter().any(|e| e["reason"] == "InstanceStays");
    bench.until("it serves on", stays).await;
    let instance = bench.seen.only("plugininstances")["metadata"]["name"].clone();
    bench.delete("plugininstances", "", instance.as_str().unwrap()).await;
    bench.patch("allocations", "default", "driver", json!({ "spec": { "stop": true } })).await;
    bench.quiet().await;
    assert_eq!(bench.quiet().await.len(), 0);
    let driver = |seen: &Seen| seen.get("allocations", "default", "driver")["status"].clone();
    assert_ne!(driver(&bench.seen)["pluginReleased"], true, "{}", driver(&bench.seen));
    assert_eq!(why(&bench.seen.get("plugins", "", "by-hand")), "InUse");
    bench.delete("allocations", "default", "one").await;
    bench.delete("volumeclaims", "default", "c").await;
    bench.until("it is let go after them", |seen| driver(seen)["phase"] == "Stopped").await;
    assert!(bench.seen.all("volumes").is_empty() && bench.seen.all("volumeattachments").is_empty());
    bench.end().await;
}

/// One of before something in it was refused, say, when another node joins.
#[tokio::test(start_paused = true)]
async fn an_instance_that_the_api_refuses_is_told_and_holds_up_nothing_else() {
    let mut bench = Bench::with(&["a"], disks()).await;
    disk(&bench).await;
    bench.refuse("allocations");
    bench.join("b", disks()).await;
    let plugin = |seen: &Seen| seen.get("plugins", "", "disk");
    bench.until("it says so", |seen| why(&plugin(seen)) == "InstanceNotMade").await;
    let message = condition(&plugin(&bench.seen), "Ready")["message"].clone();
    let expected = "the API refuses its next instance, correct spec.instances: spec.tasks[0].env[A=B]: cannot be the name \
                    of a variable";
    assert_eq!(message, expected);
    assert_eq!(plugin(&bench.seen)["status"]["nodes"], json!({ "healthy": 1, "expected": 2 }));
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.make("allocations", user("one", "c", "a")).await;
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    let driver = |seen: &Seen| plugin(seen)["status"]["driverName"] == "fake.csi";
    bench.until("the rest of its status goes on", driver).await;
    bench.refuse("");
    bench.until("it is tried again", |seen| ready(&plugin(seen))).await;
    bench.end().await;
}

/// It serves one plugin, and has a volume of another one.
#[tokio::test(start_paused = true)]
async fn who_serves_a_plugin_says_that_it_waits_for_another_one() {
    let bench = Bench::with(&["a"], disks()).await;
    disk(&bench).await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    let mut both = by_hand("default");
    both["metadata"]["name"] = json!("one");
    both["spec"]["volumes"] = json!([{ "name": "v", "claimName": "c" }]);
    bench.make("allocations", both).await;
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    bench.patch("allocations", "default", "one", json!({ "spec": { "stop": true } })).await;
    bench.until("nothing of it is left", |seen| seen.all("volumeattachments").is_empty()).await;
    let away = |seen: &Seen| !ready(&seen.get("plugins", "", "disk"));
    bench.behave("a", |b| b.healthy = false);
    bench.until("the plugin is away", away).await;
    bench.patch("allocations", "default", "one", json!({ "spec": { "stop": false } })).await;
    bench.until("it waits for its plugin", |seen| obstacle(seen, "one")["reason"] == "PluginNotReady").await;
    bench.end().await;
}

/// Its end is the first that is seen after it began to wait.
#[tokio::test(start_paused = true)]
async fn what_is_over_waits_for_nothing() {
    let bench = Bench::with(&["a"], disks()).await;
    started_without_its_plugin(&bench).await;
    bench.patch("allocations", "default", "one", json!({ "status": { "phase": "Failed" } })).await;
    bench.until("nothing is said of before", |seen| obstacle(seen, "one").is_null()).await;
    assert_eq!(phase(&bench.seen, "one"), "Failed");
    bench.end().await;
}
