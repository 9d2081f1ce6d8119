//! The task's own root.
use crate::support::{Dead, Host, Propagation, exited, mount_at};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use wharfline::sys::kernel::{PathFacts, Present};
use wharfline::sys::path::TreePath;
use wharfline::sys::process::{Adopted, Outcome, ProcessError, TaskSpec};
use wharfline::sys::real::RealKernel;
use wharfline::sys::{Kernel, Processes};

/// A volume: a tmpfs on a path of the tree.
pub(crate) struct Volume {
    kernel: RealKernel,
    path: TreePath,
    present: Present,
}

impl Volume {
    pub(crate) async fn new(host: &Host) -> Self {
        let kernel = host.kernel();
        kernel.prepare_tree().await.unwrap();
        let path = TreePath::new(["vol-1", "target"]).unwrap();
        kernel.make_dir(&path).await.unwrap();
        let target = kernel.absolute(&path.clone().into());
        rustix::mount::mount("none", target, "tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
        let PathFacts::Present(present) = kernel.mount_facts(&path.clone().into()).await.unwrap() else {
            panic!("it is mounted")
        };
        Self { kernel, path, present }
    }

    pub(crate) async fn clone(&self) -> std::os::fd::OwnedFd {
        self.kernel.clone_mount(&self.path, &self.present).await.unwrap()
    }

    pub(crate) async fn undo(self) {
        let mount = self.present.mount.as_ref().unwrap();
        self.kernel.unmount(&self.path.clone().into(), mount.id).await.unwrap();
        self.kernel.undo_tree().await.unwrap();
    }
}

fn private(host: &Host, script: &str, paths: &[&str]) -> TaskSpec {
    let mut spec = host.script(script);
    spec.private_mounts = true;
    spec.mounts = paths.iter().map(mount_at).collect();
    spec
}

#[tokio::test]
async fn a_volume_is_where_the_host_has_no_such_path_and_the_host_stays_clean() {
    for propagation in [Propagation::Private, Propagation::Shared] {
        let host = Host::with_root(propagation);
        let volume = Volume::new(&host).await;
        let before = crate::support::table();
        let deep = host.data.join("not/there/yet");
        let script = format!(
            "echo hello > /wharf-data/greeting && cat {0}/greeting && cd {0} && ls /usr/bin/env && \
             readlink /proc/self/exe > /dev/null && : > $HERE/ready && sleep 1000",
            deep.display()
        );
        let paths = ["/wharf-data", deep.to_str().unwrap()];
        let mut spec = private(&host, &script, &paths);
        // The log and the ready file are in the host's directory, which is opened up: bind it as a volume does.
        let shown = host.data.join("shown");
        std::fs::create_dir(&shown).unwrap();
        spec.env.insert("HERE".to_owned(), shown.to_str().unwrap().to_owned());
        let task = host.start(&spec, vec![volume.clone().await, volume.clone().await]).await;
        let watches = wharfline::sys::real::RealWatches::new(host.pool.clone());
        crate::support::soon(wharfline::sys::Watches::appeared(&watches, &shown, "ready")).await.unwrap();
        assert!(!Path::new("/wharf-data").exists() && !host.data.join("not").exists());
        crate::support::assert_nothing_new(&before);
        let written = volume.kernel.absolute(&volume.path.clone().into()).join("greeting");
        assert_eq!(std::fs::read_to_string(written).unwrap(), "hello\n");
        task.stop(Some(Duration::ZERO)).unwrap();
        exited(&*task).await;
        crate::support::assert_nothing_new(&before);
        assert!(!Path::new("/wharf-data").exists() && !host.data.join("not").exists());
        volume.undo().await;
        host.assert_clean();
    }
}

#[tokio::test]
async fn a_path_that_exists_is_covered_and_its_neighbours_stay() {
    let host = Host::new();
    let volume = Volume::new(&host).await;
    std::fs::create_dir_all(host.data.join("srv/app")).unwrap();
    std::fs::write(host.data.join("srv/app/old"), "").unwrap();
    std::fs::write(host.data.join("srv/neighbour"), "n\n").unwrap();
    std::os::unix::fs::symlink("srv/app", host.data.join("link")).unwrap();
    // By a link of the host: the volume is at what it points to.
    let spec = private(
        &host,
        "ls -A $HERE/srv/app; cat $HERE/srv/neighbour; echo x > $HERE/srv/app/new; ls $HERE/link; echo h > $HERE/srv/seen",
        &[host.data.join("link").to_str().unwrap()],
    );
    let (record, output) = host.run(&spec, vec![volume.clone().await]).await;
    assert_eq!((record.outcome, output.as_str()), (Outcome::Code(0), "n\nnew\n"));
    assert!(host.data.join("srv/app/old").exists() && !host.data.join("srv/app/new").exists());
    assert_eq!(
        std::fs::read_to_string(host.data.join("srv/seen")).unwrap(),
        "h\n",
        "the host's own directory"
    );
    volume.undo().await;
    host.assert_clean();
}

#[tokio::test]
async fn the_daemons_tree_is_not_in_it_and_is_not_held() {
    let host = Host::new();
    let volume = Volume::new(&host).await;
    let data = host.data.join("daemon");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("secret"), "s").unwrap();
    let outside = tempfile::tempdir().unwrap();
    let mut spec = private(
        &host,
        "exec > $OUT/out 2> $OUT/err; ls -A $HERE/daemon; ls -A $HERE/volumes; touch $HERE/daemon/x; grep -c vol-1 /proc/self/mountinfo; : > $OUT/ready; sleep 1000",
        &[],
    );
    spec.env.insert("OUT".to_owned(), outside.path().to_str().unwrap().to_owned());
    spec.hide = vec![data.clone(), host.data.join("volumes")];
    let task = host.start(&spec, vec![]).await;
    let watches = wharfline::sys::real::RealWatches::new(host.pool.clone());
    crate::support::soon(wharfline::sys::Watches::appeared(&watches, outside.path(), "ready")).await.unwrap();
    let read = |name: &str| std::fs::read_to_string(outside.path().join(name)).unwrap();
    assert_eq!(read("out"), "0\n", "both empty, and the volume's mount is not in its namespace");
    assert!(read("err").contains("Read-only"), "{}", read("err"));
    // The task runs; the volume can be unmounted all the same, and its file system is gone then.
    volume.undo().await;
    task.stop(Some(Duration::ZERO)).unwrap();
    exited(&*task).await;
    assert!(!data.join("x").exists());
    host.assert_clean();
}

#[tokio::test]
async fn read_only_is_enforced_and_set_uid_and_devices_are_off() {
    let host = Host::new();
    let volume = Volume::new(&host).await;
    let mut spec = private(
        &host,
        "touch /ro/x || echo refused; touch /rw/y && echo taken; touch /elsewhere || echo refused; \
         grep -E ' /(ro|rw) ' /proc/self/mountinfo | cut -d' ' -f5,6; mount -o remount,rw,bind /ro && echo root may",
        &["/ro", "/rw"],
    );
    spec.mounts[0].read_only = true;
    let (record, output) = host.run(&spec, vec![volume.clone().await, volume.clone().await]).await;
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines[..3], ["refused", "taken", "refused"], "{output}");
    for (line, expected) in lines[3..5].iter().zip(["/ro ro,nosuid,nodev", "/rw rw,nosuid,nodev"]) {
        assert!(line.starts_with(expected), "{line}");
    }
    assert_eq!(record.outcome, Outcome::Code(0), "{output}");
    volume.undo().await;
    host.assert_clean();
}

#[tokio::test]
async fn a_block_volume_is_a_device_at_its_path() {
    let host = Host::new();
    let kernel = host.kernel();
    kernel.prepare_tree().await.unwrap();
    let path = TreePath::new(["vol-2", "device"]).unwrap();
    kernel.make_dir(&path.parent().unwrap()).await.unwrap();
    let target = kernel.absolute(&path.clone().into());
    std::fs::write(&target, "").unwrap();
    rustix::mount::mount_bind("/dev/loop0", &target).unwrap();
    let PathFacts::Present(present) = kernel.mount_facts(&path.clone().into()).await.unwrap() else {
        panic!()
    };
    let mut spec = private(
        &host,
        "stat -L -c '%F %t:%T' /dev/wharf-volume && head -c0 /dev/wharf-volume && ls /dev/null",
        &["/dev/wharf-volume"],
    );
    spec.mounts[0].block = true;
    let clone = kernel.clone_mount(&path, &present).await.unwrap();
    let (record, output) = host.run(&spec, vec![clone]).await;
    assert_eq!((record.outcome, output.as_str()), (Outcome::Code(0), "block special file 7:0\n/dev/null\n"));
    assert!(!Path::new("/dev/wharf-volume").exists());
    kernel.unmount(&path.into(), present.mount.unwrap().id).await.unwrap();
    kernel.undo_tree().await.unwrap();
    host.assert_clean();
}

#[tokio::test]
async fn an_opened_tmp_can_be_written_and_what_is_in_it_is_the_hosts() {
    let host = Host::new();
    let volume = Volume::new(&host).await;
    let tmp = host.data.join("tmp");
    std::fs::create_dir(&tmp).unwrap();
    std::fs::set_permissions(&tmp, std::os::unix::fs::PermissionsExt::from_mode(0o1777)).unwrap();
    std::fs::write(tmp.join("file"), "host\n").unwrap();
    let script =
        "cat $HERE/tmp/file; echo more >> $HERE/tmp/file; touch $HERE/tmp/mine && stat -c %a $HERE/tmp";
    let spec = private(&host, script, &[tmp.join("volume").to_str().unwrap()]);
    let (record, output) = host.run(&spec, vec![volume.clone().await]).await;
    assert_eq!((record.outcome, output.as_str()), (Outcome::Code(0), "host\n1777\n"));
    assert_eq!(std::fs::read_to_string(tmp.join("file")).unwrap(), "host\nmore\n");
    assert!(!tmp.join("mine").exists(), "its own, and gone with it");
    volume.undo().await;
    host.assert_clean();
}

#[tokio::test]
async fn mount_paths_that_cannot_be_are_refused_with_a_reason() {
    let host = Host::new();
    let volume = Volume::new(&host).await;
    std::fs::write(host.data.join("file"), "").unwrap();
    let file = host.data.join("file").to_str().unwrap().to_owned();
    std::fs::write(volume.kernel.absolute(&volume.path.clone().into()).join("inside"), "").unwrap();
    for (paths, reason) in [
        (vec!["/proc/x"], "not possible there"),
        (vec![file.as_str()], "file: no directory, which a volume is mounted at"),
        (vec!["/wharf-a", "/wharf-a/inside"], "inside in the volume at /wharf-a"),
    ] {
        let mut clones = Vec::new();
        for _ in &paths {
            clones.push(volume.clone().await);
        }
        let spec = private(&host, "exit 0", &paths);
        let error = host.processes().start(&host.task_directory(), &spec, clones).await.unwrap_err();
        assert!(error.to_string().contains(reason), "{paths:?}: {error}");
    }
    volume.undo().await;
    host.assert_clean();
}

/// A loop device with a file system; taken apart when dropped.
struct LoopDevice(String);

impl LoopDevice {
    fn new(image: &Path) -> Self {
        std::fs::File::create(image).unwrap().set_len(8 << 20).unwrap();
        let output = Command::new("losetup").args(["-f", "--show"]).arg(image).output().unwrap();
        let device = String::from_utf8(output.stdout).unwrap().trim().to_owned();
        assert!(Command::new("mkfs.ext4").args(["-q", &device]).status().unwrap().success());
        Self(device)
    }

    /// Whether a file system on it is alive anywhere: then nobody else gets it alone.
    fn is_busy(&self) -> bool {
        use std::os::unix::fs::OpenOptionsExt;
        std::fs::File::options().read(true).custom_flags(libc::O_EXCL).open(&self.0).is_err()
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        Command::new("losetup").args(["-d", &self.0]).status().ok();
    }
}

#[tokio::test]
async fn when_the_end_is_reported_the_file_system_is_free() {
    let host = Host::new();
    let kernel = host.kernel();
    kernel.prepare_tree().await.unwrap();
    let device = LoopDevice::new(&host.data.join("image"));
    let path = TreePath::new(["vol-1", "target"]).unwrap();
    kernel.make_dir(&path).await.unwrap();
    let target = kernel.absolute(&path.clone().into());
    for round in 0..10 {
        rustix::mount::mount(&device.0, &target, "ext4", rustix::mount::MountFlags::empty(), None).unwrap();
        let PathFacts::Present(present) = kernel.mount_facts(&path.clone().into()).await.unwrap() else {
            panic!("it is mounted")
        };
        let script =
            "cd /data; (trap '' TERM; exec sleep 1000) & (setsid sleep 1000) & echo x > f; sleep 1000";
        let mut spec = private(&host, script, &["/data"]);
        spec.hide = vec![host.data.join("volumes")];
        let clone = kernel.clone_mount(&path, &present).await.unwrap();
        let task = host.start(&spec, vec![clone]).await;
        // The kernel lets the host go while the task still writes: only the shim's word says when it is over.
        kernel.unmount(&path.clone().into(), present.mount.unwrap().id).await.unwrap();
        assert!(device.is_busy(), "{round}");
        task.stop(Some(Duration::from_millis(20))).unwrap();
        exited(&*task).await;
        assert!(!device.is_busy(), "{round}");
    }
    kernel.undo_tree().await.unwrap();
    host.assert_clean();
}

#[tokio::test]
async fn a_dead_file_system_beside_the_mount_path_does_not_stop_a_task() {
    let host = Host::new();
    let volume = Volume::new(&host).await;
    std::fs::create_dir_all(host.data.join("beside/dead")).unwrap();
    let dead = Dead::mount(&host.data.join("beside/dead"));
    let spec = private(&host, "ls $HERE/beside", &[host.data.join("beside/volume").to_str().unwrap()]);
    let (record, output) = host.run(&spec, vec![volume.clone().await]).await;
    assert_eq!((record.outcome, output.as_str()), (Outcome::Code(0), "dead\nvolume\n"));
    drop(dead);
    rustix::mount::unmount(host.data.join("beside/dead"), rustix::mount::UnmountFlags::DETACH).unwrap();
    volume.undo().await;
    host.assert_clean();
}

#[tokio::test]
async fn a_shim_that_hangs_while_it_prepares_is_given_up() {
    let host = Host::new();
    let dead = host.data.join("dead");
    std::fs::create_dir(&dead).unwrap();
    let server = Dead::mount(&dead);
    let mut spec = host.script("exit 0");
    spec.cwd = dead.join("x");
    let processes = host.processes().with_start_limit(Duration::from_millis(200));
    let error = processes.start(&host.task_directory(), &spec, vec![]).await.unwrap_err();
    assert!(matches!(error, ProcessError::NoAnswer { .. }), "{error}");
    assert!(matches!(processes.adopt(&host.task_directory()).await.unwrap(), Adopted::NeverStarted));
    drop(server);
    rustix::mount::unmount(&dead, rustix::mount::UnmountFlags::DETACH).unwrap();
    host.assert_clean();
}

#[test]
fn no_value_of_an_environment_is_shown() {
    let host = Host::new();
    let mut spec = host.script("");
    spec.env.insert("PASSWORD".to_owned(), "canary".to_owned());
    let shown = format!("{spec:?}");
    assert!(shown.contains("PASSWORD") && !shown.contains("canary"), "{shown}");
}
