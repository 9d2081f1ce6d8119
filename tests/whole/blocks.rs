//! `wharfline snapshot blocks`: from the driver to whoever asks on its node.
use std::time::Duration;

use serde_json::json;
use wharfline::csi::{Plugin, PluginOptions, UnixConnector};

use crate::rig::Rig;
use crate::scripted::{Backend, Config, Scripted, Site, requests};

const MIB: i64 = 1 << 20;

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
    let object = |kind: &str, name: &str, spec: serde_json::Value| {
        json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": kind, "metadata": { "name": name }, "spec": spec })
            .to_string()
    };
    let external = json!({ "name": "all", "role": "Monolith", "placement": { "everyNode": {} },
        "runtime": { "external": { "socket": driver.socket() } } });
    rig.apply(&object("Plugin", "disk", json!({ "instances": [external], "alpha": true })));
    rig.wait_ready("plugin/disk");
    for (name, handle) in ["one", "two"].into_iter().zip(&handles) {
        let source = json!({ "handle": handle, "plugin": "disk" });
        rig.apply(&object("Snapshot", name, json!({ "source": source })));
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
