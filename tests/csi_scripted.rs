//! The scripted plugin itself: does it refuse and report what a caller must not do?
mod support;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use prost::Message;
use support::scripted::requests::{Way, create, delete};
use support::scripted::serve::{Accept, serve};
use support::scripted::{
    Answer, Backend, Config, Effects, Ending, Gate, Leftover, Scripted, Site, Wire, mounts_beneath,
};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use wharfline::csi::proto::volume_capability::access_mode::Mode;
use wharfline::csi::{Code, Connection, Connector, Plugin, PluginOptions, Rpc, UnixConnector, proto};

const LONG: Duration = Duration::from_secs(20);

/// Asks the backend without any socket; the code of its answer.
async fn ask(backend: &Arc<Backend>, node: &str, rpc: Rpc, request: &impl Message) -> Code {
    match backend.handle(&Site::new(node), rpc, &request.encode_to_vec(), Wire::default()).await {
        Ending::Reply(_) => Code::Ok,
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

/// Connections inside the process: what a simulation does with a network of its own.
struct Inside(mpsc::UnboundedReceiver<tokio::io::DuplexStream>);

#[async_trait]
impl Accept for Inside {
    async fn accept(&mut self) -> io::Result<Box<dyn Connection>> {
        match self.0.recv().await {
            Some(stream) => Ok(Box::new(stream)),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

struct Dial(mpsc::UnboundedSender<tokio::io::DuplexStream>);

#[async_trait]
impl Connector for Dial {
    async fn connect(&self) -> io::Result<Box<dyn Connection>> {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        self.0.send(theirs).map_err(|_| io::ErrorKind::ConnectionRefused)?;
        Ok(Box::new(ours))
    }
}

#[tokio::test(start_paused = true)]
async fn no_socket_is_needed_and_time_may_be_simulated() {
    let backend = Backend::new(Config::full());
    let (dial, listener) = mpsc::unbounded_channel();
    let down = CancellationToken::new();
    let serving = tokio::spawn(serve(Arc::clone(&backend), Site::new("n"), Inside(listener), down.clone()));
    let plugin = Plugin::new(Dial(dial), PluginOptions::default());
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
