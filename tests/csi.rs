//! One plugin on one socket, against the scripted plugin: outcomes, deadlines, turns, reconnects, redaction.
#![allow(clippy::unwrap_used)]
mod support;

#[path = "csi/alpha.rs"]
mod alpha;
#[path = "csi/codes.rs"]
mod codes;
#[path = "csi/groups.rs"]
mod groups;
#[path = "csi/growth.rs"]
mod growth;
#[path = "csi/overlap.rs"]
mod overlap;
#[path = "csi/secrets.rs"]
mod secrets;
#[path = "csi/snapshots.rs"]
mod snapshots;
#[path = "csi/streams.rs"]
mod streams;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use support::scripted::requests::{
    Way, allocated, create, delete, delete_group, delete_snapshot, delta, get_group, group, snapshot,
};
use support::scripted::{Answer, Backend, Canary, Config, End, Gate, Leftover, Scripted, Site};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::watch;
use wharfline::csi::{
    Alpha, BlockStream, CallRecord, Class, Code, Connection, Connector, Failure, Interrupted, Lease, Origin,
    Plugin, PluginOptions, Readiness, Remedy, Rpc, StreamTerms, Tenure, Terms, UnixConnector, proto,
};

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(50);

/// A scripted plugin, a client of it, and what the client reported.
struct Bench {
    backend: Arc<Backend>,
    scripted: Scripted,
    plugin: Plugin,
    records: Arc<Mutex<Vec<CallRecord>>>,
    _dir: TempDir,
}

impl Bench {
    fn new() -> Self {
        Self::with(Config::full(), Alpha::On)
    }

    fn with(config: Config, alpha: Alpha) -> Self {
        let dir = TempDir::new().expect("a directory");
        let backend = Backend::new(config);
        let scripted = Scripted::start(&backend, Site::new("node-a"), dir.path().join("csi.sock"));
        let records = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&records);
        let observer = move |record: &CallRecord| sink.lock().expect("not poisoned").push(record.clone());
        let options = PluginOptions { observer: Some(Arc::new(observer)), alpha, ..PluginOptions::default() };
        let connector = UnixConnector::new(scripted.socket()).expect("a short path");
        Self { backend, scripted, plugin: Plugin::new(connector, options), records, _dir: dir }
    }

    fn records(&self) -> Vec<CallRecord> {
        self.records.lock().expect("not poisoned").clone()
    }
}

/// Makes one call, with a request that names the volume `id`.
async fn call(plugin: &Plugin, rpc: Rpc, id: &str, terms: impl Into<Terms>) -> Result<(), Failure> {
    let way = Way::new(id, "node-a");
    match rpc {
        Rpc::GetPluginInfo => plugin.get_plugin_info(terms).await.map(drop),
        Rpc::GetPluginCapabilities => plugin.get_plugin_capabilities(terms).await.map(drop),
        Rpc::Probe => plugin.probe(terms).await.map(drop),
        Rpc::CreateVolume => plugin.create_volume(create(id), terms).await.map(drop),
        Rpc::DeleteVolume => plugin.delete_volume(delete(id), terms).await.map(drop),
        Rpc::ControllerPublishVolume => plugin.controller_publish_volume(way.attach(), terms).await.map(drop),
        Rpc::ControllerUnpublishVolume => {
            plugin.controller_unpublish_volume(way.detach(), terms).await.map(drop)
        }
        Rpc::ValidateVolumeCapabilities => {
            plugin.validate_volume_capabilities(way.validate(), terms).await.map(drop)
        }
        Rpc::ListVolumes => plugin.list_volumes(proto::ListVolumesRequest::default(), terms).await.map(drop),
        Rpc::GetCapacity => plugin.get_capacity(proto::GetCapacityRequest::default(), terms).await.map(drop),
        Rpc::ControllerGetCapabilities => plugin.controller_get_capabilities(terms).await.map(drop),
        Rpc::CreateSnapshot => plugin.create_snapshot(snapshot(id, "snap"), terms).await.map(drop),
        Rpc::DeleteSnapshot => plugin.delete_snapshot(delete_snapshot(id), terms).await.map(drop),
        Rpc::ListSnapshots => {
            plugin.list_snapshots(proto::ListSnapshotsRequest::default(), terms).await.map(drop)
        }
        Rpc::GetSnapshot => plugin.get_snapshot(get_snapshot(id), terms).await.map(drop),
        Rpc::ControllerExpandVolume => plugin.controller_expand_volume(way.expand(1), terms).await.map(drop),
        Rpc::ControllerGetVolume => plugin.controller_get_volume(way.get(), terms).await.map(drop),
        Rpc::ControllerModifyVolume => {
            plugin.controller_modify_volume(way.modify("k", "v"), terms).await.map(drop)
        }
        Rpc::GroupControllerGetCapabilities => {
            plugin.group_controller_get_capabilities(terms).await.map(drop)
        }
        Rpc::CreateVolumeGroupSnapshot => {
            plugin.create_volume_group_snapshot(group(&[id], "group"), terms).await.map(drop)
        }
        Rpc::DeleteVolumeGroupSnapshot => {
            plugin.delete_volume_group_snapshot(delete_group(id, &["s"]), terms).await.map(drop)
        }
        Rpc::GetVolumeGroupSnapshot => {
            plugin.get_volume_group_snapshot(get_group(id, &["s"]), terms).await.map(drop)
        }
        Rpc::GetMetadataAllocated => {
            drained(plugin.get_metadata_allocated(allocated(id, 0), patient(terms)).await).await
        }
        Rpc::GetMetadataDelta => {
            drained(plugin.get_metadata_delta(delta("base", id, 0), patient(terms)).await).await
        }
        Rpc::NodeStageVolume => plugin.node_stage_volume(way.stage(), terms).await.map(drop),
        Rpc::NodeUnstageVolume => plugin.node_unstage_volume(way.unstage(), terms).await.map(drop),
        Rpc::NodePublishVolume => plugin.node_publish_volume(way.publish("/target"), terms).await.map(drop),
        Rpc::NodeUnpublishVolume => {
            plugin.node_unpublish_volume(way.unpublish("/target"), terms).await.map(drop)
        }
        Rpc::NodeGetVolumeStats => plugin.node_get_volume_stats(way.stats("/target"), terms).await.map(drop),
        Rpc::NodeExpandVolume => {
            plugin.node_expand_volume(way.node_expand("/target", 1), terms).await.map(drop)
        }
        Rpc::NodeGetCapabilities => plugin.node_get_capabilities(terms).await.map(drop),
        Rpc::NodeGetInfo => plugin.node_get_info(terms).await.map(drop),
    }
}

fn get_snapshot(id: &str) -> proto::GetSnapshotRequest {
    proto::GetSnapshotRequest { snapshot_id: id.into(), secrets: BTreeMap::new() }
}

fn patient(terms: impl Into<Terms>) -> StreamTerms {
    StreamTerms { terms: terms.into(), silence: LONG }
}

/// Reads a stream to its end.
async fn drained(stream: Result<BlockStream, Interrupted>) -> Result<(), Failure> {
    let read = async {
        let mut stream = stream?;
        while stream.next().await?.is_some() {}
        Ok(())
    };
    read.await.map_err(|interrupted: Interrupted| interrupted.failure)
}

/// Makes one call that is answered so, and must fail.
async fn failing(bench: &Bench, rpc: Rpc, answer: Answer, deadline: Duration) -> Failure {
    bench.backend.next(rpc, answer);
    call(&bench.plugin, rpc, "vol-1", deadline).await.expect_err("the answer is a failure")
}

/// Obligation CO-ERR-08.
/// Part of obligations CO-ERR-01, CO-ERR-02, CO-ERR-11, CO-ERR-13, CO-ERR-14.
#[tokio::test]
async fn what_we_made_up_ourselves_is_never_final() {
    let bench = Bench::new();
    let cases = [
        ("cut", Answer::cut(), Code::Unavailable),
        ("too large", Answer::oversize(65 << 20), Code::ResourceExhausted),
        ("beyond all limits", Answer::oversize(u32::MAX), Code::ResourceExhausted),
        ("not decodable", Answer::garbage(), Code::Internal),
        ("no status", Answer::no_status(), Code::Unknown),
        ("bad gateway", Answer::http(502), Code::Unavailable),
        ("forbidden", Answer::http(403), Code::Internal),
        ("not there", Answer::http(404), Code::Internal),
    ];
    for rpc in Rpc::ALL.iter().copied() {
        // A part of a stream that holds nothing is a fault of its own; see `streams`.
        let of_a_reply = |name: &str| name == "no status";
        for (name, answer, code) in cases.iter().filter(|(name, ..)| !(rpc.streams() && of_a_reply(name))) {
            let failure = failing(&bench, rpc, answer.clone(), LONG).await;
            assert_eq!(
                (failure.class, failure.origin, failure.code),
                (Class::Uncertain, Origin::Local, *code),
                "{rpc}, {name}: {failure}"
            );
            assert_eq!(failure.remedy(), Remedy::Repeat);
            assert!(!failure.message.is_empty() && failure.message != "transport error", "{failure}");
        }
        let failure = failing(&bench, rpc, Answer::honest().hang(&Gate::new()), SHORT).await;
        assert!(failure.is_deadline() && failure.is_uncertain(), "{failure}");
    }
    bench.backend.assert_lawful();
}

/// Obligation CO-PLUG-16.
#[tokio::test]
async fn a_plugin_that_dies_or_is_not_there() {
    let mut bench = Bench::new();
    for rpc in Rpc::ALL.iter().copied() {
        // Dies in the middle of the call.
        let failure = failing(&bench, rpc, Answer::exit(), LONG).await;
        assert!(failure.is_disconnected() && failure.is_uncertain(), "{failure}");
        bench.scripted.kill().await;
        // A dead socket.
        let failure = call(&bench.plugin, rpc, "vol-1", LONG).await.unwrap_err();
        assert!(failure.is_disconnected() && failure.is_uncertain(), "{failure}");
        assert!(failure.message.contains("refused"), "{failure}");
        // No socket.
        std::fs::remove_file(bench.scripted.socket()).unwrap();
        let failure = call(&bench.plugin, rpc, "vol-1", LONG).await.unwrap_err();
        assert!(failure.is_disconnected() && failure.is_uncertain(), "{failure}");
        assert!(failure.message.contains("No such file"), "{failure}");
        bench.scripted.serve();
    }
    bench.backend.assert_clean();
}

/// Obligation CO-PLUG-18.
#[tokio::test]
async fn a_long_error_text_keeps_its_code_and_harms_no_other_call() {
    let bench = Bench::new();
    let gate = Gate::new();
    bench.backend.next_for(Rpc::DeleteVolume, "other", Answer::honest().hang(&gate));
    let plugin = bench.plugin.clone();
    let other = tokio::spawn(async move { plugin.delete_volume(delete("other"), LONG).await });
    bench.backend.until("the other call is in flight", |log| log.len() == 1).await;
    for length in [20_000, 100_000] {
        let answer = Answer::fail(Code::NotFound, "é".repeat(length / 2));
        let failure = failing(&bench, Rpc::NodeStageVolume, answer, LONG).await;
        assert_eq!(
            (failure.code, failure.class, failure.origin),
            (Code::NotFound, Class::Final, Origin::Peer)
        );
        assert!(failure.message.len() <= 1024 && failure.message.ends_with("éé…"), "{}", failure.message);
    }
    gate.open();
    other.await.unwrap().unwrap();
    let connections = bench.backend.calls().iter().map(|call| call.connection).collect::<BTreeSet<_>>();
    assert_eq!(connections.len(), 1, "one connection for all");
    bench.backend.assert_clean();
}

/// Part of obligation CO-GEN-11.
#[tokio::test]
async fn broken_details_are_survived() {
    let bench = Bench::new();
    let failure =
        failing(&bench, Rpc::NodeStageVolume, Answer::broken_details(Code::Internal, "boom"), LONG).await;
    assert_eq!(
        (failure.code, failure.message.as_str(), failure.origin),
        (Code::Internal, "boom", Origin::Peer)
    );
}

/// Scenario Q15.
/// Obligations CO-PLUG-18, CO-GEN-08.
#[tokio::test]
async fn the_plugin_sees_our_deadline_and_a_plain_authority() {
    let bench = Bench::new();
    bench.backend.add_volume("vol-1", BTreeMap::new());
    for rpc in Rpc::ALL.iter().copied() {
        // Some are refused by the model; all arrive.
        let _any = call(&bench.plugin, rpc, "vol-1", Duration::from_secs(90)).await;
    }
    let calls = bench.backend.calls();
    assert_eq!(calls.iter().map(|call| call.rpc).collect::<Vec<_>>(), Rpc::ALL);
    for call in calls {
        assert_eq!(call.authority, "localhost", "{call:?}");
        // What only reads does not keep others waiting for that long.
        let reads = ["GetSnapshot", "ControllerGetVolume", "GetVolumeGroupSnapshot", "NodeGetVolumeStats"];
        let wanted = if reads.contains(&call.rpc.name()) { "5000000u" } else { "90000000u" };
        assert_eq!(call.timeout.as_deref(), Some(wanted), "{call:?}");
    }
}

/// Obligation CO-PLUG-18.
#[tokio::test]
async fn an_answer_above_four_mebibytes_is_read() {
    let bench = Bench::new();
    let next_token = "x".repeat(20 << 20);
    let reply = proto::ListVolumesResponse { entries: Vec::new(), next_token: next_token.clone() };
    bench.backend.next(Rpc::ListVolumes, Answer::reply(&reply));
    let request = proto::ListVolumesRequest::default();
    assert_eq!(bench.plugin.list_volumes(request, LONG).await.unwrap().next_token.len(), next_token.len());
}

/// Obligation CO-CTRL-08.
#[tokio::test]
async fn an_ok_without_a_usable_volume_is_doubt() {
    let bench = Bench::new();
    let volume = |id: &str| Some(proto::Volume { volume_id: id.into(), ..Default::default() });
    for (volume, told) in
        [(None, "holds no volume"), (volume(""), "has no id"), (volume(&"x".repeat(1025)), "has 1025 bytes")]
    {
        let answer = Answer::reply(&proto::CreateVolumeResponse { volume });
        let failure = failing(&bench, Rpc::CreateVolume, answer, LONG).await;
        assert_eq!((failure.class, failure.origin), (Class::Uncertain, Origin::Local));
        assert!(failure.message.contains(told), "{failure}");
        assert!(bench.records().last().unwrap().result.is_err(), "reported as it was returned");
    }
    let context = [("k".to_owned(), "v".repeat(70_000))].into();
    let answer = Answer::reply(&proto::ControllerPublishVolumeResponse { publish_context: context });
    let failure = failing(&bench, Rpc::ControllerPublishVolume, answer, LONG).await;
    assert_eq!((failure.class, failure.origin), (Class::Uncertain, Origin::Local));
}

/// Part of obligations CO-GEN-09, CO-CTRL-11.
#[tokio::test]
async fn late_work_is_found_by_the_same_request() {
    let bench = Bench::new();
    let gate = Gate::new();
    bench.backend.next(Rpc::CreateVolume, Answer::honest().hang(&gate).late());
    let failure = bench.plugin.create_volume(create("pvc"), SHORT).await.unwrap_err();
    assert!(failure.is_deadline());
    bench.backend.until("the plugin saw us go", |log| log.iter().all(|call| !call.in_flight())).await;
    assert_eq!(bench.backend.calls()[0].ended.map(|(_, how)| how), Some(End::Left));
    let made = bench.backend.volumes();
    assert_eq!(made.len(), 1, "the work went on without us");
    let volume = bench.plugin.create_volume(create("pvc"), LONG).await.unwrap();
    assert_eq!(made, [volume.volume_id.as_str()]);
    bench.plugin.delete_volume(delete(&volume.volume_id), LONG).await.unwrap();
    bench.backend.assert_clean();
}

/// Scenario A66.
#[tokio::test]
async fn one_call_per_volume_in_order_and_other_volumes_at_once() {
    let bench = Bench::new();
    for volume in ["a", "b"] {
        bench.backend.add_volume(volume, BTreeMap::new());
    }
    let gate = Gate::new();
    bench.backend.next(Rpc::NodeUnpublishVolume, Answer::honest().hang(&gate));
    let way = Way::new("a", "node-a");
    let mut tasks = Vec::new();
    for rpc in
        [Rpc::NodeUnpublishVolume, Rpc::NodeUnstageVolume, Rpc::ControllerUnpublishVolume, Rpc::DeleteVolume]
    {
        let (plugin, volume) = (bench.plugin.clone(), way.volume.clone());
        tasks.push(tokio::spawn(async move { call(&plugin, rpc, &volume, LONG).await }));
        tokio::task::yield_now().await;
    }
    // Another volume does not wait, nor do calls about none.
    call(&bench.plugin, Rpc::NodeUnstageVolume, "b", LONG).await.unwrap();
    call(&bench.plugin, Rpc::ListVolumes, "", LONG).await.unwrap();
    let about_a =
        |log: &[support::scripted::Logged]| log.iter().filter(|call| call.ask.volume() == Some("a")).count();
    assert_eq!(about_a(&bench.backend.calls()), 1);
    gate.open();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    let order = bench.backend.calls().into_iter().filter(|call| call.ask.volume() == Some("a"));
    assert_eq!(
        order.map(|call| call.rpc).collect::<Vec<_>>(),
        [Rpc::NodeUnpublishVolume, Rpc::NodeUnstageVolume, Rpc::ControllerUnpublishVolume, Rpc::DeleteVolume]
    );
    let waits = bench.records().into_iter().filter(|record| record.volume.as_deref() == Some("a"));
    assert!(waits.skip(1).all(|record| record.waited > Duration::ZERO));
    bench.backend.assert_clean();
}

#[tokio::test]
async fn waiting_for_a_turn_costs_no_deadline() {
    let bench = Bench::new();
    bench.backend.next(Rpc::DeleteVolume, Answer::honest().hang(&Gate::new()));
    let first = bench.plugin.delete_volume(delete("a"), Duration::from_millis(400));
    let second = bench.plugin.delete_volume(delete("a"), Duration::from_millis(300));
    let (first, second) = tokio::join!(first, second);
    assert!(first.unwrap_err().is_deadline());
    second.unwrap();
    assert_eq!(bench.backend.calls()[1].timeout.as_deref(), Some("300000u"));
    bench.backend.assert_clean();
}

/// The lease of a volume's host may run out while a call waits; another node may be host then.
#[tokio::test]
async fn a_call_that_waited_longer_than_its_lease_is_not_sent() {
    let bench = Bench::new();
    bench.backend.next(Rpc::DeleteVolume, Answer::honest().hang(&Gate::new()));
    let renewed = Some(tokio::time::Instant::now());
    let tenure = watch::Sender::new(Tenure { term: 1, renewed });
    let under = |lasts| {
        let lease = Lease { tenure: tenure.subscribe(), lasts, term: tenure.borrow().term };
        Terms { deadline: LONG, attempt: 1, lease: Some(lease), gate: None, alpha: Alpha::Off }
    };
    let first = bench.plugin.delete_volume(delete("a"), Duration::from_millis(400));
    let second = bench.plugin.delete_volume(delete("b"), under(Duration::ZERO));
    // It was renewed meanwhile, but too late: another may have been host in between.
    let third = bench.plugin.delete_volume(delete("a"), under(LONG));
    tenure.send_modify(|tenure| tenure.term = 2);
    let (first, second, third) = tokio::join!(first, second, third);
    assert!(first.unwrap_err().is_deadline());
    for unsent in [second.unwrap_err(), third.unwrap_err()] {
        assert!(unsent.is_unsent() && !unsent.is_uncertain() && unsent.message.contains("lease"), "{unsent}");
    }
    assert_eq!(bench.backend.calls().len(), 1, "they were not sent");
    bench.plugin.delete_volume(delete("a"), under(LONG)).await.unwrap();
    bench.backend.assert_clean();
}

/// What it was asked.
#[derive(Debug, Default)]
struct Doorkeeper(Mutex<Vec<&'static str>>);

#[async_trait]
impl wharfline::csi::Gate for Doorkeeper {
    async fn open(&self, changes: bool) -> bool {
        self.0.lock().unwrap().push(if changes { "may it change" } else { "may it read" });
        true
    }

    async fn over(&self) {
        self.0.lock().unwrap().push("over");
    }
}

/// Another call about the volume, which was given up, may be at work still when a measurement has its answer.
#[tokio::test]
async fn what_only_reads_ends_no_record_of_whom_others_were_asked_of() {
    let bench = Bench::with(Config::everything(), Alpha::Off);
    let gate = Arc::new(Doorkeeper::default());
    let keeper: Arc<dyn wharfline::csi::Gate> = Arc::clone(&gate) as _;
    let terms = || Terms {
        deadline: LONG,
        attempt: 1,
        lease: None,
        gate: Some(Arc::clone(&keeper)),
        alpha: Alpha::Off,
    };
    let way = Way::new("a", "node-a");
    let failure = bench.plugin.node_get_volume_stats(way.stats("/target"), terms()).await.unwrap_err();
    assert!(failure.is_not_found() && failure.is_over(), "{failure}");
    bench.plugin.delete_volume(delete("a"), terms()).await.unwrap();
    assert_eq!(*gate.0.lock().unwrap(), ["may it read", "may it change", "over"]);
}

#[tokio::test]
async fn a_dropped_call_is_reported_and_frees_its_volume() {
    let bench = Bench::new();
    bench.backend.next(Rpc::DeleteVolume, Answer::honest().hang(&Gate::new()));
    {
        let terms = Terms { deadline: LONG, attempt: 3, lease: None, gate: None, alpha: Alpha::Off };
        let pending = bench.plugin.delete_volume(delete("a"), terms);
        let arrived = bench.backend.until("the call is there", |log| !log.is_empty());
        tokio::select! {
            _answer = pending => panic!("it hangs"),
            () = arrived => {}
        }
    }
    let record = bench.records().pop().unwrap();
    assert_eq!((record.rpc, record.volume.as_deref(), record.attempt), (Rpc::DeleteVolume, Some("a"), 3));
    assert_eq!(record.code_name(), "CANCELLED");
    assert!(record.result.unwrap_err().is_uncertain());
    bench.plugin.delete_volume(delete("a"), LONG).await.unwrap();
    bench.backend.until("the plugin saw it go", |log| log.iter().all(|call| !call.in_flight())).await;
    assert_eq!(bench.records().len(), 2);
    assert_eq!(bench.records()[1].code_name(), "OK");
    bench.backend.assert_clean();
}

/// Obligation CO-PLUG-16.
#[tokio::test]
async fn a_restarted_plugin_is_reached_again_and_noticed() {
    let mut bench = Bench::new();
    let mut reconnects = bench.plugin.reconnects();
    call(&bench.plugin, Rpc::GetPluginInfo, "", LONG).await.unwrap();
    assert_eq!(*reconnects.borrow_and_update(), 0, "the first connection is not a reconnect");
    bench.scripted.kill().await;
    bench.backend.configure(|config| config.vendor_version = "2.0.0".into());
    bench.scripted.serve();
    // The first call may race the end of the old connection; then it is in doubt, never final.
    let info = loop {
        match bench.plugin.get_plugin_info(LONG).await {
            Ok(info) => break info,
            Err(failure) => assert!(failure.is_uncertain() && failure.is_disconnected(), "{failure}"),
        }
    };
    assert_eq!(info.vendor_version, "2.0.0");
    assert!(reconnects.has_changed().unwrap());
    assert_eq!(*reconnects.borrow_and_update(), 1);
}

/// Obligation CO-PLUG-16.
/// Once somebody vouched for the driver, the end of a connection stops calls about volumes, and no others, until
/// somebody does again.
#[tokio::test]
async fn whoever_listens_after_an_end_is_asked_about_volumes_only_when_vouched_for() {
    let mut bench = Bench::new();
    bench.plugin.get_plugin_info(LONG).await.unwrap();
    let mut ends = bench.plugin.ends();
    bench.plugin.vouch(*ends.borrow_and_update());
    let volume = bench.plugin.create_volume(create("a"), LONG).await.unwrap();
    let delete = || delete(&volume.volume_id);
    bench.scripted.kill().await;
    bench.scripted.serve();
    ends.changed().await.unwrap();
    assert!(!bench.plugin.is_vouched());
    let before = bench.backend.calls().len();
    let failure = bench.plugin.delete_volume(delete(), SHORT).await.unwrap_err();
    assert!(failure.is_unsent() && !failure.is_uncertain(), "{failure}");
    assert_eq!(bench.backend.calls().len(), before);
    let now = *ends.borrow_and_update();
    bench.plugin.get_plugin_info(LONG).await.unwrap();
    bench.plugin.vouch(now);
    bench.plugin.delete_volume(delete(), LONG).await.unwrap();
    bench.plugin.hang_up();
    assert!(!bench.plugin.is_vouched());
    bench.backend.assert_clean();
}

/// Obligations CO-IDEN-05, CO-IDEN-08.
/// Scenarios A3, Q4.
#[tokio::test]
async fn probes_travel_apart_and_one_at_a_time() {
    let bench = Bench::new();
    let gate = Gate::new();
    bench.backend.next(Rpc::Probe, Answer::honest().hang(&gate));
    bench.backend.configure(|config| config.ready = Some(false));
    let plugin = bench.plugin.clone();
    let first = tokio::spawn(async move { plugin.probe(LONG).await });
    bench.backend.until("the probe is there", |log| log.len() == 1).await;
    let plugin = bench.plugin.clone();
    let second = tokio::spawn(async move { plugin.probe(LONG).await });
    // The connection of the calls breaks; the probe's does not.
    let failure = failing(&bench, Rpc::NodeGetInfo, Answer::cut(), LONG).await;
    assert!(failure.is_disconnected());
    assert_eq!(bench.backend.calls_of(Rpc::Probe).len(), 1, "the second probe waits");
    gate.open();
    assert_eq!(first.await.unwrap(), Ok(Readiness::Starting));
    assert_eq!(second.await.unwrap(), Ok(Readiness::Starting));
    for (said, meant) in [(Some(true), Readiness::Ready), (None, Readiness::Ready)] {
        bench.backend.configure(|config| config.ready = said);
        assert_eq!(bench.plugin.probe(LONG).await, Ok(meant));
    }
    let calls = bench.backend.calls();
    assert_ne!(calls[0].connection, bench.backend.calls_of(Rpc::NodeGetInfo)[0].connection);
}

struct Nowhere;

#[async_trait]
impl Connector for Nowhere {
    async fn connect(&self) -> std::io::Result<Box<dyn Connection>> {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_never_comes_is_given_up() {
    let options = PluginOptions { connect_timeout: Duration::from_secs(5), ..PluginOptions::default() };
    let plugin = Plugin::new(Nowhere, options);
    let failure = plugin.get_plugin_info(LONG).await.unwrap_err();
    assert!(failure.is_disconnected(), "{failure}");
    assert!(failure.message.contains("within 5s"), "{failure}");
    let failure = plugin.get_plugin_info(Duration::from_secs(2)).await.unwrap_err();
    assert!(failure.is_deadline(), "{failure}");
}

/// The one end of a connection; there is no second one.
struct Once(Mutex<Option<tokio::io::DuplexStream>>);

#[async_trait]
impl Connector for Once {
    async fn connect(&self) -> std::io::Result<Box<dyn Connection>> {
        match self.0.lock().expect("not poisoned").take() {
            Some(stream) => Ok(Box::new(stream)),
            None => Err(std::io::ErrorKind::ConnectionRefused.into()),
        }
    }
}

/// Obligation CO-PLUG-18: Go's servers end a connection with GOAWAY for pings that come too often.
#[tokio::test(start_paused = true)]
async fn a_plugin_that_says_nothing_for_an_hour_gets_no_ping() {
    const HOUR: Duration = Duration::from_secs(3600);
    const HEADERS: u8 = 1;
    const PING: u8 = 6;
    let (ours, mut theirs) = tokio::io::duplex(1 << 16);
    let plugin = Plugin::new(Once(Mutex::new(Some(ours))), PluginOptions::default());
    let call = tokio::spawn(async move { plugin.get_plugin_info(HOUR).await.map(drop) });
    // An empty SETTINGS frame: it speaks HTTP/2.
    theirs.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
    let mut sent = Vec::new();
    let _ended = tokio::time::timeout(HOUR * 2, theirs.read_to_end(&mut sent)).await;
    assert!(call.await.unwrap().unwrap_err().is_deadline());
    let (mut kinds, mut rest) = (Vec::new(), &sent[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len()..]);
    while let [a, b, c, kind, ..] = rest {
        kinds.push(*kind);
        let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        rest = &rest[(9 + length).min(rest.len())..];
    }
    assert!(kinds.contains(&HEADERS) && !kinds.contains(&PING), "{kinds:?}");
}

/// Obligations CO-CTRL-72, CO-GEN-07, CO-H13-01.
/// Scenario Q3.
#[tokio::test]
async fn unknown_capabilities_do_no_harm() {
    let bench = Bench::new();
    bench.backend.configure(|config| {
        config.services.push(3);
        config.group = vec![7, 1, 1];
        config.services.push(999);
        config.expansion = vec![1, 77];
        config.controller.extend([999, 6, 6, 0]);
        config.node.push(-5);
    });
    let plugin = bench.plugin.get_plugin_capabilities(LONG).await.unwrap();
    assert!(plugin.services.controller_service && plugin.expansion.online && !plugin.expansion.offline);
    let controller = bench.plugin.controller_get_capabilities(LONG).await.unwrap();
    assert!(controller.list_snapshots && !controller.publish_readonly);
    assert_eq!(
        bench.plugin.node_get_capabilities(LONG).await.unwrap().names(),
        ["STAGE_UNSTAGE_VOLUME", "SINGLE_NODE_MULTI_WRITER"]
    );
    let group = bench.plugin.group_controller_get_capabilities(LONG).await.unwrap();
    assert_eq!(group.names(), ["CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT"]);
    bench.backend.configure(|config| config.controller.clear());
    assert!(bench.plugin.controller_get_capabilities(LONG).await.unwrap().names().is_empty());
    // Fields 99 (text), 98 (a number) and 97 (a message), before and behind what is known.
    let strange = [&[0x9a, 0x06, 2, b'h', b'i', 0x90, 0x06, 7][..], &[0x8a, 0x06, 2, 0x08, 0x01]];
    let known = proto::NodeGetInfoResponse { node_id: "node-a".into(), ..Default::default() };
    let bytes = [strange[0], &prost::Message::encode_to_vec(&known), strange[1]].concat();
    bench.backend.next(Rpc::NodeGetInfo, Answer::raw(bytes));
    assert_eq!(bench.plugin.node_get_info(LONG).await, Ok(known));
}

/// Obligation CO-PLUG-02.
#[tokio::test]
async fn a_whole_life_leaves_nothing() {
    let bench = Bench::new();
    let volume = bench.plugin.create_volume(create("pvc-1"), LONG).await.unwrap();
    let mut way = Way { volume_context: volume.volume_context, ..Way::new(&volume.volume_id, "node-a") };
    let attached = bench.plugin.controller_publish_volume(way.attach(), LONG).await.unwrap();
    way.publish_context = attached.publish_context;
    bench.plugin.node_stage_volume(way.stage(), LONG).await.unwrap();
    bench.plugin.node_publish_volume(way.publish("/target"), LONG).await.unwrap();
    assert_eq!(bench.backend.left().len(), 4);
    assert!(bench.backend.left().contains(&Leftover::Volume(volume.volume_id.clone())));
    bench.plugin.node_unpublish_volume(way.unpublish("/target"), LONG).await.unwrap();
    bench.plugin.node_unstage_volume(way.unstage(), LONG).await.unwrap();
    bench.plugin.controller_unpublish_volume(way.detach(), LONG).await.unwrap();
    bench.plugin.delete_volume(delete(&volume.volume_id), LONG).await.unwrap();
    bench.backend.assert_clean();
    assert!(bench.records().iter().all(|record| record.result.is_ok() && record.attempt == 1));
    assert_eq!(bench.records().len(), 8);
}
