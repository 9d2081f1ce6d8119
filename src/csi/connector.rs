//! How a plugin is reached: a unix socket in life, something else in a simulation.
//!
//! Never retries and never unlinks a socket; a connector makes one connection each time it is asked.
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use rustix::fs::{FileType, Mode, OFlags};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;

/// The most bytes of path that the kernel takes for a socket, without the terminating zero (`unix(7)`).
pub const MAX_SOCKET_PATH: usize = 107;

/// A connection to a plugin.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

/// Makes connections to one plugin.
#[async_trait]
pub trait Connector: Send + Sync + 'static {
    /// One new connection, or why there is none. The caller limits the time that it takes.
    async fn connect(&self) -> io::Result<Box<dyn Connection>>;
}

/// Why a path cannot be the socket of a plugin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SocketPathError {
    /// The kernel would refuse it, and the refusal would look like a plugin that is down.
    #[error("socket path {path:?} has {length} bytes; the kernel takes at most {MAX_SOCKET_PATH}")]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Its length in bytes.
        length: usize,
    },
    /// CSI endpoints are absolute.
    #[error("socket path {path:?} is not absolute")]
    NotAbsolute {
        /// The path.
        path: PathBuf,
    },
    /// A zero byte ends the path early.
    #[error("socket path {path:?} contains a zero byte")]
    ZeroByte {
        /// The path.
        path: PathBuf,
    },
}

/// Connects to a unix socket.
#[derive(Clone, Debug)]
pub struct UnixConnector {
    path: PathBuf,
    whose: Whose,
}

/// Who decides what is at the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    /// Whoever wrote the path: it leads where it leads.
    Writers,
    /// The plugin, by its directory.
    Plugins,
}

impl UnixConnector {
    /// A connector for the socket at `path`, which need not exist yet. Links are followed: who wrote the path may mean them.
    pub fn new(path: impl Into<PathBuf>) -> Result<Self, SocketPathError> {
        Self::checked(path.into(), Whose::Writers)
    }

    /// The same in a directory that was made for the plugin, which can put anything there. Nothing but a socket of its own
    /// is connected to: by a link it could have the calls, and the secrets in them, go to another one.
    pub fn in_directory_of_plugin(path: impl Into<PathBuf>) -> Result<Self, SocketPathError> {
        Self::checked(path.into(), Whose::Plugins)
    }

    fn checked(path: PathBuf, whose: Whose) -> Result<Self, SocketPathError> {
        let bytes = path.as_os_str().as_bytes();
        if bytes.len() > MAX_SOCKET_PATH {
            return Err(SocketPathError::TooLong { length: bytes.len(), path });
        }
        if bytes.contains(&0) {
            return Err(SocketPathError::ZeroByte { path });
        }
        if !path.is_absolute() {
            return Err(SocketPathError::NotAbsolute { path });
        }
        Ok(Self { path, whose })
    }

    /// The socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[async_trait]
impl Connector for UnixConnector {
    async fn connect(&self) -> io::Result<Box<dyn Connection>> {
        match self.whose {
            Whose::Writers => Ok(Box::new(UnixStream::connect(&self.path).await?)),
            Whose::Plugins => {
                let socket = hold(&self.path)?;
                // This very one, whatever is at the path by now.
                let path = format!("/proc/self/fd/{}", socket.as_raw_fd());
                Ok(Box::new(UnixStream::connect(path).await?))
            }
        }
    }
}

/// Takes hold of the socket at a path whose last two parts are no links.
fn hold(path: &Path) -> io::Result<OwnedFd> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory, flags | OFlags::DIRECTORY, Mode::empty())?;
    let found = rustix::fs::openat(&directory, name, flags, Mode::empty())?;
    let is = match FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) {
        FileType::Socket => return Ok(found),
        FileType::Symlink => "is a symbolic link, which is not followed",
        _ => "is not a socket",
    };
    Err(io::Error::other(format!("{} {is}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_path_is_judged_before_it_is_dialled() {
        let of_length = |length: usize| format!("/{}", "x".repeat(length - 1));
        assert_eq!(UnixConnector::new(of_length(107)).unwrap().path().as_os_str().len(), 107);
        let error = UnixConnector::new(of_length(108)).unwrap_err();
        assert!(matches!(error, SocketPathError::TooLong { length: 108, .. }));
        assert!(error.to_string().ends_with("has 108 bytes; the kernel takes at most 107"), "{error}");
        assert!(matches!(UnixConnector::new("csi.sock"), Err(SocketPathError::NotAbsolute { .. })));
        assert!(matches!(UnixConnector::new("/a\0b"), Err(SocketPathError::ZeroByte { .. })));
        assert!(UnixConnector::in_directory_of_plugin(of_length(108)).is_err());
    }

    /// What the plugin may put there to have the daemon speak with somebody else.
    #[tokio::test]
    async fn in_a_directory_of_a_plugin_only_its_own_socket_is_connected_to() {
        use std::os::unix::fs::symlink;
        let run = tempfile::tempdir().unwrap();
        let at = |path: &str| run.path().join(path);
        for directory in ["own", "other"] {
            std::fs::create_dir(at(directory)).unwrap();
        }
        let other = std::os::unix::net::UnixListener::bind(at("other/csi.sock")).unwrap();
        other.set_nonblocking(true).unwrap();
        let told = |path: PathBuf| async move {
            let connector = UnixConnector::in_directory_of_plugin(path).unwrap();
            connector.connect().await.map(drop).map_err(|error| error.to_string())
        };
        let none_came = || assert_eq!(other.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);

        let socket = at("own/csi.sock");
        for target in [at("other/csi.sock"), "../other/csi.sock".into(), at("nowhere")] {
            symlink(target, &socket).unwrap();
            let error = told(socket.clone()).await.unwrap_err();
            let sentence = format!("{} is a symbolic link, which is not followed", socket.display());
            assert_eq!(error, sentence);
            none_came();
            std::fs::remove_file(&socket).unwrap();
        }
        std::fs::write(&socket, "").unwrap();
        assert!(told(socket.clone()).await.unwrap_err().ends_with("own/csi.sock is not a socket"));
        std::fs::remove_file(&socket).unwrap();
        assert!(told(socket.clone()).await.unwrap_err().contains("No such file"));
        symlink(at("other"), at("link")).unwrap();
        assert!(told(at("link/csi.sock")).await.is_err(), "nor by a link in the place of the directory");
        none_came();

        // Its own; and a path that a person wrote leads where it leads.
        told(at("other/csi.sock")).await.unwrap();
        other.accept().unwrap();
        UnixConnector::new(at("link/csi.sock")).unwrap().connect().await.unwrap();
        other.accept().unwrap();
    }
}
