//! Attaches and detaches at other nodes, of which this one makes the calls: so many at a time as the Plugin says.
use serde_json::{Value, json};
use wharfline::csi::{Code, Rpc};

use crate::support::node::{NODE, Rig, Special, uid};
use crate::support::scripted::{Answer, Config, Gate, Site};

const ATTACH: Rpc = Rpc::ControllerPublishVolume;
const DETACH: Rpc = Rpc::ControllerUnpublishVolume;

/// A rig whose driver knows two machines more, with these volumes.
async fn rig(volumes: &[&str]) -> Rig {
    let rig = Rig::new(Config::full()).await;
    for node in ["i-node-b", "i-node-c"] {
        rig.backend.add_node(&Site::new(node));
    }
    for volume in volumes {
        rig.ask(volume, &Special::default()).await;
        rig.volume_up(volume).await;
    }
    rig
}

/// The attachment of a volume, named as that is.
async fn attach(rig: &Rig, name: &str, node: &str) {
    let volume = rig.volume_up(name).await;
    let status = volume.status.clone().unwrap();
    let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "VolumeAttachment",
        "metadata": { "name": name },
        "spec": { "volume": name, "volumeUid": uid(&volume), "nodeName": node, "plugin": "scripted",
            "claim": { "namespace": "default", "name": "data", "uid": "c" },
            "host": { "nodeName": NODE, "epoch": 1 }, "attachRequired": true, "stageRequired": true,
            "handle": status.handle, "volumeContext": status.context, "nodeId": format!("i-{node}"),
            "allocations": ["somebody"], "capability": { "accessMode": "SingleNodeWriter" } } });
    rig.world.create(&rig.attachments, object).await;
}

async fn attached(rig: &Rig, name: &str) {
    let up = |a: &Value| a["status"]["controller"]["attached"] == "Up";
    rig.world.until(&rig.attachments, name, "attached", up).await;
}

/// Its node has let go of it, and it shall be gone.
async fn detach(rig: &Rig, name: &str) {
    rig.world.delete(&rig.attachments, name).await;
    let uid = uid(&rig.attachments.get(name).await.unwrap());
    rig.world
        .status(&rig.attachments, name, json!({ "node": { "staged": "Down", "releasedUID": uid } }))
        .await;
}

async fn detached(rig: &Rig, name: &str) {
    let down = |a: &Value| a["status"]["controller"]["attached"] == "Down";
    rig.world.until(&rig.attachments, name, "detached", down).await;
    rig.world.let_go(&rig.attachments, name).await;
}

/// Until it says that it waits for its turn; in which words.
async fn queued(rig: &Rig, name: &str) -> String {
    let told = |a: &Value| a["status"]["controller"]["reason"] == "NotInTurn";
    let object = rig.world.until(&rig.attachments, name, "told that it waits", told).await;
    object.status.unwrap().controller.unwrap().message
}

/// The volumes that were called for, in their order.
fn order(rig: &Rig, rpc: Rpc) -> Vec<String> {
    let calls = rig.backend.calls_of(rpc);
    let handle = |name: &str| rig.backend.volume_named(name).unwrap_or_default();
    let name = |of: &str| ["1", "2", "3", "4"].into_iter().find(|name| handle(name) == of).unwrap_or("?");
    calls.iter().map(|call| name(call.ask.volume().unwrap_or_default()).to_owned()).collect()
}

async fn end(rig: Rig, volumes: &[&str]) {
    for volume in volumes {
        detach(&rig, volume).await;
        detached(&rig, volume).await;
    }
    for volume in volumes {
        rig.end_volume(volume).await;
    }
    rig.finish().await;
}

/// Scenario Q13.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volumes_are_attached_and_detached_one_at_a_time_at_each_node() {
    let all = ["1", "2", "3", "4"];
    let rig = rig(&all).await;
    let gate = Gate::new();
    rig.backend.next(ATTACH, Answer::honest().hang(&gate));
    attach(&rig, "1", "node-b").await;
    rig.in_flight(ATTACH, 1).await;
    attach(&rig, "2", "node-b").await;
    assert_eq!(
        queued(&rig, "2").await,
        "waits for its turn: 1 of plugin \"scripted\" at a time are attached or detached at node \"node-b\" \
         (spec.concurrency.attachesPerNode of the Plugin)"
    );
    attach(&rig, "3", "node-b").await;
    attach(&rig, "4", "node-c").await;
    attached(&rig, "4").await;
    assert_eq!(order(&rig, ATTACH), ["1", "4"], "another machine is not held up");
    gate.open();
    for volume in all {
        attached(&rig, volume).await;
    }
    assert_eq!(order(&rig, ATTACH), ["1", "4", "2", "3"]);
    let second = rig.attachments.get("2").await.unwrap().status.unwrap().controller.unwrap();
    assert_eq!((second.reason.as_str(), second.message.as_str()), ("", ""));
    // The way back is no wider.
    let gate = Gate::new();
    rig.backend.next(DETACH, Answer::honest().hang(&gate));
    detach(&rig, "1").await;
    rig.in_flight(DETACH, 1).await;
    detach(&rig, "2").await;
    queued(&rig, "2").await;
    detach(&rig, "4").await;
    detached(&rig, "4").await;
    assert_eq!(order(&rig, DETACH), ["1", "4"]);
    gate.open();
    detached(&rig, "1").await;
    detached(&rig, "2").await;
    for volume in ["1", "2", "4"] {
        rig.end_volume(volume).await;
    }
    end(rig, &["3"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_many_are_attached_at_a_time_as_the_plugin_says_now() {
    let all = ["1", "2", "3", "4"];
    let rig = rig(&all).await;
    rig.plugin_object(json!({ "concurrency": { "attachesPerNode": 2, "attaches": 3 } })).await;
    let gates: Vec<Gate> = (0..4).map(|_| Gate::new()).collect();
    for gate in &gates {
        rig.backend.next(ATTACH, Answer::honest().hang(gate));
    }
    for (n, volume) in ["1", "2"].into_iter().enumerate() {
        attach(&rig, volume, "node-b").await;
        rig.in_flight(ATTACH, n + 1).await;
    }
    attach(&rig, "3", "node-b").await;
    assert!(queued(&rig, "3").await.contains("2 of plugin"));
    attach(&rig, "4", "node-c").await;
    rig.in_flight(ATTACH, 3).await;
    // What is edited counts at once, for those that wait, too.
    let plugins: kube::Api<wharfline::api::Plugin> = rig.world.all();
    let change = |concurrency: Value| json!({ "spec": { "concurrency": concurrency } });
    rig.world.patch(&plugins, "scripted", change(json!({ "attachesPerNode": 3 }))).await;
    let of_all = |a: &Value| {
        let told = a["status"]["controller"]["message"].as_str().unwrap_or_default();
        told.contains("3 of plugin") && told.contains("spec.concurrency.attaches of")
    };
    rig.world.until(&rig.attachments, "3", "told of the other bound", of_all).await;
    rig.world.patch(&plugins, "scripted", change(json!({ "attaches": 4 }))).await;
    rig.in_flight(ATTACH, 4).await;
    assert_eq!(order(&rig, ATTACH), ["1", "2", "4", "3"]);
    for gate in &gates {
        gate.open();
    }
    for volume in all {
        attached(&rig, volume).await;
    }
    end(rig, &all).await;
}

/// Neither a refused one before its next attempt, nor one that is not wanted there any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_want_its_turn_keeps_it_from_nobody() {
    let rig = rig(&["1", "2", "3", "4"]).await;
    let gate = Gate::new();
    rig.backend.next(ATTACH, Answer::fail(Code::InvalidArgument, "no").hang(&gate));
    attach(&rig, "1", "node-b").await;
    rig.in_flight(ATTACH, 1).await;
    attach(&rig, "2", "node-b").await;
    queued(&rig, "2").await;
    attach(&rig, "3", "node-b").await;
    queued(&rig, "3").await;
    detach(&rig, "2").await;
    // Who is told of one that came later knows of this, too.
    attach(&rig, "4", "node-b").await;
    queued(&rig, "4").await;
    gate.open();
    detached(&rig, "2").await;
    attached(&rig, "3").await;
    attached(&rig, "4").await;
    let refused = |a: &Value| a["status"]["controller"]["reason"] != "";
    rig.world.until(&rig.attachments, "1", "refused", refused).await;
    assert_eq!(order(&rig, ATTACH), ["1", "3", "4"]);
    rig.end_volume("2").await;
    end(rig, &["1", "3", "4"]).await;
}

/// A call about a volume waits for another call about that volume: meanwhile it takes no turn at the machine that it is for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_its_own_volume_holds_up_no_machine() {
    let rig = rig(&["1", "2"]).await;
    let app = rig.user("app").await;
    let shared = Special { mode: Some("MultiNodeMultiWriter"), ..Special::default() };
    let gate = Gate::new();
    rig.backend.next(Rpc::NodeStageVolume, Answer::honest().hang(&gate));
    rig.attach("1", &[&app], &shared).await;
    rig.in_flight(Rpc::NodeStageVolume, 1).await;
    let volume = rig.volume_up("1").await;
    let mut spec = serde_json::to_value(&rig.attachments.get("att-1").await.unwrap().spec).unwrap();
    for (field, value) in
        [("nodeName", json!("node-b")), ("nodeId", json!("i-node-b")), ("allocations", json!(["x"]))]
    {
        spec[field] = value;
    }
    let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "VolumeAttachment",
        "metadata": { "name": "1" }, "spec": spec });
    rig.world.create(&rig.attachments, object).await;
    attach(&rig, "2", "node-b").await;
    attached(&rig, "2").await;
    assert_eq!(rig.count(ATTACH), 2, "that of the other volume, which is at work here, is not sent yet");
    gate.open();
    attached(&rig, "1").await;
    rig.published("app").await;
    rig.end_alloc("app").await;
    rig.end_attachment().await;
    drop(volume);
    end(rig, &["1", "2"]).await;
}

/// What stands in the way of an attach comes down in the same turn: nobody else is called for in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_to_come_down_first_does_so_before_the_next_has_its_turn() {
    let rig = rig(&["1", "2", "3"]).await;
    let gate = Gate::new();
    rig.backend.next(ATTACH, Answer::fail(Code::AlreadyExists, "with other arguments").hang(&gate));
    attach(&rig, "1", "node-b").await;
    rig.in_flight(ATTACH, 1).await;
    attach(&rig, "2", "node-b").await;
    queued(&rig, "2").await;
    // Once this one waits, too, nobody is at work on the one before it, which would have its turn at once.
    attach(&rig, "3", "node-b").await;
    queued(&rig, "3").await;
    gate.open();
    for volume in ["1", "2", "3"] {
        attached(&rig, volume).await;
    }
    let calls = rig.backend.calls();
    let of = |rpc: Rpc| calls.iter().position(|call| call.rpc == rpc);
    let second = calls.iter().filter(|call| call.rpc == ATTACH).nth(1).unwrap();
    assert!(of(DETACH).is_some_and(|at| calls[at].number < second.number), "{:?}", rig.backend.order());
    assert_eq!(order(&rig, DETACH), ["1"], "once");
    end(rig, &["1", "2", "3"]).await;
}
