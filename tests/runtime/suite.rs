//! The cases. Add one to [`for_each_case`] and it runs under every runtime.
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{Pid, Signal, kill_process};
use wharfline::api::runtime::Capabilities;
use wharfline::node::runtime::{Asked, Ended, Found, Running, RuntimeError};
use wharfline::sys::Kernel as _;
use wharfline::sys::kernel::KernelError;
use wharfline::sys::path::{SubPath, TreePath};
use wharfline::sys::process::{Outcome, ProcessError};

use crate::fixture::{Flavour, Machine, Wanted, exited, mounted};
use crate::support::{Propagation, assert_nothing_new, gone, lives, soon, table};

/// Calls the macro `$run` with the names of all cases.
macro_rules! for_each_case {
    ($run:ident) => {
        $run! {
            the_exit_code_and_the_output_are_kept,
            a_kill_from_outside_is_told_as_a_signal,
            the_environment_is_the_orders_and_nothing_is_inherited,
            what_protects_the_daemon_does_not_protect_its_tasks,
            a_program_that_is_missing_is_named_and_leaves_nothing,
            a_stop_gives_the_task_its_grace,
            a_task_that_ignores_sigterm_is_killed_with_all_it_started,
            the_earlier_stop_counts,
            a_grandchild_that_fled_is_gone_before_the_end_is_told,
            processes_that_come_while_others_are_killed_are_killed_too,
            a_lost_task_is_cleared_and_nothing_of_it_lives,
            a_running_task_is_adopted_from_its_place_alone,
            output_is_bounded_on_disk,
            a_volume_is_where_there_was_no_such_path_and_the_host_stays_clean,
            read_only_is_enforced_and_set_uid_and_devices_are_off,
            a_block_volume_is_a_device_at_its_path,
            the_daemons_tree_is_not_in_it_and_is_not_held,
            when_the_end_is_told_the_file_system_is_free,
            a_mount_path_that_cannot_be_is_refused_with_a_reason,
            a_volume_in_another_volume_has_its_place_made_there,
            two_mount_paths_that_are_one_place_are_refused,
            a_directory_of_a_volume_is_mounted_alone,
            no_directory_of_a_volume_leads_out_of_it,
            a_device_that_is_read_only_cannot_be_written,
            what_takes_more_memory_than_it_may_is_killed_and_that_is_told,
            a_limit_of_processes_is_in_force,
            it_is_who_it_shall_be,
            a_user_that_is_not_there_is_named,
            what_a_driver_mounts_is_seen_by_the_machine_and_outlives_it,
        }
    };
}
pub(crate) use for_each_case;

pub(crate) fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

pub(crate) async fn the_exit_code_and_the_output_are_kept(flavour: Flavour) {
    let machine = Machine::new(flavour).await;
    let (record, output) = machine.run(&machine.script("echo out; echo err >&2; exit 7")).await;
    assert_eq!(record.outcome, Outcome::Code(7));
    assert_eq!((record.stopped, record.oom), (false, false));
    assert!(record.started_ms > 1_600_000_000_000 && record.finished_ms >= record.started_ms);
    assert_eq!((output.as_str(), machine.log("stderr").as_str()), ("out\n", "err\n"));
    let Found::Exited(again) = machine.runtime.adopt(&machine.place).await.unwrap() else {
        panic!("it ended")
    };
    assert_eq!(again, record);
    machine.end().await;
}

pub(crate) async fn a_kill_from_outside_is_told_as_a_signal(flavour: Flavour) {
    let machine = Machine::new(flavour).await;
    let task = machine.start(&machine.script(": > $HERE/ready; while :; do sleep 60; done")).await;
    machine.written("ready").await;
    kill(machine.pids().1);
    let record = exited(&*task).await;
    assert_eq!((record.outcome, record.oom, record.stopped), (Outcome::Signal(9), false, false));
    machine.end().await;
}

pub(crate) async fn the_environment_is_the_orders_and_nothing_is_inherited(flavour: Flavour) {
    use rustix::fs::{Mode, OFlags, open};
    let machine = Machine::new(flavour).await;
    // A descriptor that somebody in this process forgot to keep to itself.
    let leak = open(machine.host.data.join("leak"), OFlags::RDWR | OFlags::CREATE, Mode::RUSR).unwrap();
    let mut wanted = machine.script("env; ls /proc/self/fd; cat /proc/self/status");
    wanted.env.insert("GREETING".to_owned(), "two words".to_owned());
    let (record, output) = machine.run(&wanted).await;
    drop(leak);
    assert_eq!(record.outcome, Outcome::Code(0), "the usual programs are found");
    let value = |name: &str| output.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    assert_eq!((value("GREETING"), value("HERE")), (Some("two words"), Some("/here")));
    let mut names: Vec<&str> = output.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    // What a shell and a container add.
    names.retain(|name| !["HOME", "NODE_NAME", "OLDPWD", "PWD", "SHLVL", "_"].contains(name));
    names.sort_unstable();
    assert_eq!(names, ["GREETING", "HERE", "PATH", "WHARFLINE_TASK"]);
    let descriptors: Vec<&str> = output.lines().filter(|line| line.parse::<u32>().is_ok()).collect();
    assert_eq!(descriptors, ["0", "1", "2", "3"], "three, and the one that lists them");
    for name in ["SigBlk:\t", "SigIgn:\t"] {
        let signals = output.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        // Signals 32 and 33 belong to the C library and are as they were; busybox's shell itself ignores SIGQUIT.
        let shells = if flavour.is_container() { 1 << 2 } else { 0 };
        assert_eq!(u64::from_str_radix(signals, 16).unwrap() & 0x7fff_ffff & !shells, 0, "{name}{signals}");
    }
    machine.end().await;
}

/// As a service manager gives it to the daemon: another likelihood to be killed for want of memory, and more open files.
pub(crate) async fn what_protects_the_daemon_does_not_protect_its_tasks(flavour: Flavour) {
    use rustix::process::{Resource, getrlimit};
    // More, not less: that needs no power, and shows as well what is inherited.
    std::fs::write("/proc/self/oom_score_adj", "321").unwrap();
    let files = wharfline::sys::open_files::raise_limit();
    assert!(files > 1024 && getrlimit(Resource::Nofile).current == Some(files), "{files}");
    let machine = Machine::new(flavour).await;
    let script =
        "cat /proc/self/oom_score_adj; ulimit -Sn; ulimit -Hn; : > $HERE/ready; while :; do sleep 60; done";
    let task = machine.start(&machine.script(script)).await;
    machine.written("ready").await;
    let (shim, main) = machine.pids();
    // What stays with a task for its life is kept as the daemon is. Of containerd's containers that is their client, too.
    let kept = if flavour == Flavour::Containerd { vec![shim, main] } else { vec![shim] };
    for pid in kept {
        let likelihood = std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
        assert_eq!(likelihood, "321\n", "{pid}");
    }
    task.stop(Some(Duration::ZERO)).unwrap();
    exited(&*task).await;
    // It may allow itself what it could before.
    assert_eq!(machine.log("stdout"), format!("0\n1024\n{files}\n"));
    machine.end().await;
}

pub(crate) async fn a_program_that_is_missing_is_named_and_leaves_nothing(flavour: Flavour) {
    let machine = Machine::new(flavour).await;
    let error = machine.try_start(&machine.program(&["/no/such/program"])).await.unwrap_err();
    assert!(error.to_string().contains("/no/such/program"), "{error}");
    let Found::Exited(record) = machine.runtime.adopt(&machine.place).await.unwrap() else {
        panic!("{error}")
    };
    assert!(matches!(record.outcome, Outcome::NotStarted(_)), "{record:?}");
    // The same place serves again.
    let (record, _) = machine.run(&machine.script("exit 3")).await;
    assert_eq!(record.outcome, Outcome::Code(3));
    machine.end().await;
}

pub(crate) async fn a_stop_gives_the_task_its_grace(flavour: Flavour) {
    let machine = Machine::new(flavour).await;
    let script = "trap 'echo bye; exit 4' TERM; : > $HERE/ready; while :; do sleep 0.01; done";
    let task = machine.start(&machine.script(script)).await;
    machine.written("ready").await;
    assert_eq!(task.stop(Some(Duration::from_secs(30))).unwrap(), Asked::EndComes);
    let record = exited(&*task).await;
    assert_eq!((record.outcome, record.stopped), (Outcome::Code(4), true));
    assert_eq!(machine.log("stdout"), "bye\n");
    machine.end().await;
}

pub(crate) async fn a_task_that_ignores_sigterm_is_killed_with_all_it_started(flavour: Flavour) {
    let machine = Machine::new(flavour).await;
    // What it started leads a session of its own, and is deaf as well. Each is found by the host's name of it.
    let script =
        "trap '' TERM; setsid sh -c 'sleep 7654 & wait' & : > $HERE/ready; while :; do sleep 60; done";
    let task = machine.start(&machine.script(script)).await;
    machine.written("ready").await;
    let inner = started("7654").await;
    task.stop(Some(Duration::from_millis(50))).unwrap();
    let record = exited(&*task).await;
    assert_eq!((record.outcome, record.stopped, record.oom), (Outcome::Signal(9), true, false));
    assert!(!lives(&inner));
    machine.end().await;
}

/// The number, as the host knows it, of the one `sleep` that was told to sleep so long.
async fn started(seconds: &str) -> String {
    let found = || {
        let mut all = std::fs::read_dir("/proc").unwrap().flatten();
        all.find_map(|entry| {
            let line = std::fs::read(entry.path().join("cmdline")).ok()?;
            let name = entry.file_name().to_str()?.to_owned();
            (line == format!("sleep\0{seconds}\0").as_bytes() && lives(&name)).then_some(name)
        })
    };
    soon(async {
        loop {
            if let Some(pid) = found() {
                return pid;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

pub(crate) async fn the_earlier_stop_counts(flavour: Flavour) {
    let machine = Machine::new(flavour).await;
    let script = "trap '' TERM; : > $HERE/ready; while :; do sleep 60; done";
    let task = machine.start(&machine.script(script)).await;
    machine.written("ready").await;
    task.stop(Some(Duration::from_secs(3600))).unwrap();
    task.stop(Some(Duration::ZERO)).unwrap();
    assert_eq!(exited(&*task).await.outcome, Outcome::Signal(9));
    task.stop(Some(Duration::ZERO)).unwrap();
    machine.end().await;
}

pub(crate) async fn a_grandchild_that_fled_is_gone_before_the_end_is_told(flavour: Flavour) {
    let machine = Machine::new(flavour).await;
    // Forked twice, own session, deaf to SIGTERM; the main process ends by itself.
    let script = "setsid sh -c \"trap '' TERM; : > $HERE/fled; while :; do sleep 8765; done\" & \
        while [ ! -e $HERE/fled ]; do sleep 0.01; done; while [ ! -e $HERE/go ]; do sleep 0.01; done; exit 5";
    let mut wanted = machine.script(script);
    wanted.grace = Duration::from_millis(100);
    let task = machine.start(&wanted).await;
    let fled = started("8765").await;
    std::fs::write(machine.host.data.join("here/go"), "").unwrap();
    let record = exited(&*task).await;
    assert_eq!((record.outcome, record.stopped), (Outcome::Code(5), false));
    assert!(!lives(&fled));
    machine.end().await;
}

pub(crate) async fn processes_that_come_while_others_are_killed_are_killed_too(flavour: Flavour) {
    let machine = Machine::new(flavour).await;
    let script = "trap '' TERM; : > $HERE/ready; \
        i=0; while [ $i -lt 1000 ]; do (setsid sh -c 'sleep 9876 & sleep 9876' &); i=$((i+1)); done; sleep 1000";
    let task = machine.start(&machine.script(script)).await;
    machine.written("ready").await;
    started("9876").await;
    task.stop(Some(Duration::from_millis(30))).unwrap();
    assert_eq!(exited(&*task).await.outcome, Outcome::Signal(9));
    let mut all = std::fs::read_dir("/proc").unwrap().flatten();
    let left = all.find(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        line == b"sleep\x009876\x00" && lives(entry.file_name().to_str().unwrap())
    });
    assert!(left.is_none(), "{left:?}");
    machine.end().await;
}

pub(crate) async fn a_lost_task_is_cleared_and_nothing_of_it_lives(flavour: Flavour) {
    let machine = Machine::new(flavour).await;
    // Own session, no environment, mounts of its own: nothing but its cgroup tells whose it is.
    let hides =
        "env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin setsid unshare -m --propagation private sleep 6545 & ";
    let hides = if flavour.is_container() { "" } else { hides };
    let script = format!("{hides}env -i setsid sleep 6543 & sleep 6544 & : > $HERE/ready; wait");
    let wanted = machine.script(&script);
    let task = machine.start(&wanted).await;
    machine.written("ready").await;
    let (fled, child) = (started("6543").await, started("6544").await);
    let hidden = if flavour.is_container() { child.clone() } else { started("6545").await };
    let (shim, main) = machine.pids();
    kill(shim);
    assert_eq!(soon(task.wait()).await.unwrap(), Ended::Lost);
    assert!(matches!(machine.runtime.adopt(&machine.place).await.unwrap(), Found::Lost));
    let taken = machine.try_start(&wanted).await.unwrap_err();
    assert!(matches!(taken, RuntimeError::Process(ProcessError::Taken { .. })), "{taken}");
    assert!(machine.runtime.forget(&machine.place).await.is_err(), "nobody knows what is left");

    assert!(soon(machine.runtime.clear(&machine.place)).await.unwrap() >= 1);
    for pid in [fled, child, hidden, main.to_string()] {
        gone(&pid).await;
    }
    let Found::Exited(record) = machine.runtime.adopt(&machine.place).await.unwrap() else {
        panic!("cleared")
    };
    assert_eq!(record.outcome, Outcome::Lost);
    assert_eq!(machine.runtime.clear(&machine.place).await.unwrap(), 0);
    machine.end().await;
}

pub(crate) async fn a_running_task_is_adopted_from_its_place_alone(flavour: Flavour) {
    let machine = Machine::new(flavour).await;
    let found = machine.runtime.adopt(&machine.place).await.unwrap();
    assert!(matches!(found, Found::NeverStarted), "{found:?}");
    let wanted = machine.script("trap 'exit 6' TERM; : > $HERE/ready; while :; do sleep 0.01; done");
    drop(machine.start(&wanted).await);
    machine.written("ready").await;
    assert_eq!(machine.finder.list().await.unwrap(), std::slice::from_ref(&machine.place));
    let taken = |error: RuntimeError| {
        assert!(matches!(error, RuntimeError::Process(ProcessError::Taken { .. })), "{error}");
    };
    taken(machine.try_start(&wanted).await.unwrap_err());
    taken(machine.runtime.forget(&machine.place).await.unwrap_err());
    taken(machine.runtime.clear(&machine.place).await.unwrap_err());
    let adopted = || async {
        match machine.runtime.adopt(&machine.place).await.unwrap() {
            Found::Running(task) => task,
            found => panic!("{found:?}"),
        }
    };
    let (one, other): (Arc<dyn Running>, Arc<dyn Running>) = (adopted().await, adopted().await);
    one.stop(Some(Duration::from_secs(30))).unwrap();
    assert_eq!(exited(&*other).await.outcome, Outcome::Code(6));
    assert_eq!(exited(&*one).await.outcome, Outcome::Code(6));
    assert_eq!(exited(&*one).await.outcome, Outcome::Code(6), "asked again");
    machine.runtime.forget(&machine.place).await.unwrap();
    assert!(!machine.place.directory.exists() && machine.log("stdout").is_empty());
    machine.end().await;
}

/// Obligation CO-PLUG-14.
pub(crate) async fn output_is_bounded_on_disk(flavour: Flavour) {
    let machine = Machine::new(flavour).await;
    let (record, _) = machine.run(&machine.script("head -c 40000000 /dev/zero; echo the end")).await;
    assert_eq!(record.outcome, Outcome::Code(0));
    let sizes: Vec<u64> = std::fs::read_dir(&machine.place.logs)
        .unwrap()
        .flatten()
        .map(|entry| entry.metadata().unwrap().len())
        .collect();
    assert!(sizes.iter().all(|size| *size <= 10 << 20), "{sizes:?}");
    let sum: u64 = sizes.iter().sum();
    assert!((20 << 20..=30 << 20).contains(&sum), "{sizes:?}");
    assert!(machine.log("stdout").ends_with("the end\n"));
    machine.end().await;
}

pub(crate) async fn a_volume_is_where_there_was_no_such_path_and_the_host_stays_clean(flavour: Flavour) {
    for propagation in [Propagation::Private, Propagation::Shared] {
        let machine = Machine::with_root(flavour, propagation).await;
        let volume = machine.volume("data").await;
        let before = table();
        let mut wanted = machine.script(
            "echo hello > /wharf-data/greeting && cat /wharf/not/there/yet/greeting && : > $HERE/ready && sleep 1000",
        );
        wanted.volumes.push(mounted(&volume, "/wharf-data"));
        wanted.volumes.push(mounted(&volume, "/wharf/not/there/yet"));
        let task = machine.start(&wanted).await;
        machine.written("ready").await;
        assert!(!Path::new("/wharf-data").exists() && !Path::new("/wharf").exists());
        assert_nothing_new(&before);
        assert_eq!(std::fs::read_to_string(machine.seen(&volume).join("greeting")).unwrap(), "hello\n");
        task.stop(Some(Duration::ZERO)).unwrap();
        exited(&*task).await;
        assert_eq!(machine.log("stdout"), "hello\n");
        assert_nothing_new(&before);
        machine.unmount(&volume).await;
        machine.end().await;
    }
}

pub(crate) async fn read_only_is_enforced_and_set_uid_and_devices_are_off(flavour: Flavour) {
    let machine = Machine::new(flavour).await;
    let volume = machine.volume("data").await;
    let mut wanted = machine.script(
        "touch /ro/x || echo refused; touch /rw/y && echo taken; grep -E ' /(ro|rw) ' /proc/self/mountinfo | cut -d' ' -f5,6",
    );
    wanted.volumes.push(mounted(&volume, "/ro"));
    wanted.volumes.push(mounted(&volume, "/rw"));
    wanted.volumes[1].1.read_only = true;
    let (record, output) = machine.run(&wanted).await;
    let mut lines: Vec<&str> = output.lines().collect();
    lines[2..].sort_unstable();
    assert_eq!(lines[..2], ["refused", "taken"], "{output}");
    for (line, expected) in lines[2..].iter().zip(["/ro ro,nosuid,nodev", "/rw rw,nosuid,nodev"]) {
        assert!(line.starts_with(expected), "{line}");
    }
    assert_eq!((record.outcome, lines.len()), (Outcome::Code(0), 4), "{output}");
    machine.unmount(&volume).await;
    machine.end().await;
}

pub(crate) async fn a_block_volume_is_a_device_at_its_path(flavour: Flavour) {
    let machine = Machine::new(flavour).await;
    let device = LoopDevice::new(&machine.host.data.join("image"));
    let volume = machine.bound("device", Path::new(&device.0)).await;
    let mut wanted = machine.script(
        "stat -L -c '%F' /dev/wharf-volume && printf hello > /dev/wharf-volume && head -c5 /dev/wharf-volume && ls /dev/null",
    );
    wanted.volumes.push(mounted(&volume, "/dev/wharf-volume"));
    wanted.volumes[1].1.block = true;
    let (record, output) = machine.run(&wanted).await;
    let seen = (record.outcome, output.as_str());
    assert_eq!(seen, (Outcome::Code(0), "block special file\nhello/dev/null\n"), "{}", machine.log("stderr"));
    assert!(!Path::new("/dev/wharf-volume").exists());
    machine.unmount(&volume).await;
    machine.end().await;
}

pub(crate) async fn the_daemons_tree_is_not_in_it_and_is_not_held(flavour: Flavour) {
    let machine = Machine::new(flavour).await;
    let volume = machine.volume("data").await;
    std::fs::create_dir_all(&machine.place.logs).unwrap();
    let secret = machine.host.data.join("daemon/secret");
    std::fs::write(&secret, "s").unwrap();
    let mut wanted = machine.script(
        "cat $SECRET && echo read; ls -A $TREE; grep -c publish/data /proc/self/mountinfo; : > $HERE/ready; sleep 1000",
    );
    let tree = machine.seen(&volume);
    wanted.env.insert("SECRET".to_owned(), secret.to_str().unwrap().to_owned());
    wanted.env.insert("TREE".to_owned(), tree.parent().unwrap().to_str().unwrap().to_owned());
    let task = machine.start(&wanted).await;
    machine.written("ready").await;
    // It runs; the volume can be unmounted all the same, and its file system is gone then.
    machine.unmount(&volume).await;
    task.stop(Some(Duration::ZERO)).unwrap();
    exited(&*task).await;
    assert_eq!(machine.log("stdout"), "0\n", "{}", machine.log("stderr"));
    std::fs::remove_file(secret).unwrap();
    machine.end().await;
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
        use std::os::unix::fs::OpenOptionsExt as _;
        std::fs::File::options().read(true).custom_flags(libc::O_EXCL).open(&self.0).is_err()
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        Command::new("losetup").args(["-d", &self.0]).status().ok();
    }
}

pub(crate) async fn when_the_end_is_told_the_file_system_is_free(flavour: Flavour) {
    let machine = Machine::new(flavour).await;
    let device = LoopDevice::new(&machine.host.data.join("image"));
    for round in 0..5 {
        let volume = machine.formatted(&format!("v{round}"), &device.0).await;
        let script = "cd /data; (trap '' TERM; exec sleep 1000) & (setsid sleep 1000) & echo x > f; : > $HERE/ready; sleep 1000";
        let mut wanted = machine.script(script);
        wanted.volumes.push(mounted(&volume, "/data"));
        let task = machine.start(&wanted).await;
        machine.written("ready").await;
        // The kernel lets the host go while the task still writes: only the word of its end says when it is over.
        machine.unmount(&volume).await;
        assert!(device.is_busy(), "{round}");
        task.stop(Some(Duration::from_millis(20))).unwrap();
        exited(&*task).await;
        assert!(!device.is_busy(), "{round}");
        std::fs::remove_file(machine.host.data.join("here/ready")).unwrap();
    }
    machine.end().await;
}

pub(crate) async fn a_mount_path_that_cannot_be_is_refused_with_a_reason(flavour: Flavour) {
    let machine = Machine::new(flavour).await;
    let volume = machine.volume("data").await;
    for path in ["/proc/x", "/proc/self/wharf"] {
        let mut wanted: Wanted<'_> = machine.script("exit 0");
        wanted.volumes.push(mounted(&volume, path));
        let error = machine.try_start(&wanted).await.unwrap_err();
        assert!(error.to_string().contains("/proc"), "{path}: {error}");
    }
    machine.unmount(&volume).await;
    machine.end().await;
}

pub(crate) async fn a_volume_in_another_volume_has_its_place_made_there(flavour: Flavour) {
    let machine = Machine::new(flavour).await;
    let (outer, inner) = (machine.volume("outer").await, machine.volume("inner").await);
    let seen = machine.seen(&outer);
    std::fs::set_permissions(&seen, std::os::unix::fs::PermissionsExt::from_mode(0o2775)).unwrap();
    std::os::unix::fs::symlink("/tmp", seen.join("link")).unwrap();
    // In whichever order they are listed.
    for swap in [false, true] {
        let mut wanted = machine.script("echo in > /wharf-data/more/x/file; ls /wharf-data");
        wanted.volumes.push(mounted(&outer, "/wharf-data"));
        wanted.volumes.push(mounted(&inner, "/wharf-data/more/x"));
        if swap {
            wanted.volumes.reverse();
        }
        let (record, output) = machine.run(&wanted).await;
        let found = (record.outcome, output.as_str());
        // Both runs have written to it by then.
        let lines = "link\nmore\n".repeat(usize::from(swap) + 1);
        assert_eq!(found, (Outcome::Code(0), lines.as_str()), "{}", machine.log("stderr"));
        assert_eq!(std::fs::read_to_string(machine.seen(&inner).join("file")).unwrap(), "in\n");
        assert_eq!(std::fs::read_dir(seen.join("more/x")).unwrap().count(), 0, "it is beneath the mount");
        let mode =
            std::os::unix::fs::PermissionsExt::mode(&seen.join("more/x").metadata().unwrap().permissions());
        assert_eq!(mode & 0o7777, 0o2775, "as what it is made in");
        std::fs::remove_file(machine.seen(&inner).join("file")).unwrap();
    }
    // Not by a link of the volume's users, and not where nothing may be written.
    for (path, read_only, says) in
        [("link/x", false, "link"), ("new/x", true, "read-only"), ("more/x", true, "")]
    {
        let mut wanted = machine.script("exit 0");
        let (outer, mut at) = mounted(&outer, "/wharf-data");
        at.read_only = read_only;
        wanted.volumes.push((outer, at));
        wanted.volumes.push(mounted(&inner, &format!("/wharf-data/{path}")));
        if says.is_empty() {
            assert_eq!(machine.run(&wanted).await.0.outcome, Outcome::Code(0), "it is there");
            continue;
        }
        let error = machine.try_start(&wanted).await.unwrap_err().to_string();
        assert!(
            error.contains(says) && error.contains(path) && error.contains("/wharf-data"),
            "{path}: {error}"
        );
    }
    assert!(!seen.join("new").exists() && !Path::new("/tmp/x").exists());
    for volume in [outer, inner] {
        machine.unmount(&volume).await;
    }
    machine.end().await;
}

pub(crate) async fn two_mount_paths_that_are_one_place_are_refused(flavour: Flavour) {
    let machine = Machine::new(flavour).await;
    let (one, other) = (machine.volume("one").await, machine.volume("other").await);
    // A link of the root that the task has: the image's, or else the machine's.
    let (link, real) = if flavour.is_container() {
        ("/var/run".to_owned(), "/run".to_owned())
    } else {
        let at = |name: &str| machine.host.data.join(name);
        std::fs::create_dir(at("real")).unwrap();
        std::os::unix::fs::symlink("real", at("link")).unwrap();
        ["link", "real"].map(|name| at(name).to_str().unwrap().to_owned()).into()
    };
    for (first, second) in [(&link, &real), (&real, &link)] {
        let mut wanted = machine.script("exit 0");
        wanted.volumes.push(mounted(&one, &format!("{first}/zz")));
        wanted.volumes.push(mounted(&other, &format!("{second}/zz")));
        let error = machine.try_start(&wanted).await.unwrap_err().to_string();
        assert!(error.contains(&format!("{link}/zz")) && error.contains(&format!("{real}/zz")), "{error}");
    }
    // One that lies in the other by the link comes after it, whatever their paths are.
    std::fs::create_dir_all(machine.seen(&one).join("in")).unwrap();
    let script = format!("echo in > {link}/zz/in/file; ls {real}/zz");
    let mut wanted = machine.script(&script);
    wanted.volumes.push(mounted(&other, &format!("{real}/zz/in")));
    wanted.volumes.push(mounted(&one, &format!("{link}/zz")));
    let (record, output) = machine.run(&wanted).await;
    assert_eq!((record.outcome, output.as_str()), (Outcome::Code(0), "in\n"), "{}", machine.log("stderr"));
    assert_eq!(std::fs::read_to_string(machine.seen(&other).join("file")).unwrap(), "in\n");
    for volume in [one, other] {
        machine.unmount(&volume).await;
    }
    machine.end().await;
}

pub(crate) async fn a_directory_of_a_volume_is_mounted_alone(flavour: Flavour) {
    let machine = Machine::new(flavour).await;
    let volume = machine.volume("data").await;
    let seen = machine.seen(&volume);
    std::fs::write(seen.join("beside"), "").unwrap();
    for make in [true, false] {
        let mut wanted = machine.script("ls -A /data; echo mine > /data/file; ls -d /data/.. | wc -l");
        wanted.volumes.push(mounted(&volume, "/data"));
        wanted.within = Some(SubPath::new("app/db", make).unwrap());
        let (record, output) = machine.run(&wanted).await;
        assert_eq!(record.outcome, Outcome::Code(0), "{}", machine.log("stderr"));
        assert!(!output.contains("beside"), "{output}");
        assert_eq!(std::fs::read_to_string(seen.join("app/db/file")).unwrap(), "mine\n");
    }
    let mode = |path: &std::path::Path| {
        std::os::unix::fs::PermissionsExt::mode(&path.metadata().unwrap().permissions()) & 0o7777
    };
    assert_eq!(mode(&seen.join("app")), mode(&seen), "made for those who may use the volume");
    machine.unmount(&volume).await;
    machine.end().await;
}

/// Scenario B95.
/// Whoever has used the volume before may have left anything in it.
pub(crate) async fn no_directory_of_a_volume_leads_out_of_it(flavour: Flavour) {
    let machine = Machine::new(flavour).await;
    let volume = machine.volume("data").await;
    let seen = machine.seen(&volume);
    std::os::unix::fs::symlink("/etc", seen.join("out")).unwrap();
    std::os::unix::fs::symlink("real", seen.join("link")).unwrap();
    std::fs::create_dir_all(seen.join("real/other")).unwrap();
    std::fs::write(seen.join("file"), "").unwrap();
    rustix::mount::mount("none", seen.join("real/other"), "tmpfs", MountFlags::empty(), None).unwrap();
    for make in [false, true] {
        for path in ["out", "out/ssl", "link", "real/other", "real/other/x"] {
            let error = machine.refused(&volume, &SubPath::new(path, make).unwrap()).await;
            assert!(matches!(error, KernelError::Outside { .. }), "{path}: {error:?}");
        }
        let error = machine.refused(&volume, &SubPath::new("file", make).unwrap()).await;
        assert!(matches!(error, KernelError::Refused { .. }), "{error:?}");
    }
    let error = machine.refused(&volume, &SubPath::new("missing/x", false).unwrap()).await;
    assert!(matches!(error, KernelError::NotFound { .. }), "{error:?}");
    assert!(!seen.join("missing").exists() && !Path::new("/etc/ssl/x").exists());
    for path in ["", "/etc", "a/../..", "a//b", "."] {
        assert!(SubPath::new(path, true).is_err(), "{path}");
    }
    rustix::mount::unmount(seen.join("real/other"), UnmountFlags::empty()).unwrap();
    machine.unmount(&volume).await;
    machine.end().await;
}

pub(crate) async fn a_device_that_is_read_only_cannot_be_written(flavour: Flavour) {
    let machine = Machine::new(flavour).await;
    let device = LoopDevice::new(&machine.host.data.join("image"));
    let volume = machine.bound("device", Path::new(&device.0)).await;
    // Whatever node of it there is: the one that it was given, or one that it makes itself.
    let mut wanted = machine.script(
        "head -c1 /dev/wharf-volume > /dev/null && echo read; (echo x > /dev/wharf-volume) 2>/dev/null || echo refused; \
         mknod /here/mine b $((0x$(stat -L -c %t /dev/wharf-volume))) $((0x$(stat -L -c %T /dev/wharf-volume))); \
         (echo x > /here/mine) 2>/dev/null || echo refused",
    );
    wanted.volumes.push(mounted(&volume, "/dev/wharf-volume"));
    (wanted.volumes[1].1.block, wanted.volumes[1].1.read_only) = (true, true);
    let (_, output) = machine.run(&wanted).await;
    assert_eq!(output, "read\nrefused\nrefused\n", "{}", machine.log("stderr"));
    machine.unmount(&volume).await;
    machine.end().await;
}

/// Obligation CO-PLUG-13.
pub(crate) async fn what_takes_more_memory_than_it_may_is_killed_and_that_is_told(flavour: Flavour) {
    let machine = Machine::new(flavour).await;
    // One line that has no end is kept in memory whole.
    let mut wanted = machine.script("tr '\\0' x < /dev/zero | sed s/y/z/");
    "24Mi".clone_into(&mut wanted.task.resources.limits.memory);
    let (record, _) = machine.run(&wanted).await;
    assert!(record.oom, "{record:?}");
    let (record, _) = machine.run(&machine.script("kill -9 $$; exit 3")).await;
    assert!(!record.oom, "{record:?}");
    machine.end().await;
}

/// Obligation CO-PLUG-13.
pub(crate) async fn a_limit_of_processes_is_in_force(flavour: Flavour) {
    let machine = Machine::new(flavour).await;
    // runc is in the cgroup, too, until the program runs, with a dozen threads.
    let mut wanted = machine.script("i=0; while [ $i -lt 40 ]; do sleep 30 & i=$((i+1)); done; echo all");
    "32".clone_into(&mut wanted.task.resources.limits.pids);
    wanted.grace = Duration::ZERO;
    let (record, output) = machine.run(&wanted).await;
    assert!(record.outcome != Outcome::Code(0) && output.is_empty(), "{record:?} {output}");
    assert!(machine.log("stderr").to_lowercase().contains("fork"), "{}", machine.log("stderr"));
    machine.end().await;
}

/// The user, the groups and the capabilities of a task, however it is run.
fn who<'a>(wanted: &'a mut Wanted<'_>) -> (&'a mut String, (&'a mut Vec<String>, &'a mut Capabilities)) {
    let runtime = &mut wanted.task.runtime;
    let container = runtime.oci.as_mut().or(runtime.containerd.as_mut());
    match (runtime.process.as_mut().or(runtime.systemd.as_mut()), container) {
        (Some(of), _) => (&mut of.user, (&mut of.groups, &mut of.capabilities)),
        (None, Some(of)) => (&mut of.user, (&mut of.groups, &mut of.capabilities)),
        (None, None) => panic!("nothing of ours runs it"),
    }
}

pub(crate) async fn it_is_who_it_shall_be(flavour: Flavour) {
    let machine = Machine::new(flavour).await;
    let process = |user: &str, groups: &[&str], add: &[&str], drop: &[&str]| {
        let mut wanted =
            machine.script("grep -E '^(Uid|Gid|Groups|CapEff|CapBnd|CapAmb):' /proc/self/status");
        let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let (named, all) = who(&mut wanted);
        (*named, *all.0) = (user.to_owned(), owned(groups));
        (all.1.add, all.1.drop) = (owned(add), owned(drop));
        wanted
    };
    let field = |output: &str, name: &str| -> String {
        let line = output.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let (_, output) = machine.run(&process("nobody", &["7", "daemon"], &["NET_BIND_SERVICE"], &[])).await;
    assert_eq!(field(&output, "Uid:"), "65534 65534 65534 65534", "{}", machine.log("stderr"));
    assert_eq!(field(&output, "Gid:"), "65534 65534 65534 65534");
    for group in ["1", "7"] {
        assert!(field(&output, "Groups:").split(' ').any(|of_it| of_it == group), "{output}");
    }
    for set in ["CapEff:", "CapAmb:"] {
        assert_eq!(u64::from_str_radix(&field(&output, set), 16).unwrap(), 1 << 10, "{set} {output}");
    }
    machine.runtime.forget(&machine.place).await.unwrap();
    let (_, output) = machine.run(&process("", &[], &["CHOWN"], &["ALL"])).await;
    assert_eq!(field(&output, "Uid:"), "0 0 0 0");
    for set in ["CapEff:", "CapBnd:"] {
        assert_eq!(u64::from_str_radix(&field(&output, set), 16).unwrap(), 1, "{set} {output}");
    }
    machine.end().await;
}

pub(crate) async fn a_user_that_is_not_there_is_named(flavour: Flavour) {
    let machine = Machine::new(flavour).await;
    let mut wanted = machine.script("exit 0");
    "no-such-user".clone_into(who(&mut wanted).0);
    let error = machine.try_start(&wanted).await.unwrap_err();
    assert!(error.to_string().contains("no-such-user"), "{error}");
    machine.end().await;
}

/// Its socket is where the machine looks for it, and what it mounts in the tree is everybody's, whatever ends it.
pub(crate) async fn what_a_driver_mounts_is_seen_by_the_machine_and_outlives_it(flavour: Flavour) {
    for killed in [false, true] {
        let machine = Machine::new(flavour).await;
        let target = machine.kernel.absolute(&TreePath::new(["publish", "own", "target"]).unwrap().into());
        std::fs::create_dir_all(&target).unwrap();
        let wanted = machine.driver(
            "trap 'exit 0' TERM; : > $SOCKETS/csi.sock; at=$TREE/publish/own/target; mount -t tmpfs none $at && \
             echo kept > $at/file && cat $TREE/publish/seen/target/file > $HERE/part && mv $HERE/part $HERE/ready; \
             while :; do sleep 0.01; done",
        );
        // Mounted by the machine before it began.
        let seen = machine.volume("seen").await;
        std::fs::write(machine.seen(&seen).join("file"), "before\n").unwrap();
        let task = machine.start(&wanted).await;
        assert_eq!(machine.written("ready").await, "before\n", "{}", machine.log("stderr"));
        assert!(machine.host.data.join("sockets/csi.sock").exists());
        assert_eq!(std::fs::read_to_string(target.join("file")).unwrap(), "kept\n");
        let grace = if killed { Duration::ZERO } else { Duration::from_secs(10) };
        task.stop(Some(grace)).unwrap();
        exited(&*task).await;
        assert_eq!(
            std::fs::read_to_string(target.join("file")).unwrap(),
            "kept\n",
            "it went with the driver"
        );
        rustix::mount::unmount(&target, UnmountFlags::empty()).unwrap();
        machine.unmount(&seen).await;
        machine.end().await;
    }
}
