//! Drivers and workloads in containers: the built-in driver from an image of our own, and a task from busybox.
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::image::{Entry, Files, Picture, busybox};
use crate::rig::{Rig, WHARFLINE, until};

/// The program without what only a debugger reads: the image is read and written as a whole.
fn stripped() -> Vec<u8> {
    let file = tempfile::NamedTempFile::new().unwrap();
    let done = Command::new("strip").arg("-o").arg(file.path()).arg(WHARFLINE).status().unwrap();
    assert!(done.success(), "strip comes with gcc");
    std::fs::read(file.path()).unwrap()
}

/// The libraries that the program names, where it looks for them.
fn libraries() -> Vec<PathBuf> {
    let listed = Command::new("ldd").arg(WHARFLINE).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let paths = listed.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    paths.map(PathBuf::from).collect()
}

/// An image of the driver: busybox, and above it the program with its libraries.
fn driver_image() -> &'static [u8] {
    static MADE: OnceLock<Vec<u8>> = OnceLock::new();
    MADE.get_or_init(|| {
        let mut directories = std::collections::BTreeSet::new();
        let mut files = vec![Entry::program("wharfline", stripped())];
        for library in libraries() {
            let path = library.strip_prefix("/").unwrap().to_str().unwrap().to_owned();
            directories.extend(
                Path::new(&path)
                    .ancestors()
                    .skip(1)
                    .filter(|d| !d.as_os_str().is_empty())
                    .map(Path::to_owned),
            );
            files.push(Entry::program(&path, std::fs::read(&library).unwrap()));
        }
        let mut entries: Vec<Entry> =
            directories.iter().map(|d| Entry::directory(d.to_str().unwrap())).collect();
        entries.extend(files);
        let mut picture = busybox();
        picture.layers.extend(Picture::new([entries]).layers);
        picture.config = json!({ "Entrypoint": ["/wharfline", "csi", "dir"] });
        Files::saved(&[(&picture, &["driver:test"])]).archive()
    })
}

/// Where the driver comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Driver {
    /// From an image of its own.
    Imaged,
    /// From the node, into a container of busybox: an image of its own takes a program without optimisation long to read.
    Lent,
}

/// What is lent: of the node, and where the container has it.
pub(crate) fn lent() -> [(String, &'static str); 3] {
    let program = Path::new(WHARFLINE).parent().unwrap().canonicalize().unwrap();
    let real = |path: &str| Path::new(path).canonicalize().unwrap().to_str().unwrap().to_owned();
    [(program.to_str().unwrap().to_owned(), "/program"), (real("/lib"), "/lib"), (real("/lib64"), "/lib64")]
}

impl Driver {
    /// The quickstart, with both of its programs in containers.
    pub(crate) fn manifest(self) -> String {
        self.manifest_with(&json!({}))
    }

    /// The same with these fields more of the plugin's instances.
    pub(crate) fn manifest_with(self, more: &Value) -> String {
        let documents = crate::quickstart::QUICKSTART.split("---\n").collect::<Vec<_>>();
        let meta = |name: &str| json!({ "name": name, "namespace": "default" });
        let mut instances = json!({ "name": "all", "role": "Monolith", "placement": { "everyNode": {} },
            "mountDir": "/csi", "runtime": { "oci": self.runtime() } });
        instances.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let plugin = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Plugin",
            "metadata": { "name": "dir" },
            "spec": { "controllerScope": "Node", "instances": [instances] } });
        // A first process of a container has to say itself what a SIGTERM does.
        let script = "trap 'exit 0' TERM; echo hello from wharfline >> /data/greeting; sleep infinity & wait";
        let hello = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Allocation",
            "metadata": meta("hello"),
            "spec": { "volumes": [{ "name": "data", "claimName": "data" }], "tasks": [{ "name": "writer",
                "runtime": { "oci": { "archive": "${DATA_DIR}/image-archives/busybox.tar",
                    "command": ["/bin/sh", "-c", script] } },
                "volumeMounts": [{ "name": "data", "mountPath": "/data" }] }] } });
        [plugin.to_string(), documents[1].to_owned(), documents[2].to_owned(), hello.to_string()]
            .join("\n---\n")
    }

    fn runtime(self) -> Value {
        let volumes = json!({ "path": "${DATA_DIR}/drivers", "mountPath": "/volumes" });
        match self {
            Self::Imaged => json!({ "archive": "${DATA_DIR}/image-archives/driver.tar",
                "args": ["--data-dir", "/volumes"], "hostPaths": [volumes] }),
            Self::Lent => {
                let lent =
                    lent().map(|(path, at)| json!({ "path": path, "mountPath": at, "readOnly": true }));
                let paths: Vec<Value> = lent.into_iter().chain([volumes]).collect();
                json!({ "archive": "${DATA_DIR}/image-archives/busybox.tar", "hostPaths": paths,
                    "command": ["/program/wharfline", "csi", "dir", "--data-dir", "/volumes"] })
            }
        }
    }

    /// Begins a node that runs containers, with all that they need.
    pub(crate) fn up(self, rig: &mut Rig) {
        self.up_with(rig, &[]);
    }

    /// The same with these flags more.
    pub(crate) fn up_with(self, rig: &mut Rig, more: &[&str]) {
        let drivers = rig.data.path().join("drivers");
        std::fs::create_dir_all(&drivers).unwrap();
        let images = rig.data.path().join("image-archives");
        if !images.exists() {
            std::fs::create_dir(&images).unwrap();
            crate::image::save_busybox(&images.join("busybox.tar"));
            if self == Self::Imaged {
                std::fs::write(images.join("driver.tar"), driver_image()).unwrap();
            }
        }
        let mut binds = vec![drivers.to_str().unwrap().to_owned()];
        binds.extend(lent().map(|(path, _)| path));
        let mut args = vec!["--listen", "127.0.0.1:0", "--node-name", "node-a"];
        args.extend(binds.iter().flat_map(|path| ["--bind-path", path]));
        args.extend(more);
        rig.up_with(&args);
    }
}

/// The cgroup above those of a data directory's tasks, in every tree that has it.
fn parents(rig: &Rig) -> Vec<PathBuf> {
    let run = wharfline::run::machine::run_dir(rig.data.path());
    let name = run.file_name().unwrap();
    let trees = std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten().map(|tree| tree.path());
    let trees = trees.chain([PathBuf::from("/sys/fs/cgroup")]);
    trees.map(|tree| tree.join("wharfline").join(name)).filter(|path| path.is_dir()).collect()
}

/// The cgroups of a data directory's tasks, in every tree.
fn cgroups(rig: &Rig) -> Vec<PathBuf> {
    let tasks =
        parents(rig).into_iter().filter_map(|parent| std::fs::read_dir(parent).ok()).flatten().flatten();
    tasks.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

/// The numbers of the processes in the containers of a data directory's tasks.
pub(crate) fn processes_in_containers(rig: &Rig) -> Vec<String> {
    let lists = cgroups(rig).into_iter().map(|leaf| leaf.join("cgroup.procs"));
    let lists: String = lists.filter_map(|list| std::fs::read_to_string(list).ok()).collect();
    lists.lines().map(str::to_owned).collect()
}

/// Where something is mounted in the driver's container.
fn mounts_of_the_driver(rig: &Rig) -> Vec<PathBuf> {
    let tasks = std::fs::read_dir(rig.data.path().join("tasks")).unwrap().flatten();
    let states = tasks.filter_map(|task| std::fs::read(task.path().join("state.json")).ok());
    let mut pids =
        states.map(|state| serde_json::from_slice::<Value>(&state).unwrap()["task"]["pid"].to_string());
    let is_driver = |pid: &String| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains("\0csi\0dir\0")
    };
    let pid = pids.find(is_driver).unwrap();
    let table = std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
    table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from).collect()
}

/// It has what every container has, its socket's directory, the tree and what its manifest asks for.
fn assert_the_driver_sees_no_more_than_it_should(rig: &Rig) {
    let (mounts, tree) = (mounts_of_the_driver(rig), rig.data.path().join("volumes"));
    let asked = [Path::new("/csi"), Path::new("/volumes"), &tree];
    let usual = ["/proc", "/dev", "/sys", "/etc/resolv.conf", "/etc/hosts"].map(Path::new);
    for wanted in asked {
        assert!(mounts.iter().any(|at| at == wanted), "{} is missing: {mounts:?}", wanted.display());
    }
    let known =
        |at: &PathBuf| at == Path::new("/") || asked.iter().chain(&usual).any(|of| at.starts_with(of));
    let other: Vec<_> = mounts.iter().filter(|at| !known(at)).collect();
    assert!(other.is_empty(), "{other:?}");
}

/// Scenario Q17.
/// Obligations CO-PLUG-01, CO-PLUG-09, CO-PLUG-10, CO-PLUG-11, CO-PLUG-12.
#[test]
fn a_driver_and_its_user_run_in_containers() {
    let mut rig = Rig::new();
    Driver::Imaged.up(&mut rig);
    let usable =
        || rig.get("nodeagent", "node-a")["status"]["runtimes"].as_array().cloned().unwrap_or_default();
    until("the node says that it runs containers", || usable().contains(&json!("oci")));
    rig.apply(&Driver::Imaged.manifest());
    rig.wait_ready("allocation/hello");
    assert_eq!(crate::quickstart::greeting(&rig), "hello from wharfline\n");
    let hello = rig.get("allocation", "hello");
    let task: &Value = &hello["status"]["tasks"][0];
    assert!(task["image"].as_str().is_some_and(|image| image.starts_with("sha256:")), "{task}");
    assert!(!cgroups(&rig).is_empty());
    assert_the_driver_sees_no_more_than_it_should(&rig);
    // The host sees the volume, and nothing of what the containers are made of.
    let mounts = rig.mounts();
    assert!(mounts.iter().all(|mount| !mount.contains("/stage")), "{mounts:?}");

    // Without the daemon both go on, and it finds them again.
    rig.kill();
    assert_eq!(rig.mounts(), mounts);
    Driver::Imaged.up(&mut rig);
    rig.wait_ready("allocation/hello");
    rig.wait_ready("plugin/dir");
    assert_eq!(rig.mounts(), mounts);
    assert_eq!(crate::quickstart::greeting(&rig), "hello from wharfline\n");

    rig.run(&["delete", "allocation/hello", "volumeclaim/data", "volumeclass/dir", "plugin/dir"]);
    for kind in ["volumes", "allocations", "plugins"] {
        until(&format!("no {kind} are left"), || rig.list(kind).is_empty());
    }
    until("no cgroup is left", || parents(&rig).is_empty());
    let layers = rig.data.path().join("images/layers");
    until("no layer is left", || std::fs::read_dir(&layers).unwrap().next().is_none());
    rig.terminate();
    rig.run(&["down"]);
    rig.assert_nothing_left();
}

/// A task that cannot be started again would be lost with a file that nothing but its next start needs.
#[test]
fn a_container_starts_again_without_its_archive() {
    let mut rig = Rig::new();
    Driver::Lent.up(&mut rig);
    let archive = rig.data.path().join("image-archives/app.tar");
    crate::image::save_busybox(&archive);
    let script = "trap 'exit 3' TERM; sleep infinity & wait";
    let task = json!({ "name": "main", "runtime": { "oci": { "archive": "${DATA_DIR}/image-archives/app.tar",
        "command": ["/bin/sh", "-c", script] } } });
    let app = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Allocation",
        "metadata": { "name": "app", "namespace": "default" }, "spec": { "tasks": [task] } });
    rig.apply(&app.to_string());
    rig.wait_ready("allocation/app");
    let status = |rig: &Rig| rig.get("allocation", "app")["status"]["tasks"][0].clone();
    let image = status(&rig)["image"].clone();
    std::fs::remove_file(&archive).unwrap();
    // Once by the daemon that has started it, and once by one that knows it from its journal alone.
    for restarts in 1..=2_u64 {
        for process in processes_in_containers(&rig) {
            // One of them may have ended with another.
            let pid = rustix::process::Pid::from_raw(process.parse().unwrap()).unwrap();
            let _gone = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        let again = || {
            let now = status(&rig);
            now["restarts"].as_u64() == Some(restarts) && now["state"] == "Running"
        };
        until("it runs again", again);
        let now = status(&rig);
        assert_eq!(now["image"], image);
        let told = |event: &&Value| event["reason"] == "ArchiveGone";
        let told = now["events"].as_array().unwrap().iter().find(told);
        assert!(told.is_some_and(|e| e["message"].as_str().unwrap().contains("app.tar any more")), "{now}");
        rig.kill();
        Driver::Lent.up(&mut rig);
        rig.wait_ready("allocation/app");
    }
    rig.run(&["delete", "allocation/app"]);
    until("no allocation is left", || rig.list("allocations").is_empty());
    rig.terminate();
    rig.run(&["down"]);
    rig.assert_nothing_left();
}
