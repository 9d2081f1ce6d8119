//! What plugins say of their room: asked for each class at each place, and preferred by placement.
use serde_json::{Value, json};

use crate::bench::{Bench, Seen, condition};
use crate::fake::{Behaviour, DIR};
use crate::manifests::{claim, phase, plugin, ready, user};
use crate::quickstart::nothing_left;

const GIB: i64 = 1 << 30;

fn telling() -> Behaviour {
    let capabilities = [DIR, &["controller/GET_CAPACITY"]].concat();
    Behaviour { capabilities, ..Behaviour::default() }
}

async fn with(scope: &str, binding: &str) -> Bench {
    let bench = Bench::with(&["a", "b", "c"], telling()).await;
    bench.make("plugins", plugin("disk", scope)).await;
    bench.until("the plugin is ready", |seen| ready(&seen.get("plugins", "", "disk"))).await;
    let spec = json!({ "plugin": "disk", "volumeBindingMode": binding, "parameters": { "pool": "fast" } });
    bench.make("volumeclasses", json!({ "metadata": { "name": "k" }, "spec": spec })).await;
    bench.until("it is asked and answered", |seen| answers(seen) == 3).await;
    bench
}

fn answers(seen: &Seen) -> usize {
    let of = |i: &Value| i["status"]["rooms"].as_array().map_or(0, Vec::len);
    seen.all("plugininstances").iter().map(of).sum()
}

fn asked(seen: &Seen, node: &str) -> Vec<Value> {
    let all = seen.all("plugininstances");
    let instance = all.iter().find(|i| i["spec"]["nodeName"] == node).unwrap();
    instance["spec"]["rooms"].as_array().cloned().unwrap_or_default()
}

fn place_of(seen: &Seen, name: &str) -> String {
    let status = seen.get("allocations", "default", name)["status"].clone();
    status["nodeName"].as_str().unwrap_or_default().to_owned()
}

async fn room(bench: &Bench, node: &'static str, bytes: i64) {
    for each in ["a", "b", "c"] {
        bench.behave(each, |b| {
            b.rooms.retain(|(other, _)| *other != node);
            b.rooms.push((node, bytes));
        });
    }
    let is_told = |seen: &Seen| {
        let all = seen.all("plugininstances");
        let told = all.iter().flat_map(|i| i["status"]["rooms"].as_array().cloned().unwrap_or_default());
        told.into_iter().any(|r| r["segments"]["dir/node"] == node && r["availableBytes"] == bytes)
    };
    bench.until("its room is told", is_told).await;
}

async fn end(bench: Bench) {
    bench.delete("allocations", "default", "one").await;
    bench.delete("volumeclaims", "default", "c").await;
    bench.delete("volumeclasses", "", "k").await;
    bench.until("nobody is asked any more", |seen| answers(seen) == 0).await;
    bench.delete("plugins", "", "disk").await;
    bench.until("nothing is left", nothing_left).await;
    bench.end().await;
}

/// Obligation CO-CTRL-71.
/// Who makes volumes for its own node is asked about that; of others one is asked about all places. By what they say a volume
/// that waits for its user is made where there is room for it.
#[tokio::test(start_paused = true)]
async fn a_volume_is_made_where_its_plugin_says_that_there_is_room() {
    for scope in ["Node", "Cluster"] {
        let bench = with(scope, "WaitForFirstConsumer").await;
        let question = |node: &str| json!({ "class": "k", "parameters": { "pool": "fast" }, "segments": { "dir/node": node } });
        let questions = ["a", "b", "c"].map(|node| asked(&bench.seen, node));
        let wanted = match scope {
            "Node" => ["a", "b", "c"].map(|node| vec![question(node)]),
            _ => [["a", "b", "c"].map(question).to_vec(), vec![], vec![]],
        };
        assert_eq!(questions, wanted, "{scope}");
        assert_eq!(bench.quiet().await.len(), 0);
        room(&bench, "a", GIB - 1).await;
        room(&bench, "b", 0).await;
        bench.make("volumeclaims", claim("c", "k", "SingleNodeWriter")).await;
        bench.make("allocations", user("one", "c", "")).await;
        bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
        assert_eq!(place_of(&bench.seen, "one"), "c", "{scope}");
        assert_eq!(bench.ledger.count("create"), 1, "{scope}: it was asked for once");
        end(bench).await;
    }
}

/// The volumes of one user are made for one node, although the first is not made yet when the second is asked for, and there would
/// be room for that one alone on another node.
#[tokio::test(start_paused = true)]
async fn two_volumes_of_one_user_are_made_for_one_node() {
    for scope in ["Node", "Cluster"] {
        let bench = with(scope, "WaitForFirstConsumer").await;
        room(&bench, "a", GIB + GIB / 2).await;
        for node in ["a", "b", "c"] {
            bench.behave(node, |b| b.creates = false);
        }
        for name in ["c", "d"] {
            bench.make("volumeclaims", claim(name, "k", "SingleNodeWriter")).await;
        }
        let volumes = json!([{ "name": "v", "claimName": "c" }, { "name": "w", "claimName": "d" }]);
        bench
            .make("allocations", json!({ "metadata": { "name": "one" }, "spec": { "volumes": volumes } }))
            .await;
        bench.until("both are asked for", |seen| seen.all("volumes").len() == 2).await;
        let at = |v: &Value| v["spec"]["source"]["create"]["selectedNode"].clone();
        let nodes: Vec<_> = bench.seen.all("volumes").iter().map(at).collect();
        assert_eq!(nodes, ["b", "b"], "{scope}");
        for node in ["a", "b", "c"] {
            bench.behave(node, |b| b.creates = true);
        }
        bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
        assert_eq!(place_of(&bench.seen, "one"), "b", "{scope}");
        let said = bench.seen.get("volumeclaims", "default", "d")["status"]["selectedNode"].clone();
        assert_eq!(said, "b", "{scope}: once it is bound its claim says it, too");
        bench.delete("allocations", "default", "one").await;
        bench.delete("volumeclaims", "default", "d").await;
        end(bench).await;
    }
}

/// The same of one that is made at once; and where nobody has room by its word one is asked all the same: it may be old news.
#[tokio::test(start_paused = true)]
async fn a_volume_that_is_made_at_once_is_made_where_there_is_room_too() {
    for (rooms, wanted) in [([0, GIB, 0], "b"), ([0, 0, 0], "a"), ([GIB, GIB, GIB], "a")] {
        let bench = with("Node", "Immediate").await;
        for (node, bytes) in ["a", "b", "c"].into_iter().zip(rooms) {
            room(&bench, node, bytes).await;
        }
        bench.make("volumeclaims", claim("c", "k", "SingleNodeWriter")).await;
        bench.make("allocations", user("one", "c", "")).await;
        bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
        assert_eq!(place_of(&bench.seen, "one"), wanted, "{rooms:?}");
        end(bench).await;
    }
}

/// It was old news: who has no room says so, and the volume is begun anew where there is some by that plugin's word.
#[tokio::test(start_paused = true)]
async fn a_volume_that_is_made_at_once_moves_to_where_its_plugin_says_that_there_is_room() {
    let bench = with("Node", "Immediate").await;
    for node in ["a", "b", "c"] {
        bench.behave(node, |b| b.no_room = vec!["a", "b"]);
    }
    room(&bench, "b", 0).await;
    bench.make("volumeclaims", claim("c", "k", "SingleNodeWriter")).await;
    let has_none =
        |seen: &Seen| seen.all("volumes").iter().any(|v| condition(v, "Ready")["reason"] == "NoRoom");
    bench.until("there is none on a", has_none).await;
    assert_eq!(bench.quiet().await.len(), 0, "by its word there is room, so it is asked on");
    assert_eq!(bench.seen.only("volumes")["spec"]["source"]["create"]["nodeName"], "a");
    room(&bench, "a", GIB - 1).await;
    bench.until("it is bound", |seen| ready(&seen.only("volumeclaims"))).await;
    bench.until("one is left", |seen| seen.all("volumes").len() == 1).await;
    assert_eq!(bench.seen.only("volumes")["spec"]["source"]["create"]["nodeName"], "c");
    assert_eq!(bench.ledger.count("create"), 1);
    let told = |e: &&Value| e["reason"] == "NoRoom" && e["involvedObject"]["kind"] == "VolumeClaim";
    assert_eq!(bench.seen.all("events").iter().filter(told).count(), 1);
    bench.delete("volumeclaims", "default", "c").await;
    bench.delete("volumeclasses", "", "k").await;
    bench.delete("plugins", "", "disk").await;
    bench.until("nothing is left", nothing_left).await;
    bench.end().await;
}
