//! A driver of another project, cfgd-csi of crates.io, as it is, in a container. It is one for nodes alone: it stages and
//! publishes read-only directories of its own, wants its socket as a plain path, and removes what it published at itself.
use std::path::Path;

use serde_json::{Value, json};

use crate::containers::lent;
use crate::rig::{Rig, until};

/// Where `tools/fetch-csi-driver` puts it.
const TOOLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/tools/bin");
const GREETING: &str = "from a driver of another project";

fn manifest() -> String {
    let meta = |name: &str| json!({ "name": name });
    let binds = lent().map(|(path, at)| json!({ "path": path, "mountPath": at, "readOnly": true }));
    let own = json!({ "path": "${DATA_DIR}/drivers", "mountPath": "/cache" });
    let tools = json!({ "path": TOOLS, "mountPath": "/driver", "readOnly": true });
    // The first of what is lent is Wharfline's own program, which nobody needs here.
    let paths: Vec<Value> = binds.into_iter().skip(1).chain([own, tools]).collect();
    let plugin = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Plugin", "metadata": meta("modules"),
        "spec": { "driverName": "csi.cfgd.io", "instances": [{
            "name": "node", "role": "Node", "placement": { "everyNode": {} }, "mountDir": "/csi",
            "env": { "CSI_ENDPOINT": "${CSI_SOCKET}", "CACHE_DIR": "/cache", "METRICS_PORT": "0" },
            "runtime": { "oci": { "archive": "${DATA_DIR}/image-archives/busybox.tar",
                "command": ["/driver/cfgd-csi"], "hostPaths": paths } } }] } });
    let volume = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Volume", "metadata": meta("tools"),
        "spec": { "plugin": "modules", "accessModes": ["MultiNodeReaderOnly"],
            "source": { "existing": { "handle": "tools-1", "context": { "module": "tools", "version": "1" } } } } });
    let claim = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "VolumeClaim",
        "metadata": { "name": "tools", "namespace": "default" },
        "spec": { "volumeName": "tools", "accessModes": ["MultiNodeReaderOnly"] } });
    let script = "trap 'exit 0' TERM; cat /data/greeting; sleep infinity & wait";
    let task = |runtime: Value| {
        json!([{ "name": "reader", "runtime": runtime,
            "volumeMounts": [{ "name": "data", "mountPath": "/data", "readOnly": true }] }])
    };
    let command = json!(["/bin/sh", "-c", script]);
    let runtimes = [
        (
            "boxed",
            json!({ "oci": { "archive": "${DATA_DIR}/image-archives/busybox.tar", "command": command } }),
        ),
        ("plain", json!({ "process": { "command": command } })),
    ];
    let users = runtimes.map(|(name, runtime)| {
        json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Allocation",
            "metadata": { "name": name, "namespace": "default" },
            "spec": { "volumes": [{ "name": "data", "claimName": "tools", "readOnly": true }], "tasks": task(runtime) } })
    });
    let all = [plugin, volume, claim].into_iter().chain(users).map(|document| document.to_string());
    all.collect::<Vec<_>>().join("\n---\n")
}

/// What it keeps in its cache, as if it had pulled it.
fn fill(rig: &Rig) {
    let module = rig.data.path().join("drivers/tools/1");
    std::fs::create_dir_all(&module).unwrap();
    std::fs::write(module.join("greeting"), GREETING).unwrap();
    std::fs::write(module.join(".cfgd-complete"), "").unwrap();
}

fn up(rig: &mut Rig) {
    let drivers = rig.data.path().join("drivers").to_str().unwrap().to_owned();
    let lent = lent().map(|(path, _)| path);
    let mut args = vec!["--listen", "127.0.0.1:0", "--node-name", "node-a"];
    let binds = [drivers.as_str(), TOOLS].into_iter().chain(lent.iter().map(String::as_str));
    args.extend(binds.flat_map(|path| ["--bind-path", path]));
    rig.up_with(&args);
}

/// The driver's process.
fn driver(rig: &Rig) -> Option<u32> {
    let tasks = std::fs::read_dir(rig.data.path().join("tasks")).unwrap().flatten();
    let states = tasks.filter_map(|task| std::fs::read(task.path().join("state.json")).ok());
    let pids =
        states.filter_map(|state| serde_json::from_slice::<Value>(&state).ok()?["task"]["pid"].as_u64());
    let named = |pid: &u64| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.starts_with(b"/driver/cfgd-csi")
    };
    pids.filter(named).last().and_then(|pid| u32::try_from(pid).ok())
}

/// Scenario Q17.
/// It is not ours, knows nothing of us, and is run, found again, replaced and taken down like any other.
#[test]
fn a_driver_of_another_project_serves_from_a_container_through_every_restart() {
    assert!(Path::new(TOOLS).join("cfgd-csi").exists(), "tools/fetch-csi-driver brings the driver");
    let mut rig = Rig::new();
    fill(&rig);
    let images = rig.data.path().join("image-archives");
    std::fs::create_dir(&images).unwrap();
    crate::image::save_busybox(&images.join("busybox.tar"));
    up(&mut rig);
    rig.apply(&manifest());
    for user in ["allocation/boxed", "allocation/plain"] {
        rig.wait_ready(user);
        until("it reads the volume", || {
            rig.run(&["logs", user.strip_prefix("allocation/").unwrap()]).contains(GREETING)
        });
    }
    let instance = rig.list("plugininstances").remove(0)["status"].clone();
    assert_eq!(instance["provider"], json!({ "name": "csi.cfgd.io", "version": "0.4.0" }), "{instance}");
    let words = instance["capabilities"].to_string();
    assert!(words.contains("STAGE_UNSTAGE_VOLUME") && words.contains("GET_VOLUME_STATS"), "{words}");

    let (mounts, first) = (rig.mounts(), driver(&rig).unwrap());
    rig.kill();
    up(&mut rig);
    rig.wait_ready("plugin/modules");
    assert_eq!((rig.mounts(), driver(&rig)), (mounts.clone(), Some(first)), "found again as it was");

    let pid = rustix::process::Pid::from_raw(i32::try_from(first).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    until("another one runs", || driver(&rig).is_some_and(|now| now != first));
    rig.wait_ready("plugin/modules");
    assert_eq!(rig.mounts(), mounts, "what it mounted outlives it");

    // The one that is there now has published none of it.
    rig.run(&["delete", "allocation", "boxed", "plain"]);
    rig.run(&["delete", "volumeclaim/tools", "volume/tools", "plugin/modules"]);
    for kind in ["volumes", "volumeattachments", "allocations", "plugins", "plugininstances"] {
        until(&format!("no {kind} are left"), || rig.list(kind).is_empty());
    }
    let kept = rig.data.path().join("drivers/tools/1/greeting");
    assert_eq!(std::fs::read_to_string(kept).unwrap(), GREETING, "what it keeps is its own");
    rig.terminate();
    rig.run(&["down"]);
    rig.assert_nothing_left();
}
