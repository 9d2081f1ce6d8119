//! What there is of containerd alone: that it comes and goes, what it is told, and what is left in it.
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use wharfline::node::runtime::{Ended, Found, Readiness, Running, Wish};
use wharfline::plan::supervise::Obstacle;
use wharfline::sys::Containerd as _;
use wharfline::sys::process::Outcome;

use crate::fixture::{Flavour, Machine, exited};
use crate::its::{Containerd, tool};
use crate::suite::kill;
use crate::support::{gone, lives, soon};

const WAITS: &str = "trap 'exit 6' TERM; : > $HERE/ready; while :; do sleep 0.01; done";

async fn machine() -> Machine {
    Machine::new(Flavour::Containerd).await
}

fn its(machine: &mut Machine) -> &mut Containerd {
    machine.containerd.as_mut().unwrap()
}

/// The one container that containerd has, and the number of its first process.
fn container(machine: &mut Machine) -> (String, i32) {
    let told = its(machine).ctr("wharfline", &["tasks", "list"]);
    let words: Vec<&str> =
        told.lines().nth(1).unwrap_or_else(|| panic!("{told}")).split_whitespace().collect();
    (words[0].to_owned(), words[1].parse().unwrap())
}

async fn adopted(machine: &Machine) -> Arc<dyn Running> {
    match machine.runtime.adopt(&machine.place).await.unwrap() {
        Found::Running(task) => task,
        found => panic!("{found:?}"),
    }
}

/// It says whose a container is, and has no word of what may be secret in its memory on the disk.
#[tokio::test]
async fn containerd_shows_whose_a_container_is_and_keeps_no_environment() {
    let mut machine = machine().await;
    let mut wanted = machine.script(WAITS);
    wanted.env.insert("PASSWORD".to_owned(), "swordfish".to_owned());
    let task = machine.start(&wanted).await;
    machine.written("ready").await;
    let (id, main) = container(&mut machine);
    assert!(id.starts_with("default.app.main-"), "{id}");
    let told = its(&mut machine).ctr("wharfline", &["containers", "info", &id]);
    for label in ["\"wharfline.dev/allocation\": \"default/app\"", "\"wharfline.dev/task\": \"main\""] {
        assert!(told.contains(label), "{told}");
    }
    assert!(!told.contains("swordfish"), "{told}");
    let mut documents = 0;
    each_file(&machine.host.data.join("c"), &mut |path| {
        let kept = std::fs::read(path).unwrap();
        assert!(!String::from_utf8_lossy(&kept).contains("swordfish"), "{}", path.display());
        documents += u32::from(path.file_name().is_some_and(|name| name == "config.json"));
    });
    assert_eq!(documents, 1, "what containerd keeps of it was looked at");
    let own = std::fs::read(format!("/proc/{main}/environ")).unwrap();
    assert!(String::from_utf8_lossy(&own).contains("swordfish"), "the task has it");
    task.stop(Some(Duration::from_secs(30))).unwrap();
    assert_eq!(exited(&*task).await.outcome, Outcome::Code(6));
    machine.end().await;
}

/// Looks at every file beneath a directory.
fn each_file(directory: &Path, look: &mut dyn FnMut(&Path)) {
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            each_file(&entry.path(), look);
        } else if kind.is_file() {
            look(&entry.path());
        }
    }
}

/// Of a container that is killed from outside, by whatever means, the end is told as it was.
#[tokio::test]
async fn a_kill_through_containerd_or_of_the_first_process_is_told_as_a_signal() {
    let mut machine = machine().await;
    for way in ["of the process", "through containerd"] {
        let task = machine.start(&machine.script(WAITS)).await;
        machine.written("ready").await;
        let (id, main) = container(&mut machine);
        if way == "of the process" {
            kill(main);
        } else {
            its(&mut machine).ctr("wharfline", &["tasks", "kill", "--signal", "SIGKILL", &id]);
        }
        let record = exited(&*task).await;
        assert_eq!((record.outcome, record.oom, record.stopped), (Outcome::Signal(9), false, false), "{way}");
        std::fs::remove_file(machine.host.data.join("here/ready")).unwrap();
    }
    machine.end().await;
}

#[tokio::test]
async fn a_task_outlives_containerd_and_its_end_is_known_all_the_same() {
    let mut machine = machine().await;
    let task = machine.start(&machine.script(WAITS)).await;
    machine.written("ready").await;
    let (id, main) = container(&mut machine);
    its(&mut machine).kill();
    // Whoever knows nothing but its place finds it, without containerd.
    let again = adopted(&machine).await;
    assert!(lives(&main.to_string()));
    its(&mut machine).resume().await;
    assert_eq!(container(&mut machine), (id, main), "it is the same, and the only one");
    its(&mut machine).kill();
    again.stop(Some(Duration::from_secs(30))).unwrap();
    gone(&main.to_string()).await;
    // How it ended, containerd alone knows, when it is back.
    its(&mut machine).resume().await;
    let record = exited(&*task).await;
    assert_eq!((record.outcome, record.stopped), (Outcome::Code(6), true));
    machine.end().await;
}

/// Whoever asks for its end has no patience, but it ended before that was over.
#[tokio::test]
async fn of_an_end_within_its_grace_the_code_is_told_although_containerd_says_it_later() {
    let mut machine = machine().await;
    let task = machine.start(&machine.script(WAITS)).await;
    machine.written("ready").await;
    let (_, main) = container(&mut machine);
    its(&mut machine).kill();
    task.stop(Some(Duration::from_secs(2))).unwrap();
    gone(&main.to_string()).await;
    let over = tokio::time::timeout(Duration::from_secs(3), task.wait()).await;
    assert!(over.is_err(), "nobody knows yet: {over:?}");
    its(&mut machine).resume().await;
    let record = exited(&*task).await;
    assert_eq!((record.outcome, record.stopped), (Outcome::Code(6), true));
    machine.end().await;
}

#[tokio::test]
async fn when_containerd_does_not_come_back_the_end_is_told_without_its_code() {
    let mut machine = machine().await;
    let task = machine.start(&machine.script(WAITS)).await;
    machine.written("ready").await;
    its(&mut machine).kill();
    task.stop(Some(Duration::from_secs(30))).unwrap();
    let record = exited(&*task).await;
    assert_eq!((record.outcome, record.stopped), (Outcome::Lost, true), "nobody says how");
    // What it remembers is removed with the records, or when it is back.
    its(&mut machine).resume().await;
    machine.runtime.sweep().await.unwrap();
    machine.end().await;
}

#[tokio::test]
async fn what_lives_under_a_killed_client_is_gone_before_the_end_is_told() {
    let mut machine = machine().await;
    let task =
        machine.start(&machine.script("trap '' TERM; : > $HERE/ready; while :; do sleep 60; done")).await;
    machine.written("ready").await;
    let (_, main) = container(&mut machine);
    let client = machine.pids().1;
    assert_ne!(client, main);
    let command = std::fs::read(format!("/proc/{client}/cmdline")).unwrap();
    assert!(String::from_utf8_lossy(&command).contains("\0await\0"), "{command:?}");
    kill(client);
    let record = exited(&*task).await;
    assert_eq!((record.outcome, record.stopped), (Outcome::Signal(9), false));
    assert!(!lives(&main.to_string()));
    machine.end().await;
}

#[tokio::test]
async fn the_shim_of_containerd_may_be_killed() {
    let mut machine = machine().await;
    let task = machine.start(&machine.script(WAITS)).await;
    machine.written("ready").await;
    let (_, main) = container(&mut machine);
    for shim in its(&mut machine).shims() {
        kill(shim);
    }
    let record = exited(&*task).await;
    // containerd kills what its shim has left, and says so, or that it knows nothing.
    assert!(matches!(record.outcome, Outcome::Signal(9) | Outcome::Lost), "{record:?}");
    assert!(!lives(&main.to_string()));
    machine.end().await;
}

/// The program that waits for a container is no larger than a shim, and has nothing of its volumes.
#[tokio::test]
async fn what_waits_for_a_container_is_small() {
    let mut machine = machine().await;
    let task = machine.start(&machine.script(WAITS)).await;
    machine.written("ready").await;
    let (shim, client) = machine.pids();
    let own = |pid: i32| -> u64 {
        let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
        let own = smaps.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
        own.trim().trim_end_matches(" kB").parse().unwrap()
    };
    assert!(own(client) < own(shim) + 256, "{} kB, and the shim {} kB", own(client), own(shim));
    let status = std::fs::read_to_string(format!("/proc/{client}/status")).unwrap();
    assert!(status.contains("Threads:\t1\n"), "{status}");
    let open = std::fs::read_dir(format!("/proc/{client}/fd")).unwrap().count();
    // Three, the first process of the container, its signals.
    assert!(open <= 5, "{open}");
    its(&mut machine).kill();
    its(&mut machine).resume().await;
    task.stop(Some(Duration::ZERO)).unwrap();
    exited(&*task).await;
    machine.end().await;
}

/// What came of preparing a task where containerd is in this state.
async fn prepared(machine: &Machine) -> Readiness {
    let wanted = machine.script("exit 4");
    let over = Arc::new(Notify::new());
    let told = Arc::clone(&over);
    let wish = Wish { task: &wanted.task, trusted: false, former: None };
    let wake = Arc::new(move || told.notify_one());
    machine.runtime.prepare(&machine.place, wish, &BTreeMap::new(), wake);
    soon(over.notified()).await;
    machine.runtime.readiness(&machine.place, (&wanted.task, false))
}

#[tokio::test]
async fn without_containerd_nothing_is_begun_and_the_reason_is_told() {
    let mut machine = machine().await;
    its(&mut machine).kill();
    let socket = its(&mut machine).socket();
    let said = |readiness: Readiness| match readiness {
        Readiness::Failed(Obstacle::Missing, said) => said,
        other => panic!("{other:?}"),
    };
    let named = format!("containerd does not answer at {}: ", socket.display());
    let told = said(prepared(&machine).await);
    assert!(told.starts_with(&named), "{told}");
    assert!(machine.runtime.look().await.unwrap().to_string().starts_with(&named));
    std::fs::remove_file(&socket).unwrap();
    let told = said(prepared(&machine).await);
    assert!(told.starts_with(&named) && told.contains("No such file"), "{told}");
    // Somebody listens, and says nothing.
    let silent = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let told = said(prepared(&machine).await);
    assert!(told.contains("no answer within") || told.contains("took too long"), "{told}");
    drop(silent);
    std::fs::remove_file(&socket).unwrap();
    assert!(!machine.place.directory.exists());
    // It came, and nothing else has to be done.
    its(&mut machine).resume().await;
    assert_eq!(prepared(&machine).await, Readiness::Ready);
    assert_eq!(machine.runtime.look().await, None);
    let (record, _) = machine.run(&machine.script("exit 4")).await;
    assert_eq!(record.outcome, Outcome::Code(4));
    machine.end().await;
}

/// A start meets a containerd that has gone since it was looked at.
#[tokio::test]
async fn a_start_without_containerd_is_none_and_the_place_serves_again() {
    let mut machine = machine().await;
    let wanted = machine.script("exit 4");
    machine.prepared(&wanted.task).await;
    machine.containerd.as_mut().unwrap().kill();
    let wanted = machine.script("exit 4");
    let error = machine.try_start(&wanted).await.unwrap_err();
    assert!(error.to_string().contains("containerd does not answer"), "{error}");
    let Found::Exited(record) = machine.runtime.adopt(&machine.place).await.unwrap() else {
        panic!("{error}")
    };
    assert!(matches!(record.outcome, Outcome::NotStarted(_)), "{record:?}");
    its(&mut machine).resume().await;
    let (record, _) = machine.run(&machine.script("exit 4")).await;
    assert_eq!(record.outcome, Outcome::Code(4));
    machine.end().await;
}

/// Containers of nobody's: `ctr` makes them, with the label of a task's directory.
#[tokio::test]
async fn what_is_left_of_earlier_tasks_is_removed_and_what_is_others_is_not_touched() {
    let mut machine = machine().await;
    let task = machine.start(&machine.script(WAITS)).await;
    machine.written("ready").await;
    let root = machine.host.data.join("root");
    std::fs::create_dir_all(&root).unwrap();
    let tasks = machine.place.directory.parent().unwrap().to_owned();
    let label = |directory: &Path| format!("wharfline.dev/directory={}", directory.display());
    let (gone, elsewhere) = (label(&tasks.join("u.gone")), label(Path::new("/elsewhere/tasks/u.gone")));
    let create = ["containers", "create", "--rootfs", "--label"];
    for (namespace, label, id) in
        [("wharfline", &gone, "dead"), ("wharfline", &elsewhere, "others"), ("other", &gone, "dead")]
    {
        let root = root.to_str().unwrap();
        let args: Vec<&str> = create.into_iter().chain([label.as_str(), root, id, "/bin/sh"]).collect();
        its(&mut machine).ctr(namespace, &args);
    }
    let (ours, _) = container(&mut machine);
    machine.runtime.sweep().await.unwrap();
    let left = |machine: &mut Machine, namespace: &str| {
        let told = its(machine).ctr(namespace, &["containers", "list", "--quiet"]);
        told.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let mut kept = vec![ours.clone(), "others".to_owned()];
    kept.sort();
    assert_eq!(left(&mut machine, "wharfline"), kept);
    assert_eq!(left(&mut machine, "other"), ["dead"]);
    its(&mut machine).ctr("wharfline", &["containers", "delete", "others"]);
    its(&mut machine).ctr("other", &["containers", "delete", "dead"]);
    // One that runs is told of, and left: nobody knows whose it is.
    let records = machine.place.directory.with_file_name("aside");
    std::fs::rename(&machine.place.directory, &records).unwrap();
    machine.runtime.sweep().await.unwrap();
    assert_eq!(left(&mut machine, "wharfline"), [ours]);
    std::fs::rename(&records, &machine.place.directory).unwrap();
    task.stop(Some(Duration::ZERO)).unwrap();
    exited(&*task).await;
    machine.end().await;
}

/// A shim whose start containerd has broken off: it waits, and nobody knows of it. Who reads what it logs is returned.
fn forgotten(machine: &mut Machine, (namespace, id): (&str, &str), address: &Path) -> std::fs::File {
    let bundle = machine.host.data.join("bundles").join(namespace).join(id);
    std::fs::create_dir_all(&bundle).unwrap();
    std::fs::write(bundle.join("config.json"), "{}").unwrap();
    let log = bundle.join("log");
    rustix::fs::mkfifoat(rustix::fs::CWD, &log, rustix::fs::Mode::RWXU).unwrap();
    let log = std::fs::File::options().read(true).write(true).open(log).unwrap();
    let mut start = std::process::Command::new(tool("containerd-shim-runc-v2"));
    start.args(["-namespace", namespace, "-id", id, "-address"]).arg(address).arg("start");
    let events = format!("{}.ttrpc", address.display());
    let told = start.current_dir(&bundle).env("TTRPC_ADDRESS", events).output().unwrap();
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    log
}

/// The containers for which shims run, as they say themselves.
fn shims_of() -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
        let words: Vec<&str> = line.split('\0').collect();
        if words[0].ends_with("containerd-shim-runc-v2") {
            found.extend(words.windows(2).find(|pair| pair[0] == "-id").map(|pair| pair[1].to_owned()));
        }
    }
    found
}

#[tokio::test]
async fn a_shim_that_containerd_has_forgotten_is_ended_and_no_other() {
    let mut machine = machine().await;
    let task = machine.start(&machine.script(WAITS)).await;
    machine.written("ready").await;
    let (ours, _) = container(&mut machine);
    let unique = |word: &str| format!("{word}-{}", std::process::id());
    let (stray, others, elsewhere) = (unique("stray"), unique("others"), unique("elsewhere"));
    let its_socket = its(&mut machine).socket();
    let socket = machine.host.data.join("another.sock");
    let _another = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let _logs = [
        forgotten(&mut machine, ("wharfline", &stray), &its_socket),
        forgotten(&mut machine, ("other", &others), &its_socket),
        forgotten(&mut machine, ("wharfline", &elsewhere), &socket),
    ];
    assert!(shims_of().contains(&stray), "{:?}", shims_of());
    soon(machine.runtime.sweep()).await.unwrap();
    let left = shims_of();
    assert!(!left.contains(&stray), "{left:?}");
    for kept in [&ours, &others, &elsewhere] {
        assert!(left.contains(kept), "{kept}: {left:?}");
    }
    task.stop(Some(Duration::ZERO)).unwrap();
    exited(&*task).await;
    for (namespace, id) in [("other", &others), ("wharfline", &elsewhere)] {
        end_shim(namespace, id);
    }
    machine.end().await;
}

/// The moments of a start at which somebody is killed, and how long each is after the one before.
const MOMENTS: u64 = 24;
const STEP: Duration = Duration::from_millis(8);
/// Who makes the containers.
const CONTAINERD: &str = "containerd";

/// Ends a shim that the test has started.
fn end_shim(namespace: &str, id: &str) {
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
        let words: Vec<&str> = line.split('\0').collect();
        if words[0].ends_with("containerd-shim-runc-v2") && words.contains(&id) && words.contains(&namespace)
        {
            kill(entry.file_name().to_str().unwrap().parse().unwrap());
        }
    }
}

/// Kills who it is in the start of this machine's task; how many there were.
fn kill_those((machine, its): (&Machine, &Containerd), who: &str) -> u32 {
    let mut killed = 0;
    let directory = machine.place.directory.to_str().unwrap();
    let runs = machine.host.data.join("runc");
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        let words: Vec<&str> = line.trim_end_matches('\0').split('\0').collect();
        let it_is = match who {
            "shim" => words[1..] == ["shim", directory],
            "client" => words.len() > 3 && words[1..3] == ["shim", directory],
            // In whatever stage it is.
            "runc" => words.contains(&"create") && words.contains(&"--bundle") && line.contains("wharfline"),
            _ => its.shims().iter().any(|pid| entry.file_name() == *pid.to_string()),
        };
        let named =
            line.contains(machine.host.data.to_str().unwrap()) || line.contains(runs.to_str().unwrap());
        if it_is && named {
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
            // It may have ended by itself.
            let pid = pid.and_then(rustix::process::Pid::from_raw).unwrap();
            killed += u32::from(rustix::process::kill_process(pid, rustix::process::Signal::KILL).is_ok());
        }
    }
    killed
}

/// Whoever is killed at whichever moment of a start: nothing is left in the end, and the next start is as good as any.
async fn killed_in_a_start(who: &str) -> BTreeMap<&'static str, u32> {
    let mut machine = machine().await;
    let mut its = machine.containerd.take().unwrap();
    let wanted = machine.script(": > $HERE/ran; sleep 1000 & exec sleep 1000");
    let good = machine.script("exit 3");
    let ran = machine.host.data.join("here/ran");
    let mut found = BTreeMap::<&str, u32>::new();
    let mut kills = 0;
    for moment in 0..MOMENTS {
        machine.prepared(&wanted.task).await;
        let killed = async {
            let after = STEP * u32::try_from(moment).unwrap();
            tokio::time::timeout(after, std::future::pending::<()>()).await.ok();
            if who == CONTAINERD {
                its.kill();
                its.resume().await;
                return 1;
            }
            kill_those((&machine, &its), who)
        };
        let (started, killed) = tokio::join!(machine.try_start(&wanted), killed);
        kills += killed;
        if let Ok(task) = started {
            // It may have started before it was killed, or just after.
            kill_those((&machine, &its), "shim");
            soon(task.wait()).await.map(drop).unwrap();
        }
        let word = match soon(machine.runtime.adopt(&machine.place)).await.unwrap() {
            Found::NeverStarted => "never",
            Found::Exited(record) => match record.outcome {
                Outcome::NotStarted(_) => "not started",
                Outcome::Signal(9) | Outcome::Lost => "ended",
                other => panic!("{moment}: {other:?}"),
            },
            Found::Lost => "lost",
            Found::Running(task) => panic!("{moment}: {task:?} lives"),
        };
        *found.entry(word).or_default() += 1;
        assert!(word != "not started" || who != CONTAINERD || !ran.exists(), "{moment}: it ran");
        std::fs::remove_file(&ran).ok();
        soon(machine.runtime.clear(&machine.place)).await.unwrap();
        let (record, _) = machine.run(&good).await;
        assert_eq!(record.outcome, Outcome::Code(3), "{moment} {word}: {}", machine.log("stderr"));
    }
    assert!(kills > 0, "{who} was killed {kills} times: {found:?}");
    drop((wanted, good));
    // The last start may have left a shim that nobody knows of: what a daemon does when it begins.
    soon(machine.runtime.sweep()).await.unwrap();
    machine.containerd = Some(its);
    machine.end().await;
    found
}

#[tokio::test]
async fn whenever_a_shim_is_killed_in_a_start_nothing_of_it_is_left_in_the_end() {
    let found = killed_in_a_start("shim").await;
    assert!(found.contains_key("lost"), "{found:?}");
}

#[tokio::test]
async fn whenever_the_client_is_killed_in_a_start_nothing_of_it_is_left_in_the_end() {
    let found = killed_in_a_start("client").await;
    assert!(found.contains_key("not started"), "{found:?}");
}

#[tokio::test]
async fn whenever_runc_is_killed_in_a_start_nothing_of_it_is_left_in_the_end() {
    killed_in_a_start("runc").await;
}

#[tokio::test]
async fn whenever_the_shim_of_containerd_is_killed_in_a_start_nothing_of_it_is_left_in_the_end() {
    killed_in_a_start("containerd-shim").await;
}

/// Whatever answer is lost: what has run is never told as not started.
#[tokio::test]
async fn whenever_containerd_is_killed_in_a_start_nothing_of_it_is_left_in_the_end() {
    let found = killed_in_a_start(CONTAINERD).await;
    assert!(found.contains_key("not started"), "{found:?}");
}

/// Containerd deletes by itself what a dead shim of its own leaves, and by the path of the cgroup: the next container of the
/// task would be meant.
#[tokio::test]
async fn nothing_is_cleared_before_runc_has_deleted_the_container() {
    let mut machine = machine().await;
    let task = machine.start(&machine.script(WAITS)).await;
    machine.written("ready").await;
    let (id, _) = container(&mut machine);
    kill(machine.pids().0);
    assert_eq!(soon(task.wait()).await.unwrap(), Ended::Lost);
    let mut deletion = std::process::Command::new("/bin/sh");
    deletion
        .args(["-c", "read -r line", "runc", "delete", "--force", &id])
        .stdin(std::process::Stdio::piped());
    let mut deletion = deletion.spawn().unwrap();
    let client = its(&mut machine).client();
    let ends = async {
        while !client.list().await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        drop(deletion.stdin.take());
    };
    let mut clear = machine.runtime.clear(&machine.place);
    tokio::select! {
        biased;
        cleared = &mut clear => panic!("{cleared:?} beside a deletion"),
        () = ends => {}
    }
    soon(clear).await.unwrap();
    assert!(deletion.try_wait().unwrap().is_some(), "it is over");
    assert_eq!(machine.run(&machine.script("exit 4")).await.0.outcome, Outcome::Code(4));
    machine.end().await;
}

#[tokio::test]
async fn a_lost_container_is_cleared_while_containerd_is_away_and_forgotten_when_it_is_back() {
    let mut machine = machine().await;
    let task = machine.start(&machine.script(WAITS)).await;
    machine.written("ready").await;
    let (_, main) = container(&mut machine);
    its(&mut machine).kill();
    kill(machine.pids().0);
    assert_eq!(soon(task.wait()).await.unwrap(), Ended::Lost);
    assert!(soon(machine.runtime.clear(&machine.place)).await.unwrap() >= 1);
    gone(&main.to_string()).await;
    its(&mut machine).resume().await;
    // The next start finds what containerd remembers, and takes it away.
    let (record, _) = machine.run(&machine.script("exit 4")).await;
    assert_eq!(record.outcome, Outcome::Code(4));
    assert_eq!(its(&mut machine).client().list().await.unwrap().iter().filter(|one| one.runs).count(), 0);
    machine.end().await;
}
