//! What a container may do with devices and mounts, as its own programs see it.
use serde_json::{Value, json};

use crate::containers::Driver;
use crate::rig::{Rig, until};

/// What each container tries. The kernel numbers: fuse 10:229, loop-control 10:237.
const TRIES: &str = r#"
opens() { ( : <> "$1" ) 2>/dev/null && echo "$2 opens" || echo "$2 does not open"; }
for name in fuse loop-control; do
    [ -c /dev/$name ] && echo "$name is there" || echo "no $name"
done
mknod /tmp/fuse c 10 229 && opens /tmp/fuse fuse
mknod /tmp/loop-control c 10 237 && opens /tmp/loop-control loop-control
mkdir -p /mnt && mount -t tmpfs none /mnt 2>/dev/null && echo mounts || echo "may not mount"
"#;

/// A task that tries all of it once, as a container with these fields more.
fn task(name: &str, more: &Value) -> String {
    let mut oci = json!({ "archive": "${DATA_DIR}/image-archives/busybox.tar",
        "command": ["/bin/sh", "-c", format!("mkdir -p /tmp; {TRIES}")] });
    oci.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Allocation",
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "tasks": [{ "name": "main", "restartPolicy": "Never", "runtime": { "oci": oci } }] } })
    .to_string()
}

#[test]
fn a_container_has_the_devices_and_the_rights_that_it_was_given_and_no_other() {
    let mut rig = Rig::new();
    Driver::Lent.up_with(&mut rig, &["--allow-privileged"]);
    let neither = ["fuse does not open", "loop-control does not open"];
    for (name, more, wanted) in [
        ("plain", json!({}), [&["no fuse", "no loop-control"][..], &neither, &["may not mount"]].concat()),
        (
            "given",
            json!({ "devices": ["/dev/fuse"] }),
            vec!["fuse is there", "no loop-control", "fuse opens", neither[1], "may not mount"],
        ),
        // It is not root's capability alone that mounts.
        (
            "mounts",
            json!({ "capabilities": { "add": ["SYS_ADMIN"] } }),
            [&["no fuse", "no loop-control"][..], &neither, &["mounts"]].concat(),
        ),
        (
            "privileged",
            json!({ "privileged": true }),
            vec!["no fuse", "no loop-control", "fuse opens", "loop-control opens", "mounts"],
        ),
        (
            "all",
            json!({ "privileged": true, "hostDevices": true }),
            vec!["fuse is there", "loop-control is there", "fuse opens", "loop-control opens", "mounts"],
        ),
    ] {
        rig.apply(&task(name, &more));
        let ended = || rig.get("allocation", name)["status"]["tasks"][0]["exitCode"].is_number();
        until(&format!("{name} has ended"), ended);
        let said = rig.run(&["logs", name]);
        assert_eq!(said.lines().collect::<Vec<_>>(), wanted, "{name}");
        rig.run(&["delete", "allocation", name]);
    }
    until("no allocation is left", || rig.list("allocations").is_empty());
    rig.terminate();
    rig.run(&["down"]);
    rig.assert_nothing_left();
}
