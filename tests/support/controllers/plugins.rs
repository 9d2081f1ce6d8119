//! Plugins: declared and not, placed, replaced, and kept while a volume needs them.
use serde_json::json;

use crate::bench::{Bench, Seen, condition};
use crate::fake::{Behaviour, DISK};
use crate::manifests::{claim, class, disk, phase, plugin, ready, user, why};
use crate::quickstart::nothing_left;

pub(crate) fn disks() -> Behaviour {
    Behaviour { capabilities: DISK.to_vec(), ..Behaviour::default() }
}

/// Obligations CO-PLUG-20, CO-IDEN-02.
/// Scenario B115.
#[tokio::test(start_paused = true)]
async fn a_plugin_with_volumes_stays_and_names_them() {
    let bench = Bench::with(&["a"], disks()).await;
    disk(&bench).await;
    let status = bench.seen.get("plugins", "", "disk")["status"].clone();
    assert_eq!(status["controllers"], json!({ "healthy": 1, "expected": 1 }));
    assert_eq!(status["provider"]["name"], "fake.csi");
    assert_eq!(status["topologyKeys"], json!(["dir/node"]));
    assert!(status["capabilities"].as_array().unwrap().contains(&json!("node/STAGE_UNSTAGE_VOLUME")));
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.make("allocations", user("one", "c", "a")).await;
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    bench.make("volumeclaims", claim("d", "disk", "SingleNodeWriter")).await;
    bench.make("allocations", user("two", "d", "a")).await;
    bench.until("the other one runs", |seen| phase(seen, "two") == "Running").await;
    assert_eq!(bench.seen.get("plugins", "", "disk")["status"]["driverName"], "fake.csi");
    bench.delete("plugins", "", "disk").await;
    let its_own =
        bench.seen.only("plugininstances")["spec"]["allocation"]["name"].as_str().unwrap().to_owned();
    // However it is deleted, an instance runs on until no volume needs it.
    bench.delete("allocations", "wharfline-system", &its_own).await;
    bench.until("held", |seen| why(&seen.get("plugins", "", "disk")) == "InUse").await;
    let message = condition(&bench.seen.get("plugins", "", "disk"), "Ready")["message"].clone();
    for of in ["c", "d"] {
        let volume = bench.seen.get("volumeclaims", "default", of)["status"]["volumeName"].clone();
        assert!(message.as_str().unwrap().contains(volume.as_str().unwrap()), "{message}");
    }
    assert_eq!(bench.quiet().await.len(), 0);
    let instance = bench.seen.get("allocations", "wharfline-system", &its_own);
    assert_eq!(instance["status"]["phase"], "Running");
    assert_ne!(instance["status"]["pluginReleased"], true);
    for name in ["one", "two"] {
        bench.delete("allocations", "default", name).await;
        bench.until("unused", |seen| seen.get("allocations", "default", name).is_null()).await;
    }
    bench.quiet().await;
    assert!(ready(&bench.seen.only("plugininstances")), "the volume is still there");
    for name in ["c", "d"] {
        bench.delete("volumeclaims", "default", name).await;
    }
    bench.delete("volumeclasses", "", "disk").await;
    bench.until("nothing is left", nothing_left).await;
    bench.end().await;
}

/// Obligation CO-IDEN-04.
#[tokio::test(start_paused = true)]
async fn instances_of_one_version_that_disagree_are_told_and_only_what_all_can_is_used() {
    let bench = Bench::with(&["a", "b"], disks()).await;
    let create = "controller/CREATE_DELETE_VOLUME";
    bench.behave("b", |b| b.capabilities.retain(|word| *word != create));
    bench.make("plugins", plugin("disk", "Cluster")).await;
    bench.make("volumeclasses", class("disk", "disk")).await;
    let differs = |seen: &Seen| why(&seen.get("plugins", "", "disk")) == "CapabilitiesDiffer";
    bench.until("it is told", differs).await;
    let told = bench.seen.get("plugins", "", "disk");
    let message = condition(&told, "Ready")["message"].as_str().unwrap().to_owned();
    assert!(ready(&told) && message.contains(create) && message.contains("version \"1\""), "{message}");
    assert!(!told["status"]["capabilities"].as_array().unwrap().contains(&json!(create)));
    let events = bench.seen.all("events");
    assert_eq!(events.iter().filter(|e| e["reason"] == "CapabilitiesDiffer").count(), 1, "{events:?}");
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    let lacks = |seen: &Seen| why(&seen.get("volumeclaims", "default", "c")) == "PluginLacksCapability";
    bench.until("nobody creates", lacks).await;
    assert_eq!(bench.quiet().await.len(), 0);
    bench.behave("b", |b| b.capabilities.push(create));
    bench.until("all agree", |seen| why(&seen.get("plugins", "", "disk")) == "Ready").await;
    bench.until("it is created", |seen| ready(&seen.get("volumeclaims", "default", "c"))).await;
    bench.end().await;
}

/// It serves on, and people see it before they look at the instance.
#[tokio::test(start_paused = true)]
async fn a_plugin_of_which_an_instance_dies_again_and_again_says_so_while_it_is_well() {
    let bench = Bench::with(&["a", "b"], disks()).await;
    bench.behave("b", |b| b.unsteady = true);
    bench.make("plugins", plugin("disk", "Cluster")).await;
    bench.make("volumeclasses", class("disk", "disk")).await;
    let loops = |seen: &Seen| why(&seen.get("plugins", "", "disk")) == "CrashLoop";
    bench.until("it is told", loops).await;
    let told = bench.seen.get("plugins", "", "disk");
    let message = condition(&told, "Ready")["message"].as_str().unwrap().to_owned();
    assert!(ready(&told) && message.contains("on node \"b\" ends soon after each start"), "{message}");
    let name = |seen: &serde_json::Value| seen["metadata"]["name"].as_str().unwrap().to_owned();
    let on_b = bench.seen.all("plugininstances").into_iter().find(|i| i["spec"]["nodeName"] == "b").unwrap();
    assert!(message.contains(&format!("describe plugininstance/{}", name(&on_b))), "{message}");
    let events = bench.seen.all("events");
    assert_eq!(events.iter().filter(|e| e["reason"] == "CrashLoop").count(), 1, "{events:?}");
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.until("it serves", |seen| ready(&seen.get("volumeclaims", "default", "c"))).await;
    bench.behave("b", |b| b.unsteady = false);
    bench.until("it is steady", |seen| why(&seen.get("plugins", "", "disk")) == "Ready").await;
    bench.end().await;
}

/// Half-way through a change of drivers two of them run: the volumes are of the one that makes them.
#[tokio::test(start_paused = true)]
async fn the_driver_of_the_volumes_is_that_of_their_host() {
    let bench = Bench::with(&["a", "b"], disks()).await;
    bench.behave("b", |b| b.driver = "other.csi");
    disk(&bench).await;
    let late = json!({ "metadata": { "name": "late" },
        "spec": { "plugin": "disk", "volumeBindingMode": "WaitForFirstConsumer" } });
    bench.make("volumeclasses", late).await;
    bench.make("volumeclaims", claim("c", "late", "SingleNodeWriter")).await;
    bench.make("allocations", user("one", "c", "b")).await;
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    let host = bench.seen.only("volumes")["status"]["controller"]["nodeName"].clone();
    assert_eq!(host, "b");
    let driver = |seen: &Seen| seen.get("plugins", "", "disk")["status"]["driverName"].clone();
    bench.until("its driver is known", |seen| driver(seen) == "other.csi").await;
    bench.end().await;
}

/// What mounted it can take it down, and no other is left that could.
#[tokio::test(start_paused = true)]
async fn an_entry_in_another_role_keeps_who_does_what_the_next_one_does_not() {
    let bench = Bench::with(&["a"], disks()).await;
    disk(&bench).await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.make("allocations", user("one", "c", "a")).await;
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    let mut changed = plugin("disk", "Cluster")["spec"].clone();
    changed["instances"][0]["role"] = json!("Controller");
    bench.patch("plugins", "", "disk", json!({ "spec": changed })).await;
    let up = |seen: &Seen| updated(seen)["message"].as_str().is_some_and(|m| m.starts_with("1 of 1"));
    bench.until("the next one is up, and the former one held", up).await;
    assert_eq!(bench.quiet().await.len(), 0);
    let role = |seen: &Seen, role: &str| {
        seen.all("plugininstances").iter().any(|i| i["spec"]["role"] == role && ready(i))
    };
    assert!(role(&bench.seen, "Monolith") && role(&bench.seen, "Controller"), "both serve");
    let said = condition(&bench.seen.get("plugins", "", "disk"), "Ready");
    assert!(said["reason"] == "InUse", "{said}");
    bench.delete("allocations", "default", "one").await;
    bench.until("the former one goes", |seen| !role(seen, "Monolith")).await;
    assert!(bench.seen.all("volumeattachments").is_empty());
    assert_eq!((bench.ledger.count("publish"), bench.ledger.count("unpublish")), (1, 1));
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_changed_spec_replaces_the_instances_under_running_volumes() {
    let bench = Bench::with(&["a"], disks()).await;
    disk(&bench).await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.make("allocations", user("one", "c", "a")).await;
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    let before = bench.seen.only("plugininstances")["spec"]["allocation"]["uid"].clone();
    let mut changed = plugin("disk", "Cluster");
    changed["spec"]["instances"][0]["env"] = json!({ "DEBUG": "1" });
    bench.patch("plugins", "", "disk", json!({ "spec": changed["spec"] })).await;
    bench
        .until("another instance serves", |seen| {
            let instance = seen.only("plugininstances");
            instance["spec"]["allocation"]["uid"] != before && ready(&instance)
        })
        .await;
    assert_eq!((bench.ledger.count("publish"), bench.ledger.count("unpublish")), (1, 0));
    bench.until("ready again", |seen| ready(&seen.get("plugins", "", "disk"))).await;
    assert_eq!(bench.quiet().await.len(), 0);
    bench.end().await;
}

/// Wants the plugin's instances with this word in their environment.
pub(crate) async fn change(bench: &Bench, word: &str, strategy: serde_json::Value) {
    let mut changed = plugin("disk", "Cluster")["spec"].clone();
    changed["instances"][0]["env"] = json!({ word: "1" });
    changed["updateStrategy"] = strategy;
    bench.patch("plugins", "", "disk", json!({ "spec": changed })).await;
}

/// The nodes of the instances with this word in their environment.
pub(crate) fn with(seen: &Seen, word: &str) -> Vec<String> {
    let of_it =
        seen.all("allocations").into_iter().filter(|a| a["spec"]["tasks"][0]["env"].get(word).is_some());
    let mut nodes: Vec<_> = of_it.map(|a| a["spec"]["nodeName"].as_str().unwrap().to_owned()).collect();
    nodes.sort();
    nodes
}

pub(crate) fn updated(seen: &Seen) -> serde_json::Value {
    condition(&seen.get("plugins", "", "disk"), "Updated")
}

/// Scenario A16.
#[tokio::test(start_paused = true)]
async fn a_changed_spec_goes_from_node_to_node_and_the_former_one_serves_until_the_next_one_does() {
    let bench = Bench::with(&["a", "b", "c"], disks()).await;
    disk(&bench).await;
    assert!(updated(&bench.seen).is_null(), "nothing was changed yet");
    bench.behave("b", |b| b.poison = "NEXT");
    change(&bench, "NEXT", json!(null)).await;
    bench.until("held at b", |seen| updated(seen)["reason"] == "UpdateHeld").await;
    assert_eq!(bench.quiet().await.len(), 0);
    assert_eq!(with(&bench.seen, "NEXT"), ["a", "b"], "c has its turn when b is through");
    assert_eq!(bench.seen.all("plugininstances").len(), 4, "on b both run");
    let message = updated(&bench.seen)["message"].as_str().unwrap().to_owned();
    assert!(
        message.starts_with("1 of 3 instances are of this spec; ")
            && message.contains("on node \"b\": it ends soon after each start"),
        "{message}"
    );
    let said = |seen: &Seen| seen.all("events").iter().filter(|e| e["reason"] == "UpdateHeld").count();
    bench.until("an event says so", |seen| said(seen) == 1).await;
    let plugin = bench.seen.get("plugins", "", "disk");
    assert!(ready(&plugin), "it is served everywhere: {plugin}");
    assert_eq!(why(&plugin), "Ready", "what was never healthy is no matter of those that are: {plugin}");
    assert_eq!(plugin["status"]["nodes"], json!({ "healthy": 3, "expected": 3 }));
    bench.behave("b", |b| b.poison = "");
    bench.until("through", |seen| updated(seen)["status"] == "True").await;
    assert_eq!(with(&bench.seen, "NEXT"), ["a", "b", "c"]);
    assert_eq!(bench.seen.all("plugininstances").len(), 3);
    assert_eq!(bench.quiet().await.len(), 0);
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn the_former_spec_brings_back_what_was() {
    let bench = Bench::with(&["a", "b"], Behaviour { poison: "NEXT", ..disks() }).await;
    disk(&bench).await;
    change(&bench, "FORMER", json!(null)).await;
    bench.until("changed", |seen| updated(seen)["status"] == "True").await;
    let names = |seen: &Seen| {
        let mut names: Vec<_> =
            seen.all("plugininstances").iter().map(|i| i["metadata"]["uid"].clone().to_string()).collect();
        names.sort();
        names
    };
    let before = names(&bench.seen);
    change(&bench, "NEXT", json!({ "maxSurge": 2 })).await;
    bench.until("held", |seen| updated(seen)["reason"] == "UpdateHeld").await;
    bench.until("both at once", |seen| with(seen, "NEXT") == ["a", "b"]).await;
    let since = |seen: &Seen| {
        let ready = condition(&seen.get("plugins", "", "disk"), "Ready");
        (ready["status"].clone(), ready["lastTransitionTime"].clone())
    };
    let served = since(&bench.seen);
    // Of the next ones the instances go after their allocations, here long after.
    let next: Vec<_> = bench.seen.all("plugininstances");
    let next = next.iter().filter(|i| !before.contains(&i["metadata"]["uid"].to_string()));
    let next: Vec<_> = next.map(|i| i["metadata"]["name"].as_str().unwrap().to_owned()).collect();
    let kept = |by: serde_json::Value| json!({ "metadata": { "finalizers": by } });
    for name in &next {
        bench.patch("plugininstances", "", name, kept(json!(["example.com/kept"]))).await;
    }
    change(&bench, "FORMER", json!({ "maxSurge": 2 })).await;
    bench.until("back", |seen| updated(seen)["status"] == "True" && with(seen, "NEXT").is_empty()).await;
    bench.quiet().await;
    assert_eq!((next.len(), names(&bench.seen).len()), (2, 4), "they are there still");
    for name in &next {
        bench.patch("plugininstances", "", name, kept(json!(null))).await;
    }
    bench.until("gone", |seen| names(seen) == before).await;
    assert_eq!(names(&bench.seen), before, "the very same instances, never stopped");
    assert_eq!(served.0, "True");
    assert_eq!(since(&bench.seen), served, "nobody was told that the plugin was not served");
    bench.end().await;
}

/// Once a change is through, an instance that is unwell is no matter of it, and no later change of anything else either.
#[tokio::test(start_paused = true)]
async fn what_becomes_of_an_instance_after_a_change_is_told_elsewhere() {
    let mut bench = Bench::with(&["a", "b"], disks()).await;
    disk(&bench).await;
    change(&bench, "NEXT", json!(null)).await;
    bench.until("through", |seen| updated(seen)["status"] == "True").await;
    let told = updated(&bench.seen);
    assert_eq!(
        (&told["reason"], &told["message"]),
        (&json!("Updated"), &json!("every instance is of this spec"))
    );
    bench.behave("b", |b| b.healthy = false);
    bench.until("unwell", |seen| !ready(&seen.get("plugins", "", "disk"))).await;
    bench.quiet().await;
    assert_eq!(updated(&bench.seen), told, "an instance that falls ill later");
    bench.behave("b", |b| b.healthy = true);
    bench.join("c", disks()).await;
    bench.until("on c, too", |seen| with(seen, "NEXT") == ["a", "b", "c"]).await;
    bench.until("well", |seen| ready(&seen.get("plugins", "", "disk"))).await;
    bench.quiet().await;
    assert_eq!(updated(&bench.seen), told, "a node that joins later");
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_change_is_held_by_an_instance_that_takes_another_nodes_id() {
    let bench = Bench::with(&["a", "b", "c"], disks()).await;
    disk(&bench).await;
    bench.behave("b", |b| b.node_id = "id-a".to_owned());
    change(&bench, "NEXT", json!(null)).await;
    bench.until("held at b", |seen| updated(seen)["reason"] == "UpdateHeld").await;
    assert_eq!(bench.quiet().await.len(), 0);
    let message = updated(&bench.seen)["message"].as_str().unwrap().to_owned();
    assert!(
        message.contains("DuplicateNodeID on node \"b\": node \"a\" reported the same node id before"),
        "{message}"
    );
    assert!(
        message.starts_with("2 of 3 instances are of this spec; "),
        "where nobody served comes last: {message}"
    );
    bench.behave("b", |b| b.node_id = String::new());
    bench.until("through", |seen| updated(seen)["status"] == "True").await;
    bench.end().await;
}

/// The plugin is being deleted, volumes need it, and somebody takes its instance away.
#[tokio::test(start_paused = true)]
async fn what_the_volumes_of_a_deleted_plugin_need_comes_back() {
    let bench = Bench::with(&["a", "b"], disks()).await;
    disk(&bench).await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.make("allocations", user("one", "c", "a")).await;
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    bench.delete("plugins", "", "disk").await;
    bench.until("held", |seen| why(&seen.get("plugins", "", "disk")) == "InUse").await;
    let on = |seen: &Seen, node: &str| {
        let instances = seen.all("plugininstances");
        instances.into_iter().find(|i| i["spec"]["nodeName"] == node).unwrap_or_default()
    };
    let before = on(&bench.seen, "a")["spec"]["allocation"].clone();
    let name = before["name"].as_str().unwrap();
    bench.delete("allocations", "wharfline-system", name).await;
    let none = json!({ "metadata": { "finalizers": null } });
    bench.patch("allocations", "wharfline-system", name, none).await;
    bench
        .until("another one serves", |seen| {
            let instance = on(seen, "a");
            ready(&instance) && instance["spec"]["allocation"]["uid"] != before["uid"]
        })
        .await;
    bench.delete("allocations", "default", "one").await;
    bench.delete("volumeclaims", "default", "c").await;
    bench.delete("volumeclasses", "", "disk").await;
    bench.until("nothing is left", nothing_left).await;
    bench.end().await;
}

/// A driver of which a node can run one only.
#[tokio::test(start_paused = true)]
async fn with_max_unavailable_the_former_one_is_gone_before_the_next_one_is_made() {
    let bench = Bench::with(&["a", "b", "c"], Behaviour { poison: "BAD", ..disks() }).await;
    disk(&bench).await;
    let one_at_a_time = json!({ "maxUnavailable": 1 });
    change(&bench, "NEXT", one_at_a_time.clone()).await;
    let doubled = |seen: &Seen| {
        let all = seen.all("allocations");
        let nodes: Vec<_> = all.iter().filter(|a| !a["spec"]["nodeName"].is_null()).collect();
        ["a", "b", "c"].iter().any(|n| nodes.iter().filter(|a| a["spec"]["nodeName"] == **n).count() > 1)
    };
    bench
        .until("through", |seen| {
            assert!(!doubled(seen), "two on one node");
            updated(seen)["status"] == "True"
        })
        .await;
    assert_eq!(with(&bench.seen, "NEXT"), ["a", "b", "c"]);
    change(&bench, "BAD", one_at_a_time).await;
    bench.until("held", |seen| updated(seen)["reason"] == "UpdateHeld").await;
    assert_eq!(bench.quiet().await.len(), 0);
    assert_eq!((with(&bench.seen, "BAD").len(), with(&bench.seen, "NEXT").len()), (1, 2));
    bench.end().await;
}

pub(crate) fn by_hand(namespace: &str) -> serde_json::Value {
    json!({ "metadata": { "name": "driver", "namespace": namespace }, "spec": { "nodeName": "a", "tasks": [
        { "name": "driver", "runtime": { "process": { "command": ["driver"] } },
          "csiPlugin": { "pluginName": "by-hand", "role": "Monolith" } }] } })
}

/// Scenario A18.
#[tokio::test(start_paused = true)]
async fn a_plugin_that_nobody_declared_comes_and_goes_with_its_task() {
    let bench = Bench::with(&["a"], Behaviour { healthy: false, ..disks() }).await;
    bench.make("namespaces", json!({ "metadata": { "name": "other" } })).await;
    bench.make("allocations", by_hand("default")).await;
    bench.until("its instance is there", |seen| !seen.only("plugininstances").is_null()).await;
    bench.quiet().await;
    assert!(bench.seen.all("plugins").is_empty(), "only a healthy instance makes a plugin");
    bench.behave("a", |b| b.healthy = true);
    bench.until("the plugin is there", |seen| ready(&seen.get("plugins", "", "by-hand"))).await;
    assert_eq!(bench.seen.get("plugins", "", "by-hand")["status"]["undeclaredFrom"], "default");
    bench.make("allocations", by_hand("other")).await;
    let refused = |seen: &Seen| seen.all("events").iter().any(|e| e["reason"] == "InstanceRefused");
    bench.until("another namespace is refused", refused).await;
    assert_eq!(bench.seen.all("plugininstances").len(), 1);
    // It goes with the last that may serve it; who asked for it in vain has it then.
    bench.delete("allocations", "default", "driver").await;
    let from = |seen: &Seen| seen.get("plugins", "", "by-hand")["status"]["undeclaredFrom"].clone();
    bench.until("the other namespace has it", |seen| from(seen) == "other").await;
    bench.delete("allocations", "other", "driver").await;
    bench.until("nothing is left", nothing_left).await;
    bench.end().await;
}

/// Scenario A20.
#[tokio::test(start_paused = true)]
async fn a_task_that_comes_to_serve_another_plugin_leaves_the_former_when_no_volume_needs_it() {
    let bench = Bench::with(&["a"], disks()).await;
    bench.make("allocations", by_hand("default")).await;
    bench.until("the plugin is there", |seen| ready(&seen.get("plugins", "", "by-hand"))).await;
    bench.make("volumeclasses", class("disk", "by-hand")).await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.make("allocations", user("one", "c", "a")).await;
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    let instance = bench.seen.only("plugininstances")["metadata"]["uid"].clone();
    let mut tasks = by_hand("default")["spec"]["tasks"].clone();
    tasks[0]["csiPlugin"]["pluginName"] = json!("other");
    bench.patch("allocations", "default", "driver", json!({ "spec": { "tasks": tasks } })).await;
    bench.until("held", |seen| why(&seen.get("plugins", "", "by-hand")) == "InUse").await;
    assert!(bench.seen.all("events").iter().any(|e| e["reason"] == "InstanceStays"));
    bench.quiet().await;
    assert_eq!(bench.seen.only("plugininstances")["metadata"]["uid"], instance, "the volume needs it");
    assert_eq!(phase(&bench.seen, "one"), "Running");
    bench.delete("allocations", "default", "one").await;
    bench.delete("volumeclaims", "default", "c").await;
    let serves_other = |seen: &Seen| {
        let (former, now) = (seen.get("plugins", "", "by-hand"), seen.get("plugins", "", "other"));
        former.is_null() && ready(&now) && seen.only("plugininstances")["spec"]["plugin"] == "other"
    };
    bench.until("the other plugin is served, the former is gone", serves_other).await;
    assert_eq!(bench.quiet().await.len(), 0);
    bench.delete("volumeclasses", "", "disk").await;
    bench.delete("allocations", "default", "driver").await;
    bench.until("nothing is left", nothing_left).await;
    bench.end().await;
}

/// What waits for a volume is woken by its end, also when it is deleted meanwhile; and of two that change neither counts on
/// the other.
#[tokio::test(start_paused = true)]
async fn tasks_that_all_come_to_serve_another_plugin_hold_each_other() {
    let bench = Bench::with(&["a"], disks()).await;
    let named = |name: &str| {
        let mut allocation = by_hand("default");
        allocation["metadata"]["name"] = json!(name);
        allocation
    };
    for name in ["first", "second"] {
        bench.make("allocations", named(name)).await;
    }
    let serving = |seen: &Seen, plugin: &str| {
        let all = seen.all("plugininstances");
        all.iter().filter(|i| i["spec"]["plugin"] == plugin && ready(i)).count()
    };
    bench.until("both serve", |seen| serving(seen, "by-hand") == 2).await;
    bench.make("volumeclasses", class("disk", "by-hand")).await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.make("allocations", user("one", "c", "a")).await;
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    let mut tasks = by_hand("default")["spec"]["tasks"].clone();
    tasks[0]["csiPlugin"]["pluginName"] = json!("other");
    let change = json!({ "spec": { "tasks": tasks } });
    // Neither is healthy, so that each change waits; both are looked at again in one moment.
    bench.behave("a", |b| b.healthy = false);
    bench.until("both are away", |seen| serving(seen, "by-hand") == 0).await;
    for name in ["first", "second"] {
        bench.patch("allocations", "default", name, change.clone()).await;
    }
    bench.quiet().await;
    bench.behave("a", |b| b.healthy = true);
    bench.until("both are back", |seen| serving(seen, "by-hand") == 2).await;
    bench.quiet().await;
    assert_eq!(serving(&bench.seen, "by-hand"), 2, "a volume has lost its plugin");
    // One of them may go: the other one is no less there for it than before.
    bench.delete("allocations", "default", "first").await;
    bench.quiet().await;
    assert!(!bench.seen.get("allocations", "default", "first").is_null(), "the volume needs one of them");
    bench.delete("allocations", "default", "one").await;
    bench.delete("volumeclaims", "default", "c").await;
    bench.until("the first is gone", |seen| seen.get("allocations", "default", "first").is_null()).await;
    bench.until("the second serves the other", |seen| serving(seen, "other") == 1).await;
    bench.delete("volumeclasses", "", "disk").await;
    bench.delete("allocations", "default", "second").await;
    bench.until("nothing is left", nothing_left).await;
    bench.end().await;
}

/// Whether a task's instance of a plugin is ready.
fn task_serves(seen: &Seen, task: &str, plugin: &str) -> bool {
    let all = seen.all("plugininstances");
    all.iter().any(|i| i["spec"]["task"] == task && i["spec"]["plugin"] == plugin && ready(i))
}

/// Of two tasks of one allocation that serve a plugin one may change at once: the other one is there. That one may not.
#[tokio::test(start_paused = true)]
async fn of_the_tasks_of_an_allocation_each_counts_on_the_others_that_stay() {
    let bench = Bench::with(&["a"], disks()).await;
    let mut many = by_hand("default");
    let task = |name: &str, plugin: &str| {
        let mut task = many["spec"]["tasks"][0].clone();
        (task["name"], task["csiPlugin"]["pluginName"]) = (json!(name), json!(plugin));
        task
    };
    let tasks =
        |first: &str, second: &str| json!([task("d1", first), task("d2", second), task("d3", "third")]);
    let (both, one, none) = (tasks("by-hand", "by-hand"), tasks("other", "by-hand"), tasks("other", "other"));
    many["spec"]["tasks"] = both;
    bench.make("allocations", many).await;
    let all = |seen: &Seen| {
        task_serves(seen, "d1", "by-hand")
            && task_serves(seen, "d2", "by-hand")
            && task_serves(seen, "d3", "third")
    };
    bench.until("all serve", all).await;
    let nodes = bench.seen.get("plugins", "", "by-hand")["status"]["nodes"].clone();
    assert_eq!(nodes, json!({ "healthy": 2, "expected": 2 }));
    bench.make("volumeclasses", class("disk", "by-hand")).await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.make("allocations", user("one", "c", "a")).await;
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    bench.patch("allocations", "default", "driver", json!({ "spec": { "tasks": one } })).await;
    bench.until("the first serves the other", |seen| task_serves(seen, "d1", "other")).await;
    bench.patch("allocations", "default", "driver", json!({ "spec": { "tasks": none } })).await;
    bench.until("held", |seen| why(&seen.get("plugins", "", "by-hand")) == "InUse").await;
    assert_eq!(bench.quiet().await.len(), 0);
    assert!(task_serves(&bench.seen, "d2", "by-hand"), "the volume needs it");
    bench.delete("allocations", "default", "one").await;
    bench.delete("volumeclaims", "default", "c").await;
    bench.until("the second serves the other", |seen| task_serves(seen, "d2", "other")).await;
    assert!(task_serves(&bench.seen, "d3", "third"));
    bench.delete("volumeclasses", "", "disk").await;
    bench.delete("allocations", "default", "driver").await;
    bench.until("nothing is left", nothing_left).await;
    bench.end().await;
}

/// One that a person stopped is no instance: it is not counted, and is back when it is wanted again.
#[tokio::test(start_paused = true)]
async fn a_stopped_instance_is_not_counted() {
    let bench = Bench::with(&["a"], disks()).await;
    bench.make("allocations", by_hand("default")).await;
    let nodes = |seen: &Seen| seen.get("plugins", "", "by-hand")["status"]["nodes"].clone();
    bench.until("it serves", |seen| nodes(seen) == json!({ "healthy": 1, "expected": 1 })).await;
    bench.patch("allocations", "default", "driver", json!({ "spec": { "stop": true } })).await;
    bench.until("it is not counted", |seen| seen.all("plugininstances").is_empty()).await;
    assert_eq!(phase(&bench.seen, "driver"), "Stopped");
    bench.until("nobody misses it", |seen| nodes(seen) == json!({ "healthy": 0, "expected": 0 })).await;
    assert_eq!(bench.quiet().await.len(), 0);
    bench.patch("allocations", "default", "driver", json!({ "spec": { "stop": false } })).await;
    bench.until("it is back", |seen| nodes(seen) == json!({ "healthy": 1, "expected": 1 })).await;
    bench.end().await;
}

/// Scenario A8.
#[tokio::test(start_paused = true)]
async fn of_two_specifications_of_one_plugin_one_goes_and_the_other_stays() {
    let bench = Bench::with(&["a"], disks()).await;
    for role in ["Controller", "Node"] {
        let mut allocation = by_hand("default");
        allocation["metadata"]["name"] = json!(role.to_lowercase());
        allocation["spec"]["tasks"][0]["csiPlugin"]["role"] = json!(role);
        bench.make("allocations", allocation).await;
    }
    let counts = |seen: &Seen| {
        let status = seen.get("plugins", "", "by-hand")["status"].clone();
        ["controllers", "nodes"].map(|of| (status[of]["healthy"].clone(), status[of]["expected"].clone()))
    };
    let are =
        |seen: &Seen, wanted: [i64; 2]| counts(seen) == wanted.map(|count| (json!(count), json!(count)));
    bench.until("both serve", |seen| are(seen, [1, 1])).await;
    bench.delete("allocations", "default", "controller").await;
    bench.until("the node service stays", |seen| are(seen, [0, 1])).await;
    assert_eq!(bench.quiet().await.len(), 0);
    let left = bench.seen.only("plugininstances");
    assert!(left["spec"]["role"] == "Node" && ready(&left), "{left}");
    bench.delete("allocations", "default", "node").await;
    bench.until("nothing is left", nothing_left).await;
    bench.end().await;
}

/// Scenario A7. What is left of its services needs no pause: a node's volumes stay up, and their controller calls go to another one.
#[tokio::test(start_paused = true)]
async fn a_task_in_a_smaller_role_hands_over_what_it_does_no_more() {
    let bench = Bench::with(&["a", "b"], disks()).await;
    disk(&bench).await;
    let allow = json!({ "spec": { "allowInstancesFrom": ["default"] } });
    bench.patch("plugins", "", "disk", allow).await;
    let mut by_hand = by_hand("default");
    by_hand["spec"]["tasks"][0]["csiPlugin"]["pluginName"] = json!("disk");
    bench.make("allocations", by_hand.clone()).await;
    let of_task = |seen: &Seen| {
        let all = seen.all("plugininstances");
        all.into_iter().find(|i| i["spec"]["allocation"]["name"] == "driver").unwrap_or_default()
    };
    bench.until("it serves", |seen| ready(&of_task(seen))).await;
    let mut tasks = by_hand["spec"]["tasks"].clone();
    tasks[0]["csiPlugin"]["role"] = json!("Node");
    bench.patch("allocations", "default", "driver", json!({ "spec": { "tasks": tasks } })).await;
    let smaller = |seen: &Seen| of_task(seen)["spec"]["role"] == "Node" && ready(&of_task(seen));
    bench.until("it serves in the smaller role", smaller).await;
    assert_eq!(bench.quiet().await.len(), 0);
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_declared_plugin_says_which_namespaces_may_serve_it() {
    let bench = Bench::with(&["a"], disks()).await;
    bench
        .make("plugins", json!({ "metadata": { "name": "by-hand" }, "spec": { "driverName": "fake.csi" } }))
        .await;
    bench.make("allocations", by_hand("default")).await;
    bench.until("refused", |seen| seen.all("events").iter().any(|e| e["reason"] == "InstanceRefused")).await;
    assert!(bench.seen.all("plugininstances").is_empty());
    let refusal =
        |seen: &Seen| seen.get("allocations", "default", "driver")["status"]["pluginRefused"].clone();
    let sentence = "task driver serves nobody: Plugin \"by-hand\" takes no instances from namespace \"default\"; its \
                    allowInstancesFrom does not name it";
    bench.until("it stands in the status", |seen| refusal(seen) == sentence).await;
    assert_eq!(bench.quiet().await.len(), 0);
    let allow = json!({ "spec": { "allowInstancesFrom": ["default"] } });
    bench.patch("plugins", "", "by-hand", allow).await;
    bench.until("ready", |seen| ready(&seen.get("plugins", "", "by-hand"))).await;
    bench.until("nothing is refused", |seen| refusal(seen).is_null()).await;
    let none = json!({ "spec": { "allowInstancesFrom": [] } });
    bench.patch("plugins", "", "by-hand", none).await;
    bench.until("revoked", |seen| seen.all("plugininstances").is_empty()).await;
    bench.until("it stands in the status again", |seen| refusal(seen) == sentence).await;
    let allow = json!({ "spec": { "allowInstancesFrom": ["default"] } });
    bench.patch("plugins", "", "by-hand", allow).await;
    bench.until("ready again", |seen| ready(&seen.get("plugins", "", "by-hand"))).await;
    bench.delete("allocations", "default", "driver").await;
    bench.until("no instance", |seen| seen.all("plugininstances").is_empty()).await;
    bench.quiet().await;
    assert_eq!(bench.seen.all("plugins").len(), 1, "what a person declared stays");
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn replicas_leave_a_lost_node_and_selectors_choose() {
    let bench = Bench::with(&["a", "b"], disks()).await;
    let spec = json!({ "instances": [
        { "name": "controller", "role": "Controller", "placement": { "replicas": 1 },
          "runtime": { "process": { "command": ["driver"] } } },
        { "name": "node", "role": "Node", "placement": { "nodeSelector": { "name": "b" } },
          "runtime": { "process": { "command": ["driver"] } } }] });
    bench.make("plugins", json!({ "metadata": { "name": "p" }, "spec": spec })).await;
    bench.until("ready", |seen| ready(&seen.get("plugins", "", "p"))).await;
    let on = |seen: &Seen, role: &str| -> Vec<String> {
        let instances = seen.all("plugininstances");
        let of_it = instances.iter().filter(|i| i["spec"]["role"] == role);
        of_it.map(|i| i["spec"]["nodeName"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(
        (on(&bench.seen, "Controller"), on(&bench.seen, "Node")),
        (vec!["a".into()], vec!["b".into()])
    );
    bench.behave("a", |b| b.alive = false);
    bench.until("its replica is on b", |seen| on(seen, "Controller").contains(&"b".to_owned())).await;
    let well = |seen: &Seen| {
        let plugin = seen.get("plugins", "", "p");
        let one = json!({ "healthy": 1, "expected": 1 });
        plugin["status"]["controllers"] == one && plugin["status"]["nodes"] == one && ready(&plugin)
    };
    bench.until("what is lost is not waited for", well).await;
    assert_eq!(bench.quiet().await.len(), 0);
    let moved = |seen: &Seen| {
        let all = seen.all("plugininstances").into_iter();
        all.filter(|i| i["spec"]["nodeName"] == "b")
            .map(|i| i["metadata"]["uid"].to_string())
            .collect::<Vec<_>>()
    };
    let before = moved(&bench.seen);
    bench.behave("a", |b| b.alive = true);
    bench.until("nothing is left on a", |seen| on(seen, "Controller") == ["b"]).await;
    assert_eq!(bench.quiet().await.len(), 0);
    assert_eq!(
        (on(&bench.seen, "Controller"), moved(&bench.seen)),
        (vec!["b".into()], before),
        "the healthy one stays"
    );
    assert!(well(&bench.seen));
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn an_allocation_cannot_use_a_volume_of_the_plugin_that_it_serves() {
    let bench = Bench::with(&["a"], disks()).await;
    disk(&bench).await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    let mut both = by_hand("default");
    both["spec"]["volumes"] = json!([{ "name": "v", "claimName": "c" }]);
    both["spec"]["tasks"][0]["csiPlugin"]["pluginName"] = json!("disk");
    bench.make("allocations", both).await;
    bench.until("refused", |seen| why(&seen.get("allocations", "default", "driver")) == "OwnPlugin").await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_takes_another_nodes_id_is_not_used() {
    let mut bench = Bench::with(&["a"], disks()).await;
    disk(&bench).await;
    bench.join("b", Behaviour { node_id: "id-a".to_owned(), ..disks() }).await;
    bench
        .until("the plugin says so", |seen| why(&seen.get("plugins", "", "disk")) == "DuplicateNodeID")
        .await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.make("allocations", user("one", "c", "b")).await;
    bench.until("b is refused", |seen| why(&seen.get("allocations", "default", "one")) == "NoNodeFits").await;
    bench.behave("b", |b| b.node_id = String::new());
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    bench.behave("b", |b| b.healthy = false);
    bench.until("told as it was told", |seen| why(&seen.get("plugins", "", "disk")) == "Probed").await;
    let message = condition(&bench.seen.get("plugins", "", "disk"), "Ready")["message"].clone();
    assert_eq!(message, "on node \"b\": as told");
    assert_eq!(phase(&bench.seen, "one"), "Running", "a sick plugin stops nobody");
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn replicas_that_no_node_is_there_for_are_missing_and_told() {
    let mut bench = Bench::with(&["a", "b"], disks()).await;
    let spec = json!({ "instances": [{ "name": "all", "role": "Monolith", "placement": { "replicas": 3 },
        "runtime": { "process": { "command": ["driver"] } } }] });
    bench.make("plugins", json!({ "metadata": { "name": "p" }, "spec": spec })).await;
    let counts = |seen: &Seen, healthy: u32| {
        seen.get("plugins", "", "p")["status"]["controllers"] == json!({ "healthy": healthy, "expected": 3 })
    };
    bench.until("two of three", |seen| counts(seen, 2)).await;
    let told = condition(&bench.seen.get("plugins", "", "p"), "Ready").clone();
    assert_eq!((&told["status"], &told["reason"]), (&json!("False"), &json!("NoNodes")), "{told}");
    assert!(told["message"].as_str().unwrap().starts_with("replicas asks for 1 more than"), "{told}");
    assert_eq!(bench.quiet().await.len(), 0);
    bench.join("c", disks()).await;
    bench.until("three of three", |seen| counts(seen, 3) && ready(&seen.get("plugins", "", "p"))).await;
    bench.end().await;
}

/// It is asked about none of the volumes that hold the one beside it.
#[tokio::test(start_paused = true)]
async fn another_driver_in_a_plugins_place_is_let_go_whatever_needs_the_plugin() {
    let bench = Bench::with(&["a"], disks()).await;
    bench.make("allocations", by_hand("default")).await;
    bench.until("the plugin is there", |seen| ready(&seen.get("plugins", "", "by-hand"))).await;
    bench.make("volumeclasses", class("disk", "by-hand")).await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.make("allocations", user("one", "c", "a")).await;
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    let mut wrong = by_hand("default");
    wrong["metadata"]["name"] = json!("wrong");
    wrong["spec"]["tasks"][0]["env"] = json!({ "DRIVER": "other.csi" });
    bench.make("allocations", wrong).await;
    let other = |seen: &Seen| seen.all("plugininstances").iter().any(|i| why(i) == "OtherDriver");
    bench.until("it is another driver", other).await;
    bench.delete("allocations", "default", "driver").await;
    bench.quiet().await;
    assert_eq!(phase(&bench.seen, "driver"), "Running", "the volume needs it");
    bench.delete("allocations", "default", "wrong").await;
    bench.until("it goes", |seen| seen.get("allocations", "default", "wrong").is_null()).await;
    assert_eq!(phase(&bench.seen, "driver"), "Running", "the volume needs it still");
    bench.end().await;
}

/// Each sentence is an event: in a series a person would see the first one alone.
#[tokio::test(start_paused = true)]
async fn what_is_told_anew_is_told_in_its_own_words() {
    let bench = Bench::with(&["a"], disks()).await;
    disk(&bench).await;
    let mut driver = by_hand("default");
    driver["spec"]["tasks"][0]["csiPlugin"]["pluginName"] = json!("disk");
    let told = |seen: &Seen, plugin: &str| {
        let of = format!("Plugin \"{plugin}\"");
        let events = seen.all("events");
        let refusals = events.iter().filter(|event| event["reason"] == "InstanceRefused");
        refusals.filter(|event| event.to_string().replace("\\\"", "\"").contains(&of)).count()
    };
    bench.make("allocations", driver.clone()).await;
    bench.until("refused", |seen| told(seen, "disk") == 1).await;
    bench.make("plugins", json!({ "metadata": { "name": "second" }, "spec": {} })).await;
    let mut tasks = driver["spec"]["tasks"].clone();
    tasks[0]["csiPlugin"]["pluginName"] = json!("second");
    bench.patch("allocations", "default", "driver", json!({ "spec": { "tasks": tasks } })).await;
    bench.until("refused again", |seen| told(seen, "second") == 1).await;
    bench.end().await;
}
