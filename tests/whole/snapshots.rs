//! Snapshots of claims and claims that begin with them, with `csi dir` and `csi loop`.
use serde_json::{Value, json};

use crate::copies::{ended, filled, greeting_of};
use crate::quickstart::started;
use crate::rig::{Rig, until};

fn snapshot(name: &str, policy: &str) -> String {
    json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Snapshot", "metadata": { "name": name },
        "spec": { "source": { "claimName": "data" }, "deletionPolicy": policy } })
    .to_string()
}

fn write(rig: &Rig, text: &str) {
    let path = rig.get("allocation", "hello")["status"]["volumes"][0]["path"].as_str().unwrap().to_owned();
    std::fs::write(std::path::Path::new(&path).join("greeting"), text).unwrap();
}

fn at_the_driver(rig: &Rig) -> usize {
    let snapshots = rig.data.path().join("drivers/dir/snapshots");
    std::fs::read_dir(snapshots).map_or(0, Iterator::count)
}

/// The order in which it is asked to hold still, cut and let go, as hooks and the driver's directory tell.
///
/// Obligation CO-CTRL-87.
#[test]
fn what_writes_holds_still_from_before_a_snapshot_is_asked_for_until_it_is_cut() {
    let mut rig = Rig::new();
    rig.up();
    started(&rig);
    let (log, cut) = (rig.data.path().join("hooks"), rig.data.path().join("drivers/dir/snapshots"));
    let hook = |word: &str| format!("echo {word} $(ls {} | wc -l) >> {}", cut.display(), log.display());
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    let tried = |name: &str, more: &[&str]| {
        let output = rig.try_run(&[&["snapshot", "take", name, "--claim", "data"], more].concat());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code().unwrap(), text(&output.stdout) + &text(&output.stderr))
    };
    let (freeze, thaw) = (hook("freeze"), hook("thaw"));
    let (code, told) = tried("one", &["--freeze", &freeze, "--thaw", &thaw]);
    assert_eq!((code, said().as_str()), (0, "freeze 0\nthaw 1\n"), "{told}");
    assert!(told.starts_with("snapshot/one cut; it held still for "), "{told}");
    rig.wait_ready("snapshot/one");

    // What cannot be is refused before anything holds still.
    let (code, told) = tried("one", &["--freeze", &freeze, "--thaw", &thaw]);
    assert_eq!((code, said().lines().count()), (4, 2), "{told}");
    assert_eq!(tried("two", &["--freeze", &freeze]).0, 2);
    // What does not hold still is not cut, and is let go.
    let (code, told) = tried("two", &["--freeze", "exit 3", "--thaw", &thaw]);
    assert!(code == 1 && told.contains("freeze failed") && told.contains("exit code 3"), "{told}");
    assert_eq!(said(), "freeze 0\nthaw 1\nthaw 1\n");
    let stays = format!("{freeze}; sleep 600");
    let (code, told) = tried("two", &["--freeze", &stays, "--thaw", &thaw, "--timeout", "1s"]);
    assert!(code == 1 && told.contains("it did not end within 1s"), "{told}");
    // What may hold still yet is said, with the command that ends it.
    let (code, told) = tried("two", &["--freeze", "true", "--thaw", "exit 4"]);
    assert!(code == 1 && told.contains("may hold still") && told.contains("try: exit 4"), "{told}");
    assert_eq!(rig.list("snapshots").len(), 2);
    for name in ["one", "two"] {
        rig.run(&["delete", "snapshot", name]);
    }
    rig.run(&["down", "--delete-volumes"]);
}

/// Scenarios B96, B98, B99.
/// No daemon that dies meanwhile makes a difference.
#[test]
fn a_claim_begins_with_what_was_there_when_its_snapshot_was_taken() {
    let mut rig = Rig::new();
    rig.up();
    started(&rig);
    rig.apply(&snapshot("monday", "Delete"));
    rig.wait_ready("snapshot/monday");
    write(&rig, "later\n");
    rig.apply(&snapshot("tuesday", "Retain"));
    rig.wait_ready("snapshot/tuesday");
    let monday = rig.get("snapshot", "monday");
    assert_eq!((&monday["status"]["size"], &monday["status"]["ready"]), (&json!("64Mi"), &json!(true)));
    assert!(monday["status"]["creationTime"].is_string(), "{monday}");
    let table = rig.run(&["get", "snapshots"]);
    for word in ["READY", "SOURCE", "SIZE", "True", "data", "64Mi"] {
        assert!(table.contains(word), "{word} is missing in\n{table}");
    }
    rig.kill();
    rig.up();
    rig.apply(&filled("restored", &json!({ "snapshotName": "monday" }), "100Mi"));
    rig.wait_ready("allocation/restored");
    assert_eq!(greeting_of(&rig, "restored"), "hello from wharfline\n", "not what was written later");
    // The claim and its volume go, and the pictures stay.
    rig.run(&["delete", "allocation", "hello"]);
    rig.run(&["delete", "volumeclaim", "data"]);
    rig.apply(&filled("second", &json!({ "snapshotName": "tuesday" }), ""));
    rig.wait_ready("allocation/second");
    assert_eq!(greeting_of(&rig, "second"), "later\n");
    rig.apply(&filled("small", &json!({ "snapshotName": "monday" }), "1Mi"));
    let why = |what: &str| String::from_utf8_lossy(&rig.try_run(&["why", what]).stdout).into_owned();
    until("why is told", || why("volumeclaim/small").contains("it has 64Mi; ask for no less"));
    rig.apply(&snapshot("late", "Delete"));
    until("why is told", || why("snapshot/late").contains("does not exist"));
    assert_eq!(at_the_driver(&rig), 2);
    for name in ["monday", "tuesday", "late"] {
        rig.run(&["delete", "snapshot", name]);
    }
    assert_eq!(at_the_driver(&rig), 1, "Retain leaves it");
    assert_eq!(rig.list("snapshots"), Vec::<Value>::new());
    let mut last: Value = serde_json::from_str(&snapshot("last", "Delete")).unwrap();
    last["spec"]["source"]["claimName"] = json!("second");
    rig.apply(&last.to_string());
    rig.wait_ready("snapshot/last");
    for name in ["small", "restored", "second"] {
        rig.run(&["delete", "allocation", name]);
        rig.run(&["delete", "volumeclaim", name]);
    }
    assert_eq!(at_the_driver(&rig), 2);
    let drivers = rig.data.path().join("drivers/dir/snapshots");
    rig.run(&["down", "--delete-volumes"]);
    assert_eq!(
        std::fs::read_dir(drivers).unwrap().count(),
        1,
        "what is deleted with volumes are snapshots, too"
    );
    ended(rig);
}
