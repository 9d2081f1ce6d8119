//! Finding the processes that a lost shim left behind.
//!
//! Numbers are reused, so each sign is taken only where it cannot mean another task: the session while its
//! number has not gone to another leader, the mount namespace by the id that is never reused (or, before Linux
//! 6.11, when one of its processes is known by another sign), the word in the environment and the task's cgroup always.
//! Of a task without a cgroup, which only a machine has that lets none be made or joined, a process that gave up the other three (own
//! session, host's mounts, cleared environment) is not found. Where a process could not be looked at, nobody knows what is left: that is an error, and
//! never "nothing".
use crate::sys::cgroup::{Leaf, Trees};
use crate::sys::proc::{self, Stat};
use crate::sys::process::{ProcessId, TaskState};
use crate::sys::real::boot_id;
use crate::sys::shim::record::COOKIE;
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
    let known = |stat: &Stat| {
        let session = !reused && stat.session == state.shim.pid;
        Ok::<_, io::Error>(
            members.contains(&stat.id.pid)
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
