//! Tasks as containers: the shim's part, with the real runc.
use crate::cgroup::{NONE, Parent, kill_shim};
use crate::root::Volume;
use crate::support::{Host, Propagation, exited, gone, lives, mount_at, soon};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use wharfline::api::capability::Capability;
use wharfline::api::runtime::OciRuntime;
use wharfline::plan::container::{
    Cgroups, ImageSays, Limits, MachineSays, Owner, VolumeAt, VolumeKind, Wanted, container,
};
use wharfline::sys::process::{
    Adopted, ContainerSpec, Ended, Identity, Outcome, ProcessError, TaskMount, TaskSpec,
};
use wharfline::sys::{Processes, Watches};

/// A program of the tests' tools.
fn tool(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/bin");
    let found =
        std::env::split_paths(&path).chain([own]).map(|directory| directory.join(name)).find(|p| p.is_file());
    found.unwrap_or_else(|| panic!("{name} is missing: run tools/fetch-runc"))
}

/// A host with two layers for containers, and what one of them shall be.
struct Rig {
    host: Host,
    parent: Parent,
    layers: Vec<PathBuf>,
    oci: OciRuntime,
    limits: Limits,
    volumes: Vec<VolumeAt>,
    shares: Vec<PathBuf>,
    identity: Option<Identity>,
}

impl Rig {
    fn new() -> Self {
        Self::on(Host::new())
    }

    fn on(host: Host) -> Self {
        let layers = ["lower", "upper"].map(|name| host.data.join("layers").join(name));
        for directory in ["bin", "etc", "proc", "sys", "dev", "tmp"] {
            std::fs::create_dir_all(layers[0].join(directory)).unwrap();
        }
        std::fs::create_dir_all(layers[1].join("etc")).unwrap();
        std::fs::copy(tool("busybox"), layers[0].join("bin/busybox")).unwrap();
        for name in ["sh", "cat", "echo", "id", "sleep", "mount", "umount", "hostname", "mkdir", "dd", "ls"] {
            std::os::unix::fs::symlink("busybox", layers[0].join("bin").join(name)).unwrap();
        }
        std::fs::write(layers[0].join("etc/which"), "lower").unwrap();
        std::fs::write(layers[1].join("etc/which"), "upper").unwrap();
        std::fs::write(layers[1].join("etc/passwd"), "root:x:0:0::/:\napp:x:1000:100::/:\n").unwrap();
        std::fs::write(layers[1].join("etc/group"), "root:x:0:\nusers:x:100:\ndisk:x:6:app\n").unwrap();
        let (oci, limits) = (OciRuntime::default(), Limits::default());
        let (volumes, shares) = (Vec::new(), Vec::new());
        let layers = layers.to_vec();
        Self { host, parent: Parent::new(), layers, oci, limits, volumes, shares, identity: None }
    }

    fn runc_root(&self) -> PathBuf {
        self.host.data.join("runc")
    }

    fn stage(&self) -> PathBuf {
        self.host.task_directory().join("stage")
    }

    fn document(&self, command: &[String]) -> String {
        let machine = MachineSays {
            capabilities: Capability::all().filter(|one| one.name() != "SYS_RESOURCE").collect(),
            hostname: "here".to_owned(),
            cgroups: Cgroups::Hybrid,
            resolv_conf: false,
            hosts: false,
        };
        let made = container(&Wanted {
            oci: &self.oci,
            command,
            args: &[],
            env: &BTreeMap::from([("SAID".to_owned(), "so".to_owned())]),
            image: &ImageSays::default(),
            limits: self.limits,
            volumes: &self.volumes,
            devices: &[],
            plugin: None,
            machine: &machine,
            owner: Owner { node: "n", allocation: "default/a", task: "t" },
            stage: self.stage().to_str().unwrap(),
            cgroup: &self.parent.leaf(NONE).path,
        });
        let mut document = serde_json::to_value(made.unwrap().document).unwrap();
        for (index, share) in self.shares.iter().enumerate() {
            let source = self.stage().join("s").join(index.to_string());
            document["linux"]["rootfsPropagation"] = "shared".into();
            document["mounts"].as_array_mut().unwrap().push(serde_json::json!({
                "destination": share, "type": "bind", "source": source, "options": ["rbind", "rshared"],
            }));
        }
        document.to_string()
    }

    fn runs(&self, command: &[&str]) -> TaskSpec {
        let argv: Vec<String> = command.iter().map(|&word| word.to_owned()).collect();
        let mut spec = self.host.script("");
        spec.private_mounts = true;
        spec.cgroup = Some(self.parent.leaf(NONE));
        spec.identity.clone_from(&self.identity);
        spec.mounts = self
            .volumes
            .iter()
            .map(|volume| TaskMount { read_only: volume.read_only, ..mount_at(&volume.path) })
            .collect();
        spec.container = Some(ContainerSpec {
            runc: tool("runc"),
            root: self.runc_root(),
            id: "u.one".to_owned(),
            layers: self.layers.clone(),
            shares: self.shares.clone(),
            stop_signal: 15,
            document: self.document(&argv),
        });
        spec.argv = argv;
        spec
    }

    fn script(&self, script: &str) -> TaskSpec {
        self.runs(&["/bin/sh", "-c", script])
    }

    /// Nothing but records and logs is left of it.
    fn assert_gone(&self) {
        self.host.assert_clean();
        assert_eq!(self.parent.directories("one"), Vec::<PathBuf>::new());
        let remembered: Vec<_> = std::fs::read_dir(self.runc_root()).into_iter().flatten().collect();
        assert!(remembered.is_empty(), "{remembered:?}");
        let staged: Vec<_> = std::fs::read_dir(self.stage()).into_iter().flatten().collect();
        assert!(staged.is_empty(), "{staged:?}");
    }

    async fn forget(&self) {
        let directory = self.host.task_directory();
        self.host.processes().forget(&directory).await.unwrap();
        assert!(!directory.exists(), "{:?}", std::fs::read_dir(&directory).map(Iterator::collect::<Vec<_>>));
    }
}

#[tokio::test]
async fn a_container_runs_from_its_layers_and_leaves_nothing() {
    for propagation in [Propagation::Private, Propagation::Shared] {
        let rig = Rig::on(Host::with_root(propagation));
        let script = "cat /etc/which; echo \" $SAID $(hostname) $$\"; echo oops >&2; echo new > /etc/new; \
            ls -d /proc/1 > /dev/null; [ ! -e $HOST ] && exit 7";
        let (record, said) = rig
            .host
            .run(&rig.script(&script.replace("$HOST", rig.host.data.to_str().unwrap())), vec![])
            .await;
        assert_eq!((record.outcome, record.oom, record.stopped), (Outcome::Code(7), false, false), "{said}");
        assert_eq!(said, "upper so here 1\noops\n");
        rig.assert_gone();
        assert!(!rig.layers[1].join("etc/new").exists(), "layers are only read");
        // What it wrote goes before it starts again.
        let (record, said) = rig.host.run(&rig.script("ls /etc/new; cat /etc/which"), vec![]).await;
        assert_eq!(record.outcome, Outcome::Code(0), "{said}");
        assert!(said.contains("No such file"), "{said}");
        rig.forget().await;
    }
}

#[tokio::test]
async fn what_cannot_run_is_said_in_runcs_words_and_leaves_nothing() {
    let rig = Rig::new();
    let start = async |spec: &TaskSpec| {
        rig.host.processes().start(&rig.host.task_directory(), spec, vec![]).await.unwrap_err()
    };
    let mut lacking = rig.script("exit 0");
    lacking.container.as_mut().unwrap().runc = "/no/runc".into();
    let mut broken = rig.script("exit 0");
    broken.container.as_mut().unwrap().document = "{}".to_owned();
    let mut nobody = rig.script("exit 0");
    nobody.identity = Some(Identity { user: "nobody".to_owned(), ..Identity::default() });
    let mut no_layer = rig.script("exit 0");
    no_layer.container.as_mut().unwrap().layers.push("/no/layer".into());
    for (spec, expected) in [
        (rig.runs(&["/no/such"]), "/no/such"),
        (lacking, "/no/runc"),
        (broken, "no process"),
        (nobody, "user nobody is not in /etc/passwd"),
        (no_layer, "mount the root"),
    ] {
        match start(&spec).await {
            ProcessError::NotStarted(reason) => assert!(reason.contains(expected), "{reason}"),
            other => panic!("{expected}: {other}"),
        }
        rig.assert_gone();
        match rig.host.processes().adopt(&rig.host.task_directory()).await.unwrap() {
            Adopted::Exited(record) => assert!(matches!(record.outcome, Outcome::NotStarted(_))),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(rig.host.run(&rig.script("exit 3"), vec![]).await.0.outcome, Outcome::Code(3));
}

#[tokio::test]
async fn a_stop_reaches_the_first_process_alone_and_then_all_are_killed() {
    let rig = Rig::new();
    let tmp = rig.host.data.join("seen");
    std::fs::create_dir(&tmp).unwrap();
    for (script, grace, outcome) in [
        ("trap 'exit 5' TERM; sleep 1000 & echo up; wait", 30, Outcome::Code(5)),
        ("sleep 1000 & echo up; wait", 0, Outcome::Signal(9)),
    ] {
        let task = rig.host.start(&rig.script(script), vec![]).await;
        rig.host.written("out").await;
        let main = task.state().task.pid.to_string();
        let members = rig.parent.directories("one");
        assert!(members.len() > 3, "{members:?}");
        assert!(lives(&main));
        task.stop(Duration::from_secs(grace)).unwrap();
        let record = exited(&*task).await;
        assert_eq!((record.outcome, record.stopped), (outcome, true));
        assert!(!lives(&main));
        rig.assert_gone();
        std::fs::remove_file(rig.host.data.join("out")).unwrap();
    }
}

#[tokio::test]
async fn volumes_are_in_it_and_it_is_who_its_own_files_say() {
    let mut rig = Rig::new();
    let volume = Volume::new(&rig.host).await;
    let at =
        |path: &str, read_only| VolumeAt { path: path.to_owned(), read_only, kind: VolumeKind::Filesystem };
    rig.volumes = vec![at("/data", false), at("/etc/deep/er", true)];
    rig.identity = Some(Identity { user: "app".to_owned(), ..Identity::default() });
    let clones = || async { vec![volume.clone().await, volume.clone().await] };
    let (record, said) = rig.host.run(&rig.script("id -u; id -G; cat /etc/deep/er/x"), clones().await).await;
    assert_eq!(record.outcome, Outcome::Code(1), "{said}");
    assert!(said.starts_with("1000\n100 6\n") && said.contains("/etc/deep/er/x"), "{said}");
    rig.identity = None;
    let script = "echo word > /data/x; cat /etc/deep/er/x; echo no > /etc/deep/er/x";
    let (record, said) = rig.host.run(&rig.script(script), clones().await).await;
    assert_ne!(record.outcome, Outcome::Code(0), "{said}");
    assert!(said.contains("word") && said.contains("Read-only"), "{said}");
    volume.undo().await;
    rig.assert_gone();
}

#[tokio::test]
async fn what_it_mounts_in_a_share_is_seen_on_the_host_and_the_other_way() {
    let mut rig = Rig::new();
    let share = rig.host.data.join("share");
    std::fs::create_dir_all(share.join("theirs")).unwrap();
    std::fs::create_dir_all(share.join("ours")).unwrap();
    rustix::mount::mount_bind(&share, &share).unwrap();
    rustix::mount::mount_change(&share, rustix::mount::MountPropagationFlags::SHARED).unwrap();
    rig.shares = vec![share.clone()];
    rig.oci.privileged = true;
    let inside = share.display();
    let script = format!(
        "mount -t tmpfs none {inside}/theirs && echo seen > {inside}/theirs/x && echo up; \
         while [ ! -e {inside}/ours/y ]; do sleep 0.01; done; umount {inside}/theirs; echo done > {inside}/done"
    );
    let task = rig.host.start(&rig.script(&script), vec![]).await;
    rig.host.written("out").await;
    let watches = wharfline::sys::real::RealWatches::new(rig.host.pool.clone());
    soon(watches.appeared(&share.join("theirs"), "x")).await.unwrap();
    let none = rustix::mount::MountFlags::empty();
    rustix::mount::mount("none", share.join("ours"), "tmpfs", none, None).unwrap();
    std::fs::write(share.join("ours/y"), "").unwrap();
    assert_eq!(exited(&*task).await.outcome, Outcome::Code(0));
    assert!(share.join("done").exists() && !share.join("theirs/x").exists());
    let none = rustix::mount::UnmountFlags::empty();
    for mounted in [share.join("ours"), share] {
        rustix::mount::unmount(mounted, none).unwrap();
    }
    rig.assert_gone();
}

#[tokio::test]
async fn a_container_that_takes_too_much_memory_is_killed_and_that_is_told() {
    let mut rig = Rig::new();
    rig.limits.memory = Some(32 << 20);
    let (record, said) =
        rig.host.run(&rig.script("dd if=/dev/zero of=/dev/null bs=200M count=1"), vec![]).await;
    assert!(record.oom, "{record:?} {said}");
    rig.assert_gone();
}

#[tokio::test]
async fn a_container_whose_shim_was_killed_runs_on_until_it_is_cleared() {
    let rig = Rig::new();
    let spec = rig.script("sleep 1000 & echo up; exec sleep 1000");
    let task = rig.host.start(&spec, vec![]).await;
    rig.host.written("out").await;
    let main = task.state().task.pid.to_string();
    kill_shim(&*task);
    assert_eq!(soon(task.wait()).await.unwrap(), Ended::Lost);
    assert!(lives(&main), "nothing of runc dies with the shim");
    let (processes, directory) = (rig.host.processes(), rig.host.task_directory());
    assert!(matches!(processes.forget(&directory).await, Err(ProcessError::Taken { .. })));
    assert_eq!(soon(processes.clear_leftovers(&directory)).await.unwrap(), 2);
    gone(&main).await;
    rig.assert_gone();
    rig.forget().await;
}

/// The moments of a start at which its shim is killed.
const MOMENTS: u32 = 24;

#[tokio::test]
async fn whenever_a_shim_is_killed_in_a_start_nothing_of_it_is_left_in_the_end() {
    let rig = Rig::new();
    let (processes, directory) = (rig.host.processes(), rig.host.task_directory());
    let spec = rig.script("sleep 1000 & exec sleep 1000");
    let mut found = BTreeMap::<&str, u32>::new();
    for moment in 0..MOMENTS {
        let lock = directory.join("lock");
        let killed = async {
            let after = Duration::from_millis(3 * u64::from(moment));
            tokio::time::timeout(after, std::future::pending::<()>()).await.ok();
            // Whoever holds the lock is the shim.
            kill_holder(&directory);
        };
        let (started, ()) = tokio::join!(processes.start(&directory, &spec, vec![]), killed);
        let _ended = match started {
            Ok(task) => {
                // It may have started before it was killed, or just after.
                kill_shim(&*task);
                soon(task.wait()).await.map(drop)
            }
            Err(_) => Ok(()),
        };
        let word = match soon(processes.adopt(&directory)).await.unwrap() {
            Adopted::NeverStarted => "never",
            Adopted::Exited(_) => "exited",
            Adopted::Lost(_) => "lost",
            Adopted::Running(task) => panic!("{moment}: {:?} lives, lock {}", task.state(), lock.display()),
        };
        *found.entry(word).or_default() += 1;
        soon(processes.clear_leftovers(&directory)).await.unwrap();
        rig.assert_gone();
        assert_eq!(processes_of(&rig.host.data), Vec::<String>::new(), "{moment}: {word}");
    }
    assert!(found.len() > 1, "{found:?}");
    rig.forget().await;
}

/// Kills the shim of a task's directory, if there is one.
fn kill_holder(directory: &Path) {
    for pid in processes_of(directory) {
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let pid = rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap();
        if String::from_utf8_lossy(&arguments).contains("shim") {
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).ok();
        }
    }
}

/// The processes that name a directory in their arguments or in their environment.
fn processes_of(directory: &Path) -> Vec<String> {
    let named = |pid: &String, file: &str| {
        let text = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        String::from_utf8_lossy(&text).contains(directory.to_str().unwrap())
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let pids = pids.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    pids.filter(|pid| lives(pid) && (named(pid, "cmdline") || named(pid, "environ"))).collect()
}
