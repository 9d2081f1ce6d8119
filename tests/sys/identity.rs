//! Tasks as other users, and with fewer capabilities.
use crate::support::{Host, exited, gone, soon};
use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;
use std::time::Duration;
use wharfline::sys::Processes;
use wharfline::sys::process::{Adopted, Ended, Identity, Outcome, ProcessError, TaskSpec};
use wharfline::sys::real::RealProcesses;

/// `user`, further groups, what is added, what is dropped.
fn identity(user: &str, groups: &[&str], add: &[&str], drop: &[&str]) -> Identity {
    let list = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
    Identity { user: user.to_owned(), groups: list(groups), add: list(add), drop: list(drop) }
}

fn script(host: &Host, script: &str, identity: impl Into<Option<Identity>>) -> TaskSpec {
    TaskSpec { identity: identity.into(), ..host.script(script) }
}

/// What the kernel says of a process, by the words of `/proc/PID/status`.
fn status(text: &str) -> BTreeMap<&str, String> {
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    fields.map(|(name, value)| (name, value.split_whitespace().collect::<Vec<_>>().join(" "))).collect()
}

/// What a task with this identity is to the kernel.
async fn seen(identity: impl Into<Option<Identity>>, private_mounts: bool) -> BTreeMap<String, String> {
    let host = Host::new();
    let mut spec = script(&host, "cat /proc/self/status", identity);
    spec.private_mounts = private_mounts;
    let (record, output) = host.run(&spec, vec![]).await;
    assert_eq!(record.outcome, Outcome::Code(0), "{output}");
    status(&output).into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn id(option: &str, user: &str) -> String {
    let output = Command::new("id").args([option, user]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn four(number: &str) -> String {
    [number; 4].join(" ")
}

const SETS: [&str; 5] = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];

fn sets(seen: &BTreeMap<String, String>) -> [u64; 5] {
    SETS.map(|name| u64::from_str_radix(&seen[name], 16).unwrap())
}

/// What this process may hand on.
fn ours() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let seen = status(&text);
    let set = |name: &str| u64::from_str_radix(&seen[name], 16).unwrap();
    set("CapPrm") & set("CapBnd")
}

#[tokio::test]
async fn another_user_has_its_groups_and_no_capability() {
    for private_mounts in [false, true] {
        let found = seen(identity("nobody", &["disk", "4711"], &[], &[]), private_mounts).await;
        assert_eq!(found["Uid"], four(&id("-u", "nobody")));
        assert_eq!(found["Gid"], four(&id("-g", "nobody")));
        let mut groups: Vec<&str> = found["Groups"].split(' ').collect();
        let group = std::fs::read_to_string("/etc/group").unwrap();
        let disk = group.lines().find_map(|line| line.strip_prefix("disk:")).unwrap();
        let mut expected = vec![disk.split(':').nth(1).unwrap(), "4711"];
        groups.sort_unstable();
        expected.sort_unstable();
        assert_eq!(groups, expected);
        assert_eq!(sets(&found), [0; 5]);
    }
}

#[tokio::test]
async fn another_user_keeps_what_is_added_and_root_loses_what_is_dropped() {
    let found = seen(identity("4711:4712", &[], &["NET_BIND_SERVICE", "CHOWN"], &["ALL"]), false).await;
    assert_eq!(
        (found["Uid"].as_str(), found["Gid"].as_str()),
        (four("4711").as_str(), four("4712").as_str())
    );
    assert_eq!((found["Groups"].as_str(), sets(&found)), ("", [0x401; 5]));
    let all = ours();
    assert_eq!(sets(&seen(identity("", &[], &[], &[]), false).await), [0, all, all, all, 0]);
    let rest = all & !1;
    assert_eq!(sets(&seen(identity("root", &[], &[], &["CHOWN"]), true).await), [0, rest, rest, rest, 0]);
    assert_eq!(sets(&seen(identity("", &[], &["CHOWN"], &["ALL"]), false).await), [0, 1, 1, 1, 0]);
    assert_eq!(sets(&seen(None, false).await)[1], all, "as before, without an identity");
}

#[tokio::test]
async fn who_or_what_is_not_there_is_said_and_nothing_runs() {
    let host = Host::new();
    for (wanted, reason) in [
        (identity("no-such-user", &[], &[], &[]), "user no-such-user is not in /etc/passwd"),
        (identity("nobody:no-such-group", &[], &[], &[]), "group no-such-group is not in /etc/group"),
        (identity("nobody", &["no-such-group"], &[], &[]), "group no-such-group is not in /etc/group"),
        (identity("4000000000", &[], &[], &[]), "say its group too"),
        (identity("", &[], &["NO_SUCH"], &[]), "NO_SUCH is no capability"),
    ] {
        let spec = script(&host, ": > $HERE/ran", wanted);
        let error = host.processes().start(&host.task_directory(), &spec, vec![]).await.unwrap_err();
        assert!(matches!(&error, ProcessError::NotStarted(why) if why.contains(reason)), "{reason}: {error}");
        match host.processes().adopt(&host.task_directory()).await.unwrap() {
            Adopted::Exited(record) => {
                assert!(matches!(record.outcome, Outcome::NotStarted(_)), "{record:?}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(!host.data.join("ran").exists());
}

#[tokio::test]
async fn a_capability_that_the_machine_lacks_is_refused_only_by_name() {
    let host = Host::new();
    // A machine that lacks one: what the shim cannot have, nobody here has.
    let lacking = host.data.join("lacking");
    let script_of_it = format!(
        "#!/bin/sh\nexec setpriv --bounding-set -mac_admin {} \"$@\"\n",
        env!("CARGO_BIN_EXE_wharfline")
    );
    std::fs::write(&lacking, script_of_it).unwrap();
    std::fs::set_permissions(&lacking, std::fs::Permissions::from_mode(0o755)).unwrap();
    let processes = RealProcesses::with_program(lacking, host.pool.clone());
    let spec = script(&host, "cat /proc/self/status", identity("", &[], &["MAC_ADMIN"], &[]));
    let error = processes.start(&host.task_directory(), &spec, vec![]).await.unwrap_err();
    let reason = "capability MAC_ADMIN is asked for, and this machine does not give it";
    assert!(matches!(&error, ProcessError::NotStarted(why) if why.contains(reason)), "{error}");
    let spec = script(&host, "cat /proc/self/status", identity("nobody", &[], &["ALL"], &["MAC_ADMIN"]));
    let task = processes.start(&host.task_directory(), &spec, vec![]).await.unwrap();
    assert_eq!(exited(&*task).await.outcome, Outcome::Code(0));
    let output = std::fs::read_to_string(host.data.join("out")).unwrap();
    let found = status(&output).into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    assert_eq!(sets(&found), [ours() & !(1 << 33); 5]);
}

#[tokio::test]
async fn files_are_the_users_its_output_opens_again_and_its_directory_must_be() {
    let host = Host::new();
    std::fs::set_permissions(&host.data, std::fs::Permissions::from_mode(0o777)).unwrap();
    let closed = host.data.join("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).unwrap();
    let mut spec = script(
        &host,
        "echo x > $HERE/mine; ls $HERE/closed 2> /dev/null || echo shut > /dev/stdout; echo e > /dev/stderr",
        identity("4711:4712", &[], &[], &[]),
    );
    let (record, output) = host.run(&spec, vec![]).await;
    assert_eq!((record.outcome, output.as_str()), (Outcome::Code(0), "shut\ne\n"));
    let seen = std::fs::metadata(host.data.join("mine")).unwrap();
    assert_eq!((seen.uid(), seen.gid()), (4711, 4712));
    spec.cwd = closed;
    let error = host.processes().start(&host.task_directory(), &spec, vec![]).await.unwrap_err();
    assert!(matches!(&error, ProcessError::NotStarted(why) if why.contains("change to")), "{error}");
}

#[tokio::test]
async fn another_users_task_is_stopped_and_dies_with_its_shim_as_any_other() {
    let host = Host::new();
    std::fs::set_permissions(&host.data, std::fs::Permissions::from_mode(0o777)).unwrap();
    let spec = script(
        &host,
        "trap 'exit 4' TERM; : > $HERE/ready; while :; do sleep 0.01; done",
        identity("4711:4712", &[], &["SETPCAP"], &[]),
    );
    let task = host.start(&spec, vec![]).await;
    host.written("ready").await;
    task.stop(Some(Duration::from_secs(30))).unwrap();
    assert_eq!(exited(&*task).await.outcome, Outcome::Code(4));

    let task = host.start(&spec, vec![]).await;
    let shim = rustix::process::Pid::from_raw(task.state().shim.pid).unwrap();
    rustix::process::kill_process(shim, rustix::process::Signal::KILL).unwrap();
    assert_eq!(soon(task.wait()).await.unwrap(), Ended::Lost);
    gone(&task.state().task.pid.to_string()).await;
    soon(host.processes().clear_leftovers(&host.task_directory())).await.unwrap();
}
