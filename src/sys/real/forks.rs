//! Children that are made and have not become their programs yet.
//!
//! Until then a child has a copy of every descriptor of this process, marked to be closed or not: that of a mount too,
//! which the kernel then takes to be in use.
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::io;
use std::process::{Child, Command};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

static CHILDREN: Mutex<Children> =
    Mutex::new(Children { made: 0, under_way: BTreeSet::new(), arrived: None });
static ARRIVED: Condvar = Condvar::new();

struct Children {
    made: u64,
    under_way: BTreeSet<u64>,
    /// When the last one became its program.
    arrived: Option<Instant>,
}

/// For how long after that it may still be closing what it had from us: the kernel does so on its way into the program.
const CLOSING: Duration = Duration::from_millis(50);

fn children() -> MutexGuard<'static, Children> {
    CHILDREN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long children may take to become their programs before nobody waits for them any more.
const PATIENCE: Duration = Duration::from_secs(1);

/// Starts the program, and is back once it runs or has failed to.
pub(crate) fn spawn(command: &mut Command) -> io::Result<Child> {
    let number = {
        let mut all = children();
        all.made += 1;
        let number = all.made;
        all.under_way.insert(number);
        number
    };
    let child = command.spawn();
    let mut all = children();
    all.under_way.remove(&number);
    all.arrived = Some(Instant::now());
    drop(all);
    ARRIVED.notify_all();
    child
}

/// Waits until no child is on its way of those that are now, at most for so long; whether there was any, a moment ago.
fn wait(patience: Duration) -> bool {
    let end = Instant::now() + patience;
    let mut all = children();
    let Some(last) = all.under_way.last().copied() else {
        return all.arrived.is_some_and(|arrived| arrived.elapsed() < CLOSING);
    };
    while all.under_way.first().is_some_and(|first| *first <= last) {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        all = ARRIVED.wait_timeout(all, left).unwrap_or_else(PoisonError::into_inner).0;
    }
    true
}

/// Does what is refused while something is in use, and again once no child can be who has it in use.
pub(super) fn retried(mut act: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    let mut outcome = act();
    if outcome != Err(Errno::BUSY) || !wait(PATIENCE) {
        return outcome;
    }
    let end = Instant::now() + CLOSING;
    loop {
        outcome = act();
        if outcome != Err(Errno::BUSY) || Instant::now() >= end {
            return outcome;
        }
        std::thread::sleep(CLOSING / 20);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::ffi::before_exec;
    use crate::sys::real::mounts;
    use rustix::fs::{Mode, OFlags, open};
    use rustix::mount::{MountFlags, UnmountFlags};
    use rustix::pipe::{PipeFlags, pipe_with};
    use std::path::Path;

    #[test]
    fn what_a_child_holds_that_is_on_its_way_is_unmounted_once_it_has_arrived() {
        let place = tempfile::tempdir().unwrap();
        let target = place.path().join("target");
        std::fs::create_dir(&target).unwrap();
        rustix::mount::mount("forks", &target, "tmpfs", MountFlags::empty(), None).unwrap();
        let handle = |path: &Path| open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let mounted = handle(&target);
        let (arrived, tells) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (waits, go) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let mut command = Command::new("/bin/true");
        before_exec(&mut command, move || {
            rustix::io::write(&tells, b"!")?;
            rustix::io::read(&waits, &mut [0; 1])?;
            Ok(())
        });
        let (at_once, while_it_holds, then) = std::thread::scope(|scope| {
            let child = scope.spawn(|| spawn(&mut command).and_then(|mut child| child.wait()));
            let told = rustix::io::read(&arrived, &mut [0; 1]);
            drop(mounted);
            let at_once = rustix::mount::unmount(&target, UnmountFlags::NOFOLLOW);
            // One that does not arrive holds up nobody for good.
            let while_it_holds = wait(Duration::from_millis(1));
            let (target, place) = (Path::new("target"), handle(place.path()));
            let unmounts = scope.spawn(move || mounts::unmount(place, target));
            let told = told.and(rustix::io::write(&go, b"!"));
            let then = (told, child.join().unwrap().unwrap().success(), unmounts.join().unwrap());
            (at_once, while_it_holds, then)
        });
        assert_eq!(at_once, Err(Errno::BUSY), "the child has our descriptors");
        assert!(while_it_holds);
        assert_eq!(then, (Ok(1), true, Ok(())));
    }
}
