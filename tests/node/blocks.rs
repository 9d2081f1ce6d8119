//! Which blocks of a snapshot hold something, asked of the daemon: what the driver is asked, and what is told of its answers.
use serde_json::{Value, json};
use wharfline::api::Snapshot;
use wharfline::api::blocks::{Block, Line, Part, Question};
use wharfline::csi::{Code, Plugin, PluginOptions, Rpc, UnixConnector, proto};

use crate::support::node::{NODE, Rig, until};
use crate::support::scripted::{Answer, Ask, Config, requests};

const MIB: i64 = 1 << 20;
const ALLOCATED: Rpc = Rpc::GetMetadataAllocated;
const DELTA: Rpc = Rpc::GetMetadataDelta;

/// A volume with two snapshots, whose Snapshots are `default/one` and `default/two`.
struct Scene {
    rig: Rig,
    made: Vec<Snapshot>,
    handles: Vec<String>,
}

impl Scene {
    async fn new(config: Config) -> Self {
        Self::with(config, wharfline::node::Blocks::default()).await
    }

    async fn with(config: Config, blocks: wharfline::node::Blocks) -> Self {
        let mut rig = Rig::idle(config).await;
        rig.options.blocks = blocks;
        rig.start().await;
        rig.register().await;
        rig.ready().await;
        let driver = Plugin::new(UnixConnector::new(rig.plugin.socket()).unwrap(), PluginOptions::default());
        let wait = std::time::Duration::from_secs(20);
        let volume = driver.create_volume(requests::create("pvc"), wait).await.unwrap().volume_id;
        let mut scene = Self { rig, made: Vec::new(), handles: Vec::new() };
        for name in ["one", "two"] {
            let taken = driver.create_snapshot(requests::snapshot(&volume, name), wait).await.unwrap();
            scene.handles.push(taken.snapshot_id);
            let api: kube::Api<Snapshot> = scene.rig.world.namespaced();
            let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Snapshot",
                "metadata": { "name": name }, "spec": { "source": { "claimName": "data" } } });
            scene.made.push(scene.rig.world.create(&api, object).await);
            let status = scene.snapshot(scene.made.len() - 1, &json!({})).status;
            scene.rig.world.status(&api, name, serde_json::to_value(status).unwrap()).await;
        }
        scene.rig.plugin_object(json!({ "alpha": true })).await;
        // The daemon sees on its own time that what is alpha may be used, and that it makes the snapshots' calls.
        let mut beat = tokio::time::interval(std::time::Duration::from_millis(5));
        let end = tokio::time::Instant::now() + wait;
        while let Err(told) = scene.ask(scene.question(1, None)).await {
            assert!(tokio::time::Instant::now() < end, "nothing is asked: {told}");
            beat.tick().await;
        }
        scene
    }

    /// The Snapshot, with these fields more of what it is of.
    fn snapshot(&self, number: usize, of: &Value) -> Snapshot {
        let mut whole = json!({ "plugin": "scripted", "volume": "vol-1", "uid": "u", "handle": "v",
            "volumeMode": "Block" });
        whole.as_object_mut().unwrap().extend(of.as_object().unwrap().clone());
        let status = json!({ "of": whole, "exists": "Up", "ready": true, "handle": self.handles[number], "handlesChecked": [self.handles[number]],
            "creationTime": format!("2026-01-0{}T00:00:00Z", number + 1), "observedEpoch": 1,
            "controller": { "nodeName": NODE, "epoch": 1 } });
        Snapshot { status: serde_json::from_value(status).unwrap(), ..self.made[number].clone() }
    }

    fn question(&self, of: usize, since: Option<usize>) -> Question {
        let of_it = |number: usize| self.snapshot(number, &json!({}));
        Question {
            snapshot: of_it(of),
            claim_name: String::new(),
            since: since.map(of_it),
            starting_offset: 0,
        }
    }

    async fn alpha(&self, on: bool) {
        let api: kube::Api<wharfline::api::Plugin> = self.rig.world.all();
        let patch = kube::api::Patch::Merge(json!({ "spec": { "alpha": on } }));
        api.patch("scripted", &kube::api::PatchParams::default(), &patch).await.unwrap();
    }

    /// All lines of an answer, or why there is none.
    async fn ask(&self, question: Question) -> Result<Vec<Line>, String> {
        let mut answer = self.rig.options.blocks.ask(question).await.map_err(|refusal| refusal.message)?;
        let mut lines = Vec::new();
        while let Some(line) = answer.recv().await {
            lines.push(line);
        }
        Ok(lines)
    }

    fn asked(&self, rpc: Rpc) -> usize {
        self.rig.backend.calls_of(rpc).len()
    }

    fn last_allocated(&self) -> proto::GetMetadataAllocatedRequest {
        match self.rig.backend.calls_of(ALLOCATED).pop().unwrap().ask {
            Ask::GetMetadataAllocated(of) => of,
            other => panic!("{other:?}"),
        }
    }
}

fn blocks(lines: &[Line]) -> Vec<(i64, i64)> {
    let of = |line: &Line| match line {
        Line::Part(part) => part.blocks.iter().map(|block| (block.offset, block.size)).collect(),
        Line::Complete | Line::Interrupted(_) => Vec::new(),
    };
    lines.iter().flat_map(of).collect()
}

fn part(ranges: &[(i64, i64)]) -> proto::GetMetadataAllocatedResponse {
    let of = |(byte_offset, size_bytes): &(i64, i64)| proto::BlockMetadata {
        byte_offset: *byte_offset,
        size_bytes: *size_bytes,
    };
    proto::GetMetadataAllocatedResponse {
        block_metadata_type: proto::BlockMetadataType::VariableLength as i32,
        volume_capacity_bytes: MIB,
        block_metadata: ranges.iter().map(of).collect(),
    }
}

fn delta(ranges: &[(i64, i64)]) -> proto::GetMetadataDeltaResponse {
    let proto::GetMetadataAllocatedResponse { block_metadata_type, volume_capacity_bytes, block_metadata } =
        part(ranges);
    proto::GetMetadataDeltaResponse { block_metadata_type, volume_capacity_bytes, block_metadata }
}

/// Obligation CO-META-01.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_snapshot_of_a_block_volume_holds_and_what_changed_is_asked_as_it_has_to_be() {
    let scene = Scene::new(Config::everything()).await;
    scene.rig.secret("s", "hunter22").await;
    let (held, changed) = (vec![(0, 4096), (8192, 4096), (65536, 4096)], vec![(1024, 3072), (16384, 9216)]);
    scene.rig.backend.configure(|config| {
        config.allocated.clone_from(&held);
        config.changed = Some(changed.clone());
    });
    let lines = scene.ask(scene.question(1, None)).await.unwrap();
    assert_eq!(blocks(&lines), held);
    let first = Part {
        capacity: MIB,
        blocks: vec![Block { offset: 0, size: 4096 }, Block { offset: 8192, size: 4096 }],
    };
    assert_eq!((&lines[0], lines.last()), (&Line::Part(first), Some(&Line::Complete)));
    let golden = proto::GetMetadataAllocatedRequest {
        snapshot_id: scene.handles[1].clone(),
        starting_offset: 0,
        max_results: 0,
        secrets: std::collections::BTreeMap::new(),
    };
    assert_eq!(scene.last_allocated(), golden);

    let later = Question { starting_offset: 8192, ..scene.question(1, None) };
    assert_eq!(blocks(&scene.ask(later).await.unwrap()), held[1..]);
    assert_eq!(
        scene.last_allocated(),
        proto::GetMetadataAllocatedRequest { starting_offset: 8192, ..golden }
    );

    assert_eq!(blocks(&scene.ask(scene.question(1, Some(0))).await.unwrap()), changed);
    let golden = proto::GetMetadataDeltaRequest {
        base_snapshot_id: scene.handles[0].clone(),
        target_snapshot_id: scene.handles[1].clone(),
        starting_offset: 0,
        max_results: 0,
        secrets: std::collections::BTreeMap::new(),
    };
    let Ask::GetMetadataDelta(asked) = scene.rig.backend.calls_of(DELTA).pop().unwrap().ask else { panic!() };
    assert_eq!(asked, golden);

    // With what its Secret holds.
    let with_secret = scene.snapshot(1, &json!({ "secret": { "namespace": "default", "name": "s" } }));
    let api: kube::Api<Snapshot> = scene.rig.world.namespaced();
    scene.rig.world.status(&api, "two", serde_json::to_value(&with_secret.status).unwrap()).await;
    scene.ask(Question { snapshot: with_secret, ..scene.question(1, None) }).await.unwrap();
    let sent = scene.last_allocated().secrets;
    assert_eq!(sent.get("password").map(String::as_str), Some("hunter22"));
}

/// Obligation CO-META-01.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_asked_is_refused_without_a_call() {
    let scene = Scene::new(Config::everything()).await;
    let before = (scene.asked(ALLOCATED), scene.asked(DELTA));
    let refused = async |question: Question, said: &str| {
        let told = scene.ask(question).await.unwrap_err();
        assert!(told.contains(said), "{told}");
    };
    let files = scene.snapshot(1, &json!({ "volumeMode": "Filesystem" }));
    refused(Question { snapshot: files, ..scene.question(1, None) }, "is of a file system").await;
    refused(scene.question(0, Some(1)), "was cut after").await;
    refused(scene.question(1, Some(1)), "--since names Snapshot \"default/two\" itself").await;
    refused(Question { starting_offset: -1, ..scene.question(1, None) }, "--from -1").await;
    let elsewhere = scene.snapshot(1, &json!({ "plugin": "nowhere" }));
    refused(Question { snapshot: elsewhere, ..scene.question(1, None) }, "\"nowhere\"").await;
    let mut far = scene.snapshot(1, &json!({}));
    far.status.as_mut().unwrap().controller.as_mut().unwrap().node_name = "far".to_owned();
    refused(Question { snapshot: far, ..scene.question(1, None) }, "node \"far\" makes the calls").await;
    let mut other = scene.snapshot(1, &json!({}));
    other.metadata.uid = Some("of another cluster".to_owned());
    refused(Question { snapshot: other, ..scene.question(1, None) }, "does not know Snapshot").await;
    let secret = scene.snapshot(1, &json!({ "secret": { "namespace": "default", "name": "none" } }));
    refused(Question { snapshot: secret, ..scene.question(1, None) }, "default/none").await;
    assert_eq!((scene.asked(ALLOCATED), scene.asked(DELTA)), before);

    // What the driver itself does not know of changes is said with what to do.
    scene.rig.backend.configure(|config| config.changed = None);
    refused(scene.question(1, Some(0)), "leave --since out").await;
}

/// Obligation CO-META-03.
/// A driver that breaks off is asked on where it was; one that says nothing new again and again
/// is not asked for ever, and one that contradicts itself is not believed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_that_breaks_goes_on_and_one_that_does_not_come_to_an_end_says_where_it_was() {
    let hasty = wharfline::node::Blocks::with_pauses([std::time::Duration::from_millis(1); 4]);
    let scene = Scene::with(Config::everything(), hasty).await;
    let ranges = [(0, 5), (10, 20), (40, 1), (50, 9)];
    let backend = &scene.rig.backend;
    backend.next(ALLOCATED, Answer::stream([part(&ranges[..2])]).then_fail(Code::Internal, "moving"));
    backend.next(ALLOCATED, Answer::stream([part(&ranges[2..3])]).then_fail(Code::Unavailable, "moving"));
    backend.next(ALLOCATED, Answer::stream([part(&ranges[3..])]));
    let lines = scene.ask(scene.question(1, None)).await.unwrap();
    assert_eq!((blocks(&lines), lines.last()), (ranges.to_vec(), Some(&Line::Complete)));
    assert_eq!(scene.last_allocated().starting_offset, 41);

    let before = scene.asked(ALLOCATED);
    backend.next(ALLOCATED, Answer::stream([part(&ranges[..1])]).then_fail(Code::Unavailable, "moving"));
    // It is away for good.
    for _ in 0..9 {
        backend.next(ALLOCATED, Answer::fail(Code::Unavailable, "moving"));
    }
    let lines = scene.ask(scene.question(1, None)).await.unwrap();
    assert_eq!(blocks(&lines), ranges[..1]);
    let Some(Line::Interrupted(over)) = lines.last() else { panic!("{lines:?}") };
    assert!(over.resume_at == Some(5) && over.message.contains("moving"), "{over:?}");
    assert_eq!(scene.asked(ALLOCATED) - before, 5);
    backend.honest(ALLOCATED);

    // Whatever it told before.
    backend.next(ALLOCATED, Answer::stream([part(&ranges[1..2]), part(&ranges[..1])]));
    let lines = scene.ask(scene.question(1, None)).await.unwrap();
    let Some(Line::Interrupted(over)) = lines.last() else { panic!("{lines:?}") };
    assert_eq!(over.resume_at, None, "{over:?}");
}

/// Obligation CO-META-01.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_does_not_say_that_it_has_it_is_not_asked() {
    let scene = Scene::new(Config::everything()).await;
    let before = scene.asked(ALLOCATED);
    scene.alpha(false).await;
    let mut beat = tokio::time::interval(std::time::Duration::from_millis(5));
    let told = loop {
        beat.tick().await;
        if let Err(told) = scene.ask(scene.question(1, None)).await {
            break told;
        }
    };
    assert!(told.contains("`spec.alpha: true` of Plugin \"scripted\""), "{told}");
    scene.alpha(true).await;
    // Of its services, all but SNAPSHOT_METADATA_SERVICE.
    scene.rig.backend.configure(|config| config.services.retain(|number| *number != 4));
    let mut scene = scene;
    scene.rig.plugin.kill().await;
    scene.rig.plugin.serve();
    let told = loop {
        beat.tick().await;
        match scene.ask(scene.question(1, None)).await {
            Err(told) if told.contains("SNAPSHOT_METADATA_SERVICE") && !told.contains("alpha") => break told,
            Ok(_) | Err(_) => {}
        }
    };
    assert!(told.contains("scripted"), "{told}");
    assert!(scene.asked(ALLOCATED) >= before);
}

/// Obligation CO-META-03.
/// A driver that dies is asked on when it is back; nothing is asked for behind the end of the volume.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_outlives_its_driver_and_ends_where_the_volume_does() {
    let mut scene = Scene::new(Config::everything()).await;
    let gate = crate::support::scripted::Gate::new();
    let (first, rest) = ([(0, 4096)], vec![(0, 4096), (MIB - 4096, 4096)]);
    scene.rig.backend.configure(|config| config.allocated.clone_from(&rest));
    scene.rig.backend.next(ALLOCATED, Answer::stream([part(&first)]).then_hang(&gate));
    let mut answer = scene.rig.options.blocks.ask(scene.question(1, None)).await.unwrap();
    let Some(Line::Part(told)) = answer.recv().await else { panic!() };
    assert_eq!(told.blocks, [Block { offset: 0, size: 4096 }]);
    scene.rig.plugin.kill().await;
    scene.rig.plugin.serve();
    let mut lines = Vec::new();
    while let Some(line) = answer.recv().await {
        lines.push(line);
    }
    assert_eq!((blocks(&lines), lines.last()), (rest[1..].to_vec(), Some(&Line::Complete)));
    assert_eq!(scene.last_allocated().starting_offset, 4096);

    // All bytes were told, and not that this was all: that is asked for, and no byte is told again.
    let before = scene.asked(ALLOCATED);
    let broken = Answer::stream([part(&rest)]).then_fail(Code::Unavailable, "moving");
    scene.rig.backend.next(ALLOCATED, broken);
    let lines = scene.ask(scene.question(1, None)).await.unwrap();
    assert_eq!((blocks(&lines), lines.last()), (rest, Some(&Line::Complete)));
    assert_eq!((scene.asked(ALLOCATED) - before, scene.last_allocated().starting_offset), (2, MIB - 1));
}

/// Obligation CO-META-06.
/// Who goes away holds up nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_goes_away_ends_the_stream() {
    let scene = Scene::new(Config::everything()).await;
    let gate = crate::support::scripted::Gate::new();
    scene.rig.backend.next(ALLOCATED, Answer::stream([part(&[(0, 4096)])]).then_hang(&gate));
    let mut answer = scene.rig.options.blocks.ask(scene.question(1, None)).await.unwrap();
    assert!(matches!(answer.recv().await, Some(Line::Part(_))));
    drop(answer);
    scene.rig.backend.until("the stream is over", |log| log.iter().all(|call| !call.in_flight())).await;
}

/// Obligation CO-META-06.
/// Also between two streams of one list; when it has ended, they go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_list_is_about_is_not_deleted_however_often_its_streams_break() {
    let scene = Scene::new(Config::everything()).await;
    let gate = crate::support::scripted::Gate::new();
    let (world, backend) = (&scene.rig.world, &scene.rig.backend);
    backend.next(DELTA, Answer::stream([delta(&[(0, 4096)])]).then_fail(Code::Unavailable, "moving"));
    backend.next(DELTA, Answer::stream([delta(&[(4096, 4096)])]).then_hang(&gate));
    let mut answer = scene.rig.options.blocks.ask(scene.question(1, Some(0))).await.unwrap();
    let Some(Line::Part(_)) = answer.recv().await else { panic!() };
    let api: kube::Api<Snapshot> = world.namespaced();
    for name in ["one", "two"] {
        world.delete(&api, name).await;
        let waits = |s: &Value| s["status"]["taking"]["message"].to_string().contains("snapshot blocks");
        world.until(&api, name, "waits for the list", waits).await;
        let told = scene.ask(scene.question(1, Some(0))).await.unwrap_err();
        assert!(told.contains("is being deleted"), "{told}");
    }
    let Some(Line::Part(told)) = answer.recv().await else { panic!() };
    assert_eq!(told.blocks, [Block { offset: 4096, size: 4096 }]);
    assert_eq!(scene.asked(Rpc::DeleteSnapshot), 0);
    gate.open();
    while answer.recv().await.is_some() {}
    for name in ["one", "two"] {
        world.until(&api, name, "deleted", |s| s["status"]["exists"] == "Down").await;
    }
    let log = backend.calls();
    let last = log.iter().rposition(|call| call.rpc == DELTA).unwrap();
    let deleted = log.iter().position(|call| call.rpc == Rpc::DeleteSnapshot).unwrap();
    assert!(last < deleted, "{last} {deleted}");
}

/// Who makes its calls next could delete it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_ends_when_the_calls_become_another_nodes() {
    let scene = Scene::new(Config::everything()).await;
    let gate = crate::support::scripted::Gate::new();
    scene.rig.backend.next(ALLOCATED, Answer::stream([part(&[(0, 4096)])]).then_hang(&gate));
    let mut answer = scene.rig.options.blocks.ask(scene.question(1, None)).await.unwrap();
    let Some(Line::Part(_)) = answer.recv().await else { panic!() };
    let api: kube::Api<Snapshot> = scene.rig.world.namespaced();
    scene.rig.world.status(&api, "two", json!({ "askedToRelease": 1 })).await;
    let Some(Line::Interrupted(over)) = answer.recv().await else { panic!() };
    assert!(over.resume_at == Some(4096) && over.message.contains("no more"), "{over:?}");
    scene.rig.world.until(&api, "two", "released", |s| s["status"]["releasedEpoch"] == 1).await;
}

/// Where it is to be asked on is behind what was told, whatever came from the driver by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_that_ends_with_nobody_reading_leaves_no_gap() {
    let scene = Scene::new(Config::everything()).await;
    let gate = crate::support::scripted::Gate::new();
    let parts = [(0, 4096), (8192, 4096), (65536, 4096)].map(|range| part(&[range]));
    scene.rig.backend.next(ALLOCATED, Answer::stream(parts).then_hang(&gate));
    let mut answer = scene.rig.options.blocks.ask(scene.question(1, None)).await.unwrap();
    until(|| !answer.is_empty(), "the first part is there to be read").await;
    let api: kube::Api<Snapshot> = scene.rig.world.namespaced();
    scene.rig.world.status(&api, "two", json!({ "askedToRelease": 1 })).await;
    scene.rig.world.until(&api, "two", "released", |s| s["status"]["releasedEpoch"] == 1).await;
    // Nothing new is begun.
    let told = scene.ask(scene.question(1, None)).await.unwrap_err();
    assert!(told.contains("no node makes the calls"), "{told}");
    let mut lines = Vec::new();
    while let Some(line) = answer.recv().await {
        lines.push(line);
    }
    let Some(Line::Interrupted(over)) = lines.last() else { panic!("{lines:?}") };
    let end = blocks(&lines).last().map(|(offset, size)| offset + size);
    assert_eq!((over.resume_at, end), (Some(4096), Some(4096)), "{lines:?}");
}

/// Also what it is compared with: who makes its calls next may delete it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_ends_when_the_calls_of_its_base_become_another_nodes() {
    let scene = Scene::new(Config::everything()).await;
    let gate = crate::support::scripted::Gate::new();
    scene.rig.backend.next(DELTA, Answer::stream([delta(&[(0, 4096)])]).then_hang(&gate));
    let mut answer = scene.rig.options.blocks.ask(scene.question(1, Some(0))).await.unwrap();
    let Some(Line::Part(_)) = answer.recv().await else { panic!() };
    let api: kube::Api<Snapshot> = scene.rig.world.namespaced();
    scene.rig.world.status(&api, "one", json!({ "askedToRelease": 1 })).await;
    let Some(Line::Interrupted(over)) = answer.recv().await else { panic!() };
    assert!(over.resume_at == Some(4096) && over.message.contains("compared with"), "{over:?}");
    scene.rig.world.until(&api, "one", "released", |s| s["status"]["releasedEpoch"] == 1).await;
    let told = scene.ask(scene.question(1, Some(0))).await.unwrap_err();
    assert!(told.contains("no node makes the calls"), "{told}");
}

/// A picture that another Snapshot has, too, is listed under that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_listed_by_another_name_is_not_deleted_and_what_is_not_its_own_is_not_listed() {
    let scene = Scene::new(Config::everything()).await;
    let api: kube::Api<Snapshot> = scene.rig.world.namespaced();
    let mut anothers = scene.snapshot(1, &json!({}));
    let shared =
        json!([{ "type": "HandleShared", "status": "True", "reason": "HandleOfAnother", "message": "one" }]);
    anothers.status.as_mut().unwrap().conditions = serde_json::from_value(shared).unwrap();
    let told = scene.ask(Question { snapshot: anothers, ..scene.question(1, None) }).await.unwrap_err();
    assert!(told.contains("is not ready"), "{told}");

    let gate = crate::support::scripted::Gate::new();
    scene
        .rig
        .backend
        .next(ALLOCATED, Answer::stream([part(&[(0, 4096)])]).then_fail(Code::Unavailable, "moving"));
    scene.rig.backend.next(ALLOCATED, Answer::stream([part(&[(8192, 4096)])]).then_hang(&gate));
    // Snapshot "one" with the handle of "two", as a person has registered it.
    let mut question = scene.question(0, None);
    question.snapshot.spec.source.handle.clone_from(&scene.handles[1]);
    question.snapshot.status.as_mut().unwrap().handle.clone_from(&scene.handles[1]);
    let mut answer = scene.rig.options.blocks.ask(question).await.unwrap();
    assert!(matches!(answer.recv().await, Some(Line::Part(_))));
    scene.rig.world.delete(&api, "two").await;
    let waits = |s: &Value| s["status"]["taking"]["message"].to_string().contains("snapshot blocks");
    scene.rig.world.until(&api, "two", "waits for the list", waits).await;
    gate.open();
    while answer.recv().await.is_some() {}
    scene.rig.world.until(&api, "two", "deleted", |s| s["status"]["exists"] == "Down").await;
}

/// Of another size it is another volume.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_contradict_one_another_are_not_one_list() {
    let scene = Scene::new(Config::everything()).await;
    let larger =
        proto::GetMetadataAllocatedResponse { volume_capacity_bytes: 4 * MIB, ..part(&[(8192, 4096)]) };
    let broken = Answer::stream([part(&[(0, 4096)])]).then_fail(Code::Unavailable, "moving");
    scene.rig.backend.next(ALLOCATED, broken);
    scene.rig.backend.next(ALLOCATED, Answer::stream([larger]));
    let lines = scene.ask(scene.question(1, None)).await.unwrap();
    let Some(Line::Interrupted(over)) = lines.last() else { panic!("{lines:?}") };
    assert!(over.resume_at.is_none() && over.message.contains("capacity changes"), "{over:?}");
    assert_eq!(blocks(&lines), [(0, 4096)]);
}
