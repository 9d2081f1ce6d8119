//! The real machine behind the daemon's traits.
use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::csi::{self, SocketPathError, UnixConnector};
use crate::node::runtime::containerd::Reached;
use crate::node::{AtSocket, Dial, Machine, SocketId};
use crate::sys::clock::RealClock;
use crate::sys::kernel::KernelError;
use crate::sys::random::RealRandom;
use crate::sys::real::{
    Pool, RealContainerd, RealContainers, RealFiles, RealKernel, RealProcesses, RealUnits, RealWatches,
};
use crate::sys::units::Units;
use crate::sys::{Containerd, Kernel};

/// Beneath the directory of sockets, what runc remembers.
const RUNC: &str = "runc";
/// Where the tasks of a data directory are, a directory each.
pub(super) const TASKS: &str = "tasks";
/// How often containerd is looked through until nothing of ours is in it, and between two looks.
const TRIES: u32 = 40;
const AWHILE: Duration = Duration::from_millis(50);
/// How long a look at the path of a socket may take.
const LOOK: Duration = Duration::from_secs(1);
/// Threads for path calls; more wait.
const THREADS: usize = 8;
/// How long one path call may hang.
const PATH_DEADLINE: Duration = Duration::from_secs(20);
/// Threads for the daemon's own files. Volumes that hang keep nobody from the journal.
const FILE_THREADS: usize = 2;
/// How long a flush of the journal may take: a busy disk is slow, and the daemon ends with its journal.
const FILE_DEADLINE: Duration = Duration::from_secs(300);

/// Everything real; containerd is at this socket, if it is there.
pub fn machine(data_dir: &Path, containerd: &Path) -> Result<Machine, KernelError> {
    let pool = Pool::new(THREADS, PATH_DEADLINE);
    Ok(Machine {
        kernel: Arc::new(RealKernel::open(data_dir, pool.clone())?),
        processes: Arc::new(RealProcesses::new(pool.clone())),
        files: Arc::new(RealFiles::new(Pool::new(FILE_THREADS, FILE_DEADLINE))),
        watches: Arc::new(RealWatches::new(pool)),
        clock: Arc::new(RealClock),
        random: Arc::new(RealRandom),
        dial: Arc::new(UnixDial { run_dir: run_dir(data_dir) }),
        containers: Some(Arc::new(RealContainers::new(data_dir))),
        containerd: Some((Arc::new(RealContainerd::new(containerd.to_owned())), containerd.to_owned())),
        units: RealUnits::booted().map(|units| Arc::new(units) as Arc<dyn Units>),
    })
}

/// Where plugin sockets of a data directory are: short, whatever the directory's path is.
pub fn run_dir(data_dir: &Path) -> PathBuf {
    let digest = ring::digest::digest(&ring::digest::SHA256, data_dir.as_os_str().as_encoded_bytes());
    let short: String = digest.as_ref()[..4].iter().map(|byte| format!("{byte:02x}")).collect();
    Path::new("/run/wharfline").join(short)
}

/// Removes what is left of a data directory's sockets once every plugin has ended: sockets and empty directories, no
/// more.
fn sweep_run_dir(run_dir: &Path) {
    let entries = std::fs::read_dir(run_dir).into_iter().flatten().flatten();
    for entry in entries {
        let _ = std::fs::remove_file(entry.path().join("csi.sock"));
        let _ = std::fs::remove_dir(entry.path());
    }
    for directory in run_dir.ancestors().take(2) {
        // What is not empty stays: it is not all ours.
        let _ = std::fs::remove_dir(directory);
    }
}

/// Everything is down: removes the machine's share of a data directory.
pub async fn leave(
    kernel: &dyn Kernel,
    containerd: Option<Reached>,
    data_dir: &Path,
) -> Result<(), KernelError> {
    kernel.undo_tree().await?;
    if let Some((containerd, _)) = containerd {
        forget_containers(&*containerd, data_dir).await;
    }
    sweep_run_dir(&run_dir(data_dir));
    Ok(())
}

/// Removes what containerd remembers of a data directory's tasks once all have ended, and what it called by: with a task's
/// end a process begins to do the same that may still be at it.
async fn forget_containers(containerd: &dyn Containerd, data_dir: &Path) {
    let (root, tasks) = (run_dir(data_dir).join(RUNC), data_dir.join(TASKS));
    if !root.exists() {
        return;
    }
    for _ in 0..TRIES {
        let Ok(found) = containerd.list().await else { return };
        let ours: Vec<_> = found.into_iter().filter(|container| container.is_beneath(&tasks)).collect();
        if ours.is_empty() {
            let _ = crate::sys::remove::tree(&root);
            return;
        }
        let some_run = ours.iter().any(|container| container.runs);
        for container in ours.into_iter().filter(|container| !container.runs) {
            // That it cannot be may be because another one does it.
            let _ = containerd.remove(&container.id).await;
        }
        if some_run {
            // What has ended runs for containerd until its own shim has told it so.
            tokio::time::sleep(AWHILE).await;
        }
    }
}

/// Unix sockets. Those beneath this directory are in directories of their plugins, which may have put anything there: no
/// link is followed. Others are where a person said.
#[derive(Debug)]
struct UnixDial {
    run_dir: PathBuf,
}

/// What is known of a file.
type Facts = fn(&Path) -> std::io::Result<Metadata>;

impl UnixDial {
    fn is_plugins(&self, socket: &Path) -> bool {
        socket.starts_with(&self.run_dir)
    }

    /// How to ask what is at the path of a socket, as connecting goes.
    fn facts(&self, socket: &Path) -> Facts {
        if self.is_plugins(socket) { |path| path.symlink_metadata() } else { |path| path.metadata() }
    }

    fn connector(&self, socket: &Path) -> Result<UnixConnector, SocketPathError> {
        if self.is_plugins(socket) {
            UnixConnector::in_directory_of_plugin(socket)
        } else {
            UnixConnector::new(socket)
        }
    }
}

/// Off the caller's task: a path may hang.
#[async_trait]
impl Dial for UnixDial {
    async fn prepare(&self, socket: &Path) -> std::io::Result<()> {
        let socket = socket.to_owned();
        tokio::task::spawn_blocking(move || prepare(&socket)).await.map_err(std::io::Error::other)?
    }

    async fn discard(&self, socket: &Path) {
        let socket = socket.to_owned();
        let _left = tokio::task::spawn_blocking(move || discard(&socket)).await;
    }

    async fn look(&self, socket: &Path) -> AtSocket {
        let (facts, socket) = (self.facts(socket), socket.to_owned());
        tokio::task::spawn_blocking(move || look(&socket, facts)).await.unwrap_or(AtSocket::Nothing)
    }

    async fn which(&self, socket: &Path) -> Option<SocketId> {
        let (facts, socket) = (self.facts(socket), socket.to_owned());
        let found = tokio::task::spawn_blocking(move || facts(&socket));
        let found = tokio::time::timeout(LOOK, found).await.ok()?.ok()?.ok()?;
        // An inode's number is given to the next file at once, which was made at another time.
        let born = [found.ctime(), found.ctime_nsec()].map(i64::cast_unsigned);
        Some(SocketId([found.dev(), found.ino(), born[0], born[1]]))
    }

    fn plugin(&self, socket: &Path, options: csi::PluginOptions) -> Result<csi::Plugin, SocketPathError> {
        Ok(csi::Plugin::new(self.connector(socket)?, options))
    }
}

fn look(socket: &Path, facts: Facts) -> AtSocket {
    match facts(socket).map(|found| found.file_type()) {
        Err(_) => AtSocket::Nothing,
        Ok(kind) if kind.is_symlink() => AtSocket::Other("a symbolic link, which is not followed"),
        Ok(kind) if kind.is_socket() => AtSocket::Socket,
        Ok(kind) if kind.is_dir() => AtSocket::Other("a directory"),
        Ok(kind) if kind.is_file() => AtSocket::Other("a regular file"),
        Ok(_) => AtSocket::Other("a device or pipe"),
    }
}

/// How often the directory that all sockets are in may go while one is made in it.
const GONE_MEANWHILE: usize = 16;

/// The directory is one process's own: whatever an earlier one left there, beside its socket, too, goes.
fn prepare(socket: &Path) -> std::io::Result<()> {
    let directory = socket.parent().unwrap_or(Path::new("/"));
    crate::sys::remove::tree(directory)?;
    // The last of other sockets takes the directory of all with it, in any moment.
    for _ in 0..GONE_MEANWHILE {
        match make_private(directory) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::AlreadyExists) => {}
            other => return other,
        }
    }
    make_private(directory)
}

fn make_private(directory: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o700))
}

fn discard(socket: &Path) {
    let Some(directory) = socket.parent() else { return };
    let _ = crate::sys::remove::tree(directory);
    // The run directory itself goes with its last socket; what is not empty stays.
    let _ = directory.parent().map(std::fs::remove_dir);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The directory that all sockets are in goes with the last of them.
    #[test]
    fn sockets_directories_are_made_while_others_go() {
        let machine = tempfile::tempdir().unwrap();
        let run_dir = machine.path().join("run");
        let rounds = |name: &str| {
            let socket = run_dir.join(name).join("csi.sock");
            move || {
                for round in 0..2000 {
                    prepare(&socket).unwrap_or_else(|error| panic!("round {round}: {error}"));
                    discard(&socket);
                }
            }
        };
        std::thread::scope(|threads| {
            threads.spawn(rounds("a"));
            threads.spawn(rounds("b"));
        });
        assert!(!run_dir.exists());
    }

    /// The plugin puts a link to the socket of another one where its own should be.
    #[tokio::test]
    async fn a_plugin_cannot_lead_the_daemon_to_another_ones_socket() {
        use crate::csi::Connector as _;
        let machine = tempfile::tempdir().unwrap();
        let dial = UnixDial { run_dir: machine.path().join("run") };
        let socket = |of: &str| machine.path().join(of).join("csi.sock");
        for of in ["run/a", "run/b", "elsewhere"] {
            dial.prepare(&socket(of)).await.unwrap();
        }
        let other = std::os::unix::net::UnixListener::bind(socket("run/b")).unwrap();
        other.set_nonblocking(true).unwrap();
        for of in ["run/a", "elsewhere"] {
            std::os::unix::fs::symlink(socket("run/b"), socket(of)).unwrap();
        }
        let connected = async |of: &str| dial.connector(&socket(of)).unwrap().connect().await.is_ok();
        assert!(matches!(dial.look(&socket("run/a")).await, AtSocket::Other(what) if what.contains("link")));
        assert_ne!(dial.which(&socket("run/a")).await, dial.which(&socket("run/b")).await);
        assert!(!connected("run/a").await && other.accept().is_err());
        for of in ["run/b", "elsewhere"] {
            assert_eq!(dial.look(&socket(of)).await, AtSocket::Socket);
            assert_eq!(dial.which(&socket(of)).await, dial.which(&socket("run/b")).await);
            assert!(connected(of).await && other.accept().is_ok(), "{of}");
        }
    }
}
