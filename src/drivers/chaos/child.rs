//! The driver behind it, where that is started here: its command, its socket, its start.
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::fs::FlockOperation;
use tokio::net::UnixStream;

use crate::drivers::endpoint::{self, EndpointError};
use crate::sys::Random as _;
use crate::sys::random::RealRandom;
use crate::sys::real::companion::Companion;

/// How often a driver that was started is asked whether it listens. A socket's file is there before it listens, so that
/// the file's appearance says too little.
const LOOK: Duration = Duration::from_millis(10);
/// The name under which this program itself is found, as in a task of ours.
const OURSELVES: &str = "wharfline";
/// By which a driver learns where to listen.
const ENDPOINT: &str = "CSI_ENDPOINT";

/// Why a driver is not there.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// There is no program of this name, or it cannot be run.
    #[error("{program:?} cannot be started")]
    Start {
        /// The program.
        program: OsString,
        /// What the kernel said.
        source: io::Error,
    },
    /// There is no place for its socket.
    #[error("no directory for the driver's socket; name a socket with --driver")]
    Room(#[source] io::Error),
    /// Something is at the path of its socket.
    #[error("the driver's socket")]
    Socket(#[from] EndpointError),
    /// It ended before it listened.
    #[error(
        "the driver ended before it listened on {socket}, with {status}; it has to listen where CSI_ENDPOINT says"
    )]
    Ended {
        /// Where it should have listened.
        socket: PathBuf,
        /// How it ended.
        status: ExitStatus,
    },
    /// It cannot be watched.
    #[error("the driver's process cannot be watched")]
    Watch(#[from] io::Error),
}

/// How a driver is started.
#[derive(Debug)]
pub(super) struct Launch {
    program: OsString,
    arguments: Vec<OsString>,
    pub(super) socket: PathBuf,
    /// The directory of the socket, if it was made for it.
    _room: Option<Room>,
}

impl Launch {
    /// `command` behind a socket: the one named, or one in a new directory. Where the arguments name `outer`, the socket that
    /// callers are told, they name the driver's own.
    pub(super) fn new(
        command: &[OsString],
        outer: &Path,
        socket: Option<PathBuf>,
    ) -> Result<Self, ChildError> {
        let (socket, room) = match socket {
            Some(socket) => (socket, None),
            None => {
                let room = Room::new().map_err(ChildError::Room)?;
                let socket = room.path.join(SOCKET);
                (endpoint::socket_path(&format!("unix://{}", socket.display()))?, Some(room))
            }
        };
        let (program, arguments) = command
            .split_first()
            .map_or((OsStr::new(""), &[][..]), |(program, rest)| (program.as_os_str(), rest));
        let program = if program == OURSELVES { std::env::current_exe()?.into() } else { program.to_owned() };
        let arguments = arguments.iter().map(|argument| inner(argument, outer, &socket)).collect();
        Ok(Self { program, arguments, socket, _room: room })
    }

    /// Starts the driver and waits until it listens. Dropped before that, it is killed.
    pub(super) async fn start(&self) -> Result<Companion, ChildError> {
        endpoint::clear_stale(&self.socket)?;
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stdin(Stdio::null());
        command.env(ENDPOINT, format!("unix://{}", self.socket.display()));
        let refused = |source| ChildError::Start { program: self.program.clone(), source };
        let mut companion = Companion::start(command).map_err(refused)?;
        loop {
            if UnixStream::connect(&self.socket).await.is_ok() {
                return Ok(companion);
            }
            tokio::select! {
                status = companion.ended() => {
                    return Err(ChildError::Ended { socket: self.socket.clone(), status: status? });
                }
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }
}

/// An argument, with the driver's own socket where it names that of the callers.
fn inner(argument: &OsStr, outer: &Path, socket: &Path) -> OsString {
    match (argument.to_str(), outer.to_str(), socket.to_str()) {
        (Some(argument), Some(outer), Some(socket)) => argument.replace(outer, socket).into(),
        _ => argument.to_owned(),
    }
}

/// What the name of each [`Room`] begins with.
const ROOMS: &str = "wharfline-chaos-";
/// The driver's socket within it.
const SOCKET: &str = "csi.sock";

/// A directory for one socket, which goes with it. It is locked for as long as it is used.
#[derive(Debug)]
struct Room {
    path: PathBuf,
    lock: Option<File>,
}

impl Room {
    fn new() -> io::Result<Self> {
        let parent = std::env::temp_dir();
        clear_left(&parent);
        let mut room = Self::unlocked(&parent)?;
        for _ in 0..TRIES {
            match lock(&room.path) {
                Ok(lock) if room.path.is_dir() => {
                    room.lock = Some(lock);
                    break;
                }
                // Another one clears it up, and was faster.
                Ok(_) => room = Self::unlocked(&parent)?,
                Err(error)
                    if [io::ErrorKind::NotFound, io::ErrorKind::WouldBlock].contains(&error.kind()) =>
                {
                    room = Self::unlocked(&parent)?;
                }
                // Where nothing can be locked, others take it for theirs once nobody listens there.
                Err(_) => break,
            }
        }
        Ok(room)
    }

    fn unlocked(parent: &Path) -> io::Result<Self> {
        let path = parent.join(format!("{ROOMS}{}", RealRandom.token()));
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self { path, lock: None })
    }
}

fn lock(room: &Path) -> io::Result<File> {
    let directory = File::open(room)?;
    rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive)?;
    Ok(directory)
}

/// How often a room is made that others may clear away before it is locked.
const TRIES: usize = 8;

/// Removes what was left by those that were killed: what is ours, locked by nobody, and where nobody listens. The rest stays.
fn clear_left(parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let room = entry.path();
        let named = entry.file_name().to_str().is_some_and(|name| name.starts_with(ROOMS));
        let ours = entry
            .metadata()
            .is_ok_and(|found| found.is_dir() && found.uid() == rustix::process::geteuid().as_raw());
        if named
            && ours
            && let Ok(_lock) = lock(&room)
            && std::os::unix::net::UnixStream::connect(room.join(SOCKET)).is_err()
        {
            let _ = std::fs::remove_file(room.join(SOCKET));
            if let Err(error) = std::fs::remove_dir(&room) {
                tracing::debug!(directory = %room.display(), %error, "what another one has left is not removed");
            }
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.lock = None;
        // A driver that was killed has left its socket.
        let _ = std::fs::remove_file(self.path.join(SOCKET));
        if let Err(error) = std::fs::remove_dir(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(directory = %self.path.display(), %error, "the directory of the driver's socket is left");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_that_name_the_callers_socket_name_the_drivers() {
        let (outer, socket) = (Path::new("/run/x/csi.sock"), Path::new("/tmp/y/csi.sock"));
        for (given, wanted) in [
            ("--endpoint=unix:///run/x/csi.sock", "--endpoint=unix:///tmp/y/csi.sock"),
            ("unix:/run/x/csi.sock", "unix:/tmp/y/csi.sock"),
            ("--node-id", "--node-id"),
        ] {
            assert_eq!(inner(OsStr::new(given), outer, socket), wanted);
        }
    }

    #[test]
    fn what_a_killed_one_has_left_is_cleared_and_what_is_used_is_not() {
        let parent = tempfile::tempdir().unwrap();
        let room = |name: &str| {
            let room = parent.path().join(name);
            std::fs::create_dir(&room).unwrap();
            std::fs::write(room.join(SOCKET), "").unwrap();
            room
        };
        let [left, used, other] = ["wharfline-chaos-1", "wharfline-chaos-2", "wharfline-data"].map(room);
        let [more, listens] = ["wharfline-chaos-3", "wharfline-chaos-4"].map(room);
        std::fs::write(more.join("mine"), "").unwrap();
        // One of an earlier version locks nothing.
        std::fs::remove_file(listens.join(SOCKET)).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(listens.join(SOCKET)).unwrap();
        let _lock = lock(&used).unwrap();
        clear_left(parent.path());
        let there = [&left, &used, &other, &more, &listens].map(|room| room.exists());
        assert_eq!(there, [false, true, true, true, true]);
        assert!(used.join(SOCKET).exists() && more.join("mine").exists());
    }

    #[tokio::test]
    async fn a_driver_that_does_not_listen_is_told_of() {
        let command = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let outer = Path::new("/run/x/csi.sock");
        let launch = Launch::new(&command(&["/bin/sh", "-c", "exit 7"]), outer, None).unwrap();
        let error = launch.start().await.unwrap_err();
        assert!(matches!(&error, ChildError::Ended { status, .. } if status.code() == Some(7)), "{error:?}");
        let room = launch.socket.parent().unwrap().to_owned();
        assert!(room.is_dir());
        drop(launch);
        assert!(!room.exists());
        let nothing = Launch::new(&command(&["/no/such/program"]), outer, None).unwrap();
        assert!(matches!(nothing.start().await.unwrap_err(), ChildError::Start { .. }));
    }
}
