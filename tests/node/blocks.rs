//! Which blocks of a snapshot hold something, asked of the daemon: what the driver is asked, and what is told of its answers.
use serde_json::{Value, json};
use wharfline::api::Snapshot;
use wharfline::api::blocks::{Block, Line, Part, Question};
use wharfline::csi::{Code, Plugin, PluginOptions, Rpc, UnixConnector, proto};

use crate::support::node::{NODE, Rig};
use crate::support::scripted::{Answer, Ask, Config, requests};

const MIB: i64 = 1 << 20;
const ALLOCATED: Rpc = Rpc::GetMetadataAllocated;
const DELTA: Rpc = Rpc::GetMetadataDelta;

/// A volume with two snapshots, whose Snapshots are `default/one` and `default/two`.
struct Scene {
    rig: Rig,
    handles: [String; 2],
}

impl Scene {
    async fn new(config: Config) -> Self {
        let rig = Rig::new(config).await;
        let driver = Plugin::new(UnixConnector::new(rig.plugin.socket()).unwrap(), PluginOptions::default());
        let wait = std::time::Duration::from_secs(20);
        let volume = driver.create_volume(requests::create("pvc"), wait).await.unwrap().volume_id;
        let mut handles = Vec::new();
        for name in ["one", "two"] {
            let taken = driver.create_snapshot(requests::snapshot(&volume, name), wait).await.unwrap();
            handles.push(taken.snapshot_id);
        }
        rig.plugin_object(json!({ "alpha": true })).await;
        let scene = Self { rig, handles: handles.try_into().unwrap() };
        // The daemon sees on its own time that what is alpha may be used.
        let mut beat = tokio::time::interval(std::time::Duration::from_millis(5));
        let end = tokio::time::Instant::now() + wait;
        while scene.ask(scene.question(1, None)).await.is_err() {
            assert!(tokio::time::Instant::now() < end, "alpha was switched on, and nothing is asked");
            beat.tick().await;
        }
        scene
    }

    fn snapshot(&self, number: usize, status: Value) -> Snapshot {
        let mut all = json!({ "exists": "Up", "ready": true, "handle": self.handles[number],
            "creationTime": format!("2026-01-0{}T00:00:00Z", number + 1),
            "of": { "plugin": "scripted", "volume": "vol-1", "uid": "u", "handle": "v", "volumeMode": "Block" } });
        let fields = status.as_object().unwrap().clone();
        all["of"].as_object_mut().unwrap().extend(fields);
        let name = if number == 0 { "one" } else { "two" };
        let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Snapshot",
            "metadata": { "name": name, "namespace": "default" }, "spec": {}, "status": all });
        serde_json::from_value(object).unwrap()
    }

    fn question(&self, of: usize, since: Option<usize>) -> Question {
        let of_it = |number: usize| self.snapshot(number, json!({}));
        Question {
            snapshot: of_it(of),
            claim_name: String::new(),
            since: since.map(of_it),
            starting_offset: 0,
        }
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
    let api: kube::Api<Snapshot> = scene.rig.world.namespaced();
    let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Snapshot", "metadata": { "name": "two" },
        "spec": { "source": { "claimName": "data" } } });
    scene.rig.world.create(&api, object).await;
    let secret = json!({ "secret": { "namespace": "default", "name": "s" } });
    let with_secret = scene.snapshot(1, secret);
    let of = serde_json::to_value(&with_secret.status.as_ref().unwrap().of).unwrap();
    let status = json!({ "of": of, "exists": "Up", "ready": true, "handle": scene.handles[1], "observedEpoch": 1,
        "controller": { "nodeName": NODE, "epoch": 1 } });
    scene.rig.world.status(&api, "two", status).await;
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
    let files = scene.snapshot(1, json!({ "volumeMode": "Filesystem" }));
    refused(Question { snapshot: files, ..scene.question(1, None) }, "is of a file system").await;
    refused(scene.question(0, Some(1)), "was cut after").await;
    refused(scene.question(1, Some(1)), "--since names Snapshot \"default/two\" itself").await;
    refused(Question { starting_offset: -1, ..scene.question(1, None) }, "--from -1").await;
    let elsewhere = scene.snapshot(1, json!({ "plugin": "nowhere" }));
    refused(Question { snapshot: elsewhere, ..scene.question(1, None) }, "\"nowhere\"").await;
    let secret = scene.snapshot(1, json!({ "secret": { "namespace": "default", "name": "none" } }));
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
    let scene = Scene::new(Config::everything()).await;
    let ranges = [(0, 5), (10, 20), (40, 1), (50, 9)];
    let backend = &scene.rig.backend;
    backend.next(ALLOCATED, Answer::stream([part(&ranges[..2])]).then_cut());
    backend.next(ALLOCATED, Answer::stream([part(&ranges[2..3])]).then_fail(Code::Unavailable, "moving"));
    backend.next(ALLOCATED, Answer::stream([part(&ranges[3..])]));
    let lines = scene.ask(scene.question(1, None)).await.unwrap();
    assert_eq!((blocks(&lines), lines.last()), (ranges.to_vec(), Some(&Line::Complete)));
    assert_eq!(scene.last_allocated().starting_offset, 41);

    let before = scene.asked(ALLOCATED);
    backend.next(ALLOCATED, Answer::stream([part(&ranges[..1])]).then_fail(Code::Unavailable, "moving"));
    for _ in 0..9 {
        backend.next(ALLOCATED, Answer::fail(Code::Unavailable, "moving"));
    }
    let lines = scene.ask(scene.question(1, None)).await.unwrap();
    assert_eq!(blocks(&lines), ranges[..1]);
    let Some(Line::Interrupted(over)) = lines.last() else { panic!("{lines:?}") };
    assert!(over.resume_at == Some(5) && over.message.contains("moving"), "{over:?}");
    assert_eq!(scene.asked(ALLOCATED) - before, 4);
    backend.honest(ALLOCATED);

    // Whatever it told before.
    backend.next(ALLOCATED, Answer::stream([part(&ranges[1..2]), part(&ranges[..1])]));
    let lines = scene.ask(scene.question(1, None)).await.unwrap();
    let Some(Line::Interrupted(over)) = lines.last() else { panic!("{lines:?}") };
    assert_eq!(over.resume_at, None, "{over:?}");
}
