//! Claims that begin as copies of others, with `csi dir`.
use serde_json::{Value, json};

use crate::quickstart::{greeting, started};
use crate::rig::{Rig, until};

/// A claim that is filled from another one, and who uses it.
pub(crate) fn filled(name: &str, source: &Value, size: &str) -> String {
    let objects = [
        json!({ "kind": "VolumeClaim", "metadata": { "name": name }, "spec": { "volumeClassName": "dir",
            "dataSource": source, "accessModes": ["SingleNodeWriter"],
            "resources": if size.is_empty() { json!({}) } else { json!({ "requests": { "storage": size } }) } } }),
        json!({ "kind": "Allocation", "metadata": { "name": name }, "spec": {
            "volumes": [{ "name": "data", "claimName": name }] } }),
    ];
    let text = |mut object: Value| {
        object["apiVersion"] = json!("wharfline.dev/v1alpha1");
        format!("{object}\n---\n")
    };
    objects.into_iter().map(text).collect()
}

/// What stands in the greeting of the volume that an allocation has.
pub(crate) fn greeting_of(rig: &Rig, allocation: &str) -> String {
    let path = rig.get("allocation", allocation)["status"]["volumes"][0]["path"].as_str().unwrap().to_owned();
    std::fs::read_to_string(std::path::Path::new(&path).join("greeting")).unwrap()
}

pub(crate) fn ended(mut rig: Rig) {
    rig.run(&["down", "--delete-volumes"]);
    rig.ended();
    rig.assert_nothing_left();
    let volumes = rig.data.path().join("drivers/dir/volumes");
    assert_eq!(std::fs::read_dir(volumes).unwrap().count(), 0, "a backend volume is left");
}

/// Scenario B101.
#[test]
fn a_claim_is_copied_with_what_is_in_it_and_lives_on_its_own() {
    let mut rig = Rig::new();
    rig.up();
    started(&rig);
    rig.apply(&filled("copy", &json!({ "claimName": "data" }), ""));
    rig.wait_ready("allocation/copy");
    assert_eq!(greeting_of(&rig, "copy"), greeting(&rig));
    assert_eq!(rig.get("volumeclaim", "copy")["status"]["capacity"], "64Mi", "as large as its source");
    // What is written now is in neither of the others.
    let path = rig.get("allocation", "hello")["status"]["volumes"][0]["path"].as_str().unwrap().to_owned();
    std::fs::write(std::path::Path::new(&path).join("greeting"), "later\n").unwrap();
    rig.kill();
    rig.up();
    rig.apply(&filled("second", &json!({ "claimName": "copy" }), "100Mi"));
    rig.wait_ready("allocation/second");
    assert_eq!(greeting_of(&rig, "second"), "hello from wharfline\n");
    assert_eq!(rig.get("volumeclaim", "second")["status"]["capacity"], "100Mi");
    // What a copy cannot be is said, and by whom it is waited for.
    rig.apply(&filled("small", &json!({ "claimName": "data" }), "1Mi"));
    let why = || String::from_utf8_lossy(&rig.try_run(&["why", "volumeclaim/small"]).stdout).into_owned();
    until("why is told", || why().contains("it has 64Mi; ask for no less"));
    for name in ["small", "hello", "copy"] {
        rig.run(&["delete", "allocation", name]);
    }
    for name in ["small", "data", "copy"] {
        rig.run(&["delete", "volumeclaim", name]);
    }
    assert_eq!(greeting_of(&rig, "second"), "hello from wharfline\n", "a copy needs its source no more");
    ended(rig);
}
