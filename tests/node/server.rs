//! Without the server, and with a node that is taken down.
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node as CoreNode;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use wharfline::api::Volume;
use wharfline::csi::Rpc;

use crate::support::node::{DEADLINE, NODE, Rig, Special, condition, condition_message, until};
use crate::support::scripted::{Answer, Config, Gate};

/// Waits until the node's lease has run out.
pub(crate) async fn lease_over(rig: &Rig) {
    let leases: Api<Lease> = Api::namespaced(rig.world.0.clone(), "wharfline-system");
    let renewed = leases.get(NODE).await.unwrap().spec.unwrap().renew_time.unwrap().0;
    let lease = jiff::SignedDuration::try_from(rig.options.lease).unwrap();
    until(|| jiff::Timestamp::now().duration_since(renewed) > lease, "the lease is over").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_controller_call_starts_without_a_lease() {
    let mut rig = Rig::idle(Config::full()).await;
    rig.options.lease = Duration::from_secs(3);
    rig.start().await;
    rig.register().await;
    rig.ready().await;
    rig.running().await;
    rig.link.cut();
    lease_over(&rig).await;
    // The daemon hears of it over the watch that is open still.
    rig.ask("late", &Special::default()).await;
    rig.end_node_part().await;
    assert_eq!((rig.count(Rpc::NodeUnpublishVolume), rig.count(Rpc::NodeUnstageVolume)), (1, 1));
    let mended = tokio::time::Instant::now();
    assert_eq!(rig.count(Rpc::CreateVolume), 1, "only the first");
    rig.link.mend();
    rig.volume_up("late").await;
    let create = rig.backend.calls_of(Rpc::CreateVolume)[1].clone();
    assert!(create.started >= mended);
    rig.detached().await;
    rig.world.until(&rig.allocs, "app", "stopped", |a| a["status"]["phase"] == "Stopped").await;
    rig.world.let_go(&rig.allocs, "app").await;
    rig.end_volume("vol-1").await;
    rig.end_volume("late").await;
    rig.finish().await;
}

/// What succeeded while nobody could be told is told later, and not called again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_could_not_be_reported_is_reported_later_and_not_asked_for_again() {
    let rig = Rig::new(Config::full()).await;
    let gate = Gate::new();
    rig.backend.next(Rpc::CreateVolume, Answer::honest().hang(&gate));
    rig.ask("vol-1", &Special::default()).await;
    rig.in_flight(Rpc::CreateVolume, 1).await;
    rig.link.cut();
    gate.open();
    rig.called(Rpc::CreateVolume, 1).await;
    let deaf = tokio::time::Instant::now();
    until(|| deaf.elapsed() > Duration::from_millis(700), "two reports have failed").await;
    rig.link.mend();
    rig.volume_up("vol-1").await;
    assert_eq!(rig.count(Rpc::CreateVolume), 1);
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// Whoever comes after this daemon knows what was made by what the server has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_volume_is_deleted_before_the_server_knows_its_handle() {
    let rig = Rig::new(Config::full()).await;
    let (making, deleting) = (Gate::new(), Gate::new());
    rig.backend.next(Rpc::CreateVolume, Answer::honest().hang(&making));
    rig.backend.next(Rpc::DeleteVolume, Answer::honest().hang(&deleting));
    rig.ask("vol-1", &Special::default()).await;
    rig.in_flight(Rpc::CreateVolume, 1).await;
    rig.world.delete(&rig.volumes, "vol-1").await;
    rig.link.cut();
    making.open();
    rig.called(Rpc::CreateVolume, 1).await;
    let deaf = tokio::time::Instant::now();
    until(|| deaf.elapsed() > Duration::from_millis(700), "two reports have failed").await;
    assert_eq!(rig.count(Rpc::DeleteVolume), 0);
    rig.link.mend();
    rig.in_flight(Rpc::DeleteVolume, 1).await;
    let handle = rig.volumes.get("vol-1").await.unwrap().status.unwrap().handle;
    assert_eq!(vec![handle], rig.backend.volumes());
    deleting.open();
    let gone = |v: &Value| v["status"]["exists"] == "Down";
    rig.world.until(&rig.volumes, "vol-1", "deleted", gone).await;
    rig.world.let_go(&rig.volumes, "vol-1").await;
    rig.finish().await;
}

/// Obligation CO-GEN-27: whoever comes after this daemon would not know of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_follows_from_an_answer_before_it_is_written() {
    const STATUS: &str = "/apis/wharfline.dev/v1alpha1/volumeattachments/att-1/status";
    for killed in [false, true] {
        let mut rig = Rig::new(Config::full()).await;
        let gate = Gate::new();
        rig.backend.next(Rpc::ControllerPublishVolume, Answer::honest().hang(&gate));
        let app = rig.user("app").await;
        rig.give(&[&app], &Special::default()).await;
        rig.in_flight(Rpc::ControllerPublishVolume, 1).await;
        rig.link.cut();
        let before = rig.link.patches(STATUS);
        gate.open();
        until(|| rig.link.patches(STATUS) >= before + 2, "the answer is reported again and again").await;
        // Something else is news of the attachment, over the watch that is open.
        let note = json!({ "metadata": { "annotations": { "example.com/seen": "yes" } } });
        rig.world.patch(&rig.attachments, "att-1", note).await;
        until(|| rig.link.patches(STATUS) >= before + 4, "and again").await;
        assert_eq!(rig.count(Rpc::NodeStageVolume), 0);
        if killed {
            rig.kill().await;
        }
        rig.link.mend();
        if killed {
            rig.start().await;
        }
        rig.published("app").await;
        let calls = rig.backend.calls_of(Rpc::ControllerPublishVolume);
        assert_eq!(calls.len(), if killed { 2 } else { 1 });
        assert!(calls.iter().all(|call| call.ask == calls[0].ask), "{calls:?}");
        rig.end_all().await;
        rig.finish().await;
    }
}

/// Where one machine lets a volume go and detaches it, both are one write; unless the second takes long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_let_go_and_detached_by_one_machine_is_written_once() {
    const STATUS: &str = "/apis/wharfline.dev/v1alpha1/volumeattachments/att-1/status";
    let rig = Rig::new(Config::full()).await;
    rig.running().await;
    rig.stop_alloc("app").await;
    let before = rig.link.patches(STATUS);
    rig.end_attachment().await;
    assert_eq!(rig.link.patches(STATUS), before + 1);
    rig.end_alloc("app").await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
    for killed in [false, true] {
        let mut rig = Rig::new(Config::full()).await;
        rig.running().await;
        rig.stop_alloc("app").await;
        let gate = Gate::new();
        rig.backend.next(Rpc::ControllerUnpublishVolume, Answer::honest().hang(&gate));
        rig.world.delete(&rig.attachments, "att-1").await;
        rig.in_flight(Rpc::ControllerUnpublishVolume, 1).await;
        if killed {
            rig.kill().await;
            gate.open();
            rig.start().await;
        } else {
            let told = |a: &Value| {
                a["status"]["node"]["releasedUID"] == a["metadata"]["uid"]
                    && a["status"]["controller"]["attached"] == "Up"
            };
            rig.world.until(&rig.attachments, "att-1", "let go, which is told alone", told).await;
            gate.open();
        }
        rig.detached().await;
        rig.end_alloc("app").await;
        rig.end_volume("vol-1").await;
        rig.finish().await;
    }
}

/// That an allocation has ended is told when its attachment has gone, and it goes with that word; unless that takes long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_an_allocation_whose_attachment_goes_is_its_last_word() {
    const STATUS: &str = "/apis/wharfline.dev/v1alpha1/namespaces/default/allocations/app/status";
    let (stopped, last) =
        (|a: &Value| a["status"]["phase"] == "Stopped", |a: &Value| a["status"]["released"] == true);
    for hangs in [false, true] {
        let rig = Rig::new(Config::full()).await;
        rig.running().await;
        // It goes as soon as its node says that nothing of it is left.
        let own = json!({ "metadata": { "finalizers": ["wharfline.dev/protection"] } });
        rig.world.patch(&rig.attachments, "att-1", own).await;
        let before = rig.link.patches(STATUS);
        let gate = Gate::new();
        if hangs {
            rig.backend.next(Rpc::ControllerUnpublishVolume, Answer::honest().hang(&gate));
        }
        rig.world.delete(&rig.allocs, "app").await;
        rig.world.delete(&rig.attachments, "att-1").await;
        if hangs {
            rig.in_flight(Rpc::ControllerUnpublishVolume, 1).await;
            let told = |a: &Value| stopped(a) && !last(a);
            rig.world.until(&rig.allocs, "app", "ended, which is told alone", told).await;
            gate.open();
        }
        rig.world.until(&rig.allocs, "app", "released", |a| stopped(a) && last(a)).await;
        assert!(rig.attachments.get_opt("att-1").await.unwrap().is_none(), "its attachment has gone first");
        assert_eq!(rig.link.patches(STATUS), before + if hangs { 2 } else { 1 });
        let held = rig.allocs.get("app").await.unwrap().finalizers().to_vec();
        assert_eq!(held, ["example.com/read"], "its own finalizer goes with that word");
        rig.world.let_go(&rig.allocs, "app").await;
        // So does the volume.
        let own = json!({ "metadata": { "finalizers": ["wharfline.dev/protection"] } });
        rig.world.patch(&rig.volumes, "vol-1", own).await;
        rig.world.delete(&rig.volumes, "vol-1").await;
        let gone =
            kube::runtime::wait::await_condition(rig.volumes.clone(), "vol-1", |v: Option<&Volume>| {
                v.is_none()
            });
        tokio::time::timeout(DEADLINE, gone).await.unwrap().unwrap();
        assert_eq!(rig.count(Rpc::DeleteVolume), 1);
        rig.finish().await;
    }
}

/// One that was fenced may be attached without a holder: nobody would detach it once the volume is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_is_deleted_once_it_is_detached_whoever_holds_it() {
    let rig = Rig::new(Config::full()).await;
    rig.running().await;
    rig.stop_alloc("app").await;
    rig.world.delete(&rig.volumes, "vol-1").await;
    let gate = Gate::new();
    rig.backend.next(Rpc::ControllerUnpublishVolume, Answer::honest().hang(&gate));
    rig.world.delete(&rig.attachments, "att-1").await;
    rig.in_flight(Rpc::ControllerUnpublishVolume, 1).await;
    assert_eq!(rig.count(Rpc::DeleteVolume), 0);
    gate.open();
    rig.detached().await;
    rig.world.until(&rig.volumes, "vol-1", "deleted", |v| v["status"]["exists"] == "Down").await;
    let order = rig.backend.order();
    let at = |call: &str| order.iter().position(|made| made.starts_with(call)).unwrap();
    assert!(at("ControllerUnpublishVolume") < at("DeleteVolume"), "{order:?}");
    rig.world.let_go(&rig.volumes, "vol-1").await;
    rig.end_alloc("app").await;
    rig.finish().await;
}

/// Obligation CO-GEN-28.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_does_not_know_yet_what_is_wanted_takes_nothing_down() {
    let mut rig = Rig::new(Config::full()).await;
    rig.running().await;
    let volumes = json!([{ "name": "data", "claimName": "other" }]);
    let second = rig.alloc("second", json!({ "volumes": volumes })).await;
    rig.give_second(&second).await;
    rig.published("second").await;
    rig.kill().await;
    rig.world.delete(&rig.allocs, "second").await;
    let (calls, mounts) = (rig.backend.order(), rig.mounted());
    // It is told of everything but of what is attached.
    rig.link.withhold("volumeattachments");
    let before = rig.link.requests();
    let meanwhile = async {
        until(|| rig.link.requests() > before + 30, "it asks again and again").await;
        assert_eq!((rig.backend.order(), rig.mounted()), (calls.clone(), mounts.clone()));
        rig.link.mend();
    };
    let (daemon, ()) = tokio::join!(rig.boot(), meanwhile);
    rig.daemon = Some(daemon);
    rig.world.until(&rig.allocs, "second", "stopped", |a| a["status"]["phase"] == "Stopped").await;
    rig.world.let_go(&rig.allocs, "second").await;
    rig.end_second_volume().await;
    rig.published("app").await;
    let after = ["NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume", "DeleteVolume"];
    assert_eq!(rig.backend.order()[calls.len()..], after, "of the second alone");
    rig.end_all().await;
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_marked_stopped_comes_down_and_back() {
    let rig = Rig::new(Config::full()).await;
    rig.running().await;
    let nodes: Api<CoreNode> = Api::all(rig.world.0.clone());
    let mark = |value: Value| json!({ "metadata": { "annotations": { "wharfline.dev/stopped": value } } });
    rig.world.patch(&nodes, NODE, mark(json!("true"))).await;
    rig.world.until(&rig.allocs, "app", "stopped", |a| a["status"]["phase"] == "Stopped").await;
    assert_eq!(rig.count(Rpc::NodeUnpublishVolume), 1);
    // The controllers see that nobody uses the volume here.
    rig.end_attachment().await;
    let agent = rig.agents.get(NODE).await.unwrap();
    assert!(!agent.status.unwrap().stopped, "the plugin is left");
    let needed = |a: &Value| {
        let message = condition_message(a, "Ready").unwrap_or_default();
        message.starts_with("it is to stop, and serves on until nothing needs it any more")
    };
    rig.world.until(&rig.allocs, "p", "says what it waits for", needed).await;
    rig.world.status(&rig.allocs, "p", json!({ "pluginReleased": true })).await;
    rig.world
        .until(&rig.agents, NODE, "stopped", |a| {
            a["status"]["stopped"] == true && condition(a, "Ready", "False")
        })
        .await;
    assert!(rig.mounted().is_empty());
    rig.world.status(&rig.allocs, "p", json!({ "pluginReleased": false })).await;
    rig.world.patch(&nodes, NODE, mark(Value::Null)).await;
    rig.ready().await;
    let app = rig.allocs.get("app").await.unwrap();
    rig.attach("vol-1", &[&app], &Special::default()).await;
    rig.published("app").await;
    rig.world
        .until(&rig.agents, NODE, "running", |a| {
            a["status"]["stopped"] != true && condition(a, "Ready", "True")
        })
        .await;
    rig.end_all().await;
    rig.finish().await;
}
