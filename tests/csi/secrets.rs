//! No secret of any request is in what a caller, a log or a record gets to see.
use super::*;

/// Everything a process may write: what a subscriber at the highest level got.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("not poisoned").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Calls each method whose request has secrets, with these; what came of it, and the request as `Debug` shows it.
async fn all_with(
    plugin: &Plugin,
    secrets: &BTreeMap<String, String>,
) -> Vec<(Rpc, Result<(), Failure>, String)> {
    let way = Way { secrets: secrets.clone(), ..Way::new("v", "node-a") };
    let mut calls = Vec::new();
    macro_rules! ask {
        ($($rpc:ident: $method:ident($request:expr);)*) => {
            $({
                let mut request = $request;
                request.secrets.clone_from(secrets);
                let shown = format!("{request:?}");
                calls.push((Rpc::$rpc, plugin.$method(request, LONG).await.map(drop), shown));
            })*
        };
    }
    ask! {
        CreateVolume: create_volume(create("n"));
        DeleteVolume: delete_volume(delete("v"));
        ControllerPublishVolume: controller_publish_volume(way.attach());
        ControllerUnpublishVolume: controller_unpublish_volume(way.detach());
        ValidateVolumeCapabilities: validate_volume_capabilities(way.validate());
        CreateSnapshot: create_snapshot(snapshot("v", "n"));
        DeleteSnapshot: delete_snapshot(delete_snapshot("s"));
        ListSnapshots: list_snapshots(proto::ListSnapshotsRequest::default());
        GetSnapshot: get_snapshot(get_snapshot("s"));
        ControllerExpandVolume: controller_expand_volume(way.expand(1));
        ControllerModifyVolume: controller_modify_volume(way.modify("k", "v"));
        CreateVolumeGroupSnapshot: create_volume_group_snapshot(group(&["v"], "n"));
        DeleteVolumeGroupSnapshot: delete_volume_group_snapshot(delete_group("g", &["s"]));
        GetVolumeGroupSnapshot: get_volume_group_snapshot(get_group("g", &["s"]));
        NodeStageVolume: node_stage_volume(way.stage());
        NodePublishVolume: node_publish_volume(way.publish("/t"));
        NodeExpandVolume: node_expand_volume(way.node_expand("/t", 1));
    }
    let mut request = allocated("s", 0);
    request.secrets.clone_from(secrets);
    let shown = format!("{request:?}");
    let stream = plugin.get_metadata_allocated(request, patient(LONG)).await;
    calls.push((Rpc::GetMetadataAllocated, drained(stream).await, shown));
    let mut request = delta("r", "s", 0);
    request.secrets.clone_from(secrets);
    let shown = format!("{request:?}");
    let stream = plugin.get_metadata_delta(request, patient(LONG)).await;
    calls.push((Rpc::GetMetadataDelta, drained(stream).await, shown));
    calls
}

/// Scenario Q16.
/// Part of obligations CO-GEN-22, CO-CTRL-100.
#[tokio::test]
async fn a_secret_is_in_no_failure_record_or_log() {
    let written = Written::default();
    let writer = written.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    let _logging = tracing::subscriber::set_default(subscriber);

    let bench = Bench::with(Config::everything(), Alpha::On);
    let canary = Canary::new();
    assert!(!bench.plugin.was_confided());
    let told = || format!("mount -o password={} failed", canary.value());
    for rpc in Rpc::ALL.iter().copied() {
        bench.backend.always(rpc, Answer::fail(Code::Internal, told()));
    }
    // A stream breaks before its first part, or in its middle.
    bench.backend.honest(Rpc::GetMetadataDelta);
    let mut good = proto::GetMetadataDeltaResponse::default();
    (good.block_metadata_type, good.volume_capacity_bytes) = (1, 1);
    let broken = Answer::stream([good]).then_fail(Code::Internal, told());
    bench.backend.always(Rpc::GetMetadataDelta, broken);

    let calls = all_with(&bench.plugin, &canary.secrets()).await;
    assert_eq!(calls.len(), 19, "so many requests have secrets");
    for (rpc, result, shown) in calls {
        let failure = result.unwrap_err();
        assert_eq!(failure.message, "mount -o password=<redacted> failed", "{rpc}");
        assert!(failure.secrets, "{rpc}");
        // It did arrive.
        let asked = bench.backend.calls_of(rpc).remove(0).ask;
        assert!(format!("{asked:?}").contains("secrets: <1 redacted>"), "{rpc}");
        for text in [format!("{failure:?}"), failure.to_string(), shown] {
            canary.assert_absent(&format!("what a caller of {rpc} gets to see"), text);
        }
    }
    assert!(bench.plugin.was_confided());
    canary.assert_absent("the records", format!("{:?}", bench.records()));
    let log = written.0.lock().unwrap().clone();
    assert!(!log.is_empty(), "nothing was logged, so nothing was checked");
    canary.assert_absent("the log", log);
}
