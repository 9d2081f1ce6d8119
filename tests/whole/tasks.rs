//! What a task is given beside its volumes: limits, a user, a directory of a volume.
use std::os::unix::fs::MetadataExt;

use serde_json::json;

use crate::quickstart::QUICKSTART;
use crate::rig::{Rig, until};

/// Scenario B95.
#[test]
fn a_task_has_its_user_its_limits_and_a_directory_of_its_volume() {
    let mut rig = Rig::new();
    rig.up();
    let before = QUICKSTART.rsplit_once("---").unwrap().0;
    let script =
        "id -u; grep -o wharfline /proc/self/cgroup | sort -u; ls -A /data | wc -l; exec sleep infinity";
    let hello = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Allocation",
        "metadata": { "name": "hello", "namespace": "default" },
        "spec": { "volumes": [{ "name": "data", "claimName": "data" }], "tasks": [{ "name": "reader",
            "runtime": { "process": { "command": ["/bin/sh", "-c", script], "user": "65534:65534" } },
            "resources": { "limits": { "memory": "64Mi", "cpu": "500m", "pids": "20" } },
            "volumeMounts": [{ "name": "data", "mountPath": "/data", "subPath": "app/db" }] }] } });
    rig.apply(&format!("{before}---\n{hello}"));
    rig.wait_ready("allocation/hello");
    until("it has said all", || rig.run(&["logs", "hello"]).lines().count() == 3);
    assert_eq!(rig.run(&["logs", "hello"]), "65534\nwharfline\n0\n");
    let path = rig.get("allocation", "hello")["status"]["volumes"][0]["path"].as_str().unwrap().to_owned();
    let who = |path: std::path::PathBuf| {
        let there = std::fs::metadata(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(there.is_dir(), "{}", path.display());
        (there.uid(), there.gid(), there.mode())
    };
    let volume = std::path::Path::new(&path);
    for made in ["app", "app/db"] {
        assert_eq!(
            who(volume.join(made)),
            who(volume.to_owned()),
            "{made}: made in the volume, for its users"
        );
    }

    // A link that somebody has left in the volume leads nowhere.
    std::os::unix::fs::symlink("/etc", std::path::Path::new(&path).join("out")).unwrap();
    std::fs::write(std::path::Path::new(&path).join("file"), "x").unwrap();
    let mut other = hello;
    other["metadata"]["name"] = json!("other");
    other["spec"]["tasks"][0]["volumeMounts"][0]["subPath"] = json!("out");
    rig.run(&["delete", "allocation/hello"]);
    rig.apply(&other.to_string());
    let told = || {
        let events = rig.list("events");
        let of_it = |e: &&serde_json::Value| e["reason"] == "TaskNotStarted";
        events.iter().find(of_it).map(|e| e["message"].as_str().unwrap_or_default().to_owned())
    };
    until("it is told", || told().is_some());
    let note = told().unwrap();
    assert!(note.contains("volume data, subPath \"out\": leads through a link"), "{note}");
    let other_now = rig.list("allocations").into_iter().find(|a| a["metadata"]["name"] == "other").unwrap();
    let ready = &other_now["status"]["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "Ready");
    assert_eq!(ready.unwrap()["reason"], "SubPathUnusable", "{other_now}");
    // A file is no directory, and nothing of the node's own paths is told.
    rig.run(&["delete", "allocation/other"]);
    other["metadata"]["name"] = json!("third");
    other["spec"]["tasks"][0]["volumeMounts"][0]["subPath"] = json!("file");
    rig.apply(&other.to_string());
    let says =
        "task t: volume data, subPath \"file\": is a file or leads through one; a subPath is a directory";
    let told = || {
        let events = rig.list("events");
        let text = |e: &serde_json::Value| e["message"].as_str().unwrap_or_default().to_owned();
        events.iter().map(text).any(|text| text.contains(says.split_once(": ").unwrap().1))
    };
    until("a file is told", told);
    rig.run(&["delete", "allocation/third", "volumeclaim/data", "volumeclass/dir", "plugin/dir"]);
    for kind in ["volumes", "allocations", "plugins"] {
        until(&format!("no {kind} are left"), || rig.list(kind).is_empty());
    }
    rig.terminate();
}

/// Scenario B89.
/// Beside a task that mounts the volume of its allocation is one that does not.
#[test]
fn a_volume_that_a_task_does_not_mount_is_not_in_it() {
    let mut rig = Rig::new();
    rig.up();
    let before = QUICKSTART.rsplit_once("---").unwrap().0;
    let script = "ls -d /data-of-b89 2>&1; grep -c data-of-b89 /proc/self/mountinfo; exec sleep infinity";
    let task = |name: &str, mounts: serde_json::Value| {
        json!({ "name": name, "volumeMounts": mounts,
            "runtime": { "process": { "command": ["/bin/sh", "-c", script] } } })
    };
    let with = task("with", json!([{ "name": "data", "mountPath": "/data-of-b89" }]));
    let hello = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Allocation",
        "metadata": { "name": "hello", "namespace": "default" },
        "spec": { "volumes": [{ "name": "data", "claimName": "data" }],
            "tasks": [with, task("without", json!([]))] } });
    rig.apply(&format!("{before}---\n{hello}"));
    rig.wait_ready("allocation/hello");
    let said = |task: &str| rig.run(&["logs", &format!("hello/{task}")]);
    for task in ["with", "without"] {
        until("it has said all", || said(task).lines().count() == 2);
    }
    let (with, without) = (said("with"), said("without"));
    let (listed, mounted) = with.trim_end().split_once('\n').unwrap();
    assert!(listed == "/data-of-b89" && mounted != "0", "{with}");
    let (listed, mounted) = without.trim_end().split_once('\n').unwrap();
    assert!(listed.contains("No such file") && mounted == "0", "{without}");
    rig.run(&["down", "--delete-volumes"]);
    rig.ended();
    rig.assert_nothing_left();
}

#[test]
fn what_a_task_that_fails_wrote_last_and_when_it_is_started_again_stand_in_describe() {
    let mut rig = Rig::new();
    rig.up();
    let task = |name: &str, script: &str, policy: &str| {
        json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Allocation",
            "metadata": { "name": name, "namespace": "default" },
            "spec": { "tasks": [{ "name": "main", "restartPolicy": policy,
                "runtime": { "process": { "command": ["/bin/sh", "-c", script] } } }] } })
    };
    rig.apply(&task("loops", "echo 'no such database' >&2; exit 3", "Always").to_string());
    rig.apply(&task("ends", "echo only this; exit 4", "Never").to_string());
    // Of both streams, and in the order in which they were written to.
    rig.apply(&task("both", "echo 'no such disk' >&2; sleep 0.2; echo goodbye; exit 4", "Never").to_string());
    rig.apply(&task("fine", "echo fine", "Never").to_string());
    let status = |rig: &Rig, name: &str| rig.get("allocation", name)["status"]["tasks"][0].clone();
    until("one has ended", || status(&rig, "ends")["exitCode"] == 4);
    assert_eq!(status(&rig, "ends")["lastOutput"], "only this");
    until("one that used both has ended", || status(&rig, "both")["exitCode"] == 4);
    assert_eq!(status(&rig, "both")["lastOutput"], "no such disk\ngoodbye");
    // It is started again soon, and waits for longer each time.
    let page = std::cell::RefCell::new(String::new());
    until("one waits to be started again", || {
        page.replace(rig.run(&["describe", "allocation/loops"]));
        page.borrow().contains("Next attempt:")
    });
    let page = page.into_inner();
    assert!(
        page.contains("lastOutput: no such database"),
        "{page}\n{}",
        rig.written(&rig.get("allocation", "loops"))
    );
    assert!(page.contains("(tasks[main])"), "{page}");
    // Of one that was started again it is what its last run wrote, and nothing of the one before.
    let marks = tempfile::tempdir_in("/var/tmp").unwrap();
    let mark = marks.path().join("mark");
    let mark = mark.display();
    let script = format!("[ -e {mark} ] && {{ echo second; exit 6; }}; touch {mark}; echo first; exit 5");
    rig.apply(&task("twice", &script, "Always").to_string());
    until("one has ended twice", || status(&rig, "twice")["exitCode"] == 6);
    assert_eq!(status(&rig, "twice")["lastOutput"], "second");
    until("one has ended well", || status(&rig, "fine")["exitCode"] == 0);
    assert!(status(&rig, "fine").get("lastOutput").is_none(), "{}", status(&rig, "fine"));

    // The next daemon knows what was told.
    rig.kill();
    rig.up();
    assert_eq!(status(&rig, "ends")["lastOutput"], "only this");
    rig.terminate();
}

/// Scenario Q16.
#[test]
fn what_a_driver_wrote_that_was_given_secrets_is_told_to_nobody() {
    let mut rig = Rig::new();
    rig.up();
    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "key", "namespace": "default" },
        "stringData": { "password": "open-sesame" } });
    let class = "  volumeBindingMode: WaitForFirstConsumer\n";
    let with_secret = format!("{class}  secrets:\n    nodePublish: {{ name: key, namespace: default }}\n");
    // It prints before it begins to serve, as a driver might what it is given.
    let driver = "command: [/bin/sh, -c, \"echo it begins >&2; exec $0 csi dir --data-dir ${DATA_DIR}/drivers/dir\", wharfline]";
    let manifest = QUICKSTART.replace(class, &with_secret).replace(
        "command: [wharfline, csi, dir, --data-dir, \"${DATA_DIR}/drivers/dir\"]",
        &driver.replace("wharfline]", &format!("{}]", crate::rig::WHARFLINE)),
    );
    let (plugin, rest) = manifest.split_once("---\n").unwrap();
    rig.apply(&format!("{plugin}---\n{secret}"));
    rig.wait_ready("plugin/dir");
    let task = |rig: &Rig| {
        let all = rig.list("allocations");
        let of_it = |a: &&serde_json::Value| a["metadata"]["name"].as_str().unwrap().starts_with("dir-");
        all.iter().find(of_it).unwrap()["status"]["tasks"][0].clone()
    };
    let kill = |rig: &Rig| {
        let named = |line: &&String| line.contains("csi dir") && !line.contains(" shim ");
        let line = rig.processes().into_iter().find(|line| named(&line)).unwrap();
        let pid = line.split(' ').next().unwrap().parse().unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    };
    kill(&rig);
    let told = |rig: &Rig| task(rig)["lastOutput"].as_str().unwrap_or_default().to_owned();
    until("what it wrote is told", || told(&rig).starts_with("it begins"));
    rig.wait_ready("plugin/dir");
    rig.apply(&format!("{rest}---\n{secret}"));
    rig.wait_ready("allocation/hello");
    kill(&rig);
    until("it is not told", || told(&rig).contains("not shown: it may hold secrets"));
    rig.wait_ready("plugin/dir");
    rig.run(&["down", "--delete-volumes"]);
    rig.ended();
    rig.assert_nothing_left();
}

/// Scenario A20.
#[test]
fn a_task_that_serves_another_plugin_from_now_on_waits_for_the_volumes_of_the_former() {
    const MANIFEST: &str = include_str!("../../manifests/plugin-as-task.yaml");
    let mut rig = Rig::new();
    rig.up();
    rig.apply(MANIFEST);
    rig.wait_ready("allocation/user");
    assert_eq!(rig.get("plugin", "dir-by-hand")["status"]["undeclaredFrom"], "default");
    let driver = MANIFEST.split("---").next().unwrap();
    let restarts = |rig: &Rig| rig.get("allocation", "dir-by-hand")["status"]["tasks"][0]["restarts"].clone();
    let before = restarts(&rig);
    let user = rig.get("allocation", "user")["status"].clone();

    // How long it may take is no reason to start it anew, and what it serves stays while a volume is there.
    rig.apply(&driver.replace("healthTimeout: 30s", "healthTimeout: 40s"));
    rig.apply(&driver.replace("pluginName: dir-by-hand", "pluginName: other"));
    let held = || rig.run(&["why", "plugin/dir-by-hand"]).contains("in use by volume");
    until("it is told what holds it", held);
    let page = rig.run(&["why", "allocation/dir-by-hand"]);
    assert!(page.contains("its csiPlugin block changed") && page.contains("volumeclaim/by-hand"), "{page}");
    let stays = |event: &serde_json::Value| event["reason"] == "InstanceStays";
    assert!(rig.list("events").iter().any(stays));
    rig.kill();
    rig.up();
    rig.wait_ready("allocation/user");
    assert_eq!((restarts(&rig), &rig.get("allocation", "user")["status"]), (before, &user));

    rig.run(&["delete", "allocation/user", "volumeclaim/by-hand"]);
    until("the other one is there", || {
        rig.list("plugins").iter().any(|plugin| plugin["metadata"]["name"] == "other")
    });
    rig.wait_ready("plugin/other");
    until("the former is gone", || rig.list("plugins").len() == 1);
    assert_eq!(restarts(&rig), 1);
    rig.run(&["delete", "allocation/dir-by-hand", "volumeclass/by-hand"]);
    until("no plugin is left", || rig.list("plugins").is_empty());
    rig.terminate();
}
