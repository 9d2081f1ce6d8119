//! Much at once.
use std::collections::BTreeMap;

use std::time::Instant;

use serde_json::{Value, json};
use wharfline::csi::Rpc;

use crate::support::node::{NODE, NODE_ID, Rig, Special, uid};
use crate::support::scripted::{Answer, Config, Gate, Site};

const ALL: usize = 1000;
/// A node of which only its host speaks here.
const OTHER: &str = "id-of-other";

async fn attachment(rig: &Rig, n: usize) {
    let (name, handle) = (format!("vol-{n}"), format!("handle-{n}"));
    rig.backend.add_volume(&handle, BTreeMap::new());
    let volume = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Volume", "metadata": { "name": name },
        "spec": { "plugin": "scripted", "accessModes": ["SingleNodeWriter"],
            "source": { "existing": { "handle": handle } } } });
    let volume = rig.world.create(&rig.volumes, volume).await;
    let host = json!({ "nodeName": NODE, "epoch": 1 });
    let there = json!({ "controller": host, "exists": "Up", "handle": handle, "observedEpoch": 1 });
    rig.world.status(&rig.volumes, &name, there).await;
    let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "VolumeAttachment",
        "metadata": { "name": format!("att-{n}") },
        "spec": { "volume": name, "volumeUid": uid(&volume), "nodeName": "other", "plugin": "scripted",
            "claim": { "namespace": "default", "name": "data", "uid": "c" }, "host": host,
            "attachRequired": true, "stageRequired": true, "handle": handle, "nodeId": OTHER,
            "allocations": [format!("user-{n}")], "capability": { "accessMode": "SingleNodeWriter" } } });
    rig.world.create(&rig.attachments, object).await;
}

/// Scenario B60: each of a thousand attachments costs its host one call and one write, and no question to the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_of_a_thousand_attachments_costs_one_call_and_one_write() {
    let rig = Rig::new(Config::full()).await;
    rig.backend.add_node(&Site::new(OTHER));
    // Nothing is deleted.
    rig.world.speak_of_handles(false);
    let before = rig.link.requests_but_events();
    for n in 0..ALL {
        attachment(&rig, n).await;
    }
    rig.called(Rpc::ControllerPublishVolume, ALL).await;
    for n in 0..ALL {
        let up = |a: &serde_json::Value| a["status"]["controller"]["attached"] == "Up";
        rig.world.until(&rig.attachments, &format!("att-{n}"), "attached", up).await;
    }
    assert_eq!((rig.count(Rpc::ControllerPublishVolume), rig.backend.order().len()), (ALL, ALL));
    // What the daemon does beside, such as its events, is no matter of their number.
    let requests = rig.link.requests_but_events() - before;
    assert!(requests <= ALL + ALL / 10, "{requests} requests for {ALL} attachments");
}

/// Scenario B15.
/// Each costs its host one call and one write, and they all go within the time that anything may take here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_volumes_that_are_deleted_at_once_go_and_each_is_asked_for_once() {
    const VOLUMES: usize = 200;
    let rig = Rig::new(Config::full()).await;
    let names: Vec<_> = (0..VOLUMES).map(|n| format!("vol-{n}")).collect();
    for name in &names {
        rig.ask(name, &Special::default()).await;
    }
    for name in &names {
        rig.volume_up(name).await;
    }
    assert_eq!(rig.backend.volumes().len(), VOLUMES);
    let before = rig.link.requests_but_events();
    for name in &names {
        rig.world.delete(&rig.volumes, name).await;
    }
    rig.called(Rpc::DeleteVolume, VOLUMES).await;
    for name in &names {
        rig.world.until(&rig.volumes, name, "deleted", |v| v["status"]["exists"] == "Down").await;
    }
    let requests = rig.link.requests_but_events() - before;
    assert!(requests <= VOLUMES + VOLUMES / 10, "{requests} requests for {VOLUMES} volumes");
    assert_eq!((rig.count(Rpc::DeleteVolume), rig.backend.volumes().len()), (VOLUMES, 0));
    for name in &names {
        rig.world.let_go(&rig.volumes, name).await;
    }
    rig.finish().await;
}

/// All volumes of an allocation stand in its status: that one more of them is up is not worth a write of them all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_allocation_with_many_volumes_is_not_written_at_each_of_them() {
    const VOLUMES: usize = 30;
    const STATUS: &str = "/apis/wharfline.dev/v1alpha1/namespaces/default/allocations/app/status";
    let rig = Rig::new(Config::without_attach_and_stage()).await;
    let name = |n: usize| format!("v{n}");
    let volumes: Vec<Value> =
        (0..VOLUMES).map(|n| json!({ "name": name(n), "claimName": name(n) })).collect();
    let app = rig.alloc("app", json!({ "volumes": volumes })).await;
    let gates: Vec<_> = (0..VOLUMES).map(|_| Gate::new()).collect();
    for (n, gate) in gates.iter().enumerate() {
        let handle = format!("handle-{n}");
        rig.backend.add_volume(&handle, BTreeMap::new());
        rig.backend.next_for(Rpc::NodePublishVolume, &handle, Answer::honest().hang(gate));
        let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "VolumeAttachment",
            "metadata": { "name": name(n) },
            "spec": { "volume": name(n), "volumeUid": name(n), "nodeName": NODE, "plugin": "scripted",
                "claim": { "namespace": "default", "name": name(n), "uid": name(n) },
                "host": { "nodeName": NODE, "epoch": 1 }, "attachRequired": false, "stageRequired": false,
                "handle": handle, "nodeId": NODE_ID, "allocations": [uid(&app)],
                "capability": { "accessMode": "SingleNodeWriter" } } });
        rig.world.create(&rig.attachments, object).await;
    }
    rig.in_flight(Rpc::NodePublishVolume, VOLUMES).await;
    let before = rig.link.patches(STATUS);
    let began = Instant::now();
    for (n, gate) in gates.iter().enumerate() {
        gate.open();
        let up = |a: &Value| a["status"]["node"]["calls"].as_array().is_some_and(|calls| !calls.is_empty());
        rig.world.until(&rig.attachments, &name(n), "published", up).await;
    }
    let all = |a: &Value| {
        let up = |v: &Value| v["published"] == "Up";
        a["status"]["phase"] == "Running" && a["status"]["volumes"].as_array().unwrap().iter().all(up)
    };
    rig.world.until(&rig.allocs, "app", "published", all).await;
    let writes = rig.link.patches(STATUS) - before;
    // Five times a second, and at the beginning and the end.
    let most = 3 + began.elapsed().as_millis() / 200;
    assert!((writes as u128) <= most, "{writes} writes in {:?}", began.elapsed());
}
