//! Nodes that are drained, and what meets again elsewhere.
use serde_json::{Value, json};

use crate::bench::{Bench, Seen, condition};
use crate::fake::{Behaviour, DISK};
use crate::manifests::{claim, disk, phase, user, why};

const USERS: [&str; 3] = ["one", "two", "three"];

fn taint(key: &str, value: &str) -> Value {
    json!({ "spec": { "taints": [{ "key": key, "value": value, "effect": "NoExecute" }] } })
}

fn node_of(seen: &Seen, user: &str) -> String {
    seen.get("allocations", "default", user)["status"]["nodeName"].as_str().unwrap_or_default().to_owned()
}

/// Whether all run on one node, which is not this one.
fn together_off(seen: &Seen, node: &str) -> bool {
    let first = node_of(seen, USERS[0]);
    first != node && USERS.iter().all(|user| phase(seen, user) == "Running" && node_of(seen, user) == first)
}

/// Three users of a volume that only one node may have, and that node.
async fn shared() -> (Bench, String) {
    let mut shared = Behaviour { capabilities: DISK.to_vec(), ..Behaviour::default() };
    shared.capabilities.extend(["controller/SINGLE_NODE_MULTI_WRITER", "node/SINGLE_NODE_MULTI_WRITER"]);
    let bench = Bench::with(&["a", "b", "c", "d"], shared).await;
    disk(&bench).await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeMultiWriter")).await;
    for name in USERS {
        let mut user = user(name, "c", "");
        user["spec"]["onNodeLost"] = json!("Rebind");
        bench.make("allocations", user).await;
    }
    bench.until("all run", |seen| together_off(seen, "")).await;
    let node = node_of(&bench.seen, USERS[0]);
    (bench, node)
}

#[tokio::test(start_paused = true)]
async fn those_who_share_a_volume_leave_a_drained_node_and_meet_again() {
    let (bench, node) = shared().await;
    bench.patch("nodes", "", &node, taint("wharfline.dev/drain", "")).await;
    let there = node.clone();
    bench.until("all run elsewhere", move |seen| together_off(seen, &there)).await;
    assert_eq!(bench.seen.all("plugininstances").len(), 4, "the plugin stays");
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn those_who_share_a_volume_meet_again_when_their_node_is_lost() {
    let (bench, node) = shared().await;
    bench.behave(&node, |b| b.alive = false);
    let unknown =
        |seen: &Seen| USERS.iter().all(|user| why(&seen.get("allocations", "default", user)) == "NoFence");
    bench.until("nobody knows", unknown).await;
    bench.ledger.power_off(&node);
    bench.patch("nodes", "", &node, taint("wharfline.dev/out-of-service", "boot-1")).await;
    let there = node.clone();
    bench.until("all run elsewhere", move |seen| together_off(seen, &there)).await;
    bench.end().await;
}

/// Where it can go nowhere it waits, with the reason, and has its place again.
#[tokio::test(start_paused = true)]
async fn what_fits_nowhere_else_waits_for_the_end_of_the_drain() {
    let bench = Bench::with(&["a"], Behaviour { capabilities: DISK.to_vec(), ..Behaviour::default() }).await;
    disk(&bench).await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.make("allocations", user("one", "c", "a")).await;
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    bench.patch("nodes", "", "a", taint("wharfline.dev/drain", "")).await;
    bench.until("nothing is attached", |seen| seen.all("volumeattachments").is_empty()).await;
    bench.until("it says why", |seen| why(&seen.get("allocations", "default", "one")) == "NoNodeFits").await;
    let one = bench.seen.get("allocations", "default", "one");
    let said = condition(&one, "Ready")["message"].as_str().unwrap().to_owned();
    assert!(said.contains("a: being drained"), "{said}");
    assert_eq!((phase(&bench.seen, "one"), node_of(&bench.seen, "one").as_str()), ("Pending".into(), ""));
    assert_eq!(bench.quiet().await.len(), 0);
    bench.patch("nodes", "", "a", json!({ "spec": { "taints": null } })).await;
    bench.until("it runs again", |seen| phase(seen, "one") == "Running").await;
    bench.end().await;
}

fn lists(seen: &Seen, node: &str, word: &str) -> bool {
    let agent = seen.get("nodeagents", "", node);
    agent["status"]["runtimes"].as_array().is_some_and(|all| all.iter().any(|has| has == word))
}

/// An allocation of one task that is a container.
fn container(name: &str, runtime: &str) -> Value {
    let task = json!({ "name": "t", "runtime": { runtime: { "archive": "/x" } } });
    json!({ "metadata": { "name": name }, "spec": { "onNodeLost": "Rebind", "tasks": [task] } })
}

fn why_unplaced(seen: &Seen, name: &str) -> String {
    let placed = condition(&seen.get("allocations", "default", name), "Placed").clone();
    placed["message"].as_str().unwrap_or_default().to_owned()
}

/// An allocation goes where its runtime is, and waits where no node has it.
#[tokio::test(start_paused = true)]
async fn a_task_goes_to_a_node_that_has_its_runtime() {
    let bench = Bench::with(&["a", "b"], Behaviour::default()).await;
    bench.behave("b", |b| b.runtimes.push("oci"));
    bench
        .until("both say what they have", |seen| lists(seen, "a", "process") && lists(seen, "b", "oci"))
        .await;
    for name in ["one", "two"] {
        bench.make("allocations", container(name, "oci")).await;
        bench.until("it is placed", |seen| node_of(seen, name) == "b").await;
    }
    bench.patch("nodes", "", "b", json!({ "spec": { "unschedulable": true } })).await;
    bench.make("allocations", container("three", "oci")).await;
    let waits = "no node fits: a: does not allow the runtime oci; b: cordoned";
    bench.until("it waits", |seen| why_unplaced(seen, "three") == waits).await;
    bench.behave("a", |a| a.runtimes.push("oci"));
    bench.until("it is placed once it is there", |seen| node_of(seen, "three") == "a").await;
    bench.end().await;
}

/// What runs on the only node that can run it is not placed where it cannot, when that node is off.
#[tokio::test(start_paused = true)]
async fn who_ran_on_the_only_node_with_its_runtime_waits_for_one_that_has_it() {
    let bench = Bench::with(&["a", "b"], Behaviour::default()).await;
    bench.behave("b", |b| b.runtimes.push("containerd"));
    bench
        .until("both say what they have", |seen| {
            lists(seen, "a", "process") && lists(seen, "b", "containerd")
        })
        .await;
    bench.make("allocations", container("one", "containerd")).await;
    bench.until("it is placed", |seen| node_of(seen, "one") == "b").await;
    bench.behave("b", |b| b.alive = false);
    bench.ledger.power_off("b");
    let silent = |seen: &Seen| condition(&seen.get("nodes", "", "b"), "Ready")["status"] == "Unknown";
    bench.until("b is silent", silent).await;
    bench.patch("nodes", "", "b", taint("wharfline.dev/out-of-service", "boot-1")).await;
    let waits = "no node fits: a: does not allow the runtime containerd; b: not ready";
    bench
        .until("it waits", |seen| node_of(seen, "one").is_empty() && why_unplaced(seen, "one") == waits)
        .await;
    bench.behave("a", |a| a.runtimes.push("containerd"));
    bench.until("it is placed", |seen| node_of(seen, "one") == "a").await;
    bench.end().await;
}

/// Who cannot begin where it was bound to leaves once it fits elsewhere.
#[tokio::test(start_paused = true)]
async fn who_has_not_begun_leaves_a_node_that_lost_its_runtime() {
    let bench = Bench::with(&["a", "b"], Behaviour::default()).await;
    bench.behave("a", |a| a.runtimes.push("oci"));
    bench.until("a says what it has", |seen| lists(seen, "a", "oci") && lists(seen, "b", "process")).await;
    // Its daemon is started anew, without that.
    bench.behave("a", |a| a.alive = false);
    bench.make("allocations", container("one", "oci")).await;
    bench.until("it is placed", |seen| node_of(seen, "one") == "a").await;
    bench.behave("a", |a| {
        a.alive = true;
        a.runtimes.pop();
    });
    bench.until("it waits there", |seen| phase(seen, "one") == "Starting").await;
    assert_eq!((bench.quiet().await.len(), node_of(&bench.seen, "one")), (0, "a".to_owned()));
    bench.behave("b", |b| b.runtimes.push("oci"));
    bench.until("it runs on b", |seen| node_of(seen, "one") == "b" && phase(seen, "one") == "Running").await;
    // What has begun stays.
    bench.behave("a", |a| a.runtimes.push("oci"));
    bench.behave("b", |b| b.runtimes.truncate(2));
    bench.until("b has it no more", |seen| !lists(seen, "b", "oci") && lists(seen, "a", "oci")).await;
    bench.quiet().await;
    assert_eq!(node_of(&bench.seen, "one"), "b");
    bench.end().await;
}

/// So do the replicas of a plugin, and what serves one by hand.
#[tokio::test(start_paused = true)]
async fn a_driver_goes_to_a_node_that_has_its_runtime() {
    let bench = Bench::with(&["a", "b"], Behaviour::default()).await;
    bench
        .until("both say what they have", |seen| lists(seen, "a", "process") && lists(seen, "b", "process"))
        .await;
    let entry = json!({ "name": "ctl", "role": "Controller", "placement": { "replicas": 1 },
        "runtime": { "oci": { "archive": "/x" } } });
    bench.make("plugins", json!({ "metadata": { "name": "disk" }, "spec": { "instances": [entry] } })).await;
    let at = |seen: &Seen| {
        let all = seen.all("allocations");
        all.iter().map(|a| a["spec"]["nodeName"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    bench.until("it waits where nothing is better", |seen| at(seen) == ["a"]).await;
    bench.behave("b", |b| b.runtimes.push("oci"));
    let runs = |seen: &Seen| at(seen) == ["b"] && seen.all("allocations")[0]["status"]["phase"] == "Running";
    bench.until("it runs where it can", runs).await;
    bench.behave("a", |a| a.runtimes.push("oci"));
    bench.behave("b", |b| b.runtimes.truncate(2));
    bench.until("b has it no more", |seen| !lists(seen, "b", "oci") && lists(seen, "a", "oci")).await;
    bench.quiet().await;
    assert_eq!(at(&bench.seen), ["b"], "what has begun stays");
    let mut by_hand = container("own", "oci");
    by_hand["spec"]["tasks"][0]["csiPlugin"] = json!({ "pluginName": "own", "role": "Monolith" });
    bench.make("allocations", by_hand).await;
    bench.until("it is placed", |seen| node_of(seen, "own") == "a").await;
    bench.end().await;
}
