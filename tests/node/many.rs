//! Much at once.
use std::collections::BTreeMap;

use serde_json::json;
use wharfline::csi::Rpc;

use crate::support::node::{NODE, Rig, uid};
use crate::support::scripted::{Config, Site};

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
    let before = rig.link.requests();
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
    let requests = rig.link.requests() - before;
    assert!(requests <= ALL + ALL / 10, "{requests} requests for {ALL} attachments");
}
