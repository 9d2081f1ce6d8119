//! Finding the processes that a lost shim left behind.
//!
//! Numbers are reused, so each sign is taken only where it cannot mean another task: the session while its
//! number has not gone to another leader, the mount namespace by the id that is never reused (or, before Linux
//! 6.11, when one of its processes is known by another sign), the word in the environment and the task's cgroup always.
//! Of a task without a cgroup, a process that gave up the other three (own session, host's mounts, cleared
//! environment) is not found.
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
    let members = leaf(state).map_or_else(Vec::new, |leaf| leaf.members());
    for &pid in &members {
        if !all.iter().any(|stat| stat.id.pid == pid) {
            all.extend(proc::stat(pid).ok());
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
        members.contains(&stat.id.pid)
            || session
            || in_namespace(state, stat.id.pid)
            || proc::has_environment(stat.id.pid, &word)
    };
    let (mut found, others): (Vec<&Stat>, Vec<&Stat>) =
        all.iter().filter(possible).partition(|stat| known(stat));
    if let Some(inode) = shared_inode(state, &found) {
        let same = |stat: &&Stat| proc::mount_namespace(stat.id.pid).is_ok_and(|ns| ns.inode == inode);
        found.extend(others.into_iter().filter(same));
    }
    Ok(found.into_iter().filter_map(|stat| Some((stat.id, proc::open(stat.id)?))).collect())
}

fn in_namespace(state: &TaskState, pid: i32) -> bool {
    let wanted = state.namespace.and_then(|namespace| namespace.unique);
    wanted.is_some() && proc::mount_namespace(pid).is_ok_and(|namespace| namespace.unique == wanted)
}

/// The inode of the task's namespace where ids are reused, if a process that is surely the task's is in it.
fn shared_inode(state: &TaskState, found: &[&Stat]) -> Option<u64> {
    let namespace = state.namespace.filter(|namespace| namespace.unique.is_none())?;
    let inside =
        |stat: &&Stat| proc::mount_namespace(stat.id.pid).is_ok_and(|other| other.inode == namespace.inode);
    found.iter().any(inside).then_some(namespace.inode)
}
