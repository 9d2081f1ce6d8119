//! One call at a time about one thing, whatever the thing is and however it is called.
use support::scripted::inside;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use wharfline::csi::LONGEST_READ;

use super::*;

type Called = JoinHandle<Result<(), Failure>>;

/// Begins a call, and lets it come as far as it can.
async fn begin(bench: &Bench, call: impl Future<Output = Result<(), Failure>> + Send + 'static) -> Called {
    let task = tokio::spawn(call);
    // Only tasks of this test run meanwhile: whoever does not wait is at the plugin before the next line.
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
    let _everybody_who_could = call_of_none(bench).await;
    task
}

/// A call about nothing never waits: when it is answered, those that were sent before have arrived.
async fn call_of_none(bench: &Bench) -> Result<(), Failure> {
    call(&bench.plugin, Rpc::ListVolumes, "", LONG).await
}

fn arrived(bench: &Bench, rpc: Rpc) -> usize {
    bench.backend.calls_of(rpc).len()
}

const OK: fn() -> Answer = || Answer::fail(Code::Internal, "answered");

/// Obligation CO-GEN-01.
#[tokio::test]
async fn no_call_that_names_a_volume_begins_before_the_one_before_has_ended() {
    let naming = Rpc::ALL.iter().copied().filter(|rpc| {
        let reads = matches!(rpc, Rpc::ControllerGetVolume | Rpc::NodeGetVolumeStats);
        let of_volume = rpc.name().ends_with("Volume") || *rpc == Rpc::ValidateVolumeCapabilities;
        let of_sources = matches!(rpc, Rpc::CreateSnapshot | Rpc::CreateVolumeGroupSnapshot);
        (of_volume || of_sources) && !reads && *rpc != Rpc::CreateVolume
    });
    let naming = naming.collect::<Vec<_>>();
    assert_eq!(naming.len(), 13, "{naming:?}");
    for hanging in naming.iter().copied() {
        let bench = Bench::new();
        let gate = Gate::new();
        for rpc in &naming {
            bench.backend.always(*rpc, OK());
        }
        bench.backend.honest(hanging);
        bench.backend.next(hanging, OK().hang(&gate));
        bench.backend.always(hanging, OK());
        let calling = |rpc| {
            let plugin = bench.plugin.clone();
            async move { call(&plugin, rpc, "v", LONG).await }
        };
        let mut tasks = vec![begin(&bench, calling(hanging)).await];
        bench.backend.until("the first one hangs", |log| log.iter().any(|call| call.rpc == hanging)).await;
        for rpc in naming.iter().copied().filter(|rpc| *rpc != hanging) {
            tasks.push(begin(&bench, calling(rpc)).await);
            assert_eq!(arrived(&bench, rpc), 0, "{rpc} began beside {hanging}");
        }
        // What only reads does not wait, and does not begin.
        for rpc in [Rpc::ControllerGetVolume, Rpc::NodeGetVolumeStats] {
            let failure = call(&bench.plugin, rpc, "v", LONG).await.unwrap_err();
            assert!(failure.is_busy() && failure.is_unsent() && !failure.is_uncertain(), "{failure}");
        }
        // Another volume goes on.
        assert_eq!(
            call(&bench.plugin, Rpc::NodeUnstageVolume, "w", LONG).await.unwrap_err().message,
            "answered"
        );
        gate.open();
        for task in tasks {
            assert_eq!(task.await.unwrap().unwrap_err().message, "answered");
        }
        bench.backend.assert_lawful();
    }
}

/// One call, and what it names.
#[derive(Clone, Copy)]
enum Named {
    Create(&'static str),
    Delete(&'static str),
    Snapshot(&'static str, &'static str),
    DeleteSnapshot(&'static str),
    Group(&'static [&'static str], &'static str),
    DeleteGroup(&'static str, &'static [&'static str]),
}

impl Named {
    fn rpc(self) -> Rpc {
        match self {
            Self::Create(_) => Rpc::CreateVolume,
            Self::Delete(_) => Rpc::DeleteVolume,
            Self::Snapshot(..) => Rpc::CreateSnapshot,
            Self::DeleteSnapshot(_) => Rpc::DeleteSnapshot,
            Self::Group(..) => Rpc::CreateVolumeGroupSnapshot,
            Self::DeleteGroup(..) => Rpc::DeleteVolumeGroupSnapshot,
        }
    }

    async fn call(self, plugin: Plugin) -> Result<(), Failure> {
        match self {
            Self::Create(name) => plugin.create_volume(create(name), LONG).await.map(drop),
            Self::Delete(id) => plugin.delete_volume(delete(id), LONG).await.map(drop),
            Self::Snapshot(volume, name) => {
                plugin.create_snapshot(snapshot(volume, name), LONG).await.map(drop)
            }
            Self::DeleteSnapshot(id) => plugin.delete_snapshot(delete_snapshot(id), LONG).await.map(drop),
            Self::Group(volumes, name) => {
                plugin.create_volume_group_snapshot(group(volumes, name), LONG).await.map(drop)
            }
            Self::DeleteGroup(id, members) => {
                plugin.delete_volume_group_snapshot(delete_group(id, members), LONG).await.map(drop)
            }
        }
    }
}

/// Obligation CO-GEN-01.
#[tokio::test]
async fn snapshots_and_groups_have_turns_of_their_own_by_name_until_they_have_an_id() {
    // The one that hangs, one that waits for it, and one that does not: names of snapshots are not those of volumes, nor
    // are their ids.
    for (hanging, waiting, other) in [
        (Named::Snapshot("v", "n"), Named::Snapshot("w", "n"), Named::Create("n")),
        (Named::Snapshot("v", "n"), Named::Delete("v"), Named::DeleteSnapshot("v")),
        (Named::DeleteSnapshot("x"), Named::DeleteGroup("g", &["y", "x"]), Named::Delete("x")),
        (Named::DeleteGroup("g", &["y", "x"]), Named::DeleteSnapshot("y"), Named::DeleteSnapshot("g")),
        (Named::Group(&["v", "w"], "n"), Named::Snapshot("w", "m"), Named::DeleteSnapshot("v")),
        (Named::Group(&["v", "v"], "n"), Named::Group(&["w"], "n"), Named::Group(&["w"], "m")),
    ] {
        let bench = Bench::with(Config::everything(), Alpha::On);
        let gate = Gate::new();
        bench.backend.next(hanging.rpc(), OK().hang(&gate));
        for rpc in [waiting.rpc(), other.rpc()] {
            bench.backend.next(rpc, OK());
        }
        let first = begin(&bench, hanging.call(bench.plugin.clone())).await;
        bench.backend.until("it hangs", |log| log.iter().any(|call| call.rpc == hanging.rpc())).await;
        let before = arrived(&bench, waiting.rpc());
        let second = begin(&bench, waiting.call(bench.plugin.clone())).await;
        assert_eq!(arrived(&bench, waiting.rpc()), before, "{} beside {}", waiting.rpc(), hanging.rpc());
        let third = other.call(bench.plugin.clone()).await;
        assert_eq!(third.unwrap_err().message, "answered", "{} beside {}", other.rpc(), hanging.rpc());
        gate.open();
        for task in [first, second] {
            assert_eq!(task.await.unwrap().unwrap_err().message, "answered");
        }
        bench.backend.assert_lawful();
    }
}

#[tokio::test]
async fn a_look_at_a_snapshot_or_a_group_is_not_begun_while_somebody_is_there() {
    let bench = Bench::with(Config::everything(), Alpha::On);
    for (hanging, look) in [
        (Rpc::DeleteSnapshot, Rpc::GetSnapshot),
        (Rpc::DeleteVolumeGroupSnapshot, Rpc::GetVolumeGroupSnapshot),
    ] {
        let gate = Gate::new();
        bench.backend.next(hanging, OK().hang(&gate));
        let plugin = bench.plugin.clone();
        let task = begin(&bench, async move { call(&plugin, hanging, "x", LONG).await }).await;
        let failure = call(&bench.plugin, look, "x", LONG).await.unwrap_err();
        assert!(failure.is_busy(), "{failure}");
        gate.open();
        assert!(task.await.unwrap().is_err());
        assert!(call(&bench.plugin, look, "x", LONG).await.unwrap_err().is_not_found(), "now it is asked");
    }
    bench.backend.assert_lawful();
}

/// Part of obligation CO-NODE-71.
#[tokio::test(start_paused = true)]
async fn statistics_that_hang_keep_nobody_waiting_for_long() {
    let backend = Backend::new(Config::everything());
    let (dial, serving) = inside(&backend, Site::new("node-a"), CancellationToken::new());
    let plugin = Plugin::new(dial, PluginOptions::default());
    let (gate, way) = (Gate::new(), Way::new("v", "node-a"));
    backend.next(Rpc::NodeGetVolumeStats, Answer::honest().hang(&gate).after_effect());
    let (asking, request) = (plugin.clone(), way.stats("/t"));
    // Whoever asks may be as patient as he likes.
    let stats =
        tokio::spawn(async move { asking.node_get_volume_stats(request, Duration::from_secs(600)).await });
    backend.until("the statistics hang", |log| log.len() == 1).await;
    let began = tokio::time::Instant::now();
    plugin.node_unpublish_volume(way.unpublish("/t"), LONG).await.unwrap();
    assert!(began.elapsed() <= LONGEST_READ + Duration::from_millis(10), "{:?}", began.elapsed());
    assert!(stats.await.unwrap().unwrap_err().is_deadline());
    assert!(!plugin.owes("v"), "they have changed nothing, and nobody has to wait for them");
    // The plugin complains of statistics of what is not published; of an overlap it does not.
    assert!(backend.violations().iter().all(|violation| !violation.contains("overlaps")));
    drop(plugin);
    serving.abort();
}
