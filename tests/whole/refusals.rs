//! What bad input gets: one clear line and an exit code, and nothing half done.
use std::process::Stdio;

use crate::quickstart;
use crate::rig::Rig;

fn fails(rig: &Rig, args: &[&str]) -> String {
    let output = rig.up_command(args).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "it never said ready");
    let text = String::from_utf8(output.stderr).unwrap();
    let errors: Vec<_> = text.lines().filter(|l| l.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{text}");
    errors[0].to_owned()
}

#[test]
fn a_second_up_and_a_taken_port_get_one_line() {
    let mut rig = Rig::new();
    rig.up();
    let line = fails(&rig, &["--listen", "127.0.0.1:0"]);
    assert!(line.contains("in use") && line.contains(rig.data.path().to_str().unwrap()), "{line}");
    let other = Rig::new();
    let line = fails(&other, &["--listen", rig.address()]);
    assert!(line.contains(rig.address()) && line.contains("--listen"), "{line}");
    let line = fails(&other, &["--listen", "127.0.0.1:0", "--node-name", "Node_A"]);
    assert!(line.contains("Node_A") && line.contains("--node-name"), "{line}");
    rig.run(&["down"]);
    rig.ended();
    rig.assert_nothing_left();
}

/// Under another name nothing would be wanted of the node, and all that runs would be taken down.
#[test]
fn a_node_keeps_the_name_of_its_first_start() {
    let mut rig = Rig::new();
    rig.up();
    rig.kill();
    let line = fails(&rig, &["--listen", "127.0.0.1:0", "--node-name", "node-b"]);
    assert!(line.contains("node-a") && line.contains("node-b"), "{line}");
    rig.up_with(&["--listen", "127.0.0.1:0"]);
    assert_eq!(rig.list("nodeagents").len(), 1, "without the flag it is the same node");
    rig.run(&["down"]);
    rig.ended();
    rig.assert_nothing_left();
}

/// In an empty store nothing is wanted of what runs, and all of it would be ended without a word.
#[test]
fn a_store_that_was_lost_ends_no_task() {
    let mut rig = Rig::new();
    rig.up();
    quickstart::started(&rig);
    rig.kill();
    let before = (rig.mounts(), rig.processes());
    for file in std::fs::read_dir(rig.data.path()).unwrap().map(|f| f.unwrap().path()) {
        if file.file_name().unwrap().to_string_lossy().starts_with("store.") {
            std::fs::remove_file(file).unwrap();
        }
    }
    let line = fails(&rig, &["--listen", "127.0.0.1:0"]);
    assert!(line.contains("another store") && line.contains("wharfline down"), "{line}");
    assert_eq!(before, (rig.mounts(), rig.processes()));
    let out = rig.run(&["down"]);
    assert!(out.contains("not deleted: volume") && out.ends_with("down\n"), "{out}");
    rig.assert_nothing_left();
    rig.up_with(&["--listen", "127.0.0.1:0"]);
    assert_eq!(rig.list("nodes")[0]["metadata"]["name"], "node-a", "it keeps its name");
    rig.run(&["down"]);
    rig.ended();
    rig.assert_nothing_left();
}

/// The newest writes are in the log alone: whoever starts without the rest must not overwrite it.
#[test]
fn a_log_without_its_store_is_kept() {
    let mut rig = Rig::new();
    rig.up();
    rig.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: late, namespace: default}}");
    rig.kill();
    let (store, aside) = (rig.data.path().join("store.redb"), rig.data.path().join("aside"));
    std::fs::rename(&store, &aside).unwrap();
    let line = fails(&rig, &["--listen", "127.0.0.1:0"]);
    assert!(line.contains("put it back"), "{line}");
    std::fs::rename(&aside, &store).unwrap();
    rig.up_with(&["--listen", "127.0.0.1:0"]);
    assert_eq!(rig.get("configmap", "late")["metadata"]["name"], "late");
    rig.run(&["down"]);
    rig.ended();
    rig.assert_nothing_left();
}

/// What `up` writes into the kubeconfig can be reached, and its certificate is for that.
#[test]
fn every_address_to_listen_on_can_be_used() {
    for (listen, reached) in [("0.0.0.0:0", "127.0.0.1:"), ("127.0.0.2:0", "127.0.0.2:")] {
        let mut rig = Rig::new();
        rig.up_with(&["--listen", listen]);
        assert!(rig.address().starts_with(reached), "{listen}: {}", rig.address());
        assert_eq!(rig.list("nodeagents").len(), 1, "{listen}");
        rig.run(&["down"]);
        rig.ended();
        rig.assert_nothing_left();
    }
}

#[test]
fn three_faults_are_three_lines_and_nothing_is_stored() {
    let mut rig = Rig::new();
    rig.up();
    let file = rig.data.path().with_extension("yaml");
    std::fs::write(
        &file,
        "apiVersion: wharfline.dev/v1alpha1\nkind: VolumeClaim\nmetadata: {name: bad, namespace: default}\n\
         spec:\n  volumeClassName: x\n  accessModes: []\n  resources: {requests: {storage: ten}, limits: {storage: \"0\"}}\n",
    )
    .unwrap();
    let output = rig.try_run(&["apply", "-f", file.to_str().unwrap()]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    for path in ["spec.accessModes", "spec.resources.requests.storage", "spec.resources.limits.storage"] {
        assert!(text.contains(path), "{path} is missing in\n{text}");
    }
    assert!(rig.list("volumeclaims").is_empty());
    std::fs::write(
        &file,
        "apiVersion: wharfline.dev/v1alpha1\nkind: VolumeClass\nmetadata: {name: bad}\nspec: {plugin: x, reclaimPolcy: Retain}\n",
    )
    .unwrap();
    let output = rig.try_run(&["apply", "-f", file.to_str().unwrap()]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains("reclaimPolcy") && text.contains("reclaimPolicy"),
        "the nearest known name: {text}"
    );
    assert!(rig.list("volumeclasses").is_empty());
    rig.run(&["down"]);
    rig.ended();
    rig.assert_nothing_left();
}
