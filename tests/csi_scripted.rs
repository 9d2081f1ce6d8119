//! The scripted plugin itself: does it refuse and report what a caller must not do?
mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use support::scripted::requests::{
    Way, allocated, create, delete, delete_group, delete_snapshot, delta, get_group, group, snapshot,
};
use support::scripted::{
    Answer, Backend, Config, Effects, Ending, Gate, Leftover, Scripted, Site, Wire, inside, mounts_beneath,
};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use wharfline::csi::proto::volume_capability::access_mode::Mode;
use wharfline::csi::{Code, Plugin, PluginOptions, Rpc, UnixConnector, proto};

const LONG: Duration = Duration::from_secs(20);

/// Asks the backend without any socket; the code of its answer.
async fn ask(backend: &Arc<Backend>, node: &str, rpc: Rpc, request: &impl Message) -> Code {
    match backend.handle(&Site::new(node), rpc, &request.encode_to_vec(), Wire::default()).await {
        Ending::Reply(_) | Ending::Stream { .. } => Code::Ok,
        Ending::Status { code, .. } => Code::from_i32(code),
        other => panic!("{other:?}"),
    }
}

/// A backend with the volume `v` on its way to `node-a`, which is known, as is `node-b`.
fn with_volume(config: Config) -> (Arc<Backend>, Way) {
    let backend = Backend::new(config);
    backend.add_volume("v", BTreeMap::new());
    backend.add_node(&Site::new("node-a"));
    backend.add_node(&Site::new("node-b"));
    (backend, Way::new("v", "node-a"))
}

/// One step of a story: at which node, and what.
#[derive(Clone, Copy, Debug)]
enum Step {
    Attach(&'static str),
    Detach(&'static str),
    Stage(&'static str),
    Unstage(&'static str),
    Publish(&'static str),
    Unpublish(&'static str),
    Delete,
}

async fn take(backend: &Arc<Backend>, step: Step) -> Code {
    let way = |node: &str| {
        let context = BTreeMap::from([
            ("attached to".to_owned(), node.to_owned()),
            ("device".to_owned(), "/dev/scripted\t0".to_owned()),
        ]);
        Way { publish_context: context, ..Way::new("v", node) }
    };
    match step {
        Step::Attach(node) => ask(backend, "node-a", Rpc::ControllerPublishVolume, &way(node).attach()).await,
        Step::Detach(node) => {
            ask(backend, "node-a", Rpc::ControllerUnpublishVolume, &way(node).detach()).await
        }
        Step::Stage(node) => ask(backend, node, Rpc::NodeStageVolume, &way(node).stage()).await,
        Step::Unstage(node) => ask(backend, node, Rpc::NodeUnstageVolume, &way(node).unstage()).await,
        Step::Publish(node) => ask(backend, node, Rpc::NodePublishVolume, &way(node).publish("/t")).await,
        Step::Unpublish(node) => {
            ask(backend, node, Rpc::NodeUnpublishVolume, &way(node).unpublish("/t")).await
        }
        Step::Delete => ask(backend, "node-a", Rpc::DeleteVolume, &delete("v")).await,
    }
}

#[tokio::test]
async fn the_last_step_of_each_story_is_against_the_order() {
    use Step::{Attach, Delete, Detach, Publish, Stage, Unstage};
    const A: &str = "node-a";
    const B: &str = "node-b";
    let stories: &[(&[Step], &str)] = &[
        (&[Stage(A)], "is not attached to"),
        (&[Attach(A), Publish(A)], "not staged on this node"),
        (&[Attach(A), Attach(B)], "is attached to node-a"),
        (&[Attach(A), Stage(A), Detach(A)], "is staged or published on node-a"),
        (&[Attach(A), Stage(A), Publish(A), Unstage(A)], "still published"),
        (&[Attach(A), Stage(A), Publish(A), Detach(A)], "is staged or published on node-a"),
        (&[Attach(A), Delete], "is in use on node-a"),
        (&[Attach(A), Stage(B)], "is not attached to node-b"),
    ];
    for (story, complaint) in stories {
        let (backend, _) = with_volume(Config::full());
        let (last, first) = story.split_last().unwrap();
        for step in first {
            assert_eq!(take(&backend, *step).await, Code::Ok, "{step:?} of {story:?}");
        }
        assert_eq!(backend.violations(), Vec::<String>::new(), "{story:?}");
        assert_eq!(take(&backend, *last).await, Code::FailedPrecondition, "{story:?}");
        let violations = backend.violations();
        assert!(violations.len() == 1 && violations[0].contains(complaint), "{story:?}: {violations:?}");
    }
}

#[tokio::test]
async fn a_fence_or_a_reboot_allows_what_order_forbids() {
    use Step::{Attach, Detach, Publish, Stage, Unpublish, Unstage};
    let (backend, _) = with_volume(Config::full());
    for step in [Attach("node-a"), Stage("node-a"), Publish("node-a")] {
        assert_eq!(take(&backend, step).await, Code::Ok, "{step:?}");
    }
    backend.fence("node-a");
    for step in [Detach("node-a"), Attach("node-b"), Stage("node-b"), Publish("node-b")] {
        assert_eq!(take(&backend, step).await, Code::Ok, "{step:?}");
    }
    backend.reboot("node-a");
    assert_eq!(backend.left().len(), 3, "{:?}", backend.left());
    for step in [Unpublish("node-b"), Unstage("node-b"), Detach("node-b"), Unstage("node-a")] {
        assert_eq!(take(&backend, step).await, Code::Ok, "{step:?}");
    }
    backend.assert_clean();
}

#[tokio::test]
async fn both_tables_about_publishing_twice() {
    for (mode, several) in [
        (Mode::SingleNodeWriter, false),
        (Mode::SingleNodeReaderOnly, false),
        (Mode::SingleNodeSingleWriter, false),
        (Mode::SingleNodeMultiWriter, true),
        (Mode::MultiNodeReaderOnly, true),
        (Mode::MultiNodeSingleWriter, true),
        (Mode::MultiNodeMultiWriter, true),
    ] {
        for (target, other_arguments, code) in [
            ("/one", false, Code::Ok),
            ("/one", true, Code::AlreadyExists),
            ("/two", false, if several { Code::Ok } else { Code::FailedPrecondition }),
            ("/two", true, if several { Code::Ok } else { Code::FailedPrecondition }),
        ] {
            let mut config = Config::full();
            config.controller.clear();
            config.node.retain(|number| *number != 1);
            let (backend, way) = with_volume(config);
            let way = Way { mode: mode as i32, staging: String::new(), ..way };
            assert_eq!(ask(&backend, "node-a", Rpc::NodePublishVolume, &way.publish("/one")).await, Code::Ok);
            let again = proto::NodePublishVolumeRequest {
                readonly: other_arguments,
                secrets: [("new".to_owned(), "secret".to_owned())].into(),
                ..way.publish(target)
            };
            let seen = ask(&backend, "node-a", Rpc::NodePublishVolume, &again).await;
            assert_eq!(seen, code, "{mode:?} {target} {other_arguments}");
            assert_eq!(backend.violations().is_empty(), code == Code::Ok);
        }
    }
}

#[tokio::test]
async fn one_holder_even_where_nothing_is_attached() {
    let (backend, way) = with_volume(Config::without_attach_and_stage());
    let way = Way { staging: String::new(), ..way };
    assert_eq!(ask(&backend, "node-a", Rpc::NodePublishVolume, &way.publish("/t")).await, Code::Ok);
    let code = ask(&backend, "node-b", Rpc::NodePublishVolume, &way.publish("/t")).await;
    assert_eq!(code, Code::FailedPrecondition);
    assert!(backend.violations()[0].contains("v is held by node-a too"), "{:?}", backend.violations());
}

#[tokio::test]
async fn faulty_requests_are_noted() {
    let way = || Way::new("v", "node-a");
    let (backend, _) = with_volume(Config::full());
    let wrong_create = proto::CreateVolumeRequest { volume_capabilities: Vec::new(), ..create("x") };
    let topology = proto::CreateVolumeRequest {
        accessibility_requirements: Some(proto::TopologyRequirement::default()),
        ..create("x")
    };
    let readonly = proto::ControllerPublishVolumeRequest { readonly: true, ..way().attach() };
    let long = Way { staging: format!("/{}", "x".repeat(128)), ..way() };
    let relative = Way { staging: "staging".into(), ..way() };
    let nowhere = proto::ControllerUnpublishVolumeRequest { node_id: String::new(), ..way().detach() };
    let codes = [
        ask(&backend, "node-a", Rpc::CreateVolume, &wrong_create).await,
        ask(&backend, "node-a", Rpc::CreateVolume, &topology).await,
        ask(&backend, "node-a", Rpc::ControllerPublishVolume, &readonly).await,
        ask(&backend, "node-a", Rpc::NodeStageVolume, &long.stage()).await,
        ask(&backend, "node-a", Rpc::NodeStageVolume, &relative.stage()).await,
        ask(&backend, "node-a", Rpc::ControllerUnpublishVolume, &nowhere).await,
    ];
    assert_eq!(codes, [Code::InvalidArgument; 6]);
    assert_eq!(backend.violations().len(), 6, "{:#?}", backend.violations());
    backend.configure(|config| config.services.clear());
    assert_eq!(ask(&backend, "node-a", Rpc::CreateVolume, &create("x")).await, Code::Unimplemented);
    assert_eq!(backend.violations().len(), 7);
}

/// A volume that is attached, staged at `/staging` and published at `/t`, and two snapshots of it.
async fn in_use(config: Config) -> (Arc<Backend>, Way) {
    let (backend, way) = with_volume(config);
    let context = [
        ("attached to".to_owned(), "node-a".to_owned()),
        ("device".to_owned(), "/dev/scripted\t0".to_owned()),
    ];
    let way = Way { publish_context: context.into(), ..way };
    let mut codes = vec![
        ask(&backend, "node-a", Rpc::ControllerPublishVolume, &way.attach()).await,
        ask(&backend, "node-a", Rpc::NodeStageVolume, &way.stage()).await,
        ask(&backend, "node-a", Rpc::NodePublishVolume, &way.publish("/t")).await,
    ];
    for name in ["one", "two"] {
        codes.push(ask(&backend, "node-a", Rpc::CreateSnapshot, &snapshot("v", name)).await);
    }
    assert_eq!((codes, backend.violations()), (vec![Code::Ok; 5], Vec::new()));
    (backend, way)
}

#[tokio::test]
async fn what_must_not_be_asked_of_snapshots_sizes_and_blocks_is_noted() {
    use Code::{AlreadyExists, InvalidArgument, NotFound, OutOfRange};
    let (backend, way) = in_use(Config::everything()).await;
    backend.add_volume("w", BTreeMap::new());
    let of_group = ask(&backend, "node-a", Rpc::CreateVolumeGroupSnapshot, &group(&["v", "w"], "g")).await;
    assert_eq!(of_group, Code::Ok);
    let (one, two, member) = ("snap/0001", "snap/0002", "snap/0004");
    let negative = proto::GetMetadataAllocatedRequest { max_results: -1, ..allocated(one, 0) };
    let shrink = proto::ControllerExpandVolumeRequest {
        capacity_range: Some(proto::CapacityRange { required_bytes: 5, limit_bytes: 5 }),
        ..way.expand(10)
    };
    let other = Way { mode: Mode::MultiNodeMultiWriter as i32, ..way.clone() };
    let elsewhere = Way { staging: "/elsewhere".into(), ..way.clone() };
    let unused = Way::new("w", "node-a");
    let no_parameter =
        proto::ControllerModifyVolumeRequest { mutable_parameters: BTreeMap::new(), ..way.modify("k", "v") };
    assert_eq!(ask(&backend, "node-a", Rpc::ControllerExpandVolume, &way.expand(10)).await, Code::Ok);
    let node = "node-a";
    for (code, wanted) in [
        (ask(&backend, node, Rpc::CreateSnapshot, &snapshot("w", "one")).await, AlreadyExists),
        (ask(&backend, node, Rpc::CreateSnapshot, &snapshot("v", "")).await, InvalidArgument),
        (ask(&backend, node, Rpc::DeleteSnapshot, &delete_snapshot(member)).await, InvalidArgument),
        (ask(&backend, node, Rpc::CreateVolumeGroupSnapshot, &group(&[], "h")).await, InvalidArgument),
        (ask(&backend, node, Rpc::CreateVolumeGroupSnapshot, &group(&["v"], "g")).await, AlreadyExists),
        (
            ask(&backend, node, Rpc::DeleteVolumeGroupSnapshot, &delete_group("group/0003", &[member])).await,
            InvalidArgument,
        ),
        (
            ask(&backend, node, Rpc::GetVolumeGroupSnapshot, &get_group("group/0003", &[one])).await,
            InvalidArgument,
        ),
        (ask(&backend, node, Rpc::ControllerExpandVolume, &shrink).await, OutOfRange),
        (ask(&backend, node, Rpc::ControllerExpandVolume, &other.expand(20)).await, InvalidArgument),
        (ask(&backend, node, Rpc::ControllerModifyVolume, &no_parameter).await, InvalidArgument),
        (ask(&backend, node, Rpc::NodeExpandVolume, &way.node_expand("/nowhere", 10)).await, NotFound),
        (ask(&backend, node, Rpc::NodeExpandVolume, &elsewhere.node_expand("/t", 10)).await, InvalidArgument),
        (ask(&backend, node, Rpc::NodeExpandVolume, &other.node_expand("/t", 10)).await, InvalidArgument),
        (ask(&backend, node, Rpc::NodeGetVolumeStats, &unused.stats("/t")).await, NotFound),
        (ask(&backend, node, Rpc::NodeGetVolumeStats, &elsewhere.stats("/t")).await, InvalidArgument),
        (ask(&backend, node, Rpc::GetMetadataAllocated, &negative).await, InvalidArgument),
        (ask(&backend, node, Rpc::GetMetadataDelta, &delta(two, one, 0)).await, InvalidArgument),
        (ask(&backend, node, Rpc::GetMetadataDelta, &delta(one, "snap/0005", 0)).await, InvalidArgument),
    ] {
        assert_eq!(code, wanted, "{:#?}", backend.violations());
    }
    assert_eq!(backend.violations().len(), 18, "{:#?}", backend.violations());
}

#[tokio::test]
async fn what_is_not_there_or_has_no_room_is_refused_and_no_violation() {
    use Code::{Aborted, FailedPrecondition, NotFound, OutOfRange, ResourceExhausted};
    let (backend, way) = in_use(Config::everything()).await;
    backend.configure(|config| {
        config.max_volume_bytes = 100;
        config.total_bytes = 50;
        config.dependent_snapshots = true;
    });
    let gone = Way::new("gone", "node-a");
    let unknown = proto::ListSnapshotsRequest { starting_token: "77".into(), ..Default::default() };
    let node = "node-a";
    for (code, wanted) in [
        (ask(&backend, node, Rpc::CreateSnapshot, &snapshot("gone", "x")).await, NotFound),
        (ask(&backend, node, Rpc::GetSnapshot, &get("gone")).await, NotFound),
        (ask(&backend, node, Rpc::ListSnapshots, &unknown).await, Aborted),
        (ask(&backend, node, Rpc::CreateVolumeGroupSnapshot, &group(&["gone"], "x")).await, NotFound),
        (ask(&backend, node, Rpc::GetVolumeGroupSnapshot, &get_group("gone", &["s"])).await, NotFound),
        (ask(&backend, node, Rpc::ControllerExpandVolume, &gone.expand(1)).await, NotFound),
        (ask(&backend, node, Rpc::ControllerExpandVolume, &way.expand(101)).await, OutOfRange),
        (ask(&backend, node, Rpc::ControllerExpandVolume, &way.expand(51)).await, ResourceExhausted),
        (ask(&backend, node, Rpc::ControllerModifyVolume, &gone.modify("k", "v")).await, NotFound),
        (ask(&backend, node, Rpc::ControllerGetVolume, &gone.get()).await, NotFound),
        (ask(&backend, node, Rpc::GetMetadataAllocated, &allocated("gone", 0)).await, NotFound),
        (ask(&backend, node, Rpc::GetMetadataAllocated, &allocated("snap/0001", 1)).await, OutOfRange),
        (
            ask(&backend, node, Rpc::GetMetadataDelta, &delta("snap/0001", "snap/0002", 0)).await,
            FailedPrecondition,
        ),
    ] {
        assert_eq!(code, wanted);
    }
    for done in [
        take(&backend, Step::Unpublish("node-a")).await,
        take(&backend, Step::Unstage("node-a")).await,
        take(&backend, Step::Detach("node-a")).await,
    ] {
        assert_eq!(done, Code::Ok);
    }
    assert_eq!(take(&backend, Step::Delete).await, FailedPrecondition, "it has snapshots");
    assert_eq!(backend.left(), ["snap/0001", "snap/0002"].map(|id| Leftover::Snapshot(id.into())));
    backend.assert_lawful();
}

fn get(snapshot: &str) -> proto::GetSnapshotRequest {
    proto::GetSnapshotRequest { snapshot_id: snapshot.into(), secrets: BTreeMap::new() }
}

#[tokio::test]
async fn what_is_not_reported_or_alpha_must_not_be_asked_for() {
    let (backend, way) = in_use(Config::everything()).await;
    let secret = Way { secrets: [("k".to_owned(), "v".to_owned())].into(), ..way.clone() };
    backend.configure(|config| config.alpha = false);
    let node = "node-a";
    for code in [
        ask(&backend, node, Rpc::GetSnapshot, &get("snap/0001")).await,
        ask(&backend, node, Rpc::ControllerGetVolume, &way.get()).await,
        ask(&backend, node, Rpc::GetMetadataAllocated, &allocated("snap/0001", 0)).await,
        ask(&backend, node, Rpc::GetMetadataDelta, &delta("snap/0001", "snap/0002", 0)).await,
        ask(&backend, node, Rpc::NodeExpandVolume, &secret.node_expand("/t", 1)).await,
    ] {
        assert_eq!(code, Code::Unimplemented);
    }
    assert_eq!(backend.violations().len(), 5);
    assert!(backend.violations().iter().all(|violation| violation.contains("alpha")));
    backend.configure(|config| {
        *config =
            Config { services: vec![1], controller: Vec::new(), group: vec![1], ..Config::everything() };
        config.node.retain(|number| *number == 1);
    });
    for code in [
        ask(&backend, node, Rpc::CreateSnapshot, &snapshot("v", "x")).await,
        ask(&backend, node, Rpc::DeleteSnapshot, &delete_snapshot("snap/0001")).await,
        ask(&backend, node, Rpc::ListSnapshots, &proto::ListSnapshotsRequest::default()).await,
        ask(&backend, node, Rpc::GetSnapshot, &get("snap/0001")).await,
        ask(&backend, node, Rpc::ControllerExpandVolume, &way.expand(1)).await,
        ask(&backend, node, Rpc::ControllerModifyVolume, &way.modify("k", "v")).await,
        ask(&backend, node, Rpc::ControllerGetVolume, &way.get()).await,
        ask(&backend, node, Rpc::CreateVolumeGroupSnapshot, &group(&["v"], "g")).await,
        ask(&backend, node, Rpc::GetMetadataAllocated, &allocated("snap/0001", 0)).await,
        ask(&backend, node, Rpc::NodeGetVolumeStats, &way.stats("/t")).await,
        ask(&backend, node, Rpc::NodeExpandVolume, &way.node_expand("/t", 1)).await,
    ] {
        assert_eq!(code, Code::Unimplemented);
    }
    assert_eq!(backend.violations().len(), 16, "{:#?}", backend.violations());
}

#[tokio::test]
async fn a_name_stands_for_one_request() {
    let (backend, _) = with_volume(Config::full());
    assert_eq!(ask(&backend, "node-a", Rpc::CreateVolume, &create("x")).await, Code::Ok);
    let renewed = proto::CreateVolumeRequest { secrets: [("k".into(), "v".into())].into(), ..create("x") };
    assert_eq!(ask(&backend, "node-a", Rpc::CreateVolume, &renewed).await, Code::Ok);
    assert_eq!(backend.volumes().len(), 2);
    let changed = proto::CreateVolumeRequest { parameters: [("k".into(), "v".into())].into(), ..create("x") };
    assert_eq!(ask(&backend, "node-a", Rpc::CreateVolume, &changed).await, Code::AlreadyExists);
    assert_eq!(backend.violations().len(), 1);
    assert_eq!(backend.left(), [Leftover::Volume("backend/0001".into())]);
}

#[tokio::test]
async fn limits_are_no_violations() {
    let (backend, way) = with_volume(Config::full());
    backend.configure(|config| {
        config.total_bytes = 1 << 20;
        config.max_volumes = 1;
    });
    assert_eq!(ask(&backend, "node-a", Rpc::CreateVolume, &create("x")).await, Code::Ok);
    assert_eq!(ask(&backend, "node-a", Rpc::CreateVolume, &create("y")).await, Code::ResourceExhausted);
    let huge = proto::CreateVolumeRequest {
        capacity_range: Some(proto::CapacityRange { required_bytes: 1 << 60, limit_bytes: 0 }),
        ..create("z")
    };
    assert_eq!(ask(&backend, "node-a", Rpc::CreateVolume, &huge).await, Code::OutOfRange);
    assert_eq!(ask(&backend, "node-a", Rpc::ControllerPublishVolume, &way.attach()).await, Code::Ok);
    backend.add_volume("w", BTreeMap::new());
    let other = Way::new("w", "node-a");
    let full = ask(&backend, "node-a", Rpc::ControllerPublishVolume, &other.attach()).await;
    assert_eq!(full, Code::ResourceExhausted);
    backend.assert_lawful();
}

#[tokio::test]
async fn calls_that_overlap_are_seen() {
    // Who hangs, who comes, whether the volume may be on several nodes, and whether that is a fault.
    let node = |name: &'static str| (name, Rpc::NodeUnpublishVolume);
    let controller = ("node-a", Rpc::ControllerUnpublishVolume);
    for (first, second, mode, fault) in [
        (node("node-a"), node("node-a"), Mode::SingleNodeWriter, true),
        (node("node-a"), node("node-b"), Mode::MultiNodeMultiWriter, false),
        (controller, controller, Mode::MultiNodeMultiWriter, true),
        (node("node-a"), controller, Mode::SingleNodeWriter, true),
        (controller, node("node-b"), Mode::SingleNodeWriter, true),
        (controller, node("node-b"), Mode::MultiNodeMultiWriter, false),
        (controller, node("node-a"), Mode::MultiNodeMultiWriter, true),
    ] {
        let (backend, way) = with_volume(Config::full());
        let attach = Way { mode: mode as i32, ..way.clone() }.attach();
        assert_eq!(ask(&backend, "node-a", Rpc::ControllerPublishVolume, &attach).await, Code::Ok);
        let gate = Gate::new();
        backend.next(first.1, Answer::honest().hang(&gate));
        let call = |(at, rpc): (&'static str, Rpc)| {
            let (backend, way) = (Arc::clone(&backend), way.clone());
            async move {
                match rpc {
                    Rpc::NodeUnpublishVolume => ask(&backend, at, rpc, &way.unpublish("/t")).await,
                    _ => ask(&backend, at, rpc, &way.detach()).await,
                }
            }
        };
        let hanging = tokio::spawn(call(first));
        backend.until("the first hangs", |log| log.len() == 2).await;
        assert_eq!(call(second).await, Code::Ok);
        gate.open();
        assert_eq!(hanging.await.unwrap(), Code::Ok);
        let seen = backend.violations();
        assert_eq!(!seen.is_empty(), fault, "{first:?}, {second:?}, {mode:?}: {seen:?}");
        assert!(seen.iter().all(|violation| violation.contains("overlaps")), "{seen:?}");
    }
}

#[tokio::test]
#[should_panic(expected = "1 answers for NodeStageVolume were never asked for")]
async fn an_answer_that_nobody_asked_for_is_missed() {
    let backend = Backend::new(Config::full());
    backend.next(Rpc::NodeStageVolume, Answer::cut());
    backend.assert_clean();
}

#[tokio::test]
#[should_panic(expected = "left behind")]
async fn what_is_left_is_missed() {
    let backend = Backend::new(Config::full());
    assert_eq!(ask(&backend, "node-a", Rpc::CreateVolume, &create("x")).await, Code::Ok);
    backend.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn no_socket_is_needed_and_time_may_be_simulated() {
    let backend = Backend::new(Config::full());
    let down = CancellationToken::new();
    let (dial, serving) = inside(&backend, Site::new("n"), down.clone());
    let plugin = Plugin::new(dial, PluginOptions::default());
    backend.next(Rpc::CreateVolume, Answer::honest().delay(Duration::from_secs(3600)));
    backend.next(Rpc::CreateVolume, Answer::honest().delay(Duration::from_secs(59)));
    let minute = Duration::from_secs(60);
    let started = tokio::time::Instant::now();
    assert!(plugin.create_volume(create("x"), minute).await.unwrap_err().is_deadline());
    assert_eq!(started.elapsed().as_secs(), 60);
    let volume = plugin.create_volume(create("x"), minute).await.unwrap();
    plugin.delete_volume(delete(&volume.volume_id), minute).await.unwrap();
    backend.assert_clean();
    down.cancel();
    serving.await.unwrap();
}

#[tokio::test]
async fn an_exit_is_the_owners_when_it_wants_it() {
    let dir = TempDir::new().unwrap();
    let backend = Backend::new(Config::full());
    let exited = CancellationToken::new();
    let told = exited.clone();
    let site = Site { on_exit: Some(Arc::new(move || told.cancel())), ..Site::new("node-a") };
    let scripted = Scripted::start(&backend, site, dir.path().join("csi.sock"));
    let plugin = Plugin::new(UnixConnector::new(scripted.socket()).unwrap(), PluginOptions::default());
    backend.next(Rpc::CreateVolume, Answer::exit().after_effect());
    let call = plugin.create_volume(create("x"), LONG);
    tokio::select! {
        answer = call => panic!("{answer:?}"),
        () = exited.cancelled() => {}
    }
    assert_eq!(backend.volumes().len(), 1, "it was done before");
}

#[tokio::test]
async fn mounts_are_real_when_they_are_wanted() {
    if !rustix::process::geteuid().is_root() {
        return; // only root may mount
    }
    let dir = TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    std::fs::create_dir(at("staging")).unwrap();
    let mut config = Config::full();
    config.controller.retain(|number| *number != 2);
    config.effects = Effects::Mounts(dir.path().join("backend"));
    let backend = Backend::new(config);
    let scripted = Scripted::start(&backend, Site::new("node-a"), dir.path().join("csi.sock"));
    let plugin = Plugin::new(UnixConnector::new(scripted.socket()).unwrap(), PluginOptions::default());
    let volume = plugin.create_volume(create("x"), LONG).await.unwrap();
    let way = Way {
        volume_context: volume.volume_context,
        staging: at("staging"),
        ..Way::new(&volume.volume_id, "node-a")
    };
    plugin.node_stage_volume(way.stage(), LONG).await.unwrap();
    plugin.node_publish_volume(way.publish(&at("target")), LONG).await.unwrap();
    assert_eq!(mounts_beneath(dir.path()), [at("staging"), at("target")].map(std::path::PathBuf::from));
    std::fs::write(at("target/greeting"), "hello").unwrap();
    plugin.node_unpublish_volume(way.unpublish(&at("target")), LONG).await.unwrap();
    plugin.node_unstage_volume(way.unstage(), LONG).await.unwrap();
    assert_eq!(mounts_beneath(dir.path()), Vec::<std::path::PathBuf>::new());
    assert!(!Path::new(&at("target")).exists());
    let kept = dir.path().join("backend").join(volume.volume_id.replace('/', "-")).join("greeting");
    assert_eq!(std::fs::read_to_string(kept).unwrap(), "hello");
    plugin.delete_volume(delete(&volume.volume_id), LONG).await.unwrap();
    backend.assert_clean();
}
