//! `volume audit` and `volume adopt`, with `csi dir`.
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::copies::{filled, greeting_of};
use crate::quickstart::{QUICKSTART, started};
use crate::rig::{Rig, until};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn audit(rig: &Rig, more: &[&str]) -> Output {
    rig.try_run(&[&["volume", "audit"], more].concat())
}

fn fits(rig: &Rig, said: &str) {
    let output = audit(rig, &[]);
    let told = text(&output.stderr);
    assert!(output.status.success() && output.stdout.is_empty() && told.contains(said), "{output:?}");
}

fn mount(command: &str, args: &[&str]) {
    assert!(Command::new(command).args(args).status().unwrap().success(), "{command} {args:?}");
}

/// Nothing is half done, and what is adopted already is used as its Volume says.
fn wrong_words_do_nothing(rig: &Rig, handle: &str) {
    let odd = rig.try_run(&["volume", "adopt", handle, "--plugin", "dir", "--claim", "No_Name"]);
    assert!(!odd.status.success() && rig.list("volumes").is_empty(), "{odd:?}");
    rig.run(&["volume", "adopt", handle, "--plugin", "dir", "--mode", "MultiNodeReaderOnly"]);
    let claim = |more: &[&str]| {
        let adopt = ["volume", "adopt", handle, "--plugin", "dir", "--claim", "again", "--dry-run=server"];
        rig.try_run(&[&adopt[..], more].concat())
    };
    for wrong in [&["--name", "other"][..], &["--block"], &["--mode", "MultiNodeMultiWriter"]] {
        assert_eq!(claim(wrong).status.code(), Some(4), "{wrong:?}");
    }
    assert!(claim(&[]).status.success(), "it is used as its Volume says");
    let adopted = rig.list("volumes").remove(0);
    assert_eq!(adopted["spec"]["source"]["existing"]["capacity"], "64Mi");
    rig.run(&["delete", "volume", adopted["metadata"]["name"].as_str().unwrap()]);
}

/// What a person let go of and forgot is found, told with what to do, and used again with one command.
#[test]
fn what_nobody_knows_any_more_is_found_and_adopted() {
    let mut rig = Rig::new();
    rig.up();
    fits(&rig, "No plugins");
    started(&rig);
    fits(&rig, "1 volume listed by 1 instance; all of them fit");
    // Several at once wait for one another, and each gets its answer.
    let audits: Vec<_> =
        (0..4).map(|_| rig.command(&["volume", "audit"]).stderr(Stdio::null()).spawn().unwrap()).collect();
    for mut audit in audits {
        assert!(audit.wait().unwrap().success());
    }
    let volume = rig.list("volumes").remove(0);
    let (name, handle) =
        (volume["metadata"]["name"].as_str().unwrap(), volume["status"]["handle"].as_str().unwrap());
    rig.run(&["patch", "volume", name, "-p", r#"{"spec":{"reclaimPolicy":"Retain"}}"#]);
    for (kind, name) in [("allocation", "hello"), ("volumeclaim", "data"), ("volume", name)] {
        rig.run(&["delete", kind, name]);
    }
    let output = audit(&rig, &["dir"]);
    let (table, told) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        table.contains("unknown") && table.contains(handle) && table.contains("no Volume has this handle"),
        "{table}"
    );
    let node = rig.list("nodes").remove(0)["metadata"]["name"].as_str().unwrap().to_owned();
    let advice = format!("wharfline volume adopt --plugin dir --node {node} {handle}");
    assert!(told.contains("1 thing does not fit") && told.contains(&advice), "{told}");
    let found: Value = serde_json::from_slice(&audit(&rig, &["-o", "json"]).stdout).unwrap();
    assert_eq!((&found[0]["what"], &found[0]["subject"]), (&json!("Unknown"), &json!(handle)), "{found}");

    let tried =
        rig.run(&["volume", "adopt", handle, "--plugin", "dir", "--claim", "again", "--dry-run=server"]);
    assert!(tried.contains("created (only tried, by the server)"), "{tried}");
    assert_eq!(rig.list("volumes"), Vec::<Value>::new());
    wrong_words_do_nothing(&rig, handle);
    rig.run(&["volume", "adopt", handle, "--plugin", "dir", "--claim", "again"]);
    let user = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Allocation", "metadata": { "name": "again" },
        "spec": { "volumes": [{ "name": "data", "claimName": "again" }] } });
    rig.apply(&user.to_string());
    rig.wait_ready("allocation/again");
    assert_eq!(greeting_of(&rig, "again"), "hello from wharfline\n");
    fits(&rig, "1 volume listed by 1 instance; all of them fit");
    let twice = rig.try_run(&["volume", "adopt", handle, "--plugin", "dir", "--name", "twice"]);
    assert_eq!(twice.status.code(), Some(4), "{twice:?}");
    let none = rig.try_run(&["volume", "adopt", "nothing", "--plugin", "dir"]);
    assert_eq!(none.status.code(), Some(3), "{none:?}");
    assert_eq!(audit(&rig, &["nobody"]).status.code(), Some(3));
    assert_eq!(audit(&rig, &["-o", "yaml"]).status.code(), Some(2));
    let instance = rig.list("plugininstances").remove(0);
    assert_eq!((&instance["spec"]["audit"], &instance["status"]["audit"]), (&Value::Null, &Value::Null));

    // A mount that no record owns is told of its node.
    let published =
        rig.get("allocation", "again")["status"]["volumes"][0]["path"].as_str().unwrap().to_owned();
    let stray = std::path::Path::new(&published).ancestors().nth(2).unwrap().join("stray");
    let path = stray.to_str().unwrap();
    rig.kill();
    std::fs::create_dir(&stray).unwrap();
    mount("mount", &["-t", "tmpfs", "none", path]);
    rig.up();
    let output = audit(&rig, &[]);
    mount("umount", &[path]);
    std::fs::remove_dir(&stray).unwrap();
    assert!(text(&output.stdout).contains(path), "{output:?}");
    for (kind, name) in [("allocation", "again"), ("volumeclaim", "again")] {
        rig.run(&["delete", kind, name]);
    }
    rig.run(&["down", "--delete-volumes"]);
    rig.ended();
    rig.assert_nothing_left();
    let volumes = rig.data.path().join("drivers/dir/volumes");
    assert_eq!(std::fs::read_dir(volumes).unwrap().count(), 1, "what was adopted is kept");
}

fn snapshot(name: &str) -> String {
    json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Snapshot", "metadata": { "name": name },
        "spec": { "source": { "claimName": "data" }, "deletionPolicy": "Retain" } })
    .to_string()
}

/// Snapshots are looked for likewise. What is registered and was never there is told, of volumes and of snapshots.
#[test]
fn a_snapshot_that_nobody_knows_any_more_is_found_and_adopted() {
    let mut rig = Rig::new();
    rig.up();
    started(&rig);
    rig.apply(&snapshot("monday"));
    rig.wait_ready("snapshot/monday");
    fits(&rig, "1 volume and 1 snapshot listed by 1 instance; all of them fit");
    let handle = rig.get("snapshot", "monday")["status"]["handle"].as_str().unwrap().to_owned();
    let known = rig.try_run(&["snapshot", "adopt", &handle, "--plugin", "dir"]);
    assert_eq!(known.status.code(), Some(4), "{known:?}");
    rig.run(&["delete", "snapshot", "monday"]);
    let output = audit(&rig, &[]);
    let (table, told) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    for part in ["unknown snapshot", &handle, "UTC of volume", "no Snapshot has this handle"] {
        assert!(table.contains(part), "{part} is missing in\n{table}");
    }
    let node = rig.list("nodes").remove(0)["metadata"]["name"].clone();
    let advice = format!("wharfline snapshot adopt --plugin dir --node {} {handle}", node.as_str().unwrap());
    assert!(told.contains(&advice), "{told}");
    let found: Value = serde_json::from_slice(&audit(&rig, &["-o", "json"]).stdout).unwrap();
    assert_eq!(
        (&found[0]["what"], &found[0]["subject"]),
        (&json!("UnknownSnapshot"), &json!(handle)),
        "{found}"
    );

    let adopt = ["snapshot", "adopt", &handle, "--plugin", "dir", "--name", "again"];
    let tried = rig.run(&[&adopt[..], &["--dry-run=server"]].concat());
    assert!(tried.contains("snapshot/again created (only tried, by the server)"), "{tried}");
    assert_eq!(rig.list("snapshots"), Vec::<Value>::new());
    rig.run(&adopt);
    rig.wait_ready("snapshot/again");
    rig.apply(&filled("restored", &json!({ "snapshotName": "again" }), "64Mi"));
    rig.wait_ready("allocation/restored");
    assert_eq!(greeting_of(&rig, "restored"), "hello from wharfline\n");
    fits(&rig, "2 volumes and 1 snapshot listed by 1 instance; all of them fit");
    let classless = rig.try_run(&[&adopt[..], &["--class", "none"]].concat());
    assert_eq!(classless.status.code(), Some(3), "{classless:?}");
    let none = rig.try_run(&["snapshot", "adopt", "nothing", "--plugin", "dir"]);
    assert_eq!(none.status.code(), Some(3), "{none:?}");

    let volume = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Volume", "metadata": { "name": "gone" },
        "spec": { "plugin": "dir", "accessModes": ["SingleNodeWriter"],
            "source": { "existing": { "handle": "no-volume", "nodeName": node } } } });
    let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Snapshot", "metadata": { "name": "gone" },
        "spec": { "source": { "handle": "no-snapshot", "plugin": "dir", "nodeName": node } } });
    rig.apply(&volume.to_string());
    rig.apply(&object.to_string());
    let found: Value = serde_json::from_slice(&audit(&rig, &["-o", "json"]).stdout).unwrap();
    let word = |one: &Value, field: &str| one[field].as_str().unwrap_or_default().to_owned();
    let all: Vec<_> =
        found.as_array().unwrap().iter().map(|one| (word(one, "what"), word(one, "subject"))).collect();
    let expected = [("NotListed", "no-volume"), ("SnapshotNotListed", "no-snapshot")];
    assert_eq!(all, expected.map(|(what, subject)| (what.to_owned(), subject.to_owned())));
    assert!(rig.run(&["get", "volume", "gone"]).contains("Retain"), "that is kept");
    rig.run(&["delete", "volume", "gone"]);
    for name in ["gone", "again"] {
        rig.run(&["delete", "snapshot", name]);
    }
    for name in ["restored", "hello"] {
        rig.run(&["delete", "allocation", name]);
    }
    rig.run(&["down", "--delete-volumes"]);
    rig.ended();
    rig.assert_nothing_left();
    let snapshots = rig.data.path().join("drivers/dir/snapshots");
    assert_eq!(std::fs::read_dir(snapshots).unwrap().count(), 1, "what was adopted is kept");
}

/// Scenario B118: who asks for a list waits, and nobody else.
#[test]
fn a_driver_that_is_slow_to_list_delays_no_volume() {
    let mut rig = Rig::new();
    rig.up();
    let script = rig.data.path().join("chaos.yaml");
    std::fs::write(
        &script,
        "rules:\n  - {method: ListVolumes, delay: 10m}\n  - {method: GetCapacity, delay: 10m}\n",
    )
    .unwrap();
    let chaos =
        format!("command: [wharfline, csi, chaos, --script, {}, --, wharfline, csi, dir,", script.display());
    let wrapped = QUICKSTART.replace("command: [wharfline, csi, dir,", &chaos);
    assert_ne!(wrapped, QUICKSTART);
    rig.apply(&wrapped);
    rig.wait_ready("allocation/hello");
    let mut audit = rig.command(&["volume", "audit"]).stderr(Stdio::null()).spawn().unwrap();
    until("it is asked", || rig.list("plugininstances")[0]["spec"]["audit"].is_object());
    rig.apply(&filled("second", &Value::Null, "1Mi"));
    rig.wait_ready("allocation/second");
    for name in ["hello", "second"] {
        rig.run(&["delete", "allocation", name]);
    }
    for name in ["data", "second"] {
        rig.run(&["delete", "volumeclaim", name]);
    }
    assert!(audit.try_wait().unwrap().is_none(), "it still waits");
    audit.kill().unwrap();
    audit.wait().unwrap();
    let short = rig.try_run(&["volume", "audit", "--timeout", "1s"]);
    assert_eq!(short.status.code(), Some(5), "{short:?}");
    assert!(text(&short.stderr).contains("plugin/dir did not answer in time"), "{short:?}");
    rig.run(&["down"]);
    rig.ended();
    rig.assert_nothing_left();
}
