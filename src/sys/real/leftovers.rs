//! Finding the processes that a lost shim left behind.
//!
//! Numbers are reused, so each sign is taken only where it cannot mean another task: the session while its
//! number has not gone to another leader, the mount namespace by the id that is never reused (or, before Linux
//! 6.11, when one of its processes is known by another sign), the word in the environment, the task's cgroup, and of who makes its
//! container for containerd how that is called, always.
//! Of a task without a cgroup, which only a machine has that lets none be made or joined, a process that gave up the other three (own
//! session, host's mounts, cleared environment) is not found. Where a process could not be looked at, nobody knows what is left: that is an error, and
//! never "nothing".
use crate::sys::cgroup::{Leaf, Trees};
use crate::sys::proc::{self, Stat};
use crate::sys::process::{ProcessId, TaskState};
use crate::sys::real::boot_id;
use crate::sys::shim::record::COOKIE;
use crate::sys::shim::through::CREATE;
use rustix::fd::OwnedFd;
use std::io;

/// A process and a descriptor of exactly it.
pub(crate) type Leftover = (ProcessId, OwnedFd);

/// What there is of the task's cgroup; none when it had none.
pub(crate) fn leaf(state: &TaskState) -> Option<Leaf> {
    let find = if state.unit.is_some() { Leaf::of_unit } else { Leaf::find };
    state.cgroup.as_ref().map(|path| find(&Trees::here(), path))
}

/// Every living process of the task.
pub(crate) fn find(state: &TaskState) -> io::Result<Vec<Leftover>> {
    if boot_id()? != state.boot_id {
        return Ok(Vec::new());
    }
    let ourselves = rustix::process::getpid().as_raw_nonzero().get();
    let mut all = proc::all()?;
    // Later than all: what was started meanwhile by one that is gone is in none of the two otherwise.
    let members = leaf(state).map_or_else(|| Ok(Vec::new()), |leaf| leaf.members())?;
    for &pid in &members {
        if !all.iter().any(|stat| stat.id.pid == pid) {
            all.extend(proc::find(pid)?);
        }
    }
    let reused = all.iter().any(|stat| stat.id.pid == state.shim.pid && stat.id != state.shim);
    let possible = |stat: &&Stat| {
        // Whatever it started is younger than the shim.
        !stat.zombie && stat.id.start_time >= state.shim.start_time && ![1, ourselves].contains(&stat.id.pid)
    };
    let word = format!("{COOKIE}={}", state.cookie);
    let makers = makers(state)?;
    let known = |stat: &Stat| {
        let session = !reused && stat.session == state.shim.pid;
        Ok::<_, io::Error>(
            members.contains(&stat.id.pid)
                || makers.contains(&stat.id)
                || session
                || in_namespace(state, stat.id.pid)?
                || proc::has_environment(stat.id.pid, &word)?,
        )
    };
    let (mut found, mut others) = (Vec::new(), Vec::new());
    for stat in all.iter().filter(possible) {
        if known(stat)? { found.push(stat) } else { others.push(stat) }
    }
    if let Some(inode) = shared_inode(state, &found)? {
        for stat in others {
            if has_inode(stat, inode)? {
                found.push(stat);
            }
        }
    }
    held(&found)
}

/// Who makes its container for containerd. Until it is runc it has no other sign, and it may have seen the client alive just before
/// that died.
fn makers(state: &TaskState) -> io::Result<Vec<ProcessId>> {
    let by = state.container.as_ref().and_then(|container| container.called_by.as_ref()?.to_str());
    let makers = by.map_or_else(|| Ok(Vec::new()), |by| proc::called_with(&[by, CREATE]))?;
    Ok(makers.iter().map(|maker| maker.id).collect())
}

/// Descriptors of those that live still. Where there are more of them than descriptors, some: the next look finds the rest.
fn held(found: &[&Stat]) -> io::Result<Vec<Leftover>> {
    let mut held = Vec::new();
    for stat in found {
        match proc::open(stat.id) {
            Ok(pidfd) => held.extend(pidfd.map(|pidfd| (stat.id, pidfd))),
            Err(_) if !held.is_empty() => break,
            Err(error) => return Err(error),
        }
    }
    Ok(held)
}

fn in_namespace(state: &TaskState, pid: i32) -> io::Result<bool> {
    let Some(wanted) = state.namespace.and_then(|namespace| namespace.unique) else { return Ok(false) };
    Ok(proc::find_mount_namespace(pid)?.is_some_and(|namespace| namespace.unique == Some(wanted)))
}

fn has_inode(stat: &Stat, inode: u64) -> io::Result<bool> {
    Ok(proc::find_mount_namespace(stat.id.pid)?.is_some_and(|namespace| namespace.inode == inode))
}

/// The inode of the task's namespace where ids are reused, if a process that is surely the task's is in it.
fn shared_inode(state: &TaskState, found: &[&Stat]) -> io::Result<Option<u64>> {
    let Some(namespace) = state.namespace.filter(|namespace| namespace.unique.is_none()) else {
        return Ok(None);
    };
    for stat in found {
        if has_inode(stat, namespace.inode)? {
            return Ok(Some(namespace.inode));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::process::ContainerState;
    use std::path::PathBuf;
    use std::process::{Command, Stdio};

    /// The state of a task of this boot, of which nothing lives that has another sign.
    fn state(called_by: Option<&str>) -> TaskState {
        let own = proc::stat(i32::try_from(std::process::id()).unwrap()).unwrap().id;
        let called_by = called_by.map(PathBuf::from);
        TaskState {
            boot_id: boot_id().unwrap(),
            // Of nobody's session.
            shim: ProcessId { pid: i32::MAX, ..own },
            task: ProcessId { pid: i32::MAX, ..own },
            namespace: None,
            cookie: "no such word".to_owned(),
            started_ms: 0,
            cgroup: None,
            unit: None,
            container: Some(ContainerState { remembered: PathBuf::new(), called_by, layers: Vec::new() }),
        }
    }

    #[test]
    fn who_makes_the_container_is_known_by_how_it_is_called() {
        const BY: &str = "/run/wharfline/of-this-test/a.main-01/wharfline-runc";
        const OTHER: &str = "/run/wharfline/of-this-test/a.main-02/wharfline-runc";
        let start = |by: &str, verb: &str| {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", "read -r line", by, "--root", "/run", verb, "a.main-01"]);
            command.stdin(Stdio::piped()).spawn().unwrap()
        };
        let mut all = [start(BY, "create"), start(BY, "delete"), start(OTHER, "create")];
        let wanted = i32::try_from(all[0].id()).unwrap();
        let pids = |by: Option<&str>| -> Vec<i32> {
            find(&state(by)).unwrap().into_iter().map(|(id, _)| id.pid).collect()
        };
        assert_eq!(pids(Some(BY)), [wanted]);
        assert!(pids(None).is_empty());
        for child in &mut all {
            drop(child.stdin.take());
            child.wait().unwrap();
        }
        let mut older = serde_json::to_value(state(Some(BY))).unwrap();
        older["container"].as_object_mut().unwrap().remove("called_by").unwrap();
        assert_eq!(serde_json::from_value::<TaskState>(older).unwrap(), state(None));
    }
}
