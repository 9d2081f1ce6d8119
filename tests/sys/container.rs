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
    Adopted, ContainerShare, ContainerSpec, Ended, Identity, Outcome, ProcessError, TaskMount, TaskSpec,
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
    shares: Vec<ContainerShare>,
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
            cgroups: if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
                Cgroups::V2
            } else {
                Cgroups::Hybrid
            },
            resolv_conf: false,
            hosts: false,
        };
        let made = container(&Wanted {
            oci: &self.oci,
            command,
            args: &[],
            // By the host's directory what is left of it is found.
            env: &BTreeMap::from([
                ("SAID".to_owned(), "so".to_owned()),
                ("HOST".to_owned(), self.host.data.to_str().unwrap().to_owned()),
            ]),
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
            let option = if share.both_ways { "rshared" } else { "rslave" };
            if share.both_ways {
                document["linux"]["rootfsPropagation"] = "shared".into();
            }
            document["mounts"].as_array_mut().unwrap().push(serde_json::json!({
                "destination": share.path, "type": "bind", "source": source, "options": ["rbind", option],
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
            through: None,
            document: self.document(&argv),
        });
        spec.argv = argv;
        spec
    }

    /// A directory of the host that containers see at its own path.
    fn share_directory(&mut self, name: &str) -> PathBuf {
        let path = self.host.data.join(name);
        std::fs::create_dir(&path).unwrap();
        self.shares.push(ContainerShare { path: path.clone(), both_ways: false, resolved: true });
        path
    }

    async fn appears(&self, directory: &Path, name: &str) {
        let watches = wharfline::sys::real::RealWatches::new(self.host.pool.clone());
        soon(watches.appeared(directory, name)).await.unwrap();
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
        self.host.processes().forget(&directory, &self.host.logs()).await.unwrap();
        assert!(!directory.exists(), "{:?}", std::fs::read_dir(&directory).map(Iterator::collect::<Vec<_>>));
    }
}

#[tokio::test]
async fn a_container_runs_from_its_layers_and_leaves_nothing() {
    for propagation in [Propagation::Private, Propagation::Shared] {
        let rig = Rig::on(Host::with_root(propagation));
        let script = "cat /etc/which; echo \" $SAID $(hostname) $$\"; echo oops >&2; echo new > /etc/new; \
            ls -d /proc/1 > /dev/null; ls /proc/self/fd; [ ! -e $HOST ] && exit 7";
        let (record, said) = rig.host.run(&rig.script(script), vec![]).await;
        assert_eq!((record.outcome, record.oom, record.stopped), (Outcome::Code(7), false, false), "{said}");
        assert_eq!(
            said, "upper so here 1\n0\n1\n2\n3\noops\n",
            "three descriptors, and the one that lists them"
        );
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
    let mut rig = Rig::new();
    let ready = rig.share_directory("ready");
    let child = "trap 'echo > $HOST/ready/child' TERM; sleep 1000 & wait";
    for (script, grace, outcome) in [
        ("trap 'exit 5' TERM; sh -c \"$1\" & echo > $HOST/ready/up; wait", 20, Outcome::Code(5)),
        ("sh -c \"$1\" & echo > $HOST/ready/up; wait", 0, Outcome::Signal(9)),
    ] {
        let task = rig.host.start(&rig.runs(&["/bin/sh", "-c", script, "x", child]), vec![]).await;
        rig.appears(&ready, "up").await;
        let main = task.state().task.pid.to_string();
        assert!(!rig.parent.directories("one").is_empty());
        assert!(lives(&main));
        task.stop(Some(Duration::from_secs(grace))).unwrap();
        let record = exited(&*task).await;
        assert_eq!((record.outcome, record.stopped), (outcome, true));
        assert!(!lives(&main));
        assert!(!ready.join("child").exists(), "the first process alone was asked");
        rig.assert_gone();
        std::fs::remove_file(ready.join("up")).unwrap();
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

/// Obligation CO-PLUG-10.
#[tokio::test]
async fn what_it_mounts_in_a_share_is_seen_on_the_host_and_the_other_way() {
    let mut rig = Rig::new();
    let share = rig.host.data.join("share");
    std::fs::create_dir_all(share.join("theirs")).unwrap();
    std::fs::create_dir_all(share.join("ours")).unwrap();
    rustix::mount::mount_bind(&share, &share).unwrap();
    rustix::mount::mount_change(&share, rustix::mount::MountPropagationFlags::SHARED).unwrap();
    rig.shares = vec![ContainerShare { path: share.clone(), both_ways: true, resolved: true }];
    rig.oci.privileged = true;
    let inside = share.display();
    let script = format!(
        "mount -t tmpfs none {inside}/theirs && echo seen > {inside}/theirs/x; : > {inside}/mounted; \
         while [ ! -e {inside}/ours/y ]; do sleep 0.01; done; umount {inside}/theirs; echo done > {inside}/done"
    );
    let task = rig.host.start(&rig.script(&script), vec![]).await;
    // Not beneath what is mounted: a watch of before would look at what is under it.
    rig.appears(&share, "mounted").await;
    assert!(share.join("theirs/x").exists());
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
    let mut rig = Rig::new();
    let ready = rig.share_directory("ready");
    let spec = rig.script("sleep 1000 & echo > $HOST/ready/up; exec sleep 1000");
    let task = rig.host.start(&spec, vec![]).await;
    rig.appears(&ready, "up").await;
    let main = task.state().task.pid.to_string();
    kill_shim(&*task);
    assert_eq!(soon(task.wait()).await.unwrap(), Ended::Lost);
    assert!(lives(&main), "nothing of runc dies with the shim");
    let (processes, directory) = (rig.host.processes(), rig.host.task_directory());
    assert!(matches!(processes.forget(&directory, &rig.host.logs()).await, Err(ProcessError::Taken { .. })));
    assert_eq!(soon(processes.clear_leftovers(&directory)).await.unwrap(), 2);
    gone(&main).await;
    rig.assert_gone();
    rig.forget().await;
}

/// The moments of a start at which somebody is killed.
const MOMENTS: u32 = 24;

/// Whoever is killed at whichever moment of a start: nothing is left in the end, and the next start is as good as any.
async fn killed_in_a_start(rig: &Rig, who: &str) -> BTreeMap<&'static str, u32> {
    let (processes, directory) = (rig.host.processes(), rig.host.task_directory());
    let (spec, good) = (rig.script("sleep 1000 & exec sleep 1000"), rig.script("exit 3"));
    let mut found = BTreeMap::<&str, u32>::new();
    for moment in 0..MOMENTS {
        let killed = async {
            let after = Duration::from_millis(3 * u64::from(moment));
            tokio::time::timeout(after, std::future::pending::<()>()).await.ok();
            kill_those(&directory, who);
        };
        let (started, ()) = tokio::join!(processes.start(&directory, &spec, vec![]), killed);
        if let Ok(task) = started {
            // It may have started before it was killed, or just after.
            kill_shim(&*task);
            soon(task.wait()).await.map(drop).unwrap();
        }
        let word = match soon(processes.adopt(&directory)).await.unwrap() {
            Adopted::NeverStarted => "never",
            Adopted::Exited(record) => match record.outcome {
                Outcome::NotStarted(_) => "not started",
                other => panic!("{moment}: {other:?}"),
            },
            Adopted::Lost(_) => "lost",
            Adopted::Running(task) => panic!("{moment}: {:?} lives", task.state()),
        };
        *found.entry(word).or_default() += 1;
        soon(processes.clear_leftovers(&directory)).await.unwrap();
        rig.assert_gone();
        assert_eq!(processes_of(&rig.host.data), Vec::<String>::new(), "{moment}: {word}");
        let (record, said) = rig.host.run(&good, vec![]).await;
        assert_eq!(record.outcome, Outcome::Code(3), "{moment}: {said}");
    }
    rig.forget().await;
    found
}

#[tokio::test]
async fn whenever_a_shim_is_killed_in_a_start_nothing_of_it_is_left_in_the_end() {
    let found = killed_in_a_start(&Rig::new(), "shim").await;
    assert!(found.contains_key("lost"), "{found:?}");
}

#[tokio::test]
async fn whenever_runc_is_killed_in_a_start_nothing_of_it_is_left_in_the_end() {
    let found = killed_in_a_start(&Rig::new(), "runc").await;
    assert!(found.contains_key("not started"), "{found:?}");
}

#[tokio::test]
async fn what_killed_programs_left_in_the_directory_is_in_nobodys_way() {
    let rig = Rig::new();
    let directory = rig.host.task_directory();
    assert_eq!(rig.host.run(&rig.script("exit 3"), vec![]).await.0.outcome, Outcome::Code(3));
    assert!(!directory.join("container.json").exists(), "the environment is not kept");
    std::fs::create_dir_all(directory.join("runc")).unwrap();
    for name in ["runc/.pid", "container.json.new", "container.json"] {
        std::fs::write(directory.join(name), "left").unwrap();
    }
    std::fs::create_dir_all(rig.runc_root().join("u.one")).unwrap();
    let (record, said) = rig.host.run(&rig.script("exit 3"), vec![]).await;
    assert_eq!(record.outcome, Outcome::Code(3), "{said}");
    std::fs::write(directory.join("container.json.new"), "left").unwrap();
    rig.assert_gone();
    rig.forget().await;
    let trash = directory.with_file_name(".trash");
    until(|| !trash.exists());
}

/// Looks until it holds.
fn until(holds: impl Fn() -> bool) {
    let end = std::time::Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(std::time::Instant::now() < end, "it never held");
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn what_leads_out_of_the_image_is_refused() {
    let mut rig = Rig::new();
    let start = async |rig: &Rig| {
        let spec = rig.script("exit 0");
        match rig.host.processes().start(&rig.host.task_directory(), &spec, vec![]).await.unwrap_err() {
            ProcessError::NotStarted(reason) => reason,
            other => panic!("{other}"),
        }
    };
    std::os::unix::fs::symlink("/proc/self/fd/7", rig.layers[0].join("tmp/out")).unwrap();
    for out in ["/proc/self/fd/7", "/tmp/out", "/dev/../proc/self/fd/7"] {
        out.clone_into(&mut rig.oci.working_dir);
        let reason = start(&rig).await;
        assert!(reason.contains("leads out of the image"), "{reason}");
    }
    rig.oci.working_dir.clear();

    // A directory that was allowed has become a link since.
    let shared = rig.share_directory("allowed");
    std::fs::remove_dir(&shared).unwrap();
    std::os::unix::fs::symlink("/etc", &shared).unwrap();
    let reason = start(&rig).await;
    assert!(reason.starts_with("share ") && reason.contains("allowed"), "{reason}");
    std::fs::remove_file(&shared).unwrap();
    std::fs::create_dir(&shared).unwrap();
    rig.shares[0].both_ways = true;
    let reason = start(&rig).await;
    assert!(reason.contains("is not in a shared mount"), "{reason}");
    rig.assert_gone();
}

#[tokio::test]
async fn a_cgroup_that_somebody_is_in_is_not_taken() {
    let rig = Rig::new();
    rig.parent.make("one");
    let stranger = rig.parent.stranger("one");
    let spec = rig.script("exit 3");
    match rig.host.processes().start(&rig.host.task_directory(), &spec, vec![]).await.unwrap_err() {
        ProcessError::NotStarted(reason) => assert!(reason.contains("has processes already"), "{reason}"),
        other => panic!("{other}"),
    }
    drop(stranger);
    assert_eq!(rig.host.run(&spec, vec![]).await.0.outcome, Outcome::Code(3));
    rig.assert_gone();
}

#[tokio::test]
async fn a_frozen_container_can_be_stopped() {
    let mut rig = Rig::new();
    let ready = rig.share_directory("ready");
    let task = rig.host.start(&rig.script("echo > $HOST/ready/up; exec sleep 1000"), vec![]).await;
    rig.appears(&ready, "up").await;
    for directory in rig.parent.directories("one") {
        for (file, word) in [("freezer.state", "FROZEN"), ("cgroup.freeze", "1")] {
            if directory.join(file).exists() {
                std::fs::write(directory.join(file), word).unwrap();
            }
        }
    }
    task.stop(Some(Duration::ZERO)).unwrap();
    assert_eq!(exited(&*task).await.outcome, Outcome::Signal(9));
    rig.assert_gone();
}

/// Kills the processes of a task's directory whose command line has this word.
fn kill_those(directory: &Path, word: &str) {
    for pid in processes_of(directory) {
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let pid = rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap();
        let mut words = arguments.split(|&byte| byte == 0).take(2);
        if words.any(|of_it| of_it.ends_with(word.as_bytes())) {
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
