//! Secrets are read when they are needed, waited for when they are missing, and found nowhere.
use std::io::Write;
use std::sync::{Arc, Mutex};

use kube::Api;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};
use wharfline::csi::proto::volume_capability::AccessType;
use wharfline::csi::{Code, Rpc};

use crate::support::node::{NODE_ID, Rig, Special, condition_message, condition_reason};
use crate::support::scripted::{Answer, Ask, Canary, Config, Scripted, Site, Witness};

fn all_secrets() -> Value {
    let reference = json!({ "namespace": "default", "name": "s" });
    json!({ "provision": reference, "controllerPublish": reference, "nodeStage": reference,
        "nodePublish": reference })
}

/// Scenario B78.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_secret_is_waited_for() {
    let rig = Rig::new(Config::full()).await;
    let secrets = json!({ "nodeStage": { "namespace": "default", "name": "s" } });
    let special = Special { secrets, ..Special::default() };
    let app = rig.user("app").await;
    rig.give(&[&app], &special).await;
    let told = |a: &Value| condition_reason(a, "VolumesReady") == Some("SecretMissing");
    rig.world.until(&rig.allocs, "app", "SecretMissing", told).await;
    assert_eq!(rig.count(Rpc::NodeStageVolume), 0);
    rig.secret("s", "it is here").await;
    rig.published("app").await;
    assert_eq!(rig.count(Rpc::NodeStageVolume), 1);
    rig.end_all().await;
    rig.finish().await;
}

/// Another fault than its absence is called by its name.
/// Obligation CO-GEN-21.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_that_is_no_text_is_named_with_its_key() {
    let rig = Rig::new(Config::full()).await;
    let api: Api<k8s_openapi::api::core::v1::Secret> = Api::namespaced(rig.world.0.clone(), "default");
    let object = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "s" }, "data": { "keytab": "/w==" } });
    api.create(&kube::api::PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    let secrets = json!({ "nodeStage": { "namespace": "default", "name": "s" } });
    let app = rig.user("app").await;
    rig.give(&[&app], &Special { secrets, ..Special::default() }).await;
    let told = |a: &Value| condition_reason(a, "VolumesReady") == Some("SecretUnreadable");
    let app = rig.world.until(&rig.allocs, "app", "SecretUnreadable", told).await;
    assert!(serde_json::to_string(&app.status).unwrap().contains("keytab"), "the key is named");
    assert_eq!(rig.count(Rpc::NodeStageVolume), 0);
    api.delete("s", &kube::api::DeleteParams::default()).await.unwrap();
    rig.secret("s", "it is text").await;
    rig.published("app").await;
    rig.end_all().await;
    rig.finish().await;
}

/// A driver may call a wrong key an invalid argument. Nobody tells the node when the Secret is mended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_argument_with_secrets_and_one_on_the_way_down_are_tried_again() {
    let rig = Rig::new(Config::full()).await;
    let wrong = || Answer::fail(Code::InvalidArgument, "wrong key");
    rig.backend.next(Rpc::NodeStageVolume, wrong());
    for rpc in
        [Rpc::NodeUnpublishVolume, Rpc::NodeUnstageVolume, Rpc::ControllerUnpublishVolume, Rpc::DeleteVolume]
    {
        rig.backend.next(rpc, wrong());
    }
    rig.secret("s", "it is here").await;
    let app = rig.user("app").await;
    rig.give(&[&app], &Special { secrets: all_secrets(), ..Special::default() }).await;
    rig.published("app").await;
    assert_eq!(rig.count(Rpc::NodeStageVolume), 2);
    rig.end_all().await;
    assert_eq!((rig.count(Rpc::NodeUnstageVolume), rig.count(Rpc::DeleteVolume)), (2, 2));
    rig.finish().await;
}

/// A driver that lets nobody stage who does not know the word.
struct Guard(Code);

impl Witness for Guard {
    fn arrived(&self, _: usize, _: &Ask) {}
    fn performed(&self, _: usize, _: &Ask, _: bool) {}
    fn prompt(&self, ask: &Ask) -> Option<Answer> {
        let Ask::NodeStageVolume(request) = ask else { return None };
        let knows = request.secrets.get("password").is_some_and(|word| word == "the-new-word");
        (!knows).then(|| Answer::fail(self.0, "not with this word"))
    }
}

/// Obligations CO-ERR-07, CO-ERR-16: which Secret it was is told, and it is read anew for each attempt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_that_is_refused_is_named_and_once_it_is_mended_nothing_else_has_to_change() {
    for code in [Code::Unauthenticated, Code::PermissionDenied] {
        let mut rig = Rig::idle(Config::full()).await;
        rig.plugin.kill().await;
        let (site, socket) = (Site::new(NODE_ID), rig.plugin.socket().to_owned());
        let site = Site { witness: Some(Arc::new(Guard(code))), ..site };
        rig.plugin = Scripted::start(&rig.backend, site, socket);
        rig.start().await;
        rig.register().await;
        rig.ready().await;
        rig.secret("s", "the-old-word").await;
        let secrets = json!({ "nodeStage": { "namespace": "default", "name": "s" } });
        let app = rig.user("app").await;
        rig.give(&[&app], &Special { secrets, ..Special::default() }).await;
        let told = |a: &Value| condition_reason(a, "VolumesReady") == Some("NodeStageVolumeFailed");
        let told = rig.world.until(&rig.allocs, "app", "refused", told).await;
        let told = serde_json::to_value(told).unwrap();
        let said = condition_message(&told, "VolumesReady").unwrap();
        assert!(said.contains("not with this word") && said.contains("Secret \"default/s\""), "{said}");
        assert!(!said.contains("the-old-word"), "{said}");
        let before = rig.attachments.get("att-1").await.unwrap().metadata.generation;
        let api: Api<k8s_openapi::api::core::v1::Secret> = Api::namespaced(rig.world.0.clone(), "default");
        rig.world.patch(&api, "s", json!({ "stringData": { "password": "the-new-word" } })).await;
        rig.published("app").await;
        assert_eq!(rig.attachments.get("att-1").await.unwrap().metadata.generation, before);
        let calls = rig.backend.calls_of(Rpc::NodeStageVolume);
        let gaps: Vec<_> = calls.windows(2).map(|w| w[1].started - w[0].ended.unwrap().0).collect();
        let least = |n: usize| std::time::Duration::from_millis(187 << n);
        assert!(gaps.iter().enumerate().all(|(n, gap)| *gap >= least(n)), "{code:?}: {gaps:?}");
        rig.end_all().await;
        rig.finish().await;
    }
}

/// Obligation CO-GEN-21.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_secrets_than_csi_allows_are_not_sent() {
    let rig = Rig::new(Config::full()).await;
    rig.secret("s", &"x".repeat(4096)).await;
    let secrets = json!({ "nodeStage": { "namespace": "default", "name": "s" } });
    let app = rig.user("app").await;
    rig.give(&[&app], &Special { secrets, ..Special::default() }).await;
    let told = |a: &Value| condition_reason(a, "VolumesReady") == Some("SecretUnreadable");
    let told = rig.world.until(&rig.allocs, "app", "SecretUnreadable", told).await;
    let told = serde_json::to_string(&told.status).unwrap();
    assert!(told.contains("4104 bytes") && told.contains("4096"), "{told}");
    assert_eq!(rig.count(Rpc::NodeStageVolume), 0);
    change(&rig, &"x".repeat(4088)).await;
    rig.published("app").await;
    rig.end_all().await;
    rig.finish().await;
}

/// It is grown too large while it is in use: what was sent with it is undone with it, or it would stay for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_secrets_than_csi_allows_hold_up_nothing_on_the_way_down() {
    let rig = Rig::new(Config::full()).await;
    rig.secret("s", "of then").await;
    let app = rig.user("app").await;
    rig.give(&[&app], &Special { secrets: all_secrets(), ..Special::default() }).await;
    rig.published("app").await;
    let large = "x".repeat(4096);
    change(&rig, &large).await;
    rig.end_all().await;
    let undone = rig.backend.calls_of(Rpc::ControllerUnpublishVolume).remove(0).ask;
    let Ask::ControllerUnpublishVolume(undone) = undone else { panic!("{undone:?}") };
    assert_eq!(undone.secrets["password"], large);
    rig.finish().await;
}

/// The Secret `s` has another value.
async fn change(rig: &Rig, value: &str) {
    let api: Api<k8s_openapi::api::core::v1::Secret> = Api::namespaced(rig.world.0.clone(), "default");
    rig.world.patch(&api, "s", json!({ "stringData": { "password": value } })).await;
}

/// Obligations CO-CTRL-20, CO-CTRL-47.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_down_gets_the_secret_as_it_is_now() {
    let rig = Rig::new(Config::full()).await;
    rig.secret("s", "of then").await;
    let app = rig.user("app").await;
    rig.give(&[&app], &Special { secrets: all_secrets(), ..Special::default() }).await;
    rig.published("app").await;
    let handle = rig.volume_up("vol-1").await.status.unwrap().handle;
    change(&rig, "of now").await;
    rig.end_all().await;
    let secret = |ask: &Ask| match ask {
        Ask::ControllerPublishVolume(of) => of.secrets["password"].clone(),
        Ask::ControllerUnpublishVolume(of) => of.secrets["password"].clone(),
        other => panic!("{other:?}"),
    };
    let first = |rpc| rig.backend.calls_of(rpc)[0].ask.clone();
    assert_eq!(secret(&first(Rpc::ControllerPublishVolume)), "of then");
    assert_eq!(secret(&first(Rpc::ControllerUnpublishVolume)), "of now");
    let secrets = [("password".to_owned(), "of now".to_owned())].into();
    let delete = wharfline::csi::proto::DeleteVolumeRequest { volume_id: handle, secrets };
    assert_eq!(first(Rpc::DeleteVolume), Ask::DeleteVolume(delete));
    rig.finish().await;
}

/// Scenario B35.
/// By policy what is undone is undone with its Secret: while that is gone the call is held, and why is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_down_waits_for_a_secret_that_went_before_it() {
    let rig = Rig::new(Config::full()).await;
    rig.secret("s", "of then").await;
    let app = rig.user("app").await;
    rig.give(&[&app], &Special { secrets: all_secrets(), ..Special::default() }).await;
    rig.published("app").await;
    let api: Api<k8s_openapi::api::core::v1::Secret> = Api::namespaced(rig.world.0.clone(), "default");
    let held = |said: &Value| {
        let message = said["message"].as_str().unwrap_or_default();
        said["reason"] == "SecretMissing" && message.contains("default/s")
    };
    api.delete("s", &DeleteParams::default()).await.unwrap();
    rig.end_alloc("app").await;
    rig.world.delete(&rig.attachments, "att-1").await;
    let told = |a: &Value| held(&a["status"]["controller"]);
    rig.world.until(&rig.attachments, "att-1", "held", told).await;
    crate::refused::meanwhile(&rig).await;
    assert_eq!(rig.count(Rpc::ControllerUnpublishVolume), 0);
    rig.secret("s", "of now").await;
    rig.detached().await;
    api.delete("s", &DeleteParams::default()).await.unwrap();
    let deleted = rig.count(Rpc::DeleteVolume);
    rig.world.delete(&rig.volumes, "vol-1").await;
    let told = |v: &Value| held(&v["status"]["provisioning"]);
    rig.world.until(&rig.volumes, "vol-1", "held", told).await;
    assert_eq!(rig.count(Rpc::DeleteVolume), deleted);
    rig.secret("s", "of now").await;
    rig.world.until(&rig.volumes, "vol-1", "deleted", |v| v["status"]["exists"] == "Down").await;
    rig.world.let_go(&rig.volumes, "vol-1").await;
    let (Ask::ControllerUnpublishVolume(detach), Ask::DeleteVolume(delete)) = (
        rig.backend.calls_of(Rpc::ControllerUnpublishVolume).remove(0).ask,
        rig.backend.calls_of(Rpc::DeleteVolume).pop().unwrap().ask,
    ) else {
        panic!("other requests")
    };
    let now: std::collections::BTreeMap<_, _> = [("password".to_owned(), "of now".to_owned())].into();
    assert_eq!((&detach.secrets, &delete.secrets), (&now, &now));
    rig.finish().await;
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

async fn text<K>(rig: &Rig) -> String
where
    K: kube::Resource<DynamicType = ()>
        + Clone
        + serde::de::DeserializeOwned
        + serde::Serialize
        + std::fmt::Debug,
{
    let api: Api<K> = Api::all(rig.world.0.clone());
    let all = api.list(&ListParams::default()).await.unwrap().items;
    serde_json::to_string(&all).unwrap()
}

/// All that this process logs from now on.
fn log() -> Lines {
    static LINES: std::sync::OnceLock<Lines> = std::sync::OnceLock::new();
    let all = LINES.get_or_init(|| {
        let lines = Lines::default();
        let writer = lines.clone();
        let log = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_ansi(false);
        log.with_writer(move || writer.clone()).init();
        lines
    });
    all.clone()
}

/// Scenarios A65, Q16.
/// Obligations CO-GEN-23, CO-GEN-24: who may read the volume and its attachment sees them; nobody else does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mount_flags_and_contexts_are_in_no_log_and_told_to_no_user() {
    let lines = log();
    let canary = Canary::new();
    let token = || [("token".to_owned(), canary.value().to_owned())].into();
    let config = Config { volume_context: token(), publish_context: token(), ..Config::full() };
    let mut rig = Rig::new(config).await;
    let flags = json!([format!("password={}", canary.value())]);
    let attachment =
        json!({ "capability": { "accessMode": "SingleNodeWriter", "mountOptions": flags.clone() } });
    let special = Special { spec: json!({ "mountOptions": flags }), attachment, ..Special::default() };
    for rpc in [Rpc::ControllerPublishVolume, Rpc::NodeStageVolume, Rpc::NodePublishVolume] {
        rig.backend.next(rpc, Answer::fail(Code::Internal, "not now"));
    }
    let app = rig.user("app").await;
    rig.give(&[&app], &special).await;
    rig.published("app").await;
    rig.stop().await;
    rig.start().await;
    rig.published("app").await;
    for what in [
        text::<wharfline::api::Allocation>(&rig).await,
        text::<wharfline::api::PluginInstance>(&rig).await,
        text::<wharfline::api::NodeAgent>(&rig).await,
    ] {
        canary.assert_absent("an object", what);
    }
    rig.end_all().await;
    for call in ["ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume"] {
        rig.told(&format!("{call}Failed"), "").await;
    }
    canary.assert_absent("the events", text::<k8s_openapi::api::core::v1::Event>(&rig).await);
    let Ask::NodeStageVolume(stage) = rig.backend.calls_of(Rpc::NodeStageVolume)[0].ask.clone() else {
        panic!("another request");
    };
    let Some(AccessType::Mount(mount)) = stage.volume_capability.unwrap().access_type else {
        panic!("another capability");
    };
    assert!(canary.is_in(mount.mount_flags.concat()) && canary.is_in(&stage.publish_context["token"]));
    rig.finish().await;
    let lines = lines.0.lock().unwrap();
    assert!(lines.windows(9).any(|w| w == b"published"), "something was logged");
    canary.assert_absent("the log", lines.as_slice());
}

/// Scenarios A38, A65, Q16.
/// Obligations CO-GEN-21, CO-GEN-22.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_reaches_the_plugin_and_nobody_else() {
    let lines = log();
    let canary = Canary::new();
    let mut rig = Rig::new(Config::full()).await;
    rig.secret("s", canary.value()).await;
    // A plugin that repeats what it was given, in every kind of call that gets secrets.
    let echo = || Answer::fail(Code::Internal, format!("login with {} failed", canary.value()));
    for rpc in [
        Rpc::CreateVolume,
        Rpc::ControllerPublishVolume,
        Rpc::NodeStageVolume,
        Rpc::NodePublishVolume,
        Rpc::ControllerUnpublishVolume,
        Rpc::DeleteVolume,
    ] {
        rig.backend.next(rpc, echo());
    }
    let app = rig.user("app").await;
    rig.give(&[&app], &Special { secrets: all_secrets(), ..Special::default() }).await;
    rig.published("app").await;
    rig.stop().await;
    canary.assert_absent_beneath(rig.place.data.path());
    rig.start().await;
    for what in [
        text::<wharfline::api::Volume>(&rig).await,
        text::<wharfline::api::VolumeAttachment>(&rig).await,
        text::<wharfline::api::Allocation>(&rig).await,
        text::<wharfline::api::PluginInstance>(&rig).await,
        text::<wharfline::api::NodeAgent>(&rig).await,
    ] {
        assert!(what.contains("\"kind\"") || what.contains("metadata"));
        canary.assert_absent("an object", what);
    }
    rig.end_all().await;
    for call in
        ["CreateVolume", "ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume", "DeleteVolume"]
    {
        rig.told(&format!("{call}Failed"), "").await;
    }
    canary.assert_absent("the events", text::<k8s_openapi::api::core::v1::Event>(&rig).await);
    let got = rig.backend.calls().into_iter().filter(|call| match &call.ask {
        Ask::CreateVolume(r) => r.secrets == canary.secrets(),
        Ask::DeleteVolume(r) => r.secrets == canary.secrets(),
        Ask::ControllerPublishVolume(r) => r.secrets == canary.secrets(),
        Ask::ControllerUnpublishVolume(r) => r.secrets == canary.secrets(),
        Ask::NodeStageVolume(r) => r.secrets == canary.secrets(),
        Ask::NodePublishVolume(r) => r.secrets == canary.secrets(),
        _ => false,
    });
    assert_eq!(got.count(), 12, "each was called twice, with the secret");
    rig.finish().await;
    let lines = lines.0.lock().unwrap();
    assert!(lines.windows(9).any(|w| w == b"published"), "something was logged");
    canary.assert_absent("the log", lines.as_slice());
}
