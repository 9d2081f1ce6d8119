//! Two processes of one driver, and which of them is asked about a volume: looked at when a call's turn has come, kept over
//! a restart of the daemon.
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use wharfline::csi::Rpc;

use crate::support::node::{NODE, NODE_ID, Rig, Special, condition, uid, until};
use crate::support::scripted::{Answer, Ask, Config, Gate, Scripted, Site, Witness};

const SHARED: &str = "MultiNodeMultiWriter";

/// The calls that a process gets, by their numbers.
#[derive(Default)]
struct Seen(Mutex<Vec<usize>>);

impl Witness for Seen {
    fn arrived(&self, number: usize, _: &Ask) {
        self.0.lock().unwrap().push(number);
    }
    fn performed(&self, _: usize, _: &Ask, _: bool) {}
}

/// A second process of the driver.
pub(crate) struct Second {
    process: Scripted,
    seen: Arc<Seen>,
}

impl Second {
    pub(crate) fn count(&self, rig: &Rig, rpc: Rpc) -> usize {
        let seen = self.seen.0.lock().unwrap().clone();
        rig.backend.calls_of(rpc).iter().filter(|call| seen.contains(&call.number)).count()
    }
}

/// It is asked to stop, or to go on.
async fn shall_stop(rig: &Rig, stop: bool) {
    rig.world.patch(&rig.allocs, "q", json!({ "spec": { "stop": stop } })).await;
    rig.world.status(&rig.allocs, "q", json!({ "pluginReleased": stop })).await;
}

async fn draining(rig: &Rig) {
    let draining = |a: &Value| {
        let events = a["status"]["tasks"][0]["events"].as_array();
        events.is_some_and(|events| events.iter().any(|event| event["reason"] == "Draining"))
    };
    rig.world.until(&rig.allocs, "q", "draining", draining).await;
}

/// It serves from when it is ready.
pub(crate) async fn second(rig: &Rig) -> Second {
    let socket = rig.files.path().join("second.sock");
    let seen = Arc::<Seen>::default();
    let witness: Arc<dyn Witness> = Arc::clone(&seen) as _;
    let site = Site { witness: Some(witness), ..Site::new(NODE_ID) };
    let process = Scripted::start(&rig.backend, site, &socket);
    later_than_the_first(rig).await;
    rig.register_as("scripted", "q", socket).await;
    rig.world.until(&rig.instances, "q", "ready", |i| condition(i, "Ready", "True")).await;
    Second { process, seen }
}

async fn later_than_the_first(rig: &Rig) {
    // The order is that of the objects, whose times are whole seconds.
    let born = rig.instances.get("p").await.unwrap().metadata.creation_timestamp.unwrap().0;
    let mut again = tokio::time::interval(Duration::from_millis(10));
    while jiff::Timestamp::now().as_second() <= born.as_second() {
        again.tick().await;
    }
}

/// An attachment of the volume to another node, whose host this node is.
async fn attach_elsewhere(rig: &Rig) {
    let volume = rig.volume_up("vol-1").await;
    let status = volume.status.clone().unwrap();
    let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "VolumeAttachment",
        "metadata": { "name": "att-2" },
        "spec": { "volume": "vol-1", "volumeUid": uid(&volume), "nodeName": "node-b", "plugin": "scripted",
            "claim": { "namespace": "default", "name": "data", "uid": "c" },
            "host": { "nodeName": NODE, "epoch": 1 }, "attachRequired": true, "stageRequired": true,
            "handle": status.handle, "volumeContext": status.context, "nodeId": "i-elsewhere",
            "allocations": ["somebody"], "capability": { "accessMode": SHARED } } });
    rig.world.create(&rig.attachments, object).await;
}

async fn detach_elsewhere(rig: &Rig) {
    rig.world.delete(&rig.attachments, "att-2").await;
    let uid = uid(&rig.attachments.get("att-2").await.unwrap());
    rig.world
        .status(&rig.attachments, "att-2", json!({ "node": { "staged": "Down", "releasedUID": uid } }))
        .await;
    let down = |a: &Value| a["status"]["controller"]["attached"] == "Down";
    rig.world.until(&rig.attachments, "att-2", "detached", down).await;
    rig.world.let_go(&rig.attachments, "att-2").await;
}

/// A user of the volume here, which is attached for it and not bound yet.
async fn user_to_be(rig: &Rig) {
    let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Allocation", "metadata": { "name": "app" },
        "spec": { "volumes": [{ "name": "data", "claimName": "data" }] } });
    let app = rig.world.create(&rig.allocs, object).await;
    rig.attach("vol-1", &[&app], &Special { mode: Some(SHARED), ..Special::default() }).await;
    let up = |a: &Value| a["status"]["controller"]["attached"] == "Up";
    rig.world.until(&rig.attachments, "att-1", "attached", up).await;
}

/// It is bound: of the stage that follows the process is chosen by now, and it waits for its turn or is under way.
async fn stage(rig: &Rig) {
    rig.world.status(&rig.allocs, "app", json!({ "nodeName": NODE })).await;
    // Made right before the call, and after its process was chosen.
    until(|| std::fs::read_dir(rig.tree("staging")).is_ok_and(|mut all| all.next().is_some()), "a stage")
        .await;
}

async fn shared_volume(rig: &Rig) {
    rig.ask("vol-1", &Special { mode: Some(SHARED), ..Special::default() }).await;
    rig.volume_up("vol-1").await;
    user_to_be(rig).await;
}

async fn end(rig: Rig, second: Second) {
    rig.end_alloc("app").await;
    rig.end_attachment().await;
    detach_elsewhere(&rig).await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
    drop(second.process);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_whose_process_shall_end_while_it_waits_goes_to_another_one() {
    let rig = Rig::new(Config::full()).await;
    let second = second(&rig).await;
    shared_volume(&rig).await;
    let gate = Gate::new();
    rig.backend.next(Rpc::ControllerPublishVolume, Answer::honest().hang(&gate));
    attach_elsewhere(&rig).await;
    rig.in_flight(Rpc::ControllerPublishVolume, 2).await;
    stage(&rig).await;
    rig.world.delete(&rig.allocs, "q").await;
    rig.world.status(&rig.allocs, "q", json!({ "pluginReleased": true })).await;
    draining(&rig).await;
    gate.open();
    rig.published("app").await;
    assert_eq!((rig.count(Rpc::NodeStageVolume), second.count(&rig, Rpc::NodeStageVolume)), (1, 0));
    assert_eq!(second.count(&rig, Rpc::ControllerPublishVolume), 2);
    rig.world.until(&rig.allocs, "q", "stopped", |a| a["status"]["phase"] == "Stopped").await;
    rig.world.let_go(&rig.allocs, "q").await;
    end(rig, second).await;
}

/// The stop of the process that serves is taken back while it waits for the end of a call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_shall_go_on_gets_calls_again() {
    let rig = Rig::new(Config::full()).await;
    let second = second(&rig).await;
    let gate = Gate::new();
    rig.backend.next(Rpc::CreateVolume, Answer::honest().hang(&gate));
    rig.ask("vol-1", &Special::default()).await;
    rig.in_flight(Rpc::CreateVolume, 1).await;
    shall_stop(&rig, true).await;
    draining(&rig).await;
    rig.ask("two", &Special::default()).await;
    rig.volume_up("two").await;
    assert_eq!(second.count(&rig, Rpc::CreateVolume), 1, "it gets no call any more");
    shall_stop(&rig, false).await;
    let mut names = vec!["vol-1".to_owned(), "two".to_owned()];
    // The daemon learns of it beside what it learns of volumes.
    while second.count(&rig, Rpc::CreateVolume) < 2 {
        assert!(names.len() < 200, "it gets no call again");
        let name = format!("three-{}", names.len());
        rig.ask(&name, &Special::default()).await;
        rig.volume_up(&name).await;
        names.push(name);
    }
    gate.open();
    rig.volume_up("vol-1").await;
    let q = rig.allocs.get("q").await.unwrap();
    let q = serde_json::to_value(q.status.unwrap()).unwrap();
    assert_eq!((&q["phase"], &q["tasks"][0]["state"]), (&json!("Running"), &json!("Running")), "{q}");
    for name in &names {
        rig.end_volume(name).await;
    }
    rig.release_plugin("q").await;
    rig.finish().await;
    drop(second.process);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_waited_for_one_that_was_given_up_goes_to_the_same_process() {
    let rig = Rig::new(Config::full()).await;
    rig.deadline(Rpc::ControllerPublishVolume, "4s").await;
    shared_volume(&rig).await;
    let gate = Gate::new();
    rig.backend.next(Rpc::ControllerPublishVolume, Answer::honest().hang(&gate));
    attach_elsewhere(&rig).await;
    rig.in_flight(Rpc::ControllerPublishVolume, 2).await;
    let second = second(&rig).await;
    stage(&rig).await;
    // It is given up, and nobody has said that it is over.
    rig.published("app").await;
    assert_eq!((rig.count(Rpc::NodeStageVolume), second.count(&rig, Rpc::NodeStageVolume)), (1, 0));
    gate.open();
    rig.release_plugin("q").await;
    end(rig, second).await;
}

/// The daemon is killed while a call is under way at one of two processes: it is made again there.
async fn asked_on_after_a_restart(rpc: Rpc, second_asked: bool) {
    let mut rig = Rig::new(Config::full()).await;
    shared_volume(&rig).await;
    let early = if second_asked { Some(second(&rig).await) } else { None };
    let before = rig.count(rpc);
    rig.backend.next(rpc, Answer::honest().hang(&Gate::new()));
    if rpc == Rpc::NodeStageVolume {
        stage(&rig).await;
    } else {
        attach_elsewhere(&rig).await;
    }
    rig.in_flight(rpc, before + 1).await;
    let second = match early {
        Some(second) => second,
        None => second(&rig).await,
    };
    rig.kill().await;
    rig.start().await;
    rig.called(rpc, before + 2).await;
    assert_eq!(second.count(&rig, rpc), if second_asked { 2 } else { 0 }, "{rpc}");
    if rpc == Rpc::NodeStageVolume {
        attach_elsewhere(&rig).await;
    } else {
        stage(&rig).await;
    }
    rig.published("app").await;
    rig.called(Rpc::ControllerPublishVolume, 2).await;
    rig.release_plugin("q").await;
    end(rig, second).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_process_was_asked_by_a_daemon_that_was_killed_it_is_asked_again() {
    for rpc in [Rpc::ControllerPublishVolume, Rpc::NodeStageVolume] {
        for second_asked in [true, false] {
            Box::pin(asked_on_after_a_restart(rpc, second_asked)).await;
        }
    }
}

/// A process of the driver that is a task here; the test answers at its socket. What it finds when it is asked to end it
/// writes down.
async fn as_a_task(rig: &Rig) -> Scripted {
    let at = rig.files.path().join("q");
    std::fs::create_dir(&at).unwrap();
    let script = format!(
        "cd {} && echo $CSI_ENDPOINT > new && mv new at; trap 'ls > found; mv found stopped; exit 0' TERM; \
         while :; do sleep 0.05; done",
        at.display()
    );
    later_than_the_first(rig).await;
    let task = json!({ "name": "plugin", "runtime": { "process": { "command": ["/bin/sh", "-c", script] } },
        "csiPlugin": { "pluginName": "scripted", "role": "Monolith" } });
    let alloc = rig.alloc("q", json!({ "tasks": [task] })).await;
    rig.admit_as("scripted", "q", &alloc).await;
    let endpoint = appeared(&at.join("at")).await;
    let socket = endpoint.trim().strip_prefix("unix://").unwrap().to_owned();
    let process = Scripted::start(&rig.backend, Site::new(NODE_ID), socket);
    rig.world.until(&rig.instances, "q", "ready", |i| condition(i, "Ready", "True")).await;
    process
}

/// What is in a file that is moved to its place.
async fn appeared(path: &std::path::Path) -> String {
    until(|| path.exists(), &path.display().to_string()).await;
    std::fs::read_to_string(path).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_whose_allocation_was_taken_by_force_ends_its_calls_first() {
    let rig = Rig::new(Config::full()).await;
    let process = as_a_task(&rig).await;
    let gate = Gate::new();
    rig.backend.next(Rpc::CreateVolume, Answer::honest().hang(&gate));
    rig.ask("vol-1", &Special::default()).await;
    rig.in_flight(Rpc::CreateVolume, 1).await;
    rig.world.delete(&rig.allocs, "q").await;
    rig.world.let_go(&rig.allocs, "q").await;
    rig.world.delete(&rig.instances, "q").await;
    // The daemon has seen it when another volume is made by the process that stays: by then it would have asked for its end.
    let connection = rig.backend.calls_of(Rpc::CreateVolume)[0].connection;
    let mut names = Vec::new();
    loop {
        let name = format!("two-{}", names.len());
        rig.ask(&name, &Special::default()).await;
        rig.volume_up(&name).await;
        names.push(name);
        if rig.backend.calls_of(Rpc::CreateVolume).last().unwrap().connection != connection {
            break;
        }
        assert!(names.len() < 200, "it gets calls still");
    }
    let at = rig.files.path().join("q");
    std::fs::write(at.join("let-go"), "").unwrap();
    gate.open();
    rig.volume_up("vol-1").await;
    assert!(
        appeared(&at.join("stopped")).await.contains("let-go"),
        "it was asked to end in the middle of a call"
    );
    assert_eq!(
        rig.backend.calls_of(Rpc::CreateVolume).iter().filter(|c| c.connection == connection).count(),
        names.len()
    );
    names.push("vol-1".to_owned());
    for name in &names {
        rig.end_volume(name).await;
    }
    rig.finish().await;
    drop(process);
}
