//! Children that are made and have not become their programs yet.
//!
//! Until then a child has a copy of every descriptor of this process, marked to be closed or not: that of a mount too,
//! which the kernel then takes to be in use. So nothing is unmounted while a child is on its way.
use std::io;
use std::process::{Child, Command};
use std::sync::{PoisonError, RwLock};

static ON_THEIR_WAY: RwLock<()> = RwLock::new(());

/// Starts the program, and is back once it runs or has failed to.
pub(crate) fn spawn(command: &mut Command) -> io::Result<Child> {
    let _one = ON_THEIR_WAY.write().unwrap_or_else(PoisonError::into_inner);
    command.spawn()
}

/// Does something while no child is on its way.
pub(super) fn without<T>(act: impl FnOnce() -> T) -> T {
    let _none = ON_THEIR_WAY.read().unwrap_or_else(PoisonError::into_inner);
    act()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::ffi::before_exec;
    use crate::sys::real::mounts;
    use rustix::fs::{Mode, OFlags, open};
    use rustix::io::Errno;
    use rustix::mount::{MountFlags, UnmountFlags};
    use rustix::pipe::{PipeFlags, pipe_with};
    use std::path::Path;

    #[test]
    fn nothing_is_unmounted_while_a_child_is_on_its_way() {
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
        std::thread::scope(|scope| {
            let child = scope.spawn(|| spawn(&mut command));
            assert_eq!(rustix::io::read(&arrived, &mut [0; 1]), Ok(1));
            drop(mounted);
            let now = rustix::mount::unmount(&target, UnmountFlags::NOFOLLOW);
            assert_eq!(now, Err(Errno::BUSY), "the child has our descriptors");
            assert!(ON_THEIR_WAY.try_read().is_err());
            rustix::io::write(&go, b"!").unwrap();
            assert_eq!(mounts::unmount(handle(place.path()), Path::new("target")), Ok(()));
            assert!(child.join().unwrap().unwrap().wait().unwrap().success());
        });
    }
}
