//! What is decided about a volume once and kept with it, whatever becomes of what it was decided from.
use serde_json::{Value, json};

use crate::bench::{Bench, Seen, condition};
use crate::fake::{Behaviour, DISK};
use crate::manifests::{claim, class, disk, phase, plugin, ready, user, why};

fn source(seen: &Seen) -> Value {
    seen.only("volumes")["spec"]["source"]["create"].clone()
}

fn serving(nodes: usize) -> impl Fn(&Seen) -> bool {
    move |seen| seen.all("plugininstances").iter().filter(|i| ready(i)).count() == nodes
}

/// A class of the plugin `disk` whose volumes may be made at these nodes only.
fn at(name: &str, nodes: &[&str], when: &str) -> Value {
    let terms: Vec<_> = nodes.iter().map(|node| json!({ "dir/node": node })).collect();
    json!({ "metadata": { "name": name }, "spec": { "plugin": "disk", "allowedTopologies": terms,
        "volumeBindingMode": when } })
}

/// Scenario B18.
#[tokio::test(start_paused = true)]
async fn a_volume_is_asked_for_where_its_class_lets_it_be_and_nowhere_else() {
    let mut bench = Bench::new(&["a", "b", "c"]).await;
    disk(&bench).await;
    bench.until("all serve", serving(3)).await;
    bench.make("volumeclasses", at("some", &["b", "c"], "Immediate")).await;
    bench.make("volumeclaims", claim("c", "some", "SingleNodeWriter")).await;
    bench.until("bound", |seen| ready(&seen.only("volumeclaims"))).await;
    let (asked, places) = (source(&bench.seen), json!([{ "dir/node": "b" }, { "dir/node": "c" }]));
    assert_eq!((&asked["requisite"], &asked["preferred"]), (&places, &places), "{asked}");
    // Where nobody serves it is not asked for anywhere else, until somebody does.
    bench.make("volumeclasses", at("far", &["x"], "Immediate")).await;
    bench.make("volumeclaims", claim("far", "far", "SingleNodeWriter")).await;
    let far = |seen: &Seen| seen.get("volumeclaims", "default", "far");
    bench.until("it is told", |seen| why(&far(seen)) == "NoPlaceAllowed").await;
    bench.quiet().await;
    assert_eq!(bench.seen.all("volumes").len(), 1);
    bench.join("x", Behaviour::default()).await;
    bench.until("bound", |seen| ready(&far(seen))).await;
    bench.end().await;
}

/// Scenario B19.
#[tokio::test(start_paused = true)]
async fn who_is_pinned_where_no_volume_of_the_class_may_be_stays_unplaced_and_is_told() {
    let bench = Bench::new(&["a", "b"]).await;
    disk(&bench).await;
    bench.until("both serve", serving(2)).await;
    bench.make("volumeclasses", at("late", &["b"], "WaitForFirstConsumer")).await;
    bench.make("volumeclaims", claim("c", "late", "SingleNodeWriter")).await;
    bench.make("allocations", user("far", "c", "a")).await;
    let far = |seen: &Seen| seen.get("allocations", "default", "far");
    bench.until("it cannot be there", |seen| why(&far(seen)) == "NoNodeFits").await;
    let message = condition(&far(&bench.seen), "Placed")["message"].as_str().unwrap().to_owned();
    assert!(
        message.contains("a: class late lets no volume be there, at dir/node=a (allowedTopologies)"),
        "{message}"
    );
    bench.quiet().await;
    assert_eq!((phase(&bench.seen, "far"), why(&far(&bench.seen))), ("Pending".into(), "NoNodeFits".into()));
    let nobody = |word: &Value| word.as_str().unwrap_or_default().is_empty();
    assert!(nobody(&far(&bench.seen)["status"]["nodeName"]), "it has a node");
    assert!(nobody(&bench.seen.only("volumeclaims")["status"]["selectedNode"]), "a node was chosen for it");
    assert!(bench.seen.all("volumes").is_empty() && bench.ledger.calls().is_empty());
    // Alike in all else, and `a` comes first by its name.
    bench.make("allocations", user("free", "c", "")).await;
    bench.until("it runs", |seen| phase(seen, "free") == "Running").await;
    assert_eq!(bench.seen.get("allocations", "default", "free")["status"]["nodeName"], "b");
    assert_eq!(source(&bench.seen)["requisite"], json!([{ "dir/node": "b" }]));
    assert_eq!(phase(&bench.seen, "far"), "Pending");
    bench.end().await;
}

/// Scenarios A28, B20.
/// Obligations CO-CTRL-06, CO-CTRL-07, CO-CTRL-10.
#[tokio::test(start_paused = true)]
async fn where_a_volume_may_be_is_frozen_with_it_and_its_users_go_there() {
    let mut bench = Bench::new(&["a", "b"]).await;
    disk(&bench).await;
    bench.until("both serve", serving(2)).await;
    for node in ["a", "b"] {
        bench.behave(node, |b| b.creates = false);
    }
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.until("it has a host", |seen| seen.only("volumes")["status"]["controller"].is_object()).await;
    let asked = source(&bench.seen);
    let places = json!([{ "dir/node": "a" }, { "dir/node": "b" }]);
    assert_eq!((&asked["requisite"], &asked["preferred"]), (&places, &places), "{asked}");
    bench.join("c", Behaviour::default()).await;
    bench.until("all serve", serving(3)).await;
    let elsewhere = json!({ "spec": { "allowedTopologies": [{ "dir/node": "b" }] } });
    bench.patch("volumeclasses", "", "disk", elsewhere).await;
    bench.quiet().await;
    assert_eq!(source(&bench.seen), asked, "what is asked again is what was asked");
    for node in ["a", "b"] {
        bench.behave(node, |b| b.creates = true);
    }
    bench.until("bound", |seen| ready(&seen.only("volumeclaims"))).await;
    assert_eq!(source(&bench.seen), asked);
    // The plugin made it where `a` reaches it, and nobody else does.
    assert_eq!(bench.seen.only("volumes")["status"]["topology"], json!([{ "dir/node": "a" }]));
    bench.make("allocations", user("far", "c", "b")).await;
    let far = |seen: &Seen| seen.get("allocations", "default", "far");
    bench.until("it cannot be there", |seen| why(&far(seen)) == "NoNodeFits").await;
    let message = condition(&far(&bench.seen), "Placed")["message"].as_str().unwrap().to_owned();
    assert!(message.contains("b: claim c cannot be reached from there"), "{message}");
    bench.delete("allocations", "default", "far").await;
    // Wherever there is most room otherwise.
    for n in 0..3 {
        let name = format!("near-{n}");
        bench.make("allocations", user(&name, "c", "")).await;
        bench.until("it runs", |seen| phase(seen, &name) == "Running").await;
        assert_eq!(bench.seen.get("allocations", "default", &name)["status"]["nodeName"], "a");
        bench.delete("allocations", "default", &name).await;
        bench.until("it is gone", |seen| seen.get("allocations", "default", &name).is_null()).await;
    }
    bench.end().await;
}

/// Obligation CO-CTRL-06: a plugin that does not say that places matter is asked for none, though it tells where its nodes are.
#[tokio::test(start_paused = true)]
async fn a_plugin_without_places_is_asked_for_none() {
    let bench = Bench::with(&["a"], Behaviour { capabilities: DISK.to_vec(), ..Behaviour::default() }).await;
    disk(&bench).await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.until("bound", |seen| ready(&seen.only("volumeclaims"))).await;
    let asked = source(&bench.seen);
    assert!(asked["requisite"].is_null() && asked["preferred"].is_null(), "{asked}");
    bench.end().await;
}

/// Obligation CO-IDEN-04: the one that makes volumes says that places matter, and the one on the nodes does not.
#[tokio::test(start_paused = true)]
async fn what_only_one_role_says_of_the_plugin_is_told_and_not_used() {
    let bench = Bench::new(&["a", "b"]).await;
    let places = "plugin/VOLUME_ACCESSIBILITY_CONSTRAINTS";
    bench.behave("b", |b| b.capabilities.retain(|word| *word != places));
    let entry = |role: &str, node: &str| {
        json!({ "name": role.to_lowercase(), "role": role, "placement": { "nodeSelector": { "name": node } },
            "runtime": { "process": { "command": ["driver"] } } })
    };
    let spec = json!({ "instances": [entry("Controller", "a"), entry("Node", "b")] });
    bench.make("plugins", json!({ "metadata": { "name": "disk" }, "spec": spec })).await;
    bench.make("volumeclasses", class("disk", "disk")).await;
    let differs = |seen: &Seen| why(&seen.get("plugins", "", "disk")) == "CapabilitiesDiffer";
    bench.until("it is told", differs).await;
    let told = bench.seen.get("plugins", "", "disk");
    assert!(condition(&told, "Ready")["message"].as_str().unwrap().contains(places), "{told}");
    assert!(!told["status"]["capabilities"].to_string().contains(places), "{told}");
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.until("bound", |seen| ready(&seen.only("volumeclaims"))).await;
    let asked = source(&bench.seen);
    assert!(asked["requisite"].is_null() && asked["preferred"].is_null(), "{asked}");
    bench.delete("volumeclaims", "default", "c").await;
    bench.until("it is gone", |seen| seen.all("volumes").is_empty()).await;
    bench.behave("b", |b| b.capabilities.push(places));
    bench.until("both say it", |seen| why(&seen.get("plugins", "", "disk")) == "Ready").await;
    bench.make("volumeclaims", claim("d", "disk", "SingleNodeWriter")).await;
    bench.until("bound", |seen| ready(&seen.get("volumeclaims", "default", "d"))).await;
    assert_eq!(source(&bench.seen)["requisite"], json!([{ "dir/node": "b" }]));
    bench.end().await;
}

/// Obligations CO-CTRL-20, CO-CTRL-30: the class is gone, and the driver calls the node something else.
#[tokio::test(start_paused = true)]
async fn what_later_calls_need_is_kept_with_the_volume_and_its_attachment() {
    let usual = Behaviour { capabilities: DISK.to_vec(), node_id: "x-1".to_owned(), ..Behaviour::default() };
    let bench = Bench::with(&["a"], usual).await;
    bench.make("plugins", plugin("disk", "Cluster")).await;
    let secrets = json!({ "provision": { "namespace": "default", "name": "s" },
        "controllerPublish": { "namespace": "default", "name": "t" } });
    let mut of = class("disk", "disk");
    of["spec"]["secrets"] = secrets.clone();
    bench.make("volumeclasses", of).await;
    let mut claim = claim("c", "disk", "SingleNodeWriter");
    claim["spec"]["fsGroup"] = json!(2000);
    bench.make("volumeclaims", claim).await;
    bench.make("allocations", user("one", "c", "a")).await;
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    bench.patch("volumeclaims", "default", "c", json!({ "spec": { "fsGroup": 3000 } })).await;
    bench.delete("volumeclasses", "", "disk").await;
    bench.behave("a", |b| b.node_id = "x-2".to_owned());
    let renamed = |seen: &Seen| seen.only("plugininstances")["status"]["nodeId"] == "x-2";
    bench.until("the driver says something else", renamed).await;
    bench.quiet().await;
    let attachment = bench.seen.only("volumeattachments")["spec"].clone();
    assert_eq!((&attachment["nodeId"], &attachment["secrets"]), (&json!("x-1"), &secrets));
    assert_eq!(attachment["fsGroup"], 2000, "what was staged with a group is published with it");
    bench.behave("a", |b| b.releases = false);
    bench.delete("allocations", "default", "one").await;
    bench.delete("volumeclaims", "default", "c").await;
    let closed = |seen: &Seen| !seen.only("volumeattachments")["metadata"]["deletionTimestamp"].is_null();
    bench.until("on its way out", closed).await;
    assert_eq!(bench.seen.only("volumeattachments")["spec"]["nodeId"], "x-1");
    assert_eq!(bench.seen.only("volumes")["spec"]["secrets"], secrets);
    bench.behave("a", |b| b.releases = true);
    bench.until("all is gone", |seen| seen.all("volumes").is_empty()).await;
    bench.end().await;
}

/// Obligation CO-GEN-18.
#[tokio::test(start_paused = true)]
async fn a_driver_whose_sides_do_not_know_the_same_modes_is_told() {
    const NEWER: [&str; 2] = ["controller/SINGLE_NODE_MULTI_WRITER", "node/SINGLE_NODE_MULTI_WRITER"];
    let bench =
        Bench::with(&["a", "b"], Behaviour { capabilities: DISK.to_vec(), ..Behaviour::default() }).await;
    let learn = |word: &'static str| {
        for node in ["a", "b"] {
            bench.behave(node, |b| b.capabilities.push(word));
        }
    };
    learn(NEWER[0]);
    bench.make("plugins", plugin("disk", "Cluster")).await;
    bench.make("volumeclasses", class("disk", "disk")).await;
    let differs = |seen: &Seen| why(&seen.get("plugins", "", "disk")) == "AccessModesDiffer";
    bench.until("it is told", differs).await;
    let told = bench.seen.get("plugins", "", "disk");
    let message = condition(&told, "Ready")["message"].as_str().unwrap().to_owned();
    assert!(
        ready(&told) && message.starts_with("its controller service has SINGLE_NODE_MULTI_WRITER"),
        "{message}"
    );
    let events = bench.seen.all("events");
    assert_eq!(events.iter().filter(|e| e["reason"] == "AccessModesDiffer").count(), 1, "{events:?}");
    // What is asked for is frozen as the controllers know it.
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.until("it is created", |seen| ready(&seen.get("volumeclaims", "default", "c"))).await;
    assert_eq!(bench.seen.only("volumes")["spec"]["source"]["create"]["newerModes"], true);
    // And with its attachment each side as it knows it then, whatever it learns later.
    bench.make("allocations", user("u", "c", "a")).await;
    bench.until("it is attached", |seen| !seen.all("volumeattachments").is_empty()).await;
    let frozen = json!({ "controller": true, "node": false });
    assert_eq!(bench.seen.only("volumeattachments")["spec"]["newerModes"], frozen);
    learn(NEWER[1]);
    bench.until("both know them", |seen| why(&seen.get("plugins", "", "disk")) == "Ready").await;
    assert_eq!(bench.seen.only("volumeattachments")["spec"]["newerModes"], frozen);
    bench.end().await;
}
