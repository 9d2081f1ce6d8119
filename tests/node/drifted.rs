//! What a backend has detached by itself, as its plugin lists it.
use std::time::Duration;

use wharfline::csi::{Code, Rpc, proto};

use crate::support::node::{NODE_ID, Rig};
use crate::support::scripted::{Answer, Config};

const LIST: Rpc = Rpc::ListVolumes;
const ATTACH: Rpc = Rpc::ControllerPublishVolume;

async fn rig(config: Config) -> Rig {
    let mut rig = Rig::idle(config).await;
    rig.options.heartbeat = Duration::from_millis(50);
    rig.start().await;
    rig.register().await;
    rig.ready().await;
    rig.running().await;
    rig
}

fn listing(volume: &str, nodes: &[&str]) -> Answer {
    let volume = proto::Volume { volume_id: volume.to_owned(), ..Default::default() };
    let nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
    let status =
        proto::list_volumes_response::VolumeStatus { published_node_ids: nodes, ..Default::default() };
    let entry = proto::list_volumes_response::Entry { volume: Some(volume), status: Some(status) };
    Answer::reply(&proto::ListVolumesResponse { entries: vec![entry], next_token: String::new() })
}

/// So many more lists were answered.
async fn lists(rig: &Rig, more: usize) {
    // The one that is under way may be of before.
    let count = rig.count(LIST);
    rig.called(LIST, count + more + 1).await;
}

/// Scenario B53.
/// Obligation CO-CTRL-68: by its own handler, with the same request, and ever more seldom where that does not help.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_backend_detached_by_itself_is_attached_again() {
    let rig = rig(Config::full()).await;
    let volume = rig.backend.volumes().pop().unwrap();
    lists(&rig, 3).await;
    assert_eq!(rig.count(ATTACH), 1, "it is there");
    // A volume that is not listed, nodes that nobody knows, lists that fail: of that nothing follows.
    rig.backend.always(LIST, listing("other", &[]));
    lists(&rig, 3).await;
    rig.backend.always(LIST, listing(&volume, &["stranger", NODE_ID]));
    lists(&rig, 3).await;
    rig.backend.always(LIST, Answer::fail(Code::Internal, "no list"));
    lists(&rig, 3).await;
    assert_eq!(rig.count(ATTACH), 1);
    // Missing once is late, and no more.
    rig.backend.honest(LIST);
    lists(&rig, 1).await;
    rig.backend.next(LIST, listing(&volume, &[]));
    lists(&rig, 3).await;
    assert_eq!(rig.count(ATTACH), 1);

    rig.backend.always(LIST, listing(&volume, &["stranger"]));
    rig.called(ATTACH, 2).await;
    rig.told("AttachmentMissing", "lists the volume as not attached to node").await;
    lists(&rig, 8).await;
    let asked = rig.count(ATTACH);
    assert!((3..=5).contains(&asked), "after 2, 4, 8 lists: {asked}");
    let asked: Vec<_> = rig.backend.calls_of(ATTACH).into_iter().map(|call| call.ask).collect();
    assert!(asked.windows(2).all(|two| two[0] == two[1]), "another request: {asked:?}");
    rig.backend.honest(LIST);
    lists(&rig, 2).await;
    let asked = rig.count(ATTACH);
    lists(&rig, 4).await;
    assert_eq!(rig.count(ATTACH), asked);
    let app = rig.published("app").await;
    assert_eq!(app.status.unwrap().volumes.len(), 1, "its user had it all the time");
    assert_eq!(rig.count(Rpc::ControllerUnpublishVolume), 0);
    rig.end_all().await;
    let lists = rig.count(LIST);
    rig.called(Rpc::Probe, rig.count(Rpc::Probe) + 5).await;
    assert!(rig.count(LIST) <= lists + 1, "nothing is attached, and nothing is asked");
    rig.finish().await;
}

/// Where the call fails, nobody knows whether it is attached, and it is asked for on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_attached_again_is_asked_for_on() {
    let rig = rig(Config::full()).await;
    let volume = rig.backend.volumes().pop().unwrap();
    rig.backend.next(ATTACH, Answer::fail(Code::Internal, "the fabric is gone"));
    rig.backend.always(LIST, listing(&volume, &[]));
    rig.called(ATTACH, 2).await;
    rig.told("ControllerPublishVolumeFailed", "the fabric is gone").await;
    rig.called(ATTACH, 3).await;
    rig.backend.honest(LIST);
    rig.published("app").await;
    rig.end_all().await;
    rig.finish().await;
}

/// Obligation CO-CTRL-67: who does not say that it tells it is not asked for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_that_does_not_tell_where_its_volumes_are_is_not_asked() {
    let mut config = Config::full();
    let tells = proto::controller_service_capability::rpc::Type::ListVolumesPublishedNodes as i32;
    config.controller.retain(|known| *known != tells);
    let rig = rig(config).await;
    rig.called(Rpc::Probe, rig.count(Rpc::Probe) + 10).await;
    assert_eq!((rig.count(LIST), rig.count(ATTACH)), (0, 1));
    rig.end_all().await;
    rig.finish().await;
}
