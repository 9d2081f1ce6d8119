//! `wharfline snapshot blocks`: from the driver to whoever asks on its node.
use std::time::Duration;

use serde_json::json;
use wharfline::csi::{Plugin, PluginOptions, Rpc, UnixConnector};

use crate::rig::Rig;
use crate::scripted::{Answer, Backend, Config, Gate, Scripted, Site, requests};

const MIB: i64 = 1 << 20;

fn object(kind: &str, name: &str, spec: &serde_json::Value) -> String {
    json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": kind, "metadata": { "name": name }, "spec": spec })
        .to_string()
}

/// Part of obligation CO-META-01.
#[test]
fn the_blocks_of_a_snapshot_are_printed_and_it_is_said_when_they_cannot_be() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let _inside = runtime.enter();
    let backend = Backend::new(Config::everything());
    backend.configure(|config| {
        config.allocated = vec![(0, 4096), (8192, 4096), (MIB - 4096, 4096)];
        config.changed = Some(vec![(8192, 4096)]);
    });
    let directory = tempfile::Builder::new().prefix("driver").tempdir_in("/var/tmp").unwrap();
    let driver = Scripted::start(&backend, Site::new("i-a"), directory.path().join("csi.sock"));
    let handles = runtime.block_on(async {
        let client = Plugin::new(UnixConnector::new(driver.socket()).unwrap(), PluginOptions::default());
        let wait = Duration::from_secs(20);
        let volume = client.create_volume(requests::create("pvc"), wait).await.unwrap().volume_id;
        let one = client.create_snapshot(requests::snapshot(&volume, "one"), wait).await.unwrap();
        let two = client.create_snapshot(requests::snapshot(&volume, "two"), wait).await.unwrap();
        [one.snapshot_id, two.snapshot_id]
    });

    let mut rig = Rig::new();
    rig.up();
    let external = json!({ "name": "all", "role": "Monolith", "placement": { "everyNode": {} },
        "runtime": { "external": { "socket": driver.socket() } } });
    rig.apply(&object("Plugin", "disk", &json!({ "instances": [external], "alpha": true })));
    rig.wait_ready("plugin/disk");
    for (name, handle) in ["one", "two"].into_iter().zip(&handles) {
        let source = json!({ "handle": handle, "plugin": "disk" });
        rig.apply(&object("Snapshot", name, &json!({ "source": source })));
        rig.wait_ready(&format!("snapshot/{name}"));
    }
    let tried = |args: &[&str]| {
        let output = rig.try_run(&[&["snapshot", "blocks"], args].concat());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let table = "OFFSET               SIZE\n0                    4096\n8192                 4096\n1044480              4096\n";
    let all = (Some(0), table.to_owned(), "3 blocks, 12Ki of 1Mi: hold something\n".to_owned());
    assert_eq!(tried(&["two"]), all);
    let changed = "{\"offset\":8192,\"size\":4096}\n{\"capacity\":1048576,\"complete\":true}\n";
    let since = (Some(0), changed.to_owned(), "1 block, 4Ki of 1Mi: changed\n".to_owned());
    assert_eq!(tried(&["snapshot/two", "--since", "one", "-o", "json"]), since);
    let (code, out, told) = tried(&["two", "--from", "9999"]);
    assert_eq!((code, out.lines().count(), told.contains("2 blocks")), (Some(0), 3, true), "{out}{told}");

    let fails = |args: &[&str], code: i32, said: &[&str]| {
        let (got, _, told) = tried(args);
        assert_eq!(got, Some(code), "{told}");
        assert!(said.iter().all(|said| told.contains(said)), "{told}");
    };
    fails(&["none"], 3, &["none"]);
    fails(&["two", "-o", "yaml"], 2, &["-o yaml"]);
    fails(&["one", "--since", "one"], 1, &["--since names Snapshot \"default/one\" itself"]);
    backend.configure(|config| config.changed = None);
    fails(&["two", "--since", "one"], 1, &["changes are not tracked", "leave --since out"]);
    let socket = rig.data.path().join("daemon.sock");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&socket).unwrap().permissions());
    assert_eq!(mode & 0o077, 0, "root alone may ask");

    for name in ["one", "two"] {
        rig.run(&["delete", "snapshot", name]);
    }
    rig.run(&["delete", "plugin", "disk"]);
    rig.terminate();
    assert!(!socket.exists(), "a daemon that ends takes its socket away");
    rig.run(&["down"]);
    rig.assert_nothing_left();
    backend.assert_lawful();
}

/// A driver that has not cut it in time, and one that is not ready when it has; a person who ends the command meanwhile.
///
/// Obligation CO-CTRL-87.
#[test]
fn what_writes_goes_on_when_a_snapshot_is_cut_and_however_that_ends() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let _inside = runtime.enter();
    let backend = Backend::new(Config::everything());
    let directory = tempfile::Builder::new().prefix("driver").tempdir_in("/var/tmp").unwrap();
    let driver = Scripted::start(&backend, Site::new("i-a"), directory.path().join("csi.sock"));
    let mut rig = Rig::new();
    rig.up();
    let external = json!({ "name": "all", "role": "Monolith", "placement": { "everyNode": {} },
        "runtime": { "external": { "socket": driver.socket() } } });
    rig.apply(&object("Plugin", "disk", &json!({ "instances": [external] })));
    rig.wait_ready("plugin/disk");
    rig.apply(&object("VolumeClass", "disk", &json!({ "plugin": "disk" })));
    rig.apply(&object(
        "VolumeClaim",
        "data",
        &json!({ "volumeClassName": "disk", "accessModes": ["SingleNodeWriter"], "resources": { "requests": { "storage": "1Mi" } } }),
    ));
    rig.wait_ready("volumeclaim/data");

    let log = rig.data.path().join("hooks");
    let hook = |word: &str| format!("echo {word} >> {}", log.display());
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    let (freeze, thaw) = (hook("freeze"), hook("thaw"));
    let take = |name: &str, timeout: &str| {
        let words = ["snapshot", "take", name, "--claim", "data", "--freeze", &freeze, "--thaw", &thaw];
        [words.as_slice(), &["--timeout", timeout]]
            .concat()
            .into_iter()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let ready_after = |n: u32| backend.configure(|config| config.ready_after = n);

    // Cut, and not ready for long.
    ready_after(u32::MAX);
    rig.run(&take("slow", "20s").iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(said(), "freeze\nthaw\n");
    assert_ne!(rig.get("snapshot", "slow")["status"]["ready"], json!(true));
    ready_after(0);

    // Not cut in time: it goes again.
    let gate = Gate::new();
    backend.next(Rpc::CreateSnapshot, Answer::honest().hang(&gate));
    let output = rig.try_run(&take("late", "2s").iter().map(String::as_str).collect::<Vec<_>>());
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(5) && told.contains("snapshot/late was not cut within 2s"),
        "{told}"
    );
    assert!(told.contains("snapshot/late is deleted again"), "{told}");
    assert_eq!(said(), "freeze\nthaw\n".repeat(2));
    gate.open();
    rig.run(&["wait", "--for=delete", "snapshot/late"]);

    // A person ends the command while it is being cut.
    let gate = Gate::new();
    backend.next(Rpc::CreateSnapshot, Answer::honest().hang(&gate));
    let words = take("ended", "60s");
    let mut command = rig.command(&words.iter().map(String::as_str).collect::<Vec<_>>()).spawn().unwrap();
    runtime.block_on(backend.until("it is being cut", |log| {
        log.iter().any(|call| call.rpc == Rpc::CreateSnapshot && call.in_flight())
    }));
    rustix::process::kill_process(rustix::process::Pid::from_child(&command), rustix::process::Signal::TERM)
        .unwrap();
    assert_eq!(command.wait().unwrap().code(), Some(1));
    assert_eq!(said(), "freeze\nthaw\n".repeat(3));
    gate.open();
    rig.run(&["wait", "--for=delete", "snapshot/ended"]);

    rig.run(&["delete", "snapshot", "slow"]);
    rig.run(&["delete", "volumeclaim", "data"]);
    rig.run(&["delete", "plugin", "disk"]);
    rig.terminate();
    rig.run(&["down"]);
    rig.assert_nothing_left();
    backend.assert_lawful();
}
