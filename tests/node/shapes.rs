//! The four shapes that a plugin may have: where the processes of its services run, and whether it has both.
use serde_json::json;
use wharfline::api::{Volume, VolumeAttachment};
use wharfline::csi::Rpc;
use wharfline::node::Options;
use wharfline::run::join;

use crate::support::node::{Daemon, NODE, NODE_ID, Place, Rig, Special, condition, uid};
use crate::support::scripted::{Config, Scripted, Site};

/// Another node.
const FAR: &str = "node-b";
/// What the process of the controller service says of its node.
const CONTROLLER: &str = "i-controller";

#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    /// The controller service runs on another node.
    Centralized,
    /// Each node has a process for each service.
    Split,
    /// One process has both.
    Unified,
    /// There is no controller service.
    NodeOnly,
}

/// A process of the plugin in this role on a node.
async fn serve(rig: &Rig, (name, role, node): (&str, &str, &str), socket: &std::path::Path) {
    let task = json!({ "name": "plugin", "runtime": { "external": { "socket": socket } },
        "csiPlugin": { "pluginName": "scripted", "role": role } });
    let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Allocation", "metadata": { "name": name },
        "spec": { "tasks": [task] } });
    let alloc = rig.world.create(&rig.allocs, object).await;
    rig.world.status(&rig.allocs, name, json!({ "nodeName": node })).await;
    let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "PluginInstance",
        "metadata": { "name": name }, "spec": { "plugin": "scripted", "role": role, "nodeName": node,
            "task": "plugin", "allocation": { "namespace": "default", "name": name, "uid": uid(&alloc) } } });
    rig.world.create(&rig.instances, object).await;
    rig.world.until(&rig.instances, name, "ready", |i| condition(i, "Ready", "True")).await;
}

/// A volume whose controller calls are made on `host`; one without any was there before.
async fn volume(rig: &Rig, host: Option<&str>) -> Volume {
    let source = match host {
        Some(_) => json!({ "create": { "name": "vol-1", "requiredBytes": 1 << 20 } }),
        None => json!({ "existing": { "handle": "share" } }),
    };
    let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Volume", "metadata": { "name": "vol-1" },
        "spec": { "plugin": "scripted", "accessModes": ["SingleNodeWriter"], "source": source } });
    let _made: Volume = rig.world.create(&rig.volumes, object).await;
    let status = match host {
        Some(host) => json!({ "controller": { "nodeName": host, "epoch": 1 } }),
        None => json!({ "handle": "share", "exists": "Up" }),
    };
    rig.world.status(&rig.volumes, "vol-1", status).await;
    rig.volume_up("vol-1").await
}

async fn works(shape: Shape) {
    let config = if shape == Shape::NodeOnly { Config::node_only() } else { Config::full() };
    let mut rig = Rig::idle(config).await;
    rig.start().await;
    let far = Place::new();
    let mut other = None;
    if shape == Shape::Centralized {
        join::join(&rig.server, FAR, false).await.unwrap();
        let options = Options { name: FAR.to_owned(), ..far.options() };
        other = Some(Daemon::start_on(&rig.server, far.machine(), options).await);
    }
    let host = if shape == Shape::Centralized { FAR } else { NODE };
    let socket = rig.files.path().join("controller.sock");
    let apart = [Shape::Centralized, Shape::Split].contains(&shape);
    let controller = apart.then(|| Scripted::start(&rig.backend, Site::new(CONTROLLER), &socket));
    if apart {
        serve(&rig, ("c", "Controller", host), &socket).await;
    }
    let role = if shape == Shape::Unified { "Monolith" } else { "Node" };
    serve(&rig, ("p", role, NODE), rig.plugin.socket()).await;
    volume(&rig, Some(host).filter(|_| shape != Shape::NodeOnly)).await;
    let app = rig.user("app").await;
    let attachment = json!({ "host": { "nodeName": host, "epoch": 1 } });
    let _made: VolumeAttachment =
        rig.attach("vol-1", &[&app], &Special { attachment, ..Special::default() }).await;
    rig.published("app").await;
    rig.end_alloc("app").await;
    rig.end_attachment().await;
    if shape == Shape::NodeOnly {
        rig.world.delete(&rig.volumes, "vol-1").await;
        rig.world.let_go(&rig.volumes, "vol-1").await;
        assert_eq!(rig.backend.order(), ["NodePublishVolume", "NodeUnpublishVolume"]);
    } else {
        rig.end_volume("vol-1").await;
        assert_eq!(rig.backend.order().len(), 8, "{:?}", rig.backend.order());
    }
    for call in rig.backend.calls().iter().filter(|call| call.ask.volume().is_some()) {
        let of_node = call.rpc.name().starts_with("Node");
        let wanted = if apart && !of_node { CONTROLLER } else { NODE_ID };
        assert_eq!(call.node, wanted, "{shape:?}: {}", call.rpc);
    }
    assert_eq!(rig.count(Rpc::NodePublishVolume), 1, "{shape:?}");
    if apart {
        rig.release_plugin("c").await;
    }
    if let Some(other) = other {
        other.stop().await;
        far.clear();
    }
    drop(controller);
    rig.finish().await;
}

/// Obligation CO-GEN-33.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_of_each_shape_serves_the_same_user() {
    for shape in [Shape::Centralized, Shape::Split, Shape::Unified, Shape::NodeOnly] {
        Box::pin(works(shape)).await;
    }
}
