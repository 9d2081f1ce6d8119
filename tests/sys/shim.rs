//! Tasks under shims.
use crate::support::{Host, ended, exited, lives, soon};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;
use wharfline::sys::Processes;
use wharfline::sys::process::{Adopted, Ended, Outcome, ProcessError};

#[tokio::test]
async fn the_exit_code_and_the_output_are_kept() {
    let host = Host::new();
    let (record, output) = host.run(&host.script("echo out; echo err >&2; exit 7"), vec![]).await;
    assert_eq!(record.outcome, Outcome::Code(7));
    assert_eq!((record.stopped, record.oom), (false, false));
    assert!(record.started_ms > 1_600_000_000_000 && record.finished_ms >= record.started_ms);
    assert_eq!(output, "out\nerr\n");
    assert_eq!(std::fs::read_to_string(host.data.join("out")).unwrap(), "out\n");
}

#[tokio::test]
async fn a_signal_is_told_from_a_code() {
    let host = Host::new();
    let (record, _) = host.run(&host.script("kill -9 $$"), vec![]).await;
    assert_eq!((record.outcome, record.oom), (Outcome::Signal(9), false));
}

#[tokio::test]
async fn the_environment_is_the_specs_and_nothing_is_inherited() {
    let host = Host::new();
    let _leak = leak(&host);
    let mut spec = host.script("");
    spec.argv =
        ["sh", "-c", "env | sort; ls /proc/self/fd; cat /proc/self/status"].map(str::to_owned).to_vec();
    spec.env.insert("PATH".to_owned(), "/no-such:/usr/bin:/bin".to_owned());
    let (record, output) = host.run(&spec, vec![]).await;
    assert_eq!(record.outcome, Outcome::Code(0), "found on the spec's PATH");
    let names: Vec<&str> = output.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    assert_eq!(names, ["HERE", "PATH", "PWD", "WHARFLINE_TASK"]);
    let descriptors: Vec<&str> = output.lines().filter(|line| line.parse::<u32>().is_ok()).collect();
    assert_eq!(descriptors, ["0", "1", "2", "3"], "three, and the one that lists them");
    for name in ["SigBlk:\t", "SigIgn:\t"] {
        let signals = output.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        // Signals 32 and 33 belong to the C library and are as they were.
        assert_eq!(u64::from_str_radix(signals, 16).unwrap() & 0x7fff_ffff, 0, "{name}{signals}");
    }
}

#[tokio::test]
async fn the_running_binary_is_found_by_its_name() {
    let host = Host::new();
    let mut spec = host.script("");
    spec.argv = vec!["wharfline".to_owned(), "no-such-command".to_owned()];
    let (record, _) = host.run(&spec, vec![]).await;
    assert_eq!(record.outcome, Outcome::Code(2), "its code for wrong usage");
}

#[tokio::test]
async fn without_its_unit_a_task_does_not_begin() {
    use wharfline::sys::units::UnitSpec;
    let host = Host::new();
    let mut spec = host.script(": > $HERE/ran");
    // No systemd makes a unit of this name, and where there is none it makes no other either.
    spec.unit = Some(UnitSpec {
        name: "no unit".to_owned(),
        slice: "wharfline.slice".to_owned(),
        description: "a test".to_owned(),
        limits: wharfline::sys::cgroup::Limits::default(),
        stop_after_ms: 1000,
    });
    let error = host.processes().start(&host.task_directory(), &spec, vec![]).await.unwrap_err();
    let told = "systemd did not make the unit no unit: ";
    assert!(matches!(&error, ProcessError::NotStarted(why) if why.starts_with(told)), "{error}");
    match host.processes().adopt(&host.task_directory()).await.unwrap() {
        Adopted::Exited(record) => assert!(matches!(record.outcome, Outcome::NotStarted(_)), "{record:?}"),
        found => panic!("{found:?}"),
    }
    assert!(!host.data.join("ran").exists());
    host.processes().forget(&host.task_directory(), &host.logs()).await.unwrap();
    host.assert_clean();
}

#[tokio::test]
async fn a_program_that_cannot_run_is_reported_and_leaves_nothing() {
    let host = Host::new();
    let mut spec = host.script("");
    spec.argv = vec!["/no/such/program".to_owned()];
    let error = host.processes().start(&host.task_directory(), &spec, vec![]).await.unwrap_err();
    assert!(matches!(&error, ProcessError::NotStarted(why) if why.contains("/no/such/program")), "{error}");
    match host.processes().adopt(&host.task_directory()).await.unwrap() {
        Adopted::Exited(record) => assert!(matches!(record.outcome, Outcome::NotStarted(_)), "{record:?}"),
        other => panic!("{other:?}"),
    }
    // The same directory serves again.
    assert_eq!(host.run(&host.script("exit 3"), vec![]).await.0.outcome, Outcome::Code(3));
}

#[tokio::test]
async fn a_stop_gives_the_task_its_grace() {
    let host = Host::new();
    let task = host
        .start(
            &host.script("trap 'echo bye; exit 4' TERM; : > $HERE/ready; while :; do sleep 0.01; done"),
            vec![],
        )
        .await;
    host.written("ready").await;
    task.stop(Some(Duration::from_secs(30))).unwrap();
    let record = exited(&*task).await;
    assert_eq!((record.outcome, record.stopped), (Outcome::Code(4), true));
    assert_eq!(std::fs::read_to_string(host.data.join("out")).unwrap(), "bye\n");
}

#[tokio::test]
async fn a_task_that_ignores_sigterm_is_killed_with_all_it_started() {
    let host = Host::new();
    let script = "trap '' TERM; setsid sh -c 'echo $$ > $HERE/inner.new; mv $HERE/inner.new $HERE/inner; while :; do sleep 60; done' & wait; while :; do sleep 60; done";
    let task = host.start(&host.script(script), vec![]).await;
    let inner = host.written("inner").await;
    assert!(lives(&inner));
    task.stop(Some(Duration::from_millis(50))).unwrap();
    let record = exited(&*task).await;
    assert_eq!((record.outcome, record.stopped, record.oom), (Outcome::Signal(9), true, false));
    assert!(!lives(&inner));
}

/// Any process of its user may bring that about, one in a container, too.
#[tokio::test]
async fn a_stop_arrives_where_no_more_signals_may_wait() {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    let host = Host::new();
    let mut spec = host.script("trap 'exit 4' TERM; : > $HERE/ready; while :; do sleep 0.01; done");
    spec.grace_ms = 30_000;
    let task = host.start(&spec, vec![]).await;
    host.written("ready").await;
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    prlimit(Pid::from_raw(task.state().shim.pid), Resource::Sigpending, none).unwrap();
    task.stop(Some(Duration::from_millis(50))).unwrap();
    let record = exited(&*task).await;
    assert_eq!((record.outcome, record.stopped), (Outcome::Code(4), true));
}

#[tokio::test]
async fn the_earlier_stop_counts() {
    let host = Host::new();
    let task =
        host.start(&host.script("trap '' TERM; : > $HERE/ready; while :; do sleep 60; done"), vec![]).await;
    host.written("ready").await;
    task.stop(Some(Duration::from_secs(3600))).unwrap();
    task.stop(Some(Duration::ZERO)).unwrap();
    assert_eq!(ended(&*task).await, Outcome::Signal(9));
    task.stop(Some(Duration::ZERO)).unwrap();
}

#[tokio::test]
async fn a_grandchild_that_fled_is_reaped_before_the_end_is_reported() {
    let host = Host::new();
    // Forked twice, own session, deaf to SIGTERM; the main process ends by itself.
    let script = "setsid sh -c \"trap '' TERM; echo \\$\\$ > $HERE/fled.new; mv $HERE/fled.new $HERE/fled; while :; do sleep 60; done\" & while [ ! -e $HERE/fled ]; do sleep 0.01; done; exit 5";
    let mut spec = host.script(script);
    spec.grace_ms = 100;
    let task = host.start(&spec, vec![]).await;
    let record = exited(&*task).await;
    assert_eq!((record.outcome, record.stopped), (Outcome::Code(5), false));
    assert!(record.finished_ms - record.started_ms >= 100, "it had its grace");
    assert!(!lives(&host.written("fled").await));
}

#[tokio::test]
async fn what_is_left_of_a_task_hears_sigterm_first() {
    let host = Host::new();
    let script = "setsid sh -c \"trap 'echo bye; exit' TERM; : > $HERE/ready; while :; do sleep 0.01; done\" & \
        while [ ! -e $HERE/ready ]; do sleep 0.01; done; exit 5";
    let (record, _) = host.run(&host.script(script), vec![]).await;
    let output = std::fs::read_to_string(host.data.join("out")).unwrap();
    assert_eq!((record.outcome, output.as_str()), (Outcome::Code(5), "bye\n"));
}

#[tokio::test]
async fn processes_that_come_while_others_are_killed_are_killed_too() {
    let host = Host::new();
    let script = "trap '' TERM; : > $HERE/ready; \
        i=0; while [ $i -lt 1500 ]; do (setsid sh -c 'sleep 1000 & sleep 1000' &); i=$((i+1)); done; sleep 1000";
    let task = host.start(&host.script(script), vec![]).await;
    host.written("ready").await;
    task.stop(Some(Duration::from_millis(30))).unwrap();
    // The shim ends only when it has no child, so that its end is the proof.
    assert_eq!(ended(&*task).await, Outcome::Signal(9));
}

#[tokio::test]
async fn a_lost_shim_takes_the_task_along_and_what_fled_is_found() {
    for private in [false, true] {
        let host = Host::new();
        let script = "env -i setsid sh -c 'echo $$ > $1/a.new; mv $1/a.new $1/a; exec sleep 1000' x $HERE & \
            sh -c 'echo $$ > $HERE/b.new; mv $HERE/b.new $HERE/b; exec sleep 1000' & \
            setsid sh -c 'echo $$ > $HERE/c.new; mv $HERE/c.new $HERE/c; exec sleep 1000' & wait";
        let mut spec = host.script(script);
        spec.private_mounts = private;
        let task = host.start(&spec, vec![]).await;
        let (a, b, c) = (host.written("a").await, host.written("b").await, host.written("c").await);
        let main = task.state().task.pid.to_string();
        let shim = rustix::process::Pid::from_raw(task.state().shim.pid).unwrap();
        rustix::process::kill_process(shim, rustix::process::Signal::KILL).unwrap();
        assert_eq!(soon(task.wait()).await.unwrap(), Ended::Lost);
        crate::support::gone(&main).await; // with its shim, before anybody looks

        let processes = host.processes();
        let directory = host.task_directory();
        assert!(matches!(processes.adopt(&directory).await.unwrap(), Adopted::Lost(_)));
        let again = processes.start(&directory, &spec, vec![]).await.unwrap_err();
        assert!(matches!(again, ProcessError::Taken { .. }), "{again}");
        let cleared = soon(processes.clear_leftovers(&directory)).await.unwrap();
        // Without private mounts nothing tells that `a` was the task's: no session, no environment.
        assert_eq!(lives(&a), !private);
        assert_eq!((lives(&main), lives(&b), lives(&c)), (false, false, false));
        assert!(cleared >= 2, "{cleared}");
        match processes.adopt(&directory).await.unwrap() {
            Adopted::Exited(record) => assert_eq!(record.outcome, Outcome::Lost),
            other => panic!("{other:?}"),
        }
        assert_eq!(processes.clear_leftovers(&directory).await.unwrap(), 0);
        if !private {
            let pid = rustix::process::Pid::from_raw(a.trim().parse().unwrap()).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
    }
}

#[tokio::test]
async fn a_running_task_is_adopted_from_its_directory_alone() {
    let host = Host::new();
    let processes = host.processes();
    let directory = host.task_directory();
    assert!(matches!(processes.adopt(&directory).await.unwrap(), Adopted::NeverStarted));
    let spec = host.script("trap 'exit 6' TERM; : > $HERE/ready; while :; do sleep 0.01; done");
    let state = {
        let task = host.start(&spec, vec![]).await;
        task.state().clone()
    };
    host.written("ready").await;
    let listed = processes.list(&host.data.join("tasks")).await.unwrap();
    assert_eq!(listed, std::slice::from_ref(&directory));
    let taken = processes.start(&directory, &spec, vec![]).await.unwrap_err();
    assert!(matches!(taken, ProcessError::Taken { .. }), "{taken}");
    for result in [
        processes.forget(&directory, &host.logs()).await,
        processes.clear_leftovers(&directory).await.map(drop),
    ] {
        assert!(matches!(result, Err(ProcessError::Taken { .. })), "{result:?}");
    }
    let Adopted::Running(task) = processes.adopt(&directory).await.unwrap() else { panic!("it runs") };
    assert_eq!(*task.state(), state);
    task.signal(libc::SIGCONT).unwrap();
    task.stop(Some(Duration::from_secs(30))).unwrap();
    assert_eq!(ended(&*task).await, Outcome::Code(6));
    assert_eq!(ended(&*task).await, Outcome::Code(6), "asked again");
    match processes.adopt(&directory).await.unwrap() {
        Adopted::Exited(record) => assert_eq!(record.outcome, Outcome::Code(6)),
        other => panic!("{other:?}"),
    }
    processes.forget(&directory, &host.logs()).await.unwrap();
    assert!(!directory.exists() && !host.data.join("out").exists());
    assert!(processes.list(&host.data.join("tasks")).await.unwrap().is_empty());
    processes.forget(&directory, &host.logs()).await.unwrap();
}

#[tokio::test]
async fn a_state_of_another_boot_is_lost_with_nothing_left() {
    let host = Host::new();
    let directory = host.task_directory();
    let task = host.start(&host.script("exit 0"), vec![]).await;
    let mut state = task.state().clone();
    exited(&*task).await;
    std::fs::remove_file(directory.join("exit.json")).unwrap();
    state.boot_id = "another".to_owned();
    // Whoever has the number now is not to be touched.
    state.shim.pid = i32::try_from(std::process::id()).unwrap();
    std::fs::write(directory.join("state.json"), serde_json::to_vec(&state).unwrap()).unwrap();
    assert!(matches!(host.processes().adopt(&directory).await.unwrap(), Adopted::Lost(_)));
    assert_eq!(host.processes().clear_leftovers(&directory).await.unwrap(), 0);
    assert!(matches!(host.processes().adopt(&directory).await.unwrap(), Adopted::Exited(_)));
}

#[tokio::test]
async fn a_session_number_that_was_reused_hits_nobody() {
    let host = Host::new();
    let directory = host.task_directory();
    let mut other = Command::new("setsid").args(["sleep", "1000"]).spawn().unwrap();
    let task = host.start(&host.script("exit 0"), vec![]).await;
    let mut state = task.state().clone();
    exited(&*task).await;
    std::fs::remove_file(directory.join("exit.json")).unwrap();
    // As if the shim had had the number that the other session's leader has now.
    state.shim.pid = i32::try_from(other.id()).unwrap();
    state.shim.start_time = 1;
    std::fs::write(directory.join("state.json"), serde_json::to_vec(&state).unwrap()).unwrap();
    assert_eq!(host.processes().clear_leftovers(&directory).await.unwrap(), 0);
    assert!(other.try_wait().unwrap().is_none(), "it lives");
    other.kill().unwrap();
    assert_eq!(other.wait().unwrap().signal(), Some(9));
}

/// Obligation CO-PLUG-14.
#[tokio::test]
async fn output_is_bounded_on_disk() {
    let host = Host::new();
    let mut spec =
        host.script("i=0; while [ $i -lt 20000 ]; do echo line $i of many; i=$((i+1)); done; exit 0");
    spec.logs.max_bytes = 10_000;
    spec.logs.files = 3;
    spec.logs.stderr = spec.logs.stdout.clone();
    let (record, current) = host.run(&spec, vec![]).await;
    assert_eq!(record.outcome, Outcome::Code(0));
    assert!(current.ends_with("line 19999 of many\n"));
    let names = ["out", "out.1", "out.2", "out.3"].map(|name| host.data.join(name).metadata().ok());
    let sizes = names.map(|found| found.map(|metadata| metadata.len()));
    assert!(
        matches!(sizes, [Some(1..=10_000), Some(9_900..=10_000), Some(9_900..=10_000), None]),
        "{sizes:?}"
    );
}

/// What a process has written to, in kB, in mappings that are not of the binary.
fn anonymous(smaps: &str) -> u64 {
    let mut of_the_binary = false;
    let mut sum = 0;
    for line in smaps.lines() {
        match line.strip_prefix("Anonymous:") {
            Some(size) if !of_the_binary => {
                sum += size.trim().trim_end_matches(" kB").parse::<u64>().unwrap();
            }
            Some(_) => {}
            None if line.starts_with(|c: char| c.is_ascii_hexdigit() && !c.is_ascii_uppercase()) => {
                of_the_binary = line.ends_with("/wharfline");
            }
            None => {}
        }
    }
    sum
}

/// A descriptor that somebody in this process forgot to keep to itself.
fn leak(host: &Host) -> std::os::fd::OwnedFd {
    use rustix::fs::{Mode, OFlags, open};
    open(host.data.join("leak"), OFlags::RDWR | OFlags::CREATE, Mode::RUSR).unwrap()
}

#[tokio::test]
async fn the_shim_is_small_and_alone() {
    let host = Host::new();
    let _leak = leak(&host);
    let task = host.start(&host.script(": > $HERE/ready; exec sleep 1000"), vec![]).await;
    host.written("ready").await;
    let pid = task.state().shim.pid;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    assert_eq!(field("Threads:"), "1");
    let own = anonymous(&std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap());
    assert!(own < 512, "{own} kB of its own, the loader's work on the binary aside\n{status}");
    let kilobytes = |name: &str| field(name).trim_end_matches(" kB").parse::<u64>().unwrap();
    // The loader read megabytes to relocate the binary; they were given back.
    assert!(kilobytes("VmRSS:") < kilobytes("VmHWM:"), "{status}");
    let links = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let open: Vec<_> = links.map(|link| std::fs::read_link(link.unwrap().path()).unwrap()).collect();
    assert!(!open.contains(&host.data.join("leak")), "{open:?}");
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    assert_eq!(fields[3], pid.to_string(), "leads its own session");
    task.stop(Some(Duration::ZERO)).unwrap();
    exited(&*task).await;
}

#[tokio::test]
async fn bad_specs_are_refused_before_anything_is_done() {
    let host = Host::new();
    let directory = host.task_directory();
    let good = host.script("");
    let mut specs = vec![good.clone(); 5];
    specs[0].argv = vec![];
    specs[1].hide = vec!["/srv".into()];
    specs[2].cwd = "relative".into();
    specs[3].logs.stdout = "/var/../etc/x".into();
    specs[4].private_mounts = true;
    specs[4].mounts = vec![crate::support::mount_at("/data")];
    for spec in specs {
        let error = host.processes().start(&directory, &spec, vec![]).await.unwrap_err();
        assert!(matches!(error, ProcessError::BadSpec(_)), "{error}");
    }
    assert!(!directory.exists());
}

#[tokio::test]
async fn a_full_disk_does_not_hold_a_task_up() {
    let host = Host::new();
    let logs = host.data.join("logs");
    std::fs::create_dir(&logs).unwrap();
    rustix::mount::mount("none", &logs, "tmpfs", rustix::mount::MountFlags::empty(), Some(c"size=64k"))
        .unwrap();
    let mut spec = host.script("head -c 4000000 /dev/zero; echo end; exit 8");
    spec.logs.stdout = logs.join("out");
    let (record, _) = host.run(&spec, vec![]).await;
    assert_eq!(record.outcome, Outcome::Code(8));
    assert!(spec.logs.stdout.metadata().unwrap().len() <= 64 << 10);
    rustix::mount::unmount(&logs, rustix::mount::UnmountFlags::empty()).unwrap();
    host.assert_clean();
}

#[tokio::test]
async fn a_shim_that_has_not_said_who_it_is_is_waited_for() {
    use rustix::fs::{FlockOperation, flock};
    let host = Host::new();
    let directory = host.task_directory();
    host.run(&host.script("exit 9"), vec![]).await;
    // As a daemon finds it that died while it started a shim: the lock is held and nothing is written yet.
    for name in ["state.json", "exit.json"] {
        std::fs::rename(directory.join(name), host.data.join(name)).unwrap();
    }
    let lock = std::fs::File::open(directory.join("lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let adopting = tokio::spawn({
        let (processes, directory) = (host.processes(), directory.clone());
        async move { processes.adopt(&directory).await }
    });
    let taken = host.processes().start(&directory, &host.script(""), vec![]).await.unwrap_err();
    assert!(matches!(taken, ProcessError::Taken { .. }), "{taken}");
    assert!(!adopting.is_finished());
    for name in ["exit.json", "state.json"] {
        std::fs::rename(host.data.join(name), directory.join(name)).unwrap();
    }
    drop(lock);
    match soon(adopting).await.unwrap().unwrap() {
        Adopted::Exited(record) => assert_eq!(record.outcome, Outcome::Code(9)),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_reported() {
    let host = Host::new();
    let directory = host.task_directory();
    host.run(&host.script("exit 0"), vec![]).await;
    std::fs::write(directory.join("exit.json"), "{").unwrap();
    let error = host.processes().adopt(&directory).await.unwrap_err();
    assert!(matches!(&error, ProcessError::BadRecord { path, .. } if path.ends_with("exit.json")), "{error}");
}

/// In a process of its own: the limit would be that of other tests, too.
#[test]
fn without_descriptors_nobody_knows_what_is_left() {
    const ALONE: &str = "WHARFLINE_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let mut again = Command::new(std::env::current_exe().unwrap());
        let name = "shim::without_descriptors_nobody_knows_what_is_left";
        let run = again.args(["--exact", name, "--nocapture"]).env(ALONE, "1").output().unwrap();
        let said = String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(a_lost_task_stays_lost_without_descriptors());
}

async fn a_lost_task_stays_lost_without_descriptors() {
    use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
    let host = Host::new();
    let (processes, directory) = (host.processes(), host.task_directory());
    let script = "setsid sh -c 'echo $$ > $HERE/a.new; mv $HERE/a.new $HERE/a; exec sleep 1000' & wait";
    let task = host.start(&host.script(script), vec![]).await;
    let left = host.written("a").await;
    kill_process(Pid::from_raw(task.state().shim.pid).unwrap(), Signal::KILL).unwrap();
    assert_eq!(soon(task.wait()).await.unwrap(), Ended::Lost);

    // There is room for one file more: directories can be listed, and nothing of what is in them can be read meanwhile.
    let next = std::os::fd::AsRawFd::as_raw_fd(&std::fs::File::open("/dev/null").unwrap());
    let had = getrlimit(Resource::Nofile);
    let current = Some(u64::try_from(next).unwrap() + 1);
    setrlimit(Resource::Nofile, Rlimit { current, maximum: had.maximum }).unwrap();
    let cleared = soon(processes.clear_leftovers(&directory)).await;
    setrlimit(Resource::Nofile, had).unwrap();

    assert!(matches!(cleared, Err(ProcessError::Refused { .. })), "{cleared:?}");
    let found = processes.adopt(&directory).await.unwrap();
    assert!(matches!(found, Adopted::Lost(_)), "{found:?}");
    assert!(lives(&left));
    assert!(soon(processes.clear_leftovers(&directory)).await.unwrap() >= 1);
    assert!(!lives(&left));
}
