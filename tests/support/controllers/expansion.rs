//! A claim asks for more: its volume is asked for it, the nodes that have it go on, and then it is shown.
use serde_json::{Value, json};

use crate::bench::{Bench, Seen, condition};
use crate::fake::{Behaviour, DISK};
use crate::manifests::{claim, disk, phase, user};

/// 1 GiB, what claims of these tests begin with.
const GIB: i64 = 1 << 30;

fn growing(more: &[&'static str]) -> Behaviour {
    Behaviour { capabilities: [DISK, more].concat(), ..Behaviour::default() }
}

async fn with(behaviour: Behaviour, allowed: bool) -> Bench {
    let bench = Bench::with(&["a"], behaviour).await;
    disk(&bench).await;
    bench.patch("volumeclasses", "", "disk", json!({ "spec": { "allowVolumeExpansion": allowed } })).await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.make("allocations", user("one", "c", "a")).await;
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    bench
}

async fn ask_for(bench: &Bench, bytes: i64) {
    let size = json!({ "spec": { "resources": { "requests": { "storage": bytes.to_string() } } } });
    bench.patch("volumeclaims", "default", "c", size).await;
}

fn expanded(seen: &Seen) -> Value {
    condition(&seen.only("volumeclaims"), "Expanded")
}

fn capacity(seen: &Seen) -> i64 {
    let text = seen.only("volumeclaims")["status"]["capacity"].as_str().unwrap_or_default().to_owned();
    wharfline::api::quantity::bytes(&text).unwrap_or(0)
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_asks_for_more_shows_it_when_its_node_has_done_its_part() {
    let mut behaviour = growing(&["controller/EXPAND_VOLUME", "node/EXPAND_VOLUME"]);
    (behaviour.expands, behaviour.node_expands) = (false, false);
    let bench = with(behaviour, true).await;
    assert_eq!((capacity(&bench.seen), expanded(&bench.seen)), (GIB, Value::Null));
    assert_eq!(bench.quiet().await.len(), 0);
    ask_for(&bench, 2 * GIB).await;
    bench.until("asked for", |seen| seen.only("volumes")["spec"]["size"]["requiredBytes"] == 2 * GIB).await;
    bench.until("told", |seen| expanded(seen)["reason"] == "Expanding").await;
    assert_eq!(bench.quiet().await.len(), 0, "waiting costs nothing");
    bench.behave("a", |b| b.expands = true);
    bench
        .until("the node is told", |seen| seen.only("volumeattachments")["spec"]["expandBytes"] == 2 * GIB)
        .await;
    bench.until("told", |seen| expanded(seen)["reason"] == "NodeExpansionPending").await;
    assert_eq!(capacity(&bench.seen), GIB, "its users have no more yet");
    assert_eq!(bench.seen.only("volumeclaims")["status"]["allocated"], "2Gi");
    assert_eq!(bench.quiet().await.len(), 0);
    bench.behave("a", |b| b.node_expands = true);
    bench.until("shown", |seen| capacity(seen) == 2 * GIB).await;
    bench.until("over", |seen| expanded(seen).is_null()).await;
    assert!(bench.seen.only("volumeclaims")["status"]["allocated"].is_null());
    assert_eq!(phase(&bench.seen, "one"), "Running");
    assert_eq!(bench.quiet().await.len(), 0);
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn what_keeps_a_claim_from_growing_is_told_and_goes_on_by_itself() {
    // The class, then the plugin.
    let bench = with(growing(&["controller/EXPAND_VOLUME"]), false).await;
    ask_for(&bench, 2 * GIB).await;
    bench.until("refused", |seen| expanded(seen)["reason"] == "ExpansionNotAllowed").await;
    assert!(bench.seen.only("volumes")["spec"]["size"].is_null());
    assert_eq!(bench.quiet().await.len(), 0);
    bench.behave("a", |b| b.capabilities = DISK.to_vec());
    bench.patch("volumeclasses", "", "disk", json!({ "spec": { "allowVolumeExpansion": true } })).await;
    bench.until("refused", |seen| expanded(seen)["reason"] == "PluginLacksCapability").await;
    bench.behave("a", |b| b.capabilities.push("controller/EXPAND_VOLUME"));
    bench.until("asked for", |seen| seen.only("volumes")["spec"]["size"]["requiredBytes"] == 2 * GIB).await;
    bench.until("shown", |seen| capacity(seen) == 2 * GIB).await;
    bench.end().await;
}

/// Obligation CO-CTRL-106.
#[tokio::test(start_paused = true)]
async fn nobody_is_given_a_volume_that_its_driver_expands_while_nobody_uses_it() {
    let bench = Bench::with(&["a"], growing(&[])).await;
    disk(&bench).await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.until("made", |seen| seen.only("volumes")["status"]["phase"] == "Ready").await;
    let name = bench.seen.only("volumes")["metadata"]["name"].as_str().unwrap().to_owned();
    let asked = json!({ "asked": { "requiredBytes": 2 * GIB }, "offline": true });
    bench.patch("volumes", "", &name, json!({ "status": { "expansion": asked } })).await;
    bench.make("allocations", user("one", "c", "a")).await;
    let told = |seen: &Seen| seen.get("allocations", "default", "one")["status"]["obstacle"].clone();
    bench.until("it is told why", |seen| told(seen)["reason"] == "VolumeExpanding").await;
    crate::bench::pass(600).await;
    assert_eq!((bench.seen.all("volumeattachments").len(), bench.quiet().await.len()), (0, 0));
    let answered = json!({ "asked": null, "offline": null });
    bench.patch("volumes", "", &name, json!({ "status": { "expansion": answered } })).await;
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    bench.end().await;
}

/// Scenario B107.
#[tokio::test(start_paused = true)]
async fn what_was_not_given_is_taken_back() {
    let mut behaviour = growing(&["controller/EXPAND_VOLUME"]);
    behaviour.expands = false;
    let bench = with(behaviour, true).await;
    ask_for(&bench, 8 * GIB).await;
    bench.until("asked for", |seen| seen.only("volumes")["spec"]["size"]["requiredBytes"] == 8 * GIB).await;
    bench.until("told", |seen| expanded(seen)["reason"] == "Expanding").await;
    ask_for(&bench, GIB).await;
    bench.until("taken back", |seen| seen.only("volumes")["spec"]["size"]["requiredBytes"] == GIB).await;
    bench.until("over", |seen| expanded(seen).is_null()).await;
    assert_eq!(capacity(&bench.seen), GIB);
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_expands_on_nodes_alone_is_asked_there() {
    let bench = with(growing(&["node/EXPAND_VOLUME"]), true).await;
    ask_for(&bench, 2 * GIB).await;
    bench.until("asked for", |seen| seen.only("volumes")["spec"]["size"]["nodeOnly"] == true).await;
    bench
        .until("the node is told", |seen| seen.only("volumeattachments")["spec"]["expandBytes"] == 2 * GIB)
        .await;
    bench.until("shown", |seen| capacity(seen) == 2 * GIB).await;
    bench.end().await;
}

/// Obligation CO-NODE-84: those that have it, those that are slow, and those that come later.
#[tokio::test(start_paused = true)]
async fn each_node_that_has_a_volume_or_gets_it_later_owes_its_part() {
    let bench =
        Bench::with(&["a", "b", "c"], growing(&["controller/EXPAND_VOLUME", "node/EXPAND_VOLUME"])).await;
    disk(&bench).await;
    bench.patch("volumeclasses", "", "disk", json!({ "spec": { "allowVolumeExpansion": true } })).await;
    bench.make("volumeclaims", claim("c", "disk", "MultiNodeMultiWriter")).await;
    for (name, node) in [("one", "a"), ("two", "b")] {
        bench.make("allocations", user(name, "c", node)).await;
        bench.until("it runs", |seen| phase(seen, name) == "Running").await;
    }
    bench.behave("b", |b| b.node_expands = false);
    ask_for(&bench, 2 * GIB).await;
    let done = |seen: &Seen| {
        let sizes = seen
            .all("volumeattachments")
            .into_iter()
            .map(|a| a["status"]["node"]["expandedBytes"] == 2 * GIB);
        sizes.filter(|done| *done).count()
    };
    bench.until("one of two has done its part", |seen| done(seen) == 1).await;
    bench.quiet().await;
    assert_eq!(capacity(&bench.seen), GIB, "the other has not");
    assert_eq!(expanded(&bench.seen)["reason"], "NodeExpansionPending");
    bench.behave("b", |b| b.node_expands = true);
    bench.until("shown", |seen| capacity(seen) == 2 * GIB).await;
    bench.make("allocations", user("three", "c", "c")).await;
    bench.until("a third one has, too", |seen| done(seen) == 3).await;
    bench.quiet().await;
    assert_eq!(
        (capacity(&bench.seen), expanded(&bench.seen)),
        (2 * GIB, Value::Null),
        "nothing is taken back"
    );
    bench.end().await;
}

/// A volume that a person registered, and a claim of it that runs. Who registers it says how large it is, or does not.
async fn registered(capacity: Option<&str>) -> Bench {
    let mut behaviour = growing(&["controller/EXPAND_VOLUME", "node/EXPAND_VOLUME"]);
    (behaviour.expands, behaviour.node_expands) = (true, true);
    let bench = Bench::with(&["a"], behaviour).await;
    disk(&bench).await;
    let mut volume = json!({ "metadata": { "name": "v" }, "spec": { "plugin": "disk", "accessModes": ["SingleNodeWriter"],
        "source": { "existing": { "handle": "h" } }, "reclaimPolicy": "Retain" } });
    if let Some(capacity) = capacity {
        volume["spec"]["source"]["existing"]["capacity"] = json!(capacity);
    }
    bench.make("volumes", volume).await;
    bench.ledger_exists("v");
    let mut of_it = claim("c", "", "SingleNodeWriter");
    of_it["spec"] = json!({ "volumeName": "v", "accessModes": ["SingleNodeWriter"],
        "resources": { "requests": { "storage": "1Gi" } } });
    bench.make("volumeclaims", of_it).await;
    bench.make("allocations", user("one", "c", "a")).await;
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    bench.quiet().await;
    let (volume, attachment) = (bench.seen.only("volumes"), bench.seen.only("volumeattachments"));
    assert_eq!((&volume["spec"]["size"], &attachment["spec"]["expandBytes"]), (&Value::Null, &Value::Null));
    let said = if capacity.is_none() { json!("SizeUnknown") } else { Value::Null };
    assert_eq!(expanded(&bench.seen)["reason"], said);
    bench
}

/// No driver tells how large it is, and nobody asked for more.
#[tokio::test(start_paused = true)]
async fn a_registered_volume_is_not_expanded_for_what_its_claim_says() {
    let bench = registered(None).await;
    ask_for(&bench, 2 * GIB).await;
    bench.quiet().await;
    assert_eq!(expanded(&bench.seen)["reason"], "SizeUnknown");
    assert_eq!(bench.seen.only("volumes")["spec"]["size"], Value::Null);
    // Said once, what the claim asks for beyond it is an expansion.
    bench
        .patch("volumes", "", "v", json!({ "spec": { "source": { "existing": { "capacity": "1Gi" } } } }))
        .await;
    bench.until("shown", |seen| capacity(seen) == 2 * GIB && expanded(seen).is_null()).await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_registered_volume_whose_size_is_known_grows() {
    let bench = registered(Some("1Gi")).await;
    assert_eq!(capacity(&bench.seen), GIB);
    ask_for(&bench, 2 * GIB).await;
    bench.until("shown", |seen| capacity(seen) == 2 * GIB).await;
    bench.until("over", |seen| expanded(seen).is_null()).await;
    bench.end().await;
}
