//! What CSI asks of an orchestrator about a driver's process, its socket and its health.
use std::collections::BTreeSet;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use wharfline::api::Allocation;
use wharfline::csi::{Code, Rpc};

use crate::instances::{driver, ready};
use crate::support::node::{NODE_ID, Rig, Special, condition, condition_reason, uid, until};
use crate::support::scripted::{Answer, Config, Gate, Scripted, Site};

/// How long a Probe may take, as `grpc-timeout` says it.
const PROBE: &str = "5000000u";

/// An instance of the plugin `own` that runs as a task of this node.
pub(crate) async fn instance(rig: &Rig, name: &str, script: &str, health_timeout: &str) -> Allocation {
    let task = json!({ "name": "plugin", "runtime": { "process": { "command": ["/bin/sh", "-c", script] } },
        "resources": { "limits": { "pids": "100" } }, "stopGracePeriod": "5s",
        "csiPlugin": { "pluginName": "own", "role": "Monolith", "healthTimeout": health_timeout } });
    let alloc = rig.alloc(name, json!({ "tasks": [task] })).await;
    rig.admit_as("own", name, &alloc).await;
    alloc
}

async fn end(rig: &Rig, name: &str) {
    rig.release_plugin(name).await;
    rig.world.delete(&rig.instances, name).await;
}

pub(crate) async fn restarts(rig: &Rig) -> i64 {
    let alloc = serde_json::to_value(rig.allocs.get("own").await.unwrap()).unwrap();
    alloc["status"]["tasks"][0]["restarts"].as_i64().unwrap_or_default()
}

/// The driver, which first writes down where it finds itself: one directory for each of its starts.
fn told(rig: &Rig, name: &str) -> (PathBuf, String) {
    let at = rig.files.path().join(name);
    std::fs::create_dir(&at).unwrap();
    let script = format!(
        "cd {at} && n=$(ls | wc -l) && mkdir new && d=$(dirname ${{CSI_ENDPOINT#unix://}}) && env > new/env && \
         ls -A $d > new/found && stat -c '%a %u' $d > new/mode && cat /proc/self/status > new/status && \
         cat /proc/self/cgroup > new/cgroup && mv new start-$n && exec {driver}",
        at = at.display(),
        driver = driver(rig)
    );
    (at, script)
}

fn read(start: &Path, what: &str) -> String {
    std::fs::read_to_string(start.join(what)).unwrap()
}

/// The variables of CSI that a start found.
fn of_csi(start: &Path) -> Vec<(String, String)> {
    let env = read(start, "env");
    let all = env.lines().filter_map(|line| line.split_once('='));
    all.filter(|(name, _)| name.starts_with("CSI_"))
        .map(|(name, value)| (name.into(), value.into()))
        .collect()
}

/// The socket of a start; that is the one variable of CSI.
fn socket(start: &Path) -> PathBuf {
    let found = of_csi(start);
    assert!(found.len() == 1 && found[0].0 == "CSI_ENDPOINT", "{found:?}");
    let path = found[0].1.strip_prefix("unix://").unwrap_or_else(|| panic!("{found:?}"));
    assert!(path.starts_with('/') && path.strip_suffix(".sock").is_some(), "{path}");
    PathBuf::from(path)
}

/// Obligations CO-PLUG-01, CO-PLUG-03, CO-PLUG-04, CO-PLUG-06, CO-PLUG-07, CO-PLUG-09, CO-PLUG-13.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_process_of_a_driver_has_a_private_directory_of_its_own_and_one_endpoint() {
    const CAP_SYS_ADMIN: u64 = 1 << 21;
    let mut rig = Rig::idle(Config::full()).await;
    rig.start().await;
    let mut starts = Vec::new();
    for name in ["own", "beside"] {
        let (at, script) = told(&rig, name);
        instance(&rig, name, &script, "20s").await;
        ready(&rig, name, "True").await;
        starts.push(at.join("start-0"));
    }
    let sockets: Vec<_> = starts.iter().map(|start| socket(start)).collect();
    assert_ne!(sockets[0].parent(), sockets[1].parent(), "both run");
    for (start, socket) in starts.iter().zip(&sockets) {
        assert!(socket.starts_with(&rig.place.run) && socket.exists(), "{}", socket.display());
        assert_eq!(read(start, "found"), "", "nothing was there before it");
        let owner = rustix::process::geteuid().as_raw();
        assert_eq!(read(start, "mode"), format!("700 {owner}\n"));
        let above = std::fs::metadata(&rig.place.run).unwrap();
        assert_eq!((above.permissions().mode() & 0o7777, above.uid()), (0o700, owner));
        let status = read(start, "status");
        let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
        assert_ne!(u64::from_str_radix(effective.trim(), 16).unwrap() & CAP_SYS_ADMIN, 0, "{effective}");
        assert!(read(start, "cgroup").contains("/wharfline/"), "its limits are in force");
        assert!(!foreign(&socket.with_file_name("before.sock")), "nobody else's process binds a path there");
        assert!(!foreign(socket), "or takes the driver's place");
    }
    let open = tempfile::tempdir().unwrap();
    std::fs::set_permissions(open.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    assert!(foreign(&open.path().join("csi.sock")), "where it may it does");
    let own = Special { spec: json!({ "plugin": "own" }), ..Special::default() };
    for name in ["one", "two", "three"] {
        rig.ask(name, &own).await;
        rig.volume_up(name).await;
        rig.end_volume(name).await;
    }
    for start in &starts {
        let begun = std::fs::read_dir(start.parent().unwrap()).unwrap().count();
        assert_eq!(begun, 1, "one process makes all calls");
    }
    for name in ["beside", "own"] {
        end(&rig, name).await;
    }
    let gone = || sockets.iter().all(|socket| !socket.parent().unwrap().exists());
    until(gone, "the directories are gone").await;
}

/// Whether a process of another user comes to listen at this path.
fn foreign(path: &std::path::Path) -> bool {
    const NOBODY: u32 = 65_534;
    let bind = "import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])";
    let mut python = std::process::Command::new("python3");
    python.args(["-c", bind]).arg(path).uid(NOBODY).gid(NOBODY).stderr(std::process::Stdio::piped());
    let ended = python.output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success() || said.contains("PermissionError"), "{said}");
    ended.status.success()
}

/// Obligations CO-PLUG-03, CO-PLUG-04. Whatever became of the directory and of what is in the socket's place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_was_killed_finds_its_directory_private_and_empty_again() {
    let mut rig = Rig::idle(Config::full()).await;
    rig.start().await;
    let (at, script) = told(&rig, "own");
    let alloc = instance(&rig, "own", &script, "20s").await;
    ready(&rig, "own", "True").await;
    let first = socket(&at.join("start-0"));
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(first.parent().unwrap(), open).unwrap();
    std::fs::write(first.with_file_name("beside"), "").unwrap();
    let state = rig.place.data.path().join(format!("tasks/{}.plugin/state.json", uid(&alloc)));
    let state: Value = serde_json::from_slice(&std::fs::read(state).unwrap()).unwrap();
    let pid = i32::try_from(state["task"]["pid"].as_i64().unwrap()).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let again = at.join("start-1");
    until(|| again.exists(), "it is started again").await;
    assert_eq!(socket(&again), first);
    assert_eq!(read(&again, "found"), "", "the dead socket was removed before the start");
    assert!(read(&again, "mode").starts_with("700 "), "{}", read(&again, "mode"));
    ready(&rig, "own", "True").await;
    std::fs::write(first.with_file_name("beside"), "").unwrap();
    end(&rig, "own").await;
    until(|| !first.parent().unwrap().exists(), "its directory is gone with all that is in it").await;
}

/// Obligations CO-PLUG-05, CO-IDEN-08: who is not ready is asked nothing else, at growing pauses, and then all in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_is_only_probed_until_it_is_ready_and_then_asked_in_order() {
    let mut rig = Rig::idle(Config { ready: Some(false), ..Config::full() }).await;
    rig.start().await;
    rig.register().await;
    rig.not_ready("Starting").await;
    rig.called(Rpc::Probe, 6).await;
    let calls = rig.backend.calls();
    assert!(calls.iter().all(|call| call.rpc == Rpc::Probe), "{calls:?}");
    assert!(calls.iter().all(|call| call.timeout.as_deref() == Some(PROBE)), "{calls:?}");
    let pauses = [50, 100, 200, 400, 800].map(Duration::from_millis);
    for (two, pause) in calls.windows(2).zip(pauses) {
        let (ended, _) = two[0].ended.unwrap();
        assert!(two[1].started >= ended, "one at a time");
        assert!(two[1].started - two[0].started >= pause, "{pause:?}: {two:?}");
    }
    rig.backend.configure(|config| config.ready = Some(true));
    rig.ready().await;
    let asked: Vec<_> =
        rig.backend.calls().iter().map(|call| call.rpc).filter(|rpc| *rpc != Rpc::Probe).collect();
    let order = [
        Rpc::GetPluginInfo,
        Rpc::GetPluginCapabilities,
        Rpc::ControllerGetCapabilities,
        Rpc::NodeGetCapabilities,
        Rpc::NodeGetInfo,
    ];
    assert_eq!(asked, order);
    rig.finish().await;
}

/// An instance of `own` that is a task here; the test answers at its socket.
pub(crate) async fn answered(rig: &Rig, health_timeout: &str) -> (Scripted, PathBuf) {
    let at = rig.files.path().join("at");
    let script =
        format!("echo $CSI_ENDPOINT > {0}.new && mv {0}.new {0} && exec sleep infinity", at.display());
    instance(rig, "own", &script, health_timeout).await;
    until(|| at.exists(), "it runs").await;
    let endpoint = std::fs::read_to_string(&at).unwrap();
    let socket = endpoint.trim().strip_prefix("unix://").unwrap().to_owned();
    std::fs::remove_file(&at).unwrap();
    (Scripted::start(&rig.backend, Site::new(NODE_ID), socket), at)
}

/// Obligations CO-PLUG-15, CO-IDEN-05: one that is not ready yet has its time; one that fails is started again once that is
/// over, and no sooner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_is_started_again_only_when_it_was_not_ready_for_its_whole_timeout() {
    let mut rig = Rig::idle(Config { ready: Some(false), ..Config::full() }).await;
    rig.start().await;
    let (mut plugin, at) = answered(&rig, "6s").await;
    let starting =
        |i: &Value| condition_reason(i, "Ready") == Some("Starting") && condition(i, "Connected", "True");
    rig.world.until(&rig.instances, "own", "not ready yet", starting).await;
    rig.called(Rpc::Probe, 5).await;
    rig.backend.configure(|config| config.ready = Some(true));
    ready(&rig, "own", "True").await;
    assert_eq!(restarts(&rig).await, 0, "not to be ready yet is no fault");

    rig.backend.always(Rpc::Probe, Answer::fail(Code::Internal, "out of order"));
    plugin.kill().await;
    plugin.serve();
    let failing = |i: &Value| i["status"]["conditions"].to_string().contains("out of order");
    rig.world.until(&rig.instances, "own", "not well", failing).await;
    let probed = rig.count(Rpc::Probe);
    rig.called(Rpc::Probe, probed + 2).await;
    assert_eq!(restarts(&rig).await, 0, "not at the first miss");
    until(|| at.exists(), "it is started again").await;
    plugin.kill().await;
    rig.backend.honest(Rpc::Probe);
    plugin.serve();
    ready(&rig, "own", "True").await;
    let once = |a: &Value| a["status"]["tasks"][0]["restarts"].as_i64() == Some(1);
    rig.world.until(&rig.allocs, "own", "started again once", once).await;
    end(&rig, "own").await;
}

/// Obligations CO-PLUG-15, CO-IDEN-08.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_probe_that_hangs_ends_at_its_deadline_and_starts_nothing_again() {
    let mut rig = Rig::idle(Config::full()).await;
    rig.backend.next(Rpc::Probe, Answer::honest().hang(&Gate::new()));
    rig.start().await;
    let (_plugin, _) = answered(&rig, "20s").await;
    ready(&rig, "own", "True").await;
    let probes = rig.backend.calls_of(Rpc::Probe);
    assert_eq!(probes[0].timeout.as_deref(), Some(PROBE));
    let waited = probes[1].started - probes[0].started;
    assert!(waited >= Duration::from_secs(5), "a second one came beside the first: {waited:?}");
    assert_eq!(restarts(&rig).await, 0);
    end(&rig, "own").await;
}

/// Obligations CO-IDEN-05, CO-IDEN-06, CO-IDEN-07: it was well, and says by FAILED_PRECONDITION that it is not any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_says_that_it_is_not_well_any_more_is_asked_about_no_volume() {
    let mut rig = Rig::new(Config::full()).await;
    for (number, told) in ["the backend is not healthy", "mount.x is missing"].into_iter().enumerate() {
        rig.backend.always(Rpc::Probe, Answer::fail(Code::FailedPrecondition, told));
        rig.plugin.kill().await;
        rig.plugin.serve();
        let unwell = |i: &Value| {
            let says = i["status"]["conditions"].to_string().contains(told);
            says && ["Probed", "Fingerprinted", "Ready"].iter().all(|kind| condition(i, kind, "False"))
        };
        rig.world.until(&rig.instances, "p", told, unwell).await;
        let name = format!("vol-{number}");
        rig.ask(&name, &Special::default()).await;
        let waits = |v: &Value| v["status"]["provisioning"]["reason"] == "PluginNotReady";
        rig.world.until(&rig.volumes, &name, "waiting for the plugin", waits).await;
        assert_eq!(rig.count(Rpc::CreateVolume), number);
        rig.backend.honest(Rpc::Probe);
        rig.volume_up(&name).await;
        rig.end_volume(&name).await;
    }
    rig.ready().await;
    rig.finish().await;
}

/// Obligation CO-IDEN-03: it says that it has no controller service, whatever role its process was given.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_without_a_controller_service_gets_no_controller_call() {
    let rig = Rig::new(Config::node_only()).await;
    let volume = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Volume", "metadata": { "name": "vol-1" },
        "spec": { "plugin": "scripted", "accessModes": ["SingleNodeWriter"],
            "source": { "existing": { "handle": "disk-7" } } } });
    rig.world.create(&rig.volumes, volume).await;
    rig.world.status(&rig.volumes, "vol-1", json!({ "exists": "Up", "handle": "disk-7" })).await;
    let app = rig.user("app").await;
    rig.attach("vol-1", &[&app], &Special::default()).await;
    rig.published("app").await;
    rig.end_alloc("app").await;
    rig.end_attachment().await;
    let asked: BTreeSet<_> = rig.backend.calls().iter().map(|call| call.rpc.name()).collect();
    let node = [
        "GetPluginCapabilities",
        "GetPluginInfo",
        "NodeGetCapabilities",
        "NodeGetInfo",
        "NodePublishVolume",
        "NodeUnpublishVolume",
        "Probe",
    ];
    assert_eq!(asked, BTreeSet::from(node));
    rig.finish().await;
}
