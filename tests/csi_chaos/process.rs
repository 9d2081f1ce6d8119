//! The command: a driver of its own behind it, its end, its signals, scripts that cannot be.
use rustix::process::Signal;
use serde_json::{Value, json};
use wharfline::csi::{Code, Origin, Plugin, proto};

use crate::rig::{Chaos, LONG, Rig, until, until_async};
use crate::support::scripted::requests::{create, delete};

const DIR: [&str; 8] = ["--", "wharfline", "csi", "dir", "--node-id", "n1", "--data-dir", "ROOT/data"];

async fn ids(plugin: &Plugin) -> Vec<String> {
    let listed = plugin.list_volumes(proto::ListVolumesRequest::default(), LONG).await.unwrap();
    listed.entries.into_iter().map(|entry| entry.volume.unwrap().volume_id).collect()
}

/// The driver's own socket is in a directory that goes with it; a real driver is killed in the middle and comes back.
#[tokio::test]
async fn a_driver_that_is_killed_by_a_script_comes_back() {
    let script = json!({ "rules": [
        { "method": "CreateVolume", "id": "before", "times": 1, "crash": "Before" },
        { "method": "CreateVolume", "id": "after", "times": 1, "crash": "After" },
    ] });
    let mut chaos = Chaos::start(&script, &DIR);
    let plugin = chaos.plugin();
    let mut driver = chaos.children();
    assert_eq!(driver.len(), 1, "{driver:?}");
    for (name, made) in [("before", 0), ("after", 2)] {
        let failure = plugin.create_volume(create(name), LONG).await.unwrap_err();
        assert_eq!((failure.code, failure.origin), (Code::Unavailable, Origin::Local), "{name}");
        // Callers wait until it listens again.
        assert_eq!(ids(&plugin).await.len(), made, "{name}");
        let now = chaos.children();
        assert!(now.len() == 1 && now != driver, "{name}: {driver:?} {now:?}");
        driver = now;
        plugin.create_volume(create(name), LONG).await.unwrap();
    }
    let volumes = ids(&plugin).await;
    assert_eq!(volumes.len(), 2, "the repeated call found what the killed one had made");
    for id in &volumes {
        plugin.delete_volume(delete(id), LONG).await.unwrap();
    }
    drop(plugin);
    chaos.signal(Signal::TERM);
    assert!(chaos.ended().success(), "{}", chaos.log());
    let mut left: Vec<_> =
        std::fs::read_dir(chaos.dir.path()).unwrap().flatten().map(|e| e.file_name()).collect();
    left.sort();
    assert_eq!(left, ["chaos.yaml", "data", "log"], "sockets and their directory are gone");
    assert!(!std::path::Path::new(&format!("/proc/{}", driver[0])).exists());
}

/// A command that names the socket where it is called is not called past its wrapper.
#[tokio::test]
async fn a_command_that_names_the_callers_socket_gets_its_own() {
    let mut command = DIR.to_vec();
    command.extend(["--endpoint", "unix://ROOT/chaos.sock"]);
    let chaos = Chaos::start(&json!({ "rules": [{ "method": "Probe", "code": "INTERNAL" }] }), &command);
    let failure = chaos.plugin().probe(LONG).await.unwrap_err();
    assert_eq!((failure.code, failure.origin), (Code::Internal, Origin::Peer));
    assert_eq!(chaos.plugin().get_plugin_info(LONG).await.unwrap().name, "dir.csi.wharfline.dev");
}

#[tokio::test]
async fn a_driver_that_ends_by_itself_takes_it_along() {
    let mut chaos = Chaos::start(&json!({}), &DIR);
    let pid = rustix::process::Pid::from_raw(chaos.children()[0]).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
    assert_eq!(chaos.ended().code(), Some(1));
    let log = chaos.log();
    assert!(log.contains("error: the driver ended by itself, with signal: 9"), "{log}");
    assert!(!chaos.socket().exists());
}

/// Killed itself, it leaves no driver behind that nobody knows.
#[tokio::test]
async fn the_driver_does_not_outlive_it() {
    let mut chaos = Chaos::start(&json!({}), &DIR);
    let driver = chaos.children()[0];
    chaos.signal(Signal::KILL);
    chaos.ended();
    until("the driver is gone", || !std::path::Path::new(&format!("/proc/{driver}")).exists());
}

#[tokio::test]
async fn calls_under_way_end_before_it_does() {
    let gate = crate::support::scripted::Gate::new();
    let mut rig = Rig::new(&json!({}));
    rig.backend
        .next(wharfline::csi::Rpc::CreateVolume, crate::support::scripted::Answer::honest().hang(&gate));
    let calling = rig.plugin.create_volume(create("pvc-1"), LONG);
    let ending = async {
        let asked = || !rig.backend.calls_of(wharfline::csi::Rpc::CreateVolume).is_empty();
        until_async("the call is there", asked).await;
        rig.chaos.signal(Signal::TERM);
        let socket = rig.chaos.socket();
        until_async("nobody else is let in", || !socket.exists()).await;
        gate.open();
    };
    let (made, ()) = tokio::join!(calling, ending);
    made.unwrap();
    drop(rig.plugin);
    assert!(rig.chaos.ended().success());
}

#[tokio::test]
async fn a_script_is_read_anew_and_a_bad_one_is_not_taken() {
    let refuse = |code: &str| json!({ "rules": [{ "method": "CreateVolume", "code": code }] });
    let rig = Rig::new(&refuse("INTERNAL"));
    let code = async || rig.plugin.create_volume(create("pvc-1"), LONG).await.unwrap_err().code;
    assert_eq!(code().await, Code::Internal);
    let write = |script: &Value| std::fs::write(rig.chaos.path("chaos.yaml"), script.to_string()).unwrap();
    write(&refuse("ABORTED"));
    rig.chaos.signal(Signal::HUP);
    until_async("it is read", || rig.chaos.log().contains("a script was read anew")).await;
    assert_eq!(code().await, Code::Aborted);
    write(&refuse("NO_SUCH_CODE"));
    rig.chaos.signal(Signal::HUP);
    until_async("it is refused", || rig.chaos.log().contains("the script before stays")).await;
    assert!(
        rig.chaos.log().contains("rules[0].code: \\\"NO_SUCH_CODE\\\" is no code of gRPC"),
        "{}",
        rig.chaos.log()
    );
    assert_eq!(code().await, Code::Aborted);
}

#[test]
fn a_bad_start_says_why() {
    let bad =
        json!({ "rules": [{ "method": "*" }, { "method": "CreateVolume", "dely": "1s", "code": "X" }] });
    let there = ["--driver", "unix://ROOT/driver.sock"];
    let one = ["--driver", "unix://ROOT/chaos.sock"];
    let odd = ["--driver", "tcp://127.0.0.1:1"];
    let dies = ["--", "/bin/sh", "-c", "echo dying >&2; exit 3"];
    for (script, arguments, words) in [
        (
            &bad,
            &there[..],
            &["rules[1].dely: there is no such field", "rules[1].code: \"X\" is no code of gRPC"][..],
        ),
        (&json!({}), &[], &["there is no driver; name its socket with --driver, or its command behind --"]),
        (&json!({}), &one, &["--endpoint and --driver name one socket"]),
        (
            &json!({}),
            &odd,
            &["--driver: endpoint \"tcp://127.0.0.1:1\" is not of the form unix:///path/to.sock"],
        ),
        (&json!({}), &dies, &["dying", "the driver ended before it listened", "exit status: 3"]),
        (&json!({}), &["--", "/no/such/driver"], &["\"/no/such/driver\" cannot be started"]),
    ] {
        let mut chaos = Chaos::begin(tempfile::tempdir().unwrap(), script, arguments);
        assert_eq!(chaos.ended().code(), Some(1), "{arguments:?}");
        let log = chaos.log();
        for word in words {
            assert!(log.contains(word), "{word} is missing in {log}");
        }
        assert!(!chaos.socket().exists());
    }
}

/// The same seed does the same.
#[tokio::test]
async fn a_seed_is_told_and_kept_to() {
    let script = json!({ "rules": [{ "method": "GetCapacity", "probability": 0.5, "code": "INTERNAL" }] });
    let mut runs = Vec::new();
    for _ in 0..2 {
        let chaos = Chaos::start(&script, &[&["--seed", "42"][..], &DIR].concat());
        assert!(chaos.log().contains("seed=42"), "{}", chaos.log());
        let plugin = chaos.plugin();
        let mut run = String::new();
        for _ in 0..20 {
            let asked = plugin.get_capacity(proto::GetCapacityRequest::default(), LONG).await;
            run.push(if asked.is_ok() { '-' } else { 'x' });
        }
        runs.push(run);
    }
    assert!(runs[0] == runs[1] && runs[0].contains('x') && runs[0].contains('-'), "{runs:?}");
}
