//! The driver behind it, where that is started here: its command, its socket, its start.
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

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
                let socket = room.0.join("csi.sock");
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

/// A directory for one socket, which goes with it.
#[derive(Debug)]
struct Room(PathBuf);

impl Room {
    fn new() -> io::Result<Self> {
        let path = std::env::temp_dir().join(format!("wharfline-chaos-{}", RealRandom.token()));
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // A driver that was killed has left its socket.
        let _ = std::fs::remove_file(self.0.join("csi.sock"));
        if let Err(error) = std::fs::remove_dir(&self.0) {
            tracing::warn!(directory = %self.0.display(), %error, "the directory of the driver's socket is left");
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
